#include "st_inventory.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ms_crc32c.h"
#include "st_file.h"
#include "st_log_file.h"
#include "st_step.h"

#define UNIT ST_LOG_UNIT
#define LOG_HEAD_BYTES ST_LOG_HEAD_BYTES
#define RESERVE_BYTES_PER_PAGE 16u /* of a log, whatever its extents' keys: 256 KiB for 64 MiB */
#define SPARE_FACTOR 4u            /* a log takes a spare file of so many times what it needs */

enum record_kind { RECORD_COMMIT = 1, RECORD_NOTE = 2, RECORD_FREE = 3 };

typedef struct record_head {
    uint32_t length;   /* of the whole record, a multiple of UNIT; 0 = the end */
    uint32_t checksum; /* CRC32C of the record with this field 0 */
    uint8_t kind, flags, tenant_length, zero;
    uint16_t key_length, zero2;
    uint32_t page, page_count;
    uint64_t version;
} record_head;
_Static_assert(sizeof(record_head) == 32, "on disk");

typedef struct record_commit {
    record_head head;
    uint64_t size, expiry_ms, note, group;
    ms_hash hash, parent;
    uint32_t checksum;
    uint16_t part, part_count;
} record_commit;
_Static_assert(sizeof(record_commit) == 104, "on disk");

typedef struct record_note {
    record_head head;
    uint64_t note, expiry_ms;
    uint32_t commit; /* where the extent's commit is, in units */
    uint32_t zero;
} record_note;
_Static_assert(sizeof(record_note) == 56, "on disk");

struct st_inventory {
    char folder[ST_PATH_BYTES];
    uint32_t segment;
    uint64_t page_count;
    st_log *logs;
    size_t log_count;
    /* Newest record (commit or note) of the live extent that begins at a page, in units; 0 = none.
     * Untouched parts of it take no memory. */
    uint32_t *index;
    uint64_t count, live_pages, compactions;
    /* Of the file that is ready for the next compaction, mapped too, as puts wait for that.  Its records do not count. */
    st_log spare;
    bool cannot_exchange; /* two names, as some file systems */
};

static const record_head *head_at(const st_log *log, uint32_t units) {
    return (const record_head *)(const void *)(log->data + (size_t)units * UNIT);
}

static uint64_t unit_at(const st_log *log, size_t offset) {
    return *(const uint64_t *)(const void *)(log->data + offset);
}

static st_log *log_of(const st_inventory *inventory, uint32_t page) {
    return &inventory->logs[page / ST_LOG_PAGES];
}

static size_t commit_bytes(size_t tenant_length, size_t key_length) {
    return (sizeof(record_commit) + tenant_length + key_length + UNIT - 1) / UNIT * UNIT;
}

static uint32_t checksum_of(const record_head *head) {
    record_head start = *head;
    start.checksum = 0;
    return ms_crc32c(ms_crc32c(0, &start, sizeof start), head + 1, head->length - sizeof *head);
}

/* Whether a whole record of this log lies at `tail`. */
static bool record_is_good(const st_log *log, size_t log_index, size_t tail) {
    if (log->size - tail < sizeof(record_head))
        return false;
    const record_head *head = head_at(log, (uint32_t)(tail / UNIT));
    if (head->length < sizeof *head || head->length % UNIT != 0 || head->length > log->size - tail)
        return false;
    size_t least;
    switch (head->kind) {
    case RECORD_COMMIT:
        least = commit_bytes(head->tenant_length, head->key_length);
        break;
    case RECORD_NOTE:
        least = sizeof(record_note);
        break;
    case RECORD_FREE:
        least = sizeof(record_head);
        break;
    default:
        return false;
    }
    return head->length == least && head->page / ST_LOG_PAGES == log_index &&
           head->checksum == checksum_of(head);
}

/* Whether a whole commit can be true; a bug or an enemy wrote it if not, and it alone is dropped. */
static bool commit_makes_sense(const st_inventory_options *options, const record_commit *commit) {
    const record_head *head = &commit->head;
    return head->version != 0 && head->version <= options->version_max && head->page_count != 0 &&
           (uint64_t)head->page + head->page_count <= options->pages_there &&
           head->tenant_length <= MS_TENANT_BYTES_MAX && head->key_length != 0 &&
           head->key_length <= MS_KEY_BYTES_MAX && commit->part < commit->part_count &&
           commit->part_count <= MS_EXTENTS_MAX && commit->size <= MS_VALUE_BYTES_MAX;
}

