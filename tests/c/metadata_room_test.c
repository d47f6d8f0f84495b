// sources: master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain address
// timeout: 300
/* The metadata core: who waits for room, and who makes it. */
#include "metadata_kit.h"

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

static void parked_puts_are_served_in_order(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 64);
    for (uint32_t i = 0; i < 16; i++)
        EXPECT(harness_put(h, name(i), 4 * 4096) == MS_OK);
    h->holds_frees = true;
    ms_location_view grant;
    ms_put_item big = harness_item(h, "big", 32 * 4096), small = harness_item(h, "small", 4096);
    EXPECT(harness_start_item(h, "big", &big, 11, &grant) == MS_PENDING);
    uint32_t evicted = h->free_count;
    EXPECT(evicted == 8); /* as much as it needs and not more */
    EXPECT(harness_start_item(h, "small", &small, 12, &grant) == MS_PENDING);
    EXPECT(h->free_count == 9);
    EXPECT(harness_start_item(h, "small", &small, 13, &grant) == MS_BUSY);
    /* One extent at a time comes back; the small one does not overtake. */
    for (uint32_t i = 0; i < 9; i++) {
        EXPECT(harness_answer_of(h, 11) == (i < 8 ? MS_PENDING : MS_OK));
        md_freed(h->core, h->now, 0, 1, &h->frees[i].item);
        harness_drain(h);
    }
    EXPECT(harness_answer_of(h, 11) == MS_OK && harness_answer_of(h, 12) == MS_OK);
    EXPECT(harness_end(h, "big", h->answers[0].version, 1, 2) == MS_OK);
    EXPECT(harness_end(h, "small", h->answers[1].version, 1, 2) == MS_OK);
    harness_check(h);
    h->free_count = 0;
    /* Nothing comes back: the deadline ends the wait, and the session lives on. */
    big = harness_item(h, "late", 40 * 4096);
    big.deadline_ms = 500;
    EXPECT(harness_start_item(h, "late", &big, 14, &grant) == MS_PENDING);
    harness_advance(h, 600);
    EXPECT(harness_answer_of(h, 14) == MS_TIMEOUT && h->ended_count == 0);
    harness_free_all(h, false);
    harness_close(h);
}

static void a_refusal_says_what_the_space_is_used_for(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 10);
    ms_put_item item = harness_item(h, "hard", 2 * 4096);
    item.flags = MS_PUT_HARD_PIN;
    EXPECT(harness_put_item(h, "hard", &item) == MS_OK);
    EXPECT(harness_put(h, "pinned", 3 * 4096) == MS_OK &&
           harness_put(h, "leased", 2 * 4096) == MS_OK);
    EXPECT(md_pin(h->core, h->now, h->session, harness_hash(h, "pinned"), 0) == MS_OK);
    EXPECT(md_pin(h->core, h->now, h->session, harness_hash(h, "leased"), 5000) == MS_OK);
    ms_location_view grant;
    EXPECT(harness_start(h, "writing", 2 * 4096, &grant) == MS_OK);
    EXPECT(harness_put(h, "idle", 4096) == MS_OK);
    ms_location_view refused;
    EXPECT(harness_start(h, "more", 2 * 4096, &refused) == MS_NO_SPACE);
    EXPECT(
        harness_exists(h, "idle")); /* nothing was evicted for a put that cannot be placed anyway */
    md_space space;
    md_space_report(h->core, &space);
    EXPECT(space.bytes_total == 10 * 4096 && space.bytes_free == 0 &&
           space.bytes_writing == 2 * 4096);
    EXPECT(space.bytes_complete == 8 * 4096 && space.bytes_hard_pinned == 2 * 4096);
    EXPECT(space.bytes_pinned == 3 * 4096 && space.bytes_leased == 2 * 4096);
    EXPECT(space.object_bytes_max == 10 * 4096);
    EXPECT(harness_start(h, "huge", 11 * 4096, &refused) == MS_TOO_LARGE);
    EXPECT(put_somehow("fits", 4096, 21) == MS_OK && !harness_exists(h, "idle"));
    harness_advance(h, 5100); /* the lease ends */
    EXPECT(put_somehow("more", 2 * 4096, 22) == MS_OK && !harness_exists(h, "leased"));
    EXPECT(harness_exists(h, "pinned") && harness_exists(h, "hard"));
    harness_close(h);
}

