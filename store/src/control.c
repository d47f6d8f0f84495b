/* The control thread: what may wait.  It keeps the server connected to its master, cuts connections (fences,
 * ADOPT), sends the inventory, and sees processes with views die. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "st_internal.h"

#define DIAL_TIMEOUT_MS 1000
#define DIAL_PAUSE_MS_MIN 8
#define DIAL_PAUSE_MS_MAX 200
#define FOREIGN_PAUSE_MS 2000 /* whoever refuses does not change his mind soon */
#define NS_PER_MS INT64_C(1000000)

struct st_job {
    st_job *next;
    te_peer from;
    ms_header header;
    uint8_t body[];
};

void st_control_wake(st_server *server) {
    uint64_t one = 1;
    ssize_t written = write(server->control_event, &one, sizeof one);
    (void)written; /* full means awake already */
}

bool st_control_post(st_server *server, te_peer from, const ms_header *header,
                     const uint8_t *body) {
    st_job *job = malloc(sizeof *job + header->body_length);
    if (job == NULL)
        return false;
    job->next = NULL;
    job->from = from;
    job->header = *header;
    memcpy(job->body, body, header->body_length);
    pthread_mutex_lock(&server->lock);
    if (server->jobs_last != NULL)
        server->jobs_last->next = job;
    else
        server->jobs_first = job;
    server->jobs_last = job;
    pthread_mutex_unlock(&server->lock);
    st_control_wake(server);
    return true;
}

void st_control_watch(st_server *server, int pidfd, uint32_t pid) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = pid};
    epoll_ctl(server->control_epoll, EPOLL_CTL_ADD, pidfd, &event);
}

static void run_job(st_server *server, const st_job *job) {
    ms_free_view frees;
    ms_adopt adopt;
    if (job->header.method == MS_FREE && ms_read_free(job->body, job->header.body_length, &frees)) {
        st_run_free(server, job->from, &frees, true);
    } else if (job->header.method == MS_ADOPT && job->header.body_length == sizeof adopt) {
        memcpy(&adopt, job->body, sizeof adopt);
        st_run_adopt(server, job->from, &job->header, adopt);
    }
}

static void run_jobs(st_server *server) {
    for (;;) {
        pthread_mutex_lock(&server->lock);
        st_job *job = server->is_stopping ? NULL : server->jobs_first;
        if (job != NULL) {
            server->jobs_first = job->next;
            if (job->next == NULL)
                server->jobs_last = NULL;
        }
        pthread_mutex_unlock(&server->lock);
        if (job == NULL)
            return;
        run_job(server, job);
        free(job);
    }
}

/* ---- the master ------------------------------------------------------------------------------------------ */

static void write_hello(st_server *server, ms_writer *out) {
    const st_config *config = &server->config;
    ms_hello hello = {.version_oldest = MS_WIRE_VERSION_OLDEST,
                      .version_newest = MS_WIRE_VERSION,
                      .role = MS_ROLE_SERVER,
                      .incarnation = server->header.incarnation,
                      .epoch = server->header.epoch,
                      .pid = (uint32_t)getpid(),
                      /* Not adopted yet, it may go to another cluster: see take_cluster. */
                      .cluster = server->was_adopted ? server->header.cluster : 0};
    memcpy(hello.boot_id, server->boot_id, sizeof hello.boot_id);
    ms_server_info info = {.incarnation = server->header.incarnation,
                           .segment_count = server->segment_count};
    memcpy(info.node_id, server->header.node_id, sizeof info.node_id);
    memcpy(info.boot_id, server->boot_id, sizeof info.boot_id);
    ms_segment_info segments[ST_SEGMENTS_MAX];
    for (uint32_t at = 0; at < server->segment_count; at++)
        segments[at] =
            (ms_segment_info){.segment = at,
                              .page_count = server->segments[at].page_count,
                              .page_count_ready = atomic_load(&server->segments[at].pages_ready)};
    MS_WRITER_STRUCT(out, &hello);
    ms_writer_string(out, config->tenant, (uint32_t)strlen(config->tenant));
    ms_writer_string(out, config->token, (uint32_t)strlen(config->token));
    ms_writer_string(out, config->name, (uint32_t)strlen(config->name));
    ms_writer_server(out, &info, segments, config->name, config->host,
                     config->unix_path != NULL ? config->unix_path : "", config->addresses);
}

