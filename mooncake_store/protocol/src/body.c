/* Which body belongs to which method, so that a whole frame can be judged before anything is done with it. */
#include "ms_frame.h"

/* ---- forms that occur in several methods ------------------------------------------------------------ */

static bool valid_empty(const void *body, size_t length) {
    (void)body;
    return length == 0;
}

static bool valid_list_of(const void *body, size_t length, size_t item_bytes) {
    ms_array items;
    return ms_read_array(body, length, item_bytes, &items);
}

static bool valid_hashes(const void *body, size_t length) {
    return valid_list_of(body, length, sizeof(ms_hash));
}

static bool valid_statuses(const void *body, size_t length) {
    ms_array statuses;
    if (!ms_read_array(body, length, sizeof(uint32_t), &statuses))
        return false;
    for (uint32_t i = 0; i < statuses.count; i++)
        if (ms_array_u32(statuses, i) >= MS_STATUS_COUNT)
            return false;
    return true;
}

/* OK without a body when all went well. */
static bool valid_statuses_or_empty(const void *body, size_t length) {
    return length == 0 || valid_statuses(body, length);
}

static bool valid_locations(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_location_view location;
    for (uint32_t left = ms_reader_list(&reader, sizeof(ms_location)); left != 0; left--)
        if (!ms_reader_location(&reader, &location))
            return false;
    return ms_reader_is_done(&reader);
}

static bool valid_key(ms_reader *reader) {
    ms_key_item_view item;
    return ms_reader_key_item(reader, &item) && ms_reader_is_done(reader);
}

static bool valid_struct(const void *body, size_t length, size_t struct_bytes) {
    ms_reader reader = ms_reader_of(body, length);
    return ms_reader_bytes(&reader, struct_bytes) != NULL && ms_reader_is_done(&reader);
}

static bool valid_eight(const void *body, size_t length) { return valid_struct(body, length, 8); }

/* ---- one function a method, where the form is its own ------------------------------------------------ */

static bool valid_hello(const void *body, size_t length) {
    ms_hello_view hello;
    return ms_read_hello(body, length, &hello);
}

static bool valid_hello_answer(const void *body, size_t length) {
    ms_hello_answer_view answer;
    return ms_read_hello_answer(body, length, &answer);
}

static bool valid_read(const void *body, size_t length) {
    ms_read_view read;
    return ms_read_read(body, length, &read);
}

static bool valid_write(const void *body, size_t length) {
    ms_write_view write;
    return ms_read_write(body, length, &write);
}

static bool valid_regions(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_region_view region;
    ms_text topology, socket_path;
    for (uint32_t left = ms_reader_list(&reader, sizeof(ms_region)); left != 0; left--)
        if (!ms_reader_region(&reader, &region))
            return false;
    return ms_reader_string(&reader, MS_TOPOLOGY_BYTES_MAX, &topology) &&
           ms_reader_string(&reader, MS_SOCKET_PATH_BYTES_MAX, &socket_path) &&
           ms_reader_is_done(&reader);
}

static bool valid_attached(const void *body, size_t length) {
    return valid_struct(body, length, sizeof(ms_attached));
}

static bool valid_topology(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_text topology;
    return ms_reader_string(&reader, MS_TOPOLOGY_BYTES_MAX, &topology) &&
           ms_reader_is_done(&reader);
}

static bool valid_notify(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_text name, message;
    return ms_reader_string(&reader, MS_NAME_BYTES_MAX, &name) &&
           ms_reader_string(&reader, MS_NOTIFY_BYTES_MAX, &message) && ms_reader_is_done(&reader);
}

static bool valid_rdma_ports(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    for (uint32_t left = ms_reader_list(&reader, sizeof(ms_rdma_port)); left != 0; left--) {
        ms_rdma_port port;
        ms_array gids;
        if (!MS_READER_STRUCT(&reader, &port) ||
            !ms_reader_items(&reader, port.gid_count, sizeof(ms_rdma_gid), &gids))
            return false;
    }
    return ms_reader_is_done(&reader);
}

