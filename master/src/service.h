/* What the files of the master service share.
 *
 *   master_service.c  open, listen, close; what the engine calls; which method is whose
 *   calls.c      the methods that answer at once: look-ups, listings, pins, sessions
 *   puts.c       the numbered batches: put_start, put_end, revoke, remove; annotate, change_replica
 *   pending.c    batches whose items the core finishes later
 *   dedupe.c     answers kept for repeats of numbered requests
 *   relay.c      put_end in a client's name, from a store server
 *   tasks.c      tasks: begun, listed, cancelled; drains that the coordinator is to keep
 *   members.c    store servers: join, adopt, inventory, free, heartbeat
 *   numbers.c    by which locations name store servers, under all leaders
 *   forget.c     store servers that are gone for good
 *   warming.c    what needs the index waits until the inventories are there
 *   sessions.c   sessions and the connections that belong to them
 *   matching.c   prefixes and regular expressions
 *   outbox.c     frames to be sent once the lock is free; the core's effects become frames here
 *   metrics.c    the list of metrics, and what is counted beside the core
 *   journal.c    log lines and tombstones that wait for Python
 *
 * Threads.  One I/O thread (there is exactly one, see ma_master_open) changes things; it takes `lock`
 * around that, because other threads read metrics and members under the same lock.  Frames are
 * sent by the I/O thread after it has let go of the lock, so their order for one peer is the order of
 * the core's effects.  `journal.lock` is taken inside `lock` and alone, never the other way round.
 */
#ifndef MA_SERVICE_H
#define MA_SERVICE_H

#include <pthread.h>
#include <stdarg.h>

#include "ma.h"
#include "md.h"
#include "ms_frame.h"
#include "ms_hash.h"
#include "te.h"

#define MA_SENTENCE_BYTES 512
#define MA_OPS 26
#define MA_OP_BUCKETS 20
#define MA_ASKERS_MAX 4u          /* of one parked batch: the first and its repeats */
#define MA_BATCHES_MAX (1u << 18) /* parked at a time */
#define MA_LIST_LIMIT_MAX 10000u
#define MA_SERVER_COUNTERS_MAX 64u
#define MA_ITEMS_PARKED_MAX (4u << 20)         /* of all of them together */
#define MA_ANSWER_BYTES_KEPT_MAX (32u << 20)   /* answers kept for repeats, a session */
#define MA_ANSWER_BYTES_TOTAL_MAX (256u << 20) /* of all sessions together */

typedef struct ma_connection ma_connection;
typedef struct ma_session ma_session;
typedef struct ma_batch ma_batch;
typedef struct ma_member ma_member;
typedef struct ma_message ma_message;
typedef struct ma_held ma_held;

/* A connection of a client or tool (with a session) or of a store server (with a member). */
struct ma_connection {
    te_peer peer;
    uint8_t role;        /* ms_role */
    uint8_t right;       /* ms_right, 0 = both */
    ma_session *session; /* NULL: it has ended, and the next frame is told so */
    ma_connection *session_next, *session_previous;
    uint32_t server; /* a store server's number */
    char name[64];
};

/* ---- dedupe ----------------------------------------------------------------------------------- */
typedef struct ma_kept {
    uint64_t number;
    uint64_t
        parked; /* ma_batch_name of the batch that will give the answer; 0: the answer is here */
    uint8_t *answer; /* NULL: in `small` */
    uint32_t answer_length;
    uint16_t method;
    uint8_t small[16]; /* the list of two statuses */
} ma_kept;

typedef struct ma_dedupe {
    ma_kept *kept; /* in order of arrival, which is nearly that of numbers */
    uint32_t count, capacity;
    uint64_t done;    /* all numbers up to this were answered and are forgotten */
    uint64_t highest; /* above this no number was seen */
    uint64_t bytes;
    uint64_t *bytes_total; /* of all sessions */
} ma_dedupe;

