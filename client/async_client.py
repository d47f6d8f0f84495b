"""The client for asyncio: the same calls, carried out by the engine's own threads."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from mooncake_store.client import native as _native
from mooncake_store.client.client import CLOSE_TIMEOUT_NS, TENSOR_ATTEMPTS, open_handle
from mooncake_store.client.config import ClientConfig
from mooncake_store.client.core import ClientCore, Memory, encode_key
from mooncake_store.client.native import ffi, lib
from mooncake_store.client.results import Counters, Listed, Member, ObjectStat
from mooncake_store.errors import (
    BufferTooSmallError,
    ClosedError,
    ObjectNotFoundError,
    RequestError,
    Status,
    StoreError,
    error_from_status,
)

if TYPE_CHECKING:
    from mooncake_store.client.commands import Command

__all__ = ["AsyncClient"]

Result = TypeVar("Result")

_c = _native.native
# cl_operation
(
    _EXISTS,
    _GET,
    _GET_INTO,
    _PUT,
    _REMOVE,
    _MATCH,
    _PIN,
    _UNPIN,
    _TOUCH,
    _SIZES,
    _COMMAND,
    _RANGE,
) = range(12)


class AsyncClient:
    """`Client` for one event loop; arguments, answers and failures are the same.

    Open it inside the loop, with `async with`, or with `await AsyncClient.open(...)`.

    Example:
        >>> async def main():
        ...     async with AsyncClient() as store:
        ...         await store.put("async", b"value")
        ...         return await store.get("async")
        >>> asyncio.run(main())
        b'value'
    """

    def __init__(
        self, master: str | None = None, *, config: ClientConfig | None = None, **settings: Any
    ) -> None:
        try:
            self._core = ClientCore(replace(config or ClientConfig(), **settings))
        except TypeError as error:
            raise RequestError(f"no such setting: {error}", cause=error) from error
        if self._core.config.worker_threads < 1:
            raise RequestError("asyncio's calls are carried out by worker threads: at least 1")
        self._master = master
        self._handle = 0
        self._async: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    @classmethod
    async def open(
        cls, master: str | None = None, *, config: ClientConfig | None = None, **settings: Any
    ) -> AsyncClient:
        """Return a client that is connected."""
        client = cls(master, config=config, **settings)
        await client._connect()
        return client

    async def _connect(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Opening waits for the network; it happens once, so one of the loop's threads may do it.
        self._handle = await self._loop.run_in_executor(None, open_handle, self._core, self._master)
        self._async = _c.async_open()
        self._loop.add_reader(_c.async_descriptor(self._async), self._completed)

    async def __aenter__(self) -> AsyncClient:
        if not self._handle:
            await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for the calls under way, each at most its deadline, and end the session."""
        handle, self._handle = self._handle, 0
        if not handle or self._loop is None:
            return
        while self._waiting:
            await asyncio.wait(list(self._waiting.values()))
        self._loop.remove_reader(_c.async_descriptor(self._async))
        await self._loop.run_in_executor(None, lib.cl_close, handle, CLOSE_TIMEOUT_NS)
        self._async = None

    @property
    def last_error(self) -> StoreError | None:
        """The cause of the latest failure that was answered as a miss."""
        return self._core.last_error

    # ---- inside ----

    def _completed(self) -> None:
        for number, result in _c.async_completed(self._async):
            future = self._waiting.pop(number, None)
            if future is None or future.done():  # its caller was cancelled
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

    async def _call(self, operation: int, *arguments: Any, timeout_s: float | None) -> Any:
        if not self._handle or self._loop is None:
            raise ClosedError("this client is not open: use it inside `async with`")
        number: int = _c.async_submit(
            self._async, operation, self._handle, *arguments,
            self._core.timeout_s if timeout_s is None else timeout_s,
        )  # fmt: skip
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[number] = future
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            # The worker may be writing into the caller's buffer until the deadline: wait it out, so
            # that memory whose call has ended is never touched.
            if not future.done():
                await asyncio.wait([future])
            if future.done() and not future.cancelled():
                future.exception()
            raise

    async def _read(
        self, operation: int, *arguments: Any, miss: Any, timeout_s: float | None
    ) -> Any:
        try:
            return await self._call(operation, *arguments, timeout_s=timeout_s)
        except StoreError as error:
            return self._core.failed(error, miss)

    async def _read_batch(
        self,
        operation: int,
        keys: builtins.list[str],
        *rest: Any,
        miss: Any,
        timeout_s: float | None,
    ) -> builtins.list[Any]:
        try:
            results = await self._call(operation, keys, *rest, timeout_s=timeout_s)
        except StoreError as error:
            return [self._core.failed(error, miss)] * len(keys)
        if type(results) is tuple:
            return self._core.failed_items(results, miss)
        return results  # type: ignore[no-any-return]

    async def _run(self, command: Command[Result], timeout_s: float | None) -> Result:
        try:
            answer = await self._call(
                _COMMAND, command.method, command.flags, command.body, command.numbered,
                timeout_s=timeout_s,
            )  # fmt: skip
        except StoreError as error:
            error.key = command.key
            raise
        return command.decode(answer)

    def _hash(self, key: str) -> bytes:
        encoded = encode_key(key)
        out = ffi.new("uint8_t[16]")
        status = lib.cl_hash(self._handle, encoded, len(encoded), out)
        if status != Status.OK:
            raise error_from_status(status, key=key)
        return bytes(ffi.buffer(out))

    # ---- reading ----

    async def get(self, key: str, *, timeout_s: float | None = None) -> bytes | None:
        """As `Client.get`."""
        value: bytes | None = await self._read(_GET, key, miss=None, timeout_s=timeout_s)
        return value

    async def get_into(
        self, key: str, buffer: Memory, *, timeout_s: float | None = None
    ) -> int | None:
        """As `Client.get_into`; when it is cancelled it ends only once the buffer is left alone."""
        size: int | None = await self._read(_GET_INTO, key, buffer, miss=None, timeout_s=timeout_s)
        return size

    async def get_batch(
        self, keys: Sequence[str], *, timeout_s: float | None = None
    ) -> builtins.list[bytes | StoreError | None]:
        """As `Client.get_batch`."""
        return await self._read_batch(_GET, list(keys), miss=None, timeout_s=timeout_s)

    async def get_batch_into(
        self, keys: Sequence[str], buffers: Sequence[Memory], *, timeout_s: float | None = None
    ) -> builtins.list[int | StoreError | None]:
        """As `Client.get_batch_into`."""
        return await self._read_batch(
            _GET_INTO, list(keys), list(buffers), miss=None, timeout_s=timeout_s
        )

    async def exists(self, key: str, *, timeout_s: float | None = None) -> bool:
        """As `Client.exists`."""
        there: bool = await self._read(_EXISTS, key, miss=False, timeout_s=timeout_s)
        return there

    async def exists_batch(
        self, keys: Sequence[str], *, timeout_s: float | None = None
    ) -> builtins.list[bool | StoreError]:
        """As `Client.exists_batch`."""
        return await self._read_batch(_EXISTS, list(keys), miss=False, timeout_s=timeout_s)

    async def match_prefix(
        self,
        keys: Sequence[str],
        *,
        pin: bool = False,
        pin_timeout_s: float | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """How many of `keys`, from the first, are stored; `unpin(keys[:n])` ends the pins."""
        pin_ms = 0 if pin_timeout_s is None else max(1, round(pin_timeout_s * 1000))
        count: int = await self._read(_MATCH, list(keys), pin, pin_ms, miss=0, timeout_s=timeout_s)
        return count

    async def get_tensor(
        self, key: str, *, library: str | None = None, timeout_s: float | None = None
    ) -> Any:
        """As `Client.get_tensor`."""
        from mooncake_store.client import tensors

        for _ in range(TENSOR_ATTEMPTS):
            header = await self._tensor_header(key, timeout_s)
            if header is None:
                return None
            found, size = header
            made = tensors.make(found, size - tensors.HEADER_BYTES, library, key)
            target = tensors.describe(made, is_target=True)
            if await self._fill_tensor(key, target, size, timeout_s):
                return made
        return None

    async def get_tensor_into(
        self, key: str, tensor: Any, *, timeout_s: float | None = None
    ) -> bool:
        """As `Client.get_tensor_into`."""
        from mooncake_store.client import tensors

        target = tensors.describe(tensor, is_target=True)
        for _ in range(TENSOR_ATTEMPTS):
            header = await self._tensor_header(key, timeout_s)
            if header is None:
                return False
            found, size = header
            tensors.check_same(found, target.header, key)
            if await self._fill_tensor(key, target, size, timeout_s):
                return True
        return False

    async def _tensor_header(self, key: str, timeout_s: float | None) -> Any:
        from mooncake_store.client import tensors

        data = bytearray(tensors.HEADER_BYTES)
        size = await self._read(_SIZES, key, miss=None, timeout_s=timeout_s)
        if size is None:
            return None
        if await self._read(_RANGE, key, data, 0, miss=None, timeout_s=timeout_s) is None:
            return None
        return tensors.parse_header(data[: min(size, len(data))], key), size

    async def _fill_tensor(self, key: str, target: Any, size: int, timeout_s: float | None) -> bool:
        from mooncake_store.client import tensors

        header = bytearray(tensors.HEADER_BYTES)
        try:
            read = await self.get_into(key, [header, target.memory], timeout_s=timeout_s)
        except BufferTooSmallError:
            return False
        return read == size and bytes(header) == target.header.encode()

    # ---- storing ----

    async def put(
        self,
        key: str,
        value: Memory,
        *,
        replicas: int | None = None,
        min_replicas: int | None = None,
        ttl_s: float | None = None,
        hard_pin: bool = False,
        soft_pin: bool = False,
        parent: str | None = None,
        group: int = 0,
        preferred_server: int | None = None,
        timeout_s: float | None = None,
    ) -> bool:
        """As `Client.put`."""
        options = self._core.put_options(
            replicas=replicas, min_replicas=min_replicas, ttl_s=ttl_s, hard_pin=hard_pin,
            soft_pin=soft_pin, upsert=False, parent=parent, chain=False, group=group,
            preferred_server=preferred_server,
        )  # fmt: skip
        made = await self._call(_PUT, key, value, options, timeout_s=timeout_s)
        return self._core.stored(made, replicas, key)

    async def upsert(
        self,
        key: str,
        value: Memory,
        *,
        replicas: int | None = None,
        min_replicas: int | None = None,
        ttl_s: float | None = None,
        hard_pin: bool = False,
        soft_pin: bool = False,
        timeout_s: float | None = None,
    ) -> bool:
        """As `Client.upsert`."""
        options = self._core.put_options(
            replicas=replicas, min_replicas=min_replicas, ttl_s=ttl_s, hard_pin=hard_pin,
            soft_pin=soft_pin, upsert=True, parent=None, chain=False, group=0,
            preferred_server=None,
        )  # fmt: skip
        made = await self._call(_PUT, key, value, options, timeout_s=timeout_s)
        return self._core.stored(made, replicas, key)

    async def put_tensor(self, key: str, tensor: Any, **options: Any) -> bool:
        """As `Client.put_tensor`."""
        from mooncake_store.client import tensors

        described = tensors.describe(tensor)
        return await self.put(key, [described.header.encode(), described.memory], **options)

    async def put_batch(
        self,
        keys: Sequence[str],
        values: Sequence[Memory],
        *,
        replicas: int | None = None,
        min_replicas: int | None = None,
        ttl_s: float | None = None,
        hard_pin: bool = False,
        soft_pin: bool = False,
        parent: str | None = None,
        chain: bool = False,
        group: int = 0,
        timeout_s: float | None = None,
    ) -> builtins.list[bool | StoreError]:
        """As `Client.put_batch`."""
        options = self._core.put_options(
            replicas=replicas, min_replicas=min_replicas, ttl_s=ttl_s, hard_pin=hard_pin,
            soft_pin=soft_pin, upsert=False, parent=parent, chain=chain, group=group,
            preferred_server=None,
        )  # fmt: skip
        given = list(keys)
        results = await self._call(_PUT, given, list(values), options, timeout_s=timeout_s)
        return [
            made if isinstance(made, StoreError) else self._core.stored(made, replicas, key)
            for key, made in zip(given, results, strict=True)
        ]

    async def remove(
        self, key: str | Sequence[str], *, force: bool = False, timeout_s: float | None = None
    ) -> Any:
        """As `Client.remove`."""
        given = key if isinstance(key, str) else list(key)
        results = await self._call(_REMOVE, given, force, timeout_s=timeout_s)
        return results if isinstance(key, str) else list(results)

    async def remove_matching(
        self, prefix: str = "", *, regex: str | None = None, force: bool = False,
        timeout_s: float | None = None,
    ) -> int:  # fmt: skip
        """As `Client.remove_matching`."""
        from mooncake_store.client import commands

        cursor = count = 0
        while True:
            cursor, removed = await self._run(
                commands.remove_matching_step(
                    prefix if regex is None else regex, cursor,
                    regex=regex is not None, force=force,
                ),
                timeout_s,
            )  # fmt: skip
            count += removed
            if cursor == 0:
                return count

    # ---- what keeps an object, and looking around ----

    async def pin(
        self, key: str | Sequence[str], *, pin_timeout_s: float | None = None,
        timeout_s: float | None = None,
    ) -> Any:  # fmt: skip
        """As `Client.pin`."""
        pin_ms = 0 if pin_timeout_s is None else max(1, round(pin_timeout_s * 1000))
        given = key if isinstance(key, str) else list(key)
        results = await self._call(_PIN, given, pin_ms, timeout_s=timeout_s)
        return results if isinstance(key, str) else list(results)

    async def unpin(self, key: str | Sequence[str], *, timeout_s: float | None = None) -> Any:
        """As `Client.unpin`."""
        given = key if isinstance(key, str) else list(key)
        results = await self._call(_UNPIN, given, timeout_s=timeout_s)
        return results if isinstance(key, str) else list(results)

    async def touch(self, key: str | Sequence[str]) -> None:
        """As `Client.touch`."""
        given = key if isinstance(key, str) else list(key)
        await self._call(_TOUCH, given, timeout_s=None)

    async def annotate(
        self,
        key: str,
        *,
        hard_pin: bool | None = None,
        soft_pin: bool | None = None,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """As `Client.annotate`."""
        from mooncake_store.client import commands

        await self._run(commands.annotate(key, self._hash, hard_pin, soft_pin, ttl_s), timeout_s)

    async def change_replica(
        self,
        key: str,
        replicas: int,
        *,
        target: int | None = None,
        source: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """As `Client.change_replica`."""
        from mooncake_store.client import commands

        command = commands.change_replica(key, self._hash, replicas, target, source)
        count: int = await self._run(command, timeout_s)
        return count

    async def stat(self, key: str, *, timeout_s: float | None = None) -> ObjectStat | None:
        """As `Client.stat`."""
        from mooncake_store.client import commands

        names = {member.server: member.name for member in await self.members(timeout_s=timeout_s)}
        try:
            found: ObjectStat = await self._run(commands.stat(key, self._hash, names), timeout_s)
        except ObjectNotFoundError:
            return None
        return found

    async def list(
        self, prefix: str = "", *, regex: str | None = None, timeout_s: float | None = None
    ) -> AsyncIterator[Listed]:
        """As `Client.list`."""
        from mooncake_store.client import commands

        cursor = 0
        seen: set[str] = set()
        while True:
            cursor, found = await self._run(
                commands.list_step(
                    prefix if regex is None else regex, cursor, 1000, regex=regex is not None
                ),
                timeout_s,
            )
            for item in found:
                if item.key not in seen:
                    seen.add(item.key)
                    yield item
            if cursor == 0:
                return

    async def members(self, *, timeout_s: float | None = None) -> builtins.list[Member]:
        """As `Client.members`."""
        from mooncake_store.client import commands

        found: list[Member] = await self._run(commands.members(), timeout_s)
        return found

    async def counters(self, *, timeout_s: float | None = None) -> Counters:
        """As `Client.counters`."""
        from mooncake_store.client import commands

        counted: Counters = await self._run(commands.counters(_native.metric_names()), timeout_s)
        return counted
