/* An exchange: one call of te_read or te_write over the rails of an endpoint, by the thread that has taken it.
 *
 *   rdma_exchange.c   items, cut into slices; completions; whole calls
 *   rdma_word.c       what follows the bytes: generation words of READs, READs behind WRITEs
 */
#ifndef TE_RDMA_EXCHANGE_H
#define TE_RDMA_EXCHANGE_H

#include "te_rdma.h"

#define TE_EXCHANGE_FEW 64u /* items whose state has room on the stack */

enum te_exchange_state {
    TE_EXCHANGE_ITEM_OPEN = 0,
    TE_EXCHANGE_ITEM_FOR_TCP = 1,
    TE_EXCHANGE_ITEM_ENDED = 2 /* its result is told */
};

typedef struct te_rdma_exchange {
    te_rdma *rdma;
    te_rdma_endpoint *endpoint;
    te_channel *channel;
    const ms_read_item *reads; /* NULL: WRITEs */
    const ms_write_item *writes;
    void *const *targets;
    const void *const *sources;
    size_t count;
    int64_t deadline_ns;
    uint8_t *states;     /* enum te_exchange_state */
    te_region **regions; /* held; NULL: not registered */
    size_t next_item;
    uint64_t next_offset;
    te_rdma_slice *returned; /* room for all that can fly */
    uint32_t returned_count;
    ms_status status;
    uint64_t bytes;
    bool has_words; /* of a READ: words are wanted, and may be asked for behind the bytes */
    bool is_fenced; /* they have been */
    uint32_t word_slots
        [TE_EXCHANGE_FEW]; /* of each item, in the scratch memory; TE_EXCHANGE_NO_WORD: none */
} te_rdma_exchange;

#define TE_EXCHANGE_NO_WORD UINT32_MAX
#define TE_EXCHANGE_NO_ITEM UINT32_MAX /* of a slice: a word, or the READ behind WRITEs */

/* ---- rdma_exchange.c ---- */
typedef void te_exchange_handler(te_rdma_exchange *moved, te_rdma_rail *rail, const verbs_wc *done);
uint64_t te_exchange_length(const te_rdma_exchange *moved, size_t i);
void te_exchange_leave_to_tcp(te_rdma_exchange *moved, size_t item);
te_rdma_rail *te_exchange_any_rail(const te_rdma_endpoint *endpoint);
/* The rail is left; what was flying on it is to be repeated. */
void te_exchange_leave_rail(te_rdma_exchange *moved, te_rdma_rail *rail);
/* Rails whose NIC has lost its link, or that the end of the call breaks off. */
void te_exchange_leave_dead(te_rdma_exchange *moved, bool is_over);
/* What is chained goes out. */
void te_exchange_post(te_rdma_exchange *moved, te_rdma_rail *rail);
bool te_exchange_is_flying(const te_rdma_endpoint *endpoint);
/* Until at least one completion was handled, or a rail was left, or the call has to end (moved->status). */
void te_exchange_await(te_rdma_exchange *moved, te_exchange_handler *handle);

/* ---- rdma_word.c ---- */
/* The words of all items behind their bytes, if those are all on one rail, and there is room.  False: later, then. */
bool te_exchange_chain_words(te_rdma_exchange *moved);
void te_exchange_take_words(const te_rdma_exchange *moved, ms_read_result *results);
/* In a round of their own. */
void te_exchange_read_words(te_rdma_exchange *moved, ms_read_result *results);
/* What was written is in the peer's memory when each queue pair has read behind it. */
void te_exchange_push_writes(te_rdma_exchange *moved);

#endif
