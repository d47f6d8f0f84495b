/* RDMA NICs of this machine: a NIC is one port of a device, opened for itself. */
#ifndef TE_RDMA_DEVICE_H
#define TE_RDMA_DEVICE_H

#include <stdatomic.h>

#include "te_rdma_gid.h"
#include "te_verbs.h"

#include "ms_wire.h"
#include "te_rails.h"

#define TE_RDMA_NICS_MAX 32u

typedef struct te_rdma_nic {
    const te_verbs *verbs;
    verbs_context *context;
    verbs_pd *pd;
    verbs_cq *passive_cq; /* of queue pairs that only answer: nothing ever arrives there */
    char name[64];        /* of the device */
    char netdev[32];      /* "" on InfiniBand */
    uint8_t port, link_layer;
    int32_t numa_node; /* -1: not known */
    uint32_t index;    /* among those of this process's engine; never used twice */
    uint64_t max_mr_bytes;
    uint32_t qp_depth_max, read_depth_max; /* of a queue pair; outstanding READs both ways */
    _Atomic bool is_up;                    /* the port is active */
    _Atomic bool is_gone;                  /* the device has been taken away */
    _Atomic uint64_t bytes_in_flight;
    _Atomic uint32_t queue_pairs; /* that hold it open */

    pthread_mutex_t lock;
    uint16_t lid;
    uint8_t mtu; /* as the enumeration: 1 = 256 ... 5 = 4096 */
    uint32_t max_message_bytes;
    te_rdma_gid gids[TE_RDMA_GIDS_MAX];
    uint32_t gid_count;
} te_rdma_nic;

/* How far the NIC is from memory of that node (-1: not known): TE_TIER_PREFERRED, or TE_TIER_SECONDARY on another node. */
uint32_t te_rdma_nic_tier(const te_rdma_nic *nic, int32_t memory_node);
/* Whether the kernel has any RDMA device at all: one look into sysfs, nothing is opened. */
bool te_rdma_is_there(void);
/* Opens the ports of a device; returns how many were added to `nics`. */
uint32_t te_rdma_device_open(const te_verbs *verbs, verbs_device *device, uint32_t index_first,
                             te_rdma_nic **nics, uint32_t room);
/* Everything that was made on it must be gone. */
void te_rdma_nic_close(te_rdma_nic *nic);
/* Asks for the port's state, MTU and GIDs again. */
void te_rdma_nic_look(te_rdma_nic *nic);
/* A copy of its GIDs, best first; returns how many. */
uint32_t te_rdma_nic_gids(te_rdma_nic *nic, te_rdma_gid gids[TE_RDMA_GIDS_MAX]);

#endif
