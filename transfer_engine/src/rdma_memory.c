/* Memory that NICs may reach: registered in chunks, on every NIC, in the background.
 *
 * Registering pins pages, at some 0.2 s a GiB and more where they have to be made, and a device may limit how much one
 * registration holds; so a range is cut into chunks, and what is registered is used while the rest is not.  A chunk
 * is registered when all of it is ready: pages that do not exist yet would be made by pinning them.
 *
 * A range has one slot for each chunk and NIC.  Slots are filled by one thread and read without a lock.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "te_rdma.h"

#include "te_fault.h"

typedef _Atomic(verbs_mr *) slot;

struct te_rdma_range {
    te_rdma *rdma;
    te_rdma_range *next, *previous; /* under rdma->lock */
    uint64_t address, length, chunk_bytes;
    te_rdma_use use;
    int descriptor; /* of device memory: its dmabuf, ours; else -1 */
    uint64_t descriptor_offset;
    uint32_t chunk_count;
    _Atomic uint64_t ready;
    _Atomic bool is_closing;
    bool is_wanted, is_registering;          /* under rdma->lock */
    _Atomic(slot *) slots[TE_RDMA_NICS_MAX]; /* a row is there for good; read without the lock */
    _Atomic int problems[TE_RDMA_NICS_MAX];  /* errno of a refusal; 0: none */
};

static int access_of(const te_rdma_range *range) {
    switch (range->use) {
    case TE_RDMA_SERVED:
        return VERBS_ACCESS_LOCAL_WRITE | VERBS_ACCESS_REMOTE_WRITE | VERBS_ACCESS_REMOTE_READ;
    case TE_RDMA_SERVED_READING:
        return VERBS_ACCESS_REMOTE_READ;
    default:
        return VERBS_ACCESS_LOCAL_WRITE;
    }
}

/* Relaxed ordering lets the PCIe writes of one READ pass each other, which is harmless where only the completion is
 * waited for: in our own memory.  In memory that is served, a peer's WRITEs must be in place when its 8-byte READ behind
 * them is answered. */
static verbs_mr *register_chunk(const te_rdma_range *range, const te_rdma_nic *nic, uint64_t start,
                                uint64_t length) {
    const te_verbs *verbs = nic->verbs;
    int access = access_of(range);
    void *address = (void *)(uintptr_t)start;
    if (range->descriptor >= 0)
        return verbs->reg_dmabuf_mr(nic->pd, range->descriptor_offset + (start - range->address),
                                    (size_t)length, start, range->descriptor, access);
    if (range->use == TE_RDMA_OWN && range->rdma->settings.relaxed_ordering &&
        verbs->reg_mr_iova2 != NULL)
        return verbs->reg_mr_iova2(nic->pd, address, (size_t)length, start,
                                   (unsigned)access | VERBS_ACCESS_RELAXED_ORDERING);
    return verbs->reg_mr(nic->pd, address, (size_t)length, access);
}

static void tell_short(te_rdma_range *range, const te_rdma_nic *nic, int problem) {
    te_rdma *rdma = range->rdma;
    pthread_mutex_lock(&rdma->lock);
    bool *is_told = range->descriptor >= 0 ? &rdma->is_device_short_told : &rdma->is_short_told;
    bool is_first = !*is_told;
    *is_told = true;
    pthread_mutex_unlock(&rdma->lock);
    if (is_first && range->descriptor >= 0)
        te_log(rdma->engine,
               "rdma: %s cannot register %llu MiB of device memory (%s): it is reached over NICs "
               "that can",
               nic->name, (unsigned long long)(range->length >> 20), strerror(problem));
    else if (is_first)
        te_log(rdma->engine,
               "rdma: %s cannot register %llu MiB (%s)%s: that memory is reached over TCP",
               nic->name, (unsigned long long)(range->length >> 20), strerror(problem),
               problem == ENOMEM || problem == EPERM ? "; raise RLIMIT_MEMLOCK (ulimit -l)" : "");
}

