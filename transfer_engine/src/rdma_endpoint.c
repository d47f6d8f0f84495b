/* Asking side: an endpoint is a connection to a peer and the queue pairs that were agreed over it.
 *
 * Rails pair our NICs with the peer's along a diagonal, so that each is used about equally.  Which GIDs reach each other nobody
 * knows: the ranking says what to try first, and a pair counts when the peer has accepted it and an empty request has
 * come through.  One that is refused, or silent, is left for the next.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ms_frame.h"
#include "te_rdma.h"

#include "te_fault.h"

#define GID_TRIES 6u /* pairs of GIDs of one pair of NICs */
#define NIC_TRIES 4u /* other NICs of the peer for one of ours */
#define CALL_NS (2 * TE_NS_PER_S)
#define CONFIRM_NS (500 * TE_NS_PER_MS)
#define ASK_AGAIN_NS (50 * TE_NS_PER_MS)
#define ASK_SELDOM_NS TE_NS_PER_S
#define PROBE_POLLS 64
#define PROBE_NS (500 * TE_NS_PER_MS)

typedef struct remote_port {
    ms_rdma_port port;
    te_rdma_gid gids[TE_RDMA_GIDS_MAX];
    uint32_t gid_count;
} remote_port;

/* ---- calls over the endpoint's connection ----------------------------------------------------------------------- */

static ms_status call(te_connection *connection, uint16_t method, const void *body, size_t length,
                      te_reply *reply, int64_t deadline_ns) {
    struct iovec part = {(void *)(uintptr_t)body, length};
    int64_t limit_ns = te_now_ns() + CALL_NS;
    limit_ns = limit_ns < deadline_ns ? limit_ns : deadline_ns;
    ms_status status = te_send(connection, MS_REQUEST, method, 0, te_next_request(connection),
                               te_deadline_ms(limit_ns), &part, length > 0, NULL, 0, limit_ns);
    if (status == MS_OK)
        status = te_receive(connection, reply, limit_ns);
    return status == MS_OK ? (ms_status)reply->header.status : status;
}

static uint32_t read_ports(const te_reply *reply, remote_port *ports, uint32_t room) {
    ms_reader reader = ms_reader_of(reply->body, reply->header.body_length);
    uint32_t listed = ms_reader_list(&reader, sizeof(ms_rdma_port)), count = 0;
    for (uint32_t i = 0; i < listed; i++) {
        remote_port found = {0};
        if (!MS_READER_STRUCT(&reader, &found.port))
            break;
        for (uint32_t j = 0; j < found.port.gid_count; j++) {
            ms_rdma_gid gid;
            if (!MS_READER_STRUCT(&reader, &gid))
                break;
            if (found.gid_count == TE_RDMA_GIDS_MAX)
                continue;
            te_rdma_gid *kept = &found.gids[found.gid_count++];
            memcpy(kept->raw, gid.raw, sizeof kept->raw);
            kept->type = gid.type;
            kept->index = gid.index;
        }
        if (reader.is_bad)
            break;
        if (count < room && found.port.nic < UINT16_MAX && found.port.mtu >= 1 &&
            found.port.mtu <= 5)
            ports[count++] = found;
    }
    return count;
}

/* ---- opening a rail --------------------------------------------------------------------------------------------- */

/* An empty request, there and back. */
static bool comes_through(te_rdma_rail *rail, bool is_writing, int64_t deadline_ns) {
    verbs_send_wr request = {.wr_id = UINT64_MAX,
                             .opcode = is_writing ? VERBS_WR_RDMA_WRITE : VERBS_WR_RDMA_READ,
                             .send_flags = VERBS_SEND_SIGNALED};
    verbs_send_wr *bad = NULL;
    if (verbs_post(rail->qp.qp, &request, &bad) != 0)
        return false;
    int64_t limit_ns = te_now_ns() + PROBE_NS;
    deadline_ns = limit_ns < deadline_ns ? limit_ns : deadline_ns;
    for (;;) {
        verbs_wc done;
        bool is_readable;
        for (int i = 0; i < PROBE_POLLS; i++)
            if (te_rdma_cq_poll(rail->cq, &done, 1) == 1 && done.qp_num == rail->qp.qp->qp_num)
                return done.status == VERBS_WC_SUCCESS;
        if (te_now_ns() >= deadline_ns)
            return false;
        te_rdma_cqs_wait(&rail->cq, 1, -1, deadline_ns, &is_readable);
    }
}

