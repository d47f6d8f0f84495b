"""What a model computes and keeps per token, and when reading a prefix beats computing it again."""

from __future__ import annotations

from dataclasses import dataclass

from mooncake_store.errors import RequestError

__all__ = ["A800_NODE_FLOPS", "H800_NODE_FLOPS", "LLAMA3_70B", "ModelShape"]

A800_NODE_FLOPS = 8 * 312e12
"""Peak of 8 A800 in dense BF16, floating-point operations a second."""

H800_NODE_FLOPS = 8 * 989e12
"""Peak of 8 H800 in dense BF16; the sparse figure (1,979 TFLOPS) would double every bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The shape of a transformer, as far as scheduling needs it (Mooncake, FAST'25, Table 1).

    Equation 1 bounds the work, it is no model of time: it counts the full square of attention, of
    which causal attention needs half, and less linear work than the layers' shapes give.  For
    times fit a `PrefillTime`.

    Attributes:
        layers: l.
        width: d, the model's hidden size.
        attention_factor: a: floating-point operations of attention per n^2 d of a layer.
        linear_factor: b: those of projections and MLP per n d^2.
        query_heads_per_kv_head: gqa.
        bytes_per_element: s, of the KV cache.
    """

    layers: int
    width: int
    attention_factor: float = 4.0
    linear_factor: float = 22.0
    query_heads_per_kv_head: int = 8
    bytes_per_element: float = 2.0

    @property
    def kv_bytes_per_token(self) -> int:
        """KV cache of a token over all layers."""
        width = self.width / self.query_heads_per_kv_head
        return round(self.layers * 2 * width * self.bytes_per_element)

    def flops(self, num_tokens: int) -> float:
        """Return equation 1: what a prefill of so many tokens computes."""
        n, d = num_tokens, self.width
        return self.layers * (self.attention_factor * n * n * d + self.linear_factor * n * d * d)

    def flops_left(self, num_tokens: int, prefix_tokens: int) -> float:
        """Return what is left to compute when a prefix is cached."""
        return self.flops(num_tokens) - self.flops(prefix_tokens)

    def bandwidth_needed_bytes_per_s(self, prefix_tokens: int, node_flops: float) -> float:
        """Return equation 2: above which bandwidth reading a prefix beats computing it.

        Args:
            prefix_tokens: Length of the cached prefix, above 0.
            node_flops: Peak of the node, operations a second.

        Raises:
            RequestError: No prefix, or no compute.
        """
        if prefix_tokens <= 0 or node_flops <= 0:
            raise RequestError("equation 2 needs a prefix and a peak above 0")
        d = self.width
        per_token = 2 * d * self.bytes_per_element / self.query_heads_per_kv_head
        work = self.attention_factor * prefix_tokens * d + self.linear_factor * d * d
        return node_flops * per_token / work


LLAMA3_70B = ModelShape(layers=80, width=8192)
"""LLaMA3-70B as in Table 1 of the FAST'25 paper: 320 KiB of KV cache a token."""
