/* Moving pieces of one unit of work: by mapping, through the staging ring, in frames; over any path that is left. */
#include <stdlib.h>
#include <string.h>

#include "te_rdma.h"
#include "te_session.h"

#include "te_fault.h"

/* A copy is done in parts, so that a cancel or a deadline is noticed. */
#define COPY_STEP_BYTES ((uint64_t)16 << 20)
/* From so many bytes a call on, RDMA NICs are given slices by the schedule. */
#define RDMA_RAILS_BYTES_MIN ((uint64_t)1 << 20)

static bool is_registered(const te_remote_region *region) {
    const _Atomic uint64_t *word = (const _Atomic uint64_t *)region->mapping.words;
    return atomic_load_explicit(word, memory_order_acquire) != 0;
}

/* A region may be unregistered while we copy; then its word says so afterwards, and the bytes are worth nothing. */
static ms_status copy_mapped(te_engine *engine, const te_remote_region *region,
                             const te_piece *piece, te_scope *scope, int64_t deadline_ns) {
    const uint8_t *source = region->mapping.payload + region->address % MS_PAGE_SIZE +
                            (piece->remote_address - region->address);
    for (uint64_t done = 0; done < piece->length;) {
        uint64_t left = piece->length - done;
        uint64_t step = left < COPY_STEP_BYTES ? left : COPY_STEP_BYTES;
        if (!is_registered(region))
            return MS_NOT_REGISTERED;
        te_copy(engine, (uint8_t *)piece->local + done, source + done, (size_t)step);
        done += step;
        if (done == piece->length)
            break;
        if (te_scope_is_cancelled(scope))
            return MS_CANCELLED;
        if (te_now_ns() >= deadline_ns)
            return MS_TIMEOUT;
    }
    atomic_thread_fence(memory_order_acquire);
    return is_registered(region) ? MS_OK : MS_NOT_REGISTERED;
}

typedef struct frame_set {
    size_t count; /* pieces that travel in frames */
    size_t *index;
    ms_read_item *reads;
    ms_write_item *writes;
    void **targets;
    const void **sources;
    ms_read_result *results;
    uint32_t *statuses;
    te_staged_item *staged;
    uint64_t bytes;
} frame_set;

static void frames_free(frame_set *frames) {
    free(frames->index);
    free(frames->reads);
    free(frames->writes);
    free((void *)frames->targets);
    free((void *)frames->sources);
    free(frames->results);
    free(frames->statuses);
    free(frames->staged);
}

/* Room for all pieces, when the first is added. */
static bool frames_open(frame_set *frames, te_opcode opcode, size_t count) {
    if (frames->index != NULL)
        return true;
    size_t *index = calloc(count, sizeof *index);
    bool has_room = index != NULL;
    if (opcode == TE_READ) {
        frames->reads = calloc(count, sizeof *frames->reads);
        frames->targets = calloc(count, sizeof *frames->targets);
        frames->results = calloc(count, sizeof *frames->results);
        has_room =
            has_room && frames->reads != NULL && frames->targets != NULL && frames->results != NULL;
    } else {
        frames->writes = calloc(count, sizeof *frames->writes);
        frames->sources = calloc(count, sizeof *frames->sources);
        frames->statuses = calloc(count, sizeof *frames->statuses);
        frames->staged = calloc(count, sizeof *frames->staged);
        has_room = has_room && frames->writes != NULL && frames->sources != NULL &&
                   frames->statuses != NULL && frames->staged != NULL;
    }
    if (has_room) {
        frames->index = index;
        return true;
    }
    free(index);
    frames_free(frames);
    *frames = (frame_set){0};
    return false;
}

static void add_frame(te_session *session, te_opcode opcode, const te_remote_region *region,
                      const te_piece *piece, size_t index, frame_set *frames, int64_t deadline_ns) {
    size_t at = frames->count++;
    uint64_t offset = piece->remote_address - region->address;
    frames->index[at] = index;
    frames->bytes += piece->length;
    if (opcode == TE_READ) {
        frames->targets[at] = piece->local;
        frames->reads[at] =
            (ms_read_item){.segment = region->segment, .offset = offset, .length = piece->length};
        return;
    }
    ms_write_item *item = &frames->writes[at];
    *item = (ms_write_item){.segment = region->segment, .offset = offset, .length = piece->length};
    frames->sources[at] = piece->local;
    if (session->is_local && te_share(session->channels[0], piece->local, (size_t)piece->length,
                                      &item->source, &item->source_offset, deadline_ns) == MS_OK)
        frames->sources[at] = NULL;
    else
        item->source = 0;
}

