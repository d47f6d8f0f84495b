/* length_aware: as lfu, but among objects used about equally often those deep in a chain of parents leave first:
 * the end of a long request is worth less than a beginning that many requests share.
 *
 * (LengthAwareCache of the Mooncake paper, arXiv:2407.00079, section 6: "similar to LFU, but with priority for
 * cache blocks occurring later in requests"; read as priority to leave.)
 */
#include "md_internal.h"

static uint32_t log2_up_to_7(uint32_t value) {
    uint32_t log = 31u - (uint32_t)__builtin_clz(value | 1);
    return log < 7 ? log : 7;
}

static uint8_t classify(const md_record *record) {
    uint32_t uses = log2_up_to_7(record->use_count + (record->use_count != UINT32_MAX));
    uint32_t depth = log2_up_to_7(record->depth + 1u);
    uint32_t class = uses * 8 + 7 - depth;
    return (uint8_t)(class < MD_CLASS_SOFT ? class : MD_CLASS_SOFT - 1);
}

const md_policy_table md_policy_length_aware = {
    .classify = classify, .moves_on_use = true, .pick = md_evict_pick_oldest};
