/* Which 16 bytes stand for a key on the wire and in every table.
 *
 * The hash is XXH3-128 with the 192-byte secret of the cluster over: u8 tenant length, tenant, key.
 * The tenant is inside, so equal keys of two tenants share nothing; the secret makes collisions
 * unguessable for whoever does not have it.  XXH3 is no cryptographic hash: put, remove and list
 * carry and compare the full key.
 */
#ifndef MS_HASH_H
#define MS_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ms_wire.h"

/* Tenant at most MS_TENANT_BYTES_MAX, key at most MS_KEY_BYTES_MAX bytes: the caller has checked. */
ms_hash ms_hash_key(const uint8_t secret[MS_SECRET_BYTES], const void *tenant, size_t tenant_length,
                    const void *key, size_t key_length);

static inline bool ms_hash_equal(ms_hash a, ms_hash b) {
    return a.low == b.low && a.high == b.high;
}

/* 0,0 on the wire means "no parent". */
static inline bool ms_hash_is_none(ms_hash hash) { return (hash.low | hash.high) == 0; }

/* begin cdef */
/* Whether these bytes may be a key: 1 to 1024 bytes of well-formed UTF-8 (RFC 3629: shortest forms,
 * no surrogates, at most U+10FFFF). */
bool ms_key_valid(const char *key, size_t length);

/* ms_hash_key as the 16 bytes of the wire: low, high, little-endian. */
void ms_hash_key_bytes(const uint8_t *secret, const char *tenant, size_t tenant_length,
                       const char *key, size_t key_length, uint8_t *hash);
/* end cdef */

#endif
