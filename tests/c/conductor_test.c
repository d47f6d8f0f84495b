/* The simulator and the prefix index under the sanitizers: random traces in every combination of policies, and an
 * index that is always full. */
// sources: conductor/src/*.c
// variants: plain address
// timeout: 120
// flags: -lm
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cd_index.h"
#include "cd_sim.h"

#define REQUESTS 300
#define BLOCKS_MAX 40

static uint64_t state = 1;

static uint32_t draw(uint32_t below) {
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(state >> 33) % below;
}

static double arrival_s[REQUESTS];
static uint32_t tokens[REQUESTS], output[REQUESTS], blocks[REQUESTS * BLOCKS_MAX];
static uint64_t first_block[REQUESTS + 1];

/* Conversations: each request has a prefix of an earlier one's blocks, and new ones behind it. */
static cd_trace make_trace(void) {
    uint32_t distinct = 0;
    double now = 0;
    for (uint32_t i = 0; i < REQUESTS; i++) {
        uint32_t count = draw(BLOCKS_MAX), kept = 0;
        uint32_t *mine = blocks + first_block[i];
        if (i > 0) {
            uint32_t other = draw(i);
            kept = (uint32_t)(first_block[other + 1] - first_block[other]);
            kept = kept < count ? kept : count;
            memmove(mine, blocks + first_block[other], kept * sizeof *mine);
        }
        for (uint32_t k = kept; k < count; k++)
            mine[k] = distinct++;
        first_block[i + 1] = first_block[i] + count;
        tokens[i] = count * 512 + 1 + draw(511);
        output[i] = 1 + draw(200);
        now += draw(3) == 0 ? draw(1000) / 1000.0 : 0;
        arrival_s[i] = now;
    }
    return (cd_trace){.requests = REQUESTS,
                      .arrival_s = arrival_s,
                      .tokens = tokens,
                      .output = output,
                      .first_block = first_block,
                      .blocks = blocks,
                      .distinct_blocks = distinct};
}

static cd_sim_config make_config(void) {
    cd_sim_config config = {
        .prefill_instances = 1 + draw(5),
        .decode_instances = 1 + draw(3),
        .block_tokens = 512,
        .cache_blocks = draw(3) == 0 ? 0 : 5 + draw(200),
        .eviction = draw(4),
        .error_sigma = draw(2) * 0.3,
        .loading = draw(3),
        .layers = 80,
        .load_bytes_per_s = 128e9,
        .store_bytes_per_s = 48e9,
        .hop_bytes_per_token = 16384,
        .order = draw(3),
        .target = {.most = 0.6, .miss_share = 0.01, .gain = 0.1},
        .counts_running = draw(2),
        .pins_queued = draw(2),
        .keeps_fetched = draw(2),
        .touches_source = draw(2),
        .admission = draw(6),
        .threshold = 1,
        .margin = draw(2),
        .checks_again = draw(2),
        .is_coupled = false,
        .is_length_neutral = draw(2),
        .report_s = draw(3) ? 0 : 1 + draw(5),
        .counts_decided = draw(2),
        .ttft_slo_s = 10,
        .decode = {.tbt_slo_s = 0.1,
                   .capacity_tokens = 50000 + draw(1000000),
                   .batch_max = 1 + draw(20)},
        .decode_s_initial = 10,
        .output_initial = 100,
        .decode_patience_s = draw(3),
        .fetch_weight = 1 + draw(8),
        .replica_weight = draw(2) ? 1 : 0.125,
        .hotspot_interval_s = draw(2) * 0.5,
        .hotspot_share = 0.0001,
        .hotspot_bytes_per_s = 1e10,
        .speed = 1,
        .seed = draw(1000),
        .sample_s = draw(2) * 1.0,
        .top_keys = draw(10),
    };
    config.cost = (cd_cost){.prefill_token_s = 1.15e-4,
                            .prefill_pair_s = 7.33e-10,
                            .decode_base_s = 0.027,
                            .decode_token_s = 4e-8,
                            .kv_bytes_per_token = 327680,
                            .nic_bytes_per_s = draw(2) ? 1e9 : 1e11,
                            .transfer_latency_s = draw(2) * 0.001,
                            .group_nodes = 1 + draw(3),
                            .chunk_tokens = 2048,
                            .is_balanced = draw(2)};
    if (draw(4) == 0) {
        config.is_coupled = true;
        config.decode_instances = config.prefill_instances;
        config.cost.group_nodes = 1;
    }
    config.believed = config.cost;
    config.selection = (cd_selection){.rule = draw(6),
                                      .balancing_threshold = 1 + draw(3),
                                      .compares_costs = draw(2),
                                      .overlaps = draw(2),
                                      .holder_ties = draw(3)};
    config.tie_order = draw(3);
    config.pool = draw(4);
    config.averages_prefill = draw(2);
    config.believed.forgets_queued = draw(2);
    return config;
}

static void test_everybody_ends(uint32_t runs) {
    for (uint32_t seed = 1; seed <= runs; seed++) {
        state = seed;
        cd_trace trace = make_trace();
        cd_sim_config config = make_config();
        cd_sim *sim = cd_sim_open(&config, &trace);
        assert(sim != NULL);
        int more = 1;
        for (int steps = 0; more > 0 && steps < 1000; steps++)
            more = cd_sim_step(sim, 1000);
        const double *ended = cd_sim_column(sim, CD_STATE),
                     *used = cd_sim_column(sim, CD_PREFIX_TOKENS);
        for (uint32_t i = 0; i < REQUESTS; i++)
            if (more != 0 || ended[i] < CD_FINISHED || used[i] >= tokens[i]) {
                fprintf(stderr, "seed %u: request %u is in state %g\n", seed, i, ended[i]);
                abort();
            }
        cd_sim_close(sim);
    }
}

static void test_a_full_index_stays_whole(void) {
    cd_index *index = cd_index_open(70, 3, 50);
    cd_match matches[70];
    cd_key keys[8];
    state = 7;
    for (int round = 0; round < 60000; round++) {
        uint32_t instance = draw(70), tier = draw(3);
        for (int i = 0; i < 8; i++)
            keys[i] = (cd_key){.low = draw(120)};
        switch (draw(40)) {
        case 0:
            cd_index_clear(index, instance);
            break;
        case 1:
            cd_index_match(index, keys, 8, matches);
            break;
        default:
            if (draw(3) == 0)
                cd_index_remove(index, instance, tier, keys, 8);
            else
                cd_index_store(index, instance, tier, keys, 8);
        }
        assert(cd_index_blocks(index) <= 50);
    }
    for (uint32_t instance = 0; instance < 70; instance++)
        cd_index_clear(index, instance);
    assert(cd_index_blocks(index) == 0);
    cd_index_close(index);
}

int main(void) {
    test_everybody_ends(150);
    test_a_full_index_stays_whole();
    return 0;
}
