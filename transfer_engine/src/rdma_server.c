/* Answering side: which ports there are, queue pairs of links, where segments are registered.
 *
 * A queue pair belongs to the link over which it was agreed, and lets its peer do what that link's HELLO lets it do:
 * read, or write (and read, because a writer pushes its bytes into memory with an 8-byte READ behind them).  It is
 * destroyed with the link, before the peer can know that the link has ended; a fence (te_close_matching) returns only
 * when it is.  Whatever a frozen writer has posted meets a queue pair that is not there.
 *
 * Making one takes calls that wait for the device: workers do it.
 */
#include <stdlib.h>
#include <string.h>

#include "ms_frame.h"
#include "te_rdma.h"

#include "te_fault.h"

typedef struct te_rdma_accepted {
    struct te_rdma_accepted *next;
    te_rdma_qp qp;
} te_rdma_accepted;

typedef struct connecting {
    te_link *link; /* held */
    ms_header header;
    ms_rdma_end end;
} connecting;

/* ---- queue pairs of a link ------------------------------------------------------------------------------------- */

static void destroy(te_rdma *rdma, te_rdma_accepted *accepted) {
    te_rdma_qp_close(&accepted->qp);
    atomic_fetch_sub(&rdma->accepted_queue_pairs, 1);
    free(accepted);
}

static void cutting_ended(te_link *link) {
    pthread_mutex_lock(&link->lock);
    link->cutting--;
    pthread_cond_broadcast(&link->step_ended);
    pthread_mutex_unlock(&link->lock);
}

void te_rdma_link_cut(te_link *link) {
    te_rdma *rdma = link->engine->rdma;
    if (rdma == NULL)
        return;
    pthread_mutex_lock(&link->lock);
    te_rdma_accepted *accepted = link->queue_pairs;
    link->queue_pairs = NULL;
    link->cutting += accepted != NULL;
    pthread_mutex_unlock(&link->lock);
    if (accepted != NULL) {
        while (accepted != NULL) {
            te_rdma_accepted *next = accepted->next;
            destroy(rdma, accepted);
            accepted = next;
        }
        cutting_ended(link);
    }
    /* Others may be at it: the I/O thread and a fence. */
    pthread_mutex_lock(&link->lock);
    while (link->cutting > 0)
        pthread_cond_wait(&link->step_ended, &link->lock);
    pthread_mutex_unlock(&link->lock);
}

/* False: the link is closing. */
static bool attach(te_link *link, te_rdma_accepted *accepted) {
    pthread_mutex_lock(&link->lock);
    bool may = !link->is_closing;
    if (may) {
        accepted->next = link->queue_pairs;
        link->queue_pairs = accepted;
    }
    pthread_mutex_unlock(&link->lock);
    return may;
}

static unsigned access_of(const te_link *link) {
    unsigned access = 0;
    if (link->hello.right & MS_RIGHT_READ)
        access |= VERBS_ACCESS_REMOTE_READ;
    if (link->hello.right & MS_RIGHT_WRITE)
        access |= VERBS_ACCESS_REMOTE_WRITE | VERBS_ACCESS_REMOTE_READ;
    return access;
}

/* The GID of ours that the peer has chosen. */
static bool find_gid(te_rdma_nic *nic, uint8_t index, te_rdma_gid *found) {
    te_rdma_gid gids[TE_RDMA_GIDS_MAX];
    uint32_t count = te_rdma_nic_gids(nic, gids);
    for (uint32_t i = 0; i < count; i++)
        if (gids[i].index == index) {
            *found = gids[i];
            return true;
        }
    return false;
}

static uint8_t least(uint32_t a, uint32_t b) { return (uint8_t)(a < b ? a : b); }

static ms_status make(te_rdma *rdma, te_link *link, const ms_rdma_end *theirs, ms_rdma_end *ours) {
    te_rdma_nic *nic = te_rdma_nic_at(rdma, theirs->nic);
    te_rdma_gid gid;
    if (nic == NULL || !atomic_load(&nic->is_up) || !find_gid(nic, theirs->gid_index, &gid))
        return MS_UNAVAILABLE;
    te_rdma_accepted *accepted = calloc(1, sizeof *accepted);
    if (accepted == NULL)
        return MS_NO_MEMORY;
    if (atomic_fetch_add(&rdma->accepted_queue_pairs, 1) >= rdma->settings.queue_pairs_max) {
        atomic_fetch_sub(&rdma->accepted_queue_pairs, 1);
        free(accepted);
        return MS_LIMIT;
    }
    pthread_mutex_lock(&nic->lock);
    uint8_t mtu = nic->mtu;
    uint16_t lid = nic->lid;
    pthread_mutex_unlock(&nic->lock);
    te_rdma_qp_peer peer = {.qpn = theirs->queue_pair,
                            .psn = theirs->packet & 0xffffff,
                            .lid = theirs->lid,
                            .gid_index = gid.index,
                            .mtu = least(theirs->mtu, mtu),
                            .reads_out = 1,
                            .reads_in = least(theirs->reads_out, nic->read_depth_max)};
    memcpy(peer.gid, theirs->gid, sizeof peer.gid);
    ms_status status =
        te_rdma_qp_open(rdma, nic, nic->passive_cq, 1, access_of(link), &accepted->qp);
    if (status == MS_OK)
        status = te_rdma_qp_connect(&accepted->qp, &peer);
    if (status != MS_OK) {
        destroy(rdma, accepted);
        return status;
    }
    *ours = (ms_rdma_end){.generation = theirs->generation,
                          .nic = theirs->nic,
                          .queue_pair = accepted->qp.qp->qp_num,
                          .packet = accepted->qp.psn,
                          .lid = lid,
                          .mtu = peer.mtu,
                          .gid_index = gid.index,
                          .reads_out = peer.reads_out,
                          .reads_in = peer.reads_in};
    memcpy(ours->gid, gid.raw, sizeof ours->gid);
    if (!attach(link, accepted)) {
        destroy(rdma, accepted);
        return MS_CLOSED;
    }
    return MS_OK;
}

