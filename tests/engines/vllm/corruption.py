"""Stored blocks that are wrong: what is computed with them must be wrong, too."""

from __future__ import annotations

import array
import contextlib
from collections.abc import Iterator

from mooncake_store import Client

__all__ = ["corrupted"]


@contextlib.contextmanager
def corrupted(store: Client) -> Iterator[None]:
    """Turn the sign of every stored number, and put back what was there."""
    kept: dict[str, bytes] = {}
    for listed in list(store.list()):
        data = store.get(listed.key)
        assert data is not None
        kept[listed.key] = data
        numbers = array.array("f", data)
        store.upsert(listed.key, array.array("f", [-number for number in numbers]))
    yield
    for key, data in kept.items():
        store.upsert(key, data)
