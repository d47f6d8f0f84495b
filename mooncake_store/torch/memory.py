"""Where a tensor's elements lie, so that they are read and written there without a copy.

A tensor on the CPU whose elements lie in row order is read and filled in place.  Any other one goes
through a copy that does; for a device's tensor that copy is pinned memory, from which the device
reads and writes by itself.  Pinned staging has been run on no GPU yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from mooncake_store.errors import RequestError

__all__ = ["TensorMemory", "dtype_name", "dtype_of", "empty", "source", "target"]


@dataclass(frozen=True, slots=True)
class TensorMemory:
    """Memory in row order that stands for a tensor.

    Attributes:
        address, length: Bytes; no address where there are none.
        kept: What keeps them alive.
        finish: Of a target: bring the bytes to where they belong; call it once they are there.
    """

    address: int
    length: int
    kept: torch.Tensor
    finish: Callable[[], None]

    @property
    def pieces(self) -> list[tuple[int, int]]:
        """The memory as the client takes it: nothing, or one piece."""
        return [(self.address, self.length)] if self.length else []


def dtype_name(tensor: torch.Tensor) -> str:
    """Return `float32`, `bfloat16`, ..."""
    return str(tensor.dtype).removeprefix("torch.")


def dtype_of(name: str, key: str | None = None) -> torch.dtype:
    """Return the dtype of that name.

    Raises:
        RequestError: This torch has none.
    """
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise RequestError(f"this torch knows no dtype {name}", key=key)
    return found


def empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """Return a new tensor on a device."""
    return torch.empty(tuple(shape), dtype=dtype, device=device)


def _check(tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise RequestError(f"a {tensor.layout} or quantized tensor cannot be stored: make it dense")
    if tensor.device.type == "meta":
        raise RequestError("a tensor on the meta device has no elements")


def _staging(tensor: torch.Tensor) -> torch.Tensor:
    pinned = tensor.device.type == "cuda"
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)


def _is_in_place(tensor: torch.Tensor) -> bool:
    return (
        tensor.device.type == "cpu"
        and tensor.is_contiguous()
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _nothing() -> None:
    pass


def source(tensor: torch.Tensor) -> TensorMemory:
    """Return memory that holds the tensor's elements.

    Raises:
        RequestError: It is sparse, quantized, or on the meta device.
    """
    _check(tensor)
    tensor = tensor.detach()
    if not _is_in_place(tensor):
        # copy_ to the CPU waits for the device.
        tensor = _staging(tensor).copy_(tensor.resolve_conj().resolve_neg())
    return TensorMemory(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor, _nothing)


def target(tensor: torch.Tensor) -> TensorMemory:
    """Return memory to be filled with the tensor's elements; `finish` takes them there.

    Autograd does not hear of it, as with `tensor.data`.

    Raises:
        RequestError: It is sparse, quantized, or on the meta device, or some of its elements share
            memory (an expanded tensor).
    """
    _check(tensor)
    tensor = tensor.detach()
    if _is_in_place(tensor):
        length = tensor.numel() * tensor.element_size()
        return TensorMemory(tensor.data_ptr(), length, tensor, _nothing)
    if any(step == 0 < size - 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)):
        raise RequestError("elements of the target share memory: it was expanded, clone it first")
    staging = _staging(tensor)

    def finish() -> None:
        tensor.copy_(staging)

    length = staging.numel() * staging.element_size()
    return TensorMemory(staging.data_ptr(), length, staging, finish)
