/* Connecting to one of a peer's addresses, and the HELLO there. */
#include "te_channel.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "te_fault.h"

/* The rail to try next, not among `tried`: not paused before paused, Unix before TCP, then the
 * fewest connections. */
static uint32_t choose_rail(te_channel *channel, uint32_t tried, int64_t now) {
    uint32_t best = UINT32_MAX;
    uint64_t best_cost = UINT64_MAX;
    for (uint32_t i = 0; i < channel->rail_count; i++) {
        uint32_t index = (channel->rail_next + i) % channel->rail_count;
        const rail *candidate = &channel->rails[index];
        if (tried & 1u << index) {
            continue;
        }
        uint64_t cost = candidate->address.is_unix ? 0 : 1 + (uint64_t)candidate->connections;
        cost |= candidate->retry_ns > now ? UINT64_C(1) << 40 : 0;
        if (cost < best_cost) {
            best_cost = cost;
            best = index;
        }
    }
    channel->rail_next++;
    return best;
}

/* Under the lock. */
static void rail_failed(rail *used) {
    int64_t pause = PAUSE_FIRST_NS << (used->failures < 7 ? used->failures : 7);
    used->failures++;
    used->retry_ns = te_now_ns() + (pause < PAUSE_MAX_NS ? pause : PAUSE_MAX_NS);
}

void te_connection_doubt(te_connection *connection) {
    te_channel *channel = connection->channel;
    te_connection *useless = NULL;
    pthread_mutex_lock(&channel->lock);
    rail_failed(&channel->rails[connection->rail]);
    for (te_connection **at = &channel->idle; *at != NULL;) {
        te_connection *other = *at;
        if (other->rail != connection->rail) {
            at = &other->next;
            continue;
        }
        *at = other->next;
        te_channel_unlist(channel, other);
        other->next = useless;
        useless = other;
    }
    pthread_mutex_unlock(&channel->lock);
    te_connections_destroy(useless);
}

static void rail_ended(te_channel *channel, uint32_t index, bool has_failed) {
    rail *used = &channel->rails[index];
    pthread_mutex_lock(&channel->lock);
    if (has_failed) {
        rail_failed(used);
    } else {
        used->failures = 0;
        used->retry_ns = 0;
    }
    pthread_mutex_unlock(&channel->lock);
}

/* Whether another address could do better: the peer did not answer (a refusal is an answer). */
static bool is_rail_failure(ms_status status) {
    return status == MS_TIMEOUT || status == MS_UNAVAILABLE || status == MS_IO_ERROR;
}

/* Nobody waits longer for a peer that is not meant any more; under the lock. */
void te_channel_shut(te_channel *channel) {
    /* shutdown does not block; the lock keeps the descriptors from being closed meanwhile. */
    for (te_connection *each = channel->all; each != NULL; each = each->all_next) {
        shutdown(each->descriptor, SHUT_RDWR);
    }
    for (te_connection *each = channel->dialling; each != NULL; each = each->next) {
        shutdown(each->descriptor, SHUT_RDWR);
    }
}

/* False: the channel has been moved or closed since the address was chosen. */
static bool dialling_begin(te_channel *channel, te_connection *connection) {
    pthread_mutex_lock(&channel->lock);
    bool is_meant =
        !channel->is_closing && connection->hello_generation == channel->hello_generation;
    connection->taken_ns = te_now_ns();
    connection->next = channel->dialling;
    channel->dialling = connection;
    pthread_mutex_unlock(&channel->lock);
    return is_meant;
}

static void dialling_end(te_channel *channel, te_connection *connection) {
    pthread_mutex_lock(&channel->lock);
    te_connection **at = &channel->dialling;
    while (*at != connection) {
        at = &(*at)->next;
    }
    *at = connection->next;
    connection->next = NULL;
    pthread_mutex_unlock(&channel->lock);
}

