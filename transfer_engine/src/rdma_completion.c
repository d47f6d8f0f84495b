/* Completions: asked for without the kernel, or slept for. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>

#include "te_rdma.h"

#include "te_fault.h"

/* Acknowledging events takes a lock: once for many. */
#define ACKNOWLEDGED_AT_ONCE 64u

ms_status te_rdma_cq_open(te_rdma_nic *nic, uint32_t depth, te_rdma_cq *opened) {
    *opened = (te_rdma_cq){.nic = nic};
    opened->channel = nic->verbs->create_comp_channel(nic->context);
    if (opened->channel == NULL)
        return MS_LIMIT;
    if (fcntl(opened->channel->fd, F_SETFL, fcntl(opened->channel->fd, F_GETFL) | O_NONBLOCK) == 0)
        opened->cq = nic->verbs->create_cq(nic->context, (int)depth, NULL, opened->channel, 0);
    if (opened->cq == NULL) {
        nic->verbs->destroy_comp_channel(opened->channel);
        opened->channel = NULL;
        return MS_LIMIT;
    }
    return MS_OK;
}

void te_rdma_cq_close(te_rdma_cq *cq) {
    if (cq->cq == NULL)
        return;
    if (cq->events_unacked > 0)
        cq->nic->verbs->ack_cq_events(cq->cq, cq->events_unacked);
    cq->nic->verbs->destroy_cq(cq->cq);
    cq->nic->verbs->destroy_comp_channel(cq->channel);
    *cq = (te_rdma_cq){0};
}

int te_rdma_cq_poll(te_rdma_cq *cq, verbs_wc *completions, int room) {
    int count = verbs_poll(cq->cq, room, completions);
    return count < 0 ? 0 : count;
}

void te_rdma_cq_arm(te_rdma_cq *cq) {
    if (!cq->is_armed)
        (void)verbs_notify(cq->cq);
    cq->is_armed = true;
}

void te_rdma_cq_take_events(te_rdma_cq *cq) {
    verbs_cq *about;
    void *context;
    while (cq->nic->verbs->get_cq_event(cq->channel, &about, &context) == 0) {
        cq->is_armed = false;
        if (++cq->events_unacked == ACKNOWLEDGED_AT_ONCE) {
            cq->nic->verbs->ack_cq_events(cq->cq, cq->events_unacked);
            cq->events_unacked = 0;
        }
    }
}

void te_rdma_cqs_wait(te_rdma_cq *const *cqs, uint32_t count, int descriptor, int64_t deadline_ns,
                      bool *is_readable) {
    struct pollfd waited[TE_RDMA_NICS_MAX + 1];
    bool was_armed = true;
    *is_readable = false;
    for (uint32_t i = 0; i < count; i++) {
        was_armed = was_armed && cqs[i]->is_armed;
        te_rdma_cq_arm(cqs[i]);
        waited[i] = (struct pollfd){.fd = cqs[i]->channel->fd, .events = POLLIN};
    }
    /* What came before it was armed raises no event: the caller asks once more. */
    if (!was_armed)
        return;
    waited[count] = (struct pollfd){.fd = descriptor, .events = POLLIN};
    int64_t left_ns = deadline_ns - te_now_ns();
    left_ns = left_ns < 0 ? 0 : left_ns;
    struct timespec timeout = {.tv_sec = (time_t)(left_ns / TE_NS_PER_S),
                               .tv_nsec = (long)(left_ns % TE_NS_PER_S)};
    if (ppoll(waited, count + 1, &timeout, NULL) <= 0)
        return;
    for (uint32_t i = 0; i < count; i++) {
        if (waited[i].revents != 0)
            te_rdma_cq_take_events(cqs[i]);
        /* The device has been taken away; its channel would be readable for ever. */
        if (waited[i].revents & (POLLERR | POLLHUP | POLLNVAL)) {
            atomic_store(&cqs[i]->nic->is_gone, true);
            atomic_store(&cqs[i]->nic->is_up, false);
        }
    }
    *is_readable = waited[count].revents != 0;
}
