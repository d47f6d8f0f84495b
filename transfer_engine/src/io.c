/* I/O threads: epoll, mail from other threads, deadlines, ticks; their start and their end.
 *
 * With no deadline to watch and no tick to keep, a thread sleeps in epoll_wait without a timeout.
 * After it has served somebody it spins for a moment first, while that pays (spin.c).
 */
#include "te_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "te_fault.h"

#define EVENTS 64
#define REST_NS 2000 /* a wait of which others on this core had something */
#define CHECK_PERIOD_NS (100 * TE_NS_PER_MS)

static _Thread_local te_io *this_io;

te_io *te_io_at(te_engine *engine, uint32_t index) { return &engine->io[index]; }

te_link *te_io_current_link(void) { return this_io != NULL ? this_io->current : NULL; }

void te_io_enter(te_link *link) { this_io->current = link; }

uint8_t *te_io_staging(te_io *io) { return io->staging; }

void te_io_wake(te_io *io) {
    uint64_t one = 1;
    ssize_t written;
    do {
        written = write(io->wake, &one, sizeof one);
    } while (written < 0 && errno == EINTR); /* EAGAIN: it is awake already */
}

/* ---- what a link waits for ------------------------------------------------------------------- */

void te_io_update(te_link *link) {
    uint32_t events = (te_link_is_paused(link) ? 0u : (uint32_t)EPOLLIN) |
                      (link->wants_out ? (uint32_t)EPOLLOUT : 0u);
    if (!link->is_owned || link->state == TE_LINK_CLOSED || events == link->events) {
        return;
    }
    struct epoll_event event = {.events = events, .data.ptr = link};
    if (epoll_ctl(link->io->epoll, EPOLL_CTL_MOD, link->descriptor, &event) == 0) {
        link->events = events;
    } else {
        te_close_peer(link->engine, link->peer, "epoll refuses it");
    }
}

void te_io_run_later(te_link *link) {
    te_io *io = link->io;
    if (link->is_on_run_list || link->state == TE_LINK_CLOSED) {
        return;
    }
    te_link_hold(link);
    link->is_on_run_list = true;
    link->run_next = NULL;
    if (io->run_last == NULL) {
        io->run_first = link;
    } else {
        io->run_last->run_next = link;
    }
    io->run_last = link;
}

void te_io_watch_deadlines(te_link *link) {
    if (link->io->check_ns == 0) {
        link->io->check_ns = te_now_ns() + CHECK_PERIOD_NS;
    }
}

void te_io_own(te_io *io, te_link *link) {
    if (link->is_owned || link->state == TE_LINK_CLOSED) {
        return;
    }
    te_link_hold(link);
    link->is_owned = true;
    link->io_previous = NULL;
    link->io_next = io->links;
    if (io->links != NULL) {
        io->links->io_previous = link;
    }
    io->links = link;
    link->events = EPOLLIN;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = link};
    if (epoll_ctl(io->epoll, EPOLL_CTL_ADD, link->descriptor, &event) != 0) {
        te_log(io->engine, "%.100s: epoll refuses it: %s", link->name, strerror(errno));
        te_link_close(link, "epoll refuses it");
    } else if (link->frame_deadline_ns != 0) {
        te_io_watch_deadlines(link);
    }
}

void te_io_forget(te_link *link) {
    if (!link->is_owned) {
        return;
    }
    (void)epoll_ctl(link->io->epoll, EPOLL_CTL_DEL, link->descriptor, NULL);
    if (link->io_previous == NULL) {
        link->io->links = link->io_next;
    } else {
        link->io_previous->io_next = link->io_next;
    }
    if (link->io_next != NULL) {
        link->io_next->io_previous = link->io_previous;
    }
}

void te_io_retire(te_link *link) {
    if (link->is_owned) {
        link->is_owned = false;
        link->retired_next = link->io->retired;
        link->io->retired = link;
    }
}

static void release_retired(te_io *io) {
    while (io->retired != NULL) {
        te_link *link = io->retired;
        io->retired = link->retired_next;
        te_link_release(link);
    }
}

