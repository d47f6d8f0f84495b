// sources: store/src/*.c transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// flags of store/src: -DST_TEST_STEPS
// timeout: 180
/* The store server over its frames: puts, reads, checksums, frees, notes, relayed ends. */
#include "st_kit.h"

static void test_put_and_read(bool is_unix) {
    master master;
    node node;
    client writer, reader;
    start(&master, &node);
    client_open(&writer, &node, is_unix, SESSION, EPOCH, MS_RIGHT_WRITE);
    client_open(&reader, &node, is_unix, 0, 0, MS_RIGHT_READ);
    uint8_t bytes[10000], got[10000];
    fill(bytes, sizeof bytes, 1);
    put first = {.page = 4,
                 .page_count = 3,
                 .version = version_of(1),
                 .bytes = bytes,
                 .length = sizeof bytes};
    CHECK_STATUS(client_read(&reader, 4, version_of(1), got, sizeof got), MS_GONE);
    CHECK_STATUS(client_put(&writer, &first), MS_OK);
    CHECK_STATUS(client_read(&reader, 4, version_of(1), got, sizeof got), MS_OK);
    CHECK(memcmp(bytes, got, sizeof got) == 0);
    CHECK_STATUS(client_read(&reader, 4, version_of(2), got, sizeof got), MS_GONE);
    CHECK_STATUS(client_read(&reader, 5, version_of(1), got, 4096), MS_GONE);

    /* An empty value owns one page. */
    put empty = {.page = 7, .page_count = 1, .version = version_of(2), .bytes = bytes};
    CHECK_STATUS(client_put(&writer, &empty), MS_OK);
    CHECK_STATUS(client_read(&reader, 7, version_of(2), got, 0), MS_OK);

    /* The same SEAL again only answers; bytes under a live word are refused. */
    put again = first;
    again.length = 0;
    again.size = sizeof bytes;
    CHECK_STATUS(client_put(&writer, &again), MS_OK);
    CHECK_STATUS(client_put(&writer, &first), MS_COMPLETE);
    put older = first;
    older.version = version_of(0);
    CHECK_STATUS(client_put(&writer, &older), MS_GONE);
    CHECK_STATUS(client_read(&reader, 4, version_of(1), got, sizeof got), MS_OK);
    CHECK(memcmp(bytes, got, sizeof got) == 0);

    /* Outside the pool, outside the extent, outside the connection's right, without a word. */
    put outside = first;
    outside.page = 8 * MIB / 4096 - 2;
    CHECK_STATUS(client_put(&writer, &outside), MS_OUT_OF_RANGE);
    outside.page = UINT32_MAX;
    CHECK_STATUS(client_put(&writer, &outside), MS_OUT_OF_RANGE);
    outside = first;
    outside.page = 100;
    outside.page_count = 2;
    CHECK_STATUS(client_put(&writer, &outside), MS_OUT_OF_RANGE);
    outside.page_count = 0;
    CHECK_STATUS(client_put(&writer, &outside), MS_OUT_OF_RANGE);
    CHECK_STATUS(client_read(&reader, 8 * MIB / 4096, version_of(1), got, 1), MS_OUT_OF_RANGE);
    ms_read_item unguarded = {.offset = 0, .length = 16};
    ms_read_result result;
    void *target = got;
    CHECK_STATUS(te_read(reader.channel, &unguarded, &target, 1, &result, in_seconds(5)), MS_OK);
    CHECK_STATUS(result.status, MS_BAD_REQUEST);
    put unversioned = first;
    unversioned.version = 0;
    CHECK_STATUS(client_put(&writer, &unversioned), MS_BAD_REQUEST);
    put other_epoch = first;
    other_epoch.page = 200;
    other_epoch.version = ms_version(EPOCH + 1, 1);
    CHECK_STATUS(client_put(&writer, &other_epoch), MS_WRONG_EPOCH);
    CHECK(client_put(&reader, &first) != MS_OK);
    client_close(&writer);
    client_close(&reader);
    stop(&master, &node);
}

/* Of a batch the items that are gone send no bytes: the others' bytes and all words must find their places,
 * also where the words are more bytes than the items. */
