// sources: store/src/*.c transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// flags of store/src: -DST_TEST_STEPS
// flags: -Wl,--wrap=st_view_process_died
// timeout: 180
/* The store server over its frames: views, and copies between servers. */
#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>

#include "st_kit.h"

/* A node, its master, and a client on the same host that may write. */
typedef struct held {
    master master;
    node node;
    client client;
    uint8_t bytes[64]; /* of the object of page 3 and version 1 */
} held;

static void held_open(held *on) {
    start(&on->master, &on->node);
    client_open(&on->client, &on->node, true, SESSION, EPOCH, MS_RIGHT_WRITE);
}

static void held_put(held *on) {
    fill(on->bytes, sizeof on->bytes, 1);
    put put = {.page = 3,
               .page_count = 1,
               .version = version_of(1),
               .bytes = on->bytes,
               .length = sizeof on->bytes};
    CHECK_STATUS(client_put(&on->client, &put), MS_OK);
}

/* The master gives its extent free. */
static void held_free(held *on) {
    ms_free_item item = free_item(3, 1, version_of(1), 0);
    master_free(&on->master, EPOCH, on->node.status.incarnation, &item, 1);
}

static void held_close(held *on) {
    client_close(&on->client);
    stop(&on->master, &on->node);
}

static void test_views(void) {
    held on;
    client remote;
    held_open(&on);
    client_open(&remote, &on.node, false, 0, 0, MS_RIGHT_READ);
    held_put(&on);
    CHECK_STATUS(client_view(&on.client, MS_VIEW_OPEN, 3, version_of(2)), MS_GONE);
    CHECK_STATUS(client_view(&remote, MS_VIEW_OPEN, 3, version_of(1)), MS_REFUSED);
    CHECK_STATUS(client_view(&on.client, MS_VIEW_OPEN, 3, version_of(1)), MS_OK);
    CHECK_STATUS(client_view(&on.client, MS_VIEW_OPEN, 3, version_of(1)), MS_OK);
    CHECK(node_counter(&on.node, "views") == 2);
    te_mapping mapping;
    CHECK_STATUS(te_attach(on.client.channel, 0, in_seconds(10), &mapping), MS_OK);
    const uint8_t *seen = mapping.payload + 3 * 4096;
    CHECK(mapping.words[3] == ms_word(version_of(1), 1) && memcmp(seen, on.bytes, 64) == 0);

    held_free(&on);
    master_expect_item(&on.master, MS_CLEARED, 3, version_of(1));
    CHECK(mapping.words[3] == ms_word(version_of(1), 0));
    CHECK_STATUS(client_view(&on.client, MS_VIEW_OPEN, 3, version_of(1)), MS_GONE);
    CHECK_STATUS(client_view(&on.client, MS_VIEW_CLOSE, 3, version_of(1)), MS_OK);
    CHECK(master_take(&on.master, MS_FREED, 300) == NULL);
    CHECK(memcmp(seen, on.bytes, 64) == 0); /* the bytes stay under an open view */
    held_free(&on);                         /* repeated: the same answer */
    master_expect_item(&on.master, MS_CLEARED, 3, version_of(1));
    CHECK_STATUS(client_view(&on.client, MS_VIEW_CLOSE, 3, version_of(1)), MS_OK);
    master_expect_item(&on.master, MS_FREED, 3, version_of(1));
    CHECK_STATUS(client_view(&on.client, MS_VIEW_CLOSE, 3, version_of(1)), MS_NOT_FOUND);
    CHECK(node_counter(&on.node, "views") == 0 && node_counter(&on.node, "view_bytes") == 0);
    client_close(&remote);
    held_close(&on);
}

/* A client that does not know whether one was opened closes it and no other. */
static void test_a_close_ends_the_view_of_its_tag(void) {
    held on;
    held_open(&on);
    held_put(&on);
    for (uint16_t tag = 7; tag <= 9; tag++)
        CHECK_STATUS(client_view_tagged(&on.client, MS_VIEW_OPEN, 3, version_of(1), tag), MS_OK);
    CHECK_STATUS(client_view_tagged(&on.client, MS_VIEW_CLOSE, 3, version_of(1), 10), MS_NOT_FOUND);
    CHECK(node_counter(&on.node, "views") == 3);
    CHECK_STATUS(client_view_tagged(&on.client, MS_VIEW_CLOSE, 3, version_of(1), 8), MS_OK);
    CHECK_STATUS(client_view_tagged(&on.client, MS_VIEW_CLOSE, 3, version_of(1), 8), MS_NOT_FOUND);
    CHECK_STATUS(client_view_tagged(&on.client, MS_VIEW_CLOSE, 3, version_of(1), 9), MS_OK);
    CHECK_STATUS(client_view_tagged(&on.client, MS_VIEW_CLOSE, 3, version_of(1), 7), MS_OK);
    CHECK(node_counter(&on.node, "views") == 0);
    held_close(&on);
}

