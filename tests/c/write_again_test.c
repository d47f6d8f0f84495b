// sources: store/src/*.c transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// flags of store/src: -DST_TEST_STEPS
// timeout: 120
// variants: plain address
/* A WRITE with its SEAL whose connection breaks, as the transfer engine repeats it *(seal_again)*: what its answer says.
 * Two attempts may place the same bytes at the same time: that is meant, and ThreadSanitizer would call it a race. */
#include "engine_proxy.h"
#include "st_kit.h"
#include "te_transfer.h"

#define BYTES 100000u
#define PAGES ((BYTES + MS_PAGE_SIZE - 1) / MS_PAGE_SIZE)
#define LIMIT_S 30
#define SENT_BYTES 8192u

static struct {
    master master;
    node node;
    proxy *between;
    client writer;
} all;

static uint8_t bytes[BYTES];

static put put_of(uint64_t sequence) {
    return (put){.page = (uint32_t)sequence * PAGES,
                 .page_count = PAGES,
                 .version = version_of(sequence),
                 .bytes = bytes,
                 .length = BYTES};
}

static void open_all(void) {
    start(&all.master, &all.node);
    all.between = proxy_open(all.node.status.port);
    snprintf(all.node.address, sizeof all.node.address, "%s", all.between->address);
    client_open(&all.writer, &all.node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    put warm = put_of(1);
    CHECK_STATUS(client_put(&all.writer, &warm), MS_OK);
}

static void close_all(void) {
    client_close(&all.writer);
    proxy_close(all.between);
    stop(&all.master, &all.node);
}

static void be_silent(const char *name) {
    if (strcmp(name, "seal: before the word") == 0)
        all.between->is_silent_back = true;
}

static void *put_run(void *argument) {
    static ms_status status;
    status = client_put(&all.writer, argument);
    return &status;
}

/* What the caller is told of a put that the server has sealed, when `meanwhile` has happened before its connection
 * breaks, unanswered. */
static ms_status told_after(void (*meanwhile)(void)) {
    pthread_t thread;
    put one = put_of(2);
    uint64_t sealed = node_counter(&all.node, "seals_total");
    on_step = be_silent;
    CHECK(pthread_create(&thread, NULL, put_run, &one) == 0);
    node_wait_counter(&all.node, "seals_total", sealed);
    on_step = NULL;
    meanwhile();
    proxy_break(all.between);
    all.between->is_silent_back = false;
    void *status;
    pthread_join(thread, &status);
    return *(ms_status *)status;
}

static void nothing(void) {}

static void test_a_sealed_put_is_stored(void) {
    open_all();
    CHECK_STATUS(told_after(nothing), MS_OK);
    close_all();
}

static void it_is_freed(void) {
    put one = put_of(2);
    ms_free_item item = free_item(one.page, PAGES, one.version, 0);
    master_free(&all.master, EPOCH, all.node.status.incarnation, &item, 1);
    master_expect_item(&all.master, MS_FREED, one.page, one.version);
}

/* The second attempt is refused for good; of the first one that says nothing. */
static void test_freed_it_is_unclear(void) {
    open_all();
    CHECK_STATUS(told_after(it_is_freed), MS_IO_ERROR);
    close_all();
}

static void another_session(void) {
    uint8_t hello[512];
    size_t length = hello_write(hello, sizeof hello, SESSION + 1, EPOCH,
                                all.node.status.incarnation, MS_RIGHT_WRITE);
    te_channel_set_hello(all.writer.channel, hello, length);
}

static void test_in_another_session_it_is_not_repeated(void) {
    open_all();
    uint64_t refused = node_counter(&all.node, "writes_refused_total");
    CHECK_STATUS(told_after(another_session), MS_UNAVAILABLE);
    CHECK(node_counter(&all.node, "writes_refused_total") == refused); /* COMPLETE counts, too */
    close_all();
}

/* Whatever became of it, a part that is repeated goes over no other session: also one that comes back from a worker. */
static void test_a_part_is_repeated_in_its_session(void) {
    open_all();
    put one = put_of(2);
    uint8_t seal[256];
    const void *source = bytes;
    uint32_t status = MS_PENDING;
    ms_write_item item = {.page = one.page,
                          .page_count = PAGES,
                          .version = one.version,
                          .length = BYTES,
                          .seal_length = (uint32_t)seal_write(seal, sizeof seal, &one)};
    te_moving moved = {.channel = all.writer.channel,
                       .engine = all.writer.engine,
                       .deadline_ns = in_seconds(LIMIT_S),
                       .count = 1,
                       .writes = &item,
                       .sources = &source,
                       .seals = seal,
                       .statuses = &status,
                       .part_bytes = UINT64_MAX};
    te_part part;
    te_connection *connection;
    pthread_mutex_init(&moved.lock, NULL);
    CHECK(te_part_take(&moved, &part));
    CHECK_STATUS(te_checkout(moved.channel, moved.deadline_ns, &connection), MS_OK);
    part.is_repeated = true;
    part.hello_generation = te_connection_generation(connection);
    te_checkin(connection, true);
    another_session();
    uint64_t sealed = node_counter(&all.node, "seals_total");
    CHECK_STATUS(te_checkout(moved.channel, moved.deadline_ns, &connection), MS_OK);
    CHECK_STATUS(te_part_write(&moved, &part, connection), MS_OK);
    CHECK_STATUS(status, MS_UNAVAILABLE);
    part.is_repeated = false;
    CHECK_STATUS(te_part_write(&moved, &part, connection), MS_OK);
    CHECK_STATUS(status, MS_OK);
    te_checkin(connection, true);
    CHECK(node_counter(&all.node, "seals_total") == sealed + 1);
    pthread_mutex_destroy(&moved.lock);
    close_all();
}

/* ---- a SEAL that is answered BUSY -------------------------------------------------------------------------------------- */

/* The first item of the object is refused, and the one with its SEAL is BUSY: that is not sent again, and not OK. */
static ms_status told_of_seal(uint64_t sequence) {
    put one = put_of(sequence);
    uint8_t seal[256];
    ms_write_item items[2] = {
        {.page = one.page, .page_count = 0, .version = one.version, .length = 1},
        {.page = one.page,
         .page_count = PAGES,
         .version = one.version,
         .length = BYTES,
         .seal_length = (uint32_t)seal_write(seal, sizeof seal, &one)}};
    const void *sources[2] = {bytes, bytes};
    uint32_t statuses[2];
    CHECK_STATUS(te_write(all.writer.channel, items, sources, 2, seal, items[1].seal_length, 0,
                          statuses, in_seconds(LIMIT_S)),
                 MS_OK);
    CHECK_STATUS(statuses[0], MS_OUT_OF_RANGE);
    return (ms_status)statuses[1];
}

static void test_a_seal_that_is_not_due_is_not_told_as_sealed(void) {
    open_all();
    put one = put_of(2);
    bytes[SENT_BYTES - 1] = 0xa5; /* no page has been written to but that of the first put */
    int frozen = frozen_writer(&all.node, EPOCH, &one, SESSION, SENT_BYTES);
    wait_for_bytes(&all.node, one.page, bytes, SENT_BYTES);
    uint64_t refused = node_counter(&all.node, "seals_refused_total");
    CHECK_STATUS(told_of_seal(2), MS_UNAVAILABLE);
    CHECK(node_counter(&all.node, "seals_refused_total") == refused + 1);
    close(frozen);
    close_all();
}

/* What was copied from shared memory is copied again with its SEAL *(source_busy)*. */
static void test_a_seal_of_shared_memory_is_sent_with_its_bytes(void) {
    open_all();
    client local;
    void *memory;
    uint32_t source, status;
    uint64_t source_offset;
    uint8_t seal[256];
    const void *nothing_sent = NULL;
    put one = put_of(2);
    client_open(&local, &all.node, true, SESSION, EPOCH, MS_RIGHT_WRITE);
    CHECK_STATUS(te_shared_alloc(local.engine, BYTES, &memory), MS_OK);
    CHECK_STATUS(
        te_share(local.channel, memory, BYTES, &source, &source_offset, in_seconds(LIMIT_S)),
        MS_OK);
    bytes[SENT_BYTES - 1] = 0xa5;
    memcpy(memory, bytes, BYTES);
    int frozen = frozen_writer(&all.node, EPOCH, &one, SESSION, SENT_BYTES);
    wait_for_bytes(&all.node, one.page, bytes, SENT_BYTES);
    uint64_t refused = node_counter(&all.node, "seals_refused_total");
    uint64_t written = node_counter(&all.node, "written_bytes_total");
    local.engine->seal_busy_ns = SECONDS / 10;
    ms_write_item item = {.page = one.page,
                          .page_count = PAGES,
                          .version = one.version,
                          .source = source,
                          .source_offset = source_offset,
                          .length = BYTES,
                          .seal_length = (uint32_t)seal_write(seal, sizeof seal, &one)};
    CHECK_STATUS(te_write(local.channel, &item, &nothing_sent, 1, seal, item.seal_length, 0,
                          &status, in_seconds(LIMIT_S)),
                 MS_OK);
    CHECK_STATUS(status, MS_UNAVAILABLE);
    refused = node_counter(&all.node, "seals_refused_total") - refused;
    written = node_counter(&all.node, "written_bytes_total") - written;
    CHECK(refused > 1 && written == refused * BYTES);
    close(frozen);
    te_shared_free(local.engine, memory);
    client_close(&local);
    close_all();
}

/* It was answered in the session of the first attempt, with which ends what that one may still do. */
static void test_a_busy_seal_is_asked_for_in_no_other_session(void) {
    open_all();
    pthread_t thread;
    void *status;
    char text[TE_ERROR_BYTES];
    uint8_t got[16];
    put one = put_of(2);
    bytes[SENT_BYTES - 1] = 0xa5;
    int frozen = frozen_writer(&all.node, EPOCH, &one, SESSION, SENT_BYTES);
    wait_for_bytes(&all.node, one.page, bytes, SENT_BYTES);
    uint64_t refused = node_counter(&all.node, "seals_refused_total");
    all.writer.engine->seal_busy_ns = 10 * SECONDS;
    CHECK(pthread_create(&thread, NULL, put_run, &one) == 0);
    node_wait_counter(&all.node, "seals_refused_total", refused);
    another_session();
    pthread_join(thread, &status);
    CHECK_STATUS(*(ms_status *)status, MS_UNAVAILABLE);
    te_channel_error(all.writer.channel, text);
    CHECK(strstr(text, "the session has changed") != NULL);
    CHECK_STATUS(client_read(&all.writer, one.page, one.version, got, sizeof got), MS_GONE);
    close(frozen);
    close_all();
}

int main(void) {
    fill(bytes, sizeof bytes, 1);
    RUN(test_a_sealed_put_is_stored());
    RUN(test_freed_it_is_unclear());
    RUN(test_in_another_session_it_is_not_repeated());
    RUN(test_a_part_is_repeated_in_its_session());
    RUN(test_a_busy_seal_is_asked_for_in_no_other_session());
    RUN(test_a_seal_that_is_not_due_is_not_told_as_sealed());
    RUN(test_a_seal_of_shared_memory_is_sent_with_its_bytes());
    return 0;
}
