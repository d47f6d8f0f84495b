"""Rights, and frames that make no sense, against a real master process."""

from __future__ import annotations

from typing import Any

import pytest

from mooncake_store.errors import Status
from mooncake_store.protocol import frames
from mooncake_store.protocol.frames import Frame
from mooncake_store.protocol.methods import (
    Kind,
    Method,
    Right,
)

PAGE = frames.PAGE_SIZE


def test_a_reading_connection_reads_and_does_not_write(
    bench: Any, master: Any, client: Any
) -> None:
    reader = bench.client(master, right=Right.READ)
    assert reader.exists(b"a") == [False]
    for method, body in (
        (Method.PUT_START, frames.PutStart(0, (reader.put_item(b"a"),))),
        (Method.REMOVE, reader.remove_body(b"a")),
        (Method.REMOVE_MATCHING, frames.ListRequest(b"")),
    ):
        frame = reader.ask(method, body)
        assert Status(frame.status) == Status.REFUSED
        assert b"read only" in frame.body


def test_a_store_servers_connection_is_none_of_a_client(
    bench: Any, master: Any, client: Any
) -> None:
    server = bench.server(master).wait_adopted()
    server.start(Method.REMOVE_MATCHING, frames.ListRequest(b""))
    server.start(Method.MEMBERS)
    refused = server.wait_frame(Method.REMOVE_MATCHING)
    assert Status(refused.status) == Status.REFUSED
    assert len(server.wait_frame(Method.MEMBERS).decode_body().items) == 1


def test_a_client_cannot_speak_as_a_server(bench: Any, master: Any, client: Any) -> None:
    server = bench.ready_server(master, client, page_count=256)
    server.holds_frees.set()
    client.put(b"old", 200 * PAGE)
    waiting = client.start(
        Method.PUT_START, frames.PutStart(1, (client.put_item(b"new", 200 * PAGE),))
    )
    free = server.wait_frame(Method.FREE)
    stranger = bench.client(master)
    stranger.send(Frame(Method.FREED, kind=Kind.ONEWAY, body=free.body))
    assert client.is_silent(0.3), "granted on the word of a stranger"
    server.free(Method.FREED, free)
    assert client.finish(waiting).decode_body().grants[0].status == Status.OK


def test_an_unknown_method_is_refused_and_the_connection_goes_on(client: Any) -> None:
    frame = client.ask(0x7F)  # type: ignore[arg-type]
    assert Status(frame.status) == Status.BAD_REQUEST
    assert b"0x7f" in frame.body
    assert client.exists(b"a") == [False]


@pytest.mark.parametrize(
    ("method", "body"),
    [
        (Method.EXISTS_KEYS, b"\xff" * 24),
        (Method.LOOKUP, (2**32 - 1).to_bytes(8, "little")),
        (Method.PUT_START, b"\x00" * 7),
        (Method.PUT_END, b"\x01" * 64),
        (Method.REMOVE, b"\xff" * 100),
        (Method.LIST, b"\xff" * 24),
        (Method.STAT, b"\xff" * 30),
        (Method.MATCH_PREFIX, b"\xff" * 16),
        (Method.ANNOTATE, b"\xff" * 5),
        (Method.CHANGE_REPLICA, b"\xff" * 200),
        (Method.EVENTS, b"\x00"),
        (Method.MEMBERS, b"\x00"),
        (Method.STATUS, b"\x00"),
    ],
)
def test_a_body_that_makes_no_sense_closes_that_connection_only(
    bench: Any, master: Any, client: Any, method: Method, body: bytes
) -> None:
    bad = bench.client(master)
    frame = bad.ask(method, body)
    assert Status(frame.status) == Status.BAD_FRAME
    assert bad.is_closed()
    assert client.exists(b"a") == [False]
    master.wait_log(f'bad_frame peer="test" method=0x{method:02x}')


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"\0" * 64,
        bytes(range(256)),
        Frame(Method.EXISTS_KEYS, request=1).encode()[:20] + b"\xff" * 28,
        frames.Header(method=Method.LOOKUP, body_length=2**31).encode(),
        frames.Header(method=Method.LOOKUP, kind=9).encode(),
    ],
)
def test_garbage_closes_that_connection_only(
    bench: Any, master: Any, client: Any, garbage: bytes
) -> None:
    bad = bench.client(master)
    bad.send_bytes(garbage)
    assert bad.is_closed()
    assert client.exists(b"a") == [False]


def test_a_oneway_frame_that_wants_an_answer_closes_the_connection(
    bench: Any, master: Any, client: Any
) -> None:
    bad = bench.client(master)
    bad.send(Frame(Method.EXISTS_KEYS, kind=Kind.ONEWAY, body=client.hashes(b"a").encode()))
    assert bad.is_closed()
    assert client.exists(b"a") == [False]


def test_garbage_from_a_store_server_closes_it_and_harms_no_client(
    bench: Any, master: Any, client: Any, server: Any
) -> None:
    client.put(b"key")
    server.send(Frame(Method.FREED, kind=Kind.ONEWAY, body=b"\xff" * 40))
    assert server.is_over.wait(10.0)
    assert client.exists(b"key") == [True], "its objects stay until the grace is over"


def test_answers_of_another_epoch_or_incarnation_free_nothing(client: Any, server: Any) -> None:
    client.put(b"key")
    server.holds_frees.set()
    request = client.start(Method.REMOVE, client.remove_body(b"key"))
    free = frames.Free.decode(server.wait_frame(Method.FREE).body)
    for wrong in (frames.Free(2, 1, free.items), frames.Free(1, 2, free.items)):
        server._oneway(Method.FREED, wrong)
    assert client.is_silent(0.3)
    server._oneway(Method.FREED, free)
    assert client.finish(request).decode_body().statuses == (Status.OK,)
