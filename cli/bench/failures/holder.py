"""A store server dies or freezes: what readers and writers notice.

Readers know where the objects are.  One reads over the network, as from another host, one on the
servers' own, where memory that is mapped takes no server at all.
"""

from __future__ import annotations

from collections.abc import Sequence

from mooncake_store import Client
from mooncake_store.cli.bench.cases import now, value_at_most
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.cli.bench.failures.figures import one, rows_of, timed
from mooncake_store.cli.bench.report import Watcher, silent
from mooncake_store.cli.bench.rounds import Row
from mooncake_store.errors import StoreError, UnavailableError

MIB = 1 << 20
OBJECTS = 128
VALUE = b"v" * 65536
SPELL_S = 1.0  # how long a fault is looked at
DEADLINE_S = 5.0  # of a call, the default
BACK_S = 30.0


class Spell:
    """What clients noticed of faults of one kind."""

    def __init__(self) -> None:
        self.far_s: list[float] = []  # the slowest read of a fault, over the network
        self.near_s: list[float] = []
        self.failed = 0
        self.first_put_s: list[float] = []
        self.next_puts_s: list[float] = []
        self.failed_puts = 0
        self.sole_first_s: list[float] = []
        self.sole_next_s: list[float] = []


def read_for_a_while(client: Client, keys: Sequence[str], spell: Spell) -> float:
    """Read all objects in turn, and return how long the slowest read took."""
    slowest_s, end = 0.0, now() + SPELL_S
    while now() < end:
        for key in keys:
            taken_s, value = timed(lambda key=key: client.get(key))  # type: ignore[misc]
            slowest_s = max(slowest_s, taken_s)
            spell.failed += value != VALUE
    return slowest_s


def put_some(client: Client, name: str, spell: Spell) -> None:
    """Put some objects; one of the first ones goes to the node that does not answer."""
    taken: list[float] = []
    for number in range(32):
        begun = now()
        try:
            spell.failed_puts += not client.put(f"{name}/{number}", VALUE)
        except StoreError:
            spell.failed_puts += 1
        taken.append(now() - begun)
    spell.first_put_s.append(max(taken[:8]))
    spell.next_puts_s.append(max(taken[8:]))


def wait_for_all(client: Client, servers: int) -> None:
    """Wait until every server is back in the cluster."""
    end = now() + BACK_S
    while sum(member.state == "ready" for member in client.members()) < servers:
        if now() > end:
            raise UnavailableError("a store server did not come back")


def run(*, rounds: int, is_frozen: bool, watch: Watcher = silent) -> list[Row]:
    """Let a holder of two replicas die (or freeze) `rounds` times, in turn with the other one."""
    name = "holder frozen" if is_frozen else "holder killed"
    spell = Spell()
    keys = [f"held/{number}" for number in range(OBJECTS)]
    with (
        Cluster(pool_size_bytes=128 * MIB, servers=3) as cluster,
        Client(cluster.address, use_local_paths=False) as far,
        Client(cluster.address) as near,
        Client(cluster.address, use_local_paths=False) as writer,
    ):
        for number in range(rounds):
            wait_for_all(far, 3)
            far.remove_matching("")
            assert all(far.put_batch(keys, [VALUE] * OBJECTS, replicas=2))
            victim = number % 3
            numbers = {member.name: member.server for member in far.members()}
            sole = next(n for name_, n in numbers.items() if name_.endswith(f"-{victim}"))
            writer.put("sole", VALUE, preferred_server=sole)
            for client in (far, near):
                client.get_batch([*keys, "sole"])
            if is_frozen:
                cluster.servers[victim].freeze()
            else:
                cluster.kill_server(victim)
            spell.far_s.append(read_for_a_while(far, keys, spell))
            spell.near_s.append(read_for_a_while(near, keys, spell))
            put_some(writer, f"new/{number}", spell)
            spell.sole_first_s.append(timed(lambda: writer.get("sole"))[0])
            spell.sole_next_s.append(timed(lambda: writer.get("sole"))[0])
            if is_frozen:
                cluster.servers[victim].thaw()
            else:
                cluster.start_server(victim)
            watch(name, (number + 1) / rounds)
    ms = 1e3
    return [
        one(f"{name}: reads that failed", "reads", spell.failed, value_at_most(0)),
        *rows_of(f"{name}: slowest read, network", "ms", [s * ms for s in spell.far_s],
                 value_at_most(100)),
        *rows_of(f"{name}: slowest read, same host", "ms", [s * ms for s in spell.near_s],
                 value_at_most(100)),
        one(f"{name}: puts that failed", "puts", spell.failed_puts, value_at_most(0)),
        *rows_of(f"{name}: slowest of the first 8 puts", "ms",
                 [s * ms for s in spell.first_put_s], value_at_most(200)),
        *rows_of(f"{name}: slowest put after that", "ms", [s * ms for s in spell.next_puts_s],
                 value_at_most(50)),
        *rows_of(f"{name}: only replica, first miss", "s", spell.sole_first_s,
                 value_at_most(DEADLINE_S + 0.1)),
        *rows_of(f"{name}: only replica, next miss", "s", spell.sole_next_s,
                 value_at_most(0.2)),
    ]  # fmt: skip
