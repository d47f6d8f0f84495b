/* Rails of the slice scheduler: what is in flight, how fast they are, whether they may be used. */
#ifndef TE_SLICE_RAIL_H
#define TE_SLICE_RAIL_H

#include "te_schedule.h"

typedef enum te_slice_rail_state {
    RAIL_UP,
    RAIL_LEFT,    /* until retry_ns */
    RAIL_PROBING, /* its one slice decides */
    RAIL_GONE     /* until the topology says otherwise */
} te_slice_rail_state;

typedef struct te_slice_nic {
    uint64_t in_flight;
    double ns_per_byte; /* of its fastest rail */
    uint32_t fastest;
} te_slice_nic;

typedef struct te_slice_rail {
    uint32_t next; /* of the group */
    uint32_t group, nic, tier;
    te_slice_rail_state state;
    uint32_t slices, failures;
    uint64_t in_flight, window, delivered;
    double ns_per_byte; /* smoothed */
    int64_t round_trip_ns,
        round_trip_until_ns; /* of a slice on the empty rail; how long it counts */
    int64_t given_ns;        /* when it was last given a slice */
    int64_t progress_ns;     /* when something last came, or it began to be busy */
    int64_t retry_ns;
} te_slice_rail;

typedef struct te_slice_rails {
    te_slice_rail *rails;
    te_slice_nic *nics;
    uint32_t count, first_free, left_count;
    int64_t
        wake_ns; /* the first retry of those that were left, or end of patience with a full one */
    const te_schedule_config *config;
} te_slice_rails;

void te_slice_rail_init(te_slice_rails *rails, uint32_t index, uint64_t bandwidth_bytes_per_s);
/* It is of that tier and NIC now; what is in flight is in flight there. */
void te_slice_rail_place(te_slice_rails *rails, uint32_t index, uint32_t tier, uint32_t nic);
/* Nothing is in flight on it, and no group has it any more. */
void te_slice_rail_free(te_slice_rails *rails, uint32_t index);
/* The rail from the list that begins with `first` for `bytes` of `waiting`; NONE: better to wait. */
uint32_t te_slice_rail_choose(te_slice_rails *rails, uint32_t first, uint64_t bytes,
                              uint64_t waiting, int64_t now_ns, bool *is_probe);
/* When the rail counts as stalled, if nothing comes before. */
int64_t te_slice_rail_stall_ns(const te_slice_rail *rail);
/* What a slice over it should hold. */
uint64_t te_slice_rail_slice_bytes(const te_slice_rails *rails, uint32_t index, bool is_probe);
void te_slice_rail_begin(te_slice_rails *rails, te_slice *slice, int64_t now_ns);
void te_slice_rail_end(te_slice_rails *rails, const te_slice *slice, bool has_failed,
                       int64_t now_ns);
/* RAIL_LEFT or RAIL_GONE; a rail that is left now may be tried at `retry_ns`. */
void te_slice_rail_leave(te_slice_rails *rails, uint32_t index, te_slice_rail_state state,
                         int64_t retry_ns);

#endif
