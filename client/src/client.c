/* Opening and closing a client, and the handles by which the world outside names it. */
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "cl_internal.h"

#define HANDLES_MAX 1024u
#define TROUBLE_LOOK_MS 100u
#define TROUBLE_WAITING_NS INT64_C(1000000000)

/* A slot's state packs a generation (high 32 bits), an open flag (bit 31) and the count of callers inside,
 * so that entering is one compare-and-swap and a handle that was closed never matches again. */
#define OPEN_BIT (1ull << 31)
#define INSIDE_MASK (OPEN_BIT - 1)

typedef struct handle_slot {
    atomic_ullong state;
    cl_client *client;
} handle_slot;

static handle_slot handles[HANDLES_MAX];
static pthread_mutex_t handles_lock = PTHREAD_MUTEX_INITIALIZER;

ms_status cl_fail(cl_failure *failure, ms_status status, const char *stage, const char *node,
                  const char *format, ...) {
    if (failure == NULL)
        return status;
    failure->status = (int32_t)status;
    snprintf(failure->stage, sizeof failure->stage, "%s", stage);
    snprintf(failure->node, sizeof failure->node, "%s", node);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure->message, sizeof failure->message, format, arguments);
    va_end(arguments);
    return status;
}

ms_status cl_fail_all(cl_item *items, size_t count, ms_status status) {
    for (size_t i = 0; i < count; i++)
        if (items[i].status == MS_PENDING)
            items[i].status = status;
    return status;
}

size_t cl_hash_items(cl_client *client, cl_item *items, size_t count) {
    size_t good = 0;
    for (size_t i = 0; i < count; i++) {
        cl_item *item = &items[i];
        item->bytes = 0;
        if (!ms_key_valid((const char *)item->key, item->key_length)) {
            item->status = MS_BAD_KEY;
            continue;
        }
        item->hash = ms_hash_key(client->secret, client->tenant, client->tenant_length, item->key,
                                 item->key_length);
        item->status = MS_PENDING;
        good++;
    }
    return good;
}

cl_client *cl_enter(uint64_t handle, cl_failure *failure) {
    handle_slot *slot = &handles[handle & (HANDLES_MAX - 1)];
    uint64_t generation = handle >> 10;
    uint64_t state = atomic_load_explicit(&slot->state, memory_order_relaxed);
    do {
        if (!(state & OPEN_BIT) || state >> 32 != generation) {
            cl_fail(failure, MS_CLOSED, "enter", "", "this client is closed; open a new one");
            return NULL;
        }
    } while (!atomic_compare_exchange_weak_explicit(&slot->state, &state, state + 1,
                                                    memory_order_acquire, memory_order_relaxed));
    cl_client *client = slot->client;
    if (client->pid != getpid()) {
        atomic_fetch_sub(&slot->state, 1);
        cl_fail(failure, MS_FORKED, "enter", "",
                "this client was opened by process %d, before fork; open one in this process",
                client->pid);
        return NULL;
    }
    return client;
}

void cl_leave(cl_client *client) {
    atomic_fetch_sub_explicit(&handles[client->handle & (HANDLES_MAX - 1)].state, 1,
                              memory_order_release);
}

static uint64_t handle_new(cl_client *client) {
    uint64_t handle = 0;
    pthread_mutex_lock(&handles_lock);
    for (uint32_t i = 0; i < HANDLES_MAX; i++) {
        uint64_t state = atomic_load(&handles[i].state);
        if (state & (OPEN_BIT | INSIDE_MASK) || handles[i].client != NULL)
            continue;
        uint64_t generation = (state >> 32) + 1;
        handles[i].client = client;
        handle = client->handle = generation << 10 | i;
        atomic_store_explicit(&handles[i].state, generation << 32 | OPEN_BIT, memory_order_release);
        break;
    }
    pthread_mutex_unlock(&handles_lock);
    return handle;
}

