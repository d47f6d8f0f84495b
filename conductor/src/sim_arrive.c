/* A request arrives: look up, choose, admit, and note the decision in queues and caches at once. */
#include <math.h>
#include <string.h>

#include "sim.h"

static uint32_t usable_tokens(const cd_sim *sim, const sim_request *request, uint32_t blocks) {
    uint32_t tokens = blocks * sim->config.block_tokens;
    return tokens < request->tokens ? tokens : request->tokens - 1; /* one token is computed */
}

/* When the last block of a prefix is predicted to be at an instance; 0: it is there. */
static double prefix_end_s(const cd_sim *sim, const sim_request *request, uint32_t instance,
                           uint32_t blocks) {
    if (blocks == 0)
        return 0;
    const block_cache *cache = &sim->prefill[instance].cache;
    uint32_t producer = cache->entries[cache_find(cache, request->blocks[blocks - 1])].producer;
    if (producer == NO_REQUEST)
        return 0;
    const sim_request *maker = &sim->requests[producer];
    return maker->is_fetching && blocks <= maker->prefix_blocks ? maker->ready_s
                                                                : maker->predicted_end_s;
}

/* Waits for a block that another request fetches or computes; last: whom it waits for already. */
static void wait_for(cd_sim *sim, uint32_t waiter, uint32_t producer, uint32_t position,
                     uint32_t **last) {
    if (producer == NO_REQUEST || producer == waiter)
        return;
    sim_request *maker = &sim->requests[producer];
    uint32_t *waiters = maker->is_fetching && position < maker->prefix_blocks
                            ? &maker->fetch_waiters
                            : &maker->waiters;
    if (waiters != *last && !sim_wait(sim, waiter, waiters))
        sim->is_out_of_memory = true;
    *last = waiters;
}

/* What decisions go by between two reports: a queue passes, and what was decided since is known to who decided it. */
static void age_report(const cd_sim *sim, const prefill_report *told, cd_prefill_view *view) {
    bool counts = sim->config.counts_decided;
    double queue_s = told->queue_s + (counts ? told->decided_s : 0);
    view->queue_s = fmax(0, queue_s - (sim->now_s - sim->reported_s));
    int64_t requests = (int64_t)told->requests + (counts ? told->decided : 0);
    view->requests = requests < 0 ? 0 : (uint32_t)requests;
    view->behind = 0;
}

static void look(cd_sim *sim, sim_request *request) {
    for (uint32_t i = 0; i < request->block_count; i++)
        sim->keys[i] = (cd_key){.low = request->blocks[i]};
    cd_index_match(sim->index, sim->keys, request->block_count, sim->matches);
    network_advance(&sim->net, sim->now_s);
    uint32_t longest = 0;
    for (uint32_t i = 0; i < sim->config.prefill_instances; i++)
        longest = sim->matches[i].blocks[2] > longest ? sim->matches[i].blocks[2] : longest;
    double shortest_s = cd_prefill_node_s(&sim->config.believed, request->tokens,
                                          usable_tokens(sim, request, longest));
    for (uint32_t i = 0; i < sim->config.prefill_instances; i++) {
        cd_prefill_view *view = &sim->prefill_views[i];
        *view = (cd_prefill_view){
            .egress_bytes = sim->net.egress_bytes[i],
            .requests = sim->prefill[i].queue_count + sim->prefill[i].running,
            .prefix_tokens = usable_tokens(sim, request, sim->matches[i].blocks[2]),
            .ready_s =
                fmax(0, prefix_end_s(sim, request, i, sim->matches[i].blocks[2]) - sim->now_s),
        };
        if (sim->config.report_s > 0)
            age_report(sim, &sim->prefill_reports[i], view);
        else
            sim_line(sim, i, shortest_s, &view->queue_s, &view->behind);
    }
}

static cd_decode_view decode_now(const cd_sim *sim, uint32_t i) {
    const decode_node *node = &sim->decode[i];
    return (cd_decode_view){
        .batch = node->count + node->wait_count,
        .context_tokens = node->context_tokens,
        .reserved_tokens = node->reserved_tokens + node->promised_reserved,
        .promised = node->promised,
        .promised_tokens = node->promised_tokens,
        .ingress_bytes = sim->net.ingress_bytes[sim->config.prefill_instances + i],
    };
}

