/* Counters: names and where each is read. */
#include <sys/statvfs.h>

#include "st_internal.h"

static const struct {
    const char *name, *help;
} texts[ST_COUNT_END] = {
    [ST_COUNT_WRITES] = {"writes_total", "Items written."},
    [ST_COUNT_WRITES_REFUSED] = {"writes_refused_total",
                                 "Items refused: fenced, stale or out of range."},
    [ST_COUNT_WRITTEN_BYTES] = {"written_bytes_total", "Bytes written."},
    [ST_COUNT_SEALS] = {"seals_total", "Extents sealed."},
    [ST_COUNT_SEALS_REFUSED] = {"seals_refused_total", "Seals refused."},
    [ST_COUNT_BAD_CHECKSUMS] = {"bad_checksums_total",
                                "Seals refused because the bytes are not the client's."},
    [ST_COUNT_READS] = {"reads_total", "Items read through the server."},
    [ST_COUNT_READS_GONE] = {"reads_gone_total", "Reads of a location that was stale."},
    [ST_COUNT_READ_BYTES] = {"read_bytes_total", "Bytes read through the server."},
    [ST_COUNT_FREES] = {"frees_total", "Extents freed, repeats included."},
    [ST_COUNT_FREES_WAITING] = {"frees_waited_total", "Extents freed while in use."},
    [ST_COUNT_FENCES] = {"fences_total", "Sessions cut off."},
    [ST_COUNT_NOTES] = {"notes_total", "Changes of pins and lifetimes of stored objects."},
    [ST_COUNT_VIEWS_OPENED] = {"views_opened_total", "Views opened."},
    [ST_COUNT_VIEWS_REFUSED] = {"views_refused_total", "Views refused: gone, or beyond the quota."},
    [ST_COUNT_COPIES] = {"copies_total", "Objects pulled from other servers."},
    [ST_COUNT_COPIES_FAILED] = {"copies_failed_total", "Pulls that failed."},
    [ST_COUNT_RELAYS] = {"relayed_ends_total", "Puts whose end was relayed to the master."},
    [ST_COUNT_ADOPTIONS] = {"adoptions_total", "Times that a master has got the inventory."},
    [ST_COUNT_DIALS] = {"master_dials_total", "Attempts to reach a master."},
    [ST_COUNT_FRAMES_REFUSED] = {"frames_refused_total",
                                 "Frames of an older leader or incarnation."},
    [ST_COUNT_BYTES_TOTAL] = {"pool_bytes", "Size of the pool."},
    [ST_COUNT_BYTES_READY] = {"pool_ready_bytes", "Allocated and touched."},
    [ST_COUNT_EXTENTS] = {"extents", "Live extents."},
    [ST_COUNT_BYTES_LIVE] = {"live_bytes", "In live extents, whole pages."},
    [ST_COUNT_VIEWS_OPEN] = {"views", "Views open."},
    [ST_COUNT_VIEW_BYTES] = {"view_bytes", "Under open views."},
    [ST_COUNT_PENDING_FREES] = {"pending_frees", "Freed extents that are still in use."},
    [ST_COUNT_INVENTORY_BYTES] = {"inventory_bytes", "Of the inventory's files."},
    [ST_COUNT_COMPACTIONS] = {"compactions_total", "Rewrites of an inventory file."},
    [ST_COUNT_LINES_DROPPED] = {"log_lines_dropped_total", "Log lines that nobody took in time."},
    [ST_COUNT_STORAGE_FULL] = {"storage_full_total",
                               "Puts refused because the file system had no room for a record."},
    [ST_COUNT_CONNECTIONS] = {"connections", "Connections of clients and other servers."},
    [ST_COUNT_IS_ADOPTED] = {"adopted", "1 while connected to a master that has the inventory."},
};

const char *st_counter_name(size_t id) { return id < ST_COUNT_END ? texts[id].name : NULL; }

const char *st_counter_help(size_t id) { return id < ST_COUNT_END ? texts[id].help : NULL; }

/* Lock held. */
static uint64_t inventory_sum(const st_server *server, uint64_t (*of)(const st_inventory *)) {
    uint64_t sum = 0;
    for (uint32_t at = 0; at < server->segment_count; at++)
        sum += of(server->segments[at].inventory);
    return sum;
}

static uint64_t asked_locked(st_server *server, size_t id) {
    switch (id) {
    case ST_COUNT_EXTENTS:
        return inventory_sum(server, st_inventory_count);
    case ST_COUNT_BYTES_LIVE:
        return inventory_sum(server, st_inventory_live_pages) * MS_PAGE_SIZE;
    case ST_COUNT_PENDING_FREES:
        return server->pendings.count;
    case ST_COUNT_INVENTORY_BYTES:
        return inventory_sum(server, st_inventory_bytes);
    case ST_COUNT_COMPACTIONS:
        return inventory_sum(server, st_inventory_compactions);
    case ST_COUNT_CONNECTIONS:
        return server->peer_count;
    case ST_COUNT_IS_ADOPTED:
        return server->master != NULL && server->is_adopted;
    default:
        return 0;
    }
}

uint64_t st_counter(st_server *server, size_t id) {
    uint64_t value = 0, views = 0, view_bytes = 0;
    if (id < ST_COUNT_STORED_END)
        return atomic_load_explicit(&server->counts.values[id], memory_order_relaxed);
    switch (id) {
    case ST_COUNT_BYTES_TOTAL:
    case ST_COUNT_BYTES_READY:
        for (uint32_t at = 0; at < server->segment_count; at++)
            value += id == ST_COUNT_BYTES_TOTAL ? server->segments[at].page_count
                                                : atomic_load(&server->segments[at].pages_ready);
        return value * MS_PAGE_SIZE;
    case ST_COUNT_VIEWS_OPEN:
        st_views_count(server, &views, &view_bytes);
        return views;
    case ST_COUNT_VIEW_BYTES:
        st_views_count(server, &views, &view_bytes);
        return view_bytes;
    default:
        pthread_mutex_lock(&server->lock);
        value = asked_locked(server, id);
        pthread_mutex_unlock(&server->lock);
        return value;
    }
}

void st_write_counters(st_server *server, ms_writer *out) {
    struct statvfs system;
    bool is_known = statvfs(server->config.segment_dir, &system) == 0;
    ms_counter shared[] = {
        {.id = MS_SERVER_STORAGE_FULL, .value = st_counter(server, ST_COUNT_STORAGE_FULL)},
        {.id = MS_SERVER_STORAGE_FREE,
         .value = is_known ? (uint64_t)system.f_bavail * system.f_frsize : 0}};
    const uint32_t shared_count = is_known ? 2 : 1;
    ms_writer_list(out, shared_count + ST_COUNT_END);
    for (uint32_t at = 0; at < shared_count; at++)
        MS_WRITER_STRUCT(out, &shared[at]);
    for (uint32_t id = 0; id < ST_COUNT_END; id++) {
        ms_counter counter = {.id = id, .value = st_counter(server, id)};
        MS_WRITER_STRUCT(out, &counter);
    }
}
