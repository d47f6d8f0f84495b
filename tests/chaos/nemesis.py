"""Carries the faults of a plan out, in one thread, and tells the history of each."""

from __future__ import annotations

import contextlib
import heapq
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from mooncake_store import Client
from mooncake_store.errors import StoreError

from .cluster import READY_TIMEOUT_S, Cluster
from .faults import HOST_OF, LEADER, SERVERS, Fault
from .history import Recorder
from .network import LOST, Weather
from .nodes import NodeError
from .processes import Process

_ASK_TIMEOUT_S = 0.5
_ASK_PAUSE_S = 0.1
_HEARD_S = 0.8  # after a second the master takes a holder for silent, and answers without it
_POLL_S = 0.05
_TICK_S = 0.1
_STALL_S = 1.0


class Watch:
    """Says that faults are over, once the cluster works again: all store servers are with a leader.

    Args:
        uri: Of the cluster.
        history: Is told.
    """

    def __init__(self, uri: str, history: Path) -> None:
        self._uri = uri
        self._recorder = Recorder(history, "watch")
        self._lock = threading.Lock()
        self._undone: dict[str, float] = {}
        self._is_ending = threading.Event()
        self.healing_s: dict[str, float] = {}
        """How long each took after it had been undone."""
        self._client: Client | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def undone(self, name: str) -> None:
        with self._lock:
            self._undone[name] = time.monotonic()

    def unhealed(self) -> list[str]:
        with self._lock:
            return sorted(self._undone)

    def _run(self) -> None:
        while not self._is_ending.wait(_ASK_PAUSE_S):
            with self._lock:
                waiting = dict(self._undone)
            if not waiting or not self._is_well():
                continue
            now_s = time.monotonic()
            with self._lock:
                for name, undone_s in waiting.items():
                    self._recorder.healed(name)
                    self.healing_s[name] = now_s - undone_s
                    del self._undone[name]

    def _is_well(self) -> bool:
        try:
            if self._client is None:
                self._client = Client(
                    self._uri, use_local_paths=False, connect_timeout_s=5 * _ASK_TIMEOUT_S
                )
            # A key that nobody uses. The index answers only when inventories are there; and the
            # remove in time only when each server has heard of it: one that a partition has cut off
            # a moment ago is "ready" until its silence is noticed.
            self._client.upsert(
                "watch", b"", replicas=len(SERVERS), min_replicas=len(SERVERS),
                timeout_s=_ASK_TIMEOUT_S,
            )  # fmt: skip
            self._client.remove("watch", timeout_s=_HEARD_S)
            members = self._client.members(timeout_s=_ASK_TIMEOUT_S)
        except StoreError:
            return False
        return sum(member.state == "ready" for member in members) == len(SERVERS)

    def close(self) -> None:
        self._is_ending.set()
        self._thread.join()
        self._recorder.close()
        if self._client is not None:
            self._client.close()


class Ticker:
    """Notices that the machine has stood still, which is a fault that nobody planned.

    Args:
        history: Is told.
    """

    def __init__(self, history: Path) -> None:
        self._recorder = Recorder(history, "ticker")
        self._is_ending = threading.Event()
        self.stalls = 0
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        before_ns = time.monotonic_ns()
        while not self._is_ending.wait(_TICK_S):
            now_ns = time.monotonic_ns()
            if now_ns - before_ns > _STALL_S * 1e9:
                self.stalls += 1
                name = f"stall {self.stalls}"
                self._recorder.fault(
                    name,
                    cuts_off=True,
                    hides=True,
                    ends_sessions=True,
                    stops_clients=True,
                    since_ns=before_ns,
                )
                self._recorder.healed(name)
            before_ns = now_ns

    def close(self) -> None:
        self._is_ending.set()
        self._thread.join()
        self._recorder.close()


