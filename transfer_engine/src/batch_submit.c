/* Submitting requests: checked, grouped into units, begun. */
#include "te_batch.h"

#include <stdlib.h>
#include <string.h>

#include "te_fault.h"

/* What is wrong with a request before anything is sent; OK: its local region is held. */
static ms_status check(te_engine *engine, entry *added) {
    const te_transfer_request *request = &added->request;
    if (request->opcode != TE_READ && request->opcode != TE_WRITE)
        return MS_BAD_REQUEST;
    if (request->length > UINT64_MAX - request->local_address ||
        request->length > UINT64_MAX - request->remote_offset)
        return MS_OUT_OF_RANGE;
    return te_region_hold(engine->registry, request->local_address, request->length,
                          request->opcode == TE_READ, &added->region);
}

/* The unit of this submission that the request joins: small requests of a segment travel together. */
static unit *unit_for(te_engine *engine, unit *units, const te_transfer_request *request,
                      const te_transfer_options *options, int64_t deadline_ns, unit **made,
                      ms_status *status) {
    *made = NULL;
    for (unit *open = units; open != NULL; open = open->next)
        if (open->segment == request->segment && (int32_t)open->opcode == request->opcode &&
            open->count < UNIT_REQUESTS_MAX && open->bytes + request->length <= UNIT_BYTES_MAX)
            return open;
    te_remote *remote = te_remote_get(engine->remotes, request->segment);
    *status = remote == NULL ? MS_NOT_REGISTERED : MS_NO_MEMORY;
    if (remote == NULL)
        return NULL;
    unit *work = calloc(1, sizeof *work);
    if (work == NULL) {
        te_remote_put(engine->remotes, remote);
        return NULL;
    }
    *work = (unit){.remote = remote,
                   .opcode = (te_opcode)request->opcode,
                   .segment = request->segment,
                   .first = NONE,
                   .last = NONE,
                   .deadline_ns = deadline_ns};
    if (options != NULL)
        work->options = *options;
    return *made = work;
}

static void join(te_batch *batch, unit *work, uint32_t index) {
    batch->entries[index].next = NONE;
    if (work->last == NONE)
        work->first = index;
    else
        batch->entries[work->last].next = index;
    work->last = index;
    work->count++;
    work->bytes += batch->entries[index].request.length;
}

/* Under the batch's lock: the requests are in the batch; their units go to the queue.  Returns how many. */
static uint32_t enqueue(te_batch *batch, const te_transfer_request *requests, size_t count,
                        const te_transfer_options *options, int64_t deadline_ns) {
    unit *first = NULL, *last = NULL;
    uint32_t unit_count = 0;
    bool has_ended = false;
    int64_t now_ns = te_now_ns();
    for (size_t i = 0; i < count; i++) {
        uint32_t index = (uint32_t)(batch->submitted + i);
        entry *added = &batch->entries[index];
        *added = (entry){.request = requests[i],
                         .state = TE_WAITING,
                         .status = MS_PENDING,
                         .next = NONE,
                         .submitted_ns = now_ns};
        ms_status status = check(batch->engine, added);
        unit *made = NULL;
        unit *work = status == MS_OK ? unit_for(batch->engine, first, &requests[i], options,
                                                deadline_ns, &made, &status)
                                     : NULL;
        if (work == NULL) {
            te_batch_end_entry(batch, added, status, now_ns);
            has_ended = true;
            continue;
        }
        if (made != NULL) {
            if (last == NULL)
                first = made;
            else
                last->next = made;
            last = made;
            unit_count++;
        }
        join(batch, work, index);
    }
    batch->submitted += count;
    if (first != NULL) {
        if (batch->last == NULL)
            batch->first = first;
        else
            batch->last->next = first;
        batch->last = last;
    }
    if (has_ended)
        te_batch_tell(batch);
    return unit_count;
}

/* Workers come to carry up to `unit_count` units.  False: none will. */
static bool call_workers(te_batch *batch, uint32_t unit_count) {
    te_engine *engine = batch->engine;
    te_batches *batches = engine->batches;
    uint32_t wanted = engine->config.worker_threads, called = 0;
    wanted = unit_count < wanted ? unit_count : wanted;
    while (called < wanted) {
        pthread_mutex_lock(&batches->lock);
        batch->holders++;
        pthread_mutex_unlock(&batches->lock);
        if (te_spawn(engine, te_batch_carry_all, batch) != MS_OK) {
            te_batch_put(batches, batch);
            break;
        }
        called++;
    }
    return called > 0;
}

/* Whoever names a priority or tenant wants rails, also for a peer with one. */
static void want_rails(te_engine *engine, const te_transfer_options *options) {
    if (!te_options_are_default(options))
        atomic_store_explicit(&engine->has_rails, true, memory_order_release);
}

