"""Modules of this package as processes of their own: of this package, wherever they are started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["module_command"]

_ROOT = Path(__file__).resolve().parents[1]
# What `-m` does, without the working directory: in a checkout of the project it would give another
# package of this name, without its compiled half.  (`-P` says the same, from Python 3.11 on.)
_RUN = (
    "import runpy, sys; sys.path[:1] == [''] and sys.path.pop(0); "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)


def module_command(module: str, arguments: Sequence[str] = (), *, root: Path = _ROOT) -> list[str]:
    """Return the command that runs a module with this interpreter.

    Args:
        module: Its full name.
        arguments: Of the module.
        root: The folder that its package lies in.
    """
    if root == Path.cwd():
        return [sys.executable, "-m", module, *arguments]
    return [sys.executable, "-c", _RUN, module, *arguments]
