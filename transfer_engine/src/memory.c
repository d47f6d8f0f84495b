/* Registered local memory: what peers may READ and WRITE, and what transfers may use here.
 *
 * A region is a range of addresses with a location ("cpu:0").  To peers each is a segment of its own, with a
 * number that is never used twice, so a number that a peer still holds after an unregister names nothing.
 * A region inside te_shared_alloc memory can be mapped by peers on this host (ATTACH); such a peer compares the
 * region's one generation word after copying, because nothing else could tell it that the region has gone.
 *
 * A registered range must be mapped, and read-only memory may be registered as a source only: otherwise a peer
 * could crash this process by asking for it.
 *
 * Look-ups take a read lock for a binary search; transfers then hold the region by its use count, and an
 * unregister meanwhile is refused.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ms_frame.h"
#include "te_parts.h"

#include "te_fault.h"

#define REGIONS_MAX 65536u

struct te_region {
    uint64_t address, length;
    uint32_t segment;
    bool is_writable, is_device;
    bool is_ready; /* its segment is served; under the registry's lock */
    char location[TE_LOCATION_BYTES];
    int32_t numa_node; /* -1: not known */
    _Atomic uint32_t users;
    int payload_descriptor, words_descriptor; /* -1: private memory */
    _Atomic uint64_t *word;                   /* 1 while registered */
    struct te_rdma_range *rdma;               /* its segment's; NULL: not for RDMA */
};

struct te_registry {
    pthread_rwlock_t lock;
    te_region **regions; /* by address; ranges do not overlap */
    uint32_t count, room;
    _Atomic uint32_t device_count; /* regions of devices: mostly there is none to be looked for */
    uint32_t segment_next;
    uint32_t incarnation;
    char *topology; /* JSON */
    size_t topology_length;
    char unix_path[MS_SOCKET_PATH_BYTES_MAX + 1];
};

ms_status te_registry_open(te_registry **result) {
    te_registry *registry = calloc(1, sizeof *registry);
    if (registry == NULL)
        return MS_NO_MEMORY;
    pthread_rwlock_init(&registry->lock, NULL);
    /* Random, so that a peer can tell this engine from the one that had its address before. */
    while (registry->incarnation == 0) {
        if (getrandom(&registry->incarnation, sizeof registry->incarnation, 0) < 0) {
            pthread_rwlock_destroy(&registry->lock);
            free(registry);
            return MS_INTERNAL;
        }
    }
    *result = registry;
    return MS_OK;
}

static void region_free(te_region *region) {
    if (region->word != NULL)
        munmap((void *)region->word, MS_PAGE_SIZE);
    if (region->payload_descriptor >= 0)
        close(region->payload_descriptor);
    if (region->words_descriptor >= 0)
        close(region->words_descriptor);
    free(region);
}

static void region_retire(te_region *region) {
    if (region->word != NULL)
        atomic_store_explicit(region->word, 0, memory_order_seq_cst);
}

void te_registry_close(te_registry *registry) {
    if (registry == NULL)
        return;
    for (uint32_t i = 0; i < registry->count; i++) {
        region_retire(registry->regions[i]);
        region_free(registry->regions[i]);
    }
    free(registry->regions);
    free(registry->topology);
    pthread_rwlock_destroy(&registry->lock);
    free(registry);
}

uint32_t te_registry_incarnation(const te_registry *registry) { return registry->incarnation; }