static bool log_path(const st_inventory *inventory, size_t log_index, const char *suffix,
                     char path[ST_PATH_BYTES]) {
    int length = snprintf(path, ST_PATH_BYTES, "%s/inventory-%u-%06zu%s", inventory->folder,
                          inventory->segment, log_index, suffix);
    return length > 0 && length < ST_PATH_BYTES;
}

static bool spare_path(const st_inventory *inventory, char path[ST_PATH_BYTES]) {
    int length = snprintf(path, ST_PATH_BYTES, "%s/inventory-%u-spare", inventory->folder,
                          inventory->segment);
    return length > 0 && length < ST_PATH_BYTES;
}

/* ---- the records of one log ------------------------------------------------------------------------- */

/* The commit behind an index entry, which may be that of a note. */
static const record_commit *commit_behind(const st_log *log, uint32_t units) {
    const record_head *head = head_at(log, units);
    if (head->kind == RECORD_NOTE)
        head = head_at(log, ((const record_note *)(const void *)head)->commit);
    return (const record_commit *)(const void *)head;
}

static void extent_from(const st_log *log, uint32_t units, st_extent *out) {
    const record_head *newest = head_at(log, units);
    const record_commit *commit = commit_behind(log, units);
    *out = (st_extent){.version = commit->head.version,
                       .note = commit->note,
                       .size = commit->size,
                       .expiry_ms = commit->expiry_ms,
                       .group = commit->group,
                       .hash = commit->hash,
                       .parent = commit->parent,
                       .page = commit->head.page,
                       .page_count = commit->head.page_count,
                       .checksum = commit->checksum,
                       .part = commit->part,
                       .part_count = commit->part_count,
                       .key_length = commit->head.key_length,
                       .tenant_length = commit->head.tenant_length,
                       .flags = commit->head.flags,
                       .tenant = (const uint8_t *)(commit + 1),
                       .key = (const uint8_t *)(commit + 1) + commit->head.tenant_length};
    if (newest->kind == RECORD_NOTE) {
        const record_note *note = (const record_note *)(const void *)newest;
        out->note = note->note;
        out->expiry_ms = note->expiry_ms;
        out->flags = note->head.flags;
    }
}

/* The body first, the head with the checksum last: a record is there or it is not. */
static void record_finish(record_head *target, record_head head) {
    ST_STEP("record: body");
    target->length = head.length;
    target->kind = head.kind;
    target->flags = head.flags;
    target->tenant_length = head.tenant_length;
    target->zero = 0;
    target->key_length = head.key_length;
    target->zero2 = 0;
    target->page = head.page;
    target->page_count = head.page_count;
    target->version = head.version;
    ST_STEP("record: head");
    target->checksum = checksum_of(target);
    ST_STEP("record: checksum");
}

static void write_commit(uint8_t *at, const st_extent *extent) {
    record_commit *target = (record_commit *)(void *)at;
    size_t length = commit_bytes(extent->tenant_length, extent->key_length);
    uint8_t *tail = (uint8_t *)(target + 1);
    memset(at + length - UNIT, 0, UNIT); /* the padding */
    target->size = extent->size;
    target->expiry_ms = extent->expiry_ms;
    target->note = extent->note;
    target->group = extent->group;
    target->hash = extent->hash;
    target->parent = extent->parent;
    target->checksum = extent->checksum;
    target->part = extent->part;
    target->part_count = extent->part_count;
    memcpy(tail, extent->tenant, extent->tenant_length);
    memcpy(tail + extent->tenant_length, extent->key, extent->key_length);
    record_finish(&target->head, (record_head){.length = (uint32_t)length,
                                               .kind = RECORD_COMMIT,
                                               .flags = extent->flags,
                                               .tenant_length = extent->tenant_length,
                                               .key_length = extent->key_length,
                                               .page = extent->page,
                                               .page_count = extent->page_count,
                                               .version = extent->version});
}

/* ---- compaction --------------------------------------------------------------------------------------- */

/* What a log of these pages has room for before its pages are given out. */
static size_t reserve_of(const st_inventory *inventory, size_t log_index) {
    uint64_t pages = inventory->page_count - (uint64_t)log_index * ST_LOG_PAGES;
    if (pages > ST_LOG_PAGES)
        pages = ST_LOG_PAGES;
    size_t size = (size_t)pages * RESERVE_BYTES_PER_PAGE;
    return (size + ST_LOG_BYTES_MIN - 1) / ST_LOG_BYTES_MIN * ST_LOG_BYTES_MIN;
}

