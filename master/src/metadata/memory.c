/* See md_memory.h. */
#include "md_memory.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static uint64_t fail_after;

void md_memory_fail_after(uint64_t calls) { fail_after = calls; }

static bool fails(void) { return fail_after != 0 && --fail_after == 0; }

/* ---- pages ------------------------------------------------------------------------------------------ */
/* Shards are rebuilt and grow all the time, in pieces of some pages.  A trip to the kernel for each, with a fault
 * for every page of it, was a fifth of what a put cost the master.  So small pieces come in few sizes, and a few
 * that were given back wait here for who wants that size next.  What may wait is little beside what it saves: all
 * else really leaves the process. */
#define PAGE_BYTES 4096u
#define KEPT_PAGES_MAX 16u /* of a piece that is kept */
#define KEPT_PIECES 4u     /* of one size */

typedef struct kept_size {
    void *pieces[KEPT_PIECES];
    uint32_t count;
} kept_size;

static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;
static kept_size kept[KEPT_PAGES_MAX + 1]; /* by pages */

/* Pages of a piece: up to four as they are, then in steps of a quarter of their power of two. */
static size_t pages_of(size_t bytes) {
    size_t pages = (bytes + PAGE_BYTES - 1) / PAGE_BYTES, step = 1;
    while (pages > step * 8)
        step *= 2;
    return (pages + step - 1) / step * step;
}

static void *take_kept(size_t pages) {
    void *piece = NULL;
    if (pages <= KEPT_PAGES_MAX) {
        pthread_mutex_lock(&kept_lock);
        kept_size *of = &kept[pages];
        if (of->count != 0)
            piece = of->pieces[--of->count];
        pthread_mutex_unlock(&kept_lock);
    }
    return piece;
}

static bool keep(void *memory, size_t pages) {
    bool is_kept = false;
    if (pages <= KEPT_PAGES_MAX) {
        pthread_mutex_lock(&kept_lock);
        kept_size *of = &kept[pages];
        is_kept = of->count < KEPT_PIECES;
        if (is_kept)
            of->pieces[of->count++] = memory;
        pthread_mutex_unlock(&kept_lock);
    }
    return is_kept;
}

