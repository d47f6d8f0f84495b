/* Receiving: frames, HELLO, and who answers what.
 *
 * A link's frame is received in phases.  The header comes with a small receive (TE_RECEIVE_BYTES),
 * which usually brings the body along; a larger body gets memory of its own; payload goes straight
 * to its place (serve_write.c).  A link that has moved TE_TURN_BYTES goes to the end of the run
 * list, so that one stream does not starve the others.  A link whose answers wait is not read from:
 * a peer that does not take them is held up, not buffered for.
 */
#include "te_io.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "te_fault.h"

#define SLOWEST_BYTES_PER_MS 16384u /* 16 MiB/s: what a payload is given beyond the stall timeout */
#define PAUSE_FRAMES 32u            /* answers that wait before a link is no longer read from */
#define PAUSE_BYTES (1u << 20)
#define BODY_KEPT_BYTES (256u << 10)

bool te_link_is_paused(te_link *link) {
    return link->state == TE_LINK_OPEN && link->phase == TE_PHASE_HEADER &&
           (atomic_load_explicit(&link->out_count, memory_order_relaxed) >= PAUSE_FRAMES ||
            atomic_load_explicit(&link->out_bytes, memory_order_relaxed) >= PAUSE_BYTES);
}

/* ---- frames ---------------------------------------------------------------------------------- */

static te_request request_of(te_link *link, const uint8_t *body) {
    return (te_request){
        .peer = link->peer,
        .peer_context = link->peer_context,
        .is_unix = link->is_unix,
        .descriptor = link->passed_count > 0 ? link->passed[0] : -1,
        .header = &link->header,
        .body = body,
    };
}

static bool check_header(te_link *link) {
    const ms_header *header = &link->header;
    uint32_t body_max = link->state == TE_LINK_HELLO ? MS_BODY_BYTES_MAX_HELLO : MS_BODY_BYTES_MAX;
    if (header->magic != MS_MAGIC) {
        te_link_fail(link, MS_BAD_FRAME,
                     "this is not a mooncake-store frame (it begins with %08x, not %08x)",
                     (unsigned)header->magic, MS_MAGIC);
    } else if (link->state == TE_LINK_HELLO && header->method != MS_HELLO) {
        te_link_fail(link, MS_BAD_FRAME, "the first frame must be HELLO, this is method 0x%02x",
                     (unsigned)header->method);
    } else if (header->method != MS_HELLO &&
               (header->version < MS_WIRE_VERSION_OLDEST || header->version > MS_WIRE_VERSION)) {
        te_link_fail(link, MS_VERSION_MISMATCH,
                     "a frame of wire version %u; this side speaks %u to %u",
                     (unsigned)header->version, MS_WIRE_VERSION_OLDEST, MS_WIRE_VERSION);
    } else if (header->kind > MS_ONEWAY || header->reserved != 0) {
        te_link_fail(link, MS_BAD_FRAME, "kind %u, reserved %u: not a frame of this version",
                     (unsigned)header->kind, (unsigned)header->reserved);
    } else if (header->body_length > body_max) {
        te_link_fail(link, MS_BAD_FRAME, "a body of %u bytes; at most %u are accepted",
                     (unsigned)header->body_length, (unsigned)body_max);
    } else if (header->trailer_length != 0 ||
               (header->payload_length != 0 && header->method != MS_WRITE)) {
        te_link_fail(link, MS_BAD_FRAME, "method 0x%02x has no payload and no trailer",
                     (unsigned)header->method);
    } else {
        return true;
    }
    return false;
}

static ms_status default_hello(te_engine *engine, uint8_t answer[4096], uint32_t *length) {
    ms_hello_answer fixed = {
        .version = MS_WIRE_VERSION,
        .role = MS_ROLE_ENGINE,
        .epoch = atomic_load_explicit(&engine->epoch, memory_order_relaxed),
    };
    memcpy(fixed.boot_id, engine->boot_id, sizeof fixed.boot_id);
    memset(answer, 0, sizeof fixed + 8); /* an empty name follows */
    memcpy(answer, &fixed, sizeof fixed);
    *length = sizeof fixed + 8;
    return MS_OK;
}

