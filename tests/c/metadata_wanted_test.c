// sources: master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain address
/* The metadata core: how many replicas are wanted of an object, and how many are missing. */
#include "metadata_kit.h"

static uint32_t wanted(const char *key) {
    ms_location_view location;
    EXPECT(harness_lookup(h, key, &location) == MS_OK);
    return ms_replicas_wanted(location.head.flags);
}

static ms_status put_wanting(const char *key, uint8_t replica_count) {
    ms_put_item item = harness_item(h, key, 4096);
    item.replica_count = replica_count;
    return harness_put_item(h, key, &item);
}

static void a_put_with_fewer_servers_than_replicas_is_short(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 10);
    EXPECT(put_wanting("a", 3) == MS_OK && put_wanting("b", 1) == MS_OK);
    EXPECT(put_wanting("c", 0) == MS_OK && put_wanting("d", 16) == MS_OK);
    EXPECT(wanted("a") == 3 && wanted("b") == 1 && wanted("c") == 1 && wanted("d") == 16);
    EXPECT(harness_counter(h, "objects_short") == 2 && harness_counter(h, "replicas_short") == 17);
    EXPECT(harness_remove(h, "d", false, 1) == MS_PENDING);
    harness_add_server(h, 1, 10);
    EXPECT(change("a", 3, 0, 0, 7) == MS_PENDING && harness_answer_of(h, 7) == MS_OK);
    EXPECT(wanted("a") == 3); /* although there are two */
    EXPECT(harness_counter(h, "objects_short") == 1 && harness_counter(h, "replicas_short") == 1);
    harness_check(h);
    /* What is there is what is wanted now: its holders are told, nothing is copied. */
    uint32_t copies = h->copy_count;
    EXPECT(change("a", 2, 0, 0, 8) == MS_PENDING && harness_answer_of(h, 8) == MS_OK);
    EXPECT(wanted("a") == 2 && harness_counter(h, "objects_short") == 0);
    EXPECT(h->note_count == 2 && h->copy_count == copies);
    EXPECT(change("a", 2, 0, 0, 9) == MS_OK);
    harness_close(h);
}

static void a_move_changes_nothing_of_what_is_wanted(void) {
    harness_open_default(h);
    for (uint32_t i = 0; i < 3; i++)
        harness_add_server(h, i, 10);
    ms_put_item item = harness_item(h, "a", 4096);
    item.replica_count = 2;
    item.preferred_server = 1;
    EXPECT(harness_put_item(h, "a", &item) == MS_OK);
    EXPECT(change("a", 0, 0, 1, 7) == MS_PENDING && harness_answer_of(h, 7) == MS_OK);
    EXPECT(wanted("a") == 2 && harness_counter(h, "replicas_short") == 0);
    EXPECT(annotate("a", MS_ANNOTATE_HARD_PIN, MS_OBJECT_HARD_PIN, 0, 8) == MS_PENDING);
    EXPECT(wanted("a") == 2);
    harness_close(h);
}

/* A copy for which there is no room, and none can be made, is refused at once: nobody waits for nothing. */
static void a_copy_that_can_have_no_room_is_refused_at_once(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 20);
    harness_add_server(h, 1, 4);
    ms_put_item large = harness_item(h, "large", 6 * 4096);
    EXPECT(harness_put_item(h, "large", &large) == MS_OK);
    EXPECT(change("large", 0, 2, 0, 7) == MS_NO_SPACE &&
           change("large", 2, 0, 0, 8) == MS_NO_SPACE);
    EXPECT(change("large", 0, 0, 1, 9) == MS_NO_SPACE);
    ms_put_item pinned = harness_item(h, "pinned", 4 * 4096);
    pinned.preferred_server = 2;
    pinned.flags = MS_PUT_HARD_PIN;
    EXPECT(harness_put_item(h, "pinned", &pinned) == MS_OK);
    ms_put_item small = harness_item(h, "small", 4096);
    small.preferred_server = 1;
    EXPECT(harness_put_item(h, "small", &small) == MS_OK);
    EXPECT(change("small", 0, 2, 0, 10) == MS_NO_SPACE);
    EXPECT(annotate("pinned", MS_ANNOTATE_HARD_PIN, 0, 0, 11) == MS_PENDING);
    EXPECT(change("small", 0, 2, 0, 12) == MS_PENDING); /* the other one can leave now */
    harness_check(h);
    harness_close(h);
}

