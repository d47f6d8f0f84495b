/* One request, one answer. */
#include "te_internal.h"

#include <stdlib.h>
#include <string.h>

#include "te_fault.h"

ms_status te_check_request(te_connection *connection, const ms_header *answer, uint16_t method,
                           uint64_t request) {
    if (answer->request == request && answer->method == method) {
        return MS_OK;
    }
    return te_connection_fail(connection, MS_BAD_FRAME, "the peer answered another request");
}

/* Checks out and sends; a connection that was found dead by the sending is replaced once. */
static ms_status send_request(te_channel *channel, uint16_t method, uint32_t flags,
                              const struct iovec *body, size_t body_count,
                              te_connection **connection, uint64_t *request, int64_t deadline_ns) {
    ms_status status;
    for (int attempt = 0;; attempt++) {
        status = te_checkout(channel, deadline_ns, connection);
        if (status != MS_OK) {
            return status;
        }
        *request = te_next_request(*connection);
        status = te_send(*connection, MS_REQUEST, method, flags, *request,
                         te_deadline_ms(deadline_ns), body, body_count, NULL, 0, deadline_ns);
        if (status == MS_OK) {
            return MS_OK;
        }
        if (status == MS_TOO_LARGE) {
            te_channel_set_error(channel, (*connection)->error);
        }
        te_checkin(*connection, status == MS_TOO_LARGE);
        *connection = NULL;
        if (status != MS_UNAVAILABLE || attempt > 0) {
            return status;
        }
    }
}

ms_status te_call(te_channel *channel, uint16_t method, uint32_t flags, const struct iovec *body,
                  size_t body_count, te_reply *reply, int64_t deadline_ns) {
    te_connection *connection = NULL;
    uint64_t request = 0;
    if (reply->grow) {
        reply->body = NULL;
    }
    ms_status status = te_channel_enter(channel);
    if (status != MS_OK) {
        return status;
    }
    status =
        send_request(channel, method, flags, body, body_count, &connection, &request, deadline_ns);
    if (status == MS_OK) {
        status = te_receive(connection, reply, deadline_ns);
        if (status == MS_OK) {
            status = te_check_request(connection, &reply->header, method, request);
            if (status != MS_OK && reply->grow) {
                free(reply->body);
                reply->body = NULL;
            }
        }
        te_checkin(connection, status == MS_OK);
    }
    te_channel_leave(channel);
    return status;
}

ms_status te_call_simple(te_channel *channel, uint16_t method, uint32_t flags, const uint8_t *body,
                         size_t body_length, uint8_t **answer, size_t *answer_length,
                         uint64_t *payload_offset, uint32_t *answer_status, int64_t deadline_ns,
                         char *error) {
    struct iovec part = {.iov_base = (void *)(uintptr_t)body, .iov_len = body_length};
    te_connection *connection = NULL;
    te_reply reply = {.grow = true};
    uint64_t request = 0;
    *answer = NULL;
    *answer_length = 0;
    ms_status status = te_channel_enter(channel);
    if (status != MS_OK) {
        te_error(error,
                 status == MS_FORKED ? "the channel was opened before a fork" : "it is closed");
        return status;
    }
    status = send_request(channel, method, flags, &part, 1, &connection, &request, deadline_ns);
    if (status == MS_OK) {
        status = te_receive_whole(connection, &reply, deadline_ns);
        if (status == MS_OK) {
            status = te_check_request(connection, &reply.header, method, request);
        }
        te_checkin(connection, status == MS_OK);
    }
    if (status != MS_OK && error != NULL) {
        te_channel_error(channel, error);
    }
    te_channel_leave(channel);
    if (status != MS_OK) {
        free(reply.body);
        return status;
    }
    *answer = reply.body;
    *answer_length = reply.body_size;
    *payload_offset = reply.header.body_length;
    *answer_status = reply.header.status;
    return MS_OK;
}

void te_release(uint8_t *answer) { free(answer); }
