"""Which master a command talks to: flag, context, environment, the running `up`, the default.

A context is a name for a master: `[context.NAME] master = "host:port"` in the user's file.  `up`
keeps one called `local` in the runtime folder for as long as it runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mooncake_store.config import default_path, read_file, without_password
from mooncake_store.errors import ConfigError
from mooncake_store.runtime import DEFAULT_PORT, runtime_dir

__all__ = [
    "TABLES",
    "TARGET_ORDER",
    "Target",
    "read_document",
    "remove_local",
    "resolve",
    "write_local",
]

TABLES = ("master", "server", "client", "conductor", "context")

TARGET_ORDER = (
    "--master HOST:PORT",
    "--context NAME, or $MOONCAKE_STORE_CONTEXT",
    "$MOONCAKE_STORE_MASTER",
    "the context `local`: a `mooncake-store up` that runs here",
    f"127.0.0.1:{DEFAULT_PORT}",
)
"""What `resolve` goes through, for people."""


@dataclass(frozen=True, slots=True)
class Target:
    """A master's address and where it came from."""

    master: str
    origin: str

    @property
    def shown(self) -> str:
        """The address as it may be printed."""
        return without_password(self.master)


def read_document(config: str | None) -> tuple[dict[str, Any], str]:
    """Return the configuration file and its path; without --config it need not exist."""
    path = Path(config) if config else default_path()
    return read_file(path, TABLES, must_exist=config is not None), str(path)


def _local_path() -> Path:
    return runtime_dir(create=False) / "context-local.json"


def write_local(master: str, pid: int) -> None:
    """Name a master that was started by `up`, for commands that are told nothing else."""
    path = runtime_dir() / "context-local.json"
    draft = path.with_suffix(f".{pid}.new")
    draft.write_text(json.dumps({"master": master, "pid": pid}) + "\n")
    os.replace(draft, path)


def remove_local(pid: int) -> None:
    """Remove the context again, unless another `up` has replaced it."""
    with suppress(OSError, ValueError, ConfigError):
        path = _local_path()
        if json.loads(path.read_text()).get("pid") == pid:
            path.unlink()


def _read_local() -> str | None:
    try:
        found = json.loads(_local_path().read_text())
        os.kill(int(found["pid"]), 0)
        return str(found["master"])
    except (OSError, ValueError, LookupError, TypeError, ConfigError):
        return None


def resolve(
    master: str | None,
    context: str | None,
    document: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
) -> Target:
    """Return the master to talk to.

    Raises:
        ConfigError: No such context.
    """
    environment = os.environ if environment is None else environment
    if master:
        return Target(master, "flag --master")
    named = context or environment.get("MOONCAKE_STORE_CONTEXT")
    if named and named != "local":
        contexts = document.get("context", {})
        if named not in contexts or not isinstance(contexts[named].get("master"), str):
            known = ", ".join(sorted(contexts)) or "none"
            raise ConfigError(
                f"there is no context {named!r} (known: {known})",
                hint=f'write [context.{named}] master = "host:port" into {default_path()}',
            )
        return Target(contexts[named]["master"], f"context {named}")
    if not named and environment.get("MOONCAKE_STORE_MASTER"):
        return Target(environment["MOONCAKE_STORE_MASTER"], "environment MOONCAKE_STORE_MASTER")
    running = _read_local()
    if running is not None:
        return Target(running, "context local (a running `mooncake-store up`)")
    if named:
        raise ConfigError("no `mooncake-store up` runs here", hint="start one: mooncake-store up")
    return Target(f"127.0.0.1:{DEFAULT_PORT}", "default")
