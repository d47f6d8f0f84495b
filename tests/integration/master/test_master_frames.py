"""The methods of the message channel, against a real master process."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from mooncake_store._native import ffi, lib
from mooncake_store.errors import Status
from mooncake_store.protocol import frames
from mooncake_store.protocol.frames import Frame
from mooncake_store.protocol.methods import (
    AnnotateField,
    EventKind,
    ExplainFlag,
    FateKind,
    FrameFlag,
    Kind,
    MemberState,
    Method,
    ObjectFlag,
    PutFlag,
    Right,
    Role,
)

PAGE = frames.PAGE_SIZE


@pytest.fixture
def master(bench: Any) -> Any:
    return bench.master()


@pytest.fixture
def client(bench: Any, master: Any) -> Any:
    return bench.client(master)


@pytest.fixture
def server(bench: Any, master: Any, client: Any) -> Any:
    return bench.ready_server(master, client)


# ---- HELLO ---------------------------------------------------------------------------------------


def test_hello_gives_a_session_the_secret_and_the_cluster(master: Any, client: Any) -> None:
    hello = client.hello
    assert hello.epoch == master.endpoints.epoch == 1
    assert f"{hello.cluster:016x}" == master.endpoints.cluster
    assert hello.session != 0
    assert len(hello.secret) == 192
    assert hello.session_timeout_ms == 10_000
    assert hello.location_lifetime_ms == 30_000
    assert hello.boot_id != bytes(16)


def test_each_new_client_has_a_session_of_its_own_and_a_second_connection_shares_it(
    bench: Any, master: Any, client: Any
) -> None:
    other = bench.client(master)
    assert other.hello.session != client.hello.session
    again = bench.client(master, session=client.hello.session, epoch=client.hello.epoch)
    assert again.hello.session == client.hello.session


@pytest.mark.parametrize(
    ("fields", "status", "says"),
    [
        ({"version_oldest": 7, "version_newest": 9}, Status.VERSION_MISMATCH, "7 to 9"),
        ({"tenant": b"other"}, Status.REFUSED, "tenant"),
        ({"token": b"secret"}, Status.REFUSED, "token"),
        ({"role": Role.ENGINE}, Status.REFUSED, "role 3"),
        ({"session": 12345, "epoch": 1}, Status.SESSION_LOST, "open a new one"),
    ],
)
def test_a_hello_that_cannot_be_served_is_refused_with_a_sentence_and_closed(
    bench: Any, master: Any, client: Any, fields: dict[str, Any], status: Status, says: str
) -> None:
    peer = bench.client(master, **fields)
    assert Status(peer.hello_frame.status) == status
    assert says in peer.hello_frame.body.decode()
    assert peer.is_closed()
    assert client.exists(b"a") == [False], "another client is unharmed"
    master.wait_log(f"{says}")


def test_who_is_of_another_cluster_is_refused_before_it_is_anything_here(
    bench: Any, master: Any, client: Any
) -> None:
    own = client.hello.cluster
    node = frames.ServerInfo(node_id=bytes(range(16)), incarnation=1, name=b"stray", host=b"stray")
    stray = bench.client(master, role=Role.SERVER, server=node, cluster=own ^ 1)
    assert Status(stray.hello_frame.status) == Status.REFUSED
    said = stray.hello_frame.body.decode()
    assert f"{own:016x}" in said and f"{own ^ 1:016x}" in said and "restart" in said
    assert stray.is_closed()
    assert client.value(Method.MEMBERS).items == ()
    assert "server_joined" not in master.log()

    session = {"session": client.hello.session, "epoch": client.hello.epoch}
    assert Status(bench.client(master, **session, cluster=own).hello_frame.status) == Status.OK
    taken = bench.client(master, **session, cluster=own ^ 1)
    assert Status(taken.hello_frame.status) == Status.SESSION_LOST
    assert "cluster" in taken.hello_frame.body.decode()


def test_the_unix_socket_serves_the_same(bench: Any, master: Any, client: Any) -> None:
    from_unix = bench.client(
        type("", (), {"address": master.endpoints.unix_path}),
        session=client.hello.session,
        epoch=client.hello.epoch,
    )
    assert from_unix.exists(b"a") == [False]


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
    assert found.lifetime_ms == 30_000
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


# ---- pins, notes, copies -------------------------------------------------------------------------


def test_the_longest_prefix_is_matched_and_pinned_in_one_call(
    bench: Any, master: Any, client: Any
) -> None:
    bench.ready_server(master, client, page_count=256)
    for key in (b"0", b"1", b"3"):
        client.put(key, 60 * PAGE)
    match = frames.Match(client.hashes(b"0", b"1", b"2", b"3").hashes, pin=1)
    assert len(client.value(Method.MATCH_PREFIX, match).items) == 2
    client.put(b"more", 60 * PAGE)
    client.put(b"evicts", 60 * PAGE)
    assert client.exists(b"0", b"1", b"3") == [True, True, False]
    unpinned = client.value(Method.UNPIN, client.hashes(b"0", b"1", b"3"))
    assert unpinned.statuses[:2] == (Status.OK, Status.OK)
    assert unpinned.statuses[2] == Status.NOT_FOUND


def test_touched_objects_stay_longest(bench: Any, master: Any, client: Any) -> None:
    bench.ready_server(master, client, page_count=256)
    for key in (b"0", b"1", b"2", b"3"):
        client.put(key, 60 * PAGE)
    client.send(Frame(Method.TOUCH, kind=Kind.ONEWAY, body=client.hashes(b"0").encode()))
    client.put(b"4", 60 * PAGE)
    assert client.exists(b"0", b"1") == [True, False]


def test_pins_are_gone_with_their_session(bench: Any, master: Any, client: Any) -> None:
    bench.ready_server(master, client, page_count=256)
    pinning = bench.client(master)
    pinning.put(b"a", 200 * PAGE)
    pinned = pinning.value(Method.PIN, frames.Match(pinning.hashes(b"a", b"x").hashes, pin=1))
    assert pinned.statuses == (Status.OK, Status.NOT_FOUND)
    body = frames.PutStart(0, (client.put_item(b"b", 200 * PAGE),))
    assert client.value(Method.PUT_START, body).grants[0].status == Status.NO_SPACE
    assert pinning.ask(Method.CLOSE_SESSION).status == Status.OK
    assert client.value(Method.PUT_START, body).grants[0].status == Status.OK


def test_a_note_is_answered_when_the_holder_has_it(client: Any, server: Any) -> None:
    grant = client.put(b"key")
    annotate = frames.Annotate(
        frames.KeyItem(client.hash(b"key"), b"key"),
        fields=AnnotateField.HARD_PIN | AnnotateField.TTL,
        flags=ObjectFlag.HARD_PIN,
        ttl_ms=60_000,
    )
    assert client.ask(Method.ANNOTATE, annotate).status == Status.OK
    note = frames.Note.decode(server.wait_frame(Method.NOTE).body)
    assert (note.version, note.flags & 1, note.epoch) == (grant.version, 1, 1)
    assert abs(note.expiry_ms / 1e3 - time.time() - 60) < 5
    absent = frames.Annotate(frames.KeyItem(client.hash(b"x"), b"x"), fields=1)
    assert Status(client.ask(Method.ANNOTATE, absent).status) == Status.NOT_FOUND


def test_a_replica_is_added_by_a_copy_between_servers(
    bench: Any, master: Any, client: Any, server: Any
) -> None:
    client.put(b"key", 3 * PAGE)
    other = bench.ready_server(master, client, node=2)
    change = frames.ChangeReplica(frames.KeyItem(client.hash(b"key"), b"key"), replica_count=2)
    location = client.value(Method.CHANGE_REPLICA, change)
    assert {replica.server for replica in location.replicas} == {server.number, other.number}
    copy = frames.Copy.decode(other.wait_frame(Method.COPY).body)
    assert copy.source.replicas[0].server == server.number
    assert copy.seal.key == b"key"


# ---- looking -------------------------------------------------------------------------------------


def test_stat_tells_what_the_master_knows(client: Any, server: Any) -> None:
    grant = client.put(b"key", 5000, ttl_ms=60_000, group=7)
    client.value(Method.PIN, frames.Match(client.hashes(b"key").hashes, pin=1))
    stat = client.value(Method.STAT, frames.KeyItem(client.hash(b"key"), b"key"))
    assert (stat.location.version, stat.location.size) == (grant.version, 5000)
    assert stat.pin_count == 1
    assert 50_000 < stat.ttl_ms <= 60_000
    absent = client.ask(Method.STAT, frames.KeyItem(client.hash(b"x"), b"x"))
    assert Status(absent.status) == Status.NOT_FOUND
    assert absent.body


def explain(client: Any, key: bytes) -> Any:
    return client.value(Method.EXPLAIN, frames.KeyItem(client.hash(key), key))


def test_explain_tells_what_is_there_and_what_has_become_of_it(
    bench: Any, master: Any, client: Any, server: Any, until: Any
) -> None:
    never = explain(client, b"never")
    assert (never.flags, never.stat, never.fates) == (0, None, ())
    assert never.history_ms == never.leading_ms > 0

    putter = bench.client(master, name=b"putter")
    (open_grant,) = putter.put_start(putter.put_item(b"open", 5000))
    being_put = explain(client, b"open")
    assert being_put.flags == ExplainFlag.PUTTING
    assert (being_put.put_version, being_put.put_size) == (open_grant.version, 5000)
    assert being_put.put_session == putter.hello.session
    assert being_put.put_name == b"putter"
    assert 50_000 < being_put.put_deadline_ms <= 60_000

    grant = client.put(b"here", 5000, group=7)
    here = explain(client, b"here")
    assert (here.flags, here.fates) == (ExplainFlag.STORED, ())
    assert (here.stat.location.version, here.stat.group) == (grant.version, 7)
    assert here.stat.use_count == 0, "asking why is no use"

    remover = bench.client(master, name=b"remover")
    gone = client.put(b"gone", 6000)
    assert remover.value(Method.REMOVE, remover.remove_body(b"gone")).statuses == (Status.OK,)
    # Who did it is told when that session has ended, too.
    assert remover.ask(Method.CLOSE_SESSION).status == Status.OK
    (fate,) = explain(client, b"gone").fates
    assert (fate.kind, fate.version, fate.size) == (FateKind.REMOVED, gone.version, 6000)
    assert (fate.session, fate.name) == (remover.hello.session, b"remover")
    assert fate.server == server.number + 1

    client.put(b"short", ttl_ms=1)
    until(lambda: explain(client, b"short").flags == 0)
    assert explain(client, b"short").fates[0].kind == FateKind.EXPIRED

    assert putter.ask(Method.CLOSE_SESSION).status == Status.OK
    (fate,) = explain(client, b"open").fates
    assert (fate.kind, fate.name) == (FateKind.PUT_SESSION_ENDED, b"putter")

    # A hash that is not that of the key tells nothing of other keys.
    other = frames.KeyItem(client.hash(b"gone"), b"never")
    assert client.ask(Method.EXPLAIN, other).status == Status.BAD_REQUEST


def test_explain_names_the_put_that_evicted(client: Any, server: Any, until: Any) -> None:
    old = client.put(b"old", 800 * PAGE)
    put = client.put_item(b"large", 900 * PAGE)
    (grant,) = client.put_start(put)
    assert client.put_end(b"large", grant) == Status.OK
    (fate,) = explain(client, b"old").fates
    assert (fate.kind, fate.version) == (FateKind.EVICTED_FOR_PUT, old.version)
    assert (fate.bytes_wanted, fate.session) == (900 * PAGE, client.hello.session)


def test_explain_tells_of_a_lost_server(bench: Any, until: Any) -> None:
    master = bench.master(member_grace_ms=100)
    client = bench.client(master)
    server = bench.ready_server(master, client)
    client.put(b"key")
    server.close()
    until(lambda: explain(client, b"key").flags == 0)
    (fate,) = explain(client, b"key").fates
    assert (fate.kind, fate.server) == (FateKind.NODE_LOST, server.number + 1)


def test_members_and_keepalive_tell_of_changes(bench: Any, master: Any, client: Any) -> None:
    before = client.value(Method.KEEPALIVE).members_serial
    server = bench.ready_server(master, client)
    after = client.value(Method.MEMBERS)
    assert after.serial > before
    (member,) = after.items
    assert member.node_id == bytes([1]) * 16
    assert member.state == MemberState.READY
    assert (member.name, member.host, member.addresses) == (b"node-1", b"host-1", b"127.0.0.1:1")
    assert member.segments == (frames.SegmentInfo(0, 0, 1024, 1024),)
    server.close()
    bench.peers.remove(server)
    master.wait_log("server_gone")
    assert client.value(Method.KEEPALIVE).members_serial > after.serial


def test_status_has_the_counters_by_the_names_of_the_list(client: Any, server: Any) -> None:
    client.put(b"key")
    metric = ffi.new("ma_metric *")
    values = {}
    for counter in client.value(Method.STATUS).items:
        lib.ma_metric_get(counter.id, metric)
        values[ffi.string(metric.name).decode(), counter.label] = counter.value
    assert values["sessions", 0] == 1
    assert values["servers", 0] == 1
    assert values["server_up", server.number + 1] == 1
    assert values["server_bytes", server.number + 1] == 1024 * PAGE
    assert values["server_objects", server.number + 1] == 1


def test_events_tell_what_happened_in_order(client: Any, server: Any) -> None:
    client.put(b"key")
    client.value(Method.REMOVE, client.remove_body(b"key"))
    answer = client.value(Method.EVENTS, frames.EventsRequest(1, 1, 1000))
    of_key = [item.kind for item in answer.items if item.key == b"key"]
    assert of_key == [EventKind.STORED, EventKind.REMOVED]
    assert [item.sequence for item in answer.items] == list(
        range(answer.items[0].sequence, answer.sequence_next)
    )
    more = client.value(Method.EVENTS, frames.EventsRequest(answer.sequence_next, 1, 1000))
    assert more.items == ()
    wrong = client.ask(Method.EVENTS, frames.EventsRequest(1, 9, 1000))
    assert Status(wrong.status) == Status.GONE
    assert b"LIST" in wrong.body


# ---- sessions ------------------------------------------------------------------------------------


def test_a_silent_session_ends_and_its_puts_are_taken_back_with_a_fence(bench: Any) -> None:
    master = bench.master(session_timeout_ms=500)
    watching = bench.client(master)
    stop = threading.Event()

    def keep() -> None:
        while not stop.wait(0.1):
            watching.ask(Method.KEEPALIVE)

    server = bench.ready_server(master, watching)
    silent = bench.client(master)
    (grant,) = silent.put_start(silent.put_item(b"key"))
    keeper = threading.Thread(target=keep)
    keeper.start()
    try:
        free = frames.Free.decode(server.wait_frame(Method.FREE).body)
    finally:
        stop.set()
        keeper.join()
    assert [(item.version, item.session) for item in free.items] == [
        (grant.version, silent.hello.session)
    ]
    for method in (Method.KEEPALIVE, Method.MEMBERS):
        assert Status(silent.ask(method).status) == Status.SESSION_LOST
    frame = silent.ask(Method.EXISTS_KEYS, silent.hashes(b"key"))
    assert Status(frame.status) == Status.SESSION_LOST
    assert b"open a new one" in frame.body
    again = bench.client(master, session=silent.hello.session, epoch=silent.hello.epoch)
    assert Status(again.hello_frame.status) == Status.SESSION_LOST
    master.wait_log("session_ended")


def test_a_put_past_its_deadline_is_taken_back_with_its_session(
    bench: Any, master: Any, client: Any, server: Any
) -> None:
    frozen = bench.client(master)
    (grant,) = frozen.put_start(frozen.put_item(b"key", deadline_ms=300))
    assert grant.lifetime_ms <= 300
    free = frames.Free.decode(server.wait_frame(Method.FREE).body)
    assert [(item.version, item.session) for item in free.items] == [
        (grant.version, frozen.hello.session)
    ]
    assert Status(frozen.ask(Method.KEEPALIVE).status) == Status.SESSION_LOST
    assert client.exists(b"key") == [False]


def test_a_session_outlives_its_connections_until_its_timeout(
    bench: Any, master: Any, client: Any, server: Any
) -> None:
    first = bench.client(master)
    (grant,) = first.put_start(first.put_item(b"key"))
    first.close()
    bench.peers.remove(first)
    again = bench.client(master, session=first.hello.session, epoch=first.hello.epoch)
    assert again.put_end(b"key", grant) == Status.OK


def test_a_closed_session_is_lost_on_all_its_connections(
    bench: Any, master: Any, client: Any
) -> None:
    second = bench.client(master, session=client.hello.session, epoch=client.hello.epoch)
    assert client.ask(Method.CLOSE_SESSION).status == Status.OK
    assert Status(client.ask(Method.KEEPALIVE).status) == Status.SESSION_LOST
    assert Status(second.ask(Method.KEEPALIVE).status) == Status.SESSION_LOST


# ---- rights and bad input ------------------------------------------------------------------------


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


# ---- store servers -------------------------------------------------------------------------------


def test_a_server_that_falls_silent_is_given_up(bench: Any) -> None:
    master = bench.master(server_silence_ms=1500, member_grace_ms=0)
    client = bench.client(master)
    server = bench.ready_server(master, client)
    client.put(b"key")
    server.has_stats = False
    assert server.is_over.wait(10.0), "its connection is closed"
    master.wait_log("server_silent")

    def is_gone() -> bool:
        return client.exists(b"key") == [False]

    deadline_s = time.monotonic() + 5.0
    while not is_gone() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    assert is_gone()


def test_a_new_incarnation_takes_the_place_of_the_old_connection(
    bench: Any, master: Any, client: Any, server: Any
) -> None:
    client.put(b"key")
    again = bench.server(master, incarnation=2).wait_adopted()
    assert server.is_over.wait(10.0), "the former life is cut off"
    assert again.number == server.number
    deadline_s = time.monotonic() + 5.0
    while client.exists(b"key") == [True] and time.monotonic() < deadline_s:
        time.sleep(0.02)
    assert client.exists(b"key") == [False], "the new life has nothing"
    (member,) = client.value(Method.MEMBERS).items
    assert (member.incarnation, member.state) == (2, MemberState.READY)


def test_an_old_incarnation_is_refused(bench: Any, master: Any, client: Any) -> None:
    bench.ready_server(master, client, incarnation=5)
    old = bench.server(master, incarnation=4)
    assert Status(old.hello_frame.status) == Status.WRONG_INCARNATION
    assert b"incarnation 4" in old.hello_frame.body


def kept_item(client: Any, version: int = 3, page: int = 5) -> frames.InventoryItem:
    """An object that another leader's client has put."""
    return frames.InventoryItem(
        hash=client.hash(b"kept-%d" % version),
        version=frames.version(1, version),
        page=page,
        page_count=2,
        size=5000,
        tenant=b"default",
        key=b"kept-%d" % version,
    )


