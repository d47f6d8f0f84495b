"""A trace on a real store under a conductor's decisions, at reduced scale.

Four store servers and four emulated prefill instances, each with a queue of its own: an instance
really gets the blocks of its prefix, sleeps as long as the cost model says that computing the rest
takes, and puts what that would have made.  Arrivals and computing go `SPEED` times as fast as in
the trace, blocks have 64 KiB instead of 160 MiB.  In the middle a store server is killed.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import queue
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import READY_TIMEOUT_S, Cluster
from mooncake_store.cli.bench.operations import private_memory
from mooncake_store.cli.bench.report import Watcher
from mooncake_store.cli.bench.rounds import Bar, Row, Spread
from mooncake_store.cli.bench.ticker import percentile
from mooncake_store.cli.processes import Child
from mooncake_store.cli.trace_file import SAMPLE, Request, read_trace
from mooncake_store.conductor.sim_config import SimConfig
from mooncake_store.errors import StoreError

__all__ = ["replayed"]

KIB, MIB = 1 << 10, 1 << 20
SERVERS = 4
BLOCK_TOKENS = 512
BLOCK_BYTES = 64 * KIB
BLOCKS_MAX = 512  # of a prompt
PREFIX = "trace-"
SPEED = 10.0
# Of nodes four times as fast as the paper's: then four of them keep up, with everything else that
# this machine does for them.
PREFILL_TOKEN_US = 115.0 / 4 / SPEED
PREFILL_PAIR_NS = 0.733 / 4 / SPEED
# The setting's default, for blocks that are so much smaller and read so much more often than those
# of the model that it is meant for: else no block of this trace would ever be hot.
_MODEL = SimConfig()
REPLICATE_SHARE = (
    _MODEL.scheduler.replicate_share * SPEED
    * BLOCK_BYTES / (BLOCK_TOKENS * _MODEL.model.kv_bytes_per_token)
)  # fmt: skip
KEY_PREFIX = "mooncake_store_conductor_"
DRAIN_S = 60.0
# Fetches, a third of all at the most, that are decided by the wrong guess which it begins with.
LEARNING = 10


class _Api:
    """A conductor over one connection."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        self._connection.request(method, path, None if body is None else json.dumps(body))
        answer = self._connection.getresponse()
        data = answer.read()
        return answer.status, json.loads(data)

    def metric(self, name: str) -> float:
        self._connection.request("GET", "/metrics")
        text = self._connection.getresponse().read().decode()
        lines = [line for line in text.splitlines() if line.startswith(f"{KEY_PREFIX}{name} ")]
        return float(lines[0].split()[1]) if lines else 0.0

    def close(self) -> None:
        self._connection.close()


def _key(hash_id: int) -> str:
    return PREFIX + hashlib.sha256(b"%d" % hash_id).hexdigest()


def _wait(check: Callable[[], bool], timeout_s: float) -> bool:
    end_s = time.monotonic() + timeout_s
    while not check():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


@dataclass
class _Outcome:
    """What became of the requests; written by one instance."""

    done: int = 0
    failed: int = 0
    blocks: int = 0
    promised_blocks: int = 0
    found_blocks: int = 0
    ratios: list[tuple[float, float]] = field(default_factory=list)
    """Of fetches: when they were decided, and predicted over measured time."""


