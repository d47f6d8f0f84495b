/* One execution: judges a body, walks what is accepted, checks what the decoders promise. */
#include <assert.h>
#include <stdlib.h>

#include "frame_fuzz.h"
#include "ms_frame.h"
#include "ms_hash.h"

/* Everything that is read ends here, so that no read is optimised away. */
static volatile uint64_t sink;

static const uint8_t *body_begin, *body_end;

static void walk_bytes(const void *data, size_t length) {
    const uint8_t *bytes = data;
    assert(length == 0 || (bytes >= body_begin && bytes + length <= body_end));
    uint64_t sum = 0;
    for (size_t i = 0; i < length; i++)
        sum += bytes[i];
    sink += sum;
}

static void walk_text(ms_text text, uint32_t length_max) {
    assert(text.length <= length_max);
    walk_bytes(text.data, text.length);
}

static void walk_key(const char *key, size_t length) {
    assert(length <= MS_KEY_BYTES_MAX);
    walk_bytes(key, length);
    sink += ms_key_valid(key, length);
}

static void walk_array(ms_array array, size_t item_bytes) {
    assert(array.count <= MS_BATCH_ITEMS_MAX);
    walk_bytes(array.items, array.count * item_bytes);
}

static void walk_replica(const ms_replica_view *replica, uint64_t size) {
    assert(replica->extents.count >= 1 && replica->extents.count <= MS_EXTENTS_MAX);
    uint64_t pages = 0;
    for (uint32_t i = 0; i < replica->extents.count; i++) {
        ms_extent extent = ms_replica_extent(replica, i);
        assert(extent.page_count >= 1 && (uint64_t)extent.page + extent.page_count <= UINT32_MAX);
        pages += extent.page_count;
    }
    assert(pages * MS_PAGE_SIZE >= size);
    walk_array(replica->extents, sizeof(ms_extent));
}

static void walk_location(const ms_location_view *location) {
    assert(location->head.status < MS_STATUS_COUNT);
    assert(location->head.replica_count <= MS_REPLICAS_MAX);
    assert(location->head.status == MS_OK || location->head.replica_count == 0);
    assert(location->head.size <= MS_VALUE_BYTES_MAX);
    for (uint32_t i = 0; i < location->head.replica_count; i++)
        walk_replica(&location->replicas[i], location->head.size);
}

static void walk_seal(const ms_seal_view *seal) {
    assert(seal->head.part < seal->head.part_count && seal->head.part_count <= MS_EXTENTS_MAX);
    assert(seal->head.size <= MS_VALUE_BYTES_MAX &&
           seal->head.tenant_length <= MS_TENANT_BYTES_MAX);
    walk_bytes(seal->tenant, seal->head.tenant_length);
    walk_key(seal->key, seal->head.key_length);
}

static void walk_server(const ms_server_view *server) {
    walk_array(server->segments, sizeof(ms_segment_info));
    walk_text(server->name, MS_NAME_BYTES_MAX);
    walk_text(server->host, MS_NAME_BYTES_MAX);
    walk_text(server->socket_path, MS_SOCKET_PATH_BYTES_MAX);
    walk_text(server->addresses, MS_ADDRESSES_BYTES_MAX);
}

/* The walks of messages that are read item by item.  Each was accepted as a whole, so each step works. */

static void walk_locations(ms_reader *reader) {
    ms_location_view location;
    for (uint32_t left = ms_reader_list(reader, sizeof(ms_location)); left != 0; left--) {
        assert(ms_reader_location(reader, &location));
        walk_location(&location);
    }
}

static void walk_put_start(ms_reader *reader) {
    ms_batch batch;
    ms_put_item_view item;
    assert(ms_reader_batch(reader, sizeof(ms_put_item), &batch));
    for (; batch.count != 0; batch.count--) {
        assert(ms_reader_put_item(reader, &item));
        walk_key(item.key, item.head.key_length);
    }
}

static void walk_put_end(ms_reader *reader) {
    ms_batch batch;
    ms_array items;
    assert(ms_reader_batch(reader, sizeof(ms_end_item), &batch));
    assert(ms_reader_items(reader, batch.count, sizeof(ms_end_item), &items));
    walk_array(items, sizeof(ms_end_item));
}

static void walk_key_item(ms_reader *reader) {
    ms_key_item_view item;
    assert(ms_reader_key_item(reader, &item));
    walk_key(item.key, item.head.key_length);
}

static void walk_remove(ms_reader *reader) {
    ms_batch batch;
    assert(ms_reader_batch(reader, sizeof(ms_key_item), &batch));
    for (; batch.count != 0; batch.count--)
        walk_key_item(reader);
}

static void walk_inventory(ms_reader *reader) {
    ms_inventory_item_view item;
    for (uint32_t left = ms_reader_list(reader, sizeof(ms_inventory_item)); left != 0; left--) {
        assert(ms_reader_inventory_item(reader, &item));
        assert(item.head.part < item.head.part_count && item.head.page_count >= 1);
        walk_bytes(item.tenant, item.head.tenant_length);
        walk_key(item.key, item.head.key_length);
    }
}

