/* Paths: a peer's rails, opened, changed and closed; which of them may be used. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sys/eventfd.h>
#include <unistd.h>

#include "ms_frame.h"
#include "te_carrier.h"
#include "te_interface_watch.h"
#include "te_session.h"

#include "te_fault.h"

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void path_free(te_path *path) {
    for (uint32_t direction = 0; direction < 2; direction++)
        for (uint32_t i = 0; i < path->rail_count; i++)
            if (path->lanes[direction][i].state != NULL)
                path->lanes[direction][i].ops->close(&path->lanes[direction][i]);
    if (path->free_peer != NULL)
        path->free_peer(path->peer);
    free(path->hello);
    free(path->addresses);
    free(path->topology);
    free(path);
}

static ms_status open_lane(te_path *path, te_opcode opcode, uint32_t index,
                           const te_rail_ends *ends, const te_lane_ops *ops) {
    te_lane *lane = &path->lanes[opcode][index];
    *lane = (te_lane){.ops = ops,
                      .path = path,
                      .carrier = path->carrier,
                      .ends = *ends,
                      .opcode = opcode,
                      .index = index,
                      .rail = TE_SCHEDULE_NONE,
                      .tick_ns = INT64_MAX};
    return ops->open(lane);
}

/* The schedule's number of an interface, which is busy in both directions at once. */
static uint32_t nic_of(const te_rail_ends *ends, te_opcode opcode) {
    return ends->local_nic < TE_NICS_MAX ? ends->local_nic * 2 + (opcode == TE_WRITE)
                                         : TE_SCHEDULE_NONE;
}

/* Under the lock: no rail may be used before its lane is up. */
static ms_status add_rail(te_path *path, te_lane *lane) {
    te_carrier *carrier = path->carrier;
    ms_status status =
        te_schedule_rail_add(carrier->schedule, path->groups[lane->opcode], lane->ends.tier,
                             nic_of(&lane->ends, lane->opcode), 0, &lane->rail);
    if (status != MS_OK)
        return status;
    carrier->lane_of_rail[lane->rail] = lane;
    te_schedule_rail_set(carrier->schedule, lane->rail, false, te_now_ns());
    return MS_OK;
}

/* Under the lock. */
static ms_status enter_schedule(te_path *path) {
    te_carrier *carrier = path->carrier;
    ms_status status = te_carrier_start(carrier);
    uint32_t groups = 0;
    for (; groups < 2 && status == MS_OK; groups++) {
        status = te_schedule_group_open(carrier->schedule, &path->groups[groups]);
        if (status != MS_OK)
            break;
        for (uint32_t i = 0; i < path->rail_count && status == MS_OK; i++)
            status = add_rail(path, &path->lanes[groups][i]);
    }
    if (status == MS_OK) {
        path->next = carrier->opened;
        carrier->opened = path;
        te_carrier_wake(carrier);
        return MS_OK;
    }
    for (uint32_t i = 0; i < groups; i++)
        te_schedule_group_close(carrier->schedule, path->groups[i], status);
    return status;
}

ms_status te_path_open(te_engine *engine, const te_path_config *config, te_path **result) {
    if (config->rail_count == 0 || config->rail_count > TE_RAILS_MAX)
        return MS_BAD_REQUEST;
    te_path *path = calloc(1, sizeof *path);
    if (path == NULL)
        return MS_NO_MEMORY;
    path->carrier = engine->carrier;
    path->engine = engine;
    path->peer = config->peer;
    path->hello_length = config->hello_length;
    path->is_watching = config->is_watching;
    atomic_store(&path->rails_wanted, config->rail_count);
    path->hello = malloc(config->hello_length + 1);
    ms_status status = path->hello == NULL ? MS_NO_MEMORY : MS_OK;
    if (status == MS_OK)
        memcpy(path->hello, config->hello, config->hello_length);
    if (status == MS_OK && config->addresses != NULL) {
        path->addresses = strdup(config->addresses);
        status = path->addresses == NULL ? MS_NO_MEMORY : MS_OK;
    }
    for (uint32_t i = 0; i < config->rail_count && status == MS_OK; i++) {
        const te_lane_ops *ops = config->ops == NULL ? &te_lane_tcp : config->ops[i];
        path->rail_count++;
        path->others += ops != &te_lane_tcp;
        status = open_lane(path, TE_READ, i, &config->rails[i], ops);
        if (status == MS_OK)
            status = open_lane(path, TE_WRITE, i, &config->rails[i], ops);
    }
    if (status == MS_OK) {
        pthread_mutex_lock(&path->carrier->lock);
        status = enter_schedule(path);
        pthread_mutex_unlock(&path->carrier->lock);
    }
    if (status != MS_OK) {
        path_free(path); /* what its peer is stays the caller's */
        return status;
    }
    path->free_peer = config->free_peer;
    atomic_store_explicit(&engine->has_rails, true, memory_order_release);
    *result = path;
    return MS_OK;
}

