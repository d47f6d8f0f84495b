/* What test builds (-DST_TEST_STEPS) add to the server.
 *
 * Steps: places at which a test delays a thread or kills the process, between any two stores that another
 * thread or a restart could tell apart.  Planted faults: rules left out, which the tests must notice.
 */
#ifndef ST_STEP_H
#define ST_STEP_H

#include <stdbool.h>

enum st_fault {
    ST_FAULT_NO_WORD_CHECK, /* READ does not compare the word */
    ST_FAULT_FREED_EARLY    /* FREE answers FREED while the extent is in use */
};

#ifdef ST_TEST_STEPS
/* Given by the test. */
void st_step(const char *name);
bool st_is_planted(enum st_fault fault);
#define ST_STEP(name) st_step(name)
#define ST_IS_PLANTED(fault) st_is_planted(fault)
#else
#define ST_STEP(name) ((void)0)
#define ST_IS_PLANTED(fault) false
#endif

#endif
