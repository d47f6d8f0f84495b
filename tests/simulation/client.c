/* Clients: one operation at a time each, with all the time in the world between two steps. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

static sim_client *client_of(sim *s, uint32_t client) { return &s->clients[client]; }
static uint64_t waiter_of(const sim *s, uint32_t client) {
    return (uint64_t)client << 48 | s->clients[client].operation;
}
static uint32_t epoch_of(uint64_t number) { return (uint32_t)(number >> 43); }

bool sim_session_is_alive(const sim *s, uint64_t session) {
    for (uint32_t i = 0; i < SIM_CLIENTS; i++)
        if (s->clients[i].is_alive && s->clients[i].session == session &&
            s->clients[i].frozen_until_ms <= s->now_ms)
            return true;
    return false;
}

/* ---- steps: of this life and this operation, when it is not frozen ------------------------------------------ */
static void step(sim *s, uint32_t client, int64_t delay_ms, void (*run)(sim *s, sim_event *event),
                 uint64_t argument) {
    sim_event *event = sim_at(s, delay_ms, run);
    event->a = client;
    event->b = client_of(s, client)->life;
    event->c = client_of(s, client)->operation;
    event->d = argument;
}

static sim_client *awake(sim *s, sim_event *event) {
    sim_client *client = client_of(s, (uint32_t)event->a);
    if (!client->is_alive || client->life != event->b || client->operation != event->c)
        return NULL;
    if (client->frozen_until_ms > s->now_ms) {
        sim_event *later = sim_at(s, client->frozen_until_ms - s->now_ms, event->run);
        int64_t at_ms = later->at_ms;
        uint64_t order = later->order;
        *later = *event;
        later->at_ms = at_ms;
        later->order = order;
        event->data = NULL;
        return NULL;
    }
    return client;
}

static void next_operation(sim *s, sim_event *event);

static void done(sim *s, uint32_t number) {
    sim_client *client = client_of(s, number);
    client->phase = SIM_IDLE;
    client->operation++;
    step(s, number, 5 + (int64_t)sim_random(s, 60), next_operation, 0);
}

/* ---- life ----------------------------------------------------------------------------------------------------- */
static void begin_life(sim *s, sim_event *event) {
    uint32_t number = (uint32_t)event->a;
    sim_client *client = client_of(s, number);
    uint32_t life = client->life;
    uint64_t operation = client->operation;
    memset(client, 0, sizeof *client);
    client->life = life + 1;
    client->operation = operation + 1;
    client->is_alive = true;
    done(s, number);
}

void sim_client_start(sim *s, uint32_t client) {
    sim_at(s, (int64_t)sim_random(s, 300), begin_life)->a = client;
}

static void close_view(sim *s, uint32_t number) {
    sim_view *view = &s->views[number];
    sim_server *server = &s->servers[view->server];
    if (!view->is_open)
        return;
    view->is_open = false;
    if (view->memory != server->memory)
        return;
    for (uint32_t i = 0; i < view->extent.page_count; i++)
        if (server->payload[view->extent.page + i] != view->value)
            sim_fail(s, "S1: a view of version %lx shows value %u instead of %u",
                     (unsigned long)view->version, server->payload[view->extent.page + i],
                     view->value);
    sim_store_use_end(s, view->server, view->extent.page, true);
}

static void view_ends(sim *s, sim_event *event) { close_view(s, (uint32_t)event->a); }

void sim_views_close(sim *s) {
    for (uint32_t i = 0; i < SIM_VIEWS; i++)
        close_view(s, i);
}

void sim_views_lost(sim *s, uint32_t server) {
    for (uint32_t i = 0; i < SIM_VIEWS; i++)
        if (s->views[i].server == server)
            s->views[i].is_open = false;
}

static void die(sim *s, uint32_t number) {
    client_of(s, number)->is_alive = false;
    sim_trace(s, "client %u dies, session %lx", number,
              (unsigned long)client_of(s, number)->session);
    for (uint32_t i = 0; i < SIM_VIEWS; i++)
        if (s->views[i].is_open && s->views[i].client == number)
            sim_at(s, (int64_t)sim_random(s, 100), view_ends)->a = i;
    sim_at(s, 500 + (int64_t)sim_random(s, 5000), begin_life)->a = number;
}

