"""The other end of `bench transfer`: a process that registers memory and serves it.

It prints one JSON line with its address and its memory's, and ends when its stdin does.
"""

from __future__ import annotations

import argparse
import json
import sys

from mooncake_store.transfer_engine.engine import TransferEngine


def main() -> None:
    """Serve one memory, shared with this host or private and by TCP only."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--tcp", action="store_true", help="private memory, no Unix socket")
    arguments = parser.parse_args()
    length = arguments.memory_bytes
    with TransferEngine() as engine:
        if arguments.tcp:
            memory: memoryview | bytearray = bytearray(length)
        else:
            memory = engine.allocate_shared(length).buffer
        for page in range(0, length, 4096):
            memory[page] = 1
        address = engine.register_local_memory(memory)
        listening = engine.listen(local=not arguments.tcp)
        print(json.dumps({"listening": listening, "memory": address}), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
