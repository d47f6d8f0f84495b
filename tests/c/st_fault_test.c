// sources: store/src/*.c transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// flags of store/src: -DST_TEST_STEPS -include tests/c/st_fault.h
// variants: plain address
// timeout: 600
/* The n-th allocation and the n-th system call of the store server fails, for every n.
 *
 * Whatever fails: nobody crashes or hangs, what was refused was refused with a status, a server that did start
 * works once the fault is over, and nothing is left behind. */
#define ST_FAULT_IMPLEMENTATION
#include <errno.h>
#include <stdarg.h>

#include "st_fault.h"
#include "st_fixture.h"
#include "st_step.h"

#define MIB (1u << 20)
#define EPOCH 7u
#define SESSION 0x700000001u

void st_step(const char *name) { (void)name; }

bool st_is_planted(enum st_fault fault) {
    (void)fault;
    return false;
}

/* ---- faults ------------------------------------------------------------------------------------------- */

static enum st_fault_kind armed_kind;
static _Atomic long left; /* calls until the fault; 0 = none is armed */
static _Atomic bool is_met;

static bool fails(enum st_fault_kind kind) {
    if (kind != armed_kind || atomic_load(&left) <= 0)
        return false;
    if (atomic_fetch_sub(&left, 1) != 1)
        return false;
    atomic_store(&is_met, true);
    return true;
}

#define RETURN_FAULT(kind, code, value)                                                            \
    do {                                                                                           \
        if (fails(kind)) {                                                                         \
            errno = code;                                                                          \
            return value;                                                                          \
        }                                                                                          \
    } while (0)

void *st_fault_malloc(size_t size) {
    RETURN_FAULT(ST_FAULT_MEMORY, ENOMEM, NULL);
    return malloc(size);
}

void *st_fault_calloc(size_t count, size_t size) {
    RETURN_FAULT(ST_FAULT_MEMORY, ENOMEM, NULL);
    return calloc(count, size);
}

void *st_fault_aligned_alloc(size_t alignment, size_t size) {
    RETURN_FAULT(ST_FAULT_MEMORY, ENOMEM, NULL);
    return aligned_alloc(alignment, size);
}

void *st_fault_mmap(void *address, size_t length, int protection, int flags, int descriptor,
                    off_t offset) {
    RETURN_FAULT(ST_FAULT_MEMORY, ENOMEM, MAP_FAILED);
    return mmap(address, length, protection, flags, descriptor, offset);
}

void *st_fault_mremap(void *old, size_t old_size, size_t size, int flags) {
    RETURN_FAULT(ST_FAULT_MEMORY, ENOMEM, MAP_FAILED);
    return mremap(old, old_size, size, flags);
}

int st_fault_open(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = va_arg(arguments, mode_t);
    va_end(arguments);
    RETURN_FAULT(ST_FAULT_IO, EMFILE, -1);
    return open(path, flags, mode);
}

int st_fault_ftruncate(int descriptor, off_t length) {
    RETURN_FAULT(ST_FAULT_IO, EIO, -1);
    return ftruncate(descriptor, length);
}

int st_fault_fallocate(int descriptor, int mode, off_t offset, off_t length) {
    RETURN_FAULT(ST_FAULT_IO, ENOSPC, -1);
    return fallocate(descriptor, mode, offset, length);
}

ssize_t st_fault_pwrite(int descriptor, const void *bytes, size_t length, off_t offset) {
    RETURN_FAULT(ST_FAULT_IO, ENOSPC, -1);
    return pwrite(descriptor, bytes, length, offset);
}

ssize_t st_fault_write(int descriptor, const void *bytes, size_t length) {
    /* To an eventfd a write cannot fail but for being full, which is no fault: files only. */
    if (length != sizeof(uint64_t))
        RETURN_FAULT(ST_FAULT_IO, ENOSPC, -1);
    return write(descriptor, bytes, length);
}

ssize_t st_fault_read(int descriptor, void *bytes, size_t length) {
    if (length != sizeof(uint64_t))
        RETURN_FAULT(ST_FAULT_IO, EIO, -1);
    return read(descriptor, bytes, length);
}

int st_fault_rename(const char *from, const char *to) {
    RETURN_FAULT(ST_FAULT_IO, EIO, -1);
    return rename(from, to);
}

