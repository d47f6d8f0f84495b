/* Hot blocks are copied to more instances before somebody has to wait for the one that holds them. */
#include <math.h>

#include "sim.h"

#define HEAT_WINDOW_S 60.0
enum { TOUCHED = 1, UNDER_WAY = 2 };

static double heat_now(const cd_sim *sim, uint32_t block) {
    return (double)sim->heat[block] * exp((sim->heat_s[block] - sim->now_s) / HEAT_WINDOW_S);
}

void sim_heat(cd_sim *sim, uint32_t block) {
    if (sim->config.hotspot_interval_s <= 0)
        return;
    sim->heat[block] = (float)(heat_now(sim, block) + 1 / HEAT_WINDOW_S);
    sim->heat_s[block] = sim->now_s;
    if (!(sim->block_flags[block] & TOUCHED)) {
        sim->block_flags[block] |= TOUCHED;
        sim->touched[sim->touched_count++] = block;
    }
}

static bool holds(const cd_sim *sim, uint32_t instance, uint32_t block) {
    uint32_t entry = cache_find(&sim->prefill[instance].cache, block);
    return entry != NO_ENTRY && sim->prefill[instance].cache.entries[entry].producer == NO_REQUEST;
}

/* One more replica of a block, from the holder with the least to send to the idlest instance that has the block before
 * it: without that one it would be of no use there.  False: there are enough, or no way. */
static bool copy_once(cd_sim *sim, uint32_t block, double block_bytes) {
    uint32_t instances = sim->config.prefill_instances, replicas = 0, source = NONE, target = NONE;
    for (uint32_t i = 0; i < instances; i++) {
        if (cache_find(&sim->prefill[i].cache, block) != NO_ENTRY) {
            replicas++;
            if (holds(sim, i, block) &&
                (source == NONE || sim->net.egress_bytes[i] < sim->net.egress_bytes[source]))
                source = i;
        } else if ((sim->parent[block] == NONE || holds(sim, i, sim->parent[block])) &&
                   (target == NONE || sim_queue_s(sim, i) < sim_queue_s(sim, target))) {
            target = i;
        }
    }
    uint32_t wanted =
        cd_wanted_replicas(heat_now(sim, block), block_bytes, sim->config.believed.nic_bytes_per_s,
                           sim->config.hotspot_share, instances);
    if (replicas >= wanted || source == NONE || target == NONE)
        return false;
    cache_pin(&sim->prefill[source].cache, cache_find(&sim->prefill[source].cache, block));
    sim->block_flags[block] |= UNDER_WAY;
    sim->replicated_bytes += block_bytes;
    sim_flow(sim, FLOW_REPLICA, block, source, target, block_bytes);
    return true;
}

void sim_replicate(cd_sim *sim) {
    double block_bytes = sim->config.block_tokens * sim->config.cost.kv_bytes_per_token;
    double budget = sim->config.hotspot_bytes_per_s * sim->config.hotspot_interval_s;
    uint32_t left = 0; /* who may want one more replica, the next time */
    for (uint32_t i = 0; i < sim->touched_count; i++) {
        uint32_t block = sim->touched[i];
        bool is_open = sim->block_flags[block] & UNDER_WAY || budget < block_bytes;
        if (!is_open && copy_once(sim, block, block_bytes)) {
            budget -= block_bytes;
            is_open = true;
        }
        if (is_open)
            sim->touched[left++] = block;
        else
            sim->block_flags[block] &= (uint8_t)~TOUCHED;
    }
    sim->touched_count = left;
}

void sim_end_replica(cd_sim *sim, uint32_t block, uint32_t source, uint32_t target) {
    block_cache *from = &sim->prefill[source].cache, *to = &sim->prefill[target].cache;
    uint32_t held = cache_find(from, block);
    uint32_t position = from->entries[held].position, uses = from->entries[held].uses;
    uint64_t used = from->entries[held].used;
    cache_unpin(from, held);
    sim->block_flags[block] &= (uint8_t)~UNDER_WAY;
    if (cache_find(to, block) != NO_ENTRY)
        return; /* a request has brought it meanwhile */
    uint32_t evicted, entry = cache_insert(to, block, position, &evicted);
    if (evicted != NONE) {
        cd_key gone = {.low = evicted};
        cd_index_remove(sim->index, target, 0, &gone, 1);
        sim->evicted_blocks++;
    }
    if (entry == NO_ENTRY)
        return;
    cd_key key = {.low = block};
    cd_index_store(sim->index, target, 0, &key, 1);
    to->entries[entry].uses = uses;
    to->entries[entry].used = used;
    cache_unpin(to, entry);
}
