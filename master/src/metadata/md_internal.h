/* What the files of the metadata core share: its state, and what each file offers the others.
 *
 * Memory: everything of an object lies in its shard (shard.c, index.c).  Records are named by (shard, number)
 * only within a call: any insertion or removal in a shard may move them, so everything that lives longer
 * names an object by hash and version.
 * Failure: what must not stop half way asks for all its memory first (md_reserve); what remains cannot fail.
 */
#ifndef MD_INTERNAL_H
#define MD_INTERNAL_H

#include "md.h"
#include "md_allocator.h"
#include "md_memory.h"
#include "ms_hash.h"

#define MD_SHARDS 256u
#define MD_SERVERS_MAX 4096u
#define MD_SEGMENTS_MAX 4096u /* of one server */
#define MD_CLASSES                                                                                 \
    64u /* lists of a shard, by how soon an object may leave; the last is for soft pins */
#define MD_CLASS_SOFT (MD_CLASSES - 1)
#define MD_NEVER INT64_MAX
#define MD_SILENT_MS 1000          /* after this a holder is silent: a tombstone stands in for it */
#define MD_FREE_REPEAT_MS 1000     /* a FREE that nobody answered */
#define MD_CLEARED_REPEAT_MS 10000 /* a FREE that was CLEARED: FREED may have been lost */
#define MD_NOTE_TIMEOUT_MS 5000
#define MD_COPIES_RUNNING_MAX 32u
#define MD_TASK_COPIES_RUNNING_MAX 24u /* of those: others find room */
#define MD_TASKS_MAX 64u               /* kept, those that have ended too */

/* ---- records (shard.c) --------------------------------------------------------------------------------- */
typedef enum { MD_RECORD_NONE = 0, MD_RECORD_WRITING, MD_RECORD_COMPLETE } md_record_state;

/* In md_record.flags, above those of ms_object_flag that are kept there. */
enum {
    MD_IS_PINNED = 1u << 3,  /* by a session */
    MD_IS_PARENT = 1u << 4,  /* of resident objects */
    MD_HAS_EXPIRY = 1u << 5, /* in extra */
    MD_IS_VISITED = 1u << 6, /* sieve */
    MD_IS_LISTED = 1u << 7,  /* in an eviction list */
};
#define MD_OBJECT_FLAGS (MS_OBJECT_HARD_PIN | MS_OBJECT_SOFT_PIN | MS_OBJECT_HAS_CHECKSUM)

typedef struct md_record {
    ms_hash hash;
    uint64_t version; /* 0: a put that waits for room */
    uint64_t size;
    uint64_t last_tick; /* order of uses over all shards */
    uint32_t page;      /* first page, when there is one replica of one extent ... */
    uint32_t replicas;  /* ... else 1 + offset / 8 of a md_replica_block in the arena */
    uint32_t checksum;
    uint32_t key;                /* offset in the arena */
    uint32_t newer, older;       /* in the eviction list, + 1.  While writing, newer is the put */
    uint32_t extra;              /* + 1 */
    uint32_t used_at, stored_at; /* md_coarse_time */
    uint32_t use_count;
    uint16_t server, segment;
    uint16_t key_length;
    uint16_t depth; /* parents above it that were resident when it was stored */
    uint8_t state, flags;
    uint8_t list_class;
    uint8_t is_changing : 1; /* change_replica is at work on it */
    uint8_t is_copy : 1;     /* its version is that of copies, not of a put */
    uint8_t more_wanted : 4; /* replicas, beyond the first */
} md_record;
_Static_assert(sizeof(md_record) <= 96, "budget: 160 bytes a key");

/* What only some objects have. */
typedef struct md_extra {
    ms_hash parent;
    uint64_t group;
    uint64_t note; /* highest number */
    int64_t expires_at_ms;
    uint32_t tenant;
    uint32_t record; /* + 1; 0: free, and then `tenant` is the next free one */
} md_extra;

enum { MD_REPLICA_DROPPED = 0, MD_REPLICA_THERE = 1 };

typedef struct md_replica {
    uint16_t server, segment;
    uint16_t extent_count;
    uint16_t state;
} md_replica;

/* In the arena: the head, then per replica md_replica and its extents. */
typedef struct md_replica_block {
    uint32_t replica_count;
    uint32_t bytes;
} md_replica_block;

/* Replicas of one record, readable without knowing how they are kept.  Extents point into the shard. */
typedef struct md_replica_set {
    uint32_t count;
    md_replica replicas[MS_REPLICAS_MAX];
    const ms_extent *extents[MS_REPLICAS_MAX];
    ms_extent inline_extent;
} md_replica_set;

typedef struct md_slot {
    uint32_t tag;
    uint32_t record; /* + 1; 0: empty */
} md_slot;

typedef struct md_queue {
    uint32_t oldest, newest; /* + 1 */
} md_queue;

#define MD_HAND_AT_END UINT32_MAX