/* Epochs count within a cluster, and so do the hashes of keys: what is kept from another cluster can be of use to
 * nobody.  A server that has not been adopted since its start may go to another one, and starts empty there; one
 * that was adopted stays.  False: refused. */
static bool take_cluster(st_server *server, const uint8_t *answer, size_t length) {
    ms_hello_answer_view view;
    if (!ms_read_hello_answer(answer, length, &view) || view.head.cluster == 0)
        return true; /* it does not say which: its epochs decide */
    ms_status status = MS_OK;
    pthread_mutex_lock(&server->lock);
    st_header header = server->header;
    bool is_other = header.cluster != view.head.cluster;
    bool may_change = header.cluster == 0 || !server->was_adopted;
    uint64_t extents = st_inventory_count(server->segments[0].inventory);
    if (is_other && may_change && header.cluster != 0)
        status = st_drop_all(server);
    if (is_other && may_change && status == MS_OK) {
        if (header.cluster != 0)
            header.epoch = 0;
        header.cluster = view.head.cluster;
        status = st_header_write(server->config.segment_dir, &header);
        if (status == MS_OK)
            server->header = header;
    }
    uint64_t own = server->header.cluster;
    pthread_mutex_unlock(&server->lock);
    if (status == MS_BUSY)
        st_log(
            server, 2,
            "other_cluster cluster=%016llx own=%016llx reason=\"processes look at objects of its "
            "own\"",
            (unsigned long long)view.head.cluster, (unsigned long long)own);
    else if (is_other && may_change && extents != 0)
        st_log(server, 1,
               "starts_empty extents=%llu reason=\"they are of another cluster, %016llx\"",
               (unsigned long long)extents, (unsigned long long)header.cluster);
    if (status != MS_OK && status != MS_BUSY)
        st_log(server, 2, "header_not_written status=%s", ms_status_name(status));
    else if (is_other && !may_change)
        st_log(server, 2,
               "other_cluster cluster=%016llx own=%016llx reason=\"restart this server to give it "
               "away\"",
               (unsigned long long)view.head.cluster, (unsigned long long)own);
    return status == MS_OK && (!is_other || may_change);
}

/* The connection that st_service's hooks fill in: they may run before te_dial returns.  False: who answers there
 * leads another cluster, or does not want this server; is_foreign: so it was the last time. */
static bool dial(st_server *server, const char *address, bool is_first_try, bool is_foreign) {
    st_peer *peer = calloc(1, sizeof *peer);
    if (peer == NULL)
        return true;
    peer->server = server;
    peer->is_master = true;
    ms_writer hello = ms_writer_growable(MS_BODY_BYTES_MAX_HELLO);
    pthread_mutex_lock(&server->lock);
    write_hello(server, &hello);
    server->dialling = peer;
    pthread_mutex_unlock(&server->lock);
    uint8_t answer[4096];
    size_t answer_length = 0;
    char error[TE_ERROR_BYTES] = "";
    te_peer number = 0;
    struct iovec body = {hello.data, hello.length};
    ms_status status = hello.status;
    if (status == MS_OK)
        status =
            te_dial(server->engine, address, &body, 1, te_now_ns() + DIAL_TIMEOUT_MS * NS_PER_MS,
                    peer, &number, answer, sizeof answer, &answer_length, error);
    ms_writer_close(&hello);

    st_count_add(server, ST_COUNT_DIALS, 1);
    bool is_ours = status != MS_OK || take_cluster(server, answer, answer_length);
    pthread_mutex_lock(&server->lock);
    server->dialling = NULL;
    if (status == MS_OK && !peer->is_closed) {
        peer->number = number;
        server->master = peer;
        peer = NULL; /* on_close frees it */
    }
    pthread_mutex_unlock(&server->lock);
    free(peer);
    if (status == MS_REFUSED) { /* growing pauses would only find out later */
        is_ours = false;
        if (!is_foreign)
            st_log(server, 2, "master_refuses address=%s reason=\"%s\"", address, error);
    } else if (!is_ours) {
        te_close_peer(server->engine, number, "it leads another cluster");
    } else if (status == MS_OK) {
        st_log(server, 0, "master_connected address=%s", address);
    } else if (is_first_try) {
        st_log(server, 1, "master_unreachable address=%s reason=\"%s\" status=%s", address, error,
               ms_status_name(status));
    }
    return is_ours;
}

