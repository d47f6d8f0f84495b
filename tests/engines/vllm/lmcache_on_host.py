"""What LMCache 0.5 has for every kind of device but CPUs: its way into vLLM's paged cache.

vLLM finds its own, unmodified LMCacheConnectorV1 here; LMCache makes the class below for it.
On a CPU a block's bytes are laid out for its instructions, and mean nothing token by token: whole
blocks are copied, as they are, so a chunk is a multiple of a block.

vLLM 0.32 looks, on a CPU, for kernels in all modules that are there by then, and ends at an object
of llvmlite's that has every attribute that it is asked for: here it has none of Python's own.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding.ffi as llvmlite_ffi
import torch
from lmcache.v1 import gpu_connector
from lmcache.v1.gpu_connector import GPUConnectorInterface
from vllm.distributed.kv_transfer.kv_connector.v1.lmcache_connector import LMCacheConnectorV1

__all__ = ["HostConnector", "LMCacheConnectorV1"]


class HostConnector(GPUConnectorInterface):  # type: ignore[misc, unused-ignore]
    """Copies between LMCache's chunks and the blocks of vLLM's cache, both in host memory."""

    def __init__(self, metadata: Any) -> None:
        layers, kinds, _, heads, head_size = metadata.kv_shape
        self._layers, self._kinds, self._hidden = layers, kinds, heads * head_size
        self.kvcaches: list[torch.Tensor] = []

    def get_shape(self, num_tokens: int) -> torch.Size:
        return torch.Size((self._kinds, self._layers, num_tokens, self._hidden))

    def initialize_kvcaches_ptr(self, **kwargs: Any) -> None:
        if "kvcaches" in kwargs:
            self.kvcaches = list(kwargs["kvcaches"])

    def _blocks(self, memory: Any, start: int, end: int, given: dict[str, Any]) -> Any:
        """Return a chunk as layers of blocks, and which blocks of the cache they are."""
        self.initialize_kvcaches_ptr(**given)
        size = self._block_size()
        slots = given["slot_mapping"][start:end].reshape(-1, size)  # else: no whole blocks
        assert bool((slots[:, 0] % size == 0).all()), "a chunk begins within a block"
        blocks = slots[:, 0] // size
        chunk = memory.tensor.view(-1).view(len(self.kvcaches), len(blocks), -1)
        return chunk, blocks

    def _block_size(self) -> int:
        numbers = self.kvcaches[0][0].numel()
        size, rest = divmod(numbers, self._kinds * self._hidden)
        assert rest == 0, "a block is no number of tokens"
        return size

    def from_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        chunk, blocks = self._blocks(memory_obj, start, end, kwargs)
        for layer, cache in zip(chunk, self.kvcaches, strict=True):
            layer.copy_(cache[blocks].reshape(layer.shape))

    def to_gpu(self, memory_obj: Any, start: int, end: int, **kwargs: Any) -> None:
        chunk, blocks = self._blocks(memory_obj, start, end, kwargs)
        for layer, cache in zip(chunk, self.kvcaches, strict=True):
            cache[blocks] = layer.reshape(-1, *cache.shape[1:])

    def batched_from_gpu(self, memory_objs: Any, starts: Any, ends: Any, **kwargs: Any) -> None:
        for memory, start, end in zip(memory_objs, starts, ends, strict=True):
            self.from_gpu(memory, start, end, **kwargs)

    def batched_to_gpu(
        self, memory_objs: Any = None, starts: Any = None, ends: Any = None, **kwargs: Any
    ) -> None:
        for memory, start, end in zip(memory_objs, starts, ends, strict=True):
            self.to_gpu(memory, start, end, **kwargs)


def _only_functions(get: Any) -> Any:
    def found(library: Any, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return get(library, name)

    return found


_Library = type(llvmlite_ffi.lib)
_Library.__getattr__ = _only_functions(_Library.__getattr__)


def _made(_: Any, metadata: Any, *__: Any, **___: Any) -> HostConnector:
    return HostConnector(metadata)


gpu_connector.CreateGPUConnector = _made
