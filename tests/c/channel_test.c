/* The asking side: calls, deadlines, dead and frozen peers, the pool, rails. */
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// timeout: 200
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "engine_kit.h"

#define MIB (1u << 20)

static int64_t elapsed_ms(int64_t begin) { return (te_now_ns() - begin) / 1000000; }

static void call_echo(te_channel *channel, const char *text) {
    char back[64];
    struct iovec body = {.iov_base = (void *)(uintptr_t)text, .iov_len = strlen(text)};
    te_reply reply = {.body = (uint8_t *)back, .body_size = sizeof back};
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, &body, 1, &reply, in_ms(5000)), MS_OK);
    CHECK(reply.header.status == MS_OK && reply.header.body_length == strlen(text));
    CHECK(memcmp(back, text, strlen(text)) == 0);
}

/* ---- calls ------------------------------------------------------------------------------------------ */

static void calls_on(const char *host, bool over_unix) {
    kit served;
    kit_open(&served, host, over_unix, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel =
        kit_channel(asker, served.address, over_unix ? served.unix_path : NULL, 2);
    call_echo(channel, "hello");
    CHECK(te_channel_is_local(channel) == over_unix);
    uint8_t hello[256];
    CHECK(te_channel_hello_answer(channel, hello, sizeof hello) == sizeof(ms_hello_answer) + 8);

    /* Bodies around every boundary, in one block and in three, into given and into grown memory. */
    size_t lengths[] = {0,    1,     47,    48,    2048,  8143,  8144,  8145,    8192,
                        8193, 16335, 16336, 16337, 16384, 16385, 65536, 1000003, MS_BODY_BYTES_MAX};
    uint8_t *bytes = malloc(MS_BODY_BYTES_MAX), *back = malloc(MS_BODY_BYTES_MAX);
    CHECK(bytes != NULL && back != NULL);
    fill_pattern(bytes, MS_BODY_BYTES_MAX, 0, 9);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t length = lengths[i], third = length / 3;
        struct iovec body[3] = {{.iov_base = bytes, .iov_len = third},
                                {.iov_base = bytes + third, .iov_len = third},
                                {.iov_base = bytes + 2 * third, .iov_len = length - 2 * third}};
        te_reply reply = {.body = back, .body_size = length};
        memset(back, 0, length);
        CHECK_STATUS(te_call(channel, KIT_ECHO, 0, body, 3, &reply, in_ms(10000)), MS_OK);
        CHECK(reply.header.body_length == length && has_pattern(back, length, 0, 9));
        te_reply grown = {.grow = true};
        CHECK_STATUS(te_call(channel, KIT_ECHO, 0, body, 3, &grown, in_ms(10000)), MS_OK);
        CHECK(grown.header.body_length == length && has_pattern(grown.body, length, 0, 9));
        free(grown.body);
        /* The same as payload, alone and beside room for a body. */
        memset(back, 0, length);
        te_reply payload = {.payload = back, .payload_size = length};
        CHECK_STATUS(te_call(channel, KIT_PAYLOAD, 0, body, 3, &payload, in_ms(10000)), MS_OK);
        CHECK(payload.header.payload_length == length && has_pattern(back, length, 0, 9));
        uint8_t room[100];
        memset(back, 0, length);
        te_reply both = {
            .body = room, .body_size = sizeof room, .payload = back, .payload_size = length};
        CHECK_STATUS(te_call(channel, KIT_PAYLOAD, 0, body, 3, &both, in_ms(10000)), MS_OK);
        CHECK(both.header.payload_length == length && has_pattern(back, length, 0, 9));
    }
    CHECK(atomic_load(&served.hellos) == 1); /* all over one connection */
    free(bytes);
    free(back);
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
}

static void calls_over_v4(void) { calls_on("127.0.0.1", false); }
static void calls_over_v6(void) { calls_on("::1", false); }
static void calls_over_unix(void) { calls_on("127.0.0.1", true); }

