"""Store servers at the message channel of a real master process."""

from __future__ import annotations

import time
from typing import Any

from mooncake_store.errors import Status
from mooncake_store.protocol import frames
from mooncake_store.protocol.methods import (
    MemberState,
    Method,
)

PAGE = frames.PAGE_SIZE


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
