/* Batches over RDMA lanes: the slice scheduler gives them work, repeats what a NIC has lost over others, and goes over TCP when
 * no NIC is left.  NICs are rxe0 to rxe3; what breaks them is included before this. */
#ifndef RDMA_LANES_SUITE_H
#define RDMA_LANES_SUITE_H

#include "engine_pair.h"

#define LENGTH (8 * MIB)
#define SILENT_MS                                                                                  \
    "5000" /* a loaded machine is no fault of a NIC; tests of silence have the usual time */

typedef struct net {
    te_engine *serving, *asking;
    uint32_t segment;
    uint8_t *here, *there;
} net;

static net net_open(void) {
    net made = {.serving = open_engine(2), .asking = open_engine(0)};
    char error[TE_ERROR_BYTES] = "", address[64];
    uint16_t port;
    OK(te_serve_memory(made.serving));
    OK(te_listen_tcp(made.serving, "127.0.0.1", 0, &port, error));
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    made.here = aligned_alloc(4096, LENGTH);
    made.there = aligned_alloc(4096, LENGTH);
    memset(made.here, 0, LENGTH);
    memset(made.there, 0, LENGTH);
    OK(te_register_local_memory(made.asking, (uint64_t)(uintptr_t)made.here, LENGTH, "*"));
    OK(te_register_local_memory(made.serving, (uint64_t)(uintptr_t)made.there, LENGTH, "*"));
    check_status(MS_OK, te_open_segment(made.asking, address, &made.segment, soon(), error), error,
                 __FILE__, __LINE__);
    return made;
}

static void net_close(net *gone) {
    te_close_segment(gone->asking, gone->segment);
    te_engine_close(gone->asking);
    te_engine_close(gone->serving);
    free(gone->here);
    free(gone->there);
}

/* All of the memory in requests of `size`; returns what the last of them tells of itself. */
static te_transfer_explanation move(net *on, int32_t opcode, size_t size, uint64_t seed) {
    size_t count = LENGTH / size;
    te_transfer_request *requests = calloc(count, sizeof *requests);
    uint64_t batch;
    te_transfer_explanation told = {0}, all = {0};
    fill(opcode == TE_READ ? on->there : on->here, LENGTH, seed);
    for (size_t i = 0; i < count; i++)
        requests[i] =
            (te_transfer_request){.opcode = opcode,
                                  .segment = on->segment,
                                  .local_address = (uint64_t)(uintptr_t)on->here + i * size,
                                  .remote_offset = (uint64_t)(uintptr_t)on->there + i * size,
                                  .length = size};
    OK(te_allocate_batch_id(on->asking, count, &batch));
    OK(te_submit_transfer(on->asking, batch, requests, count, soon()));
    OK(te_wait_batch(on->asking, batch, soon() + 20 * TE_NS_PER_S));
    for (size_t i = 0; i < count; i++) {
        te_transfer_status status;
        OK(te_get_transfer_status(on->asking, batch, i, &status));
        check_status(MS_OK, (ms_status)status.status, "a request", __FILE__, __LINE__);
        OK(te_explain_transfer(on->asking, batch, i, &told));
        all.rails |= told.rails;
        all.retries += told.retries;
    }
    OK(te_free_batch_id(on->asking, batch));
    check_filled(opcode == TE_READ ? on->here : on->there, LENGTH, seed);
    free(requests);
    return all;
}

/* Which of the rails, as bits of their numbers, are RDMA's; and how many of them are up. */
static uint32_t look(net *on, int32_t opcode, int *up, uint64_t *resets) {
    te_rail_view view;
    uint32_t rdma = 0, index = 0;
    *up = 0;
    *resets = 0;
    for (uint32_t i = 0; te_segment_rail(on->asking, on->segment, i, &view) == MS_OK; i++) {
        if (view.opcode != opcode)
            continue;
        if (strcmp(view.transport, "rdma") == 0) {
            rdma |= 1u << index;
            *up += view.is_up;
            *resets += view.resets;
        }
        index++;
    }
    return rdma;
}

/* Moves until so many lanes of that direction are up. */
static uint32_t move_until(net *on, int32_t opcode, int wanted) {
    int64_t until_ns = te_now_ns() + 15 * TE_NS_PER_S;
    uint64_t resets;
    for (int up = -1;;) {
        (void)move(on, opcode, 2 * MIB, 77);
        uint32_t rdma = look(on, opcode, &up, &resets);
        if (up == wanted)
            return rdma;
        if (te_now_ns() >= until_ns)
            fprintf(stderr, "%d lanes are up, not %d\n", up, wanted);
        assert(te_now_ns() < until_ns);
        pause_ms(20);
    }
}

