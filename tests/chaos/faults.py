"""Faults as data: what is done to whom, when and for how long. A file of them repeats a run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

SERVERS = ("s0", "s1", "s2")
MASTERS = ("m0", "m1")
ETCD = ("e0", "e1", "e2")
CLIENTS = ("c0", "c1", "c2", "c3", "c4")
"""c0 and c1 are on the hosts of s0 and s1, the others on hosts of their own."""
HOST_OF = {"c0": "s0", "c1": "s1"}
LEADER = "leader"
"""Whichever master leads when the fault begins."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What a kind of fault does, and to whom it can be done."""

    why: str
    targets: tuple[str, ...]


_ALL = (*MASTERS, *SERVERS, *ETCD, *CLIENTS)

KINDS: dict[str, Kind] = {
    "kill": Kind("SIGKILL, and a new process in its place afterwards", (LEADER, *_ALL)),
    "freeze": Kind("SIGSTOP, then SIGCONT", (LEADER, *_ALL)),
    "stop": Kind(
        "SIGTERM, and a new process in its place afterwards", (LEADER, *MASTERS, *SERVERS)
    ),
    "reboot": Kind("a store server's host goes with all of its memory", SERVERS),
    "partition": Kind("packets to and from these hosts are lost, both ways", (LEADER, *_ALL)),
    "deaf": Kind("packets to these hosts are lost, those from them arrive", (LEADER, *_ALL)),
    "mute": Kind("packets from these hosts are lost, those to them arrive", (LEADER, *_ALL)),
    "slow": Kind("the host sends no more than so many bits a second (tbf)", (LEADER, *_ALL)),
    "loss": Kind("so many permille of the host's packets are lost, both ways", (LEADER, *_ALL)),
    "delay": Kind("each of the host's packets takes so many ms, both ways", (LEADER, *_ALL)),
    "reorder": Kind("they take up to so many ms, and pass each other", (LEADER, *_ALL)),
    "clock": Kind("the wall clock of the processes jumps by so many s, and back", (LEADER, *_ALL)),
    "suspend": Kind("the host's clock of suspended time jumps ahead by so many s", (LEADER, *_ALL)),
    "full": Kind("the file system of the server's memory is full", SERVERS),
}

AMOUNTS: dict[str, tuple[float, ...]] = {
    "slow": (200e3, 2e6, 20e6),
    "loss": (20, 100, 300),
    "delay": (5, 40, 150),
    "reorder": (5, 30, 100),
    "clock": (-3600.0, -2.0, 3.0, 86400.0),
    "suspend": (0.5, 3.0, 600.0),
}
"""From which a schedule takes its amounts."""

_TO_SERVER = frozenset(SERVERS)
_TO_MASTERS = frozenset((LEADER, *MASTERS))
_TO_CONTROL = _TO_MASTERS | frozenset(ETCD)
_LIGHT = frozenset(("delay", "reorder", "clock", "full"))
"""What keeps everybody within reach."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One of a plan."""

    kind: str
    target: str
    """Names of processes or hosts, with commas between them."""
    start_s: float
    duration_s: float
    amount: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        kind = KINDS.get(self.kind)
        if kind is None:
            raise ValueError(f"{self.kind!r} is no kind of fault: {', '.join(KINDS)}")
        unknown = set(self.targets) - set(kind.targets)
        if unknown:
            raise ValueError(f"{self.kind} of {', '.join(sorted(unknown))}: no such target")
        if self.start_s < 0 or self.duration_s < 0:
            raise ValueError(f"{self.kind} of {self.target}: times are not below 0")

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(self.target.split(","))

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s

    @property
    def _touches_servers(self) -> bool:
        hosts = {HOST_OF.get(target, target) for target in self.targets}
        # A client's process may die or freeze without its host.
        whole = self.kind not in ("kill", "freeze", "stop", "clock")
        return bool((hosts if whole else set(self.targets)) & _TO_SERVER)

    @property
    def _touches_control(self) -> bool:
        return bool(set(self.targets) & _TO_CONTROL)

    @property
    def cuts_off(self) -> bool:
        if self.kind in ("delay", "reorder", "clock", "reboot"):
            return False
        # A master that hears nothing gives servers up; a new one may serve before they are there.
        return self._touches_servers or bool(set(self.targets) & _TO_MASTERS)

    @property
    def hides(self) -> bool:
        if self.kind == "full":
            return False
        if self.kind in ("delay", "reorder", "clock"):
            # Within a leader's silence (5 s) all come; a new leader waits a second for inventories.
            return self.kind != "clock" and self._touches_control
        return self._touches_servers or self._touches_control

    @property
    def ends_sessions(self) -> bool:
        return self.kind not in _LIGHT

    @property
    def moves_clocks(self) -> bool:
        return self.kind == "clock"

    @property
    def stops_clients(self) -> bool:
        return self.kind == "freeze" and bool(set(self.targets) & set(CLIENTS))


@dataclass(frozen=True, slots=True)
class Plan:
    """All that a run is made of. The same plan gives the same faults at the same times."""

    seed: int
    seconds: float
    faults: tuple[Fault, ...] = ()
    evicts: bool = False
    """The pool is too small for all keys, so that objects are evicted; else none ever is."""
    relay: bool = False
    """Clients let servers pass put_end on."""
    copies: bool = True
    """Clients also ask for more replicas, and move them."""
    checksums: str = "off"
    planted: str = ""
    """A rule that the test build leaves out."""
    keys: int = 160
    rate_per_s: float = 500.0
    """Operations that each client tries in a second."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Flags of the masters, for instance {"session-timeout": "2s"}."""

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan.

        Raises:
            ValueError: The file is none.
        """
        given = json.loads(path.read_text())
        unknown = set(given) - {each.name for each in fields(cls)}
        if unknown:
            raise ValueError(f"{path}: a plan has no {', '.join(sorted(unknown))}")
        faults: Iterable[dict[str, Any]] = given.pop("faults", ())
        return cls(faults=tuple(Fault(**fault) for fault in faults), **given)
