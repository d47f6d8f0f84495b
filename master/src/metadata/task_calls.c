/* What is asked of tasks, and told about them (task.c). */
#include <string.h>

#include "md_task.h"

/* ---- what is asked --------------------------------------------------------------------------------------------- */
ms_status md_server_drain(md_core *core, md_now now, uint32_t server, uint64_t *id) {
    md_set_now(core, now);
    if (server >= core->server_count)
        return MS_NOT_REGISTERED;
    md_server *at = &core->servers[server];
    md_task *task = md_task_drain_of(core, server);
    if (at->is_draining && task != NULL) {
        *id = task->id;
        if (task->state == MS_TASK_DONE) /* look again: something may have come since */
            md_task_resume(core, task);
        return MS_OK;
    }
    task = md_task_begin(core, MS_TASK_DRAIN, *id);
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
    md_task *task = md_task_drain_of(core, server);
    if (task != NULL && md_task_is_over(task))
        task->state = MS_TASK_CANCELLED;
    else if (task != NULL)
        md_task_end(core, task, MS_TASK_CANCELLED);
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
        md_task *running = md_repair_running(core);
        if (running == NULL && (running = md_repair_begin(core)) == NULL)
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
    md_task *task = md_task_begin(core, order->kind, 0);
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
    md_task *task = md_task_find(core, id);
    if (task == NULL)
        return MS_NOT_FOUND;
    if (task->kind == MS_TASK_DRAIN)
        return MS_BAD_REQUEST;
    if (md_task_is_over(task))
        return MS_COMPLETE;
    core->repair_pause_ms =
        MD_REPAIR_PAUSE_MS_MAX; /* a repair that was cancelled stays so for a while */
    md_task_end(core, task, MS_TASK_CANCELLED);
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
    if (md_task_is_over(task))
        out.ended_ms = (uint64_t)(core->now.now_ms - task->ended_ms) + 1;
    if (task->kind == MS_TASK_DRAIN) {
        const md_server *server = &core->servers[task->source - 1];
        out.objects_left = server->object_count;
        out.objects_total = task->objects_done + server->object_count;
        out.bytes_total = task->bytes_done;
        for (uint32_t i = 0; i < server->segment_count; i++)
            out.bytes_total += server->segments[i].pages_complete * MS_PAGE_SIZE;
    } else if (task->kind == MS_TASK_REPAIR && !md_task_is_over(task)) {
        out.objects_left = MD_COUNT(core, objects_short);
        out.objects_total = task->objects_done + out.objects_left;
    } else if (task->kind == MS_TASK_REPAIR) {
        out.objects_total = task->objects_done + task->objects_failed;
    }
    return out;
}

ms_status md_task_get(md_core *core, md_now now, uint64_t id, ms_task *out) {
    md_set_now(core, now);
    const md_task *task = md_task_find(core, id);
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
