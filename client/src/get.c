/* Reading objects: the nearest replica that works, the word compared after the last byte.
 *
 * A batch goes in rounds.  Each round reads what has a location (the cache's, then those of one look-up): it picks a
 * replica for each item, copies the local ones and reads the others, one te_read a node.  A word that
 * differs means the location was stale: it is forgotten and looked up again, a few times; after that it is a miss
 * (check_always).  A replica that fails is not tried again in this call.
 *
 * A node has the hedge's time first; then other replicas and other nodes have their turn.  What was left behind for
 * that is asked again at the end, with all the time that there is, if a probe says that the node answers at all.
 */
#include "cl_internal.h"
#include "ms_planted.h"
#include "pieces.h"

#define ROUNDS_MAX 12u
#define LOOKUPS_MAX 4u /* of one item: moves of its copies, and upserts, overtake reads */
#define PREFETCH_GROUP 32u
/* A read that is broken off with nobody else to ask begins again at the same node, over a new connection: it has lost what had
 * come.  So its bytes have ten times the hedge's time, 5 MB/s; a connection that is lost without a word still ends. */
#define ALONE_TIMES 10u

typedef struct read_state {
    cl_location *location;
    cl_node *node;
    uint32_t tried;   /* bit per replica */
    uint32_t hurried; /* those of them that had the hedge's time only */
    uint32_t replica;
    uint32_t runs;   /* read items of this round */
    uint8_t lookups; /* how often this item was looked up because its location was stale */
    bool is_hurried; /* in this round */
    bool is_alone;   /* in this round: no other node could be asked meanwhile */
    bool is_asked;   /* the cached location led nowhere: the master may know another one */
    bool is_patient; /* every replica was tried: now there is time */
} read_state;

/* Bytes of the object that this item wants. */
static uint64_t wanted(const cl_item *item, const cl_location *location) {
    if (!item->is_range)
        return location->size;
    if (item->offset >= location->size)
        return 0;
    uint64_t left = location->size - item->offset;
    return left < item->size ? left : item->size;
}

/* The part of each extent that is wanted, one after the other. */
typedef struct part_walk {
    uint64_t skip, left; /* still to be skipped, still wanted */
} part_walk;

static part_walk walk_open(const cl_item *item, const cl_location *location) {
    return (part_walk){.skip = item->is_range ? item->offset : 0, .left = wanted(item, location)};
}

/* Offset in this extent and length there; false: nothing of it is wanted. */
static bool walk_next(part_walk *walk, const ms_extent *extent, uint64_t *offset,
                      uint64_t *length) {
    uint64_t bytes = (uint64_t)extent->page_count * MS_PAGE_SIZE;
    if (walk->skip >= bytes) {
        walk->skip -= bytes;
        return false;
    }
    *offset = walk->skip;
    *length = bytes - walk->skip < walk->left ? bytes - walk->skip : walk->left;
    walk->skip = 0;
    walk->left -= *length;
    return *length > 0;
}

/* Compare every extent's word; after the copies, before anything is reported. */
static bool words_match(const te_mapping *mapping, const cl_location *location,
                        const cl_replica *replica) {
#ifdef CL_PLANT_NO_WORD_CHECK /* a fault that the stale-read hunt must find */
    (void)mapping, (void)location, (void)replica;
    return true;
#else
    const uint64_t expected = ms_word(location->version, 1);
    if (MS_IS_PLANTED("check_always"))
        return true;
    for (uint32_t i = 0; i < replica->extent_count; i++) {
        const ms_extent *extent = &location->extents[replica->extent_first + i];
        if (__atomic_load_n(&mapping->words[extent->page], __ATOMIC_ACQUIRE) != expected)
            return false;
    }
    return true;
#endif
}

static bool inside(const te_mapping *mapping, const cl_location *location,
                   const cl_replica *replica) {
    for (uint32_t i = 0; i < replica->extent_count; i++) {
        const ms_extent *extent = &location->extents[replica->extent_first + i];
        if (extent->page >= mapping->page_count ||
            extent->page_count > mapping->page_count - extent->page)
            return false;
    }
    return true;
}

