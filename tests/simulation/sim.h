/* A deterministic simulation of the object protocol: the real metadata core among store servers, clients, a
 * coordinator and a network that are models, in virtual time.
 *
 * One seed is one run: which faults there are and how often, every delay, every choice of every client comes
 * from it.  The servers keep words, payload, records, use counts, views and fences as docs/protocol.md says;
 * a page's payload is the number of the value that was written there, so a read proves itself.  Clients are
 * hostile in time only: they freeze, die, act late, leave views open; their RDMA writes land when they like.
 * Messages are late, out of order, lost and doubled where the protocol allows it.
 *
 * What must hold is in oracle.c.  After the faults the world heals: everything is delivered, and then all
 * that was acknowledged must be there, every wait must end, and after removing all every page be free.
 */
#ifndef SIM_H
#define SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "md.h"
#include "ms_hash.h"

#define SIM_SERVERS 3u
#define SIM_PAGES 40u
#define SIM_CLIENTS 6u
#define SIM_KEYS 6u
#define SIM_VIEWS 64u
#define SIM_FENCED 256u
#define SIM_PINS 64u

typedef struct sim sim;

/* Something that happens at a time. */
typedef struct sim_event {
    int64_t at_ms;
    uint64_t order; /* among events of the same time: random, or as sent */
    void (*run)(sim *s, struct sim_event *event);
    uint64_t a, b, c, d;
    ms_free_item free;
    ms_note note;
    void *data; /* freed with the event */
} sim_event;

/* A value: what one put writes.  A copy gives the same value another version. */
typedef struct sim_value {
    uint32_t key;
    uint64_t versions[16]; /* the put's, then those of copies */
    uint32_t version_count;
    uint32_t page_count;
    uint64_t group;
    uint8_t flags;    /* of the put: ms_object_flag */
    bool is_open;     /* granted, not ended, at the present leader */
    bool is_acked;    /* its client was told that it is stored */
    bool may_be_gone; /* evicted, expired, replaced, removed, or its memory was lost */
    bool is_removed;  /* a remove or upsert that covers it was acknowledged ... */
    bool is_by_stone; /* ... where a tombstone may have stood in for a holder */
    int64_t removed_ms;
    int64_t expires_ms;     /* 0: never */
    int64_t hard_pinned_ms; /* acknowledged then; 0: not, or no longer for sure */
} sim_value;

typedef struct sim_record {
    bool is_there;
    uint32_t key;
    uint64_t version, size, note, expiry_ms, group;
    ms_hash parent;
    uint32_t page_count, checksum;
    uint16_t part, part_count;
    uint8_t flags;
} sim_record;

typedef struct sim_use {
    uint64_t version;    /* of the extent that begins at this page ... */
    uint32_t page_count; /* ... and its pages */
    uint32_t copies, views;
} sim_use;

typedef struct sim_server {
    bool is_up;
    uint32_t epoch; /* adopted, persisted */
    uint32_t incarnation;
    uint32_t memory; /* raised by a reboot: what was mapped before is gone */
    uint32_t ready;
    uint64_t words[SIM_PAGES];
    uint32_t payload[SIM_PAGES]; /* number of a value + 1 */
    sim_record records[SIM_PAGES];
    sim_use uses[SIM_PAGES];
    bool owes_freed[SIM_PAGES];
    uint64_t owed_version[SIM_PAGES];
    uint32_t owed_count[SIM_PAGES];
    uint64_t fenced[SIM_FENCED];
    uint32_t fenced_count;
    uint64_t owner[SIM_PAGES]; /* ghost: version to which a leader last granted the page */
    uint32_t connection;       /* number of the present one; 0: none */
} sim_server;

typedef struct sim_view {
    bool is_open;
    uint32_t server, memory, client;
    uint64_t version;
    uint32_t value;
    ms_extent extent;
} sim_view;

