// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
/* How long an answer is not waited for yet while the peer copies (expected_copy.c). */
#include "engine_kit.h"
#include "pause.h"
#include "te_internal.h"

#define US INT64_C(1000)
#define MIB (UINT64_C(1) << 20)

static int64_t spent_ns(te_connection *connection, uint64_t bytes, long ms) {
    int64_t begun_ns = te_now_ns();
    te_expect_copy(connection, bytes);
    pause_ms(ms);
    te_expect_nothing(connection);
    CHECK(connection->copy.rest_ns == 0 && connection->spin_extra_ns == 0);
    return te_now_ns() - begun_ns;
}

static void a_short_copy_is_spun_through(void) {
    te_connection connection = {0};
    te_expect_copy(&connection, MIB);
    CHECK(connection.spin_extra_ns == 131072 && connection.copy.rest_ns == 0);
    te_expect_nothing(&connection);
    CHECK(connection.spin_extra_ns == 0 && connection.copy.ns_per_mib == 0);
}

static void a_long_copy_is_slept_through_when_it_is_known(void) {
    te_connection connection = {0};
    te_expect_copy(&connection, 16 * MIB);
    CHECK(connection.copy.rest_ns == 0 && connection.spin_extra_ns == 0); /* nothing is known yet */
    te_expect_nothing(&connection);
    connection = (te_connection){0};
    int64_t most_ns = spent_ns(&connection, 16 * MIB, 8);
    int64_t each_ns = connection.copy.ns_per_mib;
    CHECK(each_ns >= 8000 * US / 16 && each_ns <= most_ns / 16 + 1);
    int64_t now_ns = te_now_ns();
    te_expect_copy(&connection, 32 * MIB);
    CHECK(connection.copy.rest_ns == 32 * each_ns - 100 * US);
    CHECK(connection.spin_extra_ns == 100 * US);
    CHECK(te_expected_ns(&connection, INT64_MAX) >= now_ns + 32 * each_ns - 100 * US);
    CHECK(te_expected_ns(&connection, now_ns + 5) == now_ns + 5); /* never beyond the deadline */
}

static void the_fastest_copy_counts_and_is_forgotten_slowly(void) {
    te_connection connection = {0};
    (void)spent_ns(&connection, 4 * MIB, 4);
    int64_t fast_ns = connection.copy.ns_per_mib;
    (void)spent_ns(&connection, 4 * MIB, 20);
    int64_t slower_ns = connection.copy.ns_per_mib;
    CHECK(slower_ns > fast_ns + (5000 * US - fast_ns) / 8 - US && slower_ns < 5000 * US);
    (void)spent_ns(&connection, 4 * MIB, 0);
    CHECK(connection.copy.ns_per_mib < fast_ns);
}

int main(int argc, char **argv) {
    RUN(a_short_copy_is_spun_through);
    RUN(a_long_copy_is_slept_through_when_it_is_known);
    RUN(the_fastest_copy_counts_and_is_forgotten_slowly);
    return 0;
}
