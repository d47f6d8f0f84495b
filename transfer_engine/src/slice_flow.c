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
    for (uint32_t i = 0; i < TE_CLASS_COUNT; i++)
        flows->classes[i].turn.weight = config->class_weights[i];
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
    if (!class->is_backlogged)
        catch_up(&class->turn, flows->now);
    class->is_backlogged = true;
    flow->active_index = flows->active_count;
    flows->active[flows->active_count++] = index;
}

void te_slice_flow_drop(te_slice_flows *flows, uint32_t index, uint32_t group) {
    te_slice_flow *flow = &flows->flows[index];
    te_group_set_take(&flow->waiting, group);
    if (flow->active_index == TE_SCHEDULE_NONE || is_common(&flow->waiting, &flow->waiting))
        return;
    uint32_t moved = flows->active[--flows->active_count];
    flows->active[flow->active_index] = moved;
    flows->flows[moved].active_index = flow->active_index;
    flow->active_index = TE_SCHEDULE_NONE;
    bool is_backlogged = false;
    for (uint32_t i = 0; i < flows->active_count; i++)
        is_backlogged |= flows->flows[flows->active[i]].class == flow->class;
    flows->classes[flow->class].is_backlogged = is_backlogged;
}

uint32_t te_slice_flow_choose(te_slice_flows *flows, const te_group_set *open, uint32_t *group) {
    uint32_t best_of[TE_CLASS_COUNT];
    uint64_t best_start[TE_CLASS_COUNT] = {0};
    bool is_backlogged[TE_CLASS_COUNT] = {false};
    for (uint32_t i = 0; i < TE_CLASS_COUNT; i++)
        best_of[i] = TE_SCHEDULE_NONE;
    for (uint32_t i = 0; i < flows->active_count; i++) {
        te_slice_flow *flow = &flows->flows[flows->active[i]];
        uint32_t *best = &best_of[flow->class];
        uint64_t *start = &best_start[flow->class];
        is_backlogged[flow->class] = true;
        /* One that is behind another needs no look at its peers: it is passed over for no other reason. */
        if (*best != TE_SCHEDULE_NONE && !is_before(flow->turn.start, *start))
            continue;
        if (!is_common(&flow->waiting, open)) {
            flow->turn.was_passed_over = true;
            continue;
        }
        if (flow->turn.was_passed_over)
            catch_up(&flow->turn, flows->classes[flow->class].now);
        if (*best == TE_SCHEDULE_NONE || is_before(flow->turn.start, *start)) {
            *best = flows->active[i];
            *start = flow->turn.start;
        }
    }
    uint32_t chosen = TE_SCHEDULE_NONE;
    for (uint32_t i = 0; i < TE_CLASS_COUNT; i++) {
        te_fair_turn *turn = &flows->classes[i].turn;
        if (best_of[i] == TE_SCHEDULE_NONE) {
            turn->was_passed_over = is_backlogged[i];
            continue;
        }
        if (turn->was_passed_over)
            catch_up(turn, flows->now);
        if (chosen == TE_SCHEDULE_NONE ||
            is_before(turn->start, flows->classes[flows->flows[chosen].class].turn.start))
            chosen = best_of[i];
    }
    if (chosen != TE_SCHEDULE_NONE)
        *group =
            te_group_set_next(&flows->flows[chosen].waiting, open, flows->flows[chosen].last_group);
    return chosen;
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