static void handle_hello(te_link *link, const uint8_t *body) {
    te_engine *engine = link->engine;
    if (link->header.kind != MS_REQUEST || link->header.body_length < sizeof(ms_hello)) {
        te_link_fail(link, MS_BAD_FRAME, "HELLO must be a request of at least %zu bytes",
                     sizeof(ms_hello));
        return;
    }
    memcpy(&link->hello, body, sizeof link->hello);
    if (link->hello.version_newest < MS_WIRE_VERSION_OLDEST ||
        link->hello.version_oldest > MS_WIRE_VERSION) {
        te_link_fail(link, MS_VERSION_MISMATCH,
                     "you speak wire versions %u to %u, this side speaks %u to %u",
                     (unsigned)link->hello.version_oldest, (unsigned)link->hello.version_newest,
                     MS_WIRE_VERSION_OLDEST, MS_WIRE_VERSION);
        return;
    }
    uint8_t answer[4096];
    uint32_t length = 0;
    char error[TE_ERROR_BYTES] = "";
    void *context = NULL;
    te_request request = request_of(link, body);
    bool has_service = atomic_load_explicit(&engine->is_serving, memory_order_acquire) &&
                       engine->service.on_hello != NULL;
    ms_status status = has_service ? engine->service.on_hello(engine->service.context, &request,
                                                              answer, &length, &context, error)
                                   : default_hello(engine, answer, &length);
    if (status != MS_OK) {
        error[TE_ERROR_BYTES - 1] = '\0';
        te_link_fail(link, status, "%s", error[0] != '\0' ? error : "HELLO was refused");
        return;
    }
    link->state = TE_LINK_OPEN;
    pthread_mutex_lock(&engine->peers_lock);
    link->peer_context = context;
    link->is_known = true;
    pthread_mutex_unlock(&engine->peers_lock);
    if (engine->link_opened != NULL) {
        engine->link_opened(engine, link);
    }
    struct iovec part = {.iov_base = answer, .iov_len = length};
    (void)te_link_answer(link, &link->header, MS_OK, &part, 1, NULL, 0, NULL, 0);
}

/* True when the frame has ended; false when WRITE's payload is still to come, or the link was
 * failed. */
static bool dispatch(te_link *link, const uint8_t *body) {
    te_engine *engine = link->engine;
    const te_service *service = &engine->service;
    const ms_header *header = &link->header;
    bool is_serving = atomic_load_explicit(&engine->is_serving, memory_order_acquire);
    if (link->state == TE_LINK_HELLO) {
        handle_hello(link, body);
        return link->state == TE_LINK_OPEN;
    }
    te_request request = request_of(link, body);
    if (header->kind == MS_ANSWER) {
        if (!is_serving || service->on_answer == NULL) {
            te_link_fail(link, MS_BAD_FRAME, "an answer (method 0x%02x) that nobody waits for",
                         (unsigned)header->method);
            return false;
        }
        service->on_answer(service->context, &request);
        return true;
    }
    bool is_request = header->kind == MS_REQUEST;
    switch (header->method) {
    case MS_HELLO:
        te_link_fail(link, MS_BAD_FRAME, "a second HELLO");
        return false;
    case MS_PING:
        if (is_request) {
            (void)te_link_answer(link, header, MS_OK, NULL, 0, NULL, 0, NULL, 0);
        }
        return true;
    case MS_READ:
    case MS_WRITE:
        if (!is_request) {
            te_link_fail(link, MS_BAD_FRAME, "a one-way READ or WRITE");
            return false;
        }
        if (header->method == MS_READ) {
            te_serve_read(link, &request);
            return link->state == TE_LINK_OPEN;
        }
        if ((link->hello.right & MS_RIGHT_WRITE) == 0) {
            te_link_fail(link, MS_REFUSED,
                         "a WRITE on a connection that said HELLO for reading only");
            return false;
        }
        if (te_serve_write_begin(link, &request)) {
            link->phase = TE_PHASE_PAYLOAD;
            link->frame_deadline_ns = 0; /* from now on by the length of the payload */
        }
        return false;
    default:
        break;
    }
    te_method *method = header->method < 256 ? engine->methods[header->method] : NULL;
    if (method != NULL && is_request) {
        method(engine, link, &request);
    } else if (is_serving && service->on_request != NULL) {
        service->on_request(service->context, &request);
    } else if (is_request) {
        (void)te_link_refuse(link, header, MS_BAD_REQUEST, "method 0x%02x is not served here",
                             (unsigned)header->method);
    }
    return link->state == TE_LINK_OPEN;
}

