"""How requests of one process share what is between it and its peers: classes, tenants, weights."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum

from mooncake_store.errors import ConfigError, RequestError

__all__ = ["CLASS_WEIGHTS", "Priority", "Share", "parse_class_weights"]

_WEIGHT_MAX = 1024


class Priority(IntEnum):
    """Who goes first where requests share a peer's rails: 8 parts, 64, 1 and 4 parts."""

    NORMAL = 0  # puts
    URGENT = 1  # somebody waits for it: a get before a prefill
    BACKGROUND = 2  # replication, moving to other tiers
    PREFETCH = 3  # a get that somebody may wait for later


@dataclass(frozen=True, slots=True)
class Share:
    """Whose bytes these are: tenants of one priority share by their weights, whatever they ask for.

    Attributes:
        tenant: Any name; requests of one name share one turn.
        weight: How large that turn is, 1 to 1024.
    """

    tenant: str
    weight: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.weight <= _WEIGHT_MAX:
            raise RequestError(f"a share's weight is 1 to {_WEIGHT_MAX}, not {self.weight}")

    @property
    def number(self) -> int:
        """The tenant as the engine knows it: 64 bits of its name's hash, never 0."""
        from hashlib import blake2b  # who never shares never loads it

        return int.from_bytes(blake2b(self.tenant.encode(), digest_size=8).digest(), "little") or 1


_CLASSES = (Priority.URGENT, Priority.NORMAL, Priority.PREFETCH, Priority.BACKGROUND)  # te_class
_DEFAULTS = {
    Priority.URGENT: 64,
    Priority.NORMAL: 8,
    Priority.PREFETCH: 4,
    Priority.BACKGROUND: 1,
}
CLASS_WEIGHTS = tuple(f"{item.name.lower()}={_DEFAULTS[item]}" for item in _CLASSES)
"""The default, as settings have it."""


def parse_class_weights(words: Iterable[str]) -> tuple[int, ...]:
    """Return the weight of each class, as C has them.

    Args:
        words: `urgent=64`, `prefetch=2`, ...; what is not named keeps its default.

    Raises:
        ConfigError: No such class, or no weight.
    """
    weights = dict(_DEFAULTS)
    for word in words:
        name, _, number = word.partition("=")
        names = {item.name.lower(): item for item in _CLASSES}
        if name not in names or not number.isdecimal() or not 1 <= int(number) <= _WEIGHT_MAX:
            raise ConfigError(
                f"class_weights: {word!r} is not CLASS=WEIGHT; the classes are "
                f"{', '.join(names)}, a weight is 1 to {_WEIGHT_MAX}"
            )
        weights[names[name]] = int(number)
    return tuple(weights[item] for item in _CLASSES)
