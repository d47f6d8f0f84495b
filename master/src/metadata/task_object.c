/* What a task does to one object (task.c): which change of replicas it needs, and whether one may begin now. */
#include <string.h>

#include "md_task.h"

#define COST_MIN MS_PAGE_SIZE /* of an object: small ones cost frames, not bytes */
#define BURST_MS 250          /* unused bandwidth is kept for so long */
#define RUNNING_BYTES_MAX (128u << 20)

/* ---- bandwidth ------------------------------------------------------------------------------------------------- */
/* Credit grows with time and falls with what is begun; an object larger than it makes it negative, and the next one
 * waits. */
void md_task_credit_refill(md_core *core) {
    int64_t rate = core->config.copy_bytes_per_s > INT64_MAX / 1000000
                       ? INT64_MAX / 1000000
                       : (int64_t)core->config.copy_bytes_per_s;
    int64_t passed_ms = core->now.now_ms - core->task_credit_ms;
    if (passed_ms <= 0)
        return;
    core->task_credit_ms = core->now.now_ms;
    int64_t most = rate * BURST_MS / 1000;
    if (passed_ms > 60000) /* more than any debt, and no overflow */
        passed_ms = 60000;
    core->task_credit += rate * passed_ms / 1000;
    if (core->task_credit > most)
        core->task_credit = most;
}

bool md_task_may_begin(const md_core *core) {
    return core->task_changes < MD_TASK_COPIES_RUNNING_MAX &&
           core->task_bytes < RUNNING_BYTES_MAX && core->park_first == 0 &&
           MD_COUNT(core, changes_running) < MD_COPIES_RUNNING_MAX &&
           (core->config.copy_bytes_per_s == 0 || core->task_credit > 0);
}

static void spend(md_core *core, uint64_t bytes) {
    if (core->config.copy_bytes_per_s != 0)
        core->task_credit -= (int64_t)(bytes > COST_MIN ? bytes : COST_MIN);
}

/* ---- changes --------------------------------------------------------------------------------------------------- */
void md_task_change_ended(md_core *core, uint32_t number, const md_shard *shard,
                          const md_record *record, uint64_t bytes, uint32_t copies,
                          ms_status status) {
    md_task *task = &core->background[number - 1];
    task->running--;
    core->task_changes--;
    core->task_bytes -= bytes;
    if (status == MS_OK) {
        task->objects_done++;
        task->bytes_done += bytes * copies;
        MD_COUNT(core, task_bytes) += bytes * copies;
    } else if (status != MS_GONE) { /* removed or evicted meanwhile: there is nothing to do */
        md_task_failure_add(task, shard, record, status);
        task->pass_sole += task->pass == MD_PASS_SOLE;
    }
}

void md_task_order_change(md_core *core, md_task *task, md_change_order *wanted) {
    md_shard *shard = &core->shards[wanted->shard];
    const md_record *record = md_record_at(shard, wanted->record);
    ms_hash hash = record->hash;
    uint64_t bytes = ms_pages_of(record->size) * MS_PAGE_SIZE;
    wanted->task = (uint32_t)(task - core->background) + 1;
    task->running++;
    core->task_changes++;
    core->task_bytes += bytes;
    ms_status status = md_change_start(core, wanted);
    if (status == MS_PENDING) {
        spend(core, bytes * wanted->count);
        return;
    }
    task->running--;
    core->task_changes--;
    core->task_bytes -= bytes;
    uint32_t number = md_index_find(shard, hash, MD_RECORD_COMPLETE);
    if (number != 0)
        md_task_failure_add(task, shard, md_record_at(shard, number), status);
    task->pass_sole += task->pass == MD_PASS_SOLE;
}

bool md_server_is_in_touch(const md_server *server) {
    return server->is_adopted && server->state != MS_MEMBER_GONE;
}

static void holders_of(md_core *core, const md_task *task, md_shard *shard, const md_record *record,
                       md_holders *found) {
    *found = (md_holders){0};
    md_record_replicas(shard, record, &found->set);
    for (uint32_t i = 0; i < found->set.count; i++) {
        const md_replica *replica = &found->set.replicas[i];
        const md_server *server = &core->servers[replica->server];
        if (replica->state != MD_REPLICA_THERE || server->is_lost)
            continue;
        found->live++;
        found->staying += !server->is_draining;
        found->has_source |= replica->server + 1u == task->source;
        found->has_target |= replica->server + 1u == task->target;
        found->is_reachable |= md_server_is_in_touch(server);
    }
}

ms_status md_task_obstacle(md_core *core, md_shard *shard, const md_record *record,
                           const md_holders *found, uint32_t target) {
    if (record->is_changing || md_index_find(shard, record->hash, MD_RECORD_WRITING) != 0)
        return MS_BUSY;
    if (!found->is_reachable || !md_has_candidate(core, &found->set, target))
        return MS_UNAVAILABLE;
    return ms_pages_of(record->size) > md_placeable_pages_max(core) ? MS_TOO_LARGE : MS_OK;
}

bool md_task_in_scope(const md_task *task, md_shard *shard, md_record *record) {
    if (task->kind != MS_TASK_REPLICATE && task->kind != MS_TASK_MOVE)
        return true;
    return md_record_tenant(shard, record) == task->tenant &&
           record->key_length >= task->prefix_length &&
           (task->prefix_length == 0 ||
            memcmp(md_record_key(shard, record), task->prefix, task->prefix_length) == 0);
}

