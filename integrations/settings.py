"""Settings that every connector has, and how they are read from an engine's mapping."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, TypeVar

from mooncake_store.errors import ConfigError

__all__ = ["StoreSettings", "read_settings"]

Settings = TypeVar("Settings")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """What may be set of every connector; each adds what is its own.

    Attributes:
        master: Address of the store; empty: $MOONCAKE_STORE_MASTER, else 127.0.0.1:7700.
        model: The model's name; empty: the engine's, and for a local folder its fingerprint only.
        revision: Of the weights; empty: the folder's fingerprint, else the engine's, or none.
        tenant: Trust domain: a secret keeps others from guessing keys.
        lookup_timeout_s: Deadline of finding objects.
        load_timeout_s: Deadline of loading; what is not there by then is computed.
        save_timeout_s: Deadline of saving.
        replicas: Copies of an object.
    """

    master: str = ""
    model: str = ""
    revision: str = ""
    tenant: str = ""
    lookup_timeout_s: float = 0.5
    load_timeout_s: float = 5.0
    save_timeout_s: float = 5.0
    replicas: int = 1


def read_settings(kind: type[Settings], given: Mapping[str, Any], place: str) -> Settings:
    """Return a dataclass of settings from an engine's mapping.

    Args:
        kind: A dataclass whose fields have defaults: their types are those that are taken.
        given: Names and values; whole numbers are taken for fractions.
        place: Where users have written it, for messages.

    Raises:
        ConfigError: A name that is none, a value of another type, or a number that is not above 0.
    """
    known: dict[str, type] = {
        each.name: type(each.default)
        for each in fields(kind)  # type: ignore[arg-type]
    }
    taken: dict[str, Any] = {}
    for name, value in given.items():
        wanted = known.get(name)
        if wanted is None:
            near = get_close_matches(name, known, 1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            raise ConfigError(f"{place} has no {name!r}{hint}")
        if wanted is float and type(value) is int:
            value = float(value)
        if type(value) is not wanted:
            raise ConfigError(f"{name} is a {wanted.__name__}, not {value!r}")
        if isinstance(value, int | float) and not isinstance(value, bool) and not value > 0:
            raise ConfigError(f"{name} is above 0, not {value!r}")
        taken[name] = value
    return kind(**taken)