void cl_config_default(cl_config *config) {
    *config = (cl_config){.tenant = "default",
                          .token = "",
                          .name = "",
                          .location_count_max = 65536,
                          .connections_max = 8,
                          .worker_threads = 2,
                          .staging_bytes = 4u << 20,
                          .allow_local = 1,
                          .allow_relay = 1,
                          .wait_for_master = 1};
}

static void read_boot_id(uint8_t boot_id[16]) {
    memset(boot_id, 0, 16);
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file == NULL)
        return;
    unsigned byte;
    for (int i = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            if (fgetc(file) != '-')
                break;
        if (fscanf(file, "%2x", &byte) != 1)
            break;
        boot_id[i] = (uint8_t)byte;
    }
    fclose(file);
}

static void client_destroy(cl_client *client) {
    cl_nodes_destroy(client);
    if (client->master != NULL)
        te_channel_close(client->master);
    if (client->engine != NULL) {
        for (size_t i = 0; i < CL_STAGING_MAX; i++)
            if (client->staging[i].address != NULL)
                te_shared_free(client->engine, client->staging[i].address);
        te_engine_close(client->engine);
    }
    cl_locations_destroy(client);
    cl_views_forget(client);
    free(client->master_addresses);
    free(client->master_unix);
    free(client->name);
    free(client->token);
    pthread_mutex_destroy(&client->session_lock);
    pthread_mutex_destroy(&client->members_lock);
    pthread_mutex_destroy(&client->number_lock);
    pthread_mutex_destroy(&client->touch_lock);
    cl_pins_close(client);
    pthread_mutex_destroy(&client->staging_lock);
    pthread_cond_destroy(&client->staging_free);
    pthread_mutex_destroy(&client->owed_lock);
    pthread_mutex_destroy(&client->keeper_lock);
    pthread_cond_destroy(&client->keeper_wake);
    cl_lane_close(client);
    cl_health_close(client);
    free(client);
}

static bool copy_text(char **target, const char *text) {
    if (text == NULL)
        return true;
    *target = strdup(text);
    return *target != NULL;
}

void cl_condition_init(pthread_cond_t *condition) {
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(condition, &attributes);
    pthread_condattr_destroy(&attributes);
}

bool cl_lock_until(pthread_mutex_t *lock, int64_t deadline_ns) {
    if (pthread_mutex_trylock(lock) == 0)
        return true;
    struct timespec until; /* a mutex knows no other clock where glibc is old */
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t left_ns = deadline_ns - te_now_ns();
    if (left_ns <= 0)
        return false;
    left_ns += until.tv_nsec;
    until.tv_sec += left_ns / 1000000000;
    until.tv_nsec = left_ns % 1000000000;
    return pthread_mutex_timedlock(lock, &until) == 0;
}

/* The first session; a master that is not there yet is waited for. */
static ms_status first_session(cl_client *client, bool may_wait, int64_t deadline_ns,
                               cl_failure *failure) {
    for (;;) {
        int64_t began_ns = te_now_ns();
        ms_status status = cl_session_open(client, 0, deadline_ns, failure);
        if (!cl_is_leaderless(status) || !may_wait || te_now_ns() >= deadline_ns)
            return status;
        cl_master_failed(client, began_ns);
        if (!cl_master_wait(client, true, deadline_ns))
            return status;
        if (atomic_load(&client->session) != 0)
            return MS_OK;
    }
}

