/* The accepting side: HELLO, bad input, slow and dead peers, answers from anywhere, pushes, the
 * fence. */
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// timeout: 200
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "engine_kit.h"

#define MIB (1u << 20)

/* ---- a client without any of our code ------------------------------------------------------------ */

static int raw_connect(const kit *served) {
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(served->port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(descriptor >= 0);
    CHECK(connect(descriptor, (struct sockaddr *)&address, sizeof address) == 0);
    struct timeval timeout = {.tv_sec = 5};
    CHECK(setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0);
    return descriptor;
}

static void raw_send(int descriptor, const void *bytes, size_t length) {
    for (size_t sent = 0; sent < length;) {
        ssize_t some = send(descriptor, (const uint8_t *)bytes + sent, length - sent, MSG_NOSIGNAL);
        CHECK(some > 0);
        sent += (size_t)some;
    }
}

/* True when all came; false at the end of the stream (also a reset). */
static bool raw_receive(int descriptor, void *bytes, size_t length) {
    for (size_t got = 0; got < length;) {
        ssize_t some = recv(descriptor, (uint8_t *)bytes + got, length - got, 0);
        if (some <= 0) {
            CHECK(some == 0 || errno != EAGAIN);
            return false;
        }
        got += (size_t)some;
    }
    return true;
}

static ms_header frame(uint8_t kind, uint16_t method, uint64_t request, uint32_t body_length) {
    return (ms_header){.magic = MS_MAGIC,
                       .version = MS_WIRE_VERSION,
                       .kind = kind,
                       .method = method,
                       .request = request,
                       .body_length = body_length};
}

static void raw_hello_with(int descriptor, ms_hello hello) {
    ms_header header = frame(MS_REQUEST, MS_HELLO, 1, sizeof hello);
    raw_send(descriptor, &header, sizeof header);
    raw_send(descriptor, &hello, sizeof hello);
}

static int raw_open(const kit *served, uint64_t session) {
    int descriptor = raw_connect(served);
    ms_header answer;
    uint8_t body[256];
    raw_hello_with(descriptor, (ms_hello){.version_oldest = 1,
                                          .version_newest = 1,
                                          .right = MS_RIGHT_READ | MS_RIGHT_WRITE,
                                          .session = session});
    CHECK(raw_receive(descriptor, &answer, sizeof answer));
    CHECK(answer.status == MS_OK && answer.kind == MS_ANSWER && answer.request == 1);
    CHECK(raw_receive(descriptor, body, answer.body_length));
    return descriptor;
}

static bool is_closed(int descriptor) {
    uint8_t byte;
    return !raw_receive(descriptor, &byte, 1);
}

/* The typed answer, its sentence, and the end of the stream. */
static void expect_refusal(int descriptor, ms_status status, const char *part) {
    ms_header answer;
    char sentence[TE_ERROR_BYTES] = "";
    CHECK(raw_receive(descriptor, &answer, sizeof answer));
    CHECK(answer.magic == MS_MAGIC && answer.kind == MS_ANSWER &&
          answer.body_length < sizeof sentence);
    CHECK(raw_receive(descriptor, sentence, answer.body_length));
    CHECK_STATUS(answer.status, status);
    if (strstr(sentence, part) == NULL) {
        fprintf(stderr, "\"%s\" does not say \"%s\"\n", sentence, part);
        abort();
    }
    CHECK(is_closed(descriptor));
    close(descriptor);
}

static void expect_log(kit *served, const char *part) {
    char line[TE_ERROR_BYTES];
    int64_t until = in_ms(5000);
    for (;;) {
        while (te_engine_log_next(served->engine, line)) {
            if (strstr(line, part) != NULL) {
                return;
            }
        }
        CHECK(te_now_ns() < until);
        usleep(1000);
    }
}

static void expect_echo(int descriptor, uint64_t request, const char *text) {
    ms_header header = frame(MS_REQUEST, KIT_ECHO, request, (uint32_t)strlen(text)), answer;
    char back[64];
    raw_send(descriptor, &header, sizeof header);
    raw_send(descriptor, text, strlen(text));
    CHECK(raw_receive(descriptor, &answer, sizeof answer));
    CHECK(answer.status == MS_OK && answer.request == request &&
          answer.body_length == strlen(text));
    CHECK(raw_receive(descriptor, back, answer.body_length));
    CHECK(memcmp(back, text, strlen(text)) == 0);
}

/* ---- HELLO ------------------------------------------------------------------------------------------ */

static void hello_opens_a_connection(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    int descriptor = raw_open(&served, 5);
    expect_echo(descriptor, 9, "hello");
    CHECK(atomic_load(&served.hellos) == 1);
    close(descriptor);
    wait_at_least(&served.closes, 1);
    kit_close_all(&served);
}

static void hello_is_refused_with_reasons(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    int descriptor = raw_connect(&served);
    raw_hello_with(descriptor, (ms_hello){.version_oldest = 7, .version_newest = 9});
    expect_refusal(descriptor, MS_VERSION_MISMATCH,
                   "you speak wire versions 7 to 9, this side speaks 1 to 1");
    expect_log(&served, "7 to 9");

    descriptor = raw_connect(&served); /* not HELLO first */
    ms_header header = frame(MS_REQUEST, KIT_ECHO, 3, 0);
    raw_send(descriptor, &header, sizeof header);
    expect_refusal(descriptor, MS_BAD_FRAME, "must be HELLO");

    descriptor = raw_connect(&served); /* too short a HELLO */
    header = frame(MS_REQUEST, MS_HELLO, 3, 8);
    raw_send(descriptor, &header, sizeof header);
    raw_send(descriptor, "12345678", 8);
    expect_refusal(descriptor, MS_BAD_FRAME, "at least 40 bytes");

    descriptor = raw_connect(&served); /* larger than anything said before HELLO may be */
    header = frame(MS_REQUEST, MS_HELLO, 3, MS_BODY_BYTES_MAX_HELLO + 1);
    raw_send(descriptor, &header, sizeof header);
    expect_refusal(descriptor, MS_BAD_FRAME, "at most 65536");

    atomic_store(&served.refuse_hello, MS_SESSION_LOST);
    descriptor = raw_connect(&served);
    raw_hello_with(descriptor, (ms_hello){.version_oldest = 1, .version_newest = 3});
    expect_refusal(descriptor, MS_SESSION_LOST, "the test refuses HELLO");
    CHECK(atomic_load(&served.closes) == 0); /* nothing that on_hello gave is to be given back */
    kit_close_all(&served);
}

/* ---- bad input ----------------------------------------------------------------------------------------- */

static void bad_frames_close_their_connection_only(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 4096, NULL);
    int bystander = raw_open(&served, 1);
    struct {
        ms_header header;
        const char *reason;
        ms_status status;
    } cases[] = {
        {frame(MS_REQUEST, KIT_ECHO, 2, 0), "not a mooncake-store frame", MS_BAD_FRAME},
        {frame(MS_REQUEST, KIT_ECHO, 2, 0), "wire version 200", MS_VERSION_MISMATCH},
        {frame(3, KIT_ECHO, 2, 0), "kind 3", MS_BAD_FRAME},
        {frame(MS_REQUEST, KIT_ECHO, 2, MS_BODY_BYTES_MAX + 1), "at most", MS_BAD_FRAME},
        {frame(MS_REQUEST, KIT_ECHO, 2, 0), "reserved 5", MS_BAD_FRAME},
        {frame(MS_REQUEST, KIT_ECHO, 2, 0), "no payload", MS_BAD_FRAME},
        {frame(MS_REQUEST, KIT_ECHO, 2, 0), "no payload and no trailer", MS_BAD_FRAME},
        {frame(MS_REQUEST, MS_HELLO, 2, 0), "second HELLO", MS_BAD_FRAME},
        {frame(MS_REQUEST, MS_READ, 2, 0), "a READ of 0 bytes", MS_BAD_FRAME},
        {frame(MS_ONEWAY, MS_READ, 2, 0), "one-way READ", MS_BAD_FRAME},
        {frame(MS_REQUEST, MS_WRITE, 2, 0), "without a list", MS_BAD_FRAME},
    };
    cases[0].header.magic = 0x20544547; /* "GET " */
    cases[1].header.version = 200;
    cases[4].header.reserved = 5;
    cases[5].header.payload_length = UINT64_MAX;
    cases[6].header.trailer_length = 1;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int descriptor = raw_open(&served, 2);
        raw_send(descriptor, &cases[i].header, sizeof cases[i].header);
        expect_refusal(descriptor, cases[i].status, cases[i].reason);
        expect_log(&served, cases[i].reason);
        expect_echo(bystander, 100 + i, "unharmed");
    }
    close(bystander);
    kit_close_all(&served);
}

