// sources: store/src/*.c transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// flags of store/src: -DST_TEST_STEPS
// timeout: 180
/* A store server that is started again on the files of an earlier one: objects, notes, views, epochs. */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
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

static void start(master *master, node *node, uint64_t cluster) {
    master_open(master);
    master->cluster = cluster;
    node_folder(node);
    node->keeps_files = true;
    node_start(node, 8 * MIB, master->address);
    master_wait_connections(master, 1);
    CHECK_STATUS(master_adopt(master, EPOCH, NULL), MS_OK);
    node_wait_adopted(node);
}

/* Empties the pool first: what holds nothing is not kept. */
static void stop(master *master, node *node) {
    node->keeps_files = false;
    node_stop(node);
    node_start(node, 8 * MIB, NULL);
    node_close(node);
    master_close(master);
}

static void restart(master *master, node *node, uint64_t size_bytes) {
    uint32_t connections = master->server_count;
    node_stop(node);
    node_start(node, size_bytes, master->address);
    master_wait_connections(master, connections + 1);
}

static void fill(uint8_t *bytes, size_t length, uint64_t version) {
    for (size_t at = 0; at < length; at++)
        bytes[at] = (uint8_t)(version * 131 + at * 7 + (at >> 8));
}

static void put_many(client *client, uint32_t first, uint32_t count) {
    uint8_t bytes[5000];
    for (uint32_t number = first; number < first + count; number++) {
        fill(bytes, sizeof bytes, number);
        put put = {.page = number * 2,
                   .page_count = 2,
                   .version = version_of(number),
                   .bytes = bytes,
                   .length = sizeof bytes};
        CHECK_STATUS(client_put(client, &put), MS_OK);
    }
}

static void read_many(client *client, uint32_t first, uint32_t count) {
    uint8_t bytes[5000], got[5000];
    for (uint32_t number = first; number < first + count; number++) {
        fill(bytes, sizeof bytes, number);
        CHECK_STATUS(client_read(client, number * 2, version_of(number), got, sizeof got), MS_OK);
        CHECK(memcmp(bytes, got, sizeof got) == 0);
    }
}

