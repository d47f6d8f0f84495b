/* The master service in one process with its clients and a store server, for the sanitizers: frames on the I/O
 * thread, metrics and members from another, several clients at once. */
// sources: master/src/*.c master/src/metadata/*.c transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// timeout: 120
#include "engine_kit.h"

#include "ma.h"
#include "ms_frame.h"
#include "ms_hash.h"

#define PAGES 4096u
#define CLIENTS 4
#define ROUNDS 60
#define BATCH 16

/* ---- a store server that keeps no bytes ----------------------------------------------------------- */

typedef struct store_double {
    te_engine *engine;
    te_peer master;
    uint32_t epoch;
    _Atomic uint32_t number;
    _Atomic bool is_adopted;
    _Atomic int frees;
} store_double;

static void store_request(void *context, const te_request *request) {
    store_double *store = context;
    const ms_header *header = request->header;
    if (header->method == MS_ADOPT) {
        ms_adopt adopt;
        memcpy(&adopt, request->body, sizeof adopt);
        store->epoch = adopt.epoch;
        store->number = adopt.server;
        te_answer(store->engine, request->peer, header, MS_OK, NULL, 0, NULL, 0);
        uint32_t empty[2] = {0, 0};
        struct iovec body = {empty, sizeof empty};
        te_push(store->engine, request->peer, MS_ONEWAY, MS_INVENTORY, MS_FLAG_LAST, 0, &body, 1);
        store->is_adopted = true;
    } else if (header->method == MS_FREE) {
        struct iovec body = {(void *)(uintptr_t)request->body, header->body_length};
        te_push(store->engine, request->peer, MS_ONEWAY, MS_FREED, 0, 0, &body, 1);
        store->frees++;
    } else if (header->kind == MS_REQUEST) {
        te_answer(store->engine, request->peer, header, MS_OK, NULL, 0, NULL, 0);
    }
}

static ms_status store_hello(void *context, const te_request *request, uint8_t answer[4096],
                             uint32_t *length, void **peer_context, char *error) {
    (void)context;
    (void)request;
    (void)answer;
    (void)length;
    (void)peer_context;
    (void)error;
    return MS_REFUSED;
}

static void store_nothing(void *context, const te_request *request) {
    (void)context;
    (void)request;
}

static void store_closed(void *context, te_peer peer, void *peer_context, const char *reason) {
    (void)context;
    (void)peer;
    (void)peer_context;
    (void)reason;
}

static void write_hello(ms_writer *out, uint8_t role) {
    ms_hello hello = {
        .version_oldest = MS_WIRE_VERSION_OLDEST, .version_newest = MS_WIRE_VERSION, .role = role};
    MS_WRITER_STRUCT(out, &hello);
    ms_writer_string(out, "default", 7);
    ms_writer_string(out, "", 0);
    ms_writer_string(out, "test", 4);
}

static void store_open(store_double *store, const char *address) {
    te_engine_config config;
    te_engine_config_default(&config);
    config.io_threads = 1;
    CHECK_STATUS(te_engine_open(&config, &store->engine), MS_OK);
    te_service service = {.context = store,
                          .on_hello = store_hello,
                          .on_request = store_request,
                          .on_answer = store_nothing,
                          .on_close = store_closed};
    te_serve(store->engine, &service);
    ms_writer hello = ms_writer_growable(4096);
    write_hello(&hello, MS_ROLE_SERVER);
    ms_server_info info = {.node_id = {1}, .incarnation = 1, .segment_count = 1};
    ms_segment_info segment = {.page_count = PAGES, .page_count_ready = PAGES};
    ms_writer_server(&hello, &info, &segment, "node", "host", "", "127.0.0.1:1");
    struct iovec body = {hello.data, hello.length};
    uint8_t answer[4096];
    size_t length;
    char error[TE_ERROR_BYTES];
    CHECK_STATUS(te_dial(store->engine, address, &body, 1, in_ms(5000), NULL, &store->master,
                         answer, sizeof answer, &length, error),
                 MS_OK);
    ms_writer_close(&hello);
    for (int i = 0; i < 5000 && !store->is_adopted; i++)
        usleep(1000);
    CHECK(store->is_adopted);
}

/* ---- clients --------------------------------------------------------------------------------------- */

