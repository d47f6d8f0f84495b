// sources: tests/simulation/*.c master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain
// timeout: 120
// flags: -DMD_PLANT_END
/* A put_end that names another grant than the open one: the simulation must find it. */
#include "../simulation/planted.h"
