// sources: master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain address
// timeout: 300
/* The metadata core, rule by rule. */
#include "md_memory.h"
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

/* A put that is answered later, as if it had been answered at once. */
static ms_status put_somehow(const char *key, uint64_t size, uint64_t waiter) {
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

static uint64_t pages_free(uint32_t server) {
    md_server_view view;
    EXPECT(md_server_get(h->core, server, &view) == MS_OK);
    return view.pages_free;
}

static void put_end_names_its_grant(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 100);
    ms_location_view grant;
    EXPECT(harness_start(h, "a", 100, &grant) == MS_OK);
    EXPECT(harness_end(h, "a", grant.head.version + 1, 1, 2) == MS_GONE);
    EXPECT(harness_end(h, "b", grant.head.version, 1, 2) == MS_GONE);
    EXPECT(harness_end(h, "a", grant.head.version, 0, 2) == MS_BAD_REQUEST);
    uint64_t other, mine = h->session;
    EXPECT(md_session_open(h->core, h->now, (const uint8_t *)"default", 7, &other) == MS_OK);
    h->session = other;
    EXPECT(harness_end(h, "a", grant.head.version, 1, 2) == MS_GONE);
    h->session = other + 100;
    EXPECT(harness_end(h, "a", grant.head.version, 1, 2) == MS_SESSION_LOST);
    h->session = mine;
    EXPECT(harness_end(h, "a", grant.head.version, 1, 2) == MS_OK);
    harness_close(h);
}

static void replicas_that_were_not_sealed_are_freed(void) {
    harness_open_default(h);
    for (uint32_t i = 0; i < 3; i++)
        harness_add_server(h, i, 100);
    ms_put_item item = harness_item(h, "a", 8192);
    item.replica_count = 3;
    ms_location_view grant, location;
    EXPECT(harness_start_item(h, "a", &item, 1, &grant) == MS_OK && grant.head.replica_count == 3);
    EXPECT(grant.replicas[0].head.server != grant.replicas[1].head.server);
    EXPECT(harness_end(h, "a", grant.head.version, 1 << 1, 2) == MS_OK);
    EXPECT(harness_lookup(h, "a", &location) == MS_OK && location.head.replica_count == 1);
    EXPECT(location.replicas[0].head.server == grant.replicas[1].head.server);
    EXPECT(pages_free(0) + pages_free(1) + pages_free(2) == 298);
    harness_close(h);
}

static void fewer_replicas_are_told_or_refused(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 100);
    ms_put_item item = harness_item(h, "a", 8192);
    item.replica_count = 3;
    item.replica_count_min = 2;
    ms_location_view grant;
    EXPECT(harness_start_item(h, "a", &item, 1, &grant) == MS_OK && grant.head.replica_count == 1);
    item = harness_item(h, "b", 8192);
    item.replica_count = 3;
    item.replica_count_min = 2;
    item.flags = MS_PUT_STRICT_REPLICAS;
    EXPECT(harness_start_item(h, "b", &item, 1, &grant) == MS_NO_SPACE);
    harness_close(h);
}

static void replicas_go_to_other_hosts_first(void) {
    harness_open_default(h);
    uint32_t server;
    const char *hosts[] = {"a", "a", "b"};
    const uint64_t pages[] = {300, 200, 100};
    for (uint32_t i = 0; i < 3; i++) {
        EXPECT(harness_join_as(h, i, 1, pages[i], pages[i], hosts[i], &server) == MS_OK);
        EXPECT(md_inventory_end(h->core, h->now, server, 1) == MS_OK);
    }
    ms_put_item item = harness_item(h, "a", 100);
    item.replica_count = 2;
    ms_location_view grant;
    EXPECT(harness_start_item(h, "a", &item, 1, &grant) == MS_OK);
    EXPECT(grant.replicas[0].head.server == 0 && grant.replicas[1].head.server == 2);
    item = harness_item(h, "b", 100);
    item.preferred_server = 3;
    EXPECT(harness_start_item(h, "b", &item, 1, &grant) == MS_OK &&
           grant.replicas[0].head.server == 2);
    harness_close(h);
}

static void revoke_takes_back_an_open_put_only(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 100);
    ms_location_view grant;
    EXPECT(harness_start(h, "a", 100, &grant) == MS_OK);
    ms_end_item item = {.hash = harness_hash(h, "a"), .version = grant.head.version};
    EXPECT(md_revoke(h->core, h->now, h->session, &item) == MS_OK);
    harness_drain(h);
    EXPECT(pages_free(0) == 100);
    EXPECT(md_revoke(h->core, h->now, h->session, &item) == MS_GONE);
    EXPECT(harness_end(h, "a", grant.head.version, 1, 2) == MS_GONE);
    EXPECT(harness_put(h, "a", 100) == MS_OK);
    EXPECT(harness_lookup(h, "a", &grant) == MS_OK);
    item.version = grant.head.version;
    EXPECT(md_revoke(h->core, h->now, h->session, &item) == MS_COMPLETE);
    EXPECT(harness_exists(h, "a"));
    harness_close(h);
}

static void a_put_past_its_deadline_ends_its_session(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 100);
    ms_location_view first, second;
    ms_put_item item = harness_item(h, "a", 100);
    item.deadline_ms = 2000;
    EXPECT(harness_start_item(h, "a", &item, 1, &first) == MS_OK);
    EXPECT(harness_start(h, "b", 100, &second) == MS_OK);
    h->holds_frees = true;
    harness_advance(h, 1900);
    EXPECT(h->free_count == 0 && h->ended_count == 0);
    EXPECT(md_session_keep(h->core, h->now, h->session) == MS_OK);
    harness_advance(h, 200);
    EXPECT(h->ended_count == 1 && h->last_ended == h->session && h->free_count == 2);
    /* With a fence: the writer may be alive. */
    EXPECT(h->frees[0].item.session == h->session && h->frees[1].item.session == h->session);
    EXPECT(harness_end(h, "b", second.head.version, 1, 2) == MS_SESSION_LOST);
    EXPECT(md_session_keep(h->core, h->now, h->session) == MS_SESSION_LOST);
    harness_free_all(h, false);
    EXPECT(pages_free(0) == 100);
    harness_close(h);
}

