"""SGLang's third level: a dynamic backend, `HiCacheStorage` of SGLang 0.5.

    --enable-hierarchical-cache --hicache-mem-layout page_first --hicache-storage-backend dynamic
    --hicache-storage-backend-extra-config '{"backend_name": "mooncake_store",
        "module_path": "mooncake_store.integrations.sglang.backend", "class_name": "MooncakeStore",
        "interface_v1": 1, "mooncake_store": {"master": "127.0.0.1:7700"}}'

Pages go straight between the store and SGLang's pools in host memory.  Nothing here raises for what
the store does: a failure is a miss.  docs/integrations/sglang.md is for users.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    PoolHitPolicy,
    PoolName,
    PoolTransferResult,
)

from mooncake_store.client import CacheIdentity
from mooncake_store.errors import ConfigError, StoreError
from mooncake_store.integrations.engine_store import EngineStore
from mooncake_store.integrations.settings import StoreSettings, read_settings
from mooncake_store.integrations.sglang.pages import PagePool, identify

__all__ = ["MooncakeStore"]

log = logging.getLogger("mooncake_store.integrations")

_KV = str(PoolName.KV)
_PLACE = "mooncake_store"


def _settings(extra: Mapping[str, Any]) -> StoreSettings:
    """Return settings from SGLang's extra configuration, which holds names of its own too."""
    given = extra.get(_PLACE, {})
    if not isinstance(given, Mapping):
        raise ConfigError(f'{_PLACE} is a table: {{"master": "127.0.0.1:7700"}}')
    return read_settings(StoreSettings, given, _PLACE)


