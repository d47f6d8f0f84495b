#include "ms_planted.h"

#ifdef MS_PLANTED_FAULTS
#include <stdlib.h>
#include <string.h>

bool ms_is_planted(const char *rule) {
    const char *planted = getenv("MOONCAKE_STORE_PLANTED");
    return planted != NULL && strcmp(planted, rule) == 0;
}
#endif
