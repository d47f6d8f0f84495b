"""An OpenAI-compatible reverse proxy: each request goes where the conductor decides.

With one instance for both halves a request is passed on. Otherwise its prompt goes to the prefill
instance first, with one token to generate, and then to the decode instance, with what the first one
answered in `kv_transfer_params`.  Every request has a deadline; one that finds its instance dead is
decided again, as long as nothing of its answer has been sent.
"""

from __future__ import annotations

import asyncio
import contextlib

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mooncake_store.conductor.service.core import ConductorCore
from mooncake_store.conductor.service.exchange import (
    BODY_BYTES_MAX,
    Exchange,
    ProxyCounts,
    passed_headers,
)
from mooncake_store.conductor.service.instances import State
from mooncake_store.conductor.service.upstream import Upstream
from mooncake_store.errors import StoreError
from mooncake_store.serving.http_server import routed

__all__ = ["Proxy"]

_MODELS_S = 2.0
_MODELS_TRIES = 3


class Proxy:
    """The proxy's application and what it counts.

    Args:
        core: Decides.
    """

    def __init__(self, core: ConductorCore) -> None:
        self._core = core
        self.counts = ProxyCounts()

    def application(self) -> Starlette:
        """Return the ASGI application."""
        return routed(
            [
                Route("/v1/completions", self._complete, methods=["POST"]),
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
            ]
        )

    async def _complete(self, request: Request) -> Response:
        return Exchange(self._core, request, self.counts)

    async def _health(self, request: Request) -> Response:
        scheduler = self._core.scheduler
        is_ok = scheduler.table.has_open and scheduler.decode.has_open
        return JSONResponse({"ok": is_ok}, 200 if is_ok else 503)

    async def _models(self, request: Request) -> Response:
        """Answer what an instance that is alive says: all serve the same."""
        open_ones = [one for one in self._core.scheduler.instances if one.state is State.OPEN]
        for one in open_ones[:_MODELS_TRIES]:
            with contextlib.suppress(StoreError, asyncio.TimeoutError):
                return await asyncio.wait_for(
                    self._models_of(one.name, one.url, request), _MODELS_S
                )
        told = {"type": "unavailable", "code": "no_instance", "message": "no instance answers"}
        return JSONResponse({"error": told}, 503, headers={"retry-after": "1"})

    @staticmethod
    async def _models_of(name: str, url: str, request: Request) -> Response:
        with Upstream(name, url) as upstream:
            head = await upstream.ask("GET", "/v1/models", b"", passed_headers(request))
            body = await upstream.whole_body(BODY_BYTES_MAX)
        return Response(body, head.status, media_type="application/json")
