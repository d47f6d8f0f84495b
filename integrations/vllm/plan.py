"""What a step loads and saves: pure bookkeeping, from the scheduler to its workers.

A block is named by the chain hash of its tokens, and stored as several objects: one for each rank
and slice of its layers.  Layers of one kind are a group, with memory of its own for each block; a
group that sees a window has none for the blocks before it.  Nothing here knows vLLM or the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mooncake_store.client import CacheIdentity

__all__ = ["NO_BLOCK", "BlockNames", "Plan", "Request", "Transfer", "mm_extras"]

NO_BLOCK = 0  # vLLM's null block: what a group does not keep


@dataclass(frozen=True, slots=True)
class Transfer:
    """Blocks of one request to be loaded or saved.

    Attributes:
        request_id: Whose they are.
        names: One a block.
        block_ids: Where in the paged memory: for each group as many as names; NO_BLOCK: nowhere.
    """

    request_id: str
    names: list[bytes]
    block_ids: list[list[int]]


@dataclass(slots=True)
class Plan:
    """All transfers of a step.

    Attributes:
        loads: Ended before the step computes with them.
        early_loads: Of requests that wait for them, beside this step and later ones.
        saves: Ended with the step.
        finished: Requests that are no more.
    """

    loads: list[Transfer] = field(default_factory=list)
    early_loads: list[Transfer] = field(default_factory=list)
    saves: list[Transfer] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.loads or self.early_loads or self.saves or self.finished)


def mm_extras(features: Iterable[tuple[str, int, int]], block_size: int) -> dict[int, bytes]:
    """Return what the tokens of blocks do not tell: which image lies where in them.

    Args:
        features: Hash, first token and length of each image (audio, video).
        block_size: Tokens of a block.
    """
    extras: dict[int, bytes] = {}
    for identifier, offset, length in features:
        if length <= 0:
            continue
        data = identifier.encode()
        for block in range(offset // block_size, (offset + length - 1) // block_size + 1):
            where = f"{len(data)}:{offset - block * block_size}:{length}:".encode()
            extras[block] = extras.get(block, b"") + where + data
    return extras


class BlockNames:
    """Names of a prompt's full blocks, by the base identity's chain."""

    def __init__(self, base: CacheIdentity) -> None:
        self._base = base

    def of(
        self,
        token_ids: Sequence[int],
        salts: Sequence[str],
        features: Iterable[tuple[str, int, int]],
    ) -> list[bytes]:
        """Return one name for each full block."""
        extras = mm_extras(features, self._base.block_size)
        keys = self._base.prefix_keys(token_ids, salts=salts, extras=extras)
        return [bytes.fromhex(key.rpartition("-")[2]) for key in keys]


@dataclass(slots=True)
class Request:
    """What the scheduler remembers of a request.

    Attributes:
        names: Of the prompt's full blocks.
        block_ids: Where its blocks are, by group.
        stored: Blocks, from the first, that need not be saved (any more).
        load: First and last + 1 of the blocks to be loaded in the next step.
        is_lost: Loading it has failed: it is computed, and not looked up again.
    """

    names: list[bytes]
    block_ids: list[list[int]] = field(default_factory=list)
    stored: int = 0
    load: tuple[int, int] | None = None
    is_lost: bool = False

    def restart(self, block_ids: Sequence[Sequence[int]], computed_blocks: int) -> None:
        """Begin with other memory: a new request, or one that was preempted."""
        self.block_ids = [list(of_group) for of_group in block_ids]
        self.stored = computed_blocks

    def extend(self, block_ids: Sequence[Sequence[int]]) -> None:
        """Add blocks that were allocated."""
        for known, more in zip(self.block_ids, block_ids, strict=True):
            known.extend(more)

    def take_load(self, request_id: str) -> Transfer | None:
        """Return what is to be loaded, once."""
        if self.load is None:
            return None
        (first, end), self.load = self.load, None
        return self._transfer(request_id, first, end)

    def take_save(self, request_id: str, computed_blocks: int) -> Transfer | None:
        """Return what can be saved when so many blocks have been computed, once."""
        allocated = min(map(len, self.block_ids), default=0)
        end = min(computed_blocks, len(self.names), allocated)
        if end <= self.stored:
            return None
        first, self.stored = self.stored, end
        return self._transfer(request_id, first, end)

    def _transfer(self, request_id: str, first: int, end: int) -> Transfer:
        blocks = [of_group[first:end] for of_group in self.block_ids]
        return Transfer(request_id, self.names[first:end], blocks)
