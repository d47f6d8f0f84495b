/* Segments of other engines by address: handles, and the session that each has now. */
#include <stdlib.h>
#include <string.h>

#include "ms_frame.h"
#include "te_session.h"

#include "te_fault.h"

#define REMOTES_MAX 1024u
#define SLOT_BITS 10

struct te_remotes {
    te_engine *engine;
    pthread_mutex_t lock;
    te_remote *slots[REMOTES_MAX];
    uint32_t generations[REMOTES_MAX];
};

te_session *te_remote_session(te_remote *remote) {
    pthread_mutex_lock(&remote->lock);
    te_session *session = remote->session;
    atomic_fetch_add_explicit(&session->references, 1, memory_order_relaxed);
    pthread_mutex_unlock(&remote->lock);
    return session;
}

/* The process behind the address is another one, or seems to be: a new session, unless someone was faster. */
ms_status te_remote_renew(te_remote *remote, const te_session *old, int64_t deadline_ns) {
    pthread_mutex_lock(&remote->connecting);
    te_session *current = te_remote_session(remote);
    ms_status status = MS_OK;
    if (current == old) {
        te_session *fresh = NULL;
        te_rail_ends rails[TE_RAILS_MAX];
        pthread_mutex_lock(&remote->lock);
        uint32_t rail_count = remote->rail_count;
        if (rail_count > 0)
            memcpy(rails, remote->rails, rail_count * sizeof *rails);
        pthread_mutex_unlock(&remote->lock);
        status = te_session_open(remote->engine, remote->address, rails, rail_count, deadline_ns,
                                 &fresh, NULL);
        if (status == MS_OK) {
            pthread_mutex_lock(&remote->lock);
            te_session *replaced = remote->session;
            remote->session = fresh;
            pthread_mutex_unlock(&remote->lock);
            te_session_put(replaced);
        }
    }
    te_session_put(current);
    pthread_mutex_unlock(&remote->connecting);
    return status;
}

/* Whether another try is due.  A WRITE is repeated only when the peer itself has closed the connection: after
 * anything else it may still carry the first one out, with what the source holds by then. */
bool te_is_path_failure(te_opcode opcode, ms_status status) {
    return status == MS_UNAVAILABLE || status == MS_WRONG_INCARNATION ||
           (opcode == TE_READ && (status == MS_IO_ERROR || status == MS_BAD_FRAME));
}

ms_status te_remotes_open(te_engine *engine, te_remotes **result) {
    te_remotes *remotes = calloc(1, sizeof *remotes);
    if (remotes == NULL)
        return MS_NO_MEMORY;
    remotes->engine = engine;
    pthread_mutex_init(&remotes->lock, NULL);
    *result = remotes;
    return MS_OK;
}

static void remote_free(te_remote *remote) {
    te_session_put(remote->session);
    pthread_mutex_destroy(&remote->connecting);
    pthread_mutex_destroy(&remote->lock);
    free(remote->rails);
    free(remote);
}

void te_remotes_close(te_remotes *remotes) {
    if (remotes == NULL)
        return;
    for (uint32_t slot = 0; slot < REMOTES_MAX; slot++)
        if (remotes->slots[slot] != NULL)
            remote_free(remotes->slots[slot]);
    pthread_mutex_destroy(&remotes->lock);
    free(remotes);
}

/* Under the lock. */
static te_remote *by_handle(te_remotes *remotes, uint32_t handle) {
    te_remote *remote = remotes->slots[handle & (REMOTES_MAX - 1)];
    return remote != NULL && remote->handle == handle && remote->opens > 0 ? remote : NULL;
}

te_remote *te_remote_get(te_remotes *remotes, uint32_t handle) {
    pthread_mutex_lock(&remotes->lock);
    te_remote *remote = by_handle(remotes, handle);
    if (remote != NULL)
        remote->users++;
    pthread_mutex_unlock(&remotes->lock);
    return remote;
}

