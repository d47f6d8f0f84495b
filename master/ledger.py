"""What a leader owes its coordinator: tombstones, kept and dropped again, members, numbers, drains.

C hands over what is to be kept and says when it may go; it never calls Python, so its event
descriptor wakes this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from mooncake_store.coordination import Coordinator, NodeNumber, Tombstone
from mooncake_store.errors import NotLeaderError, Status, StoreError
from mooncake_store.master.service import Drain, MasterService, Member, log

__all__ = ["Ledger"]

_FINISH_S = 2.0
_PAUSE_S = 0.2  # after a failure, before the coordinator is told again


class Ledger:
    """The coordinator's entries about this leader's objects and servers.

    Args:
        coordinator: Whose leader the master is.
        service: Its C part.
        on_lead_lost: Called with the reason when the coordinator obeys another leader.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        service: MasterService,
        on_lead_lost: Callable[[object], None],
    ) -> None:
        self._coordinator = coordinator
        self._service = service
        self._on_lead_lost = on_lead_lost
        self._kept: list[Tombstone] = []  # at the coordinator, in the order in which C counts them
        self._dropped = 0
        self._names: dict[bytes, str] = {}  # of nodes, as the coordinator has them
        self._task: asyncio.Task[None] | None = None

    def begin(
        self,
        tombstones: tuple[Tombstone, ...],
        numbers: tuple[NodeNumber, ...],
        members: Collection[bytes],
        drains: Mapping[bytes, int],
    ) -> None:
        """Tell C what the coordinator knows, before it listens.

        Raises:
            StoreError: There is no room for it.
        """
        self._service.add_tombstones(tombstones)
        self._kept.extend(tombstones)
        for number in numbers:
            self._service.add_number(number)
            self._names[number.node_id] = number.name
        for node_id in members:
            self._service.expect_member(node_id)
        for node_id, task in drains.items():
            if node_id in members:
                self._service.add_drain(Drain(node_id, task))

    def on_events(self) -> None:
        """C may have something to hand over."""
        if self._task is not None and not self._task.done():
            return  # it takes what has come meanwhile too
        if self._has_work():
            self._task = asyncio.create_task(self._work())

    async def finish(self) -> None:
        """Let what is under way end, unless the coordinator does not answer."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=_FINISH_S)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def _unkept(self) -> list[Member]:
        """Return whom the coordinator does not know, or under another name."""
        return [
            member
            for member in self._service.members()
            if not (member.is_kept or member.is_leaving)
            or self._names.get(member.node_id) != member.name
        ]

    def _leaving(self) -> list[Member]:
        return [member for member in self._service.members() if member.is_leaving]

    def _has_work(self) -> bool:
        return bool(
            self._service.has_tombstones()
            or self._service.has_drains()
            or self._service.tombstones_settled() > self._dropped
            or self._unkept()
            or self._leaving()
        )

    async def _work(self) -> None:
        while True:
            try:
                while tombstones := self._service.take_tombstones():
                    await self._write(tombstones)
                while drain := self._service.take_drain():
                    await self._keep_drain(drain)
                await self._drop()
                await self._forget_members()
                await self._keep_members()
                return
            except NotLeaderError as error:
                self._on_lead_lost(error)
                return
            except StoreError as error:
                log(logging.WARNING, "coordinator_not_told", reason=error)
                await asyncio.sleep(_PAUSE_S)

    async def _write(self, tombstones: tuple[Tombstone, ...]) -> None:
        status = Status.OK
        try:
            await self._coordinator.write_tombstones(tombstones)
            self._kept.extend(tombstones)
        except NotLeaderError as error:
            status = Status.NOT_LEADER
            self._on_lead_lost(error)
        except StoreError as error:
            status = Status.IO_ERROR
            log(logging.ERROR, "tombstones_not_kept", reason=error, count=len(tombstones))
        self._service.finish_tombstones(tombstones, status)

    async def _keep_drain(self, drain: Drain) -> None:
        status = Status.OK
        try:
            await self._coordinator.set_drain(drain.node_id, drain.task or None)
        except NotLeaderError as error:
            status = Status.NOT_LEADER
            self._on_lead_lost(error)
        except StoreError as error:
            status = Status.IO_ERROR
            log(logging.ERROR, "drain_not_kept", reason=error, node_id=drain.node_id.hex())
        self._service.finish_drain(drain, status)

    async def _drop(self) -> None:
        count = self._service.tombstones_settled() - self._dropped
        if count > 0:
            await self._coordinator.drop_tombstones(self._kept[:count])
            del self._kept[:count]
            self._dropped += count

    async def _keep_members(self) -> None:
        """Make servers and their numbers known to the leaders to come; then they are adopted."""
        if not (unkept := self._unkept()):
            return
        known = await self._coordinator.members()
        for member in unkept:
            await self._coordinator.keep_number(
                NodeNumber(member.server, member.node_id, member.name, member.struck)
            )
            self._names[member.node_id] = member.name
            if member.node_id not in known:  # it has no coordinator of its own
                await self._coordinator.raise_member(member.node_id, member.incarnation)
            self._service.number_kept(member.node_id)

    async def _forget_members(self) -> None:
        for member in self._leaving():
            number = NodeNumber(member.server, member.node_id, member.name, member.struck)
            is_done = False
            try:
                await self._coordinator.forget_member(number)
                is_done = True
            finally:
                self._service.forgotten(member.node_id, is_done=is_done)
