// The pool of rails' connections: 10,000 of them broken without growth, and a bound that holds.
//
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// timeout: 240
#include <dirent.h>
#include <malloc.h>

#include "engine_pair.h"
#include "te_carrier.h"

#define RAILS 16
#define SEGMENTS 4
#define LENGTH (256 * KIB)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define RESETS 1500u
#define IS_MEASURED 0 /* what a sanitizer keeps back is no growth of ours */
#else
#define RESETS 10000u
#define IS_MEASURED 1
#endif

typedef struct net {
    te_engine *serving, *asking;
    uint32_t segments[SEGMENTS];
    uint8_t *here, *there;
} net;

static net net_open(uint32_t endpoints_max) {
    net made = {.serving = open_engine(2), .asking = open_engine(0)};
    char error[TE_ERROR_BYTES] = "";
    uint16_t port = 0;
    made.asking->carrier->endpoints_max = endpoints_max; /* before its thread runs */
    OK(te_serve_memory(made.serving));
    for (uint32_t i = 1; i <= RAILS; i++) {
        char host[24];
        snprintf(host, sizeof host, "127.0.0.%u", i);
        check_status(MS_OK, te_listen_tcp(made.serving, host, port, &port, error), error, __FILE__,
                     __LINE__);
    }
    made.here = malloc(LENGTH);
    made.there = malloc(LENGTH);
    OK(te_register_local_memory(made.asking, (uint64_t)(uintptr_t)made.here, LENGTH, "*"));
    OK(te_register_local_memory(made.serving, (uint64_t)(uintptr_t)made.there, LENGTH, "*"));
    for (uint32_t segment = 0; segment < SEGMENTS; segment++) {
        char addresses[RAILS * 32] = "";
        for (uint32_t i = 0; i < RAILS; i++) /* each begins with another one: another segment */
            snprintf(addresses + strlen(addresses), sizeof addresses - strlen(addresses),
                     "%s127.0.0.%u:%u", i == 0 ? "" : ",", 1 + (i + segment) % RAILS, port);
        check_status(
            MS_OK, te_open_segment(made.asking, addresses, &made.segments[segment], soon(), error),
            error, __FILE__, __LINE__);
    }
    return made;
}

static void net_close(net *gone) {
    te_engine_close(gone->asking);
    te_engine_close(gone->serving);
    free(gone->here);
    free(gone->there);
}

/* Both directions of each segment, every byte. */
static void move_all(net *on, uint64_t seed) {
    for (uint32_t segment = 0; segment < SEGMENTS; segment++) {
        te_transfer_status status;
        te_transfer_request request = {.opcode = TE_WRITE,
                                       .segment = on->segments[segment],
                                       .local_address = (uint64_t)(uintptr_t)on->here,
                                       .remote_offset = (uint64_t)(uintptr_t)on->there,
                                       .length = LENGTH};
        memset(on->here, (int)(seed + segment) & 0xff, LENGTH);
        OK(te_transfer(on->asking, &request, 1, &status, soon()));
        check_status(MS_OK, (ms_status)status.status, "WRITE", __FILE__, __LINE__);
        memset(on->here, 0, LENGTH);
        request.opcode = TE_READ;
        OK(te_transfer(on->asking, &request, 1, &status, soon()));
        check_status(MS_OK, (ms_status)status.status, "READ", __FILE__, __LINE__);
        assert(on->here[0] == (uint8_t)(seed + segment) &&
               memcmp(on->here, on->here + 1, LENGTH - 1) == 0);
    }
}

static uint64_t resets_of(net *on) {
    uint64_t sum = 0;
    te_rail_view rail;
    for (uint32_t segment = 0; segment < SEGMENTS; segment++)
        for (uint32_t i = 0; te_segment_rail(on->asking, on->segments[segment], i, &rail) == MS_OK;
             i++)
            sum += rail.resets;
    return sum;
}

static size_t count_descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    size_t count = 0;
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static bool is_any(void *match_context, void *peer_context) {
    (void)match_context, (void)peer_context;
    return true;
}

static void break_all(net *on) {
    te_close_matching(on->serving, is_any, NULL, "on purpose");
    pause_ms(60); /* they connect again after 50 ms */
}

static void test_broken_connections_leave_nothing_behind(void) {
    net on = net_open(512);
    uint64_t round = 0;
    for (; resets_of(&on) < RESETS / 10; round++) {
        move_all(&on, round);
        break_all(&on);
    }
    move_all(&on, round);
    size_t descriptors = count_descriptors();
    size_t bytes = mallinfo2().uordblks;
    int64_t begun_ns = te_now_ns();
    for (; resets_of(&on) < RESETS; round++) {
        move_all(&on, round);
        break_all(&on);
        assert(te_now_ns() - begun_ns < 200 * TE_NS_PER_S);
    }
    move_all(&on, round);
    pause_ms(100);
    size_t descriptors_after = count_descriptors(), bytes_after = mallinfo2().uordblks;
    printf("%u resets in %.1f s: descriptors %zu, then %zu; bytes %zu, then %zu\n", RESETS,
           (double)(te_now_ns() - begun_ns) / 1e9, descriptors, descriptors_after, bytes,
           bytes_after);
    /* A connection may just be coming or going at either end. */
    assert(descriptors_after <= descriptors + 2 * SEGMENTS * RAILS);
    pthread_mutex_lock(&on.serving->peers_lock);
    uint32_t accepted = on.serving->peer_count;
    pthread_mutex_unlock(&on.serving->peers_lock);
    assert(accepted <= 2 * SEGMENTS * RAILS + 64);
    assert(!IS_MEASURED || bytes_after < bytes + (1u << 20));
    net_close(&on);
}

static void read_endpoints(void *argument) {
    net *on = ((void **)argument)[0];
    *(_Atomic uint32_t *)((void **)argument)[1] = on->asking->carrier->endpoints + 1;
}

static uint32_t endpoints_of(net *on) {
    _Atomic uint32_t found = 0;
    void *arguments[2] = {on, &found};
    OK(te_carrier_run(on->asking->carrier, read_endpoints, arguments));
    while (atomic_load(&found) == 0)
        pause_ms(1);
    return atomic_load(&found) - 1;
}

static void test_the_pool_is_bounded(void) {
    net on = net_open(8);
    for (uint64_t round = 0; round < 20; round++) {
        move_all(&on, round);
        uint32_t endpoints = endpoints_of(&on);
        assert(endpoints > 0 && endpoints <= 8);
    }
    net_close(&on);
}

int main(void) {
    test_the_pool_is_bounded();
    test_broken_connections_leave_nothing_behind();
    return 0;
}
