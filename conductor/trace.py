"""Request traces: when requests arrive, how long they are and which blocks they share."""

from __future__ import annotations

import csv
import json
import lzma
import math
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from mooncake_store.errors import ConfigError

__all__ = ["TRACE_BLOCK_TOKENS", "Request", "Trace", "load_trace", "read_requests"]

TRACE_BLOCK_TOKENS = 512
"""Tokens of a block in the published traces."""

_HINT = "docs/scheduling.md tells which traces are read"


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace.

    Attributes:
        timestamp_ms: From the start of the trace.
        input_length: Tokens of the prompt.
        output_length: Tokens of the answer.
        hash_ids: One a block of tokens, in order; each names its block and all before it.
    """

    timestamp_ms: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace in columns, its blocks numbered from 0, as the simulator takes it.

    Only whole blocks are in it: the last id of a prompt usually names a block that is not full,
    which no other prompt can share.

    Attributes:
        name: Of the file.
        arrival_s: Never decreasing.
        tokens: Of the prompts.
        output: Of the answers.
        first_block: Where each request's blocks begin; one more than there are requests.
        blocks: Of all requests, one after the other.
        distinct_blocks: How many there are.
        block_tokens: Tokens of a block.
    """

    name: str
    arrival_s: array[float]
    tokens: array[int]
    output: array[int]
    first_block: array[int]
    blocks: array[int]
    distinct_blocks: int
    block_tokens: int

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def span_s(self) -> float:
        """From the first arrival to the last."""
        return self.arrival_s[-1] - self.arrival_s[0] if self.arrival_s else 0.0

    @property
    def reusable_tokens(self) -> int:
        """Tokens that a cache without bound would hit: those of leading blocks seen before."""
        return sum(self.reusable_by_request())

    def reusable_by_request(self) -> Iterator[int]:
        """Yield the same for each request, in their order."""
        seen = bytearray(self.distinct_blocks)
        for index, tokens in enumerate(self.tokens):
            begin, end = self.first_block[index], self.first_block[index + 1]
            blocks = self.blocks[begin:end]
            leading = 0
            for block in blocks:
                if not seen[block]:
                    break
                leading += 1
            for block in blocks:
                seen[block] = 1
            yield min(leading * self.block_tokens, tokens - 1)


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    try:
        with lzma.open(path, "rt") if path.suffix == ".xz" else open(path) as lines:
            yield lines
    except (OSError, EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the trace {path} cannot be read: {error}", cause=error, hint=_HINT
        ) from error


def read_requests(path: Path, *, limit: int | None = None) -> Iterator[Request]:
    """Yield the requests of a trace.

    JSON lines with `timestamp`, `input_length`, `output_length` and `hash_ids`, or the CSV of the
    Azure traces (no blocks: nothing is shared); plain or compressed with xz.  Blank lines count for
    nothing.

    Args:
        path: The file.
        limit: Only so many, from the first.

    Raises:
        ConfigError: There is no such file, or a line of it is no request.
    """
    with _opened(path) as lines:
        is_csv = ".csv" in path.suffixes
        requests = _azure(path, lines) if is_csv else _json_lines(path, lines)
        yield from islice(requests, limit)


def _json_lines(path: Path, lines: Iterable[str]) -> Iterator[Request]:
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            if not isinstance(fields, dict):
                raise ValueError("an object with timestamp, input_length, ... is expected")
            request = Request(
                timestamp_ms=_number(fields, "timestamp", "a number of milliseconds"),
                input_length=int(_number(fields, "input_length", "a number of tokens")),
                output_length=int(_number(fields, "output_length", "a number of tokens")),
                hash_ids=_hash_ids(fields),
            )
        except (ValueError, OverflowError, RecursionError) as error:
            raise _no_request(path, number, error) from error
        yield request


def _number(fields: dict[str, Any], name: str, expected: str) -> float:
    value = fields.get(name)
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise ValueError(f"{name} is {expected}, not {_shown(fields, name)}")
    return value  # type: ignore[return-value]


