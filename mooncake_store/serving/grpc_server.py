"""A gRPC server with health, and how failures of ours become statuses of gRPC's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, NoReturn

import grpc

from mooncake_store.errors import StoreError
from mooncake_store.protocol.grpc_status import details_of, grpc_code
from mooncake_store.serving import grpc_endings
from mooncake_store.serving.connections import GRPC_CONNECTIONS_MAX
from mooncake_store.serving.grpc_gate import HEALTH, Gate

__all__ = ["GrpcServer", "HealthService", "abort", "failures", "time_left_s"]

TIMEOUT_S = 5.0
"""Deadline of a call whose caller gave none."""

_CALLS_MAX = 1024
_RECEIVE_S = 10.0
_CALLS_BESIDE = 64  # of a connection: those that are refused, and those of health
_IDLE_MS = 300_000  # a connection without calls is closed: it keeps others out; callers open anew
_KEEPALIVE_MS = 60_000  # how a peer is found out that went away without a word


class GrpcServer:
    """Serves services and `grpc.health.v1.Health`.

    Args:
        add_services: Adds them to the server that it is given.
        names: Full names of the services, which health knows.
        is_ready: Whether they can serve.
        gate: How many calls may be under way; None: 1024, whose message comes within 10 s.
        connections_max: At a time; more are closed as they come.
        message_bytes_max: Largest message accepted.
    """

    def __init__(
        self,
        add_services: Callable[[grpc.aio.Server], None],
        names: Iterable[str],
        is_ready: Callable[[], bool],
        *,
        gate: Gate | None = None,
        connections_max: int = GRPC_CONNECTIONS_MAX,
        message_bytes_max: int = 16 << 20,
    ) -> None:
        gate = gate or Gate(_CALLS_MAX, _RECEIVE_S)
        self._server = grpc.aio.server(
            interceptors=(gate,),
            options=[
                ("grpc.so_reuseport", 1),  # the port is held by `ports.reserve` until we have it
                ("grpc.max_receive_message_length", message_bytes_max),
                ("grpc.max_send_message_length", 64 << 20),
                # Above the gate's bound: what is beyond this waits in its client, untold.
                ("grpc.max_concurrent_streams", gate.calls_max + _CALLS_BESIDE),
                ("grpc.max_allowed_incoming_connections", connections_max),
                ("grpc.max_connection_idle_ms", _IDLE_MS),
                ("grpc.keepalive_time_ms", _KEEPALIVE_MS),
            ],
        )
        add_services(self._server)
        self._server.add_generic_rpc_handlers((HealthService(names, is_ready).handler(),))

    async def start(self, address: str, port: int) -> None:
        """Serve from now on.

        Raises:
            RuntimeError: The port cannot be bound.
        """
        host = f"[{address}]" if ":" in address else address
        self._server.add_insecure_port(f"{host}:{port}")
        await self._server.start()

    async def stop(self, timeout_s: float) -> None:
        """Stop; calls under way have this long to finish."""
        await self._server.stop(timeout_s)


class HealthService:
    """`grpc.health.v1.Health`, which is two messages of one field: no package is needed for it."""

    NAME = HEALTH
    _SERVING, _NOT_SERVING, _SERVICE_UNKNOWN = b"\x08\x01", b"\x08\x02", b"\x08\x03"

    def __init__(self, names: Iterable[str], is_ready: Callable[[], bool]) -> None:
        self._known = ("", *names)
        self._is_ready = is_ready

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a gRPC server is given to serve it."""
        return grpc.method_handlers_generic_handler(
            self.NAME,
            {
                "Check": grpc.unary_unary_rpc_method_handler(self._check),
                "Watch": grpc.unary_stream_rpc_method_handler(self._watch),
            },
        )

    def _state(self, request: bytes) -> bytes:
        if _health_service_name(request) not in self._known:
            return self._SERVICE_UNKNOWN
        return self._SERVING if self._is_ready() else self._NOT_SERVING

    async def _check(
        self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> bytes:
        state = self._state(request)
        if state == self._SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return state

    async def _watch(
        self, request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        told = b""
        while True:
            state = self._state(request)
            if state != told:
                told = state
                yield state
            await asyncio.sleep(0.5)


def _health_service_name(request: bytes) -> str | None:
    """Read HealthCheckRequest { string service = 1; }; None: something else is in it."""
    if not request:
        return ""
    if len(request) < 2 or request[0] != 0x0A or request[1] != len(request) - 2:
        return None
    return request[2:].decode(errors="replace")


class failures:
    """Around a call's work: a StoreError ends the call with its code and sentence."""

    def __init__(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        self._context = context

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, StoreError):
            await abort(self._context, error)


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: StoreError) -> NoReturn:
    """End a call with what an exception says."""
    await grpc_endings.abort(context, grpc_code(error), details_of(error))


def time_left_s(context: grpc.aio.ServicerContext[Any, Any]) -> float:
    """Return how long the caller still waits."""
    left_s = context.time_remaining()
    return TIMEOUT_S if left_s is None else min(max(left_s, 0.001), 3600.0)
