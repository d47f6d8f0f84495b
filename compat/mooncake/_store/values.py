"""Objects as bytes: put, get, upsert, and what of them there is."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

from mooncake._store.base import (
    ANSWER_TIMEOUT_S,
    DATA_TIMEOUT_S,
    LEASE_MS,
    NOT_SET_UP,
    StoreBase,
)
from mooncake._store.memory import BufferHandle
from mooncake._store.numbers import ErrorNumber, number_of_error, number_of_status, numbers_of
from mooncake._store.replicate import ReplicateConfig
from mooncake._store.tenant import OF_DEFAULT, SEPARATOR
from mooncake_store.client import Client
from mooncake_store.client.native import native
from mooncake_store.errors import ObjectBusyError, RequestError, Status, StoreError

__all__ = ["ValueCalls"]

_NOT_FOUND = int(ErrorNumber.OBJECT_NOT_FOUND)
_REMOVED_AT_ONCE = 4096
_GROWN_ATTEMPTS = 4  # objects that are replaced by larger ones while they are read
# What a POSIX expression says otherwise than the one that engines write.
_NOT_POSIX = re.compile(r"\\[a-zA-Z]|\(\?|[*+?}]\?")


class ValueCalls(StoreBase):
    """Objects as bytes."""

    # ---- storing ----

    def put(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        """Store an object; 0 also when the key was there, which keeps its first value.

        Raises:
            TypeError: `value` has no buffer protocol.
        """
        memory = _memory(value)
        return self._put(key, memory, config) if memory.nbytes else NOT_SET_UP

    def put_parts(self, key: str, *args: Any, config: ReplicateConfig | None = None) -> int:
        """Store one object made of several buffers; of no bytes at all nothing is stored, and 0."""
        parts = [memory for memory in map(_memory, args) if memory.nbytes]
        return self._put(key, parts, config) if parts else 0

    def put_batch(
        self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None = None
    ) -> int:
        """Store objects; 0, or the number of the first failure.  Of a bad batch nothing is."""
        return self._put_batch(keys, values, config, upsert=False)

    def upsert(self, key: str, value: Any, config: ReplicateConfig | None = None) -> int:
        """Store an object in place of whatever the key named."""
        memory = _memory(value)
        return self._put(key, memory, config, upsert=True) if memory.nbytes else NOT_SET_UP

    def upsert_parts(self, key: str, *args: Any, config: ReplicateConfig | None = None) -> int:
        """Store one object made of several buffers in place of whatever the key named."""
        parts = [memory for memory in map(_memory, args) if memory.nbytes]
        return self._put(key, parts, config, upsert=True) if parts else 0

    def upsert_batch(
        self, keys: Sequence[str], values: Sequence[Any], config: ReplicateConfig | None = None
    ) -> int:
        """As put_batch, in place of whatever the keys named."""
        return self._put_batch(keys, values, config, upsert=True)

    def _put(
        self, key: str, value: Any, config: ReplicateConfig | None, *, upsert: bool = False
    ) -> int:
        client = self._client
        if client is None:
            return NOT_SET_UP
        batches = self._batches(client, config, 1)
        if batches is None:
            return NOT_SET_UP
        store = client.upsert if upsert else client.put
        try:
            store(self._key(key), value, timeout_s=DATA_TIMEOUT_S, **batches[0][0])
        except ObjectBusyError as error:
            return self._wait_for_other_put(client, [self._key(key)], [error])[0]
        except StoreError as error:
            return self._failure(error)
        return 0

    def _put_batch(
        self,
        keys: Sequence[str],
        values: Sequence[Any],
        config: ReplicateConfig | None,
        *,
        upsert: bool,
    ) -> int:
        client = self._client
        memories = [_memory(value) for value in values]
        if client is None or len(keys) != len(memories):
            return NOT_SET_UP
        if not all(memory.nbytes for memory in memories) or not all(keys):
            return NOT_SET_UP
        if upsert or (config is not None and config.group_ids is not None):
            if config is not None and len(config.group_ids or keys) != len(keys):
                return NOT_SET_UP
            numbers = [
                self._put(key, memory, _one_of(config, index), upsert=upsert)
                for index, (key, memory) in enumerate(zip(keys, memories, strict=True))
            ]
            return next((number for number in numbers if number < 0), 0)
        try:
            results = client.put_batch(
                self._keys(keys), memories, timeout_s=DATA_TIMEOUT_S,
                **self._options(client, config),
            )  # fmt: skip
        except StoreError as error:
            return self._failure(error)
        for key, result in zip(keys, results, strict=True):
            if isinstance(result, ObjectBusyError):
                number = self._wait_for_other_put(client, [self._key(key)], [result])[0]
            else:
                number = self._failure(result) if isinstance(result, StoreError) else 0
            if number < 0:
                return number
        return 0

    def _wait_for_other_put(
        self, client: Client, keys: Sequence[str], errors: Sequence[object]
    ) -> list[int]:
        """Wait up to a second for another put of these keys: 0 for those that it has stored.

        The keys are as the store has them.  Who puts a key that another one is just putting wants
        it to be there.
        """
        end = time.monotonic() + 1.0
        pause_s = 0.002
        while True:
            try:
                there = native.client_exists_numbers(
                    client._handle, list(keys), 0, ANSWER_TIMEOUT_S
                )
            except StoreError as error:
                return [self._failure(error)] * len(keys)
            if all(number == 1 for number in there) or time.monotonic() > end:
                break
            time.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.05)
        busy = number_of_status(Status.BUSY)
        if not all(number == 1 for number in there):
            self._log(errors[0])
        return [0 if number == 1 else busy for number in there]

    # ---- reading ----

    def get(self, key: str, /) -> bytes:
        """Return the object's bytes; b"" when it is not there, or cannot be read (see the log)."""
        client = self._client
        if client is None:
            return b""
        try:
            value: bytes | None = native.client_get(client._handle, self._key(key), DATA_TIMEOUT_S)
        except StoreError as error:
            self._log(error)
            return b""
        return b"" if value is None else value

    def get_batch(self, keys: Sequence[str], /) -> list[bytes]:
        """Return for each key what `get` does."""
        client = self._client
        if client is None:
            return [b""] * len(keys)
        try:
            values = native.client_get(client._handle, self._keys(keys), DATA_TIMEOUT_S)
        except StoreError as error:
            self._log(error)
            return [b""] * len(keys)
        return [value if isinstance(value, bytes) else b"" for value in values]

    def get_buffer(self, key: str, /) -> BufferHandle | None:
        """Return the object in memory that may be written; None: it is not there."""
        return self.batch_get_buffer([key])[0]

    def batch_get_buffer(self, keys: Sequence[str], /) -> list[BufferHandle | None]:
        """Return for each key what `get_buffer` does."""
        client = self._client
        handles: list[BufferHandle | None] = [None] * len(keys)
        if client is None:
            return handles
        wanted, keys = list(range(len(keys))), self._keys(keys)
        try:
            for _ in range(_GROWN_ATTEMPTS):
                sizes = native.client_sizes(
                    client._handle, [keys[index] for index in wanted], ANSWER_TIMEOUT_S
                )
                made = [
                    (index, BufferHandle(size))
                    for index, size in zip(wanted, sizes, strict=True)
                    if isinstance(size, int)
                ]
                if not made:
                    break
                read = native.client_get_addresses(
                    client._handle,
                    [keys[index] for index, _ in made],
                    [handle.ptr() for _, handle in made],
                    [len(handle) for _, handle in made],
                    None,
                    False,
                    DATA_TIMEOUT_S,
                )
                wanted = []
                for (index, handle), count in zip(made, read, strict=True):
                    if count == -Status.BUFFER_TOO_SMALL:
                        wanted.append(index)
                    elif count >= 0:
                        del handle[count:]
                        handles[index] = handle
                if not wanted:
                    break
        except StoreError as error:
            self._log(error)
        return handles

    # ---- what there is ----

    def is_exist(self, key: str, /) -> int:
        """Return 1 or 0; 0 also when nobody can tell, because callers take it for a truth value."""
        return 1 if self.batch_is_exist([key])[0] == 1 else 0

    def batch_is_exist(self, keys: list[str]) -> list[int]:
        """Return for each key 1 or 0, or the number of the failure to find out.

        What is there is not evicted for 5 seconds, so that who asks can read it.
        """
        client = self._client
        if client is None:
            return [NOT_SET_UP] * len(keys)
        try:
            found: list[int] = native.client_exists_numbers(
                client._handle, self._keys(keys), LEASE_MS, ANSWER_TIMEOUT_S
            )
        except RequestError as error:  # more keys than a batch has
            return self._exist_in_parts(keys, error)
        except StoreError as error:
            return [self._failure(error)] * len(keys)
        if found and min(found) < 0:
            bad_key = -Status.BAD_KEY  # none can be stored under it
            found = numbers_of([0 if each == bad_key else each for each in found])
            if min(found) < 0:
                self._log("batch_is_exist: the store could not be asked")
        return found

    def _exist_in_parts(self, keys: Sequence[str], error: RequestError) -> list[int]:
        part = 32768
        if len(keys) <= part:
            return [self._failure(error)] * len(keys)
        found: list[int] = []
        for begin in range(0, len(keys), part):
            found += self.batch_is_exist(list(keys[begin : begin + part]))
        return found

    def get_size(self, key: str, /) -> int:
        """Return the object's bytes, or -704 when it is not there."""

        def size_of(client: Client) -> int:
            size = native.client_sizes(client._handle, self._key(key), ANSWER_TIMEOUT_S)
            return _NOT_FOUND if size is None else int(size)

        return self._guarded(size_of)

    # ---- removing ----

    def remove(self, key: str, force: bool = False) -> int:
        """Remove an object: 0; -704 when it is not there, -706 when a hard pin keeps it.

        No read that begins later finds it; a read under way ends with the right bytes or a miss.
        So nobody's reads keep an object from being removed.
        """
        return self._guarded(
            lambda client: 0 if client.remove(self._key(key), force=force) else _NOT_FOUND
        )

    def batch_remove(self, keys: Sequence[str], force: bool = False) -> list[int]:
        """Return for each key what `remove` does."""
        client = self._client
        if client is None:
            return [NOT_SET_UP] * len(keys)
        try:
            results = client.remove(self._keys(keys), force=force)
        except StoreError as error:
            return [self._failure(error)] * len(keys)
        return [
            number_of_error(result)
            if isinstance(result, StoreError)
            else (0 if result else _NOT_FOUND)
            for result in results
        ]

    def remove_all(self, force: bool = False) -> int:
        """Remove everything of this client's tenant, and of no other; return how many that were.

        Args:
            force: Hard-pinned objects too.
        """

        def remove(client: Client) -> int:
            if self._prefix:
                return client.remove_matching(self._prefix, force=force)
            return client.remove_matching(regex=OF_DEFAULT, force=force)

        return self._guarded(remove)

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Remove what has the pattern anywhere in its key; return how many, or -600 for none."""
        try:
            pattern = re.compile(regex_pattern)
        except re.error as error:
            self._log(f"remove_by_regex: {regex_pattern!r} is no expression: {error}")
            return NOT_SET_UP

        # The master looks for what it can look for; the rest is looked for here.
        is_common = len(regex_pattern) < 200 and not _NOT_POSIX.search(regex_pattern)

        def remove(client: Client) -> int:
            if self._prefix or not is_common:
                found = client.list(self._prefix)
            else:
                found = client.list(regex=regex_pattern)
            skipped = len(self._prefix)
            keys = [
                each.key
                for each in found
                if (self._prefix or not each.key.startswith(SEPARATOR))
                and pattern.search(each.key[skipped:])
            ]
            return sum(
                result is True
                for begin in range(0, len(keys), _REMOVED_AT_ONCE)
                for result in client.remove(keys[begin : begin + _REMOVED_AT_ONCE], force=force)
            )

        return self._guarded(remove)


def _memory(value: Any) -> memoryview:
    """Return the bytes of a value.

    Raises:
        TypeError: It has no buffer protocol.
    """
    if isinstance(value, memoryview) and value.c_contiguous:
        return value
    memory = memoryview(value)
    return memory if memory.c_contiguous else memoryview(memory.tobytes())


def _one_of(config: ReplicateConfig | None, index: int) -> ReplicateConfig | None:
    """The wishes of a batch for one of its keys."""
    if config is None or config.group_ids is None:
        return config
    one = ReplicateConfig()
    for name in ReplicateConfig.__slots__:
        setattr(one, name, getattr(config, name))
    one.group_ids = [config.group_ids[index]]
    return one
