/* The seam between the slice scheduler and what moves bytes: a lane carries slices, and says how each has ended.
 *
 * A path is a peer with its rails; a rail (a local and a remote interface) has two lanes, one for READs and one for
 * WRITEs, with connections or queue pairs of their own.  The carrier (carrier.c) is one thread an engine: it asks the
 * schedule (te_schedule.h) for slices, gives each to the lane that the schedule names, and tells the schedule how it
 * ended.  A transport is one table of functions: te_lane_tcp is lane_tcp.c,
 * te_lane_rdma lane_rdma.c.
 *
 * Everything here happens on the carrier's thread, but te_carrier_run, which any thread may call.  Nothing may block.
 *
 * The life of a lane: it is down until `dial` has led to te_lane_up; only then does it get slices.  Whatever makes it
 * useless (an error, silence) ends in te_lane_down; it is asked to connect again after pauses from 50 to 500 ms.  When
 * every lane of a direction is down and has failed to connect, the peer is: its requests end, and whoever owns
 * the path looks for the peer anew.
 *
 * The life of a slice: `post` takes a te_work; the lane calls te_lane_done for it once, also within `post`.
 * From then on the lane touches neither the work nor any local memory of it; that is what lets a request end.
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
    /* The lane's, for DONE: what the peer said about this piece, and the generation word after its last byte (READ of
     * a guarded item). */
    uint32_t status;
    uint64_t word;
    const struct te_carried *item; /* te_carrier.h: the whole of which this is a piece */
} te_work_piece;

/* A slice on its lane.  The carrier's memory. */
struct te_work {
    te_lane *lane;
    te_slice *slice;
    int64_t deadline_ns; /* the earliest of its jobs': after it the lane must give the work back */
    int64_t posted_ns;
    int64_t unwanted_ns; /* the lane's: since when nobody wants it any more; 0 = somebody does */
    uint64_t bytes;
    uint32_t count;
    bool is_sent;      /* the lane's: some of it may have reached the peer */
    uint32_t declined; /* bit i: rail i cannot carry it, though it is no fault of it */
    uint8_t outcome;   /* the carrier's */
    te_work *next;     /* the lane's, while it has it */
    te_work_piece pieces[TE_SLICE_PIECES_MAX];
};

typedef enum te_work_outcome {
    TE_WORK_DONE,   /* the peer has answered for every piece: pieces[i].status */
    TE_WORK_FAILED, /* the lane's fault; certainly not carried out later: it goes over another lane */
    TE_WORK_LOST /* the lane's fault; a WRITE that the peer may still carry out: its requests end */
} te_work_outcome;

void te_lane_done(te_work *work, te_work_outcome outcome);
/* Another lane of the path and direction, that is up, takes it instead: this one cannot carry it, and no fault of it. */
void te_work_move(te_work *work, te_lane *lane);
/* False: a request of it has ended (cancelled, past its deadline), and waits only to have its memory back. */
bool te_work_is_wanted(const te_work *work, int64_t now_ns);

/* ---- lanes ---------------------------------------------------------------------------------------------------- */

/* Both ends of a rail, in the terms of its transport. */
typedef struct te_rail_ends {
    char local
        [TE_RAIL_ADDRESS_BYTES]; /* TCP: a numeric address to bind to, "" = any.  RDMA: "mlx5_0" */
    char remote[TE_RAIL_ADDRESS_BYTES]; /* "10.0.0.5:7800".  RDMA: where queue pairs are agreed */
    uint32_t local_nic, remote_nic;     /* in the topologies of both; UINT32_MAX: not known */
    uint32_t tier;                      /* TE_TIER_* */
} te_rail_ends;

typedef struct te_lane_ops {
    const char *transport; /* "tcp", "rdma": for people */
    uint32_t rank; /* of a path's lanes only those of the lowest rank that has one up are used */
    /* Memory and names only, any thread.  `lane->state` is the transport's. */
    ms_status (*open)(te_lane *lane);
    /* Begins to connect; te_lane_up or te_lane_down follows, also within the call.  Not called while it is
     * connecting or up. */
    void (*dial)(te_lane *lane);
    /* Takes it.  The lane is up, or was when the slice was cut. */
    void (*post)(te_lane *lane, te_work *work);
    /* Gives back all that it has, as soon as that is certain (see above), and is down: it is silent, its interface
     * has gone, or a request on it was cancelled. */
    void (*reset)(te_lane *lane, const char *why);
    /* Called when the time that it returned last has come, and after `post`; returns when to be called next, INT64_MAX:
     * not before something happens. */
    int64_t (*tick)(te_lane *lane, int64_t now_ns);
    /* Asks the peer for a sign of life: te_lane_progress follows if there is one. */
    void (*ping)(te_lane *lane);
    /* An idle lane gives its connection or queue pair back (te_lane_down is not called for that); it is connected
     * again by `post`. */
    void (*evict)(te_lane *lane);
    /* The lane has nothing any more and gets nothing more. */
    void (*close)(te_lane *lane);
} te_lane_ops;

