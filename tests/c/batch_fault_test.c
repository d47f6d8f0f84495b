// The n-th allocation and the n-th system call fails, for every n: batches end, and never with the wrong bytes.
//
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// flags: -DMS_FAULTS
// variants: plain address
// timeout: 300
#include "engine_pair.h"

#include "te_fault.h"

#define LENGTH (300 * KIB)
#define LIMIT_NS (2 * TE_NS_PER_S)

static int64_t limit(void) { return te_now_ns() + LIMIT_NS; }

typedef struct side {
    te_engine *engine;
    void *memory;
    uint64_t address;
} side;

/* False: a fault was met on the way; what there is of it is still to be closed. */
static bool open_side(side *made, uint32_t io_threads, uint64_t seed) {
    te_engine_config config;
    te_engine_config_default(&config);
    config.io_threads = io_threads;
    config.helper_copy_bytes = 256 * KIB;
    if (te_engine_open(&config, &made->engine) != MS_OK) {
        made->engine = NULL;
        return false;
    }
    if (te_shared_alloc(made->engine, LENGTH, &made->memory) != MS_OK)
        return false;
    fill(made->memory, LENGTH, seed);
    made->address = (uint64_t)(uintptr_t)made->memory;
    return te_register_local_memory(made->engine, made->address, LENGTH, "cpu:0") == MS_OK;
}

static void close_side(side *gone) {
    if (gone->engine == NULL)
        return;
    if (gone->address != 0)
        (void)te_unregister_local_memory(gone->engine, gone->address);
    te_shared_free(gone->engine, gone->memory);
    te_engine_close(gone->engine);
}

static bool listen_both(te_engine *engine, const char *path, char address[64]) {
    char error[TE_ERROR_BYTES];
    uint16_t port;
    if (te_serve_memory(engine) != MS_OK ||
        te_listen_tcp(engine, "127.0.0.1", 0, &port, error) != MS_OK)
        return false;
    snprintf(address, 64, "127.0.0.1:%u", port);
    return te_listen_unix(engine, path, error) == MS_OK && te_publish_unix(engine, path) == MS_OK;
}

/* Half is read, half is written; what completed must be right. */
static void move(const side *here, const side *there, const char *address) {
    char error[TE_ERROR_BYTES];
    uint32_t segment;
    uint64_t batch;
    if (te_open_segment(here->engine, address, &segment, limit(), error) != MS_OK)
        return;
    te_transfer_request requests[2] = {
        {TE_READ, segment, here->address, there->address, LENGTH / 2},
        {TE_WRITE, segment, here->address + LENGTH / 2, there->address + LENGTH / 2, LENGTH / 2},
    };
    if (te_allocate_batch_id(here->engine, 2, &batch) == MS_OK) {
        (void)te_batch_eventfd(here->engine, batch);
        OK(te_submit_transfer(here->engine, batch, requests, 2, limit()));
        OK(te_wait_batch(here->engine, batch, limit() + LIMIT_NS));
        te_transfer_status status;
        OK(te_get_transfer_status(here->engine, batch, 0, &status));
        if (status.state == TE_COMPLETED)
            check_filled(here->memory, LENGTH / 2, 2);
        OK(te_get_transfer_status(here->engine, batch, 1, &status));
        for (size_t i = LENGTH / 2; status.state == TE_COMPLETED && i < LENGTH; i++)
            assert(((uint8_t *)there->memory)[i] == proof(1, i));
        OK(te_free_batch_id(here->engine, batch));
    }
    (void)te_send_notify(here->engine, segment, "name", "text", limit());
    OK(te_close_segment(here->engine, segment));
}

static void scenario(bool is_published) {
    side here = {0}, there = {0};
    char path[100], address[64], text[16], name[256];
    size_t length;
    snprintf(path, sizeof path, "/tmp/te-fault-%d.sock", (int)getpid());
    if (open_side(&there, 1, 2) && listen_both(there.engine, path, address) &&
        open_side(&here, 0, 1)) {
        if (!is_published)
            (void)te_publish_unix(there.engine, "");
        move(&here, &there, address);
        (void)te_next_notify(there.engine, name, text, sizeof text, &length);
    }
    close_side(&here);
    close_side(&there);
    unlink(path);
}

static void fail_each(te_fault_kind kind, bool is_published) {
    long nth = 0;
    bool is_met = true;
    int64_t start = te_now_ns();
    while (is_met) {
        te_fault_arm(kind, ++nth);
        scenario(is_published);
        is_met = te_fault_met(kind);
        assert(nth < 5000);
    }
    te_fault_arm(kind, 0);
    assert(nth > 20);
    printf("%s, %s: %ld faults in %.1f s\n", kind == TE_FAULT_MEMORY ? "memory" : "system calls",
           is_published ? "shared memory" : "TCP", nth - 1, (double)(te_now_ns() - start) / 1e9);
}

int main(void) {
    scenario(true);
    fail_each(TE_FAULT_MEMORY, false);
    fail_each(TE_FAULT_MEMORY, true);
    fail_each(TE_FAULT_IO, false);
    fail_each(TE_FAULT_IO, true);
    puts("batch_fault_test: ok");
    return 0;
}