/* What may happen to a process at any step. */
static bool strikes(sim *s, uint32_t number) {
    if (s->is_healing)
        return false;
    if (sim_chance(s, s->weather.die_permille)) {
        die(s, number);
        return true;
    }
    if (sim_chance(s, s->weather.freeze_permille)) {
        client_of(s, number)->frozen_until_ms = s->now_ms + (int64_t)sim_random(s, 8000);
        sim_trace(s, "client %u freezes until %ld, session %lx", number,
                  (long)client_of(s, number)->frozen_until_ms,
                  (unsigned long)client_of(s, number)->session);
    }
    return false;
}

static void keep_alive(sim *s, sim_event *event) {
    sim_client *client = client_of(s, (uint32_t)event->a);
    if (!client->is_alive || client->session != event->b)
        return;
    if (client->frozen_until_ms <= s->now_ms && s->leader.core != NULL) {
        if (md_session_keep(s->leader.core, sim_now(s), client->session) != MS_OK) {
            client->session = 0;
            return;
        }
        sim_leader_drain(s);
    }
    sim_event *again = sim_at(s, 800, keep_alive);
    again->a = event->a;
    again->b = event->b;
}

static bool has_session(sim *s, uint32_t number) {
    sim_client *client = client_of(s, number);
    if (client->session != 0 && epoch_of(client->session) == s->leader.epoch &&
        md_session_keep(s->leader.core, sim_now(s), client->session) == MS_OK)
        return true;
    if (md_session_open(s->leader.core, sim_now(s), (const uint8_t *)"default", 7,
                        &client->session) != MS_OK)
        return false;
    sim_event *again = sim_at(s, 800, keep_alive);
    again->a = number;
    again->b = client->session;
    return true;
}

/* Waits end with the leader or the session that they were for. */
static void watch(sim *s, sim_event *event) {
    sim_client *client = awake(s, event);
    if (client == NULL)
        return;
    bool is_lost = s->leader.core == NULL || client->epoch != s->leader.epoch;
    if (is_lost) {
        done(s, (uint32_t)event->a);
        return;
    }
    step(s, (uint32_t)event->a, 1000, watch, 0);
}

/* ---- put --------------------------------------------------------------------------------------------------------- */
static void seal_next(sim *s, uint32_t number);

static void take_location(sim *s, const ms_location_view *view, sim_location *location) {
    *location = (sim_location){.is_there = true,
                               .version = view->head.version,
                               .size = view->head.size,
                               .looked_up_ms = s->now_ms,
                               .expires_ms = s->now_ms + view->head.lifetime_ms,
                               .replica_count = view->head.replica_count};
    if (view->head.replica_count > SIM_SERVERS) {
        sim_fail(s, "a location with %u replicas", view->head.replica_count);
        location->replica_count = 0;
    }
    for (uint32_t i = 0; i < location->replica_count; i++) {
        const ms_replica_view *replica = &view->replicas[i];
        location->replicas[i].server = replica->head.server;
        location->replicas[i].incarnation = replica->head.incarnation;
        location->replicas[i].memory = s->servers[replica->head.server].memory;
        location->replicas[i].extent_count = replica->extents.count;
        for (uint32_t j = 0; j < replica->extents.count; j++)
            location->replicas[i].extents[j] = ms_replica_extent(replica, j);
    }
}

static void finish_put(sim *s, uint32_t number, bool is_acked) {
    sim_client *client = client_of(s, number);
    if (is_acked) {
        s->values[client->value].is_acked = true;
        s->puts_acked++;
        if (client->is_upsert)
            sim_oracle_removed(s, number, client->key);
    }
    done(s, number);
}

