"""The conductor between its doors (HTTP, proxy) and its state: names, log, effects.

What a decision wants of the store (blocks moved, blocks pinned) goes to `Effects`; nothing here
waits for it.  Belongs to one thread, that of the loop.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping
from typing import Any, Protocol

from mooncake_store.conductor.costs import Costs
from mooncake_store.conductor.decode_time import DecodeTime
from mooncake_store.conductor.feed import Feed, FeedResult
from mooncake_store.conductor.prefill_time import PrefillTime
from mooncake_store.conductor.service.block_names import BlockNames
from mooncake_store.conductor.service.config import ConductorConfig
from mooncake_store.conductor.service.decision import Decision, Refusal, Request
from mooncake_store.conductor.service.decision_log import DecisionLog, Logged
from mooncake_store.conductor.service.documents import (
    Registration,
    Report,
    instance_document,
    read_heartbeat,
    shown,
)
from mooncake_store.conductor.service.flights import Flight
from mooncake_store.conductor.service.instances import Instance
from mooncake_store.conductor.service.scheduler import Scheduler, SchedulerLimits
from mooncake_store.conductor.service.selector import load_selector
from mooncake_store.conductor.sim_config import SimConfig
from mooncake_store.conductor.transfer_time import TransferTime
from mooncake_store.errors import RequestError, UnknownInstanceError

__all__ = ["ConductorCore", "Effects", "costs_of"]

_BOUNDS_S = (1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 1e-1)


def costs_of(config: SimConfig) -> Costs:
    """Return what a scheduler predicts with, of a cluster file's tables."""
    model, cluster = config.model, config.cluster
    return Costs(
        prefill=PrefillTime(
            model.prefill_base_s, model.prefill_token_us / 1e6, model.prefill_pair_ns / 1e9
        ),
        decode=DecodeTime(
            model.decode_base_s, model.decode_request_us / 1e6, model.decode_token_ns / 1e9
        ),
        transfer=TransferTime(
            kv_bytes_per_token=model.kv_bytes_per_token,
            bandwidth_bytes_per_s=cluster.nic_bytes_per_s,
            latency_s=cluster.transfer_latency_s,
            load_bytes_per_s=cluster.load_bytes_per_s,
            counts_queued=config.scheduler.count_queued_bytes,
        ),
        group_nodes=cluster.group_nodes,
        chunk_tokens=model.chunk_tokens,
        is_balanced=model.chunks == "balanced",
    )


class Effects(Protocol):
    """What decisions do to the store; both return at once."""

    def accepted(self, decision: Decision, digests: tuple[str, ...]) -> None:
        """Pin what a request will read, and move what it fetches."""
        ...

    def ended(self, request_id: str) -> None:
        """Let go what was pinned for it."""
        ...


class _NoStore:
    def accepted(self, decision: Decision, digests: tuple[str, ...]) -> None:
        pass

    def ended(self, request_id: str) -> None:
        pass


