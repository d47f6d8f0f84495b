"""The store server's gRPC service: objects for clients without the engine, and batch transfers.

Objects go through a client of this process, so that every rule of puts and gets has one
implementation; it is opened with the first call that needs it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc

from mooncake_store.errors import (
    ObjectNotFoundError,
    ObjectTooLargeError,
    RequestError,
    UnavailableError,
)
from mooncake_store.protocol import store_pb2, store_pb2_grpc
from mooncake_store.serving.grpc_server import failures, time_left_s
from mooncake_store.store.objects import ObjectAccess, OpenObjects
from mooncake_store.store.transfers import Transfers
from mooncake_store.transfer_engine.engine import TransferEngine

__all__ = ["SERVICE_NAME", "StoreGrpcService"]

SERVICE_NAME = "mooncake_store.v1.Store"
_CHUNK_BYTES = 2 << 20
_THREADS = 8

ResultT = TypeVar("ResultT")


class _ByteBudget:
    """Bytes that all calls together may hold; a call waits for its share."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = self._left = size_bytes
        self._changed = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def share(self, size_bytes: int) -> AsyncIterator[None]:
        if size_bytes > self._size_bytes:
            raise ObjectTooLargeError(
                f"an object of {size_bytes} bytes is larger than gRPC carries here "
                f"({self._size_bytes} bytes)",
                hint="use the SDK, or raise grpc_object_size of this server",
            )
        async with self._changed:
            await self._changed.wait_for(lambda: self._left >= size_bytes)
            self._left -= size_bytes
        try:
            yield
        finally:
            async with self._changed:
                self._left += size_bytes
                self._changed.notify_all()


class StoreGrpcService(Transfers, store_pb2_grpc.StoreServicer):
    """Translates between protobuf and the client and the engine of this process.

    Args:
        engine: The server's.
        open_objects: Makes the client; None: this process has none, and objects are not served.
        master: What the client is told.
        object_bytes_max: Largest object, and what all calls hold together.
    """

    def __init__(
        self,
        engine: TransferEngine,
        open_objects: OpenObjects | None,
        master: Callable[[], str],
        object_bytes_max: int,
    ) -> None:
        super().__init__(engine, object_bytes_max)
        self._open_objects = open_objects
        self._master = master
        self._objects: ObjectAccess | None = None
        self._opening = asyncio.Lock()
        self._budget = _ByteBudget(object_bytes_max)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grpc-call")

    async def aclose(self) -> None:
        """Close the client; calls have ended."""
        super().close()
        objects, self._objects = self._objects, None
        if objects is not None:
            await asyncio.to_thread(objects.close)
        self._threads.shutdown(wait=False)

    async def _client(self) -> ObjectAccess:
        async with self._opening:
            if self._objects is None:
                if self._open_objects is None:
                    raise UnavailableError(
                        "this server was started without a client: it serves no objects over gRPC"
                    )
                self._objects = await self._in_thread(self._open_objects, self._master())
            return self._objects

    async def _in_thread(
        self, function: Callable[..., ResultT], *args: Any, **kwargs: Any
    ) -> ResultT:
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, lambda: function(*args, **kwargs)
        )

    # ---- objects ----

    async def Put(
        self,
        request_iterator: AsyncIterator[store_pb2.PutChunk],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> store_pb2.PutResult:
        async with failures(context):
            chunks = aiter(request_iterator)
            first = await anext(chunks, None)
            if first is None or first.WhichOneof("part") != "header":
                raise RequestError("a put begins with a PutHeader")
            header = first.header
            async with self._budget.share(header.size_bytes):
                value = await _collect(chunks, header.size_bytes)
                return await self._put(header, value, time_left_s(context))

    async def _put(
        self, header: store_pb2.PutHeader, value: bytearray, left_s: float
    ) -> store_pb2.PutResult:
        client = await self._client()
        options: dict[str, Any] = {
            "replicas": header.replica_count or None,
            "ttl_s": header.ttl_ms / 1e3 if header.ttl_ms else None,
            "hard_pin": header.hard_pin,
            "soft_pin": header.soft_pin,
            "timeout_s": left_s,
        }
        if header.upsert:
            if header.parent:
                raise RequestError("an upsert cannot name a parent")
            is_stored = await self._in_thread(client.upsert, header.key, value, **options)
        else:
            options["parent"] = header.parent or None
            is_stored = await self._in_thread(client.put, header.key, value, **options)
        count = 1 if is_stored else 0
        if header.replica_count > 1 or not is_stored:
            found = await self._in_thread(client.stat, header.key, timeout_s=left_s)
            count = len(found.replicas) if found is not None else 0
        return store_pb2.PutResult(stored=is_stored, replica_count=count)

    async def Get(
        self, request: store_pb2.GetObjectRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[store_pb2.GetChunk]:
        async with failures(context):
            client = await self._client()
            left_s = time_left_s(context)
            # Its size first: what a call may hold in memory is bounded.
            found = await self._in_thread(client.stat, request.key, timeout_s=left_s)
            if found is None:
                raise ObjectNotFoundError("there is no such object", key=request.key)
            async with self._budget.share(found.size_bytes):
                value = await self._in_thread(client.get, request.key, timeout_s=left_s)
                if value is None:
                    raise ObjectNotFoundError("the object left while it was read", key=request.key)
                async for chunk in _cut(request, value):
                    yield chunk

    async def ChangeReplica(
        self,
        request: store_pb2.ChangeObjectReplicaRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> store_pb2.ChangeObjectReplicaResponse:
        async with failures(context):
            client = await self._client()
            left_s = time_left_s(context)
            members = await self._in_thread(client.members, timeout_s=left_s)
            numbers = {member.name: member.server for member in members}

            def number_of(node: str) -> int | None:
                if not node:
                    return None
                if node not in numbers:
                    raise RequestError(f"no store server is named {node!r}", node=node)
                return numbers[node]

            await self._in_thread(
                client.change_replica,
                request.key,
                request.replica_count,
                target=number_of(request.target_node),
                source=number_of(request.source_node),
                timeout_s=left_s,
            )
            found = await self._in_thread(client.stat, request.key, timeout_s=left_s)
            nodes = [] if found is None else [replica.node for replica in found.replicas]
            return store_pb2.ChangeObjectReplicaResponse(nodes=nodes)


async def _collect(chunks: AsyncIterator[store_pb2.PutChunk], size_bytes: int) -> bytearray:
    """Return the bytes of a put's stream, which must be as many as announced."""
    value = bytearray(size_bytes)
    filled = 0
    async for chunk in chunks:
        if chunk.WhichOneof("part") != "data":
            raise RequestError("after its PutHeader a put has data only")
        end = filled + len(chunk.data)
        if end > size_bytes:
            raise RequestError(f"the put announced {size_bytes} bytes and sent more")
        value[filled:end] = chunk.data
        filled = end
    if filled != size_bytes:
        raise RequestError(f"the put announced {size_bytes} bytes and sent {filled}")
    return value


async def _cut(
    request: store_pb2.GetObjectRequest, value: bytes
) -> AsyncIterator[store_pb2.GetChunk]:
    if request.offset > len(value):
        raise RequestError(f"offset {request.offset} lies behind the object's {len(value)} bytes")
    end = len(value)
    if request.length:
        end = min(end, request.offset + request.length)
    header = store_pb2.GetHeader(size_bytes=len(value), length=end - request.offset)
    yield store_pb2.GetChunk(header=header)
    for at in range(request.offset, end, _CHUNK_BYTES):
        yield store_pb2.GetChunk(data=value[at : min(end, at + _CHUNK_BYTES)])
