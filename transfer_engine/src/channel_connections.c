/* The connections of a channel: in its books, useless ones out of them. */
#include "te_channel.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "te_fault.h"

void te_connection_drop_passed(te_connection *connection) {
    while (connection->passed_count > 0) {
        close(connection->passed[--connection->passed_count]);
    }
}

uint64_t te_channel_shares_epoch(te_channel *channel) {
    return atomic_load_explicit(&channel->shares_epoch, memory_order_acquire);
}

/* A process forgets what we shared with our last connection; under the lock. */
static void notice_last(te_channel *channel) {
    for (const te_connection *other = channel->all; other != NULL; other = other->all_next) {
        if (other->is_unix) {
            return;
        }
    }
    atomic_fetch_add_explicit(&channel->shares_epoch, 1, memory_order_release);
}

/* Another process may answer at the socket than before; under the lock, before the answer is
 * replaced. */
void te_channel_notice_process(te_channel *channel, const te_connection *connection,
                               const uint8_t *answer, size_t answer_length) {
    struct ucred peer = {0};
    socklen_t size = sizeof peer;
    (void)getsockopt(connection->descriptor, SOL_SOCKET, SO_PEERCRED, &peer, &size);
    size_t offset = offsetof(ms_hello_answer, incarnation), length = sizeof(uint32_t);
    bool is_other = peer.pid != channel->peer_pid || channel->answer_length < offset + length ||
                    answer_length < offset + length ||
                    memcmp(channel->answer + offset, answer + offset, length) != 0;
    channel->peer_pid = peer.pid;
    if (is_other) {
        atomic_fetch_add_explicit(&channel->shares_epoch, 1, memory_order_release);
    }
}

/* Out of the channel's books; under the lock.  The caller closes it afterwards. */
void te_channel_unlist(te_channel *channel, te_connection *connection) {
    if (connection->all_previous != NULL) {
        connection->all_previous->all_next = connection->all_next;
    } else {
        channel->all = connection->all_next;
    }
    if (connection->all_next != NULL) {
        connection->all_next->all_previous = connection->all_previous;
    }
    if (connection->is_unix) {
        notice_last(channel);
    }
    channel->rails[connection->rail].connections--;
    channel->count--;
    pthread_cond_signal(&channel->changed);
}

void te_connections_destroy(te_connection *connection) {
    while (connection != NULL) {
        te_connection *next = connection->next;
        te_connection_drop_passed(connection);
        close(connection->descriptor);
        free(connection);
        connection = next;
    }
}

/* Takes out of the idle stack what `hello_generation` or age have made useless; under the lock.
 * Returns a chain. */
te_connection *te_channel_take_useless(te_channel *channel, bool everything, int64_t now) {
    te_connection *useless = NULL;
    for (te_connection **at = &channel->idle; *at != NULL;) {
        te_connection *connection = *at;
        if (everything || connection->hello_generation != channel->hello_generation ||
            now - connection->used_ns > IDLE_NS) {
            *at = connection->next;
            te_channel_unlist(channel, connection);
            connection->next = useless;
            useless = connection;
        } else {
            at = &connection->next;
        }
    }
    return useless;
}
