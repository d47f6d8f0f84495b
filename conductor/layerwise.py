"""Loading, computing and storing KV cache layer by layer, so that the three overlap."""

from __future__ import annotations

from dataclasses import dataclass

from mooncake_store.errors import RequestError

__all__ = ["LayerTimes", "layer_times"]


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """What one layer of a prefill takes (Mooncake, arXiv 2407.00079, section 5.2).

    Before a layer's attention its prefix must be loaded; then the next layer's load starts, and
    after the attention the layer's store.  Loads and stores have links of their own.

    Attributes:
        layers: How many.
        load_s: The prefix's KV cache of one layer into the accelerator.
        compute_s: The layer's share of the prefill.
        store_s: The new KV cache of one layer into DRAM.
    """

    layers: int
    load_s: float
    compute_s: float
    store_s: float

    @property
    def serial_s(self) -> float:
        """Everything one after the other."""
        return self.layers * (self.load_s + self.compute_s + self.store_s)

    @property
    def overlapped_s(self) -> float:
        """A pipeline of three stages: bound by the slowest, plus filling and draining it."""
        one = self.load_s + self.compute_s + self.store_s
        return one + (self.layers - 1) * max(self.load_s, self.compute_s, self.store_s)

    @property
    def added_s(self) -> float:
        """What loading and storing add to the computation, overlapped."""
        return self.overlapped_s - self.layers * self.compute_s


def layer_times(
    num_tokens: int,
    prefix_tokens: int,
    *,
    prefill_s: float,
    layers: int,
    kv_bytes_per_token: int,
    load_bytes_per_s: float = 128e9,
    store_bytes_per_s: float = 48e9,
) -> LayerTimes:
    """Return the times of one layer of a prefill.

    Args:
        num_tokens: Of the prompt.
        prefix_tokens: Cached ones of them.
        prefill_s: The whole computation: `PrefillTime`.
        layers: Of the model.
        kv_bytes_per_token: Over all layers.
        load_bytes_per_s: Host to device; B_h2d of Table 1.
        store_bytes_per_s: Device to DRAM; about what figure 7 of the arXiv paper shows.

    Raises:
        RequestError: A number that cannot be.
    """
    if layers < 1 or not 0 <= prefix_tokens <= num_tokens or prefill_s < 0:
        raise RequestError("layers >= 1, 0 <= prefix <= tokens and a time of 0 or more are needed")
    if load_bytes_per_s <= 0 or store_bytes_per_s <= 0:
        raise RequestError("bandwidths are above 0")
    layer_bytes = kv_bytes_per_token / layers
    return LayerTimes(
        layers=layers,
        load_s=prefix_tokens * layer_bytes / load_bytes_per_s,
        compute_s=prefill_s / layers,
        store_s=(num_tokens - prefix_tokens) * layer_bytes / store_bytes_per_s,
    )