/* Index of the first region that ends after the address. */
static uint32_t position(const te_registry *registry, uint64_t address) {
    uint32_t low = 0, high = registry->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const te_region *candidate = registry->regions[middle];
        if (candidate->address + candidate->length <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* ---- is it really memory? -------------------------------------------------------------------------------- */

/* Whether [address, end) is mapped without a gap and readable; *is_writable: all of it. */
static bool is_mapped(uint64_t address, uint64_t end, bool *is_writable) {
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL)
        return *is_writable = true; /* no /proc: take the caller's word for it */
    char line[512];
    uint64_t reached = address;
    *is_writable = true;
    while (reached < end && fgets(line, sizeof line, maps) != NULL) {
        uint64_t first, last;
        char rights[5];
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s", &first, &last, rights) != 3 ||
            last <= reached)
            continue;
        if (first > reached || rights[0] != 'r')
            break;
        *is_writable = *is_writable && rights[1] == 'w';
        reached = last;
    }
    fclose(maps);
    return reached >= end;
}

static bool is_location(const char *location) {
    size_t length = strlen(location);
    if (length == 0 || length >= TE_LOCATION_BYTES)
        return false;
    if (strcmp(location, "*") == 0)
        return true;
    size_t name = strspn(location, "abcdefghijklmnopqrstuvwxyz");
    if (name == 0 || location[name] != ':' || location[name + 1] == '\0')
        return false;
    return strspn(location + name + 1, "0123456789") == length - name - 1;
}

/* The node of a location "cpu:N"; of memory that nobody has placed, that of its first page, if it is there. */
static int32_t node_of(uint64_t address, const char *location) {
    void *page = (void *)(uintptr_t)(address & ~(uint64_t)(MS_PAGE_SIZE - 1));
    int node = -1;
    if (strncmp(location, "cpu:", 4) == 0)
        return (int32_t)strtol(location + 4, NULL, 10);
    if (strcmp(location, "*") != 0 ||
        syscall(SYS_move_pages, 0, 1ul, &page, NULL, &node, 0) != 0) /* it only asks */
        return -1;
    return node < 0 ? -1 : node;
}

/* ---- register and unregister ----------------------------------------------------------------------------- */

static ms_status refuse_write(void *context, void *peer_context, const ms_write_item *item) {
    (void)context, (void)peer_context, (void)item;
    return MS_REFUSED;
}

