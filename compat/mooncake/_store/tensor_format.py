"""A tensor as an object: a header of 304 bytes, then the elements in row order.

    offset  bytes
    0       4      `NOOM`
    4       2      version, 1
    6       2      bytes of the header, 304
    8       4      dtype, see DTYPES
    12      4      dimensions, at most 8
    16      8      0
    24      8      where the elements begin, 304
    32      8      bytes of the elements
    40      64     shape, -1 beyond the dimensions
    104     64     the same
    168     136    0

Numbers are little-endian.  Users make these headers themselves, for put_tensor_from: so they are
those of the package that this one stands in for.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any

from mooncake._store.memory import BufferHandle, view_at

__all__ = ["DTYPES", "HEADER_BYTES", "TensorHeader", "as_tensor", "serialize", "tensor_of"]

HEADER_BYTES = 304
_MAGIC, _VERSION, _DIMENSIONS_MAX = b"NOOM", 1, 8
_LAYOUT = struct.Struct("<4sHHiiQQQ8q8q")
DTYPES = (
    "float32",
    "float64",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "bool",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
)  # numbered from 0
_WIDTHS = (4, 8, 1, 1, 2, 2, 4, 4, 8, 8, 1, 2, 2, 1, 1)


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """Dtype and shape of a stored tensor."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Of the elements."""
        return math.prod(self.shape) * _WIDTHS[DTYPES.index(self.dtype)]

    def encode(self) -> bytes:
        """Return the 304 bytes."""
        shape = (*self.shape, *(-1,) * (_DIMENSIONS_MAX - len(self.shape)))
        packed = _LAYOUT.pack(
            _MAGIC, _VERSION, HEADER_BYTES, DTYPES.index(self.dtype), len(self.shape), 0,
            HEADER_BYTES, self.size_bytes, *shape, *shape,
        )  # fmt: skip
        return packed.ljust(HEADER_BYTES, b"\0")

    @classmethod
    def decode(cls, data: bytes | memoryview) -> TensorHeader | None:
        """Return what an object's first bytes say; None: it is no tensor, or not all of one."""
        if len(data) < HEADER_BYTES:
            return None
        fields = _LAYOUT.unpack_from(data)
        magic, version, header, dtype, dimensions, _, begin, size = fields[:8]
        if (magic, version, header, begin) != (_MAGIC, _VERSION, HEADER_BYTES, HEADER_BYTES):
            return None
        if not 0 <= dtype < len(DTYPES) or not 0 <= dimensions <= _DIMENSIONS_MAX:
            return None
        found = cls(DTYPES[dtype], tuple(fields[8 : 8 + dimensions]))
        if any(length < 0 for length in found.shape) or found.size_bytes != size:
            return None
        return found if len(data) >= HEADER_BYTES + size else None


def as_tensor(value: Any) -> Any:
    """Return a tensor of host memory in row order; None: `value` is none that can be stored."""
    import torch

    if not isinstance(value, torch.Tensor):
        return None
    if str(value.dtype).removeprefix("torch.") not in DTYPES or value.dim() > _DIMENSIONS_MAX:
        return None
    kept = value.detach()
    return (kept if kept.device.type == "cpu" else kept.cpu()).contiguous()


def header_of(tensor: Any) -> TensorHeader:
    """Return the header of what as_tensor gave."""
    return TensorHeader(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))


def serialize(value: Any) -> tuple[bytes, int, int, Any]:
    """Return header, address and bytes of the elements, and the tensor that has them.

    Raises:
        ValueError: It is no tensor, or of a dtype that is not known.
    """
    tensor = as_tensor(value)
    if tensor is None:
        raise ValueError("unsupported tensor for Mooncake tensor serialization")
    header = header_of(tensor)
    return header.encode(), tensor.data_ptr(), header.size_bytes, tensor


def tensor_of(data: bytes | bytearray | BufferHandle | memoryview) -> Any:
    """Return the tensor that an object is, over its memory; None: it is none."""
    import torch

    with memoryview(data) as view:
        header = TensorHeader.decode(view.cast("B"))
    if header is None or not isinstance(dtype := getattr(torch, header.dtype, None), torch.dtype):
        return None
    if header.size_bytes == 0:
        return torch.empty(header.shape, dtype=dtype)
    if isinstance(data, bytes):
        data = bytearray(data)  # torch wants memory that may be written
    flat = torch.frombuffer(data, dtype=dtype, offset=HEADER_BYTES, count=math.prod(header.shape))
    return flat.reshape(header.shape)


def tensor_at(address: int, size: int) -> Any:
    """Return the tensor that lies at an address, over that memory; None: there is none."""
    return None if address <= 0 or size < HEADER_BYTES else tensor_of(view_at(address, size))
