/* Links: accepted and dialled connections as other threads see them.  The table by number,
 * sending, closing, the fence.
 *
 * Sending.  Whoever finds nobody sending takes the right to send (is_sending), writes to the
 * socket without the lock, and gives the right back; what the socket does not take becomes the
 * head of the queue.  A sender that finds the right taken or a queue appends a copy.  The I/O
 * thread drains the queue when epoll says that the socket takes more.  A READ's answer is queued
 * as a job whose bytes come from the segment, and only the I/O thread moves it on.
 */
#include "te_rdma.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "te_fault.h"

#define SEND_PARTS_MAX 64

/* ---- references and the table ---------------------------------------------------------------- */

void te_link_hold(te_link *link) {
    atomic_fetch_add_explicit(&link->references, 1, memory_order_relaxed);
}

void te_link_release(te_link *link) {
    if (atomic_fetch_sub_explicit(&link->references, 1, memory_order_acq_rel) != 1) {
        return;
    }
    for (size_t i = 0; i < link->passed_count; i++) {
        close(link->passed[i]);
    }
    close(link->descriptor);
    pthread_mutex_destroy(&link->lock);
    pthread_cond_destroy(&link->step_ended);
    free(link->body);
    free(link->received);
    free(link);
}

te_link *te_link_find(te_engine *engine, te_peer peer) {
    uint32_t slot = (uint32_t)(peer & 0xffff);
    te_link *found = NULL;
    pthread_mutex_lock(&engine->peers_lock);
    if (slot < engine->peer_slots && engine->peers[slot] != NULL &&
        engine->peers[slot]->peer == peer) {
        found = engine->peers[slot];
        te_link_hold(found);
    }
    pthread_mutex_unlock(&engine->peers_lock);
    return found;
}

/* Gives it a number that was never used: a serial number above, the slot in the table below. */
static ms_status enter(te_engine *engine, te_link *link) {
    ms_status status = MS_LIMIT;
    pthread_mutex_lock(&engine->peers_lock);
    uint32_t limit =
        link->is_dialled ? engine->peer_slots : engine->config.connections_accepted_max;
    for (uint32_t i = 0; engine->peer_count < limit && i < engine->peer_slots; i++) {
        uint32_t slot = (engine->peer_slot_next + i) % engine->peer_slots;
        if (engine->peers[slot] == NULL) {
            engine->peers[slot] = link;
            engine->peer_slot_next = slot + 1;
            engine->peer_count++;
            link->peer = ++engine->peer_serial << 16 | slot;
            te_link_hold(link);
            status = MS_OK;
            break;
        }
    }
    pthread_mutex_unlock(&engine->peers_lock);
    return status;
}

static void leave(te_engine *engine, te_link *link) {
    uint32_t slot = (uint32_t)(link->peer & 0xffff);
    pthread_mutex_lock(&engine->peers_lock);
    bool was_there = engine->peers[slot] == link;
    if (was_there) {
        engine->peers[slot] = NULL;
        engine->peer_count--;
    }
    pthread_mutex_unlock(&engine->peers_lock);
    if (was_there) {
        te_link_release(link);
    }
}

ms_status te_link_open(te_engine *engine, int descriptor, bool is_unix, bool is_dialled,
                       const char *name, te_link **opened) {
    te_link *link = calloc(1, sizeof *link);
    uint8_t *received = malloc(TE_RECEIVE_BYTES);
    if (link == NULL || received == NULL || pthread_mutex_init(&link->lock, NULL) != 0) {
        free(link);
        free(received);
        close(descriptor);
        return MS_NO_MEMORY;
    }
    pthread_cond_init(&link->step_ended, NULL);
    link->engine = engine;
    link->references = 1;
    link->descriptor = descriptor;
    link->is_unix = is_unix;
    link->is_dialled = is_dialled;
    link->received = received;
    link->state = is_dialled ? TE_LINK_OPEN : TE_LINK_HELLO;
    snprintf(link->name, sizeof link->name, "%s", name);
    uint32_t next = atomic_fetch_add_explicit(&engine->io_next, 1, memory_order_relaxed);
    link->io = te_io_at(engine, next % engine->config.io_threads);
    if (!is_dialled) {
        link->frame_deadline_ns =
            te_now_ns() + (int64_t)engine->config.handshake_timeout_ms * TE_NS_PER_MS;
    }
    ms_status status = enter(engine, link);
    if (status != MS_OK) {
        te_link_release(link);
        return status;
    }
    *opened = link;
    return MS_OK;
}

