/* The master: the metadata core behind the message channel.
 *
 * Clients, tools and store servers connect; frames come in on ONE I/O thread, which calls the core
 * under one lock, drains its effects and sends them.  Other threads (Python's) only read: metrics,
 * members, log lines.  What the coordinator must do (tombstones) is handed out here and its result
 * is handed back, because C never calls into Python.
 *
 * What clients may ask is said in ms_wire.h and docs/protocol.md.
 */
#ifndef MA_H
#define MA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ms_wire.h"
#include "te.h"

/* begin cdef */
typedef struct ma_master ma_master;

typedef struct ma_config {
    uint32_t epoch;                /* of this leadership, from the coordinator; above 0 */
    uint64_t cluster;              /* id of the cluster, from the coordinator */
    uint8_t secret[192];           /* of the cluster, for key hashes, from the coordinator */
    const char *name;              /* for people; NULL = the host's */
    uint32_t policy;               /* eviction: 0 lru, 1 lfu, 2 length_aware, 3 sieve */
    uint32_t session_timeout_ms;   /* silence after which a client's session ends */
    uint32_t location_lifetime_ms; /* how long a client may keep a location */
    uint32_t member_grace_ms;      /* a server's objects leave after it was gone for so long */
    uint32_t server_silence_ms;    /* a server without a frame for so long is cut off */
    uint32_t evict_above_permille; /* watermark: background eviction starts above this use ... */
    uint32_t evict_below_permille; /* ... and stops below this */
    uint32_t soft_pin_ms;          /* a soft-pinned object is spared while used within this */
    uint32_t events_max;           /* events kept for subscribers */
    uint32_t fates_max;            /* ends of objects kept for EXPLAIN, 64 bytes each */
    uint32_t puts_open_max;        /* puts begun and not ended, of all clients */
    uint32_t sessions_max;         /* clients at a time */
    uint32_t connections_max;      /* of clients, tools and servers together */
    uint32_t forget_after_ms;  /* a server that is gone for so long is a member no more; 0: never */
    bool keeps_numbers;        /* a server is adopted only when ma_number_kept says so */
    uint32_t answers_kept_max; /* answers kept for repeats, a session */
    uint64_t copy_bytes_per_s; /* of tasks, all together; 0 = no bound */
    uint32_t repair_delay_ms;  /* after a server went, before repair; UINT32_MAX = never */
    uint32_t ramp_share_permille; /* a server that joined empty gets this share of replicas ... */
    uint32_t ramp_ms;             /* ... growing to all of them within this */
    uint64_t placement_seed;      /* makes placement repeatable in tests */
    uint32_t version;             /* of the package, see the metric master_version */
    int32_t log_level;            /* lines below this are not written: 10 debug, 20 info, ... */
} ma_config;

void ma_config_default(ma_config *config);
/* `error` has room for 256 bytes and gets a sentence. */
ms_status ma_master_open(const ma_config *config, ma_master **master, char *error);
/* port 0 = any; the real one is stored. */
ms_status ma_master_listen_tcp(ma_master *master, const char *address, uint16_t port,
                               uint16_t *bound, char *error);
ms_status ma_master_listen_unix(ma_master *master, const char *path, char *error);
/* Until when this master may answer clients, on CLOCK_BOOTTIME, which counts suspended time too; 0 = for ever
 * (the default).  Looked at after each effect and just before each send *(leader_clock)*: from then on connections
 * of clients are closed instead of answered, and their HELLO is refused with NOT_LEADER.  May be called from
 * any thread, before listening and whenever the lease is renewed. */
void ma_set_lease_deadline(ma_master *master, int64_t boottime_ns);
/* A number that the coordinator keeps, before listening and before ma_expect_member: whose it is, how that node called
 * itself, and up to which version nothing counts that it brings back. */
ms_status ma_number_add(ma_master *master, const uint8_t node_id[16], uint32_t server,
                        const char *name, uint64_t struck);
/* The coordinator keeps this node's number and membership now: the server is adopted.  Before that a next leader could
 * give its number to another one, or not know that removes have to be remembered for it. */
void ma_number_kept(ma_master *master, const uint8_t node_id[16]);
/* A member with is_leaving is none any more at the coordinator, which keeps its number and what is struck; or that
 * could not be. */
void ma_forgotten(ma_master *master, const uint8_t node_id[16], bool is_done);
/* A member that the coordinator knows, before listening.  With such, requests that need the index wait until all of
 * them have brought their inventories, or for 1 s when one has, or for 5 s. */
ms_status ma_expect_member(ma_master *master, const uint8_t node_id[16]);
/* From now on: watermarks, lifetime of locations, grace, silence, forgetting, soft pins, tasks, ramp.  The rest of a configuration is
 * for good. */
void ma_reconfigure(ma_master *master, const ma_config *config);
/* Closes every connection and joins the I/O thread. */
void ma_master_close(ma_master *master);

/* Milliseconds since the I/O thread last looked at the clock, which it does 50 times a second. */
int64_t ma_tick_age_ms(ma_master *master);