typedef struct sim_location {
    bool is_there;
    int64_t expires_ms, looked_up_ms;
    uint64_t version, size;
    uint32_t replica_count;
    struct {
        uint32_t server, incarnation, memory, extent_count;
        ms_extent extents[SIM_PAGES];
    } replicas[SIM_SERVERS];
} sim_location;

typedef enum {
    SIM_IDLE = 0,
    SIM_PUT_PARKED,
    SIM_PUT_WRITING,
    SIM_PUT_SEALING,
    SIM_PUT_ENDING, /* relayed, or answered later */
    SIM_WAITING,    /* for an ANSWER */
    SIM_READING,
} sim_phase;

typedef struct sim_client {
    uint32_t life; /* raised when it dies: events of a former life do nothing */
    bool is_alive;
    int64_t frozen_until_ms;
    uint64_t session;
    uint64_t operation; /* number of the present one */
    sim_phase phase;
    uint32_t key, value;
    bool is_upsert, is_rdma, is_relayed, is_remove, is_annotate, is_put, pins_hard;
    uint64_t version; /* of its grant */
    sim_location grant;
    uint32_t outstanding; /* writes or seals on their way */
    bool has_failed;
    uint32_t epoch;      /* of the leader that it asked */
    uint32_t sealing;    /* replica and part that is being sealed: replica * SIM_PAGES + part */
    uint64_t mask;       /* replicas that are sealed whole */
    uint32_t annotation; /* s->annotations[key] when it asked */
    uint64_t put_group;
    uint8_t put_flags;
    bool covers[4096]; /* values that the remove or upsert under way covers */
    /* reading */
    sim_location read;
    uint32_t replica, pages_read;
    uint32_t got[SIM_PAGES];
    bool removed_at_start[4096];
    sim_location cache[SIM_KEYS];
} sim_client;

typedef struct sim_pin {
    bool is_there;
    uint32_t key, epoch;
    uint64_t session;
    int64_t until_ms;
} sim_pin;

typedef struct sim_leader {
    md_core *core; /* NULL: none at present */
    uint32_t epoch;
    bool serves;
    int64_t began_ms;
    uint64_t event_next;
    uint32_t connections[SIM_SERVERS];
} sim_leader;

typedef struct sim_tombstone {
    uint32_t key;
    uint64_t version;
} sim_tombstone;

/* How bad the world is: drawn from the seed. */
typedef struct sim_weather {
    uint32_t lost_permille, doubled_permille, slow_permille;
    uint32_t freeze_permille, die_permille;
    uint32_t server_fault_ms, election_ms; /* mean time between; 0: never */
    uint32_t view_permille, rdma_permille, upsert_permille, change_permille;
    uint32_t operator_ms, repair_delay_ms, copy_bytes_per_s;
    uint32_t server_count, pages, policy, value_pages_max;
    bool reboots;
    bool damages; /* some restarts find some of the records unreadable */
} sim_weather;

struct sim {
    uint64_t seed, random;
    bool is_traced;
    int64_t now_ms, end_ms;
    bool is_healing;
    sim_weather weather;
    sim_event *events;
    uint32_t event_count, event_capacity;
    uint64_t event_order, steps;
    uint8_t secret[MS_SECRET_BYTES];
    ms_hash hashes[SIM_KEYS];
    char keys[SIM_KEYS][8];
    sim_leader leader;
    sim_server servers[SIM_SERVERS];
    sim_client clients[SIM_CLIENTS];
    sim_view views[SIM_VIEWS];
    sim_pin pins[SIM_PINS];
    sim_value *values;
    uint32_t value_count;
    uint32_t epoch; /* the coordinator's */
    sim_tombstone *tombstones;
    uint32_t tombstone_count;
    uint64_t stones_settled;   /* times that the coordinator was told to forget all of them */
    uint64_t stones[SIM_KEYS]; /* tombstones asked for, a key */
    uint32_t annotations[SIM_KEYS];
    uint32_t connections;
    /* what happened, to see that a run is not empty */
    uint64_t drains[SIM_SERVERS]; /* at the coordinator: their tasks, or 0 */
    uint64_t drains_begun, task_copies;
    uint64_t puts_acked, reads_hit, reads_gone, removes_acked, copies_done, views_opened, elections,
        kills, writes_cut, records_damaged;
    char failure[400];
};

