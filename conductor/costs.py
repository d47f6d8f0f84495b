"""The predicted times that policies compare, together, as the native policies take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mooncake_store._native import ffi
from mooncake_store.conductor.decode_time import DecodeTime
from mooncake_store.conductor.prefill_time import PrefillTime
from mooncake_store.conductor.transfer_time import TransferTime
from mooncake_store.errors import RequestError

__all__ = ["Costs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """What a policy predicts with.

    Attributes:
        prefill: Of a node.
        decode: Of a node.
        transfer: Between nodes.
        group_nodes: Nodes of a chunked pipeline; 1: none.
        chunk_tokens: Of that pipeline.
        is_balanced: Whether its chunks take equally long.
    """

    prefill: PrefillTime
    decode: DecodeTime
    transfer: TransferTime
    group_nodes: int = 1
    chunk_tokens: int = 8192
    is_balanced: bool = True

    def __post_init__(self) -> None:
        if self.group_nodes < 1 or self.chunk_tokens < 1:
            raise RequestError("a group has at least one node, a chunk at least one token")

    def native(self) -> Any:
        """Return a new `cd_cost *`."""
        cost: Any = ffi.new("cd_cost *")
        cost.prefill_base_s = self.prefill.base_s
        cost.prefill_token_s = self.prefill.per_token_s
        cost.prefill_pair_s = self.prefill.per_token_pair_s
        cost.decode_base_s = self.decode.base_s
        cost.decode_request_s = self.decode.per_request_s
        cost.decode_token_s = self.decode.per_context_token_s
        cost.kv_bytes_per_token = self.transfer.kv_bytes_per_token
        cost.nic_bytes_per_s = min(
            self.transfer.bandwidth_bytes_per_s, self.transfer.load_bytes_per_s
        )
        cost.transfer_latency_s = self.transfer.latency_s
        cost.forgets_queued = not self.transfer.counts_queued
        cost.group_nodes = self.group_nodes
        cost.chunk_tokens = self.chunk_tokens
        cost.is_balanced = self.is_balanced
        return cost
