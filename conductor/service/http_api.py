"""The conductor's API over HTTP."""

from __future__ import annotations

import asyncio
import functools
import math
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mooncake_store.conductor.service.core import ConductorCore
from mooncake_store.conductor.service.decision import Refusal
from mooncake_store.conductor.service.documents import (
    decision_document,
    error_document,
    parse,
    read_registration,
    read_report,
    read_request,
    refusal_document,
)
from mooncake_store.errors import LimitError, RequestError, StoreError, UnknownInstanceError

__all__ = ["BODY_BYTES_MAX", "late_body_response", "read_body", "refusal_response", "routes"]

BODY_BYTES_MAX = 64 << 20
"""Of a request: a prompt of 10 million tokens."""

TAKEN_BACK_MAX = 1000
"""Replicas that one answer tells of."""

_READ_BODY = "read body"

Handler = Callable[[Request], Awaitable[Response]]


class _LateBody(Exception):
    """A body that did not come in time."""


async def read_body(request: Request, timeout_s: float) -> bytes:
    """Return a body of bounded size.

    Raises:
        RequestError: It is larger.
        _LateBody: It takes longer.
    """
    try:
        return await asyncio.wait_for(_whole_body(request), timeout_s)
    except asyncio.TimeoutError as error:
        raise _LateBody from error


async def _whole_body(request: Request) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise RequestError(f"the body has more than {BODY_BYTES_MAX} bytes", stage=_READ_BODY)
        parts.append(part)
    return b"".join(parts)


def late_body_response() -> JSONResponse:
    """Return 408; what may still come of the body is not waited for."""
    told = {"type": "timeout", "code": "deadline", "message": "the body did not come in time"}
    return JSONResponse({"error": told}, 408, headers={"connection": "close"})


def refusal_response(refusal: Refusal) -> JSONResponse:
    """Return 429 or 503 with the reason and when to try again, if that can help."""
    again_s = refusal.retry_after_s
    headers = {} if again_s is None else {"retry-after": str(math.ceil(again_s))}
    return JSONResponse(refusal_document(refusal), refusal.status, headers=headers)


def _status_of(error: StoreError) -> int:
    if isinstance(error, UnknownInstanceError):
        return 404
    if error.stage == _READ_BODY:
        return 413
    if isinstance(error, RequestError):
        return 400
    return 503 if isinstance(error, LimitError) else 500


def _answered(handler: Handler) -> Handler:
    @functools.wraps(handler)
    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except StoreError as error:
            return JSONResponse(error_document(error), _status_of(error))
        except _LateBody:
            return late_body_response()
        except ClientDisconnect:
            return Response(status_code=400)  # nobody reads it

    return answer


def routes(core: ConductorCore) -> list[Route]:
    """Return the routes of the API; docs/conductor.md describes them."""

    async def document_of(request: Request) -> dict[str, Any]:
        return parse(await read_body(request, core.config.receive_timeout_s))

    async def schedule(request: Request) -> Response:
        document = await document_of(request)
        wanted, is_tracked = read_request(document, core.names, core.new_request_id())
        decided = core.schedule(wanted, is_tracked=is_tracked)
        if isinstance(decided, Refusal):
            return refusal_response(decided)
        return JSONResponse(decision_document(decided, core.names))

    async def report(request: Request) -> Response:
        report = read_report(await document_of(request))
        core.report(request.path_params["request_id"], report)
        return JSONResponse({})

    async def instances(request: Request) -> Response:
        return JSONResponse({"instances": core.instances()})

    async def register(request: Request) -> Response:
        found = core.register(read_registration(await document_of(request)))
        return JSONResponse(core.registration_document(found))

    async def heartbeat(request: Request) -> Response:
        name = request.path_params["name"]
        counts = core.heartbeat(name, await document_of(request))
        return JSONResponse({"counts": counts})

    async def drain(request: Request) -> Response:
        core.scheduler.drain(request.path_params["name"])
        return JSONResponse({})

    async def remove(request: Request) -> Response:
        core.remove(request.path_params["name"])
        return JSONResponse({})

    async def blocks(request: Request) -> Response:
        name = request.path_params["name"]
        result = core.block_events(name, await document_of(request))
        return JSONResponse({"result": result, "needs_snapshot": core.needs_snapshot(name)})

    async def taken_back(request: Request) -> Response:
        return JSONResponse({"taken_back": core.log.taken_back(TAKEN_BACK_MAX)})

    async def explain(request: Request) -> Response:
        return JSONResponse(core.explain(request.path_params["request_id"]))

    table: list[tuple[str, Handler, str]] = [
        ("/v1/schedule", schedule, "POST"),
        ("/v1/requests/{request_id:path}/report", report, "POST"),
        ("/v1/instances", instances, "GET"),
        ("/v1/instances", register, "POST"),
        ("/v1/instances/{name}/heartbeat", heartbeat, "POST"),
        ("/v1/instances/{name}/drain", drain, "POST"),
        ("/v1/instances/{name}/blocks", blocks, "POST"),
        ("/v1/instances/{name}", remove, "DELETE"),
        ("/v1/decisions/{request_id:path}", explain, "GET"),
        ("/v1/taken-back", taken_back, "GET"),
    ]
    return [Route(path, _answered(handler), methods=[method]) for path, handler, method in table]
