"""Batches with plain addresses and plain numbers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.errors import ClosedError, Status
from tests.waiting import until

MEMORY = ctypes.create_string_buffer(4096)
AT = ctypes.addressof(MEMORY)


@pytest.fixture
def client(shared_cluster: Cluster) -> Iterator[Client]:
    with Client(shared_cluster.address, strict=True) as opened:
        ctypes.memset(AT, 0, len(MEMORY))
        yield opened
        opened.remove_matching("addresses/")


def key(name: str) -> str:
    return f"addresses/{name}"


@pytest.mark.parametrize("is_local", [True, False])
def test_many_pieces_come_back_in_any_other_split(shared_cluster: Cluster, is_local: bool) -> None:
    with Client(shared_cluster.address, use_local_paths=is_local) as client:
        MEMORY.raw = bytes(range(256)) * 16
        keys = [key(f"{is_local}/{index}") for index in range(8)]
        sources = [[AT + index * 64 + piece * 8 for piece in range(8)] for index in range(8)]
        assert client.put_addresses(keys, sources, [[8] * 8] * 8) == [1] * 8
        assert client.put_addresses(keys, sources, [[8] * 8] * 8) == [0] * 8  # they are there
        targets = [[AT + 2048 + index * 64 + at for at in (63, 0, 1)] for index in range(8)]
        assert client.get_addresses(keys, targets, [[1, 1, 62]] * 8) == [64] * 8
        for index in range(8):
            source = MEMORY.raw[index * 64 : index * 64 + 64]
            target = MEMORY.raw[2048 + index * 64 : 2112 + index * 64]
            assert target == source[1:] + source[:1]


def test_single_addresses_offsets_and_exactness(client: Client) -> None:
    MEMORY[:10] = b"0123456789"
    keys = [key("a"), key("b")]
    assert client.put_addresses(keys, [AT, AT + 5], [5, 5], replicas=2) == [2, 2]
    assert client.get_addresses(keys, [AT + 20, AT + 30], [2, 9], offsets=[3, 0]) == [2, 5]
    assert MEMORY.raw[20:22] + MEMORY.raw[30:35] == b"3456789"
    assert client.get_addresses([keys[0]], [AT], [4]) == [-Status.BUFFER_TOO_SMALL]
    assert client.get_addresses([keys[0]], [AT], [6], exact=True) == [-Status.OUT_OF_RANGE]
    assert client.get_addresses([keys[0]], [AT], [6]) == [5]
    assert client.get_addresses([keys[0]], [AT], [6], offsets=[9]) == [0]
    assert client.put_addresses([keys[0]], [AT + 5], [2], upsert=True) == [1]
    assert client.get(keys[0]) == b"56"


def test_numbers_tell_each_key_apart(client: Client) -> None:
    client.put(key("there"), b"v")
    keys = [key("there"), key("absent"), ""]
    assert client.exists_numbers(keys) == [1, 0, -Status.BAD_KEY]
    assert client.get_addresses(keys, [AT] * 3, [1] * 3) == [
        1,
        -Status.NOT_FOUND,
        -Status.BAD_KEY,
    ]
    assert client.put_addresses(keys, [AT] * 3, [1] * 3) == [0, 1, -Status.BAD_KEY]
    assert client.put_addresses([key("large")], [AT], [1 << 50]) == [-Status.TOO_LARGE]
    assert client.exists_numbers([]) == client.get_addresses([], [], []) == []


def test_what_was_found_is_leased(client: Client) -> None:
    def pins() -> int:
        stat = client.stat(key("leased"))
        assert stat is not None
        return stat.pin_count

    client.put(key("leased"), b"v")
    assert client.exists_numbers([key("leased")]) == [1]
    assert pins() == 0  # without a lease
    keys = [key("leased"), key("absent"), ""]
    for _ in range(3):
        assert client.exists_numbers(keys, lease_s=0.5) == [1, 0, -Status.BAD_KEY]
    assert pins() == 1
    assert client.exists_numbers([], lease_s=0.5) == []
    until(lambda: pins() == 0)  # nobody has given it back


def test_nothing_at_all_is_an_empty_object(client: Client) -> None:
    keys = [key("none"), key("zero")]
    assert client.put_addresses(keys, [[], 0], [[], 0]) == [1, 1]
    assert client.get_batch(keys) == [b"", b""]
    assert client.get_addresses(keys, [[], [AT]], [[], [0]]) == [0, 0]


@pytest.mark.parametrize(
    ("addresses", "sizes", "offsets", "what"),
    [
        ([0], [1], None, "an address is 0"),
        ([[AT, 0]], [[1, 1]], None, "an address is 0"),
        ([], [1], None, "addresses"),
        ([AT], [1, 2], None, "sizes"),
        ([[AT, AT]], [[1]], None, "as many sizes"),
        ([[AT, AT]], [3], None, "as many sizes"),
        ([[AT, AT]], [[1 << 62, 1 << 62]], None, "more than memory"),
        ([AT], [1], [1, 2], "offsets"),
        (7, [1], None, "addresses"),
    ],
)
def test_lists_that_do_not_fit_raise(
    client: Client, addresses: object, sizes: object, offsets: object, what: str
) -> None:
    with pytest.raises(ValueError, match=what):
        client.get_addresses([key("k")], addresses, sizes, offsets=offsets)  # type: ignore[arg-type]
    if offsets is None:
        with pytest.raises(ValueError, match=what):
            client.put_addresses([key("k")], addresses, sizes)  # type: ignore[arg-type]


def test_what_is_no_number_or_no_list_raises(shared_cluster: Cluster) -> None:
    client = Client(shared_cluster.address)
    with pytest.raises(TypeError):
        client.get_addresses([key("k")], ["text"], [1])  # type: ignore[list-item]
    with pytest.raises(OverflowError):
        client.get_addresses([key("k")], [AT], [-1])
    with pytest.raises(TypeError, match="a list is needed"):
        client.exists_numbers("key")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a key is a str"):
        client.exists_numbers([b"key"])  # type: ignore[list-item]
    client.close()
    with pytest.raises(ClosedError):
        client.exists_numbers([key("k")])


def test_large_batches_of_pieces_at_odd_addresses_are_exact(client: Client) -> None:
    count, lengths = 48, [4096, 1, 16411, 8191, 65536, 4097, 63, 30000]
    size = sum(lengths)
    source = bytearray(random.Random(7).randbytes(count * size))
    target = bytearray(count * (size + len(lengths)) + 64)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(source))
    to = ctypes.addressof(ctypes.c_char.from_buffer(target)) + 3
    keys = [key(f"large/{index}") for index in range(count)]
    sources = [begin + index * size for index in range(count)]
    assert client.put_addresses(keys, sources, [size] * count) == [1] * count
    targets, at = [], to
    for _ in keys:
        pieces = []
        for length in lengths:
            pieces.append(at)
            at += length + 1  # a byte between two pieces stays as it is
        targets.append(pieces)
    assert client.get_addresses(keys, targets, [lengths] * count) == [size] * count
    seen, expected = 3, 0
    for _ in keys:
        for length in lengths:
            assert target[seen : seen + length] == source[expected : expected + length]
            assert target[seen + length] == 0
            seen, expected = seen + length + 1, expected + length


@pytest.fixture
def usual_interval() -> Iterator[float]:
    usual = sys.getswitchinterval()
    yield usual
    sys.setswitchinterval(usual)


@contextlib.contextmanager
def waiting_call(cluster: Cluster) -> Iterator[None]:
    """Have a batch under way that waits for a frozen master; it has ended afterwards."""
    with Client(cluster.address, timeout_s=20) as client:
        client.exists_numbers([key("known")])
        cluster.master.freeze()
        before = sys.getswitchinterval()
        try:
            calls = [
                threading.Thread(target=client.exists_numbers, args=([key(name)],)) for name in "ab"
            ]
            for call in calls:
                call.start()
            until(lambda: sys.getswitchinterval() < before)
            yield
            assert all(call.is_alive() for call in calls), "nothing was under way"
        finally:
            cluster.master.thaw()
        for call in calls:
            call.join(20)
            assert not call.is_alive()


def test_who_computes_beside_a_batch_gives_way_sooner_until_it_ends(usual_interval: float) -> None:
    with Cluster(pool_size_bytes=64 << 20) as cluster:
        with waiting_call(cluster):
            assert sys.getswitchinterval() < usual_interval / 10
        assert sys.getswitchinterval() == usual_interval
        with waiting_call(cluster):
            sys.setswitchinterval(0.25)  # whoever sets another one keeps it
        assert sys.getswitchinterval() == pytest.approx(0.25)


FORKING = """
import os, sys, threading, time
from mooncake_store import Client

