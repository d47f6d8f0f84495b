"""Blocks of a KV cache that lies as [sequence, head, token, dimension]: where their bytes are.

One object is one block of all layers: for each layer its keys and then its values, for each head
the rows of the block's tokens.  The rows of a head are one piece of memory, so a block is gathered
and scattered without a copy, layers × 2 × heads pieces at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from mooncake_store.errors import RequestError

__all__ = ["LayerShape", "layout_of", "pieces_of", "shape_of"]

Layer = tuple[torch.Tensor, torch.Tensor]
"""Keys and values."""


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What of a layer's shape no block and no sequence changes."""

    heads: int
    key_dim: int
    value_dim: int

    def block_bytes(self, block_size: int, element: int) -> int:
        """Return the bytes of this layer in one block."""
        return self.heads * block_size * (self.key_dim + self.value_dim) * element


def shape_of(layer: Layer) -> LayerShape:
    """Return the shape of a layer.

    Raises:
        RequestError: It does not lie as [sequence, head, token, dimension].
    """
    keys, values = layer
    if keys.dim() != 4 or values.dim() != 4 or keys.shape[:3] != values.shape[:3]:
        raise RequestError(
            "keys and values lie as [sequence, head, token, dimension], "
            f"not as {list(keys.shape)} and {list(values.shape)}"
        )
    if keys.dtype != values.dtype:
        raise RequestError(f"keys are {keys.dtype} and values {values.dtype}: they must be one")
    return LayerShape(keys.shape[1], keys.shape[3], values.shape[3])


def layout_of(shapes: Iterable[LayerShape]) -> str:
    """Return the layout as an identity has it: layers that follow each other and are alike once."""
    runs = [
        f"{len(list(run))}x{shape.heads}.{shape.key_dim}.{shape.value_dim}"
        for shape, run in groupby(shapes)
    ]
    return "layer,kv,head,token,dim:" + "+".join(runs)


def pieces_of(
    layers: Sequence[Layer], sequence: int, block: int, block_size: int
) -> tuple[list[tuple[int, int]], list[torch.Tensor]]:
    """Return the pieces of memory of a block, and what keeps those alive that are copies.

    Args:
        layers: On the CPU.  A layer whose heads' rows do not lie together is copied.
        sequence: Which one of the batch.
        block: Number of the block.
        block_size: Tokens of a block.
    """
    pieces: list[tuple[int, int]] = []
    kept: list[torch.Tensor] = []
    first = block * block_size
    for layer in layers:
        for tensor in layer:
            _, heads, _, dim = tensor.shape
            element = tensor.element_size()
            if tensor.stride(3) == 1 and tensor.stride(2) == dim:
                start = tensor.data_ptr() + element * (
                    sequence * tensor.stride(0) + first * tensor.stride(2)
                )
                step = tensor.stride(1) * element
            else:
                copy = tensor[sequence, :, first : first + block_size].contiguous()
                kept.append(copy)
                start, step = copy.data_ptr(), block_size * dim * element
            length = block_size * dim * element
            pieces += [(start + head * step, length) for head in range(heads)]
    return pieces, kept
