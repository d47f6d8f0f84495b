/* Segments of other engines: connections, the list of their regions, mappings of their shared memory.
 *
 * A session is what we know of one process behind an address: its incarnation, which every connection names in its
 * HELLO, so that no frame of ours can reach a process that came later under the same address; a channel for each
 * rail; its regions.  When the process has changed, a new session is made; work that still uses the old one ends
 * with it.
 *
 * Lock order: te_remotes.lock, te_remote.lock, te_session.lock.  None is held during an exchange with the peer, but
 * `connecting`, which makes others wait who want the same session renewed.
 */
#include <stdlib.h>
#include <string.h>

#include "ms_frame.h"
#include "te_remote.h"
#include "te_staging.h"

#include "te_fault.h"

#define REMOTES_MAX 1024u
#define SLOT_BITS 10
#define CONNECTIONS_MAX 8u
#define CONNECT_TIMEOUT_MS 1000u
/* A copy is done in parts, so that a cancel or a deadline is noticed. */
#define COPY_STEP_BYTES ((uint64_t)16 << 20)

typedef enum sharing { SHARING_UNKNOWN, SHARING_NONE, SHARING_MAPPED } sharing;

typedef struct remote_region {
    uint64_t address, length;
    uint32_t segment;
    char location[TE_LOCATION_BYTES];
    sharing sharing;
    te_mapping mapping;
} remote_region;

typedef struct te_session {
    _Atomic uint32_t references;
    bool is_local;
    uint32_t incarnation;
    te_channel *channels[TE_RAILS_MAX]; /* one a rail */
    te_staging *staging;                /* is_local */
    pthread_mutex_t lock;
    te_rail rails[TE_RAILS_MAX];
    uint32_t rail_count;
    remote_region *regions; /* by address */
    uint32_t region_count;
    uint64_t refreshes;
} te_session;

struct te_remote {
    te_engine *engine;
    uint32_t handle;
    uint32_t opens, users; /* under te_remotes.lock */
    pthread_mutex_t lock;
    te_session *session;
    pthread_mutex_t connecting;
    char address[]; /* as given */
};

struct te_remotes {
    te_engine *engine;
    pthread_mutex_t lock;
    te_remote *slots[REMOTES_MAX];
    uint32_t generations[REMOTES_MAX];
};

/* ---- sessions ------------------------------------------------------------------------------------------------ */

