/* Shared memory, the copy helper, registered memory and batches: what hangs in te_engine's `shm`, `registry` and
 * `batches`, and what these files offer each other.
 *
 *   shared_memory.c  memory of this process that peers may copy from (sealed memfds)
 *   loan.c           accepting side: memory that peers SHAREd with us; ATTACH
 *   shm.c            asking side: te_attach, te_share
 *   copy_helper.c    te_copy
 *   memory.c         registered local memory, OPEN_SEGMENT
 *   notify.c         NOTIFY
 *   session.c, remote.c, move.c, staging.c   other engines' segments, and moving bytes to and from them
 *   carrier.c, path.c, lane_tcp.c   the same over several rails at once
 *   topology_told.c  TOPOLOGY: interfaces, told again when they change
 *   cut.c            CUT: an end of a connection that the peer confirms
 *   batch.c          the paper's batch interface
 */
#ifndef TE_PARTS_H
#define TE_PARTS_H

#include "ms_frame.h"
#include "te_internal.h"
#include "te_rails.h"

/* Segment numbers with this bit are registered regions (memory.c); those without are the service's. */
#define TE_REGION_BIT 0x80000000u

/* ---- engine.c and channel.c call these -------------------------------------------------------------------- */
/* te_parts_open: last in te_engine_open, before a thread runs: sets engine->shm, registry, batches, methods, source_*
 * and link_*.  te_parts_stop: first in te_engine_close: cancels batches and waits until none runs.
 * te_parts_close: when I/O threads and workers have been joined.  Both may be called after a te_parts_open that
 * failed or never ran. */
ms_status te_parts_open(te_engine *engine);
void te_parts_stop(te_engine *engine);
void te_parts_close(te_engine *engine);

/* ---- copy_helper.c ------------------------------------------------------------------------------------------ */
typedef struct te_copier te_copier;
ms_status te_copier_open(size_t stream_bytes, size_t helper_bytes, te_copier **copier);
void te_copier_close(te_copier *copier);
void te_copier_copy(te_copier *copier, void *target, const void *source, size_t length);

/* ---- shared_memory.c ------------------------------------------------------------------------------------------ */
typedef struct te_shared te_shared;
ms_status te_shared_open(te_shared **shared);
void te_shared_close(te_shared *shared);
/* The allocation around a range; its number is never used twice.  False: none holds the whole range. */
typedef struct te_shared_range {
    uint8_t *base;
    size_t length;
    uint64_t number;
} te_shared_range;
bool te_shared_find(te_shared *shared, const void *address, size_t length, te_shared_range *range);
/* A duplicate of the allocation's descriptor, to be closed; -1: freed meanwhile, or no descriptor left. */
int te_shared_descriptor(te_shared *shared, uint64_t number);
bool te_shared_exists(te_shared *shared, uint64_t number);

/* ---- loan.c ------------------------------------------------------------------------------------------------------ */
typedef struct te_loans te_loans;
typedef struct te_lender
    te_lender; /* a process on this host that is connected over the Unix socket */
ms_status te_loans_open(te_loans **loans);
void te_loans_close(te_loans *loans);
/* A Unix connection of that process was accepted / closed.  Its loans end with its last connection.  pid 0 (another
 * pid namespace): told apart by `hidden`.  NULL: no memory. */
te_lender *te_lender_connect(te_loans *loans, uint32_t uid, uint32_t pid, uint64_t hidden);
void te_lender_disconnect(te_engine *engine, te_lender *lender);
/* The descriptor stays the caller's.  REFUSED: not a memfd sealed against shrinking, or shorter than length; LIMIT: too many or
 * too large. */
ms_status te_lender_share(te_engine *engine, te_lender *lender, int descriptor, uint64_t length,
                          uint32_t *id, char error[TE_ERROR_BYTES]);
ms_status te_lender_unshare(te_engine *engine, te_lender *lender, uint32_t id);
/* The bytes that a WRITE names (source: id + 1), readable until te_loan_end, also when they are UNSHAREd meanwhile.
 * NOT_REGISTERED, OUT_OF_RANGE. */
ms_status te_loan_begin(te_engine *engine, te_lender *lender, uint32_t source, uint64_t offset,
                        uint64_t length, const void **bytes);
void te_loan_end(te_engine *engine, te_lender *lender, uint32_t source);
/* Read-only descriptors of a segment (payload, then words when it has some), to be sent and closed. */
ms_status te_attach_answer(const te_segment_config *segment, ms_attached *answer,
                           int descriptors[2], size_t *descriptor_count);
