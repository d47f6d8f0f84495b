/* The accepting side dials too: frames both ways, and pushes that are bounded. */
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// timeout: 200
#include "engine_raw.h"

typedef struct dialler {
    te_engine *engine;
    _Atomic int requests, answers, closes;
} dialler;

static void dialler_request(void *context, const te_request *request) {
    dialler *own = context;
    CHECK(request->peer_context == own);
    struct iovec body = {.iov_base = (void *)(uintptr_t)request->body,
                         .iov_len = request->header->body_length};
    if (request->header->kind == MS_REQUEST) {
        CHECK_STATUS(
            te_answer(own->engine, request->peer, request->header, MS_OK, &body, 1, NULL, 0),
            MS_OK);
    }
    atomic_fetch_add(&own->requests, 1);
}

static void dialler_answer(void *context, const te_request *request) {
    dialler *own = context;
    CHECK(request->header->request == 77 && memcmp(request->body, "pushed", 6) == 0);
    atomic_fetch_add(&own->answers, 1);
}

static void dialler_close(void *context, te_peer peer, void *peer_context, const char *reason) {
    dialler *own = context;
    CHECK(peer != 0 && peer_context == own && reason[0] != '\0');
    atomic_fetch_add(&own->closes, 1);
}

/* Remembers the peer of the last HELLO. */
static _Atomic te_peer accepted_peer;

static void remember_request(void *context, const te_request *request) {
    atomic_store(&accepted_peer, request->peer);
    kit_request(context, request);
}

static void dialled_connections_speak_both_ways(const char *host, bool over_unix) {
    kit served;
    te_service service = {
        .on_hello = kit_hello,
        .on_request = remember_request,
        .on_answer = kit_on_answer,
        .on_close = kit_close,
    };
    kit_service = &service;
    kit_open(&served, host, over_unix, 0, NULL);
    te_engine_config config;
    te_engine_config_default(&config);
    config.io_threads = 1;
    dialler own = {0};
    CHECK_STATUS(te_engine_open(&config, &own.engine), MS_OK);
    te_service dialling = {
        .context = &own,
        .on_request = dialler_request,
        .on_answer = dialler_answer,
        .on_close = dialler_close,
    };
    te_serve(own.engine, &dialling);
    ms_hello hello = {
        .version_oldest = 1, .version_newest = 1, .role = MS_ROLE_SERVER, .session = 31};
    struct iovec parts[2] = {{.iov_base = &hello, .iov_len = sizeof hello},
                             {.iov_base = "tail of HELLO", .iov_len = 13}};
    char error[TE_ERROR_BYTES] = "", address[128];
    uint8_t answer[256];
    size_t answer_length = 0;
    te_peer peer = 0;
    snprintf(address, sizeof address, over_unix ? "unix:%s" : "%s",
             over_unix ? served.unix_path : served.address);
    CHECK_STATUS(te_dial(own.engine, address, parts, 2, in_ms(5000), &own, &peer, answer,
                         sizeof answer, &answer_length, error),
                 MS_OK);
    ms_hello_answer fixed;
    CHECK(answer_length >= sizeof fixed);
    memcpy(&fixed, answer, sizeof fixed);
    CHECK(fixed.session == 31 && peer != 0);

    /* We ask, it answers; it asks (a request and a one-way frame), we answer. */
    struct iovec pushed = {.iov_base = "pushed", .iov_len = 6};
    CHECK_STATUS(te_push(own.engine, peer, MS_REQUEST, KIT_ECHO, 0, 77, &pushed, 1), MS_OK);
    wait_at_least(&own.answers, 1);
    te_peer back = atomic_load(&accepted_peer);
    CHECK_STATUS(te_push(served.engine, back, MS_REQUEST, KIT_ECHO, 0, 78, &pushed, 1), MS_OK);
    CHECK_STATUS(te_push(served.engine, back, MS_ONEWAY, KIT_ECHO, 0, 0, &pushed, 1), MS_OK);
    wait_at_least(&own.requests, 2);
    wait_at_least(&served.answers, 1);

    te_close_peer(served.engine, back, "the test says so");
    wait_at_least(&own.closes, 1);
    wait_at_least(&served.closes, 1);
    CHECK(strcmp(served.last_reason, "the test says so") == 0);
    CHECK_STATUS(te_push(own.engine, peer, MS_ONEWAY, KIT_ECHO, 0, 0, &pushed, 1),
                 MS_NOT_REGISTERED);
    CHECK_STATUS(te_push(served.engine, back, MS_ONEWAY, KIT_ECHO, 0, 0, &pushed, 1),
                 MS_NOT_REGISTERED);

    /* A refused HELLO, a dead address. */
    atomic_store(&served.refuse_hello, MS_NOT_LEADER);
    CHECK_STATUS(te_dial(own.engine, address, parts, 2, in_ms(5000), &own, &peer, answer,
                         sizeof answer, &answer_length, error),
                 MS_NOT_LEADER);
    CHECK(strstr(error, "the test refuses") != NULL);
    te_engine_close(own.engine);
    kit_close_all(&served);
}

static void dialled_over_tcp(void) { dialled_connections_speak_both_ways("127.0.0.1", false); }

static void dialled_over_v6(void) { dialled_connections_speak_both_ways("::1", false); }

static void dialled_over_unix(void) { dialled_connections_speak_both_ways("127.0.0.1", true); }

static void pushes_to_a_peer_that_does_not_read_are_bounded(void) {
    kit served;
    te_engine_config config;
    te_engine_config_default(&config);
    config.outbound_bytes_max = 8 * MIB;
    te_service service = {
        .on_hello = kit_hello, .on_request = remember_request, .on_close = kit_close};
    kit_service = &service;
    kit_open(&served, "127.0.0.1", false, 0, &config);
    int descriptor = raw_open(&served, 1);
    expect_echo(descriptor, 1, "who am I");
    te_peer peer = atomic_load(&accepted_peer);
    static uint8_t bytes[MIB];
    struct iovec body = {.iov_base = bytes, .iov_len = sizeof bytes};
    ms_status status = MS_OK;
    int pushed = 0;
    while (status == MS_OK && pushed < 100) {
        status = te_push(served.engine, peer, MS_ONEWAY, KIT_ECHO, 0, 0, &body, 1);
        pushed++;
    }
    CHECK_STATUS(status, MS_LIMIT);
    wait_at_least(&served.closes, 1);
    CHECK(strstr(served.last_reason, "does not take its answers") != NULL);
    close(descriptor);
    kit_close_all(&served);
}

int main(int argc, char **argv) {
    RUN(dialled_over_tcp);
    RUN(dialled_over_v6);
    RUN(dialled_over_unix);
    RUN(pushes_to_a_peer_that_does_not_read_are_bounded);
    return 0;
}
