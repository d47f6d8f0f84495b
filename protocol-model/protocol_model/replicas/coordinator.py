"""The coordinator: the lease, elections, tombstones; and what happens while it is out of reach."""

from __future__ import annotations

from protocol_model.replicas.configuration import Configuration
from protocol_model.replicas.ledger import any_holder
from protocol_model.replicas.state import (
    JOINING,
    NEVER,
    SERVING,
    State,
    Steps,
    changed,
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
        yield from _condemn(state, config, i)


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
    fresh = fresh._replace(bounds=coordinator.condemned)
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
    if not coordinator.is_up or leader.status != SERVING:
        return
    if leader.stone == NEVER and all(bound == NEVER for bound in leader.bounds):
        return
    if "drop_guarded" in rules and coordinator.holder != leader.epoch:
        return
    is_there = coordinator.stone != NEVER or any(at != NEVER for at in coordinator.condemned)
    if not is_there or ("drop_adopted" in rules and not leader.has_adopted_all):
        return
    is_struck_there = any(
        free.version <= max(leader.stone, leader.bounds[free.server]) and not free.is_cleared
        for free in leader.frees
    )
    if is_struck_there and "drop_cleared" in rules:
        return
    none = (NEVER,) * len(config.extents)
    after = state.with_leader(i, leader._replace(stone=NEVER, bounds=none))
    yield (
        f"leader {leader.epoch} drops the tombstones",
        after._replace(coordinator=coordinator._replace(stone=NEVER, condemned=none)),
        None,
    )


def _condemn(state: State, config: Configuration, i: int) -> Steps:
    """Too many tombstones for a server that is away: all that it has is struck instead."""
    leader, coordinator = state.leaders[i], state.coordinator
    if not state.budget.condemnations or leader.status != SERVING:
        return
    if not coordinator.is_up or coordinator.holder != leader.epoch:
        return
    for s in config.servers:
        if leader.has_adopted(s) or s in leader.condemned:
            continue
        bounds = changed(leader.bounds, s, (leader.epoch, leader.sequence))
        now = leader._replace(bounds=bounds, condemned=leader.condemned | {s})
        kept = coordinator.condemned
        if "condemned_kept" in config.rules:
            kept = changed(kept, s, bounds[s])
        after = state.spending("condemnations").with_leader(i, now)
        # As if the node had been lost: what only it has is lost with it.
        values = tuple(
            2 if status == 1 and not any_holder(state, config, value, without=s) else status
            for value, status in enumerate(state.values)
        )
        yield (
            f"leader {leader.epoch} condemns server {s} up to version {bounds[s]}",
            after._replace(coordinator=coordinator._replace(condemned=kept), values=values),
            None,
        )
