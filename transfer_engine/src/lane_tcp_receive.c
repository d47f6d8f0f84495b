/* Answers on a lane. */
#include "te_lane_tcp.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "te_fault.h"

/* Places for a READ's bytes and results, from what has come on. */
static size_t targets_of(lane_tcp *tcp, struct iovec *parts) {
    const te_work *work = tcp->answered->work;
    size_t count = 0;
    for (uint32_t i = 0; i < work->count; i++)
        parts[count++] = (struct iovec){work->pieces[i].local, (size_t)work->pieces[i].length};
    parts[count++] = (struct iovec){tcp->results, work->count * sizeof *tcp->results};
    return count;
}

/* Some items were refused and have sent no bytes: the others' lie one behind the other. */
static bool spread(lane_tcp *tcp, te_work *work) {
    const uint8_t *bytes = tcp->bounce + tcp->header.body_length;
    uint64_t left = tcp->header.payload_length;
    memcpy(tcp->results, bytes + left, work->count * sizeof *tcp->results);
    for (uint32_t i = 0; i < work->count; i++) {
        te_work_piece *piece = &work->pieces[i];
        if (tcp->results[i].status != MS_OK)
            continue;
        if (piece->length > left)
            return false;
        memcpy(piece->local, bytes, (size_t)piece->length);
        bytes += piece->length;
        left -= piece->length;
    }
    return left == 0;
}

/* Returns false when the answer makes no sense. */
static bool end_read(lane_tcp *tcp, te_work *work) {
    if (tcp->header.status != MS_OK) {
        for (uint32_t i = 0; i < work->count; i++)
            work->pieces[i].status = tcp->header.status;
        return true;
    }
    if (!tcp->is_direct && !spread(tcp, work))
        return false;
    for (uint32_t i = 0; i < work->count; i++) {
        if (tcp->is_direct && tcp->results[i].status != MS_OK && work->pieces[i].length > 0)
            return false;
        work->pieces[i].status = tcp->results[i].status;
        work->pieces[i].word = tcp->results[i].word;
    }
    return true;
}

static void end_write(lane_tcp *tcp, te_work *work) {
    uint32_t list[2] = {0, 0};
    size_t length = tcp->header.body_length;
    if (length >= sizeof list)
        memcpy(list, tcp->bounce, sizeof list);
    bool is_list = length == (2 + (size_t)work->count) * sizeof *list && list[0] == work->count &&
                   list[1] == 0;
    for (uint32_t i = 0; i < work->count; i++) {
        work->pieces[i].status = tcp->header.status;
        if (is_list && tcp->header.status != MS_OK)
            memcpy(&work->pieces[i].status, tcp->bounce + (2 + (size_t)i) * sizeof *list,
                   sizeof *list);
    }
}

/* The peer's answer to HELLO: it takes us, or says why not. */
static bool end_hello(lane_tcp *tcp) {
    if (tcp->header.status != MS_OK) {
        char why[96];
        snprintf(why, sizeof why, "%.*s", (int)tcp->header.body_length,
                 tcp->bounce == NULL ? "" : (const char *)tcp->bounce);
        ms_status status = (ms_status)tcp->header.status;
        bool may_change = status == MS_LIMIT || status == MS_BUSY || status == MS_UNAVAILABLE ||
                          status == MS_TIMEOUT || status == MS_NO_MEMORY;
        te_tcp_give_up(tcp, true, true, may_change ? MS_OK : status, why);
        return false;
    }
    ms_hello ours = {0};
    ms_hello_answer theirs = {0};
    if (tcp->lane->path->hello_length >= sizeof ours)
        memcpy(&ours, tcp->lane->path->hello, sizeof ours);
    if (tcp->header.body_length >= sizeof theirs)
        memcpy(&theirs, tcp->bounce, sizeof theirs);
    tcp->epoch = ours.epoch != 0 ? ours.epoch : theirs.epoch;
    tcp->phase = OPEN;
    tcp->lane->was_connected = true;
    if (!tcp->lane->is_up) /* it was evicted, else */
        te_lane_up(tcp->lane);
    tcp->lane->is_connecting = false;
    return true;
}