static void fail_at(md_task *task, md_shard *shard, const md_record *record, ms_status status) {
    md_task_failure_add(task, shard, record, status);
    task->pass_sole += task->pass == MD_PASS_SOLE;
}

static void drain_one(md_core *core, md_task *task, uint32_t shard_number, uint32_t number) {
    md_shard *shard = &core->shards[shard_number];
    const md_record *record = md_record_at(shard, number);
    md_holders found;
    holders_of(core, task, shard, record, &found);
    if (!found.has_source)
        return;
    bool is_sole = found.staying == 0;
    if (is_sole != (task->pass == MD_PASS_SOLE)) {
        /* In the second walk: a put that ended since, or the replica elsewhere went.  They have their own again. */
        task->pass_left++;
        task->pass_sole += is_sole;
        return;
    }
    uint32_t wanted = record->more_wanted + 1u;
    ms_status status = md_task_obstacle(core, shard, record, &found, 0);
    if (found.staying >= wanted && status != MS_BUSY) { /* there are enough without it */
        spend(core, 0);
        status = md_change_reduce(core, shard_number, number, found.live - 1, task->source, wanted);
        task->objects_done += status == MS_OK;
    } else if (status == MS_OK) {
        md_change_order change = {.shard = shard_number,
                                  .record = number,
                                  .count = found.live,
                                  .leaving = task->source,
                                  .wanted = wanted,
                                  .may_evict = is_sole,
                                  .is_whole = !is_sole};
        md_task_order_change(core, task, &change);
        return;
    }
    if (status == MS_OK)
        return;
    task->pass_left++;
    fail_at(task, shard, md_record_at(shard, number), status);
}

static void repair_one(md_core *core, md_task *task, uint32_t shard_number, uint32_t number) {
    md_shard *shard = &core->shards[shard_number];
    const md_record *record = md_record_at(shard, number);
    uint32_t wanted = record->more_wanted + 1u;
    md_holders found;
    if (wanted == 1)
        return;
    holders_of(core, task, shard, record, &found);
    if (found.live >= wanted)
        md_spread_one(core, task, shard_number, number, &found);
    if (found.live == 0 || found.live >= wanted)
        return;
    ms_status status = md_task_obstacle(core, shard, record, &found, 0);
    if (status != MS_OK) {
        fail_at(task, shard, record, status);
        return;
    }
    md_change_order change = {
        .shard = shard_number, .record = number, .count = wanted, .wanted = wanted};
    md_task_order_change(core, task, &change);
}

static void replicate_one(md_core *core, md_task *task, uint32_t shard_number, uint32_t number) {
    md_shard *shard = &core->shards[shard_number];
    const md_record *record = md_record_at(shard, number);
    uint32_t wanted = task->replica_count;
    md_holders found;
    holders_of(core, task, shard, record, &found);
    bool is_right = found.live == wanted && record->more_wanted + 1u == wanted;
    if (task->pass == MD_PASS_COUNT) {
        task->objects_total += !is_right;
        task->bytes_total += found.live < wanted
                                 ? (wanted - found.live) * ms_pages_of(record->size) * MS_PAGE_SIZE
                                 : 0;
        return;
    }
    if (is_right)
        return;
    ms_status status = md_task_obstacle(core, shard, record, &found, 0);
    if (found.live >= wanted && (status == MS_OK || status == MS_UNAVAILABLE)) {
        spend(core, 0);
        status = md_change_reduce(core, shard_number, number, wanted, 0, wanted);
        task->objects_done += status == MS_OK;
    } else if (status == MS_OK) {
        md_change_order change = {.shard = shard_number,
                                  .record = number,
                                  .count = wanted,
                                  .wanted = wanted,
                                  .may_evict = true};
        md_task_order_change(core, task, &change);
        return;
    }
    if (status != MS_OK)
        fail_at(task, shard, md_record_at(shard, number), status);
}

static void move_one(md_core *core, md_task *task, uint32_t shard_number, uint32_t number) {
    md_shard *shard = &core->shards[shard_number];
    const md_record *record = md_record_at(shard, number);
    md_holders found;
    holders_of(core, task, shard, record, &found);
    if (!found.has_source || found.has_target)
        return;
    if (task->pass == MD_PASS_COUNT) {
        task->objects_total++;
        task->bytes_total += ms_pages_of(record->size) * MS_PAGE_SIZE;
        return;
    }
    ms_status status = md_task_obstacle(core, shard, record, &found, task->target);
    if (status != MS_OK) {
        fail_at(task, shard, record, status);
        return;
    }
    md_change_order change = {.shard = shard_number,
                              .record = number,
                              .count = found.live,
                              .target = task->target,
                              .leaving = task->source,
                              .wanted = record->more_wanted + 1u,
                              .may_evict = true,
                              .is_whole = true};
    md_task_order_change(core, task, &change);
}

void md_task_treat(md_core *core, md_task *task, uint32_t shard, uint32_t number) {
    switch (task->kind) {
    case MS_TASK_DRAIN:
        drain_one(core, task, shard, number);
        break;
    case MS_TASK_REPAIR:
        repair_one(core, task, shard, number);
        break;
    case MS_TASK_REPLICATE:
        replicate_one(core, task, shard, number);
        break;
    default:
        move_one(core, task, shard, number);
    }
}
