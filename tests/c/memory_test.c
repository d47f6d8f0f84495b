// sources: master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain
// timeout: 300
/* What the metadata core costs in memory, as the growth of this process: at most 160 bytes a key beyond the
 * key, of which at least half comes back after a random 80 % was removed and 90 % after all.
 *
 *     build/c-test/plain/memory_test [KEYS]        (default 1,000,000; prints JSON)
 */
#include <unistd.h>

#include "metadata_harness.h"

#define SERVERS 4u
#define SIZE_BYTES 20000u
#define KEY_FORMAT "vllm-worker-7/model-llama-70b/layer-12/%016lx%016lx/block-%08u"

static harness *h;

static uint64_t resident_bytes(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    unsigned long size = 0, resident = 0, shared = 0;
    EXPECT(file != NULL && fscanf(file, "%lu %lu %lu", &size, &resident, &shared) == 3);
    fclose(file);
    return (uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static size_t key_of(uint32_t i, char *key) {
    return (size_t)sprintf(key, KEY_FORMAT, (unsigned long)mix(i),
                           (unsigned long)mix(i + (1ull << 40)), i);
}

static void put(uint32_t i) {
    char key[128];
    key_of(i, key);
    EXPECT(harness_put(h, key, SIZE_BYTES) == MS_OK);
}

static void drop(uint32_t i) {
    char key[128];
    key_of(i, key);
    EXPECT(harness_remove(h, key, false, 1) == MS_PENDING && h->answer_count == 1);
    h->answer_count = 0;
}

int main(int argc, char **argv) {
    uint32_t keys = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 1000000;
    h = malloc(sizeof *h);
    EXPECT(h != NULL);
    harness_open_default(h);
    for (uint32_t i = 0; i < SERVERS; i++)
        harness_add_server(h, i, (uint64_t)keys * 5 * 11 / 10 / SERVERS + 1000);
    char key[128];
    size_t key_bytes = key_of(0, key);

    uint64_t before = resident_bytes();
    for (uint32_t i = 0; i < keys; i++)
        put(i);
    uint64_t full = resident_bytes();
    EXPECT(harness_counter(h, "objects") == keys);

    /* A random 80 %: what stays is spread over everything. */
    uint32_t left = keys;
    for (uint32_t i = 0; i < keys; i++)
        if (mix(i * 31ull + 7) % 5 != 0) {
            drop(i);
            left--;
        }
    uint64_t sparse = resident_bytes();
    for (uint32_t i = 0; i < keys; i++)
        if (mix(i * 31ull + 7) % 5 == 0)
            drop(i);
    harness_advance(h, 2000); /* what an empty core keeps for the next object goes after a while */
    uint64_t empty = resident_bytes();
    EXPECT(harness_counter(h, "objects") == 0);
    harness_close(h);

    double grown = (double)(full - before), a_key = grown / keys - (double)key_bytes;
    double back_sparse = (double)full - (double)sparse, back_all = (double)full - (double)empty;
    printf("{\"keys\": %u, \"key_bytes\": %zu, \"bytes_a_key_beyond_it\": %.1f, \"left\": %u, "
           "\"back_after_80_percent\": %.3f, \"back_after_all\": %.3f}\n",
           keys, key_bytes, a_key, left, back_sparse / grown, back_all / grown);
    EXPECT(a_key <= 160);
    EXPECT(back_sparse / grown >= 0.5);
    EXPECT(back_all / grown >= 0.9);
    free(h);
    return 0;
}
