"""A transfer engine in a process of its own, for tests: it serves memory and does what it is told.

    engine_peer.py ADDRESS LENGTH (private|shared) (local|remote)

It prints one JSON line, then obeys lines on its standard input: `check SEED OFFSET LENGTH`,
`fill SEED`, `unregister`, `register`, `notes`, and ends with its input.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from typing import Any

from mooncake_store.transfer_engine.engine import TransferEngine


@functools.lru_cache(maxsize=4)
def _stream(seed: int, length: int) -> bytes:
    return hashlib.shake_128(str(seed).encode()).digest(length)


def proof(seed: int, offset: int, length: int) -> bytes:
    """Return bytes that tell the seed and where they belong."""
    rounded = -(-(offset + length) // (1 << 22)) << 22
    return _stream(seed, rounded)[offset : offset + length]


def main() -> None:
    address, length, kind, place = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    with TransferEngine() as engine:
        memory: Any = (
            engine.allocate_shared(length).buffer if kind == "shared" else bytearray(length)
        )
        memory[: 1 << 22] = proof(1, 0, min(length, 1 << 22))
        registered = engine.register_local_memory(memory, location="cpu:0")
        listening = engine.listen(address, local=place == "local")
        print(json.dumps({"address": listening, "region": registered}), flush=True)
        for line in sys.stdin:
            command, *numbers = line.split()
            answer: Any = True
            if command == "check":
                seed, offset, size = map(int, numbers)
                answer = bytes(memory[offset : offset + size]) == proof(seed, offset, size)
            elif command == "fill":
                memory[:] = proof(int(numbers[0]), 0, length)
            elif command == "unregister":
                engine.unregister_local_memory(registered)
            elif command == "register":
                engine.register_local_memory(memory, location="cpu:0")
            elif command == "notes":
                notes = iter(engine.receive_notify, None)
                answer = [[note.name, note.message] for note in notes]
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
