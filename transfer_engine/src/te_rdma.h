/* RDMA: what its files offer each other and the rest of the engine.
 *
 *   verbs.c             libibverbs, opened at run time
 *   rdma_device.c       NICs (ports of devices), their state and GIDs
 *   rdma_gid.c          which GIDs may talk to each other (pure)
 *   rdma_memory.c       ranges of memory, registered in chunks on every NIC, in the background
 *   rdma_bounce.c       registered slots for bytes whose own memory is not registered
 *   rdma_queue_pair.c   RC queue pairs
 *   rdma_completion.c   waiting for completions: asking for a moment, then sleeping
 *   rdma_server.c       answering side: ports, queue pairs of links, keys of segments
 *   rdma_endpoint.c     asking side: a connection and its queue pairs, one or more a rail
 *   rdma_exchange.c     slices over the rails of an endpoint; drain
 *   rdma_word.c         what follows the bytes: generation words, READs behind WRITEs
 *   lane_rdma*.c        the same for the slice scheduler: a lane is an endpoint of one queue pair (te_rail_ops.h)
 *   rdma_pool.c         endpoints to a peer: opened on demand in the background, bounded, forgotten when broken
 *   rdma_settings.c     what can be set (pure)
 *   rdma.c              opening and closing all of it; events of the devices
 *
 * An endpoint is for ever that of one HELLO: its queue pairs live no longer than the connection over which they were
 * agreed, at both ends.  So every rule about connections (session, epoch, incarnation, right; the fence) holds for
 * queue pairs too: the server destroys them with the link.
 *
 * Threads.  An endpoint belongs to the thread that has taken it from the pool: no lock on the way of the bytes.
 *
 * Lock order: pool->lock, rdma->lock, nic->lock.  link->lock is never taken with one of them held.
 */
#ifndef TE_RDMA_H
#define TE_RDMA_H

#include "te_parts.h"
#include "te_rdma_device.h"
#include "te_rdma_settings.h"

typedef struct te_rdma_range te_rdma_range;
typedef struct te_rdma_endpoint te_rdma_endpoint;
typedef struct te_rdma_pool te_rdma_pool;

#define TE_RDMA_RAILS_MAX 16u /* queue pairs of an endpoint */
#define TE_RDMA_SLOT_BYTES (256u << 10)
#define TE_RDMA_SLOTS 16u
#define TE_RDMA_SCRATCH_BYTES 4096u

struct te_rdma {
    te_engine *engine;
    const te_verbs *verbs;
    te_rdma_settings settings;
    pthread_t events_thread;
    int stop_event; /* eventfd */
    bool has_thread;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    te_rdma_nic *nics[TE_RDMA_NICS_MAX]; /* only grows: a NIC that has gone stays until the end */
    _Atomic uint32_t nic_count;
    te_rdma_range *ranges;
    bool is_registering; /* the thread that registers runs */
    bool is_stopping;
    bool is_short_told;          /* a refused registration has been logged */
    bool is_device_short_told;   /* of device memory */
    bool is_device_refusal_told; /* a request of device memory that no NIC carries; the carrier's */
    struct te_rdma_bounce *bounce;
    uint32_t endpoint_count;                  /* and those being opened */
    te_rdma_endpoint *newest, *oldest, *hand; /* SIEVE's queue */

    _Atomic uint32_t accepted_queue_pairs;
    _Atomic uint64_t generation;
    struct te_rdma_counters {
        _Atomic uint64_t read_bytes, write_bytes, slices, rail_failures, fallbacks;
        _Atomic uint64_t endpoints_opened, endpoints_closed, queue_pairs_made, queue_pairs_gone;
    } counters;
};

/* ---- rdma.c ------------------------------------------------------------------------------------------------------- */
/* *opened stays NULL when there is no device or no library, or it is switched off; a line of the log says which, once a
 * process. */
ms_status te_rdma_open(te_engine *engine, te_rdma **opened);
void te_rdma_stop(te_rdma *rdma);  /* nothing is begun any more; what runs has ended */
void te_rdma_close(te_rdma *rdma); /* no link and no channel is left */
te_rdma_nic *te_rdma_nic_at(te_rdma *rdma, uint32_t index); /* NULL: none of that number */