static void a_silent_session_ends(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 100);
    ms_location_view grant;
    ms_put_item item = harness_item(h, "a", 100);
    item.deadline_ms = 3600000;
    EXPECT(harness_start_item(h, "a", &item, 1, &grant) == MS_OK);
    EXPECT(harness_put(h, "b", 100) == MS_OK);
    EXPECT(md_pin(h->core, h->now, h->session, harness_hash(h, "b"), 0) == MS_OK);
    for (int i = 0; i < 5; i++) {
        harness_advance(h, 9000);
        EXPECT(md_session_keep(h->core, h->now, h->session) == MS_OK);
    }
    EXPECT(harness_counter(h, "pins") == 1);
    harness_advance(h, 10500);
    EXPECT(h->ended_count == 1 && harness_counter(h, "sessions") == 0 &&
           harness_counter(h, "pins") == 0);
    EXPECT(pages_free(0) == 99 && harness_exists(h, "b"));
    harness_close(h);
}

/* A view holds the pages up, but not the answer. */
static void remove_is_answered_at_cleared_and_pages_are_free_at_freed(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 4);
    EXPECT(harness_put(h, "a", 4 * 4096) == MS_OK);
    h->holds_frees = true;
    EXPECT(harness_remove(h, "a", false, 7) == MS_PENDING && harness_answer_of(h, 7) == MS_PENDING);
    EXPECT(!harness_exists(h, "a"));
    EXPECT(harness_remove(h, "a", false, 8) == MS_PENDING); /* leaving already: it waits too */
    harness_check(h);
    harness_free_all(h, true);
    EXPECT(harness_answer_of(h, 7) == MS_OK && harness_answer_of(h, 8) == MS_NOT_FOUND);
    EXPECT(harness_remove(h, "a", false, 9) == MS_NOT_FOUND); /* CLEARED: nothing to wait for */
    EXPECT(pages_free(0) == 0);
    ms_location_view grant;
    EXPECT(harness_start(h, "b", 4096, &grant) ==
           MS_NO_SPACE); /* what a view holds is not on its way */
    harness_free_all(h, false);
    EXPECT(pages_free(0) == 4 && harness_put(h, "b", 4096) == MS_OK);
    harness_close(h);
}

static void an_answer_counts_for_exactly_what_is_freed(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 4);
    EXPECT(harness_put(h, "a", 4096) == MS_OK);
    h->holds_frees = true;
    EXPECT(harness_remove(h, "a", false, 7) == MS_PENDING && h->free_count == 1);
    ms_free_item item = h->frees[0].item;
    item.version++;
    md_freed(h->core, h->now, 0, 1, &item);
    item.version--;
    item.page++;
    md_freed(h->core, h->now, 0, 1, &item);
    item.page--;
    md_freed(h->core, h->now, 0, 2, &item);
    md_freed(h->core, h->now, 5, 1, &item);
    item.segment = 70000;
    md_freed(h->core, h->now, 0, 1, &item);
    harness_drain(h);
    EXPECT(harness_answer_of(h, 7) == MS_PENDING && pages_free(0) == 3);
    harness_free_all(h, false);
    EXPECT(harness_answer_of(h, 7) == MS_OK && pages_free(0) == 4);
    md_freed(h->core, h->now, 0, 1, &h->frees[0].item); /* a late copy */
    harness_close(h);
}

static void upsert_switches_and_waits_for_the_old(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 10);
    EXPECT(harness_put(h, "a", 4096) == MS_OK);
    ms_put_item item = harness_item(h, "a", 8192);
    item.flags = MS_PUT_UPSERT;
    ms_location_view grant, location;
    EXPECT(harness_start_item(h, "a", &item, 1, &grant) == MS_OK);
    EXPECT(harness_lookup(h, "a", &location) == MS_OK && location.head.size == 4096);
    h->holds_frees = true;
    EXPECT(harness_end(h, "a", grant.head.version, 1, 7) == MS_PENDING);
    EXPECT(harness_lookup(h, "a", &location) == MS_OK && location.head.size == 8192);
    EXPECT(harness_end(h, "a", grant.head.version, 1, 8) ==
           MS_PENDING); /* a repeat waits as well */
    harness_check(h);
    harness_free_all(h, true);
    EXPECT(harness_answer_of(h, 7) == MS_OK && harness_answer_of(h, 8) == MS_OK);
    harness_free_all(h, false);
    EXPECT(pages_free(0) == 8);
    harness_close(h);
}

static void a_tombstone_stands_in_for_a_silent_holder(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 10);
    EXPECT(harness_put(h, "a", 4096) == MS_OK);
    h->holds_frees = true;
    EXPECT(harness_remove(h, "a", false, 7) == MS_PENDING);
    harness_advance(h, 900);
    EXPECT(h->tombstone_count == 0 && harness_answer_of(h, 7) == MS_PENDING);
    harness_advance(h, 300);
    EXPECT(h->tombstone_count == 1 && harness_answer_of(h, 7) == MS_OK);
    harness_check(h);
    harness_free_all(h, false);
    /* A transaction that fails: this master leads no more, and says so instead. */
    EXPECT(harness_put(h, "b", 4096) == MS_OK);
    h->tombstone_status = MS_NOT_LEADER;
    EXPECT(harness_remove(h, "b", false, 8) == MS_PENDING);
    harness_advance(h, 1200);
    EXPECT(harness_answer_of(h, 8) == MS_NOT_LEADER);
    harness_free_all(h, false);
    harness_close(h);
}

static void an_absent_member_needs_a_tombstone_first(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 10);
    uint32_t expected;
    const uint8_t node[16] = {9};
    EXPECT(md_server_expect(h->core, h->now, node, &expected) == MS_OK && expected == 1);
    h->holds_tombstones = true;
    EXPECT(harness_remove(h, "unknown", false, 7) == MS_PENDING && h->tombstone_count == 1);
    EXPECT(harness_answer_of(h, 7) == MS_PENDING);
    md_tombstoned(h->core, h->now, h->last_tombstone.hash, h->last_tombstone.version, MS_OK);
    harness_drain(h);
    EXPECT(harness_answer_of(h, 7) == MS_NOT_FOUND);
    /* An upsert strikes what is older than itself. */
    ms_put_item item = harness_item(h, "a", 4096);
    item.flags = MS_PUT_UPSERT;
    ms_location_view grant;
    EXPECT(harness_start_item(h, "a", &item, 1, &grant) == MS_OK);
    EXPECT(harness_end(h, "a", grant.head.version, 1, 8) == MS_PENDING);
    EXPECT(h->last_tombstone.version == grant.head.version - 1);
    md_tombstoned(h->core, h->now, h->last_tombstone.hash, h->last_tombstone.version, MS_OK);
    harness_drain(h);
    EXPECT(harness_answer_of(h, 8) == MS_OK);
    harness_close(h);
}

