"""Nested state as a document: what it consists of, apart from the elements of its tensors.

None, bool, int, float and str stand for themselves; everything else is an object with one name:

    {"tensor": index}   {"list": [...]}         {"tuple": [...]}
    {"bytes": base64}   {"dtype": "float32"}    {"size": [...]}
    {"float": "nan"}    {"dict": [[key, value], ...]}
    {"dataclass": [module, name, [[field, value], ...]]}

Nothing here is code, so reading it runs none: a dataclass is made only of a class that the reader
gives.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from mooncake_store.errors import RequestError
from mooncake_store.torch.memory import dtype_of

__all__ = ["build", "flatten", "match"]

_DEPTH_MAX = 100
_PLAIN = (type(None), bool, int, str)


def _name_of(kind: type) -> list[str]:
    return [kind.__module__, kind.__qualname__]


# ---- writing ------------------------------------------------------------------------------------


def flatten(state: Any) -> tuple[Any, list[torch.Tensor]]:
    """Return the document of a state and its tensors; one that occurs twice is listed once.

    Raises:
        RequestError: There is something else in it, it contains itself, or it is too deep.
    """
    tensors: list[torch.Tensor] = []
    indices: dict[int, int] = {}

    def walk(node: Any, path: str, depth: int) -> Any:
        if depth > _DEPTH_MAX:
            raise RequestError(
                f"the state is nested deeper than {_DEPTH_MAX}, or contains itself: {path[:60]}..."
            )
        if isinstance(node, torch.Tensor):
            index = indices.setdefault(id(node), len(tensors))
            if index == len(tensors):
                tensors.append(node)
            return {"tensor": index}
        if type(node) in _PLAIN:
            return node
        if type(node) is float:
            return node if math.isfinite(node) else {"float": str(node)}
        if isinstance(node, bytes):
            return {"bytes": base64.b64encode(node).decode()}
        if isinstance(node, torch.dtype):
            return {"dtype": str(node).removeprefix("torch.")}
        if isinstance(node, torch.Size):
            return {"size": list(node)}
        if dataclasses.is_dataclass(node) and not isinstance(node, type):
            fields = [
                [each.name, walk(getattr(node, each.name), f"{path}.{each.name}", depth + 1)]
                for each in dataclasses.fields(node)
            ]
            return {"dataclass": [*_name_of(type(node)), fields]}
        if isinstance(node, dict):
            return {"dict": [[_key(key, path), walk(value, f"{path}[{key!r}]", depth + 1)]
                             for key, value in node.items()]}  # fmt: skip
        if type(node) in (list, tuple):
            sequence: Any = node
            items = [walk(value, f"{path}[{at}]", depth + 1) for at, value in enumerate(sequence)]
            return {type(node).__name__: items}
        raise RequestError(
            f"{path} is a {type(node).__name__}: a state consists of tensors, numbers, texts, "
            "bytes, None, and of dicts, lists, tuples and dataclasses of these"
        )

    return walk(state, "state", 0), tensors


def _key(key: Any, path: str) -> Any:
    if type(key) not in _PLAIN:
        raise RequestError(
            f"{path} has a key of type {type(key).__name__}: keys are texts or integers"
        )
    return key


# ---- reading ------------------------------------------------------------------------------------


def build(document: Any, tensors: Sequence[torch.Tensor], types: Iterable[type] = ()) -> Any:
    """Return the state of a document.

    Args:
        document: As `flatten` made it.
        tensors: Its tensors, by index.
        types: The dataclasses that may occur.

    Raises:
        RequestError: It has a dataclass that is not among them, or is no such document.
    """
    known = {tuple(_name_of(kind)): kind for kind in types}

    def walk(node: Any) -> Any:
        if type(node) in _PLAIN or type(node) is float:
            return node
        name, value = _only(node)
        if name == "tensor":
            return tensors[value]
        if name == "list":
            return [walk(item) for item in value]
        if name == "tuple":
            return tuple(walk(item) for item in value)
        if name == "dict":
            return {key: walk(item) for key, item in value}
        if name == "dataclass":
            module, qualified, fields = value
            kind = known.get((module, qualified))
            if kind is None:
                raise RequestError(
                    f"the state has a dataclass {module}.{qualified}: "
                    f"read it with types=[{qualified.rsplit('.', 1)[-1]}]"
                )
            return _make(kind, {field: walk(item) for field, item in fields})
        return _leaf(name, value)

    return walk(document)


def match(document: Any, target: Any) -> tuple[dict[int, list[torch.Tensor]], set[type]]:
    """Find a stored state's tensors in a target of the same form.

    Returns:
        By index of the stored tensor, the tensors of the target at its places; and the target's
        dataclasses.

    Raises:
        RequestError: The two differ in form.
    """
    found: dict[int, list[torch.Tensor]] = {}
    types: set[type] = set()

    def differ(path: str, stored: str, given: Any) -> RequestError:
        return RequestError(f"at {path} {stored} is stored, the target has {_describe(given)}")

    def walk(node: Any, given: Any, path: str) -> None:
        if type(node) in _PLAIN or type(node) is float:
            if isinstance(given, torch.Tensor | dict | list | tuple):
                raise differ(path, repr(node), given)
            return
        name, value = _only(node)
        if name == "tensor":
            if not isinstance(given, torch.Tensor):
                raise differ(path, "a tensor", given)
            places = found.setdefault(value, [])
            if not any(place is given for place in places):
                places.append(given)
        elif name in ("list", "tuple"):
            if type(given).__name__ != name or len(given) != len(value):
                raise differ(path, f"a {name} of {len(value)}", given)
            for at, (item, place) in enumerate(zip(value, given, strict=True)):
                walk(item, place, f"{path}[{at}]")
        elif name == "dict":
            if not isinstance(given, dict) or [key for key, _ in value] != list(given):
                raise differ(path, f"a dict of {[key for key, _ in value]}", given)
            for key, item in value:
                walk(item, given[key], f"{path}[{key!r}]")
        elif name == "dataclass":
            module, qualified, fields = value
            if _name_of(type(given)) != [module, qualified]:
                raise differ(path, f"a {module}.{qualified}", given)
            types.add(type(given))
            for field, item in fields:
                walk(item, getattr(given, field, None), f"{path}.{field}")

    walk(document, target, "state")
    return found, types


def _describe(given: Any) -> str:
    if isinstance(given, dict):
        return f"a dict of {list(given)}"
    if isinstance(given, list | tuple):
        return f"a {type(given).__name__} of {len(given)}"
    return f"a {type(given).__name__}"


def _only(node: Any) -> tuple[str, Any]:
    if not isinstance(node, dict) or len(node) != 1:
        raise RequestError("the object is a damaged state")
    return next(iter(node.items()))


def _leaf(name: str, value: Any) -> Any:
    if name == "float":
        return float(value)
    if name == "bytes":
        return base64.b64decode(value, validate=True)
    if name == "dtype":
        return dtype_of(value)
    if name == "size":
        return torch.Size(value)
    raise RequestError(f"the state was stored by a newer version: it has a {name!r}")


def _make(kind: type, fields: dict[str, Any]) -> Any:
    expected = {each.name: each for each in dataclasses.fields(kind)}
    if expected.keys() != fields.keys():
        raise RequestError(
            f"stored is a {kind.__qualname__} with the fields {sorted(fields)}, "
            f"the class here has {sorted(expected)}"
        )
    made = kind(**{name: value for name, value in fields.items() if expected[name].init})
    for name, value in fields.items():
        if not expected[name].init:
            object.__setattr__(made, name, value)
    return made