int st_fault_fsync(int descriptor) {
    RETURN_FAULT(ST_FAULT_IO, EIO, -1);
    return fsync(descriptor);
}

int st_fault_mkdir(const char *path, mode_t mode) {
    RETURN_FAULT(ST_FAULT_IO, EACCES, -1);
    return mkdir(path, mode);
}

int st_fault_epoll_create1(int flags) {
    RETURN_FAULT(ST_FAULT_IO, EMFILE, -1);
    return epoll_create1(flags);
}

int st_fault_epoll_ctl(int epoll, int operation, int descriptor, struct epoll_event *event) {
    RETURN_FAULT(ST_FAULT_IO, ENOSPC, -1);
    return epoll_ctl(epoll, operation, descriptor, event);
}

int st_fault_eventfd(unsigned int value, int flags) {
    RETURN_FAULT(ST_FAULT_IO, EMFILE, -1);
    return eventfd(value, flags);
}

ssize_t st_fault_getrandom(void *bytes, size_t length, unsigned int flags) {
    RETURN_FAULT(ST_FAULT_IO, EINTR, -1);
    return getrandom(bytes, length, flags);
}

int st_fault_pthread_create(pthread_t *thread, const pthread_attr_t *attributes,
                            void *(*run)(void *), void *argument) {
    RETURN_FAULT(ST_FAULT_IO, EAGAIN, EAGAIN);
    return pthread_create(thread, attributes, run, argument);
}

/* ---- one run --------------------------------------------------------------------------------------------- */

static uint64_t sequence;

static uint64_t next_version(void) { return ms_version(EPOCH, ++sequence); }

/* Until the server has sent its inventory: a fault on the way makes it dial again. */
static void adopt(master *master, node *node) {
    int64_t deadline_ns = in_seconds(20);
    do {
        CHECK(te_now_ns() < deadline_ns);
        pthread_mutex_lock(&master->lock);
        te_peer server = master->is_new ? 0 : master->server;
        pthread_mutex_unlock(&master->lock);
        ms_adopt frame = {.epoch = EPOCH};
        struct iovec part = {&frame, sizeof frame};
        if (server != 0)
            te_push(master->engine, server, MS_REQUEST, MS_ADOPT, 0, 1, &part, 1);
        pause_ms(5);
        st_get_status(node->server, &node->status);
    } while (!node->status.is_adopted);
}

static void forget_frames(master *master) {
    pthread_mutex_lock(&master->lock);
    while (master->first != NULL) {
        frame *next = master->first->next;
        free(master->first);
        master->first = next;
    }
    master->last = NULL;
    master->server_count = master->server_count > 4 ? 4 : master->server_count;
    pthread_mutex_unlock(&master->lock);
}

/* FREE until FREED comes, as a master does. */
static void free_for_certain(master *master, node *node, uint32_t page, uint64_t version) {
    ms_free_item item = free_item(page, 1, version, SESSION + 1);
    uint8_t body[64];
    ms_writer out = ms_writer_fixed(body, sizeof body);
    ms_writer_u32(&out, EPOCH);
    ms_writer_u32(&out, node->status.incarnation);
    ms_writer_array(&out, &item, 1, sizeof item);
    struct iovec part = {out.data, out.length};
    frame *freed = NULL;
    for (int attempt = 0; freed == NULL; attempt++) {
        CHECK(attempt < 100);
        pthread_mutex_lock(&master->lock);
        te_peer server = master->server;
        pthread_mutex_unlock(&master->lock);
        if (te_push(master->engine, server, MS_ONEWAY, MS_FREE, 0, 0, &part, 1) != MS_OK)
            adopt(master, node);
        freed = master_take(master, MS_FREED, 200);
    }
    free(freed);
}

