"""Mooncake Store: the KV caches of LLM inference, kept in the memory of many machines."""

__version__ = "0.1.0"

__all__ = ["__version__"]
