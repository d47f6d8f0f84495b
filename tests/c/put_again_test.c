// sources: store/src/*.c master/src/*.c master/src/metadata/*.c transfer_engine/src/*.c mooncake_store/protocol/src/*.c client/src/breaker.c client/src/client.c client/src/get.c client/src/health.c client/src/lane.c client/src/location.c client/src/lookup.c client/src/node.c client/src/pins.c client/src/put.c client/src/session.c client/src/view.c client/src/write.c client/src/write_early.c client/src/write_list.c
// flags of store/src: -DST_TEST_STEPS
// timeout: 120
// variants: plain address
/* A put whose connection to the store server breaks before its answer: the same grant is written and sealed over another
 * connection *(seal_again)*, and the caller sees nothing of it.
 *
 * That the grant is the same is seen by their group, as a put of a group is not begun again, and by a counter.  Where
 * nobody can know what became of it, a put is begun anew, and a group fails.
 * Two attempts may place the same bytes at the same time: that is meant, and ThreadSanitizer would call it a race. */
#include "engine_proxy.h"
#include "st_kit.h"

#include <sys/un.h>

#include "cl_internal.h"
#include "ma.h"
#include "st_internal.h"

#define PROXY_ADDRESS "127.0.0.2" /* the server's port is told with it: the proxy has the same */
#define POOL_BYTES (64u * MIB)
#define LIMIT_S 30

static struct {
    ma_master *master;
    node node;
    proxy *between, *to_master;
    char address[64];
    uint64_t handle;
    uint64_t group;
} all;

typedef enum way { BY_TCP, BY_RELAY, BY_UNIX } way;

static void set_seal_busy(int64_t busy_ns) {
    cl_failure failure;
    cl_client *client = cl_enter(all.handle, &failure);
    CHECK(client != NULL);
    client->engine->seal_busy_ns = busy_ns;
    cl_leave(client);
}

static void open_all(way chosen) {
    ma_config config;
    cl_config own;
    cl_failure failure = {0};
    char error[TE_ERROR_BYTES];
    uint16_t port;
    ma_config_default(&config);
    config.epoch = 3;
    CHECK_STATUS(ma_master_open(&config, &all.master, error), MS_OK);
    CHECK_STATUS(ma_master_listen_tcp(all.master, "127.0.0.1", 0, &port, error), MS_OK);
    snprintf(all.address, sizeof all.address, "127.0.0.1:%u", port);
    node_folder(&all.node);
    all.node.told_addresses = PROXY_ADDRESS;
    node_start(&all.node, POOL_BYTES, all.address);
    node_wait_adopted(&all.node);
    all.between = proxy_open_at(PROXY_ADDRESS, all.node.status.port, all.node.status.port);
    all.to_master = proxy_open_at(PROXY_ADDRESS, port, port);
    snprintf(all.address, sizeof all.address, PROXY_ADDRESS ":%u", port);
    cl_config_default(&own);
    own.master = all.address;
    own.allow_local = chosen == BY_UNIX;
    own.allow_relay = chosen == BY_RELAY;
    CHECK_STATUS(cl_open(&own, in_seconds(LIMIT_S), &all.handle, &failure), MS_OK);
    set_seal_busy(LIMIT_S * SECONDS); /* a server's thread may be late to hear of an end */
}

static void close_all(void) {
    cl_close(all.handle, 2 * SECONDS);
    proxy_close(all.between);
    proxy_close(all.to_master);
    node_close(&all.node);
    ma_master_close(all.master);
}

/* ---- one put in a thread of its own ----------------------------------------------------------------------------- */

#define KEYS_MAX 64u

typedef struct putting {
    char keys[KEYS_MAX][24];
    cl_item items[KEYS_MAX];
    uint8_t *bytes;
    size_t count, size;
    bool is_alone; /* of no group */
    ms_status status;
    cl_failure failure;
} putting;

