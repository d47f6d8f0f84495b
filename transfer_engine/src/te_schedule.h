/* The slice scheduler: which bytes go next, over which rail.  Pure: no I/O, no clock, no lock; times come in.
 *
 * A job (one request, or a run of them) is so many bytes to or from one peer.  te_schedule_next cuts the next slice
 * from the waiting jobs and names the rail that it goes over; te_schedule_end tells how that went.  What may share a
 * frame is a group: one peer, one direction, with the rails to it.
 *
 * Who is next.  Jobs wait in flows, one for each class and tenant.  Classes share by their weights, tenants share
 * their class by theirs: start-time fair queueing at both levels (Goyal, Vin, Cheng, SIGCOMM '96), which bounds how
 * far two flows may drift apart by one slice of each, and starves nobody.  A flow whose peers can take nothing is
 * passed over, and saves up nothing meanwhile.
 *
 * Which rail.  The one on which the slice is predicted to end first: (bytes in flight + slice) / bandwidth, times the
 * penalty of its tier, where the bytes in flight are the rail's or its local NIC's, whichever take longer.  On a rail
 * no more is in flight than keeps it busy, so that what comes later and is more urgent needs not wait long.  When the
 * best rail is full, another one is taken only if it ends before the best would be through with all that waits.  A
 * rail from which nothing comes for much longer than predicted has stalled: the others are taken.
 *
 * How much.  A slice is what a rail moves in `slice_ns`, at least `slice_bytes`, and not more than a rail's share of
 * what waits, so that large jobs are spread; small jobs of one flow are put together into one.
 *
 * A rail that fails is left at once, its slices go over others; it is probed with one small slice after
 * pauses from 50 ms to 1 s.  A rail that was given nothing for a second is probed too, while there is work.
 *
 * Ownership: jobs are the caller's, and must stay until te_schedule_ended has returned them.  Slices are the
 * schedule's, and the caller's between te_schedule_next and te_schedule_end.  All memory is allocated by
 * te_schedule_open.
 */
#ifndef TE_SCHEDULE_H
#define TE_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ms_wire.h"

typedef struct te_schedule te_schedule;

typedef enum te_class {
    TE_CLASS_URGENT = 0,     /* somebody waits for it: a get before a prefill */
    TE_CLASS_NORMAL = 1,     /* puts */
    TE_CLASS_PREFETCH = 2,   /* gets that somebody may wait for later */
    TE_CLASS_BACKGROUND = 3, /* replication, moving to other tiers */
    TE_CLASS_COUNT = 4
} te_class;

typedef struct te_schedule_config {
    uint32_t groups_max, rails_max, nics_max, flows_max, slices_max;
    uint64_t slice_bytes;     /* the least a job is cut into; what a probe takes */
    uint64_t slice_bytes_max; /* the most of a slice */
    int64_t slice_ns;         /* what a slice takes on a rail, about */
    int64_t
        window_ns; /* so long a rail is kept busy by what is in flight, beside two round trips */
    uint32_t
        piece_cost_bytes; /* what a piece costs its flow beside its bytes: its share of a frame */
    uint32_t class_weights[TE_CLASS_COUNT]; /* 1 to 1024 */
} te_schedule_config;

void te_schedule_config_default(te_schedule_config *config);

#define TE_SCHEDULE_GROUPS_MAX 256u
#define TE_SCHEDULE_NONE UINT32_MAX
#define TE_SCHEDULE_WEIGHT_MAX 1024u

/* BAD_REQUEST: a bound or weight is 0 or too large. */
ms_status te_schedule_open(const te_schedule_config *config, te_schedule **result);
/* All jobs must have ended and all slices been given back. */
void te_schedule_close(te_schedule *schedule);

/* ---- peers and rails ------------------------------------------------------------------------------------------- */

/* LIMIT: there are groups_max. */
ms_status te_schedule_group_open(te_schedule *schedule, uint32_t *group);
/* The peer has gone: its waiting jobs end with `status`, those in flight when their slices do.  The number is used
 * again once the last slice is back. */
void te_schedule_group_close(te_schedule *schedule, uint32_t group, ms_status status);
/* `tier`: TE_TIER_*.  `nic`: the local NIC, below nics_max, or NONE.  Bandwidth: a first guess; 0: all alike. */
ms_status te_schedule_rail_add(te_schedule *schedule, uint32_t group, uint32_t tier, uint32_t nic,
                               uint64_t bandwidth_bytes_per_s, uint32_t *rail);
