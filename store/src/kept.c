/* The files that an earlier process left: whether they can be taken up, and what their words may say.
 *
 * Nothing here trusts them.  A file is used as far as it reaches; a word counts only with a record that agrees
 * (inventory.c).  What cannot be decided page by page (no geometry, another boot, holes in the payload) ends in
 * a new segment with files of its own, so that a process which still maps the old ones keeps what it sees.
 */
#include <fcntl.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "st_segment.h"
#include "st_step.h"

static uint64_t round_up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

static int open_own(const char *path, struct stat *state) {
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && (fstat(fd, state) != 0 || !S_ISREG(state->st_mode) ||
                    state->st_uid != geteuid() || (state->st_mode & 077) != 0)) {
        close(fd);
        return -1;
    }
    return fd;
}

/* On tmpfs a block that is missing reads as zeros and says nothing. */
static bool has_holes(int fd, const struct stat *state, uint64_t allocated_bytes) {
    struct statfs system;
    return fstatfs(fd, &system) == 0 && (uint64_t)system.f_type == TMPFS_MAGIC &&
           (uint64_t)state->st_blocks * 512 < smaller(allocated_bytes, (uint64_t)state->st_size);
}

/* The files reach over the whole pool again, also where it is larger than it was. */
static bool stretch(const st_segment *segment, const struct stat *payload,
                    const struct stat *words) {
    return ((uint64_t)payload->st_size >= segment->payload_bytes ||
            ftruncate(segment->payload_descriptor, (off_t)segment->payload_bytes) == 0) &&
           ((uint64_t)words->st_size >= segment->words_bytes ||
            ftruncate(segment->words_descriptor, (off_t)segment->words_bytes) == 0);
}

const char *st_kept_open(const st_segment_options *options, st_segment *segment,
                         st_segment_found *found) {
    st_geometry geometry;
    const char *reason = NULL;
    if (st_geometry_open(options->folder, options->number, &geometry, &segment->geometry,
                         &reason) != MS_OK)
        return reason;
    if (memcmp(geometry.boot_id, options->boot_id, sizeof geometry.boot_id) != 0)
        return "the host has been booted since";
    if (geometry.is_huge != segment->is_huge)
        return "the payload lies elsewhere now";
    struct stat payload, words;
    segment->payload_descriptor = open_own(segment->payload_path, &payload);
    segment->words_descriptor = open_own(segment->words_path, &words);
    if (segment->payload_descriptor < 0 || segment->words_descriptor < 0)
        return "a file of the pool is missing or not ours alone";

    uint64_t told = st_geometry_ready(segment->geometry);
    if (told > geometry.page_count)
        return "the file that says what they are contradicts itself";
    uint64_t there = smaller(told, smaller((uint64_t)payload.st_size / MS_PAGE_SIZE,
                                           (uint64_t)words.st_size / sizeof(uint64_t)));
    uint64_t allocated = round_up(told, segment->grow_pages); /* growth comes in whole steps */
    if (has_holes(segment->payload_descriptor, &payload, allocated * MS_PAGE_SIZE) ||
        has_holes(segment->words_descriptor, &words, allocated * sizeof(uint64_t)))
        return "a file of the pool has holes";
    found->is_cut = there < told;
    found->page_count = geometry.page_count;
    /* Never shrunk: readers map it, and objects may lie anywhere. */
    if (options->keep_size || geometry.page_count > segment->page_count)
        segment->page_count = geometry.page_count;
    uint64_t pages = round_up(segment->page_count, segment->grow_pages);
    segment->payload_bytes = pages * MS_PAGE_SIZE;
    segment->words_bytes = round_up(pages * sizeof(uint64_t), MS_PAGE_SIZE);
    if (!stretch(segment, &payload, &words) || st_segment_map(segment) != MS_OK)
        return "they cannot be mapped";
    geometry.page_count = segment->page_count;
    if (segment->page_count != found->page_count &&
        st_geometry_resize(options->folder, options->number, &geometry, &segment->geometry) !=
            MS_OK)
        return "the pool's new size cannot be kept";
    st_geometry_set_ready(segment->geometry, there);
    atomic_store(&segment->pages_ready, there);
    return NULL;
}

uint64_t st_kept_settle(st_segment *segment, uint64_t version_max) {
    uint64_t settled = 0;
    off_t end = (off_t)segment->words_bytes;
    /* Where the file has no blocks the words are 0, and reading them would make blocks. */
    for (off_t from = lseek(segment->words_descriptor, 0, SEEK_DATA); from >= 0 && from < end;) {
        off_t to = lseek(segment->words_descriptor, from, SEEK_HOLE);
        if (to <= from || to > end)
            to = end;
        uint64_t last = (uint64_t)to / sizeof(uint64_t);
        for (uint64_t page = (uint64_t)from / sizeof(uint64_t); page < last; page++) {
            uint64_t word = atomic_load_explicit(&segment->words[page], memory_order_relaxed);
            st_extent extent;
            if (word >> 1 > version_max) {
                atomic_store(&segment->words[page], 0); /* no record of it counts */
                settled++;
            } else if ((word & 1) != 0 &&
                       (page >= UINT32_MAX ||
                        !st_inventory_find(segment->inventory, (uint32_t)page, &extent))) {
                atomic_store(&segment->words[page], word & ~UINT64_C(1));
                settled++;
            }
        }
        ST_STEP("kept: settled");
        from = lseek(segment->words_descriptor, to, SEEK_DATA);
    }
    return settled;
}
