/* sieve: a queue in the order of storing and a hand that walks over it; who was used since the hand last came by
 * is spared once (Zhang et al., "SIEVE is simpler than LRU", NSDI 2024).
 *
 * Every shard has a hand, and the one that stands at the oldest object goes next; a hand that has come to the
 * end waits there until all have, and then all begin again.  So they visit the objects of the whole store
 * in the order in which one hand over one queue would.
 */
#include "md_internal.h"

static uint8_t classify(const md_record *record) {
    (void)record;
    return 0;
}

static bool pick(md_core *core, uint32_t *shard_number, uint32_t *record) {
    /* Each round clears one mark or begins a new walk over unmarked objects, so it ends. */
    while (md_evict_pick_oldest(core, shard_number, record)) {
        md_shard *shard = &core->shards[*shard_number];
        if (shard->hand == MD_HAND_AT_END) {
            core->hand_tick = 0;
            for (uint32_t i = 0; i < MD_SHARDS; i++) {
                core->shards[i].hand = 0;
                md_evict_rank(core, i);
            }
            continue;
        }
        if (shard->hand == 0)
            shard->hand = shard->lists[0].oldest;
        *record = shard->hand;
        md_record *at = md_record_at(shard, *record);
        core->hand_tick = at->last_tick;
        if (!(at->flags & MD_IS_VISITED))
            return true;
        at->flags = (uint8_t)(at->flags & ~MD_IS_VISITED);
        shard->hand = at->newer != 0 ? at->newer : MD_HAND_AT_END;
        md_evict_rank(core, *shard_number);
    }
    return false;
}

const md_policy_table md_policy_sieve = {.classify = classify, .moves_on_use = false, .pick = pick};
