/* Reading frames that cannot be trusted, and writing frames.
 *
 * A ms_reader is a cursor over bytes that came from somewhere else.  Nothing is read beyond its end,
 * no count is believed that the remaining bytes cannot hold, and after the first fault every further
 * call fails too: so a decoder reads everything and asks once, at the end.  It allocates nothing and
 * copies structs out, so the bytes need no alignment.  Views point into the bytes and live as long.
 *
 *     ms_reader reader = ms_reader_of(body, header->body_length);
 *     ms_batch batch;
 *     ms_put_item_view item;
 *     for (ms_reader_batch(&reader, sizeof(ms_put_item), &batch); ms_reader_put_item(&reader, &item);) ...
 *     if (!ms_reader_is_done(&reader)) return MS_BAD_FRAME;
 *
 * (ms_body_valid tells before a loop with effects whether the whole body is well formed.)
 *
 * A ms_writer appends to the caller's memory, or to its own, which grows up to a bound.  It too keeps
 * its first fault: write everything and look at `status` once.
 */
#ifndef MS_FRAME_H
#define MS_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "ms_wire.h"

/* Longest strings in a HELLO and in MEMBERS. */
#define MS_TOKEN_BYTES_MAX 8192u
#define MS_NAME_BYTES_MAX 255u
#define MS_SOCKET_PATH_BYTES_MAX 107u /* sockaddr_un.sun_path without its end */
#define MS_ADDRESSES_BYTES_MAX 4096u
#define MS_PATTERN_BYTES_MAX 4096u
#define MS_NOTIFY_BYTES_MAX (1u << 20)
#define MS_TOPOLOGY_BYTES_MAX (1u << 20)
#define MS_SENTENCE_BYTES_MAX 4096u

/* ---- header ------------------------------------------------------------------------------------ */

/* begin cdef */
typedef enum {
    MS_FAULT_NONE = 0,
    MS_FAULT_MAGIC = 1,   /* not one of our peers, or a stream that lost its place */
    MS_FAULT_VERSION = 2, /* not the version agreed on in HELLO */
    MS_FAULT_KIND = 3,    /* neither request, answer nor one-way */
    MS_FAULT_HELLO = 4,   /* something else than HELLO comes first */
    MS_FAULT_BODY = 5,    /* body_length beyond its bound */
    MS_FAULT_TRAILER = 6, /* trailer_length beyond its bound */
    MS_FAULT_PAYLOAD = 7, /* payload_length beyond its bound */
    MS_FAULT_RESERVED = 8 /* a reserved length is set: the frame would be read from a wrong place */
} ms_fault;

/* A sentence for logs. */
const char *ms_fault_text(ms_fault fault);

/* The wire version that both sides speak, or 0 when their ranges do not overlap. */
uint8_t ms_version_agree(uint8_t oldest_a, uint8_t newest_a, uint8_t oldest_b, uint8_t newest_b);
/* end cdef */

/* What is wrong with a header, if anything.  `version` is what HELLO agreed on, 0 before that: then only
 * HELLO and its answer may come, with a small body.  After any fault the stream has lost its place: close
 * the connection.  An unknown method is no fault: its frame can be skipped and answered BAD_REQUEST. */
ms_fault ms_header_check(const ms_header *header, uint8_t version);

/* A header without lengths.  HELLO and its answer carry version 1 for ever, so that peers of any two
 * versions can tell each other which they speak; other frames carry `version`. */
static inline ms_header ms_header_make(uint8_t version, uint8_t kind, uint16_t method,
                                       uint64_t request) {
    return (ms_header){.magic = MS_MAGIC,
                       .version = method == MS_HELLO ? 1 : version,
                       .kind = kind,
                       .method = method,
                       .request = request};
}

/* Bytes that follow the header.  Bounded: ms_header_check has passed. */
static inline uint64_t ms_header_rest(const ms_header *header) {
    return (uint64_t)header->body_length + header->payload_length + header->trailer_length;
}

/* Faults that tests/fuzz plants by defining these otherwise, to see that the fuzzer finds them. */
#ifndef MS_PLANT_READER_SLACK
#define MS_PLANT_READER_SLACK 0u /* bytes that a reader hands out behind its end */
#endif

