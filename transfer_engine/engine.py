"""The transfer engine for Python: register memory, open a peer's segment, move bytes in batches.

    with TransferEngine() as engine:
        engine.register_local_memory(buffer)
        segment = engine.open_segment("10.0.0.5:7800")
        region = segment.regions()[0]
        engine.transfer([TransferRequest.read(segment, buffer, region.address, len(buffer))])

Every call releases the interpreter lock while C works, and has a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Any, TypeAlias

from mooncake_store._native import ffi, lib
from mooncake_store.errors import (
    ClosedError,
    ConfigError,
    ProtocolError,
    RequestError,
    Status,
    TransferError,
    UnavailableError,
    error_from_status,
)
from mooncake_store.protocol.frames.transfer import Regions
from mooncake_store.protocol.methods import Method
from mooncake_store.runtime import runtime_dir
from mooncake_store.transfer_engine.explanation import Explanation, RailUse, RailView
from mooncake_store.transfer_engine.pairing import rails_to
from mooncake_store.transfer_engine.priority import (
    CLASS_WEIGHTS,
    Priority,
    parse_class_weights,
)
from mooncake_store.transfer_engine.topology import Topology, from_json, to_json

__all__ = [
    "Answer",
    "EngineConfig",
    "Explanation",
    "Notification",
    "Opcode",
    "Priority",
    "RailUse",
    "RailView",
    "Region",
    "Segment",
    "SharedMemory",
    "TransferEngine",
    "TransferRequest",
    "TransferState",
    "TransferStatus",
]

Buffer: TypeAlias = Any
"""Whatever has the buffer protocol: bytearray, memoryview, mmap, a numpy array."""

_REQUEST = struct.Struct("=iIQQQ")
_ERROR_BYTES = 256
_NAME_BYTES = 256
_socket_numbers = itertools.count()


class Opcode(IntEnum):
    """The direction of a transfer, as seen from here."""

    READ = 0
    WRITE = 1


class TransferState(IntEnum):
    """Where one request stands."""

    WAITING = 0
    PENDING = 1
    COMPLETED = 2
    FAILED = 3
    TIMED_OUT = 4
    CANCELLED = 5

    @property
    def is_final(self) -> bool:
        """Whether the request has ended: nothing touches its memory any more."""
        return self >= TransferState.COMPLETED


@dataclass(frozen=True, slots=True)
class TransferStatus:
    """State of one request of a batch.

    Attributes:
        state: Where it stands.
        status: Why it failed; OK when it completed, PENDING while it has not ended.
        bytes: Moved; 0 unless it completed.
    """

    state: TransferState
    status: Status
    bytes: int


@dataclass(frozen=True, slots=True)
class Region:
    """Memory registered at a peer."""

    address: int
    length: int


@dataclass(frozen=True, slots=True)
class Notification:
    """A message of another engine."""

    name: str
    message: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What a peer answered to `call`: its status, body, and payload."""

    status: Status
    body: bytes
    payload: bytes


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Settings of an engine; 0 means the default of C (transfer_engine/include/te.h).

    Attributes:
        io_threads: Threads that serve peers; None for the default, 0 for an engine that only asks.
        worker_threads: Threads that carry batches and second halves of large copies.
        stream_copy_bytes: Copies from this size pass the caches by.
        helper_copy_bytes: Copies from this size use a second thread.
        stall_timeout_s: A frame that a peer has begun must end within this.
        class_weights: How the priorities share, `("urgent=64", "prefetch=2")`; what is not named
            keeps its default.
    """

    io_threads: int | None = None
    worker_threads: int = 0
    stream_copy_bytes: int = 0
    helper_copy_bytes: int = 0
    stall_timeout_s: float = 0.0
    class_weights: tuple[str, ...] = CLASS_WEIGHTS


@dataclass(frozen=True, slots=True)
class Segment:
    """A peer's memory, opened."""

    engine: TransferEngine
    handle: int
    address: str

    def regions(self) -> list[Region]:
        """Return what the peer had registered when the segment was last opened."""
        return self.engine._regions(self.handle)

    def close(self) -> None:
        """Close it; requests that run keep it until they end."""
        self.engine.close_segment(self)


