"""No master at all: it has died, or it is frozen, and nobody takes over.

The first calls wait for one, at most as long as their deadlines; when it has not answered for three
seconds nobody waits any more, and what a call costs then is what is measured.
"""

from __future__ import annotations

from collections.abc import Callable

from mooncake_store import Client
from mooncake_store.cli.bench.cases import now, value_at_most
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.cli.bench.failures.figures import one, rows_of, timed
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Row
from mooncake_store.errors import StoreError, UnavailableError

MIB = 1 << 20
CALLS = 500
CALL_MS = 5.0
OPEN_STATE = 2  # `Statistics.master_state`: no call waits for the master
OPEN_S = 10.0
BACK_S = 5.0
VALUE = b"v" * 4096


def _is_refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except StoreError:
        return True
    return False


def run(*, rounds: int, is_frozen: bool, watch: Watcher = silent) -> list[Row]:
    """Take the master away `rounds` times, and give it back."""
    name = "master frozen, no other" if is_frozen else "master killed, no other"
    reads_ms: list[float] = []
    puts_ms: list[float] = []
    cached_ms: list[float] = []
    opened_s: list[float] = []
    back_s: list[float] = []
    wrong = 0
    with Cluster(pool_size_bytes=64 * MIB) as cluster, Client(cluster.address) as client:
        client.put("cached", VALUE)
        for number in range(rounds):
            client.get("cached")
            begun = now()
            if is_frozen:
                cluster.master.freeze()
            else:
                cluster.kill_master()
            while client.statistics().master_state != OPEN_STATE:
                wrong += client.get("other") is not None
                if now() > begun + OPEN_S:
                    raise UnavailableError("calls go on waiting for a master that is not there")
            opened_s.append(now() - begun)
            calls: list[Callable[[], object]] = [
                lambda: client.get("other"),
                lambda: client.exists("other"),
                lambda: client.match_prefix(["other"]),
            ]
            for index in range(CALLS):
                taken_s, found = timed(calls[index % len(calls)])
                reads_ms.append(taken_s * 1e3)
                wrong += bool(found)
                taken_s, is_refused = timed(lambda: _is_refused(lambda: client.put("other", VALUE)))
                puts_ms.append(taken_s * 1e3)
                wrong += not is_refused
                taken_s, value = timed(lambda: client.get("cached"))
                cached_ms.append(taken_s * 1e3)
                wrong += value != VALUE
            begun = now()
            if is_frozen:
                cluster.master.thaw()
            else:
                cluster.start_master()
            begun_serving = now()
            back = f"back/{number}"
            while _is_refused(lambda key=back: client.put(key, VALUE)):  # type: ignore[misc]
                if now() > begun + BACK_S + OPEN_S:
                    raise UnavailableError("the master is there again, and not found")
            back_s.append(now() - begun_serving)
            watch(name, (number + 1) / rounds)
    bar = value_at_most(CALL_MS)
    return [
        *rows_of(f"{name}: until nobody waits", "s", opened_s, value_at_most(OPEN_S)),
        *rows_of(f"{name}: get, exists, match_prefix", "ms", reads_ms, bar),
        *rows_of(f"{name}: put", "ms", puts_ms, bar),
        *rows_of(f"{name}: get of a known object", "ms", cached_ms, bar),
        one(f"{name}: wrong answers", "calls", wrong, value_at_most(0)),
        *rows_of(f"{name}: put again once it serves", "s", back_s, value_at_most(BACK_S)),
    ]
