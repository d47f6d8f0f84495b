// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// library: tests/c/fake_verbs.c libibverbs.so.1
// flags: -Wl,--wrap=te_rdma_is_there
// timeout: 240
/* Gets and puts over lanes of NICs that are this process's memory (fake_verbs.c). */
#include "fake_network.h"
#include "rdma_rails_suite.h"

int main(int argc, char **argv) {
    run_rails_suite(argc, argv);
    fake_counts left = fake_count();
    CHECK(left.queue_pairs == 0 && left.completion_queues == 0 && left.regions == 0 &&
          left.contexts == 0);
    return 0;
}
