"""The scheduler's half: finds prompts in the store, pinned, and plans what workers move."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from mooncake_store.client import CacheIdentity
from mooncake_store.integrations.engine_store import EngineStore
from mooncake_store.integrations.vllm.plan import BlockNames, Plan, Request, Transfer

__all__ = ["SchedulerSide"]

_KEYS_MAX = 65_536  # of one call; what a longer prompt has beyond it is computed
_PIN_TIMEOUT_S = 60.0  # should this process stop in the middle
_STEPS_TO_UNPIN = 2  # a step's loads have ended when the second one after it is planned


@dataclass(slots=True)
class _Found:
    """A prompt's blocks in the store, from `first` on."""

    first: int
    count: int
    pinned: list[str]
    planned_at: int | None = None


class SchedulerSide:
    """Answers vLLM's scheduler; its calls come from one thread."""

    def __init__(
        self,
        store: EngineStore,
        block_size: int,
        *,
        loads_early: bool = False,
    ) -> None:
        """Begin.

        Args:
            store: Where blocks are.
            block_size: Tokens of a block.
            loads_early: Requests wait until they are loaded, while others are computed; else they
                are loaded within the step that computes what is left of them.
        """
        self._store = store
        self.loads_early = loads_early
        self._early: list[Transfer] = []
        self._block_size = block_size
        self._names: BlockNames | None = None
        self._identities: list[CacheIdentity] = []
        self._prefixes: list[str] = []
        self._requests: dict[str, Request] = {}
        self._found: dict[str, _Found] = {}
        self._steps = 0

    def set_parts(self, base: CacheIdentity, parts: Sequence[CacheIdentity]) -> None:
        """Take from the workers how blocks lie: nothing is looked up or saved before.

        Args:
            base: Whose chain names blocks.
            parts: Of every object of a block; those of ranks with equal bytes are equal.
        """
        self._names = BlockNames(base)
        self._identities = list(dict.fromkeys(parts))
        self._prefixes = [identity.prefix + "n" for identity in self._identities]

    # ---- looking up ------------------------------------------------------------------------------

    def _request(self, request: Any) -> Request | None:
        """Return what is known of a request; None: its tokens do not tell what it is."""
        if self._names is None or request.prompt_embeds is not None:
            return None
        known = self._requests.get(request.request_id)
        if known is None:
            features = [
                (each.identifier, each.mm_position.offset, each.mm_position.length)
                for each in request.mm_features or ()
            ]
            tokens = request.prompt_token_ids or ()
            known = Request(self._names.of(tokens, _salts(request), features))
            self._requests[request.request_id] = known
        return known

    def matched_tokens(self, request: Any, num_computed_tokens: int) -> int:
        """Return how many tokens beyond the computed ones can be loaded; asks the store once."""
        known = self._request(request)
        if known is None or known.is_lost:
            return 0
        first = num_computed_tokens // self._block_size
        end = min(len(known.names), (request.num_tokens - 1) // self._block_size)
        if num_computed_tokens % self._block_size or first >= end:
            return 0
        found = self._found.get(request.request_id)
        if found is None or found.first != first or found.planned_at is not None:
            self._release(request.request_id)
            found = self._look_up(known, first, end)
            self._found[request.request_id] = found
        return found.count * self._block_size

    def _look_up(self, known: Request, first: int, end: int) -> _Found:
        end = min(end, first + _KEYS_MAX // len(self._prefixes))
        names = [name.hex() for name in known.names[first:end]]
        keys = [prefix + name for name in names for prefix in self._prefixes]
        count = self._store.count_prefix(keys, pin_s=_PIN_TIMEOUT_S)
        return _Found(first, count // len(self._prefixes), keys[:count])

    def _release(self, request_id: str) -> None:
        found = self._found.pop(request_id, None)
        if found is not None:
            self._store.unpin(found.pinned)

    # ---- planning --------------------------------------------------------------------------------

    def allocated(
        self,
        request: Any,
        num_external_tokens: int,
        block_ids: Sequence[Sequence[int]] = (),
    ) -> None:
        """Note that memory was allocated into which tokens are to be loaded.

        Args:
            request: Whose.
            num_external_tokens: How many.
            block_ids: All of the request's, by group; needed to load early.
        """
        known = self._request(request)
        if known is None:
            return
        found = self._found.get(request.request_id)
        if found is None or num_external_tokens <= 0:
            self._release(request.request_id)
            known.load = None
            return
        end = found.first + num_external_tokens // self._block_size
        known.load = (found.first, end)
        if self.loads_early:
            known.restart(block_ids, end)
            load = known.take_load(request.request_id)
            assert load is not None
            self._early.append(load)

    def plan(self, output: Any) -> Plan:
        """Return what workers move in a step of the scheduler."""
        plan = Plan(early_loads=self._early)
        self._early = []
        self._steps += 1
        for request_id in output.finished_req_ids:
            self._requests.pop(request_id, None)
            self._release(request_id)
            plan.finished.append(request_id)
        for new in output.scheduled_new_reqs:
            known = self._requests.get(new.req_id)
            if known is not None:
                known.restart(new.block_ids, new.num_computed_tokens // self._block_size)
                self._move(plan, output, new.req_id, known, new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for at, request_id in enumerate(cached.req_ids):
            known = self._requests.get(request_id)
            if known is None:
                continue
            computed = cached.num_computed_tokens[at]
            block_ids = cached.new_block_ids[at]
            if request_id in cached.resumed_req_ids:
                nothing: list[list[int]] = [[] for _ in known.block_ids]
                known.restart(block_ids or nothing, computed // self._block_size)
            elif block_ids:
                known.extend(block_ids)
            self._move(plan, output, request_id, known, computed)
        return plan

    def _move(
        self, plan: Plan, output: Any, request_id: str, known: Request, computed: int
    ) -> None:
        load = known.take_load(request_id)
        if load is not None:
            plan.loads.append(load)
            self._found[request_id].planned_at = self._steps
        after = computed + output.num_scheduled_tokens[request_id]
        save = known.take_save(request_id, after // self._block_size)
        if save is not None:
            plan.saves.append(save)

    def loaded_early(self, finished: Iterable[str], failed: Iterable[str]) -> None:
        """Note which requests' early loads have ended, and which of them to compute instead."""
        for request_id in finished:
            self._release(request_id)
        for request_id in failed:
            self._release(request_id)
            known = self._requests.get(request_id)
            if known is not None:
                known.is_lost = True

    def step_ended(self) -> None:
        """Unpin what steps before the last one have loaded."""
        for request_id, found in list(self._found.items()):
            if found.planned_at is not None and self._steps >= found.planned_at + _STEPS_TO_UNPIN:
                self._release(request_id)

    def finished(self, request_id: str) -> None:
        """Forget a request."""
        self._requests.pop(request_id, None)
        self._release(request_id)

    def reset(self) -> bool:
        """Remove this model's blocks, and no others, from the store."""
        client = self._store.client
        if client is None:
            return False
        for request_id in list(self._found):
            self._release(request_id)
        for identity in self._identities:
            client.remove_matching(identity.prefix)
        return True


def _salts(request: Any) -> list[str]:
    """Return what separates requests to one model: adapter and user's salt, each in its place."""
    lora = request.lora_request
    salt = request.cache_salt
    if lora is None and salt is None:
        return []
    adapter = "" if lora is None else f"{lora.lora_name}\0{lora.lora_path}"
    return [adapter, salt or ""]