static ms_status read_mapped(cl_client *client, const te_mapping *mapping,
                             const cl_location *location, const cl_replica *replica,
                             const cl_item *item, uint64_t batch_bytes) {
    if (!inside(mapping, location, replica))
        return MS_GONE;
    cl_cursor cursor;
    cl_cursor_open(&cursor, item);
    part_walk walk = walk_open(item, location);
    for (uint32_t i = 0; i < replica->extent_count && walk.left > 0; i++) {
        const ms_extent *extent = &location->extents[replica->extent_first + i];
        uint64_t offset, length;
        if (!walk_next(&walk, extent, &offset, &length))
            continue;
        const uint8_t *source = mapping->payload + (uint64_t)extent->page * MS_PAGE_SIZE + offset;
        while (length > 0) {
            uint64_t run;
            uint8_t *target = cl_cursor_next(&cursor, length, &run);
            te_copy_part(client->engine, target, source, run, batch_bytes);
            source += run;
            length -= run;
        }
    }
    /* The payload's loads come before the words' (protocol 4.2); streaming stores were fenced by te_copy. */
    atomic_thread_fence(memory_order_acquire);
    return words_match(mapping, location, replica) ? MS_OK : MS_GONE;
}

static bool has_other_replica(const read_state *state) {
    return (state->tried & ((1u << state->location->replica_count) - 1)) !=
           (1u << state->location->replica_count) - 1;
}

/* Nearest first: same host, then any; those that do not answer last.  False: none is left. */
static bool choose_replica(cl_client *client, read_state *state, int64_t deadline_ns) {
    int best = -1, best_rank = 6;
    cl_node *best_node = NULL;
    if (state->hurried != 0 && !has_other_replica(state)) {
        state->tried &= ~state->hurried;
        state->hurried = 0;
        state->is_patient = true;
    }
    for (uint32_t i = 0; i < state->location->replica_count; i++) {
        if (state->tried & 1u << i)
            continue;
        const cl_replica *replica = &state->location->replicas[i];
        cl_node *node = cl_node_get(client, replica->server, replica->incarnation,
                                    state->location->epoch, deadline_ns);
        if (node == NULL) {
            state->tried |= 1u << i;
            continue;
        }
        int rank = node->is_local ? 0 : 1;
        if (!cl_node_is_mapped(node, replica->segment)) /* else nobody is asked */
            rank += 2 * (int)cl_node_state(node);
        if (rank < best_rank) {
            best = (int)i;
            best_rank = rank;
            best_node = node;
        }
    }
    if (best < 0)
        return false;
    state->replica = (uint32_t)best;
    state->node = best_node;
    state->tried |= 1u << best;
    return true;
}

/* The item has the object's bytes. */
static void finished(cl_item *item, read_state *state) {
    item->status = MS_OK;
    item->bytes = wanted(item, state->location);
    cl_location_release(state->location);
    state->location = NULL;
}

static void stale(cl_client *client, cl_item *item, read_state *state) {
    atomic_fetch_add_explicit(&client->locations_gone, 1, memory_order_relaxed);
    cl_location_forget(client, item->hash, state->location->version);
    cl_location_release(state->location);
    state->location = NULL;
    state->tried = state->hurried = 0;
    if (state->lookups >= LOOKUPS_MAX)
        item->status = MS_NOT_FOUND;
}

/* Every holder has failed.  True: one more look-up may know a new one; the location is kept for others, and for
 * when they are back. */
static bool ask_anew(cl_client *client, read_state *state) {
    if (state->lookups != 0 || cl_master_check(client, "", 0, NULL) != MS_OK)
        return false;
    cl_location_release(state->location);
    state->location = NULL;
    state->tried = state->hurried = 0;
    state->is_patient = false;
    state->is_asked = true;
    return true;
}

/* What came over the network, when it was read whole and its checksum is known. */
static ms_status check_bytes(cl_client *client, const cl_item *item, const cl_location *location,
                             const cl_node *node, cl_failure *failure) {
    if (client->config.checksums != CL_CHECKSUMS_VERIFY || !location->has_checksum ||
        item->is_range)
        return MS_OK;
    uint32_t checksum = cl_item_checksum(item, location->size);
    if (checksum == location->checksum)
        return MS_OK;
    atomic_fetch_add_explicit(&client->checksum_failures, 1, memory_order_relaxed);
    return cl_fail(failure, MS_BAD_CHECKSUM, "read", node->name,
                   "the bytes that came are not those that were put (CRC32C %08x, not %08x)",
                   (unsigned)checksum, (unsigned)location->checksum);
}

