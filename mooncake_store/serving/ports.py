"""TCP ports: which are free, who has one, and how one is held for a service that starts later."""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from mooncake_store.errors import ConfigError, InUseError

__all__ = ["family_of", "format_address", "holder_of_port", "in_use", "is_free", "reserve"]


def family_of(address: str) -> socket.AddressFamily:
    """Return IPv4 or IPv6.

    Raises:
        ConfigError: No numeric address.
    """
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError):
            socket.inet_pton(family, address)
            return family
    raise ConfigError(f"{address!r} is no numeric IPv4 or IPv6 address")


def format_address(address: str, port: int) -> str:
    """Return `127.0.0.1:7700` or `[::1]:7700`."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def is_free(address: str, port: int) -> bool:
    """Return whether nobody listens there.

    Raises:
        ConfigError: This host has no such address, or the port may not be listened on.
    """
    with socket.socket(family_of(address), socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise ConfigError(
                f"{address} port {port} cannot be listened on: {error.strerror}", cause=error
            ) from error
    return True


def reserve(
    address: str, port: int, what: str, *, option: str = "--port", any_if_taken: bool = False
) -> socket.socket:
    """Return a socket that holds a port for a service that starts later.

    It is bound with SO_REUSEPORT and does not listen, so that gRPC, which makes its own socket, can
    take the port over while it is held.

    Args:
        address: Where to listen.
        port: The port wanted; 0 = any.
        what: The service's name, for messages.
        option: How the user chooses this port, for messages.
        any_if_taken: Take any free port in place of one that is taken.

    Raises:
        InUseError: The port is taken.
    """
    if port and not is_free(address, port):
        if not any_if_taken:
            raise in_use(address, port, what, option)
        port = 0
    # asyncio sends at once (TCP_NODELAY) only on connections whose protocol it is told.
    held = socket.socket(family_of(address), socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((address, port))
    except OSError as error:
        held.close()
        raise in_use(address, port, what, option) from error
    return held


def in_use(address: str, port: int, what: str, option: str = "--port") -> InUseError:
    """Return the error that names who holds a port, and how another one is chosen."""
    return InUseError(
        f"port {port} of {address}, wanted for {what}, is in use by {holder_of_port(port)}",
        stage="listen",
        hint=f"stop that process, or choose another port with {option}",
    )


@dataclass(frozen=True, slots=True)
class _Socket:
    """A line of /proc/net/tcp."""

    is_listening: bool
    user_id: int
    inode: int


def holder_of_port(port: int) -> str:
    """Return who holds a TCP port: `pid 123 (name)`, or as much as can be known.

    A port can be taken without anybody listening: by a connection that was given this number, or by
    a socket that is only bound.  And the kernel shows the descriptors of a user's own processes.
    """
    sockets = _sockets_at(port)
    listening = [found for found in sockets if found.is_listening]
    return _describe(listening or sockets, _process_with, os.geteuid())


def _describe(
    sockets: Sequence[_Socket], process_with: Callable[[Collection[int]], str], user_id: int
) -> str:
    if not sockets:
        return "a socket that does not listen, or one of another container"
    of = "" if sockets[0].is_listening else "a connection of "
    inodes = {found.inode for found in sockets if found.inode}
    if not inodes:  # its process has closed it
        return "a connection that has just ended; try again in a minute"
    process = process_with(inodes)
    if process:
        return of + process
    owner = sockets[0].user_id
    if user_id not in (0, owner):
        return f"{of}a process of another user ({_user_name(owner)})"
    return f"{of}a process that cannot be seen from here (of another container?)"


def _sockets_at(port: int) -> list[_Socket]:
    found = []
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                fields = line.split()
                if int(fields[1].rpartition(":")[2], 16) == port:
                    found.append(_Socket(fields[3] == "0A", int(fields[7]), int(fields[9])))
    return found


def _process_with(inodes: Collection[int]) -> str:
    """Return `pid 123 (name)` of a process that has one of these sockets, or an empty text."""
    links = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for descriptor in (process / "fd").iterdir():
                with contextlib.suppress(OSError):
                    if os.readlink(descriptor) in links:
                        return f"pid {process.name} ({(process / 'comm').read_text().strip()})"
    return ""


def _user_name(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return f"uid {user_id}"
