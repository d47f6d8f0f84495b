"""A layer's paged cache: where the bytes of its blocks are.

On the CPU a block is read and filled in place.  A GPU's goes through pinned memory, copied on the
stream that computes (saving) or on one of its own (loading): that path has been run on no GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

__all__ = ["PagedLayer"]

Memory = tuple[int, int]
cuda: Any = torch.cuda


def _nothing() -> None:
    pass


class PagedLayer:
    """One layer's tensor, whose first dimension counts blocks, or parts of blocks.

    Raises:
        ValueError: A block's bytes do not lie together.
    """

    def __init__(self, name: str, tensor: torch.Tensor, num_blocks: int) -> None:
        rows, rest = divmod(tensor.shape[0], num_blocks)
        if rest or rows == 0:
            raise ValueError(f"layer {name}: {tensor.shape[0]} rows are no {num_blocks} blocks")
        one = tensor[:rows]
        # Strides from the largest to the smallest: each must be the product of those below it.
        strides = one.stride()
        order = sorted(range(one.dim()), key=lambda dim: (-strides[dim], dim))
        expected = 1
        for dim in reversed(order):
            if one.shape[dim] != 1 and strides[dim] != expected:
                raise ValueError(
                    f"layer {name}: the bytes of a block do not lie together "
                    f"(shape {list(one.shape)}, strides {list(strides)})"
                )
            expected *= one.shape[dim]
        self.name = name
        self.tensor = tensor
        self.rows = rows
        self.block_bytes = one.numel() * one.element_size()
        self._step = rows * tensor.stride(0) * tensor.element_size()
        self.layout = f"{'x'.join(map(str, one.shape))}/{''.join(map(str, order))}/{tensor.dtype}"

    @property
    def is_on_host(self) -> bool:
        """Whether the memory can be read and written by address."""
        return self.tensor.device.type == "cpu"

    def memory(self, block_id: int) -> Memory:
        """Return address and length of a block."""
        return self.tensor.data_ptr() + block_id * self._step, self.block_bytes

    def sources(self, block_ids: Sequence[int]) -> tuple[list[Memory], Callable[[], None], Any]:
        """Return memory with the blocks' bytes, what to wait for first, and what keeps it alive."""
        if self.is_on_host:
            return [self.memory(block_id) for block_id in block_ids], _nothing, None
        index = self._rows_of(block_ids)
        staging = self._staging(len(index))
        staging.copy_(self.tensor[index], non_blocking=True)
        event: Any = cuda.Event()
        event.record()
        return self._pieces(staging, len(block_ids)), event.synchronize, staging

    def targets(self, block_ids: Sequence[int]) -> tuple[list[Memory], Callable[[Any], Any], Any]:
        """Return memory to be filled, and what brings it into place (on a stream) then."""
        if self.is_on_host:
            return [self.memory(block_id) for block_id in block_ids], lambda _: None, None
        index = self._rows_of(block_ids)
        staging = self._staging(len(index))

        def finish(stream: Any) -> Any:
            with cuda.stream(stream):
                self.tensor[index] = staging.to(self.tensor.device, non_blocking=True)
                event: Any = cuda.Event()
                event.record(stream)
            return event

        return self._pieces(staging, len(block_ids)), finish, staging

    def _rows_of(self, block_ids: Sequence[int]) -> torch.Tensor:
        rows = [block * self.rows + row for block in block_ids for row in range(self.rows)]
        return torch.tensor(rows, device=self.tensor.device)

    def _staging(self, rows: int) -> torch.Tensor:
        shape = (rows, *self.tensor.shape[1:])
        return torch.empty(shape, dtype=self.tensor.dtype, pin_memory=True)

    def _pieces(self, staging: torch.Tensor, count: int) -> list[Memory]:
        start = staging.data_ptr()
        return [(start + at * self.block_bytes, self.block_bytes) for at in range(count)]
