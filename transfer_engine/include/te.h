/* The transfer engine: moves byte ranges between registered memories, and carries frames.  Knows
 * no keys.
 *
 * Three faces, one engine object:
 *   - accepting side: listeners, connections served by I/O threads (epoll), a `te_service` that
 *     answers frames, and segments whose memory peers READ and WRITE;
 *   - asking side: a `te_channel` is a bounded pool of connections to one peer; a caller checks a
 *     connection out for a whole exchange, so nothing that arrives late can touch another's
 *     buffer;
 *   - the paper's batch interface (register_local_memory, submit_transfer, ...), on top of the
 *     two.
 *
 * All deadlines are absolute CLOCK_MONOTONIC nanoseconds (te_now_ns); TE_NO_DEADLINE is refused
 * where a peer is waited for.  Functions are thread-safe unless they say otherwise.  No function
 * calls into Python.
 */
#ifndef TE_H
#define TE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "ms_wire.h"

#define TE_ERROR_BYTES 256
#define TE_NO_DEADLINE INT64_MAX

/* begin cdef */
typedef struct te_engine te_engine;
typedef struct te_channel te_channel;

typedef struct te_engine_config {
    uint32_t io_threads; /* threads that serve connections; 0 = an asking side only; default 2 */
    uint32_t
        worker_threads; /* carry second halves of copies, further connections, batches; default 2 */
    uint32_t connections_accepted_max; /* default 4096; one more is closed at once */
    uint32_t
        handshake_timeout_ms;  /* a connection without HELLO is closed after this; default 5000 */
    uint32_t stall_timeout_ms; /* a frame begun must end within this; default 30000 */
    uint32_t
        outbound_bytes_max; /* queued for one accepted connection; more closes it; default 64 MiB */
    uint32_t slice_bytes;   /* requests are cut here when spread over rails; default 1 MiB on TCP */
    uint32_t stream_copy_bytes; /* non-temporal stores from this size; default 256 KiB */
    uint32_t helper_copy_bytes; /* second thread from this size; default 1 MiB; 0 = never */
    uint32_t spin_us; /* a caller's spin before sleeping, adaptive up to 8 x; default 20 */
    uint32_t rdma;    /* use RDMA NICs where both sides have some; default 1; 0 = TCP only */
    uint32_t
        class_weights[4]; /* urgent, normal, prefetch, background: 1 to 1024; 0 = 64, 8, 4, 1 */
} te_engine_config;

void te_engine_config_default(te_engine_config *config);
ms_status te_engine_open(const te_engine_config *config, te_engine **engine);
/* Stops listeners, closes every connection, joins the threads.  Channels must have been closed. */
void te_engine_close(te_engine *engine);
int64_t te_now_ns(void);
/* Lets all engines of this process tell those of others which core a thread of theirs spins on, so that there
 * is one on each.  `path`: a file of this user, made when missing; the first that could be opened stays. */
ms_status te_spinners_share(const char *path);
/* The oldest line of the log (closed connections and why) into `line` of 256 bytes; false: there
 * is none.  The log keeps the last 128 lines; what was lost in between is told in a line of its
 * own. */
bool te_engine_log_next(te_engine *engine, char *line);
/* The epoch that goes into the headers of this engine's answers and pushes; 0 at first. */
void te_engine_set_epoch(te_engine *engine, uint32_t epoch);

/* What RDMA does for this engine; zeros when there is none. */
typedef struct te_rdma_view {
    uint32_t nics, nics_up, endpoints, queue_pairs; /* of both sides */
    uint64_t read_bytes, write_bytes, slices;       /* moved by this side */
    uint64_t fallbacks;                             /* items that went over TCP after all */
    uint64_t rail_failures, endpoints_opened;
    uint64_t registered_bytes, wanted_bytes; /* over all NICs */
} te_rdma_view;
void te_rdma_look(te_engine *engine, te_rdma_view *view);

/* Listen on a numeric IPv4 or IPv6 address; port 0 = any; the real one is stored.  `error` gets a
 * sentence. */
ms_status te_listen_tcp(te_engine *engine, const char *address, uint16_t port, uint16_t *bound,
                        char *error);
