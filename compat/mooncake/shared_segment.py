"""Tensors in memory that all ranks of a group on one host share.

segment = create_shared_segment(
    "kv", {"k": {"count": 32, "shape": (1024, 16, 64), "dtype": torch.bfloat16}},
    world_size=4, rank_id=rank, comm_group=group,
)
segment.tensors("k")[0]      # the same bytes in every rank
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from mooncake._engine.shared import SharedSegment as _Memory

__all__ = [
    "SharedSegment",
    "SharedSegmentError",
    "create_shared_segment",
    "shared_segment_supported",
]

_PAGE = 4096


class SharedSegmentError(RuntimeError):
    """There is no such segment: raised in every rank, with the reasons of those that failed."""


@dataclass(frozen=True, slots=True)
class _Block:
    """So many tensors of one shape, one after the other, each from a page's begin on."""

    offset: int
    count: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def tensor_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def step(self) -> int:
        return -(-self.tensor_bytes // _PAGE) * _PAGE


def _layout(blocks: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, _Block], int]:
    """Return where each block is, and the size of all: the same whatever order they come in."""
    placed: dict[str, _Block] = {}
    offset = 0
    for name in sorted(blocks):
        try:
            count = int(blocks[name]["count"])
            shape = tuple(int(length) for length in blocks[name]["shape"])
            dtype = blocks[name]["dtype"]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise SharedSegmentError(f"block {name!r} needs count, shape and dtype") from error
        if count < 1 or not shape or min(shape) < 1 or not isinstance(dtype, torch.dtype):
            raise SharedSegmentError(
                f"block {name!r}: count and lengths are above 0, dtype is one of torch's"
            )
        placed[name] = _Block(offset, count, shape, dtype)
        offset += placed[name].step * count
    if not placed:
        raise SharedSegmentError("a shared segment has at least one block")
    return placed, offset


class SharedSegment:
    """What `create_shared_segment` returns; its tensors keep it."""

    def __init__(self, memory: _Memory, blocks: Mapping[str, _Block]) -> None:
        self._memory = memory
        self._blocks = blocks

    def tensors(self, block: str) -> list[torch.Tensor]:
        """Return a block's tensors: views of the memory, without a copy.

        Raises:
            SharedSegmentError: There is no such block.
        """
        placed = self._blocks.get(block)
        if placed is None:
            known = ", ".join(self._blocks)
            raise SharedSegmentError(f"there is no block {block!r}, but {known}")
        made = []
        for index in range(placed.count):
            address = self.base_addr() + placed.offset + index * placed.step
            raw: Any = (ctypes.c_uint8 * placed.tensor_bytes).from_address(address)
            raw.segment = self  # what torch keeps alive keeps the memory mapped
            made.append(torch.frombuffer(raw, dtype=placed.dtype).view(placed.shape))
        return made

    def base_addr(self) -> int:
        """Return where the memory begins in this process."""
        return self._memory.base_addr()

    def total_size(self) -> int:
        """Return its bytes."""
        return self._memory.size()


def shared_segment_supported(mmap: bool = True, host_register: bool = False) -> bool:
    """Return whether such memory can be made here: plain memory of the host only."""
    return _Memory.supported(mmap, host_register)


def create_shared_segment(
    name: str,
    blocks: Mapping[str, Mapping[str, Any]],
    world_size: int,
    rank_id: int,
    owner_rank: int = 0,
    device_id: int | None = None,
    comm_group: Any = None,
    mmap: bool = True,
    host_register: bool = False,
    *,
    tp_group: Any = None,
) -> SharedSegment:
    """Make a segment, together with the other ranks of the group; all of them call this.

    Args:
        name: As everything else that is the same in all ranks.
        blocks: By name `count`, `shape` and `dtype` of tensors.
        world_size: Ranks.
        rank_id: This one.
        owner_rank: The one that makes the memory.
        device_id: Without effect.
        comm_group: A torch process group that moves tensors of the CPU, or something with such a
            one as `cpu_group`; for one rank alone None.
        mmap: True.
        host_register: False.
        tp_group: An older name of comm_group.

    Raises:
        SharedSegmentError: In every rank, with the reasons of all that failed.
    """
    if comm_group is not None and tp_group is not None and comm_group is not tp_group:
        raise SharedSegmentError("tp_group is an older name of comm_group: give one of them")
    group = comm_group if comm_group is not None else tp_group
    group = getattr(group, "cpu_group", None) or group
    if world_size > 1 and group is None:
        raise SharedSegmentError("more than one rank need a comm_group")

    def all_of(value: Any) -> list[Any]:
        if world_size == 1:
            return [value]
        values: list[Any] = [None] * world_size
        dist.all_gather_object(values, value, group=group)
        return values

    def all_well(error: str) -> None:
        errors = [f"rank {rank}: {each}" for rank, each in enumerate(all_of(error)) if each]
        if errors:
            raise SharedSegmentError("; ".join(errors))

    # A rank that raised before the others know would leave them waiting for its word: so whatever
    # memory and a caller's arguments can raise is told to all.
    memory, blob, error = None, b"", ""
    placed: dict[str, _Block] = {}
    try:
        placed, size = _layout(blocks)
        # Part of the name: ranks whose blocks differ are told so.
        told = ";".join(f"{key}:{each}" for key, each in placed.items())
        memory, blob = _Memory.create(
            f"{name}|{told}", size, world_size, rank_id, owner_rank, device_id or 0, mmap,
            host_register,
        )  # fmt: skip
    except Exception as failure:
        error = str(failure) or type(failure).__name__
    all_well(error)
    assert memory is not None
    blobs = all_of(blob)
    try:
        memory.complete(blobs)
    except Exception as failure:
        error = str(failure) or type(failure).__name__
    all_well(error)  # also: the owner leaves only when all have mapped its memory
    return SharedSegment(memory, placed)
