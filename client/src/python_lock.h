/* Letting the interpreter lock go for a call, and taking it again.
 *
 * CPython's waiters sleep: when two threads that copy for some microseconds each meet at the lock, one is put to
 * sleep and woken again, which costs more than the microsecond or two that the other holds it.  So who comes back
 * looks for a moment whether another thread that has just come back from here is still in Python.  It is a hint and
 * protects nothing: the lock does.  A thread that stays in Python makes others look in vain, for some 2 us.
 */
#ifndef CL_PYTHON_LOCK_H
#define CL_PYTHON_LOCK_H

#include <Python.h>
#include <stdatomic.h>

#define CL_LOCK_LOOKS 64

/* A thread of ours has come back to Python and not called again. */
extern _Atomic int cl_is_in_python;

static inline PyThreadState *cl_python_leave(void) {
    PyThreadState *state = PyEval_SaveThread();
    atomic_store_explicit(&cl_is_in_python, 0, memory_order_relaxed);
    return state;
}

static inline void cl_python_return(PyThreadState *state) {
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
    atomic_store_explicit(&cl_is_in_python, 1, memory_order_relaxed);
}

#endif
