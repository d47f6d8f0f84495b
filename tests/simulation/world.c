/* Time, chance, the network, the faults, and a run from beginning to end. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define CHAOS_MS 60000
#define HEALING_MS 60000
#define STEPS_MAX 2000000u

void sim_fail(sim *s, const char *format, ...) {
    if (s->failure[0] != 0)
        return;
    int length = snprintf(s->failure, sizeof s->failure,
                          "seed %lu, %ld ms: ", (unsigned long)s->seed, (long)s->now_ms);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(s->failure + length, sizeof s->failure - (size_t)length, format, arguments);
    va_end(arguments);
}

void sim_trace(const sim *s, const char *format, ...) {
    if (!s->is_traced)
        return;
    fprintf(stderr, "%8ld ", (long)s->now_ms);
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
}

/* SplitMix64. */
uint64_t sim_random(sim *s, uint64_t below) {
    uint64_t x = s->random += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    x ^= x >> 31;
    return below == 0 ? 0 : x % below;
}

bool sim_chance(sim *s, uint32_t permille) { return sim_random(s, 1000) < permille; }

md_now sim_now(const sim *s) {
    return (md_now){.now_ms = s->now_ms, .wall_ms = 1700000000000 + s->now_ms};
}

/* ---- events: a heap ------------------------------------------------------------------------------------ */
static bool is_before(const sim_event *a, const sim_event *b) {
    return a->at_ms != b->at_ms ? a->at_ms < b->at_ms : a->order < b->order;
}

