/* What the files of lanes over RDMA offer each other.
 *
 *   lane_rdma.c         opening and ending; what the carrier calls
 *   lane_rdma_slice.c   slices as requests of the queue pair, and their completions
 *
 * An endpoint of one queue pair each, to which the carrier's thread posts and whose completions it takes.
 *
 * What waits for the peer or the device is done by a worker, one thing a lane at a time: opening the endpoint, asking where a
 * segment is registered, and ending a queue pair.  Meanwhile the endpoint's connection is the worker's, queue pair and
 * completions stay the carrier's; an end takes all of it.
 */
#ifndef TE_LANE_RDMA_H
#define TE_LANE_RDMA_H

#include "te_carrier.h"
#include "te_rdma.h"

typedef enum lane_rdma_phase { CLOSED, OPENING, OPEN, ENDING } lane_rdma_phase;
typedef enum lane_rdma_task { NOTHING, TO_OPEN, TO_ASK, TO_END } lane_rdma_task;

/* A request of the queue pair. */
typedef struct lane_rdma_flight {
    te_work *work; /* NULL: a sign of life, or nobody wants it any more */
    bool is_last;  /* of the work */
    bool
        is_word; /* the generation word of `piece`, into the scratch memory at the flight's place */
    uint32_t piece;  /* of the work */
    uint32_t length; /* in the slot */
    uint8_t *slot;   /* of the bounce memory, where the bytes' own is not registered; or NULL */
    uint8_t *target; /* of a READ into a slot */
} lane_rdma_flight;

typedef struct lane_rdma {
    te_watched completions,
        peer;      /* the channel of completions; the connection, readable when it has ended */
    te_lane *lane; /* NULL: closed; the carrier's */
    te_engine *engine;
    te_channel *channel;
    te_opcode opcode;
    char device[64];
    uint32_t first_port;         /* of the peer's, tried first */
    _Atomic uint32_t references; /* the lane's and the worker's */
    lane_rdma_phase phase;
    lane_rdma_task task; /* the worker's; NOTHING: none is at work */
    bool wants_end, is_refused, has_asked;
    char why[160];
    te_rdma_endpoint *endpoint;
    te_rdma_rail *rail;
    uint32_t first, count; /* of the flights, a ring */
    lane_rdma_flight flights[TE_RDMA_DEPTH];
    te_work *waiting, *waiting_last; /* the first of them may be posted in part: */
    uint32_t piece;                  /* with bytes left; beyond the last: what comes behind them */
    uint64_t done;                   /* of its bytes */
    uint32_t word;                   /* of which piece is asked for next */
    bool is_begun, has_words;        /* has_words: one has been asked for */
    bool is_starved;                 /* all slots are in use by others */
    te_work *broken;                 /* of a queue pair that is being ended */
    te_work *refused;                /* of them: the one that is at fault itself */
    int64_t busy_ns;                 /* since when something is under way */
    /* What the worker was asked for, and says. */
    uint32_t segment;
    bool is_of_words;
    uint64_t segment_offset;
    ms_status status;
    bool is_confirmed;
} lane_rdma;

/* ---- lane_rdma.c ---- */
/* The queue pair is not used any more. */
void te_lane_rdma_leave(lane_rdma *self, bool is_refused, const char *why);
/* The NIC that it is of, also while it has no queue pair; NULL: it has gone. */
te_rdma_nic *te_lane_rdma_nic(const lane_rdma *self);
/* A worker asks the peer where `segment` is; then it goes on. */
void te_lane_rdma_ask(lane_rdma *self);

/* ---- lane_rdma_slice.c ---- */
/* Posts what waits, as far as there is room. */
void te_lane_rdma_pump(lane_rdma *self);
/* Takes the completions that are there, and asks to be told of the next. */
void te_lane_rdma_take(lane_rdma *self);
/* To a lane of another transport. */
void te_lane_rdma_hand_over(te_work *work);
/* The queue pair is gone: flights are over, slots are free. */
void te_lane_rdma_forget_flights(lane_rdma *self);

#endif
