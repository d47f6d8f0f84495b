/* Records of one shard, with their keys, replicas and extras: four arrays that the shard owns.
 *
 * Records have numbers, and a freed number is used again.  Keys and replica blocks are appended to an arena and
 * what is freed there is only counted.  When less than half of an array is alive the whole shard is rebuilt
 * into arrays of the right size: that is how memory comes back, for a few milliseconds per shard and not
 * for all 256 at once.
 */
#include "md_internal.h"

#include <assert.h>
#include <string.h>

#define REBUILD_RECORDS_MIN 64u
#define REBUILD_ARENA_MIN 65536u
/* Below REBUILD_ARENA_MIN only the arena is put in order, in place: a rebuild gives pages back, and where objects come
 * and go the next puts ask for them again, a fault for each.  Left alone until it reaches that, the arenas of 256
 * shards with a few objects each would become resident page by page, for hours. */
#define COMPACT_ARENA_MIN 2048u
#define TOUCHED_ARENA_MIN 16384u /* pages that a shard which has become small gives back */

/* What a shard keeps when it is empty: a store of a few hundred objects has none or one in most of its shards,
 * and would ask the kernel for four arrays with each put. */
#define EMPTY_BYTES_MAX 8192u
/* Of address space, of each array from its start: what was never touched costs nothing, and a shard of some 3,000
 * objects never asks the kernel to move an array that grew, with all its mappings.  That was a tenth of the time of
 * the core that serves puts of 16 bytes in a store that fills (samples in mremap, mmap and munmap). */
#define ARRAY_BYTES_MIN (256u << 10)

void md_shard_close(md_shard *shard) {
    md_memory_unmap(shard->slots, shard->slot_count * sizeof(md_slot));
    md_memory_unmap(shard->records, shard->record_capacity * sizeof(md_record));
    md_memory_unmap(shard->extras, shard->extra_capacity * sizeof(md_extra));
    md_memory_unmap(shard->arena, shard->arena_capacity);
    *shard = (md_shard){.generation = shard->generation + 1};
}

static void empty(md_shard *shard) {
    if (shard->slot_count * sizeof(md_slot) > EMPTY_BYTES_MAX ||
        shard->record_fresh * sizeof(md_record) > EMPTY_BYTES_MAX ||
        shard->extra_fresh * sizeof(md_extra) > EMPTY_BYTES_MAX ||
        shard->arena_used > EMPTY_BYTES_MAX || shard->arena_touched > EMPTY_BYTES_MAX) {
        md_shard_close(shard);
        return;
    }
    /* The last removal has emptied its slot. */
    *shard = (md_shard){.slots = shard->slots,
                        .slot_count = shard->slot_count,
                        .records = shard->records,
                        .record_capacity = shard->record_capacity,
                        .extras = shard->extras,
                        .extra_capacity = shard->extra_capacity,
                        .arena = shard->arena,
                        .arena_capacity = shard->arena_capacity,
                        .arena_touched = shard->arena_touched,
                        .generation = shard->generation + 1};
}

static uint32_t items_min(size_t item_bytes) { return (uint32_t)(ARRAY_BYTES_MIN / item_bytes); }

static void *reserve(void *items, uint32_t *capacity, size_t item_bytes, uint32_t wanted) {
    uint32_t least = items_min(item_bytes);
    return md_array_reserve(items, capacity, item_bytes,
                            *capacity < wanted && wanted < least ? least : wanted);
}

static size_t aligned(size_t bytes) { return (bytes + 7) / 8 * 8; }

bool md_shard_reserve(md_shard *shard, size_t key_length, size_t block_bytes) {
    size_t wanted = (size_t)shard->arena_used + aligned(key_length) + 2 * aligned(block_bytes) + 8;
    if (wanted > UINT32_MAX)
        return false;
    uint8_t *arena = reserve(shard->arena, &shard->arena_capacity, 1, (uint32_t)wanted);
    if (arena == NULL)
        return false;
    shard->arena = arena;
    if (shard->record_free == 0) {
        md_record *records = reserve(shard->records, &shard->record_capacity, sizeof(md_record),
                                     shard->record_fresh + 1);
        if (records == NULL)
            return false;
        shard->records = records;
    }
    if (shard->extra_free == 0) {
        md_extra *extras = reserve(shard->extras, &shard->extra_capacity, sizeof(md_extra),
                                   shard->extra_fresh + 1);
        if (extras == NULL)
            return false;
        shard->extras = extras;
    }
    return md_index_reserve(shard, 1);
}

