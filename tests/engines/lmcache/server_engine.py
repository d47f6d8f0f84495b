"""LMCache's server without its network: its storage manager with an L2 adapter.

Lines in: {"do": "open", "adapter": {...}} with one --l2-adapter, then {"do": "store", "chunks": N,
"seed": S} or {"do": "load", "chunks": N}, both with `dtype` and `salt`, then {"do": "close"}.
Answers: how many chunks went to, or came from, the second level, and their sum.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from typing import Any

import torch
from lmcache.v1.distributed.api import (
    GroupedObjectKeys,
    MemoryLayoutDesc,
    ObjectKey,
    PrefetchTaskSpec,
)
from lmcache.v1.distributed.config import (
    EvictionConfig,
    L1ManagerConfig,
    L1MemoryManagerConfig,
    StorageManagerConfig,
)
from lmcache.v1.distributed.l2_adapters.config import L2AdaptersConfig
from lmcache.v1.distributed.l2_adapters.plugin_l2_adapter import PluginL2AdapterConfig
from lmcache.v1.distributed.storage_manager import StorageManager

SHAPE = torch.Size([2, 3, 16, 16])
WAIT_S = 30


class Server:
    """Objects of a made-up model."""

    def __init__(self, adapter: dict[str, Any]) -> None:
        self.manager = StorageManager(
            StorageManagerConfig(
                l1_manager_config=L1ManagerConfig(
                    memory_config=L1MemoryManagerConfig(size_in_bytes=32 << 20, use_lazy=False)
                ),
                eviction_config=EvictionConfig(eviction_policy="LRU"),
                l2_adapter_config=L2AdaptersConfig([PluginL2AdapterConfig.from_dict(adapter)]),
            )
        )
        _, self.adapter = self.manager.l2_adapters()[0]

    def keys(self, chunks: int, salt: str) -> list[ObjectKey]:
        rank = ObjectKey.ComputeKVRank(
            world_size=1, global_rank=0, local_world_size=1, local_rank=0
        )
        return [
            ObjectKey(hashlib.sha256(bytes([at])).digest(), "llama", rank, 0, salt)
            for at in range(chunks)
        ]

    def store(
        self, chunks: int, seed: int, dtype: str = "float32", salt: str = ""
    ) -> dict[str, Any]:
        keys = self.keys(chunks, salt)
        kind = getattr(torch, dtype)
        generator = torch.Generator().manual_seed(seed)
        before = self._stored()
        memories = self.manager.reserve_write(keys, MemoryLayoutDesc([SHAPE], [kind]))
        assert len(memories) == chunks
        for key in keys:
            memories[key].tensor.copy_(torch.randn(SHAPE, generator=generator))
        self.manager.finish_write(keys)
        deadline = time.monotonic() + WAIT_S
        while self._stored() < before + chunks and time.monotonic() < deadline:
            time.sleep(0.02)
        return {"stored": self._stored() - before}

    def _stored(self) -> int:
        status = self.adapter.report_status()
        return int(status["saved"] + status["known"])

    def load(self, chunks: int, dtype: str = "float32", salt: str = "") -> dict[str, Any]:
        keys = self.keys(chunks, salt)
        layout = MemoryLayoutDesc([SHAPE], [getattr(torch, dtype)])
        handle = self.manager.submit_prefetch_task(
            PrefetchTaskSpec([GroupedObjectKeys(keys, 0, layout)])
        )
        assert self.manager.wait_prefetch_status(handle, WAIT_S)
        result = self.manager.query_prefetch_status(handle)
        assert result is not None
        count = result.hit_cells[0].popcount()
        digest = hashlib.sha256()
        if count:
            with self.manager.read_prefetched_results(keys[:count]) as memories:
                for memory in memories:
                    digest.update(memory.tensor.contiguous().view(torch.uint8).numpy().tobytes())
            self.manager.finish_read_prefetched(keys[:count])
        return {"loaded": count, "l2": result.l2_hit_count, "sum": digest.hexdigest()[:16]}

    def status(self) -> dict[str, Any]:
        return dict(self.adapter.report_status())

    def close(self) -> dict[str, Any]:
        self.manager.close()
        return {}


def main() -> None:
    server: Any = None
    print("READY", flush=True)
    for line in sys.stdin:
        given = json.loads(line)
        do = given.pop("do")
        if do == "open":
            server, answer = Server(**given), {}
        else:
            answer = getattr(server, do)(**given)
        print("ANSWER " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
