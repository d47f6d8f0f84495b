/* Tasks: begun, listed, cancelled.
 *
 * A drain outlives this master, so it is answered when the coordinator keeps it: Python asks, as for tombstones.  It
 * begins at once, and is undone if the coordinator cannot keep it; its end counts only when the coordinator has
 * forgotten it.
 */
#include "service.h"

#include <string.h>

#define SHARED_HOSTS_PAUSE_MS 600000

/* The drain is on its way to the coordinator; the batch is answered when it is there. */
static ms_status ask_coordinator(ma_master *master, uint32_t server, uint64_t task,
                                 uint64_t waiter) {
    md_server_view view;
    ms_status status = md_server_get(master->core, server, &view);
    if (status != MS_OK)
        return status;
    ma_draining drain = {.task = task};
    memcpy(drain.node_id, view.node_id, sizeof drain.node_id);
    return ma_drain_queue(master, &drain, waiter) ? MS_PENDING : MS_LIMIT;
}

static ms_status drain(ma_master *master, uint32_t server_plus_1, uint64_t *task, uint64_t waiter) {
    md_server_view view;
    if (server_plus_1 == 0)
        return MS_BAD_REQUEST;
    if (md_server_get(master->core, server_plus_1 - 1, &view) != MS_OK)
        return MS_NOT_REGISTERED;
    ms_status status = md_server_drain(master->core, master->now, server_plus_1 - 1, task);
    if (status != MS_OK || view.is_draining)
        return status;
    status = ask_coordinator(master, server_plus_1 - 1, *task, waiter);
    if (status != MS_PENDING)
        md_server_undrain(master->core, master->now, server_plus_1 - 1);
    return status;
}

void ma_call_start_task(ma_call *call) {
    ma_master *master = call->master;
    ms_task_order_view order;
    if (!ms_read_task_order(call->request->body, call->request->header->body_length, &order)) {
        ma_fail_bad_frame(call);
        return;
    }
    ma_batch *batch = ma_batch_begin(master, MA_FORM_TASK, MS_START_TASK, 1);
    if (batch == NULL) {
        ma_fail(call, MS_LIMIT, "the master has no room for another batch");
        return;
    }
    uint64_t task = 0;
    ms_status status =
        order.head.kind == MS_TASK_DRAIN
            ? drain(master, order.head.source_server, &task, ma_batch_waiter(batch, 0))
            : md_task_start(master->core, master->now, call->session->tenant, &order.head,
                            order.prefix, &task);
    batch->items[0] = (ma_item){.version = task};
    ma_batch_set(batch, 0, status);
    ma_batch_settle(call, batch);
}

static bool read_tasks(ma_call *call, ms_tasks *asked) {
    if (call->request->header->body_length != sizeof *asked) {
        ma_fail_bad_frame(call);
        return false;
    }
    memcpy(asked, call->request->body, sizeof *asked);
    return true;
}

void ma_call_tasks(ma_call *call) {
    ms_tasks asked;
    if (!read_tasks(call, &asked))
        return;
    ms_status status =
        md_tasks_write(call->master->core, call->master->now, &asked, &call->master->answer);
    if (status == MS_NOT_FOUND)
        ma_fail(call, status, "there is no such task, or it ended long ago");
    else
        ma_done(call);
}

void ma_call_cancel_task(ma_call *call) {
    ma_master *master = call->master;
    ms_tasks asked;
    ms_task task;
    if (!read_tasks(call, &asked))
        return;
    ms_status status = md_task_get(master->core, master->now, asked.task, &task);
    if (status != MS_OK) {
        ma_fail(call, status, "there is no such task, or it ended long ago");
        return;
    }
    if (task.kind != MS_TASK_DRAIN || task.state == MS_TASK_CANCELLED) {
        status = task.state == MS_TASK_CANCELLED
                     ? MS_COMPLETE
                     : md_task_cancel(master->core, master->now, asked.task);
        if (status == MS_COMPLETE)
            ma_fail(call, status, "that task has ended");
        return;
    }
    ma_batch *batch = ma_batch_begin(master, MA_FORM_STATUS, MS_CANCEL_TASK, 1);
    if (batch == NULL) {
        ma_fail(call, MS_LIMIT, "the master has no room for another batch");
        return;
    }
    batch->items[0] = (ma_item){.version = asked.task};
    ma_batch_set(batch, 0,
                 ask_coordinator(master, task.source_server - 1, 0, ma_batch_waiter(batch, 0)));
    ma_batch_settle(call, batch);
}

void ma_tell_shared_hosts(ma_master *master) {
    uint64_t count = md_replicas_sharing_hosts(master->core);
    int64_t now_ms = master->now.now_ms;
    if (count <= master->hosts_shared ||
        (master->hosts_told_ms != 0 && now_ms - master->hosts_told_ms < SHARED_HOSTS_PAUSE_MS))
        return;
    ma_log(master, MA_LOG_TASK, MA_INFO,
           "replicas_share_host count=%llu reason=\"fewer hosts with room than replicas\"",
           (unsigned long long)(count - master->hosts_shared));
    master->hosts_shared = count;
    master->hosts_told_ms = now_ms;
}

/* ---- what the coordinator says ----------------------------------------------------------------------- */

ms_status ma_drain_add(ma_master *master, const ma_draining *drain) {
    uint64_t task = drain->task;
    pthread_mutex_lock(&master->lock);
    uint32_t server = md_server_find(master->core, drain->node_id);
    ms_status status = server == MD_NO_SERVER
                           ? MS_NOT_FOUND
                           : md_server_drain(master->core, master->now, server, &task);
    ma_drain(master);
    pthread_mutex_unlock(&master->lock);
    return status;
}

void ma_drains_take(ma_master *master) {
    ma_draining drain;
    uint64_t waiter;
    ms_status status;
    while (ma_drain_result(master, &drain, &waiter, &status)) {
        uint32_t server = md_server_find(master->core, drain.node_id);
        bool is_begun = drain.task != 0;
        /* Kept, or not: it drains as the coordinator says. */
        if (server != MD_NO_SERVER && is_begun == (status != MS_OK))
            md_server_undrain(master->core, master->now, server);
        if (status != MS_OK)
            ma_log(master, MA_LOG_TASK, MA_ERROR, "drain_not_kept server=%u begun=%d status=%s",
                   (unsigned)server, (int)is_begun, ms_status_name(status));
        ma_batch_item_done(master, waiter, status, drain.task);
    }
}
