/* Start, stop, the pool's growth, and what the process asks. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "st_internal.h"

void st_config_default(st_config *config) {
    *config = (st_config){.name = "",
                          .host = "",
                          .listen_address = "127.0.0.1",
                          .tenant = "default",
                          .token = "",
                          .size_bytes = 1u << 30,
                          .ready_bytes = 64u << 20,
                          .views_max = 65536,
                          .touch_permille = 250,
                          .copies_max = 2};
    te_engine_config_default(&config->engine);
    if (config->engine.io_threads == 0)
        config->engine.io_threads = 2;
}

/* ---- configuration --------------------------------------------------------------------------------------- */

static const char *copy_string(char **at, const char *text) {
    if (text == NULL)
        return NULL;
    size_t length = strlen(text) + 1;
    char *copy = memcpy(*at, text, length);
    *at += length;
    return copy;
}

static size_t room_of(const char *text) { return text != NULL ? strlen(text) + 1 : 0; }

/* The caller's strings need not outlive the call. */
static bool copy_config(st_server *server, const st_config *config) {
    server->config = *config;
    st_config *own = &server->config;
    const char **texts[] = {&own->segment_dir, &own->hugetlb_dir,    &own->name,
                            &own->host,        &own->listen_address, &own->addresses,
                            &own->unix_path,   &own->tenant,         &own->token};
    size_t room = 1;
    for (size_t at = 0; at < sizeof texts / sizeof texts[0]; at++)
        room += room_of(*texts[at]);
    server->strings = malloc(room);
    if (server->strings == NULL)
        return false;
    char *next = server->strings;
    for (size_t at = 0; at < sizeof texts / sizeof texts[0]; at++)
        *texts[at] = copy_string(&next, *texts[at]);
    own->master = NULL;
    return true;
}

static ms_status check_config(const st_config *config, char *error) {
    if (config->segment_dir == NULL || config->listen_address == NULL || config->name == NULL ||
        config->host == NULL || config->tenant == NULL || config->token == NULL) {
        st_error_set(error, "the store server's configuration lacks a text");
        return MS_BAD_REQUEST;
    }
    if (strlen(config->name) > MS_NAME_BYTES_MAX || strlen(config->host) > MS_NAME_BYTES_MAX) {
        st_error_set(error, "a node's or host's name has at most %u bytes", MS_NAME_BYTES_MAX);
        return MS_BAD_REQUEST;
    }
    if (strlen(config->tenant) > MS_TENANT_BYTES_MAX ||
        strlen(config->token) > MS_TOKEN_BYTES_MAX) {
        st_error_set(error, "a tenant has at most %u bytes, a token %u", MS_TENANT_BYTES_MAX,
                     MS_TOKEN_BYTES_MAX);
        return MS_BAD_REQUEST;
    }
    if (config->size_bytes < (1u << 20) || config->size_bytes / MS_PAGE_SIZE >= UINT32_MAX) {
        st_error_set(error, "a pool has at least 1 MiB and less than 16 TiB");
        return MS_BAD_REQUEST;
    }
    if (config->touch_permille == 0 || config->touch_permille > 1000) {
        st_error_set(error, "touch_permille is 1 to 1000");
        return MS_BAD_REQUEST;
    }
    if (config->views_max == 0 || config->views_max > (1u << 24) || config->copies_max == 0) {
        st_error_set(error, "views_max is 1 to 16,777,216, copies_max at least 1");
        return MS_BAD_REQUEST;
    }
    return MS_OK;
}

static void read_boot_id(uint8_t boot_id[16]) {
    char text[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t length = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0)
        close(fd);
    size_t digits = 0;
    for (ssize_t at = 0; at < length && digits < 32; at++) {
        int value = text[at] >= '0' && text[at] <= '9'   ? text[at] - '0'
                    : text[at] >= 'a' && text[at] <= 'f' ? text[at] - 'a' + 10
                                                         : -1;
        if (value < 0)
            continue;
        boot_id[digits / 2] = (uint8_t)(boot_id[digits / 2] << 4 | value);
        digits++;
    }
}

