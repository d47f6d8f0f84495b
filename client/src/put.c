/* Storing objects: a grant from the master, the bytes to the servers, SEAL, put_end.
 *
 * The connection on which PUT_START went stays checked out until the put has ended: a put_end that a server
 * relays is answered there.  A relay is asked for, where the client allows it, when everything goes to one server in
 * one frame; else the client sends put_end after every SEAL was answered.  What was granted and not sealed is revoked.
 */
#include <stdio.h>
#include <time.h>

#include "cl_internal.h"
#include "pieces.h"
#include "put.h"

static uint64_t wall_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- start ------------------------------------------------------------------------------------------------ */

static void write_start(cl_putting *put, ms_writer *writer, const ms_batch *batch) {
    const cl_put_options *options = put->options;
    MS_WRITER_STRUCT(writer, batch);
    uint64_t deadline_ms = 2ull * options->timeout_ms + 1000;
    for (size_t i = 0; i < put->count; i++) {
        const cl_item *item = &put->items[i];
        if (item->status != MS_PENDING)
            continue;
        ms_put_item head = {
            .hash = item->hash,
            .size = item->size,
            .ttl_ms = options->ttl_ms < UINT32_MAX ? (uint32_t)options->ttl_ms : UINT32_MAX,
            .deadline_ms = deadline_ms < UINT32_MAX ? (uint32_t)deadline_ms : UINT32_MAX,
            .parent = cl_put_parent(put, i),
            .group = options->group,
            .key_length = (uint16_t)item->key_length,
            .replica_count = (uint8_t)options->replica_count,
            .replica_count_min = (uint8_t)options->replica_count_min,
            .flags = options->flags,
            .preferred_server = options->preferred_server};
        MS_WRITER_STRUCT(writer, &head);
        ms_writer_padded(writer, item->key, item->key_length);
    }
}

ms_hash cl_put_parent(const cl_putting *put, size_t index) {
    if (index == 0 || !put->options->chain)
        return put->options->parent;
    return put->items[index - 1].hash;
}

/* Sends PUT_START on put->master and takes the grants. */
static ms_status exchange_start(cl_putting *put, const ms_writer *request, size_t pending,
                                cl_failure *failure) {
    struct iovec body = {.iov_base = request->data, .iov_len = request->length};
    te_reply reply = {.grow = true};
    ms_status status =
        te_send(put->master, MS_REQUEST, MS_PUT_START, 0, te_next_request(put->master),
                cl_left_ms(put->deadline_ns), &body, 1, NULL, 0, put->deadline_ns);
    if (status == MS_OK)
        status = te_receive(put->master, &reply, put->deadline_ns);
    if (status != MS_OK) {
        te_checkin(put->master, false);
        put->master = NULL;
        char text[TE_ERROR_BYTES];
        te_channel_error(put->client->master, text);
        cl_fail(failure, status, "put_start", "master", "%s", text);
        free(reply.body);
        return status;
    }
    status = (ms_status)reply.header.status;
    if (status != MS_OK) {
        cl_fail(failure, status, "put_start", "master", "%.*s", (int)reply.header.body_length,
                reply.body != NULL ? (const char *)reply.body : "");
        free(reply.body);
        return status;
    }
    ms_reader reader = ms_reader_of(reply.body, reply.header.body_length);
    uint32_t answered = ms_reader_list(&reader, sizeof(ms_location));
    bool no_space = false;
    if (answered != pending)
        ms_reader_fail(&reader);
    for (size_t i = 0; i < put->count && !reader.is_bad; i++) {
        cl_item *item = &put->items[i];
        if (item->status != MS_PENDING)
            continue;
        ms_status told = MS_OK;
        status = cl_location_parse(&reader, item->hash, te_now_ns(), &put->states[i].grant, &told);
        if (status != MS_OK)
            break;
        if (put->states[i].grant == NULL) {
            item->status = told;
            no_space = no_space || told == MS_NO_SPACE;
            if (told != MS_EXISTS)
                cl_fail(failure, told, "put_start", "master", "%s", "");
        } else if (put->states[i].grant->size != item->size) {
            ms_reader_fail(&reader);
        }
    }
    ms_text text;
    if (no_space && ms_reader_string(&reader, 1024, &text))
        cl_fail(failure, MS_NO_SPACE, "put_start", "master", "%.*s", (int)text.length, text.data);
    if (status == MS_OK && reader.is_bad)
        status = cl_fail(failure, MS_BAD_FRAME, "put_start", "master", "the answer is malformed");
    free(reply.body);
    return status;
}

