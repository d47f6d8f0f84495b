/* What a segment holds: one record for each live extent, in logs beside the payload.
 *
 * A log is append-only: commit, note and free records, each a length, a checksum (CRC32C) and a body.  It is
 * mapped, so an append is a store and survives the process.  The generation words, not the logs, say what is
 * live (a commit counts if its word is (version, live)), so a lost free record does no harm, and a restart
 * cuts a log at its first bad record *(truncate)*.  What it finds there may be anything: a log that a dying
 * process tore, a damaged file, somebody's bytes.
 *
 * There is one log for each 16,384 pages.  Compaction writes a second file with the live records and renames
 * it, in one step under the caller's lock *(compact_alone)*; small logs keep that step to a few ms.
 *
 * Not thread-safe: the server's lock protects it.
 */
#ifndef ST_INVENTORY_H
#define ST_INVENTORY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "ms_wire.h"

#define ST_LOG_PAGES 16384u

typedef struct st_inventory st_inventory;

/* A live extent.  The tenant and key are valid until the next call that changes the inventory. */
typedef struct st_extent {
    uint64_t version;
    uint64_t note; /* number of the newest note, whose expiry and flags these are */
    uint64_t size, expiry_ms, group;
    ms_hash hash, parent;
    uint32_t page, page_count;
    uint32_t checksum;
    uint16_t part, part_count;
    uint16_t key_length;
    uint8_t tenant_length, flags;
    const uint8_t *tenant, *key;
} st_extent;

typedef struct st_inventory_options {
    const char *folder;
    uint32_t segment;
    uint64_t page_count;
    uint64_t pages_there; /* of the pages that an earlier process had: what lies beyond is lost */
    uint64_t version_max; /* a newer one was never given out */
    const _Atomic uint64_t *words;
} st_inventory_options;

/* What reading the logs has found. */
typedef struct st_inventory_repair {
    uint64_t logs_cut;  /* ended in something that is no record */
    uint64_t bytes_cut; /* behind the last good record of those */
    uint64_t
        dropped; /* whole records that cannot be true: beyond the segment, over another extent */
} st_inventory_repair;

/* Reads the logs that lie in the folder, as far as they are whole and agree with the words. */
ms_status st_inventory_open(const st_inventory_options *options, st_inventory_repair *repair,
                            st_inventory **inventory);
void st_inventory_close(st_inventory *inventory);
/* Removes the logs of a segment in a folder: nothing is to be found again. */
void st_inventory_erase(const char *folder);

/* File system that is set aside for a pool of so many pages: for each 64 MiB of it 256 KiB, which is enough where
 * objects have 44 KiB or more, and a spare file in which a log can be compacted when no other can be made. */
uint64_t st_inventory_reserve_bytes(uint64_t page_count);
/* Sets it aside for the first `page_count` pages.  NO_SPACE: not for all. */
ms_status st_inventory_extend(st_inventory *inventory, uint64_t page_count);
/* Makes sure that the extent's commit can be appended; may compact.  NO_SPACE: the file system is full. */
ms_status st_inventory_reserve(st_inventory *inventory, const st_extent *extent);
/* Right after st_inventory_reserve: cannot fail. */
void st_inventory_commit(st_inventory *inventory, const st_extent *extent);
/* A note of the live extent at `page`, newer than its newest.  NO_SPACE as above. */
ms_status st_inventory_note(st_inventory *inventory, uint32_t page, uint64_t note,
                            uint64_t expiry_ms, uint8_t flags);
/* The extent at `page` is live no more; its word has been cleared before *(generation_first)*. */
void st_inventory_free(st_inventory *inventory, uint32_t page, uint64_t version);

/* The live extent whose first page this is. */
bool st_inventory_find(const st_inventory *inventory, uint32_t page, st_extent *extent);
/* The first live extent at or after *page; *page becomes the one behind its first.  False: no more. */
bool st_inventory_next(const st_inventory *inventory, uint64_t *page, st_extent *extent);

uint64_t st_inventory_count(const st_inventory *inventory);
uint64_t st_inventory_live_pages(const st_inventory *inventory);
uint64_t st_inventory_bytes(const st_inventory *inventory); /* of the logs' files */
uint64_t st_inventory_compactions(const st_inventory *inventory);

#endif
