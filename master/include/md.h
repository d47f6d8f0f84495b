/* The metadata core: which objects exist, where their replicas are, what is pinned, what leaves.
 *
 * Pure: it reads no clock, draws no random number, does no I/O.  Time comes in with each call, effects
 * (frames to send, answers to give) come out of md_next_effect, to be drained after every call.  Not
 * thread-safe: one caller at a time.  The rules are those of docs/protocol.md; names in italics there
 * are quoted in the code where a line exists because of one.
 *
 * A call that cannot finish at once returns MS_PENDING and later yields an ANSWER effect with its waiter.
 */
#ifndef MD_H
#define MD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ms_frame.h"
#include "ms_wire.h"

typedef struct md_core md_core;

typedef struct md_now {
    int64_t now_ms;  /* monotonic */
    int64_t wall_ms; /* since 1970: only to carry TTLs over restarts */
} md_now;

typedef enum { MD_LRU = 0, MD_LFU = 1, MD_LENGTH_AWARE = 2, MD_SIEVE = 3 } md_policy;

typedef struct md_config {
    uint32_t epoch;
    uint64_t sequence; /* first of this epoch; versions are ms_version(epoch, sequence) */
    uint8_t secret[MS_SECRET_BYTES]; /* put_start checks the hash that it was given */
    md_policy policy;
    uint32_t session_timeout_ms;   /* silence after which a session ends; default 10,000 */
    uint32_t location_lifetime_ms; /* default 120,000 */
    uint32_t
        member_grace_ms; /* a server's objects leave after it was gone for so long; default 10,000 */
    uint32_t evict_above_permille; /* watermark: background eviction starts above this use ... */
    uint32_t evict_below_permille; /* ... and stops below this; defaults 950, 920 */
    uint32_t
        soft_pin_ms; /* a soft-pinned object is spared while used within this; default 1,800,000 */
    uint32_t events_max;    /* ring of events; default 65,536 */
    uint32_t fates_max;     /* ring of how objects ended, 64 bytes each; default 65,536 */
    uint32_t puts_open_max; /* default 1,048,576 */
    uint64_t placement_seed;
    /* Of tasks, read and written once; 0: no bound.  Default 100 MiB. */
    uint64_t copy_bytes_per_s;
    /* After a server went (or this master began) before what it held is copied again; UINT32_MAX: never.  Default
     * 60,000. */
    uint32_t repair_delay_ms;
    /* A server that joins empty gets at most this share of the replicas that are placed, growing to all of them ... */
    uint32_t ramp_share_permille; /* default 200 */
    uint32_t ramp_ms;             /* ... within this; default 300,000 */
} md_config;

void md_config_default(md_config *config);
ms_status md_open(const md_config *config, md_core **core);
void md_close(md_core *core);

/* ---- effects --------------------------------------------------------------------------------------- */
typedef enum {
    MD_EFFECT_NONE = 0,
    MD_EFFECT_ANSWER, /* waiter, status; for a put_start that was granted: version (md_write_grant) */
    MD_EFFECT_FREE,   /* server, free */
    MD_EFFECT_NOTE,   /* server, note; its answer goes to md_noted with `waiter` as tag */
    MD_EFFECT_COPY,   /* server, task: md_write_copy; its answer goes to md_copied */
    MD_EFFECT_TOMBSTONE,     /* hash, version: write it at the coordinator, then md_tombstoned */
    MD_EFFECT_SESSION_ENDED, /* session: tell its connections */
    MD_EFFECT_TASK           /* task: it has begun, ended, or is blocked */
} md_effect_kind;

typedef struct md_effect {
    md_effect_kind kind;
    uint32_t server;
    ms_status status;
    uint64_t waiter, version, session, task;
    ms_hash hash;
    ms_free_item free;
    ms_note note;
} md_effect;

bool md_next_effect(md_core *core, md_effect *effect);

/* Timeouts, TTLs, watermarks, repeats of FREE.  Bounded work a call; call it about each 100 ms. */
void md_tick(md_core *core, md_now now);

