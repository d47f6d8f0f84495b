"""One of SGLang's host pools: where the bytes of its pages are, and what they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sglang
import torch

from mooncake_store.client import CacheIdentity, ParallelShape
from mooncake_store.errors import ConfigError
from mooncake_store.integrations.model_revision import name_and_revision
from mooncake_store.integrations.settings import StoreSettings

__all__ = ["PagePool", "identify"]

# Pools of rank-replicated models that are a rank's own all the same.
_OF_A_RANK = ("mamba",)


def identify(
    config: Any, settings: StoreSettings, name: str, pool: Any, layout: str
) -> CacheIdentity:
    """Return the identity of a pool's pages.

    Args:
        config: SGLang's `HiCacheStorageConfig`.
        settings: Of this backend.
        name: Of the pool.
        pool: It.
        layout: How the bytes of a page lie.
    """
    model, revision = name_and_revision(
        config.model_name or "unnamed", model=settings.model, revision=settings.revision
    )
    # Ranks of latent attention hold equal bytes: they share a page, which one of them writes.
    is_shared = config.is_mla_model and name not in _OF_A_RANK
    if name.startswith("draft"):
        is_shared = is_shared and "MLA" in type(pool).__name__
    return CacheIdentity(
        tenant=settings.tenant,
        model=model,
        revision=revision,
        dtype=str(pool.dtype).removeprefix("torch."),
        layout=f"sglang {sglang.__version__} {name} {type(pool).__name__} {layout}",
        block_size=pool.page_size or 1,
        parallel=ParallelShape(
            tp_size=1 if is_shared else config.tp_size,
            tp_rank=0 if is_shared else config.tp_rank,
            pp_size=config.pp_size,
            pp_rank=config.pp_rank,
            cp_size=config.attn_cp_size,
            cp_rank=config.attn_cp_rank,
        ),
    )


class PagePool:
    """A host pool; a page of it is one object, however many pieces it lies in.

    Args:
        config: SGLang's `HiCacheStorageConfig`.
        settings: Of this backend.
        name: Of the pool.
        pool: SGLang's pool in host memory.

    Raises:
        ConfigError: Its pages cannot be addressed; the message says which layout can be.
    """

    def __init__(self, config: Any, settings: StoreSettings, name: str, pool: Any) -> None:
        self._pool = pool
        self.page_size = pool.page_size or 1
        # Composed pools (`HostPoolGroup`) and those of some accelerators have no such method.
        addresses_of = getattr(pool, "get_page_buffer_meta", None)
        try:
            if addresses_of is None:
                raise NotImplementedError(f"{type(pool).__name__} has no get_page_buffer_meta")
            _, sizes = addresses_of(torch.arange(self.page_size))
        except (NotImplementedError, ValueError) as error:
            raise ConfigError(
                f"pool {name}: its pages have no addresses ({error}); "
                "start with --hicache-mem-layout page_first"
            ) from error
        tag = getattr(pool, "storage_format_tag", None) or ""
        self.page_bytes = sum(sizes)
        pieces = f"{len(sizes)}:{'+'.join(map(str, dict.fromkeys(sizes)))}"
        # The same sizes may stand for other numbers of layers and heads.
        numbers = [str(getattr(pool, each, "")) for each in ("layer_num", "head_num", "head_dim")]
        self.identity = identify(
            config, settings, name, pool, f"{pool.layout} {tag} {'x'.join(numbers)} {pieces}"
        )

    def keys(self, names: Sequence[str]) -> list[str]:
        """Return the keys of pages, of which SGLang gives the hashes."""
        return [self.identity.key(name) for name in names]

    def pieces(self, indices: Any, count: int) -> tuple[list[list[int]], list[list[int]]]:
        """Return addresses and sizes of the pieces of so many pages.

        Args:
            indices: Tokens' places in the pool, page after page.
            count: Pages.
        """
        if len(indices) != count * self.page_size:
            raise ValueError(f"{len(indices)} places are no {count} pages of {self.page_size}")
        addresses, sizes = self._pool.get_page_buffer_meta(indices)
        each = len(addresses) // count
        starts = range(0, len(addresses), each)
        return (
            [addresses[start : start + each] for start in starts],
            [sizes[start : start + each] for start in starts],
        )
