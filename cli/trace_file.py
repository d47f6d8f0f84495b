"""The trace that ships: which blocks of KV cache each request of a real service needs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mooncake_store.conductor.trace import Request, read_requests

__all__ = ["SAMPLE", "Request", "read_trace"]

SAMPLE = Path(__file__).resolve().parent / "data" / "conversation_1000.jsonl.xz"
"""The first requests of a published trace; data/README.md has its origin and licence."""


def read_trace(path: Path = SAMPLE, *, limit: int | None = None) -> Iterator[Request]:
    """Yield the requests of a trace, of the sample if no other is named.

    Raises:
        ConfigError: There is no such file, or a line of it is no request.
    """
    return read_requests(path, limit=limit)