/* put_end reaches the leader, from the client or by way of a server. */
static void end_at_leader(sim *s, uint32_t number, uint64_t operation, uint64_t session,
                          uint64_t version, uint64_t mask, bool is_relayed) {
    sim_client *client = client_of(s, number);
    uint32_t value = sim_value_of(s, version) - 1;
    bool is_present = client->is_alive && client->operation == operation;
    ms_end_item item = {
        .hash = s->hashes[s->values[value].key], .version = version, .replica_mask = mask};
    uint64_t waiter = (uint64_t)number << 48 | operation;
    bool was_open = s->values[value].is_open;
    /* What it covers is what is there now; a repeat covers no more than the first. */
    bool begins = is_present && client->is_upsert && was_open;
    if (begins)
        sim_oracle_removing(s, number, client->key, true);
    ms_status status = md_put_end(s->leader.core, sim_now(s), session, &item, waiter);
    if (status == MS_OK || status == MS_PENDING) {
        s->values[value].is_open = false;
        for (uint32_t i = 0; i < value; i++)
            if (s->values[i].key == s->values[value].key && !is_present)
                s->values[i].may_be_gone = true;
    }
    sim_leader_drain(s);
    if (status == MS_PENDING || !is_present) {
        if (is_present && !is_relayed)
            step(s, number, 1000, watch, 0);
        return;
    }
    if (status == MS_OK)
        sim_client_answer(s, waiter, MS_OK, 0);
    else if (!is_relayed)
        finish_put(s, number, false);
}

void sim_client_relay(sim *s, sim_event *message) {
    if (s->leader.core == NULL || s->leader.epoch != epoch_of(message->free.version))
        return;
    end_at_leader(s, (uint32_t)message->a, message->b, message->free.session, message->free.version,
                  message->c, true);
}

static void end_directly(sim *s, sim_event *event) {
    sim_client *client = awake(s, event);
    if (client == NULL || client->phase != SIM_PUT_ENDING)
        return;
    if (s->leader.core == NULL || s->leader.epoch != client->epoch) {
        finish_put(s, (uint32_t)event->a, false);
        return;
    }
    end_at_leader(s, (uint32_t)event->a, client->operation, client->session, client->version,
                  client->mask, false);
}

/* After drain: nothing of this put is on its way any more. */
static void revoke(sim *s, uint32_t number) {
    sim_client *client = client_of(s, number);
    if (s->leader.core == NULL || s->leader.epoch != client->epoch) {
        finish_put(s, number, false);
        return;
    }
    ms_end_item item = {.hash = s->hashes[client->key], .version = client->version};
    ms_status status = md_revoke(s->leader.core, sim_now(s), client->session, &item);
    if (status == MS_OK)
        s->values[client->value].is_open = false;
    sim_leader_drain(s);
    client->is_upsert &=
        status != MS_COMPLETE; /* complete, but its holders need not have answered */
    finish_put(s, number, status == MS_COMPLETE);
}

static void sealed(sim *s, sim_event *event) {
    sim_client *client = awake(s, event);
    if (client == NULL || client->phase != SIM_PUT_SEALING)
        return;
    if (strikes(s, (uint32_t)event->a))
        return;
    uint32_t replica = client->sealing / SIM_PAGES, part = client->sealing % SIM_PAGES;
    if (event->d != MS_OK) {
        client->sealing =
            (replica + 1) * SIM_PAGES; /* the rest of this replica need not be sealed */
    } else if (part + 1 == client->grant.replicas[replica].extent_count) {
        client->mask |= 1ull << replica;
        client->sealing = (replica + 1) * SIM_PAGES;
    } else {
        client->sealing++;
    }
    seal_next(s, (uint32_t)event->a);
}

