/* Listening, and accepting connections: who is let in, and who is turned away with a word. */
#include "te_interfaces.h"
#include "te_io.h"
#include "te_pacing.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "te_fault.h"

#define ACCEPTS_PER_EVENT 64

/* ---- accepting ------------------------------------------------------------------------------- */

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

static void admit(te_io *io, const te_listener *from, int descriptor,
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
    if (!from->is_unix) {
        te_pace_from_elsewhere(descriptor, (const struct sockaddr *)address);
        te_socket_answer_by_its_interface(descriptor, (const struct sockaddr *)address);
    }
    te_link *link = NULL;
    if (te_link_open(engine, descriptor, from->is_unix, false, name, &link) != MS_OK) {
        te_log(engine, "%.100s: no memory for another connection", name);
        return;
    }
    if (link->io == io) {
        te_io_own(io, link);
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

void te_accept(te_io *io, const te_listener *from) {
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
    te_listener *added = calloc(1, sizeof *added);
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
                                .data.u64 = (uint64_t)(uintptr_t)added | TE_LISTENER_TAG};
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

void te_listeners_close(te_io *io) {
    while (io->listeners != NULL) {
        te_listener *closed = io->listeners;
        io->listeners = closed->next;
        close(closed->descriptor);
        struct stat file;
        if (closed->is_unix && stat(closed->path, &file) == 0 && file.st_dev == closed->device &&
            file.st_ino == closed->inode) {
            unlink(closed->path);
        }
        free(closed);
    }
}
