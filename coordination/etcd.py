"""Coordination through etcd: several masters, one of which leads.

    PREFIX/leader            epoch, name and address of the leader: JSON; goes with its lease
    PREFIX/standbys/ID       masters that wait to lead (standby.py)
    PREFIX/epoch             counter, raised in the transaction that takes the leader's key
    PREFIX/cluster           id and secret: JSON, made once
    PREFIX/members/NODE      incarnation of each store server
    PREFIX/config/NAME       setting that holds for all masters, as people write it
    PREFIX/numbers/N         node id and name of the store server that locations call N: JSON
    PREFIX/drains/NODE       task that empties this store server
    PREFIX/tombstones/HASH   version up to which a key is struck, 16 hexadecimal digits

A lock in etcd does not exclude (its holder may be frozen when it ends), so none is trusted: every
frame of a leader carries its epoch and servers refuse older ones; whatever a leader writes here is
written in a transaction that asks for its very own leader key, and it stops answering clients
at the local deadline of its lease, before etcd gives the key to anybody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any

from mooncake_store.coordination.coordinator import (
    Leader,
    Leadership,
    NodeNumber,
    Standby,
    Tombstone,
)
from mooncake_store.coordination.etcd_client.address import EtcdAddress
from mooncake_store.coordination.etcd_client.store import (
    CompactedError,
    Delete,
    Entry,
    KeyIs,
    KeyValueStore,
    Operation,
    Put,
    Read,
    prefix_end,
)
from mooncake_store.coordination.lease import Lease, LeaseKeeper, boottime_ns
from mooncake_store.coordination.standby import StandbyNotice, standby_of, standby_prefix
from mooncake_store.errors import (
    ConfigError,
    DeviceError,
    InternalError,
    NotLeaderError,
    StoreError,
    UnavailableError,
)
from mooncake_store.logs import log_event

__all__ = ["EtcdCoordinator", "connect", "leader_key", "leader_of"]

_EPOCH_MAX = 2**20 - 1
_SECRET_BYTES = 192
_OPERATIONS_MAX = 128  # of one transaction, by etcd's default
_PAUSE_S = 0.2  # after a failure, before the next attempt to lead

logger = logging.getLogger("mooncake_store.coordination")


def leader_key(prefix: str) -> bytes:
    """Return the key that the leader holds."""
    return f"{prefix}/leader".encode()


def leader_of(value: bytes) -> Leader | None:
    """Return where a leader is, from its key's value; None: it has not told yet."""
    try:
        document = json.loads(value)
        if not document.get("address"):
            return None
        return Leader(
            address=str(document["address"]),
            epoch=int(document["epoch"]),
            unix_path=str(document.get("unix_path", "")),
            boot_id=str(document.get("boot_id", "")),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class EtcdCoordinator:
    """The coordinator of a cluster with several masters.

    Args:
        connect: Makes the store, inside the running loop.
        address: Where that is; its prefix and lease count here.
        clock: Nanoseconds of CLOCK_BOOTTIME.
    """

    waits_to_lead = True

    def __init__(
        self,
        connect: Callable[[EtcdAddress], KeyValueStore],
        address: EtcdAddress,
        clock: Callable[[], int] = boottime_ns,
    ) -> None:
        self._connect = connect
        self._address = address
        self._clock = clock
        self._opened: KeyValueStore | None = None
        self._keeper: LeaseKeeper | None = None
        self._notice: StandbyNotice | None = None  # while it waits to lead, and a moment longer
        self._created = 0  # revision at which our leader key was created
        self._told: dict[str, Any] = {}  # what it says
        self._struck: dict[bytes, int] | None = None  # tombstones that are there
        self._writing = asyncio.Lock()  # this leader's changes come one after the other

    @property
    def name(self) -> str:
        return str(self._address)

    @property
    def _store(self) -> KeyValueStore:
        if self._opened is None:
            self._opened = self._connect(self._address)
        return self._opened

    def _key(self, *parts: str) -> bytes:
        return "/".join((self._address.prefix, *parts)).encode()

    # ---- the lead ----

    async def lead(self, address: str) -> Leadership:
        if self._keeper is not None:
            raise InternalError(f"this process leads {self.name} already")
        is_told = False
        while True:
            try:
                cluster, secret = await self._cluster()
                epoch = await self._take(address)
                if epoch is not None:
                    if self._notice is not None:
                        self._notice.end()
                    return Leadership(epoch, cluster, secret)
                is_told = False
                if self._notice is None:
                    self._notice = StandbyNotice(
                        self._store, self._address.prefix, address, self._clock
                    )
                await self._wait_until_free()
            except UnavailableError as error:
                if not is_told:
                    log_event(logger, logging.WARNING, "coordinator_unreachable", reason=error)
                    is_told = True
                await asyncio.sleep(_PAUSE_S)

    async def _cluster(self) -> tuple[int, bytes]:
        """Return id and secret of the cluster, which the first master makes."""
        key = self._key("cluster")
        made = {
            "cluster": f"{secrets.randbits(64):016x}",
            "secret": secrets.token_hex(_SECRET_BYTES),
        }
        outcome = await self._store.transact(
            [KeyIs(key, created=0)],
            [Put(key, json.dumps(made).encode()), Read(key)],
            [Read(key)],
            is_repeatable=True,
        )
        try:
            document = json.loads(outcome.reads[0][0].value)
            cluster, secret = int(document["cluster"], 16), bytes.fromhex(document["secret"])
            if len(secret) != _SECRET_BYTES:
                raise ValueError("secret of another length")
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{key.decode()} in {self.name} is damaged", cause=error) from error
        return cluster, secret

    async def _take(self, address: str) -> int | None:
        """Take the leader's key and raise the epoch, in one step; None: somebody has it."""
        leader, epoch = self._key("leader"), self._key("epoch")
        found = await self._store.transact((), [Read(leader), Read(epoch)], is_repeatable=True)
        if found.reads[0]:
            return None
        counter = found.reads[1][0] if found.reads[1] else None
        number = (0 if counter is None else self._number(counter)) + 1
        if number > _EPOCH_MAX:
            raise InternalError(f"{self.name} has had {_EPOCH_MAX} leaders: use another prefix")
        asked_ns = self._clock()
        grant = await self._store.grant(self._address.lease_s)
        told = {"epoch": number, "pid": os.getpid(), "master": address}
        conditions = [
            KeyIs(leader, created=0),
            KeyIs(epoch, changed=0 if counter is None else counter.mod_revision),
        ]
        # Sent again when no answer comes: it can succeed once only, and that it was we who had the
        # success is told by the lease of the key.
        outcome = await self._store.transact(
            conditions,
            [
                Put(leader, json.dumps(told).encode(), grant.lease),
                Put(epoch, b"%d" % number),
                Read(leader),
            ],
            [Read(leader)],
            is_repeatable=True,
        )
        entry = outcome.reads[0][0] if outcome.reads[0] else None
        if entry is None or entry.lease != grant.lease:
            with contextlib.suppress(StoreError):
                await self._store.revoke(grant.lease)
            return None
        self._created, self._told, self._struck = entry.create_revision, told, None
        self._keeper = LeaseKeeper(
            self._store, grant.lease, grant.ttl_s, asked_ns, clock=self._clock
        )
        return number

    async def _wait_until_free(self) -> None:
        async with contextlib.aclosing(self._changes(self._key("leader"))) as changes:
            async for entry in changes:
                if entry is None:
                    return

    async def lease(self) -> AsyncGenerator[Lease, None]:
        if self._keeper is None:
            raise NotLeaderError(f"this process does not lead {self.name}")
        async with contextlib.aclosing(self._keeper.changes()) as changes:
            async for lease in changes:
                yield lease

    async def publish(self, leader: Leader) -> None:
        if self._keeper is None:
            raise NotLeaderError(f"this process does not lead {self.name}")
        told = {
            **self._told,
            "address": leader.address,
            "unix_path": leader.unix_path,
            "boot_id": leader.boot_id,
        }
        put = Put(self._key("leader"), json.dumps(told).encode(), self._keeper.lease)
        async with self._writing:
            await self._change([put])
            self._told = told

    async def _change(self, operations: Sequence[Operation]) -> None:
        """Change something as the leader, or not at all. Twice is as good as once."""
        if self._keeper is None:
            raise NotLeaderError(f"this process does not lead {self.name}")
        outcome = await self._store.transact(
            [KeyIs(self._key("leader"), created=self._created)], operations, is_repeatable=True
        )
        if not outcome.is_met:
            raise NotLeaderError(f"another master leads {self.name}, or will")

    # ---- who leads ----

    async def leader(self) -> Leader | None:
        found = await self._store.read(self._key("leader"))
        return leader_of(found.entries[0].value) if found.entries else None

    async def watch_leader(self) -> AsyncGenerator[Leader | None, None]:
        async with contextlib.aclosing(self._changes(self._key("leader"))) as changes:
            async for entry in changes:
                yield None if entry is None else leader_of(entry.value)

    async def _changes(self, key: bytes) -> AsyncGenerator[Entry | None, None]:
        """Yield a key as it is now and after each change; None: it is absent."""
        while True:
            try:
                found = await self._store.read(key)
                yield found.entries[0] if found.entries else None
                watch = self._store.watch(key, from_revision=found.revision + 1)
                async with contextlib.aclosing(watch):
                    async for events in watch:
                        last = events[-1]
                        yield None if last.is_delete else last.entry
            except (UnavailableError, CompactedError):
                await asyncio.sleep(_PAUSE_S)

    async def standbys(self) -> tuple[Standby, ...]:
        prefix = standby_prefix(self._address.prefix)
        found = await self._store.read(prefix, prefix_end(prefix))
        told = (standby_of(entry.value) for entry in found.entries)
        return tuple(each for each in told if each is not None)

    # ---- tombstones ----

    async def write_tombstones(self, tombstones: Sequence[Tombstone]) -> None:
        async with self._writing:
            struck = await self._read_tombstones()
            highest: dict[bytes, int] = {}
            for each in tombstones:
                if each.version > max(
                    struck.get(each.key_hash, -1), highest.get(each.key_hash, -1)
                ):
                    highest[each.key_hash] = each.version
            rows = list(highest.items())
            for start in range(0, len(rows), _OPERATIONS_MAX):
                part = rows[start : start + _OPERATIONS_MAX]
                await self._keep(
                    [
                        Put(self._key("tombstones", key_hash.hex()), b"%016x" % version)
                        for key_hash, version in part
                    ]
                )
                struck.update(part)

    async def drop_tombstones(self, tombstones: Sequence[Tombstone]) -> None:
        async with self._writing:
            struck = await self._read_tombstones()
            gone = {
                each.key_hash
                for each in tombstones
                if struck.get(each.key_hash, each.version + 1) <= each.version
            }
            rows = sorted(gone)
            for start in range(0, len(rows), _OPERATIONS_MAX):
                part = rows[start : start + _OPERATIONS_MAX]
                await self._keep([Delete(self._key("tombstones", each.hex())) for each in part])
                for each in part:
                    del struck[each]

    async def _keep(self, operations: Sequence[Operation]) -> None:
        try:
            await self._change(operations)
        except NotLeaderError:
            raise
        except StoreError as error:
            # Some may be kept and some not; whoever waits for them is told that they are not.
            self._struck = None
            raise DeviceError(
                f"tombstones cannot be kept in {self.name}: {error.message}", cause=error
            ) from error

    async def tombstones(self) -> tuple[Tombstone, ...]:
        async with self._writing:
            self._struck = None
            struck = await self._read_tombstones()
        return tuple(Tombstone(key_hash, version) for key_hash, version in struck.items())

    async def _read_tombstones(self) -> dict[bytes, int]:
        """Return those that are there. While we lead, nobody else changes them."""
        if self._struck is None:
            prefix = self._key("tombstones", "")
            found = await self._store.read(prefix, prefix_end(prefix))
            try:
                self._struck = {
                    bytes.fromhex(entry.key[len(prefix) :].decode()): int(entry.value, 16)
                    for entry in found.entries
                }
            except ValueError as error:
                raise ConfigError(f"a tombstone in {self.name} is damaged", cause=error) from error
        return self._struck

    # ---- members ----

    async def epoch(self) -> int:
        found = await self._store.read(self._key("epoch"))
        return self._number(found.entries[0]) if found.entries else 0

    async def raise_member(self, node_id: bytes, incarnation_min: int) -> int:
        key = self._key("members", node_id.hex())
        while True:
            found = await self._store.read(key)
            entry = found.entries[0] if found.entries else None
            known = 0 if entry is None else self._number(entry)
            incarnation = max(known + 1, incarnation_min)
            changed = 0 if entry is None else entry.mod_revision
            # After a lost answer the number may be raised twice, which does no harm.
            outcome = await self._store.transact(
                [KeyIs(key, changed=changed)], [Put(key, b"%d" % incarnation)], is_repeatable=True
            )
            if outcome.is_met:
                return incarnation

    async def members(self) -> frozenset[bytes]:
        prefix = self._key("members", "")
        found = await self._store.read(prefix, prefix_end(prefix))
        return frozenset(
            bytes.fromhex(entry.key[len(prefix) :].decode()) for entry in found.entries
        )

    async def cluster_settings(self) -> dict[str, str]:
        return (await self._settings())[0]

    async def _settings(self) -> tuple[dict[str, str], int]:
        prefix = self._key("config", "")
        found = await self._store.read(prefix, prefix_end(prefix))
        settings = {
            entry.key[len(prefix) :].decode(errors="replace"): entry.value.decode(errors="replace")
            for entry in found.entries
        }
        return settings, found.revision

    async def set_cluster_setting(self, name: str, value: str | None) -> None:
        key = self._key("config", name)
        change: Operation = Delete(key) if value is None else Put(key, value.encode())
        await self._store.transact((), [change], is_repeatable=True)

    async def watch_cluster_settings(self) -> AsyncGenerator[dict[str, str], None]:
        prefix = self._key("config", "")
        while True:
            try:
                settings, revision = await self._settings()
                yield settings
                watch = self._store.watch(prefix, prefix_end(prefix), from_revision=revision + 1)
                async with contextlib.aclosing(watch):
                    async for _ in watch:
                        yield await self.cluster_settings()
            except (UnavailableError, CompactedError):
                await asyncio.sleep(_PAUSE_S)

    async def numbers(self) -> tuple[NodeNumber, ...]:
        prefix = self._key("numbers", "")
        found = await self._store.read(prefix, prefix_end(prefix))
        try:
            return tuple(
                NodeNumber.decode(int(entry.key[len(prefix) :]), json.loads(entry.value))
                for entry in found.entries
            )
        except (ValueError, KeyError, TypeError) as error:
            # Guessing could give a number out twice.
            raise ConfigError(f"a number in {self.name} is damaged", cause=error) from error

    async def keep_number(self, number: NodeNumber) -> None:
        async with self._writing:
            await self._change([self._put_number(number)])

    async def forget_member(self, number: NodeNumber) -> None:
        async with self._writing:
            node = number.node_id.hex()
            await self._change(
                [
                    self._put_number(number),
                    Delete(self._key("members", node)),
                    Delete(self._key("drains", node)),
                ]
            )

    def _put_number(self, number: NodeNumber) -> Put:
        value = json.dumps(number.encode()).encode()
        return Put(self._key("numbers", str(number.number)), value)

    # ---- drains ----

    async def set_drain(self, node_id: bytes, task: int | None) -> None:
        key = self._key("drains", node_id.hex())
        async with self._writing:
            await self._change([Delete(key) if task is None else Put(key, b"%d" % task)])

    async def drains(self) -> dict[bytes, int]:
        prefix = self._key("drains", "")
        found = await self._store.read(prefix, prefix_end(prefix))
        return {
            bytes.fromhex(entry.key[len(prefix) :].decode()): self._number(entry)
            for entry in found.entries
        }

    def _number(self, entry: Entry) -> int:
        try:
            return int(entry.value)
        except ValueError as error:
            # Guessing could give a number out twice.
            raise ConfigError(
                f"{entry.key.decode(errors='replace')} in {self.name} is damaged", cause=error
            ) from error

    async def close(self) -> None:
        notice, self._notice = self._notice, None
        if notice is not None:
            await notice.close()
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            await keeper.close()
        opened, self._opened = self._opened, None
        if opened is not None:
            await opened.close()


def connect(address: EtcdAddress) -> KeyValueStore:
    """Return a real etcd; gRPC is imported here and not before."""
    from mooncake_store.coordination.etcd_client.client import EtcdClient

    return EtcdClient(address)
