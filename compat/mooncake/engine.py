"""`mooncake.engine`: memory of one process moved to and from memory of another, on our engine.

    engine = TransferEngine()
    engine.initialize("10.0.0.5", "P2PHANDSHAKE", "tcp", "")              # 0
    engine.register_memory(address, length)                               # 0
    engine.transfer_sync_read("10.0.0.6:16384", address, there, length)   # 0

Calls answer as engines expect: 0 (or a number above 0) for success, a negative one for a failure,
whose reason is logged (`mooncake.engine`).  docs/mooncake-engine.md tells what is other.
"""

from __future__ import annotations

import enum
import ipaddress
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from mooncake._engine.messages import ReceivedData, ReceivedTensor
from mooncake._engine.rpc import (
    CoroRPCInterface,
    RpcInterface,
    create_rpc_client,
    create_rpc_server,
)
from mooncake._engine.shared import SharedSegment
from mooncake._ranges import Ranges
from mooncake_store._native import ffi
from mooncake_store.errors import NotRegisteredError, StoreError, TransferTimeoutError
from mooncake_store.transfer_engine import engine as native
from mooncake_store.transfer_engine.topology.exchange import to_json
from mooncake_store.transfer_engine.topology.sysfs import discover

__all__ = [
    "SUPPORT_CUDA",
    "SUPPORT_EFA",
    "SUPPORT_HIP",
    "SUPPORT_INTRA_NVLINK",
    "SUPPORT_MNNVL",
    "SUPPORT_MUSA",
    "CoroRPCInterface",
    "InnerTransferEngine",
    "Read",
    "ReceivedData",
    "ReceivedTensor",
    "RpcInterface",
    "SharedSegment",
    "TransferEngine",
    "TransferNotify",
    "TransferOpcode",
    "Write",
    "create_rpc_client",
    "create_rpc_server",
]

log = logging.getLogger("mooncake.engine")

SUPPORT_CUDA = SUPPORT_EFA = SUPPORT_HIP = False
SUPPORT_INTRA_NVLINK = SUPPORT_MNNVL = SUPPORT_MUSA = False

_FAILED, _TIMED_OUT, _COMPLETED = -1, -2, 1  # of transfer_check_status, where 0 is "not yet"
_NOT_REGISTERED, _OVERLAPS, _NO_ANSWER = -3, -7, -102
_P2P = "P2PHANDSHAKE"
# What they ask for in the first two is the best way that there is between two hosts.
_PROTOCOLS = ("tcp", "rdma", "shm", "")
_TIMEOUT_S, _TIMEOUT_S_MIN = 30.0, 5.0
_OPEN_TIMEOUT_S = 5.0
_POLL_S = 0.0005


class TransferOpcode(enum.Enum):
    """The direction of a transfer, as seen from here."""

    Read = 0
    Write = 1

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__


Read, Write = TransferOpcode.Read, TransferOpcode.Write


class TransferNotify:
    """A message that a peer finds in `get_notifies`."""

    __slots__ = ("msg", "name")

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name = name
        self.msg = msg

    def __repr__(self) -> str:
        return f"TransferNotify({self.name!r}, {self.msg!r})"


class InnerTransferEngine:
    """What `get_engine` returns: to be handed to `MooncakeDistributedStore.setup`."""

    def __init__(self, engine: native.TransferEngine) -> None:
        self.engine = engine


@dataclass(slots=True)
class _Batch:
    """Transfers under way."""

    count: int
    borrowed: list[int] = field(default_factory=list)


def _timeout_s() -> float:
    """Seconds that a transfer may take: $MC_TRANSFER_TIMEOUT, at least 5."""
    text = os.environ.get("MC_TRANSFER_TIMEOUT", "")
    try:
        return max(_TIMEOUT_S_MIN, float(text)) if text else _TIMEOUT_S
    except ValueError:
        log.error("MC_TRANSFER_TIMEOUT is a number of seconds, not %r", text)
        return _TIMEOUT_S