/* The socket file is 0600; peers of another uid are refused (SO_PEERCRED).  A stale file is
 * replaced.  `error` is a buffer of 256 bytes or NULL, here as everywhere. */
ms_status te_listen_unix(te_engine *engine, const char *path, char *error);
/* end cdef */

/* ---- accepting side --------------------------------------------------------------------------------- */

/* An accepted (or dialled, see te_dial) connection, by number.  Numbers are never used twice. */
typedef uint64_t te_peer;

typedef struct te_request {
    te_peer peer;
    void *peer_context; /* what on_hello gave */
    bool is_unix;
    int descriptor; /* passed along over a Unix socket, or -1; closed after the call: dup it to keep it */
    const ms_header *header;
    const uint8_t *body; /* header->body_length bytes; valid during the call */
} te_request;

/* Frames of one connection are given one after the other, those of several connections possibly at
 * once from several I/O threads.  Calls must not block.  A request may be answered within the call
 * or later, from any thread, with te_answer; each REQUEST must be answered once or its connection
 * closed. header->kind tells requests from one-way frames.  body is 8-aligned. */
typedef struct te_service {
    void *context;
    /* First frame.  OK: what was put into answer (answer_length bytes, at most 4096) is sent and
     * *peer_context kept.  Else the status is sent with `error` as its sentence, then closed. */
    ms_status (*on_hello)(void *context, const te_request *request, uint8_t answer[4096],
                          uint32_t *answer_length, void **peer_context, char *error);
    /* Frames that the engine does not answer itself (READ, WRITE, ATTACH, SHARE, UNSHARE, PING are
     * its own). */
    void (*on_request)(void *context, const te_request *request);
    /* Answers to requests sent with te_push on an accepted or dialled connection. */
    void (*on_answer)(void *context, const te_request *request);
    void (*on_close)(void *context, te_peer peer, void *peer_context, const char *reason);
    /* About every tick_ms, on I/O thread 0. */
    void (*on_tick)(void *context, int64_t now_ns);
    uint32_t tick_ms;
} te_service;

/* Once, before listening. */
void te_serve(te_engine *engine, const te_service *service);

/* Send a frame on an accepted or dialled connection.  Copies; never blocks: what the socket does
 * not take at once is queued (bounded by outbound_bytes_max, then the connection is closed).
 * NOT_REGISTERED: gone. */
ms_status te_answer(te_engine *engine, te_peer peer, const ms_header *request, ms_status status,
                    const struct iovec *body, size_t body_count, const void *payload,
                    size_t payload_length);
/* For an answer that gives the peer something, which is taken back when it does not get it.  OK: the socket has all of
 * it; over a Unix socket the peer had not ended the connection before (te_connection_end), so it has the answer.
 * Else the peer gets the connection's end instead: what the socket does not take at once is not queued. */
ms_status te_answer_at_once(te_engine *engine, te_peer peer, const ms_header *request,
                            ms_status status, const struct iovec *body);
ms_status te_push(te_engine *engine, te_peer peer, uint8_t kind, uint16_t method, uint32_t flags,
                  uint64_t request, const struct iovec *body, size_t body_count);
/* Close it; on_close follows, on its I/O thread.  te_close_matching closes every accepted
 * connection for which `match` says so and returns when none of them can write memory any more
 * (their I/O steps have ended): a fence.  Use counts taken by write_begin come back a moment later
 * (write_end with complete = false, then on_close), on the I/O threads.  May be called from an I/O
 * thread; `match` must call nothing of the engine. */
void te_close_peer(te_engine *engine, te_peer peer, const char *reason);
/* False: the other side has closed it, though frames from before may still come: nobody waits for
 * their answers. */
bool te_peer_is_there(te_engine *engine, te_peer peer);
size_t te_close_matching(te_engine *engine, bool (*match)(void *match_context, void *peer_context),
                         void *match_context, const char *reason);
/* Destroys the RDMA queue pairs of matching connections, and leaves those open; returns when nothing that was posted to
 * them can touch memory any more.  Waits for the devices: not from an I/O thread. */
void te_cut_queue_pairs(te_engine *engine, bool (*match)(void *match_context, void *peer_context),
                        void *match_context);