static void put_open(putting *put, const char *name, size_t count, size_t size) {
    /* Many small ones go in halves, if they are no group. */
    *put = (putting){.count = count,
                     .size = size,
                     .is_alone = count == KEYS_MAX && size <= 1000,
                     .bytes = malloc(count * size)};
    fill(put->bytes, count * size, (uint64_t)name[0] + size);
    for (size_t i = 0; i < count; i++) {
        int length = snprintf(put->keys[i], sizeof put->keys[i], "%s/%zu", name, i);
        put->items[i] = (cl_item){.key = (const uint8_t *)put->keys[i],
                                  .key_length = (uint32_t)length,
                                  .status = MS_PENDING,
                                  .memory = put->bytes + i * size,
                                  .size = size};
    }
}

static void *put_run(void *argument) {
    putting *put = argument;
    cl_client *client = cl_enter(all.handle, &put->failure);
    CHECK(client != NULL);
    cl_put_options options = {.replica_count = 1,
                              .replica_count_min = 1,
                              .group = put->is_alone ? 0 : ++all.group,
                              .timeout_ms = LIMIT_S * 1000};
    put->status =
        cl_put(client, put->items, put->count, &options, in_seconds(LIMIT_S), &put->failure);
    cl_leave(client);
    return NULL;
}

static void check_stored(const putting *put) {
    if (put->status != MS_OK)
        fprintf(stderr, "%s at %s: %s\n", put->failure.stage, put->failure.node,
                put->failure.message);
    CHECK_STATUS(put->status, MS_OK);
    cl_failure failure = {0};
    cl_client *client = cl_enter(all.handle, &failure);
    CHECK(client != NULL);
    uint8_t *got = malloc(put->size);
    for (size_t i = 0; i < put->count; i++) {
        CHECK_STATUS(put->items[i].status, MS_OK);
        cl_item item = put->items[i];
        item.status = MS_PENDING;
        item.memory = got;
        CHECK_STATUS(cl_get(client, &item, 1, NULL, in_seconds(LIMIT_S), &failure), MS_OK);
        CHECK_STATUS(item.status, MS_OK);
        CHECK(item.bytes == put->size && memcmp(got, put->items[i].memory, put->size) == 0);
    }
    free(got);
    cl_leave(client);
}

static cl_counters counters(void) {
    cl_counters now;
    CHECK_STATUS(cl_read_counters(all.handle, &now), MS_OK);
    return now;
}

/* What nobody's broken connection may change. */
typedef struct blamed {
    uint64_t puts_moved, master_failures;
} blamed;

static blamed blame(void) {
    cl_failure failure;
    cl_client *client = cl_enter(all.handle, &failure);
    CHECK(client != NULL);
    pthread_mutex_lock(&client->health.lock);
    blamed now = {.master_failures = client->health.master.failures};
    pthread_mutex_unlock(&client->health.lock);
    cl_leave(client);
    now.puts_moved = counters().puts_moved;
    return now;
}

static void check_blame(blamed before) {
    blamed now = blame();
    CHECK(now.puts_moved == before.puts_moved);
    CHECK(now.master_failures == before.master_failures);
}

/* So that a connection is there which can break. */
static void warm(void) {
    static uint32_t number;
    char name[16];
    putting put;
    snprintf(name, sizeof name, "warm %u", ++number);
    put_open(&put, name, 1, 1000);
    put_run(&put);
    check_stored(&put);
    free(put.bytes);
}

/* ---- what breaks ------------------------------------------------------------------------------------------------ */

#define LOST_BYTES 2000u /* of a frame; more than HELLOs have */

/* The put's frame is on its way, and does not arrive. */
static void await_held(void) {
    int64_t until_ns = in_seconds(LIMIT_S);
    while (all.between->held < LOST_BYTES) {
        CHECK(te_now_ns() < until_ns);
        pause_ms(1);
    }
}

static void be_silent(const char *name) {
    if (strcmp(name, "seal: before the word") == 0)
        all.between->is_silent_back = true;
}

/* The server has sealed some of it, or all, and its answer is lost with the connection. */
static void put_unanswered(const char *name, size_t count, size_t size) {
    fprintf(stderr, "  %s, unanswered\n", name);
    putting put;
    pthread_t thread;
    warm();
    put_open(&put, name, count, size);
    uint64_t sealed = node_counter(&all.node, "seals_total");
    blamed before = blame();
    on_step = be_silent;
    CHECK(pthread_create(&thread, NULL, put_run, &put) == 0);
    node_wait_counter(&all.node, "seals_total", sealed);
    on_step = NULL;
    proxy_break(all.between);
    all.between->is_silent_back = false;
    pthread_join(thread, NULL);
    check_stored(&put);
    check_blame(before);
    free(put.bytes);
}

