"""The C service of the master, from Python: opened, listened on, read, closed."""

from __future__ import annotations

import contextlib
import logging
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mooncake_store._native import ffi as _ffi
from mooncake_store._native import lib
from mooncake_store.coordination import Leadership, NodeNumber, Tombstone
from mooncake_store.errors import ClosedError, Status, error_from_status
from mooncake_store.logs import log_event
from mooncake_store.master.config import POLICIES, MasterConfig
from mooncake_store.transfer_engine.spinners import share_spinners
from mooncake_store.version import version_number

__all__ = ["Drain", "MasterService", "Member", "Metric", "OpTimes", "Sample"]

ffi: Any = _ffi  # its structs have no types that a checker could know

_ERROR_BYTES = 256
_PAGE_BYTES = 4096
_NEVER_MS = 2**32 - 1
_MEMBER_STATES = ("joining", "ready", "draining", "gone")

logger = logging.getLogger("mooncake_store.master")


@dataclass(frozen=True, slots=True)
class Metric:
    """One entry of the list that STATUS and scrapes share."""

    name: str
    help: str
    is_counter: bool
    is_labelled: bool
    number: int  # by which STATUS names it


@dataclass(frozen=True, slots=True)
class Sample:
    """The value of a metric; `server` is the store server that it is about, or None."""

    metric: int
    server: int | None
    value: int


@dataclass(frozen=True, slots=True)
class OpTimes:
    """How long requests of one method took inside the master.

    Attributes:
        buckets: Requests per bucket, not cumulative; bounds are `MasterService.op_bounds_s`.
    """

    name: str
    count: int
    failed: int
    sum_s: float
    buckets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    """That a store server is to be emptied, as the coordinator keeps it.

    Attributes:
        task: What empties it; 0: it does not drain any more.
    """

    node_id: bytes
    task: int


@dataclass(frozen=True, slots=True)
class Member:
    """A store server as the master sees it."""

    server: int
    node_id: bytes
    incarnation: int
    state: str
    name: str
    addresses: tuple[str, ...]
    unix_path: str
    size_bytes: int
    ready_bytes: int
    free_bytes: int
    freeing_bytes: int
    pinned_bytes: int
    object_count: int
    silent_s: float | None  # None: not connected
    struck: int  # what it brings back up to this version does not count
    is_leaving: bool  # it is to be forgotten
    is_kept: bool  # the coordinator knows its number and that it is a member


def metrics() -> tuple[Metric, ...]:
    """Return the list of metrics; a sample's number is a position in it."""
    found = []
    metric = ffi.new("ma_metric *")
    for index in range(lib.ma_metric_count()):
        lib.ma_metric_get(index, metric)
        found.append(
            Metric(
                ffi.string(metric.name).decode(),
                ffi.string(metric.help).decode(),
                bool(metric.is_counter),
                bool(metric.is_labelled),
                metric.number,
            )
        )
    return tuple(found)


