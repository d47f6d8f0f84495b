"""`SharedSegment`: memory that one process of a host makes and others of its group map.

    segment, blob = SharedSegment.create("kv", size, world_size, rank)    # in every rank
    segment.complete(blobs)                                # of all ranks, in order
    segment.base_addr()

The memory has no name: it is a descriptor of the owner's, which the others open by its process.  So
nothing is left behind by whoever dies, and only processes of the same user find it.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap as mapping
import os
import struct
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

__all__ = ["SharedSegment"]

SIZE_MAX = 1 << 46
# Magic, rank, what all agree on, this boot, the owner's process, descriptor, inode.
_BLOB = struct.Struct("<4sI32s16sIIQ")
_MAGIC = b"MSS1"


def _available_bytes(
    meminfo: Path = Path("/proc/meminfo"),
    own: Path = Path("/proc/self/cgroup"),
    groups: Path = Path("/sys/fs/cgroup"),
) -> int:
    """Return how much memory can be had: what is made is filled at once, and has no other bound.

    Args:
        meminfo: Of the host.
        own: The control groups of this process.
        groups: Where those of version 2 are.
    """
    least = SIZE_MAX
    for line in meminfo.read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            least = int(rest.split()[0]) * 1024
    for line in own.read_text().splitlines() if own.exists() else ():
        if line.startswith("0::/"):
            inner = groups / line.removeprefix("0::/")
            for group in (inner, *inner.parents):
                if group == groups or groups in group.parents:
                    least = min(least, _left_of(group))
    return max(0, least)


def _left_of(group: Path) -> int:
    """Return what a control group may still take; one that says nothing has no limit."""
    try:
        most = (group / "memory.max").read_text().strip()
        taken = (group / "memory.current").read_text().strip()
    except OSError:
        return SIZE_MAX
    return SIZE_MAX if most == "max" else int(most) - int(taken)


def _bytes_of(blob: Any) -> bytes:
    """Return a blob, which may have come as a list of numbers; empty: it cannot be one."""
    try:
        return bytes(blob) if len(blob) == _BLOB.size else b""
    except (TypeError, ValueError):
        return b""


def _boot() -> bytes:
    return uuid.UUID(Path("/proc/sys/kernel/random/boot_id").read_text().strip()).bytes


class SharedSegment:
    """One rank's mapping; it lasts as long as this object."""

    def __init__(self, size: int, world_size: int, rank: int, owner: int, agreed: bytes) -> None:
        self._size, self._world_size, self._rank, self._owner = size, world_size, rank, owner
        self._agreed = agreed
        self._descriptor = -1
        self._memory: mapping.mmap | None = None
        self._address = 0
        self._is_complete = False

    def __del__(self) -> None:
        if getattr(self, "_descriptor", -1) >= 0:
            os.close(self._descriptor)

    @staticmethod
    def supported(mmap: bool = True, host_register: bool = False) -> bool:
        """Return whether such memory can be made: plain memory of the host only."""
        return mmap and not host_register and hasattr(os, "memfd_create")

    @staticmethod
    def create(
        name: str,
        size: int,
        world_size: int,
        rank_id: int,
        owner_rank: int = 0,
        device_id: int = 0,
        mmap: bool = True,
        host_register: bool = False,
    ) -> tuple[SharedSegment, bytes]:
        """Make this rank's part: the memory, if it is the owner.

        Args:
            name: The same in all ranks, as are size, world_size and owner_rank.
            size: Bytes.
            world_size: Ranks.
            rank_id: This one.
            owner_rank: The one that makes the memory.
            device_id: Without effect.
            mmap: True.
            host_register: False.

        Returns:
            The segment, and what `complete` of every rank needs of this one.

        Raises:
            RuntimeError: There is no such memory here, or not so much.
        """
        if not SharedSegment.supported(mmap, host_register):
            raise RuntimeError(
                "only memory of the host can be shared: mmap=True, host_register=False"
            )
        if not 0 < size <= SIZE_MAX:
            raise RuntimeError(f"a shared segment has from 1 to {SIZE_MAX} bytes, not {size}")
        if not (0 <= rank_id < world_size and 0 <= owner_rank < world_size):
            raise RuntimeError(f"rank_id and owner_rank are below world_size ({world_size})")
        agreed = hashlib.sha256(f"{size}/{world_size}/{owner_rank}/{name}".encode()).digest()
        made = SharedSegment(size, world_size, rank_id, owner_rank, agreed)
        inode = 0
        if rank_id == owner_rank:
            if size > (available := _available_bytes()):
                raise RuntimeError(f"no {size} bytes of shared memory: {available} are available")
            try:
                made._descriptor = os.memfd_create("mooncake-shared-segment")
                os.posix_fallocate(made._descriptor, 0, size)  # now, not at the first write
                inode = os.fstat(made._descriptor).st_ino
                made._map(made._descriptor)
            except OSError as error:  # mmap's own too: a limit of addresses
                raise RuntimeError(f"no {size} bytes of shared memory: {error}") from error
        blob = _BLOB.pack(
            _MAGIC, rank_id, agreed, _boot(), os.getpid(), max(0, made._descriptor), inode
        )
        return made, blob

    def complete(self, blobs: Sequence[bytes]) -> None:
        """Map the owner's memory; the owner must still be there.

        Args:
            blobs: Of all ranks, in their order.

        Raises:
            RuntimeError: Ranks disagree, one's blob is none, or the owner's memory cannot be
                reached from here.
        """
        if len(blobs) != self._world_size:
            raise RuntimeError(f"one blob of each of {self._world_size} ranks, not {len(blobs)}")
        found = []
        for rank, blob in enumerate(blobs):
            raw = _bytes_of(blob)
            if len(raw) != _BLOB.size or not raw.startswith(_MAGIC):
                raise RuntimeError(f"rank {rank}: this is no blob of a shared segment")
            _, its_rank, agreed, *where = _BLOB.unpack(raw)
            if its_rank != rank:
                raise RuntimeError(f"rank {rank}: this is the blob of rank {its_rank}")
            if agreed != self._agreed:
                raise RuntimeError(f"rank {rank} has another name, size, world_size or owner_rank")
            found.append(where)
        boot, process, descriptor, inode = found[self._owner]
        if self._rank != self._owner and self._memory is None:
            if boot != _boot():
                raise RuntimeError("the owner's memory is on another host")
            self._map_of(process, descriptor, inode)
        self._is_complete = True

    def _map_of(self, process: int, descriptor: int, inode: int) -> None:
        path = f"/proc/{process}/fd/{descriptor}"
        try:
            opened = os.open(path, os.O_RDWR)
        except OSError as error:
            raise RuntimeError(
                f"the owner's memory cannot be opened ({path}: {error.strerror}): the owner must "
                "run, as the same user and in the same PID namespace"
            ) from error
        try:
            told = os.fstat(opened)
            if (told.st_ino, told.st_size) != (inode, self._size):
                raise RuntimeError(f"the owner's memory has gone: {path} is something else")
            self._map(opened)
        except OSError as error:  # a limit of addresses
            raise RuntimeError(f"the owner's memory cannot be mapped: {error}") from error
        finally:
            os.close(opened)

    def _map(self, descriptor: int) -> None:
        self._memory = mapping.mmap(descriptor, self._size)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))

    def ready(self) -> bool:
        """Return whether `complete` has succeeded."""
        return self._is_complete

    def base_addr(self) -> int:
        """Return where the memory is in this process.

        Raises:
            RuntimeError: It is not mapped yet.
        """
        if self._memory is None:
            raise RuntimeError("complete() comes before base_addr()")
        return self._address

    def device_addr(self) -> int:
        """Return 0: there is no device."""
        return 0

    def size(self) -> int:
        """Return its bytes."""
        return self._size
