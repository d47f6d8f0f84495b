// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// variants: plain
/* Gets and puts over lanes of the guest's NICs. */
#include "guest_network.h"
#include "rdma_rails_suite.h"

int main(int argc, char **argv) {
    run_rails_suite(argc, argv);
    return 0;
}
