"""Following a stream of events without missing one: epochs, gaps, a snapshot and the tail after it.

Pure: what arrives goes in, what to do comes out.  Whoever owns the connection asks for a snapshot
when `needs_snapshot` says so, and resumes the stream behind the snapshot's sequence number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

__all__ = ["Feed", "FeedResult"]


class FeedResult(Enum):
    """What became of events that were offered."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    """All of them were known: sent again, or part of the snapshot."""
    OUTDATED = "outdated"
    """Of an earlier epoch: a publisher that was replaced."""
    REFUSED = "refused"
    """Some are missing before them, or the publisher is new: a snapshot is needed first."""


@dataclass(slots=True)
class Feed:
    """Where one publisher's stream stands.

    A publisher numbers its events from 1 within an epoch and begins a new epoch whenever it cannot
    say any more what it has sent.  Until a snapshot of the present epoch is there, nothing is
    applied: what is missing might be a removal, and the index would promise blocks that are gone.
    What was applied before stays in the index meanwhile, as the best guess there is.

    Attributes:
        source: The publisher's name, for messages and metrics.
        epoch: The newest that was seen; -1: none yet.
        sequence: The last event that was applied.
        needs_snapshot: Whether the state is not known: at first, after a gap, in a new epoch.
        gaps: How many gaps there were.
        missed: How many events they hid, as far as their numbers tell.
    """

    source: str
    epoch: int = -1
    sequence: int = 0
    needs_snapshot: bool = True
    gaps: int = 0
    missed: int = 0

    def offer(self, epoch: int, first: int, count: int, apply: Callable[[int], None]) -> FeedResult:
        """Take a batch of events that follow each other.

        Args:
            epoch: Of the publisher.
            first: Sequence number of the first event.
            count: How many there are.
            apply: Called with how many leading events to skip, once, if there is something new.
        """
        if epoch < self.epoch:
            return FeedResult.OUTDATED
        if epoch > self.epoch:
            self.epoch, self.sequence = epoch, 0
            self.needs_snapshot = True
        if self.needs_snapshot:
            return FeedResult.REFUSED
        last = first + count - 1
        if last <= self.sequence:
            return FeedResult.DUPLICATE
        if first > self.sequence + 1:
            self.gaps += 1
            self.missed += first - self.sequence - 1
            self.needs_snapshot = True
            return FeedResult.REFUSED
        apply(self.sequence + 1 - first)
        self.sequence = last
        return FeedResult.APPLIED

    def load_snapshot(
        self,
        epoch: int,
        sequence: int,
        clear: Callable[[], None],
        parts: Iterable[Callable[[], None]],
    ) -> FeedResult:
        """Replace what is known of this publisher by a snapshot.

        Args:
            epoch: Of the publisher when it was taken.
            sequence: The last event that is in it; the stream goes on behind it.
            clear: Forgets all that this publisher's instances hold.
            parts: Each stores some of the blocks.
        """
        if epoch < self.epoch or (epoch == self.epoch and sequence < self.sequence):
            return FeedResult.OUTDATED
        self.needs_snapshot = True  # also if a part raises
        clear()
        for store in parts:
            store()
        self.epoch, self.sequence, self.needs_snapshot = epoch, sequence, False
        return FeedResult.APPLIED
