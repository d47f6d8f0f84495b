"""Which parties and faults are searched through, and where each rule is missed."""

from __future__ import annotations

from protocol_model.extent.configuration import Budget, Configuration, Place, Put

__all__ = ["MIXED", "NEEDED", "SCENARIOS"]

ONE_PAGE = (Place(0, (0,)),)
TWO_PAGES = (Place(0, (0, 1)),)
TWO_EXTENTS = (Place(0, (0,)), Place(0, (1,)))
TWO_SERVERS = (Place(0, (0,)), Place(1, (1,)))
OVERLAPPING = (Place(0, (0, 1)), Place(0, (1,)))
THREE = (Place(0, (0, 1)), Place(0, (1,)), Place(1, (2,)))

TCP, RDMA, UPSERT = Put(0, "tcp", False), Put(0, "rdma", False), Put(0, "tcp", True)
OTHER = Put(1, "tcp", False)  # another key
RDMA_UPSERT, RDMA_OTHER = Put(0, "rdma", True), Put(1, "rdma", False)


def _empty(
    extents: tuple[Place, ...],
    *puts: Put,
    has_copies: bool = False,
    has_relay: bool = False,
    **budget: int,
) -> Configuration:
    """Nothing is stored at the start."""
    return Configuration(
        extents,
        is_stored=False,
        puts=puts,
        has_copies=has_copies,
        has_relay=has_relay,
        budget=Budget(**budget),
    )


def _stored(
    extents: tuple[Place, ...],
    *puts: Put,
    has_copies: bool = False,
    has_relay: bool = False,
    **budget: int,
) -> Configuration:
    """Key 0 is stored at the start."""
    return Configuration(
        extents,
        puts=puts,
        has_copies=has_copies,
        has_relay=has_relay,
        budget=Budget(**budget),
    )


SCENARIOS = {
    "zombie rdma": _empty(TWO_PAGES, RDMA, RDMA, abandons=1, kills=1, reads=1),
    "zombie tcp": _empty(TWO_PAGES, TCP, TCP, abandons=1, kills=1, reads=1),
    "failover rdma": _empty(TWO_PAGES, RDMA, RDMA, elections=1, kills=1, reads=1),
    "failover tcp": _empty(TWO_PAGES, TCP, TCP, elections=1, kills=1, reads=1),
    "cached": _stored(TWO_PAGES, RDMA, evictions=1, reads=2, elections=1, duplicates=1),
    "cached, reboot": _stored(ONE_PAGE, OTHER, evictions=1, reads=2, reboots=1, kills=1),
    "reboot, failover": _stored(ONE_PAGE, TCP, reboots=1, elections=1, reads=1),
    "remove": _stored(ONE_PAGE, TCP, removes=1, reads=2, elections=1, duplicates=1),
    "evict, remove": _stored(ONE_PAGE, TCP, evictions=1, removes=1, reads=2),
    "duplicates": _stored(ONE_PAGE, TCP, OTHER, evictions=1, removes=1, duplicates=1, reads=1),
    "losses": _stored(ONE_PAGE, TCP, evictions=1, losses=2, elections=1, kills=1, abandons=1),
    "two failovers": _empty(ONE_PAGE, TCP, RDMA, elections=2, kills=1),
    "overlapping": _empty(OVERLAPPING, TCP, OTHER, elections=1, abandons=1, reads=1),
    "upsert": _stored(TWO_EXTENTS, UPSERT, reads=2, elections=1, kills=1),
    "view": _stored(TWO_PAGES, TCP, removes=1, reads=1, views=1, elections=1, kills=1, losses=1),
    "view, rdma": _stored(
        OVERLAPPING,
        RDMA,
        OTHER,
        removes=1,
        reads=1,
        views=1,
        elections=1,
        kills=1,
        evictions=1,
    ),
    "view, upsert": _stored(TWO_EXTENTS, UPSERT, UPSERT, reads=1, views=1, elections=1, kills=1),
    "view, evict, remove": _stored(
        ONE_PAGE, TCP, evictions=1, removes=1, reads=1, views=1, duplicates=1
    ),
    "view for ever": Configuration(
        ONE_PAGE,
        budget=Budget(evictions=1, removes=1, reads=1, views=1, elections=1),
        properties=frozenset({"S4", "L1"}),
    ),
    "copies": _empty(ONE_PAGE, TCP, TCP, has_copies=True, abandons=1, elections=1, kills=1),
    "copies, zombie": _empty(
        TWO_PAGES, TCP, TCP, has_copies=True, abandons=1, elections=1, reads=1
    ),
    "relay": _empty(
        TWO_EXTENTS,
        TCP,
        UPSERT,
        has_relay=True,
        revokes=1,
        elections=1,
        duplicates=1,
        losses=1,
    ),
    "relay, kill": _empty(
        ONE_PAGE,
        TCP,
        TCP,
        has_relay=True,
        revokes=1,
        elections=1,
        kills=1,
        duplicates=1,
        abandons=1,
    ),
    "relay, upsert": _stored(
        TWO_EXTENTS,
        UPSERT,
        has_relay=True,
        revokes=1,
        elections=1,
        kills=1,
        duplicates=1,
        reads=1,
    ),
    "two servers, remove": _stored(TWO_SERVERS, removes=1, reads=2, elections=2),
    "two servers, upsert": _stored(TWO_SERVERS, UPSERT, reads=1, elections=2),
}

