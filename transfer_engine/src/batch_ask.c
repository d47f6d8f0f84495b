/* What has become of requests: status, explanation, waiting, cancelling; and the end of batches. */
#include "te_batch.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "te_fault.h"

/* A submitted request, its batch held and locked until let_go; or why there is none. */
static ms_status find_entry(te_engine *engine, uint64_t id, size_t index, te_batch **batch,
                            const entry **found) {
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    *batch = te_batch_get(engine->batches, id);
    if (*batch == NULL)
        return MS_NOT_REGISTERED;
    pthread_mutex_lock(&(*batch)->lock);
    if (index < (*batch)->submitted) {
        *found = &(*batch)->entries[index];
        return MS_OK;
    }
    pthread_mutex_unlock(&(*batch)->lock);
    te_batch_put(engine->batches, *batch);
    return MS_OUT_OF_RANGE;
}

static void let_go(te_engine *engine, te_batch *batch) {
    pthread_mutex_unlock(&batch->lock);
    te_batch_put(engine->batches, batch);
}

ms_status te_get_transfer_status(te_engine *engine, uint64_t id, size_t index,
                                 te_transfer_status *result) {
    te_batch *batch;
    const entry *asked;
    ms_status status = find_entry(engine, id, index, &batch, &asked);
    if (status != MS_OK)
        return status;
    *result = te_batch_status_of(asked);
    let_go(engine, batch);
    return MS_OK;
}

ms_status te_explain_transfer(te_engine *engine, uint64_t id, size_t index,
                              te_transfer_explanation *told) {
    te_batch *batch;
    const entry *asked;
    ms_status status = find_entry(engine, id, index, &batch, &asked);
    if (status != MS_OK)
        return status;
    te_transfer_status now = te_batch_status_of(asked);
    int64_t begun_ns = asked->begun_ns, ended_ns = asked->ended_ns;
    *told = (te_transfer_explanation){.state = now.state, .status = now.status, .bytes = now.bytes};
    if (asked->carried != NULL) {
        te_carried_view view = te_carry_look(&asked->carried->carry, asked->index);
        begun_ns = view.first_ns;
        told->retries = view.attempts;
        told->rails = view.rails;
        told->bytes = told->bytes == 0 && now.state != TE_COMPLETED ? view.done : told->bytes;
    }
    ended_ns = ended_ns == 0 ? te_now_ns() : ended_ns;
    told->waiting_ns = begun_ns == 0 ? -1 : begun_ns - asked->submitted_ns;
    told->moving_ns = begun_ns == 0 ? -1 : ended_ns - begun_ns;
    let_go(engine, batch);
    return MS_OK;
}

ms_status te_explain_rail(te_engine *engine, uint64_t id, size_t index, uint32_t rail,
                          te_rail_view *view, uint64_t *bytes) {
    te_batch *batch;
    const entry *asked;
    ms_status status = find_entry(engine, id, index, &batch, &asked);
    if (status == MS_OUT_OF_RANGE)
        return MS_NOT_FOUND;
    if (status != MS_OK)
        return status;
    carried_unit *carried = asked->carried;
    te_rail_status found;
    status = MS_NOT_FOUND;
    if (carried != NULL && te_path_lane(carried->carry.path, carried->carry.opcode, rail, &found)) {
        te_rail_view_of(&found, view);
        *bytes = te_carry_rail_bytes(&carried->carry, rail);
        status = MS_OK;
    }
    let_go(engine, batch);
    return status;
}

ms_status te_wait_batch(te_engine *engine, uint64_t id, int64_t deadline_ns) {
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    te_batch *batch = te_batch_get(engine->batches, id);
    if (batch == NULL)
        return MS_NOT_REGISTERED;
    te_batch_carry_here(batch, deadline_ns); /* only what must end before we may have to return */
    te_batch_wait_for_end(batch, deadline_ns);
    pthread_mutex_lock(&batch->lock);
    status = batch->ended < batch->submitted ? MS_TIMEOUT : MS_OK;
    pthread_mutex_unlock(&batch->lock);
    te_batch_put(engine->batches, batch);
    return status;
}

