"""Objects that are put, or read, range by range."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from mooncake._store.base import ANSWER_TIMEOUT_S, NOT_SET_UP, SETUP_TIMEOUT_S
from mooncake._store.numbers import ErrorNumber
from mooncake._store.replicate import ReplicateConfig
from mooncake._store.segments import SegmentCalls
from mooncake._store.values import _one_of
from mooncake_store.client import Client
from mooncake_store.client.native import ffi, native
from mooncake_store.errors import ClosedError, StoreError

__all__ = ["SessionCalls"]

_NOT_FOUND = int(ErrorNumber.OBJECT_NOT_FOUND)
_EXISTS = int(ErrorNumber.OBJECT_ALREADY_EXISTS)
_NO_ROOM = int(ErrorNumber.BUFFER_OVERFLOW)
_READ_PIN_S = 300.0  # a session that is never ended keeps its objects for so long
_PUT_BYTES_MAX = 8 << 30  # of all unfinished puts of a client


@dataclass(slots=True)
class _Put:
    """An object that is being put together."""

    memory: memoryview
    address: int
    size: int
    config: ReplicateConfig | None
    is_open: bool = True  # its memory is there; read and changed with the lock held
    lock: threading.Lock = field(default_factory=threading.Lock)

    def end(self) -> None:
        """Let no more be written."""
        with self.lock:
            self.is_open = False


class SessionCalls(SegmentCalls):
    """Sessions: a put is put together in memory here and stored at its end; a read pins."""

    def __init__(self) -> None:
        super().__init__()
        self._puts: dict[str, _Put] = {}
        self._reads: dict[str, int] = {}  # sizes
        self._session_lock = threading.Lock()
        self._pinning: Client | None = None

    # ---- putting ----

    def batch_put_session_start(
        self, keys: Sequence[str], sizes: Sequence[int], config: ReplicateConfig | None = None
    ) -> list[int]:
        """Begin objects of known sizes that are written range by range.

        Nobody sees them before batch_put_session_end.

        Returns:
            For each key 0; -705 when it is stored; -600 when it has a session, or no size; -10
            when there is no memory for it.
        """
        client = self._client
        if (
            client is None
            or len(keys) != len(sizes)
            or self._batches(client, config, len(keys)) is None
        ):
            return [NOT_SET_UP] * len(keys)
        there = self.batch_is_exist(list(keys))
        return [
            _EXISTS if found == 1 else self._start_put(key, size, _one_of(config, index))
            for index, (key, size, found) in enumerate(zip(keys, sizes, there, strict=True))
        ]

    def _start_put(self, key: str, size: int, config: ReplicateConfig | None) -> int:
        client = self._client
        if client is None or size <= 0 or not key:
            return NOT_SET_UP
        with self._session_lock:
            if key in self._puts:
                return NOT_SET_UP
            if sum(put.size for put in self._puts.values()) + size > _PUT_BYTES_MAX:
                self._log(f"unfinished puts have more than {_PUT_BYTES_MAX >> 30} GiB: end some")
                return _NO_ROOM
            try:
                memory = client.alloc(size)
            except StoreError as error:
                return self._failure(error)
            address = int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))
            self._puts[key] = _Put(memory, address, size, config)
        return 0

    def batch_put_from_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_dst_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """Write pieces of memory to offsets in objects whose sessions are open.

        Returns:
            For each key the bytes written, or -600: no session, or beyond the object's end.
        """
        if not len(keys) == len(all_buffer_ptrs) == len(all_sizes) == len(all_dst_offsets):
            return [NOT_SET_UP] * len(keys)
        return [
            self._write_ranges(*each)
            for each in zip(keys, all_buffer_ptrs, all_sizes, all_dst_offsets, strict=True)
        ]

    def _write_ranges(
        self, key: str, addresses: Sequence[int], sizes: Sequence[int], offsets: Sequence[int]
    ) -> int:
        with self._session_lock:
            put = self._puts.get(key)
        if put is None or not len(addresses) == len(sizes) == len(offsets):
            return NOT_SET_UP
        if not all(
            address > 0 and offset >= 0 and 0 <= size <= put.size - offset
            for address, size, offset in zip(addresses, sizes, offsets, strict=True)
        ):
            return NOT_SET_UP
        with put.lock:
            if not put.is_open:
                return NOT_SET_UP
            for address, size, offset in zip(addresses, sizes, offsets, strict=True):
                ctypes.memmove(put.address + offset, address, size)
        return sum(sizes)

    def batch_put_session_end(self, keys: Sequence[str]) -> list[int]:
        """Store what was put together: 0, the number of the failure, or -600 without a session."""
        return [self._end_put(key, put) for key, put in self._take_puts(keys)]

    def batch_put_session_revoke(self, keys: Sequence[str]) -> list[int]:
        """Drop what was put together: 0, or -600 without a session."""
        answers = []
        for _, put in self._take_puts(keys):
            answers.append(NOT_SET_UP if put is None else 0)
            if put is not None:
                self._free_put(put)
        return answers

    def _take_puts(self, keys: Sequence[str]) -> list[tuple[str, _Put | None]]:
        with self._session_lock:
            taken = [(key, self._puts.pop(key, None)) for key in keys]
        for _, put in taken:
            if put is not None:
                put.end()
        return taken

    def _end_put(self, key: str, put: _Put | None) -> int:
        if put is None:
            return NOT_SET_UP
        try:
            return self._put_addresses([key], [put.address], [put.size], put.config)[0]
        finally:
            self._free_put(put)

    def _free_put(self, put: _Put) -> None:
        client = self._client
        if client is not None:
            client.free(put.memory)

    # ---- reading ----

    def batch_get_session_start(self, keys: Sequence[str]) -> list[int]:
        """Begin to read objects range by range; until the end, at most 5 minutes, they stay.

        Returns:
            For each key 0, or -704.
        """
        client = self._client
        if client is None:
            return [NOT_SET_UP] * len(keys)
        stored = self._keys(keys)
        try:
            pinned = self._pinning_client().pin(stored, pin_timeout_s=_READ_PIN_S)
            sizes = native.client_sizes(client._handle, stored, ANSWER_TIMEOUT_S)
        except StoreError as error:
            return [self._failure(error)] * len(keys)
        answers = []
        with self._session_lock:
            for key, is_pinned, size in zip(keys, pinned, sizes, strict=True):
                is_there = is_pinned is True and isinstance(size, int)
                if is_there:
                    self._reads[key] = size
                answers.append(0 if is_there else _NOT_FOUND)
        return answers

    def batch_get_into_multi_buffer_ranges(
        self,
        keys: Sequence[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        all_src_offsets: Sequence[Sequence[int]],
    ) -> list[int]:
        """Read ranges of objects whose sessions are open into pieces of memory.

        Returns:
            For each key the bytes read, or a negative number; -600: no session, or beyond the end.
        """
        if not len(keys) == len(all_buffer_ptrs) == len(all_sizes) == len(all_src_offsets):
            return [NOT_SET_UP] * len(keys)
        answers = [NOT_SET_UP] * len(keys)
        names: list[str] = []
        targets: list[int] = []
        begins: list[int] = []
        lengths: list[int] = []
        counts: list[tuple[int, int]] = []
        given = zip(keys, all_buffer_ptrs, all_sizes, all_src_offsets, strict=True)
        for index, (key, addresses, sizes, offsets) in enumerate(given):
            size = self._reads.get(key)
            if size is None or not len(addresses) == len(sizes) == len(offsets):
                continue
            if not all(
                at >= 0 and 0 <= count <= size - at
                for at, count in zip(offsets, sizes, strict=True)
            ):
                continue
            names += [key] * len(sizes)
            targets += addresses
            begins += offsets
            lengths += sizes
            counts.append((index, len(sizes)))
        read = iter(self._read_ranges(names, targets, begins, lengths))
        for index, count in counts:
            of_key = [next(read) for _ in range(count)]
            answers[index] = min(of_key) if of_key and min(of_key) < 0 else sum(of_key)
        return answers

    def batch_get_session_end(self, keys: Sequence[str]) -> int:
        """End reading: 0, also for keys without a session."""
        with self._session_lock:
            ended = [key for key in dict.fromkeys(keys) if self._reads.pop(key, None) is not None]
        if self._client is None:
            return NOT_SET_UP
        try:
            if ended:
                self._pinning_client().unpin(self._keys(ended))
        except StoreError as error:
            return self._failure(error)
        return 0

    def _pinning_client(self) -> Client:
        """Return the client that holds the pins of sessions.

        One of its own: a master counts one session's pins and leases of a key together, and an
        unpin would leave the key to the longer deadline while the client's look-ups lease it.

        Raises:
            StoreError: It cannot be opened.
        """
        with self._session_lock:
            if self._settings is None or self._client is None:
                raise ClosedError("the store is closed")
            if self._pinning is None:
                self._pinning = Client(
                    self._settings.master,
                    strict=True,
                    timeout_s=ANSWER_TIMEOUT_S,
                    connect_timeout_s=SETUP_TIMEOUT_S,
                )
            return self._pinning

    def _forget_sessions(self) -> None:
        # The client's end gives back its memory and its pins.
        self._take_puts(list(self._puts))
        self._reads.clear()
        with self._session_lock:
            pinning, self._pinning = self._pinning, None
        if pinning is not None:
            pinning.close()
