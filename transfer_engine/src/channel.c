/* Channels: a bounded pool of connections to one peer, over one or several rails.
 *
 * A caller checks a connection out and owns it until it checks it in.  Idle ones form a stack, so
 * that few are kept warm and the least used can be closed.  A rail is an address of the peer: the
 * Unix socket first, then the one with the fewest connections; one that failed is tried last, for
 * a pause that grows with each failure.
 */
#include "te_channel_rails.h"
#include "te_rdma.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "te_fault.h"

#define RAILS_MAX 32u
#define IDLE_NS (60 * TE_NS_PER_S)
#define PAUSE_FIRST_NS (50 * TE_NS_PER_MS)
#define PAUSE_MAX_NS (5 * TE_NS_PER_S)

typedef struct rail {
    te_address address;
    uint32_t connections;
    uint32_t failures; /* in a row */
    int64_t retry_ns;  /* avoided until then */
} rail;

struct te_channel {
    te_engine *engine;
    uint32_t connections_max;
    int64_t connect_timeout_ns;
    rail *rails; /* the Unix socket first */
    uint32_t rail_count;
    _Atomic bool is_local;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool is_closing;
    uint32_t rail_next;
    uint8_t *hello;
    size_t hello_length;
    uint32_t hello_generation;
    te_connection *idle; /* most recently used first */
    te_connection *all;
    te_connection *dialling; /* connected, and waiting for the HELLO's answer */
    uint32_t breaks;         /* a dial that was under way tries no further address */
    uint32_t count;          /* connections, and dials under way */
    uint64_t failures;       /* see te_channel_get_health */
    uint32_t inside; /* what te_channel_close waits for: calls, and connections checked out */
    uint8_t *answer; /* of the newest HELLO */
    size_t answer_length;
    char error[TE_ERROR_BYTES];
    pid_t peer_pid;                /* behind the Unix socket, as of the newest connection */
    _Atomic uint64_t shares_epoch; /* see te_channel_shares_epoch */
    uint64_t request_base;         /* connections number their requests from different starts */
    void *attachments;
    void (*free_attachments)(void *attachments);
    te_rdma_pool *pools[2];       /* for READs, for WRITEs; NULL: none yet */
    te_channel_rails *over_rails; /* NULL: a Unix socket first */
};

/* ---- open ------------------------------------------------------------------------------------ */

static uint32_t count_addresses(const char *text) {
    uint32_t count = 1;
    for (const char *at = text; *at != '\0'; at++) {
        count += *at == ',';
    }
    return count;
}

static ms_status parse_rails(te_channel *channel, const te_channel_config *config, char *error) {
    uint32_t most = (config->unix_path != NULL) +
                    (config->addresses != NULL ? count_addresses(config->addresses) : 0);
    if (most == 0 || most > RAILS_MAX) {
        te_error(error, "a channel needs 1 to %u addresses, not %u", RAILS_MAX, (unsigned)most);
        return MS_BAD_REQUEST;
    }
    channel->rails = calloc(most, sizeof *channel->rails);
    if (channel->rails == NULL) {
        return MS_NO_MEMORY;
    }
    ms_status status = MS_OK;
    if (config->unix_path != NULL) {
        char text[160] = "unix:";
        strncat(text, config->unix_path, sizeof text - 6);
        status = te_address_parse(text, strlen(text),
                                  &channel->rails[channel->rail_count++].address, error);
    }
    for (const char *at = config->addresses; at != NULL && status == MS_OK;) {
        const char *comma = strchr(at, ',');
        size_t length = comma != NULL ? (size_t)(comma - at) : strlen(at);
        status =
            te_address_parse(at, length, &channel->rails[channel->rail_count++].address, error);
        at = comma != NULL ? comma + 1 : NULL;
    }
    return status;
}

