/* The carrier's thread: slices from the schedule to lanes, their ends back, requests that have ended to their owners.
 *
 * Whoever begins or cancels something puts it into a list and wakes the thread; all else happens on it.  The lock
 * is held for the schedule and for what others may look at, never over a call of a lane or of an owner.
 */
#include "te_carrier.h"
#include "te_interface_watch.h"
#include "te_rdma.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "te_fault.h"

#define ENDPOINTS_MAX 512u
#define EVENTS_MAX 64
#define USED_NS                                                                                    \
    (10 * TE_NS_PER_S) /* lanes of a path that nobody used for so long are not connected again */
#define LATE_NS (10 * TE_NS_PER_MS)

typedef struct errand {
    struct errand *next;
    void (*run)(void *argument);
    void *argument;
} errand;

/* ---- life ------------------------------------------------------------------------------------------------------ */

ms_status te_carrier_open(te_engine *engine) {
    te_carrier *carrier = calloc(1, sizeof *carrier);
    if (carrier == NULL)
        return MS_NO_MEMORY;
    carrier->engine = engine;
    carrier->epoll = carrier->wake = carrier->news = -1;
    carrier->endpoints_max = ENDPOINTS_MAX;
    pthread_mutex_init(&carrier->lock, NULL);
    engine->carrier = carrier;
    return MS_OK;
}

void te_carrier_stop(te_engine *engine) {
    te_carrier *carrier = engine->carrier;
    if (carrier == NULL)
        return;
    pthread_mutex_lock(&carrier->lock);
    carrier->is_stopping = true;
    bool is_started = carrier->is_started;
    te_carrier_wake(carrier);
    pthread_mutex_unlock(&carrier->lock);
    if (is_started)
        pthread_join(carrier->thread, NULL);
}

void te_carrier_close(te_engine *engine) {
    te_carrier *carrier = engine->carrier;
    if (carrier == NULL)
        return;
    te_interface_watch_close(carrier->interfaces);
    if (carrier->epoll >= 0)
        close(carrier->epoll);
    if (carrier->wake >= 0)
        close(carrier->wake);
    if (carrier->news >= 0)
        close(carrier->news);
    te_schedule_close(carrier->schedule);
    free(carrier->lane_of_rail);
    free(carrier->works);
    pthread_mutex_destroy(&carrier->lock);
    free(carrier);
    engine->carrier = NULL;
}

static void *run(void *argument);

static ms_status make_rooms(te_carrier *carrier) {
    te_schedule_config config;
    te_schedule_config_default(&config);
    config.nics_max = 2 * TE_NICS_MAX; /* a network interface is busy in both directions at once */
    if (carrier->engine->rdma !=
        NULL) /* several completions are taken at once, smaller ones one by one */
        config.slice_bytes = carrier->engine->rdma->settings.slice_bytes;
    if (carrier->engine->rail_slice_bytes != 0)
        config.slice_bytes = carrier->engine->rail_slice_bytes;
    for (uint32_t i = 0; i < TE_CLASS_COUNT; i++)
        if (carrier->engine->config.class_weights[i] != 0)
            config.class_weights[i] = carrier->engine->config.class_weights[i];
    if (carrier->schedule == NULL) {
        ms_status status = te_schedule_open(&config, &carrier->schedule);
        if (status != MS_OK)
            return status;
    }
    if (carrier->lane_of_rail == NULL)
        carrier->lane_of_rail = calloc(config.rails_max, sizeof *carrier->lane_of_rail);
    if (carrier->works == NULL) {
        carrier->works = calloc(config.slices_max, sizeof *carrier->works);
        for (uint32_t i = 0; carrier->works != NULL && i < config.slices_max; i++) {
            carrier->works[i].next = carrier->free_works;
            carrier->free_works = &carrier->works[i];
        }
    }
    return carrier->lane_of_rail == NULL || carrier->works == NULL ? MS_NO_MEMORY : MS_OK;
}

ms_status te_carrier_start(te_carrier *carrier) {
    if (carrier->is_started)
        return MS_OK;
    if (carrier->is_stopping)
        return MS_CLOSED;
    ms_status status = make_rooms(carrier);
    if (status != MS_OK)
        return status;
    if (carrier->epoll < 0)
        carrier->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (carrier->wake < 0)
        carrier->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN};
    if (carrier->epoll < 0 || carrier->wake < 0 ||
        (epoll_ctl(carrier->epoll, EPOLL_CTL_ADD, carrier->wake, &event) != 0 && errno != EEXIST))
        return MS_LIMIT;
    status = te_thread_start(&carrier->thread, "te-carrier", run, carrier);
    carrier->is_started = status == MS_OK;
    return status;
}

void te_carrier_wake(te_carrier *carrier) {
    if (!carrier->is_sleeping)
        return;
    carrier->is_sleeping = false;
    te_carrier_rouse(carrier);
}

