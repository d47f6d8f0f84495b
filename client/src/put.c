/* Storing objects: a grant from the master, the bytes to the servers, SEAL, put_end.
 *
 * The connection on which PUT_START went stays checked out until the put has ended: a put_end that a server
 * relays is answered there.  A relay is asked for, where the client allows it, when everything goes to one server in
 * one frame; else the client sends put_end after every SEAL was answered.  What was granted and not sealed is revoked.
 *
 * A store server that does not answer in time is left: what was granted there is revoked, and begun again with the
 * wish to be spared of it.  A master that does not answer is waited for (health.c).  The same one answers a repeated
 * request as the first time; a new one knows nothing of this put unless something was sealed: then the versions
 * tell whether it is this put that has survived.
 *
 * A large batch goes in two halves, each with requests and connections of its own: while the bytes of one half are
 * written, the master works on the other's PUT_START or PUT_END.  Small objects' bytes of both halves are under way at
 * once, so that neither master nor server waits for what this client has to do between two of their answers.
 */
#include <stdio.h>
#include <time.h>

#include "cl_internal.h"
#include "pieces.h"
#include "write_early.h"

#define ATTEMPTS_MAX 4u  /* nodes that are tried; the last one has all the time that is left */
#define HALVES_LEAST 64u /* items: fewer are through before the second half would be under way */

static uint64_t wall_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

/* ---- start ------------------------------------------------------------------------------------------------ */

/* Nobody knows what the connection would bring. */
static void master_failed(cl_putting *put, ms_status status, const char *stage,
                          cl_failure *failure) {
    char text[TE_ERROR_BYTES];
    te_channel_error(put->client->master, text);
    if (put->master != NULL)
        te_checkin(put->master, false);
    put->master = NULL;
    cl_fail(failure, status, stage, "master", "%s", text);
    if (cl_is_leaderless(status))
        cl_master_failed(put->client, put->began_ns);
}

static void write_start(const cl_putting *put, ms_writer *writer, const ms_batch *batch) {
    const cl_put_options *options = put->options;
    MS_WRITER_STRUCT(writer, batch);
    uint64_t deadline_ms = 2ull * options->timeout_ms + 1000;
    uint16_t spared[2];
    cl_nodes_troubled(put->client, spared);
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
            .preferred_server = options->preferred_server,
            .spared_first = spared[0],
            .spared_second = spared[1]};
        MS_WRITER_STRUCT(writer, &head);
        ms_writer_padded(writer, item->key, item->key_length);
    }
}

ms_hash cl_put_parent(const cl_putting *put, size_t index) {
    const cl_item *previous = index == 0 ? put->previous : &put->items[index - 1];
    return previous == NULL || !put->options->chain ? put->options->parent : previous->hash;
}

/* Sends PUT_START on put->master; start_finish says how that went. */
static void start_send(cl_putting *put, cl_failure *failure) {
    put->began_ns = te_now_ns();
    if (!put->is_started) {
        put->session = atomic_load(&put->client->session);
        put->start = cl_number_start(put->client, (uint32_t)put->pending);
        put->is_started = put->start.number != 0;
        ms_writer_reset(&put->request);
        write_start(put, &put->request, &put->start);
    }
    put->sent = put->request.status;
    if (put->sent != MS_OK) {
        cl_fail(failure, put->sent, "put_start", "",
                "the batch does not fit into a frame of %u bytes; cut it", MS_BODY_BYTES_MAX);
        return;
    }
    struct iovec body = {.iov_base = put->request.data, .iov_len = put->request.length};
    put->sent = te_send(put->master, MS_REQUEST, MS_PUT_START, 0, te_next_request(put->master),
                        cl_left_ms(put->deadline_ns), &body, 1, NULL, 0, put->deadline_ns);
    if (put->sent != MS_OK)
        master_failed(put, put->sent, "put_start", failure);
}

static void start_begin(cl_putting *put, cl_failure *failure) {
    put->began_ns = te_now_ns();
    if (!put->is_started)
        put->session = atomic_load(&put->client->session); /* the one that is lost, if it is */
    put->sent = te_checkout(put->client->master, put->deadline_ns, &put->master);
    if (put->sent == MS_OK)
        start_send(put, failure);
    else
        master_failed(put, put->sent, "put_start", failure);
}