typedef struct client {
    te_engine *engine;
    te_channel *channel;
    uint8_t secret[MS_SECRET_BYTES];
    uint64_t session, number;
    int index;
} client;

static void client_open(client *self, const char *address, int index) {
    *self = (client){.index = index};
    te_engine_config config;
    te_engine_config_default(&config);
    config.io_threads = 0;
    CHECK_STATUS(te_engine_open(&config, &self->engine), MS_OK);
    uint8_t memory[256];
    ms_writer hello = ms_writer_fixed(memory, sizeof memory);
    write_hello(&hello, MS_ROLE_CLIENT);
    te_channel_config channel = {.addresses = address,
                                 .hello = hello.data,
                                 .hello_length = hello.length,
                                 .connections_max = 1};
    CHECK_STATUS(te_channel_open(self->engine, &channel, &self->channel), MS_OK);
    te_reply reply = {.grow = true};
    CHECK_STATUS(te_call(self->channel, MS_KEEPALIVE, 0, NULL, 0, &reply, in_ms(5000)), MS_OK);
    CHECK_STATUS(reply.header.status, MS_OK);
    free(reply.body);
    uint8_t answer[4096];
    size_t length = te_channel_hello_answer(self->channel, answer, sizeof answer);
    ms_hello_answer_view view;
    CHECK(ms_read_hello_answer(answer, length, &view));
    CHECK(view.secret.length == MS_SECRET_BYTES);
    memcpy(self->secret, view.secret.data, MS_SECRET_BYTES);
    self->session = view.head.session;
}

static void client_close(client *self) {
    te_channel_close(self->channel);
    te_engine_close(self->engine);
}

/* The caller frees reply.body. */
static te_reply ask(client *self, uint16_t method, const ms_writer *body) {
    struct iovec part = {body != NULL ? body->data : NULL, body != NULL ? body->length : 0};
    te_reply reply = {.grow = true};
    CHECK_STATUS(
        te_call(self->channel, method, 0, &part, body != NULL ? 1 : 0, &reply, in_ms(20000)),
        MS_OK);
    return reply;
}

static ms_hash hash_of(const client *self, const char *key) {
    return ms_hash_key(self->secret, "default", 7, key, strlen(key));
}

static void write_head(client *self, ms_writer *out, uint32_t count) {
    ms_writer_reset(out);
    ms_batch head = {.number = ++self->number, .number_done = self->number - 1, .count = count};
    MS_WRITER_STRUCT(out, &head);
}

/* Puts BATCH objects, some keys again and again; counts those that it made. */
static int put_batch(client *self, ms_writer *out, int round) {
    char keys[BATCH][32];
    uint64_t versions[BATCH] = {0};
    write_head(self, out, BATCH);
    for (int i = 0; i < BATCH; i++) {
        snprintf(keys[i], sizeof keys[i], "%d/%d/%d", i % 4 == 0 ? 0 : self->index, round % 8, i);
        ms_put_item item = {.hash = hash_of(self, keys[i]),
                            .size = (uint64_t)i * 3000,
                            .deadline_ms = 60000,
                            .key_length = (uint16_t)strlen(keys[i]),
                            .replica_count = 1,
                            .replica_count_min = 1};
        MS_WRITER_STRUCT(out, &item);
        ms_writer_padded(out, keys[i], strlen(keys[i]));
    }
    te_reply reply = ask(self, MS_PUT_START, out);
    CHECK_STATUS(reply.header.status, MS_OK);
    ms_reader reader = ms_reader_of(reply.body, reply.header.body_length);
    CHECK(ms_reader_list(&reader, sizeof(ms_location)) == BATCH);
    int granted = 0;
    for (int i = 0; i < BATCH; i++) {
        ms_location_view grant;
        CHECK(ms_reader_location(&reader, &grant));
        CHECK(grant.head.status == MS_OK || grant.head.status == MS_EXISTS ||
              grant.head.status == MS_BUSY);
        if (grant.head.status == MS_OK) {
            versions[i] = grant.head.version;
            granted++;
        }
    }
    free(reply.body);
    if (granted == 0)
        return 0;

    write_head(self, out, (uint32_t)granted);
    for (int i = 0; i < BATCH; i++) {
        ms_end_item end = {
            .hash = hash_of(self, keys[i]), .version = versions[i], .replica_mask = UINT64_MAX};
        if (versions[i] != 0)
            MS_WRITER_STRUCT(out, &end);
    }
    bool revokes = round % 5 == 4;
    reply = ask(self, revokes ? MS_REVOKE : MS_PUT_END, out);
    CHECK_STATUS(reply.header.status, MS_OK);
    ms_array statuses;
    CHECK(ms_read_array(reply.body, reply.header.body_length, 4, &statuses));
    CHECK(statuses.count == (uint32_t)granted);
    for (int i = 0; i < granted; i++)
        CHECK_STATUS(ms_array_u32(statuses, (uint32_t)i), MS_OK);
    uint8_t *first = reply.body;
    uint32_t first_length = reply.header.body_length;

    /* The same number again: the same answer, and nothing happens. */
    reply = ask(self, revokes ? MS_REVOKE : MS_PUT_END, out);
    CHECK(reply.header.body_length == first_length && memcmp(reply.body, first, first_length) == 0);
    free(first);
    free(reply.body);
    return revokes ? 0 : granted;
}

