/* A network in virtual time for the slice scheduler: rails that move slices one after the other. */
#ifndef SCHEDULE_KIT_H
#define SCHEDULE_KIT_H

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "te_rails.h"
#include "te_schedule.h"

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s (seed %" PRIu64 ")\n", __FILE__, __LINE__, #condition,      \
                    kit_seed);                                                                     \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define KIT_RAILS_MAX 16
#define KIT_FLIGHTS_MAX 512
#define MS INT64_C(1000000)
#define SECOND INT64_C(1000000000)
#define KIB UINT64_C(1024)
#define MIB (UINT64_C(1024) * KIB)

static uint64_t kit_seed = 1;

/* splitmix64: one seed, one run. */
static inline uint64_t kit_random(uint64_t *state, uint64_t below) {
    uint64_t z = (*state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (z ^ z >> 31) % below;
}

typedef struct kit_rail {
    double bytes_per_s;
    int64_t latency_ns;
    int64_t free_ns;                   /* when it is through with what it has been given */
    int64_t broken_from, broken_until; /* what ends in between has failed */
    uint64_t bytes;                    /* moved */
} kit_rail;

typedef struct kit_flight {
    te_slice *slice;
    int64_t end_ns;
} kit_flight;

typedef struct kit_net {
    te_schedule *schedule;
    int64_t now_ns;
    kit_rail rails[KIT_RAILS_MAX];
    kit_flight flights[KIT_FLIGHTS_MAX];
    uint32_t flight_count;
    void (*ended)(struct kit_net *net, te_job *job);
    void (*given)(struct kit_net *net, const te_slice *slice);
    void *owner;
} kit_net;

static inline te_schedule *kit_schedule(void (*change)(te_schedule_config *)) {
    te_schedule_config config;
    te_schedule *schedule;
    te_schedule_config_default(&config);
    if (change != NULL)
        change(&config);
    CHECK(te_schedule_open(&config, &schedule) == MS_OK);
    return schedule;
}

static inline uint32_t kit_rail_add(kit_net *net, uint32_t group, uint32_t tier, double bytes_per_s,
                                    int64_t latency_ns) {
    uint32_t rail;
    CHECK(te_schedule_rail_add(net->schedule, group, tier, TE_SCHEDULE_NONE, 0, &rail) == MS_OK);
    CHECK(rail < KIT_RAILS_MAX);
    net->rails[rail] = (kit_rail){.bytes_per_s = bytes_per_s, .latency_ns = latency_ns};
    return rail;
}

/* Gives out all that the schedule has now. */
static inline void kit_fill(kit_net *net) {
    te_slice *slice;
    while ((slice = te_schedule_next(net->schedule, net->now_ns)) != NULL) {
        kit_rail *rail = &net->rails[slice->rail];
        int64_t begin = rail->free_ns > net->now_ns ? rail->free_ns : net->now_ns;
        rail->free_ns = begin + (int64_t)((double)slice->bytes * 1e9 / rail->bytes_per_s);
        CHECK(net->flight_count < KIT_FLIGHTS_MAX);
        net->flights[net->flight_count++] =
            (kit_flight){.slice = slice, .end_ns = rail->free_ns + rail->latency_ns};
        if (net->given != NULL)
            net->given(net, slice);
    }
}

static inline void kit_collect(kit_net *net) {
    te_job *job;
    while ((job = te_schedule_ended(net->schedule)) != NULL)
        if (net->ended != NULL)
            net->ended(net, job);
}

/* To the next event, or `until_ns`; false: nothing is left to happen before that. */
static inline bool kit_step(kit_net *net, int64_t until_ns) {
    kit_fill(net);
    uint32_t first = 0;
    for (uint32_t i = 1; i < net->flight_count; i++)
        if (net->flights[i].end_ns < net->flights[first].end_ns)
            first = i;
    int64_t wake = te_schedule_wake_ns(net->schedule);
    wake = wake <= net->now_ns ? net->now_ns + 1000 : wake;
    bool is_end = net->flight_count > 0 && net->flights[first].end_ns <= wake;
    int64_t next = is_end ? net->flights[first].end_ns : wake;
    if (next > until_ns) {
        net->now_ns = until_ns;
        return false;
    }
    net->now_ns = next > net->now_ns ? next : net->now_ns;
    if (is_end) {
        te_slice *slice = net->flights[first].slice;
        net->flights[first] = net->flights[--net->flight_count];
        kit_rail *rail = &net->rails[slice->rail];
        bool is_broken = net->now_ns >= rail->broken_from && net->now_ns < rail->broken_until;
        if (!is_broken)
            rail->bytes += slice->bytes;
        te_schedule_end(net->schedule, slice, is_broken ? TE_SLICE_FAILED : TE_SLICE_DONE, MS_OK,
                        net->now_ns);
    }
    te_schedule_expire(net->schedule, net->now_ns);
    kit_collect(net);
    return true;
}

static inline void kit_run(kit_net *net, int64_t until_ns) {
    while (kit_step(net, until_ns)) {
    }
}

#endif
