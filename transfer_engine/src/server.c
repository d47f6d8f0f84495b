/* I/O threads: epoll, accepting, receiving frames, deadlines.
 *
 * A link's frame is received in phases.  The header comes with a small receive (TE_RECEIVE_BYTES),
 * which usually brings the body along; a larger body gets memory of its own; payload goes straight
 * to its place (serve_write.c).  A link that has moved TE_TURN_BYTES goes to the end of the run
 * list, so that one stream does not starve the others. A link whose answers wait is not read from:
 * a peer that does not take them is held up, not buffered for.
 *
 * With no deadline to watch and no tick to keep, a thread sleeps in epoll_wait without a timeout.
 * It never spins.
 */
#include "te_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "te_fault.h"

#define EVENTS 64
#define ACCEPTS_PER_EVENT 64
#define CHECK_PERIOD_NS (100 * TE_NS_PER_MS)
#define SLOWEST_BYTES_PER_MS 16384u /* 16 MiB/s: what a payload is given beyond the stall timeout */
#define PAUSE_FRAMES 32u /* answers waiting for the socket before a link is no longer read from */
#define PAUSE_BYTES (1u << 20)
#define BODY_KEPT_BYTES (256u << 10)
#define LISTENER_TAG 1u

typedef struct listener {
    struct listener *next;
    int descriptor;
    bool is_unix;
    char path[108];
    dev_t device; /* of the socket file, so that only our own is unlinked */
    ino_t inode;
} listener;

struct te_io {
    te_engine *engine;
    uint32_t index;
    int epoll, wake;
    int reserve; /* a descriptor to give up when there are none left, so that a caller can be told */
    pthread_t thread;
    bool is_started;

    pthread_mutex_t lock; /* mailbox, listeners */
    te_link *mail_first, *mail_last;
    listener *listeners;
    _Atomic bool has_mail;
    _Atomic bool must_sweep;

    te_link *links;
    te_link *run_first, *run_last;
    te_link *retired;
    te_link *current;
    int64_t check_ns; /* next look at the deadlines; 0 = no link has one */
    int64_t tick_ns;  /* next tick; 0 = none */
    uint8_t *staging;
};

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

/* ---- what a link waits for ------------------------------------------------------------------------------------ */

static bool is_paused(te_link *link) {
    return link->state == TE_LINK_OPEN && link->phase == TE_PHASE_HEADER &&
           (atomic_load_explicit(&link->out_count, memory_order_relaxed) >= PAUSE_FRAMES ||
            atomic_load_explicit(&link->out_bytes, memory_order_relaxed) >= PAUSE_BYTES);
}

void te_io_update(te_link *link) {
    uint32_t events =
        (is_paused(link) ? 0u : (uint32_t)EPOLLIN) | (link->wants_out ? (uint32_t)EPOLLOUT : 0u);
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

static void own(te_io *io, te_link *link) {
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

/* ---- mail from other threads ---------------------------------------------------------------------------------- */

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

static void serve(te_link *link);

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
            own(io, link);
            posts |= TE_POST_DRAIN; /* for a frame that somebody sent meanwhile */
        }
        if (posts & TE_POST_CLOSE) {
            te_link_close(link, "closed");
        } else if (posts & TE_POST_DRAIN) {
            serve(link);
        }
        te_link_release(link);
        link = next;
    }
}

/* ---- accepting ------------------------------------------------------------------------------------------------- */

static void name_peer(const struct sockaddr_storage *address, char *name, size_t size) {
    char host[INET6_ADDRSTRLEN] = "?";
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)address;
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        snprintf(name, size, "%s:%u", host, (unsigned)ntohs(v4->sin_port));
    } else {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)address;
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        snprintf(name, size, "[%s]:%u", host, (unsigned)ntohs(v6->sin6_port));
    }
}

