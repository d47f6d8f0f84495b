#include "write_list.h"

#include "pieces.h"

/* Small values are sent as one block: the kernel takes longer to find its way to each of them than a copy does. */
#define GATHERED_BYTES_MAX (16u << 10)
#define GATHERED_VALUE_MAX 256u /* on average */

ms_status cl_write_list_open(cl_write_list *list, size_t writes) {
    list->count = 0;
    list->payload_bytes = list->shared_bytes = 0;
    list->items = list->item_scratch;
    list->sources = list->source_scratch;
    list->statuses = list->status_scratch;
    list->owners = list->owner_scratch;
    list->seals = writes == 1 ? ms_writer_fixed(list->seal_scratch, sizeof list->seal_scratch)
                              : ms_writer_growable(MS_BODY_BYTES_MAX);
    if (writes <= sizeof list->item_scratch / sizeof *list->item_scratch)
        return MS_OK;
    list->items = malloc(writes * sizeof *list->items);
    list->sources = malloc(writes * sizeof *list->sources);
    list->statuses = malloc(writes * sizeof *list->statuses);
    list->owners = malloc(writes * sizeof *list->owners);
    bool is_there = list->items != NULL && list->sources != NULL && list->statuses != NULL &&
                    list->owners != NULL;
    return is_there ? MS_OK : MS_NO_MEMORY;
}

void cl_write_list_close(cl_write_list *list) {
    if (list->items != list->item_scratch) {
        free(list->items);
        free(list->sources);
        free(list->statuses);
        free(list->owners);
    }
    if (list->seals.is_growable)
        ms_writer_close(&list->seals);
}

void cl_write_list_add(cl_write_list *list, const cl_putting *put, size_t index,
                       const cl_replica *replica, uint32_t source, uint64_t source_offset) {
    const cl_location *grant = put->states[index].grant;
    cl_cursor cursor;
    cl_cursor_open(&cursor, &put->items[index]);
    uint64_t left = grant->size;
    for (uint32_t i = 0; i < replica->extent_count; i++) {
        const ms_extent *extent = &grant->extents[replica->extent_first + i];
        uint64_t length = (uint64_t)extent->page_count * MS_PAGE_SIZE, done = 0;
        if (length > left)
            length = left;
        left -= length;
        size_t before = list->seals.length;
        cl_put_write_seal(put, index, (uint16_t)i, replica->extent_count, &list->seals);
        do {
            uint64_t run;
            const uint8_t *bytes = cl_cursor_next(&cursor, length - done, &run);
            list->items[list->count] = (ms_write_item){.segment = replica->segment,
                                                       .page = extent->page,
                                                       .page_count = extent->page_count,
                                                       .source = source,
                                                       .version = grant->version,
                                                       .offset = done,
                                                       .length = run,
                                                       .source_offset = source_offset};
            list->sources[list->count] = source == 0 ? bytes : NULL;
            list->owners[list->count] = (uint32_t)index;
            list->count++;
            if (source == 0)
                list->payload_bytes += run;
            else
                list->shared_bytes += run;
            source_offset += run;
            done += run;
        } while (done < length);
        list->items[list->count - 1].seal_length = (uint32_t)(list->seals.length - before);
    }
}

