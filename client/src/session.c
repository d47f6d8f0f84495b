/* The session with the master: opened with the first connection, kept by a quiet thread, replaced when lost. */
#include <errno.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "cl_internal.h"

#define TOUCH_PERIOD_NS 1000000000
#define KEEP_TIMEOUT_NS 2000000000
#define WAITING_LONG_NS 1000000000
#define TOUCH_BATCH 256u

static ms_status write_hello(cl_client *client, uint8_t right, uint32_t incarnation,
                             uint64_t session, uint8_t *body, size_t size, size_t *length) {
    ms_writer writer = ms_writer_fixed(body, size);
    ms_hello hello = {.version_oldest = MS_WIRE_VERSION_OLDEST,
                      .version_newest = MS_WIRE_VERSION,
                      .role = MS_ROLE_CLIENT,
                      .right = right,
                      .incarnation = incarnation,
                      .session = session,
                      .epoch = atomic_load(&client->epoch),
                      .pid = (uint32_t)client->pid,
                      /* Who opens a session may come from any cluster. */
                      .cluster = session != 0 ? atomic_load(&client->cluster) : 0};
    memcpy(hello.boot_id, client->boot_id, sizeof hello.boot_id);
    MS_WRITER_STRUCT(&writer, &hello);
    ms_writer_string(&writer, client->tenant, (uint32_t)client->tenant_length);
    ms_writer_string(&writer, client->token, (uint32_t)strlen(client->token));
    ms_writer_string(&writer, client->name, (uint32_t)strlen(client->name));
    *length = writer.length;
    return writer.status;
}

ms_status cl_hello_for_node(cl_client *client, uint8_t right, uint32_t incarnation, uint8_t *body,
                            size_t size, size_t *length) {
    return write_hello(client, right, right == MS_RIGHT_WRITE ? incarnation : 0,
                       atomic_load(&client->session), body, size, length);
}

ms_status cl_session_open(cl_client *client, uint64_t lost, int64_t deadline_ns,
                          cl_failure *failure) {
    uint8_t hello[CL_HELLO_BYTES_MAX], answer[4096];
    size_t length;
    te_connection *connection = NULL;
    bool is_other_cluster = false;
    if (!cl_lock_until(&client->session_lock, deadline_ns))
        return cl_fail(failure, MS_TIMEOUT, "connect", "master",
                       "another call was connecting until the deadline");
    ms_status status = MS_OK;
    if (atomic_load(&client->session) != lost)
        goto out; /* another caller has done it */
    status = write_hello(client, 0, 0, 0, hello, sizeof hello, &length);
    if (status != MS_OK) {
        cl_fail(failure, status, "connect", "master",
                "a tenant has at most %u bytes, a token %u, a name %u", MS_TENANT_BYTES_MAX,
                MS_TOKEN_BYTES_MAX, MS_NAME_BYTES_MAX);
        goto out;
    }
    /* Said once: whoever else connects meanwhile would open a session that this client does not know, and work in it. */
    size_t answer_length;
    status = te_checkout_saying(client->master, hello, length, deadline_ns, &connection, answer,
                                sizeof answer, &answer_length);
    if (status != MS_OK) {
        char error[TE_ERROR_BYTES];
        te_channel_error(client->master, error);
        cl_fail(failure, status, "connect", "master", "no master answers at %s: %s",
                client->master_addresses != NULL ? client->master_addresses : client->master_unix,
                error[0] != '\0' ? error : ms_status_name(status));
        goto out;
    }
    ms_hello_answer_view view;
    if (answer_length > sizeof answer || !ms_read_hello_answer(answer, answer_length, &view) ||
        view.secret.length != MS_SECRET_BYTES) {
        te_checkin(connection, false);
        status = cl_fail(
            failure, MS_BAD_FRAME, "connect", "master",
            "what answers there is no master of mooncake-store; check the address and port");
        goto out;
    }
    if (lost != 0)
        atomic_fetch_add(&client->sessions_lost, 1);
    is_other_cluster = lost != 0 && memcmp(client->secret, view.secret.data, MS_SECRET_BYTES) != 0;
    memcpy(client->secret, view.secret.data, MS_SECRET_BYTES);
    atomic_store(&client->epoch, view.head.epoch);
    atomic_store(&client->cluster, view.head.cluster);
    atomic_store(&client->session, view.head.session);
    atomic_store(&client->members_serial, view.head.members_serial);
    client->session_timeout_ms = view.head.session_timeout_ms;
    status = write_hello(client, 0, 0, view.head.session, hello, sizeof hello, &length);
    te_channel_set_hello(client->master, hello, length);
    te_checkin(connection, true);
out:
    pthread_mutex_unlock(&client->session_lock);
    if (status == MS_OK && lost != 0) {
        if (is_other_cluster) { /* hashes, numbers, versions and epochs are others there */
            cl_locations_drop(client);
            cl_nodes_retire(client);
        }
        cl_nodes_set_session(client);
    }
    return status;
}