/* Until when a node may take: a caller that could do something else meanwhile waits for the hedge's time. */
static int64_t limit_of(cl_node *node, bool is_hurried, uint64_t bytes, int64_t deadline_ns) {
    bool is_down = cl_node_state(node) == CL_BREAKER_OPEN;
    return is_hurried || is_down ? cl_hedge_ns(bytes, deadline_ns) : deadline_ns;
}

static bool is_of(const read_state *state, const cl_node *node, bool is_hurried) {
    return state->node == node && state->is_hurried == is_hurried;
}

/* Reads of one node: every pending item that chose it.  Items end OK, stay pending, or turn stale. */
static void read_node(cl_client *client, cl_node *node, bool is_hurried, cl_item *items,
                      read_state *states, size_t count, const te_transfer_options *share,
                      int64_t deadline_ns, cl_failure *failure) {
    size_t reads = 0;
    uint64_t bytes = 0;
    bool is_alone = false;
    for (size_t i = 0; i < count; i++)
        if (is_of(&states[i], node, is_hurried)) {
            states[i].runs = 0;
            is_alone |= states[i].is_alone;
            reads += cl_runs_max(&items[i],
                                 states[i].location->replicas[states[i].replica].extent_count);
            bytes += states[i].location->size;
        }
    ms_read_item item_scratch[CL_SCRATCH_ITEMS];
    void *target_scratch[CL_SCRATCH_ITEMS];
    ms_read_result result_scratch[CL_SCRATCH_ITEMS];
    ms_read_item *read_items = item_scratch;
    void **targets = target_scratch;
    ms_read_result *results = result_scratch;
    ms_status status = MS_OK;
    const int64_t began_ns = te_now_ns();
    if (reads > CL_SCRATCH_ITEMS) {
        read_items = malloc(reads * sizeof *read_items);
        targets = malloc(reads * sizeof *targets);
        results = malloc(reads * sizeof *results);
        if (read_items == NULL || targets == NULL || results == NULL)
            status = MS_NO_MEMORY;
    }
    if (status == MS_OK) {
        size_t at = 0;
        for (size_t i = 0; i < count; i++) {
            if (!is_of(&states[i], node, is_hurried))
                continue;
            const cl_location *location = states[i].location;
            const cl_replica *replica = &location->replicas[states[i].replica];
            cl_cursor cursor;
            cl_cursor_open(&cursor, &items[i]);
            part_walk walk = walk_open(&items[i], location);
            for (uint32_t j = 0; j < replica->extent_count; j++) {
                const ms_extent *extent = &location->extents[replica->extent_first + j];
                uint64_t offset = 0, length = 0, done = 0;
                /* Nothing wanted at all: the first word still says whether the object is there. */
                if (!walk_next(&walk, extent, &offset, &length) &&
                    (j > 0 || wanted(&items[i], location) > 0))
                    continue;
                do { /* an empty object is read too: its word says whether it is there */
                    uint64_t run;
                    targets[at] = cl_cursor_next(&cursor, length - done, &run);
                    read_items[at++] = (ms_read_item){
                        .segment = replica->segment,
                        .flags = 1,
                        .offset = (uint64_t)extent->page * MS_PAGE_SIZE + offset + done,
                        .length = run,
                        .word = ms_word(location->version, 1),
                        .guard_page = extent->page};
                    states[i].runs++;
                    done += run;
                } while (done < length);
            }
        }
        reads = at;
        static const te_transfer_options foreground = {.priority = TE_PRIORITY_URGENT};
        status = te_read_as(
            node->reading, read_items, targets, reads, results, share != NULL ? share : &foreground,
            limit_of(node, is_hurried, is_alone ? bytes * ALONE_TIMES : bytes, deadline_ns));
    }
    if (status == MS_OK)
        cl_node_worked(client, node);
    else if (cl_is_transport(status))
        cl_node_failed(client, node, began_ns);
    if (status != MS_OK) {
        char text[TE_ERROR_BYTES];
        te_channel_error(node->reading, text);
        cl_fail(failure, status, "read", node->name, "%s", text);
    }
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        if (!is_of(&states[i], node, is_hurried))
            continue;
        states[i].node = NULL;
        const uint32_t runs = states[i].runs;
        ms_status outcome = status;
        for (uint32_t j = 0; j < runs && outcome == MS_OK; j++) {
            const ms_read_result *result = &results[at + j];
            if (result->status != MS_OK)
                outcome = (ms_status)result->status;
#ifndef CL_PLANT_NO_WORD_CHECK
            else if (result->word != read_items[at + j].word && !MS_IS_PLANTED("check_always"))
                outcome = MS_GONE;
#endif
        }
        at += runs;
        if (outcome == MS_OK)
            outcome = check_bytes(client, &items[i], states[i].location, node, failure);
        if (outcome == MS_OK) {
            finished(&items[i], &states[i]);
        } else if (outcome == MS_GONE || outcome == MS_WRONG_INCARNATION) {
            stale(client, &items[i], &states[i]);
        } else if (outcome == MS_TIMEOUT && is_hurried && !states[i].is_patient) {
            states[i].hurried |= 1u << states[i].replica;
            atomic_fetch_add_explicit(&client->reads_moved, 1, memory_order_relaxed);
        } else if (!has_other_replica(&states[i]) && states[i].hurried == 0) {
            if (te_now_ns() < deadline_ns && ask_anew(client, &states[i]))
                continue;
            items[i].status = outcome;
            if (status == MS_OK && outcome != MS_BAD_CHECKSUM)
                cl_fail(failure, outcome, "read", node->name, "the read was refused");
        }
    }
    if (read_items != item_scratch)
        free(read_items);
    if (targets != target_scratch)
        free(targets);
    if (results != result_scratch)
        free(results);
}

