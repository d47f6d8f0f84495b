"""Traces as they are read: JSON lines and those of Azure."""

from __future__ import annotations

from pathlib import Path

import pytest

from mooncake_store.conductor.report import report
from mooncake_store.conductor.simulation import Outcome, simulate
from mooncake_store.conductor.trace import load_trace
from mooncake_store.errors import ConfigError
from tests.unit.conductor.replays import column, configure

LINE = '{"timestamp": %d, "input_length": %d, "output_length": 1, "hash_ids": %s}'


@pytest.mark.parametrize(
    ("lines", "names"),
    [
        ([LINE % (0, 0, "[]")], "0 tokens"),
        ([LINE % (0, 5, "[1, 2]")], "2 block ids"),
        ([LINE % (0, 600, "[1, 1]")], "twice"),
        ([LINE % (9, 5, "[]"), LINE % (8, 5, "[]")], "request 2"),
        (["{"], "line 1"),
        (["", '{"timestamp": "0"}'], "line 2 .* timestamp is a number of milliseconds, not \"0\""),
        (['{"timestamp": null}'], "timestamp is a number of milliseconds, not null"),
        (["[1, 2]"], "line 1 .* an object with timestamp"),
        (["{}"], "timestamp is a number of milliseconds, not left out"),
        (['{"timestamp": 0, "input_length": 1e400}'], "input_length is a number .*, not Infinity"),
        ([LINE % (0, 600, '["a"]')], "hash_ids is a list of whole numbers"),
        ([(LINE % (0, 5, "[]")).replace("0,", "1e16,", 1)], "too late"),
        ([], "no requests"),
    ],
)  # fmt: skip
def test_a_trace_that_cannot_be_names_the_request(
    tmp_path: Path, lines: list[str], names: str
) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=names) as raised:
        load_trace(path)
    assert "docs/scheduling.md" in raised.value.hint


def test_blank_lines_of_a_trace_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text("\n" + LINE % (0, 5, "[]") + "\n\n" + LINE % (1, 5, "[]") + "\n\n")
    assert len(load_trace(path)) == 2


def test_only_whole_blocks_can_be_shared(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    line = '{"timestamp": %d, "input_length": 1000, "output_length": 2, "hash_ids": [5, 6]}'
    path.write_text("\n".join(line % at for at in (0, 60_000)))
    trace = load_trace(path)
    assert list(trace.blocks) == [0, 0]
    assert column(simulate(trace, configure()), Outcome.PREFIX_TOKENS) == [0, 512]


def test_azure_traces_are_read(tmp_path: Path) -> None:
    path = tmp_path / "azure.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    trace = load_trace(path)
    assert list(trace.tokens) == [374, 396]
    assert trace.arrival_s[1] == pytest.approx(4.314579, abs=1e-5)
    assert report(simulate(trace, configure())).finished == 2
    path.write_text("TIMESTAMP,ContextTokens\n2023-11-16 18:15:46,3\n")
    with pytest.raises(ConfigError, match="line 2"):
        load_trace(path)