/* Whether any accepted connection has one. */
bool te_has_queue_pairs(const te_engine *engine);

/* Dial `address` ("ip:port", "[ip]:port", "unix:PATH"), send HELLO, and serve the connection like
 * an accepted one: its frames go to on_request, answers to te_push requests to on_answer, its end
 * to on_close.  Blocks until the HELLO is answered.  `answer` gets the answer's body.  Frames (and
 * the end) may reach the service before this function has returned. */
ms_status te_dial(te_engine *engine, const char *address, const struct iovec *hello,
                  size_t hello_count, int64_t deadline_ns, void *peer_context, te_peer *peer,
                  uint8_t *answer, size_t answer_size, size_t *answer_length, char *error);

/* ---- segments that this engine serves ---------------------------------------------------------------- */

/* What a segment adds to plain memory.  All are called on I/O threads, must not block, and may be
 * NULL for plain memory.  peer_context says who asks.  Between a begin that returned OK and its
 * end the bytes stay. */
typedef struct te_segment_ops {
    void *context;
    /* Guarded read: compare the word, take the use count, in one step.  */
    ms_status (*read_begin)(void *context, void *peer_context, const ms_read_item *item);
    /* Hint, may be NULL: read_begin comes next for all of these, so that what it looks at can be asked
     * for at once. */
    void (*read_ahead)(void *context, const ms_read_item *items, uint32_t count);
    /* After the last byte was copied into the socket: give the use count back; the word as it is
     * now. */
    uint64_t (*read_end)(void *context, void *peer_context, const ms_read_item *item);
    /* Check grant (session, epoch, incarnation, version, range) and take the use count, in one
     * step. */
    ms_status (*write_begin)(void *context, void *peer_context, const ms_write_item *item);
    /* The bytes are in place (or the attempt broke off: !complete).  Gives the use count back,
     * then SEALs when a seal came with the item; if its source is shared memory, only while
     * te_peer_is_there, which is asked in the step that seals.  Called for items in order; `seal`
     * is NULL without one. */
    ms_status (*write_end)(void *context, void *peer_context, const ms_write_item *item,
                           const uint8_t *seal, size_t seal_length, bool complete);
    /* All items of a WRITE frame have ended with these statuses.  True: the service answers or
     * relays itself (MS_FLAG_RELAY), the engine sends nothing. */
    bool (*write_done)(void *context, const te_request *request, const uint32_t *statuses,
                       size_t count);
} te_segment_ops;

/* Memory that this processor does not reach: RDMA NICs do, by the descriptor that its driver exports (dmabuf). */
typedef struct te_device_memory {
    int descriptor;  /* the caller's, who may close it afterwards */
    uint64_t offset; /* where in it the memory begins */
    char *error;     /* TE_ERROR_BYTES */
} te_device_memory;

typedef struct te_segment_config {
    uint32_t segment;       /* number under which peers name it */
    void *address;          /* payload, mapped read-write in this process */
    uint64_t length;        /* bytes */
    int payload_descriptor; /* file behind it, handed out read-only over unix sockets; -1 = not shared */
    int words_descriptor;     /* generation words, u64 a page; -1 = none */
    const char *payload_path; /* opened O_RDONLY for handing out; NULL with -1 */
    const char *words_path;
    uint64_t payload_offset; /* where in its file the segment begins */
    uint32_t incarnation;
    te_segment_ops ops; /* zeroed = plain memory */
    /* For RDMA: the words as mapped in this process (NULL: none), how much of the payload exists already (0: all;
     * te_segment_extend says more), and whether it must not be written. */
    const void *words;
    uint64_t ready_bytes;
    bool is_read_only;
    const te_device_memory *device; /* NULL: it is no device's */
} te_segment_config;

ms_status te_segment_add(te_engine *engine, const te_segment_config *config);
/* More of the payload exists: RDMA NICs may reach it. */
void te_segment_extend(te_engine *engine, uint32_t segment, uint64_t ready_bytes);
/* Returns when nothing uses it: READs and WRITEs that are under way are broken off (their
 * connections close). Not from an I/O thread. */
void te_segment_remove(te_engine *engine, uint32_t segment);

