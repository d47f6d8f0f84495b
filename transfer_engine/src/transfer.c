/* te_read and te_write: many items in few frames, large totals over several connections.
 *
 * A transfer is a list of items and a cursor.  Whoever carries it takes the next part from the
 * cursor: up to `part_bytes` bytes and TE_FRAME_IOVECS blocks, an item being cut where a part is
 * full.  The caller carries the first part; for a large total, worker threads carry others over
 * connections of their own, if there are any free.  The caller waits only for parts that a worker
 * has taken.  So a busy worker costs speed, never progress, and on return nobody touches memory.
 *
 * A seal goes with the last byte of its object when the whole object is in one part: a server seals
 * what one frame has brought.  The seal of an object that is spread over parts goes by itself, when all
 * of them have been answered.
 *
 * A part is one frame.  Its answer is received by one recvmsg into header, targets and trailer,
 * which is right when every item is OK; else the bytes of later items lie too far in front, and
 * are moved to their places.
 */
#include "te_transfer.h"

#include <stdlib.h>
#include <string.h>

#include "te_rdma.h"

#include "te_fault.h"

#define PART_BYTES_MAX (16u << 20)
#define PATIENCE_NS (200 * TE_NS_PER_MS) /* with a rail that may be lost */

/* ---- carrying -------------------------------------------------------------------------------- */

static ms_status exchange(te_moving *moved, te_part *taken, te_connection *connection) {
    return moved->reads != NULL ? te_part_read(moved, taken, connection)
                                : te_part_write(moved, taken, connection);
}

/* Reading twice harms nobody.  Writing the same bytes again does not either, unless the first attempt
 * could still be carried out later.  With a seal that is harmless, too *(seal_again)*: of what the first attempt has
 * sealed the server says so and places nothing, and while it is still copying nothing is sealed *(again_busy)*. */
static bool may_repeat(const te_moving *moved, ms_status status) {
    return status == MS_UNAVAILABLE || (moved->reads != NULL && status == MS_IO_ERROR);
}

/* Whether it may be asked for again over another connection though nobody knows what became of the first attempt: a READ,
 * or seals alone (of an object that is sealed, a SEAL is only answered). */
static bool is_harmless_twice(const te_moving *moved, const te_part *taken) {
    return moved->reads != NULL || (taken->bytes == 0 && te_part_shared_bytes(moved, taken) == 0);
}

/* In place of a connection that has failed.  NULL: there is no other. */
static ms_status replace(te_moving *moved, te_connection **connection) {
    te_checkin(*connection, false);
    *connection = NULL;
    return te_checkout(moved->channel, moved->deadline_ns, connection);
}

/* One exchange.  A peer with several addresses is given a moment on one of them, then longer on others: a rail that is lost
 * says nothing.  `*connection` is replaced then; NULL: there is no other. */
static ms_status exchange_somewhere(te_moving *moved, te_part *taken, te_connection **connection) {
    bool has_others = te_channel_rails_are_several(te_channel_rails_of(moved->channel)) &&
                      taken->bytes <= TE_SPIN_BYTES && is_harmless_twice(moved, taken);
    for (int64_t patience_ns = PATIENCE_NS;; patience_ns *= 2) {
        int64_t limit_ns = te_now_ns() + patience_ns;
        bool is_limited = has_others && limit_ns < moved->deadline_ns;
        taken->deadline_ns = is_limited ? limit_ns : moved->deadline_ns;
        ms_status status = exchange(moved, taken, *connection);
        if (status != MS_TIMEOUT || !is_limited) {
            return status;
        }
        te_connection_doubt(*connection);
        taken->is_repeated = true;
        status = replace(moved, connection);
        if (status != MS_OK) {
            return status;
        }
    }
}

static void fail(te_moving *moved, ms_status status) {
    pthread_mutex_lock(&moved->lock);
    if (moved->status == MS_OK) {
        moved->status = status;
    }
    pthread_mutex_unlock(&moved->lock);
}

static void let_go(te_moving *moved) {
    pthread_mutex_lock(&moved->lock);
    bool is_last = --moved->references == 0;
    pthread_mutex_unlock(&moved->lock);
    if (is_last) {
        pthread_mutex_destroy(&moved->lock);
        pthread_cond_destroy(&moved->changed);
        free(moved);
    }
}