static void a_free_is_repeated_until_it_is_answered(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 10);
    EXPECT(harness_put(h, "a", 4096) == MS_OK);
    h->holds_frees = true;
    harness_remove(h, "a", false, 7);
    EXPECT(h->free_count == 1);
    harness_advance(h, 1100);
    EXPECT(h->free_count == 2);
    harness_free_all(h, true);
    h->free_count = 0;
    harness_advance(h, 9000);
    EXPECT(h->free_count == 0);
    harness_advance(h, 1500);
    EXPECT(h->free_count == 1); /* FREED may have been lost */
    md_server_gone(h->core, h->now, 0, 1);
    h->free_count = 0;
    harness_advance(h, 3000);
    uint32_t server;
    EXPECT(harness_join_as(h, 0, 1, 10, 10, "", &server) == MS_OK);
    harness_drain(h);
    EXPECT(h->free_count == 0); /* between ADOPT and the inventory nothing is sent */
    EXPECT(md_inventory_end(h->core, h->now, 0, 1) == MS_OK);
    harness_drain(h);
    EXPECT(h->free_count == 1);
    harness_free_all(h, false);
    EXPECT(pages_free(0) == 10);
    harness_close(h);
}

/* ---- inventories ------------------------------------------------------------------------------------------ */
static ms_status tell(uint32_t server, uint32_t incarnation, const char *key, uint64_t version,
                      uint64_t size, uint32_t page, uint32_t page_count, uint16_t part,
                      uint16_t parts) {
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

static void an_inventory_rebuilds_the_index(void) {
    harness_open_default(h);
    h->config.epoch = 5;
    uint32_t a, b;
    h->holds_frees = true;
    EXPECT(harness_join_as(h, 0, 3, 20, 20, "", &a) == MS_OK);
    EXPECT(harness_join_as(h, 1, 4, 20, 20, "", &b) == MS_OK);
    EXPECT(md_tombstone_add(h->core, harness_hash(h, "struck"), 50) == MS_OK);
    EXPECT(tell(a, 2, "x", 10, 4096, 0, 1, 0, 1) == MS_WRONG_INCARNATION);
    EXPECT(tell(a, 3, "x", 10, 4096, 19, 2, 0, 1) == MS_BAD_REQUEST);
    EXPECT(tell(a, 3, "both", 10, 4096, 0, 1, 0, 1) == MS_OK);
    EXPECT(tell(b, 4, "both", 10, 4096, 7, 1, 0, 1) == MS_OK); /* equal versions are replicas */
    EXPECT(tell(a, 3, "newer", 11, 4096, 1, 1, 0, 1) == MS_OK);
    EXPECT(tell(b, 4, "newer", 12, 8192, 8, 2, 0, 1) == MS_OK); /* the highest wins */
    EXPECT(tell(a, 3, "older", 14, 4096, 2, 1, 0, 1) == MS_OK);
    EXPECT(tell(b, 4, "older", 13, 4096, 10, 1, 0, 1) == MS_OK);
    EXPECT(tell(a, 3, "struck", 50, 4096, 3, 1, 0, 1) == MS_OK);
    EXPECT(tell(b, 4, "struck", 51, 4096, 11, 1, 0, 1) == MS_OK);
    EXPECT(tell(a, 3, "parts", 15, 5 * 4096, 4, 3, 1, 2) == MS_OK);
    EXPECT(tell(a, 3, "parts", 15, 5 * 4096, 12, 2, 0, 2) == MS_OK);
    EXPECT(tell(a, 3, "short", 16, 5 * 4096, 8, 3, 1, 2) == MS_OK);
    ms_inventory_item busy = {.version = 9, .page = 15, .page_count = 2, .state = 2};
    EXPECT(md_inventory(h->core, h->now, a, 3, &busy, NULL, NULL) == MS_OK);
    ms_location_view location;
    EXPECT(harness_lookup(h, "both", &location) == MS_OK && location.head.replica_count == 2);
    EXPECT(harness_start(h, "free", 4096, &location) == MS_UNAVAILABLE); /* nobody is adopted */
    EXPECT(h->free_count == 0);
    EXPECT(md_inventory_end(h->core, h->now, a, 3) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, b, 4) == MS_OK);
    harness_drain(h);
    harness_check(h);
    EXPECT(h->free_count == 5); /* newer 11, older 13, struck 50, short, and what a view holds */
    EXPECT(harness_lookup(h, "newer", &location) == MS_OK && location.head.version == 12);
    EXPECT(harness_lookup(h, "older", &location) == MS_OK && location.head.version == 14);
    EXPECT(harness_lookup(h, "struck", &location) == MS_OK && location.head.version == 51);
    EXPECT(harness_lookup(h, "parts", &location) == MS_OK &&
           location.replicas[0].extents.count == 2);
    EXPECT(ms_replica_extent(&location.replicas[0], 0).page == 12);
    EXPECT(!harness_exists(h, "short"));
    EXPECT(pages_free(a) == 20 - 1 - 1 - 1 - 1 - 5 - 3 - 2 && pages_free(b) == 20 - 1 - 2 - 1 - 1);
    harness_free_all(h, false);
    EXPECT(pages_free(a) == 20 - 1 - 1 - 5);
    harness_close(h);
}

/* The tenant is in the record: without it a new master could not tell whose object it is. */
static void an_inventory_tells_whose_an_object_is(void) {
    harness_open_default(h);
    h->holds_frees = true;
    uint32_t a;
    EXPECT(harness_join_as(h, 0, 1, 20, 20, "", &a) == MS_OK);
    ms_inventory_item item = {.hash = ms_hash_key(h->config.secret, "other", 5, "x", 1),
                              .version = 10,
                              .size = 1,
                              .note = 10,
                              .page_count = 1,
                              .part_count = 1,
                              .key_length = 1,
                              .tenant_length = 5,
                              .state = 1};
    const uint8_t *key = (const uint8_t *)"x";
    EXPECT(md_inventory(h->core, h->now, a, 1, &item, (const uint8_t *)"other", key) == MS_OK);
    item.page =
        1; /* the hash of another tenant's key, or of another cluster's: nobody can find it */
    item.hash = harness_hash(h, "x");
    EXPECT(md_inventory(h->core, h->now, a, 1, &item, (const uint8_t *)"other", key) == MS_OK);
    item.page = 2;
    item.tenant_length = 0;
    EXPECT(md_inventory(h->core, h->now, a, 1, &item, NULL, key) == MS_BAD_REQUEST);
    EXPECT(md_inventory_end(h->core, h->now, a, 1) == MS_OK);
    harness_drain(h);
    EXPECT(h->free_count == 1 && h->frees[0].item.page == 1);
    uint64_t session;
    EXPECT(md_session_open(h->core, h->now, (const uint8_t *)"other", 5, &session) == MS_OK);
    uint32_t other = md_session_tenant(h->core, session);
    EXPECT(other != 0);
    ms_hash hash = ms_hash_key(h->config.secret, "other", 5, "x", 1);
    uint8_t memory[512];
    ms_writer out = ms_writer_fixed(memory, sizeof memory);
    EXPECT(md_stat(h->core, h->now, other, hash, key, 1, &out) == MS_OK);
    EXPECT(md_stat(h->core, h->now, 0, hash, key, 1, &out) != MS_OK);
    harness_check(h);
    harness_close(h);
}

