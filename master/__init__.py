"""The master: which objects exist, where their replicas are, and what is evicted."""

from mooncake_store.master.config import MasterConfig

__all__ = ["MasterConfig"]
