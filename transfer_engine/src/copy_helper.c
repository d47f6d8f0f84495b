/* Copies with a second thread.
 *
 * One helper thread an engine, started by the first large copy and parked on a futex between copies.  A caller
 * that finds the helper free posts its copy; both then take chunks from one counter until none is left, so
 * whoever is faster does more and a helper that the kernel wakes late does nothing.  Other callers that come
 * meanwhile copy alone: two threads saturate the memory of the machines this was measured on.
 *
 * `state` is the only word they share for control, and the futex of both:
 *
 *     IDLE -> POSTED (caller) -> RUNNING (helper) -> IDLE (helper)      the helper took part
 *     IDLE -> POSTED (caller) -> IDLE (caller)                          the helper came too late
 *
 * The job's fields are written before POSTED is stored with release order and stay until the state is IDLE
 * again; `claimed` lets one caller in at a time.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ms_copy.h"
#include "te_parts.h"

#include "te_fault.h"

#define CHUNK_BYTES ((size_t)256 << 10)
/* Of many copies together in pieces of a page on: whoever reads what was copied first finds it in memory either way.
 * From 4 MiB on (32 MiB of L3), or with a larger cache a sixteenth of it: what stays there is copied at twice the rate of
 * streaming stores (260 MiB of L3, 8 MiB read again into the same place: 0.8 against 1.8 ms; what does not: equal). */
#define PART_BYTES_LEAST ((size_t)4 << 10)
#define CACHE_PART 16u
/* What nobody here reads next: of steps of 128 KiB, just written by another core, memcpy does 7.5 GB/s, streaming stores 17. */
#define AWAY_PART 4u /* of stream_bytes: 64 KiB by default */
#define WHOLE_STREAMS 16u
/* The last chunk of the helper takes about 25 us: spin that long before sleeping costs more than it. */
#define FINISH_SPINS 2000

enum { IDLE = 0, POSTED = 1, RUNNING = 2, STOPPED = 3 };

struct te_copier {
    size_t stream_bytes;
    size_t helper_bytes;
    uint64_t whole_least; /* so many bytes together are streamed also in small parts */

    _Alignas(64) _Atomic uint32_t state;
    _Atomic uint32_t claimed;
    uint8_t *target;
    const uint8_t *source;
    size_t length;
    _Alignas(64) _Atomic size_t next; /* offset of the first chunk that nobody has taken */

    _Alignas(64) pthread_mutex_t lock; /* starting the thread */
    pthread_t thread;
    bool started;
};

