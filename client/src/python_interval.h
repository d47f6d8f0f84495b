/* Coming back to the interpreter beside a thread that computes.
 *
 * CPython asks who holds the lock to give way only when somebody has waited for it for the switch interval, 5 ms.  An
 * engine has a loop that computes while other threads load and save: a call that took 0.2 ms came back after 5.2.  So
 * the interval is shorter while batches of engines are under way, and afterwards what it was: who computes gives way
 * once for each such call, and no sooner than after CL_INTERVAL_S.  Whoever sets another one meanwhile keeps it.
 */
#ifndef CL_PYTHON_INTERVAL_H
#define CL_PYTHON_INTERVAL_H

#include "python.h"

/* Threads that compute in turns lose some 10 us each time; a thread that is woken on another core needs up to 100. */
#define CL_INTERVAL_S 0.0002

/* All with the interpreter lock held and no error set; -1 with one.  A call that is not the first one under way only
 * counts.  process: whose calls these are, as of getpid. */
int cl_interval_init(void);
void cl_interval_shorten(int process);
void cl_interval_restore(void);

#endif
