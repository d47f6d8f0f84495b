// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// variants: plain
/* Batches over RDMA lanes, in the guest. */
#include "guest_network.h"
#include "rdma_lanes_suite.h"

int main(int argc, char **argv) {
    run_suite(argc, argv);
    return 0;
}
