/* Which prefill instance computes a request, and whom it fetches cached blocks from. */
#include <math.h>

#include "cd_policy.h"

/* Algorithm 1 takes the first of equals in its order of iteration.  With a fixed order instance 0 would collect all
 * ties, and at low load almost everything is a tie; so the order begins elsewhere each time. */
static uint32_t in_turn(uint32_t i, uint64_t turn, uint32_t count) {
    return (uint32_t)((i + turn) % count);
}

double cd_ttft_s(double queue_s, double transfer_s, double prefill_s, bool overlaps) {
    return (overlaps ? fmax(queue_s, transfer_s) : queue_s + transfer_s) + prefill_s;
}

static void finish(cd_prefill_choice *choice, const cd_cost *cost, uint32_t tokens, bool overlaps) {
    choice->prefill_s = cd_prefill_s(cost, tokens, choice->prefix_tokens);
    choice->ttft_s = cd_ttft_s(choice->queue_s, choice->transfer_s, choice->prefill_s, overlaps);
}

static bool is_before(uint32_t ties, const cd_prefill_view *one, const cd_prefill_view *other) {
    if (ties == CD_HOLDER_FIRST)
        return false;
    return ties == CD_HOLDER_EGRESS ? one->egress_bytes < other->egress_bytes
                                    : one->queue_s < other->queue_s;
}

/* The longest prefix that anybody has. */
static int32_t best_holder(uint32_t ties, const cd_prefill_view *views, uint32_t count) {
    int32_t best = -1;
    for (uint32_t i = 0; i < count; i++) {
        if (views[i].prefix_tokens == 0)
            continue;
        if (best < 0 || views[i].prefix_tokens > views[best].prefix_tokens ||
            (views[i].prefix_tokens == views[best].prefix_tokens &&
             is_before(ties, &views[i], &views[best])))
            best = (int32_t)i;
    }
    return best;
}

static bool by_algorithm_1(const cd_selection *selection, const cd_cost *cost, uint32_t tokens,
                           const cd_prefill_view *views, uint32_t count, uint64_t turn,
                           cd_prefill_choice *best) {
    int32_t holder = best_holder(selection->holder_ties, views, count);
    uint32_t longest = holder < 0 ? 0 : views[holder].prefix_tokens;
    for (uint32_t k = 0; k < count; k++) {
        uint32_t i = in_turn(k, turn, count);
        const cd_prefill_view *view = &views[i];
        if (view->is_closed)
            continue;
        cd_prefill_choice one = {.instance = (int32_t)i,
                                 .source = -1,
                                 .prefix_tokens = view->prefix_tokens,
                                 .queue_s = view->queue_s};
        /* As a product, so that no prefix at all counts as an infinite ratio; with an infinite threshold it is no number, and
         * false as it should be.  The FAST'25 form: equality stays local. */
        bool fetches = selection->rule == CD_GLOBAL && longest > view->prefix_tokens &&
                       longest > selection->balancing_threshold * view->prefix_tokens;
        if (fetches) {
            uint32_t missing = longest - view->prefix_tokens;
            double transfer_s = cd_transfer_s(cost, missing, views[holder].egress_bytes);
            double saved_s = cd_prefill_s(cost, tokens, view->prefix_tokens) -
                             cd_prefill_s(cost, tokens, longest);
            if (!selection->compares_costs || transfer_s < saved_s) {
                one.source = holder;
                one.prefix_tokens = longest;
                one.transfer_tokens = missing;
                one.transfer_s = transfer_s;
            }
        }
        finish(&one, cost, tokens, selection->overlaps);
        if (best->instance < 0 || one.ttft_s < best->ttft_s)
            *best = one;
    }
    return best->instance >= 0;
}

/* Compares the ways to a first token directly: for each instance its own prefix, or that of any other, from a sender
 * that is free.  No threshold decides; a second of computing also delays whoever comes after, which work_weight says. */
static bool by_earliest(const cd_selection *selection, const cd_cost *cost, uint32_t tokens,
                        const cd_prefill_view *views, uint32_t count, uint64_t turn,
                        cd_prefill_choice *best) {
    double best_score = 0;
    for (uint32_t k = 0; k < count; k++) {
        uint32_t i = in_turn(k, turn, count);
        if (views[i].is_closed)
            continue;
        for (uint32_t j = 0; j < count; j++) {
            bool is_own = j == i;
            if (!is_own && views[j].prefix_tokens <= views[i].prefix_tokens)
                continue;
            cd_prefill_choice one = {.instance = (int32_t)i,
                                     .source = is_own ? -1 : (int32_t)j,
                                     .prefix_tokens = views[j].prefix_tokens,
                                     .queue_s = views[i].queue_s};
            if (!is_own) {
                one.transfer_tokens = views[j].prefix_tokens - views[i].prefix_tokens;
                one.transfer_s = views[j].ready_s +
                                 cd_transfer_s(cost, one.transfer_tokens, views[j].egress_bytes);
            }
            finish(&one, cost, tokens, selection->overlaps);
            double score = one.ttft_s + (selection->work_weight + views[i].behind) * one.prefill_s +
                           selection->copy_weight * one.transfer_s;
            if (best->instance < 0 || score < best_score) {
                *best = one;
                best_score = score;
            }
        }
    }
    return best->instance >= 0;
}

/* Without a look at the caches; what is cached there is used all the same. */
static bool blindly(const cd_selection *selection, const cd_cost *cost, uint32_t tokens,
                    const cd_prefill_view *views, uint32_t count, uint64_t turn,
                    cd_prefill_choice *best) {
    uint32_t open = 0;
    for (uint32_t i = 0; i < count; i++)
        open += !views[i].is_closed;
    if (open == 0)
        return false;
    uint64_t skip = turn % open;
    for (uint32_t k = 0; k < count; k++) {
        uint32_t i = selection->rule == CD_RANDOM ? k : in_turn(k, turn, count);
        if (views[i].is_closed)
            continue;
        if (selection->rule == CD_RANDOM) {
            if (skip-- == 0)
                best->instance = (int32_t)i;
            continue;
        }
        if (best->instance < 0 ||
            (selection->rule == CD_LEAST_TIME ? views[i].queue_s < views[best->instance].queue_s
                                              : views[i].requests < views[best->instance].requests))
            best->instance = (int32_t)i;
    }
    best->prefix_tokens = views[best->instance].prefix_tokens;
    best->queue_s = views[best->instance].queue_s;
    finish(best, cost, tokens, selection->overlaps);
    return true;
}

bool cd_choose_prefill(const cd_selection *selection, const cd_cost *cost, uint32_t tokens,
                       const cd_prefill_view *views, uint32_t count, uint64_t turn,
                       cd_prefill_choice *choice) {
    *choice = (cd_prefill_choice){.instance = -1, .source = -1};
    if (count == 0)
        return false;
    switch (selection->rule) {
    case CD_LOCAL:
    case CD_GLOBAL:
        return by_algorithm_1(selection, cost, tokens, views, count, turn, choice);
    case CD_EARLIEST:
        return by_earliest(selection, cost, tokens, views, count, turn, choice);
    default:
        return blindly(selection, cost, tokens, views, count, turn, choice);
    }
}
