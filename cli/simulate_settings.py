"""Settings of `mooncake-store sim`: a cluster file, and what flags say beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mooncake_store.errors import ConfigError

if TYPE_CHECKING:
    from mooncake_store.conductor.sim_config import SimConfig

__all__ = ["read_config"]

_SETTINGS_HINT = "`mooncake-store sim settings` prints every setting, its default and its reason"


def _changes(settings: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Return `table.name=value` flags by table."""
    tables: dict[str, dict[str, str]] = {}
    for text in settings:
        name, separator, value = text.partition("=")
        table, dot, field = name.partition(".")
        if not (separator and dot and field):
            raise ConfigError(
                f"--set {text!r}: write TABLE.NAME=VALUE, as in cluster.prefill_nodes=16"
            )
        tables.setdefault(table.strip(), {})[field.strip()] = value.strip()
    return tables


def read_config(cluster: Path | None, settings: tuple[str, ...], **flags: Any) -> SimConfig:
    """Return what a simulation is told.

    Args:
        cluster: TOML file; None: defaults.
        settings: Of `--set`: TABLE.NAME=VALUE.
        flags: Of `scheduler` or `replay`, by name; None was not given.

    Raises:
        ConfigError: One of them says something that cannot be.
    """
    from mooncake_store.conductor.sim_config import TABLES, SimConfig

    try:
        tables: dict[str, dict[str, Any]] = dict(_changes(settings))
        unknown = sorted(set(tables) - set(TABLES))
        if unknown:
            raise ConfigError(f"--set: there is no table {unknown[0]!r}: {', '.join(TABLES)}")
        for name, value in flags.items():
            table = "scheduler" if name in ("policy", "admission") else "replay"
            if value is not None:
                tables[table] = {**tables.get(table, {}), name: value}
        own = {name: f"--{name}" for name, value in flags.items() if value is not None}
        return SimConfig.read(cluster, tables, own)
    except ConfigError as error:
        error.hint = _SETTINGS_HINT
        raise
