// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// library: tests/c/fake_verbs.c libibverbs.so.1
// flags: -Wl,--wrap=te_rdma_is_there
// timeout: 200
/* The suite of te_read and te_write, which every transport passes, over RDMA from the first byte on (fake_verbs.c). */
#include "transfer_test.c"

#include "fake_network.h"

__attribute__((constructor)) static void use_rdma(void) {
    setenv("MOONCAKE_STORE_RDMA_WRITE_BYTES_MIN", "0", 0);
    setenv("MOONCAKE_STORE_RDMA_WAIT_MS", "3000", 0);
}

__attribute__((destructor)) static void check_rdma(void) {
    fake_counts moved = fake_count();
    fprintf(stderr, "over RDMA: %llu bytes read, %llu written\n",
            (unsigned long long)moved.read_bytes, (unsigned long long)moved.write_bytes);
    CHECK(moved.read_bytes > 0 && moved.write_bytes > 0);
}