void cl_session_close(cl_client *client, int64_t deadline_ns) {
    te_reply reply = {0};
    if (cl_master_check(client, "close", deadline_ns, NULL) == MS_OK)
        te_call(client->master, MS_CLOSE_SESSION, 0, NULL, 0, &reply, deadline_ns);
}

ms_status cl_session_probe(cl_client *client, int64_t deadline_ns) {
    uint64_t session = atomic_load(&client->session);
    if (session != 0) {
        uint8_t body[64];
        te_reply reply = {.body = body, .body_size = sizeof body};
        ms_status status = te_call(client->master, MS_KEEPALIVE, 0, NULL, 0, &reply, deadline_ns);
        if (status == MS_OK)
            status = (ms_status)reply.header.status;
        if (status != MS_SESSION_LOST && status != MS_WRONG_EPOCH)
            return status;
    }
    cl_failure failure;
    return cl_session_open(client, session, deadline_ns, &failure);
}

/* The sentence of an answer other than OK, or why there is none; the answer's memory is given back. */
static void take_sentence(cl_client *client, const te_reply *blank, te_reply *reply,
                          ms_status status, char text[TE_ERROR_BYTES]) {
    if (status == (ms_status)reply->header.status && reply->body != NULL &&
        reply->header.body_length > 4 &&
        (blank->grow || reply->header.body_length <= blank->body_size)) {
        snprintf(text, TE_ERROR_BYTES, "%.*s", (int)reply->header.body_length,
                 (const char *)reply->body);
    } else {
        te_channel_error(client->master, text);
    }
    if (blank->grow) {
        free(reply->body);
        reply->body = NULL;
    }
}

static bool may_repeat(cl_client *client, cl_repeat repeat, uint64_t session) {
    switch (repeat) {
    case CL_REPEAT_ALWAYS:
        return true;
    case CL_REPEAT_IN_SESSION:
        return atomic_load(&client->session) == session;
    case CL_REPEAT_IN_NEXT:
        return atomic_load(&client->session) != session;
    case CL_REPEAT_NEVER:
        break;
    }
    return false;
}

ms_status cl_master_call(cl_client *client, cl_repeat repeat, uint16_t method, uint32_t flags,
                         const struct iovec *body, size_t body_count, te_reply *reply,
                         const char *stage, int64_t deadline_ns, cl_failure *failure) {
    const te_reply blank = *reply;
    ms_status status = cl_master_check(client, stage, deadline_ns, failure);
    bool is_renewed = false;
    while (status == MS_OK) {
        char text[TE_ERROR_BYTES];
        uint64_t session = atomic_load(&client->session);
        int64_t began_ns = te_now_ns();
        *reply = blank;
        status = te_call(client->master, method, flags, body, body_count, reply, deadline_ns);
        if (status == MS_OK && reply->header.status == MS_OK) {
            cl_master_worked(client);
            return MS_OK;
        }
        /* A new connection's HELLO may be refused: that is an answer, too. */
        bool is_answered = !cl_is_leaderless(status), is_told = false;
        if (status == MS_OK)
            status = (ms_status)reply->header.status;
        if (status == MS_NOT_LEADER) { /* nothing of it was done */
            is_answered = false;
            is_told = true;
        }
        if (is_answered)
            cl_master_worked(client);
        take_sentence(client, &blank, reply, status, text);
        if (is_answered && !is_renewed && (status == MS_SESSION_LOST || status == MS_WRONG_EPOCH)) {
            is_renewed = is_told = true;
            began_ns = te_now_ns();
            status = cl_session_open(client, session, deadline_ns, failure);
            if (status == MS_OK)
                continue; /* nothing of it was done */
            is_answered = !cl_is_leaderless(status);
        }
        if (!is_answered) {
            cl_master_failed(client, began_ns);
            if ((is_told || repeat != CL_REPEAT_NEVER) &&
                cl_master_wait(client, false, deadline_ns) &&
                (is_told || may_repeat(client, repeat, session))) {
                atomic_fetch_add_explicit(&client->calls_repeated, 1, memory_order_relaxed);
                status = MS_OK;
                continue;
            }
        }
        if (!is_told || status == MS_NOT_LEADER)
            cl_fail(failure, status, stage, "master", "%s", text);
    }
    atomic_fetch_add_explicit(&client->failure_count, 1, memory_order_relaxed);
    return status;
}