/* One chunk on one NIC; false: that NIC takes no more. */
static bool fill(te_rdma_range *range, te_rdma_nic *nic, uint32_t chunk) {
    uint64_t start = (uint64_t)chunk * range->chunk_bytes;
    uint64_t end =
        start + range->chunk_bytes < range->length ? start + range->chunk_bytes : range->length;
    slot *place = atomic_load_explicit(&range->slots[nic->index], memory_order_acquire) + chunk;
    if (atomic_load_explicit(place, memory_order_acquire) != NULL ||
        end > atomic_load(&range->ready))
        return true;
    errno = 0;
    verbs_mr *mr = register_chunk(range, nic, range->address + start, end - start);
    if (mr == NULL) {
        int problem = errno != 0 ? errno : EIO;
        atomic_store(&range->problems[nic->index], problem);
        if (!atomic_load(&nic->is_gone))
            tell_short(range, nic, problem);
        return false;
    }
    atomic_store_explicit(place, mr, memory_order_release);
    return true;
}

static void register_all(te_rdma_range *range) {
    te_rdma *rdma = range->rdma;
    uint32_t nics = atomic_load(&rdma->nic_count);
    for (uint32_t i = 0; i < nics; i++) {
        te_rdma_nic *nic = rdma->nics[i];
        if (atomic_load(&nic->is_gone) || atomic_load(&range->problems[i]) != 0)
            continue;
        if (atomic_load(&range->slots[i]) == NULL) { /* no other thread makes one */
            slot *slots = calloc(range->chunk_count, sizeof *slots);
            if (slots == NULL)
                continue;
            atomic_store_explicit(&range->slots[i], slots, memory_order_release);
        }
        for (uint32_t chunk = 0; chunk < range->chunk_count; chunk++)
            if (atomic_load(&range->is_closing) || !fill(range, nic, chunk))
                break;
    }
}

/* One thread an engine, while there is something to register: it takes minutes for a large pool, for which no worker
 * can be spared. */
static void *register_wanted(void *argument) {
    te_rdma *rdma = argument;
    pthread_mutex_lock(&rdma->lock);
    for (;;) {
        te_rdma_range *range = rdma->ranges;
        while (range != NULL && (!range->is_wanted || atomic_load(&range->is_closing)))
            range = range->next;
        if (range == NULL || rdma->is_stopping)
            break;
        range->is_wanted = false;
        range->is_registering = true;
        pthread_mutex_unlock(&rdma->lock);
        register_all(range);
        pthread_mutex_lock(&rdma->lock);
        range->is_registering = false;
        pthread_cond_broadcast(&rdma->changed);
    }
    rdma->is_registering = false;
    pthread_cond_broadcast(&rdma->changed);
    pthread_mutex_unlock(&rdma->lock);
    return NULL;
}

/* Under the lock. */
static void begin(te_rdma *rdma) {
    pthread_t thread;
    if (rdma->is_registering || rdma->is_stopping)
        return;
    rdma->is_registering =
        te_thread_start(&thread, "ms-rdma-memory", register_wanted, rdma) == MS_OK;
    if (rdma->is_registering)
        pthread_detach(thread);
}

static te_rdma_range *make(te_rdma *rdma, const void *address, uint64_t length, uint64_t ready,
                           te_rdma_use use) {
    te_rdma_range *range = calloc(1, sizeof *range);
    if (range == NULL)
        return NULL;
    uint64_t chunk_bytes = rdma->settings.chunk_bytes;
    for (uint32_t i = 0; i < atomic_load(&rdma->nic_count); i++)
        if (rdma->nics[i]->max_mr_bytes >= MS_PAGE_SIZE &&
            rdma->nics[i]->max_mr_bytes < chunk_bytes)
            chunk_bytes = rdma->nics[i]->max_mr_bytes / MS_PAGE_SIZE * MS_PAGE_SIZE;
    range->rdma = rdma;
    range->address = (uint64_t)(uintptr_t)address;
    range->length = length;
    range->chunk_bytes = chunk_bytes;
    range->chunk_count = (uint32_t)((length + chunk_bytes - 1) / chunk_bytes);
    range->use = use;
    range->descriptor = -1;
    atomic_store(&range->ready, ready);
    return range;
}