/* False also if somebody has removed it. */
static bool has_spare(st_inventory *inventory, const char *path) {
    if (inventory->spare.data != NULL && access(path, F_OK) != 0)
        st_log_unmap(&inventory->spare);
    return inventory->spare.data != NULL;
}

static ms_status make_spare(st_inventory *inventory) {
    char path[ST_PATH_BYTES];
    st_log *spare = &inventory->spare;
    size_t size = reserve_of(inventory, 0);
    if (!spare_path(inventory, path))
        return MS_BAD_REQUEST;
    if (!has_spare(inventory, path))
        return st_log_create(path, size, spare);
    return spare->size < size ? st_log_grow(spare, path, size - spare->tail) : MS_OK;
}

/* As a log without records; it is the caller's now. */
static bool take_spare(st_inventory *inventory, char path[ST_PATH_BYTES], st_log *fresh) {
    if (!spare_path(inventory, path) || !has_spare(inventory, path))
        return false;
    *fresh = inventory->spare;
    inventory->spare = (st_log){0};
    st_log_clear(fresh);
    return true;
}

/* A second file for `size` bytes: the spare one if that has about this size, because blocks that are there cost a
 * tenth of new ones, and puts wait; or where the file system has no blocks.  The log's file is the next spare one:
 * one that is smaller than the reserve is taken for that in need only. */
static ms_status open_fresh(st_inventory *inventory, size_t log_index, size_t least, size_t size,
                            char path[ST_PATH_BYTES], st_log *fresh, bool *is_spare) {
    *is_spare = !inventory->cannot_exchange && inventory->spare.size >= size &&
                inventory->spare.size / SPARE_FACTOR <= size &&
                inventory->logs[log_index].size >= reserve_of(inventory, 0) &&
                take_spare(inventory, path, fresh);
    if (*is_spare)
        return MS_OK;
    if (!log_path(inventory, log_index, ".new", path))
        return MS_BAD_REQUEST;
    ms_status status = st_log_create(path, size, fresh);
    if (status != MS_NO_SPACE || inventory->spare.size < least)
        return status;
    *is_spare = take_spare(inventory, path, fresh);
    return *is_spare ? MS_OK : MS_NO_SPACE;
}

/* The new file takes the log's name; the old one becomes the spare file (*is_kept), if that was used or is smaller. */
static bool rename_fresh(st_inventory *inventory, const char *fresh_path, const char *path,
                         size_t old_bytes, bool is_spare, bool *is_kept) {
    *is_kept =
        is_spare || (old_bytes > inventory->spare.size && old_bytes >= reserve_of(inventory, 0));
    if (*is_kept && !inventory->cannot_exchange) {
        char spare[ST_PATH_BYTES];
        inventory->cannot_exchange =
            renameat2(AT_FDCWD, fresh_path, AT_FDCWD, path, RENAME_EXCHANGE) != 0;
        if (!inventory->cannot_exchange) {
            *is_kept = is_spare || (spare_path(inventory, spare) && rename(fresh_path, spare) == 0);
            if (!*is_kept)
                unlink(fresh_path);
            return true;
        }
    }
    *is_kept = false;
    return rename(fresh_path, path) == 0;
}

/* What the spare file has beyond the reserve goes to who needs blocks; false: it has no more than that. */
static bool spare_give(st_inventory *inventory) {
    char path[ST_PATH_BYTES];
    size_t reserve = reserve_of(inventory, 0);
    return inventory->spare.size > reserve && spare_path(inventory, path) &&
           st_log_shrink(&inventory->spare, path, reserve) == MS_OK;
}

/* A record as it is, or a commit with its newest note; returns its length. */
static size_t copy_record(const st_log *log, uint32_t units, uint8_t *target) {
    const record_head *head = head_at(log, units);
    if (head->kind == RECORD_COMMIT) {
        memcpy(target, head, head->length);
        return head->length;
    }
    st_extent extent;
    extent_from(log, units, &extent);
    write_commit(target, &extent);
    return commit_bytes(extent.tenant_length, extent.key_length);
}

