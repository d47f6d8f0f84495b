/* Open puts: from put_start to put_end, revoke, or the end of their session.
 *
 * The record is entered at put_start, in the state "writing", so it holds the key once and makes a second put
 * of the key BUSY.  A put that finds no room evicts until enough is on its way, and is parked until FREED
 * comes; parked puts are served in order, so none starves.  The version is given with the pages, not
 * before: a page whose word is newer than the grant's version would refuse the writer.
 */
#include "md_internal.h"

#define DEADLINE_DEFAULT_MS 30000u
#define DEADLINE_MAX_MS 3600000u

static md_put *put_at(md_core *core, uint32_t put) { return md_pool_at(&core->puts, put); }
static md_session *session_at(md_core *core, uint32_t session) {
    return md_pool_at(&core->sessions, session);
}

static uint32_t put_record(md_core *core, const md_put *put) {
    return md_index_find(&core->shards[md_shard_of(put->hash)], put->hash, MD_RECORD_WRITING);
}

/* ---- the queue of those that wait for room -------------------------------------------------------------- */
static void park(md_core *core, uint32_t put) {
    md_put *at = put_at(core, put);
    at->park_previous = core->park_last;
    if (core->park_last != 0)
        put_at(core, core->park_last)->park_next = put;
    else
        core->park_first = put;
    core->park_last = put;
    core->park_pages += at->pages * at->replica_count;
    core->answers_due++;
    MD_COUNT(core, puts_parked)++;
}

static void unpark(md_core *core, uint32_t put) {
    md_put *at = put_at(core, put);
    if (at->park_next != 0)
        put_at(core, at->park_next)->park_previous = at->park_previous;
    else
        core->park_last = at->park_previous;
    if (at->park_previous != 0)
        put_at(core, at->park_previous)->park_next = at->park_next;
    else
        core->park_first = at->park_next;
    at->park_next = at->park_previous = 0;
    core->park_pages -= at->pages * at->replica_count;
    MD_COUNT(core, puts_parked)--;
}

/* ---- room ---------------------------------------------------------------------------------------------- */
/* On servers that the writer reaches, while these have room. */
static uint32_t place(md_core *core, const md_put *put, uint32_t wanted, md_replica *replicas) {
    md_wish wish = {.pages = put->pages, .count = wanted, .preferred = put->preferred_server};
    for (uint32_t i = 0; i < 2; i++)
        if (put->spared[i] != 0)
            wish.spared[wish.spared_count++] = (uint16_t)(put->spared[i] - 1);
    uint32_t count = md_place(core, &wish, replicas);
    if (count < wanted && wish.spared_count != 0) {
        md_place_undo(core, count, replicas);
        wish.spared_count = 0;
        count = md_place(core, &wish, replicas);
    }
    return count;
}

/* OK: granted.  PENDING: not enough free pages for `wanted` replicas. */
static ms_status grant(md_core *core, md_put *put, uint32_t wanted) {
    md_replica replicas[MS_REPLICAS_MAX];
    uint32_t count = place(core, put, wanted, replicas);
    if (count < wanted) {
        md_place_undo(core, count, replicas);
        return MS_PENDING;
    }
    const ms_extent *extents[MS_REPLICAS_MAX];
    uint32_t extent_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        extents[i] = core->scratch + extent_count;
        extent_count += replicas[i].extent_count;
    }
    md_shard *shard = &core->shards[md_shard_of(put->hash)];
    if (!md_shard_reserve(shard, 0, md_replica_bytes(count, extent_count)) ||
        !md_map_reserve(&core->put_of, 1)) {
        md_place_undo(core, count, replicas);
        return MS_NO_MEMORY;
    }
    md_record *record = md_record_at(shard, put_record(core, put));
    record->version = put->version = md_version_next(core);
    md_record_set_replicas(shard, record, count, replicas, extents);
    md_replica_set set;
    md_record_replicas(shard, record, &set);
    md_pages_count(core, &set, MD_PAGES_WRITING, 1);
    uint32_t number = record->newer;
    md_map_set(&core->put_of, put->version, number);
    return MS_OK;
}

/* What becomes of others, or of the put itself, for its sake. */
static md_cause cause_of(md_core *core, const md_put *put, enum ms_fate_kind kind) {
    const md_shard *shard = &core->shards[md_shard_of(put->hash)];
    return (md_cause){.kind = kind,
                      .session = session_at(core, put->session)->id,
                      .bytes = shard->records[put_record(core, put) - 1].size};
}

