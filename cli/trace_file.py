"""Request traces: which blocks of KV cache each request of a real service needs."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from mooncake_store.errors import ConfigError

SAMPLE = Path(__file__).resolve().parent / "data" / "conversation_1000.jsonl.xz"
"""The first requests of a published trace; data/README.md has its origin and licence."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace.

    Attributes:
        timestamp_ms: From the start of the trace.
        hash_ids: One a block of tokens, in order; each names its block and all before it.
    """

    timestamp_ms: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_trace(path: Path = SAMPLE, *, limit: int | None = None) -> Iterator[Request]:
    """Yield the requests of a trace: JSON lines, plain or compressed with xz.

    Args:
        path: The file.
        limit: Only so many, from the first.

    Raises:
        ConfigError: There is no such file, or a line of it is no request.
    """
    try:
        with lzma.open(path, "rt") if path.suffix == ".xz" else open(path) as lines:
            for number, line in enumerate(islice(lines, limit), 1):
                yield _request(path, number, line)
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise ConfigError(f"the trace {path} cannot be read: {error}", cause=error) from error


def _request(path: Path, number: int, line: str) -> Request:
    try:
        fields = json.loads(line)
        return Request(
            timestamp_ms=int(fields["timestamp"]),
            input_length=int(fields["input_length"]),
            output_length=int(fields["output_length"]),
            hash_ids=tuple(int(hash_id) for hash_id in fields["hash_ids"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        message = f"line {number} of {path} is no request of a trace: {error}"
        raise ConfigError(message, cause=error) from error
