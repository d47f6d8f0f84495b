"""The rate at which requests join: how long it remembers, whoever looks how often."""

from __future__ import annotations

import math

import pytest

from mooncake_store.conductor.service.joins import Joins


def rate(seconds: int, looks_per_s: int, quiet_s: int = 0) -> float:
    """With two requests a second, and none in the quiet seconds at the end."""
    joins = Joins()
    joins.look(100.0)
    for second in range(seconds + quiet_s):
        for _ in range(2 if second < seconds else 0):
            joins.note(100, 1.0)
        for look in range(1, looks_per_s + 1):
            joins.look(100.0 + second + look / looks_per_s)
    return joins.per_s


@pytest.mark.parametrize(("seconds", "quiet_s"), [(1, 0), (10, 0), (30, 0), (30, 30), (300, 0)])
def test_the_rate_is_the_same_however_often_one_looks(seconds: int, quiet_s: int) -> None:
    expected = 2 * (1 - math.exp(-seconds / 30)) * math.exp(-quiet_s / 30)
    for looks_per_s in (1, 5):
        assert rate(seconds, looks_per_s, quiet_s) == pytest.approx(expected, rel=0.02)


def test_a_look_at_the_time_of_the_last_one_forgets_nobody() -> None:
    joins = Joins()
    joins.look(1.0)
    joins.note(100, 1.0)
    joins.look(1.0)
    joins.look(2.0)
    assert joins.per_s == pytest.approx(1 - math.exp(-1 / 30))
