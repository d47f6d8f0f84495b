/* What happens to objects: they appear, are used, and depart. */
#include "md_internal.h"

#include <assert.h>
#include <string.h>

uint32_t md_record_tenant(md_shard *shard, md_record *record) {
    const md_extra *extra = md_record_extra(shard, record);
    return extra == NULL ? 0 : extra->tenant;
}

int64_t md_record_expiry(md_shard *shard, md_record *record) {
    return record->flags & MD_HAS_EXPIRY ? md_record_extra(shard, record)->expires_at_ms : MD_NEVER;
}

bool md_record_has_key(const md_shard *shard, const md_record *record, const uint8_t *key,
                       size_t length) {
    return record->key_length == length && memcmp(md_record_key(shard, record), key, length) == 0;
}

uint32_t md_record_extent_count(const md_shard *shard, const md_record *record) {
    md_replica_set set;
    md_record_replicas(shard, record, &set);
    uint32_t count = 0;
    for (uint32_t i = 0; i < set.count; i++)
        count += set.replicas[i].extent_count;
    return count;
}

static bool replica_counts(const md_core *core, const md_replica *replica) {
    return replica->state == MD_REPLICA_THERE && !core->servers[replica->server].is_lost;
}

bool md_object_is_current(md_core *core, md_shard *shard, const md_record *record) {
    if (record->flags & MD_HAS_EXPIRY &&
        shard->extras[record->extra - 1].expires_at_ms <= core->now.now_ms)
        return false;
    if (core->lost_count == 0)
        return true;
    md_replica_set set;
    md_record_replicas(shard, record, &set);
    for (uint32_t i = 0; i < set.count; i++)
        if (replica_counts(core, &set.replicas[i]))
            return true;
    return false;
}

uint32_t md_object_find(md_core *core, ms_hash hash) {
    md_shard *shard = &core->shards[md_shard_of(hash)];
    uint32_t record = md_index_find(shard, hash, MD_RECORD_COMPLETE);
    if (record == 0 || md_object_is_current(core, shard, md_record_at(shard, record)))
        return record;
    bool is_expired = md_record_expiry(shard, md_record_at(shard, record)) <= core->now.now_ms;
    md_object_depart(core, md_shard_of(hash), record,
                     (md_cause){.kind = is_expired ? MS_FATE_EXPIRED : MS_FATE_NODE_LOST});
    return 0;
}

void md_object_used(md_core *core, uint32_t shard, uint32_t record) {
    md_record *at = md_record_at(&core->shards[shard], record);
    at->use_count += at->use_count != UINT32_MAX;
    at->used_at = md_coarse_time(core);
    md_evict_list_used(core, shard, record);
}

static uint64_t replica_pages(const md_replica *replica, const ms_extent *extents) {
    uint64_t pages = 0;
    for (uint32_t i = 0; i < replica->extent_count; i++)
        pages += extents[i].page_count;
    return pages;
}

void md_pages_count(md_core *core, const md_replica_set *set, md_pages_kind kind, int sign) {
    for (uint32_t i = 0; i < set->count; i++) {
        const md_replica *replica = &set->replicas[i];
        /* While a server that was known before tells its inventory, its pages are not counted: all are,
         * when it is complete. */
        if (replica->state != MD_REPLICA_THERE || !core->servers[replica->server].is_counted)
            continue;
        md_segment *segment = md_segment_at(core, replica->server, replica->segment);
        uint64_t pages = replica_pages(replica, set->extents[i]);
        uint64_t *count = kind == MD_PAGES_WRITING    ? &segment->pages_writing
                          : kind == MD_PAGES_COMPLETE ? &segment->pages_complete
                                                      : &segment->pages_unpinned;
        *count = sign > 0 ? *count + pages : *count - pages;
        if (kind == MD_PAGES_COMPLETE)
            core->servers[replica->server].object_count += sign > 0 ? 1u : UINT64_MAX;
    }
}

