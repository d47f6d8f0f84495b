/* Jobs, slices, groups: see te_schedule.h. */
#include "te_schedule.h"

#include <stdlib.h>
#include <string.h>

#include "te_rails.h"
#include "te_slice_flow.h"
#include "te_slice_rail.h"

#include "te_fault.h"

typedef struct job_queue {
    te_job *first, *last;
    uint64_t bytes; /* not cut */
} job_queue;

typedef struct group {
    bool is_used, is_closed;
    ms_status close_status;
    uint32_t first_rail, rail_count;
    uint32_t slice_count; /* given out, or to be repeated */
    uint64_t waiting;     /* bytes not cut, of all flows, and of slices to be repeated */
    te_slice *repeat_first, *repeat_last;
} group;

struct te_schedule {
    te_schedule_config config;
    te_slice_rails rails;
    te_slice_flows flows;
    group *groups;
    job_queue *queues; /* of flow f for group g: f * groups_max + g */
    te_slice *slices, *free_slices;
    te_group_set open; /* groups that may have a rail with room: a guess, put right when it fails */
    te_group_set repeating; /* groups with slices to be repeated */
    te_job *ended_first, *ended_last;
    int64_t earliest_deadline_ns; /* of waiting jobs: not later than that */
    uint32_t last_repeated;
};

/* ---- life ------------------------------------------------------------------------------------------------------ */

void te_schedule_config_default(te_schedule_config *config) {
    *config = (te_schedule_config){.groups_max = TE_SCHEDULE_GROUPS_MAX,
                                   .rails_max = 4 * TE_SCHEDULE_GROUPS_MAX,
                                   .nics_max = TE_NICS_MAX,
                                   .flows_max = 64,
                                   .slices_max = 256,
                                   .slice_bytes = UINT64_C(64) << 10,
                                   .slice_bytes_max = UINT64_C(4) << 20,
                                   .slice_ns = 200000,
                                   .window_ns = 1000000,
                                   .piece_cost_bytes = 512,
                                   .class_weights = {64, 8, 4, 1}};
}

static bool is_sane(const te_schedule_config *config) {
    bool is_good = config->groups_max > 0 && config->groups_max <= TE_SCHEDULE_GROUPS_MAX &&
                   config->rails_max > 0 && config->rails_max <= 1u << 16 && config->nics_max > 0 &&
                   config->nics_max <= 1u << 16 && config->flows_max >= TE_CLASS_COUNT &&
                   config->flows_max <= 1u << 12 && config->slices_max > 0 &&
                   config->slices_max <= 1u << 16 && config->slice_bytes > 0 &&
                   config->slice_bytes <= config->slice_bytes_max &&
                   config->slice_bytes_max <= UINT64_C(1) << 30 && config->slice_ns > 0 &&
                   config->window_ns > 0;
    for (uint32_t i = 0; i < TE_CLASS_COUNT; i++)
        is_good &=
            config->class_weights[i] > 0 && config->class_weights[i] <= TE_SCHEDULE_WEIGHT_MAX;
    return is_good;
}