/* One attempt over one rail.  `left`: rails that could still be tried. */
static ms_status dial_rail(te_channel *channel, te_connection *connection, uint32_t index,
                           const te_address *address, uint32_t left, const uint8_t *hello,
                           size_t hello_length, uint8_t **answer, size_t *answer_length,
                           int64_t deadline_ns) {
    int64_t now = te_now_ns(), share = (deadline_ns - now) / (left + 1);
    int64_t limit = share > channel->connect_timeout_ns ? share : channel->connect_timeout_ns;
    int64_t hello_deadline = left == 0 || now + limit > deadline_ns ? deadline_ns : now + limit;
    int64_t connect_deadline = now + channel->connect_timeout_ns;
    connect_deadline = connect_deadline < hello_deadline ? connect_deadline : hello_deadline;
    connection->descriptor = -1;
    connection->is_unix = address->is_unix;
    connection->is_broken = false;
    connection->rail = index;
    ms_status status =
        te_socket_connect(address, connect_deadline, &connection->descriptor, connection->error);
    if (status != MS_OK) {
        return status;
    }
    /* A frozen peer's kernel accepts connections: a cancel, and a move, must break off the wait for
     * HELLO too. */
    status = te_scope_add(connection);
    if (status == MS_OK) {
        if (!dialling_begin(channel, connection)) {
            shutdown(connection->descriptor, SHUT_RDWR);
        }
        status = te_connection_hello(connection, hello, hello_length, answer, answer_length,
                                     hello_deadline);
        dialling_end(channel, connection);
    }
    if (status != MS_OK) {
        te_scope_remove(connection);
        char why[TE_ERROR_BYTES];
        memcpy(why, connection->error, sizeof why);
        te_error(connection->error, "%.100s: %.140s", address->text, why);
        te_connection_drop_passed(connection);
        close(connection->descriptor);
    }
    return status;
}

/* Opens a connection; its place is already counted in channel->count.  Under no lock.  `own` may be NULL. */
ms_status te_channel_dial(te_channel *channel, own_hello *own, int64_t deadline_ns,
                          te_connection **dialled) {
    te_connection *connection = calloc(1, sizeof *connection);
    uint8_t *hello = NULL, *answer = NULL;
    size_t hello_length = 0, answer_length = 0;
    ms_status status = connection == NULL ? MS_NO_MEMORY : MS_OK;
    pthread_mutex_lock(&channel->lock);
    if (status == MS_OK) {
        connection->hello_generation = channel->hello_generation;
        connection->request = channel->request_base += UINT64_C(1) << 32;
        status =
            te_hello_copy(channel->engine, own != NULL ? own->body : channel->hello,
                          own != NULL ? own->length : channel->hello_length, &hello, &hello_length);
    }
    pthread_mutex_unlock(&channel->lock);
    if (status != MS_OK) {
        free(connection);
        te_channel_set_error(channel, "no memory for a connection");
        return status;
    }
    connection->engine = channel->engine;
    uint32_t tried = 0, breaks = 0;
    for (uint32_t attempt = 0; attempt < channel->rail_count; attempt++) {
        pthread_mutex_lock(&channel->lock);
        breaks = attempt == 0 ? channel->breaks : breaks;
        if (breaks != channel->breaks) {
            pthread_mutex_unlock(&channel->lock);
            break;
        }
        uint32_t index = choose_rail(channel, tried, te_now_ns());
        te_address address = channel->rails[index].address; /* te_channel_move may change it */
        bool is_closing = channel->is_closing;
        pthread_mutex_unlock(&channel->lock);
        tried |= 1u << index;
        status = is_closing ? MS_CLOSED
                            : dial_rail(channel, connection, index, &address,
                                        channel->rail_count - 1 - attempt, hello, hello_length,
                                        &answer, &answer_length, deadline_ns);
        rail_ended(channel, index, is_rail_failure(status));
        if (!is_rail_failure(status) || te_now_ns() >= deadline_ns) {
            break;
        }
    }
    free(hello);
    if (status != MS_OK) {
        te_channel_set_error(channel,
                             status == MS_CLOSED ? "the channel is closed" : connection->error);
        free(connection);
        return status;
    }
    connection->channel = channel;
    connection->taken_ns = te_now_ns();
    atomic_store_explicit(&channel->is_local, connection->is_unix, memory_order_relaxed);
    pthread_mutex_lock(&channel->lock);
    channel->rails[connection->rail].connections++;
    connection->all_next = channel->all;
    if (channel->all != NULL) {
        channel->all->all_previous = connection;
    }
    channel->all = connection;
    if (connection->is_unix) {
        te_channel_notice_process(channel, connection, answer, answer_length);
    }
    if (own != NULL) {
        connection->hello_generation--; /* nobody else is given it */
        own->answer_length = answer_length;
        if (answer_length <= own->answer_size) {
            memcpy(own->answer, answer, answer_length);
        }
    }
    uint8_t *old = channel->answer;
    channel->answer = answer;
    channel->answer_length = answer_length;
    if (channel->is_closing) { /* te_channel_close has gone through the list before it was in it */
        connection->is_broken = true;
        status = MS_CLOSED;
    }
    pthread_mutex_unlock(&channel->lock);
    free(old);
    *dialled = connection;
    return status;
}
