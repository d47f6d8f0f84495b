"""What a client with a put does: grant, write page by page, SEAL, put_end; or revoke."""

from __future__ import annotations

from protocol_model.extent.configuration import Configuration
from protocol_model.extent.leader import leads
from protocol_model.extent.put_end import put_end
from protocol_model.extent.state import (
    GAVE_UP,
    IDLE,
    REVOKED,
    SEALED,
    SERVING,
    WRITING,
    Entry,
    Free,
    LateEnd,
    Leader,
    Record,
    RelayedEnd,
    Slot,
    State,
    Steps,
    Use,
    Writer,
    changed,
    is_open_to,
    without_records,
)

__all__ = ["writer_steps"]


def writer_steps(state: State, config: Configuration) -> Steps:
    for w, writer in enumerate(state.writers):
        if writer.phase == IDLE:
            yield from _put_start(state, config, w)
        if writer.phase not in (WRITING, SEALED, REVOKED):
            continue
        if writer.phase == WRITING:
            for n in range(len(config.extents[writer.extent].pages)):
                yield from _write(state, config, w, n)
        page_count = len(config.extents[writer.extent].pages)
        is_full = writer.done == (1 << page_count) - 1
        if is_full and writer.phase != SEALED and "seal" in config.rules:
            yield from _seal(state, config, w)
        if is_full and writer.phase == WRITING and config.has_relay:
            yield from _relay_too_early(state, config, w)
        if writer.phase != REVOKED:
            yield from _revoke(state, config, w, is_full)
        if is_full and (writer.phase == SEALED or "seal" not in config.rules):
            yield from _put_end(state, config, w)


# ---- grants --------------------------------------------------------------------------------------
def _put_start(state: State, config: Configuration, w: int) -> Steps:
    key, _, is_upsert = config.puts[w]
    for i, leader in enumerate(state.leaders):
        if not leads(state, config, leader) or (leader.objects[key] is not None and not is_upsert):
            continue
        if any(
            slot.code == "W" and slot.writer >= 0 and config.puts[slot.writer].key == key
            for slot in leader.slots
        ):
            continue
        for extent in range(len(config.extents)):
            if _is_grantable(config, leader, extent):
                yield from _grant(state, config, i, w, extent)


def _is_grantable(config: Configuration, leader: Leader, extent: int) -> bool:
    if leader.adopted[config.extents[extent].server] == 0:
        return False
    return not any(leader.slots[other].code in "WCQV" for other in config.overlapping(extent))


def _grant(state: State, config: Configuration, i: int, w: int, extent: int) -> Steps:
    leader = state.leaders[i]
    version = (leader.epoch, leader.sequence)
    known = leader.words[config.first_page(extent)]
    generation = version
    if "version_words" not in config.rules:
        generation = known  # type: ignore[assignment]
    granted = leader._replace(
        slots=changed(leader.slots, extent, Slot("W", generation, w)), sequence=leader.sequence + 1
    )
    incarnation = leader.adopted[config.extents[extent].server]
    writer = Writer(WRITING, extent, generation, leader.epoch, incarnation, 0, -1, version)
    yield (
        f"leader {leader.epoch} grants extent {extent} generation {generation} to writer {w}"
        f" (key {config.puts[w].key})",
        state.with_leader(i, granted).with_writer(w, writer),
        None,
    )


# ---- bytes ---------------------------------------------------------------------------------------
def _write(state: State, config: Configuration, w: int, n: int) -> Steps:
    """One page: unchecked (RDMA) or checked (TCP), and the check may be apart from the copy."""
    writer, rules = state.writers[w], config.rules
    if writer.done >> n & 1 or (config.has_copies and writer.checked not in (-1, n)):
        return
    s, pages = config.extents[writer.extent]
    server = state.servers[s]
    is_current = (server.epoch, server.incarnation) == (writer.epoch, writer.incarnation)
    use = Use(writer.extent, writer.generation)
    is_one_step = "atomic_write" in rules and not config.has_copies
    if config.puts[w].transport == "rdma":
        if "fence" in rules and not (is_current and w not in server.fenced):
            return
    elif writer.checked != n or is_one_step:
        is_open = is_open_to(server.words[pages[0]], writer.generation)
        if not is_open or ("write_epoch" in rules and not is_current):
            return
        if not is_one_step:
            if config.has_copies:
                state = state.with_server(s, server._replace(uses=server.uses | {use}))
            yield (
                f"server {s} checks writer {w}'s page {pages[n]}: generation"
                f" {writer.generation} is right",
                state.with_writer(w, writer._replace(checked=n)),
                None,
            )
            return
    written = server._replace(payload=changed(server.payload, pages[n], w + 1))
    if config.has_copies:
        written = written._replace(uses=server.uses - {use})
    yield (
        f"page {pages[n]} of writer {w} ({config.puts[w].transport}) is written",
        state.with_server(s, written).with_writer(
            w, writer._replace(done=writer.done | 1 << n, checked=-1)
        ),
        _trespass(state, config, w, pages[n]),
    )


