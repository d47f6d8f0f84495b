/* Pages of a peer's file that have memory, mapped before somebody reads them. */
#include <errno.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "te_parts.h"

#include "te_fault.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif
/* At 80 us a MiB (measured) a step holds the address space's lock for less than a millisecond. */
#define POPULATE_STEP ((uint64_t)8 << 20)

typedef struct range {
    uint64_t first, end;
} range;

/* The kernel tells of huge pages (hugetlbfs) that all of them have memory, whether they have or not. */
static bool has_small_pages(int descriptor, uint64_t page) {
    struct stat file;
    return fstat(descriptor, &file) == 0 && (uint64_t)file.st_blksize <= page;
}

/* The pages from `within.first` on that have memory now; none of them: an empty range at its end.  Asking for the end of
 * what has memory (SEEK_HOLE) would visit all pages up to there: at each step that is quadratic, and what was told
 * at the first need not be so gigabytes later. */
static range resident(const uint8_t *bytes, range within, uint64_t page) {
    unsigned char is_there[POPULATE_STEP / MS_PAGE_SIZE];
    uint64_t count = (within.end - within.first + page - 1) / page, skipped = 0, taken = 0;
    if (mincore((void *)(uintptr_t)(bytes + within.first), (size_t)(within.end - within.first),
                is_there) != 0)
        return within;
    while (skipped < count && !(is_there[skipped] & 1))
        skipped++;
    while (skipped + taken < count && is_there[skipped + taken] & 1)
        taken++;
    range found = {within.first + skipped * page, within.first + (skipped + taken) * page};
    if (taken == 0 || found.end > within.end)
        found.end = within.end;
    if (taken == 0)
        found.first = found.end;
    return found;
}

bool te_populate_step(const void *address, int descriptor, uint64_t start, uint64_t length,
                      uint64_t *done) {
    long asked = sysconf(_SC_PAGESIZE);
    uint64_t page = asked > (long)MS_PAGE_SIZE ? (uint64_t)asked : MS_PAGE_SIZE;
    if (*done >= length)
        return false;
    /* A read fault on a hole of a tmpfs file gives it memory, and what the peer has not touched yet stays so. */
    off_t data = lseek(descriptor, (off_t)(start + *done), SEEK_DATA);
    if (data < 0) /* ENXIO: nothing but holes up to the end */
        return false;
    range step = {.first = (uint64_t)data / page * page - start};
    if (step.first >= length)
        return false;
    step.end = length - step.first < POPULATE_STEP ? length : step.first + POPULATE_STEP;
    const uint8_t *bytes = address;
    if (has_small_pages(descriptor, page))
        step = resident(bytes, step, page);
    *done = step.end;
    if (step.first == step.end || madvise((void *)(uintptr_t)(bytes + step.first),
                                          (size_t)(step.end - step.first), MADV_POPULATE_READ) == 0)
        return step.end < length;
    if (errno != EINVAL)
        return false;
    /* Before Linux 5.14: one access a page. */
    for (uint64_t at = step.first; at < step.end; at += page)
        (void)*(const volatile uint8_t *)(bytes + at);
    return step.end < length;
}
