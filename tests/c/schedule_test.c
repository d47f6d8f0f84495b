/* The slice scheduler, case by case: which rail, how much, failures, ends. */
// sources: transfer_engine/src/schedule.c transfer_engine/src/slice_*.c transfer_engine/src/fault.c
// flags: -DMS_FAULTS
#include "schedule_kit.h"

#include "te_fault.h"

static te_schedule *schedule;
static uint32_t peer;

static void begin(void) {
    schedule = kit_schedule(NULL);
    CHECK(te_schedule_group_open(schedule, &peer) == MS_OK);
}

static uint32_t rail(uint32_t tier, uint64_t bandwidth) {
    uint32_t made;
    CHECK(te_schedule_rail_add(schedule, peer, tier, TE_SCHEDULE_NONE, bandwidth, &made) == MS_OK);
    return made;
}

static te_job job_of(uint64_t bytes) {
    return (te_job){.bytes = bytes,
                    .deadline_ns = 100 * SECOND,
                    .group = peer,
                    .class = TE_CLASS_NORMAL,
                    .tenant = 1,
                    .weight = 1};
}

static te_slice *next(int64_t now_ns) { return te_schedule_next(schedule, now_ns); }

static void done(te_slice *slice, int64_t now_ns) {
    te_schedule_end(schedule, slice, TE_SLICE_DONE, MS_OK, now_ns);
}

/* Rails that have just been used are not idle ones, which would be probed. */
static void use_all(uint32_t count, int64_t now_ns) {
    te_job jobs[16];
    te_slice *slices[16];
    for (uint32_t i = 0; i < count; i++) {
        jobs[i] = job_of(1);
        te_schedule_submit(schedule, &jobs[i], now_ns);
        slices[i] = next(now_ns);
        CHECK(slices[i] != NULL);
    }
    for (uint32_t i = 0; i < count; i++)
        done(slices[i], now_ns + 1000);
    for (uint32_t i = 0; i < count; i++)
        CHECK(te_schedule_ended(schedule) != NULL);
}

static void small_jobs_share_a_slice(void) {
    te_job jobs[100];
    begin();
    rail(TE_TIER_PREFERRED, 0);
    for (int i = 0; i < 100; i++) {
        jobs[i] = job_of(4096);
        te_schedule_submit(schedule, &jobs[i], 0);
    }
    te_slice *first = next(0);
    te_slice *second = next(0);
    /* 200 us of a rail that is believed to move 1 GB/s, and the rest of the last job. */
    CHECK(first->bytes == UINT64_C(49) * 4096 && first->piece_count == 49);
    CHECK(second->piece_count == 49);
    for (uint32_t i = 0; i < first->piece_count; i++) {
        CHECK(first->pieces[i].job == &jobs[i] && first->pieces[i].offset == 0);
        CHECK(first->pieces[i].length == 4096);
    }
    done(first, 1000);
    for (uint32_t i = 0; i < 49; i++) {
        te_job *ended = te_schedule_ended(schedule);
        CHECK(ended == &jobs[i] && ended->status == MS_OK);
    }
    done(second, 2000);
    te_schedule_close(schedule);
}

static void jobs_of_two_tenants_never_share_a_slice(void) {
    begin();
    rail(TE_TIER_PREFERRED, 0);
    te_job one = job_of(100), other = job_of(100);
    other.tenant = 2;
    te_schedule_submit(schedule, &one, 0);
    te_schedule_submit(schedule, &other, 0);
    te_slice *first = next(0), *second = next(0);
    CHECK(first->piece_count == 1 && second->piece_count == 1);
    CHECK(first->pieces[0].job == &one && second->pieces[0].job == &other);
    done(first, 1);
    done(second, 1);
    te_schedule_close(schedule);
}

static void a_large_job_is_spread_over_all_rails(void) {
    begin();
    for (int i = 0; i < 4; i++)
        rail(TE_TIER_PREFERRED, UINT64_C(10000000000));
    use_all(4, 0);
    te_job job = job_of(256 * KIB);
    te_schedule_submit(schedule, &job, 0);
    uint32_t used = 0;
    te_slice *slices[4];
    for (int i = 0; i < 4; i++) {
        slices[i] = next(0);
        CHECK(slices[i] != NULL && slices[i]->bytes == 64 * KIB);
        CHECK(slices[i]->pieces[0].offset == (uint64_t)i * 64 * KIB);
        used |= 1u << slices[i]->rail;
    }
    CHECK(used == 15 && next(0) == NULL && te_schedule_ended(schedule) == NULL);
    for (int i = 0; i < 4; i++)
        done(slices[i], 1000);
    CHECK(te_schedule_ended(schedule) == &job && job.status == MS_OK && job.done == job.bytes);
    te_schedule_close(schedule);
}