static void the_highest_note_counts(void) {
    harness_open_default(h);
    uint32_t a, b;
    EXPECT(harness_join_as(h, 0, 1, 20, 20, "", &a) == MS_OK);
    EXPECT(harness_join_as(h, 1, 1, 20, 20, "", &b) == MS_OK);
    ms_inventory_item item = {.hash = harness_hash(h, "a"),
                              .version = 10,
                              .size = 1,
                              .note = 30,
                              .flags = MS_OBJECT_HARD_PIN,
                              .page_count = 1,
                              .part_count = 1,
                              .key_length = 1,
                              .tenant_length = 7,
                              .state = 1};
    EXPECT(md_inventory(h->core, h->now, a, 1, &item, (const uint8_t *)"default",
                        (const uint8_t *)"a") == MS_OK);
    item.note = 20; /* an older note, at the other holder */
    item.flags = 0;
    EXPECT(md_inventory(h->core, h->now, b, 1, &item, (const uint8_t *)"default",
                        (const uint8_t *)"a") == MS_OK);
    EXPECT(harness_remove(h, "a", false, 1) == MS_PINNED);
    item.hash = harness_hash(h, "b");
    item.page = 1;
    item.expiry_ms = (uint64_t)h->now.wall_ms + 5000;
    EXPECT(md_inventory(h->core, h->now, b, 1, &item, (const uint8_t *)"default",
                        (const uint8_t *)"b") == MS_OK);
    item.hash = harness_hash(h, "c");
    item.page = 2;
    item.expiry_ms = (uint64_t)h->now.wall_ms - 1;
    EXPECT(md_inventory(h->core, h->now, b, 1, &item, (const uint8_t *)"default",
                        (const uint8_t *)"c") == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, a, 1) == MS_OK &&
           md_inventory_end(h->core, h->now, b, 1) == MS_OK);
    EXPECT(harness_exists(h, "b") && !harness_exists(h, "c"));
    harness_advance(h, 5100);
    EXPECT(!harness_exists(h, "b"));
    harness_close(h);
}

static ms_status tell_noted(uint32_t server, const char *key, uint64_t version, uint64_t note,
                            uint8_t flags, uint32_t page) {
    ms_inventory_item item = {.hash = harness_hash(h, key),
                              .version = version,
                              .size = 1,
                              .note = note,
                              .flags = flags,
                              .page = page,
                              .page_count = 1,
                              .part_count = 1,
                              .key_length = (uint16_t)strlen(key),
                              .tenant_length = 7,
                              .state = 1};
    return md_inventory(h->core, h->now, server, 1, &item, (const uint8_t *)"default",
                        (const uint8_t *)key);
}

/* A master made copies, a note came meanwhile and was answered by the holders, and it died before the copies had
 * the note.  The highest version alone would bring back what was noted before. */
static void a_note_outranks_a_copy_that_does_not_have_it(void) {
    harness_open_default(h);
    h->holds_frees = true;
    uint32_t a, b;
    EXPECT(harness_join_as(h, 0, 1, 20, 20, "", &a) == MS_OK);
    EXPECT(harness_join_as(h, 1, 1, 20, 20, "", &b) == MS_OK);
    EXPECT(tell_noted(a, "holder first", 10, 30, MS_OBJECT_HARD_PIN, 0) == MS_OK);
    EXPECT(tell_noted(b, "holder first", 20, 20, 0, 0) == MS_OK);
    EXPECT(tell_noted(b, "copy first", 20, 20, 0, 1) == MS_OK);
    EXPECT(tell_noted(a, "copy first", 10, 30, MS_OBJECT_HARD_PIN, 1) == MS_OK);
    EXPECT(tell_noted(a, "noted before", 10, 15, MS_OBJECT_HARD_PIN, 2) == MS_OK);
    EXPECT(tell_noted(b, "noted before", 20, 20, 0, 2) == MS_OK);
    EXPECT(tell_noted(a, "copy noted too", 10, 30, 0, 3) == MS_OK);
    EXPECT(tell_noted(b, "copy noted too", 20, 31, MS_OBJECT_HARD_PIN, 3) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, a, 1) == MS_OK &&
           md_inventory_end(h->core, h->now, b, 1) == MS_OK);
    harness_drain(h);
    harness_check(h);
    EXPECT(h->free_count == 4); /* of each key the one that does not count */
    const struct {
        const char *key;
        uint64_t version;
        uint32_t flags;
    } wanted[] = {{"holder first", 10, MS_OBJECT_HARD_PIN},
                  {"copy first", 10, MS_OBJECT_HARD_PIN},
                  {"noted before", 20, 0},
                  {"copy noted too", 20, MS_OBJECT_HARD_PIN}};
    for (uint32_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        ms_location_view location;
        EXPECT(harness_lookup(h, wanted[i].key, &location) == MS_OK);
        EXPECT(location.head.version == wanted[i].version && location.head.replica_count == 1);
        EXPECT(location.head.flags == wanted[i].flags);
    }
    harness_close(h);
}

static void a_server_in_the_same_life_keeps_what_it_has(void) {
    harness_open_default(h);
    uint32_t server = harness_add_server(h, 0, 20);
    EXPECT(harness_put(h, "a", 4096) == MS_OK);
    md_server_gone(h->core, h->now, server, 1);
    harness_advance(h, 500);
    EXPECT(harness_exists(h, "a"));
    EXPECT(harness_join_as(h, 0, 1, 20, 20, "", &server) == MS_OK);
    /* Its inventory may be older than what completed meanwhile: it does not count. */
    EXPECT(md_inventory_end(h->core, h->now, server, 1) == MS_OK);
    EXPECT(harness_exists(h, "a") && harness_put(h, "b", 4096) == MS_OK);
    harness_close(h);
}

