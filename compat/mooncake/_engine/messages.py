"""A message on a connection: a head, what it is, its bytes; and what a receiver is handed.

    offset  bytes
    0       4      `MSGE`
    4       1      version, 1
    5       1      0 data, 1 a tensor
    6       2      bytes of the description
    8       8      bytes of the message
    16             the description, JSON: of a tensor its dtype and shape; then the message

Numbers are little-endian.  The answer is one byte, 0 when the receiver's callback has returned.
"""

from __future__ import annotations

import io
import json
import socket
import struct
from typing import Any

__all__ = ["BYTES_MAX", "MessageError", "ReceivedData", "ReceivedTensor", "receive", "send"]

BYTES_MAX = 1 << 32
_HEAD = struct.Struct("<4sBBHQ")
_MAGIC, _VERSION = b"MSGE", 1
_DATA, _TENSOR = 0, 1
_STEP = 1 << 20


class MessageError(Exception):
    """What came is no message."""


class ReceivedData(dict[str, Any]):
    """What a data callback gets: `source` and `data`, as a dict has them and by these names."""

    @property
    def source_address(self) -> str:
        """The sender's `host:port`."""
        return str(self["source"])

    @property
    def data_size(self) -> int:
        """Bytes."""
        return len(self["data"])

    def get_bytes(self) -> bytes:
        """Return the bytes."""
        return bytes(self["data"])

    def get_memory_view(self) -> memoryview:
        """Return the bytes, without a copy."""
        return memoryview(self["data"])


class ReceivedTensor(dict[str, Any]):
    """What a tensor callback gets: `source`, `data` in row order, `dtype` and `shape`."""

    @property
    def source_address(self) -> str:
        """The sender's `host:port`."""
        return str(self["source"])

    @property
    def dtype(self) -> str:
        """As torch names it: `float32`."""
        return str(self["dtype"])

    @property
    def shape(self) -> list[int]:
        """Of each dimension."""
        return list(self["shape"])

    @property
    def total_bytes(self) -> int:
        """Bytes."""
        return len(self["data"])

    def get_data_size(self) -> int:
        """Return how many bytes there are."""
        return self.total_bytes

    def get_data_as_bytes(self) -> bytes:
        """Return the elements, in row order."""
        return bytes(self["data"])

    def get_memory_view(self) -> memoryview:
        """Return the elements, without a copy."""
        return memoryview(self["data"])


def send(
    connection: socket.socket, data: memoryview, tensor: tuple[str, list[int]] | None = None
) -> None:
    """Send a message.

    Args:
        connection: To the receiver.
        data: Bytes.
        tensor: Dtype and shape, if they are a tensor's.

    Raises:
        OSError: The connection broke, or the receiver took nothing for as long as its timeout.
    """
    described = b""
    if tensor is not None:
        described = json.dumps({"dtype": tensor[0], "shape": tensor[1]}).encode()
    kind = _DATA if tensor is None else _TENSOR
    head = _HEAD.pack(_MAGIC, _VERSION, kind, len(described), data.nbytes)
    _put(connection, memoryview(head + described))
    _put(connection, data)


def receive(
    connection: socket.socket, source: str, timeout_s: float
) -> ReceivedData | ReceivedTensor | None:
    """Return the next message, for which there is time; None: the sender has ended.

    Args:
        connection: To the sender.
        source: Who that is.
        timeout_s: How long the sender may keep silent within a message.

    Raises:
        MessageError: What comes is no message; the connection is of no use any more.
        OSError: The connection broke, or the sender kept silent.
    """
    connection.settimeout(None)
    first = connection.recv(1)
    if not first:
        return None
    connection.settimeout(timeout_s)
    head = first + _take(connection, _HEAD.size - 1)
    magic, version, kind, described_bytes, size = _HEAD.unpack(head)
    if (magic, version) != (_MAGIC, _VERSION) or kind not in (_DATA, _TENSOR):
        raise MessageError("this is no message of mooncake.engine's RpcInterface")
    if size > BYTES_MAX:
        raise MessageError(f"a message of {size} bytes is larger than {BYTES_MAX}")
    described = _take(connection, described_bytes)
    data = _take(connection, size)
    if kind == _DATA:
        return ReceivedData(source=source, data=data)
    try:
        told = json.loads(described)
        dtype, shape = str(told["dtype"]), [int(length) for length in told["shape"]]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise MessageError("a tensor without dtype and shape") from error
    if any(length < 0 for length in shape):
        raise MessageError("a tensor with a length below 0")
    return ReceivedTensor(source=source, data=data, dtype=dtype, shape=shape)


def _put(connection: socket.socket, data: memoryview) -> None:
    # Not sendall(), whose timeout is for all of it: a large message over a slow link takes longer.
    while data.nbytes:
        data = data[connection.send(data[:_STEP]) :]


def _take(connection: socket.socket, size: int) -> bytes:
    # What is asked for grows with what has come: a head alone reserves no memory.
    taken = io.BytesIO()
    while (left := size - taken.tell()) > 0:
        part = connection.recv(min(_STEP, left))
        if not part:
            raise MessageError("the sender has ended within a message")
        taken.write(part)
    return taken.getvalue()  # its own bytes, no copy
