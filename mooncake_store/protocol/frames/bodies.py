"""Which body belongs to which method."""

from __future__ import annotations

from mooncake_store.errors import ProtocolError, Status
from mooncake_store.protocol.codec import Body
from mooncake_store.protocol.frames.basics import status_of
from mooncake_store.protocol.frames.forms import Empty, Hashes, Statuses, StatusesOrEmpty
from mooncake_store.protocol.frames.hello import Hello, HelloAnswer
from mooncake_store.protocol.frames.locations import Grants, Location, Locations
from mooncake_store.protocol.frames.metadata import (
    Annotate,
    ChangeReplica,
    Counters,
    EventsAnswer,
    EventsRequest,
    ExplainAnswer,
    KeepAliveAnswer,
    KeyItem,
    ListAnswer,
    ListRequest,
    Match,
    Members,
    NodeName,
    Pins,
    PutEnd,
    PutStart,
    Remove,
    Removed,
    StatAnswer,
)
from mooncake_store.protocol.frames.rdma import RdmaEnd, RdmaPorts, RdmaSegment
from mooncake_store.protocol.frames.storage import (
    Adopt,
    Copy,
    Free,
    Inventory,
    Note,
    RelayedEnd,
    ServerStats,
)
from mooncake_store.protocol.frames.tasks import TaskOrder, TasksAnswer, TasksRequest
from mooncake_store.protocol.frames.transfer import (
    Attached,
    Cut,
    Notify,
    ReadRequest,
    Regions,
    SegmentNumber,
    Share,
    TopologyText,
    Views,
    WriteRequest,
)
from mooncake_store.protocol.methods import Kind, Method

__all__ = ["ANSWERS", "ANSWERS_WITH_STATUSES", "REQUESTS", "decode_body"]

#: Bodies of requests and one-way frames.
REQUESTS: dict[Method, type[Body]] = {
    Method.HELLO: Hello,
    Method.PING: Empty,
    Method.OPEN_SEGMENT: Empty,
    Method.READ: ReadRequest,
    Method.WRITE: WriteRequest,
    Method.ATTACH: SegmentNumber,
    Method.SHARE: Share,
    Method.UNSHARE: SegmentNumber,
    Method.NOTIFY: Notify,
    Method.CUT: Cut,
    Method.TOPOLOGY: TopologyText,
    Method.RDMA_PORTS: Empty,
    Method.RDMA_CONNECT: RdmaEnd,
    Method.RDMA_DISCONNECT: SegmentNumber,
    Method.RDMA_SEGMENT: SegmentNumber,
    Method.EXISTS_KEYS: Hashes,
    Method.LOOKUP: Hashes,
    Method.MATCH_PREFIX: Match,
    Method.PUT_START: PutStart,
    Method.PUT_END: PutEnd,
    Method.REVOKE: PutEnd,
    Method.REMOVE: Remove,
    Method.TOUCH: Hashes,
    Method.PIN: Match,
    Method.UNPIN: Match,
    Method.LIST: ListRequest,
    Method.STAT: KeyItem,
    Method.ANNOTATE: Annotate,
    Method.CHANGE_REPLICA: ChangeReplica,
    Method.MEMBERS: Empty,
    Method.STATUS: Empty,
    Method.REMOVE_MATCHING: ListRequest,
    Method.EVENTS: EventsRequest,
    Method.KEEPALIVE: Empty,
    Method.CLOSE_SESSION: Empty,
    Method.EXPLAIN: KeyItem,
    Method.PINS: Pins,
    Method.FORGET: NodeName,
    Method.START_TASK: TaskOrder,
    Method.TASKS: TasksRequest,
    Method.CANCEL_TASK: TasksRequest,
    Method.ADOPT: Adopt,
    Method.INVENTORY: Inventory,
    Method.FREE: Free,
    Method.CLEARED: Free,
    Method.FREED: Free,
    Method.NOTE: Note,
    Method.COPY: Copy,
    Method.RELAYED_END: RelayedEnd,
    Method.SERVER_STATS: ServerStats,
    Method.VIEW_OPEN: Views,
    Method.VIEW_CLOSE: Views,
    Method.SEAL: WriteRequest,
}

#: Bodies of answers with status OK. A method that is missing here has no answer.
ANSWERS: dict[Method, type[Body]] = {
    Method.HELLO: HelloAnswer,
    Method.PING: Empty,
    Method.OPEN_SEGMENT: Regions,
    Method.READ: Empty,
    Method.WRITE: StatusesOrEmpty,
    Method.ATTACH: Attached,
    Method.SHARE: SegmentNumber,
    Method.UNSHARE: Empty,
    Method.NOTIFY: Empty,
    Method.CUT: Cut,
    Method.TOPOLOGY: TopologyText,
    Method.RDMA_PORTS: RdmaPorts,
    Method.RDMA_CONNECT: RdmaEnd,
    Method.RDMA_DISCONNECT: Empty,
    Method.RDMA_SEGMENT: RdmaSegment,
    Method.EXISTS_KEYS: Empty,
    Method.LOOKUP: Locations,
    Method.MATCH_PREFIX: Locations,
    Method.PUT_START: Grants,
    Method.PUT_END: Statuses,
    Method.REVOKE: Statuses,
    Method.REMOVE: Statuses,
    Method.PIN: Statuses,
    Method.UNPIN: Statuses,
    Method.LIST: ListAnswer,
    Method.STAT: StatAnswer,
    Method.ANNOTATE: Empty,
    Method.CHANGE_REPLICA: Location,
    Method.MEMBERS: Members,
    Method.STATUS: Counters,
    Method.REMOVE_MATCHING: Removed,
    Method.EVENTS: EventsAnswer,
    Method.KEEPALIVE: KeepAliveAnswer,
    Method.CLOSE_SESSION: Empty,
    Method.EXPLAIN: ExplainAnswer,
    Method.PINS: Statuses,
    Method.FORGET: Empty,
    Method.START_TASK: TasksAnswer,
    Method.TASKS: TasksAnswer,
    Method.CANCEL_TASK: Empty,
    Method.ADOPT: Empty,
    Method.NOTE: Empty,
    Method.COPY: Empty,
    Method.VIEW_OPEN: Statuses,
    Method.VIEW_CLOSE: Statuses,
    Method.SEAL: StatusesOrEmpty,
}

#: Methods whose answer has its usual body also when its status is not OK.
ANSWERS_WITH_STATUSES = frozenset({Method.WRITE, Method.SEAL})


def decode_body(kind: int, method: int, status: int, body: bytes) -> Body | str:
    """Read a body; an answer that failed gives the sentence that it says.

    Raises:
        ProtocolError: The method has no such frame, or the body is not well formed.
    """
    try:
        known = Method(method)
    except ValueError as error:
        raise ProtocolError(f"unknown method {method:#x}") from error
    if kind != Kind.ANSWER:
        return REQUESTS[known].decode(body)
    if known not in ANSWERS:
        raise ProtocolError(f"{known.name} has no answer")
    if status_of(status) != Status.OK and known not in ANSWERS_WITH_STATUSES:
        return body.decode("utf-8", "replace")
    return ANSWERS[known].decode(body)
