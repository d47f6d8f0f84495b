"""Fixed cost and bandwidth are learned from measured fetches, and outliers are not believed."""

from __future__ import annotations

import random
import time

import pytest

from mooncake_store.conductor.service.transfer_fit import Fetched, TransferFit
from mooncake_store.errors import RequestError

MIB = 1 << 20


def fit_of(latency_s: float, rate: float, count: int, *, noise: float = 0.0, seed: int = 1):  # type: ignore[no-untyped-def]
    """A fit that began with a wrong belief and saw fetches of 1 to 64 MiB."""
    rng, fit = random.Random(seed), TransferFit(0.001, 100e9)
    for _ in range(count):
        size = rng.randint(1, 64) * MIB
        time_s = (latency_s + size / rate) * rng.lognormvariate(0, noise)
        fit.add(Fetched(size, time_s), fit.latency_s + size / fit.bandwidth_bytes_per_s, 0.0)
    return fit


@pytest.mark.parametrize(("latency_s", "rate"), [(0.003, 2e9), (0.0, 5e8), (0.05, 9e10)])
def test_both_parameters_are_found(latency_s: float, rate: float) -> None:
    fit = fit_of(latency_s, rate, 60)
    assert fit.refit(0.0)
    for size in (MIB, 16 * MIB, 64 * MIB):
        found = fit.latency_s + size / fit.bandwidth_bytes_per_s
        assert found == pytest.approx(latency_s + size / rate, rel=0.01)


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_outliers_move_it_little(seed: int) -> None:
    fit = fit_of(0.004, 1e9, 110, noise=0.3, seed=seed)
    for _ in range(18):
        fit.add(Fetched(8 * MIB, 5.0), 0.01, 0.0)  # held up for seconds
    fit.refit(0.0)
    for size in (4 * MIB, 32 * MIB):
        found = fit.latency_s + size / fit.bandwidth_bytes_per_s
        assert found == pytest.approx(0.004 + size / 1e9, rel=0.35)


def test_a_few_or_equal_sizes_only_scale_what_was_believed() -> None:
    fit = TransferFit(0.001, 1e9)
    for _ in range(50):
        fit.add(Fetched(MIB, 5 * (0.001 + MIB / 1e9)), 0.1, 0.0)
    fit.refit(0.0)
    assert fit.latency_s == pytest.approx(0.005)
    assert fit.bandwidth_bytes_per_s == pytest.approx(2e8)


def test_what_was_slow_is_forgotten_when_nothing_is_measured_any_more() -> None:
    fit = TransferFit(0.001, 1e9)
    for at_s in (0.0, 1.0, 2.0):
        assert not fit.refit(at_s) or fit.latency_s == 0.001  # two are too few
        fit.add(Fetched(MIB, 9.0), 0.1, at_s)
    assert fit.refit(3.0) and fit.latency_s > 1
    assert not fit.refit(50.0)
    assert fit.refit(61.0)
    assert (fit.latency_s, fit.bandwidth_bytes_per_s) == (0.001, pytest.approx(1e9))


def test_it_follows_a_network_that_changes() -> None:
    fit = fit_of(0.002, 2e9, 128)
    fit.refit(0.0)
    for number in range(128):
        size = (1 + number % 64) * MIB
        fit.add(Fetched(size, 0.002 + size / 1e8), 0.1, 0.0)
    fit.refit(0.0)
    assert fit.bandwidth_bytes_per_s == pytest.approx(1e8, rel=0.01)


def test_larger_fetches_that_take_less_give_no_more_bandwidth_than_there_is() -> None:
    fit = TransferFit(0.001, 1e9)
    for number in range(20):
        fit.add(Fetched((1 + number) * MIB, 0.02 / (1 + number)), 0.1, 0.0)
    fit.refit(0.0)
    assert fit.latency_s > 0
    assert 0 < fit.bandwidth_bytes_per_s <= 1e9 * (1 + 1e-9)


def test_nothing_measured_changes_nothing_and_the_ratio_is_of_predictions() -> None:
    fit = TransferFit(0.001, 1e9)
    assert not fit.refit(0.0)
    assert (fit.latency_s, fit.bandwidth_bytes_per_s, fit.ratio) == (0.001, 1e9, 1.0)
    for predicted_s in (0.01, 0.02, 0.09):
        fit.add(Fetched(MIB, 0.02), predicted_s, 0.0)
    assert fit.ratio == pytest.approx(1.0)
    assert fit.measured == 3


def test_a_fit_is_short_beside_a_decisions_deadline() -> None:
    fit = fit_of(0.003, 2e9, 200, noise=0.5)
    began_s = time.process_time()
    fit.refit(0.0)
    assert time.process_time() - began_s < 0.01


@pytest.mark.parametrize(
    ("size", "time_s"),
    [(0, 1), (-1, 1), (1, 0), (1, -1), (float("nan"), 1), (1, float("nan")), (1e16, 1), (1, 1e9)],
)
def test_measurements_that_cannot_be_are_refused(size: float, time_s: float) -> None:
    with pytest.raises(RequestError):
        Fetched(size, time_s)