static void disconnect(te_connection *connection, uint32_t queue_pair, int64_t deadline_ns) {
    uint32_t body[2] = {queue_pair, 0};
    te_reply reply = {.grow = true};
    (void)call(connection, MS_RDMA_DISCONNECT, body, sizeof body, &reply, deadline_ns);
    free(reply.body);
}

static bool try_gids(te_rdma_endpoint *endpoint, te_rdma_rail *rail, te_rdma_nic *nic,
                     const remote_port *there, const te_rdma_gid_pair *pair, bool is_writing,
                     int64_t deadline_ns) {
    te_rdma *rdma = endpoint->rdma;
    if (te_rdma_qp_open(rdma, nic, rail->cq->cq, TE_RDMA_DEPTH + 1, 0, &rail->qp) != MS_OK)
        return false;
    pthread_mutex_lock(&nic->lock);
    ms_rdma_end ours = {.generation = endpoint->generation,
                        .nic = there->port.nic,
                        .queue_pair = rail->qp.qp->qp_num,
                        .packet = rail->qp.psn,
                        .lid = nic->lid,
                        .mtu = nic->mtu,
                        .gid_index = pair->theirs.index,
                        .reads_out = (uint8_t)nic->read_depth_max,
                        .reads_in = 1};
    pthread_mutex_unlock(&nic->lock);
    memcpy(ours.gid, pair->ours.raw, sizeof ours.gid);
    te_reply reply = {.grow = true};
    ms_rdma_end theirs;
    ms_status status =
        call(endpoint->connection, MS_RDMA_CONNECT, &ours, sizeof ours, &reply, deadline_ns);
    ms_reader reader = ms_reader_of(reply.body, status == MS_OK ? reply.header.body_length : 0);
    bool is_agreed = status == MS_OK && MS_READER_STRUCT(&reader, &theirs) &&
                     ms_reader_is_done(&reader) && theirs.generation == endpoint->generation &&
                     theirs.mtu >= 1 && theirs.mtu <= ours.mtu;
    free(reply.body);
    bool works = false;
    if (is_agreed) {
        te_rdma_qp_peer peer = {.qpn = theirs.queue_pair,
                                .psn = theirs.packet & 0xffffff,
                                .lid = theirs.lid,
                                .gid_index = pair->ours.index,
                                .mtu = theirs.mtu,
                                .reads_out = theirs.reads_in < ours.reads_out ? theirs.reads_in
                                                                              : ours.reads_out,
                                .reads_in = 1};
        memcpy(peer.gid, theirs.gid, sizeof peer.gid);
        works = te_rdma_qp_connect(&rail->qp, &peer) == MS_OK &&
                comes_through(rail, is_writing, deadline_ns);
    }
    if (works) {
        rail->remote_nic = theirs.nic;
        rail->remote_qpn = theirs.queue_pair;
        return true;
    }
    te_rdma_qp_close(&rail->qp);
    if (is_agreed)
        disconnect(endpoint->connection, theirs.queue_pair, deadline_ns);
    return false;
}

/* An operator's index first. */
static void prefer_index(te_rdma_gid_pair *pairs, size_t count, int32_t index) {
    for (size_t i = 1; index >= 0 && i < count; i++)
        if (pairs[i].ours.index == index && pairs[0].ours.index != index) {
            te_rdma_gid_pair first = pairs[i];
            memmove(&pairs[1], &pairs[0], i * sizeof *pairs);
            pairs[0] = first;
            return;
        }
}

static bool try_nics(te_rdma_endpoint *endpoint, te_rdma_rail *rail, te_rdma_nic *nic,
                     const remote_port *there, bool is_writing, int64_t deadline_ns) {
    te_rdma_gid ours[TE_RDMA_GIDS_MAX];
    te_rdma_gid_pair pairs[GID_TRIES];
    bool is_infiniband = nic->link_layer == VERBS_LINK_INFINIBAND;
    if (is_infiniband != (there->port.link == MS_RDMA_INFINIBAND))
        return false;
    uint32_t our_count = te_rdma_nic_gids(nic, ours);
    size_t count =
        te_rdma_gid_pairs(ours, our_count, there->gids, there->gid_count, pairs, GID_TRIES);
    prefer_index(pairs, count, endpoint->rdma->settings.gid_index);
    for (size_t i = 0; i < count && te_now_ns() < deadline_ns && !endpoint->connection->is_broken;
         i++)
        if (try_gids(endpoint, rail, nic, there, &pairs[i], is_writing, deadline_ns))
            return true;
    return false;
}

