/* The network of a fault run: a switch of our own between network namespaces, whose links lose, delay, reorder and
 * double packets on demand.
 *
 *     switch SEED PID ADDRESS [PID ADDRESS ...]
 *
 * Each PID is a process in a network namespace of its own, which gets a TUN device with that address (of one /24).
 * Every packet that one of them sends is read here and written to the device of its target, so the kernels' own
 * TCP sees what a bad network does to it, in one direction or both, on any kernel: netem is a module that many
 * lack, and a proxy of streams could delay bytes but never lose or reorder packets.
 *
 * Commands come as lines on standard input, and each is answered by a line:
 *
 *     link FROM TO LOST_PERMILLE DELAY_US JITTER_US DOUBLED_PERMILLE      (numbers of nodes, from 0)
 *     count                                                              (what was done so far)
 *
 * A delay keeps the order of packets; jitter, drawn for each of them, does not.  Chance comes from SEED.  At the
 * end of standard input it ends, and the devices go with it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define NODES_MAX 32
#define MTU 9000 /* jumbo frames: a packet costs two system calls here */
#define PACKET_BYTES_MAX (MTU + 64)
#define LATE_MAX 8192u /* packets under way; what comes beyond is lost, as in any switch */
#define READS_MAX 64   /* packets of one node before the next one's turn */

typedef struct late_packet {
    int64_t at_ns;
    uint64_t order; /* of two with the same time the first stays first */
    int to;
    uint32_t length;
    uint8_t *bytes;
} late_packet;

typedef struct net_link {
    uint32_t lost_permille, doubled_permille;
    int64_t delay_ns, jitter_ns;
    int64_t last_ns; /* when the latest packet without jitter arrives */
} net_link;

static int devices[NODES_MAX];
static uint32_t addresses[NODES_MAX];
static int node_count;
static net_link links[NODES_MAX][NODES_MAX];
static late_packet late[LATE_MAX];
static uint32_t late_count;
static uint64_t order_next, random_state;
static uint64_t passed, lost, delayed, reordered, doubled, overflowed;

static void fail(const char *what) {
    fprintf(stderr, "switch: %s: %s\n", what, strerror(errno));
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* splitmix64 */
static uint64_t draw(uint64_t below) {
    uint64_t mixed = random_state += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return (mixed ^ mixed >> 31) % below;
}

/* ---- devices ------------------------------------------------------------------------------------------------ */

static void set_address(int control, struct ifreq *request, unsigned long call, const char *text) {
    struct sockaddr_in address = {.sin_family = AF_INET};
    if (inet_pton(AF_INET, text, &address.sin_addr) != 1)
        fail(text);
    memcpy(&request->ifr_addr, &address, sizeof address);
    if (ioctl(control, call, request) != 0)
        fail("address");
}

static void bring_up(int control, struct ifreq *request) {
    if (ioctl(control, SIOCGIFFLAGS, request) != 0)
        fail("flags");
    request->ifr_flags = (short)(request->ifr_flags | IFF_UP | IFF_RUNNING);
    if (ioctl(control, SIOCSIFFLAGS, request) != 0)
        fail("up");
}

/* A device in the namespace of that process, which we keep open from here. */
static int open_device(const char *pid, const char *address) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%s/ns/net", pid);
    int space = open(path, O_RDONLY | O_CLOEXEC);
    if (space < 0 || setns(space, CLONE_NEWNET) != 0)
        fail(path);
    close(space);
    int device = open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (device < 0)
        fail("/dev/net/tun");
    struct ifreq request = {.ifr_name = "store0", .ifr_flags = IFF_TUN | IFF_NO_PI};
    if (ioctl(device, TUNSETIFF, &request) != 0)
        fail("device");
    int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (control < 0)
        fail("socket");
    set_address(control, &request, SIOCSIFADDR, address);
    set_address(control, &request, SIOCSIFNETMASK, "255.255.255.0");
    request.ifr_mtu = MTU;
    if (ioctl(control, SIOCSIFMTU, &request) != 0)
        fail("mtu");
    bring_up(control, &request);
    struct ifreq loopback = {.ifr_name = "lo"};
    bring_up(control, &loopback);
    close(control);
    return device;
}

/* ---- packets ---------------------------------------------------------------------------------------------- */

static void deliver(int to, const uint8_t *bytes, uint32_t length) {
    if (write(devices[to], bytes, length) == (ssize_t)length)
        passed++;
    else
        overflowed++;
}

static bool is_sooner(const late_packet *one, const late_packet *other) {
    return one->at_ns != other->at_ns ? one->at_ns < other->at_ns : one->order < other->order;
}

static void swap_late(uint32_t one, uint32_t other) {
    late_packet kept = late[one];
    late[one] = late[other];
    late[other] = kept;
}

static void push_late(int to, const uint8_t *bytes, uint32_t length, int64_t at_ns) {
    uint8_t *copy = late_count < LATE_MAX ? malloc(length) : NULL;
    if (copy == NULL) {
        overflowed++;
        return;
    }
    memcpy(copy, bytes, length);
    uint32_t at = late_count++;
    late[at] = (late_packet){at_ns, order_next++, to, length, copy};
    for (; at > 0 && is_sooner(&late[at], &late[(at - 1) / 2]); at = (at - 1) / 2)
        swap_late(at, (at - 1) / 2);
    delayed++;
}

static void pop_late(void) {
    free(late[0].bytes);
    late[0] = late[--late_count];
    for (uint32_t at = 0;;) {
        uint32_t least = at;
        for (uint32_t child = 2 * at + 1; child <= 2 * at + 2 && child < late_count; child++)
            if (is_sooner(&late[child], &late[least]))
                least = child;
        if (least == at)
            return;
        swap_late(at, least);
        at = least;
    }
}

