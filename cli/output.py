"""Where a command's words go: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from mooncake_store.cli.exit_codes import ExitCode, exit_code_of
from mooncake_store.errors import (
    ClusterError,
    DeviceError,
    InternalError,
    StoreError,
    TransferTimeoutError,
)

__all__ = ["Output", "approximate_size", "printable"]

# Keys are anybody's bytes: none may move the cursor, end or turn a line, or be no text.
_CONTROL = re.compile(
    r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return text that a terminal or a log shows as it is, on one line."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def approximate_size(size_bytes: float) -> str:
    """Return a size for people, three digits: `1.25 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1000 or (unit == "B" and abs(size_bytes) < 1024):
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.3g} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.4g} TiB"


class Output:
    """One command's output.

    Attributes:
        is_json: One JSON document on stdout (for streams: one a line).
        is_quiet: No hints, no progress.
        verbosity: 1: more to read; 2 and more: tracebacks.
        target: The master that the command talks to and where its address came from, once known.
    """

    def __init__(
        self, *, is_json: bool = False, is_quiet: bool = False, no_color: bool = False,
        verbosity: int = 0,
    ) -> None:  # fmt: skip
        self.is_json = is_json
        self.is_quiet = is_quiet
        self.verbosity = verbosity
        self.target = ""
        self._no_color = no_color

    def has_color(self, stream: IO[str]) -> bool:
        """Whether this stream shows colours."""
        return (
            not self._no_color
            and not os.environ.get("NO_COLOR")
            and os.environ.get("TERM") != "dumb"
            and stream.isatty()
        )

    # ---- results -----------------------------------------------------------------------------

    def document(self, document: Any) -> None:
        """Write one JSON document, on one line, in ASCII: no key in it can do harm."""
        print(json.dumps(document), flush=True)

    def result(self, document: Mapping[str, Any], text: str) -> None:
        """Write the result: the document with --json, else the text."""
        if self.is_json:
            self.document(document)
        elif text:
            print(text, flush=True)

    def table(self, rows: Sequence[Sequence[str]], header: Sequence[str]) -> None:
        """Write aligned columns; tabs between them, and no header, when stdout is no terminal."""
        if not sys.stdout.isatty():
            for row in rows:
                print("\t".join(row))
            return
        print("\n".join(aligned([header, *rows])))

    # ---- everything else -----------------------------------------------------------------------

    def note(self, text: str) -> None:
        """A hint for people."""
        if not self.is_quiet:
            print(text, file=sys.stderr, flush=True)

    def error(self, error: BaseException) -> ExitCode:
        """Say what failed, why, what was tried, what to do next; at most four lines."""
        if self.verbosity >= 2:
            import traceback

            traceback.print_exception(error, file=sys.stderr)
        known = error if isinstance(error, StoreError) else _foreign(error)
        code = exit_code_of(known)
        if self.is_json:
            facts = {
                "error": known.message, "code": known.code, "key": known.key, "node": known.node,
                "stage": known.stage, "elapsed_seconds": known.elapsed_s,
                "cause": _cause(known), "target": self.target or None,
                "retryable": known.retryable, "hint": known.hint, "exit_code": int(code),
            }  # fmt: skip
            print(json.dumps(facts), file=sys.stderr, flush=True)
            return code
        red, plain = ("\x1b[31m", "\x1b[0m") if self.has_color(sys.stderr) else ("", "")
        lines = [f"{red}error:{plain} {printable(known.message)} [{known.code}]"]
        cause = _cause(known)
        if cause:
            lines.append(f"  cause: {printable(cause)}")
        tried = self._tried(known)
        if tried:
            lines.append(f"  tried: {tried}")
        if known.hint:
            lines.append(f"  next:  {printable(known.hint)}")
        print("\n".join(lines), file=sys.stderr, flush=True)
        return code

    def _tried(self, error: StoreError) -> str:
        is_remote = isinstance(error, ClusterError | TransferTimeoutError)
        facts = [
            f"key {printable(error.key)}" if error.key else "",
            f"master {printable(self.target)}" if is_remote and self.target else "",
            f"node {printable(error.node)}" if error.node and error.node != "master" else "",
            f"stage {error.stage}" if error.stage and (error.node or is_remote) else "",
            f"after {error.elapsed_s:.3f} s" if error.elapsed_s is not None else "",
        ]
        return ", ".join(fact for fact in facts if fact)


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as text with columns of equal width."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _cause(error: StoreError) -> str:
    """What lies below, unless the message says it already."""
    cause = error.cause
    if cause is None:
        return ""
    text = cause.message if isinstance(cause, StoreError) else str(cause)
    if (
        not text
        or text in error.message
        or (getattr(cause, "strerror", "") or text) in error.message
    ):
        return ""
    return text


def _foreign(error: BaseException) -> StoreError:
    """An exception that nobody here foresaw, in our words."""
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return DeviceError(f"{error.strerror or error}{where}")
    return InternalError(
        f"{type(error).__name__}: {error}",
        hint="please report it, with the traceback (-vv) and `mooncake-store doctor --json`",
    )