static void enter_lane(te_lane *lane) {
    te_carrier *carrier = lane->carrier;
    lane->previous = NULL;
    lane->next = carrier->lanes;
    if (carrier->lanes != NULL)
        carrier->lanes->previous = lane;
    carrier->lanes = lane;
}

static void leave_lane(te_lane *lane) {
    te_carrier *carrier = lane->carrier;
    te_lane_endpoint_give(lane);
    if (lane->previous != NULL)
        lane->previous->next = lane->next;
    else
        carrier->lanes = lane->next;
    if (lane->next != NULL)
        lane->next->previous = lane->previous;
}

/* Whether it matters to the path what becomes of this machine's interfaces. */
static bool has_interfaces(const te_path *path) {
    bool is_any_named = path->addresses != NULL;
    for (uint32_t i = 0; i < path->rail_count; i++)
        is_any_named = is_any_named || (path->lanes[TE_READ][i].ops == &te_lane_tcp &&
                                        path->lanes[TE_READ][i].ends.local[0] != '\0');
    return is_any_named;
}

void te_paths_adopt(te_carrier *carrier, te_path *opened) {
    for (te_path *path = opened, *next; path != NULL; path = next) {
        next = path->next;
        path->previous = NULL;
        path->next = carrier->paths;
        if (carrier->paths != NULL)
            carrier->paths->previous = path;
        carrier->paths = path;
        path->used_ns[0] = path->used_ns[1] = INT64_MIN / 2;
        if (has_interfaces(path) && carrier->interfaces == NULL &&
            te_interface_watch_open(carrier, &carrier->interfaces) != MS_OK)
            te_log(carrier->engine, "changes of this machine's interfaces are not followed: the "
                                    "kernel gives no socket that tells of them");
        for (uint32_t i = 0; path->is_watching && i < path->rail_count; i++)
            te_lane_tick_at(&path->lanes[TE_READ][i], te_now_ns());
        for (uint32_t direction = 0; direction < 2; direction++)
            for (uint32_t i = 0; i < path->rail_count; i++)
                enter_lane(&path->lanes[direction][i]);
    }
}

/* ---- closing ----------------------------------------------------------------------------------------------------- */

void te_path_close(te_path *path) {
    if (path == NULL)
        return;
    te_carrier *carrier = path->carrier;
    pthread_mutex_lock(&carrier->lock);
    path->is_closing = true;
    carrier->has_closing = true;
    te_carrier_wake(carrier);
    pthread_mutex_unlock(&carrier->lock);
}

void te_path_kill(te_path *path, ms_status status) {
    te_carrier *carrier = path->carrier;
    if (path->dead != MS_OK)
        return;
    path->dead = status;
    atomic_store_explicit(&path->up_count[TE_READ], 0, memory_order_relaxed);
    atomic_store_explicit(&path->up_count[TE_WRITE], 0, memory_order_relaxed);
    te_schedule_group_close(carrier->schedule, path->groups[TE_READ], MS_CLOSED);
    te_schedule_group_close(carrier->schedule, path->groups[TE_WRITE], MS_CLOSED);
}

/* Nobody uses it any more, and its lanes have nothing. */
static void take_out(te_path *path) {
    te_carrier *carrier = path->carrier;
    for (uint32_t direction = 0; direction < 2; direction++) {
        for (uint32_t i = 0; i < path->rail_count; i++) {
            te_lane *lane = &path->lanes[direction][i];
            lane->is_gone = true;
            lane->ops->reset(lane, "the path is closed");
            leave_lane(lane);
        }
    }
    if (path->previous != NULL)
        path->previous->next = path->next;
    else
        carrier->paths = path->next;
    if (path->next != NULL)
        path->next->previous = path->previous;
    path_free(path);
}

