/* A core with servers that answer at once, for the C tests of the metadata core.
 *
 * Effects are carried out as a faultless network and faultless servers would, unless a test holds them back.
 */
#ifndef METADATA_HARNESS_H
#define METADATA_HARNESS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "md.h"
#include "ms_hash.h"

#define EXPECT(condition)                                                                          \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

#define HARNESS_ANSWERS 4096u
#define HARNESS_FREES 65536u

typedef struct harness {
    md_core *core;
    md_config config;
    md_now now;
    uint64_t session;
    bool holds_frees;      /* FREEs are kept in `frees` */
    bool clears_only;      /* FREE is answered by CLEARED: a view is open */
    bool holds_tombstones; /* not answered */
    bool holds_copies;
    bool holds_notes;
    ms_status tombstone_status, copy_status, note_status;
    uint32_t free_count, tombstone_count, copy_count, note_count, ended_count;
    struct {
        uint32_t server;
        ms_free_item item;
    } frees[HARNESS_FREES];
    struct {
        uint64_t waiter, version;
        ms_status status;
    } answers[HARNESS_ANSWERS];
    uint32_t answer_count;
    uint64_t last_copy, last_note;
    uint32_t last_note_server;
    uint64_t last_ended;
    md_effect last_tombstone;
    uint32_t incarnations[64];
    uint8_t buffer[1 << 20];
} harness;

static inline void harness_drain(harness *h) {
    md_effect effect;
    while (md_next_effect(h->core, &effect)) {
        switch (effect.kind) {
        case MD_EFFECT_NONE:
            break;
        case MD_EFFECT_ANSWER:
            EXPECT(h->answer_count < HARNESS_ANSWERS);
            h->answers[h->answer_count].waiter = effect.waiter;
            h->answers[h->answer_count].version = effect.version;
            h->answers[h->answer_count++].status = effect.status;
            break;
        case MD_EFFECT_FREE:
            EXPECT(h->free_count < HARNESS_FREES);
            h->frees[h->free_count].server = effect.server;
            h->frees[h->free_count++].item = effect.free;
            if (h->clears_only)
                md_cleared(h->core, h->now, effect.server, h->incarnations[effect.server],
                           &effect.free);
            else if (!h->holds_frees)
                md_freed(h->core, h->now, effect.server, h->incarnations[effect.server],
                         &effect.free);
            if (!h->holds_frees)
                h->free_count = 0;
            break;
        case MD_EFFECT_NOTE:
            h->note_count++;
            h->last_note = effect.waiter;
            h->last_note_server = effect.server;
            if (!h->holds_notes)
                md_noted(h->core, h->now, effect.waiter, effect.server, h->note_status);
            break;
        case MD_EFFECT_COPY:
            h->copy_count++;
            h->last_copy = effect.task;
            if (!h->holds_copies)
                md_copied(h->core, h->now, effect.task, h->copy_status);
            break;
        case MD_EFFECT_TOMBSTONE:
            h->tombstone_count++;
            h->last_tombstone = effect;
            if (!h->holds_tombstones)
                md_tombstoned(h->core, h->now, effect.hash, effect.version, h->tombstone_status);
            break;
        case MD_EFFECT_TASK:
            break;
        case MD_EFFECT_SESSION_ENDED:
            h->ended_count++;
            h->last_ended = effect.session;
            break;
        }
    }
}

/* Lets the FREEs that were held back be FREED (or only CLEARED). */
static inline void harness_free_all(harness *h, bool only_clear) {
    for (uint32_t i = 0; i < h->free_count; i++) {
        uint32_t server = h->frees[i].server;
        if (only_clear)
            md_cleared(h->core, h->now, server, h->incarnations[server], &h->frees[i].item);
        else
            md_freed(h->core, h->now, server, h->incarnations[server], &h->frees[i].item);
    }
    if (!only_clear)
        h->free_count = 0;
    harness_drain(h);
}

static inline void harness_advance(harness *h, int64_t ms) {
    int64_t end = h->now.now_ms + ms;
    while (h->now.now_ms < end) {
        int64_t step = end - h->now.now_ms < 100 ? end - h->now.now_ms : 100;
        h->now.now_ms += step;
        h->now.wall_ms += step;
        md_tick(h->core, h->now);
        harness_drain(h);
    }
}

static inline void harness_check(harness *h) {
    int line = md_check(h->core);
    if (line != 0) {
        fprintf(stderr, "check.c:%d: invariant broken\n", line);
        exit(1);
    }
}

static inline ms_status harness_join_as(harness *h, uint32_t node, uint32_t incarnation,
                                        uint64_t pages, uint64_t pages_ready, const char *host,
                                        uint32_t *server) {
    ms_server_info info = {
        .incarnation = incarnation, .state = MS_MEMBER_READY, .segment_count = 1};
    info.node_id[0] = (uint8_t)(node + 1);
    ms_segment_info segment = {.page_count = pages, .page_count_ready = pages_ready};
    ms_status status = md_server_join(h->core, h->now, &info, host, &segment, server);
    if (status == MS_OK)
        h->incarnations[*server] = incarnation;
    return status;
}

