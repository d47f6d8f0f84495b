/* Lanes over RDMA: an endpoint of one queue pair each, to which the carrier's thread posts and whose completions it takes.
 *
 * What waits for the peer or the device is done by a worker, one thing a lane at a time: opening the endpoint, asking where a
 * segment is registered, and ending a queue pair.  Meanwhile the endpoint's connection is the worker's, queue pair and
 * completions stay the carrier's; an end takes all of it.
 *
 * Requests of a queue pair complete in order, so a slice is done when its last one is.  Behind a WRITE's bytes 8 are READ,
 * so that what was written is in memory (protocol 4.5).  A READ that fails is over when our queue pair is destroyed;
 * a WRITE when the peer says that its own is.
 *
 * What cannot go by RDMA (memory that is not registered with a NIC at either end, items of the store's with pages or
 * generation words, which rdma_exchange.c moves) is handed to a lane of another transport.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "te_carrier.h"
#include "te_rdma.h"

#include "te_fault.h"

#define OPEN_NS (5 * TE_NS_PER_S)
#define ASK_NS (500 * TE_NS_PER_MS)
#define LOOK_NS (20 * TE_NS_PER_MS) /* so often is looked whether the port is up */
/* The device gives up by its own clock, which may be coarse (a tick of 10 ms, or four times what it was told); where other
 * rails are heard of, this is enough to know. */
#define SILENT_NS (60 * TE_NS_PER_MS)
#define UNWANTED_NS (20 * TE_NS_PER_MS) /* what nobody waits for may still come by itself */
#define NEVER_NS (60 * TE_NS_PER_S)     /* a peer without RDMA is asked again so seldom */
#define SIGNAL_EVERY 16u

typedef enum phase { CLOSED, OPENING, OPEN, ENDING } phase;
typedef enum task { NOTHING, TO_OPEN, TO_ASK, TO_END } task;

typedef struct flight {
    te_work *work; /* NULL: a sign of life */
    bool is_last;  /* of the work */
} flight;

typedef struct lane_rdma {
    te_watched completions,
        peer;      /* the channel of completions; the connection, readable when it has ended */
    te_lane *lane; /* NULL: closed; the carrier's */
    te_engine *engine;
    te_channel *channel;
    te_opcode opcode;
    char device[64];
    uint32_t first_port;         /* of the peer's, tried first */
    _Atomic uint32_t references; /* the lane's and the worker's */
    phase phase;
    task task; /* the worker's; NOTHING: none is at work */
    bool wants_end, is_refused, has_asked;
    char why[160];
    te_rdma_endpoint *endpoint;
    te_rdma_rail *rail;
    uint32_t first, count; /* of the flights, a ring */
    flight flights[TE_RDMA_DEPTH];
    te_work *waiting, *waiting_last; /* the first of them may be posted in part: */
    uint32_t piece;
    uint64_t done;
    bool is_begun;
    te_work *broken; /* of a queue pair that is being ended */
    int64_t busy_ns; /* since when something is under way */
    /* What the worker was asked for, and says. */
    uint32_t segment;
    uint64_t segment_offset;
    ms_status status;
    bool is_confirmed;
} lane_rdma;

static void pump(lane_rdma *self);
static void finished(void *argument);

/* ---- the worker ------------------------------------------------------------------------------------------------- */

static void let_go(lane_rdma *self) {
    if (atomic_fetch_sub(&self->references, 1) != 1)
        return;
    if (self->endpoint != NULL)
        te_rdma_endpoint_close(self->endpoint);
    te_channel_close(self->channel);
    free(self);
}

/* The NIC of that name; one that was removed and came back is another one. */
static te_rdma_nic *find_nic(te_rdma *rdma, const char *device) {
    for (uint32_t i = atomic_load(&rdma->nic_count); i-- > 0;)
        if (!atomic_load(&rdma->nics[i]->is_gone) && strcmp(rdma->nics[i]->name, device) == 0)
            return rdma->nics[i];
    return NULL;
}

