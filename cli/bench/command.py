"""`mooncake-store bench`: the sub-commands, their options and their output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from mooncake_store.cli.bench.rounds import Row
from mooncake_store.cli.progress import Progress

Function = TypeVar("Function", bound=Callable[..., Any])


def _shown(function: Function) -> Function:
    """Add the options that every benchmark has."""
    for option in (
        click.option("--json", "is_json", is_flag=True, help="One JSON document on stdout."),
        click.option("--quick", "is_quick", is_flag=True, help="Try it; quote nothing."),
    ):
        function = option(function)
    return function


def _in_rounds(function: Function) -> Function:
    """Add the option of those that alternate."""
    return click.option(
        "--rounds",
        type=click.IntRange(1, 1000),
        default=10,
        show_default=True,
        help="Alternating rounds of limit and ours.",
    )(function)


def _show(
    name: str,
    measure: Callable[[Progress], list[Row]],
    *,
    is_json: bool,
    is_quick: bool,
    **settings: object,
) -> None:
    """Measure, then print the rows as a table or as JSON."""
    from mooncake_store.cli.bench.environment import MachineLoad, describe_machine
    from mooncake_store.cli.bench.report import document, print_json, print_table

    machine = describe_machine()
    progress = Progress()
    with MachineLoad() as load:
        rows = measure(progress)
    progress.clear()
    if is_json:
        print_json(document(name, machine, rows, load, {"quick": is_quick, **settings}))
        return
    print_table(f"bench {name}", rows)
    click.echo(
        f"{machine['cpu']}, {machine['cores']} cores, Linux {machine['kernel']}, commit "
        f"{machine['commit'] or machine['version']}; {load.busy_ratio:.0%} busy"
        f"{', ' + format(load.steal_ratio, '.0%') + ' stolen' if load.steal_ratio else ''}"
    )


EXAMPLES = """\b
Examples:
  mooncake-store bench raw
  mooncake-store bench store --json > store.json
"""


@click.group(name="bench", epilog=EXAMPLES)
def bench() -> None:
    """Measure this machine and the store on it.

    Each figure stands beside the limit of the machine in the same run; docs/benchmarks.md says how.
    """


@bench.command()
@_shown
@_in_rounds
def raw(is_json: bool, is_quick: bool, rounds: int) -> None:
    """What this machine can do without us: copies, round trips, streams."""
    from mooncake_store.cli.bench import raw as benchmark

    def measure(progress: Progress) -> list[Row]:
        return benchmark.run(rounds=rounds, is_quick=is_quick, watch=progress)

    _show("raw", measure, is_json=is_json, is_quick=is_quick, rounds=rounds)


@bench.command()
@_shown
@_in_rounds
def transfer(is_json: bool, is_quick: bool, rounds: int) -> None:
    """The transfer engine between two processes: no keys, no master."""
    from mooncake_store.cli.bench import transfer as benchmark

    def measure(progress: Progress) -> list[Row]:
        return benchmark.run(rounds=rounds, is_quick=is_quick, watch=progress)

    _show("transfer", measure, is_json=is_json, is_quick=is_quick, rounds=rounds)


@bench.command()
@_shown
@_in_rounds
def rails(is_json: bool, is_quick: bool, rounds: int) -> None:
    """One peer over four cables of unequal rates, one of them pulled; takes root."""
    from mooncake_store.cli.bench import rails as benchmark

    def measure(progress: Progress) -> list[Row]:
        return benchmark.run(rounds=rounds, is_quick=is_quick, watch=progress)

    _show("rails", measure, is_json=is_json, is_quick=is_quick, rounds=rounds)


@bench.command()
@_shown
@_in_rounds
@click.option("--only", multiple=True, help="Rows whose name holds this text; may be repeated.")
def store(is_json: bool, is_quick: bool, rounds: int, only: tuple[str, ...]) -> None:
    """The SDK's calls: latencies, throughput, threads, a ticker beside them."""
    from mooncake_store.cli.bench import store as benchmark

    def measure(progress: Progress) -> list[Row]:
        return benchmark.run(rounds=rounds, is_quick=is_quick, only=only, watch=progress)

    _show("store", measure, is_json=is_json, is_quick=is_quick, rounds=rounds, only=list(only))


@bench.command()
@_shown
@_in_rounds
@click.option(
    "--keys",
    type=click.IntRange(1000, 100_000_000),
    default=1_000_000,
    show_default=True,
    help="Objects for the master's memory, a page of the pool each.",
)
@click.option(
    "--core-keys",
    type=click.IntRange(1000, 100_000_000),
    default=10_000_000,
    show_default=True,
    help="Keys for the metadata core alone, some 200 bytes each.",
)
def meta(is_json: bool, is_quick: bool, rounds: int, keys: int, core_keys: int) -> None:
    """Keys a second, memory a key, what idle processes cost."""
    from mooncake_store.cli.bench import meta as benchmark

    def measure(progress: Progress) -> list[Row]:
        return benchmark.run(
            rounds=rounds, keys=keys, core_keys=core_keys, is_quick=is_quick, watch=progress
        )

    settings = {"rounds": rounds, "keys": keys, "core_keys": core_keys}
    _show("meta", measure, is_json=is_json, is_quick=is_quick, **settings)