static void a_lost_server_leaves_objects_short_until_it_is_back(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 10);
    harness_add_server(h, 1, 10);
    EXPECT(put_wanting("a", 2) == MS_OK);
    ms_location_view there;
    EXPECT(harness_lookup(h, "a", &there) == MS_OK && there.head.replica_count == 2);
    uint32_t page = there.replicas[1].head.server == 1
                        ? ms_replica_extent(&there.replicas[1], 0).page
                        : ms_replica_extent(&there.replicas[0], 0).page;
    uint64_t version = there.head.version;
    md_server_gone(h->core, h->now, 1, 1);
    harness_advance(h, 9000);
    EXPECT(harness_counter(h, "replicas_short") == 0); /* it may be back at any moment */
    harness_advance(h, 2000);
    EXPECT(harness_counter(h, "objects_short") == 1 && harness_counter(h, "replicas_short") == 1);
    harness_check(h);
    uint32_t server;
    EXPECT(harness_join_as(h, 1, 2, 10, 10, "", &server) == MS_OK && server == 1);
    EXPECT(tell(1, 2, "a", version, 4096, page, 1, 0, 1) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, 1, 2) == MS_OK);
    EXPECT(harness_counter(h, "objects_short") == 0 && harness_counter(h, "replicas_short") == 0);
    harness_close(h);
}

static ms_status tell_wanting(uint32_t server, const char *key, uint64_t version, uint64_t note,
                              uint32_t replica_count, uint32_t page) {
    ms_inventory_item item = {.hash = harness_hash(h, key),
                              .version = version,
                              .size = 1,
                              .note = note,
                              .flags = (uint8_t)ms_wanted_flags(replica_count),
                              .page = page,
                              .page_count = 1,
                              .part_count = 1,
                              .key_length = (uint16_t)strlen(key),
                              .tenant_length = 7,
                              .state = 1};
    return md_inventory(h->core, h->now, server, 1, &item, (const uint8_t *)"default",
                        (const uint8_t *)key);
}

/* What a new master knows it has from the servers' records; the latest note counts. */
static void a_new_master_is_told_by_the_inventories(void) {
    harness_open_default(h);
    uint32_t a, b;
    EXPECT(harness_join_as(h, 0, 1, 20, 20, "", &a) == MS_OK);
    EXPECT(harness_join_as(h, 1, 1, 20, 20, "", &b) == MS_OK);
    EXPECT(tell_wanting(a, "two", 10, 10, 2, 0) == MS_OK);
    EXPECT(tell_wanting(b, "two", 10, 10, 2, 0) == MS_OK);
    EXPECT(tell_wanting(a, "alone", 11, 11, 2, 1) == MS_OK);
    EXPECT(tell_wanting(a, "fewer", 12, 12, 3, 2) == MS_OK);
    EXPECT(tell_wanting(b, "fewer", 12, 30, 2, 2) == MS_OK);
    EXPECT(tell_wanting(b, "noted first", 13, 31, 1, 3) == MS_OK);
    EXPECT(tell_wanting(a, "noted first", 13, 13, 4, 3) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, a, 1) == MS_OK &&
           md_inventory_end(h->core, h->now, b, 1) == MS_OK);
    harness_drain(h);
    EXPECT(wanted("two") == 2 && wanted("alone") == 2 && wanted("fewer") == 2 &&
           wanted("noted first") == 1);
    EXPECT(harness_counter(h, "objects_short") == 1 && harness_counter(h, "replicas_short") == 1);
    harness_close(h);
}

int main(void) {
    h = malloc(sizeof *h);
    a_put_with_fewer_servers_than_replicas_is_short();
    a_move_changes_nothing_of_what_is_wanted();
    a_copy_that_can_have_no_room_is_refused_at_once();
    a_lost_server_leaves_objects_short_until_it_is_back();
    a_new_master_is_told_by_the_inventories();
    free(h);
    puts("ok");
    return 0;
}
