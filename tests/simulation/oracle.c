/* What must hold (docs/protocol.md, section 7; S1 to S4 and L1 as in the model).
 *
 *   S1  a read returns all of one value of its key, of the version that its location named, or nothing
 *   S2  no byte is written under a live word, under an open view, or to a page granted to a later version
 *   S3  what was acknowledged is there until it is evicted, expires, is replaced or removed, or its memory is lost
 *   S4  no read that starts after a remove or upsert was acknowledged returns what that covered; where a tombstone
 *       stood in for a holder, none whose location was looked up after it
 *   L1  no wait is for ever once the faults have stopped, also while views stay open
 *   and at the end every page is free, at the master and at the servers.
 */
#include <string.h>

#include "sim.h"

uint32_t sim_value_of(const sim *s, uint64_t version) {
    for (uint32_t value = s->value_count; value > 0; value--)
        for (uint32_t i = 0; i < s->values[value - 1].version_count; i++)
            if (s->values[value - 1].versions[i] == version)
                return value;
    return 0;
}

void sim_oracle_grant(sim *s, uint32_t value, const sim_location *grant) {
    (void)value;
    for (uint32_t i = 0; i < grant->replica_count; i++)
        for (uint32_t j = 0; j < grant->replicas[i].extent_count; j++)
            for (uint32_t page = 0; page < grant->replicas[i].extents[j].page_count; page++) {
                /* A grant that is fetched late may name a former life of a server. */
                if (grant->replicas[i].incarnation !=
                    s->servers[grant->replicas[i].server].incarnation)
                    continue;
                uint32_t at = grant->replicas[i].extents[j].page + page;
                if (page == 0)
                    sim_trace(s, "server %u page %u+%u: granted to version %lx",
                              grant->replicas[i].server, at,
                              grant->replicas[i].extents[j].page_count,
                              (unsigned long)grant->version);
                if (at >= s->servers[grant->replicas[i].server].ready)
                    sim_fail(s, "a grant beyond the pages that are ready");
                s->servers[grant->replicas[i].server].owner[at] = grant->version;
            }
}

void sim_oracle_new_leader(sim *s) {
    for (uint32_t value = 0; value < s->value_count; value++)
        s->values[value].is_open = false;
    /* Pins end with their leader. */
    memset(s->pins, 0, sizeof s->pins);
}

void sim_oracle_event(sim *s, const ms_event *event, uint32_t key) {
    sim_trace(s, "event %u: version %lx of key %u", event->kind, (unsigned long)event->version,
              key);
    /* Also a rebuild stores: what was sealed and not ended replaces what is older. */
    for (uint32_t i = 0; event->kind == MS_EVENT_STORED && i + 1 < sim_value_of(s, event->version);
         i++)
        if (s->values[i].key == key)
            s->values[i].may_be_gone = true;
    if (event->kind != MS_EVENT_EVICTED && event->kind != MS_EVENT_EXPIRED &&
        event->kind != MS_EVENT_REMOVED)
        return;
    uint32_t number = sim_value_of(s, event->version);
    if (number == 0) {
        sim_fail(s, "event %u of an unknown version", event->kind);
        return;
    }
    sim_value *value = &s->values[number - 1];
    value->may_be_gone = true;
    if (event->kind != MS_EVENT_EVICTED)
        return;
    if (value->hard_pinned_ms != 0)
        sim_fail(s, "version %lx of key %u is evicted although it is pinned hard",
                 (unsigned long)event->version, key);
    for (uint32_t i = 0; i < SIM_PINS; i++) {
        const sim_pin *pin = &s->pins[i];
        if (pin->is_there && pin->key == key && pin->epoch == s->leader.epoch &&
            pin->until_ms > s->now_ms && md_session_tenant(s->leader.core, pin->session) == 0 &&
            sim_session_is_alive(s, pin->session))
            sim_fail(s, "version %lx of key %u is evicted although a session pins it",
                     (unsigned long)event->version, key);
    }
}

/* What a remove or upsert covers: everything of the key but puts that are open at this time, and itself. */
void sim_oracle_removing(sim *s, uint32_t number, uint32_t key, bool is_upsert) {
    sim_client *client = &s->clients[number];
    memset(client->covers, 0, sizeof client->covers);
    for (uint32_t i = 0; i < s->value_count; i++) {
        sim_value *value = &s->values[i];
        if (value->key != key || value->is_open || (is_upsert && i == client->value))
            continue;
        client->covers[i] = true;
        value->may_be_gone = true;
    }
}

void sim_oracle_removed(sim *s, uint32_t number, uint32_t key) {
    sim_client *client = &s->clients[number];
    /* Any tombstone that this key ever had may have let a wait for a silent holder end. */
    bool is_by_stone = s->stones[key] != 0;
    for (uint32_t i = 0; i < s->value_count; i++) {
        sim_value *value = &s->values[i];
        if (!client->covers[i])
            continue;
        if (!value->is_removed || (value->is_by_stone && !is_by_stone)) {
            value->removed_ms = value->is_removed ? value->removed_ms : s->now_ms;
            value->is_removed = true;
            value->is_by_stone = is_by_stone;
        }
    }
}

