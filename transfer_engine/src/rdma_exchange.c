/* Moving items over the rails of an endpoint, by the thread that has taken it.
 *
 * Items are cut into slices at the bounds of registrations; each slice goes to the rail that is predicted to be through with
 * it first.  Requests of one round are chained and handed to the NIC at once, and only the last of a chain (and every
 * eighth) asks for a completion: queue pairs complete in order, so it speaks for those before it.
 *
 * A rail that fails is left: its queue pair is destroyed, and what was flying on it goes over the others.  A READ is over with
 * that.  A WRITE is over when the peer says that it has destroyed its end as well: until then a packet that the network
 * has kept could still be applied.
 *
 * After the last payload byte of all rails has come, the generation words are read (protocol 4.2).  Where all bytes of a call go
 * over one queue pair, the words are asked for behind them with a fence, for which the NIC waits until every READ before it
 * has been answered: the same order, and one waiting less.  Before a WRITE
 * counts as done, each queue pair that was used has READ 8 bytes behind it, so that what was written is in memory (4.5).
 */
#include <stdlib.h>
#include <string.h>

#include "te_rdma_exchange.h"

#include "te_fault.h"

#define SIGNAL_EVERY 8u
#define RAIL_BYTES_MAX (4u << 20)   /* in flight on a rail, beside its first slice */
#define LOOK_NS (20 * TE_NS_PER_MS) /* so often is looked whether a NIC has lost its link */
#define POLLS_LEAST 16u
#define POLLS_MOST 4096u
#define LARGE_BYTES (64u << 10) /* take longer than anybody should spin */
#define LEARN_AGAIN 16u
#define MEASURED_BYTES_MIN (64u << 10) /* less says more about latency than about bandwidth */

uint64_t te_exchange_length(const te_rdma_exchange *moved, size_t i) {
    return moved->reads != NULL ? moved->reads[i].length : moved->writes[i].length;
}

static uint64_t offset_of(const te_rdma_exchange *moved, size_t i) {
    return moved->reads != NULL ? moved->reads[i].offset : moved->writes[i].offset;
}

static uint32_t segment_of(const te_rdma_exchange *moved, size_t i) {
    return moved->reads != NULL ? moved->reads[i].segment : moved->writes[i].segment;
}

/* In the segment: WRITE items of a version name pages. */
static uint64_t place_of(const te_rdma_exchange *moved, size_t i) {
    bool has_pages = moved->reads == NULL && moved->writes[i].version != 0;
    return (has_pages ? (uint64_t)moved->writes[i].page * MS_PAGE_SIZE : 0) + offset_of(moved, i);
}

/* Inside its extent: no server looks at it, so we do. */
static bool is_inside(const te_rdma_exchange *moved, size_t i) {
    uint64_t offset = offset_of(moved, i), length = te_exchange_length(moved, i);
    return length <= TE_RDMA_BYTES_MAX && offset <= TE_RDMA_BYTES_MAX &&
           (moved->reads != NULL || te_rdma_write_is_inside(&moved->writes[i]));
}

static uint8_t *local_of(const te_rdma_exchange *moved, size_t i) {
    return moved->reads != NULL ? moved->targets[i] : (uint8_t *)(uintptr_t)moved->sources[i];
}

void te_exchange_leave_to_tcp(te_rdma_exchange *moved, size_t item) {
    if (moved->states[item] == TE_EXCHANGE_ITEM_OPEN)
        atomic_fetch_add_explicit(&moved->rdma->counters.fallbacks, 1, memory_order_relaxed);
    moved->states[item] = TE_EXCHANGE_ITEM_FOR_TCP;
}

/* ---- cutting ------------------------------------------------------------------------------------------------------ */

te_rdma_rail *te_exchange_any_rail(const te_rdma_endpoint *endpoint) {
    for (uint32_t i = 0; i < endpoint->rail_count; i++)
        if (endpoint->rails[i]->is_alive)
            return endpoint->rails[i];
    return NULL;
}

