"""The sync client against real processes, over shared memory and over TCP."""

from __future__ import annotations

import logging
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster, ServerProcess
from mooncake_store.errors import (
    BufferTooSmallError,
    ClosedError,
    InvalidKeyError,
    ObjectNotFoundError,
    ObjectPinnedError,
    ObjectTooLargeError,
    PoolFullError,
    RequestError,
    StoreError,
    TransferTimeoutError,
    UnavailableError,
)

KIB, MIB = 1 << 10, 1 << 20
SIZES = (0, 1, 15, 4095, 4096, 4097, 65536, 65537, 128 * KIB, 128 * KIB + 1)
LARGE_SIZES = (MIB - 1, MIB, MIB + 1, 5 * MIB + 3, 16 * MIB)


def value_of(key: str, size: int, version: int = 0) -> bytes:
    """Bytes that prove which put of which key they are."""
    return random.Random(f"{key}/{version}").randbytes(size)


@pytest.fixture(params=["local", "tcp", "local, relayed", "tcp, relayed"])
def store(request: pytest.FixtureRequest, shared_cluster: Cluster) -> Iterator[Client]:
    path, _, relayed = request.param.partition(", ")
    with Client(
        shared_cluster.address,
        strict=True,
        use_local_paths=path == "local",
        use_relay=bool(relayed),
    ) as client:
        yield client


@pytest.fixture
def prefix(store: Client) -> Iterator[str]:
    """A key prefix that no other test has; what is under it goes with the test."""
    name = f"{uuid.uuid4().hex}/"
    yield name
    store.remove_matching(name, force=True)


@pytest.mark.parametrize("size", [*SIZES, *LARGE_SIZES])
def test_object_round_trips(store: Client, prefix: str, size: int) -> None:
    key = prefix + "object"
    value = value_of(key, size)
    assert store.put(key, value) is True
    assert store.get(key) == value
    buffer = bytearray(size + 3)
    buffer[size:] = b"end"
    assert store.get_into(key, buffer) == size
    assert bytes(buffer) == value + b"end"


def test_get_into_leaves_a_too_small_buffer_alone(store: Client, prefix: str) -> None:
    store.put(prefix + "x", b"0123456789")
    buffer = bytearray(b"----")
    with pytest.raises(BufferTooSmallError, match="10 bytes, the buffer only 4"):
        store.get_into(prefix + "x", buffer)
    assert buffer == b"----"


def test_a_part_is_read_from_an_offset_on(store: Client, prefix: str) -> None:
    data = value_of("part", 3 * MIB + 5)
    store.put(prefix + "x", data)
    for offset, length in ((0, 7), (1, MIB), (2 * MIB - 3, MIB + 1), (len(data) - 2, 9)):
        buffer = bytearray(length)
        read = store.get_range(prefix + "x", buffer, offset)
        assert read == min(length, len(data) - offset)
        assert buffer[:read] == data[offset : offset + length]
    halves = [bytearray(3), bytearray(4)]
    assert store.get_range(prefix + "x", halves, 10) == 7
    assert b"".join(halves) == data[10:17]
    assert store.get_range(prefix + "x", bytearray(5), len(data)) == 0
    assert store.get_range(prefix + "y", bytearray(5), 0) is None
    for wrong in (-1, 2**63):
        with pytest.raises(RequestError):
            store.get_range(prefix + "x", bytearray(5), wrong)


def test_existing_key_is_left_as_it_is(store: Client, prefix: str) -> None:
    assert store.put(prefix + "x", b"first") is True
    assert store.put(prefix + "x", b"second") is False
    assert store.get(prefix + "x") == b"first"


def test_upsert_replaces_at_once_for_cached_locations(store: Client, prefix: str) -> None:
    key = prefix + "x"
    for version in range(20):
        value = value_of(key, 1000 + version * 700, version)
        assert store.upsert(key, value) is True
        assert store.get(key) == value


def test_missing_object_is_none_everywhere(store: Client, prefix: str) -> None:
    key = prefix + "absent"
    assert store.get(key) is None
    assert store.get_into(key, bytearray(1)) is None
    assert store.exists(key) is False
    assert store.stat(key) is None
    assert store.remove(key) is False
    with store.view(key) as memory:
        assert memory is None
    assert store.get_batch([key, key]) == [None, None]
    with pytest.raises(ObjectNotFoundError):
        store.annotate(key, hard_pin=True)


