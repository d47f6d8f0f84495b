/* How objects ended: a ring of fixed size, so that "where is it?" has an answer when it is nowhere.
 *
 * The ring of events tells followers what happens, in order, with keys; this one tells of one key why, and for whose
 * sake.  An entry is one cache line that an eviction fills; nobody pays for finding it but who asks, by a search
 * from the newest on.
 */
#include "md_internal.h"

#include <string.h>

bool md_fates_open(md_core *core) {
    md_fates_ring *ring = &core->fates;
    ring->capacity = core->config.fates_max;
    if (ring->capacity == 0)
        return true;
    ring->entries = md_memory_map(ring->capacity * sizeof *ring->entries);
    return ring->entries != NULL;
}

void md_fates_close(md_core *core) {
    md_memory_unmap(core->fates.entries, core->fates.capacity * sizeof *core->fates.entries);
}

void md_fate(md_core *core, ms_hash hash, uint64_t version, uint64_t size, uint32_t server_plus_1,
             md_cause cause) {
    md_fates_ring *ring = &core->fates;
    if (ring->capacity == 0 || cause.kind == 0)
        return;
    ring->entries[ring->next++ % ring->capacity] =
        (md_fate_entry){.hash = hash,
                        .version = version,
                        .size = size,
                        .session = cause.session,
                        .bytes = cause.bytes,
                        .at_ms = core->now.now_ms,
                        .kind = (uint16_t)cause.kind,
                        .server = (uint16_t)server_plus_1};
}

static void find_fates(const md_core *core, ms_hash hash, md_explanation *out) {
    const md_fates_ring *ring = &core->fates;
    uint64_t kept = ring->next < ring->capacity ? ring->next : ring->capacity;
    for (uint64_t back = 1; back <= kept && out->head.fate_count < MS_FATES_MAX; back++) {
        const md_fate_entry *entry = &ring->entries[(ring->next - back) % ring->capacity];
        if (!ms_hash_equal(entry->hash, hash))
            continue;
        out->fates[out->head.fate_count++] =
            (ms_fate){.version = entry->version,
                      .size = entry->size,
                      .age_ms = (uint64_t)(core->now.now_ms - entry->at_ms),
                      .session = entry->session,
                      .bytes_wanted = entry->bytes,
                      .kind = entry->kind,
                      .server = entry->server};
    }
    /* Before the ring is full it reaches back to the beginning. */
    out->head.history_ms =
        ring->capacity == 0 ? 0
        : ring->next <= ring->capacity
            ? out->head.leading_ms
            : (uint64_t)(core->now.now_ms - ring->entries[ring->next % ring->capacity].at_ms);
}

static void find_put(md_core *core, ms_hash hash, ms_explain *head) {
    md_shard *shard = &core->shards[md_shard_of(hash)];
    uint32_t writing = md_index_find(shard, hash, MD_RECORD_WRITING);
    if (writing == 0)
        return;
    const md_record *record = md_record_at(shard, writing);
    const md_put *put = md_pool_at(&core->puts, record->newer);
    int64_t left_ms = put->deadline_ms - core->now.now_ms;
    head->put_version = put->version;
    head->put_size = record->size;
    head->put_session = ((const md_session *)md_pool_at(&core->sessions, put->session))->id;
    head->put_deadline_ms = left_ms > 0 ? (uint32_t)left_ms : 0;
    head->flags |= MS_EXPLAIN_PUTTING | (put->version == 0 ? (uint32_t)MS_EXPLAIN_PARKED : 0);
}

ms_status md_explain(md_core *core, md_now now, uint32_t tenant, ms_hash hash, const uint8_t *key,
                     size_t key_length, md_explanation *out) {
    md_set_now(core, now);
    if (!ms_key_valid((const char *)key, key_length))
        return MS_BAD_KEY;
    /* Of what has ended only the hash is left: it has to be that of a key of this tenant. */
    const char *name = core->tenants[tenant];
    if (!ms_hash_equal(
            hash, ms_hash_key(core->config.secret, name + 1, (size_t)name[0], key, key_length)))
        return MS_BAD_REQUEST;
    *out = (md_explanation){
        .head = {.leading_ms = (uint64_t)(core->now.now_ms - core->started_ms),
                 .policy = (uint32_t)core->config.policy,
                 .flags = md_object_find(core, hash) == 0 ? 0 : (uint32_t)MS_EXPLAIN_STORED}};
    const md_hold *hold = md_hold_find(core, hash);
    out->head.child_count = hold == NULL ? 0 : hold->children;
    find_put(core, hash, &out->head);
    find_fates(core, hash, out);
    return MS_OK;
}
