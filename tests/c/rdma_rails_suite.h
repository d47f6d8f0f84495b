/* te_read and te_write over RDMA lanes: gets and puts by the slice scheduler.  The exchange of rdma_exchange.c, which would move them
 * otherwise, must not be used: it has no endpoints then. */
#ifndef RDMA_RAILS_SUITE_H
#define RDMA_RAILS_SUITE_H

#include <sys/mman.h>

#include "rdma_kit.h"
#include "te_channel_rails.h"

#define RAILS_BYTES_MIN (128u << 10)
#define SHARE_BYTES (64 * (uint64_t)MIB)
#define SPEED (200 * (uint64_t)MIB) /* a second: less than a window of it waits on the NIC */

static uint32_t lanes_up(te_opcode opcode) {
    te_rail_view view;
    uint32_t up = 0;
    for (uint32_t i = 0; te_channel_rail(channel, i, &view) == MS_OK; i++)
        up += view.opcode == (int32_t)opcode && view.is_up && strcmp(view.transport, "rdma") == 0;
    return up;
}

static void await_lanes_of(te_opcode opcode, uint32_t wanted) {
    int64_t until_ns = in_ms(20000);
    while (lanes_up(opcode) != wanted) {
        (void)te_channel_rails_serve_rdma(te_channel_rails_of(channel), opcode, POOL_BYTES, false);
        if (te_now_ns() >= until_ns)
            tell_state();
        CHECK(te_now_ns() < until_ns);
        pause_ms(5);
    }
    while (look().registered_bytes != look().wanted_bytes)
        pause_ms(5);
}

static void await_lanes(uint32_t wanted) {
    await_lanes_of(TE_READ, wanted);
    await_lanes_of(TE_WRITE, wanted);
}

static void open_lanes(void) {
    open_pair();
    await_lanes(4);
}

static bool are_lanes_alone(void) {
    return te_channel_pools(channel)[0] == NULL && te_channel_pools(channel)[1] == NULL;
}

static void test_sizes_over_lanes(void) {
    static const uint64_t large[] = {RAILS_BYTES_MIN, 262143, 262145, MIB + 1, 7 * MIB + 4097};
    for (int is_registered = 0; is_registered < 2; is_registered++) {
        setenv("MOONCAKE_STORE_RDMA_CHUNK_BYTES", "1000000", 1); /* slices end there, too */
        open_lanes();
        unsetenv("MOONCAKE_STORE_RDMA_CHUNK_BYTES");
        uint8_t *buffer = aligned_alloc(MS_PAGE_SIZE, POOL_BYTES + MS_PAGE_SIZE);
        memset(buffer, 0, POOL_BYTES + MS_PAGE_SIZE);
        if (is_registered)
            CHECK_STATUS(
                te_register_local_memory(asker, (uint64_t)(uintptr_t)buffer, POOL_BYTES, "*"),
                MS_OK);
        te_rdma_view before = look();
        uint64_t total = 0;
        for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
            uint64_t length = large[i], offset = i * 13;
            fill_pattern(served.memory, POOL_BYTES, 0, i);
            memset(buffer, 0xee, length + 2);
            CHECK_STATUS(read_once(offset, buffer + 1, length), MS_OK);
            CHECK(has_pattern(buffer + 1, length, offset, i));
            CHECK(buffer[0] == 0xee && buffer[length + 1] == 0xee);
            fill_pattern(buffer + 1, length, offset, i + 100);
            CHECK_STATUS(write_once(offset, buffer + 1, length), MS_OK);
            CHECK(has_pattern(served.memory + offset, length, offset, i + 100));
            CHECK(has_pattern(served.memory + offset + length, 64, offset + length, i));
            CHECK(offset == 0 || has_pattern(served.memory, offset, 0, i));
            total += length;
        }
        te_rdma_view after = look();
        CHECK(after.read_bytes - before.read_bytes == total);
        CHECK(after.write_bytes - before.write_bytes == total);
        CHECK(after.fallbacks == before.fallbacks && are_lanes_alone());
        if (is_registered) /* nothing holds it any more */
            CHECK_STATUS(te_unregister_local_memory(asker, (uint64_t)(uintptr_t)buffer), MS_OK);
        free(buffer);
        close_pair();
    }
}

