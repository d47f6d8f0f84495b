/* The bytes of a put on their way to the servers: from shared memory, through a staging buffer, or in the frame. */
#include <stdio.h>
#include <time.h>

#include "cl_internal.h"
#include "pieces.h"
#include "write_list.h"

#define STAGING_SLOTS 4u
/* A value goes in so many steps, or more: the server copies one while the client fills the next.  Each step costs a frame and
 * its answer: in steps of half as much a put of 1 MiB was slower again (docs/benchmarks.md). */
#define STEPS 8u
#define STEP_LEAST (128u << 10)

/* ---- staging -------------------------------------------------------------------------------------------- */

static cl_staging *staging_take(cl_client *client, int64_t deadline_ns) {
    cl_staging *taken = NULL;
    struct timespec until = {.tv_sec = deadline_ns / 1000000000,
                             .tv_nsec = deadline_ns % 1000000000};
    pthread_mutex_lock(&client->staging_lock);
    while (taken == NULL) {
        for (size_t i = 0; i < CL_STAGING_MAX && taken == NULL; i++)
            if (!client->staging[i].busy)
                taken = &client->staging[i];
        if (taken == NULL &&
            pthread_cond_timedwait(&client->staging_free, &client->staging_lock, &until) != 0)
            break;
    }
    if (taken != NULL)
        taken->busy = true;
    pthread_mutex_unlock(&client->staging_lock);
    if (taken != NULL && taken->address == NULL) {
        void *address = NULL;
        if (te_shared_alloc(client->engine, client->config.staging_bytes, &address) == MS_OK)
            taken->address = address;
    }
    return taken;
}

static bool is_staging_free(cl_client *client) {
    bool is_free = false;
    pthread_mutex_lock(&client->staging_lock);
    for (size_t i = 0; i < CL_STAGING_MAX; i++)
        is_free = is_free || !client->staging[i].busy;
    pthread_mutex_unlock(&client->staging_lock);
    return is_free;
}

static void staging_give(cl_client *client, cl_staging *staging) {
    pthread_mutex_lock(&client->staging_lock);
    staging->busy = false;
    pthread_cond_signal(&client->staging_free);
    pthread_mutex_unlock(&client->staging_lock);
}

/* Frame n fills slot n % STAGING_SLOTS, over all extents of the put: answers come in order, so with fewer than
 * STAGING_SLOTS in flight the server has done with what that slot held before. */
typedef struct pipeline {
    te_connection *connection;
    uint64_t sent;      /* also one of which nobody knows how much arrived */
    uint32_t in_flight; /* the server may still copy for so many */
    int64_t deadline_ns;
} pipeline;

static ms_status pipeline_receive(pipeline *pipe) {
    uint8_t body[256];
    te_reply reply = {.body = body, .body_size = sizeof body};
    ms_status status = te_receive_exactly(pipe->connection, &reply, pipe->deadline_ns);
    if (status != MS_OK)
        return status;
    pipe->in_flight--;
    return (ms_status)reply.header.status;
}

static ms_status pipeline_send(pipeline *pipe, const ms_write_item *item, const ms_writer *seal) {
    uint32_t head[2] = {1, 0};
    struct iovec body[3] = {{.iov_base = head, .iov_len = sizeof head},
                            {.iov_base = (void *)(uintptr_t)item, .iov_len = sizeof *item},
                            {.iov_base = seal->data, .iov_len = item->seal_length}};
    pipe->sent++;
    pipe->in_flight++;
    return te_send(pipe->connection, MS_REQUEST, MS_WRITE, 0, te_next_request(pipe->connection),
                   cl_left_ms(pipe->deadline_ns), body, item->seal_length != 0 ? 3 : 2, NULL, 0,
                   pipe->deadline_ns);
}

static uint64_t staged_step(uint64_t length, uint64_t slot_bytes) {
    uint64_t step = (length / STEPS + MS_PAGE_SIZE - 1) / MS_PAGE_SIZE * MS_PAGE_SIZE;
    step = step > STEP_LEAST ? step : STEP_LEAST;
    return step < slot_bytes ? step : slot_bytes;
}

