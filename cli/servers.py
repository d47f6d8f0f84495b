"""Store servers as the command's user names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_store.errors import ConfigError

if TYPE_CHECKING:
    from mooncake_store.client import Client

__all__ = ["server_number"]


def server_number(store: Client, name: str | None) -> int | None:
    """Return the number of a store server, named by name, node id or number; None for None.

    Raises:
        ConfigError: There is none of that name.
    """
    if name is None:
        return None
    members = store.members()
    for member in members:
        if name in (member.name, member.node_id, str(member.server)):
            return member.server
    known = ", ".join(member.name for member in members) or "none"
    raise ConfigError(f"there is no server {name!r} (known: {known})")