static void test_batches_with_misses(void) {
    enum { COUNT = 9 };
    master master;
    node node;
    client client;
    start(&master, &node);
    client_open(&client, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    uint8_t bytes[64], got[COUNT][64];
    for (uint32_t at = 0; at < COUNT; at++) {
        fill(bytes, sizeof bytes, at);
        put put = {.page = at,
                   .page_count = 1,
                   .version = version_of(1 + at),
                   .bytes = bytes,
                   .length = 64};
        CHECK_STATUS(client_put(&client, &put), MS_OK);
    }
    for (uint32_t gone = 0; gone < 1u << COUNT; gone++) {
        for (uint64_t length = 0; length <= 64; length = length == 0 ? 1 : length * 4) {
            ms_read_item items[COUNT];
            ms_read_result results[COUNT];
            void *targets[COUNT];
            memset(got, 0xee, sizeof got);
            for (uint32_t at = 0; at < COUNT; at++) {
                uint64_t version = version_of((gone >> at & 1) != 0 ? 500 : 1 + at);
                items[at] = (ms_read_item){.flags = 1,
                                           .offset = (uint64_t)at * MS_PAGE_SIZE,
                                           .length = length,
                                           .word = ms_word(version, 1),
                                           .guard_page = at};
                targets[at] = got[at];
            }
            CHECK_STATUS(te_read(client.channel, items, targets, COUNT, results, in_seconds(10)),
                         MS_OK);
            for (uint32_t at = 0; at < COUNT; at++) {
                bool is_gone = (gone >> at & 1) != 0;
                fill(bytes, sizeof bytes, at);
                CHECK_STATUS(results[at].status, is_gone ? MS_GONE : MS_OK);
                CHECK(is_gone || results[at].word == items[at].word);
                CHECK(is_gone || memcmp(bytes, got[at], length) == 0);
                CHECK(got[at][length == 64 ? 63 : length] ==
                          (length == 64 && !is_gone ? bytes[63] : 0xee) ||
                      (is_gone && length == 64));
            }
        }
    }
    client_close(&client);
    stop(&master, &node);
}

static void test_hello_is_checked(void) {
    master master;
    node node;
    master_open(&master);
    node_open(&node, 2 * MIB, NULL);
    client client;
    uint8_t byte = 1;
    put put = {.page = 1, .page_count = 1, .version = version_of(1), .bytes = &byte, .length = 1};
    /* Nobody has adopted it: no grant can be right. */
    client_open(&client, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    CHECK_STATUS(client_put(&client, &put), MS_WRONG_EPOCH);
    client_close(&client);
    CHECK_STATUS(st_set_master(node.server, master.address), MS_OK);
    master_wait_connections(&master, 1);
    CHECK_STATUS(master_adopt(&master, EPOCH, NULL), MS_OK);
    node_wait_adopted(&node);
    client_open(&client, &node, false, SESSION, EPOCH - 1, MS_RIGHT_WRITE);
    CHECK_STATUS(client_put(&client, &put), MS_WRONG_EPOCH);
    client_close(&client);
    node.status.incarnation++;
    client_open(&client, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    CHECK_STATUS(client_put(&client, &put), MS_WRONG_INCARNATION);
    client_close(&client);
    node.status.incarnation--;
    client_open(&client, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    CHECK_STATUS(client_put(&client, &put), MS_OK);
    client_close(&client);
    stop(&master, &node);
}

static void test_free_and_reuse(void) {
    master master;
    node node;
    client client;
    start(&master, &node);
    client_open(&client, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    uint8_t bytes[4096], got[4096];
    uint32_t incarnation = node.status.incarnation;
    fill(bytes, sizeof bytes, 1);
    put first = {
        .page = 9, .page_count = 1, .version = version_of(1), .bytes = bytes, .length = 4096};
    CHECK_STATUS(client_put(&client, &first), MS_OK);
    ms_free_item item = free_item(9, 1, version_of(1), 0);

    /* Of another epoch or incarnation: nothing happens. */
    master_free(&master, EPOCH - 1, incarnation, &item, 1);
    master_free(&master, EPOCH + 1, incarnation, &item, 1);
    master_free(&master, EPOCH, incarnation + 1, &item, 1);
    CHECK(master_take(&master, MS_FREED, 300) == NULL);
    CHECK_STATUS(client_read(&client, 9, version_of(1), got, 4096), MS_OK);

    master_free(&master, EPOCH, incarnation, &item, 1);
    master_expect_item(&master, MS_FREED, 9, version_of(1));
    CHECK_STATUS(client_read(&client, 9, version_of(1), got, 4096), MS_GONE);
    CHECK_STATUS(client_put(&client, &first), MS_GONE); /* the put that comes late */
    master_free(&master, EPOCH, incarnation, &item, 1); /* twice changes nothing */
    master_expect_item(&master, MS_FREED, 9, version_of(1));

    put second = first;
    second.version = version_of(2);
    fill(bytes, sizeof bytes, 2);
    CHECK_STATUS(client_put(&client, &second), MS_OK);
    master_free(&master, EPOCH, incarnation, &item, 1); /* a late copy of the first FREE */
    master_expect_item(&master, MS_FREED, 9, version_of(1));
    CHECK_STATUS(client_read(&client, 9, version_of(2), got, 4096), MS_OK);
    CHECK(memcmp(bytes, got, sizeof got) == 0);

    /* A FREE that comes before the SEAL undoes it. */
    put third = first;
    third.page = 20;
    third.version = version_of(3);
    CHECK_STATUS(client_write(&client, &third), MS_OK);
    item = free_item(20, 1, version_of(3), 0);
    master_free(&master, EPOCH, incarnation, &item, 1);
    master_expect_item(&master, MS_FREED, 20, version_of(3));
    CHECK_STATUS(client_put(&client, &third), MS_GONE);

    /* Several at once are answered in one frame. */
    ms_free_item many[50];
    for (uint32_t at = 0; at < 50; at++)
        many[at] = free_item(100 + at, 1, version_of(10 + at), 0);
    master_free(&master, EPOCH, incarnation, many, 50);
    frame *freed = master_expect(&master, MS_FREED);
    ms_free_view view;
    CHECK(ms_read_free(freed->body, freed->header.body_length, &view) && view.items.count == 50);
    CHECK(view.epoch == EPOCH && view.incarnation == incarnation);
    free(freed);
    client_close(&client);
    stop(&master, &node);
}

static void test_checksums(void) {
    master master;
    node node;
    client client;
    start(&master, &node);
    client_open(&client, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    static uint8_t bytes[5 * 4096 + 100];
    fill(bytes, sizeof bytes, 3);
    uint32_t whole = ms_crc32c(0, bytes, sizeof bytes);
    put good = {.page = 1,
                .page_count = 6,
                .version = version_of(1),
                .bytes = bytes,
                .length = sizeof bytes,
                .checksum = whole,
                .flags = MS_OBJECT_HAS_CHECKSUM};
    put bad = good;
    bad.checksum++;
    CHECK_STATUS(client_put(&client, &bad), MS_BAD_CHECKSUM);
    uint8_t got[16];
    CHECK_STATUS(client_read(&client, 1, version_of(1), got, 16), MS_GONE);
    CHECK_STATUS(client_put(&client, &good), MS_OK);
    /* In three parts, the last one first. */
    for (int is_bad = 1; is_bad >= 0; is_bad--) {
        uint64_t version = version_of(2 + (uint64_t)is_bad);
        uint32_t pages = 50 + 10 * (uint32_t)is_bad;
        const put parts[3] = {
            {.page = pages, .page_count = 2, .bytes = bytes, .length = 8192, .part = 0},
            {.page = pages + 3, .page_count = 1, .bytes = bytes + 8192, .length = 4096, .part = 1},
            {.page = pages + 5,
             .page_count = 3,
             .bytes = bytes + 12288,
             .length = 2 * 4096 + 100,
             .part = 2}};
        const int order[3] = {2, 0, 1};
        for (int at = 0; at < 3; at++) {
            put part = parts[order[at]];
            part.version = version;
            part.size = sizeof bytes;
            part.part_count = 3;
            part.flags = MS_OBJECT_HAS_CHECKSUM;
            part.checksum = whole + (uint32_t)is_bad;
            CHECK_STATUS(client_put(&client, &part), at == 2 && is_bad ? MS_BAD_CHECKSUM : MS_OK);
        }
    }
    CHECK(node_counter(&node, "bad_checksums_total") == 2);
    /* Seals that contradict their extent. */
    put wrong = good;
    wrong.page = 100;
    wrong.version = version_of(9);
    wrong.page_count = 7;
    CHECK_STATUS(client_put(&client, &wrong), MS_OK == 0 ? MS_BAD_REQUEST : MS_BAD_REQUEST);
    wrong.page_count = 6;
    wrong.size = 7 * 4096;
    CHECK_STATUS(client_put(&client, &wrong), MS_BAD_REQUEST);
    client_close(&client);
    stop(&master, &node);
}

/* No I/O thread is held for long: a larger object's checksum is kept as it was given. */
static void test_checksums_are_checked_up_to_a_size(void) {
    enum { CHECKED = 16 * MIB };
    master master;
    node node;
    client client;
    start(&master, &node);
    node_close(&node);
    node_open(&node, 64 * MIB, master.address);
    master_wait_connections(&master, 2);
    CHECK_STATUS(master_adopt(&master, EPOCH, NULL), MS_OK);
    node_wait_adopted(&node);
    client_open(&client, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    uint8_t *bytes = calloc(1, CHECKED + 1);
    put wrong = {.page_count = CHECKED / 4096,
                 .version = version_of(1),
                 .bytes = bytes,
                 .length = CHECKED,
                 .checksum = 12345,
                 .flags = MS_OBJECT_HAS_CHECKSUM};
    CHECK_STATUS(client_put(&client, &wrong), MS_BAD_CHECKSUM);
    wrong.page = wrong.page_count++;
    wrong.length++;
    CHECK_STATUS(client_put(&client, &wrong), MS_OK);
    static inventory found;
    CHECK_STATUS(master_adopt(&master, EPOCH + 1, &found), MS_OK);
    CHECK(found.count == 1 && found.items[0].checksum == 12345);
    free(bytes);
    client_close(&client);
    stop(&master, &node);
}

static void test_notes(void) {
    master master;
    node node;
    client client;
    inventory found;
    start(&master, &node);
    client_open(&client, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    uint8_t byte = 5;
    put put = {.page = 3,
               .page_count = 1,
               .version = version_of(1),
               .bytes = &byte,
               .length = 1,
               .checksum = ms_crc32c(0, &byte, 1),
               /* The first no note changes, the second no client can say. */
               .flags = MS_OBJECT_HAS_CHECKSUM | MS_OBJECT_IS_COPY};
    CHECK_STATUS(client_put(&client, &put), MS_OK);
    struct {
        uint64_t version, note;
        uint32_t epoch;
        ms_status wanted;
    } cases[] = {{version_of(1), version_of(5), EPOCH, MS_OK},
                 {version_of(1), version_of(4), EPOCH, MS_OK}, /* late: only answered */
                 {version_of(2), version_of(6), EPOCH, MS_GONE},
                 {version_of(1), version_of(7), EPOCH - 1, MS_WRONG_EPOCH}};
    for (size_t at = 0; at < sizeof cases / sizeof cases[0]; at++) {
        ms_note note = {.epoch = cases[at].epoch,
                        .incarnation = node.status.incarnation,
                        .version = cases[at].version,
                        .note = cases[at].note,
                        .expiry_ms = 1000 + at,
                        .page = 3,
                        .flags = MS_OBJECT_HARD_PIN};
        master_push(&master, MS_REQUEST, MS_NOTE, 40 + at, &note, sizeof note);
        frame *answer = master_expect(&master, MS_NOTE);
        CHECK(answer->header.request == 40 + at);
        CHECK_STATUS(answer->header.status, cases[at].wanted);
        free(answer);
    }
    CHECK_STATUS(master_adopt(&master, EPOCH, &found), MS_OK);
    CHECK(found.count == 1 && found.items[0].note == version_of(5) &&
          found.items[0].expiry_ms == 1000);
    CHECK(found.items[0].flags == (MS_OBJECT_HARD_PIN | MS_OBJECT_HAS_CHECKSUM) &&
          found.items[0].version == version_of(1));
    CHECK(found.items[0].state == 1 && found.items[0].page == 3 && found.items[0].size == 1);
    client_close(&client);
    stop(&master, &node);
}

static void relay_put(client *client, const put *put, bool *is_answered, ms_status *answer) {
    te_connection *connection;
    uint8_t body[512], room[256];
    CHECK_STATUS(te_checkout(client->channel, in_seconds(10), &connection), MS_OK);
    ms_write_item item = {.page = put->page,
                          .page_count = put->page_count,
                          .version = put->version,
                          .length = put->length};
    uint8_t seal[256];
    item.seal_length = (uint32_t)seal_write(seal, sizeof seal, put);
    ms_writer out = ms_writer_fixed(body, sizeof body);
    ms_writer_array(&out, &item, 1, sizeof item);
    ms_writer_bytes(&out, seal, item.seal_length);
    struct iovec parts = {out.data, out.length},
                 payload = {(void *)(uintptr_t)put->bytes, put->length};
    CHECK_STATUS(te_send(connection, MS_REQUEST, MS_WRITE, MS_FLAG_RELAY,
                         te_next_request(connection), 0, &parts, 1, &payload, 1, in_seconds(10)),
                 MS_OK);
    te_reply reply = {.body = room, .body_size = sizeof room};
    ms_status status = te_receive(connection, &reply, te_now_ns() + SECONDS / 2);
    *is_answered = status == MS_OK;
    *answer = (ms_status)reply.header.status;
    te_checkin(connection, *is_answered);
}

static void test_relay(void) {
    master master;
    node node;
    client client;
    start(&master, &node);
    client_open(&client, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    uint8_t bytes[100];
    bool is_answered;
    ms_status answer;
    put put = {.page = 3,
               .page_count = 1,
               .version = version_of(1),
               .bytes = bytes,
               .length = 100,
               .checksum = ms_crc32c(0, bytes, 0),
               .number = 77};
    fill(bytes, sizeof bytes, 1);
    relay_put(&client, &put, &is_answered, &answer);
    CHECK(!is_answered);
    frame *relayed = master_expect(&master, MS_RELAYED_END);
    ms_relayed_end_view view;
    ms_end_item end;
    CHECK(ms_read_relayed_end(relayed->body, relayed->header.body_length, &view));
    CHECK(view.session == SESSION && view.number == 77 && view.items.count == 1);
    MS_ARRAY_GET(view.items, 0, &end);
    CHECK(end.version == version_of(1) && end.hash.low == version_of(1) &&
          (end.replica_mask & 1) == 1);
    free(relayed);
    /* Refused: the server says so itself. */
    put.version = version_of(0);
    relay_put(&client, &put, &is_answered, &answer);
    CHECK(is_answered && answer == MS_GONE);
    /* No master: OK, so that the client sends put_end itself. */
    te_close_peer(master.engine, master.server, "test");
    te_engine_close(master.engine);
    int64_t deadline_ns = in_seconds(10);
    do {
        CHECK(te_now_ns() < deadline_ns);
        st_get_status(node.server, &node.status);
    } while (node.status.is_adopted);
    put.version = version_of(2);
    put.page = 5;
    relay_put(&client, &put, &is_answered, &answer);
    CHECK(is_answered && answer == MS_OK);
    CHECK(master_take(&master, MS_RELAYED_END, 0) == NULL);
    client_close(&client);
    node_close(&node);
    while (master.first != NULL) {
        frame *next = master.first->next;
        free(master.first);
        master.first = next;
    }
}

/* ---- writers of shared memory that go ---------------------------------------------------------------------------- */

static struct {
    te_connection *connection;
    atomic_bool has_left; /* the server's thread has done with it */
} leaving;

/* On the server's thread, between the first copy and its SEAL. */
static void leave_when_copied(const char *name) {
    if (atomic_load(&leaving.has_left) || strcmp(name, "seal: copied") != 0)
        return;
    te_connection_end(leaving.connection);
    atomic_store(&leaving.has_left, true);
}

#define SHARED_BYTES (64u << 10)

/* WRITE of two objects of pages 16 and 32 that lie in shared memory. */
static void send_shared(client *client, uint32_t source, uint64_t source_offset) {
    uint8_t seals[512];
    size_t length = 0;
    ms_write_item items[2];
    uint32_t list[2] = {2, 0};
    for (uint32_t i = 0; i < 2; i++) {
        put one = {.version = version_of(i + 1), .length = SHARED_BYTES};
        items[i] = (ms_write_item){.page = 16 * (i + 1),
                                   .page_count = 16,
                                   .version = one.version,
                                   .source = source,
                                   .source_offset = source_offset + i * SHARED_BYTES,
                                   .length = SHARED_BYTES};
        items[i].seal_length = (uint32_t)seal_write(seals + length, sizeof seals - length, &one);
        length += items[i].seal_length;
    }
    struct iovec body[3] = {{list, sizeof list}, {items, sizeof items}, {seals, length}};
    CHECK_STATUS(te_checkout(client->channel, in_seconds(10), &leaving.connection), MS_OK);
    CHECK_STATUS(te_send(leaving.connection, MS_REQUEST, MS_WRITE, 0,
                         te_next_request(leaving.connection), 10000, body, 3, NULL, 0,
                         in_seconds(10)),
                 MS_OK);
}

/* Whoever closes the connection uses the memory for something else: what is there afterwards is not sealed, though it
 * was copied before *(source_open)*, and no more of it is copied. */
static void test_nothing_is_sealed_for_a_writer_that_has_gone(void) {
    master master;
    node node;
    client writer, reader;
    void *memory;
    uint32_t source;
    uint64_t source_offset;
    static uint8_t got[SHARED_BYTES], zeros[SHARED_BYTES];
    start(&master, &node);
    client_open(&writer, &node, true, SESSION, EPOCH, MS_RIGHT_WRITE);
    client_open(&reader, &node, true, 0, 0, MS_RIGHT_READ);
    CHECK_STATUS(te_shared_alloc(writer.engine, 2 * SHARED_BYTES, &memory), MS_OK);
    memset(memory, 0xa5, 2 * SHARED_BYTES);
    CHECK_STATUS(
        te_share(writer.channel, memory, 2 * SHARED_BYTES, &source, &source_offset, in_seconds(10)),
        MS_OK);
    uint64_t refused = node_counter(&node, "seals_refused_total");
    uint64_t connections = node_counter(&node, "connections");
    atomic_store(&leaving.has_left, false);
    on_step = leave_when_copied;
    send_shared(&writer, source, source_offset);
    node_wait_counter(&node, "connections", connections);
    on_step = NULL;
    CHECK(atomic_load(&leaving.has_left));
    te_checkin(leaving.connection, false);
    CHECK(node_counter(&node, "seals_refused_total") == refused + 1); /* the other has no bytes */
    te_mapping mapping;
    CHECK_STATUS(te_attach(reader.channel, 0, in_seconds(10), &mapping), MS_OK);
    for (uint32_t i = 0; i < 2; i++)
        CHECK_STATUS(client_read(&reader, 16 * (i + 1), version_of(i + 1), got, sizeof got),
                     MS_GONE);
    memset(got, 0xa5, sizeof got);
    CHECK(memcmp(mapping.payload + 16 * 4096, got, sizeof got) == 0);
    CHECK(memcmp(mapping.payload + 32 * 4096, zeros, sizeof zeros) == 0);
    te_shared_free(writer.engine, memory);
    client_close(&writer);
    client_close(&reader);
    stop(&master, &node);
}

int main(void) {
    RUN(test_put_and_read(false));
    RUN(test_put_and_read(true));
    RUN(test_batches_with_misses());
    RUN(test_hello_is_checked());
    RUN(test_free_and_reuse());
    RUN(test_checksums());
    RUN(test_checksums_are_checked_up_to_a_size());
    RUN(test_notes());
    RUN(test_relay());
    RUN(test_nothing_is_sealed_for_a_writer_that_has_gone());
    return 0;
}
