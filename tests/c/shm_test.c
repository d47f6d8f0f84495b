// Memory shared between processes of a host: sealed memfds, loans, mappings.
//
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// flags: -Wl,--wrap=lseek
// timeout: 120
#include "engine_pair.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* ---- memory of this process ------------------------------------------------------------------------------- */

static void test_allocations(void) {
    te_engine *engine = open_engine(0);
    te_shared *shared = engine->shm->shared;
    void *memory[20];
    te_shared_range range, other;
    CHECK_STATUS(MS_BAD_REQUEST, te_shared_alloc(engine, 0, &memory[0]));
    for (size_t i = 0; i < 20; i++) {
        OK(te_shared_alloc(engine, 5000 + i * 4096, &memory[i]));
        for (size_t j = 0; j < 5000 + i * 4096; j += 997)
            assert(((uint8_t *)memory[i])[j] == 0);
        fill(memory[i], 5000, i);
    }
    for (size_t i = 0; i < 20; i++) {
        uint8_t *bytes = memory[i];
        assert(te_shared_find(shared, bytes, 5000, &range));
        assert(range.base == bytes && range.length % 4096 == 0 && range.length >= 5000);
        assert(te_shared_find(shared, bytes + range.length - 1, 1, &other) &&
               other.number == range.number);
        assert(!te_shared_find(shared, bytes + range.length - 1, 2, &other));
        assert(!te_shared_find(shared, bytes, SIZE_MAX, &other));
        check_filled(bytes, 5000, i);
    }
    /* Sealed: nobody who has the descriptor can take the memory away below a mapping. */
    int descriptor = te_shared_descriptor(shared, range.number);
    assert(descriptor >= 0);
    assert(ftruncate(descriptor, 0) != 0 && errno == EPERM);
    assert(ftruncate(descriptor, 1 << 30) != 0 && errno == EPERM);
    te_shared_free(engine, memory[19]);
    assert(!te_shared_exists(shared, range.number) &&
           te_shared_descriptor(shared, range.number) < 0);
    /* Its memory has gone back although we still have the file. */
    struct stat file;
    assert(fstat(descriptor, &file) == 0 && file.st_blocks == 0);
    close(descriptor);
    te_shared_free(engine, (uint8_t *)memory[3] + 4096); /* not a beginning: nothing happens */
    assert(te_shared_find(shared, memory[3], 5000, &range));
    te_shared_free(engine, NULL);
    te_engine_close(engine);
    /* What was not freed can still be read, until it is unmapped. */
    check_filled(memory[3], 5000, 3);
    for (size_t i = 0; i < 19; i++)
        te_shared_unmap(memory[i], 5000 + i * 4096);
}

/* ---- loans ---------------------------------------------------------------------------------------------------- */

static int sealed_memfd(size_t length, int seals) {
    int descriptor = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert(descriptor >= 0 && ftruncate(descriptor, (off_t)length) == 0);
    assert(fcntl(descriptor, F_ADD_SEALS, seals) == 0);
    return descriptor;
}

static ms_status share(te_engine *engine, te_lender *lender, int descriptor, uint64_t length,
                       uint32_t *id) {
    char error[TE_ERROR_BYTES] = "";
    ms_status status = te_lender_share(engine, lender, descriptor, length, id, error);
    assert((status == MS_OK) == (error[0] == '\0'));
    close(descriptor);
    return status;
}