static void open_now(lane_rdma *self) {
    te_rdma *rdma = self->engine->rdma;
    te_rdma_nic *nic = find_nic(rdma, self->device);
    te_connection *connection = NULL;
    int64_t deadline_ns = te_now_ns() + OPEN_NS;
    self->status = nic == NULL || !atomic_load(&nic->is_up) ? MS_UNAVAILABLE : MS_OK;
    if (self->status != MS_OK) {
        snprintf(self->why, sizeof self->why, "%s is not there, or its port is down", self->device);
        return;
    }
    te_scope *outer = te_scope_enter(NULL);
    self->status = te_checkout(self->channel, deadline_ns, &connection);
    if (self->status == MS_OK)
        self->status = te_rdma_endpoint_open(rdma, connection, self->opcode == TE_WRITE, nic,
                                             self->first_port, deadline_ns, &self->endpoint);
    te_scope_enter(outer);
    if (self->status != MS_OK)
        snprintf(self->why, sizeof self->why, "no queue pair: %s", ms_status_name(self->status));
}

static void end_now(lane_rdma *self) {
    te_rdma_slice none[1];
    (void)te_rdma_rail_break(self->endpoint, self->rail,
                             none); /* the ring is ours: it returns none */
    self->is_confirmed = self->opcode == TE_READ || self->broken == NULL ||
                         te_rdma_rail_confirm(self->endpoint, self->rail, te_now_ns());
    te_rdma_endpoint_close(self->endpoint);
    self->endpoint = NULL;
}

static void work_now(void *argument) {
    lane_rdma *self = argument;
    te_rdma_chunk chunk;
    switch (self->task) {
    case TO_OPEN:
        open_now(self);
        break;
    case TO_ASK:
        (void)te_rdma_remote_key(self->endpoint, self->segment, false, self->rail->remote_nic,
                                 self->segment_offset, &chunk, te_now_ns() + ASK_NS);
        break;
    default:
        end_now(self);
        break;
    }
    if (te_carrier_run(self->engine->carrier, finished, self) != MS_OK)
        let_go(self); /* the carrier has ended, and so has the lane */
}

static void begin(lane_rdma *self, task wanted) {
    self->task = wanted;
    atomic_fetch_add(&self->references, 1);
    if (te_spawn(self->engine, work_now, self) != MS_OK)
        work_now(self); /* no worker: then everything waits for it, but it is done */
}

/* ---- opening and ending ------------------------------------------------------------------------------------------ */

static void watch(lane_rdma *self, te_watched *watched, bool is_wanted) {
    te_carrier *carrier = self->lane->carrier;
    if (!is_wanted)
        te_carrier_forget(carrier, watched);
    else if (te_carrier_watch(carrier, watched) != MS_OK)
        self->wants_end = true;
}

static void give_back(te_work *works, te_work_outcome outcome) {
    for (te_work *next; works != NULL; works = next) {
        next = works->next;
        te_lane_done(works, outcome);
    }
}

static te_work *take_waiting(lane_rdma *self) {
    te_work *works = self->waiting;
    self->waiting = self->waiting_last = NULL;
    self->is_begun = self->has_asked = false;
    return works;
}

static void begin_end(lane_rdma *self) {
    self->wants_end = false;
    self->phase = ENDING;
    watch(self, &self->completions, false);
    watch(self, &self->peer, false);
    /* Works on their way wait for the end; of those that were not begun nothing can come any more. */
    te_work *last = NULL;
    for (uint32_t i = 0; i < self->count; i++) {
        te_work *work = self->flights[(self->first + i) % TE_RDMA_DEPTH].work;
        if (work == NULL || work == last)
            continue;
        if (self->is_begun && work == self->waiting)
            self->waiting = work->next;
        work->next = self->broken;
        self->broken = last = work;
    }
    self->count = 0;
    /* At once: what the peer has still to confirm holds up its own slices only. */
    te_lane_down(self->lane, self->is_refused, MS_OK, "%s", self->why);
    give_back(take_waiting(self), TE_WORK_FAILED);
    begin(self, TO_END);
}

