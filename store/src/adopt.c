/* ADOPT: a leader takes this server, and gets its INVENTORY. */
#include <stdio.h>

#include "ms_planted.h"
#include "st_internal.h"

#ifdef ST_TEST_STEPS /* so that a small inventory takes many frames and windows */
#define INVENTORY_FRAME_BYTES (16u << 10)
#define INVENTORY_WINDOW_BYTES (64u << 10)
#else
#define INVENTORY_FRAME_BYTES (512u << 10)
/* Frames in flight: after so many bytes the server waits for the master to answer a PING behind them. */
#define INVENTORY_WINDOW_BYTES (8u << 20)
#endif
#define INVENTORY_ITEMS_MAX 16384u
#define INVENTORY_WAIT_MS 10000

/* Lock held.  Whether the master that asked is still the one. */
static bool is_master(const st_server *server, te_peer from, uint32_t epoch) {
    return server->master != NULL && server->master->number == from &&
           server->header.epoch == epoch;
}

static void write_live(ms_writer *out, const st_segment *segment, const st_extent *extent) {
    ms_inventory_item item = {.hash = extent->hash,
                              .version = extent->version,
                              .size = extent->size,
                              .expiry_ms = extent->expiry_ms,
                              .note = extent->note,
                              .parent = extent->parent,
                              .group = extent->group,
                              .page = extent->page,
                              .page_count = extent->page_count,
                              .checksum = extent->checksum,
                              .part = extent->part,
                              .part_count = extent->part_count,
                              .segment = (uint16_t)segment->number,
                              .key_length = extent->key_length,
                              .flags = extent->flags,
                              .state = 1,
                              .tenant_length = extent->tenant_length};
    MS_WRITER_STRUCT(out, &item);
    /* They lie one behind the other in the record too. */
    ms_writer_padded(out, extent->tenant, (size_t)extent->tenant_length + extent->key_length);
}

void st_write_in_use(ms_writer *out, const st_pending *pending) {
    ms_inventory_item item = {.version = pending->version,
                              .page = pending->page,
                              .page_count = pending->page_count,
                              .part_count = 1,
                              .segment = (uint16_t)pending->segment,
                              .state = 2};
    MS_WRITER_STRUCT(out, &item);
}

/* Lock held.  All that is in use without a live word; few, so in one go *(busy_inventory)*. */
static uint32_t write_all_in_use(st_server *server, ms_writer *out) {
    uint32_t count = 0;
    for (size_t at = 0; at < server->pendings.capacity && !MS_IS_PLANTED("busy_inventory"); at++) {
        if (server->pendings.slots[at].key == UINT64_MAX)
            continue;
        st_write_in_use(out, (const st_pending *)(uintptr_t)server->pendings.slots[at].value);
        count++;
    }
    return count + st_copies_write(server, out);
}

/* Lock held.  Waits, without the lock, until the master has read what was sent. */
static bool wait_for_master(st_server *server, te_peer from, uint32_t epoch) {
    uint64_t ping = ++server->pings_sent;
    pthread_mutex_unlock(&server->lock);
    ms_status status = te_push(server->engine, from, MS_REQUEST, MS_PING, 0, ping, NULL, 0);
    pthread_mutex_lock(&server->lock);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += INVENTORY_WAIT_MS / 1000;
    while (status == MS_OK && server->pings_answered < ping && is_master(server, from, epoch) &&
           !server->is_stopping) {
        if (pthread_cond_timedwait(&server->pinged, &server->lock, &until) != 0)
            status = MS_TIMEOUT;
    }
    return status == MS_OK && server->pings_answered >= ping && is_master(server, from, epoch);
}

/* Sends what is live, in frames.  Between two frames the lock is free: SEALs of this epoch may come in between
 * and be named or not; their grants are known to this leader, or were taken back when we dialled it. */