/* What a pin protects can never make room; a parent can, after its children. */
void md_object_count(md_core *core, md_shard *shard, const md_record *record, int sign) {
    bool may_make_room = (record->flags & (MS_OBJECT_HARD_PIN | MD_IS_PINNED)) == 0;
    if (record->state != MD_RECORD_COMPLETE || (!may_make_room && record->more_wanted == 0))
        return;
    md_replica_set set;
    md_record_replicas(shard, record, &set);
    if (set.count < record->more_wanted + 1u) {
        uint64_t more = record->more_wanted + 1u - set.count;
        MD_COUNT(core, objects_short) += sign > 0 ? 1 : UINT64_MAX;
        MD_COUNT(core, replicas_short) += sign > 0 ? more : 0 - more;
    }
    if (may_make_room)
        md_pages_count(core, &set, MD_PAGES_UNPINNED, sign);
}

void md_object_set_flags(md_core *core, uint32_t shard_number, uint32_t record, uint8_t flags) {
    md_shard *shard = &core->shards[shard_number];
    md_record *at = md_record_at(shard, record);
    md_object_count(core, shard, at, -1);
    at->flags = (uint8_t)((flags & ~MD_IS_LISTED) | (at->flags & MD_IS_LISTED));
    md_object_count(core, shard, at, 1);
    md_evict_list_review(core, shard_number, record);
}

void md_object_appear(md_core *core, uint32_t shard_number, uint32_t record) {
    md_shard *shard = &core->shards[shard_number];
    md_record *at = md_record_at(shard, record);
    at->state = MD_RECORD_COMPLETE;
    at->newer = at->older = 0;
    at->used_at = at->stored_at = md_coarse_time(core);
    md_replica_set set;
    md_record_replicas(shard, at, &set);
    md_pages_count(core, &set, MD_PAGES_COMPLETE, 1);
    const md_extra *extra = md_record_extra(shard, at);
    if (extra != NULL && !ms_hash_is_none(extra->parent)) {
        md_shard *beside = &core->shards[md_shard_of(extra->parent)];
        uint32_t parent = md_index_find(beside, extra->parent, MD_RECORD_COMPLETE);
        uint32_t depth = parent == 0 ? 0 : md_record_at(beside, parent)->depth + 1u;
        at->depth = (uint16_t)(depth < UINT16_MAX ? depth : UINT16_MAX);
        md_child_added(core, extra->parent);
    }
    if (extra != NULL && extra->group != 0)
        md_group_add(core, extra->tenant, extra->group, at->hash);
    const md_hold *hold = md_hold_find(core, at->hash);
    if (hold != NULL) {
        at->flags = (uint8_t)(at->flags | (hold->pin_count > 0 ? MD_IS_PINNED : 0) |
                              (hold->children > 0 ? MD_IS_PARENT : 0));
    }
    md_object_count(core, shard, at, 1);
    md_evict_stored(core, ms_pages_of(at->size));
    md_evict_list_add(core, shard_number, record);
    MD_COUNT(core, objects)++;
    MD_COUNT(core, object_bytes) += at->size;
    /* The event names the first holder; each other one has an event of its own. */
    enum ms_event_kind kind = MS_EVENT_STORED;
    for (uint32_t i = 0; i < set.count; i++) {
        if (set.replicas[i].state != MD_REPLICA_THERE)
            continue;
        md_event(core, kind, at->version, at->size, set.replicas[i].server + 1u,
                 md_record_key(shard, at), at->key_length);
        kind = MS_EVENT_REPLICA_ADDED;
    }
    if (kind == MS_EVENT_STORED)
        md_event(core, kind, at->version, at->size, 0, md_record_key(shard, at), at->key_length);
}

/* The extents of the replicas of `set` in `mask` go the way of a leave.  An object's extents at a lost server are
 * let be: it comes back with that server or is struck by a tombstone.  A grant's are not: its writer may be
 * alive, so the server has to hear of the end of the grant when it comes back. */
static void free_replicas(md_core *core, uint32_t leave, const md_replica_set *set, uint64_t mask,
                          uint64_t version, uint64_t session, bool also_lost) {
    for (uint32_t i = 0; i < set->count; i++) {
        const md_replica *replica = &set->replicas[i];
        if (!(mask >> i & 1) || replica->state != MD_REPLICA_THERE ||
            (core->servers[replica->server].is_lost && !also_lost))
            continue;
        for (uint32_t part = 0; part < replica->extent_count; part++)
            md_free_start(core, leave, replica->server, replica->segment, set->extents[i][part],
                          version, session);
    }
}

