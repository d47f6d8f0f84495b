// sources: master/src/metadata/allocator.c master/src/metadata/memory.c
// variants: plain address
// timeout: 120
/* The extent allocator against a map of pages. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "md_allocator.h"
#include "md_memory.h"

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define PAGES 4000u
#define TAKEN_MAX 4000u

static uint64_t state;

static uint32_t chance(uint32_t below) {
    state += 0x9e3779b97f4a7c15u;
    return (uint32_t)(md_mix(state) % below);
}

typedef struct taken {
    uint32_t count;
    ms_extent extents[MS_EXTENTS_MAX];
} taken;

/* Takes and gives at random; every page is free or taken, never both, and all are free in the end. */
static void random_takes(uint64_t seed) {
    static bool is_taken[PAGES];
    static taken all[TAKEN_MAX];
    uint32_t all_count = 0, pages_taken = 0;
    md_allocator allocator;
    md_allocator_open(&allocator);
    memset(is_taken, 0, sizeof is_taken);
    state = seed;
    EXPECT(md_allocator_give(&allocator, 0, PAGES));
    uint32_t size_max = 1 + chance(seed % 3 == 0 ? 4 : 400);
    for (uint32_t step = 0; step < 4000; step++) {
        bool takes = chance(100) < (step / 500 % 2 == 0 ? 70u : 30u);
        if (takes && all_count < TAKEN_MAX) {
            taken *one = &all[all_count];
            uint32_t wanted = 1 + chance(size_max), sum = 0;
            uint32_t limit = chance(4) == 0 ? 1 + chance(3) : MS_EXTENTS_MAX;
            bool fits = md_allocator_fits(&allocator, wanted, limit);
            one->count = md_allocator_take(&allocator, wanted, one->extents, limit);
            EXPECT(fits == (one->count != 0) && one->count <= limit);
            if (one->count == 0)
                continue;
            for (uint32_t i = 0; i < one->count; i++) {
                sum += one->extents[i].page_count;
                for (uint32_t page = 0; page < one->extents[i].page_count; page++) {
                    EXPECT(one->extents[i].page + page < PAGES &&
                           !is_taken[one->extents[i].page + page]);
                    is_taken[one->extents[i].page + page] = true;
                }
            }
            EXPECT(sum == wanted);
            pages_taken += sum;
            all_count++;
        } else if (all_count > 0) {
            uint32_t which = chance(all_count);
            for (uint32_t i = 0; i < all[which].count; i++) {
                ms_extent extent = all[which].extents[i];
                EXPECT(md_allocator_give(&allocator, extent.page, extent.page_count));
                memset(is_taken + extent.page, 0, extent.page_count);
                pages_taken -= extent.page_count;
            }
            all[which] = all[--all_count];
        }
        EXPECT(allocator.pages_free == PAGES - pages_taken);
        if (step % 64 == 0)
            EXPECT(md_allocator_check(&allocator) == 0);
    }
    while (all_count-- > 0)
        for (uint32_t i = 0; i < all[all_count].count; i++)
            EXPECT(md_allocator_give(&allocator, all[all_count].extents[i].page,
                                     all[all_count].extents[i].page_count));
    EXPECT(md_allocator_check(&allocator) == 0);
    EXPECT(allocator.count == 1 && md_allocator_largest(&allocator) == PAGES);
    md_allocator_close(&allocator);
}

/* A run that is large enough is used, and the smallest class that has one, before an object is cut in pieces. */
static void takes_one_piece_where_it_can(void) {
    md_allocator allocator;
    ms_extent extents[MS_EXTENTS_MAX];
    md_allocator_open(&allocator);
    for (uint32_t i = 0; i < 50; i++)
        EXPECT(md_allocator_give(&allocator, i * 10, 4));
    EXPECT(md_allocator_give(&allocator, 1000, 64));
    EXPECT(md_allocator_give(&allocator, 2000, 1000));
    EXPECT(md_allocator_take(&allocator, 3, extents, MS_EXTENTS_MAX) == 1 && extents[0].page < 500);
    EXPECT(md_allocator_take(&allocator, 60, extents, MS_EXTENTS_MAX) == 1 &&
           extents[0].page == 1000);
    EXPECT(md_allocator_take(&allocator, 1000, extents, MS_EXTENTS_MAX) == 1 &&
           extents[0].page == 2000);
    /* Only pieces of 4 are left, and one of 1. */
    EXPECT(md_allocator_take(&allocator, 40, extents, 9) == 0);
    EXPECT(md_allocator_take(&allocator, 40, extents, 10) == 10);
    EXPECT(md_allocator_take(&allocator, 1000, extents, MS_EXTENTS_MAX) == 0);
    EXPECT(md_allocator_check(&allocator) == 0);
    md_allocator_close(&allocator);
}

/* As many runs as there can be, and back: the arrays shrink again. */
static void memory_follows_the_number_of_runs(void) {
    md_allocator allocator;
    const uint32_t pages = 400000;
    md_allocator_open(&allocator);
    for (uint32_t page = 0; page < pages; page += 2)
        EXPECT(md_allocator_give(&allocator, page, 1));
    EXPECT(allocator.count == pages / 2 && allocator.capacity >= pages / 2);
    for (uint32_t page = 1; page < pages; page += 2)
        EXPECT(md_allocator_give(&allocator, page, 1));
    EXPECT(allocator.count == 1 && allocator.capacity <= 1024 && allocator.table_capacity <= 2048);
    EXPECT(md_allocator_check(&allocator) == 0);
    md_allocator_close(&allocator);
}

/* Without memory nothing changes, and the same call succeeds later. */
static void without_memory_nothing_changes(void) {
    for (uint64_t after = 1; after < 40; after++) {
        md_allocator allocator;
        md_allocator_open(&allocator);
        md_memory_fail_after(after);
        for (uint32_t page = 0; page < 20000; page += 2)
            if (!md_allocator_give(&allocator, page, 1)) {
                EXPECT(md_allocator_check(&allocator) == 0 && allocator.pages_free == page / 2);
                EXPECT(md_allocator_give(&allocator, page, 1));
            }
        md_memory_fail_after(0);
        EXPECT(md_allocator_check(&allocator) == 0 && allocator.count == 10000);
        md_allocator_close(&allocator);
    }
}

int main(void) {
    for (uint64_t seed = 1; seed <= 40; seed++)
        random_takes(seed);
    takes_one_piece_where_it_can();
    memory_follows_the_number_of_runs();
    without_memory_nothing_changes();
    return 0;
}
