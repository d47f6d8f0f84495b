/* What the engine asks of the server: HELLO, frames, ends of connections, the tick. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "st_internal.h"

void st_answer(st_server *server, const te_request *request, ms_status status,
               const char *sentence) {
    if (request->header->kind != MS_REQUEST)
        return;
    struct iovec body = {(void *)(uintptr_t)sentence, strlen(sentence)};
    te_answer(server->engine, request->peer, request->header, status, &body,
              body.iov_len != 0 ? 1 : 0, NULL, 0);
}

/* ---- HELLO ------------------------------------------------------------------------------------------------ */

__attribute__((format(printf, 3, 4))) static ms_status refuse(char *error, ms_status status,
                                                              const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, TE_ERROR_BYTES, format, arguments);
    va_end(arguments);
    return status;
}

static bool text_is(ms_text text, const char *wanted) {
    return text.length == strlen(wanted) && memcmp(text.data, wanted, text.length) == 0;
}

/* Lock held.  May this connection write here, in its session's name? */
static ms_status check_writer(const st_server *server, const ms_hello *hello, char *error) {
    if (hello->incarnation != server->header.incarnation)
        return refuse(error, MS_WRONG_INCARNATION,
                      "this server is incarnation %u, the grant is for %u: it was restarted",
                      server->header.incarnation, hello->incarnation);
    if (server->header.epoch == 0 || hello->epoch != server->header.epoch)
        return refuse(error, MS_WRONG_EPOCH,
                      "this server obeys the leader of epoch %u, the grant is of %u",
                      server->header.epoch, hello->epoch);
    if (st_table_find(&server->fenced, hello->session) != NULL)
        return refuse(error, MS_FENCED, "session %llu was cut off here: open a new one",
                      (unsigned long long)hello->session);
    return MS_OK;
}

static void write_hello_answer(const st_server *server, uint8_t version, uint8_t answer[4096],
                               uint32_t *length) {
    ms_hello_answer fixed = {.version = version,
                             .role = MS_ROLE_SERVER,
                             .epoch = server->header.epoch,
                             .incarnation = server->header.incarnation,
                             .location_lifetime_ms = MS_LOCATION_LIFETIME_MS};
    memcpy(fixed.boot_id, server->boot_id, sizeof fixed.boot_id);
    ms_writer out = ms_writer_fixed(answer, 4096);
    MS_WRITER_STRUCT(&out, &fixed);
    ms_writer_string(&out, server->config.name, (uint32_t)strlen(server->config.name));
    *length = (uint32_t)out.length;
}

static ms_status on_hello(void *context, const te_request *request, uint8_t answer[4096],
                          uint32_t *answer_length, void **peer_context, char *error) {
    st_server *server = context;
    ms_hello_view hello;
    if (!ms_read_hello(request->body, request->header->body_length, &hello))
        return refuse(error, MS_BAD_FRAME, "malformed HELLO");
    uint8_t version = ms_version_agree(hello.head.version_oldest, hello.head.version_newest,
                                       MS_WIRE_VERSION_OLDEST, MS_WIRE_VERSION);
    if (version == 0)
        return refuse(error, MS_VERSION_MISMATCH,
                      "you speak wire versions %u to %u, this server %u to %u",
                      hello.head.version_oldest, hello.head.version_newest, MS_WIRE_VERSION_OLDEST,
                      MS_WIRE_VERSION);
    /* Engines move bytes between registered memories, which have no tenant; the pool is closed to them. */
    bool is_engine = hello.head.role == MS_ROLE_ENGINE;
    if (!is_engine && (!text_is(hello.tenant, server->config.tenant) ||
                       !text_is(hello.token, server->config.token)))
        return refuse(error, MS_REFUSED, "this tenant or token is not known here");
    st_peer *peer = malloc(sizeof *peer);
    if (peer == NULL)
        return MS_NO_MEMORY;
    *peer = (st_peer){.server = server,
                      .number = request->peer,
                      .session = hello.head.session,
                      .epoch = hello.head.epoch,
                      .incarnation = hello.head.incarnation,
                      .pid = hello.head.pid,
                      .is_unix = request->is_unix,
                      .may_read = !is_engine,
                      .may_write = hello.head.role == MS_ROLE_CLIENT &&
                                   (hello.head.right & MS_RIGHT_WRITE) != 0};
    ms_status status = MS_OK;
    pthread_mutex_lock(&server->lock);
    uint64_t own = server->header.cluster, other = is_engine ? 0 : hello.head.cluster;
    if (own != 0 && other != 0 && own != other)
        status = refuse(error, MS_WRONG_INCARNATION,
                        "this server belongs to cluster %016llx, the location or grant is of "
                        "cluster %016llx",
                        (unsigned long long)own, (unsigned long long)other);
    else if (peer->may_write)
        status = check_writer(server, &hello.head, error);
    if (status == MS_OK) {
        write_hello_answer(server, version, answer, answer_length);
        peer->next = server->peers;
        if (peer->next != NULL)
            peer->next->previous = peer;
        server->peers = peer;
        server->peer_count++;
    }
    pthread_mutex_unlock(&server->lock);
    if (status != MS_OK) {
        free(peer);
        return status;
    }
    *peer_context = peer;
    return MS_OK;
}

/* ---- frames ------------------------------------------------------------------------------------------------- */

/* A frame of the connection that is being dialled makes it the master's. */
static void meet_master(st_server *server, st_peer *peer, te_peer number) {
    pthread_mutex_lock(&server->lock);
    if (server->dialling == peer && server->master == NULL) {
        peer->number = number;
        server->master = peer;
    }
    pthread_mutex_unlock(&server->lock);
}

