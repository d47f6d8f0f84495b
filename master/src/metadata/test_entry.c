/* See md_test.h. */
#include "md_test.h"

#include <stdlib.h>
#include <string.h>

#include "md.h"
#include "ms_hash.h"

#define ANSWERS_MAX 256u
#define FREES_MAX 65536u
#define TICK_MS 100

struct md_test {
    md_core *core;
    md_config config;
    md_now now;
    int holds_frees;
    uint32_t answer_count, free_count;
    struct {
        uint64_t waiter, version;
        ms_status status;
    } answers[ANSWERS_MAX];
    struct {
        uint32_t server;
        ms_free_item item;
    } frees[FREES_MAX];
    uint8_t buffer[1 << 20];
};

static ms_hash hash_of(const md_test *test, const uint8_t *key, size_t key_length) {
    return ms_hash_key(test->config.secret, "default", 7, key, key_length);
}

static void carry_out(md_test *test, const md_effect *effect) {
    switch (effect->kind) {
    case MD_EFFECT_NONE:
        break;
    case MD_EFFECT_TASK:
        break;
    case MD_EFFECT_SESSION_ENDED:
        break;
    case MD_EFFECT_ANSWER:
        if (test->answer_count == ANSWERS_MAX) /* the oldest goes */
            memmove(test->answers, test->answers + 1,
                    --test->answer_count * sizeof test->answers[0]);
        test->answers[test->answer_count].waiter = effect->waiter;
        test->answers[test->answer_count].version = effect->version;
        test->answers[test->answer_count++].status = effect->status;
        break;
    case MD_EFFECT_FREE:
        if (!test->holds_frees || test->free_count == FREES_MAX) {
            md_freed(test->core, test->now, effect->server, 1, &effect->free);
        } else {
            test->frees[test->free_count].server = effect->server;
            test->frees[test->free_count++].item = effect->free;
        }
        break;
    case MD_EFFECT_NOTE:
        md_noted(test->core, test->now, effect->waiter, effect->server, MS_OK);
        break;
    case MD_EFFECT_COPY:
        md_copied(test->core, test->now, effect->task, MS_OK);
        break;
    case MD_EFFECT_TOMBSTONE:
        md_tombstoned(test->core, test->now, effect->hash, effect->version, MS_OK);
        break;
    }
}

static void drain(md_test *test) {
    md_effect effect;
    while (md_next_effect(test->core, &effect))
        carry_out(test, &effect);
}

md_test *md_test_open(int policy, uint32_t session_timeout_ms, uint32_t soft_pin_ms) {
    md_test *test = calloc(1, sizeof *test);
    if (test == NULL)
        return NULL;
    md_config_default(&test->config);
    test->config.policy = (md_policy)policy;
    test->config.session_timeout_ms = session_timeout_ms;
    test->config.soft_pin_ms = soft_pin_ms;
    test->config.evict_above_permille = test->config.evict_below_permille = 1000;
    test->config.events_max = 256;
    test->config.copy_bytes_per_s = 0;
    test->now = (md_now){.now_ms = 1000000, .wall_ms = 1700000000000};
    if (md_open(&test->config, &test->core) != MS_OK) {
        free(test);
        return NULL;
    }
    return test;
}

void md_test_close(md_test *test) {
    if (test == NULL)
        return;
    md_close(test->core);
    free(test);
}

void md_test_advance(md_test *test, int64_t ms) {
    while (ms > 0) {
        int64_t step = ms < TICK_MS ? ms : TICK_MS;
        test->now.now_ms += step;
        test->now.wall_ms += step;
        ms -= step;
        md_tick(test->core, test->now);
        drain(test);
    }
}

int md_test_check(const md_test *test) { return md_check(test->core); }

int md_test_add_server(md_test *test, uint32_t node, uint64_t pages) {
    ms_server_info info = {.incarnation = 1, .state = MS_MEMBER_READY, .segment_count = 1};
    ms_segment_info segment = {.page_count = pages, .page_count_ready = pages};
    uint32_t server;
    memcpy(info.node_id, &node, sizeof node);
    info.node_id[15] = 1;
    if (md_server_join(test->core, test->now, &info, "", &segment, &server) != MS_OK ||
        md_inventory_end(test->core, test->now, server, 1) != MS_OK)
        return -1;
    drain(test);
    return (int)server;
}

