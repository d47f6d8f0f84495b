"""Blocks of a KV cache: their pieces are exactly their bytes."""

from __future__ import annotations

import ctypes

import pytest

torch = pytest.importorskip("torch")

from mooncake_store.errors import RequestError
from mooncake_store.torch.blocks import LayerShape, layout_of, pieces_of, shape_of


def layer_of(sequences: int, heads: int, tokens: int, key_dim: int, value_dim: int, like: str):
    def make(dim: int):
        made = torch.randn(sequences, heads, tokens, dim)
        if like == "tokens first":
            made = made.transpose(1, 2).contiguous().transpose(1, 2)
        if like == "longer":  # a static cache: room for more tokens
            made = torch.cat([made, torch.randn(sequences, heads, 5, dim)], dim=2)
        return made

    return make(key_dim), make(value_dim)


@pytest.mark.parametrize("like", ["row order", "tokens first", "longer"])
@pytest.mark.parametrize("sequence", [0, 1])
def test_pieces_are_the_rows_of_each_head_in_order(like: str, sequence: int) -> None:
    layers = [layer_of(2, 3, 8, 4, 6, like), layer_of(2, 3, 8, 4, 6, like)]
    pieces, kept = pieces_of(layers, sequence, 1, 4)
    got = b"".join(ctypes.string_at(address, length) for address, length in pieces)
    expected = b"".join(
        tensor[sequence, :, 4:8].contiguous().numpy().tobytes()
        for pair in layers
        for tensor in pair
    )
    assert got == expected
    assert bool(kept) == (like == "tokens first")
    assert len(got) == sum(shape_of(layer).block_bytes(4, 4) for layer in layers)


def test_layouts_tell_shapes_apart() -> None:
    shapes = [LayerShape(4, 8, 8), LayerShape(4, 8, 8), LayerShape(2, 8, 16)]
    assert layout_of(shapes) == "layer,kv,head,token,dim:2x4.8.8+1x2.8.16"
    orders = {layout_of(order) for order in (shapes, shapes[::-1], shapes[1:], shapes[:2])}
    assert len(orders) == 4


@pytest.mark.parametrize(
    "layer",
    [
        (torch.zeros(2, 3, 4), torch.zeros(2, 3, 4)),
        (torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 4)),
        (torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 4).half()),
    ],
)
def test_what_lies_otherwise_is_refused(layer) -> None:
    with pytest.raises(RequestError):
        shape_of(layer)