/* One extent through the slots of a staging buffer: the client fills one while the server drains others.
 * The frame with the seal goes when all before it were answered, so that a failed one is never sealed. */
static ms_status stage_extent(cl_client *client, pipeline *pipe, const cl_staging *staging,
                              uint32_t source, uint64_t source_offset, ms_write_item item,
                              cl_cursor *bytes, uint64_t length, const ms_writer *seal) {
    const uint64_t slot_bytes = client->config.staging_bytes / STAGING_SLOTS;
    const uint64_t step_bytes = staged_step(length, slot_bytes);
    uint64_t done = 0;
    while (done < length) {
        const uint64_t slot = pipe->sent % STAGING_SLOTS;
        uint64_t step = length - done < step_bytes ? length - done : step_bytes;
        bool is_last = done + step == length;
        ms_status status = MS_OK;
        while (status == MS_OK && pipe->in_flight >= STAGING_SLOTS)
            status = pipeline_receive(pipe);
        if (status != MS_OK)
            return status;
        for (uint64_t filled = 0, run; filled < step; filled += run) {
            const uint8_t *source = cl_cursor_next(bytes, step - filled, &run);
            memcpy(staging->address + slot * slot_bytes + filled, source, run);
        }
        while (status == MS_OK && is_last && pipe->in_flight > 0)
            status = pipeline_receive(pipe);
        if (status != MS_OK)
            return status;
        item.source = source;
        item.source_offset = source_offset + slot * slot_bytes;
        item.offset = done;
        item.length = step;
        item.seal_length = is_last ? (uint32_t)seal->length : 0;
        status = pipeline_send(pipe, &item, seal);
        if (status != MS_OK)
            return status;
        done += step;
    }
    return MS_OK;
}

static ms_status write_staged(cl_putting *put, size_t index, const cl_replica *replica,
                              cl_node *node) {
    cl_client *client = put->client;
    const cl_location *grant = put->states[index].grant;
    cl_staging *staging = staging_take(client, put->deadline_ns);
    if (staging == NULL)
        return MS_TIMEOUT;
    uint32_t source = 0;
    uint64_t source_offset = 0;
    const int64_t began_ns = te_now_ns();
    put->write_ns =
        cl_put_limit(put, node, grant->size); /* others may have had the buffer for long */
    pipeline pipe = {.deadline_ns = put->write_ns};
    ms_status status = staging->address == NULL
                           ? MS_NO_MEMORY
                           : te_share(node->writing, staging->address, client->config.staging_bytes,
                                      &source, &source_offset, put->write_ns);
    if (status == MS_OK)
        status = te_checkout(node->writing, put->write_ns, &pipe.connection);
    if (status == MS_OK) {
        cl_cursor bytes;
        cl_cursor_open(&bytes, &put->items[index]);
        uint64_t left = grant->size;
        uint8_t seal_bytes[2048];
        for (uint32_t i = 0; i < replica->extent_count && status == MS_OK; i++) {
            const ms_extent *extent = &grant->extents[replica->extent_first + i];
            uint64_t length = (uint64_t)extent->page_count * MS_PAGE_SIZE;
            if (length > left)
                length = left;
            ms_writer seal = ms_writer_fixed(seal_bytes, sizeof seal_bytes);
            cl_put_write_seal(put, index, (uint16_t)i, replica->extent_count, &seal);
            ms_write_item item = {.segment = replica->segment,
                                  .page = extent->page,
                                  .page_count = extent->page_count,
                                  .version = grant->version};
            status = stage_extent(client, &pipe, staging, source, source_offset, item, &bytes,
                                  length, &seal);
            left -= length;
        }
        while (status == MS_OK && pipe.in_flight > 0)
            status = pipeline_receive(&pipe);
        /* Frames in flight still read the staging buffer: closing the connection does not stop a copy that has
         * begun, so after a failure it is left to the server's check of the version, and the buffer is dropped. */
        te_checkin(pipe.connection, status == MS_OK);
        if (status != MS_OK && pipe.in_flight > 0) {
            te_shared_free(client->engine, staging->address);
            staging->address = NULL;
        }
    }
    staging_give(client, staging);
    if (cl_is_transport(status))
        cl_node_failed(client, node, began_ns);
    return status;
}