void md_test_hold_frees(md_test *test, int hold) {
    test->holds_frees = hold;
    if (hold)
        return;
    uint32_t count = test->free_count;
    test->free_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        md_freed(test->core, test->now, test->frees[i].server, 1, &test->frees[i].item);
        drain(test);
    }
}

uint64_t md_test_session(md_test *test) {
    uint64_t session = 0;
    md_session_open(test->core, test->now, (const uint8_t *)"default", 7, &session);
    return session;
}

void md_test_session_end(md_test *test, uint64_t session) {
    md_session_close(test->core, test->now, session);
    drain(test);
}

int md_test_put_start(md_test *test, uint64_t session, const uint8_t *key, size_t key_length,
                      uint64_t size, uint32_t flags, uint32_t replicas, uint32_t ttl_ms,
                      const uint8_t *parent, size_t parent_length, uint64_t group,
                      uint32_t deadline_ms, uint64_t waiter, uint64_t *version) {
    ms_put_item item = {.hash = hash_of(test, key, key_length),
                        .size = size,
                        .ttl_ms = ttl_ms,
                        .deadline_ms = deadline_ms,
                        .group = group,
                        .key_length = (uint16_t)key_length,
                        .replica_count = (uint8_t)replicas,
                        .flags = flags};
    if (parent_length > 0)
        item.parent = hash_of(test, parent, parent_length);
    ms_writer out = ms_writer_fixed(test->buffer, sizeof test->buffer);
    ms_status status = md_put_start(test->core, test->now, session, &item, key, waiter, &out);
    ms_location_view grant;
    ms_reader reader = ms_reader_of(out.data, out.length);
    if (status == MS_OK)
        *version = ms_reader_location(&reader, &grant) ? grant.head.version : 0;
    drain(test);
    return (int)status;
}

int md_test_put_end(md_test *test, uint64_t session, const uint8_t *key, size_t key_length,
                    uint64_t version, uint64_t mask, uint64_t waiter) {
    ms_end_item item = {
        .hash = hash_of(test, key, key_length), .version = version, .replica_mask = mask};
    ms_status status = md_put_end(test->core, test->now, session, &item, waiter);
    drain(test);
    return (int)status;
}

int md_test_revoke(md_test *test, uint64_t session, const uint8_t *key, size_t key_length,
                   uint64_t version) {
    ms_end_item item = {.hash = hash_of(test, key, key_length), .version = version};
    ms_status status = md_revoke(test->core, test->now, session, &item);
    drain(test);
    return (int)status;
}

int md_test_remove(md_test *test, const uint8_t *key, size_t key_length, int force,
                   uint64_t waiter) {
    ms_status status = md_remove(test->core, test->now, 0, 0, hash_of(test, key, key_length), key,
                                 key_length, force != 0, waiter);
    drain(test);
    return (int)status;
}

int md_test_exists(md_test *test, const uint8_t *key, size_t key_length) {
    ms_hash hash = hash_of(test, key, key_length);
    uint8_t there = 0;
    md_exists(test->core, test->now, &hash, 1, &there);
    drain(test);
    return there;
}

int md_test_lookup(md_test *test, const uint8_t *key, size_t key_length, uint64_t *size,
                   uint64_t *version, uint32_t *replicas) {
    ms_hash hash = hash_of(test, key, key_length);
    ms_writer out = ms_writer_fixed(test->buffer, sizeof test->buffer);
    ms_status status = md_lookup(test->core, test->now, &hash, 1, &out);
    ms_reader reader = ms_reader_of(out.data, out.length);
    ms_location_view location;
    if (status == MS_OK && (ms_reader_list(&reader, sizeof(ms_location)) != 1 ||
                            !ms_reader_location(&reader, &location) || !ms_reader_is_done(&reader)))
        status = MS_BAD_FRAME;
    drain(test);
    if (status != MS_OK)
        return (int)status;
    *size = location.head.size;
    *version = location.head.version;
    *replicas = location.head.replica_count;
    return (int)location.head.status;
}

