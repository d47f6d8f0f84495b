"""Settings of both LMCache connectors."""

from __future__ import annotations

from dataclasses import dataclass

from mooncake_store.integrations.engine_store import EngineStore

__all__ = ["LmcacheSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LmcacheSettings:
    """What may be set.

    Attributes:
        master: Address of the store; empty: $MOONCAKE_STORE_MASTER, else 127.0.0.1:7700.
        model: The model's name; empty: LMCache's, and for a local folder its fingerprint only.
        revision: Of the weights; empty: the folder's fingerprint, or none.
        tenant: Trust domain: a secret keeps others from guessing keys.
        lookup_timeout_s: Deadline of finding chunks.
        load_timeout_s: Deadline of loading; what is not there by then is computed.
        save_timeout_s: Deadline of saving.
        pin_timeout_s: How long what was found is kept for who loads it.
        replicas: Copies of a chunk.
        threads: Calls that run at once.
    """

    master: str = ""
    model: str = ""
    revision: str = ""
    tenant: str = ""
    lookup_timeout_s: float = 0.5
    load_timeout_s: float = 5.0
    save_timeout_s: float = 5.0
    pin_timeout_s: float = 30.0
    replicas: int = 1
    threads: int = 4

    def open(self, name: str) -> EngineStore:
        """Return a connection to the store."""
        return EngineStore(
            self.master or None,
            lookup_timeout_s=self.lookup_timeout_s,
            load_timeout_s=self.load_timeout_s,
            save_timeout_s=self.save_timeout_s,
            replicas=self.replicas,
            name=name,
        )