/* Registered in the background from now on. */
static void enlist(te_rdma_range *range) {
    te_rdma *rdma = range->rdma;
    pthread_mutex_lock(&rdma->lock);
    range->next = rdma->ranges;
    if (rdma->ranges != NULL)
        rdma->ranges->previous = range;
    rdma->ranges = range;
    range->is_wanted = true;
    begin(rdma);
    pthread_mutex_unlock(&rdma->lock);
}

te_rdma_range *te_rdma_range_open(te_rdma *rdma, const void *address, uint64_t length,
                                  uint64_t ready, te_rdma_use use) {
    te_rdma_range *range = make(rdma, address, length, ready, use);
    if (range != NULL)
        enlist(range);
    return range;
}

/* Nobody uses it, and it is in no list. */
static void destroy(te_rdma_range *range) {
    for (uint32_t i = 0; i < TE_RDMA_NICS_MAX; i++) {
        slot *slots = atomic_load(&range->slots[i]);
        for (uint32_t chunk = 0; slots != NULL && chunk < range->chunk_count; chunk++)
            if (slots[chunk] != NULL)
                range->rdma->verbs->dereg_mr(slots[chunk]);
        free((void *)slots);
    }
    if (range->descriptor >= 0)
        close(range->descriptor);
    free(range);
}

static const te_rdma_nic *first_nic(te_rdma *rdma) {
    uint32_t nics = rdma == NULL ? 0 : atomic_load(&rdma->nic_count);
    for (uint32_t i = 0; i < nics; i++)
        if (!atomic_load(&rdma->nics[i]->is_gone))
            return rdma->nics[i];
    return NULL;
}

/* The first of so many NICs that has not registered all of it; NULL: all have. */
static const te_rdma_nic *refusing(te_rdma_range *range, uint32_t nics, int *problem) {
    te_rdma *rdma = range->rdma;
    te_rdma_key key;
    for (uint32_t i = 0; i < nics; i++) {
        if (atomic_load(&rdma->nics[i]->is_gone))
            continue;
        for (uint32_t chunk = 0; chunk < range->chunk_count; chunk++)
            if (!te_rdma_range_key(range, rdma->nics[i],
                                   range->address + chunk * range->chunk_bytes, &key)) {
                *problem = atomic_load(&range->problems[i]);
                return rdma->nics[i];
            }
    }
    return NULL;
}

ms_status te_rdma_range_open_device(te_rdma *rdma, const void *address, uint64_t length,
                                    const te_device_memory *device, te_rdma_use use,
                                    te_rdma_range **opened) {
    const te_rdma_nic *first = first_nic(rdma);
    if (first == NULL) {
        te_error(device->error, "there is no RDMA NIC, and nothing else reaches device memory");
        return MS_NOT_REGISTERED;
    }
    if (rdma->verbs->reg_dmabuf_mr == NULL) {
        te_error(device->error,
                 "%s cannot register device memory: libibverbs.so.1 has no ibv_reg_dmabuf_mr",
                 first->name);
        return MS_NOT_REGISTERED;
    }
    te_rdma_range *range = make(rdma, address, length, length, use);
    if (range == NULL)
        return MS_NO_MEMORY;
    range->descriptor_offset = device->offset;
    range->descriptor = fcntl(device->descriptor, F_DUPFD_CLOEXEC, 0); /* for NICs that come */
    if (range->descriptor < 0) {
        te_error(device->error, "the descriptor %d of device memory: %s", device->descriptor,
                 strerror(errno));
        destroy(range);
        return MS_BAD_REQUEST;
    }
    int problem = 0;
    uint32_t nics = atomic_load(&rdma->nic_count); /* one that comes now has its turn below */
    register_all(range);
    const te_rdma_nic *nic = refusing(range, nics, &problem);
    if (nic != NULL) {
        te_error(device->error, "%s cannot register device memory: %s", nic->name,
                 strerror(problem != 0 ? problem : ENOMEM));
        destroy(range);
        return MS_NOT_REGISTERED;
    }
    enlist(range);
    *opened = range;
    return MS_OK;
}

