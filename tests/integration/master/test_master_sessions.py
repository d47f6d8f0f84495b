"""HELLO and sessions on the message channel, against a real master process."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from mooncake_store.errors import Status
from mooncake_store.protocol import frames
from mooncake_store.protocol.methods import (
    Method,
    Role,
)

PAGE = frames.PAGE_SIZE


# ---- HELLO ---------------------------------------------------------------------------------------


def test_hello_gives_a_session_the_secret_and_the_cluster(master: Any, client: Any) -> None:
    hello = client.hello
    assert hello.epoch == master.endpoints.epoch == 1
    assert f"{hello.cluster:016x}" == master.endpoints.cluster
    assert hello.session != 0
    assert len(hello.secret) == 192
    assert hello.session_timeout_ms == 10_000
    assert hello.location_lifetime_ms == 120_000
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
