/* Checks of headers and bodies: see ms_frame.h. */
#include "ms_frame.h"

#include <stdlib.h>

/* Faults that tests/fuzz plants by defining these otherwise: see ms_frame.h. */
#ifndef MS_PLANT_SEAL_TENANT
#define MS_PLANT_SEAL_TENANT 1u /* 0: a seal's tenant is not counted */
#endif
#ifndef MS_PLANT_PAGES
#define MS_PLANT_PAGES 0u /* pages that a replica may lack */
#endif

/* ---- header ------------------------------------------------------------------------------------ */

ms_fault ms_header_check(const ms_header *header, uint8_t version) {
    bool is_first = version == 0;
    if (header->magic != MS_MAGIC)
        return MS_FAULT_MAGIC;
    if (header->version != (is_first || header->method == MS_HELLO ? 1 : version))
        return MS_FAULT_VERSION;
    if (header->kind > MS_ONEWAY)
        return MS_FAULT_KIND;
    if (is_first && (header->method != MS_HELLO || header->kind == MS_ONEWAY))
        return MS_FAULT_HELLO;
    if (header->body_length > (is_first ? MS_BODY_BYTES_MAX_HELLO : MS_BODY_BYTES_MAX))
        return MS_FAULT_BODY;
    if (header->trailer_length > (is_first ? 0 : MS_BODY_BYTES_MAX))
        return MS_FAULT_TRAILER;
    if (header->payload_length > (is_first ? 0 : MS_VALUE_BYTES_MAX))
        return MS_FAULT_PAYLOAD;
    if (header->reserved != 0)
        return MS_FAULT_RESERVED;
    return MS_FAULT_NONE;
}

const char *ms_fault_text(ms_fault fault) {
    switch (fault) {
    case MS_FAULT_NONE:
        return "well formed";
    case MS_FAULT_MAGIC:
        return "the frame does not begin with MCS1";
    case MS_FAULT_VERSION:
        return "the frame has another wire version than was agreed on";
    case MS_FAULT_KIND:
        return "the frame is neither request, answer nor one-way";
    case MS_FAULT_HELLO:
        return "the first frame is not HELLO";
    case MS_FAULT_BODY:
        return "the frame's body is longer than allowed";
    case MS_FAULT_TRAILER:
        return "the frame's trailer is longer than allowed";
    case MS_FAULT_PAYLOAD:
        return "the frame's payload is longer than allowed";
    case MS_FAULT_RESERVED:
        return "the frame sets a reserved length";
    }
    return "unknown fault";
}

uint8_t ms_version_agree(uint8_t oldest_a, uint8_t newest_a, uint8_t oldest_b, uint8_t newest_b) {
    uint8_t oldest = oldest_a > oldest_b ? oldest_a : oldest_b;
    uint8_t newest = newest_a < newest_b ? newest_a : newest_b;
    return newest >= oldest ? newest : 0;
}

/* ---- items --------------------------------------------------------------------------------------- */

bool ms_reader_replica(ms_reader *reader, uint64_t size, ms_replica_view *out) {
    if (!MS_READER_STRUCT(reader, &out->head))
        return false;
    uint32_t count = out->head.extent_count;
    if (count == 0 || count > MS_EXTENTS_MAX)
        return ms_reader_fail(reader);
    if (!ms_reader_items(reader, count, sizeof(ms_extent), &out->extents))
        return false;
    uint64_t pages = 0;
    for (uint32_t i = 0; i < count; i++) {
        ms_extent extent = ms_replica_extent(out, i);
        if (extent.page_count == 0 || extent.page + extent.page_count < extent.page)
            return ms_reader_fail(reader);
        pages += extent.page_count;
    }
    return pages + MS_PLANT_PAGES >= ms_pages_of(size) || ms_reader_fail(reader);
}

bool ms_reader_location(ms_reader *reader, ms_location_view *out) {
    if (!MS_READER_STRUCT(reader, &out->head))
        return false;
    const ms_location *head = &out->head;
    if (head->status >= MS_STATUS_COUNT || head->replica_count > MS_REPLICAS_MAX ||
        head->size > MS_VALUE_BYTES_MAX || (head->status != MS_OK && head->replica_count != 0)) {
        out->head.replica_count = 0;
        return ms_reader_fail(reader);
    }
    for (uint32_t i = 0; i < head->replica_count; i++)
        if (!ms_reader_replica(reader, head->size, &out->replicas[i]))
            return false;
    return true;
}

