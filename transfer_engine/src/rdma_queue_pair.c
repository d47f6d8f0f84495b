/* RC queue pairs: made, connected, destroyed. */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "te_rdma.h"

#include "te_fault.h"

#define INLINE_BYTES 128u
#define RNR_RETRY 7
#define PSN_MASK 0xffffffu

ms_status te_rdma_qp_open(te_rdma *rdma, te_rdma_nic *nic, verbs_cq *cq, uint32_t depth,
                          unsigned access, te_rdma_qp *opened) {
    *opened = (te_rdma_qp){.rdma = rdma, .nic = nic};
    if (atomic_load(&nic->is_gone))
        return MS_UNAVAILABLE;
    depth = depth < nic->qp_depth_max ? depth : nic->qp_depth_max;
    verbs_qp_init_attr attributes = {
        .send_cq = cq,
        .recv_cq = cq,
        .cap = {.max_send_wr = depth,
                .max_recv_wr = 1,
                .max_send_sge = 1,
                .max_recv_sge = 1,
                .max_inline_data = depth > 1 ? INLINE_BYTES : 0},
        .qp_type = VERBS_QPT_RC,
    };
    errno = 0;
    opened->qp = nic->verbs->create_qp(nic->pd, &attributes);
    if (opened->qp == NULL)
        return errno == ENOMEM || errno == ENOSPC ? MS_LIMIT : MS_IO_ERROR;
    opened->depth = depth;
    opened->inline_max = attributes.cap.max_inline_data;
    /* A random start: a packet of an older queue pair with this number is not taken for one of ours. */
    if (getrandom(&opened->psn, sizeof opened->psn, 0) < 0)
        opened->psn = (uint32_t)te_now_ns();
    opened->psn &= PSN_MASK;
    verbs_qp_attr state = {
        .qp_state = VERBS_QPS_INIT, .port_num = nic->port, .qp_access_flags = access};
    if (nic->verbs->modify_qp(opened->qp, &state,
                              VERBS_QP_STATE | VERBS_QP_PKEY_INDEX | VERBS_QP_PORT |
                                  VERBS_QP_ACCESS_FLAGS) != 0) {
        nic->verbs->destroy_qp(opened->qp);
        opened->qp = NULL;
        return MS_IO_ERROR;
    }
    atomic_fetch_add(&nic->queue_pairs, 1);
    atomic_fetch_add(&rdma->counters.queue_pairs_made, 1);
    return MS_OK;
}

ms_status te_rdma_qp_connect(te_rdma_qp *qp, const te_rdma_qp_peer *peer) {
    const te_verbs *verbs = qp->nic->verbs;
    verbs_qp_attr state = {
        .qp_state = VERBS_QPS_RTR,
        .path_mtu = peer->mtu,
        .dest_qp_num = peer->qpn,
        .rq_psn = peer->psn,
        .max_dest_rd_atomic = peer->reads_in,
        .min_rnr_timer = 12,
        .ah_attr = {.dlid = peer->lid, .port_num = qp->nic->port},
    };
    if (qp->nic->link_layer != VERBS_LINK_INFINIBAND) {
        state.ah_attr.is_global = 1;
        state.ah_attr.grh.sgid_index = peer->gid_index;
        state.ah_attr.grh.hop_limit = 64;
        memcpy(state.ah_attr.grh.dgid.raw, peer->gid, sizeof peer->gid);
    }
    if (verbs->modify_qp(qp->qp, &state,
                         VERBS_QP_STATE | VERBS_QP_AV | VERBS_QP_PATH_MTU | VERBS_QP_DEST_QPN |
                             VERBS_QP_RQ_PSN | VERBS_QP_MAX_DEST_RD_ATOMIC |
                             VERBS_QP_MIN_RNR_TIMER) != 0)
        return MS_IO_ERROR;
    state = (verbs_qp_attr){.qp_state = VERBS_QPS_RTS,
                            .sq_psn = qp->psn,
                            .timeout = qp->rdma->settings.timeout,
                            .retry_cnt = qp->rdma->settings.retry_count,
                            .rnr_retry = RNR_RETRY,
                            .max_rd_atomic = peer->reads_out};
    if (verbs->modify_qp(qp->qp, &state,
                         VERBS_QP_STATE | VERBS_QP_SQ_PSN | VERBS_QP_TIMEOUT | VERBS_QP_RETRY_CNT |
                             VERBS_QP_RNR_RETRY | VERBS_QP_MAX_QP_RD_ATOMIC) != 0)
        return MS_IO_ERROR;
    return MS_OK;
}

void te_rdma_qp_close(te_rdma_qp *qp) {
    if (qp->qp == NULL)
        return;
    qp->nic->verbs->destroy_qp(qp->qp);
    qp->qp = NULL;
    atomic_fetch_sub(&qp->nic->queue_pairs, 1);
    atomic_fetch_add(&qp->rdma->counters.queue_pairs_gone, 1);
}
