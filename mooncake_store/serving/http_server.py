"""Health, version and metrics over HTTP, for probes, scrapes and people with curl."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from mooncake_store.protocol.frames import WIRE_VERSION, WIRE_VERSION_OLDEST
from mooncake_store.serving.connections import HTTP_CONNECTIONS_MAX
from mooncake_store.serving.http_protocol import DeadlineProtocol
from mooncake_store.serving.process import Check
from mooncake_store.version import __version__

__all__ = ["HttpServer", "application", "routed"]

_SHOWN_PATH_MAX = 200  # characters
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def application(
    *,
    live: Callable[[], Check],
    ready: Callable[[], list[Check]],
    about: Callable[[], dict[str, Any]],
    exposition: Callable[[], bytes],
    more: Sequence[Route] = (),
) -> Starlette:
    """Return the ASGI application.

    Args:
        live: Whether the process turns; when not, it should be started again.
        ready: Whether it can serve.
        about: What `/version` says beside the version numbers.
        exposition: One scrape in Prometheus' text format.
        more: Routes of the process's own API.
    """

    async def livez(request: Request) -> Response:
        return _verdict(request, [live()])

    async def readyz(request: Request) -> Response:
        return _verdict(request, ready())

    async def version(request: Request) -> Response:
        return JSONResponse(
            {
                "version": __version__,
                "wire_version": WIRE_VERSION,
                "wire_version_oldest": WIRE_VERSION_OLDEST,
                **about(),
            }
        )

    async def metrics(request: Request) -> Response:
        return Response(exposition(), media_type=METRICS_TYPE)

    return routed(
        [
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/health", readyz),
            Route("/version", version),
            Route("/metrics", metrics),
            *more,
        ]
    )


def routed(routes: Sequence[Route]) -> Starlette:
    """Return an application that says what there is when something else is asked for, in JSON."""
    listed = ", ".join(dict.fromkeys(route.path_format for route in routes))

    async def absent(request: Request, error: Exception) -> Response:
        path, headers = request.scope["path"], {}
        told = {"type": "invalid_request", "code": "unknown_path"}
        methods = [route.methods or () for route in routes if route.path_regex.match(path)]
        shown = path[:_SHOWN_PATH_MAX]
        if methods:  # of all its routes: Starlette tells those of the first
            allowed = ", ".join(sorted({method for some in methods for method in some}))
            headers["allow"] = allowed
            told["code"] = "unknown_method"
            told |= {"message": f"{shown} has no {request.method}", "hint": f"it has {allowed}"}
        else:
            told |= {"message": f"there is no {shown}", "hint": f"there are {listed}"}
        return JSONResponse({"error": told}, 405 if methods else 404, headers=headers)

    return Starlette(routes=list(routes), exception_handlers={404: absent, 405: absent})


def _verdict(request: Request, checks: list[Check]) -> Response:
    is_ok = all(check.is_ok for check in checks)
    status = 200 if is_ok else 503
    if "verbose" not in request.query_params:
        return PlainTextResponse("ok\n" if is_ok else "not ready\n", status)
    document: dict[str, Any] = {
        "ok": is_ok,
        "checks": [
            {"name": check.name, "ok": check.is_ok, "reason": check.reason} for check in checks
        ],
    }
    return JSONResponse(document, status)


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the process stops its services in its own order."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """An HTTP server on a socket that listens already: a probe that comes early waits.

    Args:
        app: What it serves.
        held: The socket.
        connections_max: At a time; more are answered 503.
        head_timeout_s: How long the head of a request may take to arrive.
    """

    def __init__(
        self,
        app: Starlette,
        held: socket.socket,
        *,
        connections_max: int = HTTP_CONNECTIONS_MAX,
        head_timeout_s: float = 10.0,
    ) -> None:
        protocol: Any = functools.partial(DeadlineProtocol, head_timeout_s=head_timeout_s)
        config = uvicorn.Config(
            app,
            http=protocol,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_keep_alive=30,
            limit_concurrency=connections_max,
        )
        self._server = _Server(config)
        self._socket = held
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Serve from now on."""
        self._task = asyncio.create_task(self._server.serve(sockets=[self._socket]))

    async def stop(self, timeout_s: float) -> None:
        """Stop; answers under way have this long to finish."""
        if self._task is None:
            self._socket.close()
            return
        self._server.should_exit = True
        _, pending = await asyncio.wait([self._task], timeout=timeout_s)
        if pending:
            self._server.force_exit = True
            self._task.cancel()
            await asyncio.wait([self._task], timeout=1.0)
