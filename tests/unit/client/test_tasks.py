"""Names of tasks and of store servers."""

from __future__ import annotations

from typing import Any

import pytest

from mooncake_store.client.commands import change_replica
from mooncake_store.client.results import Member
from mooncake_store.client.tasks import (
    Order,
    server_number,
    start,
    task_id,
    task_number,
    undrain,
)
from mooncake_store.errors import RequestError
from mooncake_store.protocol import frames
from mooncake_store.protocol.methods import TaskKind, TaskState


def member(server: int, name: str, node_id: str) -> Member:
    return Member(**{
        **dict.fromkeys(Member.__dataclass_fields__, 0),
        "server": server, "name": name, "node_id": node_id,
    })  # fmt: skip


@pytest.mark.parametrize("number", [0, 1, 7 << 32 | 3, (1 << 64) - 1])
def test_a_tasks_name_reads_back(number: int) -> None:
    assert task_number(task_id(number)) == number


@pytest.mark.parametrize(
    "text", ["", "7", "-", "7-", "-3", "7-3-1", " 7-3", "7-3\n", "+7-3", "\u00b2-1", "\u0663-1",
             "4294967296-1", "1-4294967296", "9" * 5000 + "-1"],
)  # fmt: skip
def test_what_names_no_task_is_a_mistake_of_the_caller(text: str) -> None:
    with pytest.raises(RequestError, match="names no task"):
        task_number(text)


def test_a_server_is_named_by_name_before_id_and_number() -> None:
    members = [member(0, "a", "00"), member(1, "0", "01"), member(2, "b", "02")]
    assert server_number(members, "a") == 0
    assert server_number(members, "0") == 1  # its name, and not that of server 0
    assert server_number(members, 0) == 0
    assert server_number(members, "2") == server_number(members, "02") == 2


def test_a_name_of_several_servers_names_none() -> None:
    members = [member(0, "a", "00"), member(1, "a", "01")]
    with pytest.raises(RequestError, match="2 store servers are called 'a'"):
        server_number(members, "a")
    assert server_number(members, "01") == 1
    with pytest.raises(RequestError, match=r"no store server 'b' \(known: a, a\)"):
        server_number(members, "b")


def undrained(members: list[Member], server: int | str, tasks: tuple[frames.Task, ...]) -> Any:
    """The task that an undrain cancels; None: it finds none."""
    steps = undrain(server)
    next(steps)
    steps.send(members)
    try:
        return frames.TasksRequest.decode(steps.send(tasks).body).task
    except StopIteration as end:
        assert end.value is False
        return None


def test_an_undrain_finds_the_drain_of_that_server_and_of_no_namesake() -> None:
    members = [member(0, "a", "00"), member(1, "a", "01"), member(2, "b", "02")]
    drain, cancelled = TaskKind.DRAIN, TaskState.CANCELLED
    tasks = (
        frames.Task(task=9, kind=TaskKind.MOVE, state=TaskState.RUNNING, source_server=3),
        frames.Task(task=8, kind=drain, state=cancelled, source_server=2),
        frames.Task(task=7, kind=drain, state=TaskState.RUNNING, source_server=1),
        frames.Task(task=6, kind=drain, state=TaskState.DONE, source_server=2),
    )
    assert undrained(members, "00", tasks) == undrained(members, 0, tasks) == 7
    assert undrained(members, "01", tasks) == undrained(members, 1, tasks) == 6
    assert undrained(members, "b", tasks) is None
    steps = undrain("a")
    next(steps)
    with pytest.raises(RequestError, match="2 store servers are called 'a': say which by its id"):
        steps.send(members)


@pytest.mark.parametrize(
    ("count", "target", "source", "message"),
    [
        (0, -1, None, "no number of a store server"),  # on the wire that would be any server
        (0, None, -1, "no number of a store server"),
        (0, 1 << 32, None, "no number of a store server"),
        (0, 2, 2, "to the same one"),
        (17, None, None, "1 to 16"),
    ],
)
def test_a_change_of_replicas_that_makes_no_sense_is_not_sent(
    count: int, target: int | None, source: int | None, message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        change_replica("key", lambda _: bytes(16), count, target, source)


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (Order("replicate", replicas=-1), "1 to 16"),
        (Order("replicate", replicas=0), "1 to 16"),
        (Order("replicate", replicas=17), "1 to 16"),
        (Order("move", source="a", target="a"), "to the same one"),
        (Order("move", source="a", target=0), "to the same one"),
        (Order("move", source="b"), "no store server 'b'"),
        (Order("drain", source=-1), "no store server -1"),
    ],
)
def test_a_task_that_makes_no_sense_is_not_begun(order: Order, message: str) -> None:
    steps = start(order)
    next(steps)  # it asks for the members
    with pytest.raises(RequestError, match=message):
        steps.send([member(0, "a", "00")])