/* The next slice from the cursor; false: no item is left. */
static bool cut(te_rdma_exchange *moved, te_rdma_slice *slice) {
    const te_rdma_rail *rail = te_exchange_any_rail(moved->endpoint);
    for (; rail != NULL && moved->next_item < moved->count;
         moved->next_item++, moved->next_offset = 0) {
        size_t i = moved->next_item;
        uint64_t left = te_exchange_length(moved, i) - moved->next_offset;
        if (moved->states[i] != TE_EXCHANGE_ITEM_OPEN || left == 0)
            continue;
        te_rdma_chunk chunk;
        uint64_t place = place_of(moved, i) + moved->next_offset;
        /* All of it or nothing: an item that is refused has touched nothing. */
        bool is_there =
            moved->next_offset > 0 ||
            (is_inside(moved, i) &&
             te_rdma_remote_key(moved->endpoint, segment_of(moved, i), false, rail->remote_nic,
                                place + left - 1, &chunk, moved->deadline_ns));
        if (!is_there || !te_rdma_remote_key(moved->endpoint, segment_of(moved, i), false,
                                             rail->remote_nic, place, &chunk, moved->deadline_ns)) {
            te_exchange_leave_to_tcp(moved, i);
            continue;
        }
        uint64_t most = moved->rdma->settings.slice_bytes;
        uint64_t run = chunk.length - (place - chunk.offset);
        most = run < most ? run : most;
        const uint8_t *local = local_of(moved, i) + moved->next_offset;
        te_rdma_range *range = moved->regions[i] == NULL ? NULL : te_region_rdma(moved->regions[i]);
        if (range == NULL) {
            most = most < TE_RDMA_SLOT_BYTES ? most : TE_RDMA_SLOT_BYTES;
        } else {
            uint64_t base, length, chunk_bytes = te_rdma_range_chunk_bytes(range);
            te_rdma_range_span(range, &base, &length);
            run = chunk_bytes - ((uint64_t)(uintptr_t)local - base) % chunk_bytes;
            most = run < most ? run : most;
        }
        /* No crumbs behind the last whole slice. */
        uint64_t taken = left <= most ? left : left < 2 * most && range != NULL ? left / 2 : most;
        *slice = (te_rdma_slice){
            .item = (uint32_t)i, .length = (uint32_t)taken, .offset = moved->next_offset};
        moved->next_offset += taken;
        return true;
    }
    return false;
}

static bool next_slice(te_rdma_exchange *moved, te_rdma_slice *slice) {
    while (moved->returned_count > 0) {
        *slice = moved->returned[--moved->returned_count];
        if (moved->states[slice->item] == TE_EXCHANGE_ITEM_OPEN)
            return true;
    }
    return cut(moved, slice);
}

/* ---- posting ------------------------------------------------------------------------------------------------------ */

static bool has_room(const te_rdma_rail *rail, uint64_t bytes) {
    return rail->is_alive && rail->count < rail->qp.depth - 1 && rail->count < TE_RDMA_DEPTH &&
           (rail->count == 0 || rail->bytes_in_flight + bytes <= RAIL_BYTES_MAX) &&
           atomic_load_explicit(&rail->qp.nic->is_up, memory_order_relaxed);
}

/* The node of the next slice's memory. */
static int32_t next_node(const te_rdma_exchange *moved) {
    const te_region *region = NULL;
    if (moved->returned_count > 0)
        region = moved->regions[moved->returned[moved->returned_count - 1].item];
    else if (moved->next_item < moved->count)
        region = moved->regions[moved->next_item];
    return region == NULL ? -1 : te_region_numa_node(region);
}

/* By the rules of the schedule (te_rails.h): the rail that is through first, the way to the memory counted; and now and then one
 * that was given nothing for a while. */
static te_rdma_rail *choose(const te_rdma_exchange *moved, uint64_t bytes, int64_t now_ns) {
    te_rdma_rail *best = NULL, *idle = NULL;
    double best_ns = 0;
    int32_t node = next_node(moved);
    for (uint32_t i = 0; i < moved->endpoint->rail_count; i++) {
        te_rdma_rail *rail = moved->endpoint->rails[i];
        if (!has_room(rail, bytes))
            continue;
        uint64_t on_nic =
            atomic_load_explicit(&rail->qp.nic->bytes_in_flight, memory_order_relaxed);
        double predicted_ns =
            te_rail_cost((double)on_nic * rail->ns_per_byte, (double)bytes * rail->ns_per_byte,
                         te_rdma_nic_tier(rail->qp.nic, node));
        if (best == NULL || predicted_ns < best_ns) {
            best = rail;
            best_ns = predicted_ns;
        }
        if (now_ns != 0 && rail->count == 0 && now_ns - rail->given_ns > TE_RAIL_IDLE_PROBE_NS)
            idle = rail;
    }
    best = idle != NULL ? idle : best;
    if (best != NULL && now_ns != 0)
        best->given_ns = now_ns;
    return best;
}

