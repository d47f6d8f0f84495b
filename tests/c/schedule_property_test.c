/* What holds for the slice scheduler whatever comes: shares, nobody starves, every byte once, no rail idles. */
// sources: transfer_engine/src/schedule.c transfer_engine/src/slice_*.c
// variants: plain address
#include "schedule_kit.h"

#define JOBS_MAX 400
#define TENANTS_MAX 8

/* ---- every byte once, every job ends once ---------------------------------------------------------------------- */

typedef struct watched {
    te_job job;
    uint64_t bytes, squares; /* sums over pieces that arrived: a partition has the job's own */
    uint32_t ends;
    int64_t submitted_ns, ended_ns;
} watched;

static watched all[JOBS_MAX];

static void note_end(kit_net *net, te_job *job) {
    watched *ended = job->owner;
    CHECK(++ended->ends == 1);
    CHECK(job->held == 0 && job->returned == 0 && job->status != MS_PENDING);
    CHECK((job->status == MS_OK) == (job->done == job->bytes) || job->status != MS_OK);
    ended->ended_ns = net->now_ns;
}

/* A step of kit_step that notes which pieces arrive: before the slice is given back. */
static void note_pieces(kit_net *net, const te_slice *slice) {
    const kit_rail *rail = &net->rails[slice->rail];
    int64_t end = rail->free_ns + rail->latency_ns;
    CHECK(slice->piece_count > 0 && slice->bytes > 0);
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < slice->piece_count; i++) {
        te_slice_piece piece = slice->pieces[i];
        watched *owner = piece.job->owner;
        CHECK(owner->ends == 0 && piece.offset + piece.length <= piece.job->bytes);
        CHECK(slice->deadline_ns <= piece.job->deadline_ns);
        CHECK(net->now_ns < piece.job->deadline_ns);
        bytes += piece.length;
        if (end < rail->broken_from || end >= rail->broken_until) {
            uint64_t behind = piece.offset + piece.length;
            owner->bytes += piece.length;
            owner->squares += behind * behind - piece.offset * piece.offset;
        }
    }
    CHECK(bytes == slice->bytes);
}

static uint64_t random_bytes(uint64_t *state) {
    switch (kit_random(state, 4)) {
    case 0:
        return kit_random(state, 5000);
    case 1:
        return 64 * KIB;
    case 2:
        return kit_random(state, MIB);
    default:
        return kit_random(state, 20 * MIB);
    }
}

static void anything_goes(uint64_t seed) {
    uint64_t state = kit_seed = seed;
    kit_net net = {.schedule = kit_schedule(NULL), .ended = note_end, .given = note_pieces};
    uint32_t groups[3], group_count = 1 + (uint32_t)kit_random(&state, 3);
    uint32_t rails[KIT_RAILS_MAX], rail_count = 0;
    for (uint32_t i = 0; i < group_count; i++) {
        CHECK(te_schedule_group_open(net.schedule, &groups[i]) == MS_OK);
        uint32_t count = 1 + (uint32_t)kit_random(&state, 4);
        for (uint32_t j = 0; j < count; j++) {
            uint32_t rail = rails[rail_count++] =
                kit_rail_add(&net, groups[i], (uint32_t)kit_random(&state, 3),
                             1e7 * (double)(1 + kit_random(&state, 500)),
                             (int64_t)kit_random(&state, 3 * (uint64_t)MS));
            if (kit_random(&state, 3) == 0) {
                net.rails[rail].broken_from = (int64_t)kit_random(&state, (uint64_t)SECOND);
                net.rails[rail].broken_until =
                    net.rails[rail].broken_from + (int64_t)kit_random(&state, 2 * (uint64_t)SECOND);
            }
        }
    }
    uint32_t count = 50 + (uint32_t)kit_random(&state, JOBS_MAX - 50);
    memset(all, 0, sizeof all);
    for (uint32_t i = 0; i < count; i++) {
        watched *added = &all[i];
        added->job = (te_job){.bytes = random_bytes(&state),
                              .group = groups[kit_random(&state, group_count)],
                              .class = (te_class)kit_random(&state, TE_CLASS_COUNT),
                              .tenant = kit_random(&state, TENANTS_MAX),
                              .weight = 1 + (uint32_t)kit_random(&state, 10),
                              .owner = added};
        kit_run(&net, net.now_ns + (int64_t)kit_random(&state, 10 * (uint64_t)MS));
        added->submitted_ns = net.now_ns;
        added->job.deadline_ns = net.now_ns + (int64_t)(kit_random(&state, 4) == 0
                                                            ? kit_random(&state, 50 * (uint64_t)MS)
                                                            : 60 * (uint64_t)SECOND);
        te_schedule_submit(net.schedule, &added->job, net.now_ns);
        kit_collect(&net);
        watched *victim = &all[kit_random(&state, count)];
        if (kit_random(&state, 10) == 0 && victim->submitted_ns > 0 && victim->ends == 0)
            te_schedule_cancel(net.schedule, &victim->job, MS_CANCELLED);
        if (kit_random(&state, 40) == 0)
            te_schedule_rail_set(net.schedule, rails[kit_random(&state, rail_count)],
                                 kit_random(&state, 2) == 0, net.now_ns);
        kit_collect(&net);
    }
    for (uint32_t i = 0; i < rail_count; i++)
        te_schedule_rail_set(net.schedule, rails[i], true, net.now_ns);
    kit_run(&net, net.now_ns + 90 * SECOND);
    CHECK(net.flight_count == 0);
    for (uint32_t i = 0; i < count; i++) {
        const watched *ended = &all[i];
        CHECK(ended->ends == 1);
        if (ended->job.status == MS_OK) {
            CHECK(ended->bytes == ended->job.bytes);
            CHECK(ended->squares == ended->job.bytes * ended->job.bytes);
        } else if (ended->job.status == MS_TIMEOUT) {
            CHECK(ended->ended_ns >= ended->job.deadline_ns);
        } else {
            CHECK(ended->job.status == MS_CANCELLED);
        }
    }
    for (uint32_t i = 0; i < rail_count; i++)
        CHECK(te_schedule_rail_look(net.schedule, rails[i]).bytes_in_flight == 0);
    for (uint32_t i = 0; i < group_count; i++)
        CHECK(te_schedule_waiting_bytes(net.schedule, groups[i]) == 0);
    te_schedule_close(net.schedule);
}

