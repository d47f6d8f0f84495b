// Batches: every byte, every status, over TCP (v4 and v6), a Unix socket and shared memory; cancel, death, restart.
//
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// timeout: 180
#include "engine_pair.h"

#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static uint64_t address_of(const void *memory) { return (uint64_t)(uintptr_t)memory; }

static te_transfer_status status_of(te_engine *engine, uint64_t batch, size_t index) {
    te_transfer_status status;
    OK(te_get_transfer_status(engine, batch, index, &status));
    return status;
}

static void check_ended(te_engine *engine, uint64_t batch, size_t index, te_transfer_state state,
                        ms_status why) {
    te_transfer_status status = status_of(engine, batch, index);
    if (status.state == (int32_t)state && status.status == (int32_t)why)
        return;
    fprintf(stderr, "request %zu: state %d, %s; want %d, %s\n", index, status.state,
            ms_status_name((ms_status)status.status), (int)state, ms_status_name(why));
    abort();
}

static uint32_t open_segment(te_engine *engine, const char *address) {
    char error[TE_ERROR_BYTES] = "";
    uint32_t segment;
    check_status(MS_OK, te_open_segment(engine, address, &segment, soon(), error), error, __FILE__,
                 __LINE__);
    return segment;
}

/* One batch, begun and waited for. */
static void run(te_engine *engine, te_transfer_request *requests, size_t count, uint64_t *batch) {
    OK(te_allocate_batch_id(engine, count, batch));
    OK(te_submit_transfer(engine, *batch, requests, count, soon()));
    OK(te_wait_batch(engine, *batch, soon() + TE_NS_PER_S));
}

/* ---- bytes ------------------------------------------------------------------------------------------------------ */

typedef struct memories {
    uint8_t *here, *there;
    size_t length;
} memories;

static void move_and_check(te_engine *asking, uint32_t segment, memories memory) {
    static const size_t sizes[] = {1, 0, 17, 4096, 4097, 65536, 300000, 1 << 20, (3 << 20) + 5};
    enum { SIZES = sizeof sizes / sizeof *sizes, SMALL = 1500 };
    te_transfer_request requests[SMALL];
    uint64_t batch;
    size_t offset = 0, count = 0;
    fill(memory.here, memory.length, 1);
    fill(memory.there, memory.length, 2);
    for (size_t i = 0; i < SIZES; i++) {
        requests[count++] =
            (te_transfer_request){.opcode = i % 2 == 0 ? TE_READ : TE_WRITE,
                                  .segment = segment,
                                  .local_address = address_of(memory.here + offset),
                                  .remote_offset = address_of(memory.there + offset),
                                  .length = sizes[i]};
        offset += sizes[i] + 1; /* a byte that must stay between them */
    }
    run(asking, requests, count, &batch);
    offset = 0;
    for (size_t i = 0; i < SIZES; i++) {
        check_ended(asking, batch, i, TE_COMPLETED, MS_OK);
        assert(status_of(asking, batch, i).bytes == sizes[i]);
        uint64_t seed = i % 2 == 0 ? 2 : 1;
        for (size_t j = offset; j < offset + sizes[i]; j++)
            assert(memory.here[j] == proof(seed, j) && memory.there[j] == proof(seed, j));
        assert(memory.here[offset + sizes[i]] == proof(1, offset + sizes[i]));
        assert(memory.there[offset + sizes[i]] == proof(2, offset + sizes[i]));
        offset += sizes[i] + 1;
    }
    OK(te_free_batch_id(asking, batch));

    /* Many small ones, in both directions, crosswise. */
    fill(memory.here, memory.length, 3);
    fill(memory.there, memory.length, 4);
    for (size_t i = 0; i < SMALL; i++)
        requests[i] =
            (te_transfer_request){.opcode = i % 3 == 0 ? TE_WRITE : TE_READ,
                                  .segment = segment,
                                  .local_address = address_of(memory.here + i * 512),
                                  .remote_offset = address_of(memory.there + (SMALL - 1 - i) * 512),
                                  .length = 500};
    run(asking, requests, SMALL, &batch);
    for (size_t i = 0; i < SMALL; i++) {
        check_ended(asking, batch, i, TE_COMPLETED, MS_OK);
        for (size_t j = 0; j < 512; j++) {
            size_t near = i * 512 + j, far = (SMALL - 1 - i) * 512 + j;
            bool is_moved = j < 500;
            assert(memory.here[near] == (is_moved && i % 3 != 0 ? proof(4, far) : proof(3, near)));
            assert(memory.there[far] == (is_moved && i % 3 == 0 ? proof(3, near) : proof(4, far)));
        }
    }
    OK(te_free_batch_id(asking, batch));
}