/* ---- asking side -------------------------------------------------------------------------------------- */

typedef struct te_channel_config {
    const char *addresses; /* comma-separated "ip:port" / "[ip]:port": the rails; may be NULL */
    const char *unix_path; /* tried first when not NULL */
    const void *hello;     /* HELLO body, sent first on every connection; copied */
    size_t hello_length;
    uint32_t connections_max;    /* default 8 */
    uint32_t connect_timeout_ms; /* default 1000 */
} te_channel_config;

/* No I/O yet: connections are opened on demand, kept, and the least used are closed when idle for
 * 60 s. */
ms_status te_channel_open(te_engine *engine, const te_channel_config *config, te_channel **channel);
/* New HELLO for connections opened from now on (session or epoch changed); idle ones are closed. */
void te_channel_set_hello(te_channel *channel, const void *hello, size_t hello_length);
void te_channel_close(te_channel *channel); /* waits for callers inside, at most their deadlines */
/* The peer is somewhere else now (another master leads): connections are dialled there from now on, and callers that
 * wait for an answer get the end of their connection.  `address` is one address, `unix_path` may be NULL. */
ms_status te_channel_move(te_channel *channel, const char *address, const char *unix_path);
/* Callers that wait for the peer's answer, or for a connection to it, get the end of theirs. */
void te_channel_break_off(te_channel *channel);
/* What tells that a peer should perhaps be looked for elsewhere. */
typedef struct te_channel_health {
    uint64_t failures; /* exchanges and dials that have failed so far */
    /* how long the longest exchange, or dial, under way has been going on; 0 = none */
    int64_t waiting_ns;
} te_channel_health;
void te_channel_get_health(te_channel *channel, te_channel_health *health);
bool te_channel_is_local(
    const te_channel *channel); /* the last connection made was over the Unix socket */
/* Body of the newest HELLO answer. */
size_t te_channel_hello_answer(te_channel *channel, uint8_t *answer, size_t size);
/* Why the last exchange failed, a sentence for people. */
void te_channel_error(te_channel *channel, char error[TE_ERROR_BYTES]);

/* Where an answer goes.  Give memory for what is expected; a longer body or payload makes LIMIT
 * (and the connection closes) unless `grow` is set: then *body is malloc'ed by the engine and
 * owned by the caller.  The sentence of an answer other than OK that has no room becomes
 * te_channel_error.  After a failure or an answer other than OK what the buffers hold is not
 * defined. */
typedef struct te_reply {
    ms_header header;
    uint8_t *body;
    size_t body_size; /* room */
    bool grow;        /* body is NULL on entry; free() it */
    void *payload;
    size_t payload_size;
} te_reply;

/* One request, one answer, carried by the calling thread.  Returns the transport's status; the
 * answer's own is reply->header.status.  A connection found dead before anything was sent is
 * replaced once. */
ms_status te_call(te_channel *channel, uint16_t method, uint32_t flags, const struct iovec *body,
                  size_t body_count, te_reply *reply, int64_t deadline_ns);

/* The same in parts, for exchanges that span several frames or peers (relayed put_end). */
typedef struct te_connection te_connection;
ms_status te_checkout(te_channel *channel, int64_t deadline_ns, te_connection **connection);
/* As te_checkout, but LIMIT when all connections are in use: for a caller that holds one already, and must
 * not wait for another while others do the same. */
ms_status te_checkout_try(te_channel *channel, int64_t deadline_ns, te_connection **connection);
/* A new connection that says a HELLO of its own, which nobody else connects with; checked in, it is closed.  Its answer
 * goes to `answer`, *answer_length may be more than there is room for. */
ms_status te_checkout_saying(te_channel *channel, const void *hello, size_t hello_length,
                             int64_t deadline_ns, te_connection **connection, uint8_t *answer,
                             size_t answer_size, size_t *answer_length);
ms_status te_send(te_connection *connection, uint8_t kind, uint16_t method, uint32_t flags,
                  uint64_t request, uint32_t deadline_ms, const struct iovec *body,
                  size_t body_count, const struct iovec *payload, size_t payload_count,
                  int64_t deadline_ns);
