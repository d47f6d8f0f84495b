/* A small open-addressing table from u64 to u64: pending frees, fenced sessions, views.
 *
 * Linear probing; a removal shifts the followers back, so there are no tombstones and look-ups stay short.
 * Key UINT64_MAX is not allowed.  Not thread-safe.
 */
#ifndef ST_TABLE_H
#define ST_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef struct st_table_slot {
    uint64_t key; /* UINT64_MAX = empty */
    uint64_t value;
} st_table_slot;

typedef struct st_table {
    st_table_slot *slots;
    size_t capacity; /* a power of two, or 0 */
    size_t count;
} st_table;

static inline size_t st_table_home(const st_table *table, uint64_t key) {
    key ^= key >> 32;
    key *= 0x9e3779b97f4a7c15u;
    return (size_t)(key >> 32) & (table->capacity - 1);
}

static inline st_table_slot *st_table_find(const st_table *table, uint64_t key) {
    if (table->count == 0)
        return NULL;
    for (size_t at = st_table_home(table, key);; at = (at + 1) & (table->capacity - 1)) {
        if (table->slots[at].key == key)
            return &table->slots[at];
        if (table->slots[at].key == UINT64_MAX)
            return NULL;
    }
}

static inline bool st_table_resize(st_table *table, size_t capacity) {
    st_table_slot *slots = malloc(capacity * sizeof *slots);
    if (slots == NULL)
        return false;
    for (size_t at = 0; at < capacity; at++)
        slots[at].key = UINT64_MAX;
    st_table old = *table;
    table->slots = slots;
    table->capacity = capacity;
    for (size_t from = 0; from < old.capacity; from++) {
        if (old.slots[from].key == UINT64_MAX)
            continue;
        size_t at = st_table_home(table, old.slots[from].key);
        while (slots[at].key != UINT64_MAX)
            at = (at + 1) & (capacity - 1);
        slots[at] = old.slots[from];
    }
    free(old.slots);
    return true;
}

/* False: no memory.  An existing key gets the new value. */
static inline bool st_table_set(st_table *table, uint64_t key, uint64_t value) {
    st_table_slot *slot = st_table_find(table, key);
    if (slot != NULL) {
        slot->value = value;
        return true;
    }
    if ((table->count + 1) * 10 > table->capacity * 7 &&
        !st_table_resize(table, table->capacity == 0 ? 64 : table->capacity * 2))
        return false;
    size_t at = st_table_home(table, key);
    while (table->slots[at].key != UINT64_MAX)
        at = (at + 1) & (table->capacity - 1);
    table->slots[at] = (st_table_slot){key, value};
    table->count++;
    return true;
}

static inline void st_table_clear(st_table *table) {
    free(table->slots);
    *table = (st_table){0};
}

static inline bool st_table_remove(st_table *table, uint64_t key) {
    st_table_slot *slot = st_table_find(table, key);
    if (slot == NULL)
        return false;
    size_t mask = table->capacity - 1;
    size_t hole = (size_t)(slot - table->slots);
    for (size_t at = (hole + 1) & mask; table->slots[at].key != UINT64_MAX; at = (at + 1) & mask) {
        size_t home = st_table_home(table, table->slots[at].key);
        /* It may move into the hole unless its home lies behind the hole. */
        if (((at - home) & mask) >= ((at - hole) & mask)) {
            table->slots[hole] = table->slots[at];
            hole = at;
        }
    }
    table->slots[hole].key = UINT64_MAX;
    if (--table->count == 0)
        st_table_clear(table); /* memory of a burst comes back */
    return true;
}

#endif