static void test_loans_refused(void) {
    te_engine *engine = open_engine(0);
    te_lender *lender = te_lender_connect(engine->shm->loans, 1, 2, 3);
    uint32_t id;
    int pipes[2];
    assert(pipe(pipes) == 0);
    CHECK_STATUS(MS_REFUSED, share(engine, lender, pipes[0], 4096, &id));
    close(pipes[1]);
    CHECK_STATUS(MS_REFUSED, share(engine, lender, open("/proc/self/maps", O_RDONLY), 4096, &id));
    CHECK_STATUS(MS_REFUSED, share(engine, lender, open("/proc/self/exe", O_RDONLY), 4096, &id));
    CHECK_STATUS(MS_REFUSED, share(engine, lender, sealed_memfd(4096, F_SEAL_GROW), 4096, &id));
    CHECK_STATUS(MS_REFUSED, share(engine, lender, sealed_memfd(4096, F_SEAL_SHRINK), 4097, &id));
    CHECK_STATUS(MS_REFUSED, share(engine, lender, sealed_memfd(4096, F_SEAL_SHRINK), 0, &id));
    CHECK_STATUS(MS_REFUSED,
                 share(engine, lender, sealed_memfd(4096, F_SEAL_SHRINK), UINT64_MAX, &id));
    for (int i = 0; i < 256; i++)
        OK(share(engine, lender, sealed_memfd(4096, F_SEAL_SHRINK), 100, &id));
    CHECK_STATUS(MS_LIMIT, share(engine, lender, sealed_memfd(4096, F_SEAL_SHRINK), 100, &id));
    OK(te_lender_unshare(engine, lender, id));
    CHECK_STATUS(MS_NOT_REGISTERED, te_lender_unshare(engine, lender, id));
    OK(share(engine, lender, sealed_memfd(4096, F_SEAL_SHRINK), 100, &id));
    te_lender_disconnect(engine, lender);
    te_engine_close(engine);
}

static void test_loans_belong_to_their_process(void) {
    te_engine *engine = open_engine(0);
    te_loans *loans = engine->shm->loans;
    te_lender *first = te_lender_connect(loans, 1000, 7, 1);
    te_lender *again = te_lender_connect(loans, 1000, 7, 2);
    te_lender *other = te_lender_connect(loans, 1000, 8, 3);
    te_lender *other_user = te_lender_connect(loans, 1001, 7, 4);
    te_lender *hidden = te_lender_connect(loans, 1000, 0, 5);
    te_lender *hidden_too = te_lender_connect(loans, 1000, 0, 6);
    assert(first == again && first != other && first != other_user && hidden != hidden_too);

    int descriptor = sealed_memfd(3 * 4096, F_SEAL_SHRINK);
    uint8_t *mine = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    assert(mine != MAP_FAILED);
    fill(mine, 3 * 4096, 5);
    uint32_t id;
    const void *bytes = NULL;
    OK(share(engine, first, descriptor, 3 * 4096 - 10, &id));
    OK(te_loan_begin(engine, again, id + 1, 4096, 8182, &bytes));
    assert(memcmp(bytes, mine + 4096, 8182) == 0);
    te_loan_end(engine, again, id + 1);
    CHECK_STATUS(MS_OUT_OF_RANGE, te_loan_begin(engine, first, id + 1, 4096, 8183, &bytes));
    CHECK_STATUS(MS_OUT_OF_RANGE, te_loan_begin(engine, first, id + 1, UINT64_MAX, 2, &bytes));
    CHECK_STATUS(MS_OUT_OF_RANGE, te_loan_begin(engine, first, id + 1, 1, UINT64_MAX, &bytes));
    CHECK_STATUS(MS_NOT_REGISTERED, te_loan_begin(engine, first, 0, 0, 1, &bytes));
    CHECK_STATUS(MS_NOT_REGISTERED, te_loan_begin(engine, first, id + 2, 0, 1, &bytes));
    CHECK_STATUS(MS_NOT_REGISTERED, te_loan_begin(engine, other, id + 1, 0, 1, &bytes));
    CHECK_STATUS(MS_NOT_REGISTERED, te_loan_begin(engine, other_user, id + 1, 0, 1, &bytes));
    CHECK_STATUS(MS_NOT_REGISTERED, te_lender_unshare(engine, other, id));

    /* UNSHARE while a WRITE copies: the bytes stay until it has ended, and nobody may begin again. */
    OK(te_loan_begin(engine, first, id + 1, 0, 100, &bytes));
    OK(te_lender_unshare(engine, first, id));
    CHECK_STATUS(MS_NOT_REGISTERED, te_loan_begin(engine, first, id + 1, 0, 100, &bytes));
    check_filled(bytes, 100, 5);
    te_loan_end(engine, first, id + 1);

    /* The loans end with the last connection, not before. */
    descriptor = sealed_memfd(4096, F_SEAL_SHRINK);
    OK(share(engine, first, descriptor, 4096, &id));
    te_lender_disconnect(engine, first);
    OK(te_loan_begin(engine, again, id + 1, 0, 1, &bytes));
    te_loan_end(engine, again, id + 1);
    te_lender_disconnect(engine, again);
    te_lender *reborn = te_lender_connect(loans, 1000, 7, 9);
    CHECK_STATUS(MS_NOT_REGISTERED, te_loan_begin(engine, reborn, id + 1, 0, 1, &bytes));
    te_lender_disconnect(engine, reborn);
    te_lender_disconnect(engine, other);
    te_lender_disconnect(engine, other_user);
    te_lender_disconnect(engine, hidden);
    te_lender_disconnect(engine, hidden_too);
    munmap(mine, 3 * 4096);
    te_engine_close(engine);
}

