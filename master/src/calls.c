/* The methods that are answered within their call. */
#include "service.h"

#include <stdlib.h>
#include <string.h>

/* The hashes of a frame where they lie: bodies are 8-aligned, and so are their arrays. */
static const ms_hash *hashes_of(const ms_array *hashes) {
    return (const ms_hash *)(const void *)hashes->items;
}

/* A body that is a list of hashes; NULL: the call is settled. */
static const ms_hash *read_hashes(ma_call *call, uint32_t *count) {
    ms_array hashes;
    if (!ms_read_array(call->request->body, call->request->header->body_length, sizeof(ms_hash),
                       &hashes)) {
        ma_fail_bad_frame(call);
        return NULL;
    }
    *count = hashes.count;
    return hashes_of(&hashes);
}

void ma_call_exists(ma_call *call) {
    uint32_t count;
    const ms_hash *hashes = read_hashes(call, &count);
    if (hashes == NULL)
        return;
    /* The payload is sent after the lock is released, from this memory: the answer's writer keeps it
     * without an allocation a call. */
    ms_writer *answer = &call->master->answer;
    uint8_t *there = ms_writer_space(answer, count);
    if (there == NULL && count != 0) {
        ma_done(call);
        return;
    }
    md_exists(call->master->core, call->master->now, hashes, count, there);
    call->is_payload = true;
}

void ma_call_lookup(ma_call *call) {
    uint32_t count;
    const ms_hash *hashes = read_hashes(call, &count);
    if (hashes == NULL)
        return;
    bool is_peek = (call->request->header->flags & MS_FLAG_PEEK) != 0;
    ms_status status = (is_peek ? md_peek : md_lookup)(call->master->core, call->master->now,
                                                       hashes, count, &call->master->answer);
    if (status != MS_OK)
        ma_fail(call, status, "the look-up of %u keys failed: %s", (unsigned)count,
                ms_status_name(status));
    else
        ma_done(call);
}

static bool read_match(ma_call *call, ms_match_view *match) {
    if (ms_read_match(call->request->body, call->request->header->body_length, match))
        return true;
    ma_fail_bad_frame(call);
    return false;
}

/* What pins and unpins is counted by the client; it may have given up on this, and said meanwhile what it holds. */
static bool is_too_late(ma_call *call, const ms_match *head) {
    if (head->number == 0 || head->number > call->session->pins_number)
        return false;
    ma_fail(call, MS_BAD_REQUEST, "request %llu comes after PINS %llu, which says what is pinned",
            (unsigned long long)head->number, (unsigned long long)call->session->pins_number);
    return true;
}

void ma_call_match_prefix(ma_call *call) {
    ms_match_view match;
    if (!read_match(call, &match) || is_too_late(call, &match.head))
        return;
    if (match.head.pin > MS_PIN_HOLD) {
        ma_fail(call, MS_BAD_REQUEST, "MATCH_PREFIX says pin = 0 or 1");
        return;
    }
    ms_status status =
        md_match_prefix(call->master->core, call->master->now, call->session->id, &match.head,
                        hashes_of(&match.hashes), &call->master->answer);
    if (status == MS_SESSION_LOST)
        ma_fail(call, status, "this session has ended: open a new one");
    else if (status != MS_OK)
        ma_fail(call, status, "the prefix of %u keys cannot be matched: %s",
                (unsigned)match.hashes.count, ms_status_name(status));
    else
        ma_done(call);
}

void ma_call_touch(ma_call *call) {
    uint32_t count;
    const ms_hash *hashes = read_hashes(call, &count);
    if (hashes != NULL)
        md_touch(call->master->core, call->master->now, hashes, count);
}

void ma_call_pin(ma_call *call) {
    ms_match_view match;
    if (!read_match(call, &match) || is_too_late(call, &match.head))
        return;
    bool is_lease = match.head.pin == MS_PIN_LEASE;
    if (match.head.pin != MS_PIN_HOLD && (!is_lease || match.head.pin_deadline_ms == 0)) {
        ma_fail(call, MS_BAD_REQUEST, "PIN says pin = 1, or 2 and until when");
        return;
    }
    ma_master *master = call->master;
    ms_writer_list(&master->answer, match.hashes.count);
    for (uint32_t i = 0; i < match.hashes.count; i++)
        ms_writer_u32(&master->answer,
                      (is_lease ? md_lease : md_pin)(master->core, master->now, call->session->id,
                                                     ms_array_hash(match.hashes, i),
                                                     match.head.pin_deadline_ms));
    ma_done(call);
}

void ma_call_unpin(ma_call *call) {
    ms_match_view match;
    if (!read_match(call, &match) || is_too_late(call, &match.head))
        return;
    ma_master *master = call->master;
    ms_writer_list(&master->answer, match.hashes.count);
    for (uint32_t i = 0; i < match.hashes.count; i++)
        ms_writer_u32(&master->answer, md_unpin(master->core, master->now, call->session->id,
                                                ms_array_hash(match.hashes, i)));
    ma_done(call);
}

void ma_call_pins(ma_call *call) {
    ms_pins_view pins;
    if (!ms_read_pins(call->request->body, call->request->header->body_length, &pins)) {
        ma_fail_bad_frame(call);
        return;
    }
    if (is_too_late(call, &pins.head))
        return;
    ma_master *master = call->master;
    if (pins.head.number != 0)
        call->session->pins_number = pins.head.number;
    const ms_pins_item *items = (const ms_pins_item *)(const void *)pins.items.items;
    ms_writer_list(&master->answer, pins.items.count);
    for (uint32_t i = 0; i < pins.items.count; i++)
        ms_writer_u32(&master->answer,
                      md_pins(master->core, master->now, call->session->id, items[i].hash,
                              items[i].count, items[i].deadline_ms));
    ma_done(call);
}