static void look_at_decoding(cd_sim *sim) {
    network_advance(&sim->net, sim->now_s);
    for (uint32_t i = 0; i < sim->config.decode_instances; i++) {
        cd_decode_view *view = &sim->decode_views[i];
        if (sim->config.report_s <= 0) {
            *view = decode_now(sim, i);
            continue;
        }
        *view = sim->decode_reports[i];
        double passed = (sim->now_s - sim->reported_s) * sim->config.believed.nic_bytes_per_s;
        view->ingress_bytes = fmax(0, view->ingress_bytes - passed);
    }
}

void sim_report(cd_sim *sim) {
    sim->reported_s = sim->now_s;
    for (uint32_t i = 0; i < sim->config.prefill_instances; i++)
        sim->prefill_reports[i] = (prefill_report){
            .queue_s = sim_queue_s(sim, i),
            .requests = sim->prefill[i].queue_count + sim->prefill[i].running,
        };
    network_advance(&sim->net, sim->now_s);
    for (uint32_t i = 0; i < sim->config.decode_instances; i++)
        sim->decode_reports[i] = decode_now(sim, i);
}

/* All that are under way but one. */
static uint32_t fill_flights(cd_sim *sim, const sim_request *without) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < sim->flying_count; i++) {
        const sim_request *request = &sim->requests[sim->flying[i]];
        if (request == without)
            continue;
        cd_flight *flight = &sim->flights[count++];
        const decode_node *node = &sim->decode[request->decode];
        bool decodes = request->has_prefill_ended;
        *flight = (cd_flight){
            .begin_s = decodes ? request->begin_s : fmax(request->predicted_end_s, sim->now_s),
            .tokens = request->tokens,
            .output = request->output,
            .instance = (uint32_t)request->decode,
        };
        if (decodes && request->join_iteration != UINT64_MAX)
            flight->generated = (double)(node->iteration - request->join_iteration);
        flight->tokens += flight->generated;
    }
    return count;
}

static double look_ahead(cd_sim *sim, const sim_request *request, uint32_t tokens, double ttft_s,
                         int32_t *instance) {
    const cd_sim_config *config = &sim->config;
    uint32_t flights = fill_flights(sim, request);
    double decode_s = sim->mean_decode_s;
    if (config->weighs_decode_s && decode_s > 0)
        decode_s = sim->mean_decode_square / decode_s;
    cd_forecast forecast = {
        .now_s = sim->now_s,
        .at_s = sim->now_s + ttft_s,
        .decode_s = decode_s,
        .survival = sim->survival,
        .survival_bins = SURVIVAL_BINS,
        .bin_tokens = SURVIVAL_BIN_TOKENS,
        .margin = config->margin,
        .joins_per_s = sim->accepted_per_s,
        .join_delay_s = sim->mean_ttft_s,
        .join_tokens = sim->mean_tokens,
        .threshold = config->threshold,
        .pool = config->pool,
    };
    double expected = config->admission == CD_ADMIT_ORACLE ? request->output : sim->mean_output;
    return cd_pool_load_at(config->admission, &config->believed, &config->decode, tokens, expected,
                           sim->decode_views, config->decode_instances, sim->flights, flights,
                           &forecast, instance);
}

/* Whether the decode pool speaks against a request whose first token is predicted in ttft_s; who foresees that chooses
 * the instance, too. */
static bool has_no_room(cd_sim *sim, const sim_request *request, double ttft_s, int32_t *instance) {
    const cd_sim_config *config = &sim->config;
    double load = 0;
    uint32_t tokens = request->tokens;
    if (config->is_length_neutral && sim->mean_tokens > 0) {
        tokens = (uint32_t)sim->mean_tokens;
        ttft_s = sim->mean_ttft_s;
    }
    if (config->admission == CD_ADMIT_EARLY) {
        load = cd_pool_load(&config->believed, &config->decode, tokens, sim->decode_views,
                            config->decode_instances, config->pool);
    } else if (config->admission >= CD_ADMIT_PREDICTED) {
        int32_t chosen = -1;
        load = look_ahead(sim, request, tokens, ttft_s, &chosen);
        if (chosen >= 0 && !config->is_coupled)
            *instance = chosen;
    }
    return load > config->threshold;
}

