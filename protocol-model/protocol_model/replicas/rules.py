"""The decisions of the protocol about objects of several extents and replicas, by name."""

from __future__ import annotations

__all__ = ["RULES", "SPECIFICATION"]

RULES = {
    # several extents and replicas
    "seal_all": "put_end names only replicas of which every part has been sealed",
    "whole_replica": (
        "a rebuild counts a replica only when all its parts are there, and frees the others"
    ),
    # copies
    "copy_epoch": (
        "a copy begins and is sealed only while the epoch that ordered it is the adopted one"
    ),
    "copy_counted": "a running copy holds the use counts of its target",
    "copy_checked": "the source's word is compared after each piece of a copy",
    "copy_open": "a copy is not sealed when its target has been freed meanwhile",
    "copy_all": "the entry switches to the copies when all of them are sealed",
    "copy_alone": "an open put of the key and copies of it exclude each other",
    "copy_leaves": (
        "what takes an object away takes back the copies that are being made of it, and waits "
        "for both"
    ),
    # notes while copies are made
    "note_copied": "copies count only when their holders have the current note",
    "note_ranks": (
        "of two versions of a key the higher counts, unless it is a copy and the lower one has a"
        " later note; a record says whether it is a copy"
    ),
    # tombstones and the coordinator
    "lease": (
        "a leader answers only while its lease runs, which it cannot renew without the coordinator"
    ),
    "stone_written": "what rests on a tombstone is answered after its transaction has succeeded",
    "stones_read_last": "a new leader raises the epoch, then reads the tombstones",
    "stone_above": "a tombstone strikes all versions of the key given so far, also those of copies",
    "stone_below": "but not that of a put that is open, which may be acknowledged after it",
    "stone_absent": (
        "with a member not adopted a remove writes a tombstone, also of a key it does not know"
    ),
    "stone_asked": "a tombstone that is asked for counts already for the inventories that come",
    "drop_adopted": "a tombstone goes when every member has been adopted",
    "drop_cleared": "and what it struck is CLEARED",
    "drop_guarded": "in a transaction that the leader key guards",
    "condemned_kept": (
        "that a server is condemned, and up to which version, is kept at the coordinator before"
        " removes do without tombstones for its sake"
    ),
    # pins, views, eviction
    "pin_spares": "what a session has pinned is not evicted",
    "pin_by_key": "a pin holds its key: through an upsert, through copies",
    "pin_ends": "a session's pins end with it",
    "view_counted": "FREED waits until no view of the extent is open",
    "view_whole": "a view of an object counts only when each of its extents could be opened",
}
SPECIFICATION = frozenset(RULES)
