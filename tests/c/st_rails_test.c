// sources: store/src/*.c transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// flags of store/src: -DST_TEST_STEPS
// timeout: 180
/* The object protocol over several rails of one store server: stale reads, fences and seals, while rails are lost. */
#include <inttypes.h>

#include "engine_proxy.h"
#include "st_kit.h"

#define RAILS 3
#define KIB 1024u
#define OBJECT_PAGES 192u /* 768 KiB: a dozen slices */
#define OBJECT_BYTES (OBJECT_PAGES * MS_PAGE_SIZE - 100)

typedef struct net {
    master master;
    node node;
    proxy *proxies[RAILS];
    char addresses[256];
} net;

static void net_open(net *made) {
    start(&made->master, &made->node);
    made->addresses[0] = '\0';
    for (uint32_t i = 0; i < RAILS; i++) {
        made->proxies[i] = proxy_open(made->node.status.port);
        snprintf(made->addresses + strlen(made->addresses),
                 sizeof made->addresses - strlen(made->addresses), "%s%s", i == 0 ? "" : ",",
                 made->proxies[i]->address);
    }
}

static void net_close(net *gone) {
    stop(&gone->master, &gone->node);
    for (uint32_t i = 0; i < RAILS; i++)
        proxy_close(gone->proxies[i]);
}

static client net_client(net *on, uint64_t session, uint8_t right) {
    client made = {.engine = client_engine()};
    uint8_t hello[512];
    made.engine->rail_slice_bytes = 16 * KIB;
    te_channel_config config = {.addresses = on->addresses,
                                .hello = hello,
                                .hello_length = hello_write(hello, sizeof hello, session,
                                                            session == 0 ? 0 : EPOCH,
                                                            on->node.status.incarnation, right)};
    CHECK_STATUS(te_channel_open(made.engine, &config, &made.channel), MS_OK);
    return made;
}

static uint64_t passed(const net *on) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < RAILS; i++)
        bytes += on->proxies[i]->passed;
    return bytes;
}

static put put_of(uint32_t page, uint64_t version, const uint8_t *bytes) {
    return (put){.page = page,
                 .page_count = OBJECT_PAGES,
                 .version = version,
                 .bytes = bytes,
                 .length = OBJECT_BYTES};
}

static uint8_t *object(uint64_t version) {
    uint8_t *bytes = malloc(OBJECT_BYTES);
    fill(bytes, OBJECT_BYTES, version);
    return bytes;
}

static void await_rails(const client *of, te_opcode opcode) {
    te_rail_view view;
    int64_t until_ns = in_seconds(20);
    for (uint32_t up = 0; up < RAILS; pause_ms(2)) {
        CHECK(te_now_ns() < until_ns);
        up = 0;
        for (uint32_t i = 0; te_channel_rail(of->channel, i, &view) == MS_OK; i++)
            up += view.is_up && view.opcode == (int32_t)opcode;
    }
}

/* Objects go over all rails, once they are up; small ones and seals as before. */
static void test_objects_go_over_all_rails(void) {
    net on;
    net_open(&on);
    client writer = net_client(&on, SESSION, MS_RIGHT_WRITE),
           reader = net_client(&on, 0, MS_RIGHT_READ);
    uint8_t *got = malloc(OBJECT_BYTES);
    for (uint64_t round = 1; round <= 4; round++) {
        uint64_t version = version_of(round);
        uint8_t *bytes = object(version);
        put one = put_of((uint32_t)round * OBJECT_PAGES, version, bytes);
        CHECK_STATUS(client_put(&writer, &one), MS_OK);
        memset(got, 0, OBJECT_BYTES);
        CHECK_STATUS(client_read(&reader, one.page, version, got, OBJECT_BYTES), MS_OK);
        CHECK(memcmp(got, bytes, OBJECT_BYTES) == 0);
        CHECK_STATUS(client_read(&reader, one.page, version + 1, got, OBJECT_BYTES), MS_GONE);
        free(bytes);
        if (round == 1) {
            await_rails(&writer, TE_WRITE);
            await_rails(&reader, TE_READ);
            for (uint32_t i = 0; i < RAILS; i++)
                on.proxies[i]->passed = 0;
        }
    }
    for (uint32_t i = 0; i < RAILS; i++)
        CHECK(on.proxies[i]->passed > 3 * OBJECT_BYTES / 8);
    CHECK(passed(&on) < 3 * 3 * (uint64_t)OBJECT_BYTES);
    free(got);
    client_close(&writer);
    client_close(&reader);
    net_close(&on);
}

