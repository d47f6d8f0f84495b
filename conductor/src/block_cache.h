/* The blocks that one simulated prefill instance keeps in DRAM. */
#ifndef BLOCK_CACHE_H
#define BLOCK_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#define NO_ENTRY UINT32_MAX
#define NO_REQUEST UINT32_MAX

typedef struct cache_entry {
    uint32_t block, position; /* position: which block of its prefix */
    uint32_t pins, uses;
    uint32_t heap; /* place among the evictable; NO_ENTRY while pinned */
    uint32_t
        producer;  /* the request that will have computed or fetched it; NO_REQUEST: it is there */
    uint64_t used; /* when last: a count that grows */
} cache_entry;

/* An evictable entry with what decides its turn, so that a comparison looks at the heap alone. */
typedef struct heap_node {
    uint64_t rank, used;
    uint32_t entry;
} heap_node;

typedef struct block_cache {
    uint64_t capacity; /* 0: none */
    uint32_t policy;
    uint32_t count, entries_max, free_entry;
    cache_entry *entries;
    heap_node *heap; /* evictable entries, who goes first on top */
    uint32_t heap_count;
    uint32_t *table; /* open addressing, of entries */
    uint32_t table_mask;
} block_cache;

bool cache_open(block_cache *cache, uint64_t capacity, uint32_t policy);
void cache_close(block_cache *cache);
uint32_t cache_find(const block_cache *cache, uint32_t block);
/* A new, pinned entry.  NO_ENTRY: everything is pinned, or there is no memory; *evicted: who went, or UINT32_MAX. */
uint32_t cache_insert(block_cache *cache, uint32_t block, uint32_t position, uint32_t *evicted);
/* Forgets an entry with one pin. */
void cache_drop(block_cache *cache, uint32_t entry);
void cache_pin(block_cache *cache, uint32_t entry);
void cache_unpin(block_cache *cache, uint32_t entry);
void cache_use(block_cache *cache, uint32_t entry, uint64_t used);

#endif