static ms_status copy_hello(te_engine *engine, const void *hello, size_t length, uint8_t **copy,
                            size_t *copy_length) {
    uint8_t own[TE_HELLO_DEFAULT_BYTES];
    if (hello == NULL || length == 0) {
        te_hello_default(engine, own);
        hello = own;
        length = sizeof own;
    }
    if (length > MS_BODY_BYTES_MAX_HELLO) {
        return MS_TOO_LARGE;
    }
    *copy = malloc(length);
    if (*copy == NULL) {
        return MS_NO_MEMORY;
    }
    memcpy(*copy, hello, length);
    *copy_length = length;
    return MS_OK;
}

static void channel_free(te_channel *channel) {
    if (channel->free_attachments != NULL) {
        channel->free_attachments(channel->attachments);
    }
    te_channel_rails_close(channel->over_rails);
    pthread_mutex_destroy(&channel->lock);
    pthread_cond_destroy(&channel->changed);
    free(channel->rails);
    free(channel->hello);
    free(channel->answer);
    free(channel);
}

static ms_status channel_open(te_engine *engine, const te_channel_config *config,
                              te_channel **opened, char *error) {
    *opened = NULL;
    ms_status status = te_engine_check(engine);
    if (status != MS_OK) {
        te_error(error, "the engine is closed, or was opened before a fork");
        return status;
    }
    te_channel *channel = calloc(1, sizeof *channel);
    if (channel == NULL || te_cond_init(&channel->changed) != MS_OK) {
        free(channel);
        te_error(error, "no memory");
        return MS_NO_MEMORY;
    }
    pthread_mutex_init(&channel->lock, NULL);
    channel->engine = engine;
    channel->connections_max = config->connections_max == 0 ? 8 : config->connections_max;
    channel->connect_timeout_ns =
        (int64_t)(config->connect_timeout_ms == 0 ? 1000 : config->connect_timeout_ms) *
        TE_NS_PER_MS;
    te_error(error, "no memory");
    status = parse_rails(channel, config, error);
    if (status == MS_OK) {
        status = copy_hello(engine, config->hello, config->hello_length, &channel->hello,
                            &channel->hello_length);
    }
    if (status == MS_OK && config->unix_path == NULL) {
        status = te_channel_rails_open(channel, config->addresses, &channel->over_rails);
    }
    if (status != MS_OK) {
        channel_free(channel);
        return status;
    }
    *opened = channel;
    return MS_OK;
}

ms_status te_channel_open(te_engine *engine, const te_channel_config *config,
                          te_channel **channel) {
    return channel_open(engine, config, channel, NULL);
}

ms_status te_channel_open_simple(te_engine *engine, const char *address, const uint8_t *hello,
                                 size_t hello_length, te_channel **channel) {
    bool is_unix = strncmp(address, "unix:", 5) == 0;
    te_channel_config config = {
        .addresses = is_unix ? NULL : address,
        .unix_path = is_unix ? address + 5 : NULL,
        .hello = hello,
        .hello_length = hello_length,
    };
    return channel_open(engine, &config, channel, NULL);
}

/* ---- small things ---------------------------------------------------------------------------- */

te_channel_rails *te_channel_rails_of(const te_channel *channel) { return channel->over_rails; }

ms_status te_channel_copy_hello(te_channel *channel, uint8_t **hello, size_t *length) {
    pthread_mutex_lock(&channel->lock);
    ms_status status =
        copy_hello(channel->engine, channel->hello, channel->hello_length, hello, length);
    pthread_mutex_unlock(&channel->lock);
    return status;
}

te_engine *te_channel_engine(const te_channel *channel) { return channel->engine; }

bool te_channel_is_local(const te_channel *channel) {
    return atomic_load_explicit(&channel->is_local, memory_order_relaxed);
}

void te_channel_set_error(te_channel *channel, const char *error) {
    pthread_mutex_lock(&channel->lock);
    te_error(channel->error, "%s", error);
    pthread_mutex_unlock(&channel->lock);
}

void te_channel_error(te_channel *channel, char error[TE_ERROR_BYTES]) {
    pthread_mutex_lock(&channel->lock);
    memcpy(error, channel->error, TE_ERROR_BYTES);
    pthread_mutex_unlock(&channel->lock);
}

