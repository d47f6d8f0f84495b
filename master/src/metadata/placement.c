/* Where replicas go: on distinct servers, on distinct hosts while there are any, where most is free.
 *
 * A server that joins empty has the most free pages, so it would get each replica of each put until it is as full as
 * the others: all that is new, and most of the reads with it, on one node.  So for a while it is given a share only: each
 * replica that is placed gives it some credit, and one that it gets costs 1000.  Without credit it stands behind the
 * others, but a put that finds no room elsewhere gets it all the same.
 */
#include "md_internal.h"

#include <stdlib.h>
#include <string.h>

#define READY_STALL_MS                                                                             \
    1000 /* pages that are being made ready count as coming while there is progress */

bool md_server_takes_puts(const md_server *server) {
    return server->is_adopted && server->state == MS_MEMBER_READY;
}

static uint64_t capacity_of(const md_server *server, uint64_t pages) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < server->segment_count; i++) {
        const md_segment *segment = &server->segments[i];
        if (segment->tier == 0 && segment->page_count >= pages && segment->page_count > most)
            most = segment->page_count;
    }
    return most;
}

uint64_t md_placeable_pages_max(const md_core *core) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < core->server_count; i++) {
        uint64_t capacity =
            md_server_takes_puts(&core->servers[i]) ? capacity_of(&core->servers[i], 1) : 0;
        most = capacity > most ? capacity : most;
    }
    return most;
}

static uint64_t pages_unready(const md_core *core, const md_segment *segment) {
    return core->now.now_ms - segment->ready_changed_ms < READY_STALL_MS
               ? segment->page_count - segment->page_ready
               : 0;
}

bool md_server_is_possible(const md_core *core, uint32_t number, uint64_t pages) {
    const md_server *server = &core->servers[number];
    bool is_possible = false;
    for (uint32_t j = 0; md_server_takes_puts(server) && j < server->segment_count; j++) {
        const md_segment *segment = &server->segments[j];
        is_possible |=
            segment->tier == 0 && segment->allocator.pages_free + segment->pages_leaving +
                                          segment->pages_unpinned + pages_unready(core, segment) >=
                                      pages;
    }
    return is_possible;
}

uint32_t md_possible(const md_core *core, uint64_t pages) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < core->server_count; i++)
        count += md_server_is_possible(core, i, pages);
    return count;
}

uint64_t md_pages_coming(md_core *core) {
    uint64_t pages = 0;
    for (uint32_t i = 0; i < core->server_count; i++) {
        const md_server *server = &core->servers[i];
        if (!md_server_takes_puts(server))
            continue;
        for (uint32_t j = 0; j < server->segment_count; j++) {
            const md_segment *segment = &server->segments[j];
            if (segment->tier == 0)
                pages += segment->allocator.pages_free + segment->pages_leaving +
                         pages_unready(core, segment);
        }
    }
    return pages;
}

uint32_t md_coming(md_core *core, uint64_t pages, uint64_t extra) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < core->server_count; i++) {
        const md_server *server = &core->servers[i];
        bool is_enough = false;
        for (uint32_t j = 0;
             md_server_takes_puts(server) && j < server->segment_count && !is_enough; j++) {
            const md_segment *segment = &server->segments[j];
            if (segment->tier != 0)
                continue;
            uint64_t coming = segment->pages_leaving + pages_unready(core, segment);
            is_enough = (coming > 0 && coming >= extra &&
                         segment->allocator.pages_free + coming >= pages) ||
                        md_allocator_fits(&segment->allocator, (uint32_t)pages, MS_EXTENTS_MAX);
        }
        count += is_enough;
    }
    return count;
}

typedef struct choice {
    uint32_t server, segment;
    uint64_t pages_free;
} choice;

static bool is_in(const uint16_t *servers, uint32_t count, uint32_t server) {
    for (uint32_t i = 0; i < count; i++)
        if (servers[i] == server)
            return true;
    return false;
}

bool md_is_same_host(const md_core *core, uint32_t a, uint32_t b) {
    const md_server *left = &core->servers[a], *right = &core->servers[b];
    return left->host != NULL && left->host_mark == right->host_mark && right->host != NULL &&
           strcmp(left->host, right->host) == 0;
}

static bool shares_host(const md_core *core, const md_wish *wish, const md_replica *replicas,
                        uint32_t count, uint32_t server) {
    for (uint32_t i = 0; i < count; i++)
        if (md_is_same_host(core, server, replicas[i].server))
            return true;
    for (uint32_t i = 0; i < wish->kept_count; i++)
        if (md_is_same_host(core, server, wish->kept[i]))
            return true;
    return false;
}

/* ---- servers that have just joined ---- */

void md_ramp_begin(md_core *core, uint32_t number) {
    md_server *server = &core->servers[number];
    bool is_behind = false; /* where all are empty, none is new */
    for (uint32_t i = 0; i < core->server_count; i++)
        is_behind |= i != number && md_server_takes_puts(&core->servers[i]) &&
                     core->servers[i].object_count != 0;
    server->is_ramping = is_behind && server->object_count == 0 && core->config.ramp_ms != 0;
    server->ramp_from_ms = core->now.now_ms;
    server->ramp_credit = 0;
}

