/* te_read and te_write: many items in few frames, large totals over several connections.
 *
 * A transfer is a list of items and a cursor.  Whoever carries it takes the next part from the
 * cursor: up to `part_bytes` bytes and TE_FRAME_IOVECS blocks, an item being cut where a part is
 * full.  The caller carries the first part; for a large total, worker threads carry others over
 * connections of their own, if there are any free.  The caller waits only for parts that a worker
 * has taken.  So a busy worker costs speed, never progress, and on return nobody touches memory.
 *
 * A seal goes with the last byte of its object when the whole object is in one part: a server seals
 * what one frame has brought.  The seal of an object that is spread over parts goes by itself, when all
 * of them have been answered.
 *
 * A part is one frame.  Its answer is received by one recvmsg into header, targets and trailer,
 * which is right when every item is OK; else the bytes of later items lie too far in front, and
 * are moved to their places.
 */
#include "te_channel_rails.h"
#include "te_rdma.h"

#include <stdlib.h>
#include <string.h>

#include "te_fault.h"

#define SPIN_BYTES (1u << 20) /* the first bytes of a larger answer take longer than the spin */
#define PART_BYTES_MAX (16u << 20)
#define RETURNED_MAX 8
#define BUSY_NS TE_NS_PER_S
#define PATIENCE_NS (200 * TE_NS_PER_MS) /* with a rail that may be lost */
#define BUSY_LOOK_NS TE_NS_PER_MS

typedef struct part {
    size_t first, count; /* items */
    uint64_t head;       /* bytes of the first item that belong to an earlier part */
    uint64_t tail;       /* bytes of the last item up to where this part ends */
    uint64_t bytes;
    size_t seal_offset, seal_bytes;
    size_t
        unsealed; /* item whose seal goes by itself: an earlier part has bytes of its object, too */
    int64_t
        deadline_ns; /* of this attempt: the transfer's, or earlier where another rail may be tried */
} part;

#define NO_ITEM SIZE_MAX

typedef struct transfer {
    te_channel *channel;
    te_engine *engine;
    te_scope *scope; /* of the caller: it may be cancelled */
    int64_t deadline_ns;
    size_t count;
    const ms_read_item *reads; /* NULL: a write */
    void *const *targets;
    ms_read_result *results;
    const ms_write_item *writes;
    const void *const *sources;
    const uint8_t *seals;
    uint32_t *statuses;
    uint32_t flags;
    bool *is_unsealed; /* per item, of a write that may be striped: its seal goes by itself */
    bool is_striped;
    uint64_t part_bytes;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t next_item;
    uint64_t next_offset;
    size_t next_seal;
    part returned[RETURNED_MAX]; /* parts of workers whose connection broke */
    uint32_t returned_count;
    uint32_t active;  /* workers at work */
    bool is_over;     /* the caller has gone */
    ms_status status; /* the first failure */
    uint32_t references;
} transfer;

static uint64_t item_length(const transfer *moved, size_t i) {
    return moved->reads != NULL ? moved->reads[i].length : moved->writes[i].length;
}

/* Bytes that travel in the frame. */
static uint64_t item_payload(const transfer *moved, size_t i) {
    return moved->reads == NULL && moved->writes[i].source != 0 ? 0 : item_length(moved, i);
}

/* ---- parts ----------------------------------------------------------------------------------- */

/* Whether the part that begins at the cursor has the end of an object that began in another one. */
static bool begins_inside(const transfer *moved) {
    return moved->next_offset > 0 ||
           (moved->next_item > 0 && moved->writes[moved->next_item - 1].seal_length == 0);
}

/* Item `i` ends in the part: so may a seal. */
static void cut_seal(transfer *moved, part *cut, size_t i, bool *is_inside) {
    size_t length = moved->writes[i].seal_length;
    if (length == 0) {
        return;
    }
    if (*is_inside) {
        cut->unsealed = i;
        cut->seal_offset += length;
        moved->is_unsealed[i] = true;
        *is_inside = false;
    } else {
        cut->seal_bytes += length;
    }
    moved->next_seal += length;
}

