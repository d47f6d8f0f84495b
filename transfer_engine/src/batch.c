/* The paper's batch interface: requests, their states, and who carries them.
 *
 * te_submit_transfer groups requests of one segment and one direction into units; a unit is one call of
 * te_remote_move, which puts small requests into common frames and spreads large ones over connections.  Workers
 * take units from the batch's queue, and so does whoever waits for the batch, so that submitting and waiting at once
 * costs no change of threads.
 *
 * A request holds its local region from submission to its end, and ends only when te_remote_move has returned.
 *
 * Lock order: batches->lock, batch->lock.  Neither is held while bytes move.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "te_remote.h"

#include "te_fault.h"

#define BATCHES_MAX 4096u
#define SLOT_BITS 12
#define BATCH_REQUESTS_MAX ((size_t)1 << 20)
#define UNIT_REQUESTS_MAX 1024u
#define UNIT_BYTES_MAX ((uint64_t)64 << 20)

typedef struct entry {
    te_transfer_request request;
    te_region *region; /* held while it has not ended */
    te_transfer_state state;
    ms_status status;
    uint32_t next; /* in its unit; NONE: the last */
} entry;

#define NONE UINT32_MAX

typedef struct unit {
    struct unit *next;
    te_remote *remote; /* held */
    te_opcode opcode;
    uint32_t segment;
    uint32_t first, last, count; /* entries */
    uint64_t bytes;
    int64_t deadline_ns;
} unit;

typedef struct te_batch {
    te_engine *engine;
    uint64_t id;
    uint32_t holders; /* under batches->lock: the table, calls, workers */
    pthread_mutex_t lock;
    pthread_cond_t ended_some;
    te_scope scope;
    unit *first, *last; /* not begun */
    uint32_t running;   /* units */
    size_t size, submitted, ended;
    bool is_cancelled;
    int eventfd; /* -1: nobody asked for it */
    entry entries[];
} te_batch;

struct te_batches {
    te_engine *engine;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a batch has gone */
    te_batch *slots[BATCHES_MAX];
    uint64_t generations[BATCHES_MAX];
    uint32_t count; /* of batches not yet freed, in the table or not */
    bool is_stopping;
};

/* ---- batches by id ------------------------------------------------------------------------------------------- */

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

static void batch_free(te_batch *batch) {
    if (batch->eventfd >= 0)
        close(batch->eventfd);
    te_scope_close(&batch->scope);
    pthread_cond_destroy(&batch->ended_some);
    pthread_mutex_destroy(&batch->lock);
    free(batch);
}

static te_batch *batch_get(te_batches *batches, uint64_t id) {
    pthread_mutex_lock(&batches->lock);
    te_batch *batch = batches->slots[id & (BATCHES_MAX - 1)];
    if (batch != NULL && batch->id != id)
        batch = NULL;
    if (batch != NULL)
        batch->holders++;
    pthread_mutex_unlock(&batches->lock);
    return batch;
}

static void batch_put(te_batches *batches, te_batch *batch) {
    pthread_mutex_lock(&batches->lock);
    bool gone = --batch->holders == 0;
    if (gone) {
        batches->count--;
        pthread_cond_broadcast(&batches->changed);
    }
    pthread_mutex_unlock(&batches->lock);
    if (gone)
        batch_free(batch);
}

static ms_status batch_make(te_engine *engine, size_t size, te_batch **made) {
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
    batch->eventfd = -1;
    pthread_mutex_init(&batch->lock, NULL);
    te_scope_open(&batch->scope);
    *made = batch;
    return MS_OK;
}

/* Into the table, so that it has an id and te_batches_stop finds it. */
static ms_status batch_add(te_batches *batches, te_batch *batch) {
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
        status = batch_make(engine, size, &batch);
    if (status != MS_OK)
        return status;
    status = batch_add(engine->batches, batch);
    if (status == MS_OK)
        *id = batch->id;
    else
        batch_free(batch);
    return status;
}

/* ---- ends ------------------------------------------------------------------------------------------------------ */

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
static void end_entry(te_batch *batch, entry *ended, ms_status status) {
    ended->status = status;
    ended->state = state_of(status);
    if (ended->region != NULL)
        te_region_release(ended->region);
    ended->region = NULL;
    batch->ended++;
}

static void tell(te_batch *batch) {
    pthread_cond_broadcast(&batch->ended_some);
    uint64_t one = 1;
    if (batch->eventfd >= 0 && write(batch->eventfd, &one, sizeof one) < 0) {
        /* Only when the counter is full: it is readable then. */
    }
}

/* Under the batch's lock: a unit that nobody has begun. */
static void end_unit(te_batch *batch, unit *work, ms_status status) {
    for (uint32_t i = work->first; i != NONE; i = batch->entries[i].next)
        end_entry(batch, &batch->entries[i], status);
}

