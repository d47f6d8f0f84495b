/* The seam between the slice scheduler and what moves bytes: a lane carries slices, and says how each has ended.
 *
 * A path is a peer with its rails; a rail (a local and a remote interface) has two lanes, one for READs and one for
 * WRITEs, with connections or queue pairs of their own.  The carrier (carrier.c) is one thread an engine: it asks the
 * schedule (te_schedule.h) for slices, gives each to the lane that the schedule names, and tells the schedule how it
 * ended.  A transport is one table of functions: te_lane_tcp is lane_tcp.c.
 *
 * Everything here happens on the carrier's thread, but te_carrier_run, which any thread may call.  Nothing may block.
 *
 * The life of a slice: `post` takes a te_work; the lane calls te_lane_done for it once, later (never within
 * `post`).  From then on the lane touches neither the work nor any local memory of it; that is what lets a request end.
 * A slice that FAILED is repeated over another lane, so a lane may say so for a WRITE only when the first attempt
 * can no longer be carried out by the peer: its queue pair is in error at both ends, the peer has closed the connection,
 * or has confirmed that it did.  Until it knows, it keeps the work; at the work's deadline it gives it back as LOST.
 */
#ifndef TE_RAIL_OPS_H
#define TE_RAIL_OPS_H

#include "te_parts.h"
#include "te_schedule.h"

typedef struct te_carrier te_carrier;
typedef struct te_path te_path;
typedef struct te_lane te_lane;
typedef struct te_work te_work;

/* ---- what is moved -------------------------------------------------------------------------------------------- */

typedef struct te_work_piece {
    uint8_t *local; /* registered memory (te_region_hold): target of a READ, source of a WRITE */
    uint64_t length;
    uint64_t offset;  /* in the peer's segment */
    uint32_t segment; /* the peer's number of it */
    /* The lane's, for DONE: what the peer said about this piece, and the generation word after its last byte (READ). */
    uint32_t status;
    uint64_t expected; /* READ: the word that a guarded item must have, else 0 */
    uint64_t word;
} te_work_piece;

/* A slice on its lane.  The carrier's memory. */
struct te_work {
    te_lane *lane;
    te_slice *slice;
    int64_t deadline_ns; /* the earliest of its jobs': after it the lane must give the work back */
    int64_t posted_ns;
    uint64_t bytes;
    uint32_t count;
    uint8_t guard_flags; /* as ms_read_item.flags */
    te_work *next;       /* the lane's, while it has it */
    void *lane_data;     /* the lane's */
    te_work_piece pieces[TE_SLICE_PIECES_MAX];
};

typedef enum te_work_outcome {
    TE_WORK_DONE,   /* the peer has answered for every piece: pieces[i].status */
    TE_WORK_FAILED, /* the lane's fault; certainly not carried out later: it goes over another lane */
    TE_WORK_LOST /* the lane's fault; a WRITE that the peer may still carry out: its requests end */
} te_work_outcome;

void te_lane_done(te_work *work, te_work_outcome outcome);

/* ---- lanes ---------------------------------------------------------------------------------------------------- */

/* Both ends of a rail, in the terms of its transport. */
typedef struct te_rail_ends {
    char local
        [TE_RAIL_ADDRESS_BYTES]; /* TCP: a numeric address to bind to, "" = any.  RDMA: "mlx5_0/1/3" */
    char remote
        [TE_RAIL_ADDRESS_BYTES];    /* TCP: "10.0.0.5:7800".  RDMA: the GID, or "" = by handshake */
    uint32_t local_nic, remote_nic; /* in the topologies of both; UINT32_MAX: not known */
    uint32_t tier;                  /* TE_TIER_* */
    /* Of a path's rails only those of the lowest rank with a lane that is up are used: RDMA 0, TCP 1 beside it. */
    uint32_t rank;
} te_rail_ends;

typedef struct te_lane_ops {
    const char *transport; /* "tcp", "rdma": for people */
    /* Memory and names only; connecting may begin.  `lane->state` is the transport's. */
    ms_status (*open)(te_lane *lane);
    /* Takes it; connects when there is no connection. */
    void (*post)(te_lane *lane, te_work *work);
    /* Gives back all that it has, as soon as that is certain (see above), and begins anew: the lane is silent, its
     * interface has gone, or a request on it was cancelled.  */
    void (*reset)(te_lane *lane, const char *why);
    /* Called when the time that it returned last has come, and after `post`; returns when to be called next, INT64_MAX:
     * when there is something new. */
    int64_t (*tick)(te_lane *lane, int64_t now_ns);
    /* The lane has nothing any more and gets nothing more. */
    void (*close)(te_lane *lane);
} te_lane_ops;

struct te_lane {
    const te_lane_ops *ops;
    te_path *path;
    te_carrier *carrier;
    te_rail_ends ends;
    te_opcode opcode;
    uint32_t rail;       /* its number in the schedule */
    uint32_t work_count; /* posted, not done */
    int64_t tick_ns;     /* the carrier's */
    int64_t progress_ns; /* te_lane_progress */
    void *state;
};

/* Something has come from the peer for this lane (bytes, an acknowledgement, a completion of a part): it is not silent. */
void te_lane_progress(te_lane *lane, int64_t now_ns);
/* A sentence for `explain` and the log: why the lane was left. */
void te_lane_note(te_lane *lane, const char *format, ...) __attribute__((format(printf, 2, 3)));

extern const te_lane_ops te_lane_tcp;

/* ---- the carrier, for lanes ------------------------------------------------------------------------------------ */

/* A descriptor whose events call `ready`: a socket, a completion channel, an eventfd.  The owner keeps the memory. */
typedef struct te_watched {
    void (*ready)(struct te_watched *watched, uint32_t events);
    int descriptor;
    uint32_t events; /* EPOLLIN, EPOLLOUT */
} te_watched;

ms_status te_carrier_watch(te_carrier *carrier,
                           te_watched *watched); /* adds it, or changes its events */
void te_carrier_forget(te_carrier *carrier, te_watched *watched); /* before it is closed */
/* Calls `run(argument)` on the carrier's thread, soon; any thread.  CLOSED: the engine is being closed. */
ms_status te_carrier_run(te_carrier *carrier, void (*run)(void *argument), void *argument);

/* ---- paths, for who opens them ---------------------------------------------------------------------------------- */

typedef struct te_path_config {
    const te_rail_ends *rails;
    const te_lane_ops *const *ops; /* of each rail */
    uint32_t rail_count;           /* 1 to TE_RAILS_MAX */
    const void *hello;             /* of every connection: copied */
    size_t hello_length;
    void *
        peer; /* the transport's own knowledge of the peer (queue pairs, rkeys by segment), or NULL */
    void (*free_peer)(void *peer);
} te_path_config;

#endif
