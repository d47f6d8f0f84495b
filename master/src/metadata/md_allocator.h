/* Free runs of pages of one segment: a good fit in constant time (Masmano et al., "TLSF", ECRTS 2004).
 *
 * Runs lie side by side in one array, which shrinks with their number: a removed run's place is taken by the
 * last.  Each is in the list of its size class and in two hash tables, by its first page and by the page
 * after its last, through which a run that is given back finds its neighbours.
 */
#ifndef MD_ALLOCATOR_H
#define MD_ALLOCATOR_H

#include <stdbool.h>
#include <stdint.h>

#include "ms_wire.h"

#define MD_SIZE_CLASSES 256u

typedef struct md_run {
    uint32_t page, page_count;
    uint32_t next, previous; /* in its class, + 1 */
} md_run;

typedef struct md_allocator {
    md_run *runs;
    uint32_t count, capacity;
    uint32_t *by_start, *by_end; /* open addressing: run + 1, or 0 */
    uint32_t table_capacity;
    uint64_t pages_free;
    uint32_t lists[MD_SIZE_CLASSES]; /* run + 1 */
    uint64_t classes[MD_SIZE_CLASSES / 64];
} md_allocator;

void md_allocator_open(md_allocator *allocator);
void md_allocator_close(md_allocator *allocator);
/* Pages become free; they join the runs beside them.  false: no memory, nothing has changed. */
bool md_allocator_give(md_allocator *allocator, uint32_t page, uint32_t page_count);
/* Takes page_count pages in as few extents as it can find, at most extents_max; their number, or 0. */
uint32_t md_allocator_take(md_allocator *allocator, uint32_t page_count, ms_extent *extents,
                           uint32_t extents_max);
/* Whether md_allocator_take would find them. */
bool md_allocator_fits(const md_allocator *allocator, uint32_t page_count, uint32_t extents_max);
uint32_t md_allocator_largest(const md_allocator *allocator);
/* 0, or the line of the check that failed. */
int md_allocator_check(const md_allocator *allocator);

#endif
