"""How many calls of gRPC are under way at a time, and how long their messages may take."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

import grpc

from mooncake_store.serving.grpc_endings import abort, refuse

__all__ = ["HEALTH", "TOO_MANY_CALLS", "Gate"]

TOO_MANY_CALLS = "too_many_calls"
"""The `reason` in the trailing metadata of a call that found no room."""

HEALTH = "grpc.health.v1.Health"
"""The service by which probes ask."""

_RETRY_S = 1.0
_WATCHES_MAX = 32

Context = Any
Handler = Any  # grpc's handlers have no types that a checker could know
Enter = Callable[[Context], AbstractAsyncContextManager[None]]


class _Room:
    """Room for so many calls at a time."""

    def __init__(self, most: int, doing: str) -> None:
        self.most = most
        self.doing = doing
        self.taken = 0


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[misc, no-any-unimported, unused-ignore]
    """Lets so many calls in at a time; the others are told so at once, with their message unread.

    A call counts from its head on: a caller that opens calls and sends nothing takes up room, and
    for `receive_s` only.  For that, calls of one message are served as if there could be more: the
    handler of a single message begins when that has arrived, and till then nobody looks at the
    clock.  Streams of messages take what time they take.

    Health is asked beside the others, as who is busy is well: each Check is let in, and ends within
    `receive_s`; those that watch, who stay, have room for 32 of their own.

    Args:
        calls_max: At a time.
        receive_s: What a message may take to arrive.

    Attributes:
        calls_max: As given.
        refused: How many found no room.
    """

    def __init__(self, calls_max: int, receive_s: float) -> None:
        self.calls_max = calls_max
        self._receive_s = receive_s
        self.refused = 0
        self._calls = _Room(calls_max, "are under way")
        self._watches = _Room(_WATCHES_MAX, "watch health")
        self._enter: Enter = partial(self._take, self._calls)
        self._enters: dict[str, Enter] = {
            f"/{HEALTH}/Check": self._let_in,
            f"/{HEALTH}/Watch": partial(self._take, self._watches),
        }

    @property
    def calls(self) -> int:
        """Under way, those of health not among them."""
        return self._calls.taken

    @property
    def watches(self) -> int:
        """That watch health."""
        return self._watches.taken

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Handler]], handler_call_details: Any
    ) -> Handler:
        """Return the handler behind the gate."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        coders = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        enter = self._enters.get(handler_call_details.method, self._enter)
        is_single = not handler.request_streaming
        if handler.response_streaming:
            serve = handler.unary_stream if is_single else handler.stream_stream
            behind = self._many(enter, serve, is_single)
            return grpc.stream_stream_rpc_method_handler(behind, **coders)
        serve = handler.unary_unary if is_single else handler.stream_unary
        return grpc.stream_unary_rpc_method_handler(self._one(enter, serve, is_single), **coders)

    def _one(
        self, enter: Enter, serve: Callable[[Any, Context], Awaitable[Any]], is_single: bool
    ) -> Any:
        async def behind(messages: AsyncIterator[Any], context: Context) -> Any:
            async with enter(context):
                asked = await self._receive(messages, context) if is_single else messages
                return await serve(asked, context)

        return behind

    def _many(
        self, enter: Enter, serve: Callable[[Any, Context], AsyncIterator[Any]], is_single: bool
    ) -> Any:
        async def behind(messages: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
            async with enter(context):
                asked = await self._receive(messages, context) if is_single else messages
                async for answer in serve(asked, context):
                    yield answer

        return behind

    @contextlib.asynccontextmanager
    async def _take(self, room: _Room, context: Context) -> AsyncGenerator[None, None]:
        if room.taken >= room.most:
            self.refused += 1
            message = f"{room.taken} calls {room.doing}, as many as there may be"
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            await refuse(context, code, TOO_MANY_CALLS, message, _RETRY_S)
        room.taken += 1
        try:
            yield
        finally:
            room.taken -= 1

    @contextlib.asynccontextmanager
    async def _let_in(self, context: Context) -> AsyncGenerator[None, None]:
        yield

    async def _receive(self, messages: AsyncIterator[Any], context: Context) -> Any:
        try:
            return await asyncio.wait_for(messages.__anext__(), self._receive_s)
        except asyncio.TimeoutError:
            await abort(
                context,
                grpc.StatusCode.DEADLINE_EXCEEDED,
                f"the message did not arrive within {self._receive_s:g} s",
            )
        except StopAsyncIteration:
            await abort(context, grpc.StatusCode.INVALID_ARGUMENT, "there is no message")