/* ---- receiving ------------------------------------------------------------------------------- */

int te_link_receive(te_link *link, struct iovec *parts, size_t count, size_t *received) {
    ssize_t came = link->is_unix ? te_socket_receive(link->descriptor, parts, count, link->passed,
                                                     sizeof link->passed / sizeof *link->passed,
                                                     &link->passed_count, MSG_DONTWAIT)
                                 : te_socket_receive(link->descriptor, parts, count, NULL, 0, NULL,
                                                     MSG_DONTWAIT);
    if (came > 0) {
        *received = (size_t)came;
        return 1;
    }
    if (came < 0 && errno == EAGAIN) {
        return 0;
    }
    bool is_mid_frame = link->phase != TE_PHASE_HEADER || link->received_end > link->received_start;
    if (is_mid_frame && link->state != TE_LINK_LINGER) {
        te_log(link->engine, "%.100s: the peer closed in the middle of a frame", link->name);
    }
    te_link_close(link, came == 0 ? "closed by the peer" : strerror(errno));
    return -1;
}

/* More bytes into `received`, whose first byte is moved to the front; `is_drained`: a short
 * receive came before, so that the socket has no more and asking it would be a wasted call. */
static int fill(te_link *link, bool *is_drained) {
    if (*is_drained) {
        return 0;
    }
    size_t kept = link->received_end - link->received_start;
    if (link->received_start > 0 && kept > 0) {
        memmove(link->received, link->received + link->received_start, kept);
    }
    link->received_start = 0;
    link->received_end = kept;
    struct iovec room = {.iov_base = link->received + kept, .iov_len = TE_RECEIVE_BYTES - kept};
    size_t came = 0;
    int outcome = te_link_receive(link, &room, 1, &came);
    if (outcome == 1) {
        link->received_end += came;
        *is_drained = came < room.iov_len;
    }
    return outcome;
}

static int receive_large_body(te_link *link, bool *is_drained) {
    size_t length = link->header.body_length;
    if (link->body_room < length) {
        free(link->body);
        link->body_room = 0;
        link->body_filled = 0;
        link->body = malloc(length);
        if (link->body == NULL) {
            te_link_fail(link, MS_NO_MEMORY, "no memory for a body of %zu bytes", length);
            return -1;
        }
        link->body_room = length;
    }
    size_t there = link->received_end - link->received_start;
    if (there > 0) {
        memcpy(link->body + link->body_filled, link->received + link->received_start, there);
        link->body_filled += there;
        link->received_start = link->received_end = 0;
    }
    while (link->body_filled < length) {
        if (*is_drained) {
            return 0;
        }
        struct iovec room = {.iov_base = link->body + link->body_filled,
                             .iov_len = length - link->body_filled};
        size_t came = 0;
        int outcome = te_link_receive(link, &room, 1, &came);
        if (outcome != 1) {
            return outcome;
        }
        *is_drained = came < room.iov_len;
        link->body_filled += came;
    }
    return 1;
}

static void end_frame(te_link *link) {
    link->phase = TE_PHASE_HEADER;
    link->frame_deadline_ns = 0;
    for (size_t i = 0; i < link->passed_count; i++) {
        close(link->passed[i]);
    }
    link->passed_count = 0;
    if (link->body_room > BODY_KEPT_BYTES) {
        free(link->body);
        link->body = NULL;
        link->body_room = 0;
    }
}

