/* The calls that clients make most: exists, lookup, match_prefix, touch.  By hash only, in groups. */
#include "md_internal.h"

static uint32_t group_size(size_t left) { return left < MD_GROUP ? (uint32_t)left : MD_GROUP; }

/* What a group found may have expired, or been lost with its server: then it departs, and records move. */
static uint32_t still_there(md_core *core, ms_hash hash, uint32_t record) {
    if (record == 0)
        return 0;
    md_shard *shard = &core->shards[md_shard_of(hash)];
    const md_record *at = md_record_at(shard, record);
    if (!(at->flags & MD_HAS_EXPIRY) && core->lost_count == 0)
        return record;
    return md_object_find(core, hash);
}

/* Records of a group that all count.  Departures are done first, because they may move the others. */
static void find_group(md_core *core, const ms_hash *hashes, uint32_t count, uint32_t *records) {
    md_index_find_group(core, hashes, count, records);
    bool moved = false;
    for (uint32_t i = 0; i < count; i++) {
        if (records[i] == 0)
            continue;
        uint64_t objects = MD_COUNT(core, objects);
        records[i] = still_there(core, hashes[i],
                                 moved ? md_index_find(&core->shards[md_shard_of(hashes[i])],
                                                       hashes[i], MD_RECORD_COMPLETE)
                                       : records[i]);
        moved |= MD_COUNT(core, objects) != objects;
    }
    if (moved)
        for (uint32_t i = 0; i < count; i++)
            records[i] =
                md_index_find(&core->shards[md_shard_of(hashes[i])], hashes[i], MD_RECORD_COMPLETE);
}

void md_exists(md_core *core, md_now now, const ms_hash *hashes, size_t count, uint8_t *there) {
    md_set_now(core, now);
    uint32_t records[MD_GROUP];
    uint64_t hits = 0;
    for (size_t start = 0; start < count; start += MD_GROUP) {
        uint32_t size = group_size(count - start);
        find_group(core, hashes + start, size, records);
        for (uint32_t i = 0; i < size; i++)
            hits += there[start + i] = records[i] != 0;
    }
    MD_COUNT(core, exists_keys) += count;
    MD_COUNT(core, exists_hits) += hits;
}

/* Uses count from the last key to the first: of a prefix that is asked for at once the deepest block is then
 * the oldest, and leaves before the blocks that lead to it. */
static void use_group(md_core *core, const ms_hash *hashes, uint32_t count,
                      const uint32_t *records) {
    for (uint32_t i = count; i-- > 0;)
        if (records[i] != 0)
            md_object_used(core, md_shard_of(hashes[i]), records[i]);
}

static void use_all(md_core *core, const ms_hash *hashes, size_t count) {
    uint32_t records[MD_GROUP];
    size_t end = count;
    while (end > 0) {
        size_t start = (end - 1) / MD_GROUP * MD_GROUP;
        find_group(core, hashes + start, (uint32_t)(end - start), records);
        use_group(core, hashes + start, (uint32_t)(end - start), records);
        end = start;
    }
}

static ms_status look_up(md_core *core, md_now now, const ms_hash *hashes, size_t count,
                         bool is_use, ms_writer *out) {
    md_set_now(core, now);
    uint32_t records[MD_GROUP];
    uint64_t hits = 0;
    ms_writer_list(out, (uint32_t)count);
    for (size_t start = 0; start < count; start += MD_GROUP) {
        uint32_t size = group_size(count - start);
        find_group(core, hashes + start, size, records);
        for (uint32_t i = 0; i < size; i++) {
            if (records[i] == 0) {
                ms_writer_no_location(out, MS_NOT_FOUND);
                continue;
            }
            md_shard *shard = &core->shards[md_shard_of(hashes[start + i])];
            md_write_location(core, shard, md_record_at(shard, records[i]),
                              core->config.location_lifetime_ms, false, out);
            hits++;
        }
        if (is_use && count <= MD_GROUP)
            use_group(core, hashes, size, records);
    }
    if (!is_use)
        return out->status;
    if (count > MD_GROUP)
        use_all(core, hashes, count);
    MD_COUNT(core, lookup_keys) += count;
    MD_COUNT(core, lookup_hits) += hits;
    return out->status;
}

ms_status md_lookup(md_core *core, md_now now, const ms_hash *hashes, size_t count,
                    ms_writer *out) {
    return look_up(core, now, hashes, count, true, out);
}

ms_status md_peek(md_core *core, md_now now, const ms_hash *hashes, size_t count, ms_writer *out) {
    return look_up(core, now, hashes, count, false, out);
}

ms_status md_match_prefix(md_core *core, md_now now, uint64_t session, const ms_match *match,
                          const ms_hash *hashes, ms_writer *out) {
    md_set_now(core, now);
    uint32_t number = 0;
    if (match->pin && md_session_find(core, session, &number) == NULL)
        return MS_SESSION_LOST;
    uint32_t records[MD_GROUP], matched = 0;
    bool ended = false;
    size_t head = out->length;
    ms_writer_list(out, 0);
    for (uint32_t start = 0; start < match->count && !ended; start += MD_GROUP) {
        uint32_t size = group_size(match->count - start);
        find_group(core, hashes + start, size, records);
        for (uint32_t i = 0; i < size && !ended; i++) {
            ended = records[i] == 0;
            /* A block that cannot be pinned ends the prefix: what is answered is what is held. */
            if (!ended && match->pin)
                ended =
                    md_pin_key(core, number, hashes[start + i], match->pin_deadline_ms) != MS_OK;
            if (ended)
                break;
            md_shard *shard = &core->shards[md_shard_of(hashes[start + i])];
            md_write_location(core, shard, md_record_at(shard, records[i]),
                              core->config.location_lifetime_ms, false, out);
            matched++;
        }
    }
    ms_writer_set_u32(out, head, matched);
    use_all(core, hashes, matched);
    MD_COUNT(core, lookup_keys) += match->count;
    MD_COUNT(core, lookup_hits) += matched;
    return out->status;
}

void md_touch(md_core *core, md_now now, const ms_hash *hashes, size_t count) {
    md_set_now(core, now);
    use_all(core, hashes, count);
}
