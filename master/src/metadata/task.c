/* Tasks: what is done to many objects in the background: drain, repair, replicate, move.
 *
 * A task walks over all records, a bounded number a step, and orders a change of replicas (replica.c) for each object that
 * needs one.  Nothing is remembered per object: whether one needs a change is seen from its replicas, so a walk
 * that is begun again, by another master too, goes on where the last one ended.  A walk stops at an object while
 * enough changes are under way or the bytes of this moment are spent.
 *
 * Drain walks twice: what is nowhere else goes first.  It has ended when its server has nothing that is nowhere
 * else.  What cannot move keeps it blocked, with the reasons, and is tried again when servers come or go, and now and then.
 * Repair has no order: it is what the index is short of.  It begins a while after a server went, because that server is
 * most often back soon, with all it had.
 */
#include "md_internal.h"

#include <string.h>

#define COST_MIN MS_PAGE_SIZE /* of an object: small ones cost frames, not bytes */
#define BURST_MS 250          /* unused bandwidth is kept for so long */
#define RUNNING_BYTES_MAX (128u << 20)
#define BLOCKED_RETRY_MS 10000
#define INVENTORIES_MS 10000 /* a new master waits so long for servers that it expects */
#define AGAIN_MS 200         /* before the next walk of a task that moves on */
#define REPAIR_PUT_OFF_MAX 4 /* delays: a server that comes and goes must not stop all repair */
#define REPAIR_PAUSE_MS 10000
#define REPAIR_PAUSE_MS_MAX 600000

static bool is_over(const md_task *task) {
    return task->state == MS_TASK_DONE || task->state == MS_TASK_CANCELLED;
}

static md_task *task_find(md_core *core, uint64_t id) {
    for (uint32_t i = 0; id != 0 && i < MD_TASKS_MAX; i++)
        if (core->background[i].id == id)
            return &core->background[i];
    return NULL;
}

static md_task *drain_of(md_core *core, uint32_t server) {
    for (uint32_t i = 0; i < MD_TASKS_MAX; i++) {
        md_task *task = &core->background[i];
        if (task->id != 0 && task->kind == MS_TASK_DRAIN && task->source == server + 1 &&
            task->state != MS_TASK_CANCELLED)
            return task;
    }
    return NULL;
}

/* ---- their beginning and end --------------------------------------------------------------------------------- */
static void tell(md_core *core, const md_task *task) {
    md_effect *effect = md_effect_push(core, MD_EFFECT_TASK);
    if (effect != NULL)
        effect->task = task->id;
}

static void failures_forget(md_task *task) {
    for (uint32_t i = 0; i < task->failure_count; i++)
        md_memory_small_free(task->failures[i].key);
    task->failure_count = 0;
}

static void task_forget(md_task *task) {
    failures_forget(task);
    md_memory_small_free(task->failures);
    md_memory_small_free(task->prefix);
    *task = (md_task){0};
}

void md_tasks_close(md_core *core) {
    for (uint32_t i = 0; i < MD_TASKS_MAX; i++)
        task_forget(&core->background[i]);
}

/* An unused place, or that of the task that ended first; NULL: all are at work. */
static md_task *task_place(md_core *core) {
    md_task *oldest = NULL;
    for (uint32_t i = 0; i < MD_TASKS_MAX; i++) {
        md_task *task = &core->background[i];
        if (task->id == 0)
            return task;
        bool is_needed = task->running != 0 || !is_over(task) ||
                         (task->kind == MS_TASK_DRAIN && task->state == MS_TASK_DONE &&
                          core->servers[task->source - 1].is_draining);
        if (!is_needed && (oldest == NULL || task->ended_ms < oldest->ended_ms))
            oldest = task;
    }
    if (oldest != NULL)
        task_forget(oldest);
    return oldest;
}

