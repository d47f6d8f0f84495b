/* Store servers: they join, get pages ready, go away for a while or for good. */
#include "md_internal.h"
#include "ms_crc32c.h"

#include <string.h>

static md_server *server_at(md_core *core, uint32_t server) { return &core->servers[server]; }

static uint32_t find_node(const md_core *core, const uint8_t node_id[16]) {
    uint32_t server = 0;
    while (server < core->server_count &&
           !(core->servers[server].is_known &&
             memcmp(core->servers[server].node_id, node_id, 16) == 0))
        server++;
    return server;
}

uint32_t md_server_find(const md_core *core, const uint8_t node_id[16]) {
    uint32_t server = find_node(core, node_id);
    return server < core->server_count ? server : MD_NO_SERVER;
}

/* The table reaches over that number. */
static ms_status reach(md_core *core, uint32_t server) {
    if (server < core->server_count)
        return MS_OK;
    if (server >= MD_SERVERS_MAX)
        return MS_LIMIT;
    md_server *servers =
        md_array_reserve(core->servers, &core->server_capacity, sizeof(md_server), server + 1);
    if (servers == NULL)
        return MS_NO_MEMORY;
    core->servers = servers;
    while (core->server_count <= server)
        servers[core->server_count++] = (md_server){.state = MS_MEMBER_GONE};
    return MS_OK;
}

static void name_node(md_server *server, const uint8_t node_id[16]) {
    memcpy(server->node_id, node_id, 16);
    server->is_known = 1;
}

/* One that was never given, else one whose node had been forgotten before this leader began: then each location that
 * names that node is of an earlier epoch than any that names the new one *(number_rests)*.  MD_SERVERS_MAX: none. */
static uint32_t free_number(const md_core *core) {
    if (core->server_count < MD_SERVERS_MAX)
        return core->server_count;
    uint32_t server = 0;
    while (server < MD_SERVERS_MAX && core->servers[server].was_member)
        server++;
    return server;
}

static ms_status add_member(md_core *core, const uint8_t node_id[16], uint32_t *server) {
    *server = find_node(core, node_id);
    if (*server == core->server_count) {
        *server = free_number(core);
        ms_status status = reach(core, *server);
        if (status != MS_OK)
            return status;
        md_server *at = server_at(core, *server);
        *at = (md_server){.state = MS_MEMBER_GONE};
        name_node(at, node_id);
    }
    server_at(core, *server)->is_member = server_at(core, *server)->was_member = 1;
    return MS_OK;
}

ms_status md_server_number(md_core *core, md_now now, const uint8_t node_id[16], uint32_t server,
                           uint64_t struck) {
    md_set_now(core, now);
    ms_status status = reach(core, server);
    if (status != MS_OK)
        return status;
    name_node(server_at(core, server), node_id);
    server_at(core, server)->struck = struck;
    return MS_OK;
}

void md_server_strike(md_core *core, uint32_t server, uint64_t version) {
    if (server < core->server_count && version > core->servers[server].struck)
        core->servers[server].struck = version;
}

uint64_t md_version_given(const md_core *core) {
    return ms_version(core->config.epoch, core->sequence) - 1;
}

ms_status md_server_expect(md_core *core, md_now now, const uint8_t node_id[16], uint32_t *server) {
    md_set_now(core, now);
    ms_status status = add_member(core, node_id, server);
    md_absent_count(core);
    return status;
}

/* Bit i: replica i of that open put is at the server. */
static uint64_t replicas_on(md_core *core, const md_put *put, uint32_t server, uint64_t *others) {
    md_shard *shard = &core->shards[md_shard_of(put->hash)];
    uint32_t record = md_index_find(shard, put->hash, MD_RECORD_WRITING);
    md_replica_set set;
    md_record_replicas(shard, md_record_at(shard, record), &set);
    uint64_t on = 0;
    *others = 0;
    for (uint32_t i = 0; i < set.count; i++)
        if (set.replicas[i].state == MD_REPLICA_THERE)
            *(set.replicas[i].server == server ? &on : others) |= 1ull << i;
    return on;
}

