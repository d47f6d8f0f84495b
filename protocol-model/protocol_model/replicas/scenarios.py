"""Which parties and faults are searched through, and where each rule is missed."""

from __future__ import annotations

from protocol_model.replicas.configuration import Budget, Configuration

__all__ = ["MIXED", "NEEDED", "SCENARIOS"]

PUT, UPSERT = False, True
ENDS = frozenset({"S1", "S2", "S3", "S4", "L1"})

SCENARIOS = {
    # several extents and replicas
    "parts": Configuration(
        (2, 2),
        parts=2,
        is_stored=False,
        puts=(PUT,),
        budget=Budget(elections=1, kills=1, abandons=1),
    ),
    "replicas": Configuration(
        (1, 1),
        replicas=2,
        is_stored=False,
        puts=(PUT, PUT),
        budget=Budget(elections=1, kills=1, abandons=1),
    ),
    "replicas, reboot": Configuration(
        (1, 1), replicas=2, puts=(PUT,), budget=Budget(elections=1, reboots=1, kills=1)
    ),
    "replicas, parts, upsert": Configuration(
        (4, 4), parts=2, replicas=2, puts=(UPSERT,), budget=Budget(elections=1, kills=1)
    ),
    # copies
    "moves": Configuration((2, 2), budget=Budget(copies=1, timeouts=1, elections=1, kills=1)),
    "moves, parts": Configuration(
        (2, 2),
        parts=2,
        puts=(PUT,),
        budget=Budget(copies=1, timeouts=1, evictions=1, elections=1),
    ),
    "moves, remove": Configuration(
        (1, 1), budget=Budget(copies=1, removes=1, timeouts=1, elections=2)
    ),
    "moves, upsert": Configuration((2, 2), puts=(UPSERT,), budget=Budget(copies=1, elections=1)),
    "moves, put": Configuration(
        (1, 1), puts=(PUT,), budget=Budget(copies=1, evictions=1, elections=1)
    ),
    "moves, reboot": Configuration((2, 2), budget=Budget(copies=1, elections=1, reboots=1)),
    "moves, notes": Configuration(
        (1, 1), budget=Budget(copies=1, notes=2, timeouts=1, elections=1)
    ),
    "moves of two, notes": Configuration(
        (2, 2, 2), replicas=2, budget=Budget(copies=1, notes=1, elections=1)
    ),
    "back with a note": Configuration(
        (1, 1), puts=(PUT,), budget=Budget(notes=1, evictions=1, elections=2)
    ),
    # tombstones and the coordinator
    "absent": Configuration((1, 1), budget=Budget(removes=1, elections=2)),
    "absent, put": Configuration((1, 1), puts=(PUT,), budget=Budget(removes=1, elections=2)),
    "absent, old tombstone": Configuration(
        (1, 1), has_tombstone=True, budget=Budget(removes=1, elections=2)
    ),
    "absent, upsert": Configuration((1, 1), puts=(UPSERT,), budget=Budget(elections=2, losses=1)),
    "silent": Configuration(
        (1,), puts=(PUT,), budget=Budget(removes=2, evictions=1, elections=1, kills=1)
    ),
    "lost for a while": Configuration(
        (1, 1), puts=(PUT,), budget=Budget(removes=1, losses=2, elections=1)
    ),
    "absent copies": Configuration((1, 1), budget=Budget(copies=1, removes=1, elections=2)),
    "condemned": Configuration(
        (1, 1), puts=(PUT,), budget=Budget(removes=1, elections=2, condemnations=1)
    ),
    "outage": Configuration(
        (1, 1), puts=(UPSERT,), budget=Budget(removes=1, elections=1, outages=1)
    ),
    "outage, ends": Configuration(
        (1,), budget=Budget(removes=1, elections=1, outages=1, kills=1), properties=ENDS
    ),
    # pins, views, eviction
    "pins": Configuration(
        (2, 1),
        puts=(UPSERT,),
        budget=Budget(pins=1, evictions=1, copies=1, elections=1),
    ),
    "pins, ends": Configuration((1,), budget=Budget(pins=1, elections=1), properties=ENDS),
    "views": Configuration(
        (3,), parts=2, puts=(PUT,), budget=Budget(views=1, evictions=1, elections=1, kills=1)
    ),
    "views, copies": Configuration(
        (1, 1), puts=(PUT,), budget=Budget(views=1, copies=1, evictions=1, elections=1)
    ),
}

# Without this rule, this scenario breaks.
NEEDED = {
    "seal_all": "parts",
    "whole_replica": "parts",
    "copy_epoch": "moves, put",
    "copy_counted": "moves, put",
    "copy_checked": "moves, parts",
    "copy_open": "moves, remove",
    "copy_all": "moves",
    "copy_alone": "moves, upsert",
    "copy_leaves": "moves, remove",
    "note_copied": "moves, notes",
    "note_ranks": "moves, notes",
    "lease": "absent",
    "stone_written": "outage",
    "stones_read_last": "absent",
    "stone_above": "absent copies",
    "stone_below": "absent, put",
    "stone_absent": "absent",
    "stone_asked": "absent",
    "condemned_kept": "condemned",
    "drop_adopted": "absent",
    "drop_cleared": "silent",
    "drop_guarded": "absent, old tombstone",
    "pin_spares": "pins",
    "pin_by_key": "pins",
    "pin_ends": "pins, ends",
    "view_counted": "views",
    "view_whole": "views",
}

# For random walks: everything at once.
MIXED = (
    Configuration(
        (3, 3),
        puts=(UPSERT, PUT),
        budget=Budget(
            elections=2,
            outages=1,
            kills=1,
            reboots=1,
            losses=1,
            removes=2,
            evictions=1,
            abandons=1,
            copies=2,
            timeouts=1,
            notes=2,
            pins=1,
            views=1,
            condemnations=1,
        ),
    ),
    Configuration(
        (4, 4, 2),
        parts=2,
        replicas=2,
        puts=(UPSERT, PUT),
        budget=Budget(
            elections=2,
            kills=2,
            reboots=1,
            losses=1,
            removes=1,
            evictions=1,
            abandons=1,
            copies=2,
            timeouts=1,
            notes=2,
            pins=1,
            views=1,
            condemnations=1,
        ),
    ),
    Configuration(
        (2, 2, 1),
        replicas=2,
        puts=(PUT, UPSERT, PUT),
        budget=Budget(
            elections=3,
            outages=1,
            kills=2,
            losses=1,
            removes=2,
            evictions=2,
            abandons=2,
            copies=2,
            timeouts=2,
            notes=2,
            pins=1,
            views=1,
            condemnations=1,
        ),
    ),
)
