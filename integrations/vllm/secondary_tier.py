"""A tier for vLLM's offloading connector: what has left the host's memory is in the store.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both",
        "kv_connector_extra_config": {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": ...,
            "secondary_tiers": [{"type": "MooncakeStoreTier", "master": "127.0.0.1:7700",
                "module_path": "mooncake_store.integrations.vllm.secondary_tier"}]}}'

Nothing here holds up the scheduler, in whose process it is.  docs/integrations/vllm.md tells more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import vllm
from vllm.v1.kv_offload.base import LookupResult, OffloadKey, ReqContext, RequestOffloadingContext
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, SecondaryTierManager, TransferJob

from mooncake_store.client import CacheIdentity, ParallelShape
from mooncake_store.integrations.engine_store import EngineStore
from mooncake_store.integrations.model_revision import name_and_revision
from mooncake_store.integrations.vllm.settings import TierSettings
from mooncake_store.integrations.vllm.tier_transfers import TierTransfers

__all__ = ["MooncakeStoreTier"]


def _identity(config: Any, settings: TierSettings, row_bytes: int) -> CacheIdentity:
    """Return what all chunks of this engine, and of others that can use them, have in common."""
    name, revision = name_and_revision(
        config.model.name, model=settings.model, revision=settings.revision
    )
    groups = ";".join(
        f"{group.group_id}:{group.tokens_per_block}:{'+'.join(group.layer_names)}"
        for group in config.groups
    )
    parallel = config.parallel
    layout = (
        f"vllm {vllm.__version__} chunk {row_bytes} bytes of {config.cache.blocks_per_chunk} "
        f"blocks, ranks {parallel.world_size}, {config.kv_cache_layout}, "
        f"canonical {config.canonical_layout}, replicated {config.replicated_layout};{groups}"
    )
    return CacheIdentity(
        tenant=settings.tenant,
        model=name,
        revision=revision,
        dtype=config.model.dtype,
        layout=layout,
        block_size=config.cache.tokens_per_hash,
        # A row has the bytes of all ranks.
        parallel=ParallelShape(
            tp_size=parallel.tp_size,
            pp_size=parallel.pp_size,
            cp_size=parallel.pcp_size * parallel.dcp_size,
        ),
    )


class _Lookups(AsyncLookupManager):  # type: ignore[misc, unused-ignore]
    """Asks the store in a thread; until it has answered, vLLM asks again."""

    def __init__(self, transfers: TierTransfers, tier_type: str) -> None:
        self._transfers = transfers
        super().__init__(tier_type=tier_type)

    def batch_lookup(self, keys: list[OffloadKey], req_context: ReqContext) -> Iterable[bool]:
        return self._transfers.exists(keys)


class MooncakeStoreTier(SecondaryTierManager):  # type: ignore[misc, unused-ignore]
    """Chunks in the store, for this and for every other engine that runs the same model.

    Raises:
        ConfigError: A setting that cannot be; the message says what to change.
    """

    def __init__(
        self,
        offloading_spec: Any,
        primary_kv_view: memoryview,
        tier_type: str,
        backpressure_detector: Any = None,
        **settings: Any,
    ) -> None:
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        settings.pop("locality", None)
        read = TierSettings.read(settings)
        self._store = EngineStore(read, name="vllm-tier")
        identity = _identity(offloading_spec.config, read, self.block_size_bytes)
        self._transfers = TierTransfers(self._store, read, identity, primary_kv_view)
        self._lookups = _Lookups(self._transfers, tier_type)
        self._loading: dict[int, list[OffloadKey]] = {}

    def lookup(self, key: OffloadKey, req_context: ReqContext) -> LookupResult:
        """Return whether a chunk is there, or that this is not known yet."""
        found = self._lookups.lookup(key, req_context)
        if found is None:
            return LookupResult.RETRY
        return LookupResult.HIT if found else LookupResult.MISS

    def submit_store(self, job_metadata: TransferJob) -> None:
        """Store chunks, in the background."""
        keys = list(job_metadata.keys)
        self._transfers.save(job_metadata.job_id, keys, job_metadata.chunk_ids)

    def submit_load(self, job_metadata: TransferJob) -> None:
        """Load chunks, in the background."""
        keys = list(job_metadata.keys)
        self._loading[job_metadata.job_id] = keys
        self._transfers.load(job_metadata.job_id, keys, job_metadata.chunk_ids)

    def get_finished_jobs(self) -> Iterable[JobResult]:
        """Return what has ended since the last call."""
        results = []
        for ended in self._transfers.take_ended():
            keys = self._loading.pop(ended.job_id, None)
            loaded = None
            if keys is not None and not all(ended.is_done):
                loaded = [key for key, done in zip(keys, ended.is_done, strict=True) if done]
                # Else vLLM, which remembers what it was told, would try to load them for ever.
                self._lookups.mark_miss(set(keys).difference(loaded))
            results.append(
                JobResult(
                    job_id=ended.job_id,
                    success=all(ended.is_done),
                    successful_keys=loaded,
                    transfer_time=ended.seconds,
                    transfer_bytes=ended.moved_bytes,
                )
            )
        return results

    def has_pending_work(self) -> bool:
        """Whether jobs run."""
        return not self._transfers.is_idle

    def touch(self, keys: Collection[OffloadKey], req_context: ReqContext) -> None:
        """Tell the store, soon, that chunks were used."""
        self._transfers.touch(list(keys))

    def on_new_request(self, req_context: ReqContext) -> RequestOffloadingContext:
        """Return that this tier wants every new chunk."""
        return RequestOffloadingContext()

    def on_request_finished(self, req_context: ReqContext) -> None:
        """Forget what was looked up for a request."""
        self._lookups.cleanup(req_context.req_id)

    def on_schedule_end(self, context: Any) -> None:
        """Ask the store what was asked for in this step."""
        self._lookups.flush()

    def drain_jobs(self) -> None:
        """Wait until all jobs have ended."""
        self._transfers.drain()

    def shutdown(self) -> None:
        """End; what was stored stays."""
        self._lookups.shutdown()
        self._transfers.close()
        self._store.close()
