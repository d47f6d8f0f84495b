// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// library: tests/c/fake_verbs.c libibverbs.so.1
// flags: -Wl,--wrap=te_rdma_is_there
// timeout: 240
/* Batches over RDMA lanes, over NICs that are this process's memory (fake_verbs.c). */
#include <sys/mman.h>

#include "fake_network.h"
#include "rdma_lanes_suite.h"

/* rxe keeps a NIC that is removed until nobody has it open any more, so it is not tried in the guest. */
static void test_a_nic_that_comes_back_is_used_again(void) {
    net on = net_open();
    (void)move_until(&on, TE_READ, 4);
    network_nic_set(3, false);
    (void)move_until(&on, TE_READ, 3);
    network_nic_set(3, true);
    (void)move_until(&on, TE_READ, 4);
    net_close(&on);
}

/* ---- memory of a device ------------------------------------------------------------------------------------------------ */

/* Both ends have memory that this processor may not touch, and of which NICs have the descriptor; its bytes, as they see them. */
typedef struct devices {
    net on;
    int descriptors[2];
    uint8_t *bytes[2], *addresses[2]; /* here, there */
} devices;

static ms_status device_register(te_engine *engine, const uint8_t *address, int descriptor,
                                 char *error) {
    return te_register_device_memory(engine, (uint64_t)(uintptr_t)address, LENGTH, "cuda:0",
                                     descriptor, 0, error);
}

static devices devices_open(void) {
    devices made;
    char error[TE_ERROR_BYTES];
    made.on = net_open();
    for (int i = 0; i < 2; i++) {
        made.descriptors[i] = memfd_create("device", MFD_CLOEXEC);
        assert(made.descriptors[i] >= 0 && ftruncate(made.descriptors[i], LENGTH) == 0);
        made.bytes[i] =
            mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_SHARED, made.descriptors[i], 0);
        made.addresses[i] =
            mmap(NULL, LENGTH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        assert(made.bytes[i] != MAP_FAILED && made.addresses[i] != MAP_FAILED);
        check_status(MS_OK,
                     device_register(i == 0 ? made.on.asking : made.on.serving, made.addresses[i],
                                     made.descriptors[i], error),
                     error, __FILE__, __LINE__);
        close(made.descriptors[i]); /* the engine has its own */
    }
    return made;
}

static void devices_close(devices *gone) {
    net_close(&gone->on);
    for (int i = 0; i < 2; i++) {
        munmap(gone->bytes[i], LENGTH);
        munmap(gone->addresses[i], LENGTH);
    }
}

/* One request of `length` from the address here to that there. */
static ms_status move_one(net *on, int32_t opcode, const uint8_t *here, const uint8_t *there,
                          size_t length) {
    te_transfer_request request = {.opcode = opcode,
                                   .segment = on->segment,
                                   .local_address = (uint64_t)(uintptr_t)here,
                                   .remote_offset = (uint64_t)(uintptr_t)there,
                                   .length = length};
    te_transfer_status status = {0};
    OK(te_transfer(on->asking, &request, 1, &status, soon() + 20 * TE_NS_PER_S));
    return (ms_status)status.status;
}

