"""LMCache beside an engine: a remote storage plugin, `RemoteConnector` of LMCache 0.5.

    remote_storage_plugins: ["mooncake_store"]
    extra_config:
      remote_storage_plugin.mooncake_store.module_path: mooncake_store.integrations.lmcache.remote
      remote_storage_plugin.mooncake_store.class_name: MooncakeStoreAdapter
      remote_storage_plugin.mooncake_store.master: 127.0.0.1:7700

LMCache calls from its event loop and from the engine's threads; bytes are moved by threads of this
connector, between the store and LMCache's own memory.  docs/integrations/lmcache.md is for users.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import lmcache
from lmcache.v1.exceptions import IrrecoverableException
from lmcache.v1.storage_backend.connector import ConnectorAdapter, ConnectorContext
from lmcache.v1.storage_backend.connector.base_connector import RemoteConnector

from mooncake_store.client import CacheIdentity, ParallelShape
from mooncake_store.errors import ConfigError, StoreError
from mooncake_store.integrations.engine_store import EngineStore
from mooncake_store.integrations.lmcache.settings import LmcacheSettings
from mooncake_store.integrations.model_revision import name_and_revision
from mooncake_store.integrations.settings import read_settings

__all__ = ["MooncakeStoreAdapter", "MooncakeStoreConnector"]

log = logging.getLogger("mooncake_store.integrations")

Result = TypeVar("Result")
_PLUGIN = "mooncake_store"
_OF_LMCACHE = ("module_path", "class_name")


def _settings(plugin: str, extra: dict[str, Any]) -> LmcacheSettings:
    """Return what stands under `remote_storage_plugin.PLUGIN.`."""
    prefix = f"remote_storage_plugin.{plugin}."
    given = {
        name.removeprefix(prefix): value
        for name, value in extra.items()
        if name.startswith(prefix) and name.removeprefix(prefix) not in _OF_LMCACHE
    }
    return read_settings(LmcacheSettings, given, f"extra_config ({prefix}...)")


class MooncakeStoreAdapter(ConnectorAdapter):  # type: ignore[misc, unused-ignore]
    """What LMCache loads by name; it makes a connector for each rank."""

    def __init__(self) -> None:
        super().__init__(f"plugin://{_PLUGIN}")

    def can_parse(self, url: str) -> bool:
        """Return whether a plugin is called `mooncake_store`, or `mooncake_store.SOMETHING`."""
        return url == self.schema or url.startswith(f"{self.schema}.")

    def create_connector(self, context: ConnectorContext) -> MooncakeStoreConnector:
        """Return a connector.

        Raises:
            IrrecoverableException: A setting that cannot be; the message says what to change.
        """
        return MooncakeStoreConnector(context)


class MooncakeStoreConnector(RemoteConnector):  # type: ignore[misc, unused-ignore]
    """Chunks of one rank, each an object of exactly its bytes.

    Raises:
        IrrecoverableException: A setting that cannot be; the message says what to change.
    """

    def __init__(self, context: ConnectorContext) -> None:
        super().__init__(context.config, context.metadata)
        config = context.config
        try:
            settings = _settings(context.plugin_name or _PLUGIN, config.extra_config or {})
            if config.use_layerwise:
                raise ConfigError("use_layerwise: set it to false, chunks are stored whole")
            if config.remote_serde not in (None, "naive"):
                raise ConfigError('remote_serde: set it to "naive", chunks are stored as they are')
            self._store = EngineStore(settings, name="lmcache")
        except StoreError as error:
            raise IrrecoverableException(str(error)) from error
        self._settings = settings
        self._loop = context.loop
        self._memory = context.local_cpu_backend
        self._chunk_size = context.metadata.chunk_size
        shapes = "+".join("x".join(map(str, shape)) for shape in self.meta_shapes)
        dtypes = "+".join(str(each).removeprefix("torch.") for each in self.meta_dtypes)
        self._layout = (
            f"lmcache {lmcache.__version__} {self.meta_fmt.name} {shapes} {dtypes}; "
            f"hash {config.pre_caching_hash_algorithm}"
        )
        self._identities: dict[tuple[Any, ...], CacheIdentity] = {}
        self._executor = ThreadPoolExecutor(
            settings.threads, thread_name_prefix="mooncake-store-lmcache"
        )

    # ---- keys ------------------------------------------------------------------------------------

    def _key(self, key: Any) -> str:
        owner = (key.model_name, key.world_size, key.worker_id, key.dtype)
        identity = self._identities.get(owner)
        if identity is None:
            name, revision = name_and_revision(
                key.model_name, model=self._settings.model, revision=self._settings.revision
            )
            identity = CacheIdentity(
                tenant=self._settings.tenant,
                model=name,
                revision=revision,
                dtype=str(key.dtype).removeprefix("torch."),
                layout=self._layout,
                block_size=self._chunk_size,
                parallel=ParallelShape(tp_size=key.world_size, tp_rank=key.worker_id),
            )
            self._identities[owner] = identity
        if not key.tags:
            return identity.key(key.chunk_hash_hex)
        tags = [[str(name), str(value)] for name, value in key.tags]
        return identity.key(json.dumps([key.chunk_hash_hex, tags]))

    def _keys(self, keys: Sequence[Any]) -> list[str]:
        return [self._key(key) for key in keys]

    # ---- looking up ------------------------------------------------------------------------------

    async def exists(self, key: Any) -> bool:
        """Return whether a chunk is stored; False when nobody can tell."""
        return await self._in_thread(self.exists_sync, key)

    def exists_sync(self, key: Any) -> bool:
        """As `exists`."""
        return self._store.exists([self._key(key)])[0]

    def support_batched_contains(self) -> bool:
        """Yes."""
        return True

    def batched_contains(self, keys: Sequence[Any]) -> int:
        """Return how many chunks, from the first, are stored: one request."""
        return self._store.count_prefix(self._keys(keys))

    def support_batched_async_contains(self) -> bool:
        """Yes."""
        return True

    async def batched_async_contains(
        self, lookup_id: str, keys: Sequence[Any], pin: bool = False
    ) -> int:
        """As `batched_contains`; with `pin` they stay until they are loaded, or the deadline."""
        pin_s = self._settings.pin_timeout_s if pin else None
        return await self._in_thread(
            lambda: self._store.count_prefix(self._keys(keys), pin_s=pin_s)
        )

    # ---- loading ---------------------------------------------------------------------------------

    def support_batched_get(self) -> bool:
        """Yes."""
        return True

    def support_batched_get_non_blocking(self) -> bool:
        """Yes."""
        return True

    async def get(self, key: Any) -> Any:
        """Return a chunk in LMCache's memory, or None."""
        return (await self.batched_get([key]))[0]

    async def batched_get(self, keys: Sequence[Any]) -> list[Any]:
        """Return chunks in LMCache's memory, None for each that is not there."""
        return await self._in_thread(self._load, keys, undo=_release)

    async def batched_get_non_blocking(self, lookup_id: str, keys: Sequence[Any]) -> list[Any]:
        """Return the chunks before the first that is not there; their pins end."""
        loaded = await self._in_thread(self._load_pinned, keys, undo=_release)
        count = loaded.index(None) if None in loaded else len(loaded)
        _release(loaded[count:])
        return loaded[:count]

    def _load_pinned(self, keys: Sequence[Any]) -> list[Any]:
        loaded = self._load(keys)
        self._store.unpin(self._keys(keys))
        return loaded

    def _load(self, keys: Sequence[Any]) -> list[Any]:
        # Without `busy_loop`: LMCache's memory may be full of what this very batch waits for.
        memories = [
            self._memory.allocate(
                self.meta_shapes, self.meta_dtypes, self.meta_fmt, busy_loop=False
            )
            for _ in keys
        ]
        there = [at for at, memory in enumerate(memories) if memory is not None]
        if len(there) < len(keys):
            self._store.tell("LMCache has no memory for %d chunks", len(keys) - len(there))
        read = self._store.load(
            self._keys([keys[at] for at in there]),
            [memories[at].data_ptr for at in there],
            [memories[at].get_size() for at in there],
            exact=False,  # the last chunk of a prompt may be a part of one
        )
        for at, size in zip(there, read, strict=True):
            if size:
                try:
                    memories[at] = self.reshape_partial_chunk(memories[at], size)
                    continue
                except ValueError as error:
                    self._store.tell("a stored chunk is none: %s", error)
            memories[at].ref_count_down()
            memories[at] = None
        return memories

    # ---- saving ----------------------------------------------------------------------------------

    def support_batched_put(self) -> bool:
        """Yes."""
        return True

    async def put(self, key: Any, memory_obj: Any) -> None:
        """Store a chunk from LMCache's memory."""
        await self.batched_put([key], [memory_obj])

    async def batched_put(self, keys: Sequence[Any], memory_objs: Sequence[Any]) -> None:
        """Store chunks from LMCache's memory; what cannot be stored is a later miss."""
        await self._in_thread(
            lambda: self._store.save(
                self._keys(keys),
                [memory.data_ptr for memory in memory_objs],
                [memory.get_size() for memory in memory_objs],
            )
        )

    # ---- the rest --------------------------------------------------------------------------------

    def remove_sync(self, key: Any) -> bool:
        """Remove a chunk; False: it was not there, or could not be removed."""
        client = self._store.client
        try:
            return client is not None and client.remove(self._key(key))
        except StoreError as error:
            self._store.tell("could not remove: %s", error)
            return False

    async def list(self) -> list[str]:
        """Return the stored keys of what this connector has met."""

        def keys() -> Any:
            client = self._store.client
            identities = list(self._identities.values())
            if client is None:
                return []
            return [item.key for each in identities for item in client.list(each.prefix)]

        found: Any = await self._in_thread(keys)
        return [str(key) for key in found]

    def support_ping(self) -> bool:
        """Yes."""
        return True

    async def ping(self) -> int:
        """Return 0 when the store answers."""
        return await self._in_thread(self._ping)

    def _ping(self) -> int:
        client = self._store.client
        if client is None:
            return 1
        try:
            client.members(timeout_s=self._settings.lookup_timeout_s)
        except StoreError:
            return 1
        return 0

    async def close(self) -> None:
        """End; what was stored stays."""
        await self._in_thread(self._store.close)
        self._executor.shutdown(wait=False)
        log.info("chunks moved: %s", self._store.counts)

    async def _in_thread(
        self,
        function: Callable[..., Result],
        *arguments: Any,
        undo: Callable[[Result], object] | None = None,
    ) -> Result:
        """Return what a function returns in a thread of this connector.

        Whoever is cancelled waits for it all the same, at most its deadline: its memory is in use.
        """
        future = asyncio.get_running_loop().run_in_executor(self._executor, function, *arguments)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            if undo is not None and not future.cancelled() and future.exception() is None:
                undo(future.result())
            raise


def _release(memories: Sequence[Any]) -> None:
    for memory in memories:
        if memory is not None:
            memory.ref_count_down()
