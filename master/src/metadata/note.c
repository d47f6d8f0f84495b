/* Notes: what changes of a stored object without its bytes (hard pin, soft pin, TTL, how many replicas are wanted),
 * at all of its holders. */
#include "md_internal.h"

static md_note *note_at(md_core *core, uint32_t note) { return md_pool_at(&core->notes, note); }

static bool is_in_touch(const md_server *server) {
    return server->is_adopted && server->state != MS_MEMBER_GONE;
}

/* One extent of each replica gets it: its first.  A rebuild takes the highest note of all parts. */
ms_status md_note_start(md_core *core, ms_hash hash, uint64_t version, uint32_t flags,
                        int64_t expires_at_ms, uint32_t count, const md_replica *replicas,
                        const ms_extent *const *extents, md_note_audience audience,
                        uint64_t waiter) {
    for (uint32_t i = 0; i < count; i++)
        if (replicas[i].state == MD_REPLICA_THERE &&
            !is_in_touch(&core->servers[replicas[i].server]))
            return MS_UNAVAILABLE;
    if (!md_pool_reserve(&core->notes, 1) || !md_map_reserve(&core->note_of, 1) ||
        !md_pool_reserve(&core->wheel.timers, 1) || !md_effects_reserve(core, count + 1))
        return MS_NO_MEMORY;
    uint32_t number = md_pool_take(&core->notes);
    md_note *note = note_at(core, number);
    note->hash = hash;
    note->version = version;
    note->number = md_version_next(core);
    note->waiter = waiter;
    note->audience = (uint8_t)audience;
    md_map_set(&core->note_of, note->number, number);
    for (uint32_t i = 0; i < count; i++) {
        if (replicas[i].state != MD_REPLICA_THERE)
            continue;
        note->holders[note->holder_count++] = replicas[i].server;
        md_effect *effect = md_effect_push(core, MD_EFFECT_NOTE);
        effect->server = replicas[i].server;
        effect->waiter = note->number;
        effect->note = (ms_note){.epoch = core->config.epoch,
                                 .incarnation = core->servers[replicas[i].server].incarnation,
                                 .version = version,
                                 .note = note->number,
                                 .expiry_ms = md_wall_expiry(core, expires_at_ms),
                                 .segment = replicas[i].segment,
                                 .page = extents[i][0].page,
                                 .flags = flags};
    }
    note->timer =
        md_timer_start(core, core->now.now_ms + MD_NOTE_TIMEOUT_MS, MD_TIMER_NOTE, number);
    MD_COUNT(core, notes)++;
    core->answers_due += audience == MD_NOTE_FOR_WAITER;
    return MS_PENDING;
}

void md_note_again(md_core *core, ms_hash hash) {
    uint32_t shard_number = md_shard_of(hash);
    md_shard *shard = &core->shards[shard_number];
    uint32_t record = md_index_find(shard, hash, MD_RECORD_COMPLETE);
    if (record == 0)
        return;
    md_record *at = md_record_at(shard, record);
    const md_extra *extra = md_record_extra(shard, at);
    if (extra == NULL || extra->note == 0)
        return;
    md_replica_set set;
    md_record_replicas(shard, at, &set);
    for (uint32_t i = 0; i < set.count; i++) {
        const md_server *server = &core->servers[set.replicas[i].server];
        md_effect *effect = set.replicas[i].state == MD_REPLICA_THERE && is_in_touch(server)
                                ? md_effect_push(core, MD_EFFECT_NOTE)
                                : NULL;
        if (effect == NULL)
            continue;
        effect->server = set.replicas[i].server;
        effect->waiter = md_version_next(core); /* of its answer nobody asks */
        effect->note = (ms_note){.epoch = core->config.epoch,
                                 .incarnation = server->incarnation,
                                 .version = at->version,
                                 .note = extra->note,
                                 .expiry_ms = md_wall_expiry(core, md_record_expiry(shard, at)),
                                 .segment = set.replicas[i].segment,
                                 .page = set.extents[i][0].page,
                                 .flags = (at->flags & MD_OBJECT_FLAGS) |
                                          ms_wanted_flags(at->more_wanted + 1u)};
    }
}

static void note_end(md_core *core, uint32_t number, ms_status status) {
    md_note ended = *note_at(core, number);
    md_timer_stop(core, &note_at(core, number)->timer);
    md_map_remove(&core->note_of, ended.number);
    md_pool_give(&core->notes, number);
    MD_COUNT(core, notes_failed) += status != MS_OK;
    if (ended.audience == MD_NOTE_FOR_CHANGE)
        md_change_noted(core, ended.version, status);
    else if (ended.audience == MD_NOTE_FOR_WAITER)
        md_answer(core, ended.waiter, status, 0);
}