/* The frame has not arrived when its connection breaks. */
static void put_lost(const char *name, size_t count, size_t size) {
    fprintf(stderr, "  %s, lost\n", name);
    putting put;
    pthread_t thread;
    warm();
    put_open(&put, name, count, size);
    uint64_t sealed = node_counter(&all.node, "seals_total");
    blamed before = blame();
    all.between->is_silent_there = true;
    CHECK(pthread_create(&thread, NULL, put_run, &put) == 0);
    await_held();
    proxy_break(all.between);
    CHECK(node_counter(&all.node, "seals_total") == sealed);
    all.between->is_silent_there = false;
    pthread_join(thread, NULL);
    check_stored(&put);
    check_blame(before);
    free(put.bytes);
}

/* The frame has not arrived when the connection ends over which the master would tell of its relayed put_end: whether
 * it was sealed knows only the server. */
static void put_without_master(const char *name, size_t count, size_t size) {
    fprintf(stderr, "  %s, the master's connection\n", name);
    putting put;
    pthread_t thread;
    warm();
    put_open(&put, name, count, size);
    put.is_alone = true;
    all.between->is_silent_there = true;
    CHECK(pthread_create(&thread, NULL, put_run, &put) == 0);
    await_held();
    proxy_break(all.to_master);
    pause_ms(50); /* the client hears of it, and not of what comes now */
    proxy_break(all.between);
    all.between->is_silent_there = false;
    pthread_join(thread, NULL);
    check_stored(&put);
    free(put.bytes);
}

/* Begins `put`, and breaks its connection in the middle of its bytes, of which the server does not hear: the first attempt
 * keeps its use of the extent, and a SEAL is answered BUSY. */
static pthread_t break_half(putting *put) {
    pthread_t thread;
    uint64_t refused = node_counter(&all.node, "seals_refused_total");
    uint64_t passed = all.between->passed;
    all.between->bytes_per_s = MIB;
    CHECK(pthread_create(&thread, NULL, put_run, put) == 0);
    int64_t until_ns = in_seconds(LIMIT_S);
    while (all.between->passed < passed + 200000) {
        CHECK(te_now_ns() < until_ns);
        pause_ms(1);
    }
    all.between->keeps_serving = true;
    all.between->breaks++;
    all.between->bytes_per_s = 0;
    node_wait_counter(&all.node, "seals_refused_total", refused);
    return thread;
}

static void put_half(const char *name, size_t size) {
    fprintf(stderr, "  %s, half of it\n", name);
    putting put;
    warm();
    put_open(&put, name, 1, size);
    blamed before = blame();
    pthread_t thread = break_half(&put);
    all.between->keeps_serving = false;
    pthread_join(thread, NULL);
    check_stored(&put);
    check_blame(before);
    free(put.bytes);
}

/* The server does not hear of it as long as the client asks. */
static void put_kept(const char *name, size_t size, bool is_alone) {
    fprintf(stderr, "  %s, half of it for long\n", name);
    putting put;
    warm();
    put_open(&put, name, 1, size);
    put.is_alone = is_alone;
    blamed before = blame();
    set_seal_busy(100 * 1000 * 1000);
    pthread_join(break_half(&put), NULL);
    all.between->keeps_serving = false;
    set_seal_busy(LIMIT_S * SECONDS);
    if (is_alone) {
        check_stored(&put);
        CHECK(blame().puts_moved == before.puts_moved + 1);
    } else {
        CHECK_STATUS(put.items[0].status, MS_UNAVAILABLE);
        CHECK(strcmp(put.failure.stage, "write") == 0);
        CHECK(strstr(put.failure.message, "nobody knows whether it was stored") != NULL);
        CHECK(blame().puts_moved == before.puts_moved);
    }
    free(put.bytes);
}

/* ---- where a repeat brings no certainty ------------------------------------------------------------------------------- */

