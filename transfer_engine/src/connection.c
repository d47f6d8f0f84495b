/* Asking connections: sending a request and waiting for its answer, by the thread that checked the
 * connection out.
 *
 * The waiting thread reads itself: a hand-over from an I/O thread would cost 8-12 us.  It first
 * spins for a moment on a receive that does not wait (spin.c), then blocks.  The socket has a receive and a send timeout of TE_TICK_MS, so that a plain blocking
 * call looks at the deadline often enough; the last stretch before the deadline is waited for with
 * ppoll.
 *
 * Whatever breaks off an exchange half way breaks the connection: nothing late can arrive in a
 * buffer.
 */
#include "te_internal.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "te_fault.h"

#define SCRATCH_BYTES 2048

ms_status te_connection_fail(te_connection *connection, ms_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(connection->error, sizeof connection->error, format, arguments);
    va_end(arguments);
    connection->is_broken = true;
    if (connection->channel != NULL) {
        te_channel_set_error(connection->channel, connection->error);
    }
    return status;
}

/* UNAVAILABLE: the peer itself has closed the connection, and will not carry out what it had not
 * begun.  After anything else (the path is broken) it still may. */
static ms_status status_of(int problem) {
    return problem == EPIPE || problem == ECONNRESET ? MS_UNAVAILABLE : MS_IO_ERROR;
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* False when the deadline has passed. */
static bool wait_for(int descriptor, short events, int64_t deadline_ns) {
    int64_t left = deadline_ns - te_now_ns();
    if (left <= 0) {
        return false;
    }
    struct timespec timeout = {.tv_sec = (time_t)(left / TE_NS_PER_S),
                               .tv_nsec = (long)(left % TE_NS_PER_S)};
    struct pollfd waited = {.fd = descriptor, .events = events};
    (void)ppoll(&waited, 1, &timeout,
                NULL); /* a signal or an error: the next call on the socket will tell */
    return true;
}

/* Whether a blocking call, which lasts up to TE_TICK_MS, may be made. */
static bool is_far(int64_t deadline_ns) {
    return deadline_ns - te_now_ns() > 2 * TE_TICK_MS * TE_NS_PER_MS;
}

/* With more callers than half the cores whoever answers needs the time that a lonely one may burn. */
static bool is_crowded(const te_engine *engine) {
    return atomic_load_explicit(&engine->waiting, memory_order_relaxed) > engine->spinning_max;
}

/* So many that going round all of them may take longer than a wake-up. */
static bool is_overcrowded(const te_engine *engine) {
    return atomic_load_explicit(&engine->waiting, memory_order_relaxed) > engine->turns_max;
}

static ssize_t receive_once(te_connection *connection, struct iovec *parts, size_t count,
                            int flags) {
    if (!connection->is_unix) {
        return te_socket_receive(connection->descriptor, parts, count, NULL, 0, NULL, flags);
    }
    return te_socket_receive(connection->descriptor, parts, count, connection->passed,
                             sizeof connection->passed / sizeof *connection->passed,
                             &connection->passed_count, flags);
}

static ssize_t receive_spinning(te_connection *connection, struct iovec *parts, size_t count,
                                int64_t now_ns) {
    te_engine *engine = connection->engine;
    te_spinning spinning;
    ssize_t received = receive_once(connection, parts, count, MSG_DONTWAIT);
    if (received >= 0 || errno != EAGAIN || is_overcrowded(engine) ||
        !te_spin_begin(engine, &connection->spin, now_ns, connection->spin_extra_ns,
                       is_crowded(engine) ? TE_SPIN_IN_TURNS : 0, &spinning)) {
        return received;
    }
    while (received < 0 && errno == EAGAIN && !is_overcrowded(engine) &&
           te_spin_goes_on(&spinning)) {
        received = receive_once(connection, parts, count, MSG_DONTWAIT);
    }
    te_spin_end(&spinning);
    return received;
}

/* One receive that waits at most TE_TICK_MS or until the deadline.  MS_PENDING: nothing came yet. */
static ms_status receive_some(te_connection *connection, struct iovec *parts, size_t count,
                              bool all, int64_t spin_from_ns, size_t *received,
                              int64_t deadline_ns) {
    ssize_t came;
    if (spin_from_ns != 0) {
        came = receive_spinning(connection, parts, count, spin_from_ns);
    } else if (is_far(deadline_ns)) {
        came = receive_once(connection, parts, count, all ? MSG_WAITALL : 0);
    } else if (wait_for(connection->descriptor, POLLIN, deadline_ns)) {
        came = receive_once(connection, parts, count, MSG_DONTWAIT);
    } else {
        return te_connection_fail(connection, MS_TIMEOUT, "no answer in time");
    }
    if (came < 0 && errno == EAGAIN) {
        return MS_PENDING;
    }
    if (came < 0) {
        return te_connection_fail(connection, status_of(errno), "receiving failed: %s",
                                  strerror(errno));
    }
    if (came == 0) {
        return te_connection_fail(connection, MS_UNAVAILABLE, "the peer closed the connection");
    }
    *received = (size_t)came;
    return MS_OK;
}

static ms_status receive_parts(te_connection *connection, struct iovec *parts, size_t count,
                               bool all, bool spin, size_t *received, int64_t deadline_ns) {
    te_engine *engine = connection->engine;
    size_t left = te_iov_bytes(parts, count);
    ms_status status = MS_OK;
    *received = 0;
    atomic_fetch_add_explicit(&engine->waiting, 1, memory_order_relaxed);
    if (spin && left > 0 && connection->copy.rest_ns > 0) {
        (void)wait_for(connection->descriptor, POLLIN, te_expected_ns(connection, deadline_ns));
    }
    int64_t begun_ns = spin && left > 0 ? te_now_ns() : 0;
    bool is_spinning = begun_ns != 0;
    while (left > 0) {
        size_t came = 0;
        status = receive_some(connection, parts, count, all, is_spinning ? begun_ns : 0, &came,
                              deadline_ns);
        if (status == MS_PENDING) {
            is_spinning = false;
            continue;
        }
        if (begun_ns != 0 && status == MS_OK) {
            int64_t now_ns = te_now_ns();
            te_spin_learn(engine, &connection->spin, now_ns - begun_ns - connection->spin_extra_ns);
            begun_ns = is_spinning ? now_ns : 0; /* while it flows there is no need to sleep */
        }
        *received += came;
        left -= came;
        te_iov_advance(&parts, &count, came);
        if (status != MS_OK || !all) {
            break;
        }
    }
    atomic_fetch_sub_explicit(&engine->waiting, 1, memory_order_relaxed);
    return status;
}

ms_status te_connection_receive(te_connection *connection, struct iovec *parts, size_t count,
                                bool all, bool spin, size_t *received, int64_t deadline_ns) {
    size_t left = te_iov_bytes(parts, count);
    if (!all || spin || connection->is_unix || left < TE_LOW_WATER_LEAST) {
        return receive_parts(connection, parts, count, all, spin, received, deadline_ns);
    }
    /* All but the last bytes, for which nothing would wake us, and then those. */
    size_t head = left - TE_LOW_WATER_BYTES, whole = 0, more = 0;
    while (head >= parts[whole].iov_len) {
        head -= parts[whole++].iov_len;
    }
    struct iovec split = parts[whole];
    parts[whole].iov_len = head;
    te_socket_low_water(connection->descriptor, TE_LOW_WATER_BYTES);
    ms_status status =
        receive_parts(connection, parts, whole + 1, true, spin, received, deadline_ns);
    te_socket_low_water(connection->descriptor, 1);
    if (status == MS_OK) {
        parts[whole] = (struct iovec){.iov_base = (uint8_t *)split.iov_base + head,
                                      .iov_len = split.iov_len - head};
        status = receive_parts(connection, parts + whole, count - whole, true, false, &more,
                               deadline_ns);
    }
    *received += more;
    return status;
}

/* One system call, of at most TE_SEND_BYTES: a kernel that does not preempt keeps everybody else off
 * this core until it returns. */
static ssize_t send_turn(te_connection *connection, struct iovec *parts, size_t count, size_t left,
                         int descriptor, int flags) {
    if (left <= TE_SEND_BYTES) {
        return te_socket_send(connection->descriptor, parts, count, &descriptor, descriptor >= 0,
                              flags);
    }
    size_t whole = 0, room = TE_SEND_BYTES;
    while (parts[whole].iov_len <= room) {
        room -= parts[whole++].iov_len;
    }
    size_t length = parts[whole].iov_len;
    parts[whole].iov_len = room;
    ssize_t sent = te_socket_send(connection->descriptor, parts, whole + 1, &descriptor,
                                  descriptor >= 0, flags | MSG_MORE);
    parts[whole].iov_len = length;
    return sent;
}

ms_status te_connection_send(te_connection *connection, struct iovec *parts, size_t count,
                             int descriptor, int64_t deadline_ns) {
    size_t left = te_iov_bytes(parts, count);
    while (left > 0) {
        /* The first try does not wait: mostly the socket takes everything, and no clock is read. */
        ssize_t sent = send_turn(connection, parts, count, left, descriptor, MSG_DONTWAIT);
        if (sent < 0 && errno == EAGAIN) {
            if (!is_far(deadline_ns)) {
                if (!wait_for(connection->descriptor, POLLOUT, deadline_ns)) {
                    return te_connection_fail(connection, MS_TIMEOUT,
                                              "the peer did not take the request in time");
                }
                continue;
            }
            sent = send_turn(connection, parts, count, left, descriptor, 0);
            if (sent < 0 && errno == EAGAIN) {
                continue;
            }
        }
        if (sent < 0) {
            return te_connection_fail(connection, status_of(errno), "sending failed: %s",
                                      strerror(errno));
        }
        descriptor = sent > 0 ? -1 : descriptor;
        left -= (size_t)sent;
        if (left >= TE_SEND_BYTES && (size_t)sent == TE_SEND_BYTES) {
            sched_yield(); /* else whoever waits for this core may do so until the next tick, 4 ms */
        }
        te_iov_advance(&parts, &count, (size_t)sent);
    }
    return MS_OK;
}

/* ---- frames ---------------------------------------------------------------------------------- */

uint64_t te_next_request(te_connection *connection) { return ++connection->request; }

static ms_status send_frame(te_connection *connection, uint8_t kind, uint16_t method,
                            uint32_t flags, uint64_t request, uint32_t deadline_ms,
                            const struct iovec *body, size_t body_count,
                            const struct iovec *payload, size_t payload_count, int descriptor,
                            int64_t deadline_ns) {
    struct iovec parts[TE_FRAME_IOVECS + 8];
    size_t body_length = te_iov_bytes(body, body_count);
    if (body_count + payload_count + 1 > sizeof parts / sizeof *parts ||
        body_length > MS_BODY_BYTES_MAX) {
        snprintf(connection->error, sizeof connection->error,
                 "a request of %zu bytes in %zu blocks is too large", body_length,
                 body_count + payload_count);
        return MS_TOO_LARGE;
    }
    ms_header header = {
        .magic = MS_MAGIC,
        .version = MS_WIRE_VERSION,
        .kind = kind,
        .method = method,
        .status = deadline_ms,
        .epoch = connection->epoch,
        .request = request,
        .body_length = (uint32_t)body_length,
        .payload_length = te_iov_bytes(payload, payload_count),
        .flags = flags,
    };
    parts[0] = (struct iovec){.iov_base = &header, .iov_len = sizeof header};
    if (body_count > 0) {
        memcpy(&parts[1], body, body_count * sizeof *body);
    }
    if (payload_count > 0) {
        memcpy(&parts[1 + body_count], payload, payload_count * sizeof *payload);
    }
    return te_connection_send(connection, parts, 1 + body_count + payload_count, descriptor,
                              deadline_ns);
}

ms_status te_send(te_connection *connection, uint8_t kind, uint16_t method, uint32_t flags,
                  uint64_t request, uint32_t deadline_ms, const struct iovec *body,
                  size_t body_count, const struct iovec *payload, size_t payload_count,
                  int64_t deadline_ns) {
    return send_frame(connection, kind, method, flags, request, deadline_ms, body, body_count,
                      payload, payload_count, -1, deadline_ns);
}

ms_status te_send_passing(te_connection *connection, uint8_t kind, uint16_t method, uint32_t flags,
                          uint64_t request, uint32_t deadline_ms, const struct iovec *body,
                          size_t body_count, int descriptor, int64_t deadline_ns) {
    return send_frame(connection, kind, method, flags, request, deadline_ms, body, body_count, NULL,
                      0, descriptor, deadline_ns);
}

ms_status te_connection_check(te_connection *connection, const ms_header *header) {
    if (header->magic != MS_MAGIC) {
        return te_connection_fail(connection, MS_BAD_FRAME, "the peer does not speak our protocol");
    }
    if (header->version < MS_WIRE_VERSION_OLDEST || header->version > MS_WIRE_VERSION) {
        return te_connection_fail(connection, MS_VERSION_MISMATCH,
                                  "the peer answered in wire version %u; we speak %u to %u",
                                  (unsigned)header->version, MS_WIRE_VERSION_OLDEST,
                                  MS_WIRE_VERSION);
    }
    if (header->kind != MS_ANSWER || header->body_length > MS_BODY_BYTES_MAX ||
        header->reserved != 0 || header->trailer_length > MS_BODY_BYTES_MAX ||
        header->status >= MS_STATUS_COUNT) {
        return te_connection_fail(connection, MS_BAD_FRAME, "what the peer sent is not an answer");
    }
    return MS_OK;
}

/* Header and whatever follows it into `parts` (the header is the first block); until the header is
 * complete. */
ms_status te_connection_first(te_connection *connection, const struct iovec *parts, size_t count,
                              bool spin, size_t *received, int64_t deadline_ns) {
    size_t total = 0;
    while (total < sizeof(ms_header)) {
        struct iovec left[TE_FRAME_IOVECS + 8], *next = left;
        size_t left_count = count, came = 0;
        memcpy(left, parts, count * sizeof *parts);
        te_iov_advance(&next, &left_count, total);
        ms_status status =
            te_connection_receive(connection, next, left_count, false, spin, &came, deadline_ns);
        if (status != MS_OK) {
            return status;
        }
        total += came;
        spin = false;
    }
    *received = total;
    return MS_OK;
}

/* An error's sentence (or what else does not fit) of `length` bytes, of which `there` have come:
 * read, kept as the error, and as much as fits given to the caller. */
static ms_status receive_sentence(te_connection *connection, te_reply *reply, const uint8_t *first,
                                  size_t there, int64_t deadline_ns) {
    size_t length = reply->header.body_length, came = 0;
    char *text = malloc(length + 1);
    if (text == NULL) {
        return te_connection_fail(connection, MS_NO_MEMORY, "no memory for an answer of %zu bytes",
                                  length);
    }
    memcpy(text, first, there);
    struct iovec rest = {.iov_base = text + there, .iov_len = length - there};
    ms_status status = te_connection_receive(connection, &rest, 1, true, false, &came, deadline_ns);
    if (status == MS_OK) {
        text[length] = '\0';
        snprintf(connection->error, sizeof connection->error, "%s", text);
        if (connection->channel != NULL) {
            te_channel_set_error(connection->channel, connection->error);
        }
        size_t kept = length < reply->body_size ? length : reply->body_size;
        if (kept > 0) {
            memcpy(reply->body, text, kept);
        }
        reply->header.body_length = (uint32_t)kept;
    }
    free(text);
    return status;
}

/* `whole`: body, payload and trailer one after the other into grown memory.  `exactly`: nothing
 * behind the answer is received, for a connection on which another frame may follow at once. */
static ms_status receive_answer(te_connection *connection, te_reply *reply, bool whole,
                                bool exactly, int64_t deadline_ns) {
    uint8_t scratch[SCRATCH_BYTES];
    struct iovec parts[2] = {{.iov_base = &reply->header, .iov_len = sizeof reply->header},
                             {.iov_base = scratch, .iov_len = sizeof scratch}};
    /* What follows the header is received where it most probably belongs. */
    if (!reply->grow && reply->payload_size == 0 && reply->body_size > 0) {
        parts[1] = (struct iovec){.iov_base = reply->body, .iov_len = reply->body_size};
    } else if (!reply->grow && reply->payload_size > 0 && reply->body_size == 0) {
        parts[1] = (struct iovec){.iov_base = reply->payload, .iov_len = reply->payload_size};
    }
    size_t received = 0;
    ms_status status =
        te_connection_first(connection, parts, exactly ? 1 : 2, true, &received, deadline_ns);
    if (status == MS_OK) {
        status = te_connection_check(connection, &reply->header);
    }
    if (status != MS_OK) {
        return status;
    }
    uint8_t *first = parts[1].iov_base;
    size_t there = received - sizeof reply->header;
    const ms_header *header = &reply->header;
    uint64_t total =
        (uint64_t)header->body_length + header->payload_length + header->trailer_length;
    if (there > total) {
        return te_connection_fail(connection, MS_BAD_FRAME, "the peer sent more than its answer");
    }
    if (whole && total <= MS_BODY_BYTES_MAX) {
        reply->body_size = (size_t)total;
    } else if (header->trailer_length > 0 || header->payload_length > reply->payload_size) {
        return te_connection_fail(connection, MS_LIMIT,
                                  "an answer with %llu bytes of payload, %zu were expected",
                                  (unsigned long long)header->payload_length, reply->payload_size);
    } else if (reply->grow) {
        reply->body_size = header->body_length;
    } else if (header->body_length > reply->body_size) {
        if (header->status == MS_OK || header->payload_length > 0) {
            return te_connection_fail(connection, MS_LIMIT,
                                      "an answer of %u bytes, there is room for %zu",
                                      (unsigned)header->body_length, reply->body_size);
        }
        return receive_sentence(connection, reply, first, there, deadline_ns);
    }
    if (reply->grow) {
        reply->body = malloc(reply->body_size + 1);
        if (reply->body == NULL) {
            return te_connection_fail(connection, MS_NO_MEMORY,
                                      "no memory for an answer of %zu bytes", reply->body_size);
        }
    }
    size_t body_length = whole ? (size_t)total : header->body_length;
    size_t body_there = there < body_length ? there : body_length;
    if (body_there > 0 && first != reply->body) {
        memcpy(reply->body, first, body_there);
    }
    if (there > body_there && first + body_there != reply->payload) {
        memmove(reply->payload, first + body_there, there - body_there);
    }
    struct iovec rest[2] = {{.iov_base = body_length > body_there ? reply->body + body_there : NULL,
                             .iov_len = body_length - body_there}};
    size_t rest_count = 1;
    size_t payload_there = there - body_there;
    if (!whole && header->payload_length > payload_there) {
        rest[rest_count++] =
            (struct iovec){.iov_base = (uint8_t *)reply->payload + payload_there,
                           .iov_len = (size_t)header->payload_length - payload_there};
    }
    return te_connection_receive(connection, rest, rest_count, true, false, &received, deadline_ns);
}

ms_status te_receive(te_connection *connection, te_reply *reply, int64_t deadline_ns) {
    if (reply->grow) {
        reply->body = NULL;
        reply->body_size = 0;
    }
    ms_status status = receive_answer(connection, reply, false, false, deadline_ns);
    if (status != MS_OK && reply->grow) {
        free(reply->body);
        reply->body = NULL;
    }
    return status;
}

ms_status te_receive_exactly(te_connection *connection, te_reply *reply, int64_t deadline_ns) {
    if (reply->grow) {
        reply->body = NULL;
        reply->body_size = 0;
    }
    ms_status status = receive_answer(connection, reply, false, true, deadline_ns);
    if (status != MS_OK && reply->grow) {
        free(reply->body);
        reply->body = NULL;
    }
    return status;
}

ms_status te_receive_whole(te_connection *connection, te_reply *reply, int64_t deadline_ns) {
    *reply = (te_reply){.grow = true};
    ms_status status = receive_answer(connection, reply, true, false, deadline_ns);
    if (status != MS_OK) {
        free(reply->body);
        reply->body = NULL;
    }
    return status;
}

/* ---- waiting for one of two ------------------------------------------------------------------ */

/* Something (also the end) is there to be received. */
static bool is_readable(const te_connection *connection) {
    char byte;
    ssize_t came = recv(connection->descriptor, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return came >= 0 || (errno != EAGAIN && errno != EINTR);
}

/* True: one of both is ready. */
static bool wait_spinning(te_connection *a, te_connection *b, int64_t now_ns) {
    te_engine *engine = a->engine;
    te_spinning spinning;
    if (!te_spin_begin(engine, &a->spin, now_ns, a->spin_extra_ns + b->spin_extra_ns, 0,
                       &spinning)) {
        return false;
    }
    bool is_ready;
    do {
        is_ready = is_readable(a) || is_readable(b);
    } while (!is_ready && !is_crowded(engine) && te_spin_goes_on(&spinning));
    te_spin_end(&spinning);
    return is_ready;
}

static ms_status wait_polling(te_connection *a, te_connection *b, int64_t deadline_ns) {
    for (;;) {
        int64_t left = deadline_ns - te_now_ns();
        if (left <= 0) {
            return MS_TIMEOUT;
        }
        struct timespec timeout = {.tv_sec = (time_t)(left / TE_NS_PER_S),
                                   .tv_nsec = (long)(left % TE_NS_PER_S)};
        struct pollfd waited[2] = {{.fd = a->descriptor, .events = POLLIN},
                                   {.fd = b->descriptor, .events = POLLIN}};
        if (ppoll(waited, 2, &timeout, NULL) > 0) {
            return MS_OK;
        }
    }
}

ms_status te_wait_either(te_connection *a, te_connection *b, int *which, int64_t deadline_ns) {
    atomic_fetch_add_explicit(&a->engine->waiting, 1, memory_order_relaxed);
    if (b->copy.rest_ns > 0) {
        (void)wait_polling(a, b, te_expected_ns(b, deadline_ns));
    }
    int64_t begun_ns = te_now_ns();
    ms_status status = wait_spinning(a, b, begun_ns) ? MS_OK : wait_polling(a, b, deadline_ns);
    if (status == MS_OK) {
        te_spin_learn(a->engine, &a->spin,
                      te_now_ns() - begun_ns - a->spin_extra_ns - b->spin_extra_ns);
    }
    atomic_fetch_sub_explicit(&a->engine->waiting, 1, memory_order_relaxed);
    if (status == MS_OK) {
        *which = is_readable(a) ? 0 : 1;
    }
    return status;
}

uint32_t te_connection_generation(const te_connection *connection) {
    return connection->hello_generation;
}

void te_connection_end(te_connection *connection) {
    connection->is_broken = true;
    (void)shutdown(connection->descriptor, SHUT_RDWR);
}

/* ---- HELLO ----------------------------------------------------------------------------------- */

ms_status te_connection_hello(te_connection *connection, const void *hello, size_t hello_length,
                              uint8_t **answer, size_t *answer_length, int64_t deadline_ns) {
    *answer = NULL;
    *answer_length = 0;
    connection->epoch = 0;
    struct iovec body = {.iov_base = (void *)(uintptr_t)hello, .iov_len = hello_length};
    te_reply reply = {.grow = true};
    ms_status status = te_send(connection, MS_REQUEST, MS_HELLO, 0, te_next_request(connection),
                               te_deadline_ms(deadline_ns), &body, 1, NULL, 0, deadline_ns);
    if (status == MS_OK ||
        status == MS_UNAVAILABLE) { /* who refuses us may have said why before it closed */
        /* A master sends ADOPT right behind its answer. */
        ms_status received = te_receive_exactly(connection, &reply, deadline_ns);
        status = status == MS_OK || received == MS_OK ? received : status;
    }
    if (status != MS_OK) {
        return status;
    }
    if (reply.header.status != MS_OK) {
        status = te_connection_fail(connection, (ms_status)reply.header.status, "%.*s",
                                    (int)reply.header.body_length, (const char *)reply.body);
        free(reply.body);
        return status;
    }
    /* The epoch in our frames: that of our session, else the one that the peer told us. */
    ms_hello ours;
    ms_hello_answer theirs;
    if (hello_length >= sizeof ours) {
        memcpy(&ours, hello, sizeof ours);
        connection->epoch = ours.epoch;
    }
    if (connection->epoch == 0 && reply.header.body_length >= sizeof theirs) {
        memcpy(&theirs, reply.body, sizeof theirs);
        connection->epoch = theirs.epoch;
    }
    *answer = reply.body;
    *answer_length = reply.header.body_length;
    return MS_OK;
}
