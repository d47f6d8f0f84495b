/* WRITE and SEAL: who may write where, and how bytes become an object. */
#include <stdlib.h>

#include "ms_crc32c.h"
#include "ms_planted.h"
#include "st_internal.h"
#include "st_step.h"

/* ---- the check of a grant ---------------------------------------------------------------------------- */

/* Lock held.  OK, or why this connection may not write that version there *(write_epoch)*.  COMPLETE: that very
 * version is sealed there. */
static ms_status check_grant(const st_server *server, const st_segment *segment,
                             const st_peer *peer, uint32_t page, uint64_t version) {
    if (!peer->may_write)
        return MS_REFUSED;
    if (peer->incarnation != server->header.incarnation)
        return MS_WRONG_INCARNATION;
    if (peer->epoch != server->header.epoch || version >> 43 != peer->epoch)
        return MS_WRONG_EPOCH;
    if (peer->is_cut)
        return MS_FENCED;
    uint64_t word = st_word(segment, page);
    if (word == ms_word(version, 1))
        return MS_COMPLETE;
    return version > word >> 1 ? MS_OK : MS_GONE;
}

ms_status st_write_begin(void *context, void *peer_context, const ms_write_item *item) {
    st_segment *segment = context;
    st_server *server = segment->server;
    const st_peer *peer = peer_context;
    ms_status status = MS_OK;
    if (peer == NULL || item->version == 0)
        status = MS_BAD_REQUEST;
    else if (!st_pages_are_ready(segment, item->page, item->page_count))
        status = MS_OUT_OF_RANGE;
    uint64_t room = (uint64_t)item->page_count * MS_PAGE_SIZE;
    if (status == MS_OK && (item->length > room || item->offset > room - item->length))
        status = MS_OUT_OF_RANGE;
    if (status == MS_OK) {
        pthread_mutex_lock(&server->lock);
        status = check_grant(server, segment, peer, item->page, item->version);
        /* A SEAL again, without bytes: let it come to write_end, which answers OK. */
        if (status == MS_COMPLETE && item->length == 0)
            status = MS_OK;
        if (status == MS_OK) {
            uint32_t before = atomic_fetch_add(&segment->uses[item->page], ST_USE_WRITER);
            if (before >= ST_USE_WRITERS_MAX) {
                atomic_fetch_sub(&segment->uses[item->page], ST_USE_WRITER);
                status = MS_LIMIT;
            }
        }
        pthread_mutex_unlock(&server->lock);
    }
    if (status != MS_OK)
        st_count_add(server, ST_COUNT_WRITES_REFUSED, 1);
    return status;
}

/* ---- checksums ------------------------------------------------------------------------------------------- */

/* The check runs on the I/O thread that took the last byte, at some 20 GB/s: others wait for a millisecond at most.
 * The checksum of a larger object is kept as the client gave it, for those who read. */
#define CHECKED_BYTES_MAX (16u << 20)

static bool is_checked(const ms_seal *seal) {
    return (seal->flags & MS_OBJECT_HAS_CHECKSUM) != 0 && seal->size <= CHECKED_BYTES_MAX;
}

/* An object of several parts whose client asked for a check: the parts' checksums until all are here. */
typedef struct st_partial {
    uint32_t part_count, part_seen;
    struct {
        uint32_t checksum;
        bool is_seen;
        uint64_t length;
    } parts[];
} st_partial;

void st_partial_drop(st_server *server, uint64_t version) {
    st_table_slot *slot = st_table_find(&server->partials, version);
    if (slot == NULL)
        return;
    free((void *)(uintptr_t)slot->value);
    st_table_remove(&server->partials, version);
}

void st_partials_close(st_server *server) {
    for (size_t at = 0; at < server->partials.capacity; at++) {
        if (server->partials.slots[at].key != UINT64_MAX)
            free((void *)(uintptr_t)server->partials.slots[at].value);
    }
    st_table_clear(&server->partials);
}

/* Bytes of the object that this part holds.  Extents are full but for the last, and a grant has just the pages
 * that the object needs; a seal that contradicts this is the client's mistake. */
static ms_status part_length(const ms_seal *seal, uint32_t page_count, uint64_t *length) {
    uint64_t room = (uint64_t)page_count * MS_PAGE_SIZE;
    if (seal->part + 1u < seal->part_count) {
        *length = room;
        return seal->size > room ? MS_OK : MS_BAD_REQUEST;
    }
    uint64_t pages = ms_pages_of(seal->size);
    if (page_count > pages || (seal->part_count == 1 && page_count < pages))
        return MS_BAD_REQUEST;
    *length = seal->size - (pages - page_count) * MS_PAGE_SIZE;
    return MS_OK;
}

