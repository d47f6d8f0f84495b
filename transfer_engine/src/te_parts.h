/* What shared memory, the copy helper, registered memory and batches keep in an engine, and the hooks by
 * which engine.c, server.c, channel.c and transfer.c reach them.
 *
 * Who implements what:
 *   shared_memory.c  te_shared_*       memory of this process that peers may copy from (sealed memfds)
 *   loan.c           te_lender_*, te_loan_*  accepting side: memory that peers have SHAREd with us
 *   shm.c            te_attach, te_share, te_channel_shm_*  asking side
 *   descriptor.c     te_descriptors_*  SCM_RIGHTS
 *   copy_helper.c    te_copier_*, te_copy
 *   memory.c         te_memory_*       registered local memory, OPEN_SEGMENT
 *   batch.c          te_batch*         the paper's batch interface
 */
#ifndef TE_PARTS_H
#define TE_PARTS_H

#include "te.h"

typedef struct te_copier te_copier;
typedef struct te_shared te_shared;
typedef struct te_loans te_loans;
typedef struct te_memory te_memory;
typedef struct te_batches te_batches;

/* One a te_engine, inside it. */
typedef struct te_parts {
    te_copier *copier;
    te_shared *shared;
    te_loans *loans;
    te_memory *memory;
    te_batches *batches;
} te_parts;

/* engine.c: open them last in te_engine_open, close them in te_engine_close when workers and I/O threads
 * have been joined.  te_parts_stop comes first of all in te_engine_close: it cancels batches and waits for them. */
ms_status te_parts_open(te_engine *engine, te_parts *parts, const te_engine_config *config);
void te_parts_stop(te_parts *parts);
void te_parts_close(te_parts *parts);

/* ---- what engine.c and channel.c provide (te_internal.h) ------------------------------------------------ */
te_parts *te_engine_parts(te_engine *engine);
te_engine *te_channel_engine(te_channel *channel);
/* A slot, NULL at first, in the channel; shm.c keeps its mappings and share ids there. */
void **te_channel_shm_slot(te_channel *channel);
int te_connection_descriptor(const te_connection *connection);
bool te_connection_is_unix(const te_connection *connection);

/* ---- descriptor.c ---------------------------------------------------------------------------------------- */
#define TE_DESCRIPTORS_MAX 2

/* sendmsg with descriptors riding on the first byte; returns what sendmsg returns.  `flags`: MSG_NOSIGNAL is added. */
ssize_t te_descriptors_send(int socket, const struct iovec *parts, size_t part_count, const int *descriptors,
                            size_t descriptor_count, int flags);
/* recvmsg that also takes descriptors (close-on-exec); surplus ones are closed.  *descriptor_count: room on
 * entry, number received on return. */
ssize_t te_descriptors_receive(int socket, struct iovec *parts, size_t part_count, int *descriptors,
                               size_t *descriptor_count, int flags);

/* ---- accepting side: server.c calls these ----------------------------------------------------------------- */
typedef struct te_lender te_lender; /* a process on this host that is connected over the Unix socket */
typedef struct te_loan te_loan;     /* memory that it SHAREd */

/* A Unix connection was accepted (peer credentials from SO_PEERCRED) / closed.  The loans of a process end when
 * its last connection closes.  pid 0 (another pid namespace) is told apart by connection.  NULL: no memory. */
te_lender *te_lender_connect(te_engine *engine, uint32_t uid, uint32_t pid, te_peer peer);
void te_lender_disconnect(te_engine *engine, te_lender *lender);
/* SHARE.  Takes the descriptor over in every case.  REFUSED: not a memfd sealed against shrinking, or shorter
 * than length; LIMIT: too many or too large. */
ms_status te_lender_share(te_engine *engine, te_lender *lender, int descriptor, uint64_t length, uint32_t *id,
                          char error[TE_ERROR_BYTES]);
ms_status te_lender_unshare(te_engine *engine, te_lender *lender, uint32_t id);
/* WRITE with a source: the bytes, readable until te_loan_end, also when the lender goes meanwhile.
 * NOT_REGISTERED, OUT_OF_RANGE.  source is id + 1, as in ms_write_item. */
ms_status te_loan_begin(te_engine *engine, te_lender *lender, uint32_t source, uint64_t offset, uint64_t length,
                        const uint8_t **bytes, te_loan **loan);
void te_loan_end(te_engine *engine, te_loan *loan);

/* ATTACH: read-only descriptors of a segment (payload, then words when it has some), to be sent and closed. */
ms_status te_attach_answer(const te_segment_config *segment, ms_attached *answer, int descriptors[TE_DESCRIPTORS_MAX],
                           size_t *descriptor_count);

/* OPEN_SEGMENT and NOTIFY belong to the engine as well: true when the frame was one of them and was answered. */
bool te_answer_engine_frame(te_engine *engine, const te_request *request);
/* HELLO for an engine without a te_service: roles CLIENT, ENGINE and TOOL, checked against our incarnation. */
ms_status te_answer_engine_hello(te_engine *engine, const te_request *request, uint8_t answer[4096],
                                 uint32_t *answer_length, char *error);

/* ---- asking side: channel.c and transfer.c call these ------------------------------------------------------ */
/* A new Unix connection: forgets share ids when the process behind the socket changed. */
void te_channel_shm_connected(te_channel *channel, int socket);
/* A WRITE with a source was answered NOT_REGISTERED: the ids are forgotten, the next te_share asks again. */
void te_channel_shm_forget(te_channel *channel);
/* In te_channel_close, when no caller is inside: stops population, unmaps. */
void te_channel_shm_close(te_channel *channel);

/* ---- copier ------------------------------------------------------------------------------------------------ */
ms_status te_copier_open(size_t stream_bytes, size_t helper_bytes, te_copier **copier);
void te_copier_close(te_copier *copier);
void te_copier_copy(te_copier *copier, void *target, const void *source, size_t length);

/* ---- shared memory of this process --------------------------------------------------------------------------- */
ms_status te_shared_open(te_shared **shared);
void te_shared_close(te_shared *shared);
/* The allocation around a range: its base, length, descriptor and a number never used twice; false: none. */
typedef struct te_shared_range {
    uint8_t *base;
    size_t length;
    int descriptor;
    uint64_t number;
} te_shared_range;
bool te_shared_find(te_shared *shared, const void *address, size_t length, te_shared_range *range);

ms_status te_loans_open(te_loans **loans);
void te_loans_close(te_loans *loans);

#endif
