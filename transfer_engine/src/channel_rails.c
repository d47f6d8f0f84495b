/* Paths of channels, and the transfers over them: see te_channel_rails.h. */
#include <stdlib.h>
#include <string.h>

#include "te_channel_rails.h"
#include "te_rdma.h"
#include "te_session.h"

#include "te_fault.h"

#define PAUSE_FIRST_NS (50 * TE_NS_PER_MS)
#define PAUSE_MAX_NS TE_NS_PER_S
#define WARM_NS                                                                                    \
    TE_NS_PER_S /* lanes that are down are asked for so often, while there is something to move */

/* A path, and how many transfers use it. */
typedef struct kept_path {
    te_path *path;
    uint32_t users;
    bool is_over; /* closed by its last user */
    struct kept_path *next;
} kept_path;

struct te_channel_rails {
    te_channel *channel;
    _Atomic uint32_t count;
    _Atomic bool
        is_wanted;        /* somebody has said how bytes are shared: one rail has a schedule, too */
    pthread_mutex_t lock; /* before the channel's and the carrier's */
    char *addresses;      /* as given; NULL: rails were set */
    te_rail_ends
        ends[TE_RAILS_MAX]; /* of `addresses`, as of when the path was opened; or those set */
    kept_path *now;         /* NULL: none */
    kept_path *all;
    bool is_closing;
    uint32_t failures; /* paths that have died before any rail was up, in a row */
    int64_t retry_ns, warmed_ns[2];
};

/* ---- life -------------------------------------------------------------------------------------------------------- */

ms_status te_channel_rails_open(te_channel *channel, const char *addresses,
                                te_channel_rails **result) {
    te_channel_rails *rails = calloc(1, sizeof *rails);
    if (rails == NULL)
        return MS_NO_MEMORY;
    rails->channel = channel;
    pthread_mutex_init(&rails->lock, NULL);
    rails->addresses = strdup(addresses);
    if (rails->addresses == NULL) {
        te_channel_rails_close(rails);
        return MS_NO_MEMORY;
    }
    uint32_t count = 1;
    for (const char *at = addresses; *at != '\0'; at++)
        count += *at == ',';
    atomic_store(&rails->count, count);
    *result = rails;
    return MS_OK;
}

/* Under the lock: nobody takes it any more. */
static void drop(te_channel_rails *rails, kept_path *kept) {
    if (rails->now == kept)
        rails->now = NULL;
    kept->is_over = true;
    if (kept->users > 0)
        return;
    kept_path **at = &rails->all;
    while (*at != kept)
        at = &(*at)->next;
    *at = kept->next;
    te_path_close(kept->path);
    free(kept);
}

void te_channel_rails_close(te_channel_rails *rails) {
    if (rails == NULL)
        return;
    while (rails->all != NULL)
        drop(rails, rails->all);
    pthread_mutex_destroy(&rails->lock);
    free(rails->addresses);
    free(rails);
}

void te_channel_rails_renew(te_channel_rails *rails) {
    if (rails == NULL)
        return;
    pthread_mutex_lock(&rails->lock);
    if (rails->now != NULL)
        drop(rails, rails->now);
    rails->failures = 0;
    rails->retry_ns = 0;
    pthread_mutex_unlock(&rails->lock);
}

void te_channel_rails_break_off(te_channel_rails *rails, bool for_ever) {
    if (rails == NULL)
        return;
    pthread_mutex_lock(&rails->lock);
    rails->is_closing |= for_ever;
    for (kept_path *each = rails->all; each != NULL; each = each->next)
        te_path_break_off(each->path, for_ever);
    pthread_mutex_unlock(&rails->lock);
}

ms_status te_channel_rails_set(te_channel_rails *rails, const te_rail_ends *ends, uint32_t count) {
    ms_status status = MS_OK;
    if (count > TE_RAILS_MAX)
        return MS_BAD_REQUEST;
    pthread_mutex_lock(&rails->lock);
    free(rails->addresses);
    rails->addresses = NULL;
    if (count > 0)
        memcpy(rails->ends, ends, count * sizeof *ends);
    atomic_store(&rails->count, count);
    bool has_nics = te_channel_engine(rails->channel)->rdma != NULL && count > 0;
    if (rails->now != NULL && !has_nics && !te_channel_rails_are_used(rails))
        drop(rails, rails->now);
    else if (rails->now != NULL && count > 0)
        status = te_path_change(rails->now->path, ends, count);
    pthread_mutex_unlock(&rails->lock);
    return status;
}

bool te_channel_rails_are_several(const te_channel_rails *rails) {
    return rails != NULL && atomic_load_explicit(&rails->count, memory_order_relaxed) > 1;
}

bool te_channel_rails_are_used(const te_channel_rails *rails) {
    if (rails == NULL)
        return false;
    uint32_t count = atomic_load_explicit(&rails->count, memory_order_relaxed);
    return count > 1 ||
           (count == 1 && atomic_load_explicit(&rails->is_wanted, memory_order_relaxed));
}

void te_channel_rails_want(te_channel_rails *rails) {
    if (rails != NULL && !atomic_load_explicit(&rails->is_wanted, memory_order_relaxed))
        atomic_store_explicit(&rails->is_wanted, true, memory_order_relaxed);
}

