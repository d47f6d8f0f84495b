"""Nested state as one object: a document, then the tensors where they can be read in place.

    offset  0  "MCS1"
            4  u32 version 1
            8  u64 length of the document, little-endian
           16  the document: JSON, {"tree": ..., "tensors": [[dtype, [shape], offset, length], ...]}
               zeros up to a multiple of 64, from which offsets count; then the tensors, each at a
               multiple of 64, with zeros between them

One object, so that a state is there whole or not at all.
"""

from __future__ import annotations

import binascii
import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mooncake_store.client import Client
from mooncake_store.errors import BufferTooSmallError, RequestError
from mooncake_store.torch import document, memory

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from mooncake_store.client.options import PutOptions

__all__ = ["get_state", "get_state_into", "put_state"]

_FIXED = struct.Struct("<4sIQ")
_MAGIC = b"MCS1"
_ALIGNMENT = 64
_HEAD_BYTES_MAX = 256 << 20
_FIRST_READ_BYTES = 16 << 10
_ATTEMPTS = 3  # a state that is replaced between its two reads is looked at again
_ZEROS = bytes(_ALIGNMENT)


@dataclass(frozen=True, slots=True)
class _Stored:
    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class _Head:
    """What lies before the tensors: the bytes, and what they say."""

    data: bytes
    tree: Any
    tensors: list[_Stored]


def _gap(offset: int) -> int:
    return -offset % _ALIGNMENT


def put_state(
    store: Client,
    key: str,
    state: Any,
    *,
    replace: bool = False,
    timeout_s: float | None = None,
    **options: Unpack[PutOptions],
) -> bool:
    """Store tensors and plain values, in dicts, lists, tuples and dataclasses, as one object.

    Tensors on the CPU in row order are sent from where they are; one that occurs twice is stored
    once.  No pickle is made.

    Args:
        store: An open client.
        key: The object.
        state: What `state_dict()` gives, or anything like it.
        replace: Store it in place of whatever the key named.
        timeout_s: Deadline.
        options: As of `Client.put`.

    Returns:
        True when it is stored now, False when the key was there already.

    Raises:
        RequestError: Something else is in it, or a tensor that has no elements in memory.
        StoreError: It could not be stored.
    """
    tree, tensors = document.flatten(state)
    sources = [memory.source(tensor) for tensor in tensors]
    rows: list[list[Any]] = [
        [memory.dtype_name(tensor), list(tensor.shape), 0, source.length]
        for tensor, source in zip(tensors, sources, strict=True)
    ]
    # Offsets stand in the document and depend on its length: they are told from its end.
    at = 0
    for row, source in zip(rows, sources, strict=True):
        row[2] = at
        at += source.length + _gap(source.length)
    text = json.dumps({"tree": tree, "tensors": rows}, separators=(",", ":")).encode()
    if len(text) > _HEAD_BYTES_MAX:
        raise RequestError("the state has too much beside its tensors: keep data in tensors")
    head = _FIXED.pack(_MAGIC, 1, len(text)) + text
    pieces: list[Any] = [head + bytes(_gap(len(head)))]
    for source in sources:
        pieces += source.pieces
        if gap := _gap(source.length):
            pieces.append(_ZEROS[:gap])
    call = store.upsert if replace else store.put
    return call(key, pieces, timeout_s=timeout_s, **options)


def get_state(
    store: Client,
    key: str,
    *,
    types: Iterable[type] = (),
    device: torch.device | str = "cpu",
    timeout_s: float | None = None,
) -> Any:
    """Return a stored state, or None when it is not there.

    Args:
        store: An open client.
        key: The object.
        types: The dataclasses that may occur in it; others are refused.
        device: Where its tensors will be.
        timeout_s: Deadline of each of the reads.

    Raises:
        RequestError: The object is no state, or has a dataclass that `types` does not name.
    """
    kinds = tuple(types)
    for _ in range(_ATTEMPTS):
        head = _read_head(store, key, timeout_s)
        if head is None:
            return None
        made = [
            memory.empty(each.shape, memory.dtype_of(each.dtype, key), device)
            for each in head.tensors
        ]
        state = _build(head, made, kinds, key)
        if _fill(store, key, head, [memory.target(tensor) for tensor in made], timeout_s):
            return state
    return None


