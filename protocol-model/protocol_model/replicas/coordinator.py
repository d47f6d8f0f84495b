"""The coordinator: the lease, elections, tombstones; and what happens while it is out of reach."""

from __future__ import annotations

from protocol_model.replicas.configuration import Configuration
from protocol_model.replicas.state import (
    JOINING,
    NEVER,
    SERVING,
    State,
    Steps,
    newest_leader,
    no_leader,
)

__all__ = ["coordinator_steps"]


def coordinator_steps(state: State, config: Configuration) -> Steps:
    coordinator = state.coordinator
    if not coordinator.is_up:
        back = coordinator._replace(is_up=True)
        yield "the coordinator is back", state._replace(coordinator=back), None
    elif state.budget.outages:
        down = coordinator._replace(is_up=False)
        after = state.spending("outages")._replace(coordinator=down)
        yield "the coordinator is out of reach", after, None
    if coordinator.holder and (not coordinator.is_up or state.budget.elections):
        # It could not be renewed, or its leader has stopped: nobody has told that leader.
        ended = coordinator._replace(holder=0)
        label = f"the lease of leader {coordinator.holder} ends"
        yield label, state._replace(coordinator=ended, pinned=0), None
    yield from _elect(state, config)
    for i in range(len(state.leaders)):
        yield from _write_tombstones(state, config, i)
        yield from _drop_tombstone(state, config, i)


def _elect(state: State, config: Configuration) -> Steps:
    coordinator, stone = state.coordinator, state.coordinator.stone
    if not state.budget.elections or not coordinator.is_up:
        return
    if "stones_read_last" not in config.rules:
        if coordinator.stone_seen is None:
            read = coordinator._replace(stone_seen=stone)
            label = "a master that wants to lead reads the tombstones"
            yield label, state._replace(coordinator=read), None
            return
        stone = coordinator.stone_seen
    if coordinator.holder:
        return
    epoch = coordinator.epoch + 1
    fresh = no_leader(config)._replace(status=JOINING, epoch=epoch, stone=stone)
    slot = 1 if newest_leader(state) is state.leaders[0] else 0
    elected = coordinator._replace(epoch=epoch, holder=epoch, stone_seen=None)
    after = state.spending("elections").with_leader(slot, fresh)
    yield f"leader {epoch} is elected", after._replace(coordinator=elected), None


def _write_tombstones(state: State, config: Configuration, i: int) -> Steps:
    leader, coordinator = state.leaders[i], state.coordinator
    if not coordinator.is_up or coordinator.holder != leader.epoch or leader.status != SERVING:
        return
    for wait in leader.waits:
        if wait.is_written:
            continue
        stone = max(coordinator.stone, wait.stone)
        waits = leader.waits - {wait} | {wait._replace(is_written=True)}
        after = state.with_leader(i, leader._replace(waits=waits, stone=stone))
        yield (
            f"leader {leader.epoch} has written tombstone {wait.stone}",
            after._replace(coordinator=coordinator._replace(stone=stone)),
            None,
        )


def _drop_tombstone(state: State, config: Configuration, i: int) -> Steps:
    leader, coordinator, rules = state.leaders[i], state.coordinator, config.rules
    if not coordinator.is_up or leader.status != SERVING or leader.stone == NEVER:
        return
    if "drop_guarded" in rules and coordinator.holder != leader.epoch:
        return
    if coordinator.stone == NEVER or ("drop_adopted" in rules and leader.is_short_of_members):
        return
    is_struck_there = any(
        free.version <= leader.stone and not free.is_cleared for free in leader.frees
    )
    if is_struck_there and "drop_cleared" in rules:
        return
    after = state.with_leader(i, leader._replace(stone=NEVER))
    yield (
        f"leader {leader.epoch} drops the tombstone",
        after._replace(coordinator=coordinator._replace(stone=NEVER)),
        None,
    )
