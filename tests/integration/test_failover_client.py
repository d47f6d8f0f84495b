"""A client goes round what does not answer: real processes that are killed and frozen.

How fast is measured by `bench failover`; limits here say only that nobody waited for a deadline, on
a machine that may be busy.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mooncake_store import AsyncClient, Client
from mooncake_store.cli.bench.cluster import Cluster, ServerProcess
from mooncake_store.errors import StoreError, UnavailableError
from tests.waiting import until

pytestmark = pytest.mark.timeout(120)

MIB = 1 << 20
DEADLINE_S = 10.0
SOON_S = 4.0  # well before the deadline
OPEN = 2  # Statistics.master_state


@contextmanager
def frozen(process: ServerProcess) -> Iterator[None]:
    process.freeze()
    try:
        yield
    finally:
        process.thaw()


def taken_s(call: Callable[[], object]) -> float:
    begun_s = time.monotonic()
    call()
    return time.monotonic() - begun_s


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(pool_size_bytes=64 * MIB, servers=3) as made:
        yield made


@pytest.fixture
def far(cluster: Cluster) -> Iterator[Client]:
    """A client as on another host; the cluster is whole and empty."""
    settings = {"use_local_paths": False, "strict": True, "timeout_s": DEADLINE_S}
    with Client(cluster.address, **settings) as client:
        until(lambda: sum(m.state == "ready" for m in client.members()) == 3)
        client.remove_matching("")
        yield client


def number_of(client: Client, index: int) -> int:
    """The master's number of the index-th server."""
    return next(m.server for m in client.members() if m.name.endswith(f"-{index}"))


def put_on(client: Client, key: str, value: bytes, *indexes: int) -> None:
    """Put an object so that its replicas are on these servers, the first one first."""
    for _ in range(50):
        first = number_of(client, indexes[0])
        assert client.put(key, value, replicas=len(indexes), preferred_server=first)
        found = client.stat(key)
        assert found is not None
        if sorted(replica.node[-2:] for replica in found.replicas) == [f"-{i}" for i in indexes]:
            return
        client.remove(key)
        client.put(f"ballast/{time.monotonic_ns()}", bytes(MIB))
    raise AssertionError("the replicas never lay where they should")


def test_read_of_a_frozen_holder_goes_to_the_other_and_stays_there(
    cluster: Cluster, far: Client
) -> None:
    put_on(far, "two", b"v" * 70_000, 0, 1)
    for index in (0, 1):
        with frozen(cluster.servers[index]):
            assert taken_s(lambda: far.get("two")) < SOON_S
            assert far.get("two") == b"v" * 70_000
            before = far.statistics().reads_moved
            for _ in range(20):
                assert far.get("two") == b"v" * 70_000
            assert far.statistics().reads_moved == before, "it was asked again by a caller"
        until(lambda: far.statistics().nodes_avoided == 0)
    assert far.statistics().reads_moved > 0


def test_first_contact_with_a_frozen_server_is_inside_the_hedge(
    cluster: Cluster, far: Client
) -> None:
    put_on(far, "met", b"v" * 4096, 0, 1)
    for settings in ({"use_local_paths": False}, {}):
        for index in (0, 1):
            with Client(cluster.address, strict=True, timeout_s=DEADLINE_S, **settings) as other:
                assert other.exists("met")
                other.match_prefix(["met"])  # knows where, and has no connection there
                with frozen(cluster.servers[index]):
                    assert taken_s(lambda: other.get("met")) < SOON_S
                    assert other.get("met") == b"v" * 4096


def test_batch_does_not_wait_for_the_one_that_is_frozen(cluster: Cluster, far: Client) -> None:
    values = {f"one/{index}": bytes([index]) * 5000 for index in range(3)}
    for index in range(3):
        put_on(far, f"one/{index}", values[f"one/{index}"], index)
    with Client(cluster.address, use_local_paths=False, timeout_s=DEADLINE_S) as other:
        keys = list(values)
        assert other.get_batch(keys) == list(values.values())
        with frozen(cluster.servers[1]):
            begun_s = time.monotonic()
            found = other.get_batch(keys)
            assert time.monotonic() - begun_s < SOON_S
            assert found == [values["one/0"], None, values["one/2"]]
            assert other.last_error is not None and "bench" in str(other.last_error)
        until(lambda: other.get_batch(keys) == list(values.values()))


