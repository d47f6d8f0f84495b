/* WRITEs to a peer on this host from memory that it cannot map: through a small shared ring that we fill and the
 * peer drains in turns.  Half the time of a socket, which copies twice and pays a system call each 64 KiB. */
#ifndef TE_STAGING_H
#define TE_STAGING_H

#include "te_parts.h"

#define TE_STAGING_BYTES_MIN (64u << 10) /* less in all is faster as payload */

typedef struct te_staging te_staging;

typedef struct te_staged_item {
    const uint8_t *source;
    uint64_t length;
    uint64_t offset; /* in the segment */
    uint32_t segment;
    ms_status status; /* when te_staging_write returned OK */
} te_staged_item;

/* No memory is taken before the first write. */
ms_status te_staging_open(te_engine *engine, te_staging **staging);
void te_staging_close(te_staging *staging);
/* Other than OK: nothing is known about the items; nobody reads the sources any more.  BUSY: another thread is at
 * it.  TIMEOUT, CANCELLED, IO_ERROR, BAD_FRAME: the peer may still write the bytes; after any other status not. */
ms_status te_staging_write(te_staging *staging, te_channel *channel, te_staged_item *items,
                           size_t count, int64_t deadline_ns);

#endif