/* ---- rdma_memory.c ------------------------------------------------------------------------------------------------ */
typedef enum te_rdma_use {
    TE_RDMA_SERVED,         /* peers read and write it */
    TE_RDMA_SERVED_READING, /* peers read it */
    TE_RDMA_OWN             /* ours: target of READs, source of WRITEs; and served as a region */
} te_rdma_use;
/* Registration begins in the background, as far as the memory is ready.  NULL without memory: it is not used by RDMA. */
te_rdma_range *te_rdma_range_open(te_rdma *rdma, const void *address, uint64_t length,
                                  uint64_t ready, te_rdma_use use);
/* Memory that only NICs reach, registered with all of them before it returns.  NOT_REGISTERED: one of them refuses, and
 * device->error says which. */
ms_status te_rdma_range_open_device(te_rdma *rdma, const void *address, uint64_t length,
                                    const te_device_memory *device, te_rdma_use use,
                                    te_rdma_range **opened);
void te_rdma_range_extend(te_rdma_range *range, uint64_t ready);
/* When it returns no NIC can touch the memory. */
void te_rdma_range_close(te_rdma_range *range);
/* A new NIC: register everything on it too. */
void te_rdma_ranges_add_nic(te_rdma *rdma);
typedef struct te_rdma_key {
    uint32_t local, remote;
    uint64_t run; /* bytes from the address on that this key is for */
} te_rdma_key;
/* False: not (yet) registered on that NIC. */
bool te_rdma_range_key(te_rdma_range *range, const te_rdma_nic *nic, uint64_t address,
                       te_rdma_key *key);
/* The NIC has refused some of it, and is not asked again. */
bool te_rdma_range_is_refused(const te_rdma_range *range, const te_rdma_nic *nic);
uint64_t te_rdma_range_chunk_bytes(const te_rdma_range *range);
void te_rdma_range_span(const te_rdma_range *range, uint64_t *address, uint64_t *length);
/* Bytes registered, over all NICs that are up, and bytes wanted. */
void te_rdma_progress(te_rdma *rdma, uint64_t *registered, uint64_t *wanted);

/* ---- rdma_bounce.c ------------------------------------------------------------------------------------------------ */
typedef struct te_rdma_bounce te_rdma_bounce;
ms_status te_rdma_bounce_open(te_rdma *rdma, te_rdma_bounce **bounce);
void te_rdma_bounce_close(te_rdma_bounce *bounce);
/* A free slot of TE_RDMA_SLOT_BYTES, or NULL. */
uint8_t *te_rdma_slot_take(te_rdma_bounce *bounce);
void te_rdma_slot_give(te_rdma_bounce *bounce, uint8_t *slot);
te_rdma_range *te_rdma_bounce_range(te_rdma_bounce *bounce);

/* ---- rdma_queue_pair.c -------------------------------------------------------------------------------------------- */
typedef struct te_rdma_qp {
    te_rdma *rdma;
    te_rdma_nic *nic;
    verbs_qp *qp;
    uint32_t psn, depth, inline_max;
} te_rdma_qp;
/* In state INIT; `access`: what the peer may do through it.  LIMIT: the device has no more. */
ms_status te_rdma_qp_open(te_rdma *rdma, te_rdma_nic *nic, verbs_cq *cq, uint32_t depth,
                          unsigned access, te_rdma_qp *opened);
typedef struct te_rdma_qp_peer {
    uint32_t qpn, psn;
    uint16_t lid;
    uint8_t gid[16], gid_index; /* the index is ours: the GID that we speak from */
    uint8_t mtu;                /* the smaller of both */
    uint8_t reads_out, reads_in;
} te_rdma_qp_peer;
/* Ready to send and to answer. */
ms_status te_rdma_qp_connect(te_rdma_qp *qp, const te_rdma_qp_peer *peer);
/* When it returns the NIC touches no local memory for it any more, and answers nothing through it. */
void te_rdma_qp_close(te_rdma_qp *qp);

