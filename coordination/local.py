"""Coordination of one host without any service: a lock file, and a small state file beside it.

    FOLDER/lock          flock of the leader; its text names that process, for people, and in its
                         second line where it is, for processes that look for it
    FOLDER/state         epoch, cluster id, secret, members, numbers, drains, settings: JSON, 0600,
                         replaced as a whole
    FOLDER/tombstones    24 bytes and their CRC each, appended; cut at the first bad one

The operating system lets go of the lock when its holder dies, so there is no lease to renew.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import secrets
import shutil
import struct
import tempfile
import zlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mooncake_store.coordination.coordinator import (
    Leader,
    Leadership,
    NodeNumber,
    Standby,
    Tombstone,
)
from mooncake_store.coordination.lease import Lease, LeaseState
from mooncake_store.errors import (
    ConfigError,
    DeviceError,
    InternalError,
    InUseError,
    NotLeaderError,
    StoreError,
)

__all__ = ["LocalCoordinator"]

_EPOCH_MAX = 2**20 - 1
_SECRET_BYTES = 192
_RECORD = struct.Struct("<16sQI")
_LOOK_S = 0.2  # how often a follower looks whether another process leads


@dataclass(slots=True)
class _State:
    cluster: int
    secret: bytes
    epoch: int = 0
    members: dict[str, int] = field(default_factory=dict)  # node id in hex: incarnation
    numbers: dict[int, NodeNumber] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    drains: dict[str, int] = field(default_factory=dict)  # node id in hex: task

    def encode(self) -> bytes:
        document = {
            "cluster": f"{self.cluster:016x}",
            "secret": self.secret.hex(),
            "epoch": self.epoch,
            "members": self.members,
            "settings": self.settings,
            "numbers": {each: number.encode() for each, number in self.numbers.items()},
            "drains": self.drains,
        }
        return json.dumps(document, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> _State:
        document = json.loads(data)
        state = cls(
            cluster=int(document["cluster"], 16),
            secret=bytes.fromhex(document["secret"]),
            epoch=int(document["epoch"]),
            members={str(node): int(number) for node, number in document["members"].items()},
            settings={
                str(name): str(value) for name, value in document.get("settings", {}).items()
            },
            numbers={
                int(each): NodeNumber.decode(int(each), kept)
                for each, kept in document.get("numbers", {}).items()
            },
            drains={str(node): int(task) for node, task in document.get("drains", {}).items()},
        )
        if len(state.secret) != _SECRET_BYTES or not 0 <= state.epoch <= _EPOCH_MAX:
            raise ValueError("secret or epoch out of bounds")
        return state


def _new_state() -> _State:
    return _State(secrets.randbits(64), secrets.token_bytes(_SECRET_BYTES))


class LocalCoordinator:
    """The coordinator of a cluster whose only master is on this host.

    Args:
        folder: Where its files are; made when missing. None: a folder of its own that nobody finds
            again, removed by `close`.
    """

    waits_to_lead = False

    def __init__(self, folder: Path | None) -> None:
        self._is_temporary = folder is None
        self._folder = (
            Path(tempfile.mkdtemp(prefix="mooncake-store-")) if folder is None else folder
        )
        self._lock: int | None = None

    @property
    def name(self) -> str:
        return f"local:{self._folder}"

    async def lead(self, address: str) -> Leadership:
        return await asyncio.to_thread(self._lead, address)

    def _lead(self, address: str) -> Leadership:
        if self._lock is not None:
            raise InternalError(f"this process leads {self.name} already")
        self._make_folder()
        descriptor = self._open("lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            text = os.pread(descriptor, 4096, 0).decode(errors="replace")
            holder = text.partition("\n")[0].strip()
            os.close(descriptor)
            raise InUseError(
                f"another master leads {self.name}: {holder or 'a process that says no name'}",
                stage="lead",
                hint="stop that master, or give this one another folder with --coordinator",
                cause=error,
            ) from error
        _rewrite(descriptor, f"pid {os.getpid()}, {address}\n")
        self._lock = descriptor
        with _Exclusive(self._folder):
            state = self._read_state() or _new_state()
            if state.epoch == _EPOCH_MAX:
                raise InternalError(f"{self.name} has had {_EPOCH_MAX} leaders: remove that folder")
            state.epoch += 1
            self._write_state(state)
        return Leadership(state.epoch, state.cluster, state.secret)

    async def lease(self) -> AsyncGenerator[Lease, None]:
        yield Lease(LeaseState.VALID, 0)
        await asyncio.Event().wait()  # the lock ends with the process and not before

    async def publish(self, leader: Leader) -> None:
        if self._lock is None:
            raise NotLeaderError(f"this process does not lead {self.name}")
        document = json.dumps(asdict(leader))
        _rewrite(self._lock, f"pid {os.getpid()}, {leader.address}\n{document}\n")

    async def leader(self) -> Leader | None:
        return self.find_leader()

    def find_leader(self) -> Leader | None:
        """Return what `leader` does."""
        try:
            first, _, second = (self._folder / "lock").read_text(errors="replace").partition("\n")
            # Asking for the lock would take it from a master that starts at this moment.
            os.kill(int(first.split(",")[0].removeprefix("pid ")), 0)
            return Leader(**json.loads(second))
        except (OSError, ValueError, TypeError):
            return None  # nobody leads, or it has not told yet

    async def watch_leader(self) -> AsyncGenerator[Leader | None, None]:
        known = await self.leader()
        yield known
        while True:
            await asyncio.sleep(_LOOK_S)
            found = await self.leader()
            if found != known:
                known = found
                yield known

    async def standbys(self) -> tuple[Standby, ...]:
        return ()  # a second master is refused

    async def write_tombstones(self, tombstones: Sequence[Tombstone]) -> None:
        if self._lock is None:
            raise NotLeaderError(f"this process does not lead {self.name}")
        data = b"".join(_encode(tombstone) for tombstone in tombstones)
        try:
            # A few dozen bytes into a file in memory: a thread would cost more.
            descriptor = self._open("tombstones", os.O_APPEND)
            try:
                if os.write(descriptor, data) != len(data):
                    raise DeviceError(f"{self._folder}/tombstones: short write")
            finally:
                os.close(descriptor)
        except OSError as error:
            raise DeviceError(
                f"tombstones cannot be kept in {self._folder}: {error.strerror}", cause=error
            ) from error

    async def tombstones(self) -> tuple[Tombstone, ...]:
        try:
            data = (self._folder / "tombstones").read_bytes()
        except FileNotFoundError:
            return ()
        highest: dict[bytes, int] = {}
        for offset in range(0, len(data) - _RECORD.size + 1, _RECORD.size):
            key_hash, version, checksum = _RECORD.unpack_from(data, offset)
            if checksum != zlib.crc32(data[offset : offset + _RECORD.size - 4]):
                break
            highest[key_hash] = max(version, highest.get(key_hash, 0))
        return tuple(Tombstone(key_hash, version) for key_hash, version in highest.items())

    async def drop_tombstones(self, tombstones: Sequence[Tombstone]) -> None:
        if self._lock is None:
            raise NotLeaderError(f"this process does not lead {self.name}")
        gone = {tombstone.key_hash: tombstone.version for tombstone in tombstones}
        left = [
            tombstone
            for tombstone in await self.tombstones()
            if tombstone.version > gone.get(tombstone.key_hash, -1)
        ]
        self._replace("tombstones", b"".join(_encode(tombstone) for tombstone in left))

    async def epoch(self) -> int:
        state = self._read_state()
        return 0 if state is None else state.epoch

    async def raise_member(self, node_id: bytes, incarnation_min: int) -> int:
        self._make_folder()
        with _Exclusive(self._folder):
            state = self._read_state() or _new_state()
            incarnation = max(state.members.get(node_id.hex(), 0) + 1, incarnation_min)
            state.members[node_id.hex()] = incarnation
            self._write_state(state)
        return incarnation

    async def members(self) -> frozenset[bytes]:
        state = self._read_state()
        return frozenset() if state is None else frozenset(map(bytes.fromhex, state.members))

    async def cluster_settings(self) -> dict[str, str]:
        state = self._read_state()
        return {} if state is None else dict(state.settings)

    async def set_cluster_setting(self, name: str, value: str | None) -> None:
        self._make_folder()
        with _Exclusive(self._folder):
            state = self._read_state() or _new_state()
            state.settings.pop(name, None)
            if value is not None:
                state.settings[name] = value
            self._write_state(state)

    async def watch_cluster_settings(self) -> AsyncGenerator[dict[str, str], None]:
        known: dict[str, str] | None = None
        changed_ns = -1
        path = self._folder / "state"
        while True:
            with contextlib.suppress(OSError, StoreError):
                if (modified_ns := path.stat().st_mtime_ns) != changed_ns:
                    found = await self.cluster_settings()
                    changed_ns = modified_ns
                    if found != known:
                        known = found
                        yield dict(found)
            await asyncio.sleep(_LOOK_S)

    async def numbers(self) -> tuple[NodeNumber, ...]:
        state = self._read_state()
        return () if state is None else tuple(state.numbers.values())

    async def keep_number(self, number: NodeNumber) -> None:
        with self._changed_by_leader() as state:
            state.numbers[number.number] = number

    async def forget_member(self, number: NodeNumber) -> None:
        with self._changed_by_leader() as state:
            state.numbers[number.number] = number
            state.members.pop(number.node_id.hex(), None)
            state.drains.pop(number.node_id.hex(), None)

    @contextlib.contextmanager
    def _changed_by_leader(self) -> Iterator[_State]:
        """Yield the state; what is changed in it is kept."""
        if self._lock is None:
            raise NotLeaderError(f"this process does not lead {self.name}")
        with _Exclusive(self._folder):
            state = self._read_state()
            if state is None:
                raise DeviceError(f"{self._folder}/state is gone")
            yield state
            self._write_state(state)

    async def set_drain(self, node_id: bytes, task: int | None) -> None:
        with self._changed_by_leader() as state:
            state.drains.pop(node_id.hex(), None)
            if task is not None:
                state.drains[node_id.hex()] = task

    async def drains(self) -> dict[bytes, int]:
        state = self._read_state()
        drains = {} if state is None else state.drains
        return {bytes.fromhex(node): task for node, task in drains.items()}

    async def close(self) -> None:
        if self._lock is not None:
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = None
        if self._is_temporary:
            shutil.rmtree(self._folder, ignore_errors=True)

    # ---- files ----

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{self._folder} cannot be made: {error.strerror}", cause=error
            ) from error

    def _open(self, name: str, flags: int = 0) -> int:
        path = self._folder / name
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, 0o600)
        except OSError as error:
            raise DeviceError(f"{path} cannot be opened: {error.strerror}", cause=error) from error

    def _read_state(self) -> _State | None:
        path = self._folder / "state"
        try:
            return _State.decode(path.read_bytes())
        except FileNotFoundError:
            return None
        except OSError as error:
            raise DeviceError(f"{path} cannot be read: {error.strerror}", cause=error) from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            # Guessing an epoch here could give one out twice.
            raise ConfigError(
                f"{path} is damaged ({error}): stop all store servers, then remove that folder",
                cause=error,
            ) from error

    def _write_state(self, state: _State) -> None:
        self._replace("state", state.encode())

    def _replace(self, name: str, data: bytes) -> None:
        path, draft = self._folder / name, self._folder / f"{name}.{os.getpid()}.new"
        try:
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                os.write(descriptor, data)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(draft, path)
        except OSError as error:
            raise DeviceError(f"{path} cannot be written: {error.strerror}", cause=error) from error


class _Exclusive:
    """Held while the state is read and written again: leader and servers both do."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "state.lock"
        self._descriptor = -1

    def __enter__(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _rewrite(descriptor: int, text: str) -> None:
    """Replace a short file's text; whoever reads in between finds a part of it, never a mixture."""
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, text.encode(), 0)


def _encode(tombstone: Tombstone) -> bytes:
    data = _RECORD.pack(tombstone.key_hash, tombstone.version, 0)[:-4]
    return data + struct.pack("<I", zlib.crc32(data))