typedef struct md_shard {
    md_slot *slots;
    md_record *records;
    uint8_t *arena;
    md_extra *extras;
    uint32_t slot_count; /* a power of two, or 0 */
    uint32_t record_capacity, record_fresh, record_count, record_free;
    uint32_t extra_capacity, extra_fresh, extra_count, extra_free;
    uint32_t arena_capacity, arena_used, arena_waste;
    uint32_t arena_touched; /* what was used of it before it was put in order: may be resident */
    uint32_t generation;    /* of the record numbers: raised by a rebuild */
    uint32_t hand;          /* sieve: the next to look at, + 1; 0: the oldest; or MD_HAND_AT_END */
    uint64_t classes;       /* bit c: lists[c] is not empty */
    md_queue lists[MD_CLASSES];
} md_shard;

/* ---- the core ------------------------------------------------------------------------------------------ */
typedef enum {
    MD_TIMER_SESSION = 1,
    MD_TIMER_PUT,
    MD_TIMER_PIN,
    MD_TIMER_FREE,
    MD_TIMER_LEAVE,
    MD_TIMER_SERVER,
    MD_TIMER_NOTE,
    MD_TIMER_CHANGE
} md_timer_kind;

#define MD_WHEEL_BUCKETS 1024u
#define MD_WHEEL_STEP_MS 64

typedef struct md_timer {
    int64_t at_ms;
    uint32_t next, previous; /* 0: none */
    uint32_t owner;
    uint16_t kind;
    uint16_t bucket;
} md_timer;

/* A timing wheel: starting and stopping a timer costs the same however many there are. */
typedef struct md_wheel {
    md_pool timers;
    int64_t step; /* all before this step have fired */
    uint32_t
        buckets[MD_WHEEL_BUCKETS + 1]; /* the last: taken out of its bucket, being looked through */
} md_wheel;

typedef struct md_segment {
    uint32_t tier;
    uint64_t page_count, page_ready;
    int64_t ready_changed_ms;
    md_allocator allocator; /* free runs below page_ready */
    md_run *unready;        /* free runs above, ascending */
    uint32_t unready_count, unready_capacity;
    uint64_t pages_writing, pages_complete;
    uint64_t pages_unpinned; /* of those complete: of objects that no pin protects */
    uint64_t pages_leaving;  /* FREE not yet CLEARED */
    uint64_t pages_held;     /* CLEARED, not FREED: in use by views or copies */
    uint8_t *confirmed;      /* while an inventory comes in: a bit for each first page it names */
} md_segment;

typedef struct md_used {
    uint32_t segment, page, page_count;
} md_used;

typedef struct md_server {
    uint8_t node_id[16];
    uint64_t struck; /* what it brings back up to this version does not count */
    char *host;
    uint32_t host_bytes; /* of the allocation */
    uint32_t host_mark;  /* the same for equal hosts; 0: not told */
    uint32_t incarnation;
    uint8_t is_known; /* the number has been given to node_id */
    uint8_t
        is_member; /* and that is not forgotten; was_member: or was not always, under this leader */
    uint8_t was_member;
    uint8_t state;       /* ms_member_state */
    uint8_t is_adopted;  /* its inventory is in */
    uint8_t takes_in;    /* an inventory is wanted and counts */
    uint8_t is_counted;  /* its segments' page counts are kept */
    uint8_t is_draining; /* asked for; its state says so once it is adopted */
    uint8_t is_ramping;  /* it joined empty while others were not */
    uint8_t is_lost;     /* gone for longer than the grace: its replicas count no more */
    uint8_t was_known;   /* it has joined before, so records may name it ... */
    uint8_t needs_sweep; /* ... and those that its inventory does not confirm have to go */
    uint8_t
        is_condemned; /* too many tombstones for it: another one strikes all that it brings back */
    uint32_t tombstones;  /* written since it left */
    uint32_t ramp_credit; /* 1000: the next replica may go there */
    int64_t ramp_from_ms;
    uint32_t timer;
    uint32_t segment_count;
    md_segment *segments;
    uint64_t object_count; /* replicas */
    md_used *used;         /* while an inventory comes in */
    uint32_t used_count, used_capacity;
    ms_hash
        *uneven; /* objects of which it has another note than others; told at the inventory's end */
    uint32_t uneven_count, uneven_capacity;
} md_server;

typedef struct md_session {
    uint64_t id;
    int64_t last_ms;
    uint32_t tenant;
    uint32_t timer;
    uint32_t first_put, first_pin;
    uint8_t is_ending; /* takes back what it has; no more calls */
} md_session;

typedef struct md_put {
    uint64_t version; /* 0: parked */
    ms_hash hash;
    uint64_t pages;
    uint64_t waiter, reply_to;
    int64_t deadline_ms;
    uint64_t pages_extra; /* parked: evict at least so much at once, because space is in pieces */
    uint32_t session;
    uint32_t session_next, session_previous;
    uint32_t park_next, park_previous;
    uint32_t timer;
    uint32_t flags; /* ms_put_flag */
    uint32_t preferred_server;
    uint16_t spared[2]; /* number + 1, as in ms_put_item */
    uint8_t replica_count, replica_count_min;
    uint8_t is_waiting; /* was parked before: pages that suffice but do not fit are in pieces */
} md_put;

typedef struct md_free {
    uint64_t version, session;
    uint32_t page, page_count;
    uint16_t server, segment;
    uint32_t leave, leave_next;
    uint32_t timer;
    uint8_t is_cleared;
} md_free;

