/* Pins that this client holds: what it and the master count of them is the same, or will be.
 *
 * Pins end with their session (docs/protocol.md, pins and leases).  Who pinned does not see that: the client counts
 * its pins by key hash and session.  What is not certain, because a call was not answered or its session is lost, the
 * keeper states anew with PINS.  Calls that pin or unpin share pins_calls; the keeper has it alone meanwhile, so that
 * all that is numbered below its PINS is over (*pins_alone*).
 */
#include <stdlib.h>
#include <time.h>

#include "cl_internal.h"

#define STATE_TIMEOUT_NS INT64_C(8000000000) /* a new master may wait 5 s for its store servers */
#define ALONE_TIMEOUT_NS INT64_C(1000000000) /* the keeper keeps the session alive, too */
#define FRAME_PINS 4096u

typedef struct cl_pin {
    ms_hash hash;
    int64_t deadline_ns; /* INT64_MAX: none; the latest counts for all */
    uint64_t session;    /* in which `held` were taken */
    uint32_t held, owed; /* owed: of sessions that are lost */
    bool is_unsure;      /* the master may count others */
} cl_pin;

struct cl_pins {
    cl_pin *slots; /* open addressing, linear probing; at most 2/3 used */
    size_t capacity, count;
    size_t promised; /* slots that calls under way may need */
    /* What spares the keeper a walk over all slots at each tick. */
    int64_t ends_ns;  /* no pin that is certain ends before */
    int64_t rests_ns; /* nor are those that have ended looked for */
    uint64_t
        settled_session; /* there was nothing to be stated in it, and nothing has come since; 0: perhaps there is */
};

#define REST_NS_PER_SLOT 1000 /* after a walk, which takes some nanoseconds a slot */

static bool is_empty(const cl_pin *pin) { return pin->held + pin->owed == 0 && !pin->is_unsure; }

static size_t home_of(const cl_pins *pins, ms_hash hash) {
    return (size_t)(hash.low ^ hash.high >> 7) & (pins->capacity - 1);
}

static cl_pin *find(cl_pins *pins, ms_hash hash) {
    if (pins->count == 0)
        return NULL;
    for (size_t at = home_of(pins, hash);; at = (at + 1) & (pins->capacity - 1)) {
        if (is_empty(&pins->slots[at]))
            return NULL;
        if (ms_hash_equal(pins->slots[at].hash, hash))
            return &pins->slots[at];
    }
}

static cl_pin *insert(cl_pins *pins, cl_pin pin) {
    size_t at = home_of(pins, pin.hash);
    while (!is_empty(&pins->slots[at]))
        at = (at + 1) & (pins->capacity - 1);
    pins->slots[at] = pin;
    pins->count++;
    return &pins->slots[at];
}

static void take_out(cl_pins *pins, cl_pin *pin);

/* It counts for ends_ns from now on. */
static void note_end(cl_pins *pins, const cl_pin *pin) {
    if (!is_empty(pin) && !pin->is_unsure && pin->deadline_ns < pins->ends_ns)
        pins->ends_ns = pin->deadline_ns;
}

/* The master has ended them, too. */
static void forget_expired(cl_pins *pins, int64_t now_ns) {
    if (now_ns < pins->ends_ns || now_ns < pins->rests_ns)
        return;
    pins->ends_ns = INT64_MAX;
    for (size_t at = 0; at < pins->capacity;) {
        cl_pin *pin = &pins->slots[at];
        if (!is_empty(pin) && !pin->is_unsure && pin->deadline_ns <= now_ns) {
            take_out(pins, pin); /* another one may lie here now, or nothing at all */
        } else {
            note_end(pins, pin);
            at++;
        }
    }
    pins->rests_ns = now_ns + (int64_t)pins->capacity * REST_NS_PER_SLOT;
}

/* Room for so many more than there are and were promised. */
static bool reserve(cl_pins *pins, size_t count) {
    if ((pins->count + pins->promised + count) * 3 > pins->capacity * 2)
        forget_expired(pins, te_now_ns());
    size_t capacity = pins->capacity == 0 ? 64 : pins->capacity;
    while ((pins->count + pins->promised + count) * 3 > capacity * 2)
        capacity *= 2;
    if (capacity == pins->capacity)
        return true;
    cl_pins larger = *pins;
    larger.capacity = capacity;
    larger.count = 0;
    larger.slots = calloc(larger.capacity, sizeof *larger.slots);
    if (larger.slots == NULL)
        return false;
    for (size_t at = 0; at < pins->capacity; at++)
        if (!is_empty(&pins->slots[at]))
            insert(&larger, pins->slots[at]);
    free(pins->slots);
    *pins = larger;
    return true;
}

