// Batches over several rails: every byte; rails that break, fall silent in one direction, refuse, and come back.
//
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// timeout: 240
#include <errno.h>

#include "engine_pair.h"
#include "engine_proxy.h"
#include "te_session.h"

#define RAILS 3
#define SOURCE_SEED 12345
#define BEHIND 65536 /* bytes behind the registered ones that are nobody's */

typedef struct net {
    server server;
    uint16_t port;
    te_engine *asking;
    proxy *proxies[RAILS];
    uint32_t segment;
    /* The peer's: what is read stays as it is, because a READ that was given up over one rail and asked for over another
     * may still be served while the test goes on. */
    uint8_t *source, *there;
    uint8_t *here;
    size_t length;
} net;

static net net_open(size_t length) {
    net made = {.server = {.engine = open_engine(2)}, .asking = open_engine(0), .length = length};
    char error[TE_ERROR_BYTES] = "", addresses[256] = "";
    OK(te_serve_memory(made.server.engine));
    OK(te_listen_tcp(made.server.engine, "127.0.0.1", 0, &made.port, error));
    for (uint32_t i = 0; i < RAILS; i++) {
        made.proxies[i] = proxy_open(made.port);
        snprintf(addresses + strlen(addresses), sizeof addresses - strlen(addresses), "%s%s",
                 i == 0 ? "" : ",", made.proxies[i]->address);
    }
    made.here = malloc(length);
    made.there = malloc(length + BEHIND);
    made.source = malloc(length + BEHIND);
    fill(made.source, length, SOURCE_SEED);
    OK(te_register_local_memory(made.asking, (uint64_t)(uintptr_t)made.here, length, "*"));
    OK(te_register_local_memory(made.server.engine, (uint64_t)(uintptr_t)made.there, length, "*"));
    OK(te_register_local_memory(made.server.engine, (uint64_t)(uintptr_t)made.source, length, "*"));
    check_status(MS_OK, te_open_segment(made.asking, addresses, &made.segment, soon(), error),
                 error, __FILE__, __LINE__);
    return made;
}

static void net_close(net *gone) {
    te_close_segment(gone->asking, gone->segment);
    te_engine_close(gone->asking);
    te_engine_close(gone->server.engine);
    for (uint32_t i = 0; i < RAILS; i++)
        proxy_close(gone->proxies[i]);
    free(gone->here);
    free(gone->there);
    free(gone->source);
}

static te_transfer_request request_of(net *on, int32_t opcode, size_t offset, size_t length) {
    const uint8_t *remote = opcode == TE_READ ? on->source : on->there;
    return (te_transfer_request){.opcode = opcode,
                                 .segment = on->segment,
                                 .local_address = (uint64_t)(uintptr_t)on->here + offset,
                                 .remote_offset = (uint64_t)(uintptr_t)remote + offset,
                                 .length = length};
}

/* The whole memory in requests of `size`, as one batch. */
static uint64_t begin(net *on, int32_t opcode, size_t size, int64_t deadline_ns) {
    size_t count = (on->length + size - 1) / size;
    te_transfer_request *requests = calloc(count, sizeof *requests);
    uint64_t batch;
    for (size_t i = 0; i < count; i++) {
        size_t offset = i * size, left = on->length - offset;
        requests[i] = request_of(on, opcode, offset, left < size ? left : size);
    }
    OK(te_allocate_batch_id(on->asking, count, &batch));
    OK(te_submit_transfer(on->asking, batch, requests, count, deadline_ns));
    free(requests);
    return batch;
}

static void end_well(net *on, uint64_t batch, size_t size) {
    size_t count = (on->length + size - 1) / size;
    OK(te_wait_batch(on->asking, batch, soon() + 20 * TE_NS_PER_S));
    for (size_t i = 0; i < count; i++) {
        te_transfer_status status;
        OK(te_get_transfer_status(on->asking, batch, i, &status));
        check_status(MS_OK, (ms_status)status.status, "a request", __FILE__, __LINE__);
        assert(status.state == TE_COMPLETED);
    }
    OK(te_free_batch_id(on->asking, batch));
}

