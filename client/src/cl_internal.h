/* What the files of the client core share.
 *
 * Locks, in the order in which they may be taken: session_lock, members_lock, a location shard's lock,
 * touch_lock, staging_lock, owed_lock, pins_lock, health.lock; pins_calls before all of them.  None is held over a
 * system call but session_lock, which serialises reconnecting (callers that need not never touch it), and pins_calls.
 */
#ifndef CL_INTERNAL_H
#define CL_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "breaker.h"
#include "cl.h"
#include "ms_frame.h"
#include "ms_hash.h"
#include "te.h"

#define CL_NODES_MAX 4096u  /* as many as a cluster has numbers for */
#define CL_SEGMENTS_MAX 16u /* mapped segments of one node */
#define CL_LOCATION_SHARDS 16u
#define CL_TOUCH_MAX 4096u             /* uses waiting to be reported; more are dropped */
#define CL_STAGING_MAX 2u              /* staging buffers: at most so many staged puts at a time */
#define CL_SCRATCH_ITEMS 128u          /* batches up to this need no allocation */
#define CL_INLINE_WRITE_MAX (8u << 10) /* on the same host, smaller values go through the socket; */
#define CL_INLINE_BATCH_MAX                                                                        \
    (64u << 10) /* these too, of a batch from memory that the server cannot map: in one frame */
#define CL_RELAY_BYTES_MAX (1u << 20) /* larger puts gain nothing from a relayed put_end */

/* ---- locations ------------------------------------------------------------------------------------- */
typedef struct cl_replica {
    uint32_t server, incarnation;
    uint32_t extent_first; /* index into the location's extents */
    uint16_t segment, extent_count;
} cl_replica;

/* Immutable once made; shared by the cache and readers. */
typedef struct cl_location {
    atomic_uint references;
    uint32_t replica_count;
    ms_hash hash;
    uint64_t version, size;
    uint32_t epoch;    /* of the leader that told it */
    int64_t expiry_ns; /* counted from when the look-up was sent (loc_expiry) */
    uint32_t lifetime_ms;
    uint32_t extent_count;
    uint32_t checksum;
    bool has_checksum;
    const cl_replica *replicas;
    const ms_extent *extents;
} cl_location;

typedef struct cl_location_shard {
    pthread_mutex_t lock;
    cl_location **slots; /* open addressing, linear probing */
    uint32_t slot_count; /* power of two */
    uint32_t used;
    uint32_t hand; /* where the next victim is looked for */
} cl_location_shard;

ms_status cl_locations_init(cl_client *client, uint32_t count_max);
void cl_locations_destroy(cl_client *client);
/* A reference, or NULL when not cached or expired. */
void cl_locations_prefetch(cl_client *client, const cl_item *items, size_t count);
cl_location *cl_location_find(cl_client *client, ms_hash hash, int64_t now_ns);
void cl_location_release(cl_location *location);
/* Takes a reference of its own; replaces an older one of the key. */
void cl_location_keep(cl_client *client, cl_location *location);
void cl_locations_drop(cl_client *client);
/* Only if the cached one still has this version. */
void cl_location_forget(cl_client *client, ms_hash hash, uint64_t version);
/* Reads one ms_location with its replicas from an answer.  *location is NULL when its status is not OK, which
 * is stored; BAD_FRAME for bytes that are none. */
ms_status cl_location_parse(ms_reader *reader, ms_hash hash, uint32_t epoch, int64_t sent_ns,
                            cl_location **location, ms_status *status);

/* ---- nodes -------------------------------------------------------------------------------------------
 * A number is the same node's under all leaders, until that is forgotten and a later leader gives it to another one.
 * So a location names this node if the leader of an epoch from `epoch_first` to `epoch_last` gave it *(number_checked)*. */
