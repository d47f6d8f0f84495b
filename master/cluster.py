"""Settings that are the same for all masters of a cluster, kept at the coordinator.

What leads is one master after the other, so whatever a client or an operator can tell apart must
not change with them. Such a setting beats flag, environment and file of each master: else a standby
that was started with another value would bring it along with the lead. Quotas of tenants will stand
here too, once there are tenants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mooncake_store.config import Setting, settings_of
from mooncake_store.errors import ConfigError
from mooncake_store.master.config import MasterConfig

__all__ = ["CLUSTER_FIELDS", "Applied", "apply", "cluster_settings"]

CLUSTER_FIELDS: dict[str, bool] = {
    "eviction": False,
    "session_timeout_ms": False,
    "evict_above_permille": True,
    "evict_below_permille": True,
    "location_lifetime_ms": True,
    "member_grace_ms": True,
    "server_silence_ms": True,
    "forget_after_ms": True,
    "soft_pin_ms": True,
    "copy_bandwidth_bytes_per_s": True,
    "repair": True,
    "repair_delay_ms": True,
    "ramp_share_permille": True,
    "ramp_ms": True,
}
"""Fields of MasterConfig that may be kept for all masters, and whether a master that leads takes a
change up at once; else the next leader does."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of the coordinator's settings.

    Attributes:
        config: The master's, with them.
        overridden: Names whose value here was another one, with both as people write them.
        ignored: Names that mean nothing here, with the reason.
    """

    config: MasterConfig
    overridden: Mapping[str, tuple[str, str]]
    ignored: Mapping[str, str]


def cluster_settings() -> dict[str, Setting]:
    """Return what may be kept for all masters, by the name that people write."""
    found = settings_of(MasterConfig, "master")
    return {item.name: item for item in found if item.field in CLUSTER_FIELDS}


def apply(config: MasterConfig, told: Mapping[str, str]) -> Applied:
    """Put the coordinator's settings over a master's own.

    Nothing in them can keep a master from starting: it does without what it cannot use.
    """
    known = cluster_settings()
    values: dict[str, object] = {}
    overridden: dict[str, tuple[str, str]] = {}
    ignored: dict[str, str] = {}
    for name, text in sorted(told.items()):
        if name not in known:
            ignored[name] = "no setting of all masters"
            continue
        item = known[name]
        try:
            value = item.parse(text)
        except ConfigError as error:
            ignored[name] = error.message
            continue
        own = getattr(config, item.field)
        if value != own:
            values[item.field] = value
            overridden[name] = (item.format(own), item.format(value))
    changed = replace(config, **values)  # type: ignore[arg-type]
    try:
        changed.check()
    except ConfigError as error:
        return Applied(config, {}, {**ignored, **dict.fromkeys(overridden, error.message)})
    return Applied(changed, overridden, ignored)
