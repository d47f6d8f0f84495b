/* All invariants of the core, for tests. */
#include "md_internal.h"

#include <stdlib.h>

typedef struct check {
    const md_core *core;
    md_used *used; /* every run of pages of one segment */
    uint32_t count, capacity;
    uint64_t writing, complete, unpinned, leaving, held;
} check;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return __LINE__;                                                                       \
    } while (0)

/* Memory for the check itself is not the core's: it does not fail when a test lets that fail. */
static void add_run(check *check, uint32_t page, uint32_t page_count) {
    if (check->count == check->capacity) {
        check->capacity = check->capacity == 0 ? 256 : check->capacity * 2;
        check->used = realloc(check->used, check->capacity * sizeof *check->used);
        if (check->used == NULL)
            abort();
    }
    check->used[check->count++] = (md_used){.page = page, .page_count = page_count};
}

static uint64_t add_replicas(check *check, const md_replica_set *set, uint32_t server,
                             uint32_t segment) {
    uint64_t pages = 0;
    for (uint32_t i = 0; i < set->count; i++) {
        if (set->replicas[i].state != MD_REPLICA_THERE || set->replicas[i].server != server ||
            set->replicas[i].segment != segment)
            continue;
        for (uint32_t part = 0; part < set->replicas[i].extent_count; part++) {
            add_run(check, set->extents[i][part].page, set->extents[i][part].page_count);
            pages += set->extents[i][part].page_count;
        }
    }
    return pages;
}

static int by_page(const void *a, const void *b) {
    uint32_t left = ((const md_used *)a)->page, right = ((const md_used *)b)->page;
    return left < right ? -1 : left > right;
}

/* Invariant 7: every page of the segment is in exactly one run. */
static int check_segment(check *check, uint32_t server, uint32_t number) {
    const md_core *core = check->core;
    const md_segment *segment = &core->servers[server].segments[number];
    check->count = 0;
    check->writing = check->complete = check->unpinned = check->leaving = check->held = 0;
    for (uint32_t s = 0; s < MD_SHARDS; s++) {
        const md_shard *shard = &core->shards[s];
        for (uint32_t i = 0; i < shard->record_fresh; i++) {
            const md_record *record = &shard->records[i];
            if (record->state == MD_RECORD_NONE)
                continue;
            md_replica_set set;
            md_record_replicas(shard, record, &set);
            uint64_t pages = add_replicas(check, &set, server, number);
            if (record->state == MD_RECORD_WRITING)
                check->writing += pages;
            else
                check->complete += pages;
            if (record->state == MD_RECORD_COMPLETE &&
                !(record->flags & (MS_OBJECT_HARD_PIN | MD_IS_PINNED)))
                check->unpinned += pages;
        }
    }
    for (uint32_t number_of = core->change_first; number_of != 0;) {
        const md_change *change = md_pool_at(&core->changes, number_of);
        md_replica_set set = {.count = change->version == 0 ? 0 : change->target_count};
        const ms_extent *extents = change->extents;
        for (uint32_t i = 0; i < set.count; i++) {
            set.replicas[i] = change->targets[i];
            set.extents[i] = extents;
            extents += change->targets[i].extent_count;
        }
        check->writing += add_replicas(check, &set, server, number);
        number_of = change->next;
    }
    for (uint32_t i = 0; i < core->free_of.capacity; i++) {
        uint32_t free = core->free_of.slots[i].value;
        const md_free *at = free == 0 ? NULL : md_pool_at(&core->frees, free);
        if (at == NULL || at->server != server || at->segment != number)
            continue;
        add_run(check, at->page, at->page_count);
        *(at->is_cleared ? &check->held : &check->leaving) += at->page_count;
    }
    for (uint32_t i = 0; i < segment->allocator.count; i++) {
        const md_run *run = &segment->allocator.runs[i];
        CHECK(run->page + (uint64_t)run->page_count <= segment->page_ready);
        add_run(check, run->page, run->page_count);
    }
    for (uint32_t i = 0; i < segment->unready_count; i++)
        if (segment->unready[i].page_count != 0)
            add_run(check, segment->unready[i].page, segment->unready[i].page_count);
    CHECK(md_allocator_check(&segment->allocator) == 0);
    if (check->count > 0)
        qsort(check->used, check->count, sizeof *check->used, by_page);
    uint64_t page = 0;
    for (uint32_t i = 0; i < check->count; i++) {
        CHECK(check->used[i].page == page);
        page += check->used[i].page_count;
    }
    CHECK(page == segment->page_count);
    CHECK(check->writing == segment->pages_writing);
    CHECK(check->complete == segment->pages_complete);
    CHECK(check->unpinned == segment->pages_unpinned);
    CHECK(check->leaving == segment->pages_leaving);
    CHECK(check->held == segment->pages_held);
    return 0;
}

