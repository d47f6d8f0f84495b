"""Can processes of this host meet: the folder of their sockets."""

from __future__ import annotations

import os

from mooncake_store.cli.checks.check import FAIL, OK, Check
from mooncake_store.errors import StoreError

__all__ = ["runtime_check"]

_SOCKET_PATH_MAX = 107  # sun_path without its final zero


def runtime_check() -> Check:
    """Can sockets be made in the runtime folder?"""
    from mooncake_store.runtime import runtime_dir

    try:
        folder = runtime_dir()
    except StoreError as error:
        return Check(
            "runtime folder", FAIL, error.message, "set XDG_RUNTIME_DIR to a folder of yours"
        )
    longest = len(str(folder / "server-4194304.sock"))
    if longest > _SOCKET_PATH_MAX:
        return Check(
            "runtime folder", FAIL, f"{folder}: too long for a Unix socket's path",
            "set XDG_RUNTIME_DIR to a shorter one",
        )  # fmt: skip
    if not os.access(folder, os.W_OK):
        return Check("runtime folder", FAIL, f"{folder} cannot be written", f"chmod 700 {folder}")
    return Check("runtime folder", OK, f"{folder}: private, for sockets and the context `local`")
