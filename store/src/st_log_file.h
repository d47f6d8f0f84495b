/* The file of one log (inventory.c), mapped.  All of it has blocks, so that an append is a store. */
#ifndef ST_LOG_FILE_H
#define ST_LOG_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "ms_wire.h"

#define ST_LOG_MAGIC 0x314c5453u /* "STL1" */
#define ST_LOG_HEAD_BYTES 16u
#define ST_LOG_BYTES_MIN (64u << 10)
#define ST_LOG_UNIT 8u /* records begin at multiples of this; the index counts in it */

typedef struct st_log {
    uint8_t *data; /* NULL = no file yet */
    size_t size, tail;
    size_t live_bytes; /* what compaction would keep */
} st_log;

/* Maps a file that has blocks for all of `size`.  No descriptor is kept: a large pool has thousands of logs. */
ms_status st_log_map(st_log *log, int descriptor, size_t size);
void st_log_unmap(st_log *log);
/* A new file with room for `size` bytes and no record.  NO_SPACE: the file system is full. */
ms_status st_log_create(const char *path, size_t size, st_log *log);
/* Another file's blocks, mapped: `tail` says how far they may hold something. */
ms_status st_log_reuse(const char *path, size_t size, st_log *log);
/* Blocks that were a log's become one with no record. */
void st_log_clear(st_log *log);
/* `needed` more bytes fit behind the tail.  NO_SPACE as above. */
ms_status st_log_grow(st_log *log, const char *path, size_t needed);
/* The blocks beyond `size` are given back.  IO_ERROR: that failed, and nothing is mapped any more. */
ms_status st_log_shrink(st_log *log, const char *path, size_t size);

#endif
