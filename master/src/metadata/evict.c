/* Who leaves when room is needed.
 *
 * Each shard keeps lists of its objects that may leave, one per class (a policy says which), oldest first.  The
 * first candidates of all shards are compared by rank (class, then the order of the last use over all
 * shards), so the order over the whole store is exact though every list is a shard's own.
 * An object that something protects (hard pin, a session's pin, resident children) is in no list.  Soft-pinned
 * ones have a list of their own, ordered by use.
 */
#include "md_internal.h"
#include "ms_planted.h"

#include <assert.h>

#define WALK_MAX 256u       /* entries passed to put an object back in the order of its last use */
#define WATERMARK_MAX 4096u /* objects that one tick evicts in the background */
#define SKIPS_MAX 1024u

static bool is_protected(const md_record *record) {
    if (MS_IS_PLANTED("pin_spares"))
        return (record->flags & (MS_OBJECT_HARD_PIN | MD_IS_PARENT)) != 0;
    return (record->flags & (MS_OBJECT_HARD_PIN | MD_IS_PINNED | MD_IS_PARENT)) != 0;
}

static md_queue *queue_of(md_shard *shard, const md_record *record) {
    return &shard->lists[record->list_class];
}

static uint8_t class_of(md_core *core, const md_record *record) {
    return record->flags & MS_OBJECT_SOFT_PIN ? (uint8_t)MD_CLASS_SOFT
                                              : core->policy->classify(record);
}

static uint64_t rank_of(uint32_t class, const md_record *record) {
    return (uint64_t)class << 56 | (record->last_tick & (UINT64_MAX >> 8));
}

void md_evict_rank(md_core *core, uint32_t shard_number) {
    md_shard *shard = &core->shards[shard_number];
    uint64_t normal = shard->classes & ~(1ull << MD_CLASS_SOFT);
    core->soft_rank[shard_number] =
        shard->classes >> MD_CLASS_SOFT == 0
            ? UINT64_MAX
            : md_record_at(shard, shard->lists[MD_CLASS_SOFT].oldest)->last_tick;
    if (normal == 0) {
        core->shard_rank[shard_number] = UINT64_MAX;
        return;
    }
    uint32_t class = (uint32_t)__builtin_ctzll(normal);
    if (shard->hand == MD_HAND_AT_END) {
        core->shard_rank[shard_number] =
            UINT64_MAX - 1; /* waits until the hands of all others are there */
        return;
    }
    uint32_t first = shard->hand != 0 ? shard->hand : shard->lists[class].oldest;
    core->shard_rank[shard_number] = rank_of(class, md_record_at(shard, first));
}

/* Between `older` and what follows it (0: at the oldest end). */
static void link_after(md_shard *shard, md_queue *queue, uint32_t older, uint32_t record) {
    md_record *at = md_record_at(shard, record);
    uint32_t newer = older == 0 ? queue->oldest : md_record_at(shard, older)->newer;
    at->older = older;
    at->newer = newer;
    if (older == 0)
        queue->oldest = record;
    else
        md_record_at(shard, older)->newer = record;
    if (newer == 0)
        queue->newest = record;
    else
        md_record_at(shard, newer)->older = record;
}

static void unlink_from(md_shard *shard, md_queue *queue, uint32_t record) {
    md_record *at = md_record_at(shard, record);
    if (at->older == 0)
        queue->oldest = at->newer;
    else
        md_record_at(shard, at->older)->newer = at->newer;
    if (at->newer == 0)
        queue->newest = at->older;
    else
        md_record_at(shard, at->newer)->older = at->older;
}

/* Sieve: a hand is at the oldest object that the walk has not come to.  What comes (back) into the list may lie
 * behind the walk, or between it and where this shard's hand waits. */
static void place_hand(md_core *core, md_shard *shard, uint32_t record) {
    const md_record *at = md_record_at(shard, record);
    if (at->last_tick <= core->hand_tick) {
        if (shard->hand == 0 && at->older == 0)
            shard->hand = at->newer != 0 ? at->newer : MD_HAND_AT_END;
    } else if (shard->hand == MD_HAND_AT_END ||
               (shard->hand != 0 && md_record_at(shard, shard->hand)->last_tick > at->last_tick)) {
        shard->hand = record;
    }
}