/* ---- frames ------------------------------------------------------------------------------------------------ */

void cl_put_replica_failed(cl_putting *put, size_t index, ms_status status) {
    if (put->states[index].failed == MS_OK)
        put->states[index].failed = status;
}

void cl_put_node_failed(cl_putting *put, cl_node *node, ms_status status, int64_t began_ns,
                        cl_failure *failure) {
    char text[TE_ERROR_BYTES];
    te_channel_error(node->writing, text);
    cl_fail(failure, status, "write", node->name, "%s", text);
    if (cl_is_transport(status))
        cl_node_failed(put->client, node, began_ns);
}

bool cl_put_avoids(const cl_putting *put, cl_node *node) {
    return !put->is_last && cl_node_state(node) != CL_BREAKER_CLOSED &&
           cl_node_others(put->client, node) != 0;
}

void cl_put_repeat(cl_putting *put, uint32_t hello_generation) {
    put->is_repeated = true;
    put->hello_generation = hello_generation;
}

int64_t cl_put_limit(const cl_putting *put, const cl_node *node, uint64_t bytes) {
    uint32_t others = cl_node_others(put->client, node);
    if (put->is_last || others == 0)
        return put->deadline_ns;
    int64_t hedge_ns = cl_hedge_ns(bytes, put->deadline_ns);
    if (others >= put->options->replica_count)
        return hedge_ns;
    /* The others have replicas already: without this node there will be one fewer.  A busy one is waited for; who
     * does not answer in this time either is left alone, and the next put does without it at once. */
    int64_t alone_ns = hedge_ns + CL_ALONE_NS;
    return alone_ns < put->deadline_ns ? alone_ns : put->deadline_ns;
}

/* The client sends put_end. */
static ms_status write_plainly(cl_putting *put, cl_node *node, cl_write_list *list, uint64_t bit,
                               cl_failure *failure) {
    ms_status status = put->is_repeated
                           ? te_write_again(node->writing, list->items, list->sources, list->count,
                                            list->seals.data, list->seals.length,
                                            put->hello_generation, list->statuses, put->write_ns)
                           : te_write_as(node->writing, list->items, list->sources, list->count,
                                         list->seals.data, list->seals.length, 0, list->statuses,
                                         put->options->share, put->write_ns);
    if (status == MS_OK)
        cl_write_list_settle(list, put, node, bit, failure);
    return status;
}

/* The master's connection has ended, or brought something else than the relayed answer, and nobody knows what was sealed: only
 * the server does.  Should it have relayed put_end already, ours has the same number *(dedupe)*. */
static ms_status write_again(cl_putting *put, cl_node *node, cl_write_list *list,
                             cl_failure *failure) {
    for (size_t i = 0; i < list->count; i++)
        put->states[list->owners[i]].sealed = 0;
    cl_write_list_doubt(list, put);
    return write_plainly(put, node, list, 1, failure);
}

