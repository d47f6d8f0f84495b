/* Slices over RDMA: each is a run of requests of the lane's queue pair, which complete in order.
 *
 * A slice is done when its last request is.  Behind the bytes of a READ come the generation words of the objects that it is of, the first
 * of them with a fence, for which the NIC waits until every READ before it has been answered: so each word was read after its
 * bytes (protocol 4.2).  Behind those of a WRITE 8 bytes are READ, so that what was written is in memory (4.5).
 *
 * Memory that no NIC knows is reached through slots of the bounce memory, at the price of a copy.  What this lane's NICs have not
 * registered at either end (a device's memory has no other way) goes to a lane whose NICs have; what none has, or the peer wants
 * to be asked for, is handed to a lane of another transport.
 */
#include <stdio.h>
#include <string.h>

#include "te_lane_rdma.h"

#include "te_fault.h"

#define SIGNAL_EVERY 16u
#define STARVED_NS TE_NS_PER_MS /* so often is looked for a free slot */

/* ---- where things are ---------------------------------------------------------------------------------------------- */

typedef enum place {
    HERE,
    ELSEWHERE, /* not by these NICs */
    NOWHERE,   /* by no NIC: TCP finds the words for it */
    UNKNOWN,
    STARVED
} place;

static place look_up(lane_rdma *self, uint32_t segment, bool is_words, uint64_t offset,
                     te_rdma_chunk *chunk) {
    te_rdma_known known =
        te_rdma_look_up(self->endpoint, segment, is_words, self->rail->remote_nic, offset, chunk);
    if (known == TE_RDMA_KNOWN)
        return HERE;
    self->segment = segment;
    self->is_of_words = is_words;
    self->segment_offset = offset;
    return known == TE_RDMA_UNKNOWN && !self->has_asked ? UNKNOWN : ELSEWHERE;
}

/* NULL: no NIC of ours knows it.  Whoever moves it holds it until it has ended. */
static te_rdma_range *range_of(const te_work_piece *piece) {
    const te_region *region = piece->item->region;
    return region == NULL ? NULL : te_region_rdma(region);
}

/* The key of local memory, and how far it goes.  False: no NIC of ours knows it, or not this one. */
static bool find_local(const lane_rdma *self, const te_work_piece *piece, const uint8_t *local,
                       te_rdma_key *key) {
    te_rdma_range *range = range_of(piece);
    return range != NULL &&
           te_rdma_range_key(range, self->rail->qp.nic, (uint64_t)(uintptr_t)local, key);
}

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Memory that only NICs reach, and this one does not, or not all of it. */
static bool is_out_of_reach(const te_lane *lane, const te_rdma_nic *nic,
                            const te_work_piece *piece) {
    te_rdma_key key;
    if (!te_carried_is_device(lane->path->engine, piece->item))
        return false;
    uint64_t at = (uint64_t)(uintptr_t)piece->local, end = at + piece->length;
    te_rdma_range *range = range_of(piece);
    while (range != NULL && at < end && te_rdma_range_key(range, nic, at, &key))
        at += key.run;
    return at < end;
}

static uint64_t remote_offset(te_opcode opcode, const te_work_piece *piece) {
    const ms_write_item *written = &piece->item->wire.write;
    if (opcode == TE_WRITE && written->version != 0)
        return piece->offset + (uint64_t)written->page * MS_PAGE_SIZE;
    return piece->offset;
}

