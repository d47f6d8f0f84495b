"""The client for code that waits."""

from __future__ import annotations

import builtins
import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from mooncake_store.client import native as _native
from mooncake_store.client.config import ClientConfig
from mooncake_store.client.core import (
    ClientCore,
    Memory,
    Operation,
    encode_key,
    keys_of,
    per_key,
    pin_deadline_ms,
)
from mooncake_store.client.native import ffi, lib
from mooncake_store.client.opening import open_handle
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

    from mooncake_store.client.commands import Command
    from mooncake_store.client.options import PutOptions
    from mooncake_store.client.results import (
        Counters,
        EventPage,
        Explanation,
        Listed,
        Member,
        ObjectStat,
        Statistics,
        Task,
    )
    from mooncake_store.client.steps import Read, Steps

__all__ = ["Client", "PrefixMatch"]

_c = _native.native
Result = TypeVar("Result")
CLOSE_TIMEOUT_NS = 2_000_000_000  # for telling the master; without, the session times out
_READS = {  # of `Read` steps
    Operation.GET_INTO: _c.client_get_into,
    Operation.GET_RANGE: _c.client_get_range,
    Operation.SIZES: _c.client_sizes,
}


def hash_of(handle: int, key: str) -> bytes:
    """Return a key's hash in the client's cluster; shared by both clients."""
    encoded = encode_key(key)
    out = ffi.new("uint8_t[16]")
    status = lib.cl_hash(handle, encoded, len(encoded), out)
    if status != Status.OK:
        raise error_from_status(status, key=key)
    return bytes(ffi.buffer(out))


class PrefixMatch:
    """The longest stored prefix; as a context, its pins end with it.

    Attributes:
        count: How many of the keys, from the first, are stored.
        is_pinned: Nothing of it is evicted until unpin, the deadline or the client's end.
    """

    __slots__ = ("_client", "_keys", "count", "is_pinned")

    def __init__(self, client: Client, keys: Sequence[str], count: int, *, is_pinned: bool) -> None:
        self._client = client
        self._keys = keys
        self.count = count
        self.is_pinned = is_pinned and count > 0

    @property
    def keys(self) -> builtins.list[str]:
        """The keys that are stored."""
        return list(self._keys[: self.count])

    def unpin(self) -> None:
        """End the pins; more than once is harmless."""
        if self.is_pinned:
            self.is_pinned = False
            self._client.unpin(self.keys)

    def __enter__(self) -> PrefixMatch:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(StoreError):  # the deadline or the session ends them
            self.unpin()

    def __len__(self) -> int:
        return self.count

    def __repr__(self) -> str:
        pinned = ", pinned" if self.is_pinned else ""
        return f"PrefixMatch({self.count} of {len(self._keys)} keys{pinned})"


