/* Gets or puts of one size, for benchmarks/rdma_cost.py, which counts the instructions of `measured`.
 *
 *     rdma_cost MASTER get|put SIZE COUNT tcp|local
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cl_internal.h"
#include "te_internal.h"
#include "te_parts.h"

#define WARM_UP 20
#define LIMIT_NS (INT64_C(60) * 1000000000)
#define KEYS 8 /* a pool's worth: each put is an upsert of one of them */

static cl_client *client;
static uint8_t *value;
static size_t size;
static bool is_put;

static int64_t limit(void) { return te_now_ns() + LIMIT_NS; }

static void end(const char *what, ms_status status, const cl_failure *failure) {
    fprintf(stderr, "%s: %s at %s: %s\n", what, ms_status_name(status), failure->stage,
            failure->message);
    exit(1);
}

static void call(uint32_t number, bool is_get) {
    char key[16];
    cl_failure failure = {0};
    cl_item item = {.key = (const uint8_t *)key,
                    .key_length = (uint32_t)snprintf(key, sizeof key, "cost/%u", number % KEYS),
                    .status = MS_PENDING,
                    .memory = value,
                    .size = size};
    cl_put_options options = {.replica_count = 1,
                              .replica_count_min = 1,
                              .flags = MS_PUT_UPSERT,
                              .timeout_ms = LIMIT_NS / 1000000};
    ms_status status = is_get ? cl_get(client, &item, 1, NULL, limit(), &failure)
                              : cl_put(client, &item, 1, &options, limit(), &failure);
    if (status == MS_OK)
        status = item.status;
    if (status != MS_OK)
        end(is_get ? "get" : "put", status, &failure);
}

/* Under this name, and never inlined, for callgrind, which tells what each call of it took. */
__attribute__((noinline)) void measured(uint32_t number);
void measured(uint32_t number) { call(number, !is_put); }

int main(int count, char **arguments) {
    cl_config config;
    cl_failure failure = {0};
    uint64_t handle;
    if (count != 6)
        return 2;
    cl_config_default(&config);
    config.master = arguments[1];
    is_put = strcmp(arguments[2], "put") == 0;
    size = strtoul(arguments[3], NULL, 10);
    config.allow_local = strcmp(arguments[5], "local") == 0;
    config.allow_relay = 0; /* as the Python client has it */
    config.worker_threads = 1;
    ms_status status = cl_open(&config, limit(), &handle, &failure);
    if (status != MS_OK)
        end("open", status, &failure);
    client = cl_enter(handle, &failure);
    /* How often is asked is chance, and so is how much of a copy a second thread takes. */
    client->engine->config.spin_us = 0;
    te_copier_close(client->engine->shm->copier);
    if (te_copier_open(client->engine->config.stream_copy_bytes, 0, &client->engine->shm->copier) !=
        MS_OK)
        return 1;
    value = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    memset(value, 7, size);
    for (uint32_t i = 0; i < KEYS; i++)
        call(i, false);
    for (uint32_t i = 0; i < WARM_UP; i++)
        call(i, !is_put);
    uint32_t calls = (uint32_t)strtoul(arguments[4], NULL, 10);
    for (uint32_t i = 0; i < calls; i++)
        measured(i);
    if (client->engine->rdma != NULL) {
        fprintf(stderr, "this machine has RDMA devices\n");
        return 3;
    }
    cl_leave(client);
    cl_close(handle, 1000000000);
    free(value);
    return 0;
}
