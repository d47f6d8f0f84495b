/* From hash to record: slots of one shard, eight to a cache line, probed one after the other.
 *
 * A slot has 32 bits of the hash, which also say where its search begins, so entries can be moved and the
 * table resized without looking at records.  At most 3/4 of the slots are used; a removal shifts back what
 * follows, so there are no tombstones and a miss ends at the first empty slot.
 */
#include "md_internal.h"

#include <assert.h>

#define SLOTS_MIN 64u

static void slot_insert(md_slot *slots, uint32_t slot_count, uint32_t tag, uint32_t record) {
    uint32_t at = tag & (slot_count - 1);
    while (slots[at].record != 0)
        at = (at + 1) & (slot_count - 1);
    slots[at] = (md_slot){.tag = tag, .record = record};
}

static uint32_t slots_for(uint32_t records) {
    uint64_t slot_count = SLOTS_MIN;
    while ((uint64_t)records * 4 > slot_count * 3)
        slot_count *= 2;
    return slot_count > 1u << 31 ? 0 : (uint32_t)slot_count;
}

bool md_index_reserve(md_shard *shard, uint32_t more) {
    uint32_t wanted = slots_for(shard->record_count + more);
    if (wanted <= shard->slot_count && wanted != 0)
        return true;
    md_slot *slots = wanted == 0 ? NULL : md_memory_map(wanted * sizeof(md_slot));
    if (slots == NULL)
        return false;
    for (uint32_t i = 0; i < shard->slot_count; i++)
        if (shard->slots[i].record != 0)
            slot_insert(slots, wanted, shard->slots[i].tag, shard->slots[i].record);
    md_memory_unmap(shard->slots, shard->slot_count * sizeof(md_slot));
    shard->slots = slots;
    shard->slot_count = wanted;
    return true;
}

void md_index_add(md_shard *shard, uint32_t record) {
    slot_insert(shard->slots, shard->slot_count, md_index_tag(md_record_at(shard, record)->hash),
                record);
}

void md_index_remove(md_shard *shard, uint32_t record) {
    uint32_t mask = shard->slot_count - 1;
    uint32_t at = md_index_tag(md_record_at(shard, record)->hash) & mask;
    while (shard->slots[at].record != record) {
        assert(shard->slots[at].record != 0);
        at = (at + 1) & mask;
    }
    for (uint32_t next = (at + 1) & mask; shard->slots[next].record != 0;
         next = (next + 1) & mask) {
        uint32_t home = shard->slots[next].tag & mask;
        if (((next - home) & mask) >= ((next - at) & mask)) {
            shard->slots[at] = shard->slots[next];
            at = next;
        }
    }
    shard->slots[at] = (md_slot){0};
}

bool md_index_rebuild(md_shard *shard, md_slot **slots, uint32_t *slot_count,
                      const md_record *records, uint32_t record_fresh, uint32_t count) {
    (void)shard;
    *slot_count = slots_for(count);
    *slots = md_memory_map(*slot_count * sizeof(md_slot));
    if (*slots == NULL)
        return false;
    for (uint32_t i = 0; i < record_fresh; i++)
        slot_insert(*slots, *slot_count, md_index_tag(records[i].hash), i + 1);
    return true;
}

void md_prefetch(const md_core *core, ms_hash hash) {
    const md_shard *shard = &core->shards[md_shard_of(hash)];
    if (shard->slot_count != 0)
        __builtin_prefetch(&shard->slots[md_index_tag(hash) & (shard->slot_count - 1)]);
}

void md_prefetch_objects(const md_core *core, const ms_hash *hashes, uint32_t count) {
    const md_record *records[MD_GROUP];
    assert(count <= MD_GROUP);
    for (uint32_t i = 0; i < count; i++)
        md_prefetch(core, hashes[i]);
    for (uint32_t i = 0; i < count; i++) {
        const md_shard *shard = &core->shards[md_shard_of(hashes[i])];
        records[i] = NULL;
        if (shard->record_count == 0)
            continue;
        uint32_t tag = md_index_tag(hashes[i]), mask = shard->slot_count - 1;
        for (uint32_t at = tag & mask; shard->slots[at].record != 0; at = (at + 1) & mask)
            if (shard->slots[at].tag == tag) {
                records[i] = &shard->records[shard->slots[at].record - 1];
                const char *record = (const char *)records[i];
                __builtin_prefetch(record, 1);
                __builtin_prefetch(record + sizeof(md_record) - 1,
                                   1); /* it may straddle two lines */
                break;
            }
    }
    for (uint32_t i = 0; i < count; i++)
        if (records[i] != NULL) {
            const md_shard *shard = &core->shards[md_shard_of(hashes[i])];
            const char *key = (const char *)shard->arena + records[i]->key;
            uint32_t newest = shard->lists[records[i]->list_class].newest;
            __builtin_prefetch(key);
            __builtin_prefetch(key + 64);
            if (newest != 0) /* behind which it is listed, or whose neighbour it was */
                __builtin_prefetch(&shard->records[newest - 1].newer, 1);
        }
}

