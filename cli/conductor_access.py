"""Asking a running conductor, over HTTP."""

from __future__ import annotations

import functools
import http.client
import json
from collections.abc import Callable
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

__all__ = ["ConductorAccess", "conductor_options"]

_DEFAULT = f"127.0.0.1:{DEFAULT_HTTP_PORT}"
_TIMEOUT_S = 5.0


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

    def ask(self, method: str, path: str, document: Any = None) -> Any:
        """Return the answer's document.

        Raises:
            UnavailableError: Nobody answers there.
            UnknownInstanceError: It knows no such instance or request.
            RequestError: It takes the question for a mistake.
        """
        where = f"{self._host}:{self._port}"
        connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        try:
            body = None if document is None else json.dumps(document)
            connection.request(method, path, body)
            answer = connection.getresponse()
            data = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise UnavailableError(
                f"no conductor answers at {where}", node=where, stage="connect", cause=error,
                hint="is it running? --conductor HOST:PORT names its HTTP port",
            ) from error  # fmt: skip
        finally:
            connection.close()
        try:
            found = json.loads(data)
        except ValueError as error:
            raise ProtocolError(
                f"what answers at {where} is no conductor", node=where, cause=error
            ) from error
        if answer.status >= 400:
            failure = found.get("error", {})
            message, hint = failure.get("message", "it failed"), failure.get("hint")
            if answer.status == 404:
                raise UnknownInstanceError(message, node=where, hint=hint)
            raise RequestError(message, node=where, hint=hint)
        return found


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
