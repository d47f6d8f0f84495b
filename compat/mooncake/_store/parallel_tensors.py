"""Tensors that each rank stores its part of, read back in any other split."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from typing import Any

from mooncake._store.base import NOT_SET_UP
from mooncake._store.parallelism import Layout, ReadTarget, TensorParallelism, layout_of
from mooncake._store.replicate import ReplicateConfig
from mooncake._store.tensor_format import HEADER_BYTES, header_of, tensor_at
from mooncake._store.tensors import TensorCalls, shard_key

__all__ = ["ParallelTensorCalls"]

_MODES = ("as_stored", "shard", "full")
Parallelisms = Sequence[TensorParallelism | None] | None
Targets = Sequence[ReadTarget | None] | None


def _manifest_key(key: str) -> str:
    return f"{key}__parallelism_manifest"


class ParallelTensorCalls(TensorCalls):
    """Each rank puts its own part; a manifest says how many there are, and along which dimension.

    A part is `key_tp_RANK`, of an expert or stage `key_ep_N_tp_RANK`, `key_pp_N_tp_RANK`.  Without
    tensor parallelism it is a tensor like any other.
    """

    # ---- storing ----

    def put_tensor_with_parallelism(
        self,
        key: str,
        tensor: Any,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig | None = None,
        writer_partition: object = None,
    ) -> int:
        """Store a rank's part.

        Returns:
            0; -600 for axes, or a part, that cannot be, or that contradict other parts' axes.
            `writer_partition` is not taken: -600.
        """
        return self._put_part(key, tensor, parallelism, config, writer_partition, upsert=False)

    def upsert_tensor_with_parallelism(
        self,
        key: str,
        tensor: Any,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig | None = None,
        writer_partition: object = None,
    ) -> int:
        """As put_tensor_with_parallelism, in place of what was there."""
        return self._put_part(key, tensor, parallelism, config, writer_partition, upsert=True)

    def put_tensor_with_parallelism_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig | None = None,
        writer_partition: object = None,
    ) -> int:
        """As put_tensor_with_parallelism, of the part that lies with its header at an address."""
        part = tensor_at(buffer_ptr, size)
        return self._put_part(key, part, parallelism, config, writer_partition, upsert=False)

    def upsert_tensor_with_parallelism_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        parallelism: TensorParallelism | None = None,
        config: ReplicateConfig | None = None,
        writer_partition: object = None,
    ) -> int:
        """As upsert_tensor_with_parallelism, of the part that lies at an address."""
        part = tensor_at(buffer_ptr, size)
        return self._put_part(key, part, parallelism, config, writer_partition, upsert=True)

    def batch_put_tensor_with_parallelism(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[Any],
        parallelisms: Parallelisms = None,
        config: ReplicateConfig | None = None,
        writer_partitions: object = None,
    ) -> list[int]:
        """Store parts; for each key what put_tensor_with_parallelism answers."""
        return self._put_parts(
            keys, tensors_list, parallelisms, config, writer_partitions, upsert=False
        )

    def batch_upsert_tensor_with_parallelism(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[Any],
        parallelisms: Parallelisms = None,
        config: ReplicateConfig | None = None,
        writer_partitions: object = None,
    ) -> list[int]:
        """As batch_put_tensor_with_parallelism, in place of what was there."""
        return self._put_parts(
            keys, tensors_list, parallelisms, config, writer_partitions, upsert=True
        )

    def batch_put_tensor_with_parallelism_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Parallelisms = None,
        config: ReplicateConfig | None = None,
        writer_partitions: object = None,
    ) -> list[int]:
        """As batch_put_tensor_with_parallelism, of parts that lie at addresses."""
        parts = _parts_at(keys, buffer_ptrs, sizes)
        return self._put_parts(keys, parts, parallelisms, config, writer_partitions, upsert=False)

    def batch_upsert_tensor_with_parallelism_from(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        parallelisms: Parallelisms = None,
        config: ReplicateConfig | None = None,
        writer_partitions: object = None,
    ) -> list[int]:
        """As batch_upsert_tensor_with_parallelism, of parts that lie at addresses."""
        parts = _parts_at(keys, buffer_ptrs, sizes)
        return self._put_parts(keys, parts, parallelisms, config, writer_partitions, upsert=True)

    def _put_parts(
        self,
        keys: Sequence[str],
        tensors: Sequence[Any],
        parallelisms: Parallelisms,
        config: ReplicateConfig | None,
        writer_partitions: object,
        *,
        upsert: bool,
    ) -> list[int]:
        given = [None] * len(keys) if parallelisms is None else list(parallelisms)
        if not len(keys) == len(tensors) == len(given):
            return [NOT_SET_UP] * len(keys)
        return [
            self._put_part(key, tensor, axes, config, writer_partitions, upsert=upsert)
            for key, tensor, axes in zip(keys, tensors, given, strict=True)
        ]

    def _put_part(
        self,
        key: str,
        tensor: Any,
        parallelism: TensorParallelism | None,
        config: ReplicateConfig | None,
        writer_partition: object,
        *,
        upsert: bool,
    ) -> int:
        layout = layout_of(parallelism)
        if layout is None or writer_partition is not None:
            self._log("a part cannot be stored: its axes cannot be, or writer_partition is given")
            return NOT_SET_UP
        base = key + layout.suffix
        if layout.size == 1:
            return self._put_tensors([base], [tensor], config, upsert=upsert)[0]
        dimensions = getattr(tensor, "dim", lambda: 0)()
        if not -dimensions <= layout.split_dim < dimensions:
            return NOT_SET_UP
        split_dim = layout.split_dim % dimensions
        wanted = (layout.size, split_dim)
        written = json.dumps({"size": layout.size, "split_dim": split_dim}).encode()
        known = self._manifest(base)
        if known != wanted:
            if known is not None and not upsert:
                self._log(f"{base!r} is stored in {known[0]} parts along dimension {known[1]}")
                return NOT_SET_UP
            number = (self.upsert if upsert else self.put)(_manifest_key(base), written, config)
            if number < 0 or self._manifest(base) != wanted:
                return min(number, 0) or NOT_SET_UP
        names = [shard_key(base, layout.rank)]
        return self._put_tensors(names, [tensor], config, upsert=upsert)[0]

    def _manifest(self, base: str) -> tuple[int, int] | None:
        """Return how many parts there are, and along which dimension; None: it is not known."""
        try:
            read = json.loads(self.get(_manifest_key(base)))
            return int(read["size"]), int(read["split_dim"])
        except (ValueError, KeyError, TypeError):
            return None

    # ---- reading ----

    def get_tensor_with_parallelism(self, key: str, target: ReadTarget | None = None) -> Any:
        """Return a tensor as `target` wants it; None: it, or a part of it, is not there.

        Raises:
            RuntimeError: The target's mode is not known.
        """
        target = target or ReadTarget()
        if target.mode not in _MODES:
            raise RuntimeError(f"ReadTarget.mode is one of {', '.join(_MODES)}: {target.mode!r}")
        layout = layout_of(target.parallelism)
        if layout is None:
            return None
        base = key + layout.suffix
        stored = self._manifest(base)
        if stored is None:
            whole = self.get_tensor(base)
            return _part(whole, layout) if target.mode == "shard" else whole
        if target.mode == "as_stored":
            return self.get_tensor(shard_key(base, layout.rank))
        if target.mode == "shard" and target.parallelism is not None:
            return self._read_part(base, stored, layout)
        return None if target.mode == "shard" else self._join(base, stored, 0, stored[0])

    def _read_part(self, base: str, stored: tuple[int, int], layout: Layout) -> Any:
        size, split_dim = stored
        first = self.get_tensor(shard_key(base, 0))
        if first is None or not -first.dim() <= layout.split_dim < first.dim():
            return None
        if layout.split_dim % first.dim() != split_dim:
            return _part(self._join(base, stored, 0, size), layout)
        length = first.shape[split_dim]
        if length * size % layout.size:
            return None
        wanted = length * size // layout.size
        begin = layout.rank * wanted
        from_rank, to_rank = begin // length, -(-(begin + wanted) // length)
        joined = self._join(base, stored, from_rank, to_rank)
        if joined is None:
            return None
        return joined.narrow(split_dim, begin - from_rank * length, wanted).contiguous()

    def _join(self, base: str, stored: tuple[int, int], begin: int, end: int) -> Any:
        """Return the parts from `begin` to before `end` as one tensor; None: one is not there."""
        parts = self.batch_get_tensor([shard_key(base, rank) for rank in range(begin, end)])
        if any(part is None for part in parts):
            return None
        import torch

        return parts[0] if len(parts) == 1 else torch.cat(parts, stored[1])

    def batch_get_tensor_with_parallelism(
        self, keys: Sequence[str], targets: Targets = None
    ) -> list[Any]:
        """Return for each key what get_tensor_with_parallelism does."""
        given = [None] * len(keys) if targets is None else list(targets)
        if len(given) != len(keys):
            return [None] * len(keys)
        return [
            self.get_tensor_with_parallelism(key, target)
            for key, target in zip(keys, given, strict=True)
        ]

    def get_tensor_with_parallelism_into(
        self, key: str, buffer_ptr: int, size: int, target: ReadTarget | None = None
    ) -> Any:
        """As get_tensor_with_parallelism, with its header at an address; None: there is no room."""
        found = self.get_tensor_with_parallelism(key, target)
        if found is None or buffer_ptr <= 0:
            return None
        found = found.contiguous()
        header = header_of(found)
        if HEADER_BYTES + header.size_bytes > size:
            return None
        ctypes.memmove(buffer_ptr, header.encode(), HEADER_BYTES)
        ctypes.memmove(buffer_ptr + HEADER_BYTES, found.data_ptr(), header.size_bytes)
        return tensor_at(buffer_ptr, size)

    def batch_get_tensor_with_parallelism_into(
        self,
        keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        targets: Targets = None,
    ) -> list[Any]:
        """Return for each key what get_tensor_with_parallelism_into does."""
        given = [None] * len(keys) if targets is None else list(targets)
        if not len(keys) == len(buffer_ptrs) == len(sizes) == len(given):
            return [NOT_SET_UP] * len(keys)
        return [
            self.get_tensor_with_parallelism_into(*each)
            for each in zip(keys, buffer_ptrs, sizes, given, strict=True)
        ]


def _part(whole: Any, layout: Layout) -> Any:
    """Return a rank's part of a whole tensor; None: it has none."""
    if whole is None or not -whole.dim() <= layout.split_dim < whole.dim():
        return None
    if whole.shape[layout.split_dim] % layout.size:
        return None
    return whole.chunk(layout.size, layout.split_dim)[layout.rank].contiguous()


def _parts_at(keys: Sequence[str], addresses: Sequence[int], sizes: Sequence[int]) -> list[Any]:
    if not len(keys) == len(addresses) == len(sizes):
        return []
    return [tensor_at(at, size) for at, size in zip(addresses, sizes, strict=True)]