/* ---- attach ------------------------------------------------------------------------------------------------------ */

typedef struct files {
    int payload, words;
    uint8_t *bytes;
    uint64_t *generations;
    size_t length;
} files;

static files make_files(size_t length) {
    files made = {.length = length};
    size_t words = length / 4096 * sizeof(uint64_t);
    made.payload = memfd_create("payload", MFD_CLOEXEC);
    made.words = memfd_create("words", MFD_CLOEXEC);
    assert(ftruncate(made.payload, (off_t)length) == 0 && ftruncate(made.words, (off_t)words) == 0);
    made.bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, made.payload, 0);
    made.generations = mmap(NULL, words, PROT_READ | PROT_WRITE, MAP_SHARED, made.words, 0);
    assert(made.bytes != MAP_FAILED && made.generations != MAP_FAILED);
    return made;
}

static void drop_files(files *gone) {
    munmap(gone->bytes, gone->length);
    munmap(gone->generations, gone->length / 4096 * sizeof(uint64_t));
    close(gone->payload);
    close(gone->words);
}

static void test_attach(void) {
    server peer = server_open("127.0.0.1");
    te_engine *asking = open_engine(0);
    files made = make_files(2 * MIB);
    fill(made.bytes, made.length, 1);
    made.generations[511] = 77;
    static uint8_t plain[8192];
    te_segment_config segment = {.segment = 5,
                                 .address = made.bytes,
                                 .length = made.length,
                                 .payload_descriptor = made.payload,
                                 .words_descriptor = made.words,
                                 .incarnation = 9};
    OK(te_segment_add(peer.engine, &segment));
    te_segment_config private_segment = {.segment = 6,
                                         .address = plain,
                                         .length = sizeof plain,
                                         .payload_descriptor = -1,
                                         .words_descriptor = -1};
    OK(te_segment_add(peer.engine, &private_segment));
    te_segment_config too_long = segment;
    too_long.segment = 7;
    too_long.length += 4096; /* more than its file has */
    OK(te_segment_add(peer.engine, &too_long));

    te_channel *channel = open_channel_to(asking, NULL, peer.unix_path);
    te_mapping mapping, again;
    OK(te_attach(channel, 5, soon(), &mapping));
    assert(mapping.page_count == 512 && mapping.incarnation == 9 && mapping.words[511] == 77);
    check_filled(mapping.payload, made.length, 1);
    fill(made.bytes, 4096, 2); /* the same memory, not a copy */
    check_filled(mapping.payload, 4096, 2);
    /* Read-only, and it stays so. */
    assert(mprotect((void *)(uintptr_t)mapping.payload, 4096, PROT_READ | PROT_WRITE) != 0 &&
           errno == EACCES);
    assert(mprotect((void *)(uintptr_t)mapping.words, 4096, PROT_READ | PROT_WRITE) != 0 &&
           errno == EACCES);
    OK(te_attach(channel, 5, soon(), &again));
    assert(again.payload == mapping.payload && again.words == mapping.words);
    CHECK_STATUS(MS_UNAVAILABLE, te_attach(channel, 6, soon(), &again));
    CHECK_STATUS(MS_IO_ERROR, te_attach(channel, 7, soon(), &again));
    CHECK_STATUS(MS_NOT_REGISTERED, te_attach(channel, 8, soon(), &again));
    OK(te_attach(channel, 5, soon(), &again)); /* refusals cost no connection */

    te_channel *over_tcp = open_channel_to(asking, peer.address, NULL);
    CHECK_STATUS(MS_UNAVAILABLE, te_attach(over_tcp, 5, soon(), &again));
    te_channel_close(over_tcp);
    te_channel_close(channel); /* also while it is being populated */
    te_engine_close(asking);
    server_close(&peer);
    drop_files(&made);
}

