"""Checks a history against what the store promises (docs/consistency.md).

Objects are immutable and each value is put once, so no search through orders of operations is
needed: per key the operations are sorted by their times, what can be said of all that began or
ended before a moment is accumulated along them (`_Steps`), and each claim is compared with that
once. Beside the sorting, each operation is looked at a bounded number of times.

Where the history leaves room, the store gets the benefit of it: an operation takes effect at any
moment between its times, one with an unknown outcome at any later one too, or never. So each
finding is a broken promise; that all broken promises are found cannot be had in such a time.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from .history import STORING, History, HistoryError, Op, Operation, Outcome

NS_PER_S = 1_000_000_000
_NEVER = math.inf


class Rule(Enum):
    """The promises."""

    FOREIGN_BYTES = "a read returns bytes that were put under its key"
    TORN_VALUE = "a read returns the bytes of one put, whole"
    STALE_READ = "what was removed or replaced is not there for what begins later"
    VANISHED_PUT = "what was put is there until something takes it away"
    DOUBLE_COMMIT = "a put changes nothing where something is stored already"
    BROKEN_PIN = "what a session has pinned is not evicted"
    TWO_LEADERS = "a master answers nobody once a later one has"
    LATE_ANSWER = "a call returns within its deadline"


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is not promised at once while the cluster is being hurt."""

    cut_off_s: float = 0.0
    """After a remove or upsert that ran during a fault which cuts servers off, the old value may be
    read there for so long: clients keep locations for 30 s, and a read has its deadline."""
    settle_s: float = 0.0
    """For so long after the end of a fault that hides objects, they may still be missed."""
    unknown_s: float = math.inf
    """An operation of unknown outcome takes effect within this after it began, or never. Without it
    a remove whose client was killed explains all that is missed under its key from then on."""
    deadline_s: float = math.inf
    """Every call returns within this, unless a fault stopped its client meanwhile."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken promise."""

    rule: Rule
    key: str
    lines: tuple[int, ...]
    """The operations that show it; the one that cannot be right comes first."""
    why: str

    def __str__(self) -> str:
        return (
            f"{self.rule.name} of {self.key!r}, lines {', '.join(map(str, self.lines))}: {self.why}"
        )


class _Steps:
    """Items in the order of a time: which one is best among those before a moment."""

    def __init__(
        self,
        items: Iterable[Operation],
        at: Callable[[Operation], float],
        rank: Callable[[Operation], float],
    ) -> None:
        ordered = sorted(items, key=at)
        self._times = [at(item) for item in ordered]
        self._best: list[tuple[float, Operation]] = []
        for item in ordered:
            found = (rank(item), item)
            if self._best and self._best[-1][0] >= found[0]:
                found = self._best[-1]
            self._best.append(found)

    def before(self, moment: float) -> tuple[float, Operation] | None:
        """Return the highest rank, and whose it is, among the items of times below the moment."""
        index = bisect_left(self._times, moment)
        return self._best[index - 1] if index else None


class _Windows:
    """Stretches of time, merged."""

    def __init__(self, windows: Iterable[tuple[float, float]]) -> None:
        self._since: list[float] = []
        self._until: list[float] = []
        for since, until in sorted(windows):
            if self._until and since <= self._until[-1]:
                self._until[-1] = max(self._until[-1], until)
            else:
                self._since.append(since)
                self._until.append(until)

    def overlap(self, since: float, until: float) -> bool:
        index = bisect_right(self._since, until)
        return index > 0 and self._until[index - 1] >= since

    def next(self, moment: float) -> float:
        """When one goes on or begins, from that moment on."""
        index = bisect_right(self._since, moment)
        if index > 0 and self._until[index - 1] >= moment:
            return moment
        return self._since[index] if index < len(self._since) else _NEVER