/* Lists whose counts and sums lie. */
static void lying_batches_are_refused(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 4096, NULL);
    struct {
        uint32_t count, zero;
        ms_write_item item;
    } write = {1, 0, {.segment = 1, .length = 10}};
    struct {
        uint32_t count, zero;
        ms_read_item item;
    } read = {2, 0, {.segment = 1, .length = 10}};

    int descriptor = raw_open(&served, 2);
    ms_header header = frame(MS_REQUEST, MS_READ, 2, sizeof read);
    raw_send(descriptor, &header, sizeof header);
    raw_send(descriptor, &read, sizeof read);
    expect_refusal(descriptor, MS_BAD_FRAME, "names 2 items");

    read.count = UINT32_MAX;
    descriptor = raw_open(&served, 2);
    raw_send(descriptor, &header, sizeof header);
    raw_send(descriptor, &read, sizeof read);
    expect_refusal(descriptor, MS_BAD_FRAME, "a READ");

    uint32_t lengths[][3] = {{10, 0, 11}, {10, 8, 10}, {9, 0, 10}};
    for (size_t i = 0; i < 3; i++) {
        write.item.length = lengths[i][0];
        write.item.seal_length = lengths[i][1];
        header = frame(MS_REQUEST, MS_WRITE, 2, sizeof write);
        header.payload_length = lengths[i][2];
        descriptor = raw_open(&served, 2);
        raw_send(descriptor, &header, sizeof header);
        raw_send(descriptor, &write, sizeof write);
        raw_send(descriptor, "0123456789a",
                 lengths[i][2]); /* what was refused is read all the same */
        expect_refusal(descriptor, MS_BAD_FRAME, "do not add up");
    }
    write.item.length = UINT64_MAX;
    write.item.seal_length = 0;
    header.payload_length = UINT64_MAX;
    descriptor = raw_open(&served, 2);
    raw_send(descriptor, &header, sizeof header);
    raw_send(descriptor, &write, sizeof write);
    expect_refusal(descriptor, MS_BAD_FRAME, "impossible length");
    CHECK(has_pattern(served.memory, served.length, 0, 1));

    /* A connection for reading only. */
    descriptor = raw_connect(&served);
    raw_hello_with(descriptor,
                   (ms_hello){.version_oldest = 1, .version_newest = 1, .right = MS_RIGHT_READ});
    ms_header answer;
    uint8_t body[256];
    CHECK(raw_receive(descriptor, &answer, sizeof answer) &&
          raw_receive(descriptor, body, answer.body_length));
    write.item.length = 10;
    header.payload_length = 10;
    raw_send(descriptor, &header, sizeof header);
    raw_send(descriptor, &write, sizeof write);
    raw_send(descriptor, "0123456789", 10);
    expect_refusal(descriptor, MS_REFUSED, "for reading only");
    CHECK(has_pattern(served.memory, served.length, 0, 1));
    kit_close_all(&served);
}