/* Chooses a replica and maps its memory, if it is on this host; *mapping NULL: it has to be asked for its bytes.
 * False: no replica is left. */
static bool choose_and_map(cl_client *client, read_state *state, const te_mapping **mapping,
                           int64_t deadline_ns) {
    for (;;) {
        if (!choose_replica(client, state, deadline_ns))
            return false;
        bool was_there = cl_node_state(state->node) == CL_BREAKER_CLOSED;
        *mapping =
            cl_node_map(client, state->node, state->location->replicas[state->replica].segment,
                        cl_hedge_ns(0, deadline_ns));
        bool has_failed = was_there && cl_node_state(state->node) != CL_BREAKER_CLOSED;
        if (*mapping != NULL || !has_failed || state->is_patient)
            return true;
        state->hurried |= 1u << state->replica; /* its socket was silent: others first */
    }
}

/* One item with a location: copy when it is on this host; else its node is left in the state. */
static void read_or_choose(cl_client *client, cl_item *item, read_state *state,
                           uint64_t batch_bytes, int64_t deadline_ns, cl_failure *failure) {
    if (!item->is_range && item->size < state->location->size) {
        item->bytes = state->location->size;
        item->status = MS_BUFFER_TOO_SMALL;
        return;
    }
    const te_mapping *mapping;
    if (!choose_and_map(client, state, &mapping, deadline_ns)) {
        if (ask_anew(client, state))
            return;
        item->status = MS_UNAVAILABLE;
        cl_fail(failure, MS_UNAVAILABLE, "read", "", "no holder of the object can be reached now");
        return;
    }
    if (mapping == NULL)
        return;
    const cl_replica *replica = &state->location->replicas[state->replica];
    ms_status status = read_mapped(client, mapping, state->location, replica, item, batch_bytes);
    state->node = NULL;
    if (status != MS_OK) {
        stale(client, item, state);
        return;
    }
    finished(item, state);
    atomic_fetch_add_explicit(&client->get_bytes_local, item->bytes, memory_order_relaxed);
}

