"""vLLM's KV cache in the store: `KVConnectorBase_V1` of vLLM 0.32.

    --kv-transfer-config '{"kv_connector": "MooncakeStore", "kv_role": "kv_both",
        "kv_connector_module_path": "mooncake_store.integrations.vllm.connector",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {"master": "127.0.0.1:7700"}}'

The scheduler's half (`scheduler.py`) and a worker's (`worker.py`) have the logic; here is what vLLM
calls.  docs/integrations/vllm.md is for users.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import vllm
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from mooncake_store.client import CacheIdentity, ParallelShape
from mooncake_store.errors import ConfigError
from mooncake_store.integrations.engine_store import EngineStore
from mooncake_store.integrations.model_revision import name_and_revision
from mooncake_store.integrations.vllm.plan import Plan
from mooncake_store.integrations.vllm.scheduler import SchedulerSide
from mooncake_store.integrations.vllm.settings import VllmSettings
from mooncake_store.integrations.vllm.worker import WorkerSide

__all__ = ["MooncakeStore"]

log = logging.getLogger("mooncake_store.integrations")


@dataclass
class StoreHandshake(KVConnectorHandshakeMetadata):  # type: ignore[misc, unused-ignore]
    """From a worker to the scheduler, once: how blocks are named and what they consist of."""

    base: CacheIdentity
    parts: list[CacheIdentity]


@dataclass
class StorePlan(KVConnectorMetadata):  # type: ignore[misc, unused-ignore]
    """From the scheduler to each worker, every step."""

    plan: Plan = field(default_factory=Plan)


def _base_identity(vllm_config: Any, settings: VllmSettings, spec: Any) -> CacheIdentity:
    """Return the identity that all workers of one model share."""
    model_config = vllm_config.model_config
    name, revision = name_and_revision(
        model_config.model,
        model=settings.model,
        revision=settings.revision,
        fallback=model_config.revision or "",
    )
    return CacheIdentity(
        tenant=settings.tenant,
        model=name,
        revision=revision,
        dtype=str(spec.dtype).removeprefix("torch."),
        layout=f"vllm {vllm.__version__}",
        block_size=spec.block_size,
    )


def _checked_spec(vllm_config: Any, kv_cache_config: Any) -> Any:
    """Return the specification of the first cache group, when all of them can be stored.

    Raises:
        ConfigError: It cannot, or the engine would fail requests instead of computing.
    """
    transfer = vllm_config.kv_transfer_config
    if transfer.kv_load_failure_policy != "recompute":
        raise ConfigError(
            'set "kv_load_failure_policy": "recompute" in --kv-transfer-config: a block that is '
            "gone from the store is computed then, and the request does not fail"
        )
    parallel = vllm_config.parallel_config
    if parallel.decode_context_parallel_size > 1 or parallel.prefill_context_parallel_size > 1:
        raise ConfigError("context parallelism is not supported by this connector")
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    if not all(isinstance(spec, FullAttentionSpec | SlidingWindowSpec) for spec in specs):
        kinds = ", ".join(sorted({type(spec).__name__ for spec in specs}))
        raise ConfigError(
            f"the model has caches of kinds that this connector does not store ({kinds}): full "
            "attention and sliding windows are; run the model without this connector"
        )
    if len({(spec.block_size, spec.dtype) for spec in specs}) != 1:
        raise ConfigError("the model's kinds of caches have blocks of different sizes or dtypes")
    return specs[0]


class MooncakeStore(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc, unused-ignore]
    """Blocks of prompts, kept in the store for this and for every other engine.

    Raises:
        ConfigError: A setting or a model that cannot be; the message says what to change.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        settings = VllmSettings.read(self._kv_transfer_config.kv_connector_extra_config or {})
        self._settings = settings
        self._spec = _checked_spec(vllm_config, kv_cache_config)
        self._store = EngineStore(settings, name=f"vllm-{role.name.lower()}")
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._handshake: StoreHandshake | None = None
        if role == KVConnectorRole.SCHEDULER:
            # Several groups: vLLM can be told of a failure only while a request waits for its load.
            self._scheduler = SchedulerSide(
                self._store,
                self._spec.block_size,
                loads_early=len(kv_cache_config.kv_cache_groups) > 1,
            )
        else:
            self._worker = WorkerSide(self._store, settings)

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache: nobody waits for what it stores."""
        return False

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """With slices, layers wait for theirs: a whole graph would not."""
        return int(extra_config.get("layer_slices", 1)) > 1

    def shutdown(self) -> None:
        """End; what was stored stays."""
        if self._worker is not None:
            self._worker.close()
            log.info("blocks moved: %s", self._worker.counts)
        self._store.close()

    # ---- the worker ------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Take the paged cache."""
        assert self._worker is not None
        config = self._vllm_config
        base = _base_identity(config, self._settings, self._spec)
        layers = config.compilation_config.static_forward_context
        backends = {
            layers[name].get_attn_backend().get_name() for name in kv_caches if name in layers
        }
        shape = self._shape()

        def identify(layout: str) -> CacheIdentity:
            device = next(iter(kv_caches.values())).device.type
            text = f"{base.layout} {device} {'+'.join(sorted(backends))};{layout}"
            return CacheIdentity(
                tenant=base.tenant, model=base.model, revision=base.revision, dtype=base.dtype,
                layout=text, block_size=base.block_size, parallel=shape,
            )  # fmt: skip

        num_blocks = self._kv_cache_config.num_blocks
        groups = [group.layer_names for group in self._kv_cache_config.kv_cache_groups]
        parts = self._worker.register(
            kv_caches, num_blocks, identify, groups if len(groups) > 1 else ()
        )
        self._handshake = StoreHandshake(base, parts)

    def _shape(self) -> ParallelShape:
        """Return which part of a block this worker holds; ranks with equal bytes are one."""
        from vllm.distributed.parallel_state import get_pp_group, get_tp_group

        replicas = max(1, getattr(self._kv_cache_config, "kv_tp_replicas", 1))
        tensor, pipeline = get_tp_group(), get_pp_group()
        return ParallelShape(
            tp_size=tensor.world_size // replicas,
            tp_rank=tensor.rank_in_group // replicas,
            pp_size=pipeline.world_size,
            pp_rank=pipeline.rank_in_group,
        )

    def get_handshake_metadata(self) -> StoreHandshake | None:
        """Return what the scheduler must know of this worker."""
        return self._handshake

    def _plan(self) -> Plan:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, StorePlan)
        return metadata.plan

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Begin a step."""
        super().bind_connector_metadata(connector_metadata)
        if self._worker is not None:
            self._worker.begin(self._plan())

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin a step's loads: before its computation, or after it where that needs none."""
        assert self._worker is not None
        self._worker.load()

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Wait for a layer's blocks."""
        assert self._worker is not None
        self._worker.wait_for_layer(layer_name)

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Note that a layer has been computed."""
        assert self._worker is not None
        self._worker.layer_computed(layer_name)

    def wait_for_save(self) -> None:
        """End a step."""
        assert self._worker is not None
        self._worker.end()

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Return the requests whose early loads have ended."""
        assert self._worker is not None
        ended, failed = self._worker.take_loaded()
        return KVConnectorTransferResults(finished_recving=ended, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Return the blocks that must be computed instead."""
        assert self._worker is not None
        return self._worker.take_failed_blocks()

    # ---- the scheduler ---------------------------------------------------------------------------

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Take from all workers what a block consists of."""
        assert self._scheduler is not None
        found = [each for _, each in sorted(metadata.items()) if isinstance(each, StoreHandshake)]
        if not found or any(each.base != found[0].base for each in found):
            log.error("workers disagree about the model: the store is not used")
            return
        parts = [part for each in found for part in each.parts]
        self._scheduler.set_parts(found[0].base, parts)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Return how many tokens can be loaded, and whether the request waits for them.

        Else they are loaded within the step that computes the others.
        """
        assert self._scheduler is not None
        count = self._scheduler.matched_tokens(request, num_computed_tokens)
        return count, count > 0 and self._scheduler.loads_early

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Note that there is memory for what can be loaded."""
        assert self._scheduler is not None
        self._scheduler.allocated(request, num_external_tokens, blocks.get_block_ids())

    def build_connector_meta(self, scheduler_output: Any) -> StorePlan:
        """Return what a step loads and saves."""
        assert self._scheduler is not None
        return StorePlan(self._scheduler.plan(scheduler_output))

    def update_connector_output(self, connector_output: Any) -> None:
        """Note that a step has ended, and which loads."""
        assert self._scheduler is not None
        ended = connector_output.finished_recving or ()
        self._scheduler.loaded_early(ended, connector_output.failed_recving)
        self._scheduler.step_ended()

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Forget a request; its blocks may be freed at once."""
        assert self._scheduler is not None
        self._scheduler.finished(request.request_id)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As `request_finished`."""
        return self.request_finished(request, [])

    def reset_cache(self) -> bool | None:
        """Remove this model's blocks, and no neighbour's."""
        return self._scheduler.reset() if self._scheduler is not None else None
