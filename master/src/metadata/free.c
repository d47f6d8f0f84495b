/* Extents on their way back, and who waits for them.
 *
 * An object that leaves, or a put that is taken back, is a *leave*: a FREE for each of its extents.  CLEARED
 * (the word says "not live") answers the removes and upserts that wait for its key; FREED (nobody uses it
 * any more) makes the pages free.  A wait hangs on all leaves of its key; where a holder is silent or a
 * member is absent, a tombstone at the coordinator stands in for the holder's answer.
 */
#include "md_internal.h"
#include "ms_planted.h"

#include <string.h>

#define CONDEMN_TOMBSTONES 100000u

static md_free *free_at(md_core *core, uint32_t free) { return md_pool_at(&core->frees, free); }
static md_leave *leave_at(md_core *core, uint32_t leave) {
    return md_pool_at(&core->leaves, leave);
}

/* ---- leaves -------------------------------------------------------------------------------------------- */
uint32_t md_leave_open(md_core *core, ms_hash hash, uint64_t version) {
    uint32_t leave = md_pool_take(&core->leaves);
    md_leave *at = leave_at(core, leave);
    at->hash = hash;
    at->version = version;
    at->next = md_map_get(&core->leave_of, md_hash_key(hash));
    md_map_set(&core->leave_of, md_hash_key(hash), leave);
    return leave;
}

static void links_release(md_core *core, uint32_t link, ms_status status) {
    while (link != 0) {
        md_link *at = md_pool_at(&core->links, link);
        md_wait *wait = md_pool_at(&core->waits, at->wait);
        if (status != MS_OK)
            wait->status = status;
        if (--wait->remaining == 0) {
            md_answer(core, wait->waiter, wait->status, 0);
            md_pool_give(&core->waits, at->wait);
        }
        uint32_t next = at->next;
        md_pool_give(&core->links, link);
        link = next;
    }
}

/* Nobody has to wait for it any more.  Its extents that are not FREED go their way alone. */
static void leave_close(md_core *core, uint32_t leave, ms_status status) {
    md_leave *at = leave_at(core, leave);
    uint64_t key = md_hash_key(at->hash);
    uint32_t before = md_map_get(&core->leave_of, key);
    if (before != leave) {
        while (leave_at(core, before)->next != leave)
            before = leave_at(core, before)->next;
        leave_at(core, before)->next = at->next;
    } else if (at->next != 0) {
        md_map_set(&core->leave_of, key, at->next);
    } else {
        md_map_remove(&core->leave_of, key);
    }
    for (uint32_t free = at->first_free; free != 0; free = free_at(core, free)->leave_next)
        free_at(core, free)->leave = 0;
    uint32_t links = at->first_link;
    md_timer_stop(core, &at->timer);
    md_pool_give(&core->leaves, leave);
    links_release(core, links, status);
}

void md_leave_raise(md_core *core, uint32_t leave, uint64_t version) {
    if (version > leave_at(core, leave)->version)
        leave_at(core, leave)->version = version;
}

void md_leave_opened(md_core *core, uint32_t leave) {
    if (leave_at(core, leave)->uncleared == 0)
        leave_close(core, leave, MS_OK);
}

/* ---- FREE, CLEARED, FREED -------------------------------------------------------------------------------- */
/* Nothing is sent between ADOPT and the inventory, nor while the server is away: it is sent when it is back. */
static bool is_in_touch(const md_server *server) {
    return server->is_adopted && server->state != MS_MEMBER_GONE &&
           server->state != MS_MEMBER_JOINING;
}

static void free_send(md_core *core, uint32_t free) {
    md_free *at = free_at(core, free);
    md_timer_stop(core, &at->timer);
    if (!is_in_touch(&core->servers[at->server]))
        return;
    md_effect *effect = md_effect_push(core, MD_EFFECT_FREE);
    if (effect != NULL) { /* without memory now: the timer tries again */
        effect->server = at->server;
        effect->free = (ms_free_item){.version = at->version,
                                      .session = at->session,
                                      .segment = at->segment,
                                      .page = at->page,
                                      .page_count = at->page_count};
    }
    if (md_pool_reserve(&core->wheel.timers, 1))
        at->timer = md_timer_start(
            core, core->now.now_ms + (at->is_cleared ? MD_CLEARED_REPEAT_MS : MD_FREE_REPEAT_MS),
            MD_TIMER_FREE, free);
}