static void free_when_unused(cl_pins *pins) {
    if (pins->count + pins->promised == 0) {
        free(pins->slots);
        *pins = (cl_pins){0};
    }
}

/* Those behind it move up: what is looked for is found before the first empty slot. */
static void take_out(cl_pins *pins, cl_pin *pin) {
    size_t mask = pins->capacity - 1, hole = (size_t)(pin - pins->slots);
    for (size_t at = (hole + 1) & mask; !is_empty(&pins->slots[at]); at = (at + 1) & mask) {
        size_t home = home_of(pins, pins->slots[at].hash);
        if (((at - home) & mask) < ((at - hole) & mask))
            continue;
        pins->slots[hole] = pins->slots[at];
        hole = at;
    }
    pins->slots[hole] = (cl_pin){0};
    pins->count--;
}

/* After a change that may have left nothing of it. */
static void take_out_empty(cl_pins *pins, cl_pin *pin) {
    if (is_empty(pin))
        take_out(pins, pin);
}

/* Pins of a session that is lost are owed. */
static void move_on(cl_pin *pin, uint64_t session) {
    if (pin->session == session)
        return;
    pin->owed += pin->held;
    pin->held = 0;
    pin->session = session;
}

/* ---- open, close, calls ------------------------------------------------------------------------------------ */

bool cl_pins_open(cl_client *client) {
    client->pins = calloc(1, sizeof *client->pins);
    /* Else the keeper might never get it while there are calls. */
    pthread_rwlockattr_t attributes;
    pthread_rwlockattr_init(&attributes);
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    bool is_open = client->pins != NULL && pthread_mutex_init(&client->pins_lock, NULL) == 0 &&
                   pthread_rwlock_init(&client->pins_calls, &attributes) == 0;
    pthread_rwlockattr_destroy(&attributes);
    return is_open;
}

void cl_pins_close(cl_client *client) {
    if (client->pins == NULL)
        return;
    free(client->pins->slots);
    free(client->pins);
    pthread_mutex_destroy(&client->pins_lock);
    pthread_rwlock_destroy(&client->pins_calls);
}

/* By the clock of pthread_rwlock_t, which knows no other where glibc is old. */
static struct timespec real_time_in(int64_t left_ns) {
    struct timespec at;
    clock_gettime(CLOCK_REALTIME, &at);
    left_ns += at.tv_nsec;
    at.tv_sec += left_ns / 1000000000;
    at.tv_nsec = left_ns % 1000000000;
    return at;
}

static bool share_until(cl_client *client, int64_t deadline_ns) {
    if (pthread_rwlock_tryrdlock(&client->pins_calls) == 0)
        return true;
    int64_t left_ns = deadline_ns - te_now_ns();
    if (left_ns <= 0)
        return false;
    struct timespec until = real_time_in(left_ns);
    return pthread_rwlock_timedrdlock(&client->pins_calls, &until) == 0;
}

ms_status cl_pins_call_begin(cl_client *client, cl_pins_call *call, size_t count, const char *stage,
                             int64_t deadline_ns, cl_failure *failure) {
    *call = (cl_pins_call){0};
    ms_status status = cl_master_check(client, stage, deadline_ns, failure);
    if (status != MS_OK)
        return status;
    pthread_mutex_lock(&client->pins_lock);
    bool is_reserved = reserve(client->pins, count);
    client->pins->promised += is_reserved ? count : 0;
    pthread_mutex_unlock(&client->pins_lock);
    if (!is_reserved)
        return cl_fail(failure, MS_NO_MEMORY, stage, "", "out of memory");
    call->promised = count;
    if (!share_until(client, deadline_ns))
        return cl_fail(failure, MS_TIMEOUT, stage, "master",
                       "what this client has pinned is being stated anew");
    call->is_begun = true;
    call->session = atomic_load(&client->session);
    call->number = atomic_fetch_add(&client->pins_number, 1) + 1;
    return MS_OK;
}

void cl_pins_call_end(cl_client *client, cl_pins_call *call) {
    pthread_mutex_lock(&client->pins_lock);
    client->pins->promised -= call->promised;
    free_when_unused(client->pins);
    pthread_mutex_unlock(&client->pins_lock);
    if (call->is_begun)
        pthread_rwlock_unlock(&client->pins_calls);
}