void te_link_post(te_link *link, uint32_t posts) {
    pthread_mutex_lock(&link->lock);
    bool is_first = link->posts == 0;
    link->posts |= posts;
    pthread_mutex_unlock(&link->lock);
    if (is_first) {
        te_io_post(link->io, link);
    }
}

/* ---- sending --------------------------------------------------------------------------------- */

static void out_free(te_link *link, te_out *out) {
    for (size_t i = 0; i < out->descriptor_count; i++) {
        close(out->descriptors[i]);
    }
    if (out->read != NULL) {
        te_read_job_free(link, out->read);
    }
    free(out);
}

/* A copy of the blocks from byte `sent` on. */
static te_out *out_copy(const struct iovec *parts, size_t count, size_t sent,
                        const int *descriptors, size_t descriptor_count) {
    size_t length = te_iov_bytes(parts, count) - sent;
    te_out *out = malloc(sizeof *out + length);
    if (out == NULL) {
        return NULL;
    }
    *out = (te_out){.length = length};
    te_iov_read(parts, count, sent, out->bytes, length);
    for (size_t i = 0; i < descriptor_count; i++) {
        int copy = fcntl(descriptors[i], F_DUPFD_CLOEXEC, 0);
        if (copy < 0) {
            out_free(NULL, out);
            return NULL;
        }
        out->descriptors[out->descriptor_count++] = copy;
    }
    return out;
}

static void append(te_link *link, te_out *out) {
    if (link->out_last == NULL) {
        link->out_first = out;
    } else {
        link->out_last->next = out;
    }
    link->out_last = out;
    link->out_bytes += out->length;
    link->out_count++;
}

static void mark_closing(te_link *link, const char *reason) {
    if (!link->is_closing) {
        link->is_closing = true;
        snprintf(link->reason, sizeof link->reason, "%s", reason);
    }
}

/* Queues a copy; with `holds_right` at the head, giving the right to send back.  Under no lock. */
static ms_status queue_copy(te_link *link, te_out *out, bool holds_right) {
    ms_status status = MS_OK;
    pthread_mutex_lock(&link->lock);
    if (holds_right) {
        link->is_sending = false;
    }
    if (link->is_closing) {
        status = MS_NOT_REGISTERED;
    } else if (out == NULL) {
        mark_closing(link, "no memory for an answer");
        status = MS_NO_MEMORY;
    } else if (link->out_bytes + out->length > link->engine->config.outbound_bytes_max) {
        mark_closing(link, "it does not take its answers: too many bytes wait for it");
        status = MS_LIMIT;
    } else if (holds_right) {
        out->next = link->out_first;
        link->out_first = out;
        link->out_last = link->out_last == NULL ? out : link->out_last;
        link->out_bytes += out->length;
        link->out_count++;
        out = NULL;
    } else {
        append(link, out);
        out = NULL;
    }
    pthread_mutex_unlock(&link->lock);
    if (out != NULL) {
        out_free(link, out);
    }
    if (status != MS_NOT_REGISTERED) {
        te_link_post(link, status == MS_OK ? TE_POST_DRAIN : TE_POST_CLOSE);
    }
    return status;
}

