/* A metadata core with one simulated server: see md_bench.h.
 *
 * The server answers every FREE at once, time stands still, and no session ends, so what is measured is
 * the core alone. */
#include "md_bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "md.h"
#include "ms_frame.h"
#include "ms_hash.h"

#define OBJECT_BYTES 16u
#define KEY_BYTES 80u
#define BATCH 32u

struct md_bench {
    md_core *core;
    uint64_t session, number;
    uint32_t server;
    md_now now;
    uint8_t secret[MS_SECRET_BYTES];
    ms_writer grant;
};

static int64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static ms_hash make_key(const md_bench *bench, uint64_t number, char key[KEY_BYTES + 1]) {
    /* Multiplied, so that neighbours differ in many characters as block hashes do. */
    unsigned long long mixed = number * 0x9e3779b97f4a7c15u;
    snprintf(key, KEY_BYTES + 1, "bench@tp2@rank0@bfloat16@%016llx%016llx%016llx%07llx", mixed,
             mixed, mixed, (unsigned long long)(number & 0xfffffff));
    return ms_hash_key(bench->secret, "default", strlen("default"), key, KEY_BYTES);
}

/* Carry out what the core asks of the server. */
static void serve(md_bench *bench) {
    md_effect effect;
    while (md_next_effect(bench->core, &effect)) {
        if (effect.kind == MD_EFFECT_FREE) {
            md_cleared(bench->core, bench->now, effect.server, 1, &effect.free);
            md_freed(bench->core, bench->now, effect.server, 1, &effect.free);
        } else if (effect.kind == MD_EFFECT_TOMBSTONE) {
            md_tombstoned(bench->core, bench->now, effect.hash, effect.version, MS_OK);
        }
    }
}

static ms_status open_core(md_bench *bench, uint64_t page_count) {
    md_config config;
    md_config_default(&config);
    config.epoch = 1;
    config.sequence = 1;
    memcpy(config.secret, bench->secret, sizeof config.secret);
    ms_server_info info = {.node_id = {1}, .incarnation = 1, .segment_count = 1};
    ms_segment_info segment = {.page_count = page_count, .page_count_ready = page_count};
    ms_status status = md_open(&config, &bench->core);
    if (status == MS_OK) {
        status = md_server_join(bench->core, bench->now, &info, "bench", &segment, &bench->server);
    }
    if (status == MS_OK) {
        status = md_inventory_end(bench->core, bench->now, bench->server, 1);
    }
    if (status == MS_OK) {
        serve(bench);
        status = md_session_open(bench->core, bench->now, (const uint8_t *)"default",
                                 strlen("default"), &bench->session);
    }
    return status;
}

md_bench *md_bench_open(uint64_t page_count) {
    md_bench *bench = calloc(1, sizeof *bench);
    if (bench == NULL) {
        return NULL;
    }
    bench->now = (md_now){.now_ms = 1000, .wall_ms = 1000};
    bench->grant = ms_writer_growable(1u << 20);
    for (size_t i = 0; i < sizeof bench->secret; i++) {
        bench->secret[i] = (uint8_t)(i * 31 + 7);
    }
    if (open_core(bench, page_count) != MS_OK) {
        md_bench_close(bench);
        return NULL;
    }
    return bench;
}

void md_bench_close(md_bench *bench) {
    if (bench == NULL) {
        return;
    }
    if (bench->core != NULL) {
        md_close(bench->core);
    }
    ms_writer_close(&bench->grant);
    free(bench);
}

static ms_status put_one(md_bench *bench, uint64_t number) {
    char key[KEY_BYTES + 1];
    ms_hash hash = make_key(bench, number, key);
    ms_put_item item = {.hash = hash,
                        .size = OBJECT_BYTES,
                        .deadline_ms = 60000,
                        .key_length = KEY_BYTES,
                        .replica_count = 1,
                        .replica_count_min = 1};
    ms_writer_reset(&bench->grant);
    ms_status status = md_put_start(bench->core, bench->now, bench->session, &item,
                                    (const uint8_t *)key, ++bench->number, &bench->grant);
    if (status != MS_OK) {
        return status;
    }
    ms_location location;
    memcpy(&location, bench->grant.data, sizeof location);
    ms_end_item end = {.hash = hash, .version = location.version, .replica_mask = 1};
    status = md_put_end(bench->core, bench->now, bench->session, &end, ++bench->number);
    serve(bench);
    return status;
}

int64_t md_bench_put(md_bench *bench, uint64_t first, uint64_t step, uint64_t count) {
    int64_t begun = clock_ns();
    for (uint64_t i = 0; i < count; i++) {
        ms_status status = put_one(bench, first + i * step);
        if (status != MS_OK) {
            return -(int64_t)status;
        }
    }
    return clock_ns() - begun;
}

int64_t md_bench_remove(md_bench *bench, uint64_t first, uint64_t step, uint64_t count) {
    uint32_t tenant = md_session_tenant(bench->core, bench->session);
    int64_t begun = clock_ns();
    for (uint64_t i = 0; i < count; i++) {
        char key[KEY_BYTES + 1];
        ms_hash hash = make_key(bench, first + i * step, key);
        ms_status status = md_remove(bench->core, bench->now, tenant, bench->session, hash,
                                     (const uint8_t *)key, KEY_BYTES, false, ++bench->number);
        serve(bench);
        if (status != MS_OK && status != MS_PENDING) {
            return -(int64_t)status;
        }
    }
    return clock_ns() - begun;
}

int64_t md_bench_exists(md_bench *bench, uint64_t first, uint64_t step, uint64_t count) {
    int64_t spent = 0;
    for (uint64_t i = 0; i < count; i += BATCH) {
        ms_hash hashes[BATCH];
        uint8_t there[BATCH];
        size_t batch = count - i < BATCH ? (size_t)(count - i) : BATCH;
        for (size_t j = 0; j < batch; j++) {
            char key[KEY_BYTES + 1];
            hashes[j] = make_key(bench, first + (i + j) * step, key);
        }
        int64_t begun = clock_ns();
        md_exists(bench->core, bench->now, hashes, batch, there);
        spent += clock_ns() - begun;
        for (size_t j = 0; j < batch; j++) {
            if (!there[j]) {
                return -(int64_t)MS_NOT_FOUND;
            }
        }
    }
    return spent;
}
