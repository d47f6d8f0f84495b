/* Opening and closing, effects, timers, tenants: what holds the rest together. */
#include "md_internal.h"

#include <string.h>

#define TICK_TIMERS_MAX 65536u
#define TICK_RECORDS_MAX 50000u
#define TICK_EXTRAS_MAX 20000u
#define TICK_VISITS_MAX 4096u
#define TRIM_AFTER_MS 1000
#define TICK_TOUCH_BYTES (128u << 10)
#define EFFECT_BYTES_KEPT (4u << 20)

void md_config_default(md_config *config) {
    *config = (md_config){
        .epoch = 1,
        .sequence = 1,
        .policy = MD_LRU,
        .session_timeout_ms = 10000,
        .location_lifetime_ms = MS_LOCATION_LIFETIME_MS,
        .member_grace_ms = 10000,
        .evict_above_permille = 950,
        .evict_below_permille = 920,
        .soft_pin_ms = 1800000,
        .events_max = 65536,
        .fates_max = 65536,
        .puts_open_max = 1u << 20,
        .copy_bytes_per_s = 100u << 20,
        .repair_delay_ms = 60000,
        .ramp_share_permille = 200,
        .ramp_ms = 300000,
    };
}

static uint32_t tenant_number(md_core *core, const uint8_t *tenant, size_t length, bool *known) {
    for (uint32_t i = 0; i < core->tenant_count; i++)
        if ((size_t)core->tenants[i][0] == length &&
            memcmp(core->tenants[i] + 1, tenant, length) == 0) {
            *known = true;
            return i;
        }
    *known = false;
    void *tenants = md_array_reserve(core->tenants, &core->tenant_capacity, sizeof core->tenants[0],
                                     core->tenant_count + 1);
    if (tenants == NULL)
        return 0;
    core->tenants = tenants;
    core->tenants[core->tenant_count][0] = (char)length;
    memcpy(core->tenants[core->tenant_count] + 1, tenant, length);
    *known = true;
    return core->tenant_count++;
}

ms_status md_tenant(md_core *core, const uint8_t *tenant, size_t length, uint32_t *number) {
    if (length > MS_TENANT_BYTES_MAX)
        return MS_BAD_REQUEST;
    bool known;
    *number = tenant_number(core, tenant, length, &known);
    return known ? MS_OK : MS_NO_MEMORY;
}

static const struct {
    size_t item_bytes, offset;
} POOLS[] = {
#define POOL(member, type) {sizeof(type), offsetof(md_core, member)}
    POOL(sessions, md_session),   POOL(puts, md_put),
    POOL(frees, md_free),         POOL(leaves, md_leave),
    POOL(stones, md_stone),       POOL(waits, md_wait),
    POOL(links, md_link),         POOL(holds, md_hold),
    POOL(pins, md_pinning),       POOL(groups, md_group),
    POOL(notes, md_note),         POOL(changes, md_change),
    POOL(partials, md_partial),   POOL(tombstones, md_tombstone),
    POOL(wheel.timers, md_timer),
#undef POOL
};

static const size_t MAPS[] = {
    offsetof(md_core, session_of), offsetof(md_core, put_of),       offsetof(md_core, free_of),
    offsetof(md_core, leave_of),   offsetof(md_core, stone_of),     offsetof(md_core, hold_of),
    offsetof(md_core, group_of),   offsetof(md_core, tombstone_of), offsetof(md_core, change_of),
    offsetof(md_core, partial_of), offsetof(md_core, note_of),      offsetof(md_core, task_of),
};

static void *member(md_core *core, size_t offset) { return (unsigned char *)core + offset; }

ms_status md_open(const md_config *config, md_core **out) {
    *out = NULL;
    md_core *core = md_memory_map(sizeof *core);
    if (core == NULL)
        return MS_NO_MEMORY;
    core->config = *config;
    core->sequence = config->sequence;
    core->session_sequence = 1;
    core->policy =
        (const md_policy_table *[]){&md_policy_lru, &md_policy_lfu, &md_policy_length_aware,
                                    &md_policy_sieve}[config->policy & 3];
    for (size_t i = 0; i < sizeof POOLS / sizeof POOLS[0]; i++)
        md_pool_open(member(core, POOLS[i].offset), POOLS[i].item_bytes);
    for (uint32_t i = 0; i < MD_SHARDS; i++)
        core->shard_rank[i] = core->soft_rank[i] = UINT64_MAX;
    core->empty_since_ms = MD_NEVER;
    core->started_ms = MD_NEVER; /* the first call tells the time */
    bool known;
    tenant_number(core, (const uint8_t *)"default", 7, &known);
    if (!known || !md_events_open(core) || !md_fates_open(core)) {
        md_close(core);
        return MS_NO_MEMORY;
    }
    *out = core;
    return MS_OK;
}

