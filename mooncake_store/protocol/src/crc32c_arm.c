/* CRC32C with the instructions of ARMv8. */
#if defined(__aarch64__)

#include <arm_acle.h>
#include <stdint.h>
#include <sys/auxv.h>

#ifndef HWCAP_CRC32
#define HWCAP_CRC32 (1 << 7)
#endif

#define CRC_KERNEL_NAME crc_armv8
#define CRC_TARGET __attribute__((target("+crc")))
#define crc_step_8(crc, byte) __crc32cb((crc), (byte))
#define crc_step_64(crc, word) __crc32cd((crc), (word))
/* There is no store of eight bytes past the caches; `stnp` is a hint that pairs registers and brought
 * nothing, so these are ordinary stores with the fence that the contract promises. */
#define store_stream(address, word) memcpy((address), &(word), 8)
#define store_fence() __atomic_thread_fence(__ATOMIC_SEQ_CST)
#include "crc32c_kernel.h"

ms_crc32c_kernel ms_crc32c_kernel_here(void) {
    if ((getauxval(AT_HWCAP) & HWCAP_CRC32) == 0)
        return (ms_crc32c_kernel){0};
    return (ms_crc32c_kernel){.run = crc_armv8, .kind = "armv8-crc"};
}

#else
typedef int ms_crc32c_arm_is_empty; /* ISO C forbids an empty translation unit. */
#endif
