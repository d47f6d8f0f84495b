"""Flags that many commands share, and how a command function gets what they mean."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from mooncake_store.cli.contexts import Target, read_document, resolve
from mooncake_store.cli.interrupts import soon_interrupted
from mooncake_store.cli.output import Output
from mooncake_store.config import load, parse_duration, parse_size
from mooncake_store.errors import ConfigError, InvalidKeyError, UnavailableError

if TYPE_CHECKING:
    from mooncake_store.client import Client

__all__ = [
    "DURATION", "KEY", "SHARED_OPTIONS", "SIZE", "Access", "client_options", "output_options",
    "settings_options",
]  # fmt: skip

SHARED_OPTIONS = (
    "is_json", "is_quiet", "no_color", "verbose", "master", "context", "timeout", "config",
)  # fmt: skip
"""Names of the options that most commands have."""

_KEY_BYTES_MAX = 1024


if TYPE_CHECKING:
    ParamType: TypeAlias = click.ParamType[Any]
else:
    ParamType = click.ParamType  # click 8.1 knows no ParamType[...]


class _Parsed(ParamType):
    def __init__(self, name: str, parse: Callable[[Any], Any]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except ConfigError as error:
            self.fail(error.message, param, ctx)


class _Key(ParamType):
    """An object's key; the shell completes those that are stored."""

    name = "KEY"

    def __init__(self, size_min: int = 1) -> None:
        self._size_min = size_min

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        try:
            size = len(value.encode())
        except UnicodeEncodeError:  # bytes of the command line that are no UTF-8
            size = -1
        if not self._size_min <= size <= _KEY_BYTES_MAX:
            raise InvalidKeyError("a key is 1 to 1024 bytes of UTF-8", key=value[:200])
        return value

    def shell_complete(self, ctx: Any, param: Any, incomplete: str) -> list[Any]:
        from mooncake_store.cli.key_completion import complete

        return [
            click.shell_completion.CompletionItem(key) for key in complete(ctx.params, incomplete)
        ]


KEY = _Key()
KEY_OR_PREFIX = _Key(0)
"""Every key begins with the empty prefix; no key is empty."""

SIZE = _Parsed("SIZE", parse_size)
DURATION = _Parsed("TIME", parse_duration)


def check_key(key: str) -> str:
    """Return what KEY_OR_PREFIX took, when it is meant as a key.

    Raises:
        InvalidKeyError: It is empty.
    """
    if not key:
        raise InvalidKeyError("a key is 1 to 1024 bytes of UTF-8; '' --prefix is every object")
    return key


def output_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --json and its relatives; the function's first argument is the `Output`."""

    @click.option("--json", "is_json", is_flag=True, help="one JSON document on stdout")
    @click.option("--quiet", "-q", "is_quiet", is_flag=True, help="no hints, no progress")
    @click.option("--no-color", is_flag=True, help="no colours (also: NO_COLOR, TERM=dumb)")
    @click.option("--verbose", "-v", count=True, help="more; twice: tracebacks")
    @functools.wraps(function)
    def wrapped(
        *args: Any, is_json: bool, is_quiet: bool, no_color: bool, verbose: int, **kwargs: Any
    ) -> Any:
        output = Output(is_json=is_json, is_quiet=is_quiet, no_color=no_color, verbosity=verbose)
        click.get_current_context().obj.output = output
        return function(output, *args, **kwargs)

    return wrapped


@dataclass(frozen=True, slots=True)
class Access:
    """How a command reaches the store.

    Attributes:
        target: The master and where its address came from.
        timeout_s: The flag's, or the configured.
    """

    target: Target
    timeout_s: float | None
    settings: Any

    def client(self, **settings: Any) -> Client:
        """Open a strict client: a command's user wants the error, not a miss."""
        from dataclasses import replace

        from mooncake_store.client import Client

        config = replace(
            self.settings, strict=True, wait_for_master=False, name="mooncake-store command"
        )
        if self.timeout_s is not None:
            config = replace(config, timeout_s=self.timeout_s, connect_timeout_s=self.timeout_s)
        try:
            return Client(self.target.master, config=config, **settings)
        except UnavailableError as error:
            if self.target.master.startswith("etcd://"):
                error.hint = (  # `up` on this machine would not help such a cluster
                    "the next master leads within 3 s if one stands by: `mooncake-store ready "
                    "--wait 10s`, then again; else see whether masters and etcd run"
                )
            raise


def client_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --master and its relatives; arguments: the `Output`, the `Access`."""

    @click.option("--master", "-m", metavar="HOST:PORT", help="the master to talk to")
    @click.option("--context", "-c", metavar="NAME", help="a named master of the user's file")
    @click.option(
        "--timeout", type=DURATION, metavar="TIME", help="deadline of each call: 500ms, 2s"
    )
    @click.option("--config", metavar="FILE", type=click.Path(), help="configuration file")
    @output_options
    @functools.wraps(function)
    def wrapped(
        output: Output, *args: Any, master: str | None, context: str | None,
        timeout: float | None, config: str | None, **kwargs: Any,
    ) -> Any:  # fmt: skip
        from mooncake_store.client.config import ClientConfig

        document, path = read_document(config)
        settings = load(ClientConfig, "client", document=document, path=path).values
        target = resolve(master, context, document)
        if timeout is not None and timeout <= 0:
            raise ConfigError("--timeout is above 0")
        output.target = f"{target.shown} ({target.origin})"
        if not output.verbosity:
            # What the SDK warns of, the command says in its own words.
            logging.getLogger("mooncake_store").addHandler(logging.NullHandler())
        with soon_interrupted():
            return function(output, Access(target, timeout, settings), *args, **kwargs)

    return wrapped


def settings_options(
    config_class: type[Any], component: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add a flag for each setting of a component; `load` gives the function its `loaded`."""
    from mooncake_store.config import settings_of

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        found = settings_of(config_class, component)

        @click.option("--config", metavar="FILE", type=click.Path(), help="configuration file")
        @functools.wraps(function)
        def wrapped(*args: Any, config: str | None, **kwargs: Any) -> Any:
            flags = {item.field: kwargs.pop(item.field) for item in found}
            document, path = read_document(config)
            loaded = load(config_class, component, flags=flags, document=document, path=path)
            return function(*args, loaded=loaded, **kwargs)

        for item in reversed(found):
            if isinstance(item.default, bool):
                flag = f"{item.flag}/--no-{item.flag.removeprefix('--')}"
                wrapped = click.option(flag, item.field, default=None, help=item.help)(wrapped)
            else:
                metavar = "|".join(item.choices) if item.choices else "VALUE"
                wrapped = click.option(
                    item.flag, item.field, default=None, metavar=metavar, help=item.help
                )(wrapped)
        return wrapped

    return decorate