void *md_memory_map(size_t bytes) {
    if (fails())
        return NULL;
    size_t pages = pages_of(bytes);
    void *memory = take_kept(pages);
    if (memory != NULL)
        return memset(memory, 0, bytes);
    memory =
        mmap(NULL, pages * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

void *md_memory_remap(void *memory, size_t old_bytes, size_t new_bytes) {
    if (memory == NULL)
        return md_memory_map(new_bytes);
    if (fails())
        return NULL;
    size_t old_pages = pages_of(old_bytes), new_pages = pages_of(new_bytes);
    /* The last page's rest may hold what an earlier owner left. */
    size_t rest = old_pages * PAGE_BYTES < new_bytes ? old_pages * PAGE_BYTES : new_bytes;
    void *moved = old_pages == new_pages ? memory : take_kept(new_pages);
    if (moved == NULL) {
        moved = mremap(memory, old_pages * PAGE_BYTES, new_pages * PAGE_BYTES, MREMAP_MAYMOVE);
        if (moved == MAP_FAILED)
            return NULL;
    } else if (moved != memory) {
        memcpy(moved, memory, old_bytes < new_bytes ? old_bytes : new_bytes);
        rest = new_bytes;
        if (!keep(memory, old_pages))
            munmap(memory, old_pages * PAGE_BYTES);
    }
    if (rest > old_bytes)
        memset((uint8_t *)moved + old_bytes, 0, rest - old_bytes);
    return moved;
}

void md_memory_unmap(void *memory, size_t bytes) {
    size_t pages = pages_of(bytes);
    if (memory != NULL && !keep(memory, pages))
        munmap(memory, pages * PAGE_BYTES);
}

void md_memory_trim(void) {
    pthread_mutex_lock(&kept_lock);
    for (size_t pages = 0; pages <= KEPT_PAGES_MAX; pages++)
        while (kept[pages].count != 0)
            munmap(kept[pages].pieces[--kept[pages].count], pages * PAGE_BYTES);
    pthread_mutex_unlock(&kept_lock);
}

void md_memory_touch(void *memory, size_t bytes) {
    volatile uint8_t *byte = memory;
    for (size_t at = 0; at < bytes; at += PAGE_BYTES)
        byte[at] = byte[at];
}

void *md_memory_small(void *memory, size_t bytes) {
    return fails() ? NULL : realloc(memory, bytes);
}

void md_memory_small_free(void *memory) { free(memory); }

/* ---- array ------------------------------------------------------------------------------------------ */
void *md_array_reserve(void *items, uint32_t *capacity, size_t item_bytes, uint32_t wanted) {
    if (wanted <= *capacity && items != NULL)
        return items;
    uint64_t larger = *capacity == 0 ? 4096 / item_bytes + 1 : (uint64_t)*capacity * 2;
    if (larger < wanted)
        larger = wanted;
    if (larger > UINT32_MAX)
        return NULL;
    void *moved = md_memory_remap(items, *capacity * item_bytes, larger * item_bytes);
    if (moved != NULL)
        *capacity = (uint32_t)larger;
    return moved;
}

/* ---- pool ------------------------------------------------------------------------------------------- */
void md_pool_open(md_pool *pool, size_t item_bytes) {
    *pool = (md_pool){.item_bytes = (uint32_t)((item_bytes + 7) / 8 * 8)};
}

static size_t chunk_bytes(const md_pool *pool) { return (size_t)pool->item_bytes * MD_CHUNK_ITEMS; }

void md_pool_close(md_pool *pool) {
    for (uint32_t i = 0; i < pool->chunk_count; i++)
        md_memory_unmap(pool->chunks[i].items, chunk_bytes(pool));
    md_memory_unmap(pool->chunks, pool->chunk_capacity * sizeof(md_chunk));
    md_pool_open(pool, pool->item_bytes);
}

void md_pool_trim(md_pool *pool) {
    if (pool->count == 0)
        md_pool_close(pool);
}

static void open_chunk(md_pool *pool, uint32_t number) {
    md_chunk *chunk = &pool->chunks[number - 1];
    chunk->previous = 0;
    chunk->next = pool->open;
    if (pool->open != 0)
        pool->chunks[pool->open - 1].previous = number;
    pool->open = number;
}

static void close_chunk(md_pool *pool, uint32_t number) {
    md_chunk *chunk = &pool->chunks[number - 1];
    if (chunk->previous != 0)
        pool->chunks[chunk->previous - 1].next = chunk->next;
    else
        pool->open = chunk->next;
    if (chunk->next != 0)
        pool->chunks[chunk->next - 1].previous = chunk->previous;
}

static bool map_chunk(md_pool *pool) {
    uint32_t number = pool->unmapped;
    if (number == 0) {
        md_chunk *chunks = md_array_reserve(pool->chunks, &pool->chunk_capacity, sizeof(md_chunk),
                                            pool->chunk_count + 1);
        if (chunks == NULL)
            return false;
        pool->chunks = chunks;
        number = pool->chunk_count + 1;
    }
    void *items = md_memory_map(chunk_bytes(pool));
    if (items == NULL)
        return false;
    if (number == pool->unmapped)
        pool->unmapped = pool->chunks[number - 1].next;
    else
        pool->chunk_count++;
    pool->chunks[number - 1] = (md_chunk){.items = items};
    open_chunk(pool, number);
    pool->available += MD_CHUNK_ITEMS;
    pool->spare++;
    return true;
}

bool md_pool_reserve(md_pool *pool, uint32_t items) {
    while (pool->available < items)
        if (!map_chunk(pool))
            return false;
    return true;
}

uint32_t md_pool_take(md_pool *pool) {
    assert(pool->open != 0);
    uint32_t number = pool->open;
    md_chunk *chunk = &pool->chunks[number - 1];
    uint32_t index;
    if (chunk->free != 0) {
        index = chunk->free - 1;
        memcpy(&chunk->free, chunk->items + (size_t)index * pool->item_bytes, sizeof chunk->free);
    } else {
        index = chunk->fresh++;
    }
    if (chunk->count++ == 0)
        pool->spare--;
    if (chunk->count == MD_CHUNK_ITEMS)
        close_chunk(pool, number);
    pool->count++;
    pool->available--;
    memset(chunk->items + (size_t)index * pool->item_bytes, 0, pool->item_bytes);
    return (number - 1) * MD_CHUNK_ITEMS + index + 1;
}

void md_pool_give(md_pool *pool, uint32_t item) {
    uint32_t number = (item - 1) / MD_CHUNK_ITEMS + 1, index = (item - 1) % MD_CHUNK_ITEMS;
    md_chunk *chunk = &pool->chunks[number - 1];
    assert(chunk->items != NULL && chunk->count > 0);
    memcpy(chunk->items + (size_t)index * pool->item_bytes, &chunk->free, sizeof chunk->free);
    chunk->free = index + 1;
    if (chunk->count-- == MD_CHUNK_ITEMS)
        open_chunk(pool, number);
    pool->count--;
    pool->available++;
    if (chunk->count != 0)
        return;
    /* One empty chunk stays mapped: a pool that goes up and down by one item must not call the kernel. */
    if (pool->spare == 0) {
        pool->spare = 1;
        return;
    }
    close_chunk(pool, number);
    md_memory_unmap(chunk->items, chunk_bytes(pool));
    *chunk = (md_chunk){.next = pool->unmapped};
    pool->unmapped = number;
    pool->available -= MD_CHUNK_ITEMS;
}

/* ---- map -------------------------------------------------------------------------------------------- */
/* Linear probing, at most 3/4 full; a removal shifts back what follows, so there are no tombstones. */
#define MAP_CAPACITY_MIN 64u

void md_map_close(md_map *map) {
    md_memory_unmap(map->slots, map->capacity * sizeof(md_map_slot));
    *map = (md_map){0};
}

static uint32_t map_home(uint64_t key, uint32_t capacity) {
    return (uint32_t)md_mix(key) & (capacity - 1);
}

static void map_insert(md_map_slot *slots, uint32_t capacity, uint64_t key, uint32_t value) {
    uint32_t at = map_home(key, capacity);
    while (slots[at].value != 0)
        at = (at + 1) & (capacity - 1);
    slots[at] = (md_map_slot){.key = key, .value = value};
}

static bool map_resize(md_map *map, uint32_t capacity) {
    md_map_slot *slots = md_memory_map(capacity * sizeof(md_map_slot));
    if (slots == NULL)
        return false;
    for (uint32_t i = 0; i < map->capacity; i++)
        if (map->slots[i].value != 0)
            map_insert(slots, capacity, map->slots[i].key, map->slots[i].value);
    md_memory_unmap(map->slots, map->capacity * sizeof(md_map_slot));
    map->slots = slots;
    map->capacity = capacity;
    return true;
}

bool md_map_reserve(md_map *map, uint32_t more) {
    uint64_t wanted = (uint64_t)map->count + more, capacity = map->capacity;
    if (capacity != 0 && wanted * 4 <= capacity * 3)
        return true;
    if (capacity == 0)
        capacity = MAP_CAPACITY_MIN;
    while (wanted * 4 > capacity * 3)
        capacity *= 2;
    return capacity <= 1u << 31 && map_resize(map, (uint32_t)capacity);
}

uint32_t md_map_get(const md_map *map, uint64_t key) {
    if (map->count == 0)
        return 0;
    for (uint32_t at = map_home(key, map->capacity);; at = (at + 1) & (map->capacity - 1)) {
        const md_map_slot *slot = &map->slots[at];
        if (slot->value == 0 || slot->key == key)
            return slot->value;
    }
}

void md_map_set(md_map *map, uint64_t key, uint32_t value) {
    for (uint32_t at = map_home(key, map->capacity);; at = (at + 1) & (map->capacity - 1)) {
        md_map_slot *slot = &map->slots[at];
        if (slot->value != 0 && slot->key != key)
            continue;
        map->count += slot->value == 0;
        assert((uint64_t)map->count * 4 <= (uint64_t)map->capacity * 3);
        *slot = (md_map_slot){.key = key, .value = value};
        return;
    }
}

void md_map_remove(md_map *map, uint64_t key) {
    if (map->count == 0)
        return;
    uint32_t mask = map->capacity - 1, at = map_home(key, map->capacity);
    while (map->slots[at].value != 0 && map->slots[at].key != key)
        at = (at + 1) & mask;
    if (map->slots[at].value == 0)
        return;
    map->count--;
    for (uint32_t next = (at + 1) & mask; map->slots[next].value != 0; next = (next + 1) & mask) {
        uint32_t home = map_home(map->slots[next].key, map->capacity);
        /* An entry may move back to the hole unless its home lies behind the hole. */
        if (((next - home) & mask) >= ((next - at) & mask)) {
            map->slots[at] = map->slots[next];
            at = next;
        }
    }
    map->slots[at] = (md_map_slot){0};
    if (map->capacity > 16 * MAP_CAPACITY_MIN && map->count < map->capacity / 16)
        map_resize(map, map->capacity / 4); /* smaller is a wish: without memory it stays */
}