/* ---- reader ------------------------------------------------------------------------------------ */

typedef struct ms_reader {
    const uint8_t *at, *end;
    bool is_bad;
} ms_reader;

/* Bytes of a string; not zero-terminated. */
typedef struct ms_text {
    const char *data;
    uint32_t length;
} ms_text;

/* Equal items side by side, at any alignment: get them with MS_ARRAY_GET. */
typedef struct ms_array {
    const uint8_t *items;
    uint32_t count;
} ms_array;

static inline ms_reader ms_reader_of(const void *data, size_t length) {
    static const uint8_t nothing[1];
    const uint8_t *at = length != 0 ? data : nothing;
    return (ms_reader){.at = at, .end = at + length, .is_bad = false};
}

static inline size_t ms_reader_left(const ms_reader *reader) {
    return (size_t)(reader->end - reader->at);
}

/* Whether all was well and nothing is left over: bytes behind what a message ends with are a fault. */
static inline bool ms_reader_is_done(const ms_reader *reader) {
    return !reader->is_bad && reader->at == reader->end;
}

static inline bool ms_reader_fail(ms_reader *reader) {
    reader->is_bad = true;
    reader->at = reader->end;
    return false;
}

/* The next `length` bytes, or NULL. */
static inline const uint8_t *ms_reader_bytes(ms_reader *reader, size_t length) {
    if (reader->is_bad || length > ms_reader_left(reader) + MS_PLANT_READER_SLACK) {
        ms_reader_fail(reader);
        return NULL;
    }
    const uint8_t *bytes = reader->at;
    reader->at += length;
    return bytes;
}

/* Bytes with the zeros that fill them up to a multiple of 8.  At the very end the zeros may be missing. */
static inline const uint8_t *ms_reader_padded(ms_reader *reader, size_t length) {
    const uint8_t *bytes = ms_reader_bytes(reader, length);
    if (bytes != NULL) {
        size_t padding = (8 - length % 8) % 8, left = ms_reader_left(reader);
        reader->at += padding < left ? padding : left;
    }
    return bytes;
}

static inline bool ms_reader_copy(ms_reader *reader, void *out, size_t length) {
    const uint8_t *bytes = ms_reader_bytes(reader, length);
    if (bytes == NULL)
        return false;
    memcpy(out, bytes, length);
    return true;
}

/* The next struct into *out; false, and *out as it was, when it is not there. */
#define MS_READER_STRUCT(reader, out) ms_reader_copy((reader), (out), sizeof *(out))

static inline uint32_t ms_reader_u32(ms_reader *reader) {
    uint32_t value = 0;
    ms_reader_copy(reader, &value, sizeof value);
    return value;
}

static inline uint64_t ms_reader_u64(ms_reader *reader) {
    uint64_t value = 0;
    ms_reader_copy(reader, &value, sizeof value);
    return value;
}

static inline bool ms_reader_string(ms_reader *reader, uint32_t length_max, ms_text *out) {
    uint32_t length = ms_reader_u32(reader);
    if (reader->is_bad || length > length_max)
        return ms_reader_fail(reader);
    const uint8_t *bytes = ms_reader_bytes(reader, length);
    if (bytes == NULL)
        return false;
    *out = (ms_text){.data = (const char *)bytes, .length = length};
    size_t padding = (8 - (length + 4u) % 8) % 8, left = ms_reader_left(reader);
    reader->at += padding < left ? padding : left;
    return true;
}

/* Believe a count only if so many items can be there and a batch may have so many. */
static inline bool ms_reader_count_fits(ms_reader *reader, uint32_t count, size_t item_bytes_min) {
    if (reader->is_bad || count > MS_BATCH_ITEMS_MAX ||
        count > ms_reader_left(reader) / item_bytes_min)
        return ms_reader_fail(reader);
    return true;
}

/* A list's head: the count of its items, each of at least item_bytes_min bytes.  0 on a fault. */
static inline uint32_t ms_reader_list(ms_reader *reader, size_t item_bytes_min) {
    uint32_t count = ms_reader_u32(reader);
    ms_reader_u32(reader);
    return ms_reader_count_fits(reader, count, item_bytes_min) ? count : 0;
}

