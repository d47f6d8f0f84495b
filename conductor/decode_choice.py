"""Which decode instance goes on with a request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mooncake_store._native import ffi, lib
from mooncake_store.conductor.costs import Costs
from mooncake_store.errors import RequestError

__all__ = ["DecodeChoice", "DecodeSelector", "DecodeView", "decode_limits", "decode_views"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeView:
    """What is known of a decode instance.

    Attributes:
        batch: Requests that it decodes.
        context_tokens: Of them together.
        reserved_tokens: Of them and of those promised: prompts and expected answers.
        promised: Requests that will come here and are still in prefill.
        promised_tokens: Of their prompts.
        ingress_bytes: Of KV caches that stream there now.
        is_closed: It takes nothing new.
    """

    batch: float = 0
    context_tokens: float = 0
    reserved_tokens: float = 0
    promised: float = 0
    promised_tokens: float = 0
    ingress_bytes: float = 0
    is_closed: bool = False


@dataclass(frozen=True, slots=True)
class DecodeChoice:
    """A decision.

    Attributes:
        instance: Who decodes.
        tbt_s: Predicted time between tokens with the request in.
        load: Of the scarcest of TBT, memory and batch; above 1 it does not fit.
    """

    instance: int
    tbt_s: float
    load: float


class DecodeSelector:
    """Chooses decode instances: the least loaded one.

    It keeps nothing between calls, as `PrefillSelector` does.

    Args:
        costs: What is predicted with.
        tbt_slo_s: What a token may take.
        capacity_tokens: KV cache that an instance has room for.
        batch_max: Requests that it decodes at most.
        stream_weight: What the wait for an instance's NIC counts beside its load, as a share of the
            TBT's SLO; only among instances that have room.

    Raises:
        RequestError: A limit that is not above 0, or a negative weight.
    """

    def __init__(
        self,
        costs: Costs,
        *,
        tbt_slo_s: float,
        capacity_tokens: int,
        batch_max: int,
        stream_weight: float = 0.0,
    ) -> None:
        if not stream_weight >= 0:
            raise RequestError("the stream weight is 0 or more")
        self._cost = costs.native()
        self._limits = decode_limits(tbt_slo_s, capacity_tokens, batch_max)
        self._limits.stream_weight = stream_weight

    def choose(
        self,
        num_tokens: int,
        views: Sequence[DecodeView],
        *,
        expected_output: float,
        turn: int = 0,
    ) -> DecodeChoice | None:
        """Return the least loaded instance with the request in; None if all are closed.

        Args:
            num_tokens: Of the prompt.
            views: The instances.
            expected_output: Tokens of the answer that room is reserved for.
            turn: Where to begin, so that ties go round.
        """
        found: Any = ffi.new("cd_decode_choice *")
        ok = lib.cd_choose_decode(
            self._cost, self._limits, num_tokens, expected_output, decode_views(views),
            len(views), turn, found,
        )  # fmt: skip
        return DecodeChoice(found.instance, found.tbt_s, found.load) if ok else None


def decode_limits(tbt_slo_s: float, capacity_tokens: int, batch_max: int) -> Any:
    """Return what a decode instance can do as the native policies read it.

    Raises:
        RequestError: A limit that is not above 0.
    """
    if not (tbt_slo_s > 0 and capacity_tokens > 0 and batch_max > 0):
        raise RequestError("TBT, capacity and batch are above 0")
    limits: Any = ffi.new("cd_decode_limits *")
    limits.tbt_slo_s = tbt_slo_s
    limits.capacity_tokens = capacity_tokens
    limits.batch_max = batch_max
    return limits


def decode_views(views: Sequence[DecodeView]) -> Any:
    """Return views as the native policies read them."""
    array: Any = ffi.new("cd_decode_view[]", len(views))
    for native, view in zip(array, views, strict=True):
        native.batch, native.context_tokens = view.batch, view.context_tokens
        native.reserved_tokens, native.promised = view.reserved_tokens, view.promised
        native.promised_tokens, native.is_closed = view.promised_tokens, view.is_closed
        native.ingress_bytes = view.ingress_bytes
    return array
