/* The breaker: see breaker.h. */
#include "breaker.h"

#define DOUBLINGS_MAX 20u

static int64_t pause_after(const cl_breaker_rules *rules, uint32_t times) {
    uint32_t doublings = times == 0 ? 0 : times - 1;
    int64_t pause = rules->pause_first_ns
                    << (doublings < DOUBLINGS_MAX ? doublings : DOUBLINGS_MAX);
    return pause < rules->pause_max_ns ? pause : rules->pause_max_ns;
}

bool cl_breaker_failed(cl_breaker *breaker, const cl_breaker_rules *rules, int64_t began_ns,
                       int64_t now_ns) {
    if (breaker->state != CL_BREAKER_CLOSED) {
        if (began_ns < breaker->since_ns)
            breaker->since_ns = began_ns;
        return false;
    }
    breaker->state = CL_BREAKER_SUSPECTED;
    breaker->since_ns = began_ns;
    breaker->probes = 0;
    breaker->probe_ns = now_ns;
    if (breaker->strikes > 0) /* it had answered probes before, which proved nothing */
        breaker->probe_ns += pause_after(rules, breaker->strikes);
    breaker->failures++;
    return true;
}

static bool close_it(cl_breaker *breaker) {
    bool is_change = breaker->state != CL_BREAKER_CLOSED;
    breaker->state = CL_BREAKER_CLOSED;
    breaker->probes = 0;
    return is_change;
}

bool cl_breaker_worked(cl_breaker *breaker) {
    breaker->strikes = 0;
    return close_it(breaker);
}

bool cl_breaker_probe_worked(cl_breaker *breaker) {
    if (breaker->state != CL_BREAKER_CLOSED && breaker->strikes < UINT32_MAX)
        breaker->strikes++;
    return close_it(breaker);
}

bool cl_breaker_probe_failed(cl_breaker *breaker, const cl_breaker_rules *rules, int64_t now_ns) {
    if (breaker->state == CL_BREAKER_CLOSED)
        return false; /* a call has been answered meanwhile */
    if (breaker->probes < UINT32_MAX)
        breaker->probes++;
    breaker->probe_ns = now_ns + pause_after(rules, breaker->probes);
    if (breaker->state == CL_BREAKER_OPEN || now_ns - breaker->since_ns < rules->patience_ns)
        return false;
    breaker->state = CL_BREAKER_OPEN;
    breaker->openings++;
    return true;
}

void cl_breaker_moved(cl_breaker *breaker, int64_t now_ns) {
    breaker->strikes = 0;
    if (breaker->state == CL_BREAKER_CLOSED)
        return;
    breaker->state = CL_BREAKER_SUSPECTED;
    breaker->since_ns = breaker->probe_ns = now_ns;
    breaker->probes = 0;
}

bool cl_breaker_take_probe(cl_breaker *breaker, int64_t now_ns) {
    if (breaker->state == CL_BREAKER_CLOSED || now_ns < breaker->probe_ns)
        return false;
    breaker->probe_ns = INT64_MAX;
    return true;
}

int64_t cl_breaker_next_ns(const cl_breaker *breaker) {
    return breaker->state == CL_BREAKER_CLOSED ? INT64_MAX : breaker->probe_ns;
}