static void send_once(net_link *on, int to, const uint8_t *bytes, uint32_t length) {
    if (on->delay_ns == 0 && on->jitter_ns == 0) {
        /* What was delayed before the link was mended stays ahead. */
        if (on->last_ns == 0 || on->last_ns <= now_ns()) {
            deliver(to, bytes, length);
            return;
        }
    }
    int64_t at_ns = now_ns() + on->delay_ns;
    if (on->jitter_ns > 0)
        at_ns += (int64_t)draw((uint64_t)on->jitter_ns);
    if (at_ns < on->last_ns) {
        if (on->jitter_ns > 0)
            reordered++;
        else
            at_ns = on->last_ns;
    }
    if (at_ns > on->last_ns)
        on->last_ns = at_ns;
    push_late(to, bytes, length, at_ns);
}

static void take_packet(int from, const uint8_t *bytes, uint32_t length) {
    if (length < 20 || bytes[0] >> 4 != 4)
        return; /* not IPv4: the kernel's neighbour discovery */
    uint32_t target;
    memcpy(&target, bytes + 16, sizeof target);
    int to = 0;
    while (to < node_count && addresses[to] != target)
        to++;
    if (to == node_count)
        return;
    net_link *on = &links[from][to];
    if (on->lost_permille > 0 && draw(1000) < on->lost_permille) {
        lost++;
        return;
    }
    send_once(on, to, bytes, length);
    if (on->doubled_permille > 0 && draw(1000) < on->doubled_permille) {
        doubled++;
        send_once(on, to, bytes, length);
    }
}

/* ---- commands --------------------------------------------------------------------------------------------- */

static void run_command(const char *line) {
    int from, to;
    uint32_t lost_permille, delay_us, jitter_us, doubled_permille;
    if (strcmp(line, "count") == 0) {
        printf("passed %llu lost %llu delayed %llu reordered %llu doubled %llu overflowed %llu\n",
               (unsigned long long)passed, (unsigned long long)lost, (unsigned long long)delayed,
               (unsigned long long)reordered, (unsigned long long)doubled,
               (unsigned long long)overflowed);
    } else if (sscanf(line, "link %d %d %u %u %u %u", &from, &to, &lost_permille, &delay_us,
                      &jitter_us, &doubled_permille) == 6 &&
               from >= 0 && from < node_count && to >= 0 && to < node_count) {
        net_link *on = &links[from][to];
        on->lost_permille = lost_permille;
        on->doubled_permille = doubled_permille;
        on->delay_ns = (int64_t)delay_us * 1000;
        on->jitter_ns = (int64_t)jitter_us * 1000;
        printf("ok\n");
    } else {
        printf("no such command: %s\n", line);
    }
    fflush(stdout);
}

/* False: our parent has closed its end, or has ended. */
static bool read_commands(void) {
    static char text[65536];
    static size_t length;
    ssize_t got = read(STDIN_FILENO, text + length, sizeof text - length);
    if (got <= 0)
        return got < 0 && (errno == EINTR || errno == EAGAIN);
    length += (size_t)got;
    char *line = text, *end;
    while ((end = memchr(line, '\n', length - (size_t)(line - text))) != NULL) {
        *end = '\0';
        run_command(line);
        line = end + 1;
    }
    length -= (size_t)(line - text);
    memmove(text, line, length);
    return length < sizeof text;
}

int main(int argc, char **argv) {
    if (argc < 4 || argc % 2 != 0 || (argc - 2) / 2 > NODES_MAX) {
        fprintf(stderr, "usage: switch SEED PID ADDRESS [PID ADDRESS ...]\n");
        return 2;
    }
    random_state = strtoull(argv[1], NULL, 10);
    struct pollfd polled[NODES_MAX + 1];
    for (int at = 2; at < argc; at += 2, node_count++) {
        devices[node_count] = open_device(argv[at], argv[at + 1]);
        if (inet_pton(AF_INET, argv[at + 1], &addresses[node_count]) != 1)
            fail(argv[at + 1]);
        polled[node_count] = (struct pollfd){.fd = devices[node_count], .events = POLLIN};
    }
    polled[node_count] = (struct pollfd){.fd = STDIN_FILENO, .events = POLLIN};
    printf("ready\n");
    fflush(stdout);
    static uint8_t packet[PACKET_BYTES_MAX];
    for (;;) {
        struct timespec wait = {.tv_sec = 1};
        if (late_count > 0) {
            int64_t left_ns = late[0].at_ns - now_ns();
            left_ns = left_ns < 0 ? 0 : left_ns > 1000000000 ? 1000000000 : left_ns;
            wait = (struct timespec){left_ns / 1000000000, left_ns % 1000000000};
        }
        if (ppoll(polled, (nfds_t)node_count + 1, &wait, NULL) < 0 && errno != EINTR)
            fail("poll");
        for (int from = 0; from < node_count; from++) {
            if ((polled[from].revents & POLLIN) == 0)
                continue;
            for (int reads = 0; reads < READS_MAX; reads++) {
                ssize_t length = read(devices[from], packet, sizeof packet);
                if (length <= 0)
                    break;
                take_packet(from, packet, (uint32_t)length);
            }
        }
        int64_t at_ns = late_count > 0 ? now_ns() : 0;
        while (late_count > 0 && late[0].at_ns <= at_ns) {
            deliver(late[0].to, late[0].bytes, late[0].length);
            pop_late();
        }
        if (polled[node_count].revents != 0 && !read_commands())
            return 0;
    }
}
