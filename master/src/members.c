/* Store servers: they join with HELLO, are ADOPTed, tell their inventory, and then serve.
 *
 * A member is a node; a connection is one life of it.  The core knows which incarnation it has adopted; here
 * is what goes over the wire.  Between ADOPT and the end of the inventory nothing else is sent
 * (protocol, table of messages): the core holds its FREEs back until md_inventory_end.
 */
#include "service.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ADOPT_REQUEST 1u
#define SEGMENTS_MAX 4096u

ma_member *ma_member_get(ma_master *master, uint32_t server) {
    return server < master->member_capacity ? master->members[server] : NULL;
}

static void free_member(ma_member *member) {
    if (member == NULL)
        return;
    free(member->segments);
    free(member->name);
    free(member->host);
    free(member->socket_path);
    free(member->addresses);
    free(member->frees);
    free(member);
}

/* ---- join -------------------------------------------------------------------------------------------- */

static bool has_room(ma_master *master, uint32_t server) {
    if (server < master->member_capacity)
        return true;
    uint32_t capacity = master->member_capacity == 0 ? 16 : master->member_capacity;
    while (capacity <= server)
        capacity *= 2;
    ma_member **members = realloc(master->members, capacity * sizeof(ma_member *));
    if (members == NULL)
        return false;
    memset(members + master->member_capacity, 0,
           (capacity - master->member_capacity) * sizeof(ma_member *));
    master->members = members;
    master->member_capacity = capacity;
    return true;
}

/* What a HELLO says, in memory of our own; NULL: no memory. */
static ma_member *copy_member(const ms_server_view *view) {
    ma_member *member = calloc(1, sizeof *member);
    if (member == NULL)
        return NULL;
    member->info = view->head;
    size_t segment_bytes = view->segments.count * sizeof *member->segments;
    member->segments = malloc(segment_bytes + 1);
    if (member->segments != NULL && segment_bytes != 0)
        memcpy(member->segments, view->segments.items, segment_bytes);
    member->name = strndup(view->name.data, view->name.length);
    member->host = strndup(view->host.data, view->host.length);
    member->socket_path = strndup(view->socket_path.data, view->socket_path.length);
    member->addresses = strndup(view->addresses.data, view->addresses.length);
    if (member->segments == NULL || member->name == NULL || member->host == NULL ||
        member->socket_path == NULL || member->addresses == NULL) {
        free_member(member);
        return NULL;
    }
    return member;
}

ma_member *ma_member_place(ma_master *master, const uint8_t node_id[16], uint32_t server,
                           const char *name) {
    ms_server_view view = {.name = {name, (uint32_t)strlen(name)},
                           .host = {"", 0},
                           .socket_path = {"", 0},
                           .addresses = {"", 0}};
    view.head = (ms_server_info){.server = server, .state = MS_MEMBER_GONE};
    memcpy(view.head.node_id, node_id, sizeof view.head.node_id);
    ma_member *member = has_room(master, server) ? copy_member(&view) : NULL;
    if (member == NULL)
        return NULL;
    member->known_state = MS_MEMBER_GONE;
    member->gone_ms = te_now_ns() / 1000000;
    free_member(master->members[server]);
    master->members[server] = member;
    return member;
}

