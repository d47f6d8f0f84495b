/* Sessions: which connections belong to one, whether it lives, and what goes with it.
 *
 * The core owns their life (a session ends by silence, by CLOSE_SESSION, or by one of its puts past the
 * deadline); here is what the core need not know: connections and answers kept for repeats.  A session
 * outlives its connections until its timeout, so that a client that redials takes it up again.
 */
#include "service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ids are given in order, so their low bits spread by themselves, and a table for many sessions becomes resident one
 * page after 512 of them; mixed, each of a page's first sessions would touch a page of its own. */
static ma_session **bucket_of(ma_master *master, uint64_t id) {
    return &master->session_buckets[id & (master->session_bucket_count - 1)];
}

ma_session *ma_session_find(ma_master *master, uint64_t id) {
    for (ma_session *session = *bucket_of(master, id); session != NULL; session = session->next)
        if (session->id == id)
            return session;
    return NULL;
}

static void attach(ma_session *session, ma_connection *connection) {
    connection->session = session;
    connection->session_next = session->connections;
    if (session->connections != NULL)
        session->connections->session_previous = connection;
    session->connections = connection;
}

void ma_session_detach(ma_connection *connection) {
    ma_session *session = connection->session;
    if (session == NULL)
        return;
    if (connection->session_previous != NULL)
        connection->session_previous->session_next = connection->session_next;
    else
        session->connections = connection->session_next;
    if (connection->session_next != NULL)
        connection->session_next->session_previous = connection->session_previous;
    connection->session_next = connection->session_previous = NULL;
    connection->session = NULL;
}

static ms_status resume(ma_master *master, ma_connection *connection, const ms_hello_view *hello,
                        char *error) {
    ma_session *session = hello->head.epoch == master->config.epoch
                              ? ma_session_find(master, hello->head.session)
                              : NULL;
    if (session == NULL || session->tenant_length != hello->tenant.length ||
        memcmp(session->tenant_name, hello->tenant.data, hello->tenant.length) != 0 ||
        md_session_keep(master->core, master->now, session->id) != MS_OK) {
        snprintf(error, TE_ERROR_BYTES, "this session has ended: open a new one");
        return MS_SESSION_LOST;
    }
    session->kept_ms = master->now.now_ms;
    attach(session, connection);
    return MS_OK;
}

static void keep_name(ma_master *master, uint64_t id, ms_text name) {
    ma_session_name *kept = &master->session_names[id % MA_SESSION_NAMES];
    kept->id = id;
    ma_printable(name.data, name.length, kept->name, sizeof kept->name);
}

const char *ma_session_name_of(const ma_master *master, uint64_t id) {
    const ma_session_name *kept = &master->session_names[id % MA_SESSION_NAMES];
    return id != 0 && kept->id == id ? kept->name : "";
}

ms_status ma_session_begin(ma_master *master, ma_connection *connection, const ms_hello_view *hello,
                           char *error) {
    if (hello->head.session != 0)
        return resume(master, connection, hello, error);
    if (master->counts.sessions >= master->config.sessions_max) {
        snprintf(error, TE_ERROR_BYTES, "%u sessions are open, this master takes no more",
                 (unsigned)master->config.sessions_max);
        return MS_LIMIT;
    }
    ma_session *session = calloc(1, sizeof *session);
    ms_status status = session == NULL ? MS_NO_MEMORY
                                       : md_session_open(master->core, master->now,
                                                         (const uint8_t *)hello->tenant.data,
                                                         hello->tenant.length, &session->id);
    if (status != MS_OK) {
        snprintf(error, TE_ERROR_BYTES, "no session can be opened: %s", ms_status_name(status));
        free(session);
        return status;
    }
    session->tenant = md_session_tenant(master->core, session->id);
    keep_name(master, session->id, hello->name);
    session->tenant_length = (uint8_t)hello->tenant.length;
    memcpy(session->tenant_name, hello->tenant.data, hello->tenant.length);
    session->kept_ms = master->now.now_ms;
    session->dedupe.bytes_total = &master->answer_bytes_kept;
    ma_session **bucket = bucket_of(master, session->id);
    session->next = *bucket;
    *bucket = session;
    attach(session, connection);
    master->counts.sessions++;
    master->counts.sessions_opened++;
    return MS_OK;
}

ms_status ma_session_keep(ma_master *master, ma_session *session) {
    int64_t silent_ms = master->now.now_ms - session->kept_ms;
    if (silent_ms * 16 < (int64_t)master->config.session_timeout_ms)
        return MS_OK;
    ms_status status = md_session_keep(master->core, master->now, session->id);
    if (status == MS_OK)
        session->kept_ms = master->now.now_ms;
    return status;
}

void ma_session_end(ma_master *master, uint64_t id) {
    ma_session **at = bucket_of(master, id);
    while (*at != NULL && (*at)->id != id)
        at = &(*at)->next;
    ma_session *session = *at;
    if (session == NULL)
        return; /* CLOSE_SESSION has been here before the core's effect */
    *at = session->next;
    while (session->connections != NULL)
        ma_session_detach(session->connections);
    ma_dedupe_close(&session->dedupe);
    free(session);
    master->counts.sessions--;
}

void ma_sessions_close(ma_master *master) {
    for (uint32_t i = 0; i < master->session_bucket_count && master->session_buckets != NULL; i++)
        while (master->session_buckets[i] != NULL) {
            ma_session *session = master->session_buckets[i];
            master->session_buckets[i] = session->next;
            ma_dedupe_close(&session->dedupe);
            free(session);
        }
    free(master->session_buckets);
}
