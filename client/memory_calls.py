"""Memory from which, and into which, transfers go without a copy in between."""

from __future__ import annotations

from mooncake_store.client.calls import Calls
from mooncake_store.client.core import Memory
from mooncake_store.client.native import ffi, lib
from mooncake_store.errors import RequestError, Status, error_from_status

__all__ = ["MemoryCalls"]


class MemoryCalls(Calls):
    """The calls of `Client` about memory."""

    _allocated: dict[int, memoryview]  # by address

    def alloc(self, size_bytes: int) -> memoryview:
        """Return memory from which servers on this host copy by themselves: the fastest source.

        It lives until `free` or the client's end.

        Example:
            >>> memory = store.alloc(1 << 20)
            >>> memory[:5] = b"hello"
            >>> store.put("from/shared", memory[:5])
            True
        """
        address = ffi.new("uint64_t *")
        if size_bytes <= 0:
            raise RequestError("size_bytes is above 0")
        status = lib.cl_alloc(self._handle, size_bytes, address)
        if status != Status.OK:
            raise error_from_status(status, f"{size_bytes} bytes of shared memory were refused")
        memory = memoryview(ffi.buffer(ffi.cast("char *", address[0]), size_bytes)).cast("B")
        self._allocated[int(address[0])] = memory
        return memory

    def free(self, memory: memoryview) -> None:
        """Give back what `alloc` returned; nothing made from it may be used any more."""
        for address, known in self._allocated.items():
            if known is memory:
                del self._allocated[address]
                memory.release()
                lib.cl_free(self._handle, address)
                return
        raise RequestError("this is no memory of this client's alloc")

    def register_memory(self, buffer: Memory) -> None:
        """Tell the transports of memory that is read into and written from often.

        Once for each buffer; RDMA needs it for zero-copy, the other transports take any memory.
        """
        if isinstance(buffer, tuple):
            address, length = buffer
        else:
            kept = ffi.from_buffer(buffer)
            address, length = int(ffi.cast("uintptr_t", kept)), len(kept)
        status = lib.cl_register_memory(self._handle, address, length)
        if status != Status.OK:
            raise error_from_status(status, "the memory could not be registered")