/* `piece` from `done` on, as far as one request goes.  With `flight`, local memory is looked for as well. */
static place locate(lane_rdma *self, const te_work_piece *piece, uint64_t done,
                    verbs_send_wr *request, verbs_sge *part, lane_rdma_flight *flight) {
    te_rdma_chunk chunk;
    uint64_t left = piece->length - done, offset = remote_offset(self->opcode, piece) + done;
    place found = look_up(self, piece->segment, false, offset, &chunk);
    if (found != HERE)
        return found;
    left = smaller(left, chunk.length - (offset - chunk.offset));
    uint8_t *local = piece->local + done;
    te_rdma_key key = {0};
    if (flight != NULL && find_local(self, piece, local, &key)) {
        left = smaller(left, key.run);
    } else if (flight != NULL && te_carried_is_device(self->engine, piece->item)) {
        return ELSEWHERE;
    } else if (flight != NULL) {
        te_rdma_bounce *bounce = self->engine->rdma->bounce;
        uint8_t *slot = te_rdma_slot_take(bounce);
        if (slot == NULL)
            return STARVED;
        if (!te_rdma_range_key(te_rdma_bounce_range(bounce), self->rail->qp.nic,
                               (uint64_t)(uintptr_t)slot, &key)) {
            te_rdma_slot_give(bounce, slot);
            return ELSEWHERE; /* not even that is registered with the NIC */
        }
        left = smaller(smaller(left, key.run), TE_RDMA_SLOT_BYTES);
        if (self->opcode == TE_WRITE)
            memcpy(slot, local, left);
        flight->slot = slot;
        flight->target = local;
        flight->length = (uint32_t)left;
        local = slot;
    }
    left = smaller(left, UINT32_MAX / 2);
    *part = (verbs_sge){
        .addr = (uint64_t)(uintptr_t)local, .length = (uint32_t)left, .lkey = key.local};
    *request = (verbs_send_wr){
        .num_sge = 1,
        .opcode = self->opcode == TE_WRITE ? VERBS_WR_RDMA_WRITE : VERBS_WR_RDMA_READ,
        .rdma = {.remote_addr = chunk.address + (offset - chunk.offset), .rkey = chunk.key}};
    return HERE;
}

static bool is_guarded(const lane_rdma *self, const te_work_piece *piece) {
    return self->opcode == TE_READ && (piece->item->wire.read.flags & 1) != 0;
}

static bool has_same_word(const te_work_piece *a, const te_work_piece *b) {
    return a->segment == b->segment &&
           a->item->wire.read.guard_page == b->item->wire.read.guard_page;
}

static place locate_word(lane_rdma *self, const te_work_piece *piece, verbs_send_wr *request) {
    te_rdma_chunk chunk;
    uint64_t offset = (uint64_t)piece->item->wire.read.guard_page * sizeof(uint64_t);
    place found = look_up(self, piece->segment, true, offset, &chunk);
    if (found == HERE)
        *request = (verbs_send_wr){
            .num_sge = 1,
            .opcode = VERBS_WR_RDMA_READ,
            .rdma = {.remote_addr = chunk.address + (offset - chunk.offset), .rkey = chunk.key}};
    return found;
}

/* Inside its extent: no server looks at it, so we do. */
static bool is_inside(const lane_rdma *self, const te_work_piece *piece) {
    const ms_write_item *written = &piece->item->wire.write;
    return self->opcode == TE_READ || te_rdma_write_is_inside(written);
}

/* All of it or nothing: what another transport may refuse has touched nothing. */
static place locate_all(lane_rdma *self, const te_work *work) {
    verbs_send_wr request = {0};
    verbs_sge part = {0};
    for (uint32_t i = 0; i < work->count; i++) {
        const te_work_piece *piece = &work->pieces[i];
        if (!is_inside(self, piece) ||
            (self->opcode == TE_WRITE && piece->item->wire.write.source != 0))
            return NOWHERE;
        if (is_out_of_reach(self->lane, self->rail->qp.nic, piece))
            return ELSEWHERE;
        place found = is_guarded(self, piece) ? locate_word(self, piece, &request) : HERE;
        for (uint64_t done = 0; done < piece->length && found == HERE; done += part.length)
            found = locate(self, piece, done, &request, &part, NULL);
        if (found != HERE)
            return found;
    }
    return HERE;
}

/* ---- posting ------------------------------------------------------------------------------------------------------- */

static bool has_room(const lane_rdma *self) {
    return self->count < TE_RDMA_DEPTH - 1 && self->count + 1 < self->rail->qp.depth;
}

static void chain(lane_rdma *self, lane_rdma_flight made, verbs_send_wr request, verbs_sge part) {
    te_rdma_rail *rail = self->rail;
    if (self->count == 0)
        self->busy_ns = te_now_ns();
    uint32_t at = (self->first + self->count++) % TE_RDMA_DEPTH;
    self->flights[at] = made;
    rail->parts[rail->chained] = part;
    request.wr_id = at;
    request.sg_list = &rail->parts[rail->chained];
    if (made.is_last || rail->chained % SIGNAL_EVERY == SIGNAL_EVERY - 1)
        request.send_flags |= VERBS_SEND_SIGNALED;
    rail->requests[rail->chained++] = request;
}

