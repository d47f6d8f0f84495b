"""What may be said of a call, the same for every call of its kind."""

from __future__ import annotations

from typing import TypedDict

from mooncake_store.transfer_engine.priority import Priority, Share

__all__ = ["Priority", "PutOptions", "Share"]


class PutOptions(TypedDict, total=False):
    """Keyword arguments of put, put_batch, put_tensor and upsert.

    Attributes:
        replicas: Copies wanted, each on another node.  Fewer are made with a warning.
        min_replicas: Fewer than this raise instead.
        ttl_s: The object expires after so long.
        hard_pin: It is never evicted, and removed by force only.
        soft_pin: It is spared while others can be evicted.
        parent: Key of the object that this one continues: it is evicted before its parent.
        group: Objects of a group leave together; 0: none.
        preferred_server: Number of the server (see `members`) to be filled first.
        priority: Among what this client moves to the same servers; None: NORMAL.
        share: Whose bytes these are, among those of one priority; None: nobody's.
    """

    replicas: int | None
    min_replicas: int | None
    ttl_s: float | None
    hard_pin: bool
    soft_pin: bool
    parent: str | None
    group: int
    preferred_server: int | None
    priority: Priority | None
    share: Share | None
