// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
/* How long an answer is not waited for yet while the peer copies (expected_copy.c). */
#include "engine_kit.h"
#include "te_internal.h"

#define US INT64_C(1000)
#define MIB (UINT64_C(1) << 20)

static te_engine *engine;

/* A copy that began so long ago; what the machine adds to it is little beside seconds. */
static void took(te_connection *connection, uint64_t bytes, int64_t took_ns) {
    te_expect_copy(connection, bytes);
    connection->copy.begun_ns = te_now_ns() - took_ns;
    te_expect_nothing(connection, true);
    CHECK(connection->copy.rest_ns == 0 && connection->spin_extra_ns == 0);
}

static void a_short_copy_is_spun_through(void) {
    te_connection connection = {.engine = engine};
    te_expect_copy(&connection, MIB);
    CHECK(connection.spin_extra_ns == 131072 && connection.copy.rest_ns == 0);
    te_expect_nothing(&connection, true);
    CHECK(connection.spin_extra_ns == 0 && connection.copy.ns_per_mib == 0);
}

static void a_long_copy_is_slept_through_when_it_is_known(void) {
    te_connection connection = {.engine = engine};
    te_expect_copy(&connection, 16 * MIB);
    CHECK(connection.copy.rest_ns == 0 && connection.spin_extra_ns == 0); /* nothing is known yet */
    te_expect_nothing(&connection, true);
    connection = (te_connection){.engine = engine};
    took(&connection, 16 * MIB, 160 * TE_NS_PER_S);
    int64_t each_ns = connection.copy.ns_per_mib;
    CHECK(each_ns >= 10 * TE_NS_PER_S && each_ns < 11 * TE_NS_PER_S);
    int64_t now_ns = te_now_ns();
    te_expect_copy(&connection, 32 * MIB);
    CHECK(connection.copy.rest_ns == 32 * each_ns - 100 * US);
    CHECK(connection.spin_extra_ns == 100 * US);
    CHECK(te_expected_ns(&connection, INT64_MAX) >= now_ns + 32 * each_ns - 100 * US);
    CHECK(te_expected_ns(&connection, now_ns + 5) == now_ns + 5); /* never beyond the deadline */
}

static void the_fastest_copy_counts_and_is_forgotten_slowly(void) {
    te_connection connection = {.engine = engine};
    took(&connection, 4 * MIB, 400 * TE_NS_PER_S);
    int64_t fast_ns = connection.copy.ns_per_mib;
    took(&connection, 4 * MIB, 4000 * TE_NS_PER_S);
    int64_t slower_ns = connection.copy.ns_per_mib; /* an eighth of the way from 100 to 1,000 s */
    CHECK(slower_ns > 210 * TE_NS_PER_S && slower_ns < 230 * TE_NS_PER_S);
    took(&connection, 4 * MIB, 40 * TE_NS_PER_S);
    CHECK(connection.copy.ns_per_mib < fast_ns);
}

static void a_refusal_says_nothing_of_copies(void) {
    te_connection connection = {.engine = engine};
    took(&connection, 4 * MIB, 400 * TE_NS_PER_S);
    int64_t before_ns = connection.copy.ns_per_mib;
    te_expect_copy(&connection, 4 * MIB);
    te_expect_nothing(&connection, false);
    CHECK(connection.copy.ns_per_mib == before_ns && connection.copy.rest_ns == 0);
}

static void nobody_wakes_early_where_nobody_spins(void) {
    te_connection connection = {.engine = engine};
    took(&connection, 4 * MIB, 400 * TE_NS_PER_S);
    atomic_store(&engine->spin_quiet_until_ns, INT64_MAX);
    te_expect_copy(&connection, 4 * MIB);
    CHECK(connection.copy.rest_ns == 0 && connection.spin_extra_ns == 0);
    atomic_store(&engine->spin_quiet_until_ns, 0);
    te_expect_copy(&connection, 4 * MIB);
    CHECK(connection.copy.rest_ns > 0);
}

static void a_copy_of_less_than_a_wake_up_is_spun_through(void) {
    te_connection connection = {.engine = engine, .copy = {.ns_per_mib = 20 * US}};
    te_expect_copy(&connection, 4 * MIB);
    CHECK(connection.copy.rest_ns == 0 && connection.spin_extra_ns == 80 * US);
}

/* An echo over a connection of which nothing is expected for a minute. */
static void what_comes_early_ends_a_rest(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, NULL, 2);
    te_connection *own, *other;
    CHECK_STATUS(te_checkout(channel, in_ms(10000), &own), MS_OK);
    CHECK_STATUS(te_checkout(channel, in_ms(10000), &other), MS_OK);
    for (int is_either = 0; is_either < 2; is_either++) {
        const te_expected_copy copy = {
            .bytes = 4 * MIB, .begun_ns = te_now_ns(), .rest_ns = 60 * TE_NS_PER_S};
        own->copy = copy;
        struct iovec body = {.iov_base = "frames", .iov_len = 6};
        CHECK_STATUS(te_send(own, MS_REQUEST, KIT_ECHO, 0, te_next_request(own), 1000, &body, 1,
                             NULL, 0, in_ms(1000)),
                     MS_OK);
        int which = 1;
        if (is_either)
            CHECK_STATUS(te_wait_either(other, own, &which, in_ms(30000)), MS_OK);
        uint8_t back[16];
        te_reply reply = {.body = back, .body_size = sizeof back};
        CHECK_STATUS(te_receive(own, &reply, in_ms(30000)), MS_OK);
        CHECK(which == 1 && memcmp(back, "frames", 6) == 0);
        CHECK(te_now_ns() - copy.begun_ns < 30 * TE_NS_PER_S);
        te_expect_nothing(own, false);
    }
    te_checkin(other, true);
    /* And none outlasts a deadline. */
    own->copy =
        (te_expected_copy){.bytes = 4 * MIB, .begun_ns = te_now_ns(), .rest_ns = 60 * TE_NS_PER_S};
    CHECK_STATUS(te_send(own, MS_REQUEST, KIT_SILENT, 0, te_next_request(own), 1000, NULL, 0, NULL,
                         0, in_ms(1000)),
                 MS_OK);
    int64_t begun_ns = te_now_ns();
    te_reply reply = {0};
    CHECK_STATUS(te_receive(own, &reply, in_ms(100)), MS_TIMEOUT);
    CHECK(te_now_ns() - begun_ns < 30 * TE_NS_PER_S);
    te_checkin(own, false);
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
}

int main(int argc, char **argv) {
    te_engine_config config;
    te_engine_config_default(&config);
    CHECK_STATUS(te_engine_open(&config, &engine), MS_OK);
    RUN(a_short_copy_is_spun_through);
    RUN(a_long_copy_is_slept_through_when_it_is_known);
    RUN(the_fastest_copy_counts_and_is_forgotten_slowly);
    RUN(a_refusal_says_nothing_of_copies);
    RUN(nobody_wakes_early_where_nobody_spins);
    RUN(a_copy_of_less_than_a_wake_up_is_spun_through);
    RUN(what_comes_early_ends_a_rest);
    te_engine_close(engine);
    return 0;
}