def _split(name: str) -> tuple[str, int]:
    """Return host and port (0: none given) of `host`, `host:port`, `[v6]:port` or a bare v6."""
    if name.startswith("["):
        host, _, rest = name[1:].partition("]")
        return host, int(rest.removeprefix(":") or 0)
    if name.count(":") == 1:
        host, _, port = name.partition(":")
        return host, int(port)
    return name, 0


def _numeric(host: str) -> str:
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        return str(found[0][4][0])


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _numbers(name: str, values: Sequence[int]) -> list[int]:
    found = list(values)
    if not all(isinstance(value, int) and 0 <= value < 2**64 for value in found):
        raise TypeError(f"{name}: addresses and lengths are numbers from 0 on")
    return found


class TransferEngine:
    """Moves bytes between memory registered here and at peers.  For any number of threads.

    Local memory that was not registered is registered for the time of a transfer.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._engine: native.TransferEngine | None = None
        self._port = 0
        self._registered = Ranges()
        self._segments: dict[str, native.Segment] = {}
        self._regions: dict[str, Ranges] = {}
        self._batches: dict[int, _Batch] = {}
        self._managed: dict[int, native.SharedMemory] = {}
        self._borrowed: dict[int, int] = {}  # by address: how many transfers it is registered for

    def __del__(self) -> None:
        engine = getattr(self, "_engine", None)
        if engine is not None:
            engine.close()

    # ---- life ------------------------------------------------------------------------------------

    def initialize(
        self, local_hostname: str, metadata_server: str, protocol: str, device_name: str
    ) -> int:
        """Listen at an address of this host; peers name it with the port of `get_rpc_port`.

        Args:
            local_hostname: `host` or `host:port`.
            metadata_server: `P2PHANDSHAKE`; there is no other.
            protocol: `tcp` or `rdma`: shared memory or the network, as the peer is reached.
            device_name: Not needed.

        Returns:
            0, also when it was initialized before; a negative number when it cannot listen.
        """
        with self._lock:
            if self._engine is not None:
                return 0
            if metadata_server != _P2P:
                log.error(
                    "metadata_server is %s here, not %r: peers are named by host and port",
                    _P2P, metadata_server,
                )  # fmt: skip
                return _FAILED
            if protocol not in _PROTOCOLS:
                log.error("no protocol %r here: take tcp", protocol)
                return _FAILED
            engine = native.TransferEngine()
            try:
                host, port = _split(local_hostname)
                bound = engine.listen(_numeric(host), port)
            except (StoreError, OSError, ValueError) as error:
                log.error("cannot listen at %r: %s", local_hostname, error)
                engine.close()
                return _FAILED
            self._engine = engine
            self._port = int(bound.rpartition(":")[2])
            return 0

    def initialize_ext(
        self,
        local_hostname: str,
        metadata_server: str,
        protocol: str,
        device_name: str,
        metadata_type: str,
    ) -> int:
        """As `initialize`."""
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    def get_rpc_port(self) -> int:
        """Return the port that this engine listens at; 0 before `initialize`."""
        return self._port

    def get_engine(self) -> InnerTransferEngine:
        """Return what a store can be set up with."""
        return InnerTransferEngine(self._native())

    def get_engine_ptr(self) -> int:
        """Refuse: there is no C++ object here."""
        raise NotImplementedError("mooncake-store has no C++ engine whose address could be given")

    def _native(self) -> native.TransferEngine:
        if self._engine is None:
            raise NotRegisteredError("the engine is not initialized: call initialize first")
        return self._engine

    # ---- memory ----------------------------------------------------------------------------------

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*") -> int:
        """Let peers and transfers use memory that stays mapped until `unregister_memory`.

        Returns:
            0; -7 when it overlaps registered memory; -1 when it is none.
        """
        (address, length) = _numbers("register_memory", [buffer_addr, capacity])
        with self._lock:
            try:
                self._native().register_local_memory(address, length, location=location)
            except StoreError as error:
                log.error("register_memory: %s", error)
                return _OVERLAPS if self._registered.overlap(address, length) else _FAILED
            self._registered.add(address, length)
            return 0

    def unregister_memory(self, buffer_addr: int) -> int:
        """End what `register_memory` began; -3 when no registered memory begins there."""
        (address,) = _numbers("unregister_memory", [buffer_addr])
        with self._lock:
            try:
                self._native().unregister_local_memory(address)
            except NotRegisteredError as error:
                log.error("unregister_memory: %s", error)
                return _NOT_REGISTERED
            except StoreError as error:
                log.error("unregister_memory: %s", error)
                return _FAILED
            self._registered.remove(address)
            return 0

    def batch_register_memory(
        self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*"
    ) -> int:
        """Register several; all of them or, with a negative answer, none."""
        if len(buffer_addresses) != len(capacities):
            log.error("batch_register_memory: as many capacities as addresses are needed")
            return _FAILED
        done: list[int] = []
        for address, length in zip(buffer_addresses, capacities, strict=True):
            status = self.register_memory(address, length, location)
            if status != 0:
                for registered in done:
                    self.unregister_memory(registered)
                return status
            done.append(address)
        return 0

    def batch_unregister_memory(self, buffer_addresses: Sequence[int]) -> int:
        """Unregister several; the first failure's number, and the others are unregistered."""
        statuses = [self.unregister_memory(address) for address in buffer_addresses]
        return next((status for status in statuses if status), 0)

    def allocate_managed_buffer(self, length: int) -> int:
        """Return the address of new registered memory that peers on this host map; 0: none left."""
        try:
            memory = self._native().allocate_shared(length)
        except StoreError as error:
            log.error("allocate_managed_buffer: %s", error)
            return 0
        if self.register_memory(memory.address, length) != 0:
            memory.close()
            return 0
        with self._lock:
            self._managed[memory.address] = memory
        return memory.address

    def free_managed_buffer(self, address: int, length: int) -> int:
        """Give back what `allocate_managed_buffer` returned."""
        with self._lock:
            memory = self._managed.get(address)
            if memory is None or memory.length != length:
                log.error("free_managed_buffer: no buffer of %d bytes at %#x", length, address)
                return _FAILED
            if self.unregister_memory(address) != 0:
                return _FAILED
            del self._managed[address]
        memory.close()
        return 0

    def write_bytes_to_buffer(self, address: int, data: str | bytes, length: int) -> int:
        """Copy the first `length` bytes into registered memory."""
        given = data.encode() if isinstance(data, str) else bytes(data)
        if length > len(given) or not self._registered.holds(address, length):
            log.error("write_bytes_to_buffer: %d bytes at %#x are not registered", length, address)
            return _FAILED
        ffi.memmove(ffi.cast("char *", address), given, length)
        return 0

    def read_bytes_from_buffer(self, address: int, length: int) -> bytes:
        """Return bytes of registered memory.

        Raises:
            NotRegisteredError: They are not.
        """
        if not self._registered.holds(address, length):
            raise NotRegisteredError(f"{length} bytes at {address:#x} are not registered")
        return bytes(ffi.buffer(ffi.cast("char *", address), length))

    # ---- peers -----------------------------------------------------------------------------------

    def _segment(self, target: str, ranges: Sequence[tuple[int, int]]) -> native.Segment:
        """Return a peer's memory, asked for anew if it is not known to hold the ranges."""
        with self._lock:
            segment, known = self._segments.get(target), self._regions.get(target)
        if segment is None or known is None:
            return self._open(target)
        if not all(known.holds(address, length) for address, length in ranges):
            return self._open(target)
        return segment

    def _open(self, target: str) -> native.Segment:
        host, port = _split(target)
        address = _joined(_numeric(host), port)
        segment = self._native().open_segment(address, timeout_s=_OPEN_TIMEOUT_S)
        regions = Ranges((found.address, found.length) for found in segment.regions())
        with self._lock:
            # The engine counts how often it is open: once is enough.
            if target in self._segments:
                segment.close()
            self._segments[target] = segment
            self._regions[target] = regions
        return segment

    def send_probe(self, peer_server_name: str) -> int:
        """Return 0 when the peer answers, else a negative number."""
        try:
            self._open(peer_server_name)
        except (StoreError, OSError, ValueError) as error:
            log.error("send_probe: %s", error)
            return _NO_ANSWER
        return 0

    def get_first_buffer_address(self, segment_name: str) -> int:
        """Return where a peer's first registered memory begins; 0: it has none, or is not there."""
        try:
            regions = self._open(segment_name).regions()
        except (StoreError, OSError, ValueError) as error:
            log.error("get_first_buffer_address: %s", error)
            return 0
        return regions[0].address if regions else 0

    def get_local_topology(self, device_name: str | None = None) -> str:
        """Return which network cards suit which memory: {location: [[preferred], [others]]}."""
        matrix = json.loads(to_json(discover())).get("matrix", {})
        return json.dumps(matrix)

    def get_notifies(self) -> list[TransferNotify]:
        """Return the messages that have come since the last call."""
        found = []
        while (message := self._native().receive_notify()) is not None:
            found.append(TransferNotify(message.name, message.message))
        return found

    def warmup_efa_segment(self, segment_name: str) -> int:
        """Refuse: there is no EFA."""
        log.error("warmup_efa_segment: this engine knows no EFA")
        return _FAILED

    # ---- transfers -------------------------------------------------------------------------------

    def _requests(
        self,
        target: str,
        buffers: Sequence[int],
        peers: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
    ) -> tuple[list[native.TransferRequest], list[int]]:
        """Return the requests, and what was registered for them."""
        if not len(buffers) == len(peers) == len(lengths):
            raise ValueError("as many addresses there and lengths as addresses here are needed")
        here, there, sizes = (_numbers("transfer", values) for values in (buffers, peers, lengths))
        segment = self._segment(target, list(zip(there, sizes, strict=True)))
        direction = native.Opcode(int(opcode))
        borrowed = self._borrow(list(zip(here, sizes, strict=True)))
        requests = [
            native.TransferRequest(direction, segment, address, other, size)
            for address, other, size in zip(here, there, sizes, strict=True)
            if size
        ]
        return requests, borrowed

    def _borrow(self, ranges: Sequence[tuple[int, int]]) -> list[int]:
        """Register what is not; transfers of the same memory at the same time share it."""
        borrowed: list[int] = []
        with self._lock:
            for address, length in ranges:
                if not length:
                    continue
                holder = self._registered.holder(address, length)
                if holder is None:
                    try:
                        self._native().register_local_memory(address, length)
                    except StoreError:
                        self._give_back(borrowed)
                        raise
                    self._registered.add(address, length)
                    self._borrowed[address] = 0
                    holder = address
                if holder in self._borrowed:
                    self._borrowed[holder] += 1
                    borrowed.append(holder)
        return borrowed

    def _give_back(self, borrowed: Sequence[int]) -> None:
        with self._lock:
            for address in borrowed:
                self._borrowed[address] -= 1
                if self._borrowed[address] == 0:
                    del self._borrowed[address]
                    self.unregister_memory(address)

    def _transfer(
        self,
        target: str,
        buffers: Sequence[int],
        peers: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
        notify: TransferNotify | None,
    ) -> int:
        borrowed: list[int] = []
        try:
            requests, borrowed = self._requests(target, buffers, peers, lengths, opcode)
            if requests:
                self._carry_out(target, requests)
            if notify is not None:
                segment = self._segments[target]
                self._native().send_notify(segment, notify.name, notify.msg)
            return 0
        except (StoreError, OSError, ValueError, KeyError) as error:
            log.error("transfer with %s: %s", target, error)
            return _FAILED
        finally:
            self._give_back(borrowed)

    def _carry_out(self, target: str, requests: list[native.TransferRequest]) -> None:
        deadline = time.monotonic() + _timeout_s()
        try:
            self._native().transfer(requests, timeout_s=_timeout_s())
        except TransferTimeoutError:
            raise
        except StoreError:
            # The peer may have other memory at that place since it was asked, or be another one.
            segment = self._open(target)
            renewed = [
                native.TransferRequest(
                    request.opcode, segment, request.local_address, request.remote_address,
                    request.length,
                )
                for request in requests
            ]  # fmt: skip
            self._native().transfer(renewed, timeout_s=max(0.0, deadline - time.monotonic()))

    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Move bytes between `buffer` and a peer's memory; 0 when they have been moved."""
        return self._transfer(
            target_hostname, [buffer], [peer_buffer_address], [length], opcode, notify
        )

    def transfer_sync_read(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """Bring bytes from a peer."""
        return self.transfer_sync(target_hostname, buffer, peer_buffer_address, length, Read)

    def transfer_sync_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """Take bytes to a peer."""
        return self.transfer_sync(target_hostname, buffer, peer_buffer_address, length, Write)

    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
    ) -> int:
        """Move several ranges; 0 when all have been moved."""
        return self._transfer(
            target_hostname, buffers, peer_buffer_addresses, lengths, opcode, notify
        )

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Bring several ranges from a peer."""
        return self.batch_transfer_sync(
            target_hostname, buffers, peer_buffer_addresses, lengths, Read
        )

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Take several ranges to a peer."""
        return self.batch_transfer_sync(
            target_hostname, buffers, peer_buffer_addresses, lengths, Write
        )

    # ---- transfers that go on by themselves ------------------------------------------------------

    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: TransferOpcode,
        transport_hint: str = "",
    ) -> int:
        """Begin to move several ranges.

        Returns:
            A number for `transfer_check_status` and `get_batch_transfer_status`, of which one must
            be asked until it says that the transfer has ended; 0 when it could not begin.
        """
        borrowed: list[int] = []
        try:
            engine = self._native()
            requests, borrowed = self._requests(
                target_hostname, buffers, peer_buffer_addresses, lengths, opcode
            )
            batch_id = engine.allocate_batch_id(max(1, len(requests)))
            if requests:
                engine.submit_transfer(batch_id, requests, timeout_s=_timeout_s())
        except (StoreError, OSError, ValueError) as error:
            log.error("transfer with %s: %s", target_hostname, error)
            self._give_back(borrowed)
            return 0
        with self._lock:
            self._batches[batch_id] = _Batch(len(requests), borrowed)
        return batch_id

    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Begin to bring several ranges from a peer."""
        return self.batch_transfer_async(
            target_hostname, buffers, peer_buffer_addresses, lengths, Read
        )

    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
    ) -> int:
        """Begin to take several ranges to a peer."""
        return self.batch_transfer_async(
            target_hostname, buffers, peer_buffer_addresses, lengths, Write
        )

    def transfer_submit_write(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        transport_hint: str = "",
    ) -> int:
        """Begin to take bytes to a peer."""
        return self.batch_transfer_async_write(
            target_hostname, [buffer], [peer_buffer_address], [length]
        )

    def transfer_check_status(self, batch_id: int) -> int:
        """Return 1 when a transfer has completed, 0 while it goes on, -1 failed, -2 timed out.

        Its number means nothing any more once this is not 0.
        """
        with self._lock:
            batch = self._batches.get(batch_id)
            if batch is None:
                log.error("transfer_check_status: there is no transfer %d", batch_id)
                return _FAILED
            engine = self._native()
            states = [engine.get_transfer_status(batch_id, at) for at in range(batch.count)]
            if not all(status.state.is_final for status in states):
                return 0
            del self._batches[batch_id]
            engine.free_batch_id(batch_id)
            self._give_back(batch.borrowed)
        failed = [each for each in states if each.state is not native.TransferState.COMPLETED]
        if not failed:
            return _COMPLETED
        log.error("transfer %d: %s, %s", batch_id, failed[0].state.name, failed[0].status.name)
        timed_out = any(each.state is native.TransferState.TIMED_OUT for each in failed)
        return _TIMED_OUT if timed_out else _FAILED

    def get_batch_transfer_status(self, batch_ids: Sequence[int]) -> int:
        """Wait for transfers to end; 0 when all have completed, -1 when one has not."""
        worst = 0
        for batch_id in batch_ids:
            if batch_id in self._batches:
                # Each ends within its own deadline; the wait is woken when one does.
                self._native().wait(batch_id, timeout_s=_timeout_s() + 1)
            while (status := self.transfer_check_status(batch_id)) == 0:
                time.sleep(_POLL_S)
            if status != _COMPLETED:
                worst = _FAILED
        return worst
