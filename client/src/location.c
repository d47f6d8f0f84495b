/* Cached locations: where an object was, for a bounded time.
 *
 * A location protects nothing: the word that is compared after each read does.  So the cache may be as stale
 * as it likes, and eviction from it is a hand that goes round (second chance would buy little here: a miss
 * costs one look-up).
 */
#include "cl_internal.h"

#define PROBES 16u /* a key lies within so many slots of its own */

static cl_location_shard *shard_of(cl_client *client, ms_hash hash) {
    return &client->shards[hash.high >> 60 & (CL_LOCATION_SHARDS - 1)];
}

ms_status cl_locations_init(cl_client *client, uint32_t count_max) {
    uint32_t slots = 64;
    while (slots < count_max / CL_LOCATION_SHARDS && slots < 1u << 26)
        slots <<= 1;
    for (size_t i = 0; i < CL_LOCATION_SHARDS; i++) {
        cl_location_shard *shard = &client->shards[i];
        pthread_mutex_init(&shard->lock, NULL);
        /* calloc of this size is fresh zero pages: what is not used costs nothing. */
        shard->slots = calloc(slots, sizeof *shard->slots);
        if (shard->slots == NULL)
            return MS_NO_MEMORY;
        shard->slot_count = slots;
    }
    return MS_OK;
}

void cl_locations_destroy(cl_client *client) {
    for (size_t i = 0; i < CL_LOCATION_SHARDS; i++) {
        cl_location_shard *shard = &client->shards[i];
        for (uint32_t j = 0; shard->slots != NULL && j < shard->slot_count; j++)
            if (shard->slots[j] != NULL)
                cl_location_release(shard->slots[j]);
        free(shard->slots);
        if (shard->slot_count != 0)
            pthread_mutex_destroy(&shard->lock);
    }
}

void cl_location_release(cl_location *location) {
    if (atomic_fetch_sub_explicit(&location->references, 1, memory_order_acq_rel) == 1)
        free(location);
}

/* The slot that holds the key, or NULL. */
static cl_location **find_slot(cl_location_shard *shard, ms_hash hash) {
    uint32_t mask = shard->slot_count - 1, at = (uint32_t)hash.low & mask;
    for (uint32_t i = 0; i < PROBES; i++, at = (at + 1) & mask)
        if (shard->slots[at] != NULL && ms_hash_equal(shard->slots[at]->hash, hash))
            return &shard->slots[at];
    return NULL;
}

/* Asks for what cl_location_find will touch, of many keys at once: slots first, then locations, so that
 * the misses of a batch overlap. */
void cl_locations_prefetch(cl_client *client, const cl_item *items, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const cl_location_shard *shard = shard_of(client, items[i].hash);
        __builtin_prefetch(&shard->slots[(uint32_t)items[i].hash.low & (shard->slot_count - 1)]);
    }
    for (size_t i = 0; i < count; i++) {
        cl_location_shard *shard = shard_of(client, items[i].hash);
        pthread_mutex_lock(&shard->lock);
        const char *location =
            (const char *)shard->slots[(uint32_t)items[i].hash.low & (shard->slot_count - 1)];
        pthread_mutex_unlock(&shard->lock);
        if (location != NULL) {
            __builtin_prefetch(location);
            __builtin_prefetch(location + 64);
        }
    }
}

cl_location *cl_location_find(cl_client *client, ms_hash hash, int64_t now_ns) {
    cl_location_shard *shard = shard_of(client, hash);
    cl_location *found = NULL;
    pthread_mutex_lock(&shard->lock);
    cl_location **slot = find_slot(shard, hash);
    if (slot != NULL) {
        if ((*slot)->expiry_ns > now_ns) {
            found = *slot;
            atomic_fetch_add_explicit(&found->references, 1, memory_order_relaxed);
        } else {
            cl_location_release(*slot);
            *slot = NULL;
        }
    }
    pthread_mutex_unlock(&shard->lock);
    return found;
}