void te_paths_close(te_carrier *carrier) {
    for (te_path *path = carrier->paths, *next; path != NULL; path = next) {
        next = path->next;
        pthread_mutex_lock(&carrier->lock);
        bool is_closing = path->is_closing;
        if (is_closing)
            te_path_kill(path, MS_CLOSED);
        pthread_mutex_unlock(&carrier->lock);
        if (is_closing)
            take_out(path);
    }
}

/* ---- the peer's interfaces ------------------------------------------------------------------------------------------ */

void te_path_told(te_path *path, const uint8_t *body, size_t length) {
    te_carrier *carrier = path->carrier;
    ms_reader reader = ms_reader_of(body, length);
    ms_text text;
    if (!ms_reader_string(&reader, MS_TOPOLOGY_BYTES_MAX, &text) || text.length == 0)
        return; /* it tells nothing */
    char *copy = malloc(text.length);
    if (copy == NULL)
        return;
    memcpy(copy, text.data, text.length);
    pthread_mutex_lock(&carrier->lock);
    bool is_news =
        text.length != path->topology_length || memcmp(copy, path->topology, text.length) != 0;
    char *old = is_news ? path->topology : copy;
    if (is_news) {
        path->topology = copy;
        path->topology_length = text.length;
    }
    int news = is_news ? carrier->news : -1;
    pthread_mutex_unlock(&carrier->lock);
    free(old);
    uint64_t one = 1;
    if (news >= 0 && write(news, &one, sizeof one) < 0) {
        /* Only when the counter is full: it is readable then. */
    }
}

size_t te_path_topology(te_path *path, char *text, size_t size) {
    pthread_mutex_lock(&path->carrier->lock);
    size_t length = path->topology_length;
    if (length > 0 && length <= size)
        memcpy(text, path->topology, length);
    pthread_mutex_unlock(&path->carrier->lock);
    return length;
}

int te_topology_eventfd(te_engine *engine) {
    te_carrier *carrier = engine->carrier;
    if (te_engine_check(engine) != MS_OK)
        return -1;
    pthread_mutex_lock(&carrier->lock);
    if (carrier->news < 0)
        carrier->news = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int news = carrier->news;
    pthread_mutex_unlock(&carrier->lock);
    return news;
}

/* ---- which may be used ------------------------------------------------------------------------------------------- */

void te_path_use(te_path *path, te_opcode opcode, int64_t now_ns) {
    te_carrier *carrier = path->carrier;
    uint32_t rank = UINT32_MAX, up_count = 0;
    if (path->dead != MS_OK)
        return;
    for (uint32_t i = 0; i < path->rail_count; i++) {
        const te_lane *lane = &path->lanes[opcode][i];
        bool is_up = lane->is_up && !lane->is_gone;
        up_count += is_up;
        if (is_up && lane->ops->rank < rank)
            rank = lane->ops->rank;
    }
    atomic_store_explicit(&path->rank[opcode], rank, memory_order_relaxed);
    atomic_store_explicit(&path->up_count[opcode], up_count, memory_order_relaxed);
    for (uint32_t i = 0; i < path->rail_count; i++) {
        const te_lane *lane = &path->lanes[opcode][i];
        te_schedule_rail_set(carrier->schedule, lane->rail,
                             lane->is_up && !lane->is_gone && lane->ops->rank == rank, now_ns);
    }
}

bool te_path_is_up(const te_path *path, te_opcode opcode) {
    return atomic_load_explicit(&path->up_count[opcode], memory_order_relaxed) > 0;
}

bool te_path_uses(const te_path *path, te_opcode opcode, const te_lane_ops *ops) {
    return te_path_is_up(path, opcode) &&
           atomic_load_explicit(&path->rank[opcode], memory_order_relaxed) == ops->rank;
}

bool te_path_is_dead(te_path *path) {
    pthread_mutex_lock(&path->carrier->lock);
    bool is_dead = path->dead != MS_OK;
    pthread_mutex_unlock(&path->carrier->lock);
    return is_dead;
}

static void warm(te_path *path, te_opcode opcode) {
    int64_t now_ns = te_now_ns();
    path->used_ns[opcode] = now_ns;
    for (uint32_t i = 0; i < path->rail_count; i++)
        te_lane_tick_at(&path->lanes[opcode][i], now_ns);
}

