/* Connections that the peer must close before their WRITEs are repeated. */
#include "te_lane_tcp.h"

#include <stdlib.h>
#include <string.h>

#include "te_fault.h"

void te_tcp_end_cut(te_path *path, te_cut *cut, te_work_outcome outcome) {
    te_cut **at = &path->cuts;
    while (*at != cut)
        at = &(*at)->next;
    *at = cut->next;
    for (te_work *work = cut->works, *next; work != NULL; work = next) {
        next = work->next;
        te_lane_done(work, outcome);
    }
    free(cut);
}

/* Works whose time is over end, though nobody can say what became of them. */
static void end_late_works(te_path *path, int64_t now_ns) {
    for (te_cut *cut = path->cuts; cut != NULL; cut = cut->next) {
        for (te_work **at = &cut->works; *at != NULL;) {
            te_work *work = *at;
            bool is_late = !te_work_is_wanted(work, now_ns) || path->dead != MS_OK;
            if (!is_late) {
                at = &work->next;
                continue;
            }
            *at = work->next;
            te_lane_done(work, TE_WORK_LOST);
        }
    }
    for (te_cut *cut = path->cuts, *next; cut != NULL; cut = next) {
        next = cut->next;
        if (cut->works == NULL && !cut->is_asked)
            te_tcp_end_cut(path, cut, TE_WORK_LOST);
    }
}

static bool ask_cut(te_lane *lane, te_cut *cut) {
    lane_tcp *tcp = lane->state;
    if (lane->ops != &te_lane_tcp || tcp->phase != OPEN)
        return false;
    frame *asking = te_tcp_frame_make(tcp, FRAME_CUT, MS_CUT, 0);
    if (asking == NULL)
        return false;
    memcpy(asking->body, &cut->token, sizeof cut->token);
    asking->body_length = sizeof cut->token;
    asking->cut = cut;
    cut->is_asked = true;
    te_tcp_append(tcp, asking);
    te_tcp_try_send(tcp); /* it may be given up within: then is_asked is false again */
    te_lane_tick_at(lane, te_now_ns() + LOOK_NS);
    return true;
}

void te_tcp_ask_cuts(te_path *path, int64_t now_ns) {
    end_late_works(path, now_ns);
    for (te_cut *cut = path->cuts; cut != NULL; cut = cut->next) {
        te_lane_tick_at(cut->lane, now_ns + LOOK_NS);
        if (cut->is_asked || cut->is_refused || cut->token == 0)
            continue;
        /* The emptiest lane that is open; of READs, if one is: there it waits for no payload of ours. */
        te_lane *best = NULL;
        for (uint32_t i = 0; i < 2 * path->rail_count; i++) {
            te_lane *lane = &path->lanes[i / path->rail_count][i % path->rail_count];
            bool is_open = lane->ops == &te_lane_tcp && lane->is_up && !lane->is_gone;
            if (is_open && (best == NULL || lane->work_count < best->work_count))
                best = lane;
        }
        if (best != NULL && ask_cut(best, cut))
            return; /* the list may have changed */
    }
}