/* The queue pair is not used any more. */
static void leave(lane_rdma *self, bool is_refused, const char *why) {
    if (self->phase != OPEN || self->wants_end)
        return;
    snprintf(self->why, sizeof self->why, "%s", why);
    self->is_refused = is_refused;
    self->wants_end = true;
    if (self->task == NOTHING)
        begin_end(self);
}

static void opened(lane_rdma *self) {
    te_lane *lane = self->lane;
    if (self->status != MS_OK) {
        /* A method that it does not know, or no NIC: while it runs, that stays so. */
        bool is_never = self->status == MS_BAD_REQUEST || self->status == MS_REFUSED ||
                        self->status == MS_NOT_REGISTERED;
        self->phase = CLOSED;
        te_lane_endpoint_give(lane);
        te_lane_down(lane, true, MS_OK, "%s", self->why);
        if (is_never)
            lane->retry_ns = te_now_ns() + NEVER_NS;
        give_back(take_waiting(self), TE_WORK_FAILED);
        return;
    }
    self->rail = self->endpoint->rails[0];
    self->phase = OPEN;
    self->completions.descriptor = self->rail->cq->channel->fd;
    self->peer.descriptor = self->endpoint->connection->descriptor;
    watch(self, &self->completions, true);
    watch(self, &self->peer, true);
    te_rdma_cq_arm(self->rail->cq);
    if (!lane->is_up) /* it was evicted, else */
        te_lane_up(lane);
    lane->is_connecting = false;
    if (self->wants_end)
        begin_end(self);
    else
        pump(self);
}

static void ended(lane_rdma *self) {
    te_work *broken = self->broken;
    self->broken = NULL;
    self->rail = NULL;
    self->phase = CLOSED;
    give_back(broken, self->is_confirmed ? TE_WORK_FAILED : TE_WORK_LOST);
    give_back(take_waiting(self), TE_WORK_FAILED);
    te_lane_endpoint_give(self->lane);
}

static void asked(lane_rdma *self) {
    self->has_asked = true;
    watch(self, &self->peer, true);
    if (self->endpoint->is_broken)
        leave(self, true, "the peer has closed the connection");
    else if (self->wants_end)
        begin_end(self);
    else
        pump(self);
}

/* On the carrier's thread: the worker has done it. */
static void finished(void *argument) {
    lane_rdma *self = argument;
    task done = self->task;
    self->task = NOTHING;
    if (self->lane != NULL) {
        if (done == TO_OPEN)
            opened(self);
        else if (done == TO_END)
            ended(self);
        else
            asked(self);
    }
    let_go(self);
}

/* ---- posting ------------------------------------------------------------------------------------------------------- */

typedef enum place { HERE, ELSEWHERE, UNKNOWN } place;

/* Where `piece` is from `done` on, at both ends, and how far that goes. */
static place locate(lane_rdma *self, const te_work_piece *piece, uint64_t done,
                    verbs_send_wr *request, verbs_sge *part) {
    te_rdma_chunk chunk;
    te_region *region = NULL;
    te_rdma_key key = {0};
    uint64_t left = piece->length - done, offset = piece->offset + done;
    const uint8_t *local = piece->local + done;
    te_rdma_known known = te_rdma_look_up(self->endpoint, piece->segment, false,
                                          self->rail->remote_nic, offset, &chunk);
    if (known != TE_RDMA_KNOWN) {
        self->segment = piece->segment;
        self->segment_offset = offset;
        return known == TE_RDMA_UNKNOWN && !self->has_asked ? UNKNOWN : ELSEWHERE;
    }
    if (te_region_hold(self->engine->registry, (uint64_t)(uintptr_t)local, left,
                       self->opcode == TE_READ, &region) != MS_OK)
        return ELSEWHERE;
    te_rdma_range *range = te_region_rdma(region);
    bool is_registered = range != NULL && te_rdma_range_key(range, self->rail->qp.nic,
                                                            (uint64_t)(uintptr_t)local, &key);
    te_region_release(region); /* whoever moves it holds it until the request ends */
    if (!is_registered)
        return ELSEWHERE;
    uint64_t run = chunk.length - (offset - chunk.offset);
    left = run < left ? run : left;
    left = key.run < left ? key.run : left;
    *part = (verbs_sge){
        .addr = (uint64_t)(uintptr_t)local, .length = (uint32_t)left, .lkey = key.local};
    *request = (verbs_send_wr){
        .num_sge = 1,
        .opcode = self->opcode == TE_WRITE ? VERBS_WR_RDMA_WRITE : VERBS_WR_RDMA_READ,
        .rdma = {.remote_addr = chunk.address + (offset - chunk.offset), .rkey = chunk.key}};
    return HERE;
}