static int check_lists(const md_shard *shard, uint64_t *listed, uint64_t *soft) {
    uint32_t in_lists = 0, flagged = 0;
    for (uint32_t class = 0; class < MD_CLASSES; class++) {
        const md_queue *queue = &shard->lists[class];
        CHECK((queue->oldest != 0) == (shard->classes >> class & 1));
        CHECK((queue->oldest != 0) == (queue->newest != 0));
        uint32_t older = 0;
        for (uint32_t at = queue->oldest; at != 0; at = shard->records[at - 1].newer) {
            const md_record *record = &shard->records[at - 1];
            CHECK(at <= shard->record_fresh && record->older == older &&
                  record->list_class == class);
            CHECK(record->flags & MD_IS_LISTED && record->state == MD_RECORD_COMPLETE);
            CHECK(!(record->flags & (MS_OBJECT_HARD_PIN | MD_IS_PINNED | MD_IS_PARENT)));
            older = at;
            CHECK(++in_lists <= shard->record_count);
            *soft += class == MD_CLASS_SOFT;
        }
        CHECK(queue->newest == older);
    }
    for (uint32_t i = 0; i < shard->record_fresh; i++) {
        const md_record *record = &shard->records[i];
        flagged += (record->flags & MD_IS_LISTED) != 0;
        if (record->state == MD_RECORD_COMPLETE &&
            !(record->flags & (MS_OBJECT_HARD_PIN | MD_IS_PINNED | MD_IS_PARENT)))
            CHECK(record->flags & MD_IS_LISTED);
    }
    CHECK(flagged == in_lists);
    *listed += in_lists;
    return 0;
}

/* Objects with fewer replicas than wanted. */
typedef struct shortage {
    uint64_t objects, replicas;
} shortage;

static int check_shard(const md_core *core, uint32_t number, uint64_t *objects, uint64_t *writing,
                       shortage *short_of) {
    const md_shard *shard = &core->shards[number];
    uint32_t records = 0, slots = 0, extras = 0;
    for (uint32_t i = 0; i < shard->record_fresh; i++) {
        const md_record *record = &shard->records[i];
        if (record->state == MD_RECORD_NONE)
            continue;
        records++;
        *objects += record->state == MD_RECORD_COMPLETE;
        md_replica_set set;
        md_record_replicas(shard, record, &set);
        if (record->state == MD_RECORD_COMPLETE && set.count < record->more_wanted + 1u) {
            short_of->objects++;
            short_of->replicas += record->more_wanted + 1u - set.count;
        }
        *writing += record->state == MD_RECORD_WRITING;
        CHECK(md_shard_of(record->hash) == number);
        CHECK(md_index_find(shard, record->hash, (md_record_state)record->state) == i + 1);
        CHECK(record->key + record->key_length <= shard->arena_used);
        if (record->extra != 0) {
            CHECK(shard->extras[record->extra - 1].record == i + 1);
            extras++;
        }
        if (record->state == MD_RECORD_WRITING && record->version != 0) {
            const md_put *put = md_pool_at(&core->puts, record->newer);
            CHECK(put->version == record->version && ms_hash_equal(put->hash, record->hash));
            CHECK(md_map_get(&core->put_of, put->version) == record->newer);
        }
        const md_hold *hold = md_hold_find(core, record->hash);
        if (record->state == MD_RECORD_COMPLETE) {
            CHECK(((record->flags & MD_IS_PINNED) != 0) == (hold != NULL && hold->pin_count > 0));
            CHECK(((record->flags & MD_IS_PARENT) != 0) == (hold != NULL && hold->children > 0));
        }
    }
    for (uint32_t i = 0; i < shard->slot_count; i++)
        slots += shard->slots[i].record != 0;
    CHECK(records == shard->record_count && slots == records && extras == shard->extra_count);
    CHECK(shard->arena_waste <= shard->arena_used);
    return 0;
}