static void seal_at_server(sim *s, sim_event *event) {
    uint32_t number = (uint32_t)event->a;
    sim_client *client = client_of(s, number);
    /* The request is on its way whatever becomes of the client; what it says was fixed when it was sent. */
    if (client->operation != event->c || client->life != event->b)
        return;
    uint32_t replica = client->sealing / SIM_PAGES, part = client->sealing % SIM_PAGES;
    uint32_t server = client->grant.replicas[replica].server;
    const sim_value *value = &s->values[client->value];
    sim_record record = {
        .key = client->key,
        .version = client->version,
        .note = client->version,
        .size = client->grant.size,
        .expiry_ms = value->expires_ms == 0 ? 0 : (uint64_t)(1700000000000 + value->expires_ms),
        .group = value->group,
        .flags = value->flags,
        .page_count = client->grant.replicas[replica].extents[part].page_count,
        .part = (uint16_t)part,
        .part_count = (uint16_t)client->grant.replicas[replica].extent_count};
    ms_status status = sim_store_seal(s, server, client->session, epoch_of(client->version),
                                      client->grant.replicas[replica].incarnation, &record,
                                      client->grant.replicas[replica].extents[part].page);
    bool is_last = replica + 1 == client->grant.replica_count &&
                   part + 1 == client->grant.replicas[replica].extent_count;
    if (status == MS_OK && is_last && client->is_relayed) { /* relay_after_seal */
        sim_send(s, &(sim_event){.run = sim_client_relay,
                                 .a = number,
                                 .b = client->operation,
                                 .c = client->mask | 1ull << replica,
                                 .free = {.session = client->session, .version = client->version}});
        client->mask |= 1ull << replica;
        client->phase = SIM_PUT_ENDING;
        step(s, number, 200 + (int64_t)sim_random(s, 1500), end_directly, 0);
        return;
    }
    step(s, number, sim_delay(s), sealed, (uint64_t)status);
}

static void seal_next(sim *s, uint32_t number) {
    sim_client *client = client_of(s, number);
    uint32_t replica = client->sealing / SIM_PAGES;
    if (replica < client->grant.replica_count) {
        step(s, number, sim_delay(s), seal_at_server, 0);
        return;
    }
    if (client->mask == 0 || sim_chance(s, 60)) {
        revoke(s, number);
        return;
    }
    client->phase = SIM_PUT_ENDING;
    step(s, number, sim_delay(s), end_directly, 0);
}

/* One page: a client and operation, b life << 32 | page, c server << 32 | first page, d value << 1 | begun;
 * free: session, version, segment = incarnation, extent. */
static void written(sim *s, sim_event *event, bool is_good) {
    uint32_t number = (uint32_t)(event->a >> 48);
    sim_client *client = client_of(s, number);
    if (!client->is_alive || client->operation != (event->a & 0xffffffffffff) ||
        client->phase != SIM_PUT_WRITING)
        return;
    client->has_failed |= !is_good;
    if (--client->outstanding != 0)
        return;
    if (client->has_failed) {
        revoke(s, number);
        return;
    }
    client->phase = SIM_PUT_SEALING;
    client->sealing = 0;
    seal_next(s, number);
}

static void rdma_lands(sim *s, sim_event *event) {
    uint32_t server = (uint32_t)(event->c >> 32);
    bool is_good = sim_store_accepts_writer(s, server, event->free.session,
                                            epoch_of(event->free.version), event->free.segment);
    if (is_good)
        sim_store_write_land(s, server, event->free.version, (uint32_t)event->b,
                             (uint32_t)(event->d >> 1));
    written(s, event, is_good);
}

static void copy_lands(sim *s, sim_event *event) {
    uint32_t server = (uint32_t)(event->c >> 32), first = (uint32_t)event->c;
    bool is_good = true;
    if ((event->d & 1) == 0) {
        ms_extent extent = {.page = first, .page_count = event->free.page_count};
        if (sim_store_write_begin(s, server, event->free.session, epoch_of(event->free.version),
                                  event->free.segment, event->free.version, extent)) {
            sim_event *end = sim_at(s, sim_delay(s), copy_lands);
            int64_t at_ms = end->at_ms;
            uint64_t order = end->order;
            *end = *event;
            end->at_ms = at_ms;
            end->order = order;
            end->d |= 1;
            return;
        }
        is_good = false;
    } else if (s->servers[server].is_up && s->servers[server].incarnation == event->free.segment) {
        sim_store_write_land(s, server, event->free.version, (uint32_t)event->b,
                             (uint32_t)(event->d >> 1));
        sim_store_use_end(s, server, first, false);
    } else {
        is_good = false; /* the copy died with its process */
    }
    written(s, event, is_good);
}