bool ms_reader_seal(ms_reader *reader, ms_seal_view *out) {
    if (!MS_READER_STRUCT(reader, &out->head))
        return false;
    const ms_seal *head = &out->head;
    if (head->tenant_length > MS_TENANT_BYTES_MAX || head->key_length > MS_KEY_BYTES_MAX ||
        head->part >= head->part_count || head->part_count > MS_EXTENTS_MAX ||
        head->size > MS_VALUE_BYTES_MAX)
        return ms_reader_fail(reader);
    size_t tenant_length = head->tenant_length * MS_PLANT_SEAL_TENANT;
    const uint8_t *bytes = ms_reader_padded(reader, tenant_length + head->key_length);
    if (bytes == NULL)
        return false;
    out->tenant = (const char *)bytes;
    out->key = (const char *)bytes + head->tenant_length;
    return true;
}

bool ms_reader_inventory_item(ms_reader *reader, ms_inventory_item_view *out) {
    if (!MS_READER_STRUCT(reader, &out->head))
        return false;
    const ms_inventory_item *head = &out->head;
    if (head->tenant_length > MS_TENANT_BYTES_MAX || head->key_length > MS_KEY_BYTES_MAX ||
        head->page_count == 0 || head->page + head->page_count < head->page ||
        head->part >= head->part_count || head->part_count > MS_EXTENTS_MAX ||
        head->size > MS_VALUE_BYTES_MAX || head->state == 0 || head->state > 2)
        return ms_reader_fail(reader);
    const uint8_t *bytes = ms_reader_padded(reader, (size_t)head->tenant_length + head->key_length);
    if (bytes == NULL)
        return false;
    out->tenant = (const char *)bytes;
    out->key = (const char *)bytes + head->tenant_length;
    return true;
}

bool ms_reader_list_item(ms_reader *reader, ms_list_item_view *out) {
    if (!MS_READER_STRUCT(reader, &out->head))
        return false;
    if (out->head.key_length > MS_KEY_BYTES_MAX)
        return ms_reader_fail(reader);
    out->key = (const char *)ms_reader_padded(reader, out->head.key_length);
    return out->key != NULL;
}

bool ms_reader_event(ms_reader *reader, ms_event_view *out) {
    if (!MS_READER_STRUCT(reader, &out->head))
        return false;
    if (out->head.key_length > MS_KEY_BYTES_MAX)
        return ms_reader_fail(reader);
    out->key = (const char *)ms_reader_padded(reader, out->head.key_length);
    return out->key != NULL;
}

bool ms_reader_fate(ms_reader *reader, ms_fate_view *out) {
    return MS_READER_STRUCT(reader, &out->head) &&
           ms_reader_string(reader, MS_NAME_BYTES_MAX, &out->name);
}

bool ms_reader_server(ms_reader *reader, ms_server_view *out) {
    return MS_READER_STRUCT(reader, &out->head) &&
           ms_reader_items(reader, out->head.segment_count, sizeof(ms_segment_info),
                           &out->segments) &&
           ms_reader_string(reader, MS_NAME_BYTES_MAX, &out->name) &&
           ms_reader_string(reader, MS_NAME_BYTES_MAX, &out->host) &&
           ms_reader_string(reader, MS_SOCKET_PATH_BYTES_MAX, &out->socket_path) &&
           ms_reader_string(reader, MS_ADDRESSES_BYTES_MAX, &out->addresses);
}

bool ms_reader_region(ms_reader *reader, ms_region_view *out) {
    if (!MS_READER_STRUCT(reader, &out->head))
        return false;
    if (out->head.address + out->head.length < out->head.address)
        return ms_reader_fail(reader);
    return ms_reader_string(reader, MS_NAME_BYTES_MAX, &out->location);
}

/* ---- whole bodies -------------------------------------------------------------------------------- */

bool ms_read_hello(const void *body, size_t length, ms_hello_view *out) {
    ms_reader reader = ms_reader_of(body, length);
    if (!MS_READER_STRUCT(&reader, &out->head))
        return false;
    ms_reader_string(&reader, MS_TENANT_BYTES_MAX, &out->tenant);
    ms_reader_string(&reader, MS_TOKEN_BYTES_MAX, &out->token);
    ms_reader_string(&reader, MS_NAME_BYTES_MAX, &out->name);
    if (out->head.role == MS_ROLE_SERVER)
        ms_reader_server(&reader, &out->server);
    return ms_reader_is_done(&reader);
}