class _Cluster:
    """What befell all keys."""

    def __init__(self, history: History, bounds: Bounds) -> None:
        self.cut_off_ns = bounds.cut_off_s * NS_PER_S
        self.unknown_ns = bounds.unknown_s * NS_PER_S
        settle_ns = bounds.settle_s * NS_PER_S
        self.cut_off = _Windows(
            (fault.since_ns, _NEVER if fault.until_ns is None else fault.until_ns)
            for fault in history.faults
            if fault.cuts_off
        )
        self.hidden = _Windows(
            (fault.since_ns, _NEVER if fault.until_ns is None else fault.until_ns + settle_ns)
            for fault in history.faults
            if fault.hides
        )
        self.sessions_end = _Windows(
            (fault.since_ns, _NEVER if fault.until_ns is None else fault.until_ns + settle_ns)
            for fault in history.faults
            if fault.ends_sessions
        )
        self.clocks_move = _Windows(
            (fault.since_ns, _NEVER if fault.until_ns is None else fault.until_ns)
            for fault in history.faults
            if fault.moves_clocks
        )
        self.evicting = _Windows(self._evicting(history))
        self._losses = sorted(history.losses, key=lambda loss: loss.since_ns)

    @staticmethod
    def _evicting(history: History) -> Iterable[tuple[float, float]]:
        since: float | None = None
        for event in sorted(history.evictions, key=lambda event: event.at_ns):
            if event.is_allowed and since is None:
                since = event.at_ns
            elif not event.is_allowed and since is not None:
                yield since, event.at_ns
                since = None
        if since is not None:
            yield since, _NEVER

    def end_ns(self, operation: Operation) -> float:
        """When it has taken effect at the latest, if it does."""
        if operation.outcome is Outcome.UNKNOWN:
            return operation.invoked_ns + self.unknown_ns
        return _answered(operation)

    def leaves_ns(self, write: Operation) -> float:
        """When what it stored may have left by itself: its TTL is over, or its nodes are lost."""
        expires_ns = _NEVER
        if write.ttl_s is not None:
            expires_ns = write.invoked_ns + write.ttl_s * NS_PER_S
            if self.clocks_move.overlap(write.invoked_ns, expires_ns):
                expires_ns = write.invoked_ns  # the wall clock says when; any of several hosts'
        gone: set[str] = set()
        for loss in self._losses:
            if loss.until_ns >= write.invoked_ns:
                gone.add(loss.node)
                if gone.issuperset(write.nodes) if write.nodes else len(gone) >= write.replicas:
                    return min(expires_ns, loss.since_ns)
        return expires_ns

    def barrier_ns(self, change: Operation) -> float:
        """From when on nothing that begins may see what the remove or upsert took away."""
        ended = _answered(change)
        if self.cut_off.overlap(change.invoked_ns, ended):
            return ended + self.cut_off_ns
        return ended


@dataclass(slots=True)
class _Key:
    """What was done with one key, by what it was."""

    name: str
    writes: list[Operation] = field(default_factory=list)
    """puts and upserts that may have stored something."""
    idle_writes: dict[int, Operation] = field(default_factory=dict)
    """Those that were told that they changed nothing, by token."""
    removes: list[Operation] = field(default_factory=list)
    hits: list[Operation] = field(default_factory=list)
    present: list[Operation] = field(default_factory=list)
    """What says that something was stored, not what."""
    misses: list[Operation] = field(default_factory=list)
    pins: list[Operation] = field(default_factory=list)
    unpins: list[Operation] = field(default_factory=list)

    def add(self, operation: Operation) -> None:
        outcome = operation.outcome
        if operation.op in STORING:
            if operation.token is None:
                raise HistoryError(f"line {operation.line}: a write without a token")
            if outcome in (Outcome.OK, Outcome.UNKNOWN):
                self.writes.append(operation)
            else:
                self.idle_writes[operation.token] = operation
                if outcome is Outcome.FALSE:
                    self.present.append(operation)
        elif operation.op is Op.REMOVE:
            # Also one that found nothing counts: a holder that is away is told to forget the key.
            if outcome is not Outcome.ERROR:
                self.removes.append(operation)
        elif operation.op is Op.UNPIN:
            self.unpins.append(operation)
        elif outcome is Outcome.MISS:
            self.misses.append(operation)
        elif operation.op is Op.PIN and outcome is Outcome.OK:
            self.pins.append(operation)
            self.present.append(operation)
        elif outcome is Outcome.OK:
            (self.hits if operation.op is Op.GET else self.present).append(operation)


