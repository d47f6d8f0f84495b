// sources: transfer_engine/src/verbs.c
// variants: plain
/* Our declarations of libibverbs against its own header, where that is installed (Debian: libibverbs-dev). */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "te_verbs.h"

#if __has_include(<infiniband/verbs.h>)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#include <infiniband/verbs.h>
#pragma GCC diagnostic pop

#define SAME_SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), #ours)
#define SAME_PLACE(ours, our_member, theirs, their_member)                                         \
    _Static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member),                   \
                   #ours "." #our_member)
#define SAME(ours, theirs, member) SAME_PLACE(ours, member, theirs, member)

SAME_SIZE(verbs_device, struct ibv_device);
SAME(verbs_device, struct ibv_device, name);
SAME(verbs_device, struct ibv_device, ibdev_path);
SAME_SIZE(verbs_context_ops, struct ibv_context_ops);
SAME(verbs_context_ops, struct ibv_context_ops, poll_cq);
SAME(verbs_context_ops, struct ibv_context_ops, req_notify_cq);
SAME(verbs_context_ops, struct ibv_context_ops, post_send);
SAME_SIZE(verbs_context, struct ibv_context);
SAME(verbs_context, struct ibv_context, ops);
SAME(verbs_context, struct ibv_context, async_fd);
SAME_SIZE(verbs_pd, struct ibv_pd);
SAME_SIZE(verbs_mr, struct ibv_mr);
SAME(verbs_mr, struct ibv_mr, lkey);
SAME(verbs_mr, struct ibv_mr, rkey);
SAME_SIZE(verbs_comp_channel, struct ibv_comp_channel);
SAME(verbs_comp_channel, struct ibv_comp_channel, fd);
SAME_SIZE(verbs_cq, struct ibv_cq);
SAME_SIZE(verbs_qp, struct ibv_qp);
SAME(verbs_qp, struct ibv_qp, qp_num);
SAME_SIZE(verbs_gid, union ibv_gid);
SAME_SIZE(verbs_device_attr, struct ibv_device_attr);
SAME(verbs_device_attr, struct ibv_device_attr, max_mr_size);
SAME(verbs_device_attr, struct ibv_device_attr, max_qp);
SAME(verbs_device_attr, struct ibv_device_attr, max_qp_rd_atom);
SAME(verbs_device_attr, struct ibv_device_attr, phys_port_cnt);
SAME_SIZE(verbs_port_attr, struct ibv_port_attr);
SAME(verbs_port_attr, struct ibv_port_attr, lid);
SAME(verbs_port_attr, struct ibv_port_attr, max_msg_sz);
SAME(verbs_port_attr, struct ibv_port_attr, link_layer);
SAME_SIZE(verbs_qp_cap, struct ibv_qp_cap);
SAME_SIZE(verbs_qp_init_attr, struct ibv_qp_init_attr);
SAME(verbs_qp_init_attr, struct ibv_qp_init_attr, qp_type);
SAME_SIZE(verbs_ah_attr, struct ibv_ah_attr);
SAME(verbs_ah_attr, struct ibv_ah_attr, grh.sgid_index);
SAME(verbs_ah_attr, struct ibv_ah_attr, port_num);
SAME_SIZE(verbs_qp_attr, struct ibv_qp_attr);
SAME(verbs_qp_attr, struct ibv_qp_attr, qp_access_flags);
SAME(verbs_qp_attr, struct ibv_qp_attr, ah_attr);
SAME(verbs_qp_attr, struct ibv_qp_attr, timeout);
SAME(verbs_qp_attr, struct ibv_qp_attr, max_dest_rd_atomic);
SAME_SIZE(verbs_sge, struct ibv_sge);
SAME_SIZE(verbs_send_wr, struct ibv_send_wr);
SAME(verbs_send_wr, struct ibv_send_wr, opcode);
SAME(verbs_send_wr, struct ibv_send_wr, send_flags);
SAME_PLACE(verbs_send_wr, rdma.remote_addr, struct ibv_send_wr, wr.rdma.remote_addr);
SAME_PLACE(verbs_send_wr, rdma.rkey, struct ibv_send_wr, wr.rdma.rkey);
SAME_SIZE(verbs_wc, struct ibv_wc);
SAME(verbs_wc, struct ibv_wc, status);
SAME(verbs_wc, struct ibv_wc, qp_num);
SAME_SIZE(verbs_async_event, struct ibv_async_event);
SAME(verbs_async_event, struct ibv_async_event, event_type);