static void prepare(net *on, int32_t opcode, uint64_t seed) {
    fill(on->here, on->length, seed);
    if (opcode == TE_WRITE)
        fill(on->there, on->length, seed + 1);
}

static void check(net *on, int32_t opcode, uint64_t seed) {
    if (opcode == TE_READ)
        check_filled(on->here, on->length, SOURCE_SEED);
    else
        check_filled(on->there, on->length, seed);
}

static void move(net *on, int32_t opcode, size_t size, uint64_t seed) {
    prepare(on, opcode, seed);
    end_well(on, begin(on, opcode, size, soon()), size);
    check(on, opcode, seed);
}

/* ---- tests ------------------------------------------------------------------------------------------------------ */

static void test_every_byte_over_all_rails(void) {
    net on = net_open(8 * MIB + 4321);
    static const size_t sizes[] = {777, 4096, 65536, 1 << 20, 16 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int32_t opcode = TE_READ; opcode <= TE_WRITE; opcode++)
            move(&on, opcode, sizes[i] == 777 ? 7770 : sizes[i], 10 * i + (uint64_t)opcode);
    for (uint32_t i = 0; i < RAILS; i++)
        assert(on.proxies[i]->passed > MIB); /* a large transfer is spread over all of them */
    net_close(&on);
}

static void test_what_is_asked_for_is_told(void) {
    net on = net_open(4 * MIB);
    prepare(&on, TE_READ, 3);
    uint64_t batch = begin(&on, TE_READ, 4 * MIB, soon());
    OK(te_wait_batch(on.asking, batch, soon()));
    te_transfer_explanation told;
    OK(te_explain_transfer(on.asking, batch, 0, &told));
    assert(told.state == TE_COMPLETED && told.bytes == 4 * MIB && told.retries == 0);
    assert(told.waiting_ns >= 0 && told.moving_ns > 0 && told.rails != 0);
    uint64_t bytes, sum = 0;
    te_rail_view rail;
    for (uint32_t i = 0; te_explain_rail(on.asking, batch, 0, i, &rail, &bytes) == MS_OK; i++) {
        assert(strcmp(rail.transport, "tcp") == 0 && rail.opcode == TE_READ);
        assert(rail.is_up || bytes == 0); /* the others may have moved all before it was there */
        assert(strcmp(rail.remote, on.proxies[i]->address) == 0);
        assert((bytes > 0) == ((told.rails >> i & 1) != 0));
        sum += bytes;
    }
    assert(sum == 4 * MIB);
    CHECK_STATUS(MS_OUT_OF_RANGE, te_explain_transfer(on.asking, batch, 1, &told));
    OK(te_free_batch_id(on.asking, batch));
    CHECK_STATUS(MS_NOT_REGISTERED, te_explain_transfer(on.asking, batch, 0, &told));
    net_close(&on);
}

static void test_a_request_that_makes_no_sense_fails_alone(void) {
    net on = net_open(MIB);
    prepare(&on, TE_READ, 1);
    te_transfer_request requests[3] = {request_of(&on, TE_READ, 0, 4096),
                                       request_of(&on, TE_READ, 4096, 4096),
                                       request_of(&on, TE_READ, 8192, 4096)};
    requests[1].remote_offset += on.length;
    te_transfer_status statuses[3];
    OK(te_transfer(on.asking, requests, 3, statuses, soon()));
    assert(statuses[0].state == TE_COMPLETED && statuses[2].state == TE_COMPLETED);
    assert(statuses[1].state == TE_FAILED && statuses[1].status == MS_NOT_REGISTERED);
    check_filled(on.here, 4096, SOURCE_SEED);
    net_close(&on);
}

typedef enum trouble { BREAKS, FALLS_SILENT, LOSES_REQUESTS, LOSES_ANSWERS, REFUSES } trouble;

