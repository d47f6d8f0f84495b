"""Every class, call and constant of `mooncake.engine`; signatures_engine.txt as signatures.txt."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from mooncake import engine
from tests.compat.test_listing import expected

LINES = (Path(__file__).parent / "signatures_engine.txt").read_text().splitlines()
# What takes several forms, or is made from a value.
FREE = ("TransferNotify.__init__", "TransferOpcode.__init__")


def lines(kind: str) -> list[str]:
    return [line.removeprefix(f"{kind} ") for line in LINES if line.startswith(f"{kind} ")]


def found(path: str) -> object:
    at: object = engine
    for name in path.split("."):
        at = getattr(at, name)
    return at


@pytest.mark.parametrize("call", lines("call"))
def test_a_call_takes_what_it_took(call: str) -> None:
    path, wanted = expected(call)
    if path in FREE:
        return
    parameters = [
        each for each in inspect.signature(found(path)).parameters.values() if each.name != "self"
    ]  # type: ignore[arg-type]
    assert len(parameters) == len(wanted)
    for parameter, (name, default) in zip(parameters, wanted, strict=True):
        assert parameter.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        assert name in ("_", parameter.name)
        has_default = parameter.default is not inspect.Parameter.empty
        assert (repr(parameter.default) if has_default else None) == default


@pytest.mark.parametrize("name", lines("class"))
def test_a_class_is_there(name: str) -> None:
    assert isinstance(found(name), type)
    assert name in engine.__all__


@pytest.mark.parametrize("path", lines("property"))
def test_a_property_is_there(path: str) -> None:
    owner, _, name = path.partition(".")
    kind = found(owner)
    made = {"TransferNotify": engine.TransferNotify("a", "b"), "TransferOpcode": engine.Read}
    assert hasattr(made.get(owner, kind), name)


@pytest.mark.parametrize("constant", lines("attribute"))
def test_a_constant_is_what_it_was(constant: str) -> None:
    name, _, value = constant.partition(" = ")
    assert str(found(name)) == value
