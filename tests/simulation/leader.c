/* The leader: the real core, and what a master's service does around it. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

#define TICK_MS 100

static uint32_t key_of(const sim *s, ms_hash hash) {
    for (uint32_t key = 0; key < SIM_KEYS; key++)
        if (ms_hash_equal(s->hashes[key], hash))
            return key;
    return SIM_KEYS;
}

static void tick(sim *s, sim_event *event) {
    if (s->leader.core == NULL || s->leader.epoch != event->a)
        return;
    md_tick(s->leader.core, sim_now(s));
    sim_leader_drain(s);
    if (s->tombstone_count != 0 && sim_chance(s, 500) && md_tombstones_settle(s->leader.core)) {
        sim_trace(s, "%u tombstones have done their work", s->tombstone_count);
        s->tombstone_count = 0;
        s->stones_settled++;
    }
    int line = sim_chance(s, 100) ? md_check(s->leader.core) : 0;
    if (line != 0)
        sim_fail(s, "an invariant of the core is broken: check.c:%d", line);
    sim_at(s, TICK_MS, tick)->a = event->a;
}

static void node_id(uint32_t server, uint8_t id[16]) {
    memset(id, 0, 16);
    id[0] = (uint8_t)(server + 1);
}

void sim_leader_elect(sim *s) {
    md_config config;
    md_config_default(&config);
    config.epoch = ++s->epoch;
    memcpy(config.secret, s->secret, sizeof config.secret);
    config.policy = (md_policy)s->weather.policy;
    config.session_timeout_ms = 3000;
    config.location_lifetime_ms = 3000;
    config.member_grace_ms = 4000;
    config.soft_pin_ms = 5000;
    config.events_max = 1024;
    config.repair_delay_ms = s->weather.repair_delay_ms;
    config.copy_bytes_per_s = s->weather.copy_bytes_per_s;
    config.ramp_ms = 5000;
    s->leader = (sim_leader){.epoch = s->epoch, .began_ms = s->now_ms, .event_next = 1};
    if (md_open(&config, &s->leader.core) != MS_OK) {
        sim_fail(s, "md_open");
        return;
    }
    sim_oracle_new_leader(s);
    for (uint32_t i = 0; i < s->tombstone_count; i++)
        md_tombstone_add(s->leader.core, s->hashes[s->tombstones[i].key], s->tombstones[i].version);
    for (uint32_t i = 0; i < s->weather.server_count; i++) {
        uint8_t id[16];
        uint32_t number;
        node_id(i, id);
        if (md_server_expect(s->leader.core, sim_now(s), id, &number) != MS_OK || number != i)
            sim_fail(s, "md_server_expect");
        if (s->drains[i] != 0 &&
            md_server_drain(s->leader.core, sim_now(s), i, &s->drains[i]) != MS_OK)
            sim_fail(s, "md_server_drain");
        if (s->servers[i].is_up)
            sim_store_dial(s, i);
    }
    sim_at(s, TICK_MS, tick)->a = s->epoch;
}

static uint64_t counter(const md_core *core, const char *name) {
    for (size_t i = 0; i < md_counter_count(); i++)
        if (strcmp(md_counter_name(i), name) == 0)
            return md_counter(core, i);
    return 0;
}

void sim_leader_depose(sim *s) {
    if (s->leader.core != NULL)
        s->task_copies += counter(s->leader.core, "task_bytes") / MS_PAGE_SIZE;
    md_close(s->leader.core);
    s->leader = (sim_leader){0};
    for (uint32_t i = 0; i < s->weather.server_count; i++)
        s->servers[i].connection = 0;
}

/* All have answered, or one has and a second is over. */
bool sim_leader_serves(const sim *s) {
    if (s->leader.core == NULL)
        return false;
    uint32_t adopted = 0;
    for (uint32_t i = 0; i < s->weather.server_count; i++) {
        md_server_view view;
        md_server_get(s->leader.core, i, &view);
        adopted += view.state == MS_MEMBER_READY || view.state == MS_MEMBER_DRAINING;
    }
    return adopted == s->weather.server_count ||
           (adopted > 0 && s->now_ms - s->leader.began_ms > 1000) || s->leader.serves;
}

void sim_leader_join(sim *s, uint32_t server) {
    sim_server *at = &s->servers[server];
    ms_server_info info = {
        .incarnation = at->incarnation, .state = MS_MEMBER_READY, .segment_count = 1};
    node_id(server, info.node_id);
    ms_segment_info segment = {.page_count = s->weather.pages, .page_count_ready = at->ready};
    uint32_t number;
    ms_status status = md_server_join(s->leader.core, sim_now(s), &info, "", &segment, &number);
    if (status != MS_OK || number != server) {
        sim_fail(s, "server %u may not join: %d", server, (int)status);
        return;
    }
    at->connection = s->leader.connections[server] = ++s->connections;
    sim_leader_drain(s);
    sim_event *adopt = sim_at(s, sim_delay(s), sim_store_adopt);
    adopt->a = server;
    adopt->b = s->leader.epoch;
    adopt->d = at->connection;
}

void sim_leader_gone(sim *s, uint32_t server) {
    s->leader.connections[server] = 0;
    if (s->leader.core == NULL)
        return;
    md_server_gone(s->leader.core, sim_now(s), server, s->servers[server].incarnation);
    sim_leader_drain(s);
}