static void end_answer(lane_tcp *tcp) {
    tcp->answered = NULL;
    tcp->header_length = 0;
    free(tcp->bounce);
    tcp->bounce = NULL;
}

/* The whole answer is here.  False: the connection is gone. */
static bool finish(lane_tcp *tcp) {
    frame *answered = tcp->answered;
    te_work *work = answered->work;
    te_path *path = tcp->lane->path;
    bool is_good = true;
    if (answered->kind == FRAME_TOLD ||
        (answered->kind == FRAME_TOPOLOGY && tcp->header.status == MS_OK))
        te_path_told(path, tcp->bounce, (size_t)tcp->length);
    if (answered->kind == FRAME_TOLD) {
        end_answer(tcp);
        return true;
    }
    if (answered->kind == FRAME_HELLO && !end_hello(tcp))
        return false;
    if (answered->kind == FRAME_TOKEN && tcp->header.status == MS_OK &&
        tcp->header.body_length == sizeof tcp->token)
        memcpy(&tcp->token, tcp->bounce, sizeof tcp->token);
    if (answered->kind == FRAME_PING)
        tcp->pings = 0;
    if (answered->kind == FRAME_WORK && tcp->lane->opcode == TE_READ)
        is_good = end_read(tcp, work);
    else if (answered->kind == FRAME_WORK)
        end_write(tcp, work);
    if (!is_good) {
        te_tcp_give_up(tcp, false, false, MS_OK, "an answer that does not add up");
        return false;
    }
    bool is_early = answered->sent < answered->total; /* refused before all of it was sent */
    te_tcp_take_out(tcp, answered);
    end_answer(tcp);
    if (work != NULL)
        te_lane_done(work, TE_WORK_DONE);
    te_cut *cut = answered->cut;
    frame_kind kind = answered->kind;
    te_tcp_frame_free(tcp, answered);
    if (kind == FRAME_CUT && cut != NULL) {
        cut->is_asked = false;
        if (tcp->header.status == MS_OK) /* whatever was on its way there, is no more */
            te_tcp_end_cut(path, cut, TE_WORK_FAILED);
        else
            cut->is_refused = true;
    }
    if (is_early) {
        te_tcp_give_up(tcp, true, false, MS_OK,
                       "the peer refused a request before it had all of it");
        return false;
    }
    if (kind == FRAME_HELLO) {
        te_tcp_ask_cuts(path, te_now_ns());
        if (tcp->phase == OPEN)
            te_tcp_try_send(tcp);
    }
    return tcp->phase != CLOSED;
}

static bool is_told(const ms_header *header) {
    return header->kind == MS_ONEWAY && header->method == MS_TOPOLOGY && header->body_length > 0 &&
           header->payload_length == 0 && header->trailer_length == 0;
}

/* The header is complete: to which request, and how much follows?  False: it makes no sense. */
static bool begin_answer(lane_tcp *tcp) {
    const ms_header *header = &tcp->header;
    if (header->magic != MS_MAGIC || header->version < MS_WIRE_VERSION_OLDEST ||
        header->version > MS_WIRE_VERSION || (header->kind != MS_ANSWER && !is_told(header)) ||
        header->status >= MS_STATUS_COUNT || header->body_length > ANSWER_BYTES_MAX)
        return false;
    if (header->kind != MS_ANSWER) {
        tcp->answered = &tcp->told;
        tcp->received = 0;
        tcp->is_direct = false;
        tcp->length = header->body_length;
        tcp->bounce = malloc((size_t)tcp->length + 1);
        return tcp->bounce != NULL;
    }
    frame *each = tcp->first;
    while (each != NULL && each != tcp->unsent && each->header.request != header->request)
        each = each->next;
    if (each == NULL || (each == tcp->unsent && each->header.request != header->request) ||
        each->header.method != header->method || each->sent == 0)
        return false;
    bool is_whole = each->sent == each->total;
    tcp->answered = each;
    tcp->received = 0;
    tcp->is_direct = false;
    tcp->length = header->body_length;
    if (each->kind == FRAME_WORK && tcp->lane->opcode == TE_READ && header->status == MS_OK) {
        uint64_t trailer = each->work->count * sizeof *tcp->results;
        if (header->body_length != 0 || header->trailer_length != trailer ||
            header->payload_length > each->work->bytes || !is_whole)
            return false;
        tcp->is_direct = header->payload_length == each->work->bytes;
        tcp->length = header->payload_length + trailer;
    } else if (header->payload_length != 0 || header->trailer_length != 0) {
        return false;
    }
    if (tcp->is_direct || tcp->length == 0)
        return is_whole || header->status != MS_OK;
    tcp->bounce = malloc((size_t)tcp->length + 1);
    return tcp->bounce != NULL && (is_whole || header->status != MS_OK);
}