static ms_status start(cl_putting *put, size_t pending, cl_failure *failure) {
    cl_client *client = put->client;
    uint8_t scratch[2048];
    ms_writer request = put->count == 1 ? ms_writer_fixed(scratch, sizeof scratch)
                                        : ms_writer_growable(MS_BODY_BYTES_MAX);
    ms_status status = MS_OK;
    for (int attempt = 0; attempt < 2; attempt++) {
        uint64_t session = atomic_load(&client->session);
        ms_batch batch = cl_number_start(client, (uint32_t)pending);
        ms_writer_reset(&request);
        write_start(put, &request, &batch);
        status = request.status;
        if (status != MS_OK) {
            cl_fail(failure, status, "put_start", "",
                    "the batch does not fit into a frame of %u bytes; cut it", MS_BODY_BYTES_MAX);
        } else {
            status = te_checkout(client->master, put->deadline_ns, &put->master);
            if (status == MS_OK) {
                status = exchange_start(put, &request, pending, failure);
            } else {
                char text[TE_ERROR_BYTES];
                te_channel_error(client->master, text);
                cl_fail(failure, status, "put_start", "master", "%s", text);
            }
        }
        cl_number_end(client, batch.number);
        if ((status != MS_SESSION_LOST && status != MS_WRONG_EPOCH) || attempt == 1)
            break;
        if (put->master != NULL)
            te_checkin(put->master, false);
        put->master = NULL;
        status = cl_session_open(client, session, put->deadline_ns, failure);
        if (status != MS_OK)
            break;
    }
    if (put->count != 1)
        ms_writer_close(&request);
    return status;
}

/* ---- seals --------------------------------------------------------------------------------------------------- */

void cl_put_write_seal(const cl_putting *put, size_t index, uint16_t part, uint16_t part_count,
                       ms_writer *writer) {
    const cl_item *item = &put->items[index];
    ms_seal head = {.hash = item->hash,
                    .size = item->size,
                    .expiry_ms = put->expiry_ms,
                    .parent = cl_put_parent(put, index),
                    .group = put->options->group,
                    .number = put->end.number,
                    .checksum = put->states[index].checksum,
                    .part = part,
                    .part_count = part_count,
                    .key_length = (uint16_t)item->key_length,
                    .flags = put->object_flags,
                    .tenant_length = (uint8_t)put->client->tenant_length};
    ms_writer_seal(writer, &head, put->client->tenant, item->key);
}

/* ---- end ------------------------------------------------------------------------------------------------------- */

static bool wants_end(const cl_putting *put, size_t i) {
    return put->items[i].status == MS_PENDING && put->states[i].grant != NULL &&
           put->states[i].sealed != 0;
}

static void write_ends(const cl_putting *put, ms_writer *writer,
                       bool (*wanted)(const cl_putting *, size_t)) {
    MS_WRITER_STRUCT(writer, &put->end);
    for (size_t i = 0; i < put->count; i++) {
        if (!wanted(put, i))
            continue;
        ms_end_item end = {.hash = put->items[i].hash,
                           .version = put->states[i].grant->version,
                           .replica_mask = put->states[i].sealed,
                           .checksum = put->states[i].checksum,
                           .flags = put->object_flags & MS_OBJECT_HAS_CHECKSUM};
        MS_WRITER_STRUCT(writer, &end);
    }
}

/* The statuses of a PUT_END, relayed or not, into the items that wanted one. */
static ms_status take_ends(cl_putting *put, const uint8_t *body, size_t length, size_t wanted) {
    ms_array statuses;
    if (!ms_read_array(body, length, sizeof(uint32_t), &statuses) || statuses.count != wanted)
        return MS_BAD_FRAME;
    uint32_t at = 0;
    for (size_t i = 0; i < put->count; i++)
        if (wants_end(put, i)) {
            ms_status status = (ms_status)ms_array_u32(statuses, at++);
            put->items[i].status = status;
            put->items[i].replica_count = (uint32_t)__builtin_popcountll(put->states[i].sealed);
            /* COMPLETE cannot come from a first put_end; from a repeated one it means that it is done. */
            if (status == MS_COMPLETE)
                put->items[i].status = MS_OK;
        }
    return MS_OK;
}