/* The load of the prefill pool, as a TTFT: that of the instance that is chosen, or what the request takes and a mean
 * queue. */
static double pool_ttft_s(const cd_sim *sim, const cd_prefill_choice *prefill) {
    if (!sim->config.averages_prefill)
        return prefill->ttft_s;
    double queues_s = 0;
    for (uint32_t i = 0; i < sim->config.prefill_instances; i++)
        queues_s += sim->prefill_views[i].queue_s;
    return cd_ttft_s(queues_s / sim->config.prefill_instances, prefill->transfer_s,
                     prefill->prefill_s, sim->config.selection.overlaps);
}

/* What speaks against the request: CD_PENDING if nothing. */
static int admit(cd_sim *sim, const sim_request *request, const cd_prefill_choice *prefill,
                 cd_decode_choice *decode) {
    if (sim->config.admission == CD_ADMIT_ALL)
        return CD_PENDING;
    if (pool_ttft_s(sim, prefill) / sim->config.ttft_slo_s > sim->config.threshold)
        return CD_REJECTED_PREFILL;
    return has_no_room(sim, request, prefill->ttft_s, &decode->instance) ? CD_REJECTED_DECODE
                                                                         : CD_PENDING;
}

/* Lets a request count at its decode instance (1), or no more (-1): now, and between reports for who counts what it
 * decides. */
static void promise(cd_sim *sim, const sim_request *request, double sign) {
    decode_node *node = &sim->decode[request->decode];
    node->promised += sign;
    node->promised_tokens += sign * request->tokens;
    node->promised_reserved += sign * request->reserved_tokens;
    if (!sim->config.counts_decided)
        return;
    cd_decode_view *told = &sim->decode_reports[request->decode];
    told->promised += sign;
    told->promised_tokens += sign * request->tokens;
    told->reserved_tokens += sign * request->reserved_tokens;
}

/* The same at its prefill instance, between reports. */
static void count_decided(cd_sim *sim, const sim_request *request, int32_t sign) {
    prefill_report *told = &sim->prefill_reports[request->prefill];
    told->decided += sign;
    told->decided_s += sign * request->predicted_s;
}

static bool choose_decode(const cd_sim *sim, const sim_request *request, int32_t prefill,
                          uint64_t turn, cd_decode_choice *choice) {
    const cd_sim_config *config = &sim->config;
    uint32_t first = config->is_coupled ? (uint32_t)prefill : 0;
    uint32_t count = config->is_coupled ? 1 : config->decode_instances;
    bool found = cd_choose_decode(&config->believed, &config->decode, request->tokens,
                                  sim->mean_output, sim->decode_views + first, count, turn, choice);
    choice->instance += (int32_t)first;
    return found;
}

static uint64_t mixed(uint64_t x) { /* splitmix64 */
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ (x >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94D049BB133111EB);
    return x ^ (x >> 31);
}

/* Where the search for an instance begins. */
static uint64_t turn_of(const cd_sim *sim, uint32_t id) {
    switch (sim->config.tie_order) {
    case CD_TIES_DRAWN:
        return mixed(sim->config.seed ^ ((uint64_t)id << 20));
    case CD_TIES_FIRST:
        return 0;
    default:
        return sim->turn;
    }
}

bool sim_has_room_yet(cd_sim *sim, uint32_t id) {
    sim_request *request = &sim->requests[id];
    promise(sim, request, -1);
    look_at_decoding(sim);
    cd_decode_choice decode;
    choose_decode(sim, request, request->prefill, turn_of(sim, id), &decode);
    bool is_full = has_no_room(sim, request, request->predicted_s, &decode.instance);
    if (!is_full) {
        request->decode = decode.instance;
        sim_set(sim, id, CD_DECODE_INSTANCE, decode.instance);
    }
    promise(sim, request, 1);
    return !is_full;
}

