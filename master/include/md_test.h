/* A metadata core for tests in Python: flat functions, and servers that answer everything at once.
 *
 * Keys are bytes of tenant `default`.  Statuses are ms_status.  A put or remove that would be answered later is
 * answered when the function returns, unless FREEs are held back.
 */
#ifndef MD_TEST_H
#define MD_TEST_H

#include <stddef.h>
#include <stdint.h>

/* begin cdef */
typedef struct md_test md_test;

/* policy: md_policy.  No background eviction: what leaves is what a put needs. */
md_test *md_test_open(int policy, uint32_t session_timeout_ms, uint32_t soft_pin_ms);
void md_test_close(md_test *test);
/* Lets time pass, in ticks of 100 ms. */
void md_test_advance(md_test *test, int64_t ms);
/* 0, or the line of the invariant that does not hold. */
int md_test_check(const md_test *test);
/* A server with one segment; its number, or -1. */
int md_test_add_server(md_test *test, uint32_t node, uint64_t pages);
/* Held back, FREEs are not answered until they are let go. */
void md_test_hold_frees(md_test *test, int hold);
uint64_t md_test_session(md_test *test);
void md_test_session_end(md_test *test, uint64_t session);

/* flags: ms_put_flag.  *version is that of the grant when the status is OK.  PENDING: ask md_test_answer. */
int md_test_put_start(md_test *test, uint64_t session, const uint8_t *key, size_t key_length,
                      uint64_t size, uint32_t flags, uint32_t replicas, uint32_t ttl_ms,
                      const uint8_t *parent, size_t parent_length, uint64_t group,
                      uint32_t deadline_ms, uint64_t waiter, uint64_t *version);
int md_test_put_end(md_test *test, uint64_t session, const uint8_t *key, size_t key_length,
                    uint64_t version, uint64_t mask, uint64_t waiter);
int md_test_revoke(md_test *test, uint64_t session, const uint8_t *key, size_t key_length,
                   uint64_t version);
int md_test_remove(md_test *test, const uint8_t *key, size_t key_length, int force,
                   uint64_t waiter);
int md_test_exists(md_test *test, const uint8_t *key, size_t key_length);
/* Counts as a use.  *size, *version, *replicas are set when it is there. */
int md_test_lookup(md_test *test, const uint8_t *key, size_t key_length, uint64_t *size,
                   uint64_t *version, uint32_t *replicas);
void md_test_touch(md_test *test, const uint8_t *key, size_t key_length);
/* Keys: u32 length and bytes, one after the other.  How many matched, or -1 - status. */
int md_test_match_prefix(md_test *test, uint64_t session, const uint8_t *keys, size_t keys_length,
                         uint32_t count, int pin, uint32_t pin_deadline_ms);
int md_test_pin(md_test *test, uint64_t session, const uint8_t *key, size_t key_length,
                uint32_t deadline_ms);
int md_test_lease(md_test *test, uint64_t session, const uint8_t *key, size_t key_length,
                  uint32_t lease_ms);
int md_test_pins(md_test *test, uint64_t session, const uint8_t *key, size_t key_length,
                 uint32_t count, uint32_t deadline_ms);
int md_test_unpin(md_test *test, uint64_t session, const uint8_t *key, size_t key_length);
/* fields: ms_annotate_field; flags: ms_object_flag. */
int md_test_annotate(md_test *test, const uint8_t *key, size_t key_length, uint32_t fields,
                     uint32_t flags, uint64_t ttl_ms);
/* Begins or undoes a drain, or has all objects replicated, and lets tasks go as far as they can at this moment. */
int md_test_drain(md_test *test, uint32_t server, int drains);
int md_test_replicate_all(md_test *test, uint32_t replica_count);
int md_test_change_replica(md_test *test, const uint8_t *key, size_t key_length,
                           uint32_t replica_count);
/* The status of the ANSWER to this waiter, which is then forgotten, and its version; PENDING: none yet. */
int md_test_answer(md_test *test, uint64_t waiter, uint64_t *version);
/* Keys whose beginning is `prefix` from the cursor on, as u32 length and bytes; how many bytes, or -1. */
int64_t md_test_list(md_test *test, const uint8_t *prefix, size_t prefix_length, uint64_t *cursor,
                     uint32_t limit, uint32_t visit_max, uint8_t *out, size_t capacity);
/* Events from *sequence on, which is moved on: u32 kind, u32 key length, key.  How many bytes; -1: GONE. */
int64_t md_test_events(md_test *test, uint64_t *sequence, uint8_t *out, size_t capacity);
uint64_t md_test_counter(const md_test *test, const char *name);
uint64_t md_test_pages_free(const md_test *test, uint32_t server);
/* end cdef */

#endif
