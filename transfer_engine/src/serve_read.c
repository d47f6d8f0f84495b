/* READ at the serving side.
 *
 * All items are begun first, because the header says how much payload follows.  A small answer (up
 * to TE_STAGING_BYTES) is copied together and sent in one call.  A large one is sent straight from
 * the segment, in turns; each item is ended, and its word taken, after the kernel has accepted its
 * last byte.  The words follow in the trailer: so a reader that compares a word knows that every
 * byte had left the segment before it was read.
 */
#include "te_internal.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "te_fault.h"

#define SMALL_ITEMS 64u
#define SEND_BLOCKS 256u
#define AHEAD 64u

struct te_read_job {
    ms_header header;
    uint32_t count;
    uint32_t done; /* items that were ended */
    uint64_t sent; /* bytes of item `done` */
    size_t header_sent, trailer_sent;
    te_segment **segments; /* NULL: refused.  A run of the same segment is held once */
    ms_read_item *items;
    ms_read_result *results;
};

static ms_status begin(te_link *link, te_segment *segment, const ms_read_item *item) {
    if (segment == NULL) {
        return MS_NOT_REGISTERED;
    }
    const te_segment_config *config = &segment->config;
    if (item->offset > config->length || item->length > config->length - item->offset) {
        return MS_OUT_OF_RANGE;
    }
    return config->ops.read_begin == NULL
               ? MS_OK
               : config->ops.read_begin(config->ops.context, link->peer_context, item);
}

static uint64_t end(te_link *link, te_segment *segment, const ms_read_item *item) {
    const te_segment_config *config = &segment->config;
    return config->ops.read_end == NULL
               ? 0
               : config->ops.read_end(config->ops.context, link->peer_context, item);
}

/* The misses of many small items overlap: what their checks look at, and where their bytes begin.  The
 * items are of one segment. */
static void look_ahead(const te_segment *segment, const ms_read_item *items, uint32_t count) {
    const te_segment_config *config = &segment->config;
    if (config->ops.read_ahead != NULL) {
        config->ops.read_ahead(config->ops.context, items, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        if (items[i].offset < config->length) {
            __builtin_prefetch((const uint8_t *)config->address + items[i].offset);
        }
    }
}

/* Items from `first` on that are of the same segment, at most as many as are looked ahead at. */
static uint32_t run_of(const ms_read_item *items, uint32_t first, uint32_t count) {
    uint32_t end = first + 1;
    while (end < count && end - first < AHEAD && items[end].segment == items[first].segment) {
        end++;
    }
    return end - first;
}

/* Begins every item; returns the bytes of those that are OK. */
static uint64_t begin_all(te_link *link, const ms_read_item *items, uint32_t count,
                          te_segment **segments, ms_read_result *results) {
    uint64_t payload = 0;
    te_segment *segment = NULL;
    uint32_t ahead = 0; /* up to here was looked */
    for (uint32_t i = 0; i < count; i++) {
        if (i == 0 || items[i].segment != items[i - 1].segment) {
            segment = te_segment_get(link->engine, items[i].segment);
        }
        if (i == ahead) {
            uint32_t run = run_of(items, i, count);
            if (segment != NULL && run > 1) {
                look_ahead(segment, items + i, run);
            }
            ahead += run;
        }
        segments[i] = segment;
        ms_status status = begin(link, segment, &items[i]);
        results[i] = (ms_read_result){.status = (uint32_t)status};
        payload += status == MS_OK ? items[i].length : 0;
    }
    return payload;
}

static void put_segments(te_segment **segments, const ms_read_item *items, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        if (segments[i] != NULL && (i == 0 || items[i].segment != items[i - 1].segment)) {
            te_segment_put(segments[i]);
        }
    }
}

static const uint8_t *address_of(const te_segment *segment, const ms_read_item *item) {
    return (const uint8_t *)segment->config.address + item->offset;
}

/* One buffer, one send. */
static void answer_small(te_link *link, const te_request *request, const ms_read_item *items,
                         uint32_t count, te_segment **segments, ms_read_result *results,
                         uint64_t payload) {
    uint8_t *staging = te_io_staging(link->io);
    uint8_t *place = staging + sizeof(ms_header);
    for (uint32_t i = 0; i < count; i++) {
        if (results[i].status == MS_OK) {
            memcpy(place, address_of(segments[i], &items[i]), items[i].length);
            place += items[i].length;
            results[i].word = end(link, segments[i], &items[i]);
        }
    }
    ms_header header = te_answer_header(link->engine, request->header, MS_OK, 0, payload,
                                        count * sizeof(ms_read_result));
    memcpy(staging, &header, sizeof header);
    memcpy(place, results, count * sizeof *results);
    place += count * sizeof *results;
    struct iovec whole = {.iov_base = staging, .iov_len = (size_t)(place - staging)};
    (void)te_link_send(link, &whole, 1, NULL, 0);
}

static te_read_job *job_new(const te_request *request, const ms_read_item *items, uint32_t count) {
    size_t bytes = sizeof(te_read_job) +
                   count * (sizeof(te_segment *) + sizeof *items + sizeof(ms_read_result));
    te_read_job *job = malloc(bytes);
    if (job != NULL) {
        *job = (te_read_job){.count = count};
        job->segments = (te_segment **)(job + 1);
        job->items = (ms_read_item *)(job->segments + count);
        job->results = (ms_read_result *)(job->items + count);
        job->header = *request->header;
        memcpy(job->items, items, count * sizeof *items);
    }
    return job;
}

