"""For connectors: plain addresses in, plain numbers out."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mooncake_store.client import native as _native
from mooncake_store.client.calls import Calls
from mooncake_store.client.core import pin_deadline_ms, read_share

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from mooncake_store.client.options import PutOptions
    from mooncake_store.transfer_engine.priority import Priority, Share

__all__ = ["AddressCalls"]

_c = _native.native


class AddressCalls(Calls):
    """The calls of `Client` that raise, log and wrap nothing for single keys."""

    def exists_numbers(
        self,
        keys: builtins.list[str],
        *,
        lease_s: float = 0.0,
        timeout_s: float | None = None,
    ) -> builtins.list[int]:
        """Return for each key 1 (stored), 0 (not stored), or minus the `Status` of its failure.

        With the two calls below the fastest way for large batches: nothing is raised, logged or
        wrapped for single keys.

        Args:
            keys: Of the objects.
            lease_s: What is there is not evicted for so long, for who reads it next.  Unlike a pin
                nobody gives it back, and it does not outlive the master.
            timeout_s: Deadline of the call.

        Example:
            >>> _ = store.put("a/1", b"one")
            >>> store.exists_numbers(["a/1", "absent"])
            [1, 0]
        """
        found: builtins.list[int] = _c.client_exists_numbers(
            self._handle, keys, pin_deadline_ms(lease_s or None),
            self._timeout_s if timeout_s is None else timeout_s,
        )  # fmt: skip
        return found

    def get_addresses(
        self,
        keys: builtins.list[str],
        addresses: Sequence[int | Sequence[int]],
        sizes: Sequence[int | Sequence[int]],
        *,
        offsets: Sequence[int] | None = None,
        exact: bool = False,
        priority: Priority | None = None,
        share: Share | None = None,
        timeout_s: float | None = None,
    ) -> builtins.list[int]:
        """Read objects into raw memory; return the bytes read, or minus the `Status`.

        Args:
            keys: The objects.
            addresses: For each one address, or those of its pieces, which are filled in order.
            sizes: Bytes at each of them.
            offsets: For each key where in the object to begin; then as much is read as there is
                room for. None: whole objects, and too little room is `BUFFER_TOO_SMALL`.
            exact: Too much room is `OUT_OF_RANGE`.
            priority: As of get.
            share: As of get.
            timeout_s: Deadline of the batch.

        Raises:
            ValueError: The lists do not fit each other, or an address is 0.
            ClosedError: The client is closed.

        Example:
            >>> import ctypes
            >>> _ = store.put("a/1", b"onetwo")
            >>> memory = ctypes.create_string_buffer(6)
            >>> at = ctypes.addressof(memory)
            >>> store.get_addresses(["a/1"], [[at + 3, at]], [[3, 3]]), memory.raw
            ([6], b'twoone')
        """
        read: builtins.list[int] = _c.client_get_addresses(
            self._handle, keys, addresses, sizes, offsets, exact, read_share(priority, share),
            self._timeout_s if timeout_s is None else timeout_s,
        )  # fmt: skip
        return read

    def put_addresses(
        self,
        keys: builtins.list[str],
        addresses: Sequence[int | Sequence[int]],
        sizes: Sequence[int | Sequence[int]],
        *,
        upsert: bool = False,
        timeout_s: float | None = None,
        **options: Unpack[PutOptions],
    ) -> builtins.list[int]:
        """Store objects from raw memory; return how many replicas were made, or minus the `Status`.

        0: the key was there, nothing changed.

        Args:
            keys: The objects.
            addresses: For each one address, or those of its pieces in order.
            sizes: Bytes at each of them.
            upsert: In place of whatever the key named.
            timeout_s: Deadline of the batch.
            options: As of put, for each of them.

        Raises:
            ValueError: The lists do not fit each other, or an address is 0.
            ClosedError: The client is closed.

        Example:
            >>> import ctypes
            >>> memory = ctypes.create_string_buffer(b"bytes")
            >>> store.put_addresses(["p/1"], [ctypes.addressof(memory)], [5])
            [1]
        """
        made: builtins.list[int] = _c.client_put_addresses(
            self._handle, keys, addresses, sizes,
            self._core.put_options(options, upsert=upsert),
            self._timeout_s if timeout_s is None else timeout_s,
        )  # fmt: skip
        return made
