"""A tensor of a tensor-parallel model: stored as slices of its ranks, read by any number of them.

Under `key` lies a state that says how it was cut; the slice of rank r of n lies under
`key/tp-r-n`, as `put_tensor` stores one.  A reader takes the parts that it needs: a slice that was
stored as it wants it goes straight into its memory, as does any part along the first dimension.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from mooncake_store.client import Client
from mooncake_store.client.tensors import HEADER_BYTES, TensorHeader
from mooncake_store.errors import BufferTooSmallError, RequestError
from mooncake_store.torch import memory
from mooncake_store.torch.state import get_state, put_state

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from mooncake_store.client.options import PutOptions

__all__ = ["get_slice", "get_slice_into", "put_slice"]


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a stored tensor was cut: into `size` equal slices along `dim`."""

    dtype: str
    shape: tuple[int, ...]
    dim: int
    size: int

    def slice_shape(self, size: int, key: str) -> tuple[int, ...]:
        """Return the shape of a slice of one of so many ranks."""
        extent = self.shape[self.dim]
        if extent % size:
            raise RequestError(
                f"{size} ranks cannot share dimension {self.dim} of {list(self.shape)} equally",
                key=key,
            )
        return (*self.shape[: self.dim], extent // size, *self.shape[self.dim + 1 :])


def _check_rank(rank: int, size: int) -> None:
    if not 0 <= rank < size:
        raise RequestError(f"rank {rank} is none of {size} ranks")


def _slice_key(key: str, rank: int, size: int) -> str:
    return f"{key}/tp-{rank}-{size}"


def put_slice(
    store: Client,
    key: str,
    tensor: torch.Tensor,
    *,
    rank: int,
    size: int,
    dim: int = 0,
    timeout_s: float | None = None,
    **options: Unpack[PutOptions],
) -> bool:
    """Store this rank's slice of a tensor that is cut along a dimension.

    Args:
        store: An open client.
        key: The whole tensor's.
        tensor: The slice, which is as large as every other rank's.
        rank: This rank, from 0.
        size: How many ranks there are.
        dim: The dimension that was cut.
        timeout_s: Deadline of each of the two puts.
        options: As of `Client.put`.

    Returns:
        True when the slice is stored now, False when it was there already.

    Raises:
        RequestError: Another cut of this key is stored, or an argument cannot be.
    """
    _check_rank(rank, size)
    if not -tensor.dim() <= dim < tensor.dim():
        raise RequestError(f"a tensor of {tensor.dim()} dimensions has no dimension {dim}")
    dim %= tensor.dim()
    shape = [*tensor.shape[:dim], tensor.shape[dim] * size, *tensor.shape[dim + 1 :]]
    source = memory.source(tensor)
    header = TensorHeader(memory.dtype_name(tensor), tuple(tensor.shape)).encode()
    made = store.put(
        _slice_key(key, rank, size), [header, *source.pieces], timeout_s=timeout_s, **options
    )
    cut = {"dtype": memory.dtype_name(tensor), "shape": shape, "dim": dim, "size": size}
    if not put_state(store, key, cut, timeout_s=timeout_s, **options):
        found = get_state(store, key, timeout_s=timeout_s)
        if found is not None and found != cut:
            raise RequestError(f"stored is another cut: {found}, not {cut}", key=key)
    return made


def get_slice(
    store: Client,
    key: str,
    *,
    rank: int = 0,
    size: int = 1,
    device: torch.device | str = "cpu",
    timeout_s: float | None = None,
) -> torch.Tensor | None:
    """Return one rank's slice of a tensor, however many ranks have stored it.

    Args:
        store: An open client.
        key: The whole tensor's.
        rank: Whose slice, from 0.
        size: How many ranks read it; 1: the whole tensor.
        device: Where the slice will be.
        timeout_s: Deadline of each read.

    Returns:
        The slice; None when it is not there, or not all of it.

    Raises:
        RequestError: The object is no such tensor, or `size` ranks cannot share it equally.
    """
    _check_rank(rank, size)
    cut = _read_cut(store, key, timeout_s)
    if cut is None:
        return None
    shape = cut.slice_shape(size, key)
    target = memory.empty(shape, memory.dtype_of(cut.dtype, key), device)
    return target if _fill(store, key, cut, target, rank, size, timeout_s) else None


def get_slice_into(
    store: Client,
    key: str,
    tensor: torch.Tensor,
    *,
    rank: int = 0,
    size: int = 1,
    timeout_s: float | None = None,
) -> bool:
    """Read one rank's slice into a tensor of its dtype and shape; False when it is not there.

    After False the tensor may hold anything.

    Raises:
        RequestError: As of `get_slice`; dtype or shape differ: the tensor is as it was.
    """
    _check_rank(rank, size)
    cut = _read_cut(store, key, timeout_s)
    if cut is None:
        return False
    stored = (cut.dtype, cut.slice_shape(size, key))
    given = (memory.dtype_name(tensor), tuple(tensor.shape))
    if stored != given:
        raise RequestError(
            f"the slice is {stored[0]}{list(stored[1])}, the target {given[0]}{list(given[1])}",
            key=key,
        )
    return _fill(store, key, cut, tensor, rank, size, timeout_s)


def _read_cut(store: Client, key: str, timeout_s: float | None) -> _Cut | None:
    found = get_state(store, key, timeout_s=timeout_s)
    if found is None:
        return None
    try:
        return _Cut(found["dtype"], tuple(found["shape"]), found["dim"], found["size"])
    except (TypeError, KeyError) as error:
        raise RequestError(
            "the object was not stored with put_slice", key=key, cause=error
        ) from error


def _fill(
    store: Client,
    key: str,
    cut: _Cut,
    tensor: torch.Tensor,
    rank: int,
    size: int,
    timeout_s: float | None,
) -> bool:
    """Read the stored slices that this rank's slice overlaps, each into its place."""
    extent = cut.shape[cut.dim]
    stored, wanted = extent // cut.size, extent // size
    begin, end = rank * wanted, (rank + 1) * wanted
    shape = cut.slice_shape(cut.size, key)
    header = TensorHeader(cut.dtype, shape).encode()
    is_in_rows = math.prod(shape[: cut.dim]) == 1
    row_bytes = math.prod(shape[cut.dim + 1 :]) * tensor.element_size()
    for source in range(cut.size):
        first, last = max(begin, source * stored), min(end, (source + 1) * stored)
        if first >= last:
            continue
        place = tensor.narrow(cut.dim, first - begin, last - first)
        offset = first - source * stored
        name = _slice_key(key, source, cut.size)
        if last - first == stored:
            done = _read_whole(store, name, header, place, timeout_s)
        elif is_in_rows:
            done = _read_rows(store, name, header, place, offset * row_bytes, timeout_s)
        else:  # strided within the stored slice: all of it is read, and a part taken
            whole = memory.empty(shape, tensor.dtype, "cpu")
            done = _read_whole(store, name, header, whole, timeout_s)
            if done:
                place.copy_(whole.narrow(cut.dim, offset, last - first))
        if not done:
            return False
    return True


def _read_whole(
    store: Client, name: str, header: bytes, place: torch.Tensor, timeout_s: float | None
) -> bool:
    target = memory.target(place)
    found = bytearray(HEADER_BYTES)
    try:
        read = store.get_into(name, [found, *target.pieces], timeout_s=timeout_s)
    except BufferTooSmallError:  # it is another tensor
        return False
    if read != HEADER_BYTES + target.length or found != header:
        return False
    target.finish()
    return True


def _read_rows(
    store: Client,
    name: str,
    header: bytes,
    place: torch.Tensor,
    offset: int,
    timeout_s: float | None,
) -> bool:
    found = bytearray(HEADER_BYTES)
    if store.get_range(name, found, 0, timeout_s=timeout_s) is None or found != header:
        return False
    target = memory.target(place)
    if not target.length:
        return True
    read = store.get_range(name, target.pieces, HEADER_BYTES + offset, timeout_s=timeout_s)
    if read != target.length:
        return False
    target.finish()
    return True