uint32_t md_shard_add(md_shard *shard, ms_hash hash, const uint8_t *key, size_t key_length) {
    uint32_t record = shard->record_free;
    if (record != 0)
        shard->record_free = shard->records[record - 1].newer;
    else
        record = ++shard->record_fresh;
    assert(record <= shard->record_capacity &&
           shard->arena_used + key_length <= shard->arena_capacity);
    md_record *at = md_record_at(shard, record);
    *at = (md_record){.hash = hash, .key = shard->arena_used, .key_length = (uint16_t)key_length};
    memcpy(shard->arena + shard->arena_used, key, key_length);
    shard->arena_used += (uint32_t)key_length;
    shard->record_count++;
    md_index_add(shard, record);
    return record;
}

md_extra *md_record_extra(md_shard *shard, md_record *record) {
    return record->extra == 0 ? NULL : &shard->extras[record->extra - 1];
}

md_extra *md_record_need_extra(md_shard *shard, uint32_t record) {
    md_record *at = md_record_at(shard, record);
    if (at->extra != 0)
        return &shard->extras[at->extra - 1];
    uint32_t extra = shard->extra_free;
    if (extra != 0)
        shard->extra_free = shard->extras[extra - 1].tenant;
    else
        extra = ++shard->extra_fresh;
    assert(extra <= shard->extra_capacity);
    shard->extra_count++;
    at->extra = extra;
    shard->extras[extra - 1] = (md_extra){.record = record, .expires_at_ms = MD_NEVER};
    return &shard->extras[extra - 1];
}

/* ---- replicas ------------------------------------------------------------------------------------------ */
static md_replica_block *block_of(const md_shard *shard, const md_record *record) {
    return (md_replica_block *)(void *)(shard->arena + (size_t)(record->replicas - 1) * 8);
}

size_t md_replica_bytes(uint32_t replica_count, uint32_t extent_count) {
    return sizeof(md_replica_block) + replica_count * sizeof(md_replica) +
           extent_count * sizeof(ms_extent);
}

void md_record_replicas(const md_shard *shard, const md_record *record, md_replica_set *set) {
    set->count = 0;
    if (record->version == 0)
        return; /* waits for room: has none */
    if (record->replicas == 0) {
        set->count = 1;
        set->replicas[0] = (md_replica){.server = record->server,
                                        .segment = record->segment,
                                        .extent_count = 1,
                                        .state = MD_REPLICA_THERE};
        set->inline_extent =
            (ms_extent){.page = record->page, .page_count = (uint32_t)ms_pages_of(record->size)};
        set->extents[0] = &set->inline_extent;
        return;
    }
    const md_replica_block *block = block_of(shard, record);
    const uint8_t *at = (const uint8_t *)(block + 1);
    set->count = block->replica_count;
    for (uint32_t i = 0; i < set->count; i++) {
        memcpy(&set->replicas[i], at, sizeof(md_replica));
        set->extents[i] = (const ms_extent *)(const void *)(at + sizeof(md_replica));
        at += sizeof(md_replica) + set->replicas[i].extent_count * sizeof(ms_extent);
    }
}

