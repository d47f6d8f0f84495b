"""Which prefill instance computes a request, and whom it fetches cached blocks from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from mooncake_store._native import ffi, lib
from mooncake_store.conductor.costs import Costs
from mooncake_store.errors import RequestError

__all__ = ["HolderTies", "PrefillChoice", "PrefillRule", "PrefillSelector", "PrefillView"]


class PrefillRule(IntEnum):
    """How an instance is chosen; docs/scheduling.md explains each."""

    RANDOM = 0
    LEAST_TIME = 1
    LEAST_COUNT = 2
    LOCAL = 3
    GLOBAL = 4
    EARLIEST = 5


class HolderTies(IntEnum):
    """Which of several instances with the longest prefix Algorithm 1 fetches from.

    The papers do not say; the lowest number ends what is left of a tie.
    """

    QUEUE = 0
    """The shortest queue: the likeliest to be chosen itself, which needs no fetch."""
    EGRESS = 1
    """The least to send, so that one NIC does not bear all."""
    FIRST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillView:
    """What is known of a prefill instance.

    Attributes:
        queue_s: Predicted time until all that goes before the request has been computed.
        prefix_tokens: Of the request's prompt that it holds, from the first on.
        requests: On it, waiting and running.
        egress_bytes: That it has to send yet.
        behind: Waiting requests that would wait for this one too; 0 with a queue in order.
        ready_s: Until the last block of that prefix has been computed; 0: it is there.
        is_closed: It takes nothing new.
    """

    queue_s: float
    prefix_tokens: int = 0
    requests: int = 0
    egress_bytes: float = 0.0
    behind: float = 0.0
    ready_s: float = 0.0
    is_closed: bool = False


@dataclass(frozen=True, slots=True)
class PrefillChoice:
    """A decision and the terms that it was made from.

    Attributes:
        instance: Who computes.
        source: Whom it fetches from, or None.
        prefix_tokens: That need not be computed.
        transfer_tokens: That are fetched.
        queue_s: Predicted wait.
        transfer_s: Predicted time of the fetch.
        prefill_s: Predicted time of the computation.
        ttft_s: Predicted time to the first token.
    """

    instance: int
    source: int | None
    prefix_tokens: int
    transfer_tokens: int
    queue_s: float
    transfer_s: float
    prefill_s: float
    ttft_s: float


class PrefillSelector:
    """Chooses prefill instances by one rule.

    It keeps nothing between calls: who asks holds the state of the instances, and updates their
    queues and caches as soon as a request is accepted.

    Args:
        rule: How to choose.
        costs: What is predicted with.
        balancing_threshold: Algorithm 1 fetches if the best prefix is longer by more than this
            factor; the paper adjusts it by hand and does not say to what.
        compares_costs: Algorithm 1 also demands that fetching takes less than computing.
        overlaps: A transfer runs while the request waits: the later of the two counts, not the sum.
        work_weight: EARLIEST: seconds of TTFT that a second of computing counts as.
        copy_weight: EARLIEST: the same of a second of transfer.
        holder_ties: GLOBAL: whom to fetch from, of several that hold as much.

    Raises:
        RequestError: A threshold below 1, or a negative weight.
    """

    def __init__(
        self,
        rule: PrefillRule,
        costs: Costs,
        *,
        balancing_threshold: float = 1.5,
        compares_costs: bool = False,
        overlaps: bool = False,
        work_weight: float = 0.0,
        copy_weight: float = 0.0,
        holder_ties: HolderTies = HolderTies.QUEUE,
    ) -> None:
        if not balancing_threshold >= 1 or work_weight < 0 or copy_weight < 0:
            raise RequestError("the balancing threshold is at least 1, weights are 0 or more")
        self._cost = costs.native()
        selection: Any = ffi.new("cd_selection *")
        selection.rule = int(rule)
        selection.balancing_threshold = balancing_threshold
        selection.compares_costs = compares_costs
        selection.overlaps = overlaps
        selection.work_weight = work_weight
        selection.copy_weight = copy_weight
        selection.holder_ties = int(holder_ties)
        self._selection = selection
        self._choice: Any = ffi.new("cd_prefill_choice *")

    def choose(
        self, num_tokens: int, views: Sequence[PrefillView], *, turn: int = 0
    ) -> PrefillChoice | None:
        """Return the decision, or None if every instance is closed or there is none.

        Args:
            num_tokens: Of the prompt.
            views: The instances.
            turn: Where to begin, so that ties go round: a count of requests.  For RANDOM the
                random number.

        Raises:
            RequestError: A prompt without tokens.
        """
        if not 1 <= num_tokens < 1 << 32:
            raise RequestError(f"a prompt has tokens, not {num_tokens}")
        array: Any = ffi.new("cd_prefill_view[]", len(views))
        for native, view in zip(array, views, strict=True):
            native.queue_s, native.prefix_tokens = view.queue_s, view.prefix_tokens
            native.requests, native.egress_bytes = view.requests, view.egress_bytes
            native.behind, native.ready_s = view.behind, view.ready_s
            native.is_closed = view.is_closed
        found = self._choice
        if not lib.cd_choose_prefill(
            self._selection, self._cost, num_tokens, array, len(views), turn % (1 << 63), found
        ):
            return None
        return PrefillChoice(
            found.instance,
            found.source if found.source >= 0 else None,
            found.prefix_tokens,
            found.transfer_tokens,
            found.queue_s,
            found.transfer_s,
            found.prefill_s,
            found.ttft_s,
        )
