#include "st_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "st.h"
#include "st_step.h"

void st_error_set(char *error, const char *format, ...) {
    if (error == NULL)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, ST_ERROR_BYTES, format, arguments);
    va_end(arguments);
}

bool st_path(char path[ST_PATH_BYTES], const char *folder, const char *name) {
    int length = snprintf(path, ST_PATH_BYTES, "%s/%s", folder, name);
    return length > 0 && length < ST_PATH_BYTES;
}

ms_status st_folder_make(const char *path, char *error) {
    char part[ST_PATH_BYTES];
    size_t length = strlen(path);
    if (length == 0 || path[0] != '/' || length >= sizeof part) {
        st_error_set(error, "segment folder \"%s\": give an absolute path of at most %d bytes",
                     path, ST_PATH_BYTES - 1);
        return MS_BAD_REQUEST;
    }
    memcpy(part, path, length + 1);
    for (size_t at = 1; at <= length; at++) {
        if (part[at] != '/' && part[at] != '\0')
            continue;
        char end = part[at];
        part[at] = '\0';
        if (mkdir(part, 0700) != 0 && errno != EEXIST) {
            st_error_set(error, "cannot make the folder %s: %s", part, strerror(errno));
            return MS_IO_ERROR;
        }
        part[at] = end;
    }
    struct stat state;
    if (lstat(path, &state) != 0 || !S_ISDIR(state.st_mode)) {
        st_error_set(error, "%s is not a folder", path);
        return MS_IO_ERROR;
    }
    if (state.st_uid != geteuid() || (state.st_mode & 022) != 0) {
        st_error_set(error,
                     "%s belongs to another user or may be written by others: take another folder",
                     path);
        return MS_REFUSED;
    }
    return MS_OK;
}

ms_status st_folder_lock(const char *path, int *descriptor, char *error) {
    char name[ST_PATH_BYTES];
    if (!st_path(name, path, "lock"))
        return MS_BAD_REQUEST;
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) {
        st_error_set(error, "cannot open %s: %s", name, strerror(errno));
        return MS_IO_ERROR;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        char pid[32] = "";
        ssize_t length = pread(fd, pid, sizeof pid - 1, 0);
        pid[length > 0 ? length : 0] = '\0';
        pid[strcspn(pid, "\n")] = '\0';
        st_error_set(error, "%s is in use by process %s: take another name or folder", path,
                     pid[0] != '\0' ? pid : "?");
        close(fd);
        return MS_BUSY;
    }
    char pid[32];
    int length = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, pid, (size_t)length, 0) != length) {
        st_error_set(error, "cannot write %s: %s", name, strerror(errno));
        close(fd);
        return MS_IO_ERROR;
    }
    *descriptor = fd;
    return MS_OK;
}

ms_status st_file_allocate(int descriptor, uint64_t offset, uint64_t length) {
    int result;
    do {
        result = fallocate(descriptor, 0, (off_t)offset, (off_t)length);
    } while (result != 0 && errno == EINTR);
    if (result == 0)
        return MS_OK;
    return errno == ENOSPC || errno == EDQUOT || errno == EFBIG || errno == ENOMEM ? MS_NO_SPACE
                                                                                   : MS_IO_ERROR;
}

ms_status st_file_replace(const char *folder, const char *name, const void *bytes, size_t length) {
    char path[ST_PATH_BYTES], fresh[ST_PATH_BYTES];
    if (!st_path(path, folder, name) ||
        snprintf(fresh, sizeof fresh, "%s/%s.new", folder, name) >= (int)sizeof fresh)
        return MS_BAD_REQUEST;
    int fd = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return errno == ENOSPC ? MS_NO_SPACE : MS_IO_ERROR;
    ssize_t written = write(fd, bytes, length);
    ms_status status = written == (ssize_t)length ? MS_OK : MS_IO_ERROR;
    if (written < 0 && errno == ENOSPC)
        status = MS_NO_SPACE;
    /* On a disk the new file must be whole before the old name points to it; on tmpfs this is free. */
    if (status == MS_OK && fsync(fd) != 0)
        status = MS_IO_ERROR;
    close(fd);
    ST_STEP("replace: written");
    if (status == MS_OK && rename(fresh, path) != 0)
        status = MS_IO_ERROR;
    ST_STEP("replace: renamed");
    if (status != MS_OK)
        unlink(fresh);
    return status;
}
