/* What protects a key from eviction from outside its record: sessions' pins, resident children; and groups.
 *
 * Holds are kept by key hash, apart from records, so they may come before the object and outlive it: a pin
 * stays on its key through an upsert, a child that was stored first already protects its parent.
 */
#include "md_internal.h"
#include "ms_planted.h"

static md_hold *hold_at(const md_core *core, uint32_t hold) {
    return md_pool_at(&core->holds, hold);
}
static md_pinning *pin_at(md_core *core, uint32_t pin) { return md_pool_at(&core->pins, pin); }
static md_session *session_at(md_core *core, uint32_t session) {
    return md_pool_at(&core->sessions, session);
}

static uint32_t hold_number(const md_core *core, ms_hash hash) {
    uint32_t hold = md_map_get(&core->hold_of, md_hash_key(hash));
    while (hold != 0 && !ms_hash_equal(hold_at(core, hold)->hash, hash))
        hold = hold_at(core, hold)->next;
    return hold;
}

md_hold *md_hold_find(const md_core *core, ms_hash hash) {
    uint32_t hold = hold_number(core, hash);
    return hold == 0 ? NULL : hold_at(core, hold);
}

bool md_hold_reserve(md_core *core, uint32_t more) {
    return md_pool_reserve(&core->holds, more) && md_map_reserve(&core->hold_of, more);
}

static uint32_t hold_need(md_core *core, ms_hash hash) {
    uint32_t hold = hold_number(core, hash);
    if (hold != 0)
        return hold;
    hold = md_pool_take(&core->holds);
    hold_at(core, hold)->hash = hash;
    hold_at(core, hold)->next = md_map_get(&core->hold_of, md_hash_key(hash));
    md_map_set(&core->hold_of, md_hash_key(hash), hold);
    return hold;
}

/* The record says what the hold says; a hold that holds nothing goes. */
static void hold_changed(md_core *core, uint32_t hold) {
    md_hold *at = hold_at(core, hold);
    uint32_t shard_number = md_shard_of(at->hash);
    md_shard *shard = &core->shards[shard_number];
    uint32_t record = md_index_find(shard, at->hash, MD_RECORD_COMPLETE);
    if (record != 0) {
        md_record *of = md_record_at(shard, record);
        md_object_set_flags(core, shard_number, record,
                            (uint8_t)((of->flags & ~(MD_IS_PINNED | MD_IS_PARENT)) |
                                      (at->pin_count > 0 ? MD_IS_PINNED : 0) |
                                      (at->children > 0 ? MD_IS_PARENT : 0)));
    }
    if (at->pin_count > 0 || at->children > 0)
        return;
    uint64_t key = md_hash_key(at->hash);
    uint32_t before = md_map_get(&core->hold_of, key);
    if (before != hold) {
        while (hold_at(core, before)->next != hold)
            before = hold_at(core, before)->next;
        hold_at(core, before)->next = at->next;
    } else if (at->next != 0) {
        md_map_set(&core->hold_of, key, at->next);
    } else {
        md_map_remove(&core->hold_of, key);
    }
    md_pool_give(&core->holds, hold);
}

/* ---- children ------------------------------------------------------------------------------------------ */
void md_child_added(md_core *core, ms_hash parent) {
    uint32_t hold = hold_need(core, parent);
    if (hold_at(core, hold)->children++ == 0)
        hold_changed(core, hold);
}

void md_child_removed(md_core *core, ms_hash parent) {
    uint32_t hold = hold_number(core, parent);
    if (hold != 0 && --hold_at(core, hold)->children == 0)
        hold_changed(core, hold);
}

/* ---- pins ---------------------------------------------------------------------------------------------- */
static uint32_t pin_find(md_core *core, uint32_t hold, uint32_t session) {
    uint32_t pin = hold == 0 ? 0 : hold_at(core, hold)->first_pin;
    while (pin != 0 && pin_at(core, pin)->session != session)
        pin = pin_at(core, pin)->hold_next;
    return pin;
}

/* When something of it ends by itself. */
static int64_t pin_next_ms(const md_pinning *at) {
    int64_t next_ms = at->count != 0 ? at->deadline_ms : MD_NEVER;
    return at->lease_ms != 0 && at->lease_ms < next_ms ? at->lease_ms : next_ms;
}

/* For a pin without a timer the caller has reserved one. */
static void pin_time(md_core *core, uint32_t pin) {
    md_pinning *at = pin_at(core, pin);
    md_timer_stop(core, &at->timer);
    int64_t next_ms = pin_next_ms(at);
    if (next_ms != MD_NEVER)
        at->timer = md_timer_start(core, next_ms, MD_TIMER_PIN, pin);
}

static bool pin_is_over(const md_pinning *at) { return at->count == 0 && at->lease_ms == 0; }

