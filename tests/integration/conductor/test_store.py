"""A conductor on a live store: what it knows of it, and what it does to it."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from mooncake_store import Client, prefix_keys
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.conductor.service.index_file import IndexFile, Kept

from .conftest import Conductor, Start

pytestmark = pytest.mark.timeout(120)
MIB = 1 << 20
BLOCK = 16
WAIT_S = 40.0


def until(check: Callable[[], Any]) -> Any:
    """Return what a check says once it says something."""
    end_s = time.monotonic() + WAIT_S
    while True:
        found = check()
        if found:
            return found
        assert time.monotonic() < end_s, "not in time"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(
        pool_size_bytes=32 * MIB, servers=3, master_flags=["--member-grace", "300ms"], is_kept=True
    ) as cluster:
        yield cluster


@pytest.fixture
def store(cluster: Cluster) -> Iterator[Client]:
    with Client(cluster.address, strict=True) as client:
        yield client


@pytest.fixture
def following(cluster: Cluster, start: Start, store: Client) -> Conductor:
    """A conductor with a prefill instance beside each of the first two store servers."""
    conductor = start("--master", cluster.address, "--block-tokens", str(BLOCK),
                      "--policy", "global")  # fmt: skip
    for number, member in enumerate(servers(store)[:2]):
        conductor.register(f"p{number}", "both", server=member.name)
    until(lambda: metric(conductor, "store_connected"))
    return conductor


def servers(store: Client) -> list[Any]:
    return sorted(store.members(), key=lambda one: one.name)


def metric(conductor: Conductor, name: str) -> float:
    _, text, _ = conductor.ask("GET", "/metrics")
    wanted = f"mooncake_store_conductor_{name} "
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(wanted))


def tokens_of_a_new_prompt(blocks: int) -> list[int]:
    start = uuid.uuid4().int % 2**31
    return [start, *range(blocks * BLOCK)]


def schedule(conductor: Conductor, tokens: list[int], **more: Any) -> Any:
    return conductor.ok("POST", "/v1/schedule", {"token_ids": tokens, **more})


def put(store: Client, tokens: list[int], server: int) -> list[str]:
    keys = prefix_keys(tokens, BLOCK)
    name = next(one.name for one in store.members() if one.server == server)
    for key in keys:
        store.put(key, b"x" * 4000, preferred_server=server)
        while name not in nodes_of(store, key):  # it was not heard of for a moment: a busy machine
            store.remove(key)
            store.put(key, b"x" * 4000, preferred_server=server)
    return keys


def nodes_of(store: Client, key: str) -> set[str]:
    found = store.stat(key)
    return set() if found is None else {one.node for one in found.replicas}


def holder(conductor: Conductor, tokens: list[int]) -> dict[str, int]:
    """What the conductor knows each candidate to hold of a prompt, in tokens.

    It is asked for what cannot be, so that the decision has no effect.
    """
    name = f"ask-{uuid.uuid4().hex}"
    wanted = {"token_ids": tokens, "request_id": name, "slo": {"ttft_s": 1e-9}}
    assert conductor.ask("POST", "/v1/schedule", wanted)[0] == 429
    found = conductor.ok("GET", f"/v1/decisions/{name}")
    return {one["name"]: one["prefix_tokens"] for one in found["candidates"]}


def test_it_knows_what_was_there_before_and_what_comes_and_goes(
    cluster: Cluster, store: Client, start: Start
) -> None:
    members = servers(store)
    before = tokens_of_a_new_prompt(4)
    put(store, before, members[0].server)
    conductor = start("--master", cluster.address, "--block-tokens", str(BLOCK),
                      "--no-pin", "--copy-bandwidth", "0")  # fmt: skip
    conductor.register("p0", "both", server=members[0].name)
    conductor.register("p1", "both", server=members[1].name)
    until(lambda: holder(conductor, before) == {"p0": 64, "p1": 0, members[2].name: 0})
    after = tokens_of_a_new_prompt(3)
    keys = put(store, after, members[2].server)
    until(lambda: holder(conductor, after).get(members[2].name) == 48)
    store.change_replica(keys[0], 2, target=members[1].server)
    until(lambda: holder(conductor, after).get("p1") == 16)
    store.change_replica(keys[0], 1, source=members[2].server)
    until(lambda: holder(conductor, after).get(members[2].name) == 0)
    store.remove(keys[0])
    until(lambda: holder(conductor, after).get("p1") == 0)
    assert metric(conductor, "store_gaps_total") == 0
    assert metric(conductor, "store_events_total") >= 5


def test_what_a_request_fetches_is_copied_to_its_instance_and_pinned(
    store: Client, following: Conductor
) -> None:
    members = servers(store)
    tokens = tokens_of_a_new_prompt(5)
    keys = put(store, tokens, members[2].server)
    until(lambda: holder(following, tokens).get(members[2].name) == 80)
    found = schedule(following, tokens, request_id="r", track=True)
    assert found["transfer"]["source"] == members[2].name
    assert found["transfer"]["blocks"] == keys
    target = members[int(found["prefill"]["instance"][1:])].name
    until(lambda: all(target in nodes_of(store, key) for key in keys))
    until(lambda: all(store.stat(key).pin_count == 1 for key in keys))
    until(lambda: holder(following, tokens).get(found["prefill"]["instance"]) == 80)
    following.ok("POST", "/v1/requests/r/report", {"event": "prefilled"})
    following.ok("POST", "/v1/requests/r/report", {"event": "finished", "output_tokens": 4})
    until(lambda: all(store.stat(key).pin_count == 0 for key in keys))
    assert metric(following, "moved_bytes_total") >= 5 * 4000


def test_copies_keep_within_the_bandwidth(cluster: Cluster, store: Client, start: Start) -> None:
    members = servers(store)
    tokens = tokens_of_a_new_prompt(20)
    put(store, tokens, members[2].server)
    conductor = start("--master", cluster.address, "--block-tokens", str(BLOCK), "--policy",
                      "global", "--copy-bandwidth", "20KB")  # fmt: skip
    conductor.register("p0", "both", server=members[0].name)
    until(lambda: holder(conductor, tokens).get(members[2].name) == 320)
    began_s = time.monotonic()
    schedule(conductor, tokens)
    until(lambda: metric(conductor, "moved_bytes_total") >= 8000)
    time.sleep(1.0)
    elapsed_s = time.monotonic() - began_s
    # One copy may be on its way beyond what has passed.
    assert metric(conductor, "moved_bytes_total") <= 20_000 * elapsed_s + 2 * 4000


def test_hot_blocks_get_replicas_beside_all_instances(
    cluster: Cluster, store: Client, start: Start, tmp_path: Any
) -> None:
    members = servers(store)
    tokens = tokens_of_a_new_prompt(2)
    keys = put(store, tokens, members[0].server)
    file = tmp_path / "cluster.toml"
    file.write_text('[cluster]\nnic = "1MiB"\n[scheduler]\nreplicate_interval = "500ms"\n')
    conductor = start("--master", cluster.address, "--block-tokens", str(BLOCK), "--policy",
                      "local", "--cluster", str(file))  # fmt: skip
    for number, member in enumerate(members):
        conductor.register(f"p{number}", "both", server=member.name)
    until(lambda: holder(conductor, tokens).get("p0") == 32)

    def is_everywhere() -> bool:
        schedule(conductor, tokens, request_id="r")
        conductor.ok("POST", "/v1/requests/r/report", {"event": "finished"})
        return all(len(nodes_of(store, key)) == 3 for key in keys)

    until(is_everywhere)


def test_replicas_that_were_made_are_taken_back_when_nobody_asks_any_more(
    store: Client, cluster: Cluster, start: Start
) -> None:
    members = servers(store)
    tokens, kept = tokens_of_a_new_prompt(3), tokens_of_a_new_prompt(2)
    conductor = start("--master", cluster.address, "--block-tokens", str(BLOCK), "--policy",
                      "global", "--take-back", "1.5s", "--promise", "0s")  # fmt: skip
    conductor.register("p0", "both", server=members[0].name)
    keys = put(store, tokens, members[2].server)
    others = put(store, kept, members[2].server)
    for key in others:  # somebody else's second replica, where the conductor would have made one
        store.change_replica(key, 2, target=members[0].server)
    until(lambda: holder(conductor, tokens).get(members[2].name) == 48)
    until(lambda: holder(conductor, kept).get("p0") == 32)
    for name, wanted in (("r", tokens), ("s", kept)):
        schedule(conductor, wanted, request_id=name, track=True)
    until(lambda: all(len(nodes_of(store, key)) == 2 for key in keys))
    assert metric(conductor, "extra_replicas") == 3
    for name in ("r", "s"):
        for event in ("prefilled", "finished"):
            conductor.ok("POST", f"/v1/requests/{name}/report", {"event": event})
    for _ in range(5):  # asked for again and again: it stays
        time.sleep(0.4)
        schedule(conductor, tokens, request_id="r")
        assert all(len(nodes_of(store, key)) == 2 for key in keys)
    conductor.ok("POST", "/v1/requests/r/report", {"event": "finished"})
    until(lambda: all(nodes_of(store, key) == {members[2].name} for key in keys))
    until(lambda: metric(conductor, "extra_replicas") == 0)
    assert metric(conductor, "taken_back_bytes_total") == 3 * 4000
    until(lambda: len(conductor.ok("GET", "/v1/taken-back")["taken_back"]) == 3)
    told = conductor.ok("GET", "/v1/taken-back")["taken_back"]
    assert {one["key"] for one in told} == set(keys)
    for one in told:
        assert (one["outcome"], one["server"]) == ("done", members[0].name)
        assert (one["replicas_without"], one["size_bytes"]) == (1, 4000)
        assert one["request_id"] == "r" and one["idle_seconds"] >= 1.5
    assert all(len(nodes_of(store, key)) == 2 for key in others)
    assert [store.get(key) for key in keys] == [b"x" * 4000] * 3


def test_a_master_that_dies_is_followed_again_and_so_is_a_server(
    cluster: Cluster, store: Client, following: Conductor
) -> None:
    members = servers(store)
    tokens = tokens_of_a_new_prompt(3)
    put(store, tokens, members[2].server)
    until(lambda: holder(following, tokens).get(members[2].name) == 48)
    cluster.kill_master()
    assert schedule(following, tokens)["predicted"]  # requests go on
    cluster.start_master()
    until(lambda: metric(following, "store_snapshots_total") >= 2)
    until(lambda: holder(following, tokens).get(members[2].name) == 48)
    cluster.kill_server(2)
    assert schedule(following, tokens)["predicted"]
    until(lambda: holder(following, tokens).get(members[2].name, 0) == 0)
    cluster.start_server(2)
    until(lambda: holder(following, tokens).get(members[2].name) == 48)


def restarted(start: Start, cluster: Cluster, file: Any) -> Conductor:
    """A conductor with an index file, and an instance beside the first two servers."""
    return start("--master", cluster.address, "--block-tokens", str(BLOCK), "--no-pin",
                 "--copy-bandwidth", "0", "--index-file", str(file))  # fmt: skip


def test_a_conductor_that_is_killed_is_warm_from_its_file_and_what_came_since(
    cluster: Cluster, store: Client, start: Start, tmp_path: Any
) -> None:
    members, file = servers(store), tmp_path / "index"
    first = restarted(start, cluster, file)
    until(lambda: metric(first, "store_connected"))
    before, gone = tokens_of_a_new_prompt(4), tokens_of_a_new_prompt(2)
    for tokens in (before, gone):
        put(store, tokens, members[0].server)
    first.register("p0", "both", server=members[0].name)
    until(lambda: holder(first, gone) and holder(first, gone)["p0"] == 32)
    written = file.stat().st_mtime_ns  # when it was connected: without these objects
    until(lambda: file.stat().st_mtime_ns > written)
    assert file.stat().st_mode & 0o777 == 0o600
    os.kill(first.child.pid, signal.SIGKILL)
    first.child.end()
    after = tokens_of_a_new_prompt(3)
    put(store, after, members[1].server)
    store.remove(prefix_keys(gone, BLOCK)[0])
    began_s = time.monotonic()
    second = restarted(start, cluster, file)
    until(lambda: metric(second, "store_connected"))
    assert time.monotonic() - began_s < 10  # with the interpreter's start, on a busy machine
    for number, member in enumerate(members[:2]):
        second.register(f"p{number}", "both", server=member.name)
    assert metric(second, "store_from_file") == 1
    assert metric(second, "store_snapshots_total") == 0
    assert holder(second, before)["p0"] == 64
    assert holder(second, after)["p1"] == 48
    assert holder(second, gone)["p0"] == 0


@pytest.mark.parametrize("harm", ["torn", "epoch", "ahead", "cluster"])
def test_a_file_that_does_not_fit_is_replaced_by_a_listing(
    cluster: Cluster, store: Client, start: Start, tmp_path: Any, harm: str
) -> None:
    members, path = servers(store), tmp_path / "index"
    tokens = tokens_of_a_new_prompt(4)
    put(store, tokens, members[0].server)
    file = IndexFile(path, f"the keys p1-* of {cluster.address}")
    page = store.events()
    epoch = page.epoch - (harm == "epoch")
    sequence = page.next_sequence + 1000 if harm == "ahead" else page.next_sequence - 1
    own = store.statistics().cluster
    file.write(Kept(own ^ (harm == "cluster"), epoch, sequence, [(members[1].name, b"x" * 160)]))
    if harm == "torn":
        os.truncate(path, path.stat().st_size - 1)
    conductor = restarted(start, cluster, path)
    until(lambda: metric(conductor, "store_connected"))
    conductor.register("p0", "both", server=members[0].name)
    assert metric(conductor, "store_from_file") == 0
    assert metric(conductor, "store_snapshots_total") == 1
    assert holder(conductor, tokens)["p0"] == 64

    def is_replaced() -> bool:
        kept = file.read()[0]
        return kept is not None and (kept.cluster, kept.epoch) == (own, page.epoch)

    until(is_replaced)


def test_a_server_that_stood_still_is_followed_again(
    cluster: Cluster, store: Client, following: Conductor
) -> None:
    members = servers(store)
    tokens = tokens_of_a_new_prompt(3)
    put(store, tokens, members[2].server)
    until(lambda: holder(following, tokens).get(members[2].name) == 48)
    server = cluster.servers[2]
    server.freeze()
    try:
        until(lambda: holder(following, tokens).get(members[2].name, 0) == 0)
    finally:
        server.thaw()
    until(lambda: holder(following, tokens).get(members[2].name) == 48)
