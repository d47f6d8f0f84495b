"""A client of a cluster with several masters: finds who leads, and goes on with the next one.

Nothing is asked while the master answers. When a call has failed, or has waited for a second, C
says so to a thread of the client, which asks the coordinator until another master leads there.
"""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

from mooncake_store.client.address import MasterAddress
from mooncake_store.client.native import ffi, lib
from mooncake_store.config import without_password
from mooncake_store.coordination.coordinator import Leader
from mooncake_store.coordination.discovery import open_discovery
from mooncake_store.errors import Status, StoreError, UnavailableError
from mooncake_store.runtime import boot_id

__all__ = ["LeaderFollower"]

_PAUSE_S = 0.1  # between questions
_ANSWER_TIMEOUT_S = 2.0
_LOOK_S = 4.0  # after the last failure: longer than a lease, which a dead leader's key outlives
_WAIT_MS = 60_000

log = logging.getLogger("mooncake_store.client")


class LeaderFollower:
    """Who leads a cluster, for one client.

    Args:
        uri: `etcd://a,b,c/prefix` or `local:/FOLDER`.

    Raises:
        ConfigError: It names no coordinator.
    """

    def __init__(self, uri: str) -> None:
        self._discover = open_discovery(uri)
        self._name = without_password(uri)
        self._leader = Leader("")

    def find(self, timeout_s: float) -> MasterAddress:
        """Return where the leader is, waiting for one if there is none.

        Raises:
            UnavailableError: Nobody leads, or the coordinator does not answer.
            AccessRefusedError: It does not let us ask.
        """
        end_s = time.monotonic() + timeout_s
        while True:
            left_s = end_s - time.monotonic()
            failure: UnavailableError | None = None
            try:
                leader = self._discover(max(min(left_s, _ANSWER_TIMEOUT_S), 0.001))
            except UnavailableError as error:
                leader, failure = None, error
            if leader is not None:
                self._leader = leader
                return _address_of(leader)
            if left_s < _PAUSE_S:
                raise failure or UnavailableError(
                    f"no master leads at {self._name}", stage="connect", elapsed_s=timeout_s
                )
            time.sleep(_PAUSE_S)

    def follow(self, handle: int) -> None:
        """Move a client to each next leader, until it is closed."""
        name = "mooncake-store-leader"
        threading.Thread(target=self._follow, args=(handle,), name=name, daemon=True).start()

    def _follow(self, handle: int) -> None:
        while (trouble := lib.cl_wait_master_trouble(handle, _WAIT_MS)) >= 0:
            if trouble:
                self._look(handle)

    def _look(self, handle: int) -> None:
        """Ask who leads until it is somebody else, or nothing is wrong any more."""
        end_s = time.monotonic() + _LOOK_S
        while time.monotonic() < end_s:
            try:
                leader = self._discover(_ANSWER_TIMEOUT_S)
            except StoreError as error:
                log.debug("who leads is not known: %s", error)
                leader = None
            if leader is not None and leader.epoch > self._leader.epoch:
                self._move(handle, leader)
                return
            time.sleep(_PAUSE_S)
            trouble = lib.cl_wait_master_trouble(handle, 0)
            if trouble < 0:
                return
            if trouble:
                end_s = time.monotonic() + _LOOK_S

    def _move(self, handle: int, leader: Leader) -> None:
        address = _address_of(leader)
        assert address.tcp is not None
        unix = ffi.NULL if address.unix is None else address.unix.encode()
        status = lib.cl_set_master(handle, address.tcp.encode(), unix)
        if status == Status.OK:
            self._leader = leader
            log.info("another master leads: %s, epoch %d", address.tcp, leader.epoch)


def _address_of(leader: Leader) -> MasterAddress:
    is_here = bool(leader.unix_path) and leader.boot_id == boot_id().hex()
    unix = leader.unix_path if is_here and Path(leader.unix_path).exists() else None
    return MasterAddress(leader.address.partition(",")[0], unix)