/* All of it or nothing: what another transport may refuse has touched nothing. */
static place locate_all(lane_rdma *self, const te_work *work) {
    verbs_send_wr request;
    verbs_sge part;
    for (uint32_t i = 0; i < work->count; i++) {
        const te_work_piece *piece = &work->pieces[i];
        bool is_stores = self->opcode == TE_READ ? (piece->item->wire.read.flags & 1) != 0
                                                 : piece->item->wire.write.version != 0 ||
                                                       piece->item->wire.write.source != 0;
        if (is_stores)
            return ELSEWHERE;
        for (uint64_t done = 0; done < piece->length; done += part.length) {
            place found = locate(self, piece, done, &request, &part);
            if (found != HERE)
                return found;
        }
    }
    return HERE;
}

static bool has_room(const lane_rdma *self) {
    return self->count < TE_RDMA_DEPTH - 1 && self->count + 1 < self->rail->qp.depth;
}

static void chain(lane_rdma *self, te_work *work, verbs_send_wr request, verbs_sge part,
                  bool is_last) {
    te_rdma_rail *rail = self->rail;
    if (self->count == 0)
        self->busy_ns = te_now_ns();
    uint32_t at = (self->first + self->count++) % TE_RDMA_DEPTH;
    self->flights[at] = (flight){.work = work, .is_last = is_last};
    rail->parts[rail->chained] = part;
    request.wr_id = at;
    request.sg_list = &rail->parts[rail->chained];
    if (is_last || rail->chained % SIGNAL_EVERY == SIGNAL_EVERY - 1)
        request.send_flags |= VERBS_SEND_SIGNALED;
    rail->requests[rail->chained++] = request;
}

/* Behind the WRITEs of a work, on the same queue pair. */
static void chain_push(lane_rdma *self, te_work *work, uint64_t address, uint32_t key) {
    verbs_send_wr request = {
        .num_sge = 1, .opcode = VERBS_WR_RDMA_READ, .rdma = {.remote_addr = address, .rkey = key}};
    verbs_sge part = {.addr = (uint64_t)(uintptr_t)self->endpoint->scratch,
                      .length = 1,
                      .lkey = self->rail->scratch->lkey};
    chain(self, work, request, part, true);
}

/* As much of the first work as there is room for.  True: all of it is chained. */
static bool chain_some(lane_rdma *self, te_work *work) {
    verbs_send_wr request = {0};
    verbs_sge part = {0};
    while (has_room(self)) {
        while (self->piece < work->count && self->done == work->pieces[self->piece].length) {
            self->piece++;
            self->done = 0;
        }
        if (self->piece ==
            work->count) { /* WRITEs, and there was no room for what is behind them */
            const te_work_piece *last = &work->pieces[work->count - 1];
            (void)locate(self, last, last->length - 1, &request, &part);
            chain_push(self, work, request.rdma.remote_addr, request.rdma.rkey);
            return true;
        }
        const te_work_piece *piece = &work->pieces[self->piece];
        if (locate(self, piece, self->done, &request, &part) != HERE)
            return false; /* it was there just now: registrations do not end while requests run */
        self->done += part.length;
        bool is_end = self->piece + 1 == work->count && self->done == piece->length;
        chain(self, work, request, part, is_end && self->opcode == TE_READ);
        work->is_sent = true;
        if (is_end && self->opcode == TE_READ)
            return true;
    }
    return false;
}

