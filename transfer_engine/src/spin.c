/* Spinning before sleeping: asking again for a moment, with the core offered to others in between.
 *
 * A thread that sleeps costs who wakes it a trip to another core, and itself the way back: 10-15 us of a
 * round trip of 25.  So a thread that waits first asks again for some 20 us.  Three things keep that from
 * being a burden:
 *
 * - Between two questions it calls sched_yield.  Whoever else is ready to run on this core runs now, also
 *   the very peer that is waited for; without it a spinner on the peer's core holds up its own answer, and
 *   a thread that wakes on this core waits for the end of a time slice (a 1 kHz timer beside a loop of
 *   calls slipped by 2.3 ms at the 99th percentile, and by 0.17 ms with it).
 * - It learns: only while its waits are mostly short enough does it spin.  A wait that was slept through
 *   counts as well, so nothing is spent on trying.
 * - A yield from which it does not come back at once says that somebody computes on this core.  A thread
 *   that sleeps is woken before such a neighbour, one that yields comes after it; so no thread of the engine
 *   spins for a while.
 */
#include <sched.h>

#include "te_internal.h"

#define SCORE_MAX 8
#define GROWTH 8                   /* spins last up to so many times the configured time */
#define SLOW_NS (2 * TE_NS_PER_MS) /* longer than kernel threads take, less than a time slice */
#define QUIET_FACTOR 16            /* nobody spins for so many times what the slow yield took; */
#define QUIET_MAX_NS TE_NS_PER_S   /* twice as long each time that it comes again soon */

static int64_t shortest(const te_engine *engine) { return (int64_t)engine->config.spin_us * 1000; }

bool te_spin_may(te_engine *engine, const te_spin *spin, int64_t now_ns) {
    return engine->config.spin_us != 0 && spin->score >= 0 &&
           atomic_load_explicit(&engine->spin_quiet_until_ns, memory_order_relaxed) <= now_ns;
}

int64_t te_spin_end_ns(const te_engine *engine, const te_spin *spin, int64_t now_ns) {
    return now_ns + (spin->limit_ns == 0 ? shortest(engine) : spin->limit_ns);
}

bool te_spin_yield(te_engine *engine, int64_t *now_ns) {
    (void)sched_yield();
    int64_t before = *now_ns;
    *now_ns = te_now_ns();
    if (*now_ns - before < SLOW_NS) {
        return true;
    }
    int64_t last = atomic_load_explicit(&engine->spin_quiet_ns, memory_order_relaxed);
    int64_t since =
        *now_ns - atomic_load_explicit(&engine->spin_quiet_until_ns, memory_order_relaxed);
    int64_t next = since < 4 * last ? 2 * last : QUIET_FACTOR * (*now_ns - before);
    next = next < QUIET_MAX_NS ? next : QUIET_MAX_NS;
    atomic_store_explicit(&engine->spin_quiet_ns, next, memory_order_relaxed);
    atomic_store_explicit(&engine->spin_quiet_until_ns, *now_ns + next, memory_order_relaxed);
    return false;
}

void te_spin_learn(const te_engine *engine, te_spin *spin, int64_t waited_ns) {
    int64_t longest = GROWTH * shortest(engine);
    waited_ns = waited_ns < 0 ? 0 : waited_ns;
    if (waited_ns <= longest) {
        int64_t next = waited_ns + waited_ns / 2;
        spin->limit_ns = next < shortest(engine) ? shortest(engine)
                         : next < longest        ? next
                                                 : longest;
        spin->score += spin->score < SCORE_MAX;
    } else {
        spin->score -= spin->score > -SCORE_MAX;
    }
}
