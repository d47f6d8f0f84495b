"""One completion on its way through the proxy: from its first byte to its last."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from mooncake_store.conductor.service.completion import Completion, OutputCount
from mooncake_store.conductor.service.core import ConductorCore
from mooncake_store.conductor.service.decision import Decision, Refusal
from mooncake_store.conductor.service.documents import Report, error_document
from mooncake_store.conductor.service.http_api import late_body_response, refusal_response
from mooncake_store.conductor.service.upstream import Head, Headers, Upstream
from mooncake_store.errors import ProtocolError, RequestError, StoreError, UnavailableError
from mooncake_store.logs import log_event

__all__ = ["Exchange", "ProxyCounts", "passed_headers"]

logger = logging.getLogger("mooncake_store.conductor")

BODY_BYTES_MAX = 16 << 20
"""Of a request, and of a prefill instance's answer."""
BODIES_BYTES_MAX = 1 << 30
"""Of all requests that are held at a time."""
CLIENT_GONE = 499
"""Counted for a client that did not wait; nobody is sent it."""

_TRIES = 3
_CLEAN_UP_S = 1.0
_REQUEST_ID_CHARS_MAX = 128
_PASSED = frozenset((b"authorization", b"accept"))


@dataclass(slots=True)
class ProxyCounts:
    """What a proxy counts.

    Attributes:
        statuses: Answers to completions by HTTP status.
        retries: Requests that were decided again because their instance was dead.
        held_bytes: Of bodies at this moment.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    retries: int = 0
    held_bytes: int = 0


def passed_headers(request: Request) -> list[tuple[bytes, bytes]]:
    """Return the headers that an instance gets too: who asks, and in what form."""
    found = [(name, value) for name, value in request.headers.raw if name in _PASSED]
    return [(b"content-type", b"application/json"), *found]


class Exchange(Response):
    """The answer to a completion; being sent, it does all of the work.

    One task talks to the instances, another one notices that the client is gone or that time is up
    and ends the first, whose connections and whose place in the schedule go with it.

    Args:
        core: Decides.
        request: Of the client; its body is not read yet.
        counts: Of the proxy.
    """

    def __init__(self, core: ConductorCore, request: Request, counts: ProxyCounts) -> None:
        self._core = core
        self._request = request
        self._counts = counts
        self._held_bytes = 0
        self._head: Head | None = None  # of the answer that has begun
        self.background = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request."""
        try:
            status = await self._served(scope, receive, send)
        finally:
            self._counts.held_bytes -= self._held_bytes
        self._counts.statuses[status] += 1

    async def _served(self, scope: Scope, receive: Receive, send: Send) -> int:
        """Answer, whatever happens; return the status."""
        try:
            left_s = self._deadline_s()
            until_s = self._core.now_s() + left_s
            body_s = min(left_s, self._core.config.receive_timeout_s)
            completion = Completion(await asyncio.wait_for(self._body(), body_s))
        except ClientDisconnect:
            return CLIENT_GONE
        except asyncio.TimeoutError:
            is_late = self._core.now_s() >= until_s
            refused = _timed_out() if is_late else late_body_response()
            return await self._refuse(refused, scope, receive, send)
        except _TooMuch as error:
            return await self._refuse(error.response, scope, receive, send)
        except RequestError as error:
            refused = JSONResponse(error_document(error), 400)
            return await self._refuse(refused, scope, receive, send)
        work = asyncio.create_task(self._answer(completion, scope, receive, send))
        gone = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait(
                {work, gone},
                timeout=max(until_s - self._core.now_s(), 0.0),
                return_when=asyncio.FIRST_COMPLETED,
            )
            is_done, is_gone = work.done(), gone.done()
        finally:
            work.cancel()
            gone.cancel()
            await asyncio.wait({work, gone}, timeout=_CLEAN_UP_S)
        if not is_done:
            if is_gone:
                return self._head.status if self._head is not None else CLIENT_GONE
            return await self._broken_off(_timed_out(), scope, receive, send)
        try:
            return work.result()
        except RequestError as error:
            failed = JSONResponse(error_document(error), 400)
        except StoreError as error:
            failed = JSONResponse(error_document(error), 502)
        return await self._broken_off(failed, scope, receive, send)

    async def _refuse(self, response: Response, scope: Scope, receive: Receive, send: Send) -> int:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(response(scope, receive, send), _CLEAN_UP_S)
        return response.status_code

    async def _broken_off(
        self, response: JSONResponse, scope: Scope, receive: Receive, send: Send
    ) -> int:
        """Say why there is no answer, or no more of it."""
        head = self._head
        if head is None:
            return await self._refuse(response, scope, receive, send)
        if head.is_event_stream:
            told = b"data: " + bytes(response.body) + b"\n\n"
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(
                    send({"type": "http.response.body", "body": told}), _CLEAN_UP_S
                )
        # Of anything else the promised length is not reached: the server closes the connection,
        # and the client notices.
        return head.status

    def _deadline_s(self) -> float:
        most_s = self._core.config.request_s_max
        text = self._request.headers.get("x-request-timeout")
        if text is None:
            return most_s
        try:
            wanted_s = float(text)
        except ValueError as error:
            raise RequestError("x-request-timeout is a number of seconds", cause=error) from error
        if not wanted_s > 0:
            raise RequestError("x-request-timeout is above 0")
        return min(wanted_s, most_s)

    async def _body(self) -> bytes:
        found = bytearray()
        async for part in self._request.stream():
            if len(found) + len(part) > BODY_BYTES_MAX:
                raise _TooMuch(413, "too_large", f"a body has at most {BODY_BYTES_MAX} bytes")
            if self._counts.held_bytes + len(part) > BODIES_BYTES_MAX:
                raise _TooMuch(503, "too_many_bytes", "the requests under way fill the proxy")
            self._counts.held_bytes += len(part)
            self._held_bytes += len(part)
            found += part
        return bytes(found)

    # ---- the work --------------------------------------------------------------------------------

    async def _answer(
        self, completion: Completion, scope: Scope, receive: Receive, send: Send
    ) -> int:
        """Have it answered by an instance that is alive; return the status."""
        core, failure = self._core, None
        request_id = self._request.headers.get("x-request-id", "")[:_REQUEST_ID_CHARS_MAX]
        if not request_id or request_id in core.scheduler.flights:
            request_id = core.new_request_id()  # one of two equal names would end the other's
        wanted = completion.request(request_id, core.names, core.scheduler.answers.output)
        for _ in range(_TRIES):
            decided = core.schedule(wanted, is_tracked=True)
            if isinstance(decided, Refusal):
                if failure is not None:
                    raise failure
                response = refusal_response(decided)
                await response(scope, receive, send)
                return response.status_code
            if failure is not None:
                self._counts.retries += 1
            count, outcome = OutputCount(), "failed"
            try:
                status = await self._halves(completion, decided, count, send)
                outcome = "finished" if status == 200 else "failed"
                return status
            except UnavailableError as error:
                if self._head is not None:
                    raise
                failure = error
                log_event(
                    logger, logging.WARNING, "instance_failed", request=request_id, reason=error
                )
            finally:
                self._report(decided, outcome, count.tokens)
        assert failure is not None
        raise failure

    def _report(self, decided: Decision, event: str, output_tokens: int | None = None) -> None:
        with contextlib.suppress(StoreError):  # its instance is gone, or it was given up
            self._core.report(decided.request_id, Report(event, output_tokens))

    async def _halves(
        self, completion: Completion, decided: Decision, count: OutputCount, send: Send
    ) -> int:
        """Have the prompt computed and the answer made; return the status."""
        headers = [
            *passed_headers(self._request),
            (b"x-request-id", decided.request_id.encode("latin-1", "replace")),
        ]
        body = completion.body
        if decided.prefill != decided.decode:
            with Upstream(decided.prefill, decided.prefill_url) as upstream:
                head = await self._asked(
                    upstream, decided.prefill, completion.first_half(), headers
                )
                answered = await upstream.whole_body(BODY_BYTES_MAX)
            if head.status != 200:
                return await self._pass_on(head, _once(answered), decided, count, send)
            self._report(decided, "prefilled")
            try:
                body = completion.second_half(answered)
            except RequestError as error:
                raise ProtocolError(
                    f"{decided.prefill} answered no JSON object", node=decided.prefill, cause=error
                ) from error
        with Upstream(decided.decode, decided.decode_url) as upstream:
            head = await self._asked(upstream, decided.decode, body, headers)
            return await self._pass_on(head, upstream.body(), decided, count, send)

    async def _asked(self, upstream: Upstream, name: str, body: bytes, headers: Headers) -> Head:
        try:
            return await upstream.ask("POST", self._request.url.path, body, headers)
        except UnavailableError:
            self._core.suspect(name)  # it gets nothing until it is heard of again
            raise

    async def _pass_on(
        self,
        head: Head,
        parts: AsyncIterator[bytes],
        decided: Decision,
        count: OutputCount,
        send: Send,
    ) -> int:
        """Send an answer as it comes; not even its head before there is something of it."""
        part = await anext(parts, None)
        if head.status == 200 and decided.prefill == decided.decode:
            self._report(decided, "prefilled")
        self._head = head
        await send(
            {
                "type": "http.response.start",
                "status": head.status,
                "headers": [
                    *head.headers,
                    (b"x-request-id", decided.request_id.encode("latin-1", "replace")),
                ],
            }
        )
        while part is not None:
            count.add(part)
            await send({"type": "http.response.body", "body": part, "more_body": True})
            part = await anext(parts, None)
        await send({"type": "http.response.body", "body": b""})
        return head.status


class _TooMuch(Exception):
    """More bytes than may be held."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        told = {"error": {"type": "invalid_request", "code": code, "message": message}}
        headers = {"retry-after": "1"} if status == 503 else {"connection": "close"}
        self.response = JSONResponse(told, status, headers=headers)


def _timed_out() -> JSONResponse:
    told = {"type": "timeout", "code": "deadline", "message": "not answered within the deadline"}
    return JSONResponse({"error": told}, 504)


async def _once(part: bytes) -> AsyncIterator[bytes]:
    yield part


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