void md_free_timer(md_core *core, uint32_t free) {
    free_at(core, free)->timer = 0;
    MD_COUNT(core, frees_repeated)++;
    free_send(core, free);
}

void md_free_start(md_core *core, uint32_t leave, uint32_t server, uint32_t segment,
                   ms_extent extent, uint64_t version, uint64_t session) {
    if (!core->servers[server].is_member)
        return; /* forgotten: what it still has is struck, and writers need its next life */
    uint32_t free = md_pool_take(&core->frees);
    md_free *at = free_at(core, free);
    at->version = version;
    at->session = session;
    at->page = extent.page;
    at->page_count = extent.page_count;
    at->server = (uint16_t)server;
    at->segment = (uint16_t)segment;
    if (leave != 0) {
        md_leave *of = leave_at(core, leave);
        at->leave = leave;
        at->leave_next = of->first_free;
        of->first_free = free;
        of->uncleared++;
    }
    md_map_set(&core->free_of, md_page_key(server, segment, extent.page), free);
    if (core->servers[server].is_counted)
        md_segment_at(core, server, segment)->pages_leaving += extent.page_count;
    MD_COUNT(core, frees_pending)++;
    free_send(core, free);
}

void md_free_send_all(md_core *core, uint32_t server) {
    for (uint32_t i = 0; i < core->free_of.capacity; i++) {
        uint32_t free = core->free_of.slots[i].value;
        if (free != 0 && free_at(core, free)->server == server)
            free_send(core, free);
    }
}

/* An answer counts only for exactly what is being freed (ack_match). */
static uint32_t find_free(md_core *core, uint32_t server, uint32_t incarnation,
                          const ms_free_item *item) {
    if (server >= core->server_count || core->servers[server].incarnation != incarnation ||
        item->segment > UINT16_MAX)
        return 0;
    uint32_t free = md_map_get(&core->free_of, md_page_key(server, item->segment, item->page));
    return free != 0 && free_at(core, free)->version == item->version ? free : 0;
}

static void cleared(md_core *core, uint32_t free) {
    md_free *at = free_at(core, free);
    if (at->is_cleared)
        return;
    at->is_cleared = 1;
    if (core->servers[at->server].is_counted) {
        md_segment *segment = md_segment_at(core, at->server, at->segment);
        segment->pages_leaving -= at->page_count;
        segment->pages_held += at->page_count;
    }
    MD_COUNT(core, frees_cleared)++;
    if (at->leave != 0 && --leave_at(core, at->leave)->uncleared == 0)
        leave_close(core, at->leave, MS_OK);
}

/* Takes it out of its leave and its tables; its pages are no longer counted as held. */
static void free_end(md_core *core, uint32_t free) {
    md_free *at = free_at(core, free);
    if (at->leave != 0) {
        uint32_t *link = &leave_at(core, at->leave)->first_free;
        while (*link != free)
            link = &free_at(core, *link)->leave_next;
        *link = at->leave_next;
    }
    if (core->servers[at->server].is_counted)
        md_segment_at(core, at->server, at->segment)->pages_held -= at->page_count;
    if (at->is_cleared)
        MD_COUNT(core, frees_cleared)--;
    md_timer_stop(core, &at->timer);
    md_map_remove(&core->free_of, md_page_key(at->server, at->segment, at->page));
    md_pool_give(&core->frees, free);
    MD_COUNT(core, frees_pending)--;
}

void md_cleared(md_core *core, md_now now, uint32_t server, uint32_t incarnation,
                const ms_free_item *item) {
    md_set_now(core, now);
    uint32_t free = find_free(core, server, incarnation, item);
    if (free == 0)
        return;
#ifdef MD_PLANT_CLEARED /* a fault that the simulation must find: pages are handed out while in use */
    md_freed(core, now, server, incarnation, item);
    return;
#endif
    cleared(core, free);
    /* It may be held for ever by a view: repeat slowly, and do not count on its pages. */
    md_free *at = free_at(core, free);
    md_timer_stop(core, &at->timer);
    if (md_pool_reserve(&core->wheel.timers, 1))
        at->timer = md_timer_start(core, now.now_ms + MD_CLEARED_REPEAT_MS, MD_TIMER_FREE, free);
    md_parked_serve(core);
}

void md_freed(md_core *core, md_now now, uint32_t server, uint32_t incarnation,
              const ms_free_item *item) {
    md_set_now(core, now);
    uint32_t free = find_free(core, server, incarnation, item);
    if (free == 0)
        return;
    md_free at = *free_at(core, free);
    /* Without memory for the run the FREE stays: it is repeated, and FREED comes again. */
    if (!md_segment_give(core, at.server, at.segment, at.page, at.page_count))
        return;
    cleared(core, free);
    free_end(core, free);
    md_parked_serve(core);
}

