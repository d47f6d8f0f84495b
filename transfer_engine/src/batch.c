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
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "te_session.h"

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
    uint32_t next;                /* in its unit; NONE: the last */
    uint32_t index;               /* in `carried` */
    struct carried_unit *carried; /* it goes, or went, over rails; NULL: it does not */
    int64_t submitted_ns, begun_ns, ended_ns;
} entry;

#define NONE UINT32_MAX

typedef struct te_batch te_batch;

typedef struct unit {
    struct unit *next;
    te_remote *remote; /* held */
    te_opcode opcode;
    uint32_t segment;
    uint32_t first, last, count; /* entries */
    uint64_t bytes;
    int64_t deadline_ns;
    te_transfer_options options;
} unit;

/* A unit on its way over rails; kept until the batch is freed, for whoever asks how it went. */
typedef struct carried_unit {
    te_carry carry;
    te_batch *batch;
    unit *work;                        /* until it has ended */
    te_session *session;               /* held */
    struct carried_unit *next;         /* all of the batch */
    struct carried_unit *running_next; /* those that have not ended */
    te_carried items[];
} carried_unit;

struct te_batch {
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
    carried_unit *carried, *carrying;
    entry entries[];
};

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
    for (carried_unit *each = batch->carried, *next; each != NULL; each = next) {
        next = each->next;
        te_session_put(each->session);
        free(each);
    }
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
static void end_entry(te_batch *batch, entry *ended, ms_status status, int64_t now_ns) {
    ended->status = status;
    ended->state = state_of(status);
    ended->ended_ns = now_ns;
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
    int64_t now_ns = te_now_ns();
    for (uint32_t i = work->first; i != NONE; i = batch->entries[i].next)
        end_entry(batch, &batch->entries[i], status, now_ns);
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
        end_entry(batch, &batch->entries[i], pieces == NULL ? MS_NO_MEMORY : pieces[at].status,
                  now_ns);
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

/* ---- over rails -------------------------------------------------------------------------------------------------- */

typedef struct rest {
    te_batch *batch;
    unit *work;
} rest;

static void carry_rest(void *argument) {
    rest left = *(rest *)argument;
    free(argument);
    carry(left.batch, left.work);
    batch_put(left.batch->engine->batches, left.batch);
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
            end_entry(batch, each, status, now_ns);
        else if (!may_go_on(work->opcode, status))
            each->status = status; /* the worker ends it with the others */
    }
    carried->work = NULL;
    if (left == NULL) {
        batch->running--;
        tell(batch);
    }
    pthread_mutex_unlock(&batch->lock);
    if (left != NULL) {
        *left = (rest){batch, work};
        if (te_spawn(batch->engine, carry_rest, left) == MS_OK)
            return; /* our reference is the worker's now */
        free(left);
        pthread_mutex_lock(&batch->lock);
        for (uint32_t i = work->first; i != NONE; i = batch->entries[i].next) {
            entry *each = &batch->entries[i];
            end_entry(batch, each, te_carried_status(&carried->items[each->index]), now_ns);
        }
        batch->running--;
        tell(batch);
        pthread_mutex_unlock(&batch->lock);
    }
    unit_free(batch, work);
    batch_put(batches, batch);
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

/* Under the batch's lock.  NULL: a thread must carry it. */
static carried_unit *prepare_rails(te_batch *batch, unit *work) {
    te_session *session = te_remote_session(work->remote);
    te_path *path =
        te_session_path(batch->engine, session, !te_options_are_default(&work->options));
    carried_unit *made = path == NULL ? NULL : make_carried(batch, work, session, path);
    if (made == NULL) {
        te_session_put(session);
        return NULL;
    }
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
    return made;
}

/* Takes those units out of the queue that go over rails, and begins them.  Returns how many are left for threads. */
static uint32_t begin_over_rails(te_batch *batch, uint32_t unit_count) {
    te_batches *batches = batch->engine->batches;
    uint32_t left = 0, begun = 0;
    bool is_asleep = false;
    if (!atomic_load_explicit(&batch->engine->has_rails, memory_order_acquire))
        return unit_count; /* most engines never have a peer over rails */
    pthread_mutex_lock(&batches->lock);
    batch->holders += unit_count;
    pthread_mutex_unlock(&batches->lock);
    pthread_mutex_lock(&batch->lock);
    unit *each = batch->first;
    batch->first = batch->last = NULL;
    for (unit *next; each != NULL; each = next) {
        next = each->next;
        each->next = NULL;
        /* Begun under the lock: whoever cancels finds it in the list, and begun. */
        carried_unit *made = begun < unit_count ? prepare_rails(batch, each) : NULL;
        if (made != NULL && te_carry_add(&made->carry, &is_asleep) == MS_OK) {
            begun++;
            continue;
        }
        if (made != NULL) {
            batch->carrying = made->running_next;
            batch->running--;
        }
        if (batch->last == NULL)
            batch->first = each;
        else
            batch->last->next = each;
        batch->last = each;
        left++;
    }
    pthread_mutex_unlock(&batch->lock);
    if (is_asleep)
        te_carrier_rouse(batch->engine->carrier);
    for (; begun < unit_count; begun++)
        batch_put(batches, batch);
    return left;
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
            end_entry(batch, added, status, now_ns);
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
    te_batch *batch = batch_get(engine->batches, id);
    if (batch == NULL)
        return MS_NOT_REGISTERED;
    uint32_t unit_count;
    status = add_requests(batch, requests, count, options, deadline_ns, &unit_count);
    if (unit_count > 0)
        unit_count = begin_over_rails(batch, unit_count);
    /* The queue of the workers may be full: then nobody but us is sure to come. */
    if (unit_count > 0 && !call_workers(batch, unit_count))
        carry_here(batch, INT64_MAX);
    batch_put(engine->batches, batch);
    return status;
}

ms_status te_submit_transfer(te_engine *engine, uint64_t id, const te_transfer_request *requests,
                             size_t count, int64_t deadline_ns) {
    return te_submit_transfer_as(engine, id, requests, count, NULL, deadline_ns);
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
    status = add_requests(batch, requests, count, options, deadline_ns, &unit_count);
    if (status == MS_OK) {
        if (unit_count > 0)
            unit_count = begin_over_rails(batch, unit_count);
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

ms_status te_transfer(te_engine *engine, const te_transfer_request *requests, size_t count,
                      te_transfer_status *statuses, int64_t deadline_ns) {
    return te_transfer_as(engine, requests, count, NULL, statuses, deadline_ns);
}

/* ---- asking ------------------------------------------------------------------------------------------------------- */

/* A submitted request, its batch held and locked until let_go; or why there is none. */
static ms_status find_entry(te_engine *engine, uint64_t id, size_t index, te_batch **batch,
                            const entry **found) {
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    *batch = batch_get(engine->batches, id);
    if (*batch == NULL)
        return MS_NOT_REGISTERED;
    pthread_mutex_lock(&(*batch)->lock);
    if (index < (*batch)->submitted) {
        *found = &(*batch)->entries[index];
        return MS_OK;
    }
    pthread_mutex_unlock(&(*batch)->lock);
    batch_put(engine->batches, *batch);
    return MS_OUT_OF_RANGE;
}

static void let_go(te_engine *engine, te_batch *batch) {
    pthread_mutex_unlock(&batch->lock);
    batch_put(engine->batches, batch);
}

ms_status te_get_transfer_status(te_engine *engine, uint64_t id, size_t index,
                                 te_transfer_status *result) {
    te_batch *batch;
    const entry *asked;
    ms_status status = find_entry(engine, id, index, &batch, &asked);
    if (status != MS_OK)
        return status;
    *result = status_of(asked);
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
    te_transfer_status now = status_of(asked);
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
    for (carried_unit *each = batch->carrying; each != NULL; each = each->running_next)
        te_carry_cancel(&each->carry, MS_CANCELLED);
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
