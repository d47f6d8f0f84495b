"""Settings: one frozen dataclass a component, read from flags, environment and one TOML file.

A setting is one field, made with `setting`: its default and its reason stand there and nowhere
else.  The unit is part of the field's name (`pool_size_bytes`, `session_timeout_ms`); people write
the value with its unit, so that the name they use has none:

    @dataclass(frozen=True, slots=True, kw_only=True)
    class ServerConfig:
        pool_size_bytes: int = setting(GIB, "memory of this node that the store uses")

    [server]                                    in the file
    pool_size = "4GiB"
    MOONCAKE_STORE_SERVER_POOL_SIZE=4GiB        in the environment
    --pool-size 4GiB                            on the command line

Flag beats environment beats file beats default, and `Loaded.origins` says which it was.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from mooncake_store.errors import ConfigError

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "TIB",
    "Loaded",
    "Setting",
    "default_path",
    "example",
    "format_duration",
    "format_size",
    "load",
    "parse_duration",
    "parse_size",
    "read_file",
    "setting",
    "settings_of",
    "without_password",
]

KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40

_SIZE_UNITS = {
    "B": 1,
    **{"KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB},
    **{"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12},
}
_DURATION_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_UNITS = ("bytes_per_s", "bytes", "ms", "s")  # of fields, the longest first; bandwidths are sizes
_SIZE_MAX = 2**63 - 1  # of C
_NUMBER_AND_UNIT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")
_MISSING: Any = dataclasses.MISSING
_ENVIRONMENT_PREFIX = "MOONCAKE_STORE_"

Config = TypeVar("Config")


# ---- values with units ---------------------------------------------------------------------------


def parse_size(text: str | int) -> int:
    """Return a number of bytes: `4096`, `64KiB`, `1.5GiB`, `2GB`.

    Raises:
        ConfigError: No size, or a bare letter, which people read in two ways.
    """
    from decimal import Decimal

    match = _NUMBER_AND_UNIT.fullmatch(str(text))
    if match is None:
        raise ConfigError(f"{text!r} is not a size: write 4096, 64KiB, 1.5GiB or 2GB")
    number, unit = match.groups()
    if unit.upper() in ("K", "M", "G", "T"):
        letter = unit.upper()
        raise ConfigError(
            f"{text!r} can be read in two ways: write {number}{letter}iB "
            f"({Decimal(number) * _SIZE_UNITS[letter + 'iB']:,.0f} bytes) or {number}{letter}B "
            f"({Decimal(number) * _SIZE_UNITS[letter + 'B']:,.0f} bytes)"
        )
    if unit and unit not in _SIZE_UNITS:
        raise ConfigError(f"{text!r}: {_unknown('unit', unit, _SIZE_UNITS)}")
    size = Decimal(number) * _SIZE_UNITS[unit or "B"]  # exact, also beyond 2**53
    if size != int(size):
        raise ConfigError(f"{text!r} is not a whole number of bytes")
    return int(size)


def parse_duration(text: str | int | float) -> float:
    """Return seconds: `500ms`, `2s`, `5m`, `1h`.

    Raises:
        ConfigError: No duration, or a number without its unit (0 needs none).
    """
    match = _NUMBER_AND_UNIT.fullmatch(str(text))
    if match is None:
        raise ConfigError(f"{text!r} is not a duration: write 500ms, 2s or 5m")
    number, unit = match.groups()
    if not unit:
        if float(number) == 0:
            return 0.0
        raise ConfigError(f"{text!r} has no unit: write {number}s or {number}ms")
    if unit not in _DURATION_UNITS:
        raise ConfigError(f"{text!r}: {_unknown('unit', unit, _DURATION_UNITS)}")
    duration_s = float(number) * _DURATION_UNITS[unit]
    if math.isinf(duration_s):
        raise ConfigError(f"a duration of {len(number)} digits is too long")
    return duration_s


def format_size(size_bytes: int) -> str:
    """Return a size as `parse_size` reads it back, exactly: `1GiB`, `1000000`."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size_bytes and size_bytes % _SIZE_UNITS[unit] == 0:
            return f"{size_bytes // _SIZE_UNITS[unit]}{unit}"
    return str(size_bytes)


