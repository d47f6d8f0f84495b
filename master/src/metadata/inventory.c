/* What a server that joins says it holds, and what of that counts (docs/protocol.md, section 5). */
#include "md_internal.h"

#include <string.h>

static md_server *server_at(md_core *core, uint32_t server) { return &core->servers[server]; }
static md_partial *partial_at(md_core *core, uint32_t partial) {
    return md_pool_at(&core->partials, partial);
}
static uint64_t partial_key(ms_hash hash, uint64_t version, uint32_t server) {
    return md_hash_key(hash) ^ md_mix(version) ^ ((uint64_t)server << 48);
}

/* One replica of an object, all its parts. */
typedef struct held {
    ms_hash hash, parent;
    uint64_t version, size, note, expiry_ms, group;
    const uint8_t *key;
    const ms_extent *extents;
    uint32_t tenant, server, checksum;
    uint16_t segment, extent_count, key_length;
    uint8_t flags;
} held;

static bool used_add(md_server *server, uint32_t segment, uint32_t page, uint32_t page_count) {
    md_used *used = md_array_reserve(server->used, &server->used_capacity, sizeof(md_used),
                                     server->used_count + 1);
    if (used == NULL)
        return false;
    server->used = used;
    used[server->used_count++] =
        (md_used){.segment = segment, .page = page, .page_count = page_count};
    return true;
}

/* A record that does not count: it is freed when the inventory is complete.  A remove of its key waits for that
 * like for anything of the key that leaves. */
static ms_status refuse(md_core *core, uint32_t server, ms_hash hash, uint32_t segment,
                        const ms_extent *extents, uint32_t count, uint64_t version) {
    if (!md_reserve(core, count, 0))
        return MS_NO_MEMORY;
    MD_COUNT(core, inventory_refused)++;
    uint32_t leave = ms_hash_is_none(hash) ? 0 : md_leave_open(core, hash, version);
    for (uint32_t i = 0; i < count; i++)
        if (md_map_get(&core->free_of, md_page_key(server, segment, extents[i].page)) == 0)
            md_free_start(core, leave, server, segment, extents[i], version, 0);
    if (leave != 0)
        md_leave_opened(core, leave);
    return MS_OK;
}

static int64_t expiry_of(const md_core *core, uint64_t expiry_wall_ms) {
    return expiry_wall_ms == 0 ? MD_NEVER
                               : core->now.now_ms + ((int64_t)expiry_wall_ms - core->now.wall_ms);
}

/* Flags and expiry of the note with the highest number count. */
/* Best effort: without memory for it its holders stay as they are. */
static void remember_uneven(md_server *server, ms_hash hash) {
    ms_hash *uneven = md_array_reserve(server->uneven, &server->uneven_capacity, sizeof(ms_hash),
                                       server->uneven_count + 1);
    if (uneven == NULL)
        return;
    server->uneven = uneven;
    uneven[server->uneven_count++] = hash;
}

static void take_note(md_core *core, md_shard *shard, uint32_t record, const held *replica) {
    md_record *at = md_record_at(shard, record);
    const md_extra *known = md_record_extra(shard, at);
    uint64_t note = known != NULL && known->note != 0 ? known->note : at->version;
    if (replica->note != note)
        remember_uneven(server_at(core, replica->server), replica->hash);
    if (replica->note <= note)
        return;
    md_extra *extra = md_record_need_extra(shard, record);
    extra->note = replica->note;
    extra->expires_at_ms = expiry_of(core, replica->expiry_ms);
    at = md_record_at(shard, record);
    md_object_count(core, shard, at, -1);
    at->more_wanted = (ms_replicas_wanted(replica->flags) - 1) & (MS_REPLICAS_MAX - 1);
    md_object_count(core, shard, at, 1);
    const uint8_t noted = MS_OBJECT_HARD_PIN | MS_OBJECT_SOFT_PIN | MD_HAS_EXPIRY;
    md_object_set_flags(core, md_shard_of(at->hash), record,
                        (uint8_t)((at->flags & ~noted) |
                                  (replica->flags & (MS_OBJECT_HARD_PIN | MS_OBJECT_SOFT_PIN)) |
                                  (replica->expiry_ms != 0 ? MD_HAS_EXPIRY : 0)));
}

static size_t confirmed_bytes(const md_segment *segment) {
    return (size_t)(segment->page_count / 8 + 1);
}

