"""Who is let in by a gRPC server whose calls are all taken."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from mooncake_store.serving import ports
from mooncake_store.serving.grpc_gate import Gate
from mooncake_store.serving.grpc_server import GrpcServer

TIMEOUT_S = 20.0
HOLD = "/test.Calls/Hold"
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
SERVING = b"\x08\x01"


@contextlib.asynccontextmanager
async def serving(gate: Gate) -> AsyncIterator[grpc.aio.Channel]:
    """A server whose calls last until they are cancelled, and a channel to it."""

    async def hold(request: bytes, context: Any) -> bytes:
        await asyncio.sleep(TIMEOUT_S)
        return request

    handler = grpc.method_handlers_generic_handler(
        "test.Calls", {"Hold": grpc.unary_unary_rpc_method_handler(hold)}
    )
    server = GrpcServer(
        lambda made: made.add_generic_rpc_handlers((handler,)), (), lambda: True, gate=gate
    )
    with ports.reserve("127.0.0.1", 0, "gRPC") as held:
        port = held.getsockname()[1]
        await server.start("127.0.0.1", port)
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(0)


async def until(count: int, gate: Gate, what: str) -> None:
    end_s = time.monotonic() + TIMEOUT_S
    while getattr(gate, what) != count:
        assert time.monotonic() < end_s
        await asyncio.sleep(0.005)


def test_a_call_too_many_is_refused_though_its_connection_has_all_the_others() -> None:
    async def run() -> None:
        gate = Gate(1024, TIMEOUT_S)
        async with serving(gate) as channel:
            hold = channel.unary_unary(HOLD)
            held = [hold(b"x") for _ in range(gate.calls_max)]
            await until(gate.calls_max, gate, "calls")
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await hold(b"x", timeout=TIMEOUT_S / 4)
            assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert gate.refused == 1
            for one in held:
                one.cancel()

    asyncio.run(run())


def test_health_is_told_while_all_calls_are_taken() -> None:
    async def run() -> None:
        gate = Gate(8, TIMEOUT_S)
        async with serving(gate) as channel:
            held = [channel.unary_unary(HOLD)(b"x") for _ in range(8)]
            await until(8, gate, "calls")
            check, watch = channel.unary_unary(CHECK), channel.unary_stream(WATCH)
            assert await check(b"", timeout=TIMEOUT_S) == SERVING
            watching = [watch(b"") for _ in range(32)]
            assert [await one.read() for one in watching] == [SERVING] * 32
            assert (gate.calls, gate.watches, gate.refused) == (8, 32, 0)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await watch(b"", timeout=TIMEOUT_S).read()
            assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            assert await check(b"", timeout=TIMEOUT_S) == SERVING
            for one in (*held, *watching):
                one.cancel()
            await until(0, gate, "calls")
            await until(0, gate, "watches")

    asyncio.run(run())


def test_a_check_without_a_message_ends() -> None:
    async def run() -> None:
        async with serving(Gate(8, 0.2)) as channel:
            silent = channel.stream_unary(CHECK)(timeout=TIMEOUT_S)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await silent
            assert raised.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
            assert "did not arrive within 0.2 s" in (raised.value.details() or "")

    asyncio.run(run())
