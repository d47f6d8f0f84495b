"""The store, as a conductor asks it: by the SDK's client."""

from __future__ import annotations

from collections.abc import Sequence

from mooncake_store.client import Client
from mooncake_store.conductor.service.store_link import Page, Placed, StoreChange, StoreMember
from mooncake_store.errors import ObjectNotFoundError

__all__ = ["ClientLink", "open_link"]

_PIN_KEYS_MAX = 65_536  # of one call
_REPLICAS_MAX = 16


class ClientLink:
    """A `StoreLink`; not for several threads at once."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def cluster(self) -> int:
        """Return the id of the cluster that answered last; it asks nobody."""
        return self._client.statistics().cluster

    def position(self) -> tuple[int, int]:
        """Return the master's epoch and the sequence number of the next event."""
        page = self._client.events()
        return page.epoch, page.next_sequence

    def events(self, epoch: int, sequence: int, limit: int) -> Page | None:
        """Return events from a number on."""
        try:
            page = self._client.events(epoch, sequence, limit=limit)
        except ObjectNotFoundError:  # GONE: not known any more, or of another epoch
            return None
        return Page(
            page.epoch,
            sequence,
            [StoreChange(one.kind, one.key.encode(), one.server) for one in page.events],
        )

    def placed(self, prefix: str, cursor: int, limit: int) -> tuple[int, list[Placed]]:
        """Return objects and where they are, without using them, and the next cursor."""
        next_cursor, found = self._client.holders(prefix, cursor, limit=limit)
        return next_cursor, [Placed(key, servers) for key, servers in found]

    def members(self) -> list[StoreMember]:
        """Return the store servers."""
        return [
            StoreMember(one.server, one.name, one.state != "gone") for one in self._client.members()
        ]

    def pin(self, keys: Sequence[str], timeout_s: float) -> int:
        """Pin the longest prefix that is there."""
        match = self._client.match_prefix(
            list(keys[:_PIN_KEYS_MAX]), pin=True, pin_timeout_s=timeout_s
        )
        return match.count

    def unpin(self, keys: Sequence[str]) -> None:
        """Take pins back."""
        self._client.unpin(list(keys))

    def add_replica(self, key: str, target_server: int) -> tuple[int, int] | None:
        """Let a server hold an object too."""
        found = self._client.stat(key)
        if found is None or len(found.replicas) >= _REPLICAS_MAX:
            return None
        names = {one.server: one.name for one in self._client.members()}
        if names.get(target_server) in {one.node for one in found.replicas}:
            return None
        self._client.change_replica(key, len(found.replicas) + 1, target=target_server)
        return found.size_bytes, len(found.replicas)

    def drop_replica(self, key: str, source_server: int, least: int) -> bool:
        """Let a server hold an object no more, if `least` others do."""
        found = self._client.stat(key)
        names = {one.server: one.name for one in self._client.members()}
        holding = {one.node for one in found.replicas} if found is not None else set()
        if names.get(source_server) not in holding or len(holding) - 1 < max(least, 1):
            return False
        self._client.change_replica(key, len(holding) - 1, source=source_server)
        return True

    def close(self) -> None:
        """End all calls."""
        self._client.close()


def open_link(address: str) -> ClientLink:
    """Open a link to the store whose master is at an address."""
    client = Client(address, strict=True, wait_for_master=False, name="conductor")
    return ClientLink(client)
