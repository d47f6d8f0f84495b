/* What this machine can do, measured without the engine: copies, round trips and streams in bare C.
 *
 * The benchmarks print their ratio to these figures.  Nothing here is on a data path and nothing
 * here calls the engine, so a slow engine cannot make its own yardstick slow.
 */
#ifndef TE_BENCH_H
#define TE_BENCH_H

#include <stddef.h>
#include <stdint.h>

/* begin cdef */
typedef enum {
    TE_BENCH_MEMCPY = 0,      /* the C library's */
    TE_BENCH_NONTEMPORAL = 1, /* stores that pass the caches by, one stream */
    TE_BENCH_INTERLEAVED = 2, /* such stores, a line or two of each of four pages in turn */
} te_bench_kernel;

typedef enum {
    TE_BENCH_FETCH = 1, /* 64 bytes there, `length` bytes back */
    TE_BENCH_PUSH = 2,  /* 64 bytes and `length` bytes there, 64 bytes back; length 0 is a ping */
} te_bench_operation;

/* Memory whose every page is present: private, or shared as a file in shared memory is.
 * NULL: errno tells why. */
void *te_bench_memory_open(size_t length, int shared);
void te_bench_memory_close(void *memory, size_t length);

/* Copy `length` bytes `count` times between two memories of `memory_length` bytes.  Copy i uses slot
 * (first + i) of both, a slot being `length` bytes and the slots used in rotation.
 * With two or more threads each copy is shared among them in chunks of 256 KiB at most.
 * sample_ns: NULL, or room for `count` durations (a clock reading, 20 to 40 ns, is then part of each).
 * Returns the nanoseconds that all copies took, or -errno. */
int64_t te_bench_copy(te_bench_kernel kernel, uint32_t thread_count, void *target,
                      const void *source, size_t memory_length, size_t length, uint64_t first,
                      uint32_t count, uint64_t *sample_ns);

/* Accept connections on `listener` (a blocking TCP or Unix socket) and answer exchanges from `memory`,
 * one blocking thread a connection.  Returns only when accept fails: -errno. */
int te_bench_serve(int listener, void *memory, size_t memory_length);

typedef struct te_bench_exchange {
    te_bench_operation operation;
    uint32_t call_count;
    uint64_t length; /* payload of a call, divided evenly among the connections */
    uint64_t first;  /* number of the first call: where the rotation over the memory begins */
    uint8_t *memory; /* the caller's end */
    uint64_t memory_length; /* of both ends: the server's memory is at least as large */
    int is_free_running;    /* 1: no connection waits for the others between calls (a stream);
                             * then there are no samples, only the total */
} te_bench_exchange;

/* Make `call_count` calls over connected blocking sockets, one thread a socket, the caller's thread
 * using the first.  sample_ns: NULL or room for `call_count` durations.
 * A peer that is silent for 10 s ends it.  Returns the nanoseconds of all calls, or -errno. */
int64_t te_bench_exchange_run(const te_bench_exchange *exchange, const int *sockets,
                              uint32_t socket_count, uint64_t *sample_ns);
/* end cdef */

#endif
