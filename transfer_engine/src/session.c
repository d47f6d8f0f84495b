/* Opening a session, its list of regions, mappings of the peer's shared memory: see te_session.h. */
#include <stdlib.h>
#include <string.h>

#include "ms_frame.h"
#include "te_session.h"

#include "te_fault.h"

#define CONNECTIONS_MAX 8u
#define CONNECT_TIMEOUT_MS 1000u

void te_session_put(te_session *session) {
    if (session == NULL ||
        atomic_fetch_sub_explicit(&session->references, 1, memory_order_acq_rel) != 1)
        return;
    for (uint32_t i = 0; i < TE_RAILS_MAX; i++)
        if (session->channels[i] != NULL)
            te_channel_close(session->channels[i]);
    te_path_close(session->path);
    te_staging_close(session->staging);
    free(session->topology);
    free(session->regions);
    pthread_mutex_destroy(&session->lock);
    free(session);
}

static int by_address(const void *a, const void *b) {
    uint64_t left = ((const te_remote_region *)a)->address,
             right = ((const te_remote_region *)b)->address;
    return left < right ? -1 : left > right;
}

typedef struct opened {
    te_remote_region *regions;
    uint32_t region_count;
    te_topology topology;
    char *topology_text;
    size_t topology_length;
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
        te_remote_region *region = &result->regions[result->region_count];
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
    result->topology_text = malloc(topology.length + 1);
    if (result->topology_text == NULL)
        return MS_NO_MEMORY;
    if (topology.length > 0)
        memcpy(result->topology_text, topology.data, topology.length);
    result->topology_length = topology.length;
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

/* What our connections say first: that they mean this process and no later one. */
static void write_hello(te_engine *engine, uint32_t incarnation,
                        uint8_t hello[TE_HELLO_DEFAULT_BYTES]) {
    te_hello_default(engine, hello);
    memcpy(hello + offsetof(ms_hello, incarnation), &incarnation, sizeof incarnation);
}

static ms_status open_channel(te_engine *engine, const char *addresses, const char *unix_path,
                              uint32_t incarnation, te_channel **channel) {
    uint8_t hello[TE_HELLO_DEFAULT_BYTES];
    write_hello(engine, incarnation, hello);
    te_channel_config config = {.addresses = addresses,
                                .unix_path = unix_path,
                                .hello = hello,
                                .hello_length = sizeof hello,
                                .connections_max = CONNECTIONS_MAX,
                                .connect_timeout_ms = CONNECT_TIMEOUT_MS};
    return te_channel_open(engine, &config, channel);
}

/* ---- rails --------------------------------------------------------------------------------------------------------- */

/* Over TCP as given, and beside that over each RDMA NIC. */
static ms_status open_path(te_engine *engine, te_session *session, const te_rail_ends *rails,
                           uint32_t count) {
    uint8_t hello[TE_HELLO_DEFAULT_BYTES];
    te_rail_ends all[TE_RAILS_MAX];
    const te_lane_ops *ops[TE_RAILS_MAX];
    memcpy(all, rails, count * sizeof *all);
    count = te_lane_rdma_beside(engine, all, ops, count);
    write_hello(engine, session->incarnation, hello);
    te_path_config config = {.rails = all,
                             .ops = ops,
                             .rail_count = count,
                             .hello = hello,
                             .hello_length = sizeof hello,
                             .is_watching = te_registry_has_topology(engine->registry)};
    return te_path_open(engine, &config, &session->path);
}

te_path *te_session_path(te_engine *engine, te_session *session, bool wants) {
    if (session->is_local)
        return NULL;
    pthread_mutex_lock(&session->lock);
    if (session->path == NULL && wants) {
        te_rail_ends ends[TE_RAILS_MAX];
        for (uint32_t i = 0; i < session->rail_count; i++)
            te_rail_ends_from(&session->rails[i], &ends[i]);
        /* Without one the requests go as all others do. */
        (void)open_path(engine, session, ends, session->rail_count);
    }
    te_path *path = session->path;
    /* One with a single rail is there for the peer to tell of others, or for shares. */
    if (path != NULL && !wants &&
        atomic_load_explicit(&path->rails_wanted, memory_order_relaxed) < 2)
        path = NULL;
    pthread_mutex_unlock(&session->lock);
    return path;
}

ms_status te_session_set_rails(te_engine *engine, te_session *session, const te_rail_ends *rails,
                               uint32_t count) {
    ms_status status = MS_OK;
    if (session->is_local)
        return MS_OK;
    pthread_mutex_lock(&session->lock);
    if (session->path != NULL)
        status = te_path_change(session->path, rails, count);
    else if (count > 1 || te_registry_has_topology(engine->registry))
        status = open_path(engine, session, rails, count);
    pthread_mutex_unlock(&session->lock);
    return status;
}

/* Replaces the channel that asked (it named no incarnation) by those that carry bytes. */
static ms_status open_rails(te_engine *engine, const char *address, const te_rail_ends *rails,
                            uint32_t rail_count, bool is_same_host, const opened *peer,
                            te_session *session) {
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
    if (session->rail_count == 0)
        return MS_BAD_REQUEST;
    ms_status status =
        open_channel(engine, addresses, NULL, session->incarnation, &session->channels[0]);
    if (status != MS_OK)
        return status;
    if (rail_count > 0)
        return rail_count == 1 && engine->rdma == NULL
                   ? MS_OK
                   : open_path(engine, session, rails, rail_count);
    if (session->rail_count == 1 && engine->rdma == NULL)
        return MS_OK;
    te_rail_ends ends[TE_RAILS_MAX];
    for (uint32_t i = 0; i < session->rail_count; i++)
        te_rail_ends_from(&session->rails[i], &ends[i]);
    return open_path(engine, session, ends, session->rail_count);
}

ms_status te_session_open(te_engine *engine, const char *address, const te_rail_ends *rails,
                          uint32_t rail_count, int64_t deadline_ns, te_session **result,
                          char *error) {
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
    session->topology = peer->topology_text;
    session->topology_length = peer->topology_length;
    peer->topology_text = NULL;
    bool is_same_host = memcmp(hello.boot_id, engine->boot_id, sizeof hello.boot_id) == 0;
    status = open_rails(engine, address, rails, rail_count, is_same_host, peer, session);
    if (status != MS_OK)
        te_error(error, "%s: cannot open a channel", address);
out:
    if (first != NULL)
        te_channel_close(first);
    if (peer != NULL) {
        free(peer->topology_text);
        free(peer->regions);
    }
    free(peer);
    if (status == MS_OK) {
        *result = session;
    } else {
        if (session != NULL && session->references == 0)
            free(session);
        else
            te_session_put(session);
    }
    return status;
}

/* Asks for the regions again, unless someone did since `seen`. */
ms_status te_session_refresh(te_session *session, uint64_t seen, int64_t deadline_ns) {
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
        te_remote_region *old = session->regions;
        session->regions = peer->regions;
        session->region_count = peer->region_count;
        session->refreshes++;
        peer->regions = old;
        char *topology = session->topology;
        session->topology = peer->topology_text;
        session->topology_length = peer->topology_length;
        peer->topology_text = topology;
        pthread_mutex_unlock(&session->lock);
    }
    free(peer->topology_text);
    free(peer->regions);
    free(peer);
    return status;
}

/* The region around a range, as a copy. */
ms_status te_session_find(te_session *session, uint64_t address, uint64_t length,
                          te_remote_region *found) {
    ms_status status = MS_NOT_REGISTERED;
    pthread_mutex_lock(&session->lock);
    uint32_t low = 0, high = session->region_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const te_remote_region *region = &session->regions[middle];
        if (region->address + region->length <= address)
            low = middle + 1;
        else
            high = middle;
    }
    if (low < session->region_count && session->regions[low].address <= address) {
        const te_remote_region *region = &session->regions[low];
        status = length <= region->length - (address - region->address) ? MS_OK : MS_OUT_OF_RANGE;
        *found = *region;
    }
    pthread_mutex_unlock(&session->lock);
    return status;
}

/* Whether the region can be read by mapping it; asks the peer the first time. */
bool te_session_is_mapped(te_session *session, te_remote_region *region, int64_t deadline_ns) {
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