/* The request for a slice at the end of the rail's chain.  False: it has to wait for a slot. */
static bool chain(te_rdma_exchange *moved, te_rdma_rail *rail, te_rdma_slice slice) {
    uint8_t *local = local_of(moved, slice.item) + slice.offset;
    uint64_t place = place_of(moved, slice.item) + slice.offset;
    te_rdma_chunk chunk;
    if (!te_rdma_remote_key(moved->endpoint, segment_of(moved, slice.item), false, rail->remote_nic,
                            place, &chunk, moved->deadline_ns)) {
        te_exchange_leave_to_tcp(moved, slice.item);
        return true;
    }
    verbs_send_wr *request = &rail->requests[rail->chained];
    verbs_sge *part = &rail->parts[rail->chained];
    te_rdma_key key = {0};
    te_region *region = moved->regions[slice.item];
    te_rdma_range *range = region == NULL ? NULL : te_region_rdma(region);
    bool is_write = moved->reads == NULL;
    bool is_inline = is_write && slice.length <= rail->qp.inline_max;
    bool is_registered = range != NULL &&
                         te_rdma_range_key(range, rail->qp.nic, (uint64_t)(uintptr_t)local, &key) &&
                         key.run >= slice.length;
    if (!is_inline && !is_registered) {
        te_rdma_bounce *bounce = moved->rdma->bounce;
        if (slice.length > TE_RDMA_SLOT_BYTES) { /* registered on other NICs only */
            te_exchange_leave_to_tcp(moved, slice.item);
            return true;
        }
        slice.slot = te_rdma_slot_take(bounce);
        if (slice.slot == NULL)
            return false;
        if (!te_rdma_range_key(te_rdma_bounce_range(bounce), rail->qp.nic,
                               (uint64_t)(uintptr_t)slice.slot, &key) ||
            key.run < slice.length) {
            te_rdma_slot_give(bounce, slice.slot);
            te_exchange_leave_to_tcp(moved, slice.item);
            return true;
        }
        if (is_write)
            memcpy(slice.slot, local, slice.length);
        local = slice.slot;
    }
    slice.remote = chunk.address + (place - chunk.offset);
    *part =
        (verbs_sge){.addr = (uint64_t)(uintptr_t)local, .length = slice.length, .lkey = key.local};
    *request = (verbs_send_wr){
        .wr_id = (rail->first + rail->count) % TE_RDMA_DEPTH,
        .sg_list = part,
        .num_sge = 1,
        .opcode = is_write ? VERBS_WR_RDMA_WRITE : VERBS_WR_RDMA_READ,
        .send_flags = (is_inline ? VERBS_SEND_INLINE : 0) |
                      (rail->chained % SIGNAL_EVERY == SIGNAL_EVERY - 1 ? VERBS_SEND_SIGNALED : 0),
        .rdma = {.remote_addr = slice.remote, .rkey = chunk.key}};
    if (is_write) {
        rail->touched = slice.remote;
        rail->touched_key = chunk.key;
    }
    rail->flying[(rail->first + rail->count) % TE_RDMA_DEPTH] = slice;
    rail->count++;
    rail->chained++;
    rail->bytes_in_flight += slice.length;
    atomic_fetch_add_explicit(&rail->qp.nic->bytes_in_flight, slice.length, memory_order_relaxed);
    return true;
}

static void give_slots(te_rdma_exchange *moved, te_rdma_slice *slices, uint32_t count) {
    for (uint32_t i = 0; i < count; i++)
        if (slices[i].slot != NULL) {
            te_rdma_slot_give(moved->rdma->bounce, slices[i].slot);
            slices[i].slot = NULL;
        }
}