@bench.command()
@_shown
@click.option(
    "--policy",
    type=click.Choice(["lru", "lfu", "length_aware", "sieve"]),
    default="lru",
    show_default=True,
    help="What the master evicts first.",
)
def evict(is_json: bool, is_quick: bool, policy: str) -> None:
    """Put more than the pool holds: nothing may be refused."""
    from mooncake_store.cli.bench import evict as benchmark

    def measure(progress: Progress) -> list[Row]:
        return benchmark.run(policy=policy, is_quick=is_quick, watch=progress)

    _show("evict", measure, is_json=is_json, is_quick=is_quick, policy=policy)


@bench.command()
@_shown
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Kills of each kind.",
)
@click.option(
    "--keys",
    type=click.IntRange(1000, 10_000_000),
    default=100_000,
    show_default=True,
    help="Objects that must come back, a page of the pool each.",
)
def restart(is_json: bool, is_quick: bool, rounds: int, keys: int) -> None:
    """Kill master and server: how long objects are away, and that all come back."""
    from mooncake_store.cli.bench import restart as benchmark

    def measure(progress: Progress) -> list[Row]:
        return benchmark.run(rounds=rounds, keys=keys, is_quick=is_quick, watch=progress)

    _show("restart", measure, is_json=is_json, is_quick=is_quick, rounds=rounds, keys=keys)


@bench.command()
@_shown
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    help="Turns of all modes.",
)
def checksums(is_json: bool, is_quick: bool, rounds: int) -> None:
    """What checksums cost where they are asked for, beside the same call without."""
    from mooncake_store.cli.bench import checksums as benchmark

    def measure(progress: Progress) -> list[Row]:
        return benchmark.run(rounds=rounds, is_quick=is_quick, watch=progress)

    _show("checksums", measure, is_json=is_json, is_quick=is_quick, rounds=rounds)


@bench.command()
@_shown
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    default=50,
    show_default=True,
    help="Faults of each kind.",
)
@click.option(
    "--only",
    multiple=True,
    type=click.Choice(
        [f"{what}-{how}" for what in ("leader", "holder", "master") for how in ("killed", "frozen")]
        + ["clients-killed", "rolling-restart"]
    ),
    metavar="KIND",
    help="leader-, holder- or master- with killed or frozen, clients-killed, rolling-restart.",
)
def failover(is_json: bool, is_quick: bool, rounds: int, only: tuple[str, ...]) -> None:
    """Kill and freeze masters, servers and clients: what users notice.

    Some kinds need an `etcd` on the path.
    """
    from mooncake_store.cli.bench.failures import run as benchmark

    def measure(progress: Progress) -> list[Row]:
        return benchmark.run(rounds=rounds, only=only, is_quick=is_quick, watch=progress)

    _show("failover", measure, is_json=is_json, is_quick=is_quick, rounds=rounds, only=list(only))


@bench.command()
@_shown
@click.option(
    "--minutes",
    type=click.FloatRange(0.1, 10_000),
    default=30.0,
    show_default=True,
    help="How long.",
)
@click.option(
    "--rate", type=click.FloatRange(1, 100_000), default=200.0, show_default=True,
    help="Calls a second.",
)  # fmt: skip
def soak(is_json: bool, is_quick: bool, minutes: float, rate: float) -> None:
    """Mixed load for long: memory, descriptors and threads must not grow."""
    from mooncake_store.cli.bench import soak as benchmark

    length = 0.1 if is_quick else minutes

    def measure(progress: Progress) -> list[Row]:
        return benchmark.run(minutes=length, rate=rate, watch=progress)

    _show("soak", measure, is_json=is_json, is_quick=is_quick, minutes=length, rate=rate)


@bench.command()
@_shown
@click.option("--rounds", type=click.IntRange(1, 100), default=5, show_default=True)
@click.option(
    "--requests", type=click.IntRange(8, 1000), default=600, show_default=True,
    help="Of the trace, on a real store.",
)  # fmt: skip
def conductor(is_json: bool, is_quick: bool, rounds: int, requests: int) -> None:
    """Decisions a second, and a trace on a real store under them; one server is killed."""
    from mooncake_store.cli.bench import conductor as benchmark

    def measure(progress: Progress) -> list[Row]:
        return benchmark.run(rounds=rounds, requests=requests, is_quick=is_quick, watch=progress)

    _show(
        "conductor", measure, is_json=is_json, is_quick=is_quick, rounds=rounds, requests=requests
    )


@bench.command()
@_shown
@click.option("--trace", "path", type=click.Path(path_type=Path), help="JSON lines, plain or xz.")
@click.option("--requests", type=click.IntRange(1), default=300, show_default=True)
@click.option("--block-bytes", default="64KiB", show_default=True, help="Of a block of the trace.")
@click.option("--pool-size", help="Of the store; by default every distinct block fits.")
def trace(
    is_json: bool,
    is_quick: bool,
    path: Path | None,
    requests: int,
    block_bytes: str,
    pool_size: str | None,
) -> None:
    """Replay the requests of a real service with real bytes."""
    from mooncake_store.cli.bench import trace as benchmark
    from mooncake_store.cli.trace_file import SAMPLE
    from mooncake_store.config import parse_size

    chosen = path or SAMPLE
    size = parse_size(block_bytes)
    pool = parse_size(pool_size) if pool_size else None

    def measure(progress: Progress) -> list[Row]:
        return benchmark.run(
            path=chosen,
            requests=requests,
            block_bytes=size,
            pool_bytes=pool,
            is_quick=is_quick,
            watch=progress,
        )

    settings = {"trace": str(chosen), "requests": requests, "block_bytes": size}
    _show("trace", measure, is_json=is_json, is_quick=is_quick, **settings)