static void set_trouble(proxy *rail, trouble kind, bool is_on) {
    if (kind == FALLS_SILENT || kind == LOSES_REQUESTS)
        rail->is_silent_there = is_on;
    if (kind == FALLS_SILENT || kind == LOSES_ANSWERS)
        rail->is_silent_back = is_on;
    if (kind == REFUSES)
        rail->is_refusing = is_on;
    if (is_on && (kind == BREAKS || kind == REFUSES))
        proxy_break(rail);
}

static void test_no_request_notices_a_rail_that_is_lost(void) {
    net on = net_open(24 * MIB);
    uint64_t seed = 100;
    for (uint32_t i = 0; i < RAILS; i++)
        on.proxies[i]->bytes_per_s = 60 * MIB;
    for (trouble kind = BREAKS; kind <= REFUSES; kind++) {
        for (int32_t opcode = TE_READ; opcode <= TE_WRITE; opcode++) {
            proxy *rail = on.proxies[seed % RAILS];
            prepare(&on, opcode, ++seed);
            uint64_t batch = begin(&on, opcode, 256 * KIB, soon() + 20 * TE_NS_PER_S);
            pause_ms(50);
            set_trouble(rail, kind, true);
            end_well(&on, batch, 256 * KIB);
            check(&on, opcode, seed);
            set_trouble(rail, kind, false);
            proxy_break(rail); /* what it has kept of connections that were given up is gone, too */
            move(&on, opcode, MIB, ++seed);
        }
    }
    net_close(&on);
}

static void test_a_rail_that_is_back_is_used_again(void) {
    net on = net_open(8 * MIB);
    move(&on, TE_READ, 64 * KIB, 1);
    proxy *rail = on.proxies[1];
    set_trouble(rail, REFUSES, true);
    move(&on, TE_READ, 64 * KIB, 2);
    set_trouble(rail, REFUSES, false);
    int64_t back_ns = te_now_ns();
    uint64_t passed = rail->passed, seed = 3;
    while (rail->passed < passed + MIB) {
        assert(te_now_ns() < back_ns + 10 * TE_NS_PER_S);
        move(&on, TE_READ, 64 * KIB, seed++);
    }
    net_close(&on);
}

static void test_a_small_read_leaves_a_silent_rail(void) {
    net on = net_open(64 * KIB);
    move(&on, TE_READ, 4096, 1);
    for (uint32_t i = 0; i < RAILS; i++) {
        set_trouble(on.proxies[i], FALLS_SILENT, true);
        for (uint64_t seed = 2; seed < 5; seed++)
            move(&on, TE_READ, 64 * KIB, seed);
        fill(on.here, on.length, 9);
        set_trouble(on.proxies[i], FALLS_SILENT, false);
        proxy_break(on.proxies[i]);
        pause_ms(200);
        check_filled(on.here, on.length, 9); /* no late answer lands */
    }
    net_close(&on);
}

static void test_late_bytes_of_a_lost_write_never_land(void) {
    net on = net_open(4 * MIB);
    for (uint32_t i = 0; i < RAILS; i++)
        on.proxies[i]->bytes_per_s = 20 * MIB;
    move(&on, TE_WRITE, 64 * KIB, 1);
    for (uint64_t round = 0; round < 6; round++) {
        proxy *rail = on.proxies[round % RAILS];
        prepare(&on, TE_WRITE, 10 * round + 2);
        uint64_t batch = begin(&on, TE_WRITE, 128 * KIB, soon() + 20 * TE_NS_PER_S);
        pause_ms(20);
        set_trouble(rail, FALLS_SILENT, true); /* with the first WRITE's bytes in its hands */
        end_well(&on, batch, 128 * KIB);
        check(&on, TE_WRITE, 10 * round + 2);
        /* Another WRITE to the same place has ended as well, when the silent rail lets go. */
        fill(on.here, on.length, 10 * round + 4);
        end_well(&on, begin(&on, TE_WRITE, 128 * KIB, soon() + 20 * TE_NS_PER_S), 128 * KIB);
        set_trouble(rail, FALLS_SILENT, false);
        pause_ms(100);
        check(&on, TE_WRITE, 10 * round + 4);
    }
    net_close(&on);
}