/* Each of many objects comes with its own word, and objects of several pieces with theirs. */
static void test_words_come_behind_the_bytes(void) {
    enum { COUNT = 1500, LENGTH = 4096 };
    static ms_read_item items[COUNT];
    static void *targets[COUNT];
    static ms_read_result results[COUNT];
    open_lanes();
    uint8_t *buffer = calloc(COUNT, LENGTH);
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < COUNT; i++) {
            size_t place = (i * 7 + 3) % COUNT;
            targets[i] = buffer + i * LENGTH;
            items[i] = (ms_read_item){.segment = 3,
                                      .flags = i % 10 != 9,
                                      .offset = place * MS_PAGE_SIZE,
                                      .length = LENGTH - i % 3,
                                      .guard_page = (uint32_t)(i / 4)};
            items[i].word = items[i].flags != 0 ? words[items[i].guard_page] : 0;
        }
        __atomic_store_n(&words[100], 77 + (uint64_t)round, __ATOMIC_SEQ_CST);
        te_rdma_view before = look();
        CHECK_STATUS(te_read(channel, items, targets, COUNT, results, in_ms(20000)), MS_OK);
        for (size_t i = 0; i < COUNT; i++) {
            CHECK_STATUS(results[i].status, MS_OK);
            CHECK(results[i].word == (items[i].flags != 0 ? words[items[i].guard_page] : 0));
            CHECK(has_pattern(targets[i], items[i].length, items[i].offset, 1));
        }
        CHECK(look().fallbacks == before.fallbacks && are_lanes_alone());
    }
    /* Of a large object, too, whose slices go over several NICs. */
    ms_read_item large = {
        .segment = 3, .flags = 1, .length = 4 * MIB, .guard_page = 5, .word = words[5]};
    ms_read_result result;
    CHECK_STATUS(te_read(channel, &large, targets, 1, &result, in_ms(5000)), MS_OK);
    CHECK(result.status == MS_OK && result.word == 1005);
    __atomic_store_n(&words[5], 6, __ATOMIC_SEQ_CST);
    CHECK_STATUS(te_read(channel, &large, targets, 1, &result, in_ms(5000)), MS_OK);
    CHECK(result.status == MS_OK && result.word == 6);
    free(buffer);
    close_pair();
}

/* ---- an extent that is used again and again --------------------------------------------------------------------- */

typedef struct owner {
    pthread_t thread;
    _Atomic bool is_over;
} owner;

#define EXTENT_BYTES (1024u * 1024u)

/* Under an odd word the bytes are those of it, and stay; under an even one they are anybody's. */
static void *keep_using(void *argument) {
    owner *self = argument;
    for (uint64_t version = 1; !atomic_load(&self->is_over); version += 2) {
        fill_pattern(served.memory, EXTENT_BYTES, 0, version);
        __atomic_store_n(&words[0], version, __ATOMIC_SEQ_CST);
        pause_ms(version % 8 == 1 ? 20 : 2);
        __atomic_store_n(&words[0], version + 1, __ATOMIC_SEQ_CST);
    }
    return NULL;
}

/* A word that is as expected says that all bytes are of that version, over however many NICs they came, and while NICs come
 * and go. */