static void test_objects_and_notes_are_found_again(void) {
    master master;
    node node;
    client writer, reader;
    start(&master, &node, 0);
    client_open(&writer, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    put_many(&writer, 1, 200);
    ms_note note = {.epoch = EPOCH,
                    .incarnation = node.status.incarnation,
                    .version = version_of(5),
                    .note = version_of(900),
                    .expiry_ms = 4242,
                    .page = 10,
                    .flags = MS_OBJECT_HARD_PIN};
    master_push(&master, MS_REQUEST, MS_NOTE, 3, &note, sizeof note);
    frame *answer = master_expect(&master, MS_NOTE);
    CHECK_STATUS(answer->header.status, MS_OK);
    free(answer);
    ms_free_item item = free_item(12, 2, version_of(6), 0);
    master_free(&master, EPOCH, node.status.incarnation, &item, 1);
    master_expect_item(&master, MS_FREED, 12, version_of(6));
    client_close(&writer);

    ms_server_info before = master.infos[0];
    restart(&master, &node, 8 * MIB);
    CHECK(node.status.is_kept && node.status.object_extents == 199);
    CHECK(memcmp(master.infos[1].node_id, before.node_id, 16) == 0);
    CHECK(master.infos[1].incarnation == before.incarnation + 1);
    /* Before any master has adopted it: locations that clients know go on. */
    client_open(&reader, &node, false, 0, 0, MS_RIGHT_READ);
    read_many(&reader, 1, 5);
    uint8_t got[8];
    CHECK_STATUS(client_read(&reader, 12, version_of(6), got, sizeof got), MS_GONE);
    CHECK_STATUS(master_adopt(&master, EPOCH - 1, NULL), MS_WRONG_EPOCH);
    master_wait_connections(&master, 3);
    static inventory found;
    CHECK_STATUS(master_adopt(&master, EPOCH, &found), MS_OK);
    CHECK(found.count == 199);
    for (uint32_t at = 0; at < found.count; at++) {
        const ms_inventory_item *told = &found.items[at];
        CHECK(told->state == 1 && told->tenant_length == 7 && told->size == 5000);
        bool is_noted = told->page == 10;
        CHECK(told->note == (is_noted ? version_of(900) : told->version));
        CHECK(told->expiry_ms == (is_noted ? 4242 : 0));
        CHECK(told->flags == (is_noted ? MS_OBJECT_HARD_PIN : 0));
    }
    /* An old grant, of the same epoch: its incarnation is gone. */
    node_wait_adopted(&node);
    ms_status late;
    node.status.incarnation--;
    client_open(&writer, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    uint8_t byte = 1;
    put put = {
        .page = 600, .page_count = 1, .version = version_of(999), .bytes = &byte, .length = 1};
    late = client_put(&writer, &put);
    CHECK(late != MS_OK);
    client_close(&writer);
    node.status.incarnation++;
    client_open(&writer, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    CHECK_STATUS(client_put(&writer, &put), MS_OK);
    put.page = 12; /* freed pages are granted again */
    put.version = version_of(1000);
    CHECK_STATUS(client_put(&writer, &put), MS_OK);
    read_many(&reader, 7, 194);
    client_close(&writer);
    client_close(&reader);
    stop(&master, &node);
}

/* Larger at once, smaller not while objects lie in it; both are said. */
static void test_another_size(void) {
    master master;
    node node;
    client writer;
    start(&master, &node, 0);
    client_open(&writer, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    put_many(&writer, 1, 20);
    restart(&master, &node, 16 * MIB);
    CHECK(node.status.is_kept && node.status.bytes_total == 16 * MIB);
    CHECK(node_has_said(&node, "pool_grows"));
    restart(&master, &node, 4 * MIB);
    CHECK(node.status.is_kept && node.status.bytes_total == 16 * MIB);
    CHECK(node_has_said(&node, "pool_keeps_size"));
    client_close(&writer);
    client_open(&writer, &node, false, 0, 0, MS_RIGHT_READ);
    read_many(&writer, 1, 20);
    client_close(&writer);
    stop(&master, &node);
}

/* A header that is damaged anywhere: another node, empty, and nothing crashes. */
static void test_a_damaged_header(void) {
    master master;
    node node;
    client writer;
    start(&master, &node, 0);
    client_open(&writer, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    uint8_t node_id[16];
    char path[192];
    snprintf(path, sizeof path, "%s/header", node.folder);
    uint8_t good[64], bad[64];
    for (uint32_t at = 0; at < 80; at++) {
        put_many(&writer, 1, 3);
        client_close(&writer);
        memcpy(node_id, node.status.node_id, sizeof node_id);
        node_stop(&node);
        int fd = open(path, O_RDONLY);
        ssize_t length = fd >= 0 ? read(fd, good, sizeof good) : -1;
        CHECK(length == 40);
        close(fd);
        memcpy(bad, good, sizeof bad);
        size_t cut = at < 40 ? at : 40; /* cut at each byte, then a bit in each byte */
        if (at >= 40)
            bad[at - 40] ^= (uint8_t)(1u << at % 8);
        fd = open(path, O_WRONLY | O_TRUNC);
        CHECK(fd >= 0 && write(fd, bad, cut) == (ssize_t)cut);
        close(fd);
        node_start(&node, 8 * MIB, NULL);
        CHECK(!node.status.is_kept && node.status.object_extents == 0);
        CHECK(memcmp(node_id, node.status.node_id, sizeof node_id) != 0);
        CHECK(node_has_said(&node, "header_damaged") && node_has_said(&node, "starts_empty"));
        /* It serves again. */
        uint32_t connections = master.server_count;
        CHECK_STATUS(st_set_master(node.server, master.address), MS_OK);
        master_wait_connections(&master, connections + 1);
        CHECK_STATUS(master_adopt(&master, EPOCH, NULL), MS_OK);
        node_wait_adopted(&node);
        client_open(&writer, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
        if (connections == 6)
            master.server_count = 1; /* the fixture's table is small */
    }
    client_close(&writer);
    stop(&master, &node);
}

/* ---- views ------------------------------------------------------------------------------------------------ */

/* A process that keeps a view of each of `count` objects open. */
static pid_t viewer(const node *node, uint32_t first, uint32_t count) {
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        for (int fd = 3; fd < 1024; fd++) /* the folder's lock is the server's alone */
            if (fd != ready[1])
                close(fd);
        struct client mine;
        client_open(&mine, node, true, 0, 0, MS_RIGHT_READ);
        for (uint32_t number = first; number < first + count; number++)
            CHECK_STATUS(client_view(&mine, MS_VIEW_OPEN, number * 2, version_of(number)), MS_OK);
        CHECK(write(ready[1], "x", 1) == 1);
        for (;;)
            pause();
    }
    char sign;
    CHECK(read(ready[0], &sign, 1) == 1);
    close(ready[0]);
    close(ready[1]);
    return child;
}

static void end(pid_t child) {
    int status;
    kill(child, SIGKILL);
    CHECK(waitpid(child, &status, 0) == child);
}

static void test_views_outlive_the_server(void) {
    master master;
    node node;
    client client;
    start(&master, &node, 0);
    client_open(&client, &node, true, SESSION, EPOCH, MS_RIGHT_WRITE);
    put_many(&client, 1, 100);
    CHECK_STATUS(client_view(&client, MS_VIEW_OPEN, 2, version_of(1)), MS_OK);
    pid_t lives = viewer(&node, 2, 10), dies = viewer(&node, 20, 10);
    ms_free_item item = free_item(4, 2, version_of(2), 0); /* freed under a view */
    master_free(&master, EPOCH, node.status.incarnation, &item, 1);
    master_expect_item(&master, MS_CLEARED, 4, version_of(2));
    client_close(&client);
    end(dies);
    restart(&master, &node, 8 * MIB);
    CHECK(node.status.is_kept);
    CHECK(node_counter(&node, "views") == 11);
    CHECK(node_counter(&node, "view_bytes") == 11 * 8192);
    static inventory found;
    CHECK_STATUS(master_adopt(&master, EPOCH, &found), MS_OK);
    CHECK(found.count == 100);
    uint32_t in_use = 0;
    for (uint32_t at = 0; at < found.count; at++)
        if (found.items[at].state == 2) { /* *(busy_inventory)* */
            CHECK(found.items[at].page == 4 && found.items[at].page_count == 2);
            CHECK(found.items[at].version == version_of(2));
            in_use++;
        }
    CHECK(in_use == 1);
    node_wait_adopted(&node);
    /* CLEARED, not FREED, until the last one that looks has ended. */
    master_free(&master, EPOCH, node.status.incarnation, &item, 1);
    master_expect_item(&master, MS_CLEARED, 4, version_of(2));
    ms_free_item other = free_item(2, 2, version_of(1), 0);
    master_free(&master, EPOCH, node.status.incarnation, &other, 1);
    master_expect_item(&master, MS_CLEARED, 2, version_of(1));
    client_open(&client, &node, true, 0, 0, MS_RIGHT_READ);
    CHECK_STATUS(client_view(&client, MS_VIEW_CLOSE, 2, version_of(1)), MS_OK);
    master_expect_item(&master, MS_FREED, 2, version_of(1));
    end(lives);
    master_expect_item(&master, MS_FREED, 4, version_of(2));
    int64_t deadline_ns = in_seconds(10);
    while (node_counter(&node, "views") != 0)
        CHECK(te_now_ns() < deadline_ns);
    client_close(&client);
    stop(&master, &node);
}

/* A view that a damaged table forgets must not lose its bytes: the next pool has files of its own. */
static void test_a_damaged_table_of_views(void) {
    char path[192];
    for (uint32_t at = 0; at < 6; at++) {
        master master;
        node node;
        client client;
        start(&master, &node, 0);
        client_open(&client, &node, true, SESSION, EPOCH, MS_RIGHT_WRITE);
        put_many(&client, 1, 10);
        CHECK_STATUS(client_view(&client, MS_VIEW_OPEN, 2, version_of(1)), MS_OK);
        te_mapping mapping;
        CHECK_STATUS(te_attach(client.channel, 0, in_seconds(10), &mapping), MS_OK);
        node_stop(&node);
        snprintf(path, sizeof path, "%s/views", node.folder);
        int fd = open(path, O_RDWR);
        uint8_t head[32 + 32 * 4];
        CHECK(fd >= 0 && pread(fd, head, sizeof head, 0) == sizeof head);
        size_t slot = 32;
        while (head[slot + 16] == 0) /* the pid of the slot that is used */
            slot += 32;
        switch (at) {
        case 0:
            CHECK(unlink(path) == 0);
            break;
        case 1:
            CHECK(ftruncate(fd, 20) == 0);
            break;
        case 2:
            CHECK(ftruncate(fd, 4096) == 0);
            break;
        case 3: /* another magic */
            CHECK(pwrite(fd, "????", 4, 0) == 4);
            break;
        case 4: /* another pid namespace */
            head[8] ^= 1;
            CHECK(pwrite(fd, head + 8, 1, 8) == 1);
            break;
        default: /* a bit of the pid */
            head[slot + 16] ^= 1;
            CHECK(pwrite(fd, head + slot + 16, 1, (off_t)(slot + 16)) == 1);
        }
        close(fd);
        node_start(&node, 8 * MIB, NULL);
        CHECK(!node.status.is_kept && node.status.object_extents == 0);
        CHECK(node_has_said(&node, "starts_empty reason=\"the table of open views"));
        uint8_t bytes[5000];
        fill(bytes, sizeof bytes, 1);
        CHECK(memcmp(mapping.payload + 2 * 4096, bytes, sizeof bytes) == 0);
        CHECK(mapping.words[2] == 0); /* but nobody takes them for live */
        client_close(&client);
        stop(&master, &node);
    }
}

/* ---- clusters ----------------------------------------------------------------------------------------------- */

static void test_what_another_cluster_put_is_of_no_use(void) {
    master first, second;
    node node;
    client client;
    start(&first, &node, 0xaaaa);
    client_open(&client, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    put_many(&client, 1, 50);
    client_close(&client);
    restart(&first, &node, 8 * MIB); /* the same cluster: kept */
    static inventory found;
    CHECK_STATUS(master_adopt(&first, EPOCH, &found), MS_OK);
    CHECK(found.count == 50);
    node_stop(&node);
    master_open(&second);
    second.cluster = 0xbbbb;
    node_start(&node, 8 * MIB, second.address);
    CHECK(node.status.is_kept);
    master_wait_connections(&second, 1);
    CHECK_STATUS(master_adopt(&second, 1, &found), MS_OK); /* its epochs begin anew */
    CHECK(found.count == 0);
    node_wait_adopted(&node);
    CHECK(node_has_said(&node, "starts_empty extents=50"));
    client_open(&client, &node, false, (uint64_t)1 << 32 | 1, 1, MS_RIGHT_WRITE);
    uint8_t byte = 1;
    put put = {
        .page = 2, .page_count = 1, .version = ms_version(1, 1), .bytes = &byte, .length = 1};
    CHECK_STATUS(client_put(&client, &put), MS_OK); /* under a version that is lower */
    client_close(&client);
    master_close(&first);
    stop(&second, &node);
}

/* Versions of two clusters may be equal, and so may the address: a location of one must not be read in the other. */
static void test_who_is_of_another_cluster_is_refused(void) {
    master master;
    node node;
    start(&master, &node, 0xaaaa);
    const uint64_t clusters[] = {0xaaaa, 0, 0xbbbb};
    const uint8_t rights[] = {MS_RIGHT_READ, MS_RIGHT_WRITE};
    for (uint32_t at = 0; at < 6; at++) {
        uint8_t hello[512];
        size_t length = hello_write(hello, sizeof hello, SESSION, EPOCH, node.status.incarnation,
                                    rights[at / 3]);
        memcpy(hello + offsetof(ms_hello, cluster), &clusters[at % 3], sizeof clusters[0]);
        client client = {.engine = client_engine()};
        te_channel_config config = {
            .addresses = node.address, .hello = hello, .hello_length = length};
        CHECK_STATUS(te_channel_open(client.engine, &config, &client.channel), MS_OK);
        te_connection *connection;
        ms_status status = te_checkout(client.channel, in_seconds(10), &connection);
        char error[TE_ERROR_BYTES];
        te_channel_error(client.channel, error);
        CHECK_STATUS(status, at % 3 == 2 ? MS_WRONG_INCARNATION : MS_OK);
        if (status == MS_OK)
            te_checkin(connection, true);
        else
            CHECK(strstr(error, "belongs to cluster 000000000000aaaa") != NULL);
        client_close(&client);
    }
    stop(&master, &node);
}

/* A start that fails takes nothing away. */
static void test_a_start_that_fails_leaves_everything(void) {
    master master;
    node node;
    client client;
    start(&master, &node, 0);
    client_open(&client, &node, false, SESSION, EPOCH, MS_RIGHT_WRITE);
    put_many(&client, 1, 10);
    node_stop(&node);
    client_close(&client);
    st_config config;
    char error[ST_ERROR_BYTES] = "";
    st_config_default(&config);
    config.segment_dir = node.folder;
    config.name = "node";
    config.host = "host";
    config.size_bytes = config.ready_bytes = 8 * MIB;
    config.listen_address = "192.0.2.1"; /* not of this host */
    st_server *server = NULL;
    ms_status status = st_open(&config, &server, error);
    CHECK(status != MS_OK && error[0] != '\0');
    node_start(&node, 8 * MIB, master.address);
    CHECK(node.status.is_kept && node.status.object_extents == 10);
    stop(&master, &node);
}

#define RUN(...)                                                                                   \
    do {                                                                                           \
        fprintf(stderr, "%s\n", #__VA_ARGS__);                                                     \
        __VA_ARGS__;                                                                               \
    } while (0)

int main(void) {
    RUN(test_objects_and_notes_are_found_again());
    RUN(test_another_size());
    RUN(test_a_damaged_header());
    RUN(test_views_outlive_the_server());
    RUN(test_a_damaged_table_of_views());
    RUN(test_what_another_cluster_put_is_of_no_use());
    RUN(test_who_is_of_another_cluster_is_refused());
    RUN(test_a_start_that_fails_leaves_everything());
    return 0;
}
