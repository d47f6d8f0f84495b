"""Keeps what an engine and its peers know of each other's interfaces up to date."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType

from mooncake_store.errors import ClosedError, StoreError
from mooncake_store.logs import log_event
from mooncake_store.transfer_engine.engine import TransferEngine
from mooncake_store.transfer_engine.topology import TopologyChange, TopologyWatch

__all__ = ["TopologyFollower"]

logger = logging.getLogger("mooncake_store.transfer_engine")

_PEERS_S = 5.0  # peers that do not tell of changes by themselves are asked so often
_ASK_S = 1.0
_PAUSE_S = 1.0  # after a look that failed
_JOIN_S = 10.0


class TopologyFollower:
    """A thread that waits for changes and gives each new topology to an engine.

    The engine's own segments take the rails of the new topology at once. Peers whose engines follow
    too are told at once, as this one is by them, on a connection that stays; what does not come
    that way (from older ones) is asked for each `_PEERS_S` seconds.

    Args:
        engine: Told the topology at once, and again after each change.
        watch: Owned from here on.
        changed: Called with each change, on the follower's thread, after the engine was told.
    """

    def __init__(
        self,
        engine: TransferEngine,
        watch: TopologyWatch,
        changed: Callable[[TopologyChange], None] | None = None,
    ) -> None:
        self._engine = engine
        self._watch = watch
        self._changed = changed
        self._stopping = threading.Event()
        try:
            engine.set_topology(watch.topology)
            watch.add(engine.topology_descriptor())
        except BaseException:
            watch.close()
            raise
        self._thread = threading.Thread(target=self._follow, name="topology", daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        asked_s = time.monotonic()
        while not self._stopping.is_set():
            try:
                change = self._watch.wait(max(0.0, asked_s + _PEERS_S - time.monotonic()))
                if change is None:
                    self._engine.use_told_rails()
                    if time.monotonic() >= asked_s + _PEERS_S:
                        self._engine.refresh_rails(timeout_s=_ASK_S)
                        asked_s = time.monotonic()
                    continue
                self._engine.set_topology(change.topology)
            except ClosedError:
                return
            except (StoreError, OSError) as error:
                log_event(logger, logging.WARNING, "topology_look_failed", error=error)
                self._stopping.wait(_PAUSE_S)
                continue
            for item in change.changes:
                log_event(
                    logger, logging.INFO, "topology_changed",
                    change=item.kind.value, nic=item.name, why=item.why,
                )  # fmt: skip
            if self._changed is not None:
                self._changed(change)

    def close(self) -> None:
        """Stop following; the engine keeps the topology that it has."""
        self._stopping.set()
        self._watch.wake()
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._watch.close()

    def __enter__(self) -> TopologyFollower:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
