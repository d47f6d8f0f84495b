/* What the tests of the store server over its frames share. */
#ifndef ST_KIT_H
#define ST_KIT_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "st_fixture.h"
#include "st_step.h"

/* Called at each step, if there is one.  Nothing is stopped otherwise: the tests of restarts have steps of their own. */
static void (*_Atomic on_step)(const char *name);

void st_step(const char *name) {
    void (*hook)(const char *) = on_step;
    if (hook != NULL)
        hook(name);
}

bool st_is_planted(enum st_fault fault) {
    (void)fault;
    return false;
}

#define MIB (1u << 20)
#define EPOCH 7u
#define SESSION 0x700000001u

static inline uint64_t version_of(uint64_t sequence) { return ms_version(EPOCH, sequence); }

/* One server that a master of EPOCH has adopted. */
static inline void start(master *master, node *node) {
    master_open(master);
    node_open(node, 8 * MIB, master->address);
    master_wait_connections(master, 1);
    inventory found;
    CHECK_STATUS(master_adopt(master, EPOCH, &found), MS_OK);
    CHECK(found.count == 0);
    node_wait_adopted(node);
}

static inline void stop(master *master, node *node) {
    node_close(node);
    master_close(master);
}

static inline void fill(uint8_t *bytes, size_t length, uint64_t version) {
    for (size_t at = 0; at < length; at++)
        bytes[at] = (uint8_t)(version * 131 + at * 7 + (at >> 8));
}

/* Waits until the frozen WRITE's bytes are in the extent; looks through the file, as no thread here owns them. */
static inline void wait_for_bytes(const node *node, uint32_t page, const uint8_t *bytes,
                                  size_t length) {
    char path[128];
    uint8_t last = 0;
    snprintf(path, sizeof path, "%s/payload-0", node->folder);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    int64_t deadline_ns = in_seconds(10);
    while (pread(fd, &last, 1, (off_t)(page * 4096 + length - 1)) == 1 &&
           last != bytes[length - 1]) {
        CHECK(te_now_ns() < deadline_ns);
        pause_ms(1);
    }
    close(fd);
}

#define RUN(...)                                                                                   \
    do {                                                                                           \
        fprintf(stderr, "%s\n", #__VA_ARGS__);                                                     \
        __VA_ARGS__;                                                                               \
    } while (0)

#endif
