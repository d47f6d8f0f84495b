/* Counters, the state of the space, and the check of all invariants. */
#include "md_internal.h"

#include <string.h>

static const char *const COUNTER_NAMES[] = {
#define X(name) #name,
    MD_COUNTERS(X)
#undef X
};

size_t md_counter_count(void) { return MD_COUNTER_COUNT; }
const char *md_counter_name(size_t id) { return id < MD_COUNTER_COUNT ? COUNTER_NAMES[id] : NULL; }
uint64_t md_counter(const md_core *core, size_t id) {
    return id < MD_COUNTER_COUNT ? core->counters[id] : 0;
}

static uint64_t object_pages(const md_core *core, const md_shard *shard, const md_record *record) {
    md_replica_set set;
    uint64_t pages = 0;
    md_record_replicas(shard, record, &set);
    for (uint32_t i = 0; i < set.count; i++)
        for (uint32_t j = 0;
             core->servers[set.replicas[i].server].is_counted && j < set.replicas[i].extent_count;
             j++)
            pages += set.extents[i][j].page_count;
    return pages;
}

void md_space_report(md_core *core, md_space *space) {
    *space = (md_space){0};
    uint64_t pinned_pages = 0;
    for (uint32_t i = 0; i < core->server_count; i++) {
        const md_server *server = &core->servers[i];
        if (!server->is_adopted)
            continue;
        for (uint32_t j = 0; j < server->segment_count; j++) {
            const md_segment *segment = &server->segments[j];
            space->bytes_total += segment->page_count * MS_PAGE_SIZE;
            space->bytes_free += segment->allocator.pages_free * MS_PAGE_SIZE;
            space->bytes_writing += segment->pages_writing * MS_PAGE_SIZE;
            space->bytes_freeing += (segment->pages_leaving + segment->pages_held) * MS_PAGE_SIZE;
            space->bytes_complete += segment->pages_complete * MS_PAGE_SIZE;
            pinned_pages += segment->pages_complete - segment->pages_unpinned;
        }
    }
    /* Sessions' pins are found by their holds; what else is pinned is pinned hard. */
    for (uint32_t i = 0; i < core->hold_of.capacity; i++)
        for (uint32_t number = core->hold_of.slots[i].value; number != 0;) {
            const md_hold *hold = md_pool_at(&core->holds, number);
            number = hold->next;
            md_shard *shard = &core->shards[md_shard_of(hold->hash)];
            uint32_t found =
                hold->pin_count == 0 ? 0 : md_index_find(shard, hold->hash, MD_RECORD_COMPLETE);
            if (found == 0)
                continue;
            bool has_deadline = false;
            for (uint32_t pin = hold->first_pin; pin != 0;) {
                const md_pinning *at = md_pool_at(&core->pins, pin);
                has_deadline |= at->count == 0 || at->deadline_ms != MD_NEVER;
                pin = at->hold_next;
            }
            if (md_record_at(shard, found)->flags & MS_OBJECT_HARD_PIN)
                continue;
            uint64_t bytes = object_pages(core, shard, md_record_at(shard, found)) * MS_PAGE_SIZE;
            *(has_deadline ? &space->bytes_leased : &space->bytes_pinned) += bytes;
        }
    uint64_t pinned = pinned_pages * MS_PAGE_SIZE,
             by_session = space->bytes_leased + space->bytes_pinned;
    space->bytes_hard_pinned = pinned > by_session ? pinned - by_session : 0;
    space->object_bytes_max = md_placeable_pages_max(core) * MS_PAGE_SIZE;
    if (space->object_bytes_max > MS_VALUE_BYTES_MAX)
        space->object_bytes_max = MS_VALUE_BYTES_MAX;
}