static void session_put(te_session *session) {
    if (session == NULL ||
        atomic_fetch_sub_explicit(&session->references, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; i < TE_RAILS_MAX; i++)
        if (session->channels[i] != NULL)
            te_channel_close(session->channels[i]);
    te_staging_close(session->staging);
    free(session->regions);
    pthread_mutex_destroy(&session->lock);
    free(session);
}

static te_session *session_get(te_remote *remote) {
    pthread_mutex_lock(&remote->lock);
    te_session *session = remote->session;
    atomic_fetch_add_explicit(&session->references, 1, memory_order_relaxed);
    pthread_mutex_unlock(&remote->lock);
    return session;
}

static int by_address(const void *a, const void *b) {
    uint64_t left = ((const remote_region *)a)->address,
             right = ((const remote_region *)b)->address;
    return left < right ? -1 : left > right;
}

typedef struct opened {
    remote_region *regions;
    uint32_t region_count;
    te_topology topology;
    char socket_path[MS_SOCKET_PATH_BYTES_MAX + 1];
} opened;

static ms_status read_opened(const uint8_t *body, size_t length, opened *result) {
    ms_reader reader = ms_reader_of(body, length);
    uint32_t count = ms_reader_list(&reader, sizeof(ms_region));
    result->regions = calloc(count == 0 ? 1 : count, sizeof *result->regions);
    if (result->regions == NULL)
        return MS_NO_MEMORY;
    ms_region_view view;
    for (; result->region_count < count && ms_reader_region(&reader, &view);
         result->region_count++) {
        remote_region *region = &result->regions[result->region_count];
        region->address = view.head.address;
        region->length = view.head.length;
        region->segment = view.head.segment;
        uint32_t kept =
            view.location.length < TE_LOCATION_BYTES ? view.location.length : TE_LOCATION_BYTES - 1;
        memcpy(region->location, view.location.data, kept);
    }
    ms_text topology, path;
    if (!ms_reader_string(&reader, MS_TOPOLOGY_BYTES_MAX, &topology) ||
        !ms_reader_string(&reader, MS_SOCKET_PATH_BYTES_MAX, &path) || !ms_reader_is_done(&reader))
        return MS_BAD_FRAME;
    qsort(result->regions, result->region_count, sizeof *result->regions, by_address);
    memcpy(result->socket_path, path.data, path.length);
    /* One that we cannot read says nothing about its NICs; its memory is there all the same. */
    if (topology.length > 0)
        (void)te_topology_parse(topology.data, topology.length, &result->topology, NULL);
    return MS_OK;
}

static ms_status ask_regions(te_channel *channel, opened *result, int64_t deadline_ns) {
    te_reply reply = {.grow = true};
    ms_status status = te_call(channel, MS_OPEN_SEGMENT, 0, NULL, 0, &reply, deadline_ns);
    if (status == MS_OK && reply.header.status != MS_OK)
        status =
            reply.header.status < MS_STATUS_COUNT ? (ms_status)reply.header.status : MS_BAD_FRAME;
    if (status == MS_OK)
        status = read_opened(reply.body, reply.header.body_length, result);
    free(reply.body);
    return status;
}

static ms_status open_channel(te_engine *engine, const char *addresses, const char *unix_path,
                              uint32_t incarnation, te_channel **channel) {
    uint8_t hello[TE_HELLO_DEFAULT_BYTES];
    te_hello_default(engine, hello);
    memcpy(hello + offsetof(ms_hello, incarnation), &incarnation, sizeof incarnation);
    te_channel_config config = {.addresses = addresses,
                                .unix_path = unix_path,
                                .hello = hello,
                                .hello_length = sizeof hello,
                                .connections_max = CONNECTIONS_MAX,
                                .connect_timeout_ms = CONNECT_TIMEOUT_MS};
    return te_channel_open(engine, &config, channel);
}

/* Replaces the channel that asked (it named no incarnation) by those that carry bytes. */
static ms_status open_rails(te_engine *engine, const char *address, bool is_same_host,
                            const opened *peer, te_session *session) {
    const char *unix_path = strncmp(address, "unix:", 5) == 0 ? address + 5 : NULL;
    const char *addresses = unix_path == NULL ? address : NULL;
    if (unix_path == NULL && is_same_host && peer->socket_path[0] != '\0')
        unix_path = peer->socket_path;
    if (unix_path != NULL) {
        session->is_local = true;
        session->rail_count = 1;
        session->rails[0].bandwidth_bytes_per_s = 1;
        ms_status status = te_staging_open(engine, &session->staging);
        if (status != MS_OK)
            return status;
        return open_channel(engine, addresses, unix_path, session->incarnation,
                            &session->channels[0]);
    }
    te_topology *local = calloc(1, sizeof *local);
    if (local == NULL)
        return MS_NO_MEMORY;
    te_registry_topology(engine->registry, local);
    session->rail_count =
        te_rails_build(local, "*", &peer->topology, "*", addresses, session->rails);
    free(local);
    ms_status status = session->rail_count == 0 ? MS_BAD_REQUEST : MS_OK;
    for (uint32_t i = 0; i < session->rail_count && status == MS_OK; i++)
        status = open_channel(engine, session->rails[i].address, NULL, session->incarnation,
                              &session->channels[i]);
    return status;
}

static ms_status connect_session(te_engine *engine, const char *address, int64_t deadline_ns,
                                 te_session **result, char *error) {
    const char *unix_path = strncmp(address, "unix:", 5) == 0 ? address + 5 : NULL;
    te_channel *first = NULL;
    opened *peer = calloc(1, sizeof *peer);
    te_session *session = calloc(1, sizeof *session);
    ms_status status = MS_NO_MEMORY;
    if (peer == NULL || session == NULL)
        goto out;
    session->references = 1;
    pthread_mutex_init(&session->lock, NULL);
    status = open_channel(engine, unix_path == NULL ? address : NULL, unix_path, 0, &first);
    if (status != MS_OK) {
        te_error(error, "%s: not an address: want IP:PORT, [IP]:PORT, or unix:PATH", address);
        goto out;
    }
    status = ask_regions(first, peer, deadline_ns);
    if (status != MS_OK) {
        if (error != NULL)
            te_channel_error(first, error);
        goto out;
    }
    ms_hello_answer hello = {0};
    uint8_t answer[4096];
    size_t length = te_channel_hello_answer(first, answer, sizeof answer);
    if (length < sizeof hello) {
        te_error(error, "%s: its answer to HELLO is too short", address);
        status = MS_BAD_FRAME;
        goto out;
    }
    memcpy(&hello, answer, sizeof hello);
    session->incarnation = hello.incarnation;
    session->regions = peer->regions;
    session->region_count = peer->region_count;
    peer->regions = NULL;
    bool is_same_host = memcmp(hello.boot_id, engine->boot_id, sizeof hello.boot_id) == 0;
    status = open_rails(engine, address, is_same_host, peer, session);
    if (status != MS_OK)
        te_error(error, "%s: cannot open a channel", address);
out:
    if (first != NULL)
        te_channel_close(first);
    if (peer != NULL)
        free(peer->regions);
    free(peer);
    if (status == MS_OK) {
        *result = session;
    } else {
        if (session != NULL && session->references == 0)
            free(session);
        else
            session_put(session);
    }
    return status;
}

/* The process behind the address is another one, or seems to be: a new session, unless someone was faster. */
static ms_status renew_session(te_remote *remote, const te_session *old, int64_t deadline_ns) {
    pthread_mutex_lock(&remote->connecting);
    te_session *current = session_get(remote);
    ms_status status = MS_OK;
    if (current == old) {
        te_session *fresh = NULL;
        status = connect_session(remote->engine, remote->address, deadline_ns, &fresh, NULL);
        if (status == MS_OK) {
            pthread_mutex_lock(&remote->lock);
            te_session *replaced = remote->session;
            remote->session = fresh;
            pthread_mutex_unlock(&remote->lock);
            session_put(replaced);
        }
    }
    session_put(current);
    pthread_mutex_unlock(&remote->connecting);
    return status;
}

/* Asks for the regions again, unless someone did since `seen`. */
static ms_status refresh_regions(te_session *session, uint64_t seen, int64_t deadline_ns) {
    pthread_mutex_lock(&session->lock);
    bool is_newer = session->refreshes != seen;
    pthread_mutex_unlock(&session->lock);
    if (is_newer)
        return MS_OK;
    opened *peer = calloc(1, sizeof *peer);
    if (peer == NULL)
        return MS_NO_MEMORY;
    ms_status status = ask_regions(session->channels[0], peer, deadline_ns);
    if (status == MS_OK) {
        pthread_mutex_lock(&session->lock);
        for (uint32_t i = 0; i < peer->region_count; i++) {
            for (uint32_t j = 0; j < session->region_count; j++) {
                if (session->regions[j].segment != peer->regions[i].segment)
                    continue;
                peer->regions[i].sharing = session->regions[j].sharing;
                peer->regions[i].mapping = session->regions[j].mapping;
            }
        }
        remote_region *old = session->regions;
        session->regions = peer->regions;
        session->region_count = peer->region_count;
        session->refreshes++;
        peer->regions = old;
        pthread_mutex_unlock(&session->lock);
    }
    free(peer->regions);
    free(peer);
    return status;
}

/* The region around a range, as a copy. */
static ms_status find_region(te_session *session, uint64_t address, uint64_t length,
                             remote_region *found) {
    ms_status status = MS_NOT_REGISTERED;
    pthread_mutex_lock(&session->lock);
    uint32_t low = 0, high = session->region_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const remote_region *region = &session->regions[middle];
        if (region->address + region->length <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < session->region_count && session->regions[low].address <= address) {
        const remote_region *region = &session->regions[low];
        status = length <= region->length - (address - region->address) ? MS_OK : MS_OUT_OF_RANGE;
        *found = *region;
    }
    pthread_mutex_unlock(&session->lock);
    return status;
}

/* ---- shared memory ------------------------------------------------------------------------------------------- */

/* Whether the region can be read by mapping it; asks the peer the first time. */
static bool is_mapped(te_session *session, remote_region *region, int64_t deadline_ns) {
    if (region->sharing != SHARING_UNKNOWN)
        return region->sharing == SHARING_MAPPED;
    ms_status status =
        te_attach(session->channels[0], region->segment, deadline_ns, &region->mapping);
    uint64_t within = region->address % MS_PAGE_SIZE;
    if (status == MS_OK && region->mapping.words != NULL &&
        within + region->length <= region->mapping.page_count * MS_PAGE_SIZE)
        region->sharing = SHARING_MAPPED;
    else if (status == MS_OK || status == MS_UNAVAILABLE)
        region->sharing = SHARING_NONE; /* private memory */
    else
        return false; /* ask again next time */
    pthread_mutex_lock(&session->lock);
    for (uint32_t i = 0; i < session->region_count; i++) {
        if (session->regions[i].segment != region->segment)
            continue;
        session->regions[i].sharing = region->sharing;
        session->regions[i].mapping = region->mapping;
    }
    pthread_mutex_unlock(&session->lock);
    return region->sharing == SHARING_MAPPED;
}

static bool is_registered(const remote_region *region) {
    const _Atomic uint64_t *word = (const _Atomic uint64_t *)region->mapping.words;
    return atomic_load_explicit(word, memory_order_acquire) != 0;
}

/* A region may be unregistered while we copy; then its word says so afterwards, and the bytes are worth nothing. */
static ms_status copy_mapped(te_engine *engine, const remote_region *region, const te_piece *piece,
                             te_scope *scope, int64_t deadline_ns) {
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

/* ---- moving -------------------------------------------------------------------------------------------------- */

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

static void add_frame(te_session *session, te_opcode opcode, const remote_region *region,
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
                    size_t count, te_scope *scope, bool is_last_try, frame_set *frames,
                    bool *is_stale, int64_t deadline_ns) {
    for (size_t i = 0; i < count; i++) {
        te_piece *piece = &pieces[i];
        remote_region region;
        if (piece->status != MS_PENDING)
            continue;
        ms_status status = find_region(session, piece->remote_address, piece->length, &region);
        if (status == MS_OK && opcode == TE_READ && session->is_local &&
            is_mapped(session, &region, deadline_ns)) {
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

/* Whether another try is due.  A WRITE is repeated only when the peer itself has closed the connection: after
 * anything else it may still carry the first one out, with what the source holds by then. */
static bool is_path_failure(te_opcode opcode, ms_status status) {
    return status == MS_UNAVAILABLE || status == MS_WRONG_INCARNATION ||
           (opcode == TE_READ && (status == MS_IO_ERROR || status == MS_BAD_FRAME));
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

/* One try.  *is_stale: the list of regions should be asked for again. */
static ms_status try_once(te_remote *remote, te_session *session, te_opcode opcode,
                          te_piece *pieces, size_t count, te_scope *scope, bool is_last_try,
                          bool *is_stale, int64_t deadline_ns) {
    frame_set frames = {0};
    ms_status status = MS_OK;
    prepare(remote, session, opcode, pieces, count, scope, is_last_try, &frames, is_stale,
            deadline_ns);
    if (opcode == TE_WRITE && session->is_local && frames.count > 0)
        stage(session, pieces, &frames, deadline_ns);
    if (frames.count > 0)
        status = over_a_rail(session, opcode, &frames, deadline_ns);
    for (size_t i = 0; i < frames.count && status == MS_OK; i++) {
        ms_status result =
            (ms_status)(opcode == TE_READ ? frames.results[i].status : frames.statuses[i]);
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
                    te_scope *scope, int64_t deadline_ns) {
    te_session *session = session_get(remote);
    /* Each rail may fail once; one try more after a new session, one more after a new list of regions. */
    uint32_t path_failures = 0;
    bool was_refreshed = false;
    for (;;) {
        bool is_stale = false;
        pthread_mutex_lock(&session->lock);
        uint64_t seen = session->refreshes;
        pthread_mutex_unlock(&session->lock);
        ms_status status = try_once(remote, session, opcode, pieces, count, scope, was_refreshed,
                                    &is_stale, deadline_ns);
        if (te_scope_is_cancelled(scope)) {
            end_pending(pieces, count, MS_CANCELLED);
            break;
        }
        if (status == MS_OK && !has_pending(pieces, count))
            break;
        bool is_path_left =
            is_path_failure(opcode, status) && path_failures < session->rail_count + 1;
        if (te_now_ns() >= deadline_ns)
            status = MS_TIMEOUT;
        if (status != MS_OK && (status == MS_TIMEOUT || !is_path_left)) {
            end_pending(pieces, count, status);
            break;
        }
        if (status == MS_OK && is_stale) {
            status = refresh_regions(session, seen, deadline_ns);
            was_refreshed = true;
        }
        if (is_path_failure(opcode, status)) {
            path_failures++;
            if (status == MS_WRONG_INCARNATION || path_failures >= session->rail_count) {
                te_session *old = session;
                status = renew_session(remote, old, deadline_ns);
                session = session_get(remote);
                session_put(old);
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
    session_put(session);
}

/* ---- handles ------------------------------------------------------------------------------------------------- */

ms_status te_remotes_open(te_engine *engine, te_remotes **result) {
    te_remotes *remotes = calloc(1, sizeof *remotes);
    if (remotes == NULL)
        return MS_NO_MEMORY;
    remotes->engine = engine;
    pthread_mutex_init(&remotes->lock, NULL);
    *result = remotes;
    return MS_OK;
}

static void remote_free(te_remote *remote) {
    session_put(remote->session);
    pthread_mutex_destroy(&remote->connecting);
    pthread_mutex_destroy(&remote->lock);
    free(remote);
}

void te_remotes_close(te_remotes *remotes) {
    if (remotes == NULL)
        return;
    for (uint32_t slot = 0; slot < REMOTES_MAX; slot++)
        if (remotes->slots[slot] != NULL)
            remote_free(remotes->slots[slot]);
    pthread_mutex_destroy(&remotes->lock);
    free(remotes);
}

/* Under the lock. */
static te_remote *by_handle(te_remotes *remotes, uint32_t handle) {
    te_remote *remote = remotes->slots[handle & (REMOTES_MAX - 1)];
    return remote != NULL && remote->handle == handle && remote->opens > 0 ? remote : NULL;
}

te_remote *te_remote_get(te_remotes *remotes, uint32_t handle) {
    pthread_mutex_lock(&remotes->lock);
    te_remote *remote = by_handle(remotes, handle);
    if (remote != NULL)
        remote->users++;
    pthread_mutex_unlock(&remotes->lock);
    return remote;
}

/* Under the lock; true: nobody knows it any more, and it has left the table. */
static bool is_unused(te_remotes *remotes, te_remote *remote) {
    if (remote->opens > 0 || remote->users > 0)
        return false;
    uint32_t slot = remote->handle & (REMOTES_MAX - 1);
    remotes->slots[slot] = NULL;
    remotes->generations[slot]++;
    return true;
}

void te_remote_put(te_remotes *remotes, te_remote *remote) {
    pthread_mutex_lock(&remotes->lock);
    remote->users--;
    bool gone = is_unused(remotes, remote);
    pthread_mutex_unlock(&remotes->lock);
    if (gone)
        remote_free(remote);
}

static te_remote *reopen(te_remotes *remotes, const char *address) {
    te_remote *found = NULL;
    pthread_mutex_lock(&remotes->lock);
    for (uint32_t slot = 0; slot < REMOTES_MAX && found == NULL; slot++) {
        te_remote *remote = remotes->slots[slot];
        if (remote != NULL && remote->opens > 0 && strcmp(remote->address, address) == 0)
            found = remote;
    }
    if (found != NULL)
        found->opens++;
    pthread_mutex_unlock(&remotes->lock);
    return found;
}

static ms_status add(te_remotes *remotes, te_remote *remote) {
    ms_status status = MS_LIMIT;
    pthread_mutex_lock(&remotes->lock);
    for (uint32_t slot = 0; slot < REMOTES_MAX && status != MS_OK; slot++) {
        if (remotes->slots[slot] != NULL)
            continue;
        /* Generation 0 is left out, so that 0 is never a handle. */
        remote->handle = (remotes->generations[slot] + 1) << SLOT_BITS | slot;
        remotes->slots[slot] = remote;
        status = MS_OK;
    }
    pthread_mutex_unlock(&remotes->lock);
    return status;
}

/* Whoever opens an address wants to see what the peer has registered now. */
static ms_status refresh(te_remote *remote, int64_t deadline_ns, char *error) {
    te_session *session = session_get(remote);
    pthread_mutex_lock(&session->lock);
    uint64_t seen = session->refreshes;
    pthread_mutex_unlock(&session->lock);
    ms_status status = refresh_regions(session, seen, deadline_ns);
    if (is_path_failure(TE_READ, status))
        status = renew_session(remote, session, deadline_ns);
    if (status != MS_OK)
        te_error(error, "%s does not answer any more", remote->address);
    session_put(session);
    return status;
}

ms_status te_open_segment(te_engine *engine, const char *address, uint32_t *segment,
                          int64_t deadline_ns, char *error) {
    te_remotes *remotes = engine->remotes;
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    if (strlen(address) > MS_ADDRESSES_BYTES_MAX || deadline_ns == TE_NO_DEADLINE) {
        te_error(error, "open_segment needs a deadline and an address of at most %u bytes",
                 MS_ADDRESSES_BYTES_MAX);
        return MS_BAD_REQUEST;
    }
    te_remote *remote = reopen(remotes, address);
    if (remote != NULL) {
        *segment = remote->handle;
        status = refresh(remote, deadline_ns, error);
        if (status != MS_OK)
            te_close_segment(engine, remote->handle);
        return status;
    }
    te_session *session = NULL;
    status = connect_session(engine, address, deadline_ns, &session, error);
    if (status != MS_OK)
        return status;
    remote = calloc(1, sizeof *remote + strlen(address) + 1);
    if (remote == NULL) {
        session_put(session);
        return MS_NO_MEMORY;
    }
    remote->engine = engine;
    remote->opens = 1;
    remote->session = session;
    memcpy(remote->address, address, strlen(address) + 1);
    pthread_mutex_init(&remote->lock, NULL);
    pthread_mutex_init(&remote->connecting, NULL);
    status = add(remotes, remote);
    if (status != MS_OK) {
        te_error(error, "%u segments are open: close some", REMOTES_MAX);
        remote_free(remote);
        return status;
    }
    *segment = remote->handle;
    return MS_OK;
}

ms_status te_close_segment(te_engine *engine, uint32_t segment) {
    te_remotes *remotes = engine->remotes;
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    pthread_mutex_lock(&remotes->lock);
    te_remote *remote = by_handle(remotes, segment);
    bool gone = false;
    if (remote != NULL) {
        remote->opens--;
        gone = is_unused(remotes, remote);
    }
    pthread_mutex_unlock(&remotes->lock);
    if (remote == NULL)
        return MS_NOT_REGISTERED;
    if (gone)
        remote_free(remote);
    return MS_OK;
}

ms_status te_segment_region(te_engine *engine, uint32_t segment, uint32_t index, uint64_t *address,
                            uint64_t *length) {
    te_remotes *remotes = engine->remotes;
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    te_remote *remote = te_remote_get(remotes, segment);
    if (remote == NULL)
        return MS_NOT_REGISTERED;
    te_session *session = session_get(remote);
    status = MS_NOT_FOUND;
    pthread_mutex_lock(&session->lock);
    if (index < session->region_count) {
        *address = session->regions[index].address;
        *length = session->regions[index].length;
        status = MS_OK;
    }
    pthread_mutex_unlock(&session->lock);
    session_put(session);
    te_remote_put(remotes, remote);
    return status;
}

ms_status te_send_notify(te_engine *engine, uint32_t segment, const char *name, const char *message,
                         int64_t deadline_ns) {
    te_remotes *remotes = engine->remotes;
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    if (strlen(name) > MS_NAME_BYTES_MAX || strlen(message) > MS_NOTIFY_BYTES_MAX)
        return MS_TOO_LARGE;
    te_remote *remote = te_remote_get(remotes, segment);
    if (remote == NULL)
        return MS_NOT_REGISTERED;
    ms_writer body = ms_writer_growable(MS_NAME_BYTES_MAX + MS_NOTIFY_BYTES_MAX + 32);
    ms_writer_string(&body, name, (uint32_t)strlen(name));
    ms_writer_string(&body, message, (uint32_t)strlen(message));
    status = body.status;
    te_session *session = session_get(remote);
    for (int tries = 0; status == MS_OK && tries < 2; tries++) {
        uint8_t sentence[1024];
        te_reply reply = {.body = sentence, .body_size = sizeof sentence};
        struct iovec part = {body.data, body.length};
        status = te_call(session->channels[0], MS_NOTIFY, 0, &part, 1, &reply, deadline_ns);
        if (status == MS_OK) {
            if (reply.header.status < MS_STATUS_COUNT)
                status = (ms_status)reply.header.status;
            else
                status = MS_BAD_FRAME;
            break;
        }
        /* Sent or not, who knows, unless the process has changed: only then is it safe to send it again. */
        if (status != MS_WRONG_INCARNATION)
            break;
        te_session *old = session;
        status = renew_session(remote, old, deadline_ns);
        session = session_get(remote);
        session_put(old);
    }
    session_put(session);
    ms_writer_close(&body);
    te_remote_put(remotes, remote);
    return status;
}
