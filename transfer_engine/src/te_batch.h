/* What the files of batches offer each other: see batch.c. */
#ifndef TE_BATCH_H
#define TE_BATCH_H

#include "te_session.h"

#define BATCHES_MAX 4096u
#define SLOT_BITS 12
#define BATCH_REQUESTS_MAX ((size_t)1 << 20)
#define UNIT_REQUESTS_MAX 1024u
#define UNIT_BYTES_MAX ((uint64_t)64 << 20)

typedef struct entry {
    te_transfer_request request;
    te_region *region; /* held while it has not ended */
    te_transfer_state state;
    ms_status status;
    uint32_t next;                /* in its unit; NONE: the last */
    uint32_t index;               /* in `carried` */
    struct carried_unit *carried; /* it goes, or went, over rails; NULL: it does not */
    int64_t submitted_ns, begun_ns, ended_ns;
} entry;

#define NONE UINT32_MAX

typedef struct te_batch te_batch;

typedef struct unit {
    struct unit *next;
    te_remote *remote; /* held */
    te_opcode opcode;
    uint32_t segment;
    uint32_t first, last, count; /* entries */
    uint64_t bytes;
    int64_t deadline_ns;
    te_transfer_options options;
    struct carried_unit *carried; /* prepared for rails, not begun; its own */
} unit;

/* A unit on its way over rails; kept until the batch is freed, for whoever asks how it went. */
typedef struct carried_unit {
    te_carry carry;
    te_batch *batch;
    unit *work;                        /* until it has ended */
    te_session *session;               /* held */
    struct carried_unit *next;         /* all of the batch */
    struct carried_unit *running_next; /* those that have not ended */
    te_carried items[];
} carried_unit;

struct te_batch {
    te_engine *engine;
    uint64_t id;
    uint32_t holders; /* under batches->lock: the table, calls, workers */
    pthread_mutex_t lock;
    pthread_cond_t ended_some;
    te_scope scope;
    unit *first, *last; /* not begun */
    uint32_t running;   /* units */
    size_t size, submitted, ended;
    bool is_cancelled;
    _Atomic int
        event; /* -1: nobody asked for it; closed with the batch, so that whoever holds it may write to it */
    carried_unit *carried, *carrying;
    entry entries[];
};

struct te_batches {
    te_engine *engine;
    pthread_mutex_t lock;
    pthread_cond_t changed; /* a batch has gone */
    te_batch *slots[BATCHES_MAX];
    uint64_t generations[BATCHES_MAX];
    uint32_t count; /* of batches not yet freed, in the table or not */
    bool is_stopping;
};

/* ---- batch.c ---- */
void te_batch_free(te_batch *batch);
te_batch *te_batch_get(te_batches *batches, uint64_t id);
void te_batch_put(te_batches *batches, te_batch *batch);
ms_status te_batch_make(te_engine *engine, size_t size, te_batch **made);
ms_status te_batch_add(te_batches *batches, te_batch *batch);

/* ---- batch_unit.c ---- */
void te_batch_end_entry(te_batch *batch, entry *ended, ms_status status, int64_t now_ns);
/* Some have ended.  Whoever calls it holds the batch, but not its lock. */
void te_batch_tell(te_batch *batch);
void te_batch_end_unit(te_batch *batch, unit *work, ms_status status);
void te_unit_free(te_batch *batch, unit *work);
void te_batch_carry(te_batch *batch, unit *work);
void te_batch_carry_here(te_batch *batch, int64_t deadline_ns);
void te_batch_carry_all(void *argument);

/* ---- batch_rails.c ---- */
/* What it takes to carry a unit over rails; NULL: a thread must carry it.  Under no lock. */
carried_unit *te_batch_prepare_rails(te_batch *batch, unit *work);
/* Under the batch's lock, so that whoever cancels finds it among those that are carried, and begun; a reference to the
 * batch goes with it.  False: a thread must carry it.  *is_asleep: the carrier is to be roused, without the lock. */
bool te_batch_begin_over_rails(te_batch *batch, unit *work, bool *is_asleep);

/* ---- batch_submit.c ---- */
void te_batch_wait_for_end(te_batch *batch, int64_t deadline_ns);
te_transfer_status te_batch_status_of(const entry *asked);

#endif