def test_batches_answer_key_by_key(store: Client, prefix: str) -> None:
    keys = [f"{prefix}{number}" for number in range(400)]
    values = [value_of(key, number * 41) for number, key in enumerate(keys)]
    assert store.put_batch(keys[::2], values[::2]) == [True] * 200
    assert store.put_batch(keys, values) == [False, True] * 200
    assert store.get_batch([*keys, prefix + "no"]) == [*values, None]
    buffers = [bytearray(len(value)) for value in values]
    assert store.get_batch_into(keys, buffers) == [len(value) for value in values]
    assert [bytes(buffer) for buffer in buffers] == values
    assert store.exists_batch([prefix + "no", *keys]) == [False, *[True] * 400]
    assert store.remove([*keys[:3], prefix + "no"]) == [True, True, True, False]


def test_large_batch_keeps_its_order_and_its_repeats(store: Client, prefix: str) -> None:
    """Large batches go to the master in parts: nobody may notice."""
    keys = [f"{prefix}{number:03}" for number in range(130)]
    values = [value_of(key, 100) for key in keys]
    stored = store.put_batch([*keys, keys[0], keys[129]], [*values, b"late", b"late"], chain=True)
    assert stored[:130] == [True] * 130
    assert not any(answer is True for answer in stored[130:])
    assert store.get_batch(keys) == values


def test_threads_with_large_batches_share_few_connections(
    shared_cluster: Cluster, prefix: str
) -> None:
    """A batch may use two connections at once: callers must not wait for each other's second."""
    with (
        Client(shared_cluster.address, strict=True, connections_max=2) as client,
        ThreadPoolExecutor(6) as threads,
    ):

        def put(number: int) -> list[object]:
            keys = [f"{prefix}{number}/{at}" for at in range(200)]
            return list(client.put_batch(keys, [b"x" * 50] * 200, timeout_s=20))

        assert list(threads.map(put, range(18))) == [[True] * 200] * 18
        assert client.remove_matching(prefix) == 18 * 200


def test_mistake_in_a_batch_spoils_only_its_item(store: Client, prefix: str) -> None:
    keys = [prefix + "good", "", "x" * 1025, prefix + "also"]
    results = store.put_batch(keys, [b"a", b"b", b"c", b"d"])
    assert results[0] is True and results[3] is True
    assert isinstance(results[1], InvalidKeyError) and isinstance(results[2], InvalidKeyError)
    found = store.get_batch_into([prefix + "good", prefix + "also"], [bytearray(1), bytearray(0)])
    assert found[0] == 1 and isinstance(found[1], BufferTooSmallError)
    assert store.get_batch(keys)[0] == b"a"


def test_empty_batches_are_empty(store: Client) -> None:
    assert store.put_batch([], []) == []
    assert store.get_batch([]) == []
    assert store.exists_batch([]) == []
    assert store.match_prefix([]).count == 0


@pytest.mark.parametrize("key", ["", "x" * 1025, "ü" * 513, "\ud800"])
def test_bad_key_is_refused(store: Client, key: str) -> None:
    for call in (
        lambda: store.put(key, b""),
        lambda: store.get(key),
        lambda: store.exists(key),
        lambda: store.remove(key),
        lambda: store.stat(key),
        lambda: store.annotate(key, hard_pin=True),
        lambda: store.change_replica(key, 1),
    ):
        with pytest.raises(InvalidKeyError):
            call()


def test_counters_have_names_and_count(store: Client, prefix: str) -> None:
    before = store.counters()
    assert store.put(f"{prefix}/counted", b"value")
    after = store.counters()
    name = "puts_completed_total"
    assert after.totals[name] > before.totals[name]
    assert not any(name.startswith("metric_") for name in after.totals)
    for member in store.members():
        assert after.by_server[member.server]["server_bytes"] == member.size_bytes


def test_failed_command_names_its_key(store: Client, prefix: str) -> None:
    with pytest.raises(StoreError) as caught:
        store.change_replica(f"{prefix}/none", 2)
    assert caught.value.key == f"{prefix}/none"


