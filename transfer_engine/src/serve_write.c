/* WRITE at the serving side.
 *
 * Items are taken in order.  Payload is received straight into the segment, over several items at
 * once (each begun before its first byte may arrive, ended after its last); an item that was
 * refused has its bytes thrown away.  An item whose source is SHAREd memory is copied from there.
 * Every touch of segment memory is a step (te_link_step_begin), so that a fence can wait until
 * none is under way.
 */
#include "te_internal.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "te_fault.h"

#define RECEIVE_BLOCKS 64u

struct te_write_job {
    ms_header header;
    uint8_t *body; /* own copy: the link's buffers are used for the payload */
    uint32_t count;
    uint32_t begun, done;  /* items */
    uint64_t filled;       /* bytes of item `done` in place */
    uint64_t payload_left; /* bytes of the frame that have not been received */
    const ms_write_item *items;
    const uint8_t *seal_next; /* of item `done` */
    te_segment **segments;    /* per begun item; a run of the same segment is held once */
    uint32_t *answer;         /* count, 0, then the statuses: a list as it goes on the wire */
    uint32_t *statuses;
};

static uint64_t payload_bytes(const ms_write_item *item) {
    return item->source == 0 ? item->length : 0;
}

static bool is_ok(const te_write_job *job, uint32_t i) { return job->statuses[i] == MS_OK; }

/* ---- parsing --------------------------------------------------------------------------------- */

/* The sums over the items against the lengths in the header; NULL, or what is wrong. */
static const char *check(const ms_header *header, const uint8_t *body, uint32_t *counted) {
    uint32_t count = 0;
    if (header->body_length < 8) {
        return "a WRITE without a list of items";
    }
    memcpy(&count, body, sizeof count);
    size_t fixed = 8 + (size_t)count * sizeof(ms_write_item);
    if (count == 0 || count > MS_BATCH_ITEMS_MAX || fixed > header->body_length) {
        return "a WRITE that names more items than it has, or none";
    }
    const ms_write_item *items = (const ms_write_item *)(const void *)(body + 8);
    uint64_t payload = 0, seals = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (items[i].length >> 47 != 0) {
            return "a WRITE of an impossible length";
        }
        payload += payload_bytes(&items[i]);
        seals += items[i].seal_length;
    }
    if (payload != header->payload_length || seals != header->body_length - fixed) {
        return "a WRITE whose items do not add up to its payload and seals";
    }
    *counted = count;
    return NULL;
}

static te_write_job *job_new(te_link *link, const te_request *request, uint32_t count) {
    size_t bytes = sizeof(te_write_job) + count * sizeof(te_segment *) +
                   (2 + (size_t)count) * sizeof(uint32_t);
    te_write_job *job = malloc(bytes);
    if (job == NULL) {
        return NULL;
    }
    *job = (te_write_job){.header = *request->header,
                          .count = count,
                          .payload_left = request->header->payload_length};
    if (request->body == link->body) { /* it has memory of its own: that moves here */
        job->body = link->body;
        link->body = NULL;
        link->body_room = 0;
    } else {
        job->body = malloc(request->header->body_length);
        if (job->body == NULL) {
            free(job);
            return NULL;
        }
        memcpy(job->body, request->body, request->header->body_length);
    }
    job->items = (const ms_write_item *)(const void *)(job->body + 8);
    job->seal_next = job->body + 8 + count * sizeof(ms_write_item);
    job->segments = (te_segment **)(job + 1);
    job->answer = (uint32_t *)(job->segments + count);
    job->answer[0] = count;
    job->answer[1] = 0;
    job->statuses = job->answer + 2;
    return job;
}

bool te_serve_write_begin(te_link *link, const te_request *request) {
    uint32_t count = 0;
    const char *problem = check(request->header, request->body, &count);
    if (problem != NULL) {
        te_link_fail(link, MS_BAD_FRAME, "%s", problem);
        return false;
    }
    link->write = job_new(link, request, count);
    if (link->write == NULL) {
        te_link_fail(link, MS_NO_MEMORY, "no memory for a WRITE of %u items", (unsigned)count);
        return false;
    }
    return true;
}

/* ---- items ----------------------------------------------------------------------------------- */

/* Where the item's bytes go, and whether they may: 0-based in a plain region, else inside its
 * extent. */
static ms_status locate(const te_segment *segment, const ms_write_item *item, uint64_t *start) {
    uint64_t base = item->version == 0 ? 0 : (uint64_t)item->page * MS_PAGE_SIZE;
    uint64_t room =
        item->version == 0 ? segment->config.length : (uint64_t)item->page_count * MS_PAGE_SIZE;
    if (item->offset > room || item->length > room - item->offset) {
        return MS_OUT_OF_RANGE;
    }
    *start = base + item->offset;
    if (*start > segment->config.length || item->length > segment->config.length - *start) {
        return MS_OUT_OF_RANGE;
    }
    return MS_OK;
}

static uint8_t *address_of(const te_write_job *job, uint32_t i) {
    uint64_t start = 0;
    (void)locate(job->segments[i], &job->items[i], &start); /* it was checked at its begin */
    return (uint8_t *)job->segments[i]->config.address + start;
}

