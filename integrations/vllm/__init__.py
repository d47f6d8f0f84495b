"""The connector for vLLM; its module path is `mooncake_store.integrations.vllm.connector`.

`connector.py` alone imports vllm.
"""
