"""Files of the safetensors format: 8 bytes of length, a JSON header, the elements.

https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import os
from typing import Any

from mooncake._store.numbers import ErrorNumber
from mooncake._store.parallel_tensors import ParallelTensorCalls
from mooncake._store.tensor_format import as_tensor, header_of

__all__ = ["SafetensorsCalls"]

_FILE_NOT_FOUND = -1100
_HEADER_BYTES_MAX = 100 << 20
_NAMES = {
    "float32": "F32", "float64": "F64", "int8": "I8", "uint8": "U8", "int16": "I16",
    "uint16": "U16", "int32": "I32", "uint32": "U32", "int64": "I64", "uint64": "U64",
    "bool": "BOOL", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


class SafetensorsCalls(ParallelTensorCalls):
    """Tensors from files and into files."""

    def save_tensor_to_safetensor(
        self, key: str, file_name: str | os.PathLike[str] | None = None
    ) -> int:
        """Write a stored tensor to a file, under its key; the default is KEY.safetensors here.

        Returns:
            0; -1100 when it is not stored or no tensor; -1101 when the file cannot be written.
        """
        tensor = self.get_tensor(key)
        if tensor is None:
            return _FILE_NOT_FOUND
        header = header_of(tensor)
        described = {
            "dtype": _NAMES[header.dtype],
            "shape": list(header.shape),
            "data_offsets": [0, header.size_bytes],
        }
        text = json.dumps({key: described}).encode()
        text = text.ljust(-(-len(text) // 8) * 8)  # the elements are aligned
        import torch

        try:
            with open(file_name or f"{key}.safetensors", "wb") as file:
                file.write(len(text).to_bytes(8, "little") + text)
                file.write(memoryview(tensor.reshape(-1).view(torch.uint8).numpy()))
        except OSError as error:
            self._log(f"save_tensor_to_safetensor: {error}")
            return int(ErrorNumber.FILE_OPEN_FAIL)
        return 0

    def load_tensor_from_safetensor(
        self, key: str | None = None, file_name: str | os.PathLike[str] = ""
    ) -> Any:
        """Read the first tensor of a file, store it under `key` (else its name), and return it.

        Returns:
            The tensor, or None: the file cannot be read, or the tensor not be stored.
        """
        try:
            name, tensor = _read(file_name)
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._log(f"load_tensor_from_safetensor: {file_name}: {error}")
            return None
        return tensor if self.put_tensor(key or name, tensor) == 0 else None


def _read(path: str | os.PathLike[str]) -> tuple[str, Any]:
    """Return the first tensor of a file and its name.

    Raises:
        ValueError: It is no such file.
        OSError: It cannot be read.
    """
    import torch

    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= _HEADER_BYTES_MAX:
            raise ValueError("it is no safetensors file")
        described = json.loads(file.read(length))
        described.pop("__metadata__", None)
        name = min(described, key=lambda each: described[each]["data_offsets"])
        facts = described[name]
        begin, end = facts["data_offsets"]
        dtype = getattr(torch, _DTYPES[facts["dtype"]])
        made = torch.empty(facts["shape"], dtype=dtype)
        if end - begin != made.numel() * made.element_size():
            raise ValueError("its header contradicts itself")
        file.seek(8 + length + begin)
        data = bytearray(file.read(end - begin))
        if len(data) != end - begin:
            raise ValueError("it ends too early")
    if data:
        made = torch.frombuffer(data, dtype=dtype).reshape(facts["shape"])
    assert as_tensor(made) is not None
    return name, made