/* Blocks that somebody counts on are computed all the same, and then the request may as well go on. */
static bool is_needed(const cd_sim *sim, uint32_t id) {
    const sim_request *request = &sim->requests[id];
    const block_cache *cache = &sim->prefill[request->prefill].cache;
    for (uint32_t i = request->local_blocks; i < request->kept_blocks; i++) {
        uint32_t entry = cache_find(cache, request->blocks[i]);
        uint32_t own_pins = sim->config.pins_queued ? 1 : 0;
        if (entry != NO_ENTRY && cache->entries[entry].producer == id &&
            cache->entries[entry].pins > own_pins)
            return true;
    }
    return request->waiters != NONE;
}

bool sim_refuse_queued(cd_sim *sim, uint32_t id) {
    sim_request *request = &sim->requests[id];
    if (is_needed(sim, id))
        return false;
    block_cache *cache = &sim->prefill[request->prefill].cache;
    for (uint32_t i = 0; i < request->kept_blocks; i++) {
        uint32_t entry = cache_find(cache, request->blocks[i]);
        bool is_own = entry != NO_ENTRY && cache->entries[entry].producer == id;
        if (!is_own && sim->config.pins_queued)
            cache_unpin(cache, entry);
        if (!is_own)
            continue;
        if (!sim->config.pins_queued)
            cache_pin(cache, entry);
        cd_key gone = {.low = request->blocks[i]};
        cd_index_remove(sim->index, (uint32_t)request->prefill, 0, &gone, 1);
        cache_drop(cache, entry);
    }
    promise(sim, request, -1);
    count_decided(sim, request, -1);
    sim_land(sim, id);
    sim_set(sim, id, CD_STATE, CD_REJECTED_QUEUED);
    sim_set(sim, id, CD_END, sim->now_s);
    return true;
}

void sim_cache_block(cd_sim *sim, uint32_t instance, uint32_t request, uint32_t position,
                     uint32_t *entry) {
    block_cache *cache = &sim->prefill[instance].cache;
    uint32_t block = sim->requests[request].blocks[position], evicted;
    *entry = cache_insert(cache, block, position, &evicted);
    if (evicted != NONE) {
        cd_key gone = {.low = evicted};
        cd_index_remove(sim->index, instance, 0, &gone, 1);
        sim->evicted_blocks++;
    }
    if (*entry == NO_ENTRY)
        return;
    cd_key key = {.low = block};
    cd_index_store(sim->index, instance, 0, &key, 1);
    cache->entries[*entry].producer = request;
}

/* Pins what is there, and makes room for what will be: others may count on it from now on. */
static void claim(cd_sim *sim, uint32_t id) {
    sim_request *request = &sim->requests[id];
    uint32_t instance = (uint32_t)request->prefill;
    block_cache *cache = &sim->prefill[instance].cache;
    request->kept_blocks = request->block_count;
    uint32_t *last = NULL;
    sim->used += request->block_count;
    for (uint32_t i = 0; i < request->block_count; i++) {
        uint32_t entry = cache_find(cache, request->blocks[i]);
        if (entry != NO_ENTRY) {
            cache_pin(cache, entry);
            /* In the order of arrival whoever brings it here is through before this one begins. */
            if (sim->config.order != CD_FCFS && i < request->local_blocks)
                wait_for(sim, id, cache->entries[entry].producer, i, &last);
        } else {
            sim_cache_block(sim, instance, id, i, &entry);
            if (entry == NO_ENTRY) { /* all the rest is pinned: computed, not kept */
                request->kept_blocks = i;
                break;
            }
        }
        cache_use(cache, entry,
                  sim->used -
                      i); /* the deepest block is the oldest: no head leaves before its tail */
        sim_heat(sim, request->blocks[i]);
    }
    if (!sim->config.pins_queued)
        for (uint32_t i = 0; i < request->kept_blocks; i++) {
            uint32_t entry = cache_find(cache, request->blocks[i]);
            if (entry != NO_ENTRY)
                cache_unpin(cache, entry);
        }
}

/* Pins the blocks at their source, and waits for those that are being computed there. */
static void claim_source(cd_sim *sim, uint32_t id) {
    sim_request *request = &sim->requests[id];
    block_cache *cache = &sim->prefill[request->source].cache;
    uint32_t *last = NULL;
    for (uint32_t i = request->local_blocks; i < request->prefix_blocks; i++) {
        uint32_t entry = cache_find(cache, request->blocks[i]);
        cache_pin(cache, entry);
        if (sim->config.touches_source)
            cache_use(cache, entry, sim->used - i);
        wait_for(sim, id, cache->entries[entry].producer, i, &last);
    }
}