/* ---- connections that end while the server opens a view --------------------------------------------------- */

static struct {
    const char *step;
    te_connection *connection;
    atomic_bool has_left; /* the server's thread has done with it */
} leaving;

/* On the server's thread: what follows this step follows the end of the connection. */
static void leave_at_step(const char *name) {
    if (leaving.step == NULL || strcmp(name, leaving.step) != 0)
        return;
    leaving.step = NULL;
    te_connection_end(leaving.connection);
    atomic_store(&leaving.has_left, true);
}

static void send_view_open(client *client, uint8_t kind, uint32_t page, uint64_t version) {
    struct {
        uint32_t count, zero;
        ms_view_item item;
    } list = {.count = 1, .item = {.version = version, .tag = 1, .page = page}};
    struct iovec body = {&list, sizeof list};
    te_connection *connection;
    CHECK_STATUS(te_checkout(client->channel, in_seconds(10), &connection), MS_OK);
    leaving.connection = connection;
    CHECK_STATUS(te_send(connection, kind, MS_VIEW_OPEN, 0, te_next_request(connection), 10000,
                         &body, 1, NULL, 0, in_seconds(10)),
                 MS_OK);
}

/* Whether the answer came. */
static bool receive_view_open(void) {
    uint8_t answer[64];
    te_reply reply = {.body = answer, .body_size = sizeof answer};
    ms_status status = te_receive(leaving.connection, &reply, in_seconds(10));
    CHECK(status == MS_OK || status == MS_UNAVAILABLE);
    te_checkin(leaving.connection, status == MS_OK);
    return status == MS_OK;
}

/* A client whose connection ends before the answer never learns of the view, and may close and live on. */
static void test_a_view_is_not_kept_for_a_connection_that_has_ended(void) {
    static const char *const steps[] = {"view: asked for", "view: before it counts",
                                        "view: before the answer"};
    for (size_t at = 0; at < sizeof steps / sizeof steps[0]; at++) {
        held on;
        client reader;
        held_open(&on);
        held_put(&on);
        client_open(&reader, &on.node, true, 0, 0, MS_RIGHT_READ);
        leaving.step = steps[at];
        atomic_store(&leaving.has_left, false);
        on_step = leave_at_step;
        send_view_open(&reader, MS_REQUEST, 3, version_of(1));
        for (int64_t end = in_seconds(10); !atomic_load(&leaving.has_left);) {
            CHECK(te_now_ns() < end);
            usleep(1000);
        }
        CHECK(!receive_view_open());
        on_step = NULL;
        CHECK(leaving.step == NULL); /* it was reached */
        held_free(&on);
        master_expect_item(&on.master, MS_FREED, 3, version_of(1));
        CHECK(node_counter(&on.node, "views") == 0 && node_counter(&on.node, "view_bytes") == 0);
        client_close(&reader);
        held_close(&on);
    }
}

/* One that has its answer stays, also when the connection ends: its client may end it over another one. */
static void test_a_view_that_is_answered_outlives_its_connection(void) {
    held on;
    held_open(&on);
    held_put(&on);
    send_view_open(&on.client, MS_REQUEST, 3, version_of(1));
    int which;
    CHECK_STATUS(te_wait_either(leaving.connection, leaving.connection, &which, in_seconds(10)),
                 MS_OK);
    te_connection_end(leaving.connection); /* what has come before is there */
    CHECK(receive_view_open());
    held_free(&on);
    master_expect_item(&on.master, MS_CLEARED, 3, version_of(1));
    CHECK(master_take(&on.master, MS_FREED, 300) == NULL);
    CHECK(node_counter(&on.node, "views") == 1);
    CHECK_STATUS(client_view_tagged(&on.client, MS_VIEW_CLOSE, 3, version_of(1), 1), MS_OK);
    master_expect_item(&on.master, MS_FREED, 3, version_of(1));
    held_close(&on);
}