static void answers_that_do_not_fit_are_told(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, NULL, 2);
    uint8_t bytes[3000] = {0}, back[2000];
    char error[TE_ERROR_BYTES];
    struct iovec body = {.iov_base = bytes, .iov_len = sizeof bytes};
    te_reply reply = {.body = back, .body_size = sizeof back};
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, &body, 1, &reply, in_ms(5000)), MS_LIMIT);
    te_channel_error(channel, error);
    CHECK(strstr(error, "3000 bytes, there is room for 2000") != NULL);
    reply = (te_reply){.payload = back, .payload_size = sizeof back};
    CHECK_STATUS(te_call(channel, KIT_PAYLOAD, 0, &body, 1, &reply, in_ms(5000)), MS_LIMIT);
    call_echo(channel, "a new connection");
    CHECK(atomic_load(&served.hellos) == 3);

    /* The sentence of a refusal: where there is room, and where only payload was expected. */
    reply = (te_reply){.body = back, .body_size = sizeof back};
    CHECK_STATUS(te_call(channel, KIT_REFUSE, 0, NULL, 0, &reply, in_ms(5000)), MS_OK);
    CHECK(reply.header.status == MS_NOT_FOUND && memcmp(back, "no such luck", 12) == 0);
    reply = (te_reply){.body = back, .body_size = 5};
    CHECK_STATUS(te_call(channel, KIT_REFUSE, 0, NULL, 0, &reply, in_ms(5000)), MS_OK);
    CHECK(reply.header.status == MS_NOT_FOUND && reply.header.body_length == 5 &&
          memcmp(back, "no su", 5) == 0);
    reply = (te_reply){.payload = back, .payload_size = 5};
    CHECK_STATUS(te_call(channel, KIT_REFUSE, 0, NULL, 0, &reply, in_ms(5000)), MS_OK);
    CHECK(reply.header.status == MS_NOT_FOUND && reply.header.body_length == 0);
    te_channel_error(channel, error);
    CHECK(strcmp(error, "no such luck") == 0);
    reply = (te_reply){.grow = true};
    CHECK_STATUS(te_call(channel, KIT_REFUSE, 0, NULL, 0, &reply, in_ms(5000)), MS_OK);
    CHECK(reply.header.body_length == 12 && memcmp(reply.body, "no such luck", 12) == 0);
    free(reply.body);
    call_echo(channel, "the same connection");
    CHECK(atomic_load(&served.hellos) == 3);

    struct iovec huge = {.iov_base = bytes, .iov_len = MS_BODY_BYTES_MAX + 1};
    reply = (te_reply){.body = back, .body_size = sizeof back};
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, &huge, 1, &reply, in_ms(5000)), MS_TOO_LARGE);
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, NULL, 0, &reply, TE_NO_DEADLINE), MS_BAD_REQUEST);
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
}

static void simple_calls_give_everything(void) {
    kit served;
    kit_open(&served, "127.0.0.1", true, 4096, NULL);
    te_engine *asker = kit_asker();
    char address[128], error[TE_ERROR_BYTES] = "";
    for (int over_unix = 0; over_unix < 2; over_unix++) {
        te_channel *channel;
        snprintf(address, sizeof address, over_unix ? "unix:%s" : "%s",
                 over_unix ? served.unix_path : served.address);
        CHECK_STATUS(te_channel_open_simple(asker, address, NULL, 0, &channel), MS_OK);
        uint8_t *answer;
        size_t length;
        uint64_t offset;
        uint32_t status;
        CHECK_STATUS(te_call_simple(channel, KIT_ECHO, 0, (const uint8_t *)"abc", 3, &answer,
                                    &length, &offset, &status, in_ms(5000), error),
                     MS_OK);
        CHECK(length == 3 && offset == 3 && status == MS_OK && memcmp(answer, "abc", 3) == 0);
        te_release(answer);
        CHECK_STATUS(te_call_simple(channel, KIT_PAYLOAD, 0, (const uint8_t *)"abcd", 4, &answer,
                                    &length, &offset, &status, in_ms(5000), error),
                     MS_OK);
        CHECK(length == 4 && offset == 0 && memcmp(answer, "abcd", 4) == 0);
        te_release(answer);
        /* READ: payload and trailer. */
        struct {
            uint32_t count, zero;
            ms_read_item item;
        } read = {1, 0, {.segment = 1, .offset = 8, .length = 100}};
        CHECK_STATUS(te_call_simple(channel, MS_READ, 0, (const uint8_t *)&read, sizeof read,
                                    &answer, &length, &offset, &status, in_ms(5000), error),
                     MS_OK);
        CHECK(length == 100 + sizeof(ms_read_result) && has_pattern(answer, 100, 8, 1));
        te_release(answer);
        te_channel_close(channel);
    }
    te_channel *channel;
    CHECK_STATUS(te_channel_open_simple(asker, "localhost:80", NULL, 0, &channel), MS_BAD_REQUEST);
    CHECK_STATUS(te_channel_open_simple(asker, "::1:80", NULL, 0, &channel), MS_BAD_REQUEST);
    CHECK_STATUS(te_channel_open_simple(asker, "127.0.0.1:", NULL, 0, &channel), MS_BAD_REQUEST);
    CHECK_STATUS(te_channel_open_simple(asker, "127.0.0.1:99999999", NULL, 0, &channel),
                 MS_BAD_REQUEST);
    CHECK_STATUS(te_channel_open_simple(asker, "", NULL, 0, &channel), MS_BAD_REQUEST);
    CHECK_STATUS(te_channel_open_simple(asker, "unix:", NULL, 0, &channel), MS_BAD_REQUEST);
    te_engine_close(asker);
    kit_close_all(&served);
}

/* ---- deadlines ------------------------------------------------------------------------------------------ */

static void expect_timeout(te_channel *channel, uint16_t method, const struct iovec *body,
                           int64_t limit_ms) {
    uint8_t back[64];
    te_reply reply = {.body = back, .body_size = sizeof back};
    int64_t begin = te_now_ns();
    CHECK_STATUS(te_call(channel, method, 0, body, body != NULL, &reply, in_ms(limit_ms)),
                 MS_TIMEOUT);
    int64_t took = elapsed_ms(begin);
    CHECK(took >= limit_ms - 1 && took < limit_ms + 1000);
}

