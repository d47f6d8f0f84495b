// sources: store/src/*.c transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// flags of store/src: -DST_TEST_STEPS
// timeout: 180
/* The store server over its frames: puts, reads, frees, fences, views, copies, adoption. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#include "st_fixture.h"

#include "st_step.h"

void st_step(const char *name) { (void)name; }

bool st_is_planted(enum st_fault fault) {
    (void)fault;
    return false;
}

#define MIB (1u << 20)
#define EPOCH 7u
#define SESSION 0x700000001u

static uint64_t version_of(uint64_t sequence) { return ms_version(EPOCH, sequence); }

/* One server that a master of EPOCH has adopted. */
static void start(master *master, node *node) {
    master_open(master);
    node_open(node, 8 * MIB, master->address);
    master_wait_connections(master, 1);
    inventory found;
    CHECK_STATUS(master_adopt(master, EPOCH, &found), MS_OK);
    CHECK(found.count == 0);
    node_wait_adopted(node);
}

static void stop(master *master, node *node) {
    node_close(node);
    master_close(master);
}

static void fill(uint8_t *bytes, size_t length, uint64_t version) {
    for (size_t at = 0; at < length; at++)
        bytes[at] = (uint8_t)(version * 131 + at * 7 + (at >> 8));
}

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
    put put = {.page = 3, .page_count = 1, .version = version_of(1), .bytes = &byte, .length = 1};
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
    CHECK(found.items[0].flags == MS_OBJECT_HARD_PIN && found.items[0].version == version_of(1));
    CHECK(found.items[0].state == 1 && found.items[0].page == 3 && found.items[0].size == 1);
    client_close(&client);
    stop(&master, &node);
}

/* ---- relayed put_end ------------------------------------------------------------------------------------------ */

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

/* ---- fences ------------------------------------------------------------------------------------------------------ */