static void slices_have_no_crumbs_and_grow_with_bandwidth(void) {
    begin();
    rail(TE_TIER_PREFERRED, UINT64_C(10000000000)); /* 2 MB in 200 us */
    te_job job = job_of(2100000);
    te_schedule_submit(schedule, &job, 0);
    te_slice *slice = next(0);
    CHECK(slice->bytes == 2100000);
    done(slice, 1000);
    te_schedule_close(schedule);
}

static void the_penalty_of_a_tier_is_paid_when_the_queue_is_worth_it(void) {
    begin();
    uint32_t near = rail(TE_TIER_PREFERRED, UINT64_C(1000000000));
    uint32_t far = rail(TE_TIER_SECONDARY, UINT64_C(1000000000));
    use_all(2, 0);
    te_job jobs[8];
    uint32_t rails[3];
    for (int i = 0; i < 3; i++) {
        jobs[i] = job_of(64 * KIB);
        te_schedule_submit(schedule, &jobs[i], 10000);
        rails[i] = next(10000)->rail;
    }
    /* 1 against 2; 2 against 2, where the first listed wins; 3 against 2. */
    CHECK(rails[0] == near && (rails[1] == near || rails[1] == far));
    CHECK((rails[1] == far) + (rails[2] == far) == 1);
    te_schedule_close(schedule);
}

static void a_full_rail_is_waited_for_when_the_other_would_take_longer(void) {
    begin();
    uint32_t fast = rail(TE_TIER_PREFERRED, UINT64_C(10000000000));
    uint32_t slow = rail(TE_TIER_PREFERRED, UINT64_C(10000000));
    use_all(2, 0);
    uint64_t window = te_schedule_rail_look(schedule, fast).window_bytes;
    te_job job = job_of(window + 256 * KIB);
    te_schedule_submit(schedule, &job, 10000);
    te_slice *slice, *last = NULL;
    while ((slice = next(10000)) != NULL) {
        CHECK(slice->rail == fast);
        last = slice;
    }
    /* 64 KiB over the slow one take 6 ms, which is longer than all that waits over the fast one.  With 100 MiB
     * more it is worth while. */
    te_job more = job_of(100 * MIB);
    te_schedule_submit(schedule, &more, 10000);
    slice = next(10000);
    CHECK(slice != NULL && slice->rail == slow);
    CHECK(next(10000) == NULL || last != NULL);
    te_schedule_close(schedule);
}

/* One whose slices neither arrive nor fail: a switch that drops, a peer that is frozen. */
static void a_rail_that_stalls_is_not_waited_for(void) {
    begin();
    uint32_t fast = rail(TE_TIER_PREFERRED, UINT64_C(10000000000));
    uint32_t slow = rail(TE_TIER_PREFERRED, UINT64_C(10000000));
    use_all(2, 0);
    te_job job = job_of(te_schedule_rail_look(schedule, fast).window_bytes + 8 * MIB);
    te_schedule_submit(schedule, &job, 10000);
    te_slice *slice, *last = NULL;
    while ((slice = next(10000)) != NULL)
        last = slice;
    int64_t wake = te_schedule_wake_ns(schedule);
    CHECK(wake > 20 * MS && wake < 30 * MS && next(wake - 1) == NULL);
    for (int i = 0; i < 2; i++) { /* what waits goes over the slow one, slice by slice */
        slice = next(wake);
        CHECK(slice != NULL && slice->rail == slow);
        done(slice, wake + 7 * MS);
    }
    CHECK(next(wake + 7 * MS)->rail == slow);
    done(last, wake + 7 * MS); /* something comes: it is the best again, and waited for */
    CHECK(next(wake + 7 * MS) == NULL && te_schedule_wake_ns(schedule) > wake + 27 * MS);
    te_schedule_close(schedule);
}

static void the_only_rail_is_used_even_if_it_has_stalled(void) {
    begin();
    rail(TE_TIER_PREFERRED, 0);
    te_job job = job_of(1000), other = job_of(1000);
    te_schedule_submit(schedule, &job, 0);
    CHECK(next(0) != NULL);
    te_schedule_submit(schedule, &other, SECOND);
    CHECK(next(SECOND) != NULL);
    te_schedule_close(schedule);
}