/* ---- effects ------------------------------------------------------------------------------------------------ */
static void stone_is_written(sim *s, sim_event *event) {
    uint32_t key = (uint32_t)event->a;
    /* A transaction of a leader that leads no more fails; and nobody is there to hear of it. */
    if (event->b != s->epoch)
        return;
    s->tombstones = realloc(s->tombstones, (s->tombstone_count + 1) * sizeof *s->tombstones);
    if (s->tombstones == NULL)
        abort();
    s->tombstones[s->tombstone_count++] = (sim_tombstone){.key = key, .version = event->c};
    if (s->leader.core == NULL || s->leader.epoch != event->b)
        return;
    md_tombstoned(s->leader.core, sim_now(s), s->hashes[key], event->c, MS_OK);
    sim_leader_drain(s);
}

static void answer_arrives(sim *s, sim_event *event) {
    sim_client_answer(s, event->a, (ms_status)event->b, event->c);
}

static void copy_is_lost(sim *s, sim_event *event) {
    if (s->leader.core == NULL || s->leader.epoch != event->a)
        return;
    md_copied(s->leader.core, sim_now(s), event->b, MS_UNAVAILABLE);
    sim_leader_drain(s);
}

static void send_copy(sim *s, const md_effect *effect) {
    ms_writer body = ms_writer_growable(1u << 20);
    ms_status status = md_write_copy(s->leader.core, effect->task, &body);
    ms_copy_view view;
    if (status == MS_OK && !ms_read_copy(body.data, body.length, &view))
        sim_fail(s, "a COPY is malformed");
    if (status != MS_OK || s->failure[0] != 0 || sim_chance(s, s->weather.lost_permille)) {
        sim_event *lost = sim_at(s, 10, copy_is_lost);
        lost->a = s->leader.epoch;
        lost->b = effect->task;
        ms_writer_close(&body);
        return;
    }
    /* A copy has the value of its source. */
    uint32_t value = sim_value_of(s, view.source.head.version);
    if (value == 0) {
        sim_fail(s, "a copy of an unknown version");
    } else if (sim_value_of(s, view.seal.head.number) == 0) {
        sim_value *of = &s->values[value - 1];
        if (of->version_count == sizeof of->versions / sizeof of->versions[0])
            memmove(of->versions + 1, of->versions + 2,
                    (of->version_count-- - 2) * sizeof of->versions[0]);
        of->versions[of->version_count++] = view.seal.head.number;
    }
    for (uint32_t i = 0; i < view.target.extents.count; i++) {
        ms_extent extent = ms_replica_extent(&view.target, i);
        for (uint32_t page = 0; page < extent.page_count; page++)
            s->servers[effect->server].owner[extent.page + page] = view.seal.head.number;
    }
    sim_event *sent = sim_at(s, sim_delay(s), sim_store_copy);
    sent->a = effect->server;
    sent->d = body.length;
    sent->data = malloc(body.length);
    if (sent->data == NULL)
        abort();
    memcpy(sent->data, body.data, body.length);
    ms_writer_close(&body);
}

static void read_events(sim *s) {
    static uint8_t memory[1 << 18];
    for (;;) {
        ms_writer out = ms_writer_fixed(memory, sizeof memory);
        ms_events asked = {
            .sequence = s->leader.event_next, .epoch = s->leader.epoch, .limit = 256};
        if (md_events(s->leader.core, sim_now(s), &asked, &out) != MS_OK) {
            sim_fail(s, "events are missing from %lu on", (unsigned long)s->leader.event_next);
            return;
        }
        ms_reader reader = ms_reader_of(out.data, out.length);
        ms_events_answer head = {0};
        MS_READER_STRUCT(&reader, &head);
        for (uint32_t i = 0; i < head.count; i++) {
            ms_event_view event;
            if (!ms_reader_event(&reader, &event)) {
                sim_fail(s, "an event is malformed");
                return;
            }
            uint32_t key = 0;
            while (key < SIM_KEYS && (strlen(s->keys[key]) != event.head.key_length ||
                                      memcmp(s->keys[key], event.key, event.head.key_length) != 0))
                key++;
            sim_oracle_event(s, &event.head, key);
        }
        if (!ms_reader_is_done(&reader))
            sim_fail(s, "events are malformed");
        s->leader.event_next = head.sequence_next;
        if (head.count < 256)
            return;
    }
}

void sim_leader_drain(sim *s) {
    md_effect effect;
    while (s->leader.core != NULL && s->failure[0] == 0 &&
           md_next_effect(s->leader.core, &effect)) {
        switch (effect.kind) {
        case MD_EFFECT_NONE:
            break;
        case MD_EFFECT_FREE:
            sim_send(s, &(sim_event){.run = sim_store_free,
                                     .a = effect.server,
                                     .b = s->leader.epoch,
                                     .c = s->servers[effect.server].incarnation,
                                     .free = effect.free});
            break;
        case MD_EFFECT_ANSWER: {
            sim_event *answer = sim_at(s, sim_delay(s), answer_arrives);
            answer->a = effect.waiter;
            answer->b = (uint64_t)effect.status;
            answer->c = effect.version;
            break;
        }
        case MD_EFFECT_NOTE:
            sim_send(s, &(sim_event){.run = sim_store_note,
                                     .a = effect.server,
                                     .c = effect.waiter,
                                     .note = effect.note});
            break;
        case MD_EFFECT_COPY:
            send_copy(s, &effect);
            break;
        case MD_EFFECT_TOMBSTONE: {
            uint32_t key = key_of(s, effect.hash);
            s->stones[key]++;
            sim_trace(s, "a tombstone is asked for: key %u up to version %lx", key,
                      (unsigned long)effect.version);
            sim_event *written = sim_at(s, 1 + sim_delay(s), stone_is_written);
            written->a = key;
            written->b = s->leader.epoch;
            written->c = effect.version;
            break;
        }
        case MD_EFFECT_TASK:
            break;
        case MD_EFFECT_SESSION_ENDED:
            break; /* its client learns it from its next call */
        }
    }
    if (s->leader.core != NULL && s->failure[0] == 0)
        read_events(s);
}
