/* Fair queueing among classes and tenants: see te_slice_flow.h. */
#include "te_slice_flow.h"

#include <string.h>

#define TAG_SCALE UINT64_C(1024)

uint32_t te_group_set_next(const te_group_set *one, const te_group_set *other, uint32_t after) {
    uint32_t from = (after + 1) % TE_SCHEDULE_GROUPS_MAX;
    for (uint32_t step = 0; step <= GROUP_WORDS; step++) {
        uint32_t word = (from / 64 + step) % GROUP_WORDS;
        uint64_t both = one->words[word] & other->words[word];
        if (step == 0)
            both &= UINT64_MAX << from % 64;
        else if (step == GROUP_WORDS)
            both &= ~(UINT64_MAX << from % 64);
        if (both != 0)
            return word * 64 + (uint32_t)__builtin_ctzll(both);
    }
    return TE_SCHEDULE_NONE;
}

static bool is_common(const te_group_set *one, const te_group_set *other) {
    uint64_t both = 0;
    for (uint32_t i = 0; i < GROUP_WORDS; i++)
        both |= one->words[i] & other->words[i];
    return both != 0;
}

static bool is_before(uint64_t one, uint64_t other) { return (int64_t)(one - other) < 0; }

/* Whoever had nothing to be served with begins where the others are: no credit for absence. */
static void catch_up(te_fair_turn *turn, uint64_t now) {
    if (is_before(turn->start, now))
        turn->start = now;
    turn->was_passed_over = false;
}

void te_slice_flows_init(te_slice_flows *flows, const te_schedule_config *config) {
    for (uint32_t i = 0; i < TE_CLASS_COUNT; i++) {
        flows->classes[i].turn.weight = config->class_weights[i];
        flows->classes[i].active = &flows->active[(size_t)i * flows->flows_max];
    }
    for (uint32_t i = 0; i < flows->flows_max; i++)
        flows->flows[i].active_index = TE_SCHEDULE_NONE;
}

uint32_t te_slice_flow_find(te_slice_flows *flows, te_class class, uint64_t tenant,
                            uint32_t weight) {
    uint32_t idle = TE_SCHEDULE_NONE, first = TE_SCHEDULE_NONE;
    for (uint32_t i = 0; i < flows->flows_max; i++) {
        te_slice_flow *flow = &flows->flows[i];
        if (flow->is_used && flow->class == class && flow->tenant == tenant) {
            flow->turn.weight = weight;
            return i;
        }
        if (flow->is_used && flow->class == class && first == TE_SCHEDULE_NONE)
            first = i;
        /* An idle flow's tag may be ahead by one slice, which its tenant is then forgiven: the one that is
         * forgiven least goes. */
        if (flow->active_index == TE_SCHEDULE_NONE &&
            (idle == TE_SCHEDULE_NONE ||
             (flows->flows[idle].is_used &&
              (!flow->is_used || is_before(flow->turn.start, flows->flows[idle].turn.start)))))
            idle = i;
    }
    if (idle == TE_SCHEDULE_NONE)
        return first == TE_SCHEDULE_NONE ? 0 : first;
    flows->flows[idle] =
        (te_slice_flow){.turn = {.start = flows->classes[class].now, .weight = weight},
                        .tenant = tenant,
                        .class = class,
                        .is_used = true,
                        .active_index = TE_SCHEDULE_NONE};
    return idle;
}

void te_slice_flow_add(te_slice_flows *flows, uint32_t index, uint32_t group) {
    te_slice_flow *flow = &flows->flows[index];
    te_group_set_put(&flow->waiting, group);
    if (flow->active_index != TE_SCHEDULE_NONE)
        return;
    te_slice_class *class = &flows->classes[flow->class];
    catch_up(&flow->turn, class->now);
    if (class->active_count == 0)
        catch_up(&class->turn, flows->now);
    flow->active_index = class->active_count;
    class->active[class->active_count++] = index;
}

void te_slice_flow_drop(te_slice_flows *flows, uint32_t index, uint32_t group) {
    te_slice_flow *flow = &flows->flows[index];
    te_group_set_take(&flow->waiting, group);
    if (flow->active_index == TE_SCHEDULE_NONE || is_common(&flow->waiting, &flow->waiting))
        return;
    te_slice_class *class = &flows->classes[flow->class];
    uint32_t moved = class->active[--class->active_count];
    class->active[flow->active_index] = moved;
    flows->flows[moved].active_index = flow->active_index;
    flow->active_index = TE_SCHEDULE_NONE;
}

/* The flow of a class that is next among those with work for an open group. */
static uint32_t choose_of(te_slice_flows *flows, const te_slice_class *class,
                          const te_group_set *open) {
    uint32_t best = TE_SCHEDULE_NONE;
    uint64_t start = 0;
    for (uint32_t i = 0; i < class->active_count; i++) {
        te_slice_flow *flow = &flows->flows[class->active[i]];
        /* One that is behind another needs no look at its peers: it is passed over for no other reason. */
        if (best != TE_SCHEDULE_NONE && !is_before(flow->turn.start, start))
            continue;
        if (!is_common(&flow->waiting, open)) {
            flow->turn.was_passed_over = true;
            continue;
        }
        if (flow->turn.was_passed_over)
            catch_up(&flow->turn, class->now);
        if (best == TE_SCHEDULE_NONE || is_before(flow->turn.start, start)) {
            best = class->active[i];
            start = flow->turn.start;
        }
    }
    return best;
}

/* Where a turn is in the order, if it can be served. */
static uint64_t place_of(const te_fair_turn *turn, uint64_t now) {
    return turn->was_passed_over && is_before(turn->start, now) ? now : turn->start;
}

uint32_t te_slice_flow_choose(te_slice_flows *flows, const te_group_set *open, uint32_t *group) {
    bool was_tried[TE_CLASS_COUNT] = {false};
    for (;;) {
        /* In their order, so that the flows of the first are all that is looked at, mostly: a class behind it is not
         * passed over by that. */
        te_slice_class *first = NULL;
        for (uint32_t i = 0; i < TE_CLASS_COUNT; i++) {
            te_slice_class *class = &flows->classes[i];
            if (class->active_count > 0 && !was_tried[i] &&
                (first == NULL ||
                 is_before(place_of(&class->turn, flows->now), place_of(&first->turn, flows->now))))
                first = class;
        }
        if (first == NULL)
            return TE_SCHEDULE_NONE;
        was_tried[first - flows->classes] = true;
        uint32_t chosen = choose_of(flows, first, open);
        if (chosen == TE_SCHEDULE_NONE) {
            first->turn.was_passed_over = true;
            continue;
        }
        if (first->turn.was_passed_over)
            catch_up(&first->turn, flows->now);
        const te_slice_flow *flow = &flows->flows[chosen];
        *group = te_group_set_next(&flow->waiting, open, flow->last_group);
        return chosen;
    }
}

void te_slice_flow_charge(te_slice_flows *flows, uint32_t index, uint32_t group, uint64_t cost) {
    te_slice_flow *flow = &flows->flows[index];
    te_slice_class *class = &flows->classes[flow->class];
    class->now = flow->turn.start;
    flows->now = class->turn.start;
    flow->turn.start += cost * TAG_SCALE / flow->turn.weight;
    class->turn.start += cost * TAG_SCALE / class->turn.weight;
    flow->last_group = group;
}
