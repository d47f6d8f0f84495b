/* What changes objects: the numbered batches put_start, put_end, revoke and remove, and what an operator
 * does to one object.
 *
 * A batch is checked whole before its first item takes effect: a frame that makes no sense changes nothing.
 */
#include "service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_well_formed(ma_call *call) {
    const ms_header *header = call->request->header;
    if (ms_body_valid(MS_REQUEST, header->method, 0, call->request->body, header->body_length))
        return true;
    ma_fail_bad_frame(call);
    return false;
}

/* Reads a numbered batch's head and begins its batch; NULL: the call is settled. */
static ma_batch *begin(ma_call *call, ma_form form, ms_reader *reader) {
    const ms_header *header = call->request->header;
    if (!is_well_formed(call))
        return NULL;
    *reader = ms_reader_of(call->request->body, header->body_length);
    ms_batch head;
    ms_reader_batch(reader, 1, &head);
    if (!ma_number_begin(call, &head))
        return NULL;
    ma_batch *batch = ma_batch_begin(call->master, form, header->method, head.count);
    if (batch == NULL)
        ma_fail(call, MS_LIMIT, "the master has no room for another batch (%llu are waiting)",
                (unsigned long long)call->master->counts.batches_parked);
    else
        batch->number = head.number;
    return batch;
}

/* ---- space, in words -------------------------------------------------------------------------------- */