static void walk_list_answer(ms_reader *reader) {
    ms_list_answer answer;
    ms_list_item_view item;
    assert(MS_READER_STRUCT(reader, &answer));
    for (; answer.count != 0; answer.count--) {
        assert(ms_reader_list_item(reader, &item));
        walk_key(item.key, item.head.key_length);
    }
}

static void walk_events_answer(ms_reader *reader) {
    ms_events_answer answer;
    ms_event_view event;
    assert(MS_READER_STRUCT(reader, &answer));
    for (; answer.count != 0; answer.count--) {
        assert(ms_reader_event(reader, &event));
        walk_key(event.key, event.head.key_length);
    }
}

static void walk_members(ms_reader *reader) {
    ms_server_view server;
    ms_reader_u32(reader);
    for (uint32_t left = ms_reader_u32(reader); left != 0; left--) {
        assert(ms_reader_server(reader, &server));
        walk_server(&server);
    }
}

static void walk_regions(ms_reader *reader) {
    ms_region_view region;
    for (uint32_t left = ms_reader_list(reader, sizeof(ms_region)); left != 0; left--) {
        assert(ms_reader_region(reader, &region));
        assert(region.head.address + region.head.length >= region.head.address);
        walk_text(region.location, MS_NAME_BYTES_MAX);
    }
}

static void walk_explain_answer(ms_reader *reader) {
    ms_explain head;
    ms_stat stat;
    ms_location_view location;
    ms_fate_view fate;
    ms_text name;
    assert(MS_READER_STRUCT(reader, &head) && ms_reader_string(reader, MS_NAME_BYTES_MAX, &name));
    walk_text(name, MS_NAME_BYTES_MAX);
    if ((head.flags & MS_EXPLAIN_STORED) != 0) {
        assert(MS_READER_STRUCT(reader, &stat) && ms_reader_location(reader, &location));
        walk_location(&location);
    }
    for (; head.fate_count != 0; head.fate_count--) {
        assert(ms_reader_fate(reader, &fate));
        walk_text(fate.name, MS_NAME_BYTES_MAX);
    }
}

static void walk_task_order(const void *body, size_t length) {
    ms_task_order_view order;
    assert(ms_read_task_order(body, length, &order));
    walk_bytes(order.prefix, order.head.prefix_length);
}

static void walk_tasks_answer(ms_reader *reader) {
    for (uint32_t left = ms_reader_list(reader, sizeof(ms_task)); left != 0; left--) {
        ms_task_view task;
        assert(ms_reader_task(reader, &task));
        walk_bytes(task.prefix, task.head.prefix_length);
        for (uint32_t i = 0; i < task.head.failure_count; i++) {
            ms_task_failure_view failure;
            assert(ms_reader_task_failure(reader, &failure));
            walk_bytes(failure.key, failure.head.key_length);
        }
    }
}

static void walk_stat_answer(ms_reader *reader) {
    ms_stat stat;
    ms_location_view location;
    assert(MS_READER_STRUCT(reader, &stat) && ms_reader_location(reader, &location));
    walk_location(&location);
}

/* The walks of messages that are read whole. */

static void walk_hello(const void *body, size_t length) {
    ms_hello_view hello;
    assert(ms_read_hello(body, length, &hello));
    walk_text(hello.tenant, MS_TENANT_BYTES_MAX);
    walk_text(hello.token, MS_TOKEN_BYTES_MAX);
    walk_text(hello.name, MS_NAME_BYTES_MAX);
    if (hello.head.role == MS_ROLE_SERVER)
        walk_server(&hello.server);
}

static void walk_hello_answer(const void *body, size_t length) {
    ms_hello_answer_view answer;
    assert(ms_read_hello_answer(body, length, &answer));
    walk_text(answer.node_name, MS_NAME_BYTES_MAX);
    assert(answer.secret.length == 0 || answer.secret.length == MS_SECRET_BYTES);
    walk_text(answer.secret, MS_SECRET_BYTES);
}

static void walk_read(const void *body, size_t length) {
    ms_read_view view;
    assert(ms_read_read(body, length, &view) && view.items.count >= 1);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < view.items.count; i++) {
        ms_read_item item;
        MS_ARRAY_GET(view.items, i, &item);
        assert(item.offset + item.length >= item.offset);
        sum += item.length;
    }
    assert(sum == view.payload_length && sum <= MS_VALUE_BYTES_MAX);
}

static void walk_write(const void *body, size_t length) {
    ms_write_view view;
    assert(ms_read_write(body, length, &view) && view.items.count >= 1);
    ms_reader seals = ms_reader_of(view.seals, view.seals_length);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < view.items.count; i++) {
        ms_write_item item;
        ms_seal_view seal;
        MS_ARRAY_GET(view.items, i, &item);
        assert(item.offset + item.length >= item.offset);
        assert(item.source_offset + item.length >= item.source_offset);
        assert((uint64_t)item.page + item.page_count <= UINT32_MAX);
        if (item.source == 0)
            sum += item.length;
        if (item.seal_length == 0)
            continue;
        assert(ms_reader_seal(&seals, &seal));
        walk_seal(&seal);
    }
    assert(ms_reader_is_done(&seals) && sum == view.payload_length && sum <= MS_VALUE_BYTES_MAX);
}