static void begin_item(te_link *link, te_write_job *job) {
    uint32_t i = job->begun++;
    const ms_write_item *item = &job->items[i];
    job->segments[i] = i > 0 && item->segment == job->items[i - 1].segment
                           ? job->segments[i - 1]
                           : te_segment_get(link->engine, item->segment);
    ms_status status = MS_NOT_REGISTERED;
    if (job->segments[i] != NULL) {
        const te_segment_ops *ops = &job->segments[i]->config.ops;
        uint64_t start;
        status = locate(job->segments[i], item, &start);
        if (status == MS_OK && item->seal_length > 0 && ops->write_end == NULL) {
            status = MS_BAD_REQUEST; /* plain memory keeps no records */
        }
        if (status == MS_OK && ops->write_begin != NULL) {
            status = ops->write_begin(ops->context, link->peer_context, item);
        }
    }
    job->statuses[i] = (uint32_t)status;
}

/* Item `done` has ended; `failure` other than OK: its bytes are not all in place. */
static void end_item(te_link *link, te_write_job *job, ms_status failure) {
    uint32_t i = job->done++;
    const ms_write_item *item = &job->items[i];
    const uint8_t *seal = item->seal_length > 0 ? job->seal_next : NULL;
    job->seal_next += item->seal_length;
    job->filled = 0;
    if (!is_ok(job, i)) {
        return;
    }
    const te_segment_ops *ops = &job->segments[i]->config.ops;
    bool complete = failure == MS_OK;
    ms_status status = failure;
    if (ops->write_end != NULL) {
        ms_status ended =
            ops->write_end(ops->context, link->peer_context, item, complete ? seal : NULL,
                           complete ? item->seal_length : 0, complete);
        status = complete ? ended : failure;
    }
    job->statuses[i] = (uint32_t)status;
}

void te_write_job_free(te_link *link, te_write_job *job) {
    while (job->done < job->begun) {
        end_item(link, job, MS_CLOSED);
    }
    for (uint32_t i = 0; i < job->begun; i++) {
        if (job->segments[i] != NULL &&
            (i == 0 || job->items[i].segment != job->items[i - 1].segment)) {
            te_segment_put(job->segments[i]);
        }
    }
    free(job->body);
    free(job);
}

bool te_write_job_uses_removed(const te_write_job *job) {
    for (uint32_t i = 0; i < job->begun; i++) {
        if (job->segments[i] != NULL && te_segment_is_removed(job->segments[i])) {
            return true;
        }
    }
    return false;
}

/* ---- moving bytes ---------------------------------------------------------------------------- */

/* Copies item `done` from SHAREd memory, a turn's worth.  False: a fence has closed the link. */
static bool copy_shared(te_link *link, te_write_job *job, size_t *moved) {
    te_engine *engine = link->engine;
    const ms_write_item *item = &job->items[job->done];
    uint64_t left = item->length - job->filled;
    size_t bytes = left < TE_TURN_BYTES ? (size_t)left : TE_TURN_BYTES;
    const void *source = NULL;
    /* Who has closed the connection may use that memory for something else.  That nothing of it is sealed
     * *(source_open)* the service sees to, which looks in the step that seals. */
    ms_status status = te_link_is_deserted(link) ? MS_CANCELLED : MS_NOT_REGISTERED;
    if (status != MS_CANCELLED && engine->source_acquire != NULL) {
        status = engine->source_acquire(engine, link, item->source,
                                        item->source_offset + job->filled, bytes, &source);
    }
    if (status != MS_OK) {
        end_item(link, job, status);
        return true;
    }
    bool may = te_link_step_begin(link);
    if (may) {
        te_copy_away(engine, address_of(job, job->done) + job->filled, source, bytes);
        te_link_step_end(link);
        job->filled += bytes;
        *moved += bytes;
    }
    engine->source_release(engine, link, item->source);
    return may;
}

/* Ends items that need no more bytes, and copies those that come from shared memory.  False: as
 * copy_shared, or the turn is over. */
static bool end_ready(te_link *link, te_write_job *job, size_t *moved) {
    while (job->done < job->count) {
        if (job->begun == job->done) {
            begin_item(link, job);
        }
        const ms_write_item *item = &job->items[job->done];
        if (item->source != 0 && is_ok(job, job->done) && job->filled < item->length) {
            if (*moved >= TE_TURN_BYTES || !copy_shared(link, job, moved)) {
                return false;
            }
        } else if (item->source != 0 || job->filled == item->length) {
            end_item(link, job, MS_OK);
        } else {
            break;
        }
    }
    return true;
}

