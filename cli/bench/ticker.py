"""A 1 kHz Python thread beside SDK calls: how long do they keep the interpreter from it?

An engine's scheduler is such a thread.  Its slip is judged beside its slip while the main thread
sleeps, measured in turns, since a busy machine makes any thread late.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mooncake_store import Client
from mooncake_store.cli.bench.cases import is_wanted, value_at_most
from mooncake_store.cli.bench.operations import pool_key, private_memory
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Row, Spread

KIB, MIB = 1 << 10, 1 << 20
PERIOD_S = 0.001
BATCHES = 4096  # more than one turn puts, so that each is new
SLEEPING_MS_MIN = 5.0  # p99.9 may reach this even where a sleeping main thread slips less


def slips_ms(call: Callable[[], object] | None, ticks: int) -> list[float]:
    """Return how late each tick was, while `call` is repeated (None: the main thread sleeps)."""
    slips: list[float] = []
    is_over = threading.Event()

    def tick() -> None:
        due = time.perf_counter() + PERIOD_S
        for _ in range(ticks):
            pause = due - time.perf_counter()
            if pause > 0:
                time.sleep(pause)
            late = time.perf_counter() - due
            slips.append(late * 1e3)
            # Counted from now: a late tick must not make those after it late, or early.
            due = time.perf_counter() + PERIOD_S
        is_over.set()

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    if call is None:
        is_over.wait()
    while not is_over.is_set():
        if call is not None:
            call()
    thread.join()
    return slips


def percentile(values: list[float], share: float) -> float:
    """Return the smallest value that at least `share` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]


@dataclass(frozen=True, slots=True)
class Beside:
    """One SDK call that is repeated beside the ticker."""

    name: str
    call: Callable[[], object]
    moves_much_over_tcp: bool = False
    prepare: Callable[[], object] = bool  # before each turn


def _calls(local: Client, tcp: Client, memory: memoryview) -> list[Beside]:
    """Store what is read, and return one call of each kind."""
    huge, small = memory[: 16 * MIB], memory[: 4 * KIB]
    keys = [pool_key("ticker", i) for i in range(1024)]
    local.put_batch(keys, [b"v" * 16] * len(keys))
    local.put_from("ticker/huge", huge)
    local.put_from("ticker/small", small)
    batches: list[list[str]] = []
    values = [b"v" * 16] * 128
    number = 0

    def put(client: Client) -> None:
        client.upsert("ticker/put", huge)

    def put_batch() -> None:
        nonlocal number
        number += 1
        local.put_batch(batches[number % BATCHES], values)

    def prepare_batches() -> None:
        # Made before: what keeps the interpreter shall be the call, not the making of its keys.
        batches[:] = batches or [
            [pool_key(f"ticker-{batch}", i) for i in range(128)] for batch in range(BATCHES)
        ]
        local.remove_matching("bench/ticker-")

    return [
        Beside("exists, 1 key", lambda: tcp.exists(keys[0])),
        Beside("exists, 1024 keys", lambda: tcp.exists_batch(keys)),
        Beside("match_prefix, 1024 keys", lambda: tcp.match_prefix(keys)),
        Beside("put 128 x 16 B", put_batch, prepare=prepare_batches),
        Beside("get 4 KiB, same host", lambda: local.get_into("ticker/small", small)),
        Beside("get 4 KiB, TCP", lambda: tcp.get_into("ticker/small", small)),
        Beside("get 16 MiB, same host", lambda: local.get_into("ticker/huge", huge)),
        Beside("get 16 MiB as bytes, same host", lambda: local.get("ticker/huge")),
        Beside("put 16 MiB, same host", lambda: put(local)),
        Beside("get 16 MiB, TCP", lambda: tcp.get_into("ticker/huge", huge), True),
        Beside("put 16 MiB, TCP", lambda: put(tcp), True),
    ]


def ticker_rows(
    address: str, *, is_quick: bool = False, only: Sequence[str] = (), watch: Watcher = silent
) -> list[Row]:
    """Measure the slip beside each kind of call; two rows each, p99 and p99.9."""
    ticks, turns = (200, 2) if is_quick else (400, 9)
    rows: list[Row] = []
    memory = private_memory(16 * MIB)
    with Client(address) as local, Client(address, use_local_paths=False) as tcp:
        beside = [
            case
            for case in _calls(local, tcp, memory)
            if is_wanted(f"1 kHz ticker beside {case.name}", only)
        ]
        sleeping: list[list[list[float]]] = [[] for _ in beside]
        calling: list[list[list[float]]] = [[] for _ in beside]
        # All in each turn: what disturbs the machine for seconds meets one turn of each.
        for turn in range(turns):
            for number, case in enumerate(beside):
                sleeping[number].append(slips_ms(None, ticks))
                case.prepare()
                calling[number].append(slips_ms(case.call, ticks))
                watch("ticker", (turn * len(beside) + number + 1) / (turns * len(beside)))
        for number, case in enumerate(beside):
            rows += _rows(case, sleeping[number], calling[number])
    return rows


def _rows(case: Beside, sleeping: list[list[float]], calling: list[list[float]]) -> list[Row]:
    def spread(pieces: list[list[float]], share: float) -> Spread:
        """The median of the turns; for p99.9 a turn is too short: all ticks together."""
        each = [percentile(piece, share) for piece in pieces]
        middle = (
            percentile([slip for piece in pieces for slip in piece], share)
            if share > 0.99
            else statistics.median(each)
        )
        return Spread(middle, min(each), max(each), len(each))

    slow = spread(sleeping, 0.999)
    rows = []
    for label, share, limit in (
        ("p99", 0.99, 5.0 if case.moves_much_over_tcp else 1.0),
        ("p99.9", 0.999, max(SLEEPING_MS_MIN, 2 * slow.median)),
    ):
        rows.append(
            Row(
                f"1 kHz ticker beside {case.name}, {label}",
                "ms",
                spread(calling, share),
                raw=spread(sleeping, share),
                bar=value_at_most(round(limit, 2)),
                is_pinned=False,
                note="raw: the main thread sleeps" if share == 0.99 else "",
            )
        )
    return rows