static void silent_peers_time_out(void) {
    kit served;
    kit_open(&served, "127.0.0.1", true, 0, NULL);
    te_engine *asker = kit_asker();
    for (int over_unix = 0; over_unix < 2; over_unix++) {
        te_channel *channel =
            kit_channel(asker, served.address, over_unix ? served.unix_path : NULL, 2);
        expect_timeout(channel, KIT_SILENT, NULL, 50);
        expect_timeout(channel, KIT_SILENT, NULL, 350);
        call_echo(channel, "the connection was replaced");
        te_channel_close(channel);
    }
    te_engine_close(asker);
    kit_close_all(&served);
}

/* A process that is stopped: the kernel still accepts and takes bytes, nobody answers. */
static void frozen_peers_time_out(void) {
    int ready[2];
    CHECK(pipe(ready) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        kit served;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        kit_open(&served, "127.0.0.1", false, 64 * MIB, NULL);
        CHECK(write(ready[1], &served.port, sizeof served.port) == sizeof served.port);
        pause();
    }
    uint16_t port;
    char address[64];
    CHECK(read(ready[0], &port, sizeof port) == sizeof port);
    snprintf(address, sizeof address, "127.0.0.1:%u", (unsigned)port);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, address, NULL, 4);
    call_echo(channel, "awake");
    int state;
    kill(child, SIGSTOP);
    CHECK(waitpid(child, &state, WUNTRACED) == child && WIFSTOPPED(state));
    expect_timeout(channel, KIT_ECHO, NULL, 200); /* on a warm connection */
    expect_timeout(channel, KIT_ECHO, NULL, 200); /* on a new one: HELLO is not answered */
    uint8_t *bytes = calloc(1, 48 * MIB);
    CHECK(bytes != NULL);
    ms_read_item read = {.segment = 1, .length = 48 * MIB};
    ms_write_item write = {.segment = 1, .length = 48 * MIB};
    void *target = bytes;
    const void *source = bytes;
    ms_read_result result;
    uint32_t status;
    int64_t begin = te_now_ns();
    CHECK_STATUS(te_read(channel, &read, &target, 1, &result, in_ms(200)), MS_TIMEOUT);
    CHECK_STATUS(te_write(channel, &write, &source, 1, NULL, 0, 0, &status, in_ms(200)),
                 MS_TIMEOUT);
    CHECK(result.status == MS_TIMEOUT && status == MS_TIMEOUT && elapsed_ms(begin) < 2000);
    kill(child, SIGCONT);
    call_echo(channel, "awake again");
    /* Frozen in the middle of large transfers: the targets are ours again when the call returns. */
    for (int round = 0; round < 6; round++) {
        pid_t stopper = fork();
        CHECK(stopper >= 0);
        if (stopper == 0) {
            usleep(2000 + (useconds_t)round * 1500);
            kill(child, SIGSTOP);
            usleep(400000);
            kill(child, SIGCONT);
            _exit(0);
        }
        begin = te_now_ns();
        ms_status outcome =
            round % 2 ? te_read(channel, &read, &target, 1, &result, in_ms(150))
                      : te_write(channel, &write, &source, 1, NULL, 0, 0, &status, in_ms(150));
        CHECK(outcome == MS_OK || outcome == MS_TIMEOUT);
        CHECK(elapsed_ms(begin) < 1500);
        if (round % 2) {
            memset(bytes, 0x5a, 48 * MIB);
            usleep(20000);
            CHECK(is_all(bytes, 48 * MIB, 0x5a));
        }
        CHECK(waitpid(stopper, &state, 0) == stopper);
    }
    call_echo(channel, "and again");
    te_channel_close(channel);
    te_engine_close(asker);
    free(bytes);
    kill(child, SIGKILL);
    CHECK(waitpid(child, &state, 0) == child);
    close(ready[0]);
    close(ready[1]);
}

/* Listens, but never accepts. */
static int deaf_listener(char address[64]) {
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in bound = {.sin_family = AF_INET};
    socklen_t length = sizeof bound;
    bound.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(descriptor, (struct sockaddr *)&bound, sizeof bound) == 0 &&
          listen(descriptor, 4) == 0);
    CHECK(getsockname(descriptor, (struct sockaddr *)&bound, &length) == 0);
    snprintf(address, 64, "127.0.0.1:%u", (unsigned)ntohs(bound.sin_port));
    return descriptor;
}

