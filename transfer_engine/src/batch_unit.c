/* Units of a batch: carried by whoever waits, or by workers; and how their requests end. */
#include "te_batch.h"

#include <stdlib.h>
#include <unistd.h>

#include "te_fault.h"

/* ---- ends ---------------------------------------------------------------------------------------------------------- */

static te_transfer_state state_of(ms_status status) {
    switch (status) {
    case MS_OK:
        return TE_COMPLETED;
    case MS_TIMEOUT:
        return TE_TIMED_OUT;
    case MS_CANCELLED:
        return TE_CANCELLED;
    default:
        return TE_FAILED;
    }
}

/* Under the batch's lock. */
void te_batch_end_entry(te_batch *batch, entry *ended, ms_status status, int64_t now_ns) {
    ended->status = status;
    ended->state = state_of(status);
    ended->ended_ns = now_ns;
    if (ended->region != NULL)
        te_region_release(ended->region);
    ended->region = NULL;
    batch->ended++;
}

void te_batch_tell(te_batch *batch) {
    pthread_cond_broadcast(&batch->ended_some);
    uint64_t one = 1;
    int event = batch->event;
    if (event >= 0 && write(event, &one, sizeof one) < 0) {
        /* Only when the counter is full: it is readable then. */
    }
}

/* Under the batch's lock: a unit that nobody has begun. */
void te_batch_end_unit(te_batch *batch, unit *work, ms_status status) {
    int64_t now_ns = te_now_ns();
    for (uint32_t i = work->first; i != NONE; i = batch->entries[i].next)
        te_batch_end_entry(batch, &batch->entries[i], status, now_ns);
}

void te_unit_free(te_batch *batch, unit *work) {
    te_remote_put(batch->engine->remotes, work->remote);
    if (work->carried != NULL)
        te_session_put(work->carried->session);
    free(work->carried);
    free(work);
}

/* ---- carrying ------------------------------------------------------------------------------------------------------ */

void te_batch_carry(te_batch *batch, unit *work) {
    te_piece *pieces = calloc(work->count, sizeof *pieces);
    uint32_t at = 0;
    for (uint32_t i = work->first; i != NONE && pieces != NULL; i = batch->entries[i].next) {
        const te_transfer_request *request = &batch->entries[i].request;
        pieces[at++] = (te_piece){.local = (void *)(uintptr_t)request->local_address,
                                  .region = batch->entries[i].region,
                                  .remote_address = request->remote_offset,
                                  .length = request->length,
                                  .status = MS_PENDING};
        if (batch->entries[i].status != MS_PENDING) /* over rails, before */
            pieces[at - 1].status = batch->entries[i].status;
    }
    if (pieces != NULL) {
        te_scope *outer = te_scope_enter(&batch->scope);
        te_remote_move(work->remote, work->opcode, pieces, work->count, &work->options,
                       &batch->scope, work->deadline_ns);
        te_scope_enter(outer);
    }
    int64_t now_ns = te_now_ns();
    pthread_mutex_lock(&batch->lock);
    at = 0;
    for (uint32_t i = work->first; i != NONE; i = batch->entries[i].next) {
        te_batch_end_entry(batch, &batch->entries[i],
                           pieces == NULL ? MS_NO_MEMORY : pieces[at].status, now_ns);
        at++;
    }
    batch->running--;
    pthread_mutex_unlock(&batch->lock);
    te_batch_tell(batch);
    free(pieces);
    te_unit_free(batch, work);
}

/* Takes the first unit; NULL: none is left, or its deadline is after `deadline_ns`. */
static unit *take_unit(te_batch *batch, int64_t deadline_ns) {
    pthread_mutex_lock(&batch->lock);
    unit *work = batch->first;
    if (work != NULL && work->deadline_ns > deadline_ns)
        work = NULL;
    if (work != NULL) {
        batch->first = work->next;
        if (batch->first == NULL)
            batch->last = NULL;
        batch->running++;
        int64_t now_ns = te_now_ns();
        for (uint32_t i = work->first; i != NONE; i = batch->entries[i].next) {
            batch->entries[i].state = TE_PENDING;
            if (batch->entries[i].begun_ns == 0)
                batch->entries[i].begun_ns = now_ns;
        }
    }
    pthread_mutex_unlock(&batch->lock);
    return work;
}

void te_batch_carry_here(te_batch *batch, int64_t deadline_ns) {
    unit *work;
    while ((work = take_unit(batch, deadline_ns)) != NULL)
        te_batch_carry(batch, work);
}

void te_batch_carry_all(void *argument) {
    te_batch *batch = argument;
    te_batch_carry_here(batch, INT64_MAX);
    te_batch_put(batch->engine->batches, batch);
}
