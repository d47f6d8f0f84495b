/* Who this node is and what it has promised, in the file "header" of its folder. */
#ifndef ST_HEADER_H
#define ST_HEADER_H

#include <stdbool.h>
#include <stdint.h>

#include "ms_wire.h"
#include "st_file.h"

typedef struct st_header {
    uint8_t node_id[16];
    uint32_t incarnation;
    uint32_t epoch;   /* adopted: frames of an older one are refused */
    uint64_t cluster; /* whose epochs these are; 0 = none yet */
} st_header;

/* Reads it; *found = false when there is none.  A file that is not whole counts as none (*is_damaged): a node
 * that has lost its identity joins as a new one, which is safe, where one with a guessed incarnation is not. */
ms_status st_header_read(const char *folder, st_header *header, bool *found, bool *is_damaged);
/* Persists it: in place before any answer that relies on it. */
ms_status st_header_write(const char *folder, const st_header *header);

#endif
