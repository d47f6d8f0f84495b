"""The history of a run: each operation with its times and outcome, and what befell the cluster.

Many processes append to one file, a JSON object a line, each with one write of O_APPEND. What
changes the store is written down twice, before it begins and when it has been answered, so that
nothing which may have happened is missing when its client is killed in between: it then counts as
unknown. A kill can also cut a line short. Each line therefore begins with a newline of its own, the
torn piece stands alone, and the reader leaves it out: had it been a beginning, the operation never
began; had it been an answer, the operation is unknown.

All times are nanoseconds of CLOCK_MONOTONIC, which the processes of one machine share.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any


class Op(Enum):
    """What a client asked for."""

    PUT = "put"
    UPSERT = "upsert"
    GET = "get"
    EXISTS = "exists"
    REMOVE = "remove"
    PIN = "pin"
    UNPIN = "unpin"


class Outcome(Enum):
    """What the client was told."""

    OK = "ok"
    """Stored, removed, read, or there."""
    FALSE = "false"
    """put: the key was there, nothing changed. remove, unpin: it was not there."""
    MISS = "miss"
    """get, exists, pin: the store said that it is not there. A failure, also one that a client
    shows as a miss, is unknown."""
    ERROR = "error"
    """Refused: it has certainly changed nothing, and will not."""
    UNKNOWN = "unknown"
    """Timed out, cut off or killed: it may take effect at any time after it began, or never."""


CHANGING = frozenset({Op.PUT, Op.UPSERT, Op.REMOVE})
STORING = frozenset({Op.PUT, Op.UPSERT})
ANNOUNCED = CHANGING | {Op.UNPIN}
"""What is written down before it begins, too."""
OUTCOMES = {
    Op.PUT: {Outcome.OK, Outcome.FALSE, Outcome.ERROR, Outcome.UNKNOWN},
    Op.UPSERT: {Outcome.OK, Outcome.ERROR, Outcome.UNKNOWN},
    Op.GET: {Outcome.OK, Outcome.MISS, Outcome.ERROR, Outcome.UNKNOWN},
    Op.EXISTS: {Outcome.OK, Outcome.MISS, Outcome.ERROR, Outcome.UNKNOWN},
    Op.REMOVE: {Outcome.OK, Outcome.FALSE, Outcome.ERROR, Outcome.UNKNOWN},
    Op.PIN: {Outcome.OK, Outcome.MISS, Outcome.ERROR, Outcome.UNKNOWN},
    Op.UNPIN: {Outcome.OK, Outcome.FALSE, Outcome.ERROR, Outcome.UNKNOWN},
}


class HistoryError(Exception):
    """The history cannot be what it claims to be: nothing can be concluded from it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of one client."""

    line: int
    """Where the history tells it, from 1."""
    client: str
    op: Op
    key: str
    invoked_ns: int
    answered_ns: int | None
    """None: never; its client was killed."""
    outcome: Outcome
    token: int | None = None
    """put, upsert: of the value. get: what the bytes that were read begin with."""
    is_whole: bool = True
    """get: the bytes are those of the token under this key (`value.prove`)."""
    ttl_s: float | None = None
    """put, upsert: the object may leave by itself after this."""
    replicas: int = 1
    """put, upsert: how many nodes certainly hold it."""
    nodes: tuple[str, ...] = ()
    """put, upsert: which these are, where that is known and nothing moves objects."""
    epoch: int | None = None
    """put, upsert, remove: of the master that answered, where that is known."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that was done to the cluster, and when it was over."""

    line: int
    name: str
    since_ns: int
    until_ns: int | None
    """None: it was not undone while the history was written."""
    cuts_off: bool
    """Store servers may be out of the master's reach, yet within that of clients."""
    hides: bool
    """Stored objects may be missed: store servers are away, or their inventories."""
    ends_sessions: bool = False
    """Clients may lose their sessions, and their pins with them."""
    moves_clocks: bool = False
    """Wall clocks jump: what has a TTL may leave at once."""
    stops_clients: bool = False
    """A client stands still, and cannot return in time."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A node went with all that it held."""

    line: int
    node: str
    since_ns: int
    until_ns: int
    """Nothing was granted there after this."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """From now on objects may be evicted, or not any more."""

    line: int
    at_ns: int
    is_allowed: bool


@dataclass(slots=True)
class History:
    """All that was recorded."""

    operations: list[Operation] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    losses: list[Loss] = field(default_factory=list)
    evictions: list[Eviction] = field(default_factory=list)
    torn_lines: list[int] = field(default_factory=list)
    """Lines that a kill cut short: not more than processes were killed."""


@dataclass(frozen=True, slots=True)
class Call:
    """An operation that has begun and is not answered yet."""

    number: int
    op: Op
    key: str
    invoked_ns: int
    facts: dict[str, Any]


class Recorder:
    """Appends what one client does, or what is done to the cluster. It belongs to one thread.

    Args:
        path: The history, common to all processes.
        client: A name that no other recorder of this history has, in this process or another.
        clock_ns: CLOCK_MONOTONIC, except in tests.
    """

    def __init__(
        self, path: Path, client: str, *, clock_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.client = client
        self._clock_ns = clock_ns
        self._calls = 0
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def begin(
        self,
        op: Op,
        key: str,
        *,
        token: int | None = None,
        ttl_s: float | None = None,
        replicas: int = 1,
    ) -> Call:
        """Say that the call is about to be made; the time is taken last."""
        self._calls += 1
        facts: dict[str, Any] = {}
        if op in STORING:
            if token is None:
                raise ValueError(f"a {op.value} stores a value that has a token")
            facts = {"token": token, "ttl_s": ttl_s, "replicas": replicas}
        call = Call(self._calls, op, key, self._clock_ns(), facts)
        if op in ANNOUNCED:
            self._append(self._line("begin", call))
        return call

    def end(
        self,
        call: Call,
        outcome: Outcome,
        *,
        token: int | None = None,
        is_whole: bool = True,
        nodes: Iterable[str] = (),
        epoch: int | None = None,
        answered_ns: int | None = None,
    ) -> None:
        """Say what came of it; for a get that read something, of which put the bytes are.

        Args:
            call: What `begin` returned.
            outcome: What the client was told.
            token: get: what the bytes begin with.
            is_whole: get: they are the value of that token under this key.
            nodes: put, upsert: which nodes hold it, where that is known.
            epoch: put, upsert, remove: of the master that answered, where that is known.
            answered_ns: When the call returned; None: now.
        """
        if answered_ns is None:
            answered_ns = self._clock_ns()
        line = self._line("end", call)
        line |= {"answered_ns": answered_ns, "outcome": outcome.value}
        if call.op is Op.GET and outcome is Outcome.OK:
            line |= {"token": token, "is_whole": is_whole}
        if call.op in STORING:
            line["nodes"] = list(nodes)
        if epoch is not None:
            line["epoch"] = epoch
        self._append(line)

    def fault(
        self,
        name: str,
        *,
        cuts_off: bool,
        hides: bool,
        ends_sessions: bool = False,
        moves_clocks: bool = False,
        stops_clients: bool = False,
        since_ns: int | None = None,
    ) -> None:
        """Say, before it is done, that a fault begins; its name is used once.

        What was noticed only afterwards began at `since_ns`.
        """
        self._append(
            {
                "is": "fault",
                "name": name,
                "at_ns": self._clock_ns() if since_ns is None else since_ns,
                "cuts_off": cuts_off,
                "hides": hides,
                "ends_sessions": ends_sessions,
                "moves_clocks": moves_clocks,
                "stops_clients": stops_clients,
            }
        )

    def healed(self, name: str) -> None:
        """Say, after it has been undone, that the fault is over."""
        self._append({"is": "healed", "name": name, "at_ns": self._clock_ns()})

    def lost(self, node: str, *, since_ns: int) -> None:
        """Say, after it is gone for good, that the node has been taken away since that time."""
        self._append(
            {"is": "lost", "node": node, "since_ns": since_ns, "until_ns": self._clock_ns()}
        )

    def eviction(self, *, is_allowed: bool) -> None:
        """Say, before, that eviction becomes possible, or, after, that it is not any more."""
        self._append({"is": "eviction", "at_ns": self._clock_ns(), "is_allowed": is_allowed})

    def _line(self, kind: str, call: Call) -> dict[str, Any]:
        return {
            "is": kind,
            "client": self.client,
            "call": call.number,
            "op": call.op.value,
            "key": call.key,
            "invoked_ns": call.invoked_ns,
            **call.facts,
        }

    def _append(self, line: dict[str, Any]) -> None:
        data = b"\n" + json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if os.write(self._fd, data) != len(data):
            raise OSError("the history has no room: what follows would not be recorded")


class _Reader:
    """Folds the lines of a history."""

    def __init__(self) -> None:
        self.history = History()
        self._begun: dict[tuple[str, int], Operation] = {}
        self._answered: set[tuple[str, int]] = set()
        self._faults: dict[str, Fault] = {}

    def line(self, number: int, text: bytes) -> None:
        if not text.strip():
            return
        try:
            line = json.loads(text)
        except ValueError:
            # A piece of an object is never JSON, because its brace closes it last.
            self.history.torn_lines.append(number)
            return
        try:
            self._take(number, line)
        except (KeyError, TypeError, ValueError) as error:
            raise HistoryError(f"line {number}: {error!r} in {text!r}") from error

    def _take(self, number: int, line: dict[str, Any]) -> None:
        match line["is"]:
            case "begin" | "end":
                self._take_operation(number, line)
            case "fault":
                name = line["name"]
                if name in self._faults:
                    raise HistoryError(f"line {number}: a second fault {name!r}")
                self._faults[name] = Fault(
                    line=number,
                    name=name,
                    since_ns=line["at_ns"],
                    until_ns=None,
                    cuts_off=line["cuts_off"],
                    hides=line["hides"],
                    ends_sessions=line.get("ends_sessions", False),
                    moves_clocks=line.get("moves_clocks", False),
                    stops_clients=line.get("stops_clients", False),
                )
            case "healed":
                fault = self._faults[line["name"]]
                self._faults[fault.name] = replace(fault, until_ns=line["at_ns"])
            case "lost":
                self.history.losses.append(
                    Loss(number, line["node"], line["since_ns"], line["until_ns"])
                )
            case "eviction":
                self.history.evictions.append(Eviction(number, line["at_ns"], line["is_allowed"]))
            case other:
                raise HistoryError(f"line {number}: there is no {other!r} in a history")

    def _take_operation(self, number: int, line: dict[str, Any]) -> None:
        call = (line["client"], line["call"])
        op = Op(line["op"])
        is_end = line["is"] == "end"
        answered_ns: int | None = line["answered_ns"] if is_end else None
        operation = Operation(
            line=number,
            client=line["client"],
            op=op,
            key=line["key"],
            invoked_ns=line["invoked_ns"],
            answered_ns=answered_ns,
            outcome=Outcome(line["outcome"]) if is_end else Outcome.UNKNOWN,
            token=line.get("token"),
            is_whole=line.get("is_whole", True),
            ttl_s=line.get("ttl_s"),
            replicas=line.get("replicas", 1),
            nodes=tuple(line.get("nodes", ())),
            epoch=line.get("epoch"),
        )
        if operation.outcome not in OUTCOMES[op]:
            raise HistoryError(f"line {number}: a {op.value} is never {operation.outcome.value!r}")
        if answered_ns is not None and answered_ns < operation.invoked_ns:
            raise HistoryError(f"line {number}: answered before it was asked")
        if call in self._answered or (not is_end and call in self._begun):
            raise HistoryError(f"line {number}: call {call[1]} of {call[0]!r} is told twice")
        if is_end:
            self._begun.pop(call, None)
            self._answered.add(call)
            self.history.operations.append(operation)
        else:
            self._begun[call] = operation

    def end(self) -> History:
        self.history.operations += self._begun.values()
        self.history.faults += self._faults.values()
        return self.history


def read_history(path: Path) -> History:
    """Return what the file tells; a call that was begun and never answered is unknown.

    Raises:
        HistoryError: A line is whole, but not one that a recorder writes.
    """
    reader = _Reader()
    with path.open("rb") as lines:
        for number, text in enumerate(lines, start=1):
            reader.line(number, text)
    return reader.end()