/* ---- sessions --------------------------------------------------------------------------------- */
struct ma_session {
    uint64_t id;
    uint32_t tenant;
    uint8_t tenant_length;
    char tenant_name[MS_TENANT_BYTES_MAX];
    int64_t kept_ms; /* when the core was last told that it is alive */
    ma_connection *connections;
    ma_dedupe dedupe;
    uint64_t pins_number; /* of its last PINS: what is numbered up to this comes too late */
    ma_session *next;     /* in its bucket */
};

/* Names of the last sessions, for those who ask what one has done when it has ended. */
#define MA_SESSION_NAMES 4096u
typedef struct ma_session_name {
    uint64_t id;
    char name[56]; /* what does not fit is cut off */
} ma_session_name;

/* ---- pending batches -------------------------------------------------------------------------- */
typedef enum {
    MA_FORM_GRANTS,   /* list of ms_location */
    MA_FORM_STATUSES, /* list of u32 */
    MA_FORM_STATUS,   /* the frame's status, no body */
    MA_FORM_LOCATION, /* ms_location of `items[0].hash` */
    MA_FORM_TASK,     /* the task `items[0].version`, as in the answer to TASKS */
    MA_FORM_REMOVED   /* ms_list_answer: how many items are OK */
} ma_form;

typedef struct ma_item {
    ms_hash hash;
    uint64_t version; /* of the grant */
    ms_status status; /* MS_PENDING: the core still works on it */
} ma_item;

typedef struct ma_asker {
    te_peer peer;
    ms_header header; /* what the answer repeats */
} ma_asker;

struct ma_batch {
    uint64_t name; /* slot and generation: what waiters are made of */
    ma_form form;
    uint16_t method;
    uint32_t count, open_count; /* items; items that are PENDING */
    uint32_t asker_count;
    ma_asker askers[MA_ASKERS_MAX];
    uint64_t session, number;
    uint64_t cursor;
    int64_t started_ns;
    int64_t deadline_ms; /* monotonic; INT64_MAX = none */
    ma_item *items;
    uint32_t items_capacity;
    bool is_parked;
    ma_batch *next, *previous; /* parked ones, oldest first */
};

/* ---- members ---------------------------------------------------------------------------------- */
typedef enum {
    MA_FORGET_NOT,
    MA_FORGET_ASKED, /* the coordinator is being told; until it answers, the node cannot join */
    MA_FORGET_TOLD,
    MA_FORGET_FAILED
} ma_forgetting;

struct ma_member {
    ms_server_info info; /* info.server is its number */
    ms_segment_info *segments;
    char *name, *host, *socket_path, *addresses;
    te_peer peer;      /* 0: not connected */
    bool is_adopt_due; /* ADOPT goes out with the next frame or tick, after HELLO's answer */
    bool is_adopted;   /* its inventory is complete */
    bool is_kept;      /* by the coordinator, number and membership: before, it is not adopted */
    int64_t heard_ms;
    int64_t gone_ms;
    uint32_t known_state; /* as MEMBERS last said */
    ma_forgetting forgetting;
    uint64_t forget_struck; /* what it brings back up to this version will not count */
    ma_asker forget_askers[MA_ASKERS_MAX];
    uint32_t forget_asker_count;
    ms_counter counters[MA_SERVER_COUNTERS_MAX];
    uint32_t counter_count;
    ms_free_item *frees; /* gathered since the last flush */
    uint32_t free_count, free_capacity;
};

/* ---- outbox ----------------------------------------------------------------------------------- */
struct ma_message {
    ma_message *next;
    te_peer peer;
    ms_header header; /* answer: the request's.  push: kind, method, flags, request */
    bool is_push;
    ms_status status;
    size_t length;
    uint8_t body[];
};

/* ---- journal ---------------------------------------------------------------------------------- */
typedef enum {
    MA_LOG_START,
    MA_LOG_FRAME,
    MA_LOG_SERVER,
    MA_LOG_SESSION,
    MA_LOG_SPACE,
    MA_LOG_TOMBSTONE,
    MA_LOG_WARMING,
    MA_LOG_TASK,
    MA_LOG_KINDS
} ma_log_kind;

