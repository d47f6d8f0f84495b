/* Lanes over TCP: one connection each, on which frames follow one another and their answers come back in the same order.
 *
 * Nothing here waits: the carrier's epoll says when the socket can be written or read.  A frame's answer is received in
 * two steps, first the header, then what it says: a READ's bytes straight to their places.
 *
 * A lane that is given up closes its socket, so nothing late can arrive in local memory: READs are FAILED at once.
 * A WRITE of which something was sent is kept in a `cut`, until the peer has confirmed over another lane of the path that
 * the old connection is closed (cut.c), unless the peer closed it itself.
 */
#include "te_lane_tcp.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "te_fault.h"

/* ---- opening and closing ------------------------------------------------------------------------------------------- */

static ms_status tcp_open(te_lane *lane) {
    lane_tcp *tcp = calloc(1, sizeof *tcp);
    if (tcp == NULL)
        return MS_NO_MEMORY;
    tcp->lane = lane;
    tcp->watched = (te_watched){.ready = te_tcp_ready, .descriptor = -1};
    tcp->told.kind = FRAME_TOLD;
    lane->state = tcp;
    return MS_OK;
}

static void close_socket(lane_tcp *tcp) {
    te_lane *lane = tcp->lane;
    if (tcp->watched.descriptor >= 0) {
        te_carrier_forget(lane->carrier, &tcp->watched);
        /* Not what waits to be sent: the peer is to forget it. */
        struct linger none = {.l_onoff = 1, .l_linger = 0};
        (void)setsockopt(tcp->watched.descriptor, SOL_SOCKET, SO_LINGER, &none, sizeof none);
        close(tcp->watched.descriptor);
    }
    tcp->watched.descriptor = -1;
    tcp->phase = CLOSED;
    tcp->token = tcp->acked = 0;
    tcp->header_length = 0;
    tcp->answered = NULL;
    tcp->pings = 0;
    tcp->idle_ns = 0;
    free(tcp->bounce);
    tcp->bounce = NULL;
    te_lane_endpoint_give(lane);
}

bool te_tcp_watch(lane_tcp *tcp, uint32_t events) {
    if (tcp->watched.is_watched && tcp->watched.events == events)
        return true;
    tcp->watched.events = events;
    return te_carrier_watch(tcp->lane->carrier, &tcp->watched) == MS_OK;
}

/* The kernel has a connection: HELLO, and what waits behind it. */
void te_tcp_greet(lane_tcp *tcp) {
    frame *hello = te_tcp_frame_make(tcp, FRAME_HELLO, MS_HELLO, 0);
    /* What is asked on it first: by which token it is cut, or which interfaces the peer has, now and later. */
    bool is_write = tcp->lane->opcode == TE_WRITE;
    frame *next = hello == NULL ? NULL
                  : is_write    ? te_tcp_frame_make(tcp, FRAME_TOKEN, MS_CUT, 0)
                                : te_tcp_frame_make(tcp, FRAME_TOPOLOGY, MS_TOPOLOGY, 0);
    tcp->phase = GREETING;
    if (next == NULL) {
        if (hello != NULL)
            te_tcp_frame_free(tcp, hello);
        te_tcp_give_up(tcp, true, true, MS_OK, "no memory for HELLO");
        return;
    }
    frame *waiting = tcp->first, *last = tcp->last;
    tcp->first = tcp->last = tcp->unsent = NULL;
    te_tcp_append(tcp, hello);
    uint64_t none = 0; /* no token, or an empty string */
    memcpy(next->body, &none, sizeof none);
    next->body_length = sizeof none;
    te_tcp_append(tcp, next);
    if (waiting != NULL) {
        tcp->last->next = waiting;
        tcp->last = last;
    }
    te_tcp_try_send(tcp);
}

void te_tcp_dial(te_lane *lane) {
    lane_tcp *tcp = lane->state;
    char error[TE_ERROR_BYTES] = "";
    if (!te_lane_endpoint_take(lane)) {
        te_lane_down(lane, false, MS_OK, "all connections of this process's rails are busy");
        return;
    }
    ms_status status =
        te_address_parse(lane->ends.remote, strlen(lane->ends.remote), &tcp->address, error);
    if (status == MS_OK)
        status = te_address_bind(&tcp->address, lane->ends.local, strlen(lane->ends.local), error);
    /* Where two interfaces are in one network, answers may come by the other one (neighbours' tables decide), which a
     * socket that is bound to a device does not hear. */
    tcp->address.is_by_routes = lane->failures % 2 == 1;
    if (status == MS_OK)
        status = te_socket_begin(&tcp->address, &tcp->watched.descriptor, error);
    tcp->begun_ns = te_now_ns();
    te_lane_progress(lane, tcp->begun_ns);
    if (status == MS_OK || status == MS_PENDING) {
        tcp->phase = CONNECTING;
        if (!te_tcp_watch(tcp, EPOLLIN | EPOLLOUT))
            te_tcp_give_up(tcp, true, true, MS_OK, "no room for another connection");
        else if (status == MS_OK)
            te_tcp_greet(tcp);
        te_lane_tick_at(lane, tcp->begun_ns + LOOK_NS);
        return;
    }
    tcp->watched.descriptor = -1;
    te_tcp_give_up(tcp, true, true, MS_OK, error);
}

