"""Tensors as objects: a header of 128 bytes with dtype and shape, then the elements in row order.

    offset  0  "MCT1"
            4  u8 version 1, u8 dimensions (at most 12), u16 zero
            8  dtype, ASCII, zero-filled to 24 bytes: float32, bfloat16, float8_e4m3fn, ...
           32  u64 for each dimension, little-endian, zero-filled to 96 bytes
          128  the elements

dtypes are named as torch and numpy name them.  Neither is imported unless it is there already or
asked for.
"""

from __future__ import annotations

import math
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mooncake_store.errors import RequestError

__all__ = [
    "HEADER_BYTES",
    "Described",
    "TensorHeader",
    "check_same",
    "describe",
    "make",
    "parse_header",
]

HEADER_BYTES = 128
_FIXED = struct.Struct("<4sBBH24s")
_MAGIC = b"MCT1"
_DIMENSIONS_MAX = 12


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What a stored tensor is."""

    dtype: str
    shape: tuple[int, ...]

    def encode(self) -> bytes:
        """Return the header's 128 bytes.

        Raises:
            RequestError: Too many dimensions.
        """
        if len(self.shape) > _DIMENSIONS_MAX:
            raise RequestError(
                f"a stored tensor has at most {_DIMENSIONS_MAX} dimensions, not {len(self.shape)}"
            )
        fixed = _FIXED.pack(_MAGIC, 1, len(self.shape), 0, self.dtype.encode())
        return (fixed + struct.pack(f"<{len(self.shape)}Q", *self.shape)).ljust(HEADER_BYTES, b"\0")


def parse_header(data: bytes | bytearray, key: str) -> TensorHeader:
    """Return what the first 128 bytes of an object say.

    Raises:
        RequestError: The object is no tensor.
    """
    if len(data) < HEADER_BYTES or data[:4] != _MAGIC:
        raise RequestError("the object is no tensor: it was not stored with put_tensor", key=key)
    _, version, dimensions, _, name = _FIXED.unpack_from(data)
    if version != 1 or dimensions > _DIMENSIONS_MAX:
        raise RequestError("the tensor was stored by a newer version of this library", key=key)
    shape = struct.unpack_from(f"<{dimensions}Q", data, _FIXED.size)
    return TensorHeader(name.rstrip(b"\0").decode(), tuple(shape))


def check_same(stored: TensorHeader, target: TensorHeader, key: str) -> None:
    """Refuse to read a tensor into another kind of tensor.

    Raises:
        RequestError: dtype or shape differ.
    """
    if stored != target:
        raise RequestError(
            f"stored is {stored.dtype}{list(stored.shape)}, "
            f"the target is {target.dtype}{list(target.shape)}",
            key=key,
        )


@dataclass(frozen=True, slots=True)
class Described:
    """A tensor's header and memory; `kept` keeps that memory alive."""

    header: TensorHeader
    memory: tuple[int, int]
    kept: Any


def _is_torch(tensor: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def describe(tensor: Any, *, is_target: bool = False) -> Described:
    """Return header and memory of a torch tensor or a numpy array.

    Args:
        tensor: On the CPU; others are copied there first, which a target cannot be.
        is_target: Its memory will be written into.

    Raises:
        RequestError: It is neither, or a target whose elements do not lie in one piece of writable
            memory.
    """
    if _is_torch(tensor):
        is_whole = tensor.is_contiguous() and tensor.device.type == "cpu"
        if is_target and not is_whole:
            raise RequestError("the target tensor must be contiguous and on the CPU")
        kept = tensor if is_whole else tensor.detach().to("cpu").contiguous()
        header = TensorHeader(str(kept.dtype).removeprefix("torch."), tuple(kept.shape))
        return Described(header, (kept.data_ptr(), kept.numel() * kept.element_size()), kept)
    interface = getattr(tensor, "__array_interface__", None)
    if interface is None:
        raise RequestError(f"a tensor is a torch.Tensor or a numpy array, not {type(tensor)}")
    is_whole = bool(tensor.flags.c_contiguous) and tensor.dtype.isnative
    if is_target and not (is_whole and tensor.flags.writeable):
        raise RequestError("the target array must be contiguous, writable and of native byte order")
    if tensor.dtype.hasobject or tensor.dtype.fields is not None:
        raise RequestError(f"arrays of {tensor.dtype} cannot be stored: use numbers or booleans")
    if is_whole:
        kept = tensor
    else:
        import numpy

        kept = numpy.ascontiguousarray(tensor, dtype=tensor.dtype.newbyteorder("="))
    header = TensorHeader(kept.dtype.name, tuple(tensor.shape))
    return Described(header, (kept.ctypes.data, kept.nbytes), kept)


def make(header: TensorHeader, size_bytes: int, library: str | None, key: str) -> Any:
    """Return an empty tensor for what the header says.

    Args:
        header: Of the stored tensor.
        size_bytes: Of its elements: must be what the header promises.
        library: `torch` or `numpy`; None: torch where it can be imported, else numpy.
        key: For errors.

    Raises:
        RequestError: The library does not know the dtype, or the sizes disagree.
    """
    if library is None:
        library = "torch" if _can_import_torch() else "numpy"
    if library not in ("torch", "numpy"):
        raise RequestError(f"library is torch or numpy, not {library!r}")
    made = _empty(library, header.dtype, header.shape, key)
    element = made.element_size() if library == "torch" else made.itemsize
    if math.prod(header.shape) * element != size_bytes:
        raise RequestError("the object's size is not that of its header: it is damaged", key=key)
    return made


def _can_import_torch() -> bool:
    if "torch" in sys.modules:
        return True
    from importlib.util import find_spec

    return find_spec("torch") is not None


def _empty(library: str, name: str, shape: Sequence[int], key: str) -> Any:
    if library == "torch":
        import torch

        dtype = getattr(torch, name, None)
        if not isinstance(dtype, torch.dtype):
            raise RequestError(f"this torch knows no {name}", key=key)
        return torch.empty(tuple(shape), dtype=dtype)
    import numpy

    try:
        return numpy.empty(tuple(shape), dtype=name)
    except TypeError as error:
        raise RequestError(
            f"numpy knows no {name}: read it with library='torch'", key=key, cause=error
        ) from error