/* 1: something came; 0: nothing is there; -1: the connection is gone. */
static int receive(lane_tcp *tcp, size_t *moved) {
    struct iovec all[TE_SLICE_PIECES_MAX + 2], *parts = all;
    size_t count = 1;
    if (tcp->answered == NULL) {
        all[0] = (struct iovec){(uint8_t *)&tcp->header + tcp->header_length,
                                sizeof tcp->header - tcp->header_length};
    } else if (tcp->is_direct) {
        count = targets_of(tcp, all);
        te_iov_advance(&parts, &count, (size_t)tcp->received);
    } else {
        all[0] = (struct iovec){tcp->bounce + tcp->received, (size_t)(tcp->length - tcp->received)};
    }
    ssize_t came =
        te_socket_receive(tcp->watched.descriptor, parts, count, NULL, 0, NULL, MSG_DONTWAIT);
    if (came < 0 && errno == EAGAIN)
        return 0;
    if (came < 0) {
        te_tcp_give_up_errno(tcp, "receiving failed");
        return -1;
    }
    if (came == 0) {
        te_tcp_give_up(tcp, true, tcp->phase == GREETING, MS_OK, "the peer closed the connection");
        return -1;
    }
    *moved += (size_t)came;
    if (tcp->answered != NULL) {
        tcp->received += (uint64_t)came;
    } else {
        tcp->header_length += (size_t)came;
        if (tcp->header_length < sizeof tcp->header)
            return 1;
        if (!begin_answer(tcp)) {
            te_tcp_give_up(tcp, false, false, MS_OK, "what the peer sent is not an answer");
            return -1;
        }
    }
    if (tcp->received < tcp->length)
        return 1;
    return finish(tcp) ? 1 : -1;
}

void te_tcp_ready(te_watched *watched, uint32_t events) {
    lane_tcp *tcp = (lane_tcp *)watched;
    te_lane *lane = tcp->lane;
    if (tcp->phase == CONNECTING) {
        int problem = 0;
        socklen_t length = sizeof problem;
        if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) == 0)
            return;
        (void)getsockopt(watched->descriptor, SOL_SOCKET, SO_ERROR, &problem, &length);
        if (problem != 0) {
            char why[96];
            snprintf(why, sizeof why, "cannot connect: %s", strerror(problem));
            te_tcp_give_up(tcp, true, true, MS_OK, why);
            return;
        }
        te_lane_progress(lane, te_now_ns());
        te_tcp_greet(tcp);
        return;
    }
    if ((events & EPOLLOUT) != 0)
        te_tcp_try_send(tcp);
    if ((events & ~(uint32_t)EPOLLOUT) == 0 || tcp->phase == CLOSED)
        return;
    size_t moved = 0;
    int outcome = 1;
    while (outcome == 1 && moved < TURN_BYTES)
        outcome = receive(tcp, &moved);
    if (moved > 0)
        te_lane_progress(lane, te_now_ns());
    if (tcp->phase != CLOSED && tcp->unsent != NULL && tcp->watched.events == EPOLLIN)
        te_tcp_try_send(tcp);
}