/* Live records into a second file, each with its newest note *(note_compact)*, then rename. */
static ms_status log_compact(st_inventory *inventory, size_t log_index, size_t needed) {
    st_log *log = &inventory->logs[log_index];
    char path[ST_PATH_BYTES], fresh_path[ST_PATH_BYTES];
    if (!log_path(inventory, log_index, "", path))
        return MS_BAD_REQUEST;
    /* Half as much again, so that the next compaction is as far away as this one was dear. */
    size_t least = LOG_HEAD_BYTES + log->live_bytes + needed;
    size_t size = least + log->live_bytes / 2;
    size = (size + ST_LOG_BYTES_MIN - 1) / ST_LOG_BYTES_MIN * ST_LOG_BYTES_MIN;
    if (size < reserve_of(inventory, log_index))
        size = reserve_of(inventory, log_index);
    st_log fresh = {0};
    bool is_spare;
    ms_status status = open_fresh(inventory, log_index, least, size, fresh_path, &fresh, &is_spare);
    if (status != MS_OK)
        return status;
    uint64_t first = (uint64_t)log_index * ST_LOG_PAGES;
    uint64_t end = first + ST_LOG_PAGES;
    if (end > inventory->page_count)
        end = inventory->page_count;
    for (uint64_t page = first; page < end; page++)
        if (inventory->index[page] != 0)
            fresh.tail += copy_record(log, inventory->index[page], fresh.data + fresh.tail);
    ST_STEP("compact: written");
    bool is_kept;
    if (!rename_fresh(inventory, fresh_path, path, log->size, is_spare, &is_kept)) {
        if (is_spare) {
            inventory->spare = fresh;
        } else {
            st_log_unmap(&fresh);
            unlink(fresh_path);
        }
        return MS_IO_ERROR;
    }
    ST_STEP("compact: renamed");
    /* The same walk again, now that the new file counts: where each record went. */
    size_t at = LOG_HEAD_BYTES;
    for (uint64_t page = first; page < end; page++) {
        if (inventory->index[page] == 0)
            continue;
        inventory->index[page] = (uint32_t)(at / UNIT);
        at += head_at(&fresh, (uint32_t)(at / UNIT))->length;
    }
    fresh.live_bytes = log->live_bytes;
    if (is_kept) {
        st_log_unmap(&inventory->spare);
        inventory->spare = *log;
    } else {
        st_log_unmap(log);
    }
    *log = fresh;
    inventory->compactions++;
    if (is_spare && !is_kept)
        (void)make_spare(inventory); /* of the blocks that the old file had */
    return MS_OK;
}

static ms_status log_room_of(st_inventory *inventory, size_t log_index, size_t needed) {
    st_log *log = &inventory->logs[log_index];
    if (log->data != NULL && log->size - log->tail >= needed)
        return MS_OK;
    char path[ST_PATH_BYTES];
    if (!log_path(inventory, log_index, "", path))
        return MS_BAD_REQUEST;
    if (log->data == NULL)
        return st_log_create(path, ST_LOG_BYTES_MIN, log);
    if (log->live_bytes < (log->tail - LOG_HEAD_BYTES) / 2)
        return log_compact(inventory, log_index, needed);
    ms_status status = st_log_grow(log, path, needed);
    if (status == MS_NO_SPACE && log->live_bytes + needed <= log->tail - LOG_HEAD_BYTES)
        status = log_compact(inventory, log_index, needed);
    return status;
}

static ms_status log_room(st_inventory *inventory, uint32_t page, size_t needed) {
    size_t log_index = page / ST_LOG_PAGES;
    ms_status status = log_room_of(inventory, log_index, needed);
    return status == MS_NO_SPACE && spare_give(inventory)
               ? log_room_of(inventory, log_index, needed)
               : status;
}

/* ---- the reserve ---------------------------------------------------------------------------------------- */

uint64_t st_inventory_reserve_bytes(uint64_t page_count) {
    const st_inventory pool = {.page_count = page_count};
    uint64_t bytes = reserve_of(&pool, 0); /* the spare file */
    for (size_t at = 0; (uint64_t)at * ST_LOG_PAGES < page_count; at++)
        bytes += reserve_of(&pool, at);
    return bytes;
}

/* A log has its reserve. */
static ms_status log_extend(st_inventory *inventory, size_t log_index) {
    st_log *log = &inventory->logs[log_index];
    size_t reserve = reserve_of(inventory, log_index);
    char path[ST_PATH_BYTES];
    if (!log_path(inventory, log_index, "", path))
        return MS_BAD_REQUEST;
    if (log->data == NULL)
        return st_log_create(path, reserve, log);
    return log->size < reserve ? st_log_grow(log, path, reserve - log->tail) : MS_OK;
}

