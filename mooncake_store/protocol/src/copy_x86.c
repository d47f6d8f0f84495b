/* The streaming copy of x86-64: AVX2 non-temporal stores. */
#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#include "copy_kernel.h"

#define LINE 64u
#define STEP 128u       /* bytes a round: two lines, four registers */
#define AHEAD 512u      /* prefetch distance, measured best of 256 to 2048 */
#define LENGTH_MIN 512u /* below it aligning costs more than it brings */

__attribute__((target("avx2"))) static void copy_avx2(void *target, const void *source,
                                                      size_t length) {
    uint8_t *to = target;
    const uint8_t *from = source;
    if (length >= LENGTH_MIN) {
        /* A line of the target must be filled whole to leave the write-combining buffer at once. */
        size_t head = (LINE - (uintptr_t)to % LINE) % LINE;
        memcpy(to, from, head);
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

ms_copy_function *ms_copy_stream_kernel(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("avx2") ? copy_avx2 : NULL;
}

#else
typedef int ms_copy_x86_is_empty; /* ISO C forbids an empty translation unit. */
#endif
