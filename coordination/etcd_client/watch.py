"""A watch: every change from a revision on, each once, whatever happens to members."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

import grpc

from mooncake_store.coordination.etcd_client.endpoints import (
    ATTEMPT_TIMEOUT_S,
    Endpoint,
    Endpoints,
    Method,
    error_of,
    is_stale_token,
)
from mooncake_store.coordination.etcd_client.keys import entry_of
from mooncake_store.coordination.etcd_client.store import CompactedError, Entry, Event
from mooncake_store.errors import AccessRefusedError, UnavailableError
from mooncake_store.protocol import etcd_pb2 as pb

__all__ = ["Watch"]

SILENCE_S = 2.0
"""Without a word for so long the member is asked whether it is there ..."""
PROGRESS_TIMEOUT_S = 1.5
"""... and has so long to answer; then another one is asked for the rest."""

_PAUSE_S = 0.1  # before a new stream, when the last one ended at once
_REFUSALS_MAX = 3  # in a row: a token may be stale, a password is not

_WATCH = Method(
    "/etcdserverpb.Watch/Watch",
    pb.WatchRequest.SerializeToString,
    pb.WatchResponse.FromString,
)


class _Broken(Exception):
    """This stream is of no use any more."""


class Watch:
    """Changes of a range of keys.

    Args:
        endpoints: Where to ask.
        key: The key, or the first of the range.
        end: Of the range (excluded); empty: the key alone.
        from_revision: Above 0.
    """

    def __init__(self, endpoints: Endpoints, key: bytes, end: bytes, from_revision: int) -> None:
        self._endpoints = endpoints
        self._key = key
        self._end = end
        self._next = from_revision  # only raised by complete responses with events
        self._refusals = 0

    async def changes(self) -> AsyncGenerator[tuple[Event, ...], None]:
        """Yield changes for ever, over as many streams as it takes."""
        while True:
            endpoint = self._endpoints.current
            stream = self._stream(endpoint)
            try:
                async for events in stream:
                    yield events
            except _Broken:
                pass
            finally:
                await stream.aclose()
            self._endpoints.leave(endpoint)
            await asyncio.sleep(_PAUSE_S)

    async def _stream(self, endpoint: Endpoint) -> AsyncGenerator[tuple[Event, ...], None]:
        """Yield changes until this stream breaks."""
        metadata: tuple[tuple[str, str], ...] = ()
        try:
            metadata = await self._endpoints.tokens.metadata(endpoint)
            # Without a quorum etcd ends such a stream; others stay silent.
            call = endpoint.stream(_WATCH)(metadata=(*metadata, ("hasleader", "true")))
        except grpc.aio.AioRpcError as error:
            raise self._broken(error, endpoint, metadata) from error
        reading: asyncio.Future[Any] | None = None
        try:
            await self._write(call, self._create(), endpoint, metadata)
            reading = asyncio.ensure_future(call.read())
            parts: list[Event] = []
            is_asked = False
            while True:
                # `wait` leaves the read alone. To cancel a read would cancel the whole call, and
                # whoever awaits it would be told nothing but CancelledError.
                patience_s = PROGRESS_TIMEOUT_S if is_asked else SILENCE_S
                await asyncio.wait([reading], timeout=patience_s)
                if not reading.done():
                    if is_asked:
                        raise _Broken
                    is_asked = True
                    progress = pb.WatchRequest(progress=pb.WatchProgressRequest())
                    await self._write(call, progress, endpoint, metadata)
                    continue
                response = self._result(reading, endpoint, metadata)
                reading = asyncio.ensure_future(call.read())
                is_asked = False
                self._check(response, endpoint, metadata)
                parts += map(_event_of, response.events)
                if response.fragment:
                    continue  # nothing counts before the last part is there
                events = tuple(each for each in parts if each.entry.mod_revision >= self._next)
                parts.clear()
                if events:
                    # Never the header's revision: what it names may not have been sent yet.
                    self._next = events[-1].entry.mod_revision + 1
                    yield events
        finally:
            call.cancel()
            if reading is not None:
                with contextlib.suppress(asyncio.CancelledError, grpc.aio.AioRpcError):
                    await asyncio.wait([reading])
                    reading.exception()

    def _create(self) -> pb.WatchRequest:
        return pb.WatchRequest(
            create=pb.WatchCreateRequest(
                key=self._key, range_end=self._end, start_revision=self._next, fragment=True
            )
        )

    async def _write(
        self, call: Any, request: pb.WatchRequest, endpoint: Endpoint, metadata: Any
    ) -> None:
        """Write within a bounded time: a new connection to a frozen member never becomes one."""
        writing = asyncio.ensure_future(call.write(request))
        try:
            await asyncio.wait([writing], timeout=ATTEMPT_TIMEOUT_S)
        finally:
            if not writing.done():
                call.cancel()
                await asyncio.wait([writing])
        self._result(writing, endpoint, metadata)

    def _result(self, done: asyncio.Future[Any], endpoint: Endpoint, metadata: Any) -> Any:
        if done.cancelled():
            raise _Broken
        try:
            result = done.result()
        except grpc.aio.AioRpcError as error:
            raise self._broken(error, endpoint, metadata) from error
        except asyncio.InvalidStateError as error:
            raise _Broken from error
        if result is grpc.aio.EOF:
            raise _Broken
        return result

    def _broken(self, error: grpc.aio.AioRpcError, endpoint: Endpoint, metadata: Any) -> Exception:
        if is_stale_token(error):
            return self._refused(error.details() or "", endpoint, metadata)
        found = error_of(error, endpoint.address)
        return _Broken() if isinstance(found, UnavailableError) else found

    def _refused(self, reason: str, endpoint: Endpoint, metadata: Any) -> Exception:
        self._refusals += 1
        if self._refusals < _REFUSALS_MAX and self._endpoints.tokens.forget(metadata):
            return _Broken()
        return AccessRefusedError(
            f"etcd refuses a watch: {reason}", node=f"etcd {endpoint.address}"
        )

    def _check(self, response: pb.WatchResponse, endpoint: Endpoint, metadata: Any) -> None:
        if response.compact_revision:
            raise CompactedError(response.compact_revision)
        if response.canceled:
            if "permission denied" in response.cancel_reason or "token" in response.cancel_reason:
                raise self._refused(response.cancel_reason, endpoint, metadata)
            raise _Broken
        self._refusals = 0


def _event_of(event: pb.Event) -> Event:
    entry: Entry = entry_of(event.kv)
    return Event(entry, event.kind == pb.Event.KIND_DELETE)
