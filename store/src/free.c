/* FREE, the FREED that it owes, and NOTE: what the master says about extents that are there.
 *
 * FREED means that from now on nothing of the old version can touch the extent *(freed_waits)*: no copy into or
 * out of it, no view.  While something can, CLEARED says that the word is not live, and FREED follows.
 */
#include <stdlib.h>

#include "ms_planted.h"
#include "st_internal.h"
#include "st_step.h"

static uint64_t pending_key(const st_segment *segment, uint32_t page) {
    return (uint64_t)segment->number << 32 | page;
}

/* ---- what is owed ------------------------------------------------------------------------------------- */

bool st_pending_take(st_segment *segment, uint32_t page, ms_free_item *item) {
    st_server *server = segment->server;
    st_table_slot *slot = st_table_find(&server->pendings, pending_key(segment, page));
    if (slot == NULL)
        return false;
    st_pending *pending = (void *)(uintptr_t)slot->value;
    /* A newer version in the word proves that FREED was answered once: a page is granted only after that. */
    if (atomic_load(&segment->uses[page]) != 0 && st_word(segment, page) >> 1 <= pending->version)
        return false;
    *item = (ms_free_item){.version = pending->version,
                           .segment = pending->segment,
                           .page = pending->page,
                           .page_count = pending->page_count};
    free(pending);
    st_table_remove(&server->pendings, pending_key(segment, page));
    return true;
}

bool st_pending_add(st_server *server, const ms_free_item *item) {
    uint64_t key = pending_key(&server->segments[item->segment], item->page);
    st_table_slot *slot = st_table_find(&server->pendings, key);
    st_pending *pending = slot != NULL ? (void *)(uintptr_t)slot->value : NULL;
    if (pending == NULL) {
        pending = malloc(sizeof *pending);
        if (pending == NULL || !st_table_set(&server->pendings, key, (uintptr_t)pending)) {
            free(pending);
            return false;
        }
    }
    /* One of an older version was answered once, or its page would not have been granted again. */
    *pending = (st_pending){.version = item->version,
                            .segment = item->segment,
                            .page = item->page,
                            .page_count = item->page_count};
    return true;
}

void st_pendings_close(st_server *server) {
    for (size_t at = 0; at < server->pendings.capacity; at++) {
        if (server->pendings.slots[at].key != UINT64_MAX)
            free((void *)(uintptr_t)server->pendings.slots[at].value);
    }
    st_table_clear(&server->pendings);
}

void st_drop_reader(st_segment *segment, uint32_t page) {
    uint32_t before = atomic_fetch_sub(&segment->uses[page], ST_USE_READER);
    /* The last one out, and the extent has been freed: FREE may have left FREED to us. */
    if (before != ST_USE_READER || (atomic_load(&segment->words[page]) & 1u) != 0)
        return;
    ms_free_item freed;
    pthread_mutex_lock(&segment->server->lock);
    bool is_owed = st_pending_take(segment, page, &freed);
    pthread_mutex_unlock(&segment->server->lock);
    if (is_owed)
        st_send_freed(segment->server, &freed);
}

/* CLEARED or FREED to the master, if there is one: it asks again when it does not come. */
static void send_items(st_server *server, uint16_t method, const ms_free_item *items,
                       uint32_t count) {
    if (count == 0)
        return;
    pthread_mutex_lock(&server->lock);
    uint32_t numbers[2] = {server->header.epoch, server->header.incarnation};
    bool is_connected = server->master != NULL;
    te_peer master = is_connected ? server->master->number : 0;
    pthread_mutex_unlock(&server->lock);
    if (!is_connected)
        return;
    uint32_t list[2] = {count, 0};
    struct iovec body[3] = {{numbers, sizeof numbers},
                            {list, sizeof list},
                            {(void *)(uintptr_t)items, count * sizeof *items}};
    te_push(server->engine, master, MS_ONEWAY, method, 0, 0, body, 3);
}

void st_send_freed(st_server *server, const ms_free_item *item) {
    send_items(server, MS_FREED, item, 1);
}

/* ---- FREE -------------------------------------------------------------------------------------------------- */