static int check_waits(const md_core *core) {
    uint64_t links = 0;
    for (uint32_t i = 0; i < core->leave_of.capacity; i++)
        for (uint32_t number = core->leave_of.slots[i].value; number != 0;) {
            const md_leave *leave = md_pool_at(&core->leaves, number);
            for (uint32_t link = leave->first_link; link != 0; links++)
                link = ((const md_link *)md_pool_at(&core->links, link))->next;
            uint32_t open = 0;
            for (uint32_t free = leave->first_free; free != 0;) {
                const md_free *at = md_pool_at(&core->frees, free);
                CHECK(at->leave == number);
                open += !at->is_cleared;
                free = at->leave_next;
            }
            CHECK(open == leave->uncleared && open > 0);
            number = leave->next;
        }
    for (uint32_t i = 0; i < core->stone_of.capacity; i++)
        for (uint32_t number = core->stone_of.slots[i].value; number != 0;) {
            const md_stone *stone = md_pool_at(&core->stones, number);
            for (uint32_t link = stone->first_link; link != 0; links++)
                link = ((const md_link *)md_pool_at(&core->links, link))->next;
            number = stone->next;
        }
    CHECK(links == core->links.count && core->waits.count <= links);
    uint32_t parked = 0, changes = 0, notes = 0;
    for (uint32_t put = core->park_first; put != 0; parked++) {
        CHECK(((const md_put *)md_pool_at(&core->puts, put))->version == 0);
        put = ((const md_put *)md_pool_at(&core->puts, put))->park_next;
    }
    uint32_t of_tasks = 0, running = 0;
    for (uint32_t change = core->change_first; change != 0; changes++) {
        const md_change *at = md_pool_at(&core->changes, change);
        of_tasks += at->for_task != 0;
        change = at->next;
    }
    for (uint32_t i = 0; i < MD_TASKS_MAX; i++)
        running += core->background[i].running;
    CHECK(running == of_tasks && core->task_changes == of_tasks);
    for (uint32_t i = 0; i < core->note_of.capacity; i++) {
        uint32_t note = core->note_of.slots[i].value;
        notes += note != 0 &&
                 ((const md_note *)md_pool_at(&core->notes, note))->audience == MD_NOTE_FOR_WAITER;
    }
    CHECK(changes == core->changes.count);
    CHECK(core->answers_due == core->waits.count + parked + changes - of_tasks + notes);
    return 0;
}

int md_check(const md_core *core) {
    uint64_t objects = 0, writing = 0, listed = 0, soft = 0;
    shortage short_of = {0};
    int line = 0;
    for (uint32_t s = 0; s < MD_SHARDS && line == 0; s++) {
        line = check_shard(core, s, &objects, &writing, &short_of);
        if (line == 0)
            line = check_lists(&core->shards[s], &listed, &soft);
    }
    if (line != 0)
        return line;
    CHECK(short_of.objects == MD_COUNT(core, objects_short) &&
          short_of.replicas == MD_COUNT(core, replicas_short));
    CHECK(objects == MD_COUNT(core, objects) && writing == MD_COUNT(core, puts_open));
    CHECK(writing == core->puts.count && listed == core->listed_count && soft == core->soft_count);
    CHECK(core->frees.count == core->free_of.count &&
          core->sessions.count == core->session_of.count);
    line = check_waits(core);
    check check = {.core = core};
    for (uint32_t i = 0; i < core->server_count && line == 0; i++)
        for (uint32_t j = 0;
             core->servers[i].is_adopted && j < core->servers[i].segment_count && line == 0; j++)
            line = check_segment(&check, i, j);
    free(check.used);
    return line;
}