/* A READ of a few bytes into the scratch memory: each request has its own 8 bytes there. */
static void chain_small(lane_rdma *self, lane_rdma_flight made, verbs_send_wr request) {
    uint32_t at = (self->first + self->count) % TE_RDMA_DEPTH;
    request.opcode = VERBS_WR_RDMA_READ;
    verbs_sge part = {.addr = (uint64_t)(uintptr_t)(self->endpoint->scratch + at * 8),
                      .length = made.is_word ? 8 : 1,
                      .lkey = self->rail->scratch->lkey};
    chain(self, made, request, part);
}

_Static_assert(TE_RDMA_DEPTH * 8 <= TE_RDMA_SCRATCH_BYTES, "a word a request");

/* The piece from `at` on whose word is to be asked for: the first with that word; work->count: none. */
static uint32_t next_word(const lane_rdma *self, const te_work *work, uint32_t at) {
    for (; at < work->count; at++) {
        const te_work_piece *piece = &work->pieces[at];
        if (is_guarded(self, piece) &&
            (at == 0 || !is_guarded(self, piece - 1) || !has_same_word(piece, piece - 1)))
            break;
    }
    return at;
}

static void chain_word(lane_rdma *self, te_work *work) {
    verbs_send_wr request = {0};
    /* It was there just now: registrations do not end while requests run. */
    (void)locate_word(self, &work->pieces[self->word], &request);
    if (!self->has_words)
        request.send_flags = VERBS_SEND_FENCE;
    self->has_words = true;
    lane_rdma_flight made = {.work = work, .piece = self->word, .is_word = true};
    self->word = next_word(self, work, self->word + 1);
    made.is_last = self->word == work->count;
    chain_small(self, made, request);
}

/* Behind the WRITEs of a work, on the same queue pair. */
static void chain_push(lane_rdma *self, te_work *work) {
    verbs_send_wr request = {0};
    verbs_sge part = {0};
    const te_work_piece *last = &work->pieces[work->count - 1];
    (void)locate(self, last, last->length - 1, &request, &part, NULL);
    chain_small(self, (lane_rdma_flight){.work = work, .is_last = true}, request);
}

/* As much of the first work as there is room for.  HERE: all of it is chained. */
static place chain_some(lane_rdma *self, te_work *work) {
    verbs_send_wr request = {0};
    verbs_sge part = {0};
    while (has_room(self)) {
        while (self->piece < work->count && self->done == work->pieces[self->piece].length) {
            self->piece++;
            self->done = 0;
        }
        if (self->piece == work->count) {
            if (self->opcode == TE_WRITE)
                chain_push(self, work);
            else
                chain_word(self, work);
            if (self->opcode == TE_WRITE || self->word == work->count)
                return HERE;
            continue;
        }
        const te_work_piece *piece = &work->pieces[self->piece];
        lane_rdma_flight made = {.work = work, .piece = self->piece};
        place found = locate(self, piece, self->done, &request, &part, &made);
        if (found != HERE)
            return found;
        self->done += part.length;
        made.is_last = self->opcode == TE_READ && self->piece + 1 == work->count &&
                       self->done == piece->length && self->word == work->count;
        chain(self, made, request, part);
        work->is_sent = true;
        if (made.is_last)
            return HERE;
    }
    return UNKNOWN; /* there is no room */
}

static void pop_waiting(lane_rdma *self) {
    self->waiting = self->waiting->next;
    if (self->waiting == NULL)
        self->waiting_last = NULL;
    self->is_begun = self->has_asked = false;
}

void te_lane_rdma_hand_over(te_work *work) {
    te_lane *lane = work->lane;
    for (uint32_t i = 0; i < lane->path->rail_count; i++) {
        te_lane *other = &lane->path->lanes[lane->opcode][i];
        if (other->ops != lane->ops && other->is_up && !other->is_gone) {
            atomic_fetch_add_explicit(&lane->path->engine->rdma->counters.fallbacks, work->count,
                                      memory_order_relaxed);
            te_work_move(work, other);
            return;
        }
    }
    te_lane_done(work, TE_WORK_FAILED);
}