/* ---- rdma_completion.c -------------------------------------------------------------------------------------------- */
/* Completions of one NIC for one endpoint. */
typedef struct te_rdma_cq {
    te_rdma_nic *nic;
    verbs_comp_channel *channel;
    verbs_cq *cq;
    uint32_t events_unacked;
    bool is_armed;
} te_rdma_cq;
ms_status te_rdma_cq_open(te_rdma_nic *nic, uint32_t depth, te_rdma_cq *opened);
void te_rdma_cq_close(te_rdma_cq *cq);
/* Up to `room` completions that are there now. */
int te_rdma_cq_poll(te_rdma_cq *cq, verbs_wc *completions, int room);
/* Sleeps until one of them has something, `descriptor` (or -1) is readable, or the deadline.  *is_readable: the
 * descriptor was. */
void te_rdma_cqs_wait(te_rdma_cq *const *cqs, uint32_t count, int descriptor, int64_t deadline_ns,
                      bool *is_readable);
/* For who waits for the channel's descriptor otherwise: the next completion makes it readable; its events are taken. */
void te_rdma_cq_arm(te_rdma_cq *cq);
void te_rdma_cq_take_events(te_rdma_cq *cq);

/* ---- rdma_server.c ------------------------------------------------------------------------------------------------ */
void te_rdma_install(te_engine *engine); /* methods */
/* A link has ended, or is being cut: when it returns its queue pairs are gone.  Any thread. */
void te_rdma_link_cut(te_link *link);

/* ---- rdma_endpoint.c ---------------------------------------------------------------------------------------------- */
typedef struct te_rdma_slice {
    uint32_t item;
    uint32_t length;
    uint64_t offset; /* in the item */
    uint64_t remote; /* address there */
    uint8_t *slot;   /* of the bounce memory, or NULL */
} te_rdma_slice;

#define TE_RDMA_DEPTH 64u
#define TE_RDMA_POLLS_FIRST 1024u /* some 40 us */

typedef struct te_rdma_rail {
    te_rdma_qp qp;
    te_rdma_cq *cq;
    uint32_t remote_nic, remote_qpn;
    bool is_alive;
    double ns_per_byte;
    uint64_t bytes_in_flight;
    int64_t busy_from_ns; /* 0: not measured */
    int64_t given_ns;     /* when it was last given something */
    uint64_t busy_bytes;
    uint32_t first, count; /* of `flying`, a ring: posted, not completed */
    te_rdma_slice flying[TE_RDMA_DEPTH];
    /* Requests that go out with the next call. */
    uint32_t chained;
    verbs_send_wr requests[TE_RDMA_DEPTH];
    verbs_sge parts[TE_RDMA_DEPTH];
    uint64_t touched; /* a remote address that was written in this exchange; 0 = none */
    uint32_t touched_key;
    verbs_mr *scratch; /* the endpoint's scratch memory on this NIC */
} te_rdma_rail;

typedef struct te_rdma_chunk {
    uint64_t offset, length, address;
    uint32_t key;
    uint16_t nic;
    uint16_t is_words;
} te_rdma_chunk;

/* What the peer told about one of its segments. */
typedef struct te_rdma_segment {
    struct te_rdma_segment *next;
    uint32_t segment, count;
    int64_t asked_ns;
    bool is_whole; /* everything was registered: it need not be asked again */
    te_rdma_chunk chunks[];
} te_rdma_segment;

struct te_rdma_endpoint {
    te_rdma *rdma;
    te_rdma_pool *pool;
    te_connection *connection; /* parked: no exchange of frames but ours */
    uint64_t generation;
    te_rdma_cq cqs[TE_RDMA_NICS_MAX]; /* by index of the NIC */
    te_rdma_rail *rails[TE_RDMA_RAILS_MAX];
    uint32_t rail_count, alive_count;
    uint8_t *scratch;
    te_rdma_segment *segments;
    uint32_t segment_count;
    bool is_broken, was_used, is_taken; /* the last two under pool->lock */
    te_rdma_endpoint *older, *newer;    /* SIEVE's queue, under rdma->lock */
    te_rdma_slice returned[TE_RDMA_RAILS_MAX * TE_RDMA_DEPTH + 1]; /* to be repeated */
    uint32_t polls_max[2]; /* learned, for small and large: so often is asked before sleeping */
    uint32_t waits;
    te_rdma_endpoint *next; /* idle */
};
/* Over `connection`, which it takes (also on failure).  `only`: one rail, from that NIC, to the peer's `port` if that
 * works; NULL: over all NICs.  UNAVAILABLE: no rail could be opened.  NOT_REGISTERED: the peer has no RDMA. */