static void test_no_read_is_stale(void) {
    owner self = {.is_over = false};
    long live = 0, gone = 0;
    uint8_t *buffer = malloc(EXTENT_BYTES);
    void *target = buffer;
    open_lanes();
    CHECK(pthread_create(&self.thread, NULL, keep_using, &self) == 0);
    for (long round = 0; round < 400 || live < 20 || gone < 20; round++) {
        /* A reader knows a version only when it has been sealed: before that its bytes are anybody's (ADR 0017). */
        uint64_t word = (__atomic_load_n(&words[0], __ATOMIC_SEQ_CST) - 1) | 1;
        ms_read_item item = {.segment = 3, .flags = 1, .length = EXTENT_BYTES, .word = word};
        ms_read_result result;
        if (round % 100 == 50)
            network_link_set((int)(round / 100) % 4, false);
        if (round % 100 == 70)
            network_link_set((int)(round / 100) % 4, true);
        CHECK_STATUS(te_read(channel, &item, &target, 1, &result, in_ms(10000)), MS_OK);
        CHECK(result.status == MS_OK || result.status == MS_GONE);
        bool is_live = result.status == MS_OK && result.word == word;
        CHECK(!is_live || has_pattern(buffer, EXTENT_BYTES, 0, word));
        live += is_live;
        gone += !is_live;
        CHECK(round < 100000);
    }
    for (int nic = 0; nic < 4; nic++)
        network_link_set(nic, true); /* the last round may have left one down */
    atomic_store(&self.is_over, true);
    pthread_join(self.thread, NULL);
    fprintf(stderr, "%ld reads of a live object, %ld of one that was gone\n", live, gone);
    free(buffer);
    close_pair();
}

/* ---- puts --------------------------------------------------------------------------------------------------------- */

static void test_a_put_is_sealed_behind_its_bytes(void) {
    enum { LENGTH = 2 * MIB };
    open_lanes();
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
    CHECK(look().write_bytes - before.write_bytes == LENGTH && are_lanes_alone());
    /* What would leave its extent is for the server to judge. */
    item.page_count--;
    CHECK_STATUS(te_write(channel, &item, &source, 1, "sealword", 8, 0, &written, in_ms(10000)),
                 MS_OK);
    CHECK(look().fallbacks > before.fallbacks);
    CHECK(look().write_bytes - before.write_bytes == LENGTH);
    free(buffer);
    close_pair();
}

static void test_what_is_wrong_is_told_over_lanes_too(void) {
    uint8_t *buffer = malloc(MIB);
    void *target = buffer;
    open_lanes();
    CHECK_STATUS(read_once(POOL_BYTES - MIB + 1, buffer, MIB), MS_OUT_OF_RANGE);
    ms_read_item item = {.segment = 99, .length = MIB};
    ms_read_result result;
    CHECK_STATUS(te_read(channel, &item, &target, 1, &result, in_ms(5000)), MS_OK);
    CHECK_STATUS(result.status, MS_NOT_REGISTERED);
    CHECK_STATUS(read_once(0, buffer, MIB), MS_OK);
    read_into_locked_memory();
    CHECK_STATUS(read_once(0, buffer, MIB), MS_OK);
    /* A segment that goes takes its keys with it: what was posted is refused by the device, and told by the peer. */
    te_segment_remove(served.engine, 1);
    CHECK_STATUS(read_once(0, buffer, MIB), MS_NOT_REGISTERED);
    await_lanes_of(TE_READ, 4);
    free(buffer);
    close_pair();
}

static void test_without_nics_gets_and_puts_go_over_tcp(void) {
    mover self;
    open_lanes();
    start(&self);
    await_rounds(&self, 1);
    for (int nic = 0; nic < 4; nic++)
        network_link_set(nic, false);
    await_nics(0);
    /* What had come before the links went may be counted after them: by rounds that had begun. */
    await_rounds(&self, 1);
    uint64_t bytes = look().read_bytes;
    await_rounds(&self, 3);
    CHECK(look().read_bytes == bytes && look().nics_up == 0);
    for (int nic = 0; nic < 4; nic++)
        network_link_set(nic, true);
    await_lanes(4);
    await_read_bytes();
    stop(&self);
    close_pair();
}

/* ---- shares ------------------------------------------------------------------------------------------------------- */

typedef struct taker {
    te_transfer_options options;
    pthread_t thread;
    _Atomic uint64_t *bytes;
    _Atomic int *begun; /* how many have had one */
    const _Atomic bool *is_over;
} taker;