static uint64_t moved_bytes(net *on, int32_t opcode) {
    te_rdma_view view;
    te_rdma_look(on->asking, &view);
    return opcode == TE_READ ? view.read_bytes : view.write_bytes;
}

static void test_every_byte_goes_by_the_nics(void) {
    net on = net_open();
    static const size_t sizes[] = {4096, 65536, MIB, 8 * MIB};
    for (int32_t opcode = TE_READ; opcode <= TE_WRITE; opcode++) {
        uint32_t rdma = move_until(&on, opcode, 4);
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            uint64_t before = moved_bytes(&on, opcode);
            te_transfer_explanation told = move(&on, opcode, sizes[i], 100 + i);
            assert((told.rails & ~rdma) == 0 && told.rails != 0 && told.retries == 0);
            assert(moved_bytes(&on, opcode) - before == LENGTH);
            if (sizes[i] == MIB) /* spread over all NICs */
                assert(told.rails == rdma);
        }
    }
    net_close(&on);
}

static void test_a_nic_that_is_lost_is_left(void (*lose)(int nic, bool is_lost)) {
    net on = net_open();
    for (int32_t opcode = TE_READ; opcode <= TE_WRITE; opcode++) {
        uint64_t resets;
        int up;
        uint32_t rdma = move_until(&on, opcode, 4);
        lose(1, true);
        for (uint64_t seed = 1; seed < 4; seed++) {
            te_transfer_explanation told = move(&on, opcode, MIB, seed);
            assert((told.rails & rdma) != 0);
        }
        (void)look(&on, opcode, &up, &resets);
        assert(resets > 0); /* at both ends of the NIC */
        lose(1, false);
        (void)move_until(&on, opcode, 4);
    }
    net_close(&on);
}

static void set_down(int nic, bool is_down) { network_link_set(nic, !is_down); }

static void test_a_link_that_goes_down_is_left(void) { test_a_nic_that_is_lost_is_left(set_down); }

static void test_silent_loss_is_left(void) {
    unsetenv("MOONCAKE_STORE_RDMA_SILENT_MS");
    test_a_nic_that_is_lost_is_left(network_loss_set);
    setenv("MOONCAKE_STORE_RDMA_SILENT_MS", SILENT_MS, 1);
}

/* How long a lane that a NIC has broken is given slices, while there is something to move. */
static int64_t left_after_ns(net *on, int32_t opcode, void (*lose)(int nic, bool is_lost)) {
    te_transfer_request request = {.opcode = opcode,
                                   .segment = on->segment,
                                   .local_address = (uint64_t)(uintptr_t)on->here,
                                   .remote_offset = (uint64_t)(uintptr_t)on->there,
                                   .length = LENGTH};
    uint64_t batch, resets;
    int up = 0;
    (void)move_until(on, opcode, 4);
    lose(1, true);
    int64_t began_ns = te_now_ns(), took_ns = -1;
    while (took_ns < 0) {
        OK(te_allocate_batch_id(on->asking, 1, &batch));
        OK(te_submit_transfer(on->asking, batch, &request, 1, soon()));
        do {
            (void)look(on, opcode, &up, &resets);
            if (up < 4 && took_ns < 0)
                took_ns = te_now_ns() - began_ns;
        } while (te_wait_batch(on->asking, batch, te_now_ns() + TE_NS_PER_MS) == MS_TIMEOUT);
        OK(te_free_batch_id(on->asking, batch));
        assert(te_now_ns() - began_ns < 5 * TE_NS_PER_S);
    }
    lose(1, false);
    return took_ns;
}

/* The least of several: what others do with the processors is not the rail's. */
static void test_a_lane_is_left_soon(void) {
    static const struct {
        const char *name;
        void (*lose)(int nic, bool is_lost);
    } faults[] = {{"a link goes down", set_down}, {"silent loss", network_loss_set}};
    /* The NIC itself would give up after half a minute. */
    unsetenv("MOONCAKE_STORE_RDMA_SILENT_MS");
    setenv("MOONCAKE_STORE_RDMA_TIMEOUT", "20", 1);
    setenv("MOONCAKE_STORE_RDMA_RETRIES", "6", 1);
    net on = net_open();
    setenv("MOONCAKE_STORE_RDMA_SILENT_MS", SILENT_MS, 1);
    unsetenv("MOONCAKE_STORE_RDMA_TIMEOUT");
    unsetenv("MOONCAKE_STORE_RDMA_RETRIES");
    for (int32_t opcode = TE_READ; opcode <= TE_WRITE; opcode++) {
        for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
            int64_t least_ns = INT64_MAX;
            for (int round = 0; round < 4; round++) {
                int64_t took_ns = left_after_ns(&on, opcode, faults[i].lose);
                least_ns = took_ns < least_ns ? took_ns : least_ns;
            }
            printf("%s, %s: left after %.0f ms\n", faults[i].name,
                   opcode == TE_READ ? "READs" : "WRITEs", (double)least_ns * 1e-6);
            assert(least_ns < TE_NS_PER_S); /* the printed figure is judged by who reads it */
        }
    }
    net_close(&on);
}

