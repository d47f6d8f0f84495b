"""A client of the peer, or one of its segment holders.  Runs in the peer's own environment."""

from __future__ import annotations

import argparse
import ctypes
from collections.abc import Sequence

from worker import address_of, private_memory, serve

HOST = "127.0.0.1"
MIB = 1 << 20


class PeerStore:
    """`operations.Store` over the peer's Python API.

    A thin ("dummy") client keeps its memory inside a `mooncake_client` process on the same host and
    reaches objects there through shared memory; any other client speaks TCP to the holder.
    """

    def __init__(self, arguments: argparse.Namespace) -> None:
        from mooncake.store import MooncakeDistributedStore, ReplicateConfig

        self._store = MooncakeDistributedStore()
        if arguments.thin:
            pool = arguments.buffer + 64 * MIB
            status = self._store.setup_dummy(pool, 128 * MIB, arguments.thin)
        else:
            status = self._store.setup(
                HOST,
                "P2PHANDSHAKE",
                arguments.segment,
                128 * MIB,
                "tcp",
                "",
                arguments.master,
            )
        if status != 0:
            raise RuntimeError(f"the peer's setup answered {status}")
        self._replicas = ReplicateConfig()
        self._replicas.replica_num = arguments.replicas
        if not arguments.buffer:
            self.memory = memoryview(b"")
            return
        if arguments.thin:
            at = self._store.alloc_from_mem_pool(arguments.buffer)
            kept = (ctypes.c_char * arguments.buffer).from_address(at)
            self.memory = memoryview(kept).cast("B")
        else:
            self.memory = private_memory(arguments.buffer)
        self._address = address_of(self.memory)
        status = self._store.register_buffer(self._address, arguments.buffer)
        if status != 0:
            raise RuntimeError(f"the peer's register_buffer answered {status}")

    def target(self, offset: int, size: int) -> tuple[int, int]:
        return (self._address + offset, size)

    def put(self, key: str, source: tuple[int, int]) -> bool:
        return self._store.put_from(key, *source, self._replicas) == 0

    def get(self, key: str, target: tuple[int, int]) -> bool:
        return self._store.get_into(key, *target) == target[1]

    def put_many(self, keys: Sequence[str], sources: Sequence[tuple[int, int]]) -> bool:
        addresses, sizes = zip(*sources, strict=True)
        answers = self._store.batch_put_from(
            list(keys), list(addresses), list(sizes), self._replicas
        )
        return not any(answers)

    def get_many(self, keys: Sequence[str], targets: Sequence[tuple[int, int]]) -> bool:
        addresses, sizes = map(list, zip(*targets, strict=True))
        return self._store.batch_get_into(keys, addresses, sizes) == sizes

    def put_values(self, keys: Sequence[str], values: Sequence[bytes]) -> bool:
        return self._store.put_batch(keys, values) == 0

    def exists(self, key: str) -> bool:
        return self._store.is_exist(key) == 1

    def exists_many(self, keys: Sequence[str]) -> int:
        return self._store.batch_is_exist(keys).count(1)

    def remove_many(self, keys: Sequence[str]) -> None:
        """Remove by force: the peer otherwise keeps what was read a short while ago."""
        self._store.batch_remove(list(keys), True)

    def close(self) -> None:
        self._store.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--segment", type=int, default=0)
    parser.add_argument("--buffer", type=int, default=0)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--thin", default="", help="address of a mooncake_client on this host")
    serve(PeerStore(parser.parse_args()))


if __name__ == "__main__":
    main()
