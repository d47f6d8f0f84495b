"""Weights of classes and tenants as people write them."""

from __future__ import annotations

import pytest

from mooncake_store.client.core import read_share, share_of
from mooncake_store.errors import ConfigError, RequestError
from mooncake_store.transfer_engine.priority import (
    CLASS_WEIGHTS,
    Priority,
    Share,
    parse_class_weights,
)


def test_weights_of_classes_are_read_in_the_order_of_c() -> None:
    assert parse_class_weights(CLASS_WEIGHTS) == (64, 8, 4, 1)
    assert parse_class_weights(["background=1024", "prefetch=2"]) == (64, 8, 2, 1024)
    assert parse_class_weights([]) == (64, 8, 4, 1)


@pytest.mark.parametrize(
    "word", ["prefetch", "prefetch=", "prefetch=0", "prefetch=1025", "prefetch=-1", "fast=3", ""]
)
def test_what_is_no_weight_of_a_class_is_refused_by_name(word: str) -> None:
    with pytest.raises(ConfigError, match="the classes are urgent, normal, prefetch, background"):
        parse_class_weights([word])


@pytest.mark.parametrize("weight", [0, -1, 1025])
def test_a_share_has_a_weight_that_the_engine_takes(weight: int) -> None:
    with pytest.raises(RequestError, match="1 to 1024"):
        Share("a", weight)


def test_a_tenant_is_the_same_number_everywhere_and_never_nobody() -> None:
    assert Share("a").number == Share("a", 9).number != Share("b").number
    assert Share("a").number == 0x2F42665B399EF840


def test_nothing_said_is_nothing_sent() -> None:
    assert read_share(None, None) is None
    assert read_share(Priority.PREFETCH, None) == (3, 1, 0)
    assert read_share(None, Share("a", 5)) == (1, 5, Share("a").number)
    assert share_of(None, Share("a", 5), Priority.NORMAL) == (0, 5, Share("a").number)
    with pytest.raises(RequestError, match=r"one of Priority.NORMAL, .* not 'fast'"):
        read_share("fast", None)  # type: ignore[arg-type]
