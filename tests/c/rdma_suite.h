/* The engine over RDMA: sizes, batches, broken rails, fences, limits.  See rdma_kit.h. */
#ifndef RDMA_SUITE_H
#define RDMA_SUITE_H

#include <dirent.h>

#include "rdma_kit.h"

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

static const uint64_t sizes[] = {
    1,     7,     8,      64,     128,    129,     4095, 4096,    4097,         65535,
    65536, 65537, 262143, 262144, 262145, MIB - 1, MIB,  MIB + 1, 3 * MIB + 17, 7 * MIB + 4097};

static void move_all_sizes(uint8_t *buffer) {
    te_rdma_view before = look();
    uint64_t total = 0;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t length = sizes[i], offset = i * 13;
        fill_pattern(served.memory, POOL_BYTES, 0, i);
        memset(buffer, 0xee, length + 1);
        CHECK_STATUS(read_once(offset, buffer, length), MS_OK);
        CHECK(has_pattern(buffer, length, offset, i) && buffer[length] == 0xee);
        fill_pattern(buffer, length, offset, i + 100);
        CHECK_STATUS(write_once(offset, buffer, length), MS_OK);
        CHECK(has_pattern(served.memory + offset, length, offset, i + 100));
        CHECK(has_pattern(served.memory + offset + length, 64, offset + length, i));
        CHECK(offset == 0 || has_pattern(served.memory, offset, 0, i));
        total += length;
    }
    te_rdma_view after = look();
    CHECK(after.read_bytes - before.read_bytes == total);
    CHECK(after.write_bytes - before.write_bytes == total);
    CHECK(after.fallbacks == before.fallbacks);
}

static void test_sizes_of_memory_that_is_not_registered(void) {
    open_pair();
    wait_for_endpoint();
    uint8_t *buffer = malloc(POOL_BYTES + 1);
    move_all_sizes(buffer);
    free(buffer);
    close_pair();
}

static void test_sizes_of_registered_memory_in_chunks(void) {
    setenv("MOONCAKE_STORE_RDMA_CHUNK_BYTES", "1000000", 1); /* a NIC that takes no more at once */
    open_pair();
    unsetenv("MOONCAKE_STORE_RDMA_CHUNK_BYTES");
    uint8_t *buffer = aligned_alloc(MS_PAGE_SIZE, POOL_BYTES + MS_PAGE_SIZE);
    memset(buffer, 0, POOL_BYTES + MS_PAGE_SIZE);
    CHECK_STATUS(te_register_local_memory(asker, (uint64_t)(uintptr_t)buffer, POOL_BYTES + 1, "*"),
                 MS_OK);
    wait_for_endpoint();
    move_all_sizes(buffer + 1);
    te_rdma_view view = look();
    CHECK(view.registered_bytes == view.wanted_bytes && view.wanted_bytes > 4 * POOL_BYTES);
    CHECK_STATUS(te_unregister_local_memory(asker, (uint64_t)(uintptr_t)buffer), MS_OK);
    free(buffer);
    close_pair();
}

static void test_many_small_items(void) {
    enum { COUNT = 1500, LENGTH = 4096 };
    static ms_read_item items[COUNT];
    static void *targets[COUNT];
    static ms_read_result results[COUNT];
    open_pair();
    wait_for_endpoint();
    uint8_t *buffer = calloc(COUNT, LENGTH);
    for (size_t i = 0; i < COUNT; i++) {
        size_t place = (i * 7 + 3) % COUNT;
        targets[i] = buffer + i * LENGTH;
        items[i] = (ms_read_item){.segment = 3,
                                  .flags = 1,
                                  .offset = place * MS_PAGE_SIZE,
                                  .length = LENGTH - i % 3,
                                  .guard_page = (uint32_t)place};
    }
    te_rdma_view before = look();
    CHECK_STATUS(te_read(channel, items, targets, COUNT, results, in_ms(20000)), MS_OK);
    for (size_t i = 0; i < COUNT; i++) {
        CHECK_STATUS(results[i].status, MS_OK);
        CHECK(results[i].word == 1000 + items[i].guard_page);
        CHECK(has_pattern(targets[i], items[i].length, items[i].offset, 1));
    }
    CHECK(look().fallbacks == before.fallbacks);
    CHECK(look().slices - before.slices >= COUNT);
    free(buffer);
    close_pair();
}