/* A last word to somebody who gets no link: one small send, and a close. */
static void turn_away(te_engine *engine, int descriptor, const char *name, ms_status status,
                      const char *sentence) {
    ms_header request = {.method = MS_HELLO};
    ms_header header = te_answer_header(engine, &request, status, strlen(sentence), 0, 0);
    struct iovec parts[2] = {
        {.iov_base = &header, .iov_len = sizeof header},
        {.iov_base = (void *)(uintptr_t)sentence, .iov_len = strlen(sentence)}};
    (void)te_socket_send(descriptor, parts, 2, NULL, 0, MSG_DONTWAIT);
    close(descriptor);
    te_log(engine, "%.100s: %s", name, sentence);
}

static void admit(te_io *io, const listener *from, int descriptor,
                  const struct sockaddr_storage *address) {
    te_engine *engine = io->engine;
    char name[64];
    if (from->is_unix) {
        struct ucred who = {0};
        socklen_t length = sizeof who;
        int failed = getsockopt(descriptor, SOL_SOCKET, SO_PEERCRED, &who, &length);
        snprintf(name, sizeof name, "unix pid %d", (int)who.pid);
        if (failed != 0 || who.uid != geteuid()) {
            turn_away(engine, descriptor, name, MS_REFUSED,
                      "the socket is for the processes of its owner only");
            return;
        }
    } else {
        name_peer(address, name, sizeof name);
    }
    pthread_mutex_lock(&engine->peers_lock);
    bool is_full = engine->peer_count >= engine->config.connections_accepted_max;
    pthread_mutex_unlock(&engine->peers_lock);
    if (is_full) {
        turn_away(engine, descriptor, name, MS_LIMIT,
                  "no further connections are accepted: their limit is reached");
        return;
    }
    te_socket_tune(descriptor, from->is_unix);
    te_link *link = NULL;
    if (te_link_open(engine, descriptor, from->is_unix, false, name, &link) != MS_OK) {
        te_log(engine, "%.100s: no memory for another connection", name);
        return;
    }
    if (link->io == io) {
        own(io, link);
    } else {
        te_link_post(link, TE_POST_ADD);
    }
    te_link_release(link);
}

/* No descriptor is left: the one kept back lets us accept and close, instead of being woken for
 * ever. */