static void list_add(md_core *core, uint32_t shard_number, uint32_t record, bool in_order) {
    md_shard *shard = &core->shards[shard_number];
    md_record *at = md_record_at(shard, record);
    at->list_class = class_of(core, at);
    md_queue *queue = queue_of(shard, at);
    uint32_t older = queue->newest;
    /* Back from protection: it was last used some time ago, and most of those are near the oldest end. */
    if (in_order) {
        older = 0;
        uint32_t newer = queue->oldest;
        for (uint32_t walked = 0; newer != 0 && walked < WALK_MAX; walked++) {
            if (md_record_at(shard, newer)->last_tick > at->last_tick)
                break;
            older = newer;
            newer = md_record_at(shard, newer)->newer;
        }
    }
    /* Who leaves first stays the same behind others of its class, unless the hand moves. */
    uint32_t hand = shard->hand;
    bool is_first = older == 0;
    link_after(shard, queue, older, record);
    if (!core->policy->moves_on_use && at->list_class != MD_CLASS_SOFT)
        place_hand(core, shard, record);
    at->flags |= MD_IS_LISTED;
    shard->classes |= 1ull << at->list_class;
    core->listed_count++;
    core->soft_count += at->list_class == MD_CLASS_SOFT;
    if (is_first || shard->hand != hand)
        md_evict_rank(core, shard_number);
}

void md_evict_list_add(md_core *core, uint32_t shard_number, uint32_t record) {
    md_record *at = md_record_at(&core->shards[shard_number], record);
    at->last_tick = ++core->tick;
    if (!is_protected(at))
        list_add(core, shard_number, record, false);
}

void md_evict_list_remove(md_core *core, uint32_t shard_number, uint32_t record) {
    md_shard *shard = &core->shards[shard_number];
    md_record *at = md_record_at(shard, record);
    if (!(at->flags & MD_IS_LISTED))
        return;
    md_queue *queue = queue_of(shard, at);
    if (shard->hand == record)
        shard->hand = at->newer != 0 ? at->newer : MD_HAND_AT_END;
    unlink_from(shard, queue, record);
    at->flags = (uint8_t)(at->flags & ~MD_IS_LISTED);
    if (queue->oldest == 0)
        shard->classes &= ~(1ull << at->list_class);
    core->listed_count--;
    core->soft_count -= at->list_class == MD_CLASS_SOFT;
    md_evict_rank(core, shard_number);
}

void md_evict_list_used(md_core *core, uint32_t shard_number, uint32_t record) {
    md_shard *shard = &core->shards[shard_number];
    md_record *at = md_record_at(shard, record);
    bool is_soft = at->list_class == MD_CLASS_SOFT;
    if (!core->policy->moves_on_use && !is_soft && at->flags & MD_IS_LISTED) {
        at->flags |= MD_IS_VISITED;
        return;
    }
    at->last_tick = ++core->tick;
    if (!(at->flags & MD_IS_LISTED))
        return;
    uint8_t class = class_of(core, at);
    md_queue *queue = queue_of(shard, at);
    if (class == at->list_class && queue->newest == record) {
        if (queue->oldest == record)
            md_evict_rank(core, shard_number);
        return;
    }
    bool was_first = queue->oldest == record;
    unlink_from(shard, queue, record);
    if (class != at->list_class) {
        if (queue->oldest == 0)
            shard->classes &= ~(1ull << at->list_class);
        at->list_class = class;
        queue = queue_of(shard, at);
        was_first = true;
    }
    link_after(shard, queue, queue->newest, record);
    shard->classes |= 1ull << class;
    if (was_first)
        md_evict_rank(core, shard_number);
}

void md_evict_list_review(md_core *core, uint32_t shard_number, uint32_t record) {
    md_record *at = md_record_at(&core->shards[shard_number], record);
    if (at->flags & MD_IS_LISTED) {
        if (!is_protected(at) && class_of(core, at) == at->list_class)
            return;
        md_evict_list_remove(core, shard_number, record);
    }
    if (at->state == MD_RECORD_COMPLETE && !is_protected(at))
        list_add(core, shard_number, record, true);
}

static uint32_t least(const uint64_t *ranks) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < MD_SHARDS; i++)
        if (ranks[i] < ranks[best])
            best = i;
    return best;
}

bool md_evict_pick_oldest(md_core *core, uint32_t *shard_number, uint32_t *record) {
    *shard_number = least(core->shard_rank);
    if (core->shard_rank[*shard_number] == UINT64_MAX)
        return false;
    md_shard *shard = &core->shards[*shard_number];
    uint64_t normal = shard->classes & ~(1ull << MD_CLASS_SOFT);
    *record = shard->lists[__builtin_ctzll(normal)].oldest;
    return true;
}

static bool pick_soft(md_core *core, uint32_t *shard_number, uint32_t *record) {
    if (core->soft_count == 0)
        return false;
    *shard_number = least(core->soft_rank);
    *record = core->shards[*shard_number].lists[MD_CLASS_SOFT].oldest;
    return *record != 0;
}