/* Without an answer nobody could know of the view; of so many the answer could not be given at once. */
static void test_views_that_cannot_be_answered_are_not_opened(void) {
    held on;
    held_open(&on);
    held_put(&on);
    send_view_open(&on.client, MS_ONEWAY, 3, version_of(1));
    te_checkin(leaving.connection, true);
    static uint8_t body[8 + (MS_VIEWS_MAX + 1) * sizeof(ms_view_item)],
        answer[8 + MS_VIEWS_MAX * sizeof(uint32_t)];
    for (uint32_t count = MS_VIEWS_MAX; count <= MS_VIEWS_MAX + 1; count++) {
        memset(body, 0, sizeof body);
        memcpy(body, &count, sizeof count);
        struct iovec part = {body, 8 + count * sizeof(ms_view_item)};
        te_reply reply = {.body = answer, .body_size = sizeof answer};
        CHECK_STATUS(te_call(on.client.channel, MS_VIEW_OPEN, 0, &part, 1, &reply, in_seconds(10)),
                     MS_OK);
        CHECK(reply.header.status == (count > MS_VIEWS_MAX ? MS_BAD_REQUEST : MS_OK));
    }
    CHECK(node_counter(&on.node, "views") == 0);
    held_close(&on);
}

static void test_views_end_with_their_process(void) {
    held on;
    held_open(&on);
    uint8_t byte = 1;
    for (uint32_t page = 1; page <= 300; page++) {
        put put = {.page = page,
                   .page_count = 1,
                   .version = version_of(page),
                   .bytes = &byte,
                   .length = 1};
        CHECK_STATUS(client_put(&on.client, &put), MS_OK);
    }
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        /* Only system calls and a client of its own: the parent's threads are not here. */
        client mine;
        client_open(&mine, &on.node, true, 0, 0, MS_RIGHT_READ);
        for (uint32_t page = 1; page <= 300; page++)
            CHECK_STATUS(client_view(&mine, MS_VIEW_OPEN, page, version_of(page)), MS_OK);
        CHECK(write(ready[1], "x", 1) == 1);
        for (;;)
            pause();
    }
    char sign;
    CHECK(read(ready[0], &sign, 1) == 1);
    CHECK(node_counter(&on.node, "views") == 300);
    ms_free_item item = free_item(2, 1, version_of(2), 0);
    master_free(&on.master, EPOCH, on.node.status.incarnation, &item, 1);
    master_expect_item(&on.master, MS_CLEARED, 2, version_of(2));
    kill(child, SIGKILL);
    master_expect_item(&on.master, MS_FREED, 2, version_of(2));
    int64_t deadline_ns = in_seconds(10);
    while (node_counter(&on.node, "views") != 0)
        CHECK(te_now_ns() < deadline_ns);
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    close(ready[0]);
    close(ready[1]);
    held_close(&on);
}

/* ---- a process whose number is taken again ---------------------------------------------------------------- */

/* The control thread, before it ends a dead process's views. */
static struct {
    atomic_bool is_on, has_come;
} hold;

void __real_st_view_process_died(st_server *server, uint32_t pid);
void __wrap_st_view_process_died(st_server *server, uint32_t pid);

void __wrap_st_view_process_died(st_server *server, uint32_t pid) {
    atomic_store(&hold.has_come, true);
    while (atomic_load(&hold.is_on))
        usleep(1000);
    __real_st_view_process_died(server, pid);
}

#define NO_PID UINT32_MAX /* no status: the number could not be had */

static void tell(int pipe_end, uint32_t status) {
    CHECK(write(pipe_end, &status, sizeof status) == sizeof status);
}

static uint32_t hear(int pipe_end) {
    uint32_t status;
    struct pollfd waited = {.fd = pipe_end, .events = POLLIN};
    CHECK(poll(&waited, 1, 10000) == 1);
    CHECK(read(pipe_end, &status, sizeof status) == sizeof status);
    return status;
}

static pid_t fork_mortal(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    return child;
}

/* Forks a process with that number, as clear as the kernel gives it; -1: not allowed, or it is somebody else's. */
static pid_t fork_as(pid_t wanted) {
    for (int attempt = 0; attempt < 1000; attempt++) {
        char before[16];
        int length = snprintf(before, sizeof before, "%d", (int)wanted - 1);
        int last = open("/proc/sys/kernel/ns_last_pid", O_WRONLY | O_CLOEXEC);
        bool is_set = last >= 0 && write(last, before, (size_t)length) == length;
        if (last >= 0)
            close(last);
        if (!is_set)
            return -1;
        pid_t child = fork_mortal();
        if (child == 0 && getpid() != wanted)
            _exit(0); /* another process was faster */
        if (child == 0 || child == wanted)
            return child;
        CHECK(waitpid(child, NULL, 0) == child);
    }
    return -1;
}

