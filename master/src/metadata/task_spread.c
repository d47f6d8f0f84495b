/* Spreading: replicas that lie on one host, because there was no other one or no room there, go apart when there is.
 *
 * A part of repair: one of two servers goes with its host as well.  Nothing is remembered per object, and no index says which
 * share a host, so repair walks for their sake when it may find some: members have changed, or new replicas had to share,
 * or the last walk could not do all; and two members share a host while there is another host.  Where each
 * server is a host of its own, or all are one host, nothing is ever walked.
 */
#include "md_task.h"

static bool is_holding(const md_server *server) {
    return server->object_count != 0 && !server->is_lost;
}

static bool is_possible(const md_core *core) {
    bool is_shared = false, has_other = false;
    uint32_t first = core->server_count;
    for (uint32_t i = 0; i < core->server_count; i++) {
        if (md_server_takes_puts(&core->servers[i])) {
            first = first == core->server_count ? i : first;
            has_other |= !md_is_same_host(core, first, i) && i != first;
        }
        for (uint32_t j = 0; j < i && !is_shared; j++)
            is_shared = core->servers[i].is_known && core->servers[j].is_known &&
                        md_is_same_host(core, i, j);
    }
    return is_shared && has_other;
}

/* Some object has more than one replica. */
static bool has_replicated(const md_core *core) {
    uint64_t replicas = 0;
    for (uint32_t i = 0; i < core->server_count; i++)
        replicas += is_holding(&core->servers[i]) ? core->servers[i].object_count : 0;
    return replicas > MD_COUNT(core, objects);
}

bool md_spread_is_due(md_core *core) {
    if (core->repair_left)
        return true; /* after its pause it looks again, also whether there is anything still */
    if (core->repair_members_seen == core->members_changed &&
        core->sharing_seen == core->sharing_placed)
        return false;
    if (core->spread_members_seen != core->members_changed) {
        core->spread_members_seen = core->members_changed;
        core->spread_is_possible = is_possible(core);
    }
    return core->spread_is_possible && has_replicated(core);
}

/* The later one of two holders on a host: the first is where the object was put to.  server + 1; 0: none. */
static uint32_t sharing_holder(const md_core *core, const md_replica_set *set) {
    for (uint32_t i = set->count; i-- > 1;) {
        uint32_t server = set->replicas[i].server;
        if (set->replicas[i].state != MD_REPLICA_THERE || core->servers[server].is_lost ||
            core->servers[server].is_draining)
            continue;
        for (uint32_t j = 0; j < i; j++)
            if (set->replicas[j].state == MD_REPLICA_THERE &&
                !core->servers[set->replicas[j].server].is_lost &&
                md_is_same_host(core, server, set->replicas[j].server))
                return server + 1;
    }
    return 0;
}

static bool has_host_of(const md_core *core, const md_replica_set *set, uint32_t server) {
    for (uint32_t i = 0; i < set->count; i++)
        if (set->replicas[i].server == server ||
            md_is_same_host(core, set->replicas[i].server, server))
            return true;
    return false;
}

/* The server with most room on a host that has none of it.  server + 1; 0: none has room, or there is no such host. */
static uint32_t elsewhere(const md_core *core, const md_replica_set *set, uint64_t pages,
                          bool *has_host) {
    uint32_t best = 0;
    uint64_t most = pages; /* less is no room */
    *has_host = false;
    for (uint32_t i = 0; i < core->server_count; i++) {
        const md_server *server = &core->servers[i];
        if (!md_server_takes_puts(server) || has_host_of(core, set, i))
            continue;
        *has_host = true;
        for (uint32_t j = 0; j < server->segment_count; j++) {
            const md_segment *segment = &server->segments[j];
            if (segment->tier != 0 || segment->allocator.pages_free < most)
                continue;
            most = segment->allocator.pages_free;
            best = i + 1;
        }
    }
    return best;
}

void md_spread_one(md_core *core, md_task *task, uint32_t shard_number, uint32_t number,
                   const md_holders *found) {
    md_shard *shard = &core->shards[shard_number];
    const md_record *record = md_record_at(shard, number);
    bool has_host;
    uint32_t leaving = found->live > 1 ? sharing_holder(core, &found->set) : 0;
    if (leaving == 0)
        return;
    uint32_t target = elsewhere(core, &found->set, ms_pages_of(record->size), &has_host);
    if (!has_host)
        return; /* until members change */
    ms_status status =
        target == 0 ? MS_NO_SPACE : md_task_obstacle(core, shard, record, found, target);
    if (status != MS_OK) {
        md_task_failure_add(task, shard, record, status);
        return;
    }
    md_change_order change = {.shard = shard_number,
                              .record = number,
                              .count = found->live,
                              .target = target,
                              .leaving = leaving,
                              .wanted = record->more_wanted + 1u,
                              .is_whole = true};
    md_task_order_change(core, task, &change);
}
