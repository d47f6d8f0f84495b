/* See md_allocator.h. */
#include "md_allocator.h"

#include <assert.h>
#include <string.h>

#include "md_memory.h"

#define TABLE_CAPACITY_MIN 256u
#define RUNS_MIN 128u
#define FIT_PROBES_MAX 16u

/* Sizes below 16 have a class each, above that eight classes an octave. */
static uint32_t class_of(uint32_t page_count) {
    if (page_count < 16)
        return page_count;
    uint32_t octave = 31u - (uint32_t)__builtin_clz(page_count);
    return 16 + (octave - 4) * 8 + (page_count >> (octave - 3) & 7);
}

/* The first class of which every run holds page_count. */
static uint32_t class_above(uint32_t page_count) {
    if (page_count < 16)
        return page_count;
    uint32_t octave = 31u - (uint32_t)__builtin_clz(page_count);
    uint64_t rounded = (uint64_t)page_count + (1u << (octave - 3)) - 1;
    return rounded > UINT32_MAX ? MD_SIZE_CLASSES : class_of((uint32_t)rounded);
}

static uint32_t class_from(const md_allocator *allocator, uint32_t class) {
    for (uint32_t word = class / 64; word < MD_SIZE_CLASSES / 64; word++) {
        uint64_t bits = allocator->classes[word];
        if (word == class / 64)
            bits &= UINT64_MAX << class % 64;
        if (bits != 0)
            return word * 64 + (uint32_t)__builtin_ctzll(bits);
    }
    return MD_SIZE_CLASSES;
}

static uint32_t class_highest(const md_allocator *allocator, uint32_t below) {
    for (uint32_t word = MD_SIZE_CLASSES / 64; word-- > 0;) {
        uint64_t bits = allocator->classes[word];
        if (below < (word + 1) * 64)
            bits = below <= word * 64 ? 0 : bits & ~(UINT64_MAX << below % 64);
        if (bits != 0)
            return word * 64 + 63u - (uint32_t)__builtin_clzll(bits);
    }
    return MD_SIZE_CLASSES;
}

/* ---- the hash tables ----------------------------------------------------------------------------------- */
static uint32_t run_end(const md_run *run) { return run->page + run->page_count; }

static uint32_t run_key(const md_allocator *allocator, const uint32_t *table, uint32_t run) {
    const md_run *at = &allocator->runs[run - 1];
    return table == allocator->by_start ? at->page : run_end(at);
}

static uint32_t home_of(const md_allocator *allocator, uint32_t key) {
    return (uint32_t)md_mix(key) & (allocator->table_capacity - 1);
}

static uint32_t table_slot(const md_allocator *allocator, const uint32_t *table, uint32_t key) {
    uint32_t mask = allocator->table_capacity - 1, at = home_of(allocator, key);
    while (table[at] != 0 && run_key(allocator, table, table[at]) != key)
        at = (at + 1) & mask;
    return at;
}

static uint32_t table_get(const md_allocator *allocator, const uint32_t *table, uint32_t key) {
    return allocator->table_capacity == 0 ? 0 : table[table_slot(allocator, table, key)];
}

static void table_set(md_allocator *allocator, uint32_t *table, uint32_t key, uint32_t run) {
    table[table_slot(allocator, table, key)] = run;
}

static void table_remove(md_allocator *allocator, uint32_t *table, uint32_t key) {
    uint32_t mask = allocator->table_capacity - 1, at = table_slot(allocator, table, key);
    assert(table[at] != 0);
    for (uint32_t next = (at + 1) & mask; table[next] != 0; next = (next + 1) & mask) {
        uint32_t home = home_of(allocator, run_key(allocator, table, table[next]));
        if (((next - home) & mask) >= ((next - at) & mask)) {
            table[at] = table[next];
            at = next;
        }
    }
    table[at] = 0;
}

static bool tables_resize(md_allocator *allocator, uint32_t capacity) {
    uint32_t *by_start = md_memory_map(capacity * sizeof *by_start);
    uint32_t *by_end = md_memory_map(capacity * sizeof *by_end);
    if (by_start == NULL || by_end == NULL) {
        md_memory_unmap(by_start, capacity * sizeof *by_start);
        md_memory_unmap(by_end, capacity * sizeof *by_end);
        return false;
    }
    md_memory_unmap(allocator->by_start, allocator->table_capacity * sizeof *by_start);
    md_memory_unmap(allocator->by_end, allocator->table_capacity * sizeof *by_end);
    allocator->by_start = by_start;
    allocator->by_end = by_end;
    allocator->table_capacity = capacity;
    for (uint32_t run = 1; run <= allocator->count; run++) {
        table_set(allocator, by_start, allocator->runs[run - 1].page, run);
        table_set(allocator, by_end, run_end(&allocator->runs[run - 1]), run);
    }
    return true;
}