static void remove_matching(client *self, ms_writer *out, const char *prefix) {
    uint64_t cursor = 0;
    do {
        ms_writer_reset(out);
        ms_list list = {.cursor = cursor, .limit = 100, .pattern_length = (uint32_t)strlen(prefix)};
        MS_WRITER_STRUCT(out, &list);
        ms_writer_padded(out, prefix, strlen(prefix));
        te_reply reply = ask(self, MS_REMOVE_MATCHING, out);
        CHECK_STATUS(reply.header.status, MS_OK);
        ms_list_answer answer;
        memcpy(&answer, reply.body, sizeof answer);
        cursor = answer.cursor;
        free(reply.body);
    } while (cursor != 0);
}

static void *client_run(void *argument) {
    client *self = argument;
    ms_writer out = ms_writer_growable(1 << 20);
    for (int round = 0; round < ROUNDS; round++) {
        put_batch(self, &out, round);
        if (round % 10 == 9) {
            char prefix[16];
            snprintf(prefix, sizeof prefix, "%d/", self->index);
            remove_matching(self, &out, prefix);
        }
        te_reply reply = ask(self, round % 2 ? MS_STATUS : MS_MEMBERS, NULL);
        CHECK_STATUS(reply.header.status, MS_OK);
        free(reply.body);
    }
    ms_writer_close(&out);
    return NULL;
}

/* ---- the other thread -------------------------------------------------------------------------------- */

typedef struct reader {
    ma_master *master;
    _Atomic bool is_over;
} reader;

static void *read_all(void *argument) {
    reader *self = argument;
    ma_sample samples[256];
    ma_member_row rows[8];
    ma_op op;
    ma_space space;
    ma_log_line line;
    ma_tombstone tombstone;
    while (!self->is_over) {
        CHECK(ma_metrics_read(self->master, samples, 256) <= 256);
        CHECK(ma_members_read(self->master, rows, 8) <= 1);
        for (size_t i = 0; ma_op_read(self->master, i, &op); i++)
            CHECK(op.name != NULL);
        ma_space_read(self->master, &space);
        while (ma_log_next(self->master, &line))
            CHECK(strlen(line.text) < sizeof line.text);
        while (ma_tombstone_next(self->master, &tombstone))
            ma_tombstone_done(self->master, &tombstone, MS_OK);
        CHECK(ma_tick_age_ms(self->master) < 60000);
        usleep(500);
    }
    return NULL;
}

static uint64_t metric(ma_master *master, const char *name) {
    ma_sample samples[256];
    size_t count = ma_metrics_read(master, samples, 256);
    for (size_t i = 0; i < count; i++) {
        ma_metric found;
        ma_metric_get(samples[i].id, &found);
        if (strcmp(found.name, name) == 0)
            return samples[i].value;
    }
    CHECK(!"there is such a metric");
    return 0;
}

/* NULL: the coordinator knows no member. */
static ma_master *open_master_expecting(char address[64], const uint8_t *node_id) {
    ma_config config;
    ma_config_default(&config);
    config.epoch = 1;
    config.name = "master";
    fill_pattern(config.secret, sizeof config.secret, 0, 7);
    ma_master *master;
    char error[TE_ERROR_BYTES];
    CHECK_STATUS(ma_master_open(&config, &master, error), MS_OK);
    if (node_id != NULL)
        CHECK_STATUS(ma_expect_member(master, node_id), MS_OK);
    uint16_t port;
    CHECK_STATUS(ma_master_listen_tcp(master, "127.0.0.1", 0, &port, error), MS_OK);
    snprintf(address, 64, "127.0.0.1:%u", (unsigned)port);
    return master;
}