def test_what_a_server_brings_in_its_inventory_is_there(bench: Any) -> None:
    master = bench.master_that_knows(node=1)
    client = bench.client(master)
    item = kept_item(client)
    bench.ready_server(master, client, inventory=(item,))
    (location,) = client.value(Method.LOOKUP, client.hashes(b"kept-3")).items
    assert location.size == 5000
    assert location.replicas[0].extents == (frames.Extent(5, 2),)


def test_what_a_forgotten_server_brings_counts_if_it_is_newer(bench: Any) -> None:
    master = bench.master_that_knows(node=1, struck=frames.version(1, 7))
    client = bench.client(master)
    inventory = tuple(kept_item(client, version, 10 * version) for version in (3, 7, 8))
    server = bench.ready_server(master, client, inventory=inventory)
    assert client.exists(b"kept-3", b"kept-7", b"kept-8") == [False, False, True]
    freed = frames.Free.decode(server.wait_frame(Method.FREE).body).items
    assert [item.page for item in freed] == [30, 70]


def test_what_a_server_brings_that_has_no_number_does_not_count(bench: Any) -> None:
    master = bench.master_that_knows(node=2)
    client = bench.client(master)
    server = bench.ready_server(master, client, node=1, inventory=(kept_item(client),))
    assert client.exists(b"kept-3") == [False]
    assert server.number == 1
    freed = frames.Free.decode(server.wait_frame(Method.FREE).body).items
    assert [item.page for item in freed] == [5]
    assert client.put(b"kept-3").version > frames.version(2, 0)