/* Random bytes, before and after HELLO: whatever happens, the next client is served. */
static void garbage_harms_nobody(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 4096, NULL);
    uint64_t seed = 88172645463325252u;
    uint8_t garbage[3000];
    for (int round = 0; round < 150; round++) {
        int descriptor = round % 2 ? raw_open(&served, 3) : raw_connect(&served);
        for (size_t i = 0; i < sizeof garbage; i++) {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            garbage[i] = (uint8_t)seed;
        }
        if (round % 3 == 0) { /* close to a frame */
            ms_header header =
                frame((uint8_t)(seed % 3), (uint16_t)(seed >> 8 & 0x1f), 1, garbage[0]);
            memcpy(garbage, &header, sizeof header);
        }
        (void)send(descriptor, garbage, 1 + (size_t)(seed % sizeof garbage), MSG_NOSIGNAL);
        if (round % 5 == 0) {
            shutdown(descriptor, SHUT_WR);
            while (recv(descriptor, garbage, sizeof garbage, 0) > 0) {
            }
        }
        close(descriptor);
    }
    int descriptor = raw_open(&served, 3);
    expect_echo(descriptor, 1, "still here");
    close(descriptor);
    CHECK(has_pattern(served.memory, served.length, 0, 1));
    kit_close_all(&served);
}

/* ---- slow peers -------------------------------------------------------------------------------------------- */

static te_engine_config impatient(void) {
    te_engine_config config;
    te_engine_config_default(&config);
    config.handshake_timeout_ms = 300;
    config.stall_timeout_ms = 300;
    return config;
}

