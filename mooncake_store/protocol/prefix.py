"""Keys of token prefixes: a chain of hashes, one a full block.

    h(0)     = SHA-256("mooncake-store prefix 1" 0x00, u32 length of namespace, namespace,
                       u32 block_size)
    h(i + 1) = SHA-256(h(i), the block's token ids as u32)           all little-endian
    key(i)   = "p1-" + hexadecimal h(i + 1)

So a key names its block together with everything before it, in one namespace.  SHA-256, because
tenants must not be able to make two prefixes collide; at 1.5 GB/s a block of 256 tokens costs under
a microsecond.  docs/prefix-keys.md has golden vectors.
"""

from __future__ import annotations

import hashlib
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mooncake_store.errors import RequestError

__all__ = ["chain_digests", "prefix_keys", "prefix_start"]

_LABEL = b"mooncake-store prefix 1\0"


def _token_bytes(token_ids: Iterable[int]) -> memoryview:
    """All token ids as u32, little-endian."""
    numbers: Any = token_ids
    dtype = getattr(numbers, "dtype", None)
    if dtype is not None and hasattr(numbers, "astype"):  # numpy
        if numbers.ndim != 1:
            raise RequestError("token ids are one flat sequence")
        if numbers.size and (numbers.min() < 0 or numbers.max() > 0xFFFFFFFF):
            raise RequestError("a token id is a number from 0 to 4294967295")
        return memoryview(numbers.astype("<u4").tobytes())
    if dtype is not None and hasattr(numbers, "tolist"):  # torch
        token_ids = numbers.tolist()
    try:
        packed = array("I", token_ids)
    except (OverflowError, TypeError, ValueError) as error:
        raise RequestError("a token id is a number from 0 to 4294967295", cause=error) from error
    if sys.byteorder == "big":
        packed.byteswap()
    return memoryview(packed.tobytes())


def chain_digests(
    state: bytes,
    token_ids: Sequence[int] | Iterable[int],
    block_size: int,
    extras: Mapping[int, bytes] | None = None,
) -> Iterator[bytes]:
    """Yield h(1), h(2), ... of each full block, given h(0).

    Args:
        state: h(0): 32 bytes that stand for whatever must not share keys.
        token_ids: Any sequence of numbers from 0 to 2**32 - 1; numpy and torch too.
        block_size: Tokens of a block.
        extras: By number of a block, what its tokens do not tell (an image's hash); it follows
            them, with its length before it.
    """
    data = _token_bytes(token_ids)
    step = 4 * block_size
    for index, at in enumerate(range(0, len(data) - step + 1, step)):
        block = hashlib.sha256(state + data[at : at + step])
        if extras and (extra := extras.get(index)) is not None:
            block.update(struct.pack("<I", len(extra)) + extra)
        state = block.digest()
        yield state


def prefix_start(block_size: int, namespace: str = "") -> bytes:
    """Return h(0) of `prefix_keys`, for `chain_digests`.

    Args:
        block_size: Tokens of a block.
        namespace: What must not share keys.

    Raises:
        RequestError: A block size that cannot be.
    """
    if not isinstance(block_size, int) or not 0 < block_size < 2**32:
        raise RequestError(f"block_size is a number above 0, not {block_size!r}")
    space = namespace.encode()
    head = _LABEL + struct.pack("<I", len(space)) + space + struct.pack("<I", block_size)
    return hashlib.sha256(head).digest()


def prefix_keys(
    token_ids: Sequence[int] | Iterable[int], block_size: int = 256, namespace: str = ""
) -> list[str]:
    """Return one key for each full block of `token_ids`, in order.

    Args:
        token_ids: Any sequence of numbers from 0 to 2**32 - 1; numpy and torch too.
        block_size: Tokens of a block.  The rest that fills no block has no key.
        namespace: What must not share keys: model, revision, dtype, layout, tenant's salt.

    Raises:
        RequestError: A token id or block size that cannot be.

    Example:
        >>> keys = prefix_keys(range(600), block_size=256, namespace="llama-3-8b")
        >>> len(keys), keys[0] == prefix_keys(range(256), 256, "llama-3-8b")[0]
        (2, True)
    """
    state = prefix_start(block_size, namespace)
    return ["p1-" + digest.hex() for digest in chain_digests(state, token_ids, block_size)]
