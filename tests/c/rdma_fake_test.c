// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// library: tests/c/fake_verbs.c libibverbs.so.1
// flags: -Wl,--wrap=te_rdma_is_there
// timeout: 240
/* The suite of RDMA over NICs that are this process's memory (fake_verbs.c): all of it under the sanitizers; and calls of the
 * library that fail, which no software NIC does when asked to. */
#include "fake_network.h"
#include "rdma_suite.h"

static uint64_t bytes_of(const fake_counts *before, const fake_counts *after, int first) {
    return after->nic_bytes[first] + after->nic_bytes[first + 1] - before->nic_bytes[first] -
           before->nic_bytes[first + 1];
}

/* NICs 0 and 1 are at node 0, the others at node 1: what is registered at a node goes by its NICs, as long as they
 * are not twice as slow.  All are equally slow, so nothing else tells them apart; a far one gets what tries its speed, once a
 * second. */
static void test_nics_near_the_memory_are_preferred(void) {
    static const char *const locations[] = {"cpu:0", "cpu:1"};
    open_pair();
    wait_for_endpoint();
    fake_speed_set(100 * (uint64_t)MIB);
    for (int i = 0; i < FAKE_NICS; i++)
        asker->rdma->nics[i]->numa_node = i / 2;
    uint8_t *buffer = aligned_alloc(MS_PAGE_SIZE, MIB);
    memset(buffer, 0, MIB);
    for (int node = 0; node < 2; node++) {
        uint64_t address = (uint64_t)(uintptr_t)buffer;
        CHECK_STATUS(te_register_local_memory(asker, address, MIB, locations[node]), MS_OK);
        for (te_rdma_view view = look(); view.registered_bytes != view.wanted_bytes; view = look())
            pause_ms(1);
        uint64_t near = 0, far = 1;
        /* A thread that had no processor makes its NIC look slow until it is tried again. */
        for (int64_t until_ns = in_ms(20000); near <= 4 * far && te_now_ns() < until_ns;) {
            fake_counts before = fake_count();
            for (int i = 0; i < 100; i++)
                CHECK_STATUS(read_once(0, buffer, 64 << 10), MS_OK);
            fake_counts after = fake_count();
            near = bytes_of(&before, &after, 2 * node);
            far = bytes_of(&before, &after, 2 * (1 - node));
        }
        printf("near node %d: %llu bytes by near NICs, %llu by far ones\n", node,
               (unsigned long long)near, (unsigned long long)far);
        CHECK(near > 4 * far);
        CHECK_STATUS(te_unregister_local_memory(asker, address), MS_OK);
    }
    fake_speed_set(0);
    free(buffer);
    close_pair();
}

int main(int argc, char **argv) {
    run_suite(argc, argv);
    RUN(test_nics_near_the_memory_are_preferred);
    fake_counts left = fake_count();
    CHECK(left.queue_pairs == 0 && left.completion_queues == 0 && left.regions == 0 &&
          left.contexts == 0);
    return 0;
}