#define MA_LOG_LINES 512u
#define MA_LOG_LINES_PER_S 20u /* of one kind; the rest is counted and said later */
#define MA_TOMBSTONES_MAX 65536u
#define MA_DRAINS_MAX 64u

typedef struct ma_tombstone_result {
    ma_tombstone tombstone;
    ms_status status;
} ma_tombstone_result;

typedef struct ma_journal {
    pthread_mutex_t lock;
    int descriptor; /* eventfd */
    ma_log_line lines[MA_LOG_LINES];
    uint32_t first, count;
    struct {
        int64_t second;
        uint32_t count, suppressed;
    } rates[MA_LOG_KINDS];
    ma_tombstone *tombstones; /* rings of MA_TOMBSTONES_MAX, allocated when first needed */
    uint32_t tombstone_first, tombstone_count;
    ma_tombstone_result *results;
    uint32_t result_first, result_count;
    /* Drains on their way to the coordinator and back, in order: [0, drain_asked) are with Python. */
    struct {
        ma_draining drain;
        uint64_t waiter;
        ms_status status; /* PENDING: not answered yet */
    } drains[MA_DRAINS_MAX];
    uint32_t drain_count, drain_asked;
} ma_journal;

/* ---- warming ---------------------------------------------------------------------------------- */
struct ma_held {
    ma_held *next;
    te_peer peer;
    ma_connection *connection;
    ms_header header;
    int64_t started_ns;
    uint64_t body[]; /* aligned, as frames are */
};

/* ---- the master ------------------------------------------------------------------------------- */
typedef struct ma_op_stat {
    uint64_t count, failed, sum_ns, buckets[MA_OP_BUCKETS];
} ma_op_stat;

/* Counted here, not in the core.  Order and names: metrics.c. */
typedef struct ma_counts {
    uint64_t frames, frames_bad, hellos_refused, requests_refused, requests_repeated;
    uint64_t answers_relayed, frees_sent, notes_sent, copies_sent, tombstones_written;
    uint64_t sessions_opened, connections_opened;
    uint64_t connections, sessions, servers, batches_parked; /* gauges */
} ma_counts;

struct ma_master {
    te_engine *engine;
    pthread_mutex_t lock;
    md_core *core;
    md_now now;             /* of the frame or tick being handled */
    int64_t wall_offset_ms; /* wall clock - monotonic, read each second */
    ma_config config;
    char name[64];
    uint8_t boot_id[16];
    uint32_t members_serial;

    ma_session **session_buckets; /* chained, as many as a power of two >= sessions */
    uint32_t session_bucket_count;
    ma_session_name session_names[MA_SESSION_NAMES]; /* by number; ids are given in order */

    ma_member **members; /* by server number; NULL: none */
    uint32_t member_capacity;

    ma_batch **batches; /* by slot */
    uint32_t batch_capacity, batch_free_count;
    uint32_t *batch_free; /* slots */
    ma_batch *parked_first, *parked_last;
    uint64_t items_parked;
    uint64_t answer_bytes_kept; /* of all sessions */

    bool is_warm;           /* requests that need the index are answered */
    bool has_adopted;       /* some store server's inventory is here */
    int64_t warm_begin_ms;  /* since when is waited */
    uint32_t warm_expected; /* members that the coordinator knows */
    ma_held *held_first, **held_last;
    size_t held_bytes;
    uint32_t held_count;
    uint64_t stones_seen,
        stones_settled; /* tombstones: known to the coordinator; no longer needed there */

    ma_message *outbox_first, **outbox_last;
    te_peer doomed[16]; /* to be closed once the lock is free, see ma_doom */
    uint32_t doomed_count;
    ms_writer answer;  /* of the call being handled */
    ms_writer scratch; /* of whoever needs one within a function */