void te_carrier_rouse(te_carrier *carrier) {
    uint64_t one = 1;
    if (write(carrier->wake, &one, sizeof one) < 0) {
        /* Only when the counter is full: it is readable then. */
    }
}

ms_status te_carrier_run(te_carrier *carrier, void (*run_it)(void *argument), void *argument) {
    errand *added = malloc(sizeof *added);
    if (added == NULL)
        return MS_NO_MEMORY;
    *added = (errand){.run = run_it, .argument = argument};
    pthread_mutex_lock(&carrier->lock);
    ms_status status = carrier->is_stopping ? MS_CLOSED : te_carrier_start(carrier);
    if (status == MS_OK) {
        if (carrier->errand_last == NULL)
            carrier->errand_first = added;
        else
            carrier->errand_last->next = added;
        carrier->errand_last = added;
        te_carrier_wake(carrier);
    }
    pthread_mutex_unlock(&carrier->lock);
    if (status != MS_OK)
        free(added);
    return status;
}

/* ---- descriptors ------------------------------------------------------------------------------------------------ */

ms_status te_carrier_watch(te_carrier *carrier, te_watched *watched) {
    struct epoll_event event = {.events = watched->events, .data.ptr = watched};
    int operation = watched->is_watched ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
    if (epoll_ctl(carrier->epoll, operation, watched->descriptor, &event) != 0)
        return MS_LIMIT;
    watched->is_watched = true;
    return MS_OK;
}

void te_carrier_forget(te_carrier *carrier, te_watched *watched) {
    if (watched->is_watched)
        (void)epoll_ctl(carrier->epoll, EPOLL_CTL_DEL, watched->descriptor, NULL);
    watched->is_watched = false;
}

/* ---- the thread, under the lock ---------------------------------------------------------------------------------- */

static void submit(te_carrier *carrier, te_carry *carry, int64_t now_ns) {
    te_path *path = carry->path;
    for (size_t i = 0; i < carry->count; i++) {
        te_carried *item = &carry->items[i];
        bool is_read = carry->opcode == TE_READ;
        item->carry = carry;
        item->status = MS_PENDING;
        item->is_answered = item->is_doubtful = false;
        item->rails = item->attempts = 0;
        item->first_ns = item->ended_ns = 0;
        item->word = is_read ? item->wire.read.word : 0;
        item->job = (te_job){.bytes = is_read ? item->wire.read.length : item->wire.write.length,
                             .deadline_ns = carry->deadline_ns,
                             .group = path->groups[carry->opcode],
                             .class = carry->class,
                             .tenant = carry->tenant,
                             .weight = carry->weight,
                             .owner = item,
                             /* What cannot go over every lane takes nothing else along. */
                             .is_alone = te_carried_is_device(path->engine, item)};
        te_schedule_submit(carrier->schedule, &item->job, now_ns);
    }
    if (now_ns - path->used_ns[carry->opcode] > TE_NS_PER_S)
        for (uint32_t i = 0; i < path->rail_count; i++)
            te_lane_tick_at(&path->lanes[carry->opcode][i], now_ns);
    path->used_ns[carry->opcode] = now_ns;
}

static void settle(te_carrier *carrier, te_work *work, int64_t now_ns) {
    te_slice *slice = work->slice;
    te_work_outcome outcome = (te_work_outcome)work->outcome;
    for (uint32_t i = 0; i < work->count; i++) {
        te_job *job = slice->pieces[i].job;
        te_carried *item = job->owner;
        te_work_piece *piece = &work->pieces[i];
        if (outcome == TE_WORK_DONE) {
            if (piece->status >= MS_STATUS_COUNT || piece->status == MS_PENDING)
                piece->status = MS_BAD_FRAME;
            if (piece->status != MS_OK) {
                item->is_answered |= job->status == MS_PENDING;
                te_schedule_cancel(carrier->schedule, job, (ms_status)piece->status);
            } else
                item->carry->rail_bytes[work->lane->index] += piece->length;
            if (item->carry->opcode == TE_READ && item->word == item->wire.read.word)
                item->word = piece->word; /* one piece whose word differs tells about all of it */
        } else {
            item->attempts++;
        }
        item->is_doubtful |= outcome == TE_WORK_LOST;
        if (outcome == TE_WORK_LOST)
            te_schedule_cancel(carrier->schedule, job,
                               job->deadline_ns <= now_ns ? MS_TIMEOUT : MS_IO_ERROR);
    }
    te_schedule_end(carrier->schedule, slice,
                    outcome == TE_WORK_DONE ? TE_SLICE_DONE : TE_SLICE_FAILED, MS_OK, now_ns);
    work->next = carrier->free_works;
    carrier->free_works = work;
}