/* The grants of its former life are void: no writer can reach it with them.  Those of the same puts at other
 * servers stay, because there the writer may be writing. */
static bool forget_put(md_core *core, uint32_t put, uint32_t server) {
    const md_put *at = md_pool_at(&core->puts, put);
    uint64_t others, on = replicas_on(core, at, server, &others);
    if (others == 0)
        return md_put_take_back(core, put, 0, MS_GONE);
    uint32_t shard_number = md_shard_of(at->hash);
    md_shard *shard = &core->shards[shard_number];
    uint32_t record = md_index_find(shard, at->hash, MD_RECORD_WRITING);
    uint32_t extents = md_record_extent_count(shard, md_record_at(shard, record));
    if (!md_reserve(core, extents, 0) ||
        !md_shard_reserve(shard, 0, md_replica_bytes(MS_REPLICAS_MAX, extents)))
        return false;
    md_object_drop_replicas(core, shard_number, record, on);
    return true;
}

/* false: no memory, some are left. */
static bool forget_grants(md_core *core, uint32_t server) {
    md_notes_server_gone(core, server);
    md_changes_server_gone(core, server);
    uint32_t puts[1024];
    const uint32_t puts_max = 1024;
    uint32_t count;
    do {
        count = 0;
        for (uint32_t i = 0; i < core->put_of.capacity && count < puts_max; i++) {
            uint32_t put = core->put_of.slots[i].value;
            uint64_t others;
            if (put != 0 && replicas_on(core, md_pool_at(&core->puts, put), server, &others) != 0)
                puts[count++] = put;
        }
        for (uint32_t i = 0; i < count; i++)
            if (!forget_put(core, puts[i], server))
                return false;
    } while (count == puts_max);
    return true;
}

/* The number of segments never falls: replicas of a former life may name any of them. */
static ms_status set_segments(md_core *core, md_server *server, const ms_server_info *info,
                              const ms_segment_info *segments) {
    uint32_t count =
        info->segment_count > server->segment_count ? info->segment_count : server->segment_count;
    md_segment *grown = md_memory_small(server->segments, (count + 1) * sizeof(md_segment));
    if (grown == NULL)
        return MS_NO_MEMORY;
    server->segments = grown;
    for (uint32_t i = 0; i < server->segment_count; i++)
        md_segment_close(&grown[i]);
    server->segment_count = count;
    memset(grown, 0, count * sizeof(md_segment));
    for (uint32_t i = 0; i < info->segment_count; i++) {
        md_segment *segment = &grown[segments[i].segment];
        segment->tier = segments[i].tier;
        segment->page_count = segments[i].page_count;
        segment->page_ready = segments[i].page_count_ready;
        segment->ready_changed_ms = core->now.now_ms;
    }
    return MS_OK;
}

static bool segments_valid(const ms_server_info *info, const ms_segment_info *segments) {
    if (info->segment_count > MD_SEGMENTS_MAX)
        return false;
    for (uint32_t i = 0; i < info->segment_count; i++)
        if (segments[i].segment >= info->segment_count || segments[i].page_count >= UINT32_MAX ||
            segments[i].page_count_ready > segments[i].page_count)
            return false;
    return true;
}

static ms_status set_host(md_server *server, const char *host) {
    size_t bytes = host == NULL ? 0 : strlen(host) + 1;
    char *copy = NULL;
    if (bytes > 1) {
        copy = md_memory_small(NULL, bytes);
        if (copy == NULL)
            return MS_NO_MEMORY;
        memcpy(copy, host, bytes);
    }
    md_memory_small_free(server->host);
    server->host = copy;
    server->host_mark = copy == NULL ? 0 : ms_crc32c(0, copy, bytes - 1);
    return MS_OK;
}