def test_wrong_types_are_refused_and_lose_nothing(store: Client, prefix: str) -> None:
    with pytest.raises(TypeError):
        store.get(b"bytes")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        store.put(prefix + "x", "text")
    with pytest.raises((TypeError, BufferError)):
        store.get_into(prefix + "x", b"read-only")
    with pytest.raises(ValueError, match="as many buffers as keys"):
        store.put_batch([prefix + "x"], [])
    with pytest.raises(RequestError):
        store.put(prefix + "x", b"", replicas=99)
    with pytest.raises(RequestError):
        store.put(prefix + "x", b"", ttl_s=-1)
    with pytest.raises(ValueError, match="timeout_s"):
        store.get(prefix + "x", timeout_s=0)
    assert store.put(prefix + "x", b"fine") is True


def test_keys_may_be_any_text(store: Client, prefix: str) -> None:
    for key in ("\x1b[31m", "a\nb", "ключ", "🔑" * 60, " ", "x" * 900):
        assert store.put(prefix + key, key.encode()) is True
        assert store.get(prefix + key) == key.encode()
    assert len(list(store.list(prefix))) == 6


def test_value_beyond_the_pool_is_refused_at_once(store: Client, prefix: str) -> None:
    memory = bytes(MIB)
    with pytest.raises(ObjectTooLargeError):
        store.put(prefix + "x", (id(memory), 1 << 40))


def test_removed_object_is_never_seen_again(store: Client, prefix: str) -> None:
    key = prefix + "x"
    for version in range(50):
        store.put(key, value_of(key, 5000, version))
        assert store.get(key) is not None  # its location is cached now
        assert store.remove(key) is True
        assert store.get(key) is None


def test_another_client_sees_a_put_at_once(
    store: Client, shared_cluster: Cluster, prefix: str
) -> None:
    with Client(shared_cluster.address, strict=True) as other:
        for number in range(50):
            key = f"{prefix}{number}"
            store.put(key, key.encode())
            assert other.get(key) == key.encode()
            other.remove(key)
            assert store.get(key) is None


def test_match_prefix_counts_from_the_first(store: Client, prefix: str) -> None:
    keys = [f"{prefix}{number}" for number in range(8)]
    store.put_batch([*keys[:5], keys[6]], [b"x"] * 6, chain=True)
    with store.match_prefix(keys, pin=True) as match:
        assert (match.count, match.keys, match.is_pinned) == (5, keys[:5], True)
        assert store.stat(keys[4]).pin_count == 1  # type: ignore[union-attr]
    assert store.stat(keys[4]).pin_count == 0  # type: ignore[union-attr]
    assert store.match_prefix([prefix + "no", *keys]).count == 0


def test_hard_pin_protects_from_removal(store: Client, prefix: str) -> None:
    key = prefix + "x"
    store.put(key, b"kept", hard_pin=True)
    with pytest.raises(ObjectPinnedError):
        store.remove(key)
    assert store.remove_matching(prefix) == 0
    store.annotate(key, hard_pin=False)
    assert store.remove(key) is True


def test_ttl_ends_an_object(store: Client, prefix: str) -> None:
    key = prefix + "x"
    store.put(key, b"soon gone", ttl_s=0.3)
    assert store.get(key) == b"soon gone"
    assert store.stat(key).ttl_s is not None  # type: ignore[union-attr]
    end = time.monotonic() + 5
    while store.exists(key):
        assert time.monotonic() < end
        time.sleep(0.02)
    store.put(key, b"again")
    store.annotate(key, ttl_s=1000)
    assert 900 < store.stat(key).ttl_s <= 1000  # type: ignore[union-attr,operator]


def test_explain_tells_where_it_is_and_how_it_went(store: Client, prefix: str) -> None:
    key = prefix + "x"
    never = store.explain(key)
    assert never.stat is None and never.open_put is None and never.fates == ()
    assert never.history_s == never.leading_s > 0
    store.put(key, bytes(300_000), replicas=2, group=9)
    store.put(key + "/child", b"c", parent=key)
    there = store.explain(key)
    stat = store.stat(key)
    assert stat is not None and there.stat is not None
    assert (there.stat.version, there.stat.use_count) == (stat.version, stat.use_count)
    assert (there.group, there.child_count, there.parent_hash) == (9, 1, None)
    assert {place.node for place in there.places} == {replica.node for replica in stat.replicas}
    for place in there.places:
        assert place.node_state == "ready" and place.is_complete
        assert sum(count for _, count in place.extents) == 74  # pages of 4 KiB
    assert store.explain(key + "/child").parent_hash is not None
    store.upsert(key, b"other")
    assert store.remove(key) is True
    removed, replaced = store.explain(key).fates
    assert (removed.kind, removed.size_bytes) == ("removed", 5)
    assert removed.version is not None and removed.version > stat.version
    assert (replaced.kind, replaced.version) == ("replaced", stat.version)
    assert (replaced.size_bytes, replaced.bytes_wanted) == (300_000, 5)
    assert removed.session == replaced.session != 0
    assert removed.session_name and removed.node in {place.node for place in there.places}