/* ---- shares ------------------------------------------------------------------------------------------------------ */

static uint64_t served[TENANTS_MAX], largest[TENANTS_MAX];

static void note_share(kit_net *net, const te_slice *slice) {
    (void)net;
    uint64_t cost = slice->bytes + (uint64_t)slice->piece_count * 512;
    uint64_t tenant = slice->pieces[0].job->tenant;
    served[tenant] += cost;
    if (cost > largest[tenant])
        largest[tenant] = cost;
}

/* Goyal, Vin, Cheng: two flows that both wait differ by at most one largest slice of each, over their weights. */
static void check_shares(uint32_t count, const double *weights) {
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t j = 0; j < i; j++) {
            double drift = (double)served[i] / weights[i] - (double)served[j] / weights[j];
            double bound = (double)largest[i] / weights[i] + (double)largest[j] / weights[j];
            CHECK((drift < 0 ? -drift : drift) <= bound * 1.01 + 16);
        }
}

/* Tenants (or, with `by_class`, classes) that always have something waiting, in sizes of their own. */
static void shares_follow_weights(uint64_t seed, bool by_class) {
    uint64_t state = kit_seed = seed;
    memset(served, 0, sizeof served);
    memset(largest, 0, sizeof largest);
    kit_net net = {.schedule = kit_schedule(NULL), .given = note_share};
    uint32_t group;
    CHECK(te_schedule_group_open(net.schedule, &group) == MS_OK);
    uint32_t rail_count = 1 + (uint32_t)kit_random(&state, 3);
    for (uint32_t i = 0; i < rail_count; i++)
        kit_rail_add(&net, group, TE_TIER_PREFERRED, 1e9, 100000);
    static const double class_weights[] = {64, 8, 4, 1};
    uint32_t count = by_class ? TE_CLASS_COUNT : 2 + (uint32_t)kit_random(&state, 5);
    double weights[TENANTS_MAX];
    memset(all, 0, sizeof all);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t weight = 1 + (uint32_t)kit_random(&state, 16);
        weights[i] = by_class ? class_weights[i] : (double)weight;
        uint64_t bytes = 1 + kit_random(&state, kit_random(&state, 2) ? 10 * KIB : 10 * MIB);
        for (uint32_t j = 0; j < JOBS_MAX / TENANTS_MAX; j++) {
            watched *added = &all[i * (JOBS_MAX / TENANTS_MAX) + j];
            added->job = (te_job){.bytes = j == 0 ? 10000 * MIB : bytes,
                                  .group = group,
                                  .class = by_class ? (te_class)i : TE_CLASS_NORMAL,
                                  .tenant = i,
                                  .weight = weight,
                                  .deadline_ns = INT64_MAX,
                                  .owner = added};
        }
        /* The small ones first, then one that never ends. */
        for (uint32_t j = JOBS_MAX / TENANTS_MAX; j-- > 0;)
            te_schedule_submit(net.schedule, &all[i * (JOBS_MAX / TENANTS_MAX) + j].job, 0);
    }
    for (int step = 0; step < 2000; step++) {
        CHECK(kit_step(&net, 1000 * SECOND));
        check_shares(count, weights);
    }
    te_schedule_close(net.schedule);
}