ms_status te_schedule_open(const te_schedule_config *config, te_schedule **result) {
    if (!is_sane(config))
        return MS_BAD_REQUEST;
    te_schedule *schedule = calloc(1, sizeof *schedule);
    if (schedule == NULL)
        return MS_NO_MEMORY;
    schedule->config = *config;
    schedule->rails.rails = calloc(config->rails_max, sizeof *schedule->rails.rails);
    schedule->rails.nics = calloc(config->nics_max, sizeof *schedule->rails.nics);
    schedule->flows.flows = calloc(config->flows_max, sizeof *schedule->flows.flows);
    schedule->flows.active =
        calloc((size_t)TE_CLASS_COUNT * config->flows_max, sizeof *schedule->flows.active);
    schedule->groups = calloc(config->groups_max, sizeof *schedule->groups);
    schedule->queues =
        calloc((size_t)config->flows_max * config->groups_max, sizeof *schedule->queues);
    schedule->slices = calloc(config->slices_max, sizeof *schedule->slices);
    if (schedule->rails.rails == NULL || schedule->rails.nics == NULL ||
        schedule->flows.flows == NULL || schedule->flows.active == NULL ||
        schedule->groups == NULL || schedule->queues == NULL || schedule->slices == NULL) {
        te_schedule_close(schedule);
        return MS_NO_MEMORY;
    }
    schedule->rails.config = &schedule->config;
    schedule->rails.wake_ns = INT64_MAX;
    schedule->rails.first_free = TE_SCHEDULE_NONE;
    for (uint32_t i = 0; i < config->nics_max; i++)
        schedule->rails.nics[i].fastest = TE_SCHEDULE_NONE;
    schedule->flows.flows_max = config->flows_max;
    te_slice_flows_init(&schedule->flows, config);
    for (uint32_t i = 0; i < config->slices_max; i++) {
        schedule->slices[i].next = schedule->free_slices;
        schedule->free_slices = &schedule->slices[i];
    }
    schedule->earliest_deadline_ns = INT64_MAX;
    *result = schedule;
    return MS_OK;
}

void te_schedule_close(te_schedule *schedule) {
    if (schedule == NULL)
        return;
    free(schedule->rails.rails);
    free(schedule->rails.nics);
    free(schedule->flows.flows);
    free(schedule->flows.active);
    free(schedule->groups);
    free(schedule->queues);
    free(schedule->slices);
    free(schedule);
}

/* ---- ends of jobs ---------------------------------------------------------------------------------------------- */

static job_queue *queue_of(te_schedule *schedule, uint32_t flow, uint32_t group_index) {
    return &schedule->queues[(size_t)flow * schedule->config.groups_max + group_index];
}

/* To the caller, when nothing of it is held any more. */
static void end_if_over(te_schedule *schedule, te_job *job) {
    if (job->status == MS_PENDING && job->done == job->bytes)
        job->status = MS_OK;
    if (job->status == MS_PENDING || job->held > 0 || job->is_queued)
        return;
    job->next = NULL;
    if (schedule->ended_last == NULL)
        schedule->ended_first = job;
    else
        schedule->ended_last->next = job;
    schedule->ended_last = job;
}

te_job *te_schedule_ended(te_schedule *schedule) {
    te_job *job = schedule->ended_first;
    if (job == NULL)
        return NULL;
    schedule->ended_first = job->next;
    if (schedule->ended_first == NULL)
        schedule->ended_last = NULL;
    job->next = NULL;
    return job;
}

static void unqueue(te_schedule *schedule, te_job *job) {
    job_queue *queue = queue_of(schedule, job->flow, job->group);
    if (job->previous == NULL)
        queue->first = job->next;
    else
        job->previous->next = job->next;
    if (job->next == NULL)
        queue->last = job->previous;
    else
        job->next->previous = job->previous;
    queue->bytes -= job->bytes - job->cut;
    schedule->groups[job->group].waiting -= job->bytes - job->cut;
    job->next = job->previous = NULL;
    job->is_queued = false;
    if (queue->first == NULL)
        te_slice_flow_drop(&schedule->flows, job->flow, job->group);
}

/* A closed group and its rails can be used again once their last slice is back. */
static void group_free_if_over(te_schedule *schedule, group *owner) {
    if (!owner->is_closed || owner->slice_count > 0)
        return;
    for (uint32_t i = owner->first_rail, next; i != TE_SCHEDULE_NONE; i = next) {
        next = schedule->rails.rails[i].next;
        te_slice_rail_free(&schedule->rails, i);
    }
    *owner = (group){0};
}

static void slice_free(te_schedule *schedule, te_slice *slice) {
    group *owner = &schedule->groups[slice->group];
    owner->slice_count--;
    slice->next = schedule->free_slices;
    schedule->free_slices = slice;
    group_free_if_over(schedule, owner);
}