/* `count` items of a known size. */
static inline bool ms_reader_items(ms_reader *reader, uint32_t count, size_t item_bytes,
                                   ms_array *out) {
    if (!ms_reader_count_fits(reader, count, item_bytes))
        return false;
    *out = (ms_array){.items = ms_reader_bytes(reader, count * item_bytes), .count = count};
    return out->items != NULL;
}

/* A list of items of a known size: of ms_hash, ms_counter, u32 ... */
static inline bool ms_reader_array(ms_reader *reader, size_t item_bytes, ms_array *out) {
    uint32_t count = ms_reader_list(reader, item_bytes);
    return !reader->is_bad && ms_reader_items(reader, count, item_bytes, out);
}

/* Item `index` (below array.count) into *out. */
#define MS_ARRAY_GET(array, index, out)                                                            \
    memcpy((out), (array).items + (size_t)(index) * sizeof *(out), sizeof *(out))

static inline ms_hash ms_array_hash(ms_array array, uint32_t index) {
    ms_hash hash;
    MS_ARRAY_GET(array, index, &hash);
    return hash;
}

static inline uint32_t ms_array_u32(ms_array array, uint32_t index) {
    uint32_t value;
    MS_ARRAY_GET(array, index, &value);
    return value;
}

/* ---- messages that are read item by item --------------------------------------------------------- */

typedef struct ms_replica_view {
    ms_replica head;
    ms_array extents; /* ms_extent: see ms_replica_extent */
} ms_replica_view;

typedef struct ms_location_view {
    ms_location head;
    ms_replica_view replicas[MS_REPLICAS_MAX]; /* head.replica_count are set */
} ms_location_view;

static inline ms_extent ms_replica_extent(const ms_replica_view *replica, uint32_t index) {
    ms_extent extent;
    MS_ARRAY_GET(replica->extents, index, &extent);
    return extent;
}

/* Pages that an object of `size` bytes owns: at least one. */
static inline uint64_t ms_pages_of(uint64_t size) {
    return size == 0 ? 1 : (size - 1) / MS_PAGE_SIZE + 1;
}

/* One ms_location with its replicas.  What it promises beyond the form: a known status; a size of at
 * most MS_VALUE_BYTES_MAX; each replica has 1 to MS_EXTENTS_MAX extents, each of at least one page, none
 * wrapping round, together enough for the size.  So a reader may cut the object along the extents unasked. */
bool ms_reader_location(ms_reader *reader, ms_location_view *out);
/* A ms_replica and its extents, for an object of `size` bytes. */
bool ms_reader_replica(ms_reader *reader, uint64_t size, ms_replica_view *out);

/* The head of PUT_START, PUT_END, REVOKE and REMOVE; batch->count is 0 on a fault. */
static inline bool ms_reader_batch(ms_reader *reader, size_t item_bytes_min, ms_batch *out) {
    *out = (ms_batch){0};
    if (!MS_READER_STRUCT(reader, out))
        return false;
    if (ms_reader_count_fits(reader, out->count, item_bytes_min))
        return true;
    out->count = 0;
    return false;
}

typedef struct ms_put_item_view {
    ms_put_item head;
    const char *key; /* head.key_length bytes, at most MS_KEY_BYTES_MAX; ask ms_key_valid */
} ms_put_item_view;

static inline bool ms_reader_put_item(ms_reader *reader, ms_put_item_view *out) {
    if (!MS_READER_STRUCT(reader, &out->head))
        return false;
    if (out->head.key_length > MS_KEY_BYTES_MAX)
        return ms_reader_fail(reader);
    out->key = (const char *)ms_reader_padded(reader, out->head.key_length);
    return out->key != NULL;
}

typedef struct ms_key_item_view {
    ms_key_item head;
    const char *key; /* as in ms_put_item_view */
} ms_key_item_view;