/* Receives the grants. */
static ms_status take_grants(cl_putting *put, cl_failure *failure) {
    te_reply reply = {.grow = true};
    ms_status status = te_receive(put->master, &reply, put->deadline_ns);
    if (status != MS_OK) {
        master_failed(put, status, "put_start", failure);
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
    ms_status refused = MS_OK; /* for want of room: a sentence tells of the pool */
    if (answered != put->pending)
        ms_reader_fail(&reader);
    for (size_t i = 0; i < put->count && !reader.is_bad; i++) {
        cl_item *item = &put->items[i];
        if (item->status != MS_PENDING)
            continue;
        ms_status told = MS_OK;
        status = cl_location_parse(&reader, item->hash, reply.header.epoch, te_now_ns(),
                                   &put->states[i].grant, &told);
        if (status != MS_OK)
            break;
        if (put->states[i].grant == NULL) {
            item->status = told;
            if (told == MS_NO_SPACE || told == MS_TOO_LARGE || told == MS_UNAVAILABLE)
                refused = told;
            if (told != MS_EXISTS)
                cl_fail(failure, told, "put_start", "master", "%s", "");
        } else if (put->states[i].grant->size != item->size) {
            ms_reader_fail(&reader);
        }
    }
    ms_text text;
    if (refused != MS_OK && ms_reader_string(&reader, 1024, &text))
        cl_fail(failure, refused, "put_start", "master", "%.*s", (int)text.length, text.data);
    if (status == MS_OK && reader.is_bad)
        status = cl_fail(failure, MS_BAD_FRAME, "put_start", "master", "the answer is malformed");
    free(reply.body);
    return status;
}

static void start_forget(cl_putting *put) {
    if (put->start.number != 0)
        cl_number_end(put->client, put->start.number);
    put->start.number = 0;
    put->is_started = false;
}

/* No answer came.  True: the master, or the next one, is there, and PUT_START may be sent again: with its number, or
 * in a session in which it never was. */
static bool may_start_again(cl_putting *put) {
    if (!cl_master_wait(put->client, false, put->deadline_ns))
        return false;
    bool is_same = atomic_load(&put->client->session) == put->session;
    if (is_same && !put->is_started && put->sent == MS_OK)
        return false; /* more calls at once than there are numbers */
    if (!is_same)
        start_forget(put);
    atomic_fetch_add_explicit(&put->client->calls_repeated, 1, memory_order_relaxed);
    return true;
}

/* Takes the answer to PUT_START, whatever it is; start_finish goes on from there. */
static ms_status start_answer(cl_putting *put, cl_failure *failure) {
    if (put->sent == MS_OK && !put->is_answered)
        put->answered = take_grants(put, failure);
    put->is_answered = put->sent == MS_OK;
    return put->is_answered ? put->answered : put->sent;
}

/* The grants of the PUT_START that was sent; once more when there was no answer, or its session had ended. */
static ms_status start_finish(cl_putting *put, cl_failure *failure) {
    bool is_renewed = false;
    for (;;) {
        ms_status status = start_answer(put, failure);
        put->is_answered = false;
        if (status == MS_NOT_LEADER && put->master != NULL)
            master_failed(put, status, "put_start", failure);
        bool is_answered = put->master != NULL || !cl_is_leaderless(status);
        if (is_answered)
            cl_master_worked(put->client);
        if (is_answered && !is_renewed && (status == MS_SESSION_LOST || status == MS_WRONG_EPOCH)) {
            is_renewed = true;
            start_forget(put);
            if (put->master != NULL)
                te_checkin(put->master, false);
            put->master = NULL;
            put->began_ns = te_now_ns();
            status = cl_session_open(put->client, put->session, put->deadline_ns, failure);
            is_answered = !cl_is_leaderless(status);
            if (!is_answered)
                cl_master_failed(put->client, put->began_ns);
        } else if (is_answered) {
            start_forget(put);
            return status;
        }
        if (is_answered ? status != MS_OK : !may_start_again(put)) {
            start_forget(put);
            return status;
        }
        start_begin(put, failure);
    }
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
            put->states[i].ended = true;
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

/* Sends PUT_END; end_finish says how that went. */
static void end_begin(cl_putting *put, size_t wanted) {
    put->end.count = (uint32_t)wanted;
    put->began_ns = te_now_ns();
    ms_writer_reset(&put->request);
    write_ends(put, &put->request, wants_end);
    put->sent = put->request.status;
    if (put->sent != MS_OK)
        return;
    put->sent = MS_UNAVAILABLE;
    put->is_end_asked = put->master != NULL;
    if (!put->is_end_asked)
        return; /* end_finish asks, over a connection of its own */
    struct iovec body = {.iov_base = put->request.data, .iov_len = put->request.length};
    put->sent = te_send(put->master, MS_REQUEST, MS_PUT_END, 0, te_next_request(put->master),
                        cl_left_ms(put->deadline_ns), &body, 1, NULL, 0, put->deadline_ns);
    if (put->sent != MS_OK) {
        te_checkin(put->master, false);
        put->master = NULL;
    }
}

static ms_status end_finish(cl_putting *put, size_t wanted, cl_failure *failure) {
    te_reply reply = {.grow = true};
    ms_status status = put->sent;
    if (status == MS_OK) {
        ms_status came = te_receive(put->master, &reply, put->deadline_ns);
        status = came == MS_OK ? (ms_status)reply.header.status : came;
        if (came != MS_OK || cl_is_leaderless(status)) {
            te_checkin(put->master, false);
            put->master = NULL;
        }
    }
    /* The number makes a repeat harmless; a new master has never heard of it. */
    bool is_asked = put->is_end_asked;
    while (status != MS_OK && put->master == NULL && cl_is_leaderless(status)) {
        if (is_asked)
            cl_master_failed(put->client, put->began_ns);
        is_asked = true;
        if (put->end.number == 0 || !cl_master_wait(put->client, false, put->deadline_ns))
            break;
        if (atomic_load(&put->client->session) != put->session) {
            status = MS_SESSION_LOST;
            break;
        }
        struct iovec body = {.iov_base = put->request.data, .iov_len = put->request.length};
        free(reply.body);
        reply = (te_reply){.grow = true};
        put->began_ns = te_now_ns();
        status = te_call(put->client->master, MS_PUT_END, 0, &body, 1, &reply, put->deadline_ns);
        if (status == MS_OK)
            status = (ms_status)reply.header.status;
        if (status == MS_OK)
            break;
    }
    if (status == MS_OK)
        status = take_ends(put, reply.body, reply.header.body_length, wanted);
    if (status != MS_OK)
        cl_fail(failure, status, "put_end", "master", "%s", ms_status_name(status));
    free(reply.body);
    return status;
}

/* Nobody has answered put_end, and whoever leads now learns of objects from the store servers: what they have
 * sealed is stored.  Only a put can be told by its version: that of an upsert proves nothing about the old one. */
static bool is_unanswered(const cl_putting *put, size_t i) {
    return put->items[i].status == MS_PENDING && put->states[i].sealed != 0;
}

static ms_status find_sealed(cl_putting *put, ms_status failed, cl_failure *failure) {
    bool is_lost = failed == MS_SESSION_LOST || failed == MS_WRONG_EPOCH;
    if (!is_lost || put->options->flags & MS_PUT_UPSERT)
        return failed;
    cl_location **locations = calloc(put->count, sizeof *locations);
    cl_item *items = malloc(put->count * sizeof *items);
    bool has_memory = locations != NULL && items != NULL;
    ms_status status = failed;
    for (size_t i = 0; has_memory && i < put->count; i++) {
        items[i] = put->items[i];
        items[i].status = is_unanswered(put, i) ? MS_PENDING : MS_OK;
    }
    if (has_memory &&
        cl_lookup(put->client, items, put->count, locations, put->deadline_ns, failure) == MS_OK) {
        status = MS_OK;
        for (size_t i = 0; i < put->count; i++) {
            if (!is_unanswered(put, i))
                continue;
            put->items[i].status = failed;
            if (locations[i] != NULL && locations[i]->version == put->states[i].grant->version) {
                put->items[i].status = MS_OK;
                put->items[i].replica_count = locations[i]->replica_count;
            } else {
                status = failed;
            }
        }
    }
    for (size_t i = 0; locations != NULL && i < put->count; i++)
        if (locations[i] != NULL)
            cl_location_release(locations[i]);
    free(locations);
    free(items);
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
        status = cl_master_check(put->client, "revoke", 0, NULL);
    if (status == MS_OK)
        status =
            te_call(put->client->master, MS_REVOKE, 0, &body, 1, &reply, te_now_ns() + 500000000);
    ms_array statuses;
    if (status == MS_OK && reply.header.status == MS_OK &&
        ms_read_array(reply.body, reply.header.body_length, sizeof(uint32_t), &statuses) &&
        statuses.count == wanted) {
        uint32_t at = 0;
        for (size_t i = 0; i < put->count; i++) {
            if (!wants_revoke(put, i))
                continue;
            ms_status told = (ms_status)ms_array_u32(statuses, at++);
            if (told == MS_COMPLETE) { /* the relayed put_end had arrived after all: it is stored */
                put->states[i].ended = true;
                put->items[i].status = MS_OK;
                put->items[i].replica_count = 1;
            }
            /* GONE: the master had taken it back by itself, if no put_end can have come before. */
            put->states[i].is_revoked =
                told == MS_OK || (told == MS_GONE && put->states[i].sealed == 0 &&
                                  !put->states[i].is_unclear && !put->client->config.allow_relay);
        }
    }
    cl_number_end(put->client, put->end.number);
    put->end.number = ended;
    free(reply.body);
    ms_writer_close(&request);
}

/* ---- counting --------------------------------------------------------------------------------------------------- */

static void count_puts(cl_client *client, cl_item *items, size_t count) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; i++)
        if (items[i].status == MS_OK)
            bytes += items[i].bytes = items[i].size;
    atomic_fetch_add_explicit(&client->puts, count, memory_order_relaxed);
    atomic_fetch_add_explicit(&client->put_bytes, bytes, memory_order_relaxed);
}

