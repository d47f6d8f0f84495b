/* What the suites over RDMA share: a serving and an asking engine, and rails that break under whoever moves bytes.  NICs are
 * rxe0 to rxe3.
 *
 * What breaks them is included before this: tests/rdma/guest_network.h in the guest, elsewhere fake_network.h. */
#ifndef RDMA_KIT_H
#define RDMA_KIT_H

#include <sys/mman.h>

#include "engine_kit.h"
#include "te_rdma.h"

#define MIB (1u << 20)
#define POOL_BYTES (8u * MIB)

static kit served;
static te_engine *asker;
static te_channel *channel;
static uint64_t *words;

/* Segment 3: as a store's, with words behind which READs are checked. */
static void open_served(void) {
    kit_open(&served, "127.0.0.1", false, POOL_BYTES, NULL);
    words = calloc(POOL_BYTES / MS_PAGE_SIZE, sizeof *words);
    for (size_t i = 0; i < POOL_BYTES / MS_PAGE_SIZE; i++)
        words[i] = 1000 + i;
    te_segment_config guarded = {.segment = 3,
                                 .address = served.memory,
                                 .length = POOL_BYTES,
                                 .payload_descriptor = -1,
                                 .words_descriptor = -1,
                                 .words = words};
    guarded.ops = (te_segment_ops){
        .context = &served, .write_begin = kit_write_begin, .write_end = kit_write_end};
    CHECK_STATUS(te_segment_add(served.engine, &guarded), MS_OK);
}

static void open_pair(void) {
    open_served();
    asker = kit_asker();
    channel = kit_channel(asker, served.address, NULL, 16);
}

/* One rail: a port cannot talk to itself. */
static inline void open_pair_of_two_nics(void) {
    setenv("MOONCAKE_STORE_RDMA_DEVICES", "rxe1", 1);
    open_served();
    setenv("MOONCAKE_STORE_RDMA_DEVICES", "rxe0", 1);
    asker = kit_asker();
    unsetenv("MOONCAKE_STORE_RDMA_DEVICES");
    channel = kit_channel(asker, served.address, NULL, 16);
}

static void close_pair(void) {
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
    free(words);
}

static te_rdma_view look(void) {
    te_rdma_view view;
    te_rdma_look(asker, &view);
    return view;
}

/* What the engines say, when something is not as it should be. */
static void tell_state(void) {
    char line[TE_ERROR_BYTES];
    te_rdma_view view = look();
    while (te_engine_log_next(asker, line))
        fprintf(stderr, "asker: %s\n", line);
    while (served.engine != NULL && te_engine_log_next(served.engine, line))
        fprintf(stderr, "served: %s\n", line);
    te_channel_error(channel, line);
    fprintf(stderr,
            "channel: %s\n%u of %u NICs up, %u endpoints (%llu opened), %u queue pairs, %llu "
            "fallbacks, %llu broken, registered %llu of %llu\n",
            line, view.nics_up, view.nics, view.endpoints,
            (unsigned long long)view.endpoints_opened, view.queue_pairs,
            (unsigned long long)view.fallbacks, (unsigned long long)view.rail_failures,
            (unsigned long long)view.registered_bytes, (unsigned long long)view.wanted_bytes);
}

static void wait_for_endpoint(void) {
    int64_t until = in_ms(20000);
    uint64_t before = look().read_bytes;
    while (look().read_bytes == before) {
        uint8_t byte[8];
        void *target = byte;
        ms_read_item item = {.segment = 1, .length = 8};
        ms_read_result result;
        CHECK_STATUS(te_read(channel, &item, &target, 1, &result, in_ms(5000)), MS_OK);
        CHECK_STATUS(result.status, MS_OK);
        if (te_now_ns() >= until)
            tell_state();
        CHECK(te_now_ns() < until);
        pause_ms(5);
    }
}

static ms_status read_once(uint64_t offset, void *target, uint64_t length) {
    ms_read_item item = {.segment = 1, .offset = offset, .length = length};
    ms_read_result result;
    ms_status status = te_read(channel, &item, &target, 1, &result, in_ms(10000));
    return status == MS_OK ? (ms_status)result.status : status;
}

static ms_status write_once(uint64_t offset, const void *source, uint64_t length) {
    ms_write_item item = {.segment = 1, .offset = offset, .length = length};
    uint32_t written;
    ms_status status = te_write(channel, &item, &source, 1, NULL, 0, 0, &written, in_ms(10000));
    return status == MS_OK ? (ms_status)written : status;
}

