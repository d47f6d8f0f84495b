/* Which congestion control connections get: within this machine Reno from their first packet on, elsewhere what the system uses. */
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// flags: -Wl,--wrap=connect,--wrap=listen
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>

#include "engine_kit.h"
#include "te_internal.h"
#include "te_pacing.h"

static char error[TE_ERROR_BYTES];

static te_address address_of(const char *text) {
    te_address address;
    CHECK(te_address_parse(text, strlen(text), &address, error) == MS_OK);
    return address;
}

static bool is_controlled_by(int descriptor, const char *expected) {
    char name[16] = "";
    socklen_t length = sizeof name;
    CHECK(getsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0);
    return strcmp(name, expected) == 0;
}

/* What TCP sockets had when they began to connect or to listen, the latest of each: a connection that once has begun
 * to pace goes on, so to choose later is to choose nothing, and looks the same from the socket. */
static char at_connect[16], at_listen[16];

static void note(int descriptor, char *name) {
    int type = 0, family = 0;
    socklen_t type_length = sizeof type, family_length = sizeof family, length = 16;
    CHECK(getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &type_length) == 0);
    CHECK(getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &family, &family_length) == 0);
    if (type == SOCK_STREAM && family != AF_UNIX)
        CHECK(getsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0);
}

int __real_connect(int descriptor, const struct sockaddr *address, socklen_t length);
int __wrap_connect(int descriptor, const struct sockaddr *address, socklen_t length);
int __real_listen(int descriptor, int backlog);
int __wrap_listen(int descriptor, int backlog);

int __wrap_connect(int descriptor, const struct sockaddr *address, socklen_t length) {
    note(descriptor, at_connect);
    return __real_connect(descriptor, address, length);
}

int __wrap_listen(int descriptor, int backlog) {
    note(descriptor, at_listen);
    return __real_listen(descriptor, backlog);
}

static void expect_noted(char *name, const char *expected) {
    CHECK(strcmp(name, expected) == 0);
    name[0] = '\0';
}

static int accept_one(int listener, struct sockaddr_storage *from) {
    struct pollfd waited = {.fd = listener, .events = POLLIN};
    socklen_t length = sizeof *from;
    CHECK(poll(&waited, 1, 10000) == 1);
    return accept4(listener, (struct sockaddr *)from, &length, SOCK_CLOEXEC);
}

/* Both ways to connect, and both ends. */
static void nothing_paces_within_this_machine(const char *any, const char *pattern) {
    te_address at = address_of(any);
    struct sockaddr_storage from;
    char text[64];
    uint16_t port = 0;
    int listener = -1, begun = -1, connected = -1;
    CHECK(te_socket_listen(&at, &listener, &port, error) == MS_OK);
    expect_noted(at_listen, "reno");
    snprintf(text, sizeof text, pattern, (unsigned)port);
    at = address_of(text);
    ms_status status = te_socket_begin(&at, &begun, error);
    CHECK(status == MS_OK || status == MS_PENDING);
    expect_noted(at_connect, "reno");
    CHECK(te_socket_connect(&at, te_now_ns() + 10 * TE_NS_PER_S, &connected, error) == MS_OK);
    expect_noted(at_connect, "reno");
    for (int i = 0; i < 2; i++) {
        int accepted = accept_one(listener, &from);
        CHECK(accepted >= 0);
        te_pace_from_elsewhere(accepted, (struct sockaddr *)&from); /* it is from here */
        CHECK(is_controlled_by(accepted, "reno"));
        close(accepted);
    }
    CHECK(is_controlled_by(begun, "reno") && is_controlled_by(connected, "reno"));
    close(connected);
    close(begun);
    close(listener);
}

/* One that was accepted from another machine has what the system uses, though its listener has not. */
static void what_comes_from_elsewhere_is_as_usual(void) {
    te_address at = address_of("127.0.0.1:0"), elsewhere = address_of("192.0.2.1:9");
    struct sockaddr_storage from;
    char text[64], usual[16] = "";
    uint16_t port = 0;
    socklen_t length = sizeof usual;
    int listener = -1, connected = -1, fresh = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(getsockopt(fresh, IPPROTO_TCP, TCP_CONGESTION, usual, &length) == 0);
    CHECK(te_socket_listen(&at, &listener, &port, error) == MS_OK);
    snprintf(text, sizeof text, "127.0.0.1:%u", (unsigned)port);
    at = address_of(text);
    CHECK(te_socket_connect(&at, te_now_ns() + 10 * TE_NS_PER_S, &connected, error) == MS_OK);
    int accepted = accept_one(listener, &from);
    CHECK(accepted >= 0 && is_controlled_by(accepted, "reno"));
    te_pace_from_elsewhere(accepted, (struct sockaddr *)&elsewhere.storage);
    CHECK(is_controlled_by(accepted, usual));
    close(accepted);
    close(connected);
    close(listener);

    te_unpace_before_connect(fresh, &elsewhere);
    CHECK(is_controlled_by(fresh, usual));
    close(fresh);
}

/* Another choice than the listener's, from a route, stays. */
static void what_a_route_said_stays(void) {
    te_address elsewhere = address_of("192.0.2.1:9");
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, "cubic", 5) == 0) {
        te_pace_from_elsewhere(descriptor, (struct sockaddr *)&elsewhere.storage);
        CHECK(is_controlled_by(descriptor, "cubic"));
    }
    close(descriptor);
}

static bool is_usual(const char *name) {
    int fresh = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_so = is_controlled_by(fresh, name);
    close(fresh);
    return is_so;
}

/* Where Reno is the usual one nothing can be told apart: then a network namespace of our own gets another.  False: not
 * allowed, or the kernel has no other. */
static bool another_is_usual(void) {
    static const char *const others[] = {"cubic", "bbr"};
    if (!is_usual("reno"))
        return true;
    struct ifreq loopback = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    if (geteuid() != 0 || unshare(CLONE_NEWNET) != 0)
        return false;
    int descriptor = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(ioctl(descriptor, SIOCSIFFLAGS, &loopback) == 0);
    close(descriptor);
    for (size_t i = 0; i < sizeof others / sizeof others[0] && is_usual("reno"); i++) {
        FILE *file = fopen("/proc/sys/net/ipv4/tcp_congestion_control", "we");
        if (file == NULL)
            return false;
        fputs(others[i], file);
        fclose(file); /* fails where the kernel has not got it */
    }
    return !is_usual("reno");
}

int main(void) {
    if (!another_is_usual()) {
        fprintf(stderr, "not tried: what differs from Reno takes a kernel that has another "
                        "congestion control, and root where Reno is the usual one\n");
        CHECK(getenv("MOONCAKE_STORE_NO_SKIP") == NULL);
    }
    nothing_paces_within_this_machine("127.0.0.1:0", "127.0.0.1:%u");
    nothing_paces_within_this_machine("[::1]:0", "[::1]:%u");
    what_comes_from_elsewhere_is_as_usual();
    what_a_route_said_stays();
    return 0;
}