void md_frees_forget(md_core *core, uint32_t server) {
    for (uint32_t i = 0; i < core->free_of.capacity;) {
        uint32_t free = core->free_of.slots[i].value;
        if (free == 0 || free_at(core, free)->server != server) {
            i++;
            continue;
        }
        uint32_t capacity = core->free_of.capacity;
        cleared(core, free);
        free_end(core, free); /* another one may take its slot, or all of them other ones */
        i = core->free_of.capacity == capacity ? i : 0;
    }
}

/* ---- tombstones ------------------------------------------------------------------------------------------ */
static uint32_t stone_find(md_core *core, ms_hash hash, uint64_t version_min) {
    uint32_t stone = md_map_get(&core->stone_of, md_hash_key(hash));
    while (stone != 0) {
        md_stone *at = md_pool_at(&core->stones, stone);
        if (ms_hash_equal(at->hash, hash) && at->version >= version_min)
            return stone;
        stone = at->next;
    }
    return 0;
}

/* Asks for a tombstone unless one that covers it is on its way; 0: no memory. */
static uint32_t stone_ask(md_core *core, ms_hash hash, uint64_t version) {
    uint32_t stone = stone_find(core, hash, version);
    if (stone != 0)
        return stone;
    if (!md_pool_reserve(&core->stones, 1) || !md_map_reserve(&core->stone_of, 1) ||
        !md_pool_reserve(&core->tombstones, 1) || !md_map_reserve(&core->tombstone_of, 1))
        return 0;
    md_effect *effect = md_effect_push(core, MD_EFFECT_TOMBSTONE);
    if (effect == NULL)
        return 0;
    effect->hash = hash;
    effect->version = version;
    stone = md_pool_take(&core->stones);
    md_stone *at = md_pool_at(&core->stones, stone);
    at->hash = hash;
    at->version = version;
    at->next = md_map_get(&core->stone_of, md_hash_key(hash));
    md_map_set(&core->stone_of, md_hash_key(hash), stone);
    for (uint32_t leave = md_map_get(&core->leave_of, md_hash_key(hash)); leave != 0;
         leave = leave_at(core, leave)->next)
        if (ms_hash_equal(leave_at(core, leave)->hash, hash) &&
            leave_at(core, leave)->version <= version &&
            leave_at(core, leave)->stone == MD_STONE_NONE)
            leave_at(core, leave)->stone = MD_STONE_ASKED;
    return stone;
}

/* One that is on its way counts already: should it fail, this master leads no more. */
uint64_t md_tombstone_version(md_core *core, ms_hash hash) {
    uint64_t version = 0;
    for (uint32_t stone = md_map_get(&core->stone_of, md_hash_key(hash)); stone != 0;) {
        const md_stone *at = md_pool_at(&core->stones, stone);
        if (ms_hash_equal(at->hash, hash) && at->version > version)
            version = at->version;
        stone = at->next;
    }
    for (uint32_t number = md_map_get(&core->tombstone_of, md_hash_key(hash)); number != 0;) {
        const md_tombstone *at = md_pool_at(&core->tombstones, number);
        if (ms_hash_equal(at->hash, hash) && at->version > version)
            version = at->version;
        number = at->next;
    }
    return version;
}

bool md_tombstone_set(md_core *core, ms_hash hash, uint64_t version) {
    uint32_t first = md_map_get(&core->tombstone_of, md_hash_key(hash));
    for (uint32_t tombstone = first; tombstone != 0;) {
        md_tombstone *at = md_pool_at(&core->tombstones, tombstone);
        if (ms_hash_equal(at->hash, hash)) {
            if (version > at->version)
                at->version = version;
            return true;
        }
        tombstone = at->next;
    }
    if (!md_pool_reserve(&core->tombstones, 1) || !md_map_reserve(&core->tombstone_of, 1))
        return false;
    uint32_t tombstone = md_pool_take(&core->tombstones);
    *(md_tombstone *)md_pool_at(&core->tombstones, tombstone) =
        (md_tombstone){.hash = hash, .version = version, .next = first};
    md_map_set(&core->tombstone_of, md_hash_key(hash), tombstone);
    MD_COUNT(core, tombstones)++;
    return true;
}