class _KeyCheck:
    """The rules for one key."""

    def __init__(self, key: _Key, owners: dict[int, Operation], cluster: _Cluster) -> None:
        self._key = key
        self._owners = owners
        self._cluster = cluster
        self._own = {write.token: write for write in key.writes}
        self._findings: list[Finding] = []

    def run(self) -> list[Finding]:
        seen = self._check_bytes()
        self._check_stale(seen)
        self._check_vanished()
        self._check_pins()
        return self._findings

    def _find(self, rule: Rule, operations: Iterable[Operation], why: str) -> None:
        lines = tuple(operation.line for operation in operations)
        self._findings.append(Finding(rule, self._key.name, lines, why))

    # What was read at all.

    def _check_bytes(self) -> list[tuple[Operation, Operation]]:
        """Check that reads returned what was put, and return each with its write."""
        seen = []
        for hit in self._key.hits:
            write = self._own.get(hit.token)
            if write is None:
                self._find_foreign(hit)
            elif not hit.is_whole:
                self._find(
                    Rule.TORN_VALUE,
                    (hit, write),
                    f"the bytes begin as value {hit.token} and are not those that were put",
                )
            elif _answered(hit) < write.invoked_ns:
                self._find(
                    Rule.FOREIGN_BYTES,
                    (hit, write),
                    f"value {hit.token} was read before its put had begun",
                )
            else:
                seen.append((hit, write))
        return seen

    def _find_foreign(self, hit: Operation) -> None:
        if hit.token in self._key.idle_writes:
            write = self._key.idle_writes[hit.token]
            why = f"value {hit.token} was read, though its {write.op.value} changed nothing"
            self._find(Rule.FOREIGN_BYTES, (hit, write), f"{why} ({write.outcome.value})")
        elif hit.token in self._owners:
            other = self._owners[hit.token]
            why = f"value {hit.token} was put under {other.key!r}, never under this key"
            self._find(Rule.FOREIGN_BYTES, (hit, other), why)
        else:
            self._find(Rule.FOREIGN_BYTES, (hit,), "the bytes are of no put of this history")

    # What was read too late.

    def _check_stale(self, seen: list[tuple[Operation, Operation]]) -> None:
        settled = self._settled(seen)
        barriers = [
            operation
            for operation in (*self._key.writes, *self._key.removes)
            if operation.op is not Op.PUT and operation.outcome is not Outcome.UNKNOWN
        ]
        # Times are negated: among the barriers that began after a moment, the first to be over.
        after = _Steps(
            barriers,
            at=lambda barrier: -barrier.invoked_ns,
            rank=lambda barrier: -self._cluster.barrier_ns(barrier),
        )
        gone: dict[int, tuple[float, Operation]] = {}
        for write in self._key.writes:
            found = after.before(-settled[write.line])
            if found is not None:
                gone[write.line] = (-found[0], found[1])

        for hit, write in seen:
            gone_ns, barrier = gone.get(write.line, (_NEVER, write))
            if hit.invoked_ns > gone_ns:
                self._find(
                    Rule.STALE_READ,
                    (hit, write, barrier),
                    f"value {hit.token} was read by a get that began "
                    f"{_seconds(hit.invoked_ns - _answered(barrier))} after the {barrier.op.value} "
                    "that took it away was answered",
                )
        self._check_present(gone)

    def _settled(self, seen: list[tuple[Operation, Operation]]) -> dict[int, float]:
        """When each write, by its line, had taken effect at the latest: who is read is stored."""
        settled = {write.line: self._cluster.end_ns(write) for write in self._key.writes}
        for hit, write in seen:
            settled[write.line] = min(settled[write.line], _answered(hit))
        return settled

    def _check_present(self, gone: dict[int, tuple[float, Operation]]) -> None:
        """Check that something which was said to be there can have been."""
        lasting = _Steps(
            self._key.writes,
            at=lambda write: write.invoked_ns,
            rank=lambda write: gone[write.line][0] if write.line in gone else _NEVER,
        )
        for claim in self._key.present:
            said = f"{claim.op.value} said that something was there"
            found = lasting.before(_answered(claim) + 1)
            if found is None:
                self._find(Rule.FOREIGN_BYTES, (claim,), f"{said}, and nothing had been put")
            elif claim.invoked_ns > found[0]:
                write = found[1]
                barrier = gone[write.line][1]
                self._find(
                    Rule.STALE_READ,
                    (claim, write, barrier),
                    f"{said}, and all that had been put was taken away: "
                    f"the last of it by the {barrier.op.value}",
                )

    # What was not there.

    def _check_vanished(self) -> None:
        stored = [write for write in self._key.writes if write.outcome is Outcome.OK]
        latest = _Steps(stored, at=_answered, rank=lambda write: write.invoked_ns)
        excuses = _Excuses(self._key, self._cluster, stored)
        puts = [write for write in stored if write.op is Op.PUT]
        for claim in (*self._key.misses, *puts):
            found = latest.before(claim.invoked_ns)
            if found is None:
                continue
            write = found[1]
            if excuses.absence(write, claim.invoked_ns, _answered(claim)):
                continue
            if claim.op is Op.PUT:
                self._find_double(write, claim)
            elif not excuses.replacement(claim):
                later = _seconds(claim.invoked_ns - _answered(write))
                self._find(
                    Rule.VANISHED_PUT,
                    (claim, write),
                    f"{claim.op.value} missed value {write.token} {later} after it was stored, "
                    "and nothing had taken it away",
                )

        # Of two puts that ran at once one came first, and the other one found its object.
        puts.sort(key=lambda put: put.invoked_ns)
        for first, second in pairwise(puts):
            until = max(_answered(first), _answered(second))
            if second.invoked_ns <= _answered(first) and not excuses.absence(
                first, first.invoked_ns, until
            ):
                self._find_double(first, second)

    # What was pinned, and left all the same.

    def _check_pins(self) -> None:
        """Check that nobody missed what somebody's pin protected throughout.

        It is looked at only where no fault may have ended a session, nothing of the key has a TTL
        or could go with its nodes, and no remove or upsert ran: what is left is eviction.
        """
        if not self._key.pins or not self._key.misses:
            return
        changes = [*self._key.removes, *(w for w in self._key.writes if w.op is Op.UPSERT)]
        ends = _Steps(changes, at=lambda one: one.invoked_ns, rank=self._cluster.end_ns)
        perishable = min((self._cluster.leaves_ns(w) for w in self._key.writes), default=_NEVER)
        unpins: dict[str, list[int]] = {}
        for unpin in self._key.unpins:
            unpins.setdefault(unpin.client, []).append(unpin.invoked_ns)
        times = {client: sorted(at) for client, at in unpins.items()}
        # Pins of one client nest, and end with its first unpin here: the store gets the benefit.
        lasting = _Steps(
            self._key.pins,
            at=_answered,
            rank=lambda pin: min(
                _next_after(times.get(pin.client, []), pin.invoked_ns),
                self._cluster.sessions_end.next(pin.invoked_ns),
            ),
        )
        for miss in self._key.misses:
            found = lasting.before(miss.invoked_ns)
            if found is None or found[0] <= _answered(miss) or perishable <= _answered(miss):
                continue
            pin = found[1]
            changed = ends.before(_answered(miss) + 1)
            if changed is not None and changed[0] >= pin.invoked_ns:
                continue
            if self._cluster.hidden.overlap(pin.invoked_ns, _answered(miss)):
                continue
            self._find(
                Rule.BROKEN_PIN,
                (miss, pin),
                f"{miss.op.value} missed what {pin.client} had pinned "
                f"{_seconds(miss.invoked_ns - _answered(pin))} before",
            )

    def _find_double(self, first: Operation, second: Operation) -> None:
        self._find(
            Rule.DOUBLE_COMMIT,
            (second, first),
            f"put of value {second.token} was acknowledged, though value {first.token} was stored "
            "and nothing had taken it away",
        )


