/* The accepting side: HELLO, bad input, answers in and out of order. */
// sources: transfer_engine/src/*.c mooncake_store/protocol/src/*.c
// timeout: 200
#include "engine_raw.h"

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
    expect_refusal(descriptor, MS_BAD_FRAME, "at least 48 bytes");

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

int main(int argc, char **argv) {
    RUN(hello_opens_a_connection);
    RUN(hello_is_refused_with_reasons);
    RUN(bad_frames_close_their_connection_only);
    RUN(lying_batches_are_refused);
    RUN(garbage_harms_nobody);
    RUN(answers_may_come_later_from_another_thread);
    RUN(pipelined_frames_are_answered_in_order);
    RUN(unknown_methods_are_answered);
    return 0;
}