static void a_failed_slice_goes_over_another_rail(void) {
    begin();
    rail(TE_TIER_PREFERRED, 0);
    rail(TE_TIER_PREFERRED, 0);
    use_all(2, 0);
    te_job job = job_of(64 * KIB);
    te_schedule_submit(schedule, &job, 10000);
    te_slice *slice = next(10000);
    uint32_t failed = slice->rail;
    te_schedule_end(schedule, slice, TE_SLICE_FAILED, MS_OK, 20000);
    CHECK(te_schedule_ended(schedule) == NULL);
    te_schedule_rail_view left = te_schedule_rail_look(schedule, failed);
    CHECK(!left.is_up && left.retry_ns == 20000 + 50 * MS && left.bytes_in_flight == 0);
    slice = next(20000);
    CHECK(slice != NULL && slice->rail != failed && slice->attempts == 1);
    CHECK(slice->pieces[0].job == &job && slice->bytes == job.bytes);
    done(slice, 30000);
    CHECK(te_schedule_ended(schedule) == &job && job.status == MS_OK);
    te_schedule_close(schedule);
}

static void pauses_grow_and_one_small_slice_probes(void) {
    begin();
    uint32_t only = rail(TE_TIER_PREFERRED, 0);
    te_job job = job_of(10 * MIB);
    te_schedule_submit(schedule, &job, 0);
    int64_t now = 0, pauses[] = {50, 100, 200, 400, 800, 1000, 1000};
    te_slice *first = next(0), *second = next(0);
    CHECK(second != NULL);
    te_schedule_end(schedule, first, TE_SLICE_FAILED, MS_OK, now);
    te_schedule_end(schedule, second, TE_SLICE_FAILED, MS_OK, now); /* the same failure */
    for (size_t i = 0; i < sizeof pauses / sizeof *pauses; i++) {
        CHECK(te_schedule_rail_look(schedule, only).retry_ns == now + pauses[i] * MS);
        CHECK(next(now + pauses[i] * MS - 1) == NULL);
        CHECK(te_schedule_wake_ns(schedule) == now + pauses[i] * MS);
        now += pauses[i] * MS;
        te_slice *probe = next(now);
        CHECK(probe != NULL && next(now) == NULL);
        te_schedule_end(schedule, probe, TE_SLICE_FAILED, MS_OK, now);
    }
    now = te_schedule_rail_look(schedule, only).retry_ns;
    te_slice *probe = next(now);
    done(probe, now + 1000);
    CHECK(te_schedule_rail_look(schedule, only).is_up && next(now + 1000) != NULL);
    te_schedule_close(schedule);
}

static void a_link_that_is_down_gets_nothing_until_it_is_up(void) {
    begin();
    uint32_t only = rail(TE_TIER_PREFERRED, 0);
    te_job job = job_of(100);
    te_schedule_rail_set(schedule, only, false, 0);
    te_schedule_submit(schedule, &job, 0);
    CHECK(next(0) == NULL && next(50 * SECOND) == NULL);
    CHECK(te_schedule_rail_look(schedule, only).retry_ns == INT64_MAX);
    te_schedule_rail_set(schedule, only, true, 51 * SECOND);
    te_slice *slice = next(51 * SECOND);
    CHECK(slice != NULL);
    done(slice, 51 * SECOND + 1);
    CHECK(te_schedule_rail_look(schedule, only).is_up);
    te_schedule_close(schedule);
}

