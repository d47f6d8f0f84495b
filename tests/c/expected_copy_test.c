// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
/* How long an answer is not waited for yet while the peer copies (expected_copy.c). */
#include "engine_kit.h"
#include "te_internal.h"

#define US INT64_C(1000)
#define MIB (UINT64_C(1) << 20)

/* A copy that began so long ago; what the machine adds to it is little beside seconds. */
static void took(te_connection *connection, uint64_t bytes, int64_t took_ns) {
    te_expect_copy(connection, bytes);
    connection->copy.begun_ns = te_now_ns() - took_ns;
    te_expect_nothing(connection);
    CHECK(connection->copy.rest_ns == 0 && connection->spin_extra_ns == 0);
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
    te_connection connection = {0};
    took(&connection, 4 * MIB, 400 * TE_NS_PER_S);
    int64_t fast_ns = connection.copy.ns_per_mib;
    took(&connection, 4 * MIB, 4000 * TE_NS_PER_S);
    int64_t slower_ns = connection.copy.ns_per_mib; /* an eighth of the way from 100 to 1,000 s */
    CHECK(slower_ns > 210 * TE_NS_PER_S && slower_ns < 230 * TE_NS_PER_S);
    took(&connection, 4 * MIB, 40 * TE_NS_PER_S);
    CHECK(connection.copy.ns_per_mib < fast_ns);
}

int main(int argc, char **argv) {
    RUN(a_short_copy_is_spun_through);
    RUN(a_long_copy_is_slept_through_when_it_is_known);
    RUN(the_fastest_copy_counts_and_is_forgotten_slowly);
    return 0;
}
