// sources: store/src/*.c master/src/*.c master/src/metadata/*.c transfer_engine/src/*.c mooncake_store/protocol/src/*.c client/src/breaker.c client/src/client.c client/src/get.c client/src/health.c client/src/lane.c client/src/location.c client/src/lookup.c client/src/node.c client/src/pins.c client/src/put.c client/src/session.c client/src/view.c client/src/write.c client/src/write_early.c client/src/write_list.c
// flags of store/src: -DST_TEST_STEPS
// timeout: 120
// variants: plain address
/* A put whose connection to the store server breaks before its answer: the same grant is written and sealed over another
 * connection *(seal_again)*, and the caller sees nothing of it.
 *
 * That the grant is the same is seen by their group, as a put of a group is not begun again, and by a counter.
 * Two attempts may place the same bytes at the same time: that is meant, and ThreadSanitizer would call it a race. */
#include "engine_proxy.h"
#include "st_kit.h"

#include "cl.h"
#include "ma.h"

#define PROXY_ADDRESS "127.0.0.2" /* the server's port is told with it: the proxy has the same */
#define POOL_BYTES (64u * MIB)
#define LIMIT_S 30

static struct {
    ma_master *master;
    node node;
    proxy *between;
    char address[64];
    uint64_t handle;
    uint64_t group;
} all;

static void open_all(bool has_relay) {
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
    cl_config_default(&own);
    own.master = all.address;
    own.allow_local = 0;
    own.allow_relay = has_relay;
    CHECK_STATUS(cl_open(&own, in_seconds(LIMIT_S), &all.handle, &failure), MS_OK);
}

static void close_all(void) {
    cl_close(all.handle, 2 * SECONDS);
    proxy_close(all.between);
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
    ms_status status;
    cl_failure failure;
} putting;

static void put_open(putting *put, const char *name, size_t count, size_t size) {
    *put = (putting){.count = count, .size = size, .bytes = malloc(count * size)};
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
                              /* Many small ones go in halves, if they are no group. */
                              .group = put->count < KEYS_MAX || put->size > 1000 ? ++all.group : 0,
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
    uint64_t puts_moved = counters().puts_moved;
    on_step = be_silent;
    CHECK(pthread_create(&thread, NULL, put_run, &put) == 0);
    int64_t until_ns = in_seconds(LIMIT_S);
    while (node_counter(&all.node, "seals_total") == sealed) {
        CHECK(te_now_ns() < until_ns);
        pause_ms(1);
    }
    on_step = NULL;
    all.between->breaks++;
    while (all.between->broken != all.between->breaks)
        pause_ms(1);
    all.between->is_silent_back = false;
    pthread_join(thread, NULL);
    check_stored(&put);
    CHECK(counters().puts_moved == puts_moved);
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
    uint64_t puts_moved = counters().puts_moved;
    all.between->is_silent_there = true;
    CHECK(pthread_create(&thread, NULL, put_run, &put) == 0);
    pause_ms(
        200); /* whether its bytes are with the proxy by then or not, they are lost or come later */
    all.between->breaks++;
    while (all.between->broken != all.between->breaks)
        pause_ms(1);
    CHECK(node_counter(&all.node, "seals_total") == sealed);
    all.between->is_silent_there = false;
    pthread_join(thread, NULL);
    check_stored(&put);
    CHECK(counters().puts_moved == puts_moved);
    free(put.bytes);
}

/* The server does not know yet that the connection has ended: the first attempt still has its use of the extent. */
static void put_half(const char *name, size_t size) {
    fprintf(stderr, "  %s, half of it\n", name);
    putting put;
    pthread_t thread;
    warm();
    put_open(&put, name, 1, size);
    uint64_t refused = node_counter(&all.node, "seals_refused_total");
    uint64_t passed = all.between->passed;
    uint64_t puts_moved = counters().puts_moved;
    all.between->bytes_per_s = MIB;
    CHECK(pthread_create(&thread, NULL, put_run, &put) == 0);
    int64_t until_ns = in_seconds(LIMIT_S);
    while (all.between->passed < passed + 200000) {
        CHECK(te_now_ns() < until_ns);
        pause_ms(1);
    }
    all.between->keeps_serving = true;
    all.between->breaks++;
    all.between->bytes_per_s = 0;
    while (node_counter(&all.node, "seals_refused_total") == refused) { /* BUSY */
        CHECK(te_now_ns() < until_ns);
        pause_ms(1);
    }
    all.between->keeps_serving = false;
    pthread_join(thread, NULL);
    check_stored(&put);
    CHECK(counters().puts_moved == puts_moved);
    free(put.bytes);
}

static void test_puts_survive_their_connection(bool has_relay) {
    open_all(has_relay);
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
    close_all();
}

int main(void) {
    RUN(test_puts_survive_their_connection(false));
    RUN(test_puts_survive_their_connection(true));
    return 0;
}