/* ---- identity --------------------------------------------------------------------------------------------- */

/* The header of a folder, a new one with a new id when it has none. */
static ms_status find_identity(st_server *server, char *error) {
    const char *folder = server->config.segment_dir;
    st_header *header = &server->header;
    bool found = false, is_damaged = false;
    ms_status status = st_header_read(folder, header, &found, &is_damaged);
    if (is_damaged)
        st_log(server, 2, "header_damaged reason=\"this node gets a new id and starts empty\"");
    if (status == MS_OK && !found) {
        *header = (st_header){0};
        if (getrandom(header->node_id, sizeof header->node_id, 0) != sizeof header->node_id)
            status = MS_IO_ERROR;
        header->node_id[6] =
            (uint8_t)((header->node_id[6] & 0x0f) | 0x40); /* a UUID of version 4 */
        header->node_id[8] = (uint8_t)((header->node_id[8] & 0x3f) | 0x80);
        if (status == MS_OK)
            status = st_header_write(folder, header);
    }
    if (status != MS_OK)
        st_error_set(error, "cannot keep this node's identity in %s: %s", folder,
                     ms_status_name(status));
    return status;
}

/* The node's id is kept, its incarnation raised, both before anybody hears of them. */
static ms_status take_identity(st_server *server, char *error) {
    st_header *header = &server->header;
    ms_status status = find_identity(server, error);
    if (status != MS_OK)
        return status;
    server->was_restarted = header->incarnation != 0;
    header->incarnation++;
    if (header->incarnation < server->config.incarnation_floor)
        header->incarnation = server->config.incarnation_floor;
    if (header->epoch < server->config.epoch_floor)
        header->epoch = server->config.epoch_floor; /* *(epoch_floor)* */
    status = st_header_write(server->config.segment_dir, header);
    if (status != MS_OK)
        st_error_set(error, "cannot keep this node's identity in %s: %s",
                     server->config.segment_dir, ms_status_name(status));
    return status;
}

/* ---- the pool ------------------------------------------------------------------------------------------------ */

static int64_t thread_cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Sleeps; true: the server stops. */
static bool pause_growth(st_server *server, int64_t pause_ns) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    int64_t end_ns = until.tv_nsec + pause_ns % 1000000000;
    until.tv_sec += pause_ns / 1000000000 + end_ns / 1000000000;
    until.tv_nsec = end_ns % 1000000000;
    pthread_mutex_lock(&server->grow_lock);
    while (!server->grow_is_stopping &&
           pthread_cond_timedwait(&server->grow_stop, &server->grow_lock, &until) == 0)
        ;
    bool is_stopping = server->grow_is_stopping;
    pthread_mutex_unlock(&server->grow_lock);
    return is_stopping;
}

/* `pages` more pages become ready, with room in the inventory for what will lie there. */
static ms_status grow_pool(st_server *server, uint64_t pages) {
    st_segment *segment = &server->segments[0];
    /* Growth comes in whole steps. */
    uint64_t target = atomic_load(&segment->pages_ready) + pages + segment->grow_pages - 1;
    pthread_mutex_lock(&server->lock);
    ms_status status = st_inventory_extend(
        segment->inventory, target < segment->page_count ? target : segment->page_count);
    pthread_mutex_unlock(&server->lock);
    return status == MS_OK ? st_segment_grow(segment, pages) : status;
}

