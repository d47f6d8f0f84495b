/* What follows the bytes of an exchange: generation words of READs, and READs behind WRITEs.  Both are READs of 8 bytes into the endpoint's
 * scratch memory. */
#include <string.h>

#include "te_rdma_exchange.h"

#include "te_fault.h"

#define WORDS_AT_ONCE (TE_RDMA_SCRATCH_BYTES / sizeof(uint64_t) - TE_RDMA_RAILS_MAX)

/* Small READs into the scratch memory: one a rail (`touched`), or of words.  They fly as slices of no item. */
static bool chain_small(te_rdma_exchange *moved, te_rdma_rail *rail, uint64_t remote, uint32_t key,
                        uint32_t slot) {
    if (rail->count == rail->qp.depth - 1 || rail->count == TE_RDMA_DEPTH)
        return false;
    verbs_sge *part = &rail->parts[rail->chained];
    *part = (verbs_sge){.addr = (uint64_t)(uintptr_t)(moved->endpoint->scratch + slot * 8),
                        .length = sizeof(uint64_t),
                        .lkey = rail->scratch->lkey};
    rail->requests[rail->chained++] =
        (verbs_send_wr){.wr_id = (rail->first + rail->count) % TE_RDMA_DEPTH,
                        .sg_list = part,
                        .num_sge = 1,
                        .opcode = VERBS_WR_RDMA_READ,
                        .rdma = {.remote_addr = remote, .rkey = key}};
    rail->flying[(rail->first + rail->count) % TE_RDMA_DEPTH] =
        (te_rdma_slice){.item = TE_EXCHANGE_NO_ITEM};
    rail->count++;
    return true;
}

/* The words of all items behind their bytes, if those are all on one rail, and there is room.  False: later, then. */
bool te_exchange_chain_words(te_rdma_exchange *moved) {
    te_rdma_rail *rail = NULL;
    te_rdma_chunk chunk;
    for (uint32_t i = 0; i < moved->endpoint->rail_count; i++) {
        te_rdma_rail *each = moved->endpoint->rails[i];
        if (each->count == 0)
            continue;
        if (rail != NULL)
            return false;
        rail = each;
    }
    if (rail == NULL || rail->count + moved->count >= rail->qp.depth - 1 ||
        rail->count + moved->count > TE_RDMA_DEPTH)
        return false;
    uint32_t slot = 0;
    size_t before = SIZE_MAX; /* the item whose word was asked for last */
    for (size_t i = 0; i < moved->count; i++) {
        const ms_read_item *item = &moved->reads[i];
        moved->word_slots[i] = TE_EXCHANGE_NO_WORD;
        if (moved->states[i] != TE_EXCHANGE_ITEM_OPEN || (item->flags & 1) == 0)
            continue;
        if (before != SIZE_MAX && item->guard_page == moved->reads[before].guard_page &&
            item->segment == moved->reads[before].segment) {
            moved->word_slots[i] = slot - 1; /* pieces of one extent */
            continue;
        }
        uint64_t offset = (uint64_t)item->guard_page * sizeof(uint64_t);
        if (!te_rdma_remote_key(moved->endpoint, item->segment, true, rail->remote_nic, offset,
                                &chunk, moved->deadline_ns)) {
            te_exchange_leave_to_tcp(moved, i);
            continue;
        }
        uint32_t at = rail->chained;
        if (!chain_small(moved, rail, chunk.address + (offset - chunk.offset), chunk.key, slot))
            return false;
        if (slot == 0)
            rail->requests[at].send_flags |= VERBS_SEND_FENCE;
        moved->word_slots[i] = slot++;
        before = i;
    }
    return true;
}

void te_exchange_take_words(const te_rdma_exchange *moved, ms_read_result *results) {
    for (size_t i = 0; i < moved->count; i++)
        if (moved->word_slots[i] != TE_EXCHANGE_NO_WORD)
            memcpy(&results[i].word, moved->endpoint->scratch + moved->word_slots[i] * 8,
                   sizeof results[i].word);
}

static void small_completed(te_rdma_exchange *moved, te_rdma_rail *rail, const verbs_wc *done) {
    uint32_t last = (uint32_t)(done->wr_id & (TE_RDMA_DEPTH - 1));
    uint32_t ahead = (last + TE_RDMA_DEPTH - rail->first) % TE_RDMA_DEPTH + 1;
    if (done->status != VERBS_WC_SUCCESS) {
        te_exchange_leave_rail(moved, rail);
        moved->returned_count = 0;
        return;
    }
    ahead = ahead < rail->count ? ahead : rail->count;
    rail->first = (rail->first + ahead) % TE_RDMA_DEPTH;
    rail->count -= ahead;
}