ms_status cl_open(const cl_config *config, int64_t deadline_ns, uint64_t *handle,
                  cl_failure *failure) {
    *handle = 0;
    size_t tenant_length = strlen(config->tenant);
    if (tenant_length == 0 || tenant_length > MS_TENANT_BYTES_MAX)
        return cl_fail(failure, MS_BAD_REQUEST, "open", "", "a tenant's name has 1 to %u bytes",
                       MS_TENANT_BYTES_MAX);
    if (config->master == NULL && config->master_unix == NULL)
        return cl_fail(failure, MS_BAD_REQUEST, "open", "", "no master address was given");
    cl_client *client = calloc(1, sizeof *client);
    if (client == NULL)
        return cl_fail(failure, MS_NO_MEMORY, "open", "", "out of memory");
    client->pid = (int)getpid();
    client->holders = 1;
    client->config = *config;
    memcpy(client->tenant, config->tenant, tenant_length);
    client->tenant_length = tenant_length;
    read_boot_id(client->boot_id);
    pthread_mutex_init(&client->session_lock, NULL);
    pthread_mutex_init(&client->members_lock, NULL);
    pthread_mutex_init(&client->number_lock, NULL);
    pthread_mutex_init(&client->touch_lock, NULL);
    pthread_mutex_init(&client->staging_lock, NULL);
    cl_condition_init(&client->staging_free);
    pthread_mutex_init(&client->owed_lock, NULL);
    pthread_mutex_init(&client->keeper_lock, NULL);
    cl_condition_init(&client->keeper_wake);
    cl_lane_open(client);
    cl_health_open(client);

    te_engine_config engine_config;
    te_engine_config_default(&engine_config);
    engine_config.io_threads = 0;
    engine_config.worker_threads = config->worker_threads;
    if (config->worker_threads == 0)
        engine_config.helper_copy_bytes = 0;
    memcpy(engine_config.class_weights, config->class_weights, sizeof config->class_weights);
    if (config->stream_copy_bytes != 0)
        engine_config.stream_copy_bytes = config->stream_copy_bytes;

    ms_status status = MS_NO_MEMORY;
    cl_fail(failure, status, "open", "", "out of memory");
    if (!cl_pins_open(client) || !copy_text(&client->master_addresses, config->master) ||
        !copy_text(&client->name, config->name) ||
        !copy_text(&client->master_unix, config->allow_local ? config->master_unix : NULL) ||
        !copy_text(&client->token, config->token))
        goto failed;
    status = cl_locations_init(client, config->location_count_max);
    if (status != MS_OK)
        goto failed;
    status = te_engine_open(&engine_config, &client->engine);
    if (status != MS_OK) {
        cl_fail(failure, status, "open", "", "the transfer engine did not start");
        goto failed;
    }
    te_channel_config channel = {.addresses = client->master_addresses,
                                 .unix_path = client->master_unix,
                                 .connections_max = config->connections_max};
    status = te_channel_open(client->engine, &channel, &client->master);
    if (status != MS_OK) {
        cl_fail(failure, status, "open", "master",
                "\"%s\" is no address like 127.0.0.1:7700 or [::1]:7700",
                config->master != NULL ? config->master : config->master_unix);
        goto failed;
    }
    status = first_session(client, config->wait_for_master, deadline_ns, failure);
    if (status != MS_OK)
        goto failed;
    status = cl_keeper_start(client);
    if (status != MS_OK) {
        cl_fail(failure, status, "open", "", "no thread could be started");
        goto failed;
    }
    *handle = handle_new(client);
    if (*handle == 0) {
        cl_keeper_stop(client);
        status = cl_fail(failure, MS_LIMIT, "open", "",
                         "%u clients are open in this process; close some", HANDLES_MAX);
        goto failed;
    }
    return MS_OK;
failed:
    cl_health_stop(client);
    client_destroy(client);
    return status;
}

void cl_close(uint64_t handle, int64_t timeout_ns) {
    handle_slot *slot = &handles[handle & (HANDLES_MAX - 1)];
    uint64_t state = atomic_load(&slot->state);
    do {
        if (!(state & OPEN_BIT) || state >> 32 != handle >> 10)
            return;
    } while (!atomic_compare_exchange_weak(&slot->state, &state, state & ~OPEN_BIT));
    cl_client *client = slot->client;
    if (client->pid != (int)getpid())
        return; /* the parent's: its threads do not exist here */
    /* Callers inside have deadlines of their own; until they have left they need the session. */
    while (atomic_load_explicit(&slot->state, memory_order_acquire) & INSIDE_MASK)
        usleep(200);
    cl_lane_stop(client);
    cl_keeper_stop(client);
    cl_health_stop(client);
    cl_views_settle(client, true);
    cl_session_close(client, te_now_ns() + timeout_ns);
    cl_views_linger(client);
    cl_let_go(client);
}

