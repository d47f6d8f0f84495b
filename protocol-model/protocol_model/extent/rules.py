"""The decisions of the protocol, by name.

A rule that a scenario leaves out is modelled the way a plausible first design has it, so one model
is the specification, that first design, and the specification less any one rule.
"""

from __future__ import annotations

__all__ = ["FIRST_DESIGN", "RULES", "SPECIFICATION"]

RULES = {
    "version_words": (
        "the word of an extent is the version of its put and a live bit, set by SEAL, cleared "
        "by FREE, both only forwards; without: a counter that FREE raises"
    ),
    "ack_match": "FREED counts only for exactly the extent and version that the leader is freeing",
    "record_check": "a SEAL is refused unless word, epoch and incarnation are those of its grant",
    "frame_incarnation": (
        "a leader's frame names the server's incarnation, and a restarted server refuses those "
        "for its former life; so does a leader with the inventory of a former life"
    ),
    "persist_epoch": "a server persists an epoch before it acts on it",
    "epoch_floor": (
        "a server that starts takes the coordinator's epoch as its floor: its header may be lost"
    ),
    "atomic_write": "a server checks a write and copies it (or counts the copy) in one step",
    "write_epoch": "a checked write is refused when its grant is of an older epoch or incarnation",
    "fence": (
        "an unchecked write lands only over a queue pair of the grant's session, epoch and "
        "incarnation, and FREE, ADOPT and a restart cut those before they answer"
    ),
    "seal": "the server has recorded a put before the leader completes it",
    "end_names_grant": "put_end names extent and version, not only the key",
    "check_always": "every read compares the word after its last byte, also within a lifetime",
    "read_order": "the word is read after the payload has arrived",
    "versions": (
        "records carry the put's version; a rebuild keeps the highest of a key and frees the rest"
    ),
    "strict_remove": "remove and upsert are answered after the holder has cleared the old word",
    "tombstone": (
        "with a holder or a member out of reach, a tombstone at the coordinator, written in a "
        "transaction that the leader key guards, stands in for its answer"
    ),
    "remove_waits": "a remove that finds its key leaving already waits for that too",
    "loc_expiry": "a cached location is used only within its lifetime",
    "dedupe": "a request is executed once per session and number; late copies have no effect",
    "freed_waits": (
        "FREED, after which pages are handed out, waits for views and copies; it may never come"
    ),
    "cleared_ack": "remove and upsert are answered at CLEARED; without: at FREED",
    "cleared_leaves": "a remove that finds its key leaving waits for CLEARED, not for FREED",
    "view_atomic": "comparing the word and counting the view are one step",
    "views_persist": "the use counts of views outlive the server's process, as the views do",
    "busy_inventory": (
        "an inventory names what is in use without a live word; the next leader frees it again"
    ),
    "relay_after_seal": "a server relays put_end only after word and record are written",
    "revoke_open": "a revoke takes back an open grant only; a complete put it leaves alone",
    "leader_clock": "a leader whose lease has ended answers no client",
}
SPECIFICATION = frozenset(RULES)
# Read kindly: what it says, or what any careful builder would do.
# free_exact: FREE raises only the counter that it names.
FIRST_DESIGN = frozenset(
    {
        "ack_match",
        "atomic_write",
        "dedupe",
        "end_names_grant",
        "free_exact",
        "leader_clock",
        "record_check",
    }
)
