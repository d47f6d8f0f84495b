/* Copies and checksums: every alignment, lengths around every boundary, each kernel against a plain loop. */
// sources: mooncake_store/protocol/src/c*.c
// variants: plain address
#include "ms_copy.h"

#include "../../mooncake_store/protocol/src/copy_kernel.h"
#include "ms_crc32c.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state = 0x9e3779b97f4a7c15u;

static uint32_t next_random(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (uint32_t)(state >> 32);
}

/* Bit by bit, from the definition: the reference that everything is compared with. */
static uint32_t crc_of_definition(const uint8_t *data, size_t length) {
    uint32_t crc = ~0u;
    for (size_t i = 0; i < length; i++) {
        crc ^= data[i];
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    }
    return ~crc;
}

static void test_known_checksums(void) {
    uint8_t data[32];
    assert(ms_crc32c(0, "123456789", 9) == 0xe3069283u);
    assert(ms_crc32c(0, "", 0) == 0 && ms_crc32c(77, NULL, 0) == 77);
    /* RFC 3720, appendix B.4 */
    memset(data, 0, sizeof data);
    assert(ms_crc32c(0, data, 32) == 0x8a9136aau);
    memset(data, 0xff, sizeof data);
    assert(ms_crc32c(0, data, 32) == 0x62a8ab43u);
    for (uint8_t i = 0; i < 32; i++)
        data[i] = i;
    assert(ms_crc32c(0, data, 32) == 0x46dd794eu);
    printf("crc32c: %s\n", ms_crc32c_kind());
}

typedef struct guarded {
    uint8_t *memory; /* exact, so that AddressSanitizer sees one byte too many */
    uint8_t *bytes;
} guarded;

static guarded guarded_alloc(size_t misalignment, size_t length) {
    guarded made = {.memory = aligned_alloc(64, (misalignment + length + 63) / 64 * 64 + 64)};
    assert(made.memory != NULL);
    made.bytes = made.memory + misalignment;
    memset(made.memory, 0x5a, misalignment + length + 8);
    return made;
}

static void check_one(size_t length, size_t source_misalignment, size_t target_misalignment) {
    guarded source = guarded_alloc(source_misalignment, length);
    for (size_t i = 0; i < length; i++)
        source.bytes[i] = (uint8_t)next_random();
    uint32_t wanted = ms_crc32c_table(0, source.bytes, length);
    if (length <= 4096)
        assert(wanted == crc_of_definition(source.bytes, length));
    assert(ms_crc32c(0, source.bytes, length) == wanted);
    size_t cut = length != 0 ? next_random() % length : 0;
    uint32_t left = ms_crc32c(0, source.bytes, cut);
    uint32_t right = ms_crc32c(0, source.bytes + cut, length - cut);
    assert(ms_crc32c(left, source.bytes + cut, length - cut) == wanted);
    assert(ms_crc32c_combine(left, right, length - cut) == wanted);

    ms_copy_kernel kernels[MS_COPY_KERNELS_MAX];
    int kernel_count = (int)ms_copy_stream_kernels(kernels);
    for (int way = 0; way < 4 + kernel_count; way++) {
        guarded target = guarded_alloc(target_misalignment, length);
        if (way == 0) {
            ms_copy(target.bytes, source.bytes, length);
        } else if (way == 1) {
            ms_copy_stream(target.bytes, source.bytes, length);
        } else if (way >= 4) {
            kernels[way - 4].copy(target.bytes, source.bytes, length);
        } else {
            ms_copy_set_threshold(way == 2 ? SIZE_MAX : 1);
            assert(ms_copy_crc32c(target.bytes, source.bytes, length, 0) == wanted);
            ms_copy_set_threshold(256u << 10);
        }
        assert(length == 0 || memcmp(target.bytes, source.bytes, length) == 0);
        for (size_t i = 0; i < target_misalignment; i++)
            assert(target.memory[i] == 0x5a);
        for (size_t i = 0; i < 8; i++)
            assert(target.bytes[length + i] == 0x5a);
        free(target.memory);
    }
    free(source.memory);
}

static void test_all_alignments_and_lengths(void) {
    static const size_t edges[] = {0,   1,   7,   8,    31,   63,   64,   127,  128,  511,
                                   512, 513, 640, 3071, 3072, 3073, 4096, 6144, 6145, 9999};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++)
        for (size_t source = 0; source < 64; source += 7)
            for (size_t target = 0; target < 64; target += 9)
                check_one(edges[i], source, target);
    for (int i = 0; i < 2000; i++)
        check_one(next_random() % 12000, next_random() % 64, next_random() % 64);
    for (int pages = 1; pages < 10; pages++) /* whole groups of pages, and what is left of one */
        for (int i = 0; i < 20; i++)
            check_one((size_t)pages * 4096 - 70 + next_random() % 140, next_random() % 64,
                      next_random() % 64);
    for (int i = 0; i < 10; i++)
        check_one((256u << 10) - 3 + next_random() % 6, next_random() % 64, next_random() % 64);
}

static void test_combining_long_lengths(void) {
    /* The checksum of 2**k zeros, doubled up to lengths that no memory holds.  Combining is associative:
     * (a b) c is a (b c), which fails when the shift by 2**k zeros is wrong for any k. */
    uint8_t zero = 0;
    uint32_t zeros = ms_crc32c(0, &zero, 1);
    for (uint64_t length = 1; length < 1ull << 62; length *= 2) {
        uint32_t a = next_random(), b = next_random();
        uint32_t left = ms_crc32c_combine(ms_crc32c_combine(a, b, length), zeros, length);
        uint32_t right = ms_crc32c_combine(a, ms_crc32c_combine(b, zeros, length), 2 * length);
        assert(left == right);
        zeros = ms_crc32c_combine(zeros, zeros, length);
        if (length <= 1u << 20) {
            uint8_t *memory = calloc(2, length);
            assert(memory != NULL && ms_crc32c(0, memory, 2 * length) == zeros);
            free(memory);
        }
    }
}

static void test_threshold(void) {
    assert(ms_copy_threshold() == 256u << 10);
    ms_copy_set_threshold(4096);
    assert(ms_copy_threshold() == 4096);
    check_one(4095, 3, 5);
    check_one(4096, 3, 5);
    ms_copy_set_threshold(256u << 10);
}

int main(void) {
    test_known_checksums();
    test_all_alignments_and_lengths();
    test_combining_long_lengths();
    test_threshold();
    return 0;
}
