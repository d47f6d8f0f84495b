"""Where a command's words go: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from mooncake_store.cli.exit_codes import ExitCode, exit_code_of
from mooncake_store.errors import StoreError

__all__ = ["Output", "printable"]

# Keys are anybody's bytes: none may move the cursor or end a line.
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Return text that a terminal or a log shows as it is, on one line."""
    return _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class Output:
    """One command's output.

    Attributes:
        is_json: One JSON document on stdout (for streams: one a line).
        is_quiet: No hints, no progress.
        verbosity: 2 and more: tracebacks.
    """

    def __init__(
        self, *, is_json: bool = False, is_quiet: bool = False, no_color: bool = False,
        verbosity: int = 0,
    ) -> None:  # fmt: skip
        self.is_json = is_json
        self.is_quiet = is_quiet
        self.verbosity = verbosity
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
        """Write one JSON document, on one line."""
        print(json.dumps(document, ensure_ascii=False), flush=True)

    def result(self, document: Mapping[str, Any], text: str) -> None:
        """Write the result: the document with --json, else the text."""
        if self.is_json:
            self.document(document)
        elif text:
            print(text, flush=True)

    def table(self, rows: Sequence[Sequence[str]], header: Sequence[str]) -> None:
        """Write aligned columns; tabs between them when stdout is no terminal."""
        if not sys.stdout.isatty():
            for row in rows:
                print("\t".join(row))
            return
        lines = [header, *rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
        for line in lines:
            print(
                "  ".join(
                    cell.ljust(width) for cell, width in zip(line, widths, strict=True)
                ).rstrip()
            )

    # ---- everything else -----------------------------------------------------------------------

    def note(self, text: str) -> None:
        """A hint for people."""
        if not self.is_quiet:
            print(text, file=sys.stderr, flush=True)

    def error(self, error: BaseException) -> ExitCode:
        """Say what failed, why, what was tried, what to do next; at most four lines."""
        code = exit_code_of(error)
        if self.verbosity >= 2:
            import traceback

            traceback.print_exception(error, file=sys.stderr)
        if not isinstance(error, StoreError):
            print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
            return code
        if self.is_json:
            facts = {
                "error": error.message, "code": error.code, "key": error.key, "node": error.node,
                "stage": error.stage, "elapsed_seconds": error.elapsed_s,
                "retryable": error.retryable, "hint": error.hint, "exit_code": int(code),
            }  # fmt: skip
            print(json.dumps(facts, ensure_ascii=False), file=sys.stderr)
            return code
        red, plain = ("\x1b[31m", "\x1b[0m") if self.has_color(sys.stderr) else ("", "")
        print(f"{red}error:{plain} {printable(error.message)} [{error.code}]", file=sys.stderr)
        tried = [
            f"key {printable(error.key)}" if error.key else "",
            f"node {error.node}" if error.node else "",
            f"stage {error.stage}" if error.stage else "",
            f"after {error.elapsed_s:.3f} s" if error.elapsed_s is not None else "",
        ]
        if any(tried):
            print("  tried: " + ", ".join(part for part in tried if part), file=sys.stderr)
        if error.hint:
            print(f"  next:  {error.hint}", file=sys.stderr)
        return code
