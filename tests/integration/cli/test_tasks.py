"""Drain, move, replicate with a prefix, and tasks, as operators type them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def keys(mooncake: Callable[..., Any]) -> Iterator[list[str]]:
    """A few objects of a prefix of their own."""
    prefix = f"tasks-{uuid.uuid4().hex}/"
    names = [f"{prefix}{index}" for index in range(5)]
    for name in names:
        assert mooncake("put", name, "--text", name).code == 0
    yield names
    assert mooncake("rm", "--prefix", prefix, "--yes", "--force").code == 0


def nodes_of(mooncake: Callable[..., Any], key: str) -> list[str]:
    return sorted(
        replica["node"] for replica in mooncake("stat", key, "--json").json("stat")["replicas"]
    )


def test_a_node_is_drained_and_comes_back(mooncake: Callable[..., Any], keys: list[str]) -> None:
    assert mooncake("replicate", keys[0], "0", "--to", "node-b").code == 0
    assert nodes_of(mooncake, keys[0]) == ["node-b"]
    try:
        drained = mooncake("drain", "node-b", "--json")
        task = drained.json("drain")
        assert drained.code == 0 and task["state"] == "done" and task["source"] == "node-b"
        assert task["objects_done"] >= 1 and task["sole_left"] == 0
        assert nodes_of(mooncake, keys[0]) != ["node-b"]
        listed = mooncake("tasks", "list", "--all", "--json").json("tasks-list")["tasks"]
        assert task["id"] in [each["id"] for each in listed]
        shown = mooncake("tasks", "show", task["id"])
        assert "drain node-b" in shown.text and "done" in shown.text
        assert mooncake("tasks", "wait", task["id"], "--json").json("tasks-wait")["state"] == "done"
        assert "draining" in mooncake("status").text
        # Nobody could take what is left then: said, with the objects.
        node_a = nodes_of(mooncake, keys[0])[0]
        stuck = mooncake("drain", node_a, "--json")
        found = stuck.json("drain")
        assert stuck.code == 6 and found["state"] == "blocked" and found["sole_left"] >= 5
        assert {failure["reason"] for failure in found["failures"]} == {
            "no other store server can take it"
        }
        cancelled = mooncake("tasks", "cancel", found["id"], "--json")
        assert cancelled.code == 0 and cancelled.json("tasks-cancel") == {"cancelled": found["id"]}
        assert mooncake("tasks", "cancel", found["id"]).code != 0
    finally:
        undone = mooncake("drain", "node-b", "--undo", "--json")
    assert undone.json("drain") == {"node": "node-b", "undone": True}
    assert "node-b was not draining" in mooncake("drain", "node-b", "--undo").err


def test_objects_move_and_replicate_one_by_one_and_by_prefix(
    mooncake: Callable[..., Any], keys: list[str]
) -> None:
    prefix = keys[0].rpartition("/")[0] + "/"
    made = mooncake("replicate", prefix, "2", "--prefix", "--json")
    document = made.json("replicate")
    assert made.code == 0 and document["task"]["state"] == "done"
    assert all(len(nodes_of(mooncake, key)) == 2 for key in keys)
    node_a = next(node for node in nodes_of(mooncake, keys[0]) if node != "node-b")
    assert mooncake("replicate", prefix, "1", "--prefix").code == 0
    for key in keys:
        if nodes_of(mooncake, key) != [node_a]:
            moved = mooncake("move", key, "--to", node_a, "--from", "node-b", "--json")
            assert moved.json("move") == {"key": key, "replicas": 1, "task": None}
    moved = mooncake("move", prefix, "--prefix", "--from", node_a, "--to", "node-b", "--json")
    assert moved.json("move")["task"]["objects_done"] == 5
    assert all(nodes_of(mooncake, key) == ["node-b"] for key in keys)
    begun = mooncake("replicate", prefix, "2", "--prefix", "--no-wait", "--json")
    task = begun.json("replicate")["task"]["id"]
    assert mooncake("tasks", "wait", task).code == 0
    every = mooncake("replicate", "", "1", "--prefix", "--json").json("replicate")["task"]
    assert (every["prefix"], every["state"]) == ("", "done") and every["objects_done"] >= 5
    assert all(len(nodes_of(mooncake, key)) == 1 for key in keys)


@pytest.mark.parametrize(
    "arguments",
    [
        ["move", "k", "--prefix"], ["move", "", "--from", "node-a"], ["replicate", "", "2"],
        ["replicate", "k", "0", "--prefix"], ["tasks", "show", "x"],
        ["replicate", "k", "2", "--prefix", "--to", "node-b"], ["drain", "no-such-node"],
        ["move", "k", "--to", "no-such-node"], ["move", "k", "--to", "node-b", "--from", "node-b"],
        ["move", "k", "--prefix", "--to", "node-b", "--from", "node-b"],
        ["tasks", "show", "\u00b2-1"], ["tasks", "wait", "9" * 20 + "-1"], ["tasks", "cancel", ""],
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_a_usage_error(
    mooncake: Callable[..., Any], arguments: list[str]
) -> None:
    assert mooncake(*arguments).code == 2


def test_a_task_that_is_not_known_is_not_found(mooncake: Callable[..., Any]) -> None:
    assert mooncake("tasks", "show", "1-999999").code == 4
    cancelled = mooncake("tasks", "cancel", "1-999999")
    assert cancelled.code == 4 and "tasks list --all" in cancelled.err


@pytest.mark.parametrize("name", ["no-such-node", "n\u00f6de", "\udcff"])
def test_a_node_that_is_not_known_is_not_forgotten(mooncake: Callable[..., Any], name: str) -> None:
    result = mooncake("forget", name, "--yes")
    assert result.code == 4 and "`mooncake-store status` shows who is there" in result.err