/* Lock held.  Whether the object's checksum is the client's: known once the last part is here. */
static ms_status check_object(st_server *server, const ms_seal *seal, uint64_t version,
                              uint32_t checksum, uint64_t length) {
    if (seal->part_count == 1)
        return checksum == seal->checksum ? MS_OK : MS_BAD_CHECKSUM;
    st_table_slot *slot = st_table_find(&server->partials, version);
    st_partial *partial;
    if (slot != NULL) {
        partial = (void *)(uintptr_t)slot->value;
        if (partial->part_count != seal->part_count)
            return MS_BAD_REQUEST;
    } else {
        partial = calloc(1, sizeof *partial + seal->part_count * sizeof partial->parts[0]);
        if (partial == NULL)
            return MS_NO_MEMORY;
        partial->part_count = seal->part_count;
        if (!st_table_set(&server->partials, version, (uintptr_t)partial)) {
            free(partial);
            return MS_NO_MEMORY;
        }
    }
    if (!partial->parts[seal->part].is_seen)
        partial->part_seen++;
    partial->parts[seal->part].is_seen = true;
    partial->parts[seal->part].checksum = checksum;
    partial->parts[seal->part].length = length;
    if (partial->part_seen < partial->part_count)
        return MS_OK;
    uint32_t whole = 0;
    for (uint32_t at = 0; at < partial->part_count; at++)
        whole = ms_crc32c_combine(whole, partial->parts[at].checksum, partial->parts[at].length);
    st_partial_drop(server, version);
    return whole == seal->checksum ? MS_OK : MS_BAD_CHECKSUM;
}

/* ---- SEAL -------------------------------------------------------------------------------------------------- */

/* Lock held, checks done.  Word, then record, then (the caller's) answer *(answer_last)*. */
static ms_status seal_extent(st_segment *segment, uint32_t page, uint32_t page_count,
                             uint64_t version, const ms_seal_view *seal) {
    st_extent extent = {
        .version = version,
        .note = version, /* a record's first note has its version */
        .size = seal->head.size,
        .expiry_ms = seal->head.expiry_ms,
        .group = seal->head.group,
        .hash = seal->head.hash,
        .parent = seal->head.parent,
        .page = page,
        .page_count = page_count,
        .checksum = seal->head.checksum,
        .part = seal->head.part,
        .part_count = seal->head.part_count,
        .key_length = seal->head.key_length,
        .tenant_length = seal->head.tenant_length,
        /* A client's object is no copy, whatever it says: copies give way to notes *(note_ranks)*. */
        .flags = (uint8_t)(seal->head.flags & ~MS_OBJECT_IS_COPY),
        .tenant = (const uint8_t *)seal->tenant,
        .key = (const uint8_t *)seal->key};
    ms_status status = st_inventory_reserve(segment->inventory, &extent);
    if (status != MS_OK) {
        /* Clients hear of a full pool, which it is not: only this line tells that a file system is. */
        st_log(segment->server, 2, "inventory_not_extended status=%s", ms_status_name(status));
        st_count_add(segment->server, ST_COUNT_STORAGE_FULL, 1);
        return status;
    }
    ST_STEP("seal: before the word");
    atomic_store(&segment->words[page], ms_word(version, 1));
    ST_STEP("seal: before the record");
    if (!MS_IS_PLANTED("answer_last") || version % 8 != 0)
        st_inventory_commit(segment->inventory, &extent);
    ST_STEP("seal: before the answer");
    return MS_OK;
}

/* Lock held.  Whether the writer has given up.  It closes its connections before it uses the shared memory for something
 * else: while this one is open, no attempt of this put has copied anything but what it wrote *(source_open)*.  Another
 * attempt may have begun and ended since this one's copy, so it is looked at in the step that seals. */
static bool source_is_over(const st_server *server, const st_peer *peer,
                           const ms_write_item *item) {
    return item->source != 0 && !te_peer_is_there(server->engine, peer->number);
}

static ms_status seal_locked(st_segment *segment, const st_peer *peer, const ms_write_item *item,
                             const ms_seal_view *seal, uint32_t checksum, uint64_t length) {
    st_server *server = segment->server;
    if (source_is_over(server, peer, item))
        return MS_CANCELLED;
    ms_status status = check_grant(server, segment, peer, item->page, item->version);
    if (status == MS_COMPLETE)
        return MS_OK; /* a repeat: only the answer *(seal_again)* */
    if (status != MS_OK)
        return status;
    if (atomic_load(&segment->uses[item->page]) >= ST_USE_WRITER)
        return MS_BUSY; /* a copy into the extent is running *(record_check, again_busy)* */
    if (is_checked(&seal->head)) {
        status = check_object(server, &seal->head, item->version, checksum, length);
        if (status != MS_OK)
            return status;
    }
    return seal_extent(segment, item->page, item->page_count, item->version, seal);
}