/* An object (or an unfinished put) whose extents are being freed: until all are CLEARED. */
typedef struct md_leave {
    ms_hash hash;
    uint64_t version;
    uint32_t next; /* same bucket of core->leave_of */
    uint32_t first_free;
    uint32_t uncleared;
    uint32_t first_link; /* waits */
    uint32_t timer;
    uint8_t stone;     /* md_stone_state of a tombstone that covers it */
    uint8_t is_silent; /* somebody waited for longer than MD_SILENT_MS */
} md_leave;

typedef enum { MD_STONE_NONE = 0, MD_STONE_ASKED, MD_STONE_WRITTEN } md_stone_state;

/* A tombstone on its way to the coordinator. */
typedef struct md_stone {
    ms_hash hash;
    uint64_t version;
    uint32_t next;
    uint32_t first_link;
} md_stone;

/* A remove or upsert that is answered when all that it waits for has happened. */
typedef struct md_wait {
    uint64_t waiter;
    uint32_t remaining;
    ms_status status;
} md_wait;

typedef struct md_link {
    uint32_t wait, next;
} md_link;

typedef struct md_tombstone {
    ms_hash hash;
    uint64_t version;
    uint32_t next;
} md_tombstone;

/* What protects a key from eviction from outside its record: sessions' pins and resident children. */
typedef struct md_hold {
    ms_hash hash;
    uint32_t next;
    uint32_t children;
    uint32_t first_pin;
    uint32_t pin_count;
} md_hold;

/* A session's pins of one key, and its lease: what nobody takes back. */
typedef struct md_pinning {
    uint32_t hold, session;
    uint32_t hold_next;
    uint32_t session_next, session_previous;
    uint32_t count; /* of pins, which end at deadline_ms */
    uint32_t timer; /* when either ends by itself */
    int64_t deadline_ms;
    int64_t lease_ms; /* until then, whatever becomes of the pins; 0: no lease */
} md_pinning;

typedef struct md_group {
    uint64_t id;
    uint32_t tenant, next;
    ms_hash *members;
    uint32_t count, capacity;
    uint8_t is_awaited; /* md_group_reserve was called for a member that is not in yet */
} md_group;

/* Who is told the end of a note. */
typedef enum { MD_NOTE_FOR_WAITER, MD_NOTE_FOR_CHANGE, MD_NOTE_FOR_NOBODY } md_note_audience;

/* ANNOTATE, or the notes that a changed object needs: answered when all holders have answered. */
typedef struct md_note {
    ms_hash hash;
    uint64_t version, number, waiter;
    uint32_t timer;
    uint32_t holder_count; /* that have not answered */
    uint8_t audience;      /* md_note_audience */
    uint16_t holders[MS_REPLICAS_MAX];
} md_note;

/* change_replica that needs copies: the object is put again, under a version of its own (replica.c). */
typedef struct md_change {
    ms_hash hash;
    uint64_t version; /* of the copies; 0: not placed yet */
    uint64_t source_version, waiter;
    uint64_t tasks;          /* the number of the first target's task */
    uint32_t for_task;       /* index of a md_task + 1: it is told the end, not a waiter */
    uint8_t is_whole;        /* not with fewer new replicas than asked */
    uint64_t note;           /* the object's last when the copies began */
    uint32_t next, previous; /* queue */
    uint32_t timer;
    uint32_t replica_count;  /* of the object when done */
    uint32_t wanted;         /* how many replicas are wanted of it from then on */
    uint32_t target_server;  /* + 1, 0: any */
    uint32_t leaving_server; /* + 1, 0: none */
    uint32_t target_count,
        first_count; /* targets that copy from the object, before those that copy from them */
    uint32_t copied; /* bits */
    uint32_t asked;  /* bits */
    uint8_t is_noting;
    ms_status ends_with; /* when it could not be cancelled for want of memory */
    md_replica targets[MS_REPLICAS_MAX];
    ms_extent *extents; /* of all targets, side by side */
    uint32_t extent_count;
} md_change;

/* Where a walk over all records is.  Numbers stay while a shard's generation lasts; then the shard is begun again. */
typedef struct md_walk {
    uint32_t shard, record, generation;
} md_walk;

typedef struct md_task_failure {
    uint64_t size;
    uint8_t *key; /* allocation */
    ms_status status;
    uint32_t key_length;
} md_task_failure;

typedef enum {
    MD_PASS_COUNT, /* how much there is to do */
    MD_PASS_SOLE,  /* drain: what is nowhere else goes first */
    MD_PASS_ALL
} md_task_pass;

typedef struct md_task {
    uint64_t id; /* 0: unused */
    md_walk walk;
    md_task_pass pass;
    int64_t started_ms, ended_ms, next_ms; /* next: no step before */
    uint64_t objects_done, objects_total, bytes_done, bytes_total;
    /* Of this pass: */
    uint64_t pass_begun_done, pass_failed, pass_left, pass_sole;
    /* Of the last one: */
    uint64_t objects_failed, objects_left, sole_left;
    uint32_t kind, state;    /* ms_task_kind, ms_task_state */
    uint32_t source, target; /* server + 1 */
    uint32_t replica_count, tenant;
    uint32_t running; /* changes */
    uint32_t members_seen;
    uint32_t prefix_length, failure_count;
    uint8_t *prefix;
    md_task_failure *failures; /* of this pass, the first MS_TASK_FAILURES_MAX */
} md_task;

