"""Settings of the SGLang backend: `mooncake_store` in the extra configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mooncake_store.errors import ConfigError
from mooncake_store.integrations.settings import read_settings

__all__ = ["SglangSettings"]

_PLACE = "mooncake_store"


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangSettings:
    """What may be set.

    Attributes:
        master: Address of the store; empty: $MOONCAKE_STORE_MASTER, else 127.0.0.1:7700.
        model: The model's name; empty: SGLang's, and for a local folder its fingerprint only.
        revision: Of the weights; empty: the folder's fingerprint, or none.
        tenant: Trust domain: a secret keeps others from guessing keys.
        lookup_timeout_s: Deadline of finding pages.
        load_timeout_s: Deadline of loading; what is not there by then is computed.
        save_timeout_s: Deadline of saving.
        replicas: Copies of a page.
    """

    master: str = ""
    model: str = ""
    revision: str = ""
    tenant: str = ""
    lookup_timeout_s: float = 0.5
    load_timeout_s: float = 5.0
    save_timeout_s: float = 5.0
    replicas: int = 1

    @classmethod
    def read(cls, extra: Mapping[str, Any]) -> SglangSettings:
        """Return settings from SGLang's extra configuration, which holds names of its own too.

        Raises:
            ConfigError: A name that is none, or a value of another type.
        """
        given = extra.get(_PLACE, {})
        if not isinstance(given, Mapping):
            raise ConfigError(f'{_PLACE} is a table: {{"master": "127.0.0.1:7700"}}')
        return read_settings(cls, given, _PLACE)