void md_reconfigure(md_core *core, const md_config *config) {
    core->config.location_lifetime_ms = config->location_lifetime_ms;
    core->config.member_grace_ms = config->member_grace_ms;
    core->config.evict_above_permille = config->evict_above_permille;
    core->config.evict_below_permille = config->evict_below_permille;
    core->config.soft_pin_ms = config->soft_pin_ms;
    core->config.copy_bytes_per_s = config->copy_bytes_per_s;
    core->config.repair_delay_ms = config->repair_delay_ms;
    core->config.ramp_share_permille = config->ramp_share_permille;
    core->config.ramp_ms = config->ramp_ms;
}

void md_close(md_core *core) {
    if (core == NULL)
        return;
    for (uint32_t i = 0; i < MD_SHARDS; i++)
        md_shard_close(&core->shards[i]);
    for (uint32_t i = 0; i < core->server_count; i++)
        md_server_close(core, i);
    md_memory_unmap(core->servers, core->server_capacity * sizeof(md_server));
    md_groups_close(core);
    md_changes_close(core);
    md_tasks_close(core);
    md_partials_close(core);
    for (size_t i = 0; i < sizeof POOLS / sizeof POOLS[0]; i++)
        md_pool_close(member(core, POOLS[i].offset));
    for (size_t i = 0; i < sizeof MAPS / sizeof MAPS[0]; i++)
        md_map_close(member(core, MAPS[i]));
    md_memory_unmap(core->tenants, core->tenant_capacity * sizeof core->tenants[0]);
    md_memory_unmap(core->effects, core->effect_capacity * sizeof(md_effect));
    md_events_close(core);
    md_fates_close(core);
    md_memory_unmap(core, sizeof *core);
}

void md_set_now(md_core *core, md_now now) {
    if (core->started_ms == MD_NEVER) {
        core->started_ms = now.now_ms;
        core->wheel.step = now.now_ms / MD_WHEEL_STEP_MS;
        core->task_credit_ms = now.now_ms;
        core->now = now;
        md_repair_put_off(core); /* its servers may still be on their way */
    }
    if (now.now_ms < core->now.now_ms)
        now.now_ms = core->now.now_ms; /* time does not go back */
    core->now = now;
}

/* ---- effects ------------------------------------------------------------------------------------------- */
/* They lie side by side from effect_first on.  Besides what is queued, room is kept for every answer that is
 * owed, so an answer can always be given. */
bool md_effects_reserve(md_core *core, uint32_t more) {
    uint64_t wanted = (uint64_t)core->effect_count + core->answers_due + more;
    if (core->effect_first + wanted <= core->effect_capacity)
        return true;
    if (core->effect_first > 0) {
        memmove(core->effects, core->effects + core->effect_first,
                core->effect_count * sizeof(md_effect));
        core->effect_first = 0;
    }
    if (wanted > UINT32_MAX)
        return false;
    md_effect *effects = md_array_reserve(core->effects, &core->effect_capacity, sizeof(md_effect),
                                          (uint32_t)wanted);
    if (effects == NULL) {
        MD_COUNT(core, memory_failures)++;
        return false;
    }
    core->effects = effects;
    return true;
}

static md_effect *push(md_core *core, md_effect_kind kind) {
    md_effect *effect = &core->effects[core->effect_first + core->effect_count++];
    *effect = (md_effect){.kind = kind};
    return effect;
}

md_effect *md_effect_push(md_core *core, md_effect_kind kind) {
    return md_effects_reserve(core, 1) ? push(core, kind) : NULL;
}

void md_answer(md_core *core, uint64_t waiter, ms_status status, uint64_t version) {
    core->answers_due--;
    md_effects_reserve(core,
                       1); /* there is room: this only moves the queue to the front when it must */
    md_effect *effect = push(core, MD_EFFECT_ANSWER);
    effect->waiter = waiter;
    effect->status = status;
    effect->version = version;
}

