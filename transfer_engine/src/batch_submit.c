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

/* The requests are in the batch, and wait. */
static ms_status take_room(te_batch *batch, const te_transfer_request *requests, size_t count,
                           size_t *first) {
    int64_t now_ns = te_now_ns();
    ms_status status = MS_OK;
    pthread_mutex_lock(&batch->lock);
    *first = batch->submitted;
    if (batch->is_cancelled)
        status = MS_CANCELLED;
    else if (count > batch->size - batch->submitted)
        status = MS_LIMIT;
    for (size_t i = 0; i < count && status == MS_OK; i++)
        batch->entries[*first + i] = (entry){.request = requests[i],
                                             .state = TE_WAITING,
                                             .status = MS_PENDING,
                                             .next = NONE,
                                             .submitted_ns = now_ns};
    if (status == MS_OK)
        batch->submitted += count;
    pthread_mutex_unlock(&batch->lock);
    return status;
}

/* What a submission has made of its requests. */
typedef struct made_units {
    unit *first, *last;
    uint32_t for_rails; /* those with items to be carried */
    bool has_ended;     /* some request, at once */
} made_units;

/* Under no lock: requests that have room and are in no unit yet are the submission's.  It may take memory from the
 * kernel, and whoever asks for a status does not wait for that. */
static void make_units(te_batch *batch, size_t first, size_t count,
                       const te_transfer_options *options, int64_t deadline_ns, made_units *units) {
    for (size_t i = first; i < first + count; i++) {
        entry *added = &batch->entries[i];
        unit *made = NULL, *work = NULL;
        ms_status status = check(batch->engine, added);
        if (status == MS_OK)
            work = unit_for(batch->engine, units->first, &added->request, options, deadline_ns,
                            &made, &status);
        if (work == NULL) {
            pthread_mutex_lock(&batch->lock);
            te_batch_end_entry(batch, added, status, added->submitted_ns);
            pthread_mutex_unlock(&batch->lock);
            units->has_ended = true;
            continue;
        }
        if (made != NULL) {
            if (units->last == NULL)
                units->first = made;
            else
                units->last->next = made;
            units->last = made;
        }
        join(batch, work, (uint32_t)i);
    }
    for (unit *each = units->first; each != NULL; each = each->next) {
        each->carried = te_batch_prepare_rails(batch, each);
        units->for_rails += each->carried != NULL;
    }
}

/* Those that go over rails begin, the others wait in the queue.  Returns how many do. */
static uint32_t begin_units(te_batch *batch, const made_units *units) {
    te_batches *batches = batch->engine->batches;
    uint32_t left = 0, begun = 0;
    bool is_asleep = false, has_ended = units->has_ended;
    unit *late = NULL;
    if (units->for_rails > 0) {
        pthread_mutex_lock(&batches->lock);
        batch->holders += units->for_rails; /* one for each that begins */
        pthread_mutex_unlock(&batches->lock);
    }
    pthread_mutex_lock(&batch->lock);
    for (unit *each = units->first, *next; each != NULL; each = next) {
        next = each->next;
        each->next = NULL;
        if (batch->is_cancelled) { /* since there was room */
            te_batch_end_unit(batch, each, MS_CANCELLED);
            has_ended = true;
            each->next = late;
            late = each;
        } else if (each->carried != NULL && te_batch_begin_over_rails(batch, each, &is_asleep)) {
            begun++;
        } else {
            if (batch->last == NULL)
                batch->first = each;
            else
                batch->last->next = each;
            batch->last = each;
            left++;
        }
    }
    pthread_mutex_unlock(&batch->lock);
    if (is_asleep)
        te_carrier_rouse(batch->engine->carrier);
    if (has_ended)
        te_batch_tell(batch);
    for (unit *next; late != NULL; late = next) {
        next = late->next;
        te_unit_free(batch, late);
    }
    for (uint32_t i = begun; i < units->for_rails; i++)
        te_batch_put(batches, batch);
    return left;
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

/* *unit_count: of units that wait for a thread.  No lock is held over a system call. */
static ms_status add_requests(te_batch *batch, const te_transfer_request *requests, size_t count,
                              const te_transfer_options *options, int64_t deadline_ns,
                              uint32_t *unit_count) {
    made_units units = {0};
    size_t first;
    *unit_count = 0;
    want_rails(batch->engine, options);
    ms_status status = take_room(batch, requests, count, &first);
    if (status != MS_OK)
        return status;
    make_units(batch, first, count, options, deadline_ns, &units);
    *unit_count = begin_units(batch, &units);
    return MS_OK;
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