def _hash_ids(fields: dict[str, Any]) -> tuple[int, ...]:
    ids = fields.get("hash_ids")
    if not isinstance(ids, list) or not all(type(one) is int for one in ids):
        shown = _shown(fields, "hash_ids")
        raise ValueError(f"hash_ids is a list of whole numbers, one a block, not {shown}")
    return tuple(ids)


def _shown(fields: dict[str, Any], name: str) -> str:
    """Return a field as it stands in the file, or the beginning of it."""
    text = json.dumps(fields[name]) if name in fields else "left out"
    return text if len(text) <= 40 else f"{text[:40]}..."


def _no_request(path: Path, number: int, error: Exception) -> ConfigError:
    return ConfigError(
        f"line {number} of {path} is no request of a trace: {error}", cause=error, hint=_HINT
    )


def _azure(path: Path, lines: Iterable[str]) -> Iterator[Request]:
    first: datetime | None = None
    for number, row in enumerate(csv.DictReader(lines), 2):
        try:
            # Seven digits of a second are one more than Python reads.
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            first = first or at
            request = Request(
                timestamp_ms=(at - first).total_seconds() * 1e3,
                input_length=int(row["ContextTokens"]),
                output_length=int(row["GeneratedTokens"]),
                hash_ids=(),
            )
        except KeyError as error:
            missing = ValueError(f"there is no column {error.args[0]}")
            raise _no_request(path, number, missing) from error
        except (ValueError, TypeError) as error:
            raise _no_request(path, number, error) from error
        yield request


def load_trace(
    path: Path, *, limit: int | None = None, block_tokens: int = TRACE_BLOCK_TOKENS
) -> Trace:
    """Read a trace for simulation.

    Raises:
        ConfigError: It cannot be read, is empty, goes back in time, or has a request without
            tokens or with more ids than blocks.
    """
    numbers: dict[int, int] = {}
    arrival_s, tokens, output = array("d"), array("I"), array("I")
    first_block, blocks = array("Q", [0]), array("I")
    last_ms = 0.0
    for number, request in enumerate(read_requests(path, limit=limit), 1):
        problem = _problem(request, last_ms, block_tokens)
        if problem:
            raise ConfigError(f"request {number} of {path} {problem}", hint=_HINT)
        last_ms = request.timestamp_ms
        arrival_s.append(last_ms / 1e3)
        tokens.append(request.input_length)
        output.append(max(1, request.output_length))  # a prefill makes the first token
        whole = request.input_length // block_tokens
        for hash_id in request.hash_ids[:whole]:
            blocks.append(numbers.setdefault(hash_id, len(numbers)))
        first_block.append(len(blocks))
    if not arrival_s:
        raise ConfigError(f"the trace {path} has no requests", hint=_HINT)
    name = path.name.split(".")[0]
    return Trace(name, arrival_s, tokens, output, first_block, blocks, len(numbers), block_tokens)


def _problem(request: Request, last_ms: float, block_tokens: int) -> str:
    if not 1 <= request.input_length < 1 << 31:
        return f"has {request.input_length} tokens in its prompt"
    if not 0 <= request.output_length < 1 << 24:
        return f"has an answer of {request.output_length} tokens"
    if request.timestamp_ms >= 1e15:
        return f"arrives at {request.timestamp_ms} ms, which is too late"
    if not last_ms <= request.timestamp_ms:
        return f"arrives at {request.timestamp_ms} ms, before the one before it ({last_ms} ms)"
    blocks = -(-request.input_length // block_tokens)
    if len(request.hash_ids) > blocks:
        return (
            f"has {len(request.hash_ids)} block ids for {request.input_length} tokens, which are "
            f"{blocks} blocks of {block_tokens}"
        )
    if len(set(request.hash_ids)) != len(request.hash_ids):
        return "has the same block id twice"
    return ""