/* Waits until the frozen WRITE's bytes are in the extent; looks through the file, as no thread here owns them. */
static void wait_for_bytes(const node *node, uint32_t page, const uint8_t *bytes, size_t length) {
    char path[128];
    uint8_t last = 0;
    snprintf(path, sizeof path, "%s/payload-0", node->folder);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    int64_t deadline_ns = in_seconds(10);
    while (pread(fd, &last, 1, (off_t)(page * 4096 + length - 1)) == 1 &&
           last != bytes[length - 1]) {
        CHECK(te_now_ns() < deadline_ns);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    close(fd);
}

static void test_a_frozen_writer_is_fenced(void) {
    master master;
    node node;
    client client;
    start(&master, &node);
    static uint8_t bytes[64 * 1024], other[64 * 1024], got[64 * 1024];
    fill(bytes, sizeof bytes, 1);
    bytes[16 * 1024 - 1] = 0xa5;
    put first = {.page = 30,
                 .page_count = 16,
                 .version = version_of(1),
                 .bytes = bytes,
                 .length = sizeof bytes};
    int frozen = frozen_writer(&node, EPOCH, &first, SESSION, 16 * 1024);
    wait_for_bytes(&node, 30, bytes, 16 * 1024);

    /* Without a fence the copy goes on: CLEARED, and FREED is owed. */
    ms_free_item item = free_item(30, 16, version_of(1), 0);
    master_free(&master, EPOCH, node.status.incarnation, &item, 1);
    master_expect_item(&master, MS_CLEARED, 30, version_of(1));
    CHECK(master_take(&master, MS_FREED, 300) == NULL);
    CHECK(node_counter(&node, "pending_frees") == 1);
    /* What is in use without a live word stands in the inventory. */
    inventory found;
    CHECK_STATUS(master_adopt(&master, EPOCH, &found), MS_OK);
    CHECK(found.count == 1 && found.items[0].state == 2 && found.items[0].page == 30);
    CHECK(found.items[0].version == version_of(1) && found.items[0].page_count == 16);

    /* With the fence the connection is cut, then the extent is free. */
    item.session = SESSION;
    master_free(&master, EPOCH, node.status.incarnation, &item, 1);
    frame *freed = master_expect(&master, MS_FREED);
    free(freed);
    uint8_t rest[16];
    errno = 0;
    ssize_t came = read(frozen, rest, sizeof rest);
    CHECK(came == 0 || (came < 0 && errno == ECONNRESET));

    /* Reused: the writer that wakes up late changes nothing. */
    client_open(&client, &node, false, SESSION + 1, EPOCH, MS_RIGHT_WRITE);
    fill(other, sizeof other, 2);
    put second = {.page = 30,
                  .page_count = 16,
                  .version = version_of(2),
                  .bytes = other,
                  .length = sizeof other};
    CHECK_STATUS(client_put(&client, &second), MS_OK);
    ssize_t sent = send(frozen, bytes + 16 * 1024, 48 * 1024, MSG_NOSIGNAL);
    (void)sent; /* into nothing */
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    CHECK_STATUS(client_read(&client, 30, version_of(2), got, sizeof got), MS_OK);
    CHECK(memcmp(got, other, sizeof got) == 0);
    close(frozen);
    client_close(&client);
    /* The session is remembered. */
    client_open(&client, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    first.page = 60;
    first.version = version_of(3);
    CHECK_STATUS(client_put(&client, &first), MS_FENCED);
    client_close(&client);
    stop(&master, &node);
}

static void test_a_dead_writer_leaves_nothing_in_use(void) {
    master master;
    node node;
    start(&master, &node);
    static uint8_t bytes[64 * 1024];
    fill(bytes, sizeof bytes, 1);
    bytes[8191] = 0xa5;
    put first = {.page = 30,
                 .page_count = 16,
                 .version = version_of(1),
                 .bytes = bytes,
                 .length = sizeof bytes};
    int dying = frozen_writer(&node, EPOCH, &first, SESSION, 8192);
    wait_for_bytes(&node, 30, bytes, 8192);
    ms_free_item item = free_item(30, 16, version_of(1), 0);
    master_free(&master, EPOCH, node.status.incarnation, &item, 1);
    master_expect_item(&master, MS_CLEARED, 30, version_of(1));
    close(dying);
    master_expect_item(&master, MS_FREED, 30, version_of(1));
    CHECK(node_counter(&node, "pending_frees") == 0);
    stop(&master, &node);
}

/* ---- adoption ------------------------------------------------------------------------------------------------------ */

static void test_epochs(void) {
    master master;
    node node;
    client client, reader;
    inventory found;
    start(&master, &node);
    client_open(&client, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    client_open(&reader, &node, false, 0, 0, MS_RIGHT_READ);
    uint8_t bytes[64], got[64];
    fill(bytes, sizeof bytes, 1);
    put put = {.page = 3, .page_count = 1, .version = version_of(1), .bytes = bytes, .length = 64};
    CHECK_STATUS(client_put(&client, &put), MS_OK);
    CHECK_STATUS(client_read(&reader, 3, version_of(1), got, 64), MS_OK);
    static uint8_t large[64 * 1024];
    fill(large, sizeof large, 9);
    large[8191] = 0x5a;
    struct put half = {.page = 40,
                       .page_count = 16,
                       .version = version_of(2),
                       .bytes = large,
                       .length = sizeof large};
    int frozen = frozen_writer(&node, EPOCH, &half, SESSION, 8192);
    wait_for_bytes(&node, 40, large, 8192);

    /* The next leader: writers of the old epoch are cut, readers stay. */
    CHECK_STATUS(master_adopt(&master, EPOCH + 1, &found), MS_OK);
    CHECK(found.count == 1 && found.items[0].version == version_of(1));
    uint8_t rest[16];
    ssize_t came = read(frozen, rest, sizeof rest);
    CHECK(came <= 0);
    close(frozen);
    put.page = 4;
    put.version = version_of(3);
    ms_status late = client_put(&client, &put);
    CHECK(late != MS_OK);
    CHECK_STATUS(client_read(&reader, 3, version_of(1), got, 64), MS_OK);
    CHECK(memcmp(bytes, got, 64) == 0);
    node_wait_adopted(&node);

    /* The old leader's frames count no more, and an older ADOPT is refused. */
    ms_free_item item = free_item(3, 1, version_of(1), 0);
    master_free(&master, EPOCH, node.status.incarnation, &item, 1);
    CHECK(master_take(&master, MS_FREED, 300) == NULL);
    CHECK_STATUS(master_adopt(&master, EPOCH, NULL), MS_WRONG_EPOCH);
    client_close(&client);
    client_close(&reader);
    /* It closed that leader's connection and dials again. */
    master_wait_connections(&master, 2);
    CHECK_STATUS(master_adopt(&master, EPOCH + 1, &found), MS_OK);
    CHECK(found.count == 1);

    /* Kept over a restart, which starts empty, as another incarnation of the same node. */
    ms_server_info before = master.infos[1];
    node_stop(&node);
    node_start(&node, 8 * MIB, master.address);
    master_wait_connections(&master, 3);
    CHECK(memcmp(master.infos[2].node_id, before.node_id, 16) == 0);
    CHECK(master.infos[2].incarnation == before.incarnation + 1);
    CHECK(node.status.was_restarted == 1);
    CHECK_STATUS(master_adopt(&master, EPOCH, NULL), MS_WRONG_EPOCH);
    stop(&master, &node);
}

static void test_a_large_inventory_comes_in_frames(void) {
    enum { OBJECTS = 3000 };
    master master;
    node node;
    client client;
    start(&master, &node);
    node_close(&node);
    node_open(&node, 16 * MIB, master.address);
    master_wait_connections(&master, 2);
    CHECK_STATUS(master_adopt(&master, EPOCH, NULL), MS_OK);
    node_wait_adopted(&node);
    client_open(&client, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    uint8_t byte = 1;
    for (uint32_t page = 0; page < OBJECTS; page++) {
        put put = {.page = page,
                   .page_count = 1,
                   .version = version_of(page + 1),
                   .bytes = &byte,
                   .length = 1};
        CHECK_STATUS(client_put(&client, &put), MS_OK);
    }
    static inventory found;
    CHECK_STATUS(master_adopt(&master, EPOCH + 1, &found), MS_OK);
    CHECK(found.count == OBJECTS && found.frames > 10);
    for (uint32_t at = 0; at < OBJECTS; at++)
        CHECK(found.items[at].page == at && found.items[at].version == version_of(at + 1));
    client_close(&client);
    stop(&master, &node);
}

/* ---- views ------------------------------------------------------------------------------------------------------------ */

static void test_views(void) {
    master master;
    node node;
    client client, remote;
    start(&master, &node);
    client_open(&client, &node, true, SESSION, EPOCH, MS_RIGHT_WRITE);
    client_open(&remote, &node, false, 0, 0, MS_RIGHT_READ);
    uint8_t bytes[64];
    fill(bytes, sizeof bytes, 1);
    put put = {.page = 3, .page_count = 1, .version = version_of(1), .bytes = bytes, .length = 64};
    CHECK_STATUS(client_put(&client, &put), MS_OK);
    CHECK_STATUS(client_view(&client, MS_VIEW_OPEN, 3, version_of(2)), MS_GONE);
    CHECK_STATUS(client_view(&remote, MS_VIEW_OPEN, 3, version_of(1)), MS_REFUSED);
    CHECK_STATUS(client_view(&client, MS_VIEW_OPEN, 3, version_of(1)), MS_OK);
    CHECK_STATUS(client_view(&client, MS_VIEW_OPEN, 3, version_of(1)), MS_OK);
    CHECK(node_counter(&node, "views") == 2);
    te_mapping mapping;
    CHECK_STATUS(te_attach(client.channel, 0, in_seconds(10), &mapping), MS_OK);
    const uint8_t *seen = mapping.payload + 3 * 4096;
    CHECK(mapping.words[3] == ms_word(version_of(1), 1) && memcmp(seen, bytes, 64) == 0);

    ms_free_item item = free_item(3, 1, version_of(1), 0);
    master_free(&master, EPOCH, node.status.incarnation, &item, 1);
    master_expect_item(&master, MS_CLEARED, 3, version_of(1));
    CHECK(mapping.words[3] == ms_word(version_of(1), 0));
    CHECK_STATUS(client_view(&client, MS_VIEW_OPEN, 3, version_of(1)), MS_GONE);
    CHECK_STATUS(client_view(&client, MS_VIEW_CLOSE, 3, version_of(1)), MS_OK);
    CHECK(master_take(&master, MS_FREED, 300) == NULL);
    CHECK(memcmp(seen, bytes, 64) == 0); /* the bytes stay under an open view */
    master_free(&master, EPOCH, node.status.incarnation, &item, 1); /* repeated: the same answer */
    master_expect_item(&master, MS_CLEARED, 3, version_of(1));
    CHECK_STATUS(client_view(&client, MS_VIEW_CLOSE, 3, version_of(1)), MS_OK);
    master_expect_item(&master, MS_FREED, 3, version_of(1));
    CHECK_STATUS(client_view(&client, MS_VIEW_CLOSE, 3, version_of(1)), MS_NOT_FOUND);
    CHECK(node_counter(&node, "views") == 0 && node_counter(&node, "view_bytes") == 0);
    client_close(&client);
    client_close(&remote);
    stop(&master, &node);
}

static void test_views_end_with_their_process(void) {
    master master;
    node node;
    client client;
    start(&master, &node);
    client_open(&client, &node, true, SESSION, EPOCH, MS_RIGHT_WRITE);
    uint8_t byte = 1;
    for (uint32_t page = 1; page <= 300; page++) {
        put put = {.page = page,
                   .page_count = 1,
                   .version = version_of(page),
                   .bytes = &byte,
                   .length = 1};
        CHECK_STATUS(client_put(&client, &put), MS_OK);
    }
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        /* Only system calls and a client of its own: the parent's threads are not here. */
        struct client mine;
        client_open(&mine, &node, true, 0, 0, MS_RIGHT_READ);
        for (uint32_t page = 1; page <= 300; page++)
            CHECK_STATUS(client_view(&mine, MS_VIEW_OPEN, page, version_of(page)), MS_OK);
        CHECK(write(ready[1], "x", 1) == 1);
        for (;;)
            pause();
    }
    char sign;
    CHECK(read(ready[0], &sign, 1) == 1);
    CHECK(node_counter(&node, "views") == 300);
    ms_free_item item = free_item(2, 1, version_of(2), 0);
    master_free(&master, EPOCH, node.status.incarnation, &item, 1);
    master_expect_item(&master, MS_CLEARED, 2, version_of(2));
    kill(child, SIGKILL);
    master_expect_item(&master, MS_FREED, 2, version_of(2));
    int64_t deadline_ns = in_seconds(10);
    while (node_counter(&node, "views") != 0)
        CHECK(te_now_ns() < deadline_ns);
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    close(ready[0]);
    close(ready[1]);
    client_close(&client);
    stop(&master, &node);
}

static void test_views_have_a_quota(void) {
    master master;
    node node;
    client client;
    start(&master, &node);
    client_open(&client, &node, true, SESSION, EPOCH, MS_RIGHT_WRITE);
    static uint8_t bytes[3 * MIB];
    for (uint32_t at = 0; at < 2; at++) {
        put put = {.page = at * 768,
                   .page_count = 768,
                   .version = version_of(1 + at),
                   .bytes = bytes,
                   .length = sizeof bytes};
        CHECK_STATUS(client_put(&client, &put), MS_OK);
    }
    CHECK_STATUS(client_view(&client, MS_VIEW_OPEN, 0, version_of(1)), MS_OK);
    CHECK_STATUS(client_view(&client, MS_VIEW_OPEN, 768, version_of(2)),
                 MS_LIMIT); /* half of 8 MiB */
    CHECK_STATUS(client_view(&client, MS_VIEW_CLOSE, 0, version_of(1)), MS_OK);
    CHECK_STATUS(client_view(&client, MS_VIEW_OPEN, 768, version_of(2)), MS_OK);
    client_close(&client);
    stop(&master, &node);
}

/* ---- copies -------------------------------------------------------------------------------------------------------------- */

static ms_status order_copy(master *master, te_peer target, const node *to, uint64_t version,
                            uint64_t size, const ms_extent *from, uint16_t from_count,
                            const ms_extent *into, uint16_t into_count, const put *put,
                            uint32_t source_incarnation) {
    uint8_t body[4096];
    ms_writer out = ms_writer_fixed(body, sizeof body);
    ms_copy_request request = {.epoch = EPOCH, .incarnation = to->status.incarnation, .task = 5};
    ms_location source = {.replica_count = 1, .version = version, .size = size};
    ms_replica held = {
        .server = 0, .incarnation = source_incarnation, .extent_count = from_count, .state = 1};
    ms_replica wanted = {
        .server = 1, .incarnation = to->status.incarnation, .extent_count = into_count};
    MS_WRITER_STRUCT(&out, &request);
    MS_WRITER_STRUCT(&out, &source);
    MS_WRITER_STRUCT(&out, &held);
    ms_writer_bytes(&out, from, from_count * sizeof *from);
    MS_WRITER_STRUCT(&out, &wanted);
    ms_writer_bytes(&out, into, into_count * sizeof *into);
    uint8_t seal[256];
    size_t seal_length = seal_write(seal, sizeof seal, put);
    ms_writer_bytes(&out, seal, seal_length);
    CHECK(out.status == MS_OK);
    struct iovec part = {out.data, out.length};
    CHECK_STATUS(te_push(master->engine, target, MS_REQUEST, MS_COPY, 0, 5, &part, 1), MS_OK);
    frame *answer = master_expect(master, MS_COPY);
    ms_status status = (ms_status)answer->header.status;
    free(answer);
    return status;
}

static void test_copies_between_servers(void) {
    master master;
    node nodes[2];
    client client, other;
    start(&master, &nodes[0]);
    node_open(&nodes[1], 8 * MIB, master.address);
    master_wait_connections(&master, 2);
    CHECK_STATUS(master_adopt(&master, EPOCH, NULL), MS_OK); /* the one that came last */
    node_wait_adopted(&nodes[1]);
    client_open(&client, &nodes[0], false, SESSION, EPOCH, MS_RIGHT_WRITE);
    client_open(&other, &nodes[1], false, 0, 0, MS_RIGHT_READ);
    static uint8_t bytes[300000], got[300000];
    fill(bytes, sizeof bytes, 1);
    uint32_t pages = (sizeof bytes + 4095) / 4096;
    put put = {.page = 10,
               .page_count = pages,
               .version = version_of(1),
               .bytes = bytes,
               .length = sizeof bytes,
               .checksum = ms_crc32c(0, bytes, sizeof bytes),
               .flags = MS_OBJECT_HAS_CHECKSUM};
    CHECK_STATUS(client_put(&client, &put), MS_OK);
    ms_extent from[1] = {{10, pages}}, into[2] = {{100, 30}, {200, pages - 30}};
    uint32_t incarnation = nodes[0].status.incarnation;
    te_peer target = master.server;
    CHECK_STATUS(order_copy(&master, target, &nodes[1], version_of(1), sizeof bytes, from, 1, into,
                            2, &put, incarnation),
                 MS_OK);
    CHECK_STATUS(client_read(&other, 100, version_of(1), got, 30 * 4096), MS_OK);
    CHECK_STATUS(client_read(&other, 200, version_of(1), got + 30 * 4096, sizeof bytes - 30 * 4096),
                 MS_OK);
    CHECK(memcmp(bytes, got, sizeof got) == 0);
    inventory found;
    CHECK_STATUS(master_adopt(&master, EPOCH, &found), MS_OK);
    CHECK(found.count == 2 && found.items[0].part == 0 && found.items[1].part == 1);
    CHECK(found.items[0].part_count == 2 && found.items[1].page == 200 &&
          found.items[1].size == sizeof bytes);
    node_wait_adopted(&nodes[1]);
    /* Again: it is there.  Stale, of another life of the source, onto pages that are taken. */
    CHECK_STATUS(order_copy(&master, target, &nodes[1], version_of(1), sizeof bytes, from, 1, into,
                            2, &put, incarnation),
                 MS_OK);
    ms_extent elsewhere[1] = {{400, pages}};
    CHECK_STATUS(order_copy(&master, target, &nodes[1], version_of(9), sizeof bytes, from, 1,
                            elsewhere, 1, &put, incarnation),
                 MS_GONE);
    CHECK_STATUS(order_copy(&master, target, &nodes[1], version_of(1), sizeof bytes, from, 1,
                            elsewhere, 1, &put, incarnation + 1),
                 MS_GONE);
    put.checksum++;
    CHECK_STATUS(order_copy(&master, target, &nodes[1], version_of(1), sizeof bytes, from, 1,
                            elsewhere, 1, &put, incarnation),
                 MS_BAD_CHECKSUM);
    CHECK_STATUS(client_read(&other, 400, version_of(1), got, 4096), MS_GONE);
    /* An empty object. */
    struct put empty = {.page = 500, .page_count = 1, .version = version_of(20), .bytes = bytes};
    CHECK_STATUS(client_put(&client, &empty), MS_OK);
    ms_extent one[1] = {{500, 1}};
    CHECK_STATUS(order_copy(&master, target, &nodes[1], version_of(20), 0, one, 1, one, 1, &empty,
                            incarnation),
                 MS_OK);
    CHECK_STATUS(client_read(&other, 500, version_of(20), got, 0), MS_OK);
    client_close(&client);
    client_close(&other);
    node_close(&nodes[1]);
    stop(&master, &nodes[0]);
}

/* ---- faults at the start -------------------------------------------------------------------------------------------------- */

static void test_starts_that_fail(void) {
    node node;
    node_open(&node, 2 * MIB, NULL);
    st_config config;
    st_server *server;
    char error[ST_ERROR_BYTES];
    st_config_default(&config);
    config.segment_dir = node.folder;
    config.size_bytes = 2 * MIB;
    CHECK_STATUS(st_open(&config, &server, error), MS_BUSY);
    CHECK(strstr(error, "in use by process") != NULL);
    struct node second;
    node_folder(&second);
    config.segment_dir = second.folder;
    config.size_bytes = UINT64_C(1) << 43;
    CHECK_STATUS(st_open(&config, &server, error), MS_NO_SPACE);
    CHECK(strstr(error, "--pool-size") != NULL);
    config.size_bytes = 2 * MIB;
    config.port = node.status.port;
    ms_status status = st_open(&config, &server, error);
    CHECK(status != MS_OK && error[0] != '\0');
    config.segment_dir = "relative";
    CHECK_STATUS(st_open(&config, &server, error), MS_BAD_REQUEST);
    config.segment_dir = second.folder;
    config.size_bytes = 1000;
    CHECK_STATUS(st_open(&config, &server, error), MS_BAD_REQUEST);
    CHECK(chmod(second.folder, 0777) == 0);
    config.size_bytes = 2 * MIB;
    CHECK_STATUS(st_open(&config, &server, error), MS_REFUSED);
    CHECK(chmod(second.folder, 0700) == 0);
    node_remove_folder(&second);
    node_close(&node);
}

static void test_the_pool_grows_in_the_background(void) {
    master master;
    node node;
    master_open(&master);
    node_folder(&node);
    st_config config;
    char error[ST_ERROR_BYTES];
    st_config_default(&config);
    config.segment_dir = node.folder;
    config.size_bytes = 24 * MIB;
    config.ready_bytes = 4 * MIB;
    config.touch_permille = 500;
    config.master = master.address;
    CHECK_STATUS(st_open(&config, &node.server, error), MS_OK);
    st_get_status(node.server, &node.status);
    CHECK(node.status.bytes_ready >= 4 * MIB);
    int64_t deadline_ns = in_seconds(20);
    while (node.status.pool_state == ST_POOL_GROWING) {
        CHECK(te_now_ns() < deadline_ns);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        st_get_status(node.server, &node.status);
    }
    CHECK(node.status.pool_state == ST_POOL_READY && node.status.bytes_ready == 24 * MIB);
    struct stat files;
    char path[128];
    snprintf(path, sizeof path, "%s/payload-0", node.folder);
    CHECK(stat(path, &files) == 0 && files.st_blocks * 512 >= 24 * (blkcnt_t)MIB);
    CHECK((files.st_mode & 0777) == 0600);
    node_stop(&node);
    node_remove_folder(&node);
    master_close(&master);
}

#define RUN(...)                                                                                   \
    do {                                                                                           \
        fprintf(stderr, "%s\n", #__VA_ARGS__);                                                     \
        __VA_ARGS__;                                                                               \
    } while (0)

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
    RUN(test_a_frozen_writer_is_fenced());
    RUN(test_a_dead_writer_leaves_nothing_in_use());
    RUN(test_epochs());
    RUN(test_a_large_inventory_comes_in_frames());
    RUN(test_views());
    RUN(test_views_end_with_their_process());
    RUN(test_views_have_a_quota());
    RUN(test_copies_between_servers());
    RUN(test_starts_that_fail());
    RUN(test_the_pool_grows_in_the_background());
    return 0;
}
