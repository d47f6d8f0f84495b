/* Lanes over TCP: one connection each, on which frames follow one another and their answers come back in the same order.
 *
 * Nothing here waits: the carrier's epoll says when the socket can be written or read.  A frame's answer is received in
 * two steps, first the header, then what it says: a READ's bytes straight to their places.
 *
 * A lane that is given up closes its socket, so nothing late can arrive in local memory: READs are FAILED at once.
 * A WRITE of which something was sent is kept in a `cut`, until the peer has confirmed over another lane of the path that
 * the old connection is closed (cut.c), unless the peer closed it itself.
 */
#include "te_carrier.h"

#include <errno.h>
#include <linux/tcp.h> /* that of libc knows less of struct tcp_info */
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "te_fault.h"

#define CONNECT_NS (1000 * TE_NS_PER_MS) /* the first time */
#define RECONNECT_NS                                                                               \
    (250 * TE_NS_PER_MS) /* SYNs are repeated after a second only: rather begin anew */
/* Bytes that are not acknowledged for so long and two round trips, while other rails are heard of: the way is lost. */
#define SILENCE_NS (45 * TE_NS_PER_MS)
/* All is acknowledged, and yet no answer: so much longer, while the peer answers over other rails. */
#define IDLENESS_NS (400 * TE_NS_PER_MS)
#define PING_NS (20 * TE_NS_PER_MS)
#define LOOK_NS (5 * TE_NS_PER_MS)
#define UNWANTED_NS (20 * TE_NS_PER_MS) /* what nobody waits for may still come by itself */
#define TURN_BYTES (4u << 20)
#define ANSWER_BYTES_MAX (1u << 20) /* of an answer that is not a READ's bytes */

typedef enum frame_kind {
    FRAME_HELLO,
    FRAME_TOKEN,
    FRAME_TOPOLOGY,
    FRAME_PING,
    FRAME_CUT,
    FRAME_WORK,
    FRAME_TOLD /* what the peer says without being asked */
} frame_kind;

/* A connection that was given up, and WRITEs that it may still bring to the peer. */
typedef struct te_cut {
    struct te_cut *next; /* of the path */
    te_lane *lane;       /* whose works they are */
    uint64_t token;      /* 0: the peer never gave one */
    te_work *works;
    bool is_asked, is_refused;
} te_cut;

typedef struct frame {
    struct frame *next;
    frame_kind kind;
    te_work *work;
    te_cut *cut;
    uint64_t total, sent;
    ms_header header;
    size_t body_length;
    uint8_t body[8 + TE_SLICE_PIECES_MAX * sizeof(ms_write_item)];
} frame;
_Static_assert(sizeof(ms_write_item) >= sizeof(ms_read_item), "the body has room for both");

typedef enum phase { CLOSED, CONNECTING, GREETING, OPEN } phase;

typedef struct lane_tcp {
    te_watched watched; /* first: events name it */
    te_lane *lane;
    te_address address;
    phase phase;
    bool was_connected;
    uint32_t pings; /* not answered */
    int64_t begun_ns, pinged_ns;
    int64_t idle_ns; /* since when all is acknowledged, and nothing has come; 0: it is not so */
    uint64_t request, token;
    uint32_t epoch;      /* of our session, else the peer's */
    frame *first, *last; /* not answered */
    frame *unsent;       /* the first of those that is not wholly sent */
    frame *free_frames;
    frame told;     /* stands in tcp->answered for what nobody asked for */
    uint64_t acked; /* bytes that the kernel knew to be acknowledged when it was last asked */
    uint32_t round_trip_us;
    /* The answer that is coming: */
    ms_header header;
    size_t header_length;
    frame *answered; /* NULL: the header is not complete */
    bool is_direct;  /* a READ's bytes to their places, results behind them */
    uint64_t length, received;
    uint8_t *bounce; /* otherwise: all of it */
    ms_read_result results[TE_SLICE_PIECES_MAX];
} lane_tcp;

static void give_up(lane_tcp *tcp, bool is_peers, bool is_refused, ms_status status,
                    const char *why);