/* Leaves out pieces of jobs that are over, or past their deadlines. */
static void tidy_slice(te_schedule *schedule, te_slice *slice, int64_t now_ns) {
    group *owner = &schedule->groups[slice->group];
    uint32_t kept = 0;
    for (uint32_t i = 0; i < slice->piece_count; i++) {
        te_slice_piece piece = slice->pieces[i];
        te_job *job = piece.job;
        if (job->status == MS_PENDING && job->deadline_ns > now_ns) {
            slice->pieces[kept++] = piece;
            continue;
        }
        if (job->status == MS_PENDING)
            job->status = MS_TIMEOUT;
        if (job->is_queued)
            unqueue(schedule, job);
        job->held--;
        job->returned--;
        slice->bytes -= piece.length;
        owner->waiting -= piece.length;
        end_if_over(schedule, job);
    }
    slice->piece_count = kept;
}

/* The same for all slices of a group that are to be repeated. */
static void tidy_repeats(te_schedule *schedule, uint32_t group_index, int64_t now_ns) {
    group *owner = &schedule->groups[group_index];
    te_slice *slice = owner->repeat_first;
    owner->repeat_first = owner->repeat_last = NULL;
    te_group_set_take(&schedule->repeating, group_index);
    while (slice != NULL) {
        te_slice *next = slice->next;
        slice->next = NULL;
        tidy_slice(schedule, slice, now_ns);
        if (slice->piece_count == 0) {
            slice_free(schedule, slice);
        } else {
            if (owner->repeat_last == NULL)
                owner->repeat_first = slice;
            else
                owner->repeat_last->next = slice;
            owner->repeat_last = slice;
            te_group_set_put(&schedule->repeating, group_index);
        }
        slice = next;
    }
}

/* `status` unless it has one. */
static void end_early(te_schedule *schedule, te_job *job, ms_status status) {
    if (job->status == MS_PENDING)
        job->status = status;
    if (job->is_queued)
        unqueue(schedule, job);
    if (job->returned > 0)
        tidy_repeats(schedule, job->group, INT64_MIN); /* ends it when nothing is in flight */
    else
        end_if_over(schedule, job);
}

void te_schedule_cancel(te_schedule *schedule, te_job *job, ms_status status) {
    if (job->status == MS_PENDING)
        end_early(schedule, job, status);
}

static void expire_queue(te_schedule *schedule, const job_queue *queue, int64_t now_ns,
                         int64_t *earliest) {
    for (te_job *job = queue->first, *next; job != NULL; job = next) {
        next = job->next;
        if (job->deadline_ns <= now_ns)
            end_early(schedule, job, MS_TIMEOUT);
        else if (job->deadline_ns < *earliest)
            *earliest = job->deadline_ns;
    }
}

static void expire_flow(te_schedule *schedule, uint32_t flow, int64_t now_ns, int64_t *earliest) {
    te_group_set waiting = schedule->flows.flows[flow].waiting;
    uint32_t index;
    while ((index = te_group_set_next(&waiting, &waiting, 0)) != TE_SCHEDULE_NONE) {
        te_group_set_take(&waiting, index);
        expire_queue(schedule, queue_of(schedule, flow, index), now_ns, earliest);
    }
}

void te_schedule_expire(te_schedule *schedule, int64_t now_ns) {
    if (now_ns < schedule->earliest_deadline_ns)
        return;
    int64_t earliest = INT64_MAX;
    for (uint32_t index = 0; index < schedule->config.groups_max; index++) {
        if (schedule->groups[index].repeat_first == NULL)
            continue;
        tidy_repeats(schedule, index, now_ns);
        for (const te_slice *slice = schedule->groups[index].repeat_first; slice != NULL;
             slice = slice->next)
            for (uint32_t i = 0; i < slice->piece_count; i++)
                if (slice->pieces[i].job->deadline_ns < earliest)
                    earliest = slice->pieces[i].job->deadline_ns;
    }
    /* From the last one: a flow that is dropped has its place taken by one that was looked at. */
    for (const te_slice_class *class = schedule->flows.classes;
         class < schedule->flows.classes + TE_CLASS_COUNT; class++) {
        for (uint32_t i = class->active_count; i-- > 0;)
            expire_flow(schedule, class->active[i], now_ns, &earliest);
    }
    schedule->earliest_deadline_ns = earliest;
}