def _trespass(state: State, config: Configuration, w: int, page: int) -> str | None:
    """A write lands on a page: does somebody look at it, or own it for the newest leader?"""
    for server in state.servers:
        for view in server.views:
            if page in config.extents[view.extent].pages:
                return f"S2: writer {w} writes page {page} under an open view of value {view.value}"
    serving = [leader for leader in state.leaders if leader.status == SERVING]
    newest = max(serving, key=lambda leader: leader.epoch, default=state.leaders[0])
    mine = newest.objects[config.puts[w].key]
    for extent, place in enumerate(config.extents):
        if page not in place.pages or not newest.adopted[place.server]:
            continue
        slot = newest.slots[extent]
        if slot.code == "C" and mine is not None and mine.value == w + 1:
            continue
        if slot.code == "C" or (slot.code == "W" and slot.writer != w):
            owner = "an object" if slot.code == "C" else f"writer {slot.writer}"
            return (
                f"S2: writer {w} writes page {page} that leader {newest.epoch} has given to {owner}"
            )
    return None


# ---- SEAL, put_end, revoke -----------------------------------------------------------------------
def _seal(state: State, config: Configuration, w: int) -> Steps:
    writer, key = state.writers[w], config.puts[w].key
    s, pages = config.extents[writer.extent]
    server = state.servers[s]
    counts = (
        is_open_to(server.words[pages[0]], writer.generation)
        and (server.epoch, server.incarnation) == (writer.epoch, writer.incarnation)
        and w not in server.fenced
    )
    if not counts and "record_check" in config.rules:
        return
    assert writer.version is not None
    kept = without_records(server.records, writer.extent, writer.generation)
    record = Record(writer.extent, writer.generation, key, w + 1, writer.version)
    sealed = server._replace(records=(*kept, record))
    if "version_words" in config.rules:
        sealed = sealed._replace(words=changed(sealed.words, pages[0], (writer.version, True)))
    phase = SEALED if writer.phase == WRITING else GAVE_UP
    after = state.with_server(s, sealed).with_writer(w, writer._replace(phase=phase, checked=-1))
    if config.has_relay and config.puts[w].transport == "tcp":
        after = after.sending(RelayedEnd(writer.epoch, w, writer.extent, writer.generation))
    yield f"server {s} records the sealed put of writer {w}", after, None


def _relay_too_early(state: State, config: Configuration, w: int) -> Steps:
    writer = state.writers[w]
    relayed = RelayedEnd(writer.epoch, w, writer.extent, writer.generation)
    if "relay_after_seal" not in config.rules and relayed not in state.network:
        s = config.extents[writer.extent].server
        label = f"server {s} relays the put_end of writer {w} before it has recorded it"
        yield label, state.sending(relayed), None


def _revoke(state: State, config: Configuration, w: int, is_full: bool) -> Steps:
    if not state.budget.revokes:
        return
    writer, key = state.writers[w], config.puts[w].key
    extent, generation = writer.extent, writer.generation
    for i, leader in enumerate(state.leaders):
        if leader.epoch != writer.epoch or not leads(state, config, leader):
            continue
        entry = leader.objects[key]
        takes_complete = (
            "revoke_open" not in config.rules
            and entry is not None
            and entry[:2] == (extent, generation)
        )
        if leader.slots[extent] != Slot("W", generation, w) and not takes_complete:
            continue
        index: tuple[Entry | None, ...] = leader.objects
        if takes_complete:
            index = changed(index, key, None)
        freeing = leader._replace(
            slots=changed(leader.slots, extent, Slot("Q", generation, -1)), objects=index
        )
        incarnation = leader.adopted[config.extents[extent].server]
        phase = REVOKED if writer.phase == WRITING and is_full else GAVE_UP
        after = state.with_leader(i, freeing).with_writer(w, writer._replace(phase=phase))
        after = after.sending(Free(leader.epoch, extent, generation, -1, incarnation))
        budget = state.budget._replace(revokes=state.budget.revokes - 1)
        label = f"writer {w} revokes its put at leader {leader.epoch}"
        yield label, after._replace(budget=budget), None


def _put_end(state: State, config: Configuration, w: int) -> Steps:
    writer = state.writers[w]
    extent, generation = writer.extent, writer.generation
    has_late_copies = state.budget.duplicates and "dedupe" not in config.rules
    for i, leader in enumerate(state.leaders):
        if not leads(state, config, leader):
            continue
        ended = put_end(state, config, i, w, extent, generation)
        if ended is not None:
            if has_late_copies:
                ended = ended.sending(LateEnd(leader.epoch, w, extent, generation))
            yield f"writer {w} ends its put at leader {leader.epoch}", ended, None
    late = LateEnd(writer.epoch, w, extent, generation)
    if has_late_copies and late not in state.network:
        budget = state.budget._replace(duplicates=state.budget.duplicates - 1)
        after = state.sending(late).with_writer(w, writer._replace(phase=GAVE_UP))
        yield (
            f"writer {w} gives up; its put_end is still under way",
            after._replace(budget=budget),
            None,
        )
