/* What the files of the transfer engine share.  Nothing here is seen outside this room.
 *
 * Threads.  An I/O thread owns its links (accepted or dialled connections): it alone receives on
 * them, registers them with epoll and closes them.  Other threads send on a link with
 * te_link_send, and ask for everything else by posting (te_link_post).  An asking connection
 * (te_connection) belongs to the thread that checked it out.
 *
 * Lock order: engine->peers_lock, then link->lock, then io->lock or engine->segments_lock.  No
 * lock is held over a system call that can block, nor over a callback of a service or a segment.
 */
#ifndef TE_INTERNAL_H
#define TE_INTERNAL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "te.h"

#define TE_NS_PER_MS INT64_C(1000000)
#define TE_NS_PER_S INT64_C(1000000000)

#define TE_RECEIVE_BYTES                                                                           \
    16384u /* first receive of a frame: a batch of 64 keys fits, large payload goes straight to its place */
#define TE_STAGING_BYTES (64u << 10) /* READs up to this are copied and sent in one call */
#define TE_TURN_BYTES (4u << 20) /* one link moves at most this before the next one has its turn */
/* Of so many bytes that are still to come over TCP, a receiver wants to be woken for each
 * TE_LOW_WATER_BYTES only: a wake-up costs both ends more than the copy of a segment. */
#define TE_LOW_WATER_BYTES (256u << 10)
#define TE_LOW_WATER_LEAST (512u << 10)
#define TE_SEND_BYTES                                                                              \
    (5u << 19)               /* a caller hands the kernel at most this at once, then gives way */
#define TE_FRAME_IOVECS 1000 /* memory blocks of one frame; IOV_MAX is 1024 */
#define TE_TICK_MS 100       /* a blocked caller looks at its deadline at least this often */
#define TE_LOG_LINES 128

typedef struct te_io te_io;
typedef struct te_link te_link;
typedef struct te_segment te_segment;
typedef struct te_read_job te_read_job;
typedef struct te_write_job te_write_job;
typedef struct te_workers te_workers;
typedef struct te_rdma te_rdma;

/* ---- segments (segment.c) -------------------------------------------------------------------- */

struct te_segment {
    te_segment_config config; /* the two paths are the segment's own copies */
    te_engine *engine;
    uint32_t users;  /* under engine->segments_lock: jobs of links, calls of te_segment_get */
    bool is_removed; /* under engine->segments_lock */
    /* Registered with the RDMA NICs; NULL: not for RDMA. */
    struct te_rdma_range *rdma, *rdma_words;
};

/* The segment of that number, held until te_segment_put; NULL when there is none. */
te_segment *te_segment_get(te_engine *engine, uint32_t number);
void te_segment_hold(te_segment *segment);
void te_segment_put(te_segment *segment);
bool te_segment_is_removed(te_segment *segment);
/* Its registration with the RDMA NICs; NULL: none. */
struct te_rdma_range *te_segment_rdma(te_engine *engine, uint32_t number);
void te_segments_open(te_engine *engine);
void te_segments_close(te_engine *engine);

/* te_copy into memory that no thread here reads next: passes the caches by from a quarter of stream_copy_bytes on. */
void te_copy_away(te_engine *engine, void *target, const void *source, size_t length);

/* ---- waiting without sleeping (spin.c, spinners.c) ---------------------------------------------- */

/* A thread that spins, on the board of its core. */
typedef struct te_spinner {
    _Atomic int64_t *mark; /* NULL: on no board */
    int64_t end_ns;
} te_spinner;

/* False: somebody else spins on this core, whose work between its waits takes as long or longer. */
bool te_spinner_begin(te_spinner *spinner, int64_t now_ns, int64_t end_ns, int64_t work_ns);
bool te_spinner_is_alone(const te_spinner *spinner);
/* Whether somebody else spins on this core, or has done so just now. */
bool te_spinner_is_there(int64_t now_ns);
void te_spinner_end(te_spinner *spinner);

