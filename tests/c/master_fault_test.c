/* The n-th allocation of the master fails, for every n: whoever asks gets an answer, a refusal or a closed
 * connection, nothing leaks, and the master goes on. */
// sources: master/src/*.c master/src/metadata/*.c transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// flags: -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strndup
// variants: plain address
// timeout: 300
#include "engine_kit.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "ma.h"
#include "ms_frame.h"
#include "ms_hash.h"

#define RUNS_MAX 2000

/* ---- the fault --------------------------------------------------------------------------------- */

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *memory, size_t size);
char *__real_strndup(const char *text, size_t length);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *memory, size_t size);
char *__wrap_strndup(const char *text, size_t length);

static _Atomic int64_t countdown; /* the allocation that fails is the one that makes it 0 */
static _Thread_local bool
    is_main; /* the test itself needs its memory, except while it opens a master */
static _Atomic bool main_too;

static bool fails(void) {
    return (!is_main || main_too) && atomic_load(&countdown) > 0 &&
           atomic_fetch_sub(&countdown, 1) == 1;
}

void *__wrap_malloc(size_t size) { return fails() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) {
    return fails() ? NULL : __real_calloc(count, size);
}
void *__wrap_realloc(void *memory, size_t size) {
    return fails() ? NULL : __real_realloc(memory, size);
}
char *__wrap_strndup(const char *text, size_t length) {
    return fails() ? NULL : __real_strndup(text, length);
}

/* ---- peers on bare sockets, so that only the master allocates elsewhere ----------------------------- */

typedef struct peer {
    int socket;
    int patience_ms; /* an answer whose memory was missing never comes */
    uint64_t requests;
    ms_header header; /* of the frame received last */
    uint8_t body[1 << 16];
} peer;

static void peer_close(peer *self) {
    if (self->socket >= 0)
        close(self->socket);
    self->socket = -1;
}

static bool peer_send(peer *self, uint8_t kind, uint16_t method, uint32_t flags,
                      const ms_writer *body) {
    ms_header header = ms_header_make(MS_WIRE_VERSION, kind, method, ++self->requests);
    header.flags = flags;
    header.body_length = body != NULL ? (uint32_t)body->length : 0;
    if (self->socket < 0 ||
        send(self->socket, &header, sizeof header, MSG_NOSIGNAL) != (ssize_t)sizeof header)
        return false;
    return header.body_length == 0 ||
           send(self->socket, body->data, body->length, MSG_NOSIGNAL) == (ssize_t)body->length;
}