class _Instance(threading.Thread):
    """An emulated prefill instance: first come, first served."""

    def __init__(self, name: str, client: Client, server: int, port: int) -> None:
        super().__init__(name=name, daemon=True)
        self._client, self._server = client, server
        self._api = _Api(port)
        self._memory = private_memory(BLOCKS_MAX * BLOCK_BYTES)
        self.queue: queue.SimpleQueue[tuple[Any, list[str]] | None] = queue.SimpleQueue()
        self.outcome = _Outcome()

    def open_connections(self, servers: Sequence[int]) -> None:
        """Have read from every server once, as an engine that has been there for long."""
        for server in servers:
            keys = [f"open-{self.name}-{server}-{number}" for number in range(8)]
            self._client.put_batch(keys, self._slots(0, 8), preferred_server=server)
            for _ in range(3):
                self._get(keys, 0)
            for key in keys:
                self._client.remove(key)

    def run(self) -> None:
        while (item := self.queue.get()) is not None:
            decided, keys = item
            path = f"/v1/requests/{decided['request_id']}/report"
            try:
                transfer = self._prefill(decided, keys)
            except StoreError:
                self.outcome.failed += 1
                self._api.ask("POST", path, {"event": "failed"})
                continue
            self._api.ask("POST", path, {"event": "prefilled", **transfer})
            self._api.ask("POST", path, {"event": "finished"})
            self.outcome.done += 1
        self._api.close()

    def _prefill(self, decided: Any, keys: list[str]) -> dict[str, Any]:
        """Do what an engine does; return how the fetch went, as it is reported."""
        outcome, moved = self.outcome, decided["transfer"]["blocks"]
        promised = -(-decided["prefix_tokens"] // BLOCK_TOKENS)
        held = promised - len(moved)
        there = self._get(keys[:held], 0)
        report: dict[str, Any] = {}
        if moved and there == held:
            begun = time.perf_counter()
            fetched = self._get(moved, held)
            took_s = time.perf_counter() - begun
            there += fetched
            if fetched == len(moved):
                ratio = decided["predicted"]["transfer_s"] / took_s
                outcome.ratios.append((decided["at_s"], ratio))
                report["transfer"] = {"bytes": fetched * BLOCK_BYTES, "seconds": took_s}
        outcome.blocks += len(keys)
        outcome.promised_blocks += promised
        outcome.found_blocks += there
        time.sleep(_prefill_s(len(keys) * BLOCK_TOKENS, there * BLOCK_TOKENS))
        if there < len(keys):
            self._client.put_batch(
                keys[there:], self._slots(there, len(keys)), preferred_server=self._server
            )
        return report

    def _get(self, keys: Sequence[str], first: int) -> int:
        """Read blocks; how many are there before the first that is not."""
        if not keys:
            return 0
        sizes = self._client.get_batch_into(keys, self._slots(first, first + len(keys)))
        return next((at for at, size in enumerate(sizes) if size != BLOCK_BYTES), len(keys))

    def _slots(self, first: int, end: int) -> list[memoryview]:
        size = BLOCK_BYTES
        return [self._memory[at : at + size] for at in range(first * size, end * size, size)]


def _prefill_s(tokens: int, prefix_tokens: int) -> float:
    linear = PREFILL_TOKEN_US / 1e6 * (tokens - prefix_tokens)
    return linear + PREFILL_PAIR_NS / 1e9 * (tokens**2 - prefix_tokens**2)


class _Replay:
    """The requests of a trace, sent when they arrive."""

    def __init__(self, api: _Api, instances: Sequence[_Instance]) -> None:
        self._api = api
        self._instances = instances
        self._beat_s = 0.0
        self._sequence = 0
        self.refused = 0
        self.scheduled_s: list[float] = []

    def send(self, number: int, wanted: Request) -> None:
        """Have a request scheduled, and give it to its instance."""
        self._beat()
        full = wanted.input_length // BLOCK_TOKENS
        keys = [_key(one) for one in wanted.hash_ids[: min(full, BLOCKS_MAX)]]
        body = {
            "request_id": f"r{number}", "block_keys": keys, "track": True,
            "num_tokens": max(wanted.input_length, len(keys) * BLOCK_TOKENS + 1),
        }  # fmt: skip
        begun = time.perf_counter()
        status, decided = self._api.ask("POST", "/v1/schedule", body)
        self.scheduled_s.append(time.perf_counter() - begun)
        if status != 200:
            self.refused += 1
            return
        place = int(decided["prefill"]["instance"].rpartition("-")[2])
        self._instances[place].queue.put(({**decided, "at_s": begun}, keys))

    def pass_time(self, until_s: float) -> None:
        """Wait, and let the instances be heard of meanwhile."""
        while (left_s := until_s - time.monotonic()) > 0:
            self._beat()
            time.sleep(min(left_s, 0.25))

    def drain(self) -> bool:
        """Let the instances do what they have and end; whether they could in time."""
        for one in self._instances:
            one.queue.put(None)
        end_s = time.monotonic() + DRAIN_S
        while any(one.is_alive() for one in self._instances) and time.monotonic() < end_s:
            self.pass_time(time.monotonic() + 0.1)
        return not any(one.is_alive() for one in self._instances)

    def _beat(self) -> None:
        if time.monotonic() - self._beat_s < 1:
            return
        self._beat_s = time.monotonic()
        self._sequence += 1
        for number in range(len(self._instances)):
            path = f"/v1/instances/instance-{number}/heartbeat"
            self._api.ask("POST", path, {"sequence": self._sequence})


@dataclass
class _Seen:
    """What was looked at from outside of the instances."""

    hot_replicas: list[int] = field(default_factory=list)  # hottest first
    copied_bytes: float = 0.0
    latency_s: float = 0.0
    bandwidth_bytes_per_s: float = 0.0
    warm_s: float = 0.0
    blocks: float = 0.0
    is_from_file: bool = False
    is_drained: bool = False


def replayed(requests: int, watch: Watcher) -> list[Row]:
    """Replay the sample trace and return the rows."""
    trace = list(read_trace(SAMPLE, limit=requests))
    children: list[Child] = []
    seen = _Seen()
    with Cluster(
        pool_size_bytes=max(256, requests * 2) * MIB,
        servers=SERVERS,
        master_flags=["--member-grace", "500ms"],
    ) as cluster:
        clients = [Client(cluster.address, timeout_s=5) for _ in range(SERVERS)]
        try:
            members = sorted(clients[0].members(), key=lambda one: one.name)
            port, child = _conductor(cluster)
            children.append(child)
            api = _Api(port)
            instances = [
                _Instance(f"instance-{number}", client, member.server, port)
                for number, (client, member) in enumerate(zip(clients, members, strict=True))
            ]
            for one in instances:
                one.open_connections([member.server for member in members])
            _register(api, [one.name for one in members])
            _wait(lambda: api.metric("store_connected") == 1, 10)
            for one in instances:
                one.start()
            replay = _Replay(api, instances)
            _play(replay, trace, cluster, clients[0], seen, watch)
            seen.copied_bytes = api.metric("moved_bytes_total")
            seen.latency_s = api.metric("transfer_latency_seconds")
            seen.bandwidth_bytes_per_s = api.metric("transfer_bandwidth_bytes_per_second")
            api.close()
            os.kill(child.pid, signal.SIGKILL)
            child.end()
            port, child = _conductor(cluster)
            children.append(child)
            api, begun = _Api(port), time.perf_counter()
            _wait(lambda: api.metric("store_connected") == 1, 30)
            seen.warm_s = time.perf_counter() - begun
            seen.blocks = api.metric("index_blocks")
            seen.is_from_file = api.metric("store_from_file") == 1
            api.close()
        finally:
            for client in clients:
                client.close()
            for child in children:
                child.end()
    return _rows(len(trace), replay, [one.outcome for one in instances], seen)


def _play(
    replay: _Replay,
    trace: Sequence[Request],
    cluster: Cluster,
    client: Client,
    seen: _Seen,
    watch: Watcher,
) -> None:
    """Send all requests at their times; three quarters through a server is killed."""
    uses = Counter(one for request in trace for one in request.hash_ids)
    hottest = [_key(hash_id) for hash_id, _ in uses.most_common(10)]
    begun_s = time.monotonic()
    for number, request in enumerate(trace):
        replay.pass_time(begun_s + request.timestamp_ms / 1e3 / SPEED)
        if number == len(trace) * 3 // 4:
            found = [client.stat(key) for key in hottest]
            seen.hot_replicas = [len(one.replicas) if one is not None else 0 for one in found]
            cluster.kill_server(SERVERS - 1)
        replay.send(number, request)
        watch("replay on four servers, one killed", (number + 1) / len(trace))
    seen.is_drained = replay.drain()


def _rows(total: int, replay: _Replay, outcomes: Sequence[_Outcome], seen: _Seen) -> list[Row]:
    timed = sorted(pair for one in outcomes for pair in one.ratios)
    ratios = [ratio for _, ratio in timed[min(LEARNING, len(timed) // 3) :]]
    apart = [max(ratio, 1 / ratio) for ratio in ratios]
    promised = sum(one.promised_blocks for one in outcomes)
    found = sum(one.found_blocks for one in outcomes)
    blocks = sum(one.blocks for one in outcomes)
    lost = total - replay.refused - sum(one.done for one in outcomes)
    spread = [percentile(ratios, q) if ratios else 0.0 for q in (0.1, 0.5, 0.9)]
    shares = "/".join(str(one.done) for one in outcomes)
    return [
        _one("replay: requests without an answer, one of four servers killed", "", lost,
             bar=Bar(0, "value", "at most"),
             note=f"{total} requests, {replay.refused} refused; by instance {shares}"
                  f"{'' if seen.is_drained else '; the instances did not end in time'}"),
        _one("replay: blocks read, of those that the conductor said are there", "ratio",
             found / max(promised, 1), note=f"{found:,} of the prompts' {blocks:,} blocks"),
        _one("replay: predicted over measured transfer time, median", "ratio", spread[1],
             bar=Bar(0.5, "value", "at least") if ratios else None,
             note=f"p10 {spread[0]:.2f}, p90 {spread[2]:.2f}; "
                  f"{len(ratios)} fetches after {len(timed) - len(ratios)}; learned "
                  f"{seen.latency_s * 1e3:.2f} ms and "
                  f"{seen.bandwidth_bytes_per_s / 1e9:.2f} GB/s, told 1 ms and 100 GB/s"),
        _one("replay: measured over predicted transfer time, median", "ratio",
             1 / spread[1] if ratios else 0.0,
             bar=Bar(0.5, "value", "at least") if ratios else None,
             note=f"a fetch is typically {percentile(apart, 0.5) if apart else 1:.1f} times off"),
        _one("replay: replicas of the hottest block, on four servers", "",
             seen.hot_replicas[0], bar=Bar(3, "value", "at least"),
             note=f"of the ten hottest {sum(seen.hot_replicas) / len(seen.hot_replicas):.1f}; "
                  f"{seen.copied_bytes / MIB:.1f} MiB copied by the conductor's change_replica"),
        _one("schedule over HTTP, median", "ms", percentile(replay.scheduled_s, 0.5) * 1e3),
        _one("conductor killed and restarted: the store followed after", "s", seen.warm_s,
             bar=Bar(2, "value", "at most"),
             note=f"{seen.blocks:,.0f} blocks, "
                  f"{'from its file and the tail' if seen.is_from_file else 'listed anew'}"),
    ]  # fmt: skip


def _one(name: str, unit: str, value: float, **more: Any) -> Row:
    return Row(name, unit, Spread.of([value]), **more)


def _conductor(cluster: Cluster) -> tuple[int, Child]:
    """Start a conductor that knows what computing takes, and of the network only a wrong guess."""
    file = Path(cluster.folder, "cluster.toml")
    file.write_text(
        f'[cluster]\nnic = "100GB"\ntransfer_latency = "1ms"\n'
        f"[model]\nkv_bytes_per_token = {BLOCK_BYTES // BLOCK_TOKENS}\n"
        f"prefill_token_us = {PREFILL_TOKEN_US}\nprefill_pair_ns = {PREFILL_PAIR_NS}\n"
        f'[scheduler]\nreplicate_interval = "1s"\nreplicate_share = {REPLICATE_SHARE:.9f}\n'
    )
    child = Child(
        ["conductor", "--http-port", "0", "--master", cluster.address, "--cluster", str(file),
         "--index-file", str(Path(cluster.folder, "index")),
         "--block-tokens", str(BLOCK_TOKENS), "--key-prefixes", PREFIX, "--admission", "all",
         "--log-level", "error"],
        environment=cluster.environment,
    )  # fmt: skip
    return int(child.wait_ready(READY_TIMEOUT_S)["http_port"]), child


def _register(api: _Api, servers: Sequence[str]) -> None:
    for number, server in enumerate(servers):
        document = {"name": f"instance-{number}", "role": "both", "server": server}
        api.ask("POST", "/v1/instances", document)
