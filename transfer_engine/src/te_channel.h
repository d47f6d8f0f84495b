/* What the files of channels offer each other: see channel.c. */
#ifndef TE_CHANNEL_H
#define TE_CHANNEL_H

#include "te_channel_rails.h"
#include "te_rdma.h"

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

/* What one connection says, and hears, that the channel's others do not. */
typedef struct own_hello {
    const void *body;
    size_t length;
    uint8_t *answer; /* room */
    size_t answer_size, answer_length;
} own_hello;

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

/* ---- channel.c ---- */
ms_status te_hello_copy(te_engine *engine, const void *hello, size_t length, uint8_t **copy,
                        size_t *copy_length);

/* ---- channel_connections.c ---- */
void te_connection_drop_passed(te_connection *connection);
void te_channel_notice_process(te_channel *channel, const te_connection *connection,
                               const uint8_t *answer, size_t answer_length);
void te_channel_unlist(te_channel *channel, te_connection *connection);
void te_connections_destroy(te_connection *connection);
te_connection *te_channel_take_useless(te_channel *channel, bool everything, int64_t now);

/* ---- channel_dial.c ---- */
void te_channel_shut(te_channel *channel);
ms_status te_channel_dial(te_channel *channel, own_hello *own, int64_t deadline_ns,
                          te_connection **dialled);

#endif