class MasterService:
    """A running master without gRPC and HTTP: the message channel and the metadata core.

    Args:
        config: Its settings.
        leadership: What the coordinator gave.

    Raises:
        StoreError: It does not open.
    """

    def __init__(self, config: MasterConfig, leadership: Leadership) -> None:
        share_spinners()
        native = native_config(config, leadership)
        master = ffi.new("ma_master **")
        error = ffi.new("char[]", _ERROR_BYTES)
        self._check(lib.ma_master_open(native, master, error), error)
        self._master: Any = master[0]
        self.leadership = leadership
        self.metrics = metrics()
        self.op_bounds_s = tuple(lib.ma_op_bound_ns(index) / 1e9 for index in range(20))

    @staticmethod
    def _check(status: int, error: Any) -> None:
        if status != Status.OK:
            sentence = ffi.string(error).decode(errors="replace")
            raise error_from_status(status, sentence, stage="open")

    def _handle(self) -> Any:
        if self._master is None:
            raise ClosedError("the master is closed")
        return self._master

    def listen_tcp(self, address: str, port: int) -> int:
        """Listen on a numeric address; return the port, which is another one if 0 was asked for."""
        bound = ffi.new("uint16_t *")
        error = ffi.new("char[]", _ERROR_BYTES)
        self._check(
            lib.ma_master_listen_tcp(self._handle(), address.encode(), port, bound, error), error
        )
        return int(bound[0])

    def listen_unix(self, path: str) -> None:
        """Listen on a Unix socket that only this user can open."""
        error = ffi.new("char[]", _ERROR_BYTES)
        self._check(lib.ma_master_listen_unix(self._handle(), path.encode(), error), error)

    def set_lease_deadline(self, deadline_ns: int) -> None:
        """Answer clients until then, by CLOCK_BOOTTIME; 0: for ever."""
        lib.ma_set_lease_deadline(self._handle(), deadline_ns)

    def reconfigure(self, config: MasterConfig) -> None:
        """Go by these settings from now on, as far as that can be done while serving."""
        lib.ma_reconfigure(self._handle(), native_config(config, self.leadership))

    def close(self) -> None:
        """Close every connection and stop."""
        master, self._master = self._master, None
        if master is not None:
            lib.ma_master_close(master)

    # ---- reading ----

    def tick_age_s(self) -> float:
        """Return how long ago the I/O thread last turned; it turns 50 times a second."""
        return float(lib.ma_tick_age_ms(self._handle())) / 1e3

    def samples(self) -> Iterator[Sample]:
        """Read all metrics at one moment."""
        room = 1024
        while True:
            samples = ffi.new("ma_sample[]", room)
            count = lib.ma_metrics_read(self._handle(), samples, room)
            if count <= room:
                break
            room = count + 64
        for sample in samples[0:count]:
            server = sample.label - 1 if sample.label else None
            yield Sample(sample.id, server, sample.value)

    def op_times(self) -> Iterator[OpTimes]:
        """Read how long requests took, method by method."""
        op = ffi.new("ma_op *")
        index = 0
        while lib.ma_op_read(self._handle(), index, op):
            yield OpTimes(
                ffi.string(op.name).decode(),
                op.count,
                op.failed,
                op.sum_ns / 1e9,
                tuple(op.buckets[0:20]),
            )
            index += 1

    def space(self) -> dict[str, int]:
        """Return what the pool's bytes are used for."""
        space = ffi.new("ma_space *")
        lib.ma_space_read(self._handle(), space)
        names = (
            "total",
            "free",
            "writing",
            "freeing",
            "complete",
            "hard_pinned",
            "pinned",
            "leased",
        )
        return {name: getattr(space, f"bytes_{name}") for name in names}

    def members(self) -> tuple[Member, ...]:
        """Return the store servers that this master knows, also those that are gone."""
        room = 64
        while True:
            rows = ffi.new("ma_member_row[]", room)
            count = lib.ma_members_read(self._handle(), rows, room)
            if count <= room:
                break
            room = count + 16
        return tuple(_member(row) for row in rows[0:count])

    # ---- what C cannot do itself ----

    def event_descriptor(self) -> int:
        """Return a descriptor that is readable while log lines or tombstones wait."""
        return int(lib.ma_event_descriptor(self._handle()))

    def pass_log_on(self) -> None:
        """Give the waiting log lines to Python's logging."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.event_descriptor(), 8)  # it stays readable until it is read
        line = ffi.new("ma_log_line *")
        while lib.ma_log_next(self._handle(), line):
            text = ffi.string(line.text).decode(errors="replace")
            if logger.isEnabledFor(line.level):
                logger.log(line.level, "%s", text, extra={"wall_s": line.wall_ms / 1e3})

    def add_tombstones(self, tombstones: tuple[Tombstone, ...]) -> None:
        """Tell what former leaders have struck, before any store server brings it back.

        Raises:
            StoreError: There is no memory for them.
        """
        native = ffi.new("ma_tombstone *")
        for tombstone in tombstones:
            _fill(native, tombstone)
            status = lib.ma_tombstone_add(self._handle(), native)
            if status != Status.OK:
                raise error_from_status(
                    status, f"{len(tombstones)} tombstones cannot be taken over"
                )

    def add_number(self, number: NodeNumber) -> None:
        """Tell whose a number is; before any member is expected.

        Raises:
            StoreError: There are too many.
        """
        status = lib.ma_number_add(
            self._handle(), number.node_id, number.number, number.name.encode(), number.struck
        )
        if status != Status.OK:
            raise error_from_status(status, f"number {number.number} of a node cannot be kept")

    def number_kept(self, node_id: bytes) -> None:
        """Say that the coordinator knows this node's number, and that it is a member."""
        lib.ma_number_kept(self._handle(), node_id)

    def forgotten(self, node_id: bytes, *, is_done: bool) -> None:
        """Say that a member that was leaving is one no more at the coordinator, or still is."""
        lib.ma_forgotten(self._handle(), node_id, is_done)

    def expect_member(self, node_id: bytes) -> None:
        """Wait for this store server before answering what needs the index; before listening.

        Raises:
            StoreError: There are too many.
        """
        status = lib.ma_expect_member(self._handle(), node_id)
        if status != Status.OK:
            raise error_from_status(status, "a member of the cluster cannot be expected")

    def tombstones_settled(self) -> int:
        """Return how many of the tombstones that were added or kept, in order, are done with."""
        return int(lib.ma_tombstones_settled(self._handle()))

    def has_tombstones(self) -> bool:
        """Say whether tombstones wait for the coordinator."""
        return bool(lib.ma_tombstone_is_waiting(self._handle()))

    def take_tombstones(self) -> tuple[Tombstone, ...]:
        """Return the tombstones that the coordinator is to keep; each is given out once."""
        found: list[Tombstone] = []
        native = ffi.new("ma_tombstone *")
        while len(found) < 1024 and lib.ma_tombstone_next(self._handle(), native):
            key_hash = native.hash_low.to_bytes(8, "little") + native.hash_high.to_bytes(
                8, "little"
            )
            found.append(Tombstone(key_hash, native.version))
        return tuple(found)

    def finish_tombstones(self, tombstones: tuple[Tombstone, ...], status: Status) -> None:
        """Say that tombstones are kept, or that they cannot be."""
        native = ffi.new("ma_tombstone *")
        for tombstone in tombstones:
            _fill(native, tombstone)
            lib.ma_tombstone_done(self._handle(), native, int(status))

    # ---- drains ----

    def add_drain(self, drain: Drain) -> None:
        """Go on with a drain that a former leader began; its member is expected.

        Raises:
            StoreError: There is no such member, or there are too many drains.
        """
        status = lib.ma_drain_add(self._handle(), _native_drain(drain))
        if status != Status.OK:
            raise error_from_status(status, "a drain of a former leader cannot be taken over")

    def has_drains(self) -> bool:
        """Say whether drains wait for the coordinator."""
        return bool(lib.ma_drain_is_waiting(self._handle()))

    def take_drain(self) -> Drain | None:
        """Return what the coordinator is to keep next; each is given out once."""
        native = ffi.new("ma_draining *")
        if not lib.ma_drain_next(self._handle(), native):
            return None
        return Drain(bytes(ffi.buffer(native.node_id)), native.task)

    def finish_drain(self, drain: Drain, status: Status) -> None:
        """Say that a drain is kept, or that it cannot be."""
        lib.ma_drain_done(self._handle(), _native_drain(drain), int(status))


