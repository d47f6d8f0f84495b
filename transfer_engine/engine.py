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
import itertools
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

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
from mooncake_store.transfer_engine.boundary import (
    Buffer,
    check,
    deadline_ns,
    drain,
    pin,
    range_of,
    sentence,
)
from mooncake_store.transfer_engine.config import EngineConfig, c_config
from mooncake_store.transfer_engine.explanation import (
    Explanation,
    RailUse,
    RailView,
    rail_view_of,
)
from mooncake_store.transfer_engine.pairing import rails_to
from mooncake_store.transfer_engine.priority import Priority
from mooncake_store.transfer_engine.request import (
    Answer,
    Notification,
    Opcode,
    Region,
    Segment,
    TransferRequest,
    TransferState,
    TransferStatus,
    c_options,
    pack,
)
from mooncake_store.transfer_engine.shared_memory import SharedMemory
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

_ERROR_BYTES = 256
_NAME_BYTES = 256
_socket_numbers = itertools.count()


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
        check(lib.te_engine_open(c_config(config or EngineConfig()), engine), "engine")
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
                check(lib.te_serve_memory(engine), "serve")
                self._is_serving = True
            if local and self._socket_path is None:
                path = runtime_dir() / f"engine-{os.getpid()}-{next(_socket_numbers)}.sock"
                raw = os.fsencode(path)
                check(lib.te_listen_unix(engine, raw, error), sentence(error), stage="listen")
                check(lib.te_publish_unix(engine, raw), "socket path", stage="listen")
                self._socket_path = path
        bound = ffi.new("uint16_t *")
        check(
            lib.te_listen_tcp(engine, address.encode(), port, bound, error),
            sentence(error),
            stage="listen",
        )
        return f"[{address}]:{bound[0]}" if ":" in address else f"{address}:{bound[0]}"

    def set_topology(self, topology: Topology) -> None:
        """Tell peers about this machine's interfaces; use all for peers that tell theirs."""
        text = to_json(topology).encode()
        error = ffi.new("char[]", _ERROR_BYTES)
        check(lib.te_set_topology(self._handle(), text, len(text), error), sentence(error))
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
        check(answer.status, "no memory is served", node=address, stage="topology")
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
            NotRegisteredError: It is not mapped, or this processor cannot read it (VRAM).
            RequestError: It overlaps registered memory, or the location makes no sense.
        """
        keep = None if isinstance(memory, int) else pin(memory)
        address, size = range_of(memory if keep is None else keep, length)
        status = lib.te_register_local_memory(self._handle(), address, size, location.encode())
        if status == Status.BAD_REQUEST:
            raise RequestError(
                f"cannot register {size} bytes at {address:#x} as {location!r}: they overlap "
                'registered memory, are none, or the location is not like "cpu:0"'
            )
        is_host = location == "*" or location.startswith("cpu:")
        hint = (
            ""
            if is_host
            else "; memory of a device goes through host memory, or over RDMA alone "
            "(register_device_memory)"
        )
        check(status, f"{size} bytes at {address:#x} are not mapped{hint}")
        with self._lock:
            self._buffers[address] = (size, keep)
        return address

    def register_device_memory(
        self,
        address: int,
        length: int,
        descriptor: int,
        offset: int = 0,
        *,
        location: str = "*",
    ) -> int:
        """Let RDMA NICs reach memory of a device (VRAM), which this processor need not read.

        Only lanes of RDMA carry it: a transfer that would go another way (TCP, the same host, or
        before the lanes to a peer are up: `rails`) fails with `NotRegisteredError`, at both ends.
        Not tried on real devices.

        Args:
            address: By which requests and peers name it; within a page it agrees with `offset`.
            length: Bytes.
            descriptor: Its dmabuf, as the device's driver exports it. It may be closed afterwards.
            offset: Where in the dmabuf the memory begins.
            location: Where it is: `cuda:1`, or `*`.

        Returns:
            `address`; `unregister_local_memory` ends it.

        Raises:
            NotRegisteredError: A NIC refuses it, which is named, or there is none.
            RequestError: It overlaps registered memory, or an argument makes no sense.
        """
        for number in (address, length, offset):
            if not 0 <= number < 1 << 64:
                raise RequestError(f"{number} is no address, length or offset")
        if not -(1 << 31) <= descriptor < 1 << 31:
            raise RequestError(f"{descriptor} is no descriptor")
        error = ffi.new("char[]", _ERROR_BYTES)
        status = lib.te_register_device_memory(
            self._handle(), address, length, location.encode(), descriptor, offset, error
        )
        told = f"cannot register {length} bytes of device memory at {address:#x}: {sentence(error)}"
        if status == Status.BAD_REQUEST:
            raise RequestError(told)
        check(status, told, stage="register")
        with self._lock:
            self._buffers[address] = (length, None)
        return address

    def unregister_local_memory(self, memory: Buffer | int) -> None:
        """End what `register_local_memory` began; transfers of peers are broken off.

        Raises:
            RequestError: Transfers of this engine use it: wait for them or cancel them.
            NotRegisteredError: No registered memory begins there.
        """
        address = memory if isinstance(memory, int) else range_of(memory, None)[0]
        status = lib.te_unregister_local_memory(self._handle(), address)
        if status == Status.BUSY:
            raise RequestError(
                f"transfers use the memory at {address:#x}: wait for them or cancel them first",
                retryable=True,
            )
        check(status, f"no registered memory begins at {address:#x}")
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
            self._handle(), address.encode(), handle, deadline_ns(timeout_s), error
        )
        check(status, sentence(error), node=address, stage="connect")
        segment = Segment(self, int(handle[0]), address)
        with self._lock:
            times = self._opened.get(segment.handle, ("", 0))[1]
            self._opened[segment.handle] = (address, times + 1)
        self._pair(segment.handle)
        return segment

    def close_segment(self, segment: Segment) -> None:
        """Close a segment; opened twice, it is closed twice."""
        check(lib.te_close_segment(self._handle(), segment.handle), "no such segment")
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
            check(status, sentence(error), node=opened[0], stage="rails")

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
            check(status, "no such segment")
            found.append(rail_view_of(view))

    def _regions(self, handle: int) -> list[Region]:
        address, length = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        found: list[Region] = []
        while True:
            status = lib.te_segment_region(self._handle(), handle, len(found), address, length)
            if status == Status.NOT_FOUND:
                return found
            check(status, "no such segment")
            found.append(Region(int(address[0]), int(length[0])))

    # ---- batches ---------------------------------------------------------------------------------

    def allocate_batch_id(self, size: int) -> int:
        """Make a batch for at most `size` requests."""
        batch = ffi.new("uint64_t *")
        check(lib.te_allocate_batch_id(self._handle(), size, batch), f"a batch of {size} requests")
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
        packed = pack(requests)
        status = lib.te_submit_transfer_as(
            self._handle(),
            batch_id,
            ffi.from_buffer("te_transfer_request[]", packed),
            len(requests),
            c_options(priority, tenant, weight),
            deadline_ns(timeout_s),
        )
        check(status, _BATCH_SENTENCES.get(status, ""))

    def get_transfer_status(self, batch_id: int, index: int) -> TransferStatus:
        """Return how the request with that number (in order of submission) stands."""
        result: Any = ffi.new("te_transfer_status *")
        check(lib.te_get_transfer_status(self._handle(), batch_id, index, result), "")
        return TransferStatus(TransferState(result.state), Status(result.status), int(result.bytes))

    def explain(self, batch_id: int, index: int) -> Explanation:
        """Return how a request went, or goes: its rails, what was repeated, time per stage."""
        told: Any = ffi.new("te_transfer_explanation *")
        check(lib.te_explain_transfer(self._handle(), batch_id, index, told), "no such request")
        view: Any = ffi.new("te_rail_view *")
        moved = ffi.new("uint64_t *")
        rails: list[RailUse] = []
        while (
            lib.te_explain_rail(self._handle(), batch_id, index, len(rails), view, moved)
            == Status.OK
        ):
            was_used = bool(told.rails >> len(rails) & 1)
            rails.append(RailUse(rail_view_of(view), was_used, int(moved[0])))
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
        status = lib.te_wait_batch(self._handle(), batch_id, deadline_ns(timeout_s))
        if status == Status.TIMEOUT:
            return False
        check(status, _BATCH_SENTENCES.get(status, ""))
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
                drain(descriptor)
            return True
        finally:
            loop.remove_reader(descriptor)

    def cancel(self, batch_id: int) -> None:
        """Ask for an early end: see `wait` for when it has come.  No more can be submitted."""
        check(lib.te_cancel_batch(self._handle(), batch_id), "no such batch")

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
        check(status, "no such batch")

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
        packed = pack(requests)
        statuses: Any = ffi.new("te_transfer_status[]", len(requests))
        check(
            lib.te_transfer_as(
                self._handle(),
                ffi.from_buffer("te_transfer_request[]", packed),
                len(requests),
                c_options(priority, tenant, weight),
                statuses,
                deadline_ns(timeout_s),
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
            deadline_ns(timeout_s),
        )
        check(status, "", node=segment.address, stage="notify")

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
            check(status, "")
            message = ffi.buffer(text, length[0])[:]
            return Notification(sentence(name), message.decode(errors="replace"))

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
            deadline_ns(timeout_s),
            error,
        )
        check(status, sentence(error), node=address, stage="call")
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
                check(
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