bool md_object_take_back(md_core *core, uint32_t shard_number, uint32_t record, uint64_t session) {
    md_shard *shard = &core->shards[shard_number];
    md_record *at = md_record_at(shard, record);
    if (at->version != 0) {
        if (!md_reserve(core, md_record_extent_count(shard, at), 0))
            return false;
        md_replica_set set;
        md_record_replicas(shard, at, &set);
        md_pages_count(core, &set, MD_PAGES_WRITING, -1);
        uint32_t leave = md_leave_open(core, at->hash, at->version);
        free_replicas(core, leave, &set, UINT64_MAX, at->version, session, true);
        md_leave_opened(core, leave);
    }
    md_shard_remove(shard, record);
    return true;
}

uint32_t md_object_extents(md_core *core, const md_shard *shard, const md_record *record) {
    return md_record_extent_count(shard, record) +
           (record->is_changing ? md_change_extents(core, record->hash) : 0);
}

/* What those who follow the store are told; 0: nothing, because another version takes its place at once. */
static enum ms_event_kind event_of(enum ms_fate_kind kind) {
    switch (kind) {
    case MS_FATE_EVICTED_FOR_PUT:
    case MS_FATE_EVICTED_AT_WATERMARK:
    case MS_FATE_EVICTED_FOR_COPY:
        return MS_EVENT_EVICTED;
    case MS_FATE_EXPIRED:
        return MS_EVENT_EXPIRED;
    case MS_FATE_REMOVED:
        return MS_EVENT_REMOVED;
    case MS_FATE_NODE_LOST:
    case MS_FATE_NOT_KEPT:
        return MS_EVENT_LOST;
    default:
        return (enum ms_event_kind)0;
    }
}

bool md_object_depart(md_core *core, uint32_t shard_number, uint32_t record, md_cause cause) {
    enum ms_event_kind event = event_of(cause.kind);
    md_shard *shard = &core->shards[shard_number];
    md_record *at = md_record_at(shard, record);
    assert(at->state == MD_RECORD_COMPLETE);
    ms_hash hash = at->hash;
    if (!md_reserve(core, md_object_extents(core, shard, at), 0))
        return false;
    uint32_t leave = md_leave_open(core, hash, at->version);
    if (at->is_changing)
        md_change_cancel(core, hash, leave, MS_GONE);
    md_replica_set set;
    md_record_replicas(shard, at, &set);
    md_evict_list_remove(core, shard_number, record);
    md_pages_count(core, &set, MD_PAGES_COMPLETE, -1);
    md_object_count(core, shard, at, -1);
    free_replicas(core, leave, &set, UINT64_MAX, at->version, 0, false);
    MD_COUNT(core, objects)--;
    MD_COUNT(core, object_bytes) -= at->size;
    if (event == MS_EVENT_EVICTED) {
        MD_COUNT(core, evicted)++;
        MD_COUNT(core, evicted_bytes) += at->size;
    }
    MD_COUNT(core, removed) += event == MS_EVENT_REMOVED;
    MD_COUNT(core, expired) += event == MS_EVENT_EXPIRED;
    MD_COUNT(core, lost) += event == MS_EVENT_LOST;
    if (event != 0)
        md_event(core, event, at->version, at->size, 0, md_record_key(shard, at), at->key_length);
    md_fate(core, hash, at->version, at->size, set.count == 0 ? 0 : set.replicas[0].server + 1u,
            cause);
    const md_extra *extra = md_record_extra(shard, at);
    md_extra kept = extra == NULL ? (md_extra){0} : *extra;
    md_shard_remove(shard, record);
    if (!ms_hash_is_none(kept.parent))
        md_child_removed(core, kept.parent);
    if (kept.group != 0)
        md_group_remove(core, kept.tenant, kept.group, hash);
    md_leave_opened(core, leave);
    return true;
}