/* Into memory that nobody may write, neither a NIC nor a copy out of a slot: refused at once, and nothing is harmed. */
static void read_into_locked_memory(void) {
    void *locked = mmap(NULL, MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(locked != MAP_FAILED);
    CHECK_STATUS(te_register_local_memory(asker, (uint64_t)(uintptr_t)locked, MIB, "*"), MS_OK);
    CHECK_STATUS(read_once(0, locked, MIB), MS_REFUSED);
    CHECK_STATUS(te_unregister_local_memory(asker, (uint64_t)(uintptr_t)locked), MS_OK);
    munmap(locked, MIB);
}

/* ---- rails that break ------------------------------------------------------------------------------------------- */

typedef struct mover {
    pthread_t thread;
    _Atomic bool is_stopping;
    _Atomic uint64_t rounds;
} mover;

static void *keep_moving(void *argument) {
    mover *self = argument;
    uint8_t *buffer = malloc(2 * MIB);
    while (!atomic_load(&self->is_stopping)) {
        uint64_t salt = atomic_load(&self->rounds) + 1000;
        fill_pattern(buffer, MIB, 4 * MIB, salt);
        CHECK_STATUS(write_once(4 * MIB, buffer, MIB), MS_OK);
        memset(buffer, 0, MIB);
        CHECK_STATUS(read_once(4 * MIB, buffer, MIB), MS_OK);
        CHECK(has_pattern(buffer, MIB, 4 * MIB, salt));
        atomic_fetch_add(&self->rounds, 1);
    }
    free(buffer);
    return NULL;
}

static void start(mover *self) {
    memset(self, 0, sizeof *self);
    CHECK(pthread_create(&self->thread, NULL, keep_moving, self) == 0);
}

static void stop(mover *self) {
    atomic_store(&self->is_stopping, true);
    pthread_join(self->thread, NULL);
    CHECK(atomic_load(&self->rounds) > 0);
}

/* So many more rounds have ended. */
static void await_rounds(const mover *self, uint64_t count) {
    uint64_t rounds = atomic_load(&self->rounds);
    for (int64_t until_ns = in_ms(20000); atomic_load(&self->rounds) < rounds + count; pause_ms(5))
        CHECK(te_now_ns() < until_ns);
}

static void await_nics(uint32_t wanted) {
    for (int64_t until_ns = in_ms(20000); look().nics_up != wanted; pause_ms(5))
        CHECK(te_now_ns() < until_ns);
}

/* More has been read by NICs. */
static void await_read_bytes(void) {
    uint64_t bytes = look().read_bytes;
    for (int64_t until_ns = in_ms(20000); look().read_bytes == bytes; pause_ms(5))
        CHECK(te_now_ns() < until_ns);
}

static void await_rail_failure(uint64_t before) {
    for (int64_t until_ns = in_ms(20000); look().rail_failures == before; pause_ms(5))
        CHECK(te_now_ns() < until_ns);
}

static void test_links_go_down_and_come_back(void) {
    mover self;
    open_pair();
    wait_for_endpoint();
    start(&self);
    await_rounds(&self, 1);
    te_rdma_view before = look();
    for (int nic = 0; nic < 2; nic++) {
        network_link_set(nic, false);
        await_nics(3 - (uint32_t)nic);
    }
    await_rounds(&self, 1); /* that had begun before */
    await_read_bytes();     /* over the other two */
    await_rail_failure(before.rail_failures);
    for (int nic = 0; nic < 2; nic++)
        network_link_set(nic, true);
    await_nics(4);
    stop(&self);
    close_pair();
}

static void test_silent_loss_of_one_way(void) {
    mover self;
    const char *set = getenv("MOONCAKE_STORE_RDMA_SILENT_MS");
    bool was_set = set != NULL;
    char silent_ms[16] = "";
    snprintf(silent_ms, sizeof silent_ms, "%s", was_set ? set : "");
    unsetenv("MOONCAKE_STORE_RDMA_SILENT_MS");
    open_pair();
    if (was_set)
        setenv("MOONCAKE_STORE_RDMA_SILENT_MS", silent_ms, 1);
    wait_for_endpoint();
    start(&self);
    await_rounds(&self, 1);
    uint64_t failures = look().rail_failures;
    network_loss_set(1, true);
    await_rounds(&self, 4);
    await_rail_failure(failures);
    network_loss_set(1, false);
    stop(&self);
    close_pair();
}

static void test_nic_is_removed(void) {
    mover self;
    open_pair();
    wait_for_endpoint();
    start(&self);
    await_rounds(&self, 1);
    network_nic_set(3, false);
    await_nics(3);
    await_rounds(&self, 1); /* that had begun before */
    await_read_bytes();
    stop(&self);
    close_pair();
    network_nic_set(3, true); /* for whoever comes next */
}

static inline bool every(void *context, void *peer_context) {
    (void)context, (void)peer_context;
    return true;
}

#endif