/* Cached locations for what has none. */
static void take_cached(cl_client *client, const cl_item *items, read_state *states, size_t count) {
    int64_t now_ns = te_now_ns();
    for (size_t i = 0; i < count; i++) {
        if (count > 1 && i % PREFETCH_GROUP == 0)
            cl_locations_prefetch(client, items + i,
                                  count - i < PREFETCH_GROUP ? count - i : PREFETCH_GROUP);
        if (items[i].status != MS_PENDING || states[i].location != NULL || states[i].lookups != 0 ||
            states[i].is_asked)
            continue;
        states[i].location = cl_location_find(client, items[i].hash, now_ns);
        if (states[i].location != NULL) {
            atomic_fetch_add_explicit(&client->locations_used, 1, memory_order_relaxed);
            cl_touch_later(client, items[i].hash);
        }
    }
}

/* Asks the master for what has no location.  Items that it does not know, or all of these when it fails, have their
 * status then. */
static ms_status look_up(cl_client *client, cl_item *items, read_state *states, size_t count,
                         int64_t deadline_ns, cl_failure *failure) {
    /* cl_lookup takes whatever is pending: hide those that have a location already. */
    cl_location *scratch[CL_SCRATCH_ITEMS], **locations = scratch;
    if (count > CL_SCRATCH_ITEMS) {
        locations = calloc(count, sizeof *locations);
        if (locations == NULL)
            return cl_fail(failure, MS_NO_MEMORY, "lookup", "", "out of memory");
    } else {
        memset(scratch, 0, count * sizeof *scratch);
    }
    for (size_t i = 0; i < count; i++)
        if (items[i].status == MS_PENDING && states[i].location != NULL)
            items[i].status = MS_OK;
    ms_status status = cl_lookup(client, items, count, locations, deadline_ns, failure);
    for (size_t i = 0; i < count; i++) {
        if (locations[i] != NULL) {
            states[i].location = locations[i];
            states[i].lookups++;
            items[i].status = MS_PENDING;
        } else if (items[i].status == MS_OK && states[i].location != NULL) {
            items[i].status = MS_PENDING;
        }
    }
    if (locations != scratch)
        free(locations);
    return status;
}

/* Whether somebody is to be asked who has been silent, so that it may take until the deadline. */
static bool is_long(const read_state *state) {
    return state->node != NULL &&
           (state->is_patient || cl_node_state(state->node) != CL_BREAKER_CLOSED);
}

/* Whether something else could be done while a node is slow: ask another one. */
static bool has_choice(const read_state *states, size_t count) {
    const cl_node *first = NULL;
    for (size_t i = 0; i < count; i++) {
        if (states[i].node == NULL)
            continue;
        first = first == NULL ? states[i].node : first;
        if (states[i].node != first || states[i].location->replica_count > 1)
            return true;
    }
    return false;
}

/* Reads whatever has a location.  False: it would have to wait for somebody who does not answer, and may not. */
static bool read_located(cl_client *client, cl_item *items, read_state *states, size_t count,
                         bool may_wait, const te_transfer_options *share, int64_t deadline_ns,
                         cl_failure *failure) {
    bool any = false;
    uint64_t batch_bytes = 0;
    for (size_t i = 0; i < count; i++)
        if (items[i].status == MS_PENDING && states[i].location != NULL)
            batch_bytes += wanted(&items[i], states[i].location);
    for (size_t i = 0; i < count; i++) {
        if (items[i].status != MS_PENDING || states[i].location == NULL)
            continue;
        read_or_choose(client, &items[i], &states[i], batch_bytes, deadline_ns, failure);
        any = any || (items[i].status == MS_PENDING && states[i].node != NULL);
    }
    if (!any)
        return true;
    for (size_t i = 0; !may_wait && i < count; i++)
        if (is_long(&states[i]))
            return false;
    /* Who may not wait leaves a slow node to somebody who may. */
    const bool is_alone = may_wait && !has_choice(states, count);
    for (size_t i = 0; i < count; i++)
        if (states[i].node != NULL) {
            states[i].is_alone = is_alone;
            states[i].is_hurried =
                !states[i].is_patient && cl_node_state(states[i].node) != CL_BREAKER_OPEN;
        }
    for (size_t i = 0; i < count; i++)
        if (states[i].node != NULL && states[i].is_hurried)
            read_node(client, states[i].node, true, items, states, count, share, deadline_ns,
                      failure);
    /* Those that answer first. */
    for (int state = CL_BREAKER_CLOSED; state <= CL_BREAKER_OPEN; state++)
        for (size_t i = 0; i < count; i++)
            if (states[i].node != NULL &&
                (state == CL_BREAKER_OPEN || (int)cl_node_state(states[i].node) <= state)) {
                if (!may_wait)
                    return false; /* it has fallen silent meanwhile */
                cl_node_settle(client, states[i].node, deadline_ns);
                read_node(client, states[i].node, false, items, states, count, share, deadline_ns,
                          failure);
            }
    return true;
}