/* Lock held.  FREED or CLEARED, or 0 for an extent that this server does not have. */
static uint16_t free_extent(st_server *server, const ms_free_item *item) {
    st_segment *segment = st_segment_of(server, item->segment);
    if (segment == NULL || !st_pages_are_ready(segment, item->page, item->page_count))
        return 0;
    uint64_t word = st_word(segment, item->page);
    if (item->version >= word >> 1) {
        /* The word, persisted, then the record *(generation_first)*. */
        if (word != ms_word(item->version, 0))
            atomic_store(&segment->words[item->page], ms_word(item->version, 0));
        ST_STEP("free: before the record");
        st_inventory_free(segment->inventory, item->page, item->version);
        if (server->partials.count != 0)
            st_partial_drop(server, item->version);
        word = ms_word(item->version, 0);
    }
    st_count_add(server, ST_COUNT_FREES, 1);
    st_table_slot *slot = st_table_find(&server->pendings, pending_key(segment, item->page));
    const st_pending *pending = slot != NULL ? (const void *)(uintptr_t)slot->value : NULL;
    bool is_reused = word >> 1 > item->version;
    uint32_t uses = atomic_load(&segment->uses[item->page]);
    if (is_reused || uses == 0 || ST_IS_PLANTED(ST_FAULT_FREED_EARLY) ||
        MS_IS_PLANTED("freed_waits") || (uses >= ST_USE_WRITER && MS_IS_PLANTED("fence"))) {
        if (pending != NULL && pending->version <= item->version) {
            free((void *)(uintptr_t)slot->value);
            st_table_remove(&server->pendings, pending_key(segment, item->page));
        }
        return MS_FREED;
    }
    /* Without memory nobody will remember to say FREED; the master asks again. */
    if (st_pending_add(server, item) && pending == NULL)
        st_count_add(server, ST_COUNT_FREES_WAITING, 1);
    return MS_CLEARED;
}

/* Why a frame of the master is refused *(frame_incarnation)*; lock held. */
static bool frame_is_current(const st_server *server, te_peer from, uint32_t epoch,
                             uint32_t incarnation) {
    return server->master != NULL && server->master->number == from &&
           epoch == server->header.epoch && incarnation == server->header.incarnation;
}

static bool is_cut(void *context, void *peer_context) {
    (void)context;
    const st_peer *peer = peer_context;
    return peer != NULL && atomic_load(&peer->is_cut);
}

void st_cut(st_server *server, const char *reason) {
    te_close_matching(server->engine, is_cut, NULL, reason);
}

static bool may_write(void *context, void *peer_context) {
    (void)context;
    const st_peer *peer = peer_context;
    return peer != NULL && peer->may_write;
}

/* An extent that was never sealed is taken back without its session: the writer says that it has ended, but what its
 * NIC has sent may still be on the way, and no version is compared there.  Lock held. */
static bool is_unwritten(st_server *server, const ms_free_item *item) {
    st_segment *segment = st_segment_of(server, item->segment);
    return item->session == 0 && segment != NULL &&
           st_pages_are_ready(segment, item->page, item->page_count) &&
           item->version > st_word(segment, item->page) >> 1;
}

static bool wants_queue_pairs_cut(st_server *server, const ms_free_view *frees) {
    bool result = false;
    for (uint32_t at = 0; te_has_queue_pairs(server->engine) && !result && at < frees->items.count;
         at++) {
        ms_free_item item;
        MS_ARRAY_GET(frees->items, at, &item);
        result = is_unwritten(server, &item);
    }
    return result;
}

/* Remembers the sessions as fenced.  Lock held.  False: no memory, so nothing may be freed.  *connected: some
 * connection of theirs must be cut. */
static bool fence_sessions(st_server *server, const ms_free_view *frees, bool *connected) {
    *connected = false;
    uint64_t last = 0;
    for (uint32_t at = 0; at < frees->items.count; at++) {
        ms_free_item item;
        MS_ARRAY_GET(frees->items, at, &item);
        if (item.session == 0 || item.session == last)
            continue;
        last = item.session;
        if (st_table_find(&server->fenced, item.session) != NULL)
            continue;
        if (!st_table_set(&server->fenced, item.session, 1))
            return false;
        st_count_add(server, ST_COUNT_FENCES, 1);
        for (st_peer *peer = server->peers; peer != NULL; peer = peer->next) {
            if (peer->may_write && peer->session == item.session && !MS_IS_PLANTED("fence")) {
                peer->is_cut = true;
                *connected = true;
            }
        }
    }
    return true;
}