@dataclass(frozen=True, slots=True)
class TransferRequest:
    """Bytes to move between local memory and a peer's.

    Attributes:
        opcode: READ brings bytes here, WRITE takes them there.
        segment: The peer.
        local_address: Inside memory that is registered here.
        remote_address: Inside memory that is registered there.
        length: Bytes.
    """

    opcode: Opcode
    segment: Segment
    local_address: int
    remote_address: int
    length: int

    @classmethod
    def read(
        cls, segment: Segment, target: Buffer | int, remote_address: int, length: int | None = None
    ) -> TransferRequest:
        """Bring bytes from the peer into `target`."""
        address, size = _range_of(target, length)
        return cls(Opcode.READ, segment, address, remote_address, size)

    @classmethod
    def write(
        cls, segment: Segment, source: Buffer | int, remote_address: int, length: int | None = None
    ) -> TransferRequest:
        """Take the bytes of `source` to the peer."""
        address, size = _range_of(source, length)
        return cls(Opcode.WRITE, segment, address, remote_address, size)


class SharedMemory:
    """Memory that peers on this host map and copy from directly: a sealed memfd.

    Use `buffer` like any other memory.  It goes back to the system when it has been closed (or
    forgotten) and no view of it is left, so that no view ever points to nothing.
    """

    def __init__(self, engine: TransferEngine, length: int) -> None:
        made = ffi.new("void **")
        _check(lib.te_shared_alloc(engine._handle(), length, made), "no shared memory left")
        self._engine = engine
        self.address = address = int(ffi.cast("uintptr_t", made[0]))
        self.length = length
        # The buffer keeps `owner` alive, and so does every view of it.
        owner = ffi.gc(made[0], lambda _: engine._free_shared(address, length), length)
        self.buffer = memoryview(ffi.buffer(owner, length))

    def close(self) -> None:
        """Unregister it if it is registered, and let go of it.

        Raises:
            RequestError: Transfers use it: wait for them or cancel them first.
        """
        self._engine._unregister_inside(self.address, self.length)
        with contextlib.suppress(BufferError):  # an array on top of it: it lives as long as that
            self.buffer.release()

    def __enter__(self) -> SharedMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class TransferEngine:
    """Moves bytes between memory registered here and at peers.  Thread-safe.

    Args:
        config: Settings; the defaults suit a process that serves and asks.
        topology: This machine's interfaces, told to peers and used to rank paths.
    """

    def __init__(
        self, config: EngineConfig | None = None, *, topology: Topology | None = None
    ) -> None:
        # Reentrant: the last view of shared memory may be collected by a thread that holds it.
        self._lock = threading.RLock()
        self._engine: Any = None
        self._buffers: dict[int, tuple[int, Any]] = {}
        self._channels: dict[tuple[str, bytes], Any] = {}
        self._socket_path: Path | None = None
        self._is_serving = False
        self._is_owner = True
        self._topology: Topology | None = None
        self._opened: dict[int, tuple[str, int]] = {}  # handle: address, times opened
        self._rails: dict[int, str] = {}
        engine = ffi.new("te_engine **")
        _check(lib.te_engine_open(_c_config(config or EngineConfig()), engine), "engine")
        self._engine = engine[0]
        if topology is not None:
            try:
                self.set_topology(topology)
            except BaseException:
                self.close()
                raise

    @classmethod
    def around(cls, engine: Any) -> TransferEngine:
        """Return a face for an engine that something else owns: `close` leaves that one open.

        Args:
            engine: A `te_engine *`, open as long as this is used.
        """
        self = cls.__new__(cls)
        self._lock = threading.RLock()
        self._engine = engine
        self._is_owner = False
        self._buffers = {}
        self._channels = {}
        self._socket_path = None
        self._is_serving = True
        self._topology = None
        self._opened = {}
        self._rails = {}
        return self

    # ---- life ------------------------------------------------------------------------------------

    def close(self) -> None:
        """Cancel what runs, stop serving, close all connections."""
        with self._lock:
            engine, self._engine = self._engine, None
            channels, self._channels = self._channels, {}
        if engine is None:
            return
        for channel in channels.values():
            lib.te_channel_close(channel)
        if self._is_owner:
            lib.te_engine_close(engine)
        self._buffers.clear()
        if self._socket_path is not None:
            self._socket_path.unlink(missing_ok=True)

    def __enter__(self) -> TransferEngine:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _handle(self) -> Any:
        engine = self._engine
        if engine is None:
            raise ClosedError("the transfer engine is closed", hint="open a new TransferEngine")
        return engine

    def listen(self, address: str = "127.0.0.1", port: int = 0, *, local: bool = True) -> str:
        """Serve registered memory to peers; may be called once for each address.

        Args:
            address: A numeric IPv4 or IPv6 address of this host.
            port: 0 for any.
            local: Listen on a Unix socket too, by which peers on this host share memory.

        Returns:
            What peers give to `open_segment`: `"127.0.0.1:7800"`, `"[::1]:7800"`.
        """
        engine = self._handle()
        error = ffi.new("char[]", _ERROR_BYTES)
        with self._lock:
            if not self._is_serving:
                _check(lib.te_serve_memory(engine), "serve")
                self._is_serving = True
            if local and self._socket_path is None:
                path = runtime_dir() / f"engine-{os.getpid()}-{next(_socket_numbers)}.sock"
                raw = os.fsencode(path)
                _check(lib.te_listen_unix(engine, raw, error), _sentence(error), stage="listen")
                _check(lib.te_publish_unix(engine, raw), "socket path", stage="listen")
                self._socket_path = path
        bound = ffi.new("uint16_t *")
        _check(
            lib.te_listen_tcp(engine, address.encode(), port, bound, error),
            _sentence(error),
            stage="listen",
        )
        return f"[{address}]:{bound[0]}" if ":" in address else f"{address}:{bound[0]}"

    def set_topology(self, topology: Topology) -> None:
        """Tell peers about this machine's interfaces; use all for peers that tell theirs."""
        text = to_json(topology).encode()
        error = ffi.new("char[]", _ERROR_BYTES)
        _check(lib.te_set_topology(self._handle(), text, len(text), error), _sentence(error))
        with self._lock:
            self._topology = topology
            handles = list(self._opened)
        for handle in handles:
            self._pair(handle)

    def peer_topology(self, address: str, *, timeout_s: float = 5.0) -> Topology:
        """Ask a peer for its interfaces; an empty topology where it tells none.

        Raises:
            UnavailableError: Nobody answers there.
            ProtocolError: What it tells is not of the form that peers exchange.
        """
        answer = self.call(address, Method.OPEN_SEGMENT, timeout_s=timeout_s)
        _check(answer.status, "no memory is served", node=address, stage="topology")
        text = Regions.decode(answer.body).topology
        if not text:
            return Topology()
        try:
            return from_json(text.decode(errors="replace"), origin=f"topology of {address}")
        except ConfigError as error:
            raise ProtocolError(error.message, node=address, cause=error) from error

    # ---- memory ----------------------------------------------------------------------------------

    def register_local_memory(
        self, memory: Buffer | int, length: int | None = None, *, location: str = "*"
    ) -> int:
        """Let transfers use a range of memory, here and from peers.

        Args:
            memory: A buffer, kept alive until it is unregistered, or an address, whose memory the
                caller keeps mapped.
            length: Bytes; of a buffer the whole if left out.
            location: Where it is: `cpu:0`, `cuda:1`, or `*`.

        Returns:
            Its address, by which it is unregistered and peers name it.

        Raises:
            NotRegisteredError: It is not mapped, or not readable.
            RequestError: It overlaps registered memory, or the location makes no sense.
        """
        keep = None if isinstance(memory, int) else _pin(memory)
        address, size = _range_of(memory if keep is None else keep, length)
        status = lib.te_register_local_memory(self._handle(), address, size, location.encode())
        if status == Status.BAD_REQUEST:
            raise RequestError(
                f"cannot register {size} bytes at {address:#x} as {location!r}: they overlap "
                'registered memory, are none, or the location is not like "cpu:0"'
            )
        _check(status, f"{size} bytes at {address:#x} are not mapped")
        with self._lock:
            self._buffers[address] = (size, keep)
        return address

    def unregister_local_memory(self, memory: Buffer | int) -> None:
        """End what `register_local_memory` began; transfers of peers are broken off.

        Raises:
            RequestError: Transfers of this engine use it: wait for them or cancel them.
            NotRegisteredError: No registered memory begins there.
        """
        address = memory if isinstance(memory, int) else _range_of(memory, None)[0]
        status = lib.te_unregister_local_memory(self._handle(), address)
        if status == Status.BUSY:
            raise RequestError(
                f"transfers use the memory at {address:#x}: wait for them or cancel them first",
                retryable=True,
            )
        _check(status, f"no registered memory begins at {address:#x}")
        with self._lock:
            self._buffers.pop(address, None)

    def allocate_shared(self, length: int) -> SharedMemory:
        """Allocate memory that peers on this host map and copy from directly."""
        return SharedMemory(self, length)

    def _unregister_inside(self, address: int, length: int) -> None:
        with self._lock:
            inside = [found for found in list(self._buffers) if address <= found < address + length]
        for found in inside:
            self.unregister_local_memory(found)

    def _free_shared(self, address: int, length: int) -> None:
        """Give shared memory back; called when the last view of it has gone."""
        pointer = ffi.cast("void *", address)
        engine = self._engine
        if engine is None:
            lib.te_shared_unmap(pointer, length)
            return
        try:
            self._unregister_inside(address, length)
        except RequestError:
            return  # transfers that were given its address use it: it stays until the engine ends
        lib.te_shared_free(engine, pointer)

    # ---- segments --------------------------------------------------------------------------------

    def open_segment(self, address: str, *, timeout_s: float = 5.0) -> Segment:
        """Open the memory of a peer.

        Args:
            address: `"ip:port"` or `"[ip]:port"`, several with commas between them (paths to the
                same peer), or `"unix:PATH"`.
            timeout_s: For connecting and asking.

        Raises:
            UnavailableError: Nobody answers there.
        """
        handle = ffi.new("uint32_t *")
        error = ffi.new("char[]", _ERROR_BYTES)
        status = lib.te_open_segment(
            self._handle(), address.encode(), handle, _deadline_ns(timeout_s), error
        )
        _check(status, _sentence(error), node=address, stage="connect")
        segment = Segment(self, int(handle[0]), address)
        with self._lock:
            times = self._opened.get(segment.handle, ("", 0))[1]
            self._opened[segment.handle] = (address, times + 1)
        self._pair(segment.handle)
        return segment

    def close_segment(self, segment: Segment) -> None:
        """Close a segment; opened twice, it is closed twice."""
        _check(lib.te_close_segment(self._handle(), segment.handle), "no such segment")
        with self._lock:
            address, times = self._opened.pop(segment.handle, ("", 0))
            if times > 1:
                self._opened[segment.handle] = (address, times - 1)
            else:
                self._rails.pop(segment.handle, None)

    def _pair(self, handle: int) -> None:
        """Give a segment the rails that both topologies allow, if they have changed."""
        with self._lock:
            here, opened = self._topology, self._opened.get(handle)
        if here is None or opened is None:
            return
        there = self._told_topology(handle)
        found = rails_to(here, there, opened[0]) if there is not None else None
        with self._lock:
            if found is None or self._rails.get(handle) == found:
                return
            self._rails[handle] = found
        error = ffi.new("char[]", _ERROR_BYTES)
        status = lib.te_segment_set_rails(self._handle(), handle, found.encode(), error)
        if status != Status.NOT_REGISTERED:  # else it has been closed meanwhile
            _check(status, _sentence(error), node=opened[0], stage="rails")

    def _told_topology(self, handle: int) -> Topology | None:
        """Return what a peer told when its segment was opened; None: nothing readable."""
        size, length = 4096, ffi.new("size_t *")
        while True:
            text = ffi.new("char[]", size)
            status = lib.te_segment_topology(self._handle(), handle, text, size, length)
            if status != Status.BUFFER_TOO_SMALL:
                break
            size = int(length[0])
        if status != Status.OK or length[0] == 0:
            return None
        try:
            return from_json(ffi.buffer(text, length[0])[:].decode(errors="replace"))
        except ConfigError:
            return None

    def refresh_rails(self, *, timeout_s: float = 5.0) -> None:
        """Ask peers of open segments again for their interfaces; use what they have now.

        A `TopologyFollower` does so now and then. A peer that does not answer is left as it is.
        """
        with self._lock:
            opened = {} if self._topology is None else dict(self._opened)
        for address, _ in opened.values():
            try:
                self.open_segment(address, timeout_s=timeout_s).close()
            except (UnavailableError, TransferError):
                continue

    def topology_descriptor(self) -> int:
        """Return an eventfd that is readable when a peer has told other interfaces."""
        return int(lib.te_topology_eventfd(self._handle()))

    def use_told_rails(self) -> None:
        """Use what peers of open segments have told by themselves."""
        with self._lock:
            handles = [] if self._topology is None else list(self._opened)
        for handle in handles:
            self._pair(handle)

    def rails(self, segment: Segment) -> list[RailView]:
        """Return the rails to a peer, in both directions; none: bytes go another way."""
        found: list[RailView] = []
        view: Any = ffi.new("te_rail_view *")
        while True:
            status = lib.te_segment_rail(self._handle(), segment.handle, len(found), view)
            if status == Status.NOT_FOUND:
                return found
            _check(status, "no such segment")
            found.append(_rail_view(view))

    def _regions(self, handle: int) -> list[Region]:
        address, length = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        found: list[Region] = []
        while True:
            status = lib.te_segment_region(self._handle(), handle, len(found), address, length)
            if status == Status.NOT_FOUND:
                return found
            _check(status, "no such segment")
            found.append(Region(int(address[0]), int(length[0])))

    # ---- batches ---------------------------------------------------------------------------------

    def allocate_batch_id(self, size: int) -> int:
        """Make a batch for at most `size` requests."""
        batch = ffi.new("uint64_t *")
        _check(lib.te_allocate_batch_id(self._handle(), size, batch), f"a batch of {size} requests")
        return int(batch[0])

    def submit_transfer(
        self,
        batch_id: int,
        requests: Sequence[TransferRequest],
        *,
        timeout_s: float = 30.0,
        priority: Priority = Priority.NORMAL,
        tenant: int = 0,
        weight: int = 1,
    ) -> None:
        """Begin requests; each has ended, one way or another, when `timeout_s` is over.

        A request that cannot be begun (its memory is not registered) fails by its status, the
        others run.

        Args:
            batch_id: Of `allocate_batch_id`.
            requests: At most as many as the batch has room for.
            timeout_s: For all of it.
            priority: Of these requests among all of this engine.
            tenant: Requests of one tenant share one turn among those of their priority.
            weight: How large that turn is, 1 to 1024.

        Raises:
            NotRegisteredError: There is no such batch.
            LimitError: The batch has no room for so many.
        """
        packed = _pack(requests)
        status = lib.te_submit_transfer_as(
            self._handle(),
            batch_id,
            ffi.from_buffer("te_transfer_request[]", packed),
            len(requests),
            _options(priority, tenant, weight),
            _deadline_ns(timeout_s),
        )
        _check(status, _BATCH_SENTENCES.get(status, ""))

    def get_transfer_status(self, batch_id: int, index: int) -> TransferStatus:
        """Return how the request with that number (in order of submission) stands."""
        result: Any = ffi.new("te_transfer_status *")
        _check(lib.te_get_transfer_status(self._handle(), batch_id, index, result), "")
        return TransferStatus(TransferState(result.state), Status(result.status), int(result.bytes))

    def explain(self, batch_id: int, index: int) -> Explanation:
        """Return how a request went, or goes: its rails, what was repeated, time per stage."""
        told: Any = ffi.new("te_transfer_explanation *")
        _check(lib.te_explain_transfer(self._handle(), batch_id, index, told), "no such request")
        view: Any = ffi.new("te_rail_view *")
        moved = ffi.new("uint64_t *")
        rails: list[RailUse] = []
        while (
            lib.te_explain_rail(self._handle(), batch_id, index, len(rails), view, moved)
            == Status.OK
        ):
            was_used = bool(told.rails >> len(rails) & 1)
            rails.append(RailUse(_rail_view(view), was_used, int(moved[0])))
        return Explanation(
            TransferState(told.state).name,
            Status(told.status),
            int(told.bytes),
            None if told.waiting_ns < 0 else told.waiting_ns / 1e9,
            None if told.moving_ns < 0 else told.moving_ns / 1e9,
            int(told.retries),
            tuple(rails),
        )

    def wait(self, batch_id: int, *, timeout_s: float = 30.0) -> bool:
        """Wait until all requests have ended; False when they have not in time."""
        status = lib.te_wait_batch(self._handle(), batch_id, _deadline_ns(timeout_s))
        if status == Status.TIMEOUT:
            return False
        _check(status, _BATCH_SENTENCES.get(status, ""))
        return True

    async def wait_async(self, batch_id: int, *, timeout_s: float = 30.0) -> bool:
        """Wait as `wait` does, on the running event loop."""
        loop = asyncio.get_running_loop()
        deadline = time.monotonic() + timeout_s
        descriptor = self.fileno(batch_id)
        ended = asyncio.Event()
        loop.add_reader(descriptor, ended.set)
        try:
            while not self.wait(batch_id, timeout_s=0):
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                try:
                    await asyncio.wait_for(ended.wait(), left)
                except asyncio.TimeoutError:
                    return False
                ended.clear()
                _drain(descriptor)
            return True
        finally:
            loop.remove_reader(descriptor)

    def cancel(self, batch_id: int) -> None:
        """Ask for an early end: see `wait` for when it has come.  No more can be submitted."""
        _check(lib.te_cancel_batch(self._handle(), batch_id), "no such batch")

    def free_batch_id(self, batch_id: int) -> None:
        """Forget a batch.

        Raises:
            RequestError: Requests run: wait for them first.
        """
        status = lib.te_free_batch_id(self._handle(), batch_id)
        if status == Status.BUSY:
            raise RequestError(
                "requests of the batch run: wait for them or cancel them first", retryable=True
            )
        _check(status, "no such batch")

    def fileno(self, batch_id: int) -> int:
        """Return an eventfd that is readable when requests of the batch have ended.

        The batch owns it; reading it (8 bytes) clears it.
        """
        descriptor = int(lib.te_batch_eventfd(self._handle(), batch_id))
        if descriptor < 0:
            raise error_from_status(Status.NOT_REGISTERED, "no such batch, or no descriptor left")
        return descriptor

    def transfer(
        self,
        requests: Sequence[TransferRequest],
        *,
        timeout_s: float = 30.0,
        priority: Priority = Priority.NORMAL,
        tenant: int = 0,
        weight: int = 1,
    ) -> None:
        """Move bytes and return when they have been moved; arguments as of `submit_transfer`.

        Raises:
            StoreError: The error of the first request that did not complete.
        """
        packed = _pack(requests)
        statuses: Any = ffi.new("te_transfer_status[]", len(requests))
        _check(
            lib.te_transfer_as(
                self._handle(),
                ffi.from_buffer("te_transfer_request[]", packed),
                len(requests),
                _options(priority, tenant, weight),
                statuses,
                _deadline_ns(timeout_s),
            )
        )
        for request, ended in zip(requests, statuses, strict=True):
            if ended.status != Status.OK:
                raise error_from_status(
                    ended.status,
                    f"{request.opcode.name} of {request.length} bytes at "
                    f"{request.remote_address:#x} ended as {TransferState(ended.state).name}",
                    node=request.segment.address,
                    stage="transfer",
                )

    # ---- messages --------------------------------------------------------------------------------

    def send_notify(
        self, segment: Segment, name: str, message: str, *, timeout_s: float = 5.0
    ) -> None:
        """Leave a message at a peer.

        Raises:
            LimitError: Too many wait there.
        """
        for text in (name, message):
            if "\0" in text:
                raise RequestError("a notification cannot hold a zero byte")
        status = lib.te_send_notify(
            self._handle(),
            segment.handle,
            name.encode(),
            message.encode(),
            _deadline_ns(timeout_s),
        )
        _check(status, "", node=segment.address, stage="notify")

    def receive_notify(self) -> Notification | None:
        """Return the oldest message that waits, None when there is none."""
        name = ffi.new("char[]", _NAME_BYTES)
        length = ffi.new("size_t *")
        size = 4096
        while True:
            text = ffi.new("char[]", size)
            status = lib.te_next_notify(self._handle(), name, text, size, length)
            if status == Status.NOT_FOUND:
                return None
            if status == Status.BUFFER_TOO_SMALL:
                size = int(length[0])
                continue
            _check(status, "")
            message = ffi.buffer(text, length[0])[:]
            return Notification(_sentence(name), message.decode(errors="replace"))

    def notify_fileno(self) -> int:
        """Return an eventfd that is readable while messages wait; the engine owns it."""
        return int(lib.te_notify_eventfd(self._handle()))

    def call(
        self,
        address: str,
        method: int,
        body: bytes = b"",
        *,
        hello: bytes = b"",
        flags: int = 0,
        timeout_s: float = 5.0,
    ) -> Answer:
        """Send one frame to a peer and return what it answers.

        Args:
            address: Where the peer listens.
            method: Number of the method (`mooncake_store.protocol`).
            body: The frame's body.
            hello: Body of the HELLO that opens the connection; empty for an engine's.
            flags: The frame's flags.
            timeout_s: For all of it.
        """
        channel = self._channel(address, hello)
        answer = ffi.new("uint8_t **")
        length, offset = ffi.new("size_t *"), ffi.new("uint64_t *")
        answered = ffi.new("uint32_t *")
        error = ffi.new("char[]", _ERROR_BYTES)
        status = lib.te_call_simple(
            channel,
            method,
            flags,
            ffi.from_buffer("uint8_t[]", body),
            len(body),
            answer,
            length,
            offset,
            answered,
            _deadline_ns(timeout_s),
            error,
        )
        _check(status, _sentence(error), node=address, stage="call")
        try:
            data = ffi.buffer(answer[0], length[0])[:] if length[0] else b""
        finally:
            lib.te_release(answer[0])
        split = int(offset[0])
        return Answer(Status(answered[0]), data[:split], data[split:])

    def _channel(self, address: str, hello: bytes) -> Any:
        engine = self._handle()
        with self._lock:
            channel = self._channels.get((address, hello))
            if channel is None:
                made = ffi.new("te_channel **")
                _check(
                    lib.te_channel_open_simple(engine, address.encode(), hello, len(hello), made),
                    f"{address} is not an address",
                    node=address,
                )
                channel = self._channels[address, hello] = made[0]
        return channel


