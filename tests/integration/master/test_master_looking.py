"""What keeps objects, and looking around, on the message channel of a real master process."""

from __future__ import annotations

import time
from typing import Any

import pytest

from mooncake_store._native import lib
from mooncake_store.client.native import metric_names
from mooncake_store.errors import Status
from mooncake_store.protocol import frames
from mooncake_store.protocol.frames import Frame
from mooncake_store.protocol.methods import (
    AnnotateField,
    EventKind,
    ExplainFlag,
    FateKind,
    Kind,
    MemberState,
    Method,
    ObjectFlag,
)

PAGE = frames.PAGE_SIZE


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
    unpinned = client.value(Method.UNPIN, frames.Match(client.hashes(b"0", b"1", b"3").hashes))
    assert unpinned.statuses[:2] == (Status.OK, Status.OK)
    assert unpinned.statuses[2] == Status.NOT_FOUND


def test_touched_objects_stay_longest(bench: Any, master: Any, client: Any) -> None:
    bench.ready_server(master, client, page_count=256)
    for key in (b"0", b"1", b"2", b"3"):
        client.put(key, 60 * PAGE)
    client.send(Frame(Method.TOUCH, kind=Kind.ONEWAY, body=client.hashes(b"0").encode()))
    client.put(b"4", 60 * PAGE)
    assert client.exists(b"0", b"1") == [True, False]


def test_what_comes_after_pins_were_stated_is_refused(bench: Any, master: Any, client: Any) -> None:
    """A call that its client has given up may come as late as it likes."""
    bench.ready_server(master, client, page_count=256)
    client.put(b"a")
    hashes = client.hashes(b"a").hashes

    def pin_count() -> int:
        stat = client.value(Method.STAT, frames.KeyItem(client.hash(b"a"), b"a"))
        return int(stat.pin_count)

    def state(number: int, count: int, deadline_ms: int = 0) -> frames.Pins:
        return frames.Pins(number, (frames.PinsItem(hashes[0], count, deadline_ms),))

    two = client.value(Method.PINS, state(5, 2))
    assert two.statuses == (Status.OK,) and pin_count() == 1  # sessions, not how often
    for method, late in (
        (Method.PIN, frames.Match(hashes, pin=1, number=4)),
        (Method.UNPIN, frames.Match(hashes, number=5)),
        (Method.MATCH_PREFIX, frames.Match(hashes, pin=1, number=3)),
        (Method.PINS, state(5, 0)),
    ):
        answer = client.ask(method, late)
        assert answer.status == Status.BAD_REQUEST and b"comes after PINS 5" in answer.body
    for _ in range(2):
        unpin = frames.Match(hashes, number=6)
        assert client.value(Method.UNPIN, unpin).statuses == (Status.OK,)
    assert client.value(Method.UNPIN, unpin).statuses == (Status.NOT_FOUND,)
    assert pin_count() == 0
    other = bench.client(master)  # numbers are of a session
    assert other.value(Method.PIN, frames.Match(hashes, pin=1, number=1)).statuses == (Status.OK,)


@pytest.mark.parametrize(("pin", "deadline_ms"), [(0, 0), (2, 0), (3, 1000)])
def test_a_pin_says_what_it_is(client: Any, server: Any, pin: int, deadline_ms: int) -> None:
    client.put(b"a")
    hashes = client.hashes(b"a").hashes
    wrong = frames.Match(hashes, pin=pin, pin_deadline_ms=deadline_ms)
    assert client.ask(Method.PIN, wrong).status == Status.BAD_REQUEST
    lease = frames.Match(hashes, pin=2, pin_deadline_ms=60_000)
    assert client.value(Method.PIN, lease).statuses == (Status.OK,)
    assert client.value(Method.UNPIN, frames.Match(hashes)).statuses == (Status.NOT_FOUND,)
    assert client.ask(Method.MATCH_PREFIX, lease).status == Status.BAD_REQUEST


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
    names = metric_names()
    values = {
        (names[counter.id], counter.label): counter.value
        for counter in client.value(Method.STATUS).items
    }
    assert values["sessions", 0] == 1
    assert values["servers", 0] == 1
    assert values["server_up", server.number + 1] == 1
    assert values["server_bytes", server.number + 1] == 1024 * PAGE
    assert values["server_objects", server.number + 1] == 1


def test_metrics_have_the_same_numbers_in_every_version() -> None:
    names = metric_names()
    assert len(names) == lib.ma_metric_count(), "two names have one number"
    by_name = {name: number for number, name in names.items()}
    assert by_name["objects"] == 0xE32A3CDE
    assert by_name["master_version"] == 0xD354D21B
    assert by_name["server_storage_full_total"] == 0x92AD4E6E


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
