"""The scheduler's state: who is there, who holds what, what is under way; and its decisions.

Pure: requests, events and the time go in, decisions come out.  One thread at a time.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from mooncake_store._native import ffi, lib
from mooncake_store.conductor.costs import Costs
from mooncake_store.conductor.prefix_index import KEY_BYTES, PrefixIndex, Tier
from mooncake_store.conductor.service.answers import Answers
from mooncake_store.conductor.service.chooser import Choice, Chooser
from mooncake_store.conductor.service.considered import Considered, Seen
from mooncake_store.conductor.service.decision import Decision, Reason, Refusal, Request
from mooncake_store.conductor.service.decode_table import DecodeTable
from mooncake_store.conductor.service.flights import Flight, FlightTable, Stage
from mooncake_store.conductor.service.holders import Holders
from mooncake_store.conductor.service.hot_blocks import HotBlocks
from mooncake_store.conductor.service.instances import (
    Instance,
    Instances,
    LoadReport,
    Role,
    State,
)
from mooncake_store.conductor.service.prefill_queue import PrefillQueue
from mooncake_store.conductor.service.prefill_table import PrefillTable
from mooncake_store.conductor.service.promises import Promise, Promises
from mooncake_store.conductor.service.selector import Selector
from mooncake_store.conductor.service.transfer_fit import Fetched, TransferFit
from mooncake_store.conductor.sim_config import SimConfig
from mooncake_store.errors import ConfigError, RequestError, UnknownInstanceError

__all__ = ["Scheduler", "SchedulerLimits"]

_REFIT_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerLimits:
    """Bounds and delays of a scheduler.

    Attributes:
        instances_max, servers_max: Registered at a time.
        blocks_max: Blocks that the index knows.
        flights_max: Requests under way.
        heartbeat_timeout_s, forget_s: When an instance is silent, and when it is forgotten.
        report_s_max: A load report that is older counts no more.
        promise_s: How long blocks are believed to stay on an instance that reports none.
        request_s_max: When a request is given up that nobody has reported the end of.
        learns_transfers: Whether predictions of transfers go by those that were measured.
    """

    instances_max: int = 64
    servers_max: int = 64
    blocks_max: int = 1 << 20
    flights_max: int = 65_536
    heartbeat_timeout_s: float = 5.0
    forget_s: float = 60.0
    report_s_max: float = 3.0
    promise_s: float = 30.0
    request_s_max: float = 600.0
    learns_transfers: bool = True


class Scheduler:
    """Decides about requests.

    Args:
        config: Cost model, service levels and policy: what the simulator takes too.
        costs: The cost model of `config`.
        limits: Bounds.
        block_tokens: Tokens of a block.
        selector: A policy in Python instead of the one that `config` names.

    Attributes:
        instances: Who is registered.
        index: Which holder has which block.
        holders: The columns of the index.
        flights: Requests under way, by name.
        refused: How many were refused, by reason.
        transfers: What fetches take, as measured.
        names: Of the holders, by slot; a new dictionary with each change.
        lengths: Blocks that each slot held of the last prompt.
        seen: What the last decision knew; None: it did not look.
        considered: What computes the terms of a decision again.
    """

    def __init__(
        self,
        config: SimConfig,
        costs: Costs,
        limits: SchedulerLimits,
        *,
        block_tokens: int,
        selector: Selector | None = None,
    ) -> None:
        rules = config.scheduler
        if rules.admission == "oracle":
            raise ConfigError("admission `oracle` knows how answers end: only the simulator can")
        self.config = config
        self.limits = limits
        self.block_tokens = block_tokens
        self.instances = Instances(
            slots=limits.instances_max,
            timeout_s=limits.heartbeat_timeout_s,
            forget_s=limits.forget_s,
        )
        self.index = PrefixIndex(
            limits.instances_max + limits.servers_max, tiers=2, blocks_max=limits.blocks_max
        )
        self.table = PrefillTable(self.index.instances)
        self.holders = Holders(
            self.index, self.table, first_slot=limits.instances_max, servers_max=limits.servers_max
        )
        self.decode = DecodeTable(limits.instances_max)
        self.queues = [PrefillQueue() for _ in range(limits.instances_max)]
        self.flights: dict[str, Flight] = {}
        self.flight_table = FlightTable(limits.flights_max)
        self.answers = Answers(rules.output_initial, rules.decode_time_initial_s)
        self.refused: Counter[str] = Counter()
        self.accepted = 0
        self.prompt_tokens = self.prefix_tokens = self.moved_bytes = 0.0
        self.hot = HotBlocks(
            interval_s=rules.replicate_interval_s,
            share=rules.replicate_share,
            block_bytes=config.model.kv_bytes_per_token * block_tokens,
            nic_bytes_per_s=config.cluster.nic_bytes_per_s,
        )
        self._chooser = Chooser(
            config,
            costs,
            prefill=self.table,
            decode=self.decode,
            flights=self.flight_table,
            answers=self.answers,
            instances=self.instances,
            selector=selector,
        )
        self._promises = Promises()
        cost = self._chooser.cost
        self.transfers = TransferFit(cost.transfer_latency_s, cost.nic_bytes_per_s)
        self._refitted_s = -math.inf
        self._by_slot: dict[int, Instance] = {}
        self._reports_blocks: set[str] = set()
        self.names: dict[int, str] = {}
        self.lengths: list[int] = []
        self.seen: Seen | None = None
        self.considered = Considered(
            self._chooser.selection,
            self._chooser.limits,
            is_plugged=selector is not None,
            instances_max=limits.instances_max,
        )
        self._cost_bytes = bytes(ffi.buffer(cost))
        self.on_end: Callable[[Flight], None] = lambda flight: None

    device_tier = Tier.DEVICE

    # ---- instances -------------------------------------------------------------------------------

    def register(
        self, name: str, role: Role, url: str, server: str, incarnation: int, now_s: float
    ) -> tuple[Instance, bool]:
        """Add or renew an instance; see `Instances.register`."""
        found, is_new = self.instances.register(name, role, url, server, incarnation, now_s)
        if is_new:
            self._forget_slot(found)
            self._by_slot[found.slot] = found
        self.holders.attach(found.slot, server if role.prefills else "")
        self._show(found)
        self.names_changed()
        return found, is_new

    def heartbeat(
        self, name: str, sequence: int, report: LoadReport | None, now_s: float
    ) -> tuple[Instance, bool]:
        """Note that an instance lives, and what it says; see `Instances.heartbeat`."""
        found, counts = self.instances.heartbeat(name, sequence, report, now_s)
        if counts:
            if report is not None and found.role.decodes:
                self.decode.believe(found.slot, report)
            self._show(found)
            if found.role.prefills:
                self._queue_changed(found.slot, now_s)
        return found, counts

    def drain(self, name: str) -> Instance:
        """Let an instance get nothing new."""
        found = self.instances.drain(name)
        self._show(found)
        return found

    def suspect(self, name: str) -> None:
        """Close an instance until its next heartbeat; one that is not registered is no matter."""
        found = self.instances.find(name)
        if found is not None and found.state is State.OPEN:
            found.state = State.SILENT
            self._show(found)

    def remove(self, name: str) -> Instance:
        """Forget an instance and all that is under way on it."""
        found = self.instances.remove(name)
        self._forget_slot(found)
        self._by_slot.pop(found.slot, None)
        return found

    def _show(self, one: Instance) -> None:
        is_closed = one.state is not State.OPEN
        if one.role.prefills:
            self.table.show_instance(one.slot, is_closed=is_closed)
        if one.role.decodes:
            self.decode.show(one.slot, is_closed=is_closed)

    def _forget_slot(self, one: Instance) -> None:
        """Drop what a slot was: flights on it, what it holds, its rows."""
        for flight in [
            flight
            for flight in self.flights.values()
            if one.slot in (flight.prefill_slot, flight.decode_slot)
        ]:
            self._end(flight)
        self.queues[one.slot] = PrefillQueue()
        self.holders.detach(one.slot)
        self.index.clear(one.slot)
        self.table.clear(one.slot)
        self.decode.clear(one.slot)
        self._refresh_flights(one.heard_s)
        self._reports_blocks.discard(one.name)
        self._promises.forget(one.slot)

    def blocks_stored(self, name: str, keys: bytes) -> None:
        """An instance tells of blocks on its accelerator.

        Raises:
            UnknownInstanceError: It is not registered.
            RequestError: Not whole keys.
        """
        found = self.instances.get(name)
        self._reports_blocks.add(name)
        self.index.store(found.slot, keys, Tier.DEVICE)

    def blocks_removed(self, name: str, keys: bytes) -> None:
        """An instance tells of blocks that left its accelerator.

        Raises:
            UnknownInstanceError: It is not registered.
            RequestError: Not whole keys.
        """
        found = self.instances.get(name)
        self._reports_blocks.add(name)
        self.index.remove(found.slot, keys, Tier.DEVICE)

    # ---- decisions -------------------------------------------------------------------------------

    def schedule(
        self, request: Request, now_s: float, *, is_tracked: bool = False
    ) -> Decision | Refusal:
        """Decide about a request.

        An accepted one counts at once: the next decision knows its queue and its blocks.

        Args:
            request: What is wanted.
            now_s: The time here.
            is_tracked: Its `prefilled` and `finished` will be told.

        Raises:
            RequestError: Numbers that cannot be.
        """
        tokens = request.num_tokens
        if not 1 <= tokens < 1 << 32:
            raise RequestError(f"a prompt has 1 to 2**32 - 1 tokens, not {tokens}")
        if len(request.blocks) * self.block_tokens > tokens:
            raise RequestError(
                f"{len(request.blocks)} blocks of {self.block_tokens} tokens are more than the "
                f"prompt's {tokens}"
            )
        known = self.flights.get(request.request_id)
        if known is not None:
            self._end(known)  # asked again: what was decided before does not count
        decided = self._decide(request, now_s, is_tracked)
        if isinstance(decided, Refusal):
            self.refused[decided.reason] += 1
        else:
            self.accepted += 1
        return decided

    def _decide(self, request: Request, now_s: float, is_tracked: bool) -> Decision | Refusal:
        self.seen = None
        if len(self.flights) >= self.limits.flights_max:
            return Refusal.of(
                request, Reason.TOO_MANY, f"{len(self.flights)} requests are under way", 1.0
            )
        self.lengths = []
        packed, table = request.blocks.packed, self.table
        if table.has_open:
            lengths = self.lengths = self.index.match_lengths(packed)
            nic = self._chooser.cost.nic_bytes_per_s
            table.fill(lengths, self.block_tokens, request.num_tokens - 1, nic, now_s)
            self._promises.show(table, self._by_slot, lengths, packed, now_s)
            self.seen = Seen(
                table.copy(),
                self.decode.copy(),
                tuple(self.decode.slots),
                self._cost_bytes,
                table.shown,
                self.names,
                request.expected_output or self.answers.output,
                request.tbt_slo_s or self.config.slo.tbt_s,
            )
        choice = self._chooser.choose(request, now_s)
        if isinstance(choice, Refusal):
            return choice
        return self._accept(request, choice, now_s, is_tracked)

    def _accept(self, request: Request, choice: Choice, now_s: float, is_tracked: bool) -> Decision:
        blocks, slot, source_slot = request.blocks, choice.prefill_slot, choice.source_slot
        prefill, decode = self._by_slot[slot], self._by_slot[choice.decode_slot]
        held = self.lengths[slot]
        used = min(-(-choice.prefix_tokens // self.block_tokens), len(blocks))
        source, source_server = None, ""
        moved: tuple[str, ...] = ()
        moved_bytes = ready_s = 0.0
        if source_slot >= 0 and used > held:
            source, source_server = self.holders.name_of(source_slot, self._by_slot)
            moved = blocks.digests[held:used]
            cost = self._chooser.cost
            moved_bytes = choice.transfer_tokens * cost.kv_bytes_per_token
            # The native choice has both in one number: the wait for the source, then the fetch.
            ready_s = min(self.table.ready_s(source_slot), choice.transfer_s)
            self.table.send(source_slot, moved_bytes, cost.nic_bytes_per_s, now_s)
        flight = Flight(
            request_id=request.request_id,
            num_tokens=request.num_tokens,
            blocks=blocks,
            prefill=prefill.name,
            decode=decode.name,
            prefill_slot=slot,
            decode_slot=choice.decode_slot,
            prefill_s=choice.prefill_s,
            output=choice.output,
            is_tracked=is_tracked,
            arrived_s=now_s,
            begin_s=now_s + choice.ttft_s,
            decode_s=choice.output * choice.tbt_s,
            expires_s=now_s + self.limits.request_s_max,
            keys=blocks.packed[KEY_BYTES * held :],
            pinned_blocks=used,
            transfer_bytes=moved_bytes,
            transfer_s=choice.transfer_s - ready_s,
        )
        self._begin(flight, now_s)
        self.hot.count(blocks)
        self.prompt_tokens += request.num_tokens
        self.prefix_tokens += choice.prefix_tokens
        self.moved_bytes += moved_bytes
        return Decision(
            request_id=request.request_id,
            prefill=prefill.name,
            prefill_url=prefill.url,
            decode=decode.name,
            decode_url=decode.url,
            num_tokens=request.num_tokens,
            prefix_tokens=choice.prefix_tokens,
            transfer_tokens=choice.transfer_tokens,
            transfer_bytes=moved_bytes,
            source=source,
            source_server=source_server,
            target_server=prefill.server,
            move=moved,
            pinned_blocks=used,
            queue_s=choice.queue_s,
            ready_s=ready_s,
            transfer_s=choice.transfer_s - ready_s,
            prefill_s=choice.prefill_s,
            ttft_s=choice.ttft_s,
            tbt_s=choice.tbt_s,
            decode_load=choice.decode_load,
            pool_load=choice.pool_load,
        )

    def _begin(self, flight: Flight, now_s: float) -> None:
        """Let an accepted request count: for queues, batches and what is where."""
        slot = flight.prefill_slot
        self.flights[flight.request_id] = flight
        self.flight_table.add(flight, self.decode.row_of[flight.decode_slot])
        self.queues[slot].add(flight, now_s)
        self._queue_changed(slot, now_s)
        self.decode.promise(flight.decode_slot, flight.num_tokens, flight.output)
        if flight.keys:
            self.index.store(slot, flight.keys, Tier.DEVICE)
            if self._chooser.looks_at_readiness:
                self._promises.begin(slot, flight.keys, flight.begin_s)
        self._chooser.joins.note(flight.num_tokens, flight.begin_s - flight.arrived_s)

    def names_changed(self) -> None:
        """Make `names` anew; decisions that were logged keep the old one."""
        slots = [*self._by_slot, *self.holders.slots]
        self.names = {slot: self.holders.name_of(slot, self._by_slot)[0] for slot in slots}

    # ---- what becomes of requests ----------------------------------------------------------------

    def prefilled(self, request_id: str, now_s: float, transfer: Fetched | None = None) -> None:
        """The prompt of a request has been computed.

        Args:
            request_id: Which.
            now_s: The time here.
            transfer: How its fetch went, if there was one and somebody measured it.

        Raises:
            UnknownInstanceError: It is not under way.
        """
        flight = self._flight(request_id)
        flight.is_tracked = True
        if transfer is not None and flight.transfer_bytes and flight.stage is Stage.PREFILL:
            self.transfers.add(transfer, flight.transfer_s, now_s)
        self._begin_decode(flight, now_s)

    def finished(self, request_id: str, output_tokens: int | None, now_s: float) -> None:
        """A request has been answered.

        Args:
            request_id: Which.
            output_tokens: Of its answer; None: not known.
            now_s: The time here.

        Raises:
            UnknownInstanceError: It is not under way.
        """
        flight = self._flight(request_id)
        if flight.stage is Stage.PREFILL:
            self._begin_decode(flight, now_s)
        if output_tokens is not None and output_tokens >= 0:
            self.answers.add(output_tokens, max(now_s - flight.begin_s, 0.0))
        self._end(flight)

    def failed(self, request_id: str) -> None:
        """A request will not be answered: where it was, it is no more.

        Raises:
            UnknownInstanceError: It is not under way.
        """
        flight = self._flight(request_id)
        if flight.stage is Stage.PREFILL and flight.prefill not in self._reports_blocks:
            self._unpromise(flight)
        self._end(flight)

    def _flight(self, request_id: str) -> Flight:
        found = self.flights.get(request_id)
        if found is None:
            raise UnknownInstanceError(
                f"request {request_id!r} is not under way",
                hint="it was refused, its end was told before, or nobody told of it for long "
                "(--request-s-max of `conductor`); `conductor explain` knows what became of it",
            )
        return found

    def _begin_decode(self, flight: Flight, now_s: float) -> None:
        if flight.stage is Stage.DECODE:
            return
        flight.stage, flight.begin_s = Stage.DECODE, now_s
        self.queues[flight.prefill_slot].remove(flight, now_s)
        self._queue_changed(flight.prefill_slot, now_s)
        self.decode.begin(flight.decode_slot, flight.num_tokens, flight.output)
        self._promises.end(flight.prefill_slot, flight.keys)
        self._keep_promise(flight, now_s)

    def _keep_promise(self, flight: Flight, now_s: float) -> None:
        """What an instance has computed it keeps for some time; one that tells us is believed."""
        if flight.keys and flight.prefill not in self._reports_blocks:
            incarnation = self._by_slot[flight.prefill_slot].incarnation
            until_s = now_s + self.limits.promise_s
            self._promises.keep(Promise(until_s, flight.prefill_slot, incarnation, flight.keys))

    def _unpromise(self, flight: Flight) -> None:
        if flight.keys:
            self.index.remove(flight.prefill_slot, flight.keys, Tier.DEVICE)

    def _end(self, flight: Flight) -> None:
        del self.flights[flight.request_id]
        self.flight_table.remove(flight)
        was_promised = flight.stage is Stage.PREFILL
        if was_promised:
            self.queues[flight.prefill_slot].remove(flight, None)
            self.table.set_free_at(
                flight.prefill_slot,
                self.queues[flight.prefill_slot].free_at_s,
                len(self.queues[flight.prefill_slot]),
            )
            self._promises.end(flight.prefill_slot, flight.keys)
        self.decode.end(
            flight.decode_slot, flight.num_tokens, flight.output, was_promised=was_promised
        )
        self.on_end(flight)

    def _queue_changed(self, slot: int, now_s: float) -> None:
        """Set when an instance will be free: what was decided, or what it says, if that is more."""
        queue = self.queues[slot]
        free_at_s, requests = queue.pass_time(now_s), len(queue)
        found = self._by_slot.get(slot)
        report = found.report if found is not None else None
        if found is not None and report is not None:
            if now_s - found.report_s <= self.limits.report_s_max:
                if report.queue_s is not None:
                    free_at_s = max(free_at_s, found.report_s + report.queue_s)
                elif report.queued_tokens:
                    left_s = lib.cd_prefill_work_s(self._chooser.cost, report.queued_tokens, 0)
                    free_at_s = max(free_at_s, found.report_s + left_s)
                requests = max(requests, report.requests or 0)
            elif found.role.decodes:
                self.decode.believe(slot, None)
        self.table.set_free_at(slot, free_at_s, requests)

    # ---- time ------------------------------------------------------------------------------------

    def sweep(self, now_s: float) -> tuple[list[Instance], list[Instance]]:
        """Let time pass: call it a few times a second.

        Returns:
            Instances that have become silent just now, and those that were forgotten.
        """
        silent, gone = self.instances.sweep(now_s)
        for one in silent:
            self._show(one)
        for one in gone:
            self.remove(one.name)
        for slot, one in self._by_slot.items():
            if one.role.prefills:
                self._queue_changed(slot, now_s)
            elif one.report is not None and now_s - one.report_s > self.limits.report_s_max:
                self.decode.believe(slot, None)
        for flight in [
            flight
            for flight in self.flights.values()
            if now_s >= flight.expires_s or (not flight.is_tracked and now_s >= flight.begin_s)
        ]:
            self._pass(flight, now_s)
        for promise in self._promises.over(now_s):
            found = self._by_slot.get(promise.slot)
            if (
                found is not None
                and found.incarnation == promise.incarnation
                and found.name not in self._reports_blocks
            ):
                self.index.remove(promise.slot, promise.keys, Tier.DEVICE)
        self._refresh_flights(now_s)
        self.answers.refresh()
        self._believe_transfers(now_s)
        self._chooser.joins.look(now_s)
        return silent, gone

    def _believe_transfers(self, now_s: float) -> None:
        """Let predictions go by what was measured, now and then."""
        if not self.limits.learns_transfers or now_s - self._refitted_s < _REFIT_S:
            return
        self._refitted_s = now_s
        if self.transfers.refit(now_s):
            cost, fit = self._chooser.cost, self.transfers
            cost.transfer_latency_s = fit.latency_s
            cost.nic_bytes_per_s = self.hot.nic_bytes_per_s = fit.bandwidth_bytes_per_s
            self._cost_bytes = bytes(ffi.buffer(cost))

    def _refresh_flights(self, now_s: float) -> None:
        self.flight_table.refresh(now_s, self._tbt_s(), self.decode.row_of)

    def _pass(self, flight: Flight, now_s: float) -> None:
        """Let a request of which nobody tells go by the predictions."""
        if now_s >= flight.expires_s:
            if flight.stage is Stage.PREFILL and flight.prefill not in self._reports_blocks:
                self._unpromise(flight)
            self._end(flight)
            return
        if flight.stage is Stage.PREFILL:
            begin_s = flight.begin_s
            self._begin_decode(flight, now_s)
            flight.begin_s = begin_s
        if now_s >= flight.begin_s + flight.decode_s:
            self._end(flight)

    def _tbt_s(self) -> float:
        """Return a typical time between tokens, for how far answers are."""
        return max(self.answers.decode_s / max(self.answers.output, 1.0), 1e-6)
