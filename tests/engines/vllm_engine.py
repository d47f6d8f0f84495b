"""A vLLM engine on the CPU, in its own environment: one prompt a line in, one answer a line out.

vllm_engine.py make FOLDER            a tiny Llama with seeded weights
vllm_engine.py serve FOLDER [CONFIG]  with a --kv-transfer-config
"""

from __future__ import annotations

import json
import sys
from typing import Any

BLOCK_SIZE = 32  # what vLLM's CPU attention wants a multiple of


def make(folder: str) -> None:
    import torch
    import transformers

    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=200, hidden_size=128, intermediate_size=192, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=512,
        initializer_range=0.5, torch_dtype="float32", bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def serve(folder: str, transfer: str) -> None:
    from vllm import LLM, SamplingParams

    more: dict[str, Any] = {"kv_transfer_config": json.loads(transfer)} if transfer else {}
    engine = LLM(
        folder, max_model_len=256, block_size=BLOCK_SIZE, enforce_eager=True, max_num_seqs=4,
        enable_prefix_caching=False, skip_tokenizer_init=True, seed=0, **more,
    )  # fmt: skip
    sampling = SamplingParams(temperature=0, max_tokens=12, detokenize=False, ignore_eos=True)
    print("READY", flush=True)
    for line in sys.stdin:
        prompt: Any = {"prompt_token_ids": json.loads(line)}
        (output,) = engine.generate([prompt], sampling, use_tqdm=False)
        answer = {"tokens": list(output.outputs[0].token_ids), "loaded": output.num_cached_tokens}
        print("ANSWER " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2])
    else:
        serve(sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else "")