static inline bool ms_reader_key_item(ms_reader *reader, ms_key_item_view *out) {
    if (!MS_READER_STRUCT(reader, &out->head))
        return false;
    if (out->head.key_length > MS_KEY_BYTES_MAX)
        return ms_reader_fail(reader);
    out->key = (const char *)ms_reader_padded(reader, out->head.key_length);
    return out->key != NULL;
}

typedef struct ms_seal_view {
    ms_seal head;
    const char *tenant; /* head.tenant_length bytes, at most MS_TENANT_BYTES_MAX */
    const char *key;    /* head.key_length bytes, at most MS_KEY_BYTES_MAX */
} ms_seal_view;

/* One seal: also checks part < part_count <= MS_EXTENTS_MAX and the size. */
bool ms_reader_seal(ms_reader *reader, ms_seal_view *out);
/* Bytes of a seal on the wire. */
static inline uint32_t ms_seal_length(uint32_t tenant_length, uint32_t key_length) {
    return (uint32_t)sizeof(ms_seal) + (tenant_length + key_length + 7u) / 8u * 8u;
}

typedef struct ms_inventory_item_view {
    ms_inventory_item head;
    const char *tenant; /* head.tenant_length bytes, at most MS_TENANT_BYTES_MAX; 0 in state 2 */
    const char *key;    /* head.key_length bytes, at most MS_KEY_BYTES_MAX; 0 in state 2 */
} ms_inventory_item_view;
bool ms_reader_inventory_item(ms_reader *reader, ms_inventory_item_view *out);

typedef struct ms_list_item_view {
    ms_list_item head;
    const char *key;
} ms_list_item_view;
bool ms_reader_list_item(ms_reader *reader, ms_list_item_view *out);

typedef struct ms_event_view {
    ms_event head;
    const char *key;
} ms_event_view;
bool ms_reader_event(ms_reader *reader, ms_event_view *out);

typedef struct ms_fate_view {
    ms_fate head;
    ms_text name; /* of its session */
} ms_fate_view;
bool ms_reader_fate(ms_reader *reader, ms_fate_view *out);

typedef struct ms_server_view {
    ms_server_info head;
    ms_array segments; /* ms_segment_info */
    ms_text name, host, socket_path, addresses;
} ms_server_view;
bool ms_reader_server(ms_reader *reader, ms_server_view *out);

typedef struct ms_region_view {
    ms_region head;
    ms_text location;
} ms_region_view;
/* One region of OPEN_SEGMENT's answer; its range does not wrap round. */
bool ms_reader_region(ms_reader *reader, ms_region_view *out);

/* What follows the grants of a PUT_START's answer: why there is no space, or nothing. */
static inline bool ms_reader_space_sentence(ms_reader *reader, ms_text *out) {
    *out = (ms_text){.data = "", .length = 0};
    return ms_reader_left(reader) == 0 || ms_reader_string(reader, MS_SENTENCE_BYTES_MAX, out);
}

/* ---- messages that are read whole ------------------------------------------------------------------ */
/* Each reads one body to its end and says whether it was well formed. */

typedef struct ms_hello_view {
    ms_hello head;
    ms_text tenant, token, name;
    ms_server_view server; /* head.role == MS_ROLE_SERVER */
} ms_hello_view;
bool ms_read_hello(const void *body, size_t length, ms_hello_view *out);

typedef struct ms_hello_answer_view {
    ms_hello_answer head;
    ms_text node_name;
    ms_text secret; /* MS_SECRET_BYTES from a master, else empty */
} ms_hello_answer_view;
bool ms_read_hello_answer(const void *body, size_t length, ms_hello_answer_view *out);

/* READ.  No item's range wraps round, and payload_length, their sum, is at most MS_VALUE_BYTES_MAX. */
typedef struct ms_read_view {
    ms_array items; /* ms_read_item, at least one */
    uint64_t payload_length;
} ms_read_view;
bool ms_read_read(const void *body, size_t length, ms_read_view *out);

/* WRITE and SEAL.  Ranges as in READ; the seals of the items fill what follows them exactly, and each
 * is well formed: take item i's with a ms_reader of `seals`, in order, for the items whose seal_length is
 * not 0.  Compare payload_length, the sum of the items with source 0, with the header's. */