static void slow_peers_are_closed(void) {
    te_engine_config config = impatient();
    kit served;
    kit_open(&served, "127.0.0.1", false, MIB, &config);
    int silent = raw_connect(&served), dripping = raw_connect(&served);
    int half_header = raw_open(&served, 1), half_body = raw_open(&served, 1),
        half_payload = raw_open(&served, 1);
    int patient = raw_open(&served, 1);
    ms_header header = frame(MS_REQUEST, KIT_ECHO, 1, 100000);
    raw_send(half_header, &header, 20);
    raw_send(half_body, &header, sizeof header);
    struct {
        uint32_t count, zero;
        ms_write_item item;
    } write = {1, 0, {.segment = 2, .page_count = 200, .version = 1, .length = 500000}};
    header = frame(MS_REQUEST, MS_WRITE, 1, sizeof write);
    header.payload_length = 500000;
    raw_send(half_payload, &header, sizeof header);
    raw_send(half_payload, &write, sizeof write);
    raw_send(half_payload, "some bytes", 10);
    int64_t begin = te_now_ns();
    header = frame(MS_REQUEST, MS_HELLO, 1, 40);
    for (size_t i = 0; i < sizeof header; i++) { /* a byte now and then does not keep it open */
        if (send(dripping, (uint8_t *)&header + i, 1, MSG_NOSIGNAL) != 1) {
            break;
        }
        usleep(20000);
    }
    CHECK(is_closed(silent) && is_closed(dripping));
    CHECK(is_closed(half_header) && is_closed(half_body) && is_closed(half_payload));
    CHECK(te_now_ns() - begin < INT64_C(3000000000));
    expect_log(&served, "no HELLO in time");
    expect_log(&served, "not finished in time");
    expect_echo(patient, 7, "idle is no fault");
    CHECK(kit_count(&served, &served.incomplete) == 1);
    close(silent);
    close(dripping);
    close(half_header);
    close(half_body);
    close(half_payload);
    close(patient);
    kit_close_all(&served);
}

/* A reader that never takes its answer gives its use counts back when it is closed. */
static void a_reader_that_stalls_is_closed(void) {
    te_engine_config config = impatient();
    kit served;
    kit_open(&served, "127.0.0.1", false, 32 * MIB, &config);
    int descriptor = raw_open(&served, 1);
    struct {
        uint32_t count, zero;
        ms_read_item item;
    } read = {1, 0, {.segment = 2, .length = 32 * MIB}};
    ms_header header = frame(MS_REQUEST, MS_READ, 1, sizeof read);
    raw_send(descriptor, &header, sizeof header);
    raw_send(descriptor, &read, sizeof read);
    wait_at_least(&served.closes, 1);
    expect_log(&served, "has not taken its answers");
    close(descriptor);
    kit_close_all(&served);
}

static void a_peer_that_takes_no_answers_is_held_up(void) {
    kit served;
    te_engine_config config;
    te_engine_config_default(&config);
    config.outbound_bytes_max = 4 * MIB;
    kit_open(&served, "127.0.0.1", false, 0, &config);
    int descriptor = raw_open(&served, 1);
    /* 200 MiB of answers if it were served without end: it is no longer read from, and nothing is
     * lost. */
    enum { FRAMES = 800, BODY = 256 << 10 };
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        uint8_t *body = calloc(1, BODY);
        for (uint64_t i = 0; i < FRAMES && body != NULL; i++) {
            ms_header header = frame(MS_REQUEST, KIT_ECHO, i, BODY);
            memcpy(body, &i, sizeof i);
            raw_send(descriptor, &header, sizeof header);
            raw_send(descriptor, body, BODY);
        }
        _exit(0);
    }
    usleep(300000);
    int requests = atomic_load(&served.requests);
    CHECK(requests > 0 && requests < FRAMES / 2);
    uint8_t *body = malloc(BODY);
    CHECK(body != NULL);
    for (uint64_t i = 0; i < FRAMES; i++) {
        ms_header answer;
        CHECK(raw_receive(descriptor, &answer, sizeof answer) && answer.request == i &&
              answer.body_length == BODY);
        CHECK(raw_receive(descriptor, body, BODY) && memcmp(body, &i, sizeof i) == 0);
    }
    free(body);
    int state;
    CHECK(waitpid(child, &state, 0) == child && state == 0);
    close(descriptor);
    kit_close_all(&served);
}

/* ---- answers and pushes ---------------------------------------------------------------------------------------- */