/* Touches the rest of the pool, at touch_permille of a core. */
static void *grow(void *argument) {
    st_server *server = argument;
    st_segment *segment = &server->segments[0];
    while (atomic_load(&segment->pages_ready) < segment->page_count) {
        int64_t before_ns = thread_cpu_ns();
        ms_status status = grow_pool(server, segment->grow_pages);
        if (status != MS_OK) {
            atomic_store(&server->pool_state, ST_POOL_SMALLER);
            st_log(server, 1,
                   "pool_smaller ready_bytes=%llu wanted_bytes=%llu reason=\"no more room (%s) in "
                   "%s\"",
                   (unsigned long long)(atomic_load(&segment->pages_ready) * MS_PAGE_SIZE),
                   (unsigned long long)(segment->page_count * MS_PAGE_SIZE), ms_status_name(status),
                   server->config.segment_dir);
            return NULL;
        }
        te_segment_extend(server->engine, 0, atomic_load(&segment->pages_ready) * MS_PAGE_SIZE);
        int64_t used_ns = thread_cpu_ns() - before_ns;
        int64_t permille = server->config.touch_permille;
        if (pause_growth(server, used_ns * (1000 - permille) / permille))
            return NULL;
    }
    atomic_store(&server->pool_state, ST_POOL_READY);
    st_log(server, 0, "pool_ready bytes=%llu",
           (unsigned long long)(segment->page_count * MS_PAGE_SIZE));
    /* What an earlier process had made ready is there, but not yet in this one's page tables. */
    for (uint64_t page = 0; page < server->pages_kept; page += segment->grow_pages) {
        int64_t before_ns = thread_cpu_ns();
        st_segment_populate(segment, page, segment->grow_pages);
        int64_t used_ns = thread_cpu_ns() - before_ns;
        int64_t permille = server->config.touch_permille;
        if (pause_growth(server, used_ns * (1000 - permille) / permille))
            break;
    }
    return NULL;
}

/* What became of an earlier process's files, for the log. */
static void tell_found(st_server *server, bool is_kept) {
    const st_segment_found *found = &server->found;
    const st_segment *segment = &server->segments[0];
    if (found->lost_reason != NULL)
        st_log(server, 1, "starts_empty reason=\"%s\"", found->lost_reason);
    if (!is_kept)
        return;
    st_log(server, 0, "kept extents=%llu bytes=%llu ready_bytes=%llu",
           (unsigned long long)st_inventory_count(segment->inventory),
           (unsigned long long)(st_inventory_live_pages(segment->inventory) * MS_PAGE_SIZE),
           (unsigned long long)(atomic_load(&segment->pages_ready) * MS_PAGE_SIZE));
    if (found->repair.logs_cut != 0 || found->repair.dropped != 0 || found->is_cut)
        st_log(server, 1,
               "kept_less logs_cut=%llu bytes_cut=%llu records_dropped=%llu words_settled=%llu "
               "file_cut=%d",
               (unsigned long long)found->repair.logs_cut,
               (unsigned long long)found->repair.bytes_cut,
               (unsigned long long)found->repair.dropped, (unsigned long long)found->words_settled,
               found->is_cut);
    uint64_t wanted =
        server->config.keep_size ? found->page_count : server->config.size_bytes / MS_PAGE_SIZE;
    if (found->page_count > wanted)
        st_log(server, 1,
               "pool_keeps_size bytes=%llu wanted_bytes=%llu reason=\"objects lie in it: drain the "
               "node to make it smaller\"",
               (unsigned long long)(found->page_count * MS_PAGE_SIZE),
               (unsigned long long)(wanted * MS_PAGE_SIZE));
    else if (found->page_count < wanted)
        st_log(server, 0, "pool_grows from_bytes=%llu bytes=%llu",
               (unsigned long long)(found->page_count * MS_PAGE_SIZE),
               (unsigned long long)(wanted * MS_PAGE_SIZE));
}

