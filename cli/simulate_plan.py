"""`mooncake-store sim plan`: how many prefill and decode nodes a load needs, from its means."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mooncake_store.cli.exit_codes import ExitCode
from mooncake_store.cli.options import output_options
from mooncake_store.cli.output import Output
from mooncake_store.cli.simulate_settings import read_config
from mooncake_store.errors import ConfigError, RequestError

if TYPE_CHECKING:
    from mooncake_store.conductor.planning import Demand, Plan
    from mooncake_store.conductor.sim_config import SimConfig

__all__ = ["plan"]

_BOUNDS = {
    "tbt": "the TBT's SLO", "memory": "cluster.decode_capacity_tokens",
    "batch": "cluster.decode_batch_max",
}  # fmt: skip


def _load(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--decode-load", type=click.FloatRange(0.01, 1), default=0.8, show_default=True,
            metavar="X", help="share of TBT, memory and batch that the mean may take",
        ),
        click.option(
            "--prefill-load", type=click.FloatRange(0.01, 0.99), default=0.7, show_default=True,
            metavar="X", help="share of the time that prefill nodes compute; at 0.7 a prompt "
            "waits for 1.2 others on average",
        ),
        click.option(
            "--output-tokens", type=float, required=True, metavar="N", help="of an answer"
        ),
        click.option(
            "--cached-tokens", type=float, default=0, show_default=True, metavar="N",
            help="of a prompt, that need not be computed",
        ),
        click.option("--prompt-tokens", type=float, required=True, metavar="N", help="of a prompt"),
        click.option(
            "--rate", type=float, required=True, metavar="X", help="requests a second"
        ),
        click.option(
            "--set", "settings", multiple=True, metavar="TABLE.NAME=VALUE",
            help="a setting of the cluster file; repeatable (`sim settings` lists them)",
        ),
        click.option(
            "--cluster", type=click.Path(path_type=Path), metavar="FILE",
            help="cluster, model and SLOs (TOML)",
        ),
    ):  # fmt: skip
        function = option(function)
    return output_options(function)


@click.command()
@_load
def plan(
    output: Output, cluster: Path | None, settings: tuple[str, ...], rate: float,
    prompt_tokens: float, cached_tokens: float, output_tokens: float, prefill_load: float,
    decode_load: float,
) -> int:  # fmt: skip
    """Tell how many prefill and decode nodes a load needs, from its means.

    Where there is a trace, `sim size` replays it, and knows bunches and long prompts.

    \b
    mooncake-store sim plan --rate 20 --prompt-tokens 12000 --cached-tokens 4800 --output-tokens 343
    """
    from mooncake_store.conductor.planning import Demand, plan_split
    from mooncake_store.conductor.service.core import costs_of

    config = read_config(cluster, settings)
    costs = costs_of(config)
    demand = Demand(
        requests_per_s=rate,
        num_tokens=prompt_tokens,
        prefix_tokens=cached_tokens,
        output_tokens=output_tokens,
    )
    try:
        found = plan_split(
            demand,
            prefill_time=costs.prefill,
            decode_time=costs.decode,
            capacity_tokens=config.cluster.decode_capacity_tokens,
            batch_max=config.cluster.decode_batch_max,
            group_nodes=config.cluster.group_nodes,
            ttft_slo_s=config.slo.ttft_s,
            tbt_slo_s=config.slo.tbt_s,
            prefill_load_max=prefill_load,
            decode_load_max=decode_load,
        )
    except RequestError as error:
        raise ConfigError(
            error.message, cause=error, hint="change the load, the SLOs, or the cluster file"
        ) from error
    document = {
        "prefill_nodes": found.prefill_nodes,
        "decode_nodes": found.decode_nodes,
        "prefill_seconds": found.prefill_s,
        "prefill_load": found.prefill_load,
        "tbt_seconds": found.decode_tbt_s,
        "decode_batch": found.decode_batch,
        "decode_tokens": found.decode_tokens,
        "decode_bound": found.bound,
        "decode_load": found.decode_load,
    }
    output.result(document, _text(found, demand, config))
    return ExitCode.OK


def _text(found: Plan, demand: Demand, config: SimConfig) -> str:
    cluster = config.cluster
    return "\n".join(
        [
            f"load       {demand.requests_per_s:g} requests a second of {demand.num_tokens:,.0f} "
            f"tokens, {demand.prefix_tokens:,.0f} of them cached, and {demand.output_tokens:,.0f} "
            "of answer",
            f"prefill    {found.prefill_nodes:,} nodes, {found.prefill_load:.0%} busy: a request "
            f"takes one {found.prefill_s:.2f} s",
            f"decode     {found.decode_nodes:,} nodes: {found.decode_tbt_s * 1e3:.1f} ms a token "
            f"(SLO {config.slo.tbt_s * 1e3:g}), batches of {found.decode_batch:.1f} (at most "
            f"{cluster.decode_batch_max:,}), {found.decode_tokens:,.0f} tokens of KV cache (at "
            f"most {cluster.decode_capacity_tokens:,})",
            f"bound by   {_BOUNDS[found.bound]}, {found.decode_load:.0%} taken",
        ]
    )
