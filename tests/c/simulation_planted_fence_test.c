// sources: tests/simulation/*.c master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain
// timeout: 120
// flags: -DMD_PLANT_FENCE
/* Dead writers that are not cut off: the simulation must find it. */
#include "../simulation/planted.h"