static void accept_and_close(te_io *io, int from) {
    te_log(io->engine,
           "a connection was closed at once: this process has no file descriptors left");
    if (io->reserve < 0) {
        struct timespec pause = {.tv_nsec = 10 * 1000000};
        nanosleep(&pause, NULL);
    } else {
        close(io->reserve);
        int descriptor = accept4(from, NULL, NULL, SOCK_CLOEXEC);
        if (descriptor >= 0) {
            close(descriptor);
        }
    }
    io->reserve = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

static void accept_some(te_io *io, const listener *from) {
    for (int i = 0; i < ACCEPTS_PER_EVENT; i++) {
        struct sockaddr_storage address = {0};
        socklen_t length = sizeof address;
        int descriptor = accept4(from->descriptor, (struct sockaddr *)&address, &length,
                                 SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (descriptor >= 0) {
            admit(io, from, descriptor, &address);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            accept_and_close(io, from->descriptor);
            return;
        } else if (errno != EINTR && errno != ECONNABORTED) {
            return;
        }
    }
}

static ms_status add_listener(te_engine *engine, const te_address *address, uint16_t *bound,
                              char *error) {
    ms_status status = te_engine_check(engine);
    if (status != MS_OK) {
        te_error(error, "the engine is closed, or was opened before a fork");
        return status;
    }
    if (engine->config.io_threads == 0) {
        te_error(error, "listening needs io_threads > 0");
        return MS_BAD_REQUEST;
    }
    listener *added = calloc(1, sizeof *added);
    if (added == NULL) {
        te_error(error, "no memory");
        return MS_NO_MEMORY;
    }
    status = te_socket_listen(address, &added->descriptor, bound, error);
    if (status != MS_OK) {
        free(added);
        return status;
    }
    added->is_unix = address->is_unix;
    struct stat file;
    if (address->is_unix) {
        snprintf(added->path, sizeof added->path, "%s",
                 ((const struct sockaddr_un *)&address->storage)->sun_path);
        if (stat(added->path, &file) == 0) {
            added->device = file.st_dev;
            added->inode = file.st_ino;
        }
    }
    te_io *io = engine->io;
    struct epoll_event event = {.events = EPOLLIN,
                                .data.u64 = (uint64_t)(uintptr_t)added | LISTENER_TAG};
    if (epoll_ctl(io->epoll, EPOLL_CTL_ADD, added->descriptor, &event) != 0) {
        te_error(error, "epoll refuses the listener: %s", strerror(errno));
        close(added->descriptor);
        free(added);
        return MS_IO_ERROR;
    }
    pthread_mutex_lock(&io->lock);
    added->next = io->listeners;
    io->listeners = added;
    pthread_mutex_unlock(&io->lock);
    return MS_OK;
}

ms_status te_listen_tcp(te_engine *engine, const char *host, uint16_t port, uint16_t *bound,
                        char *error) {
    char text[160];
    bool is_v6 = strchr(host, ':') != NULL && host[0] != '[';
    snprintf(text, sizeof text, is_v6 ? "[%s]:%u" : "%s:%u", host, (unsigned)port);
    te_address address;
    ms_status status = te_address_parse(text, strlen(text), &address, error);
    return status != MS_OK ? status : add_listener(engine, &address, bound, error);
}

ms_status te_listen_unix(te_engine *engine, const char *path, char *error) {
    char text[160];
    te_address address;
    snprintf(text, sizeof text, "unix:%s", path);
    ms_status status = te_address_parse(text, strlen(text), &address, error);
    return status != MS_OK ? status : add_listener(engine, &address, NULL, error);
}

/* ---- frames ------------------------------------------------------------------------------------------------------ */

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

/* ---- receiving ----------------------------------------------------------------------------------------------------- */

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

/* Everything that a link can do now. */
static void serve(te_link *link) {
    bool is_drained = false;
    size_t moved = 0;
    if (link->state == TE_LINK_CLOSED || !link->is_owned) {
        return;
    }
    if (atomic_load_explicit(&link->out_count, memory_order_relaxed) > 0) {
        te_link_drain(link);
    }
    while (link->state == TE_LINK_HELLO || link->state == TE_LINK_OPEN) {
        if (is_paused(link)) {
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
    if (is_paused(link)) {
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

/* ---- the thread ------------------------------------------------------------------------------------------------------ */

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
        serve(link);
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
    if (event->data.u64 & LISTENER_TAG) {
        accept_some(io, (const listener *)(uintptr_t)(event->data.u64 & ~(uint64_t)LISTENER_TAG));
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
    serve(link);
}

static void *run_io(void *argument) {
    te_io *io = argument;
    this_io = io;
    struct epoll_event events[EVENTS];
    while (!atomic_load_explicit(&io->engine->is_stopping, memory_order_acquire)) {
        int count = epoll_wait(io->epoll, events, EVENTS, timeout_ms(io));
        for (int i = 0; i < count; i++) {
            handle_event(io, &events[i]);
        }
        if (atomic_load_explicit(&io->has_mail, memory_order_relaxed)) {
            read_mail(io);
        }
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
    }
    read_mail(io);
    while (io->links != NULL) {
        te_link_close(io->links, "this side is closing");
    }
    run_list(io);
    release_retired(io);
    return NULL;
}

/* ---- start and stop ---------------------------------------------------------------------------------------------------- */

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
        while (io->listeners != NULL) {
            listener *closed = io->listeners;
            io->listeners = closed->next;
            close(closed->descriptor);
            struct stat file;
            if (closed->is_unix && stat(closed->path, &file) == 0 &&
                file.st_dev == closed->device && file.st_ino == closed->inode) {
                unlink(closed->path);
            }
            free(closed);
        }
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
