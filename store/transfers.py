"""The batch interface of the Mooncake paper over gRPC, carried out by the server's own engine.

The memory that transfers may name is allocated here: pages of the pool belong to objects, whose
bytes never change, so they cannot be registered.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from mooncake_store.errors import LimitError, NotRegisteredError, RequestError, Status
from mooncake_store.errors import error_from_status as error_of
from mooncake_store.protocol import store_pb2
from mooncake_store.serving.grpc_server import failures, time_left_s
from mooncake_store.transfer_engine.engine import (
    Opcode,
    Segment,
    SharedMemory,
    TransferEngine,
    TransferRequest,
    TransferState,
)

__all__ = ["Transfers"]

_TIMEOUT_MS = 60_000
_BATCH_REQUESTS_MAX = 65_536
_MEMORIES_MAX = 1024

_STATES = {
    TransferState.WAITING: store_pb2.TRANSFER_STATE_WAITING,
    TransferState.PENDING: store_pb2.TRANSFER_STATE_PENDING,
    TransferState.COMPLETED: store_pb2.TRANSFER_STATE_COMPLETED,
    TransferState.FAILED: store_pb2.TRANSFER_STATE_FAILED,
    TransferState.TIMED_OUT: store_pb2.TRANSFER_STATE_TIMED_OUT,
    TransferState.CANCELLED: store_pb2.TRANSFER_STATE_CANCELLED,
}


class Transfers:
    """The methods of the gRPC service that move bytes between registered memories.

    Args:
        engine: The server's.
        size_bytes_max: Memory that callers may allocate in all.
    """

    def __init__(self, engine: TransferEngine, size_bytes_max: int) -> None:
        self._engine = engine
        self._size_bytes_left = size_bytes_max
        self._memories: dict[int, SharedMemory] = {}
        self._segments: dict[int, Segment] = {}

    def close(self) -> None:
        """Give back what callers have left; the engine's end cancels their transfers."""
        self._memories.clear()
        self._segments.clear()

    # ---- memory ----

    async def RegisterLocalMemory(
        self,
        request: store_pb2.RegisterLocalMemoryRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> store_pb2.RegisterLocalMemoryResponse:
        async with failures(context):
            if request.length == 0:
                raise RequestError("memory of 0 bytes cannot be registered")
            if request.address != 0:
                # Nothing else of this process is a caller's to give away.
                raise NotRegisteredError(
                    f"{request.length} bytes at {request.address:#x} were not allocated here: "
                    "register with address 0 and use the address that is returned"
                )
            if len(self._memories) >= _MEMORIES_MAX or request.length > self._size_bytes_left:
                raise LimitError(
                    f"{self._size_bytes_left} bytes in at most "
                    f"{_MEMORIES_MAX - len(self._memories)} memories may still be registered"
                )
            memory = self._engine.allocate_shared(request.length)
            try:
                self._engine.register_local_memory(
                    memory.address, memory.length, location=request.location or "*"
                )
            except BaseException:
                memory.close()
                raise
            self._memories[memory.address] = memory
            self._size_bytes_left -= memory.length
            return store_pb2.RegisterLocalMemoryResponse(address=memory.address)

    async def UnregisterLocalMemory(
        self,
        request: store_pb2.UnregisterLocalMemoryRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> store_pb2.UnregisterLocalMemoryResponse:
        async with failures(context):
            memory = self._memories.get(request.address)
            if memory is None:
                raise NotRegisteredError(f"no registered memory begins at {request.address:#x}")
            try:
                memory.close()
            except RequestError as error:
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            del self._memories[request.address]
            self._size_bytes_left += memory.length
            return store_pb2.UnregisterLocalMemoryResponse()

    # ---- segments ----

    async def OpenSegment(
        self, request: store_pb2.OpenSegmentRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> store_pb2.OpenSegmentResponse:
        async with failures(context):
            segment: Segment = await asyncio.to_thread(
                self._engine.open_segment, request.name, timeout_s=time_left_s(context)
            )
            self._segments[segment.handle] = segment
            return store_pb2.OpenSegmentResponse(
                segment=segment.handle,
                regions=[
                    store_pb2.Region(address=region.address, length=region.length)
                    for region in segment.regions()
                ],
            )

    # ---- batches ----

    async def AllocateBatchId(
        self, request: store_pb2.AllocateBatchIdRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> store_pb2.AllocateBatchIdResponse:
        async with failures(context):
            if not 1 <= request.size <= _BATCH_REQUESTS_MAX:
                raise RequestError(f"a batch holds 1 to {_BATCH_REQUESTS_MAX} requests")
            return store_pb2.AllocateBatchIdResponse(
                batch=self._engine.allocate_batch_id(request.size)
            )

    async def SubmitTransfer(
        self, request: store_pb2.SubmitTransferRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> store_pb2.SubmitTransferResponse:
        async with failures(context):
            requests = [self._request_of(item) for item in request.requests]
            self._engine.submit_transfer(
                request.batch, requests, timeout_s=(request.timeout_ms or _TIMEOUT_MS) / 1e3
            )
            return store_pb2.SubmitTransferResponse()

    def _request_of(self, item: store_pb2.TransferRequest) -> TransferRequest:
        segment = self._segments.get(item.segment)
        if segment is None:
            raise NotRegisteredError(f"segment {item.segment} was not opened here")
        is_read = item.opcode == store_pb2.OPCODE_READ
        return TransferRequest(
            Opcode.READ if is_read else Opcode.WRITE,
            segment,
            item.local_address,
            item.remote_offset,
            item.length,
        )

    async def GetTransferStatus(
        self,
        request: store_pb2.GetTransferStatusRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> store_pb2.GetTransferStatusResponse:
        async with failures(context):
            found = self._engine.get_transfer_status(request.batch, request.index)
            message = ""
            if found.state.is_final and found.status != Status.OK:
                message = str(error_of(found.status))
            return store_pb2.GetTransferStatusResponse(
                state=_STATES[found.state], transferred_bytes=found.bytes, message=message
            )

    async def FreeBatchId(
        self, request: store_pb2.FreeBatchIdRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> store_pb2.FreeBatchIdResponse:
        async with failures(context):
            try:
                self._engine.free_batch_id(request.batch)
            except RequestError as error:
                if not error.retryable:
                    raise
                await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
            return store_pb2.FreeBatchIdResponse()
