/* What the files of lanes over TCP offer each other: see lane_tcp.c. */
#ifndef TE_LANE_TCP_H
#define TE_LANE_TCP_H

#include "ms_frame.h"
#include "te_carrier.h"

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

/* ---- lane_tcp.c ---- */
bool te_tcp_watch(lane_tcp *tcp, uint32_t events);
void te_tcp_greet(lane_tcp *tcp);
void te_tcp_dial(te_lane *lane);
void te_tcp_give_up(lane_tcp *tcp, bool is_peers, bool is_refused, ms_status status,
                    const char *why);
void te_tcp_give_up_errno(lane_tcp *tcp, const char *what);

/* ---- lane_tcp_send.c ---- */
frame *te_tcp_frame_make(lane_tcp *tcp, frame_kind kind, uint16_t method, uint32_t deadline_ms);
void te_tcp_frame_free(lane_tcp *tcp, frame *used);
void te_tcp_append(lane_tcp *tcp, frame *added);
void te_tcp_take_out(lane_tcp *tcp, frame *answered);
void te_tcp_try_send(lane_tcp *tcp);
void te_tcp_post(te_lane *lane, te_work *work);

/* ---- lane_tcp_cut.c ---- */
void te_tcp_end_cut(te_path *path, te_cut *cut, te_work_outcome outcome);
void te_tcp_ask_cuts(te_path *path, int64_t now_ns);

/* ---- lane_tcp_receive.c ---- */
void te_tcp_ready(te_watched *watched, uint32_t events);

#endif
