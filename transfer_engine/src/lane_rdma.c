/* Lanes over RDMA: their life, and what the carrier calls.  See te_lane_rdma.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "te_lane_rdma.h"

#include "te_fault.h"

#define OPEN_NS (5 * TE_NS_PER_S)
#define ASK_NS (500 * TE_NS_PER_MS)
#define LOOK_NS (20 * TE_NS_PER_MS)     /* so often is looked whether the port is up */
#define UNWANTED_NS (20 * TE_NS_PER_MS) /* what nobody waits for may still come by itself */
#define NEVER_NS (60 * TE_NS_PER_S)     /* a peer without RDMA is asked again so seldom */

static void finished(void *argument);

/* ---- the worker ------------------------------------------------------------------------------------------------- */

static void let_go(lane_rdma *self) {
    if (atomic_fetch_sub(&self->references, 1) != 1)
        return;
    if (self->endpoint != NULL)
        te_rdma_endpoint_close(self->endpoint);
    te_lane_rdma_forget_flights(self);
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

te_rdma_nic *te_lane_rdma_nic(const lane_rdma *self) {
    return self->phase == OPEN ? self->rail->qp.nic : find_nic(self->engine->rdma, self->device);
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
        (void)te_rdma_remote_key(self->endpoint, self->segment, self->is_of_words,
                                 self->rail->remote_nic, self->segment_offset, &chunk,
                                 te_now_ns() + ASK_NS);
        break;
    default:
        end_now(self);
        break;
    }
    if (te_carrier_run(self->engine->carrier, finished, self) != MS_OK)
        let_go(self); /* the carrier has ended, and so has the lane */
}

static void begin(lane_rdma *self, lane_rdma_task wanted) {
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
        te_work **of = &self->flights[(self->first + i) % TE_RDMA_DEPTH].work, *work = *of;
        *of = NULL; /* its slot is free when the queue pair is gone */
        if (work == NULL || work == last)
            continue;
        if (self->is_begun && work == self->waiting)
            self->waiting = work->next;
        work->next = self->broken;
        self->broken = last = work;
    }
    /* At once: what the peer has still to confirm holds up its own slices only. */
    te_lane_down(self->lane, self->is_refused, MS_OK, "%s", self->why);
    give_back(take_waiting(self), TE_WORK_FAILED);
    begin(self, TO_END);
}

void te_lane_rdma_leave(lane_rdma *self, bool is_refused, const char *why) {
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
        te_lane_rdma_pump(self);
}

/* What the peer has refused would be refused over any NIC: TCP finds the words for it. */
static void end_broken(lane_rdma *self) {
    te_work *broken = self->broken, *refused = self->refused;
    self->broken = self->refused = NULL;
    for (te_work *next; broken != NULL; broken = next) {
        next = broken->next;
        if (broken == refused && self->is_confirmed)
            te_lane_rdma_hand_over(broken);
        else
            te_lane_done(broken, self->is_confirmed ? TE_WORK_FAILED : TE_WORK_LOST);
    }
}

static void ended(lane_rdma *self) {
    te_lane_rdma_forget_flights(self);
    self->rail = NULL;
    self->phase = CLOSED;
    end_broken(self);
    give_back(take_waiting(self), TE_WORK_FAILED);
    te_lane_endpoint_give(self->lane);
}

void te_lane_rdma_ask(lane_rdma *self) {
    watch(self, &self->peer, false); /* the answer makes it readable, too */
    begin(self, TO_ASK);
}

static void asked(lane_rdma *self) {
    self->has_asked = true;
    watch(self, &self->peer, true);
    if (self->endpoint->is_broken)
        te_lane_rdma_leave(self, true, "the peer has closed the connection");
    else if (self->wants_end)
        begin_end(self);
    else
        te_lane_rdma_pump(self);
}

