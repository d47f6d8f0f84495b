/* Carries: items that are to be moved over a path.  Any thread begins, cancels and looks at them; the carrier's moves them. */
#include "te_carrier.h"

#include <string.h>

#include "te_fault.h"

/* ---- beginning and ending ------------------------------------------------------------------------------------------- */

bool te_carried_is_device(const te_engine *engine, const te_carried *carried) {
    return carried->region != NULL ? te_region_is_device(carried->region)
                                   : te_memory_is_device(engine->registry, carried->local);
}

ms_status te_carry_begin(te_carry *carry) {
    bool is_asleep = false;
    ms_status status = te_carry_add(carry, &is_asleep);
    if (is_asleep)
        te_carrier_rouse(carry->path->carrier);
    return status;
}

ms_status te_carry_add(te_carry *carry, bool *is_asleep) {
    te_carrier *carrier = carry->path->carrier;
    carry->left = carry->count;
    carry->begun_ns = te_now_ns();
    carry->next = carry->cancel_next = NULL;
    carry->cancel_status = MS_OK;
    carry->is_over = false;
    memset(carry->rail_bytes, 0, sizeof carry->rail_bytes);
    pthread_mutex_lock(&carrier->lock);
    bool is_late = carrier->is_stopping || carry->path->is_over;
    ms_status status = is_late ? MS_CLOSED : te_carrier_start(carrier);
    if (status == MS_OK) {
        if (carrier->begun_last == NULL)
            carrier->begun_first = carry;
        else
            carrier->begun_last->next = carry;
        carrier->begun_last = carry;
        carry->path_previous = NULL;
        carry->path_next = carry->path->carries;
        if (carry->path_next != NULL)
            carry->path_next->path_previous = carry;
        carry->path->carries = carry;
        *is_asleep |= carrier->is_sleeping;
        carrier->is_sleeping = false;
    }
    pthread_mutex_unlock(&carrier->lock);
    return status;
}

/* Under the lock. */
static void cancel(te_carry *carry, ms_status status) {
    te_carrier *carrier = carry->path->carrier;
    if (carry->is_over || carry->cancel_status != MS_OK)
        return;
    carry->cancel_status = status;
    carry->cancel_next = carrier->cancelled;
    carrier->cancelled = carry;
    te_carrier_wake(carrier);
}

void te_carry_cancel(te_carry *carry, ms_status status) {
    te_carrier *carrier = carry->path->carrier;
    pthread_mutex_lock(&carrier->lock);
    cancel(carry, status);
    pthread_mutex_unlock(&carrier->lock);
}

void te_path_break_off(te_path *path, bool for_ever) {
    pthread_mutex_lock(&path->carrier->lock);
    path->is_over |= for_ever;
    for (te_carry *each = path->carries; each != NULL; each = each->path_next)
        cancel(each, each->opcode == TE_READ ? MS_UNAVAILABLE : MS_IO_ERROR);
    pthread_mutex_unlock(&path->carrier->lock);
}

te_carried_view te_carry_look(te_carry *carry, size_t index) {
    te_carrier *carrier = carry->path->carrier;
    const te_carried *item = &carry->items[index];
    pthread_mutex_lock(&carrier->lock);
    te_carried_view view = {.rails = item->rails,
                            .attempts = item->attempts,
                            .begun_ns = carry->begun_ns,
                            .first_ns = item->first_ns,
                            .ended_ns = item->ended_ns,
                            .done = item->job.done};
    pthread_mutex_unlock(&carrier->lock);
    return view;
}

uint64_t te_carry_rail_bytes(te_carry *carry, uint32_t rail) {
    te_carrier *carrier = carry->path->carrier;
    pthread_mutex_lock(&carrier->lock);
    uint64_t bytes = rail < TE_RAILS_MAX ? carry->rail_bytes[rail] : 0;
    pthread_mutex_unlock(&carrier->lock);
    return bytes;
}

typedef struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool has_ended;
} waiter;

static void tell_waiter(te_carry *carry) {
    waiter *told = carry->owner;
    pthread_mutex_lock(&told->lock);
    told->has_ended = true;
    pthread_cond_signal(&told->changed);
    pthread_mutex_unlock(&told->lock);
}

void te_carry_wait(te_carry *carry, te_scope *scope) {
    waiter own = {.has_ended = false};
    pthread_mutex_init(&own.lock, NULL);
    pthread_cond_init(&own.changed, NULL);
    carry->owner = &own;
    carry->ended = tell_waiter;
    ms_status status = te_carry_begin(carry);
    if (status == MS_OK) {
        if (scope != NULL)
            te_scope_add_carry(scope, carry);
        pthread_mutex_lock(&own.lock);
        while (!own.has_ended)
            pthread_cond_wait(&own.changed, &own.lock); /* the schedule has the deadline */
        pthread_mutex_unlock(&own.lock);
        if (scope != NULL)
            te_scope_remove_carry(scope, carry);
    }
    for (size_t i = 0; status != MS_OK && i < carry->count; i++)
        carry->items[i].status = status;
    pthread_mutex_destroy(&own.lock);
    pthread_cond_destroy(&own.changed);
}