/* ---- lists and runs ------------------------------------------------------------------------------------ */
static void list_add(md_allocator *allocator, uint32_t run) {
    md_run *at = &allocator->runs[run - 1];
    uint32_t class = class_of(at->page_count), first = allocator->lists[class];
    at->previous = 0;
    at->next = first;
    if (first != 0)
        allocator->runs[first - 1].previous = run;
    allocator->lists[class] = run;
    allocator->classes[class / 64] |= 1ull << class % 64;
}

static void list_remove(md_allocator *allocator, uint32_t run) {
    md_run *at = &allocator->runs[run - 1];
    uint32_t class = class_of(at->page_count);
    if (at->next != 0)
        allocator->runs[at->next - 1].previous = at->previous;
    if (at->previous != 0)
        allocator->runs[at->previous - 1].next = at->next;
    else
        allocator->lists[class] = at->next;
    if (allocator->lists[class] == 0)
        allocator->classes[class / 64] &= ~(1ull << class % 64);
}

static bool run_reserve(md_allocator *allocator) {
    md_run *runs = md_array_reserve(allocator->runs, &allocator->capacity, sizeof(md_run),
                                    allocator->count + 1);
    if (runs == NULL)
        return false;
    allocator->runs = runs;
    if (allocator->table_capacity == 0)
        return tables_resize(allocator, TABLE_CAPACITY_MIN);
    if ((allocator->count + 1) * 4ull <= allocator->table_capacity * 3ull)
        return true;
    return allocator->table_capacity < 1u << 31 &&
           tables_resize(allocator, allocator->table_capacity * 2);
}

static void run_add(md_allocator *allocator, uint32_t page, uint32_t page_count) {
    uint32_t run = ++allocator->count;
    allocator->runs[run - 1] = (md_run){.page = page, .page_count = page_count};
    table_set(allocator, allocator->by_start, page, run);
    table_set(allocator, allocator->by_end, page + page_count, run);
    list_add(allocator, run);
}

/* Its place is taken by the last run, so that the array stays dense. */
static void run_remove(md_allocator *allocator, uint32_t run) {
    md_run *at = &allocator->runs[run - 1];
    list_remove(allocator, run);
    table_remove(allocator, allocator->by_start, at->page);
    table_remove(allocator, allocator->by_end, run_end(at));
    uint32_t last = allocator->count;
    if (run != last) {
        const md_run *moved = &allocator->runs[last - 1];
        allocator->by_start[table_slot(allocator, allocator->by_start, moved->page)] = run;
        allocator->by_end[table_slot(allocator, allocator->by_end, run_end(moved))] = run;
        if (moved->next != 0)
            allocator->runs[moved->next - 1].previous = run;
        if (moved->previous != 0)
            allocator->runs[moved->previous - 1].next = run;
        else
            allocator->lists[class_of(moved->page_count)] = run;
        *at = *moved;
    }
    allocator->count--;
}

/* Smaller arrays when most of them is empty; without memory they stay as they are. */
static void give_memory_back(md_allocator *allocator) {
    if (allocator->capacity > 4 * RUNS_MIN && allocator->count < allocator->capacity / 4) {
        uint32_t capacity = allocator->capacity / 2;
        md_run *runs = md_memory_remap(allocator->runs, allocator->capacity * sizeof *runs,
                                       capacity * sizeof *runs);
        if (runs != NULL) {
            allocator->runs = runs;
            allocator->capacity = capacity;
        }
    }
    if (allocator->table_capacity > 4 * TABLE_CAPACITY_MIN &&
        allocator->count < allocator->table_capacity / 8)
        tables_resize(allocator, allocator->table_capacity / 2);
}

/* ---- what is offered ----------------------------------------------------------------------------------- */
void md_allocator_open(md_allocator *allocator) { *allocator = (md_allocator){0}; }

void md_allocator_close(md_allocator *allocator) {
    md_memory_unmap(allocator->runs, allocator->capacity * sizeof *allocator->runs);
    md_memory_unmap(allocator->by_start, allocator->table_capacity * sizeof *allocator->by_start);
    md_memory_unmap(allocator->by_end, allocator->table_capacity * sizeof *allocator->by_end);
    *allocator = (md_allocator){0};
}

bool md_allocator_give(md_allocator *allocator, uint32_t page, uint32_t page_count) {
    if (!run_reserve(allocator))
        return false;
    allocator->pages_free += page_count;
    uint32_t left = table_get(allocator, allocator->by_end, page);
    if (left != 0) {
        page = allocator->runs[left - 1].page;
        page_count += allocator->runs[left - 1].page_count;
        run_remove(allocator, left);
    }
    uint32_t right = table_get(allocator, allocator->by_start, page + page_count);
    if (right != 0) {
        page_count += allocator->runs[right - 1].page_count;
        run_remove(allocator, right);
    }
    run_add(allocator, page, page_count);
    give_memory_back(allocator);
    return true;
}