/* ---- groups and rails ------------------------------------------------------------------------------------------ */

ms_status te_schedule_group_open(te_schedule *schedule, uint32_t *group_index) {
    for (uint32_t i = 0; i < schedule->config.groups_max; i++) {
        if (schedule->groups[i].is_used)
            continue;
        schedule->groups[i] = (group){.is_used = true, .first_rail = TE_SCHEDULE_NONE};
        *group_index = i;
        return MS_OK;
    }
    return MS_LIMIT;
}

void te_schedule_group_close(te_schedule *schedule, uint32_t group_index, ms_status status) {
    group *closed = &schedule->groups[group_index];
    for (uint32_t flow = 0; flow < schedule->config.flows_max; flow++) {
        job_queue *queue = queue_of(schedule, flow, group_index);
        while (queue->first != NULL)
            end_early(schedule, queue->first, status);
    }
    for (te_slice *slice = closed->repeat_first; slice != NULL; slice = slice->next)
        for (uint32_t i = 0; i < slice->piece_count; i++)
            if (slice->pieces[i].job->status == MS_PENDING)
                slice->pieces[i].job->status = status;
    tidy_repeats(schedule, group_index, INT64_MIN);
    for (uint32_t i = closed->first_rail; i != TE_SCHEDULE_NONE; i = schedule->rails.rails[i].next)
        te_slice_rail_leave(&schedule->rails, i, RAIL_GONE, INT64_MAX);
    te_group_set_take(&schedule->open, group_index);
    closed->is_closed = true;
    closed->close_status = status;
    group_free_if_over(schedule, closed);
}

static bool may_be(const te_schedule *schedule, uint32_t tier, uint32_t nic) {
    return tier < TE_TIER_COUNT && (nic == TE_SCHEDULE_NONE || nic < schedule->config.nics_max);
}

ms_status te_schedule_rail_add(te_schedule *schedule, uint32_t group_index, uint32_t tier,
                               uint32_t nic, uint64_t bandwidth_bytes_per_s, uint32_t *result) {
    te_slice_rails *rails = &schedule->rails;
    if (!may_be(schedule, tier, nic))
        return MS_BAD_REQUEST;
    uint32_t index = rails->first_free;
    if (index != TE_SCHEDULE_NONE)
        rails->first_free = rails->rails[index].next;
    else if (rails->count < schedule->config.rails_max)
        index = rails->count++;
    else
        return MS_LIMIT;
    group *owner = &schedule->groups[group_index];
    rails->rails[index] =
        (te_slice_rail){.next = owner->first_rail, .group = group_index, .nic = nic, .tier = tier};
    owner->first_rail = index;
    owner->rail_count++;
    te_slice_rail_init(rails, index, bandwidth_bytes_per_s);
    te_group_set_put(&schedule->open, group_index);
    *result = index;
    return MS_OK;
}

ms_status te_schedule_rail_place(te_schedule *schedule, uint32_t index, uint32_t tier,
                                 uint32_t nic) {
    if (!may_be(schedule, tier, nic))
        return MS_BAD_REQUEST;
    te_slice_rail_place(&schedule->rails, index, tier, nic);
    return MS_OK;
}

ms_status te_schedule_rail_renew(te_schedule *schedule, uint32_t index, uint32_t tier,
                                 uint32_t nic) {
    te_slice_rail *rail = &schedule->rails.rails[index];
    if (rail->state != RAIL_GONE || rail->slices > 0)
        return MS_BUSY;
    ms_status status = te_schedule_rail_place(schedule, index, tier, nic);
    if (status != MS_OK)
        return status;
    *rail = (te_slice_rail){
        .next = rail->next, .group = rail->group, .state = RAIL_GONE, .nic = nic, .tier = tier};
    te_slice_rail_init(&schedule->rails, index, 0);
    return MS_OK;
}

