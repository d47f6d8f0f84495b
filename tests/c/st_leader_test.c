// sources: store/src/*.c transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// flags of store/src: -DST_TEST_STEPS
// timeout: 180
/* The store server and its leader: fences, epochs, inventories, how it starts. */
#include "st_kit.h"

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
    pause_ms(50);
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
        pause_ms(1);
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

int main(void) {
    RUN(test_a_frozen_writer_is_fenced());
    RUN(test_a_dead_writer_leaves_nothing_in_use());
    RUN(test_epochs());
    RUN(test_a_large_inventory_comes_in_frames());
    RUN(test_starts_that_fail());
    RUN(test_the_pool_grows_in_the_background());
    return 0;
}