/* What its group is told of a put whose frame has not arrived, when `meanwhile` has happened before its connection breaks. */
static void put_doubted(const char *name, void (*meanwhile)(void), ms_status told) {
    fprintf(stderr, "  %s, of which nobody knows\n", name);
    putting put;
    pthread_t thread;
    warm();
    put_open(&put, name, 1, 4000);
    uint64_t sealed = node_counter(&all.node, "seals_total");
    all.between->is_silent_there = true;
    CHECK(pthread_create(&thread, NULL, put_run, &put) == 0);
    await_held();
    meanwhile();
    proxy_break(all.between);
    all.between->is_silent_there = false;
    pthread_join(thread, NULL);
    CHECK_STATUS(put.items[0].status, told);
    CHECK(strcmp(put.failure.stage, "write") == 0);
    CHECK(strstr(put.failure.message, "nobody knows whether it was stored") != NULL);
    CHECK(node_counter(&all.node, "seals_total") == sealed);
    free(put.bytes);
}

/* The client says another HELLO to all nodes, as in a session that follows. */
static void say_hello_anew(void) {
    uint8_t hello[1024];
    size_t length;
    cl_failure failure;
    cl_client *client = cl_enter(all.handle, &failure);
    CHECK(client != NULL);
    for (size_t i = 0; i < CL_NODES_MAX; i++) {
        cl_node *node = atomic_load(&client->nodes[i]);
        if (node == NULL)
            continue;
        CHECK_STATUS(cl_hello_for_node(client, MS_RIGHT_WRITE, node->incarnation, hello,
                                       sizeof hello, &length),
                     MS_OK);
        te_channel_set_hello(node->writing, hello, length);
    }
    cl_leave(client);
}

/* What is not live has been given back, and to others after that: no grant of before counts any more. */
static void reuse_all(void) {
    st_server *server = all.node.server;
    st_segment *segment = &server->segments[0];
    pthread_mutex_lock(&server->lock);
    for (uint32_t page = 0; page < POOL_BYTES / MS_PAGE_SIZE; page++)
        if ((st_word(segment, page) & 1) == 0)
            atomic_store(&segment->words[page], ms_word(ms_version(3, UINT64_C(1) << 40), 0));
    pthread_mutex_unlock(&server->lock);
}

static void test_what_a_repeat_cannot_tell_is_unclear(way chosen) {
    open_all(chosen);
    put_doubted("another session's", say_hello_anew, MS_UNAVAILABLE);
    put_doubted("reused", reuse_all, MS_IO_ERROR);
    close_all();
}

static void test_puts_survive_their_connection(way chosen) {
    open_all(chosen);
    put_unanswered("a small one", 1, 4000);
    put_lost("another small one", 1, 4000);
    put_unanswered("a few", 8, 3000);
    put_lost("a few others", 8, 3000);
    put_unanswered("large", 1, 5 * MIB + 123);
    put_lost("large, too", 1, 5 * MIB + 123);
    put_unanswered("many", KEYS_MAX, 100000);
    put_unanswered("many small ones", KEYS_MAX, 500);
    put_lost("other small ones", KEYS_MAX, 500);
    put_half("half", 700000);
    put_half("half of a large one", 5 * MIB);
    put_kept("kept", 700000, true);
    put_kept("kept, and large", 5 * MIB, true);
    put_kept("kept in a group", 700000, false);
    close_all();
}

/* ---- the halves of a batch of small values -------------------------------------------------------------------------- */

static _Atomic uint32_t seals_left;

/* The first half is answered, and nothing after it. */
static void be_silent_later(const char *name) {
    if (strcmp(name, "seal: before the word") != 0 || seals_left == 0 || --seals_left != 0)
        return;
    pause_ms(100); /* for what is on its way */
    all.between->is_silent_back = true;
}

