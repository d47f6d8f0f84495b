/* What a call gives: answers of all sizes, deadlines, peers that are frozen, absent or lie. */
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// timeout: 200
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "channel_kit.h"

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
    CHECK(took >= limit_ms - 1 && took < limit_ms + SLACK_MS);
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
    CHECK(result.status == MS_TIMEOUT && status == MS_TIMEOUT && elapsed_ms(begin) < SLACK_MS);
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
        CHECK(elapsed_ms(begin) < SLACK_MS);
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
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, NULL, 0, &reply, in_ms(4 * SLACK_MS)),
                 MS_UNAVAILABLE);
    CHECK(elapsed_ms(begin) < SLACK_MS);
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
    return 0;
}
