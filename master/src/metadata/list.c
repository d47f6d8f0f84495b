/* Objects of a tenant, in steps.
 *
 * A cursor names a shard, the generation of its record numbers and the next number.  Numbers stay while a
 * generation lasts; when a shard has been rebuilt in between, it is begun again, so what exists throughout is
 * seen at least once.
 */
#include "md_internal.h"

static uint64_t cursor_make(uint32_t shard, uint32_t generation, uint32_t number) {
    return (uint64_t)(shard + 1) << 48 | (uint64_t)(generation & 0xffff) << 32 | number;
}

static uint64_t ttl_left(md_core *core, md_shard *shard, md_record *record) {
    int64_t expiry = md_record_expiry(shard, record);
    return expiry == MD_NEVER          ? 0
           : expiry > core->now.now_ms ? (uint64_t)(expiry - core->now.now_ms)
                                       : 1;
}

static void write_item(md_core *core, md_shard *shard, md_record *record, ms_writer *out) {
    md_replica_set set;
    md_record_replicas(shard, record, &set);
    ms_list_item item = {.size = record->size,
                         .version = record->version,
                         .key_length = record->key_length,
                         .replica_count = (uint16_t)set.count,
                         .flags = record->flags & MD_OBJECT_FLAGS,
                         .pinned = (record->flags & MD_IS_PINNED) != 0,
                         .ttl_ms = ttl_left(core, shard, record)};
    MS_WRITER_STRUCT(out, &item);
    ms_writer_padded(out, md_record_key(shard, record), record->key_length);
}

ms_status md_list(md_core *core, md_now now, uint32_t tenant,
                  bool (*match)(void *context, const uint8_t *key, size_t length), void *context,
                  uint64_t *cursor, uint32_t limit, uint32_t visit_max, uint32_t *count,
                  ms_writer *out) {
    md_set_now(core, now);
    uint32_t shard_number = *cursor == 0 ? 0 : (uint32_t)(*cursor >> 48) - 1,
             number = (uint32_t)*cursor;
    *count = 0;
    if (shard_number >= MD_SHARDS)
        return MS_BAD_REQUEST;
    if (*cursor != 0 &&
        (core->shards[shard_number].generation & 0xffff) != (*cursor >> 32 & 0xffff))
        number = 0;
    while (shard_number < MD_SHARDS) {
        md_shard *shard = &core->shards[shard_number];
        for (; number < shard->record_fresh; number++) {
            if (*count == limit || visit_max-- == 0) {
                *cursor = cursor_make(shard_number, shard->generation, number);
                return out->status;
            }
            md_record *record = md_record_at(shard, number + 1);
            if (record->state != MD_RECORD_COMPLETE || md_record_tenant(shard, record) != tenant ||
                !md_object_is_current(core, shard, record) ||
                (match != NULL &&
                 !match(context, md_record_key(shard, record), record->key_length)))
                continue;
            write_item(core, shard, record, out);
            (*count)++;
        }
        shard_number++;
        number = 0;
    }
    *cursor = 0;
    return out->status;
}

ms_status md_stat(md_core *core, md_now now, uint32_t tenant, ms_hash hash, const uint8_t *key,
                  size_t key_length, ms_writer *out) {
    md_set_now(core, now);
    md_shard *shard = &core->shards[md_shard_of(hash)];
    uint32_t number = md_object_find(core, hash);
    if (number == 0)
        return MS_NOT_FOUND;
    md_record *record = md_record_at(shard, number);
    if (md_record_tenant(shard, record) != tenant ||
        !md_record_has_key(shard, record, key, key_length))
        return MS_BAD_REQUEST;
    const md_extra *extra = md_record_extra(shard, record);
    const md_hold *hold = md_hold_find(core, hash);
    uint32_t time = md_coarse_time(core);
    ms_stat stat = {.age_ms = (uint64_t)(time - record->stored_at) * 64,
                    .idle_ms = (uint64_t)(time - record->used_at) * 64,
                    .ttl_ms = ttl_left(core, shard, record),
                    .pin_count = hold == NULL ? 0 : hold->pin_count,
                    .use_count = record->use_count,
                    .group = extra == NULL ? 0 : extra->group,
                    .parent = extra == NULL ? (ms_hash){0} : extra->parent};
    MS_WRITER_STRUCT(out, &stat);
    md_write_location(core, shard, record, core->config.location_lifetime_ms, false, out);
    return out->status;
}