/* Works of which the peer may still carry something out wait for it to say no. */
static void keep_for_cut(lane_tcp *tcp, te_work *works, uint64_t token) {
    te_path *path = tcp->lane->path;
    te_cut *cut = malloc(sizeof *cut);
    if (cut == NULL) { /* then nobody will ever know */
        for (te_work *next; works != NULL; works = next) {
            next = works->next;
            te_lane_done(works, TE_WORK_LOST);
        }
        return;
    }
    *cut = (te_cut){.lane = tcp->lane, .token = token, .works = works, .next = path->cuts};
    path->cuts = cut;
}

/* The connection is not used any more.  `is_peers`: the peer has closed it, or never had it. */
void te_tcp_give_up(lane_tcp *tcp, bool is_peers, bool is_refused, ms_status status,
                    const char *why) {
    te_lane *lane = tcp->lane;
    bool was_known = tcp->phase != CLOSED || lane->is_connecting;
    uint64_t token = tcp->token;
    close_socket(tcp);
    frame *each = tcp->first;
    te_work *doubtful = NULL;
    tcp->first = tcp->last = tcp->unsent = NULL;
    for (frame *next; each != NULL; each = next) {
        next = each->next;
        te_work *work = each->work;
        if (each->kind == FRAME_CUT && each->cut != NULL)
            each->cut->is_asked = false; /* over another lane, then */
        if (work != NULL) {
            work->is_sent = each->sent > 0;
            if (lane->opcode == TE_WRITE && work->is_sent && !is_peers) {
                work->next = doubtful;
                doubtful = work;
            } else {
                te_lane_done(work, TE_WORK_FAILED);
            }
        }
        te_tcp_frame_free(tcp, each);
    }
    if (doubtful != NULL)
        keep_for_cut(tcp, doubtful, token);
    if (was_known || doubtful != NULL)
        te_lane_down(lane, is_refused, status, "%s", why);
    te_tcp_ask_cuts(lane->path, te_now_ns());
}

/* What the kernel says about a broken connection: whether the peer itself has ended it. */
void te_tcp_give_up_errno(lane_tcp *tcp, const char *what) {
    int problem = errno;
    char why[96];
    snprintf(why, sizeof why, "%s: %s", what, strerror(problem));
    te_tcp_give_up(tcp, problem == EPIPE || problem == ECONNRESET, false, MS_OK, why);
}

/* ---- looking after it ---------------------------------------------------------------------------------------------- */

static void send_ping(lane_tcp *tcp, int64_t now_ns) {
    frame *ping = te_tcp_frame_make(tcp, FRAME_PING, MS_PING, 0);
    if (ping == NULL)
        return;
    tcp->pings++;
    tcp->pinged_ns = now_ns;
    te_tcp_append(tcp, ping);
    te_tcp_try_send(tcp);
}

/* What the kernel knows of the way: whether what was sent is acknowledged.  Where nothing is left to be, a ping is sent
 * whose acknowledgement will tell. */