/* The generation word: a file of one word a page, as for every segment, of which only the first is used. */
static ms_status make_word(te_region *region) {
    uint64_t within = region->address % MS_PAGE_SIZE;
    uint64_t pages = (within + region->length + MS_PAGE_SIZE - 1) / MS_PAGE_SIZE;
    region->words_descriptor =
        memfd_create("mooncake-store-words", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (region->words_descriptor < 0)
        return MS_LIMIT;
    uint64_t size =
        pages * sizeof(uint64_t) < MS_PAGE_SIZE ? MS_PAGE_SIZE : pages * sizeof(uint64_t);
    if (ftruncate(region->words_descriptor, (off_t)size) != 0 ||
        fallocate(region->words_descriptor, 0, 0, MS_PAGE_SIZE) != 0 ||
        fcntl(region->words_descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) !=
            0)
        return MS_NO_MEMORY;
    void *word =
        mmap(NULL, MS_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, region->words_descriptor, 0);
    if (word == MAP_FAILED)
        return MS_NO_MEMORY;
    region->word = word;
    atomic_store_explicit(region->word, 1, memory_order_release);
    return MS_OK;
}

static ms_status insert(te_registry *registry, te_region *region) {
    ms_status status = MS_OK;
    pthread_rwlock_wrlock(&registry->lock);
    uint32_t at = position(registry, region->address);
    if (at < registry->count && registry->regions[at]->address < region->address + region->length) {
        status = MS_BAD_REQUEST; /* overlaps */
        goto out;
    }
    if (registry->count == REGIONS_MAX || registry->segment_next >= TE_REGION_BIT) {
        status = MS_LIMIT;
        goto out;
    }
    if (registry->count == registry->room) {
        uint32_t room = registry->room == 0 ? 16 : registry->room * 2;
        te_region **grown = realloc(registry->regions, room * sizeof *grown);
        if (grown == NULL) {
            status = MS_NO_MEMORY;
            goto out;
        }
        registry->regions = grown;
        registry->room = room;
    }
    memmove(&registry->regions[at + 1], &registry->regions[at],
            (registry->count - at) * sizeof *registry->regions);
    region->segment = TE_REGION_BIT | registry->segment_next++;
    registry->regions[at] = region;
    registry->count++;
out:
    pthread_rwlock_unlock(&registry->lock);
    return status;
}

/* Under the write lock. */
static void take_out(te_registry *registry, uint32_t index) {
    registry->device_count -= registry->regions[index]->is_device;
    registry->count--;
    memmove(&registry->regions[index], &registry->regions[index + 1],
            (registry->count - index) * sizeof *registry->regions);
}

/* The last step of registering: until it has succeeded nobody can hold or unregister the region. */
static ms_status serve(te_engine *engine, te_region *region, const te_segment_config *config) {
    te_registry *registry = engine->registry;
    ms_status status = te_segment_add(engine, config);
    struct te_rdma_range *rdma = status == MS_OK ? te_segment_rdma(engine, region->segment) : NULL;
    pthread_rwlock_wrlock(&registry->lock);
    region->rdma = rdma;
    region->is_ready = status == MS_OK;
    if (status != MS_OK) {
        take_out(registry, position(registry, region->address));
    }
    pthread_rwlock_unlock(&registry->lock);
    if (status != MS_OK) {
        region_free(region);
    }
    return status;
}

static bool is_range(uint64_t address, uint64_t length, const char *location) {
    return address != 0 && length != 0 && length <= UINT64_MAX - address && is_location(location);
}

/* A region that nobody can find yet; NULL: no memory. */
static te_region *region_new(uint64_t address, uint64_t length, const char *location) {
    te_region *region = calloc(1, sizeof *region);
    if (region == NULL)
        return NULL;
    *region = (te_region){.address = address,
                          .length = length,
                          .is_writable = true,
                          .numa_node = -1,
                          .payload_descriptor = -1,
                          .words_descriptor = -1};
    snprintf(region->location, sizeof region->location, "%s", location);
    return region;
}

/* What every region's segment has. */
static te_segment_config config_of(const te_registry *registry, const te_region *region) {
    return (te_segment_config){.segment = region->segment,
                               .address = (void *)(uintptr_t)region->address,
                               .length = region->length,
                               .payload_descriptor = region->payload_descriptor,
                               .words_descriptor = region->words_descriptor,
                               .incarnation = registry->incarnation};
}

ms_status te_register_local_memory(te_engine *engine, uint64_t address, uint64_t length,
                                   const char *location) {
    te_registry *registry = engine->registry;
    bool is_writable;
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    if (!is_range(address, length, location))
        return MS_BAD_REQUEST;
    if (!is_mapped(address, address + length, &is_writable))
        return MS_OUT_OF_RANGE;
    te_region *region = region_new(address, length, location);
    if (region == NULL)
        return MS_NO_MEMORY;
    region->is_writable = is_writable;
    region->numa_node = node_of(address, location);

    te_shared_range range;
    const void *bytes = (const void *)(uintptr_t)address;
    bool is_shared = te_shared_find(engine->shm->shared, bytes, (size_t)length, &range);
    if (is_shared) {
        region->payload_descriptor = te_shared_descriptor(engine->shm->shared, range.number);
        status = region->payload_descriptor < 0 ? MS_LIMIT : make_word(region);
    }
    if (status == MS_OK)
        status = insert(registry, region);
    if (status != MS_OK) {
        region_free(region);
        return status;
    }
    te_segment_config config = config_of(registry, region);
    config.payload_offset = is_shared ? address - (uint64_t)(uintptr_t)range.base : 0;
    if (!is_writable)
        config.ops.write_begin = refuse_write;
    config.is_read_only = !is_writable;
    return serve(engine, region, &config);
}

static ms_status refuse_device_read(void *context, void *peer_context, const ms_read_item *item) {
    (void)context, (void)peer_context, (void)item;
    return MS_NOT_REGISTERED;
}

static ms_status refuse_device_write(void *context, void *peer_context, const ms_write_item *item) {
    (void)context, (void)peer_context, (void)item;
    return MS_NOT_REGISTERED;
}

ms_status te_register_device_memory(te_engine *engine, uint64_t address, uint64_t length,
                                    const char *location, int descriptor, uint64_t offset,
                                    char *error) {
    te_registry *registry = engine->registry;
    te_error(error, "%s", "");
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    if (!is_range(address, length, location) || length > UINT64_MAX - offset || descriptor < 0 ||
        (address - offset) % MS_PAGE_SIZE != 0) {
        te_error(error,
                 "no such range, location or descriptor, or the address and the offset do not "
                 "agree within a page");
        return MS_BAD_REQUEST;
    }
    te_region *region = region_new(address, length, location);
    if (region == NULL)
        return MS_NO_MEMORY;
    region->is_device = true;
    atomic_fetch_add(&registry->device_count, 1); /* before anybody can find it */
    status = insert(registry, region);
    if (status != MS_OK) {
        atomic_fetch_sub(&registry->device_count, 1);
        te_error(error, "it overlaps registered memory, or there is too much");
        region_free(region);
        return status;
    }
    te_device_memory device = {.descriptor = descriptor, .offset = offset, .error = error};
    te_segment_config config = config_of(registry, region);
    config.ops.read_begin = refuse_device_read;
    config.ops.write_begin = refuse_device_write;
    config.device = &device;
    return serve(engine, region, &config);
}

bool te_memory_is_device(te_registry *registry, const void *address) {
    if (atomic_load_explicit(&registry->device_count, memory_order_relaxed) == 0)
        return false;
    uint64_t wanted = (uint64_t)(uintptr_t)address;
    pthread_rwlock_rdlock(&registry->lock);
    uint32_t at = position(registry, wanted);
    const te_region *region = at < registry->count ? registry->regions[at] : NULL;
    bool is_device = region != NULL && region->address <= wanted && region->is_device;
    pthread_rwlock_unlock(&registry->lock);
    return is_device;
}

ms_status te_unregister_local_memory(te_engine *engine, uint64_t address) {
    te_registry *registry = engine->registry;
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    te_region *region = NULL;
    pthread_rwlock_wrlock(&registry->lock);
    uint32_t at = position(registry, address);
    if (at == registry->count || registry->regions[at]->address != address) {
        status = MS_NOT_REGISTERED;
    } else if (!registry->regions[at]->is_ready ||
               atomic_load_explicit(&registry->regions[at]->users, memory_order_acquire) != 0) {
        status = MS_BUSY;
    } else {
        region = registry->regions[at];
        take_out(registry, at);
    }
    pthread_rwlock_unlock(&registry->lock);
    if (region == NULL)
        return status;
    region_retire(region);
    te_segment_remove(engine, region->segment);
    region_free(region);
    return MS_OK;
}

/* ---- use --------------------------------------------------------------------------------------------------- */

ms_status te_region_hold(te_registry *registry, uint64_t address, uint64_t length, bool is_target,
                         te_region **result) {
    ms_status status = MS_NOT_REGISTERED;
    pthread_rwlock_rdlock(&registry->lock);
    uint32_t at = position(registry, address);
    te_region *region = at < registry->count ? registry->regions[at] : NULL;
    if (region != NULL && region->address <= address && region->is_ready) {
        if (length > region->length - (address - region->address)) {
            status = MS_OUT_OF_RANGE;
        } else if (is_target && !region->is_writable) {
            status = MS_REFUSED;
        } else {
            atomic_fetch_add_explicit(&region->users, 1, memory_order_relaxed);
            *result = region;
            status = MS_OK;
        }
    }
    pthread_rwlock_unlock(&registry->lock);
    return status;
}

void te_region_release(te_region *region) {
    atomic_fetch_sub_explicit(&region->users, 1, memory_order_release);
}

struct te_rdma_range *te_region_rdma(const te_region *region) { return region->rdma; }

int32_t te_region_numa_node(const te_region *region) { return region->numa_node; }

bool te_region_is_device(const te_region *region) { return region->is_device; }

const char *te_region_location(const te_region *region) { return region->location; }

/* ---- OPEN_SEGMENT -------------------------------------------------------------------------------------------- */

ms_status te_set_topology(te_engine *engine, const char *json, size_t length, char *error) {
    te_registry *registry = engine->registry;
    te_topology *parsed = malloc(sizeof *parsed);
    char *copy = malloc(length + 1);
    ms_status status = parsed == NULL || copy == NULL
                           ? MS_NO_MEMORY
                           : te_topology_parse(json, length, parsed, error);
    free(parsed);
    if (status != MS_OK) {
        free(copy);
        return status;
    }
    memcpy(copy, json, length);
    copy[length] = '\0';
    pthread_rwlock_wrlock(&registry->lock);
    char *old = registry->topology;
    registry->topology = copy;
    registry->topology_length = length;
    pthread_rwlock_unlock(&registry->lock);
    free(old);
    te_topology_tell(engine);
    return MS_OK;
}

void te_registry_write_topology(te_registry *registry, ms_writer *body) {
    pthread_rwlock_rdlock(&registry->lock);
    ms_writer_string(body, registry->topology, (uint32_t)registry->topology_length);
    pthread_rwlock_unlock(&registry->lock);
}

bool te_registry_has_topology(te_registry *registry) {
    pthread_rwlock_rdlock(&registry->lock);
    bool has_one = registry->topology_length > 0;
    pthread_rwlock_unlock(&registry->lock);
    return has_one;
}

void te_registry_topology(te_registry *registry, te_topology *topology) {
    memset(topology, 0, sizeof *topology);
    pthread_rwlock_rdlock(&registry->lock);
    if (registry->topology != NULL) {
        ms_status status =
            te_topology_parse(registry->topology, registry->topology_length, topology, NULL);
        if (status != MS_OK)
            memset(topology, 0, sizeof *topology);
    }
    pthread_rwlock_unlock(&registry->lock);
}

void te_registry_set_unix_path(te_registry *registry, const char *path) {
    pthread_rwlock_wrlock(&registry->lock);
    snprintf(registry->unix_path, sizeof registry->unix_path, "%s", path);
    pthread_rwlock_unlock(&registry->lock);
}

static void answer_open_segment(te_engine *engine, te_link *link, const te_request *request) {
    te_registry *registry = engine->registry;
    ms_writer body = ms_writer_growable(MS_BODY_BYTES_MAX);
    pthread_rwlock_rdlock(&registry->lock);
    ms_writer_list(&body, registry->count);
    for (uint32_t i = 0; i < registry->count; i++) {
        const te_region *region = registry->regions[i];
        ms_region item = {
            .address = region->address, .length = region->length, .segment = region->segment};
        MS_WRITER_STRUCT(&body, &item);
        ms_writer_string(&body, region->location, (uint32_t)strlen(region->location));
    }
    ms_writer_string(&body, registry->topology, (uint32_t)registry->topology_length);
    ms_writer_string(&body, registry->unix_path, (uint32_t)strlen(registry->unix_path));
    pthread_rwlock_unlock(&registry->lock);
    if (body.status == MS_OK) {
        struct iovec part = {body.data, body.length};
        te_link_answer(link, request->header, MS_OK, &part, 1, NULL, 0, NULL, 0);
    } else {
        te_link_refuse(link, request->header, body.status, "the list of regions is too long");
    }
    ms_writer_close(&body);
}

void te_registry_install(te_engine *engine) {
    engine->methods[MS_OPEN_SEGMENT] = answer_open_segment;
}