/* All in one frame; the server relays put_end, the master answers on put->master. */
static ms_status write_relayed(cl_putting *put, cl_node *node, cl_write_list *list, bool *is_done,
                               cl_failure *failure) {
    te_connection *data = NULL;
    ms_status status = te_checkout(node->writing, put->write_ns, &data);
    if (status != MS_OK)
        return status;
    status = cl_write_list_send(list, data, MS_FLAG_RELAY, put->write_ns);
    int which = 1;
    if (status == MS_OK) {
        te_expect_copy(data, list->shared_bytes);
        status = te_wait_either(put->master, data, &which, put->write_ns);
        te_expect_nothing(data, status == MS_OK && which == 0); /* which the master answers */
    }
    if (status == MS_OK && which == 0) {
        for (size_t i = 0; i < list->count; i++)
            put->states[list->owners[i]].sealed = 1;
        status = cl_put_take_relayed(put, failure);
        if (status != MS_OK)
            cl_put_repeat(put, te_connection_generation(data));
        te_checkin(data, status == MS_OK);
        *is_done = status == MS_OK;
        return *is_done ? MS_OK : write_again(put, node, list, failure);
    }
    bool is_refused = false;
    if (status == MS_OK)
        status = cl_write_list_receive(list, data, put->write_ns, &is_refused);
    if (status == MS_OK)
        cl_write_list_settle(list, put, node, 1, failure);
    bool is_again = status == MS_UNAVAILABLE && !is_refused;
    if (is_again)
        cl_put_repeat(put, te_connection_generation(data));
    te_checkin(data, status == MS_OK); /* who refuses a whole frame ends the connection */
    /* Else nobody knows whether the seals arrived: a relayed answer may still come on the master's connection. */
    if (status != MS_OK && !is_refused && put->master != NULL) {
        te_checkin(put->master, false);
        put->master = NULL;
    }
    if (is_again) {
        cl_write_list_doubt(list, put);
        status = write_plainly(put, node, list, 1, failure);
    }
    return status;
}

/* Replica `replica` of every item that has one on `node`, and that is not written yet. */
static ms_status write_node(cl_putting *put, cl_node *node, uint32_t replica_index,
                            cl_node *const *nodes, bool may_relay, bool *is_done,
                            cl_failure *failure) {
    cl_client *client = put->client;
    size_t writes = 0;
    uint64_t bytes = 0;
    for (size_t i = 0; i < put->count; i++)
        if (nodes[i] == node) {
            writes += cl_runs_max(&put->items[i],
                                  put->states[i].grant->replicas[replica_index].extent_count);
            bytes += put->items[i].size;
        }
    if (cl_put_avoids(put, node)) {
        for (size_t i = 0; i < put->count; i++)
            if (nodes[i] == node)
                cl_put_replica_failed(put, i, MS_UNAVAILABLE);
        return cl_fail(failure, MS_UNAVAILABLE, "write", node->name,
                       "it has not answered and is asked again in the background");
    }
    const int64_t began_ns = te_now_ns();
    put->write_ns = cl_put_limit(put, node, bytes);
    cl_write_list list;
    ms_status status = cl_write_list_open(&list, writes);
    bool staged_any = false;
    /* Through a staging buffer is faster for one value, but not if it has to wait for the buffer. */
    const uint64_t inline_max =
        put->count == 1 && is_staging_free(client) ? CL_INLINE_WRITE_MAX : CL_INLINE_BATCH_MAX;
    for (size_t i = 0; i < put->count && status == MS_OK; i++) {
        if (nodes[i] != node || put->states[i].sealed & 1ull << replica_index)
            continue;
        const cl_replica *replica = &put->states[i].grant->replicas[replica_index];
        uint32_t source = 0;
        uint64_t source_offset = 0;
        bool is_mapped = node->is_local && put->items[i].size > CL_INLINE_WRITE_MAX &&
                         put->items[i].pieces == NULL &&
                         te_share(node->writing, put->items[i].memory, put->items[i].size, &source,
                                  &source_offset, put->write_ns) == MS_OK;
        if (!is_mapped && node->is_local && put->items[i].size > inline_max) {
            /* Once: of its frames only the last has a seal, so nothing would hold back a late one of a first attempt, which
             * copies from a buffer that others may have by then. */
            ms_status staged = write_staged(put, i, replica, node);
            if (staged == MS_OK) {
                put->states[i].sealed |= 1ull << replica_index;
                atomic_fetch_add_explicit(&client->put_bytes_local, put->items[i].size,
                                          memory_order_relaxed);
            } else {
                cl_put_replica_failed(put, i, staged);
                status = cl_is_transport(staged) ? staged : MS_OK;
            }
            staged_any = true;
            continue;
        }
        if (source != 0)
            atomic_fetch_add_explicit(&client->put_bytes_local, put->items[i].size,
                                      memory_order_relaxed);
        cl_write_list_add(&list, put, i, replica, source, source_offset);
    }
    if (status == MS_OK)
        status = list.seals.status;
    if (status == MS_OK && list.count > 0) {
        if (may_relay && !staged_any && list.count <= CL_WRITE_ITEMS_MAX &&
            list.payload_bytes <= CL_RELAY_BYTES_MAX) {
            status = write_relayed(put, node, &list, is_done, failure);
        } else {
            status = write_plainly(put, node, &list, 1ull << replica_index, failure);
        }
    }
    if (status == MS_OK) {
        cl_node_worked(client, node);
    } else {
        cl_put_node_failed(put, node, status, began_ns, failure);
        for (size_t i = 0; i < put->count; i++)
            if (nodes[i] == node && !(put->states[i].sealed & 1ull << replica_index)) {
                cl_put_replica_failed(put, i, status);
                put->states[i].is_unclear = true;
            }
    }
    cl_write_list_close(&list);
    return status;
}

