"""What is asked of the scheduler and what it answers."""

from __future__ import annotations

from dataclasses import dataclass

from mooncake_store.conductor.service.block_names import Blocks

__all__ = ["Candidate", "Decision", "DecodeCandidate", "Reason", "Refusal", "Request"]


class Reason:
    """Why a request is refused: words that stand in answers, metrics and the log."""

    TTFT = "slo_ttft"
    """Its first token is predicted to come too late."""
    TBT = "slo_tbt"
    """Its tokens would come too slowly, or those of others."""
    DECODE_LOAD = "decode_load"
    """The decode pool is, or will be, fuller than the admission rule allows."""
    NO_PREFILL = "no_prefill_instance"
    """No prefill instance is registered, alive and open."""
    NO_DECODE = "no_decode_instance"
    """No decode instance is registered, alive and open."""
    TOO_MANY = "too_many_requests"
    """More requests are under way than the conductor keeps track of."""
    POLICY = "policy_failed"
    """The policy that was plugged in raised, or named no open instance."""


UNAVAILABLE = frozenset({Reason.NO_PREFILL, Reason.NO_DECODE, Reason.TOO_MANY, Reason.POLICY})
"""Reasons for 503; the others are an overload: 429."""

_RETRY_S_MAX = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that wants instances.

    Attributes:
        request_id: Its name: unique among those under way.
        num_tokens: Of the prompt.
        blocks: Its full blocks.
        expected_output: Tokens of the answer that room is reserved for; None: the running mean.
        ttft_slo_s, tbt_slo_s: What it wants; None: what the cluster promises.
    """

    request_id: str
    num_tokens: int
    blocks: Blocks
    expected_output: float | None = None
    ttft_slo_s: float | None = None
    tbt_slo_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What was known of an instance when it was decided, and what the policy made of it.

    Attributes:
        name: Of the instance, or of a store server that only others fetch from.
        prefix_tokens: Of the prompt that it held.
        queue_s: Its predicted queue.
        is_closed: It could not be chosen.
        requests: On it.
        source: Whom it would have fetched from; None: nobody.
        used_tokens: Of the prompt that it would not have computed, fetched ones too.  None, as the
            following: it computes nothing, or the policy is a user's.
        ready_s: Until the source has computed what would be fetched.
        transfer_s, prefill_s: Of the fetch, and of computing the rest.
        ttft_s: Until the first token.
        why: Why it was not chosen, in words.
    """

    name: str
    prefix_tokens: int
    queue_s: float
    is_closed: bool
    requests: int
    source: str | None
    used_tokens: int | None
    ready_s: float | None
    transfer_s: float | None
    prefill_s: float | None
    ttft_s: float | None
    why: str


@dataclass(slots=True, kw_only=True)
class DecodeCandidate:
    """The same of a decode instance.

    Attributes:
        name: Of the instance.
        batch, context_tokens: On it and promised to it, without the request.
        tbt_s, load: With the request.
        is_closed: It could not be chosen.
        why: Why it was not chosen, in words.
    """

    name: str
    batch: float
    context_tokens: float
    tbt_s: float
    load: float
    is_closed: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An accepted request: who does what, and the predictions that it was chosen by.

    Attributes:
        prefill, decode: Instances by name; the same for one that does both.
        prefill_url, decode_url: Where they are reached.
        prefix_tokens: Of the prompt that need not be computed.
        source: Whom missing blocks are fetched from: an instance or a store server; None: nobody.
        source_server, target_server: Store servers of source and of the prefill instance; empty:
            not known.
        move: Digests of the blocks that are fetched.
        pinned_blocks: Leading blocks that the prefill reads.
        transfer_bytes: Of the blocks that are fetched.
        queue_s, prefill_s: Predicted wait for the instance, and time of computing.
        ready_s: Until the source has computed what is fetched from it; 0: it is there.
        transfer_s: Of the fetch alone.
        tbt_s: Predicted time between tokens.
        decode_load: Of the decode instance with the request in.
        pool_load: Of the decode pool, by the admission rule.
    """

    request_id: str
    prefill: str
    prefill_url: str
    decode: str
    decode_url: str
    num_tokens: int
    prefix_tokens: int
    transfer_tokens: int
    transfer_bytes: float
    source: str | None
    source_server: str
    target_server: str
    move: tuple[str, ...]
    pinned_blocks: int
    queue_s: float
    ready_s: float
    transfer_s: float
    prefill_s: float
    ttft_s: float
    tbt_s: float
    decode_load: float
    pool_load: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A request that is not let in; nothing was changed by it.

    Attributes:
        reason: One of `Reason`.
        message: A sentence with the numbers.
        retry_after_s: When another try may succeed; None: as it is, it never will.
        ttft_s, tbt_s: What was predicted; None: that did not come so far.
    """

    request_id: str
    reason: str
    message: str
    retry_after_s: float | None
    ttft_s: float | None = None
    tbt_s: float | None = None

    @classmethod
    def of(
        cls,
        request: Request,
        reason: str,
        message: str,
        retry_after_s: float | None,
        *,
        ttft_s: float | None = None,
        tbt_s: float | None = None,
    ) -> Refusal:
        """Refuse a request; another try is worth it after a second at the least."""
        return cls(
            request_id=request.request_id,
            reason=reason,
            message=message,
            retry_after_s=None
            if retry_after_s is None
            else min(max(retry_after_s, 1.0), _RETRY_S_MAX),
            ttft_s=ttft_s,
            tbt_s=tbt_s,
        )

    @property
    def status(self) -> int:
        """The HTTP status that says it: 503 where nobody could, 429 where nobody should."""
        return 503 if self.reason in UNAVAILABLE else 429
