// sources: client/src/breaker.c
// variants: plain address
/* The breaker as a table: what is told to it, at which time, and what follows. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "../../client/src/breaker.h"

#define MS INT64_C(1000000)

static const cl_breaker_rules rules = {
    .patience_ns = 1000 * MS, .pause_first_ns = 20 * MS, .pause_max_ns = 100 * MS};

typedef enum { FAILED, WORKED, PROBE_FAILED, PROBE_WORKED, MOVED, TAKE, TAKE_NONE } event;

typedef struct step {
    int64_t at_ms;
    event event;
    int64_t began_ms; /* FAILED: when the call was begun */
    cl_breaker_state state;
    int64_t next_ms; /* -1: nothing is due */
} step;

static const char *const states[] = {"closed", "suspected", "open"};

static void play(const char *name, const step *steps, size_t count) {
    cl_breaker breaker = {0};
    for (size_t i = 0; i < count; i++) {
        const step *now = &steps[i];
        int64_t at_ns = now->at_ms * MS;
        cl_breaker_state before = breaker.state;
        bool is_change = false;
        switch (now->event) {
        case FAILED:
            is_change = cl_breaker_failed(&breaker, &rules, now->began_ms * MS, at_ns);
            break;
        case WORKED:
            is_change = cl_breaker_worked(&breaker);
            break;
        case PROBE_FAILED:
            is_change = cl_breaker_probe_failed(&breaker, &rules, at_ns);
            break;
        case PROBE_WORKED:
            is_change = cl_breaker_probe_worked(&breaker);
            break;
        case MOVED:
            cl_breaker_moved(&breaker, at_ns);
            is_change = breaker.state != before;
            break;
        case TAKE:
        case TAKE_NONE:
            assert(cl_breaker_take_probe(&breaker, at_ns) == (now->event == TAKE));
            break;
        }
        int64_t next_ns = cl_breaker_next_ns(&breaker);
        int64_t next_ms = next_ns == INT64_MAX ? -1 : next_ns / MS;
        if (breaker.state != now->state || next_ms != now->next_ms ||
            is_change != (breaker.state != before)) {
            fprintf(stderr, "%s, step %zu at %lld ms: %s, next %lld ms; wanted %s, next %lld ms\n",
                    name, i, (long long)now->at_ms, states[breaker.state], (long long)next_ms,
                    states[now->state], (long long)now->next_ms);
            assert(false);
        }
    }
}

#define PLAY(steps) play(#steps, steps, sizeof steps / sizeof *steps)

#define CLOSED CL_BREAKER_CLOSED
#define SUSPECTED CL_BREAKER_SUSPECTED
#define OPEN CL_BREAKER_OPEN

/* A call fails, the peer is there: nothing is lost but the time of one probe. */
static const step one_call_fails[] = {
    {0, TAKE_NONE, 0, CLOSED, -1},     {10, FAILED, 9, SUSPECTED, 10},
    {10, TAKE, 0, SUSPECTED, -1},      {10, TAKE_NONE, 0, SUSPECTED, -1},
    {11, PROBE_WORKED, 0, CLOSED, -1}, {12, WORKED, 0, CLOSED, -1},
    {13, FAILED, 12, SUSPECTED, 13}, /* as if it had never failed */
};

/* Nobody is there: probes in growing pauses, open when the patience is over, and found again. */
static const step peer_is_gone[] = {
    {0, FAILED, 0, SUSPECTED, 0},
    {0, TAKE, 0, SUSPECTED, -1},
    {1, PROBE_FAILED, 0, SUSPECTED, 21},
    {5, FAILED, 4, SUSPECTED, 21}, /* of a peer that is suspected failures say nothing new */
    {20, TAKE_NONE, 0, SUSPECTED, 21},
    {21, TAKE, 0, SUSPECTED, -1},
    {22, PROBE_FAILED, 0, SUSPECTED, 62},
    {62, TAKE, 0, SUSPECTED, -1},
    {62, PROBE_FAILED, 0, SUSPECTED, 142},
    {142, TAKE, 0, SUSPECTED, -1},
    {142, PROBE_FAILED, 0, SUSPECTED, 242}, /* the longest pause */
    {999, TAKE, 0, SUSPECTED, -1},
    {999, PROBE_FAILED, 0, SUSPECTED, 1099},
    {1099, TAKE, 0, SUSPECTED, -1},
    {1099, PROBE_FAILED, 0, OPEN, 1199},
    {1100, FAILED, 1099, OPEN, 1199},
    {1199, TAKE, 0, OPEN, -1},
    {1199, PROBE_FAILED, 0, OPEN, 1299},
    {1299, TAKE, 0, OPEN, -1},
    {1300, PROBE_WORKED, 0, CLOSED, -1},
};

