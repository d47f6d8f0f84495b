/* Frames of a lane, and sending them. */
#include "te_lane_tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "te_fault.h"

/* ---- frames -------------------------------------------------------------------------------------------------------- */

frame *te_tcp_frame_make(lane_tcp *tcp, frame_kind kind, uint16_t method, uint32_t deadline_ms) {
    frame *made = tcp->free_frames;
    if (made != NULL)
        tcp->free_frames = made->next;
    else
        made = malloc(sizeof *made);
    if (made == NULL)
        return NULL;
    made->next = NULL;
    made->kind = kind;
    made->work = NULL;
    made->cut = NULL;
    made->sent = made->total = 0;
    made->body_length = 0;
    made->header = (ms_header){.magic = MS_MAGIC,
                               .version = MS_WIRE_VERSION,
                               .kind = MS_REQUEST,
                               .method = method,
                               .status = deadline_ms,
                               .request = ++tcp->request};
    return made;
}

void te_tcp_frame_free(lane_tcp *tcp, frame *used) {
    used->next = tcp->free_frames;
    tcp->free_frames = used;
}

void te_tcp_append(lane_tcp *tcp, frame *added) {
    added->header.body_length = (uint32_t)added->body_length;
    added->total = sizeof added->header + added->body_length + added->header.payload_length;
    if (added->kind == FRAME_HELLO) /* its body is the path's */
        added->total = sizeof added->header + tcp->lane->path->hello_length;
    if (tcp->last == NULL)
        tcp->first = added;
    else
        tcp->last->next = added;
    tcp->last = added;
    if (tcp->unsent == NULL)
        tcp->unsent = added;
}

void te_tcp_take_out(lane_tcp *tcp, frame *answered) {
    frame **at = &tcp->first, *previous = NULL;
    while (*at != answered) {
        previous = *at;
        at = &(*at)->next;
    }
    *at = answered->next;
    if (tcp->last == answered)
        tcp->last = previous;
}

static void write_body(frame *made, const te_work *work, te_opcode opcode) {
    uint32_t list[2] = {work->count, 0};
    memcpy(made->body, list, sizeof list);
    made->body_length = sizeof list;
    for (uint32_t i = 0; i < work->count; i++) {
        const te_work_piece *piece = &work->pieces[i];
        if (opcode == TE_READ) {
            ms_read_item item = piece->item->wire.read;
            item.offset = piece->offset;
            item.length = piece->length;
            memcpy(made->body + made->body_length, &item, sizeof item);
            made->body_length += sizeof item;
        } else {
            ms_write_item item = piece->item->wire.write;
            item.offset = piece->offset;
            item.length = piece->length;
            item.seal_length = 0;
            memcpy(made->body + made->body_length, &item, sizeof item);
            made->body_length += sizeof item;
        }
    }
    made->header.payload_length = opcode == TE_WRITE ? work->bytes : 0;
}

/* ---- sending ------------------------------------------------------------------------------------------------------- */

static size_t parts_of(lane_tcp *tcp, frame *sent, struct iovec *parts) {
    te_path *path = tcp->lane->path;
    size_t count = 0;
    parts[count++] = (struct iovec){&sent->header, sizeof sent->header};
    if (sent->kind == FRAME_HELLO)
        parts[count++] = (struct iovec){path->hello, path->hello_length};
    else if (sent->body_length > 0)
        parts[count++] = (struct iovec){sent->body, sent->body_length};
    if (sent->kind == FRAME_WORK && tcp->lane->opcode == TE_WRITE)
        for (uint32_t i = 0; i < sent->work->count; i++)
            parts[count++] =
                (struct iovec){sent->work->pieces[i].local, (size_t)sent->work->pieces[i].length};
    return count;
}

void te_tcp_try_send(lane_tcp *tcp) {
    if (tcp->phase != GREETING && tcp->phase != OPEN)
        return;
    struct iovec all[TE_SLICE_PIECES_MAX + 2];
    while (tcp->unsent != NULL) {
        frame *sending = tcp->unsent;
        if (tcp->phase == GREETING && sending->kind == FRAME_WORK)
            break; /* not before the peer has agreed to HELLO */
        if (sending->kind == FRAME_HELLO)
            sending->header.body_length = (uint32_t)tcp->lane->path->hello_length;
        else if (sending->sent == 0)
            sending->header.epoch = tcp->epoch;
        struct iovec *parts = all;
        size_t count = parts_of(tcp, sending, all);
        te_iov_advance(&parts, &count, (size_t)sending->sent);
        ssize_t sent = te_socket_send(tcp->watched.descriptor, parts, count, NULL, 0, MSG_DONTWAIT);
        if (sent < 0 && errno == EAGAIN) {
            if (!te_tcp_watch(tcp, EPOLLIN | EPOLLOUT))
                te_tcp_give_up(tcp, false, false, MS_OK, "the socket cannot be watched");
            return;
        }
        if (sent < 0) {
            te_tcp_give_up_errno(tcp, "sending failed");
            return;
        }
        sending->sent += (uint64_t)sent;
        if (sending->sent == sending->total)
            tcp->unsent = sending->next;
    }
    if (tcp->watched.events != EPOLLIN && !te_tcp_watch(tcp, EPOLLIN))
        te_tcp_give_up(tcp, false, false, MS_OK, "the socket cannot be watched");
}

/* Memory of a device is not for sockets, and no lane of RDMA is up that carries it.  Its job is alone in the slice. */
static bool refuse_device_memory(te_lane *lane, te_work *work) {
    if (!te_memory_is_device(lane->path->engine->registry, work->pieces[0].local))
        return false;
    for (uint32_t i = 0; i < work->count; i++)
        work->pieces[i].status = MS_NOT_REGISTERED;
    te_lane_done(work, TE_WORK_DONE);
    return true;
}

void te_tcp_post(te_lane *lane, te_work *work) {
    lane_tcp *tcp = lane->state;
    if (lane->is_gone || !lane->is_up) { /* it was given up since the slice was cut */
        te_lane_done(work, TE_WORK_FAILED);
        return;
    }
    if (refuse_device_memory(lane, work))
        return;
    frame *made = te_tcp_frame_make(tcp, FRAME_WORK, lane->opcode == TE_READ ? MS_READ : MS_WRITE,
                                    te_deadline_ms(work->deadline_ns));
    if (made == NULL) {
        te_lane_done(work, TE_WORK_FAILED);
        te_tcp_give_up(tcp, false, false, MS_OK, "no memory for a request");
        return;
    }
    made->work = work;
    write_body(made, work, lane->opcode);
    if (tcp->first == NULL)
        te_lane_progress(lane, te_now_ns()); /* until now it had nothing to say */
    te_tcp_append(tcp, made);
    if (tcp->phase != CLOSED) {
        te_tcp_try_send(tcp);
        return;
    }
    lane->is_connecting = true; /* it was evicted */
    te_tcp_dial(lane);
}