/* What the session has of this key, which may be nothing yet; 0 without memory for it and its timer. */
static uint32_t pin_need(md_core *core, uint32_t session, ms_hash hash) {
    if (!md_hold_reserve(core, 1) || !md_pool_reserve(&core->pins, 1) ||
        !md_pool_reserve(&core->wheel.timers, 1))
        return 0;
    uint32_t hold = hold_need(core, hash);
    uint32_t pin = pin_find(core, hold, session);
    if (pin != 0)
        return pin;
    pin = md_pool_take(&core->pins);
    md_session *of = session_at(core, session);
    *pin_at(core, pin) = (md_pinning){.hold = hold,
                                      .session = session,
                                      .hold_next = hold_at(core, hold)->first_pin,
                                      .session_next = of->first_pin};
    if (of->first_pin != 0)
        pin_at(core, of->first_pin)->session_previous = pin;
    of->first_pin = pin;
    hold_at(core, hold)->first_pin = pin;
    MD_COUNT(core, pins)++;
    if (hold_at(core, hold)->pin_count++ == 0)
        hold_changed(core, hold);
    return pin;
}

static int64_t pin_deadline(const md_core *core, uint32_t deadline_ms) {
    return deadline_ms == 0 ? MD_NEVER : core->now.now_ms + deadline_ms;
}

/* Pins nest: each is taken back by an unpin.  The latest deadline counts for all of them. */
ms_status md_pin_key(md_core *core, uint32_t session, ms_hash hash, uint32_t deadline_ms) {
    uint32_t pin = pin_need(core, session, hash);
    if (pin == 0)
        return MS_NO_MEMORY;
    md_pinning *at = pin_at(core, pin);
    int64_t deadline = pin_deadline(core, deadline_ms);
    if (at->count++ == 0 || deadline > at->deadline_ms)
        at->deadline_ms = deadline;
    pin_time(core, pin);
    return MS_OK;
}

void md_pin_end(md_core *core, uint32_t pin) {
    md_pinning *at = pin_at(core, pin);
    md_hold *hold = hold_at(core, at->hold);
    uint32_t *link = &hold->first_pin;
    while (*link != pin)
        link = &pin_at(core, *link)->hold_next;
    *link = at->hold_next;
    if (at->session_next != 0)
        pin_at(core, at->session_next)->session_previous = at->session_previous;
    if (at->session_previous != 0)
        pin_at(core, at->session_previous)->session_next = at->session_next;
    else
        session_at(core, at->session)->first_pin = at->session_next;
    md_timer_stop(core, &at->timer);
    uint32_t number = at->hold;
    md_pool_give(&core->pins, pin);
    MD_COUNT(core, pins)--;
    if (--hold->pin_count == 0)
        hold_changed(core, number);
}

void md_pin_timer(md_core *core, uint32_t pin) {
    md_pinning *at = pin_at(core, pin);
    at->timer = 0;
    if (at->deadline_ms <= core->now.now_ms)
        at->count = 0;
    if (at->lease_ms <= core->now.now_ms)
        at->lease_ms = 0;
    /* Without memory for a timer it ends now: else it might never. */
    if (pin_is_over(at) || !md_pool_reserve(&core->wheel.timers, 1))
        md_pin_end(core, pin);
    else
        pin_time(core, pin);
}

/* The session's number, and whether there is such an object; it has been used now. */
static ms_status pin_begin(md_core *core, md_now now, uint64_t session, ms_hash hash,
                           uint32_t *number) {
    md_set_now(core, now);
    if (md_session_find(core, session, number) == NULL)
        return MS_SESSION_LOST;
    uint32_t record = md_object_find(core, hash);
    if (record == 0)
        return MS_NOT_FOUND;
    md_object_used(core, md_shard_of(hash), record);
    return MS_OK;
}

ms_status md_pin(md_core *core, md_now now, uint64_t session, ms_hash hash, uint32_t deadline_ms) {
    uint32_t number;
    ms_status status = pin_begin(core, now, session, hash, &number);
    return status == MS_OK ? md_pin_key(core, number, hash, deadline_ms) : status;
}

ms_status md_lease(md_core *core, md_now now, uint64_t session, ms_hash hash, uint32_t lease_ms) {
    uint32_t number;
    ms_status status = pin_begin(core, now, session, hash, &number);
    if (status != MS_OK)
        return status;
    uint32_t pin = pin_need(core, number, hash);
    if (pin == 0)
        return MS_NO_MEMORY;
    md_pinning *at = pin_at(core, pin);
    if (core->now.now_ms + lease_ms > at->lease_ms)
        at->lease_ms = core->now.now_ms + lease_ms;
    pin_time(core, pin);
    return MS_OK;
}

/* The session has no pin of it any more; what it leased stays until then. */
static void pins_end(md_core *core, uint32_t pin) {
    md_pinning *at = pin_at(core, pin);
    at->count = 0;
    if (at->lease_ms <= core->now.now_ms)
        md_pin_end(core, pin);
    else
        pin_time(core, pin); /* it has a timer: of the lease */
}

ms_status md_unpin(md_core *core, md_now now, uint64_t session, ms_hash hash) {
    md_set_now(core, now);
    uint32_t number;
    if (md_session_find(core, session, &number) == NULL)
        return MS_SESSION_LOST;
    uint32_t pin = pin_find(core, hold_number(core, hash), number);
    if (pin == 0 || pin_at(core, pin)->count == 0)
        return MS_NOT_FOUND;
    if (--pin_at(core, pin)->count == 0 && !MS_IS_PLANTED("pin_ends"))
        pins_end(core, pin);
    return MS_OK;
}