static void pass_begin(md_core *core, md_task *task, md_task_pass pass) {
    failures_forget(task);
    task->pass = pass;
    task->walk = (md_walk){.generation = core->shards[0].generation};
    task->pass_begun_done = task->objects_done;
    task->pass_failed = task->pass_left = task->pass_sole = 0;
    task->members_seen = core->members_changed;
}

static md_task *task_begin(md_core *core, uint32_t kind, uint64_t id) {
    md_task *task = task_place(core);
    if (task == NULL)
        return NULL;
    *task = (md_task){.id = id != 0 ? id : ms_task_id(core->config.epoch, ++core->task_numbers),
                      .kind = kind,
                      .state = MS_TASK_RUNNING,
                      .started_ms = core->now.now_ms};
    MD_COUNT(core, tasks_running)++;
    pass_begin(core, task,
               kind == MS_TASK_DRAIN    ? MD_PASS_SOLE
               : kind == MS_TASK_REPAIR ? MD_PASS_ALL
                                        : MD_PASS_COUNT);
    tell(core, task);
    return task;
}

static void task_end(md_core *core, md_task *task, uint32_t state) {
    task->state = state;
    task->ended_ms = core->now.now_ms;
    MD_COUNT(core, tasks_running)--;
    tell(core, task);
}

/* What happened after its end is not told: it goes on. */
static void task_resume(md_core *core, md_task *task) {
    task->ended_ms = task->next_ms = 0;
    task->state = MS_TASK_RUNNING;
    MD_COUNT(core, tasks_running)++;
    pass_begin(core, task, MD_PASS_SOLE);
    tell(core, task);
}

static void failure_add(md_task *task, const md_shard *shard, const md_record *record,
                        ms_status status) {
    task->pass_failed++;
    if (task->failure_count == MS_TASK_FAILURES_MAX)
        return;
    if (task->failures == NULL)
        task->failures = md_memory_small(NULL, MS_TASK_FAILURES_MAX * sizeof *task->failures);
    uint8_t *key = task->failures == NULL ? NULL : md_memory_small(NULL, record->key_length);
    if (key == NULL)
        return; /* it is counted */
    memcpy(key, md_record_key(shard, record), record->key_length);
    task->failures[task->failure_count++] = (md_task_failure){
        .size = record->size, .key = key, .status = status, .key_length = record->key_length};
}

/* ---- bandwidth ------------------------------------------------------------------------------------------------- */
/* Credit grows with time and falls with what is begun; an object larger than it makes it negative, and the next one
 * waits. */
static void credit_refill(md_core *core) {
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

static bool may_begin(const md_core *core) {
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
        failure_add(task, shard, record, status);
        task->pass_sole += task->pass == MD_PASS_SOLE;
    }
}

static void order(md_core *core, md_task *task, md_change_order *wanted) {
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
        failure_add(task, shard, md_record_at(shard, number), status);
    task->pass_sole += task->pass == MD_PASS_SOLE;
}

static bool is_in_touch(const md_server *server) {
    return server->is_adopted && server->state != MS_MEMBER_GONE;
}

/* What matters of an object's replicas. */
typedef struct holders {
    md_replica_set set;
    uint32_t live;    /* that count */
    uint32_t staying; /* of those, at servers that do not drain */
    bool has_source, has_target, is_reachable;
} holders;

static void holders_of(md_core *core, const md_task *task, md_shard *shard, const md_record *record,
                       holders *found) {
    *found = (holders){0};
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
        found->is_reachable |= is_in_touch(server);
    }
}

/* Why no change of this object can begin now; OK: one may. */
static ms_status obstacle(md_core *core, md_shard *shard, const md_record *record,
                          const holders *found, uint32_t target) {
    if (record->is_changing || md_index_find(shard, record->hash, MD_RECORD_WRITING) != 0)
        return MS_BUSY;
    if (!found->is_reachable || !md_has_candidate(core, &found->set, target))
        return MS_UNAVAILABLE;
    return ms_pages_of(record->size) > md_placeable_pages_max(core) ? MS_TOO_LARGE : MS_OK;
}

