"""`bench conductor`: decisions a second, and a trace replayed on a real store under its decisions.

The replay has four store servers and four emulated prefill instances: each really gets the blocks
of its prefix and puts the ones that a prefill would have computed, but computes nothing.  In the
middle a store server is killed.
"""

from __future__ import annotations

import gc
import hashlib
import http.client
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import READY_TIMEOUT_S, Cluster
from mooncake_store.cli.bench.operations import private_memory
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Bar, Row, Spread
from mooncake_store.cli.bench.ticker import percentile
from mooncake_store.cli.processes import Child
from mooncake_store.cli.trace_file import SAMPLE, Request, read_trace
from mooncake_store.conductor.service.config import ConductorConfig
from mooncake_store.conductor.service.core import ConductorCore
from mooncake_store.conductor.service.decision import Decision
from mooncake_store.conductor.service.decision import Request as Wanted
from mooncake_store.conductor.service.documents import Registration
from mooncake_store.conductor.service.instances import Role
from mooncake_store.errors import StoreError

__all__ = ["run"]

KIB, MIB = 1 << 10, 1 << 20
INSTANCES = 64
SERVERS = 4
BLOCK_TOKENS = 512
BLOCK_BYTES = 64 * KIB
PREFIX = "trace-"
SWEEP_S = 0.2


def _core(policy: str) -> ConductorCore:
    core = ConductorCore(
        ConductorConfig(
            policy=policy, block_tokens=BLOCK_TOKENS, heartbeat_timeout_s=600, forget_after_s=600
        )
    )
    for number in range(INSTANCES):
        role = Role.BOTH if number % 4 == 0 else Role.PREFILL
        core.register(Registration(f"instance-{number}", role, "", "", 1))
    return core


def _prompts(count: int) -> list[list[str]]:
    """Prompts of 4 to 40 blocks that share beginnings, as conversations do."""
    rng = random.Random(1)
    chains = [[rng.randbytes(16).hex() for _ in range(40)] for _ in range(500)]
    found = []
    for _ in range(count):
        length = rng.randint(4, 40)
        own = [rng.randbytes(16).hex() for _ in range(2)]
        found.append(rng.choice(chains)[: length - 2] + own)
    return found


def _decisions(policy: str, rounds: int, count: int, watch: Watcher) -> list[Row]:
    rates, tails = [], []
    core = _core(policy)
    prompts = _prompts(count)
    gc.collect()
    gc.freeze()
    try:
        for turn in range(rounds):
            took: list[float] = []
            swept_s = begun = time.perf_counter()
            for number, keys in enumerate(prompts):
                name, at_s = f"{turn}-{number}", time.perf_counter()
                tokens = len(keys) * BLOCK_TOKENS + 100
                wanted = Wanted(request_id=name, num_tokens=tokens, blocks=core.names.of_keys(keys))
                decided = core.schedule(wanted, is_tracked=True)
                took.append(time.perf_counter() - at_s)
                if isinstance(decided, Decision):
                    core.report(name, "prefilled", None)
                    core.report(name, "finished", 200)
                if time.perf_counter() - swept_s > SWEEP_S:
                    core.sweep()
                    swept_s = time.perf_counter()
            rates.append(len(prompts) / (time.perf_counter() - begun))
            tails.append(percentile(took, 0.99) * 1e3)
            watch(f"decisions, {policy}", (turn + 1) / rounds)
    finally:
        gc.unfreeze()
    note = "with the reports of prefill and end, and sweeps"
    return [
        Row(
            f"decisions at {INSTANCES} instances, {policy}", "1/s", Spread.of(rates),
            bar=Bar(5000, "value", "at least"), note=note,
        ),
        Row(
            f"a decision at {INSTANCES} instances, {policy}, p99", "ms", Spread.of(tails),
            bar=Bar(2, "value", "at most"),
        ),
    ]  # fmt: skip


# ---- over HTTP, on a real store ------------------------------------------------------------------


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
        lines = [line for line in text.splitlines() if line.startswith(f"{name} ")]
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


