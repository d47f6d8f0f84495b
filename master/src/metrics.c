/* The list of metrics: what the core counts, what the service counts, what the pool's bytes are used for, and
 * one value a store server each.
 *
 * Names are those of docs/metrics.md without the prefix `mooncake_store_`; what ends in `_total` only
 * grows.  A sample's id is its position in the list.  In STATUS it is the CRC32C of its name, so that client and
 * master of different versions, whose lists differ, mean the same by it.
 */
#include "service.h"

#include <stdlib.h>
#include <string.h>

#include "ms_crc32c.h"

/* ---- what the core counts --------------------------------------------------------------------- */

/* The core's short names, and what the world calls them.  A counter that is missing here keeps its name
 * and has no sentence, which a test refuses. */
static const struct {
    const char *core, *name, *help;
} renamed[] = {
    {"objects", "objects", "Objects that are complete."},
    {"object_bytes", "object_bytes", "Bytes of complete objects, each counted once."},
    {"sessions", "sessions", "Open sessions."},
    {"sessions_ended", "sessions_ended_total", "Sessions that ended, however."},
    {"puts_open", "puts_open", "Puts that were granted and have not ended."},
    {"puts_parked", "puts_waiting", "Puts that wait for room."},
    {"puts_started", "puts_started_total", "Puts that were granted."},
    {"puts_completed", "puts_completed_total", "Puts that made an object."},
    {"puts_revoked", "puts_revoked_total", "Puts that their client gave up."},
    {"puts_expired", "puts_expired_total", "Puts past their deadline; their session ended."},
    {"puts_refused", "puts_refused_total", "Puts that found no room."},
    {"exists_keys", "exists_keys_total", "Keys that exists was asked about."},
    {"exists_hits", "exists_hits_total", "Keys that exists found."},
    {"lookup_keys", "lookup_keys_total", "Keys that were looked up or matched."},
    {"lookup_hits", "lookup_hits_total", "Keys that look-ups and matches found."},
    {"removed", "objects_removed_total", "Objects removed by a client."},
    {"evicted", "objects_evicted_total", "Objects that left to make room."},
    {"evicted_bytes", "evicted_bytes_total", "Bytes of objects that left to make room."},
    {"expired", "objects_expired_total", "Objects whose time to live was over."},
    {"lost", "objects_lost_total", "Objects whose last replica went with its server."},
    {"replicas_added", "replicas_added_total", "Replicas added to stored objects."},
    {"replicas_lost", "replicas_lost_total", "Replicas that went with their server."},
    {"frees_pending", "frees_waiting", "Extents that their server has not reported free yet."},
    {"frees_cleared", "frees_held",
     "Extents that no new read gets and that old readers still hold."},
    {"frees_repeated", "frees_repeated_total", "FREEs that were sent again."},
    {"pins", "pins", "Pins of sessions."},
    {"tombstones", "tombstones", "Removals kept for store servers that are away."},
    {"inventory_items", "inventory_items_total", "Records that store servers brought along."},
    {"inventory_refused", "inventory_refused_total",
     "Records of store servers that did not count."},
    {"changes_running", "replica_changes_running", "Replica changes under way."},
    {"changes_done", "replica_changes_total", "Replica changes that were finished."},
    {"changes_failed", "replica_changes_failed_total", "Replica changes that failed."},
    {"notes", "notes_total", "Changes of pins and TTLs of stored objects."},
    {"notes_failed", "notes_failed_total",
     "Changes of pins and TTLs that a holder did not confirm."},
    {"events", "events_total", "Events of objects and store servers."},
    {"memory_failures", "memory_failures_total", "Requests refused for want of memory."},
    {"objects_short", "objects_short", "Objects with fewer replicas than wanted."},
    {"replicas_short", "replicas_short", "Replicas that are wanted and not there."},
    {"replicas_share_host", "replicas_share_host_total",
     "Replicas placed on a host that had one of the object already, for want of hosts."},
    {"tasks_running", "tasks_running", "Tasks that have not ended."},
    {"task_bytes", "task_copied_bytes_total", "Bytes that tasks have copied."},
};