static void pop_waiting(lane_rdma *self) {
    self->waiting = self->waiting->next;
    if (self->waiting == NULL)
        self->waiting_last = NULL;
    self->is_begun = self->has_asked = false;
}

static void hand_over(te_work *work) {
    te_lane *lane = work->lane;
    for (uint32_t i = 0; i < lane->path->rail_count; i++) {
        te_lane *other = &lane->path->lanes[lane->opcode][i];
        if (other->ops != lane->ops && other->is_up && !other->is_gone) {
            te_work_move(work, other);
            return;
        }
    }
    te_lane_done(work, TE_WORK_FAILED);
}

static void pump(lane_rdma *self) {
    verbs_send_wr *bad = NULL;
    te_rdma_rail *rail = self->rail;
    if (self->phase != OPEN || self->task != NOTHING || self->wants_end)
        return;
    while (self->waiting != NULL && has_room(self)) {
        te_work *work = self->waiting;
        if (!self->is_begun) {
            place found = locate_all(self, work);
            if (found == UNKNOWN) {
                watch(self, &self->peer, false); /* the answer makes it readable, too */
                begin(self, TO_ASK);
                break;
            }
            if (found == ELSEWHERE) {
                pop_waiting(self);
                hand_over(work);
                continue;
            }
            self->is_begun = true;
            self->piece = 0;
            self->done = 0;
        }
        if (!chain_some(self, work))
            break;
        pop_waiting(self);
    }
    if (rail->chained == 0)
        return;
    for (uint32_t i = 0; i + 1 < rail->chained; i++)
        rail->requests[i].next = &rail->requests[i + 1];
    rail->requests[rail->chained - 1].next = NULL;
    rail->requests[rail->chained - 1].send_flags |= VERBS_SEND_SIGNALED;
    rail->chained = 0;
    if (verbs_post(rail->qp.qp, rail->requests, &bad) != 0)
        leave(self, false, "the device takes no requests");
}

/* ---- completions ---------------------------------------------------------------------------------------------------- */

/* Requests are numbered by their places in the ring; all before the one that is told have completed too. */
static void completed(lane_rdma *self, const verbs_wc *done) {
    uint32_t ahead = ((uint32_t)done->wr_id + TE_RDMA_DEPTH - self->first) % TE_RDMA_DEPTH;
    bool is_ok = done->status == VERBS_WC_SUCCESS;
    for (uint32_t i = 0; i < ahead + is_ok && self->count > 0; i++) {
        flight *each = &self->flights[self->first];
        self->first = (self->first + 1) % TE_RDMA_DEPTH;
        self->count--;
        if (each->work == NULL || !each->is_last)
            continue;
        te_rdma *rdma = self->engine->rdma;
        atomic_fetch_add_explicit(self->opcode == TE_READ ? &rdma->counters.read_bytes
                                                          : &rdma->counters.write_bytes,
                                  each->work->bytes, memory_order_relaxed);
        atomic_fetch_add_explicit(&rdma->counters.slices, 1, memory_order_relaxed);
        for (uint32_t j = 0; j < each->work->count; j++)
            each->work->pieces[j].status = MS_OK;
        te_lane_done(each->work, TE_WORK_DONE);
    }
    if (is_ok)
        return;
    char why[160];
    snprintf(why, sizeof why, "a request has failed: %s",
             self->engine->rdma->verbs->wc_status_str(done->status));
    leave(self, false, why);
}

static void completions_ready(te_watched *watched, uint32_t events) {
    lane_rdma *self = (lane_rdma *)watched;
    te_rdma_cq *cq = self->rail->cq;
    verbs_wc done[16];
    bool is_armed = false;
    int count;
    (void)events;
    te_rdma_cq_take_events(cq);
    te_lane_progress(self->lane, te_now_ns());
    while (self->phase == OPEN && !self->wants_end) {
        count = te_rdma_cq_poll(cq, done, 16);
        for (int i = 0; i < count && self->phase == OPEN && !self->wants_end; i++)
            completed(self, &done[i]);
        if (count > 0)
            continue;
        if (is_armed)
            break;
        te_rdma_cq_arm(cq); /* what has come before that raises no event: once more */
        is_armed = true;
    }
    pump(self);
}