static void deadlines_end_what_waits_and_what_came_back(void) {
    begin();
    rail(TE_TIER_PREFERRED, 0);
    te_job late = job_of(100 * MIB), soon = job_of(100), other = job_of(100), none = job_of(100);
    soon.deadline_ns = SECOND;
    soon.tenant = 2;
    late.deadline_ns = 3 * SECOND;
    none.deadline_ns = 0;
    te_schedule_submit(schedule, &none, 0);
    CHECK(te_schedule_ended(schedule) == &none && none.status == MS_TIMEOUT);
    te_schedule_submit(schedule, &late, 0);
    te_slice *slices[64];
    uint32_t count = 0;
    while ((slices[count] = next(0)) != NULL)
        CHECK(++count < 64);
    te_schedule_submit(schedule, &soon, 0);
    CHECK(te_schedule_wake_ns(schedule) == SECOND);
    te_schedule_expire(schedule, SECOND - 1);
    CHECK(te_schedule_ended(schedule) == NULL);
    te_schedule_expire(schedule, SECOND);
    CHECK(te_schedule_ended(schedule) == &soon && soon.status == MS_TIMEOUT);
    /* Of the large job slices are in flight: it ends with the last of them, however that went. */
    te_schedule_expire(schedule, 3 * SECOND);
    CHECK(te_schedule_ended(schedule) == NULL && late.status == MS_TIMEOUT);
    for (uint32_t i = 0; i < count; i++) {
        CHECK(te_schedule_ended(schedule) == NULL);
        te_schedule_end(schedule, slices[i], i % 2 ? TE_SLICE_FAILED : TE_SLICE_DONE, MS_OK,
                        3 * SECOND);
    }
    CHECK(te_schedule_ended(schedule) == &late && late.status == MS_TIMEOUT);
    te_schedule_submit(schedule, &other, 10 * SECOND);
    te_slice *slice = next(10 * SECOND);
    CHECK(slice != NULL && slice->deadline_ns == other.deadline_ns);
    te_schedule_end(schedule, slice, TE_SLICE_FAILED, MS_OK, 101 * SECOND);
    CHECK(te_schedule_ended(schedule) == &other && other.status == MS_TIMEOUT);
    te_schedule_close(schedule);
}

static void a_cancelled_job_ends_when_its_slices_are_back(void) {
    begin();
    rail(TE_TIER_PREFERRED, 0);
    te_job jobs[3] = {job_of(10 * MIB), job_of(100), job_of(100)};
    for (int i = 0; i < 3; i++)
        te_schedule_submit(schedule, &jobs[i], 0);
    te_slice *first = next(0), *second = next(0);
    te_schedule_cancel(schedule, &jobs[1], MS_CANCELLED);
    CHECK(te_schedule_ended(schedule) == &jobs[1] && jobs[1].status == MS_CANCELLED);
    te_schedule_end(schedule, first, TE_SLICE_FAILED, MS_OK, 0); /* waits to be repeated */
    te_schedule_cancel(schedule, &jobs[0], MS_CANCELLED);
    te_schedule_cancel(schedule, &jobs[0], MS_CLOSED); /* the first word counts */
    CHECK(te_schedule_ended(schedule) == NULL);
    done(second, 1000);
    CHECK(te_schedule_ended(schedule) == &jobs[0] && jobs[0].status == MS_CANCELLED);
    te_slice *last = next(SECOND);
    CHECK(last->pieces[0].job == &jobs[2] && last->piece_count == 1);
    done(last, SECOND);
    CHECK(te_schedule_ended(schedule) == &jobs[2] && next(SECOND) == NULL);
    te_schedule_close(schedule);
}

static void what_the_peer_refuses_ends_and_the_rail_stays(void) {
    begin();
    uint32_t only = rail(TE_TIER_PREFERRED, 0);
    te_job job = job_of(10 * MIB);
    te_schedule_submit(schedule, &job, 0);
    te_slice *first = next(0), *second = next(0);
    te_schedule_end(schedule, first, TE_SLICE_REFUSED, MS_REFUSED, 0);
    CHECK(te_schedule_ended(schedule) == NULL && next(0) == NULL);
    done(second, 1000);
    CHECK(te_schedule_ended(schedule) == &job && job.status == MS_REFUSED);
    CHECK(te_schedule_rail_look(schedule, only).is_up);
    te_schedule_close(schedule);
}

static void a_peer_that_goes_ends_its_jobs_and_its_number_is_used_again(void) {
    begin();
    uint32_t first_rail = rail(TE_TIER_PREFERRED, 0), again;
    te_job large = job_of(10 * MIB), empty = job_of(0), after = job_of(5);
    te_schedule_submit(schedule, &empty, 0);
    CHECK(te_schedule_ended(schedule) == &empty && empty.status == MS_OK);
    te_schedule_submit(schedule, &large, 0);
    te_slice *failed = next(0), *flying = next(0);
    te_schedule_end(schedule, failed, TE_SLICE_FAILED, MS_OK, 0);
    te_schedule_group_close(schedule, peer, MS_UNAVAILABLE);
    CHECK(te_schedule_ended(schedule) == NULL);
    te_schedule_submit(schedule, &after, 0);
    CHECK(te_schedule_ended(schedule) == &after && after.status == MS_CLOSED);
    te_schedule_end(schedule, flying, TE_SLICE_FAILED, MS_OK, 0);
    CHECK(te_schedule_ended(schedule) == &large && large.status == MS_UNAVAILABLE);
    CHECK(te_schedule_group_open(schedule, &again) == MS_OK && again == peer);
    CHECK(rail(TE_TIER_PREFERRED, 0) == first_rail);
    te_schedule_group_close(schedule, peer, MS_UNAVAILABLE);
    te_schedule_close(schedule);
}

