"""A store client: set up, closed, and how its failures become numbers."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mooncake._store.memory import RegisteredMemory
from mooncake._store.numbers import ErrorNumber, number_of_error
from mooncake._store.replicate import REPLICAS_MAX, ReplicateConfig, group_number
from mooncake._store.segment import Segment, host_address
from mooncake._store.settings import SetupSettings
from mooncake._store.tenant import key_prefix
from mooncake_store.client import Client
from mooncake_store.client.native import ffi, lib
from mooncake_store.errors import ClosedError, StoreError

__all__ = [
    "ANSWER_TIMEOUT_S",
    "DATA_TIMEOUT_S",
    "LEASE_MS",
    "NOT_SET_UP",
    "SETUP_TIMEOUT_S",
    "StoreBase",
]

SETUP_TIMEOUT_S = 5.0
ANSWER_TIMEOUT_S = 5.0  # of calls that move no objects
LEASE_MS = 5000  # what was found is not evicted for so long, as the reference has it
DATA_TIMEOUT_S = 30.0  # a batch may be gigabytes
NOT_SET_UP = int(ErrorNumber.INVALID_PARAMS)
_LOG_PERIOD_S = 10.0
_MEMBERS_PERIOD_S = 1.0  # servers come and go; a name that is not known is looked up again so often

log = logging.getLogger("mooncake_store.compat")

Options = dict[str, Any]


class StoreBase:
    """Set up and closed; every failure is logged, at most once each ten seconds, and a number."""

    def __init__(self) -> None:
        self._client: Client | None = None
        self._settings: SetupSettings | None = None
        self._prefix = ""  # of the keys of a tenant; see tenant.py
        self._segments: dict[str, Segment] = {}
        self._own_segment: Segment | None = None
        self._registered = RegisteredMemory()
        self._setup_lock = threading.Lock()
        self._servers: dict[str, int] = {}  # by endpoint and by name
        self._servers_read_at = float("-inf")
        self._logged_at = float("-inf")

    # ---- set up ----

    def setup(self, *args: Any, **kwargs: Any) -> int:
        """Connect to a master, and add memory to the pool.

        Either setup(local_hostname, metadata_server, global_segment_size, local_buffer_size,
        protocol, rdma_devices, master_server_addr, engine=None, enable_ssd_offload=False,
        ssd_offload_path='', tenant_id='default', enable_client_http_server=False,
        client_http_port=9300), or setup(config) with a dict of the same names, whose values may be
        text; `master_server_address` and `device_name` are taken too.

        metadata_server, rdma_devices and engine are not needed: the master knows who is there, and
        the engine finds its interfaces.  enable_ssd_offload, ssd_offload_path and the client's HTTP
        server have no effect in this version.  With a global_segment_size a store server process is
        started, which ends with this client.  A second setup of an open client does nothing.

        Returns:
            0, or a negative number; a dict raises instead.

        Raises:
            TypeError: An argument is not known.
            ValueError: An argument cannot be, or a name in the dict is not known.
            RuntimeError: Setting up from a dict failed.
        """
        if kwargs.keys() == {"config"} and not args:
            args, kwargs = (kwargs["config"],), {}
        if len(args) == 1 and isinstance(args[0], Mapping):
            if kwargs:
                raise TypeError(f"setup(config) takes nothing more, not {', '.join(kwargs)}")
            error = self._set_up(SetupSettings.of_dict(args[0]))
            if error is not None:
                raise RuntimeError(f"setup failed: {error}") from error
            return 0
        error = self._set_up(_positional(*args, **kwargs))
        if error is None:
            return 0
        log.error("setup failed: %s", error)
        return int(ErrorNumber.INTERNAL_ERROR)

    def _set_up(self, settings: SetupSettings) -> StoreError | None:
        with self._setup_lock:
            if self._client is not None:
                return None
            for name in settings.ignored:
                log.warning("%s has no effect: objects are kept in memory only", name)
            try:
                client = Client(
                    settings.master,
                    strict=True,
                    timeout_s=ANSWER_TIMEOUT_S,
                    connect_timeout_s=SETUP_TIMEOUT_S,
                )
            except StoreError as error:
                return error
            try:
                if settings.segment_bytes:
                    address = host_address(settings.local_hostname, settings.master)
                    segment = Segment(settings.segment_bytes, settings.master, address)
                    self._own_segment = self._segments[segment.id] = segment
            except StoreError as error:
                client.close()
                return error
            self._settings, self._prefix = settings, key_prefix(settings.tenant)
            self._client = client
            return None

    def setup_dummy(self, mem_pool_size: int, local_buffer_size: int, server_address: str) -> int:
        """Connect to the master that a `mooncake_client` process at `server_address` serves.

        Every client of this host shares the store server's memory, so there is nothing to set
        aside: the sizes have no effect.

        Returns:
            0, or a negative number.
        """
        from mooncake._store.thin import master_behind

        del mem_pool_size, local_buffer_size
        try:
            master = master_behind(server_address)
        except StoreError as error:
            log.error("setup_dummy failed: %s", error)
            return int(ErrorNumber.INTERNAL_ERROR)
        return self.setup(server_address, "", 0, 0, "tcp", "", master)

    def init_all(self, protocol: str, device_name: str, mount_segment_size: int, /) -> int:
        """Set up with a segment and the master of $MOONCAKE_MASTER, else 127.0.0.1:50051."""
        master = os.environ.get("MOONCAKE_MASTER", "")
        return self.setup("127.0.0.1", "", mount_segment_size, 0, protocol, device_name, master)

    def close(self) -> int:
        """End the client and its store servers; more than once is harmless.

        Returns:
            0.
        """
        with self._setup_lock:
            client, self._client = self._client, None
            segments, self._segments = self._segments, {}
            self._own_segment = None
            self._forget_sessions()
            if client is not None:
                client.close()
        for segment in segments.values():
            segment.close()
        return 0

    def _forget_sessions(self) -> None:
        """What has sessions ends them."""

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # the interpreter may be half gone: the store server sees our end
            return

    def get_hostname(self) -> str:
        """Return `ip:port` of the memory that this client added, for `preferred_segment`.

        Without any it is that of a store server on this host, else the name given to setup.
        """
        if self._own_segment is not None:
            return self._own_segment.endpoint
        client, settings = self._client, self._settings
        if client is None or settings is None:
            return ""
        try:
            members = client.members()
        except StoreError as error:
            self._log(error)
            members = []
        for member in members:
            if member.unix_path and os.path.exists(member.unix_path) and member.addresses:
                return member.addresses[0]
        return settings.local_hostname

    def health_check(self) -> int:
        """Return 0 when the master answers, else a negative number."""

        def ask(client: Client) -> int:
            client.members()
            return 0

        return self._guarded(ask)

    # ---- memory ----

    def register_buffer(self, buffer_ptr: int, size: int) -> int:
        """Tell the transports of memory that will be read into and written from.

        Calls work with other memory too; RDMA is faster with registered one.

        Returns:
            0; -600 for none, 0 bytes, or memory that overlaps what is registered.
        """
        client = self._client
        if client is None or not self._registered.add(buffer_ptr, size):
            return NOT_SET_UP
        try:
            client.register_memory((buffer_ptr, size))
        except StoreError as error:
            self._registered.remove(buffer_ptr)
            return self._failure(error)
        return 0

    def unregister_buffer(self, buffer_ptr: int) -> int:
        """Undo register_buffer: 0, or -600 when nothing is registered there."""
        client = self._client
        if client is None or not self._registered.remove(buffer_ptr):
            return NOT_SET_UP
        lib.cl_unregister_memory(client._handle, ffi.cast("uint64_t", buffer_ptr))
        return 0

    def alloc_from_mem_pool(self, size: int, /) -> int:
        """Return the address of memory that store servers of this host read from by themselves.

        Returns:
            The address; 0: there is none. It lives as long as the client.
        """
        client = self._client
        if client is None or size <= 0:
            return 0
        try:
            memory = client.alloc(size)
        except StoreError as error:
            self._log(error)
            return 0
        return int(ffi.cast("uintptr_t", ffi.from_buffer(memory)))

    # ---- inside ----

    def _key(self, key: str) -> str:
        """The key in the store; the empty one stays empty, so that it is refused."""
        return self._prefix + key if key else key

    def _keys(self, keys: Sequence[str]) -> list[str]:
        prefix = self._prefix
        if prefix:
            return [prefix + key if key else key for key in keys]
        return keys if type(keys) is list else list(keys)

    def _guarded(self, call: Callable[[Client], int]) -> int:
        """Return what `call` answers, or the number of its failure."""
        client = self._client
        if client is None:
            return NOT_SET_UP
        try:
            return call(client)
        except StoreError as error:
            return self._failure(error)

    def _failure(self, error: StoreError) -> int:
        self._log(error)
        return number_of_error(error)

    def _log(self, error: object) -> None:
        if isinstance(error, ClosedError):
            return
        now = time.monotonic()
        if now - self._logged_at >= _LOG_PERIOD_S:
            self._logged_at = now
            log.warning("%s", error)

    # ---- options of puts ----

    def _options(self, client: Client, config: ReplicateConfig | None) -> Options:
        """Return what `config` says, without its groups."""
        if config is None:
            return {}
        if not isinstance(config, ReplicateConfig):
            raise TypeError(f"config is a ReplicateConfig, not {type(config).__name__}")
        options: Options = {}
        if config.replica_num > 1:
            options["replicas"] = min(config.replica_num, REPLICAS_MAX)
        if config.with_hard_pin:
            options["hard_pin"] = True
        if config.with_soft_pin or config.soft_pin_action == 1:
            options["soft_pin"] = True
        wished = [config.preferred_segment, *config.preferred_segments]
        for segment in wished:
            if segment and (server := self._server_of(client, segment)) is not None:
                options["preferred_server"] = server
                break
        return options

    def _batches(
        self, client: Client, config: ReplicateConfig | None, count: int
    ) -> list[tuple[Options, Sequence[int] | None]] | None:
        """Return the options and the positions of each group; None: groups do not fit the keys.

        Positions None: all of them.
        """
        options = self._options(client, config)
        if config is None or config.group_ids is None:
            return [(options, None)]
        if len(config.group_ids) != count:
            return None
        positions: dict[str, list[int]] = {}
        for index, group in enumerate(config.group_ids):
            positions.setdefault(group, []).append(index)
        return [
            ({**options, "group": group_number(group)} if group else options,
             None if len(positions) == 1 else at)
            for group, at in positions.items()
        ]  # fmt: skip

    def _server_of(self, client: Client, name: str) -> int | None:
        """Return the number of the store server with that endpoint or name; None: there is none."""
        found = self._servers.get(name)
        now = time.monotonic()
        if found is not None or now - self._servers_read_at < _MEMBERS_PERIOD_S:
            return found
        self._servers_read_at = now
        try:
            self._servers = {
                known: member.server
                for member in client.members()
                for known in (member.name, *member.addresses)
            }
        except StoreError as error:
            self._log(error)
        return self._servers.get(name)


def _positional(
    local_hostname: str,
    metadata_server: str,
    global_segment_size: int,
    local_buffer_size: int,
    protocol: str,
    rdma_devices: str,
    master_server_addr: str,
    engine: object = None,
    enable_ssd_offload: bool = False,
    ssd_offload_path: str = "",
    tenant_id: str = "default",
    enable_client_http_server: bool = False,
    client_http_port: int = 9300,
) -> SetupSettings:
    return SetupSettings.of(
        local_hostname,
        metadata_server,
        global_segment_size,
        local_buffer_size,
        protocol,
        rdma_devices,
        master_server_addr,
        enable_ssd_offload=enable_ssd_offload,
        tenant_id=tenant_id,
        enable_client_http_server=enable_client_http_server,
    )
