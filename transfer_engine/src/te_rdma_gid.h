/* GIDs, the addresses of RDMA ports, and which of ours may talk to which of a peer's: pure functions. */
#ifndef TE_RDMA_GID_H
#define TE_RDMA_GID_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TE_RDMA_GIDS_MAX 32u

typedef enum te_rdma_gid_type {
    TE_RDMA_GID_INFINIBAND = 0,
    TE_RDMA_GID_ROCE_V1 = 1,
    TE_RDMA_GID_ROCE_V2 = 2
} te_rdma_gid_type;

typedef struct te_rdma_gid {
    uint8_t raw[16];
    uint8_t type; /* te_rdma_gid_type */
    uint8_t index;
} te_rdma_gid;

typedef struct te_rdma_gid_pair {
    te_rdma_gid ours, theirs;
} te_rdma_gid_pair;

/* What kind of address a GID holds, the one that reaches furthest first. */
typedef enum te_rdma_family { TE_RDMA_IPV4, TE_RDMA_IPV6, TE_RDMA_LINK_LOCAL } te_rdma_family;
te_rdma_family te_rdma_family_of(const te_rdma_gid *gid);

/* Best first, as choose_gid of topology/gid.py: RoCE v2 before v1, IPv4-mapped before other IPv6 before link-local. */
void te_rdma_gids_rank(te_rdma_gid *gids, size_t count);

/* Pairs that could work, best first: one type, one family; addresses that begin alike (one network) first, then
 * those that both ends rank high.  Returns how many, at most `room`. */
size_t te_rdma_gid_pairs(const te_rdma_gid *ours, size_t our_count, const te_rdma_gid *theirs,
                         size_t their_count, te_rdma_gid_pair *pairs, size_t room);

#endif