def test_late_answer_does_not_reach_the_buffer(cluster: Cluster, far: Client) -> None:
    put_on(far, "late", b"v" * (2 * MIB), 2)
    buffer = bytearray(2 * MIB)
    assert far.get_into("late", buffer) == len(buffer)
    with frozen(cluster.servers[2]):
        with pytest.raises(StoreError):
            far.get_into("late", buffer, timeout_s=1.0)
        buffer[:] = b"mine" * (len(buffer) // 4)
    until(lambda: far.get("late") is not None)
    time.sleep(0.3)
    assert buffer == b"mine" * (len(buffer) // 4)


def test_mapped_memory_of_a_frozen_server_is_read_on(cluster: Cluster, far: Client) -> None:
    put_on(far, "mapped", b"v" * 100_000, 0)
    with Client(cluster.address, strict=True) as near:
        assert near.get("mapped") == b"v" * 100_000
        with frozen(cluster.servers[0]):
            assert near.get("mapped") == b"v" * 100_000


def test_puts_go_round_a_frozen_server_and_keep_their_replicas(
    cluster: Cluster, far: Client
) -> None:
    victim = number_of(far, 0)
    put_on(far, "warm", b"v", 0)  # it is known, and has a connection
    with frozen(cluster.servers[0]):
        begun_s = time.monotonic()
        for number in range(30):
            value = bytes([number]) * 90_000
            assert far.put(f"round/{number}", value, preferred_server=victim) is True
            assert far.get(f"round/{number}") == value
        assert far.put("round/two", b"v", replicas=2, min_replicas=2) is True
        assert time.monotonic() - begun_s < SOON_S
        assert far.statistics().puts_moved == 1, "only the first one had to find out"
        found = far.stat("round/two")
        assert found is not None and sorted(r.node[-2:] for r in found.replicas) == ["-1", "-2"]
    totals = far.counters().totals
    assert totals["puts_open"] == 0
    until(lambda: far.counters().totals["pool_freeing_bytes"] == 0)
    assert [far.get(f"round/{number}") for number in range(30)] == [
        bytes([number]) * 90_000 for number in range(30)
    ]


@pytest.mark.parametrize("checksums", ["off", "put"])
def test_small_batches_go_round_a_frozen_server_in_the_middle_of_them(
    cluster: Cluster, checksums: str
) -> None:
    """The bytes of both halves are under way when the answer does not come."""
    settings = {"use_local_paths": False, "strict": True, "timeout_s": DEADLINE_S}
    with Client(cluster.address, checksums=checksums, **settings) as store:
        until(lambda: sum(m.state == "ready" for m in store.members()) == 3)
        store.remove_matching("")
        victim = number_of(store, 0)
        for index in range(3):
            put_on(store, f"warm/{index}", b"v", index)
        stored: dict[str, bytes] = {}
        with frozen(cluster.servers[0]):
            begun_s = time.monotonic()
            for batch in range(8):
                values = {f"small/{batch}/{i}": f"{batch}.{i}".encode() * 3 for i in range(128)}
                assert store.put_batch(
                    list(values), list(values.values()), preferred_server=victim
                ) == [True] * len(values)
                stored |= values
            assert time.monotonic() - begun_s < SOON_S
            assert 0 < store.statistics().puts_moved <= 128, "only the first batch found out"
            assert store.get_batch(list(stored)) == list(stored.values())
        until(lambda: store.counters().totals["pool_freeing_bytes"] == 0)
        assert store.counters().totals["puts_open"] == 0
        assert store.get_batch(list(stored)) == list(stored.values())


def test_a_busy_holder_is_waited_for_where_no_other_could_take_its_place() -> None:
    def replicas_of(client: Client, key: str) -> int:
        found = client.stat(key)
        return 0 if found is None else len(found.replicas)

    settings = {"use_local_paths": False, "strict": True, "timeout_s": DEADLINE_S}
    with (
        Cluster(pool_size_bytes=64 * MIB, servers=2) as cluster,
        Client(cluster.address, **settings) as client,
    ):
        assert client.put("known", b"v", replicas=2)  # connected to both
        assert replicas_of(client, "known") == 2
        for busy in cluster.servers:
            with frozen(busy):
                thaw = threading.Timer(0.4, busy.thaw)
                thaw.start()
                key = f"busy/{busy.pid}"
                assert client.put(key, bytes(70_000), replicas=2)
                thaw.join()
            assert replicas_of(client, key) == 2
        # One that stays silent costs one put a second, and its replica.
        with frozen(cluster.servers[1]):
            assert taken_s(lambda: client.put("first", b"v", replicas=2)) < SOON_S
            begun_s = time.monotonic()
            for number in range(20):
                assert client.put(f"next/{number}", b"v", replicas=2)
            assert time.monotonic() - begun_s < 1.0
            assert replicas_of(client, "next/19") == 1
        # With one replica the other node takes it at once.
        until(lambda: client.statistics().nodes_avoided == 0)
        with frozen(cluster.servers[0]):
            number = number_of(client, 0)
            put = lambda: client.put("elsewhere", b"v", preferred_server=number)  # noqa: E731
            assert taken_s(put) < 1.0


def test_calls_wait_for_the_next_master_and_puts_are_put_once() -> None:
    with Cluster(pool_size_bytes=64 * MIB) as cluster:
        store = Client(cluster.address, strict=True, timeout_s=DEADLINE_S, use_local_paths=False)
        stored: list[str] = []
        wrong: list[object] = []
        is_over = threading.Event()

        def write() -> None:
            number = 0
            while not is_over.is_set():
                key = f"through/{number}"
                number += 1
                try:
                    if store.put(key, key.encode()) is not True:
                        wrong.append(f"{key} was there")
                    if not store.exists(key):
                        wrong.append(f"{key} is not there")
                    stored.append(key)
                except StoreError as error:
                    wrong.append(error)

        threads = [threading.Thread(target=write)]
        threads[0].start()
        try:
            for kills in range(20):
                # A put_end without an answer is looked up; any other call is sent again.
                if kills >= 2 and store.statistics().calls_repeated > 0:
                    break
                time.sleep(0.3)
                cluster.kill_master()
                cluster.start_master()
                before = len(stored)
                until(lambda before=before: len(stored) > before)  # type: ignore[misc]
        finally:
            is_over.set()
            threads[0].join()
        assert wrong == []
        assert store.get_batch(stored) == [key.encode() for key in stored]
        assert store.statistics().calls_repeated > 0
        store.close()


@pytest.mark.parametrize("is_frozen", [False, True])
def test_without_a_master_nobody_waits_for_long(is_frozen: bool) -> None:
    with Cluster(pool_size_bytes=16 * MIB) as cluster, Client(cluster.address) as store:
        assert store.put("known", b"v")
        assert store.get("known") == b"v"
        if is_frozen:
            cluster.master.freeze()
        else:
            cluster.kill_master()
        assert store.get("other") is None  # this one has waited
        assert isinstance(store.last_error, StoreError) and store.last_error.retryable
        until(lambda: store.statistics().master_state == OPEN)
        begun_s = time.monotonic()
        for _ in range(100):
            assert store.get("other") is None
            assert store.exists("other") is False
            assert store.match_prefix(["other"]).count == 0
            assert store.get("known") == b"v"
            assert store.get_batch(["known", "other"]) == [b"v", None]
            with pytest.raises(UnavailableError, match="has not answered"):
                store.put("other", b"v")
        assert time.monotonic() - begun_s < 1.0
        if is_frozen:
            cluster.master.thaw()
        else:
            cluster.start_master()
        until(lambda: store.statistics().master_state == 0)
        assert store.put("other", b"v")
        assert store.get("other") == b"v"
        # It works in one session, which it knows, whatever it tried meanwhile.
        for _ in range(20):
            with store.match_prefix(["known", "other"], pin=True) as found:
                assert found.count == 2
        totals = store.counters().totals
        assert (totals["sessions"], totals["pins"], totals["pool_pinned_bytes"]) == (1, 0, 0)


def test_client_may_be_opened_before_its_master() -> None:
    with Cluster(pool_size_bytes=16 * MIB) as cluster:
        cluster.kill_master()
        opened: list[Client] = []
        thread = threading.Thread(
            target=lambda: opened.append(Client(cluster.address, connect_timeout_s=30.0))
        )
        thread.start()
        time.sleep(0.5)
        assert opened == []
        cluster.start_master()
        thread.join(20.0)
        assert len(opened) == 1
        with opened[0] as store:
            assert store.put("early", b"v")
            assert store.get("early") == b"v"


def test_opening_without_a_master_ends_in_time() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"127.0.0.1:{closed.getsockname()[1]}"
    begun_s = time.monotonic()
    with pytest.raises(UnavailableError):
        Client(address, connect_timeout_s=0.5)
    assert 0.4 < time.monotonic() - begun_s < SOON_S
    begun_s = time.monotonic()
    with pytest.raises(UnavailableError):
        Client(address, connect_timeout_s=30.0, wait_for_master=False)
    assert time.monotonic() - begun_s < SOON_S


def test_reads_of_a_frozen_server_hold_up_no_others_of_asyncio(
    cluster: Cluster, far: Client
) -> None:
    put_on(far, "silent", b"v" * 4096, 0)
    put_on(far, "speaks", b"w" * 4096, 1)

    async def read_both() -> tuple[int, bytes | None]:
        settings = {"use_local_paths": False, "worker_threads": 1, "timeout_s": DEADLINE_S}
        async with AsyncClient(cluster.address, **settings) as client:
            assert await client.get("silent") == b"v" * 4096
            assert await client.get("speaks") == b"w" * 4096
            with frozen(cluster.servers[0]):
                held = [asyncio.create_task(client.get("silent")) for _ in range(8)]
                await asyncio.sleep(0.02)  # all of them are with the worker, or in the lane
                value = await client.get("speaks")
                waiting = sum(not each.done() for each in held)
                assert await asyncio.gather(*held) == [None] * len(held)
        return waiting, value

    waiting, value = asyncio.run(read_both())
    assert value == b"w" * 4096
    assert waiting == 8, "the other read waited for some of a frozen server"