void st_run_free(st_server *server, te_peer from, const ms_free_view *frees, bool may_wait) {
    ms_free_item *freed = malloc((size_t)frees->items.count * 2 * sizeof *freed);
    if (freed == NULL)
        return; /* the master repeats it */
    ms_free_item *cleared = freed + frees->items.count;
    uint32_t freed_count = 0, cleared_count = 0;
    pthread_mutex_lock(&server->lock);
    bool is_current = frame_is_current(server, from, frees->epoch, frees->incarnation);
    bool connected = false;
    if (is_current && may_wait && fence_sessions(server, frees, &connected) && connected) {
        pthread_mutex_unlock(&server->lock);
        st_cut(server, "the session's writes here have ended");
        pthread_mutex_lock(&server->lock);
        is_current = frame_is_current(server, from, frees->epoch, frees->incarnation);
    }
    if (is_current && may_wait && wants_queue_pairs_cut(server, frees)) {
        pthread_mutex_unlock(&server->lock);
        te_cut_queue_pairs(server->engine, may_write, NULL);
        pthread_mutex_lock(&server->lock);
        is_current = frame_is_current(server, from, frees->epoch, frees->incarnation);
    }
    for (uint32_t at = 0; is_current && at < frees->items.count; at++) {
        ms_free_item item;
        MS_ARRAY_GET(frees->items, at, &item);
        if (item.session != 0 && st_table_find(&server->fenced, item.session) == NULL)
            continue; /* no memory for the fence */
        switch (free_extent(server, &item)) {
        case MS_FREED:
            freed[freed_count++] = item;
            break;
        case MS_CLEARED:
            cleared[cleared_count++] = item;
            break;
        default:
            break;
        }
    }
    pthread_mutex_unlock(&server->lock);
    if (!is_current)
        st_count_add(server, ST_COUNT_FRAMES_REFUSED, 1);
    send_items(server, MS_CLEARED, cleared, cleared_count);
    send_items(server, MS_FREED, freed, freed_count);
    free(freed);
}

/* Whether a frame asks for a fence that has to cut a connection or queue pair, and so to wait. */
static bool must_wait(st_server *server, const ms_free_view *frees) {
    pthread_mutex_lock(&server->lock);
    bool result = wants_queue_pairs_cut(server, frees);
    for (uint32_t at = 0; !result && at < frees->items.count; at++) {
        ms_free_item item;
        MS_ARRAY_GET(frees->items, at, &item);
        result = item.session != 0 && st_table_find(&server->fenced, item.session) == NULL;
    }
    pthread_mutex_unlock(&server->lock);
    return result;
}

void st_handle_free(st_server *server, st_peer *peer, const te_request *request) {
    ms_free_view frees;
    if (!peer->is_master || !ms_read_free(request->body, request->header->body_length, &frees)) {
        te_close_peer(server->engine, request->peer, "malformed FREE, or not from a master");
        return;
    }
    if (!must_wait(server, &frees))
        st_run_free(server, request->peer, &frees, false);
    else if (!st_control_post(server, request->peer, request->header, request->body))
        st_log(server, 1, "free_dropped reason=\"no memory; the master repeats it\"");
}

/* ---- another cluster --------------------------------------------------------------------------------------- */

ms_status st_drop_all(st_server *server) {
    if (st_views_are_open(server) || server->pendings.count != 0)
        return MS_BUSY;
    for (uint32_t number = 0; number < server->segment_count; number++) {
        st_segment *segment = &server->segments[number];
        st_extent extent;
        for (uint64_t page = 0; st_inventory_next(segment->inventory, &page, &extent);) {
            atomic_store(&segment->words[extent.page], ms_word(extent.version, 0));
            st_inventory_free(segment->inventory, extent.page, extent.version);
        }
        /* Its versions begin anew, and these words would refuse them; no grant of the old ones is left, and no
         * reader takes a 0 for its version. */
        st_kept_settle(segment, 0);
    }
    return MS_OK;
}

/* What no note changes. */
#define FLAGS_OF_BYTES (MS_OBJECT_HAS_CHECKSUM | MS_OBJECT_IS_COPY)

/* ---- NOTE ----------------------------------------------------------------------------------------------------- */

void st_handle_note(st_server *server, st_peer *peer, const te_request *request) {
    ms_note note;
    if (!peer->is_master || request->header->body_length != sizeof note) {
        st_answer(server, request, MS_BAD_REQUEST, "malformed NOTE, or not from a master");
        return;
    }
    memcpy(&note, request->body, sizeof note);
    st_segment *segment = st_segment_of(server, note.segment);
    ms_status status = MS_OK;
    st_extent extent;
    pthread_mutex_lock(&server->lock);
    if (!frame_is_current(server, request->peer, note.epoch, note.incarnation))
        status =
            note.incarnation != server->header.incarnation ? MS_WRONG_INCARNATION : MS_WRONG_EPOCH;
    else if (segment == NULL || !st_pages_are_ready(segment, note.page, 1))
        status = MS_OUT_OF_RANGE;
    else if (st_word(segment, note.page) != ms_word(note.version, 1) ||
             !st_inventory_find(segment->inventory, note.page, &extent))
        status = MS_GONE;
    else if (note.note > extent.note) /* an older one again: only the answer *(note_order)* */
        status = st_inventory_note(
            segment->inventory, note.page, note.note, note.expiry_ms,
            (uint8_t)((extent.flags & FLAGS_OF_BYTES) | (note.flags & ~(uint32_t)FLAGS_OF_BYTES)));
    pthread_mutex_unlock(&server->lock);
    st_count_add(server, ST_COUNT_NOTES, 1);
    st_answer(server, request, status, "");
}