ms_status md_server_join(md_core *core, md_now now, const ms_server_info *info, const char *host,
                         const ms_segment_info *segments, uint32_t *number) {
    md_set_now(core, now);
    if (!segments_valid(info, segments))
        return MS_BAD_REQUEST;
    /* Forgotten by this very leader: the grants of that life have been given up, and only a new one makes them void
     * for their writers. */
    uint32_t known = find_node(core, info->node_id);
    if (known < core->server_count && !core->servers[known].is_member && info->incarnation != 0 &&
        core->servers[known].incarnation == info->incarnation)
        return MS_REFUSED;
    ms_status status = add_member(core, info->node_id, number);
    if (status != MS_OK)
        return status;
    md_server *server = server_at(core, *number);
    if (info->incarnation < server->incarnation)
        return MS_WRONG_INCARNATION;
    /* The same life, over another connection: what is known of it stands, its inventory tells nothing new (and
     * may be older than a put that completed meanwhile). */
    bool is_known_life = server->is_adopted && info->incarnation == server->incarnation;
    if (!is_known_life) {
        if (info->incarnation != server->incarnation && !forget_grants(core, *number))
            return MS_NO_MEMORY;
        md_inventory_drop(core, *number);
        server->is_adopted = 0;
        if ((status = set_segments(core, server, info, segments)) != MS_OK)
            return status;
        server->object_count = 0;
        server->needs_sweep = server->was_known;
        server->is_counted = !server->needs_sweep;
        server->was_known = 1;
        server->incarnation = info->incarnation;
    } else {
        for (uint32_t i = 0; i < info->segment_count; i++)
            if (segments[i].segment < server->segment_count &&
                !md_segment_grow(core, &server->segments[segments[i].segment],
                                 segments[i].page_count_ready))
                return MS_NO_MEMORY;
    }
    server->takes_in = !is_known_life;
    server->state = MS_MEMBER_JOINING;
    server->is_lost = 0;
    md_timer_stop(core, &server->timer);
    md_absent_count(core);
    return set_host(server, host);
}

ms_status md_segment_ready(md_core *core, md_now now, uint32_t server, uint32_t incarnation,
                           uint32_t segment, uint64_t pages_ready) {
    md_set_now(core, now);
    if (server >= core->server_count)
        return MS_NOT_FOUND;
    md_server *at = server_at(core, server);
    if (at->incarnation != incarnation)
        return MS_WRONG_INCARNATION;
    if (segment >= at->segment_count)
        return MS_BAD_REQUEST;
    if (!at->is_adopted) { /* the inventory's end puts all free runs where they belong */
        if (pages_ready > at->segments[segment].page_ready &&
            pages_ready <= at->segments[segment].page_count)
            at->segments[segment].page_ready = pages_ready;
        return MS_OK;
    }
    bool done = md_segment_grow(core, &at->segments[segment], pages_ready);
    md_parked_serve(core);
    return done ? MS_OK : MS_NO_MEMORY;
}

void md_server_gone(md_core *core, md_now now, uint32_t server, uint32_t incarnation) {
    md_set_now(core, now);
    if (server >= core->server_count || server_at(core, server)->incarnation != incarnation ||
        server_at(core, server)->state == MS_MEMBER_GONE)
        return;
    md_server *at = server_at(core, server);
    at->state = MS_MEMBER_GONE;
    core->members_changed++;
    md_repair_put_off(core);
    md_inventory_drop(core, server);
    md_notes_server_gone(core, server);
    md_changes_server_gone(core, server);
    if (md_pool_reserve(&core->wheel.timers, 1)) {
        md_timer_stop(core, &at->timer);
        at->timer = md_timer_start(core, now.now_ms + core->config.member_grace_ms, MD_TIMER_SERVER,
                                   server);
    }
    md_parked_serve(core);
}

/* The grace is over: its objects leave with it, and come back with it.  Open puts stay: it may be alive, and their
 * writers too; they end with their deadline. */
void md_server_timer(md_core *core, uint32_t server) {
    md_server *at = server_at(core, server);
    at->timer = 0;
    if (at->state != MS_MEMBER_GONE)
        return;
    at->is_adopted = at->is_counted = at->takes_in = 0;
    at->is_lost = 1;
    core->lost_count = 1;
    core->sweep_left = MD_SHARDS;
    core->sweep_record = 0;
    md_absent_count(core);
    md_event(core, MS_EVENT_SERVER_LOST, 0, 0, server + 1, NULL, 0);
}

