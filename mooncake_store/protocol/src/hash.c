/* Key hashes and key validation: see ms_hash.h. */
#include "ms_hash.h"

#include <assert.h>
#include <string.h>

/* Everything of xxHash is compiled into this file as static functions: no symbol leaves it, and keys
 * of at most 240 bytes (nearly all) take paths without vectors, so no dispatch is needed. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wunused-function"
#define XXH_INLINE_ALL
#define XXH_NO_STREAM
#include "xxhash/xxhash.h"
#pragma GCC diagnostic pop

ms_hash ms_hash_key(const uint8_t secret[MS_SECRET_BYTES], const void *tenant, size_t tenant_length,
                    const void *key, size_t key_length) {
    assert(tenant_length <= MS_TENANT_BYTES_MAX && key_length <= MS_KEY_BYTES_MAX);
    uint8_t input[1 + MS_TENANT_BYTES_MAX + MS_KEY_BYTES_MAX];
    input[0] = (uint8_t)tenant_length;
    if (tenant_length != 0)
        memcpy(input + 1, tenant, tenant_length);
    if (key_length != 0)
        memcpy(input + 1 + tenant_length, key, key_length);
    XXH128_hash_t hash =
        XXH3_128bits_withSecret(input, 1 + tenant_length + key_length, secret, MS_SECRET_BYTES);
    return (ms_hash){.low = hash.low64, .high = hash.high64};
}

void ms_hash_key_bytes(const uint8_t *secret, const char *tenant, size_t tenant_length,
                       const char *key, size_t key_length, uint8_t *hash) {
    ms_hash value = ms_hash_key(secret, tenant, tenant_length, key, key_length);
    memcpy(hash, &value, sizeof value);
}

static bool is_continuation(uint8_t byte) { return (byte & 0xc0) == 0x80; }

/* The length of the well-formed sequence at `at` (RFC 3629, section 4), or 0. */
static size_t sequence_length(const uint8_t *at, size_t left) {
    uint8_t first = at[0];
    if (first < 0x80)
        return 1;
    if (first < 0xc2)
        return 0; /* a continuation byte, or a longer form of ASCII */
    if (first < 0xe0)
        return left >= 2 && is_continuation(at[1]) ? 2 : 0;
    if (first < 0xf0) {
        if (left < 3 || !is_continuation(at[1]) || !is_continuation(at[2]))
            return 0;
        if (first == 0xe0 && at[1] < 0xa0)
            return 0; /* longer than needed */
        if (first == 0xed && at[1] >= 0xa0)
            return 0; /* a surrogate */
        return 3;
    }
    if (first > 0xf4 || left < 4)
        return 0;
    if (!is_continuation(at[1]) || !is_continuation(at[2]) || !is_continuation(at[3]))
        return 0;
    if (first == 0xf0 && at[1] < 0x90)
        return 0; /* longer than needed */
    if (first == 0xf4 && at[1] >= 0x90)
        return 0; /* above U+10FFFF */
    return 4;
}

bool ms_key_valid(const char *key, size_t length) {
    if (length == 0 || length > MS_KEY_BYTES_MAX)
        return false;
    const uint8_t *at = (const uint8_t *)key;
    for (size_t left = length; left != 0;) {
        uint64_t eight;
        if (left >= 8) { /* keys are ASCII nearly always: eight bytes in one test */
            memcpy(&eight, at, 8);
            if ((eight & 0x8080808080808080u) == 0) {
                at += 8, left -= 8;
                continue;
            }
        }
        size_t step = sequence_length(at, left);
        if (step == 0)
            return false;
        at += step, left -= step;
    }
    return true;
}
