/* Memory of this process that peers on the host may copy from: see te_shared_alloc.
 *
 * Each allocation is a memfd of its own, sealed against shrinking and growing, so that a peer that has mapped
 * it can never be killed by SIGBUS, whatever this process does.  Few and large: a sorted array under a
 * read-write lock is all the look-up needs.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "te_parts.h"

#include "te_fault.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#define PAGE_BYTES ((size_t)4096)

typedef struct allocation {
    uint8_t *base;
    size_t length;
    int descriptor;
    uint64_t number;
} allocation;

struct te_shared {
    pthread_rwlock_t lock;
    allocation *allocations; /* by address */
    size_t count, room;
    uint64_t number_next;
};

ms_status te_shared_open(te_shared **result) {
    te_shared *shared = calloc(1, sizeof *shared);
    if (shared == NULL)
        return MS_NO_MEMORY;
    pthread_rwlock_init(&shared->lock, NULL);
    shared->number_next = 1;
    *result = shared;
    return MS_OK;
}

/* The memory goes back to the system now, also while a peer still has the memfd mapped: it would read zeros. */
static void release(const allocation *gone) {
    munmap(gone->base, gone->length);
    (void)fallocate(gone->descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                    (off_t)gone->length);
    close(gone->descriptor);
}

void te_shared_close(te_shared *shared) {
    if (shared == NULL)
        return;
    for (size_t i = 0; i < shared->count; i++)
        close(shared->allocations[i].descriptor); /* mapped it stays: see te_shared_unmap */
    free(shared->allocations);
    pthread_rwlock_destroy(&shared->lock);
    free(shared);
}

/* Index of the first allocation that ends after the address. */
static size_t position(const te_shared *shared, const uint8_t *address) {
    size_t low = 0, high = shared->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const allocation *candidate = &shared->allocations[middle];
        if (candidate->base + candidate->length <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static ms_status create(size_t length, allocation *made) {
    ms_status status = MS_NO_MEMORY;
    int descriptor = memfd_create("mooncake-store", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (descriptor < 0)
        return errno == ENOSYS || errno == EPERM ? MS_UNAVAILABLE : MS_NO_MEMORY;
    /* Allocate before sealing and mapping: too little memory is an error here, not a SIGBUS at first touch. */
    if (ftruncate(descriptor, (off_t)length) != 0 ||
        fallocate(descriptor, 0, 0, (off_t)length) != 0)
        goto fail;
    if (fcntl(descriptor, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
        status = MS_UNAVAILABLE;
        goto fail;
    }
    uint8_t *base = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (base == MAP_FAILED)
        goto fail;
    if (madvise(base, length, MADV_POPULATE_WRITE) != 0) {
        for (size_t offset = 0; offset < length; offset += PAGE_BYTES)
            *(volatile uint8_t *)(base + offset) = 0;
    }
    made->base = base;
    made->length = length;
    made->descriptor = descriptor;
    return MS_OK;
fail:
    close(descriptor);
    return status;
}

static ms_status insert(te_shared *shared, allocation *made) {
    ms_status status = MS_OK;
    pthread_rwlock_wrlock(&shared->lock);
    if (shared->count == shared->room) {
        size_t room = shared->room == 0 ? 8 : shared->room * 2;
        allocation *grown = realloc(shared->allocations, room * sizeof *grown);
        if (grown == NULL) {
            status = MS_NO_MEMORY;
            goto out;
        }
        shared->allocations = grown;
        shared->room = room;
    }
    size_t at = position(shared, made->base);
    memmove(&shared->allocations[at + 1], &shared->allocations[at],
            (shared->count - at) * sizeof *made);
    made->number = shared->number_next++;
    shared->allocations[at] = *made;
    shared->count++;
out:
    pthread_rwlock_unlock(&shared->lock);
    return status;
}

ms_status te_shared_alloc(te_engine *engine, size_t length, void **address) {
    te_shared *shared = engine->shm->shared;
    if (length == 0 || length > SIZE_MAX / 4)
        return MS_BAD_REQUEST;
    allocation made = {0};
    ms_status status = create((length + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES, &made);
    if (status != MS_OK)
        return status;
    status = insert(shared, &made);
    if (status != MS_OK) {
        release(&made);
        return status;
    }
    *address = made.base;
    return MS_OK;
}

void te_shared_free(te_engine *engine, void *address) {
    te_shared *shared = engine->shm->shared;
    if (address == NULL)
        return;
    allocation gone = {0};
    pthread_rwlock_wrlock(&shared->lock);
    size_t at = position(shared, address);
    if (at < shared->count && shared->allocations[at].base == address) {
        gone = shared->allocations[at];
        shared->count--;
        memmove(&shared->allocations[at], &shared->allocations[at + 1],
                (shared->count - at) * sizeof gone);
    }
    pthread_rwlock_unlock(&shared->lock);
    if (gone.base != NULL)
        release(&gone);
}

void te_shared_unmap(void *address, size_t length) {
    if (address != NULL && length > 0)
        munmap(address, (length + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
}

bool te_shared_find(te_shared *shared, const void *address, size_t length, te_shared_range *range) {
    const uint8_t *first = address;
    bool found = false;
    pthread_rwlock_rdlock(&shared->lock);
    size_t at = position(shared, first);
    if (at < shared->count) {
        const allocation *candidate = &shared->allocations[at];
        size_t offset = (size_t)(first - candidate->base);
        if (first >= candidate->base && length <= candidate->length - offset) {
            *range = (te_shared_range){candidate->base, candidate->length, candidate->number};
            found = true;
        }
    }
    pthread_rwlock_unlock(&shared->lock);
    return found;
}

static const allocation *by_number(const te_shared *shared, uint64_t number) {
    for (size_t i = 0; i < shared->count; i++)
        if (shared->allocations[i].number == number)
            return &shared->allocations[i];
    return NULL;
}

int te_shared_descriptor(te_shared *shared, uint64_t number) {
    pthread_rwlock_rdlock(&shared->lock);
    const allocation *found = by_number(shared, number);
    int copy = found == NULL ? -1 : fcntl(found->descriptor, F_DUPFD_CLOEXEC, 0);
    pthread_rwlock_unlock(&shared->lock);
    return copy;
}

bool te_shared_exists(te_shared *shared, uint64_t number) {
    pthread_rwlock_rdlock(&shared->lock);
    bool exists = by_number(shared, number) != NULL;
    pthread_rwlock_unlock(&shared->lock);
    return exists;
}
