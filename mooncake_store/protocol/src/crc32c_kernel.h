/* Inside crc32c.c, crc32c_x86.c and crc32c_arm.c: the loop over three streams, once for both
 * processors, and what it needs.
 *
 * The includer defines before including with CRC_KERNEL_NAME:
 *   CRC_KERNEL_NAME        name of the function made here
 *   CRC_TARGET             attribute that allows the instruction
 *   crc_step_8(crc, byte), crc_step_64(crc, word)
 *   store_stream(address, word), store_fence()
 */
#ifndef MS_CRC32C_KERNEL_H
#define MS_CRC32C_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Continue `crc` (inverted, as in the register) over `source`; when `target` is not NULL store the
 * bytes there, past the caches when `is_streaming`. */
typedef uint32_t ms_crc32c_function(uint32_t crc, const uint8_t *source, size_t length,
                                    uint8_t *target, bool is_streaming);

typedef struct ms_crc32c_kernel {
    ms_crc32c_function *run;
    const char *kind;
} ms_crc32c_kernel;

/* The kernel of this processor; run is NULL when it has none. */
ms_crc32c_kernel ms_crc32c_kernel_here(void);

/* Bytes of each of the three streams.  Long enough that joining them (eight look-ups) is noise, short
 * enough that a 4 KiB object has one round. */
#define CRC_STREAM 1024u

/* Two rounds ahead.  The streams are too short for the processor to see them coming: on cold memory this
 * is 11 GB/s instead of 7 (nearer and farther are slower), and a copy with it 9.5 instead of 6. */
static inline void crc_prefetch(const uint8_t *address) {
    /* Past the end it has no effect; made as an integer, because such a pointer would be undefined. */
    __builtin_prefetch((const void *)((uintptr_t)address + 6 * CRC_STREAM), 0, 0);
}

/* ms_crc32c_shift[i][b]: what byte i of a register with value b becomes after CRC_STREAM zero bytes. */
extern uint32_t ms_crc32c_shift[4][256];

static inline uint32_t crc_shift_stream(uint32_t crc) {
    return ms_crc32c_shift[0][crc & 255] ^ ms_crc32c_shift[1][crc >> 8 & 255] ^
           ms_crc32c_shift[2][crc >> 16 & 255] ^ ms_crc32c_shift[3][crc >> 24];
}

#endif

#ifdef CRC_KERNEL_NAME

/* Always inlined with constant `has_target` and `is_streaming`: three loops, each without a branch. */
CRC_TARGET static inline __attribute__((always_inline)) uint32_t
crc_run(uint32_t crc, const uint8_t *source, size_t length, uint8_t *target, const bool has_target,
        const bool is_streaming) {
    if (has_target && is_streaming) {
        /* Streams start on a line of the target: CRC_STREAM is a multiple of it. */
        size_t head = (64u - (uintptr_t)target % 64u) % 64u;
        for (length -= head < length ? head : (head = length); head != 0; head--) {
            *target++ = *source;
            crc = crc_step_8(crc, *source++);
        }
    }
    while (length >= 3 * CRC_STREAM) {
        uint32_t second = 0, third = 0;
        for (size_t i = 0; i < CRC_STREAM; i += 8) {
            if (i % 64 == 0) {
                crc_prefetch(source + i);
                crc_prefetch(source + CRC_STREAM + i);
                crc_prefetch(source + 2 * CRC_STREAM + i);
            }
            uint64_t a, b, c;
            memcpy(&a, source + i, 8);
            memcpy(&b, source + CRC_STREAM + i, 8);
            memcpy(&c, source + 2 * CRC_STREAM + i, 8);
            crc = crc_step_64(crc, a);
            second = crc_step_64(second, b);
            third = crc_step_64(third, c);
            if (has_target && is_streaming) {
                store_stream(target + i, a);
                store_stream(target + CRC_STREAM + i, b);
                store_stream(target + 2 * CRC_STREAM + i, c);
            } else if (has_target) {
                memcpy(target + i, &a, 8);
                memcpy(target + CRC_STREAM + i, &b, 8);
                memcpy(target + 2 * CRC_STREAM + i, &c, 8);
            }
        }
        crc = crc_shift_stream(crc_shift_stream(crc) ^ second) ^ third;
        source += 3 * CRC_STREAM, length -= 3 * CRC_STREAM;
        if (has_target)
            target += 3 * CRC_STREAM;
    }
    for (; length >= 8; source += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, source, 8);
        crc = crc_step_64(crc, word);
        if (has_target) {
            memcpy(target, &word, 8);
            target += 8;
        }
    }
    for (; length != 0; source++, length--) {
        uint8_t byte = *source;
        crc = crc_step_8(crc, byte);
        if (has_target)
            *target++ = byte;
    }
    if (has_target && is_streaming)
        store_fence();
    return crc;
}

CRC_TARGET static uint32_t CRC_KERNEL_NAME(uint32_t crc, const uint8_t *source, size_t length,
                                           uint8_t *target, bool is_streaming) {
    if (target == NULL)
        return crc_run(crc, source, length, NULL, false, false);
    if (is_streaming)
        return crc_run(crc, source, length, target, true, true);
    return crc_run(crc, source, length, target, true, false);
}

#endif
