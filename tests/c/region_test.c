// Registered memory: what may be registered, who may use it, and that nothing outside it can be reached.
//
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// timeout: 120
#include "engine_pair.h"

#include "ms_frame.h"

#include <sched.h>
#include <sys/mman.h>

static uint64_t address_of(const void *memory) { return (uint64_t)(uintptr_t)memory; }

static ms_status hold(te_engine *engine, const void *memory, uint64_t length, bool is_target) {
    te_region *region;
    ms_status status =
        te_region_hold(engine->registry, address_of(memory), length, is_target, &region);
    if (status == MS_OK)
        te_region_release(region);
    return status;
}

static void test_register(void) {
    te_engine *engine = open_engine(0);
    uint8_t *memory =
        mmap(NULL, 16 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(memory != MAP_FAILED);
    uint64_t base = address_of(memory);
    OK(te_register_local_memory(engine, base + 4096, 4096, "cpu:0"));
    /* Overlaps, on either side, inside, around, the same. */
    CHECK_STATUS(MS_BAD_REQUEST, te_register_local_memory(engine, base + 4096, 4096, "cpu:0"));
    CHECK_STATUS(MS_BAD_REQUEST, te_register_local_memory(engine, base, 4097, "cpu:0"));
    CHECK_STATUS(MS_BAD_REQUEST, te_register_local_memory(engine, base + 8191, 1, "cpu:0"));
    CHECK_STATUS(MS_BAD_REQUEST, te_register_local_memory(engine, base, 16 * 4096, "cpu:0"));
    OK(te_register_local_memory(engine, base, 4096, "*"));
    OK(te_register_local_memory(engine, base + 8192, 100, "cuda:12"));
    /* Nothing, too much, nowhere. */
    CHECK_STATUS(MS_BAD_REQUEST, te_register_local_memory(engine, base + 12288, 0, "*"));
    CHECK_STATUS(MS_BAD_REQUEST, te_register_local_memory(engine, 0, 10, "*"));
    CHECK_STATUS(MS_BAD_REQUEST, te_register_local_memory(engine, base + 12288, UINT64_MAX, "*"));
    CHECK_STATUS(MS_OUT_OF_RANGE, te_register_local_memory(engine, 4096, 10, "*"));
    static const char *const bad[] = {
        "",       "cpu", "cpu:",
        "cpu:x",  ":0",  "CPU:0",
        "cpu:0 ", "**",  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa:0"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_STATUS(MS_BAD_REQUEST, te_register_local_memory(engine, base + 12288, 10, bad[i]));
    /* A hole in the middle. */
    assert(munmap(memory + 10 * 4096, 4096) == 0);
    CHECK_STATUS(MS_OUT_OF_RANGE, te_register_local_memory(engine, base + 9 * 4096, 3 * 4096, "*"));
    assert(mprotect(memory + 12 * 4096, 4096, PROT_NONE) == 0);
    CHECK_STATUS(MS_OUT_OF_RANGE,
                 te_register_local_memory(engine, base + 11 * 4096, 2 * 4096, "*"));
    /* Read-only memory is a source. */
    assert(mprotect(memory + 14 * 4096, 4096, PROT_READ) == 0);
    OK(te_register_local_memory(engine, base + 14 * 4096, 4096, "*"));
    OK(hold(engine, memory + 14 * 4096, 4096, false));
    CHECK_STATUS(MS_REFUSED, hold(engine, memory + 14 * 4096, 4096, true));

    OK(hold(engine, memory + 4096, 4096, true));
    OK(hold(engine, memory + 8291, 1, true));
    CHECK_STATUS(MS_OUT_OF_RANGE, hold(engine, memory + 8291, 2, true));
    CHECK_STATUS(MS_OUT_OF_RANGE,
                 hold(engine, memory, 4097, true)); /* two regions side by side are two */
    CHECK_STATUS(MS_NOT_REGISTERED, hold(engine, memory + 8292, 1, true));
    CHECK_STATUS(MS_NOT_REGISTERED, hold(engine, memory - 1, 1, true));

    CHECK_STATUS(MS_NOT_REGISTERED, te_unregister_local_memory(engine, base + 1));
    te_region *region;
    OK(te_region_hold(engine->registry, base + 5000, 10, true, &region));
    CHECK_STATUS(MS_BUSY, te_unregister_local_memory(engine, base + 4096));
    te_region_release(region);
    OK(te_unregister_local_memory(engine, base + 4096));
    CHECK_STATUS(MS_NOT_REGISTERED, te_unregister_local_memory(engine, base + 4096));
    CHECK_STATUS(MS_NOT_REGISTERED, hold(engine, memory + 4096, 1, true));
    OK(te_register_local_memory(engine, base + 4096, 4096, "cpu:0"));
    te_engine_close(engine);
    munmap(memory, 16 * 4096);
}

typedef struct list {
    ms_region regions[8];
    uint32_t count;
    char topology[512], path[200];
} list;

static list ask(te_channel *channel) {
    list found = {0};
    te_reply reply = {.grow = true};
    OK(te_call(channel, MS_OPEN_SEGMENT, 0, NULL, 0, &reply, soon()));
    assert(reply.header.status == MS_OK);
    assert(ms_body_valid(MS_ANSWER, MS_OPEN_SEGMENT, MS_OK, reply.body, reply.header.body_length));
    ms_reader reader = ms_reader_of(reply.body, reply.header.body_length);
    ms_region_view view;
    ms_text text;
    for (uint32_t left = ms_reader_list(&reader, sizeof(ms_region)); left > 0; left--) {
        assert(ms_reader_region(&reader, &view) && found.count < 8);
        found.regions[found.count++] = view.head;
    }
    assert(ms_reader_string(&reader, sizeof found.topology - 1, &text));
    memcpy(found.topology, text.data, text.length);
    assert(ms_reader_string(&reader, sizeof found.path - 1, &text));
    memcpy(found.path, text.data, text.length);
    free(reply.body);
    return found;
}

static ms_status read_at(te_channel *channel, uint32_t segment, uint64_t offset, void *target,
                         uint64_t length) {
    ms_read_item item = {.segment = segment, .offset = offset, .length = length};
    ms_read_result result;
    ms_status status = te_read(channel, &item, &target, 1, &result, soon());
    return status != MS_OK ? status : (ms_status)result.status;
}

static ms_status write_at(te_channel *channel, uint32_t segment, uint64_t offset,
                          const void *source, uint64_t length) {
    ms_write_item item = {.segment = segment, .offset = offset, .length = length};
    uint32_t result = MS_PENDING;
    ms_status status = te_write(channel, &item, &source, 1, NULL, 0, 0, &result, soon());
    return status != MS_OK ? status : (ms_status)result;
}

static void test_peers(bool is_unix) {
    server peer = server_open("127.0.0.1");
    te_engine *asking = open_engine(0);
    uint8_t *memory =
        mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t bytes[4096];
    assert(memory != MAP_FAILED);
    fill(memory, 4 * 4096, 1);
    OK(te_register_local_memory(peer.engine, address_of(memory) + 4096, 4096, "cpu:0"));
    assert(mprotect(memory + 3 * 4096, 4096, PROT_READ) == 0);
    OK(te_register_local_memory(peer.engine, address_of(memory) + 3 * 4096, 4096, "*"));
    static const char json[] =
        "{\"nics\": {\"eth0\": [\"127.0.0.1\"]}, \"matrix\": {\"cpu:0\": [[\"eth0\"], []]}}";
    char error[TE_ERROR_BYTES];
    OK(te_set_topology(peer.engine, json, sizeof json - 1, error));
    CHECK_STATUS(MS_BAD_REQUEST, te_set_topology(peer.engine, json, sizeof json - 2, error));
    OK(te_publish_unix(peer.engine, peer.unix_path));

    te_channel *channel =
        open_channel_to(asking, is_unix ? NULL : peer.address, is_unix ? peer.unix_path : NULL);
    list found = ask(channel);
    assert(found.count == 2 && strcmp(found.topology, json) == 0 &&
           strcmp(found.path, peer.unix_path) == 0);
    assert(found.regions[0].address == address_of(memory) + 4096 &&
           found.regions[0].length == 4096);
    uint32_t segment = found.regions[0].segment, read_only = found.regions[1].segment;
    assert((segment & TE_REGION_BIT) != 0 && segment != read_only);

    OK(read_at(channel, segment, 0, bytes, 4096));
    assert(memcmp(bytes, memory + 4096, 4096) == 0);
    OK(read_at(channel, segment, 4095, bytes, 1));
    OK(read_at(channel, segment, 4096, bytes, 0));
    CHECK_STATUS(MS_OUT_OF_RANGE, read_at(channel, segment, 4096, bytes, 1));
    CHECK_STATUS(MS_OUT_OF_RANGE, read_at(channel, segment, 0, bytes, 4097));
    CHECK_STATUS(MS_OUT_OF_RANGE, read_at(channel, segment, UINT64_MAX - 4096, bytes, 1));
    CHECK_STATUS(MS_NOT_REGISTERED, read_at(channel, segment + 1000, 0, bytes, 1));
    CHECK_STATUS(MS_NOT_REGISTERED, read_at(channel, 0, 0, bytes, 1));

    fill(bytes, sizeof bytes, 2);
    OK(write_at(channel, segment, 0, bytes, 4096));
    check_filled(memory + 4096, 4096, 2);
    CHECK_STATUS(MS_OUT_OF_RANGE, write_at(channel, segment, 1, bytes, 4096));
    CHECK_STATUS(MS_OUT_OF_RANGE, write_at(channel, segment, UINT64_MAX - 4096, bytes, 4096));
    CHECK_STATUS(MS_NOT_REGISTERED, write_at(channel, segment + 1000, 0, bytes, 4096));
    CHECK_STATUS(MS_REFUSED, write_at(channel, read_only, 0, bytes, 4096));
    OK(read_at(channel, read_only, 0, bytes, 4096));
    check_filled(memory, 4096, 1); /* nothing beside it was touched */
    for (size_t i = 0; i < 4096; i++)
        assert(memory[2 * 4096 + i] == proof(1, 2 * 4096 + i));

    OK(te_unregister_local_memory(peer.engine, address_of(memory) + 4096));
    CHECK_STATUS(MS_NOT_REGISTERED, read_at(channel, segment, 0, bytes, 1));
    CHECK_STATUS(MS_NOT_REGISTERED, write_at(channel, segment, 0, bytes, 1));
    /* Registered again it has another number: an old one never means new memory. */
    OK(te_register_local_memory(peer.engine, address_of(memory) + 4096, 4096, "cpu:0"));
    CHECK_STATUS(MS_NOT_REGISTERED, read_at(channel, segment, 0, bytes, 1));
    te_channel_close(channel);
    te_engine_close(asking);
    server_close(&peer);
    munmap(memory, 4 * 4096);
}

typedef struct churn {
    te_engine *engine;
    uint8_t *memory;
    _Atomic bool is_over;
    _Atomic uint32_t holders; /* threads that have held something */
} churn;

static void *hold_in_a_loop(void *argument) {
    churn *work = argument;
    uint64_t held = 0;
    for (uint64_t i = 0; !work->is_over; i++) {
        te_region *region;
        ms_status status = te_region_hold(
            work->engine->registry, address_of(work->memory) + i % 8 * 4096, 4096, true, &region);
        if (status == MS_OK) {
            if (held++ == 0)
                work->holders++;
            te_region_release(region);
            sched_yield();
        } else {
            CHECK_STATUS(MS_NOT_REGISTERED, status);
        }
    }
    return (void *)(uintptr_t)(held > 0);
}

static void test_threads(void) {
    churn work = {.engine = open_engine(0), .memory = malloc(8 * 4096)};
    pthread_t threads[3];
    assert(work.memory != NULL);
    for (uint64_t i = 1; i < 8; i++)
        OK(te_register_local_memory(work.engine, address_of(work.memory) + i * 4096, 4096, "*"));
    for (size_t i = 0; i < 3; i++)
        assert(pthread_create(&threads[i], NULL, hold_in_a_loop, &work) == 0);
    uint32_t registered = 0, busy = 0;
    /* As long as it takes until every thread has run: a busy machine may start one late. */
    const int64_t end_ns = te_now_ns() + 20 * INT64_C(1000000000);
    for (int i = 0; i < 60 || (work.holders < 3 && te_now_ns() < end_ns); i++) {
        uint64_t address = address_of(work.memory) + (uint64_t)(i % 8) * 4096;
        ms_status status = te_unregister_local_memory(work.engine, address);
        if (status == MS_BUSY)
            busy++;
        else if (status == MS_NOT_REGISTERED)
            OK(te_register_local_memory(work.engine, address, 4096, "*")), registered++;
        else
            OK(status);
    }
    work.is_over = true;
    void *held;
    for (size_t i = 0; i < 3; i++)
        assert(pthread_join(threads[i], &held) == 0 && held != NULL);
    assert(registered > 0);
    te_engine_close(work.engine);
    free(work.memory);
}

int main(void) {
    test_register();
    test_peers(false);
    test_peers(true);
    test_threads();
    puts("region_test: ok");
    return 0;
}