#define SAME_NUMBER(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)
SAME_NUMBER(VERBS_PORT_ACTIVE, IBV_PORT_ACTIVE);
SAME_NUMBER(VERBS_LINK_INFINIBAND, IBV_LINK_LAYER_INFINIBAND);
SAME_NUMBER(VERBS_LINK_ETHERNET, IBV_LINK_LAYER_ETHERNET);
SAME_NUMBER(VERBS_QPT_RC, IBV_QPT_RC);
SAME_NUMBER(VERBS_QPS_INIT, IBV_QPS_INIT);
SAME_NUMBER(VERBS_QPS_RTR, IBV_QPS_RTR);
SAME_NUMBER(VERBS_QPS_RTS, IBV_QPS_RTS);
SAME_NUMBER(VERBS_QPS_ERR, IBV_QPS_ERR);
SAME_NUMBER(VERBS_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE);
SAME_NUMBER(VERBS_WR_RDMA_READ, IBV_WR_RDMA_READ);
SAME_NUMBER(VERBS_SEND_SIGNALED, IBV_SEND_SIGNALED);
SAME_NUMBER(VERBS_SEND_INLINE, IBV_SEND_INLINE);
SAME_NUMBER(VERBS_ACCESS_LOCAL_WRITE, IBV_ACCESS_LOCAL_WRITE);
SAME_NUMBER(VERBS_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_WRITE);
SAME_NUMBER(VERBS_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_READ);
SAME_NUMBER(VERBS_ACCESS_RELAXED_ORDERING, IBV_ACCESS_RELAXED_ORDERING);
SAME_NUMBER(VERBS_QP_STATE, IBV_QP_STATE);
SAME_NUMBER(VERBS_QP_ACCESS_FLAGS, IBV_QP_ACCESS_FLAGS);
SAME_NUMBER(VERBS_QP_PKEY_INDEX, IBV_QP_PKEY_INDEX);
SAME_NUMBER(VERBS_QP_PORT, IBV_QP_PORT);
SAME_NUMBER(VERBS_QP_AV, IBV_QP_AV);
SAME_NUMBER(VERBS_QP_PATH_MTU, IBV_QP_PATH_MTU);
SAME_NUMBER(VERBS_QP_TIMEOUT, IBV_QP_TIMEOUT);
SAME_NUMBER(VERBS_QP_RETRY_CNT, IBV_QP_RETRY_CNT);
SAME_NUMBER(VERBS_QP_RNR_RETRY, IBV_QP_RNR_RETRY);
SAME_NUMBER(VERBS_QP_RQ_PSN, IBV_QP_RQ_PSN);
SAME_NUMBER(VERBS_QP_MAX_QP_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC);
SAME_NUMBER(VERBS_QP_MIN_RNR_TIMER, IBV_QP_MIN_RNR_TIMER);
SAME_NUMBER(VERBS_QP_SQ_PSN, IBV_QP_SQ_PSN);
SAME_NUMBER(VERBS_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_DEST_RD_ATOMIC);
SAME_NUMBER(VERBS_QP_DEST_QPN, IBV_QP_DEST_QPN);
SAME_NUMBER(VERBS_WC_SUCCESS, IBV_WC_SUCCESS);
SAME_NUMBER(VERBS_WC_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR);
SAME_NUMBER(VERBS_WC_REM_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR);
SAME_NUMBER(VERBS_WC_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR);
SAME_NUMBER(VERBS_EVENT_QP_FATAL, IBV_EVENT_QP_FATAL);
SAME_NUMBER(VERBS_EVENT_DEVICE_FATAL, IBV_EVENT_DEVICE_FATAL);
SAME_NUMBER(VERBS_EVENT_PORT_ACTIVE, IBV_EVENT_PORT_ACTIVE);
SAME_NUMBER(VERBS_EVENT_PORT_ERR, IBV_EVENT_PORT_ERR);
SAME_NUMBER(VERBS_EVENT_GID_CHANGE, IBV_EVENT_GID_CHANGE);
static const bool is_compared = true;
#else
static const bool is_compared = false;
#endif

int main(void) {
    if (!is_compared) {
        fprintf(stderr, "not compared: infiniband/verbs.h is not installed (libibverbs-dev)\n");
        assert(getenv("MOONCAKE_STORE_NO_SKIP") == NULL);
    }
    const char *why = NULL;
    const te_verbs *verbs = te_verbs_get(&why);
    /* A library that is there has all that we need; one that is not is named. */
    assert((verbs != NULL) != (why[0] != '\0'));
    assert(te_verbs_get(NULL) == verbs);
    if (verbs == NULL)
        fprintf(stderr, "%s\n", why);
    return 0;
}
