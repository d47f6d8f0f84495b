"""What becomes of frames: they arrive out of order, late, twice, or never."""

from __future__ import annotations

from protocol_model.extent.configuration import Configuration
from protocol_model.extent.inventory import take_in
from protocol_model.extent.leader import leads
from protocol_model.extent.put_end import put_end
from protocol_model.extent.remove import late_remove
from protocol_model.extent.state import (
    ENDED,
    SEALED,
    Acknowledged,
    Adopt,
    Cleared,
    Commit,
    Free,
    Freed,
    Inventory,
    LateEnd,
    LateRemove,
    Message,
    Owed,
    Record,
    RelayedEnd,
    Server,
    Slot,
    State,
    Step,
    Steps,
    Use,
    changed,
    is_open_to,
    lives,
    without_records,
    word_after_free,
)

__all__ = ["network_steps"]

LOST = ("ADOPT", "INVENTORY", "FREE", "FREED", "CLEARED", "RELAYED_END", "ANSWER")


def network_steps(state: State, config: Configuration) -> Steps:
    for message in state.network:
        if message.kind == "TOMBSTONE":
            continue
        gone = state._replace(network=state.network - {message})
        if state.budget.losses and message.kind in LOST:
            budget = state.budget._replace(losses=state.budget.losses - 1)
            label = f"the network loses {message.kind} {message[:-1]}"
            yield label, gone._replace(budget=budget), None
        yield from _deliver(gone, config, message, "")
        if state.budget.duplicates and message.kind not in ("ADOPT", "INVENTORY"):
            budget = state.budget._replace(duplicates=state.budget.duplicates - 1)
            kept = state._replace(budget=budget)
            yield from _deliver(kept, config, message, " (a copy stays in the network)")


def _deliver(state: State, config: Configuration, message: Message, note: str) -> Steps:
    """The receiver handles a message, which is no longer in the network, or is there once more."""
    if isinstance(message, (Adopt, Commit, Free)):
        label, after, bad = _at_server(state, config, message)
        yield label + note, after, bad
    elif isinstance(message, Acknowledged):
        label, after, bad = _at_writer(state, message)
        yield label + note, after, bad
    else:
        for i, leader in enumerate(state.leaders):
            if leader.epoch != message.epoch:
                continue
            if isinstance(message, Inventory):
                yield take_in(state, config, i, message)
            elif isinstance(message, (Cleared, Freed)):
                label, after, bad = _answer_to_free(state, config, i, message)
                yield label + note, after, bad
            elif leads(state, config, leader):
                yield from _late_request(state, config, i, message, note)


# ---- servers -------------------------------------------------------------------------------------
def _at_server(state: State, config: Configuration, message: Adopt | Commit | Free) -> Step:
    s = message.server if isinstance(message, Adopt) else config.extents[message.extent].server
    server, epoch = state.servers[s], message.epoch
    if epoch < server.epoch:
        return f"server {s} refuses {message.kind} of old epoch {epoch}", state, None
    bad = None
    if epoch < server.epoch_max:
        bad = f"S5: server {s} obeys epoch {epoch} after epoch {server.epoch_max}"
    raised = server._replace(epoch=max(server.epoch, epoch), epoch_max=max(server.epoch_max, epoch))
    if isinstance(message, Adopt):
        answer = Inventory(
            epoch,
            s,
            server.incarnation,
            server.words,
            server.records,
            _in_use(config, server) if "busy_inventory" in config.rules else frozenset(),
        )
        after = state.with_server(s, raised).sending(answer)
        return f"server {s} adopts epoch {epoch}, sends its inventory", after, bad
    if isinstance(message, Commit):
        return _commit(state, config, s, raised, message, bad)
    if message.incarnation != server.incarnation and "frame_incarnation" in config.rules:
        return f"server {s} refuses FREE for its former life", state, None
    return _free(state, config, s, raised, message, bad)


def _in_use(config: Configuration, server: Server) -> frozenset[Use]:
    return frozenset(
        use
        for use in server.uses
        if not lives(server.words[config.first_page(use.extent)], use.generation)
    )


