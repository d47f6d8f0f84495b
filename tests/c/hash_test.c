/* Key hashes against golden vectors, and what may be a key. */
// sources: mooncake_store/protocol/src/hash.c
// variants: plain address
#include "ms_hash.h"

#include "golden.h"

static uint8_t secret[MS_SECRET_BYTES];

static void check_vector(const char *line, void *context) {
    static char hex[2 * GOLDEN_BYTES_MAX + 1];
    uint8_t tenant[MS_TENANT_BYTES_MAX], key[MS_KEY_BYTES_MAX], wanted[16], found[16];
    if (golden_field(line, "hash", hex, sizeof hex) == NULL)
        return;
    assert(golden_unhex(hex, wanted, sizeof wanted) == 16);
    assert(golden_field(line, "tenant", hex, sizeof hex) != NULL);
    size_t tenant_length = golden_unhex(hex, tenant, sizeof tenant);
    assert(golden_field(line, "key", hex, sizeof hex) != NULL);
    size_t key_length = golden_unhex(hex, key, sizeof key);
    ms_hash_key_bytes(secret, (char *)tenant, tenant_length, (char *)key, key_length, found);
    assert(memcmp(found, wanted, 16) == 0);
    ++*(int *)context;
}

static void test_hashes_are_golden(void) {
    int count = 0;
    for (unsigned i = 0; i < sizeof secret; i++)
        secret[i] = (uint8_t)i;
    golden_lines(check_vector, &count);
    assert(count == 12);
}

static void test_tenant_secret_and_key_all_count(void) {
    ms_hash hash = ms_hash_key(secret, "default", 7, "key", 3);
    assert(!ms_hash_equal(hash, ms_hash_key(secret, "defaul", 6, "tkey", 4)));
    assert(!ms_hash_equal(hash, ms_hash_key(secret, "other", 5, "key", 3)));
    secret[40] ^= 1;
    assert(!ms_hash_equal(hash, ms_hash_key(secret, "default", 7, "key", 3)));
    secret[40] ^= 1;
    assert(ms_hash_equal(hash, ms_hash_key(secret, "default", 7, "key", 3)));
}

/* Behind letters too, so that both the eight-byte step and the byte step see each sequence. */
static void expect(const char *bytes, size_t length, bool is_valid) {
    for (size_t letters = 0; letters < 20; letters++) {
        uint8_t *key = malloc(letters + length); /* exact, for AddressSanitizer */
        assert(key != NULL);
        memset(key, 'a', letters);
        memcpy(key + letters, bytes, length);
        assert(ms_key_valid((char *)key, letters + length) == is_valid);
        free(key);
    }
}

static void test_keys_are_utf8_of_1_to_1024_bytes(void) {
    char longest[MS_KEY_BYTES_MAX + 1];
    memset(longest, 'k', sizeof longest);
    assert(!ms_key_valid(longest, 0));
    assert(ms_key_valid(longest, 1) && ms_key_valid(longest, MS_KEY_BYTES_MAX));
    assert(!ms_key_valid(longest, MS_KEY_BYTES_MAX + 1));
#define KEY(text, is_valid) expect(text, sizeof text - 1, is_valid)
    KEY("\0", true); /* U+0000 is a character */
    KEY("\x7f", true);
    KEY("\x80", false);     /* a continuation alone */
    KEY("\xc1\xbf", false); /* longer than needed */
    KEY("\xc2\x80", true);
    KEY("\xdf\xbf", true);
    KEY("\xdf", false); /* cut */
    KEY("\xdf\x41", false);
    KEY("\xe0\x9f\xbf", false); /* longer than needed */
    KEY("\xe0\xa0\x80", true);
    KEY("\xed\x9f\xbf", true);
    KEY("\xed\xa0\x80", false); /* a surrogate */
    KEY("\xed\xbf\xbf", false);
    KEY("\xee\x80\x80", true);
    KEY("\xef\xbf\xbf", true);
    KEY("\xef\xbf", false);
    KEY("\xf0\x8f\xbf\xbf", false); /* longer than needed */
    KEY("\xf0\x90\x80\x80", true);
    KEY("\xf4\x8f\xbf\xbf", true);
    KEY("\xf4\x90\x80\x80", false); /* above U+10FFFF */
    KEY("\xf5\x80\x80\x80", false);
    KEY("\xf0\x90\x80", false);
    KEY("\xff", false);
#undef KEY
}

int main(void) {
    test_hashes_are_golden();
    test_tenant_secret_and_key_all_count();
    test_keys_are_utf8_of_1_to_1024_bytes();
    return 0;
}