ms_status cl_write_list_send(cl_write_list *list, te_connection *connection, uint32_t flags,
                             int64_t deadline_ns) {
    struct iovec payload[CL_WRITE_ITEMS_MAX];
    uint8_t gathered[GATHERED_BYTES_MAX];
    size_t payload_count = 0, gathered_bytes = 0;
    if (list->count > CL_WRITE_ITEMS_MAX)
        return MS_BAD_REQUEST;
    bool is_gathered = list->count > 1 && list->payload_bytes <= sizeof gathered &&
                       list->payload_bytes <= list->count * GATHERED_VALUE_MAX;
    for (size_t i = 0; i < list->count; i++) {
        const size_t length = list->items[i].length;
        if (list->items[i].source != 0 || length == 0)
            continue;
        if (is_gathered)
            memcpy(gathered + gathered_bytes, list->sources[i], length);
        else
            payload[payload_count++] =
                (struct iovec){.iov_base = (void *)(uintptr_t)list->sources[i], .iov_len = length};
        gathered_bytes += length;
    }
    if (is_gathered && gathered_bytes != 0)
        payload[payload_count++] = (struct iovec){.iov_base = gathered, .iov_len = gathered_bytes};
    uint32_t head[2] = {(uint32_t)list->count, 0};
    struct iovec body[3] = {{.iov_base = head, .iov_len = sizeof head},
                            {.iov_base = list->items, .iov_len = list->count * sizeof *list->items},
                            {.iov_base = list->seals.data, .iov_len = list->seals.length}};
    list->request = te_next_request(connection);
    return te_send(connection, MS_REQUEST, MS_WRITE, flags, list->request, cl_left_ms(deadline_ns),
                   body, 3, payload, payload_count, deadline_ns);
}

ms_status cl_write_list_receive(cl_write_list *list, te_connection *connection, int64_t deadline_ns,
                                bool *is_refused) {
    *is_refused = false;
    uint8_t answer[8 + CL_WRITE_ITEMS_MAX * sizeof(uint32_t)];
    te_reply reply = {.body = answer, .body_size = sizeof answer};
    /* Another one may come right behind; where all is well there is nothing but the header. */
    ms_status status = te_receive_exactly(connection, &reply, deadline_ns);
    if (status == MS_OK)
        status = te_check_request(connection, &reply.header, MS_WRITE, list->request);
    if (status != MS_OK)
        return status;
    bool all = reply.header.status == MS_OK;
    ms_array statuses = {0};
    bool each = !all &&
                ms_read_array(reply.body, reply.header.body_length, sizeof(uint32_t), &statuses) &&
                statuses.count == list->count;
    *is_refused = !all && !each;
    if (*is_refused)
        return (ms_status)reply.header.status;
    for (size_t i = 0; i < list->count; i++)
        list->statuses[i] = all ? (uint32_t)MS_OK : ms_array_u32(statuses, (uint32_t)i);
    return MS_OK;
}

/* COMPLETE: this very version was sealed there before, and only the answer was lost. */
static bool is_sealed(uint32_t status) { return status == MS_OK || status == MS_COMPLETE; }

/* Room there is for the object, the master has granted it: what is full is the file system in which the server keeps
 * its records. */
static void refused(cl_putting *put, size_t index, const cl_node *node, ms_status status,
                    cl_failure *failure) {
    if (cl_is_transport(status)) {
        put->states[index].is_unclear = true;
        cl_fail(failure, status, "write", node->name,
                "its connection has ended unanswered, and another one brought no certainty: nobody "
                "knows whether it was stored");
    }
    if (status == MS_NO_SPACE)
        cl_fail(failure, status, "write", node->name,
                "the file system that holds this server's memory is full (/dev/shm, or its "
                "--segment-dir): make room there");
    cl_put_replica_failed(put, index, status);
}

void cl_write_list_doubt(const cl_write_list *list, cl_putting *put) {
    for (size_t at = 0; at < list->count; at++)
        put->states[list->owners[at]].is_unclear = true;
}

void cl_write_list_settle(const cl_write_list *list, cl_putting *put, const cl_node *node,
                          uint64_t bit, cl_failure *failure) {
    for (size_t at = 0; at < list->count;) {
        const uint32_t owner = list->owners[at];
        bool sealed = true;
        for (; at < list->count && list->owners[at] == owner; at++)
            if (!is_sealed(list->statuses[at])) {
                sealed = false;
                refused(put, owner, node, (ms_status)list->statuses[at], failure);
            }
        if (sealed)
            put->states[owner].sealed |= bit;
    }
}