class ConductorCore:
    """Scheduling with everything around a decision but its transport.

    Args:
        config: The settings; `check` has passed.

    Raises:
        ConfigError: The cluster file or the policy cannot be used.

    Attributes:
        scheduler: The state.
        names: How blocks are called.
        log: The last decisions.
        decide_buckets: How many decisions took at most as long as each of `decide_bounds_s`.
    """

    decide_bounds_s = _BOUNDS_S

    def __init__(self, config: ConductorConfig) -> None:
        model = config.model()
        costs = costs_of(model)
        self.config = config
        self.names = BlockNames(
            config.block_tokens, config.namespace, config.chain_start, config.key_prefixes
        )
        self.scheduler = Scheduler(
            model,
            costs,
            SchedulerLimits(
                instances_max=config.instances_max,
                servers_max=config.servers_max,
                blocks_max=config.blocks_max,
                flights_max=config.requests_max,
                heartbeat_timeout_s=config.heartbeat_timeout_s,
                forget_s=config.forget_after_s,
                report_s_max=config.report_s_max,
                promise_s=config.promise_s,
                request_s_max=config.request_s_max,
                learns_transfers=config.learn_transfers,
            ),
            block_tokens=config.block_tokens,
            selector=load_selector(config.policy, costs) if config.is_plugged else None,
        )
        self.scheduler.on_end = self._ended
        self.log = DecisionLog(config.decisions_max, self.scheduler.considered)
        self.effects: Effects = _NoStore()
        self.decide_buckets = [0] * (len(_BOUNDS_S) + 1)
        self.decide_sum_s = 0.0
        self._feeds: dict[str, Feed] = {}
        self._ids = itertools.count(1)
        self._id_prefix = f"c{os.urandom(4).hex()}-"

    @staticmethod
    def now_s() -> float:
        """Return the time by which everything here goes; it never jumps."""
        return time.monotonic()

    def new_request_id(self) -> str:
        """Return a name for a request that has none."""
        return f"{self._id_prefix}{next(self._ids)}"

    # ---- requests --------------------------------------------------------------------------------

    def schedule(self, request: Request, *, is_tracked: bool) -> Decision | Refusal:
        """Decide, log and begin what the decision wants.

        Raises:
            RequestError: Numbers that cannot be.
        """
        scheduler = self.scheduler
        began_s = time.monotonic()
        decided = scheduler.schedule(request, began_s, is_tracked=is_tracked)
        took_s = time.monotonic() - began_s
        self._count(took_s)
        self.log.add(
            Logged(
                decided,
                time.time(),
                took_s,
                request.num_tokens,
                len(request.blocks),
                scheduler.seen,
                [],
            )
        )
        if isinstance(decided, Decision):
            self.effects.accepted(decided, request.blocks.digests)
        return decided

    def _count(self, took_s: float) -> None:
        self.decide_sum_s += took_s
        for index, bound_s in enumerate(_BOUNDS_S):
            if took_s <= bound_s:
                self.decide_buckets[index] += 1
                return
        self.decide_buckets[-1] += 1

    def report(self, request_id: str, report: Report) -> None:
        """Take what became of a request.

        Raises:
            UnknownInstanceError: It is not under way.
        """
        now_s, fetched = self.now_s(), report.transfer
        if report.event == "prefilled":
            self.scheduler.prefilled(request_id, now_s, fetched)
        elif report.event == "finished":
            self.scheduler.finished(request_id, report.output_tokens, now_s)
        else:
            self.scheduler.failed(request_id)
        what = report.event
        if fetched is not None:
            what += f", {fetched.size_bytes:.0f} bytes fetched in {fetched.time_s:.4f} s"
        self.log.note(request_id, time.time(), what)

    def _ended(self, flight: Flight) -> None:
        self.effects.ended(flight.request_id)

    # ---- instances -------------------------------------------------------------------------------

    def register(self, wanted: Registration) -> Instance:
        """Add or renew an instance."""
        found, is_new = self.scheduler.register(
            wanted.name, wanted.role, wanted.url, wanted.server, wanted.incarnation, self.now_s()
        )
        if is_new:
            self._feeds.pop(wanted.name, None)
        return found

    def registration_document(self, registered: Instance) -> dict[str, Any]:
        """Return what an instance is told that has registered."""
        return {
            "name": registered.name,
            "incarnation": registered.incarnation,
            "heartbeat_interval_ms": round(self.config.heartbeat_interval_s * 1000),
            "block_tokens": self.config.block_tokens,
            "key_prefixes": list(self.names.prefixes),
        }

    def heartbeat(self, name: str, document: Mapping[str, Any]) -> bool:
        """Note a heartbeat; whether it counts.

        Raises:
            UnknownInstanceError: Nobody of that name is registered.
            RequestError: It makes no sense.
        """
        sequence, report = read_heartbeat(document)
        _, counts = self.scheduler.heartbeat(name, sequence, report, self.now_s())
        return counts

    def suspect(self, name: str) -> None:
        """Give an instance nothing until it is heard of again: it could not be reached."""
        self.scheduler.suspect(name)

    def instances(self) -> list[dict[str, Any]]:
        """Return all that are registered."""
        now_s, scheduler = self.now_s(), self.scheduler
        found = []
        for one in scheduler.instances:
            free_at_s = scheduler.table.free_at_s[one.slot] if one.role.prefills else now_s
            found.append(
                instance_document(
                    one,
                    now_s=now_s,
                    queue_s=max(free_at_s - now_s, 0.0),
                    queued=len(scheduler.queues[one.slot]),
                    decode=scheduler.decode.load(one.slot) if one.role.decodes else (0, 0, 0),
                )
            )
        return found

    def remove(self, name: str) -> None:
        """Forget an instance."""
        self.scheduler.remove(name)
        self._feeds.pop(name, None)

    def block_events(self, name: str, document: Mapping[str, Any]) -> str:
        """Take an engine's KV events: what is on its accelerator.

        Args:
            name: Of the instance.
            document: `epoch`, `first` (number of the first event), `events`: a list of
                `{"stored": [keys]}` and `{"removed": [keys]}`; or `epoch`, `sequence` and
                `snapshot`: all keys that there are.

        Returns:
            What became of it, a word of `FeedResult`.

        Raises:
            UnknownInstanceError: Nobody of that name is registered.
            RequestError: It makes no sense.
        """
        found = self.scheduler.instances.get(name)
        feed = self._feeds.setdefault(name, Feed(name))
        epoch = _count_of(document, "epoch")
        if "snapshot" in document:
            packed = self.names.of_keys(_list_of(document, "snapshot")).packed
            slot, index = found.slot, self.scheduler.index
            tier = self.scheduler.device_tier
            result = feed.load_snapshot(
                epoch,
                _count_of(document, "sequence"),
                lambda: index.clear_tier(slot, tier),
                [lambda: self.scheduler.blocks_stored(name, packed)],
            )
            return result.value
        changes = []
        for event in _list_of(document, "events"):
            if not isinstance(event, dict) or len(event) != 1:
                raise RequestError('an event is {"stored": [keys]} or {"removed": [keys]}')
            ((kind, keys),) = event.items()
            if kind not in ("stored", "removed") or not isinstance(keys, list):
                raise RequestError('an event is {"stored": [keys]} or {"removed": [keys]}')
            changes.append((kind, self.names.of_keys(keys).packed))
        if feed.epoch < 0 and _count_of(document, "first") == 1:
            # The first of all events: before it there was nothing, which is a snapshot.
            feed.load_snapshot(epoch, 0, lambda: None, [])

        def apply(skip: int) -> None:
            for kind, packed in changes[skip:]:
                if kind == "stored":
                    self.scheduler.blocks_stored(name, packed)
                else:
                    self.scheduler.blocks_removed(name, packed)

        first = _count_of(document, "first")
        result = feed.offer(epoch, first, len(changes), apply) if changes else FeedResult.DUPLICATE
        return result.value

    def needs_snapshot(self, name: str) -> bool:
        """Whether an instance's events are followed only after a snapshot."""
        feed = self._feeds.get(name)
        return feed is None or feed.needs_snapshot

    def sweep(self) -> tuple[list[Instance], list[Instance]]:
        """Let time pass; see `Scheduler.sweep`."""
        silent, gone = self.scheduler.sweep(self.now_s())
        for one in gone:
            self._feeds.pop(one.name, None)
        return silent, gone

    def explain(self, request_id: str) -> dict[str, Any]:
        """Return all about a decision.

        Raises:
            UnknownInstanceError: It is not in the log (any more).
        """
        found = self.log.find(request_id)
        if found is None:
            raise UnknownInstanceError(
                f"no decision about {request_id!r} is among the last {len(self.log)}",
                hint="--decisions-max of `conductor` says how many are kept",
            )
        flight = self.scheduler.flights.get(request_id)
        found["stage"] = flight.stage.value if flight is not None else None
        return found


def _count_of(document: Mapping[str, Any], name: str) -> int:
    value = document.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise RequestError(f"{name} is a whole number from 0 on, not {shown(value)}")
    return value


def _list_of(document: Mapping[str, Any], name: str) -> list[Any]:
    value = document.get(name)
    if not isinstance(value, list):
        raise RequestError(f"{name} is a list")
    return value
