"""What waits on one prefill instance, in order of arrival, and how long that takes."""

from __future__ import annotations

from mooncake_store.conductor.service.flights import Flight

__all__ = ["PrefillQueue"]


class PrefillQueue:
    """Prompts of one instance; the first one is being computed.

    Attributes:
        free_at_s: When the last one will have been computed, as of the last call with a time.
    """

    def __init__(self) -> None:
        self._flights: dict[str, Flight] = {}
        self._total_s = 0.0  # of all predictions
        self._head_began_s = 0.0
        self.free_at_s = 0.0

    def __len__(self) -> int:
        return len(self._flights)

    def add(self, flight: Flight, now_s: float) -> None:
        """Put a prompt at the end."""
        if not self._flights:
            self._head_began_s = now_s
        self._flights[flight.request_id] = flight
        self._total_s += flight.prefill_s
        self.pass_time(now_s)

    def remove(self, flight: Flight, now_s: float | None) -> None:
        """Take a prompt out: it is computed, or will not be.  None: the time is not known."""
        if self._flights.get(flight.request_id) is not flight:
            return
        was_head = next(iter(self._flights)) == flight.request_id
        del self._flights[flight.request_id]
        self._total_s = max(self._total_s - flight.prefill_s, 0.0) if self._flights else 0.0
        if now_s is None:
            self.free_at_s -= flight.prefill_s
            return
        if was_head:
            self._head_began_s = now_s
        self.pass_time(now_s)

    def pass_time(self, now_s: float) -> float:
        """Return when the last one will have been computed.

        The first one takes what is left of its prediction; when that is over it may end any moment,
        and the others still wait for their own.
        """
        if not self._flights:
            self.free_at_s = now_s
            return now_s
        head = next(iter(self._flights.values()))
        head_end_s = max(self._head_began_s + head.prefill_s, now_s)
        self.free_at_s = head_end_s + self._total_s - head.prefill_s
        return self.free_at_s