static inline uint32_t harness_add_server(harness *h, uint32_t node, uint64_t pages) {
    uint32_t server;
    EXPECT(harness_join_as(h, node, 1, pages, pages, "", &server) == MS_OK);
    EXPECT(md_inventory_end(h->core, h->now, server, 1) == MS_OK);
    harness_drain(h);
    return server;
}

static inline void harness_open(harness *h, const md_config *config) {
    memset(h, 0, sizeof *h);
    h->config = *config;
    for (size_t i = 0; i < MS_SECRET_BYTES; i++)
        h->config.secret[i] = (uint8_t)(i * 7 + 3);
    h->now = (md_now){.now_ms = 1000000, .wall_ms = 1700000000000};
    EXPECT(md_open(&h->config, &h->core) == MS_OK);
    EXPECT(md_session_open(h->core, h->now, (const uint8_t *)"default", 7, &h->session) == MS_OK);
}

static inline void harness_open_default(harness *h) {
    md_config config;
    md_config_default(&config);
    harness_open(h, &config);
}

static inline void harness_close(harness *h) {
    harness_check(h);
    md_close(h->core);
}

static inline ms_hash harness_hash(harness *h, const char *key) {
    return ms_hash_key(h->config.secret, "default", 7, key, strlen(key));
}

static inline ms_put_item harness_item(harness *h, const char *key, uint64_t size) {
    return (ms_put_item){.hash = harness_hash(h, key),
                         .size = size,
                         .key_length = (uint16_t)strlen(key),
                         .replica_count = 1,
                         .deadline_ms = 10000};
}

static inline ms_status harness_start_item(harness *h, const char *key, const ms_put_item *item,
                                           uint64_t waiter, ms_location_view *grant) {
    ms_writer out = ms_writer_fixed(h->buffer, sizeof h->buffer);
    ms_status status =
        md_put_start(h->core, h->now, h->session, item, (const uint8_t *)key, waiter, &out);
    if (status == MS_OK) {
        ms_reader reader = ms_reader_of(out.data, out.length);
        EXPECT(ms_reader_location(&reader, grant) && ms_reader_is_done(&reader));
    }
    harness_drain(h);
    return status;
}

static inline ms_status harness_start(harness *h, const char *key, uint64_t size,
                                      ms_location_view *grant) {
    ms_put_item item = harness_item(h, key, size);
    return harness_start_item(h, key, &item, 1, grant);
}

static inline ms_status harness_end(harness *h, const char *key, uint64_t version, uint64_t mask,
                                    uint64_t waiter) {
    ms_end_item end = {.hash = harness_hash(h, key), .version = version, .replica_mask = mask};
    ms_status status = md_put_end(h->core, h->now, h->session, &end, waiter);
    harness_drain(h);
    return status;
}

static inline ms_status harness_put_item(harness *h, const char *key, const ms_put_item *item) {
    ms_location_view grant;
    ms_status status = harness_start_item(h, key, item, 1, &grant);
    if (status != MS_OK)
        return status;
    return harness_end(h, key, grant.head.version, UINT64_MAX, 2);
}

static inline ms_status harness_put(harness *h, const char *key, uint64_t size) {
    ms_put_item item = harness_item(h, key, size);
    return harness_put_item(h, key, &item);
}

static inline bool harness_exists(harness *h, const char *key) {
    ms_hash hash = harness_hash(h, key);
    uint8_t there;
    md_exists(h->core, h->now, &hash, 1, &there);
    harness_drain(h);
    return there != 0;
}

/* The location, or its status. */
static inline ms_status harness_lookup(harness *h, const char *key, ms_location_view *location) {
    ms_hash hash = harness_hash(h, key);
    ms_writer out = ms_writer_fixed(h->buffer, sizeof h->buffer);
    EXPECT(md_lookup(h->core, h->now, &hash, 1, &out) == MS_OK);
    ms_reader reader = ms_reader_of(out.data, out.length);
    EXPECT(ms_reader_list(&reader, sizeof(ms_location)) == 1);
    EXPECT(ms_reader_location(&reader, location) && ms_reader_is_done(&reader));
    harness_drain(h);
    return (ms_status)location->head.status;
}

static inline ms_status harness_remove(harness *h, const char *key, bool force, uint64_t waiter) {
    ms_status status = md_remove(h->core, h->now, 0, h->session, harness_hash(h, key),
                                 (const uint8_t *)key, strlen(key), force, waiter);
    harness_drain(h);
    return status;
}

static inline ms_status harness_answer_of(harness *h, uint64_t waiter) {
    for (uint32_t i = 0; i < h->answer_count; i++)
        if (h->answers[i].waiter == waiter)
            return h->answers[i].status;
    return MS_PENDING;
}

static inline uint64_t harness_counter(harness *h, const char *name) {
    for (size_t i = 0; i < md_counter_count(); i++)
        if (strcmp(md_counter_name(i), name) == 0)
            return md_counter(h->core, i);
    EXPECT(!"a counter of that name");
    return 0;
}

#endif
