"""`ReplicateConfig`: what is wanted of a put."""

from __future__ import annotations

import hashlib
from typing import Any

from mooncake._store.enums import ObjectDataType, SoftPinAction

__all__ = ["REPLICAS_MAX", "ReplicateConfig", "group_number"]

REPLICAS_MAX = 16

_DEFAULTS: dict[str, Any] = {
    "data_type": ObjectDataType.UNKNOWN,
    "dfs_replica_num": 0,
    "group_ids": None,
    "nof_replica_num": 0,
    "prefer_alloc_in_same_node": False,
    "preferred_nof_segments": (),
    "preferred_segment": "",
    "preferred_segments": (),
    "replica_num": 1,
    "session_ids": None,
    "soft_pin_action": SoftPinAction.PRESERVE,
    "soft_pin_ttl_ms": None,
    "with_hard_pin": False,
    "with_soft_pin": False,
}


def _is_strings(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_fitting(name: str, value: Any) -> bool:
    default = _DEFAULTS[name]
    if name in ("group_ids", "session_ids"):
        return value is None or _is_strings(value)
    if name == "soft_pin_ttl_ms":
        return value is None or _is_count(value)
    if isinstance(default, bool):
        return isinstance(value, bool)
    if isinstance(default, ObjectDataType | SoftPinAction):
        return isinstance(value, type(default))
    if isinstance(default, int):
        return _is_count(value)
    return isinstance(value, str) if isinstance(default, str) else _is_strings(value)


class ReplicateConfig:
    """What is wanted of a put.

    Every name that a version of the package has had is taken; any other is refused.

    Attributes:
        replica_num: Copies wanted, each on another node; fewer are made when there are fewer nodes.
        with_hard_pin: Never evicted.
        with_soft_pin: Spared while others can be evicted; also `soft_pin_action` ENABLE.
        preferred_segment: `ip:port` of the store server to be filled first, or its name;
            `preferred_segments` the same, the first of them that is there.
        group_ids: For each key of the put; objects of one group leave together.
    """

    __slots__ = tuple(_DEFAULTS)

    data_type: ObjectDataType
    dfs_replica_num: int
    group_ids: list[str] | None
    nof_replica_num: int
    prefer_alloc_in_same_node: bool
    preferred_nof_segments: list[str]
    preferred_segment: str
    preferred_segments: list[str]
    replica_num: int
    session_ids: list[str] | None
    soft_pin_action: SoftPinAction
    soft_pin_ttl_ms: int | None
    with_hard_pin: bool
    with_soft_pin: bool

    def __init__(self) -> None:
        for name, value in _DEFAULTS.items():
            object.__setattr__(self, name, [] if value == () else value)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in _DEFAULTS and not _is_fitting(name, value):
            raise TypeError(f"ReplicateConfig.{name} cannot be {value!r}")
        object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        changed = ", ".join(
            f"{name}={getattr(self, name)!r}"
            for name, value in _DEFAULTS.items()
            if getattr(self, name) not in (value, [])
        )
        return f"ReplicateConfig({changed})"


def group_number(group: str) -> int:
    """Return the number under which the store knows a group; never 0, which is none."""
    digest = hashlib.blake2b(group.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") | 1