/* A worker's share: as many parts as it gets, over a connection of its own; without one it does
 * nothing. */
static void carry_in_worker(void *argument) {
    te_moving *moved = argument;
    pthread_mutex_lock(&moved->lock);
    bool has_work = !moved->is_over && moved->status == MS_OK;
    moved->active += has_work;
    pthread_mutex_unlock(&moved->lock);
    if (has_work) {
        te_scope *outer = te_scope_enter(moved->scope);
        te_connection *connection = NULL;
        ms_status status = te_checkout_try(moved->channel, moved->deadline_ns, &connection);
        te_part taken;
        bool has_failed = status != MS_OK, is_returned = false;
        while (!has_failed && te_part_take(moved, &taken)) {
            status = exchange(moved, &taken, connection);
            has_failed = status != MS_OK;
            is_returned = has_failed && may_repeat(moved, status);
        }
        if (connection != NULL) {
            te_checkin(connection, !has_failed);
        }
        te_scope_enter(outer);
        pthread_mutex_lock(&moved->lock);
        if (is_returned && moved->returned_count < TE_PARTS_RETURNED_MAX) {
            taken.is_repeated = true;
            moved->returned[moved->returned_count++] = taken;
        } else if (has_failed && connection != NULL && moved->status == MS_OK) {
            moved->status = status;
        }
        moved->active--;
        pthread_cond_signal(&moved->changed);
        pthread_mutex_unlock(&moved->lock);
    }
    let_go(moved);
}

/* Waits for the workers.  True: one has brought a part back. */
static bool wait_for_workers(te_moving *moved) {
    pthread_mutex_lock(&moved->lock);
    while (moved->active > 0 && (moved->returned_count == 0 || moved->status != MS_OK)) {
        pthread_cond_wait(&moved->changed, &moved->lock); /* each has the deadline itself */
    }
    bool is_returned = moved->returned_count > 0 && moved->status == MS_OK;
    moved->is_over = !is_returned;
    pthread_mutex_unlock(&moved->lock);
    return is_returned;
}

/* The caller's share: until nothing is left.  `connection` is checked in. */
static ms_status carry(te_moving *moved, te_connection *connection) {
    ms_status status = MS_OK;
    te_part taken;
    int repeats = 0;
    do {
        while (status == MS_OK && te_part_take(moved, &taken)) {
            status = exchange_somewhere(moved, &taken, &connection);
            while (connection != NULL && may_repeat(moved, status) && repeats++ < 2) {
                taken.is_repeated = true;
                status = replace(moved, &connection);
                if (status != MS_OK) {
                    break;
                }
                status = exchange_somewhere(moved, &taken, &connection);
            }
        }
        if (status != MS_OK) {
            fail(moved, status);
        }
    } while (wait_for_workers(moved));
    if (connection != NULL) {
        te_checkin(connection, status == MS_OK || status == MS_TOO_LARGE || status == MS_NO_MEMORY);
    }
    return moved->status;
}

static uint64_t sum_payload(const te_moving *moved) {
    uint64_t total = 0;
    for (size_t i = 0; i < moved->count; i++) {
        total += te_item_payload(moved, i);
    }
    return total;
}

/* How many connections a transfer of `total` bytes is worth. */
static uint32_t stripes_for(const te_moving *moved, uint64_t total, bool is_unix) {
    uint64_t slices = total / moved->engine->config.slice_bytes;
    uint32_t most = moved->engine->config.worker_threads + 1;
    most = most < moved->engine->stripes_max ? most : moved->engine->stripes_max;
    if (is_unix || slices < 2) {
        return 1;
    }
    return slices < most ? (uint32_t)slices : most;
}