struct te_lane {
    const te_lane_ops *ops;
    te_path *path;
    te_carrier *carrier;
    te_rail_ends ends;
    te_opcode opcode;
    uint32_t index;                     /* of its rail in the path */
    uint32_t rail;                      /* its number in the schedule */
    uint32_t work_count;                /* posted, not done */
    bool is_up, is_connecting, is_gone; /* gone: no rail of the topology any more */
    bool was_connected;                 /* the lane's: there is somebody at that end */
    bool holds_endpoint, was_used;      /* the pool's: see te_lane_endpoint_take */
    uint32_t failures;                  /* to connect, in a row */
    uint64_t resets;
    int64_t retry_ns;         /* down: not before */
    int64_t tick_ns;          /* the carrier's */
    int64_t progress_ns;      /* te_lane_progress */
    int64_t alive_ns;         /* te_lane_alive, or progress */
    char note[96];            /* why it was left last */
    te_lane *next, *previous; /* all lanes of the carrier */
    te_lane *pool_next, *pool_previous;
    void *state;
};

void te_lane_up(te_lane *lane);
/* `is_refused`: it could not connect.  With a status other than OK (WRONG_INCARNATION, REFUSED, ...): the peer
 * itself does not want us, over whatever lane. */
void te_lane_down(te_lane *lane, bool is_refused, ms_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Something has come from the peer for this lane: bytes, a completion. */
void te_lane_progress(te_lane *lane, int64_t now_ns);
/* The way there and back is known to work, whatever the peer's process does: an acknowledgement. */
void te_lane_alive(te_lane *lane, int64_t now_ns);
/* Whether it is this lane's fault that nothing has come since `since_ns`, for longer than `limit_ns`: others of the path are
 * heard of meanwhile (`of_peer`: its process, not just its machine).  Before it knows, it asks them (`ping`). */
bool te_lane_is_at_fault(te_lane *lane, int64_t since_ns, int64_t limit_ns, bool of_peer,
                         int64_t now_ns);
/* The lane takes an endpoint (a connection, a queue pair) from the pool or gives it back.  The pool is bounded:
 * an idle lane that was not used lately (SIEVE: Zhang et al., NSDI '24) is evicted to make room. */
bool te_lane_endpoint_take(te_lane *lane); /* false: the pool is full of busy ones; connect later */
void te_lane_endpoint_give(te_lane *lane);

extern const te_lane_ops te_lane_tcp, te_lane_rdma;
/* Adds to `count` rails of TCP one for each RDMA NIC of this engine, to the peer that the first of them reaches, and says what
 * each is; returns how many there are now.  Where there is no room for all, NICs come first, up to half of it. */
uint32_t te_lane_rdma_beside(te_engine *engine, te_rail_ends ends[TE_RAILS_MAX],
                             const te_lane_ops *ops[TE_RAILS_MAX], uint32_t count);

/* ---- the carrier, for lanes ------------------------------------------------------------------------------------ */

/* A descriptor whose events call `ready`: a socket, a completion channel, an eventfd.  The owner keeps the memory. */
typedef struct te_watched {
    void (*ready)(struct te_watched *watched, uint32_t events);
    int descriptor;
    uint32_t events; /* EPOLLIN, EPOLLOUT */
    bool is_watched; /* the carrier's */
} te_watched;

ms_status te_carrier_watch(te_carrier *carrier,
                           te_watched *watched); /* adds it, or changes its events */
void te_carrier_forget(te_carrier *carrier, te_watched *watched); /* before it is closed */
/* Calls `run(argument)` on the carrier's thread, soon; any thread.  CLOSED: the engine is being closed. */
ms_status te_carrier_run(te_carrier *carrier, void (*run)(void *argument), void *argument);

/* ---- paths ----------------------------------------------------------------------------------------------------- */

typedef struct te_path_config {
    const te_rail_ends *rails;
    const te_lane_ops *const *ops; /* of each rail; NULL: all TCP */
    uint32_t rail_count;           /* 1 to TE_RAILS_MAX */
    const char *addresses; /* of the peer: its rails follow our interfaces; NULL: they stay */
    const void *hello;     /* of every connection: copied */
    size_t hello_length;
    bool is_watching; /* its lanes for READs stay connected: the peer tells of changes */
    void *
        peer; /* the transport's own knowledge of the peer (queue pairs, rkeys by segment), or NULL */
    void (*free_peer)(void *peer);
} te_path_config;

struct te_path {
    te_carrier *carrier;
    te_engine *engine;
    uint32_t groups[2]; /* by opcode */
    te_lane lanes[2][TE_RAILS_MAX];
    uint32_t rail_count; /* slots, gone ones too */
    uint8_t *hello;
    size_t hello_length;
    void *peer;
    void (*free_peer)(void *peer);
    char *addresses; /* NULL: the rails do not follow our interfaces; the carrier thread's */
    /* Under the carrier's lock: */
    _Atomic bool is_closing;  /* the carrier's thread reads it without the lock, too */
    bool is_over;             /* nothing begins any more */
    ms_status dead;           /* OK: alive */
    struct te_carry *carries; /* under way */
    char *topology;           /* as the peer told it last, on a lane; NULL: it has not */
    size_t topology_length;
    bool is_watching; /* never changes */
    uint32_t others;  /* rails that are not of TCP: no list names them; never changes */
    _Atomic uint32_t rails_wanted; /* of the newest list, and the others */
    _Atomic uint32_t up_count[2];  /* lanes by opcode; read anywhere */
    _Atomic uint32_t rank[2];      /* of those that are used; means something while one is up */
    /* The carrier thread's: */
    int64_t used_ns[2]; /* when something was last begun, by opcode */
    struct te_cut
        *cuts; /* lane_tcp.c: connections that the peer must close before WRITEs are repeated */
    te_path *next, *previous;
};

#endif
