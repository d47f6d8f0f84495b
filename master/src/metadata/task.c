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
#include <string.h>

#include "md_task.h"

bool md_task_is_over(const md_task *task) {
    return task->state == MS_TASK_DONE || task->state == MS_TASK_CANCELLED;
}

md_task *md_task_find(md_core *core, uint64_t id) {
    for (uint32_t i = 0; id != 0 && i < MD_TASKS_MAX; i++)
        if (core->background[i].id == id)
            return &core->background[i];
    return NULL;
}

md_task *md_task_drain_of(md_core *core, uint32_t server) {
    for (uint32_t i = 0; i < MD_TASKS_MAX; i++) {
        md_task *task = &core->background[i];
        if (task->id != 0 && task->kind == MS_TASK_DRAIN && task->source == server + 1 &&
            task->state != MS_TASK_CANCELLED)
            return task;
    }
    return NULL;
}

/* ---- their beginning and end --------------------------------------------------------------------------------- */
void md_task_tell(md_core *core, const md_task *task) {
    md_effect *effect = md_effect_push(core, MD_EFFECT_TASK);
    if (effect != NULL)
        effect->task = task->id;
}

void md_task_failures_forget(md_task *task) {
    for (uint32_t i = 0; i < task->failure_count; i++)
        md_memory_small_free(task->failures[i].key);
    task->failure_count = 0;
}

void md_task_forget(md_task *task) {
    md_task_failures_forget(task);
    md_memory_small_free(task->failures);
    md_memory_small_free(task->prefix);
    *task = (md_task){0};
}

void md_tasks_close(md_core *core) {
    for (uint32_t i = 0; i < MD_TASKS_MAX; i++)
        md_task_forget(&core->background[i]);
}

/* An unused place, or that of the task that ended first; NULL: all are at work. */
static md_task *task_place(md_core *core) {
    md_task *oldest = NULL;
    for (uint32_t i = 0; i < MD_TASKS_MAX; i++) {
        md_task *task = &core->background[i];
        if (task->id == 0)
            return task;
        bool is_needed = task->running != 0 || !md_task_is_over(task) ||
                         (task->kind == MS_TASK_DRAIN && task->state == MS_TASK_DONE &&
                          core->servers[task->source - 1].is_draining);
        if (!is_needed && (oldest == NULL || task->ended_ms < oldest->ended_ms))
            oldest = task;
    }
    if (oldest != NULL)
        md_task_forget(oldest);
    return oldest;
}

void md_task_pass_begin(md_core *core, md_task *task, md_task_pass pass) {
    md_task_failures_forget(task);
    task->pass = pass;
    task->walk = (md_walk){.generation = core->shards[0].generation};
    task->pass_begun_done = task->objects_done;
    task->pass_failed = task->pass_left = task->pass_sole = 0;
    task->members_seen = core->members_changed;
}

md_task *md_task_begin(md_core *core, uint32_t kind, uint64_t id) {
    md_task *task = task_place(core);
    if (task == NULL)
        return NULL;
    *task = (md_task){.id = id != 0 ? id : ms_task_id(core->config.epoch, ++core->task_numbers),
                      .kind = kind,
                      .state = MS_TASK_RUNNING,
                      .started_ms = core->now.now_ms};
    MD_COUNT(core, tasks_running)++;
    md_task_pass_begin(core, task,
                       kind == MS_TASK_DRAIN    ? MD_PASS_SOLE
                       : kind == MS_TASK_REPAIR ? MD_PASS_ALL
                                                : MD_PASS_COUNT);
    md_task_tell(core, task);
    return task;
}

void md_task_end(md_core *core, md_task *task, uint32_t state) {
    task->state = state;
    task->ended_ms = core->now.now_ms;
    MD_COUNT(core, tasks_running)--;
    md_task_tell(core, task);
}

/* What happened after its end is not told: it goes on. */
void md_task_resume(md_core *core, md_task *task) {
    task->ended_ms = task->next_ms = 0;
    task->state = MS_TASK_RUNNING;
    MD_COUNT(core, tasks_running)++;
    md_task_pass_begin(core, task, MD_PASS_SOLE);
    md_task_tell(core, task);
}

void md_task_failure_add(md_task *task, const md_shard *shard, const md_record *record,
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

void md_task_pass_again(md_core *core, md_task *task, md_task_pass pass, int64_t pause_ms) {
    md_task_pass_begin(core, task, pass);
    task->next_ms = core->now.now_ms + pause_ms;
}