static void core_metric(size_t id, ma_metric *metric) {
    metric->name = md_counter_name(id);
    metric->help = "";
    for (size_t i = 0; i < sizeof renamed / sizeof *renamed; i++)
        if (strcmp(renamed[i].core, metric->name) == 0) {
            metric->name = renamed[i].name;
            metric->help = renamed[i].help;
            return;
        }
}

/* ---- what the service counts ------------------------------------------------------------------- */

#define COUNT(field, name, help) {offsetof(ma_counts, field), name, help}

static const struct {
    size_t offset;
    const char *name, *help;
} counted[] = {
    COUNT(frames, "master_frames_total", "Frames received from clients, tools and store servers."),
    COUNT(frames_bad, "master_frames_bad_total",
          "Frames that made no sense; each closed its connection."),
    COUNT(hellos_refused, "master_hellos_refused_total",
          "Connections refused at HELLO: version, tenant, token, role or a lost session."),
    COUNT(requests_refused, "master_requests_refused_total",
          "Requests of a lost session, or without the right."),
    COUNT(requests_repeated, "master_requests_repeated_total",
          "Numbered requests that came again and got the first answer."),
    COUNT(answers_relayed, "master_ends_relayed_total",
          "Puts ended by their store server in the client's name."),
    COUNT(frees_sent, "master_frees_sent_total", "Extents that store servers were told to free."),
    COUNT(notes_sent, "master_notes_sent_total", "Annotations sent to holders."),
    COUNT(copies_sent, "master_copies_sent_total", "Copies that store servers were told to pull."),
    COUNT(tombstones_written, "tombstones_written_total",
          "Removals written at the coordinator because a holder was out of reach."),
    COUNT(sessions_opened, "sessions_opened_total", "Sessions opened."),
    COUNT(connections_opened, "master_connections_opened_total", "Connections that said HELLO."),
    COUNT(connections, "master_connections",
          "Open connections of clients, tools and store servers."),
    COUNT(servers, "servers", "Store servers that are connected."),
    COUNT(batches_parked, "master_requests_waiting", "Requests that wait for room or for holders."),
};
#define COUNTED (sizeof counted / sizeof *counted)

/* ---- what the pool's bytes are used for ---------------------------------------------------------- */

#define SPACE(field, name, help) {offsetof(md_space, field), name, help}

static const struct {
    size_t offset;
    const char *name, *help;
} spaces[] = {
    SPACE(bytes_total, "pool_bytes", "Bytes of all store servers that are ready."),
    SPACE(bytes_free, "pool_free_bytes", "Bytes of the pool that no object uses."),
    SPACE(bytes_writing, "pool_writing_bytes", "Bytes granted to puts that have not ended."),
    SPACE(bytes_freeing, "pool_freeing_bytes", "Bytes of objects that left and are not free yet."),
    SPACE(bytes_complete, "pool_complete_bytes", "Bytes of stored objects, all replicas."),
    SPACE(bytes_hard_pinned, "pool_hard_pinned_bytes", "Bytes of hard-pinned objects."),
    SPACE(bytes_pinned, "pool_pinned_bytes", "Bytes of objects that sessions pin."),
    SPACE(bytes_leased, "pool_leased_bytes", "Bytes of objects pinned until a deadline."),
};
#define SPACES (sizeof spaces / sizeof *spaces)

/* ---- one value a store server ----------------------------------------------------------------------- */

enum {
    SERVER_UP,
    SERVER_TOTAL,
    SERVER_READY,
    SERVER_FREE,
    SERVER_FREEING,
    SERVER_PINNED,
    SERVER_OBJECTS,
    SERVER_STORAGE_FREE, /* this one and those that follow are told by the server itself */
    SERVER_STORAGE_FULL
};

