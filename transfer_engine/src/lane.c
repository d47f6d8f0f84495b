/* Lanes, whatever their transport: up and down, whose fault a silence is, and the pool of their endpoints.  All of it on the carrier's
 * thread. */
#include "te_carrier.h"

#include <stdarg.h>
#include <stdio.h>

#include "te_fault.h"

#define RETRY_NS_MIN INT64_C(50000000)
#define RETRY_NS_MAX INT64_C(500000000)

/* ---- up and down -------------------------------------------------------------------------------------------------------- */

void te_lane_tick_at(te_lane *lane, int64_t when_ns) {
    if (when_ns < lane->tick_ns)
        lane->tick_ns = when_ns;
    if (when_ns < lane->carrier->tick_ns)
        lane->carrier->tick_ns = when_ns;
}

void te_lane_progress(te_lane *lane, int64_t now_ns) {
    lane->progress_ns = lane->alive_ns = now_ns;
}

void te_lane_alive(te_lane *lane, int64_t now_ns) { lane->alive_ns = now_ns; }

void te_lane_done(te_work *work, te_work_outcome outcome) {
    te_carrier *carrier = work->lane->carrier;
    work->outcome = (uint8_t)outcome;
    work->lane->work_count--;
    work->next = NULL;
    if (carrier->done_last == NULL)
        carrier->done_first = work;
    else
        carrier->done_last->next = work;
    carrier->done_last = work;
}

void te_work_move(te_work *work, te_lane *lane) {
    te_carrier *carrier = lane->carrier;
    work->lane->work_count--;
    work->lane = lane;
    work->unwanted_ns = 0;
    work->is_sent = false;
    work->next = NULL;
    lane->work_count++;
    lane->was_used = true;
    pthread_mutex_lock(&carrier->lock);
    for (uint32_t i = 0; i < work->count; i++) {
        te_carried *item = work->slice->pieces[i].job->owner;
        item->rails |= 1u << lane->index;
    }
    pthread_mutex_unlock(&carrier->lock);
    lane->ops->post(lane, work);
    te_lane_tick_at(lane, te_now_ns());
}

bool te_work_is_wanted(const te_work *work, int64_t now_ns) {
    for (uint32_t i = 0; i < work->count; i++) {
        const te_job *job = work->slice->pieces[i].job;
        if (job->status != MS_PENDING || job->deadline_ns <= now_ns)
            return false;
    }
    return true;
}

void te_lane_up(te_lane *lane) {
    te_carrier *carrier = lane->carrier;
    int64_t now_ns = te_now_ns();
    lane->is_connecting = false;
    lane->failures = 0;
    te_lane_progress(lane, now_ns);
    pthread_mutex_lock(&carrier->lock);
    lane->is_up = true;
    te_path_use(lane->path, lane->opcode, now_ns);
    pthread_mutex_unlock(&carrier->lock);
}

void te_lane_down(te_lane *lane, bool is_refused, ms_status status, const char *format, ...) {
    te_carrier *carrier = lane->carrier;
    te_path *path = lane->path;
    int64_t now_ns = te_now_ns();
    bool was_up = lane->is_up;
    va_list arguments;
    pthread_mutex_lock(&carrier->lock);
    lane->is_up = lane->is_connecting = false;
    lane->resets += was_up;
    va_start(arguments, format);
    vsnprintf(lane->note, sizeof lane->note, format, arguments);
    va_end(arguments);
    te_path_use(path, lane->opcode, now_ns);
    pthread_mutex_unlock(&carrier->lock);
    if (is_refused)
        lane->failures++;
    int64_t pause = lane->failures < 2   ? RETRY_NS_MIN
                    : lane->failures > 5 ? RETRY_NS_MAX
                                         : RETRY_NS_MIN << (lane->failures - 1);
    lane->retry_ns = now_ns + (pause < RETRY_NS_MAX ? pause : RETRY_NS_MAX);
    te_lane_tick_at(lane, lane->retry_ns);
    bool is_dead = is_refused;
    for (uint32_t i = 0; i < path->rail_count; i++) {
        const te_lane *other = &path->lanes[lane->opcode][i];
        is_dead &= other->is_gone || (!other->is_up && other->failures > 0);
    }
    if (status != MS_OK || is_dead) {
        pthread_mutex_lock(&carrier->lock);
        te_path_kill(path, status != MS_OK ? status : MS_UNAVAILABLE);
        pthread_mutex_unlock(&carrier->lock);
    }
    if (was_up)
        te_log(carrier->engine, "rail %s%s%s (%s, %s) is left: %.96s", lane->ends.local,
               lane->ends.local[0] == '\0' ? "" : " > ", lane->ends.remote, lane->ops->transport,
               lane->opcode == TE_READ ? "read" : "write", lane->note);
}