static void accept(cd_sim *sim, uint32_t id, const cd_prefill_choice *prefill,
                   const cd_decode_choice *decode) {
    sim_request *request = &sim->requests[id];
    request->prefill = prefill->instance;
    request->source = prefill->source;
    request->decode = decode->instance;
    request->prefix_tokens = prefill->prefix_tokens;
    request->local_blocks = sim->matches[prefill->instance].blocks[2];
    request->prefix_blocks =
        prefill->source < 0 ? request->local_blocks : sim->matches[prefill->source].blocks[2];
    request->predicted_s =
        cd_prefill_node_s(&sim->config.believed, request->tokens, request->prefix_tokens);
    request->predicted_end_s = sim->now_s + prefill->ttft_s;
    request->join_iteration = UINT64_MAX;
    request->waits_for = prefill->source >= 0;
    request->ready_s = sim->now_s;
    if (prefill->source >= 0) {
        double there_s =
            prefix_end_s(sim, request, (uint32_t)prefill->source, request->prefix_blocks);
        request->ready_s = fmax(sim->now_s, there_s) + prefill->transfer_s;
        request->is_fetching = true;
        claim_source(sim, id); /* first: what is claimed at the target must not push it out */
    }
    claim(sim, id);

    prefill_node *node = &sim->prefill[prefill->instance];
    double queue_s = sim_queue_s(sim, (uint32_t)prefill->instance);
    request->promised_s = fmax(queue_s, prefill->transfer_s) + request->predicted_s;
    node->queue[node->queue_count++] = id; /* has room for every request */
    node->queued_s += request->predicted_s;
    request->is_queued = true;
    request->reserved_tokens = request->tokens + sim->mean_output;
    promise(sim, request, 1);
    count_decided(sim, request, 1);
    request->flying = sim->flying_count;
    sim->flying[sim->flying_count++] = id;
    double since_s = sim->now_s - sim->last_accept_s, window_s = 30;
    sim->accepted_per_s = sim->accepted_per_s * exp(-since_s / window_s) + 1 / window_s;
    sim->last_accept_s = sim->now_s;

    sim_set(sim, id, CD_TTFT_PREDICTED, prefill->ttft_s);
    sim_set(sim, id, CD_TBT_PREDICTED, decode->tbt_s);
    sim_set(sim, id, CD_PREFIX_TOKENS, request->prefix_tokens);
    sim_set(sim, id, CD_LOCAL_TOKENS, usable_tokens(sim, request, request->local_blocks));
    sim_set(sim, id, CD_PREFILL_INSTANCE, prefill->instance);
    sim_set(sim, id, CD_DECODE_INSTANCE, decode->instance);
    if (request->is_fetching && request->waits_for == 1)
        sim_begin_fetch(sim, id);
    sim_start_prefills(sim, (uint32_t)prefill->instance);
}

void sim_arrive(cd_sim *sim, uint32_t id) {
    const cd_sim_config *config = &sim->config;
    sim_request *request = &sim->requests[id];
    look(sim, request);
    look_at_decoding(sim);
    uint64_t turn = config->selection.rule == CD_RANDOM ? mixed(config->seed ^ ((uint64_t)id << 20))
                                                        : turn_of(sim, id);
    sim->turn++;
    cd_prefill_choice prefill;
    cd_decode_choice decode;
    bool found = cd_choose_prefill(&config->selection, &config->believed, request->tokens,
                                   sim->prefill_views, config->prefill_instances, turn, &prefill);
    found = found && choose_decode(sim, request, prefill.instance, turn, &decode);
    sim_set(sim, id, CD_ARRIVAL, sim->now_s);
    int verdict = found ? admit(sim, request, &prefill, &decode) : CD_REJECTED_PREFILL;
    if (verdict != CD_PENDING) {
        sim_set(sim, id, CD_STATE, verdict);
        sim_set(sim, id, CD_TTFT_PREDICTED, prefill.ttft_s);
        sim_set(sim, id, CD_END, sim->now_s);
        return;
    }
    accept(sim, id, &prefill, &decode);
}
