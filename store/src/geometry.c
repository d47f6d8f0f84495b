#include "st_geometry.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ms_crc32c.h"

#define GEOMETRY_MAGIC 0x31475453u /* "STG1" */
#define GEOMETRY_FORMAT 1u         /* of all the files: words, logs, views */

struct st_geometry_file {
    uint32_t magic;
    uint32_t checksum; /* CRC32C of what follows, up to the pages that are ready */
    uint32_t format;
    uint32_t segment;
    uint64_t page_count;
    uint8_t boot_id[16];
    uint32_t is_huge;
    uint32_t zero;
    _Atomic uint64_t ready, ready_complement;
};
_Static_assert(sizeof(st_geometry_file) == 64, "on disk");

static uint32_t checksum_of(const st_geometry_file *file) {
    return ms_crc32c(0, &file->format,
                     offsetof(st_geometry_file, ready) - offsetof(st_geometry_file, format));
}

static bool name_of(uint32_t segment, char name[32]) {
    return snprintf(name, 32, "geometry-%u", segment) < 32;
}

static ms_status map(const char *folder, const char *name, st_geometry_file **file) {
    char path[ST_PATH_BYTES];
    if (!st_path(path, folder, name))
        return MS_BAD_REQUEST;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? MS_NOT_FOUND : MS_IO_ERROR;
    struct stat state;
    void *data = MAP_FAILED;
    if (fstat(fd, &state) == 0 && S_ISREG(state.st_mode) &&
        state.st_size == (off_t)sizeof(st_geometry_file))
        data = mmap(NULL, sizeof(st_geometry_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (data == MAP_FAILED)
        return MS_BAD_FRAME;
    *file = data;
    return MS_OK;
}

static ms_status write_and_map(const char *folder, uint32_t segment, const st_geometry *geometry,
                               uint64_t ready, st_geometry_file **file) {
    st_geometry_file made = {.magic = GEOMETRY_MAGIC,
                             .format = GEOMETRY_FORMAT,
                             .segment = segment,
                             .page_count = geometry->page_count,
                             .is_huge = geometry->is_huge,
                             .ready = ready,
                             .ready_complement = ~ready};
    memcpy(made.boot_id, geometry->boot_id, sizeof made.boot_id);
    made.checksum = checksum_of(&made);
    char name[32];
    if (!name_of(segment, name))
        return MS_BAD_REQUEST;
    ms_status status = st_file_replace(folder, name, &made, sizeof made);
    return status == MS_OK ? map(folder, name, file) : status;
}

ms_status st_geometry_make(const char *folder, uint32_t segment, const st_geometry *geometry,
                           st_geometry_file **file) {
    return write_and_map(folder, segment, geometry, 0, file);
}

ms_status st_geometry_resize(const char *folder, uint32_t segment, const st_geometry *geometry,
                             st_geometry_file **file) {
    st_geometry_file *old = *file, *fresh = NULL;
    ms_status status = write_and_map(folder, segment, geometry, st_geometry_ready(old), &fresh);
    if (status != MS_OK)
        return status;
    st_geometry_close(old);
    *file = fresh;
    return MS_OK;
}

ms_status st_geometry_open(const char *folder, uint32_t segment, st_geometry *geometry,
                           st_geometry_file **out, const char **reason) {
    char name[32];
    st_geometry_file *file = NULL;
    ms_status status = name_of(segment, name) ? map(folder, name, &file) : MS_BAD_REQUEST;
    if (status == MS_NOT_FOUND) {
        *reason = "the file that says what they are is missing";
        return status;
    }
    if (status != MS_OK) {
        *reason = "the file that says what they are cannot be read";
        return status;
    }
    *reason = NULL;
    if (file->magic != GEOMETRY_MAGIC || file->checksum != checksum_of(file))
        *reason = "the file that says what they are is damaged";
    else if (file->format != GEOMETRY_FORMAT)
        *reason = "they are of another version of the store server";
    else if (file->segment != segment || file->page_count == 0 || file->page_count > UINT32_MAX)
        *reason = "the file that says what they are contradicts itself";
    if (*reason != NULL) {
        st_geometry_close(file);
        return MS_BAD_FRAME;
    }
    *geometry = (st_geometry){.page_count = file->page_count, .is_huge = file->is_huge != 0};
    memcpy(geometry->boot_id, file->boot_id, sizeof geometry->boot_id);
    *out = file;
    return MS_OK;
}

void st_geometry_close(st_geometry_file *file) {
    if (file != NULL)
        munmap(file, sizeof *file);
}

bool st_geometry_erase(const char *folder, uint32_t segment) {
    char name[32], path[ST_PATH_BYTES];
    return name_of(segment, name) && st_path(path, folder, name) && unlink(path) == 0;
}

uint64_t st_geometry_ready(const st_geometry_file *file) {
    uint64_t ready = atomic_load(&file->ready), other = ~atomic_load(&file->ready_complement);
    return ready < other ? ready : other;
}

void st_geometry_set_ready(st_geometry_file *file, uint64_t pages_ready) {
    atomic_store(&file->ready_complement, ~pages_ready);
    atomic_store(&file->ready, pages_ready);
}