static void nobody_there_is_told_at_once(void) {
    char address[64], error[TE_ERROR_BYTES];
    int deaf = deaf_listener(address);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, address, NULL, 2);
    expect_timeout(channel, KIT_ECHO, NULL, 100);
    te_channel_close(channel);
    close(deaf);
    channel = kit_channel(asker, address, NULL, 2);
    te_reply reply = {0};
    int64_t begin = te_now_ns();
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, NULL, 0, &reply, in_ms(5000)), MS_UNAVAILABLE);
    CHECK(elapsed_ms(begin) < 1000);
    te_channel_error(channel, error);
    CHECK(strstr(error, "cannot connect to 127.0.0.1:") != NULL);
    te_channel_close(channel);
    channel = kit_channel(asker, NULL, "/tmp/te-test-there-is-no-such-socket", 2);
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, NULL, 0, &reply, in_ms(5000)), MS_UNAVAILABLE);
    te_channel_close(channel);
    te_engine_close(asker);
}

/* ---- liars ---------------------------------------------------------------------------------------------- */

/* Answers HELLO as it should, and the next request with `answer`. */
static void *lie(void *argument) {
    ms_header *lying = argument;
    int listener = (int)lying[1].request;
    for (int round = 0; round < 2; round++) { /* a read is repeated once on another connection */
        int descriptor = accept(listener, NULL, NULL);
        if (descriptor < 0) {
            break;
        }
        ms_header header;
        uint8_t body[4096];
        CHECK(recv(descriptor, &header, sizeof header, MSG_WAITALL) == sizeof header);
        CHECK(recv(descriptor, body, header.body_length, MSG_WAITALL) == header.body_length);
        ms_header hello = {.magic = MS_MAGIC,
                           .version = MS_WIRE_VERSION,
                           .kind = MS_ANSWER,
                           .method = MS_HELLO,
                           .request = header.request};
        CHECK(send(descriptor, &hello, sizeof hello, MSG_NOSIGNAL) == sizeof hello);
        if (recv(descriptor, &header, sizeof header, MSG_WAITALL) == sizeof header) {
            CHECK(recv(descriptor, body, header.body_length, MSG_WAITALL) == header.body_length);
            ms_header answer = lying[0];
            answer.request += header.request;
            uint8_t more[4096] = {0};
            memcpy(more, &answer, sizeof answer);
            (void)send(descriptor, more, sizeof more, MSG_NOSIGNAL);
        }
        while (recv(descriptor, body, sizeof body, 0) > 0) {
        }
        close(descriptor);
        break;
    }
    return NULL;
}

static void answers_that_lie_are_refused(void) {
    ms_header right = {
        .magic = MS_MAGIC, .version = MS_WIRE_VERSION, .kind = MS_ANSWER, .method = MS_READ};
    for (int i = 0; i < 11; i++) {
        ms_header lying[2] = {right, {0}};
        ms_status wanted = MS_BAD_FRAME;
        lying[0].trailer_length = sizeof(ms_read_result);
        lying[0].payload_length = 100;
        switch (i) {
        case 0:
            lying[0].magic = 1;
            break;
        case 1:
            lying[0].version = 9, wanted = MS_VERSION_MISMATCH;
            break;
        case 2:
            lying[0].kind = MS_REQUEST;
            break;
        case 3:
            lying[0].request = 1;
            break;
        case 4:
            lying[0].method = MS_WRITE;
            break;
        case 5:
            lying[0].payload_length = 101;
            break;
        case 6:
            lying[0].trailer_length = 8;
            break;
        case 7:
            lying[0].body_length = 8;
            break;
        case 8:
            lying[0].payload_length = 60;
            break; /* the item's status says OK: 100 bytes */
        case 9:
            lying[0].body_length = UINT32_MAX;
            break;
        default:
            lying[0].status = 1000;
            break;
        }
        char address[64];
        int listener = deaf_listener(address);
        lying[1].request = (uint64_t)listener;
        pthread_t liar;
        CHECK(pthread_create(&liar, NULL, lie, lying) == 0);
        te_engine *asker = kit_asker();
        te_channel *channel = kit_channel(asker, address, NULL, 1);
        uint8_t target[100];
        void *targets[] = {target};
        ms_read_item item = {.segment = 1, .length = sizeof target};
        ms_read_result result;
        CHECK_STATUS(te_read(channel, &item, targets, 1, &result, in_ms(3000)), wanted);
        CHECK_STATUS(result.status, wanted);
        te_channel_close(channel);
        te_engine_close(asker);
        pthread_join(liar, NULL);
        close(listener);
    }
}

/* ---- the pool --------------------------------------------------------------------------------------------- */

static bool always(void *match_context, void *peer_context) {
    (void)match_context;
    (void)peer_context;
    return true;
}

