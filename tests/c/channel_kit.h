/* What the tests of channels and of calls over them share. */
#ifndef CHANNEL_KIT_H
#define CHANNEL_KIT_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "engine_kit.h"

#define MIB (1u << 20)

/* How late a thread may come that waits for a processor; who waits for as long as this has been forgotten. */
#define SLACK_MS 15000

static inline int64_t elapsed_ms(int64_t begin) { return (te_now_ns() - begin) / 1000000; }

static inline void call_echo(te_channel *channel, const char *text) {
    char back[64];
    struct iovec body = {.iov_base = (void *)(uintptr_t)text, .iov_len = strlen(text)};
    te_reply reply = {.body = (uint8_t *)back, .body_size = sizeof back};
    CHECK_STATUS(te_call(channel, KIT_ECHO, 0, &body, 1, &reply, in_ms(5000)), MS_OK);
    CHECK(reply.header.status == MS_OK && reply.header.body_length == strlen(text));
    CHECK(memcmp(back, text, strlen(text)) == 0);
}

/* Listens, but never accepts. */
static inline int deaf_listener(char address[64]) {
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

#endif