/* The client posts one page's write.  Frozen, it posts late; what is posted lands by itself. */
static void post(sim *s, sim_event *event) {
    ms_free_item grant = event->free;
    uint64_t where =
        (uint64_t)grant.reserved << 32 | grant.page; /* server, first page of the extent */
    sim_client *client = awake(s, event);
    if (client == NULL || client->phase != SIM_PUT_WRITING)
        return;
    sim_event *sent = sim_at(s, sim_delay(s), client->is_rdma ? rdma_lands : copy_lands);
    sent->a = waiter_of(s, (uint32_t)event->a);
    sent->b = event->d; /* page */
    sent->c = where;
    sent->d = (uint64_t)client->value << 1;
    sent->free = grant;
}

static void granted(sim *s, uint32_t number, const ms_location_view *view, uint32_t ttl_ms) {
    sim_client *client = client_of(s, number);
    take_location(s, view, &client->grant);
    client->version = view->head.version;
    client->value = s->value_count;
    s->values = realloc(s->values, (s->value_count + 1) * sizeof *s->values);
    if (s->values == NULL)
        abort();
    s->values[s->value_count++] =
        (sim_value){.key = client->key,
                    .versions = {client->version},
                    .version_count = 1,
                    .page_count = (uint32_t)ms_pages_of(client->grant.size),
                    .group = client->put_group,
                    .flags = client->put_flags,
                    .is_open = true,
                    .expires_ms = ttl_ms == 0 ? 0 : s->now_ms + ttl_ms};
    sim_oracle_grant(s, client->value, &client->grant);
    client->phase = SIM_PUT_WRITING;
    client->outstanding = 0;
    client->has_failed = false;
    client->mask = 0;
    for (uint32_t i = 0; i < client->grant.replica_count; i++) {
        uint32_t server = client->grant.replicas[i].server;
        for (uint32_t j = 0; j < client->grant.replicas[i].extent_count; j++) {
            ms_extent extent = client->grant.replicas[i].extents[j];
            for (uint32_t page = 0; page < extent.page_count; page++) {
                sim_event *event = sim_at(s, 1 + (int64_t)sim_random(s, 20), post);
                event->a = number;
                event->b = client->life;
                event->c = client->operation;
                event->d = extent.page + page;
                event->free = (ms_free_item){.session = client->session,
                                             .version = client->version,
                                             .segment = client->grant.replicas[i].incarnation,
                                             .page = extent.page,
                                             .page_count = extent.page_count,
                                             .reserved = server};
                client->outstanding++;
            }
        }
    }
}

static void start_put(sim *s, uint32_t number) {
    sim_client *client = client_of(s, number);
    if (s->value_count == sizeof client->covers) {
        done(s, number);
        return;
    }
    uint32_t key = client->key;
    client->is_put = true;
    client->is_upsert = sim_chance(s, s->weather.upsert_permille);
    client->is_rdma = sim_chance(s, s->weather.rdma_permille);
    client->is_relayed = !client->is_rdma && sim_chance(s, 500);
    uint64_t pages = 1 + sim_random(s, s->weather.value_pages_max);
    uint32_t ttl_ms = sim_chance(s, 100) ? 2000 + (uint32_t)sim_random(s, 10000) : 0;
    ms_put_item item = {.hash = s->hashes[key],
                        .size = pages * MS_PAGE_SIZE - sim_random(s, MS_PAGE_SIZE),
                        .ttl_ms = ttl_ms,
                        .deadline_ms = 2000 + (uint32_t)sim_random(s, 3000),
                        .parent = key > 0 && sim_chance(s, 200) ? s->hashes[key - 1] : (ms_hash){0},
                        .key_length = (uint16_t)strlen(s->keys[key]),
                        .replica_count = (uint8_t)(1 + sim_random(s, 3)),
                        .group = sim_chance(s, 150) ? 1 + sim_random(s, 2) : 0,
                        .flags = (client->is_upsert ? MS_PUT_UPSERT : 0u) |
                                 (sim_chance(s, 100) ? MS_PUT_SOFT_PIN : 0u)};
    client->put_group = item.group;
    client->put_flags = (uint8_t)((item.flags & MS_PUT_SOFT_PIN ? MS_OBJECT_SOFT_PIN : 0) |
                                  ms_wanted_flags(item.replica_count));
    uint8_t memory[16384];
    ms_writer out = ms_writer_fixed(memory, sizeof memory);
    ms_status status = md_put_start(s->leader.core, sim_now(s), client->session, &item,
                                    (const uint8_t *)s->keys[key], waiter_of(s, number), &out);
    sim_leader_drain(s);
    if (status == MS_PENDING) {
        client->phase = SIM_PUT_PARKED;
        client->annotation = ttl_ms;
        step(s, number, 1000, watch, 0);
        return;
    }
    ms_location_view view;
    ms_reader reader = ms_reader_of(out.data, out.length);
    if (status == MS_OK && ms_reader_location(&reader, &view))
        granted(s, number, &view, ttl_ms);
    else
        done(s, number);
}