static void dead_connections_are_replaced(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, NULL, 4);
    for (int round = 0; round < 5; round++) {
        call_echo(channel, "before");
        CHECK(te_close_matching(served.engine, always, NULL, "the test cuts") == 1);
        wait_at_least(&served.closes, 2 * round + 1);
        call_echo(channel, "after");
        CHECK(te_close_matching(served.engine, always, NULL, "the test cuts") == 1);
        wait_at_least(&served.closes, 2 * round + 2);
    }
    /* The whole process is another one, at the same address. */
    char address[64];
    snprintf(address, sizeof address, "%s", served.address);
    uint16_t port = served.port;
    kit_close_all(&served);
    te_reply reply = {0};
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, NULL, 0, &reply, in_ms(1000)), MS_UNAVAILABLE);
    te_engine_config config;
    te_engine_config_default(&config);
    te_engine *again;
    char error[TE_ERROR_BYTES];
    CHECK_STATUS(te_engine_open(&config, &again), MS_OK);
    CHECK_STATUS(te_listen_tcp(again, "127.0.0.1", port, &port, error), MS_OK);
    CHECK_STATUS(te_call(channel, MS_PING, 0, NULL, 0, &reply, in_ms(5000)), MS_OK);
    CHECK(reply.header.status == MS_OK);
    te_channel_close(channel);
    te_engine_close(asker);
    te_engine_close(again);
}

typedef struct outsider {
    te_channel *channel;
    ms_status status;
    int64_t waited_ms;
} outsider;

/* A thread that holds nothing. */
static void *come_from_outside(void *argument) {
    outsider *one = argument;
    te_connection *connection;
    int64_t begin = te_now_ns();
    one->status = te_checkout(one->channel, in_ms(60), &connection);
    one->waited_ms = elapsed_ms(begin);
    return NULL;
}

static void the_pool_is_bounded(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, NULL, 2);
    te_connection *first, *second, *third, *fourth, *more;
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &first), MS_OK);
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &second), MS_OK);
    CHECK(te_next_request(first) != te_next_request(second));
    outsider one = {.channel = channel};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, come_from_outside, &one) == 0);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK_STATUS(one.status, MS_TIMEOUT);
    CHECK(one.waited_ms >= 59 && one.waited_ms < 1000);
    char error[TE_ERROR_BYTES];
    te_channel_error(channel, error);
    CHECK(strstr(error, "all 2 connections") != NULL);

    /* Who holds some already need not wait for others who do so too, up to twice as many. */
    CHECK_STATUS(te_checkout_try(channel, in_ms(1000), &more), MS_LIMIT);
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &third), MS_OK);
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &fourth), MS_OK);
    CHECK_STATUS(te_checkout(channel, in_ms(60), &more), MS_TIMEOUT);
    te_checkin(fourth, true); /* not kept: there are more than two */
    te_checkin(third, true);
    CHECK(atomic_load(&served.hellos) == 4);
    te_checkin(first, true);
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &third), MS_OK);
    CHECK(third == first);
    te_checkin(second, false); /* closed: its place is free */
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &second), MS_OK);
    te_checkin(second, true);
    te_checkin(third, true);
    CHECK(atomic_load(&served.hellos) == 5);
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
}

typedef struct caller {
    te_channel *channel;
    pthread_t thread;
    uint64_t number;
    int calls;
} caller;

static void *call_often(void *argument) {
    caller *own = argument;
    for (int i = 0; i < own->calls; i++) {
        uint64_t sent[2] = {own->number, (uint64_t)i}, back[2] = {0};
        struct iovec body = {.iov_base = sent, .iov_len = sizeof sent};
        te_reply reply = {.body = (uint8_t *)back, .body_size = sizeof back};
        CHECK_STATUS(te_call(own->channel, KIT_ECHO, 0, &body, 1, &reply, in_ms(20000)), MS_OK);
        CHECK(back[0] == sent[0] && back[1] == sent[1]);
    }
    return NULL;
}

static void threads_share_few_connections(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, NULL, 3);
    caller callers[12];
    for (uint64_t i = 0; i < 12; i++) {
        callers[i] = (caller){.channel = channel, .number = i, .calls = 200};
        CHECK(pthread_create(&callers[i].thread, NULL, call_often, &callers[i]) == 0);
    }
    for (int i = 0; i < 12; i++) {
        pthread_join(callers[i].thread, NULL);
    }
    CHECK(atomic_load(&served.hellos) <= 3 && atomic_load(&served.requests) == 2400);
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
}

static void *call_silent(void *argument) {
    te_reply reply = {0};
    int64_t begin = te_now_ns();
    ms_status status = te_call(argument, KIT_SILENT, 0, NULL, 0, &reply, in_ms(20000));
    CHECK(status == MS_UNAVAILABLE || status == MS_CLOSED);
    CHECK(elapsed_ms(begin) < 10000);
    return NULL;
}

static void closing_a_channel_wakes_its_callers(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, NULL, 2);
    pthread_t threads[3]; /* one of them waits for a connection */
    for (int i = 0; i < 3; i++) {
        CHECK(pthread_create(&threads[i], NULL, call_silent, channel) == 0);
    }
    wait_at_least(&served.requests, 2);
    usleep(10000);
    te_channel_close(channel);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
    }
    te_engine_close(asker);
    kit_close_all(&served);
}

