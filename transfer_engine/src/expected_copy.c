/* When the answer to a request comes for which the peer copies from our shared memory.
 *
 * A wake-up costs as much as the copy of 128 KiB to 1 MiB (100 us in a virtual machine, from the answer of one who sleeps
 * to the first thing that it does), so a short copy is spun through.  A long one is slept through, but for its end: the
 * last ones say how long it takes.
 */
#include "te_internal.h"

#define BYTES_PER_NS 8 /* of a slow machine */
#define SPUN_BYTES_MAX (2u << 20)
#define EARLY_NS (100 * INT64_C(1000)) /* a timer's slack, and a wake-up */
#define FORGET 8 /* a slower copy than the fastest one counts by such a part */
#define MIB ((double)(1 << 20))

void te_expect_copy(te_connection *connection, uint64_t bytes) {
    te_expected_copy *copy = &connection->copy;
    if (bytes <= SPUN_BYTES_MAX) {
        connection->spin_extra_ns = (int64_t)(bytes / BYTES_PER_NS);
        return;
    }
    copy->bytes = bytes;
    copy->begun_ns = te_now_ns();
    if (te_spin_is_off(connection->engine, copy->begun_ns))
        return; /* nothing would follow the early wake-up */
    int64_t takes_ns = (int64_t)((double)copy->ns_per_mib * (double)bytes / MIB);
    copy->rest_ns = takes_ns > EARLY_NS ? takes_ns - EARLY_NS : 0;
    connection->spin_extra_ns = takes_ns - copy->rest_ns;
}

void te_expect_nothing(te_connection *connection, bool is_copied) {
    te_expected_copy *copy = &connection->copy;
    if (copy->begun_ns != 0 && is_copied) {
        int64_t took_ns = te_now_ns() - copy->begun_ns;
        int64_t each = (int64_t)((double)took_ns * MIB / (double)copy->bytes);
        bool is_fastest = copy->ns_per_mib == 0 || each < copy->ns_per_mib;
        copy->ns_per_mib =
            is_fastest ? each : copy->ns_per_mib + (each - copy->ns_per_mib) / FORGET;
    }
    copy->begun_ns = copy->rest_ns = 0;
    connection->spin_extra_ns = 0;
}

int64_t te_expected_ns(const te_connection *connection, int64_t deadline_ns) {
    int64_t from_ns = connection->copy.begun_ns + connection->copy.rest_ns;
    return from_ns < deadline_ns ? from_ns : deadline_ns;
}
