"""What a row looks like."""

from __future__ import annotations

import json

import pytest

from mooncake_store.cli.bench.environment import MachineLoad, describe_machine
from mooncake_store.cli.bench.report import cells, document, number, print_json, print_table
from mooncake_store.cli.bench.rounds import Bar, Comparison, Row, Spread

ROW = Row.compared(
    "get 4 KiB",
    "us",
    Comparison([50.0, 60.0], [40.0, 40.0]),
    bar=Bar(1.3, "ratio", "at most"),
    is_pinned=True,
    note="raw: a fetch",
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.00123, "0.00123"),
        (0.25, "0.25"),
        (5.678, "5.68"),
        (43.21, "43.2"),
        (2_512_345.6, "2,512,346"),
    ],
)
def test_numbers_have_about_three_digits(value, text):
    assert number(value) == text


def test_row_is_shown_with_ratio_bar_and_verdict():
    assert cells(ROW) == [
        "get 4 KiB",
        "apart",
        "55.0 us",
        "40.0",
        "1.38",
        "1.25–1.50",
        "≤ 1.3 ×",
        "no",
    ]


def test_table_has_no_column_that_is_empty_throughout(capsys):
    print_table("raw", [Row("copy", "GB/s", Spread.of([7.0]))])

    shown = capsys.readouterr().out
    assert "7.00 GB/s" in shown
    assert "ratio" not in shown
    assert "\x1b[" not in shown


def test_table_tells_the_notes_below(capsys):
    print_table("store", [ROW])

    assert "get 4 KiB: raw: a fetch" in capsys.readouterr().out


def test_document_is_json_and_names_machine_and_load(capsys):
    with MachineLoad() as load:
        sum(range(200_000))

    print_json(document("store", describe_machine(), [ROW], load, {"rounds": 2}))
    said = json.loads(capsys.readouterr().out)

    assert said["benchmark"] == "store"
    assert said["machine"]["cores"] >= 1
    assert said["machine"]["kernel"]
    assert 0 <= said["machine_busy_ratio"] <= 1
    assert said["rows"][0]["met"] is False
    assert said["settings"] == {"rounds": 2}