/* The whole of it, from a transfer of the caller that has no lock yet. */
ms_status te_transfer_run(te_moving *wanted) {
    te_connection *connection = NULL;
    ms_status status = te_checkout(wanted->channel, wanted->deadline_ns, &connection);
    if (status != MS_OK) {
        return status;
    }
    if (!wanted->is_repeated) {
        wanted->hello_generation = connection->hello_generation;
    }
    uint64_t total = sum_payload(wanted);
    uint32_t stripes = stripes_for(wanted, total, connection->is_unix);
    te_moving own, *moved = &own;
    if (stripes > 1) { /* workers may look at it after we have gone */
        moved = malloc(sizeof *moved);
        stripes = moved == NULL ? 1 : stripes;
        moved = moved == NULL ? &own : moved;
    }
    *moved = *wanted;
    moved->references = 1;
    moved->part_bytes = UINT64_MAX;
    pthread_mutex_init(&moved->lock, NULL);
    pthread_cond_init(&moved->changed, NULL);
    if (stripes > 1) {
        moved->part_bytes = (total + stripes - 1) / stripes;
        moved->part_bytes = moved->part_bytes < PART_BYTES_MAX ? moved->part_bytes : PART_BYTES_MAX;
        moved->is_striped = true;
        for (uint32_t i = 1; i < stripes; i++) {
            pthread_mutex_lock(&moved->lock);
            moved->references++;
            pthread_mutex_unlock(&moved->lock);
            if (te_spawn(moved->engine, carry_in_worker, moved) != MS_OK) {
                let_go(moved);
            }
        }
    }
    status = carry(moved, connection);
    if (moved == &own) {
        pthread_mutex_destroy(&own.lock);
        pthread_cond_destroy(&own.changed);
    } else {
        let_go(moved);
    }
    return status;
}

/* ---- the interface --------------------------------------------------------------------------- */

/* By which ways a call goes before the rest of it goes over the channel's connections; over rails or by an exchange of NICs, or
 * first by the latter and then over the former. */
typedef struct ways {
    bool is_over_rails; /* over the lanes of a path */
    bool is_exchanged;  /* by an endpoint that this thread takes */
} ways;

/* With one address, no NIC, and nobody who cares, it costs a look at two numbers. */
static ways ways_of(const te_moving *wanted, const te_transfer_options *options) {
    te_channel_rails *rails = te_channel_rails_of(wanted->channel);
    const te_rdma *rdma = wanted->engine->rdma;
    te_opcode opcode = wanted->reads != NULL ? TE_READ : TE_WRITE;
    if (options != NULL && options->is_meant)
        te_channel_rails_want(rails);
    bool are_rails_used = te_channel_rails_are_used(rails);
    if (wanted->count == 0 || (!are_rails_used && rdma == NULL))
        return (ways){0};
    uint64_t bytes = sum_payload(wanted);
    /* An exchange goes before whatever waits in the schedule: nothing that should stand behind others takes one. */
    bool is_background = options != NULL && options->priority == TE_PRIORITY_BACKGROUND;
    /* Small writes go with their SEAL in one frame: there is nothing to gain. */
    bool is_worth_it =
        rdma != NULL && (opcode == TE_READ || bytes >= rdma->settings.write_bytes_min);
    bool is_by_nics = rdma != NULL && (is_worth_it || !is_background) &&
                      te_channel_rails_serve_rdma(rails, opcode, bytes, is_background);
    return (ways){.is_over_rails =
                      is_by_nics || (are_rails_used && bytes >= wanted->engine->rails_bytes_min),
                  .is_exchanged = is_worth_it && !is_by_nics && !is_background};
}

ms_status te_read_as(te_channel *channel, const ms_read_item *items, void *const *targets,
                     size_t count, ms_read_result *results, const te_transfer_options *options,
                     int64_t deadline_ns) {
    te_moving wanted = {
        .channel = channel,
        .engine = te_channel_engine(channel),
        .scope = te_scope_current(),
        .deadline_ns = deadline_ns,
        .count = count,
        .reads = items,
        .targets = targets,
        .results = results,
    };
    for (size_t i = 0; i < count; i++) {
        results[i] = (ms_read_result){.status = MS_PENDING};
    }
    ms_status status = te_channel_enter(channel);
    if (status == MS_OK) {
        ways chosen = ways_of(&wanted, options);
        if (chosen.is_exchanged) {
            status = te_rdma_read(channel, items, targets, count, results, deadline_ns);
        }
        if (status == MS_OK && chosen.is_over_rails) {
            status = te_channel_rails_read(channel, items, targets, count, results, options,
                                           deadline_ns);
        }
        if (status == MS_OK && count > 0) {
            status = chosen.is_exchanged || chosen.is_over_rails ? te_transfer_read_rest(&wanted)
                                                                 : te_transfer_run(&wanted);
        }
        te_channel_leave(channel);
    }
    for (size_t i = 0; status != MS_OK && i < count; i++) {
        results[i] = (ms_read_result){.status = (uint32_t)status};
    }
    return status;
}

