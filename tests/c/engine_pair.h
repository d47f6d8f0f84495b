/* Two engines in one process, for tests of shared memory, regions and batches: a serving one and an asking one. */
#ifndef ENGINE_PAIR_H
#define ENGINE_PAIR_H

#undef NDEBUG
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pause.h"
#include "te_parts.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

#define CHECK_STATUS(wanted, got) check_status(wanted, got, #got, __FILE__, __LINE__)

static inline void check_status(ms_status wanted, ms_status got, const char *what, const char *file,
                                int line) {
    if (wanted == got)
        return;
    fprintf(stderr, "%s:%d: %s is %s, not %s\n", file, line, what, ms_status_name(got),
            ms_status_name(wanted));
    abort();
}

#define OK(expression) CHECK_STATUS(MS_OK, expression)

static inline int64_t soon(void) { return te_now_ns() + 10 * TE_NS_PER_S; }

/* Bytes that prove where they come from. */
static inline uint8_t proof(uint64_t seed, size_t i) {
    uint64_t mixed = (seed + i / 8) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint8_t)(mixed >> (8 * (i % 8)) ^ mixed >> 56);
}

static inline void fill(void *memory, size_t length, uint64_t seed) {
    for (size_t i = 0; i < length; i++)
        ((uint8_t *)memory)[i] = proof(seed, i);
}

static inline void check_filled(const void *memory, size_t length, uint64_t seed) {
    const uint8_t *bytes = memory;
    for (size_t i = 0; i < length; i++) {
        if (bytes[i] == proof(seed, i))
            continue;
        fprintf(stderr, "byte %zu of %zu is %u, not %u (seed %" PRIu64 ")\n", i, length, bytes[i],
                proof(seed, i), seed);
        abort();
    }
}

static inline te_engine *open_engine(uint32_t io_threads) {
    te_engine_config config;
    te_engine *engine;
    te_engine_config_default(&config);
    config.io_threads = io_threads;
    OK(te_engine_open(&config, &engine));
    return engine;
}

typedef struct server {
    te_engine *engine;
    char unix_path[100];
    char address[64]; /* of TCP */
} server;

static inline void server_listen(server *made, const char *host) {
    char error[TE_ERROR_BYTES] = "";
    uint16_t port = 0;
    OK(te_serve_memory(made->engine));
    check_status(MS_OK, te_listen_tcp(made->engine, host, 0, &port, error), error, __FILE__,
                 __LINE__);
    snprintf(made->address, sizeof made->address, strchr(host, ':') != NULL ? "[%s]:%u" : "%s:%u",
             host, port);
    check_status(MS_OK, te_listen_unix(made->engine, made->unix_path, error), error, __FILE__,
                 __LINE__);
}

static inline server server_open(const char *host) {
    static int number;
    server made = {.engine = open_engine(2)};
    const char *folder = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
    snprintf(made.unix_path, sizeof made.unix_path, "%s/te-test-%d-%d.sock", folder, (int)getpid(),
             number++);
    server_listen(&made, host);
    return made;
}

static inline void server_close(server *gone) {
    te_engine_close(gone->engine);
    unlink(gone->unix_path);
}

static inline te_channel *open_channel_to(te_engine *engine, const char *addresses,
                                          const char *unix_path) {
    te_channel *channel;
    te_channel_config config = {
        .addresses = addresses, .unix_path = unix_path, .connections_max = 4};
    OK(te_channel_open(engine, &config, &channel));
    return channel;
}

#endif
