// sources: master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain address
// timeout: 300
/* The metadata core: puts, removes, sessions, and when pages are free. */
#include "md_internal.h"
#include "md_memory.h"
#include "metadata_kit.h"

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
    EXPECT(location.head.version == grant.head.version &&
           location.head.lifetime_ms == MS_LOCATION_LIFETIME_MS);
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

static void servers_that_do_not_answer_the_writer_are_spared(void) {
    harness_open_default(h);
    for (uint32_t i = 0; i < 4; i++)
        harness_add_server(h, i, 400 - 100 * i); /* the first has most room, and would be taken */
    ms_put_item item = harness_item(h, "a", 100);
    item.replica_count = 2;
    item.preferred_server = 2;
    item.spared_first = 1;
    item.spared_second = 2; /* the wish for it counts less */
    ms_location_view grant;
    EXPECT(harness_start_item(h, "a", &item, 1, &grant) == MS_OK);
    EXPECT(grant.replicas[0].head.server == 2 && grant.replicas[1].head.server == 3);
    /* Where nothing else has room they are better than nothing. */
    item = harness_item(h, "b", 350 * MS_PAGE_SIZE);
    item.spared_first = 1;
    EXPECT(harness_start_item(h, "b", &item, 1, &grant) == MS_OK);
    EXPECT(grant.head.replica_count == 1 && grant.replicas[0].head.server == 0);
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

static void let_time_pass(int64_t ms) {
    for (int64_t passed = 0; passed < ms; passed += 100) {
        h->now.now_ms += 100;
        h->now.wall_ms += 100;
        EXPECT(md_session_keep(h->core, h->now, h->session) == MS_OK);
        md_tick(h->core, h->now);
        harness_drain(h);
    }
}

static void put_many(uint32_t count, uint32_t round) {
    for (uint32_t i = 0; i < count; i++)
        EXPECT(harness_put(h, name(i), (1 + (i + round) % 3) * 4096) == MS_OK);
    harness_check(h);
    ms_location_view location;
    for (uint32_t i = 0; i < count; i++)
        EXPECT(harness_lookup(h, name(i), &location) == MS_OK &&
               location.head.size == (1 + (i + round) % 3) * 4096);
}

static void remove_all(uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        EXPECT(harness_remove(h, name(i), false, 9) == MS_PENDING);
        h->answer_count = 0;
    }
    harness_check(h);
}

/* An empty index gives its memory back after a second; what comes then finds one that is as good as new, also when
 * the memory for it is not there at first. */
static void what_is_put_after_a_trim_is_there(void) {
    const uint32_t count = 3000; /* several pages of some shards */
    harness_open_default(h);
    harness_add_server(h, 0, 10000);
    for (uint32_t round = 0; round < 4; round++) {
        put_many(count, round);
        let_time_pass(100);
        EXPECT(!h->core->is_trimmed);
        remove_all(count);
        EXPECT(pages_free(0) == 10000);
        let_time_pass(500);
        EXPECT(!h->core->is_trimmed);
        EXPECT(round % 2 == 0 || harness_put(h, "meanwhile", 4096) == MS_OK);
        let_time_pass(1500);
        EXPECT(h->core->is_trimmed == (round % 2 == 0)); /* one object keeps all of it */
        if (round % 2 != 0) {
            EXPECT(harness_remove(h, "meanwhile", false, 9) == MS_PENDING);
            let_time_pass(1500);
            EXPECT(h->core->is_trimmed);
        }
        EXPECT(!harness_exists(h, name(1)));
        /* What comes and goes between two ticks is seen by the next one all the same. */
        EXPECT(harness_put(h, "brief", 4096) == MS_OK);
        EXPECT(harness_remove(h, "brief", false, 9) == MS_PENDING);
        h->answer_count = 0;
        let_time_pass(500);
        EXPECT(!h->core->is_trimmed);
        let_time_pass(1500);
        EXPECT(h->core->is_trimmed);
        harness_check(h);
    }
    uint32_t refused = 0;
    for (uint64_t calls = 1; calls < 30; calls++) {
        EXPECT(h->core->is_trimmed);
        md_memory_fail_after(calls);
        ms_status status = harness_put(h, "first", 4096);
        md_memory_fail_after(0);
        EXPECT(status == MS_OK || status == MS_NO_MEMORY);
        refused += status == MS_NO_MEMORY;
        EXPECT(harness_exists(h, "first") == (status == MS_OK));
        harness_check(h);
        if (status != MS_OK) {
            ms_status again = harness_put(h, "first", 4096);
            EXPECT(again == MS_OK || again == MS_BUSY); /* BUSY: it was granted, and not ended */
            if (again == MS_BUSY)
                break;
        }
        EXPECT(harness_remove(h, "first", false, 9) == MS_PENDING);
        let_time_pass(2000);
    }
    EXPECT(refused > 0);
    harness_close(h);
}

/* Room is asked for last: what is there needs none. */
static void a_drained_pool_still_says_what_is_there(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 10);
    ms_location_view grant;
    uint64_t task;
    EXPECT(harness_put(h, "there", 100) == MS_OK);
    EXPECT(harness_start(h, "open", 100, &grant) == MS_OK);
    EXPECT(md_server_drain(h->core, h->now, 0, &task) == MS_OK);
    EXPECT(harness_start(h, "there", 100, &grant) == MS_EXISTS);
    EXPECT(harness_start(h, "open", 100, &grant) == MS_BUSY);
    EXPECT(harness_start(h, "new", 100, &grant) == MS_UNAVAILABLE);
    EXPECT(harness_exists(h, "there"));
    harness_close(h);
}

int main(void) {
    h = malloc(sizeof *h);
    EXPECT(h != NULL);
    put_lookup_remove();
    put_end_names_its_grant();
    replicas_that_were_not_sealed_are_freed();
    fewer_replicas_are_told_or_refused();
    replicas_go_to_other_hosts_first();
    servers_that_do_not_answer_the_writer_are_spared();
    revoke_takes_back_an_open_put_only();
    a_put_past_its_deadline_ends_its_session();
    a_silent_session_ends();
    remove_is_answered_at_cleared_and_pages_are_free_at_freed();
    an_answer_counts_for_exactly_what_is_freed();
    upsert_switches_and_waits_for_the_old();
    a_tombstone_stands_in_for_a_silent_holder();
    an_absent_member_needs_a_tombstone_first();
    a_free_is_repeated_until_it_is_answered();
    what_is_put_after_a_trim_is_there();
    a_drained_pool_still_says_what_is_there();
    free(h);
    return 0;
}
