/* When repair begins by itself, and when again (task.c).  It is what the index is short of, and what shares a host
 * (task_spread.c). */
#include "md_task.h"

#define PUT_OFF_MAX 4 /* delays: a server that comes and goes must not stop all repair */
#define PAUSE_MS 10000

void md_repair_put_off(md_core *core) {
    int64_t now_ms = core->now.now_ms, delay_ms = core->config.repair_delay_ms;
    if (core->repair_at_ms <= now_ms) /* nothing was put off: this is the first loss */
        core->repair_by_ms = now_ms + delay_ms * PUT_OFF_MAX;
    core->repair_at_ms =
        now_ms + delay_ms < core->repair_by_ms ? now_ms + delay_ms : core->repair_by_ms;
}

md_task *md_repair_running(md_core *core) {
    for (uint32_t i = 0; i < MD_TASKS_MAX; i++) {
        md_task *task = &core->background[i];
        if (task->id != 0 && task->kind == MS_TASK_REPAIR && !md_task_is_over(task))
            return task;
    }
    return NULL;
}

/* One that found nothing to do is not worth a line of history. */
static void forget_idle_repair(md_core *core) {
    for (uint32_t i = 0; i < MD_TASKS_MAX; i++) {
        md_task *task = &core->background[i];
        if (task->id != 0 && task->kind == MS_TASK_REPAIR && md_task_is_over(task) &&
            task->objects_done == 0 && task->running == 0)
            md_task_forget(task);
    }
}

md_task *md_repair_begin(md_core *core) {
    forget_idle_repair(core);
    core->repair_members_seen = core->members_changed;
    core->sharing_seen = core->sharing_placed;
    return md_task_begin(core, MS_TASK_REPAIR, 0);
}

static uint32_t servers_taking_puts(const md_core *core) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < core->server_count; i++)
        count += md_server_takes_puts(&core->servers[i]);
    return count;
}

void md_repair_check(md_core *core) {
    if (core->config.repair_delay_ms == UINT32_MAX || core->now.now_ms < core->repair_at_ms ||
        (MD_COUNT(core, objects_short) == 0 && !md_spread_is_due(core)) ||
        servers_taking_puts(core) < 2)
        return;
    md_task *last = NULL;
    for (uint32_t i = 0; i < MD_TASKS_MAX; i++) {
        md_task *task = &core->background[i];
        if (task->id == 0 || task->kind != MS_TASK_REPAIR)
            continue;
        if (!md_task_is_over(task))
            return;
        last = last == NULL || task->ended_ms > last->ended_ms ? task : last;
    }
    /* What could not be repaired is looked at again when servers have come or gone, else seldom. */
    if (last != NULL && core->repair_members_seen == core->members_changed &&
        core->now.now_ms - last->ended_ms < core->repair_pause_ms)
        return;
    md_repair_begin(core);
}

void md_repair_pass_ended(md_core *core, md_task *task) {
    bool has_moved = task->objects_done != task->pass_begun_done;
    core->repair_left = task->pass_failed != 0;
    if ((MD_COUNT(core, objects_short) != 0 || core->repair_left) && has_moved) {
        md_task_pass_again(core, task, MD_PASS_ALL, MD_TASK_AGAIN_MS);
        return;
    }
    core->repair_pause_ms = task->objects_done != 0 ? PAUSE_MS : core->repair_pause_ms * 2;
    if (core->repair_pause_ms < PAUSE_MS)
        core->repair_pause_ms = PAUSE_MS;
    if (core->repair_pause_ms > MD_REPAIR_PAUSE_MS_MAX)
        core->repair_pause_ms = MD_REPAIR_PAUSE_MS_MAX;
    md_task_end(core, task, MS_TASK_DONE);
}
