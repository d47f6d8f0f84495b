"""The client for asyncio: the same calls, carried out by the engine's own threads."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from mooncake_store.client import native as _native
from mooncake_store.client.calls import hash_of
from mooncake_store.client.client import CLOSE_TIMEOUT_NS
from mooncake_store.client.config import ClientConfig
from mooncake_store.client.core import (
    ClientCore,
    Memory,
    Operation,
    keys_of,
    per_key,
    pin_deadline_ms,
    read_share,
)
from mooncake_store.client.native import lib
from mooncake_store.client.opening import open_handle
from mooncake_store.errors import (
    ClosedError,
    RequestError,
    StoreError,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from mooncake_store.client.commands import Command
    from mooncake_store.client.options import PutOptions
    from mooncake_store.client.results import (
        Counters,
        Explanation,
        Listed,
        Member,
        ObjectStat,
        Task,
    )
    from mooncake_store.client.steps import Read, Steps
    from mooncake_store.transfer_engine.priority import Priority, Share

__all__ = ["AsyncClient"]

Result = TypeVar("Result")

_c = _native.native


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
                Operation.COMMAND, command.method, command.flags, command.body, command.numbered,
                timeout_s=timeout_s,
            )  # fmt: skip
        except StoreError as error:
            error.key = command.key
            raise
        return command.decode(answer)

    async def _carry_out(self, steps: Steps[Result], timeout_s: float | None) -> Result:
        """As `Client._carry_out`."""
        go_on: Callable[[Any], Any] = steps.send
        outcome: Any = None
        while True:
            try:
                step = go_on(outcome)
            except StopIteration as end:
                result: Result = end.value
                return result
            try:
                go_on, outcome = steps.send, await self._do(step, timeout_s)
            except StoreError as error:
                go_on, outcome = steps.throw, error

    async def _do(self, step: Command[Any] | Read, timeout_s: float | None) -> Any:
        from mooncake_store.client.commands import Command

        if isinstance(step, Command):
            return await self._run(step, timeout_s)
        return await self._read(step.operation, *step.arguments, miss=None, timeout_s=timeout_s)

    def _hash(self, key: str) -> bytes:
        return hash_of(self._handle, key)

    # ---- reading ----

    async def get(
        self,
        key: str,
        *,
        priority: Priority | None = None,
        share: Share | None = None,
        timeout_s: float | None = None,
    ) -> bytes | None:
        """As `Client.get`."""
        value: bytes | None = await self._read(
            Operation.GET, key, read_share(priority, share),
            miss=None, timeout_s=timeout_s,
        )  # fmt: skip
        return value

    async def get_into(
        self,
        key: str,
        buffer: Memory,
        *,
        priority: Priority | None = None,
        share: Share | None = None,
        timeout_s: float | None = None,
    ) -> int | None:
        """As `Client.get_into`; when it is cancelled it ends only once the buffer is left alone."""
        size: int | None = await self._read(
            Operation.GET_INTO,
            key,
            buffer,
            read_share(priority, share),
            miss=None,
            timeout_s=timeout_s,
        )
        return size

    async def get_range(
        self,
        key: str,
        buffer: Memory,
        offset: int,
        *,
        priority: Priority | None = None,
        share: Share | None = None,
        timeout_s: float | None = None,
    ) -> int | None:
        """As `Client.get_range`."""
        if not 0 <= offset < 2**63:
            raise RequestError(f"offset is a number of bytes, not {offset}", key=key)
        size: int | None = await self._read(
            Operation.GET_RANGE,
            key,
            buffer,
            offset,
            read_share(priority, share),
            miss=None,
            timeout_s=timeout_s,
        )
        return size

    async def get_batch(
        self,
        keys: Sequence[str],
        *,
        priority: Priority | None = None,
        share: Share | None = None,
        timeout_s: float | None = None,
    ) -> builtins.list[bytes | StoreError | None]:
        """As `Client.get_batch`."""
        return await self._read_batch(
            Operation.GET, list(keys), read_share(priority, share),
            miss=None, timeout_s=timeout_s,
        )  # fmt: skip

    async def get_batch_into(
        self,
        keys: Sequence[str],
        buffers: Sequence[Memory],
        *,
        priority: Priority | None = None,
        share: Share | None = None,
        timeout_s: float | None = None,
    ) -> builtins.list[int | StoreError | None]:
        """As `Client.get_batch_into`."""
        return await self._read_batch(
            Operation.GET_INTO,
            list(keys),
            list(buffers),
            read_share(priority, share),
            miss=None,
            timeout_s=timeout_s,
        )

    async def exists(self, key: str, *, timeout_s: float | None = None) -> bool:
        """As `Client.exists`."""
        there: bool = await self._read(Operation.EXISTS, key, miss=False, timeout_s=timeout_s)
        return there

    async def exists_batch(
        self, keys: Sequence[str], *, timeout_s: float | None = None
    ) -> builtins.list[bool | StoreError]:
        """As `Client.exists_batch`."""
        return await self._read_batch(Operation.EXISTS, list(keys), miss=False, timeout_s=timeout_s)

    async def match_prefix(
        self,
        keys: Sequence[str],
        *,
        pin: bool = False,
        pin_timeout_s: float | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """How many of `keys`, from the first, are stored; `unpin(keys[:n])` ends the pins."""
        count: int = await self._read(
            Operation.MATCH_PREFIX, list(keys), pin, pin_deadline_ms(pin_timeout_s),
            miss=0, timeout_s=timeout_s,
        )  # fmt: skip
        return count

    async def get_tensor(
        self, key: str, *, library: str | None = None, timeout_s: float | None = None
    ) -> Any:
        """As `Client.get_tensor`."""
        from mooncake_store.client import steps

        return await self._carry_out(steps.get_tensor(key, library), timeout_s)

    async def get_tensor_into(
        self, key: str, tensor: Any, *, timeout_s: float | None = None
    ) -> bool:
        """As `Client.get_tensor_into`."""
        from mooncake_store.client import steps

        return await self._carry_out(steps.get_tensor_into(key, tensor), timeout_s)

    # ---- storing ----

    async def put(
        self,
        key: str,
        value: Memory,
        *,
        timeout_s: float | None = None,
        **options: Unpack[PutOptions],
    ) -> bool:
        """As `Client.put`."""
        packed = self._core.put_options(options)
        made = await self._call(Operation.PUT, key, value, packed, timeout_s=timeout_s)
        return self._core.stored(made, options, key)

    async def upsert(
        self,
        key: str,
        value: Memory,
        *,
        timeout_s: float | None = None,
        **options: Unpack[PutOptions],
    ) -> bool:
        """As `Client.upsert`."""
        packed = self._core.put_options(options, upsert=True)
        made = await self._call(Operation.PUT, key, value, packed, timeout_s=timeout_s)
        return self._core.stored(made, options, key)

    async def put_tensor(
        self,
        key: str,
        tensor: Any,
        *,
        timeout_s: float | None = None,
        **options: Unpack[PutOptions],
    ) -> bool:
        """As `Client.put_tensor`."""
        from mooncake_store.client import tensors

        described = tensors.describe(tensor)
        value = [described.header.encode(), described.memory]
        return await self.put(key, value, timeout_s=timeout_s, **options)

    async def put_batch(
        self,
        keys: Sequence[str],
        values: Sequence[Memory],
        *,
        chain: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[PutOptions],
    ) -> builtins.list[bool | StoreError]:
        """As `Client.put_batch`."""
        packed = self._core.put_options(options, chain=chain)
        given = list(keys)
        results = await self._call(Operation.PUT, given, list(values), packed, timeout_s=timeout_s)
        return self._core.stored_batch(results, options, given)

    async def remove(
        self, key: str | Sequence[str], *, force: bool = False, timeout_s: float | None = None
    ) -> Any:
        """As `Client.remove`."""
        results = await self._call(Operation.REMOVE, keys_of(key), force, timeout_s=timeout_s)
        return per_key(key, results)

    async def remove_matching(
        self, prefix: str = "", *, regex: str | None = None, force: bool = False,
        timeout_s: float | None = None,
    ) -> int:  # fmt: skip
        """As `Client.remove_matching`."""
        from mooncake_store.client import steps

        return await self._carry_out(steps.remove_matching(prefix, regex, force=force), timeout_s)

    # ---- what keeps an object, and looking around ----

    async def pin(
        self, key: str | Sequence[str], *, pin_timeout_s: float | None = None,
        timeout_s: float | None = None,
    ) -> Any:  # fmt: skip
        """As `Client.pin`."""
        results = await self._call(
            Operation.PIN, keys_of(key), pin_deadline_ms(pin_timeout_s), timeout_s=timeout_s
        )
        return per_key(key, results)

    async def unpin(self, key: str | Sequence[str], *, timeout_s: float | None = None) -> Any:
        """As `Client.unpin`."""
        results = await self._call(Operation.UNPIN, keys_of(key), timeout_s=timeout_s)
        return per_key(key, results)

    async def touch(self, key: str | Sequence[str]) -> None:
        """As `Client.touch`."""
        await self._call(Operation.TOUCH, keys_of(key), timeout_s=None)

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
        from mooncake_store.client import steps

        return await self._carry_out(steps.stat(key, self._hash), timeout_s)

    async def explain(self, key: str, *, timeout_s: float | None = None) -> Explanation:
        """As `Client.explain`."""
        from mooncake_store.client import steps

        return await self._carry_out(steps.explain(key, self._hash), timeout_s)

    async def list(
        self,
        prefix: str = "",
        *,
        regex: str | None = None,
        limit: int | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Listed]:
        """As `Client.list`."""
        from mooncake_store.client import steps

        listing = steps.Listing(prefix, regex, limit)
        while (page := listing.next_page()) is not None:
            for item in listing.take(await self._run(page, timeout_s)):
                yield item

    async def members(self, *, timeout_s: float | None = None) -> builtins.list[Member]:
        """As `Client.members`."""
        from mooncake_store.client import commands

        found: list[Member] = await self._run(commands.members(), timeout_s)
        return found

    async def forget_member(self, node: str, *, timeout_s: float | None = None) -> None:
        """As `Client.forget_member`."""
        from mooncake_store.client import commands

        await self._carry_out(commands.forget_member(node), timeout_s)

    async def counters(self, *, timeout_s: float | None = None) -> Counters:
        """As `Client.counters`."""
        from mooncake_store.client import commands

        counted: Counters = await self._run(commands.counters(_native.metric_names()), timeout_s)
        return counted

    # ---- tasks ----

    async def move(
        self,
        key: str,
        *,
        source: int | None = None,
        target: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """As `Client.move`."""
        return await self.change_replica(key, 0, target=target, source=source, timeout_s=timeout_s)

    async def drain(self, server: int | str, *, timeout_s: float | None = None) -> Task:
        """As `Client.drain`."""
        return await self._start("drain", timeout_s, source=server)

    async def undrain(self, server: int | str, *, timeout_s: float | None = None) -> bool:
        """As `Client.undrain`."""
        from mooncake_store.client import tasks

        return await self._carry_out(tasks.undrain(server), timeout_s)

    async def replicate_prefix(
        self, prefix: str, replicas: int, *, timeout_s: float | None = None
    ) -> Task:
        """As `Client.replicate_prefix`."""
        return await self._start("replicate", timeout_s, prefix=prefix, replicas=replicas)

    async def move_prefix(
        self,
        prefix: str,
        source: int | str,
        target: int | str | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Task:
        """As `Client.move_prefix`."""
        return await self._start("move", timeout_s, prefix=prefix, source=source, target=target)

    async def repair(self, *, timeout_s: float | None = None) -> Task:
        """As `Client.repair`."""
        return await self._start("repair", timeout_s)

    async def _start(
        self,
        kind: str,
        timeout_s: float | None,
        *,
        prefix: str = "",
        source: int | str | None = None,
        target: int | str | None = None,
        replicas: int = 0,
    ) -> Task:
        from mooncake_store.client import tasks

        order = tasks.Order(kind, source, target, replicas, prefix)
        return await self._carry_out(tasks.start(order), timeout_s)

    async def tasks(self, *, timeout_s: float | None = None) -> builtins.list[Task]:
        """As `Client.tasks`."""
        from mooncake_store.client import tasks

        return await self._carry_out(tasks.listing(), timeout_s)

    async def task(
        self, task: str, *, failures: int = 256, timeout_s: float | None = None
    ) -> Task | None:
        """As `Client.task`."""
        from mooncake_store.client import tasks

        return await self._carry_out(tasks.one(task, failures), timeout_s)

    async def cancel_task(self, task: str, *, timeout_s: float | None = None) -> None:
        """As `Client.cancel_task`."""
        from mooncake_store.client import tasks

        await self._carry_out(tasks.cancel(task), timeout_s)