void te_schedule_rail_set(te_schedule *schedule, uint32_t index, bool is_usable, int64_t now_ns) {
    te_slice_rail *rail = &schedule->rails.rails[index];
    if (!is_usable) {
        te_slice_rail_leave(&schedule->rails, index, RAIL_GONE, INT64_MAX);
    } else if (rail->state == RAIL_GONE) {
        te_slice_rail_leave(&schedule->rails, index, RAIL_LEFT, now_ns);
        te_group_set_put(&schedule->open, rail->group);
    }
}

te_schedule_rail_view te_schedule_rail_look(const te_schedule *schedule, uint32_t index) {
    const te_slice_rail *rail = &schedule->rails.rails[index];
    return (te_schedule_rail_view){.tier = rail->tier,
                                   .bytes_in_flight = rail->in_flight,
                                   .bandwidth_bytes_per_s = (uint64_t)(1e9 / rail->ns_per_byte),
                                   .window_bytes = rail->window,
                                   .is_up = rail->state == RAIL_UP,
                                   .retry_ns =
                                       rail->state == RAIL_LEFT ? rail->retry_ns : INT64_MAX};
}

uint64_t te_schedule_waiting_bytes(const te_schedule *schedule, uint32_t group_index) {
    return schedule->groups[group_index].waiting;
}

/* ---- jobs ------------------------------------------------------------------------------------------------------ */

void te_schedule_submit(te_schedule *schedule, te_job *job, int64_t now_ns) {
    group *target = &schedule->groups[job->group];
    job->status = MS_PENDING;
    job->cut = job->done = 0;
    job->held = job->returned = 0;
    job->is_queued = false;
    job->next = job->previous = NULL;
    if (!target->is_used || target->is_closed)
        job->status = MS_CLOSED;
    else if (job->deadline_ns <= now_ns)
        job->status = MS_TIMEOUT;
    if (job->status != MS_PENDING || job->bytes == 0) {
        end_if_over(schedule, job);
        return;
    }
    uint32_t weight = job->weight == 0 ? 1 : job->weight;
    weight = weight > TE_SCHEDULE_WEIGHT_MAX ? TE_SCHEDULE_WEIGHT_MAX : weight;
    job->flow = te_slice_flow_find(&schedule->flows, job->class, job->tenant, weight);
    job_queue *queue = queue_of(schedule, job->flow, job->group);
    job->previous = queue->last;
    if (queue->last == NULL)
        queue->first = job;
    else
        queue->last->next = job;
    queue->last = job;
    queue->bytes += job->bytes;
    target->waiting += job->bytes;
    job->is_queued = true;
    te_slice_flow_add(&schedule->flows, job->flow, job->group);
    /* More that waits may make a slower rail worth while. */
    te_group_set_put(&schedule->open, job->group);
    if (job->deadline_ns < schedule->earliest_deadline_ns)
        schedule->earliest_deadline_ns = job->deadline_ns;
}

/* ---- slices ---------------------------------------------------------------------------------------------------- */

int64_t te_schedule_wake_ns(const te_schedule *schedule) {
    int64_t wake = schedule->rails.wake_ns;
    return wake < schedule->earliest_deadline_ns ? wake : schedule->earliest_deadline_ns;
}