bool md_next_effect(md_core *core, md_effect *effect) {
    if (core->effect_count == 0) {
        *effect = (md_effect){.kind = MD_EFFECT_NONE};
        return false;
    }
    *effect = core->effects[core->effect_first++];
    if (--core->effect_count > 0)
        return true;
    core->effect_first = 0;
    size_t bytes = core->effect_capacity * sizeof(md_effect);
    if (bytes > EFFECT_BYTES_KEPT && core->answers_due < core->effect_capacity / 4) {
        uint32_t capacity = core->effect_capacity / 2;
        md_effect *effects = md_memory_remap(core->effects, bytes, capacity * sizeof(md_effect));
        if (effects != NULL) {
            core->effects = effects;
            core->effect_capacity = capacity;
        }
    }
    return true;
}

bool md_reserve(md_core *core, uint32_t extents, uint32_t answers) {
    if (md_pool_reserve(&core->frees, extents) && md_pool_reserve(&core->leaves, 2) &&
        md_pool_reserve(&core->wheel.timers, extents + 4) &&
        md_map_reserve(&core->free_of, extents) && md_map_reserve(&core->leave_of, 2) &&
        md_effects_reserve(core, extents + answers + 4))
        return true;
    MD_COUNT(core, memory_failures)++;
    return false;
}

/* ---- timers -------------------------------------------------------------------------------------------- */
static void timer_link(md_core *core, uint32_t timer, uint32_t bucket) {
    md_wheel *wheel = &core->wheel;
    md_timer *at = md_pool_at(&wheel->timers, timer);
    at->bucket = (uint16_t)bucket;
    at->previous = 0;
    at->next = wheel->buckets[bucket];
    if (at->next != 0)
        ((md_timer *)md_pool_at(&wheel->timers, at->next))->previous = timer;
    wheel->buckets[bucket] = timer;
}

static void timer_unlink(md_core *core, uint32_t timer) {
    md_wheel *wheel = &core->wheel;
    md_timer *at = md_pool_at(&wheel->timers, timer);
    if (at->next != 0)
        ((md_timer *)md_pool_at(&wheel->timers, at->next))->previous = at->previous;
    if (at->previous != 0)
        ((md_timer *)md_pool_at(&wheel->timers, at->previous))->next = at->next;
    else
        wheel->buckets[at->bucket] = at->next;
}

static uint32_t bucket_of(const md_core *core, int64_t at_ms) {
    int64_t step = at_ms / MD_WHEEL_STEP_MS;
    if (step < core->wheel.step)
        step = core->wheel.step;
    return (uint32_t)(step % MD_WHEEL_BUCKETS);
}

uint32_t md_timer_start(md_core *core, int64_t at_ms, md_timer_kind kind, uint32_t owner) {
    uint32_t timer = md_pool_take(&core->wheel.timers);
    md_timer *at = md_pool_at(&core->wheel.timers, timer);
    at->at_ms = at_ms;
    at->kind = (uint16_t)kind;
    at->owner = owner;
    timer_link(core, timer, bucket_of(core, at_ms));
    return timer;
}

void md_timer_stop(md_core *core, uint32_t *timer) {
    if (*timer == 0)
        return;
    timer_unlink(core, *timer);
    md_pool_give(&core->wheel.timers, *timer);
    *timer = 0;
}

static void timer_fire(md_core *core, md_timer_kind kind, uint32_t owner) {
    switch (kind) {
    case MD_TIMER_SESSION:
        md_session_timer(core, owner);
        break;
    case MD_TIMER_PUT:
        md_put_timer(core, owner);
        break;
    case MD_TIMER_PIN:
        md_pin_timer(core, owner);
        break;
    case MD_TIMER_FREE:
        md_free_timer(core, owner);
        break;
    case MD_TIMER_LEAVE:
        md_leave_timer(core, owner);
        break;
    case MD_TIMER_SERVER:
        md_server_timer(core, owner);
        break;
    case MD_TIMER_NOTE:
        md_note_timer(core, owner);
        break;
    case MD_TIMER_CHANGE:
        md_change_timer(core, owner);
        break;
    }
}