bool ms_read_hello_answer(const void *body, size_t length, ms_hello_answer_view *out) {
    ms_reader reader = ms_reader_of(body, length);
    if (!MS_READER_STRUCT(&reader, &out->head))
        return false;
    ms_reader_string(&reader, MS_NAME_BYTES_MAX, &out->node_name);
    if (!ms_reader_string(&reader, MS_SECRET_BYTES, &out->secret))
        return false;
    return ms_reader_is_done(&reader) &&
           (out->secret.length == 0 || out->secret.length == MS_SECRET_BYTES);
}

bool ms_read_array(const void *body, size_t length, size_t item_bytes, ms_array *out) {
    ms_reader reader = ms_reader_of(body, length);
    return ms_reader_array(&reader, item_bytes, out) && ms_reader_is_done(&reader);
}

/* Whether offset + length does not wrap round and `*sum` + length stays a value's size. */
static bool add_range(uint64_t offset, uint64_t length, uint64_t *sum) {
    if (length > MS_VALUE_BYTES_MAX || offset + length < offset)
        return false;
    *sum += length; /* 65,536 items of at most 2**34 bytes: no overflow before the test */
    return *sum <= MS_VALUE_BYTES_MAX;
}

bool ms_read_read(const void *body, size_t length, ms_read_view *out) {
    if (!ms_read_array(body, length, sizeof(ms_read_item), &out->items) || out->items.count == 0)
        return false;
    out->payload_length = 0;
    for (uint32_t i = 0; i < out->items.count; i++) {
        ms_read_item item;
        MS_ARRAY_GET(out->items, i, &item);
        if (!add_range(item.offset, item.length, &out->payload_length))
            return false;
    }
    return true;
}

bool ms_read_write(const void *body, size_t length, ms_write_view *out) {
    ms_reader reader = ms_reader_of(body, length);
    if (!ms_reader_array(&reader, sizeof(ms_write_item), &out->items) || out->items.count == 0)
        return false;
    out->payload_length = 0;
    out->seals = reader.at;
    out->seals_length = ms_reader_left(&reader);
    uint64_t from_shared = 0;
    for (uint32_t i = 0; i < out->items.count; i++) {
        ms_write_item item;
        MS_ARRAY_GET(out->items, i, &item);
        if (!add_range(item.offset, item.length,
                       item.source == 0 ? &out->payload_length : &from_shared) ||
            item.source_offset + item.length < item.length ||
            item.page + item.page_count < item.page)
            return false;
        if (item.seal_length == 0)
            continue;
        const uint8_t *bytes = ms_reader_bytes(&reader, item.seal_length);
        if (bytes == NULL)
            return false;
        ms_reader one = ms_reader_of(bytes, item.seal_length);
        ms_seal_view seal;
        if (!ms_reader_seal(&one, &seal) || !ms_reader_is_done(&one))
            return false;
    }
    return ms_reader_is_done(&reader);
}

bool ms_read_free(const void *body, size_t length, ms_free_view *out) {
    ms_reader reader = ms_reader_of(body, length);
    out->epoch = ms_reader_u32(&reader);
    out->incarnation = ms_reader_u32(&reader);
    if (!ms_reader_array(&reader, sizeof(ms_free_item), &out->items))
        return false;
    for (uint32_t i = 0; i < out->items.count; i++) {
        ms_free_item item;
        MS_ARRAY_GET(out->items, i, &item);
        if (item.page_count == 0 || item.page + item.page_count < item.page)
            return false;
    }
    return ms_reader_is_done(&reader);
}

bool ms_read_copy(const void *body, size_t length, ms_copy_view *out) {
    ms_reader reader = ms_reader_of(body, length);
    return MS_READER_STRUCT(&reader, &out->head) && ms_reader_location(&reader, &out->source) &&
           out->source.head.replica_count == 1 &&
           ms_reader_replica(&reader, out->source.head.size, &out->target) &&
           ms_reader_seal(&reader, &out->seal) && out->seal.head.size == out->source.head.size &&
           ms_reader_is_done(&reader);
}

bool ms_read_relayed_end(const void *body, size_t length, ms_relayed_end_view *out) {
    ms_reader reader = ms_reader_of(body, length);
    out->session = ms_reader_u64(&reader);
    out->number = ms_reader_u64(&reader);
    return ms_reader_array(&reader, sizeof(ms_end_item), &out->items) && ms_reader_is_done(&reader);
}

