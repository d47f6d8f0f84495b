"""What goes wrong in or around a client: the bytes that others read stay right."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.errors import ClosedError, StoreError

KIB, MIB = 1 << 10, 1 << 20


def value_of(key: str, size: int, version: int = 0) -> bytes:
    """Bytes that prove which put of which key they are."""
    return random.Random(f"{key}/{version}").randbytes(size)


def wait_until(is_true: Callable[[], bool], timeout_s: float = 15) -> bool:
    end = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.timeout(120)
def test_staged_put_into_many_extents_is_byte_exact() -> None:
    """Holes of several sizes: frames of one extent are still copied while the next one begins."""
    with (
        Cluster(pool_size_bytes=64 * MIB) as cluster,
        Client(cluster.address, strict=True) as store,
        Client(cluster.address, strict=True, use_local_paths=False) as far,
    ):
        for hole in (64 * KIB, 300 * KIB, 1200 * KIB):
            keys = [f"hole/{hole}/{number}" for number in range(60 * MIB // hole)]
            assert all(store.put_batch(keys, [bytes(hole)] * len(keys)))
            assert all(store.remove(keys[::2]))
            for round_number in range(3):
                key = f"large/{hole}/{round_number}"
                value = value_of(key, 24 * hole if hole > MIB else 12 * MIB)
                assert store.put(key, value) is True
                found = store.stat(key)
                assert found is not None and found.replicas[0].extent_count > 4
                assert far.get(key) == value
                assert store.remove(key)
            store.remove_matching("")


def test_view_outlives_its_client_and_gives_its_pages_back(shared_cluster: Cluster) -> None:
    key, value = "faults/view", value_of("faults/view", 3 * MIB)
    with Client(shared_cluster.address, strict=True) as other:
        before = other.counters().totals
        client = Client(shared_cluster.address, strict=True)
        client.upsert(key, value)
        view = client.view(key)
        with view as memory:
            assert memory is not None
            client.close()
            with pytest.raises(ClosedError):
                client.get(key)
            assert other.remove(key)
            assert other.counters().totals["frees_held"] == before["frees_held"] + 1
            assert bytes(memory) == value
        assert wait_until(
            lambda: other.counters().totals["pool_freeing_bytes"] == before["pool_freeing_bytes"]
        )
        assert other.counters().totals["frees_held"] == before["frees_held"]
        view.close()  # more than once is harmless


@pytest.mark.timeout(120)
def test_frozen_server_does_not_seal_what_the_source_holds_later() -> None:
    """A put that timed out leaves its memory to the caller; the server wakes when it is changed.

    Only an inventory can show it: the master has died meanwhile and was told no end of the put.
    """
    with Cluster(pool_size_bytes=64 * MIB) as cluster, Client(cluster.address) as store:
        server = cluster.servers[0]
        memory = store.alloc(MIB)
        value = value_of("late", MIB)
        assert store.put("warm", memory) is True
        memory[:] = value
        server.signal(signal.SIGSTOP)
        try:
            time.sleep(0.2)  # its threads stop one after the other
            with ThreadPoolExecutor(1) as pool:
                put = pool.submit(store.put, "late", memory, timeout_s=1)
                time.sleep(0.3)
                cluster.kill_master()
                with pytest.raises(StoreError):
                    put.result()
            memory[:] = value_of("other", MIB)
        finally:
            server.signal(signal.SIGCONT)
        time.sleep(0.3)
        cluster.start_master()
        assert wait_until(lambda: store.get("warm") is not None)
        assert store.get("late") in (None, value)


@contextlib.contextmanager
def frozen_master(cluster: Cluster) -> Iterator[None]:
    """A master that will handle what is sent to it meanwhile, in any order."""
    cluster.master.signal(signal.SIGSTOP)
    time.sleep(0.2)  # its threads stop one after the other
    try:
        yield
    finally:
        cluster.master.signal(signal.SIGCONT)


def pins_of(cluster: Cluster) -> int:
    with Client(cluster.address) as other:
        return int(other.counters().totals["pins"])


@pytest.mark.timeout(120)
def test_a_pin_that_was_not_answered_does_not_stay() -> None:
    with Cluster(pool_size_bytes=64 * MIB) as cluster, Client(cluster.address) as store:
        keys = [f"late-{number}" for number in range(20)]
        for key in keys:
            store.put(key, b"x")
        for _ in range(5):
            with frozen_master(cluster):
                for key in keys[:3]:
                    with contextlib.suppress(StoreError):
                        assert not store.pin(key, timeout_s=0.1)
                    with contextlib.suppress(StoreError):
                        assert not store.unpin(key, timeout_s=0.1)
                with contextlib.suppress(StoreError):
                    assert store.match_prefix(keys, pin=True, timeout_s=0.1).count == 0
            assert wait_until(lambda: store.exists(keys[0]))
        assert wait_until(lambda: pins_of(cluster) == 0)
        time.sleep(1.5)
        assert pins_of(cluster) == 0
        assert store.pin(keys[0]) and pins_of(cluster) == 1
        assert store.unpin(keys[0]) and not store.unpin(keys[0])


@pytest.mark.timeout(120)
def test_an_unpin_is_certain() -> None:
    """Whoever unpins cannot do more than that, and need not try again."""
    with Cluster(pool_size_bytes=64 * MIB) as cluster, Client(cluster.address) as store:
        for key in ("once", "twice", "prefix"):
            store.put(key, b"x")
        assert store.pin(["once", "twice", "twice"]) == [True, True, True]
        found = store.match_prefix(["prefix"], pin=True)
        assert pins_of(cluster) == 3
        with frozen_master(cluster):
            assert store.unpin(["once", "twice"], timeout_s=0.3) == [True, True]
            began_s = time.monotonic()
            found.unpin()
            assert time.monotonic() - began_s < 7.0
            with contextlib.suppress(StoreError):
                assert not store.unpin("once", timeout_s=0.3)
        assert wait_until(lambda: pins_of(cluster) == 1)
        time.sleep(1.5)
        assert pins_of(cluster) == 1  # one of the two is still held
        assert store.unpin("twice") and not store.unpin("twice")
        assert pins_of(cluster) == 0


def test_pins_of_a_batch_with_a_bad_key_are_a_list(shared_cluster: Cluster) -> None:
    with Client(shared_cluster.address, strict=True) as store:
        assert store.put("faults/pin", b"x") in (True, False)
        for results in (store.pin(["faults/pin", ""]), store.unpin(["faults/pin", ""])):
            assert type(results) is list
            assert results[0] is True and isinstance(results[1], StoreError)
        store.remove("faults/pin")


@pytest.mark.timeout(120)
def test_a_put_short_of_replicas_leaves_nothing_behind() -> None:
    """One replica is sealed when the put is given up: it must not come to light later."""
    with (
        Cluster(pool_size_bytes=64 * MIB, servers=2) as cluster,
        Client(cluster.address, use_local_paths=False) as store,
    ):
        cluster.servers[1].signal(signal.SIGSTOP)
        value = value_of("half", 256 * KIB)
        before = store.counters().totals["puts_revoked_total"]
        with pytest.raises(StoreError):
            store.put("half", value, replicas=2, min_replicas=2, timeout_s=1.0)
        totals = store.counters().totals
        assert totals["puts_open"] == 0
        assert totals["puts_revoked_total"] > before
        cluster.servers[1].signal(signal.SIGCONT)
        cluster.kill_master()
        cluster.start_master()
        assert wait_until(lambda: sum(m.state == "ready" for m in store.members()) == 2)
        assert store.get("half") is None
        assert store.put("half", value, replicas=2, min_replicas=2, timeout_s=10.0) is True
