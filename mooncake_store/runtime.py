"""Where processes of one user on one host find each other: sockets, lock files, contexts.

The runtime folder is `$XDG_RUNTIME_DIR/mooncake-store`, else a folder of that name and uid in the
temporary directory.  It is 0700 and belongs to this user, or it is not used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from mooncake_store.errors import ConfigError

__all__ = [
    "DEFAULT_PORT",
    "boot_id",
    "is_loopback",
    "master_socket",
    "remove_dead_sockets",
    "runtime_dir",
    "shared_memory_dir",
]

DEFAULT_PORT = 7700
"""Where a master takes messages; gRPC is one above, HTTP two above."""


def runtime_dir(environment: Mapping[str, str] | None = None, *, create: bool = True) -> Path:
    """Return the private folder of this user's processes.

    Raises:
        ConfigError: It belongs to somebody else, others can enter it, or it cannot be made.
    """
    environment = os.environ if environment is None else environment
    base = environment.get("XDG_RUNTIME_DIR")
    if base:
        folder = Path(base, "mooncake-store")
    else:
        import tempfile

        folder = Path(tempfile.gettempdir(), f"mooncake-store-{os.getuid()}")
    return _private(folder, create=create)


def shared_memory_dir(*, create: bool = True) -> Path:
    """Return the folder under which store servers keep their segments."""
    return _private(Path(f"/dev/shm/mooncake-store-{os.getuid()}"), create=create)


def _private(folder: Path, *, create: bool) -> Path:
    try:
        if create:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.lstat(folder)
    except FileNotFoundError:
        return folder
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made: {error.strerror}", cause=error) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise ConfigError(f"{folder} is no folder of this user: remove it or set XDG_RUNTIME_DIR")
    if found.st_mode & 0o077:
        raise ConfigError(f"{folder} is open to others: chmod 700 {folder}")
    return folder


def master_socket(port: int, environment: Mapping[str, str] | None = None) -> Path:
    """Return the Unix socket of the master that listens on `port` of this host."""
    return runtime_dir(environment, create=False) / f"master-{port}.sock"


def remove_dead_sockets(folder: Path, kind: str = "server") -> int:
    """Remove sockets `KIND-PID.sock` that killed processes left behind, and return how many.

    A socket is dead when nothing listens on it and no process has that number.  Both, since one
    that has just been made is not listened on yet, and a folder may be shared by containers.
    """
    import socket

    removed = 0
    for path in folder.glob(f"{kind}-*.sock"):
        number = path.stem.removeprefix(f"{kind}-")
        if not number.isdigit() or Path("/proc", number).exists():
            continue
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            if probe.connect_ex(str(path)) == errno.ECONNREFUSED:
                path.unlink()
                removed += 1
    return removed


def is_loopback(host: str) -> bool:
    """Return whether a numeric address (or `localhost`) reaches only this host."""
    return host == "localhost" or host == "::1" or host.startswith("127.")


def boot_id() -> bytes:
    """Return 16 bytes that are the same for all processes until this host boots again."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text()
        return bytes.fromhex(text.strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)