ms_status st_inventory_extend(st_inventory *inventory, uint64_t page_count) {
    ms_status status =
        inventory->spare.size >= reserve_of(inventory, 0) ? MS_OK : make_spare(inventory);
    size_t end = (size_t)((page_count + ST_LOG_PAGES - 1) / ST_LOG_PAGES);
    for (size_t at = 0; status == MS_OK && at < end && at < inventory->log_count; at++) {
        status = log_extend(inventory, at);
        if (status == MS_NO_SPACE && spare_give(inventory))
            status = log_extend(inventory, at);
    }
    return status;
}

/* ---- what the server calls ------------------------------------------------------------------------------ */

ms_status st_inventory_reserve(st_inventory *inventory, const st_extent *extent) {
    return log_room(inventory, extent->page,
                    commit_bytes(extent->tenant_length, extent->key_length));
}

/* The extent at `page` leaves the live set. */
static void forget(st_inventory *inventory, uint32_t page) {
    st_log *log = log_of(inventory, page);
    const record_commit *commit = commit_behind(log, inventory->index[page]);
    log->live_bytes -= commit_bytes(commit->head.tenant_length, commit->head.key_length);
    inventory->live_pages -= commit->head.page_count;
    inventory->index[page] = 0;
    inventory->count--;
}

void st_inventory_commit(st_inventory *inventory, const st_extent *extent) {
    st_log *log = log_of(inventory, extent->page);
    size_t length = commit_bytes(extent->tenant_length, extent->key_length);
    write_commit(log->data + log->tail, extent);
    if (inventory->index[extent->page] != 0)
        forget(inventory, extent->page); /* its free record did not fit */
    inventory->index[extent->page] = (uint32_t)(log->tail / UNIT);
    inventory->count++;
    inventory->live_pages += extent->page_count;
    log->tail += length;
    log->live_bytes += length;
}

ms_status st_inventory_note(st_inventory *inventory, uint32_t page, uint64_t note,
                            uint64_t expiry_ms, uint8_t flags) {
    ms_status status = log_room(inventory, page, sizeof(record_note));
    if (status != MS_OK)
        return status;
    st_log *log = log_of(inventory, page);
    const record_commit *commit = commit_behind(log, inventory->index[page]);
    record_note *target = (record_note *)(void *)(log->data + log->tail);
    target->note = note;
    target->expiry_ms = expiry_ms;
    target->commit = (uint32_t)((size_t)((const uint8_t *)commit - log->data) / UNIT);
    target->zero = 0;
    record_finish(&target->head, (record_head){.length = sizeof *target,
                                               .kind = RECORD_NOTE,
                                               .flags = flags,
                                               .page = page,
                                               .page_count = commit->head.page_count,
                                               .version = commit->head.version});
    inventory->index[page] = (uint32_t)(log->tail / UNIT);
    log->tail += sizeof *target;
    return MS_OK;
}

void st_inventory_free(st_inventory *inventory, uint32_t page, uint64_t version) {
    if (inventory->index[page] == 0)
        return;
    uint32_t page_count =
        commit_behind(log_of(inventory, page), inventory->index[page])->head.page_count;
    forget(inventory, page);
    /* The word says the same, so the record may be missing when there is no room for it. */
    if (log_room(inventory, page, sizeof(record_head)) != MS_OK)
        return;
    st_log *log = log_of(inventory, page);
    record_finish((record_head *)(void *)(log->data + log->tail),
                  (record_head){.length = sizeof(record_head),
                                .kind = RECORD_FREE,
                                .page = page,
                                .page_count = page_count,
                                .version = version});
    log->tail += sizeof(record_head);
}

bool st_inventory_find(const st_inventory *inventory, uint32_t page, st_extent *extent) {
    if (page >= inventory->page_count || inventory->index[page] == 0)
        return false;
    extent_from(log_of(inventory, page), inventory->index[page], extent);
    return true;
}