# Without this rule, this scenario breaks.
NEEDED = {
    "version_words": "cached, reboot",
    "ack_match": "duplicates",
    "record_check": "two failovers",
    "frame_incarnation": "zombie rdma",
    "persist_epoch": "failover rdma",
    "epoch_floor": "reboot, failover",
    "atomic_write": "zombie tcp",
    "write_epoch": "failover tcp",
    "fence": "zombie rdma",
    "seal": "two failovers",
    "end_names_grant": "zombie rdma",
    "check_always": "cached",
    "read_order": "cached",
    "versions": "two servers, upsert",
    "strict_remove": "remove",
    "tombstone": "two servers, remove",
    "remove_waits": "evict, remove",
    "loc_expiry": "remove",
    "dedupe": "duplicates",
    "freed_waits": "view",
    "cleared_ack": "view for ever",
    "cleared_leaves": "view for ever",
    "view_atomic": "view",
    "views_persist": "view",
    "busy_inventory": "view",
    "relay_after_seal": "relay, kill",
    "revoke_open": "relay",
    "leader_clock": "two servers, remove",
}

# For random walks: everything at once.
MIXED = (
    _stored(
        THREE,
        RDMA_UPSERT,
        TCP,
        RDMA_OTHER,
        has_copies=True,
        elections=2,
        kills=1,
        reboots=1,
        duplicates=2,
        evictions=1,
        removes=2,
        abandons=2,
        reads=3,
        losses=2,
        views=1,
    ),
    _stored(
        THREE,
        UPSERT,
        TCP,
        OTHER,
        has_relay=True,
        elections=2,
        kills=2,
        duplicates=2,
        evictions=1,
        removes=2,
        abandons=1,
        reads=4,
        losses=2,
        revokes=2,
        views=2,
    ),
    _stored(
        TWO_EXTENTS,
        UPSERT,
        UPSERT,
        RDMA,
        has_relay=True,
        elections=2,
        kills=1,
        duplicates=1,
        evictions=1,
        removes=1,
        reads=4,
        losses=1,
        revokes=1,
        views=2,
    ),
    _stored(
        (Place(0, (0, 1)), Place(1, (2, 3))),
        RDMA_UPSERT,
        RDMA_UPSERT,
        elections=2,
        kills=2,
        duplicates=1,
        evictions=1,
        removes=1,
        abandons=1,
        reads=3,
    ),
    _stored(
        TWO_SERVERS,
        UPSERT,
        TCP,
        elections=3,
        kills=1,
        reboots=1,
        duplicates=1,
        evictions=1,
        removes=2,
        abandons=1,
        reads=3,
        losses=1,
    ),
    _empty(
        TWO_PAGES,
        RDMA,
        RDMA,
        TCP,
        elections=1,
        kills=1,
        duplicates=1,
        evictions=1,
        removes=1,
        abandons=2,
        reads=2,
    ),
)