/* What the socket does not take at once: queued, or else the end of the connection. */
static ms_status send_rest(te_link *link, te_out *out, bool holds_right, bool may_queue) {
    if (may_queue) {
        return queue_copy(link, out, holds_right);
    }
    pthread_mutex_lock(&link->lock);
    if (holds_right) {
        link->is_sending = false;
    }
    mark_closing(link, "it does not take its answers");
    pthread_mutex_unlock(&link->lock);
    te_link_post(link, TE_POST_CLOSE);
    return MS_LIMIT;
}

static ms_status send_parts(te_link *link, const struct iovec *parts, size_t count,
                            const int *descriptors, size_t descriptor_count, bool may_queue) {
    pthread_mutex_lock(&link->lock);
    bool is_closing = link->is_closing;
    bool must_queue = link->is_sending || link->out_first != NULL;
    if (!is_closing && !must_queue) {
        link->is_sending = true;
    }
    pthread_mutex_unlock(&link->lock);
    if (is_closing) {
        return MS_NOT_REGISTERED;
    }
    if (must_queue) {
        te_out *out = may_queue ? out_copy(parts, count, 0, descriptors, descriptor_count) : NULL;
        return send_rest(link, out, false, may_queue);
    }

    ssize_t sent =
        te_socket_send(link->descriptor, parts, count, descriptors, descriptor_count, MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN) {
        const char *reason =
            errno == EPIPE || errno == ECONNRESET ? "closed by the peer" : "sending failed";
        pthread_mutex_lock(&link->lock);
        link->is_sending = false;
        mark_closing(link, reason);
        pthread_mutex_unlock(&link->lock);
        te_link_post(link, TE_POST_CLOSE);
        return MS_NOT_REGISTERED;
    }
    size_t moved = sent < 0 ? 0 : (size_t)sent;
    if (moved < te_iov_bytes(parts, count)) {
        /* Descriptors travel with the first byte. */
        te_out *out =
            may_queue ? out_copy(parts, count, moved, descriptors, moved > 0 ? 0 : descriptor_count)
                      : NULL;
        return send_rest(link, out, true, may_queue);
    }
    pthread_mutex_lock(&link->lock);
    link->is_sending = false;
    bool others_wait = link->out_first != NULL;
    pthread_mutex_unlock(&link->lock);
    if (others_wait) {
        te_link_post(link, TE_POST_DRAIN);
    }
    return MS_OK;
}

ms_status te_link_send(te_link *link, const struct iovec *parts, size_t count,
                       const int *descriptors, size_t descriptor_count) {
    return send_parts(link, parts, count, descriptors, descriptor_count, true);
}

ms_status te_link_queue_read(te_link *link, te_read_job *job) {
    te_out *out = malloc(sizeof *out);
    if (out == NULL) {
        te_read_job_free(link, job);
        return MS_NO_MEMORY;
    }
    *out = (te_out){.read = job};
    pthread_mutex_lock(&link->lock);
    bool is_closing = link->is_closing;
    if (!is_closing) {
        append(link, out);
    }
    pthread_mutex_unlock(&link->lock);
    if (is_closing) {
        out_free(link, out);
        return MS_NOT_REGISTERED;
    }
    te_link_drain(link);
    return MS_OK;
}

/* Sends one queued frame further.  1: it is out, 0: the socket is full or the turn is over, -1:
 * broken. */
static int out_step(te_link *link, te_out *out, size_t *moved) {
    if (out->read != NULL) {
        return te_read_job_step(link, out->read, moved);
    }
    while (out->sent < out->length) {
        struct iovec rest = {.iov_base = out->bytes + out->sent,
                             .iov_len = out->length - out->sent};
        ssize_t sent = te_socket_send(link->descriptor, &rest, 1, out->descriptors,
                                      out->descriptor_count, MSG_DONTWAIT);
        if (sent < 0) {
            return errno == EAGAIN ? 0 : -1;
        }
        for (size_t i = 0; i < out->descriptor_count; i++) {
            close(out->descriptors[i]);
        }
        out->descriptor_count = 0;
        out->sent += (size_t)sent;
        *moved += (size_t)sent;
    }
    return 1;
}

