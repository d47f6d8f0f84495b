"""LMCache beside an engine, without the engine: its storage manager with a remote backend.

Lines in: {"do": "open", "options": {...}} with LMCache's settings, then {"do": "store" or "load",
"tokens": N, "seed": S}, then {"do": "close"}; S makes the cache's content.  Answers: to a store how
many chunks there are, to a load how many were found and what sum they have.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from typing import Any

import torch
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.event_manager import EventManager
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend.storage_manager import StorageManager
from lmcache.v1.token_database import ChunkedTokenDatabase

CHUNK, LAYERS, HEADS, HEAD_SIZE = 16, 3, 2, 8


class Engine:
    """Chunks of a made-up model, stored and loaded by LMCache."""

    def __init__(self, options: dict[str, Any]) -> None:
        dtype = getattr(torch, options.pop("dtype", "float32"))
        config = LMCacheEngineConfig.from_defaults(chunk_size=CHUNK, local_cpu=False, **options)
        metadata = LMCacheMetadata(
            model_name=options.pop("model", "llama"), world_size=1, local_world_size=1,
            worker_id=0, local_worker_id=0, kv_dtype=dtype,
            kv_shape=(LAYERS, 2, CHUNK, HEADS, HEAD_SIZE), chunk_size=CHUNK, role="worker",
        )  # fmt: skip
        self.metadata = metadata
        self.database = ChunkedTokenDatabase(config, metadata)
        self.manager = StorageManager(config, metadata, EventManager())

    def keys(self, tokens: int) -> tuple[list[Any], list[int]]:
        found = list(self.database.process_tokens(tokens=torch.arange(tokens)))
        return [key for _, _, key in found], [end - start for start, end, _ in found]

    def store(self, tokens: int, seed: int) -> dict[str, Any]:
        keys, lengths = self.keys(tokens)
        generator = torch.Generator().manual_seed(seed)
        memories = []
        for length in lengths:
            shape = self.metadata.get_shapes(length)[0]
            memory = self.manager.allocate(shape, self.metadata.kv_dtype, MemoryFormat.KV_2LTD)
            assert memory is not None
            memory.tensor.copy_(torch.randn(shape, generator=generator))
            memories.append(memory)
        self.manager.batched_put(keys, memories)
        deadline = time.monotonic() + 20
        while self.find(keys) < len(keys) and time.monotonic() < deadline:
            time.sleep(0.02)
        return {"chunks": self.find(keys)}

    def find(self, keys: list[Any]) -> int:
        count, _ = self.manager.batched_contains(keys)
        return count

    def load(self, tokens: int) -> dict[str, Any]:
        keys, lengths = self.keys(tokens)
        found, places = self.manager.batched_contains(keys)
        digest = hashlib.sha256()
        loaded = 0
        memories = [
            memory
            for place, there in places.items()
            for memory in self.manager.batched_get(there, location=place)
        ]
        for memory, length in zip(memories, lengths, strict=False):
            if memory is None:
                continue
            assert list(memory.tensor.shape) == list(self.metadata.get_shapes(length)[0])
            loaded += 1
            digest.update(memory.tensor.contiguous().view(torch.uint8).numpy().tobytes())
            memory.ref_count_down()
        return {"found": found, "loaded": loaded, "sum": digest.hexdigest()[:16]}

    def ping(self) -> dict[str, Any]:
        backends = self.manager.storage_backends
        return {"backends": sorted(backends)}

    def close(self) -> dict[str, Any]:
        self.manager.close()
        return {}


def main() -> None:
    engine: Any = None
    print("READY", flush=True)
    for line in sys.stdin:
        given = json.loads(line)
        do = given.pop("do")
        if do == "open":
            os.environ.update(given.get("environment", {}))
            engine, answer = Engine(given["options"]), {}
        else:
            answer = getattr(engine, do)(**given)
        print("ANSWER " + json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
