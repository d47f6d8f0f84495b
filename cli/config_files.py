"""Files and folders that a configuration names: whether this user can use them here."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mooncake_store.config import without_password
from mooncake_store.errors import ConfigError

__all__ = ["Finding", "findings_of"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that would keep a process from starting or serving here.

    Attributes:
        setting: Where it is named: `server.segment_dir`.
        path: What is named.
        problem: What is wrong with it.
        fix: What to do.
    """

    setting: str
    path: str
    problem: str
    fix: str


def findings_of(components: Mapping[str, Any], contexts: Mapping[str, Any]) -> list[Finding]:
    """Return what is wrong with the files and folders that settings name, in order.

    Args:
        components: The settings of each component, by its table's name.
        contexts: The `context` table of the file.
    """
    found: list[Finding] = []
    for component, values in components.items():
        for field in ("coordinator", "master"):
            uri = getattr(values, field, "")
            if isinstance(uri, str):
                found += _coordinator(f"{component}.{field}", uri, keeps=component == "master")
        if folder := getattr(values, "segment_dir", ""):
            found += _folder_to_write(f"{component}.segment_dir", folder)
    for name, context in contexts.items():
        uri = context.get("master") if isinstance(context, Mapping) else None
        if isinstance(uri, str):
            found += _coordinator(f"context.{name}.master", uri, keeps=False)
    return found


def _coordinator(setting: str, uri: str, *, keeps: bool) -> Iterator[Finding]:
    """What an etcd's URI names in files, or a folder; `keeps`: the one who writes there."""
    if uri.startswith("etcd://"):
        yield from _etcd(setting, uri)
    elif uri.startswith("local:") and (folder := uri.removeprefix("local:")):
        if keeps:
            yield from _folder_to_write(setting, folder)
        elif not Path(folder).is_dir():
            fix = "start its master first, or correct the folder"
            yield Finding(setting, folder, "this folder is not there", fix)
        elif not os.access(folder, os.R_OK | os.X_OK):
            fix = f"run as the user of the master ({_owner(folder)})"
            yield Finding(setting, folder, "this folder cannot be read by this user", fix)


def _etcd(setting: str, uri: str) -> Iterator[Finding]:
    from mooncake_store.coordination.etcd_client.address import EtcdAddress

    try:
        tls = EtcdAddress.parse(uri).tls
    except ConfigError as error:
        fix = "correct it: etcd://[USER@]HOST,HOST/PREFIX?ca=FILE&cert=FILE&key=FILE"
        yield Finding(setting, without_password(uri), str(error.message), fix)
        return
    if tls is None:
        return
    named = {"ca": tls.ca, "cert": tls.cert, "key": tls.key}
    unreadable = False
    for option, path in named.items():
        for finding in _file_to_read(f"{setting} ({option})", path):
            unreadable = True
            yield finding
    if unreadable:
        return
    if tls.ca:
        try:
            ssl.create_default_context(cafile=tls.ca)
        except ssl.SSLError as error:
            yield _no_pem(f"{setting} (ca)", tls.ca, "holds no certificate of an authority", error)
    if tls.cert:
        try:
            # An encrypted key would ask for its password on the terminal.
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(tls.cert, tls.key, lambda: "")
        except (ssl.SSLError, ValueError) as error:
            problem = f"is no certificate that belongs to the key {tls.key}, or one is encrypted"
            yield _no_pem(f"{setting} (cert)", tls.cert, problem, error)
    if tls.key:
        others = stat.S_IMODE(os.stat(tls.key).st_mode) & 0o077
        if others & 0o007:
            fix = f"chmod o= {tls.key}"
            yield Finding(f"{setting} (key)", tls.key, "every user may use this private key", fix)


def _no_pem(setting: str, path: str, problem: str, error: Exception) -> Finding:
    reason = getattr(error, "reason", None) or error
    return Finding(setting, path, f"{problem} ({reason})", "name a file of PEM")


def _file_to_read(setting: str, path: str) -> Iterator[Finding]:
    if not path:
        return
    try:
        with open(path, "rb") as file:
            is_empty = not file.read(1)
    except OSError as error:
        problem = f"this file cannot be read: {error.strerror}"
        yield Finding(setting, path, problem, f"correct the path, or let {_user()} read it")
        return
    if is_empty:
        yield Finding(setting, path, "this file is empty", "name a file of PEM")


def _folder_to_write(setting: str, text: str) -> Iterator[Finding]:
    """A folder that the process makes, if it is not there yet, and keeps files in."""
    folder = Path(text)
    if not folder.is_absolute():
        yield Finding(setting, text, "this is no absolute path", "write it from / on")
        return
    there = folder
    try:
        while not there.exists():
            there = there.parent
    except OSError as error:  # a folder above cannot be searched
        fix = f"correct the path, or let {_user()} into it"
        yield Finding(setting, text, f"nothing can be looked up there: {error.strerror}", fix)
        return
    if not there.is_dir():
        yield Finding(setting, text, f"{there} is a file", "name a folder")
    elif not os.access(there, os.W_OK | os.X_OK):
        doing = "written" if there == folder else f"made: {there} cannot be written"
        fix = f"run as {_owner(there)}, or give it to {_user()}"
        yield Finding(setting, text, f"this folder cannot be {doing} by {_user()}", fix)


def _user() -> str:
    import pwd

    try:
        return f"user {pwd.getpwuid(os.geteuid()).pw_name}"
    except KeyError:
        return f"user {os.geteuid()}"


def _owner(path: str | Path) -> str:
    try:
        return f"user {Path(path).owner()}"
    except (KeyError, OSError):
        return "its owner"