static void unit_free(te_batch *batch, unit *work) {
    te_remote_put(batch->engine->remotes, work->remote);
    free(work);
}

/* ---- carrying --------------------------------------------------------------------------------------------------- */

static void carry(te_batch *batch, unit *work) {
    te_piece *pieces = calloc(work->count, sizeof *pieces);
    uint32_t at = 0;
    for (uint32_t i = work->first; i != NONE && pieces != NULL; i = batch->entries[i].next) {
        const te_transfer_request *request = &batch->entries[i].request;
        pieces[at++] = (te_piece){.local = (void *)(uintptr_t)request->local_address,
                                  .remote_address = request->remote_offset,
                                  .length = request->length,
                                  .status = MS_PENDING};
    }
    if (pieces != NULL) {
        te_scope *outer = te_scope_enter(&batch->scope);
        te_remote_move(work->remote, work->opcode, pieces, work->count, &batch->scope,
                       work->deadline_ns);
        te_scope_enter(outer);
    }
    pthread_mutex_lock(&batch->lock);
    at = 0;
    for (uint32_t i = work->first; i != NONE; i = batch->entries[i].next) {
        end_entry(batch, &batch->entries[i], pieces == NULL ? MS_NO_MEMORY : pieces[at].status);
        at++;
    }
    batch->running--;
    tell(batch);
    pthread_mutex_unlock(&batch->lock);
    free(pieces);
    unit_free(batch, work);
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
        for (uint32_t i = work->first; i != NONE; i = batch->entries[i].next)
            batch->entries[i].state = TE_PENDING;
    }
    pthread_mutex_unlock(&batch->lock);
    return work;
}

static void carry_here(te_batch *batch, int64_t deadline_ns) {
    unit *work;
    while ((work = take_unit(batch, deadline_ns)) != NULL)
        carry(batch, work);
}

static void carry_all(void *argument) {
    te_batch *batch = argument;
    carry_here(batch, INT64_MAX);
    batch_put(batch->engine->batches, batch);
}

