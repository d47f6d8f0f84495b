/* One segment: payload, a generation word a page, use counts, the inventory.
 *
 * The payload and the words are files, so that readers on this host map them; use counts are memory of this
 * process.  Pages count as there (pages_ready) only after fallocate has succeeded for payload and words, so
 * no access to a granted page can fail for want of space.
 */
#ifndef ST_SEGMENT_H
#define ST_SEGMENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "ms_wire.h"
#include "st_file.h"
#include "st_geometry.h"
#include "st_inventory.h"

/* A use count: writers (copies into the extent) above, readers and views below.  An extent that is granted
 * has no reader of its version, and SEAL asks for writers alone *(record_check)*. */
#define ST_USE_READER 1u
#define ST_USE_READERS 0x000fffffu
#define ST_USE_READERS_MAX                                                                         \
    0x00080000u /* beyond: LIMIT; room for those that are about to find out */
#define ST_USE_WRITER 0x00100000u
#define ST_USE_WRITERS_MAX 0xfff00000u

typedef struct st_segment {
    struct st_server *server;
    uint32_t number;
    bool is_huge; /* on hugetlbfs */
    uint64_t page_count;
    uint64_t grow_pages; /* growth comes in multiples of this many pages */
    _Atomic uint64_t pages_ready;
    uint8_t *payload;
    _Atomic uint64_t *words;             /* stored under the server's lock */
    _Atomic uint32_t *uses;              /* of the extent that begins at a page */
    uint64_t payload_bytes, words_bytes; /* mapped */
    int payload_descriptor, words_descriptor;
    st_geometry_file *geometry;
    char payload_path[ST_PATH_BYTES], words_path[ST_PATH_BYTES];
    st_inventory *inventory;
} st_segment;

typedef struct st_segment_options {
    const char *folder;
    const char *hugetlb_dir; /* NULL = payload beside the rest */
    const char *name;        /* of the node: names the file in hugetlb_dir */
    uint32_t number;
    uint64_t page_count;
    uint64_t version_max; /* of an object that can be there: the adopted epoch's last */
    uint8_t boot_id[16];
    bool huge_pages;
    bool keep_size;           /* page_count is for new files only */
    const char *fresh_reason; /* not NULL: what is there does not count, and why */
} st_segment_options;

/* What an open has found of an earlier process. */
typedef struct st_segment_found {
    bool is_kept;
    const char *
        lost_reason; /* there were files, and this is why they do not count; NULL: there were none */
    uint64_t
        page_count; /* kept: of the pool then, which may be larger than what was asked for now */
    uint64_t words_settled; /* said "live" without a record, or what cannot be */
    bool is_cut;            /* a file was shorter than it has to be */
    st_inventory_repair repair;
} st_segment_found;

/* Takes up the files that an earlier process left, if they are whole enough, else makes new ones with no page
 * ready.  *warning: a sentence when huge pages were asked for in vain, else empty. */
ms_status st_segment_open(const st_segment_options *options, st_segment *segment,
                          st_segment_found *found, char *warning, char *error);
/* `pages` more pages become ready, or fewer at the end.  NO_SPACE: the file system is full. */
ms_status st_segment_grow(st_segment *segment, uint64_t pages);
/* Maps pages [from, from + pages) that are there already, so that nobody's copy pays for it. */
void st_segment_populate(st_segment *segment, uint64_t from, uint64_t pages);
/* keep_files: for the next process, as they are. */
void st_segment_close(st_segment *segment, bool keep_files);
/* Makes the words of files that an earlier process left say "nothing is live" to whoever still maps them,
 * and removes the files.  True: there were some. */
bool st_segment_erase(const char *folder, const char *hugetlb_dir, const char *name);

/* kept.c: the files of an earlier process. */
/* Opens and maps them.  NULL, or why they do not count; *segment is then to be closed. */
const char *st_kept_open(const st_segment_options *options, st_segment *segment,
                         st_segment_found *found);
/* No word may say "live" that no record agrees with, and none may be newer than any version: a page with such
 * a word could never be granted again. */
uint64_t st_kept_settle(st_segment *segment, uint64_t version_max);
/* segment.c, for kept.c */
ms_status st_segment_map(st_segment *segment);

static inline uint64_t st_word(const st_segment *segment, uint32_t page) {
    return atomic_load_explicit(&segment->words[page], memory_order_acquire);
}

/* Whether pages [page, page + count) are there. */
static inline bool st_pages_are_ready(const st_segment *segment, uint32_t page, uint32_t count) {
    return count != 0 && (uint64_t)page + count <=
                             atomic_load_explicit(&segment->pages_ready, memory_order_acquire);
}

#endif
