"""The API over gRPC, by a client that was generated from the proto."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from mooncake_store import prefix_keys
from mooncake_store.protocol import conductor_pb2 as pb
from mooncake_store.protocol import conductor_pb2_grpc

from .conftest import Conductor, Start, starting

TIMEOUT_S = 20.0


class Api:
    """A generated client with a deadline for each call."""

    def __init__(self, conductor: Conductor) -> None:
        self.channel = grpc.insecure_channel(f"127.0.0.1:{conductor.ports['grpc']}")
        self._stub = conductor_pb2_grpc.ConductorStub(self.channel)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._stub, name)
        return lambda request: method(request, timeout=TIMEOUT_S)


@pytest.fixture(scope="module")
def conductor() -> Iterator[Conductor]:
    with starting() as begin:
        yield begin("--block-tokens", "16", "--grpc", "--grpc-port", "0")


@pytest.fixture
def api(conductor: Conductor) -> Iterator[Api]:
    found = Api(conductor)
    yield found
    for one in found.ListInstances(pb.ListInstancesRequest()).instances:
        found.Forget(pb.ForgetRequest(name=one.name))
    found.channel.close()


def test_a_request_is_scheduled_reported_and_explained(api: Api, conductor: Conductor) -> None:
    for name in ("p0", "p1"):
        told = api.Register(
            pb.RegisterRequest(name=name, role=pb.ROLE_PREFILL, url=f"http://{name}:1/")
        )
        assert (told.heartbeat_interval_ms, told.block_tokens) == (1000, 16)
        assert list(told.key_prefixes) == ["p1-"]
    api.Register(pb.RegisterRequest(name="d0", role=pb.ROLE_DECODE, url="http://d0:1"))
    tokens = list(range(100))
    first = api.Schedule(pb.ScheduleRequest(request_id="a/1", token_ids=tokens, track=True))
    assert (first.decode.instance, first.decode.url) == ("d0", "http://d0:1")
    assert first.prefix_tokens == 0 and first.predicted.ttft_s > 0
    measured = pb.MeasuredTransfer(bytes=5000, seconds=0.25)
    for event in (
        pb.ReportRequest(event=pb.REQUEST_EVENT_PREFILLED, transfer=measured),
        pb.ReportRequest(event=pb.REQUEST_EVENT_FINISHED, output_tokens=5),
    ):
        event.request_id = "a/1"
        api.Report(event)
    again = api.Schedule(pb.ScheduleRequest(num_tokens=100, block_keys=prefix_keys(tokens, 16)))
    assert again.prefill == first.prefill
    assert again.prefix_tokens == 96
    why = api.Explain(pb.ExplainRequest(request_id="a/1"))
    assert why.accepted and why.decision.prefill == first.prefill.instance
    assert [one.what.split(",")[0] for one in why.became] == ["prefilled", "finished"]
    assert {one.name for one in why.candidates} == {"p0", "p1"}
    (taken,) = (one for one in why.candidates if one.why == "chosen")
    assert taken.name == first.prefill.instance and taken.ttft_s == first.predicted.ttft_s
    assert [one.why for one in why.decode_candidates] == ["chosen"]
    # What was asked by one door is known at the other.
    assert conductor.ok("GET", "/v1/decisions/a%2F1")["accepted"]
    shown = api.ListInstances(pb.ListInstancesRequest()).instances
    assert [(one.name, one.role, one.state) for one in shown][2] == (
        "d0", pb.ROLE_DECODE, pb.INSTANCE_STATE_OPEN,
    )  # fmt: skip
    assert not shown[2].HasField("prefill") and shown[2].HasField("decode")


def test_refusals_have_a_status_a_reason_and_when_to_try_again(api: Api) -> None:
    def refused(request: pb.ScheduleRequest) -> tuple[grpc.StatusCode, str, int | None]:
        with pytest.raises(grpc.RpcError) as raised:
            api.Schedule(request)
        metadata = dict(raised.value.trailing_metadata())
        retry_ms = metadata.get("retry-after-ms")
        return raised.value.code(), metadata["reason"], retry_ms and int(retry_ms)

    code, reason, retry_ms = refused(pb.ScheduleRequest(num_tokens=10))
    assert (code, reason) == (grpc.StatusCode.UNAVAILABLE, "no_prefill_instance")
    assert retry_ms is not None and retry_ms >= 1000
    api.Register(pb.RegisterRequest(name="b", role=pb.ROLE_BOTH))
    slo = pb.ServiceLevel(ttft_s=0.1)
    code, reason, retry_ms = refused(pb.ScheduleRequest(num_tokens=100_000, slo=slo))
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "slo_ttft")
    assert retry_ms is None, "the prompt alone takes longer"
    api.Schedule(pb.ScheduleRequest(num_tokens=100_000))
    code, reason, retry_ms = refused(pb.ScheduleRequest(num_tokens=100_000, slo=slo))
    assert (code, reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "slo_ttft")
    assert retry_ms is not None and retry_ms >= 1000
    with pytest.raises(grpc.RpcError) as raised:
        api.Explain(pb.ExplainRequest(request_id="nobody"))
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("call", "request_", "code", "words"),
    [
        ("Schedule", pb.ScheduleRequest(), "INVALID_ARGUMENT", "num_tokens is missing"),
        ("Schedule", pb.ScheduleRequest(token_ids=[1], block_keys=["ab" * 16]),
         "INVALID_ARGUMENT", "not both"),
        ("Schedule", pb.ScheduleRequest(num_tokens=99, block_keys=["no hash"]),
         "INVALID_ARGUMENT", "hexadecimal"),
        ("Schedule", pb.ScheduleRequest(num_tokens=9, slo=pb.ServiceLevel(ttft_s=0)),
         "INVALID_ARGUMENT", "above 0"),
        ("Schedule", pb.ScheduleRequest(num_tokens=2**63), "INVALID_ARGUMENT", "num_tokens"),
        ("Register", pb.RegisterRequest(name="x"), "INVALID_ARGUMENT", "role"),
        ("Register", pb.RegisterRequest(name="x", role=77), "INVALID_ARGUMENT", "number 77"),
        ("Register", pb.RegisterRequest(role=pb.ROLE_BOTH), "INVALID_ARGUMENT", "name is missing"),
        ("Register", pb.RegisterRequest(name="x", role=pb.ROLE_BOTH, url="ftp://x"),
         "INVALID_ARGUMENT", "http://"),
        ("Heartbeat", pb.HeartbeatRequest(name="unknown", sequence=1), "NOT_FOUND", "unknown"),
        ("Drain", pb.DrainRequest(name="unknown"), "NOT_FOUND", "unknown"),
        ("Forget", pb.ForgetRequest(name="unknown"), "NOT_FOUND", "unknown"),
        ("ReportBlocks", pb.ReportBlocksRequest(name="unknown"), "NOT_FOUND", "unknown"),
        ("Report", pb.ReportRequest(request_id="x"), "INVALID_ARGUMENT", "event"),
        ("Report", pb.ReportRequest(request_id="x", event=pb.REQUEST_EVENT_FAILED), "NOT_FOUND",
         "under way"),
    ],
)  # fmt: skip
def test_mistakes_are_told(api: Api, call: str, request_: Any, code: str, words: str) -> None:
    with pytest.raises(grpc.RpcError) as raised:
        getattr(api, call)(request_)
    assert raised.value.code() == grpc.StatusCode[code]
    assert words in raised.value.details()


def test_heartbeats_and_loads_are_followed(api: Api) -> None:
    api.Register(pb.RegisterRequest(name="b", role=pb.ROLE_BOTH, incarnation=3))
    load = pb.Load(queue_s=4.0, batch=7, requests=2)
    assert api.Heartbeat(pb.HeartbeatRequest(name="b", sequence=5, load=load)).counts
    assert not api.Heartbeat(pb.HeartbeatRequest(name="b", sequence=4)).counts
    (shown,) = api.ListInstances(pb.ListInstancesRequest()).instances
    assert 0 < shown.prefill.queue_s <= 4 and shown.decode.batch == 7
    assert shown.incarnation == 3 and shown.stale_reports == 1 and shown.HasField("report_s_ago")
    api.Drain(pb.DrainRequest(name="b"))
    (shown,) = api.ListInstances(pb.ListInstancesRequest()).instances
    assert shown.state == pb.INSTANCE_STATE_DRAINING


def test_an_engines_events_are_followed_and_gaps_are_seen(api: Api) -> None:
    api.Register(pb.RegisterRequest(name="b", role=pb.ROLE_BOTH))
    keys = prefix_keys(range(64), 16)
    stored = pb.BlockEvent(stored=pb.BlockKeys(keys=keys[:3]))
    removed = pb.BlockEvent(removed=pb.BlockKeys(keys=keys[2:3]))

    def send(**fields: Any) -> tuple[int, bool]:
        told = api.ReportBlocks(pb.ReportBlocksRequest(name="b", epoch=9, **fields))
        return told.result, told.needs_snapshot

    def prefix() -> int:
        asked = pb.ScheduleRequest(num_tokens=65, block_keys=keys, request_id="x")
        found = api.Schedule(asked).prefix_tokens
        api.Report(pb.ReportRequest(request_id="x", event=pb.REQUEST_EVENT_FAILED))
        return int(found)

    assert send(first=1, events=[stored, removed]) == (pb.BLOCKS_RESULT_APPLIED, False)
    assert prefix() == 32
    assert send(first=7, events=[stored]) == (pb.BLOCKS_RESULT_REFUSED, True)
    assert send(snapshot=pb.BlockKeys(keys=keys[:1]), sequence=8) == (
        pb.BLOCKS_RESULT_APPLIED, False,
    )  # fmt: skip
    assert prefix() == 16
    assert send(snapshot=pb.BlockKeys(), sequence=9) == (pb.BLOCKS_RESULT_APPLIED, False)
    assert prefix() == 0


def test_health_is_served(api: Api) -> None:
    check = api.channel.unary_unary("/grpc.health.v1.Health/Check")
    name = b"mooncake_store.conductor.v1.Conductor"
    assert check(b"\n" + bytes([len(name)]) + name, timeout=TIMEOUT_S) == b"\x08\x01"


def test_a_taken_port_is_told(conductor: Conductor, start: Start) -> None:
    from mooncake_store.cli.app import run

    port = str(conductor.ports["grpc"])
    flags = ["--http-port", "0", "--grpc", "--grpc-port", port, "--log-level", "error"]
    assert run(["conductor", *flags]) == 5


@pytest.fixture
def bounded(start: Start) -> Conductor:
    return start("--receive-timeout", "3s", "--connections-max", "8", "--grpc",
                 "--grpc-port", "0", "--grpc-calls-max", "8")  # fmt: skip


def test_calls_beyond_the_bound_are_told_so_and_silent_ones_end(bounded: Conductor) -> None:
    api = Api(bounded)
    silent = api.channel.stream_unary("/mooncake_store.conductor.v1.Conductor/Schedule")
    never = threading.Event()

    def nothing() -> Iterator[bytes]:
        never.wait(TIMEOUT_S)
        yield from ()

    try:
        held: list[Any] = []
        found = None
        end_s = time.monotonic() + TIMEOUT_S
        while found is None:  # they arrive one after the other, and one of ours may be among them
            assert time.monotonic() < end_s, "eight calls were never under way at a time"
            held = [one for one in held if not one.done()]
            held += [silent.future(nothing(), timeout=TIMEOUT_S) for _ in range(8 - len(held))]
            found = refusal_of(api)
        assert found.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(found.trailing_metadata())["reason"] == "too_many_calls"
        assert int(dict(found.trailing_metadata())["retry-after-ms"]) > 0
        assert "8 calls are under way" in found.details()
        for one in held:
            assert one.exception(TIMEOUT_S).code() == grpc.StatusCode.DEADLINE_EXCEEDED
            assert "did not arrive within 3 s" in one.exception(TIMEOUT_S).details()
        assert refusal_of(api) is None  # there is room again
        text = bounded.ask("GET", "/metrics")[1]
        assert "mooncake_store_conductor_grpc_calls 0.0" in text
        refused = text.split("mooncake_store_conductor_grpc_refused_total ")[-1]
        assert float(refused.split()[0]) >= 1
    finally:
        never.set()
        api.channel.close()


def refusal_of(api: Api) -> Any:
    try:
        api.ListInstances(pb.ListInstancesRequest())
    except grpc.RpcError as error:
        return error
    return None


def test_connections_beyond_the_bound_are_closed(bounded: Conductor) -> None:
    address = ("127.0.0.1", bounded.ports["grpc"])
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(24):
            one = stack.enter_context(socket.create_connection(address, timeout=TIMEOUT_S))
            with contextlib.suppress(ConnectionError):
                one.sendall(preface)
                opened.append(is_answered(one))
        assert sum(opened) == 8
        api = Api(bounded)
        found = refusal_of(api)
        assert found is not None and found.code() == grpc.StatusCode.UNAVAILABLE
        assert bounded.ask("GET", "/livez")[0] == 200  # the other door is open
        api.channel.close()
    end_s = time.monotonic() + TIMEOUT_S
    while True:  # they have gone
        api = Api(bounded)
        found = refusal_of(api)
        api.channel.close()
        if found is None:
            return
        assert time.monotonic() < end_s
        time.sleep(0.1)


def is_answered(client: socket.socket) -> bool:
    with contextlib.suppress(ConnectionError):
        return client.recv(64) != b""
    return False
