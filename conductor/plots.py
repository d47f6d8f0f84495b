"""Pictures of replays; they need the extra `plots` (matplotlib)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mooncake_store.conductor.report import Report, pool_loads
from mooncake_store.conductor.simulation import Outcome, Replay
from mooncake_store.errors import ConfigError

__all__ = ["plot_comparison", "plot_replay"]


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError(
            "plots need matplotlib", cause=error, hint="pip install 'mooncake-store[plots]'"
        ) from error
    matplotlib.use("Agg")  # files, no window
    from matplotlib import pyplot

    return pyplot


def _cumulative(axes: Any, values: Sequence[float], label: str) -> None:
    ordered = sorted(value for value in values if not math.isnan(value))
    if ordered:
        axes.plot(ordered, [(i + 1) / len(ordered) for i in range(len(ordered))], label=label)


def _save(pyplot: Any, figure: Any, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.tight_layout()
        figure.savefig(path, dpi=110)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", cause=error) from error
    finally:
        pyplot.close(figure)


def plot_replay(replay: Replay, path: Path) -> None:
    """Draw one replay: distributions of TTFT and TBT, loads of both pools, replicas of hot blocks.

    Raises:
        ConfigError: There is no matplotlib, or the file cannot be written.
    """
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(2, 2, figsize=(12, 7.5))
    config = replay.config
    ttft, tbt, loads, replicas = axes.flat
    _cumulative(ttft, replay.column(Outcome.TTFT), "measured")
    _cumulative(ttft, replay.column(Outcome.TTFT_PREDICTED), "predicted at arrival")
    ttft.axvline(config.slo.ttft_s, color="gray", linestyle=":", label="SLO")
    ttft.set_xscale("symlog", linthresh=0.1)
    ttft.set_xlim(left=0)
    ttft.set(xlabel="TTFT (s)", ylabel="share of requests", title="Time to first token")
    ttft.legend()
    _cumulative(tbt, [value * 1e3 for value in replay.column(Outcome.TBT)], "longest tenth of gaps")
    _cumulative(tbt, [value * 1e3 for value in replay.column(Outcome.TBT_MEAN)], "mean of gaps")
    tbt.axvline(config.slo.tbt_s * 1e3, color="gray", linestyle=":", label="SLO")
    tbt.set(xlabel="TBT (ms)", ylabel="share of requests", title="Time between tokens")
    tbt.legend()
    times, prefill, decode = pool_loads(replay)
    loads.plot(times, prefill, label="prefill")
    loads.plot(times, decode, label="decode")
    loads.set(xlabel="time (s)", ylabel="load (1: the SLO is just met)", title="Load of the pools")
    loads.set_ylim(bottom=0)
    loads.legend()
    instances = config.cluster.prefill_nodes // config.cluster.group_nodes
    first = 2 + instances + config.cluster.decode_nodes
    rows = [row[first:] for row in replay.samples]
    if rows and rows[0]:
        image = replicas.imshow(
            list(map(list, zip(*rows, strict=True))), aspect="auto", origin="lower", vmin=0,
            vmax=instances, extent=(replay.samples[0][0], replay.samples[-1][0], 0, len(rows[0])),
        )  # fmt: skip
        figure.colorbar(image, ax=replicas, label="replicas")
    replicas.set(
        xlabel="time (s)", ylabel="rank of the block", title="Replicas of the hottest blocks"
    )
    scheduler = config.scheduler
    figure.suptitle(
        f"{replay.trace.name} at {config.replay.speed:g}x, {config.cluster.prefill_nodes}P+"
        f"{config.cluster.decode_nodes}D, {scheduler.policy}, admission {scheduler.admission}"
    )
    _save(pyplot, figure, path)


def plot_comparison(reports: Mapping[tuple[str, float], Report], path: Path) -> None:
    """Draw policies side by side over the speed of replay.

    Args:
        reports: By name of the policy and speed.
        path: PNG, PDF or SVG by its ending.

    Raises:
        ConfigError: There is no matplotlib, or the file cannot be written.
    """
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(2, 2, figsize=(12, 7.5))
    names = list(dict.fromkeys(name for name, _ in reports))
    speeds = sorted({speed for _, speed in reports})

    def draw(at: Any, value: Any, title: str, label: str, *, is_log: bool = False) -> None:
        for name in names:
            found = [(s, value(reports[name, s])) for s in speeds if (name, s) in reports]
            at.plot([s for s, _ in found], [v for _, v in found], marker="o", label=name)
        if is_log:
            at.set_yscale("log")
        at.set(xlabel="speed of replay", ylabel=label, title=title)
        at.grid(alpha=0.3)

    mean, slow, good, hits = axes.flat
    draw(mean, lambda r: r.ttft_s.mean, "Mean TTFT", "s", is_log=True)
    draw(slow, lambda r: r.ttft_s.p99, "p99 TTFT", "s", is_log=True)
    draw(good, lambda r: r.good / r.requests, "Within both SLOs", "share of requests")
    draw(hits, lambda r: r.hit_tokens, "Cache hits", "share of prompt tokens")
    good.set_ylim(0, 1.02)
    good.legend(loc="lower left")
    _save(pyplot, figure, path)
