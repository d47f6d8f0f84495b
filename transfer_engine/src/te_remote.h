/* Segments of other engines, by peer address: what te_open_segment opens and batches move bytes to and from. */
#ifndef TE_REMOTE_H
#define TE_REMOTE_H

#include "te_parts.h"

typedef struct te_remote te_remote;
typedef struct te_remotes te_remotes;

ms_status te_remotes_open(te_engine *engine, te_remotes **remotes);
void te_remotes_close(te_remotes *remotes);

/* The remote of a handle, held until te_remote_put; NULL: no such handle. */
te_remote *te_remote_get(te_remotes *remotes, uint32_t handle);
void te_remote_put(te_remotes *remotes, te_remote *remote);

/* One piece of a unit of work: all of one opcode and one remote. */
typedef struct te_piece {
    void *local;
    te_region *region; /* of `local`, held by the caller */
    uint64_t remote_address;
    uint64_t length;
    ms_status status; /* PENDING on entry: to be moved; set when it has ended */
} te_piece;

/* Moves the pending pieces, over any path that is left, until the deadline or until `scope` is cancelled.  On return
 * every piece has a status and no attempt can touch local memory. */
void te_remote_move(te_remote *remote, te_opcode opcode, te_piece *pieces, size_t count,
                    const te_transfer_options *options, te_scope *scope, int64_t deadline_ns);

#endif