/* ---- mail from other threads ----------------------------------------------------------------- */

void te_io_post(te_io *io, te_link *link) {
    te_link_hold(link);
    pthread_mutex_lock(&io->lock);
    bool was_empty = io->mail_first == NULL;
    link->post_next = NULL;
    if (was_empty) {
        io->mail_first = link;
    } else {
        io->mail_last->post_next = link;
    }
    io->mail_last = link;
    atomic_store_explicit(&io->has_mail, true, memory_order_relaxed);
    pthread_mutex_unlock(&io->lock);
    if (was_empty && this_io != io) {
        te_io_wake(io); /* the thread itself looks before it sleeps */
    }
}

static void read_mail(te_io *io) {
    pthread_mutex_lock(&io->lock);
    te_link *link = io->mail_first;
    io->mail_first = io->mail_last = NULL;
    atomic_store_explicit(&io->has_mail, false, memory_order_relaxed);
    pthread_mutex_unlock(&io->lock);
    while (link != NULL) {
        te_link *next = link->post_next; /* before posts is cleared: then it may be posted again */
        pthread_mutex_lock(&link->lock);
        uint32_t posts = link->posts;
        link->posts = 0;
        pthread_mutex_unlock(&link->lock);
        if (posts & TE_POST_ADD) {
            te_io_own(io, link);
            posts |= TE_POST_DRAIN; /* for a frame that somebody sent meanwhile */
        }
        if (posts & TE_POST_CLOSE) {
            te_link_close(link, "closed");
        } else if (posts & TE_POST_DRAIN) {
            te_link_serve(link);
        }
        te_link_release(link);
        link = next;
    }
}

/* ---- the thread ------------------------------------------------------------------------------ */

static void check_deadlines(te_io *io, int64_t now) {
    bool has_any = false;
    for (te_link *link = io->links, *next; link != NULL; link = next) {
        next = link->io_next;
        const char *reason = NULL;
        if (link->out_deadline_ns != 0 && now >= link->out_deadline_ns) {
            reason = "it has not taken its answers in time";
        } else if (link->frame_deadline_ns != 0 && now >= link->frame_deadline_ns) {
            reason = link->state == TE_LINK_HELLO    ? "no HELLO in time"
                     : link->state == TE_LINK_LINGER ? "closed after an error"
                                                     : "a frame was begun and not finished in time";
        }
        if (reason != NULL) {
            if (link->state != TE_LINK_LINGER) {
                te_log(io->engine, "%.100s: %s", link->name, reason);
            }
            te_link_close(link, reason);
        } else {
            has_any = has_any || link->out_deadline_ns != 0 || link->frame_deadline_ns != 0;
        }
    }
    io->check_ns = has_any ? now + CHECK_PERIOD_NS : 0;
}

/* A removed segment must be let go: links with a job on it are closed. */
static void sweep(te_io *io) {
    for (te_link *link = io->links, *next; link != NULL; link = next) {
        next = link->io_next;
        if ((link->write != NULL && te_write_job_uses_removed(link->write)) ||
            te_link_reads_removed(link)) {
            te_link_close(link, "the segment that it used was removed");
        }
    }
}

void te_io_sweep(te_engine *engine) {
    for (uint32_t i = 0; i < engine->config.io_threads; i++) {
        atomic_store(&engine->io[i].must_sweep, true);
        te_io_wake(&engine->io[i]);
    }
}

static void tick(te_io *io, int64_t now) {
    te_engine *engine = io->engine;
    if (io->index != 0 || !atomic_load_explicit(&engine->is_serving, memory_order_acquire) ||
        engine->service.on_tick == NULL || engine->service.tick_ms == 0) {
        return;
    }
    if (io->tick_ns == 0 || now >= io->tick_ns) {
        io->tick_ns = now + (int64_t)engine->service.tick_ms * TE_NS_PER_MS;
        engine->service.on_tick(engine->service.context, now);
    }
}

