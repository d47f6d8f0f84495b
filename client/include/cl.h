/* The client core: finds objects, reads them with certainty, stores them; everything that happens per key or
 * per byte inside an engine's process.
 *
 * A client is named by a handle (never used twice in a process), so that a closed or forked client is an
 * error and not a crash.  Every call carries a batch of items and one absolute deadline, blocks the calling
 * thread at most until then, and may be made from any number of threads.
 */
#ifndef CL_H
#define CL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ms_wire.h"
#include "te.h"

/* begin cdef */
/* CRC32C of objects. */
typedef enum {
    CL_CHECKSUMS_OFF = 0,
    CL_CHECKSUMS_PUT = 1,   /* computed at put, checked by the server, kept with the object */
    CL_CHECKSUMS_VERIFY = 2 /* and what is read whole over the network is compared */
} cl_checksums;

typedef struct cl_config {
    const char *master; /* "ip:port", "[ip]:port", several with commas; NULL with master_unix */
    const char *master_unix;     /* path, tried first; NULL = none */
    const char *tenant;          /* "default" */
    const char *token;           /* "" */
    const char *name;            /* for people */
    uint32_t location_count_max; /* cached locations; default 65,536 */
    uint32_t connections_max;    /* to each peer; default 8 */
    uint32_t worker_threads;     /* default 2 */
    uint32_t stream_copy_bytes;  /* 0 = the engine's default */
    uint32_t staging_bytes;    /* shared staging memory of a put on the same host; default 4 MiB */
    uint32_t allow_local;      /* 0: never shared memory or Unix sockets (to measure TCP) */
    uint32_t allow_relay;      /* 0: put_end is always sent by the client itself */
    uint32_t checksums;        /* cl_checksums; default CL_CHECKSUMS_OFF */
    uint32_t wait_for_master;  /* opening waits for a master that is not there yet; default 1 */
    uint32_t class_weights[4]; /* as te_engine_config has them */
} cl_config;

/* What went wrong, for one exception. */
typedef struct cl_failure {
    int32_t status;
    char
        stage[24]; /* "connect", "lookup", "read", "put_start", "write", "put_end", "remove", ... */
    char node[64]; /* "master" or the server's name */
    char message[256]; /* a sentence for people; may be empty */
} cl_failure;

typedef struct cl_counters {
    uint64_t gets, get_hits, get_misses, get_bytes, get_bytes_local;
    uint64_t puts, put_bytes, put_bytes_local;
    uint64_t lookups, locations_used, locations_gone;
    uint64_t failures, sessions_lost, relayed_ends, checksum_failures;
    uint64_t session;
    uint64_t cluster;                 /* that the session is of; 0: there was none yet */
    uint64_t reads_moved, puts_moved; /* to another node, because one did not answer in time */
    uint64_t calls_repeated;          /* to the master, after it had not answered */
    uint64_t master_openings;         /* times that nobody waited for the master any more */
    uint32_t epoch, nodes;
    uint64_t rdma_read_bytes, rdma_write_bytes;
    uint64_t
        rdma_fallbacks; /* reads and writes that went over TCP although there was a way by RDMA */
    uint32_t nodes_avoided; /* now, because they do not answer */
    uint32_t master_state; /* cl_breaker_state: 0 it answers, 1 it did not, 2 nobody waits for it */
} cl_counters;

void cl_config_default(cl_config *config);
/* Connects and opens a session; waits for the master until the deadline unless it is told not to. */
ms_status cl_open(const cl_config *config, int64_t deadline_ns, uint64_t *handle,
                  cl_failure *failure);
/* No call begins any more; those inside end as they would have (each has its deadline); then the session is
 * ended, best effort within `timeout_ns`.  Idempotent. */
void cl_close(uint64_t handle, int64_t timeout_ns);

/* Another master leads, there: calls go to it from now on; those that wait for the other one end with a failure. */
ms_status cl_set_master(uint64_t handle, const char *address, const char *unix_path);
/* Waits until something is wrong with the master: a call failed, or one has waited for a second; then it is worth
 * asking whether another one leads.  1: so it is; 0: not until the timeout; -1: the client is closed. */
int32_t cl_wait_master_trouble(uint64_t handle, uint32_t timeout_ms);

/* Any frame to the master, for calls that are not hot.  The answer is freed with cl_release.  `numbered`:
 * the body begins with ms_batch, whose number and number_done are filled in here. */
ms_status cl_command(uint64_t handle, uint16_t method, uint32_t flags, const uint8_t *body,
                     size_t body_length, int32_t numbered, uint8_t **answer, size_t *answer_length,
                     int64_t deadline_ns, cl_failure *failure);
