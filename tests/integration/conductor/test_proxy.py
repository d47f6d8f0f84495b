"""The proxy before small HTTP servers that behave like engines."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import select
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from .conftest import Conductor, Start, starting


class Engine:
    """An inference server: remembers what it was asked, answers words, perhaps slowly."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[dict[str, Any]] = []
        self.authorization: list[str | None] = []
        self.pause_s = 0.0
        self.breaks_after = 20
        self.closed_early = threading.Event()
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                self.answer({"object": "list", "data": [{"id": "m"}]})

            def answer(self, document: Any, status: int = 200) -> None:
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def do_POST(self) -> None:
                length = int(self.headers["content-length"])
                document = json.loads(self.rfile.read(length))
                engine.asked.append(document)
                engine.authorization.append(self.headers["authorization"])
                if engine.breaks_after == 0:
                    self.close_connection = True
                elif document.get("model") == "wrong":
                    self.answer({"error": {"message": "no such model"}}, 404)
                elif document.get("stream"):
                    self.stream()
                else:
                    if engine.pause_s and not select.select([self.connection], [], [], 10)[0]:
                        return
                    if engine.pause_s:
                        engine.closed_early.set()  # readable with nothing more to come: it is gone
                        return
                    self.answer(
                        {"choices": [{"text": engine.name}], "usage": {"completion_tokens": 40},
                         "kv_transfer_params": {"from": engine.name}}
                    )  # fmt: skip

            def stream(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                try:
                    for word in range(20):
                        if word == engine.breaks_after:
                            self.close_connection = True
                            return
                        part = f"data: {json.dumps({'word': word})}\n\n".encode()
                        self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                        self.wfile.flush()
                        time.sleep(engine.pause_s)
                    self.wfile.write(b"0\r\n\r\n")
                except OSError:
                    engine.closed_early.set()

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    made = [Engine("a"), Engine("b")]
    yield made
    for engine in made:
        engine.close()


@pytest.fixture(scope="module")
def started() -> Iterator[Conductor]:
    with starting() as start:
        yield start("--proxy", "--proxy-port", "0", "--block-tokens", "16")


@pytest.fixture
def proxy(started: Conductor) -> Iterator[Conductor]:
    """With nobody registered."""
    yield started
    assert none_under_way(started)
    for one in started.ok("GET", "/v1/instances")["instances"]:
        started.ok("DELETE", f"/v1/instances/{one['name']}")


def complete(proxy: Conductor, **document: Any) -> tuple[int, Any, dict[str, str]]:
    body = {"model": "m", "prompt": list(range(40)), **document}
    return proxy.ask("POST", "/v1/completions", body, port="proxy")


def under_way(proxy: Conductor) -> float:
    _, text, _ = proxy.ask("GET", "/metrics")
    name = "mooncake_store_conductor_requests_under_way"
    return sum(float(line.split()[1]) for line in text.splitlines() if line.startswith(name))


def none_under_way(proxy: Conductor) -> bool:
    end_s = time.monotonic() + 10
    while under_way(proxy) > 0 and time.monotonic() < end_s:
        time.sleep(0.05)
    return under_way(proxy) == 0


def test_one_instance_gets_the_request_as_it_is(proxy: Conductor, engines: list[Engine]) -> None:
    proxy.register("a", "both", url=engines[0].url)
    status, document, headers = complete(proxy, max_tokens=7)
    assert (status, document["choices"][0]["text"]) == (200, "a")
    assert engines[0].asked == [{"model": "m", "prompt": list(range(40)), "max_tokens": 7}]
    assert headers["x-request-id"]
    assert proxy.ask("GET", "/v1/models", port="proxy")[1]["data"][0]["id"] == "m"
    assert proxy.ask("GET", "/health", port="proxy")[0] == 200
    status, document, _ = proxy.ask("GET", "/v1/embeddings", port="proxy")
    assert (status, document["error"]["code"]) == (404, "unknown_path")
    assert "/v1/chat/completions" in document["error"]["hint"]


def test_a_prompt_is_prefilled_in_one_place_and_decoded_in_another(
    proxy: Conductor, engines: list[Engine]
) -> None:
    proxy.register("a", "prefill", url=engines[0].url)
    proxy.register("b", "decode", url=engines[1].url)
    status, text, _ = complete(proxy, stream=True, max_tokens=20)
    assert status == 200
    assert text.count("data: ") == 20
    assert engines[0].asked[0]["max_tokens"] == 1 and engines[0].asked[0]["stream"] is False
    assert engines[1].asked[0]["kv_transfer_params"] == {"from": "a"}
    assert engines[1].asked[0]["max_tokens"] == 20


def test_tokens_come_as_they_are_made(proxy: Conductor, engines: list[Engine]) -> None:
    proxy.register("a", "both", url=engines[0].url)
    engines[0].pause_s = 0.1
    connection = http.client.HTTPConnection("127.0.0.1", proxy.ports["proxy"], timeout=20)
    body = json.dumps({"model": "m", "prompt": "Hello, you there", "stream": True})
    connection.request("POST", "/v1/completions", body)
    began_s = time.monotonic()
    answer = connection.getresponse()
    assert answer.readline() == b'data: {"word": 0}\n'
    assert time.monotonic() - began_s < 1.5  # all of it takes two seconds
    connection.close()  # somebody who does not wait ends it at the engine too
    assert engines[0].closed_early.wait(10)


def test_a_dead_instance_costs_a_try(proxy: Conductor, engines: list[Engine]) -> None:
    engines[0].close()
    proxy.register("a", "both", url=engines[0].url)
    proxy.register("b", "both", url=engines[1].url)
    for _ in range(4):
        status, document, _ = complete(proxy)
        assert (status, document["choices"][0]["text"]) == (200, "b")
    states = {one["name"]: one["state"] for one in proxy.ok("GET", "/v1/instances")["instances"]}
    assert states["b"] == "open"


def test_nobody_left_is_told_so(proxy: Conductor, engines: list[Engine]) -> None:
    status, document, headers = complete(proxy)
    assert (status, document["error"]["code"]) == (503, "no_prefill_instance")
    assert headers["retry-after"]
    engines[0].close()
    proxy.register("a", "both", url=engines[0].url)
    status, document, _ = complete(proxy)
    assert (status, document["error"]["code"]) == (502, "MS-1201")


def test_a_deadline_ends_a_request(proxy: Conductor, engines: list[Engine]) -> None:
    proxy.register("a", "both", url=engines[0].url)
    engines[0].pause_s = 3.0
    connection = http.client.HTTPConnection("127.0.0.1", proxy.ports["proxy"], timeout=20)
    body = json.dumps({"model": "m", "prompt": [1, 2, 3]})
    began_s = time.monotonic()
    connection.request("POST", "/v1/completions", body, {"x-request-timeout": "0.5"})
    assert connection.getresponse().status == 504
    assert time.monotonic() - began_s < 2.5
    connection.close()
    body = json.dumps({"model": "m", "prompt": [1, 2, 3], "stream": True})
    connection.request("POST", "/v1/completions", body, {"x-request-timeout": "1"})
    answer = connection.getresponse()
    assert answer.status == 200
    assert b'"code":"deadline"' in answer.read()
    connection.close()


def test_refusals_and_an_engines_errors_are_passed_on(
    proxy: Conductor, engines: list[Engine]
) -> None:
    proxy.register("a", "both", url=engines[0].url)
    status, document, _ = complete(proxy, model="wrong")
    assert (status, document["error"]["message"]) == (404, "no such model")
    load = {"queue_s": 1000.0}
    proxy.ok("POST", "/v1/instances/a/heartbeat", {"sequence": 1, "load": load})
    status, document, headers = complete(proxy)
    assert (status, document["error"]["code"]) == (429, "slo_ttft")
    assert int(headers["retry-after"]) >= 1
    for wrong in (b"{", b"{}", b'{"prompt": [1, -1]}'):
        assert proxy.ask("POST", "/v1/completions", wrong, port="proxy")[0] == 400


def test_a_body_is_bounded(proxy: Conductor) -> None:
    with socket.create_connection(("127.0.0.1", proxy.ports["proxy"]), timeout=20) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999\r\n\r\n"
        )
        part, sent = b"x" * (1 << 20), 0
        with contextlib.suppress(OSError):
            while sent < 99 and not select.select([client], [], [], 0)[0]:
                client.sendall(part)
                sent += 1
        assert b" 413 " in client.recv(64)
        assert sent < 60


