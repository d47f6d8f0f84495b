/* The main program of the tests that plant a fault: it passes when some seed shows the fault. */
#include <stdio.h>
#include <stdlib.h>

#include "sim.h"

#define SEEDS_MAX 3000u

int main(void) {
    sim *s = malloc(sizeof *s);
    if (s == NULL)
        return 1;
    for (uint64_t seed = 1; seed <= SEEDS_MAX; seed++) {
        bool held = sim_run(s, seed);
        sim_close(s);
        if (!held) {
            printf("found: %s\n", s->failure);
            free(s);
            return 0;
        }
    }
    printf("the planted fault was not found with %u seeds\n", SEEDS_MAX);
    free(s);
    return 1;
}