static void *keep_taking(void *argument) {
    taker *self = argument;
    enum { LENGTH = 2 * MIB };
    uint8_t *buffer = aligned_alloc(MS_PAGE_SIZE, LENGTH);
    memset(buffer, 0, LENGTH);
    CHECK_STATUS(te_register_local_memory(asker, (uint64_t)(uintptr_t)buffer, LENGTH, "*"), MS_OK);
    for (bool is_first = true; !atomic_load(self->is_over); is_first = false) {
        void *target = buffer;
        ms_read_item item = {.segment = 1, .length = LENGTH};
        ms_read_result result;
        CHECK_STATUS(te_read_as(channel, &item, &target, 1, &result, &self->options, in_ms(20000)),
                     MS_OK);
        CHECK_STATUS(result.status, MS_OK);
        atomic_fetch_add(self->bytes, LENGTH);
        atomic_fetch_add(self->begun, is_first);
    }
    CHECK_STATUS(te_unregister_local_memory(asker, (uint64_t)(uintptr_t)buffer), MS_OK);
    free(buffer);
    return NULL;
}

/* Until each of them has had something: before that not all of them wait. */
static void start_taking(taker *takers, int count, const _Atomic int *begun, int wanted,
                         int64_t until_ns) {
    for (int i = 0; i < count; i++)
        CHECK(pthread_create(&takers[i].thread, NULL, keep_taking, &takers[i]) == 0);
    for (; atomic_load(begun) < wanted; pause_ms(1))
        CHECK(te_now_ns() < until_ns);
}

/* How much more `first` gets than `second`, when both have always several requests waiting. */
static double ratio_of(te_transfer_options first, te_transfer_options second) {
    enum { EACH = 4 };
    _Atomic uint64_t bytes[2] = {0, 0};
    _Atomic int begun = 0;
    _Atomic bool is_over = false;
    taker takers[2 * EACH];
    open_pair_of_two_nics(); /* one rail, and so a queue */
    network_speed_set(SPEED);
    for (int i = 0; i < 2 * EACH; i++)
        takers[i] = (taker){.options = i < EACH ? second : first,
                            .bytes = &bytes[i < EACH],
                            .begun = &begun,
                            .is_over = &is_over};
    int64_t until_ns = in_ms(40000);
    if (second.priority == TE_PRIORITY_BACKGROUND) { /* before lanes are up, too */
        start_taking(takers, EACH, &begun, EACH, until_ns);
        CHECK(are_lanes_alone());
    }
    te_channel_rails_want(te_channel_rails_of(channel));
    await_lanes_of(TE_READ, 1);
    if (second.priority != TE_PRIORITY_BACKGROUND)
        start_taking(takers, EACH, &begun, EACH, until_ns);
    start_taking(takers + EACH, EACH, &begun, 2 * EACH, until_ns);
    const uint64_t before[2] = {atomic_load(&bytes[0]), atomic_load(&bytes[1])};
    for (; atomic_load(&bytes[0]) + atomic_load(&bytes[1]) < before[0] + before[1] + SHARE_BYTES;
         pause_ms(10))
        CHECK(te_now_ns() < until_ns);
    uint64_t of_first = atomic_load(&bytes[0]) - before[0],
             of_second = atomic_load(&bytes[1]) - before[1];
    atomic_store(&is_over, true);
    for (int i = 0; i < 2 * EACH; i++)
        pthread_join(takers[i].thread, NULL);
    CHECK(are_lanes_alone());
    network_speed_set(0);
    close_pair();
    return (double)of_first / (double)(of_second + 1);
}

static void test_classes_and_tenants_share_nics(void) {
    const te_transfer_options normal = {.priority = TE_PRIORITY_NORMAL, .is_meant = 1},
                              background = {.priority = TE_PRIORITY_BACKGROUND, .is_meant = 1},
                              one = {.tenant = 1, .weight = 1, .is_meant = 1},
                              three = {.tenant = 2, .weight = 3, .is_meant = 1};
    double of_classes = 0, of_tenants = 0;
    for (int tries = 0; tries < 3 && of_classes <= 3; tries++) /* the machine may be busy */
        of_classes = ratio_of(normal, background);
    for (int tries = 0; tries < 3 && (of_tenants <= 1.7 || of_tenants >= 5); tries++)
        of_tenants = ratio_of(three, one);
    fprintf(stderr,
            "NORMAL gets %.1f times what BACKGROUND gets (8), a tenant of weight 3 %.1f times "
            "what one of weight 1 gets\n",
            of_classes, of_tenants);
    CHECK(of_classes > 3);
    CHECK(of_tenants > 1.7 && of_tenants < 5);
}