/* ---- absence earns nothing ---------------------------------------------------------------------------------------- */

static void give_equal_weights(te_schedule_config *config) {
    for (uint32_t i = 0; i < TE_CLASS_COUNT; i++)
        config->class_weights[i] = 1;
}

/* Tenant 0 has work for peer 0; tenant 1, of the same class or a class of its own, for peer 1, which is away. */
static void a_flow_whose_peer_was_away_has_saved_up_nothing(bool by_class) {
    memset(served, 0, sizeof served);
    memset(largest, 0, sizeof largest);
    kit_net net = {.schedule = kit_schedule(give_equal_weights), .given = note_share};
    uint32_t groups[2], rails[2];
    for (int i = 0; i < 2; i++) {
        CHECK(te_schedule_group_open(net.schedule, &groups[i]) == MS_OK);
        rails[i] = kit_rail_add(&net, groups[i], TE_TIER_PREFERRED, 1e9, 1000);
    }
    te_schedule_rail_set(net.schedule, rails[1], false, 0);
    te_job jobs[3];
    for (uint32_t i = 0; i < 3; i++)
        jobs[i] = (te_job){.bytes = 100000 * MIB,
                           .group = groups[i % 2],
                           .class = by_class && i > 0 ? TE_CLASS_URGENT : TE_CLASS_NORMAL,
                           .tenant = i > 0,
                           .weight = 1,
                           .deadline_ns = INT64_MAX};
    te_schedule_submit(net.schedule, &jobs[0], 0);
    te_schedule_submit(net.schedule, &jobs[1], 0);
    kit_run(&net, SECOND);
    CHECK(served[0] > 900 * MIB && served[1] == 0);
    /* Work that can be done comes to it: from now on half and half, not first what it missed. */
    te_schedule_submit(net.schedule, &jobs[2], net.now_ns);
    uint64_t before = served[0];
    kit_run(&net, net.now_ns + SECOND);
    double one = (double)(served[0] - before), other = (double)served[1];
    CHECK(one / other > 0.95 && one / other < 1.05);
    te_schedule_close(net.schedule);
}

/* ---- rails ---------------------------------------------------------------------------------------------------------- */

/* While anything waits, no rail of equals has room. */
static void no_rail_idles_while_bytes_wait(uint64_t seed) {
    uint64_t state = kit_seed = seed;
    kit_net net = {.schedule = kit_schedule(NULL)};
    uint32_t group, count = 1 + (uint32_t)kit_random(&state, 8);
    CHECK(te_schedule_group_open(net.schedule, &group) == MS_OK);
    for (uint32_t i = 0; i < count; i++)
        kit_rail_add(&net, group, TE_TIER_PREFERRED, 1e9, 20000);
    memset(all, 0, sizeof all);
    for (uint32_t i = 0; i < 200; i++) {
        all[i].job = (te_job){.bytes = 1 + random_bytes(&state),
                              .group = group,
                              .class = (te_class)kit_random(&state, TE_CLASS_COUNT),
                              .tenant = kit_random(&state, 4),
                              .weight = 1,
                              .deadline_ns = INT64_MAX};
        te_schedule_submit(net.schedule, &all[i].job, net.now_ns);
        kit_step(&net, net.now_ns + MS);
        kit_fill(&net);
        uint64_t waiting = 0;
        for (uint32_t j = 0; j <= i; j++)
            waiting += all[j].job.bytes - all[j].job.cut;
        for (uint32_t rail = 0; rail < count && waiting > 0; rail++) {
            te_schedule_rail_view view = te_schedule_rail_look(net.schedule, rail);
            /* Less than the shortest slice is left to the rail that is nearest to its end. */
            CHECK(view.bytes_in_flight >= view.window_bytes || waiting < count * 64 * KIB);
        }
    }
    te_schedule_close(net.schedule);
}