/* An object of several extents of which an inventory has told some. */
typedef struct md_partial {
    ms_hash hash;
    uint64_t version, size, note, expiry_ms;
    ms_hash parent;
    uint64_t group;
    uint32_t next; /* same bucket of core->partial_of, and list of the server's */
    uint32_t server;
    uint32_t tenant;
    uint32_t checksum;
    uint16_t segment, part_count, parts_in, key_length;
    uint8_t flags;
    uint8_t *key;       /* allocation of key_length bytes */
    ms_extent *extents; /* part_count; page_count 0: not yet in */
} md_partial;

typedef struct md_event_entry {
    uint64_t sequence, version, size;
    int64_t at_ms;
    uint64_t key; /* position in the key ring, counted for ever */
    uint32_t kind, server, key_length, unused;
} md_event_entry;

typedef struct md_events_ring {
    md_event_entry *entries;
    uint32_t capacity;
    uint64_t first, next; /* sequences: [first, next) are kept */
    uint8_t *keys;
    uint64_t key_bytes, key_next, key_first;
} md_events_ring;

/* How an object, or a put of it, ended. */
typedef struct md_fate_entry {
    ms_hash hash;
    uint64_t version, size, session, bytes;
    int64_t at_ms;
    uint16_t kind, server; /* ms_fate_kind; number + 1, or 0 */
    uint32_t unused;
} md_fate_entry;
_Static_assert(sizeof(md_fate_entry) == 64, "one cache line an eviction");

typedef struct md_fates_ring {
    md_fate_entry *entries;
    uint32_t capacity;
    uint64_t next; /* how many there ever were */
} md_fates_ring;

/* Why an object leaves. */
typedef struct md_cause {
    enum ms_fate_kind kind;
    uint64_t session, bytes;
} md_cause;

#define MD_COUNTERS(X)                                                                             \
    X(objects)                                                                                     \
    X(object_bytes)                                                                                \
    X(sessions)                                                                                    \
    X(puts_open)                                                                                   \
    X(puts_parked)                                                                                 \
    X(puts_started)                                                                                \
    X(puts_completed)                                                                              \
    X(puts_revoked)                                                                                \
    X(puts_expired)                                                                                \
    X(puts_refused)                                                                                \
    X(exists_keys)                                                                                 \
    X(exists_hits)                                                                                 \
    X(lookup_keys)                                                                                 \
    X(lookup_hits)                                                                                 \
    X(removed)                                                                                     \
    X(evicted)                                                                                     \
    X(evicted_bytes)                                                                               \
    X(expired)                                                                                     \
    X(lost)                                                                                        \
    X(replicas_added)                                                                              \
    X(replicas_lost)                                                                               \
    X(frees_pending)                                                                               \
    X(frees_cleared)                                                                               \
    X(frees_repeated)                                                                              \
    X(pins)                                                                                        \
    X(tombstones)                                                                                  \
    X(inventory_items)                                                                             \
    X(inventory_refused)                                                                           \
    X(changes_running)                                                                             \
    X(changes_done)                                                                                \
    X(changes_failed)                                                                              \
    X(notes)                                                                                       \
    X(notes_failed)                                                                                \
    X(events)                                                                                      \
    X(sessions_ended)                                                                              \
    X(memory_failures)                                                                             \
    X(objects_short)                                                                               \
    X(replicas_short)                                                                              \
    X(replicas_share_host)                                                                         \
    X(tasks_running)                                                                               \
    X(task_bytes)

typedef enum {
#define X(name) MD_COUNT_##name,
    MD_COUNTERS(X)
#undef X
        MD_COUNTER_COUNT
} md_counter_id;

typedef struct md_policy_table md_policy_table;

struct md_core {
    md_config config;
    md_now now;
    int64_t started_ms;
    uint64_t sequence;
    uint64_t session_sequence;
    uint64_t tick;          /* uses */
    int64_t empty_since_ms; /* no object is stored; MD_NEVER: some are */
    bool is_trimmed;        /* and nothing is kept for the next one */
    bool is_history_touched;
    uint64_t history_touched; /* bytes of the rings of events and ends that are resident for good */
    md_shard shards[MD_SHARDS];

    const md_policy_table *policy;
    uint64_t shard_rank
        [MD_SHARDS]; /* which shard's first candidate leaves first; UINT64_MAX: has none */
    uint64_t soft_rank[MD_SHARDS];
    uint64_t listed_count, soft_count;
    uint64_t hand_tick; /* sieve: the hands have passed all that was stored up to this */
    uint64_t young_tick,
        young_tick_next;      /* what was stored or used after it, no watermark evicts */
    uint64_t young_pages;     /* stored since young_tick_next was set ... */
    uint64_t young_pages_max; /* ... until it moves on */

    md_server *servers;
    uint32_t server_count, server_capacity;
    uint32_t absent_count; /* members not adopted */
    uint32_t lost_count;   /* 1: records may still name lost servers */