bool ms_read_server_stats(const void *body, size_t length, ms_server_stats_view *out) {
    ms_reader reader = ms_reader_of(body, length);
    out->epoch = ms_reader_u32(&reader);
    out->incarnation = ms_reader_u32(&reader);
    return ms_reader_array(&reader, sizeof(ms_segment_info), &out->segments) &&
           ms_reader_array(&reader, sizeof(ms_counter), &out->counters) &&
           ms_reader_is_done(&reader);
}

bool ms_read_list(const void *body, size_t length, ms_list_view *out) {
    ms_reader reader = ms_reader_of(body, length);
    if (!MS_READER_STRUCT(&reader, &out->head) || out->head.pattern_length > MS_PATTERN_BYTES_MAX)
        return false;
    const uint8_t *pattern = ms_reader_padded(&reader, out->head.pattern_length);
    if (pattern == NULL)
        return false;
    out->pattern = (ms_text){.data = (const char *)pattern, .length = out->head.pattern_length};
    return ms_reader_is_done(&reader);
}

bool ms_read_task_order(const void *body, size_t length, ms_task_order_view *out) {
    ms_reader reader = ms_reader_of(body, length);
    if (!MS_READER_STRUCT(&reader, &out->head) || out->head.prefix_length > MS_KEY_BYTES_MAX)
        return false;
    out->prefix = ms_reader_padded(&reader, out->head.prefix_length);
    return out->prefix != NULL && ms_reader_is_done(&reader);
}

bool ms_reader_task(ms_reader *reader, ms_task_view *out) {
    if (!MS_READER_STRUCT(reader, &out->head) || out->head.prefix_length > MS_KEY_BYTES_MAX ||
        out->head.failure_count > MS_TASK_FAILURES_MAX)
        return false;
    out->prefix = ms_reader_padded(reader, out->head.prefix_length);
    return out->prefix != NULL;
}

bool ms_reader_task_failure(ms_reader *reader, ms_task_failure_view *out) {
    if (!MS_READER_STRUCT(reader, &out->head) || out->head.key_length > MS_KEY_BYTES_MAX)
        return false;
    out->key = ms_reader_padded(reader, out->head.key_length);
    return out->key != NULL;
}

bool ms_read_match(const void *body, size_t length, ms_match_view *out) {
    ms_reader reader = ms_reader_of(body, length);
    return MS_READER_STRUCT(&reader, &out->head) &&
           ms_reader_items(&reader, out->head.count, sizeof(ms_hash), &out->hashes) &&
           ms_reader_is_done(&reader);
}

bool ms_read_pins(const void *body, size_t length, ms_pins_view *out) {
    ms_reader reader = ms_reader_of(body, length);
    return MS_READER_STRUCT(&reader, &out->head) &&
           ms_reader_items(&reader, out->head.count, sizeof(ms_pins_item), &out->items) &&
           ms_reader_is_done(&reader);
}

/* ---- writer -------------------------------------------------------------------------------------- */

bool ms_writer_grow(ms_writer *writer, size_t length) {
    if (!writer->is_growable || length > writer->length_max - writer->length) {
        writer->status = MS_LIMIT;
        return false;
    }
    size_t wanted = writer->length + length;
    size_t capacity = writer->capacity < 256 ? 256 : writer->capacity;
    while (capacity < wanted)
        capacity *= 2;
    if (capacity > writer->length_max)
        capacity = writer->length_max;
    uint8_t *data = realloc(writer->data, capacity);
    if (data == NULL) {
        writer->status = MS_NO_MEMORY;
        return false;
    }
    writer->data = data;
    writer->capacity = capacity;
    return true;
}

void ms_writer_close(ms_writer *writer) {
    if (writer->is_growable) {
        free(writer->data);
        writer->data = NULL;
        writer->capacity = 0;
    }
    ms_writer_reset(writer);
}

static void write_text(ms_writer *writer, const char *text) {
    ms_writer_string(writer, text, (uint32_t)strlen(text));
}

void ms_writer_server(ms_writer *writer, const ms_server_info *head,
                      const ms_segment_info *segments, const char *name, const char *host,
                      const char *socket_path, const char *addresses) {
    MS_WRITER_STRUCT(writer, head);
    ms_writer_bytes(writer, segments, head->segment_count * sizeof *segments);
    write_text(writer, name);
    write_text(writer, host);
    write_text(writer, socket_path);
    write_text(writer, addresses);
}