void cl_location_keep(cl_client *client, cl_location *location) {
    if (location->lifetime_ms == 0)
        return;
    cl_location_shard *shard = shard_of(client, location->hash);
    atomic_fetch_add_explicit(&location->references, 1, memory_order_relaxed);
    pthread_mutex_lock(&shard->lock);
    cl_location **slot = find_slot(shard, location->hash);
    if (slot == NULL) {
        uint32_t mask = shard->slot_count - 1, at = (uint32_t)location->hash.low & mask;
        for (uint32_t i = 0; i < PROBES && slot == NULL; i++)
            if (shard->slots[(at + i) & mask] == NULL)
                slot = &shard->slots[(at + i) & mask];
        if (slot == NULL)
            slot = &shard->slots[(at + shard->hand++ % PROBES) & mask];
    }
    /* An answer that took longer must not replace what a later one said. */
    if (*slot != NULL && ms_hash_equal((*slot)->hash, location->hash) &&
        (*slot)->version > location->version) {
        cl_location_release(location);
    } else {
        if (*slot != NULL)
            cl_location_release(*slot);
        *slot = location;
    }
    pthread_mutex_unlock(&shard->lock);
}

void cl_location_forget(cl_client *client, ms_hash hash, uint64_t version) {
    cl_location_shard *shard = shard_of(client, hash);
    pthread_mutex_lock(&shard->lock);
    cl_location **slot = find_slot(shard, hash);
    if (slot != NULL && (*slot)->version <= version) {
        cl_location_release(*slot);
        *slot = NULL;
    }
    pthread_mutex_unlock(&shard->lock);
}

void cl_locations_drop(cl_client *client) {
    for (size_t i = 0; i < CL_LOCATION_SHARDS; i++) {
        cl_location_shard *shard = &client->shards[i];
        pthread_mutex_lock(&shard->lock);
        for (uint32_t j = 0; j < shard->slot_count; j++)
            if (shard->slots[j] != NULL) {
                cl_location_release(shard->slots[j]);
                shard->slots[j] = NULL;
            }
        pthread_mutex_unlock(&shard->lock);
    }
}

void cl_forget_locations(uint64_t handle) {
    cl_client *client = cl_enter(handle, NULL);
    if (client == NULL)
        return;
    cl_locations_drop(client);
    cl_leave(client);
}

ms_status cl_location_parse(ms_reader *reader, ms_hash hash, uint32_t epoch, int64_t sent_ns,
                            cl_location **location, ms_status *status) {
    ms_location_view view;
    *location = NULL;
    if (!ms_reader_location(reader, &view))
        return MS_BAD_FRAME;
    *status = (ms_status)view.head.status;
    if (view.head.status != MS_OK)
        return MS_OK;
    uint32_t extents = 0;
    for (uint32_t i = 0; i < view.head.replica_count; i++)
        extents += view.replicas[i].extents.count;
    size_t bytes = sizeof(cl_location) + view.head.replica_count * sizeof(cl_replica) +
                   extents * sizeof(ms_extent);
    cl_location *made = malloc(bytes);
    if (made == NULL)
        return MS_NO_MEMORY;
    cl_replica *replicas = (cl_replica *)(made + 1);
    ms_extent *all = (ms_extent *)(replicas + view.head.replica_count);
    *made = (cl_location){.references = 1,
                          .replica_count = view.head.replica_count,
                          .hash = hash,
                          .epoch = epoch,
                          .version = view.head.version,
                          .size = view.head.size,
                          .checksum = view.head.checksum,
                          .has_checksum = (view.head.flags & MS_OBJECT_HAS_CHECKSUM) != 0,
                          .expiry_ns = sent_ns + (int64_t)view.head.lifetime_ms * 1000000,
                          .lifetime_ms = view.head.lifetime_ms,
                          .extent_count = extents,
                          .replicas = replicas,
                          .extents = all};
    uint32_t at = 0;
    for (uint32_t i = 0; i < view.head.replica_count; i++) {
        const ms_replica *head = &view.replicas[i].head;
        replicas[i] = (cl_replica){.server = head->server,
                                   .incarnation = head->incarnation,
                                   .extent_first = at,
                                   .segment = head->segment,
                                   .extent_count = (uint16_t)view.replicas[i].extents.count};
        for (uint32_t j = 0; j < view.replicas[i].extents.count; j++)
            all[at++] = ms_replica_extent(&view.replicas[i], j);
    }
    *location = made;
    return MS_OK;
}
