// sources: tests/simulation/*.c master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain
// timeout: 120
// flags: -DSIM_PLANT_NO_WORD
/* A read that does not compare the word after its last byte: the simulation must find it. */
#include "../simulation/planted.h"
