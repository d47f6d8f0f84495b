/* The clock of the simulated cluster: what happens next, and opening and closing it. */
#include <math.h>
#include <string.h>

#include "sim.h"

/* ---- events ------------------------------------------------------------------------------------------ */

static bool is_earlier(const event *a, const event *b) {
    if (a->time_s != b->time_s)
        return a->time_s < b->time_s;
    return a->kind != b->kind ? a->kind < b->kind : a->sequence < b->sequence;
}

bool sim_schedule(cd_sim *sim, double time_s, event_kind kind, uint32_t id, uint8_t flow) {
    if (sim->event_count == sim->event_capacity) {
        size_t more = sim->event_capacity == 0 ? 256 : sim->event_capacity * 2;
        event *events = realloc(sim->events, more * sizeof *events);
        if (events == NULL) {
            sim->is_out_of_memory = true;
            return false;
        }
        sim->events = events;
        sim->event_capacity = more;
    }
    sim->timers += kind >= EVENT_REPORT;
    event added = {.time_s = time_s,
                   .sequence = sim->event_sequence++,
                   .id = id,
                   .kind = (uint8_t)kind,
                   .flow = flow};
    size_t at = sim->event_count++;
    while (at > 0 && is_earlier(&added, &sim->events[(at - 1) / 2])) {
        sim->events[at] = sim->events[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    sim->events[at] = added;
    return true;
}

static event take_event(cd_sim *sim) {
    event first = sim->events[0], last = sim->events[--sim->event_count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < sim->event_count; at = child) {
        if (child + 1 < sim->event_count &&
            is_earlier(&sim->events[child + 1], &sim->events[child]))
            child++;
        if (!is_earlier(&sim->events[child], &last))
            break;
        sim->events[at] = sim->events[child];
    }
    if (sim->event_count > 0)
        sim->events[at] = last;
    return first;
}

void sim_set(cd_sim *sim, uint32_t request, uint32_t column, double value) {
    sim->columns[(size_t)column * sim->trace.requests + request] = value;
}

void sim_flow(cd_sim *sim, flow_kind kind, uint32_t request, uint32_t source, uint32_t target,
              double size_bytes) {
    flow added = {.source = source,
                  .target = target,
                  .request = request,
                  .kind = kind,
                  .weight = kind == FLOW_FETCH     ? sim->config.fetch_weight
                            : kind == FLOW_REPLICA ? sim->config.replica_weight
                                                   : 1,
                  .left_bytes = size_bytes};
    if (!network_add(&sim->net, sim->now_s, added))
        sim->is_out_of_memory = true;
}

static void end_flow(cd_sim *sim, const flow *ended) {
    if (ended->kind == FLOW_REPLICA)
        sim_end_replica(sim, ended->request, ended->source, ended->target);
    else
        sim_schedule(sim, sim->now_s + sim->config.cost.transfer_latency_s, EVENT_ARRIVED,
                     ended->request, (uint8_t)ended->kind);
}

static void handle(cd_sim *sim, const event *one) {
    sim->timers -= one->kind >= EVENT_REPORT;
    bool goes_on =
        sim->arrived < sim->trace.requests || sim->event_count > sim->timers || sim->net.count > 0;
    sim_request *request;
    switch ((event_kind)one->kind) {
    case EVENT_ARRIVED:
        request = &sim->requests[one->id];
        if (one->flow == FLOW_FETCH) {
            sim_end_fetch(sim, one->id);
        } else {
            request->has_stream_ended = true;
            if (request->has_prefill_ended)
                sim_reach_decode(sim, one->id);
        }
        break;
    case EVENT_PREFILL_END:
        sim_end_prefill(sim, one->id);
        break;
    case EVENT_STAGE_FREE:
        sim->prefill[one->id].is_busy = false;
        sim_start_prefills(sim, one->id);
        break;
    case EVENT_ITERATION:
        sim_end_iteration(sim, one->id);
        break;
    case EVENT_REPORT:
        sim_report(sim);
        if (goes_on)
            sim_schedule(sim, sim->now_s + sim->config.report_s, EVENT_REPORT, 0, 0);
        break;
    case EVENT_REPLICATE:
        sim_replicate(sim);
        if (goes_on)
            sim_schedule(sim, sim->now_s + sim->config.hotspot_interval_s, EVENT_REPLICATE, 0, 0);
        break;
    case EVENT_SAMPLE:
        sim_sample(sim);
        if (goes_on)
            sim_schedule(sim, sim->now_s + sim->config.sample_s, EVENT_SAMPLE, 0, 0);
        break;
    }
}

int cd_sim_step(cd_sim *sim, uint64_t events) {
    for (uint64_t done = 0; done < events; done++) {
        if (sim->is_out_of_memory)
            return -1;
        double arrival_s = INFINITY;
        if (sim->arrived < sim->trace.requests)
            arrival_s = sim->trace.arrival_s[sim->arrived] / sim->config.speed;
        double event_s = sim->event_count > 0 ? sim->events[0].time_s : INFINITY;
        double flow_s = sim->net.next_s;
        if (isinf(arrival_s) && isinf(event_s) && isinf(flow_s))
            return 0;
        if (flow_s <= event_s && flow_s <= arrival_s) {
            sim->now_s = fmax(sim->now_s, flow_s);
            flow ended;
            while (network_take(&sim->net, sim->now_s, &ended))
                end_flow(sim, &ended);
        } else if (event_s <= arrival_s) {
            event one = take_event(sim);
            sim->now_s = one.time_s;
            handle(sim, &one);
        } else {
            sim->now_s = arrival_s;
            sim_arrive(sim, sim->arrived++);
        }
    }
    return 1;
}

/* ---- opening and closing ----------------------------------------------------------------------------- */

static bool is_sane(const cd_sim_config *config, const cd_trace *trace) {
    return config->prefill_instances >= 1 && config->prefill_instances <= 1024 &&
           config->decode_instances >= 1 && config->decode_instances <= 1024 &&
           (!config->is_coupled || (config->prefill_instances == config->decode_instances &&
                                    config->cost.group_nodes == 1)) &&
           config->block_tokens >= 1 && config->cost.group_nodes >= 1 &&
           config->cost.group_nodes <= 1024 && config->cost.chunk_tokens >= 1 &&
           config->cost.nic_bytes_per_s > 0 && config->fetch_weight > 0 &&
           config->replica_weight > 0 && config->layers >= 1 && config->speed > 0 &&
           config->decode.batch_max >= 1 && config->decode.capacity_tokens > 0 &&
           trace->distinct_blocks < NONE;
}

static bool open_requests(cd_sim *sim) {
    const cd_trace *trace = &sim->trace;
    uint32_t requests = trace->requests;
    sim->requests = calloc(requests + 1, sizeof *sim->requests);
    sim->columns = calloc((size_t)CD_COLUMNS * (requests + 1), sizeof *sim->columns);
    sim->flying = calloc(requests + 1, sizeof *sim->flying);
    sim->flights = calloc(requests + 1, sizeof *sim->flights);
    sim->parent = malloc((trace->distinct_blocks + 1) * sizeof *sim->parent);
    if (!sim->requests || !sim->columns || !sim->flying || !sim->flights || !sim->parent)
        return false;
    memset(sim->parent, 0xff, (trace->distinct_blocks + 1) * sizeof *sim->parent);
    sim->blocks_max = 1;
    sim->output_max = 1;
    for (uint32_t i = 0; i < requests; i++) {
        sim_request *request = &sim->requests[i];
        request->blocks = trace->blocks + trace->first_block[i];
        request->block_count = (uint32_t)(trace->first_block[i + 1] - trace->first_block[i]);
        request->tokens = trace->tokens[i];
        request->output = trace->output[i];
        request->waiters = request->fetch_waiters = NONE;
        request->truth = 1;
        if (sim->config.error_sigma >
            0) { /* the same for all policies: only the decisions differ */
            uint64_t state = sim->config.seed * UINT64_C(0x2545F4914F6CDD1D) + i + 1;
            double uniform[2];
            for (int k = 0; k < 2; k++) {
                state ^= state >> 33;
                state *= UINT64_C(0xFF51AFD7ED558CCD);
                state ^= state >> 29;
                uniform[k] = ((double)(state >> 11) + 1) * 0x1p-53;
            }
            double normal = sqrt(-2 * log(uniform[0])) * cos(6.283185307179586 * uniform[1]);
            request->truth = exp(sim->config.error_sigma * normal);
        }
        if (request->block_count > sim->blocks_max)
            sim->blocks_max = request->block_count;
        if (request->output > sim->output_max)
            sim->output_max = request->output;
        for (uint32_t k = 1; k < request->block_count; k++)
            sim->parent[request->blocks[k]] = request->blocks[k - 1];
        static const uint32_t unknown[] = {CD_TTFT,
                                           CD_TTFT_PREDICTED,
                                           CD_QUEUED,
                                           CD_PREFILL,
                                           CD_FETCH,
                                           CD_TBT,
                                           CD_TBT_MEAN,
                                           CD_END,
                                           CD_DECODE_WAIT,
                                           CD_TBT_PREDICTED,
                                           CD_PREFILL_INSTANCE,
                                           CD_DECODE_INSTANCE};
        for (size_t k = 0; k < sizeof unknown / sizeof *unknown; k++)
            sim_set(sim, i, unknown[k], NAN);
    }
    return true;
}

static bool open_nodes(cd_sim *sim) {
    const cd_sim_config *config = &sim->config;
    uint32_t prefill = config->prefill_instances, decode = config->decode_instances;
    sim->prefill = calloc(prefill, sizeof *sim->prefill);
    sim->decode = calloc(decode, sizeof *sim->decode);
    sim->prefill_views = calloc(prefill, sizeof *sim->prefill_views);
    sim->decode_views = calloc(decode, sizeof *sim->decode_views);
    sim->prefill_reports = calloc(prefill, sizeof *sim->prefill_reports);
    sim->decode_reports = calloc(decode, sizeof *sim->decode_reports);
    sim->matches = calloc(prefill, sizeof *sim->matches);
    sim->keys = calloc(sim->blocks_max, sizeof *sim->keys);
    sim->scratch = calloc(sim->output_max, sizeof *sim->scratch);
    if (!sim->prefill_reports || !sim->decode_reports)
        return false;
    if (!sim->prefill || !sim->decode || !sim->prefill_views || !sim->decode_views ||
        !sim->matches || !sim->keys || !sim->scratch || !network_open(&sim->net, prefill + decode))
        return false;
    for (uint32_t i = 0; i < prefill; i++) {
        prefill_node *node = &sim->prefill[i];
        cache_open(&node->cache, config->cache_blocks, config->eviction);
        node->stage_free_s = calloc(config->cost.group_nodes, sizeof *node->stage_free_s);
        node->queue = malloc((sim->trace.requests + 1) * sizeof *node->queue);
        sim->net.bandwidth[i] = config->cost.nic_bytes_per_s * config->cost.group_nodes;
        if (!node->stage_free_s || !node->queue)
            return false;
    }
    for (uint32_t i = 0; i < decode; i++)
        sim->net.bandwidth[prefill + i] = config->cost.nic_bytes_per_s;
    return true;
}

static bool open_learning(cd_sim *sim) {
    uint32_t blocks = sim->trace.distinct_blocks + 1;
    sim->output_counts = calloc(SURVIVAL_BINS, sizeof *sim->output_counts);
    sim->survival = calloc(SURVIVAL_BINS, sizeof *sim->survival);
    sim->heat = calloc(blocks, sizeof *sim->heat);
    sim->heat_s = calloc(blocks, sizeof *sim->heat_s);
    sim->touched = calloc(blocks, sizeof *sim->touched);
    sim->block_flags = calloc(blocks, sizeof *sim->block_flags);
    if (!sim->output_counts || !sim->survival || !sim->heat || !sim->heat_s || !sim->touched ||
        !sim->block_flags)
        return false;
    sim->mean_output = sim->config.output_initial;
    sim->mean_decode_s = sim->config.decode_s_initial;
    sim->mean_decode_square = sim->mean_decode_s * sim->mean_decode_s;
    /* Before anybody has finished: as if answers ended at a constant rate. */
    for (uint32_t i = 0; i < SURVIVAL_BINS; i++)
        sim->survival[i] = exp(-(double)i * SURVIVAL_BIN_TOKENS / fmax(1, sim->mean_output));
    return true;
}

/* The blocks that most requests have, the shallower first among equals. */
static bool open_top(cd_sim *sim) {
    const cd_trace *trace = &sim->trace;
    uint32_t *uses = calloc(trace->distinct_blocks + 1, sizeof *uses);
    sim->top = calloc(sim->config.top_keys + 1, sizeof *sim->top);
    if (!uses || !sim->top) {
        free(uses);
        return false;
    }
    for (uint64_t i = 0; i < trace->first_block[trace->requests]; i++)
        uses[trace->blocks[i]]++;
    /* Insertion into the few that are wanted: most blocks are used once and compare with the last of them only. */
    for (uint32_t block = 0; block < trace->distinct_blocks && sim->config.top_keys > 0; block++) {
        if (sim->top_count == sim->config.top_keys &&
            uses[block] <= uses[sim->top[sim->top_count - 1]])
            continue;
        uint32_t at = sim->top_count < sim->config.top_keys ? sim->top_count++ : sim->top_count - 1;
        for (; at > 0 && uses[block] > uses[sim->top[at - 1]]; at--)
            sim->top[at] = sim->top[at - 1];
        sim->top[at] = block;
    }
    free(uses);
    return true;
}

cd_sim *cd_sim_open(const cd_sim_config *config, const cd_trace *trace) {
    if (!is_sane(config, trace))
        return NULL;
    cd_sim *sim = calloc(1, sizeof *sim);
    if (sim == NULL)
        return NULL;
    sim->config = *config;
    sim->trace = *trace;
    sim->free_edge = NONE;
    sim->target_s = config->target.most * config->ttft_slo_s;
    sim->turn = config->seed; /* so that seeds differ also where nothing is drawn */
    sim->index = cd_index_open(config->prefill_instances, 1, trace->distinct_blocks + 1);
    if (sim->index == NULL || !open_requests(sim) || !open_nodes(sim) || !open_learning(sim) ||
        !open_top(sim)) {
        cd_sim_close(sim);
        return NULL;
    }
    if (config->sample_s > 0)
        sim_schedule(sim, 0, EVENT_SAMPLE, 0, 0);
    if (config->report_s > 0)
        sim_schedule(sim, 0, EVENT_REPORT, 0, 0);
    if (config->hotspot_interval_s > 0)
        sim_schedule(sim, config->hotspot_interval_s, EVENT_REPLICATE, 0, 0);
    return sim;
}

void cd_sim_close(cd_sim *sim) {
    if (sim == NULL)
        return;
    for (uint32_t i = 0; sim->prefill != NULL && i < sim->config.prefill_instances; i++) {
        cache_close(&sim->prefill[i].cache);
        free(sim->prefill[i].stage_free_s);
        free(sim->prefill[i].queue);
    }
    for (uint32_t i = 0; sim->decode != NULL && i < sim->config.decode_instances; i++)
        decode_close(&sim->decode[i]);
    network_close(&sim->net);
    sim_close_plan(sim);
    cd_index_close(sim->index);
    void *owned[] = {
        sim->events,  sim->requests, sim->edges,           sim->prefill,       sim->decode,
        sim->keys,    sim->matches,  sim->prefill_views,   sim->decode_views,  sim->flying,
        sim->flights, sim->columns,  sim->scratch,         sim->output_counts, sim->survival,
        sim->heat,    sim->heat_s,   sim->touched,         sim->block_flags,   sim->parent,
        sim->top,     sim->samples,  sim->prefill_reports, sim->decode_reports};
    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        free(owned[i]);
    free(sim);
}