static void on_master_request(st_server *server, st_peer *peer, const te_request *request) {
    meet_master(server, peer, request->peer);
    switch (request->header->method) {
    case MS_ADOPT:
        if (request->header->body_length != sizeof(ms_adopt) ||
            !st_control_post(server, request->peer, request->header, request->body))
            te_close_peer(server->engine, request->peer, "malformed ADOPT");
        break;
    case MS_FREE:
        st_handle_free(server, peer, request);
        break;
    case MS_NOTE:
        st_handle_note(server, peer, request);
        break;
    case MS_COPY:
        st_handle_copy(server, peer, request);
        break;
    default:
        st_answer(server, request, MS_BAD_REQUEST, "a store server does not know this method");
        break;
    }
}

static void on_request(void *context, const te_request *request) {
    st_server *server = context;
    st_peer *peer = request->peer_context;
    if (peer->is_master) {
        on_master_request(server, peer, request);
        return;
    }
    switch (request->header->method) {
    case MS_SEAL:
        st_handle_seal(server, peer, request);
        break;
    case MS_VIEW_OPEN:
        st_handle_view_open(server, peer, request);
        break;
    case MS_VIEW_CLOSE:
        st_handle_view_close(server, peer, request);
        break;
    default:
        st_answer(server, request, MS_BAD_REQUEST, "a store server does not know this method");
        break;
    }
}

static void on_answer(void *context, const te_request *request) {
    st_server *server = context;
    if (request->header->method != MS_PING)
        return;
    pthread_mutex_lock(&server->lock);
    if (request->header->request > server->pings_answered)
        server->pings_answered = request->header->request;
    pthread_cond_broadcast(&server->pinged);
    pthread_mutex_unlock(&server->lock);
}

static void on_close(void *context, te_peer number, void *peer_context, const char *reason) {
    st_server *server = context;
    st_peer *peer = peer_context;
    (void)number;
    if (peer == NULL)
        return;
    bool is_free = true;
    pthread_mutex_lock(&server->lock);
    if (peer->is_master) {
        if (server->master == peer) {
            server->master = NULL;
            server->is_adopted = false;
        }
        if (server->dialling == peer) {
            peer->is_closed = true; /* who dials frees it */
            is_free = false;
        }
        pthread_cond_broadcast(&server->pinged);
    } else {
        if (peer->previous != NULL)
            peer->previous->next = peer->next;
        else
            server->peers = peer->next;
        if (peer->next != NULL)
            peer->next->previous = peer->previous;
        server->peer_count--;
    }
    bool is_stopping = server->is_stopping;
    pthread_mutex_unlock(&server->lock);
    if (peer->is_master) {
        if (!is_stopping)
            st_log(server, 1, "master_lost reason=\"%s\"", reason != NULL ? reason : "closed");
        st_control_wake(server);
    }
    if (is_free)
        free(peer);
}

/* What the engine says of RDMA is news about the machine; all else is a connection that failed. */
static void log_of_engine(st_server *server, const char *line) {
    static const char rdma[] = "rdma: ";
    if (strncmp(line, rdma, sizeof rdma - 1) == 0)
        st_log(server, 0, "rdma state=\"%s\"", line + sizeof rdma - 1);
    else
        st_log(server, 1, "connection_failed reason=\"%s\"", line);
}

/* ---- the tick -------------------------------------------------------------------------------------------------- */

/* SERVER_STATS: each second, and whenever more of the pool is ready. */
static void on_tick(void *context, int64_t now_ns) {
    st_server *server = context;
    char line[TE_ERROR_BYTES];
    atomic_store(&server->ticked_ns, now_ns);
    /* A few: whoever floods us with bad connections must not flood the log (the engine counts the rest). */
    for (int lines = 0; lines < 4 && te_engine_log_next(server->engine, line); lines++)
        log_of_engine(server, line);
    ms_segment_info segments[ST_SEGMENTS_MAX];
    uint64_t pages = 0;
    for (uint32_t at = 0; at < server->segment_count; at++) {
        const st_segment *segment = &server->segments[at];
        segments[at] = (ms_segment_info){.segment = at,
                                         .page_count = segment->page_count,
                                         .page_count_ready = atomic_load(&segment->pages_ready)};
        pages += segments[at].page_count_ready;
    }
    pthread_mutex_lock(&server->lock);
    bool is_due = server->master != NULL && server->is_adopted &&
                  (now_ns - server->stats_sent_ns >= ST_STATS_INTERVAL_MS * INT64_C(1000000) ||
                   pages != server->stats_pages_sent);
    uint32_t numbers[2] = {server->header.epoch, server->header.incarnation};
    te_peer master = is_due ? server->master->number : 0;
    if (is_due) {
        server->stats_sent_ns = now_ns;
        server->stats_pages_sent = pages;
    }
    pthread_mutex_unlock(&server->lock);
    if (!is_due)
        return;
    uint8_t memory[4096];
    ms_writer out = ms_writer_fixed(memory, sizeof memory);
    ms_writer_bytes(&out, numbers, sizeof numbers);
    ms_writer_array(&out, segments, server->segment_count, sizeof segments[0]);
    st_write_counters(server, &out);
    struct iovec body = {out.data, out.length};
    te_push(server->engine, master, MS_ONEWAY, MS_SERVER_STATS, 0, 0, &body, 1);
}

void st_serve(st_server *server) {
    te_service service = {.context = server,
                          .on_hello = on_hello,
                          .on_request = on_request,
                          .on_answer = on_answer,
                          .on_close = on_close,
                          .on_tick = on_tick,
                          .tick_ms = ST_TICK_MS};
    te_serve(server->engine, &service);
}