/* The new set's extents may lie in the block that it replaces: that one stays where it is until a rebuild. */
void md_record_set_replicas(md_shard *shard, md_record *record, uint32_t count,
                            const md_replica *replicas, const ms_extent *const *extents) {
    if (record->replicas != 0)
        shard->arena_waste += block_of(shard, record)->bytes;
    if (count == 1 && replicas[0].extent_count == 1 && replicas[0].state == MD_REPLICA_THERE) {
        uint32_t page = extents[0][0].page;
        record->server = replicas[0].server;
        record->segment = replicas[0].segment;
        record->page = page;
        record->replicas = 0;
        return;
    }
    uint32_t extent_count = 0;
    for (uint32_t i = 0; i < count; i++)
        extent_count += replicas[i].extent_count;
    uint32_t start = (uint32_t)aligned(shard->arena_used);
    uint32_t bytes = (uint32_t)md_replica_bytes(count, extent_count);
    assert((size_t)start + bytes <= shard->arena_capacity);
    shard->arena_waste += start - shard->arena_used;
    shard->arena_used = start + bytes;
    record->replicas = start / 8 + 1;
    md_replica_block *block = block_of(shard, record);
    *block = (md_replica_block){.replica_count = count, .bytes = bytes};
    uint8_t *at = (uint8_t *)(block + 1);
    for (uint32_t i = 0; i < count; i++) {
        memcpy(at, &replicas[i], sizeof(md_replica));
        memcpy(at + sizeof(md_replica), extents[i], replicas[i].extent_count * sizeof(ms_extent));
        at += sizeof(md_replica) + replicas[i].extent_count * sizeof(ms_extent);
    }
}

/* ---- rebuilding ---------------------------------------------------------------------------------------- */
static bool should_rebuild(const md_shard *shard) {
    return (shard->record_fresh > REBUILD_RECORDS_MIN &&
            shard->record_count < shard->record_fresh / 2) ||
           (shard->extra_fresh > REBUILD_RECORDS_MIN &&
            shard->extra_count < shard->extra_fresh / 2) ||
           (shard->arena_waste > shard->arena_used / 2 &&
            (shard->arena_used > REBUILD_ARENA_MIN ||
             (shard->arena_touched > TOUCHED_ARENA_MIN &&
              shard->arena_used < shard->arena_touched / 4)));
}

/* Room for an eighth more, so that the next insertion does not at once ask for twice as much. */
static uint32_t with_slack(uint32_t count, size_t item_bytes) {
    uint32_t least = items_min(item_bytes), wanted = count + count / 8 + 16;
    return wanted < least ? least : wanted;
}

/* Appends a record's key and replica block to another arena, and has it point there. */
static void move_bytes(md_record *record, const uint8_t *from, uint8_t *to, uint32_t *used,
                       uint32_t *waste) {
    memcpy(to + *used, from + record->key, record->key_length);
    record->key = *used;
    *used += record->key_length;
    if (record->replicas == 0)
        return;
    const md_replica_block *block = (const void *)(from + (size_t)(record->replicas - 1) * 8);
    uint32_t bytes = block->bytes, start = (uint32_t)aligned(*used);
    memcpy(to + start, block, bytes);
    record->replicas = start / 8 + 1;
    *waste += start - *used;
    *used = start + bytes;
}