static void test_device_memory_goes_by_lanes_alone(void) {
    devices at = devices_open();
    net *on = &at.on;
    (void)move_until(on, TE_READ, 4);
    (void)move_until(on, TE_WRITE, 4);
    const size_t sizes[] = {1, 100, 5000, MIB, LENGTH};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const size_t size = sizes[i];
        fill(at.bytes[0], LENGTH, 11 + i);
        OK(move_one(on, TE_WRITE, at.addresses[0], at.addresses[1], size));
        assert(memcmp(at.bytes[0], at.bytes[1], size) == 0);
        fill(at.bytes[1], LENGTH, 22 + i);
        OK(move_one(on, TE_READ, at.addresses[0], at.addresses[1], size));
        assert(memcmp(at.bytes[0], at.bytes[1], size) == 0);
        fill(on->here, LENGTH, 33 + i);
        OK(move_one(on, TE_WRITE, on->here, at.addresses[1], size));
        assert(memcmp(on->here, at.bytes[1], size) == 0);
        OK(move_one(on, TE_READ, at.addresses[0], on->there, size));
        assert(memcmp(at.bytes[0], on->there, size) == 0);
    }
    /* No lane of RDMA is left, and TCP carries the rest alone: at neither end is such memory touched. */
    for (int nic = 0; nic < 4; nic++)
        network_link_set(nic, false);
    (void)move_until(on, TE_READ, 0);
    (void)move_until(on, TE_WRITE, 0);
    memset(at.bytes[0], 1, LENGTH);
    memset(at.bytes[1], 2, LENGTH);
    for (int32_t opcode = TE_READ; opcode <= TE_WRITE; opcode++) {
        check_status(MS_NOT_REGISTERED, move_one(on, opcode, at.addresses[0], on->there, MIB),
                     "here", __FILE__, __LINE__);
        check_status(MS_NOT_REGISTERED, move_one(on, opcode, on->here, at.addresses[1], MIB),
                     "there", __FILE__, __LINE__);
        OK(move_one(on, opcode, on->here, on->there, MIB));
    }
    assert(at.bytes[0][0] == 1 && at.bytes[1][0] == 2);
    for (int nic = 0; nic < 4; nic++)
        network_link_set(nic, true);
    devices_close(&at);
}

/* Among the lines since it was asked last. */
static bool is_line_told(te_engine *engine, const char *text) {
    char line[TE_ERROR_BYTES];
    while (te_engine_log_next(engine, line)) {
        fprintf(stderr, "%s\n", line);
        if (strstr(line, text) != NULL)
            return true;
    }
    return false;
}

static void await_line(te_engine *engine, const char *text) {
    for (int64_t until_ns = soon(); !is_line_told(engine, text); pause_ms(5))
        assert(te_now_ns() < until_ns);
}

/* The others have it: what is cut for that NIC goes by them. */
static void test_a_nic_that_comes_and_refuses_device_memory_is_gone_round(void) {
    devices at = devices_open();
    net *on = &at.on;
    network_nic_set(3, false);
    for (int32_t opcode = TE_READ; opcode <= TE_WRITE; opcode++)
        (void)move_until(on, opcode, 3);
    fake_fail(FAKE_REGISTER_DEVICE, 0, 2); /* once at each end */
    network_nic_set(3, true);
    await_line(on->asking, "rxe3 cannot register 8 MiB of device memory");
    await_line(on->serving, "rxe3 cannot register 8 MiB of device memory");
    for (int32_t opcode = TE_READ; opcode <= TE_WRITE; opcode++)
        (void)move_until(on, opcode, 4);
    for (size_t i = 0; i < 16; i++) {
        const size_t size = i % 2 == 0 ? LENGTH : 65536;
        fill(at.bytes[0], LENGTH, 11 + i);
        OK(move_one(on, TE_WRITE, at.addresses[0], at.addresses[1], size));
        assert(memcmp(at.bytes[0], at.bytes[1], size) == 0);
        OK(move_one(on, TE_WRITE, at.addresses[0], on->there, size));
        assert(memcmp(at.bytes[0], on->there, size) == 0);
        fill(at.bytes[1], LENGTH, 22 + i);
        OK(move_one(on, TE_READ, at.addresses[0], at.addresses[1], size));
        assert(memcmp(at.bytes[0], at.bytes[1], size) == 0);
        OK(move_one(on, TE_READ, on->here, at.addresses[1], size));
        assert(memcmp(on->here, at.bytes[1], size) == 0);
    }
    /* With two NICs left, of which one refuses, each lane has one that does, at one of its ends. */
    network_link_set(1, false);
    network_link_set(2, false);
    int64_t until_ns = soon() + 10 * TE_NS_PER_S;
    for (bool is_told = false; !is_told; pause_ms(5)) {
        check_status(MS_NOT_REGISTERED,
                     move_one(on, TE_READ, at.addresses[0], at.addresses[1], 65536), "by no NIC",
                     __FILE__, __LINE__);
        is_told = is_line_told(on->asking, "no NIC that is up reaches the device memory at ");
        assert(te_now_ns() < until_ns);
    }
    network_link_set(1, true);
    network_link_set(2, true);
    devices_close(&at);
}