static bool cq_for(te_rdma_endpoint *endpoint, te_rdma_nic *nic) {
    te_rdma_cq *cq = &endpoint->cqs[nic->index];
    uint32_t depth = TE_RDMA_RAILS_MAX * (TE_RDMA_DEPTH + 1);
    return cq->cq != NULL || te_rdma_cq_open(nic, depth, cq) == MS_OK;
}

static void open_rail(te_rdma_endpoint *endpoint, te_rdma_nic *nic, const remote_port *ports,
                      uint32_t port_count, uint32_t first, bool is_writing, int64_t deadline_ns) {
    te_rdma_rail *rail = calloc(1, sizeof *rail);
    if (rail == NULL)
        return;
    rail->cq = &endpoint->cqs[nic->index];
    bool works = cq_for(endpoint, nic);
    uint32_t tries = port_count < NIC_TRIES ? port_count : NIC_TRIES;
    bool is_open = false;
    for (uint32_t i = 0; i < tries && works && !is_open; i++)
        is_open = try_nics(endpoint, rail, nic, &ports[(first + i) % port_count], is_writing,
                           deadline_ns);
    if (is_open) {
        rail->scratch = nic->verbs->reg_mr(nic->pd, endpoint->scratch, TE_RDMA_SCRATCH_BYTES,
                                           VERBS_ACCESS_LOCAL_WRITE);
        if (rail->scratch == NULL) {
            te_rdma_qp_close(&rail->qp);
            is_open = false;
        }
    }
    if (!is_open) {
        free(rail);
        return;
    }
    rail->is_alive = true;
    rail->ns_per_byte = 1;
    endpoint->rails[endpoint->rail_count++] = rail;
    endpoint->alive_count++;
}

/* ---- the endpoint ------------------------------------------------------------------------------------------------ */

static void open_rails(te_rdma_endpoint *endpoint, const remote_port *ports, uint32_t port_count,
                       te_rdma_nic *only, uint32_t port, bool is_writing, int64_t deadline_ns) {
    te_rdma *rdma = endpoint->rdma;
    if (only != NULL) {
        if (port_count > 0)
            open_rail(endpoint, only, ports, port_count, port % port_count, is_writing,
                      deadline_ns);
        return;
    }
    te_rdma_nic *nics[TE_RDMA_NICS_MAX];
    uint32_t nic_count = 0;
    for (uint32_t i = 0; i < atomic_load(&rdma->nic_count); i++)
        if (atomic_load(&rdma->nics[i]->is_up))
            nics[nic_count++] = rdma->nics[i];
    if (nic_count == 0 || port_count == 0)
        return;
    uint32_t pairs = nic_count > port_count ? nic_count : port_count;
    for (uint32_t q = 0; q < rdma->settings.queue_pairs_per_rail; q++)
        for (uint32_t i = 0; i < pairs && endpoint->rail_count < TE_RDMA_RAILS_MAX; i++)
            open_rail(endpoint, nics[i % nic_count], ports, port_count, i % port_count, is_writing,
                      deadline_ns);
}

