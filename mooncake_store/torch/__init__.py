"""PyTorch on the store: tensors, nested state, tensor-parallel slices, prefixes of a KV cache.

from mooncake_store import Client
from mooncake_store.torch import get_state, put_state

with Client() as store:
    put_state(store, "step-1000", {"model": model.state_dict(), "step": 1000})
    state = get_state(store, "step-1000")

Only this package imports torch; `load_longest_prefix` imports transformers.
"""

from mooncake_store.torch.prefix import (
    LoadedPrefix,
    cache_identity,
    load_longest_prefix,
    save_prefix,
)
from mooncake_store.torch.slices import get_slice, get_slice_into, put_slice
from mooncake_store.torch.state import get_state, get_state_into, put_state

__all__ = [
    "LoadedPrefix",
    "cache_identity",
    "get_slice",
    "get_slice_into",
    "get_state",
    "get_state_into",
    "load_longest_prefix",
    "put_slice",
    "put_state",
    "save_prefix",
]