/* ---- get ---------------------------------------------------------------------------------------------------------- */
static bool look_up(sim *s, uint32_t key, sim_location *location) {
    uint8_t memory[16384];
    ms_writer out = ms_writer_fixed(memory, sizeof memory);
    md_lookup(s->leader.core, sim_now(s), &s->hashes[key], 1, &out);
    sim_leader_drain(s);
    ms_reader reader = ms_reader_of(out.data, out.length);
    ms_location_view view;
    ms_reader_list(&reader, sizeof(ms_location));
    if (!ms_reader_location(&reader, &view)) {
        sim_fail(s, "a location is malformed");
        return false;
    }
    if (view.head.status != MS_OK)
        return false;
    take_location(s, &view, location);
    return true;
}

static void read_word(sim *s, sim_event *event) {
    sim_client *client = awake(s, event);
    if (client == NULL)
        return;
    const sim_server *server = &s->servers[client->read.replicas[client->replica].server];
    bool is_same = server->memory == client->read.replicas[client->replica].memory;
#ifndef SIM_PLANT_NO_WORD /* a fault that must be found */
    /* Extents are freed one by one, so each has to say that it is still there. */
    for (uint32_t i = 0; i < client->read.replicas[client->replica].extent_count; i++)
        is_same &= server->words[client->read.replicas[client->replica].extents[i].page] ==
                   ms_word(client->read.version, 1);
#endif
    if (is_same) {
        s->reads_hit++;
        sim_oracle_read(s, (uint32_t)event->a, client->key);
    } else {
        s->reads_gone++;
        client->cache[client->key].is_there = false;
    }
    done(s, (uint32_t)event->a);
}

static void read_page(sim *s, sim_event *event) {
    sim_client *client = awake(s, event);
    if (client == NULL || strikes(s, (uint32_t)event->a))
        return;
    uint32_t left = client->pages_read;
    for (uint32_t i = 0; i < client->read.replicas[client->replica].extent_count; i++) {
        ms_extent extent = client->read.replicas[client->replica].extents[i];
        if (left >= extent.page_count) {
            left -= extent.page_count;
            continue;
        }
        const sim_server *server = &s->servers[client->read.replicas[client->replica].server];
        client->got[client->pages_read++] = server->payload[extent.page + left];
        step(s, (uint32_t)event->a, sim_delay(s), read_page, 0);
        return;
    }
    step(s, (uint32_t)event->a, sim_delay(s), read_word, 0);
}

static void start_get(sim *s, uint32_t number) {
    sim_client *client = client_of(s, number);
    sim_location *cached = &client->cache[client->key];
    if (!cached->is_there || cached->expires_ms <= s->now_ms || sim_chance(s, 300)) {
        cached->is_there = sim_leader_serves(s) && look_up(s, client->key, cached);
        if (!cached->is_there) {
            done(s, number);
            return;
        }
    }
    client->read = *cached;
    client->replica = (uint32_t)sim_random(s, client->read.replica_count);
    client->pages_read = 0;
    client->phase = SIM_READING;
    for (uint32_t i = 0; i < s->value_count; i++)
        client->removed_at_start[i] = s->values[i].is_removed;
    step(s, number, sim_delay(s), read_page, 0);
}