void md_test_touch(md_test *test, const uint8_t *key, size_t key_length) {
    ms_hash hash = hash_of(test, key, key_length);
    md_touch(test->core, test->now, &hash, 1);
    drain(test);
}

int md_test_match_prefix(md_test *test, uint64_t session, const uint8_t *keys, size_t keys_length,
                         uint32_t count, int pin, uint32_t pin_deadline_ms) {
    ms_hash *hashes = calloc(count + 1, sizeof *hashes);
    if (hashes == NULL)
        return -1 - MS_NO_MEMORY;
    ms_reader keys_in = ms_reader_of(keys, keys_length);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t length = ms_reader_u32(&keys_in);
        const uint8_t *key = ms_reader_bytes(&keys_in, length);
        if (key != NULL)
            hashes[i] = hash_of(test, key, length);
    }
    ms_match match = {.pin = pin != 0, .pin_deadline_ms = pin_deadline_ms, .count = count};
    ms_writer out = ms_writer_fixed(test->buffer, sizeof test->buffer);
    ms_status status = md_match_prefix(test->core, test->now, session, &match, hashes, &out);
    free(hashes);
    ms_reader reader = ms_reader_of(out.data, out.length);
    uint32_t matched = status == MS_OK ? ms_reader_list(&reader, sizeof(ms_location)) : 0;
    drain(test);
    return status == MS_OK ? (int)matched : -1 - (int)status;
}

int md_test_pin(md_test *test, uint64_t session, const uint8_t *key, size_t key_length,
                uint32_t deadline_ms) {
    ms_status status =
        md_pin(test->core, test->now, session, hash_of(test, key, key_length), deadline_ms);
    drain(test);
    return (int)status;
}

int md_test_lease(md_test *test, uint64_t session, const uint8_t *key, size_t key_length,
                  uint32_t lease_ms) {
    ms_status status =
        md_lease(test->core, test->now, session, hash_of(test, key, key_length), lease_ms);
    drain(test);
    return (int)status;
}

int md_test_pins(md_test *test, uint64_t session, const uint8_t *key, size_t key_length,
                 uint32_t count, uint32_t deadline_ms) {
    ms_status status =
        md_pins(test->core, test->now, session, hash_of(test, key, key_length), count, deadline_ms);
    drain(test);
    return (int)status;
}

int md_test_unpin(md_test *test, uint64_t session, const uint8_t *key, size_t key_length) {
    ms_status status = md_unpin(test->core, test->now, session, hash_of(test, key, key_length));
    drain(test);
    return (int)status;
}

int md_test_annotate(md_test *test, const uint8_t *key, size_t key_length, uint32_t fields,
                     uint32_t flags, uint64_t ttl_ms) {
    const uint64_t waiter = UINT64_MAX;
    ms_annotate annotate = {.fields = fields, .flags = flags, .ttl_ms = ttl_ms};
    ms_status status = md_annotate(test->core, test->now, 0, hash_of(test, key, key_length), key,
                                   key_length, &annotate, waiter);
    drain(test);
    uint64_t version;
    return status == MS_PENDING ? md_test_answer(test, waiter, &version) : (int)status;
}

int md_test_change_replica(md_test *test, const uint8_t *key, size_t key_length,
                           uint32_t replica_count) {
    const uint64_t waiter = UINT64_MAX;
    ms_change_replica change = {.replica_count = replica_count};
    ms_status status = md_change_replica(test->core, test->now, 0, hash_of(test, key, key_length),
                                         key, key_length, &change, waiter);
    drain(test);
    uint64_t version;
    return status == MS_PENDING ? md_test_answer(test, waiter, &version) : (int)status;
}

static void tasks_go_on(md_test *test) {
    for (uint32_t i = 0; i < 64; i++) {
        md_tasks_step(test->core, test->now);
        drain(test);
    }
}

