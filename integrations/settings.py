"""Settings that an engine hands over as a mapping: checked by name and type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypeVar

from mooncake_store.errors import ConfigError

__all__ = ["read_settings"]

Settings = TypeVar("Settings")


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