static bool valid_rdma_end(const void *body, size_t length) {
    return valid_struct(body, length, sizeof(ms_rdma_end));
}

static bool valid_rdma_segment(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_array chunks;
    (void)ms_reader_u32(&reader);
    (void)ms_reader_u32(&reader);
    uint32_t count = ms_reader_list(&reader, sizeof(ms_rdma_chunk));
    return ms_reader_items(&reader, count, sizeof(ms_rdma_chunk), &chunks) &&
           ms_reader_is_done(&reader);
}

static bool valid_match(const void *body, size_t length) {
    ms_match_view match;
    return ms_read_match(body, length, &match);
}

static bool valid_pins(const void *body, size_t length) {
    ms_pins_view pins;
    return ms_read_pins(body, length, &pins);
}

static bool valid_put_start(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_batch batch;
    ms_put_item_view item;
    ms_reader_batch(&reader, sizeof(ms_put_item), &batch);
    for (uint32_t i = 0; i < batch.count; i++)
        if (!ms_reader_put_item(&reader, &item))
            return false;
    return ms_reader_is_done(&reader);
}

static bool valid_grants(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_location_view grant;
    ms_text sentence;
    for (uint32_t left = ms_reader_list(&reader, sizeof(ms_location)); left != 0; left--)
        if (!ms_reader_location(&reader, &grant))
            return false;
    return ms_reader_space_sentence(&reader, &sentence) && ms_reader_is_done(&reader);
}

static bool valid_put_end(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_batch batch;
    ms_array items;
    return ms_reader_batch(&reader, sizeof(ms_end_item), &batch) &&
           ms_reader_items(&reader, batch.count, sizeof(ms_end_item), &items) &&
           ms_reader_is_done(&reader);
}

static bool valid_remove(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_batch batch;
    ms_key_item_view item;
    ms_reader_batch(&reader, sizeof(ms_key_item), &batch);
    for (uint32_t i = 0; i < batch.count; i++)
        if (!ms_reader_key_item(&reader, &item))
            return false;
    return ms_reader_is_done(&reader);
}

static bool valid_list(const void *body, size_t length) {
    ms_list_view list;
    return ms_read_list(body, length, &list);
}

static bool valid_list_answer(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_list_answer answer;
    ms_list_item_view item;
    if (!MS_READER_STRUCT(&reader, &answer) ||
        !ms_reader_count_fits(&reader, answer.count, sizeof(ms_list_item)))
        return false;
    for (uint32_t i = 0; i < answer.count; i++)
        if (!ms_reader_list_item(&reader, &item))
            return false;
    return ms_reader_is_done(&reader);
}

static bool valid_removed(const void *body, size_t length) {
    return valid_struct(body, length, sizeof(ms_list_answer));
}

static bool valid_stat(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    return valid_key(&reader);
}

static bool valid_stat_answer(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_stat stat;
    ms_location_view location;
    return MS_READER_STRUCT(&reader, &stat) && ms_reader_location(&reader, &location) &&
           ms_reader_is_done(&reader);
}

static bool valid_explain_answer(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_explain head;
    ms_stat stat;
    ms_location_view location;
    ms_fate_view fate;
    ms_text name;
    if (!MS_READER_STRUCT(&reader, &head) || head.fate_count > MS_FATES_MAX ||
        !ms_reader_string(&reader, MS_NAME_BYTES_MAX, &name))
        return false;
    if ((head.flags & MS_EXPLAIN_STORED) != 0 &&
        !(MS_READER_STRUCT(&reader, &stat) && ms_reader_location(&reader, &location)))
        return false;
    for (uint32_t i = 0; i < head.fate_count; i++)
        if (!ms_reader_fate(&reader, &fate))
            return false;
    return ms_reader_is_done(&reader);
}

static bool valid_task_order(const void *body, size_t length) {
    ms_task_order_view order;
    return ms_read_task_order(body, length, &order);
}

static bool valid_tasks(const void *body, size_t length) {
    return valid_struct(body, length, sizeof(ms_tasks));
}

