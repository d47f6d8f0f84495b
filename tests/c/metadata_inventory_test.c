// sources: master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain address
// timeout: 300
/* The metadata core: what servers bring along, and what was decided while they were away. */
#include "metadata_kit.h"

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
    EXPECT(tell_noted(b, "holder first", 20, 20, MS_OBJECT_IS_COPY, 0) == MS_OK);
    EXPECT(tell_noted(b, "copy first", 20, 20, MS_OBJECT_IS_COPY, 1) == MS_OK);
    EXPECT(tell_noted(a, "copy first", 10, 30, MS_OBJECT_HARD_PIN, 1) == MS_OK);
    EXPECT(tell_noted(a, "noted before", 10, 15, MS_OBJECT_HARD_PIN, 2) == MS_OK);
    EXPECT(tell_noted(b, "noted before", 20, 20, MS_OBJECT_IS_COPY, 2) == MS_OK);
    EXPECT(tell_noted(a, "copy noted too", 10, 30, 0, 3) == MS_OK);
    EXPECT(tell_noted(b, "copy noted too", 20, 31, MS_OBJECT_HARD_PIN | MS_OBJECT_IS_COPY, 3) ==
           MS_OK);
    /* A later put is no copy: a note of an older one that was forgotten for a while does not outrank it. */
    EXPECT(tell_noted(a, "put again", 10, 30, MS_OBJECT_HARD_PIN, 4) == MS_OK);
    EXPECT(tell_noted(b, "put again", 20, 20, 0, 4) == MS_OK);
    EXPECT(tell_noted(b, "put before", 20, 20, 0, 5) == MS_OK);
    EXPECT(tell_noted(a, "put before", 10, 30, MS_OBJECT_HARD_PIN, 5) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, a, 1) == MS_OK &&
           md_inventory_end(h->core, h->now, b, 1) == MS_OK);
    harness_drain(h);
    harness_check(h);
    EXPECT(h->free_count == 6); /* of each key the one that does not count */
    const struct {
        const char *key;
        uint64_t version;
        uint32_t flags;
    } wanted[] = {{"holder first", 10, MS_OBJECT_HARD_PIN},
                  {"copy first", 10, MS_OBJECT_HARD_PIN},
                  {"noted before", 20, 0},
                  {"copy noted too", 20, MS_OBJECT_HARD_PIN},
                  {"put again", 20, 0},
                  {"put before", 20, 0}};
    for (uint32_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        ms_location_view location;
        EXPECT(harness_lookup(h, wanted[i].key, &location) == MS_OK);
        EXPECT(location.head.version == wanted[i].version && location.head.replica_count == 1);
        EXPECT(location.head.flags == wanted[i].flags);
    }
    harness_close(h);
}

/* Also of copies that this master made itself: a former one had its note answered while the holder was here. */
static void an_entry_of_copies_is_ranked_as_one(void) {
    harness_open_default(h);
    for (uint32_t i = 0; i < 2; i++)
        harness_add_server(h, i, 10);
    EXPECT(harness_put(h, "put", 1) == MS_OK && harness_put(h, "copied", 1) == MS_OK);
    EXPECT(change("copied", 2, 0, 0, 7) == MS_PENDING && harness_answer_of(h, 7) == MS_OK);
    ms_location_view put, copied, after;
    EXPECT(harness_lookup(h, "put", &put) == MS_OK);
    uint64_t put_version = put.head.version;
    EXPECT(harness_lookup(h, "copied", &copied) == MS_OK && copied.head.replica_count == 2);
    uint64_t note = copied.head.version + 100;
    uint32_t server;
    EXPECT(harness_join_as(h, 2, 1, 10, 10, "", &server) == MS_OK);
    EXPECT(tell_noted(server, "put", 1, note, 0, 0) == MS_OK);
    EXPECT(tell_noted(server, "copied", 1, note, MS_OBJECT_HARD_PIN, 1) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, server, 1) == MS_OK);
    harness_drain(h);
    harness_check(h);
    EXPECT(harness_lookup(h, "put", &after) == MS_OK && after.head.version == put_version);
    EXPECT(harness_lookup(h, "copied", &after) == MS_OK && after.head.version == 1);
    EXPECT(after.head.flags == MS_OBJECT_HARD_PIN);
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

