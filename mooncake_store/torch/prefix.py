"""The KV cache of transformers, stored by prefix of its tokens and loaded for the next prompt.

    loaded = load_longest_prefix(store, prompt, config=model.config, model="llama-3-8b")
    output = model.generate(torch.tensor([prompt]), past_key_values=loaded.cache,
                            return_dict_in_generate=True)
    save_prefix(store, output.past_key_values, output.sequences[0, :-1], model="llama-3-8b")

Every block of tokens is an object of its own (`blocks.py`), so prompts share what they have in
common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from mooncake_store.client import CacheIdentity, Client
from mooncake_store.errors import RequestError, StoreError
from mooncake_store.torch.blocks import Layer, LayerShape, layout_of, pieces_of, shape_of
from mooncake_store.torch.memory import dtype_name, empty

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from mooncake_store.client.options import PutOptions

__all__ = ["BLOCK_SIZE", "LoadedPrefix", "cache_identity", "load_longest_prefix", "save_prefix"]

BLOCK_SIZE = 64
"""Tokens of a block where nobody says otherwise."""

_BATCH_BLOCKS = 64  # of one put: bounds the list of pieces
_LOAD_PIN_S = 60.0  # the pins' deadline, should this process stop in the middle
# Layers that keep every token's keys and values, and nothing else.
_FULL_LAYERS = frozenset({"DynamicLayer", "StaticLayer"})


@dataclass(frozen=True, slots=True)
class LoadedPrefix:
    """What was found of a prompt.

    Attributes:
        cache: A `DynamicCache` with the first `num_tokens` tokens; an empty one for a miss.
        num_tokens: 0 for a miss.
    """

    cache: Any
    num_tokens: int


def _config_shapes(config: Any) -> list[LayerShape]:
    """Return the layers' shapes that a transformers configuration promises."""
    text = config.get_text_config(decoder=True)
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return [LayerShape(heads, dim, dim)] * int(text.num_hidden_layers)


def cache_identity(
    config: Any,
    *,
    model: str,
    dtype: torch.dtype | None = None,
    block_size: int = BLOCK_SIZE,
    revision: str = "",
    tenant: str = "",
) -> CacheIdentity:
    """Return the identity under which a model's cache is stored.

    Args:
        config: The model's configuration, of transformers.
        model: Its name, as everybody who shares the cache calls it.
        dtype: Of the cache; None: the configuration's.
        block_size: Tokens of a block.
        revision: Of the weights: a commit or a fingerprint.
        tenant: Trust domain.

    Example:
        >>> identity = cache_identity(model.config, model="llama-3-8b")  # doctest: +SKIP
        >>> store.remove_matching(identity.prefix)  # doctest: +SKIP
    """
    name = str(dtype or config.get_text_config(decoder=True).dtype or torch.float32)
    return CacheIdentity(
        model=model,
        revision=revision,
        tenant=tenant,
        dtype=name.removeprefix("torch."),
        layout=layout_of(_config_shapes(config)),
        block_size=block_size,
    )


def save_prefix(
    store: Client,
    cache: Any,
    token_ids: Sequence[int] | torch.Tensor,
    *,
    model: str,
    block_size: int = BLOCK_SIZE,
    revision: str = "",
    tenant: str = "",
    salts: Sequence[str] = (),
    sequence: int = 0,
    timeout_s: float | None = None,
    **options: Unpack[PutOptions],
) -> int:
    """Store the full blocks of a sequence's cache that are not stored yet.

    Args:
        store: An open client.
        cache: A transformers `Cache` whose layers keep all tokens: a DynamicCache, a StaticCache.
        token_ids: The tokens that the cache holds, from the first; more than it holds are ignored.
        model: The model's name, as everybody who shares the cache calls it.
        block_size: Tokens of a block; only full ones are stored.
        revision: Of the weights: a commit or a fingerprint.
        tenant: Trust domain.
        salts: What separates requests to one model: an adapter's name.
        sequence: Which one of the cache's batch.  It must begin with its first token: no padding.
        timeout_s: Deadline of each batch of blocks.
        options: As of `Client.put`.

    Returns:
        How many tokens, from the first, are stored now.

    Raises:
        RequestError: The cache does not keep all tokens (sliding windows, state spaces), or is
            quantized.
        StoreError: A block could not be stored; those before it are.
    """
    layers = _layers_of(cache)
    if not layers or cache.get_seq_length() == 0:
        return 0
    sequences = layers[0][0].shape[0]
    if not 0 <= sequence < sequences:
        raise RequestError(f"the cache has {sequences} sequences, and none of number {sequence}")
    identity = CacheIdentity(
        model=model,
        revision=revision,
        tenant=tenant,
        dtype=dtype_name(layers[0][0]),
        layout=layout_of(map(shape_of, layers)),
        block_size=block_size,
    )
    held = min(int(cache.get_seq_length(index)) for index in range(len(layers)))
    tokens: Any = token_ids
    keys = identity.prefix_keys(tokens[:held], salts=salts)
    for at in range(0, len(keys), _BATCH_BLOCKS):
        batch = keys[at : at + _BATCH_BLOCKS]
        blocks = range(at, at + len(batch))
        values, kept = _gather(layers, sequence, blocks, block_size)
        results = store.put_batch(batch, values, chain=True, timeout_s=timeout_s, **options)
        del kept
        for result in results:
            if isinstance(result, StoreError):
                raise result
        options["parent"] = batch[-1]
    return len(keys) * block_size


