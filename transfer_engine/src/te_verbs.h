/* The part of libibverbs that we use, as declarations of our own.
 *
 * The library is opened at run time (verbs.c), so nothing is linked with it and no header of it is needed to build.
 * Structures and numbers are those of its stable interface (symbol versions IBVERBS_1.1 to 1.12, rdma-core 15 and
 * newer); verbs_layout_test.c compares each with the real header where that is installed.  The three calls of the
 * data path go through the context's table, as the library's own inline functions do.
 */
#ifndef TE_VERBS_H
#define TE_VERBS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct te_verbs_context verbs_context;
typedef struct te_verbs_cq verbs_cq;
typedef struct te_verbs_qp verbs_qp;
typedef struct te_verbs_send_wr verbs_send_wr;
typedef struct te_verbs_wc verbs_wc;

typedef struct te_verbs_device {
    void *ops[2];
    int node_type, transport_type;
    char name[64];
    char dev_name[64];
    char dev_path[256];
    char ibdev_path[256];
} verbs_device;

typedef struct te_verbs_context_ops {
    void *before_poll[11];
    int (*poll_cq)(verbs_cq *cq, int count, verbs_wc *completions);
    int (*req_notify_cq)(verbs_cq *cq, int solicited_only);
    void *before_send[12];
    int (*post_send)(verbs_qp *qp, verbs_send_wr *request, verbs_send_wr **bad);
    void *after_send[6];
} verbs_context_ops;

struct te_verbs_context {
    verbs_device *device;
    verbs_context_ops ops;
    int cmd_fd, async_fd, num_comp_vectors;
    pthread_mutex_t mutex;
    void *abi_compat;
};

typedef struct te_verbs_pd {
    verbs_context *context;
    uint32_t handle;
} verbs_pd;

typedef struct te_verbs_mr {
    verbs_context *context;
    verbs_pd *pd;
    void *addr;
    size_t length;
    uint32_t handle, lkey, rkey;
} verbs_mr;

typedef struct te_verbs_comp_channel {
    verbs_context *context;
    int fd, refcnt;
} verbs_comp_channel;

struct te_verbs_cq {
    verbs_context *context;
    verbs_comp_channel *channel;
    void *cq_context;
    uint32_t handle;
    int cqe;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t comp_events_completed, async_events_completed;
};

struct te_verbs_qp {
    verbs_context *context;
    void *qp_context;
    verbs_pd *pd;
    verbs_cq *send_cq, *recv_cq;
    void *srq;
    uint32_t handle, qp_num;
    int state, qp_type;
    pthread_mutex_t mutex;
    pthread_cond_t cond;
    uint32_t events_completed;
};

typedef union te_verbs_gid {
    uint8_t raw[16];
    uint64_t words[2];
} verbs_gid;

typedef struct te_verbs_device_attr {
    char fw_ver[64];
    uint64_t node_guid, sys_image_guid, max_mr_size, page_size_cap;
    uint32_t vendor_id, vendor_part_id, hw_ver;
    int max_qp, max_qp_wr;
    unsigned device_cap_flags;
    int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd;
    int max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom;
    int atomic_cap;
    int max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp;
    int max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr;
    int max_srq, max_srq_wr, max_srq_sge;
    uint16_t max_pkeys;
    uint8_t local_ca_ack_delay, phys_port_cnt;
} verbs_device_attr;

/* What ibv_query_port fills for programs of every age. */
typedef struct te_verbs_port_attr {
    int state, max_mtu, active_mtu, gid_tbl_len;
    uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
    uint16_t pkey_tbl_len, lid, sm_lid;
    uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply;
    uint8_t active_width, active_speed, phys_state, link_layer, flags;
    uint16_t port_cap_flags2;
} verbs_port_attr;

typedef struct te_verbs_qp_cap {
    uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
} verbs_qp_cap;

typedef struct te_verbs_qp_init_attr {
    void *qp_context;
    verbs_cq *send_cq, *recv_cq;
    void *srq;
    verbs_qp_cap cap;
    int qp_type, sq_sig_all;
} verbs_qp_init_attr;

typedef struct te_verbs_ah_attr {
    struct {
        verbs_gid dgid;
        uint32_t flow_label;
        uint8_t sgid_index, hop_limit, traffic_class;
    } grh;
    uint16_t dlid;
    uint8_t sl, src_path_bits, static_rate, is_global, port_num;
} verbs_ah_attr;

typedef struct te_verbs_qp_attr {
    int qp_state, cur_qp_state, path_mtu, path_mig_state;
    uint32_t qkey, rq_psn, sq_psn, dest_qp_num;
    unsigned qp_access_flags;
    verbs_qp_cap cap;
    verbs_ah_attr ah_attr, alt_ah_attr;
    uint16_t pkey_index, alt_pkey_index;
    uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic;
    uint8_t min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout;
    uint32_t rate_limit;
} verbs_qp_attr;

typedef struct te_verbs_sge {
    uint64_t addr;
    uint32_t length, lkey;
} verbs_sge;

struct te_verbs_send_wr {
    uint64_t wr_id;
    verbs_send_wr *next;
    verbs_sge *sg_list;
    int num_sge, opcode;
    unsigned send_flags;
    uint32_t imm_data;
    struct {
        uint64_t remote_addr;
        uint32_t rkey;
        uint64_t unused[2]; /* of atomics */
    } rdma;
    uint32_t xrc;
    uint64_t bind[6]; /* of memory windows */
};

