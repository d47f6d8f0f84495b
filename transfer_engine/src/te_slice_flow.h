/* Flows of the slice scheduler: who is next, by start-time fair queueing among classes and tenants. */
#ifndef TE_SLICE_FLOW_H
#define TE_SLICE_FLOW_H

#include "te_schedule.h"

#define GROUP_WORDS (TE_SCHEDULE_GROUPS_MAX / 64)

typedef struct te_group_set {
    uint64_t words[GROUP_WORDS];
} te_group_set;

static inline void te_group_set_put(te_group_set *set, uint32_t group) {
    set->words[group / 64] |= UINT64_C(1) << group % 64;
}

static inline void te_group_set_take(te_group_set *set, uint32_t group) {
    set->words[group / 64] &= ~(UINT64_C(1) << group % 64);
}

/* The first group after `after`, going round, that is in both sets; NONE without any. */
uint32_t te_group_set_next(const te_group_set *one, const te_group_set *other, uint32_t after);

/* Something that is served in turn: a class, or a flow of a class.  Tags are bytes times TAG_SCALE / weight, and
 * wrap: only differences count. */
typedef struct te_fair_turn {
    uint64_t start;
    uint32_t weight;
    bool was_passed_over; /* it had something waiting, and could not be served */
} te_fair_turn;

typedef struct te_slice_flow {
    te_fair_turn turn;
    uint64_t tenant;
    te_class class;
    bool is_used;
    uint32_t active_index; /* in its class's active; NONE: nothing waits */
    uint32_t last_group;
    te_group_set waiting; /* groups for which a job waits */
} te_slice_flow;

typedef struct te_slice_class {
    te_fair_turn turn;
    uint64_t now;     /* start tag of its flow that was served last */
    uint32_t *active; /* its flows with waiting jobs, in no order: flows_max of them at most */
    uint32_t active_count;
} te_slice_class;

typedef struct te_slice_flows {
    te_slice_flow *flows; /* flows_max of them */
    uint32_t *active;     /* room for flows_max of each class */
    uint32_t flows_max;
    te_slice_class classes[TE_CLASS_COUNT];
    uint64_t now; /* start tag of the class that was served last */
} te_slice_flows;

void te_slice_flows_init(te_slice_flows *flows, const te_schedule_config *config);
uint32_t te_slice_flow_find(te_slice_flows *flows, te_class class, uint64_t tenant,
                            uint32_t weight);
/* A job waits, or none does any more, in that flow for that group. */
void te_slice_flow_add(te_slice_flows *flows, uint32_t flow, uint32_t group);
void te_slice_flow_drop(te_slice_flows *flows, uint32_t flow, uint32_t group);
/* The flow that is next among those with work for an open group, and the group; NONE: none. */
uint32_t te_slice_flow_choose(te_slice_flows *flows, const te_group_set *open, uint32_t *group);
/* The flow that was chosen has been given that much. */
void te_slice_flow_charge(te_slice_flows *flows, uint32_t flow, uint32_t group, uint64_t cost);

#endif
