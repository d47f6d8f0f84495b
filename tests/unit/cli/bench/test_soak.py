"""What the soak calls growth: a slope, and counts that stay up."""

from __future__ import annotations

import pytest

from mooncake_store.cli.bench.soak import growth, slope_per_hour


def test_a_slope_is_told_by_the_hour() -> None:
    times_s = [float(at) for at in range(0, 600, 10)]
    assert slope_per_hour(times_s, [3.0 + at / 1800 for at in times_s]) == pytest.approx(2.0)
    assert slope_per_hour([5.0], [1.0]) == 0.0


def test_what_stays_up_has_grown_and_what_is_up_for_a_moment_has_not() -> None:
    assert growth([4] * 50 + [7] * 50) == 3
    assert growth(list(range(100))) == 50
    assert growth([4] * 90 + [9] + [4] * 9) == 0
    assert growth([4]) == 0