/* On the carrier's thread: the worker has done it. */
static void finished(void *argument) {
    lane_rdma *self = argument;
    lane_rdma_task done = self->task;
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

/* ---- what is watched ------------------------------------------------------------------------------------------------- */

static void completions_ready(te_watched *watched, uint32_t events) {
    lane_rdma *self = (lane_rdma *)watched;
    (void)events;
    te_lane_rdma_take(self);
    te_lane_rdma_pump(self);
}

static void peer_ready(te_watched *watched, uint32_t events) {
    lane_rdma *self = (lane_rdma *)((char *)watched - offsetof(lane_rdma, peer));
    (void)events; /* nothing is asked now, so it has ended */
    te_lane_rdma_leave(self, true, "the peer has closed the connection");
}

/* ---- what the carrier calls ------------------------------------------------------------------------------------------ */

static ms_status rdma_open(te_lane *lane) {
    lane_rdma *self = calloc(1, sizeof *self);
    if (self == NULL)
        return MS_NO_MEMORY;
    te_path *path = lane->path;
    te_channel_config config = {.addresses =
                                    path->addresses != NULL ? path->addresses : lane->ends.remote,
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
        te_lane_rdma_pump(self);
}

static void rdma_reset(te_lane *lane, const char *why) {
    lane_rdma *self = lane->state;
    if (self->phase == OPENING)
        self->wants_end = true;
    te_lane_rdma_leave(self, false, why);
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
    int64_t limit_ns = self->engine->rdma->settings.silent_ms * TE_NS_PER_MS;
    return self->count > 0 && te_lane_is_at_fault(self->lane, since_ns, limit_ns, false, now_ns);
}

static int64_t rdma_tick(te_lane *lane, int64_t now_ns) {
    lane_rdma *self = lane->state;
    drop_unwanted(self, now_ns);
    if (self->phase == OPEN && !self->wants_end) {
        if (!atomic_load(&self->rail->qp.nic->is_up))
            te_lane_rdma_leave(self, false, "its port is down");
        else if (is_silent(self, now_ns))
            te_lane_rdma_leave(self, false, "nothing comes over it, while others are heard of");
        else if (has_unwanted(self, now_ns))
            te_lane_rdma_leave(self, false, "a request on it has ended");
    }
    if (self->is_starved)
        te_lane_rdma_pump(self);
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
    self->flights[at] = (lane_rdma_flight){.is_last = true};
    verbs_send_wr request = {
        .wr_id = at, .opcode = VERBS_WR_RDMA_READ, .send_flags = VERBS_SEND_SIGNALED};
    if (verbs_post(self->rail->qp.qp, &request, &bad) != 0)
        te_lane_rdma_leave(self, false, "the device takes no requests");
}

static void close_endpoint(lane_rdma *self) {
    if (self->endpoint == NULL || self->task != NOTHING)
        return; /* a worker has it: whoever lets go last closes it */
    te_rdma_endpoint_close(self->endpoint);
    te_lane_rdma_forget_flights(self);
    self->endpoint = NULL;
    self->rail = NULL;
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

uint32_t te_lane_rdma_beside(te_engine *engine, te_rail_ends ends[TE_RAILS_MAX],
                             const te_lane_ops *ops[TE_RAILS_MAX], uint32_t count) {
    te_rdma *rdma = engine->rdma;
    te_rail_ends nics[TE_RAILS_MAX / 2];
    uint32_t nic_count = 0;
    for (uint32_t i = 0; rdma != NULL && i < atomic_load(&rdma->nic_count); i++) {
        const te_rdma_nic *nic = rdma->nics[i];
        if (atomic_load(&nic->is_gone) || nic_count == TE_RAILS_MAX / 2)
            continue;
        /* Along a diagonal, so that each NIC of the peer's is used about equally. */
        te_rail_ends *made = &nics[nic_count];
        *made = (te_rail_ends){.local_nic = UINT32_MAX, .remote_nic = nic_count++};
        snprintf(made->local, sizeof made->local, "%s", nic->name);
        memcpy(made->remote, ends[0].remote, sizeof made->remote);
    }
    count = count < TE_RAILS_MAX - nic_count ? count : TE_RAILS_MAX - nic_count;
    for (uint32_t i = 0; i < count; i++)
        ops[i] = &te_lane_tcp;
    for (uint32_t i = 0; i < nic_count; i++) {
        ends[count + i] = nics[i];
        ops[count + i] = &te_lane_rdma;
    }
    return count + nic_count;
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