/* ---- metrics ------------------------------------------------------------------------------------
 * One list of names for STATUS and for scrapes: a sample's id is the position in it. */
typedef struct ma_metric {
    const char *name; /* without prefix: "evictions_total" */
    const char *help; /* a sentence */
    bool is_counter;  /* else a gauge */
    bool is_labelled; /* a value a store server */
    uint32_t number;  /* by which STATUS names it: the same in every version */
} ma_metric;

typedef struct ma_sample {
    uint32_t id;
    uint32_t label; /* server number + 1, or 0 */
    uint64_t value;
} ma_sample;

size_t ma_metric_count(void);
void ma_metric_get(size_t id, ma_metric *metric);
/* Writes up to `max` samples and returns how many there are. */
size_t ma_metrics_read(ma_master *master, ma_sample *samples, size_t max);

/* How long requests take inside the master, waiting included (a remove waits for its holders). */
typedef struct ma_op {
    const char *name; /* "put_start" */
    uint64_t count;
    uint64_t failed; /* answered with a status other than OK as a whole */
    uint64_t sum_ns;
    uint64_t buckets
        [20]; /* not cumulative; upper bounds: ma_op_bound_ns; what is above them is in count only */
} ma_op;

uint64_t ma_op_bound_ns(size_t bucket);
/* The index-th operation; false past the last. */
bool ma_op_read(ma_master *master, size_t index, ma_op *op);

/* What the pool's bytes are used for. */
typedef struct ma_space {
    uint64_t bytes_total, bytes_free, bytes_writing, bytes_freeing;
    uint64_t bytes_complete, bytes_hard_pinned, bytes_pinned, bytes_leased;
} ma_space;
void ma_space_read(ma_master *master, ma_space *space);

/* ---- members ------------------------------------------------------------------------------------ */
typedef struct ma_member_row {
    uint8_t node_id[16];
    uint32_t server; /* the number in locations and metric labels */
    uint32_t incarnation;
    uint32_t state; /* 0 joining, 1 ready, 2 draining, 3 gone */
    uint32_t segment_count;
    uint64_t pages_total, pages_ready, pages_free, pages_freeing, pages_pinned;
    uint64_t object_count;
    int64_t silent_ms; /* since its last frame; -1: not connected */
    uint64_t struck;   /* what it brings back up to this version does not count */
    bool is_leaving; /* it is to be forgotten: say ma_forgotten when the coordinator has done so */
    bool is_kept;    /* the coordinator knows its number and that it is a member */
    char name[64];
    char addresses[256];
    char unix_path[108];
} ma_member_row;

/* Writes up to `max` rows and returns how many there are. */
size_t ma_members_read(ma_master *master, ma_member_row *rows, size_t max);

/* ---- log and tombstones ------------------------------------------------------------------------- */
/* Readable while a log line or a tombstone waits; closed with the master. */
int ma_event_descriptor(ma_master *master);

typedef struct ma_log_line {
    int64_t wall_ms; /* since 1970 */
    int32_t level;   /* as Python's logging: 10 debug, 20 info, 30 warning, 40 error */
    char text[396];  /* "event key=value key=\"value with blanks\"" */
} ma_log_line;

/* The oldest waiting line; false: none. */
bool ma_log_next(ma_master *master, ma_log_line *line);

/* What the coordinator is to keep: of this key nothing up to this version counts any more. */
typedef struct ma_tombstone {
    uint64_t hash_low, hash_high;
    uint64_t version;
} ma_tombstone;

/* One that the coordinator holds from former leaders; before listening. */
ms_status ma_tombstone_add(ma_master *master, const ma_tombstone *tombstone);
bool ma_tombstone_is_waiting(ma_master *master);
/* The oldest that was not handed out yet; false: none. */
bool ma_tombstone_next(ma_master *master, ma_tombstone *tombstone);
/* How many of those that were added or written, in that order, the coordinator need not keep any longer: every
 * member has been adopted, and what they struck is cleared. */
uint64_t ma_tombstones_settled(ma_master *master);
/* It is written (MS_OK), or it cannot be: then those who wait for it are told so. */
void ma_tombstone_done(ma_master *master, const ma_tombstone *tombstone, ms_status status);

/* ---- drains ---------------------------------------------------------------------------------------
 * That a store server is to be emptied outlives this master: the coordinator keeps it. */
typedef struct ma_draining {
    uint8_t node_id[16];
    uint64_t task; /* 0: it does not drain any more */
} ma_draining;

/* One that the coordinator holds from former leaders; before listening, its member is expected. */
ms_status ma_drain_add(ma_master *master, const ma_draining *drain);
bool ma_drain_is_waiting(ma_master *master);
/* The oldest that was not handed out yet; false: none. */
bool ma_drain_next(ma_master *master, ma_draining *drain);
/* The coordinator keeps it (MS_OK), or cannot: then whoever asked for it is told so, and it is as it was before. */
void ma_drain_done(ma_master *master, const ma_draining *drain, ms_status status);
/* end cdef */

#endif
