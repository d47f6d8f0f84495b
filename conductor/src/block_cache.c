/* A cache of blocks with pins: a hash table of entries, and a heap of those that may go.
 *
 * The heap has exactly the entries without pins, so that eviction never has to look for one: what is pinned leaves it,
 * and comes back with the last unpin.
 */
#include "block_cache.h"

#include <stdlib.h>
#include <string.h>

#include "cd_sim.h"

#define ENTRIES_FIRST 1024

bool cache_open(block_cache *cache, uint64_t capacity, uint32_t policy) {
    *cache = (block_cache){.capacity = capacity, .policy = policy, .free_entry = NO_ENTRY};
    return true;
}

void cache_close(block_cache *cache) {
    free(cache->entries);
    free(cache->heap);
    free(cache->table);
    memset(cache, 0, sizeof *cache);
}

static uint32_t slot_of(const block_cache *cache, uint32_t block) {
    return (uint32_t)((block * UINT64_C(0x9E3779B97F4A7C15)) >> 32) & cache->table_mask;
}

uint32_t cache_find(const block_cache *cache, uint32_t block) {
    if (cache->table == NULL)
        return NO_ENTRY;
    for (uint32_t slot = slot_of(cache, block);; slot = (slot + 1) & cache->table_mask) {
        uint32_t entry = cache->table[slot];
        if (entry == NO_ENTRY || cache->entries[entry].block == block)
            return entry;
    }
}

static void table_put(block_cache *cache, uint32_t entry) {
    uint32_t slot = slot_of(cache, cache->entries[entry].block);
    while (cache->table[slot] != NO_ENTRY)
        slot = (slot + 1) & cache->table_mask;
    cache->table[slot] = entry;
}

static void table_take(block_cache *cache, uint32_t block) {
    uint32_t hole = slot_of(cache, block);
    while (cache->entries[cache->table[hole]].block != block)
        hole = (hole + 1) & cache->table_mask;
    for (uint32_t slot = hole;;) {
        slot = (slot + 1) & cache->table_mask;
        uint32_t entry = cache->table[slot];
        if (entry == NO_ENTRY)
            break;
        uint32_t home = slot_of(cache, cache->entries[entry].block);
        if (((slot - home) & cache->table_mask) < ((slot - hole) & cache->table_mask))
            continue; /* its home lies behind the hole */
        cache->table[hole] = entry;
        hole = slot;
    }
    cache->table[hole] = NO_ENTRY;
}

static bool grow(block_cache *cache) {
    uint32_t more = cache->entries_max == 0 ? ENTRIES_FIRST : cache->entries_max * 2;
    cache_entry *entries = realloc(cache->entries, more * sizeof *entries);
    if (entries != NULL)
        cache->entries = entries;
    heap_node *heap = realloc(cache->heap, more * sizeof *heap);
    if (heap != NULL)
        cache->heap = heap;
    uint32_t *table = malloc((size_t)more * 2 * sizeof *table);
    if (entries == NULL || heap == NULL || table == NULL) {
        free(table);
        return false;
    }
    memset(table, 0xff, (size_t)more * 2 * sizeof *table);
    uint32_t *old = cache->table;
    uint32_t old_slots = old == NULL ? 0 : cache->table_mask + 1;
    cache->table = table;
    cache->table_mask = more * 2 - 1;
    for (uint32_t slot = 0; slot < old_slots; slot++)
        if (old[slot] != NO_ENTRY)
            table_put(cache, old[slot]);
    free(old);
    for (uint32_t entry = cache->entries_max; entry < more; entry++) {
        entries[entry].block = UINT32_MAX;
        entries[entry].heap = cache->free_entry; /* the list of free ones */
        cache->free_entry = entry;
    }
    cache->entries_max = more;
    return true;
}

/* ---- the heap of the evictable -------------------------------------------------------------------- */

static heap_node node_of(const block_cache *cache, uint32_t entry) {
    const cache_entry *one = &cache->entries[entry];
    uint64_t rank = cache->policy == CD_LRU ? 0 : (uint64_t)one->uses << 32;
    if (cache->policy == CD_LENGTH_AWARE_TAIL)
        rank |= UINT32_MAX - one->position; /* the tail of a long request first */
    if (cache->policy == CD_LENGTH_AWARE_HEAD)
        rank |= one->position;
    return (heap_node){.rank = rank, .used = one->used, .entry = entry};
}

static bool goes_before(const heap_node *a, const heap_node *b) {
    return a->rank != b->rank ? a->rank < b->rank : a->used < b->used;
}

static void place(block_cache *cache, uint32_t at, const heap_node *node) {
    cache->heap[at] = *node;
    cache->entries[node->entry].heap = at;
}

static void sift(block_cache *cache, uint32_t at, heap_node node) {
    while (at > 0 && goes_before(&node, &cache->heap[(at - 1) / 2])) {
        place(cache, at, &cache->heap[(at - 1) / 2]);
        at = (at - 1) / 2;
    }
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= cache->heap_count)
            break;
        if (child + 1 < cache->heap_count &&
            goes_before(&cache->heap[child + 1], &cache->heap[child]))
            child++;
        if (!goes_before(&cache->heap[child], &node))
            break;
        place(cache, at, &cache->heap[child]);
        at = child;
    }
    place(cache, at, &node);
}

static void heap_take(block_cache *cache, uint32_t entry) {
    uint32_t at = cache->entries[entry].heap;
    heap_node last = cache->heap[--cache->heap_count];
    cache->entries[entry].heap = NO_ENTRY;
    if (last.entry != entry)
        sift(cache, at, last);
}

/* ---- entries ---------------------------------------------------------------------------------------- */

void cache_drop(block_cache *cache, uint32_t entry) {
    table_take(cache, cache->entries[entry].block);
    cache->entries[entry].block = UINT32_MAX;
    cache->entries[entry].heap = cache->free_entry;
    cache->free_entry = entry;
    cache->count--;
}

uint32_t cache_insert(block_cache *cache, uint32_t block, uint32_t position, uint32_t *evicted) {
    *evicted = UINT32_MAX;
    if (cache->capacity != 0 && cache->count >= cache->capacity) {
        if (cache->heap_count == 0)
            return NO_ENTRY;
        uint32_t victim = cache->heap[0].entry;
        heap_take(cache, victim);
        *evicted = cache->entries[victim].block;
        cache_drop(cache, victim);
    }
    if (cache->free_entry == NO_ENTRY && !grow(cache))
        return NO_ENTRY;
    uint32_t entry = cache->free_entry;
    cache->free_entry = cache->entries[entry].heap;
    cache->entries[entry] = (cache_entry){
        .block = block, .position = position, .pins = 1, .heap = NO_ENTRY, .producer = NO_REQUEST};
    table_put(cache, entry);
    cache->count++;
    return entry;
}

void cache_pin(block_cache *cache, uint32_t entry) {
    if (cache->entries[entry].pins++ == 0)
        heap_take(cache, entry);
}

void cache_unpin(block_cache *cache, uint32_t entry) {
    if (--cache->entries[entry].pins == 0)
        sift(cache, cache->heap_count++, node_of(cache, entry));
}

void cache_use(block_cache *cache, uint32_t entry, uint64_t used) {
    cache->entries[entry].used = used;
    if (used != 0)
        cache->entries[entry].uses++;
    if (cache->entries[entry].pins == 0)
        sift(cache, cache->entries[entry].heap, node_of(cache, entry));
}