class MooncakeStore(HiCacheStorage):  # type: ignore[misc, unused-ignore]
    """Pages of one rank.

    Args:
        storage_config: SGLang's `HiCacheStorageConfig`.
        kwargs: Nothing of use.

    Raises:
        ConfigError: A setting or a model that cannot be; the message says what to change.
    """

    def __init__(self, storage_config: Any, kwargs: dict[str, Any] | None = None) -> None:
        if storage_config.dcp_size > 1:
            raise ConfigError("decode context parallelism is not supported by this backend")
        if storage_config.should_split_heads:
            raise ConfigError("tp_lcm_size is not supported by this backend: leave it out")
        extra = storage_config.extra_config or {}
        self._settings = _settings(extra)
        self._config = storage_config
        self._has_pages = bool(extra.get("interface_v1"))
        self._pools: dict[str, PagePool] = {}
        self._flat: CacheIdentity | None = None
        self._is_logical = False
        self._store = EngineStore(self._settings, name=f"sglang-{storage_config.tp_rank}")

    # ---- pools -----------------------------------------------------------------------------------

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Take the pool of KV pages."""
        super().register_mem_pool_host(mem_pool_host)
        # A logical anchor has no bytes of its own: its model's other pools have all.
        self._is_logical = getattr(mem_pool_host, "kv_buffer", None) is None
        if self._is_logical:
            return
        if self._has_pages:
            self._pools[_KV] = PagePool(self._config, self._settings, _KV, mem_pool_host)
        else:
            page = mem_pool_host.get_dummy_flat_data_page()
            layout = f"flat {mem_pool_host.layout} {'x'.join(map(str, page.shape))} {page.dtype}"
            self._flat = identify(self._config, self._settings, _KV, mem_pool_host, layout)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Take a further pool of a hybrid model."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = str(host_pool_name)
        if name != _KV:
            self._pools[name] = PagePool(self._config, self._settings, name, host_pool)

    def _pool(self, name: Any) -> PagePool:
        try:
            return self._pools[str(name)]
        except KeyError:
            raise ConfigError(f"pool {name} was not registered") from None

    # ---- looking up ------------------------------------------------------------------------------

    def _kv_keys(self, keys: Sequence[str]) -> list[str]:
        if self._flat is not None:
            return [self._flat.key(key) for key in keys]
        return self._pool(_KV).keys(keys)

    def exists(self, key: str) -> bool:
        """Return whether a page is stored."""
        return self.batch_exists([key]) == 1

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """Return how many pages, from the first, are stored: one request."""
        if self._is_logical:
            return len(keys)
        return self._store.count_prefix(self._kv_keys(keys))

    def batch_exists_v2(
        self, keys: Sequence[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> PoolTransferResult:
        """Return which prefixes can be restored from all pools: two requests."""
        pages = self.batch_exists(keys, extra_info)
        # Keyed as SGLang asks for them: a name of the enumeration hashes otherwise than its text.
        hits: dict[Any, int] = {PoolName.KV: pages} if pages else {}
        restorable = list(range(1, pages + 1))
        # Groups of blocks never bound the others: those are not looked for, and computed.
        transfers = [
            each for each in pool_transfers or () if each.hit_policy != PoolHitPolicy.BLOCK_GROUPS
        ]
        wanted = [key for each in transfers for key in self._pool(each.name).keys(keys[:pages])]
        found = self._store.exists(wanted) if wanted else []
        for at, transfer in enumerate(transfers):
            there = found[at * pages : (at + 1) * pages]
            usable = _restorable(there, transfer)
            if usable:
                hits[transfer.name] = usable[-1]
            restorable = [length for length in restorable if length in set(usable)]
        return PoolTransferResult(restorable[-1] if restorable else 0, hits, restorable)

    # ---- pages in pools --------------------------------------------------------------------------

    def batch_get_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> Any:
        """Load pages; for each whether it was."""
        if self._is_logical:
            return [True] * len(keys)
        return self._load(self._pool(_KV), keys, host_indices)

    def batch_set_v1(self, keys: Sequence[str], host_indices: Any, extra_info: Any = None) -> Any:
        """Store pages; for each whether it is there."""
        if self._is_logical:
            return [True] * len(keys)
        return self._save(self._pool(_KV), keys, host_indices)

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> Any:
        """As `batch_get_v1`, for several pools."""
        return {
            each.name: self._load(self._pool(each.name), each.keys or [], each.host_indices)
            for each in transfers
        }

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> Any:
        """As `batch_set_v1`, for several pools."""
        return {
            each.name: self._save(self._pool(each.name), each.keys or [], each.host_indices)
            for each in transfers
        }

    def _load(self, pool: PagePool, keys: Sequence[str], indices: Any) -> list[bool]:
        if not keys:
            return []
        addresses, sizes = pool.pieces(indices, len(keys))
        return [bool(size) for size in self._store.load(pool.keys(keys), addresses, sizes)]

    def _save(self, pool: PagePool, keys: Sequence[str], indices: Any) -> list[bool]:
        if not keys:
            return []
        addresses, sizes = pool.pieces(indices, len(keys))
        return [made >= 0 for made in self._store.save(pool.keys(keys), addresses, sizes)]

    # ---- pages as tensors, without `interface_v1` ------------------------------------------------

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Fill a tensor with a page, and return it; None: the page is not there."""
        return self.batch_get([key], [target_location])[0]

    def batch_get(
        self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None
    ) -> Any:
        """As `get`, for several pages."""
        targets = list(target_locations)
        loaded = self._store.load(
            self._kv_keys(keys), [each.data_ptr() for each in targets], list(map(_bytes, targets))
        )
        return [each if size else None for each, size in zip(targets, loaded, strict=True)]

    def set(
        self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None
    ) -> bool:
        """Store a page from a tensor; whether it is there."""
        return self.batch_set([key], [value])

    def batch_set(
        self,
        keys: Sequence[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """As `set`, for several pages."""
        tensors = [value.contiguous() for value in values]
        made = self._store.save(
            self._kv_keys(keys), [each.data_ptr() for each in tensors], list(map(_bytes, tensors))
        )
        return min(made, default=0) >= 0

    # ---- the rest --------------------------------------------------------------------------------

    def clear(self) -> None:
        """Remove this model's pages of this rank, and nobody else's."""
        client = self._store.client
        identities = [pool.identity for pool in self._pools.values()]
        if self._flat is not None:
            identities.append(self._flat)
        try:
            for identity in identities:
                if client is not None:
                    client.remove_matching(identity.prefix)
        except StoreError as error:
            self._store.tell("could not clear: %s", error)

    def close(self) -> None:
        """End; what was stored stays."""
        self._store.close()
        log.info("pages moved: %s", self._store.counts)


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _restorable(there: Sequence[bool], transfer: Any) -> list[int]:
    """Return the lengths of prefixes that a pool can restore, ascending."""
    if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
        return list(range(1, (there.index(False) if False in there else len(there)) + 1))
    window = max(1, len(transfer.keys or ()))
    return [
        end
        for end in range(1, len(there) + 1)
        if all(there[at] for at in range(max(0, end - window), end))
    ]
