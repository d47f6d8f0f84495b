"""The simulator's settings: files of a cluster, and what is refused before anything runs."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from mooncake_store.conductor.sim_config import SimConfig, cluster_example, with_policy
from mooncake_store.conductor.simulation import simulate
from mooncake_store.conductor.trace import Trace
from mooncake_store.errors import ConfigError
from tests.unit.conductor.replays import configure


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("sample_s", "replay.sample"),
        ("report_interval_s", "scheduler.report_interval"),
        ("replicate_interval_s", "scheduler.replicate_interval"),
    ],
)
def test_intervals_of_nearly_nothing_are_refused(sample: Trace, setting: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        simulate(sample, configure(**{setting: 1e-9}))


def test_coupled_nodes_are_the_same_ones() -> None:
    with pytest.raises(ConfigError, match="same ones twice"):
        configure(prefill_nodes=3, decode_nodes=4, coupled=True)
    with pytest.raises(ConfigError, match="group_nodes is 1"):
        configure(prefill_nodes=4, decode_nodes=4, group_nodes=2, coupled=True)


def test_blocks_of_another_size_are_refused(sample: Trace) -> None:
    with pytest.raises(ConfigError, match="512"):
        simulate(sample, configure(block_tokens=256))


def test_a_cluster_file_is_read_and_its_example_is_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    uncommented = "\n".join(
        line[1:] if line.startswith("#") and " = " in line and line[1] != " " else line
        for line in cluster_example().splitlines()
    )
    path.write_text(uncommented)
    assert SimConfig.read(path) == SimConfig()
    path.write_text('[cluster]\nprefill_nodes = 3\nnic = "25GB"\n[scheduler]\npolicy = "ours"\n')
    config = SimConfig.read(path, {"slo": {"ttft": "5s"}})
    assert config.cluster.prefill_nodes == 3
    assert config.cluster.nic_bytes_per_s == 25e9
    assert config.slo.ttft_s == 5
    assert config.scheduler.selection == "earliest"
    assert config.scheduler == with_policy(SimConfig(), "ours").scheduler


def test_what_is_set_beside_a_policys_name_beats_each_policy(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text('[scheduler]\norder = "fcfs"\ntouch_source = true\n')
    # The first two are also what holds without a policy: that they were said is what counts.
    config = SimConfig.read(path, {"scheduler": {"target_most": 0.9, "overlap": None}})
    ours = with_policy(config, "ours").scheduler
    assert (ours.order, ours.touch_source, ours.target_most) == ("fcfs", True, 0.9)
    assert (ours.policy, ours.selection, ours.overlap) == ("ours", "earliest", True)
    # Naming another policy undoes the former one, not what was said.
    changed = with_policy(with_policy(config, "ours", overlap=True), "random").scheduler
    assert (changed.selection, changed.order, changed.target_most) == ("random", "fcfs", 0.9)
    assert changed.overlap is True
    assert with_policy(with_policy(SimConfig(), "ours"), "global") == SimConfig()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("[cluster]\nprefil_nodes = 3", "prefill_nodes"),
        ("[clusters]", "cluster"),
        ('[scheduler]\npolicy = "best"', "least-load"),
        ("[cluster]\nprefill_nodes = 3\ngroup_nodes = 2", "whole groups"),
        ("[cluster]\nprefill_nodes = 0", "at least 1"),
        ("[cluster", "TOML"),
    ],
)
def test_a_cluster_file_that_cannot_be_names_what_is_wrong(
    tmp_path: Path, text: str, names: str
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=names):
        SimConfig.read(path)


@pytest.mark.parametrize(
    ("table", "setting"),
    [("model", "prefill_token_us"), ("slo", "ttft_s"), ("scheduler", "error_sigma")],
)
def test_what_is_no_number_never_reaches_the_simulator(
    sample: Trace, table: str, setting: str
) -> None:
    config = configure("global")
    broken = replace(config, **{table: replace(getattr(config, table), **{setting: math.nan})})
    with pytest.raises(ConfigError, match=f"{table}.{setting} is a number, not nan"):
        simulate(sample, broken)