/* Items with fewer sealed replicas than the caller insists on fail; returns how many others there are. */
static size_t count_sealed(cl_putting *put) {
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
    return wanted;
}

/* The seals come before the bytes on the wire, and end in the server's check of them. */
static void compute_checksums(cl_putting *put) {
    put->object_flags |= MS_OBJECT_HAS_CHECKSUM;
    for (size_t i = 0; i < put->count; i++)
        if (put->states[i].grant != NULL)
            put->states[i].checksum = cl_item_checksum(&put->items[i], put->items[i].size);
}

/* ---- one put, or a half of one ------------------------------------------------------------------------ */

/* `count` items of a put on their way through PUT_START, the servers and PUT_END. */
typedef struct put_part {
    cl_putting put;
    cl_write_early early;
    bool has_grants, is_early; /* is asked for; its bytes are under way */
    size_t wanted;             /* objects that PUT_END names */
    ms_status status;
} put_part;

static size_t count_pending(const cl_item *items, size_t count) {
    size_t pending = 0;
    for (size_t i = 0; i < count; i++)
        pending += items[i].status == MS_PENDING;
    return pending;
}

/* `count` items of `put` from `first` on, with an eye on the requests' size. */
static void part_open(put_part *part, const cl_putting *put, size_t first, size_t count) {
    cl_putting *own = &part->put;
    *own = *put;
    own->items = put->items + first;
    own->previous = first == 0 ? NULL : &put->items[first - 1];
    own->count = count;
    own->states = put->states + first;
    own->pending = count_pending(own->items, count);
    own->request = count == 1 ? ms_writer_fixed(own->request_scratch, sizeof own->request_scratch)
                              : ms_writer_growable(MS_BODY_BYTES_MAX);
    part->has_grants = part->is_early = false;
    part->wanted = 0;
}