ms_status te_receive(te_connection *connection, te_reply *reply, int64_t deadline_ns);
/* The same when other answers may follow at once: requests are pipelined on this connection. */
ms_status te_receive_exactly(te_connection *connection, te_reply *reply, int64_t deadline_ns);
/* BAD_FRAME: `answer` is to another request, a mistake of the peer: nothing that it sends can be believed. */
ms_status te_check_request(te_connection *connection, const ms_header *answer, uint16_t method,
                           uint64_t request);
/* The peer copies so many bytes from our shared memory before it answers the request under way: a spin lasts so much
 * longer, or begins shortly before the end of a copy that takes too long to be spun through. */
void te_expect_copy(te_connection *connection, uint64_t bytes);
/* It has been answered, or never will be; `is_copied`: what it copied says how long the next copy takes. */
void te_expect_nothing(te_connection *connection, bool is_copied);
/* Waits until one of both has an answer to be received: 0 or 1 in *which. */
ms_status te_wait_either(te_connection *a, te_connection *b, int *which, int64_t deadline_ns);
uint64_t te_next_request(te_connection *connection);
/* Another one after each te_channel_set_hello and te_channel_move. */
uint32_t te_connection_generation(const te_connection *connection);
/* Nothing more is sent or let in.  What has arrived is still received, then UNAVAILABLE.  Over a Unix socket either the
 * whole of an answer is there, or sending it fails at the peer. */
void te_connection_end(te_connection *connection);
/* reusable = false closes it: something may still arrive. */
void te_checkin(te_connection *connection, bool reusable);
/* The caller is done with it, and another thread will check it in. */
void te_hand_over(te_connection *connection);

/* begin cdef */
/* How requests share what is between this engine and its peers.  Zero: NORMAL, of no tenant. */
typedef struct te_transfer_options {
    int32_t priority; /* te_priority */
    uint32_t weight;  /* of the tenant among those of its priority, 1 to 1024; 0 = 1 */
    uint64_t tenant;  /* any number; requests of one share one turn */
    uint32_t
        is_meant; /* on a channel: it counts also where the peer has a single rail, from now on for all of it */
} te_transfer_options;
typedef enum {
    TE_PRIORITY_NORMAL = 0,     /* puts */
    TE_PRIORITY_URGENT = 1,     /* somebody waits for it: a get before a prefill */
    TE_PRIORITY_BACKGROUND = 2, /* replication, moving to other tiers */
    TE_PRIORITY_PREFETCH = 3,   /* a get that somebody may wait for later; behind puts */
} te_priority;
/* end cdef */

/* Reads items, each into targets[i] (items[i].length bytes).  Small items are coalesced into one
 * frame; large ones are cut and spread over several connections by worker threads when that pays.
 * Guarded items are compared with results[i].word by the CALLER (client room), never here.  On
 * return no attempt can touch a target any more.  The status is OK when all frames were exchanged;
 * each item has its own in results. */
ms_status te_read(te_channel *channel, const ms_read_item *items, void *const *targets,
                  size_t count, ms_read_result *results, int64_t deadline_ns);
/* The same with a share (NULL: as te_read).  It counts where the peer is reached over several rails: there, what is
 * large goes by slices over all of them, the most urgent first.  BACKGROUND over RDMA does at any size,
 * once lanes are up. */
ms_status te_read_as(te_channel *channel, const ms_read_item *items, void *const *targets,
                     size_t count, ms_read_result *results, const te_transfer_options *options,
                     int64_t deadline_ns);

/* Writes items from sources[i] (items[i].length bytes; NULL where item.source names a SHAREd
 * memory). seals: concatenated, item i's has items[i].seal_length bytes.  statuses[i] as answered.
 * Items with a seal are sent so that the seal is handled after every byte of the same extent has
 * been answered.  MS_FLAG_RELAY is refused (nothing would be answered): send the frame with the
 * last seal by te_send and wait with te_wait_either. */
ms_status te_write(te_channel *channel, const ms_write_item *items, const void *const *sources,
                   size_t count, const void *seals, size_t seals_length, uint32_t flags,
                   uint32_t *statuses, int64_t deadline_ns);