def _bandwidth(clients: Sequence[Client], servers: Sequence[int], memory: memoryview) -> float:
    """Return what a get of eight blocks from another server reaches."""
    keys = [f"calibration-{number}" for number in range(8)]
    slots = [memory[at : at + BLOCK_BYTES] for at in range(0, 8 * BLOCK_BYTES, BLOCK_BYTES)]
    clients[0].put_batch(keys, slots, preferred_server=servers[0])
    took = []
    for _ in range(20):
        begun = time.perf_counter()
        clients[1].get_batch_into(keys, slots)
        took.append(time.perf_counter() - begun)
    for key in keys:
        clients[0].remove(key)
    return 8 * BLOCK_BYTES / sorted(took)[len(took) // 2]


class _Replay:
    """What the instances did under the conductor's decisions."""

    def __init__(self, api: _Api, clients: Sequence[Client], servers: Sequence[int]) -> None:
        self._api = api
        self._clients = clients
        self._servers = servers
        self._memory = private_memory(64 * MIB)
        self.failed = self.refused = self.blocks = self.predicted_blocks = self.hit_blocks = 0
        self.ratios: list[float] = []
        self.scheduled_s: list[float] = []

    def request(self, number: int, wanted: Request, bandwidth: float) -> None:
        """Schedule a request and do what its instance does."""
        full = wanted.input_length // BLOCK_TOKENS
        keys = [_key(one) for one in wanted.hash_ids[: min(full, 512)]]
        name, tokens = f"r{number}", max(wanted.input_length, len(keys) * BLOCK_TOKENS + 1)
        begun = time.perf_counter()
        status, decided = self._api.ask(
            "POST", "/v1/schedule",
            {"request_id": name, "num_tokens": tokens, "block_keys": keys, "track": True},
        )  # fmt: skip
        self.scheduled_s.append(time.perf_counter() - begun)
        if status != 200:
            self.refused += 1
            return
        instance = int(decided["prefill"]["instance"].rpartition("-")[2])
        client = self._clients[instance]
        try:
            self._prefill(client, self._servers[instance], keys, decided, bandwidth)
        except StoreError:
            self.failed += 1
            self._api.ask("POST", f"/v1/requests/{name}/report", {"event": "failed"})
            return
        for event in ("prefilled", "finished"):
            self._api.ask("POST", f"/v1/requests/{name}/report", {"event": event})

    def _prefill(
        self, client: Client, server: int, keys: list[str], decided: Any, bandwidth: float
    ) -> None:
        size = BLOCK_BYTES
        slots = [self._memory[at : at + size] for at in range(0, len(keys) * size, size)]
        expected = -(-decided["prefix_tokens"] // BLOCK_TOKENS)
        begun = time.perf_counter()
        sizes = client.get_batch_into(keys[:expected], slots[:expected]) if expected else []
        took_s = time.perf_counter() - begun
        there = 0
        for one in sizes:
            if one != size:
                break
            there += 1
        if there and there == expected:
            self.ratios.append(there * size / bandwidth / took_s)
        self.blocks += len(keys)
        self.predicted_blocks += expected
        self.hit_blocks += there
        if there < len(keys):
            client.put_batch(keys[there:], slots[there:], preferred_server=server)


def _replayed(requests: int, watch: Watcher) -> list[Row]:
    trace = list(read_trace(SAMPLE, limit=requests))
    hot = Counter(one for request in trace for one in request.hash_ids)
    children: list[Child] = []
    with Cluster(
        pool_size_bytes=256 * MIB, servers=SERVERS, master_flags=["--member-grace", "500ms"]
    ) as cluster:
        clients = [Client(cluster.address, timeout_s=5) for _ in range(SERVERS)]
        try:
            members = sorted(clients[0].members(), key=lambda one: one.name)
            memory = private_memory(8 * BLOCK_BYTES)
            bandwidth = _bandwidth(clients, [one.server for one in members], memory)
            port, child = _conductor(cluster, bandwidth)
            children.append(child)
            api = _Api(port)
            _register(api, [one.name for one in members])
            _wait(lambda: api.metric("mooncake_store_conductor_store_connected") == 1, 10)
            replay = _Replay(api, clients, [one.server for one in members])
            replicas_most = 0
            beat_s = time.monotonic()
            hottest = _key(hot.most_common(1)[0][0])
            for number, request in enumerate(trace):
                if number == len(trace) * 3 // 4:
                    found = clients[0].stat(hottest)
                    replicas_most = len(found.replicas) if found is not None else 0
                    cluster.kill_server(SERVERS - 1)
                if time.monotonic() - beat_s > 1:
                    beat_s = time.monotonic()
                    _beat(api, [one.name for one in members], number)
                replay.request(number, request, bandwidth)
                watch("replay on four servers, one killed", (number + 1) / len(trace))
            copied = api.metric("mooncake_store_conductor_moved_bytes_total")
            api.close()
            child.end()
            port, child = _conductor(cluster, bandwidth)
            children.append(child)
            api, begun = _Api(port), time.perf_counter()
            _wait(lambda: api.metric("mooncake_store_conductor_store_connected") == 1, 30)
            warm_s = time.perf_counter() - begun
            blocks = api.metric("mooncake_store_conductor_index_blocks")
            api.close()
        finally:
            for client in clients:
                client.close()
            for child in children:
                child.end()
    return [
        _one("replay: requests that failed, one of four servers killed", "", replay.failed,
             bar=Bar(0, "value", "at most"),
             note=f"{len(trace)} requests, {replay.refused} refused"),
        _one("replay: blocks read, of those that the conductor said are there", "ratio",
             replay.hit_blocks / max(replay.predicted_blocks, 1),
             note=f"{replay.hit_blocks:,} of the prompts' {replay.blocks:,} blocks"),
        Row("replay: predicted transfer time over measured, median", "ratio",
            Spread.of([percentile(replay.ratios, 0.5)] if replay.ratios else [0.0]),
            note="p10 {:.2f}, p90 {:.2f}, {} reads".format(
                *([percentile(replay.ratios, q) for q in (0.1, 0.9)] if replay.ratios else [0, 0]),
                len(replay.ratios))),
        _one("replay: replicas of the hottest block, on four servers", "", replicas_most,
             note=f"{copied / MIB:.1f} MiB copied by the conductor's change_replica"),
        _one("schedule over HTTP, median", "ms", percentile(replay.scheduled_s, 0.5) * 1e3),
        _one("conductor restarted: the store followed after", "s", warm_s,
             bar=Bar(2, "value", "at most"), note=f"{blocks:,.0f} blocks"),
    ]  # fmt: skip


def _one(name: str, unit: str, value: float, **more: Any) -> Row:
    return Row(name, unit, Spread.of([value]), **more)


def _conductor(cluster: Cluster, bandwidth: float) -> tuple[int, Child]:
    """Start a conductor that knows this machine's cost of a transfer."""
    file = Path(cluster.folder, "cluster.toml")
    file.write_text(
        f'[cluster]\nnic = "{int(bandwidth)}B"\ntransfer_latency = "0"\n'
        f"[model]\nkv_bytes_per_token = {BLOCK_BYTES // BLOCK_TOKENS}\n"
        '[scheduler]\nreplicate_interval = "1s"\nreplicate_share = 0.001\n'
    )
    child = Child(
        ["conductor", "--http-port", "0", "--master", cluster.address, "--cluster", str(file),
         "--block-tokens", str(BLOCK_TOKENS), "--key-prefixes", PREFIX, "--admission", "all",
         "--log-level", "error"],
        environment=cluster.environment,
    )  # fmt: skip
    return int(child.wait_ready(READY_TIMEOUT_S)["http_port"]), child


def _register(api: _Api, servers: Sequence[str]) -> None:
    for number, server in enumerate(servers):
        document = {"name": f"instance-{number}", "role": "both", "server": server}
        api.ask("POST", "/v1/instances", document)


def _beat(api: _Api, servers: Sequence[str], sequence: int) -> None:
    for number in range(len(servers)):
        path = f"/v1/instances/instance-{number}/heartbeat"
        api.ask("POST", path, {"sequence": sequence})


def run(*, rounds: int, requests: int, is_quick: bool, watch: Watcher = silent) -> list[Row]:
    """Return the rows.

    Args:
        rounds: Repetitions of the decisions.
        requests: Of the trace.
        is_quick: Few of each.
        watch: Told how far it is.
    """
    count = 500 if is_quick else 5000
    rows = []
    for policy in ("earliest", "global"):
        rows += _decisions(policy, 1 if is_quick else rounds, count, watch)
    return rows + _replayed(60 if is_quick else requests, watch)