int md_test_drain(md_test *test, uint32_t server, int drains) {
    uint64_t task = 0;
    ms_status status = drains ? md_server_drain(test->core, test->now, server, &task)
                              : md_server_undrain(test->core, test->now, server);
    drain(test);
    tasks_go_on(test);
    return (int)status;
}

int md_test_replicate_all(md_test *test, uint32_t replica_count) {
    ms_task_order order = {.kind = MS_TASK_REPLICATE, .replica_count = replica_count};
    uint64_t task;
    ms_status status = md_task_start(test->core, test->now, 0, &order, NULL, &task);
    drain(test);
    tasks_go_on(test);
    return (int)status;
}

int md_test_answer(md_test *test, uint64_t waiter, uint64_t *version) {
    for (uint32_t i = 0; i < test->answer_count; i++)
        if (test->answers[i].waiter == waiter) {
            ms_status status = test->answers[i].status;
            *version = test->answers[i].version;
            memmove(test->answers + i, test->answers + i + 1,
                    (--test->answer_count - i) * sizeof test->answers[0]);
            return (int)status;
        }
    return MS_PENDING;
}

typedef struct prefix {
    const uint8_t *bytes;
    size_t length;
} prefix;

static bool has_prefix(void *context, const uint8_t *key, size_t length) {
    const prefix *wanted = context;
    return length >= wanted->length &&
           (wanted->length == 0 || memcmp(key, wanted->bytes, wanted->length) == 0);
}

int64_t md_test_list(md_test *test, const uint8_t *prefix_bytes, size_t prefix_length,
                     uint64_t *cursor, uint32_t limit, uint32_t visit_max, uint8_t *out_bytes,
                     size_t capacity) {
    prefix wanted = {.bytes = prefix_bytes, .length = prefix_length};
    ms_writer listed = ms_writer_fixed(test->buffer, sizeof test->buffer),
              out = ms_writer_fixed(out_bytes, capacity);
    uint32_t count;
    if (md_list(test->core, test->now, 0, has_prefix, &wanted, cursor, limit, visit_max, &count,
                &listed) != MS_OK)
        return -1;
    drain(test);
    ms_reader reader = ms_reader_of(listed.data, listed.length);
    for (uint32_t i = 0; i < count; i++) {
        ms_list_item_view item;
        if (!ms_reader_list_item(&reader, &item))
            return -1;
        ms_writer_u32(&out, item.head.key_length);
        ms_writer_bytes(&out, item.key, item.head.key_length);
    }
    return ms_reader_is_done(&reader) && out.status == MS_OK ? (int64_t)out.length : -1;
}

int64_t md_test_events(md_test *test, uint64_t *sequence, uint8_t *out_bytes, size_t capacity) {
    ms_events asked = {.sequence = *sequence, .epoch = test->config.epoch, .limit = UINT32_MAX};
    ms_writer events = ms_writer_fixed(test->buffer, sizeof test->buffer),
              out = ms_writer_fixed(out_bytes, capacity);
    if (md_events(test->core, test->now, &asked, &events) != MS_OK)
        return -1;
    ms_reader reader = ms_reader_of(events.data, events.length);
    ms_events_answer head = {0};
    MS_READER_STRUCT(&reader, &head);
    for (uint32_t i = 0; i < head.count; i++) {
        ms_event_view event;
        if (!ms_reader_event(&reader, &event))
            return -1;
        ms_writer_u32(&out, event.head.kind);
        ms_writer_u32(&out, event.head.key_length);
        ms_writer_bytes(&out, event.key, event.head.key_length);
    }
    *sequence = head.sequence_next;
    return ms_reader_is_done(&reader) && out.status == MS_OK ? (int64_t)out.length : -1;
}

uint64_t md_test_counter(const md_test *test, const char *name) {
    for (size_t i = 0; i < md_counter_count(); i++)
        if (strcmp(md_counter_name(i), name) == 0)
            return md_counter(test->core, i);
    return UINT64_MAX;
}

uint64_t md_test_pages_free(const md_test *test, uint32_t server) {
    md_server_view view;
    return md_server_get(test->core, server, &view) == MS_OK ? view.pages_free : UINT64_MAX;
}