void md_prefetch_put(const md_core *core, ms_hash hash) {
    const md_shard *shard = &core->shards[md_shard_of(hash)];
    md_prefetch(core, hash);
    if (shard->record_count == 0)
        return;
    uint32_t record = shard->record_free != 0 ? shard->record_free - 1 : shard->record_fresh;
    const char *at = (const char *)(shard->records + record);
    const char *key = (const char *)shard->arena + shard->arena_used;
    __builtin_prefetch(at, 1);
    __builtin_prefetch(at + 64, 1);
    __builtin_prefetch(key, 1);
    __builtin_prefetch(key + 64, 1);
}

static bool is_it(const md_record *record, ms_hash hash, md_record_state state) {
    return ms_hash_equal(record->hash, hash) && record->state == state;
}

uint32_t md_index_find(const md_shard *shard, ms_hash hash, md_record_state state) {
    if (shard->record_count == 0)
        return 0;
    uint32_t tag = md_index_tag(hash), mask = shard->slot_count - 1;
    for (uint32_t at = tag & mask;; at = (at + 1) & mask) {
        md_slot slot = shard->slots[at];
        if (slot.record == 0)
            return 0;
        if (slot.tag == tag && is_it(&shard->records[slot.record - 1], hash, state))
            return slot.record;
    }
}

void md_index_find_both(const md_shard *shard, ms_hash hash, uint32_t *complete,
                        uint32_t *writing) {
    *complete = *writing = 0;
    if (shard->record_count == 0)
        return;
    uint32_t tag = md_index_tag(hash), mask = shard->slot_count - 1;
    for (uint32_t at = tag & mask; shard->slots[at].record != 0; at = (at + 1) & mask) {
        if (shard->slots[at].tag != tag)
            continue;
        uint32_t number = shard->slots[at].record;
        const md_record *record = &shard->records[number - 1];
        if (ms_hash_equal(record->hash, hash))
            *(record->state == MD_RECORD_COMPLETE ? complete : writing) = number;
    }
}

/* A look-up misses the cache twice, at the slot and at the record.  In a group these misses overlap: all
 * slots are asked for, then all records, and only then is anything compared (25-30 % of a batch of 1024). */
void md_index_find_group(md_core *core, const ms_hash *hashes, uint32_t count, uint32_t *records) {
    uint32_t at[MD_GROUP];
    for (uint32_t i = 0; i < count; i++) {
        const md_shard *shard = &core->shards[md_shard_of(hashes[i])];
        at[i] = shard->slot_count == 0 ? 0 : md_index_tag(hashes[i]) & (shard->slot_count - 1);
        __builtin_prefetch(&shard->slots[at[i]]);
    }
    for (uint32_t i = 0; i < count; i++) {
        const md_shard *shard = &core->shards[md_shard_of(hashes[i])];
        uint32_t tag = md_index_tag(hashes[i]), mask = shard->slot_count - 1;
        records[i] = 0;
        if (shard->record_count == 0)
            continue;
        for (; shard->slots[at[i]].record != 0; at[i] = (at[i] + 1) & mask)
            if (shard->slots[at[i]].tag == tag) {
                records[i] = shard->slots[at[i]].record;
                const char *record = (const char *)&shard->records[records[i] - 1];
                __builtin_prefetch(record);
                __builtin_prefetch(record + sizeof(md_record) - 1); /* it may straddle two lines */
                break;
            }
    }
    for (uint32_t i = 0; i < count; i++) {
        const md_shard *shard = &core->shards[md_shard_of(hashes[i])];
        /* Seldom: another object with the same tag, or the one that is being written, came first. */
        if (records[i] != 0 &&
            !is_it(&shard->records[records[i] - 1], hashes[i], MD_RECORD_COMPLETE))
            records[i] = md_index_find(shard, hashes[i], MD_RECORD_COMPLETE);
    }
}