/* As far as this lane knows what the peer has registered; who takes it looks again. */
static bool may_carry(const lane_rdma *self, const te_lane *other, const te_work *work) {
    const lane_rdma *its = other->state;
    te_rdma_chunk chunk;
    const te_rdma_nic *nic = te_lane_rdma_nic(its);
    uint32_t remote = its->phase == OPEN ? its->rail->remote_nic : other->ends.remote_nic;
    for (uint32_t i = 0; i < work->count && nic != NULL; i++) {
        const te_work_piece *piece = &work->pieces[i];
        uint64_t offset = remote_offset(self->opcode, piece);
        if (is_out_of_reach(other, nic, piece) ||
            te_rdma_look_up(self->endpoint, piece->segment, false, remote, offset, &chunk) ==
                TE_RDMA_NOT_THERE)
            return false;
    }
    return nic != NULL;
}

static void tell_refusal(const lane_rdma *self, const te_work *work) {
    te_rdma *rdma = self->engine->rdma;
    const te_work_piece *first = &work->pieces[0];
    if (rdma->is_device_refusal_told || !te_carried_is_device(self->engine, first->item))
        return;
    rdma->is_device_refusal_told = true;
    te_log(self->engine,
           "rdma: no NIC that is up reaches the device memory at %p and the other end of a "
           "request: it is refused",
           (const void *)first->local);
}

/* Not by these NICs: by others that have the memory at both ends, or by another transport.  A work comes to each lane once. */
static void send_elsewhere(const lane_rdma *self, te_work *work) {
    te_lane *lane = self->lane;
    work->declined |= 1u << lane->index;
    for (uint32_t i = 0; i < lane->path->rail_count; i++) {
        te_lane *other = &lane->path->lanes[lane->opcode][i];
        if (other->ops == lane->ops && other->is_up && !other->is_gone &&
            (work->declined & 1u << i) == 0 && may_carry(self, other, work)) {
            te_work_move(work, other);
            return;
        }
    }
    tell_refusal(self, work);
    te_lane_rdma_hand_over(work);
}

/* Of the first work that waits.  False: it has to wait on. */
static bool begin_work(lane_rdma *self, te_work *work) {
    place found = locate_all(self, work);
    if (found == UNKNOWN) {
        te_lane_rdma_ask(self);
        return false;
    }
    if (found != HERE) {
        pop_waiting(self);
        if (found == ELSEWHERE)
            send_elsewhere(self, work);
        else
            te_lane_rdma_hand_over(work);
        return true;
    }
    self->is_begun = true;
    self->has_words = false;
    self->piece = 0;
    self->done = 0;
    self->word = next_word(self, work, 0);
    return true;
}

/* The rest of the first work cannot go by this NIC. */
static void cannot(lane_rdma *self, te_work *work) {
    if (work->is_sent) { /* what has been posted must end first */
        self->refused = work;
        te_lane_rdma_leave(self, false, "its NIC has no memory registered any more");
        return;
    }
    pop_waiting(self);
    send_elsewhere(self, work);
}

void te_lane_rdma_pump(lane_rdma *self) {
    verbs_send_wr *bad = NULL;
    te_rdma_rail *rail = self->rail;
    self->is_starved = false;
    if (self->phase != OPEN || self->task != NOTHING || self->wants_end)
        return;
    while (self->waiting != NULL && has_room(self) && self->phase == OPEN) {
        if (!self->is_begun) {
            if (!begin_work(self, self->waiting))
                break;
            continue;
        }
        place found = chain_some(self, self->waiting);
        self->is_starved = found == STARVED;
        if (found == ELSEWHERE) {
            cannot(self, self->waiting);
            continue;
        }
        if (found != HERE)
            break;
        pop_waiting(self);
    }
    if (self->is_starved)
        te_lane_tick_at(self->lane, te_now_ns() + STARVED_NS);
    if (self->phase != OPEN || rail->chained == 0)
        return; /* a lane that has been left: the rail is a worker's now */
    for (uint32_t i = 0; i + 1 < rail->chained; i++)
        rail->requests[i].next = &rail->requests[i + 1];
    rail->requests[rail->chained - 1].next = NULL;
    rail->requests[rail->chained - 1].send_flags |= VERBS_SEND_SIGNALED;
    rail->chained = 0;
    if (verbs_post(rail->qp.qp, rail->requests, &bad) != 0)
        te_lane_rdma_leave(self, false, "the device takes no requests");
}