/* A call that has waited for all of the patience: the first probe that fails is enough. */
static const step peer_is_frozen[] = {
    {5000, FAILED, 0, SUSPECTED, 5000},
    {5000, TAKE, 0, SUSPECTED, -1},
    {5300, PROBE_FAILED, 0, OPEN, 5320},
};

/* A call that was begun earlier tells how long it has been going on. */
static const step oldest_call_counts[] = {
    {1500, FAILED, 1400, SUSPECTED, 1500},
    {1501, FAILED, 100, SUSPECTED, 1500},
    {1501, TAKE, 0, SUSPECTED, -1},
    {1502, PROBE_FAILED, 0, OPEN, 1522},
};

/* It answers probes and fails calls: each time fewer calls find out. */
static const step probes_lie[] = {
    {0, FAILED, 0, SUSPECTED, 0},       {0, TAKE, 0, SUSPECTED, -1},
    {1, PROBE_WORKED, 0, CLOSED, -1},   {100, FAILED, 2, SUSPECTED, 120},
    {120, TAKE, 0, SUSPECTED, -1},      {121, PROBE_WORKED, 0, CLOSED, -1},
    {200, FAILED, 130, SUSPECTED, 240}, {240, TAKE, 0, SUSPECTED, -1},
    {241, PROBE_WORKED, 0, CLOSED, -1}, {300, FAILED, 250, SUSPECTED, 380},
    {380, TAKE, 0, SUSPECTED, -1},      {381, PROBE_WORKED, 0, CLOSED, -1},
    {382, WORKED, 0, CLOSED, -1}, /* a call that succeeds wipes that out */
    {400, FAILED, 390, SUSPECTED, 400},
};

/* A probe may end after a call has been answered. */
static const step late_probe_changes_nothing[] = {
    {0, FAILED, 0, SUSPECTED, 0},       {0, TAKE, 0, SUSPECTED, -1},
    {50, WORKED, 0, CLOSED, -1},        {300, PROBE_FAILED, 0, CLOSED, -1},
    {301, PROBE_WORKED, 0, CLOSED, -1}, {302, FAILED, 301, SUSPECTED, 302},
};

/* Another master leads: it is asked at once, and has the patience anew. */
static const step moved[] = {
    {0, MOVED, 0, CLOSED, -1},
    {0, FAILED, 0, SUSPECTED, 0},
    {0, TAKE, 0, SUSPECTED, -1},
    {1200, PROBE_FAILED, 0, OPEN, 1220},
    {1205, MOVED, 0, SUSPECTED, 1205},
    {1205, TAKE, 0, SUSPECTED, -1},
    {1300, PROBE_FAILED, 0, SUSPECTED, 1320},
    {2300, PROBE_FAILED, 0, OPEN, 2340},
};

int main(void) {
    PLAY(one_call_fails);
    PLAY(peer_is_gone);
    PLAY(peer_is_frozen);
    PLAY(oldest_call_counts);
    PLAY(probes_lie);
    PLAY(late_probe_changes_nothing);
    PLAY(moved);
    cl_breaker counted = {0};
    for (int i = 0; i < 3; i++) {
        cl_breaker_failed(&counted, &rules, 0, 5000 * MS);
        cl_breaker_probe_failed(&counted, &rules, 5000 * MS);
        cl_breaker_worked(&counted);
    }
    assert(counted.failures == 3 && counted.openings == 3);
    /* Pauses stay at their longest, however often a peer is asked. */
    for (int i = 0; i < 1000; i++) {
        cl_breaker_failed(&counted, &rules, 0, i * MS);
        cl_breaker_probe_failed(&counted, &rules, i * MS);
        assert(cl_breaker_next_ns(&counted) <= (i + 100) * MS);
    }
    puts("breaker: ok");
    return 0;
}