/* A handler finds its own timer gone, and may start and stop any. */
void md_timers_run(md_core *core, uint32_t limit) {
    md_wheel *wheel = &core->wheel;
    const uint32_t looked_through = MD_WHEEL_BUCKETS;
    int64_t last = core->now.now_ms / MD_WHEEL_STEP_MS;
    int64_t steps =
        last - wheel->step < MD_WHEEL_BUCKETS ? last - wheel->step : MD_WHEEL_BUCKETS - 1;
    for (int64_t step = last - steps; step <= last; step++) {
        uint32_t bucket = (uint32_t)(step % MD_WHEEL_BUCKETS);
        wheel->step = step; /* what handlers start in the past is due in this bucket */
        while (wheel->buckets[bucket] != 0) {
            uint32_t timer = wheel->buckets[bucket];
            timer_unlink(core, timer);
            timer_link(core, timer, looked_through);
        }
        while (wheel->buckets[looked_through] != 0) {
            uint32_t timer = wheel->buckets[looked_through];
            md_timer at = *(md_timer *)md_pool_at(&wheel->timers, timer);
            timer_unlink(core, timer);
            bool is_due = at.at_ms <= core->now.now_ms && limit > 0;
            if (!is_due) {
                /* Of a later round; or of the step that is not over; or there was enough work for now. */
                timer_link(core, timer, bucket);
                if (at.at_ms > core->now.now_ms)
                    continue;
                while ((timer = wheel->buckets[looked_through]) != 0) {
                    timer_unlink(core, timer);
                    timer_link(core, timer, bucket);
                }
                return;
            }
            limit--;
            md_pool_give(&wheel->timers, timer);
            timer_fire(core, (md_timer_kind)at.kind, at.owner);
        }
    }
}

/* ---- memory -------------------------------------------------------------------------------------------- */
static bool is_empty(const md_core *core) {
    for (uint32_t i = 0; i < MD_SHARDS; i++)
        if (core->shards[i].record_count != 0)
            return false;
    return true;
}

static bool holds_memory(const md_core *core) {
    for (uint32_t i = 0; i < MD_SHARDS; i++)
        if (core->shards[i].record_capacity != 0)
            return true;
    return false;
}

/* What is kept for the next object goes, once, when there has been none for a while. */
static void trim(md_core *core) {
    if (core->is_trimmed &&
        holds_memory(core)) { /* it may have come and gone since the last tick */
        core->is_trimmed = false;
        core->empty_since_ms = MD_NEVER;
    }
    if (!is_empty(core)) {
        core->empty_since_ms = MD_NEVER;
        core->is_trimmed = false;
        return;
    }
    if (core->empty_since_ms == MD_NEVER)
        core->empty_since_ms = core->now.now_ms;
    if (core->is_trimmed || core->now.now_ms - core->empty_since_ms < TRIM_AFTER_MS)
        return;
    for (uint32_t i = 0; i < MD_SHARDS; i++)
        md_shard_close(&core->shards[i]);
    for (size_t i = 0; i < sizeof POOLS / sizeof POOLS[0]; i++)
        md_pool_trim(member(core, POOLS[i].offset));
    md_memory_trim();
    core->is_trimmed = true;
}

static bool touch_piece(md_core *core, void *memory, uint64_t bytes, uint64_t *before) {
    if (core->history_touched < *before + bytes) {
        uint64_t offset = core->history_touched - *before, left = bytes - offset;
        uint64_t piece = left < TICK_TOUCH_BYTES ? left : TICK_TOUCH_BYTES;
        md_memory_touch((unsigned char *)memory + offset, piece);
        core->history_touched += piece;
        return true;
    }
    *before += bytes;
    return false;
}

/* The rings of events and ends take what they may take in the first seconds, and not bit by bit for as long as
 * it takes to fill them: who watches a master's memory sees what its objects cost. */
static void touch_history(md_core *core) {
    md_events_ring *events = &core->events;
    md_fates_ring *fates = &core->fates;
    uint64_t before = 0;
    if (core->is_history_touched)
        return;
    core->is_history_touched =
        !(events->capacity != 0 &&
          (touch_piece(core, events->entries, events->capacity * sizeof *events->entries,
                       &before) ||
           touch_piece(core, events->keys, events->key_bytes, &before))) &&
        !(fates->capacity != 0 &&
          touch_piece(core, fates->entries, fates->capacity * sizeof *fates->entries, &before));
}

void md_tick(md_core *core, md_now now) {
    md_set_now(core, now);
    md_timers_run(core, TICK_TIMERS_MAX);
    md_lost_sweep(core, TICK_RECORDS_MAX);
    md_expiry_sweep(core, TICK_EXTRAS_MAX);
    md_evict_soft_expire(core);
    md_parked_serve(core);
    md_evict_watermark(core);
    md_changes_run(core);
    md_repair_check(core);
    md_tasks_go_on(core, TICK_VISITS_MAX);
    trim(core);
    touch_history(core);
}
