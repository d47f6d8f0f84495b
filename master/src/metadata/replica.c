/* change_replica: more copies of an object, fewer, or elsewhere.
 *
 * Fewer is a matter of the index.  For more, or elsewhere, the object is put again: all of its new replicas are
 * copies under a new version, and when they are sealed the entry switches, as in an upsert.  Keeping the
 * version would spare the copies on servers that have it already, but does not work in a pool that has been
 * used for a while: words only grow, so a page that has held a later version cannot name an earlier
 * one, and the objects that are worth a second copy are the old ones that everybody reads.
 * Servers that do not have the object copy it from one that has; those that have it (and keep it) then copy
 * it from one of these, since a server does not pull from itself.
 * An open put of the key and a change exclude each other, so the version that an entry switches to is always
 * above the one it had.
 */
#include "md_internal.h"

#include <assert.h>
#include <string.h>

#define ROOM_TIMEOUT_MS 10000
#define COPY_TIMEOUT_MS 60000
#define COPY_BYTES_PER_MS_MIN 16384 /* large objects take longer */
#define RETRY_MS 100
#define AFTER_COPY_VISITS 256u

static md_change *change_at(md_core *core, uint32_t change) {
    return md_pool_at(&core->changes, change);
}

static bool is_in_touch(const md_server *server) {
    return server->is_adopted && server->state != MS_MEMBER_GONE;
}

/* By hash.  There are seldom more than a few hundred, and only objects that are changing are asked for. */
static uint32_t change_find(md_core *core, ms_hash hash) {
    uint32_t change = core->change_first;
    while (change != 0 && !ms_hash_equal(change_at(core, change)->hash, hash))
        change = change_at(core, change)->next;
    return change;
}

static md_record *record_of(md_core *core, const md_change *change) {
    md_shard *shard = &core->shards[md_shard_of(change->hash)];
    uint32_t record = md_index_find(shard, change->hash, MD_RECORD_COMPLETE);
    assert(record != 0 && md_record_at(shard, record)->version == change->source_version);
    return md_record_at(shard, record);
}

static md_replica_set targets_of(const md_change *change) {
    md_replica_set set = {.count = change->target_count};
    const ms_extent *extents = change->extents;
    for (uint32_t i = 0; i < set.count; i++) {
        set.replicas[i] = change->targets[i];
        set.extents[i] = extents;
        extents += change->targets[i].extent_count;
    }
    return set;
}

static void forget(md_core *core, uint32_t change) {
    md_change *at = change_at(core, change);
    md_timer_stop(core, &at->timer);
    if (at->next != 0)
        change_at(core, at->next)->previous = at->previous;
    else
        core->change_last = at->previous;
    if (at->previous != 0)
        change_at(core, at->previous)->next = at->next;
    else
        core->change_first = at->next;
    if (at->version != 0) {
        md_map_remove(&core->task_of, at->tasks / MS_REPLICAS_MAX);
        MD_COUNT(core, changes_running)--;
    }
    md_memory_small_free(at->extents);
    record_of(core, at)->is_changing = 0;
    md_pool_give(&core->changes, change);
}

uint32_t md_change_extents(md_core *core, ms_hash hash) {
    uint32_t change = change_find(core, hash);
    return change == 0 ? 0 : change_at(core, change)->extent_count;
}

/* Whoever asked for it is told; its record is still there. */
static void end(md_core *core, const md_change *change, ms_status status, uint64_t version) {
    if (change->for_task == 0) {
        md_answer(core, change->waiter, status, version);
        return;
    }
    const md_record *record = record_of(core, change);
    md_task_change_ended(core, change->for_task, &core->shards[md_shard_of(change->hash)], record,
                         ms_pages_of(record->size) * MS_PAGE_SIZE, change->first_count, status);
}

static bool cancel(md_core *core, uint32_t change, uint32_t leave, ms_status status) {
    md_change *at = change_at(core, change);
    if (at->version != 0) {
        bool own = leave == 0;
        if (own) {
            if (!md_reserve(core, at->extent_count, 0))
                return false;
            leave = md_leave_open(core, at->hash, at->version);
        }
        md_leave_raise(core, leave, at->version);
        md_replica_set set = targets_of(at);
        md_pages_count(core, &set, MD_PAGES_WRITING, -1);
        for (uint32_t i = 0; i < set.count; i++)
            for (uint32_t part = 0; part < set.replicas[i].extent_count; part++)
                md_free_start(core, leave, set.replicas[i].server, set.replicas[i].segment,
                              set.extents[i][part], at->version, 0);
        if (own)
            md_leave_opened(core, leave);
    }
    MD_COUNT(core, changes_failed)++;
    end(core, at, status, 0);
    forget(core, change);
    return true;
}

