/* lfu: who was used least often leaves first; among equals, who was used longest ago.
 *
 * Counts up to 31 have a class each, above that eight classes an octave: 31 uses and 32 are told apart, 1000
 * and 1010 are not.
 */
#include "md_internal.h"

static uint8_t classify(const md_record *record) {
    uint32_t count = record->use_count;
    if (count < 32)
        return (uint8_t)count;
    uint32_t octave = 31u - (uint32_t)__builtin_clz(count);
    uint32_t class = 32 + (octave - 5) * 8 + (count >> (octave - 3) & 7);
    return (uint8_t)(class < MD_CLASS_SOFT ? class : MD_CLASS_SOFT - 1);
}

const md_policy_table md_policy_lfu = {
    .classify = classify, .moves_on_use = true, .pick = md_evict_pick_oldest};
