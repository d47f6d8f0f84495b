/* CRC32C: tables, the portable version, the choice, and joining: see ms_crc32c.h. */
#include "ms_crc32c.h"

#include "crc32c_kernel.h"
#include "ms_copy.h"

#define POLYNOMIAL 0x82f63b78u /* Castagnoli, bit-reversed: the highest power is bit 0 */

uint32_t ms_crc32c_shift[4][256];

static uint32_t table[8][256];  /* table[k][b]: register b after 1 + k zero bytes */
static uint32_t power_of_x[64]; /* power_of_x[k]: x to the power 2**k, modulo the polynomial */

/* The product of two polynomials modulo POLYNOMIAL, bit 31 being x**0. */
static uint32_t multiply(uint32_t a, uint32_t b) {
    uint32_t product = 0;
    for (uint32_t bit = 1u << 31; bit != 0; bit >>= 1) {
        if (a & bit)
            product ^= b;
        b = b & 1 ? b >> 1 ^ POLYNOMIAL : b >> 1;
    }
    return product;
}

/* x to the power 8 * length: multiplying by it is what `length` zero bytes do to a register. */
static uint32_t zeros(uint64_t length) {
    uint32_t product = 1u << 31;
    for (unsigned k = 3; length != 0; length >>= 1, k++) {
        /* x has order 2**31 - 1, so the powers come round: 2**(k + 31) is 2**k. */
        if (length & 1)
            product = multiply(power_of_x[k < 64 ? k : k - 31], product);
    }
    return product;
}

static uint32_t run_table(uint32_t crc, const uint8_t *source, size_t length, uint8_t *target,
                          bool is_streaming) {
    for (; length >= 8; source += 8, length -= 8) {
        uint64_t word;
        memcpy(&word, source, 8);
        if (target != NULL) {
            memcpy(target, &word, 8);
            target += 8;
        }
        word ^= crc;
        crc = 0;
        for (unsigned i = 0; i < 8; i++)
            crc ^= table[7 - i][word >> 8 * i & 255];
    }
    for (; length != 0; source++, length--) {
        uint8_t byte = *source;
        if (target != NULL)
            *target++ = byte;
        crc = crc >> 8 ^ table[0][(crc ^ byte) & 255];
    }
    if (is_streaming)
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return crc;
}

/* Written once, before main or dlopen returns: no thread of ours runs yet. */
static ms_crc32c_kernel kernel = {.run = run_table, .kind = "table"};

__attribute__((constructor)) static void make_tables(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        table[0][byte] = crc;
    }
    for (uint32_t byte = 0; byte < 256; byte++)
        for (int k = 1; k < 8; k++)
            table[k][byte] = table[k - 1][byte] >> 8 ^ table[0][table[k - 1][byte] & 255];
    power_of_x[0] = 1u << 30;
    for (int k = 1; k < 64; k++)
        power_of_x[k] = multiply(power_of_x[k - 1], power_of_x[k - 1]);
    uint32_t stream = zeros(CRC_STREAM);
    for (uint32_t byte = 0; byte < 256; byte++)
        for (unsigned i = 0; i < 4; i++)
            ms_crc32c_shift[i][byte] = multiply(stream, byte << 8 * i);

    ms_crc32c_kernel here = ms_crc32c_kernel_here();
    if (here.run != NULL)
        kernel = here;
}

uint32_t ms_crc32c(uint32_t crc, const void *data, size_t length) {
    return ~kernel.run(~crc, data, length, NULL, false);
}

uint32_t ms_crc32c_table(uint32_t crc, const void *data, size_t length) {
    return ~run_table(~crc, data, length, NULL, false);
}

uint32_t ms_copy_crc32c(void *target, const void *source, size_t length, uint32_t crc) {
    if (length == 0)
        return crc;
    return ~kernel.run(~crc, source, length, target, length >= ms_copy_threshold());
}

uint32_t ms_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t length_b) {
    return multiply(zeros(length_b), crc_a) ^ crc_b;
}

const char *ms_crc32c_kind(void) { return kernel.kind; }

#if !defined(__x86_64__) && !defined(__aarch64__)
ms_crc32c_kernel ms_crc32c_kernel_here(void) { return (ms_crc32c_kernel){0}; }
#endif
