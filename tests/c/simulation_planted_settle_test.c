// sources: tests/simulation/*.c master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain
// timeout: 120
// flags: -DMD_PLANT_SETTLE
/* Tombstones that are dropped before what they strike is cleared: the simulation must find it. */
#include "../simulation/planted.h"
