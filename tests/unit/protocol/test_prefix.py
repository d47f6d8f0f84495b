"""Keys of token prefixes: the golden vectors, and what makes a chain a chain."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mooncake_store.errors import RequestError
from mooncake_store.protocol.prefix import prefix_keys

GOLDEN = Path(__file__).parents[2] / "golden" / "prefix_keys.json"
TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=60)


@pytest.mark.parametrize("vector", json.loads(GOLDEN.read_text()), ids=lambda v: v["namespace"])
def test_golden_vectors_hold(vector: dict) -> None:
    tokens = vector["token_ids"] or range(vector["token_range"])
    assert prefix_keys(tokens, vector["block_size"], vector["namespace"]) == vector["keys"]


@given(TOKENS, TOKENS, st.integers(1, 9))
def test_keys_agree_exactly_on_the_common_prefix(left: list, right: list, block: int) -> None:
    a, b = prefix_keys(left, block), prefix_keys(right, block)
    assert len(a) == len(left) // block
    for index, (x, y) in enumerate(zip(a, b, strict=False)):
        end = (index + 1) * block
        assert (x == y) == (left[:end] == right[:end])


@given(st.text(max_size=5), st.text(max_size=5))
def test_namespaces_share_nothing(left: str, right: str) -> None:
    assert (prefix_keys([1, 2], 2, left) == prefix_keys([1, 2], 2, right)) == (left == right)


def test_block_sizes_share_nothing() -> None:
    assert not set(prefix_keys(range(8), 2)) & set(prefix_keys(range(8), 4))


def test_numpy_gives_the_same_keys() -> None:
    numpy = pytest.importorskip("numpy")
    for dtype in ("int64", "int32", "uint32"):
        assert prefix_keys(numpy.arange(9, dtype=dtype), 4) == prefix_keys(range(9), 4)


@pytest.mark.parametrize("tokens", [[-1], [2**32], ["x"], [1.5]])
def test_bad_token_ids_are_refused(tokens: list) -> None:
    with pytest.raises(RequestError):
        prefix_keys(tokens, 1)


@pytest.mark.parametrize("block_size", [0, -1, 2**32, "4"])
def test_bad_block_sizes_are_refused(block_size: object) -> None:
    with pytest.raises(RequestError):
        prefix_keys([1], block_size)  # type: ignore[arg-type]
