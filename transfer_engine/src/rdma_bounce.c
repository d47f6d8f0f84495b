/* Registered slots for bytes that come from, or go to, memory that is not: a copy more, but no registration a transfer,
 * which costs more than the copy of a megabyte. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "te_rdma.h"

#include "te_fault.h"

struct te_rdma_bounce {
    uint8_t *memory;
    te_rdma_range *range;
    _Atomic uint32_t taken; /* bit a slot */
};

_Static_assert(TE_RDMA_SLOTS <= 32, "one bit a slot");

ms_status te_rdma_bounce_open(te_rdma *rdma, te_rdma_bounce **opened) {
    const size_t bytes = (size_t)TE_RDMA_SLOTS * TE_RDMA_SLOT_BYTES;
    te_rdma_bounce *bounce = calloc(1, sizeof *bounce);
    if (bounce == NULL)
        return MS_NO_MEMORY;
    bounce->memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (bounce->memory == MAP_FAILED) {
        free(bounce);
        return MS_NO_MEMORY;
    }
    bounce->range = te_rdma_range_open(rdma, bounce->memory, bytes, bytes, TE_RDMA_OWN);
    if (bounce->range == NULL) {
        munmap(bounce->memory, bytes);
        free(bounce);
        return MS_NO_MEMORY;
    }
    *opened = bounce;
    return MS_OK;
}

void te_rdma_bounce_close(te_rdma_bounce *bounce) {
    if (bounce == NULL)
        return;
    te_rdma_range_close(bounce->range);
    munmap(bounce->memory, (size_t)TE_RDMA_SLOTS * TE_RDMA_SLOT_BYTES);
    free(bounce);
}

uint8_t *te_rdma_slot_take(te_rdma_bounce *bounce) {
    uint32_t taken = atomic_load_explicit(&bounce->taken, memory_order_relaxed);
    for (;;) {
        uint32_t all = TE_RDMA_SLOTS == 32 ? UINT32_MAX : (1u << TE_RDMA_SLOTS) - 1;
        uint32_t left = ~taken & all;
        if (left == 0)
            return NULL;
        uint32_t slot = (uint32_t)__builtin_ctz(left);
        if (atomic_compare_exchange_weak_explicit(&bounce->taken, &taken, taken | 1u << slot,
                                                  memory_order_acquire, memory_order_relaxed))
            return bounce->memory + (size_t)slot * TE_RDMA_SLOT_BYTES;
    }
}

void te_rdma_slot_give(te_rdma_bounce *bounce, uint8_t *slot) {
    uint32_t index = (uint32_t)((size_t)(slot - bounce->memory) / TE_RDMA_SLOT_BYTES);
    atomic_fetch_and_explicit(&bounce->taken, ~(1u << index), memory_order_release);
}

te_rdma_range *te_rdma_bounce_range(te_rdma_bounce *bounce) { return bounce->range; }
