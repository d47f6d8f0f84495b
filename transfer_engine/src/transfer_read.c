/* A part of READs: one frame, and its answer received to where the bytes belong. */
#include "te_transfer.h"

#include <stdlib.h>
#include <string.h>

#include "te_fault.h"

static void read_result(te_moving *moved, const te_part *taken, size_t i, ms_read_result result) {
    if (!te_part_is_cut(moved, taken, i)) {
        moved->results[i] = result; /* nobody else has a part of it */
        return;
    }
    pthread_mutex_lock(&moved->lock);
    ms_read_result *merged = &moved->results[i];
    if (merged->status == MS_PENDING) {
        *merged = result;
    } else if (merged->status == MS_OK) {
        if (result.status != MS_OK) {
            *merged = result;
        } else if (merged->word == moved->reads[i].word) {
            merged->word =
                result.word; /* one piece whose word differs tells about the whole item */
        }
    }
    pthread_mutex_unlock(&moved->lock);
}

/* All of a refused frame's items, and its sentence as the channel's error. */
static ms_status refused_read(te_moving *moved, const te_part *taken, te_connection *connection,
                              const ms_header *header, const struct iovec *blocks,
                              size_t block_count, size_t there) {
    char sentence[TE_ERROR_BYTES];
    size_t length = header->body_length, kept = there < length ? there : length;
    kept = kept < sizeof sentence - 1 ? kept : sizeof sentence - 1;
    te_iov_read(blocks, block_count, 0, sentence, kept);
    while (there < length) { /* mostly it has come with the header */
        uint8_t waste[512];
        size_t came = 0, left = length - there;
        struct iovec rest = {.iov_base = waste,
                             .iov_len = left < sizeof waste ? left : sizeof waste};
        ms_status status =
            te_connection_receive(connection, &rest, 1, false, false, &came, taken->deadline_ns);
        if (status != MS_OK) {
            return status;
        }
        size_t room = sizeof sentence - 1 - kept;
        memcpy(sentence + kept, waste, came < room ? came : room);
        kept += came < room ? came : room;
        there += came;
    }
    sentence[kept] = '\0';
    te_channel_set_error(moved->channel, sentence);
    for (size_t i = 0; i < taken->count; i++) {
        read_result(moved, taken, taken->first + i, (ms_read_result){.status = header->status});
    }
    return MS_OK;
}

/* Moves `length` bytes that lie at `from` in the stream of blocks to the block `to`, which begins
 * at or behind them. From the end, so that nothing is overwritten before it was moved. */
static void move_back(const struct iovec *blocks, size_t to, uint64_t from, uint64_t length) {
    uint64_t begins = 0;
    size_t at = 0;
    while (from + length > begins + blocks[at].iov_len) {
        begins += blocks[at++].iov_len;
    }
    while (length > 0) {
        uint64_t end = from + length, piece = end - begins;
        piece = piece < length ? piece : length;
        memmove((uint8_t *)blocks[to].iov_base + (length - piece),
                (uint8_t *)blocks[at].iov_base + (end - piece - begins), (size_t)piece);
        length -= piece;
        if (length > 0) {
            begins -= blocks[--at].iov_len;
        }
    }
}

/* Some items were refused and sent no bytes: the others' lie one behind the other; each to its
 * place, the last first. */
static void spread(const struct iovec *blocks, const ms_read_result *results, size_t count,
                   uint64_t payload) {
    for (size_t i = count; i-- > 0;) {
        if (results[i].status == MS_OK && blocks[i].iov_len > 0) {
            payload -= blocks[i].iov_len;
            move_back(blocks, i, payload, blocks[i].iov_len);
        }
    }
}

/* `payload` bytes and the trailer into the targets' blocks and `results`; `there` bytes have come
 * into the blocks. */
static ms_status receive_short(te_connection *connection, const struct iovec *blocks, size_t count,
                               uint64_t payload, ms_read_result *results, size_t there,
                               int64_t deadline_ns) {
    struct iovec cut[TE_FRAME_IOVECS + 1], *rest = cut;
    size_t rest_count = 0, came = 0, trailer = count * sizeof *results;
    uint64_t left = payload;
    for (size_t i = 0; i < count && left > 0; i++) {
        cut[rest_count] = blocks[i];
        cut[rest_count].iov_len = blocks[i].iov_len < left ? blocks[i].iov_len : (size_t)left;
        left -= cut[rest_count++].iov_len;
    }
    if (there > payload) {
        /* Some of the trailer lies where payload was expected, and what came after that at the
         * beginning of the trailer's own place: small items whose trailer is larger than they
         * are. */
        size_t expected = te_iov_bytes(blocks, count);
        size_t behind = there > expected ? there - expected : 0;
        size_t before = there - (size_t)payload - behind;
        memmove((uint8_t *)results + before, results, behind);
        te_iov_read(blocks, count, (size_t)payload, results, before);
    }
    cut[rest_count++] = (struct iovec){.iov_base = results, .iov_len = trailer};
    te_iov_advance(&rest, &rest_count, there);
    return te_connection_receive(connection, rest, rest_count, true, false, &came, deadline_ns);
}