ms_status ma_member_join(ma_master *master, ma_connection *connection, const ms_hello_view *hello,
                         char *error) {
    const ms_server_view *view = &hello->server;
    if (view->segments.count > SEGMENTS_MAX) {
        snprintf(error, TE_ERROR_BYTES, "%u segments are more than a server may have (%u)",
                 (unsigned)view->segments.count, SEGMENTS_MAX);
        return MS_LIMIT;
    }
    ma_member *member = copy_member(view);
    if (member == NULL) {
        snprintf(error, TE_ERROR_BYTES, "the master has no memory for another member");
        return MS_NO_MEMORY;
    }
    uint32_t server = 0;
    for (uint32_t i = 0; i < master->member_capacity; i++) {
        const ma_member *known = master->members[i];
        if (known == NULL || known->forgetting == MA_FORGET_NOT ||
            memcmp(known->info.node_id, member->info.node_id, sizeof known->info.node_id) != 0)
            continue;
        snprintf(error, TE_ERROR_BYTES, "this node is being forgotten: try again in a moment");
        free_member(member);
        return MS_UNAVAILABLE;
    }
    ms_status status = md_server_join(master->core, master->now, &member->info, member->host,
                                      member->segments, &server);
    if (status == MS_WRONG_INCARNATION)
        snprintf(
            error, TE_ERROR_BYTES,
            "incarnation %u of this node is not above the one known: another process serves in its "
            "name, or its files are old",
            (unsigned)member->info.incarnation);
    else if (status == MS_REFUSED)
        snprintf(error, TE_ERROR_BYTES,
                 "this node has been forgotten: restart it, and it joins as an empty one");
    else if (status != MS_OK)
        snprintf(error, TE_ERROR_BYTES, "this server cannot join: %s", ms_status_name(status));
    else if (!has_room(master, server)) {
        snprintf(error, TE_ERROR_BYTES, "the master has no memory for another member");
        md_server_gone(master->core, master->now, server, member->info.incarnation);
        status = MS_NO_MEMORY;
    }
    if (status != MS_OK) {
        free_member(member);
        return status;
    }

    member->info.server = server;
    member->peer = connection->peer;
    member->is_adopt_due = true;
    member->heard_ms = master->now.now_ms;
    member->known_state = MS_MEMBER_JOINING;
    ma_member *old = master->members[server];
    bool is_known = old != NULL &&
                    memcmp(old->info.node_id, member->info.node_id, sizeof old->info.node_id) == 0;
    member->is_kept = !master->config.keeps_numbers || (is_known && old->is_kept);
    /* A leader has its number kept before it adopts a server.  So whom the coordinator does not know holds nothing,
     * or was forgotten so long ago that its number is another one's *(unknown_strikes)*. */
    if (master->config.keeps_numbers && !is_known)
        md_server_strike(master->core, server, md_version_given(master->core));
    if (old == NULL || old->peer == 0)
        master->counts.servers++;
    else
        ma_doom(master, old->peer); /* the node's former life */
    free_member(old);
    master->members[server] = member;
    connection->server = server;
    master->members_serial++;
    ma_warm_for_first(master);
    ma_journal_wake(master); /* the coordinator may have to be told */
    char name[64];
    ma_log(master, MA_LOG_SERVER, MA_INFO,
           "server_joined server=%u node=\"%s\" incarnation=%u segments=%u", (unsigned)server,
           ma_printable(member->name, strlen(member->name), name, sizeof name),
           (unsigned)member->info.incarnation, (unsigned)member->info.segment_count);
    return MS_OK;
}

/* The member that a connection stands for, or NULL when a newer connection has taken its place. */
static ma_member *member_of(ma_master *master, const ma_connection *connection) {
    ma_member *member = ma_member_get(master, connection->server);
    return member != NULL && member->peer == connection->peer ? member : NULL;
}

static void adopt(ma_master *master, ma_member *member) {
    ms_adopt frame = {.epoch = master->config.epoch, .server = member->info.server};
    member->is_adopt_due = false;
    ma_send_push(master, member->peer, MS_REQUEST, MS_ADOPT, 0, ADOPT_REQUEST, &frame,
                 sizeof frame);
}

/* ---- frames -------------------------------------------------------------------------------------------- */

static void take_inventory(ma_call *call, ma_member *member) {
    ma_master *master = call->master;
    const ms_header *header = call->request->header;
    if (!ms_body_valid(MS_ONEWAY, MS_INVENTORY, 0, call->request->body, header->body_length)) {
        ma_fail_bad_frame(call);
        return;
    }
    if (member->is_adopted)
        return; /* of an ADOPT that was answered: nothing new */
    uint32_t server = member->info.server, incarnation = member->info.incarnation;
    ms_reader reader = ms_reader_of(call->request->body, header->body_length);
    uint32_t count = ms_reader_list(&reader, sizeof(ms_inventory_item));
    for (uint32_t i = 0; i < count; i++) {
        ms_inventory_item_view item = {0};
        ms_reader_inventory_item(&reader, &item);
        ms_status status = md_inventory(master->core, master->now, server, incarnation, &item.head,
                                        (const uint8_t *)item.tenant, (const uint8_t *)item.key);
        if (status != MS_OK)
            ma_log(master, MA_LOG_SERVER, MA_WARNING, "record_refused server=%u status=%s page=%u",
                   (unsigned)server, ms_status_name(status), (unsigned)item.head.page);
    }
    if ((header->flags & MS_FLAG_LAST) == 0)
        return;
    ms_status status = md_inventory_end(master->core, master->now, server, incarnation);
    if (status != MS_OK) {
        ma_log(master, MA_LOG_SERVER, MA_ERROR, "inventory_refused server=%u status=%s",
               (unsigned)server, ms_status_name(status));
        call->is_bad = true; /* it dials again */
        return;
    }
    member->is_adopted = true;
    master->has_adopted = true;
    ma_warm_check(master);
    char name[64];
    ma_log(master, MA_LOG_SERVER, MA_INFO, "server_ready server=%u node=\"%s\" incarnation=%u",
           (unsigned)server, ma_printable(member->name, strlen(member->name), name, sizeof name),
           (unsigned)incarnation);
}

