"""How a transfer went: what `TransferEngine.explain` tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mooncake_store.errors import Status
from mooncake_store.transfer_engine.boundary import sentence
from mooncake_store.transfer_engine.request import Opcode

__all__ = ["Explanation", "RailUse", "RailView", "rail_view_of"]


@dataclass(frozen=True, slots=True)
class RailView:
    """A rail to a peer, in one direction.

    Attributes:
        local: The address here; empty: as the kernel routes.
        remote: The peer's address and port.
        transport: `tcp`, `rdma`.
        direction: `read` or `write`, as seen from here.
        tier: 0 preferred, 1 secondary, 2 other.
        is_up: It has a connection that works.
        resets: How often it was left.
        note: Why it was left last.
        bytes_in_flight: On it now.
        bandwidth_bytes_per_s: Measured.
    """

    local: str
    remote: str
    transport: str
    direction: str
    tier: int
    is_up: bool
    resets: int
    note: str
    bytes_in_flight: int
    bandwidth_bytes_per_s: int


@dataclass(frozen=True, slots=True)
class RailUse:
    """A rail, and what went over it of the requests that were submitted together for one peer."""

    rail: RailView
    was_used: bool  # by the request that was asked for
    group_bytes: int


@dataclass(frozen=True, slots=True)
class Explanation:
    """One request of a batch.

    Attributes:
        state: Its state's name: `COMPLETED`, `PENDING`, ...
        status: Why it failed; OK when it completed.
        bytes: Arrived.
        waiting_s: From submission until something of it was given to a path; None: not yet.
        moving_s: From then to its end, or until now; None: not begun.
        retries: Parts of it that were moved again.
        rails: Those to its peer in its direction; empty: it went another way (shared memory, a
            single connection).
    """

    state: str
    status: Status
    bytes: int
    waiting_s: float | None
    moving_s: float | None
    retries: int
    rails: tuple[RailUse, ...]

    def __str__(self) -> str:
        """Say it in a few lines, for people."""
        lines = [f"{self.state}: {self.bytes} bytes, {self.retries} parts moved again"]
        for name, seconds in (("waited", self.waiting_s), ("moved", self.moving_s)):
            if seconds is not None:
                lines.append(f"  {name} {seconds * 1e3:.3f} ms")
        for use in self.rails:
            rail = use.rail
            ends = f"{rail.local} > {rail.remote}" if rail.local else rail.remote
            word = "used" if use.was_used else "not used"
            state = "" if rail.is_up else f", down: {rail.note or 'not connected yet'}"
            lines.append(f"  {rail.transport} {ends}: {word}, {use.group_bytes} bytes{state}")
        return "\n".join(lines)


def rail_view_of(view: Any) -> RailView:
    return RailView(
        sentence(view.local),
        sentence(view.remote),
        sentence(view.transport),
        Opcode(view.opcode).name.lower(),
        int(view.tier),
        bool(view.is_up),
        int(view.resets),
        sentence(view.note),
        int(view.bytes_in_flight),
        int(view.bandwidth_bytes_per_s),
    )