bool md_change_cancel(md_core *core, ms_hash hash, uint32_t leave, ms_status status) {
    uint32_t change = change_find(core, hash);
    return change == 0 || cancel(core, change, leave, status);
}

/* Ends it now, or when there is memory for that. */
static void fail(md_core *core, uint32_t change, ms_status status) {
    md_change *at = change_at(core, change);
    if (cancel(core, change, 0, status))
        return;
    at->ends_with = status;
    md_timer_stop(core, &at->timer);
    if (md_pool_reserve(&core->wheel.timers, 1))
        at->timer = md_timer_start(core, core->now.now_ms + RETRY_MS, MD_TIMER_CHANGE, change);
}

void md_change_timer(md_core *core, uint32_t change) {
    md_change *at = change_at(core, change);
    at->timer = 0;
    /* One that was never placed has waited for room in vain. */
    fail(core, change,
         at->ends_with != MS_OK ? at->ends_with
         : at->version == 0     ? MS_NO_SPACE
                                : MS_TIMEOUT);
}

void md_changes_server_gone(md_core *core, uint32_t server) {
    for (uint32_t change = core->change_first; change != 0;) {
        md_change *at = change_at(core, change);
        uint32_t next = at->next;
        bool is_concerned = false;
        for (uint32_t i = 0; i < at->target_count; i++)
            is_concerned |= at->targets[i].server == server;
        md_replica_set set;
        md_record_replicas(&core->shards[md_shard_of(at->hash)], record_of(core, at), &set);
        for (uint32_t i = 0; i < set.count && at->version != 0; i++)
            is_concerned |= set.replicas[i].server == server;
        if (is_concerned)
            fail(core, change, MS_UNAVAILABLE);
        change = next;
    }
}

void md_changes_close(md_core *core) {
    for (uint32_t change = core->change_first; change != 0; change = change_at(core, change)->next)
        md_memory_small_free(change_at(core, change)->extents);
}

/* ---- copies ---------------------------------------------------------------------------------------------- */
static bool ask_copies(md_core *core, md_change *change, uint32_t from, uint32_t to) {
    if (!md_effects_reserve(core, to - from))
        return false;
    for (uint32_t i = from; i < to; i++) {
        md_effect *effect = md_effect_push(core, MD_EFFECT_COPY);
        effect->server = change->targets[i].server;
        effect->task = change->tasks + i;
        effect->version = change->version;
        effect->hash = change->hash;
        change->asked |= 1u << i;
    }
    return true;
}

/* Places the replicas: servers without the object first, then those that have it and keep it.  A server that drains
 * keeps nothing. */
static bool place(md_core *core, md_change *change) {
    md_shard *shard = &core->shards[md_shard_of(change->hash)];
    md_record *record = record_of(core, change);
    md_replica_set set;
    md_record_replicas(shard, record, &set);
    md_wish wish = {.pages = ms_pages_of(record->size), .preferred = change->target_server};
    for (uint32_t i = 0; i < set.count; i++) {
        if (set.replicas[i].state != MD_REPLICA_THERE)
            continue;
        const md_server *holder = &core->servers[set.replicas[i].server];
        wish.spared[wish.spared_count++] = set.replicas[i].server;
        if (set.replicas[i].server + 1u != change->leaving_server && !holder->is_draining &&
            !holder->is_lost)
            wish.kept[wish.kept_count++] = set.replicas[i].server;
    }
    if (wish.kept_count >= change->replica_count)
        wish.kept_count = change->replica_count - 1;
    wish.count = change->replica_count - wish.kept_count;
    uint32_t count = md_place(core, &wish, change->targets);
    bool is_right = count >= (change->is_whole ? wish.count : 1) &&
                    (change->target_server == 0 ||
                     (count > 0 && change->targets[0].server + 1u == change->target_server));
    change->first_count = count;
    uint32_t extent_count = 0;
    for (uint32_t i = 0; i < count; i++)
        extent_count += change->targets[i].extent_count;
    for (uint32_t i = 0; is_right && i < wish.kept_count; i++) {
        is_right = md_place_on(core, wish.pages, wish.kept[i], core->scratch + extent_count,
                               &change->targets[count]);
        if (is_right)
            extent_count += change->targets[count++].extent_count;
    }
    ms_extent *extents = is_right ? md_memory_small(NULL, extent_count * sizeof(ms_extent)) : NULL;
    if (extents == NULL || !md_map_reserve(&core->task_of, 1) || !md_effects_reserve(core, count)) {
        md_memory_small_free(extents);
        md_place_undo(core, count, change->targets);
        return false;
    }
    memcpy(extents, core->scratch, extent_count * sizeof(ms_extent));
    change->extents = extents;
    change->extent_count = extent_count;
    change->target_count = count;
    return true;
}