ms_status te_read(te_channel *channel, const ms_read_item *items, void *const *targets,
                  size_t count, ms_read_result *results, int64_t deadline_ns) {
    return te_read_as(channel, items, targets, count, results, NULL, deadline_ns);
}

static ms_status write_wanted(te_moving *wanted, size_t seals_length,
                              const te_transfer_options *options) {
    te_channel *channel = wanted->channel;
    size_t sealed_bytes = 0, count = wanted->count;
    for (size_t i = 0; i < count; i++) {
        wanted->statuses[i] = MS_PENDING;
        sealed_bytes += wanted->writes[i].seal_length;
    }
    if (sealed_bytes != seals_length || (wanted->flags & MS_FLAG_RELAY) != 0) {
        te_channel_set_error(channel,
                             "te_write: the seals do not add up, or MS_FLAG_RELAY was given");
        return MS_BAD_REQUEST;
    }
    ms_status status = te_channel_enter(channel);
    if (status == MS_OK) {
        /* Of a connection it is known in which session it is. */
        ways chosen = wanted->is_repeated ? (ways){0} : ways_of(wanted, options);
        if (chosen.is_exchanged) {
            status = te_rdma_write(channel, wanted->writes, wanted->sources, count,
                                   wanted->statuses, wanted->deadline_ns);
        }
        chosen.is_over_rails = chosen.is_over_rails && status == MS_OK;
        if (chosen.is_over_rails) {
            status = te_channel_rails_write(channel, wanted->writes, wanted->sources, count,
                                            wanted->statuses, options, wanted->deadline_ns);
        }
        if (status == MS_OK && count > 0) {
            status = chosen.is_exchanged || chosen.is_over_rails ? te_transfer_write_rest(wanted)
                                                                 : te_transfer_write_all(wanted);
        }
        if (status == MS_OK) {
            te_transfer_seal_busy(wanted);
        }
        te_channel_leave(channel);
    }
    for (size_t i = 0; status != MS_OK && i < count; i++) {
        wanted->statuses[i] = (uint32_t)status;
    }
    return status;
}

ms_status te_write_as(te_channel *channel, const ms_write_item *items, const void *const *sources,
                      size_t count, const void *seals, size_t seals_length, uint32_t flags,
                      uint32_t *statuses, const te_transfer_options *options, int64_t deadline_ns) {
    te_moving wanted = {
        .channel = channel,
        .engine = te_channel_engine(channel),
        .scope = te_scope_current(),
        .deadline_ns = deadline_ns,
        .count = count,
        .writes = items,
        .sources = sources,
        .seals = seals,
        .statuses = statuses,
        .flags = flags,
    };
    return write_wanted(&wanted, seals_length, options);
}

ms_status te_write_again(te_channel *channel, const ms_write_item *items,
                         const void *const *sources, size_t count, const void *seals,
                         size_t seals_length, uint32_t generation, uint32_t *statuses,
                         int64_t deadline_ns) {
    te_moving wanted = {
        .channel = channel,
        .engine = te_channel_engine(channel),
        .scope = te_scope_current(),
        .deadline_ns = deadline_ns,
        .count = count,
        .writes = items,
        .sources = sources,
        .seals = seals,
        .statuses = statuses,
        .is_repeated = true,
        .hello_generation = generation,
    };
    return write_wanted(&wanted, seals_length, NULL);
}

ms_status te_write(te_channel *channel, const ms_write_item *items, const void *const *sources,
                   size_t count, const void *seals, size_t seals_length, uint32_t flags,
                   uint32_t *statuses, int64_t deadline_ns) {
    return te_write_as(channel, items, sources, count, seals, seals_length, flags, statuses, NULL,
                       deadline_ns);
}