ms_status st_write_end(void *context, void *peer_context, const ms_write_item *item,
                       const uint8_t *seal, size_t seal_length, bool complete) {
    st_segment *segment = context;
    st_server *server = segment->server;
    const st_peer *peer = peer_context;
    ms_status status = complete ? MS_OK : MS_IO_ERROR;
    ms_seal_view view;
    uint32_t checksum = 0;
    uint64_t length = 0;
    bool has_seal = complete && seal != NULL;
    if (has_seal) {
        ms_reader reader = ms_reader_of(seal, seal_length);
        if (!ms_reader_seal(&reader, &view))
            status = MS_BAD_FRAME;
        else
            status = part_length(&view.head, item->page_count, &length);
        /* While this copy's use is still held: the bytes stay as they are. */
        if (status == MS_OK && is_checked(&view.head))
            checksum =
                ms_crc32c(0, segment->payload + (size_t)item->page * MS_PAGE_SIZE, (size_t)length);
    }
    ms_free_item freed;
    if (has_seal)
        ST_STEP("seal: copied");
    pthread_mutex_lock(&server->lock);
    atomic_fetch_sub(&segment->uses[item->page], ST_USE_WRITER);
    if (has_seal && status == MS_OK)
        status = seal_locked(segment, peer, item, &view, checksum, length);
    bool is_owed = st_pending_take(segment, item->page, &freed);
    pthread_mutex_unlock(&server->lock);
    if (is_owed)
        st_send_freed(server, &freed);

    if (complete) {
        st_count_add(server, ST_COUNT_WRITES, 1);
        st_count_add(server, ST_COUNT_WRITTEN_BYTES, item->length);
    }
    if (has_seal) {
        st_count_add(server, status == MS_OK ? ST_COUNT_SEALS : ST_COUNT_SEALS_REFUSED, 1);
        if (status == MS_BAD_CHECKSUM)
            st_count_add(server, ST_COUNT_BAD_CHECKSUMS, 1);
    }
    return status;
}

ms_status st_copy_end(st_server *server, const st_copy_order *order, ms_status status) {
    st_segment *segment = order->segment;
    uint32_t extent_count = order->target->head.extent_count, freed_count = 0;
    ms_free_item freed[MS_EXTENTS_MAX];
    pthread_mutex_lock(&server->lock);
    *order->is_running = false;
    for (uint32_t at = 0; at < extent_count; at++)
        atomic_fetch_sub(&segment->uses[ms_replica_extent(order->target, at).page], ST_USE_WRITER);
    if (status == MS_OK && order->epoch != server->header.epoch)
        status = MS_WRONG_EPOCH; /* the leader that ordered it leads no more */
    for (uint32_t at = 0; status == MS_OK && at < extent_count; at++) {
        if (order->version <= st_word(segment, ms_replica_extent(order->target, at).page) >> 1)
            status = MS_GONE; /* freed meanwhile */
    }
    for (uint32_t at = 0; status == MS_OK && at < extent_count; at++) {
        ms_extent extent = ms_replica_extent(order->target, at);
        ms_seal_view part = *order->seal;
        part.head.part = (uint16_t)at;
        part.head.part_count = (uint16_t)extent_count;
        status = seal_extent(segment, extent.page, extent.page_count, order->version, &part);
    }
    for (uint32_t at = 0; at < extent_count; at++) {
        if (st_pending_take(segment, ms_replica_extent(order->target, at).page,
                            &freed[freed_count]))
            freed_count++;
    }
    pthread_mutex_unlock(&server->lock);
    for (uint32_t at = 0; at < freed_count; at++)
        st_send_freed(server, &freed[at]);
    return status;
}

/* SEAL apart from WRITE: the same body, items without bytes. */
void st_handle_seal(st_server *server, st_peer *peer, const te_request *request) {
    ms_write_view write;
    if (!ms_read_write(request->body, request->header->body_length, &write) ||
        write.payload_length != 0) {
        st_answer(server, request, MS_BAD_REQUEST, "SEAL: malformed, or with bytes to write");
        return;
    }
    uint32_t *statuses = calloc(write.items.count, sizeof *statuses);
    if (statuses == NULL) {
        st_answer(server, request, MS_NO_MEMORY, "");
        return;
    }
    ms_status first = MS_OK;
    size_t seal_offset = 0;
    for (uint32_t at = 0; at < write.items.count; at++) {
        ms_write_item item;
        MS_ARRAY_GET(write.items, at, &item);
        st_segment *segment = st_segment_of(server, item.segment);
        ms_status status = MS_NOT_REGISTERED;
        if (item.length != 0 || item.seal_length == 0)
            status = MS_BAD_REQUEST;
        else if (segment != NULL)
            status = st_write_begin(segment, peer, &item);
        if (status == MS_OK)
            status = st_write_end(segment, peer, &item, write.seals + seal_offset, item.seal_length,
                                  true);
        seal_offset += item.seal_length;
        statuses[at] = status;
        if (first == MS_OK)
            first = status;
    }
    if (first == MS_OK && (request->header->flags & MS_FLAG_RELAY) != 0 &&
        st_relay(server, peer, &write)) {
        /* The leader answers the client. */
    } else if (first == MS_OK) {
        te_answer(server->engine, request->peer, request->header, MS_OK, NULL, 0, NULL, 0);
    } else {
        uint32_t head[2] = {write.items.count, 0};
        struct iovec body[2] = {{head, sizeof head},
                                {statuses, write.items.count * sizeof *statuses}};
        te_answer(server->engine, request->peer, request->header, first, body, 2, NULL, 0);
    }
    free(statuses);
}
