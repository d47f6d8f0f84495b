"""The ticker sees a thread that keeps the interpreter, and only that."""

from __future__ import annotations

import time

from mooncake_store.cli.bench.ticker import percentile, slips_ms


def test_percentile_is_a_value_that_occurred():
    values = [float(n) for n in range(1, 1001)]

    assert percentile(values, 0.99) == 990.0
    assert percentile(values, 0.999) == 999.0
    assert percentile([3.0], 0.999) == 3.0


def test_one_slip_a_tick_is_recorded():
    assert len(slips_ms(None, 50)) == 50


def test_calls_that_keep_the_interpreter_delay_the_ticks():
    def hog() -> None:
        end = time.perf_counter() + 0.03
        while time.perf_counter() < end:
            pass

    slips = slips_ms(hog, 30)

    assert percentile(slips, 0.5) > 2.0  # CPython hands over every 5 ms
