"""Which instance holds the KV cache of which prefix: one index for all instances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from mooncake_store._native import ffi, lib
from mooncake_store.errors import LimitError, RequestError

__all__ = ["KEY_BYTES", "PrefixIndex", "PrefixMatch", "Tier", "pack_keys"]

KEY_BYTES = 16
"""A block's key in the index: 16 bytes of its hash."""


class Tier(IntEnum):
    """Where an instance has a block, the nearest first."""

    DEVICE = 0
    DRAM = 1
    SSD = 2


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """How many leading blocks one instance holds.

    Attributes:
        device_blocks: On the accelerator, from the first on without a gap.
        dram_blocks: On the accelerator or in DRAM.
        blocks: In any tier.
    """

    device_blocks: int
    dram_blocks: int
    blocks: int


def pack_keys(keys: Sequence[bytes | int]) -> bytes:
    """Return keys as the index takes them: 16 bytes each.

    Args:
        keys: Hashes of at least 16 bytes, of which the first 16 are taken, or whole numbers below
            2**128 (the ids of a trace).

    Raises:
        RequestError: A hash that is shorter, or a number out of range.
    """
    packed = bytearray()
    for key in keys:
        if isinstance(key, int):
            if not 0 <= key < 1 << 128:
                raise RequestError(f"{key} is no key: 0 to 2**128 - 1")
            packed += key.to_bytes(KEY_BYTES, "little")
        elif len(key) >= KEY_BYTES:
            packed += key[:KEY_BYTES]
        else:
            raise RequestError(f"a block's hash has at least {KEY_BYTES} bytes, not {len(key)}")
    return bytes(packed)


