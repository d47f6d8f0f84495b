"""Putting and removing on the message channel, against a real master process."""

from __future__ import annotations

import time
from typing import Any

import pytest

from mooncake_store.errors import Status
from mooncake_store.protocol import frames
from mooncake_store.protocol.methods import (
    FrameFlag,
    Kind,
    Method,
    PutFlag,
)

PAGE = frames.PAGE_SIZE


# ---- putting -------------------------------------------------------------------------------------


def test_an_object_is_there_from_put_end_on(client: Any, server: Any) -> None:
    (grant,) = client.put_start(client.put_item(b"key", 3 * PAGE))
    assert grant.status == Status.OK
    assert grant.replicas[0].server == server.number
    assert grant.replicas[0].incarnation == 1
    assert sum(extent.page_count for extent in grant.replicas[0].extents) == 3
    assert client.exists(b"key") == [False]
    assert client.put_end(b"key", grant) == Status.OK
    assert client.exists(b"key", b"other") == [True, False]
    found, missed = client.value(Method.LOOKUP, client.hashes(b"key", b"other")).items
    assert (found.status, found.version, found.size) == (Status.OK, grant.version, 3 * PAGE)
    assert found.lifetime_ms == 120_000
    assert missed.status == Status.NOT_FOUND


def test_a_batch_says_of_each_item_how_it_went(client: Any, server: Any) -> None:
    client.put(b"there")
    grants = client.put_start(
        client.put_item(b"new"),
        client.put_item(b"there"),
        client.put_item(b"new"),
        client.put_item(b"\xff\xfe"),
        client.put_item(b"huge", 1 << 34),
    )
    assert [Status(grant.status) for grant in grants] == [
        Status.OK,
        Status.EXISTS,
        Status.BUSY,
        Status.BAD_KEY,
        Status.TOO_LARGE,
    ]


def test_a_put_that_was_revoked_gives_its_pages_back(client: Any, server: Any) -> None:
    (grant,) = client.put_start(client.put_item(b"key"))
    assert client.put_end(b"key", grant, method=Method.REVOKE) == Status.OK
    free = frames.Free.decode(server.wait_frame(Method.FREE).body)
    assert [(item.version, item.session) for item in free.items] == [(grant.version, 0)]
    assert client.put_end(b"key", grant) != Status.OK
    assert client.exists(b"key") == [False]


def test_without_a_store_server_there_is_no_space_and_the_sentence_says_so(client: Any) -> None:
    answer = client.value(Method.PUT_START, frames.PutStart(0, (client.put_item(b"key"),)))
    assert answer.grants[0].status == Status.UNAVAILABLE
    assert answer.sentence == b"no store server has joined this master"


def test_no_space_says_what_the_space_is_used_for(bench: Any, master: Any, client: Any) -> None:
    bench.ready_server(master, client, page_count=256)
    for number in range(4):
        client.put(b"pinned-%d" % number, 60 * PAGE, flags=PutFlag.HARD_PIN)
    answer = client.value(
        Method.PUT_START, frames.PutStart(0, (client.put_item(b"key", 100 * PAGE),))
    )
    assert answer.grants[0].status == Status.NO_SPACE
    sentence = answer.sentence.decode()
    assert "of 1.0 MiB" in sentence
    assert "960.0 KiB hard-pinned" in sentence
    assert "64.0 KiB free" in sentence
    master.wait_log("put_refused")


def test_a_put_that_needs_room_waits_for_the_eviction_and_is_granted(
    bench: Any, master: Any, client: Any
) -> None:
    server = bench.ready_server(master, client, page_count=256)
    server.holds_frees.set()
    client.put(b"old", 200 * PAGE)
    waiting = client.start(
        Method.PUT_START, frames.PutStart(1, (client.put_item(b"new", 200 * PAGE),))
    )
    free = server.wait_frame(Method.FREE)
    assert client.is_silent(0.3), "granted while the old object may still be read"
    server.free(Method.FREED, free)
    (grant,) = client.finish(waiting).decode_body().grants
    assert grant.status == Status.OK
    assert client.put_end(b"new", grant) == Status.OK
    assert client.exists(b"old", b"new") == [False, True]


def test_a_put_that_nobody_waits_for_any_more_is_taken_back(
    bench: Any, master: Any, client: Any
) -> None:
    server = bench.ready_server(master, client, page_count=256)
    server.holds_frees.set()
    client.put(b"old", 200 * PAGE)
    impatient = bench.client(master)
    impatient.start(Method.PUT_START, frames.PutStart(1, (impatient.put_item(b"new", 200 * PAGE),)))
    free = server.wait_frame(Method.FREE)
    impatient.socket.close()
    time.sleep(0.2)
    server.free(Method.FREED, free)
    second = frames.Free.decode(server.wait_frame(Method.FREE, 2).body)
    assert second.items[0].session == 0, "revoked, not fenced: the session goes on"


