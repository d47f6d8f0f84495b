/* What a segment's files are, in the file "geometry-N" beside them: enough to tell, at a start, whether they
 * can be taken up again.
 *
 * It is written last when the files are made, so a folder without it has none that count.  How many pages are
 * ready changes while the pool grows; that number is mapped and stored with its complement, and of a pair that
 * disagrees (the process died between the two stores, or a bit has flipped) the smaller one counts.
 */
#ifndef ST_GEOMETRY_H
#define ST_GEOMETRY_H

#include <stdbool.h>
#include <stdint.h>

#include "ms_wire.h"
#include "st_file.h"

typedef struct st_geometry {
    uint64_t page_count;
    uint8_t boot_id[16]; /* of the host when the files were made: memory does not outlive a boot */
    bool is_huge;
} st_geometry;

typedef struct st_geometry_file st_geometry_file; /* mapped */

/* Writes the file, with no page ready, and maps it. */
ms_status st_geometry_make(const char *folder, uint32_t segment, const st_geometry *geometry,
                           st_geometry_file **file);
/* Maps the one that is there.  NOT_FOUND: none.  Other: *reason says why it does not count. */
ms_status st_geometry_open(const char *folder, uint32_t segment, st_geometry *geometry,
                           st_geometry_file **file, const char **reason);
void st_geometry_close(st_geometry_file *file);
/* True: there was one. */
bool st_geometry_erase(const char *folder, uint32_t segment);

uint64_t st_geometry_ready(const st_geometry_file *file);
void st_geometry_set_ready(st_geometry_file *file, uint64_t pages_ready);
/* The pool has another size from now on. */
ms_status st_geometry_resize(const char *folder, uint32_t segment, const st_geometry *geometry,
                             st_geometry_file **file);

#endif
