/* Small requests submitted from one thread, to a peer with several rails: a million a second, and more. */
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// variants: plain
// flags: -O2
// timeout: 120
#include <inttypes.h>
#include <time.h>

#include "engine_pair.h"

#define BATCHES 256
#define REQUESTS 1024
#define BYTES 64
#define A_CALL_MIN 16 /* with fewer in a call, waking the carrier is most of what it takes */
#define PER_S_MIN                                                                                  \
    1000000.0 /* of the submitting thread's own time: whoever else has the processor does not count */

static int64_t own_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * TE_NS_PER_S + now.tv_nsec;
}

/* Returns how many are submitted in a second of this thread's time. */
static double submit_all(te_engine *asking, const te_transfer_request *requests, size_t a_call) {
    uint64_t batches[BATCHES];
    int64_t submitting_ns = 0, begin_ns = te_now_ns();
    for (int i = 0; i < BATCHES; i++) {
        OK(te_allocate_batch_id(asking, REQUESTS, &batches[i]));
        int64_t before_ns = own_ns();
        for (size_t j = 0; j < REQUESTS; j += a_call)
            OK(te_submit_transfer(asking, batches[i], &requests[j], a_call,
                                  soon() + 60 * TE_NS_PER_S));
        submitting_ns += own_ns() - before_ns;
    }
    for (int i = 0; i < BATCHES; i++) {
        te_transfer_status status;
        OK(te_wait_batch(asking, batches[i], soon() + 60 * TE_NS_PER_S));
        OK(te_get_transfer_status(asking, batches[i], REQUESTS - 1, &status));
        assert(status.state == TE_COMPLETED);
        OK(te_free_batch_id(asking, batches[i]));
    }
    double count = (double)BATCHES * REQUESTS;
    double submitted = count * 1e9 / (double)submitting_ns;
    printf("requests of %d bytes, %zu a call, two rails: %.0f submitted in a second of one thread, "
           "%.0f a second moved\n",
           BYTES, a_call, submitted, count * 1e9 / (double)(te_now_ns() - begin_ns));
    return submitted;
}

int main(void) {
    te_engine *serving = open_engine(2), *asking = open_engine(0);
    char error[TE_ERROR_BYTES] = "", addresses[128];
    uint16_t ports[2];
    uint32_t segment;
    size_t length = (size_t)REQUESTS * BYTES;
    uint8_t *there = malloc(length), *here = malloc(length);
    fill(there, length, 1);
    OK(te_serve_memory(serving));
    OK(te_listen_tcp(serving, "127.0.0.1", 0, &ports[0], error));
    OK(te_listen_tcp(serving, "127.0.0.1", 0, &ports[1], error));
    OK(te_register_local_memory(serving, (uint64_t)(uintptr_t)there, length, "*"));
    OK(te_register_local_memory(asking, (uint64_t)(uintptr_t)here, length, "*"));
    snprintf(addresses, sizeof addresses, "127.0.0.1:%u,127.0.0.1:%u", ports[0], ports[1]);
    OK(te_open_segment(asking, addresses, &segment, soon(), error));
    te_transfer_request *requests = calloc(REQUESTS, sizeof *requests);
    for (size_t i = 0; i < REQUESTS; i++)
        requests[i] = (te_transfer_request){.opcode = TE_READ,
                                            .segment = segment,
                                            .local_address = (uint64_t)(uintptr_t)here + i * BYTES,
                                            .remote_offset = (uint64_t)(uintptr_t)there + i * BYTES,
                                            .length = BYTES};
    for (size_t a_call = REQUESTS; a_call > 0; a_call /= 8) {
        double best = 0;
        for (int i = 0; i < 3 && best < PER_S_MIN; i++) {
            double next = submit_all(asking, requests, a_call);
            best = next > best ? next : best;
        }
        assert(best >= PER_S_MIN || a_call < A_CALL_MIN);
    }
    check_filled(here, length, 1);
    te_close_segment(asking, segment);
    te_engine_close(asking);
    te_engine_close(serving);
    free(requests);
    free(there);
    free(here);
    return 0;
}
