"""Reads JSON that somebody else has written, and says where it is not as expected."""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_interface
from typing import Any, NoReturn

from mooncake_store.errors import ConfigError
from mooncake_store.transfer_engine.topology.nic import Address

__all__ = ["Value", "read_document"]

_NAME_BYTES_MAX = 63  # C: TE_NIC_NAME_BYTES, with its final zero


@dataclass(frozen=True, slots=True)
class Value:
    """A value inside a document, and where it is.

    Attributes:
        raw: As the JSON parser gives it.
        origin: The file, or whoever sent it.
        place: `nics.eth0[1]`; empty for the whole.
    """

    raw: Any
    origin: str
    place: str = ""

    def refuse(self, wanted: str) -> NoReturn:
        """Raise the error that says what is wanted here instead."""
        where = f"{self.origin}: {self.place}" if self.place else self.origin
        shown = json.dumps(self.raw)
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        raise ConfigError(f"{where}: want {wanted}, found {shown}")

    def members(self, known: Collection[str] | None = None) -> Mapping[str, Value]:
        """Return an object's members by name.

        Args:
            known: Names that have a meaning; any other is a mistake.  None: all are welcome.
        """
        if not isinstance(self.raw, dict):
            self.refuse("an object {...}")
        for name in self.raw:
            if known is not None and name not in known:
                close = difflib.get_close_matches(name, known, 1)
                hint = f"; did you mean {close[0]!r}?" if close else ""
                where = f"{self.origin}: {self.place}" if self.place else self.origin
                raise ConfigError(
                    f"{where}: {name!r} has no meaning here{hint} (known: {', '.join(known)})"
                )
        return {
            name: Value(raw, self.origin, f"{self.place}.{name}" if self.place else name)
            for name, raw in self.raw.items()
        }

    def items(self, wanted: str = "a list [...]") -> Iterator[Value]:
        """Return a list's items."""
        if not isinstance(self.raw, list):
            self.refuse(wanted)
        for index, raw in enumerate(self.raw):
            yield Value(raw, self.origin, f"{self.place}[{index}]")

    def text(self) -> str:
        """Return a string."""
        if not isinstance(self.raw, str):
            self.refuse("a string")
        return str(self.raw)

    def name(self) -> str:
        """Return the name of an interface, device or location."""
        return check_name(self, self.raw)

    def number(self, low: int = 0, high: int = 2**32 - 1) -> int:
        """Return a whole number within bounds."""
        if not isinstance(self.raw, int) or isinstance(self.raw, bool):
            self.refuse("a whole number")
        if not low <= self.raw <= high:
            self.refuse(f"a number from {low} to {high}")
        return int(self.raw)

    def boolean(self) -> bool:
        """Return true or false."""
        if not isinstance(self.raw, bool):
            self.refuse("true or false")
        return self.raw

    def address(self) -> Address:
        """Return an IP address with or without a prefix length."""
        if not isinstance(self.raw, str) or "%" in self.raw:
            self.refuse('a numeric IP address: "10.0.0.5/24", "fd00::5"')
        try:
            return ip_interface(self.raw)
        except ValueError:
            self.refuse('a numeric IP address: "10.0.0.5/24", "fd00::5"')


def check_name(value: Value, name: object) -> str:
    """Return a name that C and people can read, or refuse it."""
    is_name = isinstance(name, str) and name.isprintable() and not set(name) & set('\\"')
    if not is_name or not 0 < len(str(name).encode()) <= _NAME_BYTES_MAX:
        value.refuse(f"a name of 1 to {_NAME_BYTES_MAX} bytes, without quotes and backslashes")
    return str(name)


def read_document(text: str, origin: str) -> Value:
    """Parse JSON.

    Raises:
        ConfigError: It is none; with line and column.
    """
    try:
        return Value(json.loads(text), origin)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        raise ConfigError(f"{origin}: no JSON: {error}", cause=error) from error