static void a_new_life_has_what_its_inventory_names(void) {
    harness_open_default(h);
    uint32_t server = harness_add_server(h, 0, 20);
    harness_add_server(h, 1, 20);
    ms_location_view location, open;
    for (uint32_t i = 0; i < 6; i++)
        EXPECT(harness_put(h, name(i), 4096) == MS_OK);
    ms_put_item item = harness_item(h, "open", 4096);
    item.replica_count = 2;
    EXPECT(harness_start_item(h, "open", &item, 1, &open) == MS_OK);
    md_server_gone(h->core, h->now, server, 1);
    EXPECT(harness_join_as(h, 0, 2, 20, 20, "", &server) == MS_OK);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < 6; i++) {
        EXPECT(harness_lookup(h, name(i), &location) == MS_OK);
        if (location.replicas[0].head.server != server || i > 2)
            continue;
        kept++;
        EXPECT(tell(server, 2, name(i), location.head.version, 4096,
                    ms_replica_extent(&location.replicas[0], 0).page, 1, 0, 1) == MS_OK);
    }
    EXPECT(md_inventory_end(h->core, h->now, server, 2) == MS_OK);
    harness_drain(h);
    harness_check(h);
    uint32_t there = 0;
    for (uint32_t i = 0; i < 6; i++) {
        if (!harness_exists(h, name(i)))
            continue;
        EXPECT(harness_lookup(h, name(i), &location) == MS_OK);
        EXPECT(location.replicas[0].head.incarnation ==
               (location.replicas[0].head.server == server ? 2 : 1));
        there += location.replicas[0].head.server == server;
    }
    EXPECT(there == kept && kept > 0 && kept < 3);
    /* The open put lost its replica here; the one at the other server stands. */
    EXPECT(harness_end(h, "open", open.head.version, 3, 2) == MS_OK);
    EXPECT(harness_lookup(h, "open", &location) == MS_OK && location.head.replica_count == 1);
    EXPECT(location.replicas[0].head.server != server);
    harness_close(h);
}

static void objects_leave_when_the_grace_is_over_and_come_back(void) {
    harness_open_default(h);
    uint32_t server = harness_add_server(h, 0, 20);
    harness_add_server(h, 1, 20);
    ms_put_item item = harness_item(h, "both", 4096);
    item.replica_count = 2;
    ms_location_view location;
    EXPECT(harness_put_item(h, "both", &item) == MS_OK);
    item = harness_item(h, "one", 4096);
    item.preferred_server = server + 1;
    EXPECT(harness_put_item(h, "one", &item) == MS_OK);
    EXPECT(harness_lookup(h, "one", &location) == MS_OK &&
           location.replicas[0].head.server == server);
    uint64_t version = location.head.version;
    uint32_t page = ms_replica_extent(&location.replicas[0], 0).page;
    md_server_gone(h->core, h->now, server, 1);
    harness_advance(h, 9000);
    EXPECT(md_session_keep(h->core, h->now, h->session) == MS_OK);
    EXPECT(harness_lookup(h, "one", &location) ==
           MS_OK); /* within the grace its locations are given out */
    harness_advance(h, 1500);
    EXPECT(harness_lookup(h, "one", &location) == MS_NOT_FOUND && !harness_exists(h, "one"));
    EXPECT(harness_lookup(h, "both", &location) == MS_OK && location.head.replica_count == 1);
    harness_check(h);
    EXPECT(harness_join_as(h, 0, 1, 20, 20, "", &server) == MS_OK);
    EXPECT(tell(server, 1, "one", version, 4096, page, 1, 0, 1) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, server, 1) == MS_OK);
    EXPECT(harness_lookup(h, "one", &location) == MS_OK && location.head.version == version);
    harness_close(h);
}

/* What was removed while its server was away does not come back with it. */
static void removed_while_away_stays_removed(void) {
    harness_open_default(h);
    uint32_t server = harness_add_server(h, 0, 20);
    EXPECT(harness_put(h, "a", 4096) == MS_OK);
    ms_location_view location;
    EXPECT(harness_lookup(h, "a", &location) == MS_OK);
    md_server_gone(h->core, h->now, server, 1);
    harness_advance(h, 11000);
    EXPECT(harness_counter(h, "lost") == 1);
    EXPECT(harness_remove(h, "a", false, 7) == MS_PENDING &&
           harness_answer_of(h, 7) == MS_NOT_FOUND);
    EXPECT(h->tombstone_count == 1);
    EXPECT(harness_join_as(h, 0, 1, 20, 20, "", &server) == MS_OK);
    EXPECT(tell(server, 1, "a", location.head.version, 4096,
                ms_replica_extent(&location.replicas[0], 0).page, 1, 0, 1) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, server, 1) == MS_OK);
    harness_drain(h);
    EXPECT(!harness_exists(h, "a") && pages_free(server) == 20);
    harness_close(h);
}

/* Tombstones do not pile up for ever for a server that stays away: what it brings back is dropped instead. */
static void a_server_with_too_many_tombstones_is_condemned(void) {
    harness_open_default(h);
    uint32_t server = harness_add_server(h, 0, 20);
    EXPECT(harness_put(h, "a", 4096) == MS_OK);
    ms_location_view location;
    EXPECT(harness_lookup(h, "a", &location) == MS_OK);
    md_server_gone(h->core, h->now, server, 1);
    harness_advance(h, 11000);
    for (uint32_t i = 0; i < 100001; i++) {
        EXPECT(harness_remove(h, name(i), false, 7) == MS_PENDING);
        h->answer_count = 0;
    }
    EXPECT(harness_remove(h, name(0), false, 7) == MS_NOT_FOUND); /* no tombstone any more */
    EXPECT(harness_join_as(h, 0, 1, 20, 20, "", &server) == MS_OK);
    EXPECT(tell(server, 1, "a", location.head.version, 4096,
                ms_replica_extent(&location.replicas[0], 0).page, 1, 0, 1) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, server, 1) == MS_OK);
    harness_drain(h);
    EXPECT(!harness_exists(h, "a") && pages_free(server) == 20);
    EXPECT(harness_counter(h, "tombstones") == 0); /* all members are here */
    harness_close(h);
}

/* ---- room ------------------------------------------------------------------------------------------------- */
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

/* ---- the rest --------------------------------------------------------------------------------------------- */
static void ttls_end(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 10);
    ms_put_item item = harness_item(h, "a", 4096);
    item.ttl_ms = 1000;
    EXPECT(harness_put_item(h, "a", &item) == MS_OK);
    item = harness_item(h, "b", 4096);
    item.ttl_ms = 1000;
    EXPECT(harness_put_item(h, "b", &item) == MS_OK);
    h->now.now_ms += 999;
    EXPECT(harness_exists(h, "a"));
    h->now.now_ms += 1;
    EXPECT(!harness_exists(h, "a") && pages_free(0) == 9); /* found by who asked */
    harness_advance(h, 200);
    EXPECT(pages_free(0) == 10 && harness_counter(h, "expired") == 2); /* or by the sweep */
    harness_close(h);
}

