/* Every allocation and every system call of one whole life of two engines fails once.
 *
 * What may happen: a call fails with a status.  What may not: a crash, a leak (ASan), a wait
 * beyond the deadline, a success with wrong bytes, or an engine that does not close.
 */
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// flags: -DMS_FAULTS
// variants: address
// timeout: 300
#include "../../transfer_engine/src/te_fault.h"

/* The kit itself must not fail. */
#undef malloc
#undef calloc
#undef realloc
#undef socket
#undef connect
#undef accept4
#undef recv
#undef recvmsg
#undef sendmsg
#undef setsockopt
#undef epoll_ctl
#undef epoll_create1
#undef eventfd
#undef pthread_create

#include "engine_kit.h"

#define MIB (1u << 20)
#define LIMIT_MS 300

static uint8_t memory[4 * MIB];
static _Atomic int pushes;

static void answer_request(void *context, const te_request *request) {
    struct iovec body = {.iov_base = (void *)(uintptr_t)request->body,
                         .iov_len = request->header->body_length};
    if (request->header->kind == MS_REQUEST) {
        (void)te_answer(*(te_engine **)context, request->peer, request->header, MS_OK, &body, 1,
                        NULL, 0);
    }
}

static void count_answer(void *context, const te_request *request) {
    (void)context;
    (void)request;
    atomic_fetch_add(&pushes, 1);
}

static void check_call(te_channel *channel, size_t length, bool grow) {
    static uint8_t sent[40000], back[40000];
    memset(sent, (int)length, length);
    struct iovec body = {.iov_base = sent, .iov_len = length};
    te_reply reply = {
        .body = grow ? NULL : back, .body_size = grow ? 0 : sizeof back, .grow = grow};
    ms_status status = te_call(channel, KIT_ECHO, 0, &body, 1, &reply, in_ms(LIMIT_MS));
    if (status == MS_OK && reply.header.status == MS_OK) {
        CHECK(reply.header.body_length == length && memcmp(reply.body, sent, length) == 0);
    }
    if (grow) {
        free(reply.body);
    }
}

static void check_move(te_channel *channel, size_t length, size_t count, uint64_t salt) {
    static uint8_t bytes[3 * MIB], back[3 * MIB];
    ms_write_item writes[40];
    ms_read_item reads[40];
    const void *sources[40];
    void *targets[40];
    uint32_t statuses[40];
    ms_read_result results[40];
    for (size_t i = 0; i < count; i++) {
        writes[i] = (ms_write_item){.segment = 1, .offset = i * length, .length = length};
        reads[i] = (ms_read_item){.segment = 1, .offset = i * length, .length = length};
        sources[i] = bytes + i * length;
        targets[i] = back + i * length;
    }
    fill_pattern(bytes, count * length, 0, salt);
    memset(back, 0, count * length);
    bool is_written =
        te_write(channel, writes, sources, count, NULL, 0, 0, statuses, in_ms(LIMIT_MS)) == MS_OK;
    for (size_t i = 0; i < count; i++) {
        is_written = is_written && statuses[i] == MS_OK;
    }
    bool is_read = te_read(channel, reads, targets, count, results, in_ms(LIMIT_MS)) == MS_OK;
    for (size_t i = 0; i < count && is_written && is_read; i++) {
        CHECK(results[i].status != MS_OK ||
              has_pattern(back + i * length, length, i * length, salt));
    }
}

static void check_dialled(te_engine *asker, const char *address) {
    ms_hello hello = {.version_oldest = 1, .version_newest = 1};
    struct iovec body = {.iov_base = &hello, .iov_len = sizeof hello};
    uint8_t answer[256];
    size_t length = 0;
    te_peer peer = 0;
    char error[TE_ERROR_BYTES];
    if (te_dial(asker, address, &body, 1, in_ms(LIMIT_MS), NULL, &peer, answer, sizeof answer,
                &length, error) == MS_OK) {
        int before = atomic_load(&pushes);
        ms_status status = te_push(asker, peer, MS_REQUEST, KIT_ECHO, 0, 1, &body, 1);
        int64_t until = in_ms(50);
        while (status == MS_OK && atomic_load(&pushes) == before && te_now_ns() < until) {
            usleep(200);
        }
        te_close_peer(asker, peer, "done");
    }
}

