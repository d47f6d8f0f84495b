// sources: tests/simulation/*.c master/src/metadata/*.c mooncake_store/protocol/src/*.c
// variants: plain address
// timeout: 300
/* Runs the simulation (tests/simulation/sim.h) for many seeds.
 *
 *     build/c-test/plain/simulation_test [SEEDS [FIRST]]     (default 2000 from 1; 60 under a sanitizer)
 *
 * A seed that fails is printed; `simulation_test 1 SEED` runs it again, the same in every step.
 */
#include <stdio.h>
#include <stdlib.h>

#include "../simulation/sim.h"

#ifdef __SANITIZE_ADDRESS__
#define SEEDS 60
#else
#define SEEDS 2000
#endif

int main(int argc, char **argv) {
    uint64_t seeds = argc > 1 ? strtoull(argv[1], NULL, 10) : SEEDS;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    sim *s = malloc(sizeof *s);
    if (s == NULL)
        return 1;
    uint64_t steps = 0, puts = 0, hits = 0, gone = 0, removes = 0, copies = 0, views = 0,
             elections = 0, kills = 0, settled = 0, damaged = 0, drains = 0, task_copies = 0;
    int failures = 0;
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        if (!sim_run(s, seed)) {
            printf("%s\n", s->failure);
            failures++;
        }
        steps += s->steps, puts += s->puts_acked, hits += s->reads_hit, gone += s->reads_gone;
        removes += s->removes_acked, copies += s->copies_done, views += s->views_opened;
        elections += s->elections, kills += s->kills;
        drains += s->drains_begun, task_copies += s->task_copies;
        settled += s->stones_settled, damaged += s->records_damaged;
        sim_close(s);
        if (failures == 10)
            break;
    }
    printf("%lu steps, %lu puts and %lu removes acknowledged, %lu reads of an object and %lu of "
           "one that was gone, "
           "%lu copies, %lu views, %lu elections, %lu kills, %lu damaged records, tombstones "
           "forgotten %lu times, %lu drains, %lu pages copied by tasks\n",
           (unsigned long)steps, (unsigned long)puts, (unsigned long)removes, (unsigned long)hits,
           (unsigned long)gone, (unsigned long)copies, (unsigned long)views,
           (unsigned long)elections, (unsigned long)kills, (unsigned long)damaged,
           (unsigned long)settled, (unsigned long)drains, (unsigned long)task_copies);
    if (seeds >= SEEDS && failures == 0 &&
        (settled == 0 || damaged == 0 || drains == 0 || task_copies == 0)) {
        printf("this world was too kind: what should go wrong did not\n");
        failures++;
    }
    free(s);
    return failures != 0;
}
