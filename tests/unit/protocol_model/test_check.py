"""The models of the protocol, bounded to fit into every test run; `make model` goes further."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "protocol-model"))

from protocol_model import catalogue  # noqa: E402
from protocol_model.details import (  # noqa: E402
    attempt,
    inventory_file,
    note,
    number,
    pin,
    transfer,
    view_end,
)
from protocol_model.extent.rules import RULES as EXTENT_RULES  # noqa: E402
from protocol_model.replicas.rules import RULES as REPLICAS_RULES  # noqa: E402
from protocol_model.search import Limits, breadth_first, walk  # noqa: E402

# Bounded by states: time is only for the machine that hangs.
SCENARIO = Limits(states=3_000, seconds=50)
COUNTEREXAMPLE = Limits(states=60_000, seconds=50)
SPECIFICATION = list(catalogue.specification())
LESS_ONE_RULE = list(catalogue.less_one_rule())


@pytest.mark.parametrize("case", SPECIFICATION, ids=lambda case: case.name)
def test_specification_holds(case: catalogue.Case) -> None:
    found = case.run(SCENARIO)
    assert found.violation is None, "\n".join(found.labels)
    assert found.is_complete or found.states > SCENARIO.states


@pytest.mark.parametrize("case", LESS_ONE_RULE, ids=lambda case: case.name)
def test_without_the_rule_it_breaks(case: catalogue.Case) -> None:
    found = case.run(COUNTEREXAMPLE)
    assert found.violation is not None, f"{found.states} states, and nothing is wrong"
    assert found.labels


def test_every_rule_is_left_out_once() -> None:
    rules = [*EXTENT_RULES, *REPLICAS_RULES]
    for detail in (inventory_file, transfer, attempt, note, number, view_end, pin):
        rules += detail.RULES
    assert len(rules) == len(set(rules))
    assert sorted(case.name for case in LESS_ONE_RULE) == sorted(rules)


def test_every_rule_is_in_the_protocol_and_nothing_else() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text()
    rules = text[text.index("\n## Rules") : text.index("\n## Model")]
    named = set(re.findall(r"\*([a-z]+(?:_[a-z]+)*)\*", rules))
    assert named == {case.name for case in LESS_ONE_RULE}


def test_a_close_without_its_tag_takes_a_page_from_under_a_view() -> None:
    case = next(case for case in LESS_ONE_RULE if case.name == "close_tagged")
    found = case.run(COUNTEREXAMPLE)
    assert found.violation is not None and found.violation.startswith("S2: a page that somebody")
    assert "the server handles a close of view 1, and ends view 0" in found.labels


def test_random_walks_end_well() -> None:
    count, violation, labels = catalogue.random_walks(seconds=3)
    assert violation is None, "\n".join([violation or "", *labels])
    assert count > 0


# ---- the search: counting up by one or two, and 7 is wrong ---------------------------------------
def steps_of(number: int):
    for step in (1, 2):
        after = number + step
        if after <= 10:
            yield f"+{step}", after, "it is 7" if after == 7 else None


def test_search_finds_a_shortest_way() -> None:
    found = breadth_first(0, steps_of, Limits())
    assert found.violation == "it is 7"
    assert len(found.labels) == 4 and sum(int(label) for label in found.labels) == 7


def test_search_says_whether_it_saw_everything() -> None:
    assert breadth_first(8, steps_of, Limits()).is_complete
    assert not breadth_first(8, steps_of, Limits(states=1)).is_complete


def test_walk_repeats_with_its_seed_and_heals_at_its_end() -> None:
    one = walk(8, steps_of, lambda state: f"ends in {state}", seed=3, steps_max=5)
    assert one == walk(8, steps_of, lambda state: f"ends in {state}", seed=3, steps_max=5)
    assert one[0] == "ends in 10" and one[1][-1] == "the faults stop"


# ---- the command ---------------------------------------------------------------------------------
@pytest.fixture
def check(monkeypatch: pytest.MonkeyPatch):
    spec = importlib.util.spec_from_file_location("check", ROOT / "protocol-model" / "check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(sys, "argv", ["check.py", "--walk-seconds", "0"])
    return module


HOLDS = catalogue.Case("holds", 8, steps_of)
BREAKS = catalogue.Case("breaks", 0, steps_of)


@pytest.mark.parametrize(
    ("specification", "less_one_rule", "status"),
    [([HOLDS], [BREAKS], 0), ([BREAKS], [BREAKS], 1), ([HOLDS], [HOLDS], 1)],
)
def test_exit_status_says_whether_all_is_as_expected(
    check, monkeypatch, capsys, specification, less_one_rule, status
) -> None:
    monkeypatch.setattr(check, "specification", lambda: iter(specification))
    monkeypatch.setattr(check, "less_one_rule", lambda: iter(less_one_rule))
    assert check.main() == status
    assert ("all as expected" in capsys.readouterr().out) == (status == 0)
