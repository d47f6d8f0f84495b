/* The stale-read hunt with everything that ships: master, store server and clients, in one process.
 *
 *   writers   put, replace and remove a few keys, in a pool that is too small for them, so that pages are
 *             evicted and used again all the time
 *   readers   get the same keys with cached locations, which are stale more often than not: half of them over
 *             TCP, half over shared memory
 *
 * A value names its key and the number of its put, and the rest of its bytes follow from both.  A read must
 * give such a value whole, of the key that was asked, and none that was removed or replaced before the read
 * began.  The first hunt (stale_read_hunt.c) has the wilder schedules; this one has all the shipped code. */
#include <sched.h>
#include <stdatomic.h>

#include "../c/st_fixture.h"
#include "cl.h"
#include "ma.h"
#include "st_step.h"

#define KEYS 96u
#define POOL_BYTES (1u << 20)
#define VALUE_BYTES_MAX (48u << 10)
#define WRITERS 2u
#define READERS 4u /* even: TCP, odd: shared memory */
#define LIMIT_S 30

/* ---- chance ------------------------------------------------------------------------------------------ */

static uint64_t seed;
static _Atomic uint64_t generator_count;
static _Thread_local uint64_t generator;

static uint64_t mix(uint64_t value) {
    value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
    value = (value ^ value >> 27) * 0x94d049bb133111ebu;
    return value ^ value >> 31;
}

static uint64_t chance(uint64_t below) {
    if (generator == 0)
        generator =
            mix(seed + (atomic_fetch_add(&generator_count, 1) + 1) * 0x9e3779b97f4a7c15u) | 1;
    generator += 0x9e3779b97f4a7c15u;
    return mix(generator) % below;
}

static void delay(uint64_t rarity) {
    if (chance(rarity) != 0)
        return;
    if (chance(4) != 0)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = (long)(1000 + chance(200000))}, NULL);
}

void st_step(const char *name) {
    (void)name;
    delay(256);
}

static bool is_planted;

bool st_is_planted(enum st_fault fault) { return is_planted && fault == ST_FAULT_NO_WORD_CHECK; }

/* ---- values that prove themselves ------------------------------------------------------------------------ */

static uint64_t word_of(uint64_t key, uint64_t number, size_t at) {
    return mix(key * 0x9e3779b97f4a7c15u + number * 0xd1b54a32d192ed03u + at);
}

/* Words of a value: from its number alone. */
static size_t words_of(uint64_t number) { return 2 + mix(number) % (VALUE_BYTES_MAX / 8 - 2); }

static size_t make_value(uint64_t *words, uint64_t key, uint64_t number) {
    size_t count = words_of(number);
    words[0] = key;
    words[1] = number;
    for (size_t at = 2; at < count; at++)
        words[at] = word_of(key, number, at);
    return count * 8;
}

/* NULL, or what is wrong. */
static const char *check_value(const uint64_t *words, size_t length, uint64_t key, uint64_t oldest,
                               uint64_t newest) {
    if (length < 16 || length % 8 != 0)
        return "a length that no value has";
    if (words[0] != key)
        return "the value of another key";
    if (words[1] < oldest)
        return "a value that was removed or replaced before the read began";
    if (words[1] > newest)
        return "a value that nobody has begun to put";
    if (length != words_of(words[1]) * 8)
        return "the length of another value";
    for (size_t at = 2; at < length / 8; at++) {
        if (words[at] != word_of(key, words[1], at))
            return "bytes of two values";
    }
    return NULL;
}

/* ---- what all share ---------------------------------------------------------------------------------------- */

typedef struct key_state {
    char name[16];
    uint32_t length;
    pthread_mutex_t lock;    /* of its writer */
    _Atomic uint64_t begun;  /* number of the newest put that was begun */
    _Atomic uint64_t oldest; /* reads that begin now may not see older ones */
} key_state;

static struct {
    node node;
    ma_master *master;
    char address[64];
    key_state keys[KEYS];
    _Atomic bool is_over;
    uint64_t reads_wanted; /* of each kind */
    _Atomic uint64_t reads[2], hits[2], misses[2], wrong, puts, refused, removes;
    uint64_t stale[2];
} all;

static uint64_t client_new(bool is_local) {
    cl_config config;
    cl_failure failure = {0};
    uint64_t handle;
    cl_config_default(&config);
    config.master = all.address;
    config.allow_local = is_local;
    ms_status status = cl_open(&config, in_seconds(LIMIT_S), &handle, &failure);
    if (status != MS_OK)
        fprintf(stderr, "%s: %s\n", failure.stage, failure.message);
    CHECK_STATUS(status, MS_OK);
    return handle;
}