bool te_channel_rails_look(te_channel_rails *rails, uint32_t index, te_rail_status *status) {
    bool is_there = false;
    if (rails == NULL)
        return false;
    pthread_mutex_lock(&rails->lock);
    if (rails->now != NULL)
        is_there = te_path_rail(rails->now->path, index, status);
    pthread_mutex_unlock(&rails->lock);
    return is_there;
}

ms_status te_channel_rail(te_channel *channel, uint32_t index, te_rail_view *view) {
    te_rail_status rail;
    ms_status status = te_channel_enter(channel);
    if (status != MS_OK)
        return status;
    status = MS_NOT_FOUND;
    if (te_channel_rails_look(te_channel_rails_of(channel), index, &rail)) {
        te_rail_view_of(&rail, view);
        status = MS_OK;
    }
    te_channel_leave(channel);
    return status;
}

/* ---- the path ---------------------------------------------------------------------------------------------------- */

/* Under the lock. */
static void open_path(te_channel_rails *rails) {
    uint8_t *hello = NULL;
    size_t length = 0;
    kept_path *made = calloc(1, sizeof *made);
    uint32_t count = atomic_load(&rails->count);
    ms_status status = te_channel_copy_hello(rails->channel, &hello, &length);
    if (status == MS_OK && rails->addresses != NULL)
        status = te_rail_ends_of(te_channel_engine(rails->channel), rails->addresses, rails->ends,
                                 &count); /* with the interfaces of now */
    if (made == NULL || status != MS_OK) {
        free(hello);
        free(made);
        return;
    }
    te_rail_ends ends[TE_RAILS_MAX];
    const te_lane_ops *ops[TE_RAILS_MAX];
    memcpy(ends, rails->ends, count * sizeof *ends);
    count = te_lane_rdma_beside(te_channel_engine(rails->channel), ends, ops, count);
    te_path_config config = {.rails = ends,
                             .ops = ops,
                             .rail_count = count,
                             .addresses = rails->addresses,
                             .hello = hello,
                             .hello_length = length};
    if (te_path_open(te_channel_engine(rails->channel), &config, &made->path) == MS_OK) {
        made->next = rails->all;
        rails->all = rails->now = made;
        rails->warmed_ns[TE_READ] = rails->warmed_ns[TE_WRITE] = INT64_MIN / 2;
    } else {
        free(made);
    }
    free(hello);
}

/* Under the lock.  Lanes come up in the background; never waits. */
static void ask_for_lanes(te_channel_rails *rails, te_opcode opcode) {
    int64_t now_ns = te_now_ns();
    if (!rails->is_closing && atomic_load(&rails->count) > 0) {
        if (rails->now != NULL && te_path_is_dead(rails->now->path)) {
            drop(rails, rails->now);
            int64_t pause = PAUSE_FIRST_NS << (rails->failures < 5 ? rails->failures : 5);
            rails->failures++;
            rails->retry_ns = now_ns + (pause < PAUSE_MAX_NS ? pause : PAUSE_MAX_NS);
        }
        if (rails->now == NULL && now_ns >= rails->retry_ns)
            open_path(rails);
        if (rails->now != NULL && now_ns - rails->warmed_ns[opcode] > WARM_NS) {
            te_path_warm(rails->now->path, opcode);
            rails->warmed_ns[opcode] = now_ns;
        }
    }
}

/* A path with a rail that is up; NULL: there is none now. */
static kept_path *take(te_channel_rails *rails, te_opcode opcode) {
    kept_path *taken = NULL;
    pthread_mutex_lock(&rails->lock);
    if (rails->now != NULL && te_path_is_up(rails->now->path, opcode)) {
        taken = rails->now;
        taken->users++;
        rails->failures = 0;
    } else {
        ask_for_lanes(rails, opcode);
    }
    pthread_mutex_unlock(&rails->lock);
    return taken;
}

bool te_channel_rails_serve_rdma(te_channel_rails *rails, te_opcode opcode, uint64_t bytes,
                                 bool is_background) {
    te_engine *engine = rails == NULL ? NULL : te_channel_engine(rails->channel);
    if (engine == NULL || engine->rdma == NULL)
        return false;
    /* The schedule costs two changes of threads: who has said nothing about shares does not pay for them. */
    bool is_shared = atomic_load_explicit(&rails->is_wanted, memory_order_relaxed) &&
                     bytes >= engine->rails_bytes_min;
    if (!is_shared && !is_background && bytes < engine->rdma->settings.rails_bytes_min)
        return false;
    pthread_mutex_lock(&rails->lock);
    bool is_served = rails->now != NULL && te_path_uses(rails->now->path, opcode, &te_lane_rdma);
    if (!is_served)
        ask_for_lanes(rails, opcode);
    pthread_mutex_unlock(&rails->lock);
    return is_served;
}

static void give_back(te_channel_rails *rails, kept_path *kept) {
    pthread_mutex_lock(&rails->lock);
    kept->users--;
    if (kept->is_over)
        drop(rails, kept);
    pthread_mutex_unlock(&rails->lock);
}