/* Where its first replica is to be: number + 1; 0: it has no grant. */
static uint32_t first_server(md_core *core, const md_put *put) {
    const md_shard *shard = &core->shards[md_shard_of(put->hash)];
    md_replica_set set;
    if (put->version == 0)
        return 0;
    md_record_replicas(shard, &shard->records[put_record(core, put) - 1], &set);
    return set.count == 0 ? 0 : set.replicas[0].server + 1u;
}

static enum ms_fate_kind fate_of(const md_core *core, const md_put *put, ms_status status) {
    switch (status) {
    case MS_OK:
        return MS_FATE_PUT_REVOKED;
    case MS_GONE:
        return MS_FATE_PUT_NODE_RESTARTED;
    case MS_TIMEOUT:
        return MS_FATE_PUT_DEADLINE;
    case MS_SESSION_LOST: /* the session of a put that is late ends, with all its puts */
        return put->deadline_ms <= core->now.now_ms ? MS_FATE_PUT_DEADLINE
                                                    : MS_FATE_PUT_SESSION_ENDED;
    case MS_NO_SPACE:
        return MS_FATE_PUT_NO_SPACE;
    default: /* no memory here: nothing that the key's history could explain */
        return (enum ms_fate_kind)0;
    }
}

/* Grants, or evicts until enough is on its way (PENDING), or finds that what is left may not leave. */
static ms_status make_room(md_core *core, md_put *put, bool is_first) {
    uint32_t least = put->flags & MS_PUT_STRICT_REPLICAS && put->replica_count_min > 1
                         ? put->replica_count_min
                         : 1;
    /* Nothing is evicted for replicas that what is protected leaves no room for. */
    uint32_t possible = md_possible(core, put->pages);
    uint32_t wanted = put->replica_count < possible ? put->replica_count : possible;
    uint64_t pages_ahead = is_first ? 0 : core->park_pages;
    for (; wanted >= least; wanted--) {
        if (is_first) {
            ms_status status = grant(core, put, wanted);
            if (status != MS_PENDING)
                return status;
        }
        uint64_t pages_needed = pages_ahead + put->pages * wanted;
        if (md_coming(core, put->pages, 0) >= wanted &&
            (is_first || md_pages_coming(core) >= pages_needed))
            return MS_PENDING;
        /* There are enough pages, but in too many pieces, and nothing is on its way: more must go at once. */
        if (is_first && put->is_waiting && md_pages_coming(core) >= pages_needed)
            put->pages_extra = put->pages_extra == 0 ? put->pages / 4 + 1 : put->pages_extra * 2;
        md_cause cause = cause_of(core, put, MS_FATE_EVICTED_FOR_PUT);
        while (md_evict_next(core, true, cause))
            if (md_coming(core, put->pages, put->pages_extra) >= wanted &&
                md_pages_coming(core) >= pages_needed)
                return MS_PENDING;
        /* Nothing more may leave; what left already may be enough. */
        if (md_coming(core, put->pages, 0) >= wanted && md_pages_coming(core) >= pages_needed)
            return MS_PENDING;
    }
    return MS_NO_SPACE;
}

/* Takes the put out of every table; its record is the caller's. */
static void forget(md_core *core, uint32_t put) {
    md_put *at = put_at(core, put);
    md_timer_stop(core, &at->timer);
    if (at->session_next != 0)
        put_at(core, at->session_next)->session_previous = at->session_previous;
    if (at->session_previous != 0)
        put_at(core, at->session_previous)->session_next = at->session_next;
    else
        session_at(core, at->session)->first_put = at->session_next;
    if (at->version != 0)
        md_map_remove(&core->put_of, at->version);
    md_pool_give(&core->puts, put);
    MD_COUNT(core, puts_open)--;
}

bool md_put_take_back(md_core *core, uint32_t put, uint64_t fence, ms_status status) {
    md_put *at = put_at(core, put);
    md_cause cause = cause_of(core, at, fate_of(core, at, status));
    uint32_t server = first_server(core, at);
#ifdef MD_PLANT_FENCE /* a fault that the simulation must find: dead writers are not cut off */
    fence = 0;
#endif
    if (!md_object_take_back(core, md_shard_of(at->hash), put_record(core, at), fence))
        return false;
    md_fate(core, at->hash, at->version, cause.bytes, server, cause);
    if (at->version == 0) {
        unpark(core, put);
        md_answer(core, at->waiter, status, 0);
    }
    forget(core, put);
    return true;
}

