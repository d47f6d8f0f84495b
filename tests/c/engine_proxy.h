/* A path to an engine that can be made bad: a thread that passes bytes between connections to its own port and an engine,
 * and can be told to be silent in one direction or both, to break all connections, or to refuse new ones. */
#ifndef ENGINE_PROXY_H
#define ENGINE_PROXY_H

#undef NDEBUG
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "pause.h"
#include "te_parts.h"

#define PROXY_PAIRS 64
#define PROXY_BYTES (64u << 10)

typedef struct proxy_way {
    uint8_t bytes[PROXY_BYTES];
    size_t start, end;
} proxy_way;

typedef struct proxy_pair {
    int asking, serving;
    proxy_way there, back;
} proxy_pair;

typedef struct proxy {
    pthread_t thread;
    int listener;
    uint16_t port, target;
    char address[32];
    _Atomic bool is_over;
    _Atomic bool is_silent_there,
        is_silent_back; /* nothing is passed on, towards the engine or back */
    _Atomic bool is_refusing;
    _Atomic bool keeps_serving;   /* the engine does not hear of breaks, until this is over */
    _Atomic uint32_t breaks;      /* grows: all connections are reset */
    _Atomic uint64_t bytes_per_s; /* 0: no limit */
    _Atomic uint64_t passed, accepted;
    _Atomic uint64_t held; /* bytes that have come while it is silent towards the engine */
    proxy_pair *pairs[PROXY_PAIRS];
    int kept[PROXY_PAIRS];
    uint32_t kept_count;
    _Atomic uint32_t broken;
    double credit;
    int64_t credited_ns;
} proxy;

static inline void proxy_drop(proxy *own, uint32_t index) {
    struct linger none = {.l_onoff = 1};
    proxy_pair *pair = own->pairs[index];
    setsockopt(pair->asking, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    setsockopt(pair->serving, SOL_SOCKET, SO_LINGER, &none, sizeof none);
    close(pair->asking);
    if (own->keeps_serving && own->kept_count < PROXY_PAIRS)
        own->kept[own->kept_count++] = pair->serving;
    else
        close(pair->serving);
    free(pair);
    own->pairs[index] = NULL;
}

static inline int proxy_connect(uint16_t port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    int on = 1, made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(made, (struct sockaddr *)&to, sizeof to) != 0) {
        close(made);
        return -1;
    }
    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(made, F_SETFL, O_NONBLOCK);
    return made;
}

