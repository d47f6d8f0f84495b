/* Questions to the master that carry hashes only: exists, look-up, match_prefix, pins, touches; and remove. */
#include <stdio.h>

#include "cl_internal.h"

/* Hashes of the pending items, behind a list's head; memory from `scratch` when it fits. */
typedef struct hash_list {
    uint32_t head[2];
    ms_hash scratch[CL_SCRATCH_ITEMS];
    ms_hash *hashes;
} hash_list;

static ms_status list_make(hash_list *list, const cl_item *items, size_t count, size_t pending) {
    list->hashes = list->scratch;
    if (pending > CL_SCRATCH_ITEMS) {
        list->hashes = malloc(pending * sizeof *list->hashes);
        if (list->hashes == NULL)
            return MS_NO_MEMORY;
    }
    list->head[0] = (uint32_t)pending;
    list->head[1] = 0;
    size_t at = 0;
    for (size_t i = 0; i < count; i++)
        if (items[i].status == MS_PENDING)
            list->hashes[at++] = items[i].hash;
    return MS_OK;
}

static void list_free(hash_list *list) {
    if (list->hashes != list->scratch)
        free(list->hashes);
}

static ms_status too_many(cl_item *items, size_t count, const char *stage, cl_failure *failure) {
    cl_fail_all(items, count, MS_BAD_REQUEST);
    return cl_fail(failure, MS_BAD_REQUEST, stage, "", "a batch has at most %u keys; cut it",
                   MS_BATCH_ITEMS_MAX);
}

static ms_status bad_answer(cl_item *items, size_t count, const char *stage, cl_failure *failure) {
    cl_fail_all(items, count, MS_BAD_FRAME);
    return cl_fail(failure, MS_BAD_FRAME, stage, "master", "the answer is malformed");
}

ms_status cl_exists(cl_client *client, cl_item *items, size_t count, int64_t deadline_ns,
                    cl_failure *failure) {
    size_t pending = cl_hash_items(client, items, count);
    if (pending == 0)
        return MS_OK;
    if (pending > MS_BATCH_ITEMS_MAX)
        return too_many(items, count, "exists", failure);
    hash_list list;
    uint8_t scratch[2048], *there = pending <= sizeof scratch ? scratch : malloc(pending);
    ms_status status = there == NULL ? MS_NO_MEMORY : list_make(&list, items, count, pending);
    if (status != MS_OK) {
        if (there != scratch)
            free(there);
        cl_fail_all(items, count, status);
        return cl_fail(failure, status, "exists", "", "out of memory");
    }
    struct iovec body[2] = {{.iov_base = list.head, .iov_len = sizeof list.head},
                            {.iov_base = list.hashes, .iov_len = pending * sizeof *list.hashes}};
    char text[TE_ERROR_BYTES];
    te_reply reply = {.body = (uint8_t *)text,
                      .body_size = sizeof text,
                      .payload = there,
                      .payload_size = pending};
    status = cl_master_call(client, CL_REPEAT_ALWAYS, MS_EXISTS_KEYS, 0, body, 2, &reply, "exists",
                            deadline_ns, failure);
    if (status != MS_OK) {
        cl_fail_all(items, count, status);
    } else if (reply.header.payload_length != pending) {
        status = bad_answer(items, count, "exists", failure);
    } else {
        size_t at = 0;
        for (size_t i = 0; i < count; i++)
            if (items[i].status == MS_PENDING)
                items[i].status = there[at++] ? MS_OK : MS_NOT_FOUND;
    }
    list_free(&list);
    if (there != scratch)
        free(there);
    return status;
}

/* Reads `answered` locations for the pending items in turn. */
static ms_status take_locations(cl_client *client, cl_item *items, size_t count, size_t answered,
                                cl_location **locations, ms_reader *reader, uint32_t epoch,
                                int64_t sent_ns) {
    for (size_t i = 0; i < count && answered > 0; i++) {
        if (items[i].status != MS_PENDING)
            continue;
        cl_location *location;
        ms_status told,
            status = cl_location_parse(reader, items[i].hash, epoch, sent_ns, &location, &told);
        if (status != MS_OK)
            return status;
        answered--;
        if (location == NULL) {
            items[i].status = told;
            continue;
        }
        items[i].status = MS_OK;
        items[i].bytes = location->size;
        cl_location_keep(client, location);
        if (locations != NULL)
            locations[i] = location;
        else
            cl_location_release(location);
    }
    return MS_OK;
}