static void try_send(lane_tcp *tcp);
static void ask_cuts(te_path *path, int64_t now_ns);

/* ---- frames ------------------------------------------------------------------------------------------------------ */

static frame *frame_make(lane_tcp *tcp, frame_kind kind, uint16_t method, uint32_t deadline_ms) {
    frame *made = tcp->free_frames;
    if (made != NULL)
        tcp->free_frames = made->next;
    else
        made = malloc(sizeof *made);
    if (made == NULL)
        return NULL;
    made->next = NULL;
    made->kind = kind;
    made->work = NULL;
    made->cut = NULL;
    made->sent = made->total = 0;
    made->body_length = 0;
    made->header = (ms_header){.magic = MS_MAGIC,
                               .version = MS_WIRE_VERSION,
                               .kind = MS_REQUEST,
                               .method = method,
                               .status = deadline_ms,
                               .request = ++tcp->request};
    return made;
}

static void frame_free(lane_tcp *tcp, frame *used) {
    used->next = tcp->free_frames;
    tcp->free_frames = used;
}

static void append(lane_tcp *tcp, frame *added) {
    added->header.body_length = (uint32_t)added->body_length;
    added->total = sizeof added->header + added->body_length + added->header.payload_length;
    if (added->kind == FRAME_HELLO) /* its body is the path's */
        added->total = sizeof added->header + tcp->lane->path->hello_length;
    if (tcp->last == NULL)
        tcp->first = added;
    else
        tcp->last->next = added;
    tcp->last = added;
    if (tcp->unsent == NULL)
        tcp->unsent = added;
}

static void take_out(lane_tcp *tcp, frame *answered) {
    frame **at = &tcp->first, *previous = NULL;
    while (*at != answered) {
        previous = *at;
        at = &(*at)->next;
    }
    *at = answered->next;
    if (tcp->last == answered)
        tcp->last = previous;
}

static void write_body(frame *made, const te_work *work, te_opcode opcode) {
    uint32_t list[2] = {work->count, 0};
    memcpy(made->body, list, sizeof list);
    made->body_length = sizeof list;
    for (uint32_t i = 0; i < work->count; i++) {
        const te_work_piece *piece = &work->pieces[i];
        if (opcode == TE_READ) {
            ms_read_item item = piece->item->wire.read;
            item.offset = piece->offset;
            item.length = piece->length;
            memcpy(made->body + made->body_length, &item, sizeof item);
            made->body_length += sizeof item;
        } else {
            ms_write_item item = piece->item->wire.write;
            item.offset = piece->offset;
            item.length = piece->length;
            item.seal_length = 0;
            memcpy(made->body + made->body_length, &item, sizeof item);
            made->body_length += sizeof item;
        }
    }
    made->header.payload_length = opcode == TE_WRITE ? work->bytes : 0;
}

/* ---- opening and closing --------------------------------------------------------------------------------------- */

static void ready(te_watched *watched, uint32_t events);

