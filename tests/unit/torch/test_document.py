"""Nested state as a document, without a store."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mooncake_store.errors import RequestError
from mooncake_store.torch.document import build, flatten, match


@dataclass(frozen=True, slots=True)
class Inner:
    weight: Any
    name: str


@dataclass
class Outer:
    inner: Inner
    steps: list[int]
    derived: int = dataclasses.field(init=False, default=0)


def through_text(state: Any, types: tuple[type, ...] = ()) -> Any:
    tree, tensors = flatten(state)
    return build(json.loads(json.dumps(tree)), tensors, types)


def test_plain_values_come_back_as_they_were() -> None:
    state = {
        "none": None, "true": True, "int": 2**70, "float": 0.1, "text": "ü\0", "bytes": b"\0\xff",
        3: [1, (2, [])], True: {}, None: (), "size": torch.Size([2, 3]), "dtype": torch.bfloat16,
        "inf": -math.inf,
    }  # fmt: skip
    back = through_text(state)
    assert back == state
    assert [type(key) for key in back] == [type(key) for key in state]
    assert type(back["size"]) is torch.Size
    assert type(back[3][1]) is tuple
    assert math.isnan(through_text([math.nan])[0])


def test_a_tensor_that_occurs_twice_is_listed_once_and_stays_one() -> None:
    tied = torch.zeros(2)
    tree, tensors = flatten({"a": tied, "b": [tied, torch.zeros(2)]})
    assert len(tensors) == 2
    back = build(tree, tensors)
    assert back["a"] is back["b"][0]
    assert back["a"] is not back["b"][1]


def test_dataclasses_are_made_of_the_readers_classes_only() -> None:
    state = Outer(Inner(torch.ones(2), "w"), [1])
    state.derived = 7
    back = through_text(state, (Outer, Inner))
    assert (back.inner.name, back.steps, back.derived) == ("w", [1], 7)
    assert back.inner.weight is state.inner.weight
    with pytest.raises(RequestError, match=r"types=\[Outer\]"):
        through_text(state)
    with pytest.raises(RequestError, match=r"types=\[Inner\]"):
        through_text(state, (Outer,))


def test_a_class_that_has_changed_is_refused() -> None:
    tree, tensors = flatten(Inner(None, "x"))
    tree["dataclass"][2][0][0] = "other"
    with pytest.raises(RequestError, match="fields"):
        build(tree, tensors, (Inner,))


@pytest.mark.parametrize("wrong", [{1, 2}, object(), 1j, {1.5: 0}, {(1,): 0}, lambda: 0, Inner])
def test_what_is_no_state_is_refused_and_named(wrong: Any) -> None:
    with pytest.raises(RequestError, match=r"state\['at'\]\[0\]"):
        flatten({"at": [wrong]})


def test_a_state_that_contains_itself_is_refused() -> None:
    state: list[Any] = []
    state.append(state)
    with pytest.raises(RequestError, match="contains itself"):
        flatten(state)


@pytest.mark.parametrize(
    "target",
    [
        {"a": [torch.zeros(1)]}, {"a": [torch.zeros(1), 5], "b": 0}, {"b": [torch.zeros(1), 5]},
        {"a": (torch.zeros(1), 5)}, {"a": [5, torch.zeros(1)]}, {"a": [torch.zeros(1), {}]}, None,
    ],
)  # fmt: skip
def test_a_target_of_another_form_is_refused(target: Any) -> None:
    tree, _ = flatten({"a": [torch.zeros(1), 4]})
    with pytest.raises(RequestError, match="at state"):
        match(tree, target)


def test_a_target_may_hold_other_numbers() -> None:
    tree, _ = flatten({"a": [torch.zeros(1), 4], "b": Inner(torch.ones(1), "x")})
    target = {"a": [torch.zeros(1), 9], "b": Inner(torch.ones(1), "y")}
    places, types = match(tree, target)
    assert places[0][0] is target["a"][0]
    assert places[1][0] is target["b"].weight
    assert types == {Inner}


@pytest.mark.parametrize("tree", [{"a": 1, "b": 2}, {}, [1], {"new": 1}, {"tensor": 9}])
def test_a_damaged_document_is_no_state(tree: Any) -> None:
    with pytest.raises((RequestError, IndexError)):
        build(tree, [])
