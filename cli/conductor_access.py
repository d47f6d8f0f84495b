"""Asking a running conductor, over HTTP."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import click

from mooncake_store.cli.options import DURATION
from mooncake_store.conductor.service.config import DEFAULT_HTTP_PORT
from mooncake_store.errors import (
    ConfigError,
    ProtocolError,
    RequestError,
    UnavailableError,
    UnknownInstanceError,
)

__all__ = ["ConductorAccess", "as_conductors", "conductor_options"]

_DEFAULT = f"127.0.0.1:{DEFAULT_HTTP_PORT}"
_TIMEOUT_S = 5.0
_ANSWER_BYTES_MAX = 256 << 20


class ConductorAccess:
    """Where a conductor is, and how long to wait for it."""

    def __init__(self, address: str, timeout_s: float) -> None:
        found = urlsplit(address if "//" in address else f"//{address}", scheme="http")
        try:
            host, port = found.hostname, found.port
        except ValueError as error:
            raise ConfigError(f"--conductor {address!r}: write HOST:PORT", cause=error) from error
        if not host or found.scheme != "http":
            raise ConfigError(f"--conductor {address!r}: write HOST:PORT")
        self._host, self._port = host, port or DEFAULT_HTTP_PORT
        self._timeout_s = timeout_s

    @property
    def where(self) -> str:
        """For messages."""
        return f"{self._host}:{self._port}"

    def ask(self, method: str, path: str, document: Any = None) -> Any:
        """Return the answer's document.

        Raises:
            UnavailableError: Nobody answers there.
            UnknownInstanceError: It knows no such instance or request.
            RequestError: It takes the question for a mistake.
            ProtocolError: Something else answers there.
        """
        where = self.where
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            body = None if document is None else json.dumps(document)
            connection.request(method, path, body)
            answer = connection.getresponse()
            data = answer.read(_ANSWER_BYTES_MAX)
        except http.client.HTTPException as error:
            # Without a cause: its message would be the bytes that came.
            raise _no_conductor(where) from error
        except OSError as error:
            raise UnavailableError(
                f"no conductor answers at {where}", node=where, stage="connect", cause=error,
                hint="is it running? --conductor HOST:PORT names its HTTP port",
            ) from error  # fmt: skip
        finally:
            connection.close()
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise _no_conductor(where) from error
        failure = found.get("error") if isinstance(found, dict) else None
        if not isinstance(found, dict) or (answer.status >= 400 and not isinstance(failure, dict)):
            raise _no_conductor(where)
        if answer.status >= 400:
            assert isinstance(failure, dict)
            if failure.get("code") in ("unknown_path", "unknown_method"):
                raise _no_conductor(where)  # a master or a store server, say
            message, hint = str(failure.get("message", "it failed")), failure.get("hint")
            if answer.status == 404:
                raise UnknownInstanceError(message, node=where, hint=hint)
            raise RequestError(message, node=where, hint=hint)
        return found


@contextlib.contextmanager
def as_conductors(access: ConductorAccess) -> Iterator[None]:
    """Around a look at an answer: what lacks a part of it was not said by a conductor."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _no_conductor(access.where) from error


def _no_conductor(where: str) -> ProtocolError:
    return ProtocolError(
        f"what answers at {where} is no conductor", node=where,
        hint="--conductor names a conductor's HTTP port: not its gRPC port, nor a master's",
    )  # fmt: skip


def conductor_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --conductor and --timeout; the function gets its `access`."""

    @click.option(
        "--conductor", "address", metavar="HOST:PORT", default=_DEFAULT, show_default=True,
        envvar="MOONCAKE_STORE_CONDUCTOR", help="HTTP port of the conductor",
    )  # fmt: skip
    @click.option("--timeout", type=DURATION, metavar="TIME", help="deadline: 500ms, 2s")
    @functools.wraps(function)
    def wrapped(*args: Any, address: str, timeout: float | None, **kwargs: Any) -> Any:
        access = ConductorAccess(address, _TIMEOUT_S if timeout is None else timeout)
        return function(*args, access=access, **kwargs)

    return wrapped
