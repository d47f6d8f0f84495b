/* The paper's batch interface: requests, their states, and who carries them.
 *
 * te_submit_transfer groups requests of one segment and one direction into units; a unit is one call of
 * te_remote_move, which puts small requests into common frames and spreads large ones over connections.  Workers
 * take units from the batch's queue, and so does whoever waits for the batch, so that submitting and waiting at once
 * costs no change of threads.
 *
 * Units of a peer with several rails, or with shares, are not carried by a thread at all: their requests are jobs of the
 * schedule (te_carry_begin) from the submission on.  What then needs more than that (the peer has restarted, its list of
 * regions is old) is carried by a worker like any other.
 *
 * A request holds its local region from submission to its end, and ends only when te_remote_move has returned.
 *
 * Lock order: batches->lock, batch->lock.  Neither is held while bytes move.
 */
#include "te_batch.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "te_fault.h"

ms_status te_batches_open(te_engine *engine, te_batches **result) {
    te_batches *batches = calloc(1, sizeof *batches);
    if (batches == NULL)
        return MS_NO_MEMORY;
    batches->engine = engine;
    pthread_mutex_init(&batches->lock, NULL);
    pthread_cond_init(&batches->changed, NULL);
    *result = batches;
    return MS_OK;
}

void te_batch_free(te_batch *batch) {
    for (carried_unit *each = batch->carried, *next; each != NULL; each = next) {
        next = each->next;
        te_session_put(each->session);
        free(each);
    }
    if (batch->event >= 0)
        close(batch->event);
    te_scope_close(&batch->scope);
    pthread_cond_destroy(&batch->ended_some);
    pthread_mutex_destroy(&batch->lock);
    free(batch);
}

te_batch *te_batch_get(te_batches *batches, uint64_t id) {
    pthread_mutex_lock(&batches->lock);
    te_batch *batch = batches->slots[id & (BATCHES_MAX - 1)];
    if (batch != NULL && batch->id != id)
        batch = NULL;
    if (batch != NULL)
        batch->holders++;
    pthread_mutex_unlock(&batches->lock);
    return batch;
}

void te_batch_put(te_batches *batches, te_batch *batch) {
    pthread_mutex_lock(&batches->lock);
    bool gone = --batch->holders == 0;
    if (gone) {
        batches->count--;
        pthread_cond_broadcast(&batches->changed);
    }
    pthread_mutex_unlock(&batches->lock);
    if (gone)
        te_batch_free(batch);
}

ms_status te_batch_make(te_engine *engine, size_t size, te_batch **made) {
    if (size == 0 || size > BATCH_REQUESTS_MAX)
        return MS_BAD_REQUEST;
    te_batch *batch = calloc(1, sizeof *batch + size * sizeof batch->entries[0]);
    if (batch == NULL)
        return MS_NO_MEMORY;
    ms_status status = te_cond_init(&batch->ended_some);
    if (status != MS_OK) {
        free(batch);
        return status;
    }
    batch->engine = engine;
    batch->size = size;
    batch->holders = 1;
    batch->event = -1;
    pthread_mutex_init(&batch->lock, NULL);
    te_scope_open(&batch->scope);
    *made = batch;
    return MS_OK;
}

/* Into the table, so that it has an id and te_batches_stop finds it. */
ms_status te_batch_add(te_batches *batches, te_batch *batch) {
    ms_status status = MS_LIMIT;
    pthread_mutex_lock(&batches->lock);
    if (batches->is_stopping)
        status = MS_CLOSED;
    for (uint32_t slot = 0; slot < BATCHES_MAX && status == MS_LIMIT; slot++) {
        if (batches->slots[slot] != NULL)
            continue;
        batch->id = ++batches->generations[slot] << SLOT_BITS | slot;
        batches->slots[slot] = batch;
        batches->count++;
        status = MS_OK;
    }
    pthread_mutex_unlock(&batches->lock);
    return status;
}

ms_status te_allocate_batch_id(te_engine *engine, size_t size, uint64_t *id) {
    te_batch *batch = NULL;
    ms_status status = te_engine_check(engine);
    if (status == MS_OK)
        status = te_batch_make(engine, size, &batch);
    if (status != MS_OK)
        return status;
    status = te_batch_add(engine->batches, batch);
    if (status == MS_OK)
        *id = batch->id;
    else
        te_batch_free(batch);
    return status;
}