cl_client *cl_of_view(uint64_t handle) {
    handle_slot *slot = &handles[handle & (HANDLES_MAX - 1)];
    pthread_mutex_lock(&handles_lock);
    cl_client *client = slot->client;
    if (client != NULL && (client->handle != handle || client->pid != (int)getpid()))
        client = NULL;
    pthread_mutex_unlock(&handles_lock);
    return client;
}

void cl_let_go(cl_client *client) {
    if (atomic_fetch_sub(&client->holders, 1) != 1)
        return;
    handle_slot *slot = &handles[client->handle & (HANDLES_MAX - 1)];
    client_destroy(client);
    pthread_mutex_lock(&handles_lock);
    slot->client = NULL;
    pthread_mutex_unlock(&handles_lock);
}

/* ---- another leader ----------------------------------------------------------------------------------------- */

ms_status cl_set_master(uint64_t handle, const char *address, const char *unix_path) {
    cl_client *client = cl_enter(handle, NULL);
    if (client == NULL)
        return MS_CLOSED;
    char *kept = strdup(address);
    ms_status status = kept == NULL ? MS_NO_MEMORY : MS_OK;
    if (status == MS_OK)
        status =
            te_channel_move(client->master, address, client->config.allow_local ? unix_path : NULL);
    if (status == MS_OK) { /* for messages, which are made under this lock */
        pthread_mutex_lock(&client->session_lock);
        char *old = client->master_addresses;
        client->master_addresses = kept;
        kept = old;
        pthread_mutex_unlock(&client->session_lock);
    }
    free(kept);
    if (status == MS_OK)
        cl_master_moved(client);
    cl_leave(client);
    return status;
}

int32_t cl_wait_master_trouble(uint64_t handle, uint32_t timeout_ms) {
    for (uint32_t waited_ms = 0;; waited_ms += TROUBLE_LOOK_MS) {
        /* Not inside while it sleeps: closing waits for those who are. */
        cl_client *client = cl_enter(handle, NULL);
        if (client == NULL)
            return -1;
        te_channel_health health;
        te_channel_get_health(client->master, &health);
        bool is_trouble =
            health.failures != client->failures_seen || health.waiting_ns > TROUBLE_WAITING_NS;
        client->failures_seen = health.failures;
        cl_leave(client);
        if (is_trouble || waited_ms >= timeout_ms)
            return is_trouble;
        usleep(TROUBLE_LOOK_MS * 1000);
    }
}

ms_status cl_hash(uint64_t handle, const char *key, size_t key_length, uint8_t *hash) {
    cl_client *client = cl_enter(handle, NULL);
    if (client == NULL)
        return MS_CLOSED;
    cl_item item = {.key = (const uint8_t *)key, .key_length = (uint32_t)key_length};
    ms_status status = cl_hash_items(client, &item, 1) == 1 ? MS_OK : MS_BAD_KEY;
    if (status == MS_OK)
        memcpy(hash, &item.hash, sizeof item.hash);
    cl_leave(client);
    return status;
}

ms_status cl_alloc(uint64_t handle, size_t length, uint64_t *address) {
    cl_client *client = cl_enter(handle, NULL);
    if (client == NULL)
        return MS_CLOSED;
    void *memory = NULL;
    ms_status status = te_shared_alloc(client->engine, length, &memory);
    *address = (uint64_t)(uintptr_t)memory;
    cl_leave(client);
    return status;
}

ms_status cl_free(uint64_t handle, uint64_t address) {
    cl_client *client = cl_enter(handle, NULL);
    if (client == NULL)
        return MS_CLOSED;
    te_shared_free(client->engine, (void *)(uintptr_t)address);
    cl_leave(client);
    return MS_OK;
}

ms_status cl_register_memory(uint64_t handle, uint64_t address, uint64_t length) {
    cl_client *client = cl_enter(handle, NULL);
    if (client == NULL)
        return MS_CLOSED;
    ms_status status = te_register_local_memory(client->engine, address, length, "*");
    cl_leave(client);
    return status;
}

