/* Copies between shared memory and private memory, as fast as this machine copies.
 *
 * Stores that pass the caches by win on cold memory from 64 KiB on (1.75 x), but when the caller
 * reads the copy at once the gain is gone below 256 KiB: hence the default threshold.
 */
#ifndef MS_COPY_H
#define MS_COPY_H

#include <stddef.h>

/* begin cdef */
/* Copy: memcpy below ms_copy_threshold bytes, else ms_copy_stream.  Ranges do not overlap. */
void ms_copy(void *target, const void *source, size_t length);

/* Copy with stores that pass the caches by, where the processor has them (x86-64 with AVX2; memcpy
 * elsewhere).  Any alignment, any length.  Ends with a store fence: what the caller stores later, or
 * reads to validate the copy, comes after it. */
void ms_copy_stream(void *target, const void *source, size_t length);

size_t ms_copy_threshold(void);

/* Default 256 KiB.  Lower it when a device, not the processor, reads the copies. */
void ms_copy_set_threshold(size_t bytes);
/* end cdef */

#endif