static void answers_may_come_later_from_another_thread(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    int descriptor = raw_open(&served, 1);
    ms_header header = frame(MS_REQUEST, KIT_LATER, 11, 5), answer;
    char back[8];
    raw_send(descriptor, &header, sizeof header);
    raw_send(descriptor, "later", 5);
    expect_echo(descriptor, 12, "now"); /* overtakes */
    CHECK(raw_receive(descriptor, &answer, sizeof answer) && answer.request == 11 &&
          answer.epoch == 0);
    CHECK(raw_receive(descriptor, back, 5) && memcmp(back, "later", 5) == 0);
    te_engine_set_epoch(served.engine, 3);
    raw_send(descriptor, &header, sizeof header);
    raw_send(descriptor, "later", 5);
    CHECK(raw_receive(descriptor, &answer, sizeof answer) && answer.epoch == 3 &&
          raw_receive(descriptor, back, 5));
    /* Gone before the answer: nobody is harmed. */
    raw_send(descriptor, &header, sizeof header);
    raw_send(descriptor, "later", 5);
    wait_at_least(&served.requests, 4);
    close(descriptor);
    wait_at_least(&served.closes, 1);
    kit_close_all(&served);
}

static void pipelined_frames_are_answered_in_order(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    int descriptor = raw_open(&served, 1);
    enum { FRAMES = 3000 };
    uint8_t *stream = malloc(FRAMES * 120), *at = stream;
    CHECK(stream != NULL);
    for (uint64_t i = 0; i < FRAMES; i++) { /* odd lengths: bodies fall on every alignment */
        ms_header header =
            frame(i % 5 == 4 ? MS_ONEWAY : MS_REQUEST, KIT_ECHO, i, (uint32_t)(i % 61));
        memcpy(at, &header, sizeof header);
        at += sizeof header;
        memset(at, (int)i, i % 61);
        at += i % 61;
    }
    raw_send(descriptor, stream, (size_t)(at - stream));
    for (uint64_t i = 0; i < FRAMES; i++) {
        ms_header answer;
        uint8_t body[64];
        if (i % 5 == 4) {
            continue;
        }
        CHECK(raw_receive(descriptor, &answer, sizeof answer) && answer.request == i &&
              answer.body_length == i % 61);
        CHECK(raw_receive(descriptor, body, answer.body_length) &&
              is_all(body, answer.body_length, (uint8_t)i));
    }
    wait_at_least(&served.requests, FRAMES);
    free(stream);
    close(descriptor);
    kit_close_all(&served);
}

static void unknown_methods_are_answered(void) {
    te_engine *engine;
    te_engine_config config;
    te_engine_config_default(&config);
    CHECK_STATUS(te_engine_open(&config, &engine), MS_OK); /* no service at all */
    kit served = {.engine = engine};
    char error[TE_ERROR_BYTES];
    CHECK_STATUS(te_listen_tcp(engine, "127.0.0.1", 0, &served.port, error), MS_OK);
    int descriptor = raw_open(&served, 1);
    ms_header header = frame(MS_REQUEST, 0x7777, 4, 0), answer;
    char sentence[TE_ERROR_BYTES] = "";
    raw_send(descriptor, &header, sizeof header);
    CHECK(raw_receive(descriptor, &answer, sizeof answer) && answer.status == MS_BAD_REQUEST);
    CHECK(raw_receive(descriptor, sentence, answer.body_length) &&
          strstr(sentence, "0x7777") != NULL);
    header = frame(MS_REQUEST, MS_PING, 5, 0);
    raw_send(descriptor, &header, sizeof header);
    CHECK(raw_receive(descriptor, &answer, sizeof answer) && answer.status == MS_OK &&
          answer.request == 5);
    header = frame(MS_ANSWER, MS_PING, 5, 0);
    raw_send(descriptor, &header, sizeof header);
    expect_refusal(descriptor, MS_BAD_FRAME, "nobody waits for");
    te_engine_close(engine);
}

/* ---- dialling ------------------------------------------------------------------------------------------------------ */

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

/* ---- closing, the fence ------------------------------------------------------------------------------------------------ */

static bool is_session(void *match_context, void *peer_context) {
    return match_context == peer_context;
}

typedef struct flooder {
    const kit *served;
    pthread_t thread;
    uint64_t session;
    uint32_t page; /* each writes 5 MiB of its own */
} flooder;

#define FLOOD_MIB 5

