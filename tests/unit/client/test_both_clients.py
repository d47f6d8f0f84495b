"""The sync and the async client have the same calls, and one list of options."""

from __future__ import annotations

import inspect

import pytest

from mooncake_store import AsyncClient, Client
from mooncake_store.client.config import ClientConfig
from mooncake_store.client.core import PUT_UPSERT, ClientCore, Operation
from mooncake_store.client.options import Priority, PutOptions, Share

CALLS = sorted(
    name
    for name, value in vars(AsyncClient).items()
    if inspect.isfunction(value) and not name.startswith("_")
)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_the_same_parameters_in_both_clients(name: str) -> None:
    def parameters(of: type) -> list[tuple[str, object, object, object]]:
        found = inspect.signature(getattr(of, name)).parameters.values()
        return [(each.name, each.kind, each.default, each.annotation) for each in found]

    assert parameters(AsyncClient) == parameters(Client)


def test_every_option_of_a_put_is_taken_and_no_other() -> None:
    core = ClientCore(ClientConfig(replicas=3))
    given: PutOptions = {
        "replicas": 2, "min_replicas": 2, "ttl_s": 1.5, "hard_pin": True, "soft_pin": True,
        "parent": "key", "group": 7, "preferred_server": 4,
        "priority": Priority.BACKGROUND, "share": Share("a", 5),
    }  # fmt: skip
    assert set(given) == set(PutOptions.__annotations__)
    assert core.put_options(given, chain=True) == (
        2, 2, 2 | 4 | 8, 5, 1500, "key", True, 7, (2, 5, Share("a").number),
    )  # fmt: skip
    assert core.put_options({}) == (3, 1, 0, 0, 0, None, False, 0, None)
    for wrong in ("upsert", "chain", "nonsense"):
        with pytest.raises(TypeError, match=wrong):
            core.put_options({wrong: True}, upsert=True)


def test_a_put_without_options_needs_none() -> None:
    core = ClientCore(ClientConfig())
    assert core.put_options({}) is None
    assert core.put_options({"replicas": 1, "ttl_s": None}) is None
    assert core.put_options({}, upsert=True) == (1, 1, PUT_UPSERT, 0, 0, None, False, 0, None)


def test_operations_are_those_of_c() -> None:
    from pathlib import Path
    from re import findall

    header = (Path(__file__).parents[3] / "client/src/python.h").read_text()
    numbers = {name: int(number) for name, number in findall(r"\bCL_(\w+) = (\d+)", header)}
    assert {each.name: each.value for each in Operation} == numbers
