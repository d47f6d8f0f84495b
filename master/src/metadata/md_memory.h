/* Memory of the metadata core: pages from the kernel, so that what is given back really leaves the process.
 *
 * Three containers are built on it.  All of them cost no resident memory for what was never touched,
 * give memory back when they empty, and can be asked beforehand (`reserve`) for room, so that what must
 * not fail half way does not.
 */
#ifndef MD_MEMORY_H
#define MD_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed pages, or NULL. */
void *md_memory_map(size_t bytes);
/* May move; new bytes are zero.  NULL leaves the old ones as they were. */
void *md_memory_remap(void *memory, size_t old_bytes, size_t new_bytes);
void md_memory_unmap(void *memory, size_t bytes);

/* Gives back what waits for who wants memory next. */
void md_memory_trim(void);

/* Makes these pages resident; what they hold stays. */
void md_memory_touch(void *memory, size_t bytes);

/* For few and small things: realloc. */
void *md_memory_small(void *memory, size_t bytes);
void md_memory_small_free(void *memory);

/* For tests: the n-th call from now on that asks for memory fails (once); 0 = none. */
void md_memory_fail_after(uint64_t calls);

/* ---- pool: items of one size, at addresses that stay --------------------------------------------- */
#define MD_CHUNK_ITEMS 4096u

typedef struct md_chunk {
    unsigned char *items; /* NULL: given back */
    uint32_t fresh;       /* items from here on were never used: not touched, not resident */
    uint32_t count;
    uint32_t free;           /* first free item + 1; the next is in its first four bytes */
    uint32_t next, previous; /* among the chunks with room, or (next only) those given back; + 1 */
} md_chunk;

typedef struct md_pool {
    md_chunk *chunks;
    uint32_t item_bytes, chunk_count, chunk_capacity;
    uint32_t open;      /* first chunk with room, + 1 */
    uint32_t unmapped;  /* first chunk without memory, + 1 */
    uint32_t count;     /* items in use */
    uint32_t available; /* items that can be taken without asking for memory */
    uint32_t spare;     /* empty chunks that keep their memory: at most one */
} md_pool;

void md_pool_open(md_pool *pool, size_t item_bytes);
void md_pool_close(md_pool *pool);
/* An empty one gives back its last chunk, too. */
void md_pool_trim(md_pool *pool);
bool md_pool_reserve(md_pool *pool, uint32_t items);
/* A zeroed item's number, from 1.  There must be room: md_pool_reserve has said so. */
uint32_t md_pool_take(md_pool *pool);
void md_pool_give(md_pool *pool, uint32_t item);

static inline void *md_pool_at(const md_pool *pool, uint32_t item) {
    return pool->chunks[(item - 1) / MD_CHUNK_ITEMS].items +
           (size_t)((item - 1) % MD_CHUNK_ITEMS) * pool->item_bytes;
}

/* ---- map: u64 -> number other than 0 ---------------------------------------------------------------- */
typedef struct md_map_slot {
    uint64_t key;
    uint32_t value; /* 0: empty */
    uint32_t unused;
} md_map_slot;

typedef struct md_map {
    md_map_slot *slots;
    uint32_t capacity; /* a power of two, or 0 */
    uint32_t count;
} md_map;

void md_map_close(md_map *map);
bool md_map_reserve(md_map *map, uint32_t more);
uint32_t md_map_get(const md_map *map, uint64_t key); /* 0: not there */
/* There must be room, or the key be there. */
void md_map_set(md_map *map, uint64_t key, uint32_t value);
void md_map_remove(md_map *map, uint64_t key);

/* ---- array: items side by side ---------------------------------------------------------------------- */
/* The items (of *capacity, which grows) where `wanted` have room; NULL: nothing has changed. */
void *md_array_reserve(void *items, uint32_t *capacity, size_t item_bytes, uint32_t wanted);

/* A good distribution of any 64 bits (the finaliser of SplitMix64: Steele, Lea, Flood, 2014). */
static inline uint64_t md_mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

#endif
