"""The policies over the tables: who computes a prompt, who decodes it, and whether it is let in."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mooncake_store._native import ffi as _ffi
from mooncake_store._native import lib
from mooncake_store.conductor.costs import Costs
from mooncake_store.conductor.prefill_choice import PrefillView
from mooncake_store.conductor.service.answers import Answers
from mooncake_store.conductor.service.decision import Reason, Refusal, Request
from mooncake_store.conductor.service.decode_table import DecodeTable
from mooncake_store.conductor.service.flights import FlightTable
from mooncake_store.conductor.service.instances import Instances
from mooncake_store.conductor.service.joins import Joins
from mooncake_store.conductor.service.prefill_table import PrefillTable
from mooncake_store.conductor.service.selector import Selector
from mooncake_store.conductor.sim_config import (
    ADMISSIONS,
    HOLDER_TIES,
    POOL_LOADS,
    SELECTIONS,
    SimConfig,
)

__all__ = ["Choice", "Chooser"]

ffi: Any = _ffi


@dataclass(slots=True)
class Choice:
    """Who does what, and the terms that it was chosen by: as in `Decision`, but slots."""

    prefill_slot: int
    source_slot: int
    prefix_tokens: int
    transfer_tokens: int
    queue_s: float
    transfer_s: float
    prefill_s: float
    ttft_s: float
    decode_slot: int
    tbt_s: float
    decode_load: float
    pool_load: float
    output: float


class Chooser:
    """Chooses; changes nothing but whose turn it is.

    Args:
        config: Policy, admission and service levels.
        costs: The cost model.
        prefill, decode, flights: What is known.
        answers: What answers have been like.
        instances: Who is registered.
        selector: A policy in Python instead of the one that `config` names.

    Attributes:
        cost: The cost model as the native policies read it.
        joins: Who was accepted lately.
        selection, limits: The policies' settings as the native ones read them.
    """

    def __init__(
        self,
        config: SimConfig,
        costs: Costs,
        *,
        prefill: PrefillTable,
        decode: DecodeTable,
        flights: FlightTable,
        answers: Answers,
        instances: Instances,
        selector: Selector | None,
    ) -> None:
        self.cost: Any = costs.native()
        self.joins = Joins()
        self._config = config
        self._prefill, self._decode, self._flights = prefill, decode, flights
        self._answers = answers
        self._instances = instances
        self._selector = selector
        self.selection: Any = _selection_of(config)
        self.limits: Any = ffi.new("cd_decode_limits *")
        self.limits.capacity_tokens = config.cluster.decode_capacity_tokens
        self.limits.batch_max = config.cluster.decode_batch_max
        self._choice: Any = ffi.new("cd_prefill_choice *")
        self._decode_choice: Any = ffi.new("cd_decode_choice *")
        self._forecast: Any = ffi.new("cd_forecast *")
        self._forecast.threshold = config.scheduler.admission_threshold
        self._forecast.margin = config.scheduler.forecast_margin
        self._named: Any = ffi.new("int32_t *")
        self._looks_at_chosen = config.scheduler.prefill_load == "chosen"
        self._admission = ADMISSIONS.index(config.scheduler.admission)
        self._pool = POOL_LOADS.index(config.scheduler.pool_load)
        self._forecast.pool = self._pool
        self._turns = _turns_of(config)

    @property
    def looks_at_readiness(self) -> bool:
        """Whether the policy asks when blocks will be computed that are promised."""
        return self._selector is not None or self._config.scheduler.selection == "earliest"

    def choose(self, request: Request, now_s: float) -> Choice | Refusal:
        """Choose for a request of which the prefill table has been told."""
        tokens, choice = request.num_tokens, self._choice
        turn = next(self._turns)  # one for both: else two instances would never take turns
        if not self._prefill.has_open:
            return Refusal.of(
                request,
                Reason.NO_PREFILL,
                self._instances.why_nobody(lambda role: role.prefills, "prompts"),
                self._instances.timeout_s,
            )
        if not self._choose_prefill(tokens, turn):
            return Refusal.of(
                request, Reason.POLICY, "the policy named no instance that takes prompts", 1.0
            )
        threshold = self._config.scheduler.admission_threshold
        slo_s = request.ttft_slo_s or self._config.slo.ttft_s
        wanted_s = threshold * slo_s
        ttft_s = choice.ttft_s if self._looks_at_chosen else self._mean_ttft_s()
        if self._admission and ttft_s > wanted_s and self._is_too_long(wanted_s):
            cached = f" beyond the {choice.prefix_tokens:,} cached" if choice.prefix_tokens else ""
            return Refusal.of(
                request,
                Reason.TTFT,
                f"the prompt alone takes {choice.prefill_s:.2f} s ({tokens:,} tokens{cached}, "
                f"nothing to wait for), wanted are {slo_s:g} s: another try does not help",
                None,
                ttft_s=choice.ttft_s,
            )
        if self._admission and ttft_s > wanted_s:
            return Refusal.of(
                request,
                Reason.TTFT,
                f"the first token is predicted after {ttft_s:.2f} s, wanted are {slo_s:g} s",
                ttft_s - wanted_s,
                ttft_s=ttft_s,
            )
        return self._choose_decode(request, threshold, turn, now_s)

    def _mean_ttft_s(self) -> float:
        """Return what the request would take with the mean queue before it."""
        queues_s = [
            row.queue_s for row in self._prefill.rows[0 : self._prefill.count] if not row.is_closed
        ]
        choice, mean_s = self._choice, sum(queues_s) / max(len(queues_s), 1)
        overlaps = self.selection.overlaps
        return float(lib.cd_ttft_s(mean_s, choice.transfer_s, choice.prefill_s, overlaps))

    def _is_too_long(self, wanted_s: float) -> bool:
        """Return whether what was chosen is too slow with nothing in the way, and so at any time.

        Who has more of the prompt, and a queue now, may be faster later.
        """
        choice, table = self._choice, self._prefill
        if choice.queue_s > 0 or choice.transfer_s > 0 or choice.prefill_s <= wanted_s:
            return False
        most = max(row.prefix_tokens for row in table.rows[0 : table.count])
        return bool(most <= choice.prefix_tokens)

    def _choose_decode(
        self, request: Request, threshold: float, turn: int, now_s: float
    ) -> Choice | Refusal:
        tokens, choice, decode = request.num_tokens, self._choice, self._decode_choice
        tbt_slo_s = request.tbt_slo_s or self._config.slo.tbt_s
        output = request.expected_output or self._answers.output
        self.limits.tbt_slo_s = tbt_slo_s
        if not lib.cd_choose_decode(
            self.cost, self.limits, tokens, output, self._decode.rows, self._decode.count,
            turn, decode,
        ):  # fmt: skip
            return Refusal.of(
                request, Reason.NO_DECODE,
                self._instances.why_nobody(lambda role: role.decodes, "answers"),
                self._instances.timeout_s, ttft_s=choice.ttft_s,
            )  # fmt: skip
        slot = self._decode.slots[decode.instance]
        tbt_s, load = decode.tbt_s, decode.load
        pool_load = 0.0
        if self._admission:
            retry_s = self._answers.decode_s / 4
            if load > 1.0:
                return Refusal.of(
                    request,
                    Reason.TBT,
                    f"the least loaded decode instance would be at {load:.2f} of what it can do "
                    f"({tbt_s * 1e3:.0f} ms a token, wanted are {tbt_slo_s * 1e3:.0f} ms)",
                    retry_s, ttft_s=choice.ttft_s, tbt_s=tbt_s,
                )  # fmt: skip
            pool_load, named = self._pool_load(tokens, output, now_s)
            if pool_load > threshold:
                return Refusal.of(
                    request,
                    Reason.DECODE_LOAD,
                    f"the decode pool's load is {pool_load:.2f}, allowed is {threshold:g}",
                    retry_s, ttft_s=choice.ttft_s, tbt_s=tbt_s,
                )  # fmt: skip
            if named >= 0 and not self._decode.rows[named].is_closed:
                slot = self._decode.slots[named]
        return Choice(
            choice.instance, choice.source, choice.prefix_tokens, choice.transfer_tokens,
            choice.queue_s, choice.transfer_s, choice.prefill_s, choice.ttft_s,
            slot, tbt_s, load, pool_load, output,
        )  # fmt: skip

    def _choose_prefill(self, tokens: int, turn: int) -> bool:
        """Fill `_choice`."""
        table = self._prefill
        if self._selector is None:
            return bool(
                lib.cd_choose_prefill(
                    self.selection, self.cost, tokens, table.rows, table.count, turn, self._choice
                )
            )
        views = [
            PrefillView(
                queue_s=row.queue_s,
                prefix_tokens=row.prefix_tokens,
                requests=row.requests,
                egress_bytes=row.egress_bytes,
                ready_s=row.ready_s,
                is_closed=row.is_closed,
            )
            for row in table.rows[0 : table.count]
        ]
        try:
            found = self._selector.choose(tokens, views, turn=turn)
        except Exception:  # somebody else's code: its request is refused, no other one
            return False
        if found is None or not 0 <= found.instance < len(views) or views[found.instance].is_closed:
            return False
        source = -1 if found.source is None else found.source
        if not -1 <= source < len(views) or not 0 <= found.prefix_tokens < tokens:
            return False
        choice = self._choice
        choice.instance, choice.source = found.instance, source
        choice.prefix_tokens, choice.transfer_tokens = found.prefix_tokens, found.transfer_tokens
        choice.queue_s, choice.transfer_s = found.queue_s, found.transfer_s
        choice.prefill_s, choice.ttft_s = found.prefill_s, found.ttft_s
        return True

    def _pool_load(self, tokens: int, output: float, now_s: float) -> tuple[float, int]:
        """Return the decode pool's load by the admission rule, and the instance to go to; -1: none.

        With `forecast` the request goes, among those that have room, where it is least in the way
        of those who are promised a place and come while it is there.
        """
        rule = self._admission
        if rule <= 1:
            return 0.0, -1
        rows, count = self._decode.rows, self._decode.count
        if rule == 2:
            load = lib.cd_pool_load(self.cost, self.limits, tokens, rows, count, self._pool)
            return float(load), -1
        forecast, answers = self._forecast, self._answers
        forecast.now_s, forecast.at_s = now_s, now_s + self._choice.ttft_s
        forecast.decode_s = answers.decode_s
        forecast.survival, forecast.survival_bins = answers.survival, answers.survival_bins
        forecast.bin_tokens = answers.BIN_TOKENS
        joins = self.joins
        forecast.joins_per_s, forecast.join_delay_s = joins.per_s, joins.delay_s
        forecast.join_tokens = joins.tokens
        load = lib.cd_pool_load_at(
            rule, self.cost, self.limits, tokens, output, rows, count, self._flights.rows,
            self._flights.count, forecast, self._named,
        )  # fmt: skip
        return float(load), int(self._named[0])


def _turns_of(config: SimConfig) -> Iterator[int]:
    """Return where the search for instances begins; for the policy `random` it is who is drawn."""
    rules = config.scheduler
    if rules.tie_order == "drawn" or rules.selection == "random":
        drawn = random.Random(config.replay.seed)
        return iter(lambda: drawn.getrandbits(62), -1)
    return itertools.repeat(0) if rules.tie_order == "first" else itertools.count()


def _selection_of(config: SimConfig) -> Any:
    rules = config.scheduler
    selection: Any = ffi.new("cd_selection *")
    selection.rule = SELECTIONS.index(rules.selection)
    selection.holder_ties = HOLDER_TIES.index(rules.holder_ties)
    selection.balancing_threshold = rules.balancing_threshold
    selection.compares_costs, selection.overlaps = rules.compare_costs, rules.overlap
    selection.work_weight, selection.copy_weight = rules.work_weight, rules.copy_weight
    return selection