/* Items that wait: with a location, or (false) without one. */
static size_t count_waiting(const cl_item *items, const read_state *states, size_t count,
                            bool has_location) {
    size_t waiting = 0;
    for (size_t i = 0; i < count; i++)
        waiting += items[i].status == MS_PENDING && (states[i].location != NULL) == has_location;
    return waiting;
}

static void count_gets(cl_client *client, const cl_item *items, size_t count) {
    uint64_t hits = 0, bytes = 0;
    for (size_t i = 0; i < count; i++)
        if (items[i].status == MS_OK) {
            hits++;
            bytes += items[i].bytes;
        }
    atomic_fetch_add_explicit(&client->gets, count, memory_order_relaxed);
    atomic_fetch_add_explicit(&client->get_hits, hits, memory_order_relaxed);
    atomic_fetch_add_explicit(&client->get_misses, count - hits, memory_order_relaxed);
    atomic_fetch_add_explicit(&client->get_bytes, bytes, memory_order_relaxed);
}

/* Whether everything that waits can be read, or given up, without the master. */
static bool is_known(cl_client *client, const cl_item *items, const read_state *states,
                     size_t count) {
    for (size_t i = 0; i < count; i++) {
        const cl_location *location = states[i].location;
        if (items[i].status != MS_PENDING)
            continue;
        if (location == NULL)
            return false;
        for (uint32_t j = 0; j < location->replica_count; j++)
            if (!cl_node_is_told(client, location->replicas[j].server,
                                 location->replicas[j].incarnation, location->epoch))
                return false;
    }
    return true;
}

/* Whether the call has failed as a whole. */
static bool is_common(const cl_item *items, size_t count, ms_status status) {
    for (size_t i = 0; i < count; i++)
        if (items[i].status != status)
            return false;
    return true;
}

/* !may_ask: PENDING where the master would be asked, or somebody waited for who does not answer. */
static ms_status get(cl_client *client, cl_item *items, size_t count, bool may_ask,
                     const te_transfer_options *share, int64_t deadline_ns, cl_failure *failure) {
    read_state scratch[CL_SCRATCH_ITEMS], *states = scratch;
    size_t pending = cl_hash_items(client, items, count);
    if (count > CL_SCRATCH_ITEMS) {
        states = malloc(count * sizeof *states);
        if (states == NULL) {
            cl_fail_all(items, count, MS_NO_MEMORY);
            return cl_fail(failure, MS_NO_MEMORY, "get", "", "out of memory");
        }
    }
    memset(states, 0, count * sizeof *states);
    ms_status status = MS_OK, asked = MS_OK;
    for (unsigned round = 0; round < ROUNDS_MAX && pending > 0; round++) {
        take_cached(client, items, states, count);
        if (!may_ask && !is_known(client, items, states, count)) {
            status = MS_PENDING;
            break;
        }
        size_t missing = count_waiting(items, states, count, false);
        /* What is known does not wait for the master. */
        if (missing < pending &&
            !read_located(client, items, states, count, may_ask, share, deadline_ns, failure)) {
            status = MS_PENDING;
            break;
        }
        if (may_ask && count_waiting(items, states, count, false) != 0)
            asked = look_up(client, items, states, count, deadline_ns, failure);
        pending =
            count_waiting(items, states, count, true) + count_waiting(items, states, count, false);
        if (pending > 0 && te_now_ns() >= deadline_ns) {
            status = cl_fail(failure, MS_TIMEOUT, "get", "", "the deadline passed");
            break;
        }
    }
    if (status == MS_OK && asked != MS_OK && is_common(items, count, asked))
        status = asked;
    if (status != MS_PENDING)
        cl_fail_all(items, count, status == MS_OK ? MS_UNAVAILABLE : status);
    for (size_t i = 0; i < count; i++)
        if (states[i].location != NULL)
            cl_location_release(states[i].location);
    if (states != scratch)
        free(states);
    if (status != MS_PENDING)
        count_gets(client, items, count);
    return status;
}