static void begin(md_core *core, uint32_t number) {
    md_change *change = change_at(core, number);
    md_record *record = record_of(core, change);
    const md_extra *extra = md_record_extra(&core->shards[md_shard_of(change->hash)], record);
    change->version = md_version_next(core);
    change->note = extra == NULL ? 0 : extra->note;
    change->tasks = core->tasks;
    core->tasks += MS_REPLICAS_MAX;
    md_map_set(&core->task_of, change->tasks / MS_REPLICAS_MAX, number);
    md_timer_stop(core, &change->timer); /* so there is one to take */
    int64_t timeout_ms = COPY_TIMEOUT_MS + (int64_t)(record->size / COPY_BYTES_PER_MS_MIN);
    change->timer = md_timer_start(core, core->now.now_ms + timeout_ms, MD_TIMER_CHANGE, number);
    md_replica_set set = targets_of(change);
    md_pages_count(core, &set, MD_PAGES_WRITING, 1);
    MD_COUNT(core, changes_running)++;

    ask_copies(core, change, 0, change->first_count);
}

/* Could any server without the object take it if all left there that may leave?  Nothing is evicted in vain. */
static bool room_is_possible(md_core *core, const md_change *change) {
    md_shard *shard = &core->shards[md_shard_of(change->hash)];
    const md_record *record = record_of(core, change);
    md_replica_set set;
    md_record_replicas(shard, record, &set);
    for (uint32_t i = 0; i < core->server_count; i++) {
        bool is_holder = false;
        for (uint32_t j = 0; j < set.count; j++)
            is_holder |= set.replicas[j].server == i;
        if (!is_holder && (change->target_server == 0 || change->target_server == i + 1) &&
            md_server_is_possible(core, i, ms_pages_of(record->size)))
            return true;
    }
    return false;
}

void md_changes_run(md_core *core) {
    /* Puts that wait for room come first. */
    for (uint32_t change = core->change_first;
         change != 0 && core->park_first == 0 &&
         MD_COUNT(core, changes_running) < MD_COPIES_RUNNING_MAX;) {
        md_change *at = change_at(core, change);
        uint32_t next = at->next;
        if (at->version == 0) {
            if (place(core, at)) {
                begin(core, change);
            } else if (room_is_possible(core, at)) {
                /* Room for it is made, and the next tick tries again; this may evict what was to be copied. */
                uint64_t pages = ms_pages_of(record_of(core, at)->size);
                uint64_t all_pages = pages * at->replica_count;
                ms_hash next_hash = next == 0 ? (ms_hash){0} : change_at(core, next)->hash;
                md_cause cause = {.kind = MS_FATE_EVICTED_FOR_COPY,
                                  .bytes = all_pages * MS_PAGE_SIZE};
                while ((md_pages_coming(core) < all_pages || md_coming(core, pages, 0) == 0) &&
                       md_evict_next(core, false, cause)) {
                }
                next = next == 0 ? 0 : change_find(core, next_hash);
            }
        }
        change = next;
    }
}

/* Flags of the object as its copies carry them. */
static uint8_t change_flags(const md_change *change, const md_record *record) {
    return (uint8_t)((record->flags & MD_OBJECT_FLAGS) | ms_wanted_flags(change->wanted));
}

