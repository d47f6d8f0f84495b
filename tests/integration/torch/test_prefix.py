"""KV caches of transformers by prefix: a small Llama computes the same with and without them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from mooncake_store import Client
from mooncake_store.cli.bench.cluster import Cluster
from mooncake_store.errors import RequestError
from mooncake_store.torch import cache_identity, load_longest_prefix, save_prefix

pytestmark = pytest.mark.timeout(180)  # the first import of a model's code takes its time
BLOCK = 16
PROMPT = [(7 * at + 3) % 199 for at in range(75)]  # 4 full blocks and a rest


def llama(**changes: Any) -> Any:
    torch.manual_seed(5)
    config = transformers.LlamaConfig(
        vocab_size=200, hidden_size=64, intermediate_size=96, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        initializer_range=0.5, **changes,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def model() -> Any:
    return llama()


@pytest.fixture(params=["local", "tcp"])
def store(request: pytest.FixtureRequest, shared_cluster: Cluster) -> Iterator[Client]:
    with Client(
        shared_cluster.address, strict=True, use_local_paths=request.param == "local"
    ) as client:
        yield client


@pytest.fixture
def name() -> str:
    return f"llama/{uuid.uuid4().hex}"


def computed(model: Any, tokens: list[int], cache: Any = None) -> Any:
    """Return the logits of the last token, and the cache."""
    done = 0 if cache is None else cache.get_seq_length()
    with torch.no_grad():
        out = model(torch.tensor([tokens[done:]]), past_key_values=cache, use_cache=True)
    return out.logits[0, -1], out.past_key_values


def generated(model: Any, tokens: list[int], cache: Any = None) -> list[int]:
    out = model.generate(
        torch.tensor([tokens]), past_key_values=cache, max_new_tokens=12, do_sample=False,
        pad_token_id=0, attention_mask=torch.ones(1, len(tokens), dtype=torch.int64),
    )  # fmt: skip
    return out[0, len(tokens) :].tolist()


def save(store: Client, model: Any, name: str, tokens: list[int] = PROMPT, **more: Any) -> int:
    _, cache = computed(model, tokens)
    return save_prefix(store, cache, tokens, model=name, block_size=BLOCK, **more)


def load(store: Client, model: Any, name: str, tokens: list[int] = PROMPT, **more: Any) -> Any:
    return load_longest_prefix(
        store, tokens, config=model.config, model=name, block_size=BLOCK, **more
    )


def test_a_loaded_prefix_computes_the_same_tokens(store: Client, model: Any, name: str) -> None:
    expected, whole = computed(model, PROMPT)
    assert save(store, model, name) == 64
    loaded = load(store, model, name)
    assert loaded.num_tokens == loaded.cache.get_seq_length() == 64
    for ours, theirs in zip(loaded.cache.layers, whole.layers, strict=True):
        assert torch.equal(ours.keys, theirs.keys[:, :, :64])
        assert torch.equal(ours.values, theirs.values[:, :, :64])
    logits, _ = computed(model, PROMPT, loaded.cache)
    assert torch.allclose(logits, expected, atol=1e-4)
    assert generated(model, PROMPT, load(store, model, name).cache) == generated(model, PROMPT)


def test_a_prompt_that_goes_on_otherwise_shares_what_is_common(
    store: Client, model: Any, name: str
) -> None:
    save(store, model, name)
    other = PROMPT[:40] + [1] * 40
    loaded = load(store, model, name, other)
    assert loaded.num_tokens == 32
    assert generated(model, other, loaded.cache) == generated(model, other)


def test_corrupted_blocks_change_the_tokens(store: Client, model: Any, name: str) -> None:
    save(store, model, name)
    identity = cache_identity(model.config, model=name, block_size=BLOCK)
    for listed in store.list(identity.prefix):
        data = torch.frombuffer(bytearray(store.get(listed.key) or b""), dtype=torch.float32)
        store.upsert(listed.key, (-data).numpy())
    assert generated(model, PROMPT, load(store, model, name).cache) != generated(model, PROMPT)


def test_the_last_token_is_left_to_compute(store: Client, model: Any, name: str) -> None:
    save(store, model, name, PROMPT[:64])
    assert load(store, model, name, PROMPT[:64]).num_tokens == 48
    assert load(store, model, name, PROMPT[:65]).num_tokens == 64
    assert load(store, model, name, []).num_tokens == 0


def test_a_miss_is_an_empty_cache(store: Client, model: Any, name: str) -> None:
    loaded = load(store, model, name)
    assert loaded.num_tokens == 0
    assert generated(model, PROMPT, loaded.cache) == generated(model, PROMPT)


def test_saved_again_only_what_is_new_is_stored(store: Client, model: Any, name: str) -> None:
    save(store, model, name)
    longer = PROMPT + [9] * 40
    assert save(store, model, name, longer) == 112
    identity = cache_identity(model.config, model=name, block_size=BLOCK)
    assert len(list(store.list(identity.prefix))) == 7
    assert load(store, model, name, longer).num_tokens == 112
    assert store.remove_matching(identity.prefix) == 7


def test_models_adapters_and_tenants_share_nothing(store: Client, model: Any, name: str) -> None:
    save(store, model, name, salts=["adapter"])
    assert load(store, model, name).num_tokens == 0
    assert load(store, model, name, salts=["other"]).num_tokens == 0
    assert load(store, model, name, salts=["adapter"], tenant="x").num_tokens == 0
    assert load(store, model, name, salts=["adapter"], revision="2").num_tokens == 0
    assert load(store, model, name, salts=["adapter"], dtype=torch.bfloat16).num_tokens == 0
    assert load(store, model, name, salts=["adapter"]).num_tokens == 64


def test_each_sequence_of_a_batch_can_be_saved(store: Client, model: Any, name: str) -> None:
    prompts = [PROMPT[:48], PROMPT[::-1][:48]]
    with torch.no_grad():
        cache = model(torch.tensor(prompts), use_cache=True).past_key_values
    for sequence, tokens in enumerate(prompts):
        saved = save_prefix(store, cache, tokens, model=name, block_size=BLOCK, sequence=sequence)
        assert saved == 48
    for tokens in prompts:
        assert generated(model, tokens, load(store, model, name, tokens).cache) == generated(
            model, tokens
        )
    with pytest.raises(RequestError, match="number 2"):
        save_prefix(store, cache, prompts[0], model=name, block_size=BLOCK, sequence=2)


def test_a_static_cache_is_saved_too(store: Client, model: Any, name: str) -> None:
    cache = transformers.StaticCache(config=model.config, max_cache_len=96)
    _, cache = computed(model, PROMPT, cache)
    assert save_prefix(store, cache, PROMPT, model=name, block_size=BLOCK) == 64
    assert generated(model, PROMPT, load(store, model, name).cache) == generated(model, PROMPT)


def test_a_cache_that_forgets_tokens_is_refused(store: Client, name: str) -> None:
    config = transformers.MistralConfig(
        vocab_size=200, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, sliding_window=8,
    )  # fmt: skip
    mistral = transformers.MistralForCausalLM(config).eval()
    _, cache = computed(mistral, PROMPT)
    with pytest.raises(RequestError, match="SlidingWindow"):
        save_prefix(store, cache, PROMPT, model=name)
    with pytest.raises(RequestError, match="SlidingWindow"):
        load(store, mistral, name)


def test_a_block_that_is_gone_ends_the_prefix(store: Client, model: Any, name: str) -> None:
    save(store, model, name)
    keys = cache_identity(model.config, model=name, block_size=BLOCK).prefix_keys(PROMPT)
    store.remove(keys[2])
    loaded = load(store, model, name)
    assert loaded.num_tokens == 32
    assert generated(model, PROMPT, loaded.cache) == generated(model, PROMPT)