static void test_bytes(const char *host, bool is_published, bool is_shared_there,
                       bool is_shared_here) {
    server peer = server_open(host);
    te_engine *asking = open_engine(0);
    memories memory = {.length = 5 * MIB};
    void *here = malloc(memory.length + 100), *there = malloc(memory.length + 100);
    if (is_shared_here)
        free(here), OK(te_shared_alloc(asking, memory.length + 100, &here));
    if (is_shared_there)
        free(there), OK(te_shared_alloc(peer.engine, memory.length + 100, &there));
    memory.here = (uint8_t *)here + 100; /* not at the beginning of its allocation, nor of a page */
    memory.there = (uint8_t *)there + 77;
    if (is_published)
        OK(te_publish_unix(peer.engine, peer.unix_path));
    OK(te_register_local_memory(peer.engine, address_of(memory.there), memory.length, "cpu:0"));
    OK(te_register_local_memory(asking, address_of(memory.here), memory.length, "cpu:0"));
    uint32_t segment = open_segment(asking, peer.address);
    uint64_t address, length;
    OK(te_segment_region(asking, segment, 0, &address, &length));
    assert(address == address_of(memory.there) && length == memory.length);
    CHECK_STATUS(MS_NOT_FOUND, te_segment_region(asking, segment, 1, &address, &length));
    move_and_check(asking, segment, memory);
    OK(te_close_segment(asking, segment));
    te_engine_close(asking);
    server_close(&peer);
    if (!is_shared_here)
        free(here);
    if (!is_shared_there)
        free(there);
}

/* ---- refusals ------------------------------------------------------------------------------------------------------ */