/* Only a server that comes back is held against what the index says of it. */
static bool confirm(md_core *core, const held *replica) {
    md_server *server = server_at(core, replica->server);
    if (!server->needs_sweep)
        return true;
    md_segment *segment = &server->segments[replica->segment];
    uint32_t page = replica->extents[0].page;
    if (segment->confirmed == NULL)
        segment->confirmed = md_memory_map(confirmed_bytes(segment));
    if (segment->confirmed == NULL)
        return false;
    segment->confirmed[page / 8] |= (uint8_t)(1u << page % 8);
    return true;
}

/* It may have come back with a smaller pool than the index knows. */
static bool is_confirmed(const md_server *server, uint32_t segment_number, uint32_t page) {
    if (segment_number >= server->segment_count)
        return false;
    const md_segment *segment = &server->segments[segment_number];
    return segment->confirmed != NULL && page < segment->page_count &&
           (segment->confirmed[page / 8] >> page % 8 & 1) != 0;
}

static ms_status take_new(md_core *core, const held *replica) {
    uint32_t number = md_shard_of(replica->hash);
    md_shard *shard = &core->shards[number];
    uint32_t tenant = replica->tenant;
    if (!md_shard_reserve(shard, replica->key_length, md_replica_bytes(1, replica->extent_count)) ||
        !md_hold_reserve(core, 1) || !md_pool_reserve(&core->wheel.timers, 1) ||
        (replica->group != 0 && !md_group_reserve(core, tenant, replica->group)) ||
        !confirm(core, replica))
        return MS_NO_MEMORY;
    uint32_t record = md_shard_add(shard, replica->hash, replica->key, replica->key_length);
    md_record *at = md_record_at(shard, record);
    at->version = replica->version;
    at->size = replica->size;
    at->checksum = replica->checksum;
    at->flags = replica->flags & MD_OBJECT_FLAGS;
    at->more_wanted = (ms_replicas_wanted(replica->flags) - 1) & (MS_REPLICAS_MAX - 1);
    at->is_copy = (replica->flags & MS_OBJECT_IS_COPY) != 0;
    bool has_note = replica->note > replica->version;
    if (tenant != 0 || has_note || replica->group != 0 || replica->expiry_ms != 0 ||
        !ms_hash_is_none(replica->parent)) {
        md_extra *extra = md_record_need_extra(shard, record);
        extra->tenant = tenant;
        extra->note = has_note ? replica->note : 0;
        extra->group = replica->group;
        extra->parent = replica->parent;
        extra->expires_at_ms = expiry_of(core, replica->expiry_ms);
        at->flags |= replica->expiry_ms != 0 ? MD_HAS_EXPIRY : 0;
    }
    md_replica only = {.server = (uint16_t)replica->server,
                       .segment = replica->segment,
                       .extent_count = replica->extent_count,
                       .state = MD_REPLICA_THERE};
    md_record_set_replicas(shard, at, 1, &only, &replica->extents);
    md_object_appear(core, number, record);
    return MS_OK;
}

/* Equal versions are replicas of one object. */
static ms_status take_replica(md_core *core, uint32_t record, const held *replica) {
    md_shard *shard = &core->shards[md_shard_of(replica->hash)];
    md_record *at = md_record_at(shard, record);
    md_replica_set set;
    md_record_replicas(shard, at, &set);
    uint32_t extents = md_record_extent_count(shard, at) + replica->extent_count;
    for (uint32_t i = 0; i < set.count; i++) {
        if (set.replicas[i].server != replica->server || set.replicas[i].state != MD_REPLICA_THERE)
            continue;
        bool is_same = set.replicas[i].segment == replica->segment &&
                       set.replicas[i].extent_count == replica->extent_count &&
                       memcmp(set.extents[i], replica->extents,
                              replica->extent_count * sizeof(ms_extent)) == 0;
        if (!is_same)
            return refuse(core, replica->server, replica->hash, replica->segment, replica->extents,
                          replica->extent_count, replica->version);
        if (!md_shard_reserve(shard, 0, 0) || !confirm(core, replica))
            return MS_NO_MEMORY;
        take_note(core, shard, record, replica);
        return MS_OK;
    }
    if (set.count == MS_REPLICAS_MAX)
        return refuse(core, replica->server, replica->hash, replica->segment, replica->extents,
                      replica->extent_count, replica->version);
    if (!md_shard_reserve(shard, 0, md_replica_bytes(set.count + 1, extents)) ||
        !confirm(core, replica))
        return MS_NO_MEMORY;
    at = md_record_at(shard, record);
    md_record_replicas(shard, at, &set);
    md_pages_count(core, &set, MD_PAGES_COMPLETE, -1);
    md_object_count(core, shard, at, -1);
    set.replicas[set.count] = (md_replica){.server = (uint16_t)replica->server,
                                           .segment = replica->segment,
                                           .extent_count = replica->extent_count,
                                           .state = MD_REPLICA_THERE};
    set.extents[set.count++] = replica->extents;
    md_record_set_replicas(shard, at, set.count, set.replicas, set.extents);
    md_pages_count(core, &set, MD_PAGES_COMPLETE, 1);
    md_object_count(core, shard, at, 1);
    take_note(core, shard, record, replica);
    MD_COUNT(core, replicas_added)++;
    md_event(core, MS_EVENT_REPLICA_ADDED, at->version, at->size, replica->server + 1,
             md_record_key(shard, at), at->key_length);
    return MS_OK;
}

