/* Memory of one item in several pieces: read and written in order, as if it were one. */
#ifndef CL_PIECES_H
#define CL_PIECES_H

#include "cl_internal.h"
#include "ms_crc32c.h"

typedef struct cl_cursor {
    const struct iovec *piece, *end;
    size_t offset;      /* in *piece */
    struct iovec whole; /* of an item in one piece */
} cl_cursor;

static inline void cl_cursor_open(cl_cursor *cursor, const cl_item *item) {
    cursor->offset = 0;
    if (item->pieces != NULL) {
        cursor->piece = item->pieces;
        cursor->end = item->pieces + item->piece_count;
    } else {
        cursor->whole = (struct iovec){.iov_base = item->memory, .iov_len = item->size};
        cursor->piece = &cursor->whole;
        cursor->end = cursor->piece + 1;
    }
}

/* The next run of at most `length` bytes; NULL at the end.  A run of an empty item is one empty run. */
static inline uint8_t *cl_cursor_next(cl_cursor *cursor, uint64_t length, uint64_t *run) {
    while (cursor->piece < cursor->end && cursor->offset == cursor->piece->iov_len && length > 0) {
        cursor->piece++;
        cursor->offset = 0;
    }
    if (cursor->piece >= cursor->end) {
        *run = 0;
        return NULL;
    }
    uint64_t left = cursor->piece->iov_len - cursor->offset;
    *run = left < length ? left : length;
    uint8_t *at = (uint8_t *)cursor->piece->iov_base + cursor->offset;
    cursor->offset += *run;
    return at;
}

/* CRC32C of the item's first `length` bytes. */
static inline uint32_t cl_item_checksum(const cl_item *item, uint64_t length) {
    cl_cursor cursor;
    cl_cursor_open(&cursor, item);
    uint32_t checksum = 0;
    while (length > 0) {
        uint64_t run;
        const uint8_t *bytes = cl_cursor_next(&cursor, length, &run);
        checksum = ms_crc32c(checksum, bytes, run);
        length -= run;
    }
    return checksum;
}

/* Upper bound of runs when `extents` extents meet the item's pieces. */
static inline size_t cl_runs_max(const cl_item *item, size_t extents) {
    return extents + (item->pieces != NULL && item->piece_count > 1 ? item->piece_count - 1 : 0);
}

#endif