static ms_status tcp_open(te_lane *lane) {
    lane_tcp *tcp = calloc(1, sizeof *tcp);
    if (tcp == NULL)
        return MS_NO_MEMORY;
    tcp->lane = lane;
    tcp->watched = (te_watched){.ready = ready, .descriptor = -1};
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

static bool watch(lane_tcp *tcp, uint32_t events) {
    if (tcp->watched.is_watched && tcp->watched.events == events)
        return true;
    tcp->watched.events = events;
    return te_carrier_watch(tcp->lane->carrier, &tcp->watched) == MS_OK;
}

/* The kernel has a connection: HELLO, and what waits behind it. */
static void greet(lane_tcp *tcp) {
    frame *hello = frame_make(tcp, FRAME_HELLO, MS_HELLO, 0);
    /* What is asked on it first: by which token it is cut, or which interfaces the peer has, now and later. */
    bool is_write = tcp->lane->opcode == TE_WRITE;
    frame *next = hello == NULL ? NULL
                  : is_write    ? frame_make(tcp, FRAME_TOKEN, MS_CUT, 0)
                                : frame_make(tcp, FRAME_TOPOLOGY, MS_TOPOLOGY, 0);
    tcp->phase = GREETING;
    if (next == NULL) {
        if (hello != NULL)
            frame_free(tcp, hello);
        give_up(tcp, true, true, MS_OK, "no memory for HELLO");
        return;
    }
    frame *waiting = tcp->first, *last = tcp->last;
    tcp->first = tcp->last = tcp->unsent = NULL;
    append(tcp, hello);
    uint64_t none = 0; /* no token, or an empty string */
    memcpy(next->body, &none, sizeof none);
    next->body_length = sizeof none;
    append(tcp, next);
    if (waiting != NULL) {
        tcp->last->next = waiting;
        tcp->last = last;
    }
    try_send(tcp);
}

static void tcp_dial(te_lane *lane) {
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
        if (!watch(tcp, EPOLLIN | EPOLLOUT))
            give_up(tcp, true, true, MS_OK, "no room for another connection");
        else if (status == MS_OK)
            greet(tcp);
        te_lane_tick_at(lane, tcp->begun_ns + LOOK_NS);
        return;
    }
    tcp->watched.descriptor = -1;
    give_up(tcp, true, true, MS_OK, error);
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
static void give_up(lane_tcp *tcp, bool is_peers, bool is_refused, ms_status status,
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
        frame_free(tcp, each);
    }
    if (doubtful != NULL)
        keep_for_cut(tcp, doubtful, token);
    if (was_known || doubtful != NULL)
        te_lane_down(lane, is_refused, status, "%s", why);
    ask_cuts(lane->path, te_now_ns());
}

/* What the kernel says about a broken connection: whether the peer itself has ended it. */
static void give_up_errno(lane_tcp *tcp, const char *what) {
    int problem = errno;
    char why[96];
    snprintf(why, sizeof why, "%s: %s", what, strerror(problem));
    give_up(tcp, problem == EPIPE || problem == ECONNRESET, false, MS_OK, why);
}

/* ---- cuts -------------------------------------------------------------------------------------------------------- */

static void end_cut(te_path *path, te_cut *cut, te_work_outcome outcome) {
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
            end_cut(path, cut, TE_WORK_LOST);
    }
}

static bool ask_cut(te_lane *lane, te_cut *cut) {
    lane_tcp *tcp = lane->state;
    if (lane->ops != &te_lane_tcp || tcp->phase != OPEN)
        return false;
    frame *asking = frame_make(tcp, FRAME_CUT, MS_CUT, 0);
    if (asking == NULL)
        return false;
    memcpy(asking->body, &cut->token, sizeof cut->token);
    asking->body_length = sizeof cut->token;
    asking->cut = cut;
    cut->is_asked = true;
    append(tcp, asking);
    try_send(tcp); /* it may be given up within: then is_asked is false again */
    te_lane_tick_at(lane, te_now_ns() + LOOK_NS);
    return true;
}

