/* CRC32C (Castagnoli, RFC 3720 appendix B.4): the checksum of objects.
 *
 * The instruction of the processor (SSE4.2, ARMv8 CRC) over three interleaved streams, because one
 * has a latency of three cycles; a table of 8 x 256 words elsewhere.  Chosen once, when loaded.
 */
#ifndef MS_CRC32C_H
#define MS_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* begin cdef */
/* Continue `crc` (0 to begin) over `length` bytes: ms_crc32c(ms_crc32c(0, a), b) is that of a then b. */
uint32_t ms_crc32c(uint32_t crc, const void *data, size_t length);

/* The checksum of a then b from those of a and of b, which has length_b bytes. */
uint32_t ms_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b);

/* Copy and continue `crc` in one pass: each byte is loaded once, so the checksum is that of what was
 * stored even when another process changes the source meanwhile.  Passes caches by from
 * ms_copy_threshold on, and then ends with a store fence. */
uint32_t ms_copy_crc32c(void *target, const void *source, size_t length, uint32_t crc);

/* "sse4.2", "armv8-crc" or "table": what runs here. */
const char *ms_crc32c_kind(void);

/* The table's version, for tests of it on machines that have the instruction. */
uint32_t ms_crc32c_table(uint32_t crc, const void *data, size_t length);
/* end cdef */

#endif
