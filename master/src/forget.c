/* Store servers that are gone for good: somebody says so, or they have been gone for long.
 *
 * A member that is away costs: removes write tombstones for its sake, and a new leader waits for it.  Forgetting one
 * has three steps.  It can join no more from when it is asked for; the coordinator counts it as a member no more and
 * keeps, in place of all tombstones, up to which version what it has does not count; then the metadata core lets its
 * objects go.  When it comes back later it is a member like a new one, and its old objects are freed *(unknown_strikes)*.
 */
#include <stdio.h>
#include <string.h>

#include "service.h"

#define ID_LETTERS 32u

/* 32 hexadecimal digits, dashes apart. */
static bool read_id(ms_text text, uint8_t id[16]) {
    uint32_t count = 0;
    memset(id, 0, 16);
    for (uint32_t i = 0; i < text.length; i++) {
        char letter = text.data[i];
        if (letter == '-')
            continue;
        int digit = letter >= '0' && letter <= '9'   ? letter - '0'
                    : letter >= 'a' && letter <= 'f' ? letter - 'a' + 10
                                                     : -1;
        if (digit < 0 || count == ID_LETTERS)
            return false;
        id[count / 2] = (uint8_t)(id[count / 2] << 4 | digit);
        count++;
    }
    return count == ID_LETTERS;
}

static bool is_meant(const ma_member *member, ms_text text) {
    uint8_t id[16];
    if (read_id(text, id) && memcmp(id, member->info.node_id, sizeof id) == 0)
        return true;
    return strlen(member->name) == text.length && memcmp(member->name, text.data, text.length) == 0;
}

static void begin(ma_master *master, ma_member *member, const char *reason) {
    char name[64];
    member->forgetting = MA_FORGET_ASKED;
    member->forget_struck = md_version_given(master->core);
    ma_log(master, MA_LOG_SERVER, MA_INFO, "server_forgetting server=%u node=\"%s\" reason=\"%s\"",
           (unsigned)member->info.server,
           ma_printable(member->name, strlen(member->name), name, sizeof name), reason);
    ma_journal_wake(master);
}

void ma_call_forget(ma_call *call) {
    ma_master *master = call->master;
    ms_reader reader = ms_reader_of(call->request->body, call->request->header->body_length);
    ms_text text;
    if (!ms_reader_string(&reader, MS_NAME_BYTES_MAX, &text) || !ms_reader_is_done(&reader)) {
        ma_fail_bad_frame(call);
        return;
    }
    ma_member *found = NULL;
    uint32_t count = 0;
    char name[64];
    ma_printable(text.data, text.length, name, sizeof name);
    for (uint32_t server = 0; server < master->member_capacity; server++) {
        ma_member *member = ma_member_get(master, server);
        md_server_view view;
        if (member == NULL || md_server_get(master->core, server, &view) != MS_OK ||
            !is_meant(member, text))
            continue;
        count++;
        found = member;
    }
    if (count == 0) {
        ma_fail(call, MS_NOT_FOUND, "no store server is called '%s'", name);
    } else if (count > 1) {
        ma_fail(call, MS_BAD_REQUEST, "%u store servers are called '%s': say which by its id",
                (unsigned)count, name);
    } else if (found->peer != 0) {
        ma_fail(call, MS_BUSY, "'%s' is alive, it was heard %lld ms ago", name,
                (long long)(master->now.now_ms - found->heard_ms));
    } else if (found->forget_asker_count == MA_ASKERS_MAX) {
        ma_fail(call, MS_LIMIT, "'%s' is being forgotten", name);
    } else {
        found->forget_askers[found->forget_asker_count++] =
            (ma_asker){.peer = call->request->peer, .header = *call->request->header};
        call->is_answered_later = true;
        if (found->forgetting == MA_FORGET_NOT)
            begin(master, found, call->connection->name);
    }
}

void ma_forgotten(ma_master *master, const uint8_t node_id[16], bool is_done) {
    pthread_mutex_lock(&master->lock);
    for (uint32_t server = 0; server < master->member_capacity; server++) {
        ma_member *member = ma_member_get(master, server);
        if (member != NULL && member->forgetting == MA_FORGET_ASKED &&
            memcmp(member->info.node_id, node_id, 16) == 0)
            member->forgetting = is_done ? MA_FORGET_TOLD : MA_FORGET_FAILED;
    }
    pthread_mutex_unlock(&master->lock);
}

static void finish(ma_master *master, ma_member *member, ms_status status, const char *sentence) {
    member->forgetting = MA_FORGET_NOT;
    for (uint32_t i = 0; i < member->forget_asker_count; i++)
        ma_send_answer(master, &member->forget_askers[i], status, sentence, strlen(sentence));
    member->forget_asker_count = 0;
}

void ma_forget_tick(ma_master *master, ma_member *member) {
    uint32_t server = member->info.server;
    md_server_view view;
    if (member->forgetting == MA_FORGET_FAILED) {
        member->gone_ms = master->now.now_ms; /* not again at once */
        finish(master, member, MS_UNAVAILABLE, "the coordinator does not answer");
    } else if (member->forgetting == MA_FORGET_TOLD) {
        ms_status status =
            md_server_forget(master->core, master->now, server, member->forget_struck);
        if (status == MS_OK) {
            char name[64];
            member->is_kept = false;
            master->members_serial++;
            ma_log(master, MA_LOG_SERVER, MA_INFO, "server_forgotten server=%u node=\"%s\"",
                   (unsigned)server,
                   ma_printable(member->name, strlen(member->name), name, sizeof name));
        }
        finish(master, member, status, status == MS_OK ? "" : ms_status_name(status));
    } else if (member->forgetting == MA_FORGET_NOT && member->peer == 0 &&
               master->config.forget_after_ms != 0 &&
               master->now.now_ms - member->gone_ms > (int64_t)master->config.forget_after_ms &&
               md_server_get(master->core, server, &view) == MS_OK) {
        begin(master, member, "it has been gone for too long");
    }
}