sim_event *sim_at(sim *s, int64_t delay_ms, void (*run)(sim *s, sim_event *event)) {
    if (s->event_count == s->event_capacity) {
        s->event_capacity = s->event_capacity == 0 ? 256 : s->event_capacity * 2;
        s->events = realloc(s->events, s->event_capacity * sizeof *s->events);
        if (s->events == NULL)
            abort();
    }
    /* Its place is by time only; what the caller fills in does not move it. */
    sim_event event = {.at_ms = s->now_ms + delay_ms, .order = s->event_order++, .run = run};
    uint32_t at = s->event_count++;
    while (at > 0 && is_before(&event, &s->events[(at - 1) / 2])) {
        s->events[at] = s->events[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    s->events[at] = event;
    return &s->events[at];
}

static sim_event next_event(sim *s) {
    sim_event first = s->events[0], last = s->events[--s->event_count];
    uint32_t at = 0;
    for (;;) {
        uint32_t child = at * 2 + 1;
        if (child >= s->event_count)
            break;
        if (child + 1 < s->event_count && is_before(&s->events[child + 1], &s->events[child]))
            child++;
        if (!is_before(&s->events[child], &last))
            break;
        s->events[at] = s->events[child];
        at = child;
    }
    if (s->event_count > 0)
        s->events[at] = last;
    return first;
}

/* ---- network ------------------------------------------------------------------------------------------- */
int64_t sim_delay(sim *s) {
    int64_t delay = (int64_t)sim_random(s, 10);
    if (!s->is_healing && sim_chance(s, s->weather.slow_permille))
        delay += (int64_t)sim_random(s, 4000);
    return delay;
}

void sim_send(sim *s, const sim_event *message) {
    uint32_t copies = 1;
    if (!s->is_healing) {
        if (sim_chance(s, s->weather.lost_permille))
            copies = 0;
        else if (sim_chance(s, s->weather.doubled_permille))
            copies = 2;
    }
    for (uint32_t i = 0; i < copies; i++) {
        sim_event *sent = sim_at(s, sim_delay(s), message->run);
        int64_t at_ms = sent->at_ms;
        uint64_t order = sent->order;
        *sent = *message;
        sent->at_ms = at_ms;
        sent->order = order;
    }
}

/* ---- faults -------------------------------------------------------------------------------------------- */
static int64_t around(sim *s, uint32_t mean_ms) {
    return 1 + (int64_t)sim_random(s, 2 * (uint64_t)mean_ms);
}

static void server_comes_back(sim *s, sim_event *event) {
    if (!s->servers[event->a].is_up)
        sim_store_start(s, (uint32_t)event->a, event->b != 0);
}

static void server_fault(sim *s, sim_event *event) {
    (void)event;
    if (s->is_healing)
        return;
    uint32_t server = (uint32_t)sim_random(s, s->weather.server_count);
    if (s->servers[server].is_up) {
        if (sim_chance(s, 300)) {
            sim_store_disconnect(s, server);
        } else {
            bool is_reboot = s->weather.reboots && sim_chance(s, 250);
            sim_store_kill(s, server);
            /* Some stay away for longer than the grace. */
            sim_event *back =
                sim_at(s, 50 + (int64_t)sim_random(s, sim_chance(s, 300) ? 15000 : 2000),
                       server_comes_back);
            back->a = server;
            back->b = is_reboot;
        }
    }
    sim_at(s, around(s, s->weather.server_fault_ms), server_fault);
}

static void elect(sim *s, sim_event *event) {
    (void)event;
    if (s->leader.core == NULL)
        sim_leader_elect(s);
}

static void election(sim *s, sim_event *event) {
    (void)event;
    if (s->is_healing)
        return;
    s->elections++;
    sim_leader_depose(s);
    sim_at(s, (int64_t)sim_random(s, 1500), elect);
    sim_at(s, around(s, s->weather.election_ms), election);
}

/* Somebody drains servers, takes that back, and has objects moved and copied. */
static void operate(sim *s, sim_event *event) {
    (void)event;
    if (s->is_healing)
        return;
    sim_at(s, around(s, s->weather.operator_ms), operate);
    md_core *core = s->leader.core;
    if (core == NULL)
        return;
    uint32_t server = (uint32_t)sim_random(s, s->weather.server_count);
    uint64_t task = 0;
    ms_task_order order = {.kind = sim_chance(s, 500) ? MS_TASK_REPLICATE : MS_TASK_MOVE,
                           .source_server = server + 1,
                           .target_server = (uint32_t)sim_random(s, s->weather.server_count + 1),
                           .replica_count = 1 + (uint32_t)sim_random(s, 3),
                           .prefix_length = 4};
    switch (sim_random(s, 4)) {
    case 0:
        if (md_server_drain(core, sim_now(s), server, &s->drains[server]) == MS_OK)
            s->drains_begun++;
        break;
    case 1:
        s->drains[server] = 0;
        md_server_undrain(core, sim_now(s), server);
        break;
    default:
        if (md_task_start(core, sim_now(s), 0, &order, (const uint8_t *)"key-", &task) == MS_OK &&
            sim_chance(s, 200))
            md_task_cancel(core, sim_now(s), task);
    }
    sim_leader_drain(s);
}

static void more_ready(sim *s, sim_event *event) {
    uint32_t server = (uint32_t)event->a;
    sim_server *at = &s->servers[server];
    if (at->is_up && at->ready < s->weather.pages) {
        at->ready += 8;
        if (at->ready > s->weather.pages)
            at->ready = s->weather.pages;
        if (s->leader.core != NULL && s->leader.connections[server] == at->connection &&
            at->connection != 0) {
            md_segment_ready(s->leader.core, sim_now(s), server, at->incarnation, 0, at->ready);
            sim_leader_drain(s);
        }
    }
    sim_at(s, 500, more_ready)->a = server;
}

/* ---- a run ---------------------------------------------------------------------------------------------- */
static void draw_weather(sim *s) {
    sim_weather *w = &s->weather;
    w->server_count = 1 + (uint32_t)sim_random(s, SIM_SERVERS);
    w->pages = 12 + (uint32_t)sim_random(s, SIM_PAGES - 12 + 1);
    w->value_pages_max = 1 + (uint32_t)sim_random(s, 5);
    w->policy = (uint32_t)sim_random(s, 4);
    /* Each trouble is absent in some worlds: what hides behind it can be seen there. */
    w->lost_permille = sim_chance(s, 500) ? (uint32_t)sim_random(s, 120) : 0;
    w->doubled_permille = sim_chance(s, 500) ? (uint32_t)sim_random(s, 150) : 0;
    w->slow_permille = sim_chance(s, 700) ? (uint32_t)sim_random(s, 100) : 0;
    w->freeze_permille = sim_chance(s, 600) ? (uint32_t)sim_random(s, 30) : 0;
    w->die_permille = sim_chance(s, 600) ? (uint32_t)sim_random(s, 15) : 0;
    w->server_fault_ms = sim_chance(s, 600) ? 3000 + (uint32_t)sim_random(s, 15000) : 0;
    w->election_ms = sim_chance(s, 500) ? 4000 + (uint32_t)sim_random(s, 20000) : 0;
    w->reboots = sim_chance(s, 500);
    w->damages = sim_chance(s, 300);
    w->view_permille = sim_chance(s, 600) ? (uint32_t)sim_random(s, 300) : 0;
    w->rdma_permille = (uint32_t)sim_random(s, 1001);
    w->upsert_permille = (uint32_t)sim_random(s, 800);
    w->change_permille = sim_chance(s, 500) ? (uint32_t)sim_random(s, 150) : 0;
    w->operator_ms = sim_chance(s, 600) ? 1000 + (uint32_t)sim_random(s, 6000) : 0;
    w->repair_delay_ms = sim_chance(s, 700) ? (uint32_t)sim_random(s, 6000) : UINT32_MAX;
    w->copy_bytes_per_s = sim_chance(s, 500) ? 8192 + (uint32_t)sim_random(s, 1u << 20) : 0;
}

static bool run_until(sim *s, int64_t end_ms) {
    while (s->event_count > 0 && s->events[0].at_ms <= end_ms && s->failure[0] == 0) {
        sim_event event = next_event(s);
        s->now_ms = event.at_ms;
        event.run(s, &event);
        free(event.data);
        if (++s->steps > STEPS_MAX)
            sim_fail(s, "more than %u steps", STEPS_MAX);
    }
    s->now_ms = end_ms;
    return s->failure[0] == 0;
}

static void heal(sim *s) {
    s->is_healing = true;
    for (uint32_t i = 0; i < s->weather.server_count; i++) {
        s->drains[i] = 0;
        if (s->leader.core != NULL)
            md_server_undrain(s->leader.core, sim_now(s), i);
    }
    for (uint32_t i = 0; i < s->weather.server_count; i++)
        if (!s->servers[i].is_up)
            sim_store_start(s, i, false);
    if (s->leader.core == NULL)
        sim_leader_elect(s);
}

bool sim_run(sim *s, uint64_t seed) {
    memset(s, 0, sizeof *s);
    s->seed = s->random = seed;
    s->now_ms = 1000;
    s->is_traced = getenv("SIM_TRACE") != NULL;
    draw_weather(s);
    for (size_t i = 0; i < MS_SECRET_BYTES; i++)
        s->secret[i] = (uint8_t)sim_random(s, 256);
    for (uint32_t i = 0; i < SIM_KEYS; i++) {
        snprintf(s->keys[i], sizeof s->keys[i], "key-%u", i);
        s->hashes[i] = ms_hash_key(s->secret, "default", 7, s->keys[i], strlen(s->keys[i]));
    }
    for (uint32_t i = 0; i < s->weather.server_count; i++) {
        sim_store_start(s, i, true);
        sim_at(s, 500, more_ready)->a = i;
    }
    sim_leader_elect(s);
    for (uint32_t i = 0; i < SIM_CLIENTS; i++)
        sim_client_start(s, i);
    if (s->weather.server_fault_ms != 0)
        sim_at(s, around(s, s->weather.server_fault_ms), server_fault);
    if (s->weather.election_ms != 0)
        sim_at(s, around(s, s->weather.election_ms), election);
    if (s->weather.operator_ms != 0)
        sim_at(s, around(s, s->weather.operator_ms), operate);
    if (!run_until(s, s->now_ms + CHAOS_MS))
        return false;

    /* Views stay open at first: no wait may depend on them.  Then they close, and everything is freed. */
    heal(s);
    if (!run_until(s, s->now_ms + HEALING_MS / 2))
        return false;
    sim_oracle_acked_are_there(s);
    for (uint32_t i = 0; i < SIM_CLIENTS; i++)
        if (s->clients[i].is_alive && s->clients[i].phase != SIM_IDLE)
            sim_fail(s, "client %u still waits in phase %d, 30 s after the last fault", i,
                     (int)s->clients[i].phase);
    sim_views_close(s);
    sim_oracle_all_is_free(s);
    return s->failure[0] == 0;
}

void sim_run_for(sim *s, int64_t ms) { run_until(s, s->now_ms + ms); }

void sim_close(sim *s) {
    md_close(s->leader.core);
    for (uint32_t i = 0; i < s->event_count; i++)
        free(s->events[i].data);
    free(s->events);
    free(s->values);
    free(s->tombstones);
}
