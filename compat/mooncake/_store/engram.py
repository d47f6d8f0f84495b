"""Embedding tables, one object a head, of which single rows are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mooncake._store.safetensors_file import SafetensorsCalls

__all__ = ["EngramStore", "EngramStoreConfig"]

_ELEMENT_BYTES = 4


class EngramStoreConfig:
    """Shapes of the tables of one layer: head h has `table_vocab_sizes[h]` rows."""

    def __init__(self) -> None:
        self.table_vocab_sizes = [1024]
        self.embedding_dim = 64


class EngramStore:
    """The tables of one layer, as float32.

    Args:
        layer_id: Part of the keys.
        config: Shapes.
        store: Where the tables are.
    """

    def __init__(
        self, layer_id: int, config: EngramStoreConfig, store: SafetensorsCalls | None = None
    ) -> None:
        self._rows = list(config.table_vocab_sizes)
        self._dim = config.embedding_dim
        self._keys = [f"engram:l{layer_id}:h{head}" for head in range(len(self._rows))]
        self._store = store

    def get_store_keys(self) -> list[str]:
        """Return the key of each head's table."""
        return list(self._keys)

    def get_num_heads(self) -> int:
        """Return how many tables there are."""
        return len(self._rows)

    def get_embedding_dim(self) -> int:
        """Return the elements of a row."""
        return self._dim

    def get_table_vocab_sizes(self) -> list[int]:
        """Return the rows of each table."""
        return list(self._rows)

    def populate(self, embedding_buffers: Sequence[Any]) -> None:
        """Store the tables.

        Args:
            embedding_buffers: One float32 array (rows, dim) a head.

        Raises:
            RuntimeError: A shape is another one, or a table could not be stored.
        """
        import numpy

        store = self._opened()
        if len(embedding_buffers) != len(self._rows):
            raise RuntimeError(f"{len(self._rows)} tables are needed, one a head")
        for key, rows, given in zip(self._keys, self._rows, embedding_buffers, strict=True):
            table = numpy.ascontiguousarray(given, dtype=numpy.float32)
            if table.shape != (rows, self._dim):
                raise RuntimeError(f"{key}: the shape is ({rows}, {self._dim}), not {table.shape}")
            if store.upsert(key, table) != 0:
                raise RuntimeError(f"{key} could not be stored")

    def lookup(self, row_ids: Any) -> Any:
        """Return rows: (batch, length, heads) of numbers become (batch, length, heads, dim).

        Raises:
            RuntimeError: A number is beyond its table, or a table is not stored.
        """
        import numpy

        store = self._opened()
        ids = numpy.asarray(row_ids)
        heads = len(self._rows)
        if ids.ndim != 3 or ids.shape[2] != heads:
            raise RuntimeError(f"row_ids has the shape (batch, length, {heads}), not {ids.shape}")
        flat = ids.reshape(-1, heads)
        if (flat < 0).any() or (flat >= numpy.array(self._rows)).any():
            raise RuntimeError("EngramStore lookup failed: a row is beyond its table")
        found = numpy.empty((*ids.shape, self._dim), dtype=numpy.float32)
        count, row_bytes = flat.size, self._dim * _ELEMENT_BYTES
        base = found.ctypes.data
        read = store._read_ranges(
            self._keys * len(flat),
            [base + index * row_bytes for index in range(count)],
            (flat.reshape(-1) * row_bytes).tolist(),
            [row_bytes] * count,
        )
        if any(each != row_bytes for each in read):
            raise RuntimeError("EngramStore lookup failed: a table is not stored")
        return found

    def remove_from_store(self, force: bool = False) -> int:
        """Remove the tables; return how many there were."""
        return sum(each == 0 for each in self._opened().batch_remove(self._keys, force))

    def _opened(self) -> SafetensorsCalls:
        if self._store is None:
            raise RuntimeError("this EngramStore was made without a store")
        return self._store
