"""The client for code that waits."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from mooncake_store.client import native as _native
from mooncake_store.client.address_calls import AddressCalls
from mooncake_store.client.config import ClientConfig
from mooncake_store.client.core import (
    ClientCore,
    Memory,
    keys_of,
    per_key,
    pin_deadline_ms,
    read_share,
)
from mooncake_store.client.memory_calls import MemoryCalls
from mooncake_store.client.native import ffi, lib
from mooncake_store.client.opening import open_handle
from mooncake_store.client.prefix_match import PrefixMatch
from mooncake_store.client.task_calls import TaskCalls
from mooncake_store.client.view import View
from mooncake_store.errors import (
    BufferTooSmallError,
    ClosedError,
    RequestError,
    Status,
    StoreError,
    UnavailableError,
    error_from_status,
)

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from mooncake_store.client.options import PutOptions
    from mooncake_store.client.results import (
        Counters,
        EventPage,
        Explanation,
        Listed,
        Member,
        ObjectStat,
        Statistics,
    )
    from mooncake_store.transfer_engine.priority import Priority, Share

__all__ = ["Client", "PrefixMatch"]

_c = _native.native
CLOSE_TIMEOUT_NS = 2_000_000_000  # for telling the master; without, the session times out


class Client(TaskCalls, MemoryCalls, AddressCalls):
    """A connection to a store, for any number of threads.

    Once it is open, reading calls (get, get_into, exists, match_prefix and their batches) answer a
    failure as a miss and keep its cause in `last_error`; with `strict` they raise.  Everything else
    raises a `StoreError`.  Every call ends within its `timeout_s`.

    Args:
        master: `host:port`, `unix:///path`, or the cluster `etcd://a,b,c/prefix`, of which
            whoever leads is followed; None takes $MOONCAKE_STORE_MASTER, else 127.0.0.1:7700.
        config: All settings; `settings` replace single ones by name.

    Raises:
        ConfigError: An address or a setting that cannot be.
        ClusterError: No master answers there.

    Example:
        >>> with Client() as store:
        ...     store.put("greeting", b"hello")
        ...     store.get("greeting")
        True
        b'hello'
    """

    def __init__(
        self, master: str | None = None, *, config: ClientConfig | None = None, **settings: Any
    ) -> None:
        self._handle = 0
        try:
            self._core = ClientCore(replace(config or ClientConfig(), **settings))
        except TypeError as error:
            raise RequestError(f"no such setting: {error}", cause=error) from error
        self._handle = open_handle(self._core, master)
        self._timeout_s = self._core.timeout_s
        self._allocated: dict[int, memoryview] = {}

    def close(self) -> None:
        """End the session: pins and unfinished puts end with it.  More than once is harmless.

        Calls of other threads that have begun end as they would have; what begins later raises
        ClosedError.
        """
        handle, self._handle = self._handle, 0
        if handle:
            lib.cl_close(handle, CLOSE_TIMEOUT_NS)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        # At interpreter exit the module may be half gone: the session times out by itself then.
        with contextlib.suppress(Exception):
            self.close()

    def __repr__(self) -> str:
        return f"Client({'open' if self._handle else 'closed'}, {self._core.name!r})"

    @property
    def last_error(self) -> StoreError | None:
        """The cause of the latest failure that was answered as a miss."""
        return self._core.last_error

    # ---- reading ----

    def get(
        self,
        key: str,
        *,
        priority: Priority | None = None,
        share: Share | None = None,
        timeout_s: float | None = None,
    ) -> bytes | None:
        """Return the object's bytes, or None when it is not there.

        Args:
            key: The object.
            priority: Among what this client moves over a network; None: URGENT.
                `Priority.PREFETCH` for what somebody may wait for later.
            share: Whose bytes these are, among those of one priority; None: nobody's.
            timeout_s: Deadline.

        Example:
            >>> store.get("absent") is None
            True
        """
        try:
            value: bytes | None = _c.client_get(
                self._handle, key,
                None if priority is None and share is None else read_share(priority, share),
                self._timeout_s if timeout_s is None else timeout_s,
            )  # fmt: skip
            return value
        except StoreError as error:
            return self._core.failed(error, None)

    def get_into(
        self,
        key: str,
        buffer: Memory,
        *,
        priority: Priority | None = None,
        share: Share | None = None,
        timeout_s: float | None = None,
    ) -> int | None:
        """Read the object into `buffer` and return its size, or None when it is not there.

        Args:
            key: The object.
            buffer: Writable memory, or (address, length).
            priority: As of get.
            share: As of get.
            timeout_s: Deadline.

        Raises:
            BufferTooSmallError: The object is larger; nothing was read.

        Example:
            >>> _ = store.put("some", b"bytes")
            >>> store.get_into("some", bytearray(8))
            5
        """
        try:
            size: int | None = _c.client_get_into(
                self._handle, key, buffer,
                None if priority is None and share is None else read_share(priority, share),
                self._timeout_s if timeout_s is None else timeout_s,
            )  # fmt: skip
            return size
        except StoreError as error:
            return self._core.failed(error, None)

    def get_range(
        self,
        key: str,
        buffer: Memory,
        offset: int,
        *,
        priority: Priority | None = None,
        share: Share | None = None,
        timeout_s: float | None = None,
    ) -> int | None:
        """Read the object's bytes from `offset` on into `buffer`.

        Args:
            key: The object.
            buffer: As of get_into; as many bytes are read as it has room for, or as there are.
            offset: Where to begin.
            priority: As of get.
            share: As of get.
            timeout_s: Deadline.

        Returns:
            Bytes read, 0 past the object's end; None when it is not there.

        Example:
            >>> _ = store.put("some", b"bytes")
            >>> buffer = bytearray(3)
            >>> store.get_range("some", buffer, 2), bytes(buffer)
            (3, b'tes')
        """
        if not 0 <= offset < 2**63:
            raise RequestError(f"offset is a number of bytes, not {offset}", key=key)
        try:
            size: int | None = _c.client_get_range(
                self._handle, key, buffer, offset,
                None if priority is None and share is None else read_share(priority, share),
                self._timeout_s if timeout_s is None else timeout_s,
            )  # fmt: skip
            return size
        except StoreError as error:
            return self._core.failed(error, None)

    def get_batch(
        self,
        keys: Sequence[str],
        *,
        priority: Priority | None = None,
        share: Share | None = None,
        timeout_s: float | None = None,
    ) -> builtins.list[bytes | StoreError | None]:
        """Return one result a key: bytes, None for a miss, a StoreError for a mistake.

        Example:
            >>> _ = store.put_batch(["a/1", "a/2"], [b"one", b"two"])
            >>> store.get_batch(["a/2", "a/3", "a/1"])
            [b'two', None, b'one']
        """
        return self._read_batch(
            _c.client_get, (list(keys), read_share(priority, share)), len(keys), None, timeout_s
        )

    def get_batch_into(
        self,
        keys: Sequence[str],
        buffers: Sequence[Memory],
        *,
        priority: Priority | None = None,
        share: Share | None = None,
        timeout_s: float | None = None,
    ) -> builtins.list[int | StoreError | None]:
        """Read objects into buffers; one result a key, as of get_into.

        Example:
            >>> _ = store.put("a/1", b"one")
            >>> store.get_batch_into(["a/1"], [bytearray(3)])
            [3]
        """
        return self._read_batch(
            _c.client_get_into,
            (list(keys), list(buffers), read_share(priority, share)),
            len(keys),
            None,
            timeout_s,
        )

    def exists(self, key: str, *, timeout_s: float | None = None) -> bool:
        """Return whether the object is stored.

        Example:
            >>> store.exists("absent")
            False
        """
        try:
            there: bool = _c.client_exists(
                self._handle, key, self._timeout_s if timeout_s is None else timeout_s
            )
            return there
        except StoreError as error:
            return self._core.failed(error, False)

    def exists_batch(
        self, keys: Sequence[str], *, timeout_s: float | None = None
    ) -> builtins.list[bool | StoreError]:
        """Return for each key whether it is stored.

        Example:
            >>> _ = store.put("a/1", b"one")
            >>> store.exists_batch(["a/1", "absent"])
            [True, False]
        """
        given = keys if type(keys) is list else list(keys)
        return self._read_batch(_c.client_exists, (given,), len(given), False, timeout_s)

    def match_prefix(
        self,
        keys: Sequence[str],
        *,
        pin: bool = False,
        pin_timeout_s: float | None = None,
        timeout_s: float | None = None,
    ) -> PrefixMatch:
        """Find how many of `keys`, from the first, are stored; pin them in the same step.

        Args:
            keys: A chain, as `prefix_keys` makes it.
            pin: Nothing of the match is evicted until unpin, the deadline or the client's end.
            pin_timeout_s: The pins' deadline; None: the client's end.
            timeout_s: Deadline of the call.

        Example:
            >>> _ = store.put_batch(["p/0", "p/1"], [b"x", b"y"])
            >>> with store.match_prefix(["p/0", "p/1", "p/2"], pin=True) as match:
            ...     match.count
            2
        """
        given = list(keys)
        try:
            count: int = _c.client_match_prefix(
                self._handle, given, pin, pin_deadline_ms(pin_timeout_s),
                self._timeout_s if timeout_s is None else timeout_s,
            )  # fmt: skip
        except StoreError as error:
            count = self._core.failed(error, 0)
        return PrefixMatch(self, given, count, is_pinned=pin)

    def view(self, key: str, *, timeout_s: float | None = None) -> View:
        """Return a context with the stored bytes themselves, as a read-only memoryview.

        On the holder's host nothing is copied.  Elsewhere, and for an object that lies in several
        pieces, the bytes are fetched and `is_copy` is True.

        Example:
            >>> _ = store.put("some", b"bytes")
            >>> with store.view("some") as memory:
            ...     bytes(memory)
            b'bytes'
        """
        handle = self._handle
        deadline = self._timeout_s if timeout_s is None else timeout_s
        try:
            opened = _c.client_view_open(handle, key, deadline)
        except UnavailableError:
            value = self.get(key, timeout_s=deadline)
            return View(None if value is None else memoryview(value), is_copy=True)
        except StoreError as error:
            opened = self._core.failed(error, None)
        if opened is None:
            return View(None)
        address, size_bytes, token = opened
        return View.at(address, size_bytes, partial(_c.client_view_close, handle, token))

    def get_tensor(
        self, key: str, *, library: str | None = None, timeout_s: float | None = None
    ) -> Any:
        """Return a stored tensor with its dtype and shape, or None when it is not there.

        Args:
            key: The object.
            library: `torch` or `numpy`; None: torch where it is installed, else numpy.
            timeout_s: Deadline of each of the two reads.

        Raises:
            RequestError: The object is no tensor.

        Example:
            >>> import numpy
            >>> _ = store.put_tensor("t", numpy.arange(6, dtype="int16").reshape(2, 3))
            >>> store.get_tensor("t", library="numpy").tolist()
            [[0, 1, 2], [3, 4, 5]]
        """
        from mooncake_store.client import steps

        return self._carry_out(steps.get_tensor(key, library), timeout_s)

    def get_tensor_into(self, key: str, tensor: Any, *, timeout_s: float | None = None) -> bool:
        """Read a stored tensor into one of the same dtype and shape; False when it is not there.

        Raises:
            RequestError: dtype or shape differ: the tensor is left as it was.

        Example:
            >>> import numpy
            >>> _ = store.put_tensor("t", numpy.ones(3))
            >>> store.get_tensor_into("t", numpy.empty(3))
            True
        """
        from mooncake_store.client import steps

        return self._carry_out(steps.get_tensor_into(key, tensor), timeout_s)

    # ---- storing ----

    def put(
        self,
        key: str,
        value: Memory,
        *,
        timeout_s: float | None = None,
        **options: Unpack[PutOptions],
    ) -> bool:
        """Store an object.  Objects never change: an existing key is left as it is.

        Args:
            key: 1 to 1024 bytes of UTF-8.
            value: The bytes, or (address, length): they are sent from where they are.
            timeout_s: Deadline.
            options: See `PutOptions`: replicas, what keeps it, what it belongs to.

        Returns:
            True when it is stored now, False when the key was there already.

        Raises:
            CapacityError: No room, although everything that may be evicted was.
            StoreError: It could not be stored.

        Example:
            >>> store.put("new", b"value"), store.put("new", b"other")
            (True, False)
        """
        packed = self._core.put_options(options)
        made: int = _c.client_put(
            self._handle, key, value, packed, self._timeout_s if timeout_s is None else timeout_s
        )
        return made > 0 if packed is None else self._core.stored(made, options, key)

    put_from = put
    """The same: `put` never copies what it is given before sending it."""

    def upsert(
        self,
        key: str,
        value: Memory,
        *,
        timeout_s: float | None = None,
        **options: Unpack[PutOptions],
    ) -> bool:
        """Store an object in place of whatever the key named.

        When it returns, no read that begins later sees the old one.

        Example:
            >>> store.upsert("current", b"1"), store.upsert("current", b"2"), store.get("current")
            (True, True, b'2')
        """
        packed = self._core.put_options(options, upsert=True)
        made: int = _c.client_put(
            self._handle, key, value, packed, self._timeout_s if timeout_s is None else timeout_s
        )
        return self._core.stored(made, options, key)

    def put_tensor(
        self,
        key: str,
        tensor: Any,
        *,
        timeout_s: float | None = None,
        **options: Unpack[PutOptions],
    ) -> bool:
        """Store a tensor of any dtype with its shape.

        Args:
            key: The object.
            tensor: torch or numpy; bytes are sent from where they are when they lie in row order.
            timeout_s: Deadline.
            options: As of put.

        Example:
            >>> import numpy
            >>> store.put_tensor("weights", numpy.zeros((2, 2), dtype="float16"))
            True
        """
        from mooncake_store.client import tensors

        described = tensors.describe(tensor)
        value = [described.header.encode(), described.memory]
        return self.put(key, value, timeout_s=timeout_s, **options)

    def put_batch(
        self,
        keys: Sequence[str],
        values: Sequence[Memory],
        *,
        chain: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[PutOptions],
    ) -> builtins.list[bool | StoreError]:
        """Store many objects; one result a key: True, False, or the StoreError of that one.

        Args:
            keys: The objects.
            values: As many.
            chain: Each object continues the one before it; the first one `parent`.
            timeout_s: Deadline of the whole batch.
            options: As of put, for each of them.

        Example:
            >>> store.put_batch(["b/1", "b/2"], [b"one", b"two"])
            [True, True]
        """
        packed = self._core.put_options(options, chain=chain)
        given = list(keys)
        results = _c.client_put(
            self._handle, given, list(values), packed,
            self._timeout_s if timeout_s is None else timeout_s,
        )  # fmt: skip
        if packed is None and type(results) is list:
            return [made > 0 for made in results]
        return self._core.stored_batch(results, options, given)

    def remove(
        self, key: str | Sequence[str], *, force: bool = False, timeout_s: float | None = None
    ) -> Any:
        """Remove an object, or several.

        Args:
            key: One key, or a sequence of them.
            force: Hard-pinned ones too.
            timeout_s: Deadline.

        Returns:
            True removed, False not there; for a sequence a list of these and of StoreErrors.
            When it returns, no read that begins later finds the object.

        Example:
            >>> _ = store.put("old", b"value")
            >>> store.remove("old"), store.remove("old")
            (True, False)
        """
        results = _c.client_remove(
            self._handle, keys_of(key), force, self._timeout_s if timeout_s is None else timeout_s
        )
        return per_key(key, results)

    def remove_matching(
        self, prefix: str = "", *, regex: str | None = None, force: bool = False,
        timeout_s: float | None = None,
    ) -> int:  # fmt: skip
        """Remove every object whose key begins with `prefix`, or matches `regex` anywhere.

        Args:
            prefix: "" is everything.
            regex: A POSIX extended regular expression, instead of a prefix.
            force: Hard-pinned ones too; without, they stay.
            timeout_s: Deadline of each step.

        Returns:
            How many were removed.

        Example:
            >>> _ = store.put_batch(["tmp/1", "tmp/2"], [b"", b""])
            >>> store.remove_matching("tmp/")
            2
        """
        from mooncake_store.client import steps

        return self._carry_out(steps.remove_matching(prefix, regex, force=force), timeout_s)

    # ---- what keeps an object ----

    def pin(
        self, key: str | Sequence[str], *, pin_timeout_s: float | None = None,
        timeout_s: float | None = None,
    ) -> Any:  # fmt: skip
        """Keep an object (or several) from being evicted until unpin, the deadline or close.

        One that raises is not pinned: if the master hears of it later it is undone.

        Example:
            >>> _ = store.put("kept", b"value")
            >>> store.pin("kept"), store.unpin("kept")
            (True, True)
        """
        results = _c.client_pin(
            self._handle, keys_of(key), pin_deadline_ms(pin_timeout_s),
            self._timeout_s if timeout_s is None else timeout_s,
        )  # fmt: skip
        return per_key(key, results)

    def unpin(self, key: str | Sequence[str], *, timeout_s: float | None = None) -> Any:
        """End this client's pin of an object (or several); False: there was none.

        What this client has pinned is unpinned whether the master answers or not: if it does
        not, it is told later, and this waits for `timeout_s` at most.
        """
        results = _c.client_unpin(
            self._handle, keys_of(key), self._timeout_s if timeout_s is None else timeout_s
        )
        return per_key(key, results)

    def touch(self, key: str | Sequence[str]) -> None:
        """Tell the master, soon, that objects were used: they are evicted later."""
        _c.client_touch(self._handle, keys_of(key), self._timeout_s)

    def annotate(
        self,
        key: str,
        *,
        hard_pin: bool | None = None,
        soft_pin: bool | None = None,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Change what keeps a stored object.

        Args:
            key: The object.
            hard_pin: Never evict it.
            soft_pin: Spare it while others can be evicted.
            ttl_s: It expires after so long from now; 0: never.
            timeout_s: Deadline.

        Raises:
            ObjectNotFoundError: It is not there.

        Example:
            >>> _ = store.put("kept", b"value")
            >>> store.annotate("kept", hard_pin=True)
            >>> store.stat("kept").is_hard_pinned
            True
        """
        from mooncake_store.client import commands

        self._run(commands.annotate(key, self._hash, hard_pin, soft_pin, ttl_s), timeout_s)

    # ---- looking around ----

    def stat(self, key: str, *, timeout_s: float | None = None) -> ObjectStat | None:
        """Return what the master knows of an object, or None when it is not there.

        Example:
            >>> _ = store.put("some", b"bytes")
            >>> store.stat("some").size_bytes
            5
        """
        from mooncake_store.client import steps

        return self._carry_out(steps.stat(key, self._hash), timeout_s)

    def explain(self, key: str, *, timeout_s: float | None = None) -> Explanation:
        """Return where an object is, or when and why it went; it counts as no use of the object.

        The master that leads keeps the last ends of objects, not those before it led.

        Example:
            >>> _ = store.put("gone", b"bytes")
            >>> _ = store.remove("gone")
            >>> store.explain("gone").fates[0].kind
            'removed'
        """
        from mooncake_store.client import steps

        return self._carry_out(steps.explain(key, self._hash), timeout_s)

    def list(
        self,
        prefix: str = "",
        *,
        regex: str | None = None,
        limit: int | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[Listed]:
        """Yield the stored objects whose key begins with `prefix`, or matches `regex`, in no order.

        What is stored throughout is seen once; what comes or goes meanwhile may be seen.

        Example:
            >>> _ = store.put("l/1", b"")
            >>> [found.key for found in store.list("l/")]
            ['l/1']
        """
        from mooncake_store.client import steps

        listing = steps.Listing(prefix, regex, limit)
        while (page := listing.next_page()) is not None:
            yield from listing.take(self._run(page, timeout_s))

    def events(
        self, epoch: int = 0, sequence: int = 0, *, limit: int = 1000,
        timeout_s: float | None = None,
    ) -> EventPage:  # fmt: skip
        """Return what has happened to objects and servers, from an event on.

        Args:
            epoch: The master's, in which that sequence was given.
            sequence: Of the first event wanted; 0: none yet, only where events stand.
            limit: Events at most.
            timeout_s: Deadline.

        Raises:
            ObjectNotFoundError: These events are not known any more, or the master is another one:
                begin anew with what `holders` tells.
        """
        from mooncake_store.client import commands

        return self._run(commands.events(epoch, sequence, limit), timeout_s)

    def holders(
        self, prefix: str = "", cursor: int = 0, *, limit: int = 1000,
        timeout_s: float | None = None,
    ) -> tuple[int, builtins.list[tuple[str, tuple[int, ...]]]]:  # fmt: skip
        """Return some objects with the numbers of the servers that hold them; no use of them.

        Args:
            prefix: Of their keys.
            cursor: 0 at first, then what the call before returned.
            limit: Objects at most.
            timeout_s: Deadline of each of two calls.

        Returns:
            The next cursor (0: that was all), and key and servers of each.
        """
        from mooncake_store.client import commands

        cursor, listed = self._run(
            commands.list_step(prefix, cursor, limit, regex=False), timeout_s
        )
        keys = [one.key for one in listed]
        servers = self._run(commands.holders(keys, self._hash), timeout_s) if keys else []
        return cursor, list(zip(keys, servers, strict=True))

    def members(self, *, timeout_s: float | None = None) -> builtins.list[Member]:
        """Return the store servers."""
        from mooncake_store.client import commands

        return self._run(commands.members(), timeout_s)

    def forget_member(self, node: str, *, timeout_s: float | None = None) -> None:
        """Let a store server be a member no more; it must be gone.

        No master waits for it then, and removes need not be remembered for it. Should it come back,
        it joins as an empty one.

        Args:
            node: Its name or id, see `members`.
            timeout_s: Deadline.

        Raises:
            InUseError: It is alive.
            RequestError: The name is that of several.
            ObjectNotFoundError: There is no such member.
        """
        from mooncake_store.client import commands

        self._carry_out(commands.forget_member(node), timeout_s)

    def counters(self, *, timeout_s: float | None = None) -> Counters:
        """Return what the master has counted, by name.

        Example:
            >>> store.counters().totals["objects"]
            0
        """
        from mooncake_store.client import commands

        return self._run(commands.counters(_native.metric_names()), timeout_s)

    def statistics(self) -> Statistics:
        """Return what this client has done so far."""
        from mooncake_store.client.results import Statistics

        counters = ffi.new("cl_counters *")
        status = lib.cl_read_counters(self._handle, counters)
        if status != Status.OK:
            raise error_from_status(status)
        return Statistics(
            **{name: int(getattr(counters, name)) for name in Statistics.__dataclass_fields__}
        )


__all__ += ["BufferTooSmallError", "ClosedError"]
