"""A worker's half: moves blocks between the paged cache and the store, slice by slice of layers.

A slice's blocks are loaded in the background in the order in which layers are computed, and saved
when its last layer has been: both beside the computation of the other slices.  A step's saves have
ended when the step has, so no block is written by anybody while it is sent.

Where a model has several kinds of caches (groups), a slice belongs to one of them, and a request
waits until it is loaded, while others are computed; a failure is that of the request.

Else a request of which a block could not be loaded computes with wrong bytes from that layer on,
until the scheduler has heard of it: none of its blocks is saved any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch

from mooncake_store.client import CacheIdentity
from mooncake_store.integrations.engine_store import EngineStore, StoreCounts
from mooncake_store.integrations.vllm.paged_layer import PagedLayer
from mooncake_store.integrations.vllm.plan import NO_BLOCK, Plan, Transfer
from mooncake_store.integrations.vllm.settings import VllmSettings

__all__ = ["WorkerSide", "slices_of"]

Memory = tuple[int, int]
cuda: Any = torch.cuda


@dataclass(slots=True)
class _Slice:
    """Layers that are stored together."""

    identity: CacheIdentity
    layers: list[PagedLayer]
    group: int
    waiting: set[str] = field(default_factory=set)  # layers that are still to be computed
    loading: Future[list[Any]] | None = None

    def key(self, name: bytes) -> str:
        return self.identity.key(name)


def slices_of(names: Sequence[str], count: int) -> list[list[str]]:
    """Return layers in order, in so many slices that differ by one layer at most."""
    count = min(count, len(names))
    ends = [len(names) * at // count for at in range(count + 1)]
    return [list(names[first:end]) for first, end in pairwise(ends)]


def _pieces(
    layers: Sequence[Sequence[Memory]], count: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Return addresses and sizes of the pieces of so many blocks.

    Pieces of layers that follow each other in memory are one.

    Args:
        layers: Of each layer the memory of every block.
        count: Blocks.
    """
    addresses: list[list[int]] = [[] for _ in range(count)]
    sizes: list[list[int]] = [[] for _ in range(count)]
    for memories in layers:
        for at, (address, size) in enumerate(memories):
            if addresses[at] and addresses[at][-1] + sizes[at][-1] == address:
                sizes[at][-1] += size
            else:
                addresses[at].append(address)
                sizes[at].append(size)
    return addresses, sizes


