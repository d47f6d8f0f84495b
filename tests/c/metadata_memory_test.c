// sources: master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain address
// timeout: 300
/* The metadata core: every call for memory fails once. */
#include "md_memory.h"
#include "metadata_kit.h"

/* A little of everything, where any call for memory may have failed: what was refused is not there, what was
 * accepted is, and the invariants hold. */
static void live_through(uint64_t after) {
    md_config config;
    md_config_default(&config);
    config.events_max = 64;
    memset(h, 0, sizeof *h);
    h->config = config;
    h->now = (md_now){.now_ms = 1000000, .wall_ms = 1700000000000};
    md_memory_fail_after(after);
    ms_status status = md_open(&h->config, &h->core);
    if (status != MS_OK) {
        EXPECT(status == MS_NO_MEMORY);
        return;
    }
    bool stored[64] = {false};
    uint32_t server;
    for (uint32_t i = 0; i < 2; i++) {
        while ((status = harness_join_as(h, i, 1, 40, 20, "host", &server)) != MS_OK)
            EXPECT(status == MS_NO_MEMORY);
        while ((status = md_inventory_end(h->core, h->now, server, 1)) != MS_OK)
            EXPECT(status == MS_NO_MEMORY);
        while ((status = md_segment_ready(h->core, h->now, server, 1, 0, 40)) != MS_OK)
            EXPECT(status == MS_NO_MEMORY);
        harness_drain(h);
    }
    while ((status = md_session_open(h->core, h->now, (const uint8_t *)"default", 7,
                                     &h->session)) != MS_OK)
        EXPECT(status == MS_NO_MEMORY);
    for (uint32_t i = 0; i < 64; i++) {
        ms_put_item item = harness_item(h, name(i), (i % 5) * 4096);
        item.replica_count = (uint8_t)(1 + i % 2);
        item.group = i % 7 == 0 ? 9 : 0;
        item.parent = i % 3 == 0 && i > 0 ? harness_hash(h, name(i - 1)) : (ms_hash){0};
        item.ttl_ms = i % 11 == 0 ? 100000 : 0;
        ms_location_view grant;
        status = harness_start_item(h, name(i), &item, 1000 + i, &grant);
        uint64_t version = grant.head.version;
        if (status == MS_PENDING) {
            status = harness_answer_of(h, 1000 + i);
            version = h->answers[h->answer_count - 1].version;
        }
        EXPECT(status == MS_OK || status == MS_NO_MEMORY || status == MS_PENDING);
        if (status != MS_OK)
            continue;
        status = harness_end(h, name(i), version, 3, 1);
        EXPECT(status == MS_OK || status == MS_NO_MEMORY);
        if (status == MS_NO_MEMORY)
            EXPECT(harness_end(h, name(i), version, 3, 1) == MS_OK);
        stored[i] = true;
        harness_check(h);
    }
    for (uint32_t i = 0; i < 64; i++) {
        uint8_t there = harness_exists(h, name(i));
        EXPECT(!there || stored[i]);
        if (i % 4 == 0 && there) {
            status = md_pin(h->core, h->now, h->session, harness_hash(h, name(i)), 500);
            EXPECT(status == MS_OK || status == MS_NO_MEMORY);
            status = annotate(name(i), MS_ANNOTATE_TTL, 0, 50000, 5);
            EXPECT(status == MS_PENDING || status == MS_NO_MEMORY);
            status = change(name(i), 2, 0, 0, 6);
            EXPECT(status == MS_PENDING || status == MS_NO_MEMORY || status == MS_OK);
        }
        if (i % 4 == 1 && there) {
            status = harness_remove(h, name(i), true, 7);
            EXPECT(status == MS_PENDING || status == MS_NO_MEMORY);
            if (status ==
                MS_NO_MEMORY) /* before or after it left; the repeat waits for what is leaving */
                EXPECT((status = harness_remove(h, name(i), true, 7)) == MS_PENDING ||
                       status == MS_NOT_FOUND);
            EXPECT(!harness_exists(h, name(i)));
        }
        h->answer_count = 0;
        harness_check(h);
    }
    /* A server comes back empty, another comes with objects. */
    md_server_gone(h->core, h->now, 1, 1);
    harness_advance(h, 300);
    while ((status = harness_join_as(h, 1, 2, 40, 40, "host", &server)) != MS_OK ||
           (status = md_inventory_end(h->core, h->now, server, 2)) != MS_OK)
        EXPECT(status == MS_NO_MEMORY);
    do {
        while ((status = harness_join_as(h, 2, 2, 40, 40, "host", &server)) != MS_OK)
            EXPECT(status == MS_NO_MEMORY);
        for (uint32_t i = 0; i < 3 && status == MS_OK; i++) {
            status = tell(server, 2, name(100 + i), 500 + i, 2 * 4096, i * 3, 1, 0, 2);
            if (status == MS_OK)
                status = tell(server, 2, name(100 + i), 500 + i, 2 * 4096, i * 3 + 1, 1, 1, 2);
        }
        if (status == MS_OK)
            status = md_inventory_end(h->core, h->now, server, 2);
        EXPECT(status == MS_OK ||
               status == MS_NO_MEMORY); /* its connection is closed, it comes again */
    } while (status != MS_OK);
    harness_drain(h);
    harness_advance(h, 12000);
    for (uint32_t i = 0; i < 3; i++)
        EXPECT(harness_exists(h, name(100 + i)));
    md_memory_fail_after(0);
    harness_advance(h, 12000);
    harness_check(h);
    md_close(h->core);
}

static void every_call_for_memory_may_fail(void) {
    for (uint64_t after = 1; after < 300; after++)
        live_through(after);
}

int main(void) {
    h = malloc(sizeof *h);
    EXPECT(h != NULL);
    every_call_for_memory_may_fail();
    free(h);
    return 0;
}