static ms_status annotate(const char *key, uint32_t fields, uint32_t flags, uint64_t ttl_ms,
                          uint64_t waiter) {
    ms_annotate asked = {.fields = fields, .flags = flags, .ttl_ms = ttl_ms};
    ms_status status = md_annotate(h->core, h->now, 0, harness_hash(h, key), (const uint8_t *)key,
                                   strlen(key), &asked, waiter);
    harness_drain(h);
    return status;
}

static void a_note_is_answered_when_all_holders_have(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 10);
    harness_add_server(h, 1, 10);
    ms_put_item item = harness_item(h, "a", 4096);
    item.replica_count = 2;
    EXPECT(harness_put_item(h, "a", &item) == MS_OK);
    h->holds_notes = true;
    EXPECT(annotate("a", MS_ANNOTATE_HARD_PIN, MS_OBJECT_HARD_PIN, 0, 7) == MS_PENDING &&
           h->note_count == 2);
    md_noted(h->core, h->now, h->last_note, 0, MS_OK);
    md_noted(h->core, h->now, h->last_note, 0, MS_OK); /* the same holder again */
    harness_drain(h);
    EXPECT(harness_answer_of(h, 7) == MS_PENDING);
    md_noted(h->core, h->now, h->last_note, 1, MS_OK);
    harness_drain(h);
    EXPECT(harness_answer_of(h, 7) == MS_OK && harness_remove(h, "a", false, 1) == MS_PINNED);
    EXPECT(annotate("a", MS_ANNOTATE_HARD_PIN, 0, 0, 8) == MS_PENDING);
    md_noted(h->core, h->now, h->last_note, 1, MS_GONE);
    harness_drain(h);
    EXPECT(harness_answer_of(h, 8) == MS_GONE);
    EXPECT(annotate("a", MS_ANNOTATE_TTL, 0, 700, 9) == MS_PENDING);
    harness_advance(h, 800);
    EXPECT(!harness_exists(h, "a"));
    harness_advance(h, 5000);
    EXPECT(harness_answer_of(h, 9) == MS_TIMEOUT);
    EXPECT(annotate("a", MS_ANNOTATE_TTL, 0, 700, 10) == MS_NOT_FOUND);
    EXPECT(harness_put_item(h, "a", &item) == MS_OK);
    md_server_gone(h->core, h->now, 1, 1);
    EXPECT(annotate("a", MS_ANNOTATE_HARD_PIN, MS_OBJECT_HARD_PIN, 0, 11) == MS_UNAVAILABLE);
    harness_close(h);
}

static ms_status change(const char *key, uint32_t count, uint32_t target, uint32_t source,
                        uint64_t waiter) {
    ms_change_replica asked = {
        .replica_count = count, .target_server = target, .source_server = source};
    ms_status status = md_change_replica(h->core, h->now, 0, harness_hash(h, key),
                                         (const uint8_t *)key, strlen(key), &asked, waiter);
    harness_drain(h);
    return status;
}

static void replicas_change(void) {
    harness_open_default(h);
    for (uint32_t i = 0; i < 3; i++)
        harness_add_server(h, i, 10);
    ms_put_item item = harness_item(h, "a", 2 * 4096);
    item.preferred_server = 1;
    item.ttl_ms = 60000;
    EXPECT(harness_put_item(h, "a", &item) == MS_OK);
    ms_location_view before, after;
    EXPECT(harness_lookup(h, "a", &before) == MS_OK && before.replicas[0].head.server == 0);
    h->holds_copies = true;
    EXPECT(change("a", 3, 0, 0, 7) == MS_PENDING && h->copy_count == 2);
    EXPECT(change("a", 2, 0, 0, 8) == MS_BUSY);
    ms_writer out = ms_writer_fixed(h->buffer, sizeof h->buffer);
    EXPECT(md_write_copy(h->core, h->last_copy, &out) == MS_OK);
    ms_copy_view copy;
    EXPECT(ms_read_copy(out.data, out.length, &copy));
    EXPECT(copy.source.head.version == before.head.version &&
           copy.seal.head.number > before.head.version);
    EXPECT(copy.source.replicas[0].head.server == 0 && copy.target.head.server != 0);
    EXPECT(copy.seal.head.expiry_ms != 0 && copy.seal.head.key_length == 1 &&
           copy.seal.key[0] == 'a');
    uint64_t first = h->last_copy / MS_REPLICAS_MAX * MS_REPLICAS_MAX;
    md_copied(h->core, h->now, first, MS_OK);
    md_copied(h->core, h->now, first, MS_OK);
    harness_drain(h);
    EXPECT(h->copy_count == 2);
    /* A note that comes meanwhile reaches the new holders before they count. */
    EXPECT(annotate("a", MS_ANNOTATE_HARD_PIN, MS_OBJECT_HARD_PIN, 0, 9) == MS_PENDING);
    EXPECT(harness_answer_of(h, 9) == MS_OK && h->note_count == 1);
    md_copied(h->core, h->now, first + 1, MS_OK);
    harness_drain(h);
    EXPECT(h->copy_count == 3); /* then the server that has it copies from one of these */
    out = ms_writer_fixed(h->buffer, sizeof h->buffer);
    EXPECT(md_write_copy(h->core, first + 2, &out) == MS_OK &&
           ms_read_copy(out.data, out.length, &copy));
    EXPECT(copy.target.head.server == 0 && copy.source.replicas[0].head.server != 0);
    EXPECT(copy.source.head.version == copy.seal.head.number);
    md_copied(h->core, h->now, first + 2, MS_OK);
    harness_drain(h);
    EXPECT(h->note_count == 4 && harness_answer_of(h, 7) == MS_OK);
    EXPECT(harness_lookup(h, "a", &after) == MS_OK && after.head.replica_count == 3);
    EXPECT(after.head.version > before.head.version && after.head.flags & MS_OBJECT_HARD_PIN);
    harness_check(h);
    for (uint32_t i = 0; i < 3; i++)
        EXPECT(pages_free(i) == 8);
    EXPECT(change("a", 1, 0, 2, 10) == MS_OK); /* fewer: the one at server 1 first */
    EXPECT(harness_lookup(h, "a", &after) == MS_OK && after.head.replica_count == 1);
    EXPECT(after.replicas[0].head.server != 1);
    h->holds_copies = false;
    EXPECT(change("a", 0, 2, 0, 11) == MS_PENDING &&
           harness_answer_of(h, 11) == MS_OK); /* move to server 1 */
    EXPECT(harness_lookup(h, "a", &after) == MS_OK && after.replicas[0].head.server == 1);
    EXPECT(change("a", 0, 2, 0, 12) == MS_OK);
    EXPECT(change("a", 0, 9, 0, 12) == MS_NOT_REGISTERED);
    EXPECT(change("nothing", 2, 0, 0, 12) == MS_NOT_FOUND);
    harness_close(h);
}