void md_parked_serve(md_core *core) {
    while (core->park_first != 0) {
        uint32_t put = core->park_first;
        md_put *at = put_at(core, put);
        ms_status status = make_room(core, at, true);
        if (status == MS_PENDING)
            return;
        if (status != MS_OK) {
            MD_COUNT(core, puts_refused)++;
            md_put_take_back(core, put, 0, status); /* without pages it needs no memory */
            continue;
        }
        unpark(core, put);
        md_answer(core, at->waiter, MS_OK, at->version);
    }
}

void md_put_timer(md_core *core, uint32_t put) {
    md_put *at = put_at(core, put);
    at->timer = 0;
    MD_COUNT(core, puts_expired)++;
    if (at->version == 0) {
        md_put_take_back(core, put, 0, MS_TIMEOUT);
        md_parked_serve(core);
        return;
    }
    /* A client that lets a put's deadline pass is dead or frozen: its whole session ends. */
    md_session_end(core, at->session);
    md_parked_serve(core);
}

/* ---- what a client asks -------------------------------------------------------------------------------- */
static ms_status check_item(md_core *core, uint32_t tenant, const ms_put_item *item,
                            const uint8_t *key) {
    if (!ms_key_valid((const char *)key, item->key_length))
        return MS_BAD_KEY;
    if (item->replica_count > MS_REPLICAS_MAX)
        return MS_BAD_REQUEST;
    const char *name = core->tenants[tenant];
    ms_hash hash =
        ms_hash_key(core->config.secret, name + 1, (size_t)name[0], key, item->key_length);
    if (!ms_hash_equal(hash, item->hash))
        return MS_BAD_REQUEST;
    return item->size > MS_VALUE_BYTES_MAX ? MS_TOO_LARGE : MS_OK;
}

/* Asked last: what is there already needs no room. */
static ms_status check_room(const md_core *core, const ms_put_item *item) {
    uint64_t pages_max = md_placeable_pages_max(core);
    if (pages_max == 0)
        return MS_UNAVAILABLE;
    return ms_pages_of(item->size) > pages_max ? MS_TOO_LARGE : MS_OK;
}

/* May a put of this key begin?  *old: the object that it would replace. */
static ms_status check_key(md_core *core, const ms_put_item *item, const uint8_t *key,
                           uint32_t *old) {
    uint32_t shard_number = md_shard_of(item->hash), writing;
    md_shard *shard = &core->shards[shard_number];
    md_index_find_both(shard, item->hash, old, &writing);
    if (*old != 0 && !md_object_is_current(core, shard, md_record_at(shard, *old))) {
        *old = md_object_find(core, item->hash); /* it departs now, and records may move */
        writing = md_index_find(shard, item->hash, MD_RECORD_WRITING);
    }
    if (*old != 0 && !md_record_has_key(shard, md_record_at(shard, *old), key, item->key_length))
        return MS_BAD_REQUEST;
    if (*old != 0 && !(item->flags & MS_PUT_UPSERT))
        return MS_EXISTS;
    return writing != 0 ? MS_BUSY : MS_OK;
}

static void enter_record(md_core *core, uint32_t tenant, const ms_put_item *item,
                         const uint8_t *key, uint32_t put) {
    md_shard *shard = &core->shards[md_shard_of(item->hash)];
    uint32_t record = md_shard_add(shard, item->hash, key, item->key_length);
    md_record *at = md_record_at(shard, record);
    at->state = MD_RECORD_WRITING;
    at->size = item->size;
    at->newer = put;
    at->more_wanted =
        (item->replica_count == 0 ? 0u : item->replica_count - 1u) & (MS_REPLICAS_MAX - 1);
    at->flags = (uint8_t)((item->flags & MS_PUT_HARD_PIN ? MS_OBJECT_HARD_PIN : 0) |
                          (item->flags & MS_PUT_SOFT_PIN ? MS_OBJECT_SOFT_PIN : 0));
    if (tenant == 0 && ms_hash_is_none(item->parent) && item->group == 0 && item->ttl_ms == 0)
        return;
    md_extra *extra = md_record_need_extra(shard, record);
    extra->tenant = tenant;
    extra->parent = item->parent;
    extra->group = item->group;
    if (item->ttl_ms != 0) {
        extra->expires_at_ms = core->now.now_ms + item->ttl_ms;
        at->flags |= MD_HAS_EXPIRY;
    }
}

static void write_grant(md_core *core, const md_put *put, ms_writer *out) {
    const md_shard *shard = &core->shards[md_shard_of(put->hash)];
    int64_t left = put->deadline_ms - core->now.now_ms;
    md_write_location(core, shard, &shard->records[put_record(core, put) - 1],
                      left > 0 ? (uint32_t)left : 0, true, out);
}