/* It may be something to be stated. */
static void note_open(cl_pins *pins, const cl_pin *pin) {
    if (pin->is_unsure || pin->owed != 0)
        pins->settled_session = 0;
}

/* What is known of a key, as it is in this session; NULL: nothing. */
static cl_pin *known(cl_client *client, ms_hash hash) {
    cl_pin *pin = find(client->pins, hash);
    if (pin != NULL)
        move_on(pin, atomic_load(&client->session));
    return pin;
}

/* A call during which the session was replaced counts as not answered (*pins_session*). */
static bool is_same_session(cl_client *client, const cl_pins_call *call) {
    return call->session == atomic_load(&client->session);
}

void cl_pins_add(cl_client *client, const cl_pins_call *call, ms_hash hash, uint32_t deadline_ms) {
    int64_t deadline_ns =
        deadline_ms == 0 ? INT64_MAX : te_now_ns() + (int64_t)deadline_ms * 1000000;
    pthread_mutex_lock(&client->pins_lock);
    cl_pin *pin = known(client, hash);
    if (pin == NULL)
        pin =
            insert(client->pins, (cl_pin){.hash = hash, .session = atomic_load(&client->session)});
    if (pin->held + pin->owed == 0 || deadline_ns > pin->deadline_ns)
        pin->deadline_ns = deadline_ns;
    pin->held++;
    pin->is_unsure |= !is_same_session(client, call);
    note_end(client->pins, pin);
    note_open(client->pins, pin);
    pthread_mutex_unlock(&client->pins_lock);
}

bool cl_pins_drop(cl_client *client, const cl_pins_call *call, ms_hash hash, bool was_there) {
    bool is_known = false;
    pthread_mutex_lock(&client->pins_lock);
    cl_pin *pin = known(client, hash);
    if (pin != NULL) {
        pin->is_unsure |= !is_same_session(client, call);
        if (was_there && pin->held != 0) {
            pin->held--;
        } else if (was_there && pin->owed != 0) {
            pin->owed--; /* of another session, or PINS was handled and its answer lost */
            pin->is_unsure = true;
        } else if (was_there) {
            /* the master counted more than this client */
        } else if (pin->owed != 0) {
            pin->owed--;
            is_known = true;
        } else if (pin->is_unsure && pin->held != 0) {
            pin->held--; /* the master may have heard of another one twice */
            is_known = true;
        } else {
            pin->held = 0; /* they have ended, at their deadline */
        }
        note_open(client->pins, pin);
        take_out_empty(client->pins, pin);
    }
    pthread_mutex_unlock(&client->pins_lock);
    return is_known;
}

bool cl_pins_unheard(cl_client *client, const cl_pins_call *call, ms_hash hash, bool is_unpin) {
    bool is_known = false;
    pthread_mutex_lock(&client->pins_lock);
    cl_pin *pin = known(client, hash);
    if (pin == NULL && call->is_begun)
        pin =
            insert(client->pins, (cl_pin){.hash = hash, .session = atomic_load(&client->session)});
    is_known = is_unpin && pin != NULL && pin->held + pin->owed != 0;
    if (is_known)
        (*(pin->held != 0 ? &pin->held : &pin->owed))--;
    if (call->is_begun || is_known) { /* else nobody has sent anything */
        pin->is_unsure = true;
        note_open(client->pins, pin);
    }
    pthread_mutex_unlock(&client->pins_lock);
    return is_known;
}

bool cl_pins_any(cl_client *client) {
    pthread_mutex_lock(&client->pins_lock);
    forget_expired(client->pins, te_now_ns());
    free_when_unused(client->pins);
    bool any = client->pins->count != 0;
    pthread_mutex_unlock(&client->pins_lock);
    return any;
}

/* ---- stating them anew --------------------------------------------------------------------------------------- */

/* Something is to be stated of it. */
static bool is_open(const cl_pin *pin, uint64_t session) {
    return !is_empty(pin) && (pin->is_unsure || pin->owed != 0 || pin->session != session);
}