static void a_change_that_fails_leaves_nothing_behind(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 10);
    harness_add_server(h, 1, 10);
    EXPECT(harness_put(h, "a", 4096) == MS_OK);
    EXPECT(change("a", 5, 0, 0, 6) == MS_PENDING &&
           harness_answer_of(h, 6) == MS_OK); /* as many as there can be */
    EXPECT(change("a", 1, 0, 0, 6) == MS_OK);
    h->copy_status = MS_IO_ERROR;
    EXPECT(change("a", 2, 0, 0, 7) == MS_PENDING && harness_answer_of(h, 7) == MS_IO_ERROR);
    h->copy_status = MS_OK;
    h->holds_copies = true;
    EXPECT(change("a", 2, 0, 0, 8) == MS_PENDING);
    EXPECT(harness_remove(h, "a", false, 9) == MS_PENDING);
    EXPECT(harness_answer_of(h, 8) == MS_GONE && harness_answer_of(h, 9) == MS_OK);
    md_copied(h->core, h->now, h->last_copy, MS_OK); /* too late */
    EXPECT(pages_free(0) == 10 && pages_free(1) == 10);
    EXPECT(harness_put(h, "a", 4096) == MS_OK);
    EXPECT(change("a", 2, 0, 0, 10) == MS_PENDING);
    ms_put_item item = harness_item(h, "a", 4096);
    item.flags = MS_PUT_UPSERT;
    ms_location_view grant;
    EXPECT(harness_start_item(h, "a", &item, 1, &grant) == MS_OK);
    EXPECT(harness_answer_of(h, 10) == MS_BUSY && change("a", 2, 0, 0, 11) == MS_BUSY);
    EXPECT(harness_end(h, "a", grant.head.version, 1, 12) == MS_PENDING &&
           harness_answer_of(h, 12) == MS_OK);
    EXPECT(change("a", 2, 0, 0, 13) == MS_PENDING);
    md_server_gone(h->core, h->now, 1, 1);
    harness_drain(h);
    EXPECT(harness_answer_of(h, 13) == MS_UNAVAILABLE);
    harness_close(h);
}

static uint32_t listed[4000];

static void list_from(uint64_t *cursor, uint32_t limit) {
    uint32_t count;
    ms_writer out = ms_writer_fixed(h->buffer, sizeof h->buffer);
    EXPECT(md_list(h->core, h->now, 0, NULL, NULL, cursor, limit, 500, &count, &out) == MS_OK &&
           count <= limit);
    ms_reader reader = ms_reader_of(out.data, out.length);
    for (uint32_t i = 0; i < count; i++) {
        ms_list_item_view item;
        EXPECT(ms_reader_list_item(&reader, &item));
        listed[strtoul(item.key + 4, NULL, 10)]++;
    }
    EXPECT(ms_reader_is_done(&reader));
}

static void a_list_sees_all_that_stays(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 10000);
    for (uint32_t i = 0; i < 4000; i++)
        EXPECT(harness_put(h, name(i), 100) == MS_OK);
    uint64_t cursor = 0;
    memset(listed, 0, sizeof listed);
    uint32_t removed = 0;
    do {
        list_from(&cursor, 50);
        /* Much leaves meanwhile, and shards are rebuilt. */
        for (uint32_t i = 0; i < 60 && removed < 4000; i++, removed++)
            if (removed % 8 != 0)
                harness_remove(h, name(removed), false, 1);
        h->answer_count = 0;
    } while (cursor != 0);
    for (uint32_t i = 0; i < 4000; i += 8)
        EXPECT(listed[i] >= 1);
    cursor = (uint64_t)5000 << 48;
    ms_writer out = ms_writer_fixed(h->buffer, sizeof h->buffer);
    uint32_t count;
    EXPECT(md_list(h->core, h->now, 0, NULL, NULL, &cursor, 1, 1, &count, &out) == MS_BAD_REQUEST);
    harness_close(h);
}

static void events_are_kept_in_a_ring(void) {
    md_config config;
    md_config_default(&config);
    config.events_max = 16;
    harness_open(h, &config);
    harness_add_server(h, 0, 100);
    for (uint32_t i = 0; i < 40; i++)
        EXPECT(harness_put(h, name(i), 100) == MS_OK);
    ms_events asked = {.sequence = 1, .epoch = 1, .limit = 100};
    ms_writer out = ms_writer_fixed(h->buffer, sizeof h->buffer);
    EXPECT(md_events(h->core, h->now, &asked, &out) == MS_GONE);
    asked.sequence = 41 - 8;
    asked.epoch = 2;
    EXPECT(md_events(h->core, h->now, &asked, &out) == MS_GONE);
    asked.epoch = 1;
    EXPECT(md_events(h->core, h->now, &asked, &out) == MS_OK);
    ms_reader reader = ms_reader_of(out.data, out.length);
    ms_events_answer head;
    EXPECT(MS_READER_STRUCT(&reader, &head) && head.count == 9 && head.sequence_next == 42);
    ms_event_view event;
    for (uint32_t i = 0; i < head.count; i++)
        EXPECT(ms_reader_event(&reader, &event) && event.head.kind == MS_EVENT_STORED);
    EXPECT(event.head.key_length == 6 && memcmp(event.key, "key-39", 6) == 0);
    asked.sequence = 43;
    EXPECT(md_events(h->core, h->now, &asked, &out) == MS_GONE);
    harness_close(h);
}

static void a_prefix_is_matched_and_pinned_at_once(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 200);
    ms_hash hashes[100];
    for (uint32_t i = 0; i < 100; i++) {
        hashes[i] = harness_hash(h, name(i));
        if (i != 70)
            EXPECT(harness_put(h, name(i), 100) == MS_OK);
    }
    ms_match match = {.pin = 1, .count = 100};
    ms_writer out = ms_writer_fixed(h->buffer, sizeof h->buffer);
    EXPECT(md_match_prefix(h->core, h->now, h->session, &match, hashes, &out) == MS_OK);
    ms_reader reader = ms_reader_of(out.data, out.length);
    EXPECT(ms_reader_list(&reader, sizeof(ms_location)) == 70 && harness_counter(h, "pins") == 70);
    EXPECT(md_session_pinned_bytes(h->core, h->session) == 7000);
    EXPECT(md_match_prefix(h->core, h->now, h->session + 1, &match, hashes, &out) ==
           MS_SESSION_LOST);
    EXPECT(md_unpin(h->core, h->now, h->session, hashes[69]) == MS_OK);
    EXPECT(md_unpin(h->core, h->now, h->session, hashes[69]) == MS_NOT_FOUND);
    harness_check(h);
    md_session_close(h->core, h->now, h->session);
    harness_drain(h);
    EXPECT(harness_counter(h, "pins") == 0);
    harness_close(h);
}

