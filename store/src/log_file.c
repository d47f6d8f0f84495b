#include "st_log_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "st_file.h"

#define STEP_BYTES_MAX (1u << 20)

ms_status st_log_map(st_log *log, int descriptor, size_t size) {
    /* The file has its pages: all are mapped now, which a fault for each would make ten times as dear. */
    void *data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
    if (data == MAP_FAILED)
        return MS_NO_MEMORY;
    log->data = data;
    log->size = size;
    return MS_OK;
}

void st_log_unmap(st_log *log) {
    if (log->data == NULL)
        return;
    munmap(log->data, log->size);
    *log = (st_log){0};
}

static void begin(st_log *log) {
    uint32_t magic = ST_LOG_MAGIC;
    memcpy(log->data, &magic, sizeof magic);
    log->tail = ST_LOG_HEAD_BYTES;
}

ms_status st_log_create(const char *path, size_t size, st_log *log) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return errno == ENOSPC ? MS_NO_SPACE : MS_IO_ERROR;
    ms_status status = st_file_allocate(fd, 0, size);
    if (status == MS_OK)
        status = st_log_map(log, fd, size);
    close(fd);
    if (status != MS_OK) {
        unlink(path);
        return status;
    }
    begin(log);
    return MS_OK;
}

ms_status st_log_reuse(const char *path, size_t size, st_log *log) {
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return MS_IO_ERROR;
    ms_status status = st_log_map(log, fd, size);
    close(fd);
    log->tail = size;
    log->live_bytes = 0;
    return status;
}

void st_log_clear(st_log *log) {
    memset(log->data, 0, log->tail); /* nothing of what it was may look like a record */
    log->live_bytes = 0;
    begin(log);
}

ms_status st_log_grow(st_log *log, const char *path, size_t needed) {
    size_t size = log->size;
    while (size - log->tail < needed)
        size += size < STEP_BYTES_MAX ? size : STEP_BYTES_MAX;
    if (size / ST_LOG_UNIT > UINT32_MAX)
        return MS_NO_SPACE;
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return MS_IO_ERROR;
    ms_status status = st_file_allocate(fd, log->size, size - log->size);
    close(fd);
    if (status != MS_OK)
        return status;
    void *data = mremap(log->data, log->size, size, MREMAP_MAYMOVE);
    if (data == MAP_FAILED)
        return MS_NO_MEMORY;
#ifdef MADV_POPULATE_WRITE
    (void)madvise((uint8_t *)data + log->size, size - log->size, MADV_POPULATE_WRITE);
#endif
    log->data = data;
    log->size = size;
    return MS_OK;
}

ms_status st_log_shrink(st_log *log, const char *path, size_t size) {
    /* First the mapping: a store to what is mapped beyond a file's end would end the process. */
    if (mremap(log->data, log->size, size, 0) == MAP_FAILED)
        return MS_NO_MEMORY;
    log->size = size;
    if (log->tail > size)
        log->tail = size;
    if (truncate(path, (off_t)size) == 0)
        return MS_OK;
    st_log_unmap(log); /* the file has what `tail` does not tell of */
    return MS_IO_ERROR;
}