static cl_item item_of(const key_state *key, void *memory, uint64_t size) {
    return (cl_item){.key = (const uint8_t *)key->name,
                     .key_length = key->length,
                     .status = MS_PENDING,
                     .memory = memory,
                     .size = size};
}

/* ---- writers --------------------------------------------------------------------------------------------------- */

typedef struct writer {
    uint64_t handle;
    uint64_t words[VALUE_BYTES_MAX / 8];
} writer;

static void put_value(writer *self, cl_client *client, key_state *key) {
    uint64_t number = atomic_fetch_add(&key->begun, 1) + 1;
    size_t length = make_value(self->words, (uint64_t)(key - all.keys), number);
    cl_item item = item_of(key, self->words, length);
    bool is_upsert = chance(3) == 0;
    cl_put_options options = {.replica_count = 1,
                              .replica_count_min = 1,
                              .flags = is_upsert ? MS_PUT_UPSERT : 0,
                              .timeout_ms = LIMIT_S * 1000};
    cl_failure failure = {0};
    ms_status status = cl_put(client, &item, 1, &options, in_seconds(LIMIT_S), &failure);
    if (status == MS_OK)
        status = item.status;
    if (status == MS_OK) {
        atomic_fetch_add(&all.puts, 1);
        if (is_upsert)
            atomic_store(&key->oldest,
                         number); /* no read that begins later sees what it replaced */
    } else if (status == MS_EXISTS || status == MS_NO_SPACE || status == MS_BUSY) {
        atomic_fetch_add(&all.refused, 1);
    } else {
        fprintf(stderr, "put: %s (%s: %s)\n", ms_status_name(status), failure.stage,
                failure.message);
        abort();
    }
}

static void remove_value(cl_client *client, key_state *key) {
    uint64_t number = atomic_load(&key->begun);
    cl_item item = item_of(key, NULL, 0);
    cl_failure failure = {0};
    ms_status status = cl_remove(client, &item, 1, true, in_seconds(LIMIT_S), &failure);
    CHECK_STATUS(status, MS_OK);
    CHECK(item.status == MS_OK || item.status == MS_NOT_FOUND);
    atomic_store(&key->oldest, number + 1);
    atomic_fetch_add(&all.removes, 1);
}

static void *write_values(void *argument) {
    writer *self = argument;
    cl_failure failure = {0};
    cl_client *client = cl_enter(self->handle, &failure);
    CHECK(client != NULL);
    while (!atomic_load(&all.is_over)) {
        /* A few keys are busy, so that readers' locations of them go stale quickly. */
        key_state *key = &all.keys[chance(2) == 0 ? chance(8) : chance(KEYS)];
        pthread_mutex_lock(&key->lock);
        if (chance(3) == 0)
            remove_value(client, key);
        else
            put_value(self, client, key);
        pthread_mutex_unlock(&key->lock);
        delay(4);
    }
    cl_leave(client);
    return NULL;
}

/* ---- readers ------------------------------------------------------------------------------------------------------ */

typedef struct reader {
    uint64_t handle;
    bool is_local;
    uint64_t words[4][VALUE_BYTES_MAX / 8];
} reader;

