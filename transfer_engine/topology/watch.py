"""Notices when interfaces come, go, or change, and looks at the machine again.

The kernel's messages (rtnetlink) say that something may have changed; what has, a second look
tells.  They come in bursts (a cable that is pulled sends a dozen), so a look waits until none has
come for a moment.  RDMA ports and GIDs change without a message, and messages can be lost: now and
then a look is taken anyway.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType

from mooncake_store.transfer_engine.topology.changes import Change, changes
from mooncake_store.transfer_engine.topology.matrix import Topology
from mooncake_store.transfer_engine.topology.netlink import is_change, messages, open_subscription
from mooncake_store.transfer_engine.topology.sysfs import discover

__all__ = ["Debounce", "TopologyChange", "TopologyWatch"]

_QUIET_S = 0.1  # no message for so long ends a burst
_DELAY_S_MAX = 1.0  # a burst without end is looked at after this
_RESCAN_S = 30.0
_RECEIVE_BYTES = 1 << 16
_RECEIVES_MAX = 1024  # of one wake-up: whoever floods is looked at with the next


@dataclass(slots=True)
class Debounce:
    """Decides when to look again.  Pure: whoever asks brings the time.

    Attributes:
        rescan_at_s: The next look that needs no reason.
        quiet_s: No message for so long ends a burst.
        delay_s_max: The first message of a burst waits at most this.
        rescan_s: Between two looks without reason.
    """

    rescan_at_s: float
    quiet_s: float = _QUIET_S
    delay_s_max: float = _DELAY_S_MAX
    rescan_s: float = _RESCAN_S
    _first_s: float | None = None
    _last_s: float = 0.0

    def note(self, now_s: float) -> None:
        """A message has come."""
        if self._first_s is None:
            self._first_s = now_s
        self._last_s = now_s

    def due_at_s(self) -> float:
        """Return when to look next, as things stand."""
        if self._first_s is None:
            return self.rescan_at_s
        settled = min(self._last_s + self.quiet_s, self._first_s + self.delay_s_max)
        return min(settled, self.rescan_at_s)

    def looked(self, now_s: float) -> None:
        """A look was taken that began at that time: what came before is dealt with."""
        self._first_s = None
        self.rescan_at_s = now_s + self.rescan_s


@dataclass(frozen=True, slots=True)
class TopologyChange:
    """A new topology, and in what it differs from the last one."""

    topology: Topology
    changes: tuple[Change, ...]


class TopologyWatch:
    """Waits for changes of this machine's interfaces.  One thread waits; any may call `wake`.

    Args:
        look: How to see the machine; the default reads /sys.  With an override:
            `lambda: override.apply(discover())`.
        rescan_s: How long RDMA ports may have changed unnoticed.

    Raises:
        OSError: No netlink socket can be opened.
    """

    def __init__(
        self, look: Callable[[], Topology] = discover, *, rescan_s: float = _RESCAN_S
    ) -> None:
        self._look = look
        self._listener = open_subscription()
        try:
            # After subscribing: what changes from here on is either seen or announced.
            self.topology = look()
            self._wake_reader, self._wake_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        except BaseException:
            self._listener.close()
            raise
        self._added: list[int] = []
        self._poller = select.poll()
        self._poller.register(self._listener, select.POLLIN)
        self._poller.register(self._wake_reader, select.POLLIN)
        self._debounce = Debounce(time.monotonic() + rescan_s, rescan_s=rescan_s)

    def add(self, descriptor: int) -> None:
        """Let an eventfd of the caller's end `wait` too, which then returns None."""
        self._poller.register(descriptor, select.POLLIN)
        self._added.append(descriptor)

    def wait(self, timeout_s: float) -> TopologyChange | None:
        """Wait for a change, at most `timeout_s`; None when none has come, or it was woken."""
        deadline = time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            if now >= self._debounce.due_at_s():
                found = self._look_again(now)
                if found is not None:
                    return found
            left_s = min(deadline, self._debounce.due_at_s()) - time.monotonic()
            for descriptor, _ in self._poller.poll(max(0.0, left_s) * 1e3):
                if descriptor == self._wake_reader:
                    os.read(self._wake_reader, 4096)
                    return None
                if descriptor in self._added:
                    with suppress(BlockingIOError):
                        os.read(descriptor, 8)
                    return None
                self._hear()
            if time.monotonic() >= deadline:
                return None

    def _hear(self) -> None:
        for _ in range(_RECEIVES_MAX):
            try:
                data = self._listener.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self._debounce.note(time.monotonic())  # some were lost: anything may have changed
                return
            if any(is_change(kind) for kind, _ in messages(data)):
                self._debounce.note(time.monotonic())

    def _look_again(self, now_s: float) -> TopologyChange | None:
        self._debounce.looked(now_s)
        old, self.topology = self.topology, self._look()
        found = changes(old, self.topology)
        return TopologyChange(self.topology, found) if found else None

    def wake(self) -> None:
        """End the `wait` that runs, or the next one."""
        with suppress(BlockingIOError):  # full: it will wake up anyway
            os.write(self._wake_writer, b"w")

    def close(self) -> None:
        """Stop listening; no `wait` may run."""
        self._listener.close()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def __enter__(self) -> TopologyWatch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