/* The word is that of after the last byte: whoever frees it between is seen. */
static void test_word_is_read_behind_the_bytes(void) {
    open_pair();
    wait_for_endpoint();
    uint8_t page[MS_PAGE_SIZE];
    void *target = page;
    ms_read_item item = {.segment = 3, .flags = 1, .length = sizeof page, .word = 1000};
    ms_read_result result;
    CHECK_STATUS(te_read(channel, &item, &target, 1, &result, in_ms(5000)), MS_OK);
    CHECK(result.status == MS_OK && result.word == 1000);
    __atomic_store_n(&words[0], 77, __ATOMIC_SEQ_CST);
    CHECK_STATUS(te_read(channel, &item, &target, 1, &result, in_ms(5000)), MS_OK);
    CHECK(result.status == MS_OK && result.word == 77);
    CHECK(look().fallbacks == 0);
    close_pair();
}

/* Bytes by RDMA, the seal behind them in a frame. */
static void test_seal_follows_the_bytes(void) {
    enum { LENGTH = 2 * MIB };
    open_pair();
    wait_for_endpoint();
    uint8_t *buffer = malloc(LENGTH);
    fill_pattern(buffer, LENGTH, 0, 9);
    ms_write_item item = {.segment = 3,
                          .page = 16,
                          .page_count = LENGTH / MS_PAGE_SIZE,
                          .length = LENGTH,
                          .version = 5,
                          .seal_length = 8};
    const void *source = buffer;
    uint32_t written = MS_PENDING;
    te_rdma_view before = look();
    CHECK_STATUS(te_write(channel, &item, &source, 1, "sealword", 8, 0, &written, in_ms(10000)),
                 MS_OK);
    CHECK_STATUS(written, MS_OK);
    CHECK(has_pattern(served.memory + 16 * MS_PAGE_SIZE, LENGTH, 0, 9));
    CHECK(kit_count(&served, &served.sealed) == 1 && memcmp(served.last_seal, "sealword", 8) == 0);
    CHECK(look().write_bytes - before.write_bytes == LENGTH);
    free(buffer);
    close_pair();
}

static void test_what_is_wrong_is_told_as_over_tcp(void) {
    uint8_t page[MS_PAGE_SIZE];
    open_pair();
    wait_for_endpoint();
    CHECK_STATUS(read_once(POOL_BYTES - 10, page, 11), MS_OUT_OF_RANGE);
    void *target = page;
    ms_read_item item = {.segment = 99, .length = 8};
    ms_read_result result;
    CHECK_STATUS(te_read(channel, &item, &target, 1, &result, in_ms(5000)), MS_OK);
    CHECK_STATUS(result.status, MS_NOT_REGISTERED);
    read_into_locked_memory();
    CHECK_STATUS(read_once(0, page, sizeof page), MS_OK);
    close_pair();
}

/* ---- limits ---------------------------------------------------------------------------------------------------- */

static void test_wrong_gid_is_left_for_the_next(void) {
    /* An address to which nobody finds a way back, and which we are told to try first. */
    network_dead_gid_set(0, true);
    pause_ms(200);
    setenv("MOONCAKE_STORE_RDMA_GID_INDEX", "2", 1);
    open_pair_of_two_nics();
    unsetenv("MOONCAKE_STORE_RDMA_GID_INDEX");
    wait_for_endpoint();
    te_rdma_view view = look();
    CHECK(view.endpoints == 1 && view.queue_pairs == 1);
    CHECK(atomic_load(&asker->rdma->counters.queue_pairs_made) == 2);
    CHECK(atomic_load(&served.engine->rdma->accepted_queue_pairs) ==
          1); /* the other one is forgotten */
    network_dead_gid_set(0, false);
    close_pair();
}

static void test_peer_has_no_more_queue_pairs(void) {
    setenv("MOONCAKE_STORE_RDMA_QUEUE_PAIRS_MAX", "2", 1);
    open_pair();
    unsetenv("MOONCAKE_STORE_RDMA_QUEUE_PAIRS_MAX");
    wait_for_endpoint();
    CHECK(look().queue_pairs == 2);
    uint8_t *buffer = malloc(MIB);
    fill_pattern(buffer, MIB, 0, 3);
    CHECK_STATUS(write_once(0, buffer, MIB), MS_OK); /* over TCP: there are none for writing */
    CHECK(look().write_bytes == 0);
    memset(buffer, 0, MIB);
    CHECK_STATUS(read_once(0, buffer, MIB), MS_OK);
    CHECK(has_pattern(buffer, MIB, 0, 3));
    free(buffer);
    close_pair();
}

/* ---- fences ------------------------------------------------------------------------------------------------------- */

/* A writer that was frozen between its grant and its WRITE: it wakes up when its session has been fenced and its space
 * is another's, and posts what it had prepared. */