static void test_a_frozen_peer_costs_the_deadline(void) {
    net on = net_open(4 * MIB);
    for (int32_t opcode = TE_READ; opcode <= TE_WRITE; opcode++) {
        move(&on, opcode, 64 * KIB, 1);
        for (uint32_t i = 0; i < RAILS; i++)
            set_trouble(on.proxies[i], FALLS_SILENT, true);
        int64_t begun_ns = te_now_ns();
        uint64_t batch = begin(&on, opcode, MIB, begun_ns + TE_NS_PER_S / 2);
        OK(te_wait_batch(on.asking, batch, soon()));
        int64_t took_ns = te_now_ns() - begun_ns;
        for (size_t i = 0; i < 4; i++) {
            te_transfer_status status;
            OK(te_get_transfer_status(on.asking, batch, i, &status));
            check_status(MS_TIMEOUT, (ms_status)status.status, "a request", __FILE__, __LINE__);
            assert(status.state == TE_TIMED_OUT);
        }
        assert(took_ns >= TE_NS_PER_S / 2 && took_ns < 3 * TE_NS_PER_S);
        OK(te_free_batch_id(on.asking, batch));
        for (uint32_t i = 0; i < RAILS; i++) {
            set_trouble(on.proxies[i], FALLS_SILENT, false);
            proxy_break(on.proxies[i]);
        }
        pause_ms(100);
    }
    net_close(&on);
}

static void test_a_cancel_ends_what_is_on_its_way(void) {
    net on = net_open(4 * MIB);
    for (int32_t opcode = TE_READ; opcode <= TE_WRITE; opcode++) {
        move(&on, opcode, 64 * KIB, 1);
        for (uint32_t i = 0; i < RAILS; i++)
            set_trouble(on.proxies[i], FALLS_SILENT, true);
        uint64_t batch = begin(&on, opcode, MIB, soon() + 60 * TE_NS_PER_S);
        pause_ms(30);
        int64_t begun_ns = te_now_ns();
        OK(te_cancel_batch(on.asking, batch));
        OK(te_wait_batch(on.asking, batch, soon()));
        assert(te_now_ns() - begun_ns < 3 * TE_NS_PER_S);
        for (size_t i = 0; i < 4; i++) {
            te_transfer_status status;
            OK(te_get_transfer_status(on.asking, batch, i, &status));
            assert(status.state == TE_CANCELLED);
        }
        OK(te_free_batch_id(on.asking, batch));
        for (uint32_t i = 0; i < RAILS; i++) {
            set_trouble(on.proxies[i], FALLS_SILENT, false);
            proxy_break(on.proxies[i]);
        }
        pause_ms(100);
    }
    net_close(&on);
}

static void test_a_dead_peer_is_an_error_at_once(void) {
    net on = net_open(MIB);
    move(&on, TE_READ, 64 * KIB, 1);
    te_engine_close(on.server.engine);
    int64_t begun_ns = te_now_ns();
    te_transfer_request request = request_of(&on, TE_READ, 0, MIB);
    te_transfer_status status;
    OK(te_transfer(on.asking, &request, 1, &status, begun_ns + 20 * TE_NS_PER_S));
    assert(status.state == TE_FAILED);
    assert(te_now_ns() - begun_ns < 5 * TE_NS_PER_S);
    on.server.engine = open_engine(1); /* for net_close */
    net_close(&on);
}

static void test_a_peer_that_came_again_is_found(void) {
    net on = net_open(MIB);
    char error[TE_ERROR_BYTES] = "";
    move(&on, TE_READ, 64 * KIB, 1);
    te_engine_close(on.server.engine);
    on.server.engine = open_engine(2);
    OK(te_serve_memory(on.server.engine));
    OK(te_listen_tcp(on.server.engine, "127.0.0.1", on.port, NULL, error));
    OK(te_register_local_memory(on.server.engine, (uint64_t)(uintptr_t)on.there, on.length, "*"));
    OK(te_register_local_memory(on.server.engine, (uint64_t)(uintptr_t)on.source, on.length, "*"));
    for (uint64_t seed = 2; seed < 6; seed++)
        move(&on, seed % 2 == 0 ? TE_READ : TE_WRITE, 64 * KIB, seed);
    net_close(&on);
}