def test_a_request_that_waits_is_answered_at_its_deadline(
    bench: Any, master: Any, client: Any
) -> None:
    server = bench.ready_server(master, client, page_count=256)
    server.holds_frees.set()
    client.put(b"old", 200 * PAGE)
    started_s = time.monotonic()
    frame = client.ask(
        Method.PUT_START,
        frames.PutStart(1, (client.put_item(b"new", 200 * PAGE),)),
        status=300,  # of a request: its deadline in ms
    )
    assert Status(frame.status) == Status.TIMEOUT
    assert 0.25 < time.monotonic() - started_s < 5.0
    assert b"being freed" in frame.body


# ---- numbers -------------------------------------------------------------------------------------


def test_a_repeated_number_gets_the_first_answer(
    bench: Any, master: Any, client: Any, server: Any
) -> None:
    start = frames.PutStart(1, (client.put_item(b"key"),))
    first = client.ask(Method.PUT_START, start)
    again = bench.client(master, session=client.hello.session, epoch=client.hello.epoch)
    assert again.ask(Method.PUT_START, start).body == first.body
    (grant,) = first.decode_body().grants
    assert client.put_end(b"key", grant, number=2) == Status.OK
    assert client.put_end(b"key", grant, number=2) == Status.OK
    remove = client.remove_body(b"key", number=3)
    assert client.value(Method.REMOVE, remove).statuses == (Status.OK,)
    assert client.value(Method.REMOVE, remove).statuses == (Status.OK,), "not NOT_FOUND"
    client.put(b"key")
    assert client.value(Method.REMOVE, remove).statuses == (Status.OK,)
    assert client.exists(b"key") == [True], "a repeat removes nothing"


def test_a_number_is_of_one_session_only(bench: Any, master: Any, client: Any, server: Any) -> None:
    other = bench.client(master)
    (grant,) = client.put_start(client.put_item(b"a"), number=1)
    (other_grant,) = other.put_start(other.put_item(b"b"), number=1)
    assert grant.version != other_grant.version


def test_a_repeat_of_a_request_under_way_waits_for_the_same_answer(
    bench: Any, master: Any, client: Any, server: Any
) -> None:
    client.put(b"key")
    server.holds_frees.set()
    remove = client.remove_body(b"key", number=1)
    first = client.start(Method.REMOVE, remove)
    free = server.wait_frame(Method.FREE)
    again = bench.client(master, session=client.hello.session, epoch=client.hello.epoch)
    second = again.start(Method.REMOVE, remove)
    assert again.is_silent(0.2)
    server.free(Method.CLEARED, free)
    assert client.finish(first).decode_body().statuses == (Status.OK,)
    assert again.finish(second).decode_body().statuses == (Status.OK,)


def test_an_answer_that_was_said_to_have_arrived_is_forgotten(client: Any, server: Any) -> None:
    client.put_start(client.put_item(b"a"), number=1)
    client.put_start(client.put_item(b"b"), number=2, number_done=1)
    frame = client.ask(Method.PUT_START, frames.PutStart(1, (client.put_item(b"a"),)))
    assert Status(frame.status) == Status.BAD_REQUEST
    assert b"request 1 was answered" in frame.body


def test_a_number_names_a_request_of_one_method(client: Any, server: Any) -> None:
    client.put_start(client.put_item(b"a"), number=1)
    frame = client.ask(Method.REMOVE, client.remove_body(b"a", number=1))
    assert Status(frame.status) == Status.BAD_REQUEST
    assert b"another method" in frame.body


def test_answers_that_are_never_given_up_are_bounded(client: Any, server: Any) -> None:
    for number in range(1, 4097):
        client.start(Method.REMOVE, client.remove_body(b"x", number=number))
    for _ in range(4096):
        assert client.receive().status == Status.OK
    frame = client.ask(Method.REMOVE, client.remove_body(b"x", number=5000))
    assert Status(frame.status) == Status.LIMIT
    assert b"number_done" in frame.body


# ---- relayed put_end -----------------------------------------------------------------------------


def test_a_relayed_end_is_answered_on_the_connection_of_its_put_start(
    bench: Any, master: Any, client: Any, server: Any
) -> None:
    putting = bench.client(master, session=client.hello.session, epoch=client.hello.epoch)
    (grant,) = putting.put_start(putting.put_item(b"key"), number=1)
    server.relay_end(client.hello.session, 77, client.end_item(b"key", grant))
    frame = putting.receive()
    assert (frame.kind, frame.method, frame.request) == (Kind.ANSWER, Method.PUT_END, 77)
    assert frame.decode_body().statuses == (Status.OK,)
    assert client.exists(b"key") == [True]
    assert client.put_end(b"key", grant, number=77) == Status.OK, "the client's own is a repeat"