/* Of two versions the higher counts, unless it is a copy and the lower one has a later note (note_ranks): then a
 * former master took that note while it was making the copy, and ended before the copy had it. */
static bool gives_way(uint64_t version, uint64_t note, bool is_copy, uint64_t lower_note) {
    return is_copy && lower_note > version && lower_note > note;
}

static bool ranks_below(md_shard *shard, md_record *known, const held *replica) {
    const md_extra *extra = md_record_extra(shard, known);
    uint64_t note = extra == NULL ? 0 : extra->note;
    if (replica->version < known->version)
        return !gives_way(known->version, note, known->is_copy, replica->note);
    return replica->version > known->version &&
           gives_way(replica->version, replica->note, replica->flags & MS_OBJECT_IS_COPY, note);
}

static ms_status take(md_core *core, const held *replica) {
    uint64_t pages = 0;
    for (uint32_t i = 0; i < replica->extent_count; i++)
        pages += replica->extents[i].page_count;
    bool is_expired = replica->expiry_ms != 0 && (int64_t)replica->expiry_ms <= core->now.wall_ms;
    md_shard *shard = &core->shards[md_shard_of(replica->hash)];
    /* Sealed, and its put is still open: put_end or the end of the put decides. */
    uint32_t writing = md_index_find(shard, replica->hash, MD_RECORD_WRITING);
    if (writing != 0 && md_record_at(shard, writing)->version == replica->version)
        return MS_OK;
    uint32_t record = md_index_find(shard, replica->hash, MD_RECORD_COMPLETE);
    md_record *known = record == 0 ? NULL : md_record_at(shard, record);
    bool is_struck = replica->version <= md_tombstone_version(core, replica->hash);
    const md_server *server = server_at(core, replica->server);
    bool is_condemned = replica->version <= server->struck ||
                        replica->version <= md_tombstone_version(core, md_node_hash(server));
    /* A replica that another one outranks is no end: the object is there. */
    if (is_expired || is_struck || is_condemned)
        md_fate(core, replica->hash, replica->version, replica->size, replica->server + 1u,
                (md_cause){.kind = is_struck    ? MS_FATE_STRUCK
                                   : is_expired ? MS_FATE_EXPIRED
                                                : MS_FATE_CONDEMNED});
    if (pages != ms_pages_of(replica->size) || is_expired || is_struck || is_condemned ||
        (known != NULL && ranks_below(shard, known, replica)))
        return refuse(core, replica->server, replica->hash, replica->segment, replica->extents,
                      replica->extent_count, replica->version);
    if (known != NULL && replica->version == known->version)
        return take_replica(core, record, replica);
    if (record != 0 && !md_object_depart(core, md_shard_of(replica->hash), record,
                                         (md_cause){.kind = MS_FATE_OUTRANKED}))
        return MS_NO_MEMORY;
    return take_new(core, replica);
}

/* ---- objects of several extents -------------------------------------------------------------------------- */
static void partial_close(md_core *core, uint32_t partial) {
    md_partial *at = partial_at(core, partial);
    uint64_t key = partial_key(at->hash, at->version, at->server);
    uint32_t before = md_map_get(&core->partial_of, key);
    if (before != partial) {
        while (partial_at(core, before)->next != partial)
            before = partial_at(core, before)->next;
        partial_at(core, before)->next = at->next;
    } else if (at->next != 0) {
        md_map_set(&core->partial_of, key, at->next);
    } else {
        md_map_remove(&core->partial_of, key);
    }
    md_memory_small_free(at->key);
    md_memory_small_free(at->extents);
    md_pool_give(&core->partials, partial);
}