ms_status te_rdma_endpoint_open(te_rdma *rdma, te_connection *connection, bool is_writing,
                                te_rdma_nic *only, uint32_t port, int64_t deadline_ns,
                                te_rdma_endpoint **opened) {
    te_rdma_endpoint *endpoint = calloc(1, sizeof *endpoint);
    remote_port *ports = calloc(TE_RDMA_NICS_MAX, sizeof *ports);
    ms_status status = MS_NO_MEMORY;
    if (endpoint == NULL || ports == NULL ||
        (endpoint->scratch = aligned_alloc(MS_PAGE_SIZE, TE_RDMA_SCRATCH_BYTES)) == NULL) {
        free(endpoint);
        free(ports);
        te_checkin(connection, true);
        return status;
    }
    memset(endpoint->scratch, 0, TE_RDMA_SCRATCH_BYTES);
    endpoint->rdma = rdma;
    endpoint->connection = connection;
    endpoint->generation = atomic_fetch_add(&rdma->generation, 1) + 1;
    endpoint->polls_max[0] = endpoint->polls_max[1] = TE_RDMA_POLLS_FIRST;
    te_connection_park(connection);
    atomic_fetch_add(&rdma->counters.endpoints_opened, 1);
    te_reply reply = {.grow = true};
    status = call(connection, MS_RDMA_PORTS, NULL, 0, &reply, deadline_ns);
    if (status == MS_OK)
        open_rails(endpoint, ports, read_ports(&reply, ports, TE_RDMA_NICS_MAX), only, port,
                   is_writing, deadline_ns);
    else if (status == MS_UNAVAILABLE && !connection->is_broken)
        status = MS_NOT_REGISTERED;
    free(reply.body);
    free(ports);
    if (status == MS_OK && endpoint->rail_count == 0)
        status = MS_UNAVAILABLE;
    if (status != MS_OK) {
        te_rdma_endpoint_close(endpoint);
        return status;
    }
    *opened = endpoint;
    return MS_OK;
}

static void forget_segments(te_rdma_endpoint *endpoint) {
    while (endpoint->segments != NULL) {
        te_rdma_segment *next = endpoint->segments->next;
        free(endpoint->segments);
        endpoint->segments = next;
    }
}

void te_rdma_endpoint_close(te_rdma_endpoint *endpoint) {
    for (uint32_t i = 0; i < endpoint->rail_count; i++) {
        te_rdma_rail *rail = endpoint->rails[i];
        te_rdma_nic *nic = rail->qp.nic;
        te_rdma_qp_close(&rail->qp);
        if (rail->scratch != NULL)
            nic->verbs->dereg_mr(rail->scratch);
        free(rail);
    }
    for (uint32_t i = 0; i < TE_RDMA_NICS_MAX; i++)
        te_rdma_cq_close(&endpoint->cqs[i]);
    /* The connection's end tells the peer to destroy its queue pairs. */
    te_connection_unpark(endpoint->connection);
    te_checkin(endpoint->connection, false);
    forget_segments(endpoint);
    atomic_fetch_add(&endpoint->rdma->counters.endpoints_closed, 1);
    free(endpoint->scratch);
    free(endpoint);
}

uint32_t te_rdma_rail_break(te_rdma_endpoint *endpoint, te_rdma_rail *rail, te_rdma_slice *lost) {
    te_rdma_qp_close(&rail->qp);
    uint32_t count = rail->count;
    for (uint32_t i = 0; i < count; i++)
        lost[i] = rail->flying[(rail->first + i) % TE_RDMA_DEPTH];
    atomic_fetch_sub(&rail->qp.nic->bytes_in_flight, rail->bytes_in_flight);
    rail->count = rail->chained = 0;
    rail->bytes_in_flight = 0;
    rail->touched = 0;
    if (rail->is_alive)
        endpoint->alive_count--;
    rail->is_alive = false;
    atomic_fetch_add(&endpoint->rdma->counters.rail_failures, 1);
    return count;
}

bool te_rdma_rail_confirm(te_rdma_endpoint *endpoint, const te_rdma_rail *rail,
                          int64_t deadline_ns) {
    int64_t limit_ns = te_now_ns() + CONFIRM_NS;
    limit_ns = limit_ns > deadline_ns ? limit_ns : deadline_ns;
    uint32_t body[2] = {rail->remote_qpn, 0};
    te_reply reply = {.grow = true};
    ms_status status =
        call(endpoint->connection, MS_RDMA_DISCONNECT, body, sizeof body, &reply, limit_ns);
    free(reply.body);
    /* A peer that has closed the connection has destroyed its queue pairs before. */
    return status == MS_OK || status == MS_UNAVAILABLE;
}

/* ---- where the peer's segments are -------------------------------------------------------------------------------- */

#define CHUNKS_MAX (1u << 20)
#define SEGMENTS_MAX 1024u

