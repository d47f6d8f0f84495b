"""The client as one thing: etcd behind the interface of `store`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from mooncake_store.coordination.etcd_client.address import EtcdAddress
from mooncake_store.coordination.etcd_client.endpoints import Endpoints, Tokens
from mooncake_store.coordination.etcd_client.keys import Keys
from mooncake_store.coordination.etcd_client.leases import Leases
from mooncake_store.coordination.etcd_client.password import Password
from mooncake_store.coordination.etcd_client.store import (
    Entries,
    Event,
    Grant,
    KeyIs,
    Operation,
    Outcome,
)
from mooncake_store.coordination.etcd_client.watch import Watch

__all__ = ["EtcdClient"]


class EtcdClient:
    """A `KeyValueStore`. Made, used and closed inside one running loop.

    Args:
        address: Of the cluster.
    """

    def __init__(self, address: EtcdAddress) -> None:
        tokens = Password(address.user, address.password) if address.user else Tokens()
        self._endpoints = Endpoints(address, tokens)
        self._keys = Keys(self._endpoints)
        self._leases = Leases(self._endpoints)

    @property
    def member(self) -> str:
        """Address of the member in use."""
        return self._endpoints.current.address

    async def read(self, key: bytes, end: bytes = b"", *, revision: int = 0) -> Entries:
        return await self._keys.read(key, end, revision)

    async def put(self, key: bytes, value: bytes, *, lease: int = 0) -> int:
        return await self._keys.put(key, value, lease)

    async def transact(
        self,
        conditions: Sequence[KeyIs],
        then: Sequence[Operation],
        otherwise: Sequence[Operation] = (),
        *,
        is_repeatable: bool,
    ) -> Outcome:
        return await self._keys.transact(conditions, then, otherwise, is_repeatable)

    async def compact(self, revision: int) -> None:
        """Forget history before a revision."""
        await self._keys.compact(revision)

    async def grant(self, ttl_s: int) -> Grant:
        return await self._leases.grant(ttl_s)

    async def renew(self, lease: int, *, timeout_s: float, patience_s: float | None = None) -> int:
        return await self._leases.renew(lease, timeout_s, patience_s)

    async def revoke(self, lease: int) -> None:
        await self._leases.revoke(lease)

    def watch(
        self, key: bytes, end: bytes = b"", *, from_revision: int
    ) -> AsyncGenerator[tuple[Event, ...], None]:
        return Watch(self._endpoints, key, end, from_revision).changes()

    async def close(self) -> None:
        await self._endpoints.close()