static void open_view(sim *s, uint32_t number) {
    sim_client *client = client_of(s, number);
    sim_location location;
    if (!look_up(s, client->key, &location))
        return;
    uint32_t replica = (uint32_t)sim_random(s, location.replica_count), slot = 0;
    sim_server *server = &s->servers[location.replicas[replica].server];
    while (slot < SIM_VIEWS && s->views[slot].is_open)
        slot++;
    ms_extent extent = location.replicas[replica].extents[0];
    /* Word and use count in one step (view_atomic).  Only what lies in one piece can be viewed. */
    if (slot == SIM_VIEWS || location.replicas[replica].extent_count != 1 || !server->is_up ||
        server->words[extent.page] != ms_word(location.version, 1))
        return;
    server->uses[extent.page].version = location.version;
    server->uses[extent.page].page_count = extent.page_count;
    server->uses[extent.page].views++;
    s->views[slot] = (sim_view){.is_open = true,
                                .server = location.replicas[replica].server,
                                .memory = server->memory,
                                .client = number,
                                .version = location.version,
                                .value = sim_value_of(s, location.version),
                                .extent = extent};
    s->views_opened++;
    /* Some stay open for as long as the world lasts. */
    if (!sim_chance(s, 50))
        sim_at(s, (int64_t)sim_random(s, 6000), view_ends)->a = slot;
}

/* ---- the other calls --------------------------------------------------------------------------------------------- */
static void start_remove(sim *s, uint32_t number) {
    sim_client *client = client_of(s, number);
    client->is_remove = true;
    sim_trace(s, "client %u removes key %u", number, client->key);
    sim_oracle_removing(s, number, client->key, false);
    const char *key = s->keys[client->key];
    ms_status status = md_remove(s->leader.core, sim_now(s), 0, 0, s->hashes[client->key],
                                 (const uint8_t *)key, strlen(key), true, waiter_of(s, number));
    sim_leader_drain(s);
    client->phase = SIM_WAITING;
    if (status != MS_PENDING)
        sim_client_answer(s, waiter_of(s, number), status, 0);
    else
        step(s, number, 1000, watch, 0);
}

static void pin(sim *s, uint32_t number) {
    sim_client *client = client_of(s, number);
    uint32_t deadline_ms = 500 + (uint32_t)sim_random(s, 2000);
    if (md_pin(s->leader.core, sim_now(s), client->session, s->hashes[client->key], deadline_ms) ==
        MS_OK) {
        uint32_t slot = 0;
        while (slot + 1 < SIM_PINS && s->pins[slot].is_there && s->pins[slot].until_ms > s->now_ms)
            slot++;
        s->pins[slot] = (sim_pin){.is_there = true,
                                  .key = client->key,
                                  .epoch = s->leader.epoch,
                                  .session = client->session,
                                  .until_ms = s->now_ms + deadline_ms};
        if (sim_chance(s, 300)) {
            md_unpin(s->leader.core, sim_now(s), client->session, s->hashes[client->key]);
            s->pins[slot].is_there = false;
        }
    }
    sim_leader_drain(s);
}

static void start_annotate(sim *s, uint32_t number) {
    sim_client *client = client_of(s, number);
    client->is_annotate = true;
    client->pins_hard = sim_chance(s, 400);
    client->annotation = ++s->annotations[client->key];
    sim_location location;
    if (!look_up(s, client->key, &location)) {
        done(s, number);
        return;
    }
    client->value = sim_value_of(s, location.version) - 1;
    for (uint32_t i = 0; i < s->value_count && !client->pins_hard; i++)
        if (s->values[i].key == client->key)
            s->values[i].hard_pinned_ms = 0;
    ms_annotate annotate = {.fields = MS_ANNOTATE_HARD_PIN,
                            .flags = client->pins_hard ? (uint32_t)MS_OBJECT_HARD_PIN : 0};
    const char *key = s->keys[client->key];
    ms_status status =
        md_annotate(s->leader.core, sim_now(s), 0, s->hashes[client->key], (const uint8_t *)key,
                    strlen(key), &annotate, waiter_of(s, number));
    sim_leader_drain(s);
    client->phase = SIM_WAITING;
    if (status != MS_PENDING)
        sim_client_answer(s, waiter_of(s, number), status, 0);
    else
        step(s, number, 1000, watch, 0);
}