static void collect_ended(te_carrier *carrier, int64_t now_ns) {
    te_job *job;
    while ((job = te_schedule_ended(carrier->schedule)) != NULL) {
        te_carried *item = job->owner;
        te_carry *carry = item->carry;
        ms_status dead = carry->path->dead;
        item->status = job->status == MS_CLOSED && dead != MS_OK ? dead : job->status;
        if (item->is_doubtful && (job->status == MS_CLOSED || job->status == MS_UNAVAILABLE))
            item->status = MS_IO_ERROR; /* another slice of it ended first: nobody may repeat it */
        item->ended_ns = now_ns;
        if (--carry->left > 0)
            continue;
        carry->is_over = true;
        if (carry->path_previous != NULL)
            carry->path_previous->path_next = carry->path_next;
        else
            carry->path->carries = carry->path_next;
        if (carry->path_next != NULL)
            carry->path_next->path_previous = carry->path_previous;
        carry->next = NULL;
        if (carrier->ended_last == NULL)
            carrier->ended_first = carry;
        else
            carrier->ended_last->next = carry;
        carrier->ended_last = carry;
    }
}

static te_work *work_of(te_carrier *carrier, te_slice *slice, int64_t now_ns) {
    te_work *work = carrier->free_works;
    carrier->free_works = work->next;
    te_lane *lane = carrier->lane_of_rail[slice->rail];
    work->lane = lane;
    work->slice = slice;
    work->deadline_ns = slice->deadline_ns;
    work->posted_ns = now_ns;
    work->unwanted_ns = 0;
    work->bytes = slice->bytes;
    work->count = slice->piece_count;
    work->is_sent = false;
    work->declined = 0;
    work->next = NULL;
    for (uint32_t i = 0; i < slice->piece_count; i++) {
        const te_slice_piece *from = &slice->pieces[i];
        te_carried *item = from->job->owner;
        bool is_read = lane->opcode == TE_READ;
        uint64_t offset = is_read ? item->wire.read.offset : item->wire.write.offset;
        work->pieces[i] =
            (te_work_piece){.local = item->local + from->offset,
                            .length = from->length,
                            .offset = offset + from->offset,
                            .segment = is_read ? item->wire.read.segment : item->wire.write.segment,
                            .status = MS_PENDING,
                            .item = item};
        item->rails |= 1u << lane->index;
        if (item->first_ns == 0)
            item->first_ns = now_ns;
    }
    lane->work_count++;
    lane->was_used = true;
    return work;
}

/* What one turn of the thread has to do when it has left the lock. */
typedef struct turn {
    errand *errands;
    te_path *opened;
    te_work *posts, *posts_last;
    te_carry *ended;
    int64_t wake_ns;
    bool has_closing, is_over;
} turn;

static void cut(te_carrier *carrier, turn *now, int64_t now_ns) {
    te_slice *slice;
    while (carrier->free_works != NULL &&
           (slice = te_schedule_next(carrier->schedule, now_ns)) != NULL) {
        te_work *work = work_of(carrier, slice, now_ns);
        if (now->posts_last == NULL)
            now->posts = work;
        else
            now->posts_last->next = work;
        now->posts_last = work;
    }
}

static turn decide(te_carrier *carrier, int64_t now_ns) {
    turn now = {0};
    pthread_mutex_lock(&carrier->lock);
    carrier->is_sleeping = false;
    now.errands = carrier->errand_first;
    carrier->errand_first = carrier->errand_last = NULL;
    now.opened = carrier->opened;
    carrier->opened = NULL;
    now.has_closing = carrier->has_closing;
    carrier->has_closing = false;
    /* Lanes of a path that has just been opened must be known before a slice names one. */
    te_paths_adopt(carrier, now.opened);
    te_carry *begun = carrier->begun_first;
    carrier->begun_first = carrier->begun_last = NULL;
    for (te_carry *next; begun != NULL; begun = next) {
        next = begun->next;
        submit(carrier, begun, now_ns);
    }
    te_carry *cancelled = carrier->cancelled;
    carrier->cancelled = NULL;
    for (; cancelled != NULL; cancelled = cancelled->cancel_next) {
        for (size_t i = 0; i < cancelled->count; i++)
            if (cancelled->items[i].status == MS_PENDING)
                te_schedule_cancel(carrier->schedule, &cancelled->items[i].job,
                                   cancelled->cancel_status);
        /* What is out is looked after by the lanes. */
        te_path *path = cancelled->path;
        for (uint32_t i = 0; i < path->rail_count; i++)
            te_lane_tick_at(&path->lanes[cancelled->opcode][i], now_ns);
    }
    te_work *done = carrier->done_first;
    carrier->done_first = carrier->done_last = NULL;
    for (te_work *next; done != NULL; done = next) {
        next = done->next;
        settle(carrier, done, now_ns);
    }
    te_schedule_expire(carrier->schedule, now_ns);
    cut(carrier, &now, now_ns);
    collect_ended(carrier, now_ns);
    now.ended = carrier->ended_first;
    carrier->ended_first = carrier->ended_last = NULL;
    now.wake_ns = te_schedule_wake_ns(carrier->schedule);
    now.is_over = carrier->is_stopping && carrier->paths == NULL && now.errands == NULL;
    carrier->is_sleeping = now.errands == NULL && now.posts == NULL && now.ended == NULL;
    pthread_mutex_unlock(&carrier->lock);
    return now;
}