void te_rdma_range_extend(te_rdma_range *range, uint64_t ready) {
    uint64_t before = atomic_exchange(&range->ready, ready);
    if (before / range->chunk_bytes == ready / range->chunk_bytes && ready != range->length)
        return;
    pthread_mutex_lock(&range->rdma->lock);
    range->is_wanted = true;
    begin(range->rdma);
    pthread_mutex_unlock(&range->rdma->lock);
}

void te_rdma_ranges_add_nic(te_rdma *rdma) {
    pthread_mutex_lock(&rdma->lock);
    for (te_rdma_range *range = rdma->ranges; range != NULL; range = range->next)
        range->is_wanted = true;
    begin(rdma);
    pthread_mutex_unlock(&rdma->lock);
}

void te_rdma_range_close(te_rdma_range *range) {
    if (range == NULL)
        return;
    te_rdma *rdma = range->rdma;
    pthread_mutex_lock(&rdma->lock);
    atomic_store(&range->is_closing, true);
    while (range->is_registering)
        pthread_cond_wait(&rdma->changed, &rdma->lock);
    if (range->next != NULL)
        range->next->previous = range->previous;
    if (range->previous != NULL)
        range->previous->next = range->next;
    else
        rdma->ranges = range->next;
    pthread_mutex_unlock(&rdma->lock);
    destroy(range);
}

bool te_rdma_range_key(te_rdma_range *range, const te_rdma_nic *nic, uint64_t address,
                       te_rdma_key *key) {
    if (address < range->address || address - range->address >= range->length)
        return false;
    uint64_t within = address - range->address;
    uint32_t chunk = (uint32_t)(within / range->chunk_bytes);
    slot *slots = atomic_load_explicit(&range->slots[nic->index], memory_order_acquire);
    verbs_mr *mr = slots == NULL ? NULL : atomic_load_explicit(&slots[chunk], memory_order_acquire);
    if (mr == NULL)
        return false;
    uint64_t end = ((uint64_t)chunk + 1) * range->chunk_bytes;
    end = end < range->length ? end : range->length;
    *key = (te_rdma_key){.local = mr->lkey, .remote = mr->rkey, .run = end - within};
    return true;
}

bool te_rdma_range_is_refused(const te_rdma_range *range, const te_rdma_nic *nic) {
    return atomic_load(&range->problems[nic->index]) != 0;
}

uint64_t te_rdma_range_chunk_bytes(const te_rdma_range *range) { return range->chunk_bytes; }

void te_rdma_range_span(const te_rdma_range *range, uint64_t *address, uint64_t *length) {
    *address = range->address;
    *length = range->length;
}

void te_rdma_progress(te_rdma *rdma, uint64_t *registered, uint64_t *wanted) {
    *registered = *wanted = 0;
    pthread_mutex_lock(&rdma->lock);
    uint32_t nics = atomic_load(&rdma->nic_count);
    for (te_rdma_range *range = rdma->ranges; range != NULL; range = range->next) {
        for (uint32_t i = 0; i < nics; i++) {
            if (atomic_load(&rdma->nics[i]->is_gone))
                continue;
            *wanted += range->length;
            te_rdma_key key;
            for (uint32_t chunk = 0; chunk < range->chunk_count; chunk++)
                if (te_rdma_range_key(range, rdma->nics[i],
                                      range->address + chunk * range->chunk_bytes, &key))
                    *registered += key.run;
        }
    }
    pthread_mutex_unlock(&rdma->lock);
}