def test_replicas_lie_on_distinct_nodes(store: Client, prefix: str) -> None:
    key = prefix + "x"
    value = value_of(key, 300_000)
    store.put(key, value, replicas=2)
    nodes = {replica.node for replica in store.stat(key).replicas}  # type: ignore[union-attr]
    assert len(nodes) == 2
    assert store.change_replica(key, 1) == 1
    assert store.get(key) == value
    assert store.change_replica(key, 2) == 2
    assert store.get(key) == value


def test_fewer_replicas_than_asked_are_told(
    store: Client, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):  # whatever level a command in this process has set
        assert store.put(prefix + "x", b"three?", replicas=3) is True
    assert "2 replicas instead of 3" in caplog.text
    with pytest.raises(StoreError):
        store.put(prefix + "y", b"three!", replicas=3, min_replicas=3)
    assert store.exists(prefix + "y") is False


def test_list_by_prefix_and_expression(store: Client, prefix: str) -> None:
    keys = {f"{prefix}{kind}/{number}" for kind in "ab" for number in range(1500)}
    ordered = sorted(keys)
    store.put_batch(ordered, [b""] * len(ordered))
    assert {item.key for item in store.list(prefix)} == keys
    assert len(list(store.list(prefix + "a/"))) == 1500
    assert len(list(store.list(prefix, limit=7))) == 7
    assert len(list(store.list(regex=f"^{prefix}b/1[0-9]$"))) == 10
    with pytest.raises(RequestError):
        list(store.list(regex="("))
    assert store.remove_matching(regex=f"^{prefix}a/.*[13579]$") == 750
    assert store.remove_matching(prefix) == 2250


def test_view_is_the_stored_bytes(store: Client, prefix: str) -> None:
    key = prefix + "x"
    value = value_of(key, MIB)
    store.put(key, value)
    view = store.view(key)
    with view as memory:
        assert memory is not None and memory.readonly and memory == value
        assert store.remove(key) is True  # answered although the view is open
        assert store.get(key) is None
        filler = value_of("filler", MIB)
        for number in range(40):
            store.put(f"{prefix}filler{number}", filler)
        assert memory == value  # its pages were not handed out
    view.close()


def test_alloc_memory_is_a_source(store: Client, prefix: str) -> None:
    memory = store.alloc(8 * MIB)
    value = value_of("alloc", 8 * MIB)
    memory[:] = value
    assert store.put(prefix + "whole", memory) is True
    assert store.put(prefix + "part", memory[MIB + 5 : 3 * MIB]) is True
    assert store.get(prefix + "whole") == value
    assert store.get(prefix + "part") == value[MIB + 5 : 3 * MIB]
    store.free(memory)
    with pytest.raises(RequestError):
        store.free(memory)


def test_raw_memory_is_a_source_and_a_target(store: Client, prefix: str) -> None:
    import ctypes

    source = ctypes.create_string_buffer(value_of("raw", 70_000), 70_000)
    target = ctypes.create_string_buffer(70_000)
    assert store.put(prefix + "x", (ctypes.addressof(source), 70_000)) is True
    assert store.get_into(prefix + "x", (ctypes.addressof(target), 70_000)) == 70_000
    assert target.raw == source.raw


def test_threads_share_a_client(store: Client, prefix: str) -> None:
    wrong: list[str] = []

    def work(thread: int) -> None:
        for number in range(60):
            key = f"{prefix}{thread}/{number}"
            value = value_of(key, 20_000)
            if store.put(key, value) is not True or store.get(key) != value:
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong


