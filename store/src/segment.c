#include "st_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "st.h"
#include "st_step.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

#define GROW_PAGES 1024u /* 4 MiB: a step of growth takes milliseconds */

static uint64_t round_up(uint64_t value, uint64_t step) { return (value + step - 1) / step * step; }

/* Where the payload of a node lies. */
static bool payload_path(const char *folder, const char *hugetlb_dir, const char *name,
                         char path[ST_PATH_BYTES]) {
    if (hugetlb_dir == NULL)
        return st_path(path, folder, "payload-0");
    int length = snprintf(path, ST_PATH_BYTES, "%s/mooncake-store-%u-%s", hugetlb_dir,
                          (unsigned)geteuid(), name);
    return length > 0 && length < ST_PATH_BYTES;
}

static int create(const char *path, uint64_t length) {
    int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd >= 0 && ftruncate(fd, (off_t)length) != 0) {
        int reason = errno;
        close(fd);
        unlink(path);
        errno = reason;
        return -1;
    }
    return fd;
}

static void *map_shared(int fd, uint64_t length) {
    void *data = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return data != MAP_FAILED ? data : NULL;
}

/* Transparent huge pages on shared memory happen only where the administrator allows them. */
static bool shmem_allows_huge(void) {
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "re");
    char text[128] = "";
    if (file == NULL)
        return false;
    bool is_read = fgets(text, sizeof text, file) != NULL;
    fclose(file);
    return is_read && strstr(text, "[never]") == NULL && strstr(text, "[deny]") == NULL;
}

/* Whether a file system has so many bytes left. */
static ms_status look_for_room(const char *folder, uint64_t bytes, const char *what, char *error) {
    struct statvfs state;
    if (statvfs(folder, &state) != 0) {
        st_error_set(error, "cannot look at %s: %s", folder, strerror(errno));
        return MS_IO_ERROR;
    }
    uint64_t available = (uint64_t)state.f_bavail * state.f_frsize;
    /* A hugetlbfs without a size of its own says nothing here: mapping the file reserves its pages or fails. */
    if (available >= bytes || state.f_blocks == 0)
        return MS_OK;
    st_error_set(error,
                 "no room for %s of %.1f MiB in %s: %.1f MiB are free there; give a smaller "
                 "--pool-size or "
                 "another --segment-dir",
                 what, (double)bytes / 1048576, folder, (double)available / 1048576);
    return MS_NO_SPACE;
}

/* A pool takes more than its pages: their words, and the logs of what is in them. */
static ms_status check_room(const st_segment_options *options, uint64_t words_bytes, char *error) {
    uint64_t payload = options->page_count * MS_PAGE_SIZE;
    uint64_t beside = words_bytes + st_inventory_reserve_bytes(options->page_count);
    if (options->hugetlb_dir == NULL)
        return look_for_room(options->folder, payload + beside, "a pool and its inventory", error);
    ms_status status = look_for_room(options->hugetlb_dir, payload, "a pool", error);
    return status != MS_OK ? status
                           : look_for_room(options->folder, beside, "the inventory", error);
}

static ms_status find_grow_pages(const st_segment_options *options, st_segment *segment,
                                 char *error) {
    segment->grow_pages = GROW_PAGES;
    if (options->hugetlb_dir == NULL)
        return MS_OK;
    struct statfs state;
    if (statfs(options->hugetlb_dir, &state) != 0 ||
        (uint64_t)state.f_type != (uint64_t)HUGETLBFS_MAGIC) {
        st_error_set(error, "%s is not a hugetlbfs folder", options->hugetlb_dir);
        return MS_BAD_REQUEST;
    }
    segment->is_huge = true;
    uint64_t huge_pages = (uint64_t)state.f_bsize / MS_PAGE_SIZE;
    segment->grow_pages = round_up(GROW_PAGES, huge_pages);
    return MS_OK;
}

