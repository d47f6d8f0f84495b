// sources: tests/simulation/*.c master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain
// timeout: 120
// flags: -DMD_PLANT_CLEARED
/* Pages handed out at CLEARED instead of FREED: the simulation must find it. */
#include "../simulation/planted.h"