ms_status md_write_copy(md_core *core, uint64_t task, ms_writer *out) {
    uint32_t number = md_map_get(&core->task_of, task / MS_REPLICAS_MAX);
    uint32_t target = (uint32_t)(task % MS_REPLICAS_MAX);
    if (number == 0 || target >= change_at(core, number)->target_count)
        return MS_GONE;
    md_change *change = change_at(core, number);
    md_shard *shard = &core->shards[md_shard_of(change->hash)];
    md_record *record = record_of(core, change);
    md_replica_set sources, targets = targets_of(change);
    md_record_replicas(shard, record, &sources);
    bool is_first = target < change->first_count;
    md_replica_set *from = is_first ? &sources : &targets;
    uint32_t source = 0;
    while (source < from->count && !(from->replicas[source].state == MD_REPLICA_THERE &&
                                     is_in_touch(&core->servers[from->replicas[source].server])))
        source++;
    if (source == from->count)
        return MS_UNAVAILABLE;

    const md_replica *to = &change->targets[target];
    ms_copy_request head = {.epoch = core->config.epoch,
                            .incarnation = core->servers[to->server].incarnation,
                            .task = task};
    MS_WRITER_STRUCT(out, &head);
    ms_location location = {.status = MS_OK,
                            .replica_count = 1,
                            .version = is_first ? change->source_version : change->version,
                            .size = record->size,
                            .checksum =
                                record->flags & MS_OBJECT_HAS_CHECKSUM ? record->checksum : 0,
                            .flags = change_flags(change, record),
                            .lifetime_ms = core->config.location_lifetime_ms};
    MS_WRITER_STRUCT(out, &location);
    const md_replica *ends[] = {&from->replicas[source], to};
    const ms_extent *extents[] = {from->extents[source], targets.extents[target]};
    for (uint32_t i = 0; i < 2; i++) {
        const md_server *server = &core->servers[ends[i]->server];
        ms_replica replica = {.server = ends[i]->server,
                              .incarnation = server->incarnation,
                              .segment = ends[i]->segment,
                              .extent_count = ends[i]->extent_count,
                              .tier = (uint8_t)server->segments[ends[i]->segment].tier,
                              .state = i == 0};
        MS_WRITER_STRUCT(out, &replica);
        ms_writer_bytes(out, extents[i], replica.extent_count * sizeof(ms_extent));
    }
    const md_extra *extra = md_record_extra(shard, record);
    const char *tenant = core->tenants[md_record_tenant(shard, record)];
    ms_seal seal = {.hash = record->hash,
                    .size = record->size,
                    .expiry_ms = md_wall_expiry(core, md_record_expiry(shard, record)),
                    .parent = extra == NULL ? (ms_hash){0} : extra->parent,
                    .group = extra == NULL ? 0 : extra->group,
                    .number = change->version,
                    .checksum = location.checksum,
                    .part = 0,
                    .part_count = to->extent_count,
                    .key_length = record->key_length,
                    .flags = (uint8_t)(location.flags | MS_OBJECT_IS_COPY),
                    .tenant_length = (uint8_t)tenant[0]};
    ms_writer_seal(out, &seal, tenant + 1, md_record_key(shard, record));
    return out->status;
}

static bool has_server(const md_replica_set *set, uint32_t server) {
    for (uint32_t i = 0; i < set->count; i++)
        if (set->replicas[i].server == server && set->replicas[i].state == MD_REPLICA_THERE)
            return true;
    return false;
}

/* An event for each server that is in one set and not in the other. */
static void tell_difference(md_core *core, const md_record *record, const md_replica_set *set,
                            const md_replica_set *other, enum ms_event_kind kind) {
    md_shard *shard = &core->shards[md_shard_of(record->hash)];
    for (uint32_t i = 0; i < set->count; i++)
        if (set->replicas[i].state == MD_REPLICA_THERE &&
            !has_server(other, set->replicas[i].server))
            md_event(core, kind, record->version, record->size, set->replicas[i].server + 1u,
                     md_record_key(shard, record), record->key_length);
}