static void set_small_bounds(te_schedule_config *config) {
    config->groups_max = 2;
    config->rails_max = 1;
    config->flows_max = TE_CLASS_COUNT;
    config->slices_max = 2;
}

static void bounds_hold(void) {
    te_schedule_config config;
    te_schedule_config_default(&config);
    config.class_weights[1] = 0;
    CHECK(te_schedule_open(&config, &schedule) == MS_BAD_REQUEST);
    schedule = kit_schedule(set_small_bounds);
    uint32_t group, made;
    CHECK(te_schedule_group_open(schedule, &peer) == MS_OK);
    CHECK(te_schedule_group_open(schedule, &group) == MS_OK);
    CHECK(te_schedule_group_open(schedule, &group) == MS_LIMIT);
    rail(TE_TIER_PREFERRED, UINT64_C(100000000000));
    CHECK(te_schedule_rail_add(schedule, peer, 0, TE_SCHEDULE_NONE, 0, &made) == MS_LIMIT);
    CHECK(te_schedule_rail_add(schedule, peer, 9, TE_SCHEDULE_NONE, 0, &made) == MS_BAD_REQUEST);
    /* More tenants than flows: they share, and all of them are served. */
    te_job jobs[8];
    for (uint64_t i = 0; i < 8; i++) {
        jobs[i] = job_of(100);
        jobs[i].tenant = i;
        te_schedule_submit(schedule, &jobs[i], 0);
    }
    uint32_t ended = 0;
    te_slice *one, *two;
    while ((one = next(0)) != NULL) {
        two = next(0);
        CHECK(next(0) == NULL); /* all slices are out */
        done(one, 1);
        if (two != NULL)
            done(two, 1);
        while (te_schedule_ended(schedule) != NULL)
            ended++;
    }
    CHECK(ended == 8);
    te_schedule_close(schedule);
}

static void the_local_nic_s_queue_counts_for_all_peers(void) {
    begin();
    uint32_t other, made;
    CHECK(te_schedule_group_open(schedule, &other) == MS_OK);
    for (uint32_t nic = 0; nic < 2; nic++)
        CHECK(te_schedule_rail_add(schedule, peer, 0, nic, 0, &made) == MS_OK);
    uint32_t of_other[2];
    for (uint32_t nic = 0; nic < 2; nic++)
        CHECK(te_schedule_rail_add(schedule, other, 0, nic, 0, &of_other[nic]) == MS_OK);
    use_all(2, 0);
    te_job job = job_of(64 * KIB), elsewhere[3];
    te_schedule_submit(schedule, &job, 10000);
    te_slice *slice = next(10000);
    uint32_t busy_nic = slice->rail; /* rails 0 and 1 are on NICs 0 and 1 */
    for (int i = 0; i < 3; i++) {
        elsewhere[i] = job_of(1024);
        elsewhere[i].group = other;
        te_schedule_submit(schedule, &elsewhere[i], 10000);
        te_slice *given = next(10000);
        if (i >= 2) /* both were idle, which is probed first */
            CHECK(given->rail == of_other[1 - busy_nic]);
    }
    te_schedule_close(schedule);
}

static void a_rail_that_moves_to_another_nic_takes_its_bytes_along(void) {
    begin();
    uint32_t other, moved, made[2], used = 0;
    CHECK(te_schedule_group_open(schedule, &other) == MS_OK);
    CHECK(te_schedule_rail_add(schedule, peer, 0, 0, 0, &moved) == MS_OK);
    for (uint32_t nic = 0; nic < 2; nic++)
        CHECK(te_schedule_rail_add(schedule, other, 0, nic, 0, &made[nic]) == MS_OK);
    use_all(1, 0);
    te_job job = job_of(64 * KIB), elsewhere[8];
    te_schedule_submit(schedule, &job, 10000);
    te_slice *slice = next(10000);
    CHECK(slice != NULL);
    for (int i = 0; i < 8; i++) {
        if (i == 2)
            CHECK(te_schedule_rail_place(schedule, moved, TE_TIER_SECONDARY, 1) == MS_OK);
        if (i == 4) /* the slice ends where the rail is now */
            done(slice, 20000);
        elsewhere[i] = job_of(1024);
        elsewhere[i].group = other;
        te_schedule_submit(schedule, &elsewhere[i], 20000);
        te_slice *given = next(20000);
        if (i < 2) /* both were idle, which is probed first */
            CHECK(given != NULL);
        else if (i < 4)
            CHECK(given->rail == made[0]);
        else /* as much is in flight on one as on the other */
            used |= 1u << (given->rail == made[1]);
        if (i < 4)
            done(given, 20000 + i);
    }
    CHECK(used == 3 && te_schedule_rail_look(schedule, moved).tier == TE_TIER_SECONDARY);
    CHECK(te_schedule_rail_place(schedule, moved, TE_TIER_COUNT, 1) == MS_BAD_REQUEST);
    te_schedule_close(schedule);
}