/* ---- the thread, under no lock ------------------------------------------------------------------------------------- */

static void tick_lane(te_lane *lane, int64_t now_ns) {
    te_path *path = lane->path;
    lane->tick_ns = INT64_MAX;
    if (!lane->is_up && !lane->is_connecting && !lane->is_gone && path->dead == MS_OK &&
        !path->is_closing &&
        (now_ns - path->used_ns[lane->opcode] < USED_NS ||
         (path->is_watching && lane->opcode == TE_READ))) {
        if (now_ns >= lane->retry_ns) {
            lane->is_connecting = true;
            te_lane_progress(lane, now_ns);
            lane->ops->dial(lane);
        } else {
            te_lane_tick_at(lane, lane->retry_ns);
        }
    }
    te_lane_tick_at(lane, lane->ops->tick(lane, now_ns));
}

static void tick_lanes(te_carrier *carrier, int64_t now_ns) {
    if (now_ns < carrier->tick_ns)
        return;
    carrier->tick_ns = INT64_MAX;
    for (te_lane *lane = carrier->lanes; lane != NULL; lane = lane->next) {
        if (lane->tick_ns <= now_ns)
            tick_lane(lane, now_ns);
        if (lane->tick_ns < carrier->tick_ns)
            carrier->tick_ns = lane->tick_ns;
    }
}

static void wait_for_events(te_carrier *carrier, int64_t until_ns) {
    struct epoll_event events[EVENTS_MAX];
    int64_t now_ns = te_now_ns(), left = until_ns - now_ns;
    int timeout = until_ns == INT64_MAX        ? -1
                  : left <= 0                  ? 0
                  : left > 1000 * TE_NS_PER_MS ? 1000
                                               : (int)((left + TE_NS_PER_MS - 1) / TE_NS_PER_MS);
    int count = epoll_wait(carrier->epoll, events, EVENTS_MAX, timeout);
    int64_t woken_ns = te_now_ns();
    int64_t late_ns = timeout < 0 ? 0 : woken_ns - now_ns - (int64_t)timeout * TE_NS_PER_MS;
    if (late_ns > LATE_NS) /* this thread had no processor: nobody else was silent */
        for (te_lane *lane = carrier->lanes; lane != NULL; lane = lane->next) {
            lane->progress_ns += late_ns;
            lane->alive_ns += late_ns;
        }
    for (int i = 0; i < count; i++) {
        te_watched *watched = events[i].data.ptr;
        if (watched == NULL) {
            uint64_t woken;
            if (read(carrier->wake, &woken, sizeof woken) < 0) {
                /* Somebody else's wake-up was read before: nothing is lost. */
            }
        } else if (watched->is_watched) { /* not forgotten by one before it in this round */
            watched->ready(watched, events[i].events);
        }
    }
}

static void *run(void *argument) {
    te_carrier *carrier = argument;
    carrier->tick_ns = INT64_MAX;
    for (;;) {
        turn now = decide(carrier, te_now_ns());
        bool is_busy = now.errands != NULL || now.posts != NULL || now.ended != NULL;
        for (errand *next; now.errands != NULL; now.errands = next) {
            next = now.errands->next;
            now.errands->run(now.errands->argument);
            free(now.errands);
        }
        int64_t now_ns = te_now_ns();
        for (te_work *work = now.posts, *next; work != NULL; work = next) {
            te_lane *lane = work->lane;
            next = work->next;
            work->next = NULL;
            lane->ops->post(lane, work);
            te_lane_tick_at(lane, lane->ops->tick(lane, now_ns));
        }
        for (te_carry *carry = now.ended, *next; carry != NULL; carry = next) {
            next = carry->next;
            carry->ended(carry); /* it may be freed by now */
        }
        if (now.has_closing) {
            te_paths_close(carrier);
            is_busy = true;
        }
        if (now.is_over)
            break;
        tick_lanes(carrier, te_now_ns());
        int64_t until_ns = te_interface_watch_tick(carrier->interfaces, te_now_ns());
        until_ns = now.wake_ns < until_ns ? now.wake_ns : until_ns;
        until_ns = carrier->tick_ns < until_ns ? carrier->tick_ns : until_ns;
        wait_for_events(carrier, is_busy || carrier->done_first != NULL ? 0 : until_ns);
    }
    return NULL;
}