static int timeout_ms(te_io *io) {
    if (io->run_first != NULL || atomic_load_explicit(&io->has_mail, memory_order_relaxed)) {
        return 0;
    }
    int64_t next = io->check_ns;
    if (io->tick_ns != 0 && (next == 0 || io->tick_ns < next)) {
        next = io->tick_ns;
    }
    if (next == 0) {
        return -1;
    }
    int64_t left = next - te_now_ns();
    return left <= 0 ? 0 : (int)((left + TE_NS_PER_MS - 1) / TE_NS_PER_MS);
}

static void run_list(te_io *io) {
    te_link *link = io->run_first;
    io->run_first = io->run_last =
        NULL; /* one turn each: who has more to do is put on the new list */
    while (link != NULL) {
        te_link *next = link->run_next;
        link->is_on_run_list = false;
        te_link_serve(link);
        te_link_release(link);
        link = next;
    }
}

static void handle_event(te_io *io, const struct epoll_event *event) {
    if (event->data.ptr == NULL) {
        uint64_t count;
        while (read(io->wake, &count, sizeof count) < 0 && errno == EINTR) {
        }
        return;
    }
    if (event->data.u64 & TE_LISTENER_TAG) {
        te_accept(io,
                  (const te_listener *)(uintptr_t)(event->data.u64 & ~(uint64_t)TE_LISTENER_TAG));
        return;
    }
    te_link *link = event->data.ptr;
    if (link->state == TE_LINK_CLOSED) {
        return; /* closed earlier in this round */
    }
    if ((event->events & (EPOLLHUP | EPOLLERR)) && (event->events & EPOLLIN) == 0) {
        te_link_close(link, "closed by the peer");
        return;
    }
    te_link_serve(link);
}

/* What is left of a longer wait follows.  Somebody spins for much less; but a timeout that ends before the next tick of
 * the clock has the processor's timer programmed, before the sleep and once more after it, which takes 4 us each in a
 * virtual machine. */
#define QUIET_MS 10

static int wait_spinning(te_io *io, struct epoll_event *events, int64_t now_ns, bool *is_taken) {
    te_engine *engine = io->engine;
    int count = 0;
    te_spinning spinning = {0};
    if (atomic_fetch_add_explicit(&engine->io_spinning, 1, memory_order_relaxed) <
            engine->spinning_max &&
        te_spin_begin(engine, &io->spin, now_ns, 0, io->work_ns, &spinning)) {
        do {
            count = epoll_wait(io->epoll, events, EVENTS, 0);
        } while (count == 0 && te_spin_goes_on(&spinning));
        te_spin_end(&spinning);
    }
    atomic_fetch_sub_explicit(&engine->io_spinning, 1, memory_order_relaxed);
    *is_taken = spinning.is_taken;
    return count;
}

/* The longest of the last times between two waits. */
static void note_work(te_io *io, int64_t now_ns) {
    int64_t work_ns = now_ns - io->served_ns;
    io->spin.worked_ns = work_ns;
    io->work_ns = work_ns > io->work_ns ? work_ns : io->work_ns - (io->work_ns - work_ns) / 16;
}

static int wait_events(te_io *io, struct epoll_event *events) {
    int timeout = timeout_ms(io);
    if (timeout == 0 || !io->is_busy) { /* there is work; or nobody has been served just now */
        int count = epoll_wait(io->epoll, events, EVENTS, timeout);
        if (timeout != 0) {
            io->served_ns = io->rested_ns = te_now_ns();
        }
        return count;
    }
    int64_t begun_ns = te_now_ns();
    note_work(io, begun_ns);
    bool is_taken = false;
    int count = wait_spinning(io, events, begun_ns, &is_taken);
    if (count == 0 && is_taken && te_spin_quiet_begin()) {
        int quiet = timeout < 0 || timeout > QUIET_MS ? QUIET_MS : timeout;
        count = epoll_wait(io->epoll, events, EVENTS, quiet);
        te_spin_quiet_end(); /* what is done now, and threads that are made, are as ever */
        timeout = timeout < 0 ? timeout : timeout - quiet;
    }
    if (count == 0 && timeout != 0) {
        count = epoll_wait(io->epoll, events, EVENTS, timeout);
    }
    io->served_ns = te_now_ns();
    if (io->served_ns - begun_ns > REST_NS) {
        io->rested_ns = io->served_ns;
    }
    if (count > 0) {
        te_spin_learn(io->engine, &io->spin, io->served_ns - begun_ns);
    }
    return count;
}