static void test_rails_can_be_changed(void) {
    net on = net_open(4 * MIB);
    char rails[256], error[TE_ERROR_BYTES] = "";
    move(&on, TE_READ, 64 * KIB, 1);
    /* Two stay, one goes; then it comes back, and another goes, in the middle of a transfer. */
    for (uint32_t round = 0; round < 6; round++) {
        uint32_t gone = round % RAILS;
        const char *near = on.proxies[(gone + 1) % RAILS]->address,
                   *far = on.proxies[(gone + 2) % RAILS]->address;
        uint32_t tier =
            round % TE_TIER_COUNT; /* a number that was another rail's has not its tier */
        snprintf(rails, sizeof rails, "127.0.0.1>%s/0,%s/%u", near, far, tier);
        prepare(&on, TE_READ, 10 + round);
        uint64_t batch = begin(&on, TE_READ, 64 * KIB, soon());
        check_status(MS_OK, te_segment_set_rails(on.asking, on.segment, rails, error), error,
                     __FILE__, __LINE__);
        end_well(&on, batch, 64 * KIB);
        check(&on, TE_READ, 10 + round);
        pause_ms(20);
        uint64_t passed = on.proxies[gone]->passed;
        move(&on, TE_READ, 64 * KIB, 20 + round);
        assert(on.proxies[gone]->passed == passed);
        te_rail_view rail;
        uint32_t count = 0;
        while (te_segment_rail(on.asking, on.segment, count, &rail) == MS_OK) {
            assert(strcmp(rail.remote, near) == 0 || strcmp(rail.remote, far) == 0);
            assert(rail.tier == (strcmp(rail.remote, far) == 0 ? tier : 0));
            count++;
        }
        assert(count == 4); /* two in each direction */
    }
    CHECK_STATUS(MS_BAD_REQUEST, te_segment_set_rails(on.asking, on.segment, "nonsense", error));
    CHECK_STATUS(MS_BAD_REQUEST,
                 te_segment_set_rails(on.asking, on.segment, "127.0.0.1:1/7", error));
    CHECK_STATUS(MS_BAD_REQUEST,
                 te_segment_set_rails(on.asking, on.segment, "::1>127.0.0.1:1", error));
    net_close(&on);
}

static void test_an_urgent_request_passes_a_flood(void) {
    net on = net_open(16 * MIB);
    for (uint32_t i = 0; i < RAILS; i++)
        on.proxies[i]->bytes_per_s = 20 * MIB;
    move(&on, TE_READ, MIB, 1);
    prepare(&on, TE_READ, 2);
    te_transfer_options background = {.priority = TE_PRIORITY_BACKGROUND, .tenant = 7},
                        urgent = {.priority = TE_PRIORITY_URGENT, .tenant = 8, .weight = 2};
    te_transfer_request flood = request_of(&on, TE_READ, 0, 15 * MIB);
    te_transfer_request small = request_of(&on, TE_READ, 15 * MIB, 64 * KIB);
    te_transfer_status status;
    uint64_t batch;
    OK(te_allocate_batch_id(on.asking, 1, &batch));
    OK(te_submit_transfer_as(on.asking, batch, &flood, 1, &background, soon() + 20 * TE_NS_PER_S));
    pause_ms(30);
    for (int i = 0; i < 3; i++) {
        OK(te_transfer_as(on.asking, &small, 1, &urgent, &status, soon()));
        assert(status.state == TE_COMPLETED);
    }
    te_transfer_status behind;
    OK(te_get_transfer_status(on.asking, batch, 0, &behind));
    assert(behind.state == TE_PENDING); /* it was there first, and is not through */
    OK(te_wait_batch(on.asking, batch, soon() + 20 * TE_NS_PER_S));
    OK(te_free_batch_id(on.asking, batch));
    check_filled(on.here, 15 * MIB, SOURCE_SEED);
    background.priority = 4;
    CHECK_STATUS(MS_BAD_REQUEST,
                 te_transfer_as(on.asking, &small, 1, &background, &status, soon()));
    net_close(&on);
}