frozen, alive = sys.argv[1:]
end_s = time.monotonic() + 90
client = Client(frozen, timeout_s=100)
client.exists_numbers(["known"])
print("connected", flush=True)
sys.stdin.readline()
usual = sys.getswitchinterval()
threading.Thread(target=client.exists_numbers, args=(["a"],), daemon=True).start()
while sys.getswitchinterval() == usual:
    if time.monotonic() > end_s:
        os._exit(4)
child = os.fork()
if child == 0:
    with Client(alive, timeout_s=80) as own:
        own.exists_numbers(["b"])
    os._exit(0 if sys.getswitchinterval() == usual else 3)
while True:
    ended, status = os.waitpid(child, os.WNOHANG)
    if ended:
        os._exit(os.waitstatus_to_exitcode(status))
    if time.monotonic() > end_s:
        os._exit(4)
    time.sleep(0.005)
"""


@pytest.mark.timeout(180)  # a hang guard, above those of the processes
def test_a_forked_child_has_none_of_its_parents_calls(shared_cluster: Cluster) -> None:
    with (
        Cluster(pool_size_bytes=64 << 20) as cluster,
        subprocess.Popen(
            [sys.executable, "-c", FORKING, cluster.address, shared_cluster.address],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        ) as parent,
    ):  # fmt: skip
        try:
            assert parent.stdin is not None
            assert parent.stdout is not None
            assert parent.stdout.readline() == "connected\n"
            cluster.master.freeze()
            parent.stdin.write("go\n")
            parent.stdin.flush()
            assert parent.wait(120) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)  # a child that hangs too
            cluster.master.thaw()
