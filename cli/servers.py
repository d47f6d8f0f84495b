"""Store servers as the command's user names them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mooncake_store.errors import RequestError

if TYPE_CHECKING:
    from mooncake_store.client import Client

__all__ = ["source_and_target"]


def source_and_target(
    store: Client, source: str | None, target: str | None
) -> tuple[int | None, int | None]:
    """Return the numbers of the store servers that a replica leaves and goes to.

    Each is given by name, node id or number; None for None.

    Raises:
        RequestError: There is none of that name, there are several, or both are the same.
    """
    from mooncake_store.client.tasks import server_number

    if source is None and target is None:
        return None, None
    members = store.members()
    found = [None if name is None else server_number(members, name) for name in (source, target)]
    if found[0] is not None and found[0] == found[1]:
        raise RequestError("a replica cannot move from a store server to the same one")
    return found[0], found[1]