class _Excuses:
    """What explains that a stored object is not found."""

    def __init__(self, key: _Key, cluster: _Cluster, stored: list[Operation]) -> None:
        self._cluster = cluster
        self._removes = _Steps(
            key.removes, at=lambda remove: remove.invoked_ns, rank=cluster.end_ns
        )
        upserts = [write for write in key.writes if write.op is Op.UPSERT]
        self._upserts = _Steps(upserts, at=lambda upsert: upsert.invoked_ns, rank=cluster.end_ns)
        self._perishable = _Steps(
            (upsert for upsert in upserts if cluster.leaves_ns(upsert) < _NEVER),
            at=lambda upsert: upsert.invoked_ns,
            rank=cluster.end_ns,
        )
        self._leaves_ns = _leaves_ns(stored, cluster)

    def absence(self, write: Operation, since: float, until: float) -> bool:
        """Whether what was written may be gone, or out of sight, within a time that follows it."""
        removed = self._removes.before(until + 1)
        if removed is not None and removed[0] >= write.invoked_ns:
            return True
        # An upsert still running may have replaced it by something that has left again.
        replaced = self._perishable.before(until + 1)
        if replaced is not None and replaced[0] >= since:
            return True
        return (
            self._cluster.hidden.overlap(since, until)
            or self._cluster.evicting.overlap(write.invoked_ns, until)
            or self._leaves_ns[write.line] <= until
        )

    def replacement(self, miss: Operation) -> bool:
        """Whether an upsert ran meanwhile: a reader that is overtaken twice gives up."""
        replaced = self._upserts.before(_answered(miss) + 1)
        return replaced is not None and replaced[0] >= miss.invoked_ns


