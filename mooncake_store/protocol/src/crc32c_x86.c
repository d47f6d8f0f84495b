/* CRC32C with the instruction of SSE4.2. */
#if defined(__x86_64__)

#include <immintrin.h>
#include <stdint.h>

#define CRC_KERNEL_NAME crc_sse42
#define CRC_TARGET __attribute__((target("sse4.2")))
#define crc_step_8(crc, byte) _mm_crc32_u8((crc), (byte))
#define crc_step_64(crc, word) ((uint32_t)_mm_crc32_u64((crc), (word)))
#define store_stream(address, word)                                                                \
    _mm_stream_si64((long long *)(void *)(address), (long long)(word))
#define store_fence() _mm_sfence()
#include "crc32c_kernel.h"

ms_crc32c_kernel ms_crc32c_kernel_here(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("sse4.2"))
        return (ms_crc32c_kernel){0};
    return (ms_crc32c_kernel){.run = crc_sse42, .kind = "sse4.2"};
}

#else
typedef int ms_crc32c_x86_is_empty; /* ISO C forbids an empty translation unit. */
#endif