static uint32_t partial_find(md_core *core, uint32_t server, const ms_inventory_item *item) {
    uint32_t partial =
        md_map_get(&core->partial_of, partial_key(item->hash, item->version, server));
    while (partial != 0) {
        md_partial *at = partial_at(core, partial);
        if (ms_hash_equal(at->hash, item->hash) && at->version == item->version &&
            at->server == server)
            return partial;
        partial = at->next;
    }
    return 0;
}

static uint32_t partial_open(md_core *core, uint32_t server, const ms_inventory_item *item,
                             uint32_t tenant, const uint8_t *key) {
    uint64_t map_key = partial_key(item->hash, item->version, server);
    if (!md_pool_reserve(&core->partials, 1) || !md_map_reserve(&core->partial_of, 1))
        return 0;
    uint8_t *key_copy = md_memory_small(NULL, item->key_length);
    ms_extent *extents = md_memory_small(NULL, item->part_count * sizeof(ms_extent));
    if (key_copy == NULL || extents == NULL) {
        md_memory_small_free(key_copy);
        md_memory_small_free(extents);
        return 0;
    }
    memcpy(key_copy, key, item->key_length);
    memset(extents, 0, item->part_count * sizeof(ms_extent));
    uint32_t partial = md_pool_take(&core->partials);
    *partial_at(core, partial) = (md_partial){.hash = item->hash,
                                              .version = item->version,
                                              .size = item->size,
                                              .parent = item->parent,
                                              .group = item->group,
                                              .tenant = tenant,
                                              .server = server,
                                              .checksum = item->checksum,
                                              .segment = item->segment,
                                              .part_count = item->part_count,
                                              .key_length = item->key_length,
                                              .key = key_copy,
                                              .extents = extents,
                                              .next = md_map_get(&core->partial_of, map_key)};
    md_map_set(&core->partial_of, map_key, partial);
    return partial;
}

static ms_status take_part(md_core *core, uint32_t server, const ms_inventory_item *item,
                           uint32_t tenant, const uint8_t *key) {
    uint32_t partial = partial_find(core, server, item);
    if (partial == 0 && (partial = partial_open(core, server, item, tenant, key)) == 0)
        return MS_NO_MEMORY;
    md_partial *at = partial_at(core, partial);
    ms_extent extent = {.page = item->page, .page_count = item->page_count},
              *known = at->extents + item->part;
    if (at->part_count == item->part_count && at->segment == item->segment &&
        known->page == extent.page && known->page_count == extent.page_count)
        return MS_OK; /* told again */
    if (at->part_count != item->part_count || at->segment != item->segment ||
        at->extents[item->part].page_count != 0)
        return refuse(core, server, item->hash, item->segment, &extent, 1, item->version);
    at->extents[item->part] = extent;
    if (item->note >= at->note) {
        at->note = item->note;
        at->flags = item->flags;
        at->expiry_ms = item->expiry_ms;
    }
    if (++at->parts_in < at->part_count)
        return MS_OK;
    held whole = {.hash = at->hash,
                  .parent = at->parent,
                  .version = at->version,
                  .size = at->size,
                  .note = at->note,
                  .expiry_ms = at->expiry_ms,
                  .group = at->group,
                  .key = at->key,
                  .extents = at->extents,
                  .tenant = at->tenant,
                  .server = server,
                  .checksum = at->checksum,
                  .segment = at->segment,
                  .extent_count = at->part_count,
                  .key_length = at->key_length,
                  .flags = at->flags};
    ms_status status = take(core, &whole);
    partial_close(core, partial);
    return status;
}

/* Of a walk over the map's slots: a removal moves a follower into the hole, so the slot is looked at again; only a
 * map that has shrunk is another one. */
static void close_in_slot(md_core *core, uint32_t partial, uint32_t *slot) {
    uint32_t capacity = core->partial_of.capacity;
    partial_close(core, partial);
    if (core->partial_of.capacity != capacity)
        *slot = 0;
}