/* It is of another tier or at another NIC than was thought; what was measured holds. */
ms_status te_schedule_rail_place(te_schedule *schedule, uint32_t rail, uint32_t tier, uint32_t nic);
/* A rail that is unusable and has nothing in flight (BUSY: it has) is another one from now on, as if it had just been added. */
ms_status te_schedule_rail_renew(te_schedule *schedule, uint32_t rail, uint32_t tier, uint32_t nic);
/* The topology has changed: an unusable rail gets nothing, one that is usable again is probed at once. */
void te_schedule_rail_set(te_schedule *schedule, uint32_t rail, bool is_usable, int64_t now_ns);

typedef struct te_schedule_rail_view {
    uint32_t tier;
    uint64_t bytes_in_flight, bandwidth_bytes_per_s, window_bytes;
    bool is_up;
    int64_t retry_ns; /* not up: not before; INT64_MAX: never by itself */
} te_schedule_rail_view;

te_schedule_rail_view te_schedule_rail_look(const te_schedule *schedule, uint32_t rail);

/* Bytes for the group that are in no slice yet, or in one that is to be repeated. */
uint64_t te_schedule_waiting_bytes(const te_schedule *schedule, uint32_t group);

/* ---- jobs ------------------------------------------------------------------------------------------------------ */

typedef struct te_job {
    /* The caller's. */
    uint64_t bytes;
    int64_t deadline_ns;
    uint32_t group;
    te_class class;
    uint64_t tenant;
    uint32_t weight; /* of the tenant in its class, 1 to 1024 */
    void *owner;
    bool is_alone; /* shares no slice with other jobs */
    /* The schedule's: read only. */
    uint32_t flow;
    ms_status status;   /* PENDING; then how it ended */
    uint64_t cut, done; /* bytes that are in slices, and that have arrived */
    uint32_t held;      /* pieces in slices, in flight or to be repeated */
    uint32_t returned;  /* of those: to be repeated */
    bool is_queued;
    struct te_job *next, *previous;
} te_job;

/* A job of no bytes, one whose deadline has passed, or one to a group that is closed, ends at once.  A tenant has a
 * flow while its jobs wait; with more than flows_max of them, some share one. */
void te_schedule_submit(te_schedule *schedule, te_job *job, int64_t now_ns);
/* Ends a job early: nothing more of it is cut.  It has ended when its slices are back. */
void te_schedule_cancel(te_schedule *schedule, te_job *job, ms_status status);
/* Ends waiting jobs whose deadline has passed. */
void te_schedule_expire(te_schedule *schedule, int64_t now_ns);
/* A job that has ended, in the order of ends; NULL: none.  It is the caller's again. */
te_job *te_schedule_ended(te_schedule *schedule);

/* ---- slices ---------------------------------------------------------------------------------------------------- */

#define TE_SLICE_PIECES_MAX 64u

typedef struct te_slice_piece {
    te_job *job;
    uint64_t offset, length; /* in the job */
} te_slice_piece;

typedef struct te_slice {
    uint32_t group, rail, piece_count;
    uint32_t attempts; /* earlier ones */
    uint64_t bytes;
    int64_t deadline_ns; /* the earliest of its jobs' */
    /* The schedule's. */
    int64_t begin_ns;
    uint64_t delivered_before; /* by the rail */
    uint64_t bytes_ahead;      /* in flight on it */
    bool is_probe;
    struct te_slice *next;
    te_slice_piece pieces[TE_SLICE_PIECES_MAX];
} te_slice;

/* The next slice; NULL: none now.  Then nothing changes before te_schedule_wake_ns, a submission or an end. */
te_slice *te_schedule_next(te_schedule *schedule, int64_t now_ns);
int64_t te_schedule_wake_ns(const te_schedule *schedule);

typedef enum te_slice_outcome {
    TE_SLICE_DONE,   /* all bytes have arrived */
    TE_SLICE_FAILED, /* the rail's fault: it is left, and the bytes go over another */
    TE_SLICE_REFUSED /* the peer's word: its jobs end with the status */
} te_slice_outcome;

/* `status`: of REFUSED. */
void te_schedule_end(te_schedule *schedule, te_slice *slice, te_slice_outcome outcome,
                     ms_status status, int64_t now_ns);

#endif
