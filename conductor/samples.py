"""Measured prefills and decode iterations, read from CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from mooncake_store.conductor.decode_time import DecodeSample
from mooncake_store.conductor.prefill_time import PrefillSample
from mooncake_store.errors import ConfigError

__all__ = ["DECODE_COLUMNS", "PREFILL_COLUMNS", "read_samples"]

PREFILL_COLUMNS = ("prompt_tokens", "cached_tokens", "seconds")
DECODE_COLUMNS = ("batch", "context_tokens", "seconds")
_HINT = (
    f"the first line is {','.join(PREFILL_COLUMNS)} (a prefill a line) or "
    f"{','.join(DECODE_COLUMNS)} (an iteration of decoding a line); docs/scheduling.md explains"
)
_COUNT_MAX = 2**50  # beyond any prompt or batch, and squares are still exact enough
_SECONDS_MIN, _SECONDS_MAX = 1e-9, 86_400.0


def read_samples(path: Path) -> list[PrefillSample] | list[DecodeSample]:
    """Return the samples of a file; its first line says which kind they are.

    Other columns count for nothing, nor do blank lines and lines that begin with #.

    Raises:
        ConfigError: It cannot be read, or a line of it is no sample: with its number and what is
            expected.
    """
    try:
        # A byte order mark is what spreadsheets put before the first column's name.
        with open(path, encoding="utf-8-sig", newline="") as file:
            rows = list(_rows(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"{path} cannot be read: {error}", cause=error, hint=_HINT) from error
    if not rows:
        raise ConfigError(f"{path} has no lines", hint=_HINT)
    number, names = rows[0]
    for columns, taken in ((PREFILL_COLUMNS, _prefill), (DECODE_COLUMNS, _decode)):
        if set(columns) <= set(names):
            places = [names.index(name) for name in columns]
            return [  # type: ignore[return-value]
                _sample(path, number, row, names, columns, places, taken)
                for number, row in rows[1:]
            ]
    raise ConfigError(
        f"line {number} of {path} names the columns of no samples: {','.join(names)[:80]!r}",
        hint=_HINT,
    )


def _rows(lines: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, [part.strip() for part in next(csv.reader([line]))]


def _sample(
    path: Path,
    number: int,
    row: Sequence[str],
    names: Sequence[str],
    columns: Sequence[str],
    places: Sequence[int],
    taken: Callable[[int, int, float], PrefillSample | DecodeSample],
) -> PrefillSample | DecodeSample:
    try:
        if len(row) <= max(places):
            raise ValueError(f"{','.join(columns)} are expected")
        if any(row[len(names) :]):  # a comma within a number shifts all that follow
            raise ValueError(
                f"{len(row)} values for {len(names)} columns; numbers have a point, and no commas"
            )
        first, second = (
            _count(columns[index], row[places[index]], least) for index, least in enumerate((1, 0))
        )
        time_s = _seconds(row[places[2]])
        return taken(first, second, time_s)
    except ValueError as error:
        raise ConfigError(
            f"line {number} of {path} is no sample: {error}", cause=error, hint=_HINT
        ) from error


def _count(name: str, text: str, least: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not least <= value <= _COUNT_MAX:
        raise ValueError(f"{name} is a whole number of {least} or more, not {text[:40]!r}")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not _SECONDS_MIN <= value <= _SECONDS_MAX:
        raise ValueError(f"seconds is a number from 1e-9 up to a day, not {text[:40]!r}")
    return value


def _prefill(prompt_tokens: int, cached_tokens: int, time_s: float) -> PrefillSample:
    if cached_tokens >= prompt_tokens:
        raise ValueError(
            f"cached_tokens is below prompt_tokens, {prompt_tokens}, not {cached_tokens}: "
            "at least one token is computed"
        )
    return PrefillSample(prompt_tokens, cached_tokens, time_s)


def _decode(batch: int, context_tokens: int, time_s: float) -> DecodeSample:
    if context_tokens < batch:
        raise ValueError(
            f"context_tokens is that of all {batch} requests of the batch together, a token or "
            f"more of each, not {context_tokens}"
        )
    return DecodeSample(batch, context_tokens, time_s)