/* Dials when that is due; gives the time of the next attempt. */
static int64_t keep_connected(st_server *server, int64_t next_ns, int64_t *pause_ms) {
    char address[sizeof server->master_address];
    pthread_mutex_lock(&server->lock);
    bool is_changed = server->master_changed;
    server->master_changed = false;
    bool is_connected = server->master != NULL;
    bool is_adopted = is_connected && server->is_adopted;
    te_peer old = is_connected ? server->master->number : 0;
    memcpy(address, server->master_address, sizeof address);
    pthread_mutex_unlock(&server->lock);
    if (is_changed && is_connected)
        te_close_peer(server->engine, old, "another master leads");
    if (is_changed) {
        next_ns = 0;
        *pause_ms = 0;
    }
    /* A connection counts once it has led to something: refusals must not spin. */
    if (is_adopted)
        *pause_ms = 0;
    if (is_connected || address[0] == '\0')
        return is_changed ? 0 : INT64_MAX;
    int64_t now_ns = te_now_ns();
    if (next_ns == INT64_MAX && *pause_ms != 0)
        next_ns = now_ns + *pause_ms * NS_PER_MS; /* it was connected, in vain */
    if (next_ns != INT64_MAX && now_ns < next_ns)
        return next_ns;
    if (!dial(server, address, *pause_ms == 0, *pause_ms == FOREIGN_PAUSE_MS)) {
        *pause_ms = FOREIGN_PAUSE_MS;
        return te_now_ns() + FOREIGN_PAUSE_MS * NS_PER_MS;
    }
    /* Growing pauses, each about a fifth of the time that the master has been away: that much later than it is back
     * it is found, and one that is gone costs nothing. */
    *pause_ms = *pause_ms == 0 ? DIAL_PAUSE_MS_MIN : *pause_ms + *pause_ms / 4;
    if (*pause_ms > DIAL_PAUSE_MS_MAX)
        *pause_ms = DIAL_PAUSE_MS_MAX;
    return te_now_ns() + *pause_ms * NS_PER_MS;
}

static void *run(void *argument) {
    st_server *server = argument;
    int64_t next_ns = 0, pause_ms = 0;
    for (;;) {
        run_jobs(server);
        next_ns = keep_connected(server, next_ns, &pause_ms);
        pthread_mutex_lock(&server->lock);
        bool is_stopping = server->is_stopping;
        bool has_jobs = server->jobs_first != NULL;
        pthread_mutex_unlock(&server->lock);
        if (is_stopping)
            return NULL;
        int timeout_ms = has_jobs ? 0 : -1;
        if (!has_jobs && next_ns != INT64_MAX) {
            int64_t left_ns = next_ns - te_now_ns();
            timeout_ms = left_ns > 0 ? (int)(left_ns / NS_PER_MS) + 1 : 0;
        }
        struct epoll_event events[32];
        int count = epoll_wait(server->control_epoll, events, 32, timeout_ms);
        for (int at = 0; at < count; at++) {
            uint64_t value;
            if (events[at].data.u64 != 0) {
                st_view_process_died(server, (uint32_t)events[at].data.u64);
            } else {
                ssize_t got = read(server->control_event, &value, sizeof value);
                (void)got;
            }
        }
    }
}

ms_status st_control_open(st_server *server) {
    server->control_epoll = epoll_create1(EPOLL_CLOEXEC);
    server->control_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0};
    if (server->control_epoll < 0 || server->control_event < 0 ||
        epoll_ctl(server->control_epoll, EPOLL_CTL_ADD, server->control_event, &event) != 0)
        return MS_LIMIT;
    return MS_OK;
}

ms_status st_control_start(st_server *server) {
    if (pthread_create(&server->control_thread, NULL, run, server) != 0)
        return MS_LIMIT;
    pthread_setname_np(server->control_thread, "st-control");
    server->control_started = true;
    return MS_OK;
}

void st_control_stop(st_server *server) {
    pthread_mutex_lock(&server->lock);
    server->is_stopping = true;
    pthread_cond_broadcast(&server->pinged);
    pthread_mutex_unlock(&server->lock);
    if (server->control_started) {
        st_control_wake(server);
        pthread_join(server->control_thread, NULL);
    }
}

void st_control_close(st_server *server) {
    for (st_job *job = server->jobs_first; job != NULL;) {
        st_job *next = job->next;
        free(job);
        job = next;
    }
    server->jobs_first = server->jobs_last = NULL;
    if (server->control_event >= 0)
        close(server->control_event);
    if (server->control_epoll >= 0)
        close(server->control_epoll);
}
