"""What `match_prefix` has found."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

from mooncake_store.errors import StoreError

__all__ = ["PrefixMatch"]


class Unpinning(Protocol):
    """Whoever has made the pins."""

    def unpin(self, key: Any) -> Any:
        """End the pins of keys."""


class PrefixMatch:
    """The longest stored prefix; as a context, its pins end with it.

    Attributes:
        count: How many of the keys, from the first, are stored.
        is_pinned: Nothing of it is evicted until unpin, the deadline or the client's end.
    """

    __slots__ = ("_client", "_keys", "count", "is_pinned")

    def __init__(
        self, client: Unpinning, keys: Sequence[str], count: int, *, is_pinned: bool
    ) -> None:
        self._client = client
        self._keys = keys
        self.count = count
        self.is_pinned = is_pinned and count > 0

    @property
    def keys(self) -> builtins.list[str]:
        """The keys that are stored."""
        return list(self._keys[: self.count])

    def unpin(self) -> None:
        """End the pins; more than once is harmless."""
        if self.is_pinned:
            self.is_pinned = False
            self._client.unpin(self.keys)

    def __enter__(self) -> PrefixMatch:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(StoreError):  # the deadline or the session ends them
            self.unpin()

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        pinned = ", pinned" if self.is_pinned else ""
        return f"PrefixMatch({self.count} of {len(self._keys)} keys{pinned})"