/* Groups whose left rails may be tried again, or one of whose rails has stalled, are open. */
static void wake_rails(te_schedule *schedule, int64_t now_ns) {
    te_slice_rails *rails = &schedule->rails;
    if (now_ns < rails->wake_ns)
        return;
    rails->wake_ns = INT64_MAX;
    for (uint32_t i = 0; i < rails->count; i++) {
        const te_slice_rail *rail = &rails->rails[i];
        if (rail->state == RAIL_UP && te_slice_rail_stall_ns(rail) <= now_ns)
            te_group_set_put(&schedule->open, rail->group);
        if (rail->state != RAIL_LEFT)
            continue;
        if (rail->retry_ns <= now_ns)
            te_group_set_put(&schedule->open, rail->group);
        else if (rail->retry_ns < rails->wake_ns)
            rails->wake_ns = rail->retry_ns;
    }
}

static te_slice *give(te_schedule *schedule, te_slice *slice, uint32_t rail, int64_t now_ns) {
    slice->rail = rail;
    slice->next = NULL;
    te_slice_rail_begin(&schedule->rails, slice, now_ns);
    return slice;
}

/* A slice that came back from a rail that failed. */
static te_slice *next_repeat(te_schedule *schedule, int64_t now_ns) {
    uint32_t index;
    while ((index = te_group_set_next(&schedule->repeating, &schedule->open,
                                      schedule->last_repeated)) != TE_SCHEDULE_NONE) {
        group *owner = &schedule->groups[index];
        te_slice *slice = owner->repeat_first;
        schedule->last_repeated = index;
        tidy_slice(schedule, slice, now_ns);
        bool is_probe = false;
        uint32_t rail = slice->piece_count == 0
                            ? TE_SCHEDULE_NONE
                            : te_slice_rail_choose(&schedule->rails, owner->first_rail,
                                                   slice->bytes, owner->waiting, now_ns, &is_probe);
        if (slice->piece_count > 0 && rail == TE_SCHEDULE_NONE) {
            te_group_set_take(&schedule->open, index);
            continue;
        }
        owner->repeat_first = slice->next;
        if (owner->repeat_first == NULL) {
            owner->repeat_last = NULL;
            te_group_set_take(&schedule->repeating, index);
        }
        if (slice->piece_count == 0) {
            slice_free(schedule, slice);
            continue;
        }
        owner->waiting -= slice->bytes;
        slice->deadline_ns = INT64_MAX;
        for (uint32_t i = 0; i < slice->piece_count; i++) {
            te_job *job = slice->pieces[i].job;
            job->returned--;
            if (job->deadline_ns < slice->deadline_ns)
                slice->deadline_ns = job->deadline_ns;
        }
        slice->is_probe = is_probe;
        return give(schedule, slice, rail, now_ns);
    }
    return NULL;
}

/* Cuts pieces off the queue's jobs, from the first one on. */
static void fill(te_schedule *schedule, job_queue *queue, te_slice *slice, uint64_t most,
                 int64_t now_ns) {
    while (queue->first != NULL && slice->bytes < most &&
           slice->piece_count < TE_SLICE_PIECES_MAX) {
        te_job *job = queue->first;
        if (job->deadline_ns <= now_ns) {
            end_early(schedule, job, MS_TIMEOUT);
            continue;
        }
        if (slice->piece_count > 0 && (job->is_alone || slice->pieces[0].job->is_alone))
            break;
        uint64_t left = job->bytes - job->cut, room = most - slice->bytes, length = left;
        if (left > room && left - room > most / 4) /* no crumbs */
            length = room;
        slice->pieces[slice->piece_count++] =
            (te_slice_piece){.job = job, .offset = job->cut, .length = length};
        slice->bytes += length;
        if (job->deadline_ns < slice->deadline_ns)
            slice->deadline_ns = job->deadline_ns;
        job->held++;
        if (length == left) {
            unqueue(schedule, job); /* counts what was left as gone */
            job->cut = job->bytes;
        } else {
            job->cut += length;
            queue->bytes -= length;
            schedule->groups[job->group].waiting -= length;
        }
    }
}