/* All copies are sealed: the entry switches, the old extents leave. */
static void finish(md_core *core, uint32_t number) {
    md_change *change = change_at(core, number);
    uint32_t shard_number = md_shard_of(change->hash);
    md_shard *shard = &core->shards[shard_number];
    md_record *record = record_of(core, change);
    uint32_t old_extents = md_record_extent_count(shard, record);
    if (!md_reserve(core, old_extents, 0) ||
        !md_shard_reserve(shard, 0, md_replica_bytes(change->target_count, change->extent_count))) {
        fail(core, number, MS_NO_MEMORY);
        return;
    }
    record = record_of(core, change);
    md_replica_set old, new = targets_of(change);
    md_record_replicas(shard, record, &old);
    md_object_count(core, shard, record, -1);
    md_pages_count(core, &old, MD_PAGES_COMPLETE, -1);
    uint32_t leave = md_leave_open(core, change->hash, change->source_version);
    for (uint32_t i = 0; i < old.count; i++)
        for (uint32_t part = 0; part < old.replicas[i].extent_count; part++)
            if (old.replicas[i].state == MD_REPLICA_THERE &&
                !core->servers[old.replicas[i].server].is_lost)
                md_free_start(core, leave, old.replicas[i].server, old.replicas[i].segment,
                              old.extents[i][part], change->source_version, 0);
    md_pages_count(core, &new, MD_PAGES_WRITING, -1);
    md_record_set_replicas(shard, record, new.count, new.replicas, new.extents);
    record->version = change->source_version = change->version;
    record->is_copy = 1;
    record->more_wanted = (change->wanted - 1) & (MS_REPLICAS_MAX - 1);
    md_pages_count(core, &new, MD_PAGES_COMPLETE, 1);
    md_object_count(core, shard, record, 1);
    md_leave_opened(core, leave);
    tell_difference(core, record, &old, &new, MS_EVENT_REPLICA_LOST);
    tell_difference(core, record, &new, &old, MS_EVENT_REPLICA_ADDED);
    MD_COUNT(core, replicas_added) += change->first_count;
    MD_COUNT(core, changes_done)++;
    end(core, change, MS_OK, change->version);
    forget(core, number);
    md_changes_run(core);
}

/* Notes that came while the copies were made did not reach the new holders: they count only when they have the
 * current one. */
static void all_copied(md_core *core, uint32_t number) {
    md_change *change = change_at(core, number);
    md_shard *shard = &core->shards[md_shard_of(change->hash)];
    md_record *record = record_of(core, change);
    const md_extra *extra = md_record_extra(shard, record);
    uint64_t note = extra == NULL ? 0 : extra->note;
    if (note == change->note) {
        finish(core, number);
        return;
    }
    change->note = note;
    change->is_noting = 1;
    md_replica_set set = targets_of(change);
    ms_status status = md_note_start(core, change->hash, change->version,
                                     change_flags(change, record), md_record_expiry(shard, record),
                                     set.count, set.replicas, set.extents, MD_NOTE_FOR_CHANGE, 0);
    if (status != MS_PENDING)
        fail(core, number, status);
}

void md_change_noted(md_core *core, uint64_t version, ms_status status) {
    uint32_t number = core->change_first;
    while (number != 0 && change_at(core, number)->version != version)
        number = change_at(core, number)->next;
    if (number == 0)
        return;
    change_at(core, number)->is_noting = 0;
    if (status != MS_OK)
        fail(core, number, status);
    else
        all_copied(core, number); /* there may have been another note meanwhile */
}

static void copied(md_core *core, uint64_t task, ms_status status) {
    uint32_t number = md_map_get(&core->task_of, task / MS_REPLICAS_MAX);
    uint32_t target = (uint32_t)(task % MS_REPLICAS_MAX);
    if (number == 0 || target >= change_at(core, number)->target_count ||
        change_at(core, number)->ends_with != MS_OK)
        return;
    md_change *change = change_at(core, number);
    if (status != MS_OK) {
        fail(core, number, status);
        return;
    }
    change->copied |= 1u << target;
    uint32_t first = (1u << change->first_count) - 1, all = (1u << change->target_count) - 1;
    if (change->copied == all) {
        if (!change->is_noting)
            all_copied(core, number);
    } else if ((change->copied & first) == first && change->asked == first) {
        if (!ask_copies(core, change, change->first_count, change->target_count))
            fail(core, number, MS_NO_MEMORY);
    }
}

void md_copied(md_core *core, md_now now, uint64_t task, ms_status status) {
    md_set_now(core, now);
    copied(core, task, status);
    md_tasks_go_on(core, AFTER_COPY_VISITS); /* another one may begin in its place */
}

/* ---- what is asked ----------------------------------------------------------------------------------------- */
static bool shares_host(const md_core *core, const md_replica_set *set, uint64_t keep,
                        uint32_t server) {
    for (uint32_t i = 0; i < set->count; i++)
        if ((keep >> i & 1) != 0 && md_is_same_host(core, set->replicas[i].server, server))
            return true;
    return false;
}

/* Fewer: which replicas stay, as bits.  The one at `leaving` goes first, then those at servers that are away or drain,
 * then those whose host has one that stays, then the last ones. */