void te_link_drain(te_link *link) {
    size_t moved = 0, moved_before = 0;
    int outcome = 1;
    while (outcome == 1) {
        pthread_mutex_lock(&link->lock);
        te_out *out = link->is_closing || link->is_sending ? NULL : link->out_first;
        if (out != NULL) {
            link->is_sending = true;
        } else {
            /* A sender that holds the right posts TE_POST_DRAIN when it gives it back. */
            link->wants_out = false;
            link->out_deadline_ns = 0;
        }
        pthread_mutex_unlock(&link->lock);
        if (out == NULL) {
            break;
        }
        outcome = out_step(link, out, &moved);
        pthread_mutex_lock(&link->lock);
        link->is_sending = false;
        if (outcome ==
            1) { /* only this thread takes from the queue, and nobody puts before a frame being sent */
            link->out_first = out->next;
            link->out_last = out->next == NULL ? NULL : link->out_last;
            link->out_bytes -= out->length;
            link->out_count--;
        }
        pthread_mutex_unlock(&link->lock);
        if (outcome == 1) {
            out_free(link, out);
        }
        if (moved > moved_before || link->out_deadline_ns == 0) {
            moved_before = moved;
            link->out_deadline_ns =
                te_now_ns() + (int64_t)link->engine->config.stall_timeout_ms * TE_NS_PER_MS;
            te_io_watch_deadlines(link);
        }
        if (outcome == 0) {
            if (moved >= TE_TURN_BYTES) {
                te_io_run_later(link); /* the socket takes more, but others wait too */
            } else {
                link->wants_out = true;
            }
        }
    }
    if (outcome < 0) {
        te_link_close(link, "closed by the peer while it was sent an answer");
        return;
    }
    te_io_update(link);
}

bool te_link_reads_removed(te_link *link) {
    /* Read jobs take the engine's lock of the segments, which is never taken before a link's. */
    bool found = false;
    pthread_mutex_lock(&link->lock);
    for (te_out *out = link->out_first; out != NULL && !found; out = out->next) {
        found = out->read != NULL && te_read_job_uses_removed(out->read);
    }
    pthread_mutex_unlock(&link->lock);
    return found;
}

/* ---- frames ---------------------------------------------------------------------------------- */

ms_header te_answer_header(te_engine *engine, const ms_header *request, ms_status status,
                           size_t body_length, uint64_t payload_length, size_t trailer_length) {
    return (ms_header){
        .magic = MS_MAGIC,
        .version = MS_WIRE_VERSION,
        .kind = MS_ANSWER,
        .method = request->method,
        .status = (uint32_t)status,
        .epoch = atomic_load_explicit(&engine->epoch, memory_order_relaxed),
        .request = request->request,
        .body_length = (uint32_t)body_length,
        .trailer_length = (uint32_t)trailer_length,
        .payload_length = payload_length,
    };
}

ms_status te_link_answer(te_link *link, const ms_header *request, ms_status status,
                         const struct iovec *body, size_t body_count, const void *payload,
                         size_t payload_length, const int *descriptors, size_t descriptor_count) {
    struct iovec parts[SEND_PARTS_MAX + 2];
    size_t body_length = te_iov_bytes(body, body_count);
    if (body_count > SEND_PARTS_MAX || body_length > MS_BODY_BYTES_MAX) {
        return MS_TOO_LARGE;
    }
    ms_header header =
        te_answer_header(link->engine, request, status, body_length, payload_length, 0);
    parts[0] = (struct iovec){.iov_base = &header, .iov_len = sizeof header};
    if (body_count > 0) {
        memcpy(&parts[1], body, body_count * sizeof *body);
    }
    size_t count = 1 + body_count;
    if (payload_length > 0) {
        parts[count++] =
            (struct iovec){.iov_base = (void *)(uintptr_t)payload, .iov_len = payload_length};
    }
    return te_link_send(link, parts, count, descriptors, descriptor_count);
}