/* Writes as fast as it can until it is cut off. */
static void *flood(void *argument) {
    flooder *own = argument;
    int descriptor = raw_open(own->served, own->session);
    struct {
        uint32_t count, zero;
        ms_write_item item;
    } write = {1,
               0,
               {.segment = 2,
                .page = own->page,
                .page_count = FLOOD_MIB * 256,
                .version = 1,
                .length = FLOOD_MIB * MIB}};
    ms_header header = frame(MS_REQUEST, MS_WRITE, 1, sizeof write);
    header.payload_length = FLOOD_MIB * MIB;
    uint8_t *bytes = malloc(MIB);
    CHECK(bytes != NULL);
    for (int value = 0;; value++) {
        memset(bytes, value, MIB);
        bool is_cut = send(descriptor, &header, sizeof header, MSG_NOSIGNAL) != sizeof header ||
                      send(descriptor, &write, sizeof write, MSG_NOSIGNAL) != sizeof write;
        for (int i = 0; i < FLOOD_MIB && !is_cut; i++) {
            for (size_t sent = 0; sent < MIB && !is_cut;) {
                ssize_t some = send(descriptor, bytes + sent, MIB - sent, MSG_NOSIGNAL);
                is_cut = some <= 0;
                sent += some > 0 ? (size_t)some : 0;
            }
        }
        ms_header answer;
        if (is_cut || !raw_receive(descriptor, &answer, sizeof answer) || answer.status != MS_OK) {
            break; /* a WRITE that is refused (no such segment) ends it too */
        }
    }
    free(bytes);
    close(descriptor);
    return NULL;
}

static void after_the_fence_nobody_writes(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 16 * MIB, NULL);
    uint8_t *copy = malloc(16 * MIB);
    CHECK(copy != NULL);
    for (uint64_t round = 0; round < 20; round++) {
        flooder flooders[3];
        for (uint32_t i = 0; i < 3; i++) {
            flooders[i] = (flooder){.served = &served, .session = 5, .page = i * FLOOD_MIB * 256};
        }
        int hellos = atomic_load(&served.hellos);
        for (int i = 0; i < 3; i++) {
            CHECK(pthread_create(&flooders[i].thread, NULL, flood, &flooders[i]) == 0);
        }
        wait_at_least(&served.hellos, hellos + 3);
        usleep(3000 + (useconds_t)round * 500);
        size_t closed = te_close_matching(served.engine, is_session, (void *)5, "fenced");
        CHECK(closed == 3);
        memcpy(copy, served.memory, 16 * MIB);
        usleep(2000);
        CHECK(memcmp(copy, served.memory, 16 * MIB) == 0);
        for (int i = 0; i < 3; i++) {
            pthread_join(flooders[i].thread, NULL);
        }
        CHECK(te_close_matching(served.engine, is_session, (void *)6, "nobody") == 0);
    }
    free(copy);
    kit_close_all(&served);
}

static void a_segment_is_removed_under_its_readers_and_writers(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 32 * MIB, NULL);
    flooder writer = {.served = &served, .session = 8, .page = 16 * 256};
    CHECK(pthread_create(&writer.thread, NULL, flood, &writer) == 0);
    int reader = raw_open(&served, 9), other = raw_open(&served, 9);
    struct {
        uint32_t count, zero;
        ms_read_item item;
    } read = {1, 0, {.segment = 2, .length = 16 * MIB}};
    ms_header header = frame(MS_REQUEST, MS_READ, 1, sizeof read);
    raw_send(reader, &header, sizeof header);
    raw_send(reader, &read, sizeof read);
    usleep(20000);
    te_segment_remove(served.engine, 2);
    te_segment_remove(served.engine, 1);
    memset(served.memory, 0, served.length); /* ours alone now */
    free(served.memory);
    served.memory = NULL;
    pthread_join(writer.thread, NULL);
    ms_header answer;
    ms_read_result result;
    read.item.length = 4;
    raw_send(other, &header, sizeof header);
    raw_send(other, &read, sizeof read);
    CHECK(raw_receive(other, &answer, sizeof answer) && answer.payload_length == 0);
    CHECK(raw_receive(other, &result, sizeof result) && result.status == MS_NOT_REGISTERED);
    close(reader);
    close(other);
    kit_close_all(&served);
}

static void relayed_writes_are_not_answered(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, MIB, NULL);
    served.swallow_done = true;
    int descriptor = raw_open(&served, 1);
    struct {
        uint32_t count, zero;
        ms_write_item item;
        uint8_t seal[8];
    } write = {1,
               0,
               {.segment = 2, .page_count = 1, .version = 1, .length = 5, .seal_length = 8},
               "SEALSEA"};
    ms_header header = frame(MS_REQUEST, MS_WRITE, 1, sizeof write);
    header.payload_length = 5;
    header.flags = MS_FLAG_RELAY;
    raw_send(descriptor, &header, sizeof header);
    raw_send(descriptor, &write, sizeof write);
    raw_send(descriptor, "bytes", 5);
    expect_echo(descriptor, 2, "the next answer");
    CHECK(kit_count(&served, &served.sealed) == 1 && memcmp(served.memory, "bytes", 5) == 0);
    CHECK(memcmp(served.last_seal, "SEALSEA", 8) == 0);
    close(descriptor);
    kit_close_all(&served);
}