static bool valid_tasks_answer(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    uint32_t count = ms_reader_list(&reader, sizeof(ms_task));
    for (uint32_t i = 0; i < count; i++) {
        ms_task_view task;
        ms_task_failure_view failure;
        if (!ms_reader_task(&reader, &task))
            return false;
        for (uint32_t j = 0; j < task.head.failure_count; j++)
            if (!ms_reader_task_failure(&reader, &failure))
                return false;
    }
    return ms_reader_is_done(&reader);
}

static bool valid_annotate(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_annotate annotate;
    return MS_READER_STRUCT(&reader, &annotate) && valid_key(&reader);
}

static bool valid_change_replica(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_change_replica change;
    return MS_READER_STRUCT(&reader, &change) && change.replica_count <= MS_REPLICAS_MAX &&
           valid_key(&reader);
}

static bool valid_location(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_location_view location;
    return ms_reader_location(&reader, &location) && ms_reader_is_done(&reader);
}

static bool valid_members(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_server_view server;
    ms_reader_u32(&reader); /* serial */
    uint32_t count = ms_reader_u32(&reader);
    if (!ms_reader_count_fits(&reader, count, sizeof(ms_server_info)))
        return false;
    for (; count != 0; count--)
        if (!ms_reader_server(&reader, &server))
            return false;
    return ms_reader_is_done(&reader);
}

static bool valid_node_name(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_text name;
    return ms_reader_string(&reader, MS_NAME_BYTES_MAX, &name) && ms_reader_is_done(&reader);
}

static bool valid_counters(const void *body, size_t length) {
    return valid_list_of(body, length, sizeof(ms_counter));
}

static bool valid_events(const void *body, size_t length) {
    return valid_struct(body, length, sizeof(ms_events));
}

static bool valid_events_answer(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_events_answer answer;
    ms_event_view event;
    if (!MS_READER_STRUCT(&reader, &answer) ||
        !ms_reader_count_fits(&reader, answer.count, sizeof(ms_event)))
        return false;
    for (uint32_t i = 0; i < answer.count; i++)
        if (!ms_reader_event(&reader, &event))
            return false;
    return ms_reader_is_done(&reader);
}

static bool valid_inventory(const void *body, size_t length) {
    ms_reader reader = ms_reader_of(body, length);
    ms_inventory_item_view item;
    for (uint32_t left = ms_reader_list(&reader, sizeof(ms_inventory_item)); left != 0; left--)
        if (!ms_reader_inventory_item(&reader, &item))
            return false;
    return ms_reader_is_done(&reader);
}

static bool valid_free(const void *body, size_t length) {
    ms_free_view view;
    return ms_read_free(body, length, &view);
}

static bool valid_note(const void *body, size_t length) {
    return valid_struct(body, length, sizeof(ms_note));
}

static bool valid_copy(const void *body, size_t length) {
    ms_copy_view copy;
    return ms_read_copy(body, length, &copy);
}

static bool valid_relayed_end(const void *body, size_t length) {
    ms_relayed_end_view end;
    return ms_read_relayed_end(body, length, &end);
}

static bool valid_server_stats(const void *body, size_t length) {
    ms_server_stats_view stats;
    return ms_read_server_stats(body, length, &stats);
}

static bool valid_views(const void *body, size_t length) {
    return valid_list_of(body, length, sizeof(ms_view_item));
}

/* ---- the table --------------------------------------------------------------------------------------- */

typedef bool valid_function(const void *body, size_t length);

typedef struct form {
    valid_function *request; /* or one-way */
    valid_function *answer;  /* to an OK; NULL: there is no answer */
    bool has_statuses;       /* an answer that is not OK has the same form */
} form;