static void a_number_that_is_used_again_is_a_new_rail(void) {
    begin();
    uint32_t only = rail(TE_TIER_OTHER, 0);
    te_job job = job_of(64 * KIB);
    te_schedule_submit(schedule, &job, 0);
    te_slice *slice = next(0);
    CHECK(te_schedule_rail_renew(schedule, only, TE_TIER_PREFERRED, 3) == MS_BUSY);
    te_schedule_rail_set(schedule, only, false, 0);
    CHECK(te_schedule_rail_renew(schedule, only, TE_TIER_PREFERRED, 3) == MS_BUSY);
    done(slice, SECOND); /* 64 KiB a second: it was slow */
    te_schedule_rail_view before = te_schedule_rail_look(schedule, only);
    CHECK(before.tier == TE_TIER_OTHER && before.bandwidth_bytes_per_s < 800000000);
    CHECK(te_schedule_rail_renew(schedule, only, TE_TIER_PREFERRED, 3) == MS_OK);
    te_schedule_rail_view after = te_schedule_rail_look(schedule, only);
    CHECK(after.tier == TE_TIER_PREFERRED && !after.is_up);
    CHECK(after.bandwidth_bytes_per_s >= 999999999 && after.bandwidth_bytes_per_s <= 1000000001);
    te_schedule_rail_set(schedule, only, true, SECOND);
    job = job_of(4096);
    te_schedule_submit(schedule, &job, SECOND);
    slice = next(SECOND);
    CHECK(slice != NULL && slice->rail == only);
    done(slice, SECOND + 1000);
    te_schedule_close(schedule);
}

/* Each allocation of opening fails in turn; AddressSanitizer sees whether what came before is given back. */
static void without_memory_nothing_is_opened(void) {
    te_schedule_config config;
    te_schedule_config_default(&config);
    for (long nth = 1;; nth++) {
        te_fault_arm(TE_FAULT_MEMORY, nth);
        ms_status status = te_schedule_open(&config, &schedule);
        bool is_met = te_fault_met(TE_FAULT_MEMORY);
        te_fault_arm(TE_FAULT_MEMORY, 0);
        if (!is_met) {
            CHECK(status == MS_OK && nth == 9);
            break;
        }
        CHECK(status == MS_NO_MEMORY);
    }
    te_schedule_close(schedule);
    te_schedule_close(NULL);
}

int main(void) {
    without_memory_nothing_is_opened();
    small_jobs_share_a_slice();
    jobs_of_two_tenants_never_share_a_slice();
    a_large_job_is_spread_over_all_rails();
    slices_have_no_crumbs_and_grow_with_bandwidth();
    the_penalty_of_a_tier_is_paid_when_the_queue_is_worth_it();
    a_full_rail_is_waited_for_when_the_other_would_take_longer();
    a_rail_that_stalls_is_not_waited_for();
    the_only_rail_is_used_even_if_it_has_stalled();
    a_failed_slice_goes_over_another_rail();
    pauses_grow_and_one_small_slice_probes();
    a_link_that_is_down_gets_nothing_until_it_is_up();
    deadlines_end_what_waits_and_what_came_back();
    a_cancelled_job_ends_when_its_slices_are_back();
    what_the_peer_refuses_ends_and_the_rail_stays();
    a_peer_that_goes_ends_its_jobs_and_its_number_is_used_again();
    bounds_hold();
    the_local_nic_s_queue_counts_for_all_peers();
    a_rail_that_moves_to_another_nic_takes_its_bytes_along();
    a_number_that_is_used_again_is_a_new_rail();
    puts("ok");
    return 0;
}
