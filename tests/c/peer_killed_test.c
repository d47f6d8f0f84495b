// The peer's process is killed while several rails carry slices of many requests: each of them ends, and nothing stays.
//
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// timeout: 180
#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "engine_pair.h"
#include "engine_proxy.h"

#define RAILS 3
#define REQUESTS 128
#define SIZE (256 * KIB)
#define SEED 77
#define DEADLINE_NS (30 * TE_NS_PER_S)

typedef struct peer {
    pid_t pid;
    uint16_t port;
    uint64_t region;
} peer;

/* A process of its own that serves REQUESTS * SIZE bytes, and does so until it is killed. */
static peer start_peer(void) {
    int told[2];
    assert(pipe(told) == 0);
    peer made = {.pid = fork()};
    assert(made.pid >= 0);
    if (made.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        char error[TE_ERROR_BYTES];
        te_engine *engine = open_engine(2);
        uint8_t *memory = malloc(REQUESTS * SIZE);
        fill(memory, REQUESTS * SIZE, SEED);
        peer tell = {.region = (uint64_t)(uintptr_t)memory};
        if (te_serve_memory(engine) != MS_OK ||
            te_listen_tcp(engine, "127.0.0.1", 0, &tell.port, error) != MS_OK ||
            te_register_local_memory(engine, tell.region, REQUESTS * SIZE, "*") != MS_OK ||
            write(told[1], &tell, sizeof tell) != (ssize_t)sizeof tell)
            _exit(1);
        for (;;)
            pause();
    }
    peer tell;
    close(told[1]);
    assert(read(told[0], &tell, sizeof tell) == (ssize_t)sizeof tell);
    close(told[0]);
    made.port = tell.port;
    made.region = tell.region;
    return made;
}

static void kill_peer(const peer *gone) {
    int status;
    assert(kill(gone->pid, SIGKILL) == 0);
    assert(waitpid(gone->pid, &status, 0) == gone->pid && WIFSIGNALED(status));
}

static int count_descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    assert(folder != NULL);
    while (readdir(folder) != NULL)
        count++;
    closedir(folder);
    return count;
}

static uint64_t passed(proxy *const *proxies) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < RAILS; i++)
        bytes += proxies[i]->passed;
    return bytes;
}

/* A clear end: completed, or why not. */
static bool is_completed(te_engine *engine, uint64_t batch, size_t index) {
    te_transfer_status status;
    OK(te_get_transfer_status(engine, batch, index, &status));
    if (status.state == TE_COMPLETED) {
        assert(status.status == MS_OK && status.bytes == SIZE);
        return true;
    }
    if (status.status != MS_UNAVAILABLE && status.status != MS_IO_ERROR)
        fprintf(stderr, "request %zu: %s\n", index, ms_status_name((ms_status)status.status));
    assert(status.state == TE_FAILED);
    assert(status.status == MS_UNAVAILABLE || status.status == MS_IO_ERROR);
    return false;
}

/* READs, WRITEs, or one after the other. */
static void move_until_killed(bool has_reads, bool has_writes) {
    peer there = start_peer();
    int descriptors = count_descriptors();
    proxy *proxies[RAILS];
    char addresses[256] = "", error[TE_ERROR_BYTES] = "";
    for (uint32_t i = 0; i < RAILS; i++) {
        proxies[i] = proxy_open(there.port);
        proxies[i]->bytes_per_s = 8 * MIB;
        snprintf(addresses + strlen(addresses), sizeof addresses - strlen(addresses), "%s%s",
                 i == 0 ? "" : ",", proxies[i]->address);
    }
    te_engine *asking = open_engine(0);
    uint8_t *here = calloc(REQUESTS, SIZE);
    uint64_t address = (uint64_t)(uintptr_t)here, batch;
    uint32_t segment;
    OK(te_register_local_memory(asking, address, REQUESTS * SIZE, "*"));
    check_status(MS_OK, te_open_segment(asking, addresses, &segment, soon(), error), error,
                 __FILE__, __LINE__);
    te_transfer_request requests[REQUESTS];
    for (size_t i = 0; i < REQUESTS; i++)
        requests[i] = (te_transfer_request){
            .opcode = has_reads && (!has_writes || i % 2 == 0) ? TE_READ : TE_WRITE,
            .segment = segment,
            .local_address = address + i * SIZE,
            .remote_offset = there.region + i * SIZE,
            .length = SIZE};
    const int64_t deadline_ns = te_now_ns() + DEADLINE_NS;
    OK(te_allocate_batch_id(asking, REQUESTS, &batch));
    OK(te_submit_transfer(asking, batch, requests, REQUESTS, deadline_ns));
    while (passed(proxies) < REQUESTS * SIZE / 4) {
        assert(te_now_ns() < deadline_ns);
        pause_ms(1);
    }
    kill_peer(&there);
    OK(te_wait_batch(asking, batch, deadline_ns)); /* none of them waits for its deadline */
    size_t completed = 0;
    for (size_t i = 0; i < REQUESTS; i++) {
        bool is_there = is_completed(asking, batch, i);
        completed += is_there;
        for (size_t at = 0; is_there && requests[i].opcode == TE_READ && at < SIZE; at++)
            assert(here[i * SIZE + at] == proof(SEED, i * SIZE + at));
    }
    fprintf(stderr, "%zu of %d completed\n", completed, REQUESTS);
    assert(completed < REQUESTS);
    OK(te_free_batch_id(asking, batch));
    OK(te_unregister_local_memory(asking, address)); /* nothing holds it any more */
    OK(te_close_segment(asking, segment));
    te_engine_close(asking);
    free(here);
    for (uint32_t i = 0; i < RAILS; i++)
        proxy_close(proxies[i]);
    assert(count_descriptors() == descriptors);
}

int main(void) {
    move_until_killed(true, false);
    move_until_killed(false, true);
    move_until_killed(true, true);
    return 0;
}