/* Takes what a local peer cannot map out of the frames and sends it through the staging ring, if that pays. */
static void stage(te_session *session, te_piece *pieces, frame_set *frames, int64_t deadline_ns) {
    size_t count = 0, kept = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < frames->count; i++) {
        const ms_write_item *item = &frames->writes[i];
        if (item->source != 0 || item->length == 0)
            continue;
        frames->staged[count++] = (te_staged_item){.source = frames->sources[i],
                                                   .length = item->length,
                                                   .offset = item->offset,
                                                   .segment = item->segment};
        bytes += item->length;
    }
    if (bytes < TE_STAGING_BYTES_MIN)
        return;
    ms_status status = te_staging_write(session->staging, session->channels[0], frames->staged,
                                        count, deadline_ns);
    bool may_repeat = status != MS_OK && status != MS_TIMEOUT && status != MS_CANCELLED &&
                      status != MS_IO_ERROR && status != MS_BAD_FRAME;
    if (may_repeat)
        return; /* as payload, then */
    count = 0;
    for (size_t i = 0; i < frames->count; i++) {
        const ms_write_item *item = &frames->writes[i];
        if (item->source == 0 && item->length > 0) {
            ms_status ended = status != MS_OK ? status : frames->staged[count].status;
            count++;
            if (ended != MS_NOT_REGISTERED) { /* else as payload: it may have been the ring */
                pieces[frames->index[i]].status = ended;
                frames->bytes -= item->length;
                continue;
            }
        }
        frames->index[kept] = frames->index[i];
        frames->writes[kept] = frames->writes[i];
        frames->sources[kept++] = frames->sources[i];
    }
    frames->count = kept;
}

/* Finds each pending piece's region; what is mapped is copied at once, the rest is put into `frames`. */
static void prepare(te_remote *remote, te_session *session, te_opcode opcode, te_piece *pieces,
                    size_t count, te_scope *scope, bool is_last_try, bool has_path,
                    frame_set *frames, bool *is_stale, int64_t deadline_ns) {
    for (size_t i = 0; i < count; i++) {
        te_piece *piece = &pieces[i];
        te_remote_region region;
        if (piece->status != MS_PENDING)
            continue;
        if (!has_path && te_memory_is_device(remote->engine->registry, piece->local)) {
            piece->status = MS_NOT_REGISTERED; /* only a path may have lanes that carry it */
            continue;
        }
        ms_status status = te_session_find(session, piece->remote_address, piece->length, &region);
        if (status == MS_OK && opcode == TE_READ && session->is_local &&
            te_session_is_mapped(session, &region, deadline_ns)) {
            status = copy_mapped(remote->engine, &region, piece, scope, deadline_ns);
            if (status == MS_OK)
                piece->status = MS_OK;
        } else if (status == MS_OK) {
            if (!frames_open(frames, opcode, count))
                status = MS_NO_MEMORY;
            else
                add_frame(session, opcode, &region, piece, i, frames, deadline_ns);
        }
        if (status == MS_OK)
            continue;
        /* Our list of the peer's regions may be old. */
        if (!is_last_try && (status == MS_NOT_REGISTERED || status == MS_OUT_OF_RANGE))
            *is_stale = true;
        else
            piece->status = status;
    }
}

/* Over all rails at once: the schedule cuts, and repeats what a rail has lost. */
static ms_status over_rails(te_path *path, te_opcode opcode, frame_set *frames,
                            const te_piece *pieces, const te_transfer_options *options,
                            te_scope *scope, int64_t deadline_ns) {
    te_carried *items = calloc(frames->count, sizeof *items);
    if (items == NULL)
        return MS_NO_MEMORY;
    te_carry carry = {.path = path,
                      .opcode = opcode,
                      .deadline_ns = deadline_ns,
                      .items = items,
                      .count = frames->count};
    te_carry_set_options(&carry, options);
    for (size_t i = 0; i < frames->count; i++) {
        items[i].region = pieces[frames->index[i]].region;
        if (opcode == TE_READ) {
            items[i].local = frames->targets[i];
            items[i].wire.read = frames->reads[i];
        } else {
            items[i].local = (uint8_t *)(uintptr_t)frames->sources[i];
            items[i].wire.write = frames->writes[i];
        }
    }
    te_carry_wait(&carry, scope);
    ms_status failure = MS_OK;
    for (size_t i = 0; i < frames->count; i++) {
        ms_status status = te_carried_status(&items[i]);
        if (te_is_path_failure(opcode, status)) {
            failure = status;
            status = MS_PENDING; /* the caller looks for another path */
        }
        if (opcode == TE_READ)
            frames->results[i].status = (uint32_t)status;
        else
            frames->statuses[i] = (uint32_t)status;
    }
    free(items);
    return failure;
}

static ms_status send_frames(te_session *session, uint32_t rail, te_opcode opcode,
                             const frame_set *frames, int64_t deadline_ns) {
    if (opcode == TE_READ)
        return te_read(session->channels[rail], frames->reads, frames->targets, frames->count,
                       frames->results, deadline_ns);
    return te_write(session->channels[rail], frames->writes, frames->sources, frames->count, NULL,
                    0, 0, frames->statuses, deadline_ns);
}

static ms_status over_a_rail(te_session *session, te_opcode opcode, const frame_set *frames,
                             int64_t deadline_ns) {
    int64_t start_ns = te_now_ns();
    pthread_mutex_lock(&session->lock);
    uint32_t rail = te_rails_choose(session->rails, session->rail_count, frames->bytes, start_ns);
    te_rail_begin(&session->rails[rail], frames->bytes);
    pthread_mutex_unlock(&session->lock);
    ms_status status = send_frames(session, rail, opcode, frames, deadline_ns);
    int64_t end_ns = te_now_ns();
    pthread_mutex_lock(&session->lock);
    te_rail_end(&session->rails[rail], frames->bytes, status != MS_OK && status != MS_CANCELLED,
                end_ns - start_ns, end_ns);
    pthread_mutex_unlock(&session->lock);
    return status;
}

