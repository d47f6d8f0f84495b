/* The queue of a prefill instance, fetches into it, and the prefills themselves, over the stages of a group. */
#include <math.h>
#include <string.h>

#include "sim.h"

/* ---- who waits for whom ---------------------------------------------------------------------------- */

bool sim_wait(cd_sim *sim, uint32_t waiter, uint32_t *waiters) {
    uint32_t one = sim->free_edge;
    if (one != NONE) {
        sim->free_edge = sim->edges[one].next;
    } else {
        if (sim->edge_count == sim->edge_capacity) {
            uint32_t more = sim->edge_capacity == 0 ? 1024 : sim->edge_capacity * 2;
            edge *edges = realloc(sim->edges, more * sizeof *edges);
            if (edges == NULL)
                return false;
            sim->edges = edges;
            sim->edge_capacity = more;
        }
        one = sim->edge_count++;
    }
    sim->edges[one] = (edge){.waiter = waiter, .next = *waiters};
    *waiters = one;
    sim->requests[waiter].waits_for++;
    return true;
}

void sim_wake(cd_sim *sim, uint32_t *waiters) {
    uint32_t one = *waiters;
    *waiters = NONE;
    while (one != NONE) {
        edge done = sim->edges[one];
        sim->edges[one].next = sim->free_edge;
        sim->free_edge = one;
        sim_request *waiter = &sim->requests[done.waiter];
        waiter->waits_for--;
        if (waiter->is_fetching && waiter->waits_for == 1)
            sim_begin_fetch(sim, done.waiter);
        else if (waiter->waits_for == 0 && waiter->is_queued)
            sim_start_prefills(sim, (uint32_t)waiter->prefill);
        one = done.next;
    }
}

void sim_begin_fetch(cd_sim *sim, uint32_t id) {
    sim_request *request = &sim->requests[id];
    uint32_t tokens = (request->prefix_blocks - request->local_blocks) * sim->config.block_tokens;
    double size_bytes = tokens * sim->config.cost.kv_bytes_per_token;
    request->fetch_begin_s = sim->now_s;
    sim_set(sim, id, CD_FETCH_BYTES, size_bytes);
    sim_set(sim, id, CD_FETCH_ALONE, cd_transfer_s(&sim->config.cost, tokens, 0));
    sim_flow(sim, FLOW_FETCH, id, (uint32_t)request->source, (uint32_t)request->prefill,
             size_bytes);
}

void sim_end_fetch(cd_sim *sim, uint32_t id) {
    sim_request *request = &sim->requests[id];
    block_cache *from = &sim->prefill[request->source].cache,
                *to = &sim->prefill[request->prefill].cache;
    for (uint32_t i = request->local_blocks; i < request->prefix_blocks; i++) {
        cache_unpin(from, cache_find(from, request->blocks[i]));
        uint32_t entry = cache_find(to, request->blocks[i]);
        if (entry != NO_ENTRY && to->entries[entry].producer == id)
            to->entries[entry].producer = NO_REQUEST;
    }
    request->is_fetching = false;
    request->waits_for--;
    sim_set(sim, id, CD_FETCH, sim->now_s - request->fetch_begin_s);
    sim_wake(sim, &request->fetch_waiters);
    sim_start_prefills(sim, (uint32_t)request->prefill);
}

/* ---- the prefill itself ----------------------------------------------------------------------------- */

/* What loading the prefix and storing the new blocks make of the computation, over all layers. */
static double stretched(const cd_sim *sim, double compute_s, double prefix_tokens,
                        double new_tokens) {
    const cd_sim_config *config = &sim->config;
    if (config->loading == CD_LOAD_HIDDEN)
        return compute_s;
    double layers = config->layers, layer_bytes = config->cost.kv_bytes_per_token / layers;
    double load_s = prefix_tokens * layer_bytes / config->load_bytes_per_s;
    double store_s = new_tokens * layer_bytes / config->store_bytes_per_s;
    double one_s = load_s + compute_s / layers + store_s;
    if (config->loading == CD_LOAD_SERIAL)
        return layers * one_s;
    return one_s + (layers - 1) * fmax(compute_s / layers, fmax(load_s, store_s));
}

static double chunk_end(const cd_cost *cost, double begin, double end, uint32_t chunks,
                        uint32_t index) {
    if (index + 1 == chunks)
        return end;
    if (!cost->is_balanced)
        return begin + (double)(index + 1) * cost->chunk_tokens;
    double c1 = cost->prefill_token_s, c2 = cost->prefill_pair_s;
    double first = c1 * begin + c2 * begin * begin;
    double work = first + (c1 * end + c2 * end * end - first) * (index + 1) / chunks;
    double root = sqrt(c1 * c1 + 4 * c2 * work) + c1;
    return root > 0 ? 2 * work / root : begin + (end - begin) * (index + 1) / chunks;
}

/* Runs the chunks through the stages; returns when the first token is there. */
static double run_stages(cd_sim *sim, prefill_node *node, double tokens, double prefix_tokens,
                         double scale) {
    const cd_cost *cost = &sim->config.cost;
    uint32_t stages = cost->group_nodes;
    uint32_t chunks =
        stages == 1 ? 1 : (uint32_t)ceil((tokens - prefix_tokens) / cost->chunk_tokens);
    double begin = prefix_tokens, ready = 0;
    for (uint32_t index = 0; index < chunks; index++) {
        double end = chunk_end(cost, prefix_tokens, tokens, chunks, index);
        double n = end, p = begin;
        double chunk_s =
            scale * (cost->prefill_token_s * (n - p) + cost->prefill_pair_s * (n * n - p * p) +
                     (index == 0 ? cost->prefill_base_s : 0));
        ready = sim->now_s;
        for (uint32_t stage = 0; stage < stages; stage++) {
            ready = fmax(ready, node->stage_free_s[stage]) + chunk_s / stages;
            node->stage_free_s[stage] = ready;
            if (stage + 1 < stages)
                ready += sim->config.hop_latency_s +
                         (end - begin) * sim->config.hop_bytes_per_token / cost->nic_bytes_per_s;
        }
        begin = end;
    }
    return ready;
}