/* All parts of a replica lie in one segment of one server, so what is short of parts when that server's
 * inventory is complete stays short: it is freed at once and not after a time. */
static ms_status refuse_partials(md_core *core, uint32_t server) {
    for (uint32_t i = 0; i < core->partial_of.capacity;) {
        uint32_t partial = core->partial_of.slots[i].value;
        while (partial != 0 && partial_at(core, partial)->server != server)
            partial = partial_at(core, partial)->next;
        if (partial == 0) {
            i++;
            continue;
        }
        md_partial *at = partial_at(core, partial);
        for (uint32_t part = 0; part < at->part_count; part++)
            if (at->extents[part].page_count != 0 &&
                refuse(core, server, at->hash, at->segment, &at->extents[part], 1, at->version) !=
                    MS_OK)
                return MS_NO_MEMORY;
        close_in_slot(core, partial, &i);
    }
    return MS_OK;
}

void md_partials_close(md_core *core) {
    for (uint32_t i = 0; i < core->partial_of.capacity; i++)
        for (uint32_t partial = core->partial_of.slots[i].value; partial != 0;
             partial = partial_at(core, partial)->next) {
            md_memory_small_free(partial_at(core, partial)->key);
            md_memory_small_free(partial_at(core, partial)->extents);
        }
}

/* ---- the frames ------------------------------------------------------------------------------------------ */
void md_inventory_drop(md_core *core, uint32_t server) {
    md_server *at = server_at(core, server);
    md_memory_unmap(at->used, at->used_capacity * sizeof(md_used));
    at->used = NULL;
    at->used_count = at->used_capacity = 0;
    md_memory_unmap(at->uneven, at->uneven_capacity * sizeof(ms_hash));
    at->uneven = NULL;
    at->uneven_count = at->uneven_capacity = 0;
    for (uint32_t i = 0; i < at->segment_count; i++) {
        md_memory_unmap(at->segments[i].confirmed, confirmed_bytes(&at->segments[i]));
        at->segments[i].confirmed = NULL;
    }
    for (uint32_t i = 0; i < core->partial_of.capacity;) {
        uint32_t partial = core->partial_of.slots[i].value;
        while (partial != 0 && partial_at(core, partial)->server != server)
            partial = partial_at(core, partial)->next;
        if (partial == 0)
            i++;
        else
            close_in_slot(core, partial, &i);
    }
}

static ms_status check_frame(md_core *core, uint32_t server, uint32_t incarnation) {
    if (server >= core->server_count)
        return MS_NOT_FOUND;
    md_server *at = server_at(core, server);
    return at->incarnation == incarnation && at->state == MS_MEMBER_JOINING ? MS_OK
                                                                            : MS_WRONG_INCARNATION;
}

ms_status md_inventory(md_core *core, md_now now, uint32_t server, uint32_t incarnation,
                       const ms_inventory_item *item, const uint8_t *tenant, const uint8_t *key) {
    md_set_now(core, now);
    ms_status status = check_frame(core, server, incarnation);
    md_server *at = status == MS_OK ? server_at(core, server) : NULL;
    if (status != MS_OK || !at->takes_in)
        return status;
    bool is_live = item->state == 1;
    if (item->segment >= at->segment_count || item->page_count == 0 || item->version == 0 ||
        (uint64_t)item->page + item->page_count > at->segments[item->segment].page_count)
        return MS_BAD_REQUEST;
    if (is_live &&
        (!ms_key_valid((const char *)key, item->key_length) || item->tenant_length == 0 ||
         item->tenant_length > MS_TENANT_BYTES_MAX || item->part_count > MS_EXTENTS_MAX ||
         (item->part_count > 1 && item->part >= item->part_count) ||
         item->size > MS_VALUE_BYTES_MAX))
        return MS_BAD_REQUEST;
    MD_COUNT(core, inventory_items)++;
    /* What is being freed is so still, whatever its record says: the FREE is sent again at the end. */
    if (md_map_get(&core->free_of, md_page_key(server, item->segment, item->page)) != 0)
        return MS_OK;
    if (!used_add(at, item->segment, item->page, item->page_count))
        return MS_NO_MEMORY;
    ms_extent extent = {.page = item->page, .page_count = item->page_count};
    /* In use without a live word: a view or a copy of something freed; wait for FREED (busy_inventory). */
    if (!is_live)
        return refuse(core, server, (ms_hash){0}, item->segment, &extent, 1, item->version);
    /* Whoever looks for the key asks for its hash with this cluster's secret: another one is never found. */
    if (!ms_hash_equal(
            ms_hash_key(core->config.secret, tenant, item->tenant_length, key, item->key_length),
            item->hash))
        return refuse(core, server, item->hash, item->segment, &extent, 1, item->version);
    uint32_t tenant_number;
    if ((status = md_tenant(core, tenant, item->tenant_length, &tenant_number)) != MS_OK)
        return status;
    if (item->part_count > 1)
        return take_part(core, server, item, tenant_number, key);
    held whole = {.hash = item->hash,
                  .parent = item->parent,
                  .version = item->version,
                  .size = item->size,
                  .note = item->note,
                  .expiry_ms = item->expiry_ms,
                  .group = item->group,
                  .key = key,
                  .extents = &extent,
                  .tenant = tenant_number,
                  .server = server,
                  .checksum = item->checksum,
                  .segment = item->segment,
                  .extent_count = 1,
                  .key_length = item->key_length,
                  .flags = item->flags};
    return take(core, &whole);
}

