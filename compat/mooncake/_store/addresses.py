"""Objects in memory that the caller has: put_from and get_into, whole and in pieces."""

from __future__ import annotations

from collections.abc import Sequence

from mooncake._store.base import DATA_TIMEOUT_S, NOT_SET_UP
from mooncake._store.numbers import ErrorNumber, numbers_of
from mooncake._store.replicate import ReplicateConfig
from mooncake._store.values import ValueCalls
from mooncake_store.client.native import native
from mooncake_store.errors import Status, StoreError

__all__ = ["AddressCalls"]

Addresses = Sequence[int] | Sequence[Sequence[int]]
_BUSY = -Status.BUSY


class AddressCalls(ValueCalls):
    """Objects in memory that the caller has, by address.  No call keeps an address."""

    # ---- storing ----

    def put_from(
        self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None
    ) -> int:
        """Store `size` bytes at an address; 0 also when the key was there."""
        return self._put_addresses([key], [buffer_ptr], [size], config)[0]

    def put_from_with_metadata(
        self,
        key: str,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig | None = None,
    ) -> int:
        """Store metadata and data, in this order, as one object."""
        return self._put_addresses(
            [key], [[metadata_buffer_ptr, buffer_ptr]], [[metadata_size, size]], config
        )[0]

    def batch_put_from(
        self,
        keys: list[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Store objects from one address each; for each key 0 or a negative number."""
        return self._put_addresses(keys, buffer_ptrs, sizes, config)

    def batch_put_from_multi_buffers(
        self,
        keys: list[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Store objects whose bytes lie in pieces, in order; for each key 0 or a negative number.

        -200: there is no room now.
        """
        return self._put_addresses(keys, all_buffer_ptrs, all_sizes, config)

    def upsert_from(
        self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None
    ) -> int:
        """As put_from, in place of whatever the key named."""
        return self._put_addresses([key], [buffer_ptr], [size], config, upsert=True)[0]

    def batch_upsert_from(
        self,
        keys: list[str],
        buffer_ptrs: Sequence[int],
        sizes: Sequence[int],
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """As batch_put_from, in place of whatever the keys named."""
        return self._put_addresses(keys, buffer_ptrs, sizes, config, upsert=True)

    def _put_addresses(
        self,
        keys: list[str],
        addresses: Addresses,
        sizes: Addresses,
        config: ReplicateConfig | None,
        *,
        upsert: bool = False,
    ) -> list[int]:
        client = self._client
        if client is None:
            return [NOT_SET_UP] * len(keys)
        batches = self._batches(client, config, len(keys))
        if batches is None or len(addresses) != len(keys) or len(sizes) != len(keys):
            return [NOT_SET_UP] * len(keys)
        keys = self._keys(keys)
        made = [0] * len(keys)
        try:
            for options, positions in batches:
                packed = client._core.put_options(options, upsert=upsert)
                if positions is None:
                    made = native.client_put_addresses(
                        client._handle, keys, addresses, sizes, packed, DATA_TIMEOUT_S,
                    )  # fmt: skip
                    break
                part = native.client_put_addresses(
                    client._handle,
                    [keys[at] for at in positions],
                    [addresses[at] for at in positions],
                    [sizes[at] for at in positions],
                    packed,
                    DATA_TIMEOUT_S,
                )
                for at, number in zip(positions, part, strict=True):
                    made[at] = number
        except StoreError as error:
            return [self._failure(error)] * len(keys)
        except (ValueError, OverflowError) as error:
            self._log(f"put: {error}")
            return [NOT_SET_UP] * len(keys)
        if made and min(made) < 0:
            return self._put_numbers(keys, made)
        return [0] * len(made)

    def _put_numbers(self, keys: list[str], made: list[int]) -> list[int]:
        numbers = [min(number, 0) for number in numbers_of(made)]
        busy = [index for index, number in enumerate(made) if number == _BUSY]
        client = self._client
        if busy and client is not None:
            later = self._wait_for_other_put(
                client, [keys[index] for index in busy], ["another put of that key is open"]
            )
            for index, number in zip(busy, later, strict=True):
                numbers[index] = number
        if min(numbers) < 0:
            self._log(f"put: {sum(number < 0 for number in numbers)} of {len(keys)} objects were "
                      f"not stored ({ErrorNumber(min(numbers)).name.lower()})")  # fmt: skip
        return numbers

    # ---- reading ----

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Read an object to an address; return its bytes, or a negative number.

        -704: it is not there.  -600: it is larger than `size`.
        """
        return self._get_addresses([key], [buffer_ptr], [size], None, is_exact=False)[0]

    def batch_get_into(
        self, keys: list[str], buffer_ptrs: Sequence[int], sizes: Sequence[int]
    ) -> list[int]:
        """Read objects to one address each; for each key what get_into answers."""
        return self._get_addresses(keys, buffer_ptrs, sizes, None, is_exact=False)

    def batch_get_into_multi_buffers(
        self,
        keys: list[str],
        all_buffer_ptrs: Sequence[Sequence[int]],
        all_sizes: Sequence[Sequence[int]],
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Read objects into pieces, in order; for each key its bytes or a negative number.

        -600: the pieces are too small together.  -800: they are too large together: what was
        stored is not what is read.
        """
        return self._get_addresses(keys, all_buffer_ptrs, all_sizes, None, is_exact=True)

    def _get_addresses(
        self,
        keys: list[str],
        addresses: Addresses,
        sizes: Addresses,
        offsets: Sequence[int] | None,
        *,
        is_exact: bool,
    ) -> list[int]:
        client = self._client
        if client is None:
            return [NOT_SET_UP] * len(keys)
        try:
            read: list[int] = native.client_get_addresses(
                client._handle, self._keys(keys), addresses, sizes, offsets, is_exact,
                DATA_TIMEOUT_S,
            )  # fmt: skip
        except StoreError as error:
            return [self._failure(error)] * len(keys)
        except (ValueError, OverflowError) as error:
            self._log(f"get: {error}")
            return [NOT_SET_UP] * len(keys)
        return numbers_of(read) if read and min(read) < 0 else read

    # ---- ranges ----

    def get_into_ranges(
        self,
        buffer_ptrs: Sequence[int],
        all_keys: Sequence[Sequence[str]],
        all_dst_offsets: Sequence[Sequence[Sequence[int]]],
        all_src_offsets: Sequence[Sequence[Sequence[int]]],
        all_sizes: Sequence[Sequence[Sequence[int]]],
    ) -> list[list[list[int]]]:
        """Read parts of objects to offsets in buffers.

        For buffer i and its key j, fragment k are `all_sizes[i][j][k]` bytes from
        `all_src_offsets[i][j][k]` of the object to `all_dst_offsets[i][j][k]` of the buffer.

        Returns:
            In the same shape the bytes read, or a negative number: -600 beyond the object's end.
        """
        shape = [[len(sizes) for sizes in of_buffer] for of_buffer in all_sizes]
        given = (all_keys, all_dst_offsets, all_src_offsets)
        if any(len(each) != len(buffer_ptrs) for each in (*given, all_sizes)) or not all(
            len(keys) == len(counts)
            and [len(each) for each in to] == counts == [len(each) for each in source]
            for keys, to, source, counts in zip(*given, shape, strict=True)
        ):
            return [[[NOT_SET_UP] * count for count in counts] for counts in shape]
        keys: list[str] = []
        addresses: list[int] = []
        offsets: list[int] = []
        sizes: list[int] = []
        for i, buffer in enumerate(buffer_ptrs):
            for j, key in enumerate(all_keys[i]):
                keys += [key] * shape[i][j]
                addresses += [buffer + at for at in all_dst_offsets[i][j]]
                offsets += all_src_offsets[i][j]
                sizes += all_sizes[i][j]
        read = iter(self._read_ranges(keys, addresses, offsets, sizes))
        return [[[next(read) for _ in range(count)] for count in counts] for counts in shape]

    def _read_ranges(
        self,
        keys: list[str],
        addresses: list[int],
        offsets: list[int],
        sizes: list[int],
    ) -> list[int]:
        """Read one range of each key; less than was wanted lay beyond the object's end: -600."""
        if not keys:
            return []
        read = self._get_addresses(keys, addresses, sizes, offsets, is_exact=False)
        return [
            NOT_SET_UP if 0 <= count < wanted else count
            for count, wanted in zip(read, sizes, strict=True)
        ]