void te_exchange_leave_rail(te_rdma_exchange *moved, te_rdma_rail *rail) {
    te_rdma_slice *lost = moved->returned + moved->returned_count;
    bool had_writes = moved->reads == NULL && (rail->count > 0 || rail->touched != 0);
    uint32_t count = te_rdma_rail_break(moved->endpoint, rail, lost);
    give_slots(moved, lost, count);
    for (uint32_t i = 0; i < count; i++)
        if (lost[i].item != TE_EXCHANGE_NO_ITEM)
            moved->returned[moved->returned_count++] = lost[i];
    moved->is_fenced = moved->has_words = false; /* the bytes go over several rails from now on */
    if (had_writes && !te_rdma_rail_confirm(moved->endpoint, rail, moved->deadline_ns) &&
        moved->status == MS_OK) {
        moved->status = MS_IO_ERROR;
        te_channel_set_error(moved->channel, "an RDMA queue pair broke, and the peer did not "
                                             "confirm that its end is gone");
    }
    moved->endpoint->is_broken = moved->endpoint->is_broken || moved->endpoint->alive_count == 0;
}

void te_exchange_post(te_rdma_exchange *moved, te_rdma_rail *rail) {
    verbs_send_wr *bad = NULL;
    if (rail->chained == 0)
        return;
    if (rail->count == rail->chained && moved->endpoint->alive_count > 1) {
        rail->busy_from_ns = te_now_ns();
        rail->busy_bytes = 0;
    }
    for (uint32_t i = 0; i + 1 < rail->chained; i++)
        rail->requests[i].next = &rail->requests[i + 1];
    rail->requests[rail->chained - 1].next = NULL;
    rail->requests[rail->chained - 1].send_flags |= VERBS_SEND_SIGNALED;
    rail->chained = 0;
    if (verbs_post(rail->qp.qp, rail->requests, &bad) != 0)
        te_exchange_leave_rail(moved, rail);
}

/* As much as the rails take now. */
static void fill(te_rdma_exchange *moved) {
    te_rdma_endpoint *endpoint = moved->endpoint;
    te_rdma_slice slice;
    bool has_slot = true;
    int64_t now_ns = endpoint->alive_count > 1 ? te_now_ns() : 0;
    while (has_slot && moved->status == MS_OK && !endpoint->is_broken) {
        uint64_t bytes = moved->rdma->settings.slice_bytes;
        te_rdma_rail *rail = choose(moved, bytes < RAIL_BYTES_MAX ? bytes : RAIL_BYTES_MAX, now_ns);
        if (rail == NULL || !next_slice(moved, &slice))
            break;
        slice.slot = NULL;
        has_slot = chain(moved, rail, slice);
        if (!has_slot)
            moved->returned[moved->returned_count++] = slice;
    }
    if (moved->has_words && !moved->is_fenced && moved->returned_count == 0 &&
        moved->next_item == moved->count)
        moved->is_fenced = te_exchange_chain_words(moved);
    for (uint32_t i = 0; i < endpoint->rail_count; i++)
        if (endpoint->rails[i]->is_alive)
            te_exchange_post(moved, endpoint->rails[i]);
}

/* ---- completions -------------------------------------------------------------------------------------------------- */

/* Two devices may use one number. */
static te_rdma_rail *rail_of(const te_rdma_endpoint *endpoint, const te_rdma_cq *cq,
                             uint32_t qp_num) {
    for (uint32_t i = 0; i < endpoint->rail_count; i++) {
        te_rdma_rail *rail = endpoint->rails[i];
        if (rail->is_alive && rail->cq == cq && rail->qp.qp->qp_num == qp_num)
            return rail;
    }
    return NULL;
}

/* How fast a rail is, from when it was given something to when it had nothing any more. */
static void measure(te_rdma_rail *rail) {
    if (rail->busy_from_ns != 0 && rail->busy_bytes >= MEASURED_BYTES_MIN) {
        double measured = (double)(te_now_ns() - rail->busy_from_ns) / (double)rail->busy_bytes;
        rail->ns_per_byte += (measured - rail->ns_per_byte) / 4;
    }
    rail->busy_from_ns = 0;
    rail->busy_bytes = 0;
}