def test_a_body_that_does_not_come_has_a_deadline(proxy: Conductor) -> None:
    with socket.create_connection(("127.0.0.1", proxy.ports["proxy"]), timeout=20) as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n"
            b"x-request-timeout: 0.3\r\n\r\n{"
        )
        assert b" 504 " in client.recv(64)


def test_a_body_that_trickles_is_late_before_the_requests_deadline(start: Start) -> None:
    proxy = start("--proxy", "--proxy-port", "0", "--receive-timeout", "300ms")
    with socket.create_connection(("127.0.0.1", proxy.ports["proxy"]), timeout=20) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
        assert b" 408 " in client.recv(64)


def test_a_client_that_is_gone_ends_its_request(proxy: Conductor, engines: list[Engine]) -> None:
    proxy.register("a", "both", url=engines[0].url)
    engines[0].pause_s = 10.0
    connection = http.client.HTTPConnection("127.0.0.1", proxy.ports["proxy"], timeout=20)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": "Hello"}))
    end_s = time.monotonic() + 10
    while not engines[0].asked and time.monotonic() < end_s:
        time.sleep(0.02)
    assert under_way(proxy) == 1
    connection.close()  # no answer has begun
    assert engines[0].closed_early.wait(5)


def test_an_instance_that_breaks_off_costs_a_try(proxy: Conductor, engines: list[Engine]) -> None:
    engines[0].breaks_after = 0
    proxy.register("a", "both", url=engines[0].url)
    status, document, _ = complete(proxy)
    assert (status, document["error"]["code"]) == (502, "MS-1201")
    assert "127.0.0.1" not in document["error"]["message"]  # no client's business
    proxy.register("a", "both", url=engines[0].url)
    proxy.register("b", "both", url=engines[1].url)
    for number in range(3):
        assert complete(proxy, stream=number % 2 == 0)[0] == 200
    engines[0].breaks_after = engines[1].breaks_after = 5  # something of it has been sent
    proxy.register("a", "both", url=engines[0].url)
    for engine in engines:
        engine.asked.clear()
    status, text, _ = complete(proxy, stream=True)
    assert (status, text.count('{"word": ')) == (200, 5)
    assert '"code":"MS-1201"' in text
    asked = [*engines[0].asked, *engines[1].asked]
    assert len([one for one in asked if one["stream"]]) == 1


