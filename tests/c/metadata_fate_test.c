// sources: master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain address
// timeout: 60
/* The metadata core: what has become of a key, and for whose sake. */
#include "metadata_kit.h"

static md_explanation found;

static const ms_explain *explain(const char *key) {
    EXPECT(md_explain(h->core, h->now, 0, harness_hash(h, key), (const uint8_t *)key, strlen(key),
                      &found) == MS_OK);
    harness_drain(h);
    return &found.head;
}

/* The newest fate of a key. */
static const ms_fate *fate(const char *key) {
    EXPECT(explain(key)->fate_count > 0);
    return &found.fates[0];
}

static uint64_t open_session(void) {
    uint64_t session;
    EXPECT(md_session_open(h->core, h->now, (const uint8_t *)"default", 7, &session) == MS_OK);
    return session;
}

static void what_is_there_and_what_never_was(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 256);
    EXPECT(explain("a")->flags == 0 && found.head.fate_count == 0);
    ms_location_view grant;
    EXPECT(harness_start(h, "a", 5000, &grant) == MS_OK);
    harness_advance(h, 3000);
    EXPECT(explain("a")->flags == MS_EXPLAIN_PUTTING);
    EXPECT(found.head.put_version == grant.head.version && found.head.put_size == 5000);
    EXPECT(found.head.put_session == h->session && found.head.put_deadline_ms == 7000);
    EXPECT(harness_end(h, "a", grant.head.version, 1, 1) == MS_OK);
    EXPECT(explain("a")->flags == MS_EXPLAIN_STORED && found.head.fate_count == 0);
    EXPECT(found.head.leading_ms == 3000 && found.head.history_ms == 3000);
    ms_put_item child = harness_item(h, "b", 1);
    child.parent = harness_hash(h, "a");
    EXPECT(harness_put_item(h, "b", &child) == MS_OK);
    EXPECT(explain("a")->child_count == 1);
    /* What has ended is named by its hash alone, so the hash must be that of the key. */
    EXPECT(md_explain(h->core, h->now, 0, harness_hash(h, "a"), (const uint8_t *)"b", 1, &found) ==
           MS_BAD_REQUEST);
    EXPECT(md_explain(h->core, h->now, 0, harness_hash(h, ""), (const uint8_t *)"", 0, &found) ==
           MS_BAD_KEY);
    harness_close(h);
}

static void the_one_that_removes_is_named(void) {
    harness_open_default(h);
    uint32_t server = harness_add_server(h, 0, 256);
    EXPECT(harness_put(h, "a", 5000) == MS_OK);
    uint64_t remover = open_session();
    EXPECT(md_remove(h->core, h->now, 0, remover, harness_hash(h, "a"), (const uint8_t *)"a", 1,
                     false, 7) == MS_PENDING);
    harness_advance(h, 1500);
    EXPECT(fate("a")->kind == MS_FATE_REMOVED && found.fates[0].session == remover);
    EXPECT(found.fates[0].size == 5000 && found.fates[0].age_ms == 1500);
    EXPECT(found.fates[0].server == server + 1 && found.head.flags == 0);
    harness_close(h);
}

static void an_eviction_names_the_put_that_needed_room(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 256);
    for (uint32_t i = 0; i < 256; i++)
        EXPECT(harness_put(h, name(i), 4096) == MS_OK);
    EXPECT(put_somehow("large", 40000, 5) == MS_OK);
    for (uint32_t i = 0; i < 10; i++) {
        EXPECT(fate(name(i))->kind == MS_FATE_EVICTED_FOR_PUT);
        EXPECT(found.fates[0].bytes_wanted == 40000 && found.fates[0].session == h->session);
    }
    EXPECT(explain(name(10))->fate_count == 0 && found.head.flags == MS_EXPLAIN_STORED);
    /* Stored again, it is there and has a past. */
    EXPECT(put_somehow(name(0), 4096, 6) == MS_OK);
    EXPECT(explain(name(0))->flags == MS_EXPLAIN_STORED && found.head.fate_count == 1);
    harness_close(h);
}

static void an_eviction_in_the_background_names_the_watermark(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 1000);
    for (uint32_t i = 0; i < 980; i++)
        EXPECT(harness_put(h, name(i), 4096) == MS_OK);
    harness_advance(h, 1000);
    EXPECT(fate(name(0))->kind == MS_FATE_EVICTED_AT_WATERMARK);
    EXPECT(found.fates[0].bytes_wanted == 80 * 4096 && found.fates[0].session == 0);
    harness_close(h);
}

static void an_eviction_for_a_copy_says_so(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 64);
    EXPECT(harness_put(h, "a", 16 * 4096) == MS_OK);
    harness_add_server(h, 1, 64);
    for (uint32_t i = 0; i < 7; i++)
        EXPECT(harness_put(h, name(i), 16 * 4096) == MS_OK);
    EXPECT(change("a", 2, 0, 0, 9) == MS_PENDING);
    harness_advance(h, 1000);
    uint32_t gone = 0;
    for (uint32_t i = 0; i < 7; i++)
        if (explain(name(i))->fate_count > 0) {
            gone++;
            EXPECT(found.fates[0].kind == MS_FATE_EVICTED_FOR_COPY);
            EXPECT(found.fates[0].bytes_wanted >= 16 * 4096);
        }
    EXPECT(gone > 0);
    harness_close(h);
}