static void arrived(te_rdma_exchange *moved, te_rdma_rail *rail) {
    te_rdma_slice *slice = &rail->flying[rail->first];
    if (slice->slot != NULL) {
        if (moved->reads != NULL)
            memcpy(local_of(moved, slice->item) + slice->offset, slice->slot, slice->length);
        te_rdma_slot_give(moved->rdma->bounce, slice->slot);
    }
    rail->bytes_in_flight -= slice->length;
    rail->busy_bytes += slice->length;
    atomic_fetch_sub_explicit(&rail->qp.nic->bytes_in_flight, slice->length, memory_order_relaxed);
    moved->bytes += slice->length;
    atomic_fetch_add_explicit(&moved->rdma->counters.slices, 1, memory_order_relaxed);
    rail->first = (rail->first + 1) % TE_RDMA_DEPTH;
    rail->count--;
    if (rail->count == 0)
        measure(rail);
}

/* Requests are numbered by their places in the rail's ring; all before the one that is told have completed too. */
static void completed(te_rdma_exchange *moved, te_rdma_rail *rail, const verbs_wc *done) {
    uint32_t last = (uint32_t)(done->wr_id & (TE_RDMA_DEPTH - 1));
    uint32_t ahead = (last + TE_RDMA_DEPTH - rail->first) % TE_RDMA_DEPTH;
    bool is_ok = done->status == VERBS_WC_SUCCESS;
    for (uint32_t i = 0; i < ahead + is_ok && rail->count > 0; i++)
        arrived(moved, rail);
    if (is_ok)
        return;
    /* What was asked for, not the rail, is at fault: another rail would meet the same. */
    if (te_rdma_is_refused(done) && rail->count > 0 &&
        rail->flying[rail->first].item != TE_EXCHANGE_NO_ITEM)
        te_exchange_leave_to_tcp(moved, rail->flying[rail->first].item);
    te_exchange_leave_rail(moved, rail);
}

static uint32_t cqs_in_use(const te_rdma_endpoint *endpoint, te_rdma_cq **cqs) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < TE_RDMA_NICS_MAX; i++)
        if (endpoint->cqs[i].cq != NULL && !atomic_load(&endpoint->cqs[i].nic->is_gone))
            cqs[count++] = (te_rdma_cq *)(uintptr_t)&endpoint->cqs[i];
    return count;
}

static bool take_completions(te_rdma_exchange *moved, te_rdma_cq *const *cqs, uint32_t cq_count,
                             te_exchange_handler *handle) {
    bool any = false;
    for (uint32_t i = 0; i < cq_count; i++) {
        verbs_wc done[16];
        int count = te_rdma_cq_poll(cqs[i], done, 16);
        for (int j = 0; j < count; j++) {
            te_rdma_rail *rail = rail_of(moved->endpoint, cqs[i], done[j].qp_num);
            if (rail != NULL)
                handle(moved, rail, &done[j]);
        }
        any = any || count > 0;
    }
    return any;
}

void te_exchange_leave_dead(te_rdma_exchange *moved, bool is_over) {
    for (uint32_t i = 0; i < moved->endpoint->rail_count; i++) {
        te_rdma_rail *rail = moved->endpoint->rails[i];
        bool is_down = !atomic_load_explicit(&rail->qp.nic->is_up, memory_order_relaxed);
        if (rail->is_alive && (is_over ? rail->count > 0 || rail->touched != 0 : is_down))
            te_exchange_leave_rail(moved, rail);
    }
}

static uint64_t bytes_flying(const te_rdma_endpoint *endpoint) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < endpoint->rail_count; i++)
        bytes += endpoint->rails[i]->bytes_in_flight;
    return bytes;
}

