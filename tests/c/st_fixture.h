/* A store server of its own folder, a master's end of its connection, and clients: all over the real engine.
 *
 * The master here is a double that says what a test makes it say, in whatever order: also what a right master
 * never would. */
#ifndef ST_FIXTURE_H
#define ST_FIXTURE_H

#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ms_crc32c.h"
#include "ms_frame.h"
#include "pause.h"
#include "st.h"
#include "te.h"

#define SECONDS INT64_C(1000000000)
#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)
#define CHECK_STATUS(expression, wanted)                                                           \
    do {                                                                                           \
        ms_status status_ = (ms_status)(expression);                                               \
        if (status_ != (wanted)) {                                                                 \
            fprintf(stderr, "%s:%d: %s is %s, not %s\n", __FILE__, __LINE__, #expression,          \
                    ms_status_name(status_), ms_status_name(wanted));                              \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static inline int64_t in_seconds(int seconds) { return te_now_ns() + seconds * SECONDS; }

/* ---- the master's double --------------------------------------------------------------------------- */

typedef struct frame {
    struct frame *next;
    ms_header header;
    uint8_t body[];
} frame;

typedef struct master {
    te_engine *engine;
    uint16_t port;
    char address[64];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    frame *first, *last; /* what came, in order */
    te_peer server;      /* connected now; 0 = none */
    te_peer servers[8];  /* by order of arrival */
    uint32_t server_count;
    ms_server_info infos[8];
    char addresses[8][256];
    uint32_t connections;
    uint64_t cluster; /* told in HELLO; 0 = not told */
    bool
        is_new; /* said HELLO; nothing may be sent before its answer, which goes out after on_hello */
} master;

static inline ms_status master_on_hello(void *context, const te_request *request,
                                        uint8_t answer[4096], uint32_t *answer_length,
                                        void **peer_context, char *error) {
    master *self = context;
    ms_hello_view hello;
    (void)error;
    CHECK(ms_read_hello(request->body, request->header->body_length, &hello));
    ms_writer out = ms_writer_growable(4096);
    ms_hello_answer fixed = {.version = 1, .session_timeout_ms = 10000, .cluster = self->cluster};
    uint8_t secret[MS_SECRET_BYTES] = {0};
    MS_WRITER_STRUCT(&out, &fixed);
    ms_writer_string(&out, "double", 6);
    ms_writer_string(&out, secret, sizeof secret);
    CHECK(out.status == MS_OK);
    memcpy(answer, out.data, out.length);
    *answer_length = (uint32_t)out.length;
    ms_writer_close(&out);
    pthread_mutex_lock(&self->lock);
    if (hello.head.role == MS_ROLE_SERVER) {
        *peer_context = self;
        self->server = request->peer;
        CHECK(self->server_count < 8);
        self->servers[self->server_count] = request->peer;
        self->infos[self->server_count] = hello.server.head;
        self->infos[self->server_count].server = self->server_count;
        snprintf(self->addresses[self->server_count], 256, "%.*s",
                 (int)hello.server.addresses.length, hello.server.addresses.data);
        self->server_count++;
        self->is_new = true;
    }
    pthread_mutex_unlock(&self->lock);
    return MS_OK;
}

/* MEMBERS for whoever asks; the rest is kept. */
static inline void master_on_request(void *context, const te_request *request) {
    master *self = context;
    if (request->header->method == MS_MEMBERS) {
        ms_writer out = ms_writer_growable(1u << 20);
        pthread_mutex_lock(&self->lock);
        ms_writer_u32(&out, 1);
        ms_writer_u32(&out, self->server_count);
        for (uint32_t at = 0; at < self->server_count; at++) {
            ms_server_info info = self->infos[at];
            info.segment_count = 0;
            ms_writer_server(&out, &info, NULL, "node", "host", "", self->addresses[at]);
        }
        pthread_mutex_unlock(&self->lock);
        struct iovec body = {out.data, out.length};
        te_answer(self->engine, request->peer, request->header, MS_OK, &body, 1, NULL, 0);
        ms_writer_close(&out);
        return;
    }
    if (request->header->method == MS_SERVER_STATS) {
        CHECK(ms_body_valid(MS_ONEWAY, MS_SERVER_STATS, 0, request->body,
                            request->header->body_length));
        return;
    }
    frame *copy = malloc(sizeof *copy + request->header->body_length);
    CHECK(copy != NULL);
    copy->next = NULL;
    copy->header = *request->header;
    memcpy(copy->body, request->body, request->header->body_length);
    CHECK(ms_body_valid(copy->header.kind, copy->header.method, copy->header.status, copy->body,
                        copy->header.body_length));
    pthread_mutex_lock(&self->lock);
    if (self->last != NULL)
        self->last->next = copy;
    else
        self->first = copy;
    self->last = copy;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

static inline void master_on_close(void *context, te_peer peer, void *peer_context,
                                   const char *reason) {
    master *self = context;
    (void)reason;
    if (peer_context == NULL)
        return;
    pthread_mutex_lock(&self->lock);
    if (self->server == peer)
        self->server = 0;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

static inline void master_on_tick(void *context, int64_t now_ns) {
    master *self = context;
    (void)now_ns;
    pthread_mutex_lock(&self->lock);
    if (self->is_new) {
        self->is_new = false;
        self->connections = self->server_count;
        pthread_cond_broadcast(&self->changed);
    }
    pthread_mutex_unlock(&self->lock);
}

static inline void master_open(master *self) {
    *self = (master){0};
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->changed, &monotonic);
    te_engine_config config;
    te_engine_config_default(&config);
    config.io_threads = 1;
    char error[TE_ERROR_BYTES];
    CHECK_STATUS(te_engine_open(&config, &self->engine), MS_OK);
    te_service service = {.context = self,
                          .on_hello = master_on_hello,
                          .on_request = master_on_request,
                          .on_answer = master_on_request,
                          .on_close = master_on_close,
                          .on_tick = master_on_tick,
                          .tick_ms = 5};
    te_serve(self->engine, &service);
    CHECK_STATUS(te_listen_tcp(self->engine, "127.0.0.1", 0, &self->port, error), MS_OK);
    snprintf(self->address, sizeof self->address, "127.0.0.1:%u", self->port);
}

static inline void master_close(master *self) {
    te_engine_close(self->engine);
    while (self->first != NULL) {
        frame *next = self->first->next;
        free(self->first);
        self->first = next;
    }
    pthread_mutex_destroy(&self->lock);
    pthread_cond_destroy(&self->changed);
}

static inline struct timespec timespec_of(int64_t ns) {
    return (struct timespec){.tv_sec = ns / SECONDS, .tv_nsec = ns % SECONDS};
}

/* Waits until `count` connections of servers have been made in all. */
static inline void master_wait_connections(master *self, uint32_t count) {
    struct timespec until = timespec_of(in_seconds(20));
    pthread_mutex_lock(&self->lock);
    while (self->connections < count || self->server == 0)
        CHECK(pthread_cond_timedwait(&self->changed, &self->lock, &until) == 0);
    pthread_mutex_unlock(&self->lock);
}

/* The oldest frame of that method, to be freed; NULL when none comes within wait_ms. */
static inline frame *master_take(master *self, uint16_t method, int wait_ms) {
    struct timespec until = timespec_of(te_now_ns() + wait_ms * INT64_C(1000000));
    pthread_mutex_lock(&self->lock);
    for (;;) {
        frame *before = NULL;
        for (frame *at = self->first; at != NULL; before = at, at = at->next) {
            if (at->header.method != method)
                continue;
            if (before != NULL)
                before->next = at->next;
            else
                self->first = at->next;
            if (self->last == at)
                self->last = before;
            pthread_mutex_unlock(&self->lock);
            return at;
        }
        if (pthread_cond_timedwait(&self->changed, &self->lock, &until) != 0) {
            pthread_mutex_unlock(&self->lock);
            return NULL;
        }
    }
}

static inline frame *master_expect(master *self, uint16_t method) {
    frame *found = master_take(self, method, 20000);
    if (found == NULL)
        fprintf(stderr, "no frame 0x%02x came\n", method);
    CHECK(found != NULL);
    return found;
}

static inline void master_push(master *self, uint8_t kind, uint16_t method, uint64_t request,
                               const void *body, size_t length) {
    struct iovec part = {(void *)(uintptr_t)body, length};
    pthread_mutex_lock(&self->lock);
    te_peer server = self->server;
    pthread_mutex_unlock(&self->lock);
    CHECK_STATUS(te_push(self->engine, server, kind, method, 0, request, &part, 1), MS_OK);
}

/* Items of an inventory, as they came. */
typedef struct inventory {
    ms_inventory_item items[4096];
    uint32_t count, frames;
} inventory;

/* ADOPT by the leader of `epoch`; gives the inventory.  The status of the answer to ADOPT.  On a machine that is
 * busy a dial may time out and be made again, so ADOPT goes out again too: executing it twice changes nothing. */
static inline ms_status master_adopt(master *self, uint32_t epoch, inventory *found) {
    ms_adopt adopt = {.epoch = epoch, .server = 0};
    frame *answer = NULL;
    for (int attempt = 0; attempt < 5 && answer == NULL; attempt++) {
        master_push(self, MS_REQUEST, MS_ADOPT, 1, &adopt, sizeof adopt);
        answer = master_take(self, MS_ADOPT, 5000);
    }
    CHECK(answer != NULL);
    ms_status status = (ms_status)answer->header.status;
    free(answer);
    if (found != NULL)
        found->count = found->frames = 0;
    for (bool is_last = status != MS_OK; !is_last;) {
        frame *part = master_expect(self, MS_INVENTORY);
        is_last = (part->header.flags & MS_FLAG_LAST) != 0;
        if (found != NULL)
            found->frames++;
        ms_reader reader = ms_reader_of(part->body, part->header.body_length);
        ms_inventory_item_view view;
        uint32_t count = ms_reader_list(&reader, sizeof(ms_inventory_item));
        for (uint32_t at = 0; at < count; at++) {
            CHECK(ms_reader_inventory_item(&reader, &view));
            if (found != NULL && found->count < 4096)
                found->items[found->count++] = view.head;
        }
        CHECK(ms_reader_is_done(&reader));
        free(part);
    }
    return status;
}

static inline void master_free(master *self, uint32_t epoch, uint32_t incarnation,
                               const ms_free_item *items, uint32_t count) {
    uint8_t body[4096];
    ms_writer out = ms_writer_fixed(body, sizeof body);
    ms_writer_u32(&out, epoch);
    ms_writer_u32(&out, incarnation);
    ms_writer_array(&out, items, count, sizeof *items);
    CHECK(out.status == MS_OK);
    master_push(self, MS_ONEWAY, MS_FREE, 0, out.data, out.length);
}

static inline ms_free_item free_item(uint32_t page, uint32_t page_count, uint64_t version,
                                     uint64_t session) {
    return (ms_free_item){
        .version = version, .session = session, .page = page, .page_count = page_count};
}

/* FREED or CLEARED of exactly that extent comes next. */
static inline void master_expect_item(master *self, uint16_t method, uint32_t page,
                                      uint64_t version) {
    frame *found = master_expect(self, method);
    ms_free_view view;
    CHECK(ms_read_free(found->body, found->header.body_length, &view));
    CHECK(view.items.count == 1);
    ms_free_item item;
    MS_ARRAY_GET(view.items, 0, &item);
    CHECK(item.page == page && item.version == version);
    free(found);
}

/* ---- the server ----------------------------------------------------------------------------------------- */

typedef struct node {
    st_server *server;
    char folder[64];
    char unix_path[108];
    char address[64];
    st_status status;
    bool keeps_files; /* for the next start */
    const char *name, *token;
    const char *told_addresses; /* to clients; NULL: where it listens */
} node;

static inline void node_folder(node *self) {
    self->keeps_files = false;
    self->name = "node";
    self->token = "";
    self->told_addresses = NULL;
    snprintf(self->folder, sizeof self->folder, "/dev/shm/st-test-XXXXXX");
    CHECK(mkdtemp(self->folder) != NULL);
    snprintf(self->unix_path, sizeof self->unix_path, "%s/socket", self->folder);
}

/* Its status; `error` says why not. */
static inline ms_status node_try(node *self, uint64_t size_bytes, const char *master_address,
                                 char error[ST_ERROR_BYTES]) {
    st_config config;
    st_config_default(&config);
    config.segment_dir = self->folder;
    config.unix_path = self->unix_path;
    config.name = self->name;
    config.token = self->token;
    config.host = "host";
    config.addresses = self->told_addresses;
    config.size_bytes = size_bytes;
    config.ready_bytes = size_bytes;
    config.master = master_address;
    config.keep_files = self->keeps_files;
    return st_open(&config, &self->server, error);
}

static inline void node_start(node *self, uint64_t size_bytes, const char *master_address) {
    char error[ST_ERROR_BYTES] = "";
    if (node_try(self, size_bytes, master_address, error) != MS_OK) {
        fprintf(stderr, "%s\n", error);
        abort();
    }
    st_get_status(self->server, &self->status);
    snprintf(self->address, sizeof self->address, "127.0.0.1:%u", self->status.port);
}

static inline void node_open(node *self, uint64_t size_bytes, const char *master_address) {
    node_folder(self);
    node_start(self, size_bytes, master_address);
}

/* Stops it; a new start finds what is left of its folder. */
static inline void node_stop(node *self) {
    st_close(self->server);
    self->server = NULL;
}

static inline void node_remove_folder(const node *self) {
    static const char *const names[] = {"header",    "lock",  "socket",    "words-0",
                                        "payload-0", "views", "geometry-0"};
    char path[192];
    for (size_t at = 0; at < sizeof names / sizeof names[0]; at++) {
        snprintf(path, sizeof path, "%s/%s", self->folder, names[at]);
        unlink(path);
    }
    CHECK(rmdir(self->folder) == 0); /* nothing else may be left behind */
}

static inline void node_close(node *self) {
    node_stop(self);
    node_remove_folder(self);
}

/* Prints what the server has to say; for tests that fail. */
static inline void node_print_log(node *self) {
    char line[512];
    int severity;
    while (st_next_log(self->server, line, sizeof line, &severity) != 0)
        fprintf(stderr, "[%d] %s\n", severity, line);
}

/* Takes lines out of the log, up to one that holds `text`. */
static inline bool node_has_said(node *self, const char *text) {
    char line[512];
    int severity;
    while (st_next_log(self->server, line, sizeof line, &severity) != 0)
        if (strstr(line, text) != NULL)
            return true;
    return false;
}

static inline uint64_t node_counter(node *self, const char *name) {
    for (size_t id = 0; st_counter_name(id) != NULL; id++) {
        if (strcmp(st_counter_name(id), name) == 0)
            return st_counter(self->server, id);
    }
    CHECK(!"no such counter");
    return 0;
}

/* Until it is no longer what it was. */
static inline void node_wait_counter(node *self, const char *name, uint64_t before) {
    int64_t deadline_ns = in_seconds(30);
    while (node_counter(self, name) == before) {
        CHECK(te_now_ns() < deadline_ns);
        pause_ms(1);
    }
}

/* Adopted, as seen from inside: INVENTORY has gone out and grants may come. */
static inline void node_wait_adopted(node *self) {
    int64_t deadline_ns = in_seconds(20);
    do {
        CHECK(te_now_ns() < deadline_ns);
        pause_ms(1);
        st_get_status(self->server, &self->status);
    } while (!self->status.is_adopted);
}

/* ---- clients ---------------------------------------------------------------------------------------------- */

typedef struct client {
    te_engine *engine;
    te_channel *channel;
} client;

static inline te_engine *client_engine(void) {
    te_engine_config config;
    te_engine *engine;
    te_engine_config_default(&config);
    config.io_threads = 0;
    CHECK_STATUS(te_engine_open(&config, &engine), MS_OK);
    return engine;
}

static inline size_t hello_write(uint8_t *memory, size_t size, uint64_t session, uint32_t epoch,
                                 uint32_t incarnation, uint8_t right) {
    ms_hello hello = {.version_oldest = 1,
                      .version_newest = 1,
                      .role = MS_ROLE_CLIENT,
                      .right = right,
                      .incarnation = incarnation,
                      .session = session,
                      .epoch = epoch,
                      .pid = (uint32_t)getpid()};
    ms_writer out = ms_writer_fixed(memory, size);
    MS_WRITER_STRUCT(&out, &hello);
    ms_writer_string(&out, "default", 7);
    ms_writer_string(&out, "", 0);
    ms_writer_string(&out, "test", 4);
    CHECK(out.status == MS_OK);
    return out.length;
}

static inline void client_open(client *self, const node *node, bool is_unix, uint64_t session,
                               uint32_t epoch, uint8_t right) {
    uint8_t hello[512];
    self->engine = client_engine();
    te_channel_config config = {.addresses = node->address,
                                .unix_path = is_unix ? node->unix_path : NULL,
                                .hello = hello,
                                .hello_length = hello_write(hello, sizeof hello, session, epoch,
                                                            node->status.incarnation, right)};
    CHECK_STATUS(te_channel_open(self->engine, &config, &self->channel), MS_OK);
}

static inline void client_close(client *self) {
    te_channel_close(self->channel);
    te_engine_close(self->engine);
}

/* What a put of one extent sends. */
typedef struct put {
    uint32_t page, page_count;
    uint64_t version;
    const void *bytes;
    uint64_t length;
    uint32_t checksum;
    uint8_t flags;
    uint16_t part, part_count;
    uint64_t size; /* 0: length */
    uint64_t number;
} put;

static inline size_t seal_write(uint8_t *memory, size_t size, const put *put) {
    ms_seal seal = {.hash = {put->version, 1},
                    .size = put->size != 0 ? put->size : put->length,
                    .checksum = put->checksum,
                    .part = put->part,
                    .part_count = put->part_count != 0 ? put->part_count : 1,
                    .key_length = 3,
                    .flags = put->flags,
                    .tenant_length = 7,
                    .number = put->number};
    ms_writer out = ms_writer_fixed(memory, size);
    ms_writer_seal(&out, &seal, "default", "key");
    CHECK(out.status == MS_OK);
    return out.length;
}

static inline ms_status client_put_flagged(client *self, const put *put, uint32_t frame_flags) {
    uint8_t seal[256];
    ms_write_item item = {.page = put->page,
                          .page_count = put->page_count,
                          .version = put->version,
                          .length = put->length,
                          .seal_length = (uint32_t)seal_write(seal, sizeof seal, put)};
    uint32_t answered = MS_INTERNAL;
    const void *source = put->bytes;
    ms_status status = te_write(self->channel, &item, &source, 1, seal, item.seal_length,
                                frame_flags, &answered, in_seconds(10));
    return status != MS_OK ? status : (ms_status)answered;
}

static inline ms_status client_put(client *self, const put *put) {
    return client_put_flagged(self, put, 0);
}

/* Bytes without a seal. */
static inline ms_status client_write(client *self, const put *put) {
    ms_write_item item = {.page = put->page,
                          .page_count = put->page_count,
                          .version = put->version,
                          .length = put->length};
    uint32_t answered = MS_INTERNAL;
    const void *source = put->bytes;
    ms_status status =
        te_write(self->channel, &item, &source, 1, NULL, 0, 0, &answered, in_seconds(10));
    return status != MS_OK ? status : (ms_status)answered;
}

/* A guarded read, with the comparison that a client makes. */
static inline ms_status client_read(client *self, uint32_t page, uint64_t version, void *target,
                                    uint64_t length) {
    ms_read_item item = {.flags = 1,
                         .offset = (uint64_t)page * MS_PAGE_SIZE,
                         .length = length,
                         .word = ms_word(version, 1),
                         .guard_page = page};
    ms_read_result result = {.status = MS_INTERNAL};
    ms_status status = te_read(self->channel, &item, &target, 1, &result, in_seconds(10));
    if (status != MS_OK)
        return status;
    if (result.status == MS_OK && result.word != item.word)
        return MS_GONE;
    return (ms_status)result.status;
}

/* VIEW_OPEN or VIEW_CLOSE of one object. */
static inline ms_status client_view_tagged(client *self, uint16_t method, uint32_t page,
                                           uint64_t version, uint16_t tag) {
    uint8_t body[8 + sizeof(ms_view_item)], answer[64];
    ms_view_item item = {.version = version, .tag = tag, .page = page};
    uint32_t list[2] = {1, 0}, answered;
    memcpy(body, list, 8);
    memcpy(body + 8, &item, sizeof item);
    struct iovec part = {body, sizeof body};
    te_reply reply = {.body = answer, .body_size = sizeof answer};
    ms_status status = te_call(self->channel, method, 0, &part, 1, &reply, in_seconds(10));
    if (status != MS_OK)
        return status;
    if (reply.header.status != MS_OK)
        return (ms_status)reply.header.status;
    CHECK(reply.header.body_length == 12);
    memcpy(&answered, answer + 8, sizeof answered);
    return (ms_status)answered;
}

static inline ms_status client_view(client *self, uint16_t method, uint32_t page,
                                    uint64_t version) {
    return client_view_tagged(self, method, page, version, 0);
}

/* A writer that freezes: HELLO, then a WRITE whose payload stops half way. */
static inline int frozen_writer(const node *node, uint32_t epoch, const put *put, uint64_t session,
                                size_t sent_bytes) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons(node->status.port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    uint8_t body[512], answer[4096];
    size_t length =
        hello_write(body, sizeof body, session, epoch, node->status.incarnation, MS_RIGHT_WRITE);
    ms_header header = ms_header_make(1, MS_REQUEST, MS_HELLO, 1);
    header.body_length = (uint32_t)length;
    CHECK(write(fd, &header, sizeof header) == sizeof header &&
          write(fd, body, length) == (ssize_t)length);
    CHECK(read(fd, answer, sizeof answer) > 0);
    ms_write_item item = {.page = put->page,
                          .page_count = put->page_count,
                          .version = put->version,
                          .length = put->length};
    ms_writer out = ms_writer_fixed(body, sizeof body);
    uint8_t seal[256];
    item.seal_length = (uint32_t)seal_write(seal, sizeof seal, put);
    ms_writer_array(&out, &item, 1, sizeof item);
    ms_writer_bytes(&out, seal, item.seal_length);
    header = ms_header_make(1, MS_REQUEST, MS_WRITE, 2);
    header.body_length = (uint32_t)out.length;
    header.payload_length = put->length;
    CHECK(write(fd, &header, sizeof header) == sizeof header);
    CHECK(write(fd, out.data, out.length) == (ssize_t)out.length);
    CHECK(write(fd, put->bytes, sent_bytes) == (ssize_t)sent_bytes);
    return fd;
}

#endif
