"""What a leader does of its own accord: asks for inventories, repeats, gives up, evicts."""

from __future__ import annotations

from protocol_model.extent.configuration import Configuration
from protocol_model.extent.remove import remove
from protocol_model.extent.state import (
    ABSENT,
    JOINING,
    SERVING,
    Adopt,
    Commit,
    Free,
    Leader,
    Slot,
    State,
    Steps,
    Tombstone,
    Wait,
    changed,
    no_leader,
)

__all__ = ["election", "leader_steps", "leads", "newest_leader"]


def leads(state: State, config: Configuration, leader: Leader) -> bool:
    """May this leader answer a client now?"""
    return leader.status == SERVING and (
        "leader_clock" not in config.rules or leader.epoch == state.epoch
    )


def newest_leader(state: State) -> Leader:
    return max(state.leaders, key=lambda leader: leader.epoch)


def election(state: State, config: Configuration) -> Steps:
    """A new leader appears; the old one is not told."""
    if not state.budget.elections:
        return
    epoch = state.epoch + 1
    slot = 0 if state.leaders[1].epoch > state.leaders[0].epoch else 1
    fresh = no_leader(config)._replace(status=JOINING, epoch=epoch, sequence=1)
    values = state.values
    if (
        "seal" not in config.rules
    ):  # the first design's documented window: commits under way may be lost
        for message in state.network:
            if isinstance(message, Commit) and values[message.value] == 1:
                values = changed(values, message.value, 2)
    after = state.with_leader(slot, fresh).sending(
        *(Adopt(epoch, server) for server in range(config.server_count))
    )
    budget = state.budget._replace(elections=state.budget.elections - 1)
    yield (
        f"leader {epoch} is elected",
        after._replace(values=values, epoch=epoch, budget=budget),
        None,
    )


def leader_steps(state: State, config: Configuration) -> Steps:
    for i, leader in enumerate(state.leaders):
        if leader.status == ABSENT:
            continue
        if leader.status == JOINING and any(leader.adopted):
            serving = leader._replace(status=SERVING)
            yield f"leader {leader.epoch} starts to serve", state.with_leader(i, serving), None
        yield from _ask_again(state, leader)
        if leader.status != SERVING:
            continue
        for wait in leader.waits:
            yield from _stand_in(state, config, i, wait)
        for extent in range(len(config.extents)):
            yield from _free_again(state, config, leader, extent)
            yield from _declare_dead(state, config, i, extent)
        for key in range(config.key_count):
            yield from _evict(state, config, i, key)
            if state.budget.removes and leads(state, config, leader) and key == config.reader_key:
                yield from remove(state, config, i, key)


def _ask_again(state: State, leader: Leader) -> Steps:
    for s, server in enumerate(state.servers):
        if leader.adopted[s] == server.incarnation or leader.epoch < server.epoch:
            continue
        is_asked = any(
            m.kind in ("ADOPT", "INVENTORY") and m[:2] == (leader.epoch, s) for m in state.network
        )
        if not is_asked:
            yield (
                f"leader {leader.epoch} asks server {s} for its inventory again",
                state.sending(Adopt(leader.epoch, s)),
                None,
            )


def _stand_in(state: State, config: Configuration, i: int, wait: Wait) -> Steps:
    """A holder is silent: a tombstone is written, and then the answer goes out."""
    leader = state.leaders[i]
    if "tombstone" not in config.rules or leader.epoch != state.epoch:
        return
    values = changed(state.values, wait.value, 4)
    if wait.replacement:
        values = changed(values, wait.replacement, values[wait.replacement] or 1)
    after = state.with_leader(i, leader._replace(waits=leader.waits - {wait}))
    yield (
        f"the holder of value {wait.value} does not answer leader {leader.epoch}:"
        " tombstone, acknowledged",
        after.sending(Tombstone(0, config.key_of(wait.value), wait.version))._replace(
            values=values
        ),
        None,
    )


def _free_again(state: State, config: Configuration, leader: Leader, extent: int) -> Steps:
    slot, s = leader.slots[extent], config.extents[extent].server
    if slot.code not in "QV" or not config.budget.losses:
        return
    named = (leader.epoch, extent, slot.generation)
    is_owed = slot.code == "V" and named in state.servers[s].owed
    is_under_way = any(
        m.kind in ("FREE", "CLEARED", "FREED") and m[:3] == named for m in state.network
    )
    if not is_owed and not is_under_way:
        yield (
            f"leader {leader.epoch} repeats FREE(extent {extent}, {slot.generation})",
            state.sending(Free(*named, slot.writer, leader.adopted[s])),
            None,
        )


def _declare_dead(state: State, config: Configuration, i: int, extent: int) -> Steps:
    leader = state.leaders[i]
    slot = leader.slots[extent]
    if slot.code != "W" or not state.budget.abandons:
        return
    freeing = leader._replace(slots=changed(leader.slots, extent, slot._replace(code="Q")))
    incarnation = leader.adopted[config.extents[extent].server]
    after = state.with_leader(i, freeing).sending(
        Free(leader.epoch, extent, slot.generation, slot.writer, incarnation)
    )
    budget = state.budget._replace(abandons=state.budget.abandons - 1)
    yield (
        f"leader {leader.epoch} declares writer {slot.writer} dead, frees extent {extent}",
        after._replace(budget=budget),
        None,
    )


def _evict(state: State, config: Configuration, i: int, key: int) -> Steps:
    leader, location = state.leaders[i], state.reader.location
    entry = leader.objects[key]
    if entry is None or not state.budget.evictions:
        return
    is_leased = (
        state.reader.is_leased
        and location is not None
        and (location.extent, location.epoch) == (entry.extent, leader.epoch)
    )
    if is_leased and "check_always" not in config.rules:
        return  # where a lifetime spares the check, the leader that gave it does not evict
    leaving = leader._replace(
        objects=changed(leader.objects, key, None),
        slots=changed(leader.slots, entry.extent, Slot("Q", entry.generation, -1)),
    )
    incarnation = leader.adopted[config.extents[entry.extent].server]
    after = state.with_leader(i, leaving).sending(
        Free(leader.epoch, entry.extent, entry.generation, -1, incarnation)
    )
    yield (
        f"leader {leader.epoch} evicts key {key} (extent {entry.extent})",
        after._replace(
            values=changed(state.values, entry.value, max(state.values[entry.value], 2)),
            budget=state.budget._replace(evictions=state.budget.evictions - 1),
        ),
        None,
    )