/* ---- servers ----------------------------------------------------------------------------------------- */
typedef struct md_server_view {
    uint8_t node_id[16];
    uint32_t incarnation;
    uint32_t state; /* ms_member_state */
    uint64_t pages_total, pages_ready, pages_free, pages_freeing, pages_pinned;
    uint64_t object_count;
    uint64_t struck;  /* what it brings back up to this version does not count */
    bool is_draining; /* also while it is away */
} md_server_view;

/* A number that the coordinator keeps: whose it is, and what that node cannot bring back.  Before md_server_expect and
 * md_server_join, which give numbers to nodes that have none. */
ms_status md_server_number(md_core *core, md_now now, const uint8_t node_id[16], uint32_t server,
                           uint64_t struck);
/* A member that the coordinator knows and that has not come yet: while there are such, a remove needs a
 * tombstone.  Gives its number. */
ms_status md_server_expect(md_core *core, md_now now, const uint8_t node_id[16], uint32_t *server);
/* A tombstone that the coordinator holds; before the inventories that it may strike. */
ms_status md_tombstone_add(md_core *core, ms_hash hash, uint64_t version);
/* A server has said HELLO.  Gives its number (the same for the same node id); the caller sends ADOPT, then
 * feeds INVENTORY.  The old incarnation's grants and FREEs end here (protocol sections 5.2, 5.3). */
ms_status md_server_join(md_core *core, md_now now, const ms_server_info *info, const char *host,
                         const ms_segment_info *segments, uint32_t *server);
ms_status md_inventory(md_core *core, md_now now, uint32_t server, uint32_t incarnation,
                       const ms_inventory_item *item, const uint8_t *tenant, const uint8_t *key);
ms_status md_inventory_end(md_core *core, md_now now, uint32_t server, uint32_t incarnation);
/* More pages of a segment are ready. */
ms_status md_segment_ready(md_core *core, md_now now, uint32_t server, uint32_t incarnation,
                           uint32_t segment, uint64_t pages_ready);
/* The connection is gone: no grants there, its locations are still given out until the grace is over. */
void md_server_gone(md_core *core, md_now now, uint32_t server, uint32_t incarnation);
void md_cleared(md_core *core, md_now now, uint32_t server, uint32_t incarnation,
                const ms_free_item *item);
void md_freed(md_core *core, md_now now, uint32_t server, uint32_t incarnation,
              const ms_free_item *item);
void md_noted(md_core *core, md_now now, uint64_t tag, uint32_t server, ms_status status);
void md_copied(md_core *core, md_now now, uint64_t task, ms_status status);
/* Every member has been adopted, and what tombstones struck is CLEARED: nobody needs those that are there, here or
 * at the coordinator. */
bool md_tombstones_settle(md_core *core);
void md_tombstoned(md_core *core, md_now now, ms_hash hash, uint64_t version, ms_status status);
/* What this server brings back up to this version does not count. */
void md_server_strike(md_core *core, uint32_t server, uint64_t version);
/* A server that is gone is a member no more: its objects leave, nothing waits for it, no tombstone is kept for its
 * sake.  What it brings back up to `struck` does not count.  BUSY: it is not gone. */
ms_status md_server_forget(md_core *core, md_now now, uint32_t server, uint64_t struck);
/* The newest version that was given. */
uint64_t md_version_given(const md_core *core);
/* From now on: watermarks, lifetime of locations, grace, soft pins, tasks, ramp. */
void md_reconfigure(md_core *core, const md_config *config);
/* Numbers of members are below this; not each below it is a member's. */
uint32_t md_server_count(const md_core *core);
/* NOT_FOUND: no member has that number. */
ms_status md_server_get(const md_core *core, uint32_t server, md_server_view *view);

/* No replica goes there any more, and a task (given, or begun here when *task is 0) moves what is there; until the
 * opposite is said.  What is to survive this master is the caller's to keep. */
