"""S3: what was acknowledged is there."""

from __future__ import annotations

from protocol_model.extent.configuration import Configuration
from protocol_model.extent.leader import newest_leader
from protocol_model.extent.state import SERVING, Commit, State, lives, version_of

__all__ = ["missing_value"]


def missing_value(state: State, config: Configuration) -> str | None:
    """Return what was acknowledged and the newest leader, knowing every server, does not have."""
    leader = newest_leader(state)
    if leader.status != SERVING:
        return None
    if any(leader.adopted[s] != server.incarnation for s, server in enumerate(state.servers)):
        return None
    for value, status in enumerate(state.values):
        if status != 1:
            continue
        entry, version = leader.objects[config.key_of(value)], version_of(state, value)
        if entry is not None and version is not None and entry.version > version:
            continue  # replaced by an upsert, or put again while its server was away
        if entry is None or entry.value != value:
            return f"S3: value {value} was acknowledged, leader {leader.epoch} does not have it"
        if any(
            isinstance(m, Commit) and (m.extent, m.value) == (entry.extent, value)
            for m in state.network
        ):
            continue  # its commit is still under way
        s, pages = config.extents[entry.extent]
        server = state.servers[s]
        if not lives(server.words[pages[0]], entry.generation) or any(
            server.payload[page] != value for page in pages
        ):
            return f"S3: value {value} was acknowledged, extent {entry.extent} no longer holds it"
    return None
