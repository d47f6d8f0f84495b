/* What the files of the store server share.
 *
 * One lock (server->lock) protects everything that the protocol calls one step: words, inventory, fences, the
 * adopted epoch, who is connected.  It is held for microseconds; never over a system call that can block, over
 * te_close_matching, or while bytes move.  Guarded reads take no lock: see st_read_begin.
 *
 * Lock order: server->lock, then the engine's own (te_push), then server->log_lock.
 *
 * Threads: the engine's I/O threads (frames, copies into and out of memory); one control thread (dials the
 * master, fences, ADOPT and INVENTORY, deaths of processes with views, statistics); one that grows the pool
 * until it is ready; copiers while there are copies to make.
 */
#ifndef ST_INTERNAL_H
#define ST_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "ms_frame.h"
#include "ms_wire.h"
#include "st.h"
#include "st_header.h"
#include "st_segment.h"
#include "st_table.h"
#include "te.h"

#define ST_VIEWS_MAX (1u << 24)
#define ST_SEGMENTS_MAX 1u /* DRAM; another tier adds its own */
#define ST_TICK_MS 200u
#define ST_STATS_INTERVAL_MS 1000

typedef struct st_server st_server;

typedef enum {
    ST_COUNT_WRITES,
    ST_COUNT_WRITES_REFUSED,
    ST_COUNT_WRITTEN_BYTES,
    ST_COUNT_SEALS,
    ST_COUNT_SEALS_REFUSED,
    ST_COUNT_BAD_CHECKSUMS,
    ST_COUNT_READS,
    ST_COUNT_READS_GONE,
    ST_COUNT_READ_BYTES,
    ST_COUNT_FREES,
    ST_COUNT_FREES_WAITING,
    ST_COUNT_FENCES,
    ST_COUNT_NOTES,
    ST_COUNT_VIEWS_OPENED,
    ST_COUNT_VIEWS_REFUSED,
    ST_COUNT_COPIES,
    ST_COUNT_COPIES_FAILED,
    ST_COUNT_RELAYS,
    ST_COUNT_ADOPTIONS,
    ST_COUNT_DIALS,
    ST_COUNT_FRAMES_REFUSED,
    ST_COUNT_LINES_DROPPED,
    ST_COUNT_STORAGE_FULL,
    ST_COUNT_STORED_END, /* counted in st_server.counts up to here; the rest is asked */
    ST_COUNT_BYTES_TOTAL = ST_COUNT_STORED_END,
    ST_COUNT_BYTES_READY,
    ST_COUNT_EXTENTS,
    ST_COUNT_BYTES_LIVE,
    ST_COUNT_VIEWS_OPEN,
    ST_COUNT_VIEW_BYTES,
    ST_COUNT_PENDING_FREES,
    ST_COUNT_INVENTORY_BYTES,
    ST_COUNT_COMPACTIONS,
    ST_COUNT_CONNECTIONS,
    ST_COUNT_IS_ADOPTED,
    ST_COUNT_END
} st_count;

/* A connection: of a client, or the one to the master. */
typedef struct st_peer {
    st_server *server;
    struct st_peer *previous, *next; /* under server->lock */
    te_peer number;
    uint64_t session;
    uint32_t epoch, incarnation;
    uint32_t pid;
    bool is_master;
    bool is_unix;
    bool may_read, may_write;
    bool is_closed;      /* while it is being dialled: on_close came first */
    _Atomic bool is_cut; /* fenced, or of an older epoch: writes no more.  Set under server->lock */
} st_peer;

/* An extent that was freed while it was in use: FREED is owed. */
typedef struct st_pending {
    uint64_t version;
    uint32_t segment, page, page_count;
} st_pending;

typedef struct st_job st_job; /* for the control thread: control.c */
typedef struct st_views st_views;
typedef struct st_copier st_copier;

typedef struct st_counts {
    _Alignas(64) _Atomic uint64_t values[ST_COUNT_STORED_END];
} st_counts;

struct st_server {
    st_config config; /* the strings are copies, in one block */
    char *strings;
    int folder_lock;
    te_engine *engine;
    char addresses[1024]; /* told to the master when the configuration says none */
    st_segment segments[ST_SEGMENTS_MAX];
    uint32_t segment_count;
    uint16_t port;
    bool was_restarted;
    st_segment_found found; /* of an earlier process, at the start */
    uint64_t pages_kept;
    uint8_t boot_id[16];
    st_counts counts;

    pthread_mutex_t lock;
    st_header header;
    st_peer *peers; /* list */
    size_t peer_count;
    st_table fenced;   /* sessions of the adopted epoch that write here no more */
    st_table pendings; /* segment and page -> st_pending * */
    st_peer *master;   /* NULL = not connected */
    st_peer *dialling; /* will be the master; its frames may come before te_dial returns */
    bool is_adopted;   /* INVENTORY has gone out on `master` */
    bool was_adopted;  /* by some leader, since the start */
    char master_address[256];
    bool master_changed;
    st_table
        partials; /* version -> st_partial *: objects of several parts, some of which are sealed */
    _Atomic int64_t ticked_ns;
    uint64_t stats_pages_sent;
    int64_t stats_sent_ns;
    st_views *views;
    st_copier *copier;

    /* control thread */
    pthread_t control_thread;
    bool control_started;
    int control_epoll, control_event;
    st_job *jobs_first, *jobs_last; /* under lock */
    bool is_stopping;               /* under lock */
    pthread_cond_t pinged;          /* with lock: the master has answered a PING */
    uint64_t pings_sent, pings_answered;

    /* growth of the pool */
    pthread_t grow_thread;
    bool grow_started;
    pthread_mutex_t grow_lock;
    pthread_cond_t grow_stop;
    bool grow_is_stopping;
    _Atomic int pool_state;