void md_object_keep_replicas(md_core *core, uint32_t shard_number, uint32_t record, uint64_t keep) {
    md_shard *shard = &core->shards[shard_number];
    md_record *at = md_record_at(shard, record);
    md_replica_set set;
    md_record_replicas(shard, at, &set);
    md_pages_kind kind = at->state == MD_RECORD_COMPLETE ? MD_PAGES_COMPLETE : MD_PAGES_WRITING;
    md_object_count(core, shard, at, -1);
    md_pages_count(core, &set, kind, -1);
    uint32_t leave = md_leave_open(core, at->hash, at->version);
    free_replicas(core, leave, &set, ~keep, at->version, 0, kind == MD_PAGES_WRITING);
    uint32_t count = 0;
    for (uint32_t i = 0; i < set.count; i++) {
        if (!(keep >> i & 1) || set.replicas[i].state != MD_REPLICA_THERE) {
            if (kind == MD_PAGES_COMPLETE && set.replicas[i].state == MD_REPLICA_THERE)
                md_event(core, MS_EVENT_REPLICA_LOST, at->version, at->size,
                         set.replicas[i].server + 1u, md_record_key(shard, at), at->key_length);
            continue;
        }
        set.replicas[count] = set.replicas[i];
        set.extents[count++] = set.extents[i];
    }
    md_record_set_replicas(shard, at, count, set.replicas, set.extents);
    set.count = count;
    md_pages_count(core, &set, kind, 1);
    md_object_count(core, shard, at, 1);
    md_leave_opened(core, leave);
}

void md_object_drop_replicas(md_core *core, uint32_t shard_number, uint32_t record, uint64_t mask) {
    md_shard *shard = &core->shards[shard_number];
    md_record *at = md_record_at(shard, record);
    md_replica_set set;
    md_record_replicas(shard, at, &set);
    md_pages_count(core, &set, MD_PAGES_WRITING, -1);
    uint32_t leave = md_leave_open(core, at->hash, at->version);
    free_replicas(core, leave, &set, mask, at->version, 0, true);
    for (uint32_t i = 0; i < set.count; i++)
        if (mask >> i & 1)
            set.replicas[i].state = MD_REPLICA_DROPPED;
    md_record_set_replicas(shard, at, set.count, set.replicas, set.extents);
    md_pages_count(core, &set, MD_PAGES_WRITING, 1);
    md_leave_opened(core, leave);
}

/* ---- as bytes ------------------------------------------------------------------------------------------ */
void md_write_location(md_core *core, const md_shard *shard, const md_record *record,
                       uint32_t lifetime_ms, bool is_grant, ms_writer *out) {
    md_replica_set set;
    md_record_replicas(shard, record, &set);
    uint32_t count = 0;
    for (uint32_t i = 0; i < set.count; i++)
        count += is_grant || replica_counts(core, &set.replicas[i]);
    ms_location location = {.status = MS_OK,
                            .replica_count = count,
                            .version = record->version,
                            .size = record->size,
                            .checksum =
                                record->flags & MS_OBJECT_HAS_CHECKSUM ? record->checksum : 0,
                            .flags = md_record_flags(record),
                            .lifetime_ms = lifetime_ms};
    MS_WRITER_STRUCT(out, &location);
    for (uint32_t i = 0; i < set.count; i++) {
        if (!is_grant && !replica_counts(core, &set.replicas[i]))
            continue;
        const md_server *server = &core->servers[set.replicas[i].server];
        /* What was dropped from a grant keeps its place, but nobody may write there: no server has life 0. */
        bool is_there = set.replicas[i].state == MD_REPLICA_THERE;
        ms_replica replica = {.server = set.replicas[i].server,
                              .incarnation = is_there ? server->incarnation : 0,
                              .segment = set.replicas[i].segment,
                              .extent_count = set.replicas[i].extent_count,
                              .tier = (uint8_t)server->segments[set.replicas[i].segment].tier,
                              .state = !is_grant};
        MS_WRITER_STRUCT(out, &replica);
        ms_writer_bytes(out, set.extents[i], replica.extent_count * sizeof(ms_extent));
    }
}
