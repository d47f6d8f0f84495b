// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// library: tests/c/fake_verbs.c libibverbs.so.1
// flags: -Wl,--wrap=te_rdma_is_there
// timeout: 240
/* Batches over RDMA lanes, over NICs that are this process's memory (fake_verbs.c). */
#include "fake_network.h"
#include "rdma_lanes_suite.h"

/* rxe keeps a NIC that is removed until nobody has it open any more, so it is not tried in the guest. */
static void test_a_nic_that_comes_back_is_used_again(void) {
    net on = net_open();
    (void)move_until(&on, TE_READ, 4);
    network_nic_set(3, false);
    (void)move_until(&on, TE_READ, 3);
    network_nic_set(3, true);
    (void)move_until(&on, TE_READ, 4);
    net_close(&on);
}

int main(int argc, char **argv) {
    run_suite(argc, argv);
    RUN_LANES(test_a_nic_that_comes_back_is_used_again);
    fake_counts left = fake_count();
    assert(left.queue_pairs == 0 && left.completion_queues == 0 && left.regions == 0 &&
           left.contexts == 0);
    return 0;
}
