"""The measuring process: the operations of one client, asked on stdin and answered on stdout.

A request is one JSON line naming an operation and its arguments, an answer is one JSON line.  This
file runs in the peer's environment too: it finds the operations beside the command's benchmarks by
path, since the package is not installed there.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "cli" / "bench"))
from operations import Operations, Store, address_of, private_memory

__all__ = ["address_of", "private_memory", "serve"]


def _take_stdout() -> int:
    """Keep stdout for answers; what a library prints goes to stderr."""
    kept = os.dup(1)
    os.dup2(2, 1)
    return kept


ANSWERS = _take_stdout()


def _answer(document: dict[str, Any]) -> None:
    os.write(ANSWERS, json.dumps(document).encode() + b"\n")


def serve(store: Store) -> None:
    """Answer requests until stdin ends."""
    operations = Operations(store)
    _answer({"pid": os.getpid()})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            _answer(getattr(operations, request.pop("op"))(**request))
        except Exception as error:  # the driver prints it and gives the row up
            _answer({"error": f"{type(error).__name__}: {error}"})
    store.close()