/* Another leader: who waits for the old one is let go, and everything from then on goes to the new one. */
static void a_channel_moves_to_another_peer(void) {
    kit served[2];
    for (int i = 0; i < 2; i++)
        kit_open(&served[i], "127.0.0.1", true, 0, NULL);
    te_engine *asker = kit_asker();
    for (int over_unix = 0; over_unix < 2; over_unix++) {
        /* Two rails, so that there is room for a socket. */
        char addresses[256];
        snprintf(addresses, sizeof addresses, "%s,%s", served[0].address, served[0].address);
        te_channel *channel = kit_channel(asker, addresses, NULL, 2);
        te_channel_health health;
        te_channel_get_health(channel, &health);
        CHECK(health.failures == 0 && health.waiting_ns == 0);
        call_echo(channel, "at the first");
        te_channel_get_health(channel, &health);
        CHECK(health.failures == 0 && health.waiting_ns == 0);
        int at_first = served[0].requests, at_second = served[1].requests;
        pthread_t waiting;
        CHECK(pthread_create(&waiting, NULL, call_silent, channel) == 0);
        wait_at_least(&served[0].requests, at_first + 1);
        usleep(20000);
        te_channel_get_health(channel, &health);
        CHECK(health.waiting_ns >= 10000000);
        CHECK_STATUS(te_channel_move(channel, "nonsense", NULL), MS_BAD_REQUEST);
        CHECK_STATUS(
            te_channel_move(channel, served[1].address, over_unix ? served[1].unix_path : NULL),
            MS_OK);
        pthread_join(waiting, NULL);
        te_channel_get_health(channel, &health);
        CHECK(health.failures == 1 && health.waiting_ns == 0);
        for (int i = 0; i < 5; i++)
            call_echo(channel, "at the second");
        CHECK(te_channel_is_local(channel) == over_unix);
        CHECK(served[1].requests >= at_second + 5);
        te_channel_close(channel);
    }
    te_engine_close(asker);
    for (int i = 0; i < 2; i++)
        kit_close_all(&served[i]);
}

/* A frozen peer's kernel accepts, and nobody answers HELLO: such a dial is a wait like others. */
static void dials_that_wait_are_seen_and_broken_off(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    char address[64], addresses[160];
    int deaf = deaf_listener(address);
    snprintf(addresses, sizeof addresses, "%s,%s", address, address);
    te_engine *asker = kit_asker();
    for (int way = 0; way < 3; way++) {
        te_channel *channel = kit_channel(asker, addresses, NULL, 2);
        pthread_t waiting;
        CHECK(pthread_create(&waiting, NULL, call_silent, channel) == 0);
        te_channel_health health = {0};
        for (int64_t begin = te_now_ns(); health.waiting_ns < 20000000; usleep(1000)) {
            CHECK(elapsed_ms(begin) < 10000);
            te_channel_get_health(channel, &health);
        }
        if (way == 0) {
            te_channel_break_off(channel);
        } else if (way == 1) {
            CHECK_STATUS(te_channel_move(channel, served.address, NULL), MS_OK);
        }
        if (way == 2) {
            te_channel_close(channel);
            pthread_join(waiting, NULL);
            continue;
        }
        pthread_join(waiting, NULL);
        te_channel_get_health(channel, &health);
        CHECK(health.waiting_ns == 0);
        if (way == 1)
            call_echo(channel, "elsewhere");
        te_channel_close(channel);
    }
    te_engine_close(asker);
    close(deaf);
    kit_close_all(&served);
}

static void a_new_hello_is_said(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, NULL, 2);
    ms_hello hello = {.version_oldest = 1, .version_newest = 1, .session = 4711, .epoch = 12};
    call_echo(channel, "old");
    te_connection *held;
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &held), MS_OK);
    te_channel_set_hello(channel, &hello, sizeof hello);
    call_echo(channel, "new");
    ms_hello_answer answer;
    uint8_t bytes[256];
    CHECK(te_channel_hello_answer(channel, bytes, sizeof bytes) >= sizeof answer);
    memcpy(&answer, bytes, sizeof answer);
    CHECK(answer.session == 4711);
    te_checkin(held, true); /* said the old HELLO: closed */
    wait_at_least(&served.closes, 1);
    call_echo(channel, "new again");
    CHECK(atomic_load(&served.hellos) == 2);

    /* A refusal is an answer: it is told, with its sentence, and no other rail is bothered. */
    atomic_store(&served.refuse_hello, MS_SESSION_LOST);
    te_channel_set_hello(channel, &hello, sizeof hello);
    te_reply reply = {0};
    char error[TE_ERROR_BYTES];
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, NULL, 0, &reply, in_ms(1000)), MS_SESSION_LOST);
    te_channel_error(channel, error);
    CHECK(strstr(error, "the test refuses HELLO") != NULL);
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
}

