/* The carrier: one thread an engine that moves what waits over the rails of its peers.  See te_rail_ops.h for what is
 * below it, te_schedule.h for who is next. */
#ifndef TE_CARRIER_H
#define TE_CARRIER_H

#include "te_rail_ops.h"

typedef struct te_carry te_carry;

/* One range to be moved. */
typedef struct te_carried {
    uint8_t *local;
    te_region *region; /* of `local`; whoever moves it holds it until it has ended.  NULL: none */
    union {            /* as it goes out over TCP when it is whole; lanes cut offset and length */
        ms_read_item read;
        ms_write_item write;
    } wire;
    /* Set when it has ended. */
    ms_status status; /* of the transport, or the peer's about this item */
    bool is_answered; /* the peer's: it refused the item */
    uint64_t word;    /* of a guarded READ: the first that differs from the one expected */
    /* For `explain`; under the carrier's lock. */
    uint32_t rails;    /* bit i: a slice of it went over the path's rail i */
    uint32_t attempts; /* slices of it that had to be repeated */
    int64_t first_ns;  /* the first slice was given to a lane */
    int64_t ended_ns;
    /* The carrier's. */
    bool is_doubtful; /* WRITE: a slice of it was lost, which the peer may still carry out */
    te_carry *carry;
    te_job job;
} te_carried;

/* Items of one path and one direction. */
struct te_carry {
    te_path *path;
    te_opcode opcode;
    te_class class;
    uint64_t tenant;
    uint32_t weight;
    int64_t deadline_ns;
    te_carried *items;
    size_t count;
    /* Called once, when every item has ended and nothing touches their memory any more; on the carrier's thread, under
     * no lock. */
    void (*ended)(te_carry *carry);
    void *owner;
    /* The carrier's. */
    size_t left;
    int64_t begun_ns;
    uint64_t rail_bytes[TE_RAILS_MAX];
    ms_status cancel_status; /* OK: not cancelled */
    bool is_over;
    te_carry *next, *cancel_next, *scope_next;
    te_carry *path_next, *path_previous; /* under way over the same path */
};

ms_status te_carrier_open(te_engine *engine);
/* All paths have been closed, or are being. */
void te_carrier_stop(te_engine *engine);
void te_carrier_close(te_engine *engine);

/* CLOSED: the engine is being closed; nothing has begun, and `ended` is not called. */
ms_status te_carry_begin(te_carry *carry);
/* Memory of a device, which only lanes of RDMA reach. */
bool te_carried_is_device(const te_engine *engine, const te_carried *carried);
/* The same in two parts, for whoever holds a lock: no system call is made under it.  *is_asleep is set when the carrier
 * must be roused, once for any number of carries. */
ms_status te_carry_add(te_carry *carry, bool *is_asleep);
void te_carrier_rouse(te_carrier *carrier);
/* Items that have not ended do so soon. */
void te_carry_cancel(te_carry *carry, ms_status status);
/* Begins and waits; `ended` and `owner` are set by it.  A cancel of `scope` (may be NULL) cancels it. */
void te_carry_wait(te_carry *carry, te_scope *scope);

typedef struct te_carried_view {
    uint32_t rails, attempts;
    int64_t begun_ns, first_ns, ended_ns; /* 0: not yet */
    uint64_t done;                        /* bytes that have arrived */
} te_carried_view;
te_carried_view te_carry_look(te_carry *carry, size_t index);
uint64_t te_carry_rail_bytes(te_carry *carry, uint32_t rail); /* of all items */

/* ---- path.c ---- */
ms_status te_path_open(te_engine *engine, const te_path_config *config, te_path **path);
/* Returns at once; no carry may be under way. */
void te_path_close(te_path *path);
/* Any lane of that direction is up.  Any thread; a glance, no lock. */
bool te_path_is_up(const te_path *path, te_opcode opcode);
/* What is begun now goes over lanes of that transport.  Any thread; a glance, no lock. */
bool te_path_uses(const te_path *path, te_opcode opcode, const te_lane_ops *ops);
/* Connects lanes of that direction that are down, as a request over them would.  Any thread. */
void te_path_warm(te_path *path, te_opcode opcode);
/* What is under way over it ends: READs as UNAVAILABLE, WRITEs as IO_ERROR.  Any thread. */
void te_path_break_off(te_path *path, bool for_ever); /* for_ever: te_carry_begin says CLOSED */
bool te_path_is_dead(te_path *path);
/* On a lane the peer has told its interfaces (the body of TOPOLOGY).  On the carrier's thread. */
void te_path_told(te_path *path, const uint8_t *body, size_t length);
/* What it told last: its length, 0: nothing; copied when there is room. */
size_t te_path_topology(te_path *path, char *text, size_t size);
/* Another list of rails: lanes of those that are not in it are reset, new ones begin.  Any thread. */
ms_status te_path_change(te_path *path, const te_rail_ends *rails, uint32_t count);
/* A path that was opened by addresses has the rails of the interfaces of now.  On the carrier's thread. */
void te_path_pair_again(te_path *path);

typedef struct te_rail_status {
    char local[TE_RAIL_ADDRESS_BYTES], remote[TE_RAIL_ADDRESS_BYTES], note[96];
    char transport[8];
    uint32_t tier, opcode;
    bool is_up, is_gone;
    uint64_t resets, bytes_in_flight, bandwidth_bytes_per_s;
} te_rail_status;
/* Lane `index` (READs first, then WRITEs); false: there is none.  Any thread. */
bool te_path_rail(te_path *path, uint32_t index, te_rail_status *status);
bool te_path_lane(te_path *path, te_opcode opcode, uint32_t index, te_rail_status *status);

/* ---- carrier.c, carry.c, lane.c and path.c between them ---- */
struct te_carrier {
    te_engine *engine;
    pthread_mutex_t lock; /* of all that follows up to `thread` */
    te_schedule *schedule;
    te_lane **lane_of_rail;
    te_carry *begun_first, *begun_last, *cancelled;
    te_path *opened;
    struct errand *errand_first, *errand_last;
    bool is_started, is_stopping, is_sleeping, has_closing;
    pthread_t thread;
    int epoll, wake;
    int news; /* eventfd: a peer has told other interfaces; under the lock; -1: nobody asked for it */
    /* The thread's own: */
    te_work *works, *free_works, *done_first, *done_last;
    te_carry *ended_first, *ended_last;
    te_lane *lanes;
    te_path *paths;
    te_lane *pool_newest, *pool_oldest, *pool_hand;
    uint32_t endpoints, endpoints_max;
    struct te_interface_watch *interfaces; /* NULL: no path follows them */
    int64_t tick_ns;                       /* the earliest of the lanes' */
};
ms_status te_carrier_start(te_carrier *carrier); /* the thread, unless it runs; under the lock */
void te_carrier_wake(te_carrier *carrier);       /* under the lock */
/* On the thread: */
void te_lane_tick_at(te_lane *lane, int64_t when_ns);
void te_paths_adopt(te_carrier *carrier, te_path *opened);
void te_paths_close(te_carrier *carrier);
void te_path_kill(te_path *path, ms_status status); /* under the lock: the peer is gone */
/* Lanes of the lowest rank that has one that is up may be used, no others; under the lock. */
void te_path_use(te_path *path, te_opcode opcode, int64_t now_ns);

#endif