def test_what_needs_the_index_waits_for_the_first_inventory(bench: Any) -> None:
    master = bench.master_that_knows(node=1)
    client = bench.client(master)
    item = kept_item(client)
    server = bench.server(master, inventory=(item,), holds_inventory=True)
    server.wait_frame(Method.ADOPT)
    lookup = client.start(Method.LOOKUP, client.hashes(b"kept-3"))
    put = client.start(Method.PUT_START, frames.PutStart(0, (client.put_item(b"new"),)))
    assert client.is_silent(0.2)
    assert client.ask(Method.KEEPALIVE).status == Status.OK  # what needs no index does not wait
    gone = bench.client(master)
    gone.start(Method.LOOKUP, gone.hashes(b"kept"))
    gone.close()
    server.may_tell.set()
    (location,) = frames.Locations.decode(client.finish(lookup).body).items
    assert location.size == 5000
    assert frames.Grants.decode(client.finish(put).body).grants[0].status == Status.OK


def test_what_needs_the_index_waits_for_a_second_at_most(
    bench: Any, master: Any, client: Any
) -> None:
    server = bench.server(master, holds_inventory=True)
    server.wait_frame(Method.ADOPT)
    started_s = time.monotonic()
    answer = client.value(Method.PUT_START, frames.PutStart(0, (client.put_item(b"new"),)))
    assert 0.7 < time.monotonic() - started_s < 5.0
    assert answer.grants[0].status == Status.UNAVAILABLE
    assert answer.sentence == b"no store server has brought its inventory yet"
    server.may_tell.set()


# ---- many ----------------------------------------------------------------------------------------


def test_64_clients_at_once_are_all_served(bench: Any, master: Any, client: Any) -> None:
    bench.ready_server(master, client, page_count=64 * 20)
    failures: list[BaseException] = []
    start = threading.Barrier(64)

    def work(number: int) -> None:
        try:
            start.wait(30.0)
            peer = bench.client(master)
            for index in range(5):
                peer.put(b"%d/%d" % (number, index))
            assert peer.exists(*(b"%d/%d" % (number, index) for index in range(5))) == [True] * 5
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert not failures, failures[0]
    answer = client.value(Method.LIST, frames.ListRequest(limit=1000))
    assert len(answer.items) == 320