ms_status md_server_drain(md_core *core, md_now now, uint32_t server, uint64_t *task);
ms_status md_server_undrain(md_core *core, md_now now, uint32_t server);
/* The number of a node that was expected or has joined; MD_NO_SERVER: unknown. */
#define MD_NO_SERVER UINT32_MAX
uint32_t md_server_find(const md_core *core, const uint8_t node_id[16]);

/* ---- tasks: what is done to many objects in the background --------------------------------------------- */
/* Replicate or move, of one tenant's objects; repair, now.  NOT_REGISTERED: no such server; LIMIT: too many run. */
ms_status md_task_start(md_core *core, md_now now, uint32_t tenant, const ms_task_order *order,
                        const uint8_t *prefix, uint64_t *task);
/* Copies under way are finished.  A drain only ends with md_server_undrain: BAD_REQUEST.  COMPLETE: it has ended. */
ms_status md_task_cancel(md_core *core, md_now now, uint64_t task);
/* Without its failures.  NOT_FOUND. */
ms_status md_task_get(md_core *core, md_now now, uint64_t task, ms_task *out);
/* Writes u32 count, u32 0, and the tasks (task 0: all). */
ms_status md_tasks_write(md_core *core, md_now now, const ms_tasks *asked, ms_writer *out);
/* A step of each, bounded; does nothing while none runs.  About each 20 ms. */
void md_tasks_step(md_core *core, md_now now);

/* ---- sessions ------------------------------------------------------------------------------------------ */
ms_status md_session_open(md_core *core, md_now now, const uint8_t *tenant, size_t tenant_length,
                          uint64_t *session);
ms_status md_session_keep(md_core *core, md_now now,
                          uint64_t session); /* SESSION_LOST: open a new one */
void md_session_close(md_core *core, md_now now, uint64_t session);
uint32_t md_session_tenant(const md_core *core, uint64_t session);
/* Bytes of the objects that it pins, for a metric: looks at each of its pins. */
uint64_t md_session_pinned_bytes(const md_core *core, uint64_t session);

/* ---- objects: what a client asks ----------------------------------------------------------------------- */
void md_exists(md_core *core, md_now now, const ms_hash *hashes, size_t count, uint8_t *there);
/* Writes a list of ms_location.  A look-up counts as a use. */
ms_status md_lookup(md_core *core, md_now now, const ms_hash *hashes, size_t count, ms_writer *out);
/* The same, but no use of any of them: for whoever looks at all that there is. */
ms_status md_peek(md_core *core, md_now now, const ms_hash *hashes, size_t count, ms_writer *out);
/* Longest prefix; pinned for the session when pin is set. */
ms_status md_match_prefix(md_core *core, md_now now, uint64_t session, const ms_match *match,
                          const ms_hash *hashes, ms_writer *out);
ms_status md_pin(md_core *core, md_now now, uint64_t session, ms_hash hash, uint32_t deadline_ms);
ms_status md_unpin(md_core *core, md_now now, uint64_t session, ms_hash hash);
/* A session's pins of a key are exactly so many, with this deadline; twice is as good as once.  NOT_FOUND: it has none,
 * and there is no such object. */
ms_status md_pins(md_core *core, md_now now, uint64_t session, ms_hash hash, uint32_t count,
                  uint32_t deadline_ms);
/* Protects as a pin does, beside those of the session, until the latest of its leases ends; nobody takes it back. */
ms_status md_lease(md_core *core, md_now now, uint64_t session, ms_hash hash, uint32_t lease_ms);
void md_touch(md_core *core, md_now now, const ms_hash *hashes, size_t count);
/* Asks the memory for where a key is found: before a loop of puts or ends, so that their misses overlap. */
void md_prefetch(const md_core *core, ms_hash hash);
/* The same for a put of a key that is not there yet: where its record and its key will go, too. */
void md_prefetch_put(const md_core *core, ms_hash hash);
/* And for up to MD_GROUP objects that are there: slots, then records, then keys. */
#define MD_GROUP 32u
void md_prefetch_objects(const md_core *core, const ms_hash *hashes, uint32_t count);