size_t te_channel_hello_answer(te_channel *channel, uint8_t *answer, size_t size) {
    pthread_mutex_lock(&channel->lock);
    size_t length = channel->answer_length;
    if (length > 0 && length <= size) {
        memcpy(answer, channel->answer, length);
    }
    pthread_mutex_unlock(&channel->lock);
    return length;
}

void te_channel_set_attachments(te_channel *channel, void *attachments,
                                void (*free_attachments)(void *attachments)) {
    pthread_mutex_lock(&channel->lock);
    channel->attachments = attachments;
    channel->free_attachments = free_attachments;
    pthread_mutex_unlock(&channel->lock);
}

void *te_channel_attachments(te_channel *channel) {
    pthread_mutex_lock(&channel->lock);
    void *attachments = channel->attachments;
    pthread_mutex_unlock(&channel->lock);
    return attachments;
}

/* ---- connections come and go ----------------------------------------------------------------- */

static void drop_passed(te_connection *connection) {
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
static void notice_process(te_channel *channel, const te_connection *connection,
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
static void unlist(te_channel *channel, te_connection *connection) {
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

static void destroy_chain(te_connection *connection) {
    while (connection != NULL) {
        te_connection *next = connection->next;
        drop_passed(connection);
        close(connection->descriptor);
        free(connection);
        connection = next;
    }
}

/* Takes out of the idle stack what `hello_generation` or age have made useless; under the lock.
 * Returns a chain. */
static te_connection *take_useless(te_channel *channel, bool everything, int64_t now) {
    te_connection *useless = NULL;
    for (te_connection **at = &channel->idle; *at != NULL;) {
        te_connection *connection = *at;
        if (everything || connection->hello_generation != channel->hello_generation ||
            now - connection->used_ns > IDLE_NS) {
            *at = connection->next;
            unlist(channel, connection);
            connection->next = useless;
            useless = connection;
        } else {
            at = &connection->next;
        }
    }
    return useless;
}

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
        unlist(channel, other);
        other->next = useless;
        useless = other;
    }
    pthread_mutex_unlock(&channel->lock);
    destroy_chain(useless);
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
static void break_off(te_channel *channel) {
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
        drop_passed(connection);
        close(connection->descriptor);
    }
    return status;
}

/* What one connection says, and hears, that the channel's others do not. */
typedef struct own_hello {
    const void *body;
    size_t length;
    uint8_t *answer; /* room */
    size_t answer_size, answer_length;
} own_hello;

/* Opens a connection; its place is already counted in channel->count.  Under no lock.  `own` may be NULL. */
static ms_status dial(te_channel *channel, own_hello *own, int64_t deadline_ns,
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
            copy_hello(channel->engine, own != NULL ? own->body : channel->hello,
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
        notice_process(channel, connection, answer, answer_length);
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

/* ---- checkout and checkin -------------------------------------------------------------------- */

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
    unlist(channel, connection);
    pthread_mutex_unlock(&channel->lock);
    connection->next = NULL;
    destroy_chain(connection);
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
                unlist(channel, useless);
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
    destroy_chain(useless);
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
    status = dial(channel, own, deadline_ns, connection);
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
    drop_passed(connection);
    int64_t now = te_now_ns();
    te_connection *useless = NULL;
    pthread_mutex_lock(&channel->lock);
    if (reusable && channel->count <= channel->connections_max && !connection->is_broken &&
        !channel->is_closing && connection->hello_generation == channel->hello_generation &&
        !is_second_best(channel, connection, now)) {
        connection->used_ns = now;
        connection->next = channel->idle;
        channel->idle = connection;
        useless = take_useless(channel, false, now);
        pthread_cond_signal(&channel->changed);
    } else {
        channel->failures++;
        unlist(channel, connection);
        connection->next = NULL;
        useless = connection;
    }
    go_out(channel);
    pthread_mutex_unlock(&channel->lock);
    destroy_chain(useless);
}

/* ---- kept by RDMA endpoints ------------------------------------------------------------------ */

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

/* ---- a new HELLO, the end -------------------------------------------------------------------- */

void te_channel_set_hello(te_channel *channel, const void *hello, size_t hello_length) {
    uint8_t *copy = NULL;
    size_t length = 0;
    ms_status status = copy_hello(channel->engine, hello, hello_length, &copy, &length);
    pthread_mutex_lock(&channel->lock);
    uint8_t *old = NULL;
    if (status == MS_OK) {
        old = channel->hello;
        channel->hello = copy;
        channel->hello_length = length;
    }
    channel->hello_generation++;
    te_connection *useless = take_useless(channel, true, 0);
    pthread_mutex_unlock(&channel->lock);
    te_channel_rails_renew(channel->over_rails);
    free(old);
    destroy_chain(useless);
}

ms_status te_channel_move(te_channel *channel, const char *address, const char *unix_path) {
    te_address elsewhere, local;
    char text[160] = "unix:", error[TE_ERROR_BYTES];
    ms_status status = te_address_parse(address, strlen(address), &elsewhere, error);
    if (status == MS_OK && unix_path != NULL) {
        strncat(text, unix_path, sizeof text - 6);
        status = te_address_parse(text, strlen(text), &local, error);
    }
    if (status != MS_OK) {
        return status;
    }
    pthread_mutex_lock(&channel->lock);
    for (uint32_t i = 0; i < channel->rail_count; i++) {
        bool is_local = unix_path != NULL && i == 0 && channel->rail_count > 1;
        channel->rails[i].address = is_local ? local : elsewhere;
        channel->rails[i].failures = 0;
        channel->rails[i].retry_ns = 0;
    }
    channel->hello_generation++; /* who is checked in from now on was connected to the old place */
    te_connection *useless = take_useless(channel, true, 0);
    break_off(channel);
    pthread_mutex_unlock(&channel->lock);
    if (channel->over_rails != NULL) { /* one place from now on */
        (void)te_channel_rails_set(channel->over_rails, NULL, 0);
        te_channel_rails_break_off(channel->over_rails, false);
    }
    destroy_chain(useless);
    return MS_OK;
}

void te_channel_break_off(te_channel *channel) {
    pthread_mutex_lock(&channel->lock);
    channel->breaks++;
    break_off(channel);
    pthread_mutex_unlock(&channel->lock);
    te_channel_rails_break_off(channel->over_rails, false);
}

void te_channel_get_health(te_channel *channel, te_channel_health *health) {
    int64_t now = te_now_ns();
    *health = (te_channel_health){0};
    pthread_mutex_lock(&channel->lock);
    health->failures = channel->failures;
    for (const te_connection *connection = channel->all; connection != NULL;
         connection = connection->all_next) {
        if (connection->is_parked) {
            continue;
        }
        const te_connection *idle = channel->idle;
        while (idle != NULL && idle != connection) {
            idle = idle->next;
        }
        if (idle == NULL && now - connection->taken_ns > health->waiting_ns) {
            health->waiting_ns = now - connection->taken_ns;
        }
    }
    for (const te_connection *each = channel->dialling; each != NULL; each = each->next) {
        if (now - each->taken_ns > health->waiting_ns) {
            health->waiting_ns = now - each->taken_ns;
        }
    }
    pthread_mutex_unlock(&channel->lock);
}

void te_channel_close(te_channel *channel) {
    if (channel == NULL || te_engine_check(channel->engine) == MS_FORKED) {
        return;
    }
    pthread_mutex_lock(&channel->lock);
    channel->is_closing = true;
    te_connection *useless = take_useless(channel, true, 0);
    break_off(channel); /* callers that wait for an answer get the end of the stream */
    pthread_cond_broadcast(&channel->changed);
    pthread_mutex_unlock(&channel->lock);
    te_channel_rails_break_off(channel->over_rails, true);
    te_rdma_channel_close(channel); /* its endpoints give their connections back */
    pthread_mutex_lock(&channel->lock);
    while (channel->inside > 0) {
        pthread_cond_wait(&channel->changed, &channel->lock);
    }
    pthread_mutex_unlock(&channel->lock);
    destroy_chain(useless);
    channel_free(channel);
}
