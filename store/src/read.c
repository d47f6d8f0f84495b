/* READ: a use is taken and the word compared, without the lock.
 *
 * A reader first adds its use, then loads the word; FREE first stores the word, then loads the use count.  All
 * four are sequentially consistent, so of a reader and a FREE that meet at least one sees the other: either the
 * reader says GONE, or FREE finds the use and FREED waits *(freed_waits)*.
 */
#include "st_internal.h"
#include "st_step.h"

void st_read_ahead(void *context, const ms_read_item *items, uint32_t count) {
    const st_segment *segment = context;
    uint64_t ready = atomic_load_explicit(&segment->pages_ready, memory_order_acquire);
    for (uint32_t at = 0; at < count; at++) {
        if (items[at].guard_page >= ready)
            continue;
        __builtin_prefetch((const void *)&segment->uses[items[at].guard_page], 1);
        __builtin_prefetch((const void *)&segment->words[items[at].guard_page]);
    }
}

ms_status st_read_begin(void *context, void *peer_context, const ms_read_item *item) {
    st_segment *segment = context;
    const st_peer *peer = peer_context;
    if (peer == NULL || !peer->may_read)
        return MS_REFUSED;
    uint64_t ready = atomic_load_explicit(&segment->pages_ready, memory_order_acquire);
    if ((item->flags & 1u) == 0 || (item->word & 1u) == 0)
        return MS_BAD_REQUEST; /* bytes of a store mean nothing without the word that names them */
    if (item->guard_page >= ready || item->length > ready * MS_PAGE_SIZE ||
        item->offset > ready * MS_PAGE_SIZE - item->length)
        return MS_OUT_OF_RANGE;
    _Atomic uint32_t *uses = &segment->uses[item->guard_page];
    uint32_t before = atomic_fetch_add(uses, ST_USE_READER);
    if ((before & ST_USE_READERS) >= ST_USE_READERS_MAX) {
        st_drop_reader(segment, item->guard_page);
        return MS_LIMIT;
    }
    if (atomic_load(&segment->words[item->guard_page]) != item->word &&
        !ST_IS_PLANTED(ST_FAULT_NO_WORD_CHECK)) {
        st_drop_reader(segment, item->guard_page);
        st_count_add(segment->server, ST_COUNT_READS_GONE, 1);
        return MS_GONE;
    }
    return MS_OK;
}

uint64_t st_read_end(void *context, void *peer_context, const ms_read_item *item) {
    st_segment *segment = context;
    (void)peer_context;
    /* The bytes have been loaded before this: they must not be newer than the word that vouches for them. */
    atomic_thread_fence(memory_order_acquire);
    uint64_t word = st_word(segment, item->guard_page);
    st_drop_reader(segment, item->guard_page);
    st_count_add(segment->server, ST_COUNT_READS, 1);
    st_count_add(segment->server, ST_COUNT_READ_BYTES, item->length);
    return word;
}
