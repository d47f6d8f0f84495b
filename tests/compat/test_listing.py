"""Every class, call and constant of the package that this one stands in for is there.

signatures.txt was read from its version 0.3.13.post1 by introspection; `_` is an argument that has
no name there.
"""

from __future__ import annotations

import inspect
import re
from enum import IntEnum
from pathlib import Path

import pytest

import mooncake.store
from mooncake.store import MooncakeDistributedStore, ReplicateConfig
from tests.compat import rows, test_objects, test_places, test_setup, test_tensors

LINES = (Path(__file__).parent / "signatures.txt").read_text().splitlines()
CALLS = [line.removeprefix("call ") for line in LINES if line.startswith("call ")]
PROPERTIES = [line.removeprefix("property ") for line in LINES if line.startswith("property ")]
CLASSES = [line.removeprefix("class ") for line in LINES if line.startswith("class ")]
CONSTANTS = [line.removeprefix("attribute ") for line in LINES if line.startswith("attribute ")]
# Here by design: `setup` takes either form, and says so itself.
FREE = ("MooncakeDistributedStore.setup",)
# In Python an argument with a default cannot stand before one without.
DEFAULTED = {("MooncakeDistributedStore.load_tensor_from_safetensor", "file_name")}
# Only ever returned by calls, never made by users.
MADE_INSIDE = ("BufferLease", "DiskDescriptor", "MemoryDescriptor", "ReplicaDescriptor")


def found(path: str) -> object:
    at: object = mooncake.store
    for name in path.split("."):
        at = getattr(at, name)
    return at


def expected(call: str) -> tuple[str, list[tuple[str, str | None]]]:
    path, _, inside = call.removesuffix(")").partition("(")
    parameters = []
    for part in filter(None, re.split(r", (?![^()]*\))", inside)):
        name, has_default, default = part.partition("=")
        parameters.append((name, default if has_default else None))
    return path, parameters


def is_same(default: object, text: str) -> bool:
    if text == "ReplicateConfig()":
        return default is None or isinstance(default, ReplicateConfig)
    if isinstance(default, tuple):
        return False
    return repr(default) == text


@pytest.mark.parametrize("call", CALLS)
def test_a_call_takes_what_it_took(call: str) -> None:
    path, wanted = expected(call)
    made = found(path)
    assert callable(made)
    if path in FREE:
        assert all(name in (made.__doc__ or "") for name, _ in wanted)
        return
    owner, _, method = path.rpartition(".")
    if method == "__init__" and not wanted:
        assert owner in MADE_INSIDE or isinstance(found(owner), type)
        found(owner)()  # type: ignore[operator]
        return
    if method == "__init__" and issubclass(found(owner), int):  # type: ignore[arg-type]
        return  # an enumeration: made from its value
    of = inspect.signature(made)
    parameters = [each for each in of.parameters.values() if each.name != "self"]
    for parameter, (name, default) in zip(parameters, wanted, strict=False):
        if name == "_":
            assert parameter.kind is not inspect.Parameter.KEYWORD_ONLY
            continue
        if name.startswith("*"):
            assert parameter.kind is inspect.Parameter.VAR_POSITIONAL
            continue
        assert parameter.name == name
        if (path, name) in DEFAULTED:
            assert parameter.default is not inspect.Parameter.empty
        elif default is None:
            assert parameter.default is inspect.Parameter.empty
        else:
            assert is_same(parameter.default, default), (parameter.default, default)
    assert len(parameters) == len(wanted)


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_there(name: str) -> None:
    assert isinstance(found(name), type)
    assert name in mooncake.store.__all__


@pytest.mark.parametrize("path", PROPERTIES)
def test_a_property_is_there(path: str) -> None:
    owner, _, name = path.partition(".")
    kind = found(owner)
    assert isinstance(kind, type)
    if hasattr(kind, name):
        return
    if owner == "MemoryDescriptor":
        assert "descriptor" in inspect.signature(kind).parameters
        return
    made = next(iter(kind)) if issubclass(kind, IntEnum) else kind()
    assert hasattr(made, name)


@pytest.mark.parametrize("constant", CONSTANTS)
def test_a_constant_is_that_of_its_enumeration(constant: str) -> None:
    name, _, value = constant.partition(" = ")
    assert found(name) is found(value)
    assert str(found(name)) == value


def test_every_call_of_the_store_has_a_test_of_its_behaviour() -> None:
    named = {each.method for each in (*test_objects.ROWS, *test_places.ROWS)} | rows.COVERED
    wanted = {
        path.partition(".")[2]
        for path, _ in map(expected, CALLS)
        if path.startswith("MooncakeDistributedStore.") and not path.endswith("__init__")
    }
    assert test_setup and test_tensors  # imported: what they cover is known
    assert wanted - named == set()
    assert {name for name in named if not hasattr(MooncakeDistributedStore, name)} == set()


def test_the_page_for_users_says_of_every_call_whether_it_differs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "migrating-from-mooncake.md").read_text()
    told = re.findall(r"^\| `(\w+)` \| (?:pass|differs) \|", page, re.MULTILINE)
    wanted = {
        path.partition(".")[2]
        for path, _ in map(expected, CALLS)
        if path.startswith("MooncakeDistributedStore.") and not path.endswith("__init__")
    }
    assert sorted(told) == sorted(wanted)


def test_wishes_of_every_version_are_taken_and_no_other() -> None:
    config = ReplicateConfig()
    for name in ("with_soft_pin", "with_hard_pin", "session_ids", "group_ids", "data_type"):
        assert hasattr(ReplicateConfig, name)
        assert hasattr(config, name)
    with pytest.raises(AttributeError):
        config.no_such_wish = 1
    for name, value in {"replica_num": "2", "group_ids": "g", "with_hard_pin": 1,
                        "preferred_segment": None, "data_type": 1}.items():  # fmt: skip
        with pytest.raises(TypeError, match=name):
            setattr(config, name, value)
    config.replica_num, config.group_ids = 2, ["g"]
    assert repr(config) == "ReplicateConfig(group_ids=['g'], replica_num=2)"
