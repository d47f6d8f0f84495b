/* Places at which a test kills the process: between any two stores that a restart could tell apart. */
#ifndef ST_STEP_H
#define ST_STEP_H

#ifdef ST_TEST_STEPS
void st_step(const char *name); /* given by the test */
#define ST_STEP(name) st_step(name)
#else
#define ST_STEP(name) ((void)0)
#endif

#endif