static ma_master *open_master(char address[64]) { return open_master_expecting(address, NULL); }

static void several_clients_put_and_remove_while_somebody_reads(void) {
    char address[64];
    ma_master *master = open_master(address);
    store_double store = {0};
    store_open(&store, address);
    reader reading = {.master = master};
    pthread_t reads, works[CLIENTS];
    CHECK(pthread_create(&reads, NULL, read_all, &reading) == 0);
    client clients[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        client_open(&clients[i], address, i + 1);
        CHECK(pthread_create(&works[i], NULL, client_run, &clients[i]) == 0);
    }
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(works[i], NULL);

    CHECK(metric(master, "master_requests_repeated_total") >= CLIENTS);
    ms_writer out = ms_writer_growable(1 << 20);
    remove_matching(&clients[0], &out, "");
    ms_writer_close(&out);
    CHECK(metric(master, "objects") == 0);
    CHECK(metric(master, "puts_open") == 0);
    CHECK(metric(master, "master_requests_waiting") == 0);
    for (int i = 0; i < 5000 && metric(master, "pool_free_bytes") != PAGES * 4096ull; i++)
        usleep(1000);
    CHECK(metric(master, "pool_free_bytes") == PAGES * 4096ull);

    for (int i = 0; i < CLIENTS; i++) {
        te_reply reply = ask(&clients[i], MS_CLOSE_SESSION, NULL);
        CHECK_STATUS(reply.header.status, MS_OK);
        free(reply.body);
        client_close(&clients[i]);
    }
    CHECK(metric(master, "sessions") == 0);
    te_engine_close(store.engine);
    for (int i = 0; i < 5000 && metric(master, "servers") != 0; i++)
        usleep(1000);
    CHECK(metric(master, "servers") == 0);
    reading.is_over = true;
    pthread_join(reads, NULL);
    ma_master_close(master);
}

/* It is closed with everything open: sessions, a server, a request that waits. */
static void a_master_closes_with_everything_open(void) {
    char address[64];
    ma_master *master = open_master(address);
    store_double store = {0};
    store_open(&store, address);
    client one;
    client_open(&one, address, 1);
    ms_writer out = ms_writer_growable(1 << 20);
    CHECK(put_batch(&one, &out, 0) == BATCH);
    ma_master_close(master);
    struct iovec nothing = {NULL, 0};
    te_reply reply = {.grow = true};
    CHECK(te_call(one.channel, MS_MEMBERS, 0, &nothing, 0, &reply, in_ms(500)) != MS_OK);
    free(reply.body);
    ms_writer_close(&out);
    client_close(&one);
    te_engine_close(store.engine);
}

static ms_status keepalive(client *self, int64_t timeout_ms) {
    te_reply reply = {.grow = true};
    ms_status status =
        te_call(self->channel, MS_KEEPALIVE, 0, NULL, 0, &reply, in_ms((int)timeout_ms));
    if (status == MS_OK)
        status = (ms_status)reply.header.status;
    free(reply.body);
    return status;
}

static ms_status look_up(client *self, int timeout_ms) {
    uint64_t body[3] = {1};
    ms_hash hash = hash_of(self, "a key");
    memcpy(body + 1, &hash, sizeof hash);
    struct iovec part = {body, sizeof body};
    te_reply reply = {.grow = true};
    ms_status status = te_call(self->channel, MS_LOOKUP, 0, &part, 1, &reply, in_ms(timeout_ms));
    free(reply.body);
    return status == MS_OK ? (ms_status)reply.header.status : status;
}

typedef struct asker {
    client *client;
    ms_status status;
    int64_t answered_ns;
} asker;

static void *ask_once(void *argument) {
    asker *self = argument;
    self->status = look_up(self->client, 10000);
    self->answered_ns = te_now_ns();
    return NULL;
}