/* Another replica is placed somewhere. */
static void ramp_earn(md_core *core) {
    for (uint32_t i = 0; i < core->server_count; i++) {
        md_server *server = &core->servers[i];
        if (!server->is_ramping)
            continue;
        uint64_t age_ms = (uint64_t)(core->now.now_ms - server->ramp_from_ms);
        if (age_ms >= core->config.ramp_ms) {
            server->is_ramping = 0;
            continue;
        }
        uint32_t least =
            core->config.ramp_share_permille < 1000 ? core->config.ramp_share_permille : 1000;
        uint32_t share = least + (uint32_t)((1000 - least) * age_ms / core->config.ramp_ms);
        server->ramp_credit += share;
        if (server->ramp_credit > 1999)
            server->ramp_credit = 1999; /* what was not used is not made up for */
    }
}

static bool is_held_back(const md_server *server) {
    return server->is_ramping && server->ramp_credit < 1000;
}

static void ramp_spend(md_server *server) {
    server->ramp_credit -= server->ramp_credit < 1000 ? server->ramp_credit : 1000;
}

/* The best segment for the next replica.  `tried` are candidates that turned out to be too much in pieces. */
static bool choose(md_core *core, const md_wish *wish, const md_replica *replicas, uint32_t count,
                   const choice *tried, uint32_t tried_count, choice *best) {
    uint64_t best_score = 0;
    for (uint32_t i = 0; i < core->server_count; i++) {
        const md_server *server = &core->servers[i];
        if (!md_server_takes_puts(server) || is_in(wish->spared, wish->spared_count, i))
            continue;
        bool is_used = false;
        for (uint32_t j = 0; j < count; j++)
            is_used |= replicas[j].server == i;
        if (is_used)
            continue;
        uint64_t tier = (count == 0 && wish->preferred == i + 1 ? 4u : 0u) +
                        (shares_host(core, wish, replicas, count, i) ? 0u : 2u) +
                        (is_held_back(server) ? 0u : 1u);
        for (uint32_t j = 0; j < server->segment_count; j++) {
            const md_segment *segment = &server->segments[j];
            uint64_t pages_free = segment->allocator.pages_free;
            uint64_t score = (tier << 56 | pages_free) + 1;
            if (segment->tier != 0 || pages_free < wish->pages || score <= best_score)
                continue;
            bool was_tried = false;
            for (uint32_t k = 0; k < tried_count; k++)
                was_tried |= tried[k].server == i && tried[k].segment == j;
            if (was_tried)
                continue;
            best_score = score;
            *best = (choice){.server = i, .segment = j, .pages_free = pages_free};
        }
    }
    return best_score != 0;
}

uint32_t md_place(md_core *core, const md_wish *wish, md_replica *replicas) {
    choice tried[16], best;
    uint32_t count = 0, tried_count = 0;
    ms_extent *extents = core->scratch;
    core->placed_sharing = 0;
    if (wish->pages > UINT32_MAX)
        return 0;
    ramp_earn(core);
    while (count < wish->count && tried_count < sizeof tried / sizeof tried[0] &&
           choose(core, wish, replicas, count, tried, tried_count, &best)) {
        md_segment *segment = md_segment_at(core, best.server, best.segment);
        uint32_t extent_count =
            md_allocator_take(&segment->allocator, (uint32_t)wish->pages, extents, MS_EXTENTS_MAX);
        if (extent_count == 0) {
            tried[tried_count++] = best;
            continue;
        }
        ramp_spend(&core->servers[best.server]);
        if (count + 1 < wish->count)
            ramp_earn(core);
        core->placed_sharing += shares_host(core, wish, replicas, count, best.server);
        replicas[count++] = (md_replica){.server = (uint16_t)best.server,
                                         .segment = (uint16_t)best.segment,
                                         .extent_count = (uint16_t)extent_count,
                                         .state = MD_REPLICA_THERE};
        extents += extent_count;
    }
    MD_COUNT(core, replicas_share_host) += core->placed_sharing;
    core->sharing_placed += core->placed_sharing != 0;
    return count;
}

bool md_place_on(md_core *core, uint64_t pages, uint32_t server, ms_extent *extents,
                 md_replica *replica) {
    for (uint32_t i = 0;
         md_server_takes_puts(&core->servers[server]) && i < core->servers[server].segment_count;
         i++) {
        md_segment *segment = md_segment_at(core, server, i);
        uint32_t count =
            segment->tier == 0 && pages <= UINT32_MAX
                ? md_allocator_take(&segment->allocator, (uint32_t)pages, extents, MS_EXTENTS_MAX)
                : 0;
        if (count == 0)
            continue;
        *replica = (md_replica){.server = (uint16_t)server,
                                .segment = (uint16_t)i,
                                .extent_count = (uint16_t)count,
                                .state = MD_REPLICA_THERE};
        return true;
    }
    return false;
}