/* Whether the server did not know memory that it was told to copy from. */
static bool forget_shares(cl_putting *put, cl_node *node, cl_node *const *nodes) {
    bool any = false;
    for (size_t i = 0; i < put->count; i++)
        if (nodes[i] == node && put->states[i].failed == MS_NOT_REGISTERED) {
            put->states[i].failed = MS_OK;
            any = true;
        }
    if (any)
        te_channel_shares_forget(node->writing);
    return any;
}

ms_status cl_put_write(cl_putting *put, bool *is_done, cl_failure *failure) {
    cl_node *scratch[16], **nodes = scratch;
    *is_done = false;
    if (put->count > 16) {
        nodes = malloc(put->count * sizeof *nodes);
        if (nodes == NULL)
            return cl_fail(failure, MS_NO_MEMORY, "write", "", "out of memory");
    }
    ms_status worst = MS_OK;
    uint32_t replicas_max = 0;
    for (size_t i = 0; i < put->count; i++)
        if (put->states[i].grant != NULL && put->states[i].grant->replica_count > replicas_max)
            replicas_max = put->states[i].grant->replica_count;
    for (uint32_t r = 0; r < replicas_max; r++) {
        cl_node *only = NULL;
        bool is_one_node = true;
        for (size_t i = 0; i < put->count; i++) {
            nodes[i] = NULL;
            const cl_location *grant = put->states[i].grant;
            if (grant == NULL || r >= grant->replica_count)
                continue;
            nodes[i] = cl_node_get(put->client, grant->replicas[r].server,
                                   grant->replicas[r].incarnation, grant->epoch, put->deadline_ns);
            if (nodes[i] == NULL) {
                cl_put_replica_failed(put, i, MS_UNAVAILABLE);
                cl_fail(failure, MS_UNAVAILABLE, "write", "",
                        "server %u is not known to this client", grant->replicas[r].server);
            }
            if (only == NULL)
                only = nodes[i];
            is_one_node = is_one_node && nodes[i] == only && nodes[i] != NULL;
            /* failed is per item over its replicas: forget the former replica's. */
        }
        bool may_relay = put->client->config.allow_relay && replicas_max == 1 && is_one_node &&
                         put->master != NULL;
        for (size_t i = 0; i < put->count; i++) {
            if (nodes[i] == NULL)
                continue;
            cl_node *node = nodes[i];
            ms_status status = write_node(put, node, r, nodes, may_relay, is_done, failure);
            /* The server had dropped our shared memory with our last connection: share it again. */
            if (!*is_done && forget_shares(put, node, nodes))
                status = write_node(put, node, r, nodes, false, is_done, failure);
            if (status != MS_OK)
                worst = status;
            for (size_t j = i; j < put->count; j++)
                if (nodes[j] == node)
                    nodes[j] = NULL;
        }
        for (size_t i = 0; i < put->count && r + 1 < replicas_max; i++)
            put->states[i].failed = MS_OK;
    }
    if (nodes != scratch)
        free(nodes);
    return worst == MS_OK || replicas_max > 1 ? MS_OK : worst;
}
