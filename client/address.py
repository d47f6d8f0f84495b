"""Master addresses as people write them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from mooncake_store.errors import ConfigError
from mooncake_store.runtime import DEFAULT_PORT, is_loopback, master_socket

__all__ = ["MasterAddress", "cluster_of", "parse_master"]


@dataclass(frozen=True, slots=True)
class MasterAddress:
    """Where a master is: `tcp` is `ip:port` or `[ip]:port`; it, a Unix socket, or both."""

    tcp: str | None
    unix: str | None

    def __str__(self) -> str:
        return self.tcp if self.tcp is not None else f"unix://{self.unix}"


def _split(text: str) -> tuple[str, int]:
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ConfigError(f"{text!r} is no address: write [::1]:7700")
        port = rest[1:]
    elif text.count(":") > 1:
        raise ConfigError(f"{text!r}: an IPv6 address stands in brackets: [{text}]:7700")
    else:
        host, _, port = text.partition(":")
    if not host:
        raise ConfigError(f"{text!r} is no address: write 127.0.0.1:7700")
    if not port:
        return host, DEFAULT_PORT
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{text!r}: a port is a number from 1 to 65535")
    return host, int(port)


def _numeric(host: str) -> str:
    """The first address of a name: C speaks to numbers only, so that no look-up can hang there."""
    import ipaddress
    import socket

    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigError(f"the name {host!r} is unknown here: {error}", cause=error) from error


def _text_of(text: str | None, environment: Mapping[str, str] | None) -> str:
    if text is not None:
        return text
    environment = os.environ if environment is None else environment
    return environment.get("MOONCAKE_STORE_MASTER") or f"127.0.0.1:{DEFAULT_PORT}"


def cluster_of(text: str | None = None, environment: Mapping[str, str] | None = None) -> str | None:
    """Return the coordinator that `text` names instead of a master; None: it names a master.

    Args:
        text: None takes $MOONCAKE_STORE_MASTER.
        environment: None reads the process's.
    """
    found = _text_of(text, environment)
    return found if found.startswith(("etcd://", "local:")) else None


def parse_master(
    text: str | None = None, environment: Mapping[str, str] | None = None
) -> MasterAddress:
    """Return the master that `text` names: `host:port`, `[ip6]:port`, `unix:///path`.

    Args:
        text: None takes $MOONCAKE_STORE_MASTER, else 127.0.0.1:7700.
        environment: None reads the process's.

    Raises:
        ConfigError: It names none.
    """
    environment = os.environ if environment is None else environment
    text = _text_of(text, environment)
    if text.startswith("unix:"):
        path = text.removeprefix("unix://").removeprefix("unix:")
        if not path.startswith("/"):
            raise ConfigError(f"{text!r}: a socket's path is absolute: unix:///run/master.sock")
        return MasterAddress(None, path)
    if "://" in text:
        raise ConfigError(f"{text!r}: write host:port, unix:///path or etcd://host,host")
    host, port = _split(text)
    numeric = _numeric(host)
    tcp = f"[{numeric}]:{port}" if ":" in numeric else f"{numeric}:{port}"
    unix: Path | None = None
    if is_loopback(numeric):
        try:
            unix = master_socket(port, environment)
        except ConfigError:  # not ours: TCP still works
            unix = None
    return MasterAddress(tcp, str(unix) if unix is not None and unix.exists() else None)