/* What one waiting thread, or all that wait on one connection in turn, have learned; zero at first. */
typedef struct te_spin {
    int64_t limit_ns;  /* how long the next spin may be; 0 = none was yet */
    int32_t score;     /* grows while waits are short; below zero nobody spins */
    int64_t worked_ns; /* before this wait: a small part of it may be spun, whatever the score is */
} te_spin;

typedef struct te_spinning {
    te_engine *engine;
    int64_t now_ns, end_ns;
    int64_t latest_ns; /* what others take of it is added up to here */
    te_spinner spinner;
    bool is_taken; /* another one spins on this core */
} te_spinning;

#define TE_SPIN_IN_TURNS (-1) /* as work_ns: one of several callers who yield to each other */

/* Whether no thread of the engine spins now, whatever it has learned: it was told not to, or somebody computes here. */
bool te_spin_is_off(te_engine *engine, int64_t now_ns);
/* Begins a spin that lasts `extra_ns` longer than what was learned.  False: this wait is to be slept; spinning->is_taken
 * says whether another one spins on this core, also to who would not spin anyway.
 * `work_ns`: how long this thread works between two waits; 0 for a caller who is the only one. */
bool te_spin_begin(te_engine *engine, const te_spin *spin, int64_t now_ns, int64_t extra_ns,
                   int64_t work_ns, te_spinning *spinning);
/* Offers the core to others and takes the time; false: sleep now. */
bool te_spin_goes_on(te_spinning *spinning);
/* A yield took so long: others worked meanwhile, which is added to the spin. */
void te_spin_was_away(te_spinning *spinning, int64_t away_ns);
void te_spin_end(te_spinning *spinning);
/* Around a short sleep of the calling thread, one of the engine's own, while somebody spins on its core: who wakes it
 * interrupts nobody, as the spinner's next yield lets it in.  False: nothing to end, this thread's policy was given to it. */
bool te_spin_quiet_begin(void);
void te_spin_quiet_end(void);
/* For a thread that always finds more to do: others that are ready on this core have their turn now and then.
 * Without it a thread that wakes there (a timer beside a loop of calls) waits for the end of the time slice.
 * *last_ns: when this one last slept or gave way. */
void te_spin_give_way(te_engine *engine, int64_t *last_ns);
/* A wait, spun or slept, has ended with what was waited for. */
void te_spin_learn(const te_engine *engine, te_spin *spin, int64_t waited_ns);

/* ---- engine (engine.c) ----------------------------------------------------------------------- */

/* Answers one method; runs on the link's I/O thread, must not block.  The request is a REQUEST
 * (never one-way) of a link that has said HELLO; it must be answered now or later (te_answer,
 * te_link_answer). */
typedef void te_method(te_engine *engine, te_link *link, const te_request *request);

struct te_engine {
    te_engine_config config;
    unsigned fork_generation; /* te_fork_generation() at open; another one means: used after fork */
    uint8_t boot_id[16];
    uint32_t stripes_max; /* connections that one transfer is spread over */
    uint32_t
        spinning_max;   /* callers spin alone while at most so many wait; I/O threads that spin */
    uint32_t turns_max; /* callers spin in turns while at most so many wait */
    _Atomic uint32_t waiting, io_spinning;
    _Atomic int64_t spin_quiet_until_ns, spin_quiet_ns,
        spin_slow_ns;       /* somebody computes on our cores: see spin.c */
    _Atomic uint32_t epoch; /* goes into the headers of answers and pushes */

    te_service service;
    _Atomic bool is_serving;

    te_io *io; /* config.io_threads of them */
    _Atomic uint32_t io_next;
    _Atomic bool is_stopping;

    pthread_mutex_t peers_lock;
    te_link **peers; /* slot = low 16 bits of the number */
    uint32_t peer_slots, peer_count;
    uint32_t peer_slot_next;
    uint64_t peer_serial;

    pthread_mutex_t segments_lock;
    pthread_cond_t segments_changed;
    te_segment **segments; /* sorted by number */
    uint32_t segment_count, segment_room;

