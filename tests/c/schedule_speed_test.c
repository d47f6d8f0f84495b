/* What a slice costs the scheduler: submit, next, end, on one core. */
// sources: transfer_engine/src/schedule.c transfer_engine/src/slice_*.c
// variants: plain
// flags: -O2
#include <time.h>

#include "schedule_kit.h"

#define ROUNDS 200000
#define IN_FLIGHT 16
#define REPEATS 15
#define NS_MAX                                                                                     \
    300 /* of the best run; half of it and less where it was measured: docs/adr/0007-slices.md */

/* Of this thread alone: whoever else has the processor does not count. */
static int64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return now.tv_sec * SECOND + now.tv_nsec;
}

typedef struct load {
    const char *name;
    uint32_t peer_count, rail_count, tenant_count, class_count;
} load;

/* Endless work of all tenants for all peers; each slice ends 16 slices later. */
static double large_jobs(const load *load) {
    uint32_t peer_count = load->peer_count, rail_count = load->rail_count,
             tenant_count = load->tenant_count;
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
                                   .class = (te_class)(j % load->class_count),
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
static double one_job_a_slice(const load *load) {
    uint32_t rail_count = load->rail_count, tenant_count = load->tenant_count;
    te_schedule *schedule = kit_schedule(NULL);
    static te_job jobs[IN_FLIGHT];
    te_slice *flying[IN_FLIGHT];
    uint32_t group, rail;
    CHECK(te_schedule_group_open(schedule, &group) == MS_OK);
    for (uint32_t j = 0; j < rail_count; j++)
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
                            .tenant = at % tenant_count,
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

static double best_of(double (*measure)(const load *load), const load *load) {
    double best = measure(load);
    for (int i = 1; i < REPEATS; i++) {
        double next = measure(load);
        best = next < best ? next : best;
    }
    return best;
}

int main(void) {
    static const load loads[] = {
        {"1 peer, 4 rails, 4 tenants", 1, 4, 4, TE_CLASS_COUNT},
        {"1 peer, 8 rails, 16 tenants", 1, 8, 16, TE_CLASS_COUNT},
        {"1 peer, 4 rails, 64 tenants", 1, 4, 64, TE_CLASS_COUNT},
        {"64 peers, 4 rails each, 64 tenants", 64, 4, 64, TE_CLASS_COUNT},
        {"64 peers, 4 rails each, 64 tenants of one class", 64, 4, 64, 1},
    };
    static const load small = {"a job a slice, 4 rails, 8 tenants", 1, 4, 8, 1};
    bool is_fast = true;
    for (size_t i = 0; i <= sizeof loads / sizeof *loads; i++) {
        bool is_small = i == sizeof loads / sizeof *loads;
        const load *each = is_small ? &small : &loads[i];
        double taken = best_of(is_small ? one_job_a_slice : large_jobs, each);
        printf("%s: %.0f ns a slice\n", each->name, taken);
        is_fast = is_fast && taken <= NS_MAX;
    }
    CHECK(is_fast);
    return 0;
}
