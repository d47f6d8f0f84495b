"""LMCache's server: an L2 adapter, `L2AdapterInterface` of LMCache 0.5.

    lmcache server ... --l2-adapter '{"type": "plugin",
        "module_path": "mooncake_store.integrations.lmcache.server",
        "class_name": "MooncakeStoreL2", "adapter_params": {"master": "127.0.0.1:7700"}}'

Chosen over `native_plugin`, which is given names without layouts: here a layout is part of a key,
so that two engines whose caches differ never share one, and a lock is a pin in the store.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import lmcache
from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.platform import create_event_notifier

from mooncake_store.client import CacheIdentity
from mooncake_store.errors import StoreError
from mooncake_store.integrations.engine_store import EngineStore
from mooncake_store.integrations.lmcache.settings import LmcacheSettings
from mooncake_store.integrations.model_revision import name_and_revision
from mooncake_store.integrations.settings import read_settings

__all__ = ["MooncakeStoreL2"]

log = logging.getLogger("mooncake_store.integrations")


def _bitmap(found: Sequence[object]) -> Any:
    bitmap = Bitmap(len(found))
    for at, each in enumerate(found):
        if each:
            bitmap.set(at)
    return bitmap


class _Tasks:
    """Tasks of one kind that have ended, and how LMCache hears of it."""

    def __init__(self) -> None:
        self._notifier: Any = create_event_notifier()
        self._lock = threading.Lock()
        self._ended: dict[int, Any] = {}

    def fileno(self) -> int:
        return int(self._notifier.fileno())

    def end(self, task: int, result: Any) -> None:
        with self._lock:
            self._ended[task] = result
            self._notifier.notify()

    def take(self, task: int) -> Any:
        with self._lock:
            return self._ended.pop(task, None)

    def take_all(self) -> dict[int, Any]:
        with self._lock:
            ended, self._ended = self._ended, {}
        return ended

    def close(self) -> None:
        self._notifier.close()


class MooncakeStoreL2(L2AdapterInterface):  # type: ignore[misc, unused-ignore]
    """Objects of LMCache's server in the store.

    Args:
        adapter_params: As `LmcacheSettings` names them.

    Raises:
        ConfigError: A setting that cannot be.
    """

    def __init__(self, adapter_params: Mapping[str, Any], l1_memory_desc: Any = None) -> None:
        settings = read_settings(LmcacheSettings, adapter_params, "adapter_params")
        super().__init__()
        self._settings = settings
        self._store = EngineStore(settings, name="lmcache-server")
        self._stores, self._lookups, self._loads = _Tasks(), _Tasks(), _Tasks()
        # Looking up has a thread of its own: requests wait for it, and for no transfer.
        self._finder = ThreadPoolExecutor(1, thread_name_prefix="mooncake-store-lookup")
        self._mover = ThreadPoolExecutor(
            settings.threads, thread_name_prefix="mooncake-store-lmcache"
        )
        self._lock = threading.Lock()
        self._next_task = 0
        self._models: dict[str, tuple[str, str]] = {}
        self._identities: dict[tuple[Any, ...], CacheIdentity] = {}
        self._locked: dict[Any, list[str]] = {}

    # ---- keys ------------------------------------------------------------------------------------

    def _key(self, key: Any, shapes: Sequence[Any], dtypes: Sequence[Any]) -> str:
        layout = "+".join(
            f"{'x'.join(map(str, shape))} {str(dtype).removeprefix('torch.')}"
            for shape, dtype in zip(shapes, dtypes, strict=True)
        )
        owner = (key.model_name, key.kv_rank, key.object_group_id, layout)
        identity = self._identities.get(owner)
        if identity is None:
            names = self._models.get(key.model_name)
            if names is None:
                names = name_and_revision(
                    key.model_name, model=self._settings.model, revision=self._settings.revision
                )
                self._models[key.model_name] = names
            identity = CacheIdentity(
                tenant=self._settings.tenant,
                model=names[0],
                revision=names[1],
                dtype="+".join(str(dtype).removeprefix("torch.") for dtype in dtypes),
                layout=(
                    f"lmcache server {lmcache.__version__} rank {key.kv_rank:08x} "
                    f"group {key.object_group_id}: {layout}"
                ),
                block_size=1,  # LMCache's chunk size is in the shapes
            )
            self._identities[owner] = identity
        # With its length before it, hash and salt cannot run into each other.
        digest = bytes(key.chunk_hash)
        return identity.key(bytes([len(digest)]) + digest + key.cache_salt.encode())

    def _keys_of(self, keys: Sequence[Any], objects: Sequence[Any]) -> list[str]:
        return [
            self._key(key, memory.get_shapes(), memory.get_dtypes())
            for key, memory in zip(keys, objects, strict=True)
        ]

    # ---- tasks -----------------------------------------------------------------------------------

    def _submit(
        self,
        threads: ThreadPoolExecutor,
        tasks: _Tasks,
        work: Callable[[], Any],
        failed: Any,
    ) -> int:
        with self._lock:
            task = self._next_task
            self._next_task += 1

        def run() -> None:
            result = failed
            try:
                result = work()
            except Exception:  # LMCache waits for every task
                log.exception("a task of LMCache's server failed")
            finally:
                tasks.end(task, result)

        threads.submit(run)
        return task

    def get_store_event_fd(self) -> int:
        """Return what becomes readable when a store task has ended."""
        return self._stores.fileno()

    def get_lookup_and_lock_event_fd(self) -> int:
        """Return what becomes readable when a look-up has ended."""
        return self._lookups.fileno()

    def get_load_event_fd(self) -> int:
        """Return what becomes readable when a load task has ended."""
        return self._loads.fileno()

    # ---- storing ---------------------------------------------------------------------------------

    def submit_store_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        """Begin to store objects from LMCache's memory."""

        def work() -> Any:
            sizes = [memory.get_size() for memory in objects]
            stored = self._store.save(
                self._keys_of(keys, objects), [memory.data_ptr for memory in objects], sizes
            )
            # What was there already counts, but not its bytes again.
            done = [at for at, made in enumerate(stored) if made >= 0]
            new = [sizes[at] if stored[at] else 0 for at in done]
            if done:
                self._notify_keys_stored([keys[at] for at in done], new)
            return L2StoreResult(len(done) == len(keys), sum(new))

        return self._submit(self._mover, self._stores, work, L2StoreResult(False, 0))

    def pop_completed_store_tasks(self) -> dict[int, Any]:
        """Return what has ended since the last call."""
        return self._stores.take_all()

    # ---- looking up ------------------------------------------------------------------------------

    def submit_lookup_and_lock_task(
        self, keys: Sequence[Any], group_layout_descs: Mapping[int, Any]
    ) -> int:
        """Begin to find objects, and to pin what is found, in one request."""

        def work() -> Any:
            found: list[bool] = [False] * len(keys)
            known = [at for at, key in enumerate(keys) if key.object_group_id in group_layout_descs]
            names = []
            for at in known:
                layout = group_layout_descs[keys[at].object_group_id]
                names.append(self._key(keys[at], layout.shapes, layout.dtypes))
            pinned = self._store.pin(names, self._settings.pin_timeout_s)
            with self._lock:
                for at, name, is_there in zip(known, names, pinned, strict=True):
                    found[at] = is_there
                    if is_there:
                        self._locked.setdefault(keys[at], []).append(name)
            return _bitmap(found)

        return self._submit(self._finder, self._lookups, work, Bitmap(len(keys)))

    def query_lookup_and_lock_result(self, task_id: int) -> Any:
        """Return which objects are there, once; None: not yet."""
        return self._lookups.take(task_id)

    def submit_unlock(self, keys: Sequence[Any]) -> None:
        """End the pins of a look-up; those of others of the same objects stay."""

        def work() -> None:
            ended = []
            with self._lock:
                for key in keys:
                    names = self._locked.get(key)
                    if names is None:
                        continue
                    name = names.pop()
                    if not names:  # a pin has no count: the last look-up ends it
                        del self._locked[key]
                        ended.append(name)
            self._store.unpin(ended)

        self._finder.submit(work)

    # ---- loading ---------------------------------------------------------------------------------

    def submit_load_task(self, keys: Sequence[Any], objects: Sequence[Any]) -> int:
        """Begin to load objects into LMCache's memory; one of another size is a miss."""

        def work() -> Any:
            loaded = self._store.load(
                self._keys_of(keys, objects),
                [memory.data_ptr for memory in objects],
                [memory.get_size() for memory in objects],
            )
            there = [key for key, size in zip(keys, loaded, strict=True) if size]
            if there:
                self._notify_keys_accessed(there)
            return _bitmap(loaded)

        return self._submit(self._mover, self._loads, work, Bitmap(len(keys)))

    def query_load_result(self, task_id: int) -> Any:
        """Return which objects were loaded, once; None: not yet."""
        return self._loads.take(task_id)

    # ---- the rest --------------------------------------------------------------------------------

    def delete(self, keys: Sequence[Any]) -> None:
        """Remove objects, in every layout that this server has met."""
        client = self._store.client
        with self._lock:
            known = list(self._identities.items())
        removed, sizes = [], []
        for key in keys:
            for (model, rank, group, _), identity in known:
                if (model, rank, group) != (key.model_name, key.kv_rank, key.object_group_id):
                    continue
                digest = bytes(key.chunk_hash)
                name = identity.key(bytes([len(digest)]) + digest + key.cache_salt.encode())
                try:
                    if client is not None and client.remove(name):
                        removed.append(key)
                        sizes.append(0)
                except StoreError as error:
                    self._store.tell("could not remove: %s", error)
        if removed:
            self._notify_keys_deleted(removed, sizes)

    def report_status(self) -> dict[str, Any]:
        """Return what LMCache's status page shows."""
        counts = self._store.counts
        return {
            "is_healthy": self._store.client is not None,
            "type": "mooncake_store",
            "loaded": counts.loaded,
            "missed": counts.missed,
            "saved": counts.saved,
            "known": counts.known,
            "refused": counts.refused,
        }

    def close(self) -> None:
        """Wait for what runs, each at most its deadline, and end."""
        self._finder.shutdown()
        self._mover.shutdown()
        self._store.close()
        for tasks in (self._stores, self._lookups, self._loads):
            tasks.close()
        log.info("objects moved: %s", self._store.counts)