/* All NICs are lost in the middle of it: TCP takes over, and gives back. */
static void test_without_nics_it_goes_over_tcp(void) {
    net on = net_open();
    for (int32_t opcode = TE_READ; opcode <= TE_WRITE; opcode++) {
        uint32_t rdma = move_until(&on, opcode, 4);
        for (int nic = 0; nic < 4; nic++)
            network_link_set(nic, false);
        te_transfer_explanation told = move(&on, opcode, MIB, 5);
        assert((told.rails & ~rdma) != 0);
        for (int nic = 0; nic < 4; nic++)
            network_link_set(nic, true);
        (void)move_until(&on, opcode, 4);
        told = move(&on, opcode, MIB, 6);
        assert((told.rails & ~rdma) == 0);
    }
    net_close(&on);
}

static void test_a_priority_goes_by_the_nics_too(void) {
    net on = net_open();
    uint32_t rdma = move_until(&on, TE_READ, 4);
    te_transfer_options options = {.priority = TE_PRIORITY_URGENT};
    te_transfer_request request = {.opcode = TE_READ,
                                   .segment = on.segment,
                                   .local_address = (uint64_t)(uintptr_t)on.here,
                                   .remote_offset = (uint64_t)(uintptr_t)on.there,
                                   .length = 8192};
    uint64_t batch;
    te_transfer_explanation told;
    OK(te_allocate_batch_id(on.asking, 1, &batch));
    OK(te_submit_transfer_as(on.asking, batch, &request, 1, &options, soon()));
    OK(te_wait_batch(on.asking, batch, soon()));
    OK(te_explain_transfer(on.asking, batch, 0, &told));
    assert(told.state == TE_COMPLETED && told.rails != 0 && (told.rails & ~rdma) == 0);
    OK(te_free_batch_id(on.asking, batch));
    net_close(&on);
}

/* The end of a request whose bytes go nowhere: its memory is its caller's again, and nothing comes into it. */
static void test_a_deadline_ends_it_for_good(void) {
    net on = net_open();
    (void)move_until(&on, TE_READ, 4);
    fill(on.there, LENGTH, 8);
    for (int nic = 0; nic < 4; nic++)
        network_loss_set(nic, true);
    te_transfer_request request = {.opcode = TE_READ,
                                   .segment = on.segment,
                                   .local_address = (uint64_t)(uintptr_t)on.here,
                                   .remote_offset = (uint64_t)(uintptr_t)on.there,
                                   .length = 4 * MIB};
    uint64_t batch;
    te_transfer_status status;
    int64_t begun_ns = te_now_ns();
    OK(te_allocate_batch_id(on.asking, 1, &batch));
    OK(te_submit_transfer(on.asking, batch, &request, 1, begun_ns + 30 * TE_NS_PER_MS));
    OK(te_wait_batch(on.asking, batch, soon()));
    OK(te_get_transfer_status(on.asking, batch, 0, &status));
    assert(status.status == MS_TIMEOUT || status.status == MS_OK);
    bool is_late = status.status == MS_TIMEOUT;
    assert(te_now_ns() - begun_ns < 10 * TE_NS_PER_S);
    OK(te_free_batch_id(on.asking, batch));
    memset(on.here, 0xee, LENGTH);
    for (int nic = 0; nic < 4; nic++)
        network_loss_set(nic, false);
    pause_ms(200);
    for (size_t i = 0; i < LENGTH && is_late; i++)
        assert(on.here[i] == 0xee);
    (void)move_until(&on, TE_READ, 4);
    net_close(&on);
}