static ms_status send_inventory(st_server *server, te_peer from, uint32_t epoch) {
    ms_writer out = ms_writer_growable(MS_BODY_BYTES_MAX);
    ms_status status = MS_OK;
    size_t in_flight = 0;
    bool is_last = false;
    uint32_t number = 0; /* of the segment */
    uint64_t page = 0;
    pthread_mutex_lock(&server->lock);
    for (bool is_first = true; status == MS_OK && !is_last; is_first = false) {
        ms_writer_reset(&out);
        ms_writer_list(&out, 0);
        uint32_t count = is_first ? write_all_in_use(server, &out) : 0;
        while (number < server->segment_count && count < INVENTORY_ITEMS_MAX &&
               out.length < INVENTORY_FRAME_BYTES && out.status == MS_OK) {
            st_segment *segment = &server->segments[number];
            st_extent extent;
            if (st_inventory_next(segment->inventory, &page, &extent)) {
                write_live(&out, segment, &extent);
                count++;
            } else {
                number++;
                page = 0;
            }
        }
        is_last = number == server->segment_count;
        ms_writer_set_u32(&out, 0, count);
        if (!is_master(server, from, epoch))
            status = MS_CLOSED;
        else
            status = out.status;
        if (status == MS_OK && is_last)
            server->is_adopted = server->was_adopted =
                true; /* from here on FREE, COPY and relays may come */
        pthread_mutex_unlock(&server->lock);
        if (status == MS_OK) {
            struct iovec body = {out.data, out.length};
            status = te_push(server->engine, from, MS_ONEWAY, MS_INVENTORY,
                             is_last ? MS_FLAG_LAST : 0, 0, &body, 1);
            in_flight += out.length;
        }
        pthread_mutex_lock(&server->lock);
        if (status == MS_OK && !is_last && in_flight >= INVENTORY_WINDOW_BYTES) {
            in_flight = 0;
            status = wait_for_master(server, from, epoch) ? MS_OK : MS_TIMEOUT;
        }
    }
    pthread_mutex_unlock(&server->lock);
    ms_writer_close(&out);
    return status;
}

void st_run_adopt(st_server *server, te_peer from, const ms_header *request, ms_adopt adopt) {
    ms_status status = MS_OK;
    bool is_raised = false;
    pthread_mutex_lock(&server->lock);
    uint32_t epoch_before = server->header.epoch;
    if (server->master == NULL || server->master->number != from) {
        status = MS_CLOSED;
    } else if (adopt.epoch < epoch_before || adopt.epoch == 0) {
        status = MS_WRONG_EPOCH;
    } else if (adopt.epoch > epoch_before) {
        st_header header = server->header;
        header.epoch = adopt.epoch;
        /* Before any effect: after a crash no frame of an older leader may count *(persist_epoch)*. */
        status = st_header_write(server->config.segment_dir, &header);
        if (status == MS_OK) {
            server->header = header;
            is_raised = true;
            st_table_clear(
                &server->fenced); /* sessions of older epochs are refused by their epoch */
            for (st_peer *peer = server->peers; peer != NULL; peer = peer->next) {
                if (peer->may_write && peer->epoch != header.epoch)
                    atomic_store(&peer->is_cut, true);
            }
        }
    }
    server->is_adopted = false;
    pthread_mutex_unlock(&server->lock);
    if (status == MS_CLOSED)
        return;
    if (status != MS_OK) {
        st_count_add(server, ST_COUNT_FRAMES_REFUSED, 1);
        st_log(server, 1, "adopt_refused epoch=%u adopted_epoch=%u status=%s", adopt.epoch,
               epoch_before, ms_status_name(status));
        char sentence[128];
        int length =
            snprintf(sentence, sizeof sentence, "this node has adopted epoch %u, you lead epoch %u",
                     (unsigned)epoch_before, (unsigned)adopt.epoch);
        struct iovec body = {sentence, (size_t)length};
        te_answer(server->engine, from, request, status, &body, 1, NULL, 0);
        te_close_peer(server->engine, from, "an older leader");
        return;
    }
    te_engine_set_epoch(server->engine, adopt.epoch);
    if (is_raised)
        st_cut(server, "a new leader has been adopted");
    te_answer(server->engine, from, request, MS_OK, NULL, 0, NULL, 0);
    status = send_inventory(server, from, adopt.epoch);
    if (status != MS_OK) {
        te_close_peer(server->engine, from, "the inventory could not be sent");
        st_log(server, 1, "inventory_broke_off epoch=%u status=%s", adopt.epoch,
               ms_status_name(status));
        return;
    }
    st_count_add(server, ST_COUNT_ADOPTIONS, 1);
    st_log(server, 0, "adopted epoch=%u server=%u", adopt.epoch, adopt.server);
}
