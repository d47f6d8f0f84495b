"""What recorders of many processes wrote is read back, also when some of them were killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS))

from chaos.history import (  # noqa: E402
    Eviction,
    Fault,
    HistoryError,
    Loss,
    Op,
    Outcome,
    Recorder,
    read_history,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "history.jsonl"


def recorder(path, client="a"):
    return Recorder(path, client, clock_ns=count(1).__next__)


def test_operations_and_events_come_back_as_they_were(path):
    with recorder(path) as record:
        record.eviction(is_allowed=True)
        record.fault("kill 3", cuts_off=False, hides=True)
        put = record.begin(Op.PUT, "k", token=7, ttl_s=2.5, replicas=2)
        record.end(put, Outcome.OK, nodes=["n1", "n2"])
        get = record.begin(Op.GET, "k")
        record.end(get, Outcome.OK, token=7)
        record.healed("kill 3")
        record.fault("cut 4", cuts_off=True, hides=False)
        record.lost("n1", since_ns=2)
    history = read_history(path)

    put, get = history.operations
    assert (put.op, put.key, put.token, put.ttl_s, put.replicas) == (Op.PUT, "k", 7, 2.5, 2)
    assert (put.invoked_ns, put.answered_ns, put.nodes) == (3, 4, ("n1", "n2"))
    assert (get.op, get.token, get.is_whole, get.outcome) == (Op.GET, 7, True, Outcome.OK)
    first, second = history.faults
    assert first == Fault(first.line, "kill 3", 2, 7, False, True)
    assert second == Fault(second.line, "cut 4", 8, None, True, False)
    assert history.losses == [Loss(history.losses[0].line, "n1", 2, 9)]
    assert history.evictions == [Eviction(2, 1, True)]
    assert history.torn_lines == []


def test_lines_are_those_of_the_file(path):
    with recorder(path) as record:
        record.end(record.begin(Op.PUT, "k", token=1), Outcome.OK)
        record.end(record.begin(Op.GET, "k"), Outcome.MISS)
    lines = path.read_text().splitlines()
    for operation in read_history(path).operations:
        line = json.loads(lines[operation.line - 1])
        assert (line["is"], line["op"]) == ("end", operation.op.value)


def test_change_that_was_never_answered_is_unknown_and_a_read_is_nothing(path):
    with recorder(path) as record:
        record.begin(Op.REMOVE, "k")
        record.begin(Op.GET, "k")
    (remove,) = read_history(path).operations
    assert (remove.op, remove.outcome, remove.answered_ns) == (Op.REMOVE, Outcome.UNKNOWN, None)


def test_every_cut_of_the_file_is_read(path):
    with recorder(path) as record:
        record.end(record.begin(Op.PUT, "k", token=1), Outcome.OK)
        record.end(record.begin(Op.GET, "k"), Outcome.OK, token=1)
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        history = read_history(path)
        assert len(history.torn_lines) <= 1
        assert len(history.operations) <= 2


def test_torn_line_spoils_none_of_those_that_others_append(path):
    with recorder(path) as record:
        record.begin(Op.PUT, "k", token=1)
    path.write_bytes(path.read_bytes()[:-9])
    with recorder(path, "b") as record:
        record.end(record.begin(Op.PUT, "k", token=2), Outcome.OK)
    history = read_history(path)
    assert [operation.token for operation in history.operations] == [2]
    assert history.torn_lines == [2]


def test_killed_processes_leave_a_history(path):
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from itertools import count; from pathlib import Path\n"
        "from chaos.history import Op, Outcome, Recorder\n"
        "number = int(sys.argv[3])\n"
        "record = Recorder(Path(sys.argv[2]), f'client {number}')\n"
        "for token in count(number, 3):\n"
        "    record.end(record.begin(Op.PUT, 'k' * 200, token=token), Outcome.OK)\n"
        "    if token == 300 + number: print(flush=True)\n"
    )
    clients = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(TESTS), str(path), str(number)],
            stdout=subprocess.PIPE,
        )
        for number in range(3)
    ]
    try:
        for client in clients:
            client.stdout.read(1)
    finally:
        for client in clients:
            client.send_signal(signal.SIGKILL)
            client.wait()
            client.stdout.close()
    history = read_history(path)
    assert len(history.torn_lines) <= 3
    by_client: dict[str, list[int]] = {}
    for operation in history.operations:
        by_client.setdefault(operation.client, []).append(operation.token)
    for number in range(3):
        tokens = by_client[f"client {number}"]
        assert len(tokens) > 100
        assert sorted(tokens) == list(range(number, number + 3 * len(tokens), 3))


@pytest.mark.parametrize(
    "line",
    [
        {"is": "gossip"},
        {"is": "healed", "name": "never begun"},
        {"is": "end", "client": "a", "call": 1, "op": "put", "key": "k", "invoked_ns": 1},
        5,
    ],
)
def test_whole_line_that_no_recorder_writes_is_refused(path, line):
    path.write_text(json.dumps(line) + "\n")
    with pytest.raises(HistoryError, match="line 1"):
        read_history(path)


def end_line(**changes):
    return {
        "is": "end",
        "client": "a",
        "call": 1,
        "op": "get",
        "key": "k",
        "invoked_ns": 5,
        "answered_ns": 6,
        "outcome": "miss",
    } | changes


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ([end_line(answered_ns=4)], "answered before"),
        ([end_line(outcome="false")], "never 'false'"),
        ([end_line(), end_line()], "told twice"),
    ],
)
def test_history_that_contradicts_itself_is_refused(path, lines, why):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(HistoryError, match=why):
        read_history(path)


def test_fault_has_a_name_of_its_own(path):
    with recorder(path) as record:
        record.fault("x", cuts_off=True, hides=True)
        record.fault("x", cuts_off=True, hides=True)
    with pytest.raises(HistoryError, match="second fault"):
        read_history(path)


def test_history_without_room_is_an_error(path):
    with Recorder(path, "a") as record:
        os.dup2(os.open("/dev/full", os.O_WRONLY), record._fd)
        with pytest.raises(OSError):
            record.eviction(is_allowed=True)


def test_write_needs_a_token(path):
    with recorder(path) as record, pytest.raises(ValueError, match="token"):
        record.begin(Op.UPSERT, "k")