/* ---- numbers ------------------------------------------------------------------------------------------------ */

ms_batch cl_number_start(cl_client *client, uint32_t count) {
    ms_batch batch = {.count = count};
    pthread_mutex_lock(&client->number_lock);
    uint64_t number = atomic_load_explicit(&client->number, memory_order_relaxed) + 1;
    atomic_store_explicit(&client->number, number, memory_order_relaxed);
    size_t slots = sizeof client->numbers_open / sizeof client->numbers_open[0];
    uint64_t oldest = number;
    bool kept = false;
    for (size_t i = 0; i < slots; i++) {
        if (client->numbers_open[i] == 0) {
            if (!kept) {
                client->numbers_open[i] = number;
                kept = true;
            }
        } else if (client->numbers_open[i] < oldest) {
            oldest = client->numbers_open[i];
        }
    }
    /* More calls at once than slots: this one is sent as never repeated. */
    batch.number = kept ? number : 0;
    batch.number_done = oldest - 1;
    pthread_mutex_unlock(&client->number_lock);
    return batch;
}

void cl_number_end(cl_client *client, uint64_t number) {
    if (number == 0)
        return;
    pthread_mutex_lock(&client->number_lock);
    for (size_t i = 0; i < sizeof client->numbers_open / sizeof client->numbers_open[0]; i++)
        if (client->numbers_open[i] == number) {
            client->numbers_open[i] = 0;
            break;
        }
    pthread_mutex_unlock(&client->number_lock);
}

/* ---- the keeper ------------------------------------------------------------------------------------------------ */

void cl_touch_later(cl_client *client, ms_hash hash) {
    pthread_mutex_lock(&client->touch_lock);
    if (client->touch_count < CL_TOUCH_MAX)
        client->touches[client->touch_count++] = hash;
    pthread_mutex_unlock(&client->touch_lock);
}

static ms_status tell_uses(cl_client *client, const ms_hash *hashes, uint32_t count) {
    uint32_t head[2] = {count, 0};
    struct iovec body[2] = {
        {.iov_base = head, .iov_len = sizeof head},
        {.iov_base = (void *)(uintptr_t)hashes, .iov_len = count * sizeof hashes[0]}};
    te_connection *connection;
    int64_t deadline_ns = te_now_ns() + KEEP_TIMEOUT_NS;
    if (count == 0)
        return MS_OK;
    ms_status status = cl_master_check(client, "touch", 0, NULL);
    if (status != MS_OK)
        return status;
    status = te_checkout(client->master, deadline_ns, &connection);
    if (status != MS_OK)
        return status;
    status = te_send(connection, MS_ONEWAY, MS_TOUCH, 0, te_next_request(connection), 0, body, 2,
                     NULL, 0, deadline_ns);
    te_checkin(connection, status == MS_OK);
    return status;
}

/* Looked up anew before they expire, so that whoever reads an object again and again has a location for half a
 * lifetime at least, whatever becomes of the master. */
static ms_status renew_locations(cl_client *client, const ms_hash *hashes, uint32_t count) {
    cl_item items[TOUCH_BATCH];
    cl_failure failure;
    for (uint32_t i = 0; i < count; i++)
        items[i] = (cl_item){.hash = hashes[i], .status = MS_PENDING};
    ms_status status =
        cl_lookup(client, items, count, NULL, te_now_ns() + KEEP_TIMEOUT_NS, &failure);
    for (uint32_t i = 0; i < count && status == MS_OK; i++)
        if (items[i].status == MS_NOT_FOUND)
            cl_location_forget(client, hashes[i], UINT64_MAX);
    return status;
}