/* One phase further.  1: go on, 0: wait for the socket (or the turn is over), -1: the link is
 * closed or lingers. */
static int advance(te_link *link, bool *is_drained, size_t *moved) {
    size_t there = link->received_end - link->received_start;
    if (link->phase == TE_PHASE_HEADER) {
        if (there < sizeof link->header) {
            return fill(link, is_drained);
        }
        memcpy(&link->header, link->received + link->received_start, sizeof link->header);
        link->received_start += sizeof link->header;
        if (!check_header(link)) {
            return -1;
        }
        link->phase = TE_PHASE_BODY;
        link->body_filled = 0;
        return 1;
    }
    if (link->phase == TE_PHASE_PAYLOAD) {
        int outcome = te_serve_write_step(link, moved);
        if (outcome == 1) {
            end_frame(link);
        }
        return outcome;
    }
    const uint8_t *body;
    size_t length = link->header.body_length;
    if (length <= there) {
        if (link->received_start % 8 != 0) { /* the service reads structs from it */
            memmove(link->received, link->received + link->received_start, there);
            link->received_start = 0;
            link->received_end = there;
        }
        body = link->received + link->received_start;
        link->received_start += length;
    } else if (length <= TE_RECEIVE_BYTES) {
        return fill(link, is_drained);
    } else {
        int outcome = receive_large_body(link, is_drained);
        if (outcome != 1) {
            return outcome;
        }
        body = link->body;
    }
    *moved += sizeof link->header + length;
    te_io_enter(link);
    bool has_ended = dispatch(link, body);
    te_io_enter(NULL);
    if (has_ended) {
        end_frame(link);
    }
    return link->state == TE_LINK_OPEN ? 1 : -1;
}

static void linger(te_link *link) {
    if (!link->has_shut && atomic_load_explicit(&link->out_count, memory_order_relaxed) == 0) {
        link->has_shut = true;
        shutdown(link->descriptor, SHUT_WR);
    }
    for (int i = 0; i < 16; i++) {
        struct iovec waste = {.iov_base = te_io_staging(link->io), .iov_len = TE_STAGING_BYTES};
        size_t came;
        if (te_link_receive(link, &waste, 1, &came) != 1) {
            return;
        }
    }
    te_io_run_later(link);
}

void te_link_serve(te_link *link) {
    bool is_drained = false;
    size_t moved = 0;
    if (link->state == TE_LINK_CLOSED || !link->is_owned) {
        return;
    }
    if (atomic_load_explicit(&link->out_count, memory_order_relaxed) > 0) {
        te_link_drain(link);
    }
    while (link->state == TE_LINK_HELLO || link->state == TE_LINK_OPEN) {
        if (te_link_is_paused(link)) {
            break;
        }
        int outcome = advance(link, &is_drained, &moved);
        if (moved >= TE_TURN_BYTES && outcome >= 0) {
            te_io_run_later(link);
            break;
        }
        if (outcome != 1) {
            break;
        }
    }
    if (link->state == TE_LINK_LINGER) {
        linger(link);
    }
    if (link->state == TE_LINK_CLOSED) {
        return;
    }
    bool is_partial = link->phase != TE_PHASE_HEADER || link->received_end > link->received_start;
    if (te_link_is_paused(link)) {
        link->frame_deadline_ns = 0;
    } else if (is_partial && link->frame_deadline_ns == 0) {
        int64_t allowance_ms = (int64_t)link->engine->config.stall_timeout_ms;
        if (link->phase == TE_PHASE_PAYLOAD) {
            allowance_ms += (int64_t)(link->header.payload_length / SLOWEST_BYTES_PER_MS);
        }
        link->frame_deadline_ns = te_now_ns() + allowance_ms * TE_NS_PER_MS;
        te_io_watch_deadlines(link);
    }
    te_io_update(link);
}