def _commit(
    state: State, config: Configuration, s: int, server: Server, message: Commit, bad: str | None
) -> Step:
    page = config.first_page(message.extent)
    if is_open_to(server.words[page], message.generation) or "record_check" not in config.rules:
        if "version_words" in config.rules:
            word = (message.version, True)
            server = server._replace(words=changed(server.words, page, word))
        others = tuple(r for r in server.records if r.extent != message.extent)
        record = Record(
            message.extent, message.generation, message.key, message.value, message.version
        )
        server = server._replace(records=(*others, record))
    label = f"server {s} handles COMMIT(extent {message.extent}, {message.generation})"
    return label, state.with_server(s, server), bad


def _free(
    state: State, config: Configuration, s: int, server: Server, message: Free, bad: str | None
) -> Step:
    extent, generation = message.extent, message.generation
    page = config.first_page(extent)
    word = word_after_free(config.rules, server.words[page], generation)
    if word != server.words[page]:
        server = server._replace(
            words=changed(server.words, page, word),
            records=without_records(server.records, extent, generation),
        )
    if message.writer >= 0:
        server = server._replace(fenced=server.fenced | {message.writer})
    label = f"server {s} handles FREE(extent {extent}, {generation})"
    if "freed_waits" in config.rules and any(use.extent == extent for use in server.uses):
        owed = server.owed | {Owed(message.epoch, extent, generation)}
        after = state.with_server(s, server._replace(owed=owed))
        answer = Cleared(message.epoch, extent, generation)
        return label + ": cleared, but in use", after.sending(answer), bad
    freed = Freed(message.epoch, extent, generation, word)
    return label, state.with_server(s, server).sending(freed), bad


# ---- leaders -------------------------------------------------------------------------------------
def _answer_to_free(state: State, config: Configuration, i: int, message: Cleared | Freed) -> Step:
    leader, extent = state.leaders[i], message.extent
    slot, is_free = leader.slots[extent], isinstance(message, Freed)
    counts = slot.code in "QV" and (
        slot.generation == message.generation or "ack_match" not in config.rules
    )
    if not counts or (slot.code == "V" and not is_free):
        label = f"ignores {message.kind}(extent {extent}, {message.generation})"
        return f"leader {leader.epoch} {label}", state, None
    words, values, waits = leader.words, state.values, leader.waits
    now = Slot("V", slot.generation, -1)
    if isinstance(message, Freed):
        words = changed(words, config.first_page(extent), message.word)
        now = Slot("F", 0, -1)
    for wait in leader.waits:
        is_named = wait[:2] == (extent, message.generation)
        if is_named and (is_free or "cleared_ack" in config.rules):
            waits = waits - {wait}
            values = changed(values, wait.value, 3)
            if wait.replacement:
                values = changed(values, wait.replacement, values[wait.replacement] or 1)
    informed = leader._replace(slots=changed(leader.slots, extent, now), words=words, waits=waits)
    return (
        f"leader {leader.epoch} learns that extent {extent} is {'free' if is_free else 'cleared'}",
        state.with_leader(i, informed)._replace(values=values),
        None,
    )


def _late_request(
    state: State, config: Configuration, i: int, message: Message, note: str
) -> Steps:
    """put_end or remove, late or by way of a server; an answer goes to the client itself."""
    epoch = state.leaders[i].epoch
    if isinstance(message, LateRemove):
        removed = late_remove(state, config, i, message.key)
        if removed is not None:
            label = f"a late copy of remove(key {message.key}) reaches leader {epoch}"
            yield label + note, removed, None
        return
    assert isinstance(message, (LateEnd, RelayedEnd))
    writer = message.writer
    ended = put_end(state, config, i, writer, message.extent, message.generation)
    if isinstance(message, LateEnd):
        if ended is not None:
            yield f"a late put_end of writer {writer} reaches leader {epoch}" + note, ended, None
        return
    if ended is None:
        yield f"leader {epoch} refuses a relayed put_end of writer {writer}" + note, state, None
        return
    ended = ended._replace(writers=state.writers)  # the writer learns it from the leader's answer
    if ended.values[writer + 1]:
        ended = ended.sending(Acknowledged(epoch, writer))
    yield f"a relayed put_end of writer {writer} reaches leader {epoch}" + note, ended, None


# ---- writers -------------------------------------------------------------------------------------
def _at_writer(state: State, message: Acknowledged) -> Step:
    writer = state.writers[message.writer]
    bad = None
    if writer.phase == SEALED:
        if not state.values[message.writer + 1]:
            bad = "S3: a writer is told of success, nobody has acknowledged its put"
        state = state.with_writer(message.writer, writer._replace(phase=ENDED))
    return f"writer {message.writer} learns that its put is complete", state, bad
