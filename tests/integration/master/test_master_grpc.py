"""gRPC gives the same as the frames, and errors with their stable codes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from mooncake_store.protocol import frames, master_pb2, master_pb2_grpc, types_pb2
from mooncake_store.protocol.methods import Method

TIMEOUT_S = 20.0


@pytest.fixture
def master(bench: Any) -> Any:
    return bench.master(grpc=True)


@pytest.fixture
def channel(master: Any) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(f"127.0.0.1:{master.endpoints.grpc_port}") as channel:
        grpc.channel_ready_future(channel).result(timeout=TIMEOUT_S)
        yield channel


@pytest.fixture
def stub(channel: grpc.Channel) -> Any:
    return master_pb2_grpc.MasterStub(channel)  # type: ignore[no-untyped-call]


@pytest.fixture
def client(bench: Any, master: Any) -> Any:
    return bench.client(master)


@pytest.fixture
def server(bench: Any, master: Any, client: Any) -> Any:
    return bench.ready_server(master, client)


@pytest.fixture
def session(stub: Any) -> int:
    opened = stub.OpenSession(master_pb2.OpenSessionRequest(name="test"), timeout=TIMEOUT_S)
    assert opened.epoch == 1
    assert opened.timeout_ms == 10_000
    return int(opened.session)


def put(
    stub: Any, session: int, number: int, *keys: str, **fields: Any
) -> list[types_pb2.Location]:
    items = [
        master_pb2.PutItem(key=key, **{"size_bytes": 5000, "replica_count": 1, **fields})
        for key in keys
    ]
    request = master_pb2.PutStartRequest(session=session, number=number, items=items)
    grants = stub.PutStart(request, timeout=TIMEOUT_S).grants
    ends = [
        master_pb2.EndItem(key=key, version=grant.version)
        for key, grant in zip(keys, grants, strict=True)
    ]
    request = master_pb2.PutEndRequest(session=session, number=number + 1, items=ends)
    statuses = stub.PutEnd(request, timeout=TIMEOUT_S).statuses
    assert list(statuses) == [types_pb2.STATUS_OK] * len(keys)
    return list(grants)


def test_what_grpc_puts_frames_see_and_the_other_way_round(
    stub: Any, session: int, client: Any, server: Any
) -> None:
    (grant,) = put(stub, session, 1, "from-grpc")
    client.put(b"from-frames", 5000)
    assert client.exists(b"from-grpc", b"from-frames", b"none") == [True, True, False]
    keys = ["from-grpc", "from-frames", "none"]
    found = stub.Exists(master_pb2.ExistsRequest(keys=keys), timeout=TIMEOUT_S)
    assert list(found.exists) == [True, True, False]

    by_grpc = stub.Lookup(master_pb2.LookupRequest(keys=keys), timeout=TIMEOUT_S).locations
    by_frames = client.value(Method.LOOKUP, client.hashes(*map(str.encode, keys))).items
    for ours, theirs in zip(by_grpc, by_frames, strict=True):
        assert ours.status == int(theirs.status)
        assert (ours.version, ours.size_bytes) == (theirs.version, theirs.size)
        assert [
            (
                replica.server,
                replica.incarnation,
                replica.segment,
                [(extent.page, extent.page_count) for extent in replica.extents],
            )
            for replica in ours.replicas
        ] == [
            (
                replica.server,
                replica.incarnation,
                replica.segment,
                [(extent.page, extent.page_count) for extent in replica.extents],
            )
            for replica in theirs.replicas
        ]
    assert by_grpc[0].version == grant.version


def test_listings_and_descriptions_are_equal(
    stub: Any, session: int, client: Any, server: Any
) -> None:
    put(stub, session, 1, "a/1", "a/2", "b", hard_pin=True, ttl_ms=60_000)
    pattern = master_pb2.Pattern(prefix="a/")
    by_grpc = stub.List(master_pb2.ListRequest(pattern=pattern), timeout=TIMEOUT_S).items
    by_frames = client.value(Method.LIST, frames.ListRequest(b"a/")).items
    assert sorted((item.key, item.size_bytes, item.version) for item in by_grpc) == sorted(
        (item.key.decode(), item.size, item.version) for item in by_frames
    )
    assert all(item.hard_pin and 0 < item.ttl_ms <= 60_000 for item in by_grpc)
    stat = stub.Stat(master_pb2.StatRequest(key="b"), timeout=TIMEOUT_S)
    frame = client.value(Method.STAT, frames.KeyItem(client.hash(b"b"), b"b"))
    assert stat.location.version == frame.location.version
    assert stat.pin_count == frame.pin_count
    explained = stub.Explain(master_pb2.ExplainRequest(key="b"), timeout=TIMEOUT_S)
    assert (explained.stat.location, explained.stat.pin_count) == (stat.location, stat.pin_count)
    assert explained.policy == "lru" and not explained.fates
    assert not explained.HasField("open_put")
    members = stub.Members(master_pb2.MembersRequest(), timeout=TIMEOUT_S).members
    assert [(member.name, member.server, member.state) for member in members] == [
        ("node-1", server.number, master_pb2.MEMBER_STATE_READY)
    ]
    assert members[0].segments[0].page_count == 1024


def test_explain_over_grpc_tells_who_removed_it(stub: Any, session: int, server: Any) -> None:
    (grant,) = put(stub, session, 1, "k")
    removal = master_pb2.RemoveRequest(session=session, number=3, keys=["k"])
    assert list(stub.Remove(removal, timeout=TIMEOUT_S).statuses) == [types_pb2.STATUS_OK]
    item = master_pb2.PutItem(key="k", size_bytes=7, replica_count=1)
    request = master_pb2.PutStartRequest(session=session, number=4, items=[item])
    (again,) = stub.PutStart(request, timeout=TIMEOUT_S).grants
    explained = stub.Explain(master_pb2.ExplainRequest(key="k"), timeout=TIMEOUT_S)
    assert not explained.HasField("stat")
    assert (explained.open_put.version, explained.open_put.size_bytes) == (again.version, 7)
    assert explained.open_put.session_name == "test"
    (fate,) = explained.fates
    assert (fate.kind, fate.version) == (master_pb2.FATE_KIND_REMOVED, grant.version)
    assert (fate.session, fate.session_name) == (session, "test")
    assert fate.server == server.number
    assert explained.history_ms == explained.leading_ms > 0


def test_a_repeat_over_grpc_gets_the_first_answer(stub: Any, session: int, server: Any) -> None:
    request = master_pb2.PutStartRequest(
        session=session, number=1, items=[master_pb2.PutItem(key="k", size_bytes=1)]
    )
    first = stub.PutStart(request, timeout=TIMEOUT_S)
    assert stub.PutStart(request, timeout=TIMEOUT_S) == first


def test_objects_are_removed_and_what_stays_says_why(
    stub: Any, session: int, client: Any, server: Any
) -> None:
    put(stub, session, 1, "a", "b")
    put(stub, session, 3, "pinned", hard_pin=True)
    request = master_pb2.RemoveRequest(session=session, number=5, keys=["a", "none", "pinned"])
    assert list(stub.Remove(request, timeout=TIMEOUT_S).statuses) == [
        types_pb2.STATUS_OK,
        types_pb2.STATUS_NOT_FOUND,
        types_pb2.STATUS_PINNED,
    ]
    annotate = master_pb2.AnnotateRequest(key="pinned", hard_pin=False)
    stub.Annotate(annotate, timeout=TIMEOUT_S)
    matching = master_pb2.RemoveMatchingRequest(pattern=master_pb2.Pattern(regex="."))
    assert stub.RemoveMatching(matching, timeout=TIMEOUT_S).removed_count == 2
    assert client.exists(b"a", b"b", b"pinned") == [False, False, False]


def test_pins_belong_to_the_session(stub: Any, session: int, server: Any) -> None:
    put(stub, session, 1, "0", "1")
    match = master_pb2.MatchPrefixRequest(session=session, keys=["0", "1", "2"], pin=True)
    assert len(stub.MatchPrefix(match, timeout=TIMEOUT_S).locations) == 2
    pin = master_pb2.PinRequest(session=session, keys=["0", "none"])
    assert list(stub.Pin(pin, timeout=TIMEOUT_S).statuses) == [
        types_pb2.STATUS_OK,
        types_pb2.STATUS_NOT_FOUND,
    ]
    assert stub.Stat(master_pb2.StatRequest(key="0"), timeout=TIMEOUT_S).pin_count >= 1
    stub.Touch(master_pb2.TouchRequest(session=session, keys=["0"]), timeout=TIMEOUT_S)
    stub.KeepAlive(master_pb2.KeepAliveRequest(session=session), timeout=TIMEOUT_S)
    stub.CloseSession(master_pb2.CloseSessionRequest(session=session), timeout=TIMEOUT_S)
    assert stub.Stat(master_pb2.StatRequest(key="0"), timeout=TIMEOUT_S).pin_count == 0


def test_counters_have_names(stub: Any, server: Any) -> None:
    answer = stub.Status(master_pb2.StatusRequest(), timeout=TIMEOUT_S)
    values = {
        (counter.name, counter.server if counter.HasField("server") else None): counter.value
        for counter in answer.counters
    }
    assert values["servers", None] == 1
    assert values["server_up", server.number] == 1


def test_events_stream_from_now_on(stub: Any, session: int, client: Any, server: Any) -> None:
    client.put(b"before")
    stream = stub.Events(master_pb2.EventsRequest(), timeout=TIMEOUT_S)
    time.sleep(0.5)  # the call has no answer by which to tell that it has begun
    client.put(b"after")
    event = next(iter(stream))
    assert (event.kind, event.key, event.size_bytes) == (
        master_pb2.EVENT_KIND_STORED,
        "after",
        4096,
    )
    stream.cancel()
    again = stub.Events(
        master_pb2.EventsRequest(sequence=event.sequence, epoch=event.epoch), timeout=TIMEOUT_S
    )
    assert next(iter(again)).key == "after"
    again.cancel()


@pytest.mark.parametrize(
    ("method", "request_", "code", "says"),
    [
        ("Stat", master_pb2.StatRequest(key="none"), grpc.StatusCode.NOT_FOUND, "MS-1001"),
        ("Stat", master_pb2.StatRequest(key=""), grpc.StatusCode.INVALID_ARGUMENT, "MS-1102"),
        (
            "List",
            master_pb2.ListRequest(pattern=master_pb2.Pattern(regex="[")),
            grpc.StatusCode.INVALID_ARGUMENT,
            "MS-1101",
        ),
        ("KeepAlive", master_pb2.KeepAliveRequest(session=9), grpc.StatusCode.NOT_FOUND, "MS-1206"),
        (
            "PutStart",
            master_pb2.PutStartRequest(items=[master_pb2.PutItem(key="a")]),
            grpc.StatusCode.INVALID_ARGUMENT,
            "OpenSession",
        ),
        (
            "OpenSession",
            master_pb2.OpenSessionRequest(tenant="other"),
            grpc.StatusCode.PERMISSION_DENIED,
            "MS-1208",
        ),
    ],
)
def test_failures_have_a_grpc_status_and_the_stable_code(
    stub: Any, method: str, request_: Any, code: grpc.StatusCode, says: str
) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        getattr(stub, method)(request_, timeout=TIMEOUT_S)
    assert caught.value.code() == code
    assert says in caught.value.details()


def test_events_that_are_gone_are_out_of_range(stub: Any, server: Any) -> None:
    stream = stub.Events(master_pb2.EventsRequest(sequence=1, epoch=99), timeout=TIMEOUT_S)
    with pytest.raises(grpc.RpcError) as caught:
        next(iter(stream))
    assert caught.value.code() == grpc.StatusCode.OUT_OF_RANGE


def test_the_health_service_speaks_the_standard_protocol(channel: grpc.Channel) -> None:
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    assert check(b"", timeout=TIMEOUT_S) == b"\x08\x01"
    name = b"mooncake_store.v1.Master"
    assert check(b"\x0a" + bytes([len(name)]) + name, timeout=TIMEOUT_S) == b"\x08\x01"
    with pytest.raises(grpc.RpcError) as caught:
        check(b"\x0a\x04none", timeout=TIMEOUT_S)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    watch = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"", timeout=TIMEOUT_S)
    assert next(iter(watch)) == b"\x08\x01"
    watch.cancel()


def test_tasks_are_begun_listed_and_cancelled(stub: Any, session: int, server: Any) -> None:
    put(stub, session, 1, "k")
    request = master_pb2.StartTaskRequest(
        session=session, kind=master_pb2.TASK_KIND_DRAIN, source_server=0
    )
    begun = stub.StartTask(request, timeout=TIMEOUT_S).task
    assert begun.kind == master_pb2.TASK_KIND_DRAIN and begun.source_server == 0
    assert stub.StartTask(request, timeout=TIMEOUT_S).task.task == begun.task
    asked = master_pb2.ListTasksRequest(task=begun.task, failures_max=5)
    deadline_s = time.monotonic() + TIMEOUT_S
    while (task := stub.ListTasks(asked, timeout=TIMEOUT_S).tasks[0]).state != (
        master_pb2.TASK_STATE_BLOCKED
    ):
        assert time.monotonic() < deadline_s, task
        time.sleep(0.02)
    assert [(each.key, each.status) for each in task.failures] == [
        ("k", types_pb2.STATUS_UNAVAILABLE)
    ]
    member = stub.Members(master_pb2.MembersRequest(), timeout=TIMEOUT_S).members[0]
    assert member.state == master_pb2.MEMBER_STATE_DRAINING
    cancel = master_pb2.CancelTaskRequest(session=session, task=begun.task)
    stub.CancelTask(cancel, timeout=TIMEOUT_S)
    tasks = stub.ListTasks(master_pb2.ListTasksRequest(), timeout=TIMEOUT_S).tasks
    assert [task.state for task in tasks] == [master_pb2.TASK_STATE_CANCELLED]
    for wrong in (
        master_pb2.StartTaskRequest(session=session),
        master_pb2.StartTaskRequest(session=session, kind=master_pb2.TASK_KIND_REPLICATE),
        master_pb2.StartTaskRequest(session=session, kind=master_pb2.TASK_KIND_MOVE),
        master_pb2.StartTaskRequest(
            session=session, kind=master_pb2.TASK_KIND_DRAIN, source_server=9
        ),
    ):
        with pytest.raises(grpc.RpcError):
            stub.StartTask(wrong, timeout=TIMEOUT_S)
    with pytest.raises(grpc.RpcError) as failure:
        stub.ListTasks(master_pb2.ListTasksRequest(task=99), timeout=TIMEOUT_S)
    assert failure.value.code() == grpc.StatusCode.NOT_FOUND


def test_a_server_is_forgotten_only_when_it_is_gone(stub: Any, session: int, server: Any) -> None:
    name = stub.Members(master_pb2.MembersRequest(), timeout=TIMEOUT_S).members[0].name

    def forget(node: str) -> grpc.RpcError:
        request = master_pb2.ForgetMemberRequest(session=session, node=node)
        with pytest.raises(grpc.RpcError) as caught:
            stub.ForgetMember(request, timeout=TIMEOUT_S)
        return caught.value

    alive = forget(name)
    assert alive.code() == grpc.StatusCode.ABORTED and "is alive" in alive.details()
    assert forget("nobody").code() == grpc.StatusCode.NOT_FOUND
    for bad in ("", "n" * 300):
        assert forget(bad).code() == grpc.StatusCode.INVALID_ARGUMENT
