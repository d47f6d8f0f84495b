/* Frames to be sent once the lock is free, and how the core's effects become frames.
 *
 * FREEs are gathered per server while effects are drained and leave as one frame a server: a removal of a
 * thousand objects is one frame, not a thousand.
 */
#include "service.h"

#include <stdlib.h>
#include <string.h>

#define FREES_PER_FRAME 32768u

static ma_message *queue(ma_master *master, te_peer peer, const void *body, size_t length) {
    ma_message *message = malloc(sizeof *message + length);
    if (message == NULL) {
        /* Whoever waits for this frame would wait for ever: let it find its connection closed. */
        ma_doom(master, peer);
        return NULL;
    }
    *message = (ma_message){.peer = peer, .length = length};
    if (length != 0)
        memcpy(message->body, body, length);
    *master->outbox_last = message;
    master->outbox_last = &message->next;
    return message;
}

void ma_send_answer(ma_master *master, const ma_asker *asker, ms_status status, const void *body,
                    size_t length) {
    ma_message *message = queue(master, asker->peer, body, length);
    if (message == NULL)
        return;
    message->header = asker->header;
    message->status = status;
}

void ma_send_push(ma_master *master, te_peer peer, uint8_t kind, uint16_t method, uint32_t flags,
                  uint64_t request, const void *body, size_t length) {
    ma_message *message = queue(master, peer, body, length);
    if (message == NULL)
        return;
    message->is_push = true;
    message->header = ms_header_make(MS_WIRE_VERSION, kind, method, request);
    message->header.flags = flags;
}

void ma_sent(ma_master *master, te_peer peer, ms_status status) {
    if (status != MS_OK && status != MS_NOT_REGISTERED)
        te_close_peer(master->engine, peer, "a frame to it could not be queued");
}

void ma_flush(ma_master *master) {
    while (master->outbox_first != NULL) {
        ma_message *message = master->outbox_first;
        master->outbox_first = message->next;
        if (master->outbox_first == NULL)
            master->outbox_last = &master->outbox_first;
        struct iovec body = {.iov_base = message->body, .iov_len = message->length};
        size_t body_count = message->length != 0 ? 1 : 0;
        const ms_header *header = &message->header;
        if (!message->is_push && !ma_may_answer(master)) {
            ma_withhold_answer(master, message->peer);
            free(message);
            continue;
        }
        ms_status status =
            message->is_push ? te_push(master->engine, message->peer, header->kind, header->method,
                                       header->flags, header->request, &body, body_count)
                             : te_answer(master->engine, message->peer, header, message->status,
                                         &body, body_count, NULL, 0);
        ma_sent(master, message->peer, status);
        free(message);
    }
    while (master->doomed_count != 0)
        te_close_peer(master->engine, master->doomed[--master->doomed_count],
                      "the master has given this connection up");
}

void ma_doom(ma_master *master, te_peer peer) {
    /* More at once than there is room for: they are found again (silence, a deadline). */
    if (master->doomed_count < sizeof master->doomed / sizeof *master->doomed)
        master->doomed[master->doomed_count++] = peer;
}

void ma_outbox_close(ma_master *master) {
    while (master->outbox_first != NULL) {
        ma_message *message = master->outbox_first;
        master->outbox_first = message->next;
        free(message);
    }
    master->outbox_last = &master->outbox_first;
}

/* ---- effects ------------------------------------------------------------------------------------------ */

static void send_frees(ma_master *master, ma_member *member) {
    if (member->free_count == 0)
        return;
    if (member->peer != 0) {
        ms_writer *frame = &master->scratch;
        ms_writer_reset(frame);
        ms_writer_u32(frame, master->config.epoch);
        ms_writer_u32(frame, member->info.incarnation);
        ms_writer_array(frame, member->frees, member->free_count, sizeof *member->frees);
        if (frame->status == MS_OK)
            ma_send_push(master, member->peer, MS_ONEWAY, MS_FREE, 0, 0, frame->data,
                         frame->length);
        master->counts.frees_sent += member->free_count;
    }
    member->free_count = 0;
}