static void ask_kernel(lane_tcp *tcp, int64_t now_ns) {
    te_lane *lane = tcp->lane;
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    if (getsockopt(tcp->watched.descriptor, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
        return;
    tcp->round_trip_us = info.tcpi_rtt;
    bool has_moved = info.tcpi_bytes_acked + info.tcpi_bytes_received != tcp->acked;
    bool is_all = info.tcpi_unacked == 0 && info.tcpi_notsent_bytes == 0;
    tcp->acked = info.tcpi_bytes_acked + info.tcpi_bytes_received;
    if (has_moved || is_all)
        te_lane_alive(lane, now_ns);
    if (!is_all)
        return;
    if (tcp->idle_ns == 0)
        tcp->idle_ns = now_ns;
    if (now_ns - tcp->pinged_ns >= PING_NS * (1 + tcp->pings / 8))
        send_ping(tcp, now_ns);
}

/* A request has ended (cancelled, its time is over) whose bytes are still under way here: the connection goes, so that it
 * can have its memory back. */
static bool has_unwanted(lane_tcp *tcp, int64_t now_ns) {
    for (frame *each = tcp->first; each != NULL; each = each->next) {
        te_work *work = each->work;
        if (work == NULL || te_work_is_wanted(work, now_ns))
            continue;
        if (work->unwanted_ns == 0)
            work->unwanted_ns = now_ns;
        if (now_ns - work->unwanted_ns >= UNWANTED_NS)
            return true;
    }
    return false;
}

static int64_t tcp_tick(te_lane *lane, int64_t now_ns) {
    lane_tcp *tcp = lane->state;
    if (lane->path->cuts != NULL)
        te_tcp_ask_cuts(lane->path, now_ns);
    if (tcp->phase == CLOSED || (tcp->phase == OPEN && tcp->first == NULL))
        return lane->path->cuts != NULL ? now_ns + LOOK_NS : INT64_MAX;
    if (has_unwanted(tcp, now_ns)) {
        te_tcp_give_up(tcp, false, false, MS_OK, "a request on it has ended");
        return INT64_MAX;
    }
    int64_t patience = tcp->lane->was_connected ? RECONNECT_NS : CONNECT_NS;
    if (tcp->phase != OPEN && now_ns - tcp->begun_ns > patience) {
        te_tcp_give_up(tcp, true, true, MS_OK, "the peer did not answer in time");
        return INT64_MAX;
    }
    int64_t round_trip_ns = (int64_t)tcp->round_trip_us * 1000;
    int64_t limit_ns = SILENCE_NS + 2 * (round_trip_ns < TE_NS_PER_S ? round_trip_ns : TE_NS_PER_S);
    if (now_ns - lane->progress_ns < LOOK_NS)
        tcp->idle_ns = 0;
    else if (tcp->phase == OPEN)
        ask_kernel(tcp, now_ns);
    if (tcp->phase == CLOSED) /* the ping has found it broken */
        return INT64_MAX;
    bool is_lost = te_lane_is_at_fault(lane, lane->alive_ns, limit_ns, false, now_ns);
    bool is_idle =
        tcp->idle_ns != 0 && te_lane_is_at_fault(lane, tcp->idle_ns, IDLENESS_NS, true, now_ns);
    if (is_lost || is_idle) {
        char why[96];
        snprintf(why, sizeof why, "%s for %lld ms, while other rails are heard of",
                 is_lost ? "nothing is acknowledged" : "no answer has come",
                 (long long)((now_ns - (is_lost ? lane->alive_ns : tcp->idle_ns)) / TE_NS_PER_MS));
        te_tcp_give_up(tcp, false, tcp->phase != OPEN, MS_OK, why);
        return INT64_MAX;
    }
    return now_ns + LOOK_NS;
}

static void tcp_ping(te_lane *lane) {
    lane_tcp *tcp = lane->state;
    if (tcp->phase == OPEN && tcp->pings == 0 && tcp->first == NULL)
        send_ping(tcp, te_now_ns());
}

static void tcp_reset(te_lane *lane, const char *why) {
    lane_tcp *tcp = lane->state;
    if (tcp->phase != CLOSED)
        te_tcp_give_up(tcp, false, false, MS_OK, why);
}

static void tcp_evict(te_lane *lane) {
    lane_tcp *tcp = lane->state;
    frame *each = tcp->first; /* a sign of life, or a cut, that was not answered yet */
    tcp->first = tcp->last = tcp->unsent = NULL;
    for (frame *next; each != NULL; each = next) {
        next = each->next;
        if (each->cut != NULL)
            each->cut->is_asked = false;
        te_tcp_frame_free(tcp, each);
    }
    close_socket(tcp);
}

static void tcp_close(te_lane *lane) {
    lane_tcp *tcp = lane->state;
    te_path *path = lane->path;
    for (te_cut *cut = path->cuts, *next; cut != NULL; cut = next) {
        next = cut->next;
        if (cut->lane == lane && cut->works == NULL)
            te_tcp_end_cut(path, cut, TE_WORK_LOST);
    }
    if (tcp->watched.descriptor >= 0)
        close_socket(tcp);
    for (frame *each = tcp->first, *next; each != NULL; each = next) {
        next = each->next;
        free(each);
    }
    for (frame *each = tcp->free_frames, *next; each != NULL; each = next) {
        next = each->next;
        free(each);
    }
    free(tcp->bounce);
    free(tcp);
    lane->state = NULL;
}

const te_lane_ops te_lane_tcp = {
    .transport = "tcp",
    .rank = 1,
    .open = tcp_open,
    .dial = te_tcp_dial,
    .post = te_tcp_post,
    .reset = tcp_reset,
    .tick = tcp_tick,
    .ping = tcp_ping,
    .evict = tcp_evict,
    .close = tcp_close,
};