static void space_in_pieces_is_used(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 512);
    for (uint32_t i = 0; i < 512; i++)
        EXPECT(harness_put(h, name(i), 4096) == MS_OK);
    for (uint32_t i = 0; i < 512; i += 2)
        EXPECT(harness_remove(h, name(i), false, 1) == MS_PENDING);
    h->answer_count = 0;
    ms_location_view grant;
    EXPECT(harness_start(h, "pieces", 200 * 4096, &grant) == MS_OK);
    EXPECT(grant.replicas[0].extents.count == 200);
    EXPECT(harness_end(h, "pieces", grant.head.version, 1, 2) == MS_OK);
    harness_check(h);
    /* 312 pages in 256 pieces at most: more has to go than there are pages missing. */
    EXPECT(put_somehow("whole", 300 * 4096, 5) == MS_OK);
    harness_check(h);
    harness_close(h);
}

static void a_put_waits_for_pages_that_are_being_made_ready(void) {
    harness_open_default(h);
    uint32_t server;
    EXPECT(harness_join_as(h, 0, 1, 100, 10, "", &server) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, server, 1) == MS_OK);
    EXPECT(harness_put(h, "a", 8 * 4096) == MS_OK);
    ms_put_item item = harness_item(h, "b", 20 * 4096);
    ms_location_view grant;
    EXPECT(harness_start_item(h, "b", &item, 7, &grant) == MS_PENDING);
    EXPECT(harness_exists(h, "a")); /* not evicted: there will be room */
    EXPECT(md_segment_ready(h->core, h->now, server, 1, 0, 25) == MS_OK);
    harness_drain(h);
    EXPECT(harness_answer_of(h, 7) == MS_PENDING);
    EXPECT(md_segment_ready(h->core, h->now, server, 1, 0, 30) == MS_OK);
    harness_drain(h);
    EXPECT(harness_answer_of(h, 7) == MS_OK);
    harness_check(h);
    EXPECT(md_segment_ready(h->core, h->now, server, 2, 0, 100) == MS_WRONG_INCARNATION);
    EXPECT(md_segment_ready(h->core, h->now, server, 1, 0, 1000) == MS_OK &&
           pages_free(server) == 72);
    harness_close(h);
}

static void a_group_leaves_together(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 10);
    for (uint32_t i = 0; i < 8; i++) {
        ms_put_item item = harness_item(h, name(i), 4096);
        item.group = i % 2 == 0 ? 77 : 0;
        EXPECT(harness_put_item(h, name(i), &item) == MS_OK);
    }
    ms_location_view location;
    EXPECT(put_somehow("x", 4 * 4096, 9) ==
           MS_OK); /* key 0 is the oldest, and takes 2, 4 and 6 with it */
    for (uint32_t i = 0; i < 8; i++)
        EXPECT(harness_exists(h, name(i)) == (i % 2 == 1));
    /* The last of a group, replaced by itself. */
    ms_put_item alone = harness_item(h, "alone", 4096);
    alone.group = 6;
    alone.flags = MS_PUT_UPSERT;
    EXPECT(harness_put_item(h, "alone", &alone) == MS_OK);
    EXPECT(harness_put_item(h, "alone", &alone) == MS_PENDING);
    EXPECT(harness_remove(h, "alone", false, 1) == MS_PENDING);
    /* While one of a group is pinned, none of it leaves. */
    ms_put_item item = harness_item(h, "g1", 4096);
    item.group = 5;
    EXPECT(harness_put_item(h, "g1", &item) == MS_OK);
    item = harness_item(h, "g2", 4096);
    item.group = 5;
    EXPECT(harness_put_item(h, "g2", &item) == MS_OK);
    EXPECT(md_pin(h->core, h->now, h->session, harness_hash(h, "g2"), 0) == MS_OK);
    for (uint32_t i = 1; i < 8; i += 2)
        EXPECT(harness_lookup(h, name(i), &location) == MS_OK);
    EXPECT(put_somehow("y", 5 * 4096, 10) == MS_OK);
    EXPECT(harness_exists(h, "g1") && harness_exists(h, "g2"));
    harness_close(h);
}