static te_rdma_segment *ask(te_rdma_endpoint *endpoint, uint32_t segment, int64_t deadline_ns) {
    uint32_t body[2] = {segment, 0};
    te_reply reply = {.grow = true};
    te_rdma_segment *made = NULL;
    ms_status status =
        call(endpoint->connection, MS_RDMA_SEGMENT, body, sizeof body, &reply, deadline_ns);
    ms_reader reader = ms_reader_of(reply.body, status == MS_OK ? reply.header.body_length : 0);
    uint32_t is_whole = ms_reader_u32(&reader);
    (void)ms_reader_u32(&reader);
    uint32_t count = status == MS_OK ? ms_reader_list(&reader, sizeof(ms_rdma_chunk)) : 0;
    if (count <= CHUNKS_MAX)
        made = calloc(1, sizeof *made + count * sizeof made->chunks[0]);
    if (made != NULL) {
        made->segment = segment;
        made->asked_ns = te_now_ns();
        /* What the peer does not have for RDMA is asked for again, but seldom. */
        made->is_whole = is_whole == 1 || status == MS_NOT_REGISTERED;
        for (; made->count < count; made->count++) {
            ms_rdma_chunk chunk;
            if (!MS_READER_STRUCT(&reader, &chunk) || chunk.length == 0 ||
                chunk.offset + chunk.length < chunk.offset)
                break;
            made->chunks[made->count] = (te_rdma_chunk){.offset = chunk.offset,
                                                        .length = chunk.length,
                                                        .address = chunk.address,
                                                        .key = chunk.key,
                                                        .nic = chunk.nic,
                                                        .is_words = chunk.is_words};
        }
    }
    free(reply.body);
    if (endpoint->connection->is_broken)
        endpoint->is_broken = true;
    return made;
}

static bool find(const te_rdma_segment *known, bool is_words, uint32_t remote_nic, uint64_t offset,
                 te_rdma_chunk *found) {
    for (uint32_t i = 0; i < known->count; i++) {
        const te_rdma_chunk *chunk = &known->chunks[i];
        if (chunk->is_words == is_words && chunk->nic == remote_nic && chunk->offset <= offset &&
            offset - chunk->offset < chunk->length) {
            *found = *chunk;
            return true;
        }
    }
    return false;
}

te_rdma_known te_rdma_look_up(const te_rdma_endpoint *endpoint, uint32_t segment, bool is_words,
                              uint32_t remote_nic, uint64_t offset, te_rdma_chunk *found) {
    const te_rdma_segment *known = endpoint->segments;
    while (known != NULL && known->segment != segment)
        known = known->next;
    if (known == NULL)
        return TE_RDMA_UNKNOWN;
    if (find(known, is_words, remote_nic, offset, found))
        return TE_RDMA_KNOWN;
    int64_t patience_ns = known->is_whole ? ASK_SELDOM_NS : ASK_AGAIN_NS;
    return te_now_ns() - known->asked_ns < patience_ns ? TE_RDMA_NOT_THERE : TE_RDMA_UNKNOWN;
}

bool te_rdma_remote_key(te_rdma_endpoint *endpoint, uint32_t segment, bool is_words,
                        uint32_t remote_nic, uint64_t offset, te_rdma_chunk *found,
                        int64_t deadline_ns) {
    te_rdma_known state = te_rdma_look_up(endpoint, segment, is_words, remote_nic, offset, found);
    if (state != TE_RDMA_UNKNOWN)
        return state == TE_RDMA_KNOWN;
    te_rdma_segment **at = &endpoint->segments;
    while (*at != NULL && (*at)->segment != segment)
        at = &(*at)->next;
    te_rdma_segment *known = *at;
    int64_t patience_ns = (int64_t)endpoint->rdma->settings.wait_ms * TE_NS_PER_MS;
    int64_t begun_ns = te_now_ns();
    te_rdma_segment *fresh = ask(endpoint, segment, deadline_ns);
    while (fresh != NULL && !fresh->is_whole && te_now_ns() - begun_ns < patience_ns &&
           te_now_ns() + ASK_AGAIN_NS < deadline_ns && !endpoint->is_broken) {
        free(fresh);
        nanosleep(&(struct timespec){.tv_nsec = ASK_AGAIN_NS}, NULL);
        fresh = ask(endpoint, segment, deadline_ns);
    }
    if (fresh == NULL)
        return false;
    if (known != NULL) {
        fresh->next = known->next;
        free(known);
    } else if (++endpoint->segment_count > SEGMENTS_MAX) { /* a peer that registers for ever */
        forget_segments(endpoint);
        at = &endpoint->segments;
        endpoint->segment_count = 1;
    }
    *at = fresh;
    return find(fresh, is_words, remote_nic, offset, found);
}
