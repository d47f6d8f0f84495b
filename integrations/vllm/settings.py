"""Settings of the vLLM connector, `kv_connector_extra_config`, and of the tier for offloading."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mooncake_store.integrations.settings import StoreSettings, read_settings

__all__ = ["TierSettings", "VllmSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings(StoreSettings):
    """What may stand in `kv_connector_extra_config`.

    Attributes:
        layer_slices: In how many parts, by layers, a block is stored: each is loaded and saved
            while other layers are computed, and is an object of its own.
        lookup_timeout_s: Deadline of finding a prompt; the scheduler waits for it.
        save_timeout_s: Deadline of saving a step's blocks; the next step waits for it.
    """

    layer_slices: int = 1
    lookup_timeout_s: float = 0.2
    save_timeout_s: float = 2.0

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> VllmSettings:
        """Return settings from vLLM's mapping.

        Raises:
            ConfigError: A name that is none, or a value of another type.
        """
        return read_settings(cls, given, "kv_connector_extra_config")


@dataclass(frozen=True, slots=True, kw_only=True)
class TierSettings(StoreSettings):
    """What may stand in an entry of `secondary_tiers`, beside `type` and `module_path`.

    Attributes:
        threads: How many transfers run at once.
        lookup_timeout_s: Deadline of a look-up, in the background.
        lease_s: What was found is not evicted for so long: until vLLM loads it.
    """

    threads: int = 2
    lookup_timeout_s: float = 1.0
    lease_s: float = 10.0

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> TierSettings:
        """Return settings from an entry.

        Raises:
            ConfigError: A name that is none, or a value of another type.
        """
        return read_settings(cls, given, "secondary_tiers")