/* Both viewers, one after the other.  In a process of its own, so that none has the server's descriptors of the other. */
static void view_twice(const node *node, int commands, int statuses) {
    pid_t first = fork_mortal();
    if (first == 0) {
        client mine;
        client_open(&mine, node, true, 0, 0, MS_RIGHT_READ);
        tell(statuses, client_view(&mine, MS_VIEW_OPEN, 3, version_of(1)));
        for (;;)
            pause();
    }
    hear(commands);
    kill(first, SIGKILL);
    CHECK(waitpid(first, NULL, 0) == first);
    pid_t second = fork_as(first);
    if (second == 0) {
        client mine;
        client_open(&mine, node, true, 0, 0, MS_RIGHT_READ);
        for (;;) {
            tell(statuses, client_view(&mine, MS_VIEW_OPEN, 3, version_of(1)));
            hear(commands);
        }
    }
    if (second < 0)
        tell(statuses, NO_PID);
    for (;;)
        pause();
}

static void wait_for_views(node *node, uint64_t count) {
    int64_t deadline_ns = in_seconds(10);
    while (node_counter(node, "views") != count) {
        CHECK(te_now_ns() < deadline_ns);
        usleep(1000);
    }
}

/* The server has not heard of the first one's end yet when the second asks. */
static void test_views_of_a_number_that_was_taken_again_do_not_end_with_the_first_ones(void) {
    held on;
    int commands[2], statuses[2];
    held_open(&on);
    held_put(&on);
    CHECK(pipe(commands) == 0 && pipe(statuses) == 0);
    pid_t viewers = fork_mortal();
    if (viewers == 0) {
        close(commands[1]);
        close(statuses[0]);
        view_twice(&on.node, commands[0], statuses[1]);
    }
    close(commands[0]);
    close(statuses[1]);
    CHECK_STATUS(hear(statuses[0]), MS_OK);
    CHECK(node_counter(&on.node, "views") == 1);
    atomic_store(&hold.has_come, false);
    atomic_store(&hold.is_on, true);
    tell(commands[1], 0);
    uint32_t status = hear(statuses[0]);
    int64_t deadline_ns = in_seconds(10);
    while (!atomic_load(&hold.has_come))
        CHECK(te_now_ns() < deadline_ns);
    if (status == NO_PID) {
        fprintf(stderr, "not tried: to take a process's number again takes root, and a writable "
                        "/proc/sys/kernel/ns_last_pid\n");
        CHECK(getenv("MOONCAKE_STORE_NO_SKIP") == NULL);
        atomic_store(&hold.is_on, false);
    } else {
        CHECK_STATUS(status, MS_UNAVAILABLE); /* it reads a copy for this moment */
        CHECK(node_counter(&on.node, "views") == 1);
        atomic_store(&hold.is_on, false);
        wait_for_views(&on.node, 0);
        tell(commands[1], 0);
        CHECK_STATUS(hear(statuses[0]), MS_OK);
        CHECK(node_counter(&on.node, "views") == 1);
    }
    kill(viewers, SIGKILL);
    CHECK(waitpid(viewers, NULL, 0) == viewers);
    wait_for_views(&on.node, 0);
    close(commands[1]);
    close(statuses[0]);
    held_close(&on);
}

static void test_views_have_a_quota(void) {
    held on;
    held_open(&on);
    static uint8_t bytes[3 * MIB];
    for (uint32_t at = 0; at < 2; at++) {
        put put = {.page = at * 768,
                   .page_count = 768,
                   .version = version_of(1 + at),
                   .bytes = bytes,
                   .length = sizeof bytes};
        CHECK_STATUS(client_put(&on.client, &put), MS_OK);
    }
    CHECK_STATUS(client_view(&on.client, MS_VIEW_OPEN, 0, version_of(1)), MS_OK);
    CHECK_STATUS(client_view(&on.client, MS_VIEW_OPEN, 768, version_of(2)),
                 MS_LIMIT); /* half of 8 MiB */
    CHECK_STATUS(client_view(&on.client, MS_VIEW_CLOSE, 0, version_of(1)), MS_OK);
    CHECK_STATUS(client_view(&on.client, MS_VIEW_OPEN, 768, version_of(2)), MS_OK);
    held_close(&on);
}

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

int main(void) {
    RUN(test_views());
    RUN(test_a_close_ends_the_view_of_its_tag());
    RUN(test_a_view_is_not_kept_for_a_connection_that_has_ended());
    RUN(test_a_view_that_is_answered_outlives_its_connection());
    RUN(test_views_that_cannot_be_answered_are_not_opened());
    RUN(test_views_end_with_their_process());
    RUN(test_views_of_a_number_that_was_taken_again_do_not_end_with_the_first_ones());
    RUN(test_views_have_a_quota());
    RUN(test_copies_between_servers());
    return 0;
}