static void a_ttl_ends_it(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 256);
    ms_put_item item = harness_item(h, "a", 10);
    item.ttl_ms = 2000;
    EXPECT(harness_put_item(h, "a", &item) == MS_OK);
    harness_advance(h, 5000);
    EXPECT(fate("a")->kind == MS_FATE_EXPIRED && found.fates[0].age_ms <= 3000);
    /* Found before the sweep came by: it ends then. */
    item = harness_item(h, "b", 10);
    item.ttl_ms = 1;
    EXPECT(harness_put_item(h, "b", &item) == MS_OK);
    h->now.now_ms += 1;
    EXPECT(fate("b")->kind == MS_FATE_EXPIRED && found.fates[0].age_ms == 0);
    EXPECT(found.head.flags == 0);
    harness_close(h);
}

static void an_upsert_replaces_it(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 256);
    EXPECT(harness_put(h, "a", 10) == MS_OK);
    ms_put_item item = harness_item(h, "a", 5000);
    item.flags = MS_PUT_UPSERT;
    ms_location_view grant;
    EXPECT(harness_start_item(h, "a", &item, 1, &grant) == MS_OK);
    EXPECT(harness_end(h, "a", grant.head.version, 1, 2) == MS_PENDING);
    EXPECT(fate("a")->kind == MS_FATE_REPLACED && found.fates[0].session == h->session);
    EXPECT(found.fates[0].size == 10 && found.fates[0].bytes_wanted == 5000);
    EXPECT(found.fates[0].version < grant.head.version);
    EXPECT(found.head.flags == MS_EXPLAIN_STORED);
    harness_close(h);
}

static void its_node_is_lost_or_comes_back_without_it(void) {
    harness_open_default(h);
    uint32_t server = harness_add_server(h, 0, 256);
    EXPECT(harness_put(h, "a", 10) == MS_OK && harness_put(h, "b", 10) == MS_OK);
    md_server_gone(h->core, h->now, server, 1);
    harness_advance(h, 9000); /* within the grace */
    EXPECT(explain("a")->flags == MS_EXPLAIN_STORED);
    harness_advance(h, 3000);
    EXPECT(fate("a")->kind == MS_FATE_NODE_LOST && found.fates[0].server == server + 1);
    harness_close(h);

    harness_open_default(h);
    server = harness_add_server(h, 0, 256);
    EXPECT(harness_put(h, "a", 10) == MS_OK);
    md_server_gone(h->core, h->now, server, 1);
    EXPECT(harness_join_as(h, 0, 2, 256, 256, "", &server) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, server, 2) == MS_OK);
    harness_drain(h);
    EXPECT(fate("a")->kind == MS_FATE_NOT_KEPT && found.fates[0].server == server + 1);
    harness_close(h);
}

static void what_an_inventory_tells_is_struck_outranked_condemned(void) {
    harness_open_default(h);
    EXPECT(md_tombstone_add(h->core, harness_hash(h, "struck"), 50) == MS_OK);
    ms_hash node = {0};
    ((uint8_t *)&node)[0] = 2; /* node 1's id */
    EXPECT(md_tombstone_add(h->core, node, 60) == MS_OK);
    uint32_t plain, condemned;
    EXPECT(harness_join_as(h, 0, 1, 256, 256, "", &plain) == MS_OK);
    EXPECT(harness_join_as(h, 1, 1, 256, 256, "", &condemned) == MS_OK);
    EXPECT(tell(plain, 1, "struck", 50, 10, 0, 1, 0, 1) == MS_OK);
    EXPECT(tell(plain, 1, "a", 55, 10, 1, 1, 0, 1) == MS_OK);
    EXPECT(tell(condemned, 1, "c", 60, 10, 0, 1, 0, 1) == MS_OK);
    EXPECT(tell(condemned, 1, "a", 70, 20, 1, 1, 0, 1) == MS_OK);
    EXPECT(fate("struck")->kind == MS_FATE_STRUCK && found.fates[0].version == 50);
    EXPECT(fate("c")->kind == MS_FATE_CONDEMNED && found.fates[0].server == condemned + 1);
    EXPECT(fate("a")->kind == MS_FATE_OUTRANKED && found.fates[0].version == 55);
    EXPECT(found.head.flags == MS_EXPLAIN_STORED);
    harness_close(h);
}

