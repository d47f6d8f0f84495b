/* lru: who was used longest ago leaves first. */
#include "md_internal.h"

static uint8_t classify(const md_record *record) {
    (void)record;
    return 0;
}

const md_policy_table md_policy_lru = {
    .classify = classify, .moves_on_use = true, .pick = md_evict_pick_oldest};