/* Replicas at this server that its inventory did not name leave the index; then all of its pages are counted.
 * Looks at every record, but only when a server comes back to the master that knew it. */
static ms_status sweep_unconfirmed(md_core *core, uint32_t server) {
    md_server *at = server_at(core, server);
    for (uint32_t s = 0; s < MD_SHARDS; s++) {
        md_shard *shard = &core->shards[s];
        uint32_t generation = shard->generation;
        for (uint32_t number = 1; number <= shard->record_fresh; number++) {
            md_record *record = md_record_at(shard, number);
            if (record->state != MD_RECORD_COMPLETE)
                continue;
            md_replica_set set;
            md_record_replicas(shard, record, &set);
            uint64_t keep = 0;
            for (uint32_t i = 0; i < set.count; i++)
                if (set.replicas[i].server != server ||
                    is_confirmed(at, set.replicas[i].segment, set.extents[i][0].page))
                    keep |= 1ull << i;
            if (keep == (1ull << set.count) - 1)
                continue;
            at->is_lost = 1; /* nothing to free there: the server does not have it */
            bool done = true;
            if (keep == 0)
                done = md_object_depart(core, s, number, (md_cause){.kind = MS_FATE_NOT_KEPT});
            else if (md_reserve(core, 0, 0) &&
                     md_shard_reserve(
                         shard, 0,
                         md_replica_bytes(set.count, md_record_extent_count(shard, record))))
                md_object_keep_replicas(core, s, number, keep);
            else
                done = false;
            at->is_lost = 0;
            if (!done)
                return MS_NO_MEMORY;
            if (shard->generation != generation) {
                generation = shard->generation;
                number = 0;
            }
        }
    }
    return MS_OK;
}

static void count_pages(md_core *core, uint32_t server) {
    md_server *at = server_at(core, server);
    for (uint32_t s = 0; s < MD_SHARDS; s++) {
        md_shard *shard = &core->shards[s];
        for (uint32_t number = 1; number <= shard->record_fresh; number++) {
            md_record *record = md_record_at(shard, number);
            if (record->state == MD_RECORD_NONE)
                continue;
            md_replica_set set, here = {0};
            md_record_replicas(shard, record, &set);
            for (uint32_t i = 0; i < set.count; i++)
                if (set.replicas[i].server == server) {
                    here.replicas[0] = set.replicas[i];
                    here.extents[0] = set.extents[i];
                    here.count = 1;
                }
            if (record->state == MD_RECORD_WRITING) {
                md_pages_count(core, &here, MD_PAGES_WRITING, 1);
                continue;
            }
            md_pages_count(core, &here, MD_PAGES_COMPLETE, 1);
            if (!(record->flags & (MS_OBJECT_HARD_PIN | MD_IS_PINNED)))
                md_pages_count(core, &here, MD_PAGES_UNPINNED, 1);
        }
    }
    for (uint32_t i = 0; i < core->free_of.capacity; i++) {
        uint32_t free = core->free_of.slots[i].value;
        const md_free *of = free == 0 ? NULL : md_pool_at(&core->frees, free);
        if (of == NULL || of->server != server)
            continue;
        md_segment *segment = &at->segments[of->segment];
        *(of->is_cleared ? &segment->pages_held : &segment->pages_leaving) += of->page_count;
    }
}