static void cancel(te_batch *batch) {
    pthread_mutex_lock(&batch->lock);
    batch->is_cancelled = true;
    unit *waiting = batch->first;
    batch->first = batch->last = NULL;
    for (unit *work = waiting; work != NULL; work = work->next)
        te_batch_end_unit(batch, work, MS_CANCELLED);
    for (carried_unit *each = batch->carrying; each != NULL; each = each->running_next)
        te_carry_cancel(&each->carry, MS_CANCELLED);
    pthread_mutex_unlock(&batch->lock);
    if (waiting != NULL)
        te_batch_tell(batch);
    te_scope_cancel(&batch->scope);
    while (waiting != NULL) {
        unit *next = waiting->next;
        te_unit_free(batch, waiting);
        waiting = next;
    }
}

ms_status te_cancel_batch(te_engine *engine, uint64_t id) {
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    te_batch *batch = te_batch_get(engine->batches, id);
    if (batch == NULL)
        return MS_NOT_REGISTERED;
    cancel(batch);
    te_batch_put(engine->batches, batch);
    return MS_OK;
}

ms_status te_free_batch_id(te_engine *engine, uint64_t id) {
    te_batches *batches = engine->batches;
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    te_batch *batch = te_batch_get(batches, id);
    if (batch == NULL)
        return MS_NOT_REGISTERED;
    bool taken = false;
    pthread_mutex_lock(&batches->lock);
    pthread_mutex_lock(&batch->lock);
    if (batch->ended < batch->submitted) {
        status = MS_BUSY;
    } else if (batches->slots[id & (BATCHES_MAX - 1)] == batch) {
        batches->slots[id & (BATCHES_MAX - 1)] = NULL;
        batch->holders--; /* the table's; ours is still there */
        taken = true;
        batch->is_cancelled = true; /* a submission that is on its way comes too late */
    }
    pthread_mutex_unlock(&batch->lock);
    pthread_mutex_unlock(&batches->lock);
    te_batch_put(batches, batch);
    return status == MS_OK && !taken ? MS_NOT_REGISTERED : status;
}

int te_batch_eventfd(te_engine *engine, uint64_t id) {
    if (te_engine_check(engine) != MS_OK)
        return -1;
    te_batch *batch = te_batch_get(engine->batches, id);
    if (batch == NULL)
        return -1;
    pthread_mutex_lock(&batch->lock);
    bool is_new = batch->event < 0;
    if (is_new)
        batch->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int descriptor = batch->event;
    bool has_ended = batch->ended > 0;
    pthread_mutex_unlock(&batch->lock);
    if (is_new && has_ended)
        te_batch_tell(batch);
    te_batch_put(engine->batches, batch);
    return descriptor;
}

void te_batches_stop(te_batches *batches) {
    if (batches == NULL)
        return;
    pthread_mutex_lock(&batches->lock);
    batches->is_stopping = true;
    pthread_mutex_unlock(&batches->lock);
    for (uint32_t slot = 0; slot < BATCHES_MAX; slot++) {
        pthread_mutex_lock(&batches->lock);
        te_batch *batch = batches->slots[slot];
        batches->slots[slot] = NULL; /* its reference is ours now */
        pthread_mutex_unlock(&batches->lock);
        if (batch == NULL)
            continue;
        cancel(batch);
        te_batch_put(batches, batch);
    }
    pthread_mutex_lock(&batches->lock);
    while (batches->count > 0)
        pthread_cond_wait(&batches->changed, &batches->lock);
    pthread_mutex_unlock(&batches->lock);
}

void te_batches_close(te_batches *batches) {
    if (batches == NULL)
        return;
    pthread_cond_destroy(&batches->changed);
    pthread_mutex_destroy(&batches->lock);
    free(batches);
}