/* Not connected: nothing is sent.  The core repeats FREEs on a new connection and each 10 s. */
static void gather_free(ma_master *master, const md_effect *effect) {
    ma_member *member = ma_member_get(master, effect->server);
    if (member == NULL || member->peer == 0)
        return;
    if (member->free_count == member->free_capacity) {
        uint32_t capacity = member->free_capacity == 0 ? 64 : member->free_capacity * 2;
        ms_free_item *frees = realloc(member->frees, capacity * sizeof *frees);
        if (frees == NULL)
            return; /* the core repeats it */
        member->frees = frees;
        member->free_capacity = capacity;
    }
    member->frees[member->free_count++] = effect->free;
    if (member->free_count == FREES_PER_FRAME)
        send_frees(master, member);
}

static void send_note(ma_master *master, const md_effect *effect) {
    ma_member *member = ma_member_get(master, effect->server);
    if (member == NULL || member->peer == 0) {
        md_noted(master->core, master->now, effect->waiter, effect->server, MS_UNAVAILABLE);
        return;
    }
    ma_send_push(master, member->peer, MS_REQUEST, MS_NOTE, 0, effect->waiter, &effect->note,
                 sizeof effect->note);
    master->counts.notes_sent++;
}

static void send_copy(ma_master *master, const md_effect *effect) {
    ma_member *member = ma_member_get(master, effect->server);
    ms_writer *frame = &master->scratch;
    ms_writer_reset(frame);
    ms_status status = member == NULL || member->peer == 0
                           ? MS_UNAVAILABLE
                           : md_write_copy(master->core, effect->task, frame);
    if (status == MS_OK)
        status = frame->status;
    if (status != MS_OK) {
        md_copied(master->core, master->now, effect->task, status);
        return;
    }
    ma_send_push(master, member->peer, MS_REQUEST, MS_COPY, 0, effect->task, frame->data,
                 frame->length);
    master->counts.copies_sent++;
}

static void write_tombstone(ma_master *master, const md_effect *effect) {
    ms_status status = ma_tombstone_queue(master, effect->hash, effect->version);
    if (status != MS_OK)
        md_tombstoned(master->core, master->now, effect->hash, effect->version, status);
}

static void log_task(ma_master *master, uint64_t id) {
    static const char *const kinds[] = {"", "drain", "repair", "replicate", "move"};
    static const char *const events[] = {"", "waits", "begun", "blocked", "done", "cancelled"};
    ms_task task;
    if (md_task_get(master->core, master->now, id, &task) != MS_OK)
        return;
    ma_log(master, MA_LOG_TASK, task.state == MS_TASK_BLOCKED ? MA_WARNING : MA_INFO,
           "task_%s task=%u-%u kind=%s server=%d objects=%llu bytes=%llu failed=%llu left=%llu",
           events[task.state], (unsigned)(task.task >> 32), (unsigned)task.task, kinds[task.kind],
           (int)task.source_server - 1, (unsigned long long)task.objects_done,
           (unsigned long long)task.bytes_done, (unsigned long long)task.objects_failed,
           (unsigned long long)task.objects_left);
}

void ma_drain(ma_master *master) {
    md_effect effect;
    bool has_frees = false;
    while (md_next_effect(master->core, &effect)) {
        switch (effect.kind) {
        case MD_EFFECT_NONE:
            break;
        case MD_EFFECT_ANSWER:
            ma_batch_item_done(master, effect.waiter, effect.status, effect.version);
            break;
        case MD_EFFECT_FREE:
            gather_free(master, &effect);
            has_frees = true;
            break;
        case MD_EFFECT_NOTE:
            send_note(master, &effect);
            break;
        case MD_EFFECT_COPY:
            send_copy(master, &effect);
            break;
        case MD_EFFECT_TOMBSTONE:
            write_tombstone(master, &effect);
            break;
        case MD_EFFECT_TASK:
            log_task(master, effect.task);
            break;
        case MD_EFFECT_SESSION_ENDED:
            /* One that its client closed is known as ended already. */
            ma_log(master, MA_LOG_SESSION,
                   ma_session_find(master, effect.session) != NULL ? MA_INFO : MA_DEBUG,
                   "session_ended session=%llu", (unsigned long long)effect.session);
            ma_session_end(master, effect.session);
            break;
        }
    }
    for (uint32_t server = 0; has_frees && server < master->member_capacity; server++)
        if (master->members[server] != NULL)
            send_frees(master, master->members[server]);
}