static bool is_half_over(cl_client *client, ms_hash hash) {
    int64_t now_ns = te_now_ns();
    cl_location *location = cl_location_find(client, hash, now_ns);
    if (location == NULL)
        return false;
    bool is_it = location->expiry_ns - now_ns < (int64_t)location->lifetime_ms * 1000000 / 2;
    cl_location_release(location);
    return is_it;
}

/* Uses of cached locations, so that the master's LRU stays true.  A look-up is a use too. */
static void send_touches(cl_client *client) {
    for (;;) {
        ms_hash used[TOUCH_BATCH], old[TOUCH_BATCH];
        uint32_t count = 0, used_count = 0, old_count = 0;
        pthread_mutex_lock(&client->touch_lock);
        while (count < TOUCH_BATCH && client->touch_count > 0)
            used[count++] = client->touches[--client->touch_count];
        pthread_mutex_unlock(&client->touch_lock);
        for (uint32_t i = 0; i < count; i++) {
            if (is_half_over(client, used[i]))
                old[old_count++] = used[i];
            else
                used[used_count++] = used[i];
        }
        if (count == 0 || tell_uses(client, used, used_count) != MS_OK ||
            renew_locations(client, old, old_count) != MS_OK)
            return;
    }
}

/* Whether the master has answered. */
static bool keep_session(cl_client *client) {
    uint8_t body[64];
    te_reply reply = {.body = body, .body_size = sizeof body};
    cl_failure failure;
    int64_t deadline_ns = te_now_ns() + KEEP_TIMEOUT_NS;
    if (cl_master_call(client, CL_REPEAT_NEVER, MS_KEEPALIVE, 0, NULL, 0, &reply, "keepalive",
                       deadline_ns, &failure) != MS_OK)
        return false;
    if (reply.header.body_length >= 4) {
        uint32_t serial;
        memcpy(&serial, body, sizeof serial);
        atomic_store(&client->members_serial, serial);
    }
    if (atomic_load(&client->members_serial) != atomic_load(&client->members_known))
        cl_members_fetch(client, deadline_ns);
    return true;
}

/* Calls that wait for a frozen master tell nothing until their deadlines. */
static void look_at_master(cl_client *client) {
    te_channel_health health;
    te_channel_get_health(client->master, &health);
    if (health.waiting_ns > WAITING_LONG_NS)
        cl_master_failed(client, te_now_ns() - health.waiting_ns);
}

static void *keeper(void *argument) {
    cl_client *client = argument;
    int64_t kept_ns = te_now_ns();
    pthread_mutex_lock(&client->keeper_lock);
    while (!client->stopping) {
        int64_t wake_ns = te_now_ns() + TOUCH_PERIOD_NS;
        struct timespec wake = {.tv_sec = wake_ns / 1000000000, .tv_nsec = wake_ns % 1000000000};
        while (!client->stopping &&
               pthread_cond_timedwait(&client->keeper_wake, &client->keeper_lock, &wake) !=
                   ETIMEDOUT) {
        }
        if (client->stopping)
            break;
        pthread_mutex_unlock(&client->keeper_lock);
        look_at_master(client);
        send_touches(client);
        cl_views_settle(client, false);
        /* Who pins wants to know soon when the master that knows the pins is gone. */
        int64_t period_ns = cl_pins_any(client) ? TOUCH_PERIOD_NS
                                                : (int64_t)client->session_timeout_ms * 1000000 / 3;
        if (te_now_ns() - kept_ns + TOUCH_PERIOD_NS >= period_ns) {
            /* A master that does not answer would keep all waiting who pin. */
            if (keep_session(client))
                cl_pins_settle(client);
            kept_ns = te_now_ns();
        }
        pthread_mutex_lock(&client->keeper_lock);
    }
    pthread_mutex_unlock(&client->keeper_lock);
    return NULL;
}

ms_status cl_keeper_start(cl_client *client) {
    if (pthread_create(&client->keeper, NULL, keeper, client) != 0)
        return MS_LIMIT;
    client->keeper_runs = true;
    return MS_OK;
}

void cl_keeper_stop(cl_client *client) {
    if (!client->keeper_runs)
        return;
    pthread_mutex_lock(&client->keeper_lock);
    client->stopping = true;
    pthread_cond_signal(&client->keeper_wake);
    pthread_mutex_unlock(&client->keeper_lock);
    pthread_join(client->keeper, NULL);
    client->keeper_runs = false;
}