ms_status md_put_start(md_core *core, md_now now, uint64_t session, const ms_put_item *item,
                       const uint8_t *key, uint64_t waiter, ms_writer *out) {
    md_set_now(core, now);
    md_prefetch(core, item->hash); /* it comes while the key is hashed */
    uint32_t session_number;
    md_session *of = md_session_find(core, session, &session_number);
    if (of == NULL)
        return MS_SESSION_LOST;
    MD_COUNT(core, puts_started)++;
    uint32_t old;
    ms_status status = check_item(core, of->tenant, item, key);
    if (status == MS_OK)
        status = check_key(core, item, key, &old);
    if (status == MS_OK)
        status = check_room(core, item);
    if (status != MS_OK)
        return status;
    if (MD_COUNT(core, puts_open) >= core->config.puts_open_max)
        return MS_LIMIT;
    md_shard *shard = &core->shards[md_shard_of(item->hash)];
    if (!md_pool_reserve(&core->puts, 1) || !md_pool_reserve(&core->wheel.timers, 1) ||
        !md_shard_reserve(shard, item->key_length, 0) || !md_effects_reserve(core, 1)) {
        MD_COUNT(core, memory_failures)++;
        return MS_NO_MEMORY;
    }
    /* The new version must be above all that the key has: a change of replicas gives one too. */
    if (old != 0 && md_record_at(shard, old)->is_changing &&
        !md_change_cancel(core, item->hash, 0, MS_BUSY))
        return MS_NO_MEMORY;
    uint32_t deadline_ms = item->deadline_ms == 0 ? DEADLINE_DEFAULT_MS : item->deadline_ms;
    uint32_t put = md_pool_take(&core->puts);
    md_put *at = put_at(core, put);
    at->hash = item->hash;
    at->pages = ms_pages_of(item->size);
    at->waiter = waiter;
    at->deadline_ms = now.now_ms + (deadline_ms < DEADLINE_MAX_MS ? deadline_ms : DEADLINE_MAX_MS);
    at->session = session_number;
    at->session_next = of->first_put;
    if (of->first_put != 0)
        put_at(core, of->first_put)->session_previous = put;
    of->first_put = put;
    at->flags = item->flags;
    at->preferred_server = item->preferred_server;
    at->spared[0] = item->spared_first;
    at->spared[1] = item->spared_second;
    at->replica_count = item->replica_count == 0 ? 1 : item->replica_count;
    at->replica_count_min = item->replica_count_min;
    at->timer = md_timer_start(core, at->deadline_ms, MD_TIMER_PUT, put);
    MD_COUNT(core, puts_open)++;
    enter_record(core, of->tenant, item, key, put);

    status = make_room(core, at, core->park_first == 0);
    if (status == MS_OK) {
        write_grant(core, at, out);
        return MS_OK;
    }
    if (status == MS_PENDING) {
        at->is_waiting = 1;
        park(core, put);
        return MS_PENDING;
    }
    MD_COUNT(core, puts_refused)++;
    md_fate(core, at->hash, 0, item->size, 0, cause_of(core, at, fate_of(core, at, status)));
    md_shard_remove(shard, put_record(core, at));
    forget(core, put);
    return status;
}

static uint32_t put_find(const md_core *core, uint64_t version) {
    return version == 0 ? 0 : md_map_get(&core->put_of, version);
}

ms_status md_write_grant(md_core *core, md_now now, uint64_t version, ms_writer *out) {
    md_set_now(core, now);
    uint32_t put = put_find(core, version);
    if (put == 0)
        return MS_GONE;
    write_grant(core, put_at(core, put), out);
    return MS_OK;
}

void md_put_set_reply(md_core *core, uint64_t version, uint64_t reply_to) {
    uint32_t put = put_find(core, version);
    if (put != 0)
        put_at(core, put)->reply_to = reply_to;
}

uint64_t md_put_reply(const md_core *core, uint64_t version) {
    uint32_t put = put_find(core, version);
    return put == 0 ? 0 : ((const md_put *)md_pool_at(&core->puts, put))->reply_to;
}