_BATCH_SENTENCES: dict[int, str] = {
    Status.NOT_REGISTERED: "no such batch",
    Status.LIMIT: "the batch has no room for so many requests",
    Status.CANCELLED: "the batch was cancelled",
}


def _pack(requests: Sequence[TransferRequest]) -> bytes:
    return b"".join(
        _REQUEST.pack(
            request.opcode,
            request.segment.handle,
            request.local_address,
            request.remote_address,
            request.length,
        )
        for request in requests
    )


def _options(priority: Priority, tenant: int, weight: int) -> Any:
    """Return the options of a submission; NULL for those that nobody has set."""
    if priority == Priority.NORMAL and tenant == 0 and weight == 1:
        return ffi.NULL
    if not 1 <= weight <= 1024 or not 0 <= tenant < 1 << 64:
        raise RequestError(
            f"weight must be 1 to 1024 and tenant a number of 64 bits, not {weight} and {tenant}"
        )
    made: Any = ffi.new("te_transfer_options *")
    made.priority, made.tenant, made.weight = Priority(priority), tenant, weight
    return made


def _rail_view(view: Any) -> RailView:
    return RailView(
        _sentence(view.local),
        _sentence(view.remote),
        _sentence(view.transport),
        Opcode(view.opcode).name.lower(),
        int(view.tier),
        bool(view.is_up),
        int(view.resets),
        _sentence(view.note),
        int(view.bytes_in_flight),
        int(view.bandwidth_bytes_per_s),
    )