static uint64_t replicas_to_keep(const md_core *core, const md_replica_set *set, uint32_t count,
                                 uint32_t leaving) {
    uint64_t keep = 0;
    uint32_t kept = 0;
    for (uint32_t rank = 0; rank < 6; rank++)
        for (uint32_t i = 0; i < set->count && kept < count; i++) {
            const md_server *server = &core->servers[set->replicas[i].server];
            bool is_leaving = set->replicas[i].server + 1u == leaving;
            bool is_safe = is_in_touch(server) && !server->is_draining;
            if (set->replicas[i].state != MD_REPLICA_THERE || server->is_lost || keep >> i & 1 ||
                (is_leaving && rank < 4) || (!is_safe && rank < 2) ||
                (rank % 2 == 0 && shares_host(core, set, keep, set->replicas[i].server)))
                continue;
            keep |= 1ull << i;
            kept++;
        }
    return keep;
}

/* So many replicas are wanted from now on; its holders are told, for the masters to come.  A holder that cannot be
 * told makes no difference to the caller: all that can come of it is a replica more, one day. */
static ms_status want(md_core *core, uint32_t shard_number, uint32_t record, uint32_t wanted,
                      md_note_audience audience, uint64_t waiter) {
    md_shard *shard = &core->shards[shard_number];
    md_record *at = md_record_at(shard, record);
    if (at->more_wanted + 1u == wanted)
        return MS_OK;
    md_object_count(core, shard, at, -1);
    at->more_wanted = (wanted - 1) & (MS_REPLICAS_MAX - 1);
    md_object_count(core, shard, at, 1);
    ms_status status = md_note_object(core, shard_number, record, at->flags,
                                      md_record_expiry(shard, at), audience, waiter);
    return status == MS_PENDING ? MS_PENDING : MS_OK;
}

static ms_status reduce(md_core *core, uint32_t shard_number, uint32_t record, uint32_t count,
                        uint32_t leaving) {
    md_shard *shard = &core->shards[shard_number];
    md_replica_set set;
    md_record_replicas(shard, md_record_at(shard, record), &set);
    uint32_t extents = md_record_extent_count(shard, md_record_at(shard, record));
    if (!md_reserve(core, extents, 0) ||
        !md_shard_reserve(shard, 0, md_replica_bytes(set.count, extents)))
        return MS_NO_MEMORY;
    md_record_replicas(shard, md_record_at(shard, record), &set);
    md_object_keep_replicas(core, shard_number, record,
                            replicas_to_keep(core, &set, count, leaving));
    MD_COUNT(core, changes_done)++;
    return MS_OK;
}

bool md_has_candidate(md_core *core, const md_replica_set *set, uint32_t target) {
    for (uint32_t i = 0; i < core->server_count; i++) {
        bool is_holder = false;
        for (uint32_t j = 0; j < set->count; j++)
            is_holder |= set->replicas[j].server == i;
        if (!is_holder && md_server_takes_puts(&core->servers[i]) &&
            (target == 0 || target == i + 1))
            return true;
    }
    return false;
}

/* A change in the queue; 0: no memory. */
static uint32_t enter(md_core *core, const md_record *record, uint32_t count, uint32_t target,
                      uint32_t leaving) {
    if (!md_pool_reserve(&core->changes, 1) || !md_pool_reserve(&core->wheel.timers, 1) ||
        !md_effects_reserve(core, 1))
        return 0;
    uint32_t number = md_pool_take(&core->changes);
    md_change *change = change_at(core, number);
    change->hash = record->hash;
    change->source_version = record->version;
    change->replica_count = count;
    change->wanted = leaving == 0 ? count : record->more_wanted + 1u;
    change->target_server = target;
    change->leaving_server = leaving;
    change->previous = core->change_last;
    if (core->change_last != 0)
        change_at(core, core->change_last)->next = number;
    else
        core->change_first = number;
    core->change_last = number;
    change->timer =
        md_timer_start(core, core->now.now_ms + ROOM_TIMEOUT_MS, MD_TIMER_CHANGE, number);
    record_of(core, change)->is_changing = 1;
    return number;
}

