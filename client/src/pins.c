/* Pins that this client holds, so that they can be taken again when the master that knew them is gone.
 *
 * Pins end with their session (docs/protocol.md, taking over).  Who pinned does not see that: the client counts its
 * pins by key hash and session, and the keeper, which opens a new session when one is lost, pins again what was
 * pinned in former ones.  Calls that pin or unpin share pins_calls; taking them again has it alone, so that no
 * pin is counted in two sessions.
 */
#include <stdlib.h>
#include <time.h>

#include "cl_internal.h"

#define AGAIN_TIMEOUT_NS INT64_C(8000000000) /* a new master may wait 5 s for its store servers */
#define FRAME_PINS 4096u

typedef struct cl_pin {
    ms_hash hash;
    int64_t deadline_ns; /* INT64_MAX: none; the latest counts for all */
    uint64_t session;    /* in which `held` were taken */
    uint32_t held, owed; /* owed: of sessions that are lost; both 0 = an empty slot */
} cl_pin;

struct cl_pins {
    cl_pin *slots; /* open addressing, linear probing; at most 2/3 used */
    size_t capacity, count;
};

static bool is_empty(const cl_pin *pin) { return pin->held + pin->owed == 0; }

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

static bool grow(cl_pins *pins) {
    if ((pins->count + 1) * 3 <= pins->capacity * 2)
        return true;
    cl_pins larger = {.capacity = pins->capacity == 0 ? 64 : pins->capacity * 2};
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

/* Followers move back into the hole unless their home lies behind it. */
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
    if (--pins->count == 0) {
        free(pins->slots);
        *pins = (cl_pins){0};
    }
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

bool cl_pins_call_begin(cl_client *client, int64_t deadline_ns) {
    if (pthread_rwlock_tryrdlock(&client->pins_calls) == 0)
        return true;
    struct timespec until; /* this lock knows no other clock where glibc is old */
    clock_gettime(CLOCK_REALTIME, &until);
    int64_t left_ns = deadline_ns - te_now_ns() + until.tv_nsec;
    if (left_ns <= until.tv_nsec)
        return false;
    until.tv_sec += left_ns / 1000000000;
    until.tv_nsec = left_ns % 1000000000;
    return pthread_rwlock_timedrdlock(&client->pins_calls, &until) == 0;
}

void cl_pins_call_end(cl_client *client) { pthread_rwlock_unlock(&client->pins_calls); }

void cl_pins_add(cl_client *client, ms_hash hash, uint32_t deadline_ms) {
    int64_t deadline_ns =
        deadline_ms == 0 ? INT64_MAX : te_now_ns() + (int64_t)deadline_ms * 1000000;
    uint64_t session = atomic_load(&client->session);
    pthread_mutex_lock(&client->pins_lock);
    cl_pin *pin = find(client->pins, hash);
    if (pin == NULL && grow(client->pins)) {
        insert(client->pins,
               (cl_pin){.hash = hash, .deadline_ns = deadline_ns, .session = session, .held = 1});
    } else if (pin != NULL) { /* without memory it is a pin that ends with its session */
        move_on(pin, session);
        pin->held++;
        if (deadline_ns > pin->deadline_ns)
            pin->deadline_ns = deadline_ns;
    }
    pthread_mutex_unlock(&client->pins_lock);
}

bool cl_pins_drop(cl_client *client, ms_hash hash, bool was_there) {
    bool is_known = false;
    uint64_t session = atomic_load(&client->session);
    pthread_mutex_lock(&client->pins_lock);
    cl_pin *pin = find(client->pins, hash);
    if (pin != NULL) {
        move_on(pin, session);
        if (was_there && pin->held != 0) {
            pin->held--;
        } else if (!was_there && pin->owed != 0) {
            pin->owed--;
            is_known = true;
        }
        if (is_empty(pin)) {
            pin->held = 1; /* take_out wants a full slot */
            take_out(client->pins, pin);
        }
    }
    pthread_mutex_unlock(&client->pins_lock);
    return is_known;
}

bool cl_pins_any(cl_client *client) {
    pthread_mutex_lock(&client->pins_lock);
    bool any = client->pins->count != 0;
    pthread_mutex_unlock(&client->pins_lock);
    return any;
}

/* ---- taking them again --------------------------------------------------------------------------------------- */

typedef struct owed_pin {
    ms_hash hash;
    int64_t deadline_ns;
} owed_pin;

static int by_deadline(const void *a, const void *b) {
    int64_t left = ((const owed_pin *)a)->deadline_ns, right = ((const owed_pin *)b)->deadline_ns;
    return (left > right) - (left < right);
}

/* All that is owed, once for each time that it was pinned; those whose deadline has passed are forgotten.
 * NULL: nothing, or no memory now. */
static owed_pin *collect(cl_client *client, size_t *count) {
    cl_pins *pins = client->pins;
    uint64_t session = atomic_load(&client->session);
    int64_t now_ns = te_now_ns();
    *count = 0;
    size_t total = 0;
    for (size_t at = 0; at < pins->capacity;) {
        cl_pin *pin = &pins->slots[at];
        if (!is_empty(pin) && pin->deadline_ns <= now_ns) { /* the master has ended it too */
            take_out(pins, pin); /* another one may lie here now, or nothing at all */
            continue;
        }
        if (!is_empty(pin))
            move_on(pin, session);
        total += pin->owed;
        at++;
    }
    owed_pin *owed = total != 0 ? malloc(total * sizeof *owed) : NULL;
    for (size_t at = 0; owed != NULL && at < pins->capacity; at++)
        for (uint32_t times = 0; times < pins->slots[at].owed; times++)
            owed[(*count)++] = (owed_pin){pins->slots[at].hash, pins->slots[at].deadline_ns};
    if (owed != NULL)
        qsort(owed, *count, sizeof *owed, by_deadline);
    return owed;
}

/* One frame has one deadline: the latest of its pins, which differ by little. */
static size_t frame_length(const owed_pin *owed, size_t count, int64_t now_ns) {
    int64_t left_ns = owed[0].deadline_ns - now_ns;
    size_t length = 1;
    while (length < count && length < FRAME_PINS &&
           (owed[0].deadline_ns == INT64_MAX ||
            owed[length].deadline_ns - now_ns <= left_ns + left_ns / 16 + 100000000))
        length++;
    return length;
}

static ms_status pin_frame(cl_client *client, const owed_pin *owed, size_t count) {
    ms_hash *hashes = malloc(count * sizeof *hashes);
    if (hashes == NULL)
        return MS_NO_MEMORY;
    for (size_t at = 0; at < count; at++)
        hashes[at] = owed[at].hash;
    int64_t latest_ns = owed[count - 1].deadline_ns;
    int64_t left_ms = (latest_ns - te_now_ns()) / 1000000 + 1;
    left_ms = left_ms < 1 ? 1 : left_ms > UINT32_MAX ? UINT32_MAX : left_ms;
    ms_match match = {.pin = 1,
                      .pin_deadline_ms = latest_ns == INT64_MAX ? 0 : (uint32_t)left_ms,
                      .count = (uint32_t)count};
    struct iovec body[2] = {{.iov_base = &match, .iov_len = sizeof match},
                            {.iov_base = hashes, .iov_len = count * sizeof *hashes}};
    te_reply reply = {.grow = true};
    ms_status status =
        te_call(client->master, MS_PIN, 0, body, 2, &reply, te_now_ns() + AGAIN_TIMEOUT_NS);
    if (status == MS_OK)
        status = (ms_status)reply.header.status;
    ms_array statuses;
    if (status == MS_OK &&
        (!ms_read_array(reply.body, reply.header.body_length, sizeof(uint32_t), &statuses) ||
         statuses.count != count))
        status = MS_BAD_FRAME;
    pthread_mutex_lock(&client->pins_lock);
    for (uint32_t at = 0; status == MS_OK && at < count; at++) {
        cl_pin *pin = find(client->pins, hashes[at]);
        if (pin == NULL || pin->owed == 0)
            continue;
        pin->owed--;
        if (ms_array_u32(statuses, at) == MS_OK) {
            pin->held++;
        } else if (is_empty(pin)) { /* the object is gone, and with it the pin */
            pin->held = 1;
            take_out(client->pins, pin);
        }
    }
    pthread_mutex_unlock(&client->pins_lock);
    free(reply.body);
    free(hashes);
    return status;
}

static bool is_any_owed(cl_client *client) {
    uint64_t session = atomic_load(&client->session);
    bool is_owed = false;
    pthread_mutex_lock(&client->pins_lock);
    const cl_pins *pins = client->pins;
    for (size_t at = 0; !is_owed && at < pins->capacity; at++)
        is_owed = !is_empty(&pins->slots[at]) &&
                  (pins->slots[at].owed != 0 || pins->slots[at].session != session);
    pthread_mutex_unlock(&client->pins_lock);
    return is_owed;
}

void cl_pins_again(cl_client *client) {
    if (!is_any_owed(client))
        return;
    pthread_rwlock_wrlock(&client->pins_calls);
    size_t count, at = 0;
    pthread_mutex_lock(&client->pins_lock);
    owed_pin *owed = collect(client, &count);
    pthread_mutex_unlock(&client->pins_lock);
    ms_status status = MS_OK;
    while (status == MS_OK && at < count) {
        size_t length = frame_length(owed + at, count - at, te_now_ns());
        status = pin_frame(client, owed + at, length);
        at += length;
    }
    free(owed);
    pthread_rwlock_unlock(&client->pins_calls);
}
