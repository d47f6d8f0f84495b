// sources: master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain address
// timeout: 300
/* The metadata core: times to live, notes, replicas, pins, lists, events. */
#include "metadata_kit.h"

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
           copy.seal.key[0] == 'a' && copy.seal.head.flags & MS_OBJECT_IS_COPY);
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
    EXPECT(change("a", 1, 0, 2, 10) == MS_PENDING && /* fewer: the one at server 1 first */
           harness_answer_of(h, 10) == MS_OK);
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
    EXPECT(change("a", 1, 0, 0, 16) == MS_PENDING && harness_answer_of(h, 16) == MS_OK);
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

static uint32_t pins(void) { return (uint32_t)harness_counter(h, "pins"); }

/* What nobody takes back is apart from what somebody does, whichever ends first. */
static void a_lease_lies_beside_pins(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 4);
    EXPECT(harness_put(h, "a", 4096) == MS_OK);
    ms_hash a = harness_hash(h, "a"), none = harness_hash(h, "none");
    EXPECT(md_lease(h->core, h->now, h->session, none, 1000) == MS_NOT_FOUND);
    EXPECT(md_lease(h->core, h->now, h->session + 1, a, 1000) == MS_SESSION_LOST);
    EXPECT(md_lease(h->core, h->now, h->session, a, 2000) == MS_OK);
    EXPECT(md_lease(h->core, h->now, h->session, a, 1000) == MS_OK); /* the later one counts */
    EXPECT(md_unpin(h->core, h->now, h->session, a) == MS_NOT_FOUND);
    EXPECT(md_pin(h->core, h->now, h->session, a, 0) == MS_OK);
    EXPECT(md_unpin(h->core, h->now, h->session, a) == MS_OK);
    EXPECT(pins() == 1);
    harness_advance(h, 1500);
    EXPECT(pins() == 1);
    harness_advance(h, 1000);
    EXPECT(pins() == 0);
    EXPECT(md_pin(h->core, h->now, h->session, a, 0) == MS_OK);
    EXPECT(md_lease(h->core, h->now, h->session, a, 1000) == MS_OK);
    harness_advance(h, 2000);
    EXPECT(pins() == 1); /* the lease is over, the pin is not */
    EXPECT(md_unpin(h->core, h->now, h->session, a) == MS_OK && pins() == 0);
    EXPECT(md_pin(h->core, h->now, h->session, a, 1000) == MS_OK);
    EXPECT(md_lease(h->core, h->now, h->session, a, 3000) == MS_OK);
    harness_advance(h, 2000);
    EXPECT(md_unpin(h->core, h->now, h->session, a) == MS_NOT_FOUND); /* ended at its deadline */
    EXPECT(pins() == 1);
    harness_advance(h, 2000);
    EXPECT(pins() == 0);
    harness_check(h);
    harness_close(h);
}

static void pins_are_what_is_stated(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 4);
    EXPECT(harness_put(h, "a", 4096) == MS_OK);
    ms_hash a = harness_hash(h, "a"), none = harness_hash(h, "none");
    EXPECT(md_pins(h->core, h->now, h->session + 1, a, 1, 0) == MS_SESSION_LOST);
    EXPECT(md_pins(h->core, h->now, h->session, none, 1, 0) == MS_NOT_FOUND);
    EXPECT(md_pins(h->core, h->now, h->session, none, 0, 0) == MS_OK && pins() == 0);
    for (int turn = 0; turn < 2; turn++) /* twice is as good as once */
        EXPECT(md_pins(h->core, h->now, h->session, a, 2, 0) == MS_OK);
    EXPECT(md_unpin(h->core, h->now, h->session, a) == MS_OK && pins() == 1);
    EXPECT(md_unpin(h->core, h->now, h->session, a) == MS_OK && pins() == 0);
    EXPECT(md_pin(h->core, h->now, h->session, a, 0) == MS_OK);
    EXPECT(md_pins(h->core, h->now, h->session, a, 1, 1000) == MS_OK); /* an earlier end, too */
    harness_advance(h, 1500);
    EXPECT(pins() == 0);
    EXPECT(md_pin(h->core, h->now, h->session, a, 0) == MS_OK);
    EXPECT(md_lease(h->core, h->now, h->session, a, 1000) == MS_OK);
    EXPECT(md_pins(h->core, h->now, h->session, a, 0, 0) == MS_OK && pins() == 1);
    harness_advance(h, 1500);
    EXPECT(pins() == 0);
    EXPECT(md_pins(h->core, h->now, h->session, a, 1, 0) == MS_OK);
    md_session_close(h->core, h->now, h->session);
    harness_drain(h);
    EXPECT(pins() == 0);
    harness_check(h);
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
    EXPECT(md_remove(h->core, h->now, 0, 0, harness_hash(h, "a"), (const uint8_t *)"b", 1, false,
                     1) == MS_BAD_REQUEST);
    EXPECT(md_remove(h->core, h->now, 1, 0, harness_hash(h, "a"), (const uint8_t *)"a", 1, false,
                     1) == MS_BAD_REQUEST);
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

int main(void) {
    h = malloc(sizeof *h);
    EXPECT(h != NULL);
    ttls_end();
    a_note_is_answered_when_all_holders_have();
    replicas_change();
    a_change_that_fails_leaves_nothing_behind();
    a_list_sees_all_that_stays();
    events_are_kept_in_a_ring();
    a_prefix_is_matched_and_pinned_at_once();
    a_pin_stays_on_its_key();
    a_lease_lies_beside_pins();
    pins_are_what_is_stated();
    mistakes_are_refused();
    stat_tells_what_is_known();
    free(h);
    return 0;
}
