/* What a slice costs the scheduler: submit, next, end, on one core.  Prints; fails only when it is far off. */
// sources: transfer_engine/src/schedule.c transfer_engine/src/slice_*.c
// variants: plain
// flags: -O2
#include <time.h>

#include "schedule_kit.h"

#define ROUNDS 200000
#define IN_FLIGHT 16
#define NS_MAX 5000 /* ten times and more what it takes on a busy machine */

static int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

/* Endless work of `tenant_count` tenants for `peer_count` peers; each slice ends 16 slices later. */
static double large_jobs(uint32_t peer_count, uint32_t rail_count, uint32_t tenant_count) {
    te_schedule *schedule = kit_schedule(NULL);
    static te_job jobs[64 * 64];
    uint32_t count = 0, rail;
    for (uint32_t i = 0; i < peer_count; i++) {
        uint32_t group;
        CHECK(te_schedule_group_open(schedule, &group) == MS_OK);
        for (uint32_t j = 0; j < rail_count; j++)
            CHECK(te_schedule_rail_add(schedule, group, TE_TIER_PREFERRED, j, 0, &rail) == MS_OK);
        for (uint32_t j = 0; j < tenant_count; j++) {
            jobs[count] = (te_job){.bytes = UINT64_C(1) << 50,
                                   .group = group,
                                   .class = (te_class)(j % TE_CLASS_COUNT),
                                   .tenant = j,
                                   .weight = 1 + j % 4,
                                   .deadline_ns = INT64_MAX};
            te_schedule_submit(schedule, &jobs[count++], 0);
        }
    }
    te_slice *flying[IN_FLIGHT];
    uint32_t flight_count = 0, oldest = 0;
    int64_t now = 1, begin = clock_ns();
    for (int given = 0; given < ROUNDS;) {
        te_slice *slice = te_schedule_next(schedule, now);
        given += slice != NULL;
        if (slice == NULL || flight_count == IN_FLIGHT) {
            CHECK(flight_count > 0);
            te_schedule_end(schedule, flying[oldest], TE_SLICE_DONE, MS_OK, now);
            oldest = (oldest + 1) % IN_FLIGHT;
            flight_count--;
        }
        if (slice != NULL)
            flying[(oldest + flight_count++) % IN_FLIGHT] = slice;
        now += 20000;
    }
    double taken = (double)(clock_ns() - begin) / ROUNDS;
    te_schedule_close(schedule);
    return taken;
}

/* One 64 KiB job a slice, submitted and ended too. */
static double one_job_a_slice(void) {
    te_schedule *schedule = kit_schedule(NULL);
    static te_job jobs[IN_FLIGHT];
    te_slice *flying[IN_FLIGHT];
    uint32_t group, rail;
    CHECK(te_schedule_group_open(schedule, &group) == MS_OK);
    for (uint32_t j = 0; j < 4; j++)
        CHECK(te_schedule_rail_add(schedule, group, TE_TIER_PREFERRED, j, 0, &rail) == MS_OK);
    int64_t now = 1, begin = clock_ns();
    for (int i = 0; i < ROUNDS; i++) {
        uint32_t at = (uint32_t)i % IN_FLIGHT;
        if (i >= IN_FLIGHT) {
            te_schedule_end(schedule, flying[at], TE_SLICE_DONE, MS_OK, now);
            CHECK(te_schedule_ended(schedule) == &jobs[at]);
        }
        jobs[at] = (te_job){.bytes = 64 * KIB,
                            .group = group,
                            .class = TE_CLASS_NORMAL,
                            .tenant = at % 8,
                            .weight = 1,
                            .deadline_ns = INT64_MAX};
        te_schedule_submit(schedule, &jobs[at], now);
        flying[at] = te_schedule_next(schedule, now);
        CHECK(flying[at] != NULL);
        now += 20000;
    }
    double taken = (double)(clock_ns() - begin) / ROUNDS;
    te_schedule_close(schedule);
    return taken;
}

int main(void) {
    double taken[] = {large_jobs(1, 4, 4), large_jobs(1, 8, 16), large_jobs(64, 4, 64),
                      one_job_a_slice()};
    printf(
        "ns a slice: 4 rails, 4 tenants %.0f; 8 rails, 16 tenants %.0f; 64 peers, 64 tenants %.0f; "
        "a job each, 4 rails %.0f\n",
        taken[0], taken[1], taken[2], taken[3]);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        CHECK(taken[i] < NS_MAX);
    return 0;
}