def test_one_of_many_writers_wins(store: Client, shared_cluster: Cluster, prefix: str) -> None:
    for round_number in range(10):
        key = f"{prefix}{round_number}"
        stored: list[bytes] = []
        barrier = threading.Barrier(6)

        def write(
            mark: int, key: str = key, stored: list[bytes] = stored, barrier: object = barrier
        ) -> None:
            barrier.wait(10)  # type: ignore[attr-defined]
            value = bytes([mark]) * 30_000
            try:
                if store.put(key, value):
                    stored.append(value)
            except StoreError as error:
                assert error.retryable  # another put of the key was open

        threads = [threading.Thread(target=write, args=(mark,)) for mark in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(stored) == 1
        assert store.get(key) == stored[0]


def test_closed_client_says_so(shared_cluster: Cluster) -> None:
    client = Client(shared_cluster.address)
    client.close()
    client.close()
    for call in (lambda: client.get("x"), lambda: client.put("x", b""), client.members):
        with pytest.raises(ClosedError):
            call()


def test_forked_client_says_so_and_the_parent_goes_on(shared_cluster: Cluster) -> None:
    with Client(shared_cluster.address) as client:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                client.get("x")
                answer = b"no error"
            except ClosedError:
                answer = b"closed"
            os.write(write, answer)
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 100) == b"closed"
        assert client.get("x") is None


def test_nobody_there_is_said_within_the_deadline() -> None:
    started = time.monotonic()
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:9"):
        Client("127.0.0.1:9", connect_timeout_s=1.0)
    assert time.monotonic() - started < 1.5


def test_stranger_at_the_port_is_said_within_the_deadline() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(StoreError):
            Client(f"127.0.0.1:{port}", connect_timeout_s=0.5)