class Client:
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

    def get(self, key: str, *, timeout_s: float | None = None) -> bytes | None:
        """Return the object's bytes, or None when it is not there.

        Example:
            >>> store.get("absent") is None
            True
        """
        try:
            value: bytes | None = _c.client_get(
                self._handle, key, self._timeout_s if timeout_s is None else timeout_s
            )
            return value
        except StoreError as error:
            return self._core.failed(error, None)

    def get_into(self, key: str, buffer: Memory, *, timeout_s: float | None = None) -> int | None:
        """Read the object into `buffer` and return its size, or None when it is not there.

        Args:
            key: The object.
            buffer: Writable memory, or (address, length).
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
                self._handle, key, buffer, self._timeout_s if timeout_s is None else timeout_s
            )
            return size
        except StoreError as error:
            return self._core.failed(error, None)

    def get_range(
        self, key: str, buffer: Memory, offset: int, *, timeout_s: float | None = None
    ) -> int | None:
        """Read the object's bytes from `offset` on into `buffer`.

        Args:
            key: The object.
            buffer: As of get_into; as many bytes are read as it has room for, or as there are.
            offset: Where to begin.
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
                self._timeout_s if timeout_s is None else timeout_s,
            )  # fmt: skip
            return size
        except StoreError as error:
            return self._core.failed(error, None)

    def get_batch(
        self, keys: Sequence[str], *, timeout_s: float | None = None
    ) -> builtins.list[bytes | StoreError | None]:
        """Return one result a key: bytes, None for a miss, a StoreError for a mistake.

        Example:
            >>> _ = store.put_batch(["a/1", "a/2"], [b"one", b"two"])
            >>> store.get_batch(["a/2", "a/3", "a/1"])
            [b'two', None, b'one']
        """
        return self._read_batch(_c.client_get, (list(keys),), len(keys), None, timeout_s)

    def get_batch_into(
        self, keys: Sequence[str], buffers: Sequence[Memory], *, timeout_s: float | None = None
    ) -> builtins.list[int | StoreError | None]:
        """Read objects into buffers; one result a key, as of get_into.

        Example:
            >>> _ = store.put("a/1", b"one")
            >>> store.get_batch_into(["a/1"], [bytearray(3)])
            [3]
        """
        return self._read_batch(
            _c.client_get_into, (list(keys), list(buffers)), len(keys), None, timeout_s
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
        """End this client's pin of an object (or several); False: there was none."""
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

    def change_replica(
        self,
        key: str,
        replicas: int,
        *,
        target: int | None = None,
        source: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Make an object have so many replicas, and return how many it has then.

        Args:
            key: The object.
            replicas: Wanted in all; 0: move one.
            target: Number of the server (see `members`) that gets a new one.
            source: Number of the server whose replica goes first.
            timeout_s: Deadline.
        """
        from mooncake_store.client import commands

        command = commands.change_replica(key, self._hash, replicas, target, source)
        return self._run(command, timeout_s)

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

    # ---- tasks ----

    def move(
        self,
        key: str,
        *,
        source: int | None = None,
        target: int | None = None,
        timeout_s: float | None = None,
    ) -> int:
        """Move one replica of an object to another server; return how many replicas there are then.

        Args:
            key: The object.
            source: Number of the server that it leaves; None: that of the first replica.
            target: Number of the server that it goes to; None: where most is free.
            timeout_s: Deadline.

        Raises:
            ObjectNotFoundError: It is not there, or not at `source`.
            NoSpaceError: No other server takes it.
        """
        return self.change_replica(key, 0, target=target, source=source, timeout_s=timeout_s)

    def drain(self, server: int | str, *, timeout_s: float | None = None) -> Task:
        """Give a server no new replica, and move what it has; return the task that does this.

        It outlives restarts of masters. It is done when nothing is left there that is nowhere else;
        `blocked` while something cannot move (`task(id).failures` says what and why).

        Args:
            server: By number, name or node id.
            timeout_s: Deadline; for the beginning only.
        """
        return self._start("drain", timeout_s, source=server)

    def undrain(self, server: int | str, *, timeout_s: float | None = None) -> bool:
        """Let a server have new replicas again; return whether it was draining or drained."""
        from mooncake_store.client import tasks

        return self._carry_out(tasks.undrain(server), timeout_s)

    def replicate_prefix(
        self, prefix: str, replicas: int, *, timeout_s: float | None = None
    ) -> Task:
        """Make all objects with a prefix have so many replicas; return the task that does this."""
        return self._start("replicate", timeout_s, prefix=prefix, replicas=replicas)

    def move_prefix(
        self,
        prefix: str,
        source: int | str,
        target: int | str | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Task:
        """Move the replicas at a server of all objects with a prefix; return the task."""
        return self._start("move", timeout_s, prefix=prefix, source=source, target=target)

    def repair(self, *, timeout_s: float | None = None) -> Task:
        """Copy again what has fewer replicas than wanted, now and not after its delay."""
        return self._start("repair", timeout_s)

    def _start(
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
        return self._carry_out(tasks.start(order), timeout_s)

    def tasks(self, *, timeout_s: float | None = None) -> builtins.list[Task]:
        """Return the tasks that the master knows, the newest first, without their failures.

        Example:
            >>> store.tasks()
            []
        """
        from mooncake_store.client import tasks

        return self._carry_out(tasks.listing(), timeout_s)

    def task(
        self, task: str, *, failures: int = 256, timeout_s: float | None = None
    ) -> Task | None:
        """Return one task and the first of its failures; None: it is not known (any more)."""
        from mooncake_store.client import tasks

        return self._carry_out(tasks.one(task, failures), timeout_s)

    def cancel_task(self, task: str, *, timeout_s: float | None = None) -> None:
        """Stop a task; copies under way are finished. A drain, also one that is done, is undone.

        Raises:
            ObjectNotFoundError: There is no such task.
            StoreError: It has ended.
        """
        from mooncake_store.client import tasks

        self._carry_out(tasks.cancel(task), timeout_s)

    # ---- memory ----

    def alloc(self, size_bytes: int) -> memoryview:
        """Return memory from which servers on this host copy by themselves: the fastest source.

        It lives until `free` or the client's end.

        Example:
            >>> memory = store.alloc(1 << 20)
            >>> memory[:5] = b"hello"
            >>> store.put("from/shared", memory[:5])
            True
        """
        address = ffi.new("uint64_t *")
        if size_bytes <= 0:
            raise RequestError("size_bytes is above 0")
        status = lib.cl_alloc(self._handle, size_bytes, address)
        if status != Status.OK:
            raise error_from_status(status, f"{size_bytes} bytes of shared memory were refused")
        memory = memoryview(ffi.buffer(ffi.cast("char *", address[0]), size_bytes)).cast("B")
        self._allocated[int(address[0])] = memory
        return memory

    def free(self, memory: memoryview) -> None:
        """Give back what `alloc` returned; nothing made from it may be used any more."""
        for address, known in self._allocated.items():
            if known is memory:
                del self._allocated[address]
                memory.release()
                lib.cl_free(self._handle, address)
                return
        raise RequestError("this is no memory of this client's alloc")

    def register_memory(self, buffer: Memory) -> None:
        """Tell the transports of memory that is read into and written from often.

        Once for each buffer; RDMA needs it for zero-copy, the other transports take any memory.
        """
        if isinstance(buffer, tuple):
            address, length = buffer
        else:
            kept = ffi.from_buffer(buffer)
            address, length = int(ffi.cast("uintptr_t", kept)), len(kept)
        status = lib.cl_register_memory(self._handle, address, length)
        if status != Status.OK:
            raise error_from_status(status, "the memory could not be registered")

    # ---- for connectors: plain addresses, plain numbers ----

    def exists_numbers(
        self,
        keys: builtins.list[str],
        *,
        lease_s: float = 0.0,
        timeout_s: float | None = None,
    ) -> builtins.list[int]:
        """Return for each key 1 (stored), 0 (not stored), or minus the `Status` of its failure.

        With the two calls below the fastest way for large batches: nothing is raised, logged or
        wrapped for single keys.

        Args:
            keys: Of the objects.
            lease_s: What is there is not evicted for so long, for who reads it next.  Unlike a pin
                nobody gives it back, and it does not outlive the master.
            timeout_s: Deadline of the call.

        Example:
            >>> _ = store.put("a/1", b"one")
            >>> store.exists_numbers(["a/1", "absent"])
            [1, 0]
        """
        found: builtins.list[int] = _c.client_exists_numbers(
            self._handle, keys, pin_deadline_ms(lease_s or None),
            self._timeout_s if timeout_s is None else timeout_s,
        )  # fmt: skip
        return found

    def get_addresses(
        self,
        keys: builtins.list[str],
        addresses: Sequence[int | Sequence[int]],
        sizes: Sequence[int | Sequence[int]],
        *,
        offsets: Sequence[int] | None = None,
        exact: bool = False,
        timeout_s: float | None = None,
    ) -> builtins.list[int]:
        """Read objects into raw memory; return the bytes read, or minus the `Status`.

        Args:
            keys: The objects.
            addresses: For each one address, or those of its pieces, which are filled in order.
            sizes: Bytes at each of them.
            offsets: For each key where in the object to begin; then as much is read as there is
                room for. None: whole objects, and too little room is `BUFFER_TOO_SMALL`.
            exact: Too much room is `OUT_OF_RANGE`.
            timeout_s: Deadline of the batch.

        Raises:
            ValueError: The lists do not fit each other, or an address is 0.
            ClosedError: The client is closed.

        Example:
            >>> import ctypes
            >>> _ = store.put("a/1", b"onetwo")
            >>> memory = ctypes.create_string_buffer(6)
            >>> at = ctypes.addressof(memory)
            >>> store.get_addresses(["a/1"], [[at + 3, at]], [[3, 3]]), memory.raw
            ([6], b'twoone')
        """
        read: builtins.list[int] = _c.client_get_addresses(
            self._handle, keys, addresses, sizes, offsets, exact,
            self._timeout_s if timeout_s is None else timeout_s,
        )  # fmt: skip
        return read

    def put_addresses(
        self,
        keys: builtins.list[str],
        addresses: Sequence[int | Sequence[int]],
        sizes: Sequence[int | Sequence[int]],
        *,
        upsert: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[PutOptions],
    ) -> builtins.list[int]:
        """Store objects from raw memory; return how many replicas were made, or minus the `Status`.

        0: the key was there, nothing changed.

        Args:
            keys: The objects.
            addresses: For each one address, or those of its pieces in order.
            sizes: Bytes at each of them.
            upsert: In place of whatever the key named.
            timeout_s: Deadline of the batch.
            options: As of put, for each of them.

        Raises:
            ValueError: The lists do not fit each other, or an address is 0.
            ClosedError: The client is closed.

        Example:
            >>> import ctypes
            >>> memory = ctypes.create_string_buffer(b"bytes")
            >>> store.put_addresses(["p/1"], [ctypes.addressof(memory)], [5])
            [1]
        """
        made: builtins.list[int] = _c.client_put_addresses(
            self._handle, keys, addresses, sizes,
            self._core.put_options(options, upsert=upsert),
            self._timeout_s if timeout_s is None else timeout_s,
        )  # fmt: skip
        return made

    # ---- inside ----

    def _hash(self, key: str) -> bytes:
        return hash_of(self._handle, key)

    def _run(self, command: Command[Result], timeout_s: float | None) -> Result:
        try:
            answer = _c.client_command(
                self._handle, command.method, command.flags, command.body, command.numbered,
                self._timeout_s if timeout_s is None else timeout_s,
            )  # fmt: skip
        except StoreError as error:
            error.key = command.key
            raise
        return command.decode(answer)

    def _carry_out(self, steps: Steps[Result], timeout_s: float | None) -> Result:
        """Do what the steps want done, one after the other."""
        go_on: Callable[[Any], Any] = steps.send
        outcome: Any = None
        while True:
            try:
                step = go_on(outcome)
            except StopIteration as end:
                result: Result = end.value
                return result
            try:
                go_on, outcome = steps.send, self._do(step, timeout_s)
            except StoreError as error:
                go_on, outcome = steps.throw, error

    def _do(self, step: Command[Any] | Read, timeout_s: float | None) -> Any:
        from mooncake_store.client.commands import Command

        if isinstance(step, Command):
            return self._run(step, timeout_s)
        deadline = self._timeout_s if timeout_s is None else timeout_s
        try:
            return _READS[step.operation](self._handle, *step.arguments, deadline)
        except StoreError as error:
            return self._core.failed(error, None)

    def _read_batch(
        self, call: Any, arguments: tuple[Any, ...], count: int, miss: Any, timeout_s: float | None
    ) -> builtins.list[Any]:
        try:
            results = call(
                self._handle, *arguments, self._timeout_s if timeout_s is None else timeout_s
            )
        except StoreError as error:
            return [self._core.failed(error, miss)] * count
        if type(results) is tuple:
            return self._core.failed_items(results, miss)
        return results  # type: ignore[no-any-return]


__all__ += ["BufferTooSmallError", "ClosedError"]
