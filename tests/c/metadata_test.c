// sources: master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain address
// timeout: 120
/* The metadata core, rule by rule. */
#include "metadata_harness.h"

static harness *h;

static const char *name(uint32_t i) {
    static char keys[8][32];
    static uint32_t turn;
    char *key = keys[turn++ % 8];
    snprintf(key, 32, "key-%u", i);
    return key;
}

/* A put is there after put_end, and not before. */
static void put_lookup_remove(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 1000);
    ms_location_view grant, location;
    EXPECT(harness_start(h, "a", 10000, &grant) == MS_OK);
    EXPECT(grant.head.replica_count == 1 && grant.head.size == 10000);
    EXPECT(ms_replica_extent(&grant.replicas[0], 0).page_count == 3);
    EXPECT(!harness_exists(h, "a"));
    EXPECT(harness_lookup(h, "a", &location) == MS_NOT_FOUND);
    EXPECT(harness_start(h, "a", 10000, &location) == MS_BUSY);
    harness_check(h);
    EXPECT(harness_end(h, "a", grant.head.version, 1, 2) == MS_OK);
    EXPECT(harness_end(h, "a", grant.head.version, 1, 2) == MS_OK);
    EXPECT(harness_exists(h, "a"));
    EXPECT(harness_lookup(h, "a", &location) == MS_OK);
    EXPECT(location.head.version == grant.head.version && location.head.lifetime_ms == 30000);
    EXPECT(harness_start(h, "a", 10000, &grant) == MS_EXISTS);
    harness_check(h);
    EXPECT(harness_remove(h, "a", false, 5) == MS_PENDING);
    EXPECT(harness_answer_of(h, 5) == MS_OK);
    EXPECT(!harness_exists(h, "a"));
    EXPECT(harness_remove(h, "a", false, 6) == MS_NOT_FOUND);
    md_server_view view;
    EXPECT(md_server_get(h->core, 0, &view) == MS_OK && view.pages_free == 1000);
    harness_close(h);
}

/* Thousands of objects appear and leave, and every invariant holds on the way. */
static void many(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 100000);
    harness_add_server(h, 1, 100000);
    for (uint32_t i = 0; i < 20000; i++)
        EXPECT(harness_put(h, name(i), (i * 37) % 20000) == MS_OK);
    harness_check(h);
    EXPECT(harness_counter(h, "objects") == 20000);
    for (uint32_t i = 0; i < 20000; i++)
        EXPECT(harness_exists(h, name(i)));
    for (uint32_t i = 0; i < 20000; i += 2) {
        EXPECT(harness_remove(h, name(i), false, 9) == MS_PENDING);
        h->answer_count = 0;
    }
    harness_check(h);
    for (uint32_t i = 0; i < 20000; i++)
        EXPECT(harness_exists(h, name(i)) == (i % 2 == 1));
    harness_close(h);
}

/* A full pool refuses nothing while something may leave; what was used longest ago leaves first. */
static void eviction_makes_room(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 256);
    for (uint32_t i = 0; i < 256; i++)
        EXPECT(harness_put(h, name(i), 4096) == MS_OK);
    EXPECT(harness_exists(h, name(0)));
    ms_location_view location;
    EXPECT(harness_lookup(h, name(0), &location) == MS_OK); /* a use; exists is none */
    for (uint32_t i = 256; i < 356; i++) {
        ms_put_item item = harness_item(h, name(i), 4096);
        ms_status status = harness_start_item(h, name(i), &item, 100 + i, &location);
        uint64_t version = location.head.version;
        if (status == MS_PENDING) {
            EXPECT(harness_answer_of(h, 100 + i) == MS_OK);
            version = h->answers[h->answer_count - 1].version;
        } else {
            EXPECT(status == MS_OK);
        }
        EXPECT(harness_end(h, name(i), version, 1, 2) == MS_OK);
    }
    harness_check(h);
    EXPECT(harness_exists(h, name(0)));
    for (uint32_t i = 1; i < 356; i++)
        EXPECT(harness_exists(h, name(i)) == (i > 100));
    harness_close(h);
}

int main(void) {
    h = malloc(sizeof *h);
    EXPECT(h != NULL);
    put_lookup_remove();
    many();
    eviction_makes_room();
    free(h);
    return 0;
}