/* The descriptors are there. */
ms_status st_segment_map(st_segment *segment) {
    segment->payload = map_shared(segment->payload_descriptor, segment->payload_bytes);
    segment->words = map_shared(segment->words_descriptor, segment->words_bytes);
    void *uses = mmap(NULL, segment->payload_bytes / MS_PAGE_SIZE * sizeof(uint32_t),
                      PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    segment->uses = uses != MAP_FAILED ? uses : NULL;
    return segment->payload != NULL && segment->words != NULL && segment->uses != NULL
               ? MS_OK
               : MS_NO_MEMORY;
}

static ms_status open_inventory(const st_segment_options *options, st_segment *segment,
                                st_segment_found *found) {
    st_inventory_options logs = {.folder = options->folder,
                                 .segment = options->number,
                                 .page_count = segment->payload_bytes / MS_PAGE_SIZE,
                                 .pages_there = atomic_load(&segment->pages_ready),
                                 .version_max = options->version_max,
                                 .words = segment->words};
    return st_inventory_open(&logs, &found->repair, &segment->inventory);
}

static void begin(const st_segment_options *options, st_segment *segment) {
    uint64_t grow_pages = segment->grow_pages;
    bool is_huge = segment->is_huge;
    *segment = (st_segment){.number = options->number,
                            .page_count = options->page_count,
                            .grow_pages = grow_pages,
                            .is_huge = is_huge,
                            .payload_descriptor = -1,
                            .words_descriptor = -1};
    /* The path was looked at before: it fits. */
    payload_path(options->folder, options->hugetlb_dir, options->name, segment->payload_path);
    st_path(segment->words_path, options->folder, "words-0");
}

/* NULL, or why what is there cannot be taken up. */
static const char *take_up(const st_segment_options *options, st_segment *segment,
                           st_segment_found *found) {
    const char *reason = options->fresh_reason;
    if (reason == NULL)
        reason = st_kept_open(options, segment, found);
    if (reason == NULL && open_inventory(options, segment, found) != MS_OK)
        reason = "the inventory cannot be read";
    if (reason == NULL && !options->keep_size && st_inventory_count(segment->inventory) == 0 &&
        found->page_count > options->page_count)
        reason = "no object is in them, and the pool is smaller now";
    if (reason == NULL)
        found->words_settled = st_kept_settle(segment, options->version_max);
    return reason;
}

/* Files end at whole steps of growth, so that a step never has to be cut. */
static ms_status make_files(const st_segment_options *options, st_segment *segment, char *error) {
    uint64_t pages = round_up(options->page_count, segment->grow_pages);
    segment->payload_bytes = pages * MS_PAGE_SIZE;
    segment->words_bytes = round_up(pages * sizeof(uint64_t), MS_PAGE_SIZE);
    ms_status status = check_room(options, segment->words_bytes, error);
    if (status != MS_OK)
        return status;
    st_geometry geometry = {.page_count = options->page_count, .is_huge = segment->is_huge};
    memcpy(geometry.boot_id, options->boot_id, sizeof geometry.boot_id);
    segment->payload_descriptor = create(segment->payload_path, segment->payload_bytes);
    if (segment->payload_descriptor >= 0)
        segment->words_descriptor = create(segment->words_path, segment->words_bytes);
    ST_STEP("segment: made");
    if (segment->words_descriptor < 0 || st_geometry_make(options->folder, options->number,
                                                          &geometry, &segment->geometry) != MS_OK) {
        st_error_set(error, "cannot make the files of the pool in %s: %s", options->folder,
                     strerror(errno));
        return MS_IO_ERROR;
    }
    ST_STEP("segment: known");
    status = st_segment_map(segment);
    if (status != MS_OK)
        st_error_set(error, "cannot map a pool of %.1f MiB: %s%s",
                     (double)segment->payload_bytes / 1048576, strerror(errno),
                     segment->is_huge
                         ? "; /proc/sys/vm/nr_hugepages says how many huge pages there are"
                         : "");
    return status;
}

ms_status st_segment_open(const st_segment_options *options, st_segment *segment,
                          st_segment_found *found, char *warning, char *error) {
    *found = (st_segment_found){0};
    *segment = (st_segment){.payload_descriptor = -1, .words_descriptor = -1};
    warning[0] = '\0';
    ms_status status = find_grow_pages(options, segment, error);
    if (status != MS_OK)
        return status;
    char path[ST_PATH_BYTES];
    if (!payload_path(options->folder, options->hugetlb_dir, options->name, path) ||
        !st_path(path, options->folder, "inventory-0-000000.new")) {
        st_error_set(error, "%s: the path is too long", options->folder);
        return MS_BAD_REQUEST;
    }
    begin(options, segment);
    const char *reason = take_up(options, segment, found);
    found->is_kept = reason == NULL;
    if (!found->is_kept) {
        st_segment_close(segment, true);
        if (st_segment_erase(options->folder, options->hugetlb_dir, options->name))
            found->lost_reason = reason;
        ST_STEP("segment: erased");
        begin(options, segment);
        status = make_files(options, segment, error);
        if (status == MS_OK && (status = open_inventory(options, segment, found)) != MS_OK)
            st_error_set(error, "cannot open the inventory in %s: %s", options->folder,
                         ms_status_name(status));
    }
    if (status != MS_OK) {
        st_segment_close(segment, false);
        return status;
    }
    if (options->huge_pages && !segment->is_huge &&
        (madvise(segment->payload, segment->payload_bytes, MADV_HUGEPAGE) != 0 ||
         !shmem_allows_huge()))
        snprintf(warning, ST_ERROR_BYTES,
                 "huge pages were asked for, but the kernel gives none to shared memory: set "
                 "/sys/kernel/mm/transparent_hugepage/shmem_enabled to advise, or give a hugetlbfs "
                 "folder");
    return MS_OK;
}

/* Fault the pages in, so that a copy into them does not pay for it. */
static void touch(void *start, uint64_t length) {
    if (madvise(start, length, MADV_POPULATE_WRITE) == 0)
        return;
    volatile uint8_t *bytes = start; /* Linux before 5.14 */
    for (uint64_t at = 0; at < length; at += MS_PAGE_SIZE)
        bytes[at] = 0;
}

ms_status st_segment_grow(st_segment *segment, uint64_t pages) {
    uint64_t ready = atomic_load(&segment->pages_ready);
    uint64_t whole = segment->payload_bytes / MS_PAGE_SIZE;
    uint64_t target = round_up(ready + pages, segment->grow_pages);
    if (target > whole)
        target = whole;
    while (ready < target && ready < segment->page_count) {
        uint64_t next = round_up(ready + 1, segment->grow_pages);
        /* A pool that was smaller once ended inside a step. */
        uint64_t base = ready / segment->grow_pages * segment->grow_pages;
        uint64_t words_from = ready * sizeof(uint64_t) / MS_PAGE_SIZE * MS_PAGE_SIZE;
        uint64_t words_to = round_up(next * sizeof(uint64_t), MS_PAGE_SIZE);
        ms_status status =
            st_file_allocate(segment->words_descriptor, words_from, words_to - words_from);
        if (status == MS_OK)
            status = st_file_allocate(segment->payload_descriptor, base * MS_PAGE_SIZE,
                                      (next - base) * MS_PAGE_SIZE);
        if (status != MS_OK)
            return status;
        touch(segment->payload + ready * MS_PAGE_SIZE, (next - ready) * MS_PAGE_SIZE);
        ready = next < segment->page_count ? next : segment->page_count;
        ST_STEP("grow: touched");
        st_geometry_set_ready(segment->geometry, ready);
        atomic_store(&segment->pages_ready, ready);
    }
    return MS_OK;
}

void st_segment_populate(st_segment *segment, uint64_t from, uint64_t pages) {
    uint64_t ready = atomic_load(&segment->pages_ready);
    if (from < ready)
        madvise(segment->payload + from * MS_PAGE_SIZE,
                (pages < ready - from ? pages : ready - from) * MS_PAGE_SIZE, MADV_POPULATE_WRITE);
}

void st_segment_close(st_segment *segment, bool keep_files) {
    if (!keep_files && segment->words != NULL) {
        /* Whoever still maps the words must not take what it reads there for live. */
        uint64_t ready = atomic_load(&segment->pages_ready);
        for (uint64_t page = 0; page < ready; page++)
            atomic_store_explicit(&segment->words[page], 0, memory_order_relaxed);
    }
    st_inventory_close(segment->inventory);
    st_geometry_close(segment->geometry);
    if (segment->payload != NULL)
        munmap(segment->payload, segment->payload_bytes);
    if (segment->words != NULL)
        munmap(segment->words, segment->words_bytes);
    if (segment->uses != NULL)
        munmap(segment->uses, segment->payload_bytes / MS_PAGE_SIZE * sizeof(uint32_t));
    if (segment->payload_descriptor >= 0) {
        close(segment->payload_descriptor);
        if (!keep_files)
            unlink(segment->payload_path);
    }
    if (segment->words_descriptor >= 0) {
        close(segment->words_descriptor);
        if (!keep_files)
            unlink(segment->words_path);
    }
    segment->inventory = NULL;
    segment->geometry = NULL;
    segment->payload = NULL;
    segment->words = NULL;
    segment->uses = NULL;
    segment->payload_descriptor = segment->words_descriptor = -1;
}

/* Sets all words of a file to 0 without making blocks where it has none. */
static void clear_words(int fd) {
    struct stat state;
    if (fstat(fd, &state) != 0 || state.st_size <= 0)
        return;
    off_t end = state.st_size;
    for (off_t from = lseek(fd, 0, SEEK_DATA); from >= 0 && from < end;) {
        off_t to = lseek(fd, from, SEEK_HOLE);
        if (to <= from)
            to = end;
        uint8_t *words =
            mmap(NULL, (size_t)(to - from), PROT_READ | PROT_WRITE, MAP_SHARED, fd, from);
        if (words != MAP_FAILED) {
            memset(words, 0, (size_t)(to - from));
            munmap(words, (size_t)(to - from));
        }
        from = lseek(fd, to, SEEK_DATA);
    }
}

bool st_segment_erase(const char *folder, const char *hugetlb_dir, const char *name) {
    char path[ST_PATH_BYTES];
    bool found = false;
    if (st_path(path, folder, "words-0")) {
        int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
        if (fd >= 0) {
            clear_words(fd);
            close(fd);
        }
        found = unlink(path) == 0;
    }
    if (st_geometry_erase(folder, 0))
        found = true;
    /* Wherever it lay: the next one may lie elsewhere. */
    if (payload_path(folder, hugetlb_dir, name, path) && unlink(path) == 0)
        found = true;
    if (payload_path(folder, NULL, name, path) && unlink(path) == 0)
        found = true;
    st_inventory_erase(folder);
    return found;
}