static void *read_values(void *argument) {
    reader *self = argument;
    cl_failure failure = {0};
    cl_client *client = cl_enter(self->handle, &failure);
    CHECK(client != NULL);
    while (!atomic_load(&all.is_over)) {
        cl_item items[4];
        uint64_t oldest[4], indexes[4];
        size_t count = 1 + chance(4);
        for (size_t at = 0; at < count; at++) {
            indexes[at] = chance(2) == 0 ? chance(8) : chance(KEYS);
            oldest[at] = atomic_load(&all.keys[indexes[at]].oldest);
            items[at] = item_of(&all.keys[indexes[at]], self->words[at], VALUE_BYTES_MAX);
        }
        delay(32);
        CHECK_STATUS(cl_get(client, items, count, NULL, in_seconds(LIMIT_S), &failure), MS_OK);
        for (size_t at = 0; at < count; at++) {
            bool is_hit = items[at].status == MS_OK;
            if (!is_hit && items[at].status != MS_NOT_FOUND) {
                fprintf(stderr, "get: %s (%s at %s: %s); seed %llu\n",
                        ms_status_name(items[at].status), failure.stage, failure.node,
                        failure.message, (unsigned long long)seed);
                abort();
            }
            const char *problem =
                is_hit ? check_value(self->words[at], items[at].bytes, indexes[at], oldest[at],
                                     atomic_load(&all.keys[indexes[at]].begun))
                       : NULL;
            if (problem != NULL) {
                atomic_fetch_add(&all.wrong, 1);
                fprintf(stderr, "WRONG READ over %s: key %llu: %s\n",
                        self->is_local ? "shared memory" : "TCP", (unsigned long long)indexes[at],
                        problem);
                atomic_store(&all.is_over, true);
            }
            atomic_fetch_add(is_hit ? &all.hits[self->is_local] : &all.misses[self->is_local], 1);
        }
        if (atomic_fetch_add(&all.reads[self->is_local], count) + count >= all.reads_wanted) {
            if (atomic_load(&all.reads[!self->is_local]) >= all.reads_wanted)
                atomic_store(&all.is_over, true);
            break;
        }
    }
    cl_leave(client);
    return NULL;
}

/* ---- the run -------------------------------------------------------------------------------------------------------- */

static void open_all(void) {
    ma_config config;
    char error[TE_ERROR_BYTES];
    uint16_t port;
    ma_config_default(&config);
    config.epoch = 3;
    for (size_t at = 0; at < sizeof config.secret; at++)
        config.secret[at] = (uint8_t)mix(seed + at);
    CHECK_STATUS(ma_master_open(&config, &all.master, error), MS_OK);
    CHECK_STATUS(ma_master_listen_tcp(all.master, "127.0.0.1", 0, &port, error), MS_OK);
    snprintf(all.address, sizeof all.address, "127.0.0.1:%u", port);
    node_open(&all.node, POOL_BYTES, all.address);
    node_wait_adopted(&all.node);
    for (uint32_t at = 0; at < KEYS; at++) {
        all.keys[at].length =
            (uint32_t)snprintf(all.keys[at].name, sizeof all.keys[at].name, "key/%u", at);
        pthread_mutex_init(&all.keys[at].lock, NULL);
    }
}

/* False: a read gave something that it must not give. */
static bool hunt_stores(uint64_t reads) {
    all.reads_wanted = (reads + 1) / 2;
    open_all();
    static writer writers[WRITERS];
    static reader readers[READERS];
    pthread_t threads[WRITERS + READERS];
    for (uint32_t at = 0; at < WRITERS; at++) {
        writers[at].handle = client_new(at % 2 == 1);
        CHECK(pthread_create(&threads[at], NULL, write_values, &writers[at]) == 0);
    }
    for (uint32_t at = 0; at < READERS; at++) {
        readers[at].is_local = at % 2 == 1;
        readers[at].handle = client_new(readers[at].is_local);
        CHECK(pthread_create(&threads[WRITERS + at], NULL, read_values, &readers[at]) == 0);
    }
    for (uint32_t at = 0; at < WRITERS + READERS; at++)
        pthread_join(threads[at], NULL);
    for (uint32_t at = 0; at < WRITERS; at++)
        cl_close(writers[at].handle, 2000000000);
    for (uint32_t at = 0; at < READERS; at++) {
        cl_counters counters;
        CHECK_STATUS(cl_read_counters(readers[at].handle, &counters), MS_OK);
        all.stale[readers[at].is_local] += counters.locations_gone;
        cl_close(readers[at].handle, 2000000000);
    }
    node_close(&all.node);
    ma_master_close(all.master);
    for (uint32_t at = 0; at < KEYS; at++)
        pthread_mutex_destroy(&all.keys[at].lock);
    return atomic_load(&all.wrong) == 0;
}

static void report(void) {
    for (int is_local = 0; is_local < 2; is_local++)
        fprintf(stderr, "%s: %llu reads, %llu values, %llu misses, %llu stale locations\n",
                is_local ? "shared memory" : "TCP", (unsigned long long)all.reads[is_local],
                (unsigned long long)all.hits[is_local], (unsigned long long)all.misses[is_local],
                (unsigned long long)all.stale[is_local]);
    fprintf(stderr, "%llu wrong; %llu puts, %llu refused, %llu removes; seed %llu\n",
            (unsigned long long)all.wrong, (unsigned long long)all.puts,
            (unsigned long long)all.refused, (unsigned long long)all.removes,
            (unsigned long long)seed);
}