static void start_change(sim *s, uint32_t number) {
    sim_client *client = client_of(s, number);
    const char *key = s->keys[client->key];
    ms_change_replica change = {.replica_count = (uint32_t)sim_random(s, 4)};
    ms_status status =
        md_change_replica(s->leader.core, sim_now(s), 0, s->hashes[client->key],
                          (const uint8_t *)key, strlen(key), &change, waiter_of(s, number));
    sim_leader_drain(s);
    client->phase = SIM_WAITING;
    if (status != MS_PENDING)
        done(s, number);
    else
        step(s, number, 1000, watch, 0);
}

static void answered_while_awake(sim *s, sim_event *event) {
    sim_client *client = awake(s, event);
    if (client == NULL)
        return;
    uint32_t number = (uint32_t)event->a;
    ms_status status = (ms_status)event->d;
    if (client->phase == SIM_PUT_PARKED) {
        uint8_t memory[16384];
        ms_writer out = ms_writer_fixed(memory, sizeof memory);
        ms_location_view view;
        bool is_granted =
            status == MS_OK && s->leader.core != NULL && s->leader.epoch == client->epoch &&
            md_write_grant(s->leader.core, sim_now(s), event->free.version, &out) == MS_OK;
        ms_reader reader = ms_reader_of(out.data, out.length);
        if (is_granted && ms_reader_location(&reader, &view))
            granted(s, number, &view, client->annotation);
        else
            done(s, number);
    } else if (client->phase == SIM_PUT_ENDING) {
        finish_put(s, number, status == MS_OK);
    } else if (client->phase == SIM_WAITING) {
        if (client->is_remove && (status == MS_OK || status == MS_NOT_FOUND)) {
            sim_oracle_removed(s, number, client->key);
            s->removes_acked++;
        }
        if (client->is_annotate && status == MS_OK && client->pins_hard &&
            client->annotation == s->annotations[client->key] &&
            !s->values[client->value].may_be_gone)
            s->values[client->value].hard_pinned_ms = s->now_ms;
        done(s, number);
    }
}

void sim_client_answer(sim *s, uint64_t waiter, ms_status status, uint64_t version) {
    if (waiter == UINT64_MAX)
        return;
    uint32_t number = (uint32_t)(waiter >> 48);
    sim_event *event = sim_at(s, 0, answered_while_awake);
    event->a = number;
    event->b = client_of(s, number)->life;
    event->c = waiter & 0xffffffffffff;
    event->d = (uint64_t)status;
    event->free.version = version;
}

static void next_operation(sim *s, sim_event *event) {
    sim_client *client = awake(s, event);
    if (client == NULL || s->is_healing)
        return;
    uint32_t number = (uint32_t)event->a;
    if (strikes(s, number))
        return;
    client->key = (uint32_t)sim_random(s, SIM_KEYS);
    client->is_put = client->is_remove = client->is_annotate = client->is_upsert = false;
    if (sim_chance(s, 350)) {
        start_get(s, number);
        return;
    }
    if (!sim_leader_serves(s) || !has_session(s, number)) {
        done(s, number);
        return;
    }
    s->leader.serves = true;
    client->epoch = s->leader.epoch;
    uint64_t choice = sim_random(s, 1000);
    if (choice < 100) {
        start_remove(s, number);
    } else if (choice < 130) {
        start_annotate(s, number);
    } else if (choice < 130 + s->weather.change_permille) {
        start_change(s, number);
    } else if (sim_chance(s, s->weather.view_permille)) {
        open_view(s, number);
        done(s, number);
    } else if (sim_chance(s, 50)) {
        pin(s, number);
        done(s, number);
    } else {
        start_put(s, number);
    }
}