/* The next part; under the lock.  False: there is none left. */
static bool cut_part(transfer *moved, part *cut) {
    if (moved->next_item == moved->count) {
        return false;
    }
    *cut = (part){.first = moved->next_item,
                  .head = moved->next_offset,
                  .seal_offset = moved->next_seal,
                  .unsealed = NO_ITEM};
    bool is_write = moved->reads == NULL;
    bool is_inside = is_write && moved->is_striped && begins_inside(moved);
    while (moved->next_item < moved->count && cut->count < TE_FRAME_IOVECS &&
           cut->bytes < moved->part_bytes) {
        uint64_t payload = item_payload(moved, moved->next_item);
        uint64_t left = payload == 0 ? 0 : payload - moved->next_offset,
                 room = moved->part_bytes - cut->bytes;
        cut->count++;
        if (left > room && left - room > moved->part_bytes / 4) { /* no crumbs */
            cut->bytes += room;
            moved->next_offset += room;
            cut->tail = moved->next_offset;
            return true;
        }
        cut->bytes += left;
        cut->tail = item_length(moved, moved->next_item);
        if (is_write) {
            cut_seal(moved, cut, moved->next_item, &is_inside);
        }
        moved->next_item++;
        moved->next_offset = 0;
    }
    return true;
}

static bool take_part(transfer *moved, part *taken) {
    pthread_mutex_lock(&moved->lock);
    bool found = false;
    if (moved->status == MS_OK && moved->returned_count > 0) {
        *taken = moved->returned[--moved->returned_count];
        found = true;
    } else if (moved->status == MS_OK) {
        found = cut_part(moved, taken);
    }
    taken->deadline_ns = moved->deadline_ns;
    pthread_mutex_unlock(&moved->lock);
    return found;
}

/* The range of item i that belongs to the part. */
static uint64_t range_of(const transfer *moved, const part *taken, size_t i, uint64_t *start) {
    *start = i == taken->first ? taken->head : 0;
    uint64_t end = i == taken->first + taken->count - 1 ? taken->tail : item_length(moved, i);
    return end - *start;
}

static bool is_cut(const transfer *moved, const part *taken, size_t i) {
    uint64_t start;
    return range_of(moved, taken, i, &start) != item_length(moved, i);
}

/* ---- reading --------------------------------------------------------------------------------- */