ms_status te_link_refuse(te_link *link, const ms_header *request, ms_status status,
                         const char *format, ...) {
    char sentence[TE_ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    struct iovec body = {.iov_base = sentence, .iov_len = strlen(sentence)};
    return te_link_answer(link, request, status, &body, 1, NULL, 0, NULL, 0);
}

/* The link of `peer`, held: without the table when it is the one whose frame this thread is
 * handling. */
static te_link *find(te_engine *engine, te_peer peer) {
    te_link *current = te_io_current_link();
    if (current != NULL && current->engine == engine && current->peer == peer) {
        te_link_hold(current);
        return current;
    }
    return te_link_find(engine, peer);
}

ms_status te_answer(te_engine *engine, te_peer peer, const ms_header *request, ms_status status,
                    const struct iovec *body, size_t body_count, const void *payload,
                    size_t payload_length) {
    te_link *link = find(engine, peer);
    if (link == NULL) {
        return MS_NOT_REGISTERED;
    }
    ms_status outcome =
        te_link_answer(link, request, status, body, body_count, payload, payload_length, NULL, 0);
    te_link_release(link);
    return outcome;
}

ms_status te_answer_at_once(te_engine *engine, te_peer peer, const ms_header *request,
                            ms_status status, const struct iovec *body) {
    te_link *link = find(engine, peer);
    if (link == NULL) {
        return MS_NOT_REGISTERED;
    }
    ms_header header = te_answer_header(engine, request, status, body->iov_len, 0, 0);
    struct iovec parts[2] = {{.iov_base = &header, .iov_len = sizeof header}, *body};
    ms_status outcome = send_parts(link, parts, 2, NULL, 0, false);
    te_link_release(link);
    return outcome;
}

ms_status te_push(te_engine *engine, te_peer peer, uint8_t kind, uint16_t method, uint32_t flags,
                  uint64_t request, const struct iovec *body, size_t body_count) {
    struct iovec parts[SEND_PARTS_MAX + 1];
    size_t body_length = te_iov_bytes(body, body_count);
    if (body_count > SEND_PARTS_MAX || body_length > MS_BODY_BYTES_MAX) {
        return MS_TOO_LARGE;
    }
    te_link *link = find(engine, peer);
    if (link == NULL) {
        return MS_NOT_REGISTERED;
    }
    ms_header header = {
        .magic = MS_MAGIC,
        .version = MS_WIRE_VERSION,
        .kind = kind,
        .method = method,
        .epoch = atomic_load_explicit(&engine->epoch, memory_order_relaxed),
        .request = request,
        .body_length = (uint32_t)body_length,
        .flags = flags,
    };
    parts[0] = (struct iovec){.iov_base = &header, .iov_len = sizeof header};
    if (body_count > 0) {
        memcpy(&parts[1], body, body_count * sizeof *body);
    }
    ms_status status = te_link_send(link, parts, 1 + body_count, NULL, 0);
    te_link_release(link);
    return status;
}

/* ---- steps, closing, the fence --------------------------------------------------------------- */

bool te_link_step_begin(te_link *link) {
    pthread_mutex_lock(&link->lock);
    bool may = !link->is_closing;
    link->is_in_step = may;
    pthread_mutex_unlock(&link->lock);
    return may;
}

void te_link_step_end(te_link *link) {
    pthread_mutex_lock(&link->lock);
    link->is_in_step = false;
    if (link->is_closing) {
        pthread_cond_broadcast(&link->step_ended);
    }
    pthread_mutex_unlock(&link->lock);
}

void te_link_close(te_link *link, const char *reason) {
    if (link->state == TE_LINK_CLOSED) {
        return;
    }
    te_engine *engine = link->engine;
    link->state = TE_LINK_CLOSED;
    pthread_mutex_lock(&link->lock);
    mark_closing(link, reason);
    te_out *out = link->out_first;
    /* A sender on another thread has its own blocks; it sees is_closing when it comes back. */
    link->out_first = link->out_last = NULL;
    link->out_bytes = 0;
    link->out_count = 0;
    pthread_mutex_unlock(&link->lock);

    te_io_forget(link);
    /* Before the peer can know that the connection has ended, and sends again what was on it. */
    te_rdma_link_cut(link);
    if (link->write != NULL) {
        te_write_job_free(link, link->write);
        link->write = NULL;
    }
    shutdown(link->descriptor, SHUT_RDWR);
    while (out != NULL) {
        te_out *next = out->next;
        out_free(link, out);
        out = next;
    }
    leave(engine, link);
    if (link->is_known && engine->service.on_close != NULL) {
        engine->service.on_close(engine->service.context, link->peer, link->peer_context,
                                 link->reason);
    }
    if (engine->link_closed != NULL) {
        engine->link_closed(engine, link);
    }
    te_io_retire(link);
}

void te_link_fail(te_link *link, ms_status status, const char *format, ...) {
    char sentence[TE_ERROR_BYTES - 32];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    if (link->state == TE_LINK_LINGER || link->state == TE_LINK_CLOSED) {
        return;
    }
    te_log(link->engine, "%.100s: %.150s", link->name, sentence);
    /* Closing a socket with unread bytes resets it, and the peer would lose the answer that tells
     * it why: so what comes is thrown away until the peer closes, for a second at most. */
    link->state = TE_LINK_LINGER;
    link->frame_deadline_ns = te_now_ns() + TE_NS_PER_S;
    te_io_watch_deadlines(link);
    if (link->write != NULL) {
        te_write_job_free(link, link->write);
        link->write = NULL;
    }
    ms_header header = link->header;
    if (header.magic != MS_MAGIC) {
        header = (ms_header){.method = MS_HELLO};
    }
    if (te_link_refuse(link, &header, status, "%s", sentence) != MS_OK) {
        te_link_post(link, TE_POST_CLOSE);
    }
}

static void close_from_outside(te_link *link, const char *reason) {
    pthread_mutex_lock(&link->lock);
    mark_closing(link, reason);
    pthread_mutex_unlock(&link->lock);
    te_link_post(link, TE_POST_CLOSE);
}

void te_link_cut(te_link *link, const char *reason) {
    close_from_outside(link, reason);
    te_rdma_link_cut(link);
    /* A step is one receive without waiting, or one piece of a copy: it takes no lock and ends
     * soon. */
    pthread_mutex_lock(&link->lock);
    while (link->is_in_step) {
        pthread_cond_wait(&link->step_ended, &link->lock);
    }
    pthread_mutex_unlock(&link->lock);
}

void te_close_peer(te_engine *engine, te_peer peer, const char *reason) {
    te_link *link = find(engine, peer);
    if (link != NULL) {
        close_from_outside(link, reason);
        te_link_release(link);
    }
}

bool te_link_is_deserted(const te_link *link) {
    struct pollfd peer = {.fd = link->descriptor, .events = POLLRDHUP};
    return poll(&peer, 1, 0) > 0;
}

bool te_peer_is_there(te_engine *engine, te_peer peer) {
    te_link *link = find(engine, peer);
    bool is_there = link != NULL && !te_link_is_deserted(link);
    if (link != NULL) {
        te_link_release(link);
    }
    return is_there;
}

/* The first matching link from `slot` on, held. */
static te_link *next_match(te_engine *engine, uint32_t *slot, bool (*match)(void *, void *),
                           void *match_context) {
    te_link *found = NULL;
    pthread_mutex_lock(&engine->peers_lock);
    for (; *slot < engine->peer_slots && found == NULL; (*slot)++) {
        te_link *link = engine->peers[*slot];
        /* on_close, which may free the context, comes after the link has left the table under this
         * lock. */
        if (link != NULL && !link->is_dialled && link->is_known &&
            match(match_context, link->peer_context)) {
            found = link;
            te_link_hold(found);
        }
    }
    pthread_mutex_unlock(&engine->peers_lock);
    return found;
}

size_t te_close_matching(te_engine *engine, bool (*match)(void *match_context, void *peer_context),
                         void *match_context, const char *reason) {
    size_t closed = 0;
    uint32_t slot = 0;
    te_link *link;
    while ((link = next_match(engine, &slot, match, match_context)) != NULL) {
        te_link_cut(link, reason);
        te_link_release(link);
        closed++;
    }
    return closed;
}

void te_cut_queue_pairs(te_engine *engine, bool (*match)(void *match_context, void *peer_context),
                        void *match_context) {
    uint32_t slot = 0;
    te_link *link;
    while ((link = next_match(engine, &slot, match, match_context)) != NULL) {
        te_rdma_link_cut(link);
        te_link_release(link);
    }
}

bool te_has_queue_pairs(const te_engine *engine) {
    return engine->rdma != NULL && atomic_load(&engine->rdma->accepted_queue_pairs) > 0;
}

/* ---- dialling -------------------------------------------------------------------------------- */

ms_status te_dial(te_engine *engine, const char *address_text, const struct iovec *hello,
                  size_t hello_count, int64_t deadline_ns, void *peer_context, te_peer *peer,
                  uint8_t *answer, size_t answer_size, size_t *answer_length, char *error) {
    ms_status status = te_engine_check(engine);
    if (status != MS_OK) {
        te_error(error, "the engine is closed, or was opened before a fork");
        return status;
    }
    if (engine->config.io_threads == 0 || deadline_ns == TE_NO_DEADLINE) {
        te_error(error, "te_dial needs an I/O thread and a deadline");
        return MS_BAD_REQUEST;
    }
    te_address address;
    status = te_address_parse(address_text, strlen(address_text), &address, error);
    if (status != MS_OK) {
        return status;
    }
    te_connection connection = {.engine = engine, .is_unix = address.is_unix, .descriptor = -1};
    status = te_socket_connect(&address, deadline_ns, &connection.descriptor, error);
    if (status != MS_OK) {
        return status;
    }
    size_t hello_length = te_iov_bytes(hello, hello_count);
    uint8_t *flat = malloc(hello_length + 1), *body = NULL;
    size_t length = 0;
    if (flat == NULL) {
        status = MS_NO_MEMORY;
        te_error(error, "no memory for HELLO");
    } else {
        te_iov_read(hello, hello_count, 0, flat, hello_length);
        status = te_connection_hello(&connection, flat, hello_length, &body, &length, deadline_ns);
        te_error(error, "%s", connection.error);
    }
    if (status == MS_OK && length > answer_size) {
        te_error(error, "%s answered HELLO with %zu bytes, there is room for %zu", address.text,
                 length, answer_size);
        status = MS_LIMIT;
    }
    if (status == MS_OK && te_socket_set_blocking(connection.descriptor, false) != MS_OK) {
        te_error(error, "cannot set up the connection to %s", address.text);
        status = MS_IO_ERROR;
    }
    te_link *link = NULL;
    if (status == MS_OK) {
        if (length > 0) {
            memcpy(answer, body, length);
        }
        *answer_length = length;
        status =
            te_link_open(engine, connection.descriptor, address.is_unix, true, address.text, &link);
        connection.descriptor = -1;
        if (status != MS_OK) {
            te_error(error, "no room for another connection in this process");
        }
    }
    if (status == MS_OK) {
        link->peer_context = peer_context;
        link->is_known = true;
        *peer = link->peer;
        te_link_post(link, TE_POST_ADD);
        te_link_release(link); /* the table's reference is left; the I/O thread takes its own */
    }
    if (connection.descriptor >= 0) {
        close(connection.descriptor);
    }
    free(body);
    free(flat);
    return status;
}