typedef struct ms_write_view {
    ms_array items; /* ms_write_item, at least one */
    uint64_t payload_length;
    const uint8_t *seals;
    size_t seals_length;
} ms_write_view;
bool ms_read_write(const void *body, size_t length, ms_write_view *out);

/* FREE, CLEARED, FREED. */
typedef struct ms_free_view {
    uint32_t epoch, incarnation;
    ms_array items; /* ms_free_item */
} ms_free_view;
bool ms_read_free(const void *body, size_t length, ms_free_view *out);

/* COPY. */
typedef struct ms_copy_view {
    ms_copy_request head;
    ms_location_view source; /* one replica */
    ms_replica_view target;
    ms_seal_view seal;
} ms_copy_view;
bool ms_read_copy(const void *body, size_t length, ms_copy_view *out);

/* RELAYED_END. */
typedef struct ms_relayed_end_view {
    uint64_t session, number;
    ms_array items; /* ms_end_item */
} ms_relayed_end_view;
bool ms_read_relayed_end(const void *body, size_t length, ms_relayed_end_view *out);

/* SERVER_STATS. */
typedef struct ms_server_stats_view {
    uint32_t epoch, incarnation;
    ms_array segments; /* ms_segment_info */
    ms_array counters; /* ms_counter */
} ms_server_stats_view;
bool ms_read_server_stats(const void *body, size_t length, ms_server_stats_view *out);

/* LIST, REMOVE_MATCHING. */
typedef struct ms_list_view {
    ms_list head;
    ms_text pattern; /* at most MS_PATTERN_BYTES_MAX */
} ms_list_view;
bool ms_read_list(const void *body, size_t length, ms_list_view *out);

/* START_TASK. */
typedef struct ms_task_order_view {
    ms_task_order head;
    const uint8_t *prefix;
} ms_task_order_view;
bool ms_read_task_order(const void *body, size_t length, ms_task_order_view *out);
/* One of the answer to TASKS: its failures follow, head.failure_count of them. */
typedef struct ms_task_view {
    ms_task head;
    const uint8_t *prefix;
} ms_task_view;
bool ms_reader_task(ms_reader *reader, ms_task_view *out);
typedef struct ms_task_failure_view {
    ms_task_failure head;
    const uint8_t *key;
} ms_task_failure_view;
bool ms_reader_task_failure(ms_reader *reader, ms_task_failure_view *out);

/* MATCH_PREFIX, PIN. */
typedef struct ms_match_view {
    ms_match head;
    ms_array hashes;
} ms_match_view;
bool ms_read_match(const void *body, size_t length, ms_match_view *out);

typedef struct ms_pins_view {
    ms_match head;
    ms_array items; /* ms_pins_item */
} ms_pins_view;
bool ms_read_pins(const void *body, size_t length, ms_pins_view *out);

/* A body that is one list of items of a known size: EXISTS_KEYS, LOOKUP, TOUCH, UNPIN (ms_hash), lists of
 * u32 status, STATUS' answer (ms_counter), VIEW_OPEN and VIEW_CLOSE (ms_view_item). */
bool ms_read_array(const void *body, size_t length, size_t item_bytes, ms_array *out);

/* begin cdef */
/* Whether a body is well formed from its first to its last byte, for any method, known or not (an unknown
 * one has no form).  kind: ms_kind; status: of an answer: other than OK its body is a sentence, except where
 * the method answers with a list of statuses. */
bool ms_body_valid(uint8_t kind, uint16_t method, uint32_t status, const void *body, size_t length);
/* end cdef */

/* ---- writer -------------------------------------------------------------------------------------- */

typedef struct ms_writer {
    uint8_t *data;
    size_t length;
    size_t capacity;
    size_t length_max;
    bool is_growable;
    ms_status status; /* first fault: LIMIT (beyond length_max), NO_MEMORY */
} ms_writer;

/* Into the caller's memory; never grows, needs no close. */
static inline ms_writer ms_writer_fixed(void *memory, size_t capacity) {
    return (ms_writer){.data = memory, .capacity = capacity, .length_max = capacity};
}