    char (*tenants)[MS_TENANT_BYTES_MAX + 1]; /* first byte: length */
    uint32_t tenant_count, tenant_capacity;

    md_pool sessions, puts, frees, leaves, stones, waits, links, holds, pins, groups, notes,
        changes, tombstones;
    md_map note_of, task_of, session_of, put_of, free_of, leave_of, stone_of, hold_of, group_of,
        tombstone_of, change_of;
    md_wheel wheel;

    uint32_t park_first, park_last;
    uint64_t park_pages; /* of all replicas that parked puts wait for */
    uint32_t change_first, change_last;
    uint64_t tasks; /* numbers of copies given so far */

    md_task background[MD_TASKS_MAX];
    uint32_t task_numbers; /* given so far */
    uint32_t task_turn;    /* whose step is the first, next time */
    uint32_t task_changes; /* under way, of all of them ... */
    uint64_t task_bytes;   /* ... and what they copy */
    int64_t task_credit;   /* bytes that may be copied now; below 0: the last was larger */
    int64_t task_credit_ms;
    uint32_t members_changed; /* how often a server came, went, or began or ended to drain */
    /* Repair begins at repair_at_ms, which each loss puts off, but not beyond repair_by_ms. */
    int64_t repair_at_ms, repair_by_ms;
    uint32_t repair_pause_ms, repair_members_seen;
    /* Replicas that share a host though there are others (task_spread.c). */
    uint32_t sharing_placed,
        sharing_seen; /* how often md_place gave such, now and when repair began */
    uint32_t spread_members_seen;
    uint8_t spread_is_possible; /* for these members: some share a host, and there is another one */
    uint8_t repair_left;        /* the last repair could not do all */

    md_effect *effects; /* a ring */
    uint32_t effect_capacity, effect_first, effect_count;
    uint32_t answers_due; /* waiters to whom an ANSWER is owed: room for these is kept */

    md_events_ring events;
    md_fates_ring fates;
    uint64_t counters[MD_COUNTER_COUNT];

    md_map partial_of; /* inventories: objects of several extents whose parts are coming in */
    md_pool partials;

    ms_extent scratch[MS_REPLICAS_MAX * MS_EXTENTS_MAX]; /* of md_place */
    uint32_t placed_sharing; /* replicas of the last md_place on a host that has one already */
    uint32_t sweep_shard, sweep_record, sweep_generation,
        sweep_left; /* for lost servers; left: shards */
    uint32_t expiry_shard, expiry_extra;
};

#define MD_COUNT(core, name) (core)->counters[MD_COUNT_##name]

static inline uint32_t md_shard_of(ms_hash hash) { return (uint32_t)(hash.low & (MD_SHARDS - 1)); }
/* Units of 64 ms since the core was opened: 32 bits last 8 years. */
static inline uint32_t md_coarse_time(const md_core *core) {
    return (uint32_t)((core->now.now_ms - core->started_ms) >> 6);
}
static inline uint64_t md_page_key(uint32_t server, uint32_t segment, uint32_t page) {
    return (uint64_t)server << 48 | (uint64_t)segment << 32 | page;
}
static inline uint64_t md_hash_key(ms_hash hash) { return hash.low ^ (hash.high << 1); }

/* ---- core.c ---- */
void md_set_now(md_core *core, md_now now);
ms_status md_tenant(md_core *core, const uint8_t *tenant, size_t length, uint32_t *number);
/* Room for what freeing `extents` extents and answering `answers` waiters may need. */
bool md_reserve(md_core *core, uint32_t extents, uint32_t answers);

/* ---- shard.c: records of one shard ---- */
void md_shard_close(md_shard *shard);
/* Room for one more record with its key, an extra and a replica block of `block_bytes`. */
bool md_shard_reserve(md_shard *shard, size_t key_length, size_t block_bytes);
/* Enters a record; number + 1.  Needs md_shard_reserve. */
uint32_t md_shard_add(md_shard *shard, ms_hash hash, const uint8_t *key, size_t key_length);
/* Takes a record out, with its key, extra and replicas; numbers in the shard may change. */
void md_shard_remove(md_shard *shard, uint32_t record);
static inline md_record *md_record_at(md_shard *shard, uint32_t record) {
    return &shard->records[record - 1];
}
md_extra *md_record_extra(md_shard *shard, md_record *record);    /* NULL: has none */
md_extra *md_record_need_extra(md_shard *shard, uint32_t record); /* needs md_shard_reserve */
static inline const uint8_t *md_record_key(const md_shard *shard, const md_record *record) {
    return shard->arena + record->key;
}
void md_record_replicas(const md_shard *shard, const md_record *record, md_replica_set *set);
/* Bytes that md_record_set_replicas may need in the arena. */
size_t md_replica_bytes(uint32_t replica_count, uint32_t extent_count);
void md_record_set_replicas(md_shard *shard, md_record *record, uint32_t count,
                            const md_replica *replicas, const ms_extent *const *extents);
/* ---- index.c: slots of one shard ---- */
bool md_index_reserve(md_shard *shard, uint32_t more);
void md_index_add(md_shard *shard, uint32_t record);
void md_index_remove(md_shard *shard, uint32_t record);
bool md_index_rebuild(md_shard *shard, md_slot **slots, uint32_t *slot_count,
                      const md_record *records, uint32_t record_fresh, uint32_t count);