void cl_release(uint8_t *answer);
/* Hash under which the cluster knows a key. */
ms_status cl_hash(uint64_t handle, const char *key, size_t key_length, uint8_t *hash);
void cl_forget_locations(uint64_t handle);
ms_status cl_read_counters(uint64_t handle, cl_counters *counters);

/* Memory that servers on this host can copy from directly. */
ms_status cl_alloc(uint64_t handle, size_t length, uint64_t *address);
ms_status cl_free(uint64_t handle, uint64_t address);
/* Tells the engine's transports of memory that will be read into and written from often. */
ms_status cl_register_memory(uint64_t handle, uint64_t address, uint64_t length);
ms_status cl_unregister_memory(uint64_t handle, uint64_t address);
/* Adds the hot functions to the extension module and keeps the function that makes exceptions. */
int cl_install(uintptr_t module, uintptr_t make_error);
/* end cdef */

typedef struct cl_client cl_client;

/* A reference to an open client; NULL and a failure (CLOSED, FORKED) else.  Each enter has its leave. */
cl_client *cl_enter(uint64_t handle, cl_failure *failure);
void cl_leave(cl_client *client);

typedef struct cl_item {
    const uint8_t *key;
    uint32_t key_length;
    ms_status status; /* out */
    ms_hash hash;     /* filled in by the calls */
    void *memory;     /* get: target.  put: source */
    uint64_t size;    /* get: room in target.  put: bytes of the object */
    uint64_t bytes;   /* out: bytes of the object */
    /* NULL: `memory` is all.  Else `size` bytes in so many pieces, in order; none is empty. */
    const struct iovec *pieces;
    uint32_t piece_count;
    bool is_range; /* get: from `offset` on as many bytes as there is room for */
    uint64_t offset;
    uint32_t replica_count; /* out, put: how many were made */
} cl_item;

typedef struct cl_put_options {
    uint32_t replica_count;     /* default 1 */
    uint32_t replica_count_min; /* default 1 */
    uint32_t flags;             /* ms_put_flag */
    uint32_t preferred_server;  /* + 1 */
    uint64_t ttl_ms;
    ms_hash parent; /* of the first item; 0 = none */
    bool chain;     /* item i is the parent of item i + 1 */
    uint64_t group;
    uint32_t timeout_ms;              /* the call's, for the put's deadline */
    const te_transfer_options *share; /* NULL: NORMAL */
} cl_put_options;

typedef struct cl_view {
    const void *address;
    uint64_t size;
    uint64_t version;
    uint32_t server, incarnation, segment, page;
    uint32_t epoch; /* the first in which this client knew the server by that number */
    uint32_t tag;   /* of the message that opened it */
} cl_view;

/* Return OK when every item has its own status; another status when the call as a whole failed (then the
 * items have it too) and failure tells why. */
ms_status cl_exists(cl_client *client, cl_item *items, size_t count, int64_t deadline_ns,
                    cl_failure *failure);
/* As cl_exists; what is there is not evicted for so long, which is a use of it.  A lease ends by itself only, and
 * with the master. */
ms_status cl_lease(cl_client *client, cl_item *items, size_t count, uint32_t lease_ms,
                   int64_t deadline_ns, cl_failure *failure);
/* Sizes only. */
ms_status cl_locate(cl_client *client, cl_item *items, size_t count, int64_t deadline_ns,
                    cl_failure *failure);
/* Whether the location of this key is cached, and how large the object then is.  Never blocks. */
bool cl_locate_cached(cl_client *client, cl_item *item);
/* `share`: how its bytes go among others; NULL: URGENT. */
ms_status cl_get(cl_client *client, cl_item *items, size_t count, const te_transfer_options *share,
                 int64_t deadline_ns, cl_failure *failure);
ms_status cl_put(cl_client *client, cl_item *items, size_t count, const cl_put_options *options,
                 int64_t deadline_ns, cl_failure *failure);
ms_status cl_remove(cl_client *client, cl_item *items, size_t count, bool force,
                    int64_t deadline_ns, cl_failure *failure);
ms_status cl_match_prefix(cl_client *client, cl_item *items, size_t count, bool pin,
                          uint32_t pin_deadline_ms, size_t *matched, int64_t deadline_ns,
                          cl_failure *failure);
/* method: MS_PIN, MS_UNPIN or MS_TOUCH. */
ms_status cl_mark(cl_client *client, uint16_t method, cl_item *items, size_t count,
                  uint32_t pin_deadline_ms, int64_t deadline_ns, cl_failure *failure);
ms_status cl_view_open(cl_client *client, cl_item *item, cl_view *view, int64_t deadline_ns,
                       cl_failure *failure);
/* The view's memory stays mapped until then, also when the client is closed before: it goes with its last view. */
void cl_view_close(uint64_t handle, const cl_view *view);
/* Asynchronous calls: run on the engine's workers; an eventfd tells that something has ended. */
te_engine *cl_engine(cl_client *client);

#endif
