"""Views that nobody closes: when they end, and what stays readable until then."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.errors import TransferTimeoutError

MIB = 1 << 20
VALUE = bytes(range(256)) * 8192  # 2 MiB


@pytest.fixture
def store(shared_cluster: Cluster) -> Iterator[Client]:
    with Client(shared_cluster.address, strict=True) as client:
        yield client


@pytest.fixture
def key(store: Client) -> str:
    name = f"views/{uuid.uuid4().hex}"
    store.put(name, VALUE)
    return name


def pages_wait(store: Client) -> bool:
    """Whether a removed object's pages wait for a view."""
    return store.counters().totals["frees_held"] > 0


def pages_come_back(store: Client, timeout_s: float = 10) -> bool:
    end = time.monotonic() + timeout_s
    while pages_wait(store):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def warned(drop: Callable[[], None]) -> int:
    """How many views are reported while `drop` runs."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        drop()
        gc.collect()
    return sum("view" in str(found.message) for found in caught)


def test_dropped_view_ends_with_a_warning(store: Client, key: str) -> None:
    views = [store.view(key)]
    store.remove(key)
    assert pages_wait(store)
    assert warned(views.clear) == 1
    assert pages_come_back(store)


def test_closed_view_and_a_miss_warn_of_nothing(store: Client, key: str) -> None:
    views = [store.view(key), store.view(key + "/absent")]
    for view in views:
        view.close()
    del view
    store.remove(key)
    assert warned(views.clear) == 0
    assert pages_come_back(store)


def test_array_keeps_the_pages_of_a_dropped_view(store: Client, key: str) -> None:
    numpy = pytest.importorskip("numpy")
    view = store.view(key)
    arrays = [numpy.frombuffer(view.memory, dtype="uint8")[MIB:]]
    with pytest.raises(BufferError):
        view.close()
    store.remove(key)
    del view
    gc.collect()
    assert pages_wait(store)
    assert bytes(arrays[0]) == VALUE[MIB:]
    arrays.clear()
    assert pages_come_back(store)


def test_slice_keeps_the_pages_of_a_closed_view(store: Client, key: str) -> None:
    view = store.view(key)
    assert view.memory is not None
    part = view.memory[:4096]
    with pytest.raises(BufferError):
        view.close()
    store.remove(key)
    assert pages_wait(store)
    assert part == VALUE[:4096]
    del part
    view.close()  # more than once is harmless
    assert pages_come_back(store)


def test_view_dropped_after_its_client_was_closed_ends(shared_cluster: Cluster, key: str) -> None:
    closed = Client(shared_cluster.address)
    views = [closed.view(key)]
    closed.close()
    with Client(shared_cluster.address, strict=True) as store:
        store.remove(key)
        assert pages_wait(store)
        assert warned(views.clear) == 1
        assert pages_come_back(store)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_that_drops_a_view_does_not_end_its_parents(store: Client, key: str) -> None:
    views = [store.view(key)]
    pid = os.fork()
    if pid == 0:
        try:
            warnings.simplefilter("ignore")
            views.clear()
            gc.collect()
        finally:
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    store.remove(key)
    assert pages_wait(store)
    assert views[0].memory == VALUE
    views.pop().close()
    assert pages_come_back(store)


@pytest.mark.parametrize("holds", ["view", "[view.memory[:5]]"])
def test_process_that_exits_with_a_view_gives_its_pages_back(
    shared_cluster: Cluster, store: Client, key: str, holds: str
) -> None:
    script = (
        "import sys, mooncake_store\n"
        f"store = mooncake_store.Client({shared_cluster.address!r})\n"
        f"view = store.view({key!r})\n"
        f"kept = {holds}\n"
        "sys.stdout.write('open')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "open", "")
    store.remove(key)
    assert pages_come_back(store)


@pytest.fixture(scope="module")
def lone_cluster() -> Iterator[Cluster]:
    """One server, to be frozen."""
    with Cluster(pool_size_bytes=64 * MIB) as cluster:
        yield cluster


@contextmanager
def frozen(cluster: Cluster) -> Iterator[None]:
    server = cluster.servers[0]
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


@pytest.mark.timeout(120)
@pytest.mark.parametrize("closes", [False, True], ids=["open", "closed meanwhile"])
def test_view_that_timed_out_does_not_stay_at_a_frozen_server(
    lone_cluster: Cluster, closes: bool
) -> None:
    key = f"views/{uuid.uuid4().hex}"
    with Client(lone_cluster.address, strict=True) as other:
        store = Client(lone_cluster.address, strict=True)
        other.put(key, VALUE)
        kept = store.view(key)  # another one of the same pages, which must not be ended instead
        with frozen(lone_cluster):
            with pytest.raises(TransferTimeoutError):
                store.view(key, timeout_s=0.5)
            if closes:
                store.close()
        time.sleep(1.5)  # what was sent is handled, and what was owed settled
        other.remove(key)
        assert pages_wait(other)
        assert kept.memory == VALUE
        kept.close()
        assert pages_come_back(other)
        store.close()


@pytest.mark.timeout(120)
def test_views_closed_at_a_frozen_server_end_when_it_wakes(lone_cluster: Cluster) -> None:
    keys = [f"views/{uuid.uuid4().hex}" for _ in range(3)]
    with Client(lone_cluster.address, strict=True) as store:
        store.put_batch(keys, [VALUE] * 3)
        views = [store.view(key) for key in keys]
        with frozen(lone_cluster):
            for view in views:
                view.close()  # the second one finds no connection
        store.remove(keys)
        assert pages_come_back(store)


@pytest.mark.timeout(120)
def test_views_closed_with_their_client_at_a_frozen_server_end_when_it_wakes(
    lone_cluster: Cluster,
) -> None:
    keys = [f"views/{uuid.uuid4().hex}" for _ in range(3)]
    with Client(lone_cluster.address, strict=True) as other:
        store = Client(lone_cluster.address, strict=True)
        other.put_batch(keys, [VALUE] * 3)
        views = [store.view(key) for key in keys]
        kept = store.view(keys[0])
        with frozen(lone_cluster):
            views[0].close()
            store.close()
            views[1].close()
            views[2].close()
            time.sleep(1)  # its closes are repeated and not heard
        other.remove(keys)
        end = time.monotonic() + 15
        while other.counters().totals["frees_held"] != 1:
            assert time.monotonic() < end, "views that nobody has are kept"
            time.sleep(0.02)
        assert kept.memory == VALUE
        kept.close()
        assert pages_come_back(other)