ms_status cl_put_take_relayed(cl_putting *put, cl_failure *failure) {
    uint8_t scratch[4096];
    te_reply reply = {.body = scratch, .body_size = sizeof scratch};
    size_t wanted = 0;
    for (size_t i = 0; i < put->count; i++)
        wanted += wants_end(put, i);
    if (wanted > 512)
        reply = (te_reply){.grow = true};
    ms_status status = te_receive(put->master, &reply, put->deadline_ns);
    if (status == MS_OK &&
        (reply.header.method != MS_PUT_END || reply.header.request != put->end.number))
        status = MS_BAD_FRAME;
    if (status == MS_OK && reply.header.status != MS_OK)
        status = (ms_status)reply.header.status;
    else if (status == MS_OK)
        status = take_ends(put, reply.body, reply.header.body_length, wanted);
    if (status != MS_OK) {
        te_checkin(put->master, false);
        put->master = NULL;
        cl_fail(failure, status, "put_end", "master", "%s", "");
    } else {
        atomic_fetch_add_explicit(&put->client->relayed_ends, 1, memory_order_relaxed);
    }
    if (reply.grow)
        free(reply.body);
    return status;
}

static ms_status end(cl_putting *put, size_t wanted, cl_failure *failure) {
    uint8_t scratch[1024];
    ms_writer request = wanted <= 16 ? ms_writer_fixed(scratch, sizeof scratch)
                                     : ms_writer_growable(MS_BODY_BYTES_MAX);
    put->end.count = (uint32_t)wanted;
    write_ends(put, &request, wants_end);
    te_reply reply = {.grow = true};
    ms_status status = request.status;
    struct iovec body = {.iov_base = request.data, .iov_len = request.length};
    if (status == MS_OK && put->master != NULL) {
        status = te_send(put->master, MS_REQUEST, MS_PUT_END, 0, te_next_request(put->master),
                         cl_left_ms(put->deadline_ns), &body, 1, NULL, 0, put->deadline_ns);
        if (status == MS_OK)
            status = te_receive(put->master, &reply, put->deadline_ns);
        if (status == MS_OK) {
            status = (ms_status)reply.header.status;
        } else {
            te_checkin(put->master, false);
            put->master = NULL;
        }
    } else if (status == MS_OK) {
        status = MS_UNAVAILABLE;
    }
    if (cl_is_transport(status) && te_now_ns() < put->deadline_ns) {
        /* The number makes a repeat harmless. */
        free(reply.body);
        reply = (te_reply){.grow = true};
        status = te_call(put->client->master, MS_PUT_END, 0, &body, 1, &reply, put->deadline_ns);
        if (status == MS_OK)
            status = (ms_status)reply.header.status;
    }
    if (status == MS_OK)
        status = take_ends(put, reply.body, reply.header.body_length, wanted);
    if (status != MS_OK)
        cl_fail(failure, status, "put_end", "master", "%s", ms_status_name(status));
    free(reply.body);
    if (wanted > 16)
        ms_writer_close(&request);
    return status;
}

static bool wants_revoke(const cl_putting *put, size_t i) {
    return put->states[i].grant != NULL && put->items[i].status != MS_OK && !put->states[i].ended;
}

/* Gives back what was granted and did not become an object, so that only a dead client loses its session. */
static void revoke(cl_putting *put) {
    size_t wanted = 0;
    for (size_t i = 0; i < put->count; i++)
        wanted += wants_revoke(put, i);
    if (wanted == 0)
        return;
    ms_writer request = ms_writer_growable(MS_BODY_BYTES_MAX);
    uint64_t ended = put->end.number;
    put->end = cl_number_start(put->client, (uint32_t)wanted);
    write_ends(put, &request, wants_revoke);
    te_reply reply = {.grow = true};
    struct iovec body = {.iov_base = request.data, .iov_len = request.length};
    /* The put's own deadline at the master is later than the call's: there is time for this. */
    ms_status status = request.status;
    if (status == MS_OK)
        status =
            te_call(put->client->master, MS_REVOKE, 0, &body, 1, &reply, te_now_ns() + 500000000);
    ms_array statuses;
    if (status == MS_OK && reply.header.status == MS_OK &&
        ms_read_array(reply.body, reply.header.body_length, sizeof(uint32_t), &statuses) &&
        statuses.count == wanted) {
        uint32_t at = 0;
        for (size_t i = 0; i < put->count; i++)
            /* The relayed put_end had arrived after all: it is stored. */
            if (wants_revoke(put, i) && ms_array_u32(statuses, at++) == MS_COMPLETE) {
                put->states[i].ended = true;
                put->items[i].status = MS_OK;
                put->items[i].replica_count = 1;
            }
    }
    cl_number_end(put->client, put->end.number);
    put->end.number = ended;
    free(reply.body);
    ms_writer_close(&request);
}

/* The seals come before the bytes on the wire, and end in the server's check of them. */
static void compute_checksums(cl_putting *put) {
    put->object_flags |= MS_OBJECT_HAS_CHECKSUM;
    for (size_t i = 0; i < put->count; i++)
        if (put->states[i].grant != NULL)
            put->states[i].checksum = cl_item_checksum(&put->items[i], put->items[i].size);
}