static void connect_in_worker(void *argument) {
    connecting *job = argument;
    ms_rdma_end ours = {0};
    ms_status status = make(job->link->engine->rdma, job->link, &job->end, &ours);
    if (status == MS_OK) {
        struct iovec part = {&ours, sizeof ours};
        te_link_answer(job->link, &job->header, MS_OK, &part, 1, NULL, 0, NULL, 0);
    } else {
        te_link_refuse(job->link, &job->header, status, "no queue pair on NIC %u (%s)",
                       (unsigned)job->end.nic, ms_status_name(status));
    }
    te_link_release(job->link);
    free(job);
}

/* ---- methods --------------------------------------------------------------------------------------------------- */

static bool refuse_without(te_engine *engine, te_link *link, const te_request *request) {
    if (engine->rdma != NULL && !link->is_dialled && access_of(link) != 0)
        return false;
    te_link_refuse(link, request->header, engine->rdma == NULL ? MS_UNAVAILABLE : MS_REFUSED,
                   engine->rdma == NULL ? "no RDMA here"
                                        : "a connection that may neither read nor write");
    return true;
}

static void answer_ports(te_engine *engine, te_link *link, const te_request *request) {
    if (refuse_without(engine, link, request))
        return;
    te_rdma *rdma = engine->rdma;
    ms_writer body = ms_writer_growable(MS_BODY_BYTES_MAX);
    uint32_t nics = atomic_load(&rdma->nic_count), count = 0;
    bool is_told[TE_RDMA_NICS_MAX] = {false};
    for (uint32_t i = 0; i < nics; i++)
        count += is_told[i] = atomic_load(&rdma->nics[i]->is_up);
    ms_writer_list(&body, count);
    for (uint32_t i = 0; i < nics; i++) {
        te_rdma_nic *nic = rdma->nics[i];
        if (!is_told[i])
            continue;
        te_rdma_gid gids[TE_RDMA_GIDS_MAX];
        ms_rdma_port port = {
            .nic = i, .link = nic->link_layer, .gid_count = te_rdma_nic_gids(nic, gids)};
        pthread_mutex_lock(&nic->lock);
        port.mtu = nic->mtu;
        port.lid = nic->lid;
        port.message_bytes_max = nic->max_message_bytes;
        pthread_mutex_unlock(&nic->lock);
        MS_WRITER_STRUCT(&body, &port);
        for (uint32_t j = 0; j < port.gid_count; j++) {
            ms_rdma_gid gid = {.type = gids[j].type, .index = gids[j].index};
            memcpy(gid.raw, gids[j].raw, sizeof gid.raw);
            MS_WRITER_STRUCT(&body, &gid);
        }
    }
    struct iovec part = {body.data, body.length};
    if (body.status == MS_OK)
        te_link_answer(link, request->header, MS_OK, &part, 1, NULL, 0, NULL, 0);
    else
        te_link_refuse(link, request->header, body.status, "no memory for the list of ports");
    ms_writer_close(&body);
}

static void answer_connect(te_engine *engine, te_link *link, const te_request *request) {
    if (refuse_without(engine, link, request))
        return;
    ms_reader reader = ms_reader_of(request->body, request->header->body_length);
    ms_rdma_end end;
    if (!MS_READER_STRUCT(&reader, &end) || !ms_reader_is_done(&reader) || end.mtu == 0 ||
        end.mtu > 5 || end.reads_out == 0) {
        te_link_refuse(link, request->header, MS_BAD_REQUEST, "RDMA_CONNECT: malformed");
        return;
    }
    connecting *job = malloc(sizeof *job);
    if (job != NULL) {
        *job = (connecting){.link = link, .header = *request->header, .end = end};
        te_link_hold(link);
        if (te_spawn(engine, connect_in_worker, job) == MS_OK)
            return;
        te_link_release(link);
        free(job);
    }
    te_link_refuse(link, request->header, MS_LIMIT, "no worker makes a queue pair now");
}

