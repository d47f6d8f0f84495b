/* What the files of te_read and te_write offer each other.
 *
 *   transfer.c        who carries parts: the caller, and workers over connections of their own
 *   transfer_part.c   cutting parts from the list of items
 *   transfer_read.c   a part of READs, there and back
 *   transfer_write.c  a part of WRITEs, there and back
 *   transfer_seal.c   seals that go by themselves
 *   transfer_rest.c   what other transports have left
 */
#ifndef TE_TRANSFER_H
#define TE_TRANSFER_H

#include "te_channel_rails.h"

#define TE_PARTS_RETURNED_MAX 8
#define TE_NO_ITEM SIZE_MAX
#define TE_SPIN_BYTES (1u << 20) /* the first bytes of a larger answer take longer than the spin */

typedef struct te_part {
    size_t first, count; /* items */
    uint64_t head;       /* bytes of the first item that belong to an earlier part */
    uint64_t tail;       /* bytes of the last item up to where this part ends */
    uint64_t bytes;
    size_t seal_offset, seal_bytes;
    size_t
        unsealed; /* item whose seal goes by itself: an earlier part has bytes of its object, too */
    bool is_repeated;          /* an earlier attempt may have been carried out, too */
    uint32_t hello_generation; /* of a WRITE: of the connection over which it was sent first */
    int64_t
        deadline_ns; /* of this attempt: the transfer's, or earlier where another rail may be tried */
} te_part;

typedef struct te_moving {
    te_channel *channel;
    te_engine *engine;
    te_scope *scope; /* of the caller: it may be cancelled */
    int64_t deadline_ns;
    size_t count;
    const ms_read_item *reads; /* NULL: a write */
    void *const *targets;
    ms_read_result *results;
    const ms_write_item *writes;
    const void *const *sources;
    const uint8_t *seals;
    uint32_t *statuses;
    uint32_t flags;
    bool is_repeated;          /* all of it: see te_part */
    uint32_t hello_generation; /* of the WRITE's first connection: no part's is older */
    bool *is_unsealed; /* per item, of a write that may be striped: its seal goes by itself */
    bool is_striped;
    uint64_t part_bytes;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t next_item;
    uint64_t next_offset;
    size_t next_seal;
    te_part returned[TE_PARTS_RETURNED_MAX]; /* parts of workers whose connection broke */
    uint32_t returned_count;
    uint32_t active;  /* workers at work */
    bool is_over;     /* the caller has gone */
    ms_status status; /* the first failure */
    uint32_t references;
} te_moving;

static inline uint64_t te_item_length(const te_moving *moved, size_t i) {
    return moved->reads != NULL ? moved->reads[i].length : moved->writes[i].length;
}

/* Bytes that travel in the frame. */
static inline uint64_t te_item_payload(const te_moving *moved, size_t i) {
    return moved->reads == NULL && moved->writes[i].source != 0 ? 0 : te_item_length(moved, i);
}

/* ---- transfer_part.c ---- */
/* The next part; false: none is left.  Takes the lock. */
bool te_part_take(te_moving *moved, te_part *taken);
uint64_t te_part_range(const te_moving *moved, const te_part *taken, size_t i, uint64_t *start);
bool te_part_is_cut(const te_moving *moved, const te_part *taken, size_t i);

/* ---- transfer_read.c, transfer_write.c: one frame and its answer ---- */
ms_status te_part_read(te_moving *moved, const te_part *taken, te_connection *connection);
/* A part that is repeated goes over a connection of the session in which it was sent first, or is UNAVAILABLE. */
ms_status te_part_write(te_moving *moved, te_part *taken, te_connection *connection);
uint64_t te_part_shared_bytes(const te_moving *moved, const te_part *taken);

/* ---- transfer.c ---- */
/* The whole of it, from a transfer of the caller that has no lock yet. */
ms_status te_transfer_run(te_moving *wanted);

/* ---- transfer_rest.c: what is still PENDING, of WRITEs also seals of what is not ---- */
ms_status te_transfer_read_rest(te_moving *wanted);
ms_status te_transfer_write_rest(te_moving *wanted);

/* ---- transfer_seal.c ---- */
/* Bytes and seals, with room to note which seals went with no part. */
ms_status te_transfer_write_all(te_moving *wanted);
/* Seals that were answered BUSY, again, for a moment; afterwards none is BUSY. */
void te_transfer_seal_busy(const te_moving *written);

#endif