static void a_chain_loses_its_tail_first(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 10);
    for (uint32_t i = 0; i < 10; i++) {
        ms_put_item item = harness_item(h, name(i), 4096);
        if (i > 0)
            item.parent = harness_hash(h, name(i - 1));
        EXPECT(harness_put_item(h, name(i), &item) == MS_OK);
    }
    for (uint32_t left = 10; left-- > 4;) {
        char key[16];
        snprintf(key, sizeof key, "new-%u", left);
        EXPECT(put_somehow(key, 4096, 100 + left) == MS_OK);
        for (uint32_t i = 0; i < 10; i++)
            EXPECT(harness_exists(h, name(i)) == (i < left));
        EXPECT(harness_remove(h, key, false, 1) == MS_PENDING);
        ms_location_view pad;
        EXPECT(harness_start(h, key, 4096, &pad) == MS_OK); /* keeps the page */
        h->answer_count = 0;
    }
    harness_check(h);
    harness_close(h);
}

static void the_watermark_keeps_head_room(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 1000);
    for (uint32_t i = 0; i < 960; i++)
        EXPECT(harness_put(h, name(i), 4096) == MS_OK);
    ms_put_item item = harness_item(h, name(0), 4096);
    EXPECT(harness_counter(h, "evicted") == 0);
    harness_advance(h, 100);
    EXPECT(harness_counter(h, "evicted") == 40 && pages_free(0) == 80);
    for (uint32_t i = 0; i < 40; i++)
        EXPECT(!harness_exists(h, name(i)));
    (void)item;
    harness_close(h);
}

static void the_watermark_spares_what_has_just_come(void) {
    static const md_policy policies[] = {MD_LRU, MD_LFU, MD_LENGTH_AWARE, MD_SIEVE};
    for (size_t at = 0; at < sizeof policies / sizeof policies[0]; at++) {
        md_config config;
        md_config_default(&config);
        config.policy = policies[at];
        harness_open(h, &config);
        harness_add_server(h, 0, 1000);
        /* What leaves less room than the watermark wants: all others go, it stays, also when it is never used. */
        EXPECT(harness_put(h, name(0), 4096) == MS_OK);
        EXPECT(harness_put(h, "large", 960 * 4096) == MS_OK);
        harness_advance(h, 1000);
        EXPECT(harness_exists(h, "large"));
        /* Once as much as the head-room has come after it, twice over, it is like any other. */
        for (uint32_t i = 1; i <= 32; i++)
            EXPECT(harness_put(h, name(i), 4096) == MS_OK);
        harness_advance(h, 1000);
        EXPECT(harness_exists(h, "large"));
        for (uint32_t i = 33; i <= 200; i++)
            EXPECT(put_somehow(name(i), 4096, i) == MS_OK);
        harness_advance(h, 1000);
        EXPECT(!harness_exists(h, "large") && harness_exists(h, name(200)));
        harness_check(h);
        harness_close(h);
    }
}

int main(void) {
    h = malloc(sizeof *h);
    EXPECT(h != NULL);
    eviction_makes_room();
    many();
    parked_puts_are_served_in_order();
    a_refusal_says_what_the_space_is_used_for();
    space_in_pieces_is_used();
    a_put_waits_for_pages_that_are_being_made_ready();
    a_group_leaves_together();
    a_chain_loses_its_tail_first();
    the_watermark_keeps_head_room();
    the_watermark_spares_what_has_just_come();
    free(h);
    return 0;
}
