/* A client without any of our code, to tell an engine what no engine would. */
#ifndef ENGINE_RAW_H
#define ENGINE_RAW_H

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

static inline int raw_connect(const kit *served) {
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(served->port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(descriptor >= 0);
    CHECK(connect(descriptor, (struct sockaddr *)&address, sizeof address) == 0);
    struct timeval timeout = {.tv_sec = 5};
    CHECK(setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0);
    return descriptor;
}

static inline void raw_send(int descriptor, const void *bytes, size_t length) {
    for (size_t sent = 0; sent < length;) {
        ssize_t some = send(descriptor, (const uint8_t *)bytes + sent, length - sent, MSG_NOSIGNAL);
        CHECK(some > 0);
        sent += (size_t)some;
    }
}

/* True when all came; false at the end of the stream (also a reset). */
static inline bool raw_receive(int descriptor, void *bytes, size_t length) {
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

static inline ms_header frame(uint8_t kind, uint16_t method, uint64_t request,
                              uint32_t body_length) {
    return (ms_header){.magic = MS_MAGIC,
                       .version = MS_WIRE_VERSION,
                       .kind = kind,
                       .method = method,
                       .request = request,
                       .body_length = body_length};
}

static inline void raw_hello_with(int descriptor, ms_hello hello) {
    ms_header header = frame(MS_REQUEST, MS_HELLO, 1, sizeof hello);
    raw_send(descriptor, &header, sizeof header);
    raw_send(descriptor, &hello, sizeof hello);
}

static inline int raw_open(const kit *served, uint64_t session) {
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

static inline bool is_closed(int descriptor) {
    uint8_t byte;
    return !raw_receive(descriptor, &byte, 1);
}

/* The typed answer, its sentence, and the end of the stream. */
static inline void expect_refusal(int descriptor, ms_status status, const char *part) {
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

static inline void expect_log(kit *served, const char *part) {
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

static inline void expect_echo(int descriptor, uint64_t request, const char *text) {
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

#endif