/* A put whose rail falls silent half way: what was on it is written again after a CUT, and sealed when all is there. */
static void test_a_put_survives_a_lost_rail(void) {
    net on;
    net_open(&on);
    client writer = net_client(&on, SESSION, MS_RIGHT_WRITE),
           reader = net_client(&on, 0, MS_RIGHT_READ);
    uint8_t *got = malloc(OBJECT_BYTES), *bytes = object(version_of(1));
    put one = put_of(0, version_of(1), bytes);
    CHECK_STATUS(client_put(&writer, &one), MS_OK);
    await_rails(&writer, TE_WRITE);
    for (uint64_t round = 2; round < 8; round++) {
        proxy *bad = on.proxies[round % RAILS];
        bytes = (free(bytes), object(version_of(round)));
        one = put_of((uint32_t)round * OBJECT_PAGES, version_of(round), bytes);
        bad->is_silent_there = round % 2 == 0; /* else it breaks */
        bad->is_silent_back = true;
        bad->breaks += round % 2;
        CHECK_STATUS(client_put(&writer, &one), MS_OK);
        bad->is_silent_there = bad->is_silent_back = false;
        CHECK_STATUS(client_read(&reader, one.page, one.version, got, OBJECT_BYTES), MS_OK);
        CHECK(memcmp(got, bytes, OBJECT_BYTES) == 0);
        await_rails(&writer, TE_WRITE);
    }
    free(got);
    free(bytes);
    client_close(&writer);
    client_close(&reader);
    net_close(&on);
}

typedef struct late_put {
    client *writer;
    put one;
    ms_status status;
} late_put;

static void *put_late(void *argument) {
    late_put *late = argument;
    late->status = client_put(late->writer, &late->one);
    return NULL;
}

/* A fence reaches every rail: a writer that was slow on all of them writes nothing after FREED, and is told so. */
static void test_a_fence_cuts_every_rail(void) {
    net on;
    net_open(&on);
    client slow = net_client(&on, SESSION, MS_RIGHT_WRITE),
           next = net_client(&on, SESSION + 1, MS_RIGHT_WRITE),
           reader = net_client(&on, 0, MS_RIGHT_READ);
    uint8_t *first = object(version_of(1)), *second = object(version_of(2)),
            *third = object(version_of(3)), *got = malloc(OBJECT_BYTES);
    put warm = put_of(5 * OBJECT_PAGES, version_of(1), first);
    CHECK_STATUS(client_put(&slow, &warm), MS_OK);
    await_rails(&slow, TE_WRITE);
    for (uint32_t i = 0; i < RAILS; i++)
        on.proxies[i]->bytes_per_s = 100000;
    late_put late = {.writer = &slow, .one = put_of(0, version_of(2), second)};
    uint64_t before = passed(&on);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, put_late, &late) == 0);
    while (passed(&on) < before + 100 * KIB)
        pause_ms(1);
    ms_free_item item = free_item(0, OBJECT_PAGES, version_of(2), SESSION);
    master_free(&on.master, EPOCH, on.node.status.incarnation, &item, 1);
    master_expect_item(&on.master, MS_FREED, 0, version_of(2));
    for (uint32_t i = 0; i < RAILS; i++)
        on.proxies[i]->bytes_per_s = 0;
    put other = put_of(0, version_of(3), third);
    CHECK_STATUS(client_put(&next, &other), MS_OK);
    pthread_join(thread, NULL);
    CHECK(late.status != MS_OK);
    CHECK_STATUS(client_read(&reader, 0, version_of(3), got, OBJECT_BYTES), MS_OK);
    CHECK(memcmp(got, third, OBJECT_BYTES) == 0);
    CHECK_STATUS(client_read(&reader, 0, version_of(2), got, OBJECT_BYTES), MS_GONE);
    free(first);
    free(second);
    free(third);
    free(got);
    client_close(&slow);
    client_close(&next);
    client_close(&reader);
    net_close(&on);
}

/* ---- a hunt ------------------------------------------------------------------------------------------------------ */

#define HUNT_NS (INT64_C(6000) * 1000000)
#define READERS 2