static void *run_io(void *argument) {
    te_io *io = argument;
    this_io = io;
    struct epoll_event events[EVENTS];
    while (!atomic_load_explicit(&io->engine->is_stopping, memory_order_acquire)) {
        int count = wait_events(io, events);
        io->is_busy = count > 0;
        for (int i = 0; i < count; i++) {
            handle_event(io, &events[i]);
        }
        if (atomic_load_explicit(&io->has_mail, memory_order_relaxed)) {
            read_mail(io);
        }
        io->is_busy = io->is_busy || io->run_first != NULL; /* the rest of a long copy, too */
        run_list(io);
        if (atomic_exchange_explicit(&io->must_sweep, false, memory_order_acq_rel)) {
            sweep(io);
        }
        if (io->check_ns != 0 || io->index == 0) {
            int64_t now = te_now_ns();
            if (io->check_ns != 0 && now >= io->check_ns) {
                check_deadlines(io, now);
            }
            tick(io, now);
        }
        release_retired(io);
        te_spin_give_way(io->engine, &io->rested_ns);
    }
    read_mail(io);
    while (io->links != NULL) {
        te_link_close(io->links, "this side is closing");
    }
    run_list(io);
    release_retired(io);
    return NULL;
}

/* ---- start and stop -------------------------------------------------------------------------- */

ms_status te_io_open(te_engine *engine) {
    uint32_t count = engine->config.io_threads;
    if (count == 0) {
        return MS_OK;
    }
    engine->io = calloc(count, sizeof *engine->io);
    if (engine->io == NULL) {
        return MS_NO_MEMORY;
    }
    ms_status status = MS_OK;
    for (uint32_t i = 0; i < count; i++) { /* all of them first: te_io_stop looks at every one */
        engine->io[i] =
            (te_io){.engine = engine, .index = i, .epoll = -1, .wake = -1, .reserve = -1};
        pthread_mutex_init(&engine->io[i].lock, NULL);
    }
    for (uint32_t i = 0; i < count && status == MS_OK; i++) {
        te_io *io = &engine->io[i];
        io->staging = malloc(TE_STAGING_BYTES + 4096);
        io->epoll = epoll_create1(EPOLL_CLOEXEC);
        io->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        io->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
        if (io->staging == NULL) {
            status = MS_NO_MEMORY;
        } else if (io->epoll < 0 || io->wake < 0 ||
                   epoll_ctl(io->epoll, EPOLL_CTL_ADD, io->wake, &event) != 0) {
            status = MS_LIMIT;
        } else {
            status = te_thread_start(&io->thread, "te-io", run_io, io);
            io->is_started = status == MS_OK;
        }
    }
    return status;
}

void te_io_stop(te_engine *engine) {
    if (engine->io == NULL) {
        return;
    }
    for (uint32_t i = 0; i < engine->config.io_threads; i++) {
        if (engine->io[i].is_started) {
            te_io_wake(&engine->io[i]);
            pthread_join(engine->io[i].thread, NULL);
        }
    }
    for (uint32_t i = 0; i < engine->config.io_threads; i++) {
        te_io *io = &engine->io[i];
        /* Threads that stopped later may have posted to one that had stopped: such links are
         * closed here. */
        while (io->mail_first != NULL) {
            te_link *link = io->mail_first;
            io->mail_first = link->post_next;
            te_link_close(link, "this side is closing");
            te_link_release(link);
        }
        release_retired(io);
        te_listeners_close(io);
        const int descriptors[] = {io->epoll, io->wake, io->reserve};
        for (size_t j = 0; j < 3; j++) {
            if (descriptors[j] >= 0) {
                close(descriptors[j]);
            }
        }
        pthread_mutex_destroy(&io->lock);
        free(io->staging);
    }
    free(engine->io);
    engine->io = NULL;
}
