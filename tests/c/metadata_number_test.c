// sources: master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain address
/* The metadata core: numbers of nodes, under this leader and the next ones, and nodes that are forgotten. */
#include "metadata_kit.h"

static const uint8_t *node_of(uint32_t node) {
    static uint8_t id[16];
    id[0] = (uint8_t)(node + 1);
    id[1] = (uint8_t)((node + 1) >> 8);
    return id;
}

static uint32_t number_of(uint32_t node) {
    uint32_t server;
    EXPECT(md_server_expect(h->core, h->now, node_of(node), &server) == MS_OK);
    return server;
}

static void a_number_that_was_given_stays(void) {
    harness_open_default(h);
    EXPECT(md_server_number(h->core, h->now, node_of(0), 7, 0) == MS_OK);
    EXPECT(md_server_number(h->core, h->now, node_of(1), 2, 0) == MS_OK);
    EXPECT(md_server_number(h->core, h->now, node_of(2), 4096, 0) == MS_LIMIT);
    EXPECT(number_of(0) == 7);
    EXPECT(number_of(2) == 8); /* not 0, which may be named by locations of somebody unknown */
    EXPECT(harness_add_server(h, 1, 10) == 2);
    md_server_view view;
    EXPECT(md_server_get(h->core, 0, &view) == MS_NOT_FOUND);
    EXPECT(harness_put(h, "a", 4096) == MS_OK);
    EXPECT(md_server_count(h->core) == 9);
    harness_close(h);
}

static void only_numbers_of_the_forgotten_are_given_again_and_not_by_this_leader(void) {
    harness_open_default(h);
    EXPECT(md_server_number(h->core, h->now, node_of(5000), 3, 0) == MS_OK);
    EXPECT(md_server_number(h->core, h->now, node_of(5001), 4, 0) == MS_OK);
    EXPECT(number_of(5001) == 4); /* a member: the other is none */
    for (uint32_t node = 0; node < 4096 - 5; node++)
        EXPECT(number_of(node) == node + 5);
    EXPECT(md_server_forget(h->core, h->now, 40, 0) == MS_OK);
    /* 0 to 3 were nobody's, or a forgotten node's, before this leader began. */
    for (uint32_t node = 0; node < 4; node++)
        EXPECT(number_of(6000 + node) == node);
    uint32_t server;
    EXPECT(md_server_expect(h->core, h->now, node_of(7000), &server) == MS_LIMIT);
    EXPECT(number_of(35) == 40); /* its own is kept for it */
    harness_close(h);
}

static void what_leaves_with_a_forgotten_server(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 100);
    harness_add_server(h, 1, 100);
    ms_put_item item = harness_item(h, "both", 4096);
    item.replica_count = 2;
    EXPECT(harness_put_item(h, "both", &item) == MS_OK);
    for (uint32_t i = 0; i < 20; i++)
        EXPECT(harness_put(h, name(i), 4096) == MS_OK);
    ms_location_view grant;
    item = harness_item(h, "open", 4096);
    item.replica_count = 2;
    EXPECT(harness_start_item(h, "open", &item, 1, &grant) == MS_OK);
    h->holds_frees = true;
    h->holds_tombstones = true;
    uint32_t gone = 0;
    EXPECT(md_server_forget(h->core, h->now, gone, 0) == MS_BUSY);
    md_server_gone(h->core, h->now, gone, 1);
    EXPECT(harness_remove(h, "both", true, 7) == MS_PENDING);
    EXPECT(md_server_forget(h->core, h->now, gone, md_version_given(h->core)) == MS_OK);
    EXPECT(md_server_forget(h->core, h->now, gone, 1) == MS_NOT_FOUND);
    harness_drain(h);
    harness_free_all(h, false); /* at the other one */
    EXPECT(harness_answer_of(h, 7) == MS_OK);
    harness_advance(h, 1000);
    uint32_t left = 0;
    for (uint32_t i = 0; i < 20; i++)
        left += harness_exists(h, name(i));
    EXPECT(left > 0 && left < 20);
    /* The put goes on with its other replica, and what it had there needs no FREE. */
    EXPECT(harness_end(h, "open", grant.head.version, 3, 8) == MS_OK);
    harness_drain(h);
    EXPECT(h->free_count == 0 && harness_counter(h, "frees_pending") == 0);
    /* Nobody is away: a remove needs no tombstone. */
    h->holds_frees = false;
    harness_remove(h, "open", true, 9);
    harness_drain(h);
    EXPECT(harness_answer_of(h, 9) == MS_OK && h->tombstone_count == 0);
    EXPECT(harness_remove(h, "unknown", true, 10) == MS_NOT_FOUND && h->tombstone_count == 0);
    harness_close(h);
}