/* Until it goes by NICs: requests that meet a lane whose other end has gone may be refused, or go over TCP. */
static void await_nics_left(devices *at, int32_t opcode) {
    net *on = &at->on;
    int64_t until_ns = soon() + 10 * TE_NS_PER_S;
    uint64_t resets;
    int up;
    while (move_one(on, opcode, at->addresses[0], at->addresses[1], MIB) != MS_OK) {
        assert(te_now_ns() < until_ns);
        pause_ms(5);
    }
    while ((move(on, opcode, MIB, 5).rails & ~look(on, opcode, &up, &resets)) != 0) {
        assert(te_now_ns() < until_ns);
        pause_ms(5);
    }
}

static void set_link(int nic, bool is_there) { network_link_set(nic, is_there); }
static void set_nic(int nic, bool is_there) { network_nic_set(nic, is_there); }

/* Both sides lose two, any: those that are left of each find each other, whomever they had before. */
static void test_lanes_pair_again_with_what_is_left(void (*set)(int nic, bool is_there)) {
    devices at = devices_open();
    for (int a = 0; a < 4; a++)
        for (int b = a + 1; b < 4; b++) {
            for (int32_t opcode = TE_READ; opcode <= TE_WRITE; opcode++)
                (void)move_until(&at.on, opcode, 4);
            set(a, false);
            set(b, false);
            for (int32_t opcode = TE_READ; opcode <= TE_WRITE; opcode++) {
                int64_t begun_ns = te_now_ns();
                await_nics_left(&at, opcode);
                fprintf(stderr, "without rxe%d and rxe%d: %.0f ms\n", a, b,
                        (double)(te_now_ns() - begun_ns) * 1e-6);
            }
            set(a, true);
            set(b, true);
        }
    devices_close(&at);
}

static void test_lanes_pair_again_when_links_are_down(void) {
    test_lanes_pair_again_with_what_is_left(set_link);
}

static void test_lanes_pair_again_when_nics_are_gone(void) {
    test_lanes_pair_again_with_what_is_left(set_nic);
}