typedef struct cl_node {
    uint32_t server, incarnation;
    uint8_t node_id[16];
    uint32_t epoch_first;   /* first in which MEMBERS named this node so ... */
    atomic_uint epoch_last; /* ... and the last one */
    bool is_local;          /* equal boot id and a Unix socket */
    char name[64];
    te_channel *reading, *writing;
    cl_breaker breaker;  /* under health.lock */
    atomic_uint trouble; /* what calls see of it */
    bool is_retired;     /* under health.lock: replaced by a newer life */
    pthread_mutex_t mapping_lock;
    atomic_bool mapped[CL_SEGMENTS_MAX];
    te_mapping mappings[CL_SEGMENTS_MAX];
    struct cl_node
        *older; /* retired nodes: freed when the client closes, views may need their mappings */
} cl_node;

/* Whom a location or grant of that epoch names; NULL when the cluster has no such server now (also after asking for
 * MEMBERS once). */
cl_node *cl_node_get(cl_client *client, uint32_t server, uint32_t incarnation, uint32_t epoch,
                     int64_t deadline_ns);
/* Whether cl_node_get would tell without asking. */
bool cl_node_is_told(cl_client *client, uint32_t server, uint32_t incarnation, uint32_t epoch);
/* The node that a view was opened at, as it is now; NULL: not known any more. */
cl_node *cl_node_of_view(cl_client *client, const cl_view *view);
/* The newest life of a node that is known. */
cl_node *cl_node_now(cl_client *client, cl_node *node);
/* NULL: not on this host, or it cannot be mapped now. */
const te_mapping *cl_node_map(cl_client *client, cl_node *node, uint32_t segment,
                              int64_t deadline_ns);
/* Whether reading it takes no server. */
static inline bool cl_node_is_mapped(cl_node *node, uint32_t segment) {
    return segment < CL_SEGMENTS_MAX &&
           atomic_load_explicit(&node->mapped[segment], memory_order_acquire);
}
/* How many other nodes work, and could take a put instead of `node`. */
uint32_t cl_node_others(cl_client *client, const cl_node *node);
/* Two of those that do not answer, as number + 1; 0: there is no such. */
void cl_nodes_troubled(cl_client *client, uint16_t servers[2]);
void cl_nodes_set_session(cl_client *client);
/* Another cluster's numbers mean nothing here. */
void cl_nodes_retire(cl_client *client);
void cl_nodes_destroy(cl_client *client);

/* ---- who does not answer ------------------------------------------------------------------------------ */
#define CL_STATE_MASK 3u                 /* cl_breaker_state */
#define CL_HAS_STRIKES 4u                /* it has answered probes, and failed calls after that */
#define CL_HEDGE_NS INT64_C(70000000)    /* where another node would do, one gets so long ... */
#define CL_HEDGE_NS_PER_BYTE INT64_C(20) /* ... and the time for its bytes at 50 MB/s */
#define CL_ALONE_NS                                                                                \
    INT64_C(1000000000) /* a replica that would be missing: one node gets so long, once */

typedef struct cl_health {
    pthread_mutex_t lock;
    pthread_cond_t wake;    /* of the thread that asks again */
    pthread_cond_t changed; /* a breaker's state: for callers that wait */
    pthread_t prober;
    bool runs, is_woken, is_stopping;
    cl_breaker master;
    atomic_uint master_trouble; /* what calls see of it */
    atomic_uint nodes_troubled; /* of those in client->nodes */
} cl_health;

void cl_health_open(cl_client *client);
void cl_health_stop(cl_client *client);
/* After a stop: the prober begins with the next failure, or goes on. */
void cl_health_resume(cl_client *client);
void cl_health_close(cl_client *client);
void cl_health_read(cl_client *client, cl_counters *counters);

/* A call that was begun at `began_ns` had no answer; it had one. */
void cl_master_failed(cl_client *client, int64_t began_ns);
void cl_master_worked(cl_client *client);
/* It is elsewhere. */
void cl_master_moved(cl_client *client);
/* Before a call.  UNAVAILABLE while nobody waits for the master: the call ends at once.  A suspected one is waited for,
 * until the deadline: a call that goes to a frozen one would learn nothing. */
ms_status cl_master_check(cl_client *client, const char *stage, int64_t deadline_ns,
                          cl_failure *failure);