ms_status md_server_forget(md_core *core, md_now now, uint32_t server, uint64_t struck) {
    md_set_now(core, now);
    if (server >= core->server_count || !core->servers[server].is_member)
        return MS_NOT_FOUND;
    md_server *at = server_at(core, server);
    if (at->state != MS_MEMBER_GONE)
        return MS_BUSY;
    md_timer_stop(core, &at->timer);
    if (!at->is_lost)
        md_server_timer(core, server);
    md_server_strike(core, server, struck);
    at->is_member = at->is_condemned = 0;
    at->tombstones = 0;
    md_drain_end(core, server);
    md_frees_forget(core, server);
    md_absent_count(core);
    md_parked_serve(core);
    return MS_OK;
}

/* Bit i: replica i counts. */
static uint64_t replicas_left(const md_core *core, const md_replica_set *set) {
    uint64_t left = 0;
    for (uint32_t i = 0; i < set->count; i++)
        if (set->replicas[i].state == MD_REPLICA_THERE &&
            !core->servers[set->replicas[i].server].is_lost)
            left |= 1ull << i;
    return left;
}

/* Looks through records for replicas at lost servers, some in each tick. */
void md_lost_sweep(md_core *core, uint32_t records) {
    while (core->sweep_left > 0 && records > 0) {
        md_shard *shard = &core->shards[core->sweep_shard];
        if (core->sweep_generation != shard->generation) {
            core->sweep_record = 0;
            core->sweep_generation = shard->generation;
        }
        if (core->sweep_record >= shard->record_fresh) {
            core->sweep_shard = (core->sweep_shard + 1) % MD_SHARDS;
            core->sweep_record = 0;
            core->sweep_generation = core->shards[core->sweep_shard].generation;
            core->sweep_left--;
            continue;
        }
        records--;
        uint32_t number = ++core->sweep_record;
        md_record *record = md_record_at(shard, number);
        if (record->state != MD_RECORD_COMPLETE)
            continue;
        md_replica_set set;
        md_record_replicas(shard, record, &set);
        uint64_t left = replicas_left(core, &set);
        if (left == (1ull << set.count) - 1)
            continue;
        bool done =
            left == 0 ? md_object_depart(core, core->sweep_shard, number,
                                         (md_cause){.kind = MS_FATE_NODE_LOST})
                      : md_reserve(core, 0, 0) &&
                            md_shard_reserve(
                                shard, 0,
                                md_replica_bytes(set.count, md_record_extent_count(shard, record)));
        if (!done) { /* no memory: again in the next tick */
            core->sweep_record--;
            return;
        }
        if (left == 0)
            continue;
        md_object_keep_replicas(core, core->sweep_shard, number, left);
        MD_COUNT(core, replicas_lost)++;
    }
    if (core->sweep_left == 0)
        core->lost_count = 0;
}

uint32_t md_server_count(const md_core *core) { return core->server_count; }

ms_status md_server_get(const md_core *core, uint32_t server, md_server_view *view) {
    *view = (md_server_view){0};
    if (server >= core->server_count || !core->servers[server].is_member)
        return MS_NOT_FOUND;
    const md_server *at = &core->servers[server];
    memcpy(view->node_id, at->node_id, 16);
    view->incarnation = at->incarnation;
    view->state = at->state;
    view->object_count = at->object_count;
    view->struck = at->struck;
    view->is_draining = at->is_draining != 0;
    for (uint32_t i = 0; i < at->segment_count; i++) {
        const md_segment *segment = &at->segments[i];
        view->pages_total += segment->page_count;
        view->pages_ready += segment->page_ready;
        view->pages_free += segment->allocator.pages_free;
        view->pages_freeing += segment->pages_leaving + segment->pages_held;
        view->pages_pinned += segment->pages_complete - segment->pages_unpinned;
    }
    return MS_OK;
}

void md_server_close(md_core *core, uint32_t server) {
    md_server *at = server_at(core, server);
    md_inventory_drop(core, server);
    for (uint32_t i = 0; i < at->segment_count; i++)
        md_segment_close(&at->segments[i]);
    md_memory_small_free(at->segments);
    md_memory_small_free(at->host);
}