/* What of the promised prefix is really there: without pins some may have gone. */
static void check_prefix(cd_sim *sim, uint32_t id) {
    sim_request *request = &sim->requests[id];
    block_cache *cache = &sim->prefill[request->prefill].cache;
    uint32_t have = 0;
    while (have < request->prefix_blocks && cache_find(cache, request->blocks[have]) != NO_ENTRY)
        have++;
    uint32_t tokens = have * sim->config.block_tokens;
    if (tokens < request->prefix_tokens) {
        sim_set(sim, id, CD_MISPREDICTED_TOKENS, request->prefix_tokens - tokens);
        request->prefix_tokens = tokens;
    }
    /* From here on everything it needs is held; what has gone is computed, and kept, again. */
    request->kept_blocks = request->block_count;
    for (uint32_t i = 0; i < request->block_count; i++) {
        uint32_t entry = cache_find(cache, request->blocks[i]);
        if (entry != NO_ENTRY)
            cache_pin(cache, entry);
        else
            sim_cache_block(sim, (uint32_t)request->prefill, id, i, &entry);
        if (entry == NO_ENTRY) {
            request->kept_blocks = i;
            break;
        }
    }
}

static void begin(cd_sim *sim, uint32_t id) {
    sim_request *request = &sim->requests[id];
    prefill_node *node = &sim->prefill[request->prefill];
    if (!sim->config.pins_queued)
        check_prefix(sim, id);
    double n = request->tokens, p = request->prefix_tokens;
    double plain_s = cd_prefill_work_s(&sim->config.cost, n, p);
    request->work_s = stretched(sim, plain_s, p, n - p) * request->truth;
    double end_s = run_stages(sim, node, n, p, request->work_s / plain_s);
    node->running++;
    node->is_busy = true;
    node->predicted_free_s = sim->now_s + request->predicted_s;
    sim->busy_s += request->work_s;
    request->begin_s = sim->now_s;
    sim_set(sim, id, CD_QUEUED,
            sim->now_s - sim->columns[(size_t)CD_ARRIVAL * sim->trace.requests + id]);
    sim_set(sim, id, CD_PREFILL, end_s - sim->now_s);
    sim_set(sim, id, CD_PREFILL_WORK, request->work_s);
    sim_schedule(sim, node->stage_free_s[0], EVENT_STAGE_FREE, (uint32_t)request->prefill, 0);
    sim_schedule(sim, end_s, EVENT_PREFILL_END, id, 0);
    /* The KV cache streams to the decode node layer by layer while it is made. */
    if (request->output > 1 && !sim->config.is_coupled)
        sim_flow(sim, FLOW_STREAM, id, (uint32_t)request->prefill,
                 sim->config.prefill_instances + (uint32_t)request->decode,
                 n * sim->config.cost.kv_bytes_per_token);
    else
        request->has_stream_ended = true;
}

void sim_start_prefills(cd_sim *sim, uint32_t instance) {
    prefill_node *node = &sim->prefill[instance];
    /* A coupled instance does one after the other: prompts between iterations. */
    while (!node->is_busy && !(sim->config.is_coupled && sim->decode[instance].is_running)) {
        uint32_t at = sim_next_in_queue(sim, instance);
        if (at == NONE)
            return;
        uint32_t id = node->queue[at];
        memmove(node->queue + at, node->queue + at + 1,
                (--node->queue_count - at) * sizeof *node->queue);
        sim_request *request = &sim->requests[id];
        node->queued_s = node->queue_count == 0 ? 0 : node->queued_s - request->predicted_s;
        request->is_queued = false;
        if (sim->config.checks_again && !sim_has_room_yet(sim, id) && sim_refuse_queued(sim, id))
            continue;
        begin(sim, id);
    }
}

void sim_end_prefill(cd_sim *sim, uint32_t id) {
    sim_request *request = &sim->requests[id];
    prefill_node *node = &sim->prefill[request->prefill];
    block_cache *cache = &node->cache;
    for (uint32_t i = 0; i < request->kept_blocks; i++) {
        uint32_t entry = cache_find(cache, request->blocks[i]);
        cache_entry *kept = &cache->entries[entry];
        if (kept->producer == id)
            kept->producer = NO_REQUEST;
        bool is_copy = i >= request->local_blocks && i < request->prefix_blocks && kept->uses <= 1;
        if (is_copy && !sim->config.keeps_fetched && request->source >= 0)
            cache_use(cache, entry, 0); /* there is another one: the first to go */
        cache_unpin(cache, entry);
    }
    node->running--;
    request->has_prefill_ended = true;
    double ttft_s = sim->now_s - sim->columns[(size_t)CD_ARRIVAL * sim->trace.requests + id];
    request->begin_s = sim->now_s;
    sim_set(sim, id, CD_TTFT, ttft_s);
    sim->target_s =
        cd_next_target_s(&sim->config.target, sim->config.ttft_slo_s, sim->target_s, ttft_s);
    sim->mean_ttft_s += (ttft_s - sim->mean_ttft_s) * 0.02;
    sim->mean_tokens += (request->tokens - sim->mean_tokens) * 0.02;
    sim_wake(sim, &request->waiters);
    if (request->has_stream_ended)
        sim_reach_decode(sim, id);
}