/* OK: the grant is written to out as one ms_location.  PENDING: room is being made; the ANSWER's version is
 * that of the grant.  EXISTS, BUSY, NO_SPACE (md_space_report tells how much of what), TOO_LARGE, BAD_KEY. */
ms_status md_put_start(md_core *core, md_now now, uint64_t session, const ms_put_item *item,
                       const uint8_t *key, uint64_t waiter, ms_writer *out);
ms_status md_write_grant(md_core *core, md_now now, uint64_t version, ms_writer *out);
/* How the client of that open put is reached, for an answer to a relayed end: set by the service. */
void md_put_set_reply(md_core *core, uint64_t version, uint64_t reply_to);
uint64_t md_put_reply(const md_core *core, uint64_t version);
ms_status md_put_end(md_core *core, md_now now, uint64_t session, const ms_end_item *item,
                     uint64_t waiter);
ms_status md_revoke(md_core *core, md_now now, uint64_t session, const ms_end_item *item);
/* PENDING until all holders have CLEARED; NOT_FOUND; PINNED without force.  session: who removes, for md_explain. */
ms_status md_remove(md_core *core, md_now now, uint32_t tenant, uint64_t session, ms_hash hash,
                    const uint8_t *key, size_t key_length, bool force, uint64_t waiter);
ms_status md_annotate(md_core *core, md_now now, uint32_t tenant, ms_hash hash, const uint8_t *key,
                      size_t key_length, const ms_annotate *annotate, uint64_t waiter);
ms_status md_change_replica(md_core *core, md_now now, uint32_t tenant, ms_hash hash,
                            const uint8_t *key, size_t key_length, const ms_change_replica *change,
                            uint64_t waiter);
/* Writes ms_copy_request, the source's ms_location with one ms_replica, the target's ms_replica + extents, ms_seal +
 * tenant + key.  seal.number is the version under which the target is sealed (a new one: see replica.c). */
ms_status md_write_copy(md_core *core, uint64_t task, ms_writer *out);
ms_status md_stat(md_core *core, md_now now, uint32_t tenant, ms_hash hash, const uint8_t *key,
                  size_t key_length, ms_writer *out);

/* What there is of a key and what has become of it, newest first.  No use of the object; a search through all fates
 * that are kept. */
typedef struct md_explanation {
    ms_explain head;
    ms_fate fates[MS_FATES_MAX];
} md_explanation;
ms_status md_explain(md_core *core, md_now now, uint32_t tenant, ms_hash hash, const uint8_t *key,
                     size_t key_length, md_explanation *out);

/* Objects of a tenant for which match says so, in steps; every object that exists throughout is seen at
 * least once.  Writes ms_list_item + key; *cursor 0 = the end.  Visits at most `visit_max` records. */
ms_status md_list(md_core *core, md_now now, uint32_t tenant,
                  bool (*match)(void *context, const uint8_t *key, size_t length), void *context,
                  uint64_t *cursor, uint32_t limit, uint32_t visit_max, uint32_t *count,
                  ms_writer *out);
ms_status md_events(md_core *core, md_now now, const ms_events *events, ms_writer *out);

/* Why a put was refused, or what there is: bytes of everything that pages can be. */
typedef struct md_space {
    uint64_t bytes_total, bytes_free, bytes_writing, bytes_freeing;
    uint64_t bytes_complete, bytes_hard_pinned, bytes_pinned, bytes_leased;
    uint64_t object_bytes_max; /* largest object that could ever be placed */
} md_space;
void md_space_report(md_core *core, md_space *space);

/* Counters, for STATUS and metrics; ids are positions. */
size_t md_counter_count(void);
const char *md_counter_name(size_t id);
uint64_t md_counter(const md_core *core, size_t id);

/* Replicas that were placed on a host that had one of the object already, for want of hosts. */
uint64_t md_replicas_sharing_hosts(const md_core *core);

/* Walks everything and checks the invariants (each page in one run, lists whole, counts right); 0 or the
 * line that failed.  For tests: O(objects). */
int md_check(const md_core *core);

#endif