/* The same records in the same order, numbered without gaps.  Without memory all stays as it is. */
static void rebuild(md_shard *shard) {
    md_shard fresh = *shard;
    fresh.record_capacity = with_slack(shard->record_count, sizeof(md_record));
    fresh.extra_capacity = with_slack(shard->extra_count, sizeof(md_extra));
    uint32_t arena_live = shard->arena_used - shard->arena_waste;
    uint64_t arena = (uint64_t)arena_live + arena_live / 8 + 8ull * shard->record_count + 64;
    fresh.arena_capacity = arena > UINT32_MAX        ? UINT32_MAX
                           : arena < ARRAY_BYTES_MIN ? ARRAY_BYTES_MIN
                                                     : (uint32_t)arena;
    fresh.records = md_memory_map(fresh.record_capacity * sizeof(md_record));
    fresh.extras = md_memory_map(fresh.extra_capacity * sizeof(md_extra));
    fresh.arena = md_memory_map(fresh.arena_capacity);
    /* Where a record went; the numbers of list neighbours are translated with it. */
    uint32_t *moved = md_memory_map(shard->record_fresh * sizeof *moved);
    fresh.slots = NULL;
    fresh.record_fresh = fresh.record_free = 0;
    fresh.extra_fresh = fresh.extra_free = 0;
    fresh.arena_used = fresh.arena_waste = fresh.arena_touched = 0;
    if (fresh.records == NULL || fresh.extras == NULL || fresh.arena == NULL || moved == NULL)
        goto out;
    for (uint32_t i = 0; i < shard->record_fresh; i++) {
        const md_record *from = &shard->records[i];
        if (from->state == MD_RECORD_NONE)
            continue;
        md_record *to = &fresh.records[fresh.record_fresh++];
        *to = *from;
        moved[i] = fresh.record_fresh;
        move_bytes(to, shard->arena, fresh.arena, &fresh.arena_used, &fresh.arena_waste);
        if (from->extra != 0) {
            fresh.extras[fresh.extra_fresh] = shard->extras[from->extra - 1];
            fresh.extras[fresh.extra_fresh].record = fresh.record_fresh;
            to->extra = ++fresh.extra_fresh;
        }
    }
    if (!md_index_rebuild(&fresh, &fresh.slots, &fresh.slot_count, fresh.records,
                          fresh.record_fresh, fresh.record_fresh))
        goto out;
    for (uint32_t i = 0; i < fresh.record_fresh; i++) {
        md_record *record = &fresh.records[i];
        if (!(record->flags & MD_IS_LISTED))
            continue;
        record->newer = record->newer == 0 ? 0 : moved[record->newer - 1];
        record->older = record->older == 0 ? 0 : moved[record->older - 1];
    }
    for (uint32_t class = 0; class < MD_CLASSES; class++) {
        md_queue *list = &fresh.lists[class];
        list->oldest = list->oldest == 0 ? 0 : moved[list->oldest - 1];
        list->newest = list->newest == 0 ? 0 : moved[list->newest - 1];
    }
    if (fresh.hand != 0 && fresh.hand != MD_HAND_AT_END)
        fresh.hand = moved[fresh.hand - 1];
    fresh.generation++;
    md_memory_unmap(moved, shard->record_fresh * sizeof *moved);
    md_shard_close(shard);
    *shard = fresh;
    return;
out:
    md_memory_unmap(moved, shard->record_fresh * sizeof *moved);
    md_memory_unmap(fresh.records, fresh.record_capacity * sizeof(md_record));
    md_memory_unmap(fresh.extras, fresh.extra_capacity * sizeof(md_extra));
    md_memory_unmap(fresh.arena, fresh.arena_capacity);
}

static bool should_compact(const md_shard *shard) {
    return shard->arena_used > COMPACT_ARENA_MIN && shard->arena_used <= REBUILD_ARENA_MIN &&
           shard->arena_waste > shard->arena_used / 2;
}

/* Keys and blocks side by side again; the records keep their numbers.  Without memory all stays as it is. */
static void compact(md_shard *shard) {
    /* Less than half of the arena is alive, and a block moves by 7 bytes at most. */
    uint32_t used = 0, waste = 0, room = shard->arena_used;
    uint8_t *live = md_memory_map(room);
    if (live == NULL)
        return;
    for (uint32_t i = 0; i < shard->record_fresh; i++)
        if (shard->records[i].state != MD_RECORD_NONE)
            move_bytes(&shard->records[i], shard->arena, live, &used, &waste);
    assert(used <= room);
    memcpy(shard->arena, live, used);
    if (shard->arena_touched < room)
        shard->arena_touched = room;
    shard->arena_used = used;
    shard->arena_waste = waste;
    md_memory_unmap(live, room);
}

void md_shard_remove(md_shard *shard, uint32_t record) {
    md_record *at = md_record_at(shard, record);
    assert(!(at->flags & MD_IS_LISTED));
    md_index_remove(shard, record);
    shard->arena_waste += at->key_length;
    if (at->replicas != 0)
        shard->arena_waste += block_of(shard, at)->bytes;
    if (at->extra != 0) {
        shard->extras[at->extra - 1] = (md_extra){.tenant = shard->extra_free};
        shard->extra_free = at->extra;
        shard->extra_count--;
    }
    *at = (md_record){.newer = shard->record_free};
    shard->record_free = record;
    shard->record_count--;
    if (shard->record_count == 0)
        empty(shard);
    else if (should_rebuild(shard))
        rebuild(shard);
    else if (should_compact(shard))
        compact(shard);
}