ms_status cl_lookup(cl_client *client, cl_item *items, size_t count, cl_location **locations,
                    int64_t deadline_ns, cl_failure *failure) {
    size_t pending = 0;
    for (size_t i = 0; i < count; i++)
        pending += items[i].status == MS_PENDING;
    if (pending == 0)
        return MS_OK;
    if (pending > MS_BATCH_ITEMS_MAX)
        return too_many(items, count, "lookup", failure);
    hash_list list;
    ms_status status = list_make(&list, items, count, pending);
    if (status != MS_OK) {
        cl_fail_all(items, count, status);
        return cl_fail(failure, status, "lookup", "", "out of memory");
    }
    struct iovec body[2] = {{.iov_base = list.head, .iov_len = sizeof list.head},
                            {.iov_base = list.hashes, .iov_len = pending * sizeof *list.hashes}};
    uint8_t scratch[16384];
    te_reply reply = {.body = scratch, .body_size = sizeof scratch};
    if (pending > 64)
        reply = (te_reply){.grow = true};
    bool grown = reply.grow;
    int64_t sent_ns = te_now_ns();
    status = cl_master_call(client, CL_REPEAT_ALWAYS, MS_LOOKUP, 0, body, 2, &reply, "lookup",
                            deadline_ns, failure);
    if (status == MS_LIMIT && !grown) { /* objects of very many extents */
        grown = true;
        reply = (te_reply){.grow = true};
        status = cl_master_call(client, CL_REPEAT_ALWAYS, MS_LOOKUP, 0, body, 2, &reply, "lookup",
                                deadline_ns, failure);
    }
    atomic_fetch_add_explicit(&client->lookups, 1, memory_order_relaxed);
    if (status != MS_OK) {
        cl_fail_all(items, count, status);
    } else {
        ms_reader reader = ms_reader_of(reply.body, reply.header.body_length);
        uint32_t answered = ms_reader_list(&reader, sizeof(ms_location));
        status = answered == pending ? take_locations(client, items, count, answered, locations,
                                                      &reader, reply.header.epoch, sent_ns)
                                     : MS_BAD_FRAME;
        if (status != MS_OK)
            status = bad_answer(items, count, "lookup", failure);
    }
    if (grown)
        free(reply.body);
    list_free(&list);
    return status;
}

bool cl_locate_cached(cl_client *client, cl_item *item) {
    if (cl_hash_items(client, item, 1) == 0)
        return false;
    cl_location *location = cl_location_find(client, item->hash, te_now_ns());
    if (location == NULL)
        return false;
    item->bytes = location->size;
    item->status = MS_OK;
    cl_location_release(location);
    return true;
}

/* Sizes of what has a location here; how many of them. */
static size_t locate_cached(cl_client *client, cl_item *items, size_t count, int64_t now_ns) {
    size_t cached = 0;
    for (size_t i = 0; i < count; i++) {
        if (items[i].status != MS_PENDING)
            continue;
        cl_location *location = cl_location_find(client, items[i].hash, now_ns);
        if (location == NULL)
            continue;
        items[i].bytes = location->size;
        items[i].status = MS_OK;
        cached++;
        cl_location_release(location);
    }
    return cached;
}

ms_status cl_locate_known(cl_client *client, cl_item *items, size_t count, int64_t deadline_ns,
                          cl_failure *failure) {
    (void)deadline_ns, (void)failure;
    size_t good = cl_hash_items(client, items, count);
    return locate_cached(client, items, count, te_now_ns()) == good ? MS_OK : MS_PENDING;
}

ms_status cl_locate(cl_client *client, cl_item *items, size_t count, int64_t deadline_ns,
                    cl_failure *failure) {
    cl_hash_items(client, items, count);
    int64_t now_ns = te_now_ns();
    /* What is known is not to miss because the master is silent about the rest: time to read it is left. */
    if (locate_cached(client, items, count, now_ns) != 0)
        deadline_ns = now_ns + (deadline_ns - now_ns) / 2;
    return cl_lookup(client, items, count, NULL, deadline_ns, failure);
}