/* A pool and the table of its views: both are kept, or neither. */
static ms_status open_files(st_server *server, st_segment_options *options, char *warning,
                            char *error) {
    st_segment *segment = &server->segments[0];
    ms_status status = st_segment_open(options, segment, &server->found, warning, error);
    if (status != MS_OK)
        return status;
    segment->server = server;
    server->segment_count = 1;
    status = st_views_open(server, server->found.is_kept, error);
    if (status != MS_BAD_CHECKSUM || !server->found.is_kept)
        return status;
    st_views_close(server, false);
    st_pendings_close(server);
    st_segment_close(segment, true);
    server->segment_count = 0;
    options->fresh_reason = "the table of open views is missing or damaged";
    status = st_segment_open(options, segment, &server->found, warning, error);
    if (status != MS_OK)
        return status;
    segment->server = server;
    server->segment_count = 1;
    return st_views_open(server, false, error);
}

static ms_status open_pool(st_server *server, char *error) {
    const st_config *config = &server->config;
    st_segment_options options = {
        .folder = config->segment_dir,
        .hugetlb_dir = config->hugetlb_dir,
        .name = config->name,
        .number = 0,
        .page_count = config->size_bytes / MS_PAGE_SIZE,
        .version_max = ms_version(server->header.epoch, (UINT64_C(1) << 43) - 1),
        .huge_pages = config->huge_pages,
        .keep_size = config->keep_size,
        .fresh_reason =
            server->was_restarted ? NULL : "the node that they belonged to is not known"};
    memcpy(options.boot_id, server->boot_id, sizeof options.boot_id);
    char warning[ST_ERROR_BYTES];
    ms_status status = open_files(server, &options, warning, error);
    if (status != MS_OK)
        return status;
    st_segment *segment = &server->segments[0];
    bool is_kept = server->found.is_kept;
    tell_found(server, is_kept);
    if (warning[0] != '\0')
        st_log(server, 1, "no_huge_pages reason=\"%s\"", warning);
    uint64_t ready = config->ready_bytes / MS_PAGE_SIZE, there = atomic_load(&segment->pages_ready);
    server->pages_kept = there;
    if (ready > segment->page_count)
        ready = segment->page_count;
    status = grow_pool(server, there < ready ? ready - there : 0);
    if (status == MS_NO_SPACE && there != 0) {
        if (there >= segment->page_count)
            st_log(server, 1,
                   "inventory_not_reserved reason=\"%s is full: what is put may be refused until "
                   "there is room\"",
                   config->segment_dir);
        return MS_OK; /* else the rest of the growth will say so */
    }
    if (status != MS_OK)
        st_error_set(error, "no room for the first %.1f MiB of the pool in %s (%s)",
                     (double)config->ready_bytes / 1048576, config->segment_dir,
                     ms_status_name(status));
    return status;
}

static ms_status serve_pool(st_server *server, char *error) {
    for (uint32_t at = 0; at < server->segment_count; at++) {
        st_segment *segment = &server->segments[at];
        uint64_t ready = atomic_load(&segment->pages_ready);
        te_segment_config config = {.segment = at,
                                    .address = segment->payload,
                                    .length = segment->page_count * MS_PAGE_SIZE,
                                    .payload_descriptor = segment->payload_descriptor,
                                    .words_descriptor = segment->words_descriptor,
                                    .payload_path = segment->payload_path,
                                    .words_path = segment->words_path,
                                    .incarnation = server->header.incarnation,
                                    .words = segment->words,
                                    .ready_bytes = ready == 0 ? 1 : ready * MS_PAGE_SIZE,
                                    .ops = {.context = segment,
                                            .read_ahead = st_read_ahead,
                                            .read_begin = st_read_begin,
                                            .read_end = st_read_end,
                                            .write_begin = st_write_begin,
                                            .write_end = st_write_end,
                                            .write_done = st_write_done}};
        ms_status status = te_segment_add(server->engine, &config);
        if (status != MS_OK) {
            st_error_set(error, "the engine does not take the pool: %s", ms_status_name(status));
            return status;
        }
    }
    return MS_OK;
}