class PrefixIndex:
    """Blocks and the instances that hold them, as bits.

    Memory is taken at once, for `blocks_max` blocks; when more are known, the one that was not
    stored or matched for the longest time is forgotten, which costs a hit and never gives a wrong
    answer.  Not safe for several threads at once.

    Args:
        instances: How many; they are numbered from 0.
        tiers: How many tiers are told apart, from `Tier.DEVICE` on.
        blocks_max: Bound of the blocks that are known at a time.

    Raises:
        RequestError: Numbers that cannot be: 1 to 1024 instances, 1 to 3 tiers, 1 to 2**32 blocks.
        LimitError: Not so much memory.
    """

    def __init__(self, instances: int, *, tiers: int = 3, blocks_max: int = 1 << 20) -> None:
        if not (1 <= instances <= 1024 and 1 <= tiers <= 3 and 1 <= blocks_max <= 1 << 32):
            raise RequestError(
                f"an index has 1 to 1024 instances, 1 to 3 tiers and room for 1 to 2**32 blocks, "
                f"not {instances}, {tiers} and {blocks_max}"
            )
        handle = lib.cd_index_open(instances, tiers, blocks_max)
        if handle == ffi.NULL:
            size = self.bytes_per_block(instances, tiers) * blocks_max
            raise LimitError(f"no memory for an index of {blocks_max} blocks ({size} bytes)")
        self._handle = ffi.gc(handle, lib.cd_index_close)
        self.instances = instances
        self.tiers = tiers
        self.blocks_max = blocks_max
        self._matches: Any = ffi.new("cd_match[]", instances)
        # Three counts an instance; read at once, because cffi's own access to structs is slow.
        self._counts = memoryview(ffi.buffer(self._matches)).cast("I")
        self._words: Any = ffi.new("uint64_t[]", (instances + 63) // 64)

    @staticmethod
    def bytes_per_block(instances: int, tiers: int = 3) -> int:
        """Return the memory of one block: the key, a bit an instance and tier, and room."""
        return int(lib.cd_index_bytes_per_block(instances, tiers))

    def __len__(self) -> int:
        """How many blocks are known."""
        return int(lib.cd_index_blocks(self._handle))

    @property
    def forgotten(self) -> int:
        """How many blocks had to be forgotten for others."""
        return int(lib.cd_index_forgotten(self._handle))

    def store(self, instance: int, keys: bytes, tier: Tier = Tier.DRAM) -> None:
        """Note that an instance holds blocks now.

        Args:
            instance: Its number.
            keys: From `pack_keys`.
            tier: Where it has them.

        Raises:
            RequestError: No such instance or tier, or not whole keys.
        """
        lib.cd_index_store(self._handle, *self._change(instance, keys, tier))

    def remove(self, instance: int, keys: bytes, tier: Tier = Tier.DRAM) -> None:
        """Note that an instance does not hold blocks any more, in that tier.

        Raises:
            RequestError: No such instance or tier, or not whole keys.
        """
        lib.cd_index_remove(self._handle, *self._change(instance, keys, tier))

    def clear(self, instance: int) -> None:
        """Forget all that an instance holds; a pass over the whole table.

        Raises:
            RequestError: No such instance.
        """
        self._check(instance)
        lib.cd_index_clear(self._handle, instance)

    def clear_tier(self, instance: int, tier: Tier) -> None:
        """Forget all that an instance holds in one tier; a pass over the whole table.

        Raises:
            RequestError: No such instance or tier.
        """
        self._check(instance, tier)
        lib.cd_index_clear_tier(self._handle, instance, int(tier))

    def copy(self, source: int, target: int, tier: Tier) -> None:
        """Let an instance hold what another one holds in a tier; a pass over the whole table.

        Raises:
            RequestError: No such instances or tier.
        """
        self._check(source, tier)
        self._check(target)
        lib.cd_index_copy(self._handle, source, target, int(tier))

    def dump(self, instance: int, tier: Tier, *, step: int = 1 << 16) -> Iterator[bytes]:
        """Yield what an instance holds in a tier, packed, part by part.

        The index may change between two parts; whoever wants it exact applies those changes again
        to what was read.

        Args:
            instance: Its number.
            tier: Which.
            step: Places of the table that one part looks at.

        Raises:
            RequestError: No such instance or tier.
        """
        self._check(instance, tier)
        cursor: Any = ffi.new("uint64_t *")
        keys: Any = ffi.new("cd_key[]", step)
        while True:
            before = cursor[0]
            count = lib.cd_index_dump(self._handle, instance, int(tier), cursor, step, keys)
            if cursor[0] == before:
                return
            if count:
                yield bytes(ffi.buffer(keys, count * KEY_BYTES))

    def apply(self, events: bytes) -> int:
        """Apply packed events (`cd_event`, 24 bytes each) in order.

        Returns:
            How many made sense; the others name no instance or no tier of this index.

        Raises:
            RequestError: Not whole events.
        """
        size = ffi.sizeof("cd_event")
        if len(events) % size:
            raise RequestError(f"an event has {size} bytes: {len(events)} are not whole ones")
        array: Any = ffi.from_buffer("cd_event[]", events)
        return int(lib.cd_index_apply(self._handle, array, len(events) // size))

    def match(self, keys: bytes) -> list[PrefixMatch]:
        """Return the longest prefix that each instance holds, by instance.

        Args:
            keys: Of the request's full blocks in order, from `pack_keys`.

        Raises:
            RequestError: Not whole keys.
        """
        self._fill(keys)
        counts = iter(self._counts.tolist())
        return [PrefixMatch(*found) for found in zip(counts, counts, counts, strict=True)]

    def match_lengths(self, keys: bytes) -> list[int]:
        """Return only the lengths over all tiers, in blocks, by instance.

        Raises:
            RequestError: Not whole keys.
        """
        self._fill(keys)
        return self._counts.tolist()[2::3]

    def holders(self, key: bytes) -> list[int]:
        """Return the instances that hold a block, in any tier.

        Raises:
            RequestError: Not one key.
        """
        if len(key) != KEY_BYTES:
            raise RequestError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        lib.cd_index_holders(self._handle, ffi.from_buffer("cd_key[]", key)[0], self._words)
        return [
            word * 64 + bit
            for word, bits in enumerate(self._words)
            for bit in range(64)
            if bits >> bit & 1
        ]

    def _fill(self, keys: bytes) -> None:
        array: Any = ffi.from_buffer("cd_key[]", keys)
        lib.cd_index_match(self._handle, array, self._count(keys), self._matches)

    def _change(self, instance: int, keys: bytes, tier: Tier) -> tuple[object, ...]:
        self._check(instance, tier)
        return instance, int(tier), ffi.from_buffer("cd_key[]", keys), self._count(keys)

    def _check(self, instance: int, tier: int = 0) -> None:
        if not 0 <= instance < self.instances:
            raise RequestError(f"there are instances 0 to {self.instances - 1}, not {instance}")
        if not 0 <= tier < self.tiers:
            raise RequestError(f"this index tells {self.tiers} tiers apart: {tier} is none of them")

    @staticmethod
    def _count(keys: bytes) -> int:
        if len(keys) % KEY_BYTES:
            raise RequestError(f"keys have {KEY_BYTES} bytes each: {len(keys)} are not whole ones")
        return len(keys) // KEY_BYTES
