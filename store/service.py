"""The C part of a store server, from Python: opened, read, closed."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mooncake_store import _native
from mooncake_store.config import MIB, format_size
from mooncake_store.errors import CapacityError, Status, error_from_status
from mooncake_store.logs import log_event
from mooncake_store.runtime import boot_id, runtime_dir, shared_memory_dir
from mooncake_store.store.config import DEFAULT_POOL_BYTES, StoreServerConfig

__all__ = ["PoolStatus", "StoreService"]

ffi: Any = _native.ffi
lib: Any = _native.lib

_ERROR_BYTES = 512
_LINE_BYTES = 1024
_POOL_STATES = ("growing", "ready", "smaller")
_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR)

logger = logging.getLogger("mooncake_store.store")


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """How a server is.

    Attributes:
        is_adopted: A master knows it and has its inventory.
        pool_state: growing, ready, or smaller (the file system became full).
    """

    node_id: str
    incarnation: int
    epoch: int
    is_adopted: bool
    pool_state: str
    bytes_total: int
    bytes_ready: int
    object_extents: int
    port: int
    was_restarted: bool


class StoreService:
    """A running store server without gRPC and HTTP.

    Args:
        config: Its settings.

    Raises:
        StoreError: It does not open.
    """

    def __init__(self, config: StoreServerConfig) -> None:
        self.name = config.name or socket.gethostname()
        folder = (
            Path(config.segment_dir).absolute() / self.name
            if config.segment_dir
            else shared_memory_dir() / self.name
        )
        self.size_bytes = config.pool_size_bytes or _default_size(folder.parent)
        self.unix_path = str(runtime_dir() / f"server-{os.getpid()}.sock")
        native = ffi.new("st_config *")
        lib.st_config_default(native)
        kept = [ffi.new("char[]", text.encode()) for text in (
            str(folder), config.hugetlb_dir, self.name, config.host or boot_id().hex(),
            config.address, ",".join(config.advertise), self.unix_path, config.master,
        )]  # fmt: skip
        native.segment_dir = kept[0]
        native.hugetlb_dir = kept[1] if config.hugetlb_dir else ffi.NULL
        native.name, native.host, native.listen_address = kept[2:5]
        native.addresses = kept[5] if config.advertise else ffi.NULL
        native.unix_path = kept[6]
        native.master = kept[7] if config.master else ffi.NULL
        native.size_bytes = self.size_bytes
        native.ready_bytes = config.ready_size_bytes
        if config.view_size_max_bytes:
            native.view_bytes_max = config.view_size_max_bytes
        native.touch_permille = config.touch_core_permille
        native.copies_max = config.copies_max
        native.port = config.port
        native.huge_pages = config.huge_pages
        native.engine.io_threads = config.io_threads
        native.engine.worker_threads = config.worker_threads
        native.engine.connections_accepted_max = config.connections_max
        server = ffi.new("st_server **")
        error = ffi.new("char[]", _ERROR_BYTES)
        status = lib.st_open(native, server, error)
        if status != Status.OK:
            raise error_from_status(
                status, ffi.string(error).decode(errors="replace"), node=self.name, stage="start"
            )
        self._server: Any = server[0]

    @property
    def engine(self) -> Any:
        """The `te_engine` that serves the segments."""
        return lib.st_engine(self._server)

    def status(self) -> PoolStatus:
        """Return how it is now."""
        found = ffi.new("st_status *")
        lib.st_get_status(self._server, found)
        return PoolStatus(
            node_id=bytes(found.node_id).hex(),
            incarnation=found.incarnation,
            epoch=found.epoch,
            is_adopted=bool(found.is_adopted),
            pool_state=_POOL_STATES[found.pool_state],
            bytes_total=found.bytes_total,
            bytes_ready=found.bytes_ready,
            object_extents=found.object_extents,
            port=found.port,
            was_restarted=bool(found.was_restarted),
        )

    def counters(self) -> list[tuple[str, str, int]]:
        """Return name, help and value of each counter."""
        found = []
        index = 0
        while (name := lib.st_counter_name(index)) != ffi.NULL:
            help_text = ffi.string(lib.st_counter_help(index)).decode()
            value = int(lib.st_counter(self._server, index))
            found.append((ffi.string(name).decode(), help_text, value))
            index += 1
        return found

    def log_descriptor(self) -> int:
        """Readable while there are lines for `pass_log_on`."""
        return int(lib.st_log_descriptor(self._server))

    def pass_log_on(self) -> None:
        """Give what C had to say to the log."""
        line = ffi.new("char[]", _LINE_BYTES)
        severity = ffi.new("int *")
        while lib.st_next_log(self._server, line, _LINE_BYTES, severity):
            level = _LEVELS[min(max(severity[0], 0), 2)]
            log_event(logger, level, ffi.string(line).decode(errors="replace"), node=self.name)

    def close(self) -> None:
        """End every connection and take the pool away."""
        server, self._server = self._server, None
        if server is not None:
            lib.st_close(server)
            with contextlib.suppress(OSError):
                os.unlink(self.unix_path)


def _default_size(folder: Path) -> int:
    """1 GiB or a quarter of what is free, whichever is less."""
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    size = min(DEFAULT_POOL_BYTES, free // 4 // MIB * MIB)
    if size < 16 * MIB:
        raise CapacityError(
            f"{folder} has only {format_size(free)} free: too little for a pool",
            hint="free some (ls -l /dev/shm), or choose --segment-dir and --pool-size",
        )
    return size