/* An answer to FREE counts for this leader and this life of the server only. */
static void take_free_answer(ma_call *call, ma_member *member) {
    ma_master *master = call->master;
    const ms_header *header = call->request->header;
    ms_free_view answer;
    if (!ms_read_free(call->request->body, header->body_length, &answer)) {
        ma_fail_bad_frame(call);
        return;
    }
    if (answer.epoch != master->config.epoch || answer.incarnation != member->info.incarnation)
        return;
    for (uint32_t i = 0; i < answer.items.count; i++) {
        ms_free_item item;
        MS_ARRAY_GET(answer.items, i, &item);
        if (header->method == MS_FREED)
            md_freed(master->core, master->now, member->info.server, answer.incarnation, &item);
        else
            md_cleared(master->core, master->now, member->info.server, answer.incarnation, &item);
    }
}

static void take_stats(ma_call *call, ma_member *member) {
    ma_master *master = call->master;
    ms_server_stats_view stats;
    if (!ms_read_server_stats(call->request->body, call->request->header->body_length, &stats)) {
        ma_fail_bad_frame(call);
        return;
    }
    if (stats.incarnation != member->info.incarnation)
        return;
    for (uint32_t i = 0; i < stats.segments.count; i++) {
        ms_segment_info told;
        MS_ARRAY_GET(stats.segments, i, &told);
        for (uint32_t j = 0; j < member->info.segment_count; j++) {
            ms_segment_info *known = &member->segments[j];
            if (known->segment != told.segment ||
                told.page_count_ready <= known->page_count_ready ||
                told.page_count_ready > known->page_count)
                continue;
            if (md_segment_ready(master->core, master->now, member->info.server,
                                 member->info.incarnation, told.segment,
                                 told.page_count_ready) == MS_OK)
                known->page_count_ready = told.page_count_ready;
        }
    }
    member->counter_count = ma_min_u32(stats.counters.count, MA_SERVER_COUNTERS_MAX);
    for (uint32_t i = 0; i < member->counter_count; i++)
        MS_ARRAY_GET(stats.counters, i, &member->counters[i]);
}

void ma_member_frame(ma_call *call) {
    ma_master *master = call->master;
    ma_member *member = member_of(master, call->connection);
    if (member == NULL)
        return; /* a former life; its connection is being closed */
    member->heard_ms = master->now.now_ms;
    if (member->is_adopt_due && member->is_kept)
        adopt(master, member);
    switch (call->request->header->method) {
    case MS_INVENTORY:
        take_inventory(call, member);
        break;
    case MS_CLEARED:
    case MS_FREED:
        take_free_answer(call, member);
        break;
    case MS_RELAYED_END:
        ma_relayed_end(call);
        break;
    case MS_SERVER_STATS:
        take_stats(call, member);
        break;
    default:
        ma_fail_bad_frame(call);
    }
}

void ma_member_answer(ma_master *master, ma_connection *connection, const te_request *answer) {
    ma_member *member = member_of(master, connection);
    if (member == NULL)
        return;
    member->heard_ms = master->now.now_ms;
    const ms_header *header = answer->header;
    ms_status status = (ms_status)header->status;
    switch (header->method) {
    case MS_ADOPT:
        if (status != MS_OK) {
            ma_log(master, MA_LOG_SERVER, MA_ERROR,
                   "adopt_refused server=%u status=%s reason=\"%.*s\"",
                   (unsigned)member->info.server, ms_status_name(status),
                   (int)ma_min_u32(header->body_length, 200), (const char *)answer->body);
            ma_doom(master, connection->peer);
        }
        break;
    case MS_NOTE:
        md_noted(master->core, master->now, header->request, member->info.server, status);
        break;
    case MS_COPY:
        md_copied(master->core, master->now, header->request, status);
        break;
    default:
        break;
    }
}

/* ---- gone ------------------------------------------------------------------------------------------------ */

