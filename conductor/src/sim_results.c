/* What a simulation tells: samples while it runs, columns at its end. */
#include <math.h>
#include <string.h>

#include "sim.h"

uint32_t cd_sim_sample_width(const cd_sim *sim) {
    return 2 + sim->config.prefill_instances + sim->config.decode_instances + sim->top_count;
}

/* The largest predicted TTFT of those on the instance, over the SLO. */
static double prefill_load(const cd_sim *sim, uint32_t instance) {
    const prefill_node *node = &sim->prefill[instance];
    double longest_s = node->running > 0 ? fmax(0, node->predicted_free_s - sim->now_s) : 0;
    for (uint32_t i = 0; i < node->queue_count; i++) {
        double ttft_s =
            sim->columns[(size_t)CD_TTFT_PREDICTED * sim->trace.requests + node->queue[i]];
        longest_s = fmax(longest_s, ttft_s);
    }
    return longest_s / sim->config.ttft_slo_s;
}

void sim_sample(cd_sim *sim) {
    uint32_t width = cd_sim_sample_width(sim);
    if (sim->sample_count == sim->sample_capacity) {
        size_t more = sim->sample_capacity == 0 ? 128 : sim->sample_capacity * 2;
        double *samples = realloc(sim->samples, more * width * sizeof *samples);
        if (samples == NULL) {
            sim->is_out_of_memory = true;
            return;
        }
        sim->samples = samples;
        sim->sample_capacity = more;
    }
    double *row = sim->samples + sim->sample_count++ * width;
    *row++ = sim->now_s;
    for (uint32_t i = 0; i < sim->config.prefill_instances; i++)
        *row++ = prefill_load(sim, i);
    for (uint32_t i = 0; i < sim->config.decode_instances; i++) {
        const decode_node *node = &sim->decode[i];
        *row++ = node->count == 0
                     ? 0
                     : cd_decode_load(&sim->config.cost, &sim->config.decode, node->count,
                                      node->context_tokens, node->reserved_tokens);
    }
    network_advance(&sim->net, sim->now_s);
    double egress = 0;
    for (uint32_t i = 0; i < sim->config.prefill_instances; i++)
        egress += sim->net.egress_bytes[i];
    *row++ = egress;
    uint64_t words[16];
    for (uint32_t i = 0; i < sim->top_count; i++)
        *row++ = cd_index_holders(sim->index, (cd_key){.low = sim->top[i]}, words);
}

uint32_t cd_sim_arrived(const cd_sim *sim) { return sim->arrived; }
double cd_sim_now_s(const cd_sim *sim) { return sim->now_s; }
const double *cd_sim_column(const cd_sim *sim, uint32_t column) {
    return column < CD_COLUMNS ? sim->columns + (size_t)column * sim->trace.requests : NULL;
}
size_t cd_sim_samples(const cd_sim *sim, const double **rows) {
    *rows = sim->samples;
    return sim->sample_count;
}
double cd_sim_replicated_bytes(const cd_sim *sim) { return sim->replicated_bytes; }
uint64_t cd_sim_evicted_blocks(const cd_sim *sim) { return sim->evicted_blocks; }
double cd_sim_busy_s(const cd_sim *sim) { return sim->busy_s; }