/* "10.0.0.2,fd00::2" with the port, as clients are told. */
static ms_status tell_addresses(st_server *server, char *error) {
    const char *hosts =
        server->config.addresses != NULL ? server->config.addresses : server->config.listen_address;
    size_t length = 0, room = sizeof server->addresses;
    while (*hosts != '\0') {
        size_t host = strcspn(hosts, ",");
        bool is_v6 = memchr(hosts, ':', host) != NULL;
        int written =
            snprintf(server->addresses + length, room - length, is_v6 ? "%s[%.*s]:%u" : "%s%.*s:%u",
                     length != 0 ? "," : "", (int)host, hosts, (unsigned)server->port);
        if (written < 0 || (size_t)written >= room - length) {
            st_error_set(error, "too many addresses to be told to clients");
            return MS_BAD_REQUEST;
        }
        length += (size_t)written;
        hosts += host + (hosts[host] == ',');
    }
    server->config.addresses = server->addresses;
    return MS_OK;
}

static ms_status listen_all(st_server *server, char *error) {
    const st_config *config = &server->config;
    char reason[TE_ERROR_BYTES] = "";
    ms_status status =
        te_listen_tcp(server->engine, config->listen_address, config->port, &server->port, reason);
    if (status == MS_OK && config->unix_path != NULL) {
        status = te_listen_unix(server->engine, config->unix_path, reason);
        if (status == MS_OK)
            status = te_publish_unix(server->engine, config->unix_path);
    }
    if (status != MS_OK) {
        st_error_set(error, "%s", reason);
        return status;
    }
    return tell_addresses(server, error);
}

/* ---- open and close -------------------------------------------------------------------------------------------- */

static ms_status init(st_server *server) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&server->lock, NULL);
    pthread_cond_init(&server->pinged, &monotonic);
    pthread_mutex_init(&server->grow_lock, NULL);
    pthread_cond_init(&server->grow_stop, &monotonic);
    pthread_mutex_init(&server->log_lock, NULL);
    pthread_condattr_destroy(&monotonic);
    server->folder_lock = server->log_event = -1;
    server->control_epoll = server->control_event = -1;
    return st_log_open(server);
}

ms_status st_open(const st_config *config, st_server **out, char *error) {
    error[0] = '\0';
    ms_status status = check_config(config, error);
    if (status != MS_OK)
        return status;
    st_server *server = aligned_alloc(64, (sizeof *server + 63) / 64 * 64);
    if (server == NULL) {
        st_error_set(error, "no memory for a store server");
        return MS_NO_MEMORY;
    }
    memset(server, 0, sizeof *server);
    status = init(server);
    if (status == MS_OK && !copy_config(server, config))
        status = MS_NO_MEMORY;
    if (status == MS_OK && server->config.view_bytes_max == 0)
        server->config.view_bytes_max = server->config.size_bytes / 2;
    read_boot_id(server->boot_id);
    atomic_store(&server->ticked_ns, te_now_ns());
    if (status == MS_OK)
        status = st_folder_make(server->config.segment_dir, error);
    if (status == MS_OK)
        status = st_folder_lock(server->config.segment_dir, &server->folder_lock, error);
    if (status == MS_OK)
        status = take_identity(server, error);
    if (status == MS_OK)
        status = st_control_open(server);
    if (status == MS_OK)
        status = open_pool(server, error);
    if (status == MS_OK)
        status = st_copier_open(server);
    if (status == MS_OK)
        status = te_engine_open(&server->config.engine, &server->engine);
    if (status == MS_OK)
        status = serve_pool(server, error);
    if (status == MS_OK) {
        st_serve(server);
        status = listen_all(server, error);
    }
    if (status == MS_OK && config->master != NULL)
        status = st_set_master(server, config->master);
    if (status == MS_OK)
        status = st_control_start(server);
    if (status == MS_OK && pthread_create(&server->grow_thread, NULL, grow, server) != 0)
        status = MS_LIMIT;
    if (status != MS_OK) {
        if (error[0] == '\0')
            st_error_set(error, "the store server cannot start: %s", ms_status_name(status));
        st_close(server);
        return status;
    }
    pthread_setname_np(server->grow_thread, "st-grow");
    server->grow_started = true;
    *out = server;
    return MS_OK;
}