/* The record of a hash in this state; 0: none. */
uint32_t md_index_find(const md_shard *shard, ms_hash hash, md_record_state state);
/* Both the complete record of a hash and the one that is being written, in one pass. */
void md_index_find_both(const md_shard *shard, ms_hash hash, uint32_t *complete, uint32_t *writing);
static inline uint32_t md_index_tag(ms_hash hash) {
    return (uint32_t)(hash.low >> 8) ^ (uint32_t)hash.high;
}
/* Complete records of up to 32 hashes at once (0: none): memory is asked for before it is needed. */
void md_index_find_group(md_core *core, const ms_hash *hashes, uint32_t count, uint32_t *records);

/* ---- object.c: what happens to objects ---- */
/* The complete record of a hash that is neither expired nor lost; 0: none. */
uint32_t md_object_find(md_core *core, ms_hash hash);
bool md_object_is_current(md_core *core, md_shard *shard, const md_record *record);
void md_object_used(md_core *core, uint32_t shard, uint32_t record);
/* A written record becomes the object of its key: lists, parents, groups, event. */
void md_object_appear(md_core *core, uint32_t shard, uint32_t record);
/* The object leaves: FREE to all holders.  false: no memory, nothing has happened. */
bool md_object_depart(md_core *core, uint32_t shard, uint32_t record, md_cause cause);
/* The same for a record that never became an object, with its session to fence or 0. */
bool md_object_take_back(md_core *core, uint32_t shard, uint32_t record, uint64_t session);
/* Some replicas go, the others stay: bit i of `keep` is replica i.  Needs md_reserve for what goes and
 * md_shard_reserve for what stays. */
void md_object_keep_replicas(md_core *core, uint32_t shard, uint32_t record, uint64_t keep);
/* Replicas of an open put end, without changing the places of the others.  Needs the same. */
void md_object_drop_replicas(md_core *core, uint32_t shard, uint32_t record, uint64_t mask);
typedef enum { MD_PAGES_WRITING, MD_PAGES_COMPLETE, MD_PAGES_UNPINNED } md_pages_kind;
/* When replicas, pins or what is wanted of an object change: with -1 before, with 1 after that. */
void md_object_count(md_core *core, md_shard *shard, const md_record *record, int sign);
/* Flags as records and locations carry them. */
static inline uint8_t md_record_flags(const md_record *record) {
    return (uint8_t)((record->flags & MD_OBJECT_FLAGS) | record->more_wanted
                                                             << MS_OBJECT_WANTED_SHIFT);
}
/* Sets flags (MD_IS_LISTED stays as it is), and what follows from that. */
void md_object_set_flags(md_core *core, uint32_t shard, uint32_t record, uint8_t flags);
void md_pages_count(md_core *core, const md_replica_set *set, md_pages_kind kind, int sign);
uint32_t md_record_tenant(md_shard *shard, md_record *record);
int64_t md_record_expiry(md_shard *shard, md_record *record);
/* Extents that are freed when it departs, those of a change that is at work on it too. */
uint32_t md_object_extents(md_core *core, const md_shard *shard, const md_record *record);
uint32_t md_record_extent_count(const md_shard *shard, const md_record *record);
void md_write_location(md_core *core, const md_shard *shard, const md_record *record,
                       uint32_t lifetime_ms, bool is_grant, ms_writer *out);
/* Whether a record's key is this one. */
bool md_record_has_key(const md_shard *shard, const md_record *record, const uint8_t *key,
                       size_t length);

/* ---- hold.c ---- */
md_hold *md_hold_find(const md_core *core, ms_hash hash);
bool md_hold_reserve(md_core *core, uint32_t more);
void md_child_added(md_core *core, ms_hash parent); /* needs md_hold_reserve */
void md_child_removed(md_core *core, ms_hash parent);
ms_status md_pin_key(md_core *core, uint32_t session, ms_hash hash, uint32_t deadline_ms);
void md_pin_end(md_core *core, uint32_t pin);
void md_pin_timer(md_core *core, uint32_t pin);
void md_groups_close(md_core *core);
bool md_group_reserve(md_core *core, uint32_t tenant, uint64_t group);
void md_group_add(md_core *core, uint32_t tenant, uint64_t group, ms_hash hash);
void md_group_remove(md_core *core, uint32_t tenant, uint64_t group, ms_hash hash);
md_group *md_group_find(md_core *core, uint32_t tenant, uint64_t group);

/* ---- evict.c: lists of candidates, and policies ---- */
struct md_policy_table {
    /* Which of the lists (below MD_CLASS_SOFT); lower leaves first. */
    uint8_t (*classify)(const md_record *record);
    bool moves_on_use; /* else a use only marks it visited */
    /* The next to leave, without taking it off; false: none. */
    bool (*pick)(md_core *core, uint32_t *shard, uint32_t *record);
};
extern const md_policy_table md_policy_lru, md_policy_lfu, md_policy_length_aware, md_policy_sieve;
void md_evict_list_add(md_core *core, uint32_t shard,
                       uint32_t record); /* unless something protects it */