/* Waits until the master answers again.  False: not until the deadline, or nobody waits for it any more. */
bool cl_master_wait(cl_client *client, bool even_if_open, int64_t deadline_ns);

void cl_node_failed(cl_client *client, cl_node *node, int64_t began_ns);
void cl_node_worked(cl_client *client, cl_node *node);
void cl_node_retired(cl_client *client, cl_node *node);
static inline cl_breaker_state cl_node_state(cl_node *node) {
    return (cl_breaker_state)(atomic_load_explicit(&node->trouble, memory_order_relaxed) &
                              CL_STATE_MASK);
}
/* A call that has nobody else to ask waits until a probe has told what the node is; whether it is there. */
bool cl_node_settle(cl_client *client, cl_node *node, int64_t deadline_ns);
static inline int64_t cl_hedge_ns(uint64_t bytes, int64_t deadline_ns) {
    int64_t limit_ns = te_now_ns() + CL_HEDGE_NS + (int64_t)bytes * CL_HEDGE_NS_PER_BYTE;
    return limit_ns < deadline_ns ? limit_ns : deadline_ns;
}

/* ---- views ----------------------------------------------------------------------------------------- */
/* A view that a server may count although nobody here looks at it. */
typedef struct cl_owed_view {
    struct cl_owed_view *next;
    cl_node *node;
    te_connection *connection; /* its VIEW_OPEN is unanswered; NULL: its VIEW_CLOSE is to be sent */
    ms_view_item item;
} cl_owed_view;

/* A number that tells a view from others of the same object; it comes again after 65,536 views. */
uint16_t cl_view_next_tag(void);
/* What the server says; without an answer a view that it has opened, or opens later, is closed again. */
ms_status cl_view_ask(cl_client *client, cl_node *node, const ms_view_item *item,
                      int64_t deadline_ns);
void cl_view_end(cl_client *client, const cl_view *view);
/* Does what is owed and can be done now; is_last: the client closes, late answers are waited for no longer. */
void cl_views_settle(cl_client *client, bool is_last);
/* The client is closed.  While it owes something a thread holds it, for so long at most. */
#define CL_LINGER_NS INT64_C(600000000000)
void cl_views_linger(cl_client *client);
void cl_views_forget(cl_client *client);

/* ---- pins ---------------------------------------------------------------------------------------------- */
typedef struct cl_pins cl_pins;

bool cl_pins_open(cl_client *client);
void cl_pins_close(cl_client *client);
/* A call that pins or unpins. */
typedef struct cl_pins_call {
    uint64_t number; /* goes into the frame */
    uint64_t session;
    size_t promised;
    bool is_begun;
} cl_pins_call;

/* Around a call with so many keys and what it says here about it; fails when there is no master, or pins are being
 * stated until the deadline.  To be ended in any case. */
ms_status cl_pins_call_begin(cl_client *client, cl_pins_call *call, size_t count, const char *stage,
                             int64_t deadline_ns, cl_failure *failure);
void cl_pins_call_end(cl_client *client, cl_pins_call *call);
void cl_pins_add(cl_client *client, const cl_pins_call *call, ms_hash hash, uint32_t deadline_ms);
/* An unpin was answered; was_there: the master had the pin.  True: it had not, but the client did. */
bool cl_pins_drop(cl_client *client, const cl_pins_call *call, ms_hash hash, bool was_there);
/* The call was not answered, or could not be made: a pin is not held, an unpin is owed.  True: an unpin of what this
 * client holds, which is certain thereby. */
bool cl_pins_unheard(cl_client *client, const cl_pins_call *call, ms_hash hash, bool is_unpin);
bool cl_pins_any(cl_client *client);
/* States what is not certain, or was pinned in sessions that are lost; the keeper's. */
void cl_pins_settle(cl_client *client);

/* ---- reads that wait for nobody who waits for the master ------------------------------------------------ */
#define CL_LANE_JOBS 4096u

typedef struct cl_lane_job {
    void (*run)(void *argument);
    void *argument;
} cl_lane_job;

