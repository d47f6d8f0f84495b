"""This store as the benchmarks' operations see it."""

from __future__ import annotations

from collections.abc import Sequence

from mooncake_store import Client


class SdkStore:
    """`operations.Store` over a client of the SDK.

    Args:
        client: Closed with this.
        memory: Where objects are read to and stored from.
        is_registered: The memory is told to the client; what `alloc` gave is known to it.
    """

    def __init__(self, client: Client, memory: memoryview, *, is_registered: bool = True) -> None:
        self.client = client
        self.memory = memory
        if is_registered:
            client.register_memory(memory)

    def target(self, offset: int, size: int) -> memoryview:
        return self.memory[offset : offset + size]

    def put(self, key: str, source: memoryview) -> bool:
        return self.client.put_from(key, source) is True

    def get(self, key: str, target: memoryview) -> bool:
        return self.client.get_into(key, target) == len(target)

    def put_many(self, keys: Sequence[str], sources: Sequence[memoryview]) -> bool:
        answers = self.client.put_batch(keys, sources)
        return answers.count(True) == len(keys)

    def get_many(self, keys: Sequence[str], targets: Sequence[memoryview]) -> bool:
        return self.client.get_batch_into(keys, targets).count(len(targets[0])) == len(keys)

    def put_values(self, keys: Sequence[str], values: Sequence[bytes]) -> bool:
        return self.client.put_batch(keys, values).count(True) == len(keys)

    def exists(self, key: str) -> bool:
        return self.client.exists(key)

    def exists_many(self, keys: Sequence[str]) -> int:
        return self.client.exists_batch(keys).count(True)

    def remove_many(self, keys: Sequence[str]) -> None:
        self.client.remove(keys)

    def close(self) -> None:
        self.client.close()
