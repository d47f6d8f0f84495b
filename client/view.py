"""Stored bytes where they are, without a copy."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

__all__ = ["View"]


class View:
    """A context in which `memory` is an object's bytes; None when it is not there.

    The bytes stay as they are until the context ends, also when the object is removed meanwhile:
    its pages are kept out of the pool for so long.  So keep views short.
    """

    def __init__(
        self, memory: memoryview | None, end: Callable[[], None] | None, *, is_copy: bool
    ) -> None:
        self.memory = memory
        self.is_copy = is_copy
        self._end = end

    def __enter__(self) -> memoryview | None:
        return self.memory

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the view.

        Raises:
            BufferError: Something made from the memory (an array, a slice) is still there.
        """
        if self.memory is not None:
            self.memory.release()
        end, self._end = self._end, None
        if end is not None:
            end()