bool st_inventory_next(const st_inventory *inventory, uint64_t *page, st_extent *extent) {
    for (uint64_t at = *page; at < inventory->page_count; at++) {
        if (at % ST_LOG_PAGES == 0 && inventory->logs[at / ST_LOG_PAGES].live_bytes == 0) {
            at += ST_LOG_PAGES - 1; /* no extents */
            continue;
        }
        if (inventory->index[at] == 0)
            continue;
        extent_from(log_of(inventory, (uint32_t)at), inventory->index[at], extent);
        *page = at + 1;
        return true;
    }
    *page = inventory->page_count;
    return false;
}

uint64_t st_inventory_count(const st_inventory *inventory) { return inventory->count; }

uint64_t st_inventory_live_pages(const st_inventory *inventory) { return inventory->live_pages; }

uint64_t st_inventory_bytes(const st_inventory *inventory) {
    uint64_t bytes = 0;
    for (size_t at = 0; at < inventory->log_count; at++)
        bytes += inventory->logs[at].size;
    return bytes;
}

uint64_t st_inventory_compactions(const st_inventory *inventory) { return inventory->compactions; }

/* ---- start ---------------------------------------------------------------------------------------------- */

/* A loading: what is read, and what has been found so far. */
typedef struct loading {
    st_inventory *inventory;
    const st_inventory_options *options;
    st_inventory_repair *repair;
} loading;

/* One record that was found in a log. */
static void replay(const loading *of, st_log *log) {
    st_inventory *inventory = of->inventory;
    uint32_t units = (uint32_t)(log->tail / UNIT);
    const record_head *head = head_at(log, units);
    if (head->page >= inventory->page_count) {
        of->repair->dropped++;
        return;
    }
    uint32_t newest = inventory->index[head->page];
    if (head->kind == RECORD_COMMIT) {
        if (newest != 0)
            forget(inventory, head->page);
        if (atomic_load(&of->options->words[head->page]) != ms_word(head->version, 1))
            return;
        if (!commit_makes_sense(of->options, (const record_commit *)(const void *)head)) {
            of->repair->dropped++;
            return;
        }
        inventory->index[head->page] = units;
        inventory->count++;
        inventory->live_pages += head->page_count;
        log->live_bytes += head->length;
    } else if (head->kind == RECORD_NOTE && newest != 0) {
        st_extent extent;
        extent_from(log, newest, &extent);
        const record_note *note = (const record_note *)(const void *)head;
        /* The highest number counts *(note_order)*; it must belong to the commit that counts. */
        const record_commit *commit = commit_behind(log, newest);
        if (extent.version == head->version && note->note > extent.note &&
            (size_t)note->commit * UNIT == (size_t)((const uint8_t *)commit - log->data))
            inventory->index[head->page] = units;
    } else if (head->kind == RECORD_FREE && newest != 0 &&
               commit_behind(log, newest)->head.version <= head->version) {
        /* The word was cleared before this was written: one that says "live" is damaged. */
        forget(inventory, head->page);
        of->repair->dropped++;
    }
}

/* A log's file as it was left, mapped; NULL: none that can be one. */
static ms_status log_find(const loading *of, size_t log_index, st_log *log) {
    char path[ST_PATH_BYTES], fresh[ST_PATH_BYTES];
    if (!log_path(of->inventory, log_index, "", path) ||
        !log_path(of->inventory, log_index, ".new", fresh))
        return MS_BAD_REQUEST;
    unlink(fresh); /* of a compaction that did not end */
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? MS_OK : MS_IO_ERROR;
    struct stat state;
    uint32_t magic = 0;
    if (fstat(fd, &state) != 0 || !S_ISREG(state.st_mode)) {
        close(fd);
        return MS_IO_ERROR;
    }
    size_t size = (size_t)state.st_size / UNIT * UNIT;
    if (size < LOG_HEAD_BYTES || size / UNIT > UINT32_MAX ||
        pread(fd, &magic, sizeof magic, 0) != sizeof magic || magic != ST_LOG_MAGIC) {
        if (magic != 0) { /* else: killed before its first record */
            of->repair->logs_cut++;
            of->repair->bytes_cut += size;
        }
        close(fd);
        unlink(path);
        return MS_OK;
    }
    ms_status status = st_log_map(log, fd, size);
    close(fd);
    return status;
}