static bool in_scope(const md_task *task, md_shard *shard, md_record *record) {
    if (task->kind != MS_TASK_REPLICATE && task->kind != MS_TASK_MOVE)
        return true;
    return md_record_tenant(shard, record) == task->tenant &&
           record->key_length >= task->prefix_length &&
           (task->prefix_length == 0 ||
            memcmp(md_record_key(shard, record), task->prefix, task->prefix_length) == 0);
}

static void fail_at(md_task *task, md_shard *shard, const md_record *record, ms_status status) {
    failure_add(task, shard, record, status);
    task->pass_sole += task->pass == MD_PASS_SOLE;
}

static void drain_one(md_core *core, md_task *task, uint32_t shard_number, uint32_t number) {
    md_shard *shard = &core->shards[shard_number];
    const md_record *record = md_record_at(shard, number);
    holders found;
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
    ms_status status = obstacle(core, shard, record, &found, 0);
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
        order(core, task, &change);
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
    holders found;
    if (wanted == 1)
        return;
    holders_of(core, task, shard, record, &found);
    if (found.live == 0 || found.live >= wanted)
        return;
    ms_status status = obstacle(core, shard, record, &found, 0);
    if (status != MS_OK) {
        fail_at(task, shard, record, status);
        return;
    }
    md_change_order change = {
        .shard = shard_number, .record = number, .count = wanted, .wanted = wanted};
    order(core, task, &change);
}

static void replicate_one(md_core *core, md_task *task, uint32_t shard_number, uint32_t number) {
    md_shard *shard = &core->shards[shard_number];
    const md_record *record = md_record_at(shard, number);
    uint32_t wanted = task->replica_count;
    holders found;
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
    ms_status status = obstacle(core, shard, record, &found, 0);
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
        order(core, task, &change);
        return;
    }
    if (status != MS_OK)
        fail_at(task, shard, md_record_at(shard, number), status);
}

static void move_one(md_core *core, md_task *task, uint32_t shard_number, uint32_t number) {
    md_shard *shard = &core->shards[shard_number];
    const md_record *record = md_record_at(shard, number);
    holders found;
    holders_of(core, task, shard, record, &found);
    if (!found.has_source || found.has_target)
        return;
    if (task->pass == MD_PASS_COUNT) {
        task->objects_total++;
        task->bytes_total += ms_pages_of(record->size) * MS_PAGE_SIZE;
        return;
    }
    ms_status status = obstacle(core, shard, record, &found, task->target);
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
    order(core, task, &change);
}