static void unequal_rails_end_together(void) {
    kit_net net = {.schedule = kit_schedule(NULL)};
    uint32_t group;
    CHECK(te_schedule_group_open(net.schedule, &group) == MS_OK);
    static const double speeds[] = {10e9, 5e9, 1e9, 0.5e9};
    double total = 0;
    for (int i = 0; i < 4; i++) {
        kit_rail_add(&net, group, TE_TIER_PREFERRED, speeds[i], 20000);
        total += speeds[i];
    }
    te_job job = {.bytes = 8192 * MIB,
                  .group = group,
                  .class = TE_CLASS_NORMAL,
                  .weight = 1,
                  .deadline_ns = INT64_MAX};
    te_schedule_submit(net.schedule, &job, 0);
    while (job.status == MS_PENDING)
        CHECK(kit_step(&net, 100 * SECOND));
    double ideal_ns = (double)job.bytes * 1e9 / total;
    printf("four unequal rails: %.3f of the ideal time; shares", (double)net.now_ns / ideal_ns);
    for (int i = 0; i < 4; i++) {
        double share = (double)net.rails[i].bytes / (double)job.bytes;
        printf(" %.3f (%.3f)", share, speeds[i] / total);
        CHECK(share > 0.8 * speeds[i] / total && share < 1.2 * speeds[i] / total);
    }
    printf("\n");
    CHECK((double)net.now_ns < 1.05 * ideal_ns);
    te_schedule_close(net.schedule);
}

/* The bytes a rail moves in a second, with endless work. */
static uint64_t moved_in_a_second(kit_net *net, uint32_t rail) {
    uint64_t before = net->rails[rail].bytes;
    kit_run(net, net->now_ns + SECOND);
    return net->rails[rail].bytes - before;
}

static void a_rail_that_failed_or_slowed_is_back_within_two_seconds(bool has_failed) {
    kit_net net = {.schedule = kit_schedule(NULL)};
    uint32_t group;
    CHECK(te_schedule_group_open(net.schedule, &group) == MS_OK);
    kit_rail_add(&net, group, TE_TIER_PREFERRED, 1e9, 20000);
    kit_rail_add(&net, group, TE_TIER_PREFERRED, 1e9, 20000);
    te_job job = {.bytes = UINT64_C(1) << 50,
                  .group = group,
                  .class = TE_CLASS_NORMAL,
                  .weight = 1,
                  .deadline_ns = INT64_MAX};
    te_schedule_submit(net.schedule, &job, 0);
    kit_run(&net, SECOND);
    CHECK(moved_in_a_second(&net, 0) > 950 * MIB * 95 / 100);
    if (has_failed) {
        net.rails[0].broken_from = net.now_ns;
        net.rails[0].broken_until = net.now_ns + 3 * SECOND;
    } else {
        net.rails[0].bytes_per_s = 1e6;
    }
    uint64_t bad = 0;
    for (int i = 0; i < 3; i++)
        bad = moved_in_a_second(&net, 0);
    CHECK(bad < 20 * MIB);
    CHECK(moved_in_a_second(&net, 1) > 950 * MIB * 95 / 100); /* the other one never slows down */
    net.rails[0].bytes_per_s = 1e9;
    kit_run(&net, net.now_ns + 2 * SECOND);
    CHECK(moved_in_a_second(&net, 0) > 950 * MIB * 90 / 100);
    te_schedule_close(net.schedule);
}

/* Nobody would ever take it again by its estimate, and little is to be done: it is probed, once a second. */
static void a_rail_that_only_seems_slow_is_found_out(void) {
    kit_net net = {.schedule = kit_schedule(NULL)};
    uint32_t group, rail;
    CHECK(te_schedule_group_open(net.schedule, &group) == MS_OK);
    kit_rail_add(&net, group, TE_TIER_PREFERRED, 1e9, 20000);
    CHECK(te_schedule_rail_add(net.schedule, group, TE_TIER_PREFERRED, TE_SCHEDULE_NONE, 1000000,
                               &rail) == MS_OK);
    net.rails[rail] = (kit_rail){.bytes_per_s = 1e9, .latency_ns = 20000};
    for (int i = 0; i < 2000; i++) {
        te_job job = {.bytes = 64 * KIB,
                      .group = group,
                      .class = TE_CLASS_NORMAL,
                      .weight = 1,
                      .deadline_ns = INT64_MAX};
        te_schedule_submit(net.schedule, &job, net.now_ns);
        while (job.status == MS_PENDING)
            CHECK(kit_step(&net, net.now_ns + SECOND));
        net.now_ns += 5 * MS;
    }
    CHECK(te_schedule_rail_look(net.schedule, rail).bandwidth_bytes_per_s > 500000000);
    te_schedule_close(net.schedule);
}