void sim_oracle_read(sim *s, uint32_t number, uint32_t key) {
    sim_client *client = &s->clients[number];
    uint32_t found = sim_value_of(s, client->read.version);
    if (found == 0) {
        sim_fail(s, "S1: a location of an unknown version");
        return;
    }
    const sim_value *value = &s->values[found - 1];
    if (value->key != key)
        sim_fail(s, "S1: the location of key %u names a version of key %u", key, value->key);
    for (uint32_t i = 0; i < client->pages_read; i++)
        if (client->got[i] != found)
            sim_fail(s, "S1: page %u of key %u, version %lx is of value %u instead of %u", i, key,
                     (unsigned long)client->read.version, client->got[i], found);
    if (!client->removed_at_start[found - 1])
        return;
    if (!value->is_by_stone)
        sim_fail(s, "S4: version %lx of key %u is read after its removal was acknowledged",
                 (unsigned long)client->read.version, key);
    else if (client->read.looked_up_ms > value->removed_ms)
        sim_fail(s, "S4: version %lx of key %u is looked up after its removal was acknowledged",
                 (unsigned long)client->read.version, key);
}

static bool is_live_elsewhere(const sim *s, const sim_value *value, uint32_t but_server) {
    for (uint32_t i = 0; i < s->weather.server_count; i++) {
        const sim_server *server = &s->servers[i];
        for (uint32_t page = 0; i != but_server && page < SIM_PAGES; page++)
            if (server->records[page].is_there &&
                server->words[page] == ms_word(server->records[page].version, 1) &&
                server->records[page].version == value->versions[value->version_count - 1])
                return true;
    }
    return false;
}

void sim_oracle_reboot(sim *s, uint32_t server) {
    /* Also what is only about to be acknowledged may have lost its memory. */
    for (uint32_t i = 0; i < s->value_count; i++)
        if (!is_live_elsewhere(s, &s->values[i], server))
            s->values[i].may_be_gone = true;
        else if (s->values[i].version_count > 1)
            s->values[i].may_be_gone = true; /* the entry may be at either version */
}

static bool is_whole(sim *s, uint32_t key, const ms_location_view *location, uint32_t value) {
    for (uint32_t i = 0; i < location->head.replica_count; i++) {
        const ms_replica_view *replica = &location->replicas[i];
        const sim_server *server = &s->servers[replica->head.server];
        bool is_good = true;
        for (uint32_t j = 0; j < replica->extents.count; j++) {
            ms_extent extent = ms_replica_extent(replica, j);
            is_good &= server->words[extent.page] == ms_word(location->head.version, 1);
            for (uint32_t page = 0; page < extent.page_count; page++)
                is_good &= server->payload[extent.page + page] == value;
        }
        if (!is_good) {
            sim_fail(s, "S3: replica %u of key %u, version %lx is not what was written", i, key,
                     (unsigned long)location->head.version);
            return false;
        }
    }
    return true;
}

/* With all servers adopted. */
void sim_oracle_acked_are_there(sim *s) {
    for (uint32_t key = 0; key < SIM_KEYS && s->failure[0] == 0; key++) {
        uint8_t memory[16384];
        ms_writer out = ms_writer_fixed(memory, sizeof memory);
        md_lookup(s->leader.core, sim_now(s), &s->hashes[key], 1, &out);
        sim_leader_drain(s);
        ms_reader reader = ms_reader_of(out.data, out.length);
        ms_location_view location;
        ms_reader_list(&reader, sizeof(ms_location));
        if (!ms_reader_location(&reader, &location)) {
            sim_fail(s, "a location is malformed");
            return;
        }
        uint32_t found = location.head.status == MS_OK ? sim_value_of(s, location.head.version) : 0;
        if (found != 0 && !is_whole(s, key, &location, found))
            return;
        for (uint32_t i = 0; i < s->value_count; i++) {
            const sim_value *value = &s->values[i];
            bool is_due = value->key == key && value->is_acked && !value->may_be_gone &&
                          (value->expires_ms == 0 || value->expires_ms > s->now_ms);
            if (is_due && (found == 0 || found - 1 < i))
                sim_fail(
                    s,
                    "S3: version %lx of key %u was acknowledged and is not there (found value %u)",
                    (unsigned long)value->versions[0], key, found);
            if (value->key == key && value->is_removed && found - 1 == i &&
                value->removed_ms < s->now_ms)
                sim_fail(s, "S4: version %lx of key %u is there after its removal was acknowledged",
                         (unsigned long)location.head.version, key);
        }
    }
}

void sim_oracle_all_is_free(sim *s) {
    md_core *core = s->leader.core;
    for (uint32_t key = 0; key < SIM_KEYS && s->failure[0] == 0; key++) {
        sim_oracle_removing(s, 0, key, false);
        md_remove(core, sim_now(s), 0, 0, s->hashes[key], (const uint8_t *)s->keys[key],
                  strlen(s->keys[key]), true, UINT64_MAX);
        sim_leader_drain(s);
    }
    sim_run_for(s, 25000);
    if (s->failure[0] != 0)
        return;
    int line = md_check(core);
    if (line != 0)
        sim_fail(s, "an invariant of the core is broken at the end: check.c:%d", line);
    for (uint32_t i = 0; i < s->weather.server_count && s->failure[0] == 0; i++) {
        md_server_view view;
        md_server_get(core, i, &view);
        if (view.state != MS_MEMBER_READY || view.pages_free != s->weather.pages)
            sim_fail(s, "at the end %lu of %u pages of server %u are free, its state is %u",
                     (unsigned long)view.pages_free, s->weather.pages, i, view.state);
        for (uint32_t page = 0; page < SIM_PAGES; page++) {
            if (s->servers[i].records[page].is_there)
                sim_fail(s, "at the end server %u still has a record at page %u", i, page);
            if (s->servers[i].words[page] & 1)
                sim_fail(s, "at the end server %u has a live word at page %u", i, page);
        }
    }
}