void te_exchange_await(te_rdma_exchange *moved, te_exchange_handler *handle) {
    te_rdma_endpoint *endpoint = moved->endpoint;
    te_rdma_cq *cqs[TE_RDMA_NICS_MAX];
    uint32_t cq_count = cqs_in_use(endpoint, cqs);
    uint32_t *learned = &endpoint->polls_max[bytes_flying(endpoint) > LARGE_BYTES];
    uint32_t polls = ++endpoint->waits % LEARN_AGAIN == 0 ? TE_RDMA_POLLS_FIRST : 0;
    polls = *learned > polls ? *learned : polls;
    for (uint32_t i = 0; i < polls; i++)
        if (take_completions(moved, cqs, cq_count, handle)) {
            uint32_t wanted = 2 * i < POLLS_MOST ? 2 * i : POLLS_MOST;
            *learned = wanted > *learned ? wanted : *learned;
            return;
        }
    *learned = *learned > POLLS_LEAST ? *learned - *learned / 4 : POLLS_LEAST;
    for (;;) {
        int64_t now_ns = te_now_ns(), until_ns = now_ns + LOOK_NS;
        bool is_readable = false;
        until_ns = until_ns < moved->deadline_ns ? until_ns : moved->deadline_ns;
        te_rdma_cqs_wait(cqs, cq_count, endpoint->connection->descriptor, until_ns, &is_readable);
        if (take_completions(moved, cqs, cq_count, handle))
            return;
        uint32_t alive = endpoint->alive_count;
        te_scope *scope = te_scope_current();
        if (scope != NULL && te_scope_is_cancelled(scope))
            moved->status = MS_CANCELLED;
        else if (now_ns >= moved->deadline_ns)
            moved->status = MS_TIMEOUT;
        else if (is_readable)
            endpoint->is_broken = true; /* the peer has ended the connection */
        if (moved->status == MS_OK && !endpoint->is_broken)
            te_exchange_leave_dead(moved, false);
        if (moved->status != MS_OK || endpoint->is_broken || endpoint->alive_count != alive)
            return;
    }
}

bool te_exchange_is_flying(const te_rdma_endpoint *endpoint) {
    for (uint32_t i = 0; i < endpoint->rail_count; i++)
        if (endpoint->rails[i]->count > 0)
            return true;
    return false;
}

/* ---- phases ------------------------------------------------------------------------------------------------------- */

static void move_payload(te_rdma_exchange *moved) {
    te_rdma_endpoint *endpoint = moved->endpoint;
    for (;;) {
        fill(moved);
        if (moved->status != MS_OK || endpoint->is_broken)
            break;
        if (!te_exchange_is_flying(endpoint)) {
            if (moved->returned_count == 0 && moved->next_item == moved->count)
                break;
            if (choose(moved, 0, 0) == NULL) {
                endpoint->is_broken = true; /* every NIC has lost its link */
                break;
            }
            if (moved->returned_count > 0) /* all slots are in use by others */
                te_exchange_leave_to_tcp(moved, moved->returned[--moved->returned_count].item);
            continue;
        }
        te_exchange_await(moved, completed);
    }
    if (moved->status == MS_OK && !endpoint->is_broken)
        return;
    te_exchange_leave_dead(moved, true);
    /* What has not arrived is TCP's. */
    while (moved->returned_count > 0)
        te_exchange_leave_to_tcp(moved, moved->returned[--moved->returned_count].item);
    for (; moved->next_item < moved->count; moved->next_item++)
        if (te_exchange_length(moved, moved->next_item) > 0)
            te_exchange_leave_to_tcp(moved, moved->next_item);
}

/* ---- whole calls --------------------------------------------------------------------------------------------------- */

/* Room for what a call needs to know of its items, on the stack for a few. */
typedef struct room {
    uint8_t few_states[TE_EXCHANGE_FEW];
    te_region *few_regions[TE_EXCHANGE_FEW];
} room;

static bool begin(te_rdma_exchange *moved, room *space) {
    moved->states = space->few_states;
    moved->regions = space->few_regions;
    if (moved->count > TE_EXCHANGE_FEW) {
        moved->states = malloc(moved->count);
        moved->regions = malloc(moved->count * sizeof *moved->regions);
        if (moved->states == NULL || moved->regions == NULL) {
            free(moved->states);
            free((void *)moved->regions);
            return false;
        }
    }
    memset(moved->states, TE_EXCHANGE_ITEM_OPEN, moved->count);
    memset((void *)moved->regions, 0, moved->count * sizeof *moved->regions);
    return true;
}