void ma_member_closed(ma_master *master, ma_connection *connection, const char *reason) {
    ma_member *member = member_of(master, connection);
    if (member == NULL)
        return;
    member->peer = 0;
    member->gone_ms = master->now.now_ms;
    member->is_adopted = false;
    member->free_count = 0;
    master->counts.servers--;
    master->members_serial++;
    char name[64], why[96];
    ma_log(master, MA_LOG_SERVER, MA_WARNING,
           "server_gone server=%u node=\"%s\" incarnation=%u reason=\"%s\"",
           (unsigned)member->info.server,
           ma_printable(member->name, strlen(member->name), name, sizeof name),
           (unsigned)member->info.incarnation,
           ma_printable(reason, strlen(reason), why, sizeof why));
    md_server_gone(master->core, master->now, member->info.server, member->info.incarnation);
}

void ma_members_tick(ma_master *master) {
    for (uint32_t server = 0; server < master->member_capacity; server++) {
        ma_member *member = master->members[server];
        if (member == NULL)
            continue;
        if (member->is_adopt_due && member->is_kept && member->peer != 0)
            adopt(master, member);
        ma_forget_tick(master, member);
        int64_t silent_ms = master->now.now_ms - member->heard_ms;
        if (member->peer != 0 && silent_ms > (int64_t)master->config.server_silence_ms) {
            ma_log(master, MA_LOG_SERVER, MA_WARNING, "server_silent server=%u silent_ms=%lld",
                   (unsigned)server, (long long)silent_ms);
            ma_doom(master, member->peer);
            member->heard_ms = master->now.now_ms; /* said once, closed once */
        }
        md_server_view view;
        if (md_server_get(master->core, server, &view) == MS_OK &&
            view.state != member->known_state) {
            member->known_state = view.state;
            master->members_serial++;
        }
    }
}

/* ---- told to others ---------------------------------------------------------------------------------------- */

void ma_members_write(ma_master *master, ms_writer *out) {
    size_t begin = out->length;
    uint32_t count = 0;
    ms_writer_u32(out, master->members_serial);
    ms_writer_u32(out, 0);
    for (uint32_t server = 0; server < master->member_capacity; server++) {
        const ma_member *member = master->members[server];
        md_server_view view;
        if (member == NULL || md_server_get(master->core, server, &view) != MS_OK)
            continue;
        ms_server_info info = member->info;
        info.state = view.state;
        ms_writer_server(out, &info, member->segments, member->name, member->host,
                         member->socket_path, member->addresses);
        count++;
    }
    ms_writer_set_u32(out, begin + 4, count);
}

static void copy_text(char *target, size_t size, const char *source) {
    ma_printable(source, strlen(source), target, size);
}

size_t ma_members_read(ma_master *master, ma_member_row *rows, size_t max) {
    size_t count = 0;
    pthread_mutex_lock(&master->lock);
    for (uint32_t server = 0; server < master->member_capacity; server++) {
        const ma_member *member = master->members[server];
        md_server_view view;
        if (member == NULL || md_server_get(master->core, server, &view) != MS_OK)
            continue;
        if (count++ >= max)
            continue;
        ma_member_row *row = &rows[count - 1];
        *row = (ma_member_row){
            .server = server,
            .incarnation = member->info.incarnation,
            .state = view.state,
            .segment_count = member->info.segment_count,
            .pages_total = view.pages_total,
            .pages_ready = view.pages_ready,
            .pages_free = view.pages_free,
            .pages_freeing = view.pages_freeing,
            .pages_pinned = view.pages_pinned,
            .object_count = view.object_count,
            .struck = member->forgetting == MA_FORGET_ASKED ? member->forget_struck : view.struck,
            .is_leaving = member->forgetting == MA_FORGET_ASKED,
            .is_kept = member->is_kept,
            .silent_ms = member->peer != 0 ? te_now_ns() / 1000000 - member->heard_ms : -1,
        };
        memcpy(row->node_id, member->info.node_id, sizeof row->node_id);
        copy_text(row->name, sizeof row->name, member->name);
        copy_text(row->addresses, sizeof row->addresses, member->addresses);
        copy_text(row->unix_path, sizeof row->unix_path, member->socket_path);
    }
    pthread_mutex_unlock(&master->lock);
    return count;
}

void ma_members_close(ma_master *master) {
    for (uint32_t server = 0; server < master->member_capacity; server++)
        free_member(master->members[server]);
    free(master->members);
}