static void set_topology(te_engine *engine, const char *nic) {
    char json[128], error[TE_ERROR_BYTES] = "";
    int length = snprintf(json, sizeof json, "{\"nics\": {\"%s\": [\"127.0.0.1\"]}}", nic);
    check_status(MS_OK, te_set_topology(engine, json, (size_t)length, error), error, __FILE__,
                 __LINE__);
}

static void await_told(net *on, const char *nic) {
    struct pollfd news = {.fd = te_topology_eventfd(on->asking), .events = POLLIN};
    for (;;) {
        char json[256] = "";
        size_t length = 0;
        uint64_t count;
        OK(te_segment_topology(on->asking, on->segment, json, sizeof json - 1, &length));
        json[length] = '\0';
        if (strstr(json, nic) != NULL)
            return;
        assert(poll(&news, 1, 10000) == 1);
        assert(read(news.fd, &count, sizeof count) == sizeof count);
    }
}

/* A peer tells of other interfaces at once, over one rail as over several, and again after a rail was lost. */
static void test_a_peer_tells_of_its_interfaces(void) {
    for (uint32_t rails = 1; rails <= RAILS; rails += RAILS - 1) {
        net on = net_open(64 * KIB);
        char list[256] = "", error[TE_ERROR_BYTES] = "";
        assert(te_topology_eventfd(on.asking) >= 0);
        set_topology(on.asking, "here");
        for (uint32_t i = 0; i < rails; i++)
            snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i == 0 ? "" : ",",
                     on.proxies[i]->address);
        /* Opened anew: this engine knows its interfaces now. */
        te_close_segment(on.asking, on.segment);
        OK(te_open_segment(on.asking, on.proxies[0]->address, &on.segment, soon(), error));
        OK(te_segment_set_rails(on.asking, on.segment, list, error));
        set_topology(on.server.engine, "first0");
        await_told(&on, "first0");
        set_topology(on.server.engine, "second0");
        await_told(&on, "second0");
        proxy_break(on.proxies[0]);
        set_topology(on.server.engine, "third0");
        await_told(&on, "third0");
        net_close(&on);
    }
}

int main(void) {
    struct {
        const char *name;
        void (*run)(void);
    } tests[] = {
        {"every byte", test_every_byte_over_all_rails},
        {"explain", test_what_is_asked_for_is_told},
        {"nonsense", test_a_request_that_makes_no_sense_fails_alone},
        {"a rail is lost", test_no_request_notices_a_rail_that_is_lost},
        {"a rail is back", test_a_rail_that_is_back_is_used_again},
        {"a small read", test_a_small_read_leaves_a_silent_rail},
        {"late bytes", test_late_bytes_of_a_lost_write_never_land},
        {"a frozen peer", test_a_frozen_peer_costs_the_deadline},
        {"cancel", test_a_cancel_ends_what_is_on_its_way},
        {"a dead peer", test_a_dead_peer_is_an_error_at_once},
        {"a new peer", test_a_peer_that_came_again_is_found},
        {"other rails", test_rails_can_be_changed},
        {"told", test_a_peer_tells_of_its_interfaces},
        {"a flood", test_an_urgent_request_passes_a_flood},
    };
    const char *only = getenv("TEST");
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (only != NULL && strstr(tests[i].name, only) == NULL)
            continue;
        int64_t begun_ns = te_now_ns();
        tests[i].run();
        printf("%s: %.2f s\n", tests[i].name, (double)(te_now_ns() - begun_ns) / 1e9);
        fflush(stdout);
    }
    return 0;
}
