/* Letting the interpreter lock go for a call, and taking it again.
 *
 * CPython's waiters sleep: when two threads that copy for some microseconds each meet at the lock, one is put to
 * sleep and woken again, which costs more than the microsecond or two that the other holds it.  So who comes back
 * looks for a moment whether another thread that has just come back from here is still in Python.  It is a hint and
 * protects nothing: the lock does.  A thread that stays in Python makes others look in vain, for some 2 us.
 *
 * Other threads of the program (an event loop, a timer) would starve beside a loop of such calls: each release wakes
 * them, but they are awake only when the lock is taken again, and being woken restarts the 5 ms after which
 * CPython makes the holder give way.  That somebody sleeps at the lock is seen in how long the release takes: it
 * makes a system call then.  Unless that is for a thread that comes back from a call of ours, the lock stays free
 * for as long as a sleeper needs.
 */
#ifndef CL_PYTHON_LOCK_H
#define CL_PYTHON_LOCK_H

#include <Python.h>
#include <sched.h>
#include <stdatomic.h>

#include "te.h"

#define CL_LOCK_LOOKS 64
#define CL_LOCK_WAKING_NS 600 /* a release that wakes somebody takes longer, any other 50 ns */
#define CL_LOCK_FREE_NS (100 * 1000) /* a thread that is woken on another core needs so long */

#define CL_GIVE_WAY_NS (200 * 1000)

/* A thread of ours has come back to Python and not called again. */
extern _Atomic int cl_is_in_python;
/* Threads that are about to come back. */
extern _Atomic int cl_returning;
/* Until when this thread leaves the lock to somebody else; 0 = nobody wants it.  When it last gave others its core:
 * who is woken there waits for the end of the time slice, and has not even asked for the lock. */
extern _Thread_local int64_t cl_lock_free_until_ns, cl_gave_way_ns;

static inline PyThreadState *cl_python_leave(void) {
    int64_t begun_ns = te_now_ns();
    PyThreadState *state = PyEval_SaveThread();
    int64_t left_ns = te_now_ns();
    atomic_store_explicit(&cl_is_in_python, 0, memory_order_relaxed);
    cl_lock_free_until_ns = left_ns - begun_ns > CL_LOCK_WAKING_NS &&
                                    atomic_load_explicit(&cl_returning, memory_order_relaxed) == 0
                                ? left_ns + CL_LOCK_FREE_NS
                                : 0;
    if (left_ns - cl_gave_way_ns > CL_GIVE_WAY_NS) {
        sched_yield();
        cl_gave_way_ns = left_ns;
    }
    return state;
}

static inline void cl_python_return(PyThreadState *state) {
    atomic_fetch_add_explicit(&cl_returning, 1, memory_order_relaxed);
    while (cl_lock_free_until_ns != 0 && te_now_ns() < cl_lock_free_until_ns)
        sched_yield();
    for (int i = 0; i < CL_LOCK_LOOKS; i++) {
        if (atomic_load_explicit(&cl_is_in_python, memory_order_relaxed) == 0)
            break;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
    PyEval_RestoreThread(state);
    atomic_fetch_sub_explicit(&cl_returning, 1, memory_order_relaxed);
    atomic_store_explicit(&cl_is_in_python, 1, memory_order_relaxed);
}

#endif
