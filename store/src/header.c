#include "st.h"
#include "st_header.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "ms_crc32c.h"

#define HEADER_MAGIC 0x32485453u /* "STH2" */

typedef struct header_file {
    uint32_t magic;
    uint32_t checksum; /* CRC32C of what follows */
    uint8_t node_id[16];
    uint32_t incarnation;
    uint32_t epoch;
    uint64_t cluster;
} header_file;
_Static_assert(sizeof(header_file) == 40, "on disk");

static uint32_t checksum_of(const header_file *file) {
    return ms_crc32c(0, file->node_id, sizeof *file - offsetof(header_file, node_id));
}

ms_status st_header_read(const char *folder, st_header *header, bool *found, bool *is_damaged) {
    char path[ST_PATH_BYTES];
    *found = *is_damaged = false;
    if (!st_path(path, folder, "header"))
        return MS_BAD_REQUEST;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT ? MS_OK : MS_IO_ERROR;
    header_file file;
    ssize_t length = read(fd, &file, sizeof file);
    close(fd);
    if (length != sizeof file || file.magic != HEADER_MAGIC ||
        file.checksum != checksum_of(&file)) {
        *is_damaged = true;
        return MS_OK;
    }
    memcpy(header->node_id, file.node_id, sizeof header->node_id);
    header->incarnation = file.incarnation;
    header->epoch = file.epoch;
    header->cluster = file.cluster;
    *found = true;
    return MS_OK;
}

bool st_read_identity(const char *segment_dir, uint8_t node_id[16]) {
    st_header header;
    bool found, is_damaged;
    if (st_header_read(segment_dir, &header, &found, &is_damaged) != MS_OK || !found)
        return false;
    memcpy(node_id, header.node_id, sizeof header.node_id);
    return true;
}

ms_status st_header_write(const char *folder, const st_header *header) {
    header_file file = {.magic = HEADER_MAGIC,
                        .incarnation = header->incarnation,
                        .epoch = header->epoch,
                        .cluster = header->cluster};
    memcpy(file.node_id, header->node_id, sizeof file.node_id);
    file.checksum = checksum_of(&file);
    return st_file_replace(folder, "header", &file, sizeof file);
}