ms_status md_tombstone_add(md_core *core, ms_hash hash, uint64_t version) {
    return md_tombstone_set(core, hash, version) ? MS_OK : MS_NO_MEMORY;
}

/* With all members adopted there is nobody left whom they could tell anything: what they struck is being
 * freed, and those FREEs are remembered. */
void md_tombstones_clear(md_core *core) {
    md_pool_close(&core->tombstones);
    md_map_close(&core->tombstone_of);
    MD_COUNT(core, tombstones) = 0;
}

static bool any_is_member(const md_core *core) {
    uint32_t server = 0;
    while (server < core->server_count && !core->servers[server].is_member)
        server++;
    return server < core->server_count;
}

bool md_all_are_adopted(const md_core *core) {
    uint32_t server = 0;
    while (server < core->server_count &&
           (core->servers[server].is_adopted || !core->servers[server].is_member))
        server++;
    return server == core->server_count;
}

bool md_tombstones_settle(md_core *core) {
    /* A leader that knows no member yet does not know whom they are for. */
    if (!any_is_member(core) || !md_all_are_adopted(core) || core->stones.count != 0)
        return false;
#ifndef MD_PLANT_SETTLE /* a fault that the simulation must find: what was struck may come back */
    if (MD_COUNT(core, frees_pending) != MD_COUNT(core, frees_cleared))
        return false;
#endif
    md_tombstones_clear(core);
    return true;
}

/* Every uncleared extent is at a server that is away. */
static bool only_absent_left(md_core *core, const md_leave *leave) {
    for (uint32_t free = leave->first_free; free != 0; free = free_at(core, free)->leave_next)
        if (!free_at(core, free)->is_cleared &&
            is_in_touch(&core->servers[free_at(core, free)->server]))
            return false;
    return true;
}

ms_hash md_node_hash(const md_server *server) {
    ms_hash hash;
    memcpy(&hash, server->node_id, sizeof hash);
    return hash;
}

/* A tombstone has been written.  With too many for one absent server, another one names the server itself: it
 * strikes all that was given so far and that this server brings back, under any leader (condemned_kept).  When that is
 * written, removes need none for its sake. */
static void condemn(md_core *core, ms_hash written) {
    for (uint32_t i = 0; i < core->server_count; i++) {
        md_server *server = &core->servers[i];
        ms_hash node = md_node_hash(server);
        if (!server->is_member || server->is_adopted || server->is_condemned)
            continue;
        if (ms_hash_equal(node, written)) {
            server->is_condemned = 1;
            md_absent_count(core);
        } else if (++server->tombstones > CONDEMN_TOMBSTONES && stone_find(core, node, 0) == 0) {
            stone_ask(core, node, ms_version(core->config.epoch, core->sequence) - 1);
        }
    }
}

void md_tombstoned(md_core *core, md_now now, ms_hash hash, uint64_t version, ms_status status) {
    md_set_now(core, now);
    uint64_t key = md_hash_key(hash);
    uint32_t before = 0, stone = md_map_get(&core->stone_of, key);
    while (stone != 0) {
        md_stone *at = md_pool_at(&core->stones, stone);
        if (ms_hash_equal(at->hash, hash) && at->version == version)
            break;
        before = stone;
        stone = at->next;
    }
    if (stone == 0)
        return;
    md_stone ended = *(md_stone *)md_pool_at(&core->stones, stone);
    if (before != 0)
        ((md_stone *)md_pool_at(&core->stones, before))->next = ended.next;
    else if (ended.next != 0)
        md_map_set(&core->stone_of, key, ended.next);
    else
        md_map_remove(&core->stone_of, key);
    md_pool_give(&core->stones, stone);
    if (status == MS_OK && !md_tombstone_set(core, hash, version))
        status = MS_NO_MEMORY;
    if (status == MS_OK)
        condemn(core, hash);
    /* A transaction that failed: this master leads no more, and must not say that something was removed. */
    ms_status told = status == MS_OK ? MS_OK : MS_NOT_LEADER;
    uint32_t leave = md_map_get(&core->leave_of, key);
    while (leave != 0) {
        md_leave *at = leave_at(core, leave);
        uint32_t next = at->next;
        if (ms_hash_equal(at->hash, hash) && at->version <= version) {
            at->stone = status == MS_OK ? MD_STONE_WRITTEN : MD_STONE_NONE;
            if (at->first_link != 0 &&
                (status != MS_OK || at->is_silent || only_absent_left(core, at))) {
                uint32_t links = at->first_link;
                at->first_link = 0;
                links_release(core, links, told);
            }
        }
        leave = next;
    }
    links_release(core, ended.first_link, told);
}