static void treat(md_core *core, md_task *task, uint32_t shard, uint32_t number) {
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

/* ---- the walk -------------------------------------------------------------------------------------------------- */
/* Visits records until the walk is at its end (true), `visits` are spent, or nothing more may begin. */
static bool walk_on(md_core *core, md_task *task, uint32_t *visits) {
    md_walk *walk = &task->walk;
    while (walk->shard < MD_SHARDS) {
        md_shard *shard = &core->shards[walk->shard];
        if (walk->generation != shard->generation) {
            walk->record = 0;
            walk->generation = shard->generation;
        }
        if (walk->record >= shard->record_fresh) {
            walk->shard++;
            walk->record = 0;
            if (walk->shard < MD_SHARDS)
                walk->generation = core->shards[walk->shard].generation;
            continue;
        }
        if (*visits == 0 || (task->pass != MD_PASS_COUNT && !may_begin(core)))
            return false;
        (*visits)--;
        uint32_t number = ++walk->record;
        md_record *record = md_record_at(shard, number);
        if (record->state == MD_RECORD_COMPLETE && md_object_is_current(core, shard, record) &&
            in_scope(task, shard, record))
            treat(core, task, walk->shard, number);
    }
    return true;
}

static uint64_t pages_writing(const md_server *server) {
    uint64_t pages = 0;
    for (uint32_t i = 0; i < server->segment_count; i++)
        pages += server->segments[i].pages_writing;
    return pages;
}

static void pass_again(md_core *core, md_task *task, md_task_pass pass, int64_t pause_ms) {
    pass_begin(core, task, pass);
    task->next_ms = core->now.now_ms + pause_ms;
}

static void drain_pass_ended(md_core *core, md_task *task) {
    const md_server *server = &core->servers[task->source - 1];
    bool has_moved = task->objects_done != task->pass_begun_done;
    if (task->pass_sole == 0) {
        if (task->pass == MD_PASS_SOLE)
            pass_begin(core, task, MD_PASS_ALL);
        else if (task->pass_failed != 0 && has_moved) /* what failed now may succeed */
            pass_again(core, task, MD_PASS_ALL, AGAIN_MS);
        else if (pages_writing(server) != 0) /* a put there that is not over yet */
            pass_again(core, task, MD_PASS_SOLE, AGAIN_MS);
        else
            task_end(core, task, MS_TASK_DONE);
        return;
    }
    if (has_moved || task->pass == MD_PASS_ALL) {
        pass_again(core, task, MD_PASS_SOLE, AGAIN_MS);
        return;
    }
    /* The failures stay until the next walk begins: whoever asks sees them. */
    task->next_ms = core->now.now_ms + BLOCKED_RETRY_MS;
    if (task->state != MS_TASK_BLOCKED) {
        task->state = MS_TASK_BLOCKED;
        tell(core, task);
    }
}

static void repair_pass_ended(md_core *core, md_task *task) {
    bool has_moved = task->objects_done != task->pass_begun_done;
    if (MD_COUNT(core, objects_short) != 0 && has_moved) {
        pass_again(core, task, MD_PASS_ALL, AGAIN_MS);
        return;
    }
    core->repair_pause_ms = task->objects_done != 0 ? REPAIR_PAUSE_MS : core->repair_pause_ms * 2;
    if (core->repair_pause_ms < REPAIR_PAUSE_MS)
        core->repair_pause_ms = REPAIR_PAUSE_MS;
    if (core->repair_pause_ms > REPAIR_PAUSE_MS_MAX)
        core->repair_pause_ms = REPAIR_PAUSE_MS_MAX;
    task_end(core, task, MS_TASK_DONE);
}

static void pass_ended(md_core *core, md_task *task) {
    task->objects_failed = task->pass_failed;
    task->objects_left = task->pass_left;
    task->sole_left = task->pass_sole;
    if (task->kind == MS_TASK_DRAIN)
        drain_pass_ended(core, task);
    else if (task->kind == MS_TASK_REPAIR)
        repair_pass_ended(core, task);
    else if (task->pass == MD_PASS_COUNT)
        pass_begin(core, task, MD_PASS_ALL);
    else
        task_end(core, task, MS_TASK_DONE);
}

/* Its server is away: nothing can be done, and what it held is repair's. */
static bool waits_for_server(md_core *core, md_task *task) {
    if (task->kind != MS_TASK_DRAIN)
        return false;
    bool is_away = !is_in_touch(&core->servers[task->source - 1]);
    if (is_away && task->state != MS_TASK_WAITING) {
        task->state = MS_TASK_WAITING;
    } else if (!is_away && task->state == MS_TASK_WAITING) {
        task->state = MS_TASK_RUNNING;
        pass_begin(core, task, MD_PASS_SOLE);
    }
    return is_away;
}

static void task_step(md_core *core, md_task *task, uint32_t *visits) {
    if (task->id == 0 || is_over(task) || waits_for_server(core, task))
        return;
    /* What another server has of an object is known when its inventory is here. */
    if (core->absent_count != 0 && core->now.now_ms - core->started_ms < INVENTORIES_MS)
        return;
    bool is_begun_early =
        task->state == MS_TASK_BLOCKED && task->members_seen != core->members_changed;
    if (core->now.now_ms < task->next_ms && !is_begun_early)
        return;
    if (task->state == MS_TASK_BLOCKED && task->next_ms != 0)
        pass_begin(core, task, MD_PASS_SOLE);
    task->next_ms = 0;
    if (task->kind == MS_TASK_DRAIN) {
        const md_server *server = &core->servers[task->source - 1];
        if (server->object_count == 0 && pages_writing(server) == 0 && task->running == 0) {
            task->objects_failed = task->objects_left = task->sole_left = 0;
            failures_forget(task);
            task_end(core, task, MS_TASK_DONE);
            return;
        }
    }
    if (walk_on(core, task, visits) && task->running == 0)
        pass_ended(core, task);
    if (task->state == MS_TASK_BLOCKED && task->objects_done != task->pass_begun_done)
        task->state = MS_TASK_RUNNING;
}

void md_tasks_go_on(md_core *core, uint32_t visits) {
    if (MD_COUNT(core, tasks_running) == 0)
        return;
    credit_refill(core);
    for (uint32_t i = 0; i < MD_TASKS_MAX; i++)
        task_step(core, &core->background[(core->task_turn + i) % MD_TASKS_MAX], &visits);
    core->task_turn++;
}

void md_tasks_step(md_core *core, md_now now) {
    md_set_now(core, now);
    md_tasks_go_on(core, 4096);
}

/* ---- repair ------------------------------------------------------------------------------------------------------ */
void md_repair_put_off(md_core *core) {
    int64_t now_ms = core->now.now_ms, delay_ms = core->config.repair_delay_ms;
    if (core->repair_at_ms <= now_ms) /* nothing was put off: this is the first loss */
        core->repair_by_ms = now_ms + delay_ms * REPAIR_PUT_OFF_MAX;
    core->repair_at_ms =
        now_ms + delay_ms < core->repair_by_ms ? now_ms + delay_ms : core->repair_by_ms;
}

static md_task *repair_running(md_core *core) {
    for (uint32_t i = 0; i < MD_TASKS_MAX; i++) {
        md_task *task = &core->background[i];
        if (task->id != 0 && task->kind == MS_TASK_REPAIR && !is_over(task))
            return task;
    }
    return NULL;
}

/* One that found nothing to do is not worth a line of history. */
static void forget_idle_repair(md_core *core) {
    for (uint32_t i = 0; i < MD_TASKS_MAX; i++) {
        md_task *task = &core->background[i];
        if (task->id != 0 && task->kind == MS_TASK_REPAIR && is_over(task) &&
            task->objects_done == 0 && task->running == 0)
            task_forget(task);
    }
}

static md_task *repair_begin(md_core *core) {
    forget_idle_repair(core);
    core->repair_members_seen = core->members_changed;
    return task_begin(core, MS_TASK_REPAIR, 0);
}

static uint32_t servers_taking_puts(const md_core *core) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < core->server_count; i++)
        count += md_server_takes_puts(&core->servers[i]);
    return count;
}