    _Atomic int64_t lease_deadline_ns; /* CLOCK_BOOTTIME; 0: none */
    int64_t ticked_ms, clock_read_ms;
    uint64_t hosts_shared;     /* as last logged ... */
    int64_t hosts_told_ms;     /* ... then */
    _Atomic int64_t turned_ms; /* read without the lock: it must tell when the lock is stuck */
    ma_counts counts;
    ma_op_stat ops[MA_OPS];
    ma_journal journal;
};

/* ---- a call in progress ------------------------------------------------------------------------- */
typedef struct ma_call {
    ma_master *master;
    const te_request *request;
    ma_connection *connection;
    ma_session *session; /* of clients and tools; alive */
    int64_t started_ns;
    ms_status status; /* of the answer; its body is in master->answer */
    bool is_answered_later;
    bool is_bad;     /* the frame makes no sense: answer, then close the connection */
    bool is_payload; /* master->answer is the frame's payload, not its body */
} ma_call;

/* The answer is a status and a sentence; returns the status. */
ms_status ma_fail(ma_call *call, ms_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* BAD_FRAME: the connection is closed after the answer. */
void ma_fail_bad_frame(ma_call *call);
/* The answer is in master->answer, if it found room. */
void ma_done(ma_call *call);

/* ---- warming.c ---------------------------------------------------------------------------------- */
/* Whether the index is complete, as far as it will be: until then what needs it waits. */
bool ma_is_warm(ma_master *master);
/* Keeps a frame until then.  False: there is no room, and the call is settled with UNAVAILABLE. */
bool ma_hold_frame(ma_call *call);
/* The first store server of a leader that expected none has joined: its inventory is waited for. */
void ma_warm_for_first(ma_master *master);
/* Under the lock, each tick and after each inventory. */
void ma_warm_check(ma_master *master);
/* A held frame that may go now, or NULL; the caller frees it. */
ma_held *ma_held_next(ma_master *master);
void ma_held_forget(ma_master *master, te_peer peer);
void ma_held_close(ma_master *master);

/* ---- calls.c ------------------------------------------------------------------------------------ */
void ma_call_exists(ma_call *call);
void ma_call_lookup(ma_call *call);
void ma_call_match_prefix(ma_call *call);
void ma_call_touch(ma_call *call);
void ma_call_pin(ma_call *call);
void ma_call_unpin(ma_call *call);
void ma_call_pins(ma_call *call);
void ma_call_list(ma_call *call);
void ma_call_stat(ma_call *call);
void ma_call_explain(ma_call *call);
void ma_call_members(ma_call *call);
void ma_call_status(ma_call *call);
void ma_call_events(ma_call *call);
void ma_call_keepalive(ma_call *call);
void ma_call_close_session(ma_call *call);

/* ---- tasks.c ------------------------------------------------------------------------------------ */
void ma_call_start_task(ma_call *call);
void ma_call_tasks(ma_call *call);
void ma_call_cancel_task(ma_call *call);
/* Replicas that went to a host which has one already, for want of hosts: logged, now and then. */
void ma_tell_shared_hosts(ma_master *master);
/* What the coordinator said of drains. */
void ma_drains_take(ma_master *master);

/* ---- puts.c ------------------------------------------------------------------------------------- */
void ma_call_put_start(ma_call *call);
void ma_call_put_end(ma_call *call);
void ma_call_revoke(ma_call *call);
void ma_call_remove(ma_call *call);
void ma_call_remove_matching(ma_call *call);
void ma_call_annotate(ma_call *call);
void ma_call_change_replica(ma_call *call);
/* Whether a sentence about space comes with this. */
static inline bool ma_is_refused_for_space(ms_status status) {
    return status == MS_NO_SPACE || status == MS_TOO_LARGE || status == MS_UNAVAILABLE;
}
/* Why there is no room, a sentence. */
void ma_describe_space(ma_master *master, char *sentence, size_t size);

/* ---- pending.c ---------------------------------------------------------------------------------- */
/* A batch of `count` items, none done; NULL: no memory, or too much is parked already. */
ma_batch *ma_batch_begin(ma_master *master, ma_form form, uint16_t method, uint32_t count);
static inline uint64_t ma_batch_waiter(const ma_batch *batch, uint32_t index) {
    return batch->name | index;
}
/* Item `index` has this status now; PENDING: the core will say later. */
void ma_batch_set(ma_batch *batch, uint32_t index, ms_status status);
/* The call's batch is filled: answer it now (grants: those written to master->answer count) or park it. */
void ma_batch_settle(ma_call *call, ma_batch *batch);
/* The same for a batch without a call: its askers are answered through the outbox. */
void ma_batch_settle_alone(ma_master *master, ma_batch *batch);
/* An ANSWER effect. */
void ma_batch_item_done(ma_master *master, uint64_t waiter, ms_status status, uint64_t version);
/* Another connection asks for the same answer. */
ms_status ma_batch_join(ma_master *master, uint64_t name, te_peer peer, const ms_header *header);
/* Nobody waits at that connection any more. */
void ma_batches_forget_peer(ma_master *master, te_peer peer);
/* Deadlines of askers. */
void ma_batches_tick(ma_master *master);
void ma_batches_close(ma_master *master);

/* ---- dedupe.c ----------------------------------------------------------------------------------- */
typedef enum {
    MA_NUMBER_NEW,      /* execute it */
    MA_NUMBER_PARKED,   /* a batch works on it: *parked is its name */
    MA_NUMBER_ANSWERED, /* *kept has the answer */
    MA_NUMBER_OLD,      /* answered and forgotten */
    MA_NUMBER_OTHER     /* it named another method's request */
} ma_number_state;

ma_number_state ma_dedupe_find(ma_dedupe *dedupe, uint64_t number, uint16_t method,
                               const ma_kept **kept);
/* All numbers up to this may be forgotten. */
void ma_dedupe_forget(ma_dedupe *dedupe, uint64_t done);
/* Room for one more: LIMIT, NO_MEMORY. */
ms_status ma_dedupe_reserve(ma_dedupe *dedupe, uint32_t kept_max);
/* After ma_dedupe_reserve. */
void ma_dedupe_park(ma_dedupe *dedupe, uint64_t number, uint16_t method, uint64_t parked);
/* NO_MEMORY: a repeat will be refused instead of executed again. */
ms_status ma_dedupe_answer(ma_dedupe *dedupe, uint64_t number, uint16_t method, const void *answer,
                           size_t length);
static inline const uint8_t *ma_kept_answer(const ma_kept *kept) {
    return kept->answer != NULL ? kept->answer : kept->small;
}
void ma_dedupe_close(ma_dedupe *dedupe);
/* The head of a numbered request: false when the call is settled already (a repeat, or refused). */
bool ma_number_begin(ma_call *call, const ms_batch *head);

/* ---- sessions.c --------------------------------------------------------------------------------- */
/* Of one of the last MA_SESSION_NAMES sessions, also of one that has ended; else "". */
const char *ma_session_name_of(const ma_master *master, uint64_t id);
ms_status ma_session_begin(ma_master *master, ma_connection *connection, const ms_hello_view *hello,
                           char *error);
ma_session *ma_session_find(ma_master *master, uint64_t id);
/* It lives: tells the core, at most every 1/16 of the timeout.  SESSION_LOST: it has ended. */
ms_status ma_session_keep(ma_master *master, ma_session *session);
void ma_session_detach(ma_connection *connection);
/* The core has ended it. */
void ma_session_end(ma_master *master, uint64_t id);
void ma_sessions_close(ma_master *master);

/* ---- members.c ---------------------------------------------------------------------------------- */
ms_status ma_member_join(ma_master *master, ma_connection *connection, const ms_hello_view *hello,
                         char *error);
void ma_member_frame(ma_call *call);
void ma_member_answer(ma_master *master, ma_connection *connection, const te_request *answer);
void ma_member_closed(ma_master *master, ma_connection *connection, const char *reason);
void ma_members_tick(ma_master *master);
void ma_members_write(ma_master *master, ms_writer *out);
ma_member *ma_member_get(ma_master *master, uint32_t server);
void ma_members_close(ma_master *master);

/* A member of whom nothing is known yet but its number and name; NULL: no memory. */
ma_member *ma_member_place(ma_master *master, const uint8_t node_id[16], uint32_t server,
                           const char *name);

/* ---- forget.c ----------------------------------------------------------------------------------- */
void ma_call_forget(ma_call *call);
/* Each tick: who is gone for too long, and what the coordinator has answered. */
void ma_forget_tick(ma_master *master, ma_member *member);

/* ---- relay.c ------------------------------------------------------------------------------------ */
void ma_relayed_end(ma_call *call);

/* ---- matching.c --------------------------------------------------------------------------------- */
typedef struct ma_matcher ma_matcher;
ms_status ma_matcher_open(const ms_text *pattern, bool is_regex, ma_matcher **matcher,
                          char error[MA_SENTENCE_BYTES]);
void ma_matcher_close(ma_matcher *matcher);
bool ma_matcher_matches(void *matcher, const uint8_t *key, size_t length);
/* Records that one step may visit, so that nobody else waits long. */
uint32_t ma_matcher_visits_max(const ma_matcher *matcher);

/* ---- lease.c ------------------------------------------------------------------------------------ */
/* Whether the lease still runs *(leader_clock)*: asked just before an answer to a client is sent. */
bool ma_may_answer(ma_master *master);
/* Instead of the answer: whether something had an effect is not said, the connection just ends. */
void ma_withhold_answer(ma_master *master, te_peer peer);

/* ---- outbox.c ----------------------------------------------------------------------------------- */
/* Under the lock: queue. */
void ma_send_answer(ma_master *master, const ma_asker *asker, ms_status status, const void *body,
                    size_t length);
void ma_send_push(ma_master *master, te_peer peer, uint8_t kind, uint16_t method, uint32_t flags,
                  uint64_t request, const void *body, size_t length);
/* Under the lock: the core's effects become messages. */
void ma_drain(ma_master *master);
/* What te_answer or te_push said: whoever waits for a frame that is lost finds its connection closed. */
void ma_sent(ma_master *master, te_peer peer, ms_status status);
/* Without the lock, on the I/O thread: send what is queued. */
void ma_flush(ma_master *master);
/* Under the lock: ma_flush closes this connection.  (The engine may call on_close at once, which takes
 * the lock.) */
void ma_doom(ma_master *master, te_peer peer);
void ma_outbox_close(ma_master *master);

/* ---- metrics.c ---------------------------------------------------------------------------------- */
int ma_op_index(uint16_t method); /* -1: not one that is timed */
void ma_op_count(ma_master *master, uint16_t method, int64_t started_ns, ms_status status);
void ma_status_write(ma_master *master, ms_writer *out);

/* ---- journal.c ---------------------------------------------------------------------------------- */
enum { MA_DEBUG = 10, MA_INFO = 20, MA_WARNING = 30, MA_ERROR = 40 };
ms_status ma_journal_open(ma_journal *journal);
/* There is something for Python to do. */
void ma_journal_wake(ma_master *master);
void ma_journal_close(ma_journal *journal);
void ma_log(ma_master *master, ma_log_kind kind, int level, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* Text from the network, made fit for a quoted field: what is no plain ASCII becomes '_'. */
const char *ma_printable(const void *text, size_t length, char *room, size_t size);
ms_status ma_tombstone_queue(ma_master *master, ms_hash hash, uint64_t version);
/* Results that Python has handed back go to the core.  Under the lock. */
void ma_tombstones_take(ma_master *master);
/* False: too many wait. */
bool ma_drain_queue(ma_master *master, const ma_draining *drain, uint64_t waiter);
bool ma_drain_result(ma_master *master, ma_draining *drain, uint64_t *waiter, ms_status *status);
/* Under the lock, each tick of the core: whether the coordinator may forget what it holds. */
void ma_tombstones_settle(ma_master *master);

static inline uint32_t ma_min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

#endif