bool te_lane_is_at_fault(te_lane *lane, int64_t since_ns, int64_t limit_ns, bool of_peer,
                         int64_t now_ns) {
    te_path *path = lane->path;
    int64_t silent_ns = now_ns - since_ns;
    bool is_heard = false;
    if (silent_ns < limit_ns / 3)
        return false;
    for (uint32_t direction = 0; direction < 2; direction++) {
        for (uint32_t i = 0; i < path->rail_count; i++) {
            te_lane *other = &path->lanes[direction][i];
            if (other->index == lane->index || other->is_gone || !other->is_up)
                continue;
            int64_t heard_ns = of_peer ? other->progress_ns : other->alive_ns;
            if (heard_ns > since_ns + limit_ns / 4)
                is_heard = true;
            else
                other->ops->ping(other);
        }
    }
    return is_heard && silent_ns >= limit_ns;
}

/* ---- the pool ------------------------------------------------------------------------------------------------------ */

static void pool_drop(te_lane *lane) {
    te_carrier *carrier = lane->carrier;
    if (carrier->pool_hand == lane)
        carrier->pool_hand = lane->pool_previous;
    if (lane->pool_previous != NULL)
        lane->pool_previous->pool_next = lane->pool_next;
    else
        carrier->pool_newest = lane->pool_next;
    if (lane->pool_next != NULL)
        lane->pool_next->pool_previous = lane->pool_previous;
    else
        carrier->pool_oldest = lane->pool_previous;
    lane->pool_next = lane->pool_previous = NULL;
    lane->holds_endpoint = false;
    carrier->endpoints--;
}

void te_lane_endpoint_give(te_lane *lane) {
    if (lane->holds_endpoint)
        pool_drop(lane);
}

/* SIEVE: the hand goes from the oldest to the newest, forgives each once that was used, and takes the first that was
 * not. */
static bool pool_evict(te_carrier *carrier) {
    te_lane *lane = carrier->pool_hand != NULL ? carrier->pool_hand : carrier->pool_oldest;
    for (uint32_t looked = 0; lane != NULL && looked < 2 * carrier->endpoints; looked++) {
        te_lane *newer = lane->pool_previous != NULL ? lane->pool_previous : carrier->pool_oldest;
        if (lane->work_count == 0 && lane->is_up && !lane->was_used) {
            carrier->pool_hand = lane->pool_previous;
            lane->ops->evict(lane);
            return true;
        }
        if (lane->work_count == 0)
            lane->was_used = false;
        lane = newer;
    }
    return false;
}

bool te_lane_endpoint_take(te_lane *lane) {
    te_carrier *carrier = lane->carrier;
    if (lane->holds_endpoint)
        return true;
    if (carrier->endpoints >= carrier->endpoints_max && !pool_evict(carrier))
        return false;
    lane->holds_endpoint = true;
    lane->was_used = false;
    lane->pool_previous = NULL;
    lane->pool_next = carrier->pool_newest;
    if (carrier->pool_newest != NULL)
        carrier->pool_newest->pool_previous = lane;
    else
        carrier->pool_oldest = lane;
    carrier->pool_newest = lane;
    carrier->endpoints++;
    return true;
}
