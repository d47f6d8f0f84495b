/* The walks of tasks over all records (task.c): a bounded number of records a step, and what follows a walk. */
#include "md_task.h"

#define BLOCKED_RETRY_MS 10000
#define INVENTORIES_MS 10000 /* a new master waits so long for servers that it expects */

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
        if (*visits == 0 || (task->pass != MD_PASS_COUNT && !md_task_may_begin(core)))
            return false;
        (*visits)--;
        uint32_t number = ++walk->record;
        md_record *record = md_record_at(shard, number);
        if (record->state == MD_RECORD_COMPLETE && md_object_is_current(core, shard, record) &&
            md_task_in_scope(task, shard, record))
            md_task_treat(core, task, walk->shard, number);
    }
    return true;
}

static uint64_t pages_writing(const md_server *server) {
    uint64_t pages = 0;
    for (uint32_t i = 0; i < server->segment_count; i++)
        pages += server->segments[i].pages_writing;
    return pages;
}

static void drain_pass_ended(md_core *core, md_task *task) {
    const md_server *server = &core->servers[task->source - 1];
    bool has_moved = task->objects_done != task->pass_begun_done;
    if (task->pass_sole == 0) {
        if (task->pass == MD_PASS_SOLE)
            md_task_pass_begin(core, task, MD_PASS_ALL);
        else if (task->pass_failed != 0 && has_moved) /* what failed now may succeed */
            md_task_pass_again(core, task, MD_PASS_ALL, MD_TASK_AGAIN_MS);
        else if (pages_writing(server) != 0) /* a put there that is not over yet */
            md_task_pass_again(core, task, MD_PASS_SOLE, MD_TASK_AGAIN_MS);
        else
            md_task_end(core, task, MS_TASK_DONE);
        return;
    }
    if (has_moved || task->pass == MD_PASS_ALL) {
        md_task_pass_again(core, task, MD_PASS_SOLE, MD_TASK_AGAIN_MS);
        return;
    }
    /* The failures stay until the next walk begins: whoever asks sees them. */
    task->next_ms = core->now.now_ms + BLOCKED_RETRY_MS;
    if (task->state != MS_TASK_BLOCKED) {
        task->state = MS_TASK_BLOCKED;
        md_task_tell(core, task);
    }
}

static void pass_ended(md_core *core, md_task *task) {
    task->objects_failed = task->pass_failed;
    task->objects_left = task->pass_left;
    task->sole_left = task->pass_sole;
    if (task->kind == MS_TASK_DRAIN)
        drain_pass_ended(core, task);
    else if (task->kind == MS_TASK_REPAIR)
        md_repair_pass_ended(core, task);
    else if (task->pass == MD_PASS_COUNT)
        md_task_pass_begin(core, task, MD_PASS_ALL);
    else
        md_task_end(core, task, MS_TASK_DONE);
}

/* Its server is away: nothing can be done, and what it held is repair's. */
static bool waits_for_server(md_core *core, md_task *task) {
    if (task->kind != MS_TASK_DRAIN)
        return false;
    bool is_away = !md_server_is_in_touch(&core->servers[task->source - 1]);
    if (is_away && task->state != MS_TASK_WAITING) {
        task->state = MS_TASK_WAITING;
    } else if (!is_away && task->state == MS_TASK_WAITING) {
        task->state = MS_TASK_RUNNING;
        md_task_pass_begin(core, task, MD_PASS_SOLE);
    }
    return is_away;
}

static void task_step(md_core *core, md_task *task, uint32_t *visits) {
    if (task->id == 0 || md_task_is_over(task) || waits_for_server(core, task))
        return;
    /* What another server has of an object is known when its inventory is here. */
    if (core->absent_count != 0 && core->now.now_ms - core->started_ms < INVENTORIES_MS)
        return;
    bool is_begun_early =
        task->state == MS_TASK_BLOCKED && task->members_seen != core->members_changed;
    if (core->now.now_ms < task->next_ms && !is_begun_early)
        return;
    if (task->state == MS_TASK_BLOCKED && task->next_ms != 0)
        md_task_pass_begin(core, task, MD_PASS_SOLE);
    task->next_ms = 0;
    if (task->kind == MS_TASK_DRAIN) {
        const md_server *server = &core->servers[task->source - 1];
        if (server->object_count == 0 && pages_writing(server) == 0 && task->running == 0) {
            task->objects_failed = task->objects_left = task->sole_left = 0;
            md_task_failures_forget(task);
            md_task_end(core, task, MS_TASK_DONE);
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
    md_task_credit_refill(core);
    for (uint32_t i = 0; i < MD_TASKS_MAX; i++)
        task_step(core, &core->background[(core->task_turn + i) % MD_TASKS_MAX], &visits);
    core->task_turn++;
}

void md_tasks_step(md_core *core, md_now now) {
    md_set_now(core, now);
    md_tasks_go_on(core, 4096);
}