static void peer_ready(te_watched *watched, uint32_t events) {
    lane_rdma *self = (lane_rdma *)((char *)watched - offsetof(lane_rdma, peer));
    (void)events; /* nothing is asked now, so it has ended */
    leave(self, true, "the peer has closed the connection");
}

/* ---- what the carrier calls ------------------------------------------------------------------------------------------ */

static ms_status rdma_open(te_lane *lane) {
    lane_rdma *self = calloc(1, sizeof *self);
    if (self == NULL)
        return MS_NO_MEMORY;
    te_path *path = lane->path;
    te_channel_config config = {.addresses = lane->ends.remote,
                                .hello = path->hello,
                                .hello_length = path->hello_length,
                                .connections_max = 2,
                                .connect_timeout_ms = 1000};
    ms_status status = te_channel_open(path->engine, &config, &self->channel);
    if (status != MS_OK) {
        free(self);
        return status;
    }
    self->lane = lane;
    self->engine = path->engine;
    self->opcode = lane->opcode;
    self->first_port = lane->ends.remote_nic;
    self->completions =
        (te_watched){.ready = completions_ready, .descriptor = -1, .events = EPOLLIN};
    self->peer =
        (te_watched){.ready = peer_ready, .descriptor = -1, .events = EPOLLIN | EPOLLRDHUP};
    snprintf(self->device, sizeof self->device, "%.63s", lane->ends.local);
    atomic_store(&self->references, 1);
    lane->state = self;
    return MS_OK;
}

static void rdma_dial(te_lane *lane) {
    lane_rdma *self = lane->state;
    if (self->phase != CLOSED) {
        te_lane_down(lane, false, MS_OK, "%s", self->why); /* the last one is still being ended */
        return;
    }
    if (!te_lane_endpoint_take(lane)) {
        te_lane_down(lane, false, MS_OK, "all endpoints of this process's rails are busy");
        return;
    }
    self->phase = OPENING;
    self->wants_end = self->is_refused = false;
    self->why[0] = '\0';
    begin(self, TO_OPEN);
}

static void rdma_post(te_lane *lane, te_work *work) {
    lane_rdma *self = lane->state;
    work->next = NULL;
    if (self->waiting_last == NULL)
        self->waiting = work;
    else
        self->waiting_last->next = work;
    self->waiting_last = work;
    if (self->phase == CLOSED && lane->is_up) /* it was evicted */
        rdma_dial(lane);
    else if (self->phase == CLOSED || self->phase == ENDING)
        give_back(take_waiting(self), TE_WORK_FAILED);
    else
        pump(self);
}

static void rdma_reset(te_lane *lane, const char *why) {
    lane_rdma *self = lane->state;
    if (self->phase == OPENING)
        self->wants_end = true;
    leave(self, false, why);
}

static bool is_over(te_work *work, int64_t now_ns) {
    if (te_work_is_wanted(work, now_ns))
        return false;
    if (work->unwanted_ns == 0)
        work->unwanted_ns = now_ns;
    return now_ns - work->unwanted_ns >= UNWANTED_NS;
}

static bool has_unwanted(lane_rdma *self, int64_t now_ns) {
    for (uint32_t i = 0; i < self->count; i++) {
        te_work *work = self->flights[(self->first + i) % TE_RDMA_DEPTH].work;
        if (work != NULL && is_over(work, now_ns))
            return true;
    }
    return self->is_begun && is_over(self->waiting, now_ns);
}

/* Works of which nothing was posted yet, and that nobody waits for. */
static void drop_unwanted(lane_rdma *self, int64_t now_ns) {
    te_work **at = self->is_begun ? &self->waiting->next : &self->waiting;
    te_work *last = self->is_begun ? self->waiting : NULL;
    while (*at != NULL) {
        te_work *work = *at;
        if (te_work_is_wanted(work, now_ns)) {
            last = work;
            at = &work->next;
            continue;
        }
        *at = work->next;
        te_lane_done(work, TE_WORK_FAILED);
    }
    self->waiting_last = last;
}

