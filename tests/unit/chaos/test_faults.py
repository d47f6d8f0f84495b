"""Faults are data: what is written is read again, and a seed always gives the same."""

from __future__ import annotations

import sys
from itertools import chain
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from chaos.faults import KINDS, Fault, Plan
from chaos.schedule import make_plan, matrix, subset


def test_a_plan_is_read_as_it_was_written(tmp_path):
    plan = make_plan(7, 120.0)
    assert len(plan.faults) > 10
    plan.write(tmp_path / "plan.json")
    assert Plan.read(tmp_path / "plan.json") == plan


def test_a_seed_gives_one_plan_and_another_gives_another():
    assert make_plan(3, 60.0) == make_plan(3, 60.0)
    assert make_plan(3, 60.0).faults != make_plan(4, 60.0).faults


def test_faults_end_before_the_load_does():
    for seed in range(50):
        for fault in make_plan(seed, 30.0).faults:
            assert 0 < fault.start_s < fault.end_s <= 28.0


def test_all_parts_together_are_the_matrix_once():
    parts = list(chain.from_iterable(subset(part, 7) for part in range(1, 8)))
    assert sorted(parts) == sorted(matrix())
    assert len(set(parts)) == len(parts)
    assert {kind for kind, _ in parts} == set(KINDS)


def test_a_plan_of_a_part_has_faults_of_that_part_only():
    pairs = subset(2, 7)
    faults = make_plan(1, 300.0, pairs=pairs).faults
    assert {(fault.kind, fault.target) for fault in faults} <= set(pairs)


@pytest.mark.parametrize(("part", "parts"), [(0, 3), (4, 3), (-1, 3)])
def test_there_is_no_such_part(part, parts):
    with pytest.raises(ValueError, match="numbered from 1"):
        subset(part, parts)


@pytest.mark.parametrize(
    ("kind", "target", "times"),
    [
        ("burn", "s0", (0, 1)),
        ("full", "m0", (0, 1)),
        ("kill", "s9", (0, 1)),
        ("kill", "s0", (-1, 1)),
    ],
)
def test_what_is_no_fault_is_refused(kind, target, times):
    with pytest.raises(ValueError):
        Fault(kind, target, *times)


def test_a_plan_with_something_unknown_is_refused(tmp_path):
    (tmp_path / "plan.json").write_text('{"seed": 1, "seconds": 2, "weather": "bad"}')
    with pytest.raises(ValueError, match="weather"):
        Plan.read(tmp_path / "plan.json")


def test_what_a_fault_may_excuse():
    server, client, leader = (Fault("freeze", name, 0, 1) for name in ("s0", "c2", "leader"))
    assert server.cuts_off and server.hides and server.ends_sessions
    assert not client.cuts_off and not client.hides and client.stops_clients
    assert leader.cuts_off and leader.hides
    assert not Fault("partition", "e0", 0, 1).cuts_off
    delay = Fault("delay", "s1", 0, 1, 40)
    assert not delay.cuts_off and not delay.hides and not delay.ends_sessions
    # A client on a server's host: cutting the host off cuts the server off, killing the client not.
    assert Fault("partition", "c0", 0, 1).cuts_off
    assert not Fault("kill", "c0", 0, 1).cuts_off
