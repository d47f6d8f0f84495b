/* Spinning before sleeping: asking again for a moment, with the core offered to others in between.
 *
 * A thread that sleeps costs who wakes it a trip to another core, and itself the way back: 10-15 us of a
 * round trip of 25.  So a thread that waits first asks again for some 20 us.  Four things keep that from
 * being a burden:
 *
 * - Between two questions it calls sched_yield.  Whoever else is ready to run on this core runs now, also
 *   the very peer that is waited for; without it a spinner on the peer's core holds up its own answer, and
 *   a thread that wakes on this core waits for the end of a time slice (a 1 kHz timer beside a loop of
 *   calls slipped by 2.3 ms at the 99th percentile, and by 0.17 ms with it).
 * - It learns: only while its waits are mostly short enough does it spin.  A wait that was slept through
 *   counts as well, so nothing is spent on trying.  Waits come in patterns (short, short, long), so the
 *   longest of the last ones says how long the next may take.  Who has just worked for many times a spin (a server that
 *   copied 16 MiB) spins in any case: it costs little beside that, and whoever is woken on this core next (the master,
 *   for the end of the put) finds it awake.  What others take of the core while a thread spins is added to its spin.
 * - It is the only one on its core (spinners.c).  Several callers of one process are an exception: each yields to the
 *   next, so whose answer has come goes on, and nobody has to be woken or pushes the server off its core.  Two threads
 *   that read 64 KiB each over TCP had 0.8 of what one has, and have 1.2.
 *   One that sleeps because another one spins there is woken without an interrupt of that core, which takes 15 to 25 us
 *   of either side in a virtual machine: the spinner's next yield is less than 2 us away.
 * - Yields from which it does not come back at once, twice within a moment, say that somebody computes on this core.  A thread
 *   that sleeps is woken before such a neighbour, one that yields comes after it; so no thread of the engine
 *   spins for a while.
 */
#include <sched.h>

#include "te_internal.h"

#define SCORE_MAX 8
#define GROWTH 8                          /* spins last up to so many times the configured time */
#define GIVE_WAY_NS (200 * INT64_C(1000)) /* work for so long, and others have their turn */
#define WORK_FACTOR 8               /* who worked for so many times the longest spin may spin */
#define AWAY_NS (5 * INT64_C(1000)) /* a yield that takes longer has let others work */
#define AWAY_MAX_NS TE_NS_PER_MS    /* as long as its mark counts (spinners.c) */
#define SHRINK 16                   /* a limit comes down by such a part at a time */
#define SLOW_NS (2 * TE_NS_PER_MS)  /* longer than kernel threads take, less than a time slice */
#define TWICE_NS                                                                                   \
    (20 *                                                                                          \
     TE_NS_PER_MS) /* one alone may be chance, or several of our own; who computes is met again */
#define QUIET_FACTOR 16          /* nobody spins for so many times what the slow yield took; */
#define QUIET_MAX_NS TE_NS_PER_S /* twice as long each time that it comes again soon */

static int64_t shortest(const te_engine *engine) { return (int64_t)engine->config.spin_us * 1000; }

static int64_t longest(const te_engine *engine) { return GROWTH * shortest(engine); }

static bool is_silenced(te_engine *engine, int64_t now_ns) {
    return atomic_load_explicit(&engine->spin_quiet_until_ns, memory_order_relaxed) > now_ns;
}

bool te_spin_is_off(te_engine *engine, int64_t now_ns) {
    return engine->config.spin_us == 0 || is_silenced(engine, now_ns);
}

bool te_spin_begin(te_engine *engine, const te_spin *spin, int64_t now_ns, int64_t extra_ns,
                   int64_t work_ns, te_spinning *spinning) {
    bool is_earned = spin->worked_ns >= WORK_FACTOR * longest(engine);
    int64_t limit_ns = is_earned             ? longest(engine)
                       : spin->limit_ns == 0 ? shortest(engine)
                                             : spin->limit_ns;
    *spinning = (te_spinning){.engine = engine,
                              .now_ns = now_ns,
                              .end_ns = now_ns + limit_ns + extra_ns,
                              .latest_ns = now_ns + limit_ns + extra_ns + AWAY_MAX_NS};
    if (te_spin_is_off(engine, now_ns)) {
        return false;
    }
    if (spin->score < 0 && !is_earned) {
        spinning->is_taken = work_ns != TE_SPIN_IN_TURNS && te_spinner_is_there(now_ns);
        return false;
    }
    spinning->is_taken = work_ns != TE_SPIN_IN_TURNS &&
                         !te_spinner_begin(&spinning->spinner, now_ns, spinning->end_ns, work_ns);
    return !spinning->is_taken;
}

