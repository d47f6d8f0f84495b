"""Between Python and the engine in C: statuses, deadlines, and memory by its address."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, TypeAlias

from mooncake_store._native import ffi
from mooncake_store.errors import RequestError, Status, error_from_status

__all__ = ["Buffer", "check", "deadline_ns", "drain", "pin", "range_of", "sentence"]

Buffer: TypeAlias = Any
"""Whatever has the buffer protocol: bytearray, memoryview, mmap, a numpy array."""


def check(
    status: int, message: str = "", *, node: str | None = None, stage: str | None = None
) -> None:
    if status != Status.OK:
        raise error_from_status(status, message, node=node, stage=stage)


def sentence(error: Any) -> str:
    text: Any = ffi.string(error)
    return str(text.decode(errors="replace"))


def deadline_ns(timeout_s: float) -> int:
    if not 0 <= timeout_s < 1e9:
        raise RequestError(f"timeout_s must be a number of seconds, not {timeout_s!r}")
    return time.monotonic_ns() + int(timeout_s * 1e9)


def pin(memory: Buffer) -> Any:
    """Return a handle that keeps a buffer in place, read-only ones too."""
    try:
        return ffi.from_buffer(memory)
    except (TypeError, ValueError, BufferError) as error:
        raise RequestError(
            f"{type(memory).__name__} is no contiguous buffer", cause=error
        ) from error


def range_of(memory: Buffer | int, length: int | None) -> tuple[int, int]:
    if isinstance(memory, int):
        if length is None:
            raise RequestError("an address needs a length")
        return memory, length
    pinned = memory if isinstance(memory, ffi.CData) else pin(memory)
    size = len(ffi.buffer(pinned))
    if length is not None and not 0 <= length <= size:
        raise RequestError(f"the buffer has {size} bytes, not {length}")
    return int(ffi.cast("uintptr_t", pinned)), size if length is None else length


def drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(descriptor, 8)