/* ---- the call --------------------------------------------------------------------------------------------------- */

static void count_puts(cl_client *client, cl_item *items, size_t count) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        if (items[i].status == MS_OK)
            bytes += items[i].bytes = items[i].size;
    atomic_fetch_add_explicit(&client->puts, count, memory_order_relaxed);
    atomic_fetch_add_explicit(&client->put_bytes, bytes, memory_order_relaxed);
}

/* Items with fewer sealed replicas than the caller insists on fail; the others are ended. */
static ms_status finish(cl_putting *put, cl_failure *failure) {
    size_t wanted = 0;
    for (size_t i = 0; i < put->count; i++) {
        cl_item *item = &put->items[i];
        if (item->status != MS_PENDING || put->states[i].grant == NULL)
            continue;
        uint32_t sealed = (uint32_t)__builtin_popcountll(put->states[i].sealed);
        if (sealed == 0 || (put->options->flags & MS_PUT_STRICT_REPLICAS &&
                            sealed < put->options->replica_count_min)) {
            item->status = put->states[i].failed != MS_OK ? put->states[i].failed : MS_UNAVAILABLE;
            continue;
        }
        wanted++;
    }
    if (wanted == 0)
        return MS_OK;
    ms_status status = end(put, wanted, failure);
    if (status == MS_OK)
        for (size_t i = 0; i < put->count; i++)
            if (put->states[i].sealed != 0 && put->items[i].status != MS_PENDING)
                put->states[i].ended = true;
    return status;
}

ms_status cl_put(cl_client *client, cl_item *items, size_t count, const cl_put_options *options,
                 int64_t deadline_ns, cl_failure *failure) {
    size_t pending = cl_hash_items(client, items, count);
    for (size_t i = 0; i < count; i++) {
        items[i].replica_count = 0;
        if (items[i].status == MS_PENDING && items[i].size > MS_VALUE_BYTES_MAX) {
            items[i].status = MS_TOO_LARGE;
            pending--;
        }
    }
    if (pending == 0)
        return MS_OK;
    if (pending > MS_BATCH_ITEMS_MAX) {
        cl_fail_all(items, count, MS_BAD_REQUEST);
        return cl_fail(failure, MS_BAD_REQUEST, "put", "", "a batch has at most %u keys; cut it",
                       MS_BATCH_ITEMS_MAX);
    }
    cl_put_state scratch[16];
    cl_putting put = {.client = client,
                      .items = items,
                      .count = count,
                      .options = options,
                      .deadline_ns = deadline_ns,
                      .states = scratch,
                      .expiry_ms = options->ttl_ms != 0 ? wall_ms() + options->ttl_ms : 0,
                      .object_flags =
                          (uint8_t)((options->flags & MS_PUT_HARD_PIN ? MS_OBJECT_HARD_PIN : 0) |
                                    (options->flags & MS_PUT_SOFT_PIN ? MS_OBJECT_SOFT_PIN : 0))};
    if (count > 16) {
        put.states = malloc(count * sizeof *put.states);
        if (put.states == NULL) {
            cl_fail_all(items, count, MS_NO_MEMORY);
            return cl_fail(failure, MS_NO_MEMORY, "put", "", "out of memory");
        }
    }
    memset(put.states, 0, count * sizeof *put.states);
    ms_status status = start(&put, pending, failure);
    if (status == MS_OK) {
        if (client->config.checksums != CL_CHECKSUMS_OFF)
            compute_checksums(&put);
        put.end = cl_number_start(client, 0);
        bool is_done = false;
        status = cl_put_write(&put, &is_done, failure);
        if (is_done) {
            for (size_t i = 0; i < count; i++)
                put.states[i].ended = put.items[i].status != MS_PENDING;
        } else {
            ms_status ended = finish(&put, failure);
            if (status == MS_OK)
                status = ended;
        }
        cl_number_end(client, put.end.number);
    }
    cl_fail_all(items, count, status == MS_OK ? MS_UNAVAILABLE : status);
    revoke(&put);
    if (put.master != NULL)
        te_checkin(put.master, true);
    for (size_t i = 0; i < count; i++)
        if (put.states[i].grant != NULL)
            cl_location_release(put.states[i].grant);
    if (put.states != scratch)
        free(put.states);
    if (status != MS_OK)
        atomic_fetch_add_explicit(&client->failure_count, 1, memory_order_relaxed);
    count_puts(client, items, count);
    for (size_t i = 0; i < count; i++)
        if (items[i].status == MS_OK || items[i].status == MS_EXISTS)
            return MS_OK; /* items tell one by one */
    return status;
}