ms_status md_pins(md_core *core, md_now now, uint64_t session, ms_hash hash, uint32_t count,
                  uint32_t deadline_ms) {
    md_set_now(core, now);
    uint32_t number;
    if (md_session_find(core, session, &number) == NULL)
        return MS_SESSION_LOST;
    uint32_t pin = pin_find(core, hold_number(core, hash), number);
    if (count == 0) {
        if (pin != 0)
            pins_end(core, pin);
        return MS_OK;
    }
    if ((pin == 0 || pin_at(core, pin)->count == 0) && md_object_find(core, hash) == 0)
        return MS_NOT_FOUND;
    pin = pin_need(core, number, hash);
    if (pin == 0)
        return MS_NO_MEMORY;
    pin_at(core, pin)->count = count;
    pin_at(core, pin)->deadline_ms = pin_deadline(core, deadline_ms);
    pin_time(core, pin);
    return MS_OK;
}

uint64_t md_session_pinned_bytes(const md_core *core, uint64_t session) {
    uint32_t number = md_map_get(&core->session_of, session);
    uint64_t bytes = 0;
    if (number == 0)
        return 0;
    const md_session *of = md_pool_at(&core->sessions, number);
    for (uint32_t pin = of->first_pin; pin != 0;) {
        const md_pinning *at = md_pool_at(&core->pins, pin);
        ms_hash hash = hold_at(core, at->hold)->hash;
        const md_shard *shard = &core->shards[md_shard_of(hash)];
        uint32_t record = md_index_find(shard, hash, MD_RECORD_COMPLETE);
        if (record != 0)
            bytes += shard->records[record - 1].size;
        pin = at->session_next;
    }
    return bytes;
}

/* ---- groups -------------------------------------------------------------------------------------------- */
static uint64_t group_key(uint32_t tenant, uint64_t group) { return md_mix(group) ^ tenant; }

md_group *md_group_find(md_core *core, uint32_t tenant, uint64_t group) {
    uint32_t number = md_map_get(&core->group_of, group_key(tenant, group));
    while (number != 0) {
        md_group *at = md_pool_at(&core->groups, number);
        if (at->id == group && at->tenant == tenant)
            return at;
        number = at->next;
    }
    return NULL;
}

bool md_group_reserve(md_core *core, uint32_t tenant, uint64_t group) {
    md_group *at = md_group_find(core, tenant, group);
    if (at == NULL) {
        if (!md_pool_reserve(&core->groups, 1) || !md_map_reserve(&core->group_of, 1))
            return false;
        uint64_t key = group_key(tenant, group);
        uint32_t number = md_pool_take(&core->groups);
        at = md_pool_at(&core->groups, number);
        *at = (md_group){.id = group, .tenant = tenant, .next = md_map_get(&core->group_of, key)};
        md_map_set(&core->group_of, key, number);
    }
    at->is_awaited =
        at->count < at->capacity; /* until then it stays, though its last member leave */
    if (at->is_awaited)
        return true;
    uint32_t capacity = at->capacity == 0 ? 4 : at->capacity * 2;
    ms_hash *members = md_memory_small(at->members, capacity * sizeof(ms_hash));
    if (members == NULL)
        return false;
    at->members = members;
    at->capacity = capacity;
    at->is_awaited = 1;
    return true;
}

void md_group_add(md_core *core, uint32_t tenant, uint64_t group, ms_hash hash) {
    md_group *at = md_group_find(core, tenant, group);
    at->members[at->count++] = hash;
    at->is_awaited = 0;
}

void md_group_remove(md_core *core, uint32_t tenant, uint64_t group, ms_hash hash) {
    md_group *at = md_group_find(core, tenant, group);
    if (at == NULL)
        return;
    for (uint32_t i = 0; i < at->count; i++)
        if (ms_hash_equal(at->members[i], hash)) {
            at->members[i] = at->members[--at->count];
            break;
        }
    if (at->count > 0 || at->is_awaited)
        return;
    uint64_t key = group_key(tenant, group);
    uint32_t number = md_map_get(&core->group_of, key), before = 0;
    while (md_pool_at(&core->groups, number) != (void *)at) {
        before = number;
        number = ((md_group *)md_pool_at(&core->groups, number))->next;
    }
    if (before != 0)
        ((md_group *)md_pool_at(&core->groups, before))->next = at->next;
    else if (at->next != 0)
        md_map_set(&core->group_of, key, at->next);
    else
        md_map_remove(&core->group_of, key);
    md_memory_small_free(at->members);
    md_pool_give(&core->groups, number);
}

void md_groups_close(md_core *core) {
    for (uint32_t i = 0; i < core->group_of.capacity; i++)
        for (uint32_t number = core->group_of.slots[i].value; number != 0;) {
            md_group *at = md_pool_at(&core->groups, number);
            md_memory_small_free(at->members);
            number = at->next;
        }
}