/* Waits for the grants. */
static void part_grant(put_part *part, cl_failure *failure) {
    cl_putting *put = &part->put;
    if (part->has_grants)
        return;
    part->has_grants = true;
    part->status = start_finish(put, failure);
    if (part->status != MS_OK)
        return;
    if (put->client->config.checksums != CL_CHECKSUMS_OFF)
        compute_checksums(put);
    put->end = cl_number_start(put->client, 0);
}

/* Sends the bytes, if they are few, and does not wait for the answer: behind those of `before`, or NULL. */
static bool part_send(put_part *part, put_part *before, cl_failure *failure) {
    part_grant(part, failure);
    part->is_early =
        part->status == MS_OK &&
        cl_write_early_begin(&part->early, &part->put, before == NULL ? NULL : &before->early);
    return part->is_early;
}

/* Bytes and seals, where they are not under way; when they are there, PUT_END is. */
static void part_write(put_part *part, cl_failure *failure) {
    cl_putting *put = &part->put;
    part_grant(part, failure);
    if (part->status != MS_OK)
        return;
    part->status = part->is_early ? cl_write_early_end(&part->early, put, failure)
                                  : cl_put_write(put, &put->is_relayed, failure);
    part->wanted = put->is_relayed ? 0 : count_sealed(put);
    if (part->wanted != 0)
        end_begin(put, part->wanted);
}

/* Every item has its status afterwards. */
static ms_status part_finish(put_part *part, cl_failure *failure) {
    cl_putting *put = &part->put;
    ms_status ended = part->wanted == 0 ? MS_OK : end_finish(put, part->wanted, failure);
    if (ended != MS_OK)
        ended = find_sealed(put, ended, failure);
    if (put->end.number != 0)
        cl_number_end(put->client, put->end.number);
    ms_status status = part->status == MS_OK ? ended : part->status;
    cl_fail_all(put->items, put->count, status == MS_OK ? MS_UNAVAILABLE : status);
    revoke(put);
    if (put->master != NULL)
        te_checkin(put->master, true);
    for (size_t i = 0; i < put->count; i++)
        if (put->states[i].grant != NULL)
            cl_location_release(put->states[i].grant);
    ms_writer_close(&put->request);
    return status;
}