static void walk_copy(const void *body, size_t length) {
    ms_copy_view copy;
    assert(ms_read_copy(body, length, &copy) && copy.source.head.replica_count == 1);
    walk_location(&copy.source);
    walk_replica(&copy.target, copy.source.head.size);
    walk_seal(&copy.seal);
}

static void walk_server_stats(const void *body, size_t length) {
    ms_server_stats_view stats;
    assert(ms_read_server_stats(body, length, &stats));
    walk_array(stats.segments, sizeof(ms_segment_info));
    walk_array(stats.counters, sizeof(ms_counter));
}

static void walk_list(const void *body, size_t length) {
    ms_list_view list;
    assert(ms_read_list(body, length, &list));
    walk_text(list.pattern, MS_PATTERN_BYTES_MAX);
}

static void walk_match(const void *body, size_t length) {
    ms_match_view match;
    assert(ms_read_match(body, length, &match) && match.hashes.count == match.head.count);
    walk_array(match.hashes, sizeof(ms_hash));
}

static void walk_free(const void *body, size_t length) {
    ms_free_view view;
    assert(ms_read_free(body, length, &view));
    walk_array(view.items, sizeof(ms_free_item));
}

static void walk_relayed_end(const void *body, size_t length) {
    ms_relayed_end_view end;
    assert(ms_read_relayed_end(body, length, &end));
    walk_array(end.items, sizeof(ms_end_item));
}

static void walk_request(uint16_t method, const uint8_t *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    switch (method) {
    case MS_HELLO:
        walk_hello(body, length);
        break;
    case MS_READ:
        walk_read(body, length);
        break;
    case MS_WRITE:
    case MS_SEAL:
        walk_write(body, length);
        break;
    case MS_MATCH_PREFIX:
    case MS_PIN:
        walk_match(body, length);
        break;
    case MS_PUT_START:
        walk_put_start(&reader);
        break;
    case MS_PUT_END:
    case MS_REVOKE:
        walk_put_end(&reader);
        break;
    case MS_REMOVE:
        walk_remove(&reader);
        break;
    case MS_LIST:
    case MS_REMOVE_MATCHING:
        walk_list(body, length);
        break;
    case MS_STAT:
    case MS_EXPLAIN:
        walk_key_item(&reader);
        break;
    case MS_START_TASK:
        walk_task_order(body, length);
        break;
    case MS_INVENTORY:
        walk_inventory(&reader);
        break;
    case MS_FREE:
    case MS_CLEARED:
    case MS_FREED:
        walk_free(body, length);
        break;
    case MS_COPY:
        walk_copy(body, length);
        break;
    case MS_RELAYED_END:
        walk_relayed_end(body, length);
        break;
    case MS_SERVER_STATS:
        walk_server_stats(body, length);
        break;
    default:
        walk_bytes(body, length);
        break; /* one struct, or one list */
    }
}

static void walk_answer(uint16_t method, const uint8_t *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    switch (method) {
    case MS_HELLO:
        walk_hello_answer(body, length);
        break;
    case MS_OPEN_SEGMENT:
        walk_regions(&reader);
        break;
    case MS_LOOKUP:
    case MS_MATCH_PREFIX:
    case MS_PUT_START:
        walk_locations(&reader);
        break;
    case MS_LIST:
        walk_list_answer(&reader);
        break;
    case MS_STAT:
        walk_stat_answer(&reader);
        break;
    case MS_EXPLAIN:
        walk_explain_answer(&reader);
        break;
    case MS_START_TASK:
    case MS_TASKS:
        walk_tasks_answer(&reader);
        break;
    case MS_MEMBERS:
        walk_members(&reader);
        break;
    case MS_EVENTS:
        walk_events_answer(&reader);
        break;
    default:
        walk_bytes(body, length);
        break;
    }
}

bool fuzz_execute(const fuzz_input *input) {
    /* Exactly as long as the input and at its misalignment: the byte behind it is poisoned. */
    uint8_t *memory = malloc(input->shift + input->length + (input->length == 0));
    assert(memory != NULL);
    uint8_t *body = memory + input->shift;
    memcpy(body, input->body, input->length);
    body_begin = body;
    body_end = body + input->length;
    bool is_valid = ms_body_valid(input->kind, input->method, input->status, body, input->length);
    if (is_valid) {
        walk_bytes(body, input->length);
        if (input->kind != MS_ANSWER) {
            walk_request(input->method, body, input->length);
        } else if (input->status == MS_OK) {
            walk_answer(input->method, body, input->length);
        }
    }
    free(memory);
    return is_valid;
}