/* It says which pages it has; the index may know pages that are none any more. */
static void a_server_comes_back_smaller(void) {
    harness_open_default(h);
    EXPECT(harness_add_server(h, 0, 10000) == 0);
    for (uint32_t i = 0; i < 300; i++)
        EXPECT(tell(0, 1, name(i), 5 + i, 4096, i * 33, 1, 0, 1) == MS_WRONG_INCARNATION);
    uint32_t server;
    EXPECT(harness_join_as(h, 0, 2, 10000, 10000, "", &server) == MS_OK && server == 0);
    for (uint32_t i = 300; i-- > 0;) /* in any order */
        EXPECT(tell(0, 2, name(i), 5 + i, 4096, i * 33, 1, 0, 1) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, 0, 2) == MS_OK);
    EXPECT(harness_counter(h, "objects") == 300 && pages_free(0) == 9700);
    harness_check(h);
    EXPECT(harness_join_as(h, 0, 3, 100, 100, "", &server) == MS_OK && server == 0);
    for (uint32_t i = 0; i < 3; i++)
        EXPECT(tell(0, 3, name(i), 5 + i, 4096, i * 33, 1, 0, 1) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, 0, 3) == MS_OK);
    EXPECT(harness_counter(h, "objects") == 3 && pages_free(0) == 97);
    for (uint32_t i = 0; i < 300; i++) {
        ms_location_view location;
        EXPECT((harness_lookup(h, name(i), &location) == MS_OK) == (i < 3));
    }
    harness_check(h);
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
    EXPECT(h->tombstone_count == 100002); /* and one of the server itself */
    ms_hash node = h->last_tombstone.hash;
    uint64_t bound = h->last_tombstone.version;
    EXPECT(bound >= location.head.version);
    EXPECT(harness_remove(h, name(0), false, 7) == MS_NOT_FOUND); /* no tombstone any more */
    EXPECT(!md_tombstones_settle(h->core)); /* for whoever leads when it comes back */
    EXPECT(harness_join_as(h, 0, 1, 20, 20, "", &server) == MS_OK);
    EXPECT(tell(server, 1, "a", location.head.version, 4096,
                ms_replica_extent(&location.replicas[0], 0).page, 1, 0, 1) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, server, 1) == MS_OK);
    harness_drain(h);
    EXPECT(!harness_exists(h, "a") && pages_free(server) == 20);
    EXPECT(harness_counter(h, "tombstones") == 0); /* all members are here */
    EXPECT(md_tombstones_settle(h->core));
    harness_close(h);

    /* The next master knows no more than what the coordinator keeps. */
    harness_open_default(h);
    EXPECT(md_tombstone_add(h->core, node, bound) == MS_OK);
    EXPECT(harness_join_as(h, 0, 1, 20, 20, "", &server) == MS_OK);
    EXPECT(tell(server, 1, "before", bound, 4096, 0, 1, 0, 1) == MS_OK);
    EXPECT(tell(server, 1, "after", bound + 1, 4096, 1, 1, 0, 1) == MS_OK); /* it was back since */
    EXPECT(md_inventory_end(h->core, h->now, server, 1) == MS_OK);
    harness_drain(h);
    EXPECT(!harness_exists(h, "before") && harness_exists(h, "after"));
    harness_close(h);
}

/* Until its own tombstone is written, and where that fails, an absent server needs one for each remove. */
static void a_condemnation_that_cannot_be_written_is_none(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 20);
    md_server_gone(h->core, h->now, 0, 1);
    harness_advance(h, 11000);
    for (uint32_t i = 0; i < 100000; i++) {
        EXPECT(harness_remove(h, name(i), false, 7) == MS_PENDING);
        h->answer_count = 0;
    }
    h->holds_tombstones = true;
    EXPECT(harness_remove(h, name(0), false, 7) == MS_PENDING);
    md_effect of_key = h->last_tombstone;
    md_tombstoned(h->core, h->now, of_key.hash, of_key.version, MS_OK);
    harness_drain(h);
    md_effect of_server = h->last_tombstone;
    EXPECT(!ms_hash_equal(of_server.hash, of_key.hash));
    EXPECT(harness_remove(h, name(1), false, 7) == MS_PENDING);
    md_tombstoned(h->core, h->now, of_server.hash, of_server.version, MS_NOT_LEADER);
    EXPECT(harness_remove(h, name(2), false, 7) == MS_PENDING);
    harness_close(h);
}

int main(void) {
    h = malloc(sizeof *h);
    EXPECT(h != NULL);
    an_inventory_rebuilds_the_index();
    an_inventory_tells_whose_an_object_is();
    the_highest_note_counts();
    a_note_outranks_a_copy_that_does_not_have_it();
    an_entry_of_copies_is_ranked_as_one();
    a_server_in_the_same_life_keeps_what_it_has();
    a_new_life_has_what_its_inventory_names();
    a_server_comes_back_smaller();
    objects_leave_when_the_grace_is_over_and_come_back();
    removed_while_away_stays_removed();
    a_server_with_too_many_tombstones_is_condemned();
    a_condemnation_that_cannot_be_written_is_none();
    free(h);
    return 0;
}