void md_repair_check(md_core *core) {
    if (MD_COUNT(core, objects_short) == 0 || core->config.repair_delay_ms == UINT32_MAX ||
        core->now.now_ms < core->repair_at_ms || servers_taking_puts(core) < 2)
        return;
    md_task *last = NULL;
    for (uint32_t i = 0; i < MD_TASKS_MAX; i++) {
        md_task *task = &core->background[i];
        if (task->id == 0 || task->kind != MS_TASK_REPAIR)
            continue;
        if (!is_over(task))
            return;
        last = last == NULL || task->ended_ms > last->ended_ms ? task : last;
    }
    /* What could not be repaired is looked at again when servers have come or gone, else seldom. */
    if (last != NULL && core->repair_members_seen == core->members_changed &&
        core->now.now_ms - last->ended_ms < core->repair_pause_ms)
        return;
    repair_begin(core);
}

/* ---- what is asked --------------------------------------------------------------------------------------------- */
ms_status md_server_drain(md_core *core, md_now now, uint32_t server, uint64_t *id) {
    md_set_now(core, now);
    if (server >= core->server_count)
        return MS_NOT_REGISTERED;
    md_server *at = &core->servers[server];
    md_task *task = drain_of(core, server);
    if (at->is_draining && task != NULL) {
        *id = task->id;
        if (task->state == MS_TASK_DONE) /* look again: something may have come since */
            task_resume(core, task);
        return MS_OK;
    }
    task = task_begin(core, MS_TASK_DRAIN, *id);
    if (task == NULL)
        return MS_LIMIT;
    task->source = server + 1;
    *id = task->id;
    at->is_draining = 1;
    if (at->state == MS_MEMBER_READY)
        at->state = MS_MEMBER_DRAINING;
    core->members_changed++;
    md_parked_serve(core); /* puts that waited for room there wait for that elsewhere */
    return MS_OK;
}