/* Where the next payload bytes go: into items from `done` on, begun as needed. */
static size_t next_blocks(te_link *link, te_write_job *job, struct iovec *blocks) {
    size_t count = 0, bytes = 0;
    uint64_t skip = job->filled;
    for (uint32_t i = job->done; i < job->count && count < RECEIVE_BLOCKS && bytes < TE_TURN_BYTES;
         i++, skip = 0) {
        if (job->items[i].source != 0) {
            break; /* it is copied when its turn has come */
        }
        if (i == job->begun) {
            begin_item(link, job);
        }
        uint64_t left = job->items[i].length - skip;
        size_t most = TE_TURN_BYTES - bytes;
        uint8_t *place = te_io_staging(link->io);
        bool is_wanted = is_ok(job, i);
        if (is_wanted) {
            place = address_of(job, i) + skip;
            __builtin_prefetch(place, 1); /* of many small items each lies on a page of its own */
        } else if (most > TE_STAGING_BYTES) {
            most = TE_STAGING_BYTES; /* thrown away, there */
        }
        if (left > 0) {
            blocks[count].iov_base = place;
            blocks[count].iov_len = left < most ? (size_t)left : most;
            bytes += blocks[count].iov_len;
            count++;
        }
        if (!is_wanted && left > most) {
            break;
        }
    }
    return count;
}

static void account(te_link *link, te_write_job *job, size_t came) {
    while (came > 0) {
        uint64_t left = payload_bytes(&job->items[job->done]) - job->filled;
        size_t taken = came < left ? came : (size_t)left;
        job->filled += taken;
        came -= taken;
        if (job->filled == payload_bytes(&job->items[job->done])) {
            end_item(link, job, MS_OK);
        }
    }
}

/* Before the thread waits for the rest of a payload; the last bytes must wake it whatever they are. */
static void set_low_water(te_link *link, uint64_t left) {
    uint64_t least = link->has_low_water ? TE_LOW_WATER_BYTES : TE_LOW_WATER_LEAST;
    bool wanted = !link->is_unix && left >= least;
    if (wanted != link->has_low_water) {
        te_socket_low_water(link->descriptor, wanted ? (int)TE_LOW_WATER_BYTES : 1);
        link->has_low_water = wanted;
    }
}

/* Payload from what the first receive brought along, or from the socket.  As
 * te_serve_write_step. */
static int take_payload(te_link *link, te_write_job *job, size_t *moved, bool *is_drained) {
    struct iovec blocks[RECEIVE_BLOCKS];
    size_t count = next_blocks(link, job, blocks);
    size_t wanted = te_iov_bytes(blocks, count), came = 0;
    size_t there = link->received_end - link->received_start;
    if (!te_link_step_begin(link)) {
        return -1;
    }
    int outcome = 1;
    if (there > 0) {
        came = there < wanted ? there : wanted;
        te_iov_write(blocks, count, 0, link->received + link->received_start, came);
        link->received_start += came;
    } else {
        ssize_t received =
            te_socket_receive(link->descriptor, blocks, count, NULL, 0, NULL, MSG_DONTWAIT);
        outcome = received > 0 ? 1 : received < 0 && errno == EAGAIN ? 0 : -1;
        came = received > 0 ? (size_t)received : 0;
        *is_drained = came < wanted;
    }
    te_link_step_end(link);
    account(link, job, came);
    job->payload_left -= came;
    set_low_water(link, job->payload_left);
    *moved += came;
    return outcome;
}

/* ---- the frame ------------------------------------------------------------------------------- */

static void finish(te_link *link, te_write_job *job) {
    ms_status first = MS_OK;
    const te_segment_ops *ops = NULL;
    for (uint32_t i = 0; i < job->count; i++) {
        first = first == MS_OK ? (ms_status)job->statuses[i] : first;
        if (ops == NULL && job->segments[i] != NULL) {
            ops = &job->segments[i]->config.ops;
        }
    }
    te_request request = {
        .peer = link->peer,
        .peer_context = link->peer_context,
        .is_unix = link->is_unix,
        .descriptor = -1,
        .header = &job->header,
        .body = job->body,
    };
    if (ops != NULL && ops->write_done != NULL &&
        ops->write_done(ops->context, &request, job->statuses, job->count)) {
        return;
    }
    struct iovec list = {.iov_base = job->answer,
                         .iov_len = (2 + (size_t)job->count) * sizeof *job->answer};
    (void)te_link_answer(link, &job->header, first, &list, first == MS_OK ? 0 : 1, NULL, 0, NULL,
                         0);
}

int te_serve_write_step(te_link *link, size_t *moved) {
    te_write_job *job = link->write;
    bool is_drained = false;
    for (;;) {
        if (!end_ready(link, job, moved)) {
            if (*moved >= TE_TURN_BYTES) {
                return 0;
            }
            break;
        }
        if (job->done == job->count) {
            te_io_enter(link);
            finish(link, job);
            te_io_enter(NULL);
            te_write_job_free(link, job);
            link->write = NULL;
            return link->state == TE_LINK_OPEN ? 1 : -1;
        }
        if (*moved >= TE_TURN_BYTES || is_drained) {
            return 0;
        }
        int outcome = take_payload(link, job, moved, &is_drained);
        if (outcome < 0) {
            break;
        }
        if (outcome == 0) {
            return 0;
        }
    }
    te_link_close(link, "closed by the peer in the middle of a WRITE");
    return -1;
}