/* Under the lock; true: nobody knows it any more, and it has left the table. */
static bool is_unused(te_remotes *remotes, te_remote *remote) {
    if (remote->opens > 0 || remote->users > 0)
        return false;
    uint32_t slot = remote->handle & (REMOTES_MAX - 1);
    remotes->slots[slot] = NULL;
    remotes->generations[slot]++;
    return true;
}

void te_remote_put(te_remotes *remotes, te_remote *remote) {
    pthread_mutex_lock(&remotes->lock);
    remote->users--;
    bool gone = is_unused(remotes, remote);
    pthread_mutex_unlock(&remotes->lock);
    if (gone)
        remote_free(remote);
}

/* Under the lock. */
static te_remote *by_address(const te_remotes *remotes, const char *address) {
    for (uint32_t slot = 0; slot < REMOTES_MAX; slot++) {
        te_remote *remote = remotes->slots[slot];
        if (remote != NULL && remote->opens > 0 && strcmp(remote->address, address) == 0)
            return remote;
    }
    return NULL;
}

static te_remote *reopen(te_remotes *remotes, const char *address) {
    pthread_mutex_lock(&remotes->lock);
    te_remote *found = by_address(remotes, address);
    if (found != NULL)
        found->opens++;
    pthread_mutex_unlock(&remotes->lock);
    return found;
}

/* *known: who has opened that address while we connected, and is open once more now; else `remote` is in the table. */
static ms_status add(te_remotes *remotes, te_remote *remote, te_remote **known) {
    ms_status status = MS_LIMIT;
    pthread_mutex_lock(&remotes->lock);
    *known = by_address(remotes, remote->address);
    if (*known != NULL)
        (*known)->opens++;
    for (uint32_t slot = 0; *known == NULL && slot < REMOTES_MAX && status != MS_OK; slot++) {
        if (remotes->slots[slot] != NULL)
            continue;
        /* Generation 0 is left out, so that 0 is never a handle. */
        remote->handle = (remotes->generations[slot] + 1) << SLOT_BITS | slot;
        remotes->slots[slot] = remote;
        status = MS_OK;
    }
    pthread_mutex_unlock(&remotes->lock);
    return status;
}

/* Whoever opens an address wants to see what the peer has registered now. */
static ms_status refresh(te_remote *remote, int64_t deadline_ns, char *error) {
    te_session *session = te_remote_session(remote);
    pthread_mutex_lock(&session->lock);
    uint64_t seen = session->refreshes;
    pthread_mutex_unlock(&session->lock);
    ms_status status = te_session_refresh(session, seen, deadline_ns);
    if (te_is_path_failure(TE_READ, status))
        status = te_remote_renew(remote, session, deadline_ns);
    if (status != MS_OK)
        te_error(error, "%s does not answer any more", remote->address);
    te_session_put(session);
    return status;
}

static ms_status open_again(te_remote *remote, uint32_t *segment, int64_t deadline_ns,
                            char *error) {
    *segment = remote->handle;
    ms_status status = refresh(remote, deadline_ns, error);
    if (status != MS_OK)
        te_close_segment(remote->engine, remote->handle);
    return status;
}

ms_status te_open_segment(te_engine *engine, const char *address, uint32_t *segment,
                          int64_t deadline_ns, char *error) {
    te_remotes *remotes = engine->remotes;
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    if (strlen(address) > MS_ADDRESSES_BYTES_MAX || deadline_ns == TE_NO_DEADLINE) {
        te_error(error, "open_segment needs a deadline and an address of at most %u bytes",
                 MS_ADDRESSES_BYTES_MAX);
        return MS_BAD_REQUEST;
    }
    te_remote *remote = reopen(remotes, address);
    if (remote != NULL)
        return open_again(remote, segment, deadline_ns, error);
    te_session *session = NULL;
    status = te_session_open(engine, address, NULL, 0, deadline_ns, &session, error);
    if (status != MS_OK)
        return status;
    remote = calloc(1, sizeof *remote + strlen(address) + 1);
    if (remote == NULL) {
        te_session_put(session);
        return MS_NO_MEMORY;
    }
    remote->engine = engine;
    remote->opens = 1;
    remote->session = session;
    memcpy(remote->address, address, strlen(address) + 1);
    pthread_mutex_init(&remote->lock, NULL);
    pthread_mutex_init(&remote->connecting, NULL);
    te_remote *known;
    status = add(remotes, remote, &known);
    if (known != NULL) {
        remote_free(remote);
        return open_again(known, segment, deadline_ns, error);
    }
    if (status != MS_OK) {
        te_error(error, "%u segments are open: close some", REMOTES_MAX);
        remote_free(remote);
        return status;
    }
    *segment = remote->handle;
    return MS_OK;
}