void md_drain_end(md_core *core, uint32_t server) {
    md_server *at = &core->servers[server];
    if (!at->is_draining)
        return;
    at->is_draining = 0;
    if (at->state == MS_MEMBER_DRAINING)
        at->state = MS_MEMBER_READY;
    core->members_changed++;
    md_task *task = drain_of(core, server);
    if (task != NULL && is_over(task))
        task->state = MS_TASK_CANCELLED;
    else if (task != NULL)
        task_end(core, task, MS_TASK_CANCELLED);
}

ms_status md_server_undrain(md_core *core, md_now now, uint32_t server) {
    md_set_now(core, now);
    if (server >= core->server_count)
        return MS_NOT_REGISTERED;
    md_drain_end(core, server);
    md_parked_serve(core);
    return MS_OK;
}

ms_status md_task_start(md_core *core, md_now now, uint32_t tenant, const ms_task_order *order,
                        const uint8_t *prefix, uint64_t *id) {
    md_set_now(core, now);
    bool is_replicate = order->kind == MS_TASK_REPLICATE, is_move = order->kind == MS_TASK_MOVE;
    if (order->kind == MS_TASK_REPAIR) {
        md_task *running = repair_running(core);
        if (running == NULL && (running = repair_begin(core)) == NULL)
            return MS_LIMIT;
        *id = running->id;
        return MS_OK;
    }
    if ((!is_replicate && !is_move) || order->prefix_length > MS_KEY_BYTES_MAX ||
        (is_replicate && (order->replica_count == 0 || order->replica_count > MS_REPLICAS_MAX)) ||
        (is_move && (order->source_server == 0 || order->source_server == order->target_server)))
        return MS_BAD_REQUEST;
    if (order->source_server > core->server_count || order->target_server > core->server_count)
        return MS_NOT_REGISTERED;
    uint8_t *copy = md_memory_small(NULL, order->prefix_length + 1);
    if (copy == NULL)
        return MS_NO_MEMORY;
    md_task *task = task_begin(core, order->kind, 0);
    if (task == NULL) {
        md_memory_small_free(copy);
        return MS_LIMIT;
    }
    if (order->prefix_length != 0)
        memcpy(copy, prefix, order->prefix_length);
    task->prefix = copy;
    task->prefix_length = order->prefix_length;
    task->tenant = tenant;
    task->replica_count = is_replicate ? order->replica_count : 0;
    task->source = is_move ? order->source_server : 0;
    task->target = is_move ? order->target_server : 0;
    *id = task->id;
    return MS_OK;
}

ms_status md_task_cancel(md_core *core, md_now now, uint64_t id) {
    md_set_now(core, now);
    md_task *task = task_find(core, id);
    if (task == NULL)
        return MS_NOT_FOUND;
    if (task->kind == MS_TASK_DRAIN)
        return MS_BAD_REQUEST;
    if (is_over(task))
        return MS_COMPLETE;
    core->repair_pause_ms =
        REPAIR_PAUSE_MS_MAX; /* a repair that was cancelled stays so for a while */
    task_end(core, task, MS_TASK_CANCELLED);
    return MS_OK;
}

