/* Whether a peer that has failed is asked: what calls and probes tell, and what follows.
 *
 * CLOSED: it is asked as usual.  SUSPECTED: a call has failed; a probe finds out whether it was the peer or the
 * call.  OPEN: a probe has failed too, and nothing has succeeded for the peer's patience: nobody waits for it.
 * Probes come in growing pauses until one is answered.  A peer that answers probes and fails calls all the same is
 * a strike each time: then the first probe waits as well, so that fewer and fewer calls find out.
 *
 * Pure: no clock, no lock, no memory.  health.c has those.
 */
#ifndef CL_BREAKER_H
#define CL_BREAKER_H

#include <stdbool.h>
#include <stdint.h>

typedef enum cl_breaker_state {
    CL_BREAKER_CLOSED = 0,
    CL_BREAKER_SUSPECTED = 1,
    CL_BREAKER_OPEN = 2
} cl_breaker_state;

typedef struct cl_breaker_rules {
    int64_t patience_ns; /* from the first failure on so long it is not open yet */
    int64_t pause_first_ns, pause_max_ns;
} cl_breaker_rules;

/* Zeroed: closed. */
typedef struct cl_breaker {
    cl_breaker_state state;
    uint32_t
        strikes; /* calls that failed, since one succeeded, each after the peer had answered a probe */
    uint32_t probes;   /* unanswered in a row */
    int64_t since_ns;  /* when the oldest call that failed was begun */
    int64_t probe_ns;  /* when the next probe is due; only unless closed */
    uint64_t failures; /* times that it was suspected */
    uint64_t openings; /* times that it opened */
} cl_breaker;

/* A call that was begun at `began_ns` has failed in a way that may be the peer's.  True: the state has changed. */
bool cl_breaker_failed(cl_breaker *breaker, const cl_breaker_rules *rules, int64_t began_ns,
                       int64_t now_ns);
/* A call has been answered, whatever it was. */
bool cl_breaker_worked(cl_breaker *breaker);
bool cl_breaker_probe_failed(cl_breaker *breaker, const cl_breaker_rules *rules, int64_t now_ns);
bool cl_breaker_probe_worked(cl_breaker *breaker);
/* It is somewhere else now, or another one is there: asked at once, and given its patience anew. */
void cl_breaker_moved(cl_breaker *breaker, int64_t now_ns);
/* A probe is due now, and others wait until this one has ended. */
bool cl_breaker_take_probe(cl_breaker *breaker, int64_t now_ns);
/* When to look again; INT64_MAX: nothing is due unless a call fails. */
int64_t cl_breaker_next_ns(const cl_breaker *breaker);

#endif
