"""How loaded the decode pool is, or will be when a request's prefill ends: who is let in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from mooncake_store._native import ffi, lib
from mooncake_store.conductor.costs import Costs
from mooncake_store.conductor.decode_choice import DecodeView, decode_limits, decode_views
from mooncake_store.errors import RequestError

__all__ = ["DecodePool", "Flight", "Forecast", "ForecastRule", "PoolLoad"]


class PoolLoad(IntEnum):
    """Which load of the decode instances is the pool's; the papers name the mean once."""

    RULE = 0
    """The mean; with ORACLE and FORECAST, which know each instance's, that of the least loaded."""
    MEAN = 1
    LEAST = 2
    """Of the least loaded: a request goes there."""
    MOST = 3
    """Of the most loaded."""


class ForecastRule(IntEnum):
    """How the pool's load at the end of a prefill is predicted; numbers as in C."""

    PREDICTED = 3
    ORACLE = 4
    FORECAST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """A request that was accepted and has not ended.

    Attributes:
        begin_s: When its decoding began, or is predicted to.
        tokens: Its context now.
        generated: Tokens of its answer so far.
        output: Tokens of its answer in all; only the oracle may know.
        instance: Where it decodes.
    """

    begin_s: float
    tokens: float
    instance: int
    generated: float = 0
    output: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a prediction of the pool's load goes by.

    Attributes:
        now_s: The time.
        at_s: When the request's prefill ends, as predicted.
        decode_s: PREDICTED: t_d, the one time that every request decodes.
        survival: FORECAST: share of answers that are longer than i bins, falling from 1.
        bin_tokens: FORECAST: tokens of a bin.
        margin: FORECAST: standard deviations of the batch to allow for.
        joins_per_s: FORECAST: requests accepted lately.
        join_delay_s: FORECAST: what one takes from arrival to decoding.
        join_tokens: FORECAST: its context.
        threshold: Up to which load an instance has room.
        pool: Which load is the pool's.
    """

    now_s: float
    at_s: float
    decode_s: float = 0
    survival: Sequence[float] = (1.0,)
    bin_tokens: float = 16
    margin: float = 1.0
    joins_per_s: float = 0
    join_delay_s: float = 0
    join_tokens: float = 0
    threshold: float = 1.0
    pool: PoolLoad = PoolLoad.RULE


class DecodePool:
    """The load of all decode instances together, which admission goes by.

    Args:
        costs: What is predicted with.
        tbt_slo_s: What a token may take.
        capacity_tokens: KV cache that an instance has room for.
        batch_max: Requests that it decodes at most.

    Raises:
        RequestError: A limit that is not above 0.
    """

    def __init__(
        self, costs: Costs, *, tbt_slo_s: float, capacity_tokens: int, batch_max: int
    ) -> None:
        self._cost = costs.native()
        self._limits = decode_limits(tbt_slo_s, capacity_tokens, batch_max)

    def load(
        self, num_tokens: int, views: Sequence[DecodeView], pool: PoolLoad = PoolLoad.MEAN
    ) -> float:
        """Return the pool's load now, each instance with the request added."""
        return float(
            lib.cd_pool_load(
                self._cost, self._limits, num_tokens, decode_views(views), len(views), int(pool)
            )
        )

    def load_at(
        self,
        rule: ForecastRule,
        num_tokens: int,
        views: Sequence[DecodeView],
        flights: Sequence[Flight],
        forecast: Forecast,
        *,
        expected_output: float,
    ) -> tuple[float, int | None]:
        """Return the pool's load at `forecast.at_s`, and the instance to go to.

        The load is that of the least loaded instance, unless `forecast.pool` says otherwise.  With
        FORECAST the request goes, among those
        that have room, where it is least in the way of those who are promised a place and come
        while it is there.  PREDICTED spreads requests evenly and takes the mean, and names none.

        Raises:
            RequestError: A flight at an instance that is not there, or more than 1024 instances.
        """
        if len(views) > 1024 or any(not 0 <= one.instance < len(views) for one in flights):
            raise RequestError("every flight decodes at one of at most 1024 instances")
        array: Any = ffi.new("cd_flight[]", len(flights))
        for native, one in zip(array, flights, strict=True):
            native.begin_s, native.tokens, native.generated = one.begin_s, one.tokens, one.generated
            native.output, native.instance = one.output, one.instance
        survival: Any = ffi.new("double[]", list(forecast.survival) or [1.0])
        known: Any = ffi.new("cd_forecast *")
        known.survival, known.survival_bins = survival, len(survival)
        for name in (
            "now_s", "at_s", "decode_s", "bin_tokens", "margin", "joins_per_s", "join_delay_s",
            "join_tokens", "threshold",
        ):  # fmt: skip
            setattr(known, name, getattr(forecast, name))
        known.pool = int(forecast.pool)
        instance: Any = ffi.new("int32_t *")
        load = lib.cd_pool_load_at(
            int(rule), self._cost, self._limits, num_tokens, expected_output, decode_views(views),
            len(views), array, len(flights), known, instance,
        )  # fmt: skip
        return float(load), instance[0] if instance[0] >= 0 else None