typedef struct cl_lane {
    pthread_mutex_t lock;
    pthread_cond_t filled;
    cl_lane_job *jobs; /* a ring; NULL until first needed */
    uint32_t first, count;
    pthread_t thread;
    bool runs, is_stopping;
} cl_lane;

void cl_lane_open(cl_client *client);
/* False: it is full, or no thread can be started. */
bool cl_lane_spawn(cl_client *client, void (*run)(void *argument), void *argument);
/* Nobody may be inside the client any more. */
void cl_lane_stop(cl_client *client);
void cl_lane_close(cl_client *client);

/* As cl_get and cl_locate, of items whose locations are all known here.  PENDING: the master has to be asked, or a
 * store server waited for that does not answer, and nothing has been said about any item; call the other one. */
ms_status cl_get_known(cl_client *client, cl_item *items, size_t count,
                       const te_transfer_options *share, int64_t deadline_ns, cl_failure *failure);
ms_status cl_locate_known(cl_client *client, cl_item *items, size_t count, int64_t deadline_ns,
                          cl_failure *failure);

/* ---- the client ---------------------------------------------------------------------------------------- */
typedef struct cl_staging {
    uint8_t *address;
    bool busy;
} cl_staging;

struct cl_client {
    uint64_t handle;
    atomic_uint holders; /* its opener until close, and each open view */
    int pid;
    cl_config config;
    char *master_addresses, *master_unix, *name;
    uint8_t tenant[MS_TENANT_BYTES_MAX];
    size_t tenant_length;
    char *token;
    uint8_t boot_id[16];
    uint8_t secret[MS_SECRET_BYTES];
    te_engine *engine;
    te_channel *master;
    uint64_t failures_seen; /* of that channel, by cl_wait_master_trouble */

    pthread_mutex_t session_lock;
    atomic_ullong session;
    atomic_ullong cluster; /* of the session; 0 before the first one */
    atomic_uint epoch;
    uint32_t session_timeout_ms;
    atomic_ullong number;      /* last request number given */
    atomic_ullong number_done; /* see cl_number_end */
    pthread_mutex_t number_lock;
    uint64_t numbers_open[256]; /* open numbered requests; 0 = free */

    cl_health health;

    pthread_mutex_t members_lock;
    atomic_uint members_serial; /* as told by the master */
    atomic_uint members_known;  /* as last fetched */
    int64_t members_fetched_ns;
    _Atomic(cl_node *) nodes[CL_NODES_MAX];
    atomic_uint nodes_end; /* the highest number that was seen, + 1 */
    cl_node *retired;

    cl_location_shard shards[CL_LOCATION_SHARDS];

    pthread_mutex_t touch_lock;
    ms_hash touches[CL_TOUCH_MAX];
    uint32_t touch_count;

    pthread_mutex_t staging_lock;
    pthread_cond_t staging_free;
    cl_staging staging[CL_STAGING_MAX];

    pthread_rwlock_t pins_calls;
    pthread_mutex_t pins_lock;
    cl_pins *pins;
    atomic_ullong pins_number; /* of calls that pin, unpin or state pins */

    pthread_mutex_t owed_lock;
    cl_owed_view *owed;
    uint32_t owed_unanswered; /* of them, VIEW_OPENs */
    bool is_closed, lingers;

    cl_lane lane;
    atomic_uint jobs_spawned; /* asyncio's, that workers have or will have */

    pthread_t keeper;
    bool keeper_runs;
    pthread_mutex_t keeper_lock;
    pthread_cond_t keeper_wake;
    bool stopping;

    atomic_ullong gets, get_hits, get_misses, get_bytes, get_bytes_local;
    atomic_ullong puts, put_bytes, put_bytes_local;
    atomic_ullong lookups, locations_used, locations_gone;
    atomic_ullong failure_count, sessions_lost, relayed_ends, checksum_failures;
    atomic_ullong reads_moved, puts_moved, calls_repeated;
};

static inline uint32_t cl_nodes_end(cl_client *client) {
    return atomic_load_explicit(&client->nodes_end, memory_order_acquire);
}