static void test_both_halves_go_over_one_connection(void) {
    open_all(BY_TCP);
    putting put;
    pthread_t thread;
    warm();
    uint64_t accepted = all.between->accepted;
    put_open(&put, "together", KEYS_MAX, 500);
    put_run(&put);
    check_stored(&put);
    CHECK(all.between->accepted == accepted);
    free(put.bytes);

    blamed before = blame();
    uint64_t sealed = node_counter(&all.node, "seals_total");
    put_open(&put, "one half", KEYS_MAX, 500);
    seals_left = KEYS_MAX / 2 + 1;
    on_step = be_silent_later;
    CHECK(pthread_create(&thread, NULL, put_run, &put) == 0);
    for (uint64_t now; (now = node_counter(&all.node, "seals_total")) < sealed + KEYS_MAX;)
        node_wait_counter(&all.node, "seals_total", now);
    on_step = NULL;
    CHECK(seals_left == 0);
    proxy_break(all.between);
    all.between->is_silent_back = false;
    pthread_join(thread, NULL);
    check_stored(&put);
    check_blame(before);
    CHECK(node_counter(&all.node, "seals_total") ==
          sealed + KEYS_MAX); /* the first half only once */
    free(put.bytes);
    close_all();
}

/* ---- through shared memory ------------------------------------------------------------------------------------------ */

static _Atomic uint32_t cuts_left, cut_count;

/* Ends what the server has accepted at its Unix socket, but not what it accepts while this looks for it. */
static void cut_unix(const char *name) {
    if (strcmp(name, "seal: before the answer") != 0 || cuts_left == 0)
        return;
    cuts_left--;
    int found[64];
    uint32_t count = 0;
    for (int fd = 3; fd < 1024 && count < sizeof found / sizeof *found; fd++) {
        struct sockaddr_un at = {0};
        socklen_t length = sizeof at, size = sizeof(int);
        int is_listening = 1;
        if (getsockname(fd, (struct sockaddr *)&at, &length) == 0 && at.sun_family == AF_UNIX &&
            strcmp(at.sun_path, all.node.unix_path) == 0 &&
            getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &is_listening, &size) == 0 && !is_listening)
            found[count++] = fd;
    }
    while (count > 0)
        cut_count += shutdown(found[--count], SHUT_RDWR) == 0;
}

/* The first value is sealed when the link is cut, and the others are not *(source_open)*: over the next link the first
 * one is COMPLETE, and the others' memory has to be told once more. */
static void test_shared_memory_survives_its_link(const char *name, size_t count, size_t size) {
    putting put;
    uint64_t address;
    open_all(BY_UNIX);
    warm();
    put_open(&put, name, count, size);
    CHECK_STATUS(cl_alloc(all.handle, count * size, &address), MS_OK);
    memcpy((void *)(uintptr_t)address, put.bytes, count * size);
    for (size_t i = 0; i < count; i++)
        put.items[i].memory = (uint8_t *)(uintptr_t)address + i * size;
    blamed before = blame();
    uint64_t sealed = node_counter(&all.node, "seals_total");
    uint64_t put_bytes_local = counters().put_bytes_local;
    cut_count = 0;
    cuts_left = 1;
    on_step = cut_unix;
    put_run(&put);
    on_step = NULL;
    CHECK(cuts_left == 0 && cut_count > 0);
    check_stored(&put);
    check_blame(before);
    CHECK(node_counter(&all.node, "seals_total") == sealed + count);
    CHECK(counters().put_bytes_local >= put_bytes_local + count * size);
    CHECK_STATUS(cl_free(all.handle, address), MS_OK);
    free(put.bytes);
    close_all();
}

static void test_only_the_server_knows_what_is_sealed(void) {
    open_all(BY_RELAY);
    for (int round = 0; round < 4; round++) {
        char name[16];
        snprintf(name, sizeof name, "%d", round);
        put_without_master(name, round % 2 == 0 ? 1 : 8, 4000);
    }
    close_all();
}

int main(void) {
    RUN(test_only_the_server_knows_what_is_sealed());
    RUN(test_puts_survive_their_connection(BY_TCP));
    RUN(test_puts_survive_their_connection(BY_RELAY));
    RUN(test_both_halves_go_over_one_connection());
    RUN(test_what_a_repeat_cannot_tell_is_unclear(BY_TCP));
    RUN(test_what_a_repeat_cannot_tell_is_unclear(BY_RELAY));
    RUN(test_shared_memory_survives_its_link("shared", 1, 3 * MIB));
    RUN(test_shared_memory_survives_its_link("two, shared", 2, 3 * MIB));
    RUN(test_shared_memory_survives_its_link("many, shared", 16, MIB));
    return 0;
}
