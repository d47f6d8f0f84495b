"""The API over HTTP, as a router in front of engines uses it."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from typing import Any

import pytest

from mooncake_store import prefix_keys
from mooncake_store.cli.app import run

from .conftest import Conductor, Start


def test_a_request_is_scheduled_reported_and_explained(
    conductor: Conductor, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("p0", "p1"):
        told = conductor.register(name, "prefill", url=f"http://{name}:1/")
        assert told["heartbeat_interval_ms"] == 1000
    conductor.register("d0", "decode", url="http://d0:1")
    tokens = list(range(100))
    first = conductor.ok("POST", "/v1/schedule", {"token_ids": tokens, "request_id": "a/1"})
    assert first["decode"] == {"instance": "d0", "url": "http://d0:1"}
    assert first["prefix_tokens"] == 0
    assert first["predicted"]["ttft_s"] > 0
    for event in ("prefilled", "finished"):
        conductor.ok("POST", "/v1/requests/a%2F1/report", {"event": event, "output_tokens": 5})
    again = conductor.ok(
        "POST", "/v1/schedule", {"num_tokens": 100, "block_keys": prefix_keys(tokens, 16)}
    )
    assert again["prefill"] == first["prefill"]
    assert again["prefix_tokens"] == 96
    where = f"127.0.0.1:{conductor.ports['http']}"
    assert run(["conductor", "explain", "a/1", "--conductor", where]) == 0
    shown = capsys.readouterr().out
    for word in ("decided", "predicted   TTFT", "then        finished", "p1"):
        assert word in shown
    assert run(["conductor", "explain", "nobody", "--conductor", where]) != 0
    assert run(["conductor", "explain", "--taken-back", "--conductor", where]) == 0
    for wrong in ([], ["a/1", "--taken-back"]):
        assert run(["conductor", "explain", *wrong, "--conductor", where]) == 2
    assert "no decision about 'nobody'" in capsys.readouterr().err
    assert run(["conductor", "instances", "--conductor", where, "--json"]) == 0
    names = [one["name"] for one in json.loads(capsys.readouterr().out)["instances"]]
    assert names == ["p0", "p1", "d0"]


def test_refusals_say_why_and_when_to_try_again(conductor: Conductor) -> None:
    status, document, headers = conductor.ask("POST", "/v1/schedule", {"num_tokens": 10})
    assert (status, document["error"]["code"]) == (503, "no_prefill_instance")
    assert int(headers["retry-after"]) >= 1
    assert document["error"]["message"] == "no instance is registered"
    conductor.register("both", "both")
    wanted = {"num_tokens": 100_000, "slo": {"ttft_s": 0.1}}
    status, document, headers = conductor.ask("POST", "/v1/schedule", wanted)
    assert (status, document["error"]["code"]) == (429, "slo_ttft")
    assert document["error"]["predicted"]["ttft_s"] > 0.1
    assert "retry-after" not in headers, "the prompt alone takes longer"
    assert document["error"]["retry_after_s"] is None
    conductor.ok("POST", "/v1/schedule", {"num_tokens": 100_000})
    status, document, headers = conductor.ask("POST", "/v1/schedule", wanted)
    assert (status, document["error"]["code"]) == (429, "slo_ttft")
    assert int(headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{", "no JSON"),
        (b"[]", "JSON object"),
        ({}, "num_tokens is missing"),
        ({"num_tokens": 0}, "at least 1"),
        ({"num_tokens": "many"}, "number"),
        ({"num_tokens": 10, "token": 1}, "no field 'token'"),
        ({"token_ids": []}, "at least one"),
        ({"token_ids": [1, -1]}, "0 to 4294967295"),
        ({"token_ids": [1, "x"]}, "0 to 4294967295"),
        ({"token_ids": [1], "block_keys": []}, "not both"),
        ({"token_ids": [1], "num_tokens": 2}, "not the number"),
        ({"num_tokens": 100, "block_keys": ["no hash"]}, "hexadecimal"),
        ({"num_tokens": 100, "block_keys": [7]}, "text"),
        ({"num_tokens": 10, "block_keys": ["ab" * 16]}, "more than"),
        ({"num_tokens": 10, "slo": {"ttft_s": 0}}, "above 0"),
        ({"num_tokens": 10, "slo": 3}, "slo is an object"),
        ({"num_tokens": 10, "request_id": ""}, "request_id"),
        ({"num_tokens": 10, "track": 1}, "track"),
        ({"num_tokens": 10, "expected_output_tokens": -3}, "expected_output_tokens"),
        (b'{"num_tokens": 1e400}', "number"),
        (b'{"num_tokens": ' + b"9" * 5000 + b"}", ""),
        (b"[" * 100_000, "no JSON"),
    ],
)  # fmt: skip
def test_a_bad_request_is_told_what_is_wrong(api: Conductor, body: Any, words: str) -> None:
    status, document, _ = api.ask("POST", "/v1/schedule", body)
    assert status == 400, document
    assert document["error"]["code"] == "MS-1101"
    assert words in document["error"]["message"]


@pytest.fixture(scope="module")
def api() -> Any:
    from mooncake_store.cli.processes import Child

    child = Child(["conductor", "--http-port", "0", "--block-tokens", "16"])
    try:
        yield Conductor(child, {"http": child.wait_ready(30)["http_port"]})
    finally:
        child.end()


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", "/v1/instances", {"name": "x"}, 400),
        ("POST", "/v1/instances", {"name": "x", "role": "cook"}, 400),
        ("POST", "/v1/instances", {"name": "", "role": "both"}, 400),
        ("POST", "/v1/instances", {"name": "x", "role": "both", "url": "ftp://x"}, 400),
        ("POST", "/v1/instances/unknown/heartbeat", {"sequence": 1}, 404),
        ("POST", "/v1/instances/unknown/drain", None, 404),
        ("POST", "/v1/instances/unknown/blocks", {"epoch": 1, "first": 1, "events": []}, 404),
        ("DELETE", "/v1/instances/unknown", None, 404),
        ("POST", "/v1/requests/unknown/report", {"event": "finished"}, 404),
        ("POST", "/v1/requests/unknown/report", {}, 400),
        ("POST", "/v1/requests/unknown/report", {"event": "eaten"}, 400),
        ("POST", "/v1/requests/unknown/report", {"event": "finished", "output_tokens": -1}, 400),
        ("POST", "/v1/requests/unknown/report", {"event": "prefilled", "transfer": 3}, 400),
        (
            "POST",
            "/v1/requests/unknown/report",
            {"event": "prefilled", "transfer": {"bytes": 1}},
            400,
        ),
        (
            "POST",
            "/v1/requests/unknown/report",
            {"event": "prefilled", "transfer": {"bytes": 1, "seconds": 0}},
            400,
        ),
        (
            "POST",
            "/v1/requests/unknown/report",
            {"event": "prefilled", "transfer": {"bytes": 10**400, "seconds": 1}},
            400,
        ),
        ("GET", "/v1/decisions/unknown", None, 404),
        ("GET", "/v1/nothing", None, 404),
        ("GET", "/v1/schedule", None, 405),
    ],
)
def test_what_is_unknown_is_told_so(
    api: Conductor, method: str, path: str, body: Any, expected: int
) -> None:
    assert api.ask(method, path, body)[0] == expected


def test_unknown_paths_and_methods_are_told_what_there_is(api: Conductor) -> None:
    status, document, _ = api.ask("GET", "/v1/nothing")
    assert (status, document["error"]["code"]) == (404, "unknown_path")
    assert document["error"]["message"] == "there is no /v1/nothing"
    assert "/v1/schedule, /v1/requests/{request_id}/report" in document["error"]["hint"]
    status, document, headers = api.ask("DELETE", "/v1/instances")
    assert (status, document["error"]["code"]) == (405, "unknown_method")
    assert headers["allow"] == "GET, HEAD, POST"
    assert document["error"]["hint"] == "it has GET, HEAD, POST"


def test_heartbeats_are_ordered_and_checked(conductor: Conductor) -> None:
    conductor.register("b", "both", incarnation=3)
    path = "/v1/instances/b/heartbeat"
    load = {"queue_s": 4.0, "batch": 7, "requests": 2}
    assert conductor.ok("POST", path, {"sequence": 5, "load": load}) == {"counts": True}
    assert conductor.ok("POST", path, {"sequence": 4}) == {"counts": False}
    (shown,) = conductor.ok("GET", "/v1/instances")["instances"]
    assert 0 < shown["prefill"]["queue_s"] <= 4 and shown["decode"]["batch"] == 7
    for wrong in ({}, {"sequence": -1}, {"sequence": 6, "load": {"queue_s": -1}}, {"sequence": 6,
                  "load": {"speed": 1}}):  # fmt: skip
        assert conductor.ask("POST", path, wrong)[0] == 400
    assert conductor.ask("POST", "/v1/instances", {"name": "b", "role": "both"})[0] == 400
    conductor.ok("POST", "/v1/instances/b/drain")
    assert conductor.ask("POST", "/v1/schedule", {"num_tokens": 10})[0] == 503
    conductor.ok("DELETE", "/v1/instances/b")
    assert conductor.ok("GET", "/v1/instances") == {"instances": []}


def test_an_engines_events_are_followed_and_gaps_are_seen(conductor: Conductor) -> None:
    conductor.register("b", "both")
    keys = prefix_keys(range(64), 16)
    path = "/v1/instances/b/blocks"

    def send(**document: Any) -> Any:
        return conductor.ok("POST", path, document)

    def prefix() -> int:
        found = conductor.ok("POST", "/v1/schedule", {"num_tokens": 65, "block_keys": keys,
                             "request_id": "x"})  # fmt: skip
        conductor.ok("POST", "/v1/requests/x/report", {"event": "failed"})
        return int(found["prefix_tokens"])

    stored = [{"stored": keys[:3]}, {"removed": keys[2:3]}]
    assert send(epoch=9, first=1, events=stored)["result"] == "applied"
    assert prefix() == 32
    assert send(epoch=9, first=2, events=stored[1:])["result"] == "duplicate"
    late = send(epoch=9, first=7, events=stored)
    assert late == {"result": "refused", "needs_snapshot": True}
    assert send(epoch=9, sequence=8, snapshot=keys[:1])["result"] == "applied"
    assert conductor.ask("POST", path, {"epoch": 9, "first": 9, "events": [{"x": 1}]})[0] == 400
    assert conductor.ask("POST", path, {"epoch": 9, "first": 9, "events": [3]})[0] == 400


def test_a_measured_fetch_is_counted_and_shown(conductor: Conductor) -> None:
    conductor.register("b", "both")
    conductor.ok("POST", "/v1/schedule", {"num_tokens": 10, "request_id": "x", "track": True})
    measured = {"bytes": 5000, "seconds": 0.25}
    conductor.ok("POST", "/v1/requests/x/report", {"event": "prefilled", "transfer": measured})
    became = conductor.ok("GET", "/v1/decisions/x")["became"]
    assert became[-1]["what"] == "prefilled, 5000 bytes fetched in 0.2500 s"
    _, text, _ = conductor.ask("GET", "/metrics")
    # It was not told to fetch: what it fetched all the same was no transfer of ours.
    assert "mooncake_store_conductor_transfers_measured_total 0.0" in text
    assert "mooncake_store_conductor_transfer_latency_seconds 0.001" in text


def test_health_metrics_and_version(conductor: Conductor) -> None:
    for path in ("/livez", "/readyz", "/health"):
        assert conductor.ask("GET", path)[0] == 200
    assert conductor.ok("GET", "/version")["policy"] == "earliest"
    conductor.register("b", "both")
    conductor.ok("POST", "/v1/schedule", {"num_tokens": 10})
    _, text, _ = conductor.ask("GET", "/metrics")
    assert "mooncake_store_conductor_requests_accepted_total 1.0" in text
    assert 'mooncake_store_conductor_instances{state="open"} 1.0' in text
    assert "mooncake_store_conductor_decision_duration_seconds_count 1.0" in text


def test_a_taken_port_names_its_holder(conductor: Conductor, start: Start) -> None:
    port = str(conductor.ports["http"])
    assert run(["conductor", "--http-port", port, "--log-level", "error"]) == 5


@pytest.fixture
def bounded(start: Start) -> Conductor:
    return start("--receive-timeout", "500ms", "--connections-max", "16", "--proxy",
                 "--proxy-port", "0")  # fmt: skip


def said(client: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := client.recv(4096):
            found += part
    return found


@pytest.mark.parametrize("port", ["http", "proxy"])
@pytest.mark.parametrize("begun", [b"", b"POST /v1/schedule HTTP/1.1\r\nhost: x\r\nx-slow: "])
def test_a_head_that_does_not_come_has_a_deadline(
    bounded: Conductor, begun: bytes, port: str
) -> None:
    with socket.create_connection(("127.0.0.1", bounded.ports[port]), timeout=20) as client:
        client.sendall(begun)
        began_s = time.monotonic()
        with contextlib.suppress(OSError):
            while time.monotonic() - began_s < 15 and not select.select([client], [], [], 0.1)[0]:
                client.sendall(b"x" if begun else b"")  # a byte at a time keeps nothing open
        assert said(client) == b""
        assert 0.4 < time.monotonic() - began_s < 15


def test_the_next_head_on_a_connection_has_a_deadline_too(bounded: Conductor) -> None:
    with socket.create_connection(("127.0.0.1", bounded.ports["http"]), timeout=20) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b"ok\n"):  # head and body may come apart
            answer += client.recv(4096)
        assert b" 200 " in answer
        client.sendall(b"GET /li")
        assert said(client) == b""


@pytest.mark.parametrize("path", ["/livez", "/nowhere"])
def test_the_rest_of_an_answered_request_keeps_nothing_open(bounded: Conductor, path: str) -> None:
    with socket.create_connection(("127.0.0.1", bounded.ports["http"]), timeout=20) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\ncontent-length: 100000\r\n\r\n".encode())
        assert b"HTTP/1.1 " in client.recv(4096)  # nobody needs that body
        began_s, is_open = time.monotonic(), True
        with contextlib.suppress(ConnectionError):
            while is_open and time.monotonic() - began_s < 15:
                if select.select([client], [], [], 0.1)[0]:
                    is_open = client.recv(4096) != b""  # or the rest of the answer
                client.sendall(b"x")
        assert time.monotonic() - began_s < 10


def test_a_body_that_does_not_come_has_a_deadline(bounded: Conductor) -> None:
    with socket.create_connection(("127.0.0.1", bounded.ports["http"]), timeout=20) as client:
        client.sendall(b"POST /v1/schedule HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        began_s = time.monotonic()
        with contextlib.suppress(OSError):
            while not select.select([client], [], [], 0.1)[0]:
                client.sendall(b" ")
        found = said(client)
        assert b" 408 " in found and b"the body did not come in time" in found
        assert time.monotonic() - began_s < 15


def test_connections_that_say_nothing_keep_nobody_else_out_for_long(bounded: Conductor) -> None:
    idle = [
        socket.create_connection(("127.0.0.1", bounded.ports["http"]), timeout=20)
        for _ in range(40)
    ]
    try:
        assert bounded.ask("GET", "/livez")[0] == 503  # more than there is room for
        end_s = time.monotonic() + 15
        while bounded.ask("GET", "/livez")[0] != 200:
            assert time.monotonic() < end_s
            time.sleep(0.05)
    finally:
        for one in idle:
            one.close()