static void test_frozen_writer_writes_nothing(void) {
    enum { LENGTH = MIB };
    open_pair();
    uint8_t *buffer = aligned_alloc(MS_PAGE_SIZE, LENGTH);
    fill_pattern(buffer, LENGTH, 0, 1111);
    wait_for_endpoint();
    int64_t until = in_ms(5000);
    while (look().write_bytes == 0) { /* so that there is an endpoint for writing */
        CHECK_STATUS(write_once(0, buffer, LENGTH), MS_OK);
        CHECK(te_now_ns() < until);
    }
    te_rdma_endpoint *endpoint = te_rdma_take(channel, true, in_ms(1000));
    CHECK(endpoint != NULL);
    te_rdma_rail *rail = endpoint->rails[0];
    verbs_mr *mr =
        asker->rdma->verbs->reg_mr(rail->qp.nic->pd, buffer, LENGTH, VERBS_ACCESS_LOCAL_WRITE);
    te_rdma_chunk chunk;
    CHECK(te_rdma_remote_key(endpoint, 1, false, rail->remote_nic, 0, &chunk, in_ms(1000)));

    uint64_t accepted = atomic_load(&served.engine->rdma->accepted_queue_pairs);
    CHECK(accepted > 0);
    atomic_store(&served.refuse_hello, MS_FENCED);
    CHECK(te_close_matching(served.engine, every, NULL, "fenced") > 0);
    CHECK(atomic_load(&served.engine->rdma->accepted_queue_pairs) ==
          0);                                         /* before it has returned */
    fill_pattern(served.memory, POOL_BYTES, 0, 2222); /* the space is another's now */

    verbs_sge part = {.addr = (uint64_t)(uintptr_t)buffer, .length = LENGTH, .lkey = mr->lkey};
    verbs_send_wr late = {.sg_list = &part,
                          .num_sge = 1,
                          .opcode = VERBS_WR_RDMA_WRITE,
                          .send_flags = VERBS_SEND_SIGNALED,
                          .rdma = {.remote_addr = chunk.address, .rkey = chunk.key}};
    verbs_send_wr *bad;
    verbs_wc done = {.status = -1};
    CHECK(verbs_post(rail->qp.qp, &late, &bad) == 0);
    until = in_ms(5000);
    while (te_rdma_cq_poll(rail->cq, &done, 1) == 0) {
        CHECK(te_now_ns() < until);
        pause_ms(1);
    }
    CHECK(done.status == VERBS_WC_RETRY_EXC_ERR);
    CHECK(has_pattern(served.memory, POOL_BYTES, 0, 2222));
    asker->rdma->verbs->dereg_mr(mr);
    endpoint->is_broken = true;
    te_rdma_give(channel, endpoint);
    CHECK(write_once(0, buffer, LENGTH) != MS_OK); /* and no new connection either */
    CHECK(has_pattern(served.memory, POOL_BYTES, 0, 2222));
    free(buffer);
    close_pair();
}

/* A queue pair for reading cannot write, whatever its owner posts. */
static void test_right_is_that_of_the_hello(void) {
    open_served();
    asker = kit_asker();
    uint8_t hello[TE_HELLO_DEFAULT_BYTES];
    te_hello_default(asker, hello);
    hello[offsetof(ms_hello, right)] = MS_RIGHT_READ;
    te_channel_config config = {.addresses = served.address,
                                .hello = hello,
                                .hello_length = sizeof hello,
                                .connections_max = 8};
    CHECK_STATUS(te_channel_open(asker, &config, &channel), MS_OK);
    wait_for_endpoint();
    te_rdma_endpoint *endpoint = te_rdma_take(channel, false, in_ms(1000));
    CHECK(endpoint != NULL);
    te_rdma_rail *rail = endpoint->rails[0];
    te_rdma_chunk chunk;
    CHECK(te_rdma_remote_key(endpoint, 1, false, rail->remote_nic, 0, &chunk, in_ms(1000)));
    memset(endpoint->scratch, 0xab, 64);
    verbs_sge part = {
        .addr = (uint64_t)(uintptr_t)endpoint->scratch, .length = 64, .lkey = rail->scratch->lkey};
    verbs_send_wr forbidden = {.sg_list = &part,
                               .num_sge = 1,
                               .opcode = VERBS_WR_RDMA_WRITE,
                               .send_flags = VERBS_SEND_SIGNALED,
                               .rdma = {.remote_addr = chunk.address, .rkey = chunk.key}};
    verbs_send_wr *bad;
    verbs_wc done = {.status = -1};
    CHECK(verbs_post(rail->qp.qp, &forbidden, &bad) == 0);
    int64_t until = in_ms(5000);
    while (te_rdma_cq_poll(rail->cq, &done, 1) == 0) {
        CHECK(te_now_ns() < until);
        pause_ms(1);
    }
    CHECK(done.status != VERBS_WC_SUCCESS);
    CHECK(has_pattern(served.memory, 4096, 0, 1));
    endpoint->is_broken = true;
    te_rdma_give(channel, endpoint);
    close_pair();
}

