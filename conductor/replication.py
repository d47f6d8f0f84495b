"""How many replicas a hot block wants."""

from __future__ import annotations

from mooncake_store._native import lib
from mooncake_store.errors import RequestError

__all__ = ["wanted_replicas"]


def wanted_replicas(
    reads_per_s: float, *, block_bytes: float, nic_bytes_per_s: float, share: float, instances: int
) -> int:
    """Return for how many replicas each one serves at most a share of its NIC.

    The papers replicate as a by-product: whoever fetches keeps a copy.  This looks at demand
    instead, so that copies are there before the one holder's NIC has a queue.

    Args:
        reads_per_s: Of the block, all instances together.
        block_bytes: Its size.
        nic_bytes_per_s: Of one instance.
        share: Of that NIC, above 0.
        instances: At most so many.

    Raises:
        RequestError: A number that cannot be.
    """
    if reads_per_s < 0 or block_bytes <= 0 or nic_bytes_per_s <= 0 or share <= 0 or instances < 1:
        raise RequestError("sizes, bandwidth, share and instances are above 0")
    return int(lib.cd_wanted_replicas(reads_per_s, block_bytes, nic_bytes_per_s, share, instances))