struct te_verbs_wc {
    uint64_t wr_id;
    int status, opcode;
    uint32_t vendor_err, byte_len, imm_data, qp_num, src_qp;
    unsigned wc_flags;
    uint16_t pkey_index, slid;
    uint8_t sl, dlid_path_bits;
};

typedef struct te_verbs_async_event {
    union {
        void *object;
        int port_num;
    } element;
    int event_type;
} verbs_async_event;

enum { VERBS_PORT_ACTIVE = 4 };
enum { VERBS_LINK_INFINIBAND = 1, VERBS_LINK_ETHERNET = 2 };
enum { VERBS_QPT_RC = 2 };
enum { VERBS_QPS_INIT = 1, VERBS_QPS_RTR = 2, VERBS_QPS_RTS = 3, VERBS_QPS_ERR = 6 };
enum { VERBS_WR_RDMA_WRITE = 0, VERBS_WR_RDMA_READ = 4 };
enum { VERBS_SEND_FENCE = 1, VERBS_SEND_SIGNALED = 2, VERBS_SEND_INLINE = 8 };
enum {
    VERBS_ACCESS_LOCAL_WRITE = 1,
    VERBS_ACCESS_REMOTE_WRITE = 2,
    VERBS_ACCESS_REMOTE_READ = 4,
    VERBS_ACCESS_RELAXED_ORDERING = 1 << 20
};
enum {
    VERBS_QP_STATE = 1 << 0,
    VERBS_QP_ACCESS_FLAGS = 1 << 3,
    VERBS_QP_PKEY_INDEX = 1 << 4,
    VERBS_QP_PORT = 1 << 5,
    VERBS_QP_AV = 1 << 7,
    VERBS_QP_PATH_MTU = 1 << 8,
    VERBS_QP_TIMEOUT = 1 << 9,
    VERBS_QP_RETRY_CNT = 1 << 10,
    VERBS_QP_RNR_RETRY = 1 << 11,
    VERBS_QP_RQ_PSN = 1 << 12,
    VERBS_QP_MAX_QP_RD_ATOMIC = 1 << 13,
    VERBS_QP_MIN_RNR_TIMER = 1 << 15,
    VERBS_QP_SQ_PSN = 1 << 16,
    VERBS_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
    VERBS_QP_DEST_QPN = 1 << 20
};
enum {
    VERBS_WC_SUCCESS = 0,
    VERBS_WC_FLUSH_ERR = 5,
    VERBS_WC_REM_ACCESS_ERR = 10,
    VERBS_WC_RETRY_EXC_ERR = 12
};
enum {
    VERBS_EVENT_QP_FATAL = 1,
    VERBS_EVENT_DEVICE_FATAL = 8,
    VERBS_EVENT_PORT_ACTIVE = 9,
    VERBS_EVENT_PORT_ERR = 10,
    VERBS_EVENT_GID_CHANGE = 18
};

/* Functions of the library, by the names under which it exports them. */
typedef struct te_verbs {
    verbs_device **(*get_device_list)(int *count);
    void (*free_device_list)(verbs_device **list);
    verbs_context *(*open_device)(verbs_device *device);
    int (*close_device)(verbs_context *context);
    int (*query_device)(verbs_context *context, verbs_device_attr *attributes);
    int (*query_port)(verbs_context *context, uint8_t port, verbs_port_attr *attributes);
    int (*query_gid)(verbs_context *context, uint8_t port, int index, verbs_gid *gid);
    verbs_pd *(*alloc_pd)(verbs_context *context);
    int (*dealloc_pd)(verbs_pd *pd);
    verbs_mr *(*reg_mr)(verbs_pd *pd, void *address, size_t length, int access);
    int (*dereg_mr)(verbs_mr *mr);
    verbs_comp_channel *(*create_comp_channel)(verbs_context *context);
    int (*destroy_comp_channel)(verbs_comp_channel *channel);
    verbs_cq *(*create_cq)(verbs_context *context, int cqe, void *cq_context,
                           verbs_comp_channel *channel, int vector);
    int (*destroy_cq)(verbs_cq *cq);
    int (*get_cq_event)(verbs_comp_channel *channel, verbs_cq **cq, void **cq_context);
    void (*ack_cq_events)(verbs_cq *cq, unsigned count);
    verbs_qp *(*create_qp)(verbs_pd *pd, verbs_qp_init_attr *attributes);
    int (*modify_qp)(verbs_qp *qp, verbs_qp_attr *attributes, int mask);
    int (*destroy_qp)(verbs_qp *qp);
    int (*get_async_event)(verbs_context *context, verbs_async_event *event);
    void (*ack_async_event)(verbs_async_event *event);
    const char *(*wc_status_str)(int status);
    /* Those of newer libraries; NULL where it has them not. */
    verbs_mr *(*reg_mr_iova2)(verbs_pd *pd, void *address, size_t length, uint64_t iova,
                              unsigned access);
    verbs_mr *(*reg_dmabuf_mr)(verbs_pd *pd, uint64_t offset, size_t length, uint64_t iova,
                               int descriptor, int access);
} te_verbs;

/* The library of this process, opened with the first call; NULL: there is none, and *why says what was missing.
 * It stays open. */
const te_verbs *te_verbs_get(const char **why);

static inline int verbs_poll(verbs_cq *cq, int count, verbs_wc *completions) {
    return cq->context->ops.poll_cq(cq, count, completions);
}
static inline int verbs_notify(verbs_cq *cq) { return cq->context->ops.req_notify_cq(cq, 0); }
static inline int verbs_post(verbs_qp *qp, verbs_send_wr *request, verbs_send_wr **bad) {
    return qp->context->ops.post_send(qp, request, bad);
}

#endif
