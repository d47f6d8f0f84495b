/* Opening RDMA devices, and what their ports say of themselves. */
#include "te_rdma_device.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "te_fault.h"

#define CLASS_DIR "/sys/class/infiniband"
/* GIDs stand at the beginning of tables of up to 1024 entries, each of which costs a system call. */
#define GIDS_LOOKED_AT 64
#define GID_GAP_MAX 8

bool te_rdma_is_there(void) {
    DIR *folder = opendir(CLASS_DIR);
    if (folder == NULL)
        return false;
    bool found = false;
    const struct dirent *entry;
    while (!found && (entry = readdir(folder)) != NULL)
        found = entry->d_name[0] != '.';
    closedir(folder);
    return found;
}

/* The first line of a file in sysfs; false: it has none. */
static bool read_line(char *line, size_t size, const char *format, const char *device,
                      unsigned port, unsigned index) {
    char path[256];
    snprintf(path, sizeof path, format, device, port, index);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return false;
    ssize_t length = read(descriptor, line, size - 1);
    close(descriptor);
    if (length <= 0)
        return false;
    line[length] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return true;
}

static uint8_t type_of(const te_rdma_nic *nic, unsigned index) {
    char line[32];
    if (nic->link_layer == VERBS_LINK_INFINIBAND)
        return TE_RDMA_GID_INFINIBAND;
    bool is_v2 = read_line(line, sizeof line, CLASS_DIR "/%s/ports/%u/gid_attrs/types/%u",
                           nic->name, nic->port, index) &&
                 strcmp(line, "RoCE v2") == 0;
    return is_v2 ? TE_RDMA_GID_ROCE_V2 : TE_RDMA_GID_ROCE_V1;
}

void te_rdma_nic_look(te_rdma_nic *nic) {
    verbs_port_attr port = {0};
    te_rdma_gid gids[TE_RDMA_GIDS_MAX];
    uint32_t count = 0;
    bool is_up = !atomic_load(&nic->is_gone) &&
                 nic->verbs->query_port(nic->context, nic->port, &port) == 0 &&
                 port.state == VERBS_PORT_ACTIVE;
    for (int index = 0, gap = 0; is_up && index < port.gid_tbl_len && index < GIDS_LOOKED_AT &&
                                 gap < GID_GAP_MAX && count < TE_RDMA_GIDS_MAX;
         index++) {
        verbs_gid gid = {{0}};
        if (nic->verbs->query_gid(nic->context, nic->port, index, &gid) != 0 ||
            (gid.words[0] == 0 && gid.words[1] == 0)) {
            gap++;
            continue;
        }
        gap = 0;
        te_rdma_gid *kept = &gids[count++];
        memcpy(kept->raw, gid.raw, sizeof kept->raw);
        kept->index = (uint8_t)index;
        kept->type = type_of(nic, (unsigned)index);
    }
    te_rdma_gids_rank(gids, count);
    pthread_mutex_lock(&nic->lock);
    if (is_up) {
        nic->lid = port.lid;
        nic->mtu = (uint8_t)port.active_mtu;
        nic->max_message_bytes = port.max_msg_sz;
        memcpy(nic->gids, gids, count * sizeof *gids);
        nic->gid_count = count;
    }
    pthread_mutex_unlock(&nic->lock);
    atomic_store(&nic->is_up, is_up && count > 0);
}

uint32_t te_rdma_nic_tier(const te_rdma_nic *nic, int32_t memory_node) {
    return memory_node < 0 || nic->numa_node < 0 || nic->numa_node == memory_node
               ? TE_TIER_PREFERRED
               : TE_TIER_SECONDARY;
}

uint32_t te_rdma_nic_gids(te_rdma_nic *nic, te_rdma_gid gids[TE_RDMA_GIDS_MAX]) {
    pthread_mutex_lock(&nic->lock);
    uint32_t count = nic->gid_count;
    memcpy(gids, nic->gids, count * sizeof *gids);
    pthread_mutex_unlock(&nic->lock);
    return count;
}

void te_rdma_nic_close(te_rdma_nic *nic) {
    if (nic == NULL)
        return;
    if (nic->passive_cq != NULL)
        nic->verbs->destroy_cq(nic->passive_cq);
    if (nic->pd != NULL)
        nic->verbs->dealloc_pd(nic->pd);
    if (nic->context != NULL)
        nic->verbs->close_device(nic->context);
    pthread_mutex_destroy(&nic->lock);
    free(nic);
}

static te_rdma_nic *open_port(const te_verbs *verbs, verbs_device *device, uint8_t port,
                              uint32_t index) {
    verbs_device_attr limits;
    verbs_port_attr state = {0};
    char line[32];
    te_rdma_nic *nic = calloc(1, sizeof *nic);
    if (nic == NULL)
        return NULL;
    memset(&limits, 0, sizeof limits);
    pthread_mutex_init(&nic->lock, NULL);
    nic->verbs = verbs;
    nic->port = port;
    nic->index = index;
    snprintf(nic->name, sizeof nic->name, "%s", device->name);
    nic->context = verbs->open_device(device);
    if (nic->context == NULL || verbs->query_device(nic->context, &limits) != 0 ||
        verbs->query_port(nic->context, port, &state) != 0)
        goto fail;
    nic->link_layer = state.link_layer;
    nic->max_mr_bytes = limits.max_mr_size;
    nic->qp_depth_max = limits.max_qp_wr < 16 ? 16 : (uint32_t)limits.max_qp_wr;
    int reads = limits.max_qp_rd_atom < limits.max_qp_init_rd_atom ? limits.max_qp_rd_atom
                                                                   : limits.max_qp_init_rd_atom;
    nic->read_depth_max = reads < 1 ? 1 : reads > 16 ? 16 : (uint32_t)reads;
    nic->pd = verbs->alloc_pd(nic->context);
    nic->passive_cq = verbs->create_cq(nic->context, 1, NULL, NULL, 0);
    if (nic->pd == NULL || nic->passive_cq == NULL)
        goto fail;
    nic->numa_node = -1;
    if (read_line(line, sizeof line, CLASS_DIR "/%s/device/numa_node", nic->name, 0, 0))
        nic->numa_node = (int32_t)strtol(line, NULL, 10);
    te_rdma_nic_look(nic);
    if (nic->link_layer == VERBS_LINK_ETHERNET && nic->gid_count > 0 &&
        read_line(line, sizeof line, CLASS_DIR "/%s/ports/%u/gid_attrs/ndevs/%u", nic->name, port,
                  nic->gids[0].index))
        snprintf(nic->netdev, sizeof nic->netdev, "%s", line);
    /* Events are looked for by poll: reading must not wait. */
    if (fcntl(nic->context->async_fd, F_SETFL,
              fcntl(nic->context->async_fd, F_GETFL) | O_NONBLOCK) == 0)
        return nic;
fail:
    te_rdma_nic_close(nic);
    return NULL;
}

uint32_t te_rdma_device_open(const te_verbs *verbs, verbs_device *device, uint32_t index_first,
                             te_rdma_nic **nics, uint32_t room) {
    verbs_context *context = verbs->open_device(device);
    verbs_device_attr limits;
    uint32_t count = 0;
    if (context == NULL)
        return 0;
    memset(&limits, 0, sizeof limits);
    int failed = verbs->query_device(context, &limits);
    verbs->close_device(context);
    for (uint8_t port = 1; !failed && port <= limits.phys_port_cnt && count < room; port++) {
        te_rdma_nic *nic = open_port(verbs, device, port, index_first + count);
        if (nic != NULL)
            nics[count++] = nic;
    }
    return count;
}
