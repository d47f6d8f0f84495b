/* Rules that a test build leaves out, so that it is seen that tests notice (tests/chaos/planted.py).
 *
 * With -DMS_PLANTED_FAULTS one rule, which $MOONCAKE_STORE_PLANTED names, is broken while the process runs.
 * Without, and so in everything that ships, each condition is a constant, and nothing of it is left.
 */
#ifndef MS_PLANTED_H
#define MS_PLANTED_H

#include <stdbool.h>

#ifdef MS_PLANTED_FAULTS
bool ms_is_planted(const char *rule);
#define MS_IS_PLANTED(rule) ms_is_planted(rule)
#else
#define MS_IS_PLANTED(rule) false
#endif

#endif