void md_evict_list_remove(md_core *core, uint32_t shard, uint32_t record);
void md_evict_list_used(md_core *core, uint32_t shard, uint32_t record);
/* What protects it has changed. */
void md_evict_list_review(md_core *core, uint32_t shard, uint32_t record);
void md_evict_rank(md_core *core, uint32_t shard);
bool md_evict_pick_oldest(md_core *core, uint32_t *shard, uint32_t *record);
void md_evict_soft_expire(md_core *core);
/* Evicts the next object (with its group); soft: also soft-pinned ones.  false: nothing may leave. */
bool md_evict_next(md_core *core, bool soft, md_cause cause);
void md_evict_watermark(md_core *core);
/* An object of `pages` is about to be listed as stored. */
void md_evict_stored(md_core *core, uint64_t pages);

/* ---- placement.c ---- */
bool md_server_takes_puts(const md_server *server);
/* Which replicas are looked for. */
typedef struct md_wish {
    uint64_t pages;
    uint32_t count;
    uint32_t preferred;               /* server + 1: before all others; 0: none */
    uint16_t spared[MS_REPLICAS_MAX]; /* servers that get none ... */
    uint16_t kept[MS_REPLICAS_MAX];   /* ... and those whose hosts have one already */
    uint32_t spared_count, kept_count;
} md_wish;
/* Takes pages for up to `count` replicas on distinct servers (preferred before all, then other hosts, then those that
 * have not just joined, then most free pages); how many it found.  Their extents lie in core->scratch, side by
 * side. */
uint32_t md_place(md_core *core, const md_wish *wish, md_replica *replicas);
void md_ramp_begin(md_core *core, uint32_t server);
bool md_is_same_host(const md_core *core, uint32_t a, uint32_t b);
bool md_place_on(md_core *core, uint64_t pages, uint32_t server, ms_extent *extents,
                 md_replica *replica);
void md_place_undo(md_core *core, uint32_t count, const md_replica *replicas);
/* Servers that could hold a replica of so many pages if all left that may leave. */
uint32_t md_possible(const md_core *core, uint64_t pages);
bool md_server_is_possible(const md_core *core, uint32_t server, uint64_t pages);
/* The most pages that one server could hold if it were empty. */
uint64_t md_placeable_pages_max(const md_core *core);
/* Servers that can hold it now, or will when what is on its way (at least `extra` pages) is there. */
uint32_t md_coming(md_core *core, uint64_t pages, uint64_t extra);
/* Free pages and pages on their way, of all servers that take puts. */
uint64_t md_pages_coming(md_core *core);
/* Free pages go back to their segment; false: no memory. */
bool md_segment_give(md_core *core, uint32_t server, uint32_t segment, uint32_t page,
                     uint32_t count);
/* Sets free runs from what is used (sorted here): below page_ready into the allocator, the others aside. */
bool md_segment_rebuild(md_segment *segment, md_used *used, uint32_t used_count);
bool md_segment_grow(md_core *core, md_segment *segment, uint64_t page_ready);
void md_segment_close(md_segment *segment);

/* ---- put.c ---- */
/* An open put ends: its extents go back, with its session to fence or 0; a parked one is answered `status`.
 * false: no memory, nothing has happened. */
bool md_put_take_back(md_core *core, uint32_t put, uint64_t fence, ms_status status);
void md_put_timer(md_core *core, uint32_t put);
void md_parked_serve(md_core *core);

/* ---- free.c: extents on their way back ---- */
/* FREE of one extent of a leave; needs md_reserve. */
void md_free_start(md_core *core, uint32_t leave, uint32_t server, uint32_t segment,
                   ms_extent extent, uint64_t version, uint64_t session);
uint32_t md_leave_open(md_core *core, ms_hash hash, uint64_t version);
void md_leave_raise(md_core *core, uint32_t leave,
                    uint64_t version);               /* it has extents of a later version too */
void md_leave_opened(md_core *core, uint32_t leave); /* all its FREEs are started */
void md_free_timer(md_core *core, uint32_t free);
void md_leave_timer(md_core *core, uint32_t leave);
void md_free_send_all(md_core *core, uint32_t server);
/* That server's memory is lost: its extents need not be freed. */
void md_frees_forget(md_core *core, uint32_t server);
/* Begins a wait of `waiter` for everything of a key that leaves, of versions below `below`, and for a tombstone up to stone_version when
 * a member is absent (0: without).  OK: nothing to wait for; PENDING; NO_MEMORY. */
ms_status md_wait_for_key(md_core *core, ms_hash hash, uint64_t below, uint64_t stone_version,
                          ms_status status, uint64_t waiter);
bool md_tombstone_set(md_core *core, ms_hash hash, uint64_t version);
uint64_t md_tombstone_version(md_core *core, ms_hash hash); /* 0: none */
void md_tombstones_clear(md_core *core);
/* The condemned too. */
bool md_all_are_adopted(const md_core *core);
/* Under which a tombstone of the server itself is kept. */
ms_hash md_node_hash(const md_server *server);
/* Everything of this key that may be somewhere, without being known, has a version up to this. */
uint64_t md_unknown_version(md_core *core, ms_hash hash);
void md_absent_count(md_core *core);