void te_loans_install(te_engine *engine); /* methods and hooks */

/* ---- shm.c ------------------------------------------------------------------------------------------------------- */
/* Maps a descriptor's bytes read-only; BAD_FRAME when the file does not have them. */
ms_status te_map_read_only(int descriptor, uint64_t offset, uint64_t length, void **address);

/* ---- population.c ------------------------------------------------------------------------------------------------ */
/* Maps the pages of [0, length) of a tmpfs file that have memory, without making holes real: one step of at most
 * 8 MiB from *done on, which it moves; false when that was the last.  The file's byte `start` is at `address`. */
bool te_populate_step(const void *address, int descriptor, uint64_t start, uint64_t length,
                      uint64_t *done);

/* ---- memory.c ------------------------------------------------------------------------------------------ */
typedef struct te_registry te_registry;
typedef struct te_region te_region;
ms_status te_registry_open(te_registry **registry);
void te_registry_close(te_registry *registry);
void te_registry_install(te_engine *engine); /* OPEN_SEGMENT */
/* Random, not 0: tells this engine from the one that had its address before. */
uint32_t te_registry_incarnation(const te_registry *registry);
void te_registry_topology(te_registry *registry, te_topology *topology);
/* What OPEN_SEGMENT tells peers of this host. */
void te_registry_set_unix_path(te_registry *registry, const char *path);
/* The region around a range, which cannot be unregistered until te_region_release.  NOT_REGISTERED: no region has
 * the first byte; OUT_OF_RANGE: it ends before the last; REFUSED: read-only memory as target. */
ms_status te_region_hold(te_registry *registry, uint64_t address, uint64_t length, bool is_target,
                         te_region **region);
void te_region_release(te_region *region);
/* Whether it lies in registered memory that only NICs reach. */
bool te_memory_is_device(te_registry *registry, const void *address);
const char *te_region_location(const te_region *region);
int32_t te_region_numa_node(const te_region *region); /* -1: not known */
bool te_region_is_device(const te_region *region);
/* Its registration with the RDMA NICs, while it is held; NULL: none. */
struct te_rdma_range *te_region_rdma(const te_region *region);

/* ---- notify.c -------------------------------------------------------------------------------------------- */
typedef struct te_notes te_notes;
ms_status te_notes_open(te_notes **notes);
void te_notes_close(te_notes *notes);
void te_notes_install(te_engine *engine); /* NOTIFY */

/* ---- cut.c ----------------------------------------------------------------------------------------------- */
void te_topology_install(te_engine *engine);
/* Tells those who asked for it that the topology has changed. */
void te_topology_tell(te_engine *engine);
/* As a string, empty without one. */
void te_registry_write_topology(te_registry *registry, ms_writer *body);
bool te_registry_has_topology(te_registry *registry);
void te_cuts_install(te_engine *engine); /* CUT */

/* ---- scope.c --------------------------------------------------------------------------------------------- */
typedef struct te_scope {
    pthread_mutex_t lock;
    bool is_cancelled;
    te_connection *connections; /* checked out by threads in it */
    struct te_carry *carries;   /* that a thread in it waits for */
} te_scope;
/* A cancel of the scope cancels it, from now (also when it has been cancelled already) until it is removed. */
void te_scope_add_carry(te_scope *scope, struct te_carry *carry);
void te_scope_remove_carry(te_scope *scope, struct te_carry *carry);
void te_scope_open(te_scope *scope);
void te_scope_close(te_scope *scope);
/* The calling thread is in `scope` (NULL: in none) until it enters the one returned. */
te_scope *te_scope_enter(te_scope *scope);
te_scope *te_scope_current(void);
void te_scope_cancel(te_scope *scope);
bool te_scope_is_cancelled(te_scope *scope);
/* te_checkout and te_checkin call these; CANCELLED: give the connection back and return that. */
ms_status te_scope_add(te_connection *connection);
void te_scope_remove(te_connection *connection);

/* ---- batch.c --------------------------------------------------------------------------------------------- */
typedef struct te_batches te_batches;
ms_status te_batches_open(te_engine *engine, te_batches **batches);
/* Cancels all and returns when none runs. */
void te_batches_stop(te_batches *batches);
void te_batches_close(te_batches *batches);

typedef struct te_shm {
    te_copier *copier;
    te_shared *shared;
    te_loans *loans;
} te_shm;

#endif
