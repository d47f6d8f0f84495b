/* What can be set about RDMA: see rdma_settings.c and docs/rdma.md. */
#ifndef TE_RDMA_SETTINGS_H
#define TE_RDMA_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct te_rdma_settings {
    bool is_on;
    char only[256]; /* devices that may be used, comma-separated; "" = all */
    uint32_t queue_pairs_per_rail;
    uint32_t endpoints_per_peer; /* and right */
    uint32_t endpoints_max;      /* of an engine, asking side */
    uint32_t queue_pairs_max;    /* of an engine, answering side */
    uint32_t slice_bytes;
    uint32_t write_bytes_min;     /* smaller writes go with their SEAL in one TCP frame */
    uint64_t rails_bytes_min;     /* larger calls go by the slice scheduler, shares or not */
    uint64_t chunk_bytes;         /* of a registration */
    uint8_t timeout, retry_count; /* of a queue pair: 4.096 us * 2^timeout, and so often again */
    uint32_t wait_ms; /* transfers wait so long for an endpoint; 0 = TCP until it is there */
    uint32_t
        silent_ms; /* a lane of which so long nothing comes, while others are heard of, is left; the device
                   gives up by its own clock, which may be coarse */
    bool relaxed_ordering;
    int32_t gid_index; /* -1: by rank; else this one first */
} te_rdma_settings;

typedef char *te_rdma_lookup(const char *name); /* getenv */

/* `problem`: a sentence about the last value that was not used, or "". */
void te_rdma_settings_read(te_rdma_lookup *lookup, te_rdma_settings *settings, char *problem,
                           size_t problem_bytes);
bool te_rdma_settings_allow(const te_rdma_settings *settings, const char *device);

#endif