static void live(bool over_unix) {
    te_engine *engine = NULL, *asker = NULL;
    te_engine_config config;
    te_engine_config_default(&config);
    config.spin_us = 0; /* the number of calls must not depend on speed */
    te_service service = {
        .context = &engine, .on_request = answer_request, .on_answer = count_answer};
    if (te_engine_open(&config, &engine) != MS_OK) {
        return;
    }
    te_serve(engine, &service);
    char error[TE_ERROR_BYTES], address[64], path[64], dialled[80];
    uint16_t port = 0;
    snprintf(path, sizeof path, "/tmp/te-fault-%d.sock", (int)getpid());
    te_segment_config segment = {.segment = 1, .address = memory, .length = sizeof memory};
    segment.payload_descriptor = segment.words_descriptor = -1;
    ms_status status = over_unix ? te_listen_unix(engine, path, error)
                                 : te_listen_tcp(engine, "127.0.0.1", 0, &port, error);
    if (status == MS_OK) {
        (void)te_segment_add(engine, &segment);
        snprintf(address, sizeof address, "127.0.0.1:%u", (unsigned)port);
        config.io_threads = 1;
        service.context = &asker;
        status = te_engine_open(&config, &asker);
    }
    if (status == MS_OK) {
        te_channel *channel = NULL;
        te_channel_config wanted = {.addresses = over_unix ? NULL : address,
                                    .unix_path = over_unix ? path : NULL,
                                    .connections_max = 3};
        te_serve(asker, &service);
        snprintf(dialled, sizeof dialled, over_unix ? "unix:%s" : "%s", over_unix ? path : address);
        check_dialled(asker, dialled);
        if (te_channel_open(asker, &wanted, &channel) == MS_OK) {
            check_call(channel, 10, false);
            check_call(channel, 30000, true);
            check_move(channel, 3000, 40, 3);
            check_move(channel, 3 * MIB, 1, 4); /* striped */
            te_channel_set_hello(channel, NULL, 0);
            check_call(channel, 12, true);
            te_channel_close(channel);
        }
    }
    te_segment_remove(engine, 1);
    te_engine_close(asker);
    te_engine_close(engine);
}

static void fail_each(te_fault_kind kind, bool over_unix) {
    long nth = 0, calls = 0, misses = 0;
    /* How many calls there are differs a little from run to run: some rounds without a fault end
     * it. */
    while (misses < 3) {
        te_fault_arm(kind, ++nth);
        live(over_unix);
        misses += !te_fault_met(kind);
        calls = te_fault_calls(kind);
        te_fault_arm(kind, 0);
        CHECK(nth < 5000);
    }
    fprintf(stderr, "  %ld faults, %ld calls in the last round\n", nth - misses, calls);
    CHECK(nth > 20);
    live(over_unix); /* and whole again */
}

static void every_allocation_fails_over_tcp(void) { fail_each(TE_FAULT_MEMORY, false); }
static void every_allocation_fails_over_unix(void) { fail_each(TE_FAULT_MEMORY, true); }
static void every_system_call_fails_over_tcp(void) { fail_each(TE_FAULT_IO, false); }
static void every_system_call_fails_over_unix(void) { fail_each(TE_FAULT_IO, true); }

int main(int argc, char **argv) {
    RUN(every_allocation_fails_over_tcp);
    RUN(every_allocation_fails_over_unix);
    RUN(every_system_call_fails_over_tcp);
    RUN(every_system_call_fails_over_unix);
    return 0;
}