ms_status te_write_as(te_channel *channel, const ms_write_item *items, const void *const *sources,
                      size_t count, const void *seals, size_t seals_length, uint32_t flags,
                      uint32_t *statuses, const te_transfer_options *options, int64_t deadline_ns);
/* What has been sent before, over a connection of that te_connection_generation, and was not answered: nobody knows what
 * became of it.  It goes over connections of that generation, else each is UNAVAILABLE; statuses tell of both attempts:
 * what is COMPLETE is OK, and what is refused for good by now is IO_ERROR, as the first one may have been carried out. */
ms_status te_write_again(te_channel *channel, const ms_write_item *items,
                         const void *const *sources, size_t count, const void *seals,
                         size_t seals_length, uint32_t generation, uint32_t *statuses,
                         int64_t deadline_ns);

/* ---- shared memory ------------------------------------------------------------------------------------- */

typedef struct te_mapping {
    const uint8_t
        *payload;          /* read-only; begins with the page that holds the segment's first byte */
    const uint64_t *words; /* u64 a page; load with acquire order; NULL: the segment has none */
    uint64_t page_count;
    uint32_t incarnation;
} te_mapping;

/* Map a peer's segment read-only (over its Unix socket); populated in the background, in steps.
 * UNAVAILABLE when the peer is not on this host. The mapping lives until the channel is closed. */
ms_status te_attach(te_channel *channel, uint32_t segment, int64_t deadline_ns,
                    te_mapping *mapping);
/* begin cdef */
/* Memory that peers on this host may copy from: a sealed memfd, touched.  Freeing it gives the
 * memory back at once; unregister it first, and nothing may be on its way. */
ms_status te_shared_alloc(te_engine *engine, size_t length, void **address);
void te_shared_free(te_engine *engine, void *address);
/* Memory that was not freed outlives its engine, so that nobody who still looks at it is killed:
 * this gives it back then.  `length` is what was allocated. */
void te_shared_unmap(void *address, size_t length);
/* end cdef */
/* The id + 1 and offset by which the peer behind `channel` knows this address range: SHAREs it on
 * first use. NOT_REGISTERED: not from te_shared_alloc. */
ms_status te_share(te_channel *channel, const void *address, size_t length, uint32_t *source,
                   uint64_t *offset, int64_t deadline_ns);
/* A WRITE with a source was answered NOT_REGISTERED: the ids are forgotten, the next te_share asks
 * again.  te_write does this by itself. */
void te_channel_shares_forget(te_channel *channel);
/* Copies with the right kernel for the size, with a worker as second thread from helper_copy_bytes
 * on. */
void te_copy(te_engine *engine, void *target, const void *source, size_t length);
/* The same for one of many copies that make `whole` bytes together: so much passes the caches by, piece by piece,
 * where it would only drive out what is in them. */
void te_copy_part(te_engine *engine, void *target, const void *source, size_t length,
                  uint64_t whole);

/* Run `run(argument)` on a worker thread.  LIMIT: the queue (4096) is full. */
ms_status te_spawn(te_engine *engine, void (*run)(void *argument), void *argument);

/* ---- the paper's batch interface ------------------------------------------------------------------------ */
/* begin cdef */
typedef enum { TE_READ = 0, TE_WRITE = 1 } te_opcode;

typedef struct te_transfer_request {
    int32_t opcode;         /* te_opcode */
    uint32_t segment;       /* handle of te_open_segment */
    uint64_t local_address; /* inside memory registered here */
    uint64_t remote_offset; /* address inside memory registered at the peer */
    uint64_t length;
} te_transfer_request;

typedef struct te_transfer_status {
    int32_t state;  /* te_transfer_state */
    int32_t status; /* ms_status when failed */
    uint64_t bytes; /* moved */
} te_transfer_status;

typedef enum {
    TE_WAITING = 0,
    TE_PENDING = 1,
    TE_COMPLETED = 2,
    TE_FAILED = 3,
    TE_TIMED_OUT = 4,
    TE_CANCELLED = 5
} te_transfer_state;

/* location: "cpu:0", "cuda:1", "*".  The range must be mapped (OUT_OF_RANGE) and overlap no other
 * (BAD_REQUEST); read-only memory may only be read from.  A region inside te_shared_alloc memory
 * is mapped by peers on this host. */
