"""Settings of the vLLM connector, `kv_connector_extra_config`, and of the tier for offloading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mooncake_store.integrations.settings import read_settings

__all__ = ["TierSettings", "VllmSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """What may stand in `kv_connector_extra_config`.

    Attributes:
        master: Address of the store; empty: $MOONCAKE_STORE_MASTER, else 127.0.0.1:7700.
        model: The model's name; empty: vLLM's, and for a local folder its fingerprint only.
        revision: Of the weights; empty: vLLM's, or the folder's fingerprint.
        tenant: Trust domain: a secret keeps others from guessing keys.
        layer_slices: In how many parts, by layers, a block is stored: each is loaded and saved
            while other layers are computed, and is an object of its own.
        lookup_timeout_s: Deadline of finding a prompt; the scheduler waits for it.
        load_timeout_s: Deadline of loading; what is not there by then is computed.
        save_timeout_s: Deadline of saving a step's blocks.
        replicas: Copies of a block.
    """

    master: str = ""
    model: str = ""
    revision: str = ""
    tenant: str = ""
    layer_slices: int = 1
    lookup_timeout_s: float = 0.2
    load_timeout_s: float = 5.0
    save_timeout_s: float = 2.0
    replicas: int = 1

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> VllmSettings:
        """Return settings from vLLM's mapping.

        Raises:
            ConfigError: A name that is none, or a value of another type.
        """
        return read_settings(cls, given, "kv_connector_extra_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings:
    """What may stand in an entry of `secondary_tiers`, beside `type` and `module_path`.

    Attributes:
        master: Address of the store; empty: $MOONCAKE_STORE_MASTER, else 127.0.0.1:7700.
        model: The model's name; empty: vLLM's, and for a local folder its fingerprint only.
        revision: Of the weights; empty: the folder's fingerprint.
        tenant: Trust domain: a secret keeps others from guessing keys.
        replicas: Copies of a chunk.
        threads: How many transfers run at once.
        lookup_timeout_s: Deadline of a look-up, in the background.
        load_timeout_s: Deadline of loading a request's chunks.
        save_timeout_s: Deadline of storing chunks.
        lease_s: What was found is not evicted for so long: until vLLM loads it.
    """

    master: str = ""
    model: str = ""
    revision: str = ""
    tenant: str = ""
    replicas: int = 1
    threads: int = 2
    lookup_timeout_s: float = 1.0
    load_timeout_s: float = 5.0
    save_timeout_s: float = 5.0
    lease_s: float = 10.0

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> TierSettings:
        """Return settings from an entry.

        Raises:
            ConfigError: A name that is none, or a value of another type.
        """
        return read_settings(cls, given, "secondary_tiers")