def get_state_into(store: Client, key: str, target: Any, *, timeout_s: float | None = None) -> Any:
    """Read a stored state into the tensors of one of the same form.

    Args:
        store: An open client.
        key: The object.
        target: A state with the same keys, lengths and dataclasses, and tensors of the same dtypes
            and shapes, on any device.  Those on the CPU in row order are filled without a copy.
        timeout_s: Deadline of each of the reads.

    Returns:
        The stored state, made of the target's tensors; None when it is not there.  After a miss the
        tensors may hold anything.

    Raises:
        RequestError: The object is no state, or the target differs: its tensors are as they were.
    """
    for _ in range(_ATTEMPTS):
        head = _read_head(store, key, timeout_s)
        if head is None:
            return None
        try:
            places, types = document.match(head.tree, target)
        except (TypeError, ValueError) as error:
            raise _damaged(key, error) from error
        firsts = _firsts(head, places, key)
        state = _build(head, firsts, types, key)
        if _fill(store, key, head, [memory.target(tensor) for tensor in firsts], timeout_s):
            for index, tensors in places.items():
                for other in tensors[1:]:
                    other.detach().copy_(firsts[index])
            return state
    return None


def _firsts(head: _Head, places: dict[int, list[torch.Tensor]], key: str) -> list[torch.Tensor]:
    """For each stored tensor the target's that is filled."""
    if sorted(places) != list(range(len(head.tensors))):
        raise _damaged(key)
    for index, stored in enumerate(head.tensors):
        for tensor in places[index]:
            name = memory.dtype_name(tensor)
            if (name, tuple(tensor.shape)) != (stored.dtype, stored.shape):
                raise RequestError(
                    f"stored is {stored.dtype}{list(stored.shape)}, "
                    f"the target is {name}{list(tensor.shape)}",
                    key=key,
                )
    return [places[index][0] for index in range(len(head.tensors))]


def _damaged(key: str, cause: BaseException | None = None) -> RequestError:
    return RequestError(
        "the object is no state: it was not stored with put_state, or is damaged",
        key=key,
        cause=cause,
    )


def _read_head(store: Client, key: str, timeout_s: float | None) -> _Head | None:
    data = bytearray(_FIRST_READ_BYTES)
    read = store.get_range(key, data, 0, timeout_s=timeout_s)
    if read is None:
        return None
    if read < _FIXED.size or data[:4] != _MAGIC:
        raise _damaged(key)
    _, version, length = _FIXED.unpack_from(data)
    if version != 1:
        raise RequestError("the state was stored by a newer version of this library", key=key)
    if length > _HEAD_BYTES_MAX:
        raise _damaged(key)
    end = _FIXED.size + length
    end += _gap(end)
    if end > read:
        if read < len(data):
            raise _damaged(key)
        rest = bytearray(end - read)
        more = store.get_range(key, rest, read, timeout_s=timeout_s)
        if more is None:
            return None
        data += rest
    return _parse(bytes(data[:end]), length, key)


def _parse(data: bytes, length: int, key: str) -> _Head:
    try:
        found = json.loads(data[_FIXED.size : _FIXED.size + length])
        tensors = [
            _Stored(dtype, tuple(shape), offset, size)
            for dtype, shape, offset, size in found["tensors"]
        ]
        at = 0
        for each in tensors:
            element = memory.dtype_of(each.dtype, key).itemsize
            if each.offset != at or each.length != math.prod(each.shape) * element:
                raise _damaged(key)
            at += each.length + _gap(each.length)
        return _Head(data, found["tree"], tensors)
    except (TypeError, ValueError, KeyError, RecursionError) as error:
        raise error if isinstance(error, RequestError) else _damaged(key, error) from error


def _build(head: _Head, tensors: list[torch.Tensor], types: Iterable[type], key: str) -> Any:
    try:
        return document.build(head.tree, tensors, types)
    except RequestError as error:
        error.key = key
        raise
    except (TypeError, ValueError, IndexError, binascii.Error, RecursionError) as error:
        raise _damaged(key, error) from error


def _fill(
    store: Client,
    key: str,
    head: _Head,
    targets: list[memory.TensorMemory],
    timeout_s: float | None,
) -> bool:
    """Read the tensors; False: the state was replaced meanwhile, look again."""
    again = bytearray(len(head.data))
    gap = bytearray(_ALIGNMENT)
    pieces: list[Any] = [again]
    for target in targets:
        pieces += target.pieces
        if length := _gap(target.length):
            pieces.append(memoryview(gap)[:length])
    try:
        read = store.get_into(key, pieces, timeout_s=timeout_s)
    except BufferTooSmallError:
        return False
    expected = len(head.data) + sum(each.length + _gap(each.length) for each in targets)
    if read != expected or again != head.data:
        return False
    for target in targets:
        target.finish()
    return True