def _c_config(config: EngineConfig) -> Any:
    made: Any = ffi.new("te_engine_config *")
    lib.te_engine_config_default(made)
    if config.io_threads is not None:
        made.io_threads = config.io_threads
    for name in ("worker_threads", "stream_copy_bytes", "helper_copy_bytes"):
        if value := getattr(config, name):
            setattr(made, name, value)
    made.class_weights = parse_class_weights(config.class_weights)
    if config.stall_timeout_s:
        made.stall_timeout_ms = int(config.stall_timeout_s * 1000)
    return made


def _check(
    status: int, message: str = "", *, node: str | None = None, stage: str | None = None
) -> None:
    if status != Status.OK:
        raise error_from_status(status, message, node=node, stage=stage)


def _sentence(error: Any) -> str:
    text: Any = ffi.string(error)
    return str(text.decode(errors="replace"))


def _deadline_ns(timeout_s: float) -> int:
    if not 0 <= timeout_s < 1e9:
        raise RequestError(f"timeout_s must be a number of seconds, not {timeout_s!r}")
    return time.monotonic_ns() + int(timeout_s * 1e9)


def _pin(memory: Buffer) -> Any:
    """Return a handle that keeps a buffer in place, read-only ones too."""
    try:
        return ffi.from_buffer(memory)
    except (TypeError, ValueError, BufferError) as error:
        raise RequestError(
            f"{type(memory).__name__} is no contiguous buffer", cause=error
        ) from error


def _range_of(memory: Buffer | int, length: int | None) -> tuple[int, int]:
    if isinstance(memory, int):
        if length is None:
            raise RequestError("an address needs a length")
        return memory, length
    pinned = memory if isinstance(memory, ffi.CData) else _pin(memory)
    size = len(ffi.buffer(pinned))
    if length is not None and not 0 <= length <= size:
        raise RequestError(f"the buffer has {size} bytes, not {length}")
    return int(ffi.cast("uintptr_t", pinned)), size if length is None else length


def _drain(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(descriptor, 8)