static void warm_reads(void *path) { warm(path, TE_READ); }
static void warm_writes(void *path) { warm(path, TE_WRITE); }

void te_path_warm(te_path *path, te_opcode opcode) {
    /* Without memory for it, the next transfer asks again. */
    (void)te_carrier_run(path->carrier, opcode == TE_READ ? warm_reads : warm_writes, path);
}

/* ---- other rails --------------------------------------------------------------------------------------------------- */

typedef struct change {
    te_path *path;
    uint32_t count;
    te_rail_ends rails[TE_RAILS_MAX];
} change;

static bool is_same_way(const te_rail_ends *a, const te_rail_ends *b) {
    return strcmp(a->local, b->local) == 0 && strcmp(a->remote, b->remote) == 0;
}

static void set_gone(te_path *path, uint32_t index, bool is_gone) {
    for (uint32_t direction = 0; direction < 2; direction++) {
        te_lane *lane = &path->lanes[direction][index];
        if (lane->is_gone == is_gone)
            continue;
        pthread_mutex_lock(&path->carrier->lock);
        lane->is_gone = is_gone;
        te_path_use(path, lane->opcode, te_now_ns());
        pthread_mutex_unlock(&path->carrier->lock);
        if (is_gone) {
            lane->ops->reset(lane, "the topology has it no more");
        } else {
            lane->failures = 0;
            lane->retry_ns = 0;
            te_lane_tick_at(lane, te_now_ns());
        }
    }
}

/* Under the lock: a slot of a rail that is gone becomes that of another.  False: some of it is still on its way. */
static bool take_slot(te_path *path, uint32_t index, const te_rail_ends *ends) {
    te_schedule *schedule = path->carrier->schedule;
    for (uint32_t direction = 0; direction < 2; direction++) {
        const te_lane *lane = &path->lanes[direction][index];
        if (!lane->is_gone || lane->ops != &te_lane_tcp || lane->work_count > 0 ||
            te_schedule_rail_look(schedule, lane->rail).bytes_in_flight > 0)
            return false;
    }
    for (uint32_t direction = 0; direction < 2; direction++) {
        te_lane *lane = &path->lanes[direction][index];
        if (te_schedule_rail_renew(schedule, lane->rail, ends->tier, nic_of(ends, lane->opcode)) !=
            MS_OK)
            return false;
        lane->ends = *ends;
        lane->was_connected = false;
        lane->resets = 0;
        lane->note[0] = '\0';
    }
    return true;
}

/* The same way as before, which is of another tier now, or at another NIC. */
static void place(te_path *path, uint32_t index, const te_rail_ends *ends) {
    pthread_mutex_lock(&path->carrier->lock);
    for (uint32_t direction = 0; direction < 2 && path->dead == MS_OK; direction++) {
        te_lane *lane = &path->lanes[direction][index];
        (void)te_schedule_rail_place(path->carrier->schedule, lane->rail, ends->tier,
                                     nic_of(ends, lane->opcode));
        lane->ends = *ends;
    }
    pthread_mutex_unlock(&path->carrier->lock);
}

static void add_slot(te_path *path, const te_rail_ends *ends) {
    te_carrier *carrier = path->carrier;
    uint32_t index = 0;
    pthread_mutex_lock(&carrier->lock);
    bool is_dead = path->dead != MS_OK; /* its rails may be others' by now */
    while (!is_dead && index < path->rail_count && !take_slot(path, index, ends))
        index++;
    pthread_mutex_unlock(&carrier->lock);
    if (is_dead || index == TE_RAILS_MAX)
        return;
    if (index < path->rail_count) {
        set_gone(path, index, false);
        return;
    }
    ms_status status = open_lane(path, TE_READ, index, ends, &te_lane_tcp);
    if (status == MS_OK) {
        status = open_lane(path, TE_WRITE, index, ends, &te_lane_tcp);
        if (status != MS_OK)
            te_lane_tcp.close(&path->lanes[TE_READ][index]);
    }
    if (status != MS_OK)
        return; /* no memory for one rail more: the next change tries again */
    pthread_mutex_lock(&carrier->lock);
    bool is_added = path->dead == MS_OK && add_rail(path, &path->lanes[TE_READ][index]) == MS_OK;
    is_added = is_added && add_rail(path, &path->lanes[TE_WRITE][index]) == MS_OK;
    if (is_added)
        path->rail_count++;
    pthread_mutex_unlock(&carrier->lock);
    for (uint32_t direction = 0; direction < 2; direction++) {
        te_lane *lane = &path->lanes[direction][index];
        if (!is_added) {
            te_lane_tcp.close(lane);
            continue;
        }
        enter_lane(lane);
        te_lane_tick_at(lane, te_now_ns());
    }
}

