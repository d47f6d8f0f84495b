/* Decode nodes: the second look at a request whose KV cache has arrived, iterations, and what is learnt at the end. */
#include <math.h>

#include "sim.h"

void sim_land(cd_sim *sim, uint32_t id) {
    uint32_t last = sim->flying[--sim->flying_count];
    sim->flying[sim->requests[id].flying] = last;
    sim->requests[last].flying = sim->requests[id].flying;
}

void sim_learn(cd_sim *sim, const sim_request *request, double decode_s) {
    double weight = fmax(0.005, 1.0 / (double)(sim->finished + 2));
    sim->finished++;
    sim->mean_output += (request->output - sim->mean_output) * weight;
    sim->mean_decode_s += (decode_s - sim->mean_decode_s) * weight;
    sim->mean_decode_square += (decode_s * decode_s - sim->mean_decode_square) * weight;
    double bin = fmin(request->output / SURVIVAL_BIN_TOKENS, SURVIVAL_BINS - 1);
    sim->output_counts[(uint32_t)bin]++;
    sim->output_total++;
    if (sim->finished < sim->survival_as_of + 64)
        return;
    sim->survival_as_of = sim->finished;
    double longer = 0;
    for (uint32_t i = SURVIVAL_BINS; i-- > 0;) {
        longer += sim->output_counts[i];
        sim->survival[i] = longer / sim->output_total;
    }
}

static void finish(cd_sim *sim, uint32_t id) {
    const sim_request *request = &sim->requests[id];
    sim_set(sim, id, CD_STATE, CD_FINISHED);
    sim_set(sim, id, CD_END, sim->now_s);
    sim_learn(sim, request, sim->now_s - request->begin_s);
    sim_land(sim, id);
}

static void reject(cd_sim *sim, uint32_t id) {
    sim_set(sim, id, CD_STATE, CD_REJECTED_LATE);
    sim_set(sim, id, CD_END, sim->now_s);
    sim_land(sim, id);
}

/* Whether the first in line can join the batch: its whole answer has room from the start, so that nothing is ever
 * preempted.  Who refuses requests for the TBT's sake looks at that too. */
static bool has_room(const cd_sim *sim, const decode_node *node, const sim_request *request) {
    const cd_sim_config *config = &sim->config;
    if (config->admission == CD_ADMIT_ALL)
        return node->count < config->decode.batch_max &&
               (node->count == 0 || node->batch_reserved_tokens + request->reserved_tokens <=
                                        config->decode.capacity_tokens);
    return cd_decode_load(&config->cost, &config->decode, node->count + 1,
                          node->context_tokens + request->tokens,
                          node->batch_reserved_tokens + request->reserved_tokens) <=
           config->threshold;
}

static void run(cd_sim *sim, uint32_t instance) {
    decode_node *node = &sim->decode[instance];
    while (node->wait_count > 0) {
        uint32_t id = node->wait_first;
        sim_request *request = &sim->requests[id];
        bool joins = has_room(sim, node, request);
        if (!joins && sim->now_s < request->reached_s + sim->config.decode_patience_s)
            break;
        node->wait_first = request->next;
        node->wait_count--;
        if (!joins) {
            node->reserved_tokens -= request->reserved_tokens;
            reject(sim, id);
            continue;
        }
        node->batch_reserved_tokens += request->reserved_tokens;
        request->join_iteration = node->iteration;
        if (!decode_join(node, id, request->output - 1))
            sim->is_out_of_memory = true;
        node->context_tokens += request->tokens;
        sim_set(sim, id, CD_DECODE_WAIT, sim->now_s - request->begin_s);
    }
    node->is_running = node->count > 0;
    if (!node->is_running)
        return;
    node->running_s = cd_decode_s(&sim->config.cost, node->count, node->context_tokens);
    if (sim->config.is_coupled && sim->prefill[instance].is_busy)
        node->running_s += fmax(0, sim->prefill[instance].stage_free_s[0] - sim->now_s);
    sim_schedule(sim, sim->now_s + node->running_s, EVENT_ITERATION, instance, 0);
}

void sim_reach_decode(cd_sim *sim, uint32_t id) {
    sim_request *request = &sim->requests[id];
    decode_node *node = &sim->decode[request->decode];
    node->promised--;
    node->promised_tokens -= request->tokens;
    node->promised_reserved -= request->reserved_tokens;
    if (request->output <= 1) {
        finish(sim, id);
        return;
    }
    request->reserved_tokens = (double)request->tokens + request->output;
    request->reached_s = sim->now_s;
    node->reserved_tokens += request->reserved_tokens;
    request->next = NONE;
    if (node->wait_count++ == 0)
        node->wait_first = id;
    else
        sim->requests[node->wait_last].next = id;
    node->wait_last = id;
    if (!node->is_running)
        run(sim, (uint32_t)request->decode);
}

void sim_end_iteration(cd_sim *sim, uint32_t instance) {
    decode_node *node = &sim->decode[instance];
    uint64_t earliest = node->iteration;
    if (node->kept_count == node->kept_capacity) /* it will want to know what can be forgotten */
        for (uint32_t i = 0; i < node->count; i++) {
            uint64_t joined = sim->requests[node->batch[i].request].join_iteration;
            earliest = joined < earliest ? joined : earliest;
        }
    if (!decode_note(node, node->running_s, earliest))
        sim->is_out_of_memory = true;
    node->context_tokens += node->count;
    while (node->count > 0 && node->batch[0].end <= node->iteration) {
        uint32_t id = decode_leave(node);
        const sim_request *request = &sim->requests[id];
        node->context_tokens -= (double)request->tokens + request->output - 1;
        node->reserved_tokens -= request->reserved_tokens;
        node->batch_reserved_tokens -= request->reserved_tokens;
        double mean_s = 0, slow_s = 0;
        double waited_s = sim->columns[(size_t)CD_DECODE_WAIT * sim->trace.requests + id];
        decode_gaps(node, request->join_iteration, node->iteration, waited_s, sim->scratch, &mean_s,
                    &slow_s);
        sim_set(sim, id, CD_TBT, slow_s);
        sim_set(sim, id, CD_TBT_MEAN, mean_s);
        finish(sim, id);
    }
    if (sim->config.is_coupled) {
        node->is_running = false;
        sim_start_prefills(sim, instance); /* whoever decodes waits for it: that is their TBT */
    }
    run(sim, instance);
}