static struct {
    net on;
    _Atomic uint64_t newest; /* its version's sequence; page: (sequence % 4) * OBJECT_PAGES */
    _Atomic bool is_over;
    _Atomic uint64_t read, gone;
} hunt;

static uint32_t page_of(uint64_t sequence) { return (uint32_t)(sequence % 4) * OBJECT_PAGES; }

static void *hunt_reader(void *argument) {
    uint64_t chance = (uint64_t)(uintptr_t)argument;
    client reader = net_client(&hunt.on, 0, MS_RIGHT_READ);
    uint8_t *got = malloc(OBJECT_BYTES), *wanted = malloc(OBJECT_BYTES);
    while (!hunt.is_over) {
        chance = chance * 6364136223846793005u + 1442695040888963407u;
        uint64_t newest = hunt.newest, age = (chance >> 40) % 4;
        if (newest <= age)
            continue;
        uint64_t version = version_of(newest - age);
        ms_status status = client_read(&reader, page_of(newest - age), version, got, OBJECT_BYTES);
        if (status == MS_OK) {
            fill(wanted, OBJECT_BYTES, version);
            CHECK(memcmp(got, wanted, OBJECT_BYTES) == 0);
            hunt.read++;
        } else {
            CHECK_STATUS(status, MS_GONE);
            hunt.gone++;
        }
    }
    free(got);
    free(wanted);
    client_close(&reader);
    return NULL;
}

static void *hunt_trouble(void *argument) {
    (void)argument;
    for (uint32_t turn = 0; !hunt.is_over; turn++) {
        proxy *bad = hunt.on.proxies[turn % RAILS];
        bad->breaks += turn % 3 == 0;
        bad->is_silent_back = turn % 3 == 1;
        bad->is_silent_there = turn % 3 == 2;
        pause_ms(60 + turn * 37 % 80);
        bad->is_silent_there = bad->is_silent_back = false;
        pause_ms(20);
    }
    return NULL;
}

/* Pages are used again while readers with old locations read them, over rails that come and go: what a reader is given
 * is the object that it asked for, or "gone". */
static void test_no_read_is_stale(void) {
    net_open(&hunt.on);
    client writer = net_client(&hunt.on, SESSION, MS_RIGHT_WRITE);
    pthread_t readers[READERS], trouble;
    for (uint64_t i = 0; i < READERS; i++)
        CHECK(pthread_create(&readers[i], NULL, hunt_reader, (void *)(uintptr_t)(i + 1)) == 0);
    CHECK(pthread_create(&trouble, NULL, hunt_trouble, NULL) == 0);
    uint64_t sequence = 1;
    for (int64_t until_ns = te_now_ns() + HUNT_NS; te_now_ns() < until_ns; sequence++) {
        if (sequence > 3) { /* the object that lies where this one goes */
            uint64_t old = version_of(sequence - 4);
            ms_free_item item = free_item(page_of(sequence), OBJECT_PAGES, old, 0);
            if (sequence > 4) {
                master_free(&hunt.on.master, EPOCH, hunt.on.node.status.incarnation, &item, 1);
                master_expect_item(&hunt.on.master, MS_FREED, page_of(sequence), old);
                free(master_take(&hunt.on.master, MS_CLEARED, 0)); /* readers were on it */
            }
        }
        uint8_t *bytes = object(version_of(sequence));
        put one = put_of(page_of(sequence), version_of(sequence), bytes);
        /* A seal goes over one connection; when that ends without the answer, over another one *(seal_again)*. */
        CHECK_STATUS(client_put(&writer, &one), MS_OK);
        free(bytes);
        hunt.newest = sequence;
    }
    hunt.is_over = true;
    for (uint32_t i = 0; i < READERS; i++)
        pthread_join(readers[i], NULL);
    pthread_join(trouble, NULL);
    fprintf(stderr, "%" PRIu64 " puts, %" PRIu64 " read, %" PRIu64 " gone\n", sequence - 1,
            (uint64_t)hunt.read, (uint64_t)hunt.gone);
    CHECK(hunt.read > 0 && hunt.gone > 0);
    client_close(&writer);
    net_close(&hunt.on);
}

int main(void) {
    RUN(test_objects_go_over_all_rails());
    RUN(test_a_put_survives_a_lost_rail());
    RUN(test_a_fence_cuts_every_rail());
    RUN(test_no_read_is_stale());
    return 0;
}