static void apply(te_path *path, const te_rail_ends *rails, uint32_t count) {
    bool is_there[TE_RAILS_MAX] = {false};
    for (uint32_t i = 0; i < path->rail_count; i++) {
        bool is_kept = path->lanes[0][i].ops != &te_lane_tcp;
        for (uint32_t j = 0; j < count; j++) {
            if (!is_same_way(&path->lanes[0][i].ends, &rails[j]))
                continue;
            is_kept = is_there[j] = true;
            place(path, i, &rails[j]);
        }
        set_gone(path, i, !is_kept);
    }
    for (uint32_t j = 0; j < count; j++) {
        if (!is_there[j])
            add_slot(path, &rails[j]);
    }
}

static void change_now(void *argument) {
    change *wanted = argument;
    te_path *path = wanted->path;
    free(path->addresses); /* somebody else says now which rails there are */
    path->addresses = NULL;
    apply(path, wanted->rails, wanted->count);
    free(wanted);
}

void te_path_pair_again(te_path *path) {
    te_rail_ends rails[TE_RAILS_MAX];
    uint32_t count = 0;
    if (path->addresses == NULL ||
        te_rail_ends_of(path->engine, path->addresses, rails, &count) != MS_OK || count == 0)
        return;
    atomic_store_explicit(&path->rails_wanted, count + path->others, memory_order_relaxed);
    apply(path, rails, count);
}

ms_status te_path_change(te_path *path, const te_rail_ends *rails, uint32_t count) {
    if (count == 0 || count > TE_RAILS_MAX)
        return MS_BAD_REQUEST;
    change *wanted = calloc(1, sizeof *wanted);
    if (wanted == NULL)
        return MS_NO_MEMORY;
    wanted->path = path;
    wanted->count = count;
    atomic_store_explicit(&path->rails_wanted, count + path->others, memory_order_relaxed);
    memcpy(wanted->rails, rails, count * sizeof *rails);
    ms_status status = te_carrier_run(path->carrier, change_now, wanted);
    if (status != MS_OK)
        free(wanted);
    return status;
}

/* Under the lock. */
static void look(te_path *path, const te_lane *lane, te_rail_status *status) {
    te_schedule_rail_view view = {0};
    if (path->dead == MS_OK)
        view = te_schedule_rail_look(path->carrier->schedule, lane->rail);
    *status = (te_rail_status){.tier = path->dead == MS_OK ? view.tier : lane->ends.tier,
                               .opcode = (uint32_t)lane->opcode,
                               .is_up = lane->is_up,
                               .is_gone = lane->is_gone,
                               .resets = lane->resets,
                               .bytes_in_flight = view.bytes_in_flight,
                               .bandwidth_bytes_per_s = view.bandwidth_bytes_per_s};
    memcpy(status->local, lane->ends.local, sizeof status->local);
    memcpy(status->remote, lane->ends.remote, sizeof status->remote);
    memcpy(status->note, lane->note, sizeof status->note);
    snprintf(status->transport, sizeof status->transport, "%s", lane->ops->transport);
}

bool te_path_lane(te_path *path, te_opcode opcode, uint32_t index, te_rail_status *status) {
    pthread_mutex_lock(&path->carrier->lock);
    bool is_there = index < path->rail_count;
    if (is_there)
        look(path, &path->lanes[opcode][index], status);
    pthread_mutex_unlock(&path->carrier->lock);
    return is_there;
}

bool te_path_rail(te_path *path, uint32_t index, te_rail_status *status) {
    pthread_mutex_lock(&path->carrier->lock);
    uint32_t count = path->rail_count;
    pthread_mutex_unlock(&path->carrier->lock);
    return index < 2 * count &&
           te_path_lane(path, index < count ? TE_READ : TE_WRITE, index % count, status);
}