def test_pins_of_a_killed_client_end_with_its_session(shared_cluster: Cluster) -> None:
    key = uuid.uuid4().hex
    program = (
        "import sys, time\n"
        "from mooncake_store import Client\n"
        f"store = Client({shared_cluster.address!r})\n"
        f"store.put({key!r}, b'x'); store.pin({key!r}); print('pinned', flush=True)\n"
        "time.sleep(60)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"pinned\n"
    with Client(shared_cluster.address, strict=True) as store:
        assert store.stat(key).pin_count == 1  # type: ignore[union-attr]
        child.kill()
        child.wait()
        end = time.monotonic() + 30
        while store.stat(key).pin_count:  # type: ignore[union-attr]
            assert time.monotonic() < end
            time.sleep(0.1)
        store.remove(key)
    child.stdout.close()


def freeze(process: ServerProcess) -> None:
    """Stop a process, and return when all its threads stand still."""
    process.signal(signal.SIGSTOP)
    tasks = Path(f"/proc/{process.pid}/task")
    end = time.monotonic() + 5
    while any(
        (task / "stat").read_text().rsplit(")", 1)[1].split()[0] != "T" for task in tasks.iterdir()
    ):
        assert time.monotonic() < end
        time.sleep(0.001)


class TestFaults:
    """Each with a store of its own, because something in it is broken on purpose."""

    def test_frozen_server_is_a_miss_within_the_deadline(self) -> None:
        with Cluster(pool_size_bytes=64 * MIB, servers=1) as cluster:
            with Client(cluster.address, use_local_paths=False) as store:
                store.put("x", b"value")
                freeze(cluster.servers[0])
                started = time.monotonic()
                assert store.get("x", timeout_s=0.5) is None
                assert time.monotonic() - started < 0.7
                assert isinstance(store.last_error, TransferTimeoutError | UnavailableError)
                with pytest.raises(StoreError):
                    store.put("y", b"value", timeout_s=0.5)
                assert time.monotonic() - started < 2.5
                cluster.servers[0].signal(signal.SIGCONT)
                assert store.get("x") == b"value"

    def test_frozen_master_lets_cached_locations_be_read(self) -> None:
        with Cluster(pool_size_bytes=64 * MIB, servers=1) as cluster:
            with Client(cluster.address) as store:
                store.put("x", b"value")
                assert store.get("x") == b"value"
                freeze(cluster.master)
                assert store.get("x", timeout_s=0.5) == b"value"
                started = time.monotonic()
                assert store.exists("x", timeout_s=0.5) is False
                assert store.get("unknown", timeout_s=0.5) is None
                assert time.monotonic() - started < 1.3
                cluster.master.signal(signal.SIGCONT)
                assert store.exists("x") is True

    def test_killed_holder_is_served_by_the_other_replica(self) -> None:
        with Cluster(pool_size_bytes=64 * MIB, servers=2) as cluster:
            for local in (False, True):
                with Client(cluster.address, use_local_paths=local) as store:
                    keys = [f"{local}/{number}" for number in range(20)]
                    value = value_of("replicated", 100_000)
                    for key in keys:
                        store.put(key, value, replicas=2)
                        assert store.get(key) == value
            with Client(cluster.address, use_local_paths=False) as store:
                cluster.servers[0].signal(signal.SIGKILL)
                for key in keys:
                    assert store.get(key) == value

    def test_killed_server_is_a_miss_and_a_refused_put(self) -> None:
        with Cluster(pool_size_bytes=64 * MIB, servers=1) as cluster:
            with Client(cluster.address, use_local_paths=False) as store:
                store.put("x", b"value")
                cluster.servers[0].signal(signal.SIGKILL)
                assert store.get("x", timeout_s=2) is None
                with pytest.raises(StoreError):
                    store.put("y", b"value", timeout_s=2)

    def test_full_pool_of_pinned_objects_says_what_fills_it(self) -> None:
        with Cluster(pool_size_bytes=32 * MIB, servers=1) as cluster:
            with Client(cluster.address, strict=True) as store:
                value = bytes(4 * MIB)
                count = 0
                with pytest.raises(PoolFullError, match="pinned"):
                    for count in range(20):
                        store.put(f"pinned/{count}", value, hard_pin=True, timeout_s=3)
                assert count >= 6
                store.annotate("pinned/0", hard_pin=False)
                assert store.put("fits", value) is True
                assert store.exists("pinned/0") is False

    def test_ipv6_serves(self) -> None:
        with Cluster(pool_size_bytes=32 * MIB, servers=1, address="::1") as cluster:
            with Client(cluster.address, strict=True, use_local_paths=False) as store:
                value = value_of("v6", MIB)
                store.put("v6", value)
                assert store.get("v6") == value

    def test_sixty_four_clients_start_at_once(self) -> None:
        with Cluster(pool_size_bytes=64 * MIB, servers=1) as cluster:
            failed: list[BaseException] = []

            def start(number: int) -> None:
                try:
                    with Client(cluster.address, strict=True, worker_threads=1) as store:
                        store.put(f"{number}", b"x" * number)
                        assert store.get(f"{number}") == b"x" * number
                except BaseException as error:
                    failed.append(error)

            threads = [threading.Thread(target=start, args=(number,)) for number in range(64)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert not failed


def cut(value: bytes, random_: random.Random) -> list[bytearray]:
    """Some pieces, empty ones among them, that are as long as the value."""
    pieces, at = [], 0
    while at < len(value):
        step = random_.choice([0, 1, 7, 4095, 4096, 40_000, 1 << 20])
        pieces.append(bytearray(value[at : at + step]))
        at += step
    return pieces


@pytest.mark.parametrize("size", [0, 1, 4096, 100_000, 3 * MIB + 11])
def test_memory_may_lie_in_pieces(store: Client, prefix: str, size: int) -> None:
    chance = random.Random(size)
    key = prefix + "x"
    value = value_of(key, size)
    assert store.put(key, cut(value, chance)) is True
    assert store.get(key) == value
    targets = [bytearray(len(piece)) for piece in cut(value, chance)]
    assert store.get_into(key, targets) == size
    assert b"".join(targets) == value
    keys = [f"{prefix}{number}" for number in range(20)]
    values = [value_of(name, size) for name in keys]
    assert store.put_batch(keys, [cut(one, chance) for one in values]) == [True] * 20
    several = [[bytearray(len(piece)) for piece in cut(one, chance)] for one in values]
    assert store.get_batch_into(keys, several) == [size] * 20
    assert [b"".join(parts) for parts in several] == values


def test_shared_memory_survives_lost_connections(shared_cluster: Cluster) -> None:
    """Its server forgets a client's memory with the last connection; the next put shares again."""
    import socket

    key = uuid.uuid4().hex
    with Client(shared_cluster.address, strict=True) as store:
        memory = store.alloc(MIB)
        memory[:] = value_of("shared", MIB)
        other = bytearray(value_of("staged", 3 * MIB))
        lost = 0
        for round_number in range(3):
            assert store.put(f"{key}/a{round_number}", memory) is True
            assert store.put(f"{key}/b{round_number}", other) is True
            for name in os.listdir("/proc/self/fd"):
                try:
                    held = socket.socket(fileno=os.dup(int(name)))
                except OSError:
                    continue
                with held:
                    is_ours = (
                        held.family == socket.AF_UNIX
                        and b"server-" in str(held.getpeername()).encode()
                    )
                    if is_ours:
                        held.shutdown(socket.SHUT_RDWR)
                        lost += 1
        assert lost >= 3
        assert store.get(f"{key}/a2") == memory
        assert store.remove_matching(key) == 6