static const char *size_text(uint64_t bytes, char text[24]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;
    double value = (double)bytes;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    snprintf(text, 24, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return text;
}

void ma_describe_space(ma_master *master, char *sentence, size_t size) {
    if (master->counts.servers == 0) {
        snprintf(sentence, size, "no store server has joined this master");
        return;
    }
    md_space space = {0};
    md_space_report(master->core, &space);
    if (space.bytes_total == 0) {
        snprintf(sentence, size, "no store server has brought its inventory yet");
        return;
    }
    if (space.object_bytes_max == 0) {
        snprintf(sentence, size, "no store server takes new objects: all drain, or are away");
        return;
    }
    char text[8][24];
    snprintf(sentence, size,
             "of %s there are %s hard-pinned, %s pinned by sessions, %s leased, %s being written, "
             "%s being "
             "freed and %s free; the largest object that can be placed has %s",
             size_text(space.bytes_total, text[0]), size_text(space.bytes_hard_pinned, text[1]),
             size_text(space.bytes_pinned, text[2]), size_text(space.bytes_leased, text[3]),
             size_text(space.bytes_writing, text[4]), size_text(space.bytes_freeing, text[5]),
             size_text(space.bytes_free, text[6]), size_text(space.object_bytes_max, text[7]));
}

/* ---- put_start -------------------------------------------------------------------------------------- */

void ma_call_put_start(ma_call *call) {
    ma_master *master = call->master;
    ms_reader reader;
    ma_batch *batch = begin(call, MA_FORM_GRANTS, &reader);
    if (batch == NULL)
        return;
    ms_writer *answer = &master->answer;
    ms_writer_list(answer, batch->count);
    ms_reader ahead = reader;
    for (uint32_t i = 0; i < batch->count; i++) {
        ms_put_item_view item = {0};
        ms_reader_put_item(&ahead, &item);
        md_prefetch_put(master->core, item.head.hash);
    }
    bool is_refused_space = false;
    for (uint32_t i = 0; i < batch->count; i++) {
        ms_put_item_view item = {0};
        ms_reader_put_item(&reader, &item);
        size_t begin_at = answer->length;
        ms_status status =
            md_put_start(master->core, master->now, call->session->id, &item.head,
                         (const uint8_t *)item.key, ma_batch_waiter(batch, i), answer);
        batch->items[i] = (ma_item){.hash = item.head.hash};
        ma_batch_set(batch, i, status);
        if (status == MS_OK && answer->status == MS_OK) {
            ms_location grant;
            memcpy(&grant, answer->data + begin_at, sizeof grant);
            batch->items[i].version = grant.version;
            md_put_set_reply(master->core, grant.version, call->request->peer);
        } else if (status != MS_OK) {
            ms_writer_no_location(answer, status);
        }
        is_refused_space = is_refused_space || ma_is_refused_for_space(status);
    }
    if (is_refused_space && batch->open_count == 0) {
        char sentence[MA_SENTENCE_BYTES];
        ma_describe_space(master, sentence, sizeof sentence);
        ms_writer_string(answer, sentence, (uint32_t)strlen(sentence));
        ma_log(master, MA_LOG_SPACE, MA_WARNING, "put_refused client=\"%s\" reason=\"%s\"",
               call->connection->name, sentence);
    }
    ma_batch_settle(call, batch);
}

/* ---- put_end, revoke, remove ------------------------------------------------------------------------ */

void ma_call_put_end(ma_call *call) {
    ma_master *master = call->master;
    ms_reader reader;
    ma_batch *batch = begin(call, MA_FORM_STATUSES, &reader);
    if (batch == NULL)
        return;
    for (uint32_t first = 0, next; first < batch->count; first = next) {
        ms_hash hashes[MD_GROUP];
        next = batch->count - first < MD_GROUP ? batch->count : first + MD_GROUP;
        ms_reader ahead = reader;
        for (uint32_t i = first; i < next; i++) {
            ms_end_item item = {0};
            MS_READER_STRUCT(&ahead, &item);
            hashes[i - first] = item.hash;
        }
        md_prefetch_objects(master->core, hashes, next - first);
        for (uint32_t i = first; i < next; i++) {
            ms_end_item item = {0};
            MS_READER_STRUCT(&reader, &item);
            batch->items[i] = (ma_item){.hash = item.hash, .version = item.version};
            ma_batch_set(batch, i,
                         md_put_end(master->core, master->now, call->session->id, &item,
                                    ma_batch_waiter(batch, i)));
        }
    }
    ma_batch_settle(call, batch);
}

void ma_call_revoke(ma_call *call) {
    ma_master *master = call->master;
    ms_reader reader;
    ma_batch *batch = begin(call, MA_FORM_STATUSES, &reader);
    if (batch == NULL)
        return;
    for (uint32_t i = 0; i < batch->count; i++) {
        ms_end_item item = {0};
        MS_READER_STRUCT(&reader, &item);
        batch->items[i] = (ma_item){.hash = item.hash, .version = item.version};
        ma_batch_set(batch, i, md_revoke(master->core, master->now, call->session->id, &item));
    }
    ma_batch_settle(call, batch);
}

void ma_call_remove(ma_call *call) {
    ma_master *master = call->master;
    ms_reader reader;
    ma_batch *batch = begin(call, MA_FORM_STATUSES, &reader);
    if (batch == NULL)
        return;
    for (uint32_t i = 0; i < batch->count; i++) {
        ms_key_item_view item = {0};
        ms_reader_key_item(&reader, &item);
        batch->items[i] = (ma_item){.hash = item.head.hash};
        ma_batch_set(batch, i,
                     md_remove(master->core, master->now, call->session->tenant, call->session->id,
                               item.head.hash, (const uint8_t *)item.key, item.head.key_length,
                               (item.head.flags & MS_FLAG_FORCE) != 0, ma_batch_waiter(batch, i)));
    }
    ma_batch_settle(call, batch);
}

void ma_call_remove_matching(ma_call *call) {
    ma_master *master = call->master;
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
    uint32_t limit = list.head.limit == 0 ? 1000 : ma_min_u32(list.head.limit, MA_LIST_LIMIT_MAX);
    uint64_t cursor = list.head.cursor;
    uint32_t count = 0;
    ms_writer *found = &master->scratch;
    ms_writer_reset(found);
    status = md_list(master->core, master->now, call->session->tenant, ma_matcher_matches, matcher,
                     &cursor, limit, ma_matcher_visits_max(matcher), &count, found);
    ma_matcher_close(matcher);
    if (status == MS_OK)
        status = found->status;
    if (status != MS_OK) {
        ma_fail(call, status, "the removal cannot go on from that cursor: %s",
                ms_status_name(status));
        return;
    }
    ma_batch *batch = ma_batch_begin(master, MA_FORM_REMOVED, MS_REMOVE_MATCHING, count);
    if (batch == NULL) {
        ma_fail(call, MS_LIMIT, "the master has no room for another batch");
        return;
    }
    batch->cursor = cursor;
    ms_reader reader = ms_reader_of(found->data, found->length);
    for (uint32_t i = 0; i < count; i++) {
        ms_list_item_view item = {0};
        ms_reader_list_item(&reader, &item);
        ms_hash hash = ms_hash_key(master->config.secret, call->session->tenant_name,
                                   call->session->tenant_length, item.key, item.head.key_length);
        batch->items[i] = (ma_item){.hash = hash};
        ma_batch_set(batch, i,
                     md_remove(master->core, master->now, call->session->tenant, call->session->id,
                               hash, (const uint8_t *)item.key, item.head.key_length,
                               (list.head.flags & MS_FLAG_FORCE) != 0, ma_batch_waiter(batch, i)));
    }
    ma_batch_settle(call, batch);
}

/* ---- one object -------------------------------------------------------------------------------------- */

void ma_call_annotate(ma_call *call) {
    ma_master *master = call->master;
    if (!is_well_formed(call))
        return;
    ms_reader reader = ms_reader_of(call->request->body, call->request->header->body_length);
    ms_annotate annotate = {0};
    ms_key_item_view item = {0};
    MS_READER_STRUCT(&reader, &annotate);
    ms_reader_key_item(&reader, &item);
    ma_batch *batch = ma_batch_begin(master, MA_FORM_STATUS, MS_ANNOTATE, 1);
    if (batch == NULL) {
        ma_fail(call, MS_LIMIT, "the master has no room for another batch");
        return;
    }
    batch->items[0] = (ma_item){.hash = item.head.hash};
    ma_batch_set(batch, 0,
                 md_annotate(master->core, master->now, call->session->tenant, item.head.hash,
                             (const uint8_t *)item.key, item.head.key_length, &annotate,
                             ma_batch_waiter(batch, 0)));
    ma_batch_settle(call, batch);
}

void ma_call_change_replica(ma_call *call) {
    ma_master *master = call->master;
    if (!is_well_formed(call))
        return;
    ms_reader reader = ms_reader_of(call->request->body, call->request->header->body_length);
    ms_change_replica change = {0};
    ms_key_item_view item = {0};
    MS_READER_STRUCT(&reader, &change);
    ms_reader_key_item(&reader, &item);
    ma_batch *batch = ma_batch_begin(master, MA_FORM_LOCATION, MS_CHANGE_REPLICA, 1);
    if (batch == NULL) {
        ma_fail(call, MS_LIMIT, "the master has no room for another batch");
        return;
    }
    batch->items[0] = (ma_item){.hash = item.head.hash};
    ma_batch_set(batch, 0,
                 md_change_replica(master->core, master->now, call->session->tenant, item.head.hash,
                                   (const uint8_t *)item.key, item.head.key_length, &change,
                                   ma_batch_waiter(batch, 0)));
    ma_batch_settle(call, batch);
}