void st_close(st_server *server) {
    if (server == NULL)
        return;
    st_control_stop(server);
    pthread_mutex_lock(&server->grow_lock);
    server->grow_is_stopping = true;
    pthread_cond_signal(&server->grow_stop);
    pthread_mutex_unlock(&server->grow_lock);
    if (server->grow_started)
        pthread_join(server->grow_thread, NULL);
    st_copier_close(server);
    if (server->engine != NULL)
        te_engine_close(server->engine);
    st_control_close(server);
    /* A start that failed leaves what it found; an empty pool is not worth its memory until the next one. */
    bool keep_files = (server->config.keep_files || !server->grow_started) &&
                      server->segment_count != 0 &&
                      st_inventory_count(server->segments[0].inventory) != 0;
    st_views_close(server, keep_files);
    st_pendings_close(server);
    st_partials_close(server);
    st_table_clear(&server->fenced);
    for (uint32_t at = 0; at < server->segment_count; at++)
        st_segment_close(&server->segments[at], keep_files);
    if (server->segment_count != 0 && !keep_files) {
        st_geometry_erase(server->config.segment_dir, 0);
        st_inventory_erase(server->config.segment_dir);
    }
    if (server->folder_lock >= 0)
        close(server->folder_lock);
    st_log_close(server);
    pthread_mutex_destroy(&server->lock);
    pthread_cond_destroy(&server->pinged);
    pthread_mutex_destroy(&server->grow_lock);
    pthread_cond_destroy(&server->grow_stop);
    pthread_mutex_destroy(&server->log_lock);
    free(server->strings);
    free(server);
}

/* ---- asked by the process ---------------------------------------------------------------------------------------- */

te_engine *st_engine(st_server *server) { return server->engine; }

ms_status st_set_master(st_server *server, const char *master) {
    size_t length = strlen(master);
    if (length >= sizeof server->master_address)
        return MS_BAD_REQUEST;
    pthread_mutex_lock(&server->lock);
    if (strcmp(server->master_address, master) != 0) {
        memcpy(server->master_address, master, length + 1);
        server->master_changed = true;
    }
    pthread_mutex_unlock(&server->lock);
    if (server->control_started)
        st_control_wake(server);
    return MS_OK;
}

void st_get_status(st_server *server, st_status *status) {
    *status = (st_status){.bytes_total = st_counter(server, ST_COUNT_BYTES_TOTAL),
                          .bytes_ready = st_counter(server, ST_COUNT_BYTES_READY),
                          .object_extents = st_counter(server, ST_COUNT_EXTENTS),
                          .pool_state = (uint32_t)atomic_load(&server->pool_state),
                          .port = server->port,
                          .was_restarted = server->was_restarted,
                          .is_kept = server->found.is_kept,
                          .tick_age_ms =
                              (uint64_t)(te_now_ns() - atomic_load(&server->ticked_ns)) / 1000000};
    pthread_mutex_lock(&server->lock);
    memcpy(status->node_id, server->header.node_id, sizeof status->node_id);
    status->incarnation = server->header.incarnation;
    status->epoch = server->header.epoch;
    status->is_adopted = server->master != NULL && server->is_adopted;
    pthread_mutex_unlock(&server->lock);
}

ms_status st_segment_memory(st_server *server, uint32_t number, uint64_t *address,
                            uint64_t *length) {
    st_segment *segment = st_segment_of(server, number);
    if (segment == NULL)
        return MS_NOT_REGISTERED;
    *address = (uintptr_t)segment->payload;
    *length = atomic_load(&segment->pages_ready) * MS_PAGE_SIZE;
    return MS_OK;
}
