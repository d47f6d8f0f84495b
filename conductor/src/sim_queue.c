/* The queue of a prefill instance: what stands in it, and who is next. */
#include <math.h>
#include <string.h>

#include "sim.h"

double sim_queue_s(const cd_sim *sim, uint32_t instance) {
    const prefill_node *node = &sim->prefill[instance];
    double running_s =
        sim->config.counts_running ? fmax(0, node->predicted_free_s - sim->now_s) : 0;
    return fmax(0, node->queued_s) + running_s;
}

/* Room to plan a queue of so many. */
static bool can_plan(cd_sim *sim, uint32_t count) {
    if (count <= sim->plan_capacity)
        return true;
    sim_close_plan(sim);
    uint32_t more = count * 2;
    sim->plan = (cd_plan){
        .waiting = malloc(more * sizeof *sim->plan.waiting),
        .sequence = malloc(more * sizeof *sim->plan.sequence),
        .by_deadline = malloc(more * sizeof *sim->plan.by_deadline),
        .heap = malloc(more * sizeof *sim->plan.heap),
        .left_s = malloc(more * sizeof *sim->plan.left_s),
        .level = malloc(more),
    };
    sim->plan_capacity = more;
    return sim->plan.waiting && sim->plan.sequence && sim->plan.by_deadline && sim->plan.heap &&
           sim->plan.left_s && sim->plan.level;
}

void sim_close_plan(cd_sim *sim) {
    free(sim->plan.waiting);
    free(sim->plan.sequence);
    free(sim->plan.by_deadline);
    free(sim->plan.heap);
    free(sim->plan.left_s);
    free(sim->plan.level);
    sim->plan = (cd_plan){0};
    sim->plan_capacity = 0;
}

/* Plans an instance's queue, with one more that takes so long at its end (0: without); how many they are.  Without
 * memory: none, and the simulation ends. */
static uint32_t plan_queue(cd_sim *sim, uint32_t instance, double more_s) {
    const prefill_node *node = &sim->prefill[instance];
    uint32_t count = node->queue_count;
    if (!can_plan(sim, count + 1)) {
        sim->is_out_of_memory = true;
        return 0;
    }
    const double *arrival_s = sim->columns + (size_t)CD_ARRIVAL * sim->trace.requests;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t id = node->queue[i];
        sim->plan.waiting[i] = (cd_waiting){.waited_s = sim->now_s - arrival_s[id],
                                            .work_s = sim->requests[id].predicted_s,
                                            .promised_s = sim->requests[id].promised_s};
    }
    if (more_s > 0)
        sim->plan.waiting[count++] =
            (cd_waiting){.work_s = more_s, .promised_s = sim_queue_s(sim, instance) + more_s};
    double free_s = node->is_busy ? fmax(0, node->predicted_free_s - sim->now_s) : 0;
    cd_deadlines deadlines = {.target_s = sim->target_s,
                              .slo_s = sim->config.ttft_slo_s,
                              .least_s = sim->config.target_least * sim->target_s};
    cd_plan_queue(&sim->plan, &deadlines, count, free_s);
    return count;
}

void sim_line(cd_sim *sim, uint32_t instance, double predicted_s, double *ahead_s, double *behind) {
    *behind = 0;
    *ahead_s = sim_queue_s(sim, instance);
    if (sim->config.order != CD_PLANNED || sim->prefill[instance].queue_count == 0)
        return;
    uint32_t count = plan_queue(sim, instance, predicted_s), at = 0;
    if (count == 0)
        return;
    *ahead_s -= fmax(0, sim->prefill[instance].queued_s);
    for (; sim->plan.sequence[at] != count - 1; at++)
        *ahead_s += sim->plan.waiting[sim->plan.sequence[at]].work_s;
    *behind = count - 1 - at;
}

/* NONE: nobody can, or it is better to wait for somebody whose prefix is on its way: whoever went before it would take
 * longer than that.  Bytes under way need nobody's computing to arrive, so that no two instances wait for each other. */
uint32_t sim_next_in_queue(cd_sim *sim, uint32_t instance) {
    const prefill_node *node = &sim->prefill[instance];
    if (node->queue_count == 0)
        return NONE;
    if (sim->config.order == CD_FCFS)
        return sim->requests[node->queue[0]].waits_for == 0 ? 0 : NONE;
    bool is_planned = sim->config.order == CD_PLANNED && node->queue_count > 1;
    if (is_planned && plan_queue(sim, instance, 0) == 0)
        return NONE;
    uint32_t wanted = NONE; /* the first of those whose prefix is on its way */
    for (uint32_t k = 0; k < node->queue_count; k++) {
        uint32_t at = is_planned ? sim->plan.sequence[k] : k;
        const sim_request *request = &sim->requests[node->queue[at]];
        if (request->waits_for == 0) {
            double ends_s = sim->now_s + request->predicted_s;
            bool delays = wanted != NONE && ends_s > sim->requests[node->queue[wanted]].ready_s;
            return delays ? NONE : at;
        }
        if (request->is_fetching && request->waits_for == 1 && wanted == NONE)
            wanted = at;
    }
    return NONE;
}
