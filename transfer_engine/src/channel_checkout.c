/* Who has which connection: checked out by callers, kept by RDMA endpoints. */
#include "te_channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "te_fault.h"

/* ---- checkout and checkin ------------------------------------------------------------------------------------------ */

/* An idle connection must be silent: its end, or a byte that nobody asked for, makes it useless. */
static bool is_alive(const te_connection *connection) {
    char byte;
    ssize_t came;
    do {
        came = recv(connection->descriptor, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    } while (came < 0 && errno == EINTR);
    return came < 0 && errno == EAGAIN;
}

static void forget(te_channel *channel, te_connection *connection) {
    pthread_mutex_lock(&channel->lock);
    te_channel_unlist(channel, connection);
    pthread_mutex_unlock(&channel->lock);
    connection->next = NULL;
    te_connections_destroy(connection);
}

/* Under the lock, as the last thing that the caller does with the channel. */
static void go_out(te_channel *channel) {
    channel->inside--;
    if (channel->is_closing && channel->inside == 0) {
        pthread_cond_broadcast(&channel->changed);
    }
}

ms_status te_channel_enter(te_channel *channel) {
    ms_status status = te_engine_check(channel->engine);
    if (status != MS_OK) {
        return status;
    }
    pthread_mutex_lock(&channel->lock);
    status = channel->is_closing ? MS_CLOSED : MS_OK;
    channel->inside += status == MS_OK;
    pthread_mutex_unlock(&channel->lock);
    return status;
}

void te_channel_leave(te_channel *channel) {
    pthread_mutex_lock(&channel->lock);
    go_out(channel);
    pthread_mutex_unlock(&channel->lock);
}

/* Connections that this thread holds.  Who holds one and waits for another, while others do the same, would wait for
 * ever: so such a thread may have one beyond the limit (there are at most twice as many then). */
static _Thread_local int held_count;

static uint32_t limit_of(const te_channel *channel, bool may_wait) {
    return may_wait && held_count > 0 ? 2 * channel->connections_max : channel->connections_max;
}

/* An idle connection, or leave to dial one (*connection NULL; counted); the caller is `inside`
 * when OK.  must_dial: an idle one only makes room. */
static ms_status take_place(te_channel *channel, bool may_wait, bool must_dial, int64_t deadline_ns,
                            te_connection **connection) {
    ms_status status = MS_OK;
    te_connection *useless = NULL;
    *connection = NULL;
    pthread_mutex_lock(&channel->lock);
    channel->inside++;
    for (;;) {
        if (channel->is_closing) {
            status = MS_CLOSED;
            break;
        }
        if (channel->idle != NULL && must_dial) {
            if (channel->count >= channel->connections_max) {
                useless = channel->idle;
                channel->idle = useless->next;
                useless->next = NULL;
                te_channel_unlist(channel, useless);
            }
        } else if (channel->idle != NULL) { /* set_hello has taken those of an older HELLO */
            *connection = channel->idle;
            channel->idle = (*connection)->next;
            (*connection)->taken_ns = te_now_ns();
            break;
        }
        if (channel->count < limit_of(channel, may_wait)) {
            channel->count++;
            break;
        }
        if (!may_wait) {
            status = MS_LIMIT;
            break;
        }
        te_scope *scope = te_scope_current();
        int64_t now = te_now_ns(), look_ns = now + TE_TICK_MS * TE_NS_PER_MS;
        look_ns = scope != NULL && look_ns < deadline_ns ? look_ns : deadline_ns;
        bool is_signalled = te_cond_wait_until(&channel->changed, &channel->lock, look_ns);
        if (scope != NULL && te_scope_is_cancelled(scope)) {
            status = MS_CANCELLED;
            pthread_cond_signal(&channel->changed); /* it may have been for another waiter */
            break;
        }
        if (!is_signalled && look_ns == deadline_ns) {
            status = MS_TIMEOUT;
            te_error(channel->error, "all %u connections were in use until the deadline",
                     (unsigned)channel->connections_max);
            break;
        }
    }
    if (status != MS_OK) {
        go_out(channel);
    }
    pthread_mutex_unlock(&channel->lock);
    te_connections_destroy(useless);
    return status;
}

static ms_status checkout(te_channel *channel, bool may_wait, own_hello *own, int64_t deadline_ns,
                          te_connection **connection) {
    ms_status status = te_engine_check(channel->engine);
    *connection = NULL;
    if (status != MS_OK) {
        return status;
    }
    if (deadline_ns == TE_NO_DEADLINE) {
        return MS_BAD_REQUEST;
    }
    for (;;) {
        status = take_place(channel, may_wait, own != NULL, deadline_ns, connection);
        if (status != MS_OK) {
            return status;
        }
        if (*connection == NULL) {
            break;
        }
        if (is_alive(*connection)) {
            return MS_OK;
        }
        forget(channel, *connection);
        te_channel_leave(channel);
    }
    status = te_channel_dial(channel, own, deadline_ns, connection);
    if (status != MS_OK) {
        if (*connection != NULL) {
            te_scope_remove(*connection);
            forget(channel, *connection);
            *connection = NULL;
        } else {
            pthread_mutex_lock(&channel->lock);
            channel->count--;
            channel->failures++;
            pthread_cond_signal(&channel->changed);
            pthread_mutex_unlock(&channel->lock);
        }
        te_channel_leave(channel);
    }
    return status;
}

/* A thread in a scope (scope.c) enters its connection there, so that a cancel can break its
 * waiting off. */
static ms_status checkout_in_scope(te_channel *channel, bool may_wait, own_hello *own,
                                   int64_t deadline_ns, te_connection **connection) {
    ms_status status = checkout(channel, may_wait, own, deadline_ns, connection);
    if (status == MS_OK) {
        if ((*connection)->scope == NULL) { /* dialling has entered it */
            status = te_scope_add(*connection);
        }
        held_count++;
        if (status != MS_OK) {
            te_checkin(*connection, true);
            *connection = NULL;
        }
    }
    return status;
}

ms_status te_checkout(te_channel *channel, int64_t deadline_ns, te_connection **connection) {
    return checkout_in_scope(channel, true, NULL, deadline_ns, connection);
}

ms_status te_checkout_saying(te_channel *channel, const void *hello, size_t hello_length,
                             int64_t deadline_ns, te_connection **connection, uint8_t *answer,
                             size_t answer_size, size_t *answer_length) {
    own_hello own = {
        .body = hello, .length = hello_length, .answer = answer, .answer_size = answer_size};
    ms_status status = checkout_in_scope(channel, true, &own, deadline_ns, connection);
    *answer_length = own.answer_length;
    return status;
}

ms_status te_checkout_try(te_channel *channel, int64_t deadline_ns, te_connection **connection) {
    return checkout_in_scope(channel, false, NULL, deadline_ns, connection);
}

void te_hand_over(te_connection *connection) {
    held_count--;
    connection->is_handed_over = true;
}

/* Lock held.  A channel whose Unix socket did not answer has fallen back on TCP.  Kept, such a connection would be used
 * for ever: views and shared memory would be refused on it, and each byte would take the longer way. */
static bool is_second_best(const te_channel *channel, const te_connection *connection,
                           int64_t now) {
    const rail *first = &channel->rails[0];
    return first->address.is_unix && !connection->is_unix && first->retry_ns <= now;
}

void te_checkin(te_connection *connection, bool reusable) {
    te_channel *channel = connection->channel;
    held_count -= connection->is_handed_over ? 0 : 1;
    connection->is_handed_over = false;
    if (te_engine_check(channel->engine) == MS_FORKED) {
        return;
    }
    te_scope_remove(connection);
    te_connection_drop_passed(connection);
    int64_t now = te_now_ns();
    te_connection *useless = NULL;
    pthread_mutex_lock(&channel->lock);
    if (reusable && channel->count <= channel->connections_max && !connection->is_broken &&
        !channel->is_closing && connection->hello_generation == channel->hello_generation &&
        !is_second_best(channel, connection, now)) {
        connection->used_ns = now;
        connection->next = channel->idle;
        channel->idle = connection;
        useless = te_channel_take_useless(channel, false, now);
        pthread_cond_signal(&channel->changed);
    } else {
        channel->failures++;
        te_channel_unlist(channel, connection);
        connection->next = NULL;
        useless = connection;
    }
    go_out(channel);
    pthread_mutex_unlock(&channel->lock);
    te_connections_destroy(useless);
}

/* ---- kept by RDMA endpoints ---------------------------------------------------------------------------------------- */

void te_connection_park(te_connection *connection) {
    te_channel *channel = connection->channel;
    te_hand_over(connection);
    te_scope_remove(connection);
    pthread_mutex_lock(&channel->lock);
    connection->is_parked = true;
    channel->count--;
    pthread_cond_signal(&channel->changed);
    go_out(channel);
    pthread_mutex_unlock(&channel->lock);
}

void te_connection_unpark(te_connection *connection) {
    te_channel *channel = connection->channel;
    pthread_mutex_lock(&channel->lock);
    connection->is_parked = false;
    channel->count++;
    channel->inside++;
    pthread_mutex_unlock(&channel->lock);
}

bool te_connection_is_current(te_connection *connection) {
    te_channel *channel = connection->channel;
    pthread_mutex_lock(&channel->lock);
    bool is_current =
        !channel->is_closing && connection->hello_generation == channel->hello_generation;
    pthread_mutex_unlock(&channel->lock);
    return is_current;
}

bool te_connection_is_silent(const te_connection *connection) { return is_alive(connection); }

te_rdma_pool **te_channel_pools(te_channel *channel) { return channel->pools; }