static const uint32_t told_ids[] = {MS_SERVER_STORAGE_FREE, MS_SERVER_STORAGE_FULL};

static const struct {
    const char *name, *help;
} per_server[] = {
    [SERVER_UP] = {"server_up", "Whether the store server is connected and ready: 1 or 0."},
    [SERVER_TOTAL] = {"server_bytes", "Bytes of the store server's segments."},
    [SERVER_READY] = {"server_ready_bytes", "Bytes that are allocated and may be granted."},
    [SERVER_FREE] = {"server_free_bytes", "Bytes that no object uses."},
    [SERVER_FREEING] = {"server_freeing_bytes",
                        "Bytes of objects that left and have readers still."},
    [SERVER_PINNED] = {"server_pinned_bytes", "Bytes of objects that cannot be evicted."},
    [SERVER_OBJECTS] = {"server_objects", "Objects with a replica there."},
    [SERVER_STORAGE_FREE] = {"server_storage_free_bytes",
                             "Bytes that the file system under the store server's memory can "
                             "still give."},
    [SERVER_STORAGE_FULL] =
        {"server_storage_full_total",
         "Puts that the store server refused because that file system was full."},
};
#define PER_SERVER (sizeof per_server / sizeof *per_server)

/* ---- the list --------------------------------------------------------------------------------------------- */

static const ma_metric version_metric = {
    .name = "master_version",
    .help =
        "Version of the master: 1,000,000 for each major, 1,000 for each minor, 1 for each patch."};

size_t ma_metric_count(void) { return md_counter_count() + COUNTED + SPACES + PER_SERVER + 1; }

static bool ends_with_total(const char *name) {
    size_t length = strlen(name);
    return length > 6 && strcmp(name + length - 6, "_total") == 0;
}

void ma_metric_get(size_t id, ma_metric *metric) {
    *metric = (ma_metric){0};
    if (id < md_counter_count()) {
        core_metric(id, metric);
    } else if ((id -= md_counter_count()) < COUNTED) {
        metric->name = counted[id].name;
        metric->help = counted[id].help;
    } else if ((id -= COUNTED) < SPACES) {
        metric->name = spaces[id].name;
        metric->help = spaces[id].help;
    } else if ((id -= SPACES) < PER_SERVER) {
        metric->name = per_server[id].name;
        metric->help = per_server[id].help;
        metric->is_labelled = true;
    } else if (id == PER_SERVER) {
        *metric = version_metric;
    }
    metric->is_counter = metric->name != NULL && ends_with_total(metric->name);
    if (metric->name != NULL)
        metric->number = ms_crc32c(0, metric->name, strlen(metric->name));
}

#define METRICS_MAX 256u

/* Of each position in the list; asked for a hundred at a time, under the lock. */
static uint32_t numbers[METRICS_MAX];

static void fill_numbers(void) {
    for (size_t id = 0; id < ma_metric_count() && id < METRICS_MAX; id++) {
        ma_metric metric;
        ma_metric_get(id, &metric);
        numbers[id] = metric.number;
    }
}

static uint32_t number_of(uint32_t id) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_numbers);
    return id < METRICS_MAX ? numbers[id] : 0;
}

/* As the server has told it; NULL: not yet. */
static const ms_counter *told(const ma_member *member, uint32_t id) {
    for (uint32_t i = 0; i < member->counter_count; i++)
        if (member->counters[i].id == id)
            return &member->counters[i];
    return NULL;
}

static uint64_t server_value(const ma_member *member, const md_server_view *view, size_t which) {
    switch (which) {
    case SERVER_UP:
        return member->peer != 0 && view->state == MS_MEMBER_READY;
    case SERVER_TOTAL:
        return view->pages_total * MS_PAGE_SIZE;
    case SERVER_READY:
        return view->pages_ready * MS_PAGE_SIZE;
    case SERVER_FREE:
        return view->pages_free * MS_PAGE_SIZE;
    case SERVER_FREEING:
        return view->pages_freeing * MS_PAGE_SIZE;
    case SERVER_PINNED:
        return view->pages_pinned * MS_PAGE_SIZE;
    default:
        return view->object_count;
    }
}

