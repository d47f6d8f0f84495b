"""Pictures of replays; they need the extra `plots` (matplotlib)."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mooncake_store.conductor.figures import Chart, Figure
from mooncake_store.conductor.report import Report, pool_loads
from mooncake_store.conductor.simulation import Outcome, Replay
from mooncake_store.errors import ConfigError

__all__ = ["check_picture", "plot_comparison", "plot_figure", "plot_replay", "series"]


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


def check_picture(path: Path) -> None:
    """Refuse a file that no picture can be written to, before the work of a replay.

    Raises:
        ConfigError: There is no matplotlib, no such folder, or the ending names no known format.
    """
    formats = _pyplot().gcf().canvas.get_supported_filetypes()
    _pyplot().close()
    if path.suffix.lower().removeprefix(".") not in formats:
        raise ConfigError(
            f"--plot {path}: the ending names no format of pictures",
            hint="write .png, .pdf or .svg",
        )
    if not path.parent.is_dir():
        raise ConfigError(
            f"--plot {path}: there is no folder {path.parent}", hint=f"mkdir -p {path.parent}"
        )


def _tail(axes: Any, values: Sequence[float], label: str) -> None:
    """Draw which share of requests is above each value, where p99 is not lost at the top."""
    ordered = sorted(value for value in values if not math.isnan(value))
    if ordered:
        axes.plot(ordered, [1 - i / len(ordered) for i in range(len(ordered))], label=label)


def _save(pyplot: Any, figure: Any, path: Path, **options: Any) -> None:
    try:
        figure.tight_layout()
        figure.savefig(path, dpi=110, **options)
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
    _tail(ttft, replay.column(Outcome.TTFT), "measured")
    _tail(ttft, replay.column(Outcome.TTFT_PREDICTED), "predicted at arrival")
    ttft.axvline(config.slo.ttft_s, color="gray", linestyle=":", label="SLO")
    ttft.set_xscale("symlog", linthresh=0.1)
    ttft.set_xlim(left=0)
    ttft.set(xlabel="TTFT (s)", title="Time to first token")
    ttft.legend()
    _tail(tbt, [value * 1e3 for value in replay.column(Outcome.TBT)], "longest tenth of gaps")
    _tail(tbt, [value * 1e3 for value in replay.column(Outcome.TBT_MEAN)], "mean of gaps")
    tbt.axvline(config.slo.tbt_s * 1e3, color="gray", linestyle=":", label="SLO")
    tbt.set(xlabel="TBT (ms)", title="Time between tokens")
    for axes_of_tail in (ttft, tbt):
        axes_of_tail.set(yscale="log", ylabel="share of requests above", ylim=(1e-4, 1.1))
        axes_of_tail.axhline(0.01, color="gray", linewidth=0.5)  # the 99th percentile
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


def _number(cell: str) -> float:
    """Return what a cell begins with; NaN: no number."""
    found = re.match(r"[+-]?[\d,]*\.?\d+(k?)", cell)
    if found is None:
        return math.nan
    return float(found[0].rstrip("k").replace(",", "")) * (1024 if found[1] else 1)


def series(figure: Figure, chart: Chart) -> dict[str, list[tuple[str, float]]]:
    """Return the points of each line, by its label; those without a value are left out."""
    lines: dict[str, list[tuple[str, float]]] = {}
    for row in figure.rows:
        before = [row[column] for column in chart.by]
        for name, column in chart.ys.items():
            parts = row[column].split(" / ")
            value = _number(parts[chart.part]) if chart.part < len(parts) else math.nan
            if not math.isnan(value):
                label = ", ".join([*before, *([name] if name else [])])
                lines.setdefault(label, []).append((row[chart.x], value))
    return lines


_NAMES_MAX = 9


def _draw(axes: Any, figure: Figure, chart: Chart) -> None:
    lines = series(figure, chart)
    names = list(dict.fromkeys(row[chart.x] for row in figure.rows))
    # What was published has the color of what stands beside it.
    families = list(dict.fromkeys(_family(label) for label in lines))
    lies = chart.is_bars and len(names) > _NAMES_MAX  # as many names stand beside each other
    for number, (label, points) in enumerate(lines.items()):
        is_published = "published" in label
        look: dict[str, Any] = {"label": label, "color": f"C{families.index(_family(label)) % 10}"}
        if chart.is_bars:
            width = 0.8 / len(lines)
            at = [names.index(x) + (number - (len(lines) - 1) / 2) * width for x, _ in points]
            look |= {"alpha": 0.45, "hatch": "//"} if is_published else {}
            if lies:
                axes.barh(at, [y for _, y in points], width, **look)
            else:
                axes.bar(at, [y for _, y in points], width, **look)
        else:
            known = [(_number(x), y) for x, y in points if not math.isnan(_number(x))]
            look |= {"linestyle": "--", "marker": "s", "fillstyle": "none"} if is_published else {}
            axes.plot([x for x, _ in known], [y for _, y in known], **{"marker": "o", **look})
    if lies:
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
    elif chart.is_bars:
        axes.set_xticks(range(len(names)), names, rotation=15 if len(names) > 5 else 0)
    else:
        shown = [x for x in names if not math.isnan(_number(x))]
        axes.set_xscale("log")
        axes.set_xticks([_number(x) for x in shown], shown)
        axes.xaxis.minorticks_off()
        axes.set_xlabel(figure.header[chart.x])
    along = "x" if lies else "y"  # of the numbers
    if chart.is_log:
        axes.set(**{f"{along}scale": "log"})
        getattr(axes, f"{along}axis").set_major_formatter("{x:g}")
        getattr(axes, f"{along}axis").set_minor_formatter("")
    else:
        axes.set(**{f"{along}lim": (0, None)})
    axes.set(**{f"{along}label": chart.y_label})
    axes.grid(axis=along, alpha=0.3)
    axes.set_axisbelow(True)
    if any(lines):
        below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "frameon": False}
        axes.legend(fontsize=8, ncols=min(4, len(lines)), **below)


def _family(label: str) -> str:
    return label.removesuffix("published").removesuffix("here").rstrip(", ")


def plot_figure(figure: Figure, path: Path) -> bool:
    """Draw one of the papers' figures; False: it is a table, of which nothing is drawn.

    Raises:
        ConfigError: There is no matplotlib, or the file cannot be written.
    """
    if not figure.charts:
        return False
    pyplot = _pyplot()
    count = len(figure.charts)
    drawn, axes = pyplot.subplots(1, count, figsize=(7.5 * count, 5), squeeze=False)
    for at, chart in zip(axes[0], figure.charts, strict=True):
        _draw(at, figure, chart)
    drawn.suptitle("\n".join(textwrap.wrap(figure.title, 70 * count)), fontsize=11)
    _save(pyplot, drawn, path, bbox_inches="tight")  # the legends stand below
    return True
