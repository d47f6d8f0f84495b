/* The streaming copies of x86-64: non-temporal stores.
 *
 * One stream of loads keeps too few of a core's misses under way.  Prefetches ahead of it were the
 * best of several distances on an EPYC, where nothing else was tried; Intel's cores do best with two lines of each of
 * several pages in turn and no prefetch (1 MiB on a Xeon of model 207, cold: memcpy 5.7 GB/s, one stream with prefetches 5.3, without 7.4, four
 * pages 9.2; with registers of a whole line 9.8).
 */
#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "copy_kernel.h"

#define LINE 64u
#define STEP 128u       /* bytes a round: two lines, four registers */
#define AHEAD 512u      /* prefetch distance, measured best of 256 to 2048 */
#define LENGTH_MIN 512u /* below it aligning costs more than it brings */
#define PAGE 4096u
#define PAGES 4u /* at once; eight are as fast, and would fill the sets of an L1 of eight ways */

/* A line of the target must be filled whole to leave the write-combining buffer at once. */
static size_t copy_head(uint8_t *to, const uint8_t *from) {
    size_t head = (LINE - (uintptr_t)to % LINE) % LINE;
    memcpy(to, from, head);
    return head;
}

__attribute__((target("avx2"))) static void copy_avx2(void *target, const void *source,
                                                      size_t length) {
    uint8_t *to = target;
    const uint8_t *from = source;
    if (length >= LENGTH_MIN) {
        size_t head = copy_head(to, from);
        to += head, from += head, length -= head;
        for (; length >= STEP; to += STEP, from += STEP, length -= STEP) {
            /* A prefetch past the end of the source has no effect: it never faults.  The address is
             * made as an integer, because a pointer past the object would be undefined. */
            _mm_prefetch((const char *)((uintptr_t)from + AHEAD), _MM_HINT_NTA);
            _mm_prefetch((const char *)((uintptr_t)from + AHEAD + LINE), _MM_HINT_NTA);
            __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)from);
            __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + 32));
            __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(from + 64));
            __m256i d = _mm256_loadu_si256((const __m256i *)(const void *)(from + 96));
            _mm256_stream_si256((__m256i *)(void *)to, a);
            _mm256_stream_si256((__m256i *)(void *)(to + 32), b);
            _mm256_stream_si256((__m256i *)(void *)(to + 64), c);
            _mm256_stream_si256((__m256i *)(void *)(to + 96), d);
        }
    }
    if (length != 0)
        memcpy(to, from, length);
    _mm_sfence();
    _mm256_zeroupper();
}

/* Two lines of each page in turn; `to` is aligned to a line. */
typedef void copy_pages(uint8_t *to, const uint8_t *from, size_t pages);

__attribute__((target("avx2"))) static void copy_pages_avx2(uint8_t *to, const uint8_t *from,
                                                            size_t pages) {
    for (size_t line = 0; line < PAGE; line += STEP) {
        for (size_t at = line; at < pages * PAGE; at += PAGE) {
            __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
            __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + at + 32));
            __m256i c = _mm256_loadu_si256((const __m256i *)(const void *)(from + at + 64));
            __m256i d = _mm256_loadu_si256((const __m256i *)(const void *)(from + at + 96));
            _mm256_stream_si256((__m256i *)(void *)(to + at), a);
            _mm256_stream_si256((__m256i *)(void *)(to + at + 32), b);
            _mm256_stream_si256((__m256i *)(void *)(to + at + 64), c);
            _mm256_stream_si256((__m256i *)(void *)(to + at + 96), d);
        }
    }
    _mm256_zeroupper();
}

__attribute__((target("avx512f"))) static void copy_pages_avx512(uint8_t *to, const uint8_t *from,
                                                                 size_t pages) {
    for (size_t line = 0; line < PAGE; line += STEP) {
        for (size_t at = line; at < pages * PAGE; at += PAGE) {
            __m512i a = _mm512_loadu_si512(from + at);
            __m512i b = _mm512_loadu_si512(from + at + LINE);
            _mm512_stream_si512((__m512i *)(void *)(to + at), a);
            _mm512_stream_si512((__m512i *)(void *)(to + at + LINE), b);
        }
    }
    _mm256_zeroupper();
}

static inline void copy_by_pages(void *target, const void *source, size_t length,
                                 copy_pages *copy) {
    uint8_t *to = target;
    const uint8_t *from = source;
    if (length >= PAGE) {
        size_t head = copy_head(to, from);
        to += head, from += head, length -= head;
    }
    while (length >= PAGE) {
        size_t pages = length / PAGE < PAGES ? length / PAGE : PAGES;
        copy(to, from, pages);
        to += pages * PAGE, from += pages * PAGE, length -= pages * PAGE;
    }
    if (length != 0)
        memcpy(to, from, length);
    _mm_sfence();
}

static void copy_by_pages_avx2(void *target, const void *source, size_t length) {
    copy_by_pages(target, source, length, copy_pages_avx2);
}

static void copy_by_pages_avx512(void *target, const void *source, size_t length) {
    copy_by_pages(target, source, length, copy_pages_avx512);
}

size_t ms_copy_stream_kernels(ms_copy_kernel kernels[MS_COPY_KERNELS_MAX]) {
    size_t count = 0;
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f"))
        kernels[count++] = (ms_copy_kernel){"avx512, by pages", copy_by_pages_avx512};
    if (__builtin_cpu_supports("avx2")) {
        kernels[count++] = (ms_copy_kernel){"avx2, by pages", copy_by_pages_avx2};
        /* Not tried by pages elsewhere than on Intel's. */
        kernels[count++] = (ms_copy_kernel){"avx2, one stream", copy_avx2};
    }
    if (count != 0 && !__builtin_cpu_is("intel")) {
        ms_copy_kernel best = kernels[count - 1];
        kernels[count - 1] = kernels[0];
        kernels[0] = best;
    }
    return count;
}

#else
typedef int ms_copy_x86_is_empty; /* ISO C forbids an empty translation unit. */
#endif
