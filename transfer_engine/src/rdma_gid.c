/* Which GIDs may talk to which: see te_rdma_gid.h. */
#include <stdlib.h>
#include <string.h>

#include "te_rdma_gid.h"

static const uint8_t mapped_prefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

te_rdma_family te_rdma_family_of(const te_rdma_gid *gid) {
    if (memcmp(gid->raw, mapped_prefix, sizeof mapped_prefix) == 0)
        return gid->raw[12] == 169 && gid->raw[13] == 254 ? TE_RDMA_LINK_LOCAL : TE_RDMA_IPV4;
    return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80 ? TE_RDMA_LINK_LOCAL : TE_RDMA_IPV6;
}

/* InfiniBand ports have one GID that matters, the first. */
static uint32_t rank_of(const te_rdma_gid *gid) {
    if (gid->type == TE_RDMA_GID_INFINIBAND)
        return gid->index;
    return (uint32_t)(gid->type == TE_RDMA_GID_ROCE_V1) << 16 |
           (uint32_t)te_rdma_family_of(gid) << 8 | gid->index;
}

static int by_rank(const void *a, const void *b) {
    uint32_t left = rank_of(a), right = rank_of(b);
    return left < right ? -1 : left > right;
}

void te_rdma_gids_rank(te_rdma_gid *gids, size_t count) {
    if (count > 1)
        qsort(gids, count, sizeof *gids, by_rank);
}

static uint32_t common_bits(const uint8_t *a, const uint8_t *b) {
    uint32_t bits = 0;
    for (size_t i = 0; i < 16; i++) {
        uint8_t differing = a[i] ^ b[i];
        if (differing == 0) {
            bits += 8;
            continue;
        }
        while ((differing & 0x80) == 0) {
            differing = (uint8_t)(differing << 1);
            bits++;
        }
        break;
    }
    return bits;
}

/* Networks are seldom larger than a /16 (IPv4) or a /48: fewer common bits say nothing. */
static uint32_t nearness(const te_rdma_gid *ours, const te_rdma_gid *theirs) {
    uint32_t bits = common_bits(ours->raw, theirs->raw);
    uint32_t least = te_rdma_family_of(ours) == TE_RDMA_IPV4 ? 112 : 48;
    return bits < least ? 0 : bits;
}

static bool is_better(const te_rdma_gid_pair *left, const te_rdma_gid_pair *right) {
    uint32_t left_class = rank_of(&left->ours) >> 8, right_class = rank_of(&right->ours) >> 8;
    if (left_class != right_class)
        return left_class < right_class;
    uint32_t left_near = nearness(&left->ours, &left->theirs),
             right_near = nearness(&right->ours, &right->theirs);
    if (left_near != right_near)
        return left_near > right_near;
    return (uint32_t)left->ours.index + left->theirs.index <
           (uint32_t)right->ours.index + right->theirs.index;
}

size_t te_rdma_gid_pairs(const te_rdma_gid *ours, size_t our_count, const te_rdma_gid *theirs,
                         size_t their_count, te_rdma_gid_pair *pairs, size_t room) {
    size_t count = 0;
    for (size_t i = 0; i < our_count; i++) {
        for (size_t j = 0; j < their_count; j++) {
            te_rdma_gid_pair pair = {ours[i], theirs[j]};
            /* A port cannot talk to itself: two processes of one host use two. */
            if (ours[i].type != theirs[j].type ||
                memcmp(ours[i].raw, theirs[j].raw, sizeof ours[i].raw) == 0 ||
                te_rdma_family_of(&ours[i]) != te_rdma_family_of(&theirs[j]))
                continue;
            size_t at = count < room ? count++ : room;
            /* Insertion from behind; what falls off the end is worse than all that is kept. */
            for (; at > 0 && is_better(&pair, &pairs[at - 1]); at--)
                if (at < room)
                    pairs[at] = pairs[at - 1];
            if (at < room)
                pairs[at] = pair;
        }
    }
    return count;
}
