"""Values that prove themselves: who reads one knows of which put it is, and that it is whole."""

from __future__ import annotations

import hashlib
import struct
from typing import NamedTuple

_TOKEN = struct.Struct("<Q")
SIZE_MIN = 24
"""The token and 16 bytes that depend on key, token and size: a smaller value proves nothing."""


class Proof(NamedTuple):
    """What bytes say of themselves."""

    token: int | None
    """The token that they begin with; None when they are too short to have one."""
    is_whole: bool
    """They are, byte for byte, the value of that token under the key that was read."""


def make_value(key: str, token: int, size_bytes: int) -> bytes:
    """Return the one value of that size that the put with this token stores under the key."""
    if size_bytes < SIZE_MIN:
        raise ValueError(f"a value of {size_bytes} bytes proves nothing: at least {SIZE_MIN}")
    # The size is in the seed: a value that was cut short differs from its first page on.
    seed = b"%d %d %s" % (token, size_bytes, key.encode())
    return _TOKEN.pack(token) + hashlib.shake_128(seed).digest(size_bytes - _TOKEN.size)


def prove(key: str, value: bytes) -> Proof:
    """Say of which put the bytes are that were read under the key."""
    if len(value) < SIZE_MIN:
        return Proof(None, False)
    (token,) = _TOKEN.unpack_from(value)
    return Proof(token, value == make_value(key, token, len(value)))
