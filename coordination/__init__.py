"""Who leads and who is a member, behind one interface for each coordination service.

`open_coordinator` turns a URI into a `Coordinator`: `local` (a lock file of this host, the default)
or `etcd://a,b,c`.
"""

from mooncake_store.coordination.coordinator import (
    Coordinator,
    Leader,
    Leadership,
    NodeNumber,
    Standby,
    Tombstone,
)
from mooncake_store.coordination.lease import Lease, LeaseState
from mooncake_store.coordination.uri import open_coordinator

__all__ = [
    "Coordinator",
    "Leader",
    "Leadership",
    "Lease",
    "LeaseState",
    "NodeNumber",
    "Standby",
    "Tombstone",
    "open_coordinator",
]