static void disconnect_in_worker(void *argument) {
    connecting *job = argument;
    te_rdma *rdma = job->link->engine->rdma;
    te_rdma_accepted *found = NULL;
    pthread_mutex_lock(&job->link->lock);
    for (te_rdma_accepted **at = &job->link->queue_pairs; *at != NULL; at = &(*at)->next)
        if ((*at)->qp.qp->qp_num == job->end.queue_pair) {
            found = *at;
            *at = found->next;
            job->link->cutting++;
            break;
        }
    pthread_mutex_unlock(&job->link->lock);
    if (found != NULL) {
        destroy(rdma, found);
        cutting_ended(job->link);
    }
    /* One that is not there is destroyed already: a repeat. */
    te_link_answer(job->link, &job->header, MS_OK, NULL, 0, NULL, 0, NULL, 0);
    te_link_release(job->link);
    free(job);
}

static void answer_disconnect(te_engine *engine, te_link *link, const te_request *request) {
    if (refuse_without(engine, link, request))
        return;
    ms_reader reader = ms_reader_of(request->body, request->header->body_length);
    ms_rdma_end end = {.queue_pair = ms_reader_u32(&reader)};
    (void)ms_reader_u32(&reader);
    if (!ms_reader_is_done(&reader)) {
        te_link_refuse(link, request->header, MS_BAD_REQUEST, "RDMA_DISCONNECT: malformed");
        return;
    }
    connecting *job = malloc(sizeof *job);
    if (job == NULL) {
        te_link_refuse(link, request->header, MS_NO_MEMORY, "no memory");
        return;
    }
    *job = (connecting){.link = link, .header = *request->header, .end = end};
    te_link_hold(link);
    if (te_spawn(engine, disconnect_in_worker, job) != MS_OK)
        disconnect_in_worker(job); /* the peer waits for it, and must not wait for ever */
}

/* Every chunk of a range on every NIC; false: something is not registered yet.  What a NIC has refused is not to come.  One that is down
 * is told, too: a peer that is paired with it finds that out by asking it in vain, and would take what is not told for memory that
 * this NIC does not have, send nothing, and stay paired with it. */
static bool add_chunks(te_rdma *rdma, te_rdma_range *range, bool is_words, ms_writer *body,
                       uint32_t *count) {
    uint64_t address, length, chunk_bytes = te_rdma_range_chunk_bytes(range);
    uint32_t nics = atomic_load(&rdma->nic_count);
    bool is_whole = true;
    te_rdma_range_span(range, &address, &length);
    for (uint64_t offset = 0; offset < length; offset += chunk_bytes) {
        for (uint32_t i = 0; i < nics; i++) {
            te_rdma_key key;
            const te_rdma_nic *nic = rdma->nics[i];
            if (!te_rdma_range_key(range, nic, address + offset, &key)) {
                is_whole =
                    is_whole && (!atomic_load(&nic->is_up) || te_rdma_range_is_refused(range, nic));
                continue;
            }
            ms_rdma_chunk chunk = {.offset = offset,
                                   .length = key.run,
                                   .address = address + offset,
                                   .key = key.remote,
                                   .nic = (uint16_t)i,
                                   .is_words = is_words};
            MS_WRITER_STRUCT(body, &chunk);
            ++*count;
        }
    }
    return is_whole;
}

static void answer_segment(te_engine *engine, te_link *link, const te_request *request) {
    if (refuse_without(engine, link, request))
        return;
    ms_reader reader = ms_reader_of(request->body, request->header->body_length);
    uint32_t number = ms_reader_u32(&reader);
    (void)ms_reader_u32(&reader);
    te_segment *segment = ms_reader_is_done(&reader) ? te_segment_get(engine, number) : NULL;
    if (segment == NULL || segment->rdma == NULL) {
        if (segment != NULL)
            te_segment_put(segment);
        te_link_refuse(link, request->header, MS_NOT_REGISTERED, "no such segment for RDMA");
        return;
    }
    ms_writer chunks = ms_writer_growable(MS_BODY_BYTES_MAX - 64);
    uint32_t count = 0;
    bool is_whole = add_chunks(engine->rdma, segment->rdma, false, &chunks, &count);
    if (segment->rdma_words != NULL)
        is_whole = add_chunks(engine->rdma, segment->rdma_words, true, &chunks, &count) && is_whole;
    te_segment_put(segment);
    uint32_t head[4] = {is_whole, 0, count, 0};
    struct iovec parts[2] = {{head, sizeof head}, {chunks.data, chunks.length}};
    if (chunks.status == MS_OK)
        te_link_answer(link, request->header, MS_OK, parts, 2, NULL, 0, NULL, 0);
    else
        te_link_refuse(link, request->header, chunks.status, "the list of chunks is too long");
    ms_writer_close(&chunks);
}

void te_rdma_install(te_engine *engine) {
    engine->methods[MS_RDMA_PORTS] = answer_ports;
    engine->methods[MS_RDMA_CONNECT] = answer_connect;
    engine->methods[MS_RDMA_DISCONNECT] = answer_disconnect;
    engine->methods[MS_RDMA_SEGMENT] = answer_segment;
}
