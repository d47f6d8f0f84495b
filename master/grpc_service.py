"""The master's gRPC service: every method is one or a few frames over the message channel.

So there is one implementation of every rule, in C. A gRPC session is a session of the message
channel, with connections of its own, kept here under its number; calls without a session go over
one that this service keeps alive itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import grpc

from mooncake_store._native import ffi as _ffi
from mooncake_store._native import lib
from mooncake_store.errors import (
    InvalidKeyError,
    RequestError,
    SessionLostError,
    Status,
    StoreError,
    error_from_status,
)
from mooncake_store.logs import log_event
from mooncake_store.protocol import frames, master_pb2, master_pb2_grpc, types_pb2
from mooncake_store.protocol.codec import Body
from mooncake_store.protocol.methods import (
    AnnotateField,
    ExplainFlag,
    FrameFlag,
    Method,
    ObjectFlag,
    Policy,
    PutFlag,
    Role,
    replicas_wanted,
)
from mooncake_store.serving.grpc_server import failures, time_left_s
from mooncake_store.transfer_engine.message_channel import Answer, AskingEngine, MessageChannel

__all__ = ["SERVICE_NAME", "MasterGrpcService"]

ffi: Any = _ffi  # its structs have no types that a checker could know

logger = logging.getLogger("mooncake_store.master")

SERVICE_NAME = "mooncake_store.v1.Master"

_TIMEOUT_S = 5.0
_SESSIONS_MAX = 4096
_NUMBERS_KEPT = 1024  # answers kept for repeats: gRPC callers do not say which have arrived
_EVENT_POLL_S = 0.1
_EVENTS_PER_FRAME = 1000
_REMOVE_STEP = 1000
_THREADS = 16
_U64_MAX = 2**64 - 1

ResponseT = TypeVar("ResponseT")


class _Session:
    """A session of the message channel that gRPC callers use."""

    __slots__ = ("channel", "hello", "tenant")

    def __init__(self, channel: MessageChannel, hello: frames.HelloAnswer, tenant: bytes) -> None:
        self.channel = channel
        self.hello = hello
        self.tenant = tenant

    def hash_of(self, key: bytes) -> bytes:
        room = ffi.new("uint8_t[16]")
        lib.ms_hash_key_bytes(self.hello.secret, self.tenant, len(self.tenant), key, len(key), room)
        return bytes(ffi.buffer(room))


class MasterGrpcService(master_pb2_grpc.MasterServicer):
    """Translates between protobuf and frames.

    Args:
        address: Where the message channel is: `unix:PATH`, or `ip:port`.
        metric_names: Names of the counters that STATUS numbers.
        epoch: The master's.
    """

    def __init__(self, address: str, metric_names: Mapping[int, str], epoch: int) -> None:
        self._address = address
        self._metric_names = metric_names
        self._epoch = epoch
        self._engine = AskingEngine()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grpc-call")
        self._sessions: OrderedDict[int, _Session] = OrderedDict()
        self._own: _Session | None = None
        self._own_lock = asyncio.Lock()
        self._keeper: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """End the sessions' connections."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
        sessions = [*self._sessions.values(), *([self._own] if self._own else [])]
        self._sessions.clear()
        self._own = None

        def close_all() -> None:
            for session in sessions:
                session.channel.close()
            self._engine.close()

        await asyncio.to_thread(close_all)
        self._threads.shutdown(wait=False)

    # ---- calls over the channel ----

    async def _in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)

    def _open(self, tenant: bytes, token: bytes, name: str, timeout_s: float) -> _Session:
        hello = MessageChannel.hello_of(Role.TOOL, name, tenant=tenant, token=token)
        channel = MessageChannel(self._engine, self._address, hello)
        try:
            return _Session(channel, channel.open_session(timeout_s), tenant)
        except BaseException:
            channel.close()
            raise

    async def _session(self, number: int) -> _Session:
        if number != 0:
            session = self._sessions.get(number)
            if session is None:
                raise error_from_status(
                    Status.SESSION_LOST, f"session {number} was not opened here, or has ended"
                )
            self._sessions.move_to_end(number)
            return session
        async with self._own_lock:
            if self._own is None:
                self._own = await self._in_thread(self._open, b"default", b"", "grpc", _TIMEOUT_S)
                if self._keeper is None:
                    self._keeper = asyncio.create_task(self._keep_own())
            return self._own

    async def _keep_own(self) -> None:
        """Say each third of the timeout that the session without a caller lives."""
        pause_s = 1.0
        while True:
            await asyncio.sleep(pause_s)
            session = self._own
            if session is None:
                continue
            pause_s = session.hello.session_timeout_ms / 3e3
            try:
                await self._in_thread(
                    session.channel.call, Method.KEEPALIVE, b"", max(pause_s, 0.1)
                )
            except StoreError as error:
                log_event(logger, logging.WARNING, "grpc_keepalive_failed", reason=error)

    async def _ask(
        self, session: _Session, method: Method, body: Body | bytes, timeout_s: float
    ) -> Answer:
        data = body if isinstance(body, bytes) else body.encode()
        answer: Answer = await self._in_thread(session.channel.call, method, data, timeout_s)
        if answer.status == Status.SESSION_LOST and session is self._own:
            self._own = None  # the next call opens another
            await asyncio.to_thread(session.channel.close)
        return answer

    async def _call(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        number: int,
        method: Method,
        body_of: Callable[[_Session], Body],
    ) -> Any:
        """Ask one frame and return its answer's value."""
        session = await self._session(number)
        answer = await self._ask(session, method, body_of(session), time_left_s(context))
        return answer.decode()

    # ---- sessions ----

    async def OpenSession(
        self,
        request: master_pb2.OpenSessionRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> master_pb2.OpenSessionResponse:
        async with failures(context):
            session = await self._in_thread(
                self._open,
                (request.tenant or "default").encode(),
                request.token.encode(),
                request.name or "grpc",
                time_left_s(context),
            )
            while len(self._sessions) >= _SESSIONS_MAX:
                _, oldest = self._sessions.popitem(last=False)
                await asyncio.to_thread(oldest.channel.close)
            hello = session.hello
            self._sessions[hello.session] = session
            return master_pb2.OpenSessionResponse(
                session=hello.session,
                epoch=hello.epoch,
                timeout_ms=hello.session_timeout_ms,
                location_lifetime_ms=hello.location_lifetime_ms,
            )

    async def KeepAlive(
        self, request: master_pb2.KeepAliveRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.KeepAliveResponse:
        async with failures(context):
            try:
                answer = await self._call(
                    context, request.session, Method.KEEPALIVE, lambda _: frames.Empty()
                )
            except SessionLostError:
                await self._forget(request.session)
                raise
            return master_pb2.KeepAliveResponse(members_serial=answer.members_serial)

    async def CloseSession(
        self,
        request: master_pb2.CloseSessionRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> master_pb2.CloseSessionResponse:
        async with failures(context):
            if request.session == 0:
                raise RequestError("session 0 is nobody's: it cannot be closed")
            try:
                await self._call(
                    context, request.session, Method.CLOSE_SESSION, lambda _: frames.Empty()
                )
            finally:
                await self._forget(request.session)
            return master_pb2.CloseSessionResponse()

    async def _forget(self, number: int) -> None:
        session = self._sessions.pop(number, None)
        if session is not None:
            await asyncio.to_thread(session.channel.close)

    # ---- finding ----

    async def Exists(
        self, request: master_pb2.ExistsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.ExistsResponse:
        async with failures(context):
            session = await self._session(request.session)
            answer = await self._ask(
                session, Method.EXISTS_KEYS, _hashes(session, request.keys), time_left_s(context)
            )
            answer.check()
            return master_pb2.ExistsResponse(exists=[byte != 0 for byte in answer.payload])

    async def Lookup(
        self, request: master_pb2.LookupRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.LookupResponse:
        async with failures(context):
            answer = await self._call(
                context,
                request.session,
                Method.LOOKUP,
                lambda session: _hashes(session, request.keys),
            )
            return master_pb2.LookupResponse(locations=[_location(item) for item in answer.items])

    async def MatchPrefix(
        self, request: master_pb2.MatchPrefixRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.MatchPrefixResponse:
        async with failures(context):
            _need_session(request.session, request.pin)
            answer = await self._call(
                context,
                request.session,
                Method.MATCH_PREFIX,
                lambda session: frames.Match(
                    _hashes(session, request.keys).hashes,
                    pin=int(request.pin),
                    pin_deadline_ms=request.pin_deadline_ms,
                ),
            )
            return master_pb2.MatchPrefixResponse(
                locations=[_location(item) for item in answer.items]
            )

    # ---- putting ----

    async def PutStart(
        self, request: master_pb2.PutStartRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.PutStartResponse:
        async with failures(context):
            _need_session(request.session, True)
            answer = await self._call(
                context,
                request.session,
                Method.PUT_START,
                lambda session: frames.PutStart(
                    request.number,
                    tuple(_put_item(session, item) for item in request.items),
                    number_done=_number_done(request.number),
                ),
            )
            return master_pb2.PutStartResponse(
                grants=[_location(item) for item in answer.grants],
                message=answer.sentence.decode(errors="replace"),
            )

    async def PutEnd(
        self, request: master_pb2.PutEndRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.PutEndResponse:
        async with failures(context):
            _need_session(request.session, True)
            statuses = await self._ends(context, request, Method.PUT_END)
            return master_pb2.PutEndResponse(statuses=statuses)

    async def Revoke(
        self, request: master_pb2.RevokeRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.RevokeResponse:
        async with failures(context):
            _need_session(request.session, True)
            statuses = await self._ends(context, request, Method.REVOKE)
            return master_pb2.RevokeResponse(statuses=statuses)

    async def _ends(
        self,
        context: grpc.aio.ServicerContext[Any, Any],
        request: master_pb2.PutEndRequest | master_pb2.RevokeRequest,
        method: Method,
    ) -> list[types_pb2.Status]:
        answer = await self._call(
            context,
            request.session,
            method,
            lambda session: frames.PutEnd(
                request.number,
                tuple(_end_item(session, item) for item in request.items),
                number_done=_number_done(request.number),
            ),
        )
        return _statuses(answer.statuses)

    # ---- removing ----

    async def Remove(
        self, request: master_pb2.RemoveRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.RemoveResponse:
        async with failures(context):
            flags = FrameFlag.FORCE if request.force else 0
            # Without a session of the caller's own a number would be mixed with other callers'.
            number = request.number if request.session else 0
            answer = await self._call(
                context,
                request.session,
                Method.REMOVE,
                lambda session: frames.Remove(
                    number,
                    tuple(_key_item(session, key, flags) for key in request.keys),
                    number_done=_number_done(number),
                ),
            )
            return master_pb2.RemoveResponse(statuses=_statuses(answer.statuses))

    async def RemoveMatching(
        self,
        request: master_pb2.RemoveMatchingRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> master_pb2.RemoveMatchingResponse:
        async with failures(context):
            pattern, flags = _pattern(request.pattern)
            if request.force:
                flags |= FrameFlag.FORCE
            removed = cursor = 0
            while True:
                session = await self._session(request.session)
                step = frames.ListRequest(pattern, cursor=cursor, limit=_REMOVE_STEP, flags=flags)
                frame = await self._ask(session, Method.REMOVE_MATCHING, step, time_left_s(context))
                answer = frame.decode()
                removed += answer.count
                cursor = answer.cursor
                if cursor == 0:
                    return master_pb2.RemoveMatchingResponse(removed_count=removed)

    # ---- keeping ----

    async def Touch(
        self, request: master_pb2.TouchRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.TouchResponse:
        async with failures(context):
            session = await self._session(request.session)
            answer = await self._ask(
                session, Method.TOUCH, _hashes(session, request.keys), time_left_s(context)
            )
            answer.check()
            return master_pb2.TouchResponse()

    async def Pin(
        self, request: master_pb2.PinRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.PinResponse:
        async with failures(context):
            _need_session(request.session, True)
            answer = await self._call(
                context,
                request.session,
                Method.PIN,
                lambda session: frames.Match(
                    _hashes(session, request.keys).hashes,
                    pin=1,
                    pin_deadline_ms=request.deadline_ms,
                ),
            )
            return master_pb2.PinResponse(statuses=_statuses(answer.statuses))

    async def Unpin(
        self, request: master_pb2.UnpinRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.UnpinResponse:
        async with failures(context):
            _need_session(request.session, True)
            answer = await self._call(
                context,
                request.session,
                Method.UNPIN,
                lambda session: frames.Match(_hashes(session, request.keys).hashes),
            )
            return master_pb2.UnpinResponse(statuses=_statuses(answer.statuses))

    async def Annotate(
        self, request: master_pb2.AnnotateRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.AnnotateResponse:
        async with failures(context):
            fields = flags = 0
            if request.HasField("hard_pin"):
                fields |= AnnotateField.HARD_PIN
                flags |= ObjectFlag.HARD_PIN if request.hard_pin else 0
            if request.HasField("soft_pin"):
                fields |= AnnotateField.SOFT_PIN
                flags |= ObjectFlag.SOFT_PIN if request.soft_pin else 0
            if request.HasField("ttl_ms"):
                fields |= AnnotateField.TTL
            await self._call(
                context,
                request.session,
                Method.ANNOTATE,
                lambda session: frames.Annotate(
                    _key_item(session, request.key),
                    fields=fields,
                    flags=flags,
                    ttl_ms=request.ttl_ms,
                ),
            )
            return master_pb2.AnnotateResponse()

    async def ChangeReplica(
        self,
        request: master_pb2.ChangeReplicaRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> master_pb2.ChangeReplicaResponse:
        async with failures(context):
            location = await self._call(
                context,
                request.session,
                Method.CHANGE_REPLICA,
                lambda session: frames.ChangeReplica(
                    _key_item(session, request.key),
                    replica_count=request.replica_count,
                    target_server=_one_up(request, "target_server"),
                    source_server=_one_up(request, "source_server"),
                ),
            )
            return master_pb2.ChangeReplicaResponse(location=_location(location))

    # ---- looking ----

    async def List(
        self, request: master_pb2.ListRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.ListResponse:
        async with failures(context):
            pattern, flags = _pattern(request.pattern)
            answer = await self._call(
                context,
                request.session,
                Method.LIST,
                lambda _: frames.ListRequest(
                    pattern, cursor=request.cursor, limit=request.limit, flags=flags
                ),
            )
            return master_pb2.ListResponse(
                items=[_list_item(item) for item in answer.items], cursor=answer.cursor
            )

    async def Stat(
        self, request: master_pb2.StatRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.StatResponse:
        async with failures(context):
            answer = await self._call(
                context,
                request.session,
                Method.STAT,
                lambda session: _key_item(session, request.key),
            )
            return _stat(answer)

    async def Explain(
        self, request: master_pb2.ExplainRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.ExplainResponse:
        async with failures(context):
            answer = await self._call(
                context,
                request.session,
                Method.EXPLAIN,
                lambda session: _key_item(session, request.key),
            )
            return master_pb2.ExplainResponse(
                stat=None if answer.stat is None else _stat(answer.stat),
                open_put=_open_put(answer) if answer.flags & ExplainFlag.PUTTING else None,
                fates=[_fate(item) for item in answer.fates],
                leading_ms=answer.leading_ms,
                history_ms=answer.history_ms,
                child_count=answer.child_count,
                policy=Policy(answer.policy).name.lower(),
            )

    # ---- tasks ----

    async def StartTask(
        self, request: master_pb2.StartTaskRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.StartTaskResponse:
        async with failures(context):
            answer = await self._call(
                context,
                request.session,
                Method.START_TASK,
                lambda _: frames.TaskOrder(
                    int(request.kind),
                    source_server=_one_up(request, "source_server"),
                    target_server=_one_up(request, "target_server"),
                    replica_count=request.replica_count,
                    prefix=request.prefix.encode(),
                ),
            )
            return master_pb2.StartTaskResponse(task=_task(answer.items[0]))

    async def ListTasks(
        self, request: master_pb2.ListTasksRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.ListTasksResponse:
        async with failures(context):
            failures_max = min(request.failures_max, frames.TASK_FAILURES_MAX)
            answer = await self._call(
                context,
                0,
                Method.TASKS,
                lambda _: frames.TasksRequest(request.task, failures_max),
            )
            return master_pb2.ListTasksResponse(tasks=[_task(item) for item in answer.items])

    async def CancelTask(
        self, request: master_pb2.CancelTaskRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.CancelTaskResponse:
        async with failures(context):
            await self._call(
                context,
                request.session,
                Method.CANCEL_TASK,
                lambda _: frames.TasksRequest(request.task),
            )
            return master_pb2.CancelTaskResponse()

    # ---- the cluster ----

    async def Members(
        self, request: master_pb2.MembersRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.MembersResponse:
        async with failures(context):
            answer = await self._call(context, 0, Method.MEMBERS, lambda _: frames.Empty())
            return master_pb2.MembersResponse(
                serial=answer.serial, members=[_member(item) for item in answer.items]
            )

    async def ForgetMember(
        self, request: master_pb2.ForgetMemberRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.ForgetMemberResponse:
        async with failures(context):
            node = request.node.encode()
            if not 0 < len(node) <= frames.NAME_BYTES_MAX:
                raise RequestError(f"a node's name or id has 1 to {frames.NAME_BYTES_MAX} bytes")
            await self._call(
                context, request.session, Method.FORGET, lambda _: frames.NodeName(node)
            )
            return master_pb2.ForgetMemberResponse()

    async def Status(
        self, request: master_pb2.StatusRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> master_pb2.StatusResponse:
        async with failures(context):
            answer = await self._call(context, 0, Method.STATUS, lambda _: frames.Empty())
            return master_pb2.StatusResponse(
                epoch=self._epoch,
                counters=[
                    master_pb2.Counter(
                        name=self._metric_names[item.id],
                        server=item.label - 1 if item.label else None,
                        value=item.value,
                    )
                    for item in answer.items
                ],
            )

    async def Events(
        self, request: master_pb2.EventsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[master_pb2.Event]:
        async with failures(context):
            sequence, epoch = request.sequence, request.epoch
            if sequence == 0:
                sequence, epoch = await self._event_sequence(), self._epoch
            while True:
                session = await self._session(0)
                wanted = frames.EventsRequest(sequence, epoch, _EVENTS_PER_FRAME)
                frame = await self._ask(session, Method.EVENTS, wanted, _TIMEOUT_S)
                if frame.status == Status.GONE:
                    await context.abort(
                        grpc.StatusCode.OUT_OF_RANGE, frame.body.decode(errors="replace")
                    )
                answer = frame.decode()
                for item in answer.items:
                    yield _event(item, answer.epoch)
                sequence = answer.sequence_next
                if not answer.items:
                    await asyncio.sleep(_EVENT_POLL_S)

    async def _event_sequence(self) -> int:
        """Return the sequence that the next event will have."""
        session = await self._session(0)
        ask = frames.EventsRequest(0, self._epoch, 1)  # 0: the next one that happens
        frame = await self._ask(session, Method.EVENTS, ask, _TIMEOUT_S)
        return int(frame.decode().sequence_next)


# ---- failures ------------------------------------------------------------------------------------


def _need_session(number: int, is_needed: bool) -> None:
    if is_needed and number == 0:
        raise RequestError("this needs a session of your own: OpenSession gives one")


# ---- from protobuf to frames ---------------------------------------------------------------------


def _key(text: str) -> bytes:
    key = text.encode()
    if not 1 <= len(key) <= frames.KEY_BYTES_MAX:
        raise InvalidKeyError(f"a key has 1 to 1024 bytes of UTF-8, not {len(key)}")
    return key


def _hashes(session: _Session, keys: Iterable[str]) -> frames.Hashes:
    return frames.Hashes(tuple(session.hash_of(_key(key)) for key in keys))


def _key_item(session: _Session, text: str, flags: int = 0) -> frames.KeyItem:
    key = _key(text)
    return frames.KeyItem(session.hash_of(key), key, flags)


def _put_item(session: _Session, item: master_pb2.PutItem) -> frames.PutItem:
    key = _key(item.key)
    flags = (
        (PutFlag.UPSERT if item.upsert else 0)
        | (PutFlag.HARD_PIN if item.hard_pin else 0)
        | (PutFlag.SOFT_PIN if item.soft_pin else 0)
        | (PutFlag.STRICT_REPLICAS if item.strict_replicas else 0)
    )
    if item.replica_count > frames.REPLICAS_MAX or item.replica_count_min > frames.REPLICAS_MAX:
        raise RequestError(f"an object has at most {frames.REPLICAS_MAX} replicas")
    return frames.PutItem(
        hash=session.hash_of(key),
        size=item.size_bytes,
        key=key,
        ttl_ms=item.ttl_ms,
        deadline_ms=item.deadline_ms or 60_000,
        parent=session.hash_of(_key(item.parent)) if item.parent else frames.NO_HASH,
        group=item.group,
        replica_count=item.replica_count or 1,
        replica_count_min=item.replica_count_min or 1,
        flags=flags,
        preferred_server=_one_up(item, "preferred_server"),
    )


def _end_item(session: _Session, item: master_pb2.EndItem) -> frames.EndItem:
    mask = _U64_MAX
    if item.replicas:
        if max(item.replicas) >= frames.REPLICAS_MAX:
            raise RequestError(f"replica {max(item.replicas)}: a grant has at most 16")
        mask = sum(1 << replica for replica in set(item.replicas))
    has_checksum = item.HasField("checksum")
    return frames.EndItem(
        hash=session.hash_of(_key(item.key)),
        version=item.version,
        replica_mask=mask,
        checksum=item.checksum if has_checksum else 0,
        flags=ObjectFlag.HAS_CHECKSUM if has_checksum else 0,
    )


def _number_done(number: int) -> int:
    return max(0, number - _NUMBERS_KEPT)


def _one_up(message: Any, field: str) -> int:
    """Return an optional server number as the wire has it: + 1, and 0 = not given."""
    return getattr(message, field) + 1 if message.HasField(field) else 0


def _pattern(pattern: master_pb2.Pattern) -> tuple[bytes, int]:
    if pattern.WhichOneof("kind") == "regex":
        return pattern.regex.encode(), FrameFlag.REGEX
    return pattern.prefix.encode(), 0


# ---- from frames to protobuf ---------------------------------------------------------------------


def _statuses(statuses: Iterable[int]) -> list[types_pb2.Status]:
    return [types_pb2.Status.Name(status) and status for status in map(int, statuses)]  # type: ignore[misc]


def _location(location: frames.Location) -> types_pb2.Location:
    has_checksum = location.flags & ObjectFlag.HAS_CHECKSUM
    return types_pb2.Location(
        status=int(location.status),  # type: ignore[arg-type]
        version=location.version,
        size_bytes=location.size,
        checksum=location.checksum if has_checksum else None,
        hard_pin=bool(location.flags & ObjectFlag.HARD_PIN),
        soft_pin=bool(location.flags & ObjectFlag.SOFT_PIN),
        lifetime_ms=location.lifetime_ms,
        replicas=[_replica(replica) for replica in location.replicas],
        replicas_wanted=replicas_wanted(location.flags) if location.replicas else 0,
    )


def _replica(replica: frames.Replica) -> types_pb2.Replica:
    return types_pb2.Replica(
        server=replica.server,
        incarnation=replica.incarnation,
        segment=replica.segment,
        tier=replica.tier,  # type: ignore[arg-type]
        state=replica.state,  # type: ignore[arg-type]
        extents=[
            types_pb2.Extent(page=extent.page, page_count=extent.page_count)
            for extent in replica.extents
        ],
    )


def _list_item(item: frames.ListItem) -> master_pb2.ListItem:
    return master_pb2.ListItem(
        key=item.key.decode(errors="replace"),
        size_bytes=item.size,
        version=item.version,
        replica_count=item.replica_count,
        hard_pin=bool(item.flags & ObjectFlag.HARD_PIN),
        soft_pin=bool(item.flags & ObjectFlag.SOFT_PIN),
        has_checksum=bool(item.flags & ObjectFlag.HAS_CHECKSUM),
        pinned=bool(item.pinned),
        ttl_ms=item.ttl_ms,
    )


def _task(item: frames.Task) -> master_pb2.Task:
    return master_pb2.Task(
        task=item.task,
        kind=item.kind,  # type: ignore[arg-type]
        state=item.state,  # type: ignore[arg-type]
        source_server=item.source_server - 1 if item.source_server else None,
        target_server=item.target_server - 1 if item.target_server else None,
        replica_count=item.replica_count,
        prefix=item.prefix.decode(errors="replace"),
        objects_done=item.objects_done,
        objects_total=item.objects_total,
        bytes_done=item.bytes_done,
        bytes_total=item.bytes_total,
        objects_failed=item.objects_failed,
        objects_left=item.objects_left,
        sole_left=item.sole_left,
        age_ms=item.age_ms,
        ended_ms=item.ended_ms,
        failures=[
            master_pb2.TaskFailure(
                key=failure.key.decode(errors="replace"),
                size_bytes=failure.size,
                status=failure.status,  # type: ignore[arg-type]
            )
            for failure in item.failures
        ],
    )


def _member(info: frames.ServerInfo) -> master_pb2.Member:
    return master_pb2.Member(
        server=info.server,
        node_id=info.node_id,
        incarnation=info.incarnation,
        state=info.state,  # type: ignore[arg-type]
        name=info.name.decode(errors="replace"),
        host=info.host.decode(errors="replace"),
        addresses=[part for part in info.addresses.decode(errors="replace").split(",") if part],
        segments=[
            master_pb2.Segment(
                segment=segment.segment,
                tier=segment.tier,  # type: ignore[arg-type]
                page_count=segment.page_count,
                page_count_ready=segment.page_count_ready,
            )
            for segment in info.segments
        ],
    )


def _stat(answer: frames.StatAnswer) -> master_pb2.StatResponse:
    return master_pb2.StatResponse(
        location=_location(answer.location),
        age_ms=answer.age_ms,
        idle_ms=answer.idle_ms,
        ttl_ms=answer.ttl_ms,
        pin_count=answer.pin_count,
        use_count=answer.use_count,
        group=answer.group,
        parent_hash=b"" if answer.parent == frames.NO_HASH else answer.parent,
    )


def _open_put(answer: frames.ExplainAnswer) -> master_pb2.OpenPut:
    return master_pb2.OpenPut(
        version=answer.put_version,
        size_bytes=answer.put_size,
        session=answer.put_session,
        session_name=answer.put_name.decode(errors="replace"),
        deadline_ms=answer.put_deadline_ms,
    )


def _fate(item: frames.Fate) -> master_pb2.Fate:
    return master_pb2.Fate(
        kind=item.kind,  # type: ignore[arg-type]
        version=item.version,
        size_bytes=item.size,
        age_ms=item.age_ms,
        session=item.session,
        session_name=item.name.decode(errors="replace"),
        bytes_wanted=item.bytes_wanted,
        server=item.server - 1 if item.server else None,
    )


def _event(item: frames.Event, epoch: int) -> master_pb2.Event:
    return master_pb2.Event(
        sequence=item.sequence,
        epoch=epoch,
        kind=item.kind,  # type: ignore[arg-type]
        key=item.key.decode(errors="replace"),
        version=item.version,
        size_bytes=item.size,
        server=item.server - 1 if item.server else None,
        age_ms=item.age_ms,
    )


# ---- health --------------------------------------------------------------------------------------
