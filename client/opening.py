"""How a client is opened: to which master it connects, and for how long it tries."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from mooncake_store.client.address import MasterAddress, cluster_of, parse_master
from mooncake_store.client.config import CHECKSUMS
from mooncake_store.client.native import deadline_ns, failure_error, ffi, lib
from mooncake_store.errors import RequestError, Status, StoreError
from mooncake_store.transfer_engine.priority import parse_class_weights
from mooncake_store.transfer_engine.spinners import share_spinners

if TYPE_CHECKING:
    from mooncake_store.client.core import ClientCore
    from mooncake_store.client.leader import LeaderFollower

__all__ = ["open_handle"]

# A leader that serves answers within milliseconds; the next attempt waits twice as long.
_FIRST_PATIENCE_S = 0.5


def open_handle(core: ClientCore, master: str | None) -> int:
    """Connect to the master at an address, or to whoever leads a cluster.

    Raises:
        ConfigError: The address is none.
        ClusterError: Nobody answers there, or not as a master.
    """
    cluster = cluster_of(master)
    share_spinners()
    if cluster is None:
        return _open_at(core, parse_master(master), core.config.connect_timeout_s)
    from mooncake_store.client.leader import LeaderFollower

    follower = LeaderFollower(cluster)
    handle = _open_at_leader(core, follower)
    follower.follow(handle)
    return handle


def _open_at_leader(core: ClientCore, follower: LeaderFollower) -> int:
    """Connect to whoever leads.

    One that has just died is still named until its lease ends, so it is asked again who leads.
    """
    end_s = time.monotonic() + core.config.connect_timeout_s
    patience_s = _FIRST_PATIENCE_S
    while True:
        address = follower.find(_left(end_s))
        if address.unix is None:  # room for a socket: the next leader may be on this host
            address = replace(address, tcp=f"{address.tcp},{address.tcp}")
        left_s = _left(end_s)
        is_last = left_s <= patience_s or not core.config.wait_for_master
        try:
            return _open_at(core, address, left_s if is_last else patience_s)
        except StoreError as error:
            if is_last or not error.retryable:
                raise
        patience_s *= 2


def _left(end_s: float) -> float:
    return max(end_s - time.monotonic(), 0.001)


def _open_at(core: ClientCore, address: MasterAddress, timeout_s: float) -> int:
    config = core.config
    given = ffi.new("cl_config *")
    lib.cl_config_default(given)
    alive = [
        ffi.new("char[]", text.encode())
        for text in (address.tcp or "", address.unix or "", config.tenant, config.token, core.name)
    ]
    given.master = alive[0] if address.tcp else ffi.NULL
    given.master_unix = alive[1] if address.unix else ffi.NULL
    given.tenant, given.token, given.name = alive[2], alive[3], alive[4]
    given.location_count_max = config.location_count_max
    given.connections_max = config.connections_max
    given.worker_threads = config.worker_threads
    given.stream_copy_bytes = config.stream_copy_size_bytes
    given.staging_bytes = config.staging_size_bytes
    given.class_weights = parse_class_weights(config.class_weights)
    given.allow_local = config.use_local_paths
    given.allow_relay = config.use_relay
    given.wait_for_master = config.wait_for_master
    if config.checksums not in CHECKSUMS:
        raise RequestError(f"checksums: one of {', '.join(CHECKSUMS)}, not {config.checksums!r}")
    given.checksums = CHECKSUMS.index(config.checksums)
    handle = ffi.new("uint64_t *")
    failure = ffi.new("cl_failure *")
    status = lib.cl_open(given, deadline_ns(timeout_s), handle, failure)
    if status != Status.OK:
        raise failure_error(failure)
    return int(handle[0])