ms_status te_rdma_endpoint_open(te_rdma *rdma, te_connection *connection, bool is_writing,
                                te_rdma_nic *only, uint32_t port, int64_t deadline_ns,
                                te_rdma_endpoint **opened);
void te_rdma_endpoint_close(te_rdma_endpoint *endpoint);
/* Destroys the rail's queue pair here; what was flying is returned in `lost` (room for TE_RDMA_DEPTH). */
uint32_t te_rdma_rail_break(te_rdma_endpoint *endpoint, te_rdma_rail *rail, te_rdma_slice *lost);
/* The peer has destroyed the rail's queue pair too; false: nobody knows. */
bool te_rdma_rail_confirm(te_rdma_endpoint *endpoint, const te_rdma_rail *rail,
                          int64_t deadline_ns);
/* Where `offset` of a segment is at the peer, for a NIC of it; asks the peer when it is not known. */
bool te_rdma_remote_key(te_rdma_endpoint *endpoint, uint32_t segment, bool is_words,
                        uint32_t remote_nic, uint64_t offset, te_rdma_chunk *found,
                        int64_t deadline_ns);
typedef enum te_rdma_known {
    TE_RDMA_KNOWN,
    TE_RDMA_NOT_THERE, /* the peer has not registered it, it said lately */
    TE_RDMA_UNKNOWN    /* te_rdma_remote_key would ask */
} te_rdma_known;
te_rdma_known te_rdma_look_up(const te_rdma_endpoint *endpoint, uint32_t segment, bool is_words,
                              uint32_t remote_nic, uint64_t offset, te_rdma_chunk *found);

/* ---- what every WRITE and every completion is asked ----------------------------------------------------------------- */
#define TE_RDMA_BYTES_MAX (UINT64_MAX / 4) /* sums of a few do not overflow */
/* Inside its extent, where it is of a version: no server looks at it. */
static inline bool te_rdma_write_is_inside(const ms_write_item *item) {
    return item->version == 0 ||
           (item->offset <= TE_RDMA_BYTES_MAX && item->length <= TE_RDMA_BYTES_MAX &&
            item->offset + item->length <= (uint64_t)item->page_count * MS_PAGE_SIZE);
}
/* Of a completion with an error: the request, not the rail, is at fault. */
static inline bool te_rdma_is_refused(const verbs_wc *done) {
    return done->status != VERBS_WC_RETRY_EXC_ERR && done->status != VERBS_WC_FLUSH_ERR;
}

/* ---- rdma_exchange.c ---------------------------------------------------------------------------------------------- */
/* Items whose results (statuses) are not PENDING afterwards have been moved; the others are for TCP.  The status is
 * other than OK only when the call has to end: CANCELLED, TIMEOUT, IO_ERROR (a WRITE of which nobody knows whether the
 * peer's NIC may still carry it out). */
ms_status te_rdma_read(te_channel *channel, const ms_read_item *items, void *const *targets,
                       size_t count, ms_read_result *results, int64_t deadline_ns);
ms_status te_rdma_write(te_channel *channel, const ms_write_item *items, const void *const *sources,
                        size_t count, uint32_t *statuses, int64_t deadline_ns);

/* ---- rdma_pool.c -------------------------------------------------------------------------------------------------- */
/* An endpoint of the channel for this thread alone; NULL: none is there (one is being opened, or cannot be). */
te_rdma_endpoint *te_rdma_take(te_channel *channel, bool is_writing, int64_t deadline_ns);
/* Whether bytes for the channel's peer are better left to RDMA: it has an endpoint, or nobody has tried yet. */
bool te_rdma_serves(te_channel *channel, bool is_writing);
void te_rdma_give(te_channel *channel, te_rdma_endpoint *endpoint);
/* An endpoint that nobody uses makes room for another one; false: all are in use. */
bool te_rdma_evict(te_rdma *rdma);
/* The channel is being closed: its endpoints end. */
void te_rdma_channel_close(te_channel *channel);

#endif
