/* A new leader's first second: what needs the index waits until the store servers have brought it.
 *
 * The coordinator knows which members there were.  Until all of them have been adopted, or for a second when
 * one has, an answer would say "not there" of objects that are (docs/protocol.md, taking over); so such frames are
 * kept, and served in their order as soon as the answer is worth something.  A leader that expected nobody
 * waits for the first server that comes, from its HELLO to its inventory.
 */
#include "service.h"

#include <stdlib.h>
#include <string.h>

#define WAIT_MS 1000     /* for those that do not come, when one has come */
#define WAIT_MS_MAX 5000 /* when none has */
#define HELD_MAX 65536u
#define HELD_BYTES_MAX (64u << 20)

bool ma_is_warm(ma_master *master) { return master->is_warm; }

void ma_warm_for_first(ma_master *master) {
    if (!master->is_warm || master->has_adopted || master->warm_expected != 0)
        return;
    master->is_warm = false;
    master->warm_begin_ms = master->now.now_ms;
}

static uint32_t count_adopted(ma_master *master, uint32_t *count) {
    uint32_t adopted = 0, numbers = md_server_count(master->core);
    *count = 0;
    for (uint32_t server = 0; server < numbers; server++) {
        md_server_view view;
        if (md_server_get(master->core, server, &view) != MS_OK)
            continue;
        (*count)++;
        adopted += view.state == MS_MEMBER_READY || view.state == MS_MEMBER_DRAINING;
    }
    return adopted;
}

void ma_warm_check(ma_master *master) {
    if (master->is_warm)
        return;
    uint32_t count, adopted = count_adopted(master, &count);
    int64_t waited_ms = master->now.now_ms - master->warm_begin_ms;
    bool is_over = waited_ms >= WAIT_MS && (master->has_adopted || master->warm_expected == 0);
    if (adopted != count && !is_over && waited_ms < WAIT_MS_MAX)
        return;
    master->is_warm = true;
    if (master->warm_expected != 0)
        ma_log(master, MA_LOG_WARMING, adopted == count ? MA_INFO : MA_WARNING,
               "index_ready servers=%u expected=%u waited_ms=%lld requests_held=%u",
               (unsigned)adopted, (unsigned)count, (long long)waited_ms,
               (unsigned)master->held_count);
}

/* ---- frames that wait --------------------------------------------------------------------------------- */

bool ma_hold_frame(ma_call *call) {
    ma_master *master = call->master;
    const te_request *request = call->request;
    size_t length = request->header->body_length;
    bool has_room = master->held_count < HELD_MAX && length <= HELD_BYTES_MAX - master->held_bytes;
    ma_held *held = has_room ? malloc(sizeof *held + length) : NULL;
    if (held == NULL) {
        ma_fail(call, MS_UNAVAILABLE,
                "this master has just started and waits for the inventories of its store servers");
        return false;
    }
    *held = (ma_held){.peer = request->peer,
                      .connection = call->connection,
                      .header = *request->header,
                      .started_ns = call->started_ns};
    if (length != 0)
        memcpy(held->body, request->body, length);
    *master->held_last = held;
    master->held_last = &held->next;
    master->held_count++;
    master->held_bytes += length;
    return true;
}

ma_held *ma_held_next(ma_master *master) {
    ma_held *held = master->is_warm ? master->held_first : NULL;
    if (held == NULL)
        return NULL;
    master->held_first = held->next;
    if (held->next == NULL)
        master->held_last = &master->held_first;
    master->held_count--;
    master->held_bytes -= held->header.body_length;
    return held;
}

void ma_held_forget(ma_master *master, te_peer peer) {
    ma_held **link = &master->held_first;
    while (*link != NULL) {
        ma_held *held = *link;
        if (held->peer != peer) {
            link = &held->next;
            continue;
        }
        *link = held->next;
        master->held_count--;
        master->held_bytes -= held->header.body_length;
        free(held);
    }
    master->held_last = link;
}

void ma_held_close(ma_master *master) {
    while (master->held_first != NULL)
        ma_held_forget(master, master->held_first->peer);
}
