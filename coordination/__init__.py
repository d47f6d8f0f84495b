"""Who leads and who is a member, behind one interface for each coordination service.

`open_coordinator` turns a URI into a `Coordinator`: `local` (a lock file of this host, the default)
or, in time, `etcd://a,b,c`.
"""

from mooncake_store.coordination.coordinator import Coordinator, Leadership, Tombstone
from mooncake_store.coordination.uri import open_coordinator

__all__ = ["Coordinator", "Leadership", "Tombstone", "open_coordinator"]
