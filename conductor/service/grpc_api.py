"""The conductor's API over gRPC: the documents of HTTP as messages, by the same names.

A message becomes the document that the JSON of HTTP is read into, so there is one set of rules and
of messages about mistakes.
"""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from mooncake_store.conductor.service.core import ConductorCore
from mooncake_store.conductor.service.decision import Refusal
from mooncake_store.conductor.service.documents import (
    decision_document,
    read_registration,
    read_report,
    read_request,
)
from mooncake_store.protocol import conductor_pb2 as pb
from mooncake_store.protocol import conductor_pb2_grpc
from mooncake_store.serving.grpc_endings import refuse
from mooncake_store.serving.grpc_server import failures

__all__ = ["SERVICE_NAME", "ConductorGrpcService"]

SERVICE_NAME = "mooncake_store.conductor.v1.Conductor"

# protobuf's messages have no types that a checker could know.
Message = Any
Context = Any


class ConductorGrpcService(conductor_pb2_grpc.ConductorServicer):
    """Translates between messages and documents; in the loop that the core belongs to."""

    def __init__(self, core: ConductorCore) -> None:
        self._core = core

    async def Schedule(self, request: Message, context: Context) -> Message:
        """Decide about a request."""
        core = self._core
        async with failures(context):
            document = _document_of(request)
            wanted, is_tracked = read_request(document, core.names, core.new_request_id())
            decided = core.schedule(wanted, is_tracked=is_tracked)
            if isinstance(decided, Refusal):
                await _refuse(context, decided)
            return pb.ScheduleResponse(**decision_document(decided, core.names))

    async def Report(self, request: Message, context: Context) -> Message:
        """Take what became of a request."""
        async with failures(context):
            document = _document_of(request)
            name = document.pop("request_id", "")
            self._core.report(name, read_report(document))
            return pb.ReportResponse()

    async def Register(self, request: Message, context: Context) -> Message:
        """Let an instance be known."""
        async with failures(context):
            found = self._core.register(read_registration({"role": "", **_document_of(request)}))
            return pb.RegisterResponse(**self._core.registration_document(found))

    async def Heartbeat(self, request: Message, context: Context) -> Message:
        """Note that an instance lives."""
        async with failures(context):
            document = {"sequence": 0, **_document_of(request)}
            name = document.pop("name", "")
            return pb.HeartbeatResponse(counts=self._core.heartbeat(name, document))

    async def ReportBlocks(self, request: Message, context: Context) -> Message:
        """Follow what is on an instance's accelerator."""
        async with failures(context):
            document = {"epoch": 0, "events": [], **_document_of(request)}
            document.setdefault("sequence" if "snapshot" in document else "first", 0)
            name = document.pop("name", "")
            result = self._core.block_events(name, document)
            return pb.ReportBlocksResponse(
                result=f"BLOCKS_RESULT_{result.upper()}",
                needs_snapshot=self._core.needs_snapshot(name),
            )

    async def Drain(self, request: Message, context: Context) -> Message:
        """Let an instance get nothing new."""
        async with failures(context):
            self._core.scheduler.drain(request.name)
            return pb.DrainResponse()

    async def Forget(self, request: Message, context: Context) -> Message:
        """Forget an instance."""
        async with failures(context):
            self._core.remove(request.name)
            return pb.ForgetResponse()

    async def ListInstances(self, request: Message, context: Context) -> Message:
        """Name the instances."""
        return pb.ListInstancesResponse(
            instances=[
                pb.Instance(
                    **{
                        **one,
                        "role": f"ROLE_{one['role'].upper()}",
                        "state": f"INSTANCE_STATE_{one['state'].upper()}",
                    }
                )
                for one in self._core.instances()
            ]
        )

    async def Explain(self, request: Message, context: Context) -> Message:
        """Say why a request went where it went."""
        async with failures(context):
            return pb.ExplainResponse(**self._core.explain(request.request_id))


async def _refuse(context: Context, refusal: Refusal) -> NoReturn:
    code = grpc.StatusCode.UNAVAILABLE
    if refusal.status == 429:
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
    await refuse(context, code, refusal.reason, refusal.message, refusal.retry_after_s)


def _document_of(message: Message) -> dict[str, Any]:
    """Return a message's fields by name: those that are set, and not what they are by default."""
    return {field.name: _plain(field, value) for field, value in message.ListFields()}


def _plain(field: Any, value: Any) -> Any:
    if isinstance(value, pb.BlockKeys):
        return list(value.keys)
    if field.enum_type is not None:
        # An enum's numbers have names of the form ROLE_BOTH: in documents it is `both`.
        found = field.enum_type.values_by_number.get(value)
        if found is None:
            return f"number {value}"
        unspecified = field.enum_type.values_by_number[0].name
        return found.name[len(unspecified) - len("UNSPECIFIED") :].lower()
    if field.message_type is not None:
        is_one = hasattr(value, "ListFields")
        return _document_of(value) if is_one else [_document_of(one) for one in value]
    return value if isinstance(value, (str, int, float)) else list(value)