/* The open put that an item names exactly (end_names_grant), of this session; else 0. */
static uint32_t named_put(md_core *core, uint32_t session, const ms_end_item *item) {
#ifdef MD_PLANT_END /* a fault that the simulation must find: whatever is open under the key is ended */
    md_shard *shard = &core->shards[md_shard_of(item->hash)];
    uint32_t record = md_index_find(shard, item->hash, MD_RECORD_WRITING);
    if (record != 0 && md_record_at(shard, record)->version != 0)
        return md_record_at(shard, record)->newer;
#endif
    uint32_t put = put_find(core, item->version);
    if (put == 0 || !ms_hash_equal(put_at(core, put)->hash, item->hash) ||
        put_at(core, put)->session != session)
        return 0;
    return put;
}

static bool is_complete(md_core *core, const ms_end_item *item) {
    md_shard *shard = &core->shards[md_shard_of(item->hash)];
    uint32_t record = md_index_find(shard, item->hash, MD_RECORD_COMPLETE);
    return record != 0 && md_record_at(shard, record)->version == item->version;
}

ms_status md_put_end(md_core *core, md_now now, uint64_t session, const ms_end_item *item,
                     uint64_t waiter) {
    md_set_now(core, now);
    uint32_t session_number;
    if (md_session_find(core, session, &session_number) == NULL)
        return MS_SESSION_LOST;
    uint32_t put = named_put(core, session_number, item);
    if (put == 0) /* it came before, or by way of the server: the same answer */
        return is_complete(core, item)
                   ? md_wait_for_key(core, item->hash, item->version, 0, MS_OK, waiter)
                   : MS_GONE;

    bool is_upsert = (put_at(core, put)->flags & MS_PUT_UPSERT) != 0;
    uint32_t shard_number = md_shard_of(item->hash);
    md_shard *shard = &core->shards[shard_number];
    uint32_t old, number;
    md_index_find_both(shard, item->hash, &old, &number);
    md_record *record = md_record_at(shard, number);
    md_replica_set set;
    md_record_replicas(shard, record, &set);
    uint64_t all = (1ull << set.count) - 1, keep = item->replica_mask & all;
    if (keep == 0)
        return MS_BAD_REQUEST;
    for (uint32_t i = 0; i < set.count; i++)
        if (set.replicas[i].state != MD_REPLICA_THERE ||
            core->servers[set.replicas[i].server].is_lost)
            keep &= ~(1ull << i);
    if (keep == 0)
        return MS_GONE; /* where it was sealed has begun a new life, or is lost */
    const md_extra *extra = md_record_extra(shard, record);
    uint32_t extent_count = md_record_extent_count(shard, record);
    uint32_t old_extents = old == 0 ? 0 : md_object_extents(core, shard, md_record_at(shard, old));
    if (!md_reserve(core, extent_count + old_extents, 1) || !md_hold_reserve(core, 1) ||
        !md_shard_reserve(shard, 0, md_replica_bytes(set.count, extent_count)) ||
        (extra != NULL && extra->group != 0 &&
         !md_group_reserve(core, extra->tenant, extra->group)))
        return MS_NO_MEMORY;
    if (keep != all)
        md_object_keep_replicas(core, shard_number, number, keep);
    if (old != 0) { /* its departure may move records */
        md_object_depart(core, shard_number, old,
                         cause_of(core, put_at(core, put), MS_FATE_REPLACED));
        number = md_index_find(shard, item->hash, MD_RECORD_WRITING);
    }
    record = md_record_at(shard, number);
    md_record_replicas(shard, record, &set);
    md_pages_count(core, &set, MD_PAGES_WRITING, -1);
    record->checksum = item->checksum;
    if (item->flags & MS_OBJECT_HAS_CHECKSUM)
        record->flags |= MS_OBJECT_HAS_CHECKSUM;
    forget(core, put);
    md_object_appear(core, shard_number, number);
    MD_COUNT(core, puts_completed)++;
    /* A put that finds an older object (its server came back meanwhile) replaces it too, but its caller need
     * not wait: both puts were of the same bytes. */
    return is_upsert
               ? md_wait_for_key(core, item->hash, item->version, item->version - 1, MS_OK, waiter)
               : MS_OK;
}

ms_status md_revoke(md_core *core, md_now now, uint64_t session, const ms_end_item *item) {
    md_set_now(core, now);
    uint32_t session_number;
    if (md_session_find(core, session, &session_number) == NULL)
        return MS_SESSION_LOST;
    uint32_t put = named_put(core, session_number, item);
    if (put == 0) /* a relayed put_end may have come first (revoke_open) */
        return is_complete(core, item) ? MS_COMPLETE : MS_GONE;
    if (!md_put_take_back(core, put, 0, MS_OK))
        return MS_NO_MEMORY;
    MD_COUNT(core, puts_revoked)++;
    return MS_OK;
}