static bool is_any_open(cl_client *client) {
    uint64_t session = atomic_load(&client->session);
    bool is_any = false;
    pthread_mutex_lock(&client->pins_lock);
    cl_pins *pins = client->pins;
    if (session == 0 || pins->settled_session != session) {
        for (size_t at = 0; !is_any && at < pins->capacity; at++)
            is_any = is_open(&pins->slots[at], session);
        pins->settled_session = is_any ? 0 : session;
    }
    pthread_mutex_unlock(&client->pins_lock);
    return is_any;
}

/* The next of what is to be stated, from the slot `at` on. */
static uint32_t collect(cl_client *client, size_t *at, ms_pins_item *items) {
    uint64_t session = atomic_load(&client->session);
    int64_t now_ns = te_now_ns();
    uint32_t count = 0;
    pthread_mutex_lock(&client->pins_lock);
    cl_pins *pins = client->pins;
    for (; *at < pins->capacity && count < FRAME_PINS; (*at)++) {
        cl_pin *pin = &pins->slots[*at];
        if (!is_open(pin, session))
            continue;
        move_on(pin, session);
        if (pin->deadline_ns <= now_ns) { /* the master has ended them, too */
            pin->held = pin->owed = 0;
            pin->is_unsure = true; /* not empty: it keeps its slot until that is answered */
        }
        int64_t left_ms = (pin->deadline_ns - now_ns) / 1000000 + 1;
        left_ms = left_ms < 1 ? 1 : left_ms > UINT32_MAX ? UINT32_MAX : left_ms;
        items[count++] =
            (ms_pins_item){.hash = pin->hash,
                           .count = pin->held + pin->owed,
                           .deadline_ms = pin->deadline_ns == INT64_MAX ? 0 : (uint32_t)left_ms};
    }
    pthread_mutex_unlock(&client->pins_lock);
    return count;
}

static void take_answer(cl_client *client, const ms_pins_item *item, ms_status status) {
    cl_pin *pin = find(client->pins, item->hash);
    if (pin == NULL || (status != MS_OK && status != MS_NOT_FOUND))
        return;                                          /* it is stated again */
    bool is_same = pin->held + pin->owed == item->count; /* else somebody has unpinned meanwhile */
    pin->held = status == MS_OK ? pin->held + pin->owed : 0; /* the object is gone, and its pins */
    pin->owed = 0;
    pin->is_unsure = status == MS_OK && !is_same;
    note_end(client->pins, pin);
    take_out_empty(client->pins, pin);
}

static ms_status state_pins(cl_client *client, const ms_pins_item *items, uint32_t count) {
    uint64_t session = atomic_load(&client->session);
    ms_match head = {.number = atomic_fetch_add(&client->pins_number, 1) + 1, .count = count};
    struct iovec body[2] = {
        {.iov_base = &head, .iov_len = sizeof head},
        {.iov_base = (void *)(uintptr_t)items, .iov_len = count * sizeof *items}};
    te_reply reply = {.grow = true};
    ms_status status =
        te_call(client->master, MS_PINS, 0, body, 2, &reply, te_now_ns() + STATE_TIMEOUT_NS);
    if (status == MS_OK)
        status = (ms_status)reply.header.status;
    ms_array statuses;
    if (status == MS_OK &&
        (!ms_read_array(reply.body, reply.header.body_length, sizeof(uint32_t), &statuses) ||
         statuses.count != count))
        status = MS_BAD_FRAME;
    pthread_mutex_lock(&client->pins_lock);
    /* Another thread may have replaced the session: then it is stated in that one. */
    for (uint32_t at = 0; status == MS_OK && session == atomic_load(&client->session) && at < count;
         at++)
        take_answer(client, &items[at], (ms_status)ms_array_u32(statuses, at));
    pthread_mutex_unlock(&client->pins_lock);
    free(reply.body);
    return status;
}

void cl_pins_settle(cl_client *client) {
    if (!is_any_open(client))
        return;
    ms_pins_item *items = malloc(FRAME_PINS * sizeof *items);
    if (items == NULL)
        return;
    struct timespec until = real_time_in(ALONE_TIMEOUT_NS);
    if (pthread_rwlock_timedwrlock(&client->pins_calls, &until) != 0) {
        free(items); /* a call is not answered: the next tick tries again */
        return;
    }
    /* What a frame's answer takes out moves slots that follow: what is skipped by that is stated the next time. */
    size_t at = 0;
    uint32_t count;
    ms_status status = MS_OK;
    while (status == MS_OK && (count = collect(client, &at, items)) != 0)
        status = state_pins(client, items, count);
    free(items);
    pthread_rwlock_unlock(&client->pins_calls);
}