/* ---- transfers --------------------------------------------------------------------------------------------------- */

/* Items of one direction, as te_read and te_write have them. */
typedef struct wanted {
    te_opcode opcode;
    size_t count;
    const ms_read_item *reads; /* READs */
    void *const *targets;
    ms_read_result *results;
    const ms_write_item *writes; /* WRITEs */
    const void *const *sources;
    uint32_t *statuses;
} wanted;

/* Pending, and with bytes: a READ of none asks for a word, which is no work for the schedule; what lies in shared memory is
 * named, not sent. */
static bool is_for_rails(const wanted *items, size_t i) {
    return items->opcode == TE_READ
               ? items->results[i].status == MS_PENDING && items->reads[i].length > 0
               : items->statuses[i] == MS_PENDING && items->writes[i].length > 0 &&
                     items->writes[i].source == 0;
}

/* NICs reach registered memory by themselves: nobody may unregister it meanwhile.  Without them nobody asks for the region.
 * False: the READ is into a region that nobody may write. */
static bool hold(te_engine *engine, te_opcode opcode, te_carried *carried) {
    uint64_t length = opcode == TE_READ ? carried->wire.read.length : carried->wire.write.length;
    return engine->rdma == NULL ||
           te_region_hold(engine->registry, (uint64_t)(uintptr_t)carried->local, length,
                          opcode == TE_READ, &carried->region) != MS_REFUSED;
}

static void take_item(const wanted *items, size_t i, te_carried *carried) {
    if (items->opcode == TE_READ) {
        carried->local = items->targets[i];
        carried->wire.read = items->reads[i];
    } else {
        carried->local = (uint8_t *)(uintptr_t)items->sources[i];
        carried->wire.write = items->writes[i];
    }
}

static void tell_item(const wanted *items, size_t i, ms_status status, uint64_t word) {
    if (items->opcode == TE_READ)
        items->results[i] = (ms_read_result){.status = (uint32_t)status, .word = word};
    else
        items->statuses[i] = (uint32_t)status;
}

/* How an item ended: OK, PENDING when the channel's connections may try, or the failure of all. */
static ms_status outcome_of(te_opcode opcode, const te_carried *item) {
    ms_status status = te_carried_status(item);
    return te_is_path_failure(opcode, status) ? MS_PENDING : status;
}

static ms_status failed(te_channel *channel, ms_status status) {
    char sentence[TE_ERROR_BYTES];
    te_error(sentence, "over the peer's rails: %s", ms_status_name(status));
    te_channel_set_error(channel, sentence);
    return status;
}

static ms_status carry(te_channel *channel, const wanted *items, const te_transfer_options *options,
                       int64_t deadline_ns) {
    te_channel_rails *rails = te_channel_rails_of(channel);
    kept_path *kept = take(rails, items->opcode);
    if (kept == NULL)
        return MS_OK;
    te_engine *engine = te_channel_engine(channel);
    te_carried *carried = calloc(items->count, sizeof *carried);
    size_t used = 0, count = carried != NULL ? items->count : 0;
    ms_status failure = MS_OK;
    for (size_t i = 0; i < count; i++) {
        if (!is_for_rails(items, i))
            continue;
        take_item(items, i, &carried[used]);
        if (hold(engine, items->opcode, &carried[used]))
            used++;
        else
            tell_item(items, i, MS_REFUSED, 0);
    }
    if (used > 0) {
        te_carry wait = {.path = kept->path,
                         .opcode = items->opcode,
                         .deadline_ns = deadline_ns,
                         .items = carried,
                         .count = used};
        te_carry_set_options(&wait, options);
        te_carry_wait(&wait, te_scope_current());
    }
    for (size_t i = 0; i < used; i++)
        if (carried[i].region != NULL)
            te_region_release(carried[i].region);
    used = 0;
    for (size_t i = 0; i < count; i++) {
        if (!is_for_rails(items, i))
            continue;
        const te_carried *item = &carried[used++];
        ms_status status = item->is_answered ? item->status : outcome_of(items->opcode, item);
        if (status == MS_OK || item->is_answered)
            tell_item(items, i, status, item->word);
        else if (status != MS_PENDING)
            failure = failed(channel, status);
    }
    free(carried);
    give_back(rails, kept);
    return failure;
}

ms_status te_channel_rails_read(te_channel *channel, const ms_read_item *items,
                                void *const *targets, size_t count, ms_read_result *results,
                                const te_transfer_options *options, int64_t deadline_ns) {
    const wanted reads = {
        .opcode = TE_READ, .count = count, .reads = items, .targets = targets, .results = results};
    return carry(channel, &reads, options, deadline_ns);
}

ms_status te_channel_rails_write(te_channel *channel, const ms_write_item *items,
                                 const void *const *sources, size_t count, uint32_t *statuses,
                                 const te_transfer_options *options, int64_t deadline_ns) {
    const wanted writes = {.opcode = TE_WRITE,
                           .count = count,
                           .writes = items,
                           .sources = sources,
                           .statuses = statuses};
    return carry(channel, &writes, options, deadline_ns);
}