def test_a_relay_after_the_clients_own_end_says_nothing(client: Any, server: Any) -> None:
    (grant,) = client.put_start(client.put_item(b"key"), number=1)
    assert client.put_end(b"key", grant, number=2) == Status.OK
    server.relay_end(client.hello.session, 2, client.end_item(b"key", grant))
    assert client.is_silent(0.3)
    assert client.exists(b"key") == [True]


def test_a_relay_of_a_lost_session_is_answered_as_such(
    bench: Any, master: Any, client: Any, server: Any
) -> None:
    putting = bench.client(master)
    (grant,) = putting.put_start(putting.put_item(b"key"), number=1)
    item = putting.end_item(b"key", grant)
    server.holds_frees.set()
    session = putting.hello.session
    assert putting.ask(Method.CLOSE_SESSION).status == Status.OK
    server.relay_end(session, 2, item)
    assert client.exists(b"key") == [False]


# ---- removing ------------------------------------------------------------------------------------


def test_a_remove_is_answered_when_all_holders_have_cleared(client: Any, server: Any) -> None:
    client.put(b"key")
    server.holds_frees.set()
    request = client.start(Method.REMOVE, client.remove_body(b"key", b"absent"))
    free = server.wait_frame(Method.FREE)
    assert client.is_silent(0.3)
    server.free(Method.CLEARED, free)
    assert client.finish(request).decode_body().statuses == (Status.OK, Status.NOT_FOUND)


def test_many_removes_are_one_free_frame(client: Any, server: Any) -> None:
    keys = [b"key-%d" % number for number in range(100)]
    for key in keys:
        client.put(key)
    assert set(client.value(Method.REMOVE, client.remove_body(*keys)).statuses) == {Status.OK}
    assert len(server.frames_of(Method.FREE)) == 1


def test_a_hard_pinned_object_is_removed_with_force_only(client: Any, server: Any) -> None:
    client.put(b"key", flags=PutFlag.HARD_PIN)
    assert client.value(Method.REMOVE, client.remove_body(b"key")).statuses == (Status.PINNED,)
    forced = client.remove_body(b"key", flags=FrameFlag.FORCE)
    assert client.value(Method.REMOVE, forced).statuses == (Status.OK,)


def test_objects_are_listed_by_prefix_and_by_regular_expression(client: Any, server: Any) -> None:
    for key in (b"a/1", b"a/2", b"b/1", b"c"):
        client.put(key)

    def listed(pattern: bytes, flags: int = 0) -> set[bytes]:
        cursor, found = 0, set()
        while True:
            body = frames.ListRequest(pattern, cursor=cursor, limit=2, flags=flags)
            answer = client.value(Method.LIST, body)
            assert len(answer.items) <= 2
            found |= {item.key for item in answer.items}
            cursor = answer.cursor
            if cursor == 0:
                return found

    assert listed(b"") == {b"a/1", b"a/2", b"b/1", b"c"}
    assert listed(b"a/") == {b"a/1", b"a/2"}
    assert listed(b"^[ab]/1$", FrameFlag.REGEX) == {b"a/1", b"b/1"}
    assert listed(b"/", FrameFlag.REGEX) == {b"a/1", b"a/2", b"b/1"}


@pytest.mark.parametrize("method", [Method.LIST, Method.REMOVE_MATCHING])
@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        (b"[a", "wrong"),
        (b"(a)\\1", "back references"),
        (b"(a{100}){100}", "repetition"),
        (b"x" * 1025, "1024 bytes"),
    ],
)
def test_a_wrong_expression_is_refused_with_a_sentence(
    client: Any, method: Method, pattern: bytes, says: str
) -> None:
    frame = client.ask(method, frames.ListRequest(pattern, flags=FrameFlag.REGEX))
    assert Status(frame.status) == Status.BAD_REQUEST
    assert says in frame.body.decode()
    assert client.exists(b"a") == [False]


def test_objects_are_removed_by_pattern_step_by_step(client: Any, server: Any) -> None:
    for number in range(25):
        client.put(b"a/%d" % number)
    client.put(b"a/pinned", flags=PutFlag.HARD_PIN)
    client.put(b"b")
    removed = cursor = 0
    while True:
        step = frames.ListRequest(b"^a/", cursor=cursor, limit=10, flags=FrameFlag.REGEX)
        answer = client.value(Method.REMOVE_MATCHING, step)
        removed += answer.count
        cursor = answer.cursor
        if cursor == 0:
            break
    assert removed == 25
    assert client.exists(b"a/3", b"a/pinned", b"b") == [False, True, True]