uint64_t md_replicas_sharing_hosts(const md_core *core) {
    return MD_COUNT(core, replicas_share_host);
}

/* Straight after md_place: the runs were just cut, so there is memory to give them back. */
void md_place_undo(md_core *core, uint32_t count, const md_replica *replicas) {
    const ms_extent *extents = core->scratch;
    MD_COUNT(core, replicas_share_host) -= core->placed_sharing;
    core->placed_sharing = 0;
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < replicas[i].extent_count; j++, extents++)
            md_allocator_give(
                &md_segment_at(core, replicas[i].server, replicas[i].segment)->allocator,
                extents->page, extents->page_count);
}

/* ---- free runs of a segment, ready or not --------------------------------------------------------------- */
static bool unready_add(md_segment *segment, uint32_t page, uint32_t page_count) {
    md_run *runs = md_array_reserve(segment->unready, &segment->unready_capacity, sizeof(md_run),
                                    segment->unready_count + 1);
    if (runs == NULL)
        return false;
    segment->unready = runs;
    uint32_t at = segment->unready_count;
    while (at > 0 && runs[at - 1].page > page)
        at--;
    if (at > 0 && runs[at - 1].page + runs[at - 1].page_count == page) {
        runs[at - 1].page_count += page_count;
    } else {
        memmove(&runs[at + 1], &runs[at], (segment->unready_count - at) * sizeof(md_run));
        runs[at] = (md_run){.page = page, .page_count = page_count};
        segment->unready_count++;
    }
    return true;
}

static bool segment_give(md_segment *segment, uint32_t page, uint32_t page_count) {
    uint64_t ready = page < segment->page_ready ? segment->page_ready - page : 0;
    uint32_t below = ready < page_count ? (uint32_t)ready : page_count;
    if (below < page_count && !unready_add(segment, page + below, page_count - below))
        return false;
    if (below == 0 || md_allocator_give(&segment->allocator, page, below))
        return true;
    if (below < page_count) {
        /* What was put aside first is taken out again: all or nothing. */
        for (uint32_t i = 0; i < segment->unready_count; i++)
            if (segment->unready[i].page == page + below) {
                segment->unready[i].page += page_count - below;
                segment->unready[i].page_count -= page_count - below;
            }
    }
    return false;
}

bool md_segment_give(md_core *core, uint32_t server, uint32_t segment, uint32_t page,
                     uint32_t count) {
    md_segment *at = md_segment_at(core, server, segment);
    return !core->servers[server].is_adopted || segment_give(at, page, count);
}

bool md_segment_grow(md_core *core, md_segment *segment, uint64_t page_ready) {
    if (page_ready > segment->page_count)
        page_ready = segment->page_count;
    if (page_ready <= segment->page_ready)
        return true;
    segment->ready_changed_ms = core->now.now_ms;
    uint32_t taken = 0;
    bool done = true;
    for (; taken < segment->unready_count && segment->unready[taken].page < page_ready; taken++) {
        md_run *run = &segment->unready[taken];
        uint64_t below =
            page_ready - run->page < run->page_count ? page_ready - run->page : run->page_count;
        if (below != 0 && !md_allocator_give(&segment->allocator, run->page, (uint32_t)below)) {
            page_ready = run->page; /* without memory: as far as it went */
            done = false;
            break;
        }
        run->page += (uint32_t)below;
        run->page_count -= (uint32_t)below;
        if (run->page_count != 0)
            break;
    }
    if (page_ready > segment->page_ready)
        segment->page_ready = page_ready;
    segment->unready_count -= taken;
    if (taken > 0)
        memmove(segment->unready, segment->unready + taken,
                segment->unready_count * sizeof(md_run));
    return done;
}

static int by_page(const void *a, const void *b) {
    uint32_t left = ((const md_used *)a)->page, right = ((const md_used *)b)->page;
    return left < right ? -1 : left > right;
}

bool md_segment_rebuild(md_segment *segment, md_used *used, uint32_t used_count) {
    md_allocator_close(&segment->allocator);
    segment->unready_count = 0;
    /* An inventory comes by page: mostly there is nothing to sort. */
    uint32_t sorted = 1;
    while (sorted < used_count && used[sorted - 1].page <= used[sorted].page)
        sorted++;
    if (sorted < used_count)
        qsort(used, used_count, sizeof *used, by_page);
    uint64_t page = 0;
    for (uint32_t i = 0; i <= used_count; i++) {
        uint64_t next = i < used_count ? used[i].page : segment->page_count;
        if (next > page && !segment_give(segment, (uint32_t)page, (uint32_t)(next - page)))
            return false;
        uint64_t end = i < used_count ? (uint64_t)used[i].page + used[i].page_count : next;
        page = end > page ? end : page;
    }
    return true;
}

void md_segment_close(md_segment *segment) {
    md_allocator_close(&segment->allocator);
    md_memory_unmap(segment->unready, segment->unready_capacity * sizeof(md_run));
}
