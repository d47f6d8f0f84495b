"""Where the replicas of an object are."""

from __future__ import annotations

from collections.abc import Sequence

from mooncake._store.addresses import AddressCalls
from mooncake._store.enums import ReplicaStatus
from mooncake_store.client import Client, Explanation, Member
from mooncake_store.errors import ObjectNotFoundError, StoreError

__all__ = [
    "Descriptor",
    "DescriptorCalls",
    "DiskDescriptor",
    "MemoryDescriptor",
    "ReplicaDescriptor",
]

PAGE_BYTES = 4096


class Descriptor:
    """Where bytes lie: `buffer_address` is an offset in the memory of the server there."""

    def __init__(self) -> None:
        self.size = 0
        self.buffer_address = 0
        self.transport_endpoint = ""

    def __repr__(self) -> str:
        return (
            f"<Descriptor size={self.size} buffer_address={self.buffer_address} "
            f"transport_endpoint={self.transport_endpoint}>"
        )


class MemoryDescriptor:
    """A replica in memory."""

    def __init__(self, descriptor: Descriptor) -> None:
        self.buffer_descriptor = descriptor


class DiskDescriptor:
    """A replica in a file; this store has none."""

    def __init__(self, file_path: str = "", object_size: int = 0) -> None:
        self.file_path = file_path
        self.object_size = object_size


class ReplicaDescriptor:
    """One replica of an object."""

    def __init__(self, status: ReplicaStatus, memory: MemoryDescriptor) -> None:
        self._status = status
        self._memory = memory

    @property
    def status(self) -> ReplicaStatus:
        """COMPLETE, or PROCESSING while it is copied."""
        return self._status

    def is_memory_replica(self) -> bool:
        """Whether it is in memory: always."""
        return True

    def is_disk_replica(self) -> bool:
        """Whether it is in a file system that all share: never."""
        return False

    def is_local_disk_replica(self) -> bool:
        """Whether it is on a disk of its node: never."""
        return False

    def get_memory_descriptor(self) -> MemoryDescriptor:
        """Return where it lies."""
        return self._memory

    def get_disk_descriptor(self) -> DiskDescriptor:
        """Raise: it is in memory.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("this replica is in memory: it has no DiskDescriptor")


class DescriptorCalls(AddressCalls):
    """Where the replicas of objects are."""

    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        """Return the replicas of an object; none when it is not there."""
        return self.batch_get_replica_desc([key]).get(key, [])

    def batch_get_replica_desc(self, keys: Sequence[str]) -> dict[str, list[ReplicaDescriptor]]:
        """Return the replicas of those objects that are there.

        One question to the master a key: for people and tests, not for every request.
        """
        client = self._client
        found: dict[str, list[ReplicaDescriptor]] = {}
        if client is None:
            return found
        try:
            endpoints = {each.name: _endpoint(each) for each in client.members()}
            for key in keys:
                if key not in found and (explained := _explain(client, self._key(key))):
                    found[key] = _replicas(explained, endpoints)
        except StoreError as error:
            self._log(error)
        return found


def _endpoint(member: Member) -> str:
    return member.addresses[0] if member.addresses else member.name


def _explain(client: Client, key: str) -> Explanation | None:
    try:
        explained = client.explain(key)
    except ObjectNotFoundError:
        return None
    return explained if explained.stat is not None else None


def _replicas(explained: Explanation, endpoints: dict[str, str]) -> list[ReplicaDescriptor]:
    assert explained.stat is not None
    made = []
    for place in explained.places:
        descriptor = Descriptor()
        descriptor.size = explained.stat.size_bytes
        descriptor.buffer_address = place.extents[0][0] * PAGE_BYTES if place.extents else 0
        descriptor.transport_endpoint = endpoints.get(place.node, place.node)
        status = ReplicaStatus.COMPLETE if place.is_complete else ReplicaStatus.PROCESSING
        made.append(ReplicaDescriptor(status, MemoryDescriptor(descriptor)))
    return made