ms_status te_close_segment(te_engine *engine, uint32_t segment) {
    te_remotes *remotes = engine->remotes;
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    pthread_mutex_lock(&remotes->lock);
    te_remote *remote = by_handle(remotes, segment);
    bool gone = false;
    if (remote != NULL) {
        remote->opens--;
        gone = is_unused(remotes, remote);
    }
    pthread_mutex_unlock(&remotes->lock);
    if (remote == NULL)
        return MS_NOT_REGISTERED;
    if (gone)
        remote_free(remote);
    return MS_OK;
}

ms_status te_segment_region(te_engine *engine, uint32_t segment, uint32_t index, uint64_t *address,
                            uint64_t *length) {
    te_remotes *remotes = engine->remotes;
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    te_remote *remote = te_remote_get(remotes, segment);
    if (remote == NULL)
        return MS_NOT_REGISTERED;
    te_session *session = te_remote_session(remote);
    status = MS_NOT_FOUND;
    pthread_mutex_lock(&session->lock);
    if (index < session->region_count) {
        *address = session->regions[index].address;
        *length = session->regions[index].length;
        status = MS_OK;
    }
    pthread_mutex_unlock(&session->lock);
    te_session_put(session);
    te_remote_put(remotes, remote);
    return status;
}

ms_status te_send_notify(te_engine *engine, uint32_t segment, const char *name, const char *message,
                         int64_t deadline_ns) {
    te_remotes *remotes = engine->remotes;
    ms_status status = te_engine_check(engine);
    if (status != MS_OK)
        return status;
    if (strlen(name) > MS_NAME_BYTES_MAX || strlen(message) > MS_NOTIFY_BYTES_MAX)
        return MS_TOO_LARGE;
    te_remote *remote = te_remote_get(remotes, segment);
    if (remote == NULL)
        return MS_NOT_REGISTERED;
    ms_writer body = ms_writer_growable(MS_NAME_BYTES_MAX + MS_NOTIFY_BYTES_MAX + 32);
    ms_writer_string(&body, name, (uint32_t)strlen(name));
    ms_writer_string(&body, message, (uint32_t)strlen(message));
    status = body.status;
    te_session *session = te_remote_session(remote);
    for (int tries = 0; status == MS_OK && tries < 2; tries++) {
        uint8_t sentence[1024];
        te_reply reply = {.body = sentence, .body_size = sizeof sentence};
        struct iovec part = {body.data, body.length};
        status = te_call(session->channels[0], MS_NOTIFY, 0, &part, 1, &reply, deadline_ns);
        if (status == MS_OK) {
            if (reply.header.status < MS_STATUS_COUNT)
                status = (ms_status)reply.header.status;
            else
                status = MS_BAD_FRAME;
            break;
        }
        /* Sent or not, who knows, unless the process has changed: only then is it safe to send it again. */
        if (status != MS_WRONG_INCARNATION)
            break;
        te_session *old = session;
        status = te_remote_renew(remote, old, deadline_ns);
        session = te_remote_session(remote);
        te_session_put(old);
    }
    te_session_put(session);
    ms_writer_close(&body);
    te_remote_put(remotes, remote);
    return status;
}