static void move_in_background(te_opcode opcode, uint64_t offset, uint8_t *buffer,
                               uint64_t length) {
    const te_transfer_options background = {.priority = TE_PRIORITY_BACKGROUND};
    ms_read_item read = {.segment = 1, .offset = offset, .length = length};
    ms_write_item write = {.segment = 1, .offset = offset, .length = length};
    void *target = buffer;
    const void *source = buffer;
    ms_read_result result;
    uint32_t written;
    if (opcode == TE_READ) {
        CHECK_STATUS(te_read_as(channel, &read, &target, 1, &result, &background, in_ms(20000)),
                     MS_OK);
        CHECK_STATUS(result.status, MS_OK);
    } else {
        CHECK_STATUS(te_write_as(channel, &write, &source, 1, NULL, 0, 0, &written, &background,
                                 in_ms(20000)),
                     MS_OK);
        CHECK_STATUS(written, MS_OK);
    }
}

/* An exchange would go before whatever waits in the schedule. */
static void test_background_takes_no_exchange(void) {
    static const uint64_t sizes[] = {1, 4096, RAILS_BYTES_MIN / 2, RAILS_BYTES_MIN, 2 * MIB + 7};
    uint8_t *buffer = calloc(1, 4 * MIB);
    open_pair();
    int64_t until_ns = in_ms(20000);
    do { /* which asks for lanes, too */
        move_in_background(TE_READ, 0, buffer, 64);
        move_in_background(TE_WRITE, 0, buffer, RAILS_BYTES_MIN);
        CHECK(are_lanes_alone());
        CHECK(te_now_ns() < until_ns);
    } while (lanes_up(TE_READ) != 4 || lanes_up(TE_WRITE) != 4);
    await_lanes(4);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        uint64_t offset = i * 13, by_nics = sizes[i] < RAILS_BYTES_MIN / 2 ? 0 : sizes[i];
        te_rdma_view before = look();
        fill_pattern(served.memory, POOL_BYTES, 0, i);
        move_in_background(TE_READ, offset, buffer, sizes[i]);
        CHECK(has_pattern(buffer, sizes[i], offset, i));
        fill_pattern(buffer, sizes[i], offset, i + 100);
        move_in_background(TE_WRITE, offset, buffer, sizes[i]);
        CHECK(has_pattern(served.memory + offset, sizes[i], offset, i + 100));
        CHECK(look().read_bytes - before.read_bytes == sizes[i]);
        CHECK(look().write_bytes - before.write_bytes == by_nics); /* a frame takes the rest */
        CHECK(look().fallbacks == before.fallbacks && are_lanes_alone());
    }
    free(buffer);
    close_pair();
}

/* ---- ends --------------------------------------------------------------------------------------------------------- */

typedef struct canceller {
    pthread_t thread;
    te_scope *scope;
    long after_ms;
} canceller;

static void *cancel_later(void *argument) {
    canceller *self = argument;
    pause_ms(self->after_ms);
    te_scope_cancel(self->scope);
    return NULL;
}