/* ---- what is told ---------------------------------------------------------------------------------------------- */
static ms_task describe(const md_core *core, const md_task *task) {
    ms_task out = {.task = task->id,
                   .objects_done = task->objects_done,
                   .objects_total = task->objects_total,
                   .bytes_done = task->bytes_done,
                   .bytes_total = task->bytes_total,
                   .objects_failed = task->objects_failed,
                   .objects_left = task->objects_left,
                   .sole_left = task->sole_left,
                   .age_ms = (uint64_t)(core->now.now_ms - task->started_ms),
                   .kind = task->kind,
                   .state = task->state,
                   .source_server = task->source,
                   .target_server = task->target,
                   .replica_count = task->replica_count,
                   .prefix_length = task->prefix_length};
    if (is_over(task))
        out.ended_ms = (uint64_t)(core->now.now_ms - task->ended_ms) + 1;
    if (task->kind == MS_TASK_DRAIN) {
        const md_server *server = &core->servers[task->source - 1];
        out.objects_left = server->object_count;
        out.objects_total = task->objects_done + server->object_count;
        out.bytes_total = task->bytes_done;
        for (uint32_t i = 0; i < server->segment_count; i++)
            out.bytes_total += server->segments[i].pages_complete * MS_PAGE_SIZE;
    } else if (task->kind == MS_TASK_REPAIR && !is_over(task)) {
        out.objects_left = MD_COUNT(core, objects_short);
        out.objects_total = task->objects_done + out.objects_left;
    } else if (task->kind == MS_TASK_REPAIR) {
        out.objects_total = task->objects_done + task->objects_failed;
    }
    return out;
}

ms_status md_task_get(md_core *core, md_now now, uint64_t id, ms_task *out) {
    md_set_now(core, now);
    const md_task *task = task_find(core, id);
    if (task == NULL)
        return MS_NOT_FOUND;
    *out = describe(core, task);
    return MS_OK;
}

static void write_task(const md_core *core, const md_task *task, uint32_t failures_max,
                       ms_writer *out) {
    ms_task head = describe(core, task);
    head.failure_count = task->failure_count < failures_max ? task->failure_count : failures_max;
    MS_WRITER_STRUCT(out, &head);
    ms_writer_padded(out, task->prefix, task->prefix_length);
    for (uint32_t i = 0; i < head.failure_count; i++) {
        const md_task_failure *failure = &task->failures[i];
        ms_task_failure item = {.size = failure->size,
                                .status = (uint32_t)failure->status,
                                .key_length = failure->key_length};
        MS_WRITER_STRUCT(out, &item);
        ms_writer_padded(out, failure->key, failure->key_length);
    }
}

ms_status md_tasks_write(md_core *core, md_now now, const ms_tasks *asked, ms_writer *out) {
    md_set_now(core, now);
    size_t begin = out->length;
    uint32_t count = 0;
    uint64_t below = UINT64_MAX;
    ms_writer_u32(out, 0);
    ms_writer_u32(out, 0);
    for (;;) { /* the newest of those older than the last; there are few */
        const md_task *next = NULL;
        for (uint32_t i = 0; i < MD_TASKS_MAX; i++) {
            const md_task *task = &core->background[i];
            if (task->id != 0 && task->id < below && (next == NULL || task->id > next->id) &&
                (asked->task == 0 || asked->task == task->id))
                next = task;
        }
        if (next == NULL)
            break;
        write_task(core, next, asked->failures_max, out);
        below = next->id;
        count++;
    }
    if (asked->task != 0 && count == 0)
        return MS_NOT_FOUND;
    ms_writer_set_u32(out, begin, count);
    return out->status;
}