static bool is_silent(const lane_rdma *self, int64_t now_ns) {
    int64_t since_ns = self->busy_ns;
    if (self->lane->progress_ns > since_ns)
        since_ns = self->lane->progress_ns;
    return self->count > 0 && te_lane_is_at_fault(self->lane, since_ns, SILENT_NS, false, now_ns);
}

static int64_t rdma_tick(te_lane *lane, int64_t now_ns) {
    lane_rdma *self = lane->state;
    drop_unwanted(self, now_ns);
    if (self->phase == OPEN && !self->wants_end) {
        if (!atomic_load(&self->rail->qp.nic->is_up))
            leave(self, false, "its port is down");
        else if (is_silent(self, now_ns))
            leave(self, false, "nothing comes over it, while others are heard of");
        else if (has_unwanted(self, now_ns))
            leave(self, false, "a request on it has ended");
    }
    return self->count > 0 || self->waiting != NULL ? now_ns + LOOK_NS : INT64_MAX;
}

/* An empty READ, there and back. */
static void rdma_ping(te_lane *lane) {
    lane_rdma *self = lane->state;
    verbs_send_wr *bad = NULL;
    if (self->phase != OPEN || self->wants_end || self->count > 0)
        return;
    self->busy_ns = te_now_ns();
    uint32_t at = (self->first + self->count++) % TE_RDMA_DEPTH;
    self->flights[at] = (flight){.work = NULL, .is_last = true};
    verbs_send_wr request = {
        .wr_id = at, .opcode = VERBS_WR_RDMA_READ, .send_flags = VERBS_SEND_SIGNALED};
    if (verbs_post(self->rail->qp.qp, &request, &bad) != 0)
        leave(self, false, "the device takes no requests");
}

static void close_endpoint(lane_rdma *self) {
    if (self->endpoint == NULL || self->task != NOTHING)
        return; /* a worker has it: whoever lets go last closes it */
    te_rdma_endpoint_close(self->endpoint);
    self->endpoint = NULL;
    self->rail = NULL;
    self->count = 0;
    self->phase = CLOSED;
}

static void rdma_evict(te_lane *lane) {
    lane_rdma *self = lane->state;
    if (self->phase != OPEN || self->task != NOTHING || self->wants_end)
        return; /* its endpoint is taken back when that has ended */
    watch(self, &self->completions, false);
    watch(self, &self->peer, false);
    close_endpoint(self);
    te_lane_endpoint_give(lane);
}

static void rdma_close(te_lane *lane) {
    lane_rdma *self = lane->state;
    if (self->phase == OPEN) {
        watch(self, &self->completions, false);
        watch(self, &self->peer, false);
        close_endpoint(self);
    }
    self->lane = NULL;
    lane->state = NULL;
    let_go(self);
}

uint32_t te_lane_rdma_ends(te_engine *engine, const char *address, te_rail_ends *ends,
                           uint32_t room) {
    te_rdma *rdma = engine->rdma;
    uint32_t count = 0;
    for (uint32_t i = 0; rdma != NULL && i < atomic_load(&rdma->nic_count) && count < room; i++) {
        const te_rdma_nic *nic = rdma->nics[i];
        if (atomic_load(&nic->is_gone))
            continue;
        /* Along a diagonal, so that each NIC of the peer's is used about equally. */
        ends[count] = (te_rail_ends){.local_nic = UINT32_MAX, .remote_nic = count};
        snprintf(ends[count].local, sizeof ends->local, "%s", nic->name);
        snprintf(ends[count].remote, sizeof ends->remote, "%.*s", TE_RAIL_ADDRESS_BYTES - 1,
                 address);
        count++;
    }
    return count;
}

const te_lane_ops te_lane_rdma = {
    .transport = "rdma",
    .rank = 0,
    .open = rdma_open,
    .dial = rdma_dial,
    .post = rdma_post,
    .reset = rdma_reset,
    .tick = rdma_tick,
    .ping = rdma_ping,
    .evict = rdma_evict,
    .close = rdma_close,
};
