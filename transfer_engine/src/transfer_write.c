/* A part of WRITEs: one frame with bytes and seals, and its answer. */
#include "te_transfer.h"

#include <stdlib.h>
#include <string.h>

#include "te_fault.h"

static void write_status(te_moving *moved, const te_part *taken, size_t i, uint32_t status) {
    if (!te_part_is_cut(moved, taken, i)) {
        moved->statuses[i] = status;
        return;
    }
    pthread_mutex_lock(&moved->lock);
    if (moved->statuses[i] == MS_PENDING || moved->statuses[i] == MS_OK) {
        moved->statuses[i] = status;
    }
    pthread_mutex_unlock(&moved->lock);
}

/* Whether the part's items go out otherwise than the caller gave them: cut, or without their seals. */
static bool is_changed(const te_moving *moved, const te_part *taken) {
    return taken->unsealed != TE_NO_ITEM || te_part_is_cut(moved, taken, taken->first) ||
           te_part_is_cut(moved, taken, taken->first + taken->count - 1);
}

static void change_items(const te_moving *moved, const te_part *taken, ms_write_item *copies) {
    memcpy(copies, moved->writes + taken->first, taken->count * sizeof *copies);
    for (size_t i = 0; i < taken->count; i++) {
        uint64_t start;
        copies[i].length = te_part_range(moved, taken, taken->first + i, &start);
        copies[i].offset += start;
        copies[i].source_offset += start;
    }
    if (taken->unsealed != TE_NO_ITEM) {
        copies[taken->unsealed - taken->first].seal_length = 0;
    }
    if (taken->tail < te_item_length(moved, taken->first + taken->count - 1)) {
        copies[taken->count - 1].seal_length = 0; /* it ends in a later part */
    }
}

/* Bytes that the peer copies from our shared memory. */
uint64_t te_part_shared_bytes(const te_moving *moved, const te_part *taken) {
    uint64_t bytes = 0;
    for (size_t i = taken->first; i < taken->first + taken->count; i++) {
        bytes += moved->writes[i].source != 0 ? moved->writes[i].length : 0;
    }
    return bytes;
}

/* What the answer to a repeated item says of both attempts. */
static uint32_t of_both(uint32_t status) {
    switch (status) {
    case MS_COMPLETE: /* the first one was carried out: that very version is sealed there */
        return MS_OK;
    case MS_WRONG_EPOCH:
    case MS_FENCED:
    case MS_GONE: /* by now; before, the first one may have been sealed */
        return MS_IO_ERROR;
    default:
        return status;
    }
}

/* Whether it may go over `connection`: the first attempt anywhere, a further one in the session of the first, with which ends
 * what that one may still do *(seal_again)*. */
static bool is_of_session(te_part *taken, const te_connection *connection) {
    if (!taken->is_repeated) {
        taken->hello_generation = connection->hello_generation;
    }
    return taken->hello_generation == connection->hello_generation;
}

ms_status te_part_write(te_moving *moved, te_part *taken, te_connection *connection) {
    if (!is_of_session(taken, connection)) {
        te_channel_set_error(moved->channel, "the session has changed in the middle of a WRITE");
        for (size_t i = 0; i < taken->count; i++) {
            write_status(moved, taken, taken->first + i, MS_UNAVAILABLE);
        }
        return MS_OK; /* nothing is wrong with the connection */
    }
    size_t count = taken->count, payload_count = 0;
    struct iovec payload[TE_FRAME_IOVECS];
    for (size_t i = 0; i < count; i++) {
        uint64_t start, length = te_part_range(moved, taken, taken->first + i, &start);
        if (moved->writes[taken->first + i].source == 0 && length > 0) {
            const uint8_t *source = moved->sources[taken->first + i];
            payload[payload_count++] = (struct iovec){
                .iov_base = (void *)(uintptr_t)(source + start), .iov_len = (size_t)length};
        }
    }
    const ms_write_item *items = moved->writes + taken->first; /* their layout is the wire's */
    ms_write_item few[16], *copies = few;
    if (is_changed(moved, taken)) {
        copies = count <= sizeof few / sizeof *few ? few : malloc(count * sizeof *copies);
        if (copies == NULL) {
            te_channel_set_error(moved->channel, "no memory for a request");
            return MS_NO_MEMORY;
        }
        change_items(moved, taken, copies);
        items = copies;
    }
    uint32_t list[2] = {(uint32_t)count, 0};
    struct iovec body[3] = {
        {.iov_base = list, .iov_len = sizeof list},
        {.iov_base = (void *)(uintptr_t)items, .iov_len = count * sizeof *items},
        {.iov_base = (void *)(uintptr_t)(moved->seals + taken->seal_offset),
         .iov_len = taken->seal_bytes},
    };
    uint64_t request = te_next_request(connection);
    uint32_t answer[2 + TE_FRAME_IOVECS];
    te_reply reply = {.body = (uint8_t *)answer, .body_size = sizeof answer};
    ms_status status = te_send(
        connection, MS_REQUEST, MS_WRITE, moved->flags, request, te_deadline_ms(taken->deadline_ns),
        body, taken->seal_bytes > 0 ? 3 : 2, payload, payload_count, taken->deadline_ns);
    if (copies != few) {
        free(copies);
    }
    if (status == MS_OK) {
        te_expect_copy(connection, te_part_shared_bytes(moved, taken));
        status = te_receive(connection, &reply, taken->deadline_ns);
        te_expect_nothing(connection, status == MS_OK && reply.header.status == MS_OK);
    }
    if (status != MS_OK) {
        return status;
    }
    if (te_check_request(connection, &reply.header, MS_WRITE, request) != MS_OK) {
        return MS_BAD_FRAME;
    }
    bool is_list = reply.header.body_length == (2 + count) * sizeof *answer && answer[0] == count &&
                   answer[1] == 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t one =
            reply.header.status == MS_OK || !is_list ? reply.header.status : answer[2 + i];
        one = taken->is_repeated ? of_both(one) : one;
        write_status(moved, taken, taken->first + i, one);
        if (one == MS_NOT_REGISTERED && moved->writes[taken->first + i].source != 0) {
            te_channel_shares_forget(moved->channel);
        }
    }
    if (reply.header.status != MS_OK && !is_list) {
        char sentence[TE_ERROR_BYTES];
        te_error(sentence, "%.*s", (int)reply.header.body_length, (const char *)answer);
        te_channel_set_error(moved->channel, sentence);
    }
    return MS_OK;
}