@pytest.mark.parametrize("dead", [0, 1])
def test_either_half_may_be_dead(proxy: Conductor, engines: list[Engine], dead: int) -> None:
    engines[dead].close()
    proxy.register("a", "prefill", url=engines[0].url)
    proxy.register("b", "decode", url=engines[1].url)
    assert complete(proxy)[0] == 502
    spare = Engine("c")
    try:
        proxy.register("c", ("prefill", "decode")[dead], url=spare.url)
        status, document, _ = complete(proxy, max_completion_tokens=9, n=2, min_tokens=3)
        assert status == 200
        assert document["choices"][0]["text"] == ("b" if dead == 0 else "c")
        first = (engines[0] if dead else spare).asked[-1]
        assert (first["max_completion_tokens"], first["n"], first["min_tokens"]) == (1, 1, 0)
        assert "max_tokens" not in first
    finally:
        spare.close()


def test_an_engines_refusal_of_a_prompt_is_the_answer(
    proxy: Conductor, engines: list[Engine]
) -> None:
    proxy.register("a", "prefill", url=engines[0].url)
    proxy.register("b", "decode", url=engines[1].url)
    assert complete(proxy, model="wrong")[0] == 404
    assert engines[1].asked == []


def test_requests_of_one_name_are_two(proxy: Conductor, engines: list[Engine]) -> None:
    proxy.register("a", "both", url=engines[0].url)
    engines[0].pause_s = 0.1
    answers: list[tuple[int, Any, dict[str, str]]] = []

    def ask() -> None:
        body = {"prompt": [1, 2, 3], "stream": True}
        named = {"x-request-id": "same"}
        answers.append(proxy.ask("POST", "/v1/completions", body, port="proxy", headers=named))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert [answer[0] for answer in answers] == [200, 200]
    names = {answer[2]["x-request-id"] for answer in answers}
    assert len(names) == 2 and "same" in names
    for name in names:
        assert "finished" in json.dumps(proxy.ok("GET", f"/v1/decisions/{name}"))


def test_an_instance_without_a_url_is_told_of(proxy: Conductor) -> None:
    for url in ("", "http://", "http://127.0.0.1:x"):
        proxy.register("a", "both", url=url)
        status, document, _ = complete(proxy)
        assert (status, document["error"]["code"]) == (502, "MS-1201")
        assert "without a URL" in document["error"]["message"]
    assert proxy.ask("GET", "/v1/models", port="proxy")[0] == 503


def test_secrets_go_to_the_instance_alone(
    capfd: pytest.CaptureFixture[str], start: Start, engines: list[Engine]
) -> None:
    proxy = start("--proxy", "--proxy-port", "0", "--log-level", "debug")
    proxy.register("a", "both", url=engines[0].url)
    named = {"authorization": "Bearer hush-1"}
    body = {"prompt": "hush-2, for nobody"}
    assert proxy.ask("POST", "/v1/completions", body, port="proxy", headers=named)[0] == 200
    assert engines[0].authorization == ["Bearer hush-1"]
    port = re.search(r":(\d+)$", engines[0].url)
    engines[0].close()
    assert port is not None
    proxy.register("a", "both", url=f"http://user:hush-3@127.0.0.1:{port[1]}")
    status, document, _ = proxy.ask("POST", "/v1/completions", body, port="proxy", headers=named)
    assert status == 502
    proxy.child.end()
    logged = capfd.readouterr().err
    assert "instance_failed" in logged
    assert "hush" not in logged + json.dumps(document)


def test_answers_are_counted(proxy: Conductor, engines: list[Engine]) -> None:
    proxy.register("a", "both", url=engines[0].url)

    def counted() -> float:
        _, text, _ = proxy.ask("GET", "/metrics")
        name = 'mooncake_store_conductor_proxy_requests_total{status="200"}'
        return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name))

    before = counted()
    assert complete(proxy)[0] == 200
    assert counted() == before + 1