ms_status te_part_read(te_moving *moved, const te_part *taken, te_connection *connection) {
    size_t count = taken->count, last = taken->first + count - 1;
    ms_read_item first_item = moved->reads[taken->first], last_item = moved->reads[last];
    uint64_t start;
    last_item.length = te_part_range(moved, taken, last, &start);
    last_item.offset += start;
    first_item.length = te_part_range(moved, taken, taken->first, &start);
    first_item.offset += start;
    uint32_t list[2] = {(uint32_t)count, 0};
    /* The items in the middle go out as they are: their layout is the wire's. */
    struct iovec body[4] = {
        {.iov_base = list, .iov_len = sizeof list},
        {.iov_base = &first_item, .iov_len = sizeof first_item},
        {.iov_base = (void *)(uintptr_t)(moved->reads + taken->first + 1),
         .iov_len = count > 2 ? (count - 2) * sizeof first_item : 0},
        {.iov_base = &last_item, .iov_len = count > 1 ? sizeof last_item : 0},
    };
    uint64_t request = te_next_request(connection);
    ms_status status =
        te_send(connection, MS_REQUEST, MS_READ, 0, request, te_deadline_ms(taken->deadline_ns),
                body, count > 1 ? 4 : 2, NULL, 0, taken->deadline_ns);
    if (status != MS_OK) {
        return status;
    }

    ms_header header;
    ms_read_result results[TE_FRAME_IOVECS];
    struct iovec parts[TE_FRAME_IOVECS + 2], *blocks = parts + 1;
    parts[0] = (struct iovec){.iov_base = &header, .iov_len = sizeof header};
    for (size_t i = 0; i < count; i++) {
        uint64_t length = te_part_range(moved, taken, taken->first + i, &start);
        blocks[i] = (struct iovec){.iov_base = (uint8_t *)moved->targets[taken->first + i] + start,
                                   .iov_len = (size_t)length};
        __builtin_prefetch(blocks[i].iov_base, 1); /* the answer is still on its way */
    }
    size_t trailer = count * sizeof *results, received = 0;
    blocks[count] = (struct iovec){.iov_base = results, .iov_len = trailer};
    status = te_connection_first(connection, parts, count + 2, taken->bytes <= TE_SPIN_BYTES,
                                 &received, taken->deadline_ns);
    if (status == MS_OK) {
        status = te_connection_check(connection, &header);
    }
    if (status != MS_OK) {
        return status;
    }
    size_t there = received - sizeof header;
    bool is_refused =
        header.status != MS_OK && header.payload_length == 0 && header.trailer_length == 0;
    bool is_answer = header.status == MS_OK && header.body_length == 0 &&
                     header.trailer_length == trailer && header.payload_length <= taken->bytes;
    uint64_t total = header.body_length + header.payload_length + header.trailer_length;
    if (header.request != request || header.method != MS_READ || !(is_refused || is_answer) ||
        there > total) {
        return te_connection_fail(connection, MS_BAD_FRAME,
                                  "the peer's answer to READ has impossible lengths");
    }
    if (is_refused) {
        return refused_read(moved, taken, connection, &header, blocks, count + 1, there);
    }
    if (header.payload_length == taken->bytes) {
        struct iovec *rest = parts;
        size_t rest_count = count + 2, came = 0;
        uint64_t ok_bytes = 0;
        te_iov_advance(&rest, &rest_count, received);
        status = te_connection_receive(connection, rest, rest_count, true,
                                       taken->bytes <= TE_SPIN_BYTES, &came, taken->deadline_ns);
        for (size_t i = 0; status == MS_OK && i < count; i++) {
            ok_bytes += results[i].status == MS_OK
                            ? te_part_range(moved, taken, taken->first + i, &start)
                            : 0;
        }
        if (status == MS_OK && ok_bytes != taken->bytes) {
            status = te_connection_fail(connection, MS_BAD_FRAME,
                                        "the peer's answer to READ does not add up");
        }
    } else {
        status = receive_short(connection, blocks, count, header.payload_length, results, there,
                               taken->deadline_ns);
        uint64_t ok_bytes = 0;
        for (size_t i = 0; status == MS_OK && i < count; i++) {
            ok_bytes += results[i].status == MS_OK ? blocks[i].iov_len : 0;
        }
        if (status == MS_OK && ok_bytes != header.payload_length) {
            status = te_connection_fail(connection, MS_BAD_FRAME,
                                        "the peer's answer to READ does not add up");
        }
        if (status == MS_OK) {
            spread(blocks, results, count, header.payload_length);
        }
    }
    for (size_t i = 0; status == MS_OK && i < count; i++) {
        read_result(moved, taken, taken->first + i, results[i]);
    }
    return status;
}