    pthread_mutex_t log_lock;
    struct st_log_line *log_lines;
    uint32_t log_first, log_count;
    uint32_t log_dropped; /* since the last line was taken */
    int log_event;
};

/* service.c: HELLO and frames; gives te_serve its hooks. */
void st_serve(st_server *server);

/* counters.c */
void st_write_counters(st_server *server, ms_writer *out);

/* log.c */
ms_status st_log_open(st_server *server);
void st_log_close(st_server *server);
__attribute__((format(printf, 3, 4))) void st_log(st_server *server, int severity,
                                                  const char *format, ...);

static inline void st_count_add(st_server *server, st_count count, uint64_t amount) {
    atomic_fetch_add_explicit(&server->counts.values[count], amount, memory_order_relaxed);
}

static inline st_segment *st_segment_of(st_server *server, uint32_t number) {
    return number < server->segment_count ? &server->segments[number] : NULL;
}

/* seal.c: what the engine calls for each item of WRITE; and SEAL. */
ms_status st_write_begin(void *context, void *peer_context, const ms_write_item *item);
ms_status st_write_end(void *context, void *peer_context, const ms_write_item *item,
                       const uint8_t *seal, size_t seal_length, bool complete);
void st_handle_seal(st_server *server, st_peer *peer, const te_request *request);
/* What a COPY has to end: SEAL in the master's name. */
typedef struct st_copy_order {
    st_segment *segment;
    uint64_t version;
    uint32_t epoch, incarnation;
    const ms_replica_view *target;
    const ms_seal_view *seal;
    bool *is_running; /* cleared in the same step */
} st_copy_order;
/* Gives a writer's use of each extent back and, when status is OK, seals them all if the order still counts. */
ms_status st_copy_end(st_server *server, const st_copy_order *order, ms_status status);
/* Lock held: the object will not be completed here. */
void st_partial_drop(st_server *server, uint64_t version);
void st_partials_close(st_server *server);

/* read.c: what the engine calls for each item of READ. */
void st_read_ahead(void *context, const ms_read_item *items, uint32_t count);
ms_status st_read_begin(void *context, void *peer_context, const ms_read_item *item);
uint64_t st_read_end(void *context, void *peer_context, const ms_read_item *item);

/* free.c */
/* Lock held.  Nothing that is live here counts any more: it is of another cluster.  BUSY: some of it is being
 * looked at.  The lock is held longer than ever else, before anybody may write here. */
ms_status st_drop_all(st_server *server);
void st_handle_free(st_server *server, st_peer *peer, const te_request *request);
void st_handle_note(st_server *server, st_peer *peer, const te_request *request);
/* A reader's or view's use is given back; sends FREED when it was the last. */
void st_drop_reader(st_segment *segment, uint32_t page);
/* Lock held.  The use count of `page` may have become 0, or a newer version may live there: takes the owed
 * FREED out into *item.  True: send it with st_send_freed once the lock is released. */
bool st_pending_take(st_segment *segment, uint32_t page, ms_free_item *item);
void st_send_freed(st_server *server, const ms_free_item *item);
/* Lock held.  FREED is owed for it from now on.  False: no memory. */
bool st_pending_add(st_server *server, const ms_free_item *item);
void st_pendings_close(st_server *server);
/* may_wait: on the control thread, which may cut connections and wait for their end. */
void st_run_free(st_server *server, te_peer from, const ms_free_view *frees, bool may_wait);
/* Ends the connections that are cut; none of them writes any more when it returns.  Not on I/O threads. */
void st_cut(st_server *server, const char *reason);

/* adopt.c, on the control thread */
/* An item of INVENTORY: in use without a live word. */
void st_write_in_use(ms_writer *out, const st_pending *pending);
void st_run_adopt(st_server *server, te_peer from, const ms_header *request, ms_adopt adopt);

/* relay.c: hook after the last item of a WRITE. */
bool st_write_done(void *context, const te_request *request, const uint32_t *statuses,
                   size_t count);
/* True: RELAYED_END is on its way, the client gets no answer from here. */
bool st_relay(st_server *server, st_peer *peer, const ms_write_view *write);

/* view.c */
/* is_kept: of the files that an earlier process left.  BAD_CHECKSUM: its table of views is damaged. */
ms_status st_views_open(st_server *server, bool is_kept, char *error);
void st_views_close(st_server *server, bool keep_files);
void st_handle_view_open(st_server *server, st_peer *peer, const te_request *request);
void st_handle_view_close(st_server *server, st_peer *peer, const te_request *request);
void st_view_process_died(st_server *server, uint32_t pid); /* on the control thread */
bool st_views_are_open(const st_server *server);            /* lock held */
void st_views_count(st_server *server, uint64_t *views, uint64_t *bytes);

/* copy.c */
ms_status st_copier_open(st_server *server);
void st_copier_close(st_server *server);
void st_handle_copy(st_server *server, st_peer *peer, const te_request *request);
/* Lock held: appends what COPYs are writing into, for INVENTORY; gives the number of items. */
uint32_t st_copies_write(st_server *server, ms_writer *out);

/* control.c */
ms_status st_control_open(st_server *server);
ms_status st_control_start(st_server *server);
void st_control_stop(st_server *server);
void st_control_close(st_server *server);
/* False: no memory.  The body is copied. */
bool st_control_post(st_server *server, te_peer from, const ms_header *header, const uint8_t *body);
void st_control_watch(st_server *server, int pidfd,
                      uint32_t pid); /* st_view_process_died follows */
void st_control_wake(st_server *server);
/* Answers with a status and a sentence. */
void st_answer(st_server *server, const te_request *request, ms_status status,
               const char *sentence);

#endif