def _layers_of(cache: Any) -> list[Layer]:
    layers: list[Layer] = []
    for index, layer in enumerate(cache.layers):
        kind = type(layer).__name__
        if kind not in _FULL_LAYERS:
            raise RequestError(
                f"layer {index} of the cache is a {kind}, which does not keep all tokens as they "
                "are: only caches of full attention are stored by prefix"
            )
        if layer.is_initialized:
            layers.append((layer.keys, layer.values))
    if len(layers) not in (0, len(cache.layers)):
        raise RequestError("some layers of the cache hold nothing yet")
    return layers


def _gather(
    layers: Sequence[Layer], sequence: int, blocks: range, block_size: int
) -> tuple[list[list[tuple[int, int]]], list[Any]]:
    """Return each block's pieces, and what keeps them alive."""
    kept: list[Any] = []
    first, end = blocks.start * block_size, blocks.stop * block_size
    if any(tensor.device.type != "cpu" for layer in layers for tensor in layer):
        # From a device the blocks are brought here at once, one copy a layer.
        layers = [
            (keys[sequence : sequence + 1, :, first:end].to("cpu"),
             values[sequence : sequence + 1, :, first:end].to("cpu"))
            for keys, values in layers
        ]  # fmt: skip
        kept.append(layers)
        sequence, blocks = 0, range(len(blocks))
    values = []
    for block in blocks:
        pieces, copies = pieces_of(layers, sequence, block, block_size)
        values.append(pieces)
        kept += copies
    return values, kept


def load_longest_prefix(
    store: Client,
    token_ids: Sequence[int] | torch.Tensor,
    *,
    config: Any,
    model: str,
    dtype: torch.dtype | None = None,
    block_size: int = BLOCK_SIZE,
    revision: str = "",
    tenant: str = "",
    salts: Sequence[str] = (),
    device: torch.device | str = "cpu",
    timeout_s: float | None = None,
) -> LoadedPrefix:
    """Return a cache with the longest stored prefix of a prompt.

    The prompt's last token is never loaded, so that the model has something to compute.

    Args:
        store: An open client.
        token_ids: The prompt.
        config: The model's configuration, of transformers.
        model: As it was saved, like `block_size`, `revision`, `tenant` and `salts`.
        dtype: Of the cache; None: the configuration's.
        block_size: Tokens of a block.
        revision: Of the weights.
        tenant: Trust domain.
        salts: What separates requests to one model.
        device: Where the cache will be.
        timeout_s: Deadline of finding and of reading.

    Raises:
        RequestError: The model's cache does not keep all tokens.
    """
    from transformers import DynamicCache  # type: ignore[import-not-found, unused-ignore]

    identity = cache_identity(
        config, model=model, dtype=dtype, block_size=block_size, revision=revision, tenant=tenant
    )
    cache: Any = DynamicCache(config=config)
    _layers_of(cache)
    tokens: Any = token_ids
    keys = identity.prefix_keys(tokens[: max(0, len(tokens) - 1)], salts=salts)
    if not keys:
        return LoadedPrefix(cache, 0)
    element = getattr(torch, identity.dtype)
    shapes = _config_shapes(config)
    with store.match_prefix(
        keys, pin=True, pin_timeout_s=_LOAD_PIN_S, timeout_s=timeout_s
    ) as match:
        count = match.count
        layers = _allocate(shapes, count * block_size, element, torch.device(device))
        targets = [pieces_of(layers, 0, block, block_size)[0] for block in range(count)]
        results = store.get_batch_into(keys[:count], targets, timeout_s=timeout_s) if count else []
    block_bytes = sum(shape.block_bytes(block_size, element.itemsize) for shape in shapes)
    found = 0
    while found < len(results) and results[found] == block_bytes:
        found += 1
    if found == 0:
        return LoadedPrefix(cache, 0)
    length = found * block_size
    for layer, loaded in zip(cache.layers, layers, strict=True):
        # As the layer's first update would, without its copy.
        held = [tensor[:, :, :length].to(device) for tensor in loaded]
        layer.lazy_initialization(*held)
        layer.keys, layer.values = held
    return LoadedPrefix(cache, length)


def _allocate(
    shapes: Sequence[LayerShape], length: int, dtype: torch.dtype, device: torch.device
) -> list[Layer]:
    """Return layers on the CPU, in pinned memory where they go on to a GPU."""
    pinned = device.type == "cuda"

    def make(heads: int, dim: int) -> torch.Tensor:
        made = empty((1, heads, length, dim), dtype, "cpu")
        return made.pin_memory() if pinned else made

    return [(make(s.heads, s.key_dim), make(s.heads, s.value_dim)) for s in shapes]