/* Somebody has waited for a second: the holder is silent. */
void md_leave_timer(md_core *core, uint32_t leave) {
    md_leave *at = leave_at(core, leave);
    at->timer = 0;
    at->is_silent = 1;
    if (at->stone == MD_STONE_WRITTEN || MS_IS_PLANTED("tombstone")) {
        uint32_t links = at->first_link;
        at->first_link = 0;
        links_release(core, links, MS_OK);
        return;
    }
    if (at->stone == MD_STONE_NONE && stone_ask(core, at->hash, at->version) == 0 &&
        md_pool_reserve(&core->wheel.timers, 1))
        at->timer = md_timer_start(core, core->now.now_ms + MD_SILENT_MS, MD_TIMER_LEAVE, leave);
}

/* ---- waits ----------------------------------------------------------------------------------------------- */
void md_absent_count(md_core *core) {
    core->absent_count = 0;
    for (uint32_t i = 0; i < core->server_count; i++)
        core->absent_count += core->servers[i].is_member && !core->servers[i].is_adopted &&
                              !core->servers[i].is_condemned;
}

/* The protocol says (my epoch, 0) for an unknown key.  Here a server's objects also leave the index while it
 * is away, in the same epoch, so the tombstone has to strike all that was ever granted; but not a put of
 * this key that is open now and may complete after the answer. */
uint64_t md_unknown_version(md_core *core, ms_hash hash) {
    md_shard *shard = &core->shards[md_shard_of(hash)];
    uint32_t writing = md_index_find(shard, hash, MD_RECORD_WRITING);
    uint64_t version = writing == 0 ? 0 : md_record_at(shard, writing)->version;
    return (version != 0 ? version : ms_version(core->config.epoch, core->sequence)) - 1;
}

static void link_to(md_core *core, uint32_t *first, uint32_t wait) {
    uint32_t link = md_pool_take(&core->links);
    *(md_link *)md_pool_at(&core->links, link) = (md_link){.wait = wait, .next = *first};
    *first = link;
    ((md_wait *)md_pool_at(&core->waits, wait))->remaining++;
}

static bool is_waited_for(const md_leave *leave, ms_hash hash, uint64_t below) {
    return ms_hash_equal(leave->hash, hash) && leave->version < below &&
           !(leave->stone == MD_STONE_WRITTEN && leave->is_silent);
}

ms_status md_wait_for_key(md_core *core, ms_hash hash, uint64_t below, uint64_t stone_version,
                          ms_status status, uint64_t waiter) {
    uint64_t key = md_hash_key(hash);
    uint32_t first = md_map_get(&core->leave_of, key), count = 0;
    for (uint32_t leave = first; leave != 0; leave = leave_at(core, leave)->next)
        count += is_waited_for(leave_at(core, leave), hash, below);
    if (MS_IS_PLANTED("strict_remove"))
        return status;
    bool needs_stone = stone_version != 0 && core->absent_count > 0 && !MS_IS_PLANTED("tombstone");
    uint32_t stone = needs_stone ? 0 : stone_find(core, hash, 0);
    if (count == 0 && !needs_stone && stone == 0)
        return status;
    if (!md_pool_reserve(&core->waits, 1) || !md_pool_reserve(&core->links, count + 1) ||
        !md_pool_reserve(&core->wheel.timers, count) || !md_effects_reserve(core, 2))
        return MS_NO_MEMORY;
    if (needs_stone && (stone = stone_ask(core, hash, stone_version)) == 0)
        return MS_NO_MEMORY;
    uint32_t wait = md_pool_take(&core->waits);
    *(md_wait *)md_pool_at(&core->waits, wait) = (md_wait){.waiter = waiter, .status = status};
    core->answers_due++;
    for (uint32_t leave = first; leave != 0; leave = leave_at(core, leave)->next) {
        md_leave *at = leave_at(core, leave);
        if (!is_waited_for(at, hash, below))
            continue;
        link_to(core, &at->first_link, wait);
        if (at->timer == 0 && at->stone != MD_STONE_ASKED)
            at->timer =
                md_timer_start(core, core->now.now_ms + MD_SILENT_MS, MD_TIMER_LEAVE, leave);
    }
    if (stone != 0)
        link_to(core, &((md_stone *)md_pool_at(&core->stones, stone))->first_link, wait);
    return MS_PENDING;
}