/* Not more than a rail's share of what waits: large jobs go over all rails at once. */
static uint64_t length_of(const te_schedule *schedule, const group *owner, const job_queue *queue,
                          uint32_t rail, bool is_probe) {
    uint64_t most = te_slice_rail_slice_bytes(&schedule->rails, rail, is_probe);
    uint64_t share = queue->bytes / owner->rail_count;
    share = share < schedule->config.slice_bytes ? schedule->config.slice_bytes : share;
    return most < share ? most : share;
}

te_slice *te_schedule_next(te_schedule *schedule, int64_t now_ns) {
    wake_rails(schedule, now_ns);
    te_slice *slice = next_repeat(schedule, now_ns);
    while (slice == NULL && schedule->free_slices != NULL) {
        uint32_t index, flow = te_slice_flow_choose(&schedule->flows, &schedule->open, &index);
        if (flow == TE_SCHEDULE_NONE)
            return NULL;
        group *owner = &schedule->groups[index];
        job_queue *queue = queue_of(schedule, flow, index);
        uint64_t usual = schedule->config.slice_bytes;
        bool is_probe;
        uint32_t rail = te_slice_rail_choose(&schedule->rails, owner->first_rail,
                                             queue->bytes < usual ? queue->bytes : usual,
                                             owner->waiting, now_ns, &is_probe);
        if (rail == TE_SCHEDULE_NONE) {
            te_group_set_take(&schedule->open, index);
            continue;
        }
        te_slice *made = schedule->free_slices;
        te_slice *rest = made->next;
        made->group = index;
        made->piece_count = made->attempts = 0;
        made->bytes = 0;
        made->deadline_ns = INT64_MAX;
        made->is_probe = is_probe;
        fill(schedule, queue, made, length_of(schedule, owner, queue, rail, is_probe), now_ns);
        if (made->piece_count == 0)
            continue; /* all that waited was past its deadline */
        schedule->free_slices = rest;
        owner->slice_count++;
        te_slice_flow_charge(&schedule->flows, flow, index,
                             made->bytes +
                                 (uint64_t)made->piece_count * schedule->config.piece_cost_bytes);
        return give(schedule, made, rail, now_ns);
    }
    return slice;
}

/* The slice's bytes go over another rail, those of jobs that go on. */
static void repeat(te_schedule *schedule, te_slice *slice, int64_t now_ns) {
    group *owner = &schedule->groups[slice->group];
    owner->waiting += slice->bytes;
    for (uint32_t i = 0; i < slice->piece_count; i++)
        slice->pieces[i].job->returned++;
    tidy_slice(schedule, slice, now_ns);
    if (slice->piece_count == 0) {
        slice_free(schedule, slice);
        return;
    }
    slice->attempts++;
    slice->next = NULL;
    if (owner->repeat_last == NULL)
        owner->repeat_first = slice;
    else
        owner->repeat_last->next = slice;
    owner->repeat_last = slice;
    te_group_set_put(&schedule->repeating, slice->group);
    if (slice->deadline_ns < schedule->earliest_deadline_ns)
        schedule->earliest_deadline_ns = slice->deadline_ns;
}

void te_schedule_end(te_schedule *schedule, te_slice *slice, te_slice_outcome outcome,
                     ms_status status, int64_t now_ns) {
    group *owner = &schedule->groups[slice->group];
    te_slice_rail_end(&schedule->rails, slice, outcome == TE_SLICE_FAILED, now_ns);
    if (!owner->is_closed)
        te_group_set_put(&schedule->open, slice->group);
    if (outcome == TE_SLICE_FAILED && !owner->is_closed) {
        repeat(schedule, slice, now_ns);
        return;
    }
    for (uint32_t i = 0; i < slice->piece_count; i++) {
        te_job *job = slice->pieces[i].job;
        job->held--;
        if (outcome == TE_SLICE_DONE)
            job->done += slice->pieces[i].length;
        if (outcome == TE_SLICE_DONE)
            end_if_over(schedule, job);
        else
            end_early(schedule, job, outcome == TE_SLICE_FAILED ? owner->close_status : status);
    }
    slice_free(schedule, slice);
}
