"""Memory that is added to the pool, and taken out of it, while a client runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from mooncake._store.numbers import ErrorNumber
from mooncake._store.segment import Segment, host_address
from mooncake._store.tasks import TaskCalls
from mooncake_store.errors import StoreError

__all__ = ["SegmentCalls"]

_FAILED = int(ErrorNumber.INTERNAL_ERROR)


class SegmentCalls(TaskCalls):
    """Segments of this client.  Each is a store server process; its objects go with it."""

    def allocate_and_mount_segment(
        self, size: int, protocol: str = "tcp", location: str = ""
    ) -> dict[str, Any]:
        """Add memory to the pool.

        Returns:
            `ret` 0 with `segment_ids` and `allocated_size`, or a negative `ret` and no ids.
        """
        del protocol, location
        client, settings = self._client, self._settings
        if client is None or settings is None or size <= 0:
            return {"ret": _FAILED, "segment_ids": [], "allocated_size": 0}
        try:
            address = host_address(settings.local_hostname, settings.master)
            segment = Segment(size, settings.master, address)
        except StoreError as error:
            self._log(error)
            return {"ret": _FAILED, "segment_ids": [], "allocated_size": 0}
        with self._setup_lock:
            self._segments[segment.id] = segment
        return {"ret": 0, "segment_ids": [segment.id], "allocated_size": segment.size_bytes}

    def mount_segment(
        self, path: str, size: int, offset: int = 0, protocol: str = "tcp", location: str = ""
    ) -> dict[str, Any]:
        """Refuse: memory of others' files is never served, only memory that a server has made."""
        del size, offset, protocol, location
        self._log(f"mount_segment({path!r}): take allocate_and_mount_segment")
        return {"ret": _FAILED, "segment_ids": []}

    def unmount_segment(self, segment_ids: Sequence[str], grace_period_seconds: int = 0) -> int:
        """As unmount_and_free_segment: here no segment stays allocated when it is not mounted."""
        return self.unmount_and_free_segment(segment_ids, grace_period_seconds)

    def unmount_and_free_segment(
        self, segment_ids: Sequence[str], grace_period_seconds: int = 0
    ) -> int:
        """Take segments of this client out of the pool.

        With a grace period their objects are moved to other servers first, as far as that goes
        within it; what is left then is lost.

        Returns:
            0, or -1 when one of them is not known; then nothing is done.
        """
        client = self._client
        with self._setup_lock:
            if client is None or any(each not in self._segments for each in segment_ids):
                return _FAILED
            leaving = [self._segments.pop(each) for each in dict.fromkeys(segment_ids)]
            if self._own_segment in leaving:
                self._own_segment = None
        end = time.monotonic() + grace_period_seconds
        for segment in leaving:
            if grace_period_seconds > 0:
                self._drain(segment, end)
            segment.close()
        return 0

    def _drain(self, segment: Segment, end: float) -> None:
        client = self._client
        if client is None:
            return
        try:
            task = client.drain(segment.name)
            while time.monotonic() < end:
                now = client.task(task.id)
                if now is None or now.has_ended or now.state == "blocked":
                    return
                time.sleep(0.05)
        except StoreError as error:
            self._log(error)

    def unmount_local_disk_segment(self, grace_period_seconds: int = 0) -> int:
        """Return 0: there is no segment on disk."""
        del grace_period_seconds
        return 0

    def get_offload_rpc_read_count(self) -> int:
        """Return 0: nothing is read from a disk."""
        return 0
