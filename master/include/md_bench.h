/* A metadata core with one simulated server, filled with keys: what a key costs, beyond any network.
 *
 * For `mooncake-store bench meta`; no other process uses it.
 */
#ifndef MD_BENCH_H
#define MD_BENCH_H

#include <stdint.h>

/* begin cdef */
typedef struct md_bench md_bench;

/* A core whose one segment has so many pages, all of them free.  NULL: no memory. */
md_bench *md_bench_open(uint64_t page_count);
void md_bench_close(md_bench *bench);

/* Store objects of 16 bytes under the keys number first, first + step, ... (count of them), or remove those, or
 * ask whether they are there.  Keys have 80 characters, as inference engines make them.
 * Returns the nanoseconds that it took, or a negative ms_status. */
int64_t md_bench_put(md_bench *bench, uint64_t first, uint64_t step, uint64_t count);
int64_t md_bench_remove(md_bench *bench, uint64_t first, uint64_t step, uint64_t count);
int64_t md_bench_exists(md_bench *bench, uint64_t first, uint64_t step, uint64_t count);
/* end cdef */

#endif