/* Whoever connects meanwhile, or afterwards, says the channel's HELLO and is given no connection of that one. */
static void a_hello_may_be_said_once(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, NULL, 2);
    ms_hello of_all = {.version_oldest = 1, .version_newest = 1, .session = 4711};
    ms_hello of_one = {.version_oldest = 1, .version_newest = 1, .session = 12};
    te_channel_set_hello(channel, &of_all, sizeof of_all);
    ms_hello_answer answer;
    uint8_t bytes[256];
    size_t length;
    te_connection *own, *other;
    CHECK_STATUS(te_checkout_saying(channel, &of_one, sizeof of_one, in_ms(1000), &own, bytes,
                                    sizeof bytes, &length),
                 MS_OK);
    CHECK(length >= sizeof answer && length <= sizeof bytes);
    memcpy(&answer, bytes, sizeof answer);
    CHECK(answer.session == 12);
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &other), MS_OK);
    CHECK(te_channel_hello_answer(channel, bytes, sizeof bytes) >= sizeof answer);
    memcpy(&answer, bytes, sizeof answer);
    CHECK(answer.session == 4711);
    te_checkin(other, true);
    te_checkin(own, true);
    wait_at_least(&served.closes, 1);
    call_echo(channel, "as ever");
    CHECK(atomic_load(&served.hellos) == 2);

    /* Where all places are taken, an idle one makes room ... */
    te_connection *third;
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &other), MS_OK);
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &third), MS_OK);
    te_checkin(third, true);
    CHECK_STATUS(te_checkout_saying(channel, &of_one, sizeof of_one, in_ms(1000), &own, bytes,
                                    sizeof bytes, &length),
                 MS_OK);
    te_checkin(own, true);
    te_checkin(other, true);
    wait_at_least(&served.closes, 3);

    /* ... and one that is refused leaves nothing behind. */
    atomic_store(&served.refuse_hello, MS_SESSION_LOST);
    CHECK_STATUS(
        te_checkout_saying(channel, &of_one, sizeof of_one, in_ms(1000), &own, bytes, 4, &length),
        MS_SESSION_LOST);
    atomic_store(&served.refuse_hello, MS_OK);
    CHECK(own == NULL);
    CHECK_STATUS(te_checkout(channel, in_ms(1000), &other), MS_OK);
    te_checkin(other, false); /* the next call connects anew */
    call_echo(channel, "again");
    CHECK(te_channel_hello_answer(channel, bytes, sizeof bytes) >= sizeof answer);
    memcpy(&answer, bytes, sizeof answer);
    CHECK(answer.session == 4711);
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
}

/* ---- in parts ------------------------------------------------------------------------------------------------ */

static void exchanges_may_span_frames_and_peers(void) {
    kit a, b;
    kit_open(&a, "127.0.0.1", false, 0, NULL);
    kit_open(&b, "::1", true, 0, NULL);
    te_engine *asker = kit_asker();
    te_channel *to_a = kit_channel(asker, a.address, NULL, 2),
               *to_b = kit_channel(asker, b.address, b.unix_path, 2);
    for (int round = 0; round < 4; round++) {
        te_connection *first, *second;
        CHECK_STATUS(te_checkout(to_a, in_ms(1000), &first), MS_OK);
        CHECK_STATUS(te_checkout(to_b, in_ms(1000), &second), MS_OK);
        int which = -1;
        CHECK_STATUS(te_wait_either(first, second, &which, in_ms(30)), MS_TIMEOUT);
        uint64_t request = te_next_request(first);
        struct iovec body = {.iov_base = "frames", .iov_len = 6};
        CHECK_STATUS(te_send(round % 2 ? first : second, MS_REQUEST,
                             round < 2 ? KIT_ECHO : KIT_LATER, 0, request, 1000, &body, 1, NULL, 0,
                             in_ms(1000)),
                     MS_OK);
        CHECK_STATUS(te_wait_either(first, second, &which, in_ms(2000)), MS_OK);
        CHECK(which == (round % 2 ? 0 : 1));
        uint8_t back[16];
        te_reply reply = {.body = back, .body_size = sizeof back};
        CHECK_STATUS(te_receive(which == 0 ? first : second, &reply, in_ms(1000)), MS_OK);
        CHECK(reply.header.request == request && memcmp(back, "frames", 6) == 0);
        te_checkin(first, true);
        te_checkin(second, true);
    }
    te_channel_close(to_a);
    te_channel_close(to_b);
    te_engine_close(asker);
    kit_close_all(&a);
    kit_close_all(&b);
}

static void a_unix_socket_that_comes_back_is_used_again(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    snprintf(served.unix_path, sizeof served.unix_path, "/tmp/te-test-%d-back.sock", (int)getpid());
    te_engine *asker = kit_asker();
    te_channel *channel = kit_channel(asker, served.address, served.unix_path, 2);
    call_echo(channel, "over TCP");
    CHECK(!te_channel_is_local(channel));
    call_echo(channel, "still");
    CHECK(atomic_load(&served.hellos) == 1); /* not tried again with each call */
    char error[TE_ERROR_BYTES];
    CHECK_STATUS(te_listen_unix(served.engine, served.unix_path, error), MS_OK);
    int64_t deadline_ns = in_ms(10000);
    while (!te_channel_is_local(channel)) {
        CHECK(te_now_ns() < deadline_ns);
        call_echo(channel, "again");
        usleep(10000);
    }
    int hellos = atomic_load(&served.hellos);
    call_echo(channel, "over the socket");
    CHECK(atomic_load(&served.hellos) == hellos);
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&served);
}