/* Grants of this life of the server that are still open. */
static bool used_by_put(md_core *core, uint32_t server, uint32_t put) {
    ms_hash hash = ((const md_put *)md_pool_at(&core->puts, put))->hash;
    md_shard *shard = &core->shards[md_shard_of(hash)];
    md_replica_set set;
    md_record_replicas(shard, md_record_at(shard, md_index_find(shard, hash, MD_RECORD_WRITING)),
                       &set);
    for (uint32_t i = 0; i < set.count; i++)
        for (uint32_t part = 0;
             set.replicas[i].server == server && part < set.replicas[i].extent_count; part++)
            if (set.replicas[i].state == MD_REPLICA_THERE &&
                !used_add(server_at(core, server), set.replicas[i].segment,
                          set.extents[i][part].page, set.extents[i][part].page_count))
                return false;
    return true;
}

/* Free runs are what lies between the extents that are granted, used or being freed. */
static ms_status rebuild_segments(md_core *core, uint32_t server) {
    md_server *at = server_at(core, server);
    for (uint32_t i = 0; i < core->free_of.capacity; i++) {
        uint32_t free = core->free_of.slots[i].value;
        const md_free *of = free == 0 ? NULL : md_pool_at(&core->frees, free);
        if (of != NULL && of->server == server &&
            !used_add(at, of->segment, of->page, of->page_count))
            return MS_NO_MEMORY;
    }
    for (uint32_t i = 0; i < core->put_of.capacity; i++)
        if (core->put_of.slots[i].value != 0 &&
            !used_by_put(core, server, core->put_of.slots[i].value))
            return MS_NO_MEMORY;
    /* Counting sort by segment; within one md_segment_rebuild sorts by page. */
    uint32_t *starts = md_memory_small(NULL, (at->segment_count + 1) * sizeof *starts);
    md_used *sorted = md_memory_map((at->used_count + 1) * sizeof *sorted);
    bool done = starts != NULL && sorted != NULL;
    if (done) {
        memset(starts, 0, (at->segment_count + 1) * sizeof *starts);
        for (uint32_t i = 0; i < at->used_count; i++)
            starts[at->used[i].segment + 1]++;
        for (uint32_t i = 0; i < at->segment_count; i++)
            starts[i + 1] += starts[i];
        for (uint32_t i = 0; i < at->used_count; i++)
            sorted[starts[at->used[i].segment]++] = at->used[i];
        for (uint32_t i = 0; done && i < at->segment_count; i++) {
            uint32_t start = i == 0 ? 0 : starts[i - 1];
            done = md_segment_rebuild(&at->segments[i], sorted + start, starts[i] - start);
        }
    }
    md_memory_small_free(starts);
    md_memory_unmap(sorted, (at->used_count + 1) * sizeof *sorted);
    return done ? MS_OK : MS_NO_MEMORY;
}

ms_status md_inventory_end(md_core *core, md_now now, uint32_t server, uint32_t incarnation) {
    md_set_now(core, now);
    ms_status status = check_frame(core, server, incarnation);
    if (status != MS_OK)
        return status;
    md_server *at = server_at(core, server);
    if (at->takes_in) {
        if ((status = refuse_partials(core, server)) != MS_OK ||
            (at->needs_sweep && (status = sweep_unconfirmed(core, server)) != MS_OK) ||
            (status = rebuild_segments(core, server)) != MS_OK)
            return status;
        at->is_adopted = 1;
        if (!at->is_counted) {
            at->is_counted = 1;
            count_pages(core, server);
        }
        at->takes_in = 0;
        at->needs_sweep = 0;
        at->is_condemned = 0;
        at->tombstones = 0;
        for (uint32_t i = 0; i < at->uneven_count; i++)
            md_note_again(core, at->uneven[i]);
        md_inventory_drop(core, server);
        md_absent_count(core);
        if (md_all_are_adopted(core))
            md_tombstones_clear(core);
        md_ramp_begin(core, server);
        md_event(core, MS_EVENT_SERVER_JOINED, 0, 0, server + 1, NULL, 0);
    }
    at->state = at->is_draining ? MS_MEMBER_DRAINING : MS_MEMBER_READY;
    core->members_changed++;
    md_free_send_all(core, server);
    md_parked_serve(core);
    md_changes_run(core);
    return MS_OK;
}
