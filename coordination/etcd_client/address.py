"""Where an etcd is and how one gets in, from one line of text."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote

from mooncake_store.config import parse_duration
from mooncake_store.errors import ConfigError

__all__ = ["DEFAULT_LEASE_S", "EtcdAddress", "Tls"]

DEFAULT_PREFIX = "mooncake-store"
DEFAULT_LEASE_S = 2
"""The least that etcd grants with its default election timeout; a dead leader is followed within
this, and its check for expired leases (0.5 s)."""

_DEFAULT_PORT = 2379
_OPTIONS = ("ca", "cert", "key", "tls", "password_file", "lease")


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of PEM. No `ca`: the system's authorities. `cert` and `key`: who we are (mTLS)."""

    ca: str = ""
    cert: str = ""
    key: str = ""


@dataclass(frozen=True, slots=True)
class EtcdAddress:
    """One etcd cluster and the part of it that is ours.

    Attributes:
        endpoints: `host:port` of each member; the first is used until it fails.
        prefix: All keys begin with it.
        user: Empty: etcd asks for no password.
        lease_s: Time to live of the leader's key.
    """

    endpoints: tuple[str, ...]
    prefix: str = DEFAULT_PREFIX
    user: str = ""
    password: str = field(default="", repr=False)
    tls: Tls | None = None
    lease_s: int = DEFAULT_LEASE_S

    @classmethod
    def parse(cls, uri: str) -> EtcdAddress:
        """Return what `etcd://[USER[:PASSWORD]@]HOST[:PORT][,...][/PREFIX][?OPTIONS]` names.

        Options: `ca`, `cert`, `key` (files; TLS with any of them), `tls=1`, `password_file`,
        `lease` (a duration).

        Raises:
            ConfigError: It names nothing; the message has no password in it.
        """
        rest, _, query = uri.removeprefix("etcd://").partition("?")
        authority, _, prefix = rest.partition("/")
        login, has_login, hosts = authority.rpartition("@")
        user, _, password = login.partition(":")
        options = _options(query)
        if has_login and not user:
            raise ConfigError("etcd://: a name stands before the '@'")
        if "password_file" in options:
            password = quote(_read(options["password_file"]).strip("\r\n"), safe="")
        if password and not user:
            raise ConfigError("etcd://: a password needs a user: etcd://USER@HOST")
        return cls(
            endpoints=tuple(_endpoint(part) for part in hosts.split(",")),
            prefix=unquote(prefix).strip("/") or DEFAULT_PREFIX,
            user=unquote(user),
            password=unquote(password),
            tls=_tls(options),
            lease_s=_lease_s(options.get("lease", "")),
        )

    def __str__(self) -> str:
        """The address for people and logs: without password and files."""
        user = f"{self.user}@" if self.user else ""
        return f"etcd://{user}{','.join(self.endpoints)}/{self.prefix}"


def _options(query: str) -> dict[str, str]:
    found = dict(parse_qsl(query, keep_blank_values=True))
    for name in found:
        if name not in _OPTIONS:
            raise ConfigError(f"etcd://: unknown option {name!r}: known are {', '.join(_OPTIONS)}")
    return found


def _endpoint(text: str) -> str:
    host, port = text, ""
    if text.startswith("["):
        host, closed, rest = text.partition("]")
        host += closed
        if not closed or (rest and not rest.startswith(":")):
            raise ConfigError(f"etcd://: {text!r} is no address: write [::1]:{_DEFAULT_PORT}")
        port = rest[1:]
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    elif ":" in text:
        raise ConfigError(f"etcd://: {text!r}: an IPv6 address stands in brackets")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise ConfigError(f"etcd://: {text!r} is no address: write HOST:{_DEFAULT_PORT}")
    return f"{host}:{port or _DEFAULT_PORT}"


def _tls(options: dict[str, str]) -> Tls | None:
    files = {name: options.get(name, "") for name in ("ca", "cert", "key")}
    if bool(files["cert"]) != bool(files["key"]):
        raise ConfigError("etcd://: cert and key go together")
    for name, path in files.items():
        if path and not Path(path).is_file():
            raise ConfigError(f"etcd://: {name}={path} does not exist")
    if not any(files.values()) and options.get("tls", "0") in ("", "0"):
        return None
    return Tls(**files)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"etcd://: password_file={path} cannot be read", cause=error) from error


def _lease_s(text: str) -> int:
    if not text:
        return DEFAULT_LEASE_S
    lease_s = parse_duration(text)
    if not 1 <= lease_s <= 3600 or lease_s != int(lease_s):
        raise ConfigError(f"etcd://: lease={text}: whole seconds, from 1s to 1h")
    return int(lease_s)
