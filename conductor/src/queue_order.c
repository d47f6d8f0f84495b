/* In which order an instance computes what waits for it. */
#include <math.h>
#include <string.h>

#include "cd_policy.h"

/* A heap of places, on top the one that gives way first: of the level that has given way most often, the longest. */
typedef struct heap {
    const cd_plan *plan;
    uint32_t count;
    bool ignores_levels;
} heap;

static bool goes_above(const heap *one, uint32_t a, uint32_t b) {
    const cd_plan *plan = one->plan;
    if (!one->ignores_levels && plan->level[a] != plan->level[b])
        return plan->level[a] > plan->level[b];
    if (plan->waiting[a].work_s != plan->waiting[b].work_s)
        return plan->waiting[a].work_s > plan->waiting[b].work_s;
    return a > b; /* of equals the one that came last */
}

static void heap_push(heap *one, uint32_t place) {
    uint32_t *places = one->plan->heap, at = one->count++;
    for (; at > 0 && goes_above(one, place, places[(at - 1) / 2]); at = (at - 1) / 2)
        places[at] = places[(at - 1) / 2];
    places[at] = place;
}

static uint32_t heap_pop(heap *one) {
    uint32_t *places = one->plan->heap, at = 0;
    uint32_t top = places[0], last = places[--one->count];
    for (uint32_t child; (child = 2 * at + 1) < one->count; at = child) {
        if (child + 1 < one->count && goes_above(one, places[child + 1], places[child]))
            child++;
        if (!goes_above(one, places[child], last))
            break;
        places[at] = places[child];
    }
    places[at] = last;
    return top;
}

#define LEVELS 7 /* the last one is no deadline any more */

/* From arrival on.  Nobody is let wait for longer than the order of arrival would have let him: what is promised in that
 * order can be kept whatever the others do, so that it costs nobody his target.  Only what is below least_s is given away,
 * for that is what lets the short ones go first. */
static double deadline_s(const cd_deadlines *deadlines, const cd_waiting *waiting, uint32_t level) {
    if (level > 0)
        return deadlines->slo_s * (double)(1u << (level - 1));
    return fmin(deadlines->target_s, fmax(deadlines->least_s, waiting->promised_s));
}

/* The places in the order of their deadlines, without those that have none.  They come nearly in order: each level is in
 * the order of arrival, and so are most of the promises in it. */
static uint32_t sort_by_deadline(const cd_plan *plan, const cd_deadlines *deadlines,
                                 uint32_t count) {
    uint32_t next[LEVELS - 1] = {0}, sorted = 0;
    for (;;) {
        uint32_t first = LEVELS;
        double least_s = 0;
        for (uint32_t level = 0; level + 1 < LEVELS; level++) {
            while (next[level] < count && plan->level[next[level]] != level)
                next[level]++;
            if (next[level] == count)
                continue;
            const cd_waiting *waiting = &plan->waiting[next[level]];
            double left_s = deadline_s(deadlines, waiting, level) - waiting->waited_s;
            if (first == LEVELS || left_s < least_s) {
                first = level;
                least_s = left_s;
            }
        }
        if (first == LEVELS)
            return sorted;
        uint32_t at = sorted++;
        for (; at > 0 && plan->left_s[at - 1] > least_s; at--) {
            plan->left_s[at] = plan->left_s[at - 1];
            plan->by_deadline[at] = plan->by_deadline[at - 1];
        }
        plan->left_s[at] = least_s;
        plan->by_deadline[at] = next[first]++;
    }
}

/* Moore and Hodgson: of requests in the order of their deadlines, as many as possible in time.  Where one would be late,
 * the longest up to there gives way, for that one frees the most time; who has given way before does so again first, so
 * that nobody misses the target for the sake of one that misses it anyway. */
static bool keep_in_time(const cd_plan *plan, uint32_t sorted, double *end_s) {
    heap kept = {.plan = plan};
    bool gave_way = false;
    for (uint32_t i = 0; i < sorted; i++) {
        uint32_t place = plan->by_deadline[i];
        heap_push(&kept, place);
        *end_s += plan->waiting[place].work_s;
        if (*end_s <= plan->left_s[i])
            continue;
        uint32_t longest = heap_pop(&kept);
        plan->level[longest]++;
        *end_s -= plan->waiting[longest].work_s;
        gave_way = true;
    }
    return gave_way;
}

void cd_plan_queue(const cd_plan *plan, const cd_deadlines *deadlines, uint32_t count,
                   double free_s) {
    memset(plan->level, 0, count);
    uint32_t sorted;
    double end_s;
    do {
        sorted = sort_by_deadline(plan, deadlines, count);
        end_s = free_s;
    } while (keep_in_time(plan, sorted, &end_s));
    /* Smith, from behind: of those whose deadline is not before the end, the longest is last. */
    heap can_be_last = {.plan = plan, .ignores_levels = true};
    uint32_t at = sorted, left = sorted;
    while (at > 0) {
        while (left > 0 && (plan->left_s[left - 1] >= end_s || can_be_last.count == 0))
            heap_push(&can_be_last, plan->by_deadline[--left]);
        uint32_t last = heap_pop(&can_be_last);
        plan->sequence[--at] = last;
        end_s -= plan->waiting[last].work_s;
    }
    for (uint32_t i = 0; i < count; i++)
        if (plan->level[i] + 1 == LEVELS)
            heap_push(&can_be_last, i);
    for (at = count; can_be_last.count > 0;)
        plan->sequence[--at] = heap_pop(&can_be_last);
}

double cd_next_target_s(const cd_target *target, double slo_s, double target_s, double ttft_s) {
    double misses = ttft_s > target_s ? 1 : 0; /* of miss_share of them, both directions cancel */
    double next_s = target_s * exp(target->gain * (misses - target->miss_share));
    return fmin(target->most * slo_s, fmax(slo_s * 0x1p-6, next_s));
}