static void a_put_that_never_ended_says_why(void) {
    harness_open_default(h);
    uint32_t server = harness_add_server(h, 0, 256);
    ms_location_view grant;
    EXPECT(harness_start(h, "late", 10, &grant) == MS_OK);
    for (uint32_t i = 0; i < 11; i++) {
        EXPECT(md_session_keep(h->core, h->now, h->session) == MS_OK || i == 10);
        harness_advance(h, 1000);
    }
    EXPECT(fate("late")->kind == MS_FATE_PUT_DEADLINE && found.fates[0].session == h->session);
    EXPECT(found.fates[0].version == grant.head.version && found.fates[0].server == server + 1);

    h->session = open_session();
    EXPECT(harness_start(h, "closed", 10, &grant) == MS_OK);
    md_session_close(h->core, h->now, h->session);
    harness_drain(h);
    EXPECT(fate("closed")->kind == MS_FATE_PUT_SESSION_ENDED);
    EXPECT(found.fates[0].session == h->session && found.head.flags == 0);

    h->session = open_session();
    EXPECT(harness_start(h, "revoked", 10, &grant) == MS_OK);
    ms_end_item end = {.hash = harness_hash(h, "revoked"), .version = grant.head.version};
    EXPECT(md_revoke(h->core, h->now, h->session, &end) == MS_OK);
    harness_drain(h);
    EXPECT(fate("revoked")->kind == MS_FATE_PUT_REVOKED);

    EXPECT(harness_start(h, "restarted", 10, &grant) == MS_OK);
    EXPECT(harness_join_as(h, 0, 2, 256, 256, "", &server) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, server, 2) == MS_OK);
    harness_drain(h);
    EXPECT(fate("restarted")->kind == MS_FATE_PUT_NODE_RESTARTED);

    EXPECT(put_somehow("pinned", 10, 5) == MS_OK);
    EXPECT(annotate("pinned", MS_ANNOTATE_HARD_PIN, MS_OBJECT_HARD_PIN, 0, 6) == MS_PENDING);
    EXPECT(harness_start(h, "refused", 256 * 4096, &grant) == MS_NO_SPACE);
    EXPECT(fate("refused")->kind == MS_FATE_PUT_NO_SPACE &&
           found.fates[0].bytes_wanted == 256 * 4096);
    EXPECT(found.fates[0].version == 0 && found.fates[0].server == 0);

    /* One that waits for room is seen waiting, and then that its time was over. */
    EXPECT(harness_put(h, "full", 255 * 4096) == MS_OK);
    h->holds_frees = true;
    EXPECT(harness_start(h, "parked", 4096, &grant) == MS_PENDING);
    EXPECT(explain("parked")->flags == (MS_EXPLAIN_PUTTING | MS_EXPLAIN_PARKED));
    for (uint32_t i = 0; i < 11; i++) {
        EXPECT(md_session_keep(h->core, h->now, h->session) == MS_OK);
        harness_advance(h, 1000);
    }
    EXPECT(fate("parked")->kind == MS_FATE_PUT_DEADLINE && found.fates[0].version == 0);
    harness_free_all(h, false);
    harness_close(h);
}

static void the_history_is_bounded_and_says_how_far_it_reaches(void) {
    md_config config;
    md_config_default(&config);
    config.fates_max = 32;
    harness_open(h, &config);
    harness_add_server(h, 0, 256);
    for (uint32_t i = 0; i < 40; i++) {
        EXPECT(harness_put(h, name(i), 10) == MS_OK);
        EXPECT(harness_remove(h, name(i), false, 1) == MS_PENDING);
        h->now.now_ms += 10;
    }
    EXPECT(explain(name(7))->fate_count == 0 && found.head.leading_ms == 400);
    EXPECT(found.head.history_ms == 320);
    EXPECT(fate(name(8))->age_ms == 320 && fate(name(39))->age_ms == 10);
    for (uint32_t i = 0; i < 20; i++) {
        EXPECT(harness_put(h, "often", i) == MS_OK);
        EXPECT(harness_remove(h, "often", false, 1) == MS_PENDING);
    }
    EXPECT(explain("often")->fate_count == MS_FATES_MAX);
    for (uint32_t i = 0; i < MS_FATES_MAX; i++)
        EXPECT(found.fates[i].size == 19 - i); /* the newest first */
    harness_close(h);

    config.fates_max = 0;
    harness_open(h, &config);
    harness_add_server(h, 0, 256);
    EXPECT(harness_put(h, "a", 10) == MS_OK);
    EXPECT(harness_remove(h, "a", false, 1) == MS_PENDING);
    EXPECT(explain("a")->fate_count == 0 && found.head.history_ms == 0);
    harness_close(h);
}

int main(void) {
    h = malloc(sizeof *h);
    EXPECT(h != NULL);
    what_is_there_and_what_never_was();
    the_one_that_removes_is_named();
    an_eviction_names_the_put_that_needed_room();
    an_eviction_in_the_background_names_the_watermark();
    an_eviction_for_a_copy_says_so();
    a_ttl_ends_it();
    an_upsert_replaces_it();
    its_node_is_lost_or_comes_back_without_it();
    what_an_inventory_tells_is_struck_outranked_condemned();
    a_put_that_never_ended_says_why();
    the_history_is_bounded_and_says_how_far_it_reaches();
    free(h);
    return 0;
}