/* A new leader answers what needs the index when the member that it expects has brought its inventory. */
static void what_needs_the_index_waits_for_the_members(void) {
    static const uint8_t node_id[16] = {1};
    char address[64];
    ma_master *master = open_master_expecting(address, node_id);
    client clients[CLIENTS];
    asker askers[CLIENTS];
    pthread_t threads[CLIENTS];
    for (int i = 0; i < CLIENTS; i++)
        client_open(&clients[i], address, i + 1);
    for (int i = 1; i < CLIENTS; i++) {
        askers[i] = (asker){.client = &clients[i]};
        CHECK(pthread_create(&threads[i], NULL, ask_once, &askers[i]) == 0);
    }
    CHECK_STATUS(look_up(&clients[0], 100), MS_TIMEOUT); /* its connection ends, its frame goes */
    CHECK_STATUS(keepalive(&clients[0], 5000), MS_OK);
    int64_t joined_ns = te_now_ns();
    store_double store = {0};
    store_open(&store, address);
    for (int i = 1; i < CLIENTS; i++) {
        pthread_join(threads[i], NULL);
        CHECK_STATUS(askers[i].status, MS_OK);
        CHECK(askers[i].answered_ns > joined_ns);
    }
    CHECK_STATUS(look_up(&clients[0], 5000), MS_OK);
    for (int i = 0; i < CLIENTS; i++)
        client_close(&clients[i]);
    te_engine_close(store.engine);
    ma_master_close(master);

    master = open_master_expecting(address, node_id); /* closed while something waits */
    client_open(&clients[0], address, 1);
    askers[0] = (asker){.client = &clients[0]};
    CHECK(pthread_create(&threads[0], NULL, ask_once, &askers[0]) == 0);
    usleep(50000);
    ma_master_close(master);
    pthread_join(threads[0], NULL);
    CHECK(askers[0].status != MS_OK);
    client_close(&clients[0]);
}

static int64_t boottime_ns(int64_t from_now_ms) {
    struct timespec now;
    CHECK(clock_gettime(CLOCK_BOOTTIME, &now) == 0);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec + from_now_ms * 1000000;
}

/* From its lease's deadline on it answers no client, whatever was asked; its store servers stay. */
static void a_master_answers_until_its_lease_ends(void) {
    char address[64];
    ma_master *master = open_master(address);
    store_double store = {0};
    store_open(&store, address);
    client one;
    client_open(&one, address, 1);
    ms_writer out = ms_writer_growable(1 << 20);
    ma_set_lease_deadline(master, boottime_ns(60000));
    CHECK(put_batch(&one, &out, 0) == BATCH);
    ma_set_lease_deadline(master, boottime_ns(50));
    usleep(60000);
    CHECK(keepalive(&one, 5000) != MS_OK);              /* the connection ends ... */
    CHECK_STATUS(keepalive(&one, 5000), MS_NOT_LEADER); /* ... and a new one is refused */
    CHECK(metric(master, "servers") == 1);

    /* A renewed lease makes it answer again: it was suspended, not lost. */
    ma_set_lease_deadline(master, boottime_ns(60000));
    CHECK_STATUS(keepalive(&one, 5000), MS_OK);
    ma_set_lease_deadline(master, 1);
    CHECK(keepalive(&one, 5000) != MS_OK);
    ma_set_lease_deadline(master, 0);
    CHECK_STATUS(keepalive(&one, 5000), MS_OK);
    ms_writer_close(&out);
    client_close(&one);
    ma_master_close(master);
    te_engine_close(store.engine);
}

static void a_wrong_configuration_is_refused(void) {
    ma_config config;
    ma_config_default(&config);
    ma_master *master;
    char error[TE_ERROR_BYTES] = "";
    CHECK_STATUS(ma_master_open(&config, &master, error), MS_BAD_REQUEST); /* epoch 0 */
    CHECK(master == NULL && error[0] != '\0');
    config.epoch = 1;
    config.policy = 9;
    CHECK_STATUS(ma_master_open(&config, &master, error), MS_BAD_REQUEST);
    ma_master_close(NULL);
}

int main(int argc, char **argv) {
    RUN(a_wrong_configuration_is_refused);
    RUN(several_clients_put_and_remove_while_somebody_reads);
    RUN(a_master_closes_with_everything_open);
    RUN(a_master_answers_until_its_lease_ends);
    RUN(what_needs_the_index_waits_for_the_members);
    return 0;
}
