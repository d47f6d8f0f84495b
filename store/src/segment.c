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

static ms_status check_room(const st_segment_options *options, uint64_t bytes, char *error) {
    const char *folder = options->hugetlb_dir != NULL ? options->hugetlb_dir : options->folder;
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
                 "no room for a pool of %.1f MiB in %s: %.1f MiB are free there; give a smaller "
                 "--pool-size or "
                 "another --segment-dir",
                 (double)bytes / 1048576, folder, (double)available / 1048576);
    return MS_NO_SPACE;
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

ms_status st_segment_open(const st_segment_options *options, st_segment *segment, char *warning,
                          char *error) {
    *segment = (st_segment){.number = options->number,
                            .page_count = options->page_count,
                            .payload_descriptor = -1,
                            .words_descriptor = -1};
    warning[0] = '\0';
    ms_status status = find_grow_pages(options, segment, error);
    if (status != MS_OK)
        return status;
    /* Files end at whole steps of growth, so that a step never has to be cut. */
    uint64_t pages = round_up(options->page_count, segment->grow_pages);
    segment->payload_bytes = pages * MS_PAGE_SIZE;
    segment->words_bytes = round_up(pages * sizeof(uint64_t), MS_PAGE_SIZE);
    status = check_room(options, options->page_count * MS_PAGE_SIZE, error);
    if (status != MS_OK)
        return status;
    if (!payload_path(options->folder, options->hugetlb_dir, options->name,
                      segment->payload_path) ||
        !st_path(segment->words_path, options->folder, "words-0")) {
        st_error_set(error, "%s: the path is too long", options->folder);
        return MS_BAD_REQUEST;
    }
    segment->payload_descriptor = create(segment->payload_path, segment->payload_bytes);
    if (segment->payload_descriptor >= 0)
        segment->words_descriptor = create(segment->words_path, segment->words_bytes);
    if (segment->words_descriptor < 0) {
        st_error_set(error, "cannot make the files of the pool in %s: %s", options->folder,
                     strerror(errno));
        st_segment_close(segment, false);
        return MS_IO_ERROR;
    }
    segment->payload = map_shared(segment->payload_descriptor, segment->payload_bytes);
    segment->words = map_shared(segment->words_descriptor, segment->words_bytes);
    void *uses = mmap(NULL, pages * sizeof(uint32_t), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    segment->uses = uses != MAP_FAILED ? uses : NULL;
    if (segment->payload == NULL || segment->words == NULL || segment->uses == NULL) {
        st_error_set(error, "cannot map a pool of %.1f MiB: %s%s",
                     (double)segment->payload_bytes / 1048576, strerror(errno),
                     segment->is_huge
                         ? "; /proc/sys/vm/nr_hugepages says how many huge pages there are"
                         : "");
        st_segment_close(segment, false);
        return MS_NO_MEMORY;
    }
    if (options->huge_pages && !segment->is_huge &&
        (madvise(segment->payload, segment->payload_bytes, MADV_HUGEPAGE) != 0 ||
         !shmem_allows_huge()))
        snprintf(warning, ST_ERROR_BYTES,
                 "huge pages were asked for, but the kernel gives none to shared memory: set "
                 "/sys/kernel/mm/transparent_hugepage/shmem_enabled to advise, or give a hugetlbfs "
                 "folder");
    status = st_inventory_open(options->folder, options->number, pages, segment->words,
                               &segment->inventory);
    if (status != MS_OK) {
        st_error_set(error, "cannot open the inventory in %s: %s", options->folder,
                     ms_status_name(status));
        st_segment_close(segment, false);
    }
    return status;
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
        uint64_t words_from = ready * sizeof(uint64_t) / MS_PAGE_SIZE * MS_PAGE_SIZE;
        uint64_t words_to = round_up(next * sizeof(uint64_t), MS_PAGE_SIZE);
        ms_status status =
            st_file_allocate(segment->words_descriptor, words_from, words_to - words_from);
        if (status == MS_OK)
            status = st_file_allocate(segment->payload_descriptor, ready * MS_PAGE_SIZE,
                                      (next - ready) * MS_PAGE_SIZE);
        if (status != MS_OK)
            return status;
        touch(segment->payload + ready * MS_PAGE_SIZE, (next - ready) * MS_PAGE_SIZE);
        ready = next;
        atomic_store(&segment->pages_ready,
                     ready < segment->page_count ? ready : segment->page_count);
    }
    return MS_OK;
}

void st_segment_close(st_segment *segment, bool keep_files) {
    if (!keep_files && segment->words != NULL) {
        /* Whoever still maps the words must not take what it reads there for live. */
        uint64_t ready = atomic_load(&segment->pages_ready);
        for (uint64_t page = 0; page < ready; page++)
            atomic_store_explicit(&segment->words[page], 0, memory_order_relaxed);
    }
    st_inventory_close(segment->inventory);
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
            found = true;
        }
        unlink(path);
    }
    if (payload_path(folder, hugetlb_dir, name, path))
        unlink(path);
    st_inventory_erase(folder);
    return found;
}