/* Without a path over rails, too: the first request to a peer, and one of the same host. */
static void test_device_memory_has_no_other_way(bool is_same_host) {
    setenv("MOONCAKE_STORE_RDMA", "0", 1);
    te_engine *serving = open_engine(2), *lonely = open_engine(0);
    unsetenv("MOONCAKE_STORE_RDMA");
    net on = {.serving = serving, .asking = open_engine(0)};
    char error[TE_ERROR_BYTES] = "", address[64], socket_path[64];
    uint16_t port;
    int descriptor = memfd_create("device", MFD_CLOEXEC);
    uint8_t *device =
        mmap(NULL, LENGTH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert(descriptor >= 0 && ftruncate(descriptor, LENGTH) == 0 && device != MAP_FAILED);
    check_status(MS_NOT_REGISTERED, device_register(lonely, device, descriptor, error), "no NIC",
                 __FILE__, __LINE__);
    assert(strstr(error, "no RDMA NIC") != NULL);
    te_engine_close(lonely);
    OK(te_serve_memory(serving));
    OK(te_listen_tcp(serving, "127.0.0.1", 0, &port, error));
    snprintf(address, sizeof address, "127.0.0.1:%u", port);
    snprintf(socket_path, sizeof socket_path, "/tmp/te-device-%d.sock", (int)getpid());
    if (is_same_host) {
        OK(te_listen_unix(serving, socket_path, error));
        OK(te_publish_unix(serving, socket_path));
    }
    on.here = calloc(1, LENGTH);
    void *shared;
    OK(te_shared_alloc(serving, LENGTH, &shared));
    on.there = shared;
    OK(te_register_local_memory(serving, (uint64_t)(uintptr_t)on.there, LENGTH, "*"));
    OK(device_register(on.asking, device, descriptor, error));
    OK(te_open_segment(on.asking, address, &on.segment, soon(), error));
    for (int32_t opcode = TE_READ; opcode <= TE_WRITE; opcode++)
        for (size_t size = 1; size <= LENGTH; size *= 64)
            check_status(MS_NOT_REGISTERED, move_one(&on, opcode, device, on.there, size),
                         "another way", __FILE__, __LINE__);
    /* What is moved together with it is not held up by it. */
    OK(te_register_local_memory(on.asking, (uint64_t)(uintptr_t)on.here, LENGTH, "*"));
    for (int32_t opcode = TE_READ; opcode <= TE_WRITE; opcode++) {
        te_transfer_request both[4];
        te_transfer_status statuses[4] = {{0}};
        for (int i = 0; i < 4; i++)
            both[i] = (te_transfer_request){
                .opcode = opcode,
                .segment = on.segment,
                .local_address =
                    (uint64_t)(uintptr_t)(i % 2 == 0 ? device : on.here) + (uint64_t)i * 100,
                .remote_offset = (uint64_t)(uintptr_t)on.there + (uint64_t)i * 100,
                .length = 100};
        OK(te_transfer(on.asking, both, 4, statuses, soon() + 20 * TE_NS_PER_S));
        for (int i = 0; i < 4; i++)
            check_status(i % 2 == 0 ? MS_NOT_REGISTERED : MS_OK, (ms_status)statuses[i].status,
                         "beside", __FILE__, __LINE__);
    }
    on.there = NULL; /* the engine's */
    net_close(&on);
    unlink(socket_path);
    close(descriptor);
    munmap(device, LENGTH);
}

/* All NICs have it, or none, and the error names the one that refused. */
static void test_device_memory_is_registered_with_every_nic(void) {
    te_engine *engine = open_engine(0);
    char error[TE_ERROR_BYTES];
    int descriptor = memfd_create("device", MFD_CLOEXEC), before = fake_count().device_regions;
    uint8_t *device =
        mmap(NULL, LENGTH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    assert(descriptor >= 0 && ftruncate(descriptor, LENGTH) == 0 && device != MAP_FAILED);
    te_rdma_view view;
    int64_t until_ns = soon();
    for (te_rdma_look(engine, &view); view.registered_bytes != view.wanted_bytes;
         te_rdma_look(engine, &view)) { /* of its own: the failure is not for that */
        assert(te_now_ns() < until_ns);
        pause_ms(1);
    }
    fake_fail(FAKE_REGISTER, 2, 1);
    check_status(MS_NOT_REGISTERED, device_register(engine, device, descriptor, error), "refused",
                 __FILE__, __LINE__);
    assert(strstr(error, "rxe2 cannot register device memory") != NULL);
    assert(fake_count().device_regions == before);
    check_status(MS_BAD_REQUEST, device_register(engine, device, -1, error), "no descriptor",
                 __FILE__, __LINE__);
    check_status(MS_BAD_REQUEST, device_register(engine, device + 1, descriptor, error),
                 "not of one page", __FILE__, __LINE__);
    OK(device_register(engine, device, descriptor, error));
    assert(fake_count().device_regions == before + 4);
    check_status(MS_BAD_REQUEST, device_register(engine, device, descriptor, error), "twice",
                 __FILE__, __LINE__);
    assert(fake_count().device_regions == before + 4);
    OK(te_unregister_local_memory(engine, (uint64_t)(uintptr_t)device));
    assert(fake_count().device_regions == before);
    OK(device_register(engine, device, descriptor, error));
    te_engine_close(engine);
    assert(fake_count().device_regions == 0);
    close(descriptor);
    munmap(device, LENGTH);
}

int main(int argc, char **argv) {
    run_suite(argc, argv);
    RUN_LANES(test_device_memory_is_registered_with_every_nic);
    test_device_memory_has_no_other_way(false);
    test_device_memory_has_no_other_way(true);
    RUN_LANES(test_device_memory_goes_by_lanes_alone);
    RUN_LANES(test_a_nic_that_comes_and_refuses_device_memory_is_gone_round);
    RUN_LANES(test_lanes_pair_again_when_links_are_down);
    RUN_LANES(test_lanes_pair_again_when_nics_are_gone);
    RUN_LANES(test_a_nic_that_comes_back_is_used_again);
    fake_counts left = fake_count();
    assert(left.queue_pairs == 0 && left.completion_queues == 0 && left.regions == 0 &&
           left.contexts == 0);
    return 0;
}