static inline void proxy_accept(proxy *own) {
    int on = 1, asking = accept4(own->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (asking < 0)
        return;
    setsockopt(asking, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    own->accepted++;
    int serving = own->is_refusing ? -1 : proxy_connect(own->target);
    uint32_t free_one = 0;
    while (free_one < PROXY_PAIRS && own->pairs[free_one] != NULL)
        free_one++;
    if (serving < 0 || free_one == PROXY_PAIRS) {
        struct linger none = {.l_onoff = 1};
        setsockopt(asking, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        close(asking);
        if (serving >= 0)
            close(serving);
        return;
    }
    proxy_pair *pair = calloc(1, sizeof *pair);
    pair->asking = asking;
    pair->serving = serving;
    own->pairs[free_one] = pair;
}

/* False: one end has closed. */
static inline bool proxy_pass(proxy *own, int from, int to, proxy_way *way) {
    if (way->start == way->end) {
        ssize_t came = recv(from, way->bytes, sizeof way->bytes, MSG_DONTWAIT);
        if (came == 0 || (came < 0 && errno != EAGAIN))
            return false;
        way->start = 0;
        way->end = came < 0 ? 0 : (size_t)came;
    }
    size_t length = way->end - way->start;
    uint64_t rate = own->bytes_per_s;
    if (rate != 0) {
        int64_t now = te_now_ns();
        own->credit += (double)(now - own->credited_ns) * (double)rate / 1e9;
        own->credit = own->credit > 65536 ? 65536 : own->credit;
        own->credited_ns = now;
        length = (double)length > own->credit ? (size_t)own->credit : length;
    }
    if (length == 0)
        return true;
    ssize_t sent = send(to, way->bytes + way->start, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0)
        return errno == EAGAIN;
    own->credit -= rate != 0 ? (double)sent : 0;
    way->start += (size_t)sent;
    own->passed += (uint64_t)sent;
    return true;
}

static inline uint64_t proxy_held(const proxy *own) {
    uint64_t held = 0;
    for (uint32_t i = 0; i < PROXY_PAIRS; i++) {
        int waiting = 0;
        if (own->pairs[i] != NULL && ioctl(own->pairs[i]->asking, FIONREAD, &waiting) == 0)
            held += (uint64_t)waiting + own->pairs[i]->there.end - own->pairs[i]->there.start;
    }
    return held;
}

static inline void *proxy_run(void *argument) {
    proxy *own = argument;
    while (!own->is_over) {
        struct pollfd waited[1 + 2 * PROXY_PAIRS] = {{.fd = own->listener, .events = POLLIN}};
        nfds_t count = 1;
        bool is_idle = own->bytes_per_s == 0;
        for (uint32_t i = 0; i < PROXY_PAIRS; i++) {
            const proxy_pair *pair = own->pairs[i];
            if (pair == NULL)
                continue;
            short there = own->is_silent_there ? 0 : POLLIN,
                  back = own->is_silent_back ? 0 : POLLIN;
            bool has_there = pair->there.start < pair->there.end && !own->is_silent_there;
            bool has_back = pair->back.start < pair->back.end && !own->is_silent_back;
            waited[count++] = (struct pollfd){
                .fd = pair->asking, .events = (short)(has_back ? there | POLLOUT : there)};
            waited[count++] = (struct pollfd){.fd = pair->serving,
                                              .events = (short)(has_there ? back | POLLOUT : back)};
        }
        poll(waited, count, is_idle ? 5 : 1);
        if (waited[0].revents != 0)
            proxy_accept(own);
        while (!own->keeps_serving && own->kept_count > 0)
            close(own->kept[--own->kept_count]);
        uint32_t breaks = own->breaks;
        bool is_breaking = own->broken != breaks;
        for (uint32_t i = 0; i < PROXY_PAIRS; i++) {
            proxy_pair *pair = own->pairs[i];
            if (pair == NULL)
                continue;
            bool is_there = !is_breaking;
            if (is_there && !own->is_silent_there)
                is_there = proxy_pass(own, pair->asking, pair->serving, &pair->there);
            if (is_there && !own->is_silent_back)
                is_there = proxy_pass(own, pair->serving, pair->asking, &pair->back);
            if (!is_there)
                proxy_drop(own, i);
        }
        own->held = own->is_silent_there ? proxy_held(own) : 0;
        own->broken = breaks;
    }
    own->keeps_serving = false;
    while (own->kept_count > 0)
        close(own->kept[--own->kept_count]);
    for (uint32_t i = 0; i < PROXY_PAIRS; i++)
        if (own->pairs[i] != NULL)
            proxy_drop(own, i);
    return NULL;
}

/* At an address of this machine and a port; 0: any. */
static inline proxy *proxy_open_at(const char *address, uint16_t port, uint16_t target) {
    proxy *own = calloc(1, sizeof *own);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    socklen_t length = sizeof at;
    assert(inet_pton(AF_INET, address, &at.sin_addr) == 1);
    own->target = target;
    own->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert(bind(own->listener, (struct sockaddr *)&at, sizeof at) == 0);
    assert(listen(own->listener, 64) == 0);
    assert(getsockname(own->listener, (struct sockaddr *)&at, &length) == 0);
    own->port = ntohs(at.sin_port);
    own->credited_ns = te_now_ns();
    snprintf(own->address, sizeof own->address, "%s:%u", address, own->port);
    assert(pthread_create(&own->thread, NULL, proxy_run, own) == 0);
    return own;
}

static inline proxy *proxy_open(uint16_t target) { return proxy_open_at("127.0.0.1", 0, target); }

/* Resets all its connections, and returns when they are. */
static inline void proxy_break(proxy *own) {
    int64_t until_ns = te_now_ns() + 30 * TE_NS_PER_S;
    uint32_t breaks = ++own->breaks;
    while (own->broken != breaks) {
        assert(te_now_ns() < until_ns);
        pause_ms(1);
    }
}

static inline void proxy_close(proxy *own) {
    own->is_over = true;
    pthread_join(own->thread, NULL);
    close(own->listener);
    free(own);
}

#endif
