"""FREE at the servers, CLEARED and FREED at the leaders."""

from __future__ import annotations

from protocol_model.replicas.configuration import Configuration
from protocol_model.replicas.state import Extent, Free, Held, Leader, Server, State, Steps

__all__ = ["free_steps"]


def free_steps(state: State, config: Configuration) -> Steps:
    for i, leader in enumerate(state.leaders):
        for free in leader.frees:
            if not state.is_in_touch(leader, free.server):
                continue
            extent = state.servers[free.server].extents[free.extent]
            is_newer = extent.version > free.version
            if is_newer or (extent.version == free.version and not extent.is_live):
                yield from _learn(state, config, i, free)
            else:
                yield _execute(state, leader, free)


def _execute(state: State, leader: Leader, free: Free) -> tuple[str, State, None]:
    server = state.servers[free.server]
    before = server.extents[free.extent]
    cleared = Extent(free.version, False, None, before.content)
    server = server.with_extent(free.extent, cleared)
    if free.writer >= 0:
        server = server._replace(fenced=server.fenced | {free.writer})
    return (
        f"server {free.server} handles FREE(extent {free.extent}, {free.version})"
        f" of leader {leader.epoch}",
        state.with_server(free.server, server),
        None,
    )


def _learn(state: State, config: Configuration, i: int, free: Free) -> Steps:
    leader, server = state.leaders[i], state.servers[free.server]
    left = leader.frees - {free}
    name = f"extent {free.extent} of server {free.server}"
    if not _is_in_use(config, server, free):
        freed = leader._replace(frees=left)
        yield f"leader {leader.epoch} learns FREED({name})", state.with_leader(i, freed), None
    elif not free.is_cleared:
        cleared = leader._replace(frees=left | {free._replace(is_cleared=True)})
        yield f"leader {leader.epoch} learns CLEARED({name})", state.with_leader(i, cleared), None


def _is_in_use(config: Configuration, server: Server, free: Free) -> bool:
    if "view_counted" in config.rules and Held(free.extent, free.version) in server.views:
        return True
    return "copy_counted" in config.rules and any(
        task.got >= 0 and task.version == free.version and free.extent in task.extents
        for task in server.copies
    )