def format_duration(duration_s: float) -> str:
    """Return a duration as `parse_duration` reads it back: `500ms`, `5m`."""
    for unit in ("d", "h", "m", "s", "ms"):
        number = duration_s / _DURATION_UNITS[unit]
        if number >= 1 and round(number, 9) == int(round(number, 9)):
            return f"{int(round(number, 9))}{unit}"
    return "0" if duration_s == 0 else f"{duration_s * 1e3:.6f}".rstrip("0").rstrip(".") + "ms"


def without_password(text: str) -> str:
    """Return an address as it may be shown: `etcd://user:***@host`."""
    return re.sub(r"(://[^/@:]*):[^/]*@", r"\1:***@", text)


# ---- the settings of a component -----------------------------------------------------------------


def setting(
    default: Any,
    help: str,
    *,
    choices: Iterable[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """Return a dataclass field that is a setting.

    Args:
        default: Its value when nobody sets it, in the field's unit; None where the type allows it.
        help: What it does, what a special value means, and why the default is what it is.
        choices: The words allowed.
        minimum: The least value allowed, in the field's unit.
        maximum: The greatest value allowed, in the field's unit.
    """
    metadata = {"help": help, "choices": tuple(choices), "minimum": minimum, "maximum": maximum}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Setting:
    """What the files, the environment and the command line need to know about one field."""

    component: str
    field: str
    kind: type  # bool, int, float, str, or tuple (of str)
    unit: str  # of `_UNITS`, or "": what the field counts in
    is_optional: bool
    default: Any
    help: str
    choices: tuple[str, ...]
    minimum: float | None
    maximum: float | None

    @property
    def name(self) -> str:
        """The field's name without its unit, as written in a file."""
        return self.field.removesuffix(f"_{self.unit}") if self.unit else self.field

    @property
    def flag(self) -> str:
        """The command-line flag."""
        return "--" + self.name.replace("_", "-")

    @property
    def environment(self) -> str:
        """The environment variable."""
        component = self.component.upper().replace("-", "_")
        return f"{_ENVIRONMENT_PREFIX}{component}_{self.name.upper()}"

    def parse(self, value: Any) -> Any:
        """Return the field's value from text or from TOML.

        Raises:
            ConfigError: It cannot be read so, or lies outside the bounds.
        """
        if value is None or (self.is_optional and value == ""):
            if self.is_optional:
                return None
            raise ConfigError(f"{self.name} needs a value")
        parsed = self._parse_kind(value)
        if isinstance(parsed, float) and not math.isfinite(parsed):
            raise ConfigError(f"{self.name} is a number{self._bounds()}, not {parsed}")
        if self.choices and parsed not in self.choices:
            raise ConfigError(f"{self.name}: {_unknown('value', str(parsed), self.choices)}")
        if self.minimum is not None and parsed < self.minimum:
            raise ConfigError(
                f"{self.name} is at least {self.format(self.minimum)}, not {self.format(parsed)}"
            )
        if self.maximum is not None and parsed > self.maximum:
            raise ConfigError(
                f"{self.name} is at most {self.format(self.maximum)}, not {self.format(parsed)}"
            )
        return parsed

    def _bounds(self) -> str:
        ends = (("at least", self.minimum), ("at most", self.maximum))
        told = [f"{word} {self.format(end)}" for word, end in ends if end is not None]
        return " of " + " and ".join(told) if told else ""

    def _parse_kind(self, value: Any) -> Any:
        if self.unit in ("bytes", "bytes_per_s") and not isinstance(value, bool):
            size = parse_size(value)
            if size > _SIZE_MAX:
                raise ConfigError(f"{self.name} is at most {_SIZE_MAX // TIB:,} TiB")
            return size
        if self.unit in ("s", "ms") and not isinstance(value, bool):
            duration_s = parse_duration(value)
            number = duration_s if self.unit == "s" else duration_s * 1e3
            return round(number) if self.kind is int else number
        if self.kind is bool:
            words = {"true": True, "yes": True, "on": True, "1": True}
            words |= {"false": False, "no": False, "off": False, "0": False}
            if str(value).lower() in words:
                return words[str(value).lower()]
            raise ConfigError(f"{self.name} is true or false, not {value!r}")
        if self.kind is tuple:
            parts = value.split(",") if isinstance(value, str) else value
            if not isinstance(parts, list | tuple):
                raise ConfigError(f"{self.name} is a list, not {value!r}")
            return tuple(str(part).strip() for part in parts if str(part).strip())
        if self.kind is str and isinstance(value, str):
            return value
        if self.kind in (int, float) and not isinstance(value, bool):
            try:
                return self.kind(value)
            except (TypeError, ValueError, OverflowError):
                pass
        expected = {int: "a whole number", float: "a number", str: "a text"}[self.kind]
        raise ConfigError(f"{self.name} is {expected}, not {value!r}")

    def format(self, value: Any) -> str:
        """Return a value as people write it."""
        if value is None:
            return ""
        if self.unit in ("bytes", "bytes_per_s"):
            return format_size(int(value))
        if self.unit in ("s", "ms"):
            return format_duration(float(value) / (1 if self.unit == "s" else 1e3))
        if self.kind is bool:
            return "true" if value else "false"
        if self.kind is tuple:
            return ",".join(value)
        return str(value)


def settings_of(config_class: type[Any], component: str) -> tuple[Setting, ...]:
    """Return the settings of a component, in the order of its fields."""
    hints = typing.get_type_hints(config_class)
    found = []
    for field in dataclasses.fields(config_class):
        kind = hints[field.name]
        is_optional = False
        if typing.get_origin(kind) in (typing.Union, types.UnionType):
            (kind,) = (part for part in typing.get_args(kind) if part is not type(None))
            is_optional = True
        kind = typing.get_origin(kind) or kind
        assert kind in (bool, int, float, str, tuple), f"{field.name}: {kind} is no setting's type"
        assert "help" in field.metadata, f"{field.name} is not made with setting()"
        units = _UNITS if kind in (int, float) else ()
        found.append(
            Setting(
                component=component,
                field=field.name,
                kind=kind,
                unit=next((unit for unit in units if field.name.endswith(f"_{unit}")), ""),
                is_optional=is_optional,
                default=None if field.default is _MISSING else field.default,
                **field.metadata,
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Loaded(Generic[Config]):
    """A component's settings, and where each came from.

    Attributes:
        values: The dataclass.
        origins: For each field `default`, `file PATH`, `environment NAME` or `flag --NAME`.
        settings: What the fields are.
    """

    values: Config
    origins: Mapping[str, str]
    settings: tuple[Setting, ...]


def load(
    config_class: type[Config],
    component: str,
    *,
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    document: Mapping[str, Any] | None = None,
    path: str | os.PathLike[str] = "",
    flag_prefix: str | None = None,
    flag_names: Mapping[str, str] | None = None,
) -> Loaded[Config]:
    """Put a component's settings together: flag, else environment, else file, else default.

    Args:
        config_class: The component's dataclass.
        component: Its name: the table in the file, part of the environment variables.
        flags: Values by field or setting name; None means that the flag was not given.
        environment: The process's environment; None reads it.
        document: The whole file, as `read_file` returns it.
        path: The file's path, for origins and messages.
        flag_prefix: What the flags are called in messages, as in `--set model.NAME`; None: each has
            its own.
        flag_names: Beside `flag_prefix`, by setting: those that were given by a flag of their own.

    Raises:
        ConfigError: A value that cannot be, or a name that is no setting (with the nearest one).
    """
    found = settings_of(config_class, component)
    by_name = {item.name: item for item in found}
    environment = os.environ if environment is None else environment
    given_flags = {
        name.replace("-", "_"): value for name, value in (flags or {}).items() if value is not None
    }
    unknown_flags = given_flags.keys() - by_name.keys() - {item.field for item in found}
    if unknown_flags:
        problem = _unknown(
            "flag" if flag_prefix is None else "setting", sorted(unknown_flags)[0], by_name
        )
        raise ConfigError(
            problem if flag_prefix is None else f"{flag_prefix.rstrip('.')}: {problem}"
        )
    table = (document or {}).get(component, {})
    _check_table(table, component, by_name, path)
    _check_environment(environment, component, found)

    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for item in found:
        flag = given_flags.get(item.name, given_flags.get(item.field))
        if flag is not None:
            named = f"flag {item.flag}" if flag_prefix is None else f"{flag_prefix}{item.name}"
            named = (flag_names or {}).get(item.name, named)
            source, raw = named, flag
        elif item.environment in environment:
            source, raw = f"environment {item.environment}", environment[item.environment]
        elif item.name in table:
            source, raw = f"file {path}" if path else "file", table[item.name]
        else:
            values[item.field], origins[item.field] = item.default, "default"
            continue
        try:
            values[item.field] = item.parse(raw)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error.message}", cause=error) from error
        origins[item.field] = source
    return Loaded(config_class(**values), origins, found)


# ---- the file ------------------------------------------------------------------------------------


def default_path(environment: Mapping[str, str] | None = None) -> Path:
    """Return the user's file: $MOONCAKE_STORE_CONFIG, else in the XDG configuration folder."""
    environment = os.environ if environment is None else environment
    named = environment.get(f"{_ENVIRONMENT_PREFIX}CONFIG")
    if named:
        return Path(named)
    folder = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return Path(folder) / "mooncake-store" / "config.toml"


def read_file(
    path: str | os.PathLike[str], tables: Iterable[str], *, must_exist: bool = True
) -> dict[str, Any]:
    """Return a TOML file as a document for `load`.

    Args:
        path: The file.
        tables: The tables that may stand in it: the components, `context`.
        must_exist: False for the default path: no file is an empty file.

    Raises:
        ConfigError: It cannot be read, is no TOML, or has a table that nobody knows.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        with open(path, "rb") as file:
            document: dict[str, Any] = tomllib.load(file)
    except FileNotFoundError as error:
        if not must_exist:
            return {}
        raise ConfigError(f"{path} does not exist", cause=error) from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", cause=error) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}", cause=error) from error
    known = tuple(tables)
    for name, table in document.items():
        if name not in known:
            raise ConfigError(f"{path}: {_unknown('table', name, known)}")
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: [{name}] is a table, not a value")
    return document


def example(components: Mapping[str, type[Any]]) -> str:
    """Return a commented TOML file with every setting at its default.

    Args:
        components: The dataclass of each table.
    """
    lines = [
        "# Every setting of mooncake-store with its default: uncomment what you change.",
        "# Sizes: KiB MiB GiB TiB, KB MB GB TB or bytes.  Durations: ms s m h.",
        "# A flag beats an environment variable, which beats this file.",
    ]
    for component, config_class in components.items():
        lines += ["", f"[{component}]"]
        for item in settings_of(config_class, component):
            lines += ["", *_wrapped(item.help)]
            if item.choices:
                lines.append(f"# One of: {', '.join(item.choices)}.")
            lines.append(f"# {item.flag}, {item.environment}")
            lines.append(f"#{item.name} = {_toml(item)}")
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    import textwrap

    sentence = text[:1].upper() + text[1:]
    return textwrap.wrap(
        sentence if sentence.endswith(".") else sentence + ".",
        width=96,
        initial_indent="# ",
        subsequent_indent="# ",
    )


def _toml(item: Setting) -> str:
    value = item.default
    if item.kind is tuple:
        return "[" + ", ".join(f'"{part}"' for part in value or ()) + "]"
    if item.kind in (bool, int, float) and not item.unit and value is not None:
        return item.format(value)
    text = item.format(value).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _check_table(
    table: Any, component: str, by_name: Mapping[str, Setting], path: str | os.PathLike[str]
) -> None:
    for name in table:
        if name not in by_name:
            where = f"{path}: [{component}]: " if path else f"[{component}]: "
            raise ConfigError(where + _unknown("setting", name, by_name))


def _check_environment(
    environment: Mapping[str, str], component: str, found: tuple[Setting, ...]
) -> None:
    prefix = f"{_ENVIRONMENT_PREFIX}{component.upper().replace('-', '_')}_"
    known = {item.environment for item in found}
    for name in environment:
        if name.startswith(prefix) and name not in known:
            raise ConfigError(_unknown("environment variable", name, known))


def _unknown(what: str, name: str, known: Iterable[str]) -> str:
    known = sorted(known)
    nearest = [other for other in known if other.casefold() == name.casefold()]
    if not nearest:
        import difflib

        nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if nearest:
        return f"unknown {what} {name!r}: did you mean {nearest[0]!r}?"
    return f"unknown {what} {name!r}: known are {', '.join(known)}"