class Nemesis:
    """What hurts the cluster.

    Args:
        cluster: It runs.
        recorder: Of the history.
        watch: Is told of what has been undone.
        say: For people.
    """

    def __init__(
        self, cluster: Cluster, recorder: Recorder, watch: Watch, say: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._record = recorder
        self._watch = watch
        self._say = say
        self._busy: set[str] = set()
        """Processes that a fault has stopped just now."""
        self.done: Counter[str] = Counter()
        self.skipped = 0

    def run(self, faults: tuple[Fault, ...], seconds: float) -> None:
        """Carry out all faults, and return when they are undone and the time is over.

        Raises:
            NodeError: A process has ended by itself, or one that was started again does not serve.
        """
        started_s = time.monotonic()
        order = 0
        due: list[tuple[float, int, Iterator[float]]] = []
        for number, fault in enumerate(sorted(faults, key=lambda fault: fault.start_s)):
            heapq.heappush(due, (fault.start_s, order, self._carry_out(number, fault)))
            order += 1
        while due or time.monotonic() - started_s < seconds:
            now_s = time.monotonic() - started_s
            if not due or due[0][0] > now_s:
                self._check_running()
                time.sleep(min(_POLL_S, due[0][0] - now_s if due else seconds - now_s + 0.001))
                continue
            _, _, steps = heapq.heappop(due)
            with contextlib.suppress(StopIteration):
                wait_s = next(steps)
                heapq.heappush(due, (time.monotonic() - started_s + wait_s, order, steps))
                order += 1

    def _check_running(self) -> None:
        for name, process in self._cluster.processes.items():
            if name not in self._busy and not process.is_running:
                raise NodeError(
                    f"{name} has ended by itself with {process.exit_status}: "
                    f"{process.log()[-2000:]}"
                )

    def _carry_out(self, number: int, fault: Fault) -> Iterator[float]:
        """Do it, wait, and undo it; yields how long to wait."""
        targets = [self._cluster.leader() if t == LEADER else t for t in fault.targets]
        stopped = self._processes_stopped(fault.kind, targets)
        if self._busy & stopped:
            self.skipped += 1  # it is down already
            return
        self._busy |= stopped
        name = f"{number} {fault.kind} {','.join(targets)}"
        self._say(f"{name} for {fault.duration_s:g} s, {fault.amount:g}")
        self._record.fault(
            name,
            cuts_off=fault.cuts_off,
            hides=fault.hides,
            ends_sessions=fault.ends_sessions,
            moves_clocks=fault.moves_clocks,
            stops_clients=fault.stops_clients,
        )
        yield from getattr(self, f"_{fault.kind}")(name, fault, targets)
        self._busy -= stopped
        self.done[fault.kind] += 1
        self._watch.undone(name)

    def _processes_stopped(self, kind: str, targets: list[str]) -> set[str]:
        if kind == "reboot":
            return {*targets, *(client for client, host in HOST_OF.items() if host in targets)}
        return set(targets) if kind in ("kill", "freeze", "stop") else set()

    def _of(self, targets: list[str]) -> list[Process]:
        return [self._cluster.processes[target] for target in targets]

    # ---- processes ----

    def _kill(self, name: str, fault: Fault, targets: list[str]) -> Iterator[float]:
        for process in self._of(targets):
            process.kill()
        yield fault.duration_s
        yield from self._start(targets)

    def _stop(self, name: str, fault: Fault, targets: list[str]) -> Iterator[float]:
        for process in self._of(targets):
            status = process.stop()
            if status != 0:
                raise NodeError(f"{process.name} was asked to stop, and ended with {status}")
        yield fault.duration_s
        yield from self._start(targets)

    def _start(self, targets: list[str]) -> Iterator[float]:
        for process in self._of(targets):
            process.start()
        # A master is ready when it leads, and a client when it has a session: that may take long.
        for process in self._of([target for target in targets if target in SERVERS]):
            end_s = time.monotonic() + READY_TIMEOUT_S
            while not process.is_ready:
                if not process.is_running or time.monotonic() > end_s:
                    raise NodeError(f"{process.name} does not serve again: {process.log()[-2000:]}")
                yield _POLL_S

    def _freeze(self, name: str, fault: Fault, targets: list[str]) -> Iterator[float]:
        for process in self._of(targets):
            process.freeze()
        yield fault.duration_s
        for process in self._of(targets):
            process.thaw()

    def _reboot(self, name: str, fault: Fault, targets: list[str]) -> Iterator[float]:
        gone = sorted(self._processes_stopped("reboot", targets))
        since_ns = time.monotonic_ns()
        for process in self._of(gone):
            process.kill()
        for target in targets:
            self._cluster.nodes[target].boot()
            self._record.lost(target, since_ns=since_ns)
        yield fault.duration_s
        yield from self._start(gone)

    # ---- clocks ----

    def _clock(self, name: str, fault: Fault, targets: list[str]) -> Iterator[float]:
        for process in self._of(targets):
            process.clock.set_wall(fault.amount)
        yield fault.duration_s
        for process in self._of(targets):
            process.clock.set_wall(0.0)

    def _suspend(self, name: str, fault: Fault, targets: list[str]) -> Iterator[float]:
        hosts = {self._cluster.host(target) for target in targets}
        for process in self._cluster.processes.values():
            if process.node.name in hosts:
                process.clock.suspend(fault.amount)
        yield fault.duration_s

    # ---- the network ----

    def _hosts(self, targets: list[str]) -> tuple[set[str], set[str]]:
        """Those of the targets, and the others."""
        inside = {self._cluster.host(target) for target in targets}
        return inside, set(self._cluster.nodes) - inside

    def _worsen(
        self, name: str, targets: list[str], weather: Weather, *, to: bool = True, back: bool = True
    ) -> None:
        inside, outside = self._hosts(targets)
        pairs = [(one, other) for one in sorted(inside) for other in sorted(outside)]
        links = [(other, one) for one, other in pairs] if to else []
        links += pairs if back else []
        self._cluster.network.worsen(name, links, weather)

    def _partition(self, name: str, fault: Fault, targets: list[str]) -> Iterator[float]:
        self._worsen(name, targets, LOST)
        yield from self._mend(name, fault)

    def _deaf(self, name: str, fault: Fault, targets: list[str]) -> Iterator[float]:
        self._worsen(name, targets, LOST, back=False)
        yield from self._mend(name, fault)

    def _mute(self, name: str, fault: Fault, targets: list[str]) -> Iterator[float]:
        self._worsen(name, targets, LOST, to=False)
        yield from self._mend(name, fault)

    def _loss(self, name: str, fault: Fault, targets: list[str]) -> Iterator[float]:
        self._worsen(name, targets, Weather(lost_permille=int(fault.amount)))
        yield from self._mend(name, fault)

    def _delay(self, name: str, fault: Fault, targets: list[str]) -> Iterator[float]:
        self._worsen(name, targets, Weather(delay_ms=fault.amount))
        yield from self._mend(name, fault)

    def _reorder(self, name: str, fault: Fault, targets: list[str]) -> Iterator[float]:
        self._worsen(name, targets, Weather(jitter_ms=fault.amount, doubled_permille=20))
        yield from self._mend(name, fault)

    def _slow(self, name: str, fault: Fault, targets: list[str]) -> Iterator[float]:
        for target in targets:
            self._cluster.network.slow(name, self._cluster.host(target), fault.amount)
        yield from self._mend(name, fault)

    def _mend(self, name: str, fault: Fault) -> Iterator[float]:
        yield fault.duration_s
        self._cluster.network.mend(name)

    # ---- memory ----

    def _full(self, name: str, fault: Fault, targets: list[str]) -> Iterator[float]:
        for target in targets:
            self._cluster.nodes[target].fill()
        yield fault.duration_s
        for target in targets:
            self._cluster.nodes[target].empty()