/* Runs a seed; true: all properties held.  Else s->failure says which did not. */
bool sim_run(sim *s, uint64_t seed);
void sim_close(sim *s);

/* ---- world.c ---- */
/* Printed when SIM_TRACE is set in the environment. */
void sim_trace(const sim *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_fail(sim *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t sim_random(sim *s, uint64_t below);
bool sim_chance(sim *s, uint32_t permille);
/* After `delay_ms`; data must be from malloc. */
sim_event *sim_at(sim *s, int64_t delay_ms, void (*run)(sim *s, sim_event *event));
int64_t sim_delay(sim *s);
/* Over the network: late, perhaps lost or doubled.  NULL: lost. */
void sim_send(sim *s, const sim_event *message);
md_now sim_now(const sim *s);

void sim_run_for(sim *s, int64_t ms);

/* ---- store.c ---- */
void sim_store_start(sim *s, uint32_t server, bool is_reboot);
void sim_store_kill(sim *s, uint32_t server);
void sim_store_dial(sim *s, uint32_t server);
void sim_store_disconnect(sim *s, uint32_t server);
bool sim_store_accepts_writer(const sim *s, uint32_t server, uint64_t session, uint32_t epoch,
                              uint32_t incarnation);
bool sim_store_write_begin(sim *s, uint32_t server, uint64_t session, uint32_t epoch,
                           uint32_t incarnation, uint64_t version, ms_extent extent);
void sim_store_write_land(sim *s, uint32_t server, uint64_t version, uint32_t page, uint32_t value);
void sim_store_use_end(sim *s, uint32_t server, uint32_t first_page, bool is_view);
ms_status sim_store_seal(sim *s, uint32_t server, uint64_t session, uint32_t epoch,
                         uint32_t incarnation, const sim_record *record, uint32_t page);
void sim_store_free(sim *s, sim_event *message);
void sim_store_adopt(sim *s, sim_event *message);
void sim_store_note(sim *s, sim_event *message);
void sim_store_copy(sim *s, sim_event *message);

/* ---- leader.c ---- */
void sim_leader_elect(sim *s);
void sim_leader_depose(sim *s);
void sim_leader_drain(sim *s);
bool sim_leader_serves(const sim *s);
void sim_leader_join(sim *s, uint32_t server);
void sim_leader_gone(sim *s, uint32_t server);

/* ---- client.c ---- */
void sim_client_start(sim *s, uint32_t client);
bool sim_session_is_alive(const sim *s, uint64_t session);
void sim_client_answer(sim *s, uint64_t waiter, ms_status status, uint64_t version);
void sim_client_relay(sim *s, sim_event *message);
void sim_views_close(sim *s);
void sim_views_lost(sim *s, uint32_t server);

/* ---- oracle.c ---- */
uint32_t sim_value_of(const sim *s, uint64_t version); /* + 1; 0: none */
void sim_oracle_grant(sim *s, uint32_t value, const sim_location *grant);
void sim_oracle_event(sim *s, const ms_event *event, uint32_t key);
void sim_oracle_removing(sim *s, uint32_t client, uint32_t key, bool is_upsert);
void sim_oracle_removed(sim *s, uint32_t client, uint32_t key);
void sim_oracle_read(sim *s, uint32_t client, uint32_t key);
void sim_oracle_reboot(sim *s, uint32_t server);
void sim_oracle_new_leader(sim *s);
void sim_oracle_acked_are_there(sim *s);
void sim_oracle_all_is_free(sim *s);

#endif
