"""A client of this store, measured with the same operations as the peer's."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from worker import Worker, private_memory

from mooncake_store import Client


class OurStore:
    """`worker.Store` over the SDK."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._client = Client(arguments.master, allow_local=not arguments.tcp)
        self.memory = private_memory(arguments.buffer)
        self._client.register_memory(self.memory)
        self._replicas = arguments.replicas

    def target(self, offset: int, size: int) -> memoryview:
        return self.memory[offset : offset + size]

    def put(self, key: str, source: memoryview) -> bool:
        return self._client.put_from(key, source, replicas=self._replicas) is True

    def get(self, key: str, target: memoryview) -> bool:
        return self._client.get_into(key, target) == len(target)

    def put_many(self, keys: Sequence[str], sources: Sequence[memoryview]) -> bool:
        answers = self._client.put_batch(keys, sources, replicas=self._replicas)
        return all(answer is True for answer in answers)

    def get_many(self, keys: Sequence[str], targets: Sequence[memoryview]) -> bool:
        answers = self._client.get_batch_into(keys, targets)
        return answers == [len(target) for target in targets]

    def put_values(self, keys: Sequence[str], values: Sequence[bytes]) -> bool:
        answers = self._client.put_batch(keys, values)
        return answers.count(True) == len(keys)

    def exists(self, key: str) -> bool:
        return self._client.exists(key)

    def exists_many(self, keys: Sequence[str]) -> int:
        return self._client.exists_batch(keys).count(True)

    def remove_many(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._client.remove(key)

    def close(self) -> None:
        self._client.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--buffer", type=int, default=0)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--tcp", action="store_true", help="never shared memory or Unix sockets")
    Worker(OurStore(parser.parse_args())).loop()


if __name__ == "__main__":
    main()
