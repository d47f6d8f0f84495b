"""Settings of the vLLM connector: `kv_connector_extra_config`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from mooncake_store.errors import ConfigError

__all__ = ["VllmSettings"]


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
        known: dict[str, type] = {each.name: type(each.default) for each in fields(cls)}
        taken: dict[str, Any] = {}
        for name, value in given.items():
            kind = known.get(name)
            if kind is None:
                near = get_close_matches(name, known, 1)
                hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
                raise ConfigError(f"kv_connector_extra_config has no {name!r}{hint}")
            if kind is float and type(value) is int:
                value = float(value)
            if type(value) is not kind:
                raise ConfigError(f"{name} is a {kind.__name__}, not {value!r}")
            if isinstance(value, int | float) and not value > 0:
                raise ConfigError(f"{name} is above 0, not {value!r}")
            taken[name] = value
        return cls(**taken)