/* False: nothing in time, or closed. */
static bool peer_receive(peer *self) {
    struct timeval limit = {.tv_sec = self->patience_ms / 1000,
                            .tv_usec = self->patience_ms % 1000 * 1000};
    if (self->socket < 0)
        return false;
    setsockopt(self->socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (recv(self->socket, &self->header, sizeof self->header, MSG_WAITALL) !=
        (ssize_t)sizeof self->header)
        return false;
    uint64_t rest = ms_header_rest(&self->header);
    CHECK(rest <= sizeof self->body);
    return rest == 0 || recv(self->socket, self->body, rest, MSG_WAITALL) == (ssize_t)rest;
}

/* An answer, whatever it says; false: there is none. */
static bool ask(peer *self, uint16_t method, const ms_writer *body) {
    if (!peer_send(self, MS_REQUEST, method, 0, body))
        return false;
    uint64_t request = self->requests;
    while (peer_receive(self))
        if (self->header.kind == MS_ANSWER && self->header.request == request)
            return true;
    return false;
}

static bool dial(peer *self, uint16_t port, int patience_ms, const ms_writer *hello) {
    *self = (peer){.patience_ms = patience_ms,
                   .socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    CHECK(connect(self->socket, (struct sockaddr *)&address, sizeof address) == 0);
    return ask(self, MS_HELLO, hello) && self->header.status == MS_OK;
}

static void write_hello(ms_writer *out, uint8_t role) {
    ms_writer_reset(out);
    ms_hello hello = {.version_oldest = 1, .version_newest = 1, .role = role};
    MS_WRITER_STRUCT(out, &hello);
    ms_writer_string(out, "default", 7);
    ms_writer_string(out, "", 0);
    ms_writer_string(out, "test", 4);
    if (role == MS_ROLE_SERVER) {
        ms_server_info info = {.node_id = {1}, .incarnation = 1, .segment_count = 1};
        ms_segment_info segment = {.page_count = 512, .page_count_ready = 512};
        ms_writer_server(out, &info, &segment, "node", "host", "", "127.0.0.1:1");
    }
}

/* Waits for ADOPT and tells an empty inventory. */
static bool join(peer *store, uint16_t port, ms_writer *out) {
    write_hello(out, MS_ROLE_SERVER);
    if (!dial(store, port, 150, out) || !peer_receive(store) || store->header.method != MS_ADOPT)
        return false;
    ms_writer_reset(out);
    ms_writer_list(out, 0);
    return peer_send(store, MS_ONEWAY, MS_INVENTORY, MS_FLAG_LAST, out);
}

/* Answers the next FREE, if one comes. */
static void free_next(peer *store, ms_writer *out) {
    if (!peer_receive(store) || store->header.method != MS_FREE)
        return;
    ms_writer_reset(out);
    ms_writer_bytes(out, store->body, store->header.body_length);
    peer_send(store, MS_ONEWAY, MS_FREED, 0, out);
}

static void write_key(ms_writer *out, const char *key) {
    static const uint8_t secret[MS_SECRET_BYTES];
    ms_key_item item = {.hash = ms_hash_key(secret, "default", 7, key, strlen(key)),
                        .key_length = (uint32_t)strlen(key)};
    MS_WRITER_STRUCT(out, &item);
    ms_writer_padded(out, key, strlen(key));
}

#define OBJECTS 20u

static void put(peer *client, ms_writer *out) {
    static const uint8_t secret[MS_SECRET_BYTES];
    char keys[OBJECTS][16];
    ms_batch head = {.number = 1, .count = OBJECTS};
    ms_writer_reset(out);
    MS_WRITER_STRUCT(out, &head);
    for (uint32_t i = 0; i < OBJECTS; i++) {
        snprintf(keys[i], sizeof keys[i], "key-%u", i);
        ms_put_item item = {.hash = ms_hash_key(secret, "default", 7, keys[i], strlen(keys[i])),
                            .size = 4096,
                            .deadline_ms = 60000,
                            .key_length = (uint16_t)strlen(keys[i]),
                            .replica_count = 1,
                            .replica_count_min = 1};
        MS_WRITER_STRUCT(out, &item);
        ms_writer_padded(out, keys[i], strlen(keys[i]));
    }
    if (!ask(client, MS_PUT_START, out) || client->header.status != MS_OK)
        return;
    ms_reader reader = ms_reader_of(client->body, client->header.body_length);
    CHECK(ms_reader_list(&reader, sizeof(ms_location)) == OBJECTS);
    ms_writer_reset(out);
    head = (ms_batch){.number = 2, .number_done = 1};
    MS_WRITER_STRUCT(out, &head);
    for (uint32_t i = 0; i < OBJECTS; i++) {
        ms_location_view grant;
        CHECK(ms_reader_location(&reader, &grant));
        if (grant.head.status != MS_OK)
            continue;
        ms_end_item end = {.hash = ms_hash_key(secret, "default", 7, keys[i], strlen(keys[i])),
                           .version = grant.head.version,
                           .replica_mask = UINT64_MAX};
        MS_WRITER_STRUCT(out, &end);
        head.count++;
    }
    memcpy(out->data, &head, sizeof head);
    if (ask(client, MS_PUT_END, out))
        ask(client, MS_PUT_END, out); /* a repeat */
}

static void list_and_remove(peer *client, peer *store, ms_writer *out) {
    ms_list list = {.limit = 5, .flags = MS_FLAG_REGEX, .pattern_length = 5};
    ms_writer_reset(out);
    MS_WRITER_STRUCT(out, &list);
    ms_writer_padded(out, "key-1", 5);
    ask(client, MS_LIST, out);
    if (peer_send(client, MS_REQUEST, MS_REMOVE_MATCHING, 0, out)) {
        free_next(store, out);
        peer_receive(client);
    }
    ms_batch head = {.number = 3, .number_done = 2, .count = 2};
    ms_writer_reset(out);
    MS_WRITER_STRUCT(out, &head);
    write_key(out, "key-0");
    write_key(out, "key-2");
    if (peer_send(client, MS_REQUEST, MS_REMOVE, 0, out)) {
        free_next(store, out);
        peer_receive(client);
    }
    ms_annotate annotate = {.fields = MS_ANNOTATE_HARD_PIN, .flags = MS_OBJECT_HARD_PIN};
    ms_writer_reset(out);
    MS_WRITER_STRUCT(out, &annotate);
    write_key(out, "key-3");
    if (peer_send(client, MS_REQUEST, MS_ANNOTATE, 0, out) && peer_receive(store)) {
        ms_header answer = ms_header_make(1, MS_ANSWER, MS_NOTE, store->header.request);
        if (store->header.method == MS_NOTE)
            CHECK(send(store->socket, &answer, sizeof answer, MSG_NOSIGNAL) > 0);
        peer_receive(client);
    }
    static const uint16_t methods[] = {MS_MEMBERS, MS_STATUS, MS_KEEPALIVE, MS_CLOSE_SESSION};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        ask(client, methods[i], NULL);
}

static void serve_a_client(uint16_t port, ms_writer *out) {
    peer *store = calloc(1, sizeof *store), *client = calloc(1, sizeof *client);
    store->socket = client->socket = -1;
    if (join(store, port, out)) {
        usleep(30000); /* a tick: the inventory is in */
        write_hello(out, MS_ROLE_CLIENT);
        if (dial(client, port, 400, out)) {
            put(client, out);
            list_and_remove(client, store, out);
        }
    }
    peer_close(client);
    peer_close(store);
    free(client);
    free(store);
}

/* After the fault: the same master serves somebody else as if nothing had been. */
static void check_it_goes_on(uint16_t port, ms_writer *out) {
    peer *client = calloc(1, sizeof *client);
    write_hello(out, MS_ROLE_CLIENT);
    CHECK(dial(client, port, 20000, out));
    ms_hello_answer_view answer;
    CHECK(ms_read_hello_answer(client->body, client->header.body_length, &answer));
    CHECK(ask(client, MS_MEMBERS, NULL));
    CHECK_STATUS(client->header.status, MS_OK);
    peer_close(client);
    free(client);
}

static bool run_once(int64_t nth, bool while_opening) {
    ma_config config;
    ma_config_default(&config);
    config.epoch = 1;
    config.events_max = 64;
    config.sessions_max = 64;
    char error[TE_ERROR_BYTES] = "";
    ma_master *master = NULL;
    main_too = while_opening;
    countdown = while_opening ? nth : 0;
    ms_status status = ma_master_open(&config, &master, error);
    main_too = false;
    bool has_failed = while_opening && countdown == 0;
    if (status != MS_OK) {
        CHECK(while_opening && has_failed && master == NULL && error[0] != '\0');
        return true;
    }
    uint16_t port;
    countdown = 0;
    CHECK_STATUS(ma_master_listen_tcp(master, "127.0.0.1", 0, &port, error), MS_OK);
    ms_writer out = ms_writer_growable(1 << 16);
    if (!while_opening) {
        countdown = nth;
        serve_a_client(port, &out);
        has_failed = countdown == 0;
        countdown = 0;
    }
    check_it_goes_on(port, &out);
    ms_writer_close(&out);
    ma_master_close(master);
    return has_failed;
}

static void an_allocation_fails_while_it_opens(void) {
    int64_t nth = 1;
    while (nth < RUNS_MAX && run_once(nth, true))
        nth++;
    fprintf(stderr, "  %lld allocations\n", (long long)nth - 1);
    CHECK(nth > 10 && nth < RUNS_MAX);
}

static void an_allocation_fails_while_it_serves(void) {
    int64_t nth = 1;
    while (nth < RUNS_MAX && run_once(nth, false))
        nth++;
    fprintf(stderr, "  %lld allocations\n", (long long)nth - 1);
    CHECK(nth > 30 && nth < RUNS_MAX);
}

int main(int argc, char **argv) {
    is_main = true;
    RUN(an_allocation_fails_while_it_opens);
    RUN(an_allocation_fails_while_it_serves);
    return 0;
}
