"""Both halves of the vLLM connector on a real store: a small paged cache stands for an engine's.

The engine itself is run by `make test-engines`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mooncake_store import CacheIdentity, Client, ParallelShape
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.integrations.engine_store import EngineStore
from mooncake_store.integrations.vllm.paged_layer import PagedLayer
from mooncake_store.integrations.vllm.plan import Plan
from mooncake_store.integrations.vllm.scheduler import SchedulerSide
from mooncake_store.integrations.vllm.settings import VllmSettings
from mooncake_store.integrations.vllm.worker import WorkerSide, slices_of

BLOCK, BLOCKS, LAYERS = 4, 16, 5
PROMPT = list(range(14))  # 3 full blocks and a rest


class Engine:
    """A scheduler's and a worker's half with a paged cache, as vLLM would drive them."""

    def __init__(self, address: str, model: str, slices: int, *, shared: bool = False) -> None:
        settings = VllmSettings(master=address, layer_slices=slices, lookup_timeout_s=2.0)
        self.stores = [EngineStore(settings, name="test", patience_s=0.5) for _ in range(2)]
        self.scheduler = SchedulerSide(self.stores[0], BLOCK)
        self.worker = WorkerSide(self.stores[1], settings)
        if shared:  # all layers of a block beside each other
            whole = torch.zeros(BLOCKS, LAYERS, 2, BLOCK, 6)
            self.caches = {f"l{at}": whole[:, at] for at in range(LAYERS)}
        else:
            self.caches = {f"l{at}": torch.zeros(BLOCKS, 2, BLOCK, 6) for at in range(LAYERS)}
        base = CacheIdentity(model=model, dtype="float32", layout="test", block_size=BLOCK)
        shape = ParallelShape(tp_size=2, tp_rank=1)

        def identify(layout: str) -> CacheIdentity:
            return CacheIdentity(
                model=model, dtype="float32", layout=layout, block_size=BLOCK, parallel=shape
            )

        self.parts = self.worker.register(self.caches, BLOCKS, identify)
        self.scheduler.set_parts(base, self.parts)

    def close(self) -> None:
        self.worker.close()
        for store in self.stores:
            store.close()

    def computed(self, layer: int) -> None:
        """Called within a step, after each layer."""

    def found(self, name: str, prompt: list[int] = PROMPT, computed: int = 0, **more: Any) -> int:
        return self.scheduler.matched_tokens(request(name, prompt, **more), computed)

    def step(
        self, name: str, blocks: list[int], scheduled: int, computed: int = 0, loaded: int = 0,
        prompt: list[int] = PROMPT, fill: float = 0.0,
    ) -> set[int]:  # fmt: skip
        """One step of a new request: load, compute (fill the blocks), save."""
        self.scheduler.allocated(request(name, prompt), loaded)
        output = SimpleNamespace(
            finished_req_ids=set(),
            scheduled_new_reqs=[
                SimpleNamespace(
                    req_id=name, block_ids=(blocks,), num_computed_tokens=computed + loaded
                )
            ],
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], resumed_req_ids=set()),
            num_scheduled_tokens={name: scheduled},
        )
        return self.carry_out(
            self.scheduler.plan(output), blocks[(computed + loaded) // BLOCK :], fill
        )

    def carry_out(self, plan: Plan, blocks: list[int], fill: float) -> set[int]:
        """Carry out as vLLM does: loads that a step does not need begin after its last layer."""
        self.worker.begin(plan)
        if plan.loads:
            self.worker.load()
        for at, (layer, cache) in enumerate(self.caches.items()):
            self.worker.wait_for_layer(layer)
            for block in blocks:
                cache[block] = fill + at + block / 100
            self.worker.layer_computed(layer)
            self.computed(at)
        if not plan.loads:
            self.worker.load()
        self.worker.end()
        failed = self.worker.take_failed_blocks()
        self.scheduler.step_ended()
        return failed


def request(name: str, prompt: list[int], **more: Any) -> SimpleNamespace:
    fields: dict[str, Any] = {
        "request_id": name, "prompt_token_ids": prompt, "prompt_embeds": None, "mm_features": [],
        "num_tokens": len(prompt), "lora_request": None, "cache_salt": None,
    }  # fmt: skip
    return SimpleNamespace(**{**fields, **more})


@pytest.fixture
def model() -> str:
    return uuid.uuid4().hex


@pytest.fixture(params=[1, 2, 5, 9])
def slices(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def engines(shared_cluster: Cluster, model: str, slices: int) -> Iterator[list[Engine]]:
    made = [
        Engine(shared_cluster.address, model, slices, shared=shared) for shared in (False, False)
    ]
    yield made
    for engine in made:
        engine.close()


def test_what_one_engine_computes_another_loads(engines: list[Engine], slices: int) -> None:
    producer, consumer = engines
    assert producer.found("a") == 0
    assert producer.step("a", [3, 5, 7, 9], 14, fill=1.0) == set()
    count = min(slices, LAYERS)
    assert producer.worker.counts.saved == 3 * count
    assert consumer.found("b") == 12
    assert consumer.step("b", [2, 4, 6, 8], 2, loaded=12, fill=8.0) == set()
    assert consumer.worker.counts.loaded == 3 * count
    for layer in consumer.caches:
        for theirs, ours in ((3, 2), (5, 4), (7, 6)):
            assert torch.equal(producer.caches[layer][theirs], consumer.caches[layer][ours])
            assert consumer.caches[layer][ours].any()
    assert consumer.worker.counts.saved == 0  # there was nothing new


def test_slices_are_saved_while_later_layers_are_computed(
    engines: list[Engine], slices: int
) -> None:
    engine = engines[0]
    order = list(engine.caches)
    ends = [order.index(part.layers[-1].name) for part in engine.worker._slices]
    seen: list[int] = []

    def computed(layer: int) -> None:
        if layer != LAYERS - 1 and layer in ends:
            wanted = 3 * (ends.index(layer) + 1)
            end = time.monotonic() + 30
            while engine.worker.counts.saved < wanted and time.monotonic() < end:
                time.sleep(0.001)
            seen.append(engine.worker.counts.saved)

    engine.computed = computed  # type: ignore[method-assign]
    engine.step("a", [3, 5, 7, 9], 14, fill=1.0)
    count = min(slices, LAYERS)
    assert seen == [3 * at for at in range(1, count)]
    assert engine.worker.counts.saved == 3 * count


def test_the_last_token_is_left_to_compute(engines: list[Engine]) -> None:
    producer, consumer = engines
    assert producer.found("a", PROMPT[:12]) == 0
    producer.step("a", [10, 1, 2], 12, prompt=PROMPT[:12], fill=1.0)
    assert consumer.found("b", PROMPT[:12]) == 8
    assert consumer.found("c", PROMPT[:13]) == 12
    assert consumer.found("d", PROMPT[:13], computed=4) == 8
    assert consumer.found("e", PROMPT[:13], computed=12) == 0
    assert consumer.found("f", PROMPT[:13], computed=5) == 0


def test_a_block_that_has_gone_is_reported_and_nothing_after_it_is_saved(
    engines: list[Engine], slices: int, shared_cluster: Cluster
) -> None:
    producer, consumer = engines
    producer.found("a")
    producer.step("a", [10, 1, 2, 3], 14, fill=1.0)
    longer = [*PROMPT[:12], *range(50, 60)]
    assert consumer.found("b", longer) == 12
    gone = bytes.fromhex(
        CacheIdentity(
            model=producer.parts[0].model, dtype="float32", layout="test", block_size=BLOCK
        ).prefix_keys(PROMPT)[1].rpartition("-")[2]
    )  # fmt: skip
    with Client(shared_cluster.address) as store:
        assert store.remove(producer.parts[0].key(gone)) is True
    failed = consumer.step("b", [4, 5, 6, 7, 8], 10, loaded=12, prompt=longer, fill=9.0)
    assert failed == {5}
    assert consumer.worker.counts.saved == 0
    output = SimpleNamespace(
        finished_req_ids={"b"}, scheduled_new_reqs=[], num_scheduled_tokens={},
        scheduled_cached_reqs=SimpleNamespace(req_ids=[], resumed_req_ids=set()),
    )  # fmt: skip
    consumer.carry_out(consumer.scheduler.plan(output), [], 0.0)
    assert consumer.found("again", longer) == 4


def test_chunks_are_saved_as_they_are_computed(engines: list[Engine]) -> None:
    producer, consumer = engines
    producer.found("a")
    producer.step("a", [10], 6, fill=1.0)
    assert consumer.found("b") == 4
    output = SimpleNamespace(
        finished_req_ids=set(), scheduled_new_reqs=[], num_scheduled_tokens={"a": 8},
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=["a"], resumed_req_ids=set(), num_computed_tokens=[6],
            new_block_ids=[([1, 2, 3],)],
        ),
    )  # fmt: skip
    producer.carry_out(producer.scheduler.plan(output), [1, 2, 3], 1.0)
    assert consumer.found("c") == 12


def test_salts_and_adapters_find_nothing_of_others(engines: list[Engine]) -> None:
    producer, consumer = engines
    producer.found("a")
    producer.step("a", [10, 1, 2, 3], 14, fill=1.0)
    adapter = SimpleNamespace(lora_name="x", lora_path="/x")
    assert consumer.found("b", cache_salt="x") == 0
    assert consumer.found("c", lora_request=adapter) == 0
    assert consumer.found("d", prompt_embeds=object()) == 0
    assert consumer.found("e") == 12


def test_a_reset_removes_this_models_blocks_only(
    engines: list[Engine], shared_cluster: Cluster
) -> None:
    producer, consumer = engines
    producer.found("a")
    producer.step("a", [10, 1, 2, 3], 14, fill=1.0)
    with Client(shared_cluster.address) as store:
        store.put("neighbour/" + producer.parts[0].model, b"x")
        assert producer.scheduler.reset() is True
        assert consumer.found("b") == 0
        assert store.remove("neighbour/" + producer.parts[0].model) is True


def test_without_a_store_the_engine_computes_and_soon_uses_one_that_comes(model: str) -> None:
    engine = Engine("127.0.0.1:1", model, 2)
    try:
        started = time.monotonic()
        assert engine.found("a") == 0
        assert engine.step("a", [10, 1, 2, 3], 14, fill=1.0) == set()
        assert time.monotonic() - started < 0.5
        assert engine.scheduler.reset() is False
    finally:
        engine.close()


def test_blocks_that_lie_beside_each_other_move_as_one_piece(
    shared_cluster: Cluster, model: str
) -> None:
    producer = Engine(shared_cluster.address, model, 1, shared=True)
    consumer = Engine(shared_cluster.address, model, 1, shared=True)
    try:
        producer.found("a")
        producer.step("a", [3, 5, 7, 9], 14, fill=1.0)
        assert consumer.found("b") == 12
        assert consumer.step("b", [2, 4, 6, 8], 2, loaded=12) == set()
        for layer in consumer.caches:
            assert torch.equal(producer.caches[layer][5], consumer.caches[layer][4])
    finally:
        producer.close()
        consumer.close()


def test_a_prompt_of_more_blocks_than_a_call_takes_is_looked_up_in_part(
    shared_cluster: Cluster, model: str
) -> None:
    engine = Engine(shared_cluster.address, model, 2)
    try:
        prompt = [*PROMPT[:12], *range(4 * 40_000)]
        assert engine.found("a", PROMPT) == 0
        engine.step("a", [10, 1, 2, 3], 14, fill=1.0)
        assert engine.found("b", prompt) == 12
        for store in engine.stores:
            store.client.close()  # type: ignore[union-attr]
        assert engine.found("c", PROMPT) == 0
    finally:
        engine.close()


def test_layers_are_cut_evenly() -> None:
    names = [f"l{at}" for at in range(7)]
    assert [len(part) for part in slices_of(names, 3)] == [2, 2, 3]
    assert [name for part in slices_of(names, 3) for name in part] == names
    assert len(slices_of(names, 99)) == 7


def test_memory_whose_blocks_do_not_lie_together_is_refused() -> None:
    PagedLayer("ok", torch.zeros(4, 2, 3).transpose(1, 2), 4)
    assert PagedLayer("parts", torch.zeros(8, 3), 4).block_bytes == 24
    for tensor in (torch.zeros(4, 2, 6)[:, :, :3], torch.zeros(5, 3)):
        with pytest.raises(ValueError, match="layer bad"):
            PagedLayer("bad", tensor, 4)


# ---- several kinds of caches ----


class HybridEngine:
    """Two groups of layers over the same memory: full attention, and a window of two blocks."""

    def __init__(self, address: str, model: str, slices: int) -> None:
        settings = VllmSettings(master=address, layer_slices=slices, lookup_timeout_s=2.0)
        self.stores = [EngineStore(settings, name="test", patience_s=0.5) for _ in range(2)]
        self.scheduler = SchedulerSide(self.stores[0], BLOCK, loads_early=True)
        self.worker = WorkerSide(self.stores[1], settings)
        memory = [torch.zeros(BLOCKS, 2, BLOCK, 6) for _ in range(2)]
        self.groups = [["full-0", "full-1"], ["window-0", "window-1"]]
        self.caches = {
            f"{kind}-{at}": memory[at] for at in range(2) for kind in ("full", "window")
        }  # each memory is shared by a layer of either group

        def identify(layout: str) -> CacheIdentity:
            return CacheIdentity(model=model, dtype="float32", layout=layout, block_size=BLOCK)

        parts = self.worker.register(self.caches, BLOCKS, identify, self.groups)
        assert len(set(parts)) == 2 * min(slices, 2)
        self.scheduler.set_parts(identify("base"), parts)

    def close(self) -> None:
        self.worker.close()
        for store in self.stores:
            store.close()

    def step(self, new: list[SimpleNamespace], scheduled: dict[str, int], fill: float) -> None:
        """One step that fills the blocks of new requests, those of each group with its own."""
        output = SimpleNamespace(
            finished_req_ids=set(),
            scheduled_new_reqs=new,
            scheduled_cached_reqs=SimpleNamespace(req_ids=[], resumed_req_ids=set()),
            num_scheduled_tokens=scheduled,
        )
        plan = self.scheduler.plan(output)
        self.worker.begin(plan)
        if plan.loads:
            self.worker.load()
        for name, cache in self.caches.items():
            self.worker.wait_for_layer(name)
            group = int(name.startswith("window"))
            for each in new:
                for block in each.block_ids[group][each.num_computed_tokens // BLOCK :]:
                    cache[block] = fill + block / 100
            self.worker.layer_computed(name)
        if not plan.loads:
            self.worker.load()
        self.worker.end()
        self.scheduler.step_ended()

    def load(self, name: str, blocks: list[list[int]], tokens: int) -> tuple[set[str], set[str]]:
        """Load a request beside steps, and return who has ended and who has failed."""
        self.scheduler.allocated(request(name, PROMPT), tokens, blocks)
        self.step([], {}, 0.0)
        end = time.monotonic() + 30
        while time.monotonic() < end:
            ended, failed = self.worker.take_loaded()
            if ended:
                self.scheduler.loaded_early(ended, failed)
                return ended, failed
            time.sleep(0.005)
        raise AssertionError("the load does not end")


@pytest.fixture
def hybrids(shared_cluster: Cluster, model: str, slices: int) -> Iterator[list[HybridEngine]]:
    made = [HybridEngine(shared_cluster.address, model, slices) for _ in range(2)]
    yield made
    for engine in made:
        engine.close()


def test_each_kind_of_cache_is_loaded_into_its_own_blocks(hybrids: list[HybridEngine]) -> None:
    producer, consumer = hybrids
    assert producer.scheduler.matched_tokens(request("a", PROMPT), 0) == 0
    blocks = ([1, 2, 3, 4], [5, 6, 7, 8])
    new = SimpleNamespace(req_id="a", block_ids=blocks, num_computed_tokens=0)
    producer.step([new], {"a": 14}, 1.0)

    assert consumer.scheduler.matched_tokens(request("b", PROMPT), 0) == 12
    # The window reaches back two blocks: vLLM gives none for the first one.
    assert consumer.load("b", [[9, 10, 11, 12], [0, 13, 14, 15]], 12) == ({"b"}, set())
    for at in range(2):
        theirs, ours = producer.caches[f"full-{at}"], consumer.caches[f"full-{at}"]
        for there, here in ((1, 9), (2, 10), (3, 11), (6, 13), (7, 14)):
            assert torch.equal(theirs[there], ours[here])
            assert ours[here].any()
        assert not ours[0].any()
    # What was loaded is not saved again; nothing of it is pinned any more.
    saved = consumer.worker.counts
    new = SimpleNamespace(
        req_id="b", block_ids=([9, 10, 11, 12], [0, 13, 14, 15]), num_computed_tokens=12
    )
    consumer.step([new], {"b": 2}, 3.0)
    assert (saved.saved, saved.known, saved.missed) == (0, 0, 0)


def test_a_request_whose_load_fails_is_computed_and_not_looked_up_again(
    hybrids: list[HybridEngine],
) -> None:
    producer, consumer = hybrids
    producer.scheduler.matched_tokens(request("a", PROMPT), 0)
    blocks = ([1, 2, 3, 4], [5, 6, 7, 8])
    producer.step(
        [SimpleNamespace(req_id="a", block_ids=blocks, num_computed_tokens=0)], {"a": 14}, 1.0
    )
    assert consumer.scheduler.matched_tokens(request("b", PROMPT), 0) == 12
    client = producer.stores[0].client
    assert client is not None
    for listed in client.list(consumer.worker._slices[-1].identity.prefix):
        client.remove(listed.key)
    assert consumer.load("b", [[9, 10, 11, 12], [0, 13, 14, 15]], 12) == ({"b"}, {"b"})
    assert consumer.scheduler.matched_tokens(request("b", PROMPT), 0) == 0