static ms_status enqueue(md_core *core, const md_record *record, uint32_t count, uint32_t target,
                         uint32_t leaving, uint64_t waiter) {
    uint32_t number = enter(core, record, count, target, leaving);
    if (number == 0)
        return MS_NO_MEMORY;
    if (!room_is_possible(core, change_at(core, number))) {
        forget(core, number); /* waiting would not help, as with a put */
        return MS_NO_SPACE;
    }
    change_at(core, number)->waiter = waiter;
    core->answers_due++;
    md_changes_run(core);
    return MS_PENDING;
}

ms_status md_change_start(md_core *core, const md_change_order *order) {
    md_record *record = md_record_at(&core->shards[order->shard], order->record);
    uint32_t number = enter(core, record, order->count, order->target, order->leaving);
    if (number == 0)
        return MS_NO_MEMORY;
    md_change *change = change_at(core, number);
    change->wanted = order->wanted;
    change->for_task = order->task;
    change->is_whole = order->is_whole;
    if (MD_COUNT(core, changes_running) < MD_COPIES_RUNNING_MAX && place(core, change)) {
        begin(core, number);
        return MS_PENDING;
    }
    if (order->may_evict && room_is_possible(core, change))
        return MS_PENDING; /* its turn comes with the next tick */
    forget(core, number);
    return MS_NO_SPACE;
}

ms_status md_change_reduce(md_core *core, uint32_t shard, uint32_t record, uint32_t count,
                           uint32_t leaving, uint32_t wanted) {
    ms_status status = reduce(core, shard, record, count, leaving);
    if (status == MS_OK)
        want(core, shard, record, wanted, MD_NOTE_FOR_NOBODY, 0);
    return status;
}

ms_status md_change_replica(md_core *core, md_now now, uint32_t tenant, ms_hash hash,
                            const uint8_t *key, size_t key_length, const ms_change_replica *asked,
                            uint64_t waiter) {
    md_set_now(core, now);
    uint32_t shard_number = md_shard_of(hash);
    md_shard *shard = &core->shards[shard_number];
    uint32_t number = md_object_find(core, hash);
    if (number == 0)
        return MS_NOT_FOUND;
    md_record *record = md_record_at(shard, number);
    if (md_record_tenant(shard, record) != tenant ||
        !md_record_has_key(shard, record, key, key_length) ||
        asked->replica_count > MS_REPLICAS_MAX)
        return MS_BAD_REQUEST;
    if ((asked->target_server != 0 && asked->target_server > core->server_count) ||
        (asked->source_server != 0 && asked->source_server > core->server_count))
        return MS_NOT_REGISTERED;
    if (record->is_changing || md_index_find(shard, hash, MD_RECORD_WRITING) != 0)
        return MS_BUSY;
    md_replica_set set;
    md_record_replicas(shard, record, &set);
    uint32_t count = 0, first = 0;
    bool has_source = false, has_target = false;
    for (uint32_t i = 0; i < set.count; i++) {
        if (set.replicas[i].state != MD_REPLICA_THERE ||
            core->servers[set.replicas[i].server].is_lost)
            continue;
        first = count++ == 0 ? set.replicas[i].server + 1u : first;
        has_source |= set.replicas[i].server + 1u == asked->source_server;
        has_target |= set.replicas[i].server + 1u == asked->target_server;
    }
    if (asked->source_server != 0 && !has_source)
        return MS_NOT_FOUND;
    uint32_t target = has_target ? 0 : asked->target_server;
    bool is_possible = md_has_candidate(core, &set, target);
    if (asked->replica_count != 0) {
        ms_status status = MS_OK;
        if (asked->replica_count > count)
            return is_possible ? enqueue(core, record, asked->replica_count, target, 0, waiter)
                               : MS_NO_SPACE;
        if (asked->replica_count < count)
            status = reduce(core, shard_number, number, asked->replica_count, asked->source_server);
        return status == MS_OK ? want(core, shard_number, number, asked->replica_count,
                                      MD_NOTE_FOR_WAITER, waiter)
                               : status;
    }
    uint32_t leaving = asked->source_server != 0 ? asked->source_server : first;
    if (asked->target_server == leaving)
        return MS_OK;
    if (has_target) {
        ms_status status = reduce(core, shard_number, number, count - 1, leaving);
        if (status == MS_OK)
            status = want(core, shard_number, number, count - 1, MD_NOTE_FOR_WAITER, waiter);
        md_parked_serve(core);
        return status;
    }
    return is_possible ? enqueue(core, record, count, target, leaving, waiter) : MS_NO_SPACE;
}