static void futex_wait(_Atomic uint32_t *word, uint32_t value) {
    syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake(_Atomic uint32_t *word) {
    syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static inline void pause_once(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void copy_alone(const te_copier *copier, void *target, const void *source, size_t length) {
    if (length >= copier->stream_bytes)
        ms_copy_stream(target, source, length);
    else if (length != 0)
        memcpy(target, source, length);
}

static void take_chunks(te_copier *copier) {
    for (;;) {
        size_t offset = atomic_fetch_add_explicit(&copier->next, CHUNK_BYTES, memory_order_relaxed);
        if (offset >= copier->length)
            return;
        size_t left = copier->length - offset;
        copy_alone(copier, copier->target + offset, copier->source + offset,
                   left < CHUNK_BYTES ? left : CHUNK_BYTES);
    }
}

static void *helper_main(void *argument) {
    te_copier *copier = argument;
    pthread_setname_np(pthread_self(), "te-copy");
    for (;;) {
        uint32_t state = atomic_load_explicit(&copier->state, memory_order_acquire);
        if (state == STOPPED)
            return NULL;
        if (state != POSTED) {
            futex_wait(&copier->state, state);
            continue;
        }
        if (!atomic_compare_exchange_strong_explicit(&copier->state, &state, RUNNING,
                                                     memory_order_acquire, memory_order_relaxed))
            continue;
        take_chunks(copier);
        atomic_store_explicit(&copier->state, IDLE, memory_order_release);
        futex_wake(&copier->state);
    }
}

/* A thread that may run on one processor only gains nothing from a second one beside it. */
static bool has_two_processors(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) > 1;
}

static bool start_helper(te_copier *copier) {
    pthread_mutex_lock(&copier->lock);
    if (!copier->started)
        copier->started = pthread_create(&copier->thread, NULL, helper_main, copier) == 0;
    bool started = copier->started;
    pthread_mutex_unlock(&copier->lock);
    return started;
}

void te_copier_copy(te_copier *copier, void *target, const void *source, size_t length) {
    if (copier->helper_bytes == 0 || length < copier->helper_bytes || !has_two_processors()) {
        copy_alone(copier, target, source, length);
        return;
    }
    uint32_t unclaimed = 0;
    if (!atomic_compare_exchange_strong_explicit(&copier->claimed, &unclaimed, 1,
                                                 memory_order_acquire, memory_order_relaxed)) {
        copy_alone(copier, target, source, length);
        return;
    }
    if (!start_helper(copier)) {
        atomic_store_explicit(&copier->claimed, 0, memory_order_release);
        copy_alone(copier, target, source, length);
        return;
    }
    copier->target = target;
    copier->source = source;
    copier->length = length;
    atomic_store_explicit(&copier->next, 0, memory_order_relaxed);
    atomic_store_explicit(&copier->state, POSTED, memory_order_release);
    futex_wake(&copier->state);
    take_chunks(copier);

    uint32_t state = POSTED;
    if (!atomic_compare_exchange_strong_explicit(&copier->state, &state, IDLE, memory_order_acquire,
                                                 memory_order_acquire)) {
        for (int spins = 0; state == RUNNING; spins++) {
            if (spins < FINISH_SPINS)
                pause_once();
            else
                futex_wait(&copier->state, RUNNING);
            state = atomic_load_explicit(&copier->state, memory_order_acquire);
        }
    }
    atomic_store_explicit(&copier->claimed, 0, memory_order_release);
}

/* Bytes of the last level of cache; 0 where nobody tells. */
static uint64_t last_cache_bytes(void) {
#ifdef _SC_LEVEL3_CACHE_SIZE
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return bytes > 0 ? (uint64_t)bytes : 0;
#else
    return 0;
#endif
}

ms_status te_copier_open(size_t stream_bytes, size_t helper_bytes, te_copier **result) {
    te_copier *copier = aligned_alloc(64, (sizeof(te_copier) + 63) / 64 * 64);
    if (copier == NULL)
        return MS_NO_MEMORY;
    memset(copier, 0, sizeof *copier);
    copier->stream_bytes = stream_bytes;
    copier->whole_least = (uint64_t)stream_bytes * WHOLE_STREAMS;
    if (last_cache_bytes() / CACHE_PART > copier->whole_least)
        copier->whole_least = last_cache_bytes() / CACHE_PART;
    copier->helper_bytes = helper_bytes;
    pthread_mutex_init(&copier->lock, NULL);
    *result = copier;
    return MS_OK;
}

void te_copier_close(te_copier *copier) {
    if (copier == NULL)
        return;
    if (copier->started) {
        atomic_store_explicit(&copier->state, STOPPED, memory_order_release);
        futex_wake(&copier->state);
        pthread_join(copier->thread, NULL);
    }
    pthread_mutex_destroy(&copier->lock);
    free(copier);
}

void te_copy_part(te_engine *engine, void *target, const void *source, size_t length,
                  uint64_t whole) {
    te_copier *copier = engine->shm->copier;
    if (length < copier->stream_bytes && length >= PART_BYTES_LEAST && whole >= copier->whole_least)
        ms_copy_stream(target, source, length);
    else
        te_copier_copy(copier, target, source, length);
}

void te_copy_away(te_engine *engine, void *target, const void *source, size_t length) {
    te_copier *copier = engine->shm->copier;
    if (length >= copier->stream_bytes / AWAY_PART && length < CHUNK_BYTES)
        ms_copy_stream(target, source, length);
    else
        te_copier_copy(copier, target, source, length);
}

void te_copy(te_engine *engine, void *target, const void *source, size_t length) {
    te_copier_copy(engine->shm->copier, target, source, length);
}