off_t __real_lseek(int descriptor, off_t offset, int whence);
off_t __wrap_lseek(int descriptor, off_t offset, int whence);
static _Atomic uint32_t looks_for_holes;

off_t __wrap_lseek(int descriptor, off_t offset, int whence) {
    looks_for_holes += whence == SEEK_HOLE;
    return __real_lseek(descriptor, offset, whence);
}

/* A look for the end of what has memory visits all of its pages: one a step would be quadratic. */
static void test_population_looks_no_further_than_it_goes(void) {
    size_t length = 128 * MIB;
    int descriptor = memfd_create("whole", MFD_CLOEXEC);
    assert(ftruncate(descriptor, (off_t)length) == 0);
    uint8_t *bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    assert(bytes != MAP_FAILED);
    memset(bytes, 1, 64 * MIB);
    memset(bytes + 96 * MIB, 1, 32 * MIB);
    void *mapped;
    OK(te_map_read_only(descriptor, 0, length, &mapped));
    uint64_t done = 0;
    uint32_t steps = 1;
    while (te_populate_step(mapped, descriptor, 0, length, &done))
        steps++;
    assert(done == length && steps == 12 && looks_for_holes == 0);
    munmap(mapped, length);
    munmap(bytes, length);
    close(descriptor);
}

/* Memory that the peer gives back while gigabytes are populated is not taken from it again. */
static void test_population_leaves_what_has_become_a_hole(void) {
    size_t length = 64 * MIB;
    int descriptor = memfd_create("shrinking", MFD_CLOEXEC);
    assert(ftruncate(descriptor, (off_t)length) == 0);
    uint8_t *bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    assert(bytes != MAP_FAILED);
    memset(bytes, 1, length);
    void *mapped;
    OK(te_map_read_only(descriptor, 0, length, &mapped));
    uint64_t done = 0;
    assert(te_populate_step(mapped, descriptor, 0, length, &done) && done == 8 * MIB);
    struct stat before, after;
    assert(fallocate(descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)(20 * MIB),
                     (off_t)(40 * MIB)) == 0);
    assert(fstat(descriptor, &before) == 0 && (size_t)before.st_blocks * 512 == 24 * MIB);
    while (te_populate_step(mapped, descriptor, 0, length, &done)) {
    }
    assert(fstat(descriptor, &after) == 0 && before.st_blocks == after.st_blocks);
    munmap(mapped, length);
    munmap(bytes, length);
    close(descriptor);
}

