/* Which copy kernel runs: see ms_copy.h. */
#include "ms_copy.h"

#include <stdatomic.h>
#include <string.h>

#include "copy_kernel.h"

static _Atomic size_t threshold = 256u << 10;

static void copy_plain(void *target, const void *source, size_t length) {
    if (length != 0)
        memcpy(target, source, length);
    atomic_thread_fence(memory_order_seq_cst);
}

/* Written once, before main or dlopen returns: no thread of ours runs yet. */
static ms_copy_function *stream = copy_plain;

__attribute__((constructor)) static void choose_kernel(void) {
    ms_copy_kernel kernels[MS_COPY_KERNELS_MAX];
    if (ms_copy_stream_kernels(kernels) != 0)
        stream = kernels[0].copy;
}

void ms_copy_stream(void *target, const void *source, size_t length) {
    stream(target, source, length);
}

void ms_copy(void *target, const void *source, size_t length) {
    if (length >= ms_copy_threshold()) {
        stream(target, source, length);
    } else if (length != 0) {
        memcpy(target, source, length);
    }
}

size_t ms_copy_threshold(void) { return atomic_load_explicit(&threshold, memory_order_relaxed); }

void ms_copy_set_threshold(size_t bytes) {
    atomic_store_explicit(&threshold, bytes, memory_order_relaxed);
}

#if !defined(__x86_64__)
size_t ms_copy_stream_kernels(ms_copy_kernel kernels[MS_COPY_KERNELS_MAX]) {
    (void)kernels;
    return 0;
}
#endif