/* Answered when all holders have said OK, or when one cannot any more (note_all). */
static void holder_answers(md_core *core, uint32_t number, uint32_t server, ms_status status) {
    md_note *note = note_at(core, number);
    uint32_t at = 0;
    while (at < note->holder_count && note->holders[at] != server)
        at++;
    if (at == note->holder_count)
        return;
    note->holders[at] = note->holders[--note->holder_count];
    if (status != MS_OK)
        note_end(core, number, status);
    else if (note->holder_count == 0)
        note_end(core, number, MS_OK);
}

void md_noted(md_core *core, md_now now, uint64_t tag, uint32_t server, ms_status status) {
    md_set_now(core, now);
    uint32_t number = md_map_get(&core->note_of, tag);
    if (number != 0)
        holder_answers(core, number, server, status);
}

void md_note_timer(md_core *core, uint32_t number) {
    note_at(core, number)->timer = 0;
    note_end(core, number, MS_TIMEOUT);
}

void md_notes_server_gone(md_core *core, uint32_t server) {
    for (uint32_t i = 0; i < core->note_of.capacity;) {
        uint32_t number = core->note_of.slots[i].value;
        uint32_t before = core->note_of.count;
        if (number != 0)
            holder_answers(core, number, server, MS_UNAVAILABLE);
        /* An ended note has moved others: look at this slot again, or at the whole smaller table. */
        if (core->note_of.count == before)
            i++;
        else
            i = 0;
    }
}

ms_status md_annotate(md_core *core, md_now now, uint32_t tenant, ms_hash hash, const uint8_t *key,
                      size_t key_length, const ms_annotate *annotate, uint64_t waiter) {
    md_set_now(core, now);
    uint32_t shard_number = md_shard_of(hash);
    md_shard *shard = &core->shards[shard_number];
    uint32_t record = md_object_find(core, hash);
    if (record == 0)
        return MS_NOT_FOUND;
    md_record *at = md_record_at(shard, record);
    if (md_record_tenant(shard, at) != tenant || !md_record_has_key(shard, at, key, key_length))
        return MS_BAD_REQUEST;
    uint32_t mask = (annotate->fields & MS_ANNOTATE_HARD_PIN ? MS_OBJECT_HARD_PIN : 0u) |
                    (annotate->fields & MS_ANNOTATE_SOFT_PIN ? MS_OBJECT_SOFT_PIN : 0u);
    uint32_t flags = (at->flags & ~mask) | (annotate->flags & mask);
    int64_t expires_at_ms = md_record_expiry(shard, at);
    if (annotate->fields & MS_ANNOTATE_TTL) {
        bool is_never =
            annotate->ttl_ms == 0 || annotate->ttl_ms > (uint64_t)(INT64_MAX - core->now.now_ms);
        expires_at_ms = is_never ? MD_NEVER : core->now.now_ms + (int64_t)annotate->ttl_ms;
        flags = (flags & ~(uint32_t)MD_HAS_EXPIRY) | (is_never ? 0u : (uint32_t)MD_HAS_EXPIRY);
    }
    return md_note_object(core, shard_number, record, flags, expires_at_ms, MD_NOTE_FOR_WAITER,
                          waiter);
}

ms_status md_note_object(md_core *core, uint32_t shard_number, uint32_t record, uint32_t flags,
                         int64_t expires_at_ms, md_note_audience audience, uint64_t waiter) {
    md_shard *shard = &core->shards[shard_number];
    if (!md_shard_reserve(shard, 0, 0))
        return MS_NO_MEMORY;
    md_record *at = md_record_at(shard, record);
    md_replica_set set;
    md_record_replicas(shard, at, &set);
    uint32_t told = (flags & MD_OBJECT_FLAGS) | ms_wanted_flags(at->more_wanted + 1u);
    ms_status status = md_note_start(core, at->hash, at->version, told, expires_at_ms, set.count,
                                     set.replicas, set.extents, audience, waiter);
    if (status != MS_PENDING)
        return status;
    md_extra *extra = md_record_need_extra(shard, record);
    extra->note = ms_version(core->config.epoch, core->sequence) - 1;
    extra->expires_at_ms = expires_at_ms;
    md_object_set_flags(core, shard_number, record, (uint8_t)flags);
    return MS_PENDING;
}