/* Puts, reads, views, a note, a free: with or without a fault under way. */
static void use(master *master, node *node, bool must_work) {
    client writer, local;
    client_open(&writer, node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    client_open(&local, node, true, SESSION, EPOCH, MS_RIGHT_WRITE);
    uint8_t bytes[4096], got[4096];
    for (uint32_t page = 0; page < 4; page++) {
        uint64_t version = next_version();
        memset(bytes, (int)page, sizeof bytes);
        put put = {.page = page,
                   .page_count = 1,
                   .version = version,
                   .bytes = bytes,
                   .length = sizeof bytes,
                   .size = page == 3 ? 2 * sizeof bytes : 0,
                   .part_count = page == 3 ? 2 : 1, /* whose checksum waits for its other part */
                   .flags = MS_OBJECT_HAS_CHECKSUM,
                   .checksum = ms_crc32c(0, bytes, sizeof bytes)};
        ms_status status = client_put(page % 2 == 0 ? &writer : &local, &put);
        CHECK(status == MS_OK || !must_work);
        if (status == MS_OK) {
            CHECK_STATUS(client_read(&writer, page, version, got, sizeof got), MS_OK);
            CHECK(memcmp(bytes, got, sizeof got) == 0);
        } else {
            /* Refused: nobody sees it. */
            CHECK(client_read(&writer, page, version, got, sizeof got) != MS_OK);
        }
        ms_status view = client_view(&local, MS_VIEW_OPEN, page, version);
        CHECK(view == MS_OK || !must_work);
        if (view == MS_OK) {
            ms_status closed = client_view(&local, MS_VIEW_CLOSE, page, version);
            for (int again = 0; closed != MS_OK && again < 3; again++)
                closed = client_view(&local, MS_VIEW_CLOSE, page, version);
            CHECK(closed == MS_OK);
        }
        ms_note note = {.epoch = EPOCH,
                        .incarnation = node->status.incarnation,
                        .version = version,
                        .note = next_version(),
                        .page = page};
        struct iovec part = {&note, sizeof note};
        te_push(master->engine, master->server, MS_REQUEST, MS_NOTE, 0, 9, &part, 1);
        frame *answer = master_take(master, MS_NOTE, must_work ? 5000 : 200);
        CHECK(answer != NULL || !must_work);
        CHECK(answer == NULL || answer->header.status == MS_OK || !must_work);
        free(answer);
        free_for_certain(master, node, page, version);
        CHECK(client_read(&writer, page, version, got, sizeof got) == MS_GONE);
    }
    client_close(&writer);
    client_close(&local);
    CHECK(node_counter(node, "views") == 0);
    CHECK(node_counter(node, "pending_frees") == 0);
    CHECK(node_counter(node, "extents") == 0);
}

/* False: the fault was not met, so that there are no more to come. */
static bool run_with_fault(master *master, enum st_fault_kind kind, long nth) {
    node node;
    st_config config;
    char error[ST_ERROR_BYTES] = "";
    node_folder(&node);
    st_config_default(&config);
    config.segment_dir = node.folder;
    config.unix_path = node.unix_path;
    config.size_bytes = 2 * MIB;
    config.ready_bytes = 2 * MIB;
    config.views_max = 64;
    config.master = master->address;
    armed_kind = kind;
    atomic_store(&is_met, false);
    atomic_store(&left, nth);
    ms_status status = st_open(&config, &node.server, error);
    if (status != MS_OK) {
        CHECK(atomic_load(&is_met));
        CHECK(error[0] != '\0');
    } else {
        st_get_status(node.server, &node.status);
        snprintf(node.address, sizeof node.address, "127.0.0.1:%u", node.status.port);
        adopt(master, &node);
        forget_frames(master);
        use(master, &node, false);
        atomic_store(&left, 0);
        adopt(master, &node);
        forget_frames(master);
        use(master, &node, true);
        st_close(node.server);
    }
    atomic_store(&left, 0);
    node_remove_folder(&node);
    forget_frames(master);
    return atomic_load(&is_met);
}

int main(void) {
    for (int kind = ST_FAULT_MEMORY; kind <= ST_FAULT_IO; kind++) {
        long nth = 1;
        master master;
        master_open(&master);
        while (run_with_fault(&master, (enum st_fault_kind)kind, nth)) {
            nth++;
            /* The double remembers a few servers only. */
            master_close(&master);
            master_open(&master);
        }
        master_close(&master);
        fprintf(stderr, "%s: %ld faults\n", kind == ST_FAULT_MEMORY ? "memory" : "system calls",
                nth - 1);
        CHECK(nth > 20);
    }
    return 0;
}