ms_status cl_match_prefix(cl_client *client, cl_item *items, size_t count, bool pin,
                          uint32_t pin_deadline_ms, size_t *matched, int64_t deadline_ns,
                          cl_failure *failure) {
    *matched = 0;
    size_t good = cl_hash_items(client, items, count);
    if (good != count) {
        for (size_t i = 0; i < count; i++)
            if (items[i].status == MS_BAD_KEY)
                count = i; /* no prefix goes beyond a key that cannot exist */
    }
    if (count == 0)
        return MS_OK;
    if (count > MS_BATCH_ITEMS_MAX)
        return too_many(items, count, "match_prefix", failure);
    hash_list list;
    ms_status status = list_make(&list, items, count, count);
    if (status != MS_OK)
        return cl_fail(failure, status, "match_prefix", "", "out of memory");
    cl_pins_call call = {0};
    if (pin)
        status = cl_pins_call_begin(client, &call, count, "match_prefix", deadline_ns, failure);
    ms_match match = {.number = call.number,
                      .pin = pin ? MS_PIN_HOLD : MS_PIN_NONE,
                      .pin_deadline_ms = pin_deadline_ms,
                      .count = (uint32_t)count};
    struct iovec body[2] = {{.iov_base = &match, .iov_len = sizeof match},
                            {.iov_base = list.hashes, .iov_len = count * sizeof *list.hashes}};
    te_reply reply = {.grow = true};
    int64_t sent_ns = te_now_ns();
    if (status == MS_OK)
        status = cl_master_call(client, pin ? CL_REPEAT_IN_NEXT : CL_REPEAT_ALWAYS, MS_MATCH_PREFIX,
                                0, body, 2, &reply, "match_prefix", deadline_ns, failure);
    if (status == MS_OK) {
        ms_reader reader = ms_reader_of(reply.body, reply.header.body_length);
        uint32_t answered = ms_reader_list(&reader, sizeof(ms_location));
        status = !reader.is_bad && answered <= count
                     ? take_locations(client, items, count, answered, NULL, &reader,
                                      reply.header.epoch, sent_ns)
                     : MS_BAD_FRAME;
        for (uint32_t i = 0; pin && status == MS_OK && i < answered; i++)
            cl_pins_add(client, &call, items[i].hash, pin_deadline_ms);
        if (status == MS_OK)
            *matched = answered;
        else
            status = bad_answer(items, count, "match_prefix", failure);
    } else {
        cl_fail_all(items, count, status);
    }
    for (size_t i = 0; call.is_begun && status != MS_OK && i < count; i++)
        (void)cl_pins_unheard(client, &call, items[i].hash, false);
    if (pin)
        cl_pins_call_end(client, &call);
    cl_fail_all(items, count, MS_NOT_FOUND);
    free(reply.body);
    list_free(&list);
    return status;
}

/* Reads a list of u32 statuses for the pending items. */
static bool take_statuses(cl_item *items, size_t count, size_t pending, const te_reply *reply) {
    ms_array statuses;
    if (!ms_read_array(reply->body, reply->header.body_length, sizeof(uint32_t), &statuses))
        return false;
    if (statuses.count != pending)
        return false;
    uint32_t at = 0;
    for (size_t i = 0; i < count; i++)
        if (items[i].status == MS_PENDING)
            items[i].status = (ms_status)ms_array_u32(statuses, at++);
    return true;
}

/* PIN or UNPIN of the pending items as `match` says; their statuses are taken. */
static ms_status mark(cl_client *client, cl_repeat repeat, uint16_t method, const ms_match *match,
                      cl_item *items, size_t count, const char *stage, int64_t deadline_ns,
                      cl_failure *failure) {
    hash_list list;
    ms_status status = list_make(&list, items, count, match->count);
    if (status != MS_OK)
        return cl_fail(failure, status, stage, "", "out of memory");
    struct iovec body[2] = {
        {.iov_base = (void *)(uintptr_t)match, .iov_len = sizeof *match},
        {.iov_base = list.hashes, .iov_len = match->count * sizeof *list.hashes}};
    te_reply reply = {.grow = true};
    status =
        cl_master_call(client, repeat, method, 0, body, 2, &reply, stage, deadline_ns, failure);
    if (status == MS_OK && !take_statuses(items, count, match->count, &reply))
        status = bad_answer(items, count, stage, failure);
    free(reply.body);
    list_free(&list);
    return status;
}

ms_status cl_lease(cl_client *client, cl_item *items, size_t count, uint32_t lease_ms,
                   int64_t deadline_ns, cl_failure *failure) {
    size_t pending = cl_hash_items(client, items, count);
    if (pending == 0)
        return MS_OK;
    if (pending > MS_BATCH_ITEMS_MAX)
        return too_many(items, count, "lease", failure);
    ms_match match = {.pin = MS_PIN_LEASE, .pin_deadline_ms = lease_ms, .count = (uint32_t)pending};
    ms_status status =
        mark(client, CL_REPEAT_ALWAYS, MS_PIN, &match, items, count, "lease", deadline_ns, failure);
    cl_fail_all(items, count, status);
    return status;
}