/* Calls `take` for each sample.  Under the lock. */
static void each_sample(ma_master *master, void (*take)(void *context, ma_sample sample),
                        void *context) {
    uint32_t id = 0;
    for (size_t i = 0; i < md_counter_count(); i++)
        take(context, (ma_sample){.id = id++, .value = md_counter(master->core, i)});
    for (size_t i = 0; i < COUNTED; i++) {
        uint64_t value;
        memcpy(&value, (const char *)&master->counts + counted[i].offset, sizeof value);
        take(context, (ma_sample){.id = id++, .value = value});
    }
    md_space space = {0};
    md_space_report(master->core, &space);
    for (size_t i = 0; i < SPACES; i++) {
        uint64_t value;
        memcpy(&value, (const char *)&space + spaces[i].offset, sizeof value);
        take(context, (ma_sample){.id = id++, .value = value});
    }
    for (uint32_t server = 0; server < master->member_capacity; server++) {
        const ma_member *member = master->members[server];
        md_server_view view;
        if (member == NULL || md_server_get(master->core, server, &view) != MS_OK)
            continue;
        for (uint32_t i = 0; i < SERVER_STORAGE_FREE; i++)
            take(context, (ma_sample){.id = id + i,
                                      .label = server + 1,
                                      .value = server_value(member, &view, i)});
        for (uint32_t i = SERVER_STORAGE_FREE; i < PER_SERVER; i++) {
            const ms_counter *counter = told(member, told_ids[i - SERVER_STORAGE_FREE]);
            if (counter != NULL)
                take(context,
                     (ma_sample){.id = id + i, .label = server + 1, .value = counter->value});
        }
    }
    take(context, (ma_sample){.id = id + PER_SERVER, .value = master->config.version});
}

typedef struct sample_room {
    ma_sample *samples;
    size_t count, max;
} sample_room;

static void take_into_room(void *context, ma_sample sample) {
    sample_room *room = context;
    if (room->count < room->max)
        room->samples[room->count] = sample;
    room->count++;
}

size_t ma_metrics_read(ma_master *master, ma_sample *samples, size_t max) {
    sample_room room = {.samples = samples, .max = max};
    pthread_mutex_lock(&master->lock);
    each_sample(master, take_into_room, &room);
    pthread_mutex_unlock(&master->lock);
    return room.count;
}

typedef struct sample_writer {
    ms_writer *out;
    uint32_t count;
} sample_writer;

static void write_sample(void *context, ma_sample sample) {
    sample_writer *writer = context;
    ms_counter counter = {.id = number_of(sample.id), .label = sample.label, .value = sample.value};
    MS_WRITER_STRUCT(writer->out, &counter);
    writer->count++;
}

void ma_status_write(ma_master *master, ms_writer *out) {
    sample_writer writer = {.out = out};
    size_t begin = out->length;
    ms_writer_list(out, 0);
    each_sample(master, write_sample, &writer);
    ms_writer_set_u32(out, begin, writer.count);
}

/* ---- how long requests take --------------------------------------------------------------------------- */

