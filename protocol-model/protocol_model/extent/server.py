"""What happens to store servers: killed, rebooted; and use counts, which views and copies hold."""

from __future__ import annotations

from protocol_model.extent.configuration import Configuration
from protocol_model.extent.state import (
    SEALED,
    WRITING,
    Commit,
    Freed,
    Server,
    State,
    Steps,
    Use,
    Word,
    Writer,
    changed,
)

__all__ = ["fault_steps", "use_steps"]


def fault_steps(state: State, config: Configuration) -> Steps:
    for s in range(len(state.servers)):
        if state.budget.kills:
            yield _kill(state, config, s)
        if state.budget.reboots:
            yield _reboot(state, config, s)


def _kill(state: State, config: Configuration, s: int) -> tuple[str, State, None]:
    server = state.servers[s]
    open_views = frozenset(Use(view.extent, view.generation) for view in server.views)
    restarted = server._replace(
        epoch=server.epoch if "persist_epoch" in config.rules else 0,
        incarnation=server.incarnation + 1,
        fenced=frozenset(),
        uses=server.uses & open_views if "views_persist" in config.rules else frozenset(),
        owed=frozenset(),
    )
    after = state.with_server(s, restarted)._replace(
        writers=_copies_ended(state, config, s),
        budget=state.budget._replace(kills=state.budget.kills - 1),
    )
    return f"server {s} is killed and restarted", after, None


def _reboot(state: State, config: Configuration, s: int) -> tuple[str, State, None]:
    server = state.servers[s]
    words, payload = list(server.words), list(server.payload)
    new: Word = ((0, 0), False) if "version_words" in config.rules else 1
    for place in config.extents:
        for page in place.pages if place.server == s else ():
            words[page], payload[page] = new, -1
    empty = Server(
        state.epoch if "epoch_floor" in config.rules else 0,
        server.incarnation + 1,
        server.births + 1,
        tuple(words),
        tuple(payload),
        (),
        frozenset(),
        server.epoch_max,
        frozenset(),
        frozenset(),
        frozenset(),
    )
    there = {record.value for record in server.records}
    for w, writer in enumerate(state.writers):
        if writer.phase in (WRITING, SEALED) and config.extents[writer.extent].server == s:
            there.add(w + 1)
    values = tuple(
        2 if status <= 1 and value in there else status for value, status in enumerate(state.values)
    )
    for message in state.network:  # commits under way to memory that is gone
        if not isinstance(message, Commit) or config.extents[message.extent].server != s:
            continue
        if values[message.value] == 1:
            values = changed(values, message.value, 2)
    after = state.with_server(s, empty)._replace(
        writers=_copies_ended(state, config, s),
        values=values,
        budget=state.budget._replace(reboots=state.budget.reboots - 1),
    )
    return f"node {s} reboots: its memory is gone", after, None


def _copies_ended(state: State, config: Configuration, s: int) -> tuple[Writer, ...]:
    """Copies into the server's memory end with its process."""
    if not config.has_copies:
        return state.writers
    return tuple(
        writer._replace(checked=-1) if config.extents[writer.extent].server == s else writer
        for writer in state.writers
    )


def use_steps(state: State, config: Configuration) -> Steps:
    for s, server in enumerate(state.servers):
        for owed in server.owed:
            if any(use.extent == owed.extent for use in server.uses):
                continue
            word = server.words[config.first_page(owed.extent)]
            after = state.with_server(s, server._replace(owed=server.owed - {owed}))
            yield (
                f"server {s} answers FREED(extent {owed.extent}, {owed.generation}):"
                " not in use any more",
                after.sending(Freed(*owed, word)),
                None,
            )
        for view in server.views:
            use = Use(view.extent, view.generation)
            closed = server._replace(views=server.views - {view}, uses=server.uses - {use})
            label = f"a process closes its view of value {view.value}"
            yield label, state.with_server(s, closed), None
            if use not in server.uses and "view_atomic" not in config.rules:
                counted = server._replace(uses=server.uses | {use})
                label = f"server {s} counts the view of value {view.value}"
                yield label, state.with_server(s, counted), None
