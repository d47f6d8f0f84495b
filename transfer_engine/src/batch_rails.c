/* Units of a batch over rails: jobs of the schedule, and a worker for what then needs more. */
#include "te_batch.h"

#include <stdlib.h>
#include <string.h>

#include "te_fault.h"

typedef struct rest {
    te_batch *batch;
    unit *work;
} rest;

static void carry_rest(void *argument) {
    rest left = *(rest *)argument;
    free(argument);
    te_batch_carry(left.batch, left.work);
    te_batch_put(left.batch->engine->batches, left.batch);
}

/* Whether te_remote_move could still do something about it: a new session, a new list of regions. */
static bool may_go_on(te_opcode opcode, ms_status status) {
    return te_is_path_failure(opcode, status) || status == MS_NOT_REGISTERED;
}

/* On the carrier's thread: every item has ended. */
static void unit_carried(te_carry *ended) {
    carried_unit *carried = ended->owner;
    te_batch *batch = carried->batch;
    unit *work = carried->work;
    te_batches *batches = batch->engine->batches;
    rest *left = NULL;
    int64_t now_ns = te_now_ns();
    pthread_mutex_lock(&batch->lock);
    carried_unit **at = &batch->carrying;
    while (*at != carried)
        at = &(*at)->running_next;
    *at = carried->running_next;
    bool goes_on = false;
    for (uint32_t i = 0; i < work->count; i++)
        goes_on |= may_go_on(work->opcode, te_carried_status(&carried->items[i]));
    if (goes_on && !batch->is_cancelled)
        left = malloc(sizeof *left);
    for (uint32_t i = work->first; i != NONE; i = batch->entries[i].next) {
        entry *each = &batch->entries[i];
        ms_status status = te_carried_status(&carried->items[each->index]);
        if (left == NULL)
            te_batch_end_entry(batch, each, status, now_ns);
        else if (!may_go_on(work->opcode, status))
            each->status = status; /* the worker ends it with the others */
    }
    carried->work = NULL;
    batch->running -= left == NULL;
    pthread_mutex_unlock(&batch->lock);
    if (left != NULL) {
        *left = (rest){batch, work};
        if (te_spawn(batch->engine, carry_rest, left) == MS_OK)
            return; /* our reference is the worker's now */
        free(left);
        pthread_mutex_lock(&batch->lock);
        for (uint32_t i = work->first; i != NONE; i = batch->entries[i].next) {
            entry *each = &batch->entries[i];
            te_batch_end_entry(batch, each, te_carried_status(&carried->items[each->index]),
                               now_ns);
        }
        batch->running--;
        pthread_mutex_unlock(&batch->lock);
    }
    te_batch_tell(batch);
    te_unit_free(batch, work);
    te_batch_put(batches, batch);
}

/* The requests of a unit as items, each with the peer's region around it.  NULL: some cannot be begun like that. */
static carried_unit *make_carried(te_batch *batch, unit *work, te_session *session, te_path *path) {
    carried_unit *made = calloc(1, sizeof *made + work->count * sizeof made->items[0]);
    if (made == NULL)
        return NULL;
    uint32_t count = 0;
    for (uint32_t i = work->first; i != NONE; i = batch->entries[i].next) {
        const te_transfer_request *request = &batch->entries[i].request;
        te_remote_region region;
        te_carried *item = &made->items[count++];
        if (te_session_find(session, request->remote_offset, request->length, &region) != MS_OK) {
            free(made);
            return NULL;
        }
        uint64_t offset = request->remote_offset - region.address;
        item->local = (uint8_t *)(uintptr_t)request->local_address;
        item->region = batch->entries[i].region;
        if (work->opcode == TE_READ)
            item->wire.read = (ms_read_item){
                .segment = region.segment, .offset = offset, .length = request->length};
        else
            item->wire.write = (ms_write_item){
                .segment = region.segment, .offset = offset, .length = request->length};
    }
    made->batch = batch;
    made->work = work;
    made->session = session;
    made->carry = (te_carry){.path = path,
                             .opcode = work->opcode,
                             .deadline_ns = work->deadline_ns,
                             .items = made->items,
                             .count = count,
                             .ended = unit_carried,
                             .owner = made};
    te_carry_set_options(&made->carry, &work->options);
    return made;
}

carried_unit *te_batch_prepare_rails(te_batch *batch, unit *work) {
    if (!atomic_load_explicit(&batch->engine->has_rails, memory_order_acquire))
        return NULL; /* most engines never have a peer over rails */
    te_session *session = te_remote_session(work->remote);
    te_path *path =
        te_session_path(batch->engine, session, !te_options_are_default(&work->options));
    carried_unit *made = path == NULL ? NULL : make_carried(batch, work, session, path);
    if (made == NULL)
        te_session_put(session);
    return made;
}

bool te_batch_begin_over_rails(te_batch *batch, unit *work, bool *is_asleep) {
    carried_unit *made = work->carried;
    if (te_carry_add(&made->carry, is_asleep) != MS_OK)
        return false;
    uint32_t index = 0;
    int64_t now_ns = te_now_ns();
    for (uint32_t i = work->first; i != NONE; i = batch->entries[i].next) {
        batch->entries[i].state = TE_PENDING;
        batch->entries[i].carried = made;
        batch->entries[i].index = index++;
        batch->entries[i].begun_ns = now_ns;
    }
    made->next = batch->carried;
    batch->carried = made;
    made->running_next = batch->carrying;
    batch->carrying = made;
    batch->running++;
    work->carried = NULL; /* the batch's now */
    return true;
}
