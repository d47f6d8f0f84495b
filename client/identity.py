"""What makes one KV cache another than the next, and the keys that follow from it.

    d    = SHA-256("mooncake-store identity 1" 0x00,
                   u32 length and UTF-8 of each: tenant, model, revision, dtype, layout,
                   u32 each: tp_size, tp_rank, pp_size, pp_rank, cp_size, cp_rank, block_size)
    h(0) = d, or with salts SHA-256("mooncake-store salt 1" 0x00, d, u32 length and UTF-8 of each)
    h(i + 1) = as of protocol/prefix.py
    key(i)   = "c1-" + the first 16 bytes of d + "-" + h(i + 1)         both in hexadecimal

Every text has its length before it, so that no two identities read the same.  All keys of one
identity begin alike: they can be listed and removed together.  16 bytes are enough there: whoever
wants another's prefix needs a second preimage (2**128), and a pair that collides has one owner.
docs/identity.md has golden vectors.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mooncake_store.errors import RequestError
from mooncake_store.protocol.prefix import chain_digests

__all__ = ["CacheIdentity", "ParallelShape"]

_LABEL = b"mooncake-store identity 1\0"
_SALT_LABEL = b"mooncake-store salt 1\0"
_NUMBER_MAX = 2**32 - 1
_NAME_BYTES_MAX = 64


def _framed(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


@dataclass(frozen=True, slots=True)
class ParallelShape:
    """Which part of a block's cache an object holds, and in how many parts the block lies.

    Attributes:
        tp_size, tp_rank: Tensor parallelism.  Ranks that hold equal bytes (latent attention, fewer
            KV heads than ranks) count once: let them share a rank.
        pp_size, pp_rank: Pipeline stages, each with layers of its own.
        cp_size, cp_rank: Context parallelism.
    """

    tp_size: int = 1
    tp_rank: int = 0
    pp_size: int = 1
    pp_rank: int = 0
    cp_size: int = 1
    cp_rank: int = 0

    def __post_init__(self) -> None:
        for kind in ("tp", "pp", "cp"):
            size, rank = getattr(self, f"{kind}_size"), getattr(self, f"{kind}_rank")
            for number in (size, rank):
                if not isinstance(number, int) or isinstance(number, bool):
                    raise RequestError(f"{kind}_size and {kind}_rank are whole numbers")
            if not 0 <= rank < size <= _NUMBER_MAX:
                raise RequestError(f"{kind}_rank {rank} is none of {kind}_size {size}")

    def ranks(self) -> list[ParallelShape]:
        """Return all parts of a block: pipeline stages first, then context, then tensor ranks."""
        return [
            replace(self, pp_rank=pp, cp_rank=cp, tp_rank=tp)
            for pp in range(self.pp_size)
            for cp in range(self.cp_size)
            for tp in range(self.tp_size)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheIdentity:
    """Everything that two caches must have in common to share keys.

    Equal on every machine, in every process and version of Python.

    Attributes:
        model: Its name, as everybody who shares the cache calls it.
        dtype: Of the cache: `bfloat16`, `fp8_e4m3`, ...
        layout: How an object's bytes lie: order of dimensions, layers, heads, head size.  Whoever
            writes the bytes describes them.
        block_size: Tokens of a block.
        revision: Of the model's weights: a commit, or a fingerprint of its files.
        tenant: Trust domain; a secret here keeps others from guessing keys.
        parallel: Which part of a block's cache an object holds.

    Raises:
        RequestError: A field that cannot be.

    Example:
        >>> identity = CacheIdentity(
        ...     model="llama-3-8b", dtype="bfloat16", layout="layers,kv,tokens,8,128", block_size=16
        ... )
        >>> len(identity.prefix_keys(range(40)))
        2
    """

    model: str
    dtype: str
    layout: str
    block_size: int
    revision: str = ""
    tenant: str = ""
    parallel: ParallelShape = ParallelShape()
    _digest: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("tenant", "model", "revision", "dtype", "layout"):
            text = getattr(self, name)
            if not isinstance(text, str):
                raise RequestError(f"{name} is a text, not {text!r}")
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise RequestError(f"{name} is no Unicode text", cause=error) from error
        for name in ("model", "dtype", "layout"):
            if not getattr(self, name):
                raise RequestError(f"{name} says what caches may share: it cannot be empty")
        if (
            not isinstance(self.block_size, int)
            or isinstance(self.block_size, bool)
            or not 0 < self.block_size <= _NUMBER_MAX
        ):
            raise RequestError(f"block_size is a number above 0, not {self.block_size!r}")
        if not isinstance(self.parallel, ParallelShape):
            raise RequestError(f"parallel is a ParallelShape, not {self.parallel!r}")
        object.__setattr__(self, "_digest", self._make_digest())

    def _make_digest(self) -> bytes:
        shape = self.parallel
        texts = (self.tenant, self.model, self.revision, self.dtype, self.layout)
        numbers = struct.pack(
            "<7I",
            shape.tp_size, shape.tp_rank, shape.pp_size, shape.pp_rank,
            shape.cp_size, shape.cp_rank, self.block_size,
        )  # fmt: skip
        return hashlib.sha256(_LABEL + b"".join(map(_framed, texts)) + numbers).digest()

    @property
    def digest(self) -> bytes:
        """SHA-256 of all fields."""
        return self._digest

    @property
    def prefix(self) -> str:
        """What all keys of this identity, and of no other, begin with."""
        return f"c1-{self._digest[:16].hex()}-"

    def with_parallel(self, parallel: ParallelShape) -> CacheIdentity:
        """Return the identity of another part of the same cache."""
        return replace(self, parallel=parallel)

    def prefix_keys(
        self,
        token_ids: Sequence[int] | Iterable[int],
        *,
        salts: Sequence[str] = (),
        extras: Mapping[int, bytes] | None = None,
    ) -> list[str]:
        """Return one key for each full block of `token_ids`, in order.

        Args:
            token_ids: Any sequence of numbers from 0 to 2**32 - 1; numpy and torch too.
            salts: What separates requests to one model, each in its place: an adapter's name, a
                user's cache salt.  Not the same as none: `[""]`.
            extras: By number of a block, what its tokens do not tell: the hashes of its images.
        """
        state = self._digest
        if salts:
            state = hashlib.sha256(_SALT_LABEL + state + b"".join(map(_framed, salts))).digest()
        prefix = self.prefix
        return [
            prefix + digest.hex()
            for digest in chain_digests(state, token_ids, self.block_size, extras)
        ]

    def key(self, name: bytes | str) -> str:
        """Return the key of a block that an engine has named itself, by a hash of its own.

        Args:
            name: The engine's name: it must stand for the block and everything before it.  Equal
                bytes and text are one name.
        """
        data = name.encode() if isinstance(name, str) else bytes(name)
        if not data:
            raise RequestError("a block's name cannot be empty")
        # `n` and `h` are no hexadecimal digits: such a key is never one of a chain.
        if len(data) <= _NAME_BYTES_MAX:
            return f"{self.prefix}n{data.hex()}"
        return f"{self.prefix}h{hashlib.sha256(data).hexdigest()}"