/* ---- session ----------------------------------------------------------------------------------------------- */
/* First connection, or a new session in place of `lost`. */
ms_status cl_session_open(cl_client *client, uint64_t lost, int64_t deadline_ns,
                          cl_failure *failure);
/* Asks the master whether it is there; opens a session where there is none (any more).  The transport's status. */
ms_status cl_session_probe(cl_client *client, int64_t deadline_ns);
void cl_session_close(cl_client *client, int64_t deadline_ns);
/* A HELLO body of the longest tenant, token and name. */
#define CL_HELLO_BYTES_MAX                                                                         \
    (sizeof(ms_hello) + MS_TENANT_BYTES_MAX + MS_TOKEN_BYTES_MAX + MS_NAME_BYTES_MAX + 32u)
/* HELLO body for a store server. */
ms_status cl_hello_for_node(cl_client *client, uint8_t right, uint32_t incarnation, uint8_t *body,
                            size_t size, size_t *length);
ms_status cl_keeper_start(cl_client *client);
void cl_keeper_stop(cl_client *client);
ms_status cl_members_fetch(cl_client *client, int64_t deadline_ns);
void cl_touch_later(cl_client *client, ms_hash hash);

/* Whether a call that had no answer may be made again once the master, or the next one, answers. */
typedef enum cl_repeat {
    CL_REPEAT_NEVER,      /* nobody knows what it has done */
    CL_REPEAT_ALWAYS,     /* twice is as good as once */
    CL_REPEAT_IN_SESSION, /* it is numbered: the same session answers as the first time */
    CL_REPEAT_IN_NEXT     /* what it has done ended with its session */
} cl_repeat;

/* A call to the master; a lost session is replaced and the call made once more.  Fills failure. */
ms_status cl_master_call(cl_client *client, cl_repeat repeat, uint16_t method, uint32_t flags,
                         const struct iovec *body, size_t body_count, te_reply *reply,
                         const char *stage, int64_t deadline_ns, cl_failure *failure);

/* Look up every PENDING item at the master; locations[i] gets a reference when it was found (may be NULL). */
ms_status cl_lookup(cl_client *client, cl_item *items, size_t count, cl_location **locations,
                    int64_t deadline_ns, cl_failure *failure);

/* A number for a request that is executed at most once, and its ms_batch.  Each start has its end. */
ms_batch cl_number_start(cl_client *client, uint32_t count);
void cl_number_end(cl_client *client, uint64_t number);

/* The handle's client for an open view, also when it is closed or forked away (then NULL). */
cl_client *cl_of_view(uint64_t handle);
/* One holder fewer; the last one takes the client away. */
void cl_let_go(cl_client *client);

/* Conditions here are waited for by CLOCK_MONOTONIC. */
void cl_condition_init(pthread_cond_t *condition);
/* False: somebody else had it until the deadline. */
bool cl_lock_until(pthread_mutex_t *lock, int64_t deadline_ns);

/* ---- small things --------------------------------------------------------------------------------------------- */
ms_status cl_fail(cl_failure *failure, ms_status status, const char *stage, const char *node,
                  const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Gives all items the status of a call that failed as a whole. */
ms_status cl_fail_all(cl_item *items, size_t count, ms_status status);
/* Checks keys and fills hashes; BAD_KEY items keep that status, the others get PENDING.  Number of PENDING. */
size_t cl_hash_items(cl_client *client, cl_item *items, size_t count);
static inline uint32_t cl_left_ms(int64_t deadline_ns) {
    int64_t left = (deadline_ns - te_now_ns()) / 1000000;
    return left < 1 ? 1 : left > 3600000 ? 3600000 : (uint32_t)left;
}
/* Whether another replica or a retry may help. */
static inline bool cl_is_transport(ms_status status) {
    return status == MS_UNAVAILABLE || status == MS_TIMEOUT || status == MS_CLOSED ||
           status == MS_IO_ERROR;
}
/* Whether nobody leads there, or nobody is there at all. */
static inline bool cl_is_leaderless(ms_status status) {
    return cl_is_transport(status) || status == MS_NOT_LEADER;
}

#endif