/* What was cancelled, or is too late, has ended for good: nothing comes into its memory afterwards. */
static void test_an_end_is_for_good(void) {
    uint8_t *buffer = malloc(4 * MIB);
    open_lanes();
    CHECK_STATUS(te_register_local_memory(asker, (uint64_t)(uintptr_t)buffer, 4 * MIB, "*"), MS_OK);
    for (int is_cancelled = 0; is_cancelled < 2; is_cancelled++) {
        await_lanes(4);
        for (int nic = 0; nic < 4; nic++)
            network_loss_set(nic, true);
        canceller other = {.after_ms = 20};
        te_scope scope, *outer = NULL;
        if (is_cancelled) {
            te_scope_open(&scope);
            other.scope = &scope;
            outer = te_scope_enter(&scope);
            CHECK(pthread_create(&other.thread, NULL, cancel_later, &other) == 0);
        }
        ms_read_item item = {.segment = 1, .length = 4 * MIB};
        void *target = buffer;
        ms_read_result result;
        int64_t begun_ns = te_now_ns();
        ms_status status =
            te_read(channel, &item, &target, 1, &result, in_ms(is_cancelled ? 20000 : 25));
        CHECK(te_now_ns() - begun_ns < 10000 * TE_NS_PER_MS);
        if (is_cancelled) {
            pthread_join(other.thread, NULL);
            (void)te_scope_enter(outer);
            te_scope_close(&scope);
        }
        memset(buffer, 0xee, 4 * MIB);
        for (int nic = 0; nic < 4; nic++)
            network_loss_set(nic, false);
        pause_ms(300);
        CHECK(is_all(buffer, 4 * MIB, 0xee));
        CHECK(status == MS_OK || status == (is_cancelled ? MS_CANCELLED : MS_TIMEOUT));
        CHECK(status != MS_OK || result.status == MS_OK); /* it came before, or over TCP */
    }
    CHECK_STATUS(te_unregister_local_memory(asker, (uint64_t)(uintptr_t)buffer), MS_OK);
    free(buffer);
    close_pair();
}

static void *put_for_ever(void *argument) {
    _Atomic bool *is_fenced = argument;
    uint8_t *buffer = malloc(2 * MIB);
    fill_pattern(buffer, 2 * MIB, 0, 1111);
    while (write_once(0, buffer, 2 * MIB) == MS_OK)
        ;
    CHECK(atomic_load(is_fenced));
    free(buffer);
    return NULL;
}

/* When a fence has returned, no lane of the session writes any more, whatever was under way. */
static void test_a_fence_ends_lanes(void) {
    pthread_t writer;
    for (int round = 0; round < 4; round++) {
        _Atomic bool is_fenced = false;
        open_lanes();
        CHECK(pthread_create(&writer, NULL, put_for_ever, &is_fenced) == 0);
        pause_ms(50 + 7 * round);
        atomic_store(&is_fenced, true);
        atomic_store(&served.refuse_hello, MS_FENCED);
        CHECK(te_close_matching(served.engine, every, NULL, "fenced") > 0);
        CHECK(atomic_load(&served.engine->rdma->accepted_queue_pairs) == 0);
        fill_pattern(served.memory, POOL_BYTES, 0, 2222); /* the space is another's now */
        pthread_join(writer, NULL);
        pause_ms(100);
        CHECK(has_pattern(served.memory, POOL_BYTES, 0, 2222));
        close_pair();
    }
}

static void run_rails_suite(int argc, char **argv) {
    setenv("MOONCAKE_STORE_RDMA_WAIT_MS", "3000", 0);
    setenv("MOONCAKE_STORE_RDMA_RAILS_BYTES_MIN", "131072", 1);
    setenv("MOONCAKE_STORE_RDMA_SILENT_MS", "5000", 1); /* a loaded machine is no fault of a NIC */
    setvbuf(stderr, NULL, _IOLBF, 0);
    RUN(test_sizes_over_lanes);
    RUN(test_words_come_behind_the_bytes);
    RUN(test_no_read_is_stale);
    RUN(test_a_put_is_sealed_behind_its_bytes);
    RUN(test_what_is_wrong_is_told_over_lanes_too);
    RUN(test_a_fence_ends_lanes);
    RUN(test_classes_and_tenants_share_nics);
    RUN(test_background_takes_no_exchange);
    RUN(test_an_end_is_for_good);
    RUN(test_without_nics_gets_and_puts_go_over_tcp);
    RUN(test_silent_loss_of_one_way);
    RUN(test_links_go_down_and_come_back);
    RUN(test_nic_is_removed);
}

#endif
