"""How long KV cache takes from one node to another."""

from __future__ import annotations

from dataclasses import dataclass

from mooncake_store.errors import RequestError

__all__ = ["TransferTime"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferTime:
    """Predicts a transfer from its length and from what the sender has to send before it.

    The papers stress that it depends on congestion at the sender, and do not say how it is
    predicted.  Here: the sender's queued bytes go first, at its NIC's bandwidth, then ours.

    Attributes:
        kv_bytes_per_token: Of the model.
        bandwidth_bytes_per_s: Of a node's NIC: 100e9 is 800 Gbps.
        latency_s: Of a transfer, whatever its size.
        load_bytes_per_s: Of the way into the accelerator; a bound too.
        counts_queued: Whether what the sender has queued counts.
    """

    kv_bytes_per_token: int
    bandwidth_bytes_per_s: float = 100e9
    latency_s: float = 0.001
    load_bytes_per_s: float = 128e9
    counts_queued: bool = True

    def __post_init__(self) -> None:
        if not (
            self.kv_bytes_per_token > 0
            and self.bandwidth_bytes_per_s > 0
            and self.load_bytes_per_s > 0
            and self.latency_s >= 0
        ):
            raise RequestError("bytes a token and bandwidths are above 0, a latency 0 or more")

    def __call__(self, num_tokens: int, queued_bytes: float = 0.0) -> float:
        """Return the seconds until so many tokens have arrived; 0 for none."""
        if num_tokens <= 0:
            return 0.0
        size_bytes = num_tokens * self.kv_bytes_per_token
        rate = min(self.bandwidth_bytes_per_s, self.load_bytes_per_s)
        if not self.counts_queued:
            queued_bytes = 0.0
        return self.latency_s + queued_bytes / self.bandwidth_bytes_per_s + size_bytes / rate