/* Into memory of its own, up to length_max bytes; none before the first byte. */
static inline ms_writer ms_writer_growable(size_t length_max) {
    return (ms_writer){.length_max = length_max, .is_growable = true};
}

/* Gives a growable one's memory back; it may be used again after that. */
void ms_writer_close(ms_writer *writer);
/* Begin again in the same memory. */
static inline void ms_writer_reset(ms_writer *writer) {
    writer->length = 0;
    writer->status = MS_OK;
}

/* Makes room for `length` more bytes, or sets the status. */
bool ms_writer_grow(ms_writer *writer, size_t length);

/* `length` more bytes to be filled in by the caller; NULL after a fault.  Valid until the next call. */
static inline uint8_t *ms_writer_space(ms_writer *writer, size_t length) {
    if (writer->status != MS_OK)
        return NULL;
    if (length > writer->capacity - writer->length && !ms_writer_grow(writer, length))
        return NULL;
    uint8_t *space = writer->data + writer->length;
    writer->length += length;
    return space;
}

static inline void ms_writer_bytes(ms_writer *writer, const void *bytes, size_t length) {
    if (length == 0)
        return;
    uint8_t *space = ms_writer_space(writer, length);
    if (space != NULL)
        memcpy(space, bytes, length);
}

#define MS_WRITER_STRUCT(writer, value) ms_writer_bytes((writer), (value), sizeof *(value))

static inline void ms_writer_u32(ms_writer *writer, uint32_t value) {
    ms_writer_bytes(writer, &value, sizeof value);
}

static inline void ms_writer_u64(ms_writer *writer, uint64_t value) {
    ms_writer_bytes(writer, &value, sizeof value);
}

static inline void ms_writer_zeros(ms_writer *writer, size_t length) {
    uint8_t *space = length != 0 ? ms_writer_space(writer, length) : NULL;
    if (space != NULL)
        memset(space, 0, length);
}

/* Bytes and zeros up to a multiple of 8. */
static inline void ms_writer_padded(ms_writer *writer, const void *bytes, size_t length) {
    ms_writer_bytes(writer, bytes, length);
    ms_writer_zeros(writer, (8 - length % 8) % 8);
}

static inline void ms_writer_string(ms_writer *writer, const void *bytes, uint32_t length) {
    ms_writer_u32(writer, length);
    ms_writer_bytes(writer, bytes, length);
    ms_writer_zeros(writer, (8 - (length + 4u) % 8) % 8);
}

/* A list's head; the items follow. */
static inline void ms_writer_list(ms_writer *writer, uint32_t count) {
    ms_writer_u32(writer, count);
    ms_writer_u32(writer, 0);
}

static inline void ms_writer_array(ms_writer *writer, const void *items, uint32_t count,
                                   size_t item_bytes) {
    ms_writer_list(writer, count);
    ms_writer_bytes(writer, items, count * item_bytes);
}

/* Overwrite a u32 that was written at `offset`: a count known only at the end. */
static inline void ms_writer_set_u32(ms_writer *writer, size_t offset, uint32_t value) {
    if (writer->status == MS_OK)
        memcpy(writer->data + offset, &value, sizeof value);
}

/* A location that says only `status`. */
static inline void ms_writer_no_location(ms_writer *writer, ms_status status) {
    ms_location location = {.status = status};
    MS_WRITER_STRUCT(writer, &location);
}

/* A seal with its tenant and key; the lengths in `head` count. */
static inline void ms_writer_seal(ms_writer *writer, const ms_seal *head, const void *tenant,
                                  const void *key) {
    MS_WRITER_STRUCT(writer, head);
    ms_writer_bytes(writer, tenant, head->tenant_length);
    ms_writer_bytes(writer, key, head->key_length);
    ms_writer_zeros(writer, (8 - ((size_t)head->tenant_length + head->key_length) % 8) % 8);
}

/* A server's info: head.segment_count segments, then its strings. */
void ms_writer_server(ms_writer *writer, const ms_server_info *head,
                      const ms_segment_info *segments, const char *name, const char *host,
                      const char *socket_path, const char *addresses);

#endif