/* Somebody computes on this core: for a while no thread of the engine spins. */
static void silence(te_engine *engine, int64_t now_ns, int64_t took_ns) {
    int64_t last = atomic_load_explicit(&engine->spin_quiet_ns, memory_order_relaxed);
    int64_t since =
        now_ns - atomic_load_explicit(&engine->spin_quiet_until_ns, memory_order_relaxed);
    bool is_again = since < 4 * last;
    int64_t slow_ns = atomic_exchange_explicit(&engine->spin_slow_ns, now_ns, memory_order_relaxed);
    if (!is_again && now_ns - slow_ns > took_ns + TWICE_NS) {
        return;
    }
    int64_t next = is_again ? 2 * last : QUIET_FACTOR * took_ns;
    next = next < QUIET_MAX_NS ? next : QUIET_MAX_NS;
    atomic_store_explicit(&engine->spin_quiet_ns, next, memory_order_relaxed);
    atomic_store_explicit(&engine->spin_quiet_until_ns, now_ns + next, memory_order_relaxed);
}

/* Offers the core to others and takes the time; false: it took so long that no more of this is wanted. */
static bool yield(te_engine *engine, int64_t *now_ns) {
    int64_t before_ns = *now_ns;
    (void)sched_yield();
    *now_ns = te_now_ns();
    if (*now_ns - before_ns >= SLOW_NS) {
        silence(engine, *now_ns, *now_ns - before_ns);
        return false;
    }
    return true;
}

void te_spin_was_away(te_spinning *spinning, int64_t away_ns) {
    if (away_ns > AWAY_NS && spinning->end_ns + away_ns <= spinning->latest_ns)
        spinning->end_ns += away_ns;
}

bool te_spin_goes_on(te_spinning *spinning) {
    int64_t before_ns = spinning->now_ns;
    if (!yield(spinning->engine, &spinning->now_ns))
        return false;
    te_spin_was_away(spinning, spinning->now_ns - before_ns);
    if (spinning->now_ns >= spinning->end_ns)
        return false;
    spinning->is_taken = spinning->spinner.mark != NULL && !te_spinner_is_alone(&spinning->spinner);
    return !spinning->is_taken;
}

/* A thread of SCHED_BATCH differs from others in one thing: to wake it takes the core from nobody.  Whoever was given
 * another policy (chrt) keeps it. */
bool te_spin_quiet_begin(void) {
    return sched_getscheduler(0) == SCHED_OTHER &&
           sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0}) == 0;
}

void te_spin_quiet_end(void) {
    if (sched_getscheduler(0) == SCHED_BATCH)
        (void)sched_setscheduler(0, SCHED_OTHER, &(struct sched_param){0});
}

void te_spin_give_way(te_engine *engine, int64_t *last_ns) {
    int64_t now_ns = te_now_ns();
    if (now_ns - *last_ns < GIVE_WAY_NS || is_silenced(engine, now_ns)) {
        return;
    }
    (void)yield(engine, &now_ns);
    *last_ns = now_ns;
}

void te_spin_end(te_spinning *spinning) {
    if (spinning->spinner.mark != NULL) {
        te_spinner_end(&spinning->spinner);
    }
}

void te_spin_learn(const te_engine *engine, te_spin *spin, int64_t waited_ns) {
    int64_t longest_ns = longest(engine);
    waited_ns = waited_ns < 0 ? 0 : waited_ns;
    if (waited_ns <= longest_ns) {
        int64_t next = waited_ns + waited_ns / 2;
        if (next < spin->limit_ns) {
            next = spin->limit_ns - (spin->limit_ns - next) / SHRINK;
        }
        spin->limit_ns = next < shortest(engine) ? shortest(engine)
                         : next < longest_ns     ? next
                                                 : longest_ns;
        spin->score += spin->score < SCORE_MAX;
    } else {
        spin->score -= spin->score > -SCORE_MAX;
    }
}