/* The first page_count pages of a run. */
static ms_extent cut(md_allocator *allocator, uint32_t run, uint32_t page_count) {
    md_run *at = &allocator->runs[run - 1];
    ms_extent extent = {.page = at->page, .page_count = page_count};
    if (page_count == at->page_count) {
        run_remove(allocator, run);
        return extent;
    }
    list_remove(allocator, run);
    table_remove(allocator, allocator->by_start, at->page);
    at->page += page_count;
    at->page_count -= page_count;
    table_set(allocator, allocator->by_start, at->page, run);
    list_add(allocator, run);
    return extent;
}

/* A run of at least page_count pages, of the smallest class that has one; 0: none found. */
static uint32_t find_fit(const md_allocator *allocator, uint32_t page_count) {
    uint32_t class = class_from(allocator, class_above(page_count));
    if (class < MD_SIZE_CLASSES)
        return allocator->lists[class];
    uint32_t run = allocator->lists[class_of(page_count)];
    for (uint32_t probe = 0; run != 0 && probe < FIT_PROBES_MAX; probe++) {
        if (allocator->runs[run - 1].page_count >= page_count)
            return run;
        run = allocator->runs[run - 1].next;
    }
    return 0;
}

/* Do the extents_max first runs, in the order in which they would be taken, hold so much? */
static bool pieces_suffice(const md_allocator *allocator, uint32_t page_count,
                           uint32_t extents_max) {
    uint64_t sum = 0;
    uint32_t class = class_highest(allocator, MD_SIZE_CLASSES), pieces = 0;
    for (; class < MD_SIZE_CLASSES; class = class_highest(allocator, class))
        for (uint32_t run = allocator->lists[class]; run != 0;
             run = allocator->runs[run - 1].next) {
            sum += allocator->runs[run - 1].page_count;
            if (sum >= page_count)
                return true;
            if (++pieces == extents_max)
                return false;
        }
    return false;
}

bool md_allocator_fits(const md_allocator *allocator, uint32_t page_count, uint32_t extents_max) {
    return page_count <= allocator->pages_free &&
           (find_fit(allocator, page_count) != 0 ||
            pieces_suffice(allocator, page_count, extents_max));
}

uint32_t md_allocator_take(md_allocator *allocator, uint32_t page_count, ms_extent *extents,
                           uint32_t extents_max) {
    if (page_count == 0 || page_count > allocator->pages_free)
        return 0;
    uint32_t count = 0, left = page_count, run = find_fit(allocator, left);
    if (run == 0 && !pieces_suffice(allocator, page_count, extents_max))
        return 0;
    while (left != 0) {
        run = find_fit(allocator, left);
        uint32_t pages = left;
        if (run == 0) {
            run = allocator->lists[class_highest(allocator, MD_SIZE_CLASSES)];
            if (allocator->runs[run - 1].page_count < pages)
                pages = allocator->runs[run - 1].page_count;
        }
        assert(count < extents_max);
        extents[count++] = cut(allocator, run, pages);
        left -= pages;
    }
    allocator->pages_free -= page_count;
    give_memory_back(allocator);
    return count;
}

uint32_t md_allocator_largest(const md_allocator *allocator) {
    uint32_t class = class_highest(allocator, MD_SIZE_CLASSES), largest = 0;
    if (class == MD_SIZE_CLASSES)
        return 0;
    for (uint32_t run = allocator->lists[class]; run != 0; run = allocator->runs[run - 1].next)
        if (allocator->runs[run - 1].page_count > largest)
            largest = allocator->runs[run - 1].page_count;
    return largest;
}

int md_allocator_check(const md_allocator *allocator) {
    uint64_t pages = 0;
    uint32_t listed = 0;
    for (uint32_t run = 1; run <= allocator->count; run++) {
        const md_run *at = &allocator->runs[run - 1];
        pages += at->page_count;
        if (at->page_count == 0 || table_get(allocator, allocator->by_start, at->page) != run ||
            table_get(allocator, allocator->by_end, run_end(at)) != run)
            return __LINE__;
        /* Neighbours would have been joined. */
        if (table_get(allocator, allocator->by_start, run_end(at)) != 0)
            return __LINE__;
    }
    if (pages != allocator->pages_free)
        return __LINE__;
    for (uint32_t class = 0; class < MD_SIZE_CLASSES; class++) {
        if ((allocator->lists[class] != 0) != (allocator->classes[class / 64] >> class % 64 & 1))
            return __LINE__;
        uint32_t previous = 0;
        for (uint32_t run = allocator->lists[class]; run != 0;
             run = allocator->runs[run - 1].next) {
            if (run > allocator->count || allocator->runs[run - 1].previous != previous ||
                class_of(allocator->runs[run - 1].page_count) != class)
                return __LINE__;
            previous = run;
            listed++;
        }
    }
    return listed == allocator->count ? 0 : __LINE__;
}
