"""`bench failover`: all kinds of faults, or those that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mooncake_store.cli.bench.failures import absent, clients, holder, leader, rolling
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Row

KINDS = (
    "leader-killed", "leader-frozen", "holder-killed", "holder-frozen", "master-killed",
    "master-frozen", "clients-killed", "rolling-restart",
)  # fmt: skip
ROUNDS_QUICK = 2


def run(
    *,
    rounds: int = 50,
    only: Sequence[str] = (),
    is_quick: bool = False,
    watch: Watcher = silent,
) -> list[Row]:
    """Let things fail, one kind after the other.

    Args:
        rounds: Faults of each kind; of a master without another one a tenth of that, of clients
            twice that.
        only: Kinds, of KINDS; none: all.
        is_quick: Two of each kind.
        watch: Told what is being measured.
    """
    count = ROUNDS_QUICK if is_quick else rounds
    few = max(count // 10, 1)
    measures: dict[str, Callable[[], list[Row]]] = {
        "leader-killed": lambda: leader.run(rounds=count, is_frozen=False, watch=watch),
        "leader-frozen": lambda: leader.run(rounds=count, is_frozen=True, watch=watch),
        "holder-killed": lambda: holder.run(rounds=count, is_frozen=False, watch=watch),
        "holder-frozen": lambda: holder.run(rounds=count, is_frozen=True, watch=watch),
        "master-killed": lambda: absent.run(rounds=few, is_frozen=False, watch=watch),
        "master-frozen": lambda: absent.run(rounds=few, is_frozen=True, watch=watch),
        "clients-killed": lambda: clients.run(kills=2 * count, watch=watch),
        "rolling-restart": lambda: rolling.run(watch=watch),
    }
    rows: list[Row] = []
    for kind in KINDS:
        if not only or kind in only:
            rows += measures[kind]()
    return rows