ms_status cl_get(cl_client *client, cl_item *items, size_t count, const te_transfer_options *share,
                 int64_t deadline_ns, cl_failure *failure) {
    return get(client, items, count, true, share, deadline_ns, failure);
}

ms_status cl_get_known(cl_client *client, cl_item *items, size_t count,
                       const te_transfer_options *share, int64_t deadline_ns, cl_failure *failure) {
    return get(client, items, count, false, share, deadline_ns, failure);
}

ms_status cl_view_open(cl_client *client, cl_item *item, cl_view *view, int64_t deadline_ns,
                       cl_failure *failure) {
    *view = (cl_view){0};
    if (cl_hash_items(client, item, 1) == 0)
        return cl_fail(failure, MS_BAD_KEY, "view", "", "a key is 1 to %u bytes of UTF-8",
                       MS_KEY_BYTES_MAX);
    read_state state = {0};
    ms_status status = MS_OK;
    for (unsigned round = 0; round < ROUNDS_MAX && item->status == MS_PENDING; round++) {
        take_cached(client, item, &state, 1);
        if (state.location == NULL)
            status = look_up(client, item, &state, 1, deadline_ns, failure);
        if (status != MS_OK || item->status != MS_PENDING)
            break;
        if (!choose_replica(client, &state, deadline_ns)) {
            item->status = MS_UNAVAILABLE;
            cl_fail(failure, MS_UNAVAILABLE, "view", "",
                    "no holder of the object on this host; use get");
            break;
        }
        const cl_replica *replica = &state.location->replicas[state.replica];
        const te_mapping *mapping =
            cl_node_map(client, state.node, replica->segment,
                        limit_of(state.node, has_other_replica(&state), 0, deadline_ns));
        if (mapping == NULL || replica->extent_count != 1 ||
            !inside(mapping, state.location, replica)) {
            state.node = NULL;
            if (replica->extent_count != 1 && mapping != NULL)
                cl_fail(failure, MS_UNAVAILABLE, "view", "",
                        "the object lies in several extents; use get");
            continue;
        }
        const ms_extent *extent = &state.location->extents[replica->extent_first];
        ms_view_item wanted = {.version = state.location->version,
                               .segment = replica->segment,
                               .tag = cl_view_next_tag(),
                               .page = extent->page};
        int64_t began_ns = te_now_ns();
        status = cl_view_ask(client, state.node, &wanted,
                             limit_of(state.node, has_other_replica(&state), 0, deadline_ns));
        if (status == MS_TIMEOUT)
            cl_node_failed(client, state.node, began_ns);
        if (status == MS_OK) {
            cl_node_worked(client, state.node);
            *view = (cl_view){.address = mapping->payload + (uint64_t)extent->page * MS_PAGE_SIZE,
                              .size = state.location->size,
                              .version = state.location->version,
                              .server = replica->server,
                              .incarnation = replica->incarnation,
                              .segment = replica->segment,
                              .page = extent->page,
                              .tag = wanted.tag,
                              .epoch = state.node->epoch_first};
            atomic_fetch_add(&client->holders, 1);
            item->status = MS_OK;
            item->bytes = view->size;
        } else if (status == MS_GONE) {
            status = MS_OK;
            stale(client, item, &state);
        } else if (cl_is_transport(status) && has_other_replica(&state)) {
            status = MS_OK;
        } else {
            cl_fail(failure, status, "view", state.node->name, "the server refused the view (%s)",
                    ms_status_name(status));
            item->status = status;
        }
    }
    if (item->status == MS_PENDING)
        item->status = MS_UNAVAILABLE;
    if (state.location != NULL)
        cl_location_release(state.location);
    return item->status == MS_NOT_FOUND ? MS_OK : item->status;
}

void cl_view_close(uint64_t handle, const cl_view *view) {
    cl_client *client = cl_of_view(handle);
    if (client == NULL)
        return;
    cl_view_end(client, view);
    cl_let_go(client);
}