/* A pin is on the key: it holds through an upsert. */
static void a_pin_stays_on_its_key(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 4);
    EXPECT(harness_put(h, "a", 4096) == MS_OK);
    EXPECT(md_pin(h->core, h->now, h->session, harness_hash(h, "a"), 0) == MS_OK);
    ms_put_item item = harness_item(h, "a", 4096);
    item.flags = MS_PUT_UPSERT;
    EXPECT(harness_put_item(h, "a", &item) == MS_PENDING);
    for (uint32_t i = 0; i < 10; i++)
        EXPECT(put_somehow(name(i), 4096, 50 + i) == MS_OK);
    EXPECT(harness_exists(h, "a"));
    harness_close(h);
}

static void mistakes_are_refused(void) {
    harness_open_default(h);
    ms_location_view grant;
    EXPECT(harness_start(h, "a", 100, &grant) == MS_UNAVAILABLE);
    harness_add_server(h, 0, 10);
    ms_put_item item = harness_item(h, "a", 100);
    item.hash.low ^= 1;
    EXPECT(harness_start_item(h, "a", &item, 1, &grant) == MS_BAD_REQUEST);
    item = harness_item(h, "", 100);
    EXPECT(harness_start_item(h, "", &item, 1, &grant) == MS_BAD_KEY);
    item = harness_item(h, "\xff\xfe", 100);
    EXPECT(harness_start_item(h, "\xff\xfe", &item, 1, &grant) == MS_BAD_KEY);
    item = harness_item(h, "a", MS_VALUE_BYTES_MAX + 1);
    EXPECT(harness_start_item(h, "a", &item, 1, &grant) == MS_TOO_LARGE);
    item = harness_item(h, "a", 100);
    item.replica_count = 200;
    EXPECT(harness_start_item(h, "a", &item, 1, &grant) == MS_BAD_REQUEST);
    EXPECT(harness_put(h, "a", 0) == MS_OK && pages_free(0) == 9); /* nothing owns a page too */
    EXPECT(md_remove(h->core, h->now, 0, harness_hash(h, "a"), (const uint8_t *)"b", 1, false, 1) ==
           MS_BAD_REQUEST);
    EXPECT(md_remove(h->core, h->now, 1, harness_hash(h, "a"), (const uint8_t *)"a", 1, false, 1) ==
           MS_BAD_REQUEST);
    ms_server_info info = {.incarnation = 1, .segment_count = 1};
    ms_segment_info segment = {.segment = 3, .page_count = 10, .page_count_ready = 10};
    uint32_t server;
    EXPECT(md_server_join(h->core, h->now, &info, NULL, &segment, &server) == MS_BAD_REQUEST);
    EXPECT(harness_join_as(h, 0, 0, 10, 10, "", &server) == MS_WRONG_INCARNATION);
    uint8_t tenant[80] = {0};
    uint64_t session;
    EXPECT(md_session_open(h->core, h->now, tenant, 65, &session) == MS_BAD_REQUEST);
    EXPECT(md_session_open(h->core, h->now, (const uint8_t *)"other", 5, &session) == MS_OK);
    EXPECT(md_session_tenant(h->core, session) == 1);
    harness_close(h);
}

static void stat_tells_what_is_known(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 10);
    ms_put_item item = harness_item(h, "a", 100);
    item.group = 3;
    item.parent = harness_hash(h, "p");
    item.ttl_ms = 50000;
    EXPECT(harness_put_item(h, "a", &item) == MS_OK);
    EXPECT(md_pin(h->core, h->now, h->session, item.hash, 0) == MS_OK);
    harness_advance(h, 6400);
    ms_writer out = ms_writer_fixed(h->buffer, sizeof h->buffer);
    EXPECT(md_stat(h->core, h->now, 0, item.hash, (const uint8_t *)"a", 1, &out) == MS_OK);
    ms_reader reader = ms_reader_of(out.data, out.length);
    ms_stat stat;
    ms_location_view location;
    EXPECT(MS_READER_STRUCT(&reader, &stat) && ms_reader_location(&reader, &location));
    EXPECT(stat.age_ms >= 6400 - 64 && stat.age_ms <= 6400 + 64 && stat.ttl_ms == 43600);
    EXPECT(stat.pin_count == 1 && stat.use_count == 1 && stat.group == 3);
    EXPECT(ms_hash_equal(stat.parent, item.parent) && location.head.size == 100);
    harness_close(h);
}

/* ---- without memory ----------------------------------------------------------------------------------------- */
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
    put_lookup_remove();
    many();
    eviction_makes_room();
    put_end_names_its_grant();
    replicas_that_were_not_sealed_are_freed();
    fewer_replicas_are_told_or_refused();
    replicas_go_to_other_hosts_first();
    revoke_takes_back_an_open_put_only();
    a_put_past_its_deadline_ends_its_session();
    a_silent_session_ends();
    remove_is_answered_at_cleared_and_pages_are_free_at_freed();
    an_answer_counts_for_exactly_what_is_freed();
    upsert_switches_and_waits_for_the_old();
    a_tombstone_stands_in_for_a_silent_holder();
    an_absent_member_needs_a_tombstone_first();
    a_free_is_repeated_until_it_is_answered();
    an_inventory_rebuilds_the_index();
    an_inventory_tells_whose_an_object_is();
    the_highest_note_counts();
    a_note_outranks_a_copy_that_does_not_have_it();
    a_server_in_the_same_life_keeps_what_it_has();
    a_new_life_has_what_its_inventory_names();
    objects_leave_when_the_grace_is_over_and_come_back();
    removed_while_away_stays_removed();
    a_server_with_too_many_tombstones_is_condemned();
    parked_puts_are_served_in_order();
    a_refusal_says_what_the_space_is_used_for();
    space_in_pieces_is_used();
    a_put_waits_for_pages_that_are_being_made_ready();
    a_group_leaves_together();
    a_chain_loses_its_tail_first();
    the_watermark_keeps_head_room();
    the_watermark_spares_what_has_just_come();
    ttls_end();
    a_note_is_answered_when_all_holders_have();
    replicas_change();
    a_change_that_fails_leaves_nothing_behind();
    a_list_sees_all_that_stays();
    events_are_kept_in_a_ring();
    a_prefix_is_matched_and_pinned_at_once();
    a_pin_stays_on_its_key();
    mistakes_are_refused();
    stat_tells_what_is_known();
    every_call_for_memory_may_fail();
    free(h);
    return 0;
}