static const form forms[] = {
    [MS_HELLO] = {valid_hello, valid_hello_answer, false},
    [MS_PING] = {valid_empty, valid_empty, false},
    [MS_OPEN_SEGMENT] = {valid_empty, valid_regions, false},
    [MS_READ] = {valid_read, valid_empty, false},
    [MS_WRITE] = {valid_write, valid_statuses_or_empty, true},
    [MS_ATTACH] = {valid_eight, valid_attached, false},
    [MS_SHARE] = {valid_eight, valid_eight, false},
    [MS_UNSHARE] = {valid_eight, valid_empty, false},
    [MS_NOTIFY] = {valid_notify, valid_empty, false},
    [MS_CUT] = {valid_eight, valid_eight, false},
    [MS_TOPOLOGY] = {valid_topology, valid_topology, false},
    [MS_RDMA_PORTS] = {valid_empty, valid_rdma_ports, false},
    [MS_RDMA_CONNECT] = {valid_rdma_end, valid_rdma_end, false},
    [MS_RDMA_DISCONNECT] = {valid_eight, valid_empty, false},
    [MS_RDMA_SEGMENT] = {valid_eight, valid_rdma_segment, false},
    [MS_EXISTS_KEYS] = {valid_hashes, valid_empty, false},
    [MS_LOOKUP] = {valid_hashes, valid_locations, false},
    [MS_MATCH_PREFIX] = {valid_match, valid_locations, false},
    [MS_PUT_START] = {valid_put_start, valid_grants, false},
    [MS_PUT_END] = {valid_put_end, valid_statuses, false},
    [MS_REVOKE] = {valid_put_end, valid_statuses, false},
    [MS_REMOVE] = {valid_remove, valid_statuses, false},
    [MS_TOUCH] = {valid_hashes, NULL, false},
    [MS_PIN] = {valid_match, valid_statuses, false},
    [MS_UNPIN] = {valid_match, valid_statuses, false},
    [MS_LIST] = {valid_list, valid_list_answer, false},
    [MS_STAT] = {valid_stat, valid_stat_answer, false},
    [MS_ANNOTATE] = {valid_annotate, valid_empty, false},
    [MS_CHANGE_REPLICA] = {valid_change_replica, valid_location, false},
    [MS_MEMBERS] = {valid_empty, valid_members, false},
    [MS_STATUS] = {valid_empty, valid_counters, false},
    [MS_REMOVE_MATCHING] = {valid_list, valid_removed, false},
    [MS_EVENTS] = {valid_events, valid_events_answer, false},
    [MS_KEEPALIVE] = {valid_empty, valid_eight, false},
    [MS_CLOSE_SESSION] = {valid_empty, valid_empty, false},
    [MS_EXPLAIN] = {valid_stat, valid_explain_answer, false},
    [MS_PINS] = {valid_pins, valid_statuses, false},
    [MS_FORGET] = {valid_node_name, valid_empty, false},
    [MS_START_TASK] = {valid_task_order, valid_tasks_answer, false},
    [MS_TASKS] = {valid_tasks, valid_tasks_answer, false},
    [MS_CANCEL_TASK] = {valid_tasks, valid_empty, false},
    [MS_ADOPT] = {valid_eight, valid_empty, false},
    [MS_INVENTORY] = {valid_inventory, NULL, false},
    [MS_FREE] = {valid_free, NULL, false},
    [MS_CLEARED] = {valid_free, NULL, false},
    [MS_FREED] = {valid_free, NULL, false},
    [MS_NOTE] = {valid_note, valid_empty, false},
    [MS_COPY] = {valid_copy, valid_empty, false},
    [MS_RELAYED_END] = {valid_relayed_end, NULL, false},
    [MS_SERVER_STATS] = {valid_server_stats, NULL, false},
    [MS_VIEW_OPEN] = {valid_views, valid_statuses, false},
    [MS_VIEW_CLOSE] = {valid_views, valid_statuses, false},
    [MS_SEAL] = {valid_write, valid_statuses_or_empty, true},
};

bool ms_body_valid(uint8_t kind, uint16_t method, uint32_t status, const void *body,
                   size_t length) {
    if (method >= sizeof forms / sizeof *forms)
        return false;
    const form *entry = &forms[method];
    if (kind != MS_ANSWER)
        return entry->request != NULL && entry->request(body, length);
    if (status >= MS_STATUS_COUNT || entry->answer == NULL)
        return false;
    if (status != MS_OK && !entry->has_statuses)
        return true; /* a sentence for people, or nothing */
    return entry->answer(body, length);
}