/* ---- bounds, sockets, processes -------------------------------------------------------------------------------------------- */

static void connections_are_bounded(void) {
    te_engine_config config;
    te_engine_config_default(&config);
    config.connections_accepted_max = 3;
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, &config);
    int first[3];
    for (int i = 0; i < 3; i++) {
        first[i] = raw_open(&served, 1);
    }
    expect_refusal(raw_connect(&served), MS_LIMIT, "limit");
    expect_echo(first[2], 1, "served");
    close(first[0]);
    wait_at_least(&served.closes, 1);
    int next = raw_open(&served, 1);
    expect_echo(next, 1, "room again");
    close(first[1]);
    close(first[2]);
    close(next);
    kit_close_all(&served);
}

static void unix_sockets_are_private(void) {
    kit served;
    kit_open(&served, "127.0.0.1", true, 0, NULL);
    struct stat file;
    CHECK(stat(served.unix_path, &file) == 0 && (file.st_mode & 0777) == 0600);
    te_engine *other = NULL;
    te_engine_config config;
    te_engine_config_default(&config);
    char error[TE_ERROR_BYTES] = "";
    CHECK_STATUS(te_engine_open(&config, &other), MS_OK);
    CHECK_STATUS(te_listen_unix(other, served.unix_path, error), MS_BUSY); /* somebody listens */
    CHECK(strstr(error, served.unix_path) != NULL);
    char path[108];
    snprintf(path, sizeof path, "%.90s.stale", served.unix_path);
    int stale = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    CHECK(bind(stale, (struct sockaddr *)&address, sizeof address) == 0);
    close(stale); /* the file stays, nobody listens */
    CHECK_STATUS(te_listen_unix(other, path, error), MS_OK);
    te_engine_close(other);
    CHECK(stat(path, &file) != 0 && errno == ENOENT);

    char longer[200];
    memset(longer, 'x', sizeof longer);
    longer[0] = '/';
    longer[150] = '\0';
    CHECK_STATUS(te_listen_unix(served.engine, longer, error), MS_BAD_REQUEST);
    CHECK_STATUS(te_listen_tcp(served.engine, "localhost", 0, &served.port, error), MS_BAD_REQUEST);
    CHECK_STATUS(te_listen_tcp(served.engine, "127.0.0.1", served.port, &served.port, error),
                 MS_BUSY);
    if (geteuid() == 0) { /* another user, let in by the file's mode: the credentials still tell */
        CHECK(chmod(served.unix_path, 0666) == 0);
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            ms_header answer = {0};
            int descriptor = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
            snprintf(address.sun_path, sizeof address.sun_path, "%s", served.unix_path);
            bool refused = setuid(65534) == 0 &&
                           connect(descriptor, (struct sockaddr *)&address, sizeof address) == 0 &&
                           recv(descriptor, &answer, sizeof answer, MSG_WAITALL) == sizeof answer &&
                           answer.status == MS_REFUSED;
            _exit(refused ? 0 : 1);
        }
        int state;
        CHECK(waitpid(child, &state, 0) == child && state == 0);
    }
    kit_close_all(&served);
    CHECK(stat(served.unix_path, &file) != 0);
}

typedef struct starter {
    const kit *served;
    pthread_barrier_t *barrier;
    pthread_t thread;
    te_peer number;
} starter;

static void *start_client(void *argument) {
    starter *own = argument;
    te_engine *engine = kit_asker();
    te_channel *channel = kit_channel(engine, own->served->address, NULL, 2);
    pthread_barrier_wait(own->barrier);
    for (int i = 0; i < 20; i++) {
        struct iovec body = {.iov_base = &own->number, .iov_len = sizeof own->number};
        te_peer back = 0;
        te_reply reply = {.body = (uint8_t *)&back, .body_size = sizeof back};
        CHECK_STATUS(te_call(channel, KIT_ECHO, 0, &body, 1, &reply, in_ms(30000)), MS_OK);
        CHECK(reply.header.status == MS_OK && back == own->number);
    }
    te_channel_close(channel);
    te_engine_close(engine);
    return NULL;
}