ms_status te_register_local_memory(te_engine *engine, uint64_t address, uint64_t length,
                                   const char *location);
/* Memory of a device, which this processor need not reach: registered with every RDMA NIC by its dmabuf descriptor, which may be
 * closed afterwards.  `address` is what requests and peers name it by; within a page it agrees with `offset`, which is
 * where in the descriptor the memory begins.  Only RDMA lanes carry it: whatever else would have to (TCP, shared memory)
 * ends with NOT_REGISTERED, here and at peers.  NOT_REGISTERED: a NIC refuses, or there is none; `error` says which.
 * te_unregister_local_memory ends it. */
ms_status te_register_device_memory(te_engine *engine, uint64_t address, uint64_t length,
                                    const char *location, int descriptor, uint64_t offset,
                                    char *error);
/* BUSY while transfers of this engine use it; those of peers are broken off.  Not from an I/O
 * thread. */
ms_status te_unregister_local_memory(te_engine *engine, uint64_t address);
/* Serve the registered memory, notifications and nothing else: instead of te_serve, before
 * listening. */
ms_status te_serve_memory(te_engine *engine);
/* What peers learn about this engine's NICs (JSON, see docs/transfer-engine.md) and what ranks its
 * own. */
ms_status te_set_topology(te_engine *engine, const char *json, size_t length, char *error);
/* Peers on this host find the Unix socket by this path; te_listen_unix by itself tells nobody. */
ms_status te_publish_unix(te_engine *engine, const char *path);
/* peer_address: "ip:port" or "[ip]:port", "LOCAL>ip:port" to reach it from that address, several with commas (its
 * rails), or "unix:PATH".
 * Opening an address again gives the same handle; as many te_close_segment end it.  A peer on this
 * host is reached over its published Unix socket.  A peer that restarts is found again. */
ms_status te_open_segment(te_engine *engine, const char *peer_address, uint32_t *segment,
                          int64_t deadline_ns, char *error);
ms_status te_close_segment(te_engine *engine, uint32_t segment);
/* Address and length of the index-th memory registered at the peer; NOT_FOUND past the last. */
ms_status te_segment_region(te_engine *engine, uint32_t segment, uint32_t index, uint64_t *address,
                            uint64_t *length);
ms_status te_allocate_batch_id(te_engine *engine, size_t size, uint64_t *batch);
ms_status te_submit_transfer(te_engine *engine, uint64_t batch, const te_transfer_request *requests,
                             size_t count, int64_t deadline_ns);
/* te_submit_transfer with them (NULL: zero).  BAD_REQUEST: a priority or weight that there is not. */
ms_status te_submit_transfer_as(te_engine *engine, uint64_t batch,
                                const te_transfer_request *requests, size_t count,
                                const te_transfer_options *options, int64_t deadline_ns);
ms_status te_get_transfer_status(te_engine *engine, uint64_t batch, size_t index,
                                 te_transfer_status *status);
/* OK when all have ended (however), TIMEOUT else.  The caller carries requests that no worker has
 * begun. */
ms_status te_wait_batch(te_engine *engine, uint64_t batch, int64_t deadline_ns);
/* Requests not begun end now; running ones end (te_wait_batch) when no attempt can touch their
 * memory any more. The batch takes no further requests. */
ms_status te_cancel_batch(te_engine *engine, uint64_t batch);
/* BUSY while requests run. */
ms_status te_free_batch_id(te_engine *engine, uint64_t batch);
/* Readable whenever a request of that batch has ended; owned by the batch. */
int te_batch_eventfd(te_engine *engine, uint64_t batch);

/* How a request went, or goes. */
typedef struct te_transfer_explanation {
    int32_t state;      /* te_transfer_state */
    int32_t status;     /* ms_status */
    uint64_t bytes;     /* that have arrived */
    int64_t waiting_ns; /* from submission until something of it was given to a path; -1: not yet */
    int64_t moving_ns;  /* from then to its end, or until now; -1: not begun */
    uint32_t retries;   /* parts of it that were moved again, over another rail or the same */
    uint32_t rails;     /* bit i: some of it went over rail i; 0: not over rails */
} te_transfer_explanation;
ms_status te_explain_transfer(te_engine *engine, uint64_t batch, size_t index,
                              te_transfer_explanation *explanation);