static void ask_cuts(te_path *path, int64_t now_ns) {
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

/* ---- sending ------------------------------------------------------------------------------------------------------- */

static size_t parts_of(lane_tcp *tcp, frame *sent, struct iovec *parts) {
    te_path *path = tcp->lane->path;
    size_t count = 0;
    parts[count++] = (struct iovec){&sent->header, sizeof sent->header};
    if (sent->kind == FRAME_HELLO)
        parts[count++] = (struct iovec){path->hello, path->hello_length};
    else if (sent->body_length > 0)
        parts[count++] = (struct iovec){sent->body, sent->body_length};
    if (sent->kind == FRAME_WORK && tcp->lane->opcode == TE_WRITE)
        for (uint32_t i = 0; i < sent->work->count; i++)
            parts[count++] =
                (struct iovec){sent->work->pieces[i].local, (size_t)sent->work->pieces[i].length};
    return count;
}

static void try_send(lane_tcp *tcp) {
    if (tcp->phase != GREETING && tcp->phase != OPEN)
        return;
    struct iovec all[TE_SLICE_PIECES_MAX + 2];
    while (tcp->unsent != NULL) {
        frame *sending = tcp->unsent;
        if (tcp->phase == GREETING && sending->kind == FRAME_WORK)
            break; /* not before the peer has agreed to HELLO */
        if (sending->kind == FRAME_HELLO)
            sending->header.body_length = (uint32_t)tcp->lane->path->hello_length;
        else if (sending->sent == 0)
            sending->header.epoch = tcp->epoch;
        struct iovec *parts = all;
        size_t count = parts_of(tcp, sending, all);
        te_iov_advance(&parts, &count, (size_t)sending->sent);
        ssize_t sent = te_socket_send(tcp->watched.descriptor, parts, count, NULL, 0, MSG_DONTWAIT);
        if (sent < 0 && errno == EAGAIN) {
            if (!watch(tcp, EPOLLIN | EPOLLOUT))
                give_up(tcp, false, false, MS_OK, "the socket cannot be watched");
            return;
        }
        if (sent < 0) {
            give_up_errno(tcp, "sending failed");
            return;
        }
        sending->sent += (uint64_t)sent;
        if (sending->sent == sending->total)
            tcp->unsent = sending->next;
    }
    if (tcp->watched.events != EPOLLIN && !watch(tcp, EPOLLIN))
        give_up(tcp, false, false, MS_OK, "the socket cannot be watched");
}

static void tcp_post(te_lane *lane, te_work *work) {
    lane_tcp *tcp = lane->state;
    if (lane->is_gone || !lane->is_up) { /* it was given up since the slice was cut */
        te_lane_done(work, TE_WORK_FAILED);
        return;
    }
    frame *made = frame_make(tcp, FRAME_WORK, lane->opcode == TE_READ ? MS_READ : MS_WRITE,
                             te_deadline_ms(work->deadline_ns));
    if (made == NULL) {
        te_lane_done(work, TE_WORK_FAILED);
        give_up(tcp, false, false, MS_OK, "no memory for a request");
        return;
    }
    made->work = work;
    write_body(made, work, lane->opcode);
    if (tcp->first == NULL)
        te_lane_progress(lane, te_now_ns()); /* until now it had nothing to say */
    append(tcp, made);
    if (tcp->phase != CLOSED) {
        try_send(tcp);
        return;
    }
    lane->is_connecting = true; /* it was evicted */
    tcp_dial(lane);
}

/* ---- receiving ------------------------------------------------------------------------------------------------------ */

/* Places for a READ's bytes and results, from what has come on. */
static size_t targets_of(lane_tcp *tcp, struct iovec *parts) {
    const te_work *work = tcp->answered->work;
    size_t count = 0;
    for (uint32_t i = 0; i < work->count; i++)
        parts[count++] = (struct iovec){work->pieces[i].local, (size_t)work->pieces[i].length};
    parts[count++] = (struct iovec){tcp->results, work->count * sizeof *tcp->results};
    return count;
}

/* Some items were refused and have sent no bytes: the others' lie one behind the other. */
static bool spread(lane_tcp *tcp, te_work *work) {
    const uint8_t *bytes = tcp->bounce + tcp->header.body_length;
    uint64_t left = tcp->header.payload_length;
    memcpy(tcp->results, bytes + left, work->count * sizeof *tcp->results);
    for (uint32_t i = 0; i < work->count; i++) {
        te_work_piece *piece = &work->pieces[i];
        if (tcp->results[i].status != MS_OK)
            continue;
        if (piece->length > left)
            return false;
        memcpy(piece->local, bytes, (size_t)piece->length);
        bytes += piece->length;
        left -= piece->length;
    }
    return left == 0;
}

/* Returns false when the answer makes no sense. */
static bool end_read(lane_tcp *tcp, te_work *work) {
    if (tcp->header.status != MS_OK) {
        for (uint32_t i = 0; i < work->count; i++)
            work->pieces[i].status = tcp->header.status;
        return true;
    }
    if (!tcp->is_direct && !spread(tcp, work))
        return false;
    for (uint32_t i = 0; i < work->count; i++) {
        if (tcp->is_direct && tcp->results[i].status != MS_OK && work->pieces[i].length > 0)
            return false;
        work->pieces[i].status = tcp->results[i].status;
        work->pieces[i].word = tcp->results[i].word;
    }
    return true;
}

static void end_write(lane_tcp *tcp, te_work *work) {
    uint32_t list[2] = {0, 0};
    size_t length = tcp->header.body_length;
    if (length >= sizeof list)
        memcpy(list, tcp->bounce, sizeof list);
    bool is_list = length == (2 + (size_t)work->count) * sizeof *list && list[0] == work->count &&
                   list[1] == 0;
    for (uint32_t i = 0; i < work->count; i++) {
        work->pieces[i].status = tcp->header.status;
        if (is_list && tcp->header.status != MS_OK)
            memcpy(&work->pieces[i].status, tcp->bounce + (2 + (size_t)i) * sizeof *list,
                   sizeof *list);
    }
}

/* The peer's answer to HELLO: it takes us, or says why not. */
static bool end_hello(lane_tcp *tcp) {
    if (tcp->header.status != MS_OK) {
        char why[96];
        snprintf(why, sizeof why, "%.*s", (int)tcp->header.body_length,
                 tcp->bounce == NULL ? "" : (const char *)tcp->bounce);
        ms_status status = (ms_status)tcp->header.status;
        bool may_change = status == MS_LIMIT || status == MS_BUSY || status == MS_UNAVAILABLE ||
                          status == MS_TIMEOUT || status == MS_NO_MEMORY;
        give_up(tcp, true, true, may_change ? MS_OK : status, why);
        return false;
    }
    ms_hello ours = {0};
    ms_hello_answer theirs = {0};
    if (tcp->lane->path->hello_length >= sizeof ours)
        memcpy(&ours, tcp->lane->path->hello, sizeof ours);
    if (tcp->header.body_length >= sizeof theirs)
        memcpy(&theirs, tcp->bounce, sizeof theirs);
    tcp->epoch = ours.epoch != 0 ? ours.epoch : theirs.epoch;
    tcp->phase = OPEN;
    tcp->was_connected = true;
    if (!tcp->lane->is_up) /* it was evicted, else */
        te_lane_up(tcp->lane);
    tcp->lane->is_connecting = false;
    return true;
}

static void end_answer(lane_tcp *tcp) {
    tcp->answered = NULL;
    tcp->header_length = 0;
    free(tcp->bounce);
    tcp->bounce = NULL;
}

/* The whole answer is here.  False: the connection is gone. */
static bool finish(lane_tcp *tcp) {
    frame *answered = tcp->answered;
    te_work *work = answered->work;
    te_path *path = tcp->lane->path;
    bool is_good = true;
    if (answered->kind == FRAME_TOLD ||
        (answered->kind == FRAME_TOPOLOGY && tcp->header.status == MS_OK))
        te_path_told(path, tcp->bounce, (size_t)tcp->length);
    if (answered->kind == FRAME_TOLD) {
        end_answer(tcp);
        return true;
    }
    if (answered->kind == FRAME_HELLO && !end_hello(tcp))
        return false;
    if (answered->kind == FRAME_TOKEN && tcp->header.status == MS_OK &&
        tcp->header.body_length == sizeof tcp->token)
        memcpy(&tcp->token, tcp->bounce, sizeof tcp->token);
    if (answered->kind == FRAME_PING)
        tcp->pings = 0;
    if (answered->kind == FRAME_WORK && tcp->lane->opcode == TE_READ)
        is_good = end_read(tcp, work);
    else if (answered->kind == FRAME_WORK)
        end_write(tcp, work);
    if (!is_good) {
        give_up(tcp, false, false, MS_OK, "an answer that does not add up");
        return false;
    }
    bool is_early = answered->sent < answered->total; /* refused before all of it was sent */
    take_out(tcp, answered);
    end_answer(tcp);
    if (work != NULL)
        te_lane_done(work, TE_WORK_DONE);
    te_cut *cut = answered->cut;
    frame_kind kind = answered->kind;
    frame_free(tcp, answered);
    if (kind == FRAME_CUT && cut != NULL) {
        cut->is_asked = false;
        if (tcp->header.status == MS_OK) /* whatever was on its way there, is no more */
            end_cut(path, cut, TE_WORK_FAILED);
        else
            cut->is_refused = true;
    }
    if (is_early) {
        give_up(tcp, true, false, MS_OK, "the peer refused a request before it had all of it");
        return false;
    }
    if (kind == FRAME_HELLO) {
        ask_cuts(path, te_now_ns());
        if (tcp->phase == OPEN)
            try_send(tcp);
    }
    return tcp->phase != CLOSED;
}

static bool is_told(const ms_header *header) {
    return header->kind == MS_ONEWAY && header->method == MS_TOPOLOGY && header->body_length > 0 &&
           header->payload_length == 0 && header->trailer_length == 0;
}

/* The header is complete: to which request, and how much follows?  False: it makes no sense. */
static bool begin_answer(lane_tcp *tcp) {
    const ms_header *header = &tcp->header;
    if (header->magic != MS_MAGIC || header->version < MS_WIRE_VERSION_OLDEST ||
        header->version > MS_WIRE_VERSION || (header->kind != MS_ANSWER && !is_told(header)) ||
        header->status >= MS_STATUS_COUNT || header->body_length > ANSWER_BYTES_MAX)
        return false;
    if (header->kind != MS_ANSWER) {
        tcp->answered = &tcp->told;
        tcp->received = 0;
        tcp->is_direct = false;
        tcp->length = header->body_length;
        tcp->bounce = malloc((size_t)tcp->length + 1);
        return tcp->bounce != NULL;
    }
    frame *each = tcp->first;
    while (each != NULL && each != tcp->unsent && each->header.request != header->request)
        each = each->next;
    if (each == NULL || (each == tcp->unsent && each->header.request != header->request) ||
        each->header.method != header->method || each->sent == 0)
        return false;
    bool is_whole = each->sent == each->total;
    tcp->answered = each;
    tcp->received = 0;
    tcp->is_direct = false;
    tcp->length = header->body_length;
    if (each->kind == FRAME_WORK && tcp->lane->opcode == TE_READ && header->status == MS_OK) {
        uint64_t trailer = each->work->count * sizeof *tcp->results;
        if (header->body_length != 0 || header->trailer_length != trailer ||
            header->payload_length > each->work->bytes || !is_whole)
            return false;
        tcp->is_direct = header->payload_length == each->work->bytes;
        tcp->length = header->payload_length + trailer;
    } else if (header->payload_length != 0 || header->trailer_length != 0) {
        return false;
    }
    if (tcp->is_direct || tcp->length == 0)
        return is_whole || header->status != MS_OK;
    tcp->bounce = malloc((size_t)tcp->length + 1);
    return tcp->bounce != NULL && (is_whole || header->status != MS_OK);
}

/* 1: something came; 0: nothing is there; -1: the connection is gone. */
static int receive(lane_tcp *tcp, size_t *moved) {
    struct iovec all[TE_SLICE_PIECES_MAX + 2], *parts = all;
    size_t count = 1;
    if (tcp->answered == NULL) {
        all[0] = (struct iovec){(uint8_t *)&tcp->header + tcp->header_length,
                                sizeof tcp->header - tcp->header_length};
    } else if (tcp->is_direct) {
        count = targets_of(tcp, all);
        te_iov_advance(&parts, &count, (size_t)tcp->received);
    } else {
        all[0] = (struct iovec){tcp->bounce + tcp->received, (size_t)(tcp->length - tcp->received)};
    }
    ssize_t came =
        te_socket_receive(tcp->watched.descriptor, parts, count, NULL, 0, NULL, MSG_DONTWAIT);
    if (came < 0 && errno == EAGAIN)
        return 0;
    if (came < 0) {
        give_up_errno(tcp, "receiving failed");
        return -1;
    }
    if (came == 0) {
        give_up(tcp, true, tcp->phase == GREETING, MS_OK, "the peer closed the connection");
        return -1;
    }
    *moved += (size_t)came;
    if (tcp->answered != NULL) {
        tcp->received += (uint64_t)came;
    } else {
        tcp->header_length += (size_t)came;
        if (tcp->header_length < sizeof tcp->header)
            return 1;
        if (!begin_answer(tcp)) {
            give_up(tcp, false, false, MS_OK, "what the peer sent is not an answer");
            return -1;
        }
    }
    if (tcp->received < tcp->length)
        return 1;
    return finish(tcp) ? 1 : -1;
}

static void ready(te_watched *watched, uint32_t events) {
    lane_tcp *tcp = (lane_tcp *)watched;
    te_lane *lane = tcp->lane;
    if (tcp->phase == CONNECTING) {
        int problem = 0;
        socklen_t length = sizeof problem;
        if ((events & (EPOLLOUT | EPOLLERR | EPOLLHUP)) == 0)
            return;
        (void)getsockopt(watched->descriptor, SOL_SOCKET, SO_ERROR, &problem, &length);
        if (problem != 0) {
            char why[96];
            snprintf(why, sizeof why, "cannot connect: %s", strerror(problem));
            give_up(tcp, true, true, MS_OK, why);
            return;
        }
        te_lane_progress(lane, te_now_ns());
        greet(tcp);
        return;
    }
    if ((events & EPOLLOUT) != 0)
        try_send(tcp);
    if ((events & ~(uint32_t)EPOLLOUT) == 0 || tcp->phase == CLOSED)
        return;
    size_t moved = 0;
    int outcome = 1;
    while (outcome == 1 && moved < TURN_BYTES)
        outcome = receive(tcp, &moved);
    if (moved > 0)
        te_lane_progress(lane, te_now_ns());
    if (tcp->phase != CLOSED && tcp->unsent != NULL && tcp->watched.events == EPOLLIN)
        try_send(tcp);
}

/* ---- looking after it ---------------------------------------------------------------------------------------------- */

static void send_ping(lane_tcp *tcp, int64_t now_ns) {
    frame *ping = frame_make(tcp, FRAME_PING, MS_PING, 0);
    if (ping == NULL)
        return;
    tcp->pings++;
    tcp->pinged_ns = now_ns;
    append(tcp, ping);
    try_send(tcp);
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
        ask_cuts(lane->path, now_ns);
    if (tcp->phase == CLOSED || (tcp->phase == OPEN && tcp->first == NULL))
        return lane->path->cuts != NULL ? now_ns + LOOK_NS : INT64_MAX;
    if (has_unwanted(tcp, now_ns)) {
        give_up(tcp, false, false, MS_OK, "a request on it has ended");
        return INT64_MAX;
    }
    int64_t patience = tcp->was_connected ? RECONNECT_NS : CONNECT_NS;
    if (tcp->phase != OPEN && now_ns - tcp->begun_ns > patience) {
        give_up(tcp, true, true, MS_OK, "the peer did not answer in time");
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
        give_up(tcp, false, tcp->phase != OPEN, MS_OK, why);
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
        give_up(tcp, false, false, MS_OK, why);
}

static void tcp_evict(te_lane *lane) {
    lane_tcp *tcp = lane->state;
    frame *each = tcp->first; /* a sign of life, or a cut, that was not answered yet */
    tcp->first = tcp->last = tcp->unsent = NULL;
    for (frame *next; each != NULL; each = next) {
        next = each->next;
        if (each->cut != NULL)
            each->cut->is_asked = false;
        frame_free(tcp, each);
    }
    close_socket(tcp);
}

static void tcp_close(te_lane *lane) {
    lane_tcp *tcp = lane->state;
    te_path *path = lane->path;
    for (te_cut *cut = path->cuts, *next; cut != NULL; cut = next) {
        next = cut->next;
        if (cut->lane == lane && cut->works == NULL)
            end_cut(path, cut, TE_WORK_LOST);
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
    .dial = tcp_dial,
    .post = tcp_post,
    .reset = tcp_reset,
    .tick = tcp_tick,
    .ping = tcp_ping,
    .evict = tcp_evict,
    .close = tcp_close,
};