static ms_status part_whole(put_part *part, cl_failure *failure) {
    start_begin(&part->put, failure);
    part_write(part, failure);
    return part_finish(part, failure);
}

/* ---- the call --------------------------------------------------------------------------------------------------- */

/* Whether `part` has its grants before the bytes of `early` are answered.  A master that has to make room answers late,
 * and what is stored must not wait for that with its PUT_END. */
static bool is_answered_first(const put_part *part, const put_part *early) {
    int which = 1;
    return part->put.sent == MS_OK && early->early.sent == MS_OK &&
           te_wait_either(part->put.master, early->early.connection, &which, early->put.write_ns) ==
               MS_OK &&
           which == 0;
}

static ms_status put_in_halves(const cl_putting *put, cl_failure *failure) {
    put_part first, second;
    part_open(&first, put, 0, put->count / 2);
    part_open(&second, put, put->count / 2, put->count - put->count / 2);
    start_begin(&first.put, failure);
    /* Callers that each hold one connection and wait for a second would wait for ever. */
    bool is_at_once =
        te_checkout_try(put->client->master, put->deadline_ns, &second.put.master) == MS_OK;
    if (!is_at_once) {
        part_write(&first, failure);
        ms_status status = part_finish(&first, failure);
        ms_status later = part_whole(&second, failure);
        return status != MS_OK ? status : later;
    }
    start_send(&second.put, failure);
    /* The same for what comes after grants that were not given at the first time of asking. */
    if (part_send(&first, NULL, failure) && is_answered_first(&second, &first) &&
        start_answer(&second.put, failure) == MS_OK)
        part_send(&second, &first, failure);
    part_write(&first, failure);
    part_write(&second, failure);
    ms_status status = part_finish(&first, failure);
    ms_status later = part_finish(&second, failure);
    return status != MS_OK ? status : later;
}

/* Whether the item may be begun again: its grant was given up, and no server can have made an object of it. */
static bool is_movable(const cl_item *item, const cl_put_state *state) {
    bool is_of_node = cl_is_transport(item->status) || item->status == MS_WRONG_INCARNATION ||
                      item->status == MS_WRONG_EPOCH || item->status == MS_GONE;
    return is_of_node && state->grant != NULL &&
           (state->is_revoked || (state->sealed == 0 && !state->is_unclear));
}

/* Makes pending again what failed at its nodes; how many that are. */
static size_t move_on(cl_putting *put) {
    size_t moved = 0;
    if (put->options->group != 0 || te_now_ns() >= put->deadline_ns)
        return 0;
    for (size_t i = 0; i < put->count; i++) {
        if (is_movable(&put->items[i], &put->states[i])) {
            put->items[i].status = MS_PENDING;
            moved++;
        }
        put->states[i] = (cl_put_state){0};
    }
    atomic_fetch_add_explicit(&put->client->puts_moved, moved, memory_order_relaxed);
    return moved;
}

static ms_status put_whole(const cl_putting *put, cl_failure *failure) {
    put_part whole;
    part_open(&whole, put, 0, put->count);
    return part_whole(&whole, failure);
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
                                    (options->flags & MS_PUT_SOFT_PIN ? MS_OBJECT_SOFT_PIN : 0) |
                                    ms_wanted_flags(options->replica_count))};
    if (count > 16) {
        put.states = malloc(count * sizeof *put.states);
        if (put.states == NULL) {
            cl_fail_all(items, count, MS_NO_MEMORY);
            return cl_fail(failure, MS_NO_MEMORY, "put", "", "out of memory");
        }
    }
    memset(put.states, 0, count * sizeof *put.states);
    /* A group appears together: in one request. */
    bool in_halves = pending == count && count >= HALVES_LEAST && options->group == 0 &&
                     !client->config.allow_relay;
    ms_status status = cl_master_check(client, "put_start", deadline_ns, failure);
    if (status == MS_OK)
        status = in_halves ? put_in_halves(&put, failure) : put_whole(&put, failure);
    for (unsigned attempt = 2; attempt <= ATTEMPTS_MAX && move_on(&put) != 0; attempt++) {
        put.is_last = attempt == ATTEMPTS_MAX;
        status = put_whole(&put, failure);
    }
    cl_fail_all(items, count, status);
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