/* Measured behind its own queue a round trip is the queue's: the window must not grow with it.  And a long way must not
 * look like a slow one. */
static void a_window_holds_what_the_way_holds(int64_t latency_ns) {
    kit_net net = {.schedule = kit_schedule(NULL)};
    uint32_t group;
    CHECK(te_schedule_group_open(net.schedule, &group) == MS_OK);
    kit_rail_add(&net, group, TE_TIER_PREFERRED, 1e9, latency_ns);
    te_job job = {.bytes = UINT64_C(1) << 50,
                  .group = group,
                  .class = TE_CLASS_NORMAL,
                  .weight = 1,
                  .deadline_ns = INT64_MAX};
    te_schedule_submit(net.schedule, &job, 0);
    kit_run(&net, 2 * SECOND);
    double most = (double)(MS + 3 * latency_ns + MS) * 1e9 / 1e9;
    for (int i = 0; i < 25; i++) {
        CHECK(moved_in_a_second(&net, 0) > 950 * MIB * 80 / 100);
        CHECK((double)te_schedule_rail_look(net.schedule, 0).window_bytes < most);
    }
    CHECK(net.rails[0].bytes > 25 * 950 * MIB * 97 / 100);
    te_schedule_close(net.schedule);
}

/* ---- the urgent ------------------------------------------------------------------------------------------------------ */

static int64_t urgent_ns_max;

static void note_urgent(kit_net *net, te_job *job) {
    if (job->class == TE_CLASS_URGENT && net->now_ns - *(int64_t *)job->owner > urgent_ns_max)
        urgent_ns_max = net->now_ns - *(int64_t *)job->owner;
}

static void the_urgent_pass_a_flood_of_others(void) {
    urgent_ns_max = 0;
    kit_net net = {.schedule = kit_schedule(NULL), .ended = note_urgent};
    uint32_t group;
    CHECK(te_schedule_group_open(net.schedule, &group) == MS_OK);
    kit_rail_add(&net, group, TE_TIER_PREFERRED, 1e9, 50000);
    te_job flood[TENANTS_MAX];
    for (uint32_t i = 0; i < TENANTS_MAX; i++) {
        flood[i] = (te_job){.bytes = UINT64_C(1) << 40,
                            .group = group,
                            .class = i % 2 ? TE_CLASS_NORMAL : TE_CLASS_BACKGROUND,
                            .tenant = i,
                            .weight = 1,
                            .deadline_ns = INT64_MAX};
        te_schedule_submit(net.schedule, &flood[i], 0);
    }
    kit_run(&net, SECOND);
    for (int i = 0; i < 200; i++) {
        int64_t begin = net.now_ns;
        te_job job = {.bytes = 4096,
                      .group = group,
                      .class = TE_CLASS_URGENT,
                      .weight = 1,
                      .deadline_ns = INT64_MAX,
                      .owner = &begin};
        te_schedule_submit(net.schedule, &job, net.now_ns);
        while (job.status == MS_PENDING)
            CHECK(kit_step(&net, net.now_ns + SECOND));
        kit_run(&net, net.now_ns + 777777);
    }
    printf("an urgent 4 KiB job behind a flood on 1 GB/s: at most %.2f ms\n",
           (double)urgent_ns_max / 1e6);
    CHECK(urgent_ns_max < 3 * MS); /* the window of 1 ms, two round trips, a slice */
    te_schedule_close(net.schedule);
}

int main(int count, char **arguments) {
    uint64_t first = count > 1 ? strtoull(arguments[1], NULL, 10) : 1;
    uint64_t rounds = count > 1 ? 1 : 30;
    for (uint64_t seed = first; seed < first + rounds; seed++) {
        anything_goes(seed);
        shares_follow_weights(seed, false);
        shares_follow_weights(seed, true);
        no_rail_idles_while_bytes_wait(seed);
    }
    a_flow_whose_peer_was_away_has_saved_up_nothing(false);
    a_flow_whose_peer_was_away_has_saved_up_nothing(true);
    unequal_rails_end_together();
    a_rail_that_failed_or_slowed_is_back_within_two_seconds(true);
    a_rail_that_failed_or_slowed_is_back_within_two_seconds(false);
    a_rail_that_only_seems_slow_is_found_out();
    a_window_holds_what_the_way_holds(20000);
    a_window_holds_what_the_way_holds(2 * MS);
    a_window_holds_what_the_way_holds(20 * MS);
    the_urgent_pass_a_flood_of_others();
    puts("ok");
    return 0;
}