static void end(te_rdma_exchange *moved, room *space) {
    for (size_t i = 0; i < moved->count; i++)
        if (moved->regions[i] != NULL)
            te_region_release(moved->regions[i]);
    if (moved->states != space->few_states) {
        free(moved->states);
        free((void *)moved->regions);
    }
}

/* The item's local memory, held while it moves.  False: the READ is into a region that nobody may write. */
static bool hold(te_rdma_exchange *moved, size_t i) {
    te_registry *registry = moved->rdma->engine->registry;
    uint64_t length = te_exchange_length(moved, i);
    return length == 0 || te_region_hold(registry, (uint64_t)(uintptr_t)local_of(moved, i), length,
                                         moved->reads != NULL, &moved->regions[i]) != MS_REFUSED;
}

static ms_status exchange_all(te_rdma_exchange *moved, bool is_writing, ms_read_result *results) {
    moved->endpoint = te_rdma_take(moved->channel, is_writing, moved->deadline_ns);
    if (moved->endpoint == NULL) {
        for (size_t i = 0; i < moved->count; i++)
            moved->states[i] = TE_EXCHANGE_ITEM_FOR_TCP;
        return MS_OK;
    }
    moved->returned = moved->endpoint->returned;
    ms_status in_scope = te_scope_add(moved->endpoint->connection);
    if (in_scope != MS_OK)
        moved->status = in_scope;
    for (size_t i = 0; results != NULL && i < moved->count && moved->count <= TE_EXCHANGE_FEW; i++)
        moved->has_words = moved->has_words || (moved->reads[i].flags & 1) != 0;
    move_payload(moved);
    if (moved->is_fenced)
        te_exchange_take_words(moved, results);
    else if (results != NULL)
        te_exchange_read_words(moved, results);
    else
        te_exchange_push_writes(moved);
    te_scope_remove(moved->endpoint->connection);
    te_rdma_give(moved->channel, moved->endpoint);
    return moved->status;
}

ms_status te_rdma_read(te_channel *channel, const ms_read_item *items, void *const *targets,
                       size_t count, ms_read_result *results, int64_t deadline_ns) {
    te_rdma *rdma = te_channel_engine(channel)->rdma;
    room space;
    te_rdma_exchange moved = {.rdma = rdma,
                              .channel = channel,
                              .reads = items,
                              .targets = targets,
                              .count = count,
                              .deadline_ns = deadline_ns};
    if (!begin(&moved, &space))
        return MS_OK; /* TCP needs less */
    for (size_t i = 0; i < count; i++) {
        if (hold(&moved, i))
            continue;
        moved.states[i] = TE_EXCHANGE_ITEM_ENDED;
        results[i].status = MS_REFUSED;
    }
    ms_status status = exchange_all(&moved, false, results);
    for (size_t i = 0; i < count && status == MS_OK; i++)
        if (moved.states[i] == TE_EXCHANGE_ITEM_OPEN)
            results[i].status = MS_OK;
    atomic_fetch_add_explicit(&rdma->counters.read_bytes, moved.bytes, memory_order_relaxed);
    end(&moved, &space);
    return status;
}

ms_status te_rdma_write(te_channel *channel, const ms_write_item *items, const void *const *sources,
                        size_t count, uint32_t *statuses, int64_t deadline_ns) {
    te_rdma *rdma = te_channel_engine(channel)->rdma;
    room space;
    te_rdma_exchange moved = {.rdma = rdma,
                              .channel = channel,
                              .writes = items,
                              .sources = sources,
                              .count = count,
                              .deadline_ns = deadline_ns};
    if (!begin(&moved, &space))
        return MS_OK;
    for (size_t i = 0; i < count; i++) {
        if (items[i].source != 0)
            moved.states[i] = TE_EXCHANGE_ITEM_FOR_TCP; /* the peer copies it */
        else
            (void)hold(&moved, i); /* a source is never refused */
    }
    ms_status status = exchange_all(&moved, true, NULL);
    for (size_t i = 0; i < count && status == MS_OK; i++)
        if (moved.states[i] == TE_EXCHANGE_ITEM_OPEN && items[i].length > 0)
            statuses[i] = MS_OK;
    atomic_fetch_add_explicit(&rdma->counters.write_bytes, moved.bytes, memory_order_relaxed);
    end(&moved, &space);
    return status;
}