void ma_call_list(ma_call *call) {
    ms_list_view list;
    if (!ms_read_list(call->request->body, call->request->header->body_length, &list)) {
        ma_fail_bad_frame(call);
        return;
    }
    char error[MA_SENTENCE_BYTES];
    ma_matcher *matcher;
    ms_status status =
        ma_matcher_open(&list.pattern, (list.head.flags & MS_FLAG_REGEX) != 0, &matcher, error);
    if (status != MS_OK) {
        ma_fail(call, status, "%s", error);
        return;
    }
    ma_master *master = call->master;
    ms_list_answer head = {.cursor = list.head.cursor};
    MS_WRITER_STRUCT(&master->answer, &head);
    uint32_t limit = list.head.limit == 0 ? 1000 : ma_min_u32(list.head.limit, MA_LIST_LIMIT_MAX);
    status =
        md_list(master->core, master->now, call->session->tenant, ma_matcher_matches, matcher,
                &head.cursor, limit, ma_matcher_visits_max(matcher), &head.count, &master->answer);
    ma_matcher_close(matcher);
    if (status != MS_OK) {
        ma_fail(call, status, "the listing cannot go on from that cursor: %s",
                ms_status_name(status));
        return;
    }
    if (master->answer.status == MS_OK)
        memcpy(master->answer.data, &head, sizeof head);
    ma_done(call);
}

void ma_call_stat(ma_call *call) {
    ms_reader reader = ms_reader_of(call->request->body, call->request->header->body_length);
    ms_key_item_view item;
    if (!ms_reader_key_item(&reader, &item) || !ms_reader_is_done(&reader)) {
        ma_fail_bad_frame(call);
        return;
    }
    ms_status status =
        md_stat(call->master->core, call->master->now, call->session->tenant, item.head.hash,
                (const uint8_t *)item.key, item.head.key_length, &call->master->answer);
    if (status == MS_NOT_FOUND)
        ma_fail(call, status, "there is no such object");
    else if (status != MS_OK)
        ma_fail(call, status, "this object cannot be described: %s", ms_status_name(status));
    else
        ma_done(call);
}

static void write_session_name(ma_master *master, uint64_t session) {
    const char *name = ma_session_name_of(master, session);
    ms_writer_string(&master->answer, name, (uint32_t)strlen(name));
}

void ma_call_explain(ma_call *call) {
    ms_reader reader = ms_reader_of(call->request->body, call->request->header->body_length);
    ms_key_item_view item;
    if (!ms_reader_key_item(&reader, &item) || !ms_reader_is_done(&reader)) {
        ma_fail_bad_frame(call);
        return;
    }
    ma_master *master = call->master;
    const uint8_t *key = (const uint8_t *)item.key;
    uint32_t tenant = call->session->tenant;
    md_explanation found;
    ms_status status = md_explain(master->core, master->now, tenant, item.head.hash, key,
                                  item.head.key_length, &found);
    if (status == MS_OK) {
        MS_WRITER_STRUCT(&master->answer, &found.head);
        write_session_name(master, found.head.put_session);
        if ((found.head.flags & MS_EXPLAIN_STORED) != 0)
            status = md_stat(master->core, master->now, tenant, item.head.hash, key,
                             item.head.key_length, &master->answer);
    }
    if (status != MS_OK) {
        ma_fail(call, status, "this key cannot be explained: %s", ms_status_name(status));
        return;
    }
    for (uint32_t i = 0; i < found.head.fate_count; i++) {
        MS_WRITER_STRUCT(&master->answer, &found.fates[i]);
        write_session_name(master, found.fates[i].session);
    }
    ma_done(call);
}

static bool has_body(ma_call *call) {
    if (call->request->header->body_length == 0)
        return false;
    ma_fail_bad_frame(call);
    return true;
}

void ma_call_members(ma_call *call) {
    if (has_body(call))
        return;
    ma_members_write(call->master, &call->master->answer);
    ma_done(call);
}

void ma_call_status(ma_call *call) {
    if (has_body(call))
        return;
    ma_status_write(call->master, &call->master->answer);
    ma_done(call);
}

void ma_call_events(ma_call *call) {
    ms_events events;
    if (call->request->header->body_length != sizeof events) {
        ma_fail_bad_frame(call);
        return;
    }
    memcpy(&events, call->request->body, sizeof events);
    ms_status status =
        md_events(call->master->core, call->master->now, &events, &call->master->answer);
    if (status == MS_GONE)
        ma_fail(call, status,
                "event %llu of epoch %u is not kept any more: take a snapshot with LIST",
                (unsigned long long)events.sequence, (unsigned)events.epoch);
    else if (status != MS_OK)
        ma_fail(call, status, "the events cannot be read: %s", ms_status_name(status));
    else
        ma_done(call);
}

void ma_call_keepalive(ma_call *call) {
    if (has_body(call))
        return;
    ms_writer_u32(&call->master->answer, call->master->members_serial);
    ms_writer_u32(&call->master->answer, 0);
    ma_done(call);
}

void ma_call_close_session(ma_call *call) {
    if (has_body(call))
        return;
    uint64_t id = call->session->id;
    md_session_close(call->master->core, call->master->now, id);
    ma_session_end(call->master, id);
    call->session = NULL;
}