static void a_forgotten_server_comes_back_as_an_empty_one(void) {
    harness_open_default(h);
    harness_add_server(h, 0, 100);
    harness_add_server(h, 1, 100);
    uint64_t struck = md_version_given(h->core) + 5;
    md_server_gone(h->core, h->now, 0, 1);
    EXPECT(md_server_forget(h->core, h->now, 0, struck) == MS_OK);
    uint32_t server;
    /* Its writers still have grants of this life. */
    EXPECT(harness_join_as(h, 0, 1, 100, 100, "", &server) == MS_REFUSED);
    EXPECT(harness_join_as(h, 0, 2, 100, 100, "", &server) == MS_OK && server == 0);
    h->holds_frees = true;
    EXPECT(tell(0, 2, "old", struck, 4096, 3, 1, 0, 1) == MS_OK);
    EXPECT(tell(0, 2, "new", struck + 1, 4096, 4, 1, 0, 1) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, 0, 2) == MS_OK);
    harness_drain(h);
    EXPECT(!harness_exists(h, "old") && harness_exists(h, "new"));
    EXPECT(h->free_count == 1 && h->frees[0].item.page == 3 && h->frees[0].server == 0);
    h->holds_frees = false;
    harness_free_all(h, false);
    EXPECT(pages_free(0) == 99);
    harness_close(h);

    /* The next leader is told by the coordinator. */
    harness_open_default(h);
    EXPECT(md_server_number(h->core, h->now, node_of(0), 0, struck) == MS_OK);
    EXPECT(harness_join_as(h, 0, 3, 100, 100, "", &server) == MS_OK && server == 0);
    EXPECT(tell(0, 3, "old", struck, 4096, 3, 1, 0, 1) == MS_OK);
    EXPECT(tell(0, 3, "new", struck + 1, 4096, 4, 1, 0, 1) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, 0, 3) == MS_OK);
    harness_drain(h);
    EXPECT(!harness_exists(h, "old") && harness_exists(h, "new"));
    harness_close(h);
}

static ms_status tell_noted(uint32_t server, const char *key, uint64_t version, uint64_t note,
                            uint8_t flags) {
    ms_inventory_item item = {.hash = harness_hash(h, key),
                              .version = version,
                              .size = 4096,
                              .note = note,
                              .page = 3,
                              .page_count = 1,
                              .part_count = 1,
                              .key_length = (uint16_t)strlen(key),
                              .state = 1,
                              .tenant_length = 7,
                              .flags = flags};
    return md_inventory(h->core, h->now, server, 1, &item, (const uint8_t *)"default",
                        (const uint8_t *)key);
}

/* Who was away when a note was taken gets it, and so does who came before the one that has it. */
static void a_holder_that_is_behind_is_told_the_newest_note(void) {
    for (uint32_t behind = 0; behind < 2; behind++) {
        harness_open_default(h);
        uint32_t server;
        h->holds_notes = true;
        for (uint32_t node = 0; node < 2; node++) {
            EXPECT(harness_join_as(h, node, 1, 100, 100, "", &server) == MS_OK && server == node);
            bool is_old = node == behind;
            EXPECT(tell_noted(node, "a", 5, is_old ? 5 : 9, is_old ? 0 : MS_OBJECT_HARD_PIN) ==
                   MS_OK);
            EXPECT(md_inventory_end(h->core, h->now, node, 1) == MS_OK);
            if (node == 0)
                harness_drain(h);
            EXPECT(h->note_count == 0);
        }
        bool is_told = false;
        for (md_effect effect; md_next_effect(h->core, &effect);)
            if (effect.kind == MD_EFFECT_NOTE && effect.server == behind)
                is_told = effect.note.note == 9 && effect.note.version == 5 &&
                          effect.note.page == 3 && (effect.note.flags & MS_OBJECT_HARD_PIN) != 0;
        EXPECT(is_told);
        harness_close(h);
    }
}

int main(void) {
    h = malloc(sizeof *h);
    EXPECT(h != NULL);
    a_number_that_was_given_stays();
    only_numbers_of_the_forgotten_are_given_again_and_not_by_this_leader();
    what_leaves_with_a_forgotten_server();
    a_forgotten_server_comes_back_as_an_empty_one();
    a_holder_that_is_behind_is_told_the_newest_note();
    free(h);
    return 0;
}