static void end_pending(te_piece *pieces, size_t count, ms_status status) {
    for (size_t i = 0; i < count; i++)
        if (pieces[i].status == MS_PENDING)
            pieces[i].status = status;
}

static bool has_pending(const te_piece *pieces, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (pieces[i].status == MS_PENDING)
            return true;
    return false;
}

static bool has_device_memory(const te_engine *engine, const te_piece *pieces, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (te_memory_is_device(engine->registry, pieces[i].local))
            return true;
    return false;
}

/* One try.  *is_stale: the list of regions should be asked for again. */
static ms_status try_once(te_remote *remote, te_session *session, te_opcode opcode,
                          te_piece *pieces, size_t count, const te_transfer_options *options,
                          te_scope *scope, bool is_last_try, bool *is_stale, int64_t deadline_ns) {
    frame_set frames = {0};
    ms_status status = MS_OK;
    bool has_device = has_device_memory(remote->engine, pieces, count);
    te_path *path =
        te_session_path(remote->engine, session, has_device || !te_options_are_default(options));
    prepare(remote, session, opcode, pieces, count, scope, is_last_try, path != NULL, &frames,
            is_stale, deadline_ns);
    /* What is small the calling thread posts to a NIC itself: the schedule costs two changes of threads. */
    if (!has_device && frames.bytes < RDMA_RAILS_BYTES_MIN && te_options_are_default(options) &&
        !session->is_local && te_rdma_serves(session->channels[0], opcode == TE_WRITE))
        path = NULL;
    if (opcode == TE_WRITE && session->is_local && frames.count > 0)
        stage(session, pieces, &frames, deadline_ns);
    bool is_over_rails = frames.count > 0 && path != NULL;
    if (is_over_rails)
        status = over_rails(path, opcode, &frames, pieces, options, scope, deadline_ns);
    else if (frames.count > 0)
        status = over_a_rail(session, opcode, &frames, deadline_ns);
    for (size_t i = 0; i < frames.count && (status == MS_OK || is_over_rails); i++) {
        ms_status result =
            (ms_status)(opcode == TE_READ ? frames.results[i].status : frames.statuses[i]);
        if (is_over_rails && status != MS_OK && result == MS_PENDING)
            continue;
        if (result >= MS_STATUS_COUNT || result == MS_PENDING)
            result = MS_BAD_FRAME;
        if (result == MS_NOT_REGISTERED && !is_last_try) {
            *is_stale = true; /* te_write has forgotten the ids of shared memory */
            continue;
        }
        pieces[frames.index[i]].status = result;
    }
    frames_free(&frames);
    return status;
}

void te_remote_move(te_remote *remote, te_opcode opcode, te_piece *pieces, size_t count,
                    const te_transfer_options *options, te_scope *scope, int64_t deadline_ns) {
    te_session *session = te_remote_session(remote);
    /* Each rail may fail once; one try more after a new session, one more after a new list of regions. */
    uint32_t path_failures = 0;
    bool was_refreshed = false;
    for (;;) {
        bool is_stale = false;
        pthread_mutex_lock(&session->lock);
        uint64_t seen = session->refreshes;
        pthread_mutex_unlock(&session->lock);
        ms_status status = try_once(remote, session, opcode, pieces, count, options, scope,
                                    was_refreshed, &is_stale, deadline_ns);
        /* A path fails when all its rails have. */
        uint32_t ways =
            te_session_path(remote->engine, session, false) != NULL ? 1 : session->rail_count;
        if (te_scope_is_cancelled(scope)) {
            end_pending(pieces, count, MS_CANCELLED);
            break;
        }
        if (status == MS_OK && !has_pending(pieces, count))
            break;
        bool is_path_left = te_is_path_failure(opcode, status) && path_failures < ways + 1;
        if (te_now_ns() >= deadline_ns)
            status = MS_TIMEOUT;
        if (status != MS_OK && (status == MS_TIMEOUT || !is_path_left)) {
            end_pending(pieces, count, status);
            break;
        }
        if (status == MS_OK && is_stale) {
            status = te_session_refresh(session, seen, deadline_ns);
            was_refreshed = true;
        }
        if (te_is_path_failure(opcode, status)) {
            path_failures++;
            if (status == MS_WRONG_INCARNATION || path_failures >= ways) {
                te_session *old = session;
                status = te_remote_renew(remote, old, deadline_ns);
                session = te_remote_session(remote);
                te_session_put(old);
                was_refreshed = was_refreshed && session == old;
            } else {
                status = MS_OK;
            }
        }
        if (status != MS_OK) {
            end_pending(pieces, count, te_scope_is_cancelled(scope) ? MS_CANCELLED : status);
            break;
        }
    }
    te_session_put(session);
}
