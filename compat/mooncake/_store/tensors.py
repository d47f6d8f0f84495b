"""Tensors, whole and as the shards of tensor parallelism.

The shards of `key` are objects of their own: `key_tp_0`, `key_tp_1`, ...
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from mooncake._store.base import NOT_SET_UP
from mooncake._store.replicate import ReplicateConfig
from mooncake._store.sessions import SessionCalls
from mooncake._store.tensor_format import (
    HEADER_BYTES,
    as_tensor,
    header_of,
    tensor_at,
    tensor_of,
)

__all__ = ["TensorCalls", "shard_key"]


def shard_key(key: str, rank: int) -> str:
    """Return the key of one shard."""
    return f"{key}_tp_{rank}"


def _shards(tensor: Any, size: int, split_dim: int) -> list[Any] | None:
    """Return equal parts of a tensor; None: it has none."""
    if tensor is None or not -tensor.dim() <= split_dim < tensor.dim():
        return None
    if tensor.shape[split_dim] % size:
        return None
    return list(tensor.chunk(size, split_dim))


class TensorCalls(SessionCalls):
    """Tensors of torch.  Shape and dtype are kept; what is on a device is copied by the host."""

    # ---- whole tensors ----

    def put_tensor(self, key: str, tensor: Any) -> int:
        """Store a tensor: 0, or -600 when it is none."""
        return self._put_tensors([key], [tensor], None)[0]

    def batch_put_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        """Store tensors; for each key what put_tensor answers."""
        return self._put_tensors(keys, tensors_list, None)

    def pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig | None = None) -> int:
        """As put_tensor, with wishes."""
        return self._put_tensors([key], [tensor], config)[0]

    def batch_pub_tensor(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[Any],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """As batch_put_tensor, with wishes."""
        return self._put_tensors(keys, tensors_list, config)

    def upsert_tensor(self, key: str, tensor: Any) -> int:
        """Store a tensor in place of whatever the key named."""
        return self._put_tensors([key], [tensor], None, upsert=True)[0]

    def batch_upsert_tensor(self, keys: Sequence[str], tensors_list: Sequence[Any]) -> list[int]:
        """As batch_put_tensor, in place of whatever the keys named."""
        return self._put_tensors(keys, tensors_list, None, upsert=True)

    def upsert_pub_tensor(
        self, key: str, tensor: Any, config: ReplicateConfig | None = None
    ) -> int:
        """As upsert_tensor, with wishes."""
        return self._put_tensors([key], [tensor], config, upsert=True)[0]

    def batch_upsert_pub_tensor(
        self,
        keys: Sequence[str],
        tensors_list: Sequence[Any],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """As batch_upsert_tensor, with wishes."""
        return self._put_tensors(keys, tensors_list, config, upsert=True)

    def get_tensor(self, key: str) -> Any:
        """Return a tensor; None: it is not there, or no tensor."""
        return self.batch_get_tensor([key])[0]

    def batch_get_tensor(self, keys: Sequence[str]) -> list[Any]:
        """Return for each key what get_tensor does."""
        return [
            None if handle is None else tensor_of(handle) for handle in self.batch_get_buffer(keys)
        ]

    def _put_tensors(
        self,
        keys: Sequence[str],
        tensors: Sequence[Any],
        config: ReplicateConfig | None,
        *,
        upsert: bool = False,
    ) -> list[int]:
        if len(keys) != len(tensors):
            return [NOT_SET_UP] * len(keys)
        kept = [as_tensor(tensor) for tensor in tensors]
        numbers = [NOT_SET_UP] * len(keys)
        good = [index for index, tensor in enumerate(kept) if tensor is not None]
        if config is not None and config.group_ids is not None and len(good) != len(keys):
            return numbers  # groups name all of the keys
        headers = [ctypes.create_string_buffer(header_of(kept[at]).encode()) for at in good]
        stored = self._put_addresses(
            [keys[at] for at in good],
            [
                [ctypes.addressof(header), kept[at].data_ptr()]
                for header, at in zip(headers, good, strict=True)
            ],
            [[HEADER_BYTES, kept[at].numel() * kept[at].element_size()] for at in good],
            config,
            upsert=upsert,
        )
        for at, number in zip(good, stored, strict=True):
            numbers[at] = number
        return numbers

    # ---- in memory of the caller ----

    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """Store the tensor that lies, with its header, at an address: 0, or -600 for none."""
        return self.batch_put_tensor_from([key], [buffer_ptr], [size])[0]

    def batch_put_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """Store tensors that lie at addresses; for each key what put_tensor_from answers."""
        return self._put_tensors_from(keys, buffer_ptrs, sizes, upsert=False)

    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """As put_tensor_from, in place of whatever the key named."""
        return self._put_tensors_from([key], [buffer_ptr], [size], upsert=True)[0]

    def batch_upsert_tensor_from(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """As batch_put_tensor_from, in place of whatever the keys named."""
        return self._put_tensors_from(keys, buffer_ptrs, sizes, upsert=True)

    def _put_tensors_from(
        self,
        keys: Sequence[str],
        addresses: Sequence[int],
        sizes: Sequence[int],
        *,
        upsert: bool,
    ) -> list[int]:
        if not len(keys) == len(addresses) == len(sizes):
            return [NOT_SET_UP] * len(keys)
        tensors = [tensor_at(at, size) for at, size in zip(addresses, sizes, strict=True)]
        return self._put_tensors(keys, tensors, None, upsert=upsert)

    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> Any:
        """Read a tensor, with its header, to an address; return it over that memory, or None."""
        return self.batch_get_tensor_into([key], [buffer_ptr], [size])[0]

    def batch_get_tensor_into(
        self, keys: Sequence[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[Any]:
        """Return for each key what get_tensor_into does; -600 when the lists do not fit."""
        if not len(keys) == len(buffer_ptrs) == len(sizes):
            return [NOT_SET_UP] * len(keys)
        read = self._get_addresses(list(keys), buffer_ptrs, sizes, None, is_exact=False)
        return [
            None if count < 0 else tensor_at(address, count)
            for address, count in zip(buffer_ptrs, read, strict=True)
        ]

    def get_tensor_into_cuda(self, key: str, tensor: Any) -> int:
        """Read into a tensor of the same dtype and shape, on a device or not: 0 or a number."""
        return self.batch_get_tensor_into_cuda([key], [tensor])[0]

    def batch_get_tensor_into_cuda(
        self, keys: Sequence[str], tensors_list: Sequence[Any]
    ) -> list[int]:
        """Return for each key what get_tensor_into_cuda does."""
        if len(keys) != len(tensors_list):
            return [NOT_SET_UP] * len(keys)
        answers = []
        for key, target in zip(keys, tensors_list, strict=True):
            size = self.get_size(key)
            found = self.get_tensor(key) if size >= 0 else None
            if found is None:
                answers.append(min(size, 0) or NOT_SET_UP)
            elif found.shape != target.shape or found.dtype != target.dtype:
                answers.append(NOT_SET_UP)
            else:
                target.copy_(found)
                answers.append(0)
        return answers

    # ---- tensor parallelism ----

    def put_tensor_with_tp(
        self, key: str, tensor: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> int:
        """Store a whole tensor as `tp_size` shards along `split_dim`, whichever rank calls.

        Returns:
            0, or -600 when it cannot be split into equal parts.
        """
        del tp_rank
        return self._put_shards([key], [tensor], None, tp_size, split_dim)[0]

    def batch_put_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[Any],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """Store whole tensors as shards; for each key what put_tensor_with_tp answers."""
        del tp_rank
        return self._put_shards(base_keys, tensors_list, None, tp_size, split_dim)

    def pub_tensor_with_tp(
        self,
        key: str,
        tensor: Any,
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """As put_tensor_with_tp, with wishes."""
        del tp_rank
        return self._put_shards([key], [tensor], config, tp_size, split_dim)[0]

    def batch_pub_tensor_with_tp(
        self,
        base_keys: Sequence[str],
        tensors_list: Sequence[Any],
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """As batch_put_tensor_with_tp, with wishes; those have no groups."""
        del tp_rank
        return self._put_shards(base_keys, tensors_list, config, tp_size, split_dim)

    def put_tensor_with_tp_from(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """As put_tensor_with_tp, of the tensor that lies with its header at an address."""
        return self.batch_put_tensor_with_tp_from(
            [key], [buffer_ptr], [size], tp_rank, tp_size, split_dim
        )[0]

    def batch_put_tensor_with_tp_from(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """As batch_put_tensor_with_tp, of tensors that lie with their headers at addresses."""
        del tp_rank
        if not len(base_keys) == len(buffer_ptrs) == len(sizes):
            return [NOT_SET_UP] * len(base_keys)
        tensors = [tensor_at(at, size) for at, size in zip(buffer_ptrs, sizes, strict=True)]
        return self._put_shards(base_keys, tensors, None, tp_size, split_dim)

    def _put_shards(
        self,
        keys: Sequence[str],
        tensors: Sequence[Any],
        config: ReplicateConfig | None,
        tp_size: int,
        split_dim: int,
    ) -> list[int]:
        if tp_size <= 1:
            return self._put_tensors(keys, tensors, config)
        if len(keys) != len(tensors) or (config is not None and config.group_ids is not None):
            return [NOT_SET_UP] * len(keys)
        numbers = []
        for key, tensor in zip(keys, tensors, strict=True):
            shards = _shards(as_tensor(tensor), tp_size, split_dim)
            if shards is None:
                numbers.append(NOT_SET_UP)
                continue
            names = [shard_key(key, rank) for rank in range(tp_size)]
            numbers.append(min(self._put_tensors(names, shards, config)))
        return numbers

    def get_tensor_with_tp(
        self, key: str, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> Any:
        """Return the shard of a rank as it was stored, whatever `split_dim`; None: not there."""
        del split_dim
        return self.batch_get_tensor_with_tp([key], tp_rank, tp_size)[0]

    def batch_get_tensor_with_tp(
        self, base_keys: Sequence[str], tp_rank: int = 0, tp_size: int = 1
    ) -> list[Any]:
        """Return for each key what get_tensor_with_tp does."""
        return self.batch_get_tensor(_ranked(base_keys, tp_rank, tp_size))

    def get_tensor_with_tp_into(
        self,
        key: str,
        buffer_ptr: int,
        size: int,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> Any:
        """As get_tensor_into, of the shard of a rank."""
        del split_dim
        return self.batch_get_tensor_with_tp_into([key], [buffer_ptr], [size], tp_rank, tp_size)[0]

    def batch_get_tensor_with_tp_into(
        self,
        base_keys: Sequence[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        tp_rank: int = 0,
        tp_size: int = 1,
    ) -> list[Any]:
        """As batch_get_tensor_into, of the shards of a rank."""
        keys = _ranked(base_keys, tp_rank, tp_size)
        return self.batch_get_tensor_into(keys, buffer_ptrs, sizes)


def _ranked(keys: Sequence[str], rank: int, size: int) -> list[str]:
    return list(keys) if size <= 1 else [shard_key(key, rank) for key in keys]