static void test_refusals(bool is_shared) {
    server peer = server_open("127.0.0.1");
    te_engine *asking = open_engine(0);
    uint8_t here[8192];
    void *there = NULL;
    fill(here, sizeof here, 1);
    if (is_shared) {
        OK(te_shared_alloc(peer.engine, 3 * 4096, &there));
        OK(te_publish_unix(peer.engine, peer.unix_path));
    } else {
        there = aligned_alloc(4096, 3 * 4096);
    }
    fill(there, 3 * 4096, 2);
    uint64_t remote = address_of(there) + 4096, local = address_of(here);
    OK(te_register_local_memory(peer.engine, remote, 4096, "*"));
    OK(te_register_local_memory(asking, local, 4096, "*"));
    uint32_t segment = open_segment(asking, peer.address);
    const struct {
        te_transfer_request request;
        ms_status why;
    } table[] = {
        {{TE_READ, segment, local, remote, 2048}, MS_OK},
        {{TE_READ, segment, local + 1, remote, 4096}, MS_OUT_OF_RANGE},
        {{TE_READ, segment, local + 4096, remote, 1}, MS_NOT_REGISTERED},
        {{TE_READ, segment, 4096, remote, 1}, MS_NOT_REGISTERED},
        {{TE_READ, segment, local, remote, UINT64_MAX}, MS_OUT_OF_RANGE},
        {{TE_READ, segment, local, remote + 1, 4096}, MS_OUT_OF_RANGE},
        {{TE_READ, segment, local, remote + 4096, 1}, MS_NOT_REGISTERED},
        {{TE_READ, segment, local, remote - 1, 1}, MS_NOT_REGISTERED},
        {{TE_WRITE, segment, local, remote + 1, 4096}, MS_OUT_OF_RANGE},
        {{TE_WRITE, segment, local, remote - 4096, 4096}, MS_NOT_REGISTERED},
        {{TE_READ, segment + 1024, local, remote, 1}, MS_NOT_REGISTERED},
        {{TE_READ, 0, local, remote, 1}, MS_NOT_REGISTERED},
        {{7, segment, local, remote, 1}, MS_BAD_REQUEST},
        {{-1, segment, local, remote, 1}, MS_BAD_REQUEST},
        {{TE_WRITE, segment, local + 2048, remote + 2048, 10}, MS_OK},
    };
    enum { COUNT = sizeof table / sizeof *table };
    uint64_t batch, other;
    OK(te_allocate_batch_id(asking, COUNT, &batch));
    for (size_t i = 0; i < COUNT; i++)
        OK(te_submit_transfer(asking, batch, &table[i].request, 1, soon()));
    CHECK_STATUS(MS_LIMIT, te_submit_transfer(asking, batch, &table[0].request, 1, soon()));
    OK(te_wait_batch(asking, batch, soon()));
    for (size_t i = 0; i < COUNT; i++)
        check_ended(asking, batch, i, table[i].why == MS_OK ? TE_COMPLETED : TE_FAILED,
                    table[i].why);
    for (size_t i = 0; i < 4096; i++) /* around the region nothing has changed */
        assert(((uint8_t *)there)[i] == proof(2, i) &&
               ((uint8_t *)there)[8192 + i] == proof(2, 8192 + i));
    for (size_t i = 4096; i < sizeof here; i++)
        assert(here[i] == proof(1, i));

    /* The same without a batch. */
    te_transfer_request all[COUNT];
    te_transfer_status statuses[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        all[i] = table[i].request;
    OK(te_transfer(asking, all, COUNT, statuses, soon()));
    for (size_t i = 0; i < COUNT; i++)
        CHECK_STATUS(table[i].why, (ms_status)statuses[i].status);
    assert(statuses[0].state == TE_COMPLETED && statuses[0].bytes == 2048);
    assert(statuses[1].state == TE_FAILED && statuses[1].bytes == 0);
    OK(te_transfer(asking, all, 0, statuses, soon()));
    CHECK_STATUS(MS_BAD_REQUEST, te_transfer(asking, all, 1, statuses, TE_NO_DEADLINE));

    te_transfer_status status;
    CHECK_STATUS(MS_OUT_OF_RANGE, te_get_transfer_status(asking, batch, COUNT, &status));
    CHECK_STATUS(MS_NOT_REGISTERED, te_get_transfer_status(asking, batch + 1, 0, &status));
    CHECK_STATUS(MS_BAD_REQUEST,
                 te_submit_transfer(asking, batch, &table[0].request, 0, TE_NO_DEADLINE));
    OK(te_free_batch_id(asking, batch));
    CHECK_STATUS(MS_NOT_REGISTERED, te_free_batch_id(asking, batch));
    CHECK_STATUS(MS_NOT_REGISTERED, te_wait_batch(asking, batch, soon()));
    CHECK_STATUS(MS_NOT_REGISTERED,
                 te_submit_transfer(asking, batch, &table[0].request, 1, soon()));
    CHECK_STATUS(MS_NOT_REGISTERED, te_cancel_batch(asking, batch));
    assert(te_batch_eventfd(asking, batch) < 0);
    OK(te_allocate_batch_id(asking, 1, &other)); /* the same slot, another id */
    assert(other != batch);
    CHECK_STATUS(MS_BAD_REQUEST, te_allocate_batch_id(asking, 0, &other));

    /* What the peer has unregistered cannot be read, also where it is mapped; registered again it can. */
    te_transfer_request read = {TE_READ, segment, local, remote, 100};
    OK(te_unregister_local_memory(peer.engine, remote));
    run(asking, &read, 1, &batch);
    check_ended(asking, batch, 0, TE_FAILED, MS_NOT_REGISTERED);
    OK(te_register_local_memory(peer.engine, remote, 4096, "*"));
    run(asking, &read, 1, &batch);
    check_ended(asking, batch, 0, TE_COMPLETED, MS_OK);

    /* A deadline that has passed. */
    OK(te_allocate_batch_id(asking, 1, &batch));
    OK(te_submit_transfer(asking, batch, &read, 1, te_now_ns() - 1));
    OK(te_wait_batch(asking, batch, soon()));
    te_transfer_status late = status_of(asking, batch, 0);
    assert(late.state == TE_TIMED_OUT || late.state == TE_COMPLETED);
    te_engine_close(asking);
    server_close(&peer);
    if (!is_shared)
        free(there);
}

/* ---- handles --------------------------------------------------------------------------------------------------------- */

static void test_handles(void) {
    server peer = server_open("127.0.0.1");
    te_engine *asking = open_engine(0);
    char error[TE_ERROR_BYTES] = "", unix_address[120];
    uint32_t segment, again, by_socket;
    segment = open_segment(asking, peer.address);
    again = open_segment(asking, peer.address);
    snprintf(unix_address, sizeof unix_address, "unix:%s", peer.unix_path);
    by_socket = open_segment(asking, unix_address);
    assert(segment == again && segment != by_socket && segment != 0);
    OK(te_close_segment(asking, segment));
    uint64_t address, length;
    CHECK_STATUS(MS_NOT_FOUND, te_segment_region(asking, segment, 0, &address, &length));
    OK(te_close_segment(asking, segment));
    CHECK_STATUS(MS_NOT_REGISTERED, te_close_segment(asking, segment));
    CHECK_STATUS(MS_NOT_REGISTERED, te_segment_region(asking, segment, 0, &address, &length));
    again = open_segment(asking, peer.address);
    assert(again != segment);

    CHECK_STATUS(MS_BAD_REQUEST, te_open_segment(asking, "nowhere", &segment, soon(), error));
    assert(error[0] != '\0');
    CHECK_STATUS(MS_UNAVAILABLE, te_open_segment(asking, "127.0.0.1:1", &segment, soon(), error));
    CHECK_STATUS(MS_BAD_REQUEST,
                 te_open_segment(asking, peer.address, &segment, TE_NO_DEADLINE, error));
    te_engine_close(asking);
    server_close(&peer);
}

/* ---- notifications ------------------------------------------------------------------------------------------------------ */

static void test_notify(void) {
    server peer = server_open("127.0.0.1");
    te_engine *asking = open_engine(0);
    uint32_t segment = open_segment(asking, peer.address);
    char name[256], text[100];
    size_t length;
    struct pollfd waiting = {.fd = te_notify_eventfd(peer.engine), .events = POLLIN};
    CHECK_STATUS(MS_NOT_FOUND, te_next_notify(peer.engine, name, text, sizeof text, &length));
    assert(poll(&waiting, 1, 0) == 0);
    OK(te_send_notify(asking, segment, "first", "hello", soon()));
    OK(te_send_notify(asking, segment, "", "", soon()));
    char large[200];
    memset(large, 'x', sizeof large);
    large[199] = '\0';
    OK(te_send_notify(asking, segment, "large", large, soon()));
    assert(poll(&waiting, 1, 1000) == 1);
    OK(te_next_notify(peer.engine, name, text, sizeof text, &length));
    assert(strcmp(name, "first") == 0 && length == 5 && memcmp(text, "hello", 5) == 0);
    OK(te_next_notify(peer.engine, name, text, sizeof text, &length));
    assert(name[0] == '\0' && length == 0);
    CHECK_STATUS(MS_BUFFER_TOO_SMALL,
                 te_next_notify(peer.engine, name, text, sizeof text, &length));
    assert(length == 199);
    OK(te_next_notify(peer.engine, name, large, sizeof large, &length));
    assert(poll(&waiting, 1, 0) == 0);
    /* The queue is bounded: the sender is told. */
    ms_status status = MS_OK;
    uint32_t kept = 0;
    while (status == MS_OK && kept < 10000) {
        status = te_send_notify(asking, segment, "n", "m", soon());
        kept += status == MS_OK;
    }
    CHECK_STATUS(MS_LIMIT, status);
    assert(kept == 4096);
    te_engine_close(asking);
    server_close(&peer);
}

/* ---- peers that restart, die or freeze ------------------------------------------------------------------------------------ */

static void test_restart(void) {
    server peer = server_open("127.0.0.1");
    te_engine *asking = open_engine(0);
    uint8_t here[4096], *old = malloc(4096), *fresh = malloc(4096);
    assert(old != NULL && fresh != NULL);
    fill(old, 4096, 1);
    fill(fresh, 4096, 2);
    OK(te_register_local_memory(peer.engine, address_of(old), 4096, "*"));
    OK(te_register_local_memory(asking, address_of(here), 4096, "*"));
    uint32_t segment = open_segment(asking, peer.address);
    te_transfer_request read = {TE_READ, segment, address_of(here), address_of(old), 4096};
    uint64_t batch;
    run(asking, &read, 1, &batch);
    check_ended(asking, batch, 0, TE_COMPLETED, MS_OK);

    /* Another process at the same address, whose first region has the number that the old one's had. */
    te_engine_close(peer.engine);
    peer.engine = open_engine(1);
    OK(te_register_local_memory(peer.engine, address_of(fresh), 4096, "*"));
    OK(te_serve_memory(peer.engine));
    char error[TE_ERROR_BYTES];
    uint16_t port = (uint16_t)strtoul(strrchr(peer.address, ':') + 1, NULL, 10), bound;
    check_status(MS_OK, te_listen_tcp(peer.engine, "127.0.0.1", port, &bound, error), error,
                 __FILE__, __LINE__);
    memset(here, 0, sizeof here);
    run(asking, &read, 1, &batch);
    check_ended(asking, batch, 0, TE_FAILED, MS_NOT_REGISTERED); /* not the new one's bytes */
    read.remote_offset = address_of(fresh);
    run(asking, &read, 1, &batch);
    check_ended(asking, batch, 0, TE_COMPLETED, MS_OK);
    check_filled(here, 4096, 2);

    /* Nobody there any more. */
    te_engine_close(peer.engine);
    int64_t start = te_now_ns();
    run(asking, &read, 1, &batch);
    check_ended(asking, batch, 0, TE_FAILED, MS_UNAVAILABLE);
    assert(te_now_ns() - start < 5 * TE_NS_PER_S);
    te_engine_close(asking);
    unlink(peer.unix_path);
    free(old);
    free(fresh);
}

typedef struct child {
    pid_t pid;
    char address[64];
    uint64_t region;
    int alive; /* write end: closing it ends the child */
} child;

/* A serving process of its own, that can be stopped and killed. */
static child start_child(void) {
    int told[2], alive[2];
    assert(pipe(told) == 0 && pipe(alive) == 0);
    child made = {.pid = fork(), .alive = alive[1]};
    assert(made.pid >= 0);
    if (made.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* also when it is stopped and the test has failed */
        close(told[0]);
        close(alive[1]);
        server peer = server_open("127.0.0.1");
        uint8_t *memory = mmap(NULL, 256 * MIB, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (te_register_local_memory(peer.engine, address_of(memory), 256 * MIB, "*") != MS_OK)
            _exit(1);
        child tell = {.region = address_of(memory)};
        memcpy(tell.address, peer.address, sizeof tell.address);
        if (write(told[1], &tell, sizeof tell) != (ssize_t)sizeof tell)
            _exit(1);
        char end;
        (void)!read(alive[0], &end, 1);
        unlink(peer.unix_path);
        _exit(0);
    }
    child tell;
    close(told[1]);
    close(alive[0]);
    assert(read(told[0], &tell, sizeof tell) == (ssize_t)sizeof tell);
    close(told[0]);
    memcpy(made.address, tell.address, sizeof made.address);
    made.region = tell.region;
    return made;
}

static void freeze(const child *peer) {
    int status;
    assert(kill(peer->pid, SIGSTOP) == 0);
    assert(waitpid(peer->pid, &status, WUNTRACED) == peer->pid && WIFSTOPPED(status));
}

static void end_child(child *gone) {
    kill(gone->pid, SIGCONT);
    close(gone->alive);
    int status;
    assert(waitpid(gone->pid, &status, 0) == gone->pid);
}

static void test_frozen(child *peer) {
    te_engine *asking = open_engine(0);
    uint8_t *here = malloc(MIB);
    assert(here != NULL);
    OK(te_register_local_memory(asking, address_of(here), MIB, "*"));
    uint32_t segment = open_segment(asking, peer->address);
    te_transfer_request requests[64];
    for (size_t i = 0; i < 64; i++)
        requests[i] =
            (te_transfer_request){i % 2 == 0 ? TE_READ : TE_WRITE, segment,
                                  address_of(here) + i * 16384, peer->region + i * 16384, 16384};
    uint64_t batch;
    run(asking, requests, 64, &batch);
    check_ended(asking, batch, 63, TE_COMPLETED, MS_OK);

    /* Frozen: requests end at their deadline, not later, and then nothing writes here any more. */
    freeze(peer);
    OK(te_allocate_batch_id(asking, 64, &batch));
    int64_t start = te_now_ns();
    OK(te_submit_transfer(asking, batch, requests, 64, start + 300 * TE_NS_PER_MS));
    CHECK_STATUS(MS_TIMEOUT, te_wait_batch(asking, batch, start + 100 * TE_NS_PER_MS));
    CHECK_STATUS(MS_BUSY, te_free_batch_id(asking, batch));
    CHECK_STATUS(MS_BUSY, te_unregister_local_memory(asking, address_of(here)));
    OK(te_wait_batch(asking, batch, soon()));
    assert(te_now_ns() - start < 3 * TE_NS_PER_S);
    for (size_t i = 0; i < 64; i++)
        check_ended(asking, batch, i, TE_TIMED_OUT, MS_TIMEOUT);
    OK(te_free_batch_id(asking, batch));
    fill(here, MIB, 9);

    /* Cancel: at once, whatever the deadline; what was not begun and what runs. */
    OK(te_allocate_batch_id(asking, 65, &batch));
    OK(te_submit_transfer(asking, batch, requests, 64, te_now_ns() + 60 * TE_NS_PER_S));
    int readable = te_batch_eventfd(asking, batch);
    struct pollfd waiting = {.fd = readable, .events = POLLIN};
    assert(poll(&waiting, 1, 50) == 0);
    start = te_now_ns();
    OK(te_cancel_batch(asking, batch));
    OK(te_cancel_batch(asking, batch)); /* again: nothing more */
    OK(te_wait_batch(asking, batch, soon()));
    assert(te_now_ns() - start < 3 * TE_NS_PER_S);
    assert(poll(&waiting, 1, 1000) == 1);
    for (size_t i = 0; i < 64; i++)
        check_ended(asking, batch, i, TE_CANCELLED, MS_CANCELLED);
    CHECK_STATUS(MS_CANCELLED, te_submit_transfer(asking, batch, requests, 1, soon()));
    OK(te_free_batch_id(asking, batch));
    assert(kill(peer->pid, SIGCONT) == 0);
    usleep(200000);
    check_filled(here, MIB, 9); /* no late answer has touched it */

    /* It works again. */
    run(asking, requests, 64, &batch);
    for (size_t i = 0; i < 64; i++)
        check_ended(asking, batch, i, TE_COMPLETED, MS_OK);

    /* Closing an engine with requests on their way to a frozen peer cancels them. */
    freeze(peer);
    OK(te_allocate_batch_id(asking, 64, &batch));
    OK(te_submit_transfer(asking, batch, requests, 64, te_now_ns() + 60 * TE_NS_PER_S));
    usleep(20000);
    start = te_now_ns();
    te_engine_close(asking);
    assert(te_now_ns() - start < 3 * TE_NS_PER_S);
    assert(kill(peer->pid, SIGCONT) == 0);
    free(here);
}

static void test_killed(child *peer) {
    te_engine *asking = open_engine(0);
    size_t length = 128 * MIB;
    uint8_t *here = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert(here != MAP_FAILED);
    OK(te_register_local_memory(asking, address_of(here), length, "*"));
    uint32_t segment = open_segment(asking, peer->address);
    te_transfer_request read = {TE_READ, segment, address_of(here), peer->region, length};
    uint64_t batch;
    OK(te_allocate_batch_id(asking, 1, &batch));
    int64_t start = te_now_ns();
    OK(te_submit_transfer(asking, batch, &read, 1, start + 60 * TE_NS_PER_S));
    usleep(5000);
    assert(kill(peer->pid, SIGKILL) == 0);
    OK(te_wait_batch(asking, batch, soon()));
    assert(te_now_ns() - start < 8 * TE_NS_PER_S);
    te_transfer_status status = status_of(asking, batch, 0);
    assert(status.state == TE_FAILED || status.state == TE_COMPLETED);
    assert(status.state == TE_COMPLETED || status.status == MS_UNAVAILABLE ||
           status.status == MS_IO_ERROR);
    te_engine_close(asking);
    munmap(here, length);
}

/* ---- threads --------------------------------------------------------------------------------------------------------- */

typedef struct mover {
    te_engine *engine;
    uint32_t segment;
    uint8_t *here, *there;
} mover;

static void *move_in_a_loop(void *argument) {
    mover *work = argument;
    for (uint64_t round = 0; round < 15; round++) {
        te_transfer_request requests[8];
        uint64_t batch;
        fill(work->here, 8 * 4096, round);
        for (size_t i = 0; i < 8; i++)
            requests[i] =
                (te_transfer_request){TE_WRITE, work->segment, address_of(work->here) + i * 4096,
                                      address_of(work->there) + i * 4096, 4096};
        run(work->engine, requests, 8, &batch);
        for (size_t i = 0; i < 8; i++)
            check_ended(work->engine, batch, i, TE_COMPLETED, MS_OK);
        OK(te_free_batch_id(work->engine, batch));
        memset(work->here, 0, 8 * 4096);
        for (size_t i = 0; i < 8; i++)
            requests[i].opcode = TE_READ;
        run(work->engine, requests, 8, &batch);
        if (round % 2 == 0)
            OK(te_cancel_batch(work->engine, batch)); /* too late: it has ended */
        OK(te_free_batch_id(work->engine, batch));
        check_filled(work->here, 8 * 4096, round);
    }
    return NULL;
}

static void test_threads(void) {
    server peer = server_open("127.0.0.1");
    te_engine *asking = open_engine(0);
    enum { THREADS = 4 };
    size_t length = THREADS * 8 * 4096;
    uint8_t *here = malloc(length), *there = malloc(length);
    assert(here != NULL && there != NULL);
    OK(te_register_local_memory(peer.engine, address_of(there), length, "*"));
    OK(te_register_local_memory(asking, address_of(here), length, "*"));
    mover work[THREADS];
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        work[i] = (mover){asking, open_segment(asking, peer.address), here + i * 8 * 4096,
                          there + i * 8 * 4096};
        assert(pthread_create(&threads[i], NULL, move_in_a_loop, &work[i]) == 0);
    }
    for (size_t i = 0; i < THREADS; i++)
        assert(pthread_join(threads[i], NULL) == 0);
    te_engine_close(asking);
    server_close(&peer);
    free(here);
    free(there);
}

int main(void) {
    child frozen = start_child(), killed = start_child(); /* before any thread runs here */
    test_bytes("127.0.0.1", false, false, false);
    test_bytes("::1", false, true, true); /* shared memory that nobody knows to be near */
    test_bytes("127.0.0.1", true, false, false);
    test_bytes("127.0.0.1", true, true, true);
    test_bytes("127.0.0.1", true, true, false);
    test_refusals(false);
    test_refusals(true);
    test_handles();
    test_notify();
    test_restart();
    test_threads();
    test_frozen(&frozen);
    test_killed(&killed);
    end_child(&frozen);
    end_child(&killed);
    puts("batch_test: ok");
    return 0;
}