/* A rail in one direction. */
typedef struct te_rail_view {
    char local[128], remote[128]; /* addresses; local "" = as the kernel routes */
    char transport[8];
    char note[96]; /* why it was left last; "" = never was */
    int32_t opcode;
    uint32_t tier; /* 0 preferred, 1 secondary, 2 other */
    bool is_up;
    uint64_t resets; /* so often it was left */
    uint64_t bytes_in_flight, bandwidth_bytes_per_s;
} te_rail_view;
/* Of the rails of that request's peer, those of its direction: rail `rail` and the bytes of the requests that were
 * grouped with this one that went over it.  NOT_FOUND past the last, and when it did not go over rails. */
ms_status te_explain_rail(te_engine *engine, uint64_t batch, size_t index, uint32_t rail,
                          te_rail_view *view, uint64_t *bytes);
/* Rail `index` of a channel's peer, READs first, as of its last large transfer.  NOT_FOUND: past the last, or all goes
 * over single connections. */
ms_status te_channel_rail(te_channel *channel, uint32_t index, te_rail_view *view);
/* Rail `index` of an opened segment, READs first.  NOT_FOUND: past the last. */
ms_status te_segment_rail(te_engine *engine, uint32_t segment, uint32_t index, te_rail_view *view);
/* The rails to that peer, instead of its addresses: comma-separated "LOCAL>REMOTE:PORT/TIER" (LOCAL> and /TIER may be
 * left out).  What is under way goes on over those that stay. */
ms_status te_segment_set_rails(te_engine *engine, uint32_t segment, const char *rails, char *error);
/* The peer's topology as it said when the segment was opened or asked for again: JSON, `*length` bytes.  BUFFER_TOO_SMALL:
 * *length is what it needs. */
ms_status te_segment_topology(te_engine *engine, uint32_t segment, char *json, size_t size,
                              size_t *length);

/* Readable when a peer has told other interfaces (te_segment_topology has them): read 8 bytes from it.  Owned by the
 * engine. */
int te_topology_eventfd(te_engine *engine);

/* Requests carried by the calling thread (workers help when they fall into several groups),
 * without a batch to keep: statuses[i] as te_get_transfer_status gives it.  OK: all have ended,
 * however. */
ms_status te_transfer(te_engine *engine, const te_transfer_request *requests, size_t count,
                      te_transfer_status *statuses, int64_t deadline_ns);
ms_status te_transfer_as(te_engine *engine, const te_transfer_request *requests, size_t count,
                         const te_transfer_options *options, te_transfer_status *statuses,
                         int64_t deadline_ns);

/* Message channel for applications: NOTIFY frames.  Received ones wait in a bounded queue. */
ms_status te_send_notify(te_engine *engine, uint32_t segment, const char *name, const char *message,
                         int64_t deadline_ns);
/* NOT_FOUND: none waits.  BUFFER_TOO_SMALL: *length is what the oldest needs; it stays. */
ms_status te_next_notify(te_engine *engine, char name[256], char *message, size_t size,
                         size_t *length);
/* Readable while notifications wait; owned by the engine. */
int te_notify_eventfd(te_engine *engine);

/* A blocking call of any method, for Python tools and services: a channel of its own, errors as a
 * sentence. */
ms_status te_channel_open_simple(te_engine *engine, const char *address, const uint8_t *hello,
                                 size_t hello_length, te_channel **channel);
void te_channel_close(te_channel *channel);
void te_channel_set_hello(te_channel *channel, const void *hello, size_t hello_length);
size_t te_channel_hello_answer(te_channel *channel, uint8_t *answer, size_t size);
ms_status te_call_simple(te_channel *channel, uint16_t method, uint32_t flags, const uint8_t *body,
                         size_t body_length, uint8_t **answer, size_t *answer_length,
                         uint64_t *payload_offset, uint32_t *answer_status, int64_t deadline_ns,
                         char *error);
void te_release(uint8_t *answer);
/* end cdef */

#endif