/* Posts what is chained and waits for all of it.  False: a rail failed meanwhile, or the call has to end. */
static bool await_small(te_rdma_exchange *moved) {
    te_rdma_endpoint *endpoint = moved->endpoint;
    uint32_t alive = endpoint->alive_count;
    for (uint32_t i = 0; i < endpoint->rail_count; i++)
        if (endpoint->rails[i]->is_alive)
            te_exchange_post(moved, endpoint->rails[i]);
    while (moved->status == MS_OK && !endpoint->is_broken && endpoint->alive_count == alive &&
           te_exchange_is_flying(endpoint))
        te_exchange_await(moved, small_completed);
    if (moved->status == MS_OK && !endpoint->is_broken && endpoint->alive_count == alive)
        return true;
    te_exchange_leave_dead(moved, true);
    moved->returned_count = 0;
    return false;
}

/* The words of items [first, end) that are open, over one rail.  False: try another one. */
static bool read_words_over(te_rdma_exchange *moved, te_rdma_rail *rail, size_t first, size_t end,
                            ms_read_result *results) {
    uint32_t slot = 0, slots[WORDS_AT_ONCE];
    size_t at = first, begun = first;
    while (at < end) {
        uint32_t page = UINT32_MAX, segment = UINT32_MAX;
        for (; at < end && slot < WORDS_AT_ONCE && at - begun < WORDS_AT_ONCE; at++) {
            const ms_read_item *item = &moved->reads[at];
            te_rdma_chunk chunk;
            slots[at - begun] = UINT32_MAX;
            if (moved->states[at] != TE_EXCHANGE_ITEM_OPEN || (item->flags & 1) == 0)
                continue;
            if (slot > 0 && item->guard_page == page && item->segment == segment) {
                slots[at - begun] = slot - 1; /* pieces of one extent */
                continue;
            }
            uint64_t offset = (uint64_t)item->guard_page * sizeof(uint64_t);
            if (!te_rdma_remote_key(moved->endpoint, item->segment, true, rail->remote_nic, offset,
                                    &chunk, moved->deadline_ns)) {
                te_exchange_leave_to_tcp(moved, at);
                continue;
            }
            if (!chain_small(moved, rail, chunk.address + (offset - chunk.offset), chunk.key, slot))
                break;
            page = item->guard_page;
            segment = item->segment;
            slots[at - begun] = slot++;
        }
        if (slot > 0 && !await_small(moved))
            return false;
        for (size_t i = begun; i < at; i++)
            if (slots[i - begun] != UINT32_MAX)
                memcpy(&results[i].word, moved->endpoint->scratch + slots[i - begun] * 8,
                       sizeof results[i].word);
        begun = at;
        slot = 0;
    }
    return true;
}

void te_exchange_read_words(te_rdma_exchange *moved, ms_read_result *results) {
    for (;;) {
        te_rdma_rail *rail = te_exchange_any_rail(moved->endpoint);
        if (rail == NULL || moved->status != MS_OK || moved->endpoint->is_broken)
            break;
        if (read_words_over(moved, rail, 0, moved->count, results))
            return;
    }
    for (size_t i = 0; i < moved->count; i++)
        if (moved->reads[i].flags & 1)
            te_exchange_leave_to_tcp(moved, i);
}

/* What was written is in the peer's memory when each queue pair has read behind it. */
void te_exchange_push_writes(te_rdma_exchange *moved) {
    te_rdma_endpoint *endpoint = moved->endpoint;
    bool any = false;
    for (uint32_t i = 0; i < endpoint->rail_count; i++) {
        te_rdma_rail *rail = endpoint->rails[i];
        if (rail->is_alive && rail->touched != 0)
            any = chain_small(moved, rail, rail->touched, rail->touched_key,
                              (uint32_t)WORDS_AT_ONCE + i);
    }
    bool is_pushed = !any || await_small(moved);
    for (uint32_t i = 0; i < endpoint->rail_count; i++)
        endpoint->rails[i]->touched = 0;
    for (size_t i = 0; !is_pushed && i < moved->count; i++)
        if (te_exchange_length(moved, i) > 0)
            te_exchange_leave_to_tcp(moved, i);
}
