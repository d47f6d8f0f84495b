"""HTTP/1.1 whose clients have a deadline for each request's head.

uvicorn waits for ever for a connection's first byte, and for the rest of a head that has begun: a
few thousand such connections, and nobody else is served.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["DeadlineProtocol"]


class DeadlineProtocol(H11Protocol):
    """Closes a connection whose next head is not there in time.

    Between requests uvicorn's keep-alive counts, until the first byte of the next head. What still
    comes of a request that has its answer has the time of a head, too.

    Args:
        head_timeout_s: From the connection, or from a head's first byte, to its end.
        arguments: Of uvicorn.
    """

    def __init__(self, *, head_timeout_s: float, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._head_timeout_s = head_timeout_s
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Wait on, if what came is a part of a head."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        super().connection_lost(exc)
        self._stop()

    def _watch(self) -> None:
        if self._is_served():
            self._stop()
        elif self._timer is None and self.timeout_keep_alive_task is None:
            self._timer = self.loop.call_later(self._head_timeout_s, self._late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if not self._is_served():
            self.transport.abort()

    def _is_served(self) -> bool:
        is_between = self.conn.their_state is h11.IDLE
        return not is_between and not (self.cycle is not None and self.cycle.response_complete)