void te_serve_read(te_link *link, const te_request *request) {
    uint32_t length = request->header->body_length, count = 0;
    if (length >= 8) {
        memcpy(&count, request->body, sizeof count);
    }
    if (length < 8 || count > MS_BATCH_ITEMS_MAX ||
        length != 8 + (size_t)count * sizeof(ms_read_item)) {
        te_link_fail(link, MS_BAD_FRAME, "a READ of %u bytes that names %u items", (unsigned)length,
                     (unsigned)count);
        return;
    }
    const ms_read_item *items = (const ms_read_item *)(const void *)(request->body + 8);
    uint64_t asked = 0;
    for (uint32_t i = 0; i < count && asked <= TE_STAGING_BYTES; i++) {
        asked = items[i].length > TE_STAGING_BYTES ? UINT64_MAX : asked + items[i].length;
    }
    if (count <= SMALL_ITEMS && asked <= TE_STAGING_BYTES) {
        te_segment *segments[SMALL_ITEMS];
        ms_read_result results[SMALL_ITEMS];
        uint64_t payload = begin_all(link, items, count, segments, results);
        answer_small(link, request, items, count, segments, results, payload);
        put_segments(segments, items, count);
        return;
    }
    te_read_job *job = job_new(request, items, count);
    if (job == NULL) {
        (void)te_link_refuse(link, request->header, MS_NO_MEMORY,
                             "no memory for a READ of %u items", (unsigned)count);
        return;
    }
    uint64_t payload = begin_all(link, job->items, count, job->segments, job->results);
    job->header = te_answer_header(link->engine, request->header, MS_OK, 0, payload,
                                   count * sizeof(ms_read_result));
    (void)te_link_queue_read(link, job); /* a failure closes the link, or it is closing already */
}

static void end_item(te_link *link, te_read_job *job) {
    uint32_t i = job->done;
    if (job->results[i].status == MS_OK) {
        job->results[i].word = end(link, job->segments[i], &job->items[i]);
    }
    job->done++;
    job->sent = 0;
}

static uint64_t item_bytes(const te_read_job *job, uint32_t i) {
    return job->results[i].status == MS_OK ? job->items[i].length : 0;
}

/* What is next of header and payload.  Returns the number of blocks. */
static size_t next_blocks(te_read_job *job, struct iovec *blocks, size_t room, size_t *bytes) {
    size_t count = 0;
    if (job->header_sent < sizeof job->header) {
        blocks[count++] = (struct iovec){.iov_base = (uint8_t *)&job->header + job->header_sent,
                                         .iov_len = sizeof job->header - job->header_sent};
        *bytes += blocks[0].iov_len;
    }
    uint64_t skip = job->sent;
    for (uint32_t i = job->done; i < job->count && count < room && *bytes < TE_TURN_BYTES;
         i++, skip = 0) {
        uint64_t left = item_bytes(job, i) - skip;
        if (left == 0) {
            continue;
        }
        size_t most = TE_TURN_BYTES - *bytes;
        blocks[count] = (struct iovec){
            .iov_base = (void *)(uintptr_t)(address_of(job->segments[i], &job->items[i]) + skip),
            .iov_len = left < most ? (size_t)left : most};
        *bytes += blocks[count].iov_len;
        count++;
    }
    return count;
}

/* The kernel has taken `sent` bytes of what next_blocks gave; items that are out are ended. */
static void account(te_link *link, te_read_job *job, size_t sent) {
    size_t of_header = sizeof job->header - job->header_sent;
    of_header = sent < of_header ? sent : of_header;
    job->header_sent += of_header;
    sent -= of_header;
    while (job->header_sent == sizeof job->header && job->done < job->count) {
        uint64_t left = item_bytes(job, job->done) - job->sent;
        if (sent < left) {
            job->sent += sent;
            break;
        }
        sent -= (size_t)left;
        end_item(link, job);
    }
}

int te_read_job_step(te_link *link, te_read_job *job, size_t *moved) {
    while (job->header_sent < sizeof job->header || job->done < job->count) {
        struct iovec blocks[SEND_BLOCKS];
        size_t bytes = 0;
        size_t count = next_blocks(job, blocks, SEND_BLOCKS, &bytes);
        ssize_t sent = 0;
        if (count > 0) {
            sent = te_socket_send(link->descriptor, blocks, count, NULL, 0,
                                  MSG_DONTWAIT | (job->count > 0 ? MSG_MORE : 0));
            if (sent < 0) {
                return errno == EAGAIN ? 0 : -1;
            }
        }
        account(link, job, (size_t)sent);
        *moved += (size_t)sent;
        if ((size_t)sent < bytes || *moved >= TE_TURN_BYTES) {
            /* The trailer is small: do not make it wait for a turn when the payload is out. */
            if (job->done < job->count) {
                return 0;
            }
        }
    }
    size_t trailer = job->count * sizeof(ms_read_result);
    while (job->trailer_sent < trailer) {
        struct iovec rest = {.iov_base = (uint8_t *)job->results + job->trailer_sent,
                             .iov_len = trailer - job->trailer_sent};
        ssize_t sent = te_socket_send(link->descriptor, &rest, 1, NULL, 0, MSG_DONTWAIT);
        if (sent < 0) {
            return errno == EAGAIN ? 0 : -1;
        }
        job->trailer_sent += (size_t)sent;
        *moved += (size_t)sent;
    }
    return 1;
}

void te_read_job_free(te_link *link, te_read_job *job) {
    while (job->done < job->count) {
        end_item(link, job);
    }
    put_segments(job->segments, job->items, job->count);
    free(job);
}

bool te_read_job_uses_removed(const te_read_job *job) {
    for (uint32_t i = 0; i < job->count; i++) {
        if (job->segments[i] != NULL && te_segment_is_removed(job->segments[i])) {
            return true;
        }
    }
    return false;
}
