"""`mooncake-store sim`: replay a trace against a modelled cluster."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mooncake_store.cli.exit_codes import ExitCode, worst_of
from mooncake_store.cli.options import output_options
from mooncake_store.cli.output import Output, aligned, approximate_size, printable
from mooncake_store.cli.progress import Progress
from mooncake_store.cli.simulate_fit import fit
from mooncake_store.cli.simulate_plan import plan
from mooncake_store.cli.simulate_settings import read_config
from mooncake_store.cli.trace_file import SAMPLE
from mooncake_store.errors import ConfigError

if TYPE_CHECKING:
    from mooncake_store.conductor.report import Report
    from mooncake_store.conductor.sim_config import SimConfig
    from mooncake_store.conductor.sizing import OutOfReach

__all__ = ["command"]


def _shared(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--set", "settings", multiple=True, metavar="TABLE.NAME=VALUE",
            help="a setting of the cluster file; repeatable (`sim settings` lists them)",
        ),
        click.option("--limit", type=click.IntRange(1, 2**31), help="only the first requests"),
        click.option("--seed", type=click.IntRange(0), help="of everything that is drawn"),
        click.option(
            "--cluster", type=click.Path(path_type=Path), metavar="FILE",
            help="cluster, model, SLOs and policies (TOML)",
        ),
    ):  # fmt: skip
        function = option(function)
    return click.argument("trace", type=click.Path(path_type=Path), required=False)(
        output_options(function)
    )


def _shown(value: float, form: str, unit: str = "") -> str:
    """Return a number with its unit, or a dash for what there is none of."""
    return f"{value:{form}}{unit}" if math.isfinite(value) else "-"


def _milliseconds(value_s: float) -> str:
    return _shown(value_s * 1e3, ".0f", " ms")


def _text(found: Report, title: str, elapsed_s: float) -> str:
    share = found.good / found.requests
    t, b, w = found.ttft_s, found.tbt_s, found.fetch_wait_s
    lines = [
        printable(title),
        f"requests   {found.requests:,}: {found.finished:,} finished, {found.good:,} within both "
        f"SLOs ({share:.1%}, {_shown(found.goodput_per_s, '.2f')} a second)",
        f"refused    {found.rejected_prefill:,} for the TTFT, "
        f"{found.rejected_decode + found.rejected_queued:,} for the "
        f"decode pool, {found.rejected_queued:,} of it after a wait; {found.rejected_late:,} after "
        "their prefill",
        f"TTFT       mean {_shown(t.mean, '.2f', ' s')}, p50 {_shown(t.p50, '.2f')}, "
        f"p90 {_shown(t.p90, '.2f')}, p99 {_shown(t.p99, '.2f')}, most {_shown(t.max, '.2f')}",
        f"TBT        mean {_milliseconds(b.mean)}, p50 {_milliseconds(b.p50)}, p99 "
        f"{_milliseconds(b.p99)} (each request's longest tenth of gaps)",
        f"hits       {_shown(found.hit_tokens, '.1%')} of tokens "
        f"({_shown(found.hit_tokens_local, '.1%')} on the spot, at most "
        f"{_shown(found.hit_tokens_max, '.1%')}), {_shown(found.hit_blocks, '.1%')} of whole "
        "blocks",
        f"prefill    {found.prefill_gpu_s:,.0f} node seconds, "
        f"{_shown(found.prefill_gpu_s_per_request, '.2f')} a request, {found.wasted_gpu_s:,.0f} "
        f"wasted; nodes {_shown(found.prefill_busy, '.0%')} busy",
        f"moved      {approximate_size(found.fetched_bytes)} fetched, "
        f"{approximate_size(found.replicated_bytes)} copied ahead; p99 of waiting "
        f"{_milliseconds(w.p99)}",
        f"load       prefill {_shown(found.prefill_load, '.2f')} ± "
        f"{_shown(found.prefill_load_deviation, '.2f')}, decode "
        f"{_shown(found.decode_load, '.2f')} ± {_shown(found.decode_load_deviation, '.2f')}, "
        f"correlation {_shown(found.load_correlation, '+.2f')}",
        f"replicas   {_shown(found.top_replicas, '.1f')} of each of the hottest blocks at the end",
        f"simulated  in {elapsed_s:.2f} s, {found.requests / max(elapsed_s, 1e-9):,.0f} requests a "
        "second",
    ]
    return "\n".join(lines)


@click.group(name="sim")
def command() -> None:
    """Replay a request trace against a modelled cluster: which policies, how many nodes.

    docs/scheduling.md explains model and policies.
    """


@command.command()
@_shared
@click.option("--policy", metavar="NAME", help="random, least-load, local, global, ours, ...")
@click.option("--admission", metavar="NAME", help="all, baseline, early, predicted, forecast, ...")
@click.option("--speed", type=float, metavar="X", help="arrivals so many times as fast")
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="PNG, PDF or SVG")
def run(
    output: Output, trace: Path | None, cluster: Path | None, settings: tuple[str, ...],
    limit: int | None, seed: int | None, policy: str | None, admission: str | None,
    speed: float | None, plot: Path | None,
) -> int:  # fmt: skip
    """Replay a trace once; without one, the sample that ships.

    With --json and -v the document has `samples` as well, a row for each `replay.sample` of the
    cluster's clock: the time in seconds, the load of each prefill instance (of each group, if
    nodes are grouped), that of each decode instance (1: as much as the SLOs, memory and batch
    allow), the bytes that prefill instances have to send yet, and on how many instances each of
    the `replay.top_keys` hottest blocks is. Without -v it is null.

    \b
    mooncake-store sim run
    mooncake-store sim run trace.jsonl --policy global --speed 2 --plot global.png
    """
    from mooncake_store.conductor.report import report
    from mooncake_store.conductor.simulation import simulate
    from mooncake_store.conductor.trace import load_trace

    config = read_config(
        cluster, settings, policy=policy, admission=admission, speed=speed, seed=seed
    )
    shown = Progress(is_quiet=output.is_quiet)
    _check_plot(plot)
    loaded = load_trace(trace or SAMPLE, limit=limit)
    began = time.perf_counter()
    replay = simulate(loaded, config, lambda done: shown("replay", done))
    elapsed_s = time.perf_counter() - began
    shown.clear()
    found = report(replay)
    if plot:
        from mooncake_store.conductor.plots import plot_replay

        plot_replay(replay, plot)
    document = {
        "trace": str(trace or SAMPLE), "config": _document(config), "elapsed_seconds": elapsed_s,
        **found.document(), "samples": replay.samples if output.verbosity else None,
    }  # fmt: skip
    title = (
        f"{loaded.name} at {config.replay.speed:g}x: {config.cluster.prefill_nodes}P+"
        f"{config.cluster.decode_nodes}D, policy {config.scheduler.policy}, admission "
        f"{config.scheduler.admission}"
    )
    output.result(document, _text(found, title, elapsed_s))
    return ExitCode.OK


def _check_plot(plot: Path | None) -> None:
    if plot:
        from mooncake_store.conductor.plots import check_picture

        check_picture(plot)


def _document(config: SimConfig) -> dict[str, Any]:
    from dataclasses import asdict

    from mooncake_store.conductor.report import without_nan
    from mooncake_store.conductor.sim_config import TABLES

    return without_nan({name: asdict(getattr(config, name)) for name in TABLES})


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


@command.command()
@_shared
@click.option(
    "--policies", default="random,least-load,local,global,ours", show_default=True, metavar="LIST"
)
@click.option("--admissions", default="", metavar="LIST", help="each with each policy")
@click.option("--speeds", metavar="LIST", help="of replay; by default that of the cluster file")
@click.option(
    "--seeds",
    type=click.IntRange(1, 1000),
    default=1,
    show_default=True,
    metavar="N",
    help="runs of each; means are shown, and the spread of the mean TTFT",
)
@click.option("--plot", type=click.Path(path_type=Path), metavar="FILE", help="PNG, PDF or SVG")
def compare(
    output: Output, trace: Path | None, cluster: Path | None, settings: tuple[str, ...],
    limit: int | None, seed: int | None, policies: str, admissions: str, speeds: str | None,
    seeds: int, plot: Path | None,
) -> int:  # fmt: skip
    """Replay a trace under several policies, side by side.

    \b
    mooncake-store sim compare trace.jsonl --speeds 1,1.5,2 --plot curves.png
    mooncake-store sim compare trace.jsonl --policies global --admissions baseline,early,forecast
    """
    from dataclasses import replace

    from mooncake_store.conductor.report import report
    from mooncake_store.conductor.sim_config import ADMISSIONS, POLICIES, with_policy
    from mooncake_store.conductor.simulation import simulate
    from mooncake_store.conductor.trace import load_trace

    base = read_config(cluster, settings, seed=seed)
    try:
        wanted_speeds = f"{base.replay.speed:g}" if speeds is None else speeds
        multipliers = [float(part) for part in _names(wanted_speeds)]
    except ValueError as error:
        raise ConfigError(
            f"--speeds {speeds!r}: numbers with commas between", cause=error
        ) from error
    if not multipliers or not all(0.001 <= speed <= 1e6 for speed in multipliers):
        raise ConfigError("--speeds are at least 0.001 and at most 1000000")
    wanted = _names(admissions) or [base.scheduler.admission]
    for name in wanted:
        if name not in ADMISSIONS:
            raise ConfigError(f"there is no admission {name!r}: {', '.join(ADMISSIONS)} are known")
    wanted_policies = _names(policies)
    if not wanted_policies:
        raise ConfigError(f"--policies {policies!r} names none: {', '.join(POLICIES)} are known")
    cases = [
        (policy, admission, speed)
        for speed in multipliers
        for policy in wanted_policies
        for admission in wanted
    ]
    configs = [
        with_policy(
            replace(base, replay=replace(base.replay, speed=speed)), policy, admission=admission
        )
        for policy, admission, speed in cases
    ]
    _check_plot(plot)
    loaded = load_trace(trace or SAMPLE, limit=limit)
    shown = Progress(is_quiet=output.is_quiet)
    results: list[list[Report]] = []
    steps = len(configs) * seeds
    for number, config in enumerate(configs):
        runs: list[Report] = []
        for extra in range(seeds):
            done = number * seeds + extra
            label = f"{config.scheduler.policy} {extra + 1}/{seeds}"
            seeded = replace(config, replay=replace(config.replay, seed=base.replay.seed + extra))
            runs.append(
                report(simulate(loaded, seeded, lambda part: shown(label, (done + part) / steps)))  # noqa: B023
            )
        results.append(runs)
    shown.clear()
    if plot:
        from mooncake_store.conductor.plots import plot_comparison

        plot_comparison(
            {
                (f"{policy} {admission}" if len(wanted) > 1 else policy, speed): runs[0]
                for (policy, admission, speed), runs in zip(cases, results, strict=True)
            },
            plot,
        )
    if output.is_json:
        output.document([
            {"policy": policy, "admission": admission, "speed": speed,
             "runs": [run.document() for run in runs]}
            for (policy, admission, speed), runs in zip(cases, results, strict=True)
        ])  # fmt: skip
        return ExitCode.OK
    header = ["SPEED", "POLICY", "ADMISSION", "TTFT", "P50", "P99", "TBT P99", "GOOD", "REFUSED",
              "LATE", "WASTED", "HITS", "NODE S"]  # fmt: skip
    rows = [
        _row(policy, admission, speed, runs)
        for (policy, admission, speed), runs in zip(cases, results, strict=True)
    ]
    if sys.stdout.isatty():
        print("\n".join(aligned([header, *rows])))
    else:
        output.table(rows, header)
    return ExitCode.OK


def _row(policy: str, admission: str, speed: float, runs: list[Report]) -> list[str]:
    def mean(value: Callable[[Report], float]) -> float:
        return sum(value(run) for run in runs) / len(runs)

    means = [run.ttft_s.mean for run in runs]
    spread = f" ±{_shown((max(means) - min(means)) / 2, '.2f')}" if len(runs) > 1 else ""
    return [
        f"{speed:g}", policy, admission,
        _shown(mean(lambda r: r.ttft_s.mean), ".2f", f" s{spread}"),
        _shown(mean(lambda r: r.ttft_s.p50), ".2f", " s"),
        _shown(mean(lambda r: r.ttft_s.p99), ".2f", " s"),
        _milliseconds(mean(lambda r: r.tbt_s.p99)), f"{mean(lambda r: r.good / r.requests):.2%}",
        f"{mean(lambda r: r.refused):,.0f}",
        f"{mean(lambda r: r.rejected_late):,.0f}", f"{mean(lambda r: r.wasted_gpu_s):,.0f} s",
        _shown(mean(lambda r: r.hit_tokens), ".1%"), f"{mean(lambda r: r.prefill_gpu_s):,.0f}",
    ]  # fmt: skip


@command.command()
@_shared
@click.option("--policy", metavar="NAME", default="ours", show_default=True)
@click.option("--speed", type=float, metavar="X", help="arrivals so many times as fast")
@click.option(
    "--target",
    type=float,
    default=0.99,
    show_default=True,
    help="share of requests that meet both SLOs",
)
@click.option(
    "--caches",
    default="250000,1000000,3000000,10000000",
    show_default=True,
    metavar="LIST",
    help="tokens of KV cache of a prefill node",
)
def size(
    output: Output, trace: Path | None, cluster: Path | None, settings: tuple[str, ...],
    limit: int | None, seed: int | None, policy: str, speed: float | None, target: float,
    caches: str,
) -> int:  # fmt: skip
    """Find the smallest cluster that meets the SLOs, for several sizes of DRAM.

    Exit code 1 if no number of nodes does, 6 if that is so for some of the sizes.

    \b
    mooncake-store sim size --target 0.99 --set slo.ttft=20s
    """
    from mooncake_store.conductor.sizing import Size, sizes
    from mooncake_store.conductor.trace import load_trace

    config = read_config(cluster, settings, policy=policy, speed=speed, seed=seed)
    if not 0 < target <= 1:
        raise ConfigError(
            f"--target is a share above 0 and at most 1, not {target}",
            hint="0.99: so many of the requests meet both SLOs",
        )
    try:
        tokens = tuple(int(part) for part in _names(caches))
    except ValueError as error:
        raise ConfigError(f"--caches {caches!r}: whole numbers of tokens", cause=error) from error
    if not tokens or not all(0 <= number <= 2**50 for number in tokens):
        raise ConfigError(f"--caches are numbers of tokens, 0 or more and at most {2**50}")
    loaded = load_trace(trace or SAMPLE, limit=limit)
    shown = Progress(is_quiet=output.is_quiet)
    tried = 0

    def progress(step: str) -> None:
        nonlocal tried
        tried += 1
        shown(f"{step} ({tried} tried)", 0.0)

    sought = list(sizes(loaded, config, target=target, cache_tokens=tokens, progress=progress))
    found = [one for one in sought if isinstance(one, Size)]
    missed = [one for one in sought if not isinstance(one, Size)]
    shown.clear()
    code = worst_of(len(found), [ExitCode.FAILED] * len(missed))
    if output.is_json:
        output.document([
            {"cache_tokens": one.cache_tokens, "dram_bytes": one.dram_bytes,
             "prefill_nodes": one.prefill_nodes, "decode_nodes": one.decode_nodes,
             "attainment": one.attainment, **one.report.document()}
            if isinstance(one, Size) else
            {"cache_tokens": one.cache_tokens, "dram_bytes": one.dram_bytes,
             "prefill_nodes": None, "decode_nodes": None,
             "attainment_best": one.attainment_best, "attainment_max": one.attainment_max,
             "requests": len(loaded), "too_long_requests": one.too_long,
             "ttft_slo_seconds_least": one.ttft_s_least,
             "hint": _what_to_change(one, config, target)}
            for one in sought
        ])  # fmt: skip
        return code
    header = ["CACHE", "DRAM A NODE", "PREFILL", "DECODE", "GOOD", "TTFT P99", "HITS", "BUSY"]
    rows = [
        [
            f"{one.cache_tokens:,}" if one.cache_tokens else "no bound",
            approximate_size(one.dram_bytes) if one.cache_tokens else "-",
            str(one.prefill_nodes), str(one.decode_nodes), f"{one.attainment:.2%}",
            _shown(one.report.ttft_s.p99, ".2f", " s"), _shown(one.report.hit_tokens, ".1%"),
            _shown(one.report.prefill_busy, ".0%"),
        ]
        for one in found
    ]  # fmt: skip
    if rows:
        output.table(rows, header)
    for one in missed:
        print(_missed(one, config, target, len(loaded)), file=sys.stderr)
    if missed:
        print(f"  next:  {_what_to_change(missed[0], config, target)}", file=sys.stderr)
    return code


def _missed(one: OutOfReach, config: SimConfig, target: float, requests: int) -> str:
    cache = f"of {one.cache_tokens:,} tokens" if one.cache_tokens else "without bound"
    reached = (
        "nothing was tried"
        if one.attainment_best is None
        else f"the best that was reached is {one.attainment_best:.2%}"
    )
    return (
        f"cache {cache}: no number of nodes reaches {target:.2%}; {reached}: {one.too_long:,} of "
        f"{requests:,} requests take longer than the {config.slo.ttft_s:g} s of the TTFT even "
        f"alone on an idle cluster, so that at most {one.attainment_max:.2%} can be reached"
    )


def _what_to_change(one: OutOfReach, config: SimConfig, target: float) -> str:
    if one.attainment_max < target:
        share = math.floor(one.attainment_max * 1e4) / 1e4
        return (
            f"a --target of at most {share:g}, --set slo.ttft={math.ceil(one.ttft_s_least)}s or "
            f"more, or a prompt that several nodes share (cluster.group_nodes, now "
            f"{config.cluster.group_nodes})"
        )
    share = math.floor((one.attainment_best or 0.0) * 1e4) / 1e4
    return (
        f"a --target of at most {share:g}, longer SLOs (slo.ttft, now {config.slo.ttft_s:g} s, and "
        f"slo.tbt, now {config.slo.tbt_s * 1e3:g} ms), or cluster.group_nodes, now "
        f"{config.cluster.group_nodes}"
    )


@command.command()
@output_options
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--traces",
    type=click.Path(path_type=Path),
    default=Path("."),
    metavar="FOLDER",
    help="with conversation_trace.jsonl and synthetic_trace.jsonl, plain or .xz; "
    "mooncake_trace.jsonl (the arXiv paper's) too, if it is there",
)
@click.option(
    "--cluster",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="what the figures start from (TOML)",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TABLE.NAME=VALUE",
    help="a setting of the cluster file; repeatable",
)
@click.option(
    "--plots",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="a picture of each as well (matplotlib)",
)
def figures(
    output: Output, names: tuple[str, ...], traces: Path, cluster: Path | None,
    settings: tuple[str, ...], plots: Path | None,
) -> int:  # fmt: skip
    """Repeat the papers' figures and tables, beside the published numbers.

    Without names all of them: policies, arxiv, cache, eviction, work, global, coupled, hot,
    bandwidth, split, overload, pipeline, layers, ablation.

    \b
    mooncake-store sim figures --traces FAST25-release/traces
    mooncake-store sim figures pipeline layers --plots pictures
    """
    from mooncake_store.conductor.figures import FIGURES, Traces

    for name in names:
        if name not in FIGURES:
            raise ConfigError(f"there is no figure {name!r}: {', '.join(FIGURES)} are known")
    base = read_config(cluster, settings)
    if plots:
        from mooncake_store.conductor.plots import plot_figure

        try:
            plots.mkdir(exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--plots {plots}: {error.strerror}", cause=error) from error
    wanted = names or tuple(FIGURES)
    shown = Progress(is_quiet=output.is_quiet)
    loaded = Traces(traces)
    documents: list[dict[str, Any]] = []
    for number, name in enumerate(wanted):
        done = number / len(wanted)
        found = FIGURES[name](loaded, base, lambda step: shown(f"{name}: {step}", done))  # noqa: B023
        shown.clear()
        documents.append(
            {"name": name, "title": found.title, "header": found.header, "rows": found.rows}
        )
        if plots:
            plot_figure(found, plots / f"{name}.png")
        if not output.is_json:
            print("\n".join([printable(found.title), *aligned([found.header, *found.rows]), ""]))
    if output.is_json:
        output.document(documents)
    return ExitCode.OK


@command.command()
@output_options
def settings(output: Output) -> int:
    """Print a cluster file with every setting at its default and its reason.

    \b
    mooncake-store sim settings > cluster.toml
    """
    from mooncake_store.conductor.sim_config import cluster_example

    text = cluster_example()
    output.result({"settings": text}, text.rstrip())
    return ExitCode.OK


command.add_command(fit)
command.add_command(plan)