/* A soft pin that nobody has used for long is none: the object goes into the order of the others. */
void md_evict_soft_expire(md_core *core) {
    uint32_t shard_number, record;
    while (pick_soft(core, &shard_number, &record)) {
        md_record *at = md_record_at(&core->shards[shard_number], record);
        if ((uint64_t)(md_coarse_time(core) - at->used_at) * 64 < core->config.soft_pin_ms)
            return;
        at->flags = (uint8_t)(at->flags & ~MS_OBJECT_SOFT_PIN);
        md_evict_list_review(core, shard_number, record);
    }
}

/* Evicting what lies only at servers that are away makes no room now. */
static bool makes_room(md_core *core, md_shard *shard, const md_record *record) {
    md_replica_set set;
    md_record_replicas(shard, record, &set);
    for (uint32_t i = 0; i < set.count; i++) {
        const md_server *server = &core->servers[set.replicas[i].server];
        if (set.replicas[i].state == MD_REPLICA_THERE && server->is_adopted &&
            server->state != MS_MEMBER_GONE)
            return true;
    }
    return false;
}

/* A group leaves together, and not while one of it is protected. */
static bool group_may_leave(md_core *core, const md_group *group) {
    for (uint32_t i = 0; i < group->count; i++) {
        md_shard *shard = &core->shards[md_shard_of(group->members[i])];
        uint32_t record = md_index_find(shard, group->members[i], MD_RECORD_COMPLETE);
        if (record != 0 && is_protected(md_record_at(shard, record)))
            return false;
    }
    return true;
}

static void group_leave(md_core *core, uint32_t tenant, uint64_t id, md_cause cause) {
    md_group *group;
    while ((group = md_group_find(core, tenant, id)) != NULL && group->count > 0) {
        ms_hash hash = group->members[group->count - 1];
        uint32_t record = md_index_find(&core->shards[md_shard_of(hash)], hash, MD_RECORD_COMPLETE);
        if (record == 0 || !md_object_depart(core, md_shard_of(hash), record, cause))
            return;
    }
}

/* False: none may leave, or the next one was stored or used after `tick`. */
static bool evict_next(md_core *core, bool soft, uint64_t tick, md_cause cause) {
    uint32_t shard_number, record;
    for (uint32_t skips = 0; skips < SKIPS_MAX; skips++) {
        if (!core->policy->pick(core, &shard_number, &record) &&
            !(soft && pick_soft(core, &shard_number, &record)))
            return false;
        md_shard *shard = &core->shards[shard_number];
        md_record *at = md_record_at(shard, record);
        if (at->last_tick > tick)
            return false;
        const md_extra *extra = md_record_extra(shard, at);
        md_group *group = extra == NULL || extra->group == 0
                              ? NULL
                              : md_group_find(core, extra->tenant, extra->group);
        if (!makes_room(core, shard, at) || (group != NULL && !group_may_leave(core, group))) {
            /* To the end of the line, as if it had been used. */
            md_evict_list_remove(core, shard_number, record);
            md_evict_list_add(core, shard_number, record);
            continue;
        }
        if (group == NULL)
            return md_object_depart(core, shard_number, record, cause);
        uint64_t evicted = MD_COUNT(core, evicted);
        group_leave(core, group->tenant, group->id, cause);
        return MD_COUNT(core, evicted) != evicted;
    }
    return false;
}

bool md_evict_next(md_core *core, bool soft, md_cause cause) {
    return evict_next(core, soft, UINT64_MAX, cause);
}

/* Background eviction makes room for what comes next, and must not take what has just come: an object larger than
 * the watermark leaves room for would be stored and evicted within one tick, and with lfu each new one before its
 * second use.  So whatever was stored or used since as many pages were stored as the head-room has (and at most
 * twice as many) is spared, until a put needs its room.  Two ticks that move on in turn tell, without a word more
 * in each record. */
void md_evict_stored(md_core *core, uint64_t pages) {
    core->young_pages += pages;
    if (core->young_pages < core->young_pages_max)
        return;
    core->young_pages = 0;
    core->young_tick = core->young_tick_next;
    core->young_tick_next = core->tick;
}

void md_evict_watermark(md_core *core) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < core->server_count; i++) {
        if (!md_server_takes_puts(&core->servers[i]))
            continue;
        for (uint32_t j = 0; j < core->servers[i].segment_count; j++)
            total += core->servers[i].segments[j].page_count;
    }
    uint64_t above = total * (1000 - core->config.evict_above_permille) / 1000;
    uint64_t below = total * (1000 - core->config.evict_below_permille) / 1000;
    core->young_pages_max = below;
    if (total == 0 || md_pages_coming(core) >= above)
        return;
    md_cause cause = {.kind = MS_FATE_EVICTED_AT_WATERMARK, .bytes = below * MS_PAGE_SIZE};
    for (uint32_t i = 0; i < WATERMARK_MAX && md_pages_coming(core) < below; i++)
        if (!evict_next(core, false, core->young_tick, cause))
            return;
}