static void sixty_four_clients_start_at_once(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    starter starters[64];
    pthread_barrier_t barrier;
    pthread_barrier_init(&barrier, NULL, 64);
    for (uint64_t i = 0; i < 64; i++) {
        starters[i] = (starter){.served = &served, .barrier = &barrier, .number = i * 1000};
        CHECK(pthread_create(&starters[i].thread, NULL, start_client, &starters[i]) == 0);
    }
    for (int i = 0; i < 64; i++) {
        pthread_join(starters[i].thread, NULL);
    }
    CHECK(atomic_load(&served.hellos) == 64 && atomic_load(&served.requests) == 64 * 20);
    pthread_barrier_destroy(&barrier);
    kit_close_all(&served);
}

static int64_t cpu_ns(void) {
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return used.tv_sec * INT64_C(1000000000) + used.tv_nsec;
}

static void an_idle_engine_sleeps(void) {
    kit served;
    te_service service = {
        .on_hello = kit_hello, .on_request = kit_request, .on_close = kit_close}; /* no ticks */
    kit_service = &service;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    int descriptors[8];
    for (int i = 0; i < 8; i++) {
        descriptors[i] = raw_open(&served, 1);
        expect_echo(descriptors[i], 1, "x");
    }
    usleep(250000); /* the last look at the handshake deadlines is over */
    int64_t before = cpu_ns();
    usleep(1000000);
    int64_t used = cpu_ns() - before;
    CHECK(used < 5000000); /* 0.5 %: mostly the measuring itself */
    for (int i = 0; i < 8; i++) {
        close(descriptors[i]);
    }
    kit_close_all(&served);
}

static void ticks_come_while_nothing_else_happens(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    wait_at_least(&served.ticks, 5);
    kit_close_all(&served);
}

static void a_child_is_told(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, NULL, 2);
    te_reply reply = {0};
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, NULL, 0, &reply, in_ms(5000)), MS_OK);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        bool right = te_call(channel, KIT_ECHO, 0, NULL, 0, &reply, in_ms(1000)) == MS_FORKED;
        te_channel_close(channel); /* both return at once */
        te_engine_close(asker);
        te_engine_close(served.engine);
        _exit(right ? 0 : 1);
    }
    int state;
    CHECK(waitpid(child, &state, 0) == child && state == 0);
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, NULL, 0, &reply, in_ms(5000)), MS_OK);
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
}

static void the_log_is_bounded(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    char line[TE_ERROR_BYTES];
    CHECK(!te_engine_log_next(served.engine, line));
    for (int i = 0; i < 200; i++) {
        int descriptor = raw_connect(&served);
        raw_send(descriptor,
                 "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nUser-Agent: x\r\n\r\n", 64);
        ms_header answer;
        CHECK(raw_receive(descriptor, &answer, sizeof answer) && answer.status == MS_BAD_FRAME);
        close(descriptor);
    }
    int lines = 0;
    bool told = false;
    while (te_engine_log_next(served.engine, line)) {
        told = told || strstr(line, "earlier lines were lost") != NULL;
        lines++;
    }
    CHECK(told && lines == 129);
    kit_close_all(&served);
}

int main(int argc, char **argv) {
    RUN(hello_opens_a_connection);
    RUN(hello_is_refused_with_reasons);
    RUN(bad_frames_close_their_connection_only);
    RUN(lying_batches_are_refused);
    RUN(garbage_harms_nobody);
    RUN(slow_peers_are_closed);
    RUN(a_reader_that_stalls_is_closed);
    RUN(a_peer_that_takes_no_answers_is_held_up);
    RUN(answers_may_come_later_from_another_thread);
    RUN(pipelined_frames_are_answered_in_order);
    RUN(unknown_methods_are_answered);
    RUN(dialled_over_tcp);
    RUN(dialled_over_v6);
    RUN(dialled_over_unix);
    RUN(pushes_to_a_peer_that_does_not_read_are_bounded);
    RUN(after_the_fence_nobody_writes);
    RUN(a_segment_is_removed_under_its_readers_and_writers);
    RUN(relayed_writes_are_not_answered);
    RUN(connections_are_bounded);
    RUN(unix_sockets_are_private);
    RUN(sixty_four_clients_start_at_once);
    RUN(an_idle_engine_sleeps);
    RUN(ticks_come_while_nothing_else_happens);
    RUN(a_child_is_told);
    RUN(the_log_is_bounded);
    return 0;
}