static ms_status log_load(const loading *of, size_t log_index) {
    st_log *log = &of->inventory->logs[log_index];
    ms_status status = log_find(of, log_index, log);
    if (status != MS_OK || log->data == NULL)
        return status;
    madvise(log->data, log->size, MADV_WILLNEED);
    log->tail = LOG_HEAD_BYTES;
    while (record_is_good(log, log_index, log->tail)) {
        replay(of, log);
        log->tail += head_at(log, (uint32_t)(log->tail / UNIT))->length;
    }
    size_t end = log->size;
    while (end > log->tail && unit_at(log, end - UNIT) == 0)
        end -= UNIT;
    if (end == log->tail)
        return MS_OK;
    of->repair->logs_cut++;
    of->repair->bytes_cut += end - log->tail;
    /* Nothing of a torn record may look like one later. */
    memset(log->data + log->tail, 0, end - log->tail);
    return MS_OK;
}

/* No page belongs to two extents; of two that say so the newer one may be true. */
static void drop_overlaps(const loading *of) {
    st_inventory *inventory = of->inventory;
    uint64_t page = 0, last_version = 0, last_end = 0;
    uint32_t last_page = 0;
    st_extent extent;
    while (st_inventory_next(inventory, &page, &extent)) {
        bool overlaps = extent.page < last_end;
        if (overlaps)
            of->repair->dropped++;
        if (overlaps && extent.version < last_version) {
            forget(inventory, extent.page);
            continue;
        }
        if (overlaps)
            forget(inventory, last_page);
        last_page = extent.page;
        last_version = extent.version;
        last_end = (uint64_t)extent.page + extent.page_count;
    }
}

/* One that an earlier process has made keeps its blocks, which may be the last. */
static void find_spare(st_inventory *inventory) {
    char path[ST_PATH_BYTES];
    struct stat state;
    if (!spare_path(inventory, path) || lstat(path, &state) != 0)
        return;
    bool is_whole = S_ISREG(state.st_mode) && state.st_uid == geteuid() &&
                    (uint64_t)state.st_blocks * 512 >= (uint64_t)state.st_size &&
                    (uint64_t)state.st_size >= reserve_of(inventory, 0);
    size_t size = (size_t)state.st_size / UNIT * UNIT;
    if (!is_whole || st_log_reuse(path, size, &inventory->spare) != MS_OK)
        unlink(path);
}

ms_status st_inventory_open(const st_inventory_options *options, st_inventory_repair *repair,
                            st_inventory **out) {
    *repair = (st_inventory_repair){0};
    st_inventory *inventory = calloc(1, sizeof *inventory);
    if (inventory == NULL)
        return MS_NO_MEMORY;
    inventory->segment = options->segment;
    inventory->page_count = options->page_count;
    inventory->log_count = (size_t)((options->page_count + ST_LOG_PAGES - 1) / ST_LOG_PAGES);
    inventory->logs = calloc(inventory->log_count, sizeof *inventory->logs);
    void *index = mmap(NULL, options->page_count * sizeof(uint32_t), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    inventory->index = index != MAP_FAILED ? index : NULL;
    ms_status status = MS_NO_MEMORY;
    if (inventory->logs != NULL && inventory->index != NULL)
        status = strlen(options->folder) < sizeof inventory->folder ? MS_OK : MS_BAD_REQUEST;
    if (status == MS_OK)
        strcpy(inventory->folder, options->folder);
    if (status == MS_OK)
        find_spare(inventory);
    loading of = {.inventory = inventory, .options = options, .repair = repair};
    for (size_t at = 0; status == MS_OK && at < inventory->log_count; at++)
        status = log_load(&of, at);
    if (status != MS_OK) {
        st_inventory_close(inventory);
        return status;
    }
    drop_overlaps(&of);
    *out = inventory;
    return MS_OK;
}

void st_inventory_close(st_inventory *inventory) {
    if (inventory == NULL)
        return;
    for (size_t at = 0; inventory->logs != NULL && at < inventory->log_count; at++)
        st_log_unmap(&inventory->logs[at]);
    st_log_unmap(&inventory->spare);
    if (inventory->index != NULL)
        munmap(inventory->index, inventory->page_count * sizeof(uint32_t));
    free(inventory->logs);
    free(inventory);
}

void st_inventory_erase(const char *folder) {
    DIR *entries = opendir(folder);
    if (entries == NULL)
        return;
    const struct dirent *entry;
    while ((entry = readdir(entries)) != NULL) {
        if (strncmp(entry->d_name, "inventory-", strlen("inventory-")) == 0)
            unlinkat(dirfd(entries), entry->d_name, 0);
    }
    closedir(entries);
}