static void test_unregistered_memory_is_out_of_reach(void) {
    uint8_t *buffer = malloc(MIB);
    open_pair();
    wait_for_endpoint();
    CHECK_STATUS(read_once(0, buffer, MIB), MS_OK);
    te_segment_remove(served.engine, 1);
    CHECK_STATUS(read_once(0, buffer, MIB), MS_NOT_REGISTERED);
    free(buffer);
    close_pair();
}

/* ---- resets ------------------------------------------------------------------------------------------------------- */

static long count_descriptors(void) {
    long count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static long resident_kib(void) {
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%ld %ld", &pages, &resident) == 2);
    fclose(file);
    return resident * 4;
}

static void test_resets_leave_nothing_behind(void) {
    const char *wanted = getenv("RDMA_TEST_RESETS");
    long resets = wanted == NULL ? NETWORK_RESETS : atol(wanted);
    open_pair_of_two_nics();
    uint8_t page[MS_PAGE_SIZE];
    long descriptors = 0, resident = 0;
    for (long i = 0; i < resets; i++) {
        wait_for_endpoint();
        if (i == resets / 10) {
            descriptors = count_descriptors();
            resident = resident_kib();
        }
        if (i % 3 == 0) { /* by the peer, by the network, by the queue pair */
            CHECK(te_close_matching(served.engine, every, NULL, "reset") > 0);
        } else if (i % 3 == 1) {
            te_channel_break_off(channel);
        } else {
            te_rdma_endpoint *endpoint = te_rdma_take(channel, false, in_ms(1000));
            CHECK(endpoint != NULL);
            endpoint->is_broken = true;
            te_rdma_give(channel, endpoint);
        }
        CHECK_STATUS(read_once(0, page, sizeof page), MS_OK);
    }
    wait_for_endpoint();
    pause_ms(200);
    te_rdma_view view = look();
    fprintf(stderr,
            "%ld resets: %u endpoints, %u queue pairs, %u accepted, descriptors %ld -> %ld, "
            "resident %ld -> %ld KiB\n",
            resets, view.endpoints, view.queue_pairs,
            (unsigned)atomic_load(&served.engine->rdma->accepted_queue_pairs), descriptors,
            count_descriptors(), resident, resident_kib());
    CHECK(view.endpoints <= 4 && view.queue_pairs <= 4);
    CHECK(atomic_load(&served.engine->rdma->accepted_queue_pairs) <= 8);
    CHECK(count_descriptors() <= descriptors + 8);
    CHECK(resident_kib() - resident <= NETWORK_RESIDENT_KIB_MAX);
    close_pair();
}

static void test_pool_is_bounded(void) {
    enum { CHANNELS = 6 };
    te_channel *channels[CHANNELS];
    setenv("MOONCAKE_STORE_RDMA_ENDPOINTS_MAX", "3", 1);
    open_pair_of_two_nics();
    te_channel_close(channel);
    unsetenv("MOONCAKE_STORE_RDMA_ENDPOINTS_MAX");
    for (int i = 0; i < CHANNELS; i++)
        channels[i] = kit_channel(asker, served.address, NULL, 8);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < CHANNELS; i++) {
            channel = channels[i];
            wait_for_endpoint();
            CHECK(look().endpoints <= 3);
        }
    for (int i = 0; i < CHANNELS; i++)
        te_channel_close(channels[i]);
    te_engine_close(asker);
    kit_close_all(&served);
    free(words);
}

/* By the calling thread (rdma_exchange.c); rdma_rails_suite.h has the other way. */
static void run_suite(int argc, char **argv) {
    setenv("MOONCAKE_STORE_RDMA_WRITE_BYTES_MIN", "0", 0);
    setenv("MOONCAKE_STORE_RDMA_WAIT_MS", "3000", 0);
    RUN(test_sizes_of_memory_that_is_not_registered);
    RUN(test_sizes_of_registered_memory_in_chunks);
    RUN(test_many_small_items);
    RUN(test_word_is_read_behind_the_bytes);
    RUN(test_seal_follows_the_bytes);
    RUN(test_what_is_wrong_is_told_as_over_tcp);
    RUN(test_frozen_writer_writes_nothing);
    RUN(test_right_is_that_of_the_hello);
    RUN(test_unregistered_memory_is_out_of_reach);
    RUN(test_peer_has_no_more_queue_pairs);
    RUN(test_wrong_gid_is_left_for_the_next);
    RUN(test_pool_is_bounded);
    RUN(test_silent_loss_of_one_way);
    RUN(test_links_go_down_and_come_back);
    RUN(test_nic_is_removed);
    RUN(test_resets_leave_nothing_behind);
}

#endif
