"""Stored bytes where they are, without a copy."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any

from mooncake_store.client.native import ffi

__all__ = ["View"]


def _end_here(end: Callable[[], None], pid: int) -> None:
    """End a view, but not the parent's: after a fork its connections are no business of ours."""
    if os.getpid() == pid:
        end()


class View:
    """A context in which `memory` is an object's bytes; None when it is not there.

    The bytes stay as they are until the context ends, also when the object is removed meanwhile:
    its pages are kept out of the pool for so long.  So keep views short.

    A view that is dropped without close ends, with a ResourceWarning, when nothing that was made
    from its memory (an array, a slice) is left; at the latest with its process.
    """

    memory: memoryview | None = None
    _closer: weakref.finalize[..., Any] | None = None

    def __init__(self, memory: memoryview | None, *, is_copy: bool = False) -> None:
        self.memory = memory
        self.is_copy = is_copy

    @classmethod
    def at(cls, address: int, size_bytes: int, end: Callable[[], None]) -> View:
        """Return the view of memory that nobody changes until `end` is called, which is once."""
        # Whatever is made from the memory keeps this exporter alive, and not the view: so the
        # exporter, and not the view, is what the pages wait for.
        exporter = ffi.buffer(ffi.cast("char *", address), size_bytes)
        view = cls(memoryview(exporter).toreadonly())
        view._closer = weakref.finalize(exporter, _end_here, end, os.getpid())
        # At the interpreter's exit others may still look at the bytes; the server hears of it.
        view._closer.atexit = False
        return view

    def __enter__(self) -> memoryview | None:
        return self.memory

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self, _warn: Callable[..., None] = warnings.warn) -> None:
        if self._closer is not None and self._closer.alive:
            _warn("a view was dropped without close", ResourceWarning, source=self, stacklevel=2)

    def close(self) -> None:
        """End the view; more than once is harmless.

        Raises:
            BufferError: Something made from the memory (an array, a slice) is still there.  The
                view ends when that is gone.
        """
        if self.memory is not None:
            self.memory.release()
        closer, self._closer = self._closer, None
        if closer is not None and closer.alive:
            raise BufferError("a slice of the view's memory is still there")