def _leaves_ns(stored: list[Operation], cluster: _Cluster) -> dict[int, float]:
    """For each write, by its line, when it or one that ran at once may have left by itself.

    Any of those that ran at once may be the one that came last.
    """
    groups: list[list[Operation]] = []
    until: float = -_NEVER
    for write in sorted(stored, key=lambda write: write.invoked_ns):
        if write.invoked_ns > until:
            groups.append([])
        groups[-1].append(write)
        until = max(until, _answered(write))
    leaves: dict[int, float] = {}
    for group in groups:
        first = min(map(cluster.leaves_ns, group))
        leaves.update((write.line, first) for write in group)
    return leaves


def _next_after(times: list[int], moment: int) -> float:
    index = bisect_right(times, moment)
    return times[index] if index < len(times) else _NEVER


def _check_epochs(operations: Iterable[Operation]) -> Iterable[Finding]:
    """Check that whoever was answered by a master was not, later, answered by an earlier one."""
    answered = [
        operation
        for operation in operations
        if operation.epoch is not None and operation.outcome in (Outcome.OK, Outcome.FALSE)
    ]
    latest = _Steps(answered, at=_answered, rank=lambda operation: operation.epoch or 0)
    for operation in answered:
        found = latest.before(operation.invoked_ns)
        if found is not None and found[0] > (operation.epoch or 0):
            later = found[1]
            yield Finding(
                Rule.TWO_LEADERS,
                operation.key,
                (operation.line, later.line),
                f"{operation.op.value} was answered in epoch {operation.epoch}, and began "
                f"{_seconds(operation.invoked_ns - _answered(later))} after {later.op.value} of "
                f"{later.key!r} was answered in epoch {later.epoch}",
            )


def _check_deadlines(history: History, bounds: Bounds) -> Iterable[Finding]:
    """Check that every call returned in time, unless its client itself was stopped."""
    stopped = _Windows(
        (fault.since_ns, _NEVER if fault.until_ns is None else fault.until_ns)
        for fault in history.faults
        if fault.stops_clients
    )
    for operation in history.operations:
        if operation.answered_ns is None:
            continue
        took_ns = operation.answered_ns - operation.invoked_ns
        if took_ns > bounds.deadline_s * NS_PER_S and not stopped.overlap(
            operation.invoked_ns, operation.answered_ns
        ):
            yield Finding(
                Rule.LATE_ANSWER,
                operation.key,
                (operation.line,),
                f"{operation.op.value} took {_seconds(took_ns)}, its deadline is long over",
            )


def _answered(operation: Operation) -> int:
    if operation.answered_ns is None:
        raise HistoryError(f"line {operation.line}: {operation.outcome.value} without an answer")
    return operation.answered_ns


def _seconds(duration_ns: float) -> str:
    return f"{duration_ns / NS_PER_S:.6f} s"


def check(history: History, bounds: Bounds | None = None) -> list[Finding]:
    """Return each broken promise that the history shows, in the order of its lines.

    Raises:
        HistoryError: Two writes have the same token, or one that recorders do not write.
    """
    cluster = _Cluster(history, bounds or Bounds())
    owners: dict[int, Operation] = {}
    keys: dict[str, _Key] = {}
    for operation in history.operations:
        if operation.op in STORING and operation.token is not None:
            other = owners.setdefault(operation.token, operation)
            if other is not operation:
                raise HistoryError(
                    f"lines {other.line} and {operation.line}: both write value {operation.token}"
                )
        if operation.key not in keys:
            keys[operation.key] = _Key(operation.key)
        keys[operation.key].add(operation)
    findings = [
        finding for key in keys.values() for finding in _KeyCheck(key, owners, cluster).run()
    ]
    findings += _check_epochs(history.operations)
    findings += _check_deadlines(history, bounds or Bounds())
    return sorted(findings, key=lambda finding: finding.lines)