static void heard_of(cl_client *client, const cl_pins_call *call, bool is_pin, cl_item *item,
                     uint32_t deadline_ms) {
    if (is_pin && item->status == MS_OK)
        cl_pins_add(client, call, item->hash, deadline_ms);
    else if (!is_pin && (item->status == MS_OK || item->status == MS_NOT_FOUND) &&
             cl_pins_drop(client, call, item->hash, item->status == MS_OK))
        item->status = MS_OK;
}

/* OK: all that was asked for is unpinned nevertheless, as far as the caller is concerned. */
static ms_status unheard_of(cl_client *client, const cl_pins_call *call, bool is_pin,
                            cl_item *items, size_t count, ms_status status) {
    bool is_certain = true;
    for (size_t i = 0; i < count; i++) {
        if (items[i].status == MS_BAD_KEY)
            continue;
        if (cl_pins_unheard(client, call, items[i].hash, !is_pin))
            items[i].status = MS_OK;
        else
            is_certain = false;
    }
    return is_certain ? MS_OK : status;
}

ms_status cl_mark(cl_client *client, uint16_t method, cl_item *items, size_t count,
                  uint32_t pin_deadline_ms, int64_t deadline_ns, cl_failure *failure) {
    const char *stage = method == MS_PIN ? "pin" : method == MS_UNPIN ? "unpin" : "touch";
    size_t pending = cl_hash_items(client, items, count);
    if (pending == 0)
        return MS_OK;
    if (pending > MS_BATCH_ITEMS_MAX)
        return too_many(items, count, stage, failure);
    if (method == MS_TOUCH) {
        for (size_t i = 0; i < count; i++)
            if (items[i].status == MS_PENDING) {
                cl_touch_later(client, items[i].hash);
                items[i].status = MS_OK;
            }
        return MS_OK;
    }
    bool is_pin = method == MS_PIN;
    cl_pins_call call;
    ms_status status = cl_pins_call_begin(client, &call, pending, stage, deadline_ns, failure);
    ms_match match = {.number = call.number,
                      .pin = is_pin ? MS_PIN_HOLD : MS_PIN_NONE,
                      .pin_deadline_ms = pin_deadline_ms,
                      .count = (uint32_t)pending};
    if (status == MS_OK)
        status = mark(client, CL_REPEAT_IN_NEXT, method, &match, items, count, stage, deadline_ns,
                      failure);
    if (status == MS_OK)
        for (size_t i = 0; i < count; i++)
            heard_of(client, &call, is_pin, &items[i], pin_deadline_ms);
    else
        status = unheard_of(client, &call, is_pin, items, count, status);
    cl_pins_call_end(client, &call);
    cl_fail_all(items, count, status);
    return status;
}

ms_status cl_remove(cl_client *client, cl_item *items, size_t count, bool force,
                    int64_t deadline_ns, cl_failure *failure) {
    size_t pending = cl_hash_items(client, items, count);
    if (pending == 0)
        return MS_OK;
    if (pending > MS_BATCH_ITEMS_MAX)
        return too_many(items, count, "remove", failure);
    ms_writer writer = ms_writer_growable(MS_BODY_BYTES_MAX);
    ms_batch batch = cl_number_start(client, (uint32_t)pending);
    MS_WRITER_STRUCT(&writer, &batch);
    for (size_t i = 0; i < count; i++) {
        if (items[i].status != MS_PENDING)
            continue;
        cl_location_forget(client, items[i].hash, UINT64_MAX);
        ms_key_item item = {.hash = items[i].hash,
                            .key_length = items[i].key_length,
                            .flags = force ? (uint32_t)MS_FLAG_FORCE : 0};
        MS_WRITER_STRUCT(&writer, &item);
        ms_writer_padded(&writer, items[i].key, items[i].key_length);
    }
    te_reply reply = {.grow = true};
    ms_status status = writer.status;
    if (status == MS_OK) {
        struct iovec body = {.iov_base = writer.data, .iov_len = writer.length};
        status = cl_master_call(client, CL_REPEAT_IN_SESSION, MS_REMOVE, 0, &body, 1, &reply,
                                "remove", deadline_ns, failure);
        if (status == MS_OK && !take_statuses(items, count, pending, &reply))
            status = bad_answer(items, count, "remove", failure);
    } else {
        cl_fail(failure, status, "remove", "",
                "the batch does not fit into a frame of %u bytes; cut it", MS_BODY_BYTES_MAX);
    }
    cl_number_end(client, batch.number);
    cl_fail_all(items, count, status);
    free(reply.body);
    ms_writer_close(&writer);
    return status;
}