/* ---- others ---- */
/* NULL: not alive.  Being asked about counts as a sign of life. */
md_session *md_session_find(md_core *core, uint64_t id, uint32_t *number);
void md_session_timer(md_core *core, uint32_t session);
void md_session_end(md_core *core, uint32_t session);
void md_server_timer(md_core *core, uint32_t server);
void md_inventory_drop(md_core *core, uint32_t server); /* what has come in so far */
void md_lost_sweep(md_core *core, uint32_t records);
void md_expiry_sweep(md_core *core, uint32_t extras);
void md_note_timer(md_core *core, uint32_t note);
void md_change_timer(md_core *core, uint32_t change);
void md_notes_server_gone(md_core *core, uint32_t server);
/* Every holder gets the object's newest note once more; nobody waits for it. */
void md_note_again(md_core *core, ms_hash hash);
void md_changes_server_gone(md_core *core, uint32_t server);
/* Ends the change of that object, if there is one; its targets' extents leave with `leave`, or (0) on their
 * own: false then means no memory, and that nothing has happened yet. */
bool md_change_cancel(md_core *core, ms_hash hash, uint32_t leave, ms_status status);
uint32_t md_change_extents(md_core *core, ms_hash hash);
void md_changes_run(md_core *core);
void md_changes_close(md_core *core);
/* A change in a task's name.  PENDING: it is under way (task->running is raised); OK: nothing had to be copied.  Else why it
 * cannot be.  With may_evict it may wait for room.  Records may move. */
typedef struct md_change_order {
    uint32_t shard, record;
    uint32_t count;           /* of replicas when done */
    uint32_t target, leaving; /* server + 1, 0: any, none */
    uint32_t wanted;          /* from then on */
    uint32_t task;            /* index + 1 */
    bool may_evict;
    bool is_whole; /* fewer new replicas than asked are none */
} md_change_order;
ms_status md_change_start(md_core *core, const md_change_order *order);
/* Some of the replicas go, the one at `leaving` first, and so many are wanted; without a waiter. */
ms_status md_change_reduce(md_core *core, uint32_t shard, uint32_t record, uint32_t count,
                           uint32_t leaving, uint32_t wanted);
/* Is a server left that takes replicas and has none of this object (target: is it this one)? */
bool md_has_candidate(md_core *core, const md_replica_set *set, uint32_t target);

/* ---- task.c ---- */
/* The end of a change in a task's name; the record is still there. */
void md_task_change_ended(md_core *core, uint32_t task, const md_shard *shard,
                          const md_record *record, uint64_t bytes, uint32_t copies,
                          ms_status status);
void md_drain_end(md_core *core, uint32_t server);
void md_repair_put_off(md_core *core);
void md_repair_check(md_core *core);
void md_tasks_go_on(md_core *core, uint32_t visits);
void md_tasks_close(md_core *core);
void md_partials_close(md_core *core);
void md_server_close(md_core *core, uint32_t server);
void md_change_noted(md_core *core, uint64_t version, ms_status status);
/* The holders of an object are told its flags and expiry, and how many replicas are wanted. */
ms_status md_note_object(md_core *core, uint32_t shard, uint32_t record, uint32_t flags,
                         int64_t expires_at_ms, md_note_audience audience, uint64_t waiter);
ms_status md_note_start(md_core *core, ms_hash hash, uint64_t version, uint32_t flags,
                        int64_t expires_at_ms, uint32_t count, const md_replica *replicas,
                        const ms_extent *const *extents, md_note_audience audience,
                        uint64_t waiter);
void md_event(md_core *core, enum ms_event_kind kind, uint64_t version, uint64_t size,
              uint32_t server_plus_1, const uint8_t *key, uint32_t key_length);
bool md_events_open(md_core *core);
void md_events_close(md_core *core);
bool md_fates_open(md_core *core);
void md_fates_close(md_core *core);
/* server: that held its first replica, + 1, or 0. */
void md_fate(md_core *core, ms_hash hash, uint64_t version, uint64_t size, uint32_t server_plus_1,
             md_cause cause);
bool md_effects_reserve(md_core *core, uint32_t more);
/* The room was reserved; without that NULL when there is none. */
md_effect *md_effect_push(md_core *core, md_effect_kind kind);
void md_answer(md_core *core, uint64_t waiter, ms_status status, uint64_t version);
uint32_t md_timer_start(md_core *core, int64_t at_ms, md_timer_kind kind, uint32_t owner);
void md_timer_stop(md_core *core, uint32_t *timer);
void md_timers_run(md_core *core, uint32_t limit);
/* Wall clock, for records that outlive this process; 0: never. */
static inline uint64_t md_wall_expiry(const md_core *core, int64_t expires_at_ms) {
    if (expires_at_ms == MD_NEVER)
        return 0;
    int64_t wall = core->now.wall_ms + (expires_at_ms - core->now.now_ms);
    return wall > 0 ? (uint64_t)wall : 1;
}
static inline uint64_t md_version_next(md_core *core) {
    return ms_version(core->config.epoch, core->sequence++);
}
static inline md_segment *md_segment_at(md_core *core, uint32_t server, uint32_t segment) {
    return &core->servers[server].segments[segment];
}

#endif