/* ---- rails ------------------------------------------------------------------------------------------------------ */

static void rails_share_the_load_and_fail_over(void) {
    kit a, b;
    kit_open(&a, "127.0.0.1", false, 4 * MIB, NULL); /* two ways to "one" peer */
    kit_open(&b, "::1", false, 4 * MIB, NULL);
    char addresses[160], dead[64];
    int listener = deaf_listener(dead);
    close(listener);
    te_engine *asker = kit_asker();
    snprintf(addresses, sizeof addresses, "%s,%s", a.address, b.address);
    te_channel *channel = kit_channel(asker, addresses, NULL, 4);
    te_connection *held[4];
    for (int i = 0; i < 4; i++) {
        CHECK_STATUS(te_checkout(channel, in_ms(1000), &held[i]), MS_OK);
    }
    CHECK(atomic_load(&a.hellos) == 2 && atomic_load(&b.hellos) == 2);
    for (int i = 0; i < 4; i++) {
        te_checkin(held[i], true);
    }
    /* One rail dies: calls go on over the other, without an error. */
    te_segment_remove(a.engine, 1);
    kit_close_all(&a);
    for (int i = 0; i < 50; i++) {
        call_echo(channel, "over what is left");
    }
    uint8_t target[1000];
    void *targets[] = {target};
    ms_read_item item = {.segment = 1, .offset = 77, .length = sizeof target};
    ms_read_result result;
    CHECK_STATUS(te_read(channel, &item, targets, 1, &result, in_ms(2000)), MS_OK);
    CHECK(result.status == MS_OK && has_pattern(target, sizeof target, 77, 1));
    te_channel_close(channel);

    /* A dead Unix socket and a dead address before a living one. */
    snprintf(addresses, sizeof addresses, "%s,%s", dead, b.address);
    channel = kit_channel(asker, addresses, "/tmp/te-test-there-is-no-such-socket", 2);
    for (int i = 0; i < 5; i++) {
        call_echo(channel, "found");
        te_channel_set_hello(channel, NULL, 0); /* dial again */
    }
    te_channel_close(channel);
    te_engine_close(asker);
    kit_close_all(&b);
}

/* A rail that swallows what it is sent costs its part of the deadline, then the other one is
 * used. */
static void a_black_hole_is_left(void) {
    kit served;
    kit_open(&served, "127.0.0.1", false, 0, NULL);
    char addresses[160], deaf_address[64];
    int deaf = deaf_listener(deaf_address);
    te_engine *asker = kit_asker();
    snprintf(addresses, sizeof addresses, "%s,%s", deaf_address, served.address);
    te_channel_config config = {
        .addresses = addresses, .connections_max = 2, .connect_timeout_ms = 100};
    te_channel *channel;
    CHECK_STATUS(te_channel_open(asker, &config, &channel), MS_OK);
    te_reply reply = {0};
    int64_t begin = te_now_ns();
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, NULL, 0, &reply, in_ms(2000)), MS_OK);
    CHECK(elapsed_ms(begin) < 1500);
    te_channel_close(channel);
    te_engine_close(asker);
    close(deaf);
    kit_close_all(&served);
}

/* ---- workers ------------------------------------------------------------------------------------------------------ */

static _Atomic int jobs_done;

static void slow_job(void *argument) {
    usleep(200);
    atomic_fetch_add(&jobs_done, *(int *)argument);
}

static void the_queue_of_workers_is_bounded(void) {
    te_engine *engine = kit_asker();
    int one = 1, given = 0;
    ms_status status = MS_OK;
    while (given < 6000 && (status = te_spawn(engine, slow_job, &one)) == MS_OK) {
        given++;
    }
    CHECK_STATUS(status, MS_LIMIT);
    CHECK(given >= 4096);
    te_engine_close(engine); /* runs what was accepted */
    CHECK(atomic_load(&jobs_done) == given);
}

int main(int argc, char **argv) {
    RUN(calls_over_v4);
    RUN(calls_over_v6);
    RUN(calls_over_unix);
    RUN(answers_that_do_not_fit_are_told);
    RUN(simple_calls_give_everything);
    RUN(silent_peers_time_out);
    RUN(frozen_peers_time_out);
    RUN(nobody_there_is_told_at_once);
    RUN(answers_that_lie_are_refused);
    RUN(dead_connections_are_replaced);
    RUN(the_pool_is_bounded);
    RUN(threads_share_few_connections);
    RUN(closing_a_channel_wakes_its_callers);
    RUN(a_channel_moves_to_another_peer);
    RUN(dials_that_wait_are_seen_and_broken_off);
    RUN(a_new_hello_is_said);
    RUN(a_hello_may_be_said_once);
    RUN(exchanges_may_span_frames_and_peers);
    RUN(a_unix_socket_that_comes_back_is_used_again);
    RUN(rails_share_the_load_and_fail_over);
    RUN(a_black_hole_is_left);
    RUN(the_queue_of_workers_is_bounded);
    return 0;
}
