"""The other process: registers memory, tells where, and does what it is told line by line."""

from __future__ import annotations

import ctypes
import json
import sys

from mooncake.engine import TransferEngine

SIZE = 1 << 20


def main() -> None:
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    memory = ctypes.create_string_buffer(bytes(range(256)) * (SIZE // 256), SIZE)
    assert engine.register_memory(ctypes.addressof(memory), SIZE) == 0
    managed = engine.allocate_managed_buffer(SIZE)
    assert engine.write_bytes_to_buffer(managed, b"managed", 7) == 0
    later = ctypes.create_string_buffer(b"later", 4096)

    def tell(**what: object) -> None:
        print(json.dumps(what), flush=True)

    tell(port=engine.get_rpc_port(), address=ctypes.addressof(memory), managed=managed)
    for line in sys.stdin:
        if line == "notifies\n":
            tell(notifies=[[each.name, each.msg] for each in engine.get_notifies()])
        elif line == "memory\n":
            tell(memory=memory.raw.hex())
        elif line == "later\n":
            address = ctypes.addressof(later)
            tell(status=engine.register_memory(address, 4096), address=address)
        elif line == "again\n":
            address = ctypes.addressof(memory)
            assert engine.unregister_memory(address) == 0
            tell(status=engine.register_memory(address, SIZE))


main()
