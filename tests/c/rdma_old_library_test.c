// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// library: tests/c/fake_verbs.c libibverbs.so.1
// flags: -Wl,--wrap=te_rdma_is_there -Wl,--wrap=dlsym
/* A libibverbs from before device memory could be registered: the error says so, and everything else goes by the NICs. */
#include <dlfcn.h>
#include <sys/mman.h>

#include "fake_network.h"
#include "rdma_lanes_suite.h"

static const char dmabuf[] = "ibv_reg_dmabuf_mr";
static bool was_looked_for;

void *__real_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name);
void *__wrap_dlsym(void *library, const char *name) {
    bool is_it = strcmp(name, dmabuf) == 0;
    was_looked_for |= is_it;
    return is_it ? NULL : __real_dlsym(library, name);
}

static void test_device_memory_is_refused_with_what_is_missing(void) {
    net on = net_open();
    char error[TE_ERROR_BYTES] = "";
    int descriptor = memfd_create("device", MFD_CLOEXEC);
    uint8_t *device =
        mmap(NULL, LENGTH, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    uint64_t address = (uint64_t)(uintptr_t)device;
    assert(descriptor >= 0 && ftruncate(descriptor, LENGTH) == 0 && device != MAP_FAILED);
    assert(was_looked_for);
    for (int again = 0; again < 2; again++) { /* nothing of it stays behind */
        CHECK_STATUS(MS_NOT_REGISTERED, te_register_device_memory(on.asking, address, LENGTH,
                                                                  "cuda:0", descriptor, 0, error));
        assert(strstr(error, "cannot register device memory") != NULL);
        assert(strstr(error, dmabuf) != NULL);
    }
    CHECK_STATUS(MS_NOT_REGISTERED, te_unregister_local_memory(on.asking, address));
    (void)move_until(&on, TE_READ, 4);
    close(descriptor);
    munmap(device, LENGTH);
    net_close(&on);
}

int main(int argc, char **argv) {
    setenv("MOONCAKE_STORE_RDMA_WAIT_MS", "3000", 0);
    setenv("MOONCAKE_STORE_RDMA_SILENT_MS", SILENT_MS, 1);
    RUN_LANES(test_device_memory_is_refused_with_what_is_missing);
    return 0;
}