/* ---- completions ---------------------------------------------------------------------------------------------------- */

static void give_slot(lane_rdma *self, lane_rdma_flight *flight) {
    if (flight->slot != NULL)
        te_rdma_slot_give(self->engine->rdma->bounce, flight->slot);
    flight->slot = NULL;
}

void te_lane_rdma_forget_flights(lane_rdma *self) {
    for (uint32_t i = 0; i < self->count; i++)
        give_slot(self, &self->flights[(self->first + i) % TE_RDMA_DEPTH]);
    self->count = 0;
}

/* A word counts for its piece, and those behind it that have the same. */
static void take_word(lane_rdma *self, const lane_rdma_flight *flight, uint32_t at) {
    te_work *work = flight->work;
    uint64_t word;
    memcpy(&word, self->endpoint->scratch + at * 8, sizeof word);
    for (uint32_t i = flight->piece; i < work->count; i++) {
        te_work_piece *piece = &work->pieces[i];
        if (!is_guarded(self, piece) || !has_same_word(piece, &work->pieces[flight->piece]))
            break;
        piece->word = word;
    }
}

static void work_done(lane_rdma *self, te_work *work) {
    te_rdma *rdma = self->engine->rdma;
    atomic_fetch_add_explicit(self->opcode == TE_READ ? &rdma->counters.read_bytes
                                                      : &rdma->counters.write_bytes,
                              work->bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&rdma->counters.slices, 1, memory_order_relaxed);
    for (uint32_t i = 0; i < work->count; i++)
        work->pieces[i].status = MS_OK;
    te_lane_done(work, TE_WORK_DONE);
}

/* Requests are numbered by their places in the ring; all before the one that is told have completed too. */
static void completed(lane_rdma *self, const verbs_wc *done) {
    uint32_t ahead = ((uint32_t)done->wr_id + TE_RDMA_DEPTH - self->first) % TE_RDMA_DEPTH;
    bool is_ok = done->status == VERBS_WC_SUCCESS;
    for (uint32_t i = 0; i < ahead + is_ok && self->count > 0; i++) {
        uint32_t at = self->first;
        lane_rdma_flight *each = &self->flights[at];
        self->first = (self->first + 1) % TE_RDMA_DEPTH;
        self->count--;
        if (each->work != NULL && each->is_word)
            take_word(self, each, at);
        if (each->work != NULL && each->slot != NULL && self->opcode == TE_READ)
            memcpy(each->target, each->slot, each->length);
        give_slot(self, each);
        if (each->work != NULL && each->is_last)
            work_done(self, each->work);
    }
    if (is_ok)
        return;
    if (te_rdma_is_refused(done) && self->count > 0)
        self->refused = self->flights[self->first].work; /* it, not the rail, is at fault */
    char why[160];
    snprintf(why, sizeof why, "a request has failed: %s",
             self->engine->rdma->verbs->wc_status_str(done->status));
    te_lane_rdma_leave(self, false, why);
}

void te_lane_rdma_take(lane_rdma *self) {
    te_rdma_cq *cq = self->rail->cq;
    verbs_wc done[16];
    bool is_armed = false;
    te_rdma_cq_take_events(cq);
    te_lane_progress(self->lane, te_now_ns());
    while (self->phase == OPEN && !self->wants_end) {
        int count = te_rdma_cq_poll(cq, done, 16);
        for (int i = 0; i < count && self->phase == OPEN && !self->wants_end; i++)
            completed(self, &done[i]);
        if (count > 0)
            continue;
        if (is_armed)
            break;
        te_rdma_cq_arm(cq); /* what has come before that raises no event: once more */
        is_armed = true;
    }
}
