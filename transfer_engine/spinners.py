"""Threads that spin: where the processes of one user tell each other on which core they do."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
from pathlib import Path

from mooncake_store._native import lib
from mooncake_store.errors import ConfigError, Status
from mooncake_store.runtime import runtime_dir

__all__ = ["share_spinners"]

_log = logging.getLogger(__name__)


@functools.cache
def share_spinners() -> None:
    """Take part, once in a process; without the file this process keeps to itself, a bit slower."""
    try:
        path = runtime_dir() / "spinners"
    except ConfigError as error:
        _log.debug("spinners_not_shared reason=%s", error)
        return
    is_mine = not path.exists()
    if lib.te_spinners_share(os.fsencode(path)) != Status.OK:
        _log.debug("spinners_not_shared path=%s", path)
    elif is_mine:
        atexit.register(_remove, path, os.getpid())


def _remove(path: Path, maker: int) -> None:
    """Leave nothing behind.  Who has the file goes on with it, who comes later makes a new one."""
    if os.getpid() == maker:
        with contextlib.suppress(OSError):
            path.unlink()
