/* What the tests of the metadata core share beside the harness. */
#ifndef METADATA_KIT_H
#define METADATA_KIT_H

#include "metadata_harness.h"

static harness *h;

static inline const char *name(uint32_t i) {
    static char keys[8][32];
    static uint32_t turn;
    char *key = keys[turn++ % 8];
    snprintf(key, 32, "key-%u", i);
    return key;
}

/* A put that is answered later, as if it had been answered at once. */
static inline ms_status put_somehow(const char *key, uint64_t size, uint64_t waiter) {
    ms_put_item item = harness_item(h, key, size);
    ms_location_view grant;
    ms_status status = harness_start_item(h, key, &item, waiter, &grant);
    uint64_t version = grant.head.version;
    if (status == MS_PENDING) {
        status = harness_answer_of(h, waiter);
        version = h->answers[h->answer_count - 1].version;
    }
    return status == MS_OK ? harness_end(h, key, version, UINT64_MAX, 2) : status;
}

static inline uint64_t pages_free(uint32_t server) {
    md_server_view view;
    EXPECT(md_server_get(h->core, server, &view) == MS_OK);
    return view.pages_free;
}

static inline ms_status tell(uint32_t server, uint32_t incarnation, const char *key,
                             uint64_t version, uint64_t size, uint32_t page, uint32_t page_count,
                             uint16_t part, uint16_t parts) {
    ms_inventory_item item = {.hash = harness_hash(h, key),
                              .version = version,
                              .size = size,
                              .note = version,
                              .page = page,
                              .page_count = page_count,
                              .part = part,
                              .part_count = parts,
                              .key_length = (uint16_t)strlen(key),
                              .state = 1,
                              .tenant_length = 7};
    ms_status status = md_inventory(h->core, h->now, server, incarnation, &item,
                                    (const uint8_t *)"default", (const uint8_t *)key);
    harness_drain(h);
    return status;
}

static inline ms_status annotate(const char *key, uint32_t fields, uint32_t flags, uint64_t ttl_ms,
                                 uint64_t waiter) {
    ms_annotate asked = {.fields = fields, .flags = flags, .ttl_ms = ttl_ms};
    ms_status status = md_annotate(h->core, h->now, 0, harness_hash(h, key), (const uint8_t *)key,
                                   strlen(key), &asked, waiter);
    harness_drain(h);
    return status;
}

static inline ms_status change(const char *key, uint32_t count, uint32_t target, uint32_t source,
                               uint64_t waiter) {
    ms_change_replica asked = {
        .replica_count = count, .target_server = target, .source_server = source};
    ms_status status = md_change_replica(h->core, h->now, 0, harness_hash(h, key),
                                         (const uint8_t *)key, strlen(key), &asked, waiter);
    harness_drain(h);
    return status;
}

#endif
