"""SGLang's HiCache without its server: its backend factory and its pool in host memory.

Lines in: {"do": "open", "backend": `dynamic` or `mooncake`, "extra": {...}, "layout": ...}, then
{"do": "set" or "get" or "exists" or "hybrid" or "clear", ...}, then {"do": "close"}.  A page's
content follows from its number and a seed.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.machinery
import json
import sys
import types
from typing import Any

import torch
import transformers.models.llama.modeling_llama  # noqa: F401  # before: it does without

PAGE, PAGES, LAYERS, HEADS, HEAD_SIZE = 8, 16, 3, 2, 16


def _nothing(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


class NoVision(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands for torchvision, which SGLang imports for models with pictures, and nothing here uses.

    Its wheel brings a torch for GPUs.
    """

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".")[0] == "torchvision":
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        module = types.ModuleType(spec.name)
        module.__getattr__ = _nothing  # type: ignore[method-assign]
        return module

    def exec_module(self, module: Any) -> None:
        module.__path__ = []


sys.meta_path.append(NoVision())

from sglang.srt.mem_cache.device_pool_info import KVBufferLayout, KVBuffers, MHABufferInfo  # noqa: E402
from sglang.srt.mem_cache.hicache_storage import (  # noqa: E402
    HiCacheStorageConfig,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
)
from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost  # noqa: E402
from sglang.srt.mem_cache.storage import StorageBackendFactory  # noqa: E402


def host_pool(layout: str) -> Any:
    """Return SGLang's own pool in host memory, over a small "device" cache on the CPU."""
    tokens = PAGE * PAGES
    device = [torch.zeros(tokens, HEADS, HEAD_SIZE) for _ in range(2 * LAYERS)]
    addresses = torch.tensor([each.data_ptr() for each in device], dtype=torch.uint64)
    info = MHABufferInfo(
        buffers=KVBuffers(
            k=tuple(device[:LAYERS]), v=tuple(device[LAYERS:]),
            k_data_ptrs=addresses[:LAYERS], v_data_ptrs=addresses[LAYERS:],
            layout=next(iter(KVBufferLayout)),
        ),
        page_size=PAGE, head_num=HEADS, head_dim=HEAD_SIZE, v_head_dim=HEAD_SIZE,
        dtype=torch.float32, device=torch.device("cpu"),
    )  # fmt: skip
    return MHATokenToKVPoolHost(
        info, 1.0, 0, PAGE, layout, pin_memory=False,
        device_capacity_tokens=tokens, start_layer=0, end_layer=LAYERS,
        host_token_capacity=tokens,
    )  # fmt: skip


class Cache:
    """One rank."""

    def __init__(self, backend: str, extra: dict[str, Any], layout: str) -> None:
        model = extra.pop("model_name", "llama")
        self.pool = host_pool(layout)
        self.side = host_pool(layout)
        config = HiCacheStorageConfig(
            tp_rank=extra.pop("tp_rank", 0), tp_size=2, pp_rank=0, pp_size=1, attn_cp_rank=0,
            attn_cp_size=1, is_mla_model=False, enable_storage_metrics=False,
            is_page_first_layout=layout == "page_first", model_name=model, extra_config=extra,
        )  # fmt: skip
        self.backend = StorageBackendFactory.create_backend(backend, config, self.pool)
        self.backend.register_mem_pool_host(self.pool)
        self.has_pages = backend == "mooncake" or bool(extra.get("interface_v1"))
        if self.has_pages:
            self.backend.register_mem_host_pool_v2(self.side, PoolName.SWA)

    @staticmethod
    def names(pages: list[int]) -> list[str]:
        return [hashlib.sha256(bytes([page])).hexdigest() for page in pages]

    @staticmethod
    def indices(first: int, count: int) -> torch.Tensor:
        return torch.arange(first * PAGE, (first + count) * PAGE)

    def fill(self, pool: Any, first: int, pages: list[int], seed: int) -> None:
        for at, page in enumerate(pages):
            like = pool.get_dummy_flat_data_page()
            generator = torch.Generator().manual_seed(1000 * seed + page)
            content = torch.randn(like.shape, generator=generator)
            pool.set_from_flat_data_page((first + at) * PAGE, content)

    def sum(self, pool: Any, first: int, count: int) -> str:
        digest = hashlib.sha256()
        for at in range(first, first + count):
            page = pool.get_data_page(at * PAGE, flat=True)
            digest.update(page.contiguous().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()[:16]

    def set(self, pages: list[int], seed: int) -> dict[str, Any]:
        self.fill(self.pool, 0, pages, seed)
        expected = self.sum(self.pool, 0, len(pages))
        if self.has_pages:
            done = self.backend.batch_set_v1(self.names(pages), self.indices(0, len(pages)))
        else:
            values = [self.pool.get_data_page(at * PAGE) for at in range(len(pages))]
            done = self.backend.batch_set(self.names(pages), values)
        return {"done": done, "sum": expected}

    def get(self, pages: list[int]) -> dict[str, Any]:
        count = len(pages)
        if self.has_pages:
            done = self.backend.batch_get_v1(self.names(pages), self.indices(4, count))
        else:
            targets = [self.pool.get_dummy_flat_data_page() for _ in pages]
            read = self.backend.batch_get(self.names(pages), targets)
            done = [each is not None for each in read]
            for at, page in enumerate(read):
                if page is not None:
                    self.pool.set_from_flat_data_page((4 + at) * PAGE, page)
        return {"done": done, "sum": self.sum(self.pool, 4, count)}

    def exists(self, pages: list[int]) -> dict[str, Any]:
        return {"count": self.backend.batch_exists(self.names(pages))}

    def hybrid(self, pages: list[int], side: list[int], window: int, seed: int) -> dict[str, Any]:
        """Store pages and, for some of them, a side pool's; what prefixes can be restored then."""
        names = self.names(pages)
        self.set(pages, seed)
        self.fill(self.side, 0, side, seed + 1)
        expected = self.sum(self.side, 0, len(side))
        stored = self.backend.batch_set_v2(
            [PoolTransfer(PoolName.SWA, self.indices(0, len(side)), keys=self.names(side))]
        )
        found = self.backend.batch_exists_v2(
            names,
            [
                PoolTransfer(
                    PoolName.SWA, keys=names[:window], hit_policy=PoolHitPolicy.TRAILING_PAGES
                )
            ],
        )
        loaded = self.backend.batch_get_v2(
            [PoolTransfer(PoolName.SWA, self.indices(4, len(side)), keys=self.names(side))]
        )
        return {
            "stored": next(iter(stored.values())),
            "restorable": found.restorable_prefix_pages,
            "hit": found.kv_hit_pages,
            "pools": [found.extra_pool_hit_pages.get(name) for name in (PoolName.KV, PoolName.SWA)],
            "loaded": next(iter(loaded.values())),
            "equal": self.sum(self.side, 4, len(side)) == expected,
        }

    def clear(self) -> dict[str, Any]:
        self.backend.clear()
        return {}

    def close(self) -> dict[str, Any]:
        # SGLang closes neither its own backend nor what that has opened.
        for each in (self.backend, getattr(self.backend, "store", None)):
            if hasattr(each, "close"):
                each.close()
        return {}


def main() -> None:
    cache: Any = None
    print("READY", flush=True)
    for line in sys.stdin:
        given = json.loads(line)
        do = given.pop("do")
        if do == "open":
            cache, answer = Cache(**given), {}
        else:
            answer = getattr(cache, do)(**given)
        print("ANSWER " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