/* What its kernel does for a peer that is killed: connections and queue pairs end in the middle of everything. */
static void test_a_peer_that_dies_ends_every_request(void) {
    enum { REQUESTS = 128, SIZE = 256 * 1024 };
    net on = net_open();
    te_transfer_request requests[REQUESTS];
    uint64_t batch;
    fill(on.there, LENGTH, 9);
    fill(on.here, LENGTH, 9);
    for (int32_t opcode = TE_READ; opcode <= TE_WRITE; opcode++)
        (void)move_until(&on, opcode, 4);
    for (size_t i = 0; i < REQUESTS; i++) {
        size_t offset = i * SIZE % LENGTH;
        requests[i] = (te_transfer_request){.opcode = i % 2 == 0 ? TE_READ : TE_WRITE,
                                            .segment = on.segment,
                                            .local_address = (uint64_t)(uintptr_t)on.here + offset,
                                            .remote_offset = (uint64_t)(uintptr_t)on.there + offset,
                                            .length = SIZE};
    }
    network_speed_set(100 * MIB);
    int64_t deadline_ns = 0;
    /* A busy machine may finish it all before anybody has looked. */
    for (bool is_moving = false; !is_moving;) {
        uint64_t before = moved_bytes(&on, TE_READ);
        if (deadline_ns != 0)
            OK(te_free_batch_id(on.asking, batch));
        deadline_ns = te_now_ns() + 30 * TE_NS_PER_S;
        OK(te_allocate_batch_id(on.asking, REQUESTS, &batch));
        OK(te_submit_transfer(on.asking, batch, requests, REQUESTS, deadline_ns));
        do {
            is_moving = moved_bytes(&on, TE_READ) >= before + MIB;
        } while (!is_moving &&
                 te_wait_batch(on.asking, batch, te_now_ns() + TE_NS_PER_MS) == MS_TIMEOUT);
    }
    te_engine_close(on.serving);
    network_speed_set(0);
    OK(te_wait_batch(on.asking, batch, deadline_ns)); /* none of them waits for its deadline */
    size_t completed = 0;
    for (size_t i = 0; i < REQUESTS; i++) {
        te_transfer_status status;
        OK(te_get_transfer_status(on.asking, batch, i, &status));
        completed += status.state == TE_COMPLETED;
        if (status.state == TE_COMPLETED)
            continue;
        assert(status.state == TE_FAILED);
        assert(status.status == MS_UNAVAILABLE || status.status == MS_IO_ERROR);
    }
    fprintf(stderr, "%zu of %d completed\n", completed, REQUESTS);
    OK(te_free_batch_id(on.asking, batch));
    OK(te_unregister_local_memory(on.asking, (uint64_t)(uintptr_t)on.here)); /* nobody holds it */
    on.serving = open_engine(1);                                             /* for net_close */
    net_close(&on);
}

static void test_a_peer_without_rdma_is_reached_over_tcp(void) {
    setenv("MOONCAKE_STORE_RDMA", "0", 1);
    te_engine *serving = open_engine(2);
    unsetenv("MOONCAKE_STORE_RDMA");
    net on = {.serving = serving, .asking = open_engine(0)};
    char error[TE_ERROR_BYTES] = "", address[64];
    uint16_t port;
    OK(te_serve_memory(serving));
    OK(te_listen_tcp(serving, "127.0.0.1", 0, &port, error));
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    on.here = calloc(1, LENGTH);
    on.there = calloc(1, LENGTH);
    OK(te_register_local_memory(on.asking, (uint64_t)(uintptr_t)on.here, LENGTH, "*"));
    OK(te_register_local_memory(serving, (uint64_t)(uintptr_t)on.there, LENGTH, "*"));
    OK(te_open_segment(on.asking, address, &on.segment, soon(), error));
    for (uint64_t seed = 0; seed < 3; seed++)
        assert(move(&on, TE_READ, MIB, seed).rails != 0);
    assert(moved_bytes(&on, TE_READ) == 0);
    net_close(&on);
}

#define RUN_LANES(test)                                                                            \
    do {                                                                                           \
        if (argc < 2 || strstr(#test, argv[1]) != NULL) {                                          \
            fprintf(stderr, "%s\n", #test);                                                        \
            test();                                                                                \
        }                                                                                          \
    } while (0)

static inline void run_suite(int argc, char **argv) {
    setenv("MOONCAKE_STORE_RDMA_WAIT_MS", "3000", 0);
    setenv("MOONCAKE_STORE_RDMA_SILENT_MS", SILENT_MS, 1);
    setvbuf(stderr, NULL, _IOLBF, 0);
    RUN_LANES(test_every_byte_goes_by_the_nics);
    RUN_LANES(test_a_priority_goes_by_the_nics_too);
    RUN_LANES(test_a_peer_without_rdma_is_reached_over_tcp);
    RUN_LANES(test_a_link_that_goes_down_is_left);
    RUN_LANES(test_silent_loss_is_left);
    RUN_LANES(test_a_lane_is_left_soon);
    RUN_LANES(test_without_nics_it_goes_over_tcp);
    RUN_LANES(test_a_deadline_ends_it_for_good);
    RUN_LANES(test_a_peer_that_dies_ends_every_request);
}

#endif
