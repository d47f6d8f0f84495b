/* Interfaces with real wires: two cables from a network namespace of this process to a bridge in another one.
 *
 *     here:  na 10.77.0.1, fd77::1    nb 10.77.0.3, fd77::3    lo 10.77.0.100 (a virtual address)
 *     there: bridge w 10.77.0.2, fd77::2, with pa and pb, the other ends of na and nb
 *
 * Takes root and `ip`; nothing of it outlives the processes.
 */
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// timeout: 120
#include <arpa/inet.h>
#include <dlfcn.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "engine_pair.h"
#include "te_interfaces.h"

static pid_t there; /* in the other namespace */
static _Atomic int looks;

/* The engine calls this one, which calls the C library's. */
int getifaddrs(struct ifaddrs **all) {
    int (*next)(struct ifaddrs **);
    *(void **)&next = dlsym(RTLD_NEXT, "getifaddrs");
    looks++;
    return next(all);
}

__attribute__((format(printf, 1, 2))) static void run(const char *format, ...) {
    char command[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(command, sizeof command, format, arguments);
    va_end(arguments);
    if (system(command) == 0)
        return;
    fprintf(stderr, "failed: %s\n", command);
    abort();
}

/* In the other namespace. */
#define RUN_THERE(format, ...)                                                                     \
    run("nsenter --net=/proc/%d/ns/net " format, (int)there __VA_OPT__(, ) __VA_ARGS__)

static pid_t fork_child(void) {
    pid_t child = fork();
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    return child;
}

/* False: not allowed, or no `ip`. */
static bool lay_cables(void) {
    if (geteuid() != 0 || unshare(CLONE_NEWNET) != 0 ||
        system("ip link set lo up && nsenter --version > /dev/null") != 0)
        return false;
    int ready[2];
    char done;
    assert(pipe(ready) == 0);
    there = fork_child();
    if (there == 0) {
        assert(unshare(CLONE_NEWNET) == 0 && write(ready[1], "x", 1) == 1);
        for (;;)
            pause();
    }
    assert(read(ready[0], &done, 1) == 1);
    close(ready[0]);
    close(ready[1]);
    RUN_THERE("ip link set lo up");
    RUN_THERE("ip link add w type bridge");
    for (int i = 0; i < 2; i++) {
        char name = (char)('a' + i);
        run("ip link add name n%c type veth peer name p%c netns %d", name, name, (int)there);
        RUN_THERE("ip link set p%c master w up", name);
        run("ip addr add 10.77.0.%d/24 dev n%c && ip addr add fd77::%d/64 dev n%c nodad", 2 * i + 1,
            name, 2 * i + 1, name);
        run("ip link set n%c up", name);
    }
    RUN_THERE("ip addr add 10.77.0.2/24 dev w");
    RUN_THERE("ip addr add fd77::2/64 dev w nodad");
    RUN_THERE("ip link set w up");
    run("ip addr add 10.77.0.100/32 dev lo");
    return true;
}

/* Linux answers ARP for all of its addresses on every interface; `each`: of each for its own only. */
static void set_arp(bool each) {
    run("echo %d > /proc/sys/net/ipv4/conf/all/arp_ignore", each);
    run("echo %d > /proc/sys/net/ipv4/conf/all/arp_announce", each ? 2 : 0);
    RUN_THERE("ip neigh flush dev w");
}

static struct sockaddr_storage address_of(const char *text, uint16_t port) {
    struct sockaddr_storage made = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&made;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&made;
    if (inet_pton(AF_INET, text, &v4->sin_addr) == 1) {
        v4->sin_family = AF_INET;
        v4->sin_port = htons(port);
    } else {
        assert(inet_pton(AF_INET6, text, &v6->sin6_addr) == 1);
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(port);
    }
    return made;
}

/* ---- answers -------------------------------------------------------------------------------------------------------- */

/* Somebody connects to `text`, from the other namespace or from this one: the interface to which the accepted socket is bound,
 * and how often all interfaces were looked at for that. */
static void accept_at(const char *text, bool is_from_there, const char *expected, int looks_max) {
    struct sockaddr_storage here = address_of(text, 0), from = {0};
    socklen_t length = sizeof here, from_length = sizeof from;
    int listener = socket(here.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert(bind(listener, (struct sockaddr *)&here, length) == 0 && listen(listener, 4) == 0);
    assert(getsockname(listener, (struct sockaddr *)&here, &length) == 0);
    pid_t asking = fork_child();
    if (asking == 0) {
        char path[64], byte;
        snprintf(path, sizeof path, "/proc/%d/ns/net", (int)there);
        FILE *namespace = fopen(path, "r");
        assert(!is_from_there || setns(fileno(namespace), CLONE_NEWNET) == 0);
        int own = socket(here.ss_family, SOCK_STREAM, 0);
        assert(connect(own, (struct sockaddr *)&here, length) == 0);
        _exit(read(own, &byte, 1) == 1 ? 0 : 1); /* the answer came */
    }
    int accepted = accept(listener, (struct sockaddr *)&from, &from_length);
    assert(accepted >= 0);
    looks = 0;
    te_socket_answer_by_its_interface(accepted, (struct sockaddr *)&from);
    char device[IF_NAMESIZE] = "";
    socklen_t device_length = sizeof device;
    assert(getsockopt(accepted, SOL_SOCKET, SO_BINDTODEVICE, device, &device_length) == 0);
    if (strcmp(device, expected) != 0 || looks > looks_max) {
        fprintf(stderr, "at %s: bound to \"%s\", not \"%s\"; %d looks\n", text, device, expected,
                looks);
        abort();
    }
    assert(write(accepted, "x", 1) == 1);
    int state;
    assert(waitpid(asking, &state, 0) == asking && WIFEXITED(state) && WEXITSTATUS(state) == 0);
    close(accepted);
    close(listener);
}

static void test_answers_leave_by_the_interface_of_the_question(void) {
    set_arp(true);
    accept_at("10.77.0.1", true, "na", 1);
    accept_at("10.77.0.3", true, "nb", 1);
    accept_at("fd77::1", true, "na", 1);
    accept_at("fd77::3", true, "nb", 1);
    /* From this machine: there is no wire to choose. */
    accept_at("10.77.0.3", false, "", 1);
    accept_at("fd77::3", false, "", 1);
    accept_at("10.77.0.100", false, "", 1);
    accept_at("127.0.0.1", false, "", 0);
    accept_at("::1", false, "", 0);
    /* A peer may come by either interface at any time: bound to one it would be refused by the other. */
    set_arp(false);
    accept_at("10.77.0.3", true, "", 0);
    /* Alone in its network it is what the routes take. */
    set_arp(true);
    run("ip link set nb down");
    accept_at("10.77.0.1", true, "", 1);
    run("ip link set nb up && ip addr replace fd77::3/64 dev nb nodad");
}

/* ---- questions ------------------------------------------------------------------------------------------------------ */

static void check_between(const char *here, const char *far, const char *expected) {
    struct sockaddr_storage near = address_of(here, 0), other = address_of(far, 7);
    char name[IF_NAMESIZE] = "x";
    te_interface_between((struct sockaddr *)&near, (struct sockaddr *)&other, name);
    if (strcmp(name, expected) == 0)
        return;
    fprintf(stderr, "from %s to %s: \"%s\", not \"%s\"\n", here, far, name, expected);
    abort();
}

static void test_a_connection_uses_the_wire_of_its_address(void) {
    check_between("10.77.0.1", "10.77.0.2", "na");
    check_between("10.77.0.3", "10.77.0.2", "nb");
    check_between("fd77::3", "fd77::2", "nb");
    check_between("10.77.0.1", "10.99.0.2", "");   /* behind a router */
    check_between("10.77.0.1", "10.77.0.3", "");   /* ourselves */
    check_between("10.77.0.1", "10.77.0.100", ""); /* also where the loopback holds it */
    check_between("10.77.0.1", "fd77::2", "");
    te_interfaces now;
    te_rail_ends ends[TE_RAILS_MAX];
    te_topology *nothing = calloc(1, sizeof *nothing);
    OK(te_interfaces_look(&now, AF_UNSPEC));
    assert(te_pairs_build(&now, nothing, "10.77.0.100:7,10.77.0.2:7", ends) == 3);
    assert(strcmp(ends[0].local, "") == 0 && strcmp(ends[0].remote, "10.77.0.100:7") == 0);
    free(nothing);
}

/* ---- links that are lost -------------------------------------------------------------------------------------------- */

static bool is_lost(const char *address) {
    te_interfaces now;
    OK(te_interfaces_look(&now, AF_UNSPEC));
    return te_interface_is_lost(&now, address);
}

static void await_lost(const char *address, bool expected) {
    for (int i = 0; is_lost(address) != expected; i++) { /* links come up after a moment */
        assert(i < 1000);
        pause_ms(5);
    }
}

static void test_what_is_lost(void) {
    await_lost("10.77.0.1", false);
    await_lost("10.77.0.3", false);
    await_lost("fd77::3", false);
    assert(!is_lost("10.77.0.100") && !is_lost("127.0.0.1") && is_lost("10.77.0.77"));
    RUN_THERE("ip link set pb down"); /* the cable is pulled */
    await_lost("10.77.0.3", true);
    await_lost("fd77::3", true);
    assert(!is_lost("10.77.0.1") && !is_lost("fd77::1"));
    RUN_THERE("ip link set pb up");
    await_lost("10.77.0.3", false);
    run("ip link set nb down");
    assert(is_lost("10.77.0.3"));
    run("ip link set nb up && ip addr replace fd77::3/64 dev nb nodad");
    await_lost("10.77.0.3", false);
    run("ip addr del 10.77.0.3/24 dev nb");
    assert(is_lost("10.77.0.3") && !is_lost("fd77::3"));
    run("ip addr add 10.77.0.3/24 dev nb");
}

/* ---- a lane whose cable is pulled ----------------------------------------------------------------------------------- */

/* An engine in the other namespace, which serves `length` bytes. */
static pid_t serve_there(size_t length, uint16_t *port, uint64_t *memory) {
    int told[2];
    assert(pipe(told) == 0);
    pid_t serving = fork_child();
    if (serving == 0) {
        char path[64], error[TE_ERROR_BYTES] = "";
        snprintf(path, sizeof path, "/proc/%d/ns/net", (int)there);
        FILE *namespace = fopen(path, "r");
        assert(setns(fileno(namespace), CLONE_NEWNET) == 0);
        te_engine *engine = open_engine(1);
        uint8_t *bytes = malloc(length);
        fill(bytes, length, 1);
        OK(te_serve_memory(engine));
        OK(te_register_local_memory(engine, (uint64_t)(uintptr_t)bytes, length, "*"));
        OK(te_listen_tcp(engine, "10.77.0.2", 0, port, error));
        *memory = (uint64_t)(uintptr_t)bytes;
        assert(write(told[1], port, sizeof *port) == sizeof *port);
        assert(write(told[1], memory, sizeof *memory) == sizeof *memory);
        for (;;)
            pause();
    }
    assert(read(told[0], port, sizeof *port) == sizeof *port);
    assert(read(told[0], memory, sizeof *memory) == sizeof *memory);
    close(told[0]);
    close(told[1]);
    return serving;
}

static bool find_rail(te_engine *engine, uint32_t segment, const char *local, te_rail_view *view) {
    for (uint32_t i = 0; te_segment_rail(engine, segment, i, view) == MS_OK; i++)
        if (view->opcode == TE_READ && strcmp(view->local, local) == 0)
            return true;
    return false;
}

/* The kernel says so: nobody waits for silence. */
static void test_a_lane_is_left_when_its_link_goes(void) {
    size_t length = 4 * MIB;
    uint16_t port = 0;
    uint64_t memory = 0;
    pid_t serving = serve_there(length, &port, &memory);
    te_engine *asking = open_engine(0);
    uint8_t *here = malloc(length);
    char error[TE_ERROR_BYTES] = "", addresses[128];
    uint32_t segment;
    OK(te_register_local_memory(asking, (uint64_t)(uintptr_t)here, length, "*"));
    snprintf(addresses, sizeof addresses, "10.77.0.1>10.77.0.2:%u,10.77.0.3>10.77.0.2:%u", port,
             port);
    check_status(MS_OK, te_open_segment(asking, addresses, &segment, soon(), error), error,
                 __FILE__, __LINE__);
    te_transfer_request request = {.opcode = TE_READ,
                                   .segment = segment,
                                   .local_address = (uint64_t)(uintptr_t)here,
                                   .remote_offset = memory,
                                   .length = length};
    te_transfer_status status;
    te_rail_view rail = {0};
    for (int i = 0; i < 200 && !(find_rail(asking, segment, "10.77.0.3", &rail) && rail.is_up); i++)
        OK(te_transfer(asking, &request, 1, &status, soon()));
    assert(rail.is_up);
    RUN_THERE("ip link set pb down");
    for (int i = 0; find_rail(asking, segment, "10.77.0.3", &rail) && rail.is_up; i++) {
        assert(i < 5000);
        pause_ms(1);
    }
    if (strcmp(rail.note, "its interface has lost its link") != 0) {
        fprintf(stderr, "left because: %s\n", rail.note);
        abort();
    }
    assert(find_rail(asking, segment, "10.77.0.1", &rail) && rail.is_up && rail.resets == 0);
    memset(here, 0, length);
    OK(te_transfer(asking, &request, 1, &status, soon()));
    assert(status.state == TE_COMPLETED);
    check_filled(here, length, 1);
    RUN_THERE("ip link set pb up");
    te_close_segment(asking, segment);
    te_engine_close(asking);
    free(here);
    kill(serving, SIGKILL);
    assert(waitpid(serving, NULL, 0) == serving);
}

int main(void) {
    if (!lay_cables()) {
        fprintf(stderr, "not tried: network namespaces take root, `ip` and `nsenter`\n");
        assert(getenv("MOONCAKE_STORE_NO_SKIP") == NULL);
        return 0;
    }
    test_a_connection_uses_the_wire_of_its_address();
    test_answers_leave_by_the_interface_of_the_question();
    test_what_is_lost();
    test_a_lane_is_left_when_its_link_goes();
    kill(there, SIGKILL);
    assert(waitpid(there, NULL, 0) == there);
    return 0;
}
