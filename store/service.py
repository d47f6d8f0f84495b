"""The C store server, from Python: opened, read, closed."""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mooncake_store._native import ffi as _ffi
from mooncake_store._native import lib
from mooncake_store.errors import ClosedError, InUseError, LimitError, Status, error_from_status
from mooncake_store.runtime import boot_id
from mooncake_store.store.config import StoreServerConfig
from mooncake_store.transfer_engine.engine import TransferEngine
from mooncake_store.transfer_engine.priority import parse_class_weights
from mooncake_store.transfer_engine.spinners import share_spinners

__all__ = ["Counter", "Place", "ServerStatus", "StoreService", "read_identity"]

ffi: Any = _ffi  # its structs have no types that a checker could know

_ERROR_BYTES = 512
_LOG_LINE_BYTES = 256
_SEVERITIES = (logging.INFO, logging.WARNING, logging.ERROR)
_POOL_STATES = ("growing", "ready", "smaller")

logger = logging.getLogger("mooncake_store.store")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node's files lie.

    Attributes:
        name: Of the node.
        folder: Its own, 0700.
        hugetlb_dir: Where the payload lies in huge pages instead; None: in `folder`.
    """

    name: str
    folder: Path
    hugetlb_dir: Path | None


@dataclass(frozen=True, slots=True)
class Counter:
    """One number that the server counts."""

    name: str
    help: str
    value: int


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """How a running server stands.

    Attributes:
        epoch: Of the master that has adopted it; 0: none ever has.
        is_adopted: A master is connected and has its inventory.
        pool: `growing`, `ready`, or `smaller`: the file system became full.
        was_restarted: This node has been started before.
        is_kept: This start took up the pool of an earlier one.
        tick_age_s: Since the I/O threads last turned; they do five times a second.
    """

    node_id: str
    incarnation: int
    epoch: int
    is_adopted: bool
    pool: str
    size_bytes: int
    ready_bytes: int
    extent_count: int
    port: int
    was_restarted: bool
    is_kept: bool
    tick_age_s: float


def read_identity(folder: Path) -> bytes | None:
    """Return the id of the node whose files lie in a folder; None: it has none yet."""
    node_id = ffi.new("uint8_t[16]")
    return bytes(node_id) if lib.st_read_identity(os.fsencode(folder), node_id) else None


class StoreService:
    """A running store server without gRPC and HTTP.

    Args:
        config: Its settings.
        place: Where its files lie.
        size_bytes: Of the pool.
        unix_path: Its socket for processes of this host.
        master: `ip:port` to dial; None: none yet, see `set_master`.
        epoch_floor: Newest epoch that the coordinator knows.
        incarnation_floor: What the coordinator says its incarnation is at least.

    Raises:
        InUseError: Another process has the folder.
        StoreError: It does not start; the message says why.
    """

    def __init__(
        self,
        config: StoreServerConfig,
        place: Place,
        *,
        size_bytes: int,
        unix_path: Path | None,
        master: str | None,
        epoch_floor: int = 0,
        incarnation_floor: int = 0,
    ) -> None:
        native = ffi.new("st_config *")
        lib.st_config_default(native)
        keep: list[Any] = []

        def text(value: str | Path | None) -> Any:
            if value is None:
                return ffi.NULL
            made = ffi.new("char[]", os.fsencode(value))
            keep.append(made)
            return made

        native.segment_dir = text(place.folder)
        native.hugetlb_dir = text(place.hugetlb_dir)
        native.name = text(place.name)
        native.host = text(config.host or boot_id().hex())
        native.listen_address = text(config.address)
        native.addresses = text(",".join(config.advertise) or None)
        native.unix_path = text(unix_path)
        native.master = text(master)
        native.size_bytes = size_bytes
        native.ready_bytes = min(config.ready_size_bytes, size_bytes)
        native.view_bytes_max = config.view_size_bytes or 0
        native.keep_files = config.keep
        native.keep_size = (
            config.pool_size_bytes is None
        )  # else a default changes with what is free
        native.epoch_floor = epoch_floor
        native.incarnation_floor = incarnation_floor
        native.engine.io_threads = config.io_threads
        native.engine.class_weights = parse_class_weights(config.class_weights)
        native.engine.connections_accepted_max = config.connections_max
        for field in ("views_max", "copies_max", "touch_permille", "port", "huge_pages"):
            setattr(native, field, getattr(config, field))
        share_spinners()
        server = ffi.new("st_server **")
        error = ffi.new("char[]", _ERROR_BYTES)
        self._server: Any = None
        status = lib.st_open(native, server, error)
        if status == Status.BUSY:
            raise InUseError(
                ffi.string(error).decode(errors="replace"),
                stage="open",
                hint="stop that server, or give this one another --name or --segment-dir",
            )
        _check(status, error)
        self._server = server[0]
        self.engine = TransferEngine.around(lib.st_engine(self._server))
        """The engine that serves the pool; it ends with the server."""

    def _handle(self) -> Any:
        if self._server is None:
            raise ClosedError("the store server is closed")
        return self._server

    def close(self) -> None:
        """End every connection; the pool's files go too, or stay with what is in them (`keep`)."""
        server, self._server = self._server, None
        if server is not None:
            self.engine.close()
            lib.st_close(server)

    def set_master(self, master: str) -> None:
        """Serve another master from now on."""
        status = lib.st_set_master(self._handle(), master.encode())
        if status != Status.OK:
            raise error_from_status(status, f"{master!r} is no address")

    # ---- reading ----

    def status(self) -> ServerStatus:
        """Return how it stands now."""
        native = ffi.new("st_status *")
        lib.st_get_status(self._handle(), native)
        return ServerStatus(
            node_id=str(uuid.UUID(bytes=bytes(ffi.buffer(native.node_id)))),
            incarnation=native.incarnation,
            epoch=native.epoch,
            is_adopted=bool(native.is_adopted),
            pool=_POOL_STATES[native.pool_state],
            size_bytes=native.bytes_total,
            ready_bytes=native.bytes_ready,
            extent_count=native.object_extents,
            port=native.port,
            was_restarted=bool(native.was_restarted),
            is_kept=bool(native.is_kept),
            tick_age_s=native.tick_age_ms / 1e3,
        )

    def counters(self) -> Iterator[Counter]:
        """Read all counters."""
        number = 0
        while (name := lib.st_counter_name(number)) != ffi.NULL:
            yield Counter(
                ffi.string(name).decode(),
                ffi.string(lib.st_counter_help(number)).decode(),
                int(lib.st_counter(self._handle(), number)),
            )
            number += 1

    def log_descriptor(self) -> int:
        """Return a descriptor that is readable while log lines wait."""
        return int(lib.st_log_descriptor(self._handle()))

    def pass_log_on(self) -> None:
        """Give the waiting log lines to Python's logging."""
        line = ffi.new("char[]", _LOG_LINE_BYTES)
        severity = ffi.new("int *")
        while lib.st_next_log(self._handle(), line, _LOG_LINE_BYTES, severity):
            text = ffi.string(line).decode(errors="replace")
            logger.log(_SEVERITIES[severity[0]], "%s", text)


def _check(status: int, error: Any) -> None:
    if status != Status.OK:
        message = ffi.string(error).decode(errors="replace")
        if status == Status.NO_SPACE:  # of the file system: no object could make room
            hint = "make room there, or choose --pool-size and --segment-dir"
            raise LimitError(message, code="MS-1402", stage="open", hint=hint)
        raise error_from_status(status, message, stage="open")
