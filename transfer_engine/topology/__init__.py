"""Which network interfaces suit which memory: found, ranked, paired with a peer's, and watched.

    here = discover()                                   # from sysfs and netlink
    here = read_override("topology.json").apply(here)   # what an operator knows better
    for item in rank(here, "cuda:0"):
        print(item.nic.name, item.tier.name, item.why)
    there = engine.peer_topology("10.0.0.5:7800")
    for rail in rails(here, there, "cuda:0", "cpu:1"):
        print(rail.local_end, rail.remote_end, rail.why)

Only `discover` and `TopologyWatch` touch the machine; everything else is pure (docs/topology.md).
"""

from mooncake_store.transfer_engine.topology.changes import Change, ChangeKind, changes
from mooncake_store.transfer_engine.topology.exchange import from_json, to_json
from mooncake_store.transfer_engine.topology.gid import (
    GidChoice,
    choose_gid,
    choose_gid_pair,
    rank_gids,
)
from mooncake_store.transfer_engine.topology.matrix import (
    ANYWHERE,
    Device,
    NicPreference,
    Tier,
    Topology,
)
from mooncake_store.transfer_engine.topology.nic import (
    Address,
    Gid,
    GidType,
    Grade,
    Nic,
    NicKind,
    RdmaLayer,
    RdmaPort,
    Transport,
    unusable_reason,
)
from mooncake_store.transfer_engine.topology.override import (
    NicOverride,
    Override,
    parse_override,
    read_override,
)
from mooncake_store.transfer_engine.topology.rails import Rail, Reach, rails
from mooncake_store.transfer_engine.topology.ranking import (
    Meeting,
    Proximity,
    RankedNic,
    grades,
    make_matrix,
    proximity,
    rank,
    usable_nics,
)
from mooncake_store.transfer_engine.topology.sysfs import discover
from mooncake_store.transfer_engine.topology.watch import (
    Debounce,
    TopologyChange,
    TopologyWatch,
)

__all__ = [
    "ANYWHERE",
    "Address",
    "Change",
    "ChangeKind",
    "Debounce",
    "Device",
    "Gid",
    "GidChoice",
    "GidType",
    "Grade",
    "Meeting",
    "Nic",
    "NicKind",
    "NicOverride",
    "NicPreference",
    "Override",
    "Proximity",
    "Rail",
    "RankedNic",
    "RdmaLayer",
    "RdmaPort",
    "Reach",
    "Tier",
    "Topology",
    "TopologyChange",
    "TopologyWatch",
    "Transport",
    "changes",
    "choose_gid",
    "choose_gid_pair",
    "discover",
    "from_json",
    "grades",
    "make_matrix",
    "parse_override",
    "proximity",
    "rails",
    "rank",
    "rank_gids",
    "read_override",
    "to_json",
    "unusable_reason",
    "usable_nics",
]