class WorkerSide:
    """Moves what the scheduler has planned; its calls come from the thread that computes."""

    def __init__(self, store: EngineStore, settings: VllmSettings) -> None:
        self._store = store
        self._settings = settings
        self._slices: list[_Slice] = []
        self._slice_of: dict[str, _Slice] = {}
        self._plan = Plan()
        self._saving: list[Future[None]] = []
        self._tainted: set[str] = set()
        self._failed_blocks: set[int] = set()
        self._early: dict[str, Future[bool]] = {}
        self._load_stream: Any = None
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="mooncake-store-load")
        self._saver = ThreadPoolExecutor(1, thread_name_prefix="mooncake-store-save")

    def register(
        self,
        caches: Mapping[str, torch.Tensor],
        num_blocks: int,
        identify: Callable[[str], CacheIdentity],
        groups: Sequence[Sequence[str]] = (),
    ) -> list[CacheIdentity]:
        """Take the paged cache, and return the identities of a block's objects.

        Args:
            caches: By layer, in the order in which layers are computed.
            num_blocks: Blocks of each.
            identify: Returns the identity of a layout.
            groups: Layers of each group, which may share memory with those of others; empty: all
                layers are one.

        Raises:
            ValueError: A block's bytes do not lie together in a layer.
        """
        of_group = [set(names) for names in groups] or [set(caches)]
        for group, members in enumerate(of_group):
            layers: dict[int, PagedLayer] = {}
            for name, tensor in caches.items():  # layers that share memory are stored once
                if name in members:
                    layers.setdefault(tensor.data_ptr(), PagedLayer(name, tensor, num_blocks))
            self._cut(group if groups else None, list(layers.values()), identify)
        by_name = {layer.name: layer for part in self._slices for layer in part.layers}
        if not all(layer.is_on_host for layer in by_name.values()):
            self._load_stream = cuda.Stream()
        return [part.identity for part in self._slices]

    def _cut(
        self,
        group: int | None,
        layers: Sequence[PagedLayer],
        identify: Callable[[str], CacheIdentity],
    ) -> None:
        by_name = {layer.name: layer for layer in layers}
        cut = slices_of(list(by_name), self._settings.layer_slices)
        kind = "" if group is None else f"group {group} "
        for index, names in enumerate(cut):
            layouts = "+".join(by_name[name].layout for name in names)
            identity = identify(f"{kind}slice {index} of {len(cut)}:{layouts}")
            part = _Slice(identity, [by_name[name] for name in names], group or 0)
            self._slices.append(part)
            self._slice_of.update(dict.fromkeys(names, part))

    @property
    def counts(self) -> StoreCounts:
        """What has been moved; a block of several slices counts once a slice."""
        return self._store.counts

    # ---- a step ----------------------------------------------------------------------------------

    def begin(self, plan: Plan) -> None:
        """Begin a step: layers that are computed from now on are its own."""
        self._plan = plan
        self._tainted.difference_update(plan.finished)
        for part in self._slices:
            part.waiting = {layer.name for layer in part.layers} if plan.saves else set()

    def load(self) -> None:
        """Begin the step's loads; of a step that loads nothing at once, after its last layer."""
        plan = self._plan
        for load in plan.early_loads:
            self._early[load.request_id] = self._loader.submit(self._load_early, load)
        for part in self._slices:
            part.loading = self._loader.submit(self._load, part, plan) if plan.loads else None
        if len(self._slices) == 1:
            self._wait_for(self._slices[0])  # nothing is computed before its first layer anyway

    def wait_for_layer(self, name: str) -> None:
        """Return when the layer's blocks are loaded, or known not to be."""
        part = self._slice_of.get(name)
        if part is not None:
            self._wait_for(part)

    def _wait_for(self, part: _Slice) -> None:
        if part.loading is None:
            return
        loading, part.loading = part.loading, None
        for event in loading.result():
            if event is not None:
                cuda.current_stream().wait_event(event)

    def layer_computed(self, name: str) -> None:
        """Save the layer's slice if this was its last one."""
        part = self._slice_of.get(name)
        if part is None or name not in part.waiting:
            return
        part.waiting.discard(name)
        if not part.waiting and len(self._slices) > 1:
            self._begin_save(part)

    def end(self) -> None:
        """Save what no layer has begun to, and wait until everything of the step has ended."""
        for part in self._slices:
            self._wait_for(part)
        if len(self._slices) == 1:
            self._begin_save(self._slices[0])
        else:
            for part in self._slices:
                if part.waiting:
                    part.waiting.clear()
                    self._begin_save(part)
        saving, self._saving = self._saving, []
        for future in saving:
            future.result()
        self._plan = Plan()

    def take_loaded(self) -> tuple[set[str], set[str]]:
        """Return the requests whose early loads have ended since the last call, and the failed."""
        ended = {request_id for request_id, load in self._early.items() if load.done()}
        failed = {request_id for request_id in ended if not self._early[request_id].result()}
        for request_id in ended:
            del self._early[request_id]
        return ended, failed

    def take_failed_blocks(self) -> set[int]:
        """Return the blocks that could not be loaded since the last call."""
        failed, self._failed_blocks = self._failed_blocks, set()
        return failed

    def close(self) -> None:
        """Wait for what runs, and end."""
        self._loader.shutdown()
        self._saver.shutdown()

    # ---- loading, in its thread ------------------------------------------------------------------

    def _load(self, part: _Slice, plan: Plan) -> list[Any]:
        """Load a slice of all requests; failures are noted, and nothing is raised."""
        blocks = [
            (name, block, load.request_id)
            for load in plan.loads
            for name, block in zip(load.names, load.block_ids[part.group], strict=True)
        ]
        names, block_ids = [name for name, _, _ in blocks], [block for _, block, _ in blocks]
        is_there, events = self._fetch(part, names, block_ids)
        for is_loaded, (_, block, owner) in zip(is_there, blocks, strict=True):
            if not is_loaded:
                self._failed_blocks.add(block)
                self._tainted.add(owner)
        return events

    def _load_early(self, load: Transfer) -> bool:
        """Load all of a request; return whether it is there."""
        for part in self._slices:
            wanted = [
                (name, block)
                for name, block in zip(load.names, load.block_ids[part.group], strict=True)
                if block != NO_BLOCK
            ]
            is_there, events = self._fetch(part, [n for n, _ in wanted], [b for _, b in wanted])
            for event in events:
                if event is not None:
                    event.synchronize()
            if not all(is_there):
                return False
        return True

    def _fetch(
        self, part: _Slice, names: Sequence[bytes], block_ids: Sequence[int]
    ) -> tuple[list[bool], list[Any]]:
        """Load a slice of blocks; return for each whether it is there, and what to wait for."""
        targets = [layer.targets(block_ids) for layer in part.layers]
        addresses, sizes = _pieces([memories for memories, _, _ in targets], len(names))
        read = self._store.load([part.key(name) for name in names], addresses, sizes)
        return [size > 0 for size in read], [finish(self._load_stream) for _, finish, _ in targets]

    # ---- saving ----------------------------------------------------------------------------------

    def _begin_save(self, part: _Slice) -> None:
        if self._plan.saves and self._store.is_away:
            return  # a thread that finds out would cost the step some of its time
        for save in self._plan.saves:
            if save.request_id in self._tainted:
                continue
            blocks = [
                (name, block)
                for name, block in zip(save.names, save.block_ids[part.group], strict=True)
                if block != NO_BLOCK
            ]
            names = [name for name, _ in blocks]
            sources = [layer.sources([block for _, block in blocks]) for layer in part.layers]
            self._saving.append(self._saver.submit(self._save, part, names, sources))

    def _save(self, part: _Slice, names: Sequence[bytes], sources: Sequence[Any]) -> None:
        """Save a slice of one request; what cannot be saved is a later miss."""
        for _, wait, _ in sources:
            wait()
        addresses, sizes = _pieces([memories for memories, _, _ in sources], len(names))
        self._store.save([part.key(name) for name in names], addresses, sizes, chain=True)
