/* The staging ring: see te_staging.h.
 *
 * Four slots of shared memory.  A slot is filled with as many pieces as fit and sent as one WRITE whose items name
 * the slot; while the peer copies from it the next one is filled.  Answers come in order, and the oldest one frees
 * its slot.  256 KiB a slot: both copies of a slot then meet in the processor's cache.
 */
#include "te_staging.h"

#include <stdlib.h>
#include <string.h>

#include "te_fault.h"

#define SLOTS 4u
#define SLOT_BYTES (256u << 10)
#define SLOT_ITEMS 128u
#define ABANDONED_MAX 16u

typedef struct slot {
    uint64_t request;
    uint32_t count;
    uint32_t items[SLOT_ITEMS]; /* whose bytes are in it */
} slot;

struct te_staging {
    te_engine *engine;
    pthread_mutex_t lock;
    uint8_t *memory;
    uint8_t *abandoned[ABANDONED_MAX];
    uint32_t abandoned_count;
    slot slots[SLOTS];
};

/* One call of te_staging_write. */
typedef struct stream {
    te_staging *staging;
    te_connection *connection;
    te_staged_item *items;
    size_t count;
    size_t item;   /* the next to be copied */
    uint64_t done; /* bytes of it that have been */
    uint32_t source;
    uint64_t source_offset;
    uint64_t sent, received; /* slots */
    int64_t deadline_ns;
} stream;

ms_status te_staging_open(te_engine *engine, te_staging **result) {
    te_staging *staging = calloc(1, sizeof *staging);
    if (staging == NULL)
        return MS_NO_MEMORY;
    staging->engine = engine;
    pthread_mutex_init(&staging->lock, NULL);
    *result = staging;
    return MS_OK;
}

void te_staging_close(te_staging *staging) {
    if (staging == NULL)
        return;
    te_shared_free(staging->engine, staging->memory);
    for (uint32_t i = 0; i < staging->abandoned_count; i++)
        te_shared_free(staging->engine, staging->abandoned[i]);
    pthread_mutex_destroy(&staging->lock);
    free(staging);
}

static ms_status send_slot(stream *work) {
    uint32_t index = (uint32_t)(work->sent % SLOTS);
    slot *filled = &work->staging->slots[index];
    uint8_t *memory = work->staging->memory + (size_t)index * SLOT_BYTES;
    ms_write_item writes[SLOT_ITEMS];
    uint64_t used = 0;
    filled->count = 0;
    while (work->item < work->count && filled->count < SLOT_ITEMS && used < SLOT_BYTES) {
        const te_staged_item *item = &work->items[work->item];
        uint64_t length = item->length - work->done;
        if (length > SLOT_BYTES - used)
            length = SLOT_BYTES - used;
        memcpy(memory + used, item->source + work->done, (size_t)length);
        writes[filled->count] = (ms_write_item){
            .segment = item->segment,
            .source = work->source,
            .source_offset = work->source_offset + (uint64_t)index * SLOT_BYTES + used,
            .offset = item->offset + work->done,
            .length = length};
        filled->items[filled->count++] = (uint32_t)work->item;
        used += length;
        work->done += length;
        if (work->done == item->length) {
            work->item++;
            work->done = 0;
        }
    }
    filled->request = te_next_request(work->connection);
    uint32_t list[2] = {filled->count, 0};
    struct iovec body[2] = {{list, sizeof list}, {writes, filled->count * sizeof *writes}};
    work->sent++;
    return te_send(work->connection, MS_REQUEST, MS_WRITE, 0, filled->request,
                   te_deadline_ms(work->deadline_ns), body, 2, NULL, 0, work->deadline_ns);
}

static ms_status receive_slot(stream *work) {
    const slot *oldest = &work->staging->slots[work->received % SLOTS];
    uint32_t answer[2 + SLOT_ITEMS * 8]; /* room for a sentence */
    te_reply reply = {.body = (uint8_t *)answer, .body_size = sizeof answer};
    ms_status status = te_receive_exactly(work->connection, &reply, work->deadline_ns);
    if (status == MS_OK)
        status = te_check_request(work->connection, &reply.header, MS_WRITE, oldest->request);
    if (status != MS_OK)
        return status;
    work->received++;
    if (reply.header.status == MS_OK)
        return MS_OK;
    bool is_list = reply.header.body_length == (2 + oldest->count) * sizeof *answer &&
                   answer[0] == oldest->count;
    for (uint32_t i = 0; i < oldest->count; i++) {
        uint32_t one = is_list ? answer[2 + i] : reply.header.status;
        te_staged_item *item = &work->items[oldest->items[i]];
        if (one != MS_OK && item->status == MS_OK)
            item->status = one < MS_STATUS_COUNT ? (ms_status)one : MS_BAD_FRAME;
    }
    return MS_OK;
}

static ms_status run(stream *work, te_channel *channel) {
    te_staging *staging = work->staging;
    if (staging->memory == NULL) {
        void *memory = NULL;
        ms_status status = te_shared_alloc(staging->engine, (size_t)SLOTS * SLOT_BYTES, &memory);
        if (status != MS_OK)
            return status;
        staging->memory = memory;
    }
    ms_status status = te_share(channel, staging->memory, (size_t)SLOTS * SLOT_BYTES, &work->source,
                                &work->source_offset, work->deadline_ns);
    if (status == MS_OK)
        status = te_checkout(channel, work->deadline_ns, &work->connection);
    if (status != MS_OK)
        return status;
    /* On a TCP connection, when the Unix socket has just failed, the peer does not know the source. */
    status = work->connection->is_unix ? MS_OK : MS_UNAVAILABLE;
    bool is_silent = status != MS_OK;
    while (status == MS_OK && (work->item < work->count || work->received < work->sent)) {
        bool is_full = work->sent - work->received == SLOTS;
        status = work->item < work->count && !is_full ? send_slot(work) : receive_slot(work);
    }
    te_checkin(work->connection, status == MS_OK || is_silent);
    return status;
}

ms_status te_staging_write(te_staging *staging, te_channel *channel, te_staged_item *items,
                           size_t count, int64_t deadline_ns) {
    if (pthread_mutex_trylock(&staging->lock) != 0)
        return MS_BUSY;
    if (staging->abandoned_count == ABANDONED_MAX) {
        pthread_mutex_unlock(&staging->lock);
        return MS_LIMIT;
    }
    for (size_t i = 0; i < count; i++)
        items[i].status = MS_OK;
    stream work = {.staging = staging, .items = items, .count = count, .deadline_ns = deadline_ns};
    ms_status status = run(&work, channel);
    if (status != MS_OK && status != MS_UNAVAILABLE && work.sent > work.received) {
        /* A frozen peer may still copy from the slots when it goes on: it shall find these bytes then, neither others
         * nor none. */
        staging->abandoned[staging->abandoned_count++] = staging->memory;
        staging->memory = NULL;
    }
    pthread_mutex_unlock(&staging->lock);
    for (size_t i = 0; i < count && status == MS_OK; i++) {
        if (items[i].status != MS_NOT_REGISTERED)
            continue;
        te_channel_shares_forget(channel); /* perhaps it was the ring that the peer did not know */
        break;
    }
    return status;
}
