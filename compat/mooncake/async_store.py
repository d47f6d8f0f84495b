"""The store's calls for asyncio: `await store.async_get(key)` is `get` in a thread."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from mooncake.store import MooncakeDistributedStore

__all__ = ["MooncakeDistributedStoreAsync"]


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """A store with an `async_` form of every call."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("async_"):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        call = getattr(self, name.removeprefix("async_"))
        if not callable(call):
            raise AttributeError(f"{name.removeprefix('async_')!r} is no call")

        @functools.wraps(call)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            return await asyncio.to_thread(call, *args, **kwargs)

        return wrapped