    te_workers *workers;

    pthread_mutex_t log_lock;
    char (*log_lines)[TE_ERROR_BYTES];
    uint32_t log_first, log_count;
    uint64_t log_lost;

    /* Methods beyond HELLO, PING, READ and WRITE that the engine answers itself: set by
     * te_engine_open from the files that implement them (ATTACH, SHARE, UNSHARE: shm.c;
     * OPEN_SEGMENT, NOTIFY: batch.c, memory.c), before any thread runs.  NULL: the service's. */
    te_method *methods[256];

    /* Memory SHAREd by the peer behind `link`: its address here, held until source_release.  Any
     * I/O thread. NULL functions: no shared memory in this engine. */
    ms_status (*source_acquire)(te_engine *engine, te_link *link, uint32_t source, uint64_t offset,
                                uint64_t length, const void **address);
    void (*source_release)(te_engine *engine, te_link *link, uint32_t source);
    /* An accepted link's HELLO was answered OK / the link is gone (after the last
     * source_release).  On its I/O thread: what a process shared lives as long as one of its
     * links. */
    void (*link_opened)(te_engine *engine, te_link *link);
    void (*link_closed)(te_engine *engine, te_link *link);

    struct te_shm *shm;           /* shm.c */
    struct te_registry *registry; /* memory.c */
    struct te_notes *notes;       /* notify.c */
    struct te_carrier *carrier;   /* carrier.c */
    uint64_t rails_bytes_min; /* te_read and te_write go over several rails from so many bytes on */
    int64_t seal_busy_ns;     /* so long a SEAL that is answered BUSY is sent again; 0: a second */
    uint64_t rail_slice_bytes;  /* the least a slice has; 0: as the schedule likes */
    _Atomic bool has_rails;     /* a path was opened, or is wanted: batches look for one */
    struct te_remotes *remotes; /* remote.c */
    struct te_batches *batches; /* batch.c */
    te_rdma *rdma;              /* rdma.c; NULL: no RDMA here */
};

