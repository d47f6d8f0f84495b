/* Channels: a bounded pool of connections to one peer, over one or several rails.
 *
 * A caller checks a connection out and owns it until it checks it in.  Idle ones form a stack, so
 * that few are kept warm and the least used can be closed.  A rail is an address of the peer: the
 * Unix socket first, then the one with the fewest connections; one that failed is tried last, for
 * a pause that grows with each failure.
 */
#include "te_channel.h"

#include <stdlib.h>
#include <string.h>

#include "te_fault.h"

/* ---- open ---------------------------------------------------------------------------------------------------------- */

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

ms_status te_hello_copy(te_engine *engine, const void *hello, size_t length, uint8_t **copy,
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
        status = te_hello_copy(engine, config->hello, config->hello_length, &channel->hello,
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

/* ---- small things -------------------------------------------------------------------------------------------------- */

te_channel_rails *te_channel_rails_of(const te_channel *channel) { return channel->over_rails; }

ms_status te_channel_copy_hello(te_channel *channel, uint8_t **hello, size_t *length) {
    pthread_mutex_lock(&channel->lock);
    ms_status status =
        te_hello_copy(channel->engine, channel->hello, channel->hello_length, hello, length);
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

/* ---- a new HELLO, the end ------------------------------------------------------------------------------------------ */

void te_channel_set_hello(te_channel *channel, const void *hello, size_t hello_length) {
    uint8_t *copy = NULL;
    size_t length = 0;
    ms_status status = te_hello_copy(channel->engine, hello, hello_length, &copy, &length);
    pthread_mutex_lock(&channel->lock);
    uint8_t *old = NULL;
    if (status == MS_OK) {
        old = channel->hello;
        channel->hello = copy;
        channel->hello_length = length;
    }
    channel->hello_generation++;
    te_connection *useless = te_channel_take_useless(channel, true, 0);
    pthread_mutex_unlock(&channel->lock);
    te_channel_rails_renew(channel->over_rails);
    free(old);
    te_connections_destroy(useless);
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
    te_connection *useless = te_channel_take_useless(channel, true, 0);
    te_channel_shut(channel);
    pthread_mutex_unlock(&channel->lock);
    if (channel->over_rails != NULL) { /* one place from now on */
        (void)te_channel_rails_set(channel->over_rails, NULL, 0);
        te_channel_rails_break_off(channel->over_rails, false);
    }
    te_connections_destroy(useless);
    return MS_OK;
}

void te_channel_break_off(te_channel *channel) {
    pthread_mutex_lock(&channel->lock);
    channel->breaks++;
    te_channel_shut(channel);
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
    te_connection *useless = te_channel_take_useless(channel, true, 0);
    te_channel_shut(channel); /* callers that wait for an answer get the end of the stream */
    pthread_cond_broadcast(&channel->changed);
    pthread_mutex_unlock(&channel->lock);
    te_channel_rails_break_off(channel->over_rails, true);
    te_rdma_channel_close(channel); /* its endpoints give their connections back */
    pthread_mutex_lock(&channel->lock);
    while (channel->inside > 0) {
        pthread_cond_wait(&channel->changed, &channel->lock);
    }
    pthread_mutex_unlock(&channel->lock);
    te_connections_destroy(useless);
    channel_free(channel);
}
