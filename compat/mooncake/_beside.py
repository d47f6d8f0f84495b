"""Refuses to share the import name with the package that it stands in for.

Both install files into the same folder: what would be imported is partly one, partly the other.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

__all__ = ["refuse_beside_another"]

_OTHERS = ("mooncake_transfer_engine*.dist-info", "mooncake-transfer-engine*.dist-info")
_COMPILED = ("store.*.so", "engine.*.so")


def refuse_beside_another(package: Iterable[str], paths: Iterable[str] | None = None) -> None:
    """Raise when another distribution installs the import package `mooncake` too.

    Args:
        package: Folders of this package.
        paths: Where distributions are looked for; None: `sys.path`.

    Raises:
        ImportError: It does; the message says what to uninstall.
    """
    for folder in map(Path, package):
        for pattern in _COMPILED:
            for compiled in folder.glob(pattern):
                _refuse(str(compiled))
    for folder in map(Path, sys.path if paths is None else paths):
        if not folder.is_dir():
            continue
        for pattern in _OTHERS:
            for found in folder.glob(pattern):
                _refuse(found.name.removesuffix(".dist-info"))


def _refuse(what: str) -> None:
    raise ImportError(
        f"mooncake-store-compat and {what} both install the package `mooncake`: keep one of them. "
        "`pip uninstall mooncake-transfer-engine` (or the variant that is installed), then "
        "`pip install --force-reinstall --no-deps mooncake-store-compat`",
        name="mooncake",
    )