unsigned te_fork_generation(void);
/* MS_FORKED in a child process, else OK: every entry point begins with it. */
ms_status te_engine_check(const te_engine *engine);
void te_log(te_engine *engine, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A sentence into an error buffer of TE_ERROR_BYTES (may be NULL). */
void te_error(char *error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* All signals blocked in the new thread, a small stack, a name of at most 15 bytes. */
ms_status te_thread_start(pthread_t *thread, const char *name, void *(*run)(void *),
                          void *argument);
/* A condition variable on CLOCK_MONOTONIC. */
ms_status te_cond_init(pthread_cond_t *cond);
/* False when the deadline has passed. */
bool te_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, int64_t deadline_ns);
/* Milliseconds left, at least 0, at most UINT32_MAX; for ms_header.status of a request. */
uint32_t te_deadline_ms(int64_t deadline_ns);

/* ---- workers (workers.c): started when first needed, up to config.worker_threads ------------- */
ms_status te_workers_open(te_engine *engine);
void te_workers_stop(te_engine *engine);  /* runs what is queued, joins; later jobs are refused */
void te_workers_close(te_engine *engine); /* when nobody can ask for workers any more */

/* ---- sockets (socket.c) ---------------------------------------------------------------------- */

typedef struct te_address {
    struct sockaddr_storage storage;
    socklen_t length;
    bool is_unix;
    char text[128]; /* "127.0.0.1:7700", "[::1]:7700", "unix:/run/..." */
    /* Where connections to it come from; length 0: as the kernel routes. */
    struct sockaddr_storage local;
    socklen_t local_length;
    bool is_by_routes; /* which interface has the local address does not matter */
} te_address;

/* "ip:port", "[ip]:port" or "unix:PATH"; numeric only.  "LOCAL>ip:port": connections come from that address. */
ms_status te_address_parse(const char *text, size_t length, te_address *address, char *error);
ms_status te_socket_listen(const te_address *address, int *descriptor, uint16_t *port, char *error);
/* Connections to `address` come from that numeric address of this host.  When both are on one link they also leave
 * by its interface: with two interfaces in one network the routes alone would send all over the first. */
ms_status te_address_bind(te_address *address, const char *local, size_t length, char *error);
/* Begins to connect, without waiting: PENDING, or OK. */
ms_status te_socket_begin(const te_address *address, int *descriptor, char *error);
/* Connected, close-on-exec, blocking, with a receive and a send timeout of TE_TICK_MS. */
ms_status te_socket_connect(const te_address *address, int64_t deadline_ns, int *descriptor,
                            char *error);
/* No delay, keep-alive. */
void te_socket_tune(int descriptor, bool is_unix);
ms_status te_socket_set_blocking(int descriptor, bool blocking);
/* One sendmsg / recvmsg without waiting, repeated on EINTR; returns bytes, or -1 with errno. */
ssize_t te_socket_send(int descriptor, const struct iovec *parts, size_t count,
                       const int *descriptors, size_t descriptor_count, int flags);
/* *passed gets a descriptor that came along (others are closed); -1 = none came. */
ssize_t te_socket_receive(int descriptor, struct iovec *parts, size_t count, int *passed,
                          size_t passed_room, size_t *passed_count, int flags);
/* SO_RCVLOWAT: nothing wakes who waits for the socket before so many bytes have come. */
void te_socket_low_water(int descriptor, int bytes);
/* Moves the start of an array of blocks by `bytes`: *parts and *count are advanced, the first one
 * is shortened. */
void te_iov_advance(struct iovec **parts, size_t *count, size_t bytes);
size_t te_iov_bytes(const struct iovec *parts, size_t count);
/* Between a flat buffer and blocks, from byte `offset` of the blocks on. */
void te_iov_read(const struct iovec *parts, size_t count, size_t offset, void *target,
                 size_t length);
void te_iov_write(const struct iovec *parts, size_t count, size_t offset, const void *source,
                  size_t length);

/* ---- served connections (peer.c) --------------------------------------------------- */

/* One frame (or the rest of it) that waits for the socket. */
typedef struct te_out {
    struct te_out *next;
    te_read_job *read; /* a READ's answer that is sent from the segment; NULL: bytes */
    size_t length, sent;
    int descriptors[2];
    size_t descriptor_count;
    uint8_t bytes[];
} te_out;

typedef enum te_link_state {
    TE_LINK_HELLO, /* nothing but HELLO is accepted */
    TE_LINK_OPEN,
    TE_LINK_LINGER, /* a last answer is on its way: what arrives is thrown away until the peer closes */
    TE_LINK_CLOSED
} te_link_state;

typedef enum te_link_phase { TE_PHASE_HEADER, TE_PHASE_BODY, TE_PHASE_PAYLOAD } te_link_phase;

enum te_post { TE_POST_ADD = 1, TE_POST_DRAIN = 2, TE_POST_CLOSE = 4 };

struct te_link {
    te_engine *engine;
    te_io *io;
    te_peer peer;
    _Atomic uint32_t references;
    int descriptor; /* closed with the last reference, so that a sender never meets a reused number */
    bool is_unix;
    bool is_dialled;
    char name[128]; /* the peer's address, for the log */

    _Atomic bool is_told_topology; /* topology_told.c: its peer wants to hear of changes */
    uint64_t cut_token; /* cut.c: by which the peer may have it closed; 0: it has not asked */

    /* What HELLO said (accepted links); zero for dialled ones. */
    ms_hello hello;
    void *peer_context;
    struct te_lender *lender; /* loan.c: the process behind a Unix socket; set by link_opened */
    bool
        is_known; /* on_hello said OK (or it was dialled): on_close is owed.  Set under peers_lock */

    /* Under lock: */
    pthread_mutex_t lock;
    pthread_cond_t step_ended;
    bool is_closing; /* no further step touches memory, nothing more is sent */
    bool is_in_step; /* the I/O thread is writing segment memory */
    bool is_sending; /* somebody holds the right to send */
    te_out *out_first, *out_last;
    _Atomic size_t out_bytes; /* written under lock, read anywhere */
    _Atomic uint32_t out_count;
    uint32_t posts;                       /* te_post bits not yet handled */
    char reason[160];                     /* why it is closing */
    struct te_rdma_accepted *queue_pairs; /* rdma_server.c; none are added when it is closing */
    uint32_t cutting;                     /* threads that destroy some of them */

    /* The I/O thread's own: */
    te_link_state state;
    te_link_phase phase;
    te_link *io_next, *io_previous; /* all links of the thread */
    te_link *post_next;             /* under io->lock */
    te_link *run_next;              /* more to do without an event */
    te_link *retired_next;
    bool is_on_run_list;
    bool is_owned;   /* in the thread's list, which holds a reference */
    bool has_shut;   /* lingering: our side is closed */
    uint32_t events; /* as registered with epoll */
    bool wants_out;
    int64_t frame_deadline_ns; /* a frame has begun: it must have ended by then; 0 = none has */
    int64_t out_deadline_ns;   /* queued output must move before this; 0 = nothing queued */

    bool has_low_water; /* TCP, in the middle of a large payload: see TE_LOW_WATER_BYTES */
    uint8_t *received;  /* TE_RECEIVE_BYTES, 8-aligned */
    size_t received_start, received_end;
    ms_header header; /* of the frame being received */
    uint8_t *body;    /* own memory for a body that does not fit into `received` */
    size_t body_room, body_filled;
    te_write_job *write; /* in TE_PHASE_PAYLOAD */
    int passed[4];
    size_t passed_count;
};

void te_link_hold(te_link *link);
void te_link_release(te_link *link);
/* The link of that number, held; NULL when it is gone. */
te_link *te_link_find(te_engine *engine, te_peer peer);
/* The peer has closed its side, or both. */
bool te_link_is_deserted(const te_link *link);
/* A held link in the table of peers, on an I/O thread's mailbox; takes the descriptor (also on
 * failure). */
ms_status te_link_open(te_engine *engine, int descriptor, bool is_unix, bool is_dialled,
                       const char *name, te_link **link);
/* Asks the link's I/O thread for something; any thread. */
void te_link_post(te_link *link, uint32_t posts);
/* Sends now or queues; the descriptors are duplicated when queued.  Any thread. */
ms_status te_link_send(te_link *link, const struct iovec *parts, size_t count,
                       const int *descriptors, size_t descriptor_count);
/* An answer with descriptors (Unix sockets).  The caller keeps the descriptors. */
ms_status te_link_answer(te_link *link, const ms_header *request, ms_status status,
                         const struct iovec *body, size_t body_count, const void *payload,
                         size_t payload_length, const int *descriptors, size_t descriptor_count);
/* An answer other than OK whose body is a sentence. */
ms_status te_link_refuse(te_link *link, const ms_header *request, ms_status status,
                         const char *format, ...) __attribute__((format(printf, 4, 5)));
/* Sends what is queued; on the I/O thread. */
void te_link_drain(te_link *link);
/* Queues the answer of a READ; on the I/O thread. */
ms_status te_link_queue_read(te_link *link, te_read_job *job);
/* Does a queued READ use a removed segment?  On the I/O thread. */
bool te_link_reads_removed(te_link *link);
/* Ends it at once; on the I/O thread. */
void te_link_close(te_link *link, const char *reason);
/* Closes it, and returns when nothing of it touches memory any more; any thread. */
void te_link_cut(te_link *link, const char *reason);
/* Answers with a status, then closes once that has left; on the I/O thread.  Logged. */
void te_link_fail(te_link *link, ms_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Around every write into segment memory.  False: it is closing, touch nothing. */
bool te_link_step_begin(te_link *link);
void te_link_step_end(te_link *link);

/* Header of an answer. */
ms_header te_answer_header(te_engine *engine, const ms_header *request, ms_status status,
                           size_t body_length, uint64_t payload_length, size_t trailer_length);

/* ---- I/O threads (io.c, accept.c, receive.c) ------------------------------------------------------------------ */
ms_status te_io_open(te_engine *engine);
void te_io_stop(te_engine *engine); /* closes every link, joins */
te_io *te_io_at(te_engine *engine, uint32_t index);
void te_io_enter(te_link *link);   /* the calling I/O thread handles a frame of it; NULL: no more */
te_link *te_io_current_link(void); /* that link; NULL: none, or not an I/O thread */
uint8_t *te_io_staging(te_io *io); /* TE_STAGING_BYTES + 4 KiB of the calling I/O thread */
void te_io_sweep(te_engine *engine); /* closes links that use a removed segment */
void te_io_wake(te_io *io);
void te_io_post(te_io *io, te_link *link);
void te_io_run_later(te_link *link);
void te_io_forget(te_link *link); /* no events any more */
void te_io_retire(
    te_link *link); /* gives the thread's reference back, once no event of this round can name it */
void te_io_watch_deadlines(te_link *link);
void te_io_update(te_link *link); /* what epoll should watch for */

/* ---- READ and WRITE at the serving side (serve_read.c, serve_write.c); on the I/O thread ----- */
void te_serve_read(te_link *link, const te_request *request);
/* Sends some more.  1: done, 0: the socket is full or the turn is over (*moved says how much), -1:
 * broken. */
int te_read_job_step(te_link *link, te_read_job *job, size_t *moved);
void te_read_job_free(te_link *link, te_read_job *job); /* gives back what is still held */
bool te_read_job_uses_removed(const te_read_job *job);

/* Body and header have arrived.  False: the link has been failed. */
bool te_serve_write_begin(te_link *link, const te_request *request);
/* Receives payload or copies from SHAREd memory.  1: the frame has ended, 0: wait for the socket
 * (or, with *moved at TE_TURN_BYTES or more, for the next turn), -1: broken (link closed). */
int te_serve_write_step(te_link *link, size_t *moved);
/* Without waiting, on the I/O thread.  1: something came, 0: nothing is there, -1: the link was
 * closed. */
int te_link_receive(te_link *link, struct iovec *parts, size_t count, size_t *received);
void te_write_job_free(te_link *link, te_write_job *job);
bool te_write_job_uses_removed(const te_write_job *job);

/* ---- asking side (connection.c, channel.c) --------------------------------------------------- */

/* A copy by the peer that takes too long to be spun through (expected_copy.c). */
typedef struct te_expected_copy {
    uint64_t bytes;
    int64_t begun_ns;   /* 0: none is under way */
    int64_t rest_ns;    /* so long after it nothing is expected yet */
    int64_t ns_per_mib; /* about the fastest of the last ones; 0: none was yet */
} te_expected_copy;

struct te_connection {
    te_channel *channel; /* NULL: of te_dial */
    te_engine *engine;
    struct te_connection *next; /* idle list */
    struct te_connection *all_next, *all_previous;
    int descriptor;
    bool is_unix;
    atomic_bool is_broken; /* an exchange failed half way: never used again */
    bool is_handed_over;   /* who checked it out will not check it in */
    bool is_parked;        /* of an RDMA endpoint: counts neither as in use nor towards the limit */
    uint32_t rail;         /* index of its address */
    uint32_t hello_generation;
    uint32_t epoch;
    uint64_t request; /* the last number given out */
    int64_t used_ns;  /* when it was checked in */
    int64_t taken_ns; /* when it was checked out */
    te_spin spin;
    int64_t spin_extra_ns; /* what the peer needs for the bytes of the request under way */
    te_expected_copy copy;
    char error[TE_ERROR_BYTES];
    struct te_scope *scope; /* scope.c */
    struct te_connection *scope_next;
    int passed
        [2]; /* descriptors that came with the last answer (ATTACH); the receiver takes or closes them */
    size_t passed_count;
};

/* Until then no answer is expected (expected_copy.c), or the deadline. */
int64_t te_expected_ns(const te_connection *connection, int64_t deadline_ns);

/* Sends `hello` on a connected socket and waits for the answer, whose body goes to *answer
 * (malloc'ed). */
ms_status te_connection_hello(te_connection *connection, const void *hello, size_t hello_length,
                              uint8_t **answer, size_t *answer_length, int64_t deadline_ns);
/* te_send with a descriptor passed along (SHARE). */
ms_status te_send_passing(te_connection *connection, uint8_t kind, uint16_t method, uint32_t flags,
                          uint64_t request, uint32_t deadline_ms, const struct iovec *body,
                          size_t body_count, int descriptor, int64_t deadline_ns);
/* Sends all of it.  The blocks are changed. */
ms_status te_connection_send(te_connection *connection, struct iovec *parts, size_t count,
                             int descriptor, int64_t deadline_ns);
/* At least one byte (spin: the short spin first); with `all`, everything.  The blocks are
 * changed. */
ms_status te_connection_receive(te_connection *connection, struct iovec *parts, size_t count,
                                bool all, bool spin, size_t *received, int64_t deadline_ns);
/* An answer's header and what has come of the rest: blocks as te_connection_receive, the header
 * being the first one; at least the header is complete afterwards.  The blocks are not changed; at
 * most TE_FRAME_IOVECS + 8. */
ms_status te_connection_first(te_connection *connection, const struct iovec *parts, size_t count,
                              bool spin, size_t *received, int64_t deadline_ns);
/* Is it an answer in our version, with lengths that can be? */
ms_status te_connection_check(te_connection *connection, const ms_header *header);
/* An answer with body, payload and trailer (together at most MS_BODY_BYTES_MAX) one after the
 * other in reply->body, which the caller frees; reply->body_size bytes. */
ms_status te_receive_whole(te_connection *connection, te_reply *reply, int64_t deadline_ns);
/* Keeps why, and marks the connection as broken.  Returns `status`. */
ms_status te_connection_fail(te_connection *connection, ms_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* A HELLO for engines that have nothing to say: role engine, this host, empty strings. */
#define TE_HELLO_DEFAULT_BYTES (sizeof(ms_hello) + 24)
void te_hello_default(const te_engine *engine, uint8_t hello[TE_HELLO_DEFAULT_BYTES]);

/* Around a call that touches the channel after it has checked a connection in: te_channel_close
 * waits for it. CLOSED: it is closing; then there is nothing to leave. */
ms_status te_channel_enter(te_channel *channel);
/* A connection that was checked out stays open for an RDMA endpoint, beyond the channel's books; taken back to be
 * checked in.  te_channel_close does not wait for it, but closes the endpoints first. */
void te_connection_park(te_connection *connection);
void te_connection_unpark(te_connection *connection);
/* It was opened with the HELLO that counts now, to the place that is meant now. */
bool te_connection_is_current(te_connection *connection);
/* It has not answered in time, and may be on a rail that is lost: idle connections over the same address are closed, and
 * others are tried first for a while. */
void te_connection_doubt(te_connection *connection);
/* Nothing has come on it, not its end either. */
bool te_connection_is_silent(const te_connection *connection);
/* The RDMA endpoints of a channel, for READs and for WRITEs: rdma_pool.c. */
struct te_rdma_pool **te_channel_pools(te_channel *channel);
void te_channel_leave(te_channel *channel);
te_engine *te_channel_engine(const te_channel *channel);
/* Keeps the sentence of a failed exchange for te_channel_error. */
void te_channel_set_error(te_channel *channel, const char *error);
/* shm.c hangs its mappings and shares of that peer here; freed by te_channel_close through
 * `free_attachments`. */
void te_channel_set_attachments(te_channel *channel, void *attachments,
                                void (*free_attachments)(void *attachments));
void *te_channel_attachments(te_channel *channel);
/* Grows when what was SHAREd over this channel may have been forgotten by the peer: its last Unix
 * connection closed, or another process answers. */
uint64_t te_channel_shares_epoch(te_channel *channel);

#endif
