"""Memory that peers on this host map."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from mooncake_store._native import ffi, lib
from mooncake_store.transfer_engine.boundary import check

if TYPE_CHECKING:
    from mooncake_store.transfer_engine.engine import TransferEngine

__all__ = ["SharedMemory"]


class SharedMemory:
    """Memory that peers on this host map and copy from directly: a sealed memfd.

    Use `buffer` like any other memory.  It goes back to the system when it has been closed (or
    forgotten) and no view of it is left, so that no view ever points to nothing.
    """

    def __init__(self, engine: TransferEngine, length: int) -> None:
        made = ffi.new("void **")
        check(lib.te_shared_alloc(engine._handle(), length, made), "no shared memory left")
        self._engine = engine
        self.address = address = int(ffi.cast("uintptr_t", made[0]))
        self.length = length
        # The buffer keeps `owner` alive, and so does every view of it.
        owner = ffi.gc(made[0], lambda _: engine._free_shared(address, length), length)
        self.buffer = memoryview(ffi.buffer(owner, length))

    def close(self) -> None:
        """Unregister it if it is registered, and let go of it.

        Raises:
            RequestError: Transfers use it: wait for them or cancel them first.
        """
        self._engine._unregister_inside(self.address, self.length)
        with contextlib.suppress(BufferError):  # an array on top of it: it lives as long as that
            self.buffer.release()

    def __enter__(self) -> SharedMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