static ms_status add_requests(te_batch *batch, const te_transfer_request *requests, size_t count,
                              const te_transfer_options *options, int64_t deadline_ns,
                              uint32_t *unit_count) {
    ms_status status = MS_OK;
    *unit_count = 0;
    want_rails(batch->engine, options);
    pthread_mutex_lock(&batch->lock);
    if (batch->is_cancelled)
        status = MS_CANCELLED;
    else if (count > batch->size - batch->submitted)
        status = MS_LIMIT;
    else
        *unit_count = enqueue(batch, requests, count, options, deadline_ns);
    pthread_mutex_unlock(&batch->lock);
    return status;
}

static bool is_sane(const te_transfer_options *options) {
    return options == NULL ||
           (options->priority >= TE_PRIORITY_NORMAL && options->priority <= TE_PRIORITY_PREFETCH &&
            options->weight <= TE_SCHEDULE_WEIGHT_MAX);
}

ms_status te_submit_transfer_as(te_engine *engine, uint64_t id, const te_transfer_request *requests,
                                size_t count, const te_transfer_options *options,
                                int64_t deadline_ns) {
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    if (deadline_ns == TE_NO_DEADLINE || !is_sane(options))
        return MS_BAD_REQUEST;
    te_batch *batch = te_batch_get(engine->batches, id);
    if (batch == NULL)
        return MS_NOT_REGISTERED;
    uint32_t unit_count;
    status = add_requests(batch, requests, count, options, deadline_ns, &unit_count);
    if (unit_count > 0)
        unit_count = te_batch_begin_over_rails(batch, unit_count);
    /* The queue of the workers may be full: then nobody but us is sure to come. */
    if (unit_count > 0 && !call_workers(batch, unit_count))
        te_batch_carry_here(batch, INT64_MAX);
    te_batch_put(engine->batches, batch);
    return status;
}

ms_status te_submit_transfer(te_engine *engine, uint64_t id, const te_transfer_request *requests,
                             size_t count, int64_t deadline_ns) {
    return te_submit_transfer_as(engine, id, requests, count, NULL, deadline_ns);
}

void te_batch_wait_for_end(te_batch *batch, int64_t deadline_ns) {
    pthread_mutex_lock(&batch->lock);
    while (batch->ended < batch->submitted &&
           te_cond_wait_until(&batch->ended_some, &batch->lock, deadline_ns)) {
    }
    pthread_mutex_unlock(&batch->lock);
}

/* Under the batch's lock. */
te_transfer_status te_batch_status_of(const entry *asked) {
    return (te_transfer_status){.state = (int32_t)asked->state,
                                .status = (int32_t)asked->status,
                                .bytes = asked->state == TE_COMPLETED ? asked->request.length : 0};
}

ms_status te_transfer_as(te_engine *engine, const te_transfer_request *requests, size_t count,
                         const te_transfer_options *options, te_transfer_status *statuses,
                         int64_t deadline_ns) {
    te_batch *batch = NULL;
    uint32_t unit_count;
    ms_status status = te_engine_check(engine);
    if (status == MS_OK && (deadline_ns == TE_NO_DEADLINE || !is_sane(options)))
        status = MS_BAD_REQUEST;
    if (status != MS_OK || count == 0)
        return status;
    status = te_batch_make(engine, count, &batch);
    if (status != MS_OK)
        return status;
    status = te_batch_add(engine->batches, batch);
    if (status != MS_OK) {
        te_batch_free(batch);
        return status;
    }
    uint64_t id = batch->id;
    batch = te_batch_get(engine->batches, id);
    if (batch == NULL)
        return MS_CLOSED; /* the engine is being closed */
    status = add_requests(batch, requests, count, options, deadline_ns, &unit_count);
    if (status == MS_OK) {
        if (unit_count > 0)
            unit_count = te_batch_begin_over_rails(batch, unit_count);
        if (unit_count > 1)
            (void)call_workers(batch, unit_count - 1);
        te_batch_carry_here(batch, INT64_MAX);
        te_batch_wait_for_end(batch, INT64_MAX); /* whoever carries has the deadline */
        pthread_mutex_lock(&batch->lock);
        for (size_t i = 0; i < count; i++)
            statuses[i] = te_batch_status_of(&batch->entries[i]);
        pthread_mutex_unlock(&batch->lock);
    }
    te_batch_put(engine->batches, batch);
    (void)te_free_batch_id(engine, id);
    return status;
}

ms_status te_transfer(te_engine *engine, const te_transfer_request *requests, size_t count,
                      te_transfer_status *statuses, int64_t deadline_ns) {
    return te_transfer_as(engine, requests, count, NULL, statuses, deadline_ns);
}