ms_status cl_unregister_memory(uint64_t handle, uint64_t address) {
    cl_client *client = cl_enter(handle, NULL);
    if (client == NULL)
        return MS_CLOSED;
    ms_status status = te_unregister_local_memory(client->engine, address);
    cl_leave(client);
    return status;
}

te_engine *cl_engine(cl_client *client) { return client->engine; }

ms_status cl_read_counters(uint64_t handle, cl_counters *counters) {
    cl_client *client = cl_enter(handle, NULL);
    if (client == NULL)
        return MS_CLOSED;
    *counters = (cl_counters){.gets = client->gets,
                              .get_hits = client->get_hits,
                              .get_misses = client->get_misses,
                              .get_bytes = client->get_bytes,
                              .get_bytes_local = client->get_bytes_local,
                              .puts = client->puts,
                              .put_bytes = client->put_bytes,
                              .put_bytes_local = client->put_bytes_local,
                              .lookups = client->lookups,
                              .locations_used = client->locations_used,
                              .locations_gone = client->locations_gone,
                              .failures = client->failure_count,
                              .sessions_lost = client->sessions_lost,
                              .relayed_ends = client->relayed_ends,
                              .checksum_failures = client->checksum_failures,
                              .reads_moved = client->reads_moved,
                              .puts_moved = client->puts_moved,
                              .calls_repeated = client->calls_repeated,
                              .session = client->session,
                              .cluster = client->cluster,
                              .epoch = client->epoch};
    te_rdma_view rdma;
    te_rdma_look(client->engine, &rdma);
    counters->rdma_read_bytes = rdma.read_bytes;
    counters->rdma_write_bytes = rdma.write_bytes;
    counters->rdma_fallbacks = rdma.fallbacks;
    cl_health_read(client, counters);
    for (size_t i = 0; i < cl_nodes_end(client); i++)
        counters->nodes += client->nodes[i] != NULL;
    cl_leave(client);
    return MS_OK;
}

static cl_repeat repeat_of(uint16_t method) {
    switch (method) {
    case MS_LIST:
    case MS_STAT:
    case MS_MEMBERS:
    case MS_STATUS:
    case MS_EXPLAIN:
        return CL_REPEAT_ALWAYS;
    default:
        return CL_REPEAT_NEVER;
    }
}

ms_status cl_command(uint64_t handle, uint16_t method, uint32_t flags, const uint8_t *body,
                     size_t body_length, int32_t numbered, uint8_t **answer, size_t *answer_length,
                     int64_t deadline_ns, cl_failure *failure) {
    *answer = NULL;
    *answer_length = 0;
    cl_client *client = cl_enter(handle, failure);
    if (client == NULL)
        return (ms_status)failure->status;
    ms_status status;
    ms_batch batch = {0};
    struct iovec parts[2] = {{.iov_base = (void *)(uintptr_t)body, .iov_len = body_length}};
    size_t part_count = 1;
    if (numbered) {
        if (body_length < sizeof batch) {
            status = cl_fail(failure, MS_BAD_REQUEST, "command", "",
                             "a numbered body begins with ms_batch");
            goto out;
        }
        memcpy(&batch, body, sizeof batch);
        batch = cl_number_start(client, batch.count);
        parts[0] = (struct iovec){.iov_base = &batch, .iov_len = sizeof batch};
        parts[1] = (struct iovec){.iov_base = (void *)(uintptr_t)(body + sizeof batch),
                                  .iov_len = body_length - sizeof batch};
        part_count = 2;
    }
    te_reply reply = {.grow = true};
    cl_repeat repeat = numbered ? CL_REPEAT_IN_SESSION : repeat_of(method);
    status = cl_master_call(client, repeat, method, flags, parts, part_count, &reply, "command",
                            deadline_ns, failure);
    if (numbered)
        cl_number_end(client, batch.number);
    if (status == MS_OK) {
        *answer = reply.body;
        *answer_length = reply.header.body_length;
    } else {
        free(reply.body);
    }
out:
    cl_leave(client);
    return status;
}

void cl_release(uint8_t *answer) { free(answer); }
