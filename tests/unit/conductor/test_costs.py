"""The cost models: the papers' equations, the fit, transfer, decoding, layers and pipelines."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest

from mooncake_store.conductor.decode_time import (
    DecodeSample,
    DecodeTime,
    fit_decode_time,
    kv_capacity_tokens,
)
from mooncake_store.conductor.fitting import fit_terms
from mooncake_store.conductor.layerwise import LayerTimes, layer_times
from mooncake_store.conductor.model_shape import A800_NODE_FLOPS, H800_NODE_FLOPS, LLAMA3_70B
from mooncake_store.conductor.pipeline import balanced_chunks, equal_chunks, pipeline_times
from mooncake_store.conductor.planning import Demand, Plan, plan_split
from mooncake_store.conductor.prefill_time import (
    LLAMA3_70B_A800,
    PrefillSample,
    PrefillTime,
    fit_prefill_time,
)
from mooncake_store.conductor.transfer_time import TransferTime
from mooncake_store.errors import RequestError


def test_kv_cache_per_token_is_that_of_table_1() -> None:
    assert LLAMA3_70B.kv_bytes_per_token == 327_680
    assert LLAMA3_70B.kv_bytes_per_token * 3_000_000 == pytest.approx(0.98e12, rel=0.01)
    assert LLAMA3_70B.kv_bytes_per_token * 128 * 1024 == pytest.approx(43e9, rel=0.01)


@pytest.mark.parametrize(
    ("flops", "bandwidth"), [(A800_NODE_FLOPS, 5.859e9), (H800_NODE_FLOPS, 18.573e9)]
)
def test_equation_2_gives_the_papers_bandwidths(flops: float, bandwidth: float) -> None:
    found = LLAMA3_70B.bandwidth_needed_bytes_per_s(8192, flops)
    assert found == pytest.approx(bandwidth, rel=1e-4)


def test_equation_2_is_where_reading_takes_as_long_as_computing() -> None:
    prefix = 30_000
    bandwidth = LLAMA3_70B.bandwidth_needed_bytes_per_s(prefix, A800_NODE_FLOPS)
    reading_s = prefix * LLAMA3_70B.kv_bytes_per_token / bandwidth
    assert reading_s == pytest.approx(LLAMA3_70B.flops(prefix) / A800_NODE_FLOPS)


def test_work_left_is_the_difference_of_squares() -> None:
    n, p, d = 9000, 4000, 8192
    expected = 80 * (4 * d * (n * n - p * p) + 22 * d * d * (n - p))
    assert LLAMA3_70B.flops_left(n, p) == pytest.approx(expected)


def test_equation_2_without_a_prefix_is_refused() -> None:
    with pytest.raises(RequestError):
        LLAMA3_70B.bandwidth_needed_bytes_per_s(0, 1.0)


@pytest.mark.parametrize(
    ("tokens", "seconds"), [(8192, 1.0), (16384, 2.1), (32768, 4.5), (65536, 10.7), (131072, 27.7)]
)
def test_the_default_fit_meets_the_published_curve(tokens: int, seconds: float) -> None:
    assert LLAMA3_70B_A800(tokens) == pytest.approx(seconds, rel=0.03)


def test_the_default_fit_meets_the_cached_point() -> None:
    assert LLAMA3_70B_A800(131072, round(0.95 * 131072)) == pytest.approx(2.2, rel=0.15)


def test_a_fit_finds_the_polynomial_that_made_the_samples() -> None:
    truth = PrefillTime(0.02, 9e-5, 5e-10)
    samples = [
        PrefillSample(n, p, truth(n, p))
        for n in (500, 2000, 8000, 30_000, 100_000)
        for p in (0, n // 2, n - 10)
    ]
    fit = fit_prefill_time(samples)
    assert fit.model.base_s == pytest.approx(0.02, rel=1e-3)
    assert fit.model.per_token_s == pytest.approx(9e-5, rel=1e-3)
    assert fit.model.per_token_pair_s == pytest.approx(5e-10, rel=1e-3)
    assert fit.error.max < 1e-6
    assert fit.num_samples == len(samples)


def test_a_fit_to_noisy_samples_tells_its_error() -> None:
    draw = random.Random(5)
    truth = PrefillTime(0.0, 1e-4, 7e-10)
    samples = [
        PrefillSample(n, 0, truth(n) * draw.uniform(0.9, 1.1)) for n in range(1000, 100_000, 1000)
    ]
    fit = fit_prefill_time(samples)
    assert 0.03 < fit.error.mean < 0.07
    assert fit.error.max < 0.12
    assert fit.model(50_000) == pytest.approx(truth(50_000), rel=0.03)


def test_a_fit_has_no_negative_coefficient_even_if_that_would_fit_better() -> None:
    # Concave: the unbounded least squares would take a negative square.
    samples = [PrefillSample(n, 0, (n / 1000) ** 0.5) for n in range(1000, 60_000, 2000)]
    model = fit_prefill_time(samples).model
    assert min(model.base_s, model.per_token_s, model.per_token_pair_s) >= 0
    assert model.per_token_pair_s == 0


def test_a_fit_to_times_of_days_keeps_all_coefficients() -> None:
    truth = PrefillTime(20_000.0, 1.0, 5e-6)
    samples = [PrefillSample(n, 0, truth(n)) for n in range(100_000, 200_001, 20_000)]
    model = fit_prefill_time(samples).model
    found = (model.base_s, model.per_token_s, model.per_token_pair_s)
    assert found == pytest.approx((20_000.0, 1.0, 5e-6), rel=1e-6)


@pytest.mark.parametrize("unit", [1e-100, 1e-9, 1.0, 1e9, 1e100])
def test_a_fit_is_the_same_in_any_unit(unit: float) -> None:
    lengths = (1.0, 3.0, 10.0, 40.0)
    rows = [(1.0, n * unit, n * n * unit) for n in lengths]
    times_s = [(2 + 3 * n + 5 * n * n) / unit for n in lengths]
    found, error = fit_terms(rows, times_s, ("a", "b", "c"))
    assert found == pytest.approx([2 / unit, 3 / unit**2, 5 / unit**2], rel=1e-6)
    assert error.max < 1e-9
    with pytest.raises(RequestError, match="do not tell b from c"):
        fit_terms([(1.0, n, 7 * n) for _, n, _ in rows], times_s, ("a", "b", "c"))


def test_a_fit_of_degree_1_leaves_the_square_out() -> None:
    samples = [PrefillSample(n, 0, 0.5 + 1e-3 * n + 1e-7 * n * n) for n in (100, 500, 900, 1300)]
    model = fit_prefill_time(samples, degree=1).model
    assert model.per_token_pair_s == 0 < fit_prefill_time(samples).model.per_token_pair_s
    assert 1e-3 < model.per_token_s < 1.3e-3
    line = [PrefillSample(100, 0, 1.0), PrefillSample(200, 0, 1.5)]
    assert fit_prefill_time(line, degree=1).model(300) == pytest.approx(2.0)
    with pytest.raises(RequestError, match="two different"):
        fit_prefill_time(line[:1], degree=1)
    with pytest.raises(RequestError, match="1 or 2"):
        fit_prefill_time(samples, degree=3)


@pytest.mark.parametrize(
    "samples",
    [
        [],
        [PrefillSample(10, 0, 1.0), PrefillSample(20, 0, 2.0)],
        [PrefillSample(10, 10, 1.0)] * 5,
        [PrefillSample(n, 0, float("nan")) for n in (1, 2, 3)],
        [PrefillSample(p + 100, p, 1.0 + p) for p in range(5)],  # as much to compute in all
    ],
)
def test_a_fit_refuses_samples_that_decide_nothing(samples: list[PrefillSample]) -> None:
    with pytest.raises(RequestError):
        fit_prefill_time(samples)


DECODE_SAMPLES = [(1, 8192), (1, 131_072), (4, 30_000), (16, 131_072), (64, 200_000), (64, 500_000)]


def test_a_fit_finds_the_decode_time_that_made_the_samples() -> None:
    truth = DecodeTime(0.027, 4e-4, 4e-8)
    fit = fit_decode_time(DecodeSample(b, c, truth(b, c)) for b, c in DECODE_SAMPLES)
    assert fit.model.base_s == pytest.approx(0.027, rel=1e-6)
    assert fit.model.per_request_s == pytest.approx(4e-4, rel=1e-6)
    assert fit.model.per_context_token_s == pytest.approx(4e-8, rel=1e-6)
    assert fit.error.max < 1e-9
    assert fit.num_samples == 6


def test_a_fit_to_noisy_iterations_tells_its_error() -> None:
    draw = random.Random(7)
    truth = DecodeTime(0.02, 1e-4, 3e-8)
    fit = fit_decode_time(
        DecodeSample(b, b * c, truth(b, b * c) * draw.uniform(0.9, 1.1))
        for b in (1, 2, 4, 8, 16, 32, 64)
        for c in (500, 2000, 8000, 30_000)
    )
    assert fit.model(20, 80_000) == pytest.approx(truth(20, 80_000), rel=0.05)
    assert 0.02 < fit.error.median < 0.08
    assert fit.error.median < fit.error.max < 0.15


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ([], "three different"),
        ([(1, 100), (2, 200)] * 3, "three different"),
        ([(8, c) for c in (1000, 2000, 3000)], "t0 .* from kb"),
        ([(b, 1000 * b) for b in (1, 2, 3, 4)], "kb .* from kc"),
        ([(b, 5000) for b in (1, 2, 3, 4)], "t0 .* from kc"),
        ([(b, 5000 + 100 * b) for b in (1, 2, 3, 4)], "apart"),
        ([(4, 3), (1, 2), (1, 3), (2, 3)], "no measured iteration"),
    ],
)
def test_a_decode_fit_refuses_samples_that_decide_nothing(
    samples: list[tuple[int, int]], why: str
) -> None:
    with pytest.raises(RequestError, match=why):
        fit_decode_time(DecodeSample(b, c, 0.02 + b * 1e-4 + c * 3e-8) for b, c in samples)


def test_at_least_one_token_is_computed() -> None:
    assert LLAMA3_70B_A800(1000, 1000) == LLAMA3_70B_A800(1000, 999) > 0


def test_a_transfer_waits_for_what_the_sender_has_queued() -> None:
    time = TransferTime(kv_bytes_per_token=327_680, bandwidth_bytes_per_s=1e9, latency_s=0.5)
    assert time(0, queued_bytes=1e12) == 0
    assert time(1000) == pytest.approx(0.5 + 0.32768)
    assert time(1000, queued_bytes=2e9) == pytest.approx(2.5 + 0.32768)


def test_the_load_into_the_device_bounds_a_faster_network() -> None:
    time = TransferTime(
        kv_bytes_per_token=1000, bandwidth_bytes_per_s=1e12, latency_s=0, load_bytes_per_s=1e9
    )
    assert time(1_000_000) == pytest.approx(1.0)


def test_decode_times_meet_the_published_ones() -> None:
    time = DecodeTime()
    assert time(1, 8192) == pytest.approx(0.027, rel=0.05)
    assert time(1, 131_072) == pytest.approx(0.031, rel=0.1)
    assert time(16, 16 * 8192) / time(1, 8192) == pytest.approx(1.25, rel=0.1)
    capacity = kv_capacity_tokens(8 * 80e9, 140e9, 327_680)
    assert capacity == pytest.approx(1.3e6, rel=0.03)


def test_layers_without_loads_and_stores_take_the_prefill() -> None:
    times = LayerTimes(80, 0.0, 0.05, 0.0)
    assert times.overlapped_s == pytest.approx(80 * 0.05)
    assert times.serial_s == pytest.approx(80 * 0.05)


def test_overlap_is_bound_by_the_slowest_of_the_three() -> None:
    assert LayerTimes(80, 0.01, 0.05, 0.02).overlapped_s == pytest.approx(0.08 + 79 * 0.05)
    assert LayerTimes(80, 0.09, 0.05, 0.02).overlapped_s == pytest.approx(0.16 + 79 * 0.09)
    times = layer_times(131_072, 0, prefill_s=27.7, layers=80, kv_bytes_per_token=327_680)
    assert times.serial_s - 27.7 == pytest.approx(0.87, rel=0.05)  # arXiv figure 7, serial
    assert times.added_s < 0.02


def test_one_stage_or_one_chunk_is_a_plain_prefill() -> None:
    time = PrefillTime(0.1, 1e-4, 7e-10)
    for prefix in (0, 9000):
        plain = time(50_000, prefix)
        one_node = pipeline_times(equal_chunks(50_000, prefix), prefix, nodes=1, prefill_time=time)
        assert one_node.first_token_s == pytest.approx(plain)
        one_chunk = pipeline_times([50_000], prefix, nodes=4, prefill_time=time)
        assert one_chunk.first_token_s == pytest.approx(plain)


def test_a_pipeline_takes_what_the_formula_says() -> None:
    time = PrefillTime(0, 1e-4, 7e-10)
    ends = equal_chunks(128 * 1024)
    times = pipeline_times(ends, nodes=4, prefill_time=time)
    last = time(ends[-1], ends[-2])
    assert times.first_token_s == pytest.approx((time(128 * 1024) + 3 * last) / 4)


def test_balanced_chunks_take_equally_long_and_end_sooner() -> None:
    time = LLAMA3_70B_A800
    ends = balanced_chunks(128 * 1024, 0, prefill_time=time)
    assert len(ends) == len(equal_chunks(128 * 1024))
    durations = [time(end, begin) for begin, end in zip([0, *ends], ends, strict=False)]
    assert max(durations) / min(durations) < 1.01
    for nodes in (2, 4):
        balanced = pipeline_times(ends, nodes=nodes, prefill_time=time)
        equal = pipeline_times(equal_chunks(128 * 1024), nodes=nodes, prefill_time=time)
        assert balanced.first_token_s < equal.first_token_s
        assert balanced.bubble < equal.bubble


@pytest.mark.parametrize(
    "time", [PrefillTime(1, 0, 0), PrefillTime(0, 1e-4, 0), PrefillTime(0, 0, 1e-9)]
)
def test_chunks_cover_every_token_once(time: PrefillTime) -> None:
    for tokens, prefix in ((1, 0), (8193, 0), (8193, 8192), (100_000, 3)):
        for ends in (
            equal_chunks(tokens, prefix),
            balanced_chunks(tokens, prefix, prefill_time=time),
        ):
            assert ends[-1] == tokens
            assert all(b > a for a, b in zip([prefix, *ends], ends, strict=False))


def test_the_stages_of_a_pipeline_go_on_with_the_next_request() -> None:
    time = PrefillTime(0, 1e-4, 0)
    first = pipeline_times([4096, 8192], nodes=2, prefill_time=time)
    second = pipeline_times(
        [4096, 8192], nodes=2, prefill_time=time, stage_free_s=first.stage_free_s
    )
    # The throughput of two nodes: each request adds half of its work.
    assert second.first_token_s - first.first_token_s == pytest.approx(first.work_s / 2)


def test_a_plan_grows_with_the_load_and_keeps_the_slo() -> None:
    def plan(rate: float) -> tuple[int, int]:
        demand = Demand(
            requests_per_s=rate, num_tokens=12_000, prefix_tokens=4800, output_tokens=343
        )
        found = plan_split(
            demand,
            prefill_time=LLAMA3_70B_A800,
            decode_time=DecodeTime(),
            capacity_tokens=1_300_000,
        )
        assert found.prefill_load <= 0.7
        assert found.decode_tbt_s <= 0.08
        return found.prefill_nodes, found.decode_nodes

    small, large = plan(3.4), plan(34)
    assert large[0] > 8 * small[0]
    assert large[1] > small[1]


def plan(**changes: Any) -> Plan:
    load: dict[str, Any] = {
        "requests_per_s": 10, "num_tokens": 4000, "prefix_tokens": 0, "output_tokens": 300,
    }  # fmt: skip
    asked = {name: changes.pop(name, value) for name, value in load.items()}
    bounds: dict[str, Any] = {"capacity_tokens": 1_300_000, **changes}
    return plan_split(
        Demand(**asked), prefill_time=LLAMA3_70B_A800, decode_time=DecodeTime(), **bounds
    )


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ({"requests_per_s": 100, "capacity_tokens": 10**9, "batch_max": 10**6}, "tbt"),
        ({"requests_per_s": 100, "capacity_tokens": 100_000}, "memory"),
        ({"requests_per_s": 100, "batch_max": 20}, "batch"),
    ],
)
def test_a_plan_has_the_fewest_nodes_that_what_is_scarcest_allows(
    changes: dict[str, Any], bound: str
) -> None:
    found = plan(**changes)
    assert found.bound == bound
    assert found.decode_load <= 0.8
    # The work of the same load on one node less is more than it can do.
    capacity, batch_max = changes.get("capacity_tokens", 1_300_000), changes.get("batch_max", 256)
    fewer = found.decode_nodes - 1
    slope = 100 * 300 / fewer * 4e-8 * 4150
    tbt_s = 0.027 / (1 - slope) if slope < 1 else math.inf
    batch = 100 * 300 / fewer * tbt_s
    assert max(tbt_s / 0.1, batch * 4150 / capacity, batch / batch_max) > 0.8


def test_a_plan_has_whole_groups_of_prefill_nodes() -> None:
    alone, grouped = plan(), plan(group_nodes=4)
    assert grouped.prefill_nodes == -(-alone.prefill_nodes // 4) * 4
    assert grouped.prefill_load == pytest.approx(
        alone.prefill_load * alone.prefill_nodes / grouped.prefill_nodes
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"tbt_slo_s": 0.01},
        {"tbt_slo_s": 0.03},  # one request alone meets it, the mean of many never does
        {"num_tokens": 2_000_000, "ttft_slo_s": math.inf},
        {"prefix_tokens": 4000},
        {"prefix_tokens": -1},
        {"requests_per_s": math.nan},
        {"output_tokens": 0},
        {"prefill_load_max": 1},
    ],
)
def test_a_plan_that_no_number_of_nodes_meets_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        plan(**changes)


def test_a_plan_refuses_a_first_token_that_one_prefill_alone_misses() -> None:
    alone_s = LLAMA3_70B_A800(4000)
    assert plan(ttft_slo_s=1.01 * alone_s).prefill_nodes > 1
    with pytest.raises(RequestError, match=r"no number of prefill nodes meets .* until the first"):
        plan(ttft_slo_s=0.99 * alone_s)
    # The nodes of a group share a prefill.
    assert plan(ttft_slo_s=0.26 * alone_s, group_nodes=4).prefill_nodes % 4 == 0
    with pytest.raises(RequestError, match="on a group of 4 nodes"):
        plan(ttft_slo_s=0.24 * alone_s, group_nodes=4)
