"""vLLM's own factory makes our tier, in its environment: questions in, answers out, a line each.

tier.py MASTER MODEL

A question is a list of calls, each a name and arguments; the answer lists what came of them.  Keys
are small numbers, rows too; `fill` puts a byte into a row, `row` reads it.
"""

from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace
from typing import Any

ROWS, ROW_BYTES = 8, 8192


class Tier:
    """The tier, and the memory that it moves."""

    def __init__(self, master: str, model: str) -> None:
        import numpy as np
        from vllm.v1.kv_offload.base import OffloadKey, ReqContext, make_offload_key
        from vllm.v1.kv_offload.config import (
            OffloadingCacheConfig,
            OffloadingConfig,
            OffloadingGroupConfig,
            OffloadingModelConfig,
            OffloadingParallelConfig,
        )
        from vllm.v1.kv_offload.tiering.factory import SecondaryTierFactory

        config = OffloadingConfig(
            groups=(OffloadingGroupConfig(16, ("layer.0", "layer.1"), 0),),
            worker_kv_bytes_per_block=ROW_BYTES, enable_kv_cache_events=False, extra_config={},
            engine_id="engine", model=OffloadingModelConfig(model, "bfloat16"),
            cache=OffloadingCacheConfig(16, 1),
            parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, False),
        )  # fmt: skip
        self._rows = np.zeros((ROWS, ROW_BYTES), dtype="int8")
        self._tier: Any = SecondaryTierFactory.create_secondary_tier(
            {
                "type": "MooncakeStoreTier",
                "module_path": "mooncake_store.integrations.vllm.secondary_tier",
                "master": master,
            },
            memoryview(self._rows),
            SimpleNamespace(config=config),
        )
        self._request = ReqContext("request")
        self._key = lambda number: OffloadKey(make_offload_key(bytes([number]) * 32, 0))
        self._jobs = 0
        self._array = np.array

    def fill(self, row: int, value: int) -> None:
        self._rows[row] = value

    def row(self, row: int) -> list[int]:
        return [int(self._rows[row].min()), int(self._rows[row].max())]

    def lookup(self, number: int) -> str:
        """Ask until it is known, a step each time."""
        for _ in range(2000):
            result = self._tier.lookup(self._key(number), self._request)
            if result.name != "RETRY":
                return str(result.name)
            self._tier.on_schedule_end(None)
            time.sleep(0.005)
        return "RETRY"

    def forget(self) -> None:
        self._tier.on_request_finished(self._request)

    def store(self, numbers: list[int], rows: list[int]) -> Any:
        return self._run(self._tier.submit_store, numbers, rows, False)

    def load(self, numbers: list[int], rows: list[int]) -> Any:
        return self._run(self._tier.submit_load, numbers, rows, True)

    def _run(self, submit: Any, numbers: list[int], rows: list[int], is_promotion: bool) -> Any:
        from vllm.v1.kv_offload.tiering.base import TransferJob

        self._jobs += 1
        keys = [self._key(number) for number in numbers]
        submit(TransferJob(self._jobs, keys, self._array(rows), is_promotion, self._request))
        self._tier.drain_jobs()
        (result,) = self._tier.get_finished_jobs()
        assert result.job_id == self._jobs
        assert not self._tier.has_pending_work()
        some = result.successful_keys
        return [result.success, None if some is None else [key[0] for key in some]]


if __name__ == "__main__":
    tier = Tier(*sys.argv[1:])
    print("READY", flush=True)
    for line in sys.stdin:
        answers = [getattr(tier, name)(*arguments) for name, *arguments in json.loads(line)]
        print("ANSWER " + json.dumps(answers), flush=True)