static const struct {
    uint16_t method;
    const char *name;
} ops[MA_OPS] = {
    {MS_EXISTS_KEYS, "exists"},
    {MS_LOOKUP, "lookup"},
    {MS_MATCH_PREFIX, "match_prefix"},
    {MS_PUT_START, "put_start"},
    {MS_PUT_END, "put_end"},
    {MS_REVOKE, "revoke"},
    {MS_REMOVE, "remove"},
    {MS_TOUCH, "touch"},
    {MS_PIN, "pin"},
    {MS_UNPIN, "unpin"},
    {MS_LIST, "list"},
    {MS_STAT, "stat"},
    {MS_ANNOTATE, "annotate"},
    {MS_CHANGE_REPLICA, "change_replica"},
    {MS_MEMBERS, "members"},
    {MS_STATUS, "status"},
    {MS_REMOVE_MATCHING, "remove_matching"},
    {MS_EVENTS, "events"},
    {MS_KEEPALIVE, "keepalive"},
    {MS_CLOSE_SESSION, "close_session"},
    {MS_EXPLAIN, "explain"},
    {MS_PINS, "pins"},
    {MS_FORGET, "forget"},
    {MS_START_TASK, "start_task"},
    {MS_TASKS, "tasks"},
    {MS_CANCEL_TASK, "cancel_task"},
};

_Static_assert(sizeof ops / sizeof *ops == MA_OPS, "ops are the methods of clients, in order");

int ma_op_index(uint16_t method) {
    uint32_t likely = (uint32_t)method - MS_EXISTS_KEYS; /* most numbers follow each other */
    if (likely < MA_OPS && ops[likely].method == method)
        return (int)likely;
    for (int op = 0; op < (int)MA_OPS; op++)
        if (ops[op].method == method)
            return op;
    return -1;
}

/* 20 bounds from 10 us to 60 s, each about 2.3 times the one before. */
static const uint64_t bounds_us[MA_OP_BUCKETS] = {
    10,    25,    50,     100,    250,    500,     1000,    2500,    5000,     10000,
    25000, 50000, 100000, 250000, 500000, 1000000, 2500000, 5000000, 15000000, 60000000};

uint64_t ma_op_bound_ns(size_t bucket) {
    return bucket < MA_OP_BUCKETS ? bounds_us[bucket] * 1000 : UINT64_MAX;
}

void ma_op_count(ma_master *master, uint16_t method, int64_t started_ns, ms_status status) {
    int index = ma_op_index(method);
    if (index < 0)
        return;
    ma_op_stat *stat = &master->ops[index];
    int64_t elapsed_ns = te_now_ns() - started_ns;
    uint64_t elapsed_us = elapsed_ns > 0 ? (uint64_t)elapsed_ns / 1000 : 0;
    stat->count++;
    stat->failed += status != MS_OK;
    stat->sum_ns += elapsed_ns > 0 ? (uint64_t)elapsed_ns : 0;
    size_t bucket = 0; /* nearly always one of the first */
    while (bucket < MA_OP_BUCKETS && elapsed_us > bounds_us[bucket])
        bucket++;
    if (bucket < MA_OP_BUCKETS)
        stat->buckets[bucket]++;
}

bool ma_op_read(ma_master *master, size_t index, ma_op *op) {
    if (index >= MA_OPS)
        return false;
    *op = (ma_op){.name = ops[index].name};
    pthread_mutex_lock(&master->lock);
    const ma_op_stat *stat = &master->ops[index];
    op->count = stat->count;
    op->failed = stat->failed;
    op->sum_ns = stat->sum_ns;
    memcpy(op->buckets, stat->buckets, sizeof op->buckets);
    pthread_mutex_unlock(&master->lock);
    return true;
}

void ma_space_read(ma_master *master, ma_space *space) {
    md_space report = {0};
    pthread_mutex_lock(&master->lock);
    md_space_report(master->core, &report);
    pthread_mutex_unlock(&master->lock);
    *space = (ma_space){.bytes_total = report.bytes_total,
                        .bytes_free = report.bytes_free,
                        .bytes_writing = report.bytes_writing,
                        .bytes_freeing = report.bytes_freeing,
                        .bytes_complete = report.bytes_complete,
                        .bytes_hard_pinned = report.bytes_hard_pinned,
                        .bytes_pinned = report.bytes_pinned,
                        .bytes_leased = report.bytes_leased};
}