/* ---- submitting -------------------------------------------------------------------------------------------------- */

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
                      int64_t deadline_ns, unit **made, ms_status *status) {
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
                        int64_t deadline_ns) {
    unit *first = NULL, *last = NULL;
    uint32_t unit_count = 0;
    bool has_ended = false;
    for (size_t i = 0; i < count; i++) {
        uint32_t index = (uint32_t)(batch->submitted + i);
        entry *added = &batch->entries[index];
        *added = (entry){
            .request = requests[i], .state = TE_WAITING, .status = MS_PENDING, .next = NONE};
        ms_status status = check(batch->engine, added);
        unit *made = NULL;
        unit *work = status == MS_OK
                         ? unit_for(batch->engine, first, &requests[i], deadline_ns, &made, &status)
                         : NULL;
        if (work == NULL) {
            end_entry(batch, added, status);
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
        tell(batch);
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
        if (te_spawn(engine, carry_all, batch) != MS_OK) {
            batch_put(batches, batch);
            break;
        }
        called++;
    }
    return called > 0;
}

static ms_status add_requests(te_batch *batch, const te_transfer_request *requests, size_t count,
                              int64_t deadline_ns, uint32_t *unit_count) {
    ms_status status = MS_OK;
    *unit_count = 0;
    pthread_mutex_lock(&batch->lock);
    if (batch->is_cancelled)
        status = MS_CANCELLED;
    else if (count > batch->size - batch->submitted)
        status = MS_LIMIT;
    else
        *unit_count = enqueue(batch, requests, count, deadline_ns);
    pthread_mutex_unlock(&batch->lock);
    return status;
}

ms_status te_submit_transfer(te_engine *engine, uint64_t id, const te_transfer_request *requests,
                             size_t count, int64_t deadline_ns) {
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    if (deadline_ns == TE_NO_DEADLINE)
        return MS_BAD_REQUEST;
    te_batch *batch = batch_get(engine->batches, id);
    if (batch == NULL)
        return MS_NOT_REGISTERED;
    uint32_t unit_count;
    status = add_requests(batch, requests, count, deadline_ns, &unit_count);
    /* The queue of the workers may be full: then nobody but us is sure to come. */
    if (unit_count > 0 && !call_workers(batch, unit_count))
        carry_here(batch, INT64_MAX);
    batch_put(engine->batches, batch);
    return status;
}

static void wait_for_end(te_batch *batch, int64_t deadline_ns) {
    pthread_mutex_lock(&batch->lock);
    while (batch->ended < batch->submitted &&
           te_cond_wait_until(&batch->ended_some, &batch->lock, deadline_ns)) {
    }
    pthread_mutex_unlock(&batch->lock);
}

/* Under the batch's lock. */
static te_transfer_status status_of(const entry *asked) {
    return (te_transfer_status){.state = (int32_t)asked->state,
                                .status = (int32_t)asked->status,
                                .bytes = asked->state == TE_COMPLETED ? asked->request.length : 0};
}

ms_status te_transfer(te_engine *engine, const te_transfer_request *requests, size_t count,
                      te_transfer_status *statuses, int64_t deadline_ns) {
    te_batch *batch = NULL;
    uint32_t unit_count;
    ms_status status = te_engine_check(engine);
    if (status == MS_OK && deadline_ns == TE_NO_DEADLINE)
        status = MS_BAD_REQUEST;
    if (status != MS_OK || count == 0)
        return status;
    status = batch_make(engine, count, &batch);
    if (status != MS_OK)
        return status;
    status = batch_add(engine->batches, batch);
    if (status != MS_OK) {
        batch_free(batch);
        return status;
    }
    uint64_t id = batch->id;
    batch = batch_get(engine->batches, id);
    if (batch == NULL)
        return MS_CLOSED; /* the engine is being closed */
    status = add_requests(batch, requests, count, deadline_ns, &unit_count);
    if (status == MS_OK) {
        if (unit_count > 1)
            (void)call_workers(batch, unit_count - 1);
        carry_here(batch, INT64_MAX);
        wait_for_end(batch, INT64_MAX); /* whoever carries has the deadline */
        pthread_mutex_lock(&batch->lock);
        for (size_t i = 0; i < count; i++)
            statuses[i] = status_of(&batch->entries[i]);
        pthread_mutex_unlock(&batch->lock);
    }
    batch_put(engine->batches, batch);
    (void)te_free_batch_id(engine, id);
    return status;
}

/* ---- asking ------------------------------------------------------------------------------------------------------- */

ms_status te_get_transfer_status(te_engine *engine, uint64_t id, size_t index,
                                 te_transfer_status *result) {
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    te_batch *batch = batch_get(engine->batches, id);
    if (batch == NULL)
        return MS_NOT_REGISTERED;
    pthread_mutex_lock(&batch->lock);
    if (index < batch->submitted) {
        *result = status_of(&batch->entries[index]);
    } else {
        status = MS_OUT_OF_RANGE;
    }
    pthread_mutex_unlock(&batch->lock);
    batch_put(engine->batches, batch);
    return status;
}

ms_status te_wait_batch(te_engine *engine, uint64_t id, int64_t deadline_ns) {
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    te_batch *batch = batch_get(engine->batches, id);
    if (batch == NULL)
        return MS_NOT_REGISTERED;
    carry_here(batch, deadline_ns); /* only what must end before we may have to return */
    wait_for_end(batch, deadline_ns);
    pthread_mutex_lock(&batch->lock);
    status = batch->ended < batch->submitted ? MS_TIMEOUT : MS_OK;
    pthread_mutex_unlock(&batch->lock);
    batch_put(engine->batches, batch);
    return status;
}

static void cancel(te_batch *batch) {
    pthread_mutex_lock(&batch->lock);
    batch->is_cancelled = true;
    unit *waiting = batch->first;
    batch->first = batch->last = NULL;
    for (unit *work = waiting; work != NULL; work = work->next)
        end_unit(batch, work, MS_CANCELLED);
    if (waiting != NULL)
        tell(batch);
    pthread_mutex_unlock(&batch->lock);
    te_scope_cancel(&batch->scope);
    while (waiting != NULL) {
        unit *next = waiting->next;
        unit_free(batch, waiting);
        waiting = next;
    }
}

ms_status te_cancel_batch(te_engine *engine, uint64_t id) {
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    te_batch *batch = batch_get(engine->batches, id);
    if (batch == NULL)
        return MS_NOT_REGISTERED;
    cancel(batch);
    batch_put(engine->batches, batch);
    return MS_OK;
}

ms_status te_free_batch_id(te_engine *engine, uint64_t id) {
    te_batches *batches = engine->batches;
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    te_batch *batch = batch_get(batches, id);
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
        if (batch->eventfd >= 0)
            close(batch->eventfd);
        batch->eventfd = -1;
        batch->is_cancelled = true; /* a submission that is on its way comes too late */
    }
    pthread_mutex_unlock(&batch->lock);
    pthread_mutex_unlock(&batches->lock);
    batch_put(batches, batch);
    return status == MS_OK && !taken ? MS_NOT_REGISTERED : status;
}

int te_batch_eventfd(te_engine *engine, uint64_t id) {
    if (te_engine_check(engine) != MS_OK)
        return -1;
    te_batch *batch = batch_get(engine->batches, id);
    if (batch == NULL)
        return -1;
    pthread_mutex_lock(&batch->lock);
    if (batch->eventfd < 0) {
        batch->eventfd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (batch->ended > 0)
            tell(batch);
    }
    int descriptor = batch->eventfd;
    pthread_mutex_unlock(&batch->lock);
    batch_put(engine->batches, batch);
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
        batch_put(batches, batch);
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