static void test_population_leaves_holes(void) {
    size_t length = 64 * MIB;
    int descriptor = memfd_create("sparse", MFD_CLOEXEC);
    assert(ftruncate(descriptor, (off_t)length) == 0);
    uint8_t *bytes = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    assert(bytes != MAP_FAILED);
    memset(bytes + MIB, 1, 4096);
    memset(bytes + 10 * MIB, 2, 9 * MIB);
    struct stat before, after;
    void *mapped;
    assert(fstat(descriptor, &before) == 0);
    OK(te_map_read_only(descriptor, 0, length, &mapped));
    uint64_t done = 0;
    int steps = 0;
    while (te_populate_step(mapped, descriptor, 0, length, &done))
        steps++;
    assert(done == 19 * MIB && steps >= 2 && steps <= 5);
    assert(fstat(descriptor, &after) == 0 && before.st_blocks == after.st_blocks);
    CHECK_STATUS(MS_BAD_FRAME, te_map_read_only(descriptor, 4096, length, &mapped));
    CHECK_STATUS(MS_BAD_FRAME, te_map_read_only(descriptor, 0, length + 1, &mapped));
    CHECK_STATUS(MS_BAD_FRAME, te_map_read_only(descriptor, 0, 0, &mapped));
    CHECK_STATUS(MS_BAD_FRAME, te_map_read_only(descriptor, UINT64_MAX, 4096, &mapped));
    munmap(mapped, length);
    munmap(bytes, length);
    close(descriptor);
}

/* ---- share ---------------------------------------------------------------------------------------------------------- */

static ms_status write_from(te_channel *channel, const void *address, size_t length,
                            uint64_t offset) {
    ms_write_item item = {.segment = 5, .offset = offset, .length = length};
    uint32_t status = MS_PENDING;
    const void *none = NULL;
    OK(te_share(channel, address, length, &item.source, &item.source_offset, soon()));
    OK(te_write(channel, &item, &none, 1, NULL, 0, 0, &status, soon()));
    return (ms_status)status;
}

static void add_target(te_engine *engine, void *memory, size_t length) {
    te_segment_config segment = {.segment = 5,
                                 .address = memory,
                                 .length = length,
                                 .payload_descriptor = -1,
                                 .words_descriptor = -1};
    OK(te_segment_add(engine, &segment));
}

static void test_share(void) {
    server peer = server_open("127.0.0.1");
    te_engine *asking = open_engine(0);
    size_t length = 3 * MIB;
    uint8_t *target = malloc(length);
    assert(target != NULL);
    add_target(peer.engine, target, length);
    void *source, *second;
    OK(te_shared_alloc(asking, length, &source));
    fill(source, length, 3);
    te_channel *channel = open_channel_to(asking, peer.address, peer.unix_path);
    OK(write_from(channel, source, length, 0));
    check_filled(target, length, 3);
    OK(write_from(channel, (uint8_t *)source + 4097, 1000, 5));
    assert(memcmp(target + 5, (uint8_t *)source + 4097, 1000) == 0);
    CHECK_STATUS(MS_OUT_OF_RANGE, write_from(channel, source, length, 1));

    /* The id is kept: the same one for the whole allocation. */
    uint32_t id, same;
    uint64_t offset;
    OK(te_share(channel, source, 1, &id, &offset, soon()));
    OK(te_share(channel, (uint8_t *)source + 100, 1, &same, &offset, soon()));
    assert(id == same && offset == 100);
    CHECK_STATUS(MS_NOT_REGISTERED, te_share(channel, target, 1, &same, &offset, soon()));
    CHECK_STATUS(MS_NOT_REGISTERED,
                 te_share(channel, (uint8_t *)source + 1, length, &same, &offset, soon()));

    /* Freed memory is given back when the next is shared; its id means nothing any more. */
    te_shared_free(asking, source);
    OK(te_shared_alloc(asking, length, &second));
    fill(second, length, 4);
    OK(write_from(channel, second, length, 0));
    check_filled(target, length, 4);
    ms_write_item stale = {.segment = 5, .length = 10, .source = id};
    uint32_t status = MS_PENDING;
    const void *none = NULL;
    OK(te_write(channel, &stale, &none, 1, NULL, 0, 0, &status, soon()));
    CHECK_STATUS(MS_NOT_REGISTERED, (ms_status)status);

    /* Another channel of this process: the peer maps the same memory once. */
    te_channel *beside = open_channel_to(asking, NULL, peer.unix_path);
    OK(te_share(channel, second, 1, &id, &offset, soon()));
    OK(te_share(beside, second, 1, &same, &offset, soon()));
    assert(id == same);
    te_channel_close(beside);

    te_channel *over_tcp = open_channel_to(asking, peer.address, NULL);
    CHECK_STATUS(MS_UNAVAILABLE, te_share(over_tcp, second, 1, &id, &offset, soon()));
    te_channel_close(over_tcp);

    /* Another process behind the socket (here: another engine): it knows no ids, and is asked again. */
    te_engine_close(peer.engine);
    peer.engine = open_engine(1);
    memset(target, 0, length);
    add_target(peer.engine, target, length);
    server_listen(&peer, "127.0.0.1");
    /* Its ids are found out before they can be used: the connections have broken. */
    ms_status first = write_from(channel, second, length, 0);
    if (first != MS_OK) {
        CHECK_STATUS(MS_NOT_REGISTERED, first); /* not noticed before it was sent; now forgotten */
        OK(write_from(channel, second, length, 0));
    }
    check_filled(target, length, 4);
    te_channel_close(channel);
    te_engine_close(asking);
    server_close(&peer);
    free(target);
}