def _native_drain(drain: Drain) -> Any:
    native = ffi.new("ma_draining *")
    native.node_id = drain.node_id
    native.task = drain.task
    return native


# What cffi structs point to.
_KEPT: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def native_config(config: MasterConfig, leadership: Leadership) -> Any:
    native = ffi.new("ma_config *")
    lib.ma_config_default(native)
    name = ffi.new("char[]", config.name.encode()) if config.name else ffi.NULL
    _KEPT[native] = name  # as long as the struct that points to it
    native.epoch = leadership.epoch
    native.cluster = leadership.cluster
    native.secret = leadership.secret
    native.name = name
    native.version = version_number()
    native.log_level = logging.getLevelName(config.log_level.upper())
    native.keeps_numbers = True
    native.policy = POLICIES.index(config.eviction)
    for field in (
        "session_timeout_ms",
        "location_lifetime_ms",
        "member_grace_ms",
        "server_silence_ms",
        "forget_after_ms",
        "evict_above_permille",
        "evict_below_permille",
        "soft_pin_ms",
        "events_max",
        "fates_max",
        "puts_open_max",
        "sessions_max",
        "connections_max",
        "ramp_share_permille",
        "ramp_ms",
    ):
        setattr(native, field, getattr(config, field))
    native.copy_bytes_per_s = config.copy_bandwidth_bytes_per_s
    native.repair_delay_ms = config.repair_delay_ms if config.repair else _NEVER_MS
    return native


def _fill(native: Any, tombstone: Tombstone) -> None:
    native.hash_low = int.from_bytes(tombstone.key_hash[:8], "little")
    native.hash_high = int.from_bytes(tombstone.key_hash[8:], "little")
    native.version = tombstone.version


def _member(row: Any) -> Member:
    def text(field: Any) -> str:
        return str(ffi.string(field).decode(errors="replace"))

    return Member(
        server=row.server,
        node_id=bytes(ffi.buffer(row.node_id)),
        incarnation=row.incarnation,
        state=_MEMBER_STATES[row.state],
        name=text(row.name),
        addresses=tuple(part for part in text(row.addresses).split(",") if part),
        unix_path=text(row.unix_path),
        size_bytes=row.pages_total * _PAGE_BYTES,
        ready_bytes=row.pages_ready * _PAGE_BYTES,
        free_bytes=row.pages_free * _PAGE_BYTES,
        freeing_bytes=row.pages_freeing * _PAGE_BYTES,
        pinned_bytes=row.pages_pinned * _PAGE_BYTES,
        object_count=row.object_count,
        silent_s=row.silent_ms / 1e3 if row.silent_ms >= 0 else None,
        struck=row.struck,
        is_leaving=row.is_leaving,
        is_kept=row.is_kept,
    )


def log(level: int, event: str, /, **fields: Any) -> None:
    """Write a line of the master's log."""
    log_event(logger, level, event, **fields)
