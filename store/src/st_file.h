/* Files of a node's folder, mapped: what is stored survives the process, not the machine. */
#ifndef ST_FILE_H
#define ST_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ms_wire.h"

#define ST_PATH_BYTES 512

/* A folder of mode 0700 that belongs to this user, made with its parents if it is not there.  REFUSED: it
 * belongs to somebody else, or others may write to it. */
ms_status st_folder_make(const char *path, char *error);
/* The folder's lock, held until the descriptor is closed.  BUSY: another process has it. */
ms_status st_folder_lock(const char *path, int *descriptor, char *error);
/* "folder/name" of at most ST_PATH_BYTES bytes; false: too long. */
bool st_path(char path[ST_PATH_BYTES], const char *folder, const char *name);
/* Blocks of [offset, offset + length), for certain: NO_SPACE when the file system has none left. */
ms_status st_file_allocate(int descriptor, uint64_t offset, uint64_t length);
/* Writes a small file in one step: after a kill at any moment it is the old one or the new one. */
ms_status st_file_replace(const char *folder, const char *name, const void *bytes, size_t length);

/* Overwrites a sentence of ST_ERROR_BYTES bytes. */
__attribute__((format(printf, 2, 3))) void st_error_set(char *error, const char *format, ...);

#endif