static void read_result(transfer *moved, const part *taken, size_t i, ms_read_result result) {
    if (!is_cut(moved, taken, i)) {
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
static ms_status refused_read(transfer *moved, const part *taken, te_connection *connection,
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

static ms_status exchange_read(transfer *moved, const part *taken, te_connection *connection) {
    size_t count = taken->count, last = taken->first + count - 1;
    ms_read_item first_item = moved->reads[taken->first], last_item = moved->reads[last];
    uint64_t start;
    last_item.length = range_of(moved, taken, last, &start);
    last_item.offset += start;
    first_item.length = range_of(moved, taken, taken->first, &start);
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
        uint64_t length = range_of(moved, taken, taken->first + i, &start);
        blocks[i] = (struct iovec){.iov_base = (uint8_t *)moved->targets[taken->first + i] + start,
                                   .iov_len = (size_t)length};
        __builtin_prefetch(blocks[i].iov_base, 1); /* the answer is still on its way */
    }
    size_t trailer = count * sizeof *results, received = 0;
    blocks[count] = (struct iovec){.iov_base = results, .iov_len = trailer};
    status = te_connection_first(connection, parts, count + 2, taken->bytes <= SPIN_BYTES,
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
                                       taken->bytes <= SPIN_BYTES, &came, taken->deadline_ns);
        for (size_t i = 0; status == MS_OK && i < count; i++) {
            ok_bytes +=
                results[i].status == MS_OK ? range_of(moved, taken, taken->first + i, &start) : 0;
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

/* ---- writing --------------------------------------------------------------------------------- */

static void write_status(transfer *moved, const part *taken, size_t i, uint32_t status) {
    if (!is_cut(moved, taken, i)) {
        moved->statuses[i] = status;
        return;
    }
    pthread_mutex_lock(&moved->lock);
    if (moved->statuses[i] == MS_PENDING || moved->statuses[i] == MS_OK) {
        moved->statuses[i] = status;
    }
    pthread_mutex_unlock(&moved->lock);
}

/* Whether the part's items go out otherwise than the caller gave them: cut, or without their seals. */
static bool is_changed(const transfer *moved, const part *taken) {
    return taken->unsealed != NO_ITEM || is_cut(moved, taken, taken->first) ||
           is_cut(moved, taken, taken->first + taken->count - 1);
}

static void change_items(const transfer *moved, const part *taken, ms_write_item *copies) {
    memcpy(copies, moved->writes + taken->first, taken->count * sizeof *copies);
    for (size_t i = 0; i < taken->count; i++) {
        uint64_t start;
        copies[i].length = range_of(moved, taken, taken->first + i, &start);
        copies[i].offset += start;
        copies[i].source_offset += start;
    }
    if (taken->unsealed != NO_ITEM) {
        copies[taken->unsealed - taken->first].seal_length = 0;
    }
    if (taken->tail < item_length(moved, taken->first + taken->count - 1)) {
        copies[taken->count - 1].seal_length = 0; /* it ends in a later part */
    }
}

/* Bytes that the peer copies from our shared memory. */
static uint64_t shared_bytes(const transfer *moved, const part *taken) {
    uint64_t bytes = 0;
    for (size_t i = taken->first; i < taken->first + taken->count; i++) {
        bytes += moved->writes[i].source != 0 ? moved->writes[i].length : 0;
    }
    return bytes;
}

static ms_status exchange_write(transfer *moved, const part *taken, te_connection *connection) {
    size_t count = taken->count, payload_count = 0;
    struct iovec payload[TE_FRAME_IOVECS];
    for (size_t i = 0; i < count; i++) {
        uint64_t start, length = range_of(moved, taken, taken->first + i, &start);
        if (moved->writes[taken->first + i].source == 0 && length > 0) {
            const uint8_t *source = moved->sources[taken->first + i];
            payload[payload_count++] = (struct iovec){
                .iov_base = (void *)(uintptr_t)(source + start), .iov_len = (size_t)length};
        }
    }
    const ms_write_item *items = moved->writes + taken->first; /* their layout is the wire's */
    ms_write_item few[16], *copies = few;
    if (is_changed(moved, taken)) {
        copies = count <= sizeof few / sizeof *few ? few : malloc(count * sizeof *copies);
        if (copies == NULL) {
            te_channel_set_error(moved->channel, "no memory for a request");
            return MS_NO_MEMORY;
        }
        change_items(moved, taken, copies);
        items = copies;
    }
    uint32_t list[2] = {(uint32_t)count, 0};
    struct iovec body[3] = {
        {.iov_base = list, .iov_len = sizeof list},
        {.iov_base = (void *)(uintptr_t)items, .iov_len = count * sizeof *items},
        {.iov_base = (void *)(uintptr_t)(moved->seals + taken->seal_offset),
         .iov_len = taken->seal_bytes},
    };
    uint64_t request = te_next_request(connection);
    uint32_t answer[2 + TE_FRAME_IOVECS];
    te_reply reply = {.body = (uint8_t *)answer, .body_size = sizeof answer};
    ms_status status = te_send(
        connection, MS_REQUEST, MS_WRITE, moved->flags, request, te_deadline_ms(taken->deadline_ns),
        body, taken->seal_bytes > 0 ? 3 : 2, payload, payload_count, taken->deadline_ns);
    if (copies != few) {
        free(copies);
    }
    if (status == MS_OK) {
        te_expect(connection, te_copy_ns(shared_bytes(moved, taken)));
        status = te_receive(connection, &reply, taken->deadline_ns);
        te_expect(connection, 0);
    }
    if (status != MS_OK) {
        return status;
    }
    if (reply.header.request != request || reply.header.method != MS_WRITE) {
        return te_connection_fail(connection, MS_BAD_FRAME, "the peer answered another request");
    }
    bool is_list = reply.header.body_length == (2 + count) * sizeof *answer && answer[0] == count &&
                   answer[1] == 0;
    for (size_t i = 0; i < count; i++) {
        uint32_t one =
            reply.header.status == MS_OK || !is_list ? reply.header.status : answer[2 + i];
        write_status(moved, taken, taken->first + i, one);
        if (one == MS_NOT_REGISTERED && moved->writes[taken->first + i].source != 0) {
            te_channel_shares_forget(moved->channel);
        }
    }
    if (reply.header.status != MS_OK && !is_list) {
        char sentence[TE_ERROR_BYTES];
        te_error(sentence, "%.*s", (int)reply.header.body_length, (const char *)answer);
        te_channel_set_error(moved->channel, sentence);
    }
    return MS_OK;
}

/* ---- carrying -------------------------------------------------------------------------------- */

static ms_status exchange(transfer *moved, const part *taken, te_connection *connection) {
    return moved->reads != NULL ? exchange_read(moved, taken, connection)
                                : exchange_write(moved, taken, connection);
}

/* Reading twice harms nobody.  Writing the same bytes again does not either, unless the first attempt
 * could still be carried out later; and a seal is said once. */
static bool may_repeat(const transfer *moved, const part *taken, ms_status status) {
    if (moved->reads != NULL) {
        return status == MS_UNAVAILABLE || status == MS_IO_ERROR;
    }
    return status == MS_UNAVAILABLE && taken->seal_bytes == 0;
}

/* Whether it may be asked for again over another connection though nobody knows what became of the first attempt: a READ,
 * or seals alone (of an object that is sealed, a SEAL is only answered). */
static bool is_harmless_twice(const transfer *moved, const part *taken) {
    return moved->reads != NULL || (taken->bytes == 0 && shared_bytes(moved, taken) == 0);
}

/* One exchange.  A peer with several addresses is given a moment on one of them, then longer on others: a rail that is lost
 * says nothing.  `*connection` is replaced then; NULL: there is no other. */
static ms_status exchange_somewhere(transfer *moved, part *taken, te_connection **connection) {
    bool has_others = te_channel_rails_are_several(te_channel_rails_of(moved->channel)) &&
                      taken->bytes <= SPIN_BYTES && is_harmless_twice(moved, taken);
    for (int64_t patience_ns = PATIENCE_NS;; patience_ns *= 2) {
        int64_t limit_ns = te_now_ns() + patience_ns;
        bool is_limited = has_others && limit_ns < moved->deadline_ns;
        taken->deadline_ns = is_limited ? limit_ns : moved->deadline_ns;
        ms_status status = exchange(moved, taken, *connection);
        if (status != MS_TIMEOUT || !is_limited) {
            return status;
        }
        te_connection_doubt(*connection);
        te_checkin(*connection, false);
        *connection = NULL;
        status = te_checkout(moved->channel, moved->deadline_ns, connection);
        if (status != MS_OK) {
            return status;
        }
    }
}

static void fail(transfer *moved, ms_status status) {
    pthread_mutex_lock(&moved->lock);
    if (moved->status == MS_OK) {
        moved->status = status;
    }
    pthread_mutex_unlock(&moved->lock);
}

static void let_go(transfer *moved) {
    pthread_mutex_lock(&moved->lock);
    bool is_last = --moved->references == 0;
    pthread_mutex_unlock(&moved->lock);
    if (is_last) {
        pthread_mutex_destroy(&moved->lock);
        pthread_cond_destroy(&moved->changed);
        free(moved);
    }
}

/* A worker's share: as many parts as it gets, over a connection of its own; without one it does
 * nothing. */
static void carry_in_worker(void *argument) {
    transfer *moved = argument;
    pthread_mutex_lock(&moved->lock);
    bool has_work = !moved->is_over && moved->status == MS_OK;
    moved->active += has_work;
    pthread_mutex_unlock(&moved->lock);
    if (has_work) {
        te_scope *outer = te_scope_enter(moved->scope);
        te_connection *connection = NULL;
        ms_status status = te_checkout_try(moved->channel, moved->deadline_ns, &connection);
        part taken;
        bool has_failed = status != MS_OK, is_returned = false;
        while (!has_failed && take_part(moved, &taken)) {
            status = exchange(moved, &taken, connection);
            has_failed = status != MS_OK;
            is_returned = has_failed && may_repeat(moved, &taken, status);
        }
        if (connection != NULL) {
            te_checkin(connection, !has_failed);
        }
        te_scope_enter(outer);
        pthread_mutex_lock(&moved->lock);
        if (is_returned && moved->returned_count < RETURNED_MAX) {
            moved->returned[moved->returned_count++] = taken;
        } else if (has_failed && connection != NULL && moved->status == MS_OK) {
            moved->status = status;
        }
        moved->active--;
        pthread_cond_signal(&moved->changed);
        pthread_mutex_unlock(&moved->lock);
    }
    let_go(moved);
}

/* Waits for the workers.  True: one has brought a part back. */
static bool wait_for_workers(transfer *moved) {
    pthread_mutex_lock(&moved->lock);
    while (moved->active > 0 && (moved->returned_count == 0 || moved->status != MS_OK)) {
        pthread_cond_wait(&moved->changed, &moved->lock); /* each has the deadline itself */
    }
    bool is_returned = moved->returned_count > 0 && moved->status == MS_OK;
    moved->is_over = !is_returned;
    pthread_mutex_unlock(&moved->lock);
    return is_returned;
}

/* The caller's share: until nothing is left.  `connection` is checked in. */
static ms_status carry(transfer *moved, te_connection *connection) {
    ms_status status = MS_OK;
    part taken;
    int repeats = 0;
    do {
        while (status == MS_OK && take_part(moved, &taken)) {
            status = exchange_somewhere(moved, &taken, &connection);
            while (connection != NULL && may_repeat(moved, &taken, status) && repeats++ < 2) {
                te_checkin(connection, false);
                connection = NULL;
                status = te_checkout(moved->channel, moved->deadline_ns, &connection);
                if (status != MS_OK) {
                    break;
                }
                status = exchange_somewhere(moved, &taken, &connection);
            }
        }
        if (status != MS_OK) {
            fail(moved, status);
        }
    } while (wait_for_workers(moved));
    if (connection != NULL) {
        te_checkin(connection, status == MS_OK || status == MS_TOO_LARGE || status == MS_NO_MEMORY);
    }
    return moved->status;
}

static uint64_t sum_payload(const transfer *moved) {
    uint64_t total = 0;
    for (size_t i = 0; i < moved->count; i++) {
        total += item_payload(moved, i);
    }
    return total;
}

/* How many connections a transfer of `total` bytes is worth. */
static uint32_t stripes_for(const transfer *moved, uint64_t total, bool is_unix) {
    uint64_t slices = total / moved->engine->config.slice_bytes;
    uint32_t most = moved->engine->config.worker_threads + 1;
    most = most < moved->engine->stripes_max ? most : moved->engine->stripes_max;
    if (is_unix || slices < 2) {
        return 1;
    }
    return slices < most ? (uint32_t)slices : most;
}

/* The whole of it, from a transfer of the caller that has no lock yet. */
static ms_status run(const transfer *wanted) {
    te_connection *connection = NULL;
    ms_status status = te_checkout(wanted->channel, wanted->deadline_ns, &connection);
    if (status != MS_OK) {
        return status;
    }
    uint64_t total = sum_payload(wanted);
    uint32_t stripes = stripes_for(wanted, total, connection->is_unix);
    transfer own, *moved = &own;
    if (stripes > 1) { /* workers may look at it after we have gone */
        moved = malloc(sizeof *moved);
        stripes = moved == NULL ? 1 : stripes;
        moved = moved == NULL ? &own : moved;
    }
    *moved = *wanted;
    moved->references = 1;
    moved->part_bytes = UINT64_MAX;
    pthread_mutex_init(&moved->lock, NULL);
    pthread_cond_init(&moved->changed, NULL);
    if (stripes > 1) {
        moved->part_bytes = (total + stripes - 1) / stripes;
        moved->part_bytes = moved->part_bytes < PART_BYTES_MAX ? moved->part_bytes : PART_BYTES_MAX;
        moved->is_striped = true;
        for (uint32_t i = 1; i < stripes; i++) {
            pthread_mutex_lock(&moved->lock);
            moved->references++;
            pthread_mutex_unlock(&moved->lock);
            if (te_spawn(moved->engine, carry_in_worker, moved) != MS_OK) {
                let_go(moved);
            }
        }
    }
    status = carry(moved, connection);
    if (moved == &own) {
        pthread_mutex_destroy(&own.lock);
        pthread_cond_destroy(&own.changed);
    } else {
        let_go(moved);
    }
    return status;
}

/* ---- what RDMA has left ----------------------------------------------------------------------- */

static ms_status read_rest(const transfer *wanted) {
    size_t left = 0, at = 0;
    for (size_t i = 0; i < wanted->count; i++) {
        left += wanted->results[i].status == MS_PENDING;
    }
    if (left == 0 || left == wanted->count) {
        return left == 0 ? MS_OK : run(wanted);
    }
    ms_read_item *items = malloc(left * sizeof *items);
    void **targets = malloc(left * sizeof *targets);
    ms_read_result *results = malloc(left * sizeof *results);
    ms_status status = MS_NO_MEMORY;
    if (items != NULL && targets != NULL && results != NULL) {
        for (size_t i = 0; i < wanted->count; i++) {
            if (wanted->results[i].status == MS_PENDING) {
                items[at] = wanted->reads[i];
                targets[at] = wanted->targets[i];
                results[at++] = (ms_read_result){.status = MS_PENDING};
            }
        }
        transfer rest = *wanted;
        rest.count = left;
        rest.reads = items;
        rest.targets = targets;
        rest.results = results;
        status = run(&rest);
        at = 0;
        for (size_t i = 0; i < wanted->count && status == MS_OK; i++) {
            if (wanted->results[i].status == MS_PENDING) {
                wanted->results[i] = results[at++];
            }
        }
    }
    free(items);
    free((void *)targets);
    free(results);
    return status;
}

static ms_status write_all(transfer *wanted);

/* What RDMA has written travels no more: such an item stays only for its seal. */
static ms_status write_rest(const transfer *wanted) {
    size_t left = 0, at = 0, moved = 0;
    for (size_t i = 0; i < wanted->count; i++) {
        moved += wanted->statuses[i] == MS_OK;
        left += wanted->statuses[i] != MS_OK || wanted->writes[i].seal_length > 0;
    }
    transfer rest = *wanted;
    if (left == 0 || moved == 0) {
        return left == 0 ? MS_OK : write_all(&rest);
    }
    ms_write_item *items = malloc(left * sizeof *items);
    const void **sources = malloc(left * sizeof *sources);
    uint32_t *statuses = malloc(left * sizeof *statuses);
    ms_status status = MS_NO_MEMORY;
    if (items != NULL && sources != NULL && statuses != NULL) {
        for (size_t i = 0; i < wanted->count; i++) {
            bool is_there = wanted->statuses[i] == MS_OK;
            if (is_there && wanted->writes[i].seal_length == 0) {
                continue;
            }
            items[at] = wanted->writes[i];
            sources[at] = wanted->sources[i];
            statuses[at] = MS_PENDING;
            if (is_there) {
                items[at].offset = items[at].length = 0;
            }
            at++;
        }
        rest.count = left;
        rest.writes = items;
        rest.sources = sources;
        rest.statuses = statuses;
        status = write_all(&rest);
        at = 0;
        for (size_t i = 0; i < wanted->count && status == MS_OK; i++) {
            if (wanted->statuses[i] != MS_OK || wanted->writes[i].seal_length > 0) {
                wanted->statuses[i] = statuses[at++];
            }
        }
    }
    free(items);
    free((void *)sources);
    free(statuses);
    return status;
}

/* Small writes go with their SEAL in one frame: there is nothing to gain. */
static bool is_for_rdma(const transfer *wanted) {
    if (wanted->engine->rdma == NULL) {
        return false;
    }
    uint64_t bytes = 0;
    for (size_t i = 0; i < wanted->count; i++) {
        bytes += item_payload(wanted, i);
    }
    return bytes >= wanted->engine->rdma->settings.write_bytes_min;
}

/* ---- the interface --------------------------------------------------------------------------- */

/* Whether it goes over rails first.  With one address, and nobody who cares, that is all that it costs. */
static bool is_for_rails(const transfer *wanted, const te_transfer_options *options) {
    te_channel_rails *rails = te_channel_rails_of(wanted->channel);
    if (options != NULL && options->is_meant)
        te_channel_rails_want(rails);
    return te_channel_rails_are_used(rails) &&
           sum_payload(wanted) >= wanted->engine->rails_bytes_min;
}

ms_status te_read_as(te_channel *channel, const ms_read_item *items, void *const *targets,
                     size_t count, ms_read_result *results, const te_transfer_options *options,
                     int64_t deadline_ns) {
    transfer wanted = {
        .channel = channel,
        .engine = te_channel_engine(channel),
        .scope = te_scope_current(),
        .deadline_ns = deadline_ns,
        .count = count,
        .reads = items,
        .targets = targets,
        .results = results,
    };
    for (size_t i = 0; i < count; i++) {
        results[i] = (ms_read_result){.status = MS_PENDING};
    }
    ms_status status = te_channel_enter(channel);
    if (status == MS_OK) {
        bool is_tried = wanted.engine->rdma != NULL && count > 0;
        if (is_tried) {
            status = te_rdma_read(channel, items, targets, count, results, deadline_ns);
        }
        if (status == MS_OK && is_for_rails(&wanted, options)) {
            is_tried = true;
            status = te_channel_rails_read(channel, items, targets, count, results, options,
                                           deadline_ns);
        }
        if (status == MS_OK && count > 0) {
            status = is_tried ? read_rest(&wanted) : run(&wanted);
        }
        te_channel_leave(channel);
    }
    for (size_t i = 0; status != MS_OK && i < count; i++) {
        results[i] = (ms_read_result){.status = (uint32_t)status};
    }
    return status;
}

ms_status te_read(te_channel *channel, const ms_read_item *items, void *const *targets,
                  size_t count, ms_read_result *results, int64_t deadline_ns) {
    return te_read_as(channel, items, targets, count, results, NULL, deadline_ns);
}

/* Seals that went with no part: every byte of theirs has been answered.  Each is an item without bytes. */
static ms_status write_seals(const transfer *written) {
    size_t sealed = 0, bytes = 0, offset = 0, kept = 0;
    bool is_whole = true; /* every item of the object so far has been answered with OK */
    for (size_t i = 0; i < written->count; i++) {
        is_whole = is_whole && written->statuses[i] == MS_OK;
        bool is_due = written->is_unsealed[i] && is_whole;
        if (written->writes[i].seal_length > 0) { /* the object's last item */
            written->is_unsealed[i] = is_due;
            is_whole = true;
        }
        sealed += is_due;
        bytes += is_due ? written->writes[i].seal_length : 0;
    }
    if (sealed == 0) {
        return MS_OK;
    }
    ms_write_item *items = malloc(sealed * sizeof *items);
    uint32_t *answers = malloc(sealed * sizeof *answers);
    size_t *origins = malloc(sealed * sizeof *origins);
    const void **sources = calloc(sealed, sizeof *sources);
    uint8_t *kept_seals = malloc(bytes);
    ms_status status = MS_NO_MEMORY;
    if (items != NULL && answers != NULL && origins != NULL && sources != NULL &&
        kept_seals != NULL) {
        sealed = 0;
        for (size_t i = 0; i < written->count; i++) {
            uint32_t length = written->writes[i].seal_length;
            if (written->is_unsealed[i]) {
                items[sealed] = written->writes[i];
                items[sealed].source = 0;
                items[sealed].offset = items[sealed].length = items[sealed].source_offset = 0;
                answers[sealed] = MS_PENDING;
                origins[sealed++] = i;
                memcpy(kept_seals + kept, written->seals + offset, length);
                kept += length;
            }
            offset += length;
        }
        transfer wanted = *written;
        wanted.count = sealed;
        wanted.writes = items;
        wanted.sources = sources;
        wanted.seals = kept_seals;
        wanted.statuses = answers;
        wanted.is_unsealed = NULL;
        status = run(&wanted);
        for (size_t i = 0; i < sealed && status == MS_OK; i++) {
            written->statuses[origins[i]] = answers[i];
        }
    }
    free(items);
    free(answers);
    free(origins);
    free(sources);
    free(kept_seals);
    return status;
}

/* A connection over which a part of an object went first, and which was cut since, may not have given back its use of
 * the extent yet: then the server says BUSY to the SEAL, for a moment. */
static ms_status seal_busy(const transfer *written) {
    const int64_t until_ns = te_now_ns() + BUSY_NS;
    transfer again = *written;
    ms_status status = MS_OK;
    again.is_unsealed = NULL;
    while (status == MS_OK) {
        bool is_busy = false;
        int64_t now_ns = te_now_ns();
        for (size_t i = 0; i < written->count; i++) {
            is_busy |= written->statuses[i] == MS_BUSY && written->writes[i].seal_length > 0;
        }
        if (!is_busy || now_ns >= until_ns || now_ns >= written->deadline_ns) {
            break;
        }
        if (again.is_unsealed == NULL) {
            again.is_unsealed = malloc(written->count * sizeof *again.is_unsealed);
        }
        if (again.is_unsealed == NULL) {
            return MS_NO_MEMORY;
        }
        for (size_t i = 0; i < written->count; i++) {
            again.is_unsealed[i] =
                written->statuses[i] == MS_BUSY && written->writes[i].seal_length > 0;
            if (again.is_unsealed[i]) {
                written->statuses[i] = MS_OK; /* its bytes are there */
            }
        }
        nanosleep(&(struct timespec){.tv_nsec = BUSY_LOOK_NS}, NULL);
        status = write_seals(&again);
    }
    free(again.is_unsealed);
    return status;
}

/* Bytes and seals, with room to note which seals went with no part. */
static ms_status write_all(transfer *wanted) {
    bool few[16] = {false};
    wanted->is_unsealed = few;
    if (wanted->count > sizeof few / sizeof *few) {
        wanted->is_unsealed = calloc(wanted->count, sizeof *wanted->is_unsealed);
        if (wanted->is_unsealed == NULL) {
            te_channel_set_error(wanted->channel, "no memory for a request");
            return MS_NO_MEMORY;
        }
    }
    ms_status status = run(wanted);
    if (status == MS_OK) {
        status = write_seals(wanted);
    }
    if (wanted->is_unsealed != few) {
        free(wanted->is_unsealed);
    }
    return status;
}

ms_status te_write_as(te_channel *channel, const ms_write_item *items, const void *const *sources,
                      size_t count, const void *seals, size_t seals_length, uint32_t flags,
                      uint32_t *statuses, const te_transfer_options *options, int64_t deadline_ns) {
    transfer wanted = {
        .channel = channel,
        .engine = te_channel_engine(channel),
        .scope = te_scope_current(),
        .deadline_ns = deadline_ns,
        .count = count,
        .writes = items,
        .sources = sources,
        .seals = seals,
        .statuses = statuses,
        .flags = flags,
    };
    size_t sealed_bytes = 0;
    for (size_t i = 0; i < count; i++) {
        statuses[i] = MS_PENDING;
        sealed_bytes += items[i].seal_length;
    }
    if (sealed_bytes != seals_length || (flags & MS_FLAG_RELAY) != 0) {
        te_channel_set_error(channel,
                             "te_write: the seals do not add up, or MS_FLAG_RELAY was given");
        return MS_BAD_REQUEST;
    }
    ms_status status = te_channel_enter(channel);
    if (status == MS_OK) {
        bool is_tried = count > 0 && is_for_rdma(&wanted);
        if (is_tried) {
            status = te_rdma_write(channel, items, sources, count, statuses, deadline_ns);
        }
        bool is_over_rails = status == MS_OK && is_for_rails(&wanted, options);
        if (is_over_rails) {
            is_tried = true;
            status = te_channel_rails_write(channel, items, sources, count, statuses, options,
                                            deadline_ns);
        }
        if (status == MS_OK && count > 0) {
            status = is_tried ? write_rest(&wanted) : write_all(&wanted);
        }
        if (status == MS_OK && is_over_rails) {
            status = seal_busy(&wanted);
        }
        te_channel_leave(channel);
    }
    for (size_t i = 0; status != MS_OK && i < count; i++) {
        statuses[i] = (uint32_t)status;
    }
    return status;
}

ms_status te_write(te_channel *channel, const ms_write_item *items, const void *const *sources,
                   size_t count, const void *seals, size_t seals_length, uint32_t flags,
                   uint32_t *statuses, int64_t deadline_ns) {
    return te_write_as(channel, items, sources, count, seals, seals_length, flags, statuses, NULL,
                       deadline_ns);
}
