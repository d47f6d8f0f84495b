"""Who is there: inference instances and store servers, what they report, and whether to believe it.

Pure: the time of this process comes in as an argument.  No clock of an instance is ever compared
with it: reports are ordered by numbers of their own, and age from their arrival.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from mooncake_store.errors import LimitError, RequestError, UnknownInstanceError

__all__ = ["Instance", "Instances", "LoadReport", "Role", "State"]

_NAME_BYTES_MAX = 256


class Role(Enum):
    """What an instance does."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"

    @property
    def prefills(self) -> bool:
        """Whether it computes prompts."""
        return self is not Role.DECODE

    @property
    def decodes(self) -> bool:
        """Whether it generates answers."""
        return self is not Role.PREFILL


class State(Enum):
    """Whether an instance takes requests."""

    OPEN = "open"
    DRAINING = "draining"
    """It leaves: what it has goes on, nothing new comes."""
    SILENT = "silent"
    """It has not been heard of for too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadReport:
    """What an instance says of itself with a heartbeat; None: it does not say.

    Attributes:
        queue_s: Time until all prompts that it has now are computed.
        queued_tokens: The same as tokens left to compute; looked at without `queue_s`.
        requests: Waiting and running prefills.
        batch: Requests that it decodes.
        context_tokens: Of them together.
        reserved_tokens: KV cache in use or promised, in tokens.
    """

    queue_s: float | None = None
    queued_tokens: int | None = None
    requests: int | None = None
    batch: int | None = None
    context_tokens: int | None = None
    reserved_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not 0 <= value < 1e15:  # NaN too
                raise RequestError(f"{name} of a load report is 0 or more, not {value}")


@dataclass(slots=True, kw_only=True)
class Instance:
    """An inference engine as the conductor knows it.

    Attributes:
        name: Unique, chosen by it.
        role: What it does.
        url: Where requests are sent; empty: only names are handed out.
        server: Store server of its host, by name: what that holds is near; empty: none.
        incarnation: Grows with each start of it; a lower one than known is outdated.
        slot: Its number while it is registered; slots are used again.
        heard_s: When it was last heard of.
        sequence: Of its newest report.
        report, report_s: The newest one and when it came.
    """

    name: str
    role: Role
    url: str
    server: str
    incarnation: int
    slot: int
    heard_s: float
    state: State = State.OPEN
    sequence: int = -1
    report: LoadReport | None = None
    report_s: float = 0.0
    stale_reports: int = 0


class Instances:
    """The instances that are registered, by name, with a slot each.

    Args:
        slots: How many may be registered at a time.
        timeout_s: After this without a heartbeat one is silent and gets nothing.
        forget_s: After this it is registered no more.
    """

    def __init__(self, *, slots: int, timeout_s: float, forget_s: float) -> None:
        self._by_name: dict[str, Instance] = {}
        self._free = list(range(slots - 1, -1, -1))
        self.slots = slots
        self.timeout_s = timeout_s
        self.forget_s = forget_s

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Instance]:
        return iter(tuple(self._by_name.values()))

    def find(self, name: str) -> Instance | None:
        """Return an instance, or None."""
        return self._by_name.get(name)

    def get(self, name: str) -> Instance:
        """Return an instance.

        Raises:
            UnknownInstanceError: There is none of that name.
        """
        found = self._by_name.get(name)
        if found is None:
            raise UnknownInstanceError(f"no instance {name!r} is registered", node=name)
        return found

    def register(
        self, name: str, role: Role, url: str, server: str, incarnation: int, now_s: float
    ) -> tuple[Instance, bool]:
        """Add an instance, or renew one that is there.

        Returns:
            The instance, and whether it is a new life of it: its cache and its queue are empty.

        Raises:
            RequestError: No name, or a registration of an earlier life.
            LimitError: Too many.
        """
        if not 0 < len(name.encode()) <= _NAME_BYTES_MAX:
            raise RequestError(f"an instance's name has 1 to {_NAME_BYTES_MAX} bytes")
        known = self._by_name.get(name)
        if known is None:
            if not self._free:
                raise LimitError(f"{self.slots} instances are registered already")
            known = self._by_name[name] = Instance(
                name=name, role=role, url=url, server=server, incarnation=incarnation,
                slot=self._free.pop(), heard_s=now_s,
            )  # fmt: skip
            return known, True
        if incarnation < known.incarnation:
            raise RequestError(
                f"{name!r} registers as incarnation {incarnation}, but {known.incarnation} is known"
            )
        is_new = incarnation > known.incarnation or role is not known.role
        known.role, known.url, known.server = role, url, server
        known.incarnation, known.heard_s, known.state = incarnation, now_s, State.OPEN
        if is_new:
            known.sequence, known.report = -1, None
        return known, is_new

    def heartbeat(
        self, name: str, sequence: int, report: LoadReport | None, now_s: float
    ) -> tuple[Instance, bool]:
        """Note that an instance lives.

        Args:
            name: Of the instance.
            sequence: Grows with each of its heartbeats; one that is not newer than the last says
                nothing: it was held up on its way.
            report: Its load.
            now_s: The time here.

        Returns:
            The instance, and whether the report counts.

        Raises:
            UnknownInstanceError: It is not registered (any more): it shall register again.
        """
        found = self.get(name)
        if sequence <= found.sequence:
            found.stale_reports += 1
            return found, False
        found.sequence, found.heard_s = sequence, now_s
        if found.state is State.SILENT:
            found.state = State.OPEN
        if report is not None:
            found.report, found.report_s = report, now_s
        return found, True

    def why_nobody(self, takes: Callable[[Role], bool], what: str) -> str:
        """Say why no instance is open for something.

        Args:
            takes: Whether a role takes it.
            what: How it is called: prompts or answers.
        """
        able = [one for one in self if takes(one.role)]
        if not len(self):
            return "no instance is registered"
        if not able:
            return f"of {len(self)} registered instances none has a role that takes {what}"
        states = Counter(one.state for one in able)
        told = {
            State.SILENT: f"silent for more than {self.timeout_s:g} s, or out of the proxy's reach",
            State.DRAINING: "draining",
        }
        parts = [f"{states[state]} {words}" for state, words in told.items() if states[state]]
        return f"of {len(able)} instances that take {what} none is open: {', '.join(parts)}"

    def drain(self, name: str) -> Instance:
        """Let an instance get nothing new.

        Raises:
            UnknownInstanceError: It is not registered.
        """
        found = self.get(name)
        found.state = State.DRAINING
        return found

    def remove(self, name: str) -> Instance:
        """Forget an instance; its slot may be given to another one.

        Raises:
            UnknownInstanceError: It is not registered.
        """
        found = self.get(name)
        del self._by_name[name]
        self._free.append(found.slot)
        return found

    def sweep(self, now_s: float) -> tuple[list[Instance], list[Instance]]:
        """Return who has become silent just now, and who is so for so long as to be forgotten."""
        silent, gone = [], []
        for one in self._by_name.values():
            age_s = now_s - one.heard_s
            if age_s > self.forget_s:
                gone.append(one)
            elif age_s > self.timeout_s and one.state is State.OPEN:
                one.state = State.SILENT
                silent.append(one)
        return silent, gone