typedef struct sharing_thread {
    te_channel *channel;
    void *memory;
    uint64_t slot;
} sharing_thread;

/* The last connection closes (here: for another HELLO): the peer has forgotten, and so have we. */
static void test_sharing_again(void) {
    server peer = server_open("127.0.0.1");
    te_engine *asking = open_engine(0);
    uint8_t target[64];
    add_target(peer.engine, target, sizeof target);
    void *memory;
    uint8_t hello[TE_HELLO_DEFAULT_BYTES];
    te_hello_default(asking, hello);
    OK(te_shared_alloc(asking, 4096, &memory));
    te_channel *channel = open_channel_to(asking, NULL, peer.unix_path);
    for (uint64_t round = 0; round < 20; round++) {
        fill(memory, 64, round);
        OK(write_from(channel, memory, 64, 0));
        check_filled(target, 64, round);
        te_channel_set_hello(channel, hello, sizeof hello);
        if (round % 2 == 0)
            usleep(5000); /* so that the peer has noticed */
    }
    te_channel_close(channel);
    te_engine_close(asking);
    server_close(&peer);
}

static void *share_and_write(void *argument) {
    sharing_thread *work = argument;
    for (int i = 0; i < 20; i++) {
        fill(work->memory, 64 * KIB, work->slot * 100 + (uint64_t)i);
        OK(write_from(work->channel, work->memory, 64 * KIB, work->slot * 64 * KIB));
    }
    return NULL;
}

/* Several threads share memory for the first time at once, over a pool of connections. */
static void test_sharing_threads(void) {
    server peer = server_open("::1");
    te_engine *asking = open_engine(0);
    uint8_t *target = calloc(4, 64 * KIB);
    assert(target != NULL);
    add_target(peer.engine, target, 4 * 64 * KIB);
    te_channel *channel = open_channel_to(asking, NULL, peer.unix_path);
    pthread_t threads[4];
    sharing_thread work[4];
    void *memory;
    OK(te_shared_alloc(asking, 4 * 64 * KIB, &memory));
    for (uint64_t i = 0; i < 4; i++) {
        work[i] = (sharing_thread){channel, (uint8_t *)memory + i * 64 * KIB, i};
        assert(pthread_create(&threads[i], NULL, share_and_write, &work[i]) == 0);
    }
    for (uint64_t i = 0; i < 4; i++) {
        assert(pthread_join(threads[i], NULL) == 0);
        check_filled(target + i * 64 * KIB, 64 * KIB, i * 100 + 19);
    }
    te_channel_close(channel);
    te_engine_close(asking);
    server_close(&peer);
    free(target);
}

int main(void) {
    test_allocations();
    test_loans_refused();
    test_loans_belong_to_their_process();
    test_attach();
    test_population_leaves_holes();
    test_population_looks_no_further_than_it_goes();
    test_population_leaves_what_has_become_a_hole();
    test_share();
    test_sharing_again();
    test_sharing_threads();
    puts("shm_test: ok");
    return 0;
}
